"""Programs on CUDA tensors of 16-bit numbers: transforms as matrix products.

A gathered transform, weights ⊙ (H D v)[rows], is a matrix of ±weights times v, and up to some 2000 coordinates tensor
cores multiply by it in little more than the time v takes to be read. So all that a program gathers from one value is
one matrix product, and one kernel multiplies its columns, divides by the norm and writes them where they belong.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ntkit._batching import batch_rows
from ntkit.sketches import _agnostic
from ntkit.sketches._program import (
    Activate,
    Concatenate,
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
from ntkit.sketches._triton import Normalized, elementwise, normalized_values

LONGEST = 2048  # coordinates of a value whose transform is a matrix product
ROWS = 2**19  # that are in flight at a time
TILE = 4096  # numbers of the result that a program has at a time
WIDEST = 8192  # columns of a result that one program takes


def suits(program: Program) -> bool:
    """Whether a program gathers from transforms, and only from short ones."""
    if "products" not in program.cache:
        sizes = [program.sizes[step.value] for step in program.steps if isinstance(step, Hadamard)]
        transforms = bool(sizes)
        gathers = all(
            isinstance(program.steps[reader], Gather | Product)
            for number, readers in _readers(program).items()
            if isinstance(program.steps[number], Hadamard)
            for reader in readers
        )
        for number, step in enumerate(program.steps):
            if isinstance(step, Gather | Product):
                sizes += [program.sizes[v] for v in operands(step) if not isinstance(program.steps[v], Hadamard)]
                gathers &= program.sizes[number] <= WIDEST
        outputs = any(isinstance(program.steps[number], Hadamard) for number in program.outputs)
        program.cache["products"] = transforms and max(sizes) <= LONGEST and gathers and not outputs
    return bool(program.cache["products"])


def execute(program: Program, inputs: list[torch.Tensor], batch_size: int | None = None) -> torch.Tensor:
    """Run a program on the rows of CUDA tensors of 16-bit numbers; the outputs side by side."""
    first = inputs[0]
    out = torch.empty((first.shape[0], program.n_outputs), dtype=first.dtype, device=first.device)
    key = ("matrices", first.device, first.dtype)
    if key not in program.cache:
        program.cache[key] = _matrices(program, first)
    n_gathered = sum(source.matrix.shape[1] for source in program.cache[key].values())
    per_row = first.dtype.itemsize * (n_gathered + 4 * max(program.sizes))
    step = min(ROWS, batch_rows(first.shape[0], per_row, batch_size=batch_size, like=first))
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        for start in range(0, first.shape[0], step):
            rows = slice(start, start + step)
            _Run(program, [x[rows] for x in inputs], out[rows], program.cache[key]).run()
    return out


@dataclass(frozen=True, eq=False)
class _Source:
    """All that is gathered from one value: the matrix, and the columns of each (step, operand)."""

    matrix: torch.Tensor
    columns: dict[tuple[int, int], slice]


def _matrices(program: Program, like: torch.Tensor) -> dict[int, _Source]:
    """For every value that is gathered from, directly or transformed, one matrix for all who do."""
    blocks: dict[int, list[tuple[tuple[int, int], np.ndarray]]] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Gather):
            reads = [(step.value, step.rows, step.weights)]
        elif isinstance(step, Product):
            reads = [(step.a, step.a_rows, np.full(1, step.scale)), (step.b, step.b_rows, np.ones(1))]
        else:
            continue
        for side, (value, rows, weights) in enumerate(reads):
            transform: Any = program.steps[value]
            if isinstance(transform, Hadamard):
                size = program.sizes[transform.value]
                odd = np.bitwise_count(rows[:, None] & np.arange(size, dtype=rows.dtype)) % 2
                matrix = (1.0 - 2.0 * odd) * transform.diagonal
                value = transform.value
            else:
                matrix = np.zeros((len(rows), program.sizes[value]))
                matrix[np.arange(len(rows)), rows] = 1.0
            blocks.setdefault(value, []).append(((number, side), weights[:, None] * matrix))
    sources = {}
    for value, parts in blocks.items():
        ends = np.cumsum([len(matrix) for _, matrix in parts])
        columns = {key: slice(end - len(matrix), end) for (key, matrix), end in zip(parts, ends, strict=True)}
        whole = np.concatenate([matrix for _, matrix in parts]).T
        padding = -whole.shape[1] % 8  # rows of the product that begin at multiples of 16 bytes
        whole = np.pad(whole, ((0, 0), (0, padding)))
        sources[value] = _Source(torch.tensor(whole, dtype=like.dtype, device=like.device), columns)
    return sources


def _readers(program: Program) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(program.steps):
        for value in operands(step):
            readers.setdefault(value, []).append(number)
    return readers


@dataclass(eq=False)
class _Run:
    """One pass of some rows through a program."""

    program: Program
    inputs: list[torch.Tensor]
    out: torch.Tensor
    sources: dict[int, _Source]
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)

    def run(self) -> None:
        """Compute all steps and the result."""
        program = self.program
        self.readers, self.normalized = _readers(program), normalized_values(program)
        ends = np.cumsum([program.sizes[value] for value in program.outputs])
        pairs = zip(program.outputs, ends, strict=True)
        views = [self.out[:, end - program.sizes[value] : end] for value, end in pairs]
        self.views = dict(zip(program.outputs, views, strict=True))
        for result, view in zip(_agnostic.interpret(program, self.step), views, strict=True):
            if result.data_ptr() != view.data_ptr():
                view.copy_(result)

    def step(self, number: int, values: dict[int, Any]) -> Any:
        """Compute one step."""
        step = self.program.steps[number]
        read = [values[value] for value in operands(step)]
        if done := next((x for x in read if isinstance(x, Normalized)), None):
            return done.rows if number == done.last else done
        if isinstance(step, Load) and step.constant is None:
            return self.inputs[step.source] * step.scale if step.scale != 1.0 else self.inputs[step.source]
        if isinstance(step, Hadamard):
            self.multiplied(step.value, values)
            return None
        if isinstance(step, Gather | Product):
            return self.gather(number, values)
        if isinstance(step, Concatenate) and number in self.buffers:
            return self.buffers[number]
        if isinstance(step, Norm | Scale | Dense | Activate):
            tables = self.program.cache.setdefault((self.out.device, self.out.dtype, number), {})
            result = elementwise(step, read, tables)
            place = self.place(number)
            return result if place is None else place.copy_(result)
        known = {value: x.float() for value, x in zip(operands(step), read, strict=True)}  # sums need more digits
        return _agnostic.evaluate(self.program, number, known, [x.float() for x in self.inputs]).to(self.out.dtype)

    def multiplied(self, value: int, values: dict[int, Any]) -> torch.Tensor:
        """All that is gathered from a value: one product, when the first is asked for."""
        if value not in self.gathered:
            self.gathered[value] = torch.matmul(values[value], self.sources[value].matrix)
        return self.gathered[value]

    def gather(self, number: int, values: dict[int, Any]) -> torch.Tensor | Normalized:
        """Columns of the products, multiplied and divided by their norms where that comes next."""
        step: Any = self.program.steps[number]
        sides = []
        for side, value in enumerate(operands(step)):
            transform: Any = self.program.steps[value]
            source = transform.value if isinstance(transform, Hadamard) else value
            sides.append(self.multiplied(source, values)[:, self.sources[source].columns[number, side]])
        if number not in self.normalized:
            return _multiply(sides, self.place(number))
        last, by, factor, floor = self.normalized[number]
        scale = None if by is None else values[by].contiguous()
        return Normalized(_multiply(sides, self.place(last), by=scale, factor=factor, floor=floor), last)

    def place(self, number: int) -> torch.Tensor | None:
        """Where a value goes: the result, its columns of a concatenation, or (None) memory of its own."""
        if number in self.views:
            return self.views[number]
        readers = self.readers.get(number, [])
        step = self.program.steps[readers[0]] if len(readers) == 1 else None
        if not isinstance(step, Concatenate) or set(step.weights) != {1.0} or self.later(step):
            return None
        if readers[0] not in self.buffers:
            place = self.place(readers[0])
            shape = (self.out.shape[0], self.program.sizes[readers[0]])
            self.buffers[readers[0]] = self.out.new_empty(shape) if place is None else place
        before = sum(self.program.sizes[value] for value in step.values[: step.values.index(number)])
        return self.buffers[readers[0]][:, before : before + self.program.sizes[number]]

    def later(self, step: Concatenate) -> bool:
        """Whether a part of a concatenation comes from elsewhere, so that it cannot be written there at once."""
        kinds = Gather, Product, Scale
        return any(
            not isinstance(self.program.steps[value], kinds) or len(self.readers[value]) > 1 or value in self.views
            for value in step.values
        )


def _multiply(
    sides: list[torch.Tensor],
    out: torch.Tensor | None,
    *,
    by: torch.Tensor | None = None,
    factor: float | None = None,
    floor: float = 0.0,
) -> torch.Tensor:
    """Product of one or two blocks of columns; with a `factor` every row gets the norm factor · `by` (1 if None)."""
    a, b = sides[0], sides[-1]
    if out is None:
        if len(sides) == 1 and factor is None:
            return a
        out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    size = power_of_two(a.shape[1])
    rows = max(1, TILE // size)
    if len(a):
        _multiply_rows[(triton.cdiv(len(a), rows),)](
            a, b, out if by is None else by, out, len(a), a.shape[1], a.stride(0), b.stride(0), out.stride(0),
            1.0 if factor is None else factor, floor, PRODUCT=len(sides) == 2, NORMALIZE=factor is not None,
            BY=by is not None, ROWS=rows, SIZE=size, num_warps=4 if rows * size <= 4096 else 8,
        )  # fmt: skip
    return out


@triton.jit
def _multiply_rows(
    a_ptr, b_ptr, by_ptr, out_ptr, n_rows, n_columns, a_stride, b_stride, out_stride, factor, floor,
    PRODUCT: tl.constexpr, NORMALIZE: tl.constexpr, BY: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, SIZE)
    known = (row < n_rows)[:, None] & (column < n_columns)[None, :]
    x = tl.load(a_ptr + row[:, None] * a_stride + column[None, :], mask=known, other=0.0).to(tl.float32)
    if PRODUCT:
        x *= tl.load(b_ptr + row[:, None] * b_stride + column[None, :], mask=known, other=0.0).to(tl.float32)
    if NORMALIZE:
        norm = tl.sqrt(tl.sum(x * x, axis=1))
        small = norm < tl.maximum(floor, 1e-38)
        scale = tl.where(small, 0.0, factor / tl.where(small, 1.0, norm))
        if BY:
            scale *= tl.load(by_ptr + row, mask=row < n_rows, other=0.0).to(tl.float32)
        x *= scale[:, None]
    tl.store(out_ptr + row[:, None] * out_stride + column[None, :], x.to(out_ptr.dtype.element_ty), mask=known)
