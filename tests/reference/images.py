"""Preprocessing of images written out pixel by pixel."""

from __future__ import annotations

import numpy as np


def standardized(train: np.ndarray, X: np.ndarray) -> np.ndarray:
    """(x − mean)/deviation of each channel, one channel after the other; deviation 1 where it is 0."""
    out = np.empty(X.shape)
    for c in range(X.shape[3]):
        pixels = [float(v) for v in train[..., c].ravel()]
        mean = sum(pixels) / len(pixels)
        deviation = (sum((v - mean) ** 2 for v in pixels) / len(pixels)) ** 0.5
        out[..., c] = (X[..., c].astype(float) - mean) / (deviation if deviation > 1e-13 * abs(mean) else 1.0)
    return out


def zca(train: np.ndarray, X: np.ndarray, regularization: float, *, per_image: bool) -> tuple[np.ndarray, np.ndarray]:
    """W (x − μ), W = (C + ε I)^{-1/2}, by the singular values of the centred images; and W."""
    from scipy.linalg import svd

    rows, new = ([_vector(x, per_image=per_image) for x in images] for images in (train, X))
    mean = np.mean(rows, axis=0)
    d = len(mean)
    _, s, Vt = svd((rows - mean) / np.sqrt(len(rows)), full_matrices=True)
    values = np.zeros(d)
    values[: len(s)] = s**2
    W = Vt.T @ np.diag((values + regularization * values.sum() / d) ** -0.5) @ Vt
    return np.array([W @ (x - mean) for x in new]).reshape(X.shape), W


def _vector(x: np.ndarray, *, per_image: bool) -> np.ndarray:
    v = x.astype(float).ravel()
    if not per_image:
        return v
    v = v - v.mean()
    return v / v.std() if v.std() > 1e-13 * np.abs(x).max() else 0 * v


def patches(X: np.ndarray, channel_mean: np.ndarray, q: int, padding: str, contrast: float | None) -> np.ndarray:
    """All patches, (n, rows, columns, q²c), by loops; 0 outside of the image after the means were subtracted."""
    n, h, w, c = X.shape
    before = (q - 1) // 2 if padding == "same" else 0
    rows, columns = (h, w) if padding == "same" else (h - q + 1, w - q + 1)
    out = np.zeros((n, rows, columns, q, q, c))
    for i, j, a, b in np.ndindex(rows, columns, q, q):
        y, x = i + a - before, j + b - before
        if 0 <= y < h and 0 <= x < w:
            out[:, i, j, a, b] = X[:, y, x].astype(float) - channel_mean
    out = out.reshape(n, rows, columns, -1)
    if contrast is not None:
        for index in np.ndindex(n, rows, columns):
            p = out[index] - out[index].mean()
            out[index] = p / np.sqrt((p**2).mean() + contrast)
    return out


def whitened_patches(
    train: np.ndarray,
    X: np.ndarray,
    *,
    q: int,
    regularization: float,
    padding: str = "same",
    contrast: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of all patches, (n, rows, columns, q²c), over √(λ + ε); and the eigenvalues λ."""
    channel_mean = train.astype(float).mean(axis=(0, 1, 2))
    known = patches(train, channel_mean, q, padding, contrast)
    new = patches(X, channel_mean, q, padding, contrast)
    rows = known.reshape(-1, known.shape[-1])
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True).reshape(rows.shape[1], -1))
    values, vectors = values[::-1], vectors[:, ::-1]
    out = (new - rows.mean(axis=0)) @ vectors / np.sqrt(values + regularization * values.mean())
    return out, values
