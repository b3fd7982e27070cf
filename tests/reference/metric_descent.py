"""Leave-one-out errors of kernel ridge regression, by refitting, and their derivatives, by differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def leave_one_out(K: np.ndarray, Y: np.ndarray, weight: np.ndarray, alpha: float) -> float:
    """Return ½ log of the mean squared residual of rows that are left out in turn; K includes the intercept's 1."""
    total = 0.0
    for i in range(len(K)):
        kept = np.arange(len(K)) != i
        A = K[np.ix_(kept, kept)] + alpha * np.diag(1 / weight[kept])
        total += weight[i] * np.sum((Y[i] - K[i, kept] @ np.linalg.solve(A, Y[kept])) ** 2)
    return 0.5 * np.log(total / weight.sum())


def derivatives(function: Callable[[np.ndarray], float], d: int, *, full: bool, step: float) -> np.ndarray:
    """Return the derivatives of a function of a diagonal or symmetric matrix B, at B = 0, by central differences."""
    found = np.zeros((d, d))
    for i, j in np.ndindex(d, d):
        B = np.zeros((d, d))
        B[i, j] += step / 2
        B[j, i] += step / 2
        if full or i == j:
            found[i, j] = (function(B) - function(-B)) / (2 * step)
    return found if full else np.diagonal(found)
