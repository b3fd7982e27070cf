"""Ridge regression and classification on features, in one pass over the rows."""

from __future__ import annotations

from copy import copy
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit import _expression as expression
from ntkit._array import Array
from ntkit._batching import progress_bar
from ntkit._random import RandomState, keyed, row_uniforms, seed_sequence
from ntkit._state import Estimator, Field, Integer, Optional, Part
from ntkit._validation import check_choice, message
from ntkit.models._base import OfFeatures, RidgeClassifier, RidgeRegressor
from ntkit.models._checkpoint import Checkpoint
from ntkit.models._checks import check_weight, to_library
from ntkit.models._features import (
    check_columns,
    check_features,
    check_size,
    dense_features,
    expected_alpha,
    fit_features,
    importances,
    take_columns,
    weighted_features,
)
from ntkit.models._linalg import EPS, symmetric
from ntkit.models._problems import FromRows, FromSums, Posterior, Selection, from_statistics
from ntkit.models._rows import Block, Source, as_rows, as_source, block_rows, n_rows_of, take_rows
from ntkit.models._statistics import Statistics
from ntkit.models._targets import check_labels

_SOLVERS = ("auto", "eigen", "cholesky")
NEGLIGIBLE = 1e-2
"""Allowed error of a prediction, as a share of the standard deviation of the noise."""


