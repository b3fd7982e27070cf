"""Programs on CUDA tensors: signs, Hadamard transform, gather and product in one pass over the rows.

H_n = H_a ⊗ H_b turns the transform of a row, folded to a × b, into two products with small ±1 matrices, H_a X H_b,
which tensor cores compute. ±1 is exact in bfloat16; a float32 entry is the sum of three bfloat16 numbers, so three
products give float32 accuracy, and one gives bfloat16's. The row is transposed between the two products and stays
so: the gather reads the transposed places.

float64 rows, and rows too long for one program, take the array-API way.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ntkit._batching import row_batches
from ntkit.sketches import _agnostic
from ntkit.sketches._program import Gather, Hadamard, Load, Product, Program, Step, operands, power_of_two

LONGEST = 16384  # entries of a row, and of a result, that one program holds
TILE = 2048  # entries of all rows that a program takes at a time, if rows are shorter
PER_WARP = 2048  # entries per warp, of four warps at least
PROGRAMS_PER_PROCESSOR = 16  # each takes many rows, while it loads the next ones; 4 to 32 made little difference
SMALL = 2**28  # bytes that are worth no question how much memory is free: the driver takes its time to answer
_PARTS = {torch.float32: 3, torch.float16: 2, torch.bfloat16: 1}  # bfloat16 numbers that make up an entry


def execute(program: Program, inputs: list[torch.Tensor], batch_size: int | None = None) -> torch.Tensor:
    """Run a program on the rows of CUDA tensors; the outputs side by side."""
    first = inputs[0]
    inputs = [x.contiguous() for x in inputs]
    out = torch.empty((first.shape[0], program.n_outputs), dtype=first.dtype, device=first.device)
    bytes_per_row = 6 * max(program.sizes) * first.dtype.itemsize
    few = batch_size is None and first.shape[0] * bytes_per_row < SMALL
    batches = [slice(None)] if few else row_batches(first.shape[0], bytes_per_row, batch_size=batch_size, like=first)
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        for rows in batches:
            _execute_batch(program, [x[rows] for x in inputs], out[rows])
    return out


def _execute_batch(program: Program, inputs: list[torch.Tensor], out: torch.Tensor) -> None:
    ends = np.cumsum([program.sizes[value] for value in program.outputs])
    views = [out[:, end - program.sizes[value] : end] for value, end in zip(program.outputs, ends, strict=True)]
    targets = dict(zip(program.outputs, views, strict=True))
    numbers = {id(step): number for number, step in enumerate(program.steps)}

    def run(step: Step, values: dict[int, Any]) -> Any:
        number = numbers[id(step)]
        fits = inputs[0].dtype in _PARTS and program.sizes[number] <= LONGEST
        if isinstance(step, Load) and step.constant is None:
            return _Scaled(inputs[step.source], step.scale)
        if isinstance(step, Hadamard) and fits and np.ptp(np.abs(step.diagonal)) == 0:
            x = values[step.value]
            x = x if isinstance(x, _Scaled) else _Scaled(x, 1.0)
            return _Transform(x.rows, np.sign(step.diagonal), x.scale * abs(step.diagonal[0]))
        read = [values[value] for value in operands(step)]
        if isinstance(step, Gather | Product) and fits and all(isinstance(x, _Transform) for x in read):
            tables = program.cache.setdefault((out.device, number), {})
            result = targets.get(number)
            if result is None:
                result = torch.empty((out.shape[0], program.sizes[number]), dtype=out.dtype, device=out.device)
            _launch(step, read, tables, result)
            return result
        return _agnostic.evaluate(step, {value: _computed(x) for value, x in values.items()}, inputs, program)

    results = _agnostic.interpret(program, run)
    for value, view, result in zip(program.outputs, views, results, strict=True):
        if result is not targets[value] or view is not targets[value]:
            view.copy_(_computed(result))


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Rows whose factor is left to whoever reads them."""

    rows: torch.Tensor
    scale: float


@dataclass(frozen=True, eq=False)
class _Transform:
    """scale · H (signs ⊙ rows), not computed yet: whoever gathers from it computes it on the way."""

    rows: torch.Tensor
    signs: np.ndarray
    scale: float


