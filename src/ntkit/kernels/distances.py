"""Gaussian, Laplace and Matérn kernels: functions of the distance between two rows.

All have the form φ(a), where a is the distance times a scale s (1/ℓ, for Matérn √(2ν)/ℓ). There are two formulas:

    differences     a² = Σ (s x_i − s y_i)²             accurate to the last digits, but O(d) operations without BLAS;
    inner products  a² = ‖x‖² + ‖y‖² − 2⟨x, y⟩          one matrix product, with an error of a few ε (‖x‖² + ‖y‖²).

Rows with few columns and the ℓ1 norm use the first formula. Otherwise rows are shifted by one point among them, the
second formula is used, and entries that are not accurate enough for φ (see :func:`inaccurate`) are recomputed by the
first. Such entries are distances within a cluster that is far from the other rows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import run_on_threads
from ntkit._validation import check_choice, check_real, message
from ntkit.kernels._profiles import ABSOLUTE, EXPONENTIAL, GAUSSIAN, MATERN_3_2, MATERN_5_2, Profile
from ntkit.kernels.spec import KernelSpec
from ntkit.kernels.tiles import Rows, assign, inner_products, on_host

if TYPE_CHECKING:
    from ntkit.kernels.zonal import Zonal

__all__ = ["gaussian", "laplace", "matern"]

FEW_COLUMNS = 24
"""Up to this number of columns, differences are no slower than BLAS. Measured per pair on tiles of 512 × 512, on one
core with AVX-512: 2.2 ns (differences) and 2.5 ns (BLAS) for 24 columns, 2.6 ns and 2.4 ns for 28."""
LOST = 2.0**12
"""Allowed rounding error of a kernel value, in units of ε: 2¹² ε = 9e-13 in float64. In trials, errors stayed below
half of this value, since the estimates are upper bounds. With a smaller value, pairs of rows that are only ten or
twenty length scales from the origin would be computed twice."""
_ORIGIN_ROWS = 7  # the origin is the median of at least this many rows (if available), so that one outlier is harmless
_SUM_ROWS = 128  # rows per task of weighted sums
SLICE = 2**20  # numbers in a slice of differences (8 MiB)


def gaussian(X: Any, Y: Any = None, *, lengthscale: float = 1.0) -> Array:
    """Compute the Gaussian (RBF) kernel exp(−‖x − y‖² / (2 ℓ²)).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    lengthscale : float > 0, default=1.0
        ℓ; scikit-learn's ``gamma`` is 1/(2 ℓ²).

    Returns
    -------
    array of shape (n, m)
        Same library, device and dtype as `X`; computed in float64 with a relative error of at most about 1e-12, even
        for rows that are close to each other and far from all others. (Values below e^{−100} have fewer correct digits,
        and values below 1e-307 may be zero.)

    Notes
    -----
    O(nmd) time, as one matrix product. Pairs for which ‖x‖² + ‖y‖² − 2⟨x, y⟩ loses digits are recomputed from x − y.

    Examples
    --------
    >>> gaussian([[0.0, 0.0]], [[3.0, 4.0]], lengthscale=5.0)
    array([[0.60653066]])
    """
    return Gaussian(lengthscale).matrix(X, Y)


def laplace(X: Any, Y: Any = None, *, lengthscale: float = 1.0, norm: str = "l2") -> Array:
    """Compute the Laplace (exponential) kernel exp(−‖x − y‖ / ℓ).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    lengthscale : float > 0, default=1.0
        ℓ.
    norm : {"l2", "l1"}, default="l2"
        "l2" is the Euclidean norm. "l1" is Σ|x_i − y_i|; the kernel is then a product of kernels of single columns and
        equals scikit-learn's ``laplacian_kernel`` with ``gamma`` = 1/ℓ.

    Returns
    -------
    array of shape (n, m)
        Same library, device and dtype as `X`; computed in float64 with a relative error of at most about 1e-12.

    Notes
    -----
    O(nmd) time. For "l2" most of it is a matrix product; "l1" takes about twice as long for 200 columns. CSR rows take
    O(nnz(x) + nnz(y)) per pair for "l1".

    The functions f = Σ c_j k(·, y_j) have cusps at the y_j and suit targets that are not smooth. On the sphere, the
    Laplace kernel and the neural tangent kernel have the same RKHS [1]_.

    References
    ----------
    .. [1] Chen, Xu, "Deep Neural Tangent Kernel and Laplace Kernel Have the Same RKHS", ICLR 2021, arXiv:2009.10683.

    Examples
    --------
    >>> laplace([[0.0, 0.0]], [[3.0, 4.0]], lengthscale=5.0)
    array([[0.36787944]])
    >>> laplace([[0.0, 0.0]], [[3.0, 4.0]], lengthscale=7.0, norm="l1")
    array([[0.36787944]])
    """
    return Laplace(lengthscale, norm).matrix(X, Y)


def matern(X: Any, Y: Any = None, *, lengthscale: float = 1.0, nu: float = 1.5) -> Array:
    """Compute the Matérn kernel of smoothness ν.

    With a = √(2ν) ‖x − y‖ / ℓ it is

        ν = 1/2   e^{−a}, the Laplace kernel
        ν = 3/2   (1 + a) e^{−a}
        ν = 5/2   (1 + a + a²/3) e^{−a}

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    lengthscale : float > 0, default=1.0
        ℓ, as in scikit-learn's ``Matern``.
    nu : {0.5, 1.5, 2.5}, default=1.5
        ν. Functions f = Σ c_j k(·, y_j) have ν − 1/2 continuous derivatives; the Gaussian kernel is the limit ν → ∞.

    Returns
    -------
    array of shape (n, m)
        Same library, device and dtype as `X`; computed in float64 with a relative error of at most about 1e-12.

    References
    ----------
    .. [1] Rasmussen, Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, Eqs. (4.14) and (4.17).

    Examples
    --------
    >>> matern([[0.0]], [[0.0], [1.0], [10.0]], nu=2.5)
    array([[1.00000000e+00, 5.23994109e-01, 3.69569622e-08]])
    """
    return Matern(lengthscale, nu).matrix(X, Y)


@dataclass(frozen=True)
class DistanceKernel(KernelSpec):
    """Kernel φ(a) of the scaled distance a between two rows."""

    lengthscale: float = 1.0
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_real(self.lengthscale, "lengthscale", self.owner, minimum=0, strict=True)

    @property
    @abstractmethod
    def scale(self) -> float:
        """Factor s in a = s · distance."""

    @property
    @abstractmethod
    def function(self) -> Profile:
        """The profile φ."""

    @property
    def absolute(self) -> bool:
        """Whether distances are ℓ1 distances."""
        return self.function is ABSOLUTE

    def profile(self, a: Array) -> Array:
        """Return φ(a)."""
        return self.function.value(a)

    def slope(self, a: Array) -> Array:
        """Return −φ′(a)/a, with 0 instead of infinity at a = 0."""
        return self.function.slope(a)

    def on_sphere(self, t: Any) -> np.ndarray:
        """Return k(x, y) for unit rows with cosine t, where ‖x − y‖² = 2 − 2t."""
        if self.absolute:
            rule = "'l2' on the sphere: an ℓ1 distance is not a function of the cosine"
            raise ValueError(message(self.owner, "norm", rule, "l1"))
        return self.profile(self.scale * np.sqrt(np.clip(2 - 2 * np.asarray(t, dtype=np.float64), 0, None)))

    def prepare(self, X: Array) -> Rows:
        """Sort the columns of sparse rows and remove duplicates, as compiled code requires."""
        return Rows(_array.without_duplicates(X) if _array.is_sparse(X) else X)

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Compute scaled distances, then φ."""
        if on_host(a.data):
            from ntkit.kernels import _distances_numba

            out = outs[0]
            tile = np.empty(out.shape) if out.dtype == np.float16 else out  # numba does not support half precision
            _distances_numba.apply_profile(self._host_tile(a.data, b.data), self.function.code, tile)
            if tile is not out:
                assign(out, tile)
        elif _array.is_traced(a.data) and not self.absolute:
            squares = self._traced_squares(_array.widen(a.data), _array.widen(b.data))
            assign(outs[0], self.function.of_square(squares))
        elif _array.has_triton(a.data) and not _array.wants_gradient([a.data, b.data]):
            self._fill_triton(_array.widen(a.data), _array.widen(b.data), outs[0])
        else:
            assign(outs[0], self.profile(self.distances(_array.widen(a.data), _array.widen(b.data))))

    def weighted_sums(self, X: np.ndarray, Y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Compute Σ_j w_jk k(x_i, y_j) for dense NumPy rows in float32, with a relative error of about 1e-6 per term.

        This is for predictions on many rows: the kernel matrix is never in memory.

        Parameters
        ----------
        X : ndarray of shape (n, d)
        Y : ndarray of shape (m, d)
        weights : ndarray of shape (m, k)

        Returns
        -------
        ndarray of shape (n, k), float64
        """
        from ntkit.kernels import _distances_numba as compiled

        origin = origin_of(Y)
        x, y = (((Z - origin) * self.scale).astype(np.float32) for Z in (X, Y))
        yt, W = np.ascontiguousarray(y.T), np.ascontiguousarray(weights.T, dtype=np.float32)
        out = np.empty((len(X), len(W)))

        def fill(start: int) -> None:
            rows = slice(start, start + _SUM_ROWS)
            compiled.weighted_sums(x[rows], yt, self.function.code, W, out[rows])

        run_on_threads(fill, range(0, len(X), _SUM_ROWS))
        return out

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Return ones, since k(x, x) = φ(0) = 1."""
        if on_host(a.data):
            return (np.ones(len(a)),)
        return (_array.namespace(a.data).ones(len(a), dtype=_array.wide_dtype(a.data), device=_array.device(a.data)),)

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """Compute the gradients for a block of rows; see :meth:`KernelSpec.gradient`."""
        from ntkit.kernels._distance_gradients import gradient_l1, gradient_l2

        with np.errstate(over="ignore", invalid="ignore"):  # rows that overflow are recomputed
            return (gradient_l1 if self.absolute else gradient_l2)(self, _array.widen(X), _array.widen(Y), C)

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`."""
        if self.absolute:
            return super().taylor(degree)
        # a² = 2s²(1 − t), so aa′ = −s², and the derivatives of (1 + a)e^{−a} and (1 + a + a²/3)e^{−a} with respect to t
        # are s² e^{−a} and s²/3 (1 + a)e^{−a}: no term is negative.
        at_zero = self.on_sphere(np.zeros(1))[0]
        exponential = _exponential_taylor(self.scale, degree)
        if self.function is EXPONENTIAL:
            return exponential
        square, a = self.scale**2, self.scale * math.sqrt(2)
        if self.function is MATERN_3_2:
            return _integrated(square * exponential, at_zero)
        return _integrated(square / 3 * _integrated(square * exponential, (1 + a) * math.exp(-a)), at_zero)

    def bytes_per_row(self, a: Rows) -> int:
        """Return the size of float64 copies of a row, centred and scaled."""
        return 24 * int(a.data.shape[1]) if not _array.is_sparse(a.data) else super().bytes_per_row(a)

    def distances(self, x: Array, y: Array, *, differences: bool = False) -> Array:
        """Compute the scaled distances a of all pairs of dense float64 rows, accurate enough for φ(a).

        With `differences`, they are accurate to the last digits; this is slower for many columns.
        """
        if _array.is_numpy(x):
            tile = self._host_tile(x, y, differences=differences)
            return tile if self.absolute else np.sqrt(tile, out=tile)
        if differences or self._by_differences(x):
            return _by_columns(x, y, self.scale, absolute=self.absolute)
        x0, y0, x_squares, y_squares = self._centred(x, y)
        totals = x_squares[:, None] + y_squares[None, :]
        squares = totals - 2 * inner_products(x0, y0)
        self._correct(squares, totals, x, y)
        return _array.sqrt(squares)

    def _by_differences(self, x: Array) -> bool:
        return self.absolute or x.shape[1] <= FEW_COLUMNS

    def _centred(self, x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
        """Shift the rows by one point among them and scale them; return them and their squared norms."""
        xp = _array.namespace(x)
        origin = origin_of(y)
        x, y = (x - origin) * self.scale, (y - origin) * self.scale
        return x, y, xp.sum(x * x, axis=1), xp.sum(y * y, axis=1)

    def _traced_squares(self, x: Array, y: Array) -> Array:
        """Compute a² between traced and constant rows by one matrix product: (x, ‖x‖², 1)·(−2y, 1, ‖y‖²)."""
        xp = _array.namespace(x)
        x, y, x_squares, y_squares = self._centred(x, y)
        left = xp.concat([x, x_squares[:, None], xp.ones_like(x_squares)[:, None]], axis=1)
        right = xp.concat([-2 * y, xp.ones_like(y_squares)[:, None], y_squares[:, None]], axis=1)
        return xp.clip(xp.matmul(left, xp.matrix_transpose(right)), 0, None)

    def _correct(self, squares: Array, totals: Array, x: Array, y: Array) -> None:
        """Recompute inaccurate squared distances from differences, in slices that bound the memory."""
        xp = _array.namespace(x)
        i, j = xp.nonzero(inaccurate(squares, totals, x.shape[1], self.function))
        step = max(1, SLICE // x.shape[1])
        for start in range(0, i.shape[0], step):
            part = slice(start, min(start + step, i.shape[0]))
            difference = (xp.take(x, i[part], axis=0) - xp.take(y, j[part], axis=0)) * self.scale
            _array.scatter(squares, i[part], j[part], xp.sum(difference * difference, axis=1))

    def _host_tile(self, X: Any, Y: Any, *, differences: bool = False) -> np.ndarray:
        """Compute a² (a for the ℓ1 norm) of all pairs of NumPy or CSR rows."""
        from ntkit.kernels import _distances_numba as compiled

        if _array.is_sparse(X):
            return self._sparse_tile(X.astype(np.float64), Y.astype(np.float64))
        X, Y = _array.widen(X), _array.widen(Y)
        if differences or self._by_differences(X):
            tile = np.empty((len(X), len(Y)))
            compiled.differences(_padded_columns(X), _padded_columns(Y), self.scale, self.absolute, tile)
            return tile
        with np.errstate(over="ignore", invalid="ignore"):  # squares that overflow are recomputed
            x, y, x_squares, y_squares = self._centred(X, Y)
            tile = inner_products(x, y)
        if compiled.squares(tile, x_squares, y_squares, *_limits(X.shape[1], self.function)):
            compiled.recompute(tile, X, Y, self.scale)
        return tile

    def _sparse_tile(self, X: Any, Y: Any) -> np.ndarray:
        from ntkit.kernels import _distances_numba as compiled

        if self.absolute:
            tile, count = np.full((X.shape[0], Y.shape[0]), compiled.INACCURATE), 1
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                x, y = X * self.scale, Y * self.scale
                x_squares, y_squares = (np.asarray(Z.multiply(Z).sum(axis=1)).ravel() for Z in (x, y))
                tile = inner_products(x, y)
            count = compiled.squares(tile, x_squares, y_squares, *_limits(X.shape[1], self.function))
        if count:
            parts = (part for Z in (X, Y) for part in (Z.data, Z.indices, Z.indptr))
            compiled.recompute_sparse(tile, *parts, self.scale, self.absolute)
        return tile

    def _fill_triton(self, x: Array, y: Array, out: Array) -> None:
        from ntkit.kernels import _distances_triton

        if self._by_differences(x):
            _distances_triton.from_differences(x, y, self.scale, self.function.code, out)
            return
        x0, y0, x_squares, y_squares = self._centred(x, y)
        limits = _limits(x.shape[1], self.function)
        products = inner_products(x0, y0)
        _distances_triton.from_products(
            products, x, y, x_squares, y_squares, self.scale, limits, self.function.code, out
        )


@KernelSpec.register("gaussian")
@dataclass(frozen=True)
class Gaussian(DistanceKernel):
    """Parameters of :func:`gaussian`."""

    owner: ClassVar[str] = "gaussian"

    @property
    def scale(self) -> float:
        """1/ℓ."""
        return 1 / self.lengthscale

    @property
    def function(self) -> Profile:
        """exp(−a²/2)."""
        return GAUSSIAN

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`."""
        from ntkit.kernels.zonal import Series

        return Series(self.lengthscale, damped=True)

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`."""
        return self.zonal.taylor(degree)


@KernelSpec.register("laplace")
@dataclass(frozen=True)
class Laplace(DistanceKernel):
    """Parameters of :func:`laplace`."""

    norm: str = "l2"
    owner: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.norm, "norm", self.owner, ("l2", "l1"))

    @property
    def scale(self) -> float:
        """1/ℓ."""
        return 1 / self.lengthscale

    @property
    def function(self) -> Profile:
        """e^{−a}."""
        return ABSOLUTE if self.norm == "l1" else EXPONENTIAL


