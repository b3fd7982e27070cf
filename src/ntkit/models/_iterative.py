"""Preconditioned iterative solvers for symmetric positive definite systems with several right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array, to_numpy

Apply = Callable[[Array], Array]
_POWER_STEPS = 20


@dataclass
class Iterations:
    """A solution and its convergence history.

    Attributes
    ----------
    solution : array of shape (n, k)
    history : ndarray of shape (n_iter + 1, k)
        ‖b − A x‖/‖b‖ of every column, before the first iteration and after each iteration.
    converged : bool
    reason : str
        Why the iterations did not converge; empty if they did.
    """

    solution: Array
    history: np.ndarray
    converged: bool
    reason: str = ""

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return len(self.history) - 1


def conjugate_gradients(
    product: Apply,
    B: Array,
    solve: Apply,
    *,
    tol: np.ndarray,
    max_iter: int,
    start: Array | None = None,
    report: Callable[[float], Any] = bool,
) -> Iterations:
    """Solve A X = B, with one product with A per iteration, until every column has its relative residual `tol`.

    All columns are iterated together, each with its own step lengths; a column is dropped when it has converged.
    Rounding makes the residuals of the recursion drift from b − A x. So once the columns have converged, their true
    residuals are computed, and columns that have not converged are iterated further. In exact arithmetic, the energy
    norm of the error falls by (√κ − 1)/(√κ + 1) in each iteration, where κ is the condition number of P⁻¹A.
    """
    run = _Run(product, B, tol, max_iter, start, report)
    while columns := run.begin():
        X, R = run.solution[:, columns], run.residual[:, columns]
        Z = solve(R)
        P, rz = Z, _dots(R, Z)
        while columns:
            AP = product(P)
            curvature = _dots(P, AP)
            if not bool(_array.namespace(curvature).all(curvature > 0)):
                run.give_up(columns, X, "the matrix is not positive definite up to rounding")
                break
            steps = rz / curvature
            X, R = X + steps * P, R - steps * AP
            rest = run.step(columns, X, R)
            if len(rest) < len(columns):
                columns = [columns[i] for i in rest]
                X, R, P, rz = X[:, rest], R[:, rest], P[:, rest], rz[rest]
            if columns:
                Z = solve(R)
                before, rz = rz, _dots(R, Z)
                P = Z + (rz / before) * P
    return run.result()


def gradient_descent(
    product: Apply,
    B: Array,
    solve: Apply,
    *,
    tol: np.ndarray,
    max_iter: int,
    start: Array | None = None,
    report: Callable[[float], Any] = bool,
) -> Iterations:
    """Solve A X = B by gradient descent on ‖Rᵀ(AX − B)‖², R Rᵀ = P⁻¹: x ← x + η P⁻¹A P⁻¹(b − A x).

    This is Algorithm 2 of Song et al. (ICML 2021). The paper takes η = 1, as its eigenvalues of P⁻¹A are close to 1.
    Here η is 1/μ², where μ is the largest eigenvalue, found by power iterations. Each iteration takes two products and
    reduces the error only by 1 − 1/κ².
    """
    run = _Run(product, B, tol, max_iter, start, report)
    xp: Any = _array.namespace(B)
    V = xp.ones_like(B[:, :1])
    largest = 1.0
    for _ in range(_POWER_STEPS):
        V = V / xp.sqrt(_dots(V, V))
        V = solve(product(V))
        largest = float(xp.sqrt(_dots(V, V))[0])
        if largest == 0:
            break
    rate = (1.1 * largest or 1.0) ** -2
    while columns := run.begin():
        X, R = run.solution[:, columns], run.residual[:, columns]
        while columns:
            X = X + rate * solve(product(solve(R)))
            R = B[:, columns] - product(X)
            rest = run.step(columns, X, R)
            columns = [columns[i] for i in rest]
            X, R = X[:, rest], R[:, rest]
    return run.result()


class _Run:
    """Solutions, residuals and history of all columns."""

    def __init__(
        self,
        product: Apply,
        B: Array,
        tol: np.ndarray,
        max_iter: int,
        start: Array | None,
        report: Callable[[float], Any],
    ):
        xp: Any = _array.namespace(B)
        self.product, self.B, self.tol, self.max_iter, self.report = product, B, tol, max_iter, report
        self.norms = to_numpy(xp.sqrt(_dots(B, B)))
        self.solution = xp.zeros_like(B) if start is None else xp.asarray(start, copy=True)
        self.residual = B if start is None else B - product(self.solution)
        self.history = [self._relative(self.residual, slice(None))]
        self.reason, self._start, self._broken = "", start, False
        self._claimed: np.ndarray | None = None
        self._before = self.history[0]

    def begin(self) -> list[int]:
        """Return the columns that have not converged; an empty list if further iterations cannot help."""
        if self._claimed is not None:
            self.residual = self.B - self.product(self.solution)
            claimed, before = self._claimed, self._before
            self.history[-1] = self._relative(self.residual, slice(None))
            drifted = claimed & (self.history[-1] > self.tol)
            if not self.reason and (self.history[-1] > 0.5 * before)[drifted].any():
                self.reason = "rounding errors allow no better"
        self._before = self.history[-1]
        left = np.flatnonzero(self.history[-1] > self.tol)
        if self.reason or not len(left):
            return []
        if len(self.history) > self.max_iter:
            self.reason = f"more than max_iter={self.max_iter} iterations would be needed"
            return []
        return [int(column) for column in left]

    def step(self, columns: list[int], X: Array, R: Array) -> list[int]:
        """Record an iteration; return the positions in `columns` of those that continue."""
        residuals = self.history[-1].copy()
        residuals[columns] = now = self._relative(R, columns)
        self.history.append(residuals)
        self.report(float(residuals.max()))
        ends = now <= self.tol[columns]
        if not np.isfinite(now).all():
            self.reason, self._broken = "the iterations diverged", True
        if self.reason or len(self.history) > self.max_iter:
            ends[:] = True
        self._keep(columns, X, ends)
        return [int(place) for place in np.flatnonzero(~ends)]

    def give_up(self, columns: list[int], X: Array, reason: str) -> None:
        """Stop all columns at their current iterates."""
        self.reason, self._broken = reason, True
        self._keep(columns, X, np.ones(len(columns), dtype=bool))

    def _keep(self, columns: list[int], X: Array, ends: np.ndarray) -> None:
        for place in np.flatnonzero(ends):
            self.solution[:, columns[place]] = X[:, int(place)]
        self._claimed = self.history[-1] <= self.tol

    def _relative(self, R: Array, columns: Any) -> np.ndarray:
        norms = self.norms[columns]
        residuals = to_numpy(_array.namespace(R).sqrt(_dots(R, R)))
        return np.divide(residuals, norms, out=np.zeros_like(residuals), where=norms > 0)

    def result(self) -> Iterations:
        """Return the last iterates; for columns that a breakdown has made worse, return the starting point."""
        worse = np.flatnonzero(self._broken & ~(self.history[-1] <= self.history[0]))
        for column in worse.tolist():
            self.solution[:, column] = 0.0 if self._start is None else self._start[:, column]
        self.history[-1][worse] = self.history[0][worse]
        return Iterations(self.solution, np.array(self.history), not self.reason, self.reason)


def _dots(A: Array, B: Array) -> Array:
    """Return the inner products of corresponding columns."""
    return _array.namespace(A, B).sum(A * B, axis=0)
