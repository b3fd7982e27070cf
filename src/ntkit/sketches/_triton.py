"""Programs on CUDA tensors: signs, Hadamard transform, gather and product in one pass over the rows.

H_n = H_a ⊗ H_b turns the transform of a row, folded to a × b, into two products with small ±1 matrices, H_a X H_b,
which tensor cores compute. ±1 is exact in bfloat16; a float32 entry is the sum of three bfloat16 numbers, so three
products give float32 accuracy, and one gives bfloat16's. The row is transposed between the two products and stays
so: the gather reads the transposed places.

A result that is divided by its norm next (most nodes of normalized sketches are) leaves the kernel that way.
float64 rows, and rows too long for one program, take the array-API way; matrix products are torch's.
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
from ntkit.sketches._program import (
    Activate,
    Dense,
    Gather,
    Hadamard,
    Load,
    Norm,
    Product,
    Program,
    Scale,
    operands,
    power_of_two,
)

LONGEST = 16384  # entries of a row that one program transforms
TILE = 2048  # entries of all rows that a program takes at a time, if rows are shorter
WIDEST = 4096  # coordinates of a result, longer than its transforms, that a program has at a time
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

    def place(number: int) -> torch.Tensor:
        """Where a value goes: its columns of the result, or memory of its own."""
        if number in targets:
            return targets[number]
        return torch.empty((out.shape[0], program.sizes[number]), dtype=out.dtype, device=out.device)

    normalized = normalized_values(program) if out.dtype in _PARTS else {}

    def run(number: int, values: dict[int, Any]) -> Any:
        step = program.steps[number]
        tables = program.cache.setdefault((out.device, out.dtype, number), {})
        if any(isinstance(values[value], Normalized) for value in operands(step)):
            # Of the steps that normalize a value, the last gets what its kernel has already computed.
            done = next(x for value in operands(step) if isinstance(x := values[value], Normalized))
            return done.rows if number == done.last else done
        if isinstance(step, Load) and step.constant is None:
            return _Scaled(inputs[step.source], step.scale)
        if isinstance(step, Hadamard) and out.dtype in _PARTS and (signs := _signs(program, step)) is not None:
            x = values[step.value]
            x = x if isinstance(x, _Scaled) else _Scaled(_computed(x), 1.0)
            transform = _Transform(x.rows, signs, x.scale * abs(step.diagonal[0]))
            return _computed(transform, place(number), tables) if number in targets else transform
        read = {value: values[value] for value in operands(step)}
        if isinstance(step, Gather | Product) and all(isinstance(x, _Transform) for x in read.values()):
            transforms = [values[value] for value in operands(step)]
            if number in normalized and _in_one_tile(transforms, program.sizes[number]):
                last, by, factor, floor = normalized[number]
                scale = None if by is None else _computed(values[by])
                rows = _launch(step, transforms, tables, place(last), by=scale, factor=factor, floor=floor)
                return Normalized(rows, last)
            return _launch(step, transforms, tables, place(number))
        if isinstance(step, Dense | Norm | Scale | Activate | Gather | Product):
            return elementwise(step, [_computed(values[value]) for value in operands(step)], tables)
        wide = torch.float64 if out.dtype == torch.float64 else torch.float32  # sums of halves need more digits
        known = {value: _computed(x).to(wide) for value, x in read.items()}
        return _agnostic.evaluate(program, number, known, [x.to(wide) for x in inputs]).to(out.dtype)

    results = _agnostic.interpret(program, run)
    for value, view, result in zip(program.outputs, views, results, strict=True):
        if result is not targets[value] or view is not targets[value]:
            view.copy_(_computed(result))


def normalized_values(program: Program) -> dict[int, tuple[int, int | None, float, float]]:
    """Values read only to be divided by their norms: (last step of that, value of the new norm, factor, floor)."""
    if "normalized" in program.cache:
        return program.cache["normalized"]
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(program.steps):
        for value in operands(step):
            readers.setdefault(value, []).append(number)
    found: dict[int, tuple[int, int | None, float, float]] = {}
    for number, step in enumerate(program.steps):
        if not isinstance(step, Gather | Product) or number in program.outputs:
            continue
        norms = [r for r in readers.get(number, ()) if isinstance(program.steps[r], Norm)]
        scales = [r for r in readers.get(number, ()) if isinstance(program.steps[r], Scale)]
        if len(norms) != 1 or len(scales) != 1 or len(readers[number]) != 2 or norms[0] in program.outputs:
            continue
        (norm,), (last,) = norms, scales
        final: Any = program.steps[last]
        if final.inverse and final.by == norm and readers[norm] == [last]:
            found[number] = (last, None, final.factor, final.floor)
            continue
        ratio: Any = program.steps[final.by]
        apart = isinstance(ratio, Scale) and ratio.inverse and ratio.by == norm and ratio.value < number
        if apart and not final.inverse and readers[norm] == [final.by] and readers[final.by] == [last]:
            found[number] = (last, ratio.value, final.factor * ratio.factor, ratio.floor)
    program.cache["normalized"] = found
    return found


def elementwise(step: Any, read: list[torch.Tensor], tables: dict[str, Any]) -> torch.Tensor:
    """Steps that torch computes in one or two passes; `tables` keeps matrices and draws on the device."""
    x = read[0]
    if isinstance(step, Norm):  # summed in float64: squares cannot overflow; halves could not hold the result
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
        return norm if x.dtype == torch.float64 else norm.float()
    if isinstance(step, Scale):
        by = read[1]
        if step.inverse:
            factors = torch.where(by < max(step.floor, torch.finfo(by.dtype).tiny), 0.0, step.factor / by)
        else:
            factors = step.factor * by
        return (x * factors).to(x.dtype)
    if isinstance(step, Activate):
        return (torch.relu(x) if step.kind == "relu" else (x > 0).to(x.dtype)).mul_(step.scale)
    if isinstance(step, Dense):
        if not tables:
            tables |= {"matrix": torch.tensor(step.matrix.T, dtype=x.dtype, device=x.device).contiguous()}
        return torch.matmul(x, tables["matrix"])
    if not tables:
        rows = [step.rows] if isinstance(step, Gather) else [step.a_rows, step.b_rows]
        weights = step.weights if isinstance(step, Gather) else step.scale
        tables |= {
            "rows": [torch.tensor(r, dtype=torch.int32, device=x.device) for r in rows],
            "weights": torch.tensor(weights, dtype=x.dtype, device=x.device),
        }
    picked = [torch.index_select(y, 1, r) for y, r in zip(read, tables["rows"], strict=True)]
    result = picked[0].mul_(tables["weights"])
    return result if len(picked) == 1 else result.mul_(picked[1])


def _signs(program: Program, step: Hadamard) -> np.ndarray | None:
    """Signs of a transform that can be left to whoever gathers from it; None if too long or not signs of one size."""
    key = ("signs", id(step))
    if key not in program.cache:
        fits = len(step.diagonal) <= LONGEST and np.ptp(np.abs(step.diagonal)) == 0
        program.cache[key] = np.sign(step.diagonal) if fits else None
    return program.cache[key]


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


@dataclass(frozen=True, eq=False)
class Normalized:
    """Rows already divided by their norms, until the `last` of the steps that say so."""

    rows: torch.Tensor
    last: int


def _computed(
    x: torch.Tensor | _Scaled | _Transform, out: torch.Tensor | None = None, tables: dict[str, Any] | None = None
) -> torch.Tensor:
    """The value itself; a transform is gathered in order."""
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, _Scaled):
        return x.rows * x.scale if x.scale != 1.0 else x.rows
    n = power_of_two(x.rows.shape[1])
    if out is None:
        out = torch.empty((x.rows.shape[0], n), dtype=x.rows.dtype, device=x.rows.device)
    in_order = Gather(0, np.arange(n, dtype=np.int32), np.ones(n))
    return _launch(in_order, [x], {} if tables is None else tables, out)


def _tile(longest: int, size: int) -> int:
    """Coordinates of the result that a kernel has at a time, where its transforms are as long as `longest`."""
    widest = min(4 * longest, max(longest, WIDEST)) if longest >= 1024 else longest  # of short ones there are many rows
    return min(widest, max(16, power_of_two(size)))


def _in_one_tile(transforms: list[_Transform], size: int) -> bool:
    """Whether a kernel has whole rows of the result at a time."""
    return size <= _tile(max(_orders(transforms[0].rows, transforms[-1].rows)), size)


def _launch(
    step: Gather | Product,
    transforms: list[_Transform],
    tables: dict[str, Any],
    out: torch.Tensor,
    *,
    by: torch.Tensor | None = None,
    factor: float | None = None,
    floor: float = 0.0,
) -> torch.Tensor:
    """Compute a step whose operands are transforms into `out`; `tables` keeps its draws on the device.

    With a `factor` every row gets the norm factor · `by` (1 if None), or 0 if it was below `floor`.
    """
    a, b = transforms[0].rows, transforms[-1].rows
    n_a, n_b = _orders(a, b)
    if not tables:
        tables |= _tables(step, transforms, (n_a, n_b), out.device)
    longest = max(n_a, n_b)
    rows = max(1, TILE // longest)
    blocks = triton.cdiv(len(out), rows)
    grid = (min(blocks, _processors(out.device) * PROGRAMS_PER_PROCESSOR),)
    _kernel[grid](
        a, b, out, tables["a_signs"], tables["b_signs"], tables["a_rows"], tables["b_rows"], tables["weights"],
        tables["matrices"], out if by is None else by, tables["scale"], 1.0 if factor is None else factor, floor,
        blocks, len(out), a.shape[1], b.shape[1], out.shape[1], a.stride(0), b.stride(0), out.stride(0),
        PRODUCT=isinstance(step, Product), WEIGHTED=tables["weighted"], ROWS=rows,
        NORMALIZE=factor is not None, BY=by is not None,
        M=_tile(longest, out.shape[1]), ONE_TILE=out.shape[1] <= _tile(longest, out.shape[1]),
        A1=_fold(n_a), A2=n_a // _fold(n_a), B1=_fold(n_b), B2=n_b // _fold(n_b),
        PARTS=_PARTS[out.dtype], PART=tl.bfloat16 if out.is_cuda else tl.float32,
        num_warps=max(4, rows * longest // PER_WARP), num_stages=3 if longest <= 4096 else 2 if longest <= 8192 else 1,
    )  # fmt: skip
    return out


def _orders(a: torch.Tensor, b: torch.Tensor) -> tuple[int, int]:
    """Orders of the Hadamard matrices for the rows of a and b: tensor cores want 16 rows of 16 entries at least.

    The first coordinates of a larger H x are those of a smaller one, so a short factor beside a long one, of which a
    program takes few rows, is padded to 16 × 16.
    """
    n_a, n_b = (max(16, power_of_two(x.shape[1])) for x in (a, b))
    least = 256 if max(n_a, n_b) * 16 > TILE else 16
    return max(n_a, least), max(n_b, least)


def _fold(n: int) -> int:
    """Number of rows a of the a × b matrix to which n entries are folded; short ones are not."""
    return 1 if n < 256 else 1 << (n.bit_length() // 2)


@lru_cache
def _processors(device: Any) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _tables(
    step: Gather | Product, transforms: list[_Transform], orders: tuple[int, int], device: Any
) -> dict[str, Any]:
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
    matrices = [_agnostic.matrix(1 << k).ravel() for k in range(8)]
    tables["matrices"] = torch.tensor(np.concatenate(matrices), dtype=torch.bfloat16, device=device)
    for name, transform, rows, n in zip("ab", (first, last), chosen, orders, strict=True):
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
    rest = tl.where(high == x, 0.0, x - high)  # of an infinity nothing is left
    if PARTS == 2:
        return tl.dot(high.to(PART), h, acc=tl.dot(rest.to(PART), h))
    middle = _high(rest)
    low = rest - middle  # 24 bits less 8 and 8: exact again
    return tl.dot(high.to(PART), h, acc=tl.dot(middle.to(PART), h, acc=tl.dot(low.to(PART), h)))


@triton.jit
def _transform(
    x_ptr, signs, h1, h2, rows, n_rows, d, stride,
    ROWS: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """H (signs ⊙ x) of some rows, flat (ROWS · N1 · N2); a folded row is left transposed."""
    k = tl.arange(0, ROWS * N1)[:, None]
    j = (k % N1) * N2 + tl.arange(0, N2)[None, :]
    row = rows + k // N1
    x = tl.load(x_ptr + row.to(tl.int64) * stride + j, mask=(row < n_rows) & (j < d), other=0.0).to(tl.float32)
    flips = tl.load(signs + j, mask=j < d, other=0).to(tl.int32) << 31  # the sign bit
    x = _times((x.to(tl.int32, bitcast=True) ^ flips).to(tl.float32, bitcast=True), h2, PARTS, PART)
    if N1 > 1:
        x = tl.reshape(tl.permute(tl.reshape(x, (ROWS, N1, N2)), (0, 2, 1)), (ROWS * N2, N1))
        x = _times(x, h1, PARTS, PART)
    return tl.reshape(x, (ROWS * N1 * N2,))


@triton.jit
def _chosen(x, places, out, wanted, ROWS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Entries `places` of each row of the flat x, (ROWS, M).

    Flat, the gather runs across all warps and goes through shared memory; within one warp it would be shuffles.
    """
    at = tl.load(places + out, mask=wanted, other=0).to(tl.int32)[None, :] + N * tl.arange(0, ROWS)[:, None]
    return tl.reshape(tl.gather(x, tl.reshape(at, (ROWS * M,)), 0), (ROWS, M))


