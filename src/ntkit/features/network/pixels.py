"""Operations on pixels: patches, averages, sums with random signs, norms. Images are (n, h, w, c).

The direct sum of the q² pixels of a patch, divided by q, has the inner products of a convolution's covariance: the mean
over the patch. With few channels it is computed explicitly (:func:`patches`). With many channels an SRHT of it follows.
One row block of H_{q²} ⊗ H_c is H_c of a sum of the pixels, each multiplied by its own signs (:func:`mix_patches`), so
the q² c numbers are never stored. In expectation, ⟨Σ_o D_o x_o, Σ_o D_o y_o⟩ = Σ_o ⟨x_o, y_o⟩.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.covariances import window_sum
from ntkit.networks import AvgPool, Conv
from ntkit.networks.layers import Window

FLOOR = 1e-5  # vectors whose norm is below this times their target norm are rounding errors after cancellation


def patches(x: Array, layer: Conv) -> Array:
    """Concatenate the pixels of each patch, divided by the square root of their number; zeros outside the image."""
    xp: Any = _array.namespace(x)
    rows, cols = layer.windows(*x.shape[1:3])
    x = _padded(x, rows, cols)
    parts = [_shifted(x, a, b, rows, cols) for a in range(rows.size) for b in range(cols.size)]
    return xp.concat(parts, axis=-1) * (rows.size * cols.size) ** -0.5


def mix_patches(x: Array, signs: np.ndarray, layer: Conv) -> Array:
    """Sum signs[o] ⊙ x_o over the pixels o of each patch, divided by the square root of their number.

    `signs` has shape (q_h, q_w, c). NumPy arrays and tensors in host memory use compiled code, CUDA tensors Triton.
    """
    rows, cols = layer.windows(*x.shape[1:3])
    scale = (rows.size * cols.size) ** -0.5
    constant = not _array.wants_gradient([x])
    if constant and _array.has_triton(x):
        from ntkit.features.network import _pixels_triton

        return _pixels_triton.mix_patches(x, signs, rows, cols, scale)
    view = _array.host_view(x) if constant else None
    if view is not None and view.dtype in (np.float32, np.float64):
        from ntkit.features.network import _pixels_numba

        return _array.like(_pixels_numba.mix_patches(view, signs, rows, cols, scale), x)
    x = _padded(x, rows, cols)
    total: Any = 0.0
    for a in range(rows.size):
        for b in range(cols.size):
            total = total + _shifted(x, a, b, rows, cols) * _array.constant(scale * signs[a, b], x)
    return total


def average(x: Array, layer: Conv | AvgPool) -> Array:
    """Average (n, h, w) or (n, h, w, c) over the windows of a layer, with zeros outside the image."""
    rows, cols = layer.windows(*x.shape[1:3])
    if _array.has_triton(x) and x.ndim == 4 and not _array.wants_gradient([x]):
        from ntkit.features.network import _pixels_triton

        ones = np.ones((rows.size, cols.size, x.shape[3]), np.int8)
        return _pixels_triton.mix_patches(x, ones, rows, cols, 1 / (rows.size * cols.size))
    if _array.is_torch(x) and x.ndim == 4 and isinstance(layer, AvgPool):
        import torch

        size, stride = (rows.size, cols.size), (rows.stride, cols.stride)
        return torch.nn.functional.avg_pool2d(x.permute(0, 3, 1, 2), size, stride).permute(0, 2, 3, 1)
    total = window_sum(x, (1,), rows, x.shape[1])
    return window_sum(total, (2,), cols, x.shape[2]) / (rows.size * cols.size)


def sum_pixels(x: Array, signs: np.ndarray) -> Array:
    """Sum signs ⊙ x over all pixels, divided by the square root of their number.

    In expectation the inner products are the inner products of all pixels concatenated.
    """
    xp: Any = _array.namespace(x)
    scaled = _array.constant((signs.shape[0] * signs.shape[1]) ** -0.5 * signs, x)
    return xp.sum(x * scaled, axis=(1, 2))


def squares(x: Array) -> Array:
    """Compute squared norms over the last axis, in float64: squares of float32 numbers overflow beyond 1e19."""
    wide = _array.wide_dtype(x)
    if _array.is_torch(x):
        import torch

        return torch.linalg.vector_norm(x, dim=-1, dtype=wide) ** 2
    if _array.is_numpy(x):
        return np.einsum("...i,...i->...", x, x, dtype=wide)
    x = _array.widen(x)
    return _array.namespace(x).sum(x * x, axis=-1)


def mean_of_pixels(values: Array) -> Array:
    """Average over all pixels; the mean of 16-bit numbers is float32."""
    if _array.is_torch(values) and values.dtype.itemsize < 4:
        import torch

        return values.mean(dim=(1, 2), dtype=torch.float32)
    return _array.namespace(values).mean(values, axis=(1, 2))


def with_norms(values: Array, power: Array | None) -> Array:
    """Scale vectors along the last axis to given squared norms; zeros, and rounding errors after cancellation, to 0."""
    if power is None:
        return values
    xp: Any = _array.namespace(values)
    if _array.has_triton(values) and not _array.wants_gradient([values, power]):
        from ntkit.features.network import _pixels_triton

        if _pixels_triton.fits(values):
            return _pixels_triton.scale_rows(values, power, values.new_empty(values.shape), FLOOR)
    own = squares(values)
    known = (own > FLOOR**2 * power) & (power > 0)
    one = xp.ones_like(own)  # replaces values that are not used, because their derivative is not finite
    factors = xp.sqrt(xp.where(known, power, one) / xp.where(known, own, one))
    factors = xp.where(known, factors, xp.zeros_like(own))
    return values * xp.astype(factors, values.dtype, copy=False)[..., None]


def joined(parts: Sequence[Array], powers: Sequence[Array | None] | None = None) -> Array:
    """Concatenate columns, each part scaled to its norms; on CUDA the parts are written directly to the result."""
    powers = [None] * len(parts) if powers is None else powers
    if len(parts) == 1:
        return with_norms(parts[0], powers[0])
    xp: Any = _array.namespace(*parts)
    constant = _array.has_triton(parts[0]) and not _array.wants_gradient(parts)
    if constant and all(power is not None for power in powers):
        from ntkit.features.network import _pixels_triton

        if all(map(_pixels_triton.fits, parts)):
            ends = np.cumsum([part.shape[-1] for part in parts]).tolist()
            out = parts[0].new_empty((*parts[0].shape[:-1], ends[-1]))
            for part, power, end in zip(parts, powers, ends, strict=True):
                _pixels_triton.scale_rows(part, power, out[..., end - part.shape[-1] : end], FLOOR)
            return out
    return xp.concat([with_norms(part, power) for part, power in zip(parts, powers, strict=True)], axis=-1)


def _padded(x: Array, rows: Window, cols: Window) -> Array:
    """Pad images with the zeros that the windows cover."""
    xp: Any = _array.namespace(x)
    n, height, width, channels = x.shape
    below = max((rows.n_out - 1) * rows.stride + rows.size - rows.before - height, 0)
    right = max((cols.n_out - 1) * cols.stride + cols.size - cols.before - width, 0)
    if not (rows.before or below or cols.before or right):
        return x
    shape = (n, rows.before + height + below, cols.before + width + right, channels)
    out = xp.zeros(shape, dtype=x.dtype, device=_array.device(x))
    out[:, rows.before : rows.before + height, cols.before : cols.before + width, :] = x
    return out


def _shifted(x: Array, a: int, b: int, rows: Window, cols: Window) -> Array:
    """Return the pixel at position (a, b) of every window."""
    down = slice(a, a + (rows.n_out - 1) * rows.stride + 1, rows.stride)
    return x[:, down, b : b + (cols.n_out - 1) * cols.stride + 1 : cols.stride, :]
