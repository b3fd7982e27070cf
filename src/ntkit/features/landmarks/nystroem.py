"""Nyström features of any kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._lapack import times_triangle, triangular_root
from ntkit._random import RandomState
from ntkit._state import Floats, Integers, Optional, Real, reserve
from ntkit._validation import check_choice, check_data, check_int, check_real, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.draws import RowDraws
from ntkit.features.kernel import KernelEstimator
from ntkit.features.landmarks import choose
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.distances import DistanceKernel
from ntkit.kernels.spec import KernelLike

_LANDMARKS = ("leverage", "uniform", "kmeans")
_NORMALIZATIONS = ("symmetric", "cholesky")
# Multiple of the tolerance. If errors exceed it, the weights were fitted to rounding errors. float32 features have
# about a tenth of this error.
FITTED_TO_ROUNDING = 100
SINGLE_ERROR = 1e-6  # rounding error of a weighted sum of float32 kernel values, relative to the norm of the weights


@dataclass(frozen=True, kw_only=True, eq=False)
class NystroemPlan(Plan):
    """Landmarks and their normalization; there is nothing to draw."""

    landmarks: Any
    indices: np.ndarray | None
    normalization: np.ndarray

    def matrix(self, X: Array) -> Array:
        """See :meth:`Plan.matrix`."""
        if self.kernel is None:
            raise ValueError(
                "The exact kernel of rows is not known to NystroemFeatures(kernel='precomputed'). Compare transform(K) "
                "with K yourself, for example with ntkit.diagnostics.spectral_error."
            )
        return self.kernel.matrix(X)


class NystroemDraws(RowDraws):
    """Kernel values with the landmarks, times the normalization. Kernels start their own threads."""

    threaded = False

    def __init__(self, plan: NystroemPlan):
        super().__init__()
        self.plan = plan
        self.n_components = len(plan.normalization)
        self._copies: dict[str, tuple[Any, Any]] = {}
        self.triangular = not np.tril(plan.normalization, -1).any()

    def place(self, dtype: Any, device: Any) -> Any:  # noqa: ARG002
        """Return nothing: landmarks keep their precision, see :meth:`copy`."""
        return ()

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`."""
        return 8 * self._n_values(X)

    def rows_at_once(self, X: Array) -> int | None:
        """See :meth:`RowDraws.rows_at_once`: enough rows for matrix products at full speed."""
        return choose.block_rows(self._n_values(X), None, X)

    def _n_values(self, X: Array) -> int:
        """Return the number of kernel values per row."""
        return self.n_components if self.plan.kernel is not None else X.shape[1]

    def features(self, X: Array, tables: Any) -> Array:  # noqa: ARG002
        """See :meth:`RowDraws.features`."""
        K = self.values(X)
        xp: Any = _array.namespace(K)
        return xp.astype(xp.matmul(K, self.copy("normalization", K)), X.dtype, copy=False)

    def fill(self, X: Array, tables: Any, out: Array) -> None:  # noqa: ARG002
        """See :meth:`RowDraws.fill`."""
        K = self.values(X)
        if self.triangular and _array.is_numpy(K) and K.flags.c_contiguous and K.flags.writeable:
            out[...] = times_triangle(K, self.copy("normalization", K))
        else:
            out[...] = K @ self.copy("normalization", K)

    def times(self, X: Array, dual: np.ndarray, batch_size: int | None) -> Array:
        """Multiply the kernel values with the landmarks by weights `dual` of the landmarks, in float64, blockwise."""
        X = _at_least_single(X)
        view = None if _array.is_sparse(X) else _array.host_view(X)
        X = X if view is None else view
        parts = []
        for rows in row_batches(X.shape[0], 1, batch_size=batch_size or self.rows_at_once(X)):
            K = self.values(choose.wide(X[rows]))
            parts.append(K @ (_array.constant(dual, K) if _array.is_torch(K) else dual))
        return parts[0] if len(parts) == 1 else _array.namespace(*parts).concat(parts, axis=0)

    def values(self, X: Array) -> Array:
        """Compute the kernel values of rows with the landmarks."""
        if self.plan.kernel is None:
            assert self.plan.indices is not None
            return choose.take(X.T, self.plan.indices).T
        return self.plan.kernel.matrix(X, self.copy("landmarks", X))

    def copy(self, what: str, like: Any) -> Any:
        """Return the landmarks as an array of the type of X, or the normalization in the dtype of K; copies are cached.

        `what` is "landmarks", with `like` = X, or "normalization", with `like` = K. Landmarks keep their precision:
        float64 landmarks give float64 kernel values, which the normalization needs, even if X is float32.
        """
        if _array.is_traced(like):
            known: Any = self.plan.landmarks if what == "landmarks" else self.plan.normalization
            return known.toarray() if _array.is_sparse(known) else known
        sparse, on_device = _array.is_sparse(like), _array.is_torch(like)
        key = sparse, like.device if on_device else None, like.dtype if what == "normalization" else None
        kept = self._copies.get(what)  # read only once: another thread may replace it
        if kept is not None and kept[0] == key:
            return kept[1]
        value: Any = self.plan.landmarks if what == "landmarks" else self.plan.normalization
        if what == "landmarks" and sparse != _array.is_sparse(value):
            from scipy.sparse import csr_array

            value = csr_array(value) if sparse else value.toarray()
        if on_device:
            import torch

            value = torch.from_numpy(value).to(like.device)
        if what == "normalization":
            value = value.to(like.dtype) if on_device else value.astype(like.dtype, copy=False)
        self._copies[what] = key, value
        return value