@KernelSpec.register("matern")
@dataclass(frozen=True)
class Matern(DistanceKernel):
    """Parameters of :func:`matern`."""

    nu: float = 1.5
    owner: ClassVar[str] = "matern"

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_real(self.nu, "nu", self.owner) not in _BY_NU:
            remedy = "For a smoother kernel, use gaussian, which is the limit of large nu."
            raise ValueError(message(self.owner, "nu", "0.5, 1.5 or 2.5", self.nu, remedy))

    @property
    def scale(self) -> float:
        """√(2ν)/ℓ."""
        return math.sqrt(2 * self.nu) / self.lengthscale

    @property
    def function(self) -> Profile:
        """e^{−a} times 1, 1 + a or 1 + a + a²/3."""
        return _BY_NU[self.nu]


_BY_NU = {0.5: EXPONENTIAL, 1.5: MATERN_3_2, 2.5: MATERN_5_2}


def _exponential_taylor(scale: float, degree: int) -> np.ndarray:
    """Return the Taylor coefficients e_n of e^{−a}, where a = s√(2 − 2t) has the coefficients a_k.

    n e_n = −Σ_k k a_k e_{n−k}, where a_k < 0 for k > 0.
    """
    k = np.arange(1, degree + 1)
    a = scale * math.sqrt(2) * np.cumprod(np.append(1.0, (k - 1.5) / k))
    values = np.zeros(degree + 1)
    values[0] = math.exp(-a[0])
    for n in range(1, degree + 1):
        values[n] = -(k[:n] * a[1 : n + 1]) @ values[n - 1 :: -1][:n] / n
    return values


