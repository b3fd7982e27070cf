"""Ridge regression on D draws of features side by side, from the Gram matrix of their rows or of their columns.

With Z = [Z_1 … Z_D] (n×M) the kernel is K = ZZᵀ/D, a mean over draws. For weights a of the rows, or w = Zᵀa of the
features,

    (ZZᵀ + Dα) a + 1b = Y,  1ᵀa = 0,        or        (ZᵀZ + Dα) w + Zᵀ1 b = ZᵀY,  1ᵀZw + nb = 1ᵀY,

and predictions Zw + b are those of a kernel K with penalty α and a constant b without penalty, wherever the features
are centred; without a constant b = 0 and the second equations are dropped. So parts of the rows need no centring of
their own, and that features were rounded after they were centred does no harm.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._precision import exact_products
from ntkit.kernels.chain import recursion
from ntkit.models._solve import solve_lower

_EPS = float(np.finfo(np.float64).eps)
_PANEL_BYTES = 2**30
_TERMS = 2048  # that tensor cores add up, in float32 and rounding down; a matrix of more had errors of 1e-5
_FEW = 256  # rows below which smaller products are not worth it
_ALIGNED = 64  # numbers of rows that products on tensor cores are fast for


class Weights(NamedTuple):
    """Weights of rows or of features, (n, k) or (M, k), and constants (k,)."""

    values: Array
    constant: Array


class Part(Protocol):
    """The problem on some of the rows."""

    def solve(self, alpha: float) -> Weights | None:
        """The model of one α; None if rounding has made the matrix indefinite."""


class Dual:
    """ZZᵀ, n×n, added up draw by draw in `dtype`."""

    def __init__(self, dtype: str):
        self.dtype, self.n_draws, self.complete = dtype, 0, False
        self.gram: Array = None

    @property
    def like(self) -> Array:
        """An array in the library and on the device in which all is computed."""
        return self.gram

    def add(self, Z: Array) -> None:
        """Add the features of a draw; until :meth:`finish` the lower triangle is all there is."""
        n, self.complete = int(Z.shape[0]), False
        if self.gram is None:
            self.gram = zeros((n, n), self.dtype, Z)
        Z = _to_multiply(Z)
        for rows in panels(n):
            add_product(self.gram[rows, : rows.stop], Z[rows], Z[: rows.stop])
        self.n_draws += 1

    def finish(self) -> None:
        """Copy the lower triangle to the upper one."""
        for rows in panels(len(self.gram)):
            self.gram[: rows.start, rows] = self.gram[rows, : rows.start].T
            block = self.gram[rows, rows]
            xp: Any = _array.namespace(block)
            block[...] = xp.tril(block) + xp.tril(block, k=-1).T
        self.complete = True

    def mean_diagonal(self) -> float:
        """Mean of the diagonal of K."""
        return float(_diagonal(self.gram).sum()) / len(self.gram) / self.n_draws

    def kernel(self) -> Array:
        """K."""
        return self.gram / self.n_draws

    def with_layers(self, n_layers: int, *, center: bool) -> tuple[Dual, Array]:
        """The kernel with ReLU layers on top, as of one draw, and the means of its columns before it was centred."""
        xp: Any = _array.namespace(self.gram)
        n = len(self.gram)
        top = Dual("float64")
        top.gram, top.n_draws, top.complete = zeros((n, n), "float64", self.gram), 1, True
        squares = xp.astype(_diagonal(self.gram), xp.float64) / self.n_draws
        for rows in panels(n):
            K = xp.astype(self.gram[rows], xp.float64) / self.n_draws
            top.gram[rows] = with_relu_layers(K, squares[rows], squares, n_layers)
        means = xp.mean(top.gram, axis=0)
        if center:
            top.gram -= means[None, :]
            top.gram -= (means - xp.mean(means))[:, None]
        return top, means

    def part(self, Y: Array, rows: Array, *, intercept: bool) -> Part:
        """The problem on some rows, of which Y are the targets."""
        return _DualPart(self, Y, rows, intercept)

    def predict(self, weights: Weights, rows: Array, new: Array) -> Array:
        """Predictions for the rows `new`, from weights of `rows`."""
        xp: Any = _array.namespace(self.gram)
        cross = xp.astype(self.gram[new][:, rows], xp.float64)
        return xp.matmul(cross, weights.values) + weights.constant


class _DualPart:
    def __init__(self, problem: Dual, Y: Array, rows: Array, intercept: bool):
        self.problem, self.Y, self.rows, self.intercept = problem, Y, rows, intercept

    def solve(self, alpha: float) -> Weights | None:
        """See :class:`Part`."""
        gram, rows, Y = self.problem.gram, self.rows, self.Y
        xp: Any = _array.namespace(gram)
        A = zeros((len(rows), len(rows)), "float64", gram)
        for some in panels(len(rows)):
            A[some] = gram[rows[some]][:, rows]
        factor = factorize(A, self.problem.n_draws * alpha)
        if factor is None:
            return None
        if not self.intercept:
            return Weights(_solve(factor, Y), xp.zeros_like(Y[0]))
        mean = xp.mean(Y, axis=0)
        solved = _solve(factor, xp.concat([Y - mean, xp.ones_like(Y[:, :1])], axis=1))
        u, v = solved[:, :-1], solved[:, -1:]
        constant = xp.sum(u, axis=0) / xp.sum(v)
        return Weights(u - v * constant, mean + constant)


class Primal:
    """Z itself, draw by draw: ZᵀZ, M×M, is the smaller matrix if there are more rows than features."""

    def __init__(self) -> None:
        self.draws: list[Array] = []
        self.complete = False

    @property
    def like(self) -> Array:
        """An array in the library and on the device in which all is computed."""
        return self.draws[0]

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.draws)

    def add(self, Z: Array) -> None:
        """Add the features of a draw."""
        self.draws.append(Z)
        self.complete = False

    def finish(self) -> None:
        """Note that all draws are there."""
        self.complete = True

    def mean_diagonal(self) -> float:
        """Mean of the diagonal of K."""
        n = len(self.draws[0])
        squares = 0.0
        for Z in self.draws:
            xp: Any = _array.namespace(Z)
            for rows in panels(n):
                squares += float(xp.sum(xp.astype(Z[rows], xp.float64) ** 2))
        return squares / n / self.n_draws

    def kernel(self) -> Array:
        """K."""
        return self.to_dual("float64").kernel()

    def to_dual(self, dtype: str) -> Dual:
        """The same as a Gram matrix of rows."""
        dual = Dual(dtype)
        for Z in self.draws:
            dual.add(Z)
        dual.finish()
        return dual

    def part(self, Y: Array, rows: Array, *, intercept: bool) -> Part:
        """The problem on some rows, of which Y are the targets."""
        return _PrimalPart(self, Y, rows, intercept)

    def predict(self, weights: Weights, rows: Array, new: Array) -> Array:  # noqa: ARG002
        """Predictions for the rows `new`."""
        xp: Any = _array.namespace(weights.values)
        return xp.matmul(xp.astype(self.take(new), xp.float64), weights.values) + weights.constant

    def take(self, rows: Array) -> Array:
        """Some rows of Z."""
        return _array.namespace(*self.draws).concat([Z[rows] for Z in self.draws], axis=1)


class _PrimalPart:
    def __init__(self, problem: Primal, Y: Array, rows: Array, intercept: bool):
        self.n_draws, self.intercept, self.n_rows = problem.n_draws, intercept, len(rows)
        xp: Any = _array.namespace(Y)
        m = sum(int(Z.shape[1]) for Z in problem.draws)
        self.y_mean = xp.mean(Y, axis=0) if intercept else xp.zeros_like(Y[0])
        Y = Y - self.y_mean
        self.gram = zeros((m, m), "float64", Y)
        # Z with a column of ones, times the targets and that column.
        self.right = zeros((m, Y.shape[1] + 1), "float64", Y)
        self.y_sum = xp.sum(Y, axis=0)
        for some in panels(len(rows), m):
            Z = _to_multiply(problem.take(rows[some]))
            add_product(self.gram, Z.T, Z.T)
            ones = xp.ones_like(Y[some][:, :1])
            self.right += xp.matmul(xp.astype(Z, xp.float64).T, xp.concat([Y[some], ones], axis=1))

    def solve(self, alpha: float) -> Weights | None:
        """See :class:`Part`."""
        xp: Any = _array.namespace(self.gram)
        factor = factorize(xp.asarray(self.gram, copy=True), self.n_draws * alpha)
        if factor is None:
            return None
        solved = _solve(factor, self.right)
        u, v, column = solved[:, :-1], solved[:, -1:], self.right[:, -1]
        if not self.intercept:
            return Weights(u, self.y_mean)
        rest = float(self.n_rows - xp.sum(column * v[:, 0]))
        constant = (self.y_sum - xp.matmul(column, u)) / max(rest, _EPS * self.n_rows)
        return Weights(u - v * constant, self.y_mean + constant)


def with_relu_layers(K: Array, x_squares: Array, y_squares: Array, n_layers: int) -> Array:
    """κ₁ of cosines, n times: the exact kernel of n fully connected ReLU layers on features of norm 1.

    K may be of centred features, of which the squared norms are given: ‖x − y‖² = 2 − 2 cos is the same.
    """
    xp: Any = _array.namespace(K)
    half = xp.clip(0.5 * (x_squares[:, None] + y_squares[None, :]) - K, 0, 2)  # 1 − cos
    gap = xp.where(half > 1, 2 - half, half)
    none = np.zeros(n_layers + 1)
    return recursion(1 - half, gap, none[1:], none)[0]


def least_alpha(mean_diagonal: float, n_rows: int) -> float:
    """The smallest α that is told from rounding errors in float64."""
    return _EPS * n_rows * (mean_diagonal or 1.0)


def zeros(shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Zeros in the library and on the device of `like`."""
    xp: Any = _array.namespace(like)
    return xp.zeros(shape, dtype=getattr(xp, dtype), device=_array.device(like))


