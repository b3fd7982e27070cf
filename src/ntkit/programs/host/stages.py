"""Run programs on the host: split them into stages, allocate memory and distribute the rows over threads.

Most steps run in compiled code, W rows at a time. Matrix products and Fourier transforms are left to libraries, which
need tiles of many rows. The stage of a value is the maximum number of such library steps on any path to it. Each stage
computes its library steps on a tile, then runs one compiled program. The tile stays in cache until the next stage has
read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ntkit import _array
from ntkit._batching import run_on_threads, working_memory
from ntkit.programs.analysis import levels, output_slices
from ntkit.programs.array_api import convolve
from ntkit.programs.host import kernel
from ntkit.programs.host.instructions import Instructions, translate
from ntkit.programs.host.lanes import LINE, aligned, lanes
from ntkit.programs.passes import extract
from ntkit.programs.program import Program
from ntkit.programs.steps import Constant, Convolve, Load, MatrixProduct, Step

LIBRARY_STEPS = MatrixProduct, Convolve
CHUNK_BYTES = 2**23  # bytes of input and output that a thread processes at a time if there is a single stage
TILE_BYTES = 2**25  # bytes of results between stages that a thread holds
MIN_TILE_ROWS, MAX_TILE_ROWS = 64, 1024  # rows of a tile between stages; BLAS repacks its matrix for every tile
TASKS_PER_THREAD = 4  # several, so that all threads finish at about the same time
MIN_NUMBERS_PER_TASK = 2**19  # numbers computed per task, about 0.1 ms; smaller tasks are not worth a thread


@dataclass(frozen=True, eq=False)
class LibraryStep:
    """A step that a library computes on a tile.

    A source is a value of the whole program, or ~i for input i. `matrix` is transposed; it is None for a convolution.
    """

    value: int
    size: int
    sources: tuple[int, ...]
    matrix: np.ndarray | None


@dataclass(frozen=True, eq=False)
class HostStage:
    """Library steps, followed by a compiled program that reads the first `n_inputs` inputs and the values `reads`.

    The outputs of the compiled program are the values `writes` of the whole program.
    """

    library_steps: tuple[LibraryStep, ...]
    program: Program
    instructions: Instructions
    n_inputs: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Plan:
    """A program split into stages, for rows of one dtype. A plan holds no memory for rows."""

    def __init__(self, program: Program, dtype: Any, *, sparse: bool):
        self.program, self.dtype, self.sparse = program, np.dtype(dtype), sparse
        self.stages = _cut(program, dtype, sparse=sparse)
        self.n_vectors = max(stage.instructions.n_vectors for stage in self.stages)
        between = [stage.program.n_outputs for stage in self.stages[:-1]]
        steps = [step for stage in self.stages for step in stage.library_steps]
        self.n_between = sum(between) + sum(step.size for step in steps)
        # Temporary memory: a convolution needs the Fourier transforms of two operands, their product and its inverse
        # transform; a product with sparse rows needs a copy of the result.
        extra = [5 * step.size if step.matrix is None else step.size * sparse for step in steps]
        self.n_library = max(extra, default=0)

    def rows_per_task(self, n_rows: int, budget: int, n_threads: int, input_bytes: int) -> int:
        """Return how many rows a thread processes at a time, a multiple of W.

        `input_bytes` is the size of the converted or copied inputs per row.
        """
        itemsize, width = self.dtype.itemsize, lanes(self.dtype)
        if self.n_between:
            row_bytes = (self.n_between + self.n_library) * itemsize + input_bytes
            fair = max(-(-n_rows // (2 * n_threads)), MIN_TILE_ROWS)
            rows = min(max(TILE_BYTES // row_bytes, MIN_TILE_ROWS), MAX_TILE_ROWS, fair)
            rows = min(-(-rows // width) * width, budget // row_bytes)
        else:
            row_bytes = max(self.program.n_outputs * itemsize + input_bytes, 1)
            fewest = MIN_NUMBERS_PER_TASK // sum(step.size for step in self.program.steps)
            rows = max(fewest, n_rows // (TASKS_PER_THREAD * n_threads))
            rows = min(rows, CHUNK_BYTES // row_bytes, budget // max(input_bytes, 1))
        return max(rows // width, 1) * width

    def workspace(self, n_rows: int = 0) -> Workspace:
        """Allocate the memory of one thread for tiles of up to `n_rows` rows (any number if there is one stage)."""
        return Workspace(self, n_rows)


class Workspace:
    """Memory of one thread: results between stages and scratch memory of the compiled code."""

    def __init__(self, plan: Plan, n_rows: int):
        self.plan = plan
        stages, dtype = plan.stages, plan.dtype
        self.scratch = aligned(plan.n_vectors, dtype)
        self.between = [empty(n_rows, stage.program.n_outputs, dtype) for stage in stages[:-1]]
        self.results = {step.value: empty(n_rows, step.size, dtype) for s in stages for step in s.library_steps}

    def run(self, inputs: Sequence[Any], out: np.ndarray) -> None:
        """Run all stages on the rows of a tile. Additional columns of `out` stay unchanged."""
        stages, n_rows = self.plan.stages, len(out)
        if self.plan.n_between and not self.plan.sparse:  # convert once, since several stages read the inputs
            inputs = [np.ascontiguousarray(x, dtype=out.dtype) for x in inputs]
        values: dict[int, np.ndarray] = {}
        for index, stage in enumerate(stages):
            for step in stage.library_steps:
                values[step.value] = self.results[step.value][:n_rows]
                _compute(step, [values[s] if s >= 0 else inputs[~s] for s in step.sources], values[step.value])
            if not stage.writes:
                continue
            target = out if index == len(stages) - 1 else self.between[index][:n_rows]
            read = [*inputs[: stage.n_inputs], *(values[value] for value in stage.reads)]
            run_tile(stage.instructions, read, target, self.scratch)
            if index < len(stages) - 1:
                for value, columns in zip(stage.writes, output_slices(stage.program), strict=True):
                    values[value] = target[:, columns]


def _compute(step: LibraryStep, read: list[Any], out: np.ndarray) -> None:
    if step.matrix is None:
        out[...] = convolve(read)
    elif _array.is_sparse(read[0]):
        out[...] = read[0] @ step.matrix
    else:
        np.matmul(read[0], step.matrix, out=out)


def plan(program: Program, dtype: Any, *, sparse: bool) -> Plan:
    """Return the plan of a program; the program caches it."""
    key = ("host", np.dtype(dtype), sparse)
    if key not in program.cache:
        program.cache[key] = Plan(program, dtype, sparse=sparse)
    return program.cache[key]


def run(program: Program, inputs: Sequence[Any], dtype: Any, batch_size: int | None = None) -> np.ndarray:
    """Run a program on NumPy arrays or CSR rows of any real dtype, on several threads; return rows of `dtype`.

    The threads share the budget of ``working_memory``. If each needs much scratch memory, fewer threads run and tiles
    are smaller. Rows of other dtypes or layouts are converted tile by tile.
    """
    sparse = _array.is_sparse(inputs[0])
    how = plan(program, dtype, sparse=sparse)
    n_rows, budget = inputs[0].shape[0], working_memory()
    out = empty(n_rows, program.n_outputs, dtype)
    n_threads = max(1, min(numba.config.NUMBA_NUM_THREADS, budget // (2 * how.n_vectors * LINE)))
    itemsize = np.dtype(dtype).itemsize
    if sparse:  # slices of the rows, and copies of their values and indices for compiled code
        input_bytes = 3 * (itemsize + 8) * sum(x.nnz for x in inputs) // max(n_rows, 1)
    else:  # a copy, if the dtype or the layout differs
        input_bytes = sum(program.n_features) * itemsize
    step = how.rows_per_task(n_rows, budget // n_threads - how.n_vectors * LINE, n_threads, input_bytes)
    if batch_size is not None:
        step = min(step, -(-batch_size // lanes(dtype)) * lanes(dtype))
    idle: list[Workspace] = []  # reused between tasks, since new memory costs a page fault per 4 KiB

    def work(start: int) -> None:
        rows = slice(start, min(start + step, n_rows))
        try:
            space = idle.pop()
        except IndexError:
            space = how.workspace(min(step, n_rows))
        space.run([x[rows] for x in inputs], out[rows])
        idle.append(space)

    run_on_threads(work, range(0, n_rows, step), most=n_threads)
    return out


def run_tile(instructions: Instructions, inputs: list[Any], out: np.ndarray, scratch: np.ndarray) -> None:
    """Run compiled code on the rows of a tile, in this thread."""
    n_rows, width = len(out), scratch.shape[1]
    rest = n_rows % width
    whole = n_rows - rest
    if whole:
        _run_groups(instructions, [x[:whole] for x in inputs], out[:whole], scratch)
    if rest:  # pad the last rows with zeros to a whole vector
        padded = np.zeros((width, out.shape[1]), out.dtype)
        _run_groups(instructions, [_padded(x[whole:], width) for x in inputs], padded, scratch)
        out[whole:] = padded[:rest]


def empty(n_rows: int, n_columns: int, dtype: Any) -> np.ndarray:
    """Allocate an uninitialized array that starts on a cache line, so that vectors fill whole cache lines."""
    size = n_rows * n_columns
    return aligned(-(-size // lanes(dtype)), dtype).reshape(-1)[:size].reshape(n_rows, n_columns)


def _padded(rows: Any, width: int) -> Any:
    if isinstance(rows, np.ndarray):
        padded = np.zeros((width, rows.shape[1]), rows.dtype)
        padded[: len(rows)] = rows
        return padded
    padded = rows.copy()
    padded.resize((width, rows.shape[1]))
    return padded


def _run_groups(t: Instructions, inputs: list[Any], out: np.ndarray, scratch: np.ndarray) -> None:
    dtype = out.dtype
    if isinstance(inputs[0], np.ndarray):
        dense = [_with_unit_stride(x, dtype) for x in inputs]
        addresses = np.array([x.ctypes.data for x in dense], dtype=np.int64)
        strides = np.array([x.strides[0] // x.itemsize for x in dense], dtype=np.int64)
        indptr, indices, values = np.zeros((0, 0), np.int64), np.zeros(0, np.int64), np.zeros(0, dtype)
    else:
        addresses = strides = np.zeros(0, np.int64)
        starts = np.cumsum([0, *(x.indptr[-1] for x in inputs)])
        indptr = np.stack([x.indptr + start for x, start in zip(inputs, starts, strict=False)]).astype(np.int64)
        indices = np.concatenate([x.indices for x in inputs]).astype(np.int64)
        values = np.concatenate([x.data for x in inputs]).astype(dtype)
    sizes = np.array([x.shape[1] for x in inputs], dtype=np.int64)
    kernel.run(t.code, t.floats, t.ints, scratch, addresses, sizes, strides, indptr, indices, values, out)


def _with_unit_stride(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Return x with `dtype` and contiguous rows, copied if needed; gaps between rows are allowed (column slices)."""
    fits = x.dtype == dtype and x.strides[1] == x.itemsize and x.strides[0] % x.itemsize == 0 and x.strides[0] > 0
    return x if fits else np.ascontiguousarray(x, dtype=dtype)