def _integrated(coefficients: np.ndarray, at_zero: float) -> np.ndarray:
    """Return the Taylor coefficients of the integral of a series, given the value of the integral at 0."""
    return np.append(at_zero, coefficients[:-1] / np.arange(1, len(coefficients)))


def rounding(n_terms: int) -> float:
    """Estimate the error of ‖x‖² + ‖y‖² − 2⟨x, y⟩ in units of ε (‖x‖² + ‖y‖²).

    If rounding errors are independent, the relative error of a sum of d terms is about √d ε/2, and less with several
    accumulators, as in BLAS. The term 4 accounts for the rounding of centred and scaled rows and for the final sums.
    """
    return 4 + math.sqrt(n_terms)


def inaccurate(squares: Array, totals: Array, n_features: int, function: Profile) -> Array:
    """Return a mask of the squared distances that are not accurate enough for the kernel.

    `totals` are the sums ‖x‖² + ‖y‖² from which the squares were computed. With the error
    δ = ``rounding(n_features)`` · ε · totals and the margin (α, β) of φ, a square is inaccurate if

        δ/(α + βa) > LOST · ε      (the left-hand side bounds the relative error of φ(a)), or
        a² ≤ δ                     (equal rows may have a distance other than 0),

    unless φ(a) is zero anyway. Squares that have overflowed are inaccurate, too.
    """
    xp = _array.namespace(squares)
    epsilon = float(xp.finfo(squares.dtype).eps)
    per_total, alpha, beta, reach = _limits(n_features, function)
    errors = per_total * totals
    close = ~(squares - epsilon * errors > reach)
    lost = ~(errors <= alpha + beta * xp.sqrt(xp.clip(squares, 0, None)))
    return close & (lost | (squares <= epsilon * errors))


