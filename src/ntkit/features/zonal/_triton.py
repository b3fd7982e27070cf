"""Recursions of Gegenbauer polynomials on CUDA, with one pass over the cosines for any degree."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from ntkit.features.network._pixels_triton import on_device

ROWS = 16
COLUMNS = 64


def values(
    t: torch.Tensor, columns: np.ndarray, degrees: np.ndarray, steps: np.ndarray, backs: np.ndarray
) -> torch.Tensor:
    """Compute P_ℓ of the cosines in column columns[j], ℓ = degrees[j], as column j."""
    out = torch.empty((len(t), len(degrees)), dtype=t.dtype, device=t.device)
    if not out.numel():
        return out
    each = torch.from_numpy(np.stack([degrees, columns]).astype(np.int32)).to(t.device)
    factors = torch.from_numpy(np.stack([steps, backs])).to(t.dtype).to(t.device)
    grid = (triton.cdiv(len(t), ROWS), triton.cdiv(len(degrees), COLUMNS))
    with on_device(t):
        _values[grid](t, each, factors, out, len(t), len(degrees), t.stride(0), len(steps), ROWS=ROWS, COLUMNS=COLUMNS)
    return out


def sums(t: torch.Tensor, weights: torch.Tensor, steps: np.ndarray, backs: np.ndarray) -> torch.Tensor:
    """Compute Σ_ℓ weights[:, g, ℓ] P_ℓ(t) for each group g, the groups side by side."""
    n_rows, n_groups, n_degrees = weights.shape
    out = torch.empty((n_rows, n_groups * t.shape[1]), dtype=t.dtype, device=t.device)
    if not out.numel():
        return out
    factors = torch.from_numpy(np.stack([steps, backs])).to(t.dtype).to(t.device)
    grid = (triton.cdiv(n_rows, ROWS), triton.cdiv(t.shape[1], COLUMNS), n_groups)
    with on_device(t):
        _sums[grid](
            t, weights.contiguous(), factors, out, n_rows, t.shape[1], t.stride(0), n_groups, n_degrees,
            ROWS=ROWS, COLUMNS=COLUMNS,
        )  # fmt: skip
    return out


@triton.jit
def _values(t, degrees, factors, out, n_rows, n_columns, stride, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    degree = tl.load(degrees + column, mask=column < n_columns, other=0)
    source = tl.load(degrees + n_columns + column, mask=column < n_columns, other=0)
    x = tl.load(t + row[:, None] * stride + source[None, :], mask=known, other=0.0)
    before = x * 0 + 1
    value = tl.where((degree > 0)[None, :], x, before)
    for k in range(2, tl.max(degree, axis=0) + 1):
        new = tl.load(factors + k) * x * value - tl.load(factors + size + k) * before
        going = (k <= degree)[None, :]
        before = tl.where(going, value, before)
        value = tl.where(going, new, value)
    tl.store(out + row[:, None] * n_columns + column[None, :], value, mask=known)


@triton.jit
def _sums(
    t, weights, factors, out, n_rows, n_columns, stride, n_groups, n_degrees,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    group = tl.program_id(2)
    known = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    x = tl.load(t + row[:, None] * stride + column[None, :], mask=known, other=0.0)
    first = weights + (row * n_groups + group) * n_degrees
    before = x * 0
    value = before + 1
    total = tl.load(first, mask=row < n_rows, other=0.0)[:, None] * value
    for k in range(1, n_degrees):
        new = tl.load(factors + k) * x * value - tl.load(factors + n_degrees + k) * before
        before = value
        value = new
        total += tl.load(first + k, mask=row < n_rows, other=0.0)[:, None] * value
    place = out + row[:, None] * (n_groups * n_columns) + group * n_columns + column[None, :]
    tl.store(place, total, mask=known)
