"""Nyström features, ridge leverage scores and kernel k-means written out, in float64."""

from __future__ import annotations

import numpy as np


def nystroem_kernel(K: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    """K(·, L) K(L, L)⁺ K(L, ·) of all rows, from their kernel matrix."""
    return K[:, landmarks] @ np.linalg.pinv(K[np.ix_(landmarks, landmarks)], hermitian=True) @ K[landmarks]


def leverage_scores(K: np.ndarray, lam: float) -> np.ndarray:
    """Diagonal of K (K + λI)⁻¹."""
    return np.diag(K @ np.linalg.inv(K + lam * np.eye(len(K))))


def inclusion_probabilities(scores: np.ndarray, size: int) -> np.ndarray:
    """min(1, c·score) with c found by bisection such that they add up to `size`."""
    low, high = 0.0, size / scores.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * scores).sum() < size else (low, middle)
    return np.minimum(1, high * scores)


def kernel_kmeans_objective(K: np.ndarray, labels: np.ndarray) -> float:
    """tr(K − C Cᵀ K C Cᵀ)/n with the cluster indicator C."""
    names = np.unique(labels)
    C = (labels[:, None] == names[None, :]).astype(np.float64)
    C /= np.sqrt(C.sum(axis=0))
    return float(np.trace(K - C @ C.T @ K @ C @ C.T)) / len(K)


def inertia(Z: np.ndarray, labels: np.ndarray, centers: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Σ w ‖z − μ‖², one row at a time."""
    weight = np.ones(len(Z)) if weight is None else weight
    return sum(float(w * ((z - centers[c]) ** 2).sum()) for z, c, w in zip(np.float64(Z), labels, weight, strict=True))