class FeatureModel(OfFeatures):
    """Base class of the ridge models on features; see :class:`FeatureRidge`."""

    _statistics: Any  # Statistics, or None in a model that was loaded without them
    _posterior: tuple[FromSums | FromRows, Posterior] | None

    _old_positions: ClassVar[int] = 2
    _state: ClassVar[dict[str, Field]] = {
        "features_": Estimator(),
        "n_samples_seen_": Integer(minimum=1),
        "_itemsize": Integer(minimum=1, maximum=8),
        "_statistics": Optional(Part(Statistics), on_request=True),
    }
    _transient: ClassVar[tuple[str, ...]] = ("_posterior",)

    def __init__(
        self,
        features: Any = None,
        *,
        alphas: Any = None,
        n_components: int | None = None,
        fit_intercept: bool = True,
        selection: str = "loo",
        n_selection: int = 1000,
        solver: str = "auto",
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.features = features
        self.alphas = alphas
        self.n_components = n_components
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.n_selection = n_selection
        self.solver = solver
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> Self:
        """Fit the features and the model, reading the rows block by block.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor, memory map, Dask collection, iterable or path
            Rows of shape (n_samples, n_features), or images of shape (n_samples, height, width, channels) for features
            that take them. An iterable must yield (X, y) or (X, y, sample_weight) blocks. If it can be iterated over
            again (not a generator), steps that need their own pass, such as ``StandardScaler``, use all blocks. A path,
            a list of paths or a folder names CSV or Parquet files; their columns are found by name. All data frames
            must have the columns of the first one, in the same order.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets. For an iterable: None. For a path: the name of the target column, or a list of names.
        sample_weight : array of shape (n_samples,), optional
        checkpoint : path, optional
            File to which the statistics are written during the fit. If it exists, the fit continues from it and gives
            the same result; the rows must come in the same order as before. It is removed when the fit is complete.
        checkpoint_every : float, default=60
            Seconds between two writes.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_parameters()
            if _array.is_dask(X):
                self._fit_dask(X, y, sample_weight, checkpoint)
                self._solve()
            else:
                source = as_source(X, y, sample_weight, type(self).__name__)
                saved = self._fit_source(source, checkpoint, checkpoint_every)
                self._statistics.finish()
                self._solve()
                if saved:
                    saved.remove()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows to the rows seen so far. The first call fits the features on its rows.

        The weights are only computed when they are needed next, so that many small calls are cheap.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        owner = type(self).__name__
        self._check_parameters()
        if _array.is_dask(X):
            remedy = "Only fit takes Dask collections."
            raise TypeError(message(f"{owner}.partial_fit", "X", "rows in memory", X, remedy))
        source = as_source(X, y, sample_weight, owner, getattr(self, "feature_names_in_", None))
        with self._all_or_nothing():
            if not hasattr(self, "features_"):
                self._begin(source)
            elif self._statistics is None:
                raise ValueError(
                    f"This {owner} was loaded without its statistics, so no rows can be added. Save it with "
                    "ntkit.save(model, path, statistics=True)."
                )
            # A fork, so that an error or an interrupt leaves the sums unchanged.
            self._statistics, self._targets = self._statistics.fork(), copy(self._targets)
            for block in source.blocks(self._block_rows(source)):
                self._add(block)
            self._solution = self._posterior = None
            self.n_samples_seen_ = self._statistics.count
        return self

    def _begin(self, source: Source) -> None:
        """Fit the features and create empty statistics."""
        owner = type(self).__name__
        self._seed = seed_sequence(self.random_state, owner=owner)
        self._targets = self._codec()
        first = source.first()
        take_columns(self, first.X)
        encode = self._codec().encode
        self.features_ = fit_features(self.features, source, self._seed, owner, encode, self.n_components)
        with first.located("X"):
            probe = self._transform(take_rows(first.X, slice(0, 1)))
        self._itemsize = probe.dtype.itemsize
        self._solution = self._posterior = None
        self._statistics = Statistics(int(probe.shape[1]), 0, self.n_selection)

    def _fit_source(self, source: Source, checkpoint: Any, every: float) -> Checkpoint | None:
        saved = Checkpoint(checkpoint, every, self) if checkpoint is not None else None
        self._begin(source)
        n_done = saved.resume(source) if saved else 0
        with progress_bar(type(self).__name__ if self.progress else None, source.n_rows) as bar:
            for index, block in enumerate(source.blocks(self._block_rows(source))):
                if saved:
                    saved.see(block)
                if index >= n_done:
                    self._add(block)
                    if saved:
                        saved.write(index + 1)
                bar.update(n_rows_of(block.X))
        if saved:
            saved.end()
        self.n_samples_seen_ = self._statistics.count
        return saved

    def _block_rows(self, source: Source) -> int:
        if self.batch_size is not None:
            return self.batch_size
        return block_rows(self._statistics.n_components, self._itemsize, getattr(source, "X", None))

    def _add(self, block: Block, start: int = 0) -> None:
        """Add a block of rows to the statistics; `start` further rows precede them."""
        owner, statistics = type(self).__name__, self._statistics
        with block.located("y"):
            Y = self._targets.encode(block.y, owner)
        with block.located("weight"):
            weight = check_weight(block.weight, Y.shape[0], owner)
        with block.located("X"):
            Z = self._transform(block.X)
        if Z.shape[0] != Y.shape[0]:
            raise ValueError(
                f"X and y of {owner} must have equal numbers of rows. Got {Z.shape[0]} and {Y.shape[0]} in a block."
            )
        if _shares_memory(Z, block.X):
            Z = _array.namespace(Z).asarray(Z, copy=True)
        start += statistics.count
        keys = row_uniforms(keyed(self._seed, "sample"), start, start + Z.shape[0])[:, 0]
        keys[weight == 0] = np.inf
        statistics.place_targets(range(statistics.n_targets), Y.shape[1])
        statistics.add(Z, to_library(Y, Z), to_library(weight, Z), keys)

    def _transform(self, X: Any) -> Array:
        """Return the features as a dense array; torch tensors in host memory become NumPy arrays."""
        check_columns(self, X)
        return dense_features(self.features_, X, type(self).__name__)

    def _fit_dask(self, X: Any, y: Any, sample_weight: Any, checkpoint: Any) -> None:
        from ntkit.distributed import reduce_statistics

        if checkpoint is not None:
            rule, remedy = "None for Dask collections", "Omit it: Dask recomputes lost blocks itself."
            raise ValueError(message(f"{type(self).__name__}.fit", "checkpoint", rule, checkpoint, remedy))
        reduce_statistics(self, X, y, sample_weight)
        self.n_samples_seen_ = self._statistics.count

    def _check_parameters(self) -> None:
        if self.features is not None:
            check_features(self.features, type(self).__name__)
        check_size(self.n_components, self.features, type(self).__name__)
        self._check_common()
        check_choice(self.solver, "solver", type(self).__name__, _SOLVERS)

    def _solve(self) -> None:
        """Solve for the weights, if rows were added since the last solution."""
        check_is_fitted(self)
        if self._solution is not None:
            return
        statistics, owner = self._statistics.finished(), type(self).__name__
        if statistics.total_weight() == 0:
            raise ValueError(f"sample_weight of {owner} must not be zero for all rows.")
        self._targets.ready(owner)
        problem = self._problem(statistics, self.fit_intercept, Selection(self.selection, statistics.sample.size))
        solution = self._choose(problem, problem.total / statistics.n_units)
        self._statistics, self._posterior, self._centred = statistics, None, self.fit_intercept
        self._solution = solution

    def _problem(self, statistics: Statistics, intercept: bool, selection: Selection) -> FromSums | FromRows:
        return from_statistics(
            statistics, selection, intercept=intercept, several=self._several, solver=self.solver,
            shift=self._targets.shift,
        )  # fmt: skip

    def _expected_multiple(self) -> float | None:
        return expected_alpha(self)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the gradients of the learned function; see :class:`LearnedMetric`."""
        found = importances(self)
        if found is None:
            raise AttributeError(
                f"This {type(self).__name__} has no feature_importances_: its features have not learned a metric."
            )
        return found

    def degrees_of_freedom(self, alphas: Any) -> np.ndarray:
        """Compute effective degrees of freedom: tr G(G + αI)⁻¹, where G is the Gram matrix of the (centred) features.

        Parameters
        ----------
        alphas : float or array of float

        Returns
        -------
        ndarray with the shape of `alphas`

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import FeatureRidge, NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((200, 3))
        >>> model = FeatureRidge(NTKFeatures(n_components=64, random_state=0)).fit(X, X[:, 0])
        >>> model.degrees_of_freedom(0.0) <= 64
        np.True_
        """
        self._solve()
        if self._statistics is None:
            raise ValueError(
                f"degrees_of_freedom needs the statistics of the fit, but this {type(self).__name__} was saved "
                "without them. Save it with ntkit.save(model, path, statistics=True)."
            )
        matrix = self._problem(self._statistics, self._centred, Selection("loo", 0)).gram_matrix()
        values = np.maximum(_array.to_numpy(_array.namespace(matrix).linalg.eigvalsh(symmetric(matrix))), 0.0)
        values = values[values > len(values) * EPS * values.max(initial=0.0)]
        return (values / (values + np.asarray(alphas, dtype=np.float64)[..., None])).sum(axis=-1)

    def _blocks(self, X: Any, itemsize: int) -> Any:
        """Yield the features of blocks of rows."""
        X = as_rows(X, "X", type(self).__name__)
        step = self.batch_size or block_rows(self._solution.coef.shape[0], itemsize, X)
        for start in range(0, max(n_rows_of(X), 1), step):
            yield self._transform(take_rows(X, slice(start, start + step)))

    def _scores(self, X: Any) -> Array:
        weighted = self._weighted_scores(X)
        if weighted is not None:
            return weighted
        parts = []
        for Z in self._blocks(X, self._itemsize):
            xp: Any = _array.namespace(Z)
            coef, intercept = (to_library(a, Z) for a in (self._solution.coef, self._solution.intercept))
            parts.append(xp.matmul(xp.astype(Z, xp.float64), coef) + intercept)
        return parts[0] if len(parts) == 1 else _array.namespace(*parts).concat(parts, axis=0)

    @property
    def _noise_deviation(self) -> float:
        """Smallest standard deviation of the noise over the targets; 0 if unknown."""
        noise = self._solution.noise
        return 0.0 if noise is None else float(_array.to_numpy(noise).min()) ** 0.5

    def _score_expression(self, X: Array) -> Array:
        coef = _array.to_numpy(self._solution.coef)
        scores = expression.weighted(self.features_, X, coef, NEGLIGIBLE * self._noise_deviation)
        return scores + _array.constant(_array.to_numpy(self._solution.intercept), scores)

    def _weighted_scores(self, X: Any) -> Array | None:
        """Compute scores without the features, if the last step has a method for this; else return None."""
        owner, coef, spread = type(self).__name__, self._solution.coef, self._noise_deviation
        X = as_rows(X, "X", owner)
        step = self.batch_size or max(n_rows_of(X), 1)
        parts = []
        for start in range(0, max(n_rows_of(X), 1), step):
            rows = take_rows(X, slice(start, start + step)) if step < n_rows_of(X) else X
            check_columns(self, rows)
            values = weighted_features(self.features_, rows, coef, NEGLIGIBLE * spread, owner)
            if values is None:
                return None
            parts.append(values + to_library(self._solution.intercept, values))
        return parts[0] if len(parts) == 1 else _array.namespace(*parts).concat(parts, axis=0)

    def _file_state(self) -> dict[str, Any]:
        self._solve()
        return super()._file_state()

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        self._statistics = vars(self).get("_statistics")  # files contain statistics only on request
        sizes = self._solution.coef.shape
        if self._statistics is not None and sizes != (self._statistics.n_components, self._statistics.n_targets):
            raise ValueError(f"the statistics must have {sizes[0]} features and {sizes[1]} targets")

    def _for_workers(self) -> Self:
        """Return a copy that predicts, without the statistics, which are much larger than the weights."""
        self._solve()
        light = copy(self)
        light._statistics = None
        return light


class FeatureRidge(FeatureModel, RidgeRegressor):
    """Ridge regression on features, in one pass over the rows and constant memory.

    Minimizes Σ w (y − βᵀZ(x) − b)² + α‖β‖². The model keeps only the sums Σ w z zᵀ, Σ w z yᵀ, Σ w y² (or the features
    themselves while there are fewer rows than features). α is chosen among `alphas` by the error on held-out rows,
    which follows from the same sums and a sample of rows. See ``docs/design/learning.md``.

    Parameters
    ----------
    features : transformer
        Any scikit-learn transformer: a map of ntkit, or a Pipeline whose last step is a map. None: for dense rows of up
        to 1024 columns ``make_pipeline(ArcsinhScaler(width=2.0), AdaptiveFeatures())``; otherwise
        ``make_pipeline(ArcsinhScaler(), NTKFeatures(bias="auto"))`` with 2048 components. The transformer is cloned and
        fitted; to use a fitted transformer, wrap it in ``sklearn.frozen.FrozenEstimator``.
    alphas : float, array of float or None
        Candidate strengths of the penalty. None: 10⁻⁷, 10^-6.5, …, 10² times the mean squared norm of the (centred)
        features, and smaller values while the error falls. If three or more are given, the best is the first or the
        last, and the error still falls towards it, a warning is issued.
    n_components : int or None
        Number of features, set on the last step of `features`; None keeps its own number. It is an error if the last
        step has no `n_components`.
    fit_intercept : bool
        Whether b is fitted, without penalty. If not, b = 0.
    selection : {"loo", "holdout"}
        How the error of each α is estimated. "loo": each row of a sample is predicted without that row (leave-one-out).
        "holdout": the sample, at most a fifth of all rows, is predicted without the whole sample.
    n_selection : int
        Size of the sample, drawn from all rows without replacement.
    solver : {"auto", "eigen", "cholesky"}
        "eigen": one eigendecomposition gives the error for every α. "cholesky": one factorization for each α tried,
        descending from the middle of `alphas`. "auto": "eigen" up to 1024 unknowns, then "cholesky", which is faster.
    batch_size : int or None
        Rows per batch; None: 256 MiB of features.
    progress : bool
        Whether `fit` shows a progress bar.
    random_state : None, int, RandomState or Generator
        Draws the sample, and the default features.

    Attributes
    ----------
    coef_ : ndarray of shape (n_components,) or (n_targets, n_components)
    intercept_ : float or ndarray of shape (n_targets,)
    alpha_ : float
        The chosen α.
    alphas_ : ndarray
        The candidate values of α.
    errors_ : ndarray
        Mean squared error on held-out rows, summed over targets, for each of `alphas_`; NaN if it was not tried or
        rounding errors prevented a solution.
    noise_variance_ : float or ndarray of shape (n_targets,)
        Variance of the noise that maximizes the evidence.
    feature_importances_ : ndarray of shape (n_features,)
        Share of each column in the gradients of the learned function, if the features have learned a metric.
    features_ : transformer
        The fitted features.
    n_samples_seen_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    For n rows and m features: time O(n m²) plus m³/3 per α; memory 20 m² bytes and a few blocks of features.
    ``partial_fit`` needs the same memory again while it adds 1024 rows or more, so that an error leaves the model
    unchanged. Rows in float32 give features in float32 and take half the time; the sums are always in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FeatureRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (2000, 3))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(2000)
    >>> model = FeatureRidge(random_state=0).fit(X[:1500], y[:1500])
    >>> bool(model.score(X[1500:], y[1500:]) > 0.97)
    True
    >>> mean, std = model.predict(X[1500:], return_std=True)
    >>> bool(0.9 < np.mean(np.abs(y[1500:] - mean) < 2 * std) < 1)
    True
    """

    def _spread(self, X: Any) -> Array:
        """Return 1/W + z̃ᵀ(G + α)⁻¹z̃ for each row."""
        problem, posterior = self._factorize()
        parts = [problem.spread(posterior, Z) for Z in self._blocks(X, 8)]
        return _array.namespace(*parts).concat(parts, axis=0)

    def _factorize(self) -> tuple[FromSums | FromRows, Posterior]:
        """Return the problem and its factorization for standard deviations; they are computed once."""
        if getattr(self, "_posterior", None) is None:
            if self._statistics is None:
                raise ValueError(
                    "return_std needs the statistics of the fit, but this model was saved without them. Save it with "
                    "ntkit.save(model, path, statistics=True)."
                )
            # `_centred`, not `fit_intercept`, which may have been changed since the fit.
            problem = self._problem(self._statistics, self._centred, Selection("loo", 0))
            self._posterior = problem, problem.posterior(self._solution.alpha)
        assert self._posterior is not None
        return self._posterior


class FeatureRidgeClassifier(FeatureModel, RidgeClassifier):
    """Classification by ridge regression on features, in one pass over the rows and constant memory.

    The targets are 1 for the class of a row and 0 for the others, minus 1/n_classes, as in Section 5.1 of [1]_.
    `predict` returns the class with the largest calibrated probability. See :class:`FeatureRidge` for everything else.

    Parameters
    ----------
    features, alphas, n_components, fit_intercept, selection, n_selection, solver, batch_size, progress, random_state
        As for :class:`FeatureRidge`.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    coef_ : ndarray of shape (n_classes, n_components)
    intercept_ : ndarray of shape (n_classes,)
    alpha_, alphas_, features_, n_samples_seen_, n_features_in_, feature_names_in_
        As for :class:`FeatureRidge`.
    errors_ : ndarray
        Log loss of the probabilities on held-out rows, for each of `alphas_`; NaN if it was not tried or rounding
        errors prevented a solution. It is smoother than the misclassification rate.
    temperature_ : float
        Temperature of the calibration, fitted on the held-out rows: scores are divided by it. Corrections that are
        linear in the scores are added; see ``docs/design/learning.md``.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import FeatureRidgeClassifier, NTKFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> model = FeatureRidgeClassifier(NTKFeatures(depth=2, n_components=2048, random_state=0), random_state=0)
    >>> bool(model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9)
    True
    >>> model.predict_proba(X[1500:]).shape
    (297, 10)
    """

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, classes: Any = None) -> Self:
        """Add rows to the rows seen so far; see :meth:`FeatureRidge.partial_fit`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,)
        sample_weight : array of shape (n_samples,), optional
        classes : array, optional
            Classes that may occur, for compatibility with other tools. Here new classes may occur at any time.

        Returns
        -------
        self
        """
        coming = None if classes is None else check_labels(classes, type(self).__name__)
        with self._all_or_nothing():
            super().partial_fit(X, y, sample_weight)
            if coming is not None:
                self._targets.meet(coming, type(self).__name__)
                self._statistics.place_targets(range(self._statistics.n_targets), self._targets.n_targets)
        return self


def _shares_memory(Z: Any, X: Any) -> bool:
    """Whether features may share memory with the rows; they must then be copied, since features are overwritten."""
    if _array.is_numpy(Z) and not Z.flags.writeable:
        return True
    if _array.is_torch(Z):
        return _array.is_torch(X) and Z.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    view = _array.host_view(X) if _array.is_array(X) else X
    if hasattr(X, "iloc"):
        return not Z.flags.owndata or not Z.flags.writeable
    return view is not None and _array.is_numpy(view) and np.may_share_memory(Z, view)
