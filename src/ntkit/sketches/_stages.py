"""Programs with matrix products on rows in host memory: tile by tile, BLAS between compiled stretches.

A step belongs to the stage that is the number of matrix products on its way. The tiles of a stage stay in cache until
the next one has read them; the threads share the tiles, each with a BLAS of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from ntkit import _array
from ntkit._batching import run_on_threads
from ntkit.sketches import _numba
from ntkit.sketches._lanes import aligned, lanes
from ntkit.sketches._program import Concatenate, Constant, Dense, Load, Product, Program, Scale, Step, operands

TILE = 2**25  # bytes of results between stages that a thread holds
FEWEST, MOST = 64, 1024  # rows of a tile: BLAS repacks the matrix for each, and has fewer rows to share that with


@dataclass(frozen=True, eq=False)
class Stage:
    """Matrix products, (value, source, matrix transposed) each, then a program on the first inputs and `reads`.

    A source is a value, or ~i for input number i of the whole program. The results of the program are `writes`.
    """

    products: tuple[tuple[int, int, np.ndarray], ...]
    program: Program
    translation: _numba.Translation
    n_inputs: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def plan(program: Program, dtype: Any, *, sparse: bool) -> list[Stage]:
    """Cut a program into stages."""
    steps = program.steps
    level: list[int] = []
    for step in steps:
        level.append(max((level[v] for v in operands(step)), default=0) + isinstance(step, Dense))
    last = max(level)
    # Inputs are read again by every stage, but sparse ones by the first alone: the others read dense rows.
    anywhere = (Constant,) if sparse else (Constant, Load)

    def at_hand(value: int, stage: int) -> bool:
        return (level[value] == stage and not isinstance(steps[value], Dense)) or isinstance(steps[value], anywhere)

    def plain(value: int) -> bool:
        step = steps[value]
        return isinstance(step, Load) and step.scale == 1.0 and step.constant is None

    kept: set[int] = set()  # values that another stage or a matrix product reads
    for number, step in enumerate(steps):
        for value in operands(step):
            product = isinstance(step, Dense)
            if not plain(value) if product else not at_hand(value, level[number]):
                kept.add(value)
    kept |= {value for value in program.outputs if not at_hand(value, last)}
    stages = []
    for number in range(last + 1):
        mine = [v for v in range(len(steps)) if level[v] == number]
        products = tuple(_product(program, v, dtype, plain=plain) for v in mine if isinstance(steps[v], Dense))
        writes = program.outputs if number == last else [v for v in mine if v in kept and at_hand(v, number)]
        if products or writes:
            n_inputs = 0 if sparse and number else len(program.n_features)
            part, reads = _stretch(program, writes, lambda v, stage=number: at_hand(v, stage), n_inputs)
            translation = _numba.translate(part, dtype, sparse=sparse and not number)
            stages.append(Stage(products, part, translation, n_inputs, tuple(reads), tuple(writes)))
    return stages


def _product(program: Program, value: int, dtype: Any, *, plain: Any) -> tuple[int, int, np.ndarray]:
    step: Any = program.steps[value]
    source: Any = program.steps[step.value]
    transposed = np.ascontiguousarray(step.matrix.T, dtype=dtype)
    return value, ~source.source if plain(step.value) else step.value, transposed


def _stretch(program: Program, writes: Sequence[int], at_hand: Any, n_inputs: int) -> tuple[Program, list[int]]:
    """The part of a program that computes `writes` from inputs and from values not at hand, which it reads."""
    needed = set()
    stack = list(writes)
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            stack += operands(program.steps[value]) if at_hand(value) else ()
    reads = sorted(value for value in needed if not at_hand(value))
    part = Program((*program.n_features[:n_inputs], *(program.sizes[value] for value in reads)))
    number = {value: part.load(n_inputs + i) for i, value in enumerate(reads)}
    for value in sorted(needed):
        if at_hand(value):
            part.steps.append(_renumbered(program.steps[value], number))
            part.sizes.append(program.sizes[value])
            number[value] = len(part.steps) - 1
    for value in writes:
        part.output(number[value])
    return part, reads


def _renumbered(step: Step, number: dict[int, int]) -> Step:
    if isinstance(step, Load | Constant):
        return step
    if isinstance(step, Concatenate):
        return replace(step, values=tuple(number[value] for value in step.values))
    if isinstance(step, Product):
        return replace(step, a=number[step.a], b=number[step.b])
    if isinstance(step, Scale):
        return replace(step, value=number[step.value], by=number[step.by])
    return replace(step, value=number[step.value])


def execute(program: Program, stages: list[Stage], inputs: list[Any], out: np.ndarray, *, sparse: bool) -> None:
    """Run the program on the rows of all inputs, on a few threads, into `out`."""
    n_rows = len(out)
    held = sum(sum(program.sizes[v] for v in (*stage.writes, *(p[0] for p in stage.products))) for stage in stages)
    fair = -(-n_rows // (2 * numba.config.NUMBA_NUM_THREADS))
    width = lanes(out.dtype)
    most = min(max(TILE // (held * out.itemsize), FEWEST), MOST, max(fair, FEWEST))
    step = -(-most // width) * width
    idle: list[_Workspace] = []

    def work(start: int) -> None:
        rows = slice(start, min(start + step, n_rows))
        try:
            space = idle.pop()
        except IndexError:
            space = _Workspace(stages, step, out.dtype)
        tile = [x[rows] if sparse else np.ascontiguousarray(x[rows], dtype=out.dtype) for x in inputs]
        space.run(tile, out[rows])
        idle.append(space)

    run_on_threads(work, range(0, n_rows, step))


class _Workspace:
    """Memory of one thread: results between stages and scratch of the compiled code."""

    def __init__(self, stages: list[Stage], n_rows: int, dtype: Any):
        self.stages = stages
        self.scratch = aligned(max(stage.translation.n_vectors for stage in stages), dtype)
        self.between = [_numba.empty(n_rows, stage.program.n_outputs, dtype) for stage in stages[:-1]]
        self.products = {p[0]: _numba.empty(n_rows, p[2].shape[1], dtype) for stage in stages for p in stage.products}

    def run(self, inputs: list[Any], out: np.ndarray) -> None:
        """Run all stages on the rows of a tile."""
        n_rows = len(out)
        values: dict[int, np.ndarray] = {}
        for number, stage in enumerate(self.stages):
            for value, source, matrix in stage.products:
                rows = values[source] if source >= 0 else inputs[~source]
                values[value] = self.products[value][:n_rows]
                if _array.is_sparse(rows):
                    values[value][...] = rows @ matrix
                else:
                    np.matmul(rows, matrix, out=values[value])
            if not stage.writes:
                continue
            target = out if number == len(self.stages) - 1 else self.between[number][:n_rows]
            read = [*inputs[: stage.n_inputs], *(values[value] for value in stage.reads)]
            _numba.run_rows(stage.translation, read, target, self.scratch)
            ends = np.cumsum([stage.program.sizes[value] for value in stage.program.outputs])
            for value, columns in zip(stage.writes, np.split(target, ends[:-1], axis=1), strict=True):
                values[value] = columns
