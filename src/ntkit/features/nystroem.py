"""Nyström features of any kernel, from landmarks among the rows."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState
from ntkit._validation import check_choice, check_data, check_int, check_real, message
from ntkit.features import _landmarks
from ntkit.features._base import FeatureMap
from ntkit.features._kernel import OfKernel
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.spec import KernelLike

_LANDMARKS = ("leverage", "uniform", "kmeans")


class NystroemFeatures(OfKernel, FeatureMap):
    """Nyström features of any kernel: Z(x)·Z(y) = K(x, L) K(L, L)⁺ K(L, y) with m landmarks L, [1]_, [2]_.

        Z(x) = K(x, L) D^{-1/2} (D^{-1/2} K(L, L) D^{-1/2})^{-1/2},    D the diagonal of K(L, L),

    which is K(x, L) K(L, L)^{-1/2} but for a rotation, and loses fewer digits where norms differ. The features are
    exact for the landmarks, and never too large: 0 ⪯ Z Zᵀ ⪯ K. They suit the rows that `fit` has seen, and rows like
    these, where random features suit any rows but with a larger error.

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "laplace", "matern", "polynomial", "exponential" or "dot_product"; a network
        of :mod:`ntkit.networks`; a function ``kernel(X, Y, **params)`` that returns the matrix, see
        :func:`ntkit.kernels.gram`. Or "precomputed": `fit` then takes the square kernel matrix of n rows, and
        `transform` rows of n kernel values with these.
    n_components : int
        Number m of landmarks, and of features; the number of rows where there are fewer.
    landmarks : {"leverage", "uniform", "kmeans"} or array of shape (m, n_features)
        "leverage": rows drawn by their ridge leverage scores, so that small clusters and rows far from all others are
        represented. "uniform": rows drawn at random. "kmeans": centres of k-means, of dense rows [3]_. An array holds
        the landmarks themselves, as many as there are to be.
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"degree": 3}``, ``{"nu": 2.5}`` or, for a network,
        ``{"kind": "nngp"}``.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian", "laplace", "matern" and "exponential"; see :class:`~ntkit.RandomFourierFeatures`.
    depth : int
        Number of layers of "ntk", "nngp" and "cntk", which has two at least.
    alpha : float > 0 or None
        λ of the leverage scores, which are the diagonal of K(K + λI)⁻¹. None: from the spectrum of a sample, such that
        the scores add up to less than about m / log m.
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the machine.
    random_state : None, int, RandomState or Generator
        Draws the landmarks in `fit`. Equal seeds give equal landmarks for NumPy and torch and for any batch size, up to
        rounding; but those of "kmeans" are others for tensors on a device.

    Attributes
    ----------
    landmarks_ : ndarray or CSR of shape (m, n_features), or ndarray of shape (m, height, width, channels)
        L. For "precomputed" K(L, L).
    landmark_indices_ : ndarray of shape (m,)
        Their places among the rows of `fit`, in increasing order, if that is where they are from.
    normalization_ : ndarray of shape (m, m)
        D^{-1/2} (D^{-1/2} K(L, L) D^{-1/2})^{-1/2}, in float64.
    lengthscale_ : float
        ℓ of "gaussian", "laplace", "matern" and "exponential".
    image_shape_ : tuple
        If X has images.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A kernel value for each landmark and O(m²) per row. `fit` takes O(n m²) for "leverage", O(m³) else; never are more
    than n·m kernel values computed at a level, nor held at all. Theorem 3 of [2]_: with λ given,
    m = O(s_λ log(s_λ/δ)) landmarks suffice for ‖K − Z Zᵀ‖ ≤ λ with probability 1 − δ, s_λ the statistical dimension.
    (Samples here have a fixed size, half of m on the way to the landmarks.)

    Eigenvalues of the scaled K(L, L) below m·2.2e-16 of the largest, 1.2e-7 for float32 rows, are dropped with their
    directions: equal landmarks do no harm. From a Dask collection `fit` sees the first block of rows, and models that
    read rows block by block give it the first one. Tensors that require gradients are taken as constants.

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
    >>> Z = NystroemFeatures("ntk", 100, depth=2, random_state=0).fit_transform(X)
    >>> K = ntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.02 * np.linalg.norm(K))
    True
    """

    _learned: ClassVar[tuple[str, ...]] = ("lengthscale_", "landmarks_", "landmark_indices_")

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        n_components: int = 1024,
        *,
        landmarks: Any = "leverage",
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int = 1,
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
        self.alpha = alpha
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Choose the landmarks.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for kernels of images
            The rows to choose from: all of them matter. Of a Dask collection the first block is read.
        y : ignored

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            lengthscale = self._check_parameters()
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self._sparse = _array.is_sparse(X)
            for name in ("lengthscale_", "landmark_indices_"):
                self.__dict__.pop(name, None)
            if self._has_lengthscale:
                self.lengthscale_ = default_lengthscale(X) if lengthscale is None else lengthscale
            self._resolve()
            chosen = self._choose(X, seed)
            self.landmarks_ = _on_host(chosen)
            # By NumPy, as for a map from a file; functions, which no file has, may be for tensors only.
            self._normalize(chosen if callable(self.kernel) else self.landmarks_)
        return self

    def _draw(self, seed: np.random.SeedSequence) -> None:  # noqa: ARG002
        """Make the map again from ``landmarks_`` and ``lengthscale_``; the seed has drawn the landmarks."""
        self._check_parameters()
        self._resolve()
        self._normalize(self.landmarks_)

    def _choose(self, X: Any, seed: np.random.SeedSequence) -> Any:
        """Landmarks for the rows X, in the library and on the device of X unless they are given."""
        if not isinstance(self.landmarks, str):
            return self._check_landmarks(X)
        size = min(self.n_components, X.shape[0])
        if self.landmarks == "kmeans":
            if self._sparse:
                rule = "'leverage', 'uniform' or an array for sparse rows, of which centres would be dense"
                raise ValueError(message(type(self).__name__, "landmarks", rule, self.landmarks))
            return _landmarks.centres(X, size, seed)
        if size == X.shape[0]:
            indices = np.arange(size)
        elif self.landmarks == "uniform":
            indices = _landmarks.uniform(X.shape[0], size, seed)
        elif self._resolved is None:
            indices = _landmarks.leverage(_landmarks.OfMatrix(X, self.batch_size), size, seed, self.alpha)
        else:
            rows = _landmarks.OfRows(self._resolved, X, self.batch_size)
            indices = _landmarks.leverage(rows, size, seed, self.alpha)
        self.landmark_indices_ = indices
        chosen = _landmarks.take(X, indices)
        return _landmarks.take(chosen.T, indices).T if self._resolved is None else chosen

    def _normalize(self, chosen: Any) -> None:
        """Compute the normalization from landmarks, or for "precomputed" from their kernel matrix."""
        K = _landmarks.wide(chosen) if self._resolved is None else self._resolved.matrix(_landmarks.wide(chosen))
        _landmarks.check_finite(K)
        self.normalization_ = _on_host(_inverse_root(K, single=chosen.dtype.itemsize < 8))
        self._n_features_out = int(K.shape[0])
        self._placed: dict[str, tuple[Any, Any]] = {}

    def _transform(self, X: Array) -> Array:
        dtype = _array.result_dtype(X)
        X = _at_least_single(X)
        if self._resolved is None:
            blocks = self._columns(X)
        else:
            landmarks = self._place("landmarks", X)
            step = _landmarks.block_rows(self._n_features_out, self.batch_size, X)
            blocks = self._resolved.blocks(X, landmarks, batch_size=step)
        if not _array.is_torch(X):
            return self._product(blocks, np.empty((X.shape[0], self._n_features_out), dtype))
        import torch

        from ntkit._precision import exact_products

        with exact_products():
            return self._product(blocks, torch.empty((X.shape[0], self._n_features_out), dtype=dtype, device=X.device))

    def _columns(self, X: Array) -> Any:
        """Yield the columns of landmarks in blocks of rows of kernel values."""
        step = _landmarks.block_rows(X.shape[1], self.batch_size, X)
        for rows in _landmarks.row_batches(X.shape[0], 1, batch_size=step):
            yield rows, _landmarks.take(X[rows].T, self.landmark_indices_).T

    def _product(self, blocks: Any, Z: Array) -> Array:
        for rows, K in blocks:
            normalization = self._place("normalization", K)
            Z[rows] = K @ normalization
        return Z

    def _place(self, what: str, like: Any) -> Any:
        """Landmarks of the kind of some rows, or the normalization in the precision of kernel values; copies are kept.

        Landmarks keep their precision: those of float64 rows make kernel values in float64, which the normalization
        needs, of float32 rows too.
        """
        sparse, on_device = _array.is_sparse(like), _array.is_torch(like)
        key = sparse, like.device if on_device else None, like.dtype if what == "normalization" else None
        kept = self._placed.get(what)  # once: another thread may put another copy there
        if kept is not None and kept[0] == key:
            return kept[1]
        value = self.landmarks_ if what == "landmarks" else self.normalization_
        if what == "landmarks" and sparse != _array.is_sparse(value):
            from scipy.sparse import csr_array

            value = csr_array(value) if sparse else value.toarray()
        if on_device:
            import torch

            value = torch.from_numpy(value).to(like.device)
        if what == "normalization":
            value = value.to(like.dtype) if on_device else value.astype(like.dtype, copy=False)
        self._placed[what] = key, value
        return value

    def _kernel(self, X: Array) -> Array:
        if self._resolved is None:
            raise ValueError(
                f"The exact kernel of rows is not known to {type(self).__name__}(kernel='precomputed'): compare "
                "transform(K) with K yourself, for example by ntkit.diagnostics.spectral_error."
            )
        return self._resolved.matrix(X)

    def _check_landmarks(self, X: Any) -> Any:
        """Landmarks given, as a NumPy array or CSR."""
        name, shape = type(self).__name__, tuple(X.shape[1:])
        given = check_data(self.landmarks, "landmarks", name, ndims=(len(X.shape),), sparse=len(X.shape) == 2)
        if tuple(given.shape[1:]) != shape:
            rule = f"rows of {shape[0]} features, as X has" if len(shape) == 1 else f"images of shape {shape}, as X has"
            raise ValueError(message(name, "landmarks", rule, given))
        if _array.is_sparse(given):
            return given.copy()
        given = _on_host(given)
        return np.array(given, dtype=_array.result_dtype(given))

    def _check_parameters(self) -> float | None:
        """Check all parameters but those of the kernel; the length scale given, None for "scale"."""
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.depth, "depth", name, minimum=1)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        if self.alpha is not None:
            check_real(self.alpha, "alpha", name, minimum=0, strict=True)
        if self.kernel_params is not None and not isinstance(self.kernel_params, dict):
            raise TypeError(message(name, "kernel_params", "a dict or None", self.kernel_params))
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
                rule = "'leverage' or 'uniform' for kernel='precomputed', where there are no rows"
                raise ValueError(message(name, "landmarks", rule, value))
            if self.kernel_params:
                rule = "None for kernel='precomputed', which has no parameters"
                raise ValueError(message(name, "kernel_params", rule, self.kernel_params))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_placed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "normalization_" in state:
            self._placed = {}


def _inverse_root(K: Array, *, single: bool) -> Array:
    """D^{-1/2} (D^{-1/2} K D^{-1/2})^{-1/2}, D the diagonal of K, without directions that are lost in rounding.

    Kernel values of float32 rows (`single`) are rounded to 6e-8: directions with an eigenvalue σ get errors of about
    6e-8/√σ in the features, so that small ones bring more noise than they add to the kernel.
    """
    xp: Any = _array.namespace(K)
    norms = xp.sqrt(xp.clip(xp.linalg.diagonal(K), 0, None))
    scale = xp.where(norms > 0, 1 / xp.where(norms > 0, norms, xp.ones_like(norms)), xp.zeros_like(norms))
    values, vectors = xp.linalg.eigh(scale[:, None] * K * scale[None, :])
    least = float(values[-1]) * max(K.shape[0] * 2.2e-16, 1.2e-7 if single else 0.0)
    roots = xp.where(values > least, xp.clip(values, least, None), xp.ones_like(values)) ** -0.5
    roots = xp.where(values > least, roots, xp.zeros_like(roots))
    return scale[:, None] * xp.matmul(vectors * roots[None, :], xp.matrix_transpose(vectors))


def _at_least_single(X: Any) -> Any:
    """16-bit tensors in float32; all else as it is."""
    if not _array.is_torch(X) or not X.dtype.is_floating_point or X.dtype.itemsize >= 4:
        return X.detach() if _array.is_torch(X) else X
    return X.detach().float()


def _on_host(x: Any) -> Any:
    """NumPy array of a tensor, of 16-bit numbers in float32."""
    return _at_least_single(x).cpu().numpy() if _array.is_torch(x) else x
