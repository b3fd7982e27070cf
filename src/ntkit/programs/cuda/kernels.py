"""Triton kernels of the fused steps: signs, Hadamard transform, gather, product and norm in one pass over the rows.

Since H_n = H_a ⊗ H_b, the transform of a row folded to an a × b matrix X is H_a X H_b: two products with small ±1
matrices, computed by tensor cores. ±1 is exact in bfloat16. A float32 entry is the sum of three bfloat16 numbers, so
three products give float32 accuracy; one product gives bfloat16 accuracy. The row is transposed between the two
products and stays transposed; the gather uses indices into the transposed row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ntkit.programs.array_api import hadamard_matrix
from ntkit.programs.cuda.fusion import TILE, FusedStep, GatherTransforms, MultiplyColumns, tile
from ntkit.programs.steps import power_of_two

ENTRIES_PER_WARP = 2048  # entries of transformed rows per warp; a Triton program has at least four warps
PROGRAMS_PER_PROCESSOR = 16  # each loops over rows and prefetches the next ones; 4 to 32 made little difference
PRODUCT_TILE = 4096  # numbers that a Triton program processes at a time in a product of columns
_PARTS = {torch.float32: 3, torch.float16: 2, torch.bfloat16: 1}  # bfloat16 numbers whose sum is one entry


def gather_transforms(
    step: GatherTransforms, orders: list[int], read: list[torch.Tensor], tables: dict[str, Any], out: torch.Tensor
) -> torch.Tensor:
    """Compute a step into `out`, with Hadamard matrices of the given orders.

    `tables` caches the draws of the step on the device.
    """
    a, b = read[0], read[step.n_sides - 1]
    n_a, n_b = orders
    if not tables:
        tables |= _tables(step, orders, out.device)
    longest = max(orders)
    rows = max(1, TILE // longest)
    blocks = triton.cdiv(len(out), rows)
    grid = (min(blocks, _processors(out.device) * PROGRAMS_PER_PROCESSOR),)
    multiplier, factor, floor = _normalization(step, read, out)
    if blocks:
        _gather_rows[grid](
            a, b, out, tables["a_signs"], tables["b_signs"], tables["a_rows"], tables["b_rows"], tables["weights"],
            tables["matrices"], multiplier, tables["scale"], factor, floor,
            blocks, len(out), a.shape[1], b.shape[1], out.shape[1], a.stride(0), b.stride(0), out.stride(0),
            PRODUCT=step.n_sides == 2, WEIGHTED=tables["weighted"], ROWS=rows,
            NORMALIZE=step.norm is not None, MULTIPLY=step.multiplier is not None,
            M=tile(longest, step.size), ONE_TILE=step.size <= tile(longest, step.size),
            A1=_fold(n_a), A2=n_a // _fold(n_a), B1=_fold(n_b), B2=n_b // _fold(n_b),
            PARTS=_PARTS[out.dtype], PART=tl.bfloat16 if out.is_cuda else tl.float32,
            num_warps=max(4, rows * longest // ENTRIES_PER_WARP),
            num_stages=3 if longest <= 4096 else 2 if longest <= 8192 else 1,
        )  # fmt: skip
    return out


def multiply_columns(step: MultiplyColumns, read: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """Compute a product of columns into `out`."""
    sides = [x[:, start : start + step.size] for x, start in zip(read, step.starts, strict=False)]
    a, b = sides[0], sides[-1]
    size = power_of_two(step.size)
    rows = max(1, PRODUCT_TILE // size)
    multiplier, factor, floor = _normalization(step, read, out)
    if len(out):
        _multiply_rows[(triton.cdiv(len(out), rows),)](
            a, b, multiplier, out, len(out), step.size, a.stride(0), b.stride(0), out.stride(0), factor, floor,
            PRODUCT=step.n_sides == 2, NORMALIZE=step.norm is not None, MULTIPLY=step.multiplier is not None,
            ROWS=rows, SIZE=size, num_warps=4 if rows * size <= 4096 else 8,
        )  # fmt: skip
    return out


def _normalization(step: FusedStep, read: list[torch.Tensor], out: torch.Tensor) -> tuple[torch.Tensor, float, float]:
    """Return the multiplier (an arbitrary tensor if there is none), the factor and the floor of a normalization."""
    multiplier = out if step.multiplier is None else read[step.n_sides].contiguous()
    if step.norm is None:
        return multiplier, 1.0, 0.0
    return multiplier, step.norm.factor, max(step.norm.floor, torch.finfo(torch.float32).tiny)


def _fold(n: int) -> int:
    """Return the number a of rows of the a × b matrix into which n entries are folded; 1 below 256 entries."""
    return 1 if n < 256 else 1 << (n.bit_length() // 2)


@lru_cache
def _processors(device: Any) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _tables(step: GatherTransforms, orders: list[int], device: Any) -> dict[str, Any]:
    """Return the draws of a step on the device, packed because every Triton program reads all of them.

    Row indices fit in 16 bits.
    """
    weighted = bool(np.ptp(step.weights) > 0)
    matrices = [hadamard_matrix(1 << k).ravel() for k in range(8)]
    tables: dict[str, Any] = {
        "weights": torch.tensor(step.weights.copy(), dtype=torch.float32, device=device),
        "weighted": weighted,
        "scale": step.scale if weighted else step.scale * float(step.weights[0]),
        "matrices": torch.tensor(np.concatenate(matrices), dtype=torch.bfloat16, device=device),
    }
    sides = zip("ab", (step.signs[0], step.signs[-1]), (step.rows[0], step.rows[-1]), orders, strict=True)
    for name, signs, rows, n in sides:
        i, j = np.divmod(rows, n // _fold(n))
        tables[f"{name}_rows"] = torch.tensor(j * _fold(n) + i, dtype=torch.int16, device=device)
        tables[f"{name}_signs"] = torch.tensor(signs < 0, dtype=torch.int8, device=device)
    return tables


@triton.jit
def _matrix(matrices, ORDER: tl.constexpr, PART: tl.constexpr):
    """Load H of a given order.

    Orders 1, 2, 4, … are stored one after the other, so order n starts at 1 + 4 + … + n²/4 = (n² − 1)/3.
    """
    k = tl.arange(0, ORDER)
    return tl.load(matrices + (ORDER * ORDER - 1) // 3 + k[:, None] * ORDER + k[None, :]).to(PART)


@triton.jit
def _high(x):
    """Truncate float32 x to a bfloat16 number by masking the lower half of its bits; rounding would be slower."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _times(x, h, PARTS: tl.constexpr, PART: tl.constexpr):
    """Compute x h for float32 x as a sum of PARTS products of type PART, beginning with the smallest part."""
    if PARTS == 1:
        return tl.dot(x.to(PART), h)
    high = _high(x)
    rest = tl.where(high == x, 0.0, x - high)  # avoids ∞ − ∞
    if PARTS == 2:
        return tl.dot(high.to(PART), h, acc=tl.dot(rest.to(PART), h))
    middle = _high(rest)
    low = rest - middle  # exact in bfloat16: of 24 bits, 16 are in the other two parts
    return tl.dot(high.to(PART), h, acc=tl.dot(middle.to(PART), h, acc=tl.dot(low.to(PART), h)))


