"""Ridge regression from its statistics: the path over α, and what each α would predict for rows it has not seen.

Primal, with Gram matrix A = G (m×m) and right-hand sides R = C; dual, on n ≤ m rows, A = Z̃Z̃ᵀ (n×n) and R = Ỹ, where
rows are centred and multiplied by √w. For every α the weights are (A + α)⁻¹R, or Z̃ᵀ(A + α)⁻¹R. The residuals of a set S
of training rows, had the model been fitted without them, follow from the same factorization: with H the hat matrix,

    e_{−S} = (I − H_SS)⁻¹ e_S,     I − H_SS = I − √w√wᵀ/W − Z̃_S (A + α)⁻¹ Z̃_Sᵀ = α [(A + α)⁻¹]_SS − √w√wᵀ/W,

the first form primal, the second dual; √w√wᵀ/W belongs to the intercept. S is one row at a time (leave-one-out: the
diagonal suffices) or the whole sample (held out). In the dual e_S = α [(A + α)⁻¹R]_S, so that α cancels; and since
A√w = 0 for centred rows, adding τ √w√wᵀ/W to A changes no solution, but replaces the difference of two large terms by
[(A + α)⁻¹]_SS − √w√wᵀ/(W(τ + α)), which keeps its digits for small α.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.models._checks import to_library
from ntkit.models._statistics import Statistics, add_outer

Loss: TypeAlias = Callable[[Array, Array, Array], float]
_AS_GOOD = 0.001
_EPS = float(np.finfo(np.float64).eps)
_FEW = 1024  # up to this size an eigendecomposition takes well below a second
GRID = 10.0 ** np.arange(-7, 2.5, 0.5)
"""Default α, as multiples of the mean squared norm of the (centred) features."""


@dataclass
class Solution:
    """A ridge model: ``z @ coef + intercept``."""

    coef: Array
    intercept: Array
    alpha: float
    alphas: np.ndarray
    errors: np.ndarray
    """Mean loss on rows left out, for every α; NaN where it was not needed."""
    noise: Array
    """Variance of the targets about the model of largest evidence: (Σ w (y − ŷ)² + α‖β‖²)/W."""
    left_out: tuple[Array, Array, Array] | None
    """Targets, predictions without them, weights of the sample."""


class Factorization(Protocol):
    """Solves (A + α) X = R for several α, and gives quadratic forms Pᵀ(A + α)⁻¹P."""

    def at(self, alpha: float) -> tuple[Array, Array] | None:
        """X, and a matrix B with BᵀB = Pᵀ(A + α)⁻¹P; None if A + α is not positive definite to rounding."""


class Eigen:
    """One eigendecomposition for all α. Eigenvalues that are rounding errors are left out where α is no larger."""

    def __init__(self, A: Array, R: Array, P: Array):
        xp: Any = _array.namespace(A)
        self.values, vectors = xp.linalg.eigh(_symmetric(A))
        self.vectors = vectors
        self.R, self.P = xp.matmul(vectors.T, R), xp.matmul(vectors.T, P)
        # A has no negative eigenvalues but by rounding, so that the lowest tells how large rounding errors are.
        rounding = float(xp.finfo(A.dtype).eps) * A.shape[0] * float(xp.max(self.values))
        self.floor = max(-2 * float(xp.min(self.values)), rounding)

    def at(self, alpha: float) -> tuple[Array, Array]:
        """See :class:`Factorization`."""
        xp: Any = _array.namespace(self.values)
        shifted = xp.clip(self.values, 0.0, None) + alpha
        kept = (self.values > self.floor) | (alpha > self.floor)
        inverse = xp.where(kept & (shifted > 0), 1 / xp.where(shifted > 0, shifted, xp.ones_like(shifted)), 0.0)
        return xp.matmul(self.vectors, inverse[:, None] * self.R), xp.sqrt(inverse)[:, None] * self.P


class Cholesky:
    """A Cholesky factorization for each α: a twentieth of an eigendecomposition, on large matrices."""

    def __init__(self, A: Array, R: Array, P: Array):
        self.A, self.R, self.P = A, R, P

    def at(self, alpha: float) -> tuple[Array, Array] | None:
        """See :class:`Factorization`."""
        factor = lower_factor(self.A, alpha)
        if factor is None:
            return None
        X = solve_lower(factor, solve_lower(factor, self.R), transposed=True)
        return X, solve_lower(factor, self.P)


def lower_factor(A: Array, alpha: float) -> Array | None:
    """L with LLᵀ = A + α, of which the lower triangle is given; None if rounding has made it indefinite."""
    if _array.is_torch(A):
        import torch

        factor, info = torch.linalg.cholesky_ex(A + alpha * torch.eye(len(A), dtype=A.dtype, device=A.device))
        return None if int(info) else factor
    from scipy.linalg import lapack

    shifted = A.copy()
    shifted.flat[:: len(A) + 1] += alpha
    _, info = lapack.dpotrf(shifted.T, lower=False, clean=False, overwrite_a=True)  # in place: Fortran's upper
    return None if info else shifted


def solve_lower(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """L⁻¹B, or L⁻ᵀB."""
    if _array.is_torch(factor):
        import torch

        if transposed:
            return torch.linalg.solve_triangular(factor.T, right, upper=True)
        return torch.linalg.solve_triangular(factor, right, upper=False)
    from scipy.linalg import blas

    # B in Fortran order is solved in place.
    return blas.dtrsm(1.0, factor.T, np.array(right, order="F"), lower=False, trans_a=not transposed, overwrite_b=True)


class Primal:
    """The problem in as many unknowns as features."""

    def __init__(self, statistics: Statistics, n_left_out: int, *, intercept: bool, shift: float = 0.0):
        sample = statistics.sample
        self.total, self.intercept = statistics.weight, intercept
        self.A, self.R, self.y_square = statistics.gram, statistics.cross, statistics.y_square
        self.z_mean, self.y_mean = statistics.z_mean, statistics.y_mean - shift
        xp: Any = _array.namespace(self.A)
        if not intercept:
            self.A = xp.asarray(self.A, copy=True)
            add_outer(self.A, self.z_mean[:, None], [self.total])
            self.R = self.R + self.total * self.z_mean[:, None] * self.y_mean[None, :]
            self.y_square = self.y_square + self.total * self.y_mean**2
            self.z_mean, self.y_mean = xp.zeros_like(self.z_mean), xp.zeros_like(self.y_mean)
        self.trace = float(xp.sum(xp.linalg.diagonal(self.A)))
        self.least = 0.0
        if sample.Z is None:
            self.weight, self.P, self.Y = self.z_mean[:0], self.A[:, :0], self.R[:0, :]
            return
        self.weight = sample.weight[:n_left_out]
        root = xp.sqrt(self.weight)[:, None]
        self.P = ((xp.astype(sample.Z[:n_left_out], self.A.dtype) - self.z_mean) * root).T
        self.Y = (sample.Y[:n_left_out] - shift - self.y_mean) * root

    def coef(self, X: Array) -> Array:
        """Weights of the features."""
        return X

    def misfit(self, X: Array, alpha: float) -> Array:  # noqa: ARG002
        """Σ w (y − ŷ)² + α‖β‖² of each target."""
        return self.y_square - _array.namespace(X).sum(self.R * X, axis=0)

    def residual(self, X: Array) -> Array:
        """√w (y − ŷ) of the sample."""
        return self.Y - _array.namespace(X).matmul(self.P.T, X)

    def complement(self, form: Array, constant: Array, alpha: float, identity: Array | float) -> Array:  # noqa: ARG002
        """I − H, or its diagonal, from the quadratic form of P and √w√wᵀ/W, or their diagonals."""
        return identity - form - constant


class Dual:
    """The problem in as many unknowns as rows."""

    def __init__(
        self,
        rows: tuple[Array, Array, Array, np.ndarray],
        n_left_out: int,
        *,
        intercept: bool,
        shift: float = 0.0,
    ):
        Z, Y, weight, keys = rows
        Y = Y - shift
        xp: Any = _array.namespace(Z)
        Z = xp.astype(Z, xp.float64)
        self.intercept, self.total = intercept, float(xp.sum(weight))
        share = weight / (self.total or 1.0)
        self.z_mean, self.y_mean = xp.matmul(share, Z), xp.matmul(share, Y)
        if not intercept:
            self.z_mean, self.y_mean = xp.zeros_like(self.z_mean), xp.zeros_like(self.y_mean)
        root = xp.sqrt(weight)[:, None]
        self.Z, self.R = (Z - self.z_mean) * root, (Y - self.y_mean) * root
        self.A = xp.matmul(self.Z, self.Z.T)
        self.trace = float(xp.sum(xp.linalg.diagonal(self.A)))
        self.tau = self.trace / Z.shape[0] or 1.0
        self.least = 1e-9 * self.tau  # with smaller α nothing changes but rounding errors
        if intercept:
            self.A = self.A + (self.tau / (self.total or 1.0)) * root * root.T
        self.chosen = _index(np.argsort(keys, kind="stable")[:n_left_out], Z)
        self.P = xp.eye(Z.shape[0], dtype=xp.float64, device=_array.device(Z))[:, self.chosen]
        self.Y, self.weight = self.R[self.chosen], weight[self.chosen]

    def coef(self, X: Array) -> Array:
        """Weights of the features."""
        return _array.namespace(X).matmul(self.Z.T, X)

    def misfit(self, X: Array, alpha: float) -> Array:
        """Σ w (y − ŷ)² + α‖β‖² of each target."""
        return max(alpha, self.least) * _array.namespace(X).sum(self.R * X, axis=0)

    def residual(self, X: Array) -> Array:
        """√w (y − ŷ)/α of the sample."""
        return X[self.chosen]

    def complement(self, form: Array, constant: Array, alpha: float, identity: Array | float) -> Array:  # noqa: ARG002
        """(I − H)/α, or its diagonal, from the quadratic form of P and √w√wᵀ/W, or their diagonals."""
        return form - constant / (self.tau + alpha)


class Covariance:
    """1/W + z̃ᵀ(G + α)⁻¹z̃ for new rows."""

    def __init__(self, statistics: Statistics, alpha: float, *, intercept: bool):
        rows = statistics.finish().rows()
        problem = Primal(statistics, 0, intercept=intercept) if rows is None else Dual(rows, 0, intercept=intercept)
        self.z_mean, self.alpha = problem.z_mean, (alpha := max(alpha, problem.least))
        self.offset = 1 / problem.total if intercept else 0.0
        self.rows = problem.Z if isinstance(problem, Dual) else None
        self.factor = lower_factor(problem.A, alpha)
        jitter = np.finfo(np.float64).eps * (problem.trace or 1.0)
        while self.factor is None:
            jitter *= 10
            self.factor = lower_factor(problem.A, alpha + jitter)

    def spread(self, Z: Array) -> Array:
        """Of rows of features."""
        xp: Any = _array.namespace(Z)
        factor, z_mean = to_library(self.factor, Z), to_library(self.z_mean, Z)
        z = (xp.astype(Z, xp.float64) - z_mean).T
        if self.rows is None:
            return self.offset + xp.sum(solve_lower(factor, z) ** 2, axis=0)
        # zᵀ(Z̃ᵀZ̃ + α)⁻¹z = (zᵀz − kᵀ(Z̃Z̃ᵀ + α)⁻¹k) / α with k = Z̃z
        half = solve_lower(factor, xp.matmul(to_library(self.rows, Z), z))
        return self.offset + xp.clip(xp.sum(z**2, axis=0) - xp.sum(half**2, axis=0), 0.0, None) / self.alpha


def solve(
    statistics: Statistics,
    alphas: Any,
    *,
    intercept: bool,
    selection: str = "loo",
    solver: str = "auto",
    loss: Loss | None = None,
    shift: float = 0.0,
) -> Solution:
    """Solve for all α, or for as many as it takes to find the best, and return the model of the best.

    Parameters
    ----------
    statistics : Statistics
    alphas : array or None
        None: a grid relative to the mean squared norm of the features.
    intercept : bool
    selection : {"loo", "holdout"}
        How the error of each α is estimated.
    solver : {"auto", "eigen", "cholesky"}
    loss : callable or None
        From targets, predictions and weights of rows left out to the loss to choose α by; None: the mean squared error.
    shift : float
        Subtracted from all targets.
    """
    rows = statistics.finish().rows()
    problem: Primal | Dual
    n_left_out = statistics.sample.size
    if selection == "holdout":  # others must remain to predict from
        n_used = int(np.isfinite(statistics.sample.keys if rows is None else rows[3]).sum())
        n_left_out = min(n_left_out, max((n_used if n_used < n_left_out else statistics.count) // 5, 1))
    if rows is None:
        problem = Primal(statistics, n_left_out, intercept=intercept, shift=shift)
    else:
        problem = Dual(rows, n_left_out, intercept=intercept, shift=shift)
    mean_square = problem.trace / problem.total if problem.total else 0.0
    grid = GRID * (mean_square or 1.0) if alphas is None else np.sort(np.asarray(alphas, dtype=np.float64).ravel())
    eigen = solver == "eigen" or (solver == "auto" and problem.A.shape[0] <= _FEW and len(grid) > 1)
    search = _Search(problem, (Eigen if eigen else Cholesky)(problem.A, problem.R, problem.P), grid, selection, loss)
    best = search.whole_grid() if eigen else search.descend()
    if best is None:  # every α was lost in rounding
        search.factorization, search.errors[:] = Eigen(problem.A, problem.R, problem.P), np.nan
        best = search.whole_grid()
    return search.solution(best)


class _Search:
    """Errors of the α of a grid, computed when asked for."""

    def __init__(
        self,
        problem: Primal | Dual,
        factorization: Factorization,
        grid: np.ndarray,
        selection: str,
        loss: Loss | None,
    ):
        self.problem, self.factorization, self.grid = problem, factorization, grid
        self.selection, self.loss = selection, loss
        self.errors = np.full(len(grid), np.nan)
        self.results: dict[int, tuple[Array, Array | None]] = {}

    def error(self, number: int) -> float:
        """Error on rows left out for one α; infinity if it cannot be solved for or does not exist."""
        if not 0 <= number < len(self.grid):
            return np.inf
        if np.isnan(self.errors[number]):
            self.errors[number] = self._evaluate(number)
        return float(self.errors[number])

    def whole_grid(self) -> int:
        """Number of the best α, after all have been tried."""
        for number in range(len(self.grid)):
            self.error(number)
        if not np.isfinite(self.errors).any():
            return len(self.grid) - 1
        return self._stronger(int(np.argmin(self.errors)))

    def descend(self) -> int | None:
        """Number of the best α, by steps of 3 and 1 downhill from the middle; None if none can be solved for."""
        current = len(self.grid) // 2
        while current < len(self.grid):
            self.error(current)
            if current in self.results:
                break
            current += 1
        if current == len(self.grid):
            return None
        for step in (3, 1):
            while True:
                lower = min((current - step, current + step), key=self.error)
                if not self.error(lower) < self.error(current):
                    break
                current = lower
        return self._stronger(current)

    def _stronger(self, number: int) -> int:
        """The largest α tried that is as good as the best: where the error hardly changes, rounding does less harm."""
        bound = self.error(number) * (1 + _AS_GOOD)
        as_good = [other for other in self.results if other >= number and self.errors[other] <= bound]
        return max(as_good, default=number)

    def _evaluate(self, number: int) -> float:
        alpha = float(self.grid[number])
        result = self.factorization.at(alpha)
        if result is None:
            return np.inf
        X, half = result
        residual = None
        if half.shape[1]:
            least = max(alpha, self.problem.least)
            again = self.factorization.at(least) if least > alpha else result
            residual = self._left_out(*(again or result), least)
        self.results[number] = X, residual
        if residual is None:
            return 0.0
        xp: Any = _array.namespace(X)
        if self.loss is None:
            error = float(xp.sum(residual**2)) / (float(xp.sum(self.problem.weight)) or 1.0)
        else:
            error = self.loss(*self._targets_and_predictions(residual))
        return error if np.isfinite(error) else np.inf

    def _targets_and_predictions(self, residual: Array) -> tuple[Array, Array, Array]:
        """Targets and predictions of the sample, without √w, and the weights."""
        problem = self.problem
        xp: Any = _array.namespace(residual)
        root = xp.sqrt(problem.weight)[:, None]
        safe = xp.where(root > 0, root, xp.ones_like(root))
        return problem.Y / safe + problem.y_mean, (problem.Y - residual) / safe + problem.y_mean, problem.weight

    def _left_out(self, X: Array, half: Array, alpha: float) -> Array:
        """√w (y − ŷ) where ŷ comes from a fit without the row, or without the whole sample."""
        problem = self.problem
        xp: Any = _array.namespace(X)
        residual = problem.residual(X)
        root = xp.sqrt(problem.weight)
        total = problem.total if problem.intercept else np.inf
        if self.selection == "loo":
            rest = problem.complement(xp.sum(half**2, axis=0), root**2 / total, alpha, 1.0)
            return residual / xp.clip(rest, _EPS * (float(xp.max(rest)) or 1.0), None)[:, None]
        identity = xp.eye(half.shape[1], dtype=xp.float64, device=_array.device(half))
        constant = root[:, None] * root[None, :] / total
        rest = problem.complement(xp.matmul(half.T, half), constant, alpha, identity)
        jitter = 4 * _EPS * (float(xp.max(xp.linalg.diagonal(rest))) or 1.0)
        return xp.linalg.solve(rest + jitter * identity, residual)

    def solution(self, number: int) -> Solution:
        """The model of one α."""
        problem = self.problem
        X, residual = self.results[number]
        xp: Any = _array.namespace(X)
        coef = problem.coef(X)
        noise = problem.misfit(X, float(self.grid[number])) / (problem.total or 1.0)
        return Solution(
            coef=coef,
            intercept=problem.y_mean - xp.matmul(problem.z_mean, coef),
            alpha=float(self.grid[number]),
            alphas=self.grid,
            errors=np.where(np.isfinite(self.errors), self.errors, np.nan),
            noise=xp.clip(noise, 0.0, None),
            left_out=None if residual is None else self._targets_and_predictions(residual),
        )


def _symmetric(A: Array) -> Array:
    """Both triangles from the lower one."""
    xp: Any = _array.namespace(A)
    return xp.tril(A) + xp.tril(A, k=-1).T


def _index(numbers: np.ndarray, like: Array) -> Array:
    """Row numbers as an array of the library of `like`."""
    return _array.namespace(like).asarray(numbers, device=_array.device(like))