def panels(n: int, width: int | None = None) -> list[slice]:
    """Slices of n rows: an eighth, so that half of a symmetric product is left out, or about 1 GiB as float64."""
    step = min(max(-(-n // 8), _FEW), max(_PANEL_BYTES // (8 * (width or n)), _FEW))
    step += -step % _ALIGNED
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def add_product(total: Array, A: Array, B: Array) -> None:
    """Add ABᵀ to a matrix, multiplied out in the precision of A and B, 16-bit numbers with sums in float32."""
    if not _array.is_torch(A):
        with np.errstate(over="ignore", invalid="ignore"):  # the diagonal will tell
            total += A @ B.T
        return
    import torch

    A, B = _to_multiply(A), _to_multiply(B)
    with exact_products():
        if A.dtype.itemsize >= 4:
            total += A @ B.T
            return
        for start in range(0, A.shape[1], _TERMS):
            part = slice(start, start + _TERMS)
            total += torch.mm(A[:, part], B[:, part].T, out_dtype=torch.float32)


def factorize(A: Array, shift: float) -> Array | None:
    """L with LLᵀ = A + shift in the place of A, of which the lower triangle is read; None if that is indefinite."""
    _diagonal(A)[...] += shift
    if _array.is_torch(A):
        import torch

        # The lower triangle is the upper one in the order that LAPACK and cuSOLVER work in: no copy is made.
        turned, info = A.mT, torch.empty((), dtype=torch.int32, device=A.device)
        torch.linalg.cholesky_ex(turned, upper=True, out=(turned, info))
        return None if int(info) else A
    from scipy.linalg import lapack

    _, info = lapack.dpotrf(A.T, lower=False, clean=False, overwrite_a=True)
    return None if info else A


def _to_multiply(Z: Array) -> Array:
    """Features in a dtype that can be multiplied with sums in float32: 16 bits only on CUDA, by torch ≥ 2.8."""
    if not _array.is_torch(Z) or Z.dtype.itemsize >= 4:
        return Z
    import torch

    return Z if Z.device.type == "cuda" and torch.__version__ >= (2, 8) else Z.to(torch.float32)


def _solve(factor: Array, right: Array) -> Array:
    return solve_lower(factor, solve_lower(factor, right), transposed=True)


def _diagonal(A: Array) -> Array:
    """A view of the diagonal."""
    return A.diagonal() if _array.is_torch(A) else A.reshape(-1)[:: A.shape[1] + 1]
