"""Random Fourier features of kernels that depend on the distance: Gaussian, Laplace and Matérn."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import count_threads
from ntkit._random import RandomState, generator, keyed
from ntkit._state import Real
from ntkit._validation import check_int
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.directions import orthonormal_rows
from ntkit.features.draws import RowDraws
from ntkit.features.fourier.spectral import check_rotations, distance_kernel, spectral_factors
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.distances import DistanceKernel

_TILE_BYTES = 2**21  # size of the results that a thread writes at a time, so that they stay in its cache
_TILE_ROWS = 128  # smallest number of rows in a tile: BLAS packs the frequencies again for every tile
_LARGE_TABLE = 2**22  # above this many bytes of frequencies, packing costs more and tiles have 4 × _TILE_ROWS rows


@dataclass(frozen=True, kw_only=True, eq=False)
class FourierPlan(Plan):
    """Number of features, and the kernel that determines the spectral law of the frequencies."""

    kernel: DistanceKernel
    n_components: int

    @property
    def n_frequencies(self) -> int:
        """Number of frequencies: one for each pair of a cosine and a sine, and one for an unpaired cosine."""
        return -(-self.n_components // 2)


class WaveDraws(RowDraws):
    """Cosines and sines of phases; subclasses compute the phases."""

    def __init__(self, plan: FourierPlan, seed: np.random.SeedSequence):
        super().__init__()
        self.n_components, self.half = plan.n_components, plan.n_frequencies
        odd = self.n_components % 2
        self.phase = float(generator(seed, "fourier", "phase").uniform(0, 2 * np.pi)) if odd else None

    @abstractmethod
    def phases(self, X: Any, tables: Any) -> Any:
        """Compute w_i·x for the rows of a torch tensor, by torch operations."""

    @abstractmethod
    def write_phases(self, X: Any, tables: Any, out: np.ndarray) -> None:
        """Write w_i·x to the first columns of `out`, for rows in host memory."""

    @abstractmethod
    def min_tile_rows(self, dtype: np.dtype) -> int:
        """Return the smallest number of rows that a tile should have."""

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`: rows of another dtype are copied, and products may be copied too."""
        return 2 * (2 * self.n_components + X.shape[1])

    def tile_rows(self, X: Array, dtype: np.dtype) -> int:  # noqa: ARG002
        """See :meth:`RowDraws.tile_rows`."""
        return max(self.min_tile_rows(dtype), _TILE_BYTES // (self.n_components * dtype.itemsize) // 16 * 16)

    def fill(self, X: Any, tables: Any, out: Any) -> None:
        """See :meth:`RowDraws.fill`. Phases are written to the columns of the cosines and replaced in place."""
        if not _array.is_torch(X):
            from ntkit.features.fourier._numba import waves

            self.write_phases(X, tables, out)
            waves(out, self.half, self.phase)
            return
        import torch

        phases = self.phases(X, tables)
        half, pairs = self.half, self.n_components // 2
        if self.phase is not None:
            phases[:, -1] += self.phase
        torch.mul(torch.sin(phases[:, :pairs]), half**-0.5, out=out[:, half:])
        torch.mul(phases.cos_(), half**-0.5, out=out[:, :half])
        if self.phase is not None:
            out[:, half - 1] *= 2**0.5

    def features(self, X: Any, tables: Any) -> Any:
        """See :meth:`RowDraws.features`."""
        phases = self.phases(X, tables)
        xp: Any = _array.namespace(phases)
        pairs = self.n_components // 2
        parts = [xp.cos(phases[:, :pairs]), xp.sin(phases[:, :pairs])]
        if self.phase is not None:
            parts.insert(1, 2**0.5 * xp.cos(phases[:, pairs:] + self.phase))
        return xp.concat(parts, axis=1) * self.half**-0.5


class DenseWaves(WaveDraws):
    """Phases computed by a matrix product with all frequencies, (d, h)."""

    def __init__(self, plan: FourierPlan, seed: np.random.SeedSequence, frequencies: np.ndarray):
        super().__init__(plan, seed)
        self.tables = frequencies

    def phases(self, X: Any, tables: Any) -> Any:
        """See :meth:`WaveDraws.phases`."""
        return X @ tables

    def write_phases(self, X: Any, tables: np.ndarray, out: np.ndarray) -> None:
        """See :meth:`WaveDraws.write_phases`."""
        if _array.is_sparse(X):
            out[:, : self.half] = X @ tables
        else:
            np.matmul(np.ascontiguousarray(X, out.dtype), tables, out=out[:, : self.half])

    def min_tile_rows(self, dtype: np.dtype) -> int:
        """See :meth:`WaveDraws.min_tile_rows`."""
        return _TILE_ROWS * (4 if self.tables.size * dtype.itemsize > _LARGE_TABLE else 1)


class FourierMap(FeatureMap):
    """Base class of Fourier features; subclasses draw the frequencies."""

    _learned: ClassVar[dict[str, Any]] = {"lengthscale_": Real(0, strict=True)}
    _old_positions: ClassVar[int] = 1
    _rotated: ClassVar[bool] = False
    """Whether the frequencies have orthogonal directions; this requires a rotation-invariant law."""

    def __init__(
        self,
        *,
        n_components: int = 1024,
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

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:  # noqa: ARG002
        lengthscale = check_lengthscale(self.lengthscale, type(self).__name__)
        return {"lengthscale_": default_lengthscale(X) if lengthscale is None else lengthscale}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> FourierPlan:
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        kernel = distance_kernel(self.kernel, self.kernel_params, learned["lengthscale_"], name)
        if self._rotated:
            check_rotations(kernel, name)
        return FourierPlan(shape=shape, kernel=kernel, n_components=m)


class DenseFourierMap(FourierMap):
    """Fourier features whose frequencies are stored explicitly."""

    @staticmethod
    @abstractmethod
    def _normals(seed: np.random.SeedSequence, size: int, n_features: int) -> np.ndarray:
        """Draw rows, each of the law N(0, I). Drawing more rows does not change the first ones."""

    def _draw_bytes(self, plan: FourierPlan) -> int:
        """Count the frequencies and the blocks that threads orthogonalize.

        The time of the orthogonalization counts too: d products take as long as filling d/32 bytes.
        """
        d, n = plan.n_features, plan.n_frequencies
        return 32 * d * (n + count_threads() * max(d, 256)) + n * d**2 // 32 if self._rotated else 32 * d * n

    def _draw(self, plan: FourierPlan, seed: np.random.SeedSequence) -> DenseWaves:
        draws = self._normals(seed, plan.n_frequencies, plan.n_features)
        draws /= plan.kernel.lengthscale
        draws *= spectral_factors(plan.kernel, seed, draws.shape)
        return DenseWaves(plan, seed, np.ascontiguousarray(draws.T))

    @property
    def frequencies_(self) -> np.ndarray:
        """The frequencies w_i, in columns."""
        return self._draws.tables


class RandomFourierFeatures(DenseFourierMap):
    """Random Fourier features of the Gaussian, Laplace and Matérn kernels [1]_.

    The h = ⌈m/2⌉ frequencies w_i follow the spectral law of the kernel. For an even number m of components the features
    are

        Z(x) = h^{-1/2} [cos(w_1·x), …, cos(w_h·x), sin(w_1·x), …, sin(w_h·x)],

        E Z(x)·Z(y) = k(x − y),   Var Z(x)·Z(y) = (1 + k(2(x − y)) − 2k(x − y)²)/m,   ‖Z(x)‖ = 1,

        "gaussian"                exp(−‖x − y‖²/(2ℓ²))    w = g/ℓ, g ~ N(0, I); the variance is (1 − k²)²/m
        "matern", {"nu": ν}       see kernels.matern      w = g √(2ν/u)/ℓ, u ~ χ²_{2ν}: Student's law, 2ν degrees
        "laplace"                 exp(−‖x − y‖/ℓ)         as "matern" with ν = 1/2: Cauchy's law in d dimensions
        "laplace", {"norm": "l1"} exp(−‖x − y‖₁/ℓ)        ℓ w has independent coordinates of Cauchy's law

    For an odd m there are h cosines and h − 1 sines. The unpaired cosine is √2 cos(w_h·x + b) instead of cos(w_h·x),
    with b uniform on [0, 2π). The mean stays the same, but ‖Z(x)‖ = 1 holds only on average.

    Parameters
    ----------
    n_components : int
        Number m of features.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel.
    kernel_params : dict or None
        Parameters of the kernel other than the length scale: ``{"nu": 2.5}`` for "matern" (default 1.5),
        ``{"norm": "l1"}`` for "laplace".
    lengthscale : float > 0 or "scale"
        ℓ. "scale": √(d·Var(X)/2), with the variance over all entries of the X given to `fit`. Then scikit-learn's
        ``gamma`` is 1/(d·Var(X)), as in ``SVC(gamma="scale")`` (and 1 if all entries are equal). Scale the columns
        first (for example by scikit-learn's ``StandardScaler``), as for any kernel.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
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
    A row takes O(d m) in a matrix product, or O(nnz·m) if X is SciPy CSR. On the CPU, the result is the only array of
    its size. Claim 1 of [1]_, for the Gaussian kernel: on a set of diameter D, m = O(d ε⁻² log(D/(ℓ ε))) components
    have an error below ε everywhere with constant probability. For this kernel, pairs of a cosine and a sine have a
    smaller variance than cosines of random phase, which scikit-learn's ``RBFSampler`` uses [2]_. A zero row has
    k(0, 0) = 1, so its features are not zero. In float32 the phases w·x have errors of about 1e-7 ‖x‖ ‖w‖, so centre
    rows that are far from the origin; this does not change the kernel.

    The spectral laws of Laplace and Matérn kernels have heavy tails: of h frequencies for "laplace", the largest is
    about h times as large as a typical one. Features of large frequencies oscillate between neighbouring rows and only
    add noise there. The variance is at most 2/m, as for any kernel. But for close pairs (t = ‖x − y‖/ℓ small) it is
    2t/m for "laplace" and 4√3 t³/m for ν = 3/2, compared with t⁴/m for the Gaussian. Claim 1 requires E‖w‖² < ∞, which
    means ν > 1.

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
    >>> Z = RandomFourierFeatures(n_components=4096, lengthscale=2.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=2.0)).max() < 0.1)
    True
    >>> from ntkit.kernels import matern
    >>> Z = RandomFourierFeatures(n_components=4096, kernel="matern", lengthscale=2.0, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - matern(X, nu=1.5, lengthscale=2.0)).max() < 0.1)
    True
    """

    @staticmethod
    def _normals(seed: np.random.SeedSequence, size: int, n_features: int) -> np.ndarray:
        return generator(seed, "fourier", "frequencies").standard_normal((size, n_features))


class OrthogonalFourierFeatures(DenseFourierMap):
    """Random Fourier features of the Gaussian, Laplace and Matérn kernels with orthogonal frequencies [1]_.

    The frequencies are w_i = s_i q_i/ℓ. The directions q_1, …, q_d are orthonormal and uniformly (Haar) distributed.
    Each further block of d directions has the same law and is independent of the others. The lengths s_i are
    independent and have the law χ_d for the Gaussian, and χ_d √(2ν/u) with u ~ χ²_{2ν} for Matérn kernels (ν = 1/2 for
    Laplace). Each w_i has the same law as in :class:`RandomFourierFeatures`, so the features are unbiased, with
    ‖Z(x)‖ = 1. For the Gaussian

        E Z(x)·Z(y) = k(x, y),   Var Z(x)·Z(y) ≈ [(1 − k²)² − ((h − 1)/d) k² t⁴]/m,   t = ‖x − y‖/ℓ, h = m/2 ≤ d,

    up to O(1/d²). Theorem 1 of [1]_ gives this as an upper bound. With more frequencies than columns, h a multiple of
    d, replace h by d in the formula (but keep m).

    Parameters
    ----------
    n_components : int
        Number m of features.
    kernel : {"gaussian", "laplace", "matern"}
        The kernel, with the Euclidean norm: the law for ``norm="l1"`` is not rotation invariant.
    kernel_params : dict or None
        ``{"nu": 2.5}`` for "matern" (default 1.5).
    lengthscale : float > 0 or "scale"
        ℓ, as in :class:`RandomFourierFeatures`.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
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
    `transform` costs the same as with independent frequencies. `fit` orthogonalizes them in O(d m min(d, m)) operations
    at the speed of matrix products, which takes as long as the `transform` of a few times min(d, m/2) rows. The
    variance falls most for close pairs (t < 2) and m ≥ 2d, and not at all for a single column (d = 1). It falls less
    for heavy-tailed laws, where most of the variance comes from the independent lengths.

    References
    ----------
    .. [1] Yu, Suresh, Choromanski, Holtmann-Rice, Kumar, "Orthogonal Random Features", NeurIPS 2016,
       arXiv:1610.09072, Theorem 1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import OrthogonalFourierFeatures, RandomFourierFeatures
    >>> X = np.random.default_rng(0).standard_normal((200, 32))
    >>> kinds = OrthogonalFourierFeatures, RandomFourierFeatures
    >>> orthogonal, independent = (k(n_components=256, random_state=0).fit(X).estimate_error(X) for k in kinds)
    >>> bool(orthogonal < independent)
    True
    """

    _rotated = True

    @staticmethod
    def _normals(seed: np.random.SeedSequence, size: int, n_features: int) -> np.ndarray:
        rows = orthonormal_rows(keyed(seed, "fourier", "block"), n_features, size)
        rows *= np.sqrt(generator(seed, "fourier", "norms").chisquare(n_features, (size, 1)))
        return rows
