"""Kernels over draws of features written out: all features side by side, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def side_by_side(draws: Sequence[np.ndarray], *, normalize: bool = True) -> np.ndarray:
    """[Z_1 … Z_D]/√D with every row of every Z_d over its norm, zero rows zero."""
    parts = []
    for Z in draws:
        Z = np.asarray(Z, dtype=np.float64)
        norms = np.sqrt((Z**2).sum(axis=1, keepdims=True))
        parts.append(Z / np.where(norms > 0, norms, 1.0) if normalize else Z)
    return np.hstack(parts) / len(draws) ** 0.5


def kernel(
    draws: Sequence[np.ndarray], others: Sequence[np.ndarray] | None = None, *, normalize: bool, center: bool
) -> np.ndarray:
    """Kernel matrix of rows and other rows (None: the same), centred on the mean of the former."""
    Z = side_by_side(draws, normalize=normalize)
    new = Z if others is None else side_by_side(others, normalize=normalize)
    mean = Z.mean(axis=0) if center else 0.0
    return (Z - mean) @ (new - mean).T