def _cut(program: Program, dtype: Any, *, sparse: bool) -> list[HostStage]:
    """Split a program into stages."""
    steps, level = program.steps, levels(program, LIBRARY_STEPS)
    last = max(level)
    # Every stage reads dense inputs again. Only the first stage reads sparse inputs; the others read dense tiles.
    anywhere: tuple[type[Step], ...] = (Constant,) if sparse else (Constant, Load)

    def is_computed_in(value: int, stage: int) -> bool:
        """Return whether the compiled program of a stage computes a value itself."""
        step = steps[value]
        return isinstance(step, anywhere) or (level[value] == stage and not isinstance(step, LIBRARY_STEPS))

    kept: set[int] = set()  # values that another stage or a library step reads
    for index, step in enumerate(steps):
        for value in step.operands:
            if isinstance(step, LIBRARY_STEPS):
                is_kept = not _is_read_as_input(program, step, value, sparse=sparse)
            else:
                is_kept = not is_computed_in(value, level[index])
            if is_kept:
                kept.add(value)
    kept |= {value for value in program.outputs if not is_computed_in(value, last)}
    stages = []
    for number in range(last + 1):
        mine = [v for v in range(len(steps)) if level[v] == number]
        library_steps = tuple(
            _library_step(program, v, dtype, sparse=sparse) for v in mine if isinstance(steps[v], LIBRARY_STEPS)
        )
        writes = program.outputs if number == last else [v for v in mine if v in kept and is_computed_in(v, number)]
        if library_steps or writes:
            n_inputs = 0 if sparse and number else len(program.n_features)
            others = {v for v in range(len(steps)) if not is_computed_in(v, number)}
            part, reads = extract(program, writes, given=others, n_inputs=n_inputs)
            instructions = translate(part, dtype, sparse=sparse and not number)
            stages.append(HostStage(library_steps, part, instructions, n_inputs, tuple(reads), tuple(writes)))
    return stages


def _is_read_as_input(program: Program, step: Step, operand: int, *, sparse: bool) -> bool:
    """Return whether an operand of a library step is an unmodified input that the library can read directly."""
    loaded = program.steps[operand]
    return isinstance(loaded, Load) and loaded.is_plain and (isinstance(step, MatrixProduct) or not sparse)


def _library_step(program: Program, value: int, dtype: Any, *, sparse: bool) -> LibraryStep:
    step = program.steps[value]
    sources = []
    for operand in step.operands:
        loaded: Any = program.steps[operand]
        sources.append(~loaded.source if _is_read_as_input(program, step, operand, sparse=sparse) else operand)
    matrix = np.ascontiguousarray(step.matrix.T, dtype=dtype) if isinstance(step, MatrixProduct) else None
    return LibraryStep(value, step.size, tuple(sources), matrix)