@triton.jit
def _with_norm(result, wanted, by, factor, floor, row, n_rows, BY: tl.constexpr, ROWS: tl.constexpr):
    """Rows over their norms, taken apart from their largest entries as squares could overflow, times factor · by."""
    result = tl.where(wanted[None, :], result, 0.0)
    top = tl.max(tl.abs(result), axis=1)
    result = result / tl.where(top > 0, top, 1.0)[:, None]
    total = tl.sum(result * result, axis=1)
    root = tl.sqrt(tl.where(total > 0, total, 1.0))
    length = tl.where(top * root < floor, 0.0, factor / root)
    if BY:
        rows = row + tl.arange(0, ROWS)
        length = length * tl.load(by + rows, mask=rows < n_rows, other=0.0).to(tl.float32)
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
def _kernel(
    a_ptr, b_ptr, out_ptr, a_signs, b_signs, a_rows, b_rows, weights, matrices, by, scale, factor, floor,
    n_blocks, n_rows, a_features, b_features, m, a_stride, b_stride, out_stride,
    PRODUCT: tl.constexpr, WEIGHTED: tl.constexpr, ROWS: tl.constexpr, M: tl.constexpr, ONE_TILE: tl.constexpr,
    NORMALIZE: tl.constexpr, BY: tl.constexpr,
    A1: tl.constexpr, A2: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Gather (or with PRODUCT the product of two gathers) of transforms; each program takes many blocks of ROWS."""
    a1 = _matrix(matrices, A1, PART)
    a2 = _matrix(matrices, A2, PART)
    b1 = _matrix(matrices, B1, PART)
    b2 = _matrix(matrices, B2, PART)
    for block in range(tl.program_id(0), n_blocks, tl.num_programs(0)):
        row = block * ROWS
        a = _transform(a_ptr, a_signs, a1, a2, row, n_rows, a_features, a_stride, ROWS, A1, A2, PARTS, PART)
        out = tl.arange(0, M)
        if ONE_TILE:  # the first transform is gathered before the second needs its registers
            result = _chosen(a, a_rows, out, out < m, ROWS, M, A1 * A2) * scale
            if PRODUCT:
                b = _transform(b_ptr, b_signs, b1, b2, row, n_rows, b_features, b_stride, ROWS, B1, B2, PARTS, PART)
                result = result * _chosen(b, b_rows, out, out < m, ROWS, M, B1 * B2)
            if NORMALIZE:
                if WEIGHTED:
                    result = result * tl.load(weights + out, mask=out < m, other=0.0)[None, :]
                result = _with_norm(result, out < m, by, factor, floor, row, n_rows, BY, ROWS)
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
