"""Building blocks of whitening: moments of images, inverse roots of covariances, and patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches

_MAX_STEPS = 100  # of the Newton–Schulz iteration
_SMALL_RESIDUAL = 1e-9  # accepted ‖Z A Z − I‖_F, relative to √n for a matrix of order n


def product_dtype(images: Array, dtype: Any) -> Any:
    """Return the dtype for matrix products: float32 or float64 on the host, float64 on a GPU, which may use TF32."""
    on_host = not _array.is_torch(images) or images.device.type == "cpu"
    if not on_host:
        return _array.wide_dtype(images)
    return dtype if dtype.itemsize >= 4 else _array.namespace(images).float32


def channel_means(images: Array) -> np.ndarray:
    """Compute the mean of each channel. One pixel is subtracted first, so a constant channel is exact."""
    first = to_host(_array.widen(images[0, 0, 0, :]))
    return first + channel_averages(images, lambda x: x - constant_like(first, x))


def channel_averages(images: Array, function: Callable[[Array], Array]) -> np.ndarray:
    """Average a function of float64 images over all pixels, in batches."""
    total = np.zeros(images.shape[3])
    for rows in row_batches(images.shape[0], 32 * int(np.prod(images.shape[1:])), like=images):
        values = function(_array.widen(images[rows]))
        total += to_host(_array.namespace(values).sum(values, axis=(0, 1, 2)))
    return total / int(np.prod(images.shape[:3]))


def moments(blocks: Callable[[], Iterable[Array]], n_rows: int) -> tuple[Array, Array, float]:
    """Compute the mean, covariance and mean eigenvalue (1 if all rows are equal) of rows that come in blocks.

    `blocks` is called three times.
    """
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
    """Compute A^{-1/2}, exactly symmetric; return None unless A is positive definite to working precision."""
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
    """Compute A^{-1/2} by the coupled Newton–Schulz iteration; return None if it does not converge.

    Y → Y T and Z → T Z with T = (3 I − Z Y)/2, from Y = A/‖A‖_F and Z = I, converge to (A/‖A‖_F)^{±1/2}. Small
    eigenvalues of Z Y grow by 9/4 per step; near 1, the distance from 1 is squared in each step.
    """
    xp: Any = _array.namespace(A)
    scale = xp.linalg.matrix_norm(A)
    eye = xp.eye(A.shape[0], dtype=A.dtype, device=_array.device(A))
    Y, Z = A / scale, eye
    residual, previous = 0.0, float("inf")
    for _ in range(_MAX_STEPS):
        step = 1.5 * eye - 0.5 * xp.matmul(Z, Y)
        residual = float(xp.linalg.matrix_norm(step - eye))
        if not residual < previous:  # only rounding errors are left, or NaN
            break
        previous = residual
        Y, Z = xp.matmul(Y, step), xp.matmul(step, Z)
    Z = Z / xp.sqrt(scale)
    residual = float(xp.linalg.matrix_norm(xp.matmul(xp.matmul(Z, A), Z) - eye))
    return Z if residual < _SMALL_RESIDUAL * A.shape[0] ** 0.5 else None


def all_patches(images: Array, height: int, width: int) -> Array:
    """Return all patches of images as rows, each ordered as (row, column, channel)."""
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


def constant_like(values: Array, x: Array) -> Array:
    """Convert values to the library, device and dtype of x."""
    if _array.is_torch(x):
        import torch

        return torch.as_tensor(values, dtype=x.dtype, device=x.device)
    return np.asarray(to_host(values), dtype=None if _array.is_traced(x) else x.dtype)


def as_index(values: np.ndarray, x: Array) -> Array:
    """Convert integers to an index into x."""
    if _array.is_torch(x):
        import torch

        return torch.as_tensor(values, device=x.device)
    return values


def to_host(values: Array) -> np.ndarray:
    """Convert values to a NumPy array."""
    return values.cpu().numpy() if _array.is_torch(values) else values