@triton.jit
def _transform(
    x_ptr, signs, h1, h2, rows, n_rows, d, stride,
    ROWS: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Compute H (signs ⊙ x) for ROWS rows as a flat vector of ROWS · N1 · N2 entries; folded rows stay transposed."""
    k = tl.arange(0, ROWS * N1)[:, None]
    j = (k % N1) * N2 + tl.arange(0, N2)[None, :]
    row = rows + k // N1
    x = tl.load(x_ptr + row.to(tl.int64) * stride + j, mask=(row < n_rows) & (j < d), other=0.0).to(tl.float32)
    flips = tl.load(signs + j, mask=j < d, other=0).to(tl.int32) << 31  # masks that flip the sign bit
    x = _times((x.to(tl.int32, bitcast=True) ^ flips).to(tl.float32, bitcast=True), h2, PARTS, PART)
    if N1 > 1:
        x = tl.reshape(tl.permute(tl.reshape(x, (ROWS, N1, N2)), (0, 2, 1)), (ROWS * N2, N1))
        x = _times(x, h1, PARTS, PART)
    return tl.reshape(x, (ROWS * N1 * N2,))


@triton.jit
def _chosen(x, places, out, wanted, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Return the entries `places[out]` of each row of the flat x, with shape (ROWS, M).

    A flat gather runs across all warps and uses shared memory; within one warp it would use shuffles.
    """
    at = tl.load(places + out, mask=wanted, other=0).to(tl.int32)[None, :] + N * tl.arange(0, ROWS)[:, None]
    return tl.reshape(tl.gather(x, tl.reshape(at, (ROWS * M,)), 0), (ROWS, M))


@triton.jit
def _with_norm(result, wanted, multiplier, factor, floor, row, n_rows, MULTIPLY: tl.constexpr, ROWS: tl.constexpr):
    """Divide rows by their norms and multiply them by factor · multiplier.

    Rows are first divided by their largest entries so that squares cannot overflow.
    """
    result = tl.where(wanted[None, :], result, 0.0)
    top = tl.max(tl.abs(result), axis=1)
    result = result / tl.where(top > 0, top, 1.0)[:, None]
    total = tl.sum(result * result, axis=1)
    root = tl.sqrt(tl.where(total > 0, total, 1.0))
    length = tl.where(top * root < floor, 0.0, factor / root)
    if MULTIPLY:
        rows = row + tl.arange(0, ROWS)
        length = length * tl.load(multiplier + rows, mask=rows < n_rows, other=0.0).to(tl.float32)
    return result * length[:, None]


@triton.jit
def _store(
    result, out_ptr, weights, row, out, n_rows, m, out_stride, WEIGHTED: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    wanted = out < m
    if WEIGHTED:
        result = result * tl.load(weights + out, mask=wanted, other=0.0)[None, :]
    rows = row + tl.arange(0, ROWS)
    target = out_ptr + rows.to(tl.int64)[:, None] * out_stride + out[None, :]
    tl.store(target, result.to(out_ptr.dtype.element_ty), mask=(rows < n_rows)[:, None] & wanted[None, :])


@triton.jit
def _gather_rows(
    a_ptr, b_ptr, out_ptr, a_signs, b_signs, a_rows, b_rows, weights, matrices, multiplier, scale, factor, floor,
    n_blocks, n_rows, a_features, b_features, m, a_stride, b_stride, out_stride,
    PRODUCT: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, ONE_TILE: tl.constexpr,
    NORMALIZE: tl.constexpr, MULTIPLY: tl.constexpr,
    A1: tl.constexpr, A2: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Gather coordinates of a transform, or multiply coordinates gathered from two transforms if PRODUCT.

    Each Triton program loops over many blocks of ROWS rows.
    """
    a1 = _matrix(matrices, A1, PART)
    a2 = _matrix(matrices, A2, PART)
    b1 = _matrix(matrices, B1, PART)
    b2 = _matrix(matrices, B2, PART)
    for block in range(tl.program_id(0), n_blocks, tl.num_programs(0)):
        row = block * ROWS
        a = _transform(a_ptr, a_signs, a1, a2, row, n_rows, a_features, a_stride, ROWS, A1, A2, PARTS, PART)
        out = tl.arange(0, M)
        if ONE_TILE:  # gather from the first transform before the second one needs its registers
            result = _chosen(a, a_rows, out, out < m, ROWS, M, A1 * A2) * scale
            if PRODUCT:
                b = _transform(b_ptr, b_signs, b1, b2, row, n_rows, b_features, b_stride, ROWS, B1, B2, PARTS, PART)
                result = result * _chosen(b, b_rows, out, out < m, ROWS, M, B1 * B2)
            if NORMALIZE:
                if WEIGHTED:
                    result = result * tl.load(weights + out, mask=out < m, other=0.0)[None, :]
                result = _with_norm(result, out < m, multiplier, factor, floor, row, n_rows, MULTIPLY, ROWS)
                _store(result, out_ptr, weights, row, out, n_rows, m, out_stride, False, ROWS)
            else:
                _store(result, out_ptr, weights, row, out, n_rows, m, out_stride, WEIGHTED, ROWS)
        else:
            b = a
            if PRODUCT:
                b = _transform(b_ptr, b_signs, b1, b2, row, n_rows, b_features, b_stride, ROWS, B1, B2, PARTS, PART)
            for start in range(0, m, M):
                at = start + out
                result = _chosen(a, a_rows, at, at < m, ROWS, M, A1 * A2) * scale
                if PRODUCT:
                    result = result * _chosen(b, b_rows, at, at < m, ROWS, M, B1 * B2)
                _store(result, out_ptr, weights, row, at, n_rows, m, out_stride, WEIGHTED, ROWS)


@triton.jit
def _multiply_rows(
    a_ptr, b_ptr, multiplier, out_ptr, n_rows, n_columns, a_stride, b_stride, out_stride, factor, floor,
    PRODUCT: tl.constexpr, NORMALIZE: tl.constexpr, MULTIPLY: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy columns, or multiply two sets of columns if PRODUCT; normalize the result if NORMALIZE."""
    first = tl.program_id(0) * ROWS
    row = (first + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, SIZE)
    known = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    x = tl.load(a_ptr + row[:, None] * a_stride + column[None, :], mask=known, other=0.0).to(tl.float32)
    if PRODUCT:
        x *= tl.load(b_ptr + row[:, None] * b_stride + column[None, :], mask=known, other=0.0).to(tl.float32)
    if NORMALIZE:
        x = _with_norm(x, column < n_columns, multiplier, factor, floor, first, n_rows, MULTIPLY, ROWS)
    tl.store(out_ptr + row[:, None] * out_stride + column[None, :], x.to(out_ptr.dtype.element_ty), mask=known)
