"""Kernel ridge regression by preconditioned iterations, which need only products with the kernel matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.models._checks import to_library
from ntkit.models._iterative import Iterations
from ntkit.models._kernel_matrix import KernelMatrix
from ntkit.models._linalg import EPS, zeros
from ntkit.models._preconditioner import Preconditioner
from ntkit.models._problems import TINY, Fit, Problem, Selection, Weights, one_unit

_PROBE_TOLERANCE = 1e-3  # relative residual of right-hand sides that serve only to estimate held-out errors


class FromKernel(Problem):
    """Solve (A + α)X + √w bᵀ = √w Y, √wᵀX = 0 with A = S K S by products with A.

    With U = (A + α)⁻¹√w Y and v = (A + α)⁻¹√w, the intercept is b = √wᵀU/√wᵀv and X = U − v bᵀ. Predictions for
    held-out rows need [(A + α)⁻¹ − vvᵀ/√wᵀv]_SS, so unit vectors are added to the right-hand sides. The iterations for
    each α start from the solution for the nearest α solved so far.
    """

    def __init__(
        self,
        matrix: KernelMatrix,
        Y: Array,
        root: Array,
        keys: np.ndarray,
        selection: Selection,
        *,
        intercept: bool,
        iterate: Callable[..., Iterations],
        preconditioner: Preconditioner | None,
        tolerance: float,
        max_iter: int,
        report: Callable[[float], Any],
    ):
        xp: Any = _array.namespace(Y)
        self.matrix, self.intercept, self.root, self.way = matrix, intercept, root, selection.way
        self.iterate, self.preconditioner, self.report = iterate, preconditioner, report
        self.tolerance, self.max_iter = tolerance, max_iter
        self.total = float(xp.sum(root**2))
        self.y_mean = xp.matmul(root**2, Y) / self.total if intercept else xp.zeros_like(Y[0])
        B = root[:, None] * (Y - self.y_mean)
        size = xp.max(xp.abs(B), axis=0)
        # Scaled, since squares of tiny or huge targets would underflow or overflow.
        self.size = xp.where(size > 0, size, xp.ones_like(size))
        self.R, self.n_targets = B / self.size, int(B.shape[1])
        chosen = np.argsort(keys, kind="stable")[: selection.n_rows(matrix.n_rows)]
        self.chosen = to_library(chosen, B)
        self.left_weight, self.left_targets = root[self.chosen] ** 2, Y[self.chosen]
        units = zeros((matrix.n_rows, len(chosen)), "float64", B)
        units[self.chosen, to_library(np.arange(len(chosen)), B)] = 1.0
        columns = [self.R, root[:, None], units] if intercept else [self.R, units]
        self.B = xp.concat(columns, axis=1)
        self.tolerances = np.full(self.B.shape[1], tolerance)
        self.tolerances[self.B.shape[1] - len(chosen) :] = max(tolerance, _PROBE_TOLERANCE)
        self.runs: dict[float, Iterations] = {}

    @cached_property
    def scale(self) -> float:  # type: ignore[override]
        """See :class:`Problem`. With an intercept it takes one product with the matrix."""
        xp: Any = _array.namespace(self.B)
        trace = float(xp.sum(self.matrix.diagonal()))
        if self.intercept:
            trace -= float(xp.matmul(self.root, self.matrix.times(self.root[:, None])[:, 0])) / self.total
        return trace / self.total

    def fit(self, alpha: float) -> Fit:
        """See :meth:`Problem.fit`."""
        xp: Any = _array.namespace(self.B)
        nearest = min(self.runs, key=lambda other: abs(np.log(max(other, TINY) / max(alpha, TINY))), default=None)
        with self.report(alpha) as report:
            run = self.runs[alpha] = self.iterate(
                lambda V: self.matrix.times(V) + alpha * V, self.B,
                (lambda V: V) if self.preconditioner is None else self.preconditioner.at(alpha),
                tol=self.tolerances, max_iter=self.max_iter, report=report,
                start=None if nearest is None else self.runs[nearest].solution,
            )  # fmt: skip
        k = self.n_targets
        X, inverse = run.solution[:, :k], run.solution[self.chosen, k + self.intercept :]
        rounding = EPS * (float(xp.sum(xp.linalg.diagonal(inverse))) or 1.0)
        constant = xp.zeros_like(X[0])
        if self.intercept:
            v = run.solution[:, k]
            mass = float(xp.sum(self.root * v)) or 1.0  # 0 for a matrix of zeros and α = 0
            constant = xp.matmul(self.root, X) / mass
            X = X - v[:, None] * constant
            inverse = inverse - v[self.chosen][:, None] * v[self.chosen][None, :] / mass
        X, constant = self.size * X, self.size * constant
        # The intercepts are the last row of the unknowns.
        predictions = self._left_out(X, inverse, alpha, rounding) if len(inverse) else None
        return Fit(xp.concat([X, constant[None, :]]), predictions)

    def _left_out(self, X: Array, inverse: Array, alpha: float, rounding: float) -> Array:
        """Return predictions for the held-out rows; `rounding` replaces values that exact arithmetic would make 0."""
        xp: Any = _array.namespace(X)
        residual = X[self.chosen]
        if self.way == "loo":
            rest = xp.clip(xp.linalg.diagonal(inverse), rounding, None)
            error = residual / one_unit(rest, self.left_weight, 1 / max(alpha, TINY))[:, None]
        else:
            identity = xp.eye(len(inverse), dtype=inverse.dtype, device=_array.device(inverse))
            error = xp.linalg.solve((inverse + inverse.T) / 2 + rounding * identity, residual)
        return self.left_targets - error / self.root[self.chosen][:, None]

    def weights(self, X: Array, alpha: float) -> Weights:
        """See :meth:`Problem.weights`."""
        xp: Any = _array.namespace(X)
        X, constant = X[:-1], X[-1]
        with np.errstate(over="ignore"):  # huge targets
            noise = alpha * xp.sum(self.R * (X / self.size), axis=0) / self.total * self.size**2
        return Weights(self.root[:, None] * X, self.y_mean + constant, xp.clip(noise, 0.0, None))