def _limits(n_features: int, function: Profile) -> tuple[float, float, float, float]:
    """Return the numbers used by :func:`inaccurate`: rounding, LOST · α, LOST · β and the reach of φ."""
    alpha, beta = function.margin
    return rounding(n_features), LOST * alpha, LOST * beta, function.reach


def origin_of(rows: Array) -> Array:
    """Return the median of a few rows, column by column."""
    some = rows[:: max(1, rows.shape[0] // _ORIGIN_ROWS), :]
    return _array.namespace(rows).sort(some, axis=0)[some.shape[0] // 2, :][None, :]


def _padded_columns(X: np.ndarray) -> np.ndarray:
    """Return the transpose of X, padded with rows of zeros to a multiple of 4 rows."""
    columns = np.zeros((-(-X.shape[1] // 4) * 4, len(X)))
    columns[: X.shape[1]] = X.T
    return columns


def _by_columns(x: Array, y: Array, scale: float, *, absolute: bool) -> Array:
    """Compute scaled distances, one column of the data at a time."""
    xp = _array.namespace(x)
    total = xp.zeros((x.shape[0], y.shape[0]), dtype=x.dtype, device=_array.device(x))
    for i in range(x.shape[1]):
        difference = (x[:, i][:, None] - y[:, i][None, :]) * scale
        total += xp.abs(difference) if absolute else difference * difference
    return total if absolute else _array.sqrt(total)