def _computed(x: torch.Tensor | _Scaled | _Transform) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, _Scaled):
        return x.rows * x.scale if x.scale != 1.0 else x.rows
    n = power_of_two(x.rows.shape[1])
    in_order = Gather(0, np.arange(n, dtype=np.int32), np.ones(n))
    result = torch.empty((x.rows.shape[0], n), dtype=x.rows.dtype, device=x.rows.device)
    _launch(in_order, [x], {}, result)
    return result


def _launch(step: Gather | Product, transforms: list[_Transform], tables: dict[str, Any], out: torch.Tensor) -> None:
    """Compute a step whose operands are transforms into `out`; `tables` keeps its draws on the device."""
    if not tables:
        tables |= _tables(step, transforms, out.device)
    a, b = transforms[0].rows, transforms[-1].rows
    n_a, n_b, m = _order(a), _order(b), max(16, power_of_two(out.shape[1]))
    rows = max(TILE // max(n_a, n_b, m), 16 if min(n_a, n_b) < 256 else 1)
    entries = rows * max(n_a, n_b, m)
    blocks = triton.cdiv(len(out), rows)
    grid = (min(blocks, _processors(out.device) * PROGRAMS_PER_PROCESSOR),)
    _kernel[grid](
        a, b, out, tables["a_signs"], tables["b_signs"], tables["a_rows"], tables["b_rows"], tables["weights"],
        tables["matrices"], tables["scale"], blocks, len(out), a.shape[1], b.shape[1], out.shape[1],
        a.stride(0), b.stride(0), out.stride(0),
        PRODUCT=isinstance(step, Product), WEIGHTED=tables["weighted"], ROWS=rows, M=m,
        A1=_fold(n_a), A2=n_a // _fold(n_a), B1=_fold(n_b), B2=n_b // _fold(n_b),
        PARTS=_PARTS[out.dtype], PART=tl.bfloat16 if out.is_cuda else tl.float32,
        num_warps=max(4, entries // PER_WARP), num_stages=3 if entries <= 4096 else 2 if entries <= 8192 else 1,
    )  # fmt: skip


def _order(x: torch.Tensor) -> int:
    """Order of the Hadamard matrix for the rows of x. The first coordinates of H₁₆ x are those of a smaller H x."""
    return max(16, power_of_two(x.shape[1]))


def _fold(n: int) -> int:
    """Number of rows a of the a × b matrix to which n entries are folded; tensor cores want at least 16."""
    return 1 if n < 256 else 1 << (n.bit_length() // 2)


@lru_cache
def _processors(device: Any) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _tables(step: Gather | Product, transforms: list[_Transform], device: Any) -> dict[str, Any]:
    """Draws in few bytes, as every program reads them all: rows fit in 16 bits, as LONGEST does."""
    first, last = transforms[0], transforms[-1]
    chosen = [step.rows, step.rows] if isinstance(step, Gather) else [step.a_rows, step.b_rows]
    weights = step.weights if isinstance(step, Gather) else np.array([step.scale])
    tables: dict[str, Any] = {
        "weights": torch.tensor(weights, dtype=torch.float32, device=device),
        "weighted": bool(np.ptp(weights) > 0),
        "scale": first.scale if isinstance(step, Gather) else first.scale * last.scale,
    }
    if not tables["weighted"]:
        tables["scale"] *= float(weights[0])
    orders = [_agnostic.matrix(1 << k).ravel() for k in range(8)]
    tables["matrices"] = torch.tensor(np.concatenate(orders), dtype=torch.bfloat16, device=device)
    for name, transform, rows in zip("ab", (first, last), chosen, strict=True):
        n = _order(transform.rows)
        i, j = np.divmod(rows, n // _fold(n))
        tables[f"{name}_rows"] = torch.tensor(j * _fold(n) + i, dtype=torch.int16, device=device)
        tables[f"{name}_signs"] = torch.tensor(transform.signs < 0, dtype=torch.int8, device=device)
    return tables


@triton.jit
def _matrix(matrices, ORDER: tl.constexpr, PART: tl.constexpr):
    """H of an order; those of order 1, 2, 4, … lie one after the other: n starts at 1 + 4 + … + n²/4 = (n² − 1)/3."""
    k = tl.arange(0, ORDER)
    return tl.load(matrices + (ORDER * ORDER - 1) // 3 + k[:, None] * ORDER + k[None, :]).to(PART)


@triton.jit
def _high(x):
    """The upper half of the bits of float32 x, a bfloat16 number: masked, as rounding takes a slow instruction."""
    return (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _times(x, h, PARTS: tl.constexpr, PART: tl.constexpr):
    """Product x h for float32 x, as PARTS products of numbers of type PART, the smallest part first."""
    if PARTS == 1:
        return tl.dot(x.to(PART), h)
    high = _high(x)
    rest = x - high
    if PARTS == 2:
        return tl.dot(high.to(PART), h, acc=tl.dot(rest.to(PART), h))
    middle = _high(rest)
    low = rest - middle  # 24 bits less 8 and 8: exact again
    return tl.dot(high.to(PART), h, acc=tl.dot(middle.to(PART), h, acc=tl.dot(low.to(PART), h)))


@triton.jit
def _chosen(
    x_ptr, signs, h1, h2, rows, n_rows, d, stride, places, out, wanted,
    ROWS: tl.constexpr, M: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Entries `places` of H (signs ⊙ x) of some rows, (ROWS, M); H x of a folded row is left transposed."""
    N: tl.constexpr = N1 * N2
    k = tl.arange(0, ROWS * N1)[:, None]
    j = (k % N1) * N2 + tl.arange(0, N2)[None, :]
    row = rows + k // N1
    x = tl.load(x_ptr + row.to(tl.int64) * stride + j, mask=(row < n_rows) & (j < d), other=0.0).to(tl.float32)
    flips = tl.load(signs + j, mask=j < d, other=0).to(tl.int32) << 31  # the sign bit
    x = _times((x.to(tl.int32, bitcast=True) ^ flips).to(tl.float32, bitcast=True), h2, PARTS, PART)
    if N1 > 1:
        x = tl.reshape(tl.permute(tl.reshape(x, (ROWS, N1, N2)), (0, 2, 1)), (ROWS * N2, N1))
        x = _times(x, h1, PARTS, PART)
    # Flat, the gather runs across all warps and goes through shared memory; within one it would be shuffles.
    at = tl.load(places + out, mask=wanted, other=0).to(tl.int32)[None, :] + N * tl.arange(0, ROWS)[:, None]
    return tl.reshape(tl.gather(tl.reshape(x, (ROWS * N,)), tl.reshape(at, (ROWS * M,)), 0), (ROWS, M))


@triton.jit
def _kernel(
    a_ptr, b_ptr, out_ptr, a_signs, b_signs, a_rows, b_rows, weights, matrices, scale,
    n_blocks, n_rows, a_features, b_features, m, a_stride, b_stride, out_stride,
    PRODUCT: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr,
    A1: tl.constexpr, A2: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Gather (or with PRODUCT the product of two gathers) of transforms; each program takes many blocks of ROWS."""
    out = tl.arange(0, M)
    wanted = out < m
    a1 = _matrix(matrices, A1, PART)
    a2 = _matrix(matrices, A2, PART)
    b1 = _matrix(matrices, B1, PART)
    b2 = _matrix(matrices, B2, PART)
    for block in range(tl.program_id(0), n_blocks, tl.num_programs(0)):
        row = block * ROWS
        result = _chosen(
            a_ptr, a_signs, a1, a2, row, n_rows, a_features, a_stride, a_rows, out, wanted,
            ROWS, M, A1, A2, PARTS, PART,
        )  # fmt: skip
        if PRODUCT:
            result = result * _chosen(
                b_ptr, b_signs, b1, b2, row, n_rows, b_features, b_stride, b_rows, out, wanted,
                ROWS, M, B1, B2, PARTS, PART,
            )  # fmt: skip
        result = result * scale
        if WEIGHTED:
            result = result * tl.load(weights + out, mask=wanted, other=0.0)[None, :]
        rows = row + tl.arange(0, ROWS)
        target = out_ptr + rows.to(tl.int64)[:, None] * out_stride + out[None, :]
        tl.store(target, result.to(out_ptr.dtype.element_ty), mask=(rows < n_rows)[:, None] & wanted[None, :])