class NystroemFeatures(KernelEstimator, FeatureMap):
    """Nyström features of any kernel: Z(x)·Z(y) = K(x, L) K(L, L)⁺ K(L, y) with m landmarks L [1]_, [2]_.

        Z(x) = K(x, L) D^{-1/2} (D^{-1/2} K(L, L) D^{-1/2})^{-1/2},    D the diagonal of K(L, L).

    This equals K(x, L) K(L, L)^{-1/2} up to a rotation, and loses fewer digits if the rows have different norms. The
    features are exact for the landmarks, and never overestimate the kernel: 0 ⪯ Z Zᵀ ⪯ K. They are adapted to rows like
    the rows of `fit`; random features suit all rows, but with a larger error.

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "laplace", "matern", "polynomial", "exponential" or "dot_product"; a network
        of :mod:`ntkit.networks`; a function ``kernel(X, Y, **params)`` that returns the matrix, see
        :func:`ntkit.kernels.gram`; or "precomputed". With "precomputed", `fit` takes the square kernel matrix of n
        rows, and `transform` takes rows of n kernel values with these rows.
    n_components : int
        Number m of landmarks and of features. If X has fewer rows, every row is a landmark.
    landmarks : {"leverage", "uniform", "kmeans"} or array of shape (m, n_features)
        "leverage": rows sampled by their ridge leverage scores, so that small clusters and outlying rows are
        represented. "uniform": rows sampled uniformly. "kmeans": k-means centres, for dense rows only [3]_. An array
        holds the landmarks themselves; `n_components` is then ignored.
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"degree": 3}``, ``{"nu": 2.5}`` or, for a network,
        ``{"kind": "nngp"}``.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian", "laplace", "matern" and "exponential"; see :class:`~ntkit.RandomFourierFeatures`.
    depth : int or None
        Number of layers of "ntk", "nngp" and "cntk" (at least 2 for "cntk"). None: 3 for "cntk", otherwise 1.
    normalization : {"symmetric", "cholesky"}
        "symmetric": the formula above, computed from eigenvectors. "cholesky": the inverse transposed Cholesky factor
        instead of the inverse root. It rotates the features and takes a tenth of the time. Features then miss up to
        1e-10 of k(x, x), or 1e-5 for float32 rows.
    alpha : float > 0 or None
        λ of the leverage scores, which are the diagonal of K(K + λI)⁻¹. None: chosen from the spectrum of a sample such
        that the scores add up to less than about m / log m.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the machine.
    random_state : None, int, RandomState or Generator
        Draws the landmarks in `fit`. Equal seeds give equal landmarks for NumPy and torch and for any batch size, up to
        rounding. Only "kmeans" gives different landmarks for tensors on a GPU.

    Attributes
    ----------
    landmarks_ : ndarray or CSR of shape (m, n_features), or ndarray of shape (m, height, width, channels)
        L. For "precomputed" K(L, L).
    landmark_indices_ : ndarray of shape (m,)
        Indices of the landmarks among the rows of `fit`, in increasing order. Set only if landmarks are rows of `fit`.
    normalization_ : ndarray of shape (m, m)
        N with Z(x) = K(x, L) N, in float64.
    lengthscale_ : float
        ℓ of "gaussian", "laplace", "matern" and "exponential".
    image_shape_ : tuple
        If X has images.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A row takes one kernel value for each landmark, and O(m²) operations. `fit` takes O(n m²) for "leverage" and O(m³)
    otherwise. At most n·m kernel values are computed at a level of the sampling, and they are never all held in memory.
    Theorem 3 of [2]_: for a given λ, m = O(s_λ log(s_λ/δ)) landmarks suffice for ‖K − Z Zᵀ‖ ≤ λ with probability 1 − δ,
    where s_λ is the statistical dimension. (Unlike in [2]_, samples have a fixed size: m/2 for intermediate samples.)

    Eigenvalues of the scaled K(L, L) below m·2.2e-16 times the largest, or 1.2e-7 times the largest for float32 rows,
    are dropped with their eigenvectors, so duplicate landmarks are harmless. For a Dask collection `fit` uses the first
    block of rows; models that read rows block by block also fit it on the first block. If X requires gradients and the
    kernel supports them, so do the features.

    References
    ----------
    .. [1] Williams, Seeger, "Using the Nyström Method to Speed Up Kernel Machines", NIPS 2000.
    .. [2] Musco, Musco, "Recursive Sampling for the Nyström Method", NIPS 2017, Algorithm 2 and Theorem 3.
    .. [3] Zhang, Tsang, Kwok, "Improved Nyström Low-Rank Approximation and Error Analysis", ICML 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NystroemFeatures
    >>> from ntkit.kernels import ntk
    >>> X = np.random.default_rng(0).standard_normal((500, 3))
    >>> Z = NystroemFeatures("ntk", n_components=100, depth=2, random_state=0).fit_transform(X)
    >>> K = ntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.02 * np.linalg.norm(K))
    True
    """

    _learned: ClassVar[dict[str, Any]] = {
        "lengthscale_": Optional(Real(0, strict=True)),
        "landmarks_": Floats("m", ..., single=True, sparse=True),
        "landmark_indices_": Optional(Integers("m", minimum=0)),
    }
    _remade: ClassVar[tuple[str, ...]] = ("normalization_", "_resolved")

    learns_from_rows: ClassVar[bool] = True
    _old_positions: ClassVar[int] = 2

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        *,
        n_components: int = 1024,
        landmarks: Any = "leverage",
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int | None = None,
        normalization: str = "symmetric",
        alpha: float | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.n_components = n_components
        self.landmarks = landmarks
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.depth = depth
        self.normalization = normalization
        self.alpha = alpha
        self.batch_size = batch_size
        self.random_state = random_state

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:
        lengthscale = self._check_parameters()
        learned: dict[str, Any] = {}
        if self._has_lengthscale:
            learned["lengthscale_"] = default_lengthscale(X) if lengthscale is None else lengthscale
        self._resolved = self._kernel_of(learned.get("lengthscale_", 1.0))
        indices, chosen = self._choose(X, seed)
        if indices is not None:
            learned["landmark_indices_"] = indices
        # Landmarks are NumPy arrays, as in a map loaded from a file. Kernel functions are never in a file and may only
        # accept tensors, so they get the original landmarks.
        return learned | {"landmarks_": _on_host(chosen), "chosen": chosen if callable(self.kernel) else None}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> NystroemPlan:
        self._check_parameters()
        kernel = self._kernel_of(learned.get("lengthscale_", 1.0))
        landmarks = learned["landmarks_"]
        chosen = learned.get("chosen")
        chosen = landmarks if chosen is None else chosen
        K = choose.wide(chosen) if kernel is None else kernel.matrix(choose.wide(chosen))
        choose.check_finite(K)
        return NystroemPlan(
            shape=shape,
            kernel=kernel,
            landmarks=landmarks,
            indices=learned.get("landmark_indices_"),
            normalization=_on_host(
                inverse_root(K, single=chosen.dtype.itemsize < 8, triangular=self.normalization == "cholesky")
            ),
        )

    def _check_state(self, limit: int, *, tolerance: float = 1e-3) -> None:
        """Check the landmarks too: planning computes their kernel matrix and its eigenvectors."""
        landmarks, indices = self.landmarks_, self.__dict__.get("landmark_indices_")
        n = landmarks.shape[0]
        reserve(48 * n**2, f"The kernel matrix of {n} landmarks and its eigenvectors", seconds=3e-10 * n**3)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        if self._has_name("precomputed"):
            shape = landmarks.shape[:1]
            if indices is None or indices.max(initial=0) >= self.n_features_in_:
                raise ValueError(
                    f"The landmark indices of {type(self).__name__} must be below its {self.n_features_in_} columns"
                )
        if landmarks.shape[1:] != shape or not len(landmarks.indptr if _array.is_sparse(landmarks) else landmarks):
            raise ValueError(
                f"The landmarks of {type(self).__name__} must be at least one row of shape {shape}. Got an array of "
                f"shape {landmarks.shape}"
            )
        super()._check_state(limit, tolerance=tolerance)

    def _draw(self, plan: NystroemPlan, seed: np.random.SeedSequence) -> NystroemDraws:  # noqa: ARG002
        return NystroemDraws(plan)

    def _describe(self, plan: NystroemPlan, draws: NystroemDraws) -> dict[str, Any]:  # noqa: ARG002
        return {"normalization_": plan.normalization, "_resolved": plan.kernel}

    def times(self, X: Any, weights: Array, tolerance: float = 0.0) -> Array:
        """Compute Z(X) @ weights as K(X, L) @ (N weights), which takes O(m) per row instead of O(m²).

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor, as for :meth:`transform`
        weights : array of shape (n_components, k)
        tolerance : float, default=0
            Acceptable absolute error. It only matters for float32 rows: if the rounding error stays below the
            tolerance, they are computed in float32; up to 100 times the tolerance, in float64; otherwise from the
            features.

        Returns
        -------
        array of shape (n_samples, k), float64
            A tensor if X is a tensor on a GPU or a tensor of 16 or 32 bits; otherwise a NumPy array.

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NystroemFeatures
        >>> X = np.random.default_rng(0).standard_normal((50, 3))
        >>> features = NystroemFeatures(n_components=10, random_state=0).fit(X)
        >>> w = np.ones((10, 1))
        >>> np.allclose(features.times(X, w), features.transform(X) @ w)
        True
        """
        X = self._check_rows(X, reset=False)
        if _array.wants_gradient([X]) if _array.is_torch(X) else False:
            return self.weighted_expression(X, _array.to_numpy(weights), tolerance)
        dual = self.normalization_ @ _array.to_numpy(weights)
        if _array.result_dtype(X) == np.float64 or (_array.is_torch(X) and X.dtype.itemsize == 8):
            return self._draws.times(X, dual, self._check_batch_size())
        error = SINGLE_ERROR * float(np.linalg.norm(dual, axis=0).max(initial=0.0))
        if error <= tolerance and _array.is_numpy(X) and isinstance(self._resolved, DistanceKernel):
            return self._resolved.weighted_sums(X, self._draws.copy("landmarks", X), dual)
        if error <= FITTED_TO_ROUNDING * tolerance:
            return self._draws.times(X, dual, self._check_batch_size())
        # Weights this large were fitted to the rounding errors of the features too, so the same features are needed.
        Z = self.transform(X)
        xp: Any = _array.namespace(Z)
        return xp.matmul(xp.astype(Z, xp.float64), xp.asarray(_array.to_numpy(weights), device=_array.device(Z)))

    def weighted_expression(self, X: Array, weights: np.ndarray, tolerance: float = 0.0) -> Array:
        """Compute Z(X) @ weights as one expression in float64, without validating X; see :meth:`times`."""
        dual = self.normalization_ @ weights
        error = SINGLE_ERROR * float(np.linalg.norm(dual, axis=0).max(initial=0.0))
        if self.landmarks_.dtype.itemsize < 8 and error > FITTED_TO_ROUNDING * tolerance:
            Z = _array.widen(self.expression(X))
            return Z @ _array.constant(weights, Z)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        X = _array.namespace(X).reshape(X, (-1, *shape))
        K = _array.widen(self._draws.values(X if self._resolved is None else _array.widen(X)))
        return K @ _array.constant(dual, K)

    def _choose(self, X: Any, seed: np.random.SeedSequence) -> tuple[np.ndarray | None, Any]:
        """Choose the landmarks; return their indices among the rows of X, or None, and the landmarks.

        The landmarks are of the array library of X, unless they are given as a parameter.
        """
        if not isinstance(self.landmarks, str):
            return None, self._check_landmarks(X)
        size = min(self.n_components, X.shape[0])
        if self.landmarks == "kmeans":
            if self._sparse:
                rule = "'leverage', 'uniform' or an array for sparse rows, because k-means centres would be dense"
                raise ValueError(message(type(self).__name__, "landmarks", rule, self.landmarks))
            return None, choose.centres(X, size, seed)
        if size == X.shape[0]:
            indices = np.arange(size)
        elif self.landmarks == "uniform":
            indices = choose.uniform(X.shape[0], size, seed)
        elif self._resolved is None:
            indices = choose.leverage(choose.StoredMatrix(X, self.batch_size), size, seed, self.alpha)
        else:
            indices = choose.leverage(choose.ComputedMatrix(self._resolved, X, self.batch_size), size, seed, self.alpha)
        chosen = choose.take(X, indices)
        return indices, choose.take(chosen.T, indices).T if self._resolved is None else chosen

    def _check_landmarks(self, X: Any) -> Any:
        """Return the landmarks given as a parameter, as a NumPy array or CSR."""
        name, shape = type(self).__name__, tuple(X.shape[1:])
        given = check_data(self.landmarks, "landmarks", name, ndims=(len(X.shape),), sparse=len(X.shape) == 2)
        if tuple(given.shape[1:]) != shape:
            rule = f"rows of {shape[0]} features, like X" if len(shape) == 1 else f"images of shape {shape}, like X"
            raise ValueError(message(name, "landmarks", rule, given))
        if _array.is_sparse(given):
            return given.copy()
        given = _on_host(given)
        return np.array(given, dtype=_array.result_dtype(given))

    def _check_parameters(self) -> float | None:
        """Check all parameters except the kernel parameters; return the length scale, or None for "scale"."""
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        if self.depth is not None:
            check_int(self.depth, "depth", name, minimum=1)
        if self.alpha is not None:
            check_real(self.alpha, "alpha", name, minimum=0, strict=True)
        if self.kernel_params is not None and not isinstance(self.kernel_params, dict):
            raise TypeError(message(name, "kernel_params", "a dict or None", self.kernel_params))
        check_choice(self.normalization, "normalization", name, _NORMALIZATIONS)
        self._check_choice_of_landmarks()
        return check_lengthscale(self.lengthscale, name)

    def _check_choice_of_landmarks(self) -> None:
        name, value = type(self).__name__, self.landmarks
        if isinstance(value, str):
            check_choice(value, "landmarks", name, _LANDMARKS)
        elif not (hasattr(value, "shape") or isinstance(value, list | tuple)):
            raise TypeError(message(name, "landmarks", "'leverage', 'uniform', 'kmeans' or an array of rows", value))
        if self._has_name("precomputed"):
            if not isinstance(value, str) or value == "kmeans":
                rule = "'leverage' or 'uniform' for kernel='precomputed', because there are no rows"
                raise ValueError(message(name, "landmarks", rule, value))
            if self.kernel_params:
                rule = "None for kernel='precomputed', which has no parameters"
                raise ValueError(message(name, "kernel_params", rule, self.kernel_params))


