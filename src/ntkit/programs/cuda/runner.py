"""Run programs on a CUDA device.

Fused steps run in Triton kernels, matrix products in torch, rare steps in array-API code. float64 rows, and rows too
long for one Triton program, also use array-API code. Where possible, a step writes its value directly into its columns
of the result or of a concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from ntkit._batching import batch_rows
from ntkit.programs import array_api
from ntkit.programs import steps as s
from ntkit.programs.analysis import interpret, output_slices, peak_live, readers
from ntkit.programs.cuda import fusion, kernels
from ntkit.programs.program import Program

SMALL_BYTES = 2**28  # below this total size, don't query free memory: the driver call is slow
MAX_ROWS = 2**19  # rows processed at a time
_FUSED = (torch.float32, torch.float16, torch.bfloat16)
_WRITERS = fusion.FusedStep, s.ScaleBy, s.DivideByNorm
Tensors: TypeAlias = list[torch.Tensor]
Tables: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class FusedPlan:
    """The fused program for one kind of dtype, with the analyses that every pass needs."""

    program: Program
    readers: list[list[int]]
    slices: list[slice]
    numbers_per_row: int


def run(program: Program, inputs: Tensors, batch_size: int | None = None) -> torch.Tensor:
    """Run a program on the rows of CUDA tensors of one dtype; return the concatenated outputs."""
    first = inputs[0]
    how = plan(program, first.dtype)
    inputs = [x.contiguous() for x in inputs]
    n_rows = first.shape[0]
    out = torch.empty((n_rows, program.n_outputs), dtype=first.dtype, device=first.device)
    bytes_per_row = how.numbers_per_row * first.dtype.itemsize
    step = max(n_rows, 1)
    if batch_size is not None or n_rows * bytes_per_row >= SMALL_BYTES:
        step = batch_rows(n_rows, bytes_per_row, batch_size=batch_size, like=first)
    step = min(step, MAX_ROWS)
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        for start in range(0, n_rows, step):
            rows = slice(start, start + step)
            _Pass(how, [x[rows] for x in inputs], out[rows]).run()
    return out


def plan(program: Program, dtype: torch.dtype) -> FusedPlan:
    """Return the plan of a program for a dtype; the program caches it."""
    half = dtype.itemsize < 4
    key = "cuda", half, dtype in _FUSED
    if key not in program.cache:
        fused = program
        if half and fusion.suits_multiplication(program):
            fused = fusion.multiply_transforms(program)
        elif dtype in _FUSED:
            fused = fusion.fuse_transforms(program)
        numbers = peak_live(fused, partial(_workspace, fused, half))
        program.cache[key] = FusedPlan(fused, readers(fused), output_slices(fused), numbers)
    return program.cache[key]


def _workspace(program: Program, half: bool, index: int) -> int:
    """Return how many numbers per row a step needs in addition to operands and result.

    Array-API code converts 16-bit numbers to float32.
    """
    step = program.steps[index]
    if isinstance(step, fusion.FusedStep):
        return 0
    widened = 2 * (step.size + sum(map(program.size, step.operands))) if half else 0
    return array_api.workspace(program, index) * (2 if half else 1) + widened


class _Pass:
    """One pass of a batch of rows through a program."""

    def __init__(self, how: FusedPlan, inputs: Tensors, out: torch.Tensor):
        self.program, self.readers, self.inputs, self.out = how.program, how.readers, inputs, out
        self.views = [out[:, columns] for columns in how.slices]
        self.targets = dict(zip(reversed(self.program.outputs), reversed(self.views), strict=True))
        self.buffers: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        """Compute all steps and write the result."""
        results = interpret(self.program, self.compute)
        for result, view in zip(results, self.views, strict=True):
            if result.data_ptr() != view.data_ptr() or result.dtype != view.dtype:
                view.copy_(result)

    def compute(self, index: int, read: Tensors) -> torch.Tensor:
        """Compute the value of one step, in its final place if it has one."""
        if index in self.buffers:  # a concatenation whose parts were written in place
            return self.buffers[index]
        step, place = self.program.steps[index], self.place(index)
        tables = self.program.cache.setdefault((self.out.device, self.out.dtype, index), {})
        if isinstance(step, fusion.FusedStep):
            out = self.out.new_empty((self.out.shape[0], step.size)) if place is None else place
            if isinstance(step, fusion.GatherTransforms):
                return kernels.gather_transforms(step, fusion.orders(self.program, step), read, tables, out)
            assert isinstance(step, fusion.MultiplyColumns)
            return kernels.multiply_columns(step, read, out)
        if isinstance(step, s.Load) and step.constant is None:
            x = self.inputs[step.source]
            return x if step.scale == 1.0 else x * step.scale
        if type(step) in _STEPS:
            result = _STEPS[type(step)](step, read, tables)
        else:  # sums of 16-bit numbers need a higher precision
            wide = torch.float64 if self.out.dtype == torch.float64 else torch.float32
            wide_inputs = [x.to(wide) for x in self.inputs]
            result = array_api.apply_step(step, [x.to(wide) for x in read], wide_inputs).to(self.out.dtype)
        return result if place is None or index in self.targets else place.copy_(result)

    def place(self, index: int) -> torch.Tensor | None:
        """Return where to write a value: its columns of the result or of a concatenation; None for new memory."""
        if index in self.targets:
            return self.targets[index]
        used = self.readers[index]
        step = self.program.steps[used[0]] if len(used) == 1 else None
        if not isinstance(step, s.Concatenate) or not self.is_in_place(step):
            return None
        if used[0] not in self.buffers:
            place = self.place(used[0])
            shape = (self.out.shape[0], step.size)
            self.buffers[used[0]] = self.out.new_empty(shape) if place is None else place
        start = sum(self.program.size(value) for value in step.operands[: step.operands.index(index)])
        return self.buffers[used[0]][:, start : start + self.program.size(index)]

    def is_in_place(self, step: s.Concatenate) -> bool:
        """Return whether all parts of a concatenation can be written directly into it."""
        return set(step.weights) == {1.0} and all(
            isinstance(self.program.steps[value], _WRITERS)
            and len(self.readers[value]) == 1
            and value not in self.targets
            for value in step.operands
        )


def _norm(x: torch.Tensor) -> torch.Tensor:
    """Compute norms of rows, summed in float64 so that squares cannot overflow.

    The result for 16-bit rows is float32, since a norm may exceed the range of float16.
    """
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)
    return norm if x.dtype == torch.float64 else norm.float()


def _scale(step: s.ScaleBy, read: Tensors, _: Tables) -> torch.Tensor:
    x, c = read
    return (x * (step.factor * (array_api.inverse(c) if step.inverse else c))).to(x.dtype)


def _normalize(step: s.DivideByNorm, read: Tensors, _: Tables) -> torch.Tensor:
    factors = step.factor * array_api.inverse(_norm(read[0]), step.floor)
    return (read[0] * (factors if len(read) == 1 else factors * read[1])).to(read[0].dtype)


def _activate(step: s.Threshold, read: Tensors, _: Tables) -> torch.Tensor:
    (x,) = read
    return (torch.relu(x) if step.kind == "relu" else (x > 0).to(x.dtype)).mul_(step.scale)


def _dense(step: s.MatrixProduct, read: Tensors, tables: Tables) -> torch.Tensor:
    (x,) = read
    if not tables:
        tables["matrix"] = torch.tensor(step.matrix.T, dtype=x.dtype, device=x.device).contiguous()
    return torch.matmul(x, tables["matrix"])


def _gather(step: s.Gather | s.Product, read: Tensors, tables: Tables) -> torch.Tensor:
    if not tables:
        rows = [step.rows] if isinstance(step, s.Gather) else [step.a_rows, step.b_rows]
        weights = step.weights.copy() if isinstance(step, s.Gather) else step.scale
        tables["rows"] = [torch.tensor(r, dtype=torch.int32, device=read[0].device) for r in rows]
        tables["weights"] = torch.tensor(weights, dtype=read[0].dtype, device=read[0].device)
    picked = [torch.index_select(x, 1, rows) for x, rows in zip(read, tables["rows"], strict=True)]
    result = picked[0].mul_(tables["weights"])
    return result if len(picked) == 1 else result.mul_(picked[1])


_STEPS: dict[type[s.Step], Callable[[Any, Tensors, Tables], torch.Tensor]] = {
    s.Slice: lambda step, read, _: read[0][:, step.start : step.start + step.size],
    s.EuclideanNorm: lambda step, read, _: _norm(read[0]),  # noqa: ARG005
    s.ScaleBy: _scale,
    s.DivideByNorm: _normalize,
    s.Threshold: _activate,
    s.MatrixProduct: _dense,
    s.Gather: _gather,
    s.Product: _gather,
}
"""Steps for which torch is faster than array-API code; `tables` caches matrices and draws on the device."""
