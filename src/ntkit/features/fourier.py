"""Random Fourier features of the Gaussian kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, row_batches, run_on_threads
from ntkit._random import RandomState, generator
from ntkit._validation import check_int, check_real, message
from ntkit.features._base import FeatureMap

_TILE_BYTES = 2**21  # of the result that a thread writes at a time: the passes over it then stay in its cache
_TILE_ROWS = 128  # at least: BLAS packs the frequencies anew for every tile
_MANY = 2**22  # bytes of frequencies from which on four times as many rows are worth it


class RandomFourierFeatures(FeatureMap):
    """Random Fourier features of the Gaussian kernel exp(−‖x − y‖²/(2ℓ²)), [1]_.

    With h = ⌈m/2⌉ frequencies w_i ~ N(0, I/ℓ²), the features of an even number m of components are

        Z(x) = h^{-1/2} [cos(w_1·x), …, cos(w_h·x), sin(w_1·x), …, sin(w_h·x)],

        E Z(x)·Z(y) = k(x, y),   Var Z(x)·Z(y) = (1 − k(x, y)²)²/m,   ‖Z(x)‖ = 1.

    For an odd m there are h cosines and h − 1 sines. The cosine left alone is √2 cos(w_h·x + b) with b uniform on
    [0, 2π) in place of cos(w_h·x): the mean is the same (‖Z(x)‖ = 1 then holds on average only).

    Parameters
    ----------
    n_components : int
        Number m of features.
    lengthscale : float > 0 or "scale"
        ℓ. "scale": √(d·Var(X)/2) with the variance over all entries of the X that `fit` sees, so that
        scikit-learn's ``gamma`` is 1/(d·Var(X)), as ``SVC(gamma="scale")`` has it (and 1 if all entries are equal).
        Scale columns (for example by scikit-learn's ``StandardScaler``) before, as for any kernel.
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the frequencies in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size,
        up to rounding.

    Attributes
    ----------
    lengthscale_ : float
        ℓ.
    frequencies_ : ndarray of shape (n_features, ⌈n_components/2⌉)
        w_i, in columns.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(d m) per row as a matrix product, O(nnz·m) for SciPy CSR rows; on the CPU nothing of the size of the result
    is held but the result. Claim 1 of [1]_: on a set of diameter D the error is below ε everywhere with constant
    probability for m = O(d ε⁻² log(D/(ℓ ε))). Pairs of a cosine and a sine have a smaller variance for this kernel
    than cosines of random phase, which scikit-learn's ``RBFSampler`` uses [2]_. A zero row has k(0, 0) = 1, so its
    features are not zero. In float32 the phases w·x are off by about 1e-7 ‖x‖/ℓ: rows far from the origin should be
    centred first, which does not change the kernel.

    References
    ----------
    .. [1] Rahimi, Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007, Algorithm 1 and Claim 1.
    .. [2] Sutherland, Schneider, "On the Error of Random Fourier Features", UAI 2015, arXiv:1506.02785.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.features.fourier import RandomFourierFeatures
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> Z = RandomFourierFeatures(4096, lengthscale=2.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=2.0)).max() < 0.1)
    True
    """

    def __init__(
        self,
        n_components: int = 1024,
        *,
        lengthscale: float | str = "scale",
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.lengthscale = lengthscale
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the frequencies for rows of the size of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
            Only the number of features matters and, with ``lengthscale="scale"``, the variance of the entries (in the
            first rows of a Dask collection).
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            if self.batch_size is not None:
                check_int(self.batch_size, "batch_size", name, minimum=1)
            lengthscale = self._check_lengthscale()
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self.lengthscale_ = _default_lengthscale(X) if lengthscale is None else lengthscale
            self._sparse = _array.is_sparse(X)
            self._draw(seed, sparse=self._sparse)
        return self

    def _draw(self, seed: np.random.SeedSequence, *, sparse: bool) -> None:  # noqa: ARG002
        """Make the draws for rows of ``n_features_in_`` and ``lengthscale_``."""
        m = check_int(self.n_components, "n_components", type(self).__name__, minimum=1)
        shape = (-(-m // 2), self.n_features_in_)
        draws = generator(seed, "fourier", "frequencies").standard_normal(shape)  # more components keep the first
        draws /= self.lengthscale_
        self.frequencies_ = np.ascontiguousarray(draws.T)
        self._phase = float(generator(seed, "fourier", "phase").uniform(0, 2 * np.pi)) if m % 2 else None
        self._n_features_out = m
        self._placed: list[tuple[Any, Array]] = []

    def _transform(self, X: Array) -> Array:
        if _array.is_torch(X):
            return self._of_tensor(X)
        return self._on_host(X, _array.result_dtype(X))

    def _on_host(self, X: Any, dtype: Any) -> np.ndarray:
        """Tiles of rows on threads: phases where the cosines will stand, then sines beside them, then cosines."""
        n_rows, m = X.shape[0], self._n_features_out
        frequencies = self._frequencies(np.dtype(dtype), None)
        Z = np.empty((n_rows, m), dtype)
        half, pairs = frequencies.shape[1], m // 2
        least = _TILE_ROWS * (4 if frequencies.nbytes > _MANY else 1)
        step = max(least, _TILE_BYTES // (m * Z.itemsize))
        step = batch_rows(n_rows, 1, batch_size=step if self.batch_size is None else min(step, self.batch_size))
        sparse = _array.is_sparse(X)

        def fill(start: int) -> None:
            rows = slice(start, start + step)
            tile, phases = Z[rows], Z[rows, :half]
            if sparse:
                phases[...] = X[rows] @ frequencies
            else:
                np.matmul(np.ascontiguousarray(X[rows], dtype), frequencies, out=phases)
            if self._phase is not None:
                phases[:, -1] += self._phase
            np.sin(phases[:, :pairs], out=tile[:, half:])
            np.cos(phases, out=phases)
            tile *= Z.dtype.type(half**-0.5)
            if self._phase is not None:
                phases[:, -1] *= Z.dtype.type(2**0.5)

        run_on_threads(fill, range(0, n_rows, step))
        return Z

    def _of_tensor(self, X: Any) -> Any:
        """On the host by NumPy, elsewhere by torch; 16-bit numbers in float32, rounded at the end."""
        import torch

        from ntkit.sketches._base import _wants_gradient

        dtype = _array.result_dtype(X)
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        differentiable = _wants_gradient([X])
        if X.device.type == "cpu" and not differentiable:
            view = _array.host_view(X.to(wide))
            return torch.from_numpy(self._on_host(view, view.dtype)).to(dtype)  # type: ignore[union-attr]
        frequencies = self._frequencies(wide, X.device)
        if differentiable:
            return self._differentiable(X.to(wide), frequencies).to(dtype)
        n_rows, m = X.shape[0], self._n_features_out
        Z = torch.empty((n_rows, m), dtype=dtype, device=X.device)
        # Rows in another dtype are copied, and products into a part of the result may be.
        for rows in row_batches(n_rows, 8 * (2 * m + X.shape[1]), batch_size=self.batch_size, like=X):
            self._fill(X[rows].detach().to(wide), frequencies, Z[rows])
        return Z

    def _fill(self, X: Any, frequencies: Any, Z: Any) -> None:
        import torch

        half, pairs = frequencies.shape[1], self._n_features_out // 2
        phases = torch.matmul(X, frequencies)
        if self._phase is not None:
            phases[:, -1] += self._phase
        torch.mul(torch.sin(phases[:, :pairs]), half**-0.5, out=Z[:, half:])
        torch.mul(phases.cos_(), half**-0.5, out=Z[:, :half])
        if self._phase is not None:
            Z[:, half - 1] *= 2**0.5

    def _differentiable(self, X: Any, frequencies: Any) -> Any:
        """The features as one expression, for torch to differentiate."""
        import torch

        half, pairs = frequencies.shape[1], self._n_features_out // 2
        phases = torch.matmul(X, frequencies)
        parts = [torch.cos(phases[:, :pairs]), torch.sin(phases[:, :pairs])]
        if self._phase is not None:
            parts.insert(1, 2**0.5 * torch.cos(phases[:, pairs:] + self._phase))
        return torch.cat(parts, dim=1) * half**-0.5

    def _frequencies(self, dtype: Any, device: Any) -> Array:
        """Frequencies in the precision of the rows and on their torch device; the last copy made is kept."""
        if device is None and dtype == np.float64:
            return self.frequencies_
        for key, kept in self._placed:
            if key == (dtype, device):
                return kept
        if device is None:
            copy: Array = self.frequencies_.astype(dtype)
        else:
            import torch

            copy = torch.from_numpy(self.frequencies_).to(dtype).to(device)
        self._placed[:] = [((dtype, device), copy)]
        return copy

    def _check_lengthscale(self) -> float | None:
        """The length scale given, None for "scale"."""
        name, rule = type(self).__name__, "a finite real number > 0 or 'scale'"
        if isinstance(self.lengthscale, str):
            if self.lengthscale != "scale":
                raise ValueError(message(name, "lengthscale", rule, self.lengthscale))
            return None
        try:
            return check_real(self.lengthscale, "lengthscale", name, minimum=0, strict=True)
        except (TypeError, ValueError) as error:
            raise type(error)(message(name, "lengthscale", rule, self.lengthscale)) from None

    def _kernel(self, X: Array) -> Array:
        from ntkit.kernels import gaussian

        return gaussian(X, lengthscale=self.lengthscale_)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_placed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "frequencies_" in state:
            self._placed = []


def _default_lengthscale(X: Any) -> float:
    """√(d·Var(X)/2), or √½ if all entries are equal up to rounding."""
    deviation = _deviation(X)
    return deviation * (X.shape[1] / 2) ** 0.5 or 0.5**0.5


def _deviation(X: Any) -> float:
    """Standard deviation of all entries in float64, over their largest so that squares cannot overflow."""
    size = X.shape[0] * X.shape[1]
    if _array.is_sparse(X):
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        X = X.data[:, None]
        if not X.size:
            return 0.0
    elif _array.is_torch(X):
        X = X.detach()
    xp = _array.namespace(X)
    top = max(float(xp.max(X)), -float(xp.min(X)))
    if top == 0:
        return 0.0
    batches = list(row_batches(X.shape[0], 32 * X.shape[1], like=X))
    mean = sum(float(xp.sum(_array.widen(X[rows]) / top)) for rows in batches) / size
    squares = sum(float(xp.sum((_array.widen(X[rows]) / top - mean) ** 2)) for rows in batches)
    squares += (size - X.shape[0] * X.shape[1]) * mean**2  # entries that are not stored
    deviation = (squares / size) ** 0.5
    return top * deviation if deviation > 1e-15 else 0.0
