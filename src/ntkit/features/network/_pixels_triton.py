"""Sums over patches and scaling of vectors on CUDA, in one pass each; neighbouring pixels are read from the cache."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ntkit.networks.layers import Window
from ntkit.programs import power_of_two

PIXELS = 32  # largest number of pixels of an image row that a program processes at a time
CHANNELS = 128  # largest number of channels that a program processes at a time
TILE = 4096  # number of values that a program scales at a time
MAX_COLUMNS = 8192  # length of the longest vector that one program can scale


def mix_patches(x: torch.Tensor, signs: np.ndarray, rows: Window, cols: Window, scale: float) -> torch.Tensor:
    """See :func:`ntkit.features.network.pixels.mix_patches`; `x` may be a slice of more channels."""
    if x.stride(3) != 1 or x.stride(1) != x.shape[2] * x.stride(2) or x.stride(0) != x.shape[1] * x.stride(1):
        x = x.clone(memory_format=torch.contiguous_format)  # not contiguous(): axes of length 1 may have any stride
    n, height, width, n_channels = x.shape
    out = torch.empty((n, rows.n_out, cols.n_out, n_channels), dtype=x.dtype, device=x.device)
    # The scale is part of the weights, because Triton would pass a Python number as float32.
    wide = np.float64 if x.dtype == torch.float64 else np.float32
    weights = torch.from_numpy((scale * signs).astype(wide)).to(x.device)
    # A large tile of float64 values, with all offsets unrolled, would not fit in registers.
    pixels = min(PIXELS // 4 if wide is np.float64 else PIXELS, power_of_two(cols.n_out))
    channels = min(CHANNELS, max(16, power_of_two(n_channels)))
    grid = (n * rows.n_out, triton.cdiv(n_channels, channels), triton.cdiv(cols.n_out, pixels))
    if n:
        with on_device(x):
            _mix[grid](
                x, weights, out, height, width, n_channels, x.stride(2), rows.n_out, cols.n_out, rows.stride,
                cols.stride, rows.before, cols.before, ROWS=rows.size, COLS=cols.size, PIXELS=pixels,
                CHANNELS=channels, WIDE=tl.float64 if x.dtype == torch.float64 else tl.float32,
            )  # fmt: skip
    return out


def on_device(x: torch.Tensor) -> Any:
    """Return a context in which kernels run on the device of `x`; it does nothing for Triton's interpreter."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def scale_rows(x: torch.Tensor, power: torch.Tensor, out: torch.Tensor, floor: float) -> torch.Tensor:
    """Scale vectors along the last axis to the squared norms `power`, and write them to `out`.

    `x` and `out` may be slices of larger tensors. Vectors whose norms are below `floor` times the target become 0.
    """
    rows, target = x.flatten(0, -2), out.flatten(0, -2)
    norms = power.flatten().sqrt().to(torch.float32)
    n_columns = x.shape[-1]
    size = power_of_two(n_columns)
    at_once = max(1, TILE // size)
    if len(rows):
        with on_device(x):
            _scale[(triton.cdiv(len(rows), at_once),)](
                rows, norms, target, len(rows), n_columns, rows.stride(0), target.stride(0), floor,
                ROWS=at_once, SIZE=size, num_warps=4 if size <= TILE else 8,
            )  # fmt: skip
    return out


def fits(x: torch.Tensor) -> bool:
    """Return whether :func:`scale_rows` supports these vectors."""
    return x.dtype != torch.float64 and x.shape[-1] <= MAX_COLUMNS and x.stride(-1) == 1


@triton.jit
def _scale(
    x_ptr, norm_ptr, out_ptr, n_rows, n_columns, stride, out_stride, floor, ROWS: tl.constexpr, SIZE: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, SIZE)
    known = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    x = tl.load(x_ptr + row[:, None] * stride + column[None, :], mask=known, other=0.0).to(tl.float32)
    top = tl.max(tl.abs(x), axis=1)  # divide by the largest value, so that squares cannot overflow
    top = tl.where(top > 0, top, 1.0)
    ratio = x / top[:, None]
    own = top * tl.sqrt(tl.sum(ratio * ratio, axis=1))
    norm = tl.load(norm_ptr + row, mask=row < n_rows, other=0.0)
    factor = tl.where(own > floor * norm, norm / tl.where(own > 0, own, 1.0), 0.0)
    place = out_ptr + row[:, None] * out_stride + column[None, :]
    tl.store(place, (x * factor[:, None]).to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def _mix(
    x, weights, out, height, width, n_channels, stride, n_rows, n_cols, down, right, above, left,
    ROWS: tl.constexpr, COLS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    image, i = number // n_rows, number % n_rows
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    j = tl.program_id(2) * PIXELS + tl.arange(0, PIXELS)
    known = channel < n_channels
    total = tl.zeros((PIXELS, CHANNELS), WIDE)
    for a in tl.static_range(ROWS):
        y = i * down - above + a
        if (y >= 0) & (y < height):
            for b in tl.static_range(COLS):
                z = j * right - left + b
                weight = tl.load(weights + (a * COLS + b) * n_channels + channel, mask=known, other=0.0)
                inside = ((z >= 0) & (z < width))[:, None] & known[None, :]
                place = ((image * height + y) * width + z)[:, None] * stride + channel[None, :]
                total += tl.load(x + place, mask=inside, other=0.0).to(WIDE) * weight[None, :]
    place = (number * n_cols + j)[:, None] * n_channels + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(j < n_cols)[:, None] & known[None, :])
