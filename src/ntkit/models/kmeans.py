"""k-means on features: kernel k-means without the kernel matrix."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, generator, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Floats, Integer, Integers, Real
from ntkit._validation import check_int, check_overflow, check_real, message
from ntkit.features.base import FeatureMap
from ntkit.features.landmarks.choose import take
from ntkit.models._checks import check_weight, like_rows, to_library
from ntkit.models._features import check_columns, check_features, dense_features, fit_features, take_columns
from ntkit.models._rows import ArraySource, as_rows, block_rows, n_rows_of, take_rows

_TILE = 1024  # rows per tile of the exact kernel matrix


class FeatureKMeans(
    OldSpellings,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClusterMixin,
    AllOrNothing,
    Declared,
    BaseEstimator,
):
    """Kernel k-means: k-means on features, which minimizes Σ ‖Z(x) − μ_{c(x)}‖² over clusters c and their means μ.

    With Z Zᵀ ≈ K this approximates the objective of kernel k-means, tr(K − C Cᵀ K C Cᵀ), where C_{xj} = n_j^{-1/2} for
    the n_j rows x of cluster j and 0 otherwise; :meth:`kernel_objective` computes it from the exact kernel. A
    clustering within a factor 1 + γ of the optimum for the features is within (1 + γ)(1 + ε)/(1 − ε) of the optimum for
    the kernel, by Theorem 10 and as in Lemma 14 of [1]_. Here ε is the projection-cost error of the features
    (:func:`ntkit.diagnostics.projection_cost_error` with the number of clusters as the rank).

    Parameters
    ----------
    features : transformer
        Any scikit-learn transformer: a map of ntkit, or a Pipeline whose last step is a map. None:
        ``ArcsinhScaler()``, then ``NTKFeatures(depth=1, bias="auto")`` with 2048 components. The transformer is cloned
        and fitted; to use a fitted transformer, wrap it in ``sklearn.frozen.FrozenEstimator``.
    n_clusters : int
        Number of clusters.
    n_init : int
        Number of runs with different initial centres; the result with the smallest inertia is kept.
    max_iter : int
        Maximum number of iterations per run.
    tolerance : float
        Iterations stop when the squared movement of all centres, relative to the mean variance of a feature, falls to
        this value; 0: when no row changes its cluster.
    batch_size : int or None
        Rows per batch; None: 256 MiB of features.
    random_state : None, int, RandomState or Generator
        Draws the initial centres, and the default features.

    Attributes
    ----------
    cluster_centers_ : ndarray of shape (n_clusters, n_components)
        μ, in the space of features.
    labels_ : array of shape (n_samples,)
        Cluster of each row; a tensor if the rows are a tensor.
    inertia_ : float
        Σ w ‖Z(x) − μ‖².
    n_iter_ : int
        Iterations of the run that was kept.
    features_ : transformer
        The fitted features.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    With n rows, k clusters and m features, an iteration takes O(n k m). The features of all rows are in memory, n·m
    numbers. Initial centres are chosen by greedy k-means++. Features in host memory are clustered by scikit-learn's
    ``KMeans``. Features on another device stay there, with sums in float64; clusters that lose all their rows restart
    from the rows farthest from their centres. The two implementations use different random draws, so their results
    differ like results of two seeds.

    Weights count as repeated rows in every sum. The initial centres depend on the weights, but also on the order of the
    rows, so a row of weight 2 and two copies of the row may lead to different local optima.

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022, Theorem 10 and
       Lemma 14.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import RandomFourierFeatures
    >>> from ntkit import FeatureKMeans
    >>> rng = np.random.default_rng(0)
    >>> angles, inner = rng.uniform(0, 2 * np.pi, 400), np.arange(400) < 100
    >>> X = np.where(inner, 0.3, 3.0)[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    >>> features = RandomFourierFeatures(n_components=512, lengthscale=2.0, random_state=0)
    >>> model = FeatureKMeans(features, 2, random_state=0).fit(X)
    >>> model.predict([[0.0, 0.0]]).shape
    (1,)
    >>> bool(abs(model.kernel_objective(X) - model.inertia_ / 400) < 0.02)
    True
    """

    _old_names: ClassVar[dict[str, Any]] = {"tol": "tolerance"}
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "features_": Estimator(("transform",)),
        "cluster_centers_": Floats("k", "m", single=True),
        "labels_": Integers("n", minimum=0),
        "inertia_": Real(minimum=0.0),
        "n_iter_": Integer(minimum=0),
    }

    def __init__(
        self,
        features: Any = None,
        n_clusters: int = 8,
        *,
        n_init: int = 1,
        max_iter: int = 300,
        tolerance: float = 1e-4,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.features = features
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tolerance = tolerance
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # noqa: ARG002
        """Fit the features and find the clusters.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : ignored
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            self._check_parameters()
            if _array.is_dask(X):
                remedy = "Fit on a sample of rows; predict and transform take Dask collections."
                raise TypeError(message(f"{name}.fit", "X", "rows in memory", X, remedy))
            X = as_rows(X, "X", name)
            n_rows = n_rows_of(X)
            if not n_rows:
                raise ValueError(message(f"{name}.fit", "X", "non-empty", X, "Found array with 0 sample(s)."))
            weight = None if sample_weight is None else check_weight(sample_weight, n_rows, name)
            if weight is not None and not weight.any():
                raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
            if n_rows < self.n_clusters:
                rule = f"at most the number of rows of X, n_samples={n_rows}"
                raise ValueError(message(name, "n_clusters", rule, self.n_clusters))
            seed = seed_sequence(self.random_state, owner=name)
            self._fit_features(X, weight, seed)
            labels = self._cluster(self._features_of_all(X), weight, seed)
            self.labels_ = to_library(labels, X) if _array.is_torch(X) else to_numpy(labels)
        return self

    def _fit_features(self, X: Any, weight: np.ndarray | None, seed: np.random.SeedSequence) -> None:
        take_columns(self, X)
        self.features_ = fit_features(self.features, ArraySource(X, None, weight), seed, type(self).__name__)

    def _cluster(self, Z: Array, weight: np.ndarray | None, seed: np.random.SeedSequence) -> Array:
        """Run k-means and return the labels: scikit-learn's k-means in host memory, our own on other devices."""
        if _array.is_numpy(Z):
            from sklearn.cluster import KMeans

            state = int(generator(seed, "k-means").integers(2**31))
            options = {"n_init": self.n_init, "max_iter": self.max_iter, "tol": self.tolerance, "random_state": state}
            means = KMeans(self.n_clusters, copy_x=False, **options).fit(Z, sample_weight=weight)
            self.cluster_centers_ = means.cluster_centers_
            self.inertia_, self.n_iter_ = float(means.inertia_), int(means.n_iter_)
            return means.labels_.astype(np.int64)
        from ntkit._lloyd import lloyd

        found = lloyd(
            Z, self.n_clusters, max_iter=self.max_iter, seed=seed, n_init=self.n_init, tol=self.tolerance,
            weight=None if weight is None else to_library(weight, Z),
        )  # fmt: skip
        self.cluster_centers_ = to_numpy(found.centers)
        self.inertia_, self.n_iter_ = found.inertia, found.n_iter
        distinct = len(found.labels.unique())
        if distinct < self.n_clusters:
            text = (
                f"Only {distinct} of n_clusters={self.n_clusters} clusters have rows. X may have too few distinct rows."
            )
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return found.labels

    def predict(self, X: Any) -> Array:
        """Return the index of the nearest centre of every row.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,)
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.predict, X, n_columns=None, dtype=np.int64)
        parts = [_array.namespace(squares).argmin(squares, axis=1) for squares in self._squares(X)]
        labels = _array.namespace(*parts).concat(parts)
        return to_library(labels, X) if _array.is_torch(X) else to_numpy(labels)

    def transform(self, X: Any) -> Array:
        """Return the distances ‖Z(x) − μ‖ of every row from all centres.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_clusters)
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.transform, X, n_columns=self._n_features_out)
        parts = [_array.namespace(squares).sqrt(squares) for squares in self._squares(X)]
        return like_rows(_array.namespace(*parts).concat(parts), X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Return the negative inertia of some rows, −Σ w min_j ‖Z(x) − μ_j‖².

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : ignored
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        float
        """
        check_is_fitted(self)
        least = [to_numpy(_array.namespace(squares).min(squares, axis=1)) for squares in self._squares(X)]
        distances = np.concatenate(least)
        return -float(check_weight(sample_weight, len(distances), type(self).__name__) @ distances)

    def kernel_objective(
        self,
        X: Any,
        labels: Any = None,
        *,
        kernel: Any = None,
        n_samples: int | None = None,
        random_state: RandomState = None,
        **kernel_params: Any,
    ) -> float:
        """Compute the mean of ‖φ_x − μ‖² over the rows in the space of the exact kernel: tr(K − C Cᵀ K C Cᵀ)/n.

        It equals Σ_j (n_j − 1)(d_j − o_j)/n, where d_j and o_j are the means of K over the diagonal and over all other
        pairs of the n_j rows of cluster j. Only kernel values within clusters are computed, tile by tile.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        labels : array of shape (n_rows,), optional
            A clustering; None: the result of `predict`.
        kernel : str, network or callable, optional
            The exact kernel, as for :func:`ntkit.kernels.gram`; by default the kernel that the map of ntkit
            approximates. If the features are a Pipeline, the steps before the last one are applied to the rows first.
        n_samples : int or None, default=None
            Number of rows from which d_j and o_j are estimated without bias. They are drawn from each cluster in
            proportion to its size, at least two of each. None: all rows, which takes about Σ n_j² kernel values.
        random_state : None, int, RandomState or Generator
            Draws the sample.
        **kernel_params
            Parameters of `kernel`.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> from ntkit import FeatureKMeans
        >>> X = np.random.default_rng(0).standard_normal((60, 4))
        >>> model = FeatureKMeans(NTKFeatures(n_components=256, random_state=0), 3, random_state=0).fit(X)
        >>> one = np.zeros(60, dtype=int)
        >>> model.kernel_objective(X) < model.kernel_objective(X, one)
        True
        """
        check_is_fitted(self)
        owner = f"{type(self).__name__}.kernel_objective"
        X = as_rows(X, "X", type(self).__name__)
        groups = _groups(self.predict(X) if labels is None else labels, n_rows_of(X), owner)
        seed = seed_sequence(random_state, owner=owner)
        if n_samples is not None:
            check_int(n_samples, "n_samples", owner, minimum=1)
        tile = self._kernel_tiles(kernel, kernel_params, owner)
        total = 0.0
        for number, members in enumerate(groups):
            size = len(members)
            if size == 1:  # the mean is the row itself
                continue
            if n_samples is not None:
                wanted = min(size, max(2, round(n_samples * size / n_rows_of(X))))
                members = np.sort(generator(seed, "objective", number).choice(members, wanted, replace=False))
            diagonal, others = _means(tile, self._rows_of_map(X, members, checked=kernel is None))
            total += (size - 1) * (diagonal - others)
        return total / n_rows_of(X)

    def _kernel_tiles(self, kernel: Any, params: dict[str, Any], owner: str) -> Any:
        """Return a function that computes the kernel matrix of two blocks of rows, or of one block and None."""
        if kernel is not None:
            from ntkit.kernels import gram

            return lambda A, B: gram(kernel, A, B, **params)
        last = _steps(self.features_)[-1]
        if not hasattr(last, "exact_kernel"):
            rule = "given (a name such as 'ntk', a network or a function) if the features are not a map of ntkit"
            raise TypeError(message(owner, "kernel", rule, kernel))
        if params:
            raise TypeError(f"{owner} got kernel parameters {sorted(params)}, but no kernel. Pass kernel=…, too.")
        # Maps compute the kernel matrix of one set of rows: the matrix of both blocks together contains the tile.
        matrix = last._planned.matrix if isinstance(last, FeatureMap) else last.exact_kernel
        return lambda A, B: matrix(A) if B is None else matrix(_joined(A, B))[: A.shape[0], A.shape[0] :]

    def _rows_of_map(self, X: Any, members: np.ndarray, *, checked: bool) -> Any:
        """Apply the steps before the last one to some rows; with `checked`, a map of ntkit then validates them."""
        rows = X.iloc[members] if hasattr(X, "iloc") else take(X, members)
        for step in _steps(self.features_)[:-1]:
            rows = step.transform(rows)
        last = _steps(self.features_)[-1]
        if checked and isinstance(last, FeatureMap):
            return last._check_rows(rows, reset=False)
        return rows.to_numpy() if hasattr(rows, "to_numpy") else rows

    def _squares(self, X: Any) -> Any:
        """Yield blocks of squared distances of rows from all centres, in float64."""
        X = as_rows(X, "X", type(self).__name__)
        for _, Z in self._blocks(X):
            xp: Any = _array.namespace(Z)
            centers = xp.astype(to_library(self.cluster_centers_, Z), xp.float64)
            middle = xp.mean(centers, axis=0)  # centred, since far from the origin the squares would cancel
            Z, centers = xp.astype(Z, xp.float64) - middle, centers - middle
            with np.errstate(over="ignore"):
                squares = xp.sum(Z * Z, axis=1)[:, None] + xp.sum(centers * centers, axis=1)[None, :]
            with np.errstate(over="ignore", invalid="ignore"):
                squares = xp.clip(squares - 2 * xp.matmul(Z, xp.matrix_transpose(centers)), 0, None)
            check_overflow(squares, Z, type(self).__name__, "squared distances", "features")
            yield squares

    def _features_of_all(self, X: Any) -> Array:
        Z: Array = None
        for rows, block in self._blocks(X):
            if Z is None:
                xp: Any = _array.namespace(block)
                Z = xp.empty((n_rows_of(X), block.shape[1]), dtype=block.dtype, device=_array.device(block))
            Z[rows] = block
        dtype = np.float32 if "32" in str(Z.dtype) else np.float64
        with np.errstate(over="ignore"):
            bound = np.square(np.asarray([_array.largest(Z)], dtype)) * Z.shape[0] * Z.shape[1]
        check_overflow(bound, Z, type(self).__name__, "sums of squares", "features")
        return Z

    def _blocks(self, X: Any) -> Any:
        """Yield the slice and the features of blocks of rows."""
        first = self._features_of(take_rows(X, slice(0, 1)))
        step = self.batch_size or block_rows(int(first.shape[1]), first.dtype.itemsize, X)
        for start in range(0, n_rows_of(X), step):
            rows = slice(start, min(start + step, n_rows_of(X)))
            yield rows, self._features_of(take_rows(X, rows))

    def _features_of(self, X: Any) -> Array:
        check_columns(self, X)
        return dense_features(self.features_, X, type(self).__name__)

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.features is not None:
            check_features(self.features, name)
        for parameter in ("n_clusters", "n_init", "max_iter"):
            check_int(getattr(self, parameter), parameter, name, minimum=1)
        check_real(self.tolerance, "tolerance", name, minimum=0)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        features = self.features
        tags.input_tags.sparse = hasattr(features, "__sklearn_tags__") and get_tags(features).input_tags.sparse
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _groups(labels: Any, n_rows: int, owner: str) -> list[np.ndarray]:
    """Return the indices of the rows of each cluster."""
    labels = np.asarray(to_numpy(labels))
    if labels.shape != (n_rows,):
        raise ValueError(message(owner, "labels", f"None or an array of {n_rows} labels, one per row of X", labels))
    _, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return np.split(order, np.cumsum(np.bincount(inverse))[:-1])


def _means(tile: Any, X: Any) -> tuple[float, float]:
    """Return the means of the kernel over the diagonal and over all other pairs of at least two rows."""
    n_rows = X.shape[0]
    diagonal = others = 0.0
    parts = [slice(start, min(start + _TILE, n_rows)) for start in range(0, n_rows, _TILE)]
    for number, rows in enumerate(parts):
        K = tile(X[rows], None)
        xp: Any = _array.namespace(K)
        K = xp.astype(K, xp.float64)
        own = float(xp.sum(xp.linalg.diagonal(K)))
        diagonal, others = diagonal + own, others + float(xp.sum(K)) - own
        for columns in parts[number + 1 :]:
            others += 2 * float(xp.sum(xp.astype(tile(X[rows], X[columns]), xp.float64)))
    return diagonal / n_rows, others / (n_rows * (n_rows - 1))


def _steps(features: Any) -> list[Any]:
    """Return all steps of a pipeline, including the steps of nested pipelines and of a FrozenEstimator."""
    if isinstance(features, FrozenEstimator):
        return _steps(features.estimator)
    if isinstance(features, Pipeline):
        return [part for _, step in features.steps if step not in (None, "passthrough") for part in _steps(step)]
    return [features]


def _joined(A: Any, B: Any) -> Any:
    if _array.is_sparse(A):
        from scipy.sparse import vstack

        return vstack([A, B], format="csr")
    return _array.namespace(A, B).concat([A, B])
