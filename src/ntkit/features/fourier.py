"""Random Fourier features of kernels of the distance: Gaussian, Laplace and Matérn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, row_batches, run_on_threads
from ntkit._precision import exact_products
from ntkit._random import RandomState, generator
from ntkit._validation import check_int
from ntkit.features._base import FeatureMap
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.features._spectral import check_rotations, distance_kernel, tails
from ntkit.features._walk import haar
from ntkit.kernels.distances import DistanceKernel

_TILE_BYTES = 2**21  # of the result that a thread writes at a time: the passes over it then stay in its cache
_TILE_ROWS = 128  # at least: BLAS packs the frequencies anew for every tile
_MANY = 2**22  # bytes of frequencies from which on four times as many rows are worth it
_SMALL = 256  # features up to which orthonormal blocks come from LAPACK's QR, several at a time

Multiply: TypeAlias = Callable[[Any, np.ndarray], None]
"""Writes the phases w_i·x of rows to the first columns of their features."""


class FourierMap(FeatureMap):
    """Cosines and sines of frequencies; the subclasses draw these and multiply rows by them."""

    _learned: ClassVar[tuple[str, ...]] = ("lengthscale_",)

    def __init__(
        self,
        n_components: int = 1024,
        *,
        kernel: str = "gaussian",
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.batch_size = batch_size
        self.random_state = random_state

    @abstractmethod
    def _draw_frequencies(self, seed: np.random.SeedSequence, size: int, kernel: DistanceKernel) -> None:
        """Draw `size` frequencies of a kernel for rows of ``n_features_in_``; more keep the first."""

    @abstractmethod
    def _host_phases(self, dtype: np.dtype, *, sparse: bool) -> tuple[Multiply, int]:
        """What multiplies rows in host memory by the frequencies, and the fewest rows that it should be given."""

    @abstractmethod
    def _tensor_phases(self, X: Any) -> Any:
        """Phases of the rows of a torch tensor of float32 or float64, by operations of torch."""

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
            lengthscale = check_lengthscale(self.lengthscale, name)
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self.lengthscale_ = default_lengthscale(X) if lengthscale is None else lengthscale
            self._sparse = _array.is_sparse(X)
            self._draw(seed)
        return self

    def _draw(self, seed: np.random.SeedSequence) -> None:
        """Make the draws for rows of ``n_features_in_`` and ``lengthscale_``."""
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        self._exact = distance_kernel(self.kernel, self.kernel_params, self.lengthscale_, name)
        self._draw_frequencies(seed, -(-m // 2), self._exact)
        self._phase = float(generator(seed, "fourier", "phase").uniform(0, 2 * np.pi)) if m % 2 else None
        self._n_features_out = m

    def _transform(self, X: Array) -> Array:
        if _array.is_torch(X):
            return self._of_tensor(X)
        return self._on_host(X, _array.result_dtype(X))

    def _on_host(self, X: Any, dtype: Any) -> np.ndarray:
        """Tiles of rows on threads: phases where the cosines will stand, then cosines, and sines beside them."""
        from ntkit.features._fourier_numba import waves

        n_rows, m = X.shape[0], self._n_features_out
        Z = np.empty((n_rows, m), dtype)
        multiply, least = self._host_phases(Z.dtype, sparse=_array.is_sparse(X))
        step = max(least, _TILE_BYTES // (m * Z.itemsize) // 16 * 16)
        step = batch_rows(n_rows, 1, batch_size=step if self.batch_size is None else min(step, self.batch_size))

        def fill(start: int) -> None:
            rows = slice(start, start + step)
            multiply(X[rows], Z[rows])
            waves(Z[rows], -(-m // 2), self._phase)

        run_on_threads(fill, range(0, n_rows, step))
        return Z

    def _of_tensor(self, X: Any) -> Any:
        """On the host by compiled code, elsewhere by torch; 16-bit numbers in float32, rounded at the end."""
        import torch

        dtype = _array.result_dtype(X)
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        differentiable = _array.wants_gradient([X])
        if X.device.type == "cpu" and not differentiable:
            view = _array.host_view(X.to(wide))
            return torch.from_numpy(self._on_host(view, view.dtype)).to(dtype)  # type: ignore[union-attr]
        with exact_products():
            if differentiable:
                return self._differentiable(X.to(wide)).to(dtype)
            n_rows, m = X.shape[0], self._n_features_out
            Z = torch.empty((n_rows, m), dtype=dtype, device=X.device)
            # Rows in another dtype are copied, and products into a part of the result may be.
            for rows in row_batches(n_rows, 8 * (2 * m + X.shape[1]), batch_size=self.batch_size, like=X):
                self._fill(X[rows].detach().to(wide), Z[rows])
        return Z

    def _fill(self, X: Any, Z: Any) -> None:
        import torch

        phases = self._tensor_phases(X)
        half, pairs = phases.shape[1], self._n_features_out // 2
        if self._phase is not None:
            phases[:, -1] += self._phase
        torch.mul(torch.sin(phases[:, :pairs]), half**-0.5, out=Z[:, half:])
        torch.mul(phases.cos_(), half**-0.5, out=Z[:, :half])
        if self._phase is not None:
            Z[:, half - 1] *= 2**0.5

    def _differentiable(self, X: Any) -> Any:
        """The features as one expression, for torch to differentiate."""
        import torch

        phases = self._tensor_phases(X)
        half, pairs = phases.shape[1], self._n_features_out // 2
        parts = [torch.cos(phases[:, :pairs]), torch.sin(phases[:, :pairs])]
        if self._phase is not None:
            parts.insert(1, 2**0.5 * torch.cos(phases[:, pairs:] + self._phase))
        return torch.cat(parts, dim=1) * half**-0.5

    def _kernel(self, X: Array) -> Array:
        return self._exact.matrix(X)


class RandomFourierFeatures(FourierMap):
    """Random Fourier features of the Gaussian, Laplace and Matérn kernels, [1]_.

    With h = ⌈m/2⌉ frequencies w_i of the spectral law of the kernel, the features of an even number m of components are

        Z(x) = h^{-1/2} [cos(w_1·x), …, cos(w_h·x), sin(w_1·x), …, sin(w_h·x)],

        E Z(x)·Z(y) = k(x − y),   Var Z(x)·Z(y) = (1 + k(2(x − y)) − 2k(x − y)²)/m,   ‖Z(x)‖ = 1,

        "gaussian"                exp(−‖x − y‖²/(2ℓ²))    w = g/ℓ, g ~ N(0, I); the variance is (1 − k²)²/m
        "matern", {"nu": ν}       see kernels.matern      w = g √(2ν/u)/ℓ, u ~ χ²_{2ν}: Student's law, 2ν degrees
        "laplace"                 exp(−‖x − y‖/ℓ)         the same with ν = 1/2: Cauchy's law in d dimensions
        "laplace", {"norm": "l1"} exp(−‖x − y‖₁/ℓ)        coordinates of Cauchy's law, independent, over ℓ

    For an odd m there are h cosines and h − 1 sines. The cosine left alone is √2 cos(w_h·x + b) with b uniform on
    [0, 2π) in place of cos(w_h·x): the mean is the same (‖Z(x)‖ = 1 then holds on average only).

    Parameters
    ----------
    n_components : int
        Number m of features.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel.
    kernel_params : dict or None
        Its parameters but the length scale: ``{"nu": 2.5}`` of "matern" (1.5 if not given), ``{"norm": "l1"}`` of
        "laplace".
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
    probability for m = O(d ε⁻² log(D/(ℓ ε))) and the Gaussian. Pairs of a cosine and a sine have a smaller variance for
    this kernel than cosines of random phase, which scikit-learn's ``RBFSampler`` uses [2]_. A zero row has
    k(0, 0) = 1, so its features are not zero. In float32 the phases w·x are off by about 1e-7 ‖x‖ ‖w‖: rows far from
    the origin should be centred first, which does not change the kernel.

    The laws of Laplace and Matérn kernels have heavy tails: of h frequencies for "laplace", the largest is about h
    times as large as a typical one. Features of such frequencies oscillate between neighbouring rows and are noise
    there. The variance is at most 2/m as for any kernel, but for close pairs, t = ‖x − y‖/ℓ small, it is 2t/m for
    "laplace" and 4√3 t³/m for ν = 3/2, where the Gaussian has t⁴/m. Claim 1 needs E‖w‖² < ∞, which is ν > 1.

    References
    ----------
    .. [1] Rahimi, Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007, Algorithm 1 and Claim 1.
    .. [2] Sutherland, Schneider, "On the Error of Random Fourier Features", UAI 2015, arXiv:1506.02785.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import RandomFourierFeatures
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> Z = RandomFourierFeatures(4096, lengthscale=2.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=2.0)).max() < 0.1)
    True
    >>> from ntkit.kernels import matern
    >>> Z = RandomFourierFeatures(4096, kernel="matern", lengthscale=2.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - matern(X, nu=1.5, lengthscale=2.0)).max() < 0.1)
    True
    """

    def _draw_frequencies(self, seed: np.random.SeedSequence, size: int, kernel: DistanceKernel) -> None:
        draws = self._draw_normals(seed, size, kernel)
        draws /= self.lengthscale_
        draws *= tails(kernel, seed, draws.shape)
        self.frequencies_ = np.ascontiguousarray(draws.T)
        self._placed: list[tuple[Any, Array]] = []

    def _draw_normals(self, seed: np.random.SeedSequence, size: int, kernel: DistanceKernel) -> np.ndarray:
        """Rows of the law N(0, I) each."""
        del kernel
        return generator(seed, "fourier", "frequencies").standard_normal((size, self.n_features_in_))

    def _host_phases(self, dtype: np.dtype, *, sparse: bool) -> tuple[Multiply, int]:
        frequencies = self._frequencies(dtype, None)
        half = frequencies.shape[1]

        def multiply(X: Any, Z: np.ndarray) -> None:
            if sparse:
                Z[:, :half] = X @ frequencies
            else:
                np.matmul(np.ascontiguousarray(X, dtype), frequencies, out=Z[:, :half])

        return multiply, _TILE_ROWS * (4 if frequencies.nbytes > _MANY else 1)

    def _tensor_phases(self, X: Any) -> Any:
        return X @ self._frequencies(X.dtype, X.device)

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

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_placed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "frequencies_" in state:
            self._placed = []


class OrthogonalFourierFeatures(RandomFourierFeatures):
    """Random Fourier features of the Gaussian, Laplace and Matérn kernels with orthogonal frequencies, [1]_.

    The frequencies are w_i = s_i q_i/ℓ. The directions q_1, …, q_d are orthonormal and uniformly (Haar) distributed,
    the next d are so again, independently of the first, and so on. The lengths s_i are independent: of the law χ_d for
    the Gaussian, χ_d √(2ν/u) with u ~ χ²_{2ν} for Matérn kernels (ν = 1/2 for Laplace). Each w_i has the same law as in
    :class:`RandomFourierFeatures`, so the features stay unbiased, with ‖Z(x)‖ = 1. For the Gaussian

        E Z(x)·Z(y) = k(x, y),   Var Z(x)·Z(y) ≈ [(1 − k²)² − ((h − 1)/d) k² t⁴]/m,   t = ‖x − y‖/ℓ, h = m/2 ≤ d,

    up to O(1/d²), which Theorem 1 of [1]_ has as an upper bound. With more frequencies than features, h a multiple of
    d, it is the same with d in place of h (but not of m).

    Parameters
    ----------
    n_components : int
        Number m of features.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel, with the Euclidean norm: the law of ``norm="l1"`` is not the same in all directions.
    kernel_params : dict or None
        ``{"nu": 2.5}`` of "matern" (1.5 if not given).
    lengthscale : float > 0 or "scale"
        ℓ, as in :class:`RandomFourierFeatures`.
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
    `transform` costs what it does with independent frequencies. `fit` makes them orthogonal in O(d m min(d, m))
    operations, as fast as matrix products: as long as the `transform` of a few times min(d, m/2) rows. Most is gained
    for close pairs (t < 2) and m ≥ 2d, nothing for one feature (d = 1). With heavy tails less is gained: the lengths,
    which stay independent, are most of the variance.

    References
    ----------
    .. [1] Yu, Suresh, Choromanski, Holtmann-Rice, Kumar, "Orthogonal Random Features", NeurIPS 2016,
       arXiv:1610.09072, Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import OrthogonalFourierFeatures, RandomFourierFeatures
    >>> X = np.random.default_rng(0).standard_normal((200, 32))
    >>> maps = (kind(256, random_state=0).fit(X) for kind in (OrthogonalFourierFeatures, RandomFourierFeatures))
    >>> orthogonal, independent = (features.estimate_error(X) for features in maps)
    >>> bool(orthogonal < independent)
    True
    """

    def _draw_normals(self, seed: np.random.SeedSequence, size: int, kernel: DistanceKernel) -> np.ndarray:
        check_rotations(kernel, type(self).__name__)
        d = self.n_features_in_
        rows = np.empty((size, d))
        at_once = d * max(_SMALL // d, 1)

        def draw(start: int) -> None:
            block = rows[start : start + at_once]
            rng = generator(seed, "fourier", "block", start // at_once)
            if d > _SMALL:
                _orthonormal(rng, block)
            else:
                block[...] = haar(rng, d, (-(-len(block) // d), d)).reshape(-1, d)[: len(block)]

        run_on_threads(draw, range(0, size, at_once))
        rows *= np.sqrt(generator(seed, "fourier", "norms").chisquare(d, (size, 1)))
        return rows


def _orthonormal(rng: np.random.Generator, rows: np.ndarray) -> None:
    """Fill `rows`, no more than they have columns, with orthonormal ones, uniformly distributed.

    Gram–Schmidt on Gaussian rows, which is QR with a positive diagonal of R. A panel takes up to half of the dimensions
    left, so its Gram matrix is well conditioned, and Cholesky's factor of it, all in matrix products, is exact enough.
    """
    n_rows, d = rows.shape
    rng.standard_normal(out=rows)
    done = 0
    while done < n_rows:
        panel, before = rows[done : done + max((d - done) // 2, 1)], rows[:done]
        panel -= (panel @ before.T) @ before
        # Not SciPy's triangular solver: its BLAS has threads of its own, which would wait beside NumPy's.
        panel[...] = np.linalg.inv(np.linalg.cholesky(panel @ panel.T)) @ panel
        done += len(panel)
