"""Passes that fuse steps for CUDA: a transform, a gather from it and its normalization become one step.

:func:`fuse_transforms` is for float32, and for 16-bit numbers with long rows. :func:`multiply_transforms` is for 16-bit
numbers: a gathered transform, weights ⊙ (H D v)[rows], is the product of a matrix of ±weights with v. For up to about
2000 coordinates, tensor cores compute this product in little more than the time it takes to read v. So everything that
a program gathers from one value becomes one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ntkit.programs import steps as s
from ntkit.programs.analysis import readers
from ntkit.programs.passes import rewrite
from ntkit.programs.program import Program

LONGEST_TRANSFORM = 16384  # longest row, in entries, that one Triton program transforms
LONGEST_MATRIX = 2048  # longest value, in coordinates, whose transform becomes a matrix product
WIDEST_TILE = 4096  # most coordinates that a Triton program computes at a time of a result longer than its transforms
WIDEST_PRODUCT = 8192  # most columns of a product of columns
TILE = 2048  # entries that a Triton program transforms at a time, from several rows if rows are shorter


@dataclass(frozen=True, eq=False)
class FusedStep(s.Step):
    """One value, or the product of two values, optionally normalized by the step `norm`.

    The first `n_sides` operands are these values; one more operand is the second operand of `norm`.
    """

    n_sides: int
    norm: s.DivideByNorm | None

    @property
    def multiplier(self) -> int | None:
        """The value by which the normalized result is multiplied, or None."""
        return self.operands[self.n_sides] if len(self.operands) > self.n_sides else None


@dataclass(frozen=True, eq=False)
class GatherTransforms(FusedStep):
    """Coordinate l is scale · weights[l] · ∏ᵢ (H (signs[i] ⊙ v_i))[rows[i][l]], i ≤ n_sides."""

    signs: tuple[np.ndarray, ...]
    rows: tuple[s.Ints, ...]
    weights: s.Floats
    scale: float


@dataclass(frozen=True, eq=False)
class MultiplyColumns(FusedStep):
    """Product over all sides i of the columns starts[i], starts[i] + 1, …."""

    starts: tuple[int, ...]


def in_order(step: s.Hadamard) -> GatherTransforms | None:
    """Return a transform as a gather of all its rows, or None if it is too long or |diagonal| is not constant."""
    if step.size > LONGEST_TRANSFORM or np.ptp(np.abs(step.diagonal)) != 0:
        return None
    rows, weights = np.arange(step.size, dtype=np.int32), np.ones(1)
    scale = float(abs(step.diagonal[0]))
    return GatherTransforms(step.operands, step.size, 1, None, (np.sign(step.diagonal),), (rows,), weights, scale)


def fuse_transforms(program: Program) -> Program:
    """Fuse transforms into the steps that gather from them."""
    alone = _only_normalized(program)

    def translate(new: Program, index: int, operands: tuple[int, ...]) -> int:
        step = program.steps[index]
        if isinstance(step, s.Gather | s.Product):
            fused = _gather_transforms(new, step, operands)
            return new.append(replace(step, operands=operands) if fused is None else fused)
        if isinstance(step, s.DivideByNorm):
            value = new.steps[operands[0]]
            whole_rows = isinstance(value, GatherTransforms) and step.size <= tile(max(orders(new, value)), step.size)
            if isinstance(value, GatherTransforms) and whole_rows and step.operands[0] in alone:
                return new.append(_normalized(value, step, operands))
        return new.append(replace(step, operands=operands))

    def finish(new: Program, index: int, operands: tuple[int, ...]) -> int:
        step = replace(fused.steps[index], operands=operands)
        whole = in_order(step) if isinstance(step, s.Hadamard) else None
        return new.append(whole or step)

    fused = rewrite(program, translate)
    return rewrite(fused, finish)  # converts the transforms that other steps read, too


def _gather_transforms(new: Program, step: s.Gather | s.Product, operands: tuple[int, ...]) -> GatherTransforms | None:
    transforms = []
    for operand in operands:
        transform = new.steps[operand]
        whole = in_order(transform) if isinstance(transform, s.Hadamard) else None
        if whole is None:
            return None
        transforms.append(whole)
    product = isinstance(step, s.Product)
    scale = step.scale if isinstance(step, s.Product) else 1.0
    sources = []
    for transform in transforms:
        source, load = transform.operands[0], new.steps[transform.operands[0]]
        scale *= transform.scale
        if isinstance(load, s.Load) and load.constant is None:
            source, scale = new.load(load.source), scale * load.scale
        sources.append(source)
    rows = (step.a_rows, step.b_rows) if isinstance(step, s.Product) else (step.rows,)
    weights = np.ones(1) if product else step.weights  # type: ignore[union-attr]
    signs = tuple(transform.signs[0] for transform in transforms)
    return GatherTransforms(tuple(sources), step.size, len(sources), None, signs, rows, weights, scale)


def orders(program: Program, step: GatherTransforms) -> list[int]:
    """Return the orders of the Hadamard matrices of both sides; tensor cores need at least 16 rows of 16 entries.

    If one side is long, a Triton program takes only a few rows, so a short other side is padded to 16 × 16 entries.
    This is correct because a larger transform begins with the coordinates of the smaller transform.
    """
    sides = step.operands[: step.n_sides]
    n = [max(16, s.power_of_two(program.size(value))) for value in (sides[0], sides[-1])]
    smallest = 256 if max(n) * 16 > TILE else 16
    return [max(order, smallest) for order in n]


def tile(longest: int, size: int) -> int:
    """Return how many coordinates of the result a Triton program computes at a time.

    `longest` is the order of its longest transform. Programs with short transforms process many rows at a time, so
    their tiles are no wider than the transform.
    """
    widest = min(4 * longest, max(longest, WIDEST_TILE)) if longest >= 1024 else longest
    return min(widest, max(16, s.power_of_two(size)))


def suits_multiplication(program: Program) -> bool:
    """Return whether all transforms of a program are short and only gathered from, and there is at least one."""
    sizes, found = [], False
    for step, used in zip(program.steps, readers(program), strict=True):
        if isinstance(step, s.Hadamard):
            found = True
            sizes.append(program.size(step.operands[0]))
            if not all(isinstance(program.steps[reader], s.Gather | s.Product) for reader in used):
                return False
        if isinstance(step, s.Gather | s.Product):
            if step.size > WIDEST_PRODUCT:
                return False
            sizes += [program.size(v) for v in step.operands if not isinstance(program.steps[v], s.Hadamard)]
    if any(isinstance(program.steps[value], s.Hadamard) for value in program.outputs):
        return False
    return found and max(sizes) <= LONGEST_MATRIX


def multiply_transforms(program: Program) -> Program:
    """Replace all gathers from one value by one matrix product followed by products of its columns."""
    alone, sources, columns = _only_normalized(program), *_matrices(program)

    def translate(new: Program, index: int, operands: tuple[int, ...]) -> int:
        step = program.steps[index]
        if isinstance(step, s.Gather | s.Product):
            products = []
            for side, operand in enumerate(operands):
                below = new.steps[operand]
                value = below.operands[0] if isinstance(below, s.Hadamard) else operand
                products.append(new.dense(value, sources[columns[index, side][0]]))
            starts = tuple(columns[index, side][1] for side in range(len(operands)))
            if len(products) == 1 and index not in program.outputs:
                return new.slice(products[0], starts[0], step.size)
            return new.append(MultiplyColumns(tuple(products), step.size, len(products), None, starts))
        if isinstance(step, s.DivideByNorm) and step.operands[0] in alone:
            columns_read = new.steps[operands[0]]
            if isinstance(columns_read, s.Slice):
                start = (columns_read.start,)
                columns_read = MultiplyColumns(columns_read.operands, step.size, 1, None, start)
            if isinstance(columns_read, MultiplyColumns):
                return new.append(_normalized(columns_read, step, operands))
        return new.append(replace(step, operands=operands))

    return rewrite(program, translate)


def _matrices(program: Program) -> tuple[dict[int, np.ndarray], dict[tuple[int, int], tuple[int, int]]]:
    """Return the matrix for every value that is gathered from, and the columns of each gather.

    The second dictionary maps (step, operand) to the value and the first column of its product.
    """
    blocks: dict[int, list[np.ndarray]] = {}
    columns: dict[tuple[int, int], tuple[int, int]] = {}
    for index, step in enumerate(program.steps):
        if isinstance(step, s.Gather):
            sides = [(step.rows, step.weights)]
        elif isinstance(step, s.Product):
            sides = [(step.a_rows, np.full(1, step.scale)), (step.b_rows, np.ones(1))]
        else:
            continue
        for side, (operand, (rows, weights)) in enumerate(zip(step.operands, sides, strict=True)):
            below = program.steps[operand]
            value = below.operands[0] if isinstance(below, s.Hadamard) else operand
            places = np.arange(program.size(value), dtype=np.int32)
            if isinstance(below, s.Hadamard):
                odd = np.bitwise_count(rows[:, None] & places) % 2
                matrix = (1.0 - 2.0 * odd) * below.diagonal[: len(places)]
            else:
                matrix = (rows[:, None] == places).astype(np.float64)
            earlier = blocks.setdefault(value, [])
            columns[index, side] = value, sum(map(len, earlier))
            earlier.append(weights[:, None] * matrix)
    whole = {}
    for value, parts in blocks.items():
        padding = -sum(map(len, parts)) % 8  # so that rows of the product begin at multiples of 16 bytes
        parts.append(np.zeros((padding, parts[0].shape[1])))
        whole[value] = np.concatenate(parts).astype(np.float32)
    return whole, columns


def _only_normalized(program: Program) -> set[int]:
    """Return the values that are only read by one normalization."""
    used = readers(program)
    return {
        step.operands[0]
        for index, step in enumerate(program.steps)
        if isinstance(step, s.DivideByNorm) and used[step.operands[0]] == [index]
    } - set(program.outputs)


def _normalized(value: FusedStep, norm: s.DivideByNorm, operands: tuple[int, ...]) -> FusedStep:
    return replace(value, operands=(*value.operands, *operands[1:]), norm=norm)
