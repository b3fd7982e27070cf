"""Average outer products of gradients, by finite differences of the fitted function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def outer_products(function: Callable[[np.ndarray], np.ndarray], X: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """(1/n) Σ_i Σ_k ∇f_k(x_i) ∇f_k(x_i)ᵀ for a function from rows to (n, k)."""
    n, d = X.shape
    total = np.zeros((d, d))
    for x in X:
        columns = []
        for j in range(d):
            move = step * np.eye(d)[j]
            columns.append((function((x + move)[None]) - function((x - move)[None]))[0] / (2 * step))
        G = np.stack(columns, axis=1)  # (k, d)
        total += G.T @ G
    return total / n


def metric(A: np.ndarray, *, full: bool, floor: float) -> np.ndarray:
    """Return M with M² = A/‖A‖₂ + floor, or for the diagonal of A divided by its largest entry."""
    if not full:
        return np.sqrt(np.diag(A) / np.diag(A).max() + floor)
    values, vectors = np.linalg.eigh(A)
    return vectors @ np.diag(np.sqrt(np.maximum(values, 0) / values.max() + floor)) @ vectors.T
