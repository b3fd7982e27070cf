"""Moments of images, inverse roots of covariances, patches: what whitening is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches

_MOST_STEPS = 100
_SMALL_RESIDUAL = 1e-9


def product_dtype(images: Array, dtype: Any) -> Any:
    """Dtype of matrix products: float32 or float64 on the host; a GPU might multiply float32 as TF32."""
    on_host = not _array.is_torch(images) or images.device.type == "cpu"
    if not on_host:
        return _array.wide_dtype(images)
    return dtype if dtype.itemsize >= 4 else _array.namespace(images).float32


def channel_means(images: Array) -> np.ndarray:
    """Mean of each channel over all pixels, exact for a constant channel: one pixel is subtracted first."""
    first = to_host(_array.widen(images[0, 0, 0, :]))
    return first + channel_averages(images, lambda x: x - beside(first, x))


def channel_averages(images: Array, function: Callable[[Array], Array]) -> np.ndarray:
    """Averages over all pixels of a function of float64 images, in batches."""
    total = np.zeros(images.shape[3])
    for rows in row_batches(images.shape[0], 32 * int(np.prod(images.shape[1:])), like=images):
        values = function(_array.widen(images[rows]))
        total += to_host(_array.namespace(values).sum(values, axis=(0, 1, 2)))
    return total / int(np.prod(images.shape[:3]))


def moments(blocks: Callable[[], Iterable[Array]], n_rows: int) -> tuple[Array, Array, float]:
    """Mean and covariance of rows that come in blocks, twice, and the mean eigenvalue: 1 if all rows are the same."""
    first = next(iter(blocks()))[0, :]
    xp: Any = _array.namespace(first)
    mean: Any = first + sum(xp.sum(block - first, axis=0) for block in blocks()) / n_rows
    covariance = xp.zeros((first.shape[0], first.shape[0]), dtype=first.dtype, device=_array.device(first))
    for block in blocks():
        block = block - mean
        covariance += xp.matmul(block.T, block)
    covariance /= n_rows
    return mean, covariance, float(xp.mean(xp.linalg.diagonal(covariance))) or 1.0


def inverse_root(A: Array) -> Array | None:
    """A^{-1/2} of a symmetric matrix, exactly symmetric; None unless A is positive definite to working precision."""
    xp: Any = _array.namespace(A)
    root = newton_schulz(A) if _array.is_torch(A) and A.device.type == "cuda" else None
    if root is None:
        values, vectors = xp.linalg.eigh(A)
        if float(values[0]) <= float(values[-1]) * A.shape[0] * xp.finfo(A.dtype).eps:
            return None
        half = vectors * values**-0.25
        root = xp.matmul(half, half.T)
    return (root + root.T) / 2


def newton_schulz(A: Array) -> Array | None:
    """A^{-1/2} by the coupled Newton–Schulz iteration, None if it does not get there.

    Y → Y T and Z → T Z with T = (3 I − Z Y)/2, from Y = A/‖A‖_F and Z = I, tend to (A/‖A‖_F)^{±1/2}. Eigenvalues of
    Z Y that are small grow by 9/4 in a step, then the distance from 1 is squared in each.
    """
    xp: Any = _array.namespace(A)
    scale = xp.linalg.matrix_norm(A)
    eye = xp.eye(A.shape[0], dtype=A.dtype, device=_array.device(A))
    Y, Z = A / scale, eye
    residual, before = 0.0, float("inf")
    for _ in range(_MOST_STEPS):
        step = 1.5 * eye - 0.5 * xp.matmul(Z, Y)
        residual = float(xp.linalg.matrix_norm(step - eye))
        if not residual < before:  # rounding is all that is left, or NaN
            break
        before = residual
        Y, Z = xp.matmul(Y, step), xp.matmul(step, Z)
    Z = Z / xp.sqrt(scale)
    residual = float(xp.linalg.matrix_norm(xp.matmul(xp.matmul(Z, A), Z) - eye))
    return Z if residual < _SMALL_RESIDUAL * A.shape[0] ** 0.5 else None


def all_patches(images: Array, height: int, width: int) -> Array:
    """All patches of images as rows, each ordered as (row, column, channel)."""
    if _array.is_traced(images):
        rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
        places = [(a, b) for a in range(height) for b in range(width)]
        parts = [images[:, a : a + rows, b : b + columns, :] for a, b in places]
        whole = _array.namespace(images).concat(parts, axis=3)
        return _array.namespace(images).reshape(whole, (-1, height * width * images.shape[3]))
    if _array.is_torch(images):
        windows = images.unfold(1, height, 1).unfold(2, width, 1)
    else:
        windows = np.lib.stride_tricks.sliding_window_view(images, (height, width), axis=(1, 2))
    xp: Any = _array.namespace(images)
    return xp.reshape(xp.permute_dims(windows, (0, 1, 2, 4, 5, 3)), (-1, height * width * images.shape[3]))


def beside(values: Array, x: Array) -> Array:
    """Values in the library, on the device and in the dtype of x."""
    if _array.is_torch(x):
        import torch

        return torch.as_tensor(values, dtype=x.dtype, device=x.device)
    return np.asarray(to_host(values), dtype=None if _array.is_traced(x) else x.dtype)


def as_index(values: np.ndarray, x: Array) -> Array:
    """Whole numbers with which to index x."""
    if _array.is_torch(x):
        import torch

        return torch.as_tensor(values, device=x.device)
    return values


def to_host(values: Array) -> np.ndarray:
    """Values as a NumPy array."""
    return values.cpu().numpy() if _array.is_torch(values) else values
