"""Kernels of the distance and gradients of their sums, one pair and one column at a time, in long double."""

from __future__ import annotations

from typing import Any

import numpy as np

L = np.longdouble


def value(kernel: str, x: Any, y: Any, lengthscale: float = 1.0, nu: float = 1.5, norm: str = "l2") -> Any:
    """k(x, y)."""
    difference = [L(a) - L(b) for a, b in zip(x, y, strict=True)]
    if norm == "l1":
        return np.exp(-sum((abs(z) for z in difference), L(0)) / L(lengthscale))
    r = np.sqrt(sum((z * z for z in difference), L(0))) / L(lengthscale)
    if kernel == "gaussian":
        return np.exp(-r * r / 2)
    if kernel == "laplace":
        return np.exp(-r)
    a = np.sqrt(2 * L(nu)) * r
    return np.exp(-a) * {0.5: L(1), 1.5: 1 + a, 2.5: 1 + a + a * a / 3}[nu]


def matrix(kernel: str, X: np.ndarray, Y: np.ndarray, **params: Any) -> np.ndarray:
    """k of all pairs of rows."""
    return np.array([[value(kernel, x, y, **params) for y in Y] for x in X])


def gradient(kernel: str, x: Any, Y: np.ndarray, c: np.ndarray, **params: Any) -> np.ndarray:
    """Gradient of Σ_j c_j k(x, y_j) by differences of long doubles, which have an error of about 1e-12 here."""
    step = L(2.0**-21)  # the spacing of numbers near 1e8 is 2^-26 in double and 2^-37 in long double
    found = []
    for i in range(len(x)):
        ends = []
        for sign in (1, -1):
            moved = np.array(x, dtype=L)
            moved[i] += sign * step
            ends.append(sum((L(w) * value(kernel, moved, y, **params) for w, y in zip(c, Y, strict=True)), L(0)))
        found.append((ends[0] - ends[1]) / (2 * step))
    return np.array(found)