def inverse_root(K: Array, *, single: bool, triangular: bool = False) -> Array:
    """Compute D^{-1/2} (D^{-1/2} K D^{-1/2})^{-1/2}, D the diagonal of K, without eigenvectors lost in rounding.

    With `triangular`, compute D^{-1/2} L⁻ᵀ for the Cholesky factorization L Lᵀ of the scaled matrix plus SHIFT times I.

    Kernel values of float32 rows (`single`) have rounding errors of 6e-8. An eigenvector with eigenvalue σ turns these
    into errors of about 6e-8/√σ in the features, so small eigenvalues add more noise than signal.
    """
    xp: Any = _array.namespace(K)
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(K), 0, None))
    scale = xp.where(norms > 0, 1 / xp.where(norms > 0, norms, xp.ones_like(norms)), xp.zeros_like(norms))
    scaled = scale[:, None] * K * scale[None, :]
    if triangular and _array.is_numpy(K):
        scaled[np.diag_indices(len(scaled))] += SHIFT[single]
        root = triangular_root(scaled)
        if root is not None:
            return scale[:, None] * root
    values, vectors = xp.linalg.eigh(scaled)
    least = float(values[-1]) * max(K.shape[0] * 2.2e-16, 1.2e-7 if single else 0.0)
    roots = xp.where(values > least, xp.clip(values, least, None), xp.ones_like(values)) ** -0.5
    roots = xp.where(values > least, roots, xp.zeros_like(roots))
    return scale[:, None] * xp.matmul(vectors * roots[None, :], xp.matrix_transpose(vectors))


SHIFT = {True: 1e-5, False: 1e-10}
"""Number added to the diagonal of a scaled matrix before its Cholesky factorization; the key is `single`.

Features then miss at most this share of k(x, x). Pivots are at least this large, so rounding errors of kernel values
cause errors of at most 2e-5 (`single`) or 1e-11 in the features."""


def _at_least_single(X: Any) -> Any:
    """Convert 16-bit tensors to float32; return all other rows unchanged."""
    if not _array.is_torch(X) or not X.dtype.is_floating_point or X.dtype.itemsize >= 4:
        return X.detach() if _array.is_torch(X) else X
    return X.detach().float()


def _on_host(x: Any) -> Any:
    """Convert a tensor to a NumPy array, with 16-bit numbers as float32; return other arrays unchanged."""
    return _at_least_single(x).cpu().numpy() if _array.is_torch(x) else x
