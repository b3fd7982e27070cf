"""Programs on rows in host memory: W rows at a time go through all steps in cache.

:func:`translate` turns a program into numbers (instructions, tables, places in scratch memory), :func:`run` reads
them. One compiled function serves every sketch, tree and composition; nothing is allocated per row, and a result
that is only gathered leaves through one tile, without a place of its own.

What limits the speed of each step is written in ``docs/design/sketches.md``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from ntkit._batching import run_on_threads
from ntkit.sketches._lanes import (
    accumulate,
    add_squares,
    aligned,
    butterflies,
    compiled,
    copy,
    gather_tile,
    lanes,
    largest,
    load_tile,
    multiply,
    multiply_tile,
    pointer,
    prefetch,
    rectify,
    rescale,
    step_at,
    store_tile,
    weighted_butterflies,
)
from ntkit.sketches._program import (
    Activate,
    Concatenate,
    Constant,
    Gather,
    Hadamard,
    Load,
    Norm,
    Product,
    Program,
    Scale,
    Scatter,
    Slice,
    operands,
    power_of_two,
)

LOAD, CONSTANT, HADAMARD, GATHER, PRODUCT, SCATTER, SPREAD, COPY, STORE, NORM, SPARSE_NORM, SCALE, RELU, STEP = range(
    14
)
BLOCK = 256  # vectors whose transform stays in the first-level cache (16 KiB)
AHEAD = 24  # nonzeros whose draws are on their way from memory
CHUNK = 2**23  # bytes of input and output that a thread takes at a time
TASKS_PER_THREAD = 4  # so that threads end together
LEAST = 2**19  # numbers computed per task, some 0.1 ms: less is not worth a thread


@dataclass(frozen=True, eq=False)
class Translation:
    """A program as arrays. A row of `code` is (operation, target, a, b, size, floats, ints, more ints, column)."""

    code: np.ndarray
    floats: np.ndarray
    ints: np.ndarray
    n_vectors: int


class _Writer:
    """Assigns places in scratch memory and collects instructions and tables."""

    def __init__(self, program: Program, dtype: Any, *, sparse: bool):
        self.program = program
        self.sparse = sparse
        self.tiny = float(np.finfo(dtype).tiny)
        self.n_vectors = lanes(dtype)  # the first W vectors are the tile in which gathered results leave
        self.free: dict[int, list[int]] = defaultdict(list)
        self.place: dict[int, int] = {}
        self.code: list[tuple[int, ...]] = []
        self.floats: list[np.ndarray] = []
        self.ints: list[np.ndarray] = []
        self.n_floats = self.n_ints = 0
        self.last = program.last_use()
        self.columns: dict[int, list[int]] = defaultdict(list)
        column = 0
        for value in program.outputs:
            self.columns[value].append(column)
            column += program.sizes[value]

    def write(self) -> None:
        readers = defaultdict(list)
        for step in self.program.steps:
            for value in operands(step):
                readers[value].append(step)
        for value, step in enumerate(self.program.steps):
            skip = self.sparse and isinstance(step, Load) and not self.columns[value]
            if skip and all(isinstance(reader, Scatter | Norm) for reader in readers[value]):
                continue  # every reader takes the nonzeros themselves
            direct = isinstance(step, Gather | Product) and not readers[value] and len(self.columns[value]) == 1
            column = self.columns[value][0] if direct else -1
            if not direct:
                self.place[value] = self.target(value, step)
            self.instruct(value, step, column)
            if not direct:
                for column in self.columns[value]:
                    self.emit(STORE, a=self.place[value], size=self.program.sizes[value], column=column)
            for used in {value, *operands(step)}:
                if self.last[used] == value and used in self.place:
                    self.free[self.capacity(used)].append(self.place.pop(used))

    def capacity(self, value: int) -> int:
        return power_of_two(self.program.sizes[value])  # room for the padding of a transform

    def target(self, value: int, step: Any) -> int:
        in_place = isinstance(step, Hadamard | Scale | Activate) and self.last[step.value] == value
        if in_place and self.capacity(step.value) == self.capacity(value) and not self.columns[step.value]:
            return self.place.pop(step.value)  # in place: nobody reads the operand again
        free = self.free[self.capacity(value)]
        if free:
            return free.pop()
        self.n_vectors += self.capacity(value)
        return self.n_vectors - self.capacity(value)

    def instruct(self, value: int, step: Any, column: int) -> None:
        sizes = self.program.sizes
        to = {"target": self.place.get(value, 0), "size": sizes[value], "column": column}
        if isinstance(step, Load):
            constant = 0.0 if step.constant is None else step.constant
            number = self.table([step.scale, constant])
            self.emit(LOAD, **to, a=step.source, b=int(step.constant is not None), floats=number)
        elif isinstance(step, Constant):
            self.emit(CONSTANT, **to, floats=self.table(step.vector))
        elif isinstance(step, Hadamard):
            diagonal = np.zeros(sizes[value])
            diagonal[: len(step.diagonal)] = step.diagonal
            source = self.place.get(step.value, to["target"])
            self.emit(HADAMARD, **to, a=source, b=sizes[step.value], floats=self.table(diagonal))
        elif isinstance(step, Gather):
            rows = self.index(step.rows)
            self.emit(GATHER, **to, a=self.place[step.value], ints=rows, floats=self.table(step.weights))
        elif isinstance(step, Product):
            a, b = self.place[step.a], self.place[step.b]
            a_rows, b_rows, scale = self.index(step.a_rows), self.index(step.b_rows), self.table([step.scale])
            self.emit(PRODUCT, **to, a=a, b=b, ints=a_rows, more=b_rows, floats=scale)
        elif isinstance(step, Scatter):
            self.scatter(step, to)
        elif isinstance(step, Concatenate):
            target = to["target"]
            for part, weight in zip(step.values, step.weights, strict=True):
                self.emit(COPY, target=target, size=sizes[part], a=self.place[part], floats=self.table([weight]))
                target += sizes[part]
        elif isinstance(step, Norm):
            self.norm(step, to)
        elif isinstance(step, Scale):
            source = self.place.get(step.value, to["target"])
            number = self.table([step.factor, max(step.floor, self.tiny)])
            self.emit(
                SCALE, **to, a=source, b=self.place.get(step.by, to["target"]), more=int(step.inverse), floats=number
            )
        elif isinstance(step, Activate):
            source = self.place.get(step.value, to["target"])
            self.emit(RELU if step.kind == "relu" else STEP, **to, a=source, floats=self.table([step.scale]))
        elif isinstance(step, Slice):
            self.emit(COPY, **to, a=self.place[step.value] + step.start, floats=self.table([1.0]))

    def scatter(self, step: Scatter, to: dict[str, int]) -> None:
        loaded = self.program.steps[step.value]
        n_features, n_nonzeros = step.codes.shape
        codes = self.index(step.codes.ravel())
        if self.sparse and isinstance(loaded, Load) and step.value not in self.place:
            constant = 0.0 if loaded.constant is None else loaded.constant
            table = self.table([step.scale * loaded.scale, step.scale * constant])
            has_constant = int(loaded.constant is not None)
            more = n_nonzeros * 2 + has_constant
            self.emit(SPREAD, **to, a=loaded.source, b=n_features - has_constant, ints=codes, more=more, floats=table)
        else:
            a, number = self.place[step.value], self.table([step.scale])
            self.emit(SCATTER, **to, a=a, b=n_features, ints=codes, more=n_nonzeros, floats=number)

    def norm(self, step: Norm, to: dict[str, int]) -> None:
        loaded = self.program.steps[step.value]
        if step.value in self.place:
            size = self.program.sizes[step.value]
            self.emit(NORM, **to, a=self.place[step.value], b=size, floats=self.table([self.tiny]))
        else:
            assert isinstance(loaded, Load)
            constant = 0.0 if loaded.constant is None else loaded.constant
            numbers = self.table([abs(loaded.scale), constant, self.tiny])
            self.emit(SPARSE_NORM, **to, a=loaded.source, floats=numbers)

    def emit(
        self, operation: int, *, target: int = 0, a: int = 0, b: int = 0, size: int = 0, floats: int = 0,
        ints: int = 0, more: int = 0, column: int = -1,
    ) -> None:  # fmt: skip
        self.code.append((operation, target, a, b, size, floats, ints, more, column))

    def table(self, values: Any) -> int:
        self.floats.append(np.asarray(values, dtype=np.float64))
        self.n_floats += len(values)
        return self.n_floats - len(values)

    def index(self, values: np.ndarray) -> int:
        self.ints.append(values)
        self.n_ints += len(values)
        return self.n_ints - len(values)


def translate(program: Program, dtype: Any, *, sparse: bool) -> Translation:
    """Instructions for rows of `dtype`, dense or CSR."""
    writer = _Writer(program, dtype, sparse=sparse)
    writer.write()
    return Translation(
        code=np.array(writer.code, dtype=np.int64).reshape(-1, 9),
        floats=np.concatenate([*writer.floats, np.zeros(0)]).astype(dtype),
        ints=np.concatenate([*writer.ints, np.zeros(0, np.int32)]).astype(np.int32, copy=False),
        n_vectors=writer.n_vectors,
    )


def execute(program: Program, translation: Translation, inputs: list[Any], out: np.ndarray, *, sparse: bool) -> None:
    """Run the program on the rows of all inputs (NumPy arrays, or CSR if `sparse`), on a few threads, into `out`."""
    n_rows, n_outputs = out.shape
    row_bytes = (sum(program.n_features) * (not sparse) + n_outputs) * out.dtype.itemsize
    most = CHUNK // max(row_bytes, 1)
    fewest = LEAST // sum(program.sizes)
    step = min(most, max(fewest, n_rows // (TASKS_PER_THREAD * numba.config.NUMBA_NUM_THREADS)))
    width = lanes(out.dtype)
    step = max(step // width, 1) * width
    idle: list[np.ndarray] = []  # scratch of threads between two tasks: fresh memory costs a page fault per 4 KiB

    def work(start: int) -> None:
        rows = slice(start, min(start + step, n_rows))
        try:
            scratch = idle.pop()
        except IndexError:
            scratch = aligned(translation.n_vectors, out.dtype)
        run_rows(translation, [x[rows] for x in inputs], out[rows], scratch)
        idle.append(scratch)

    run_on_threads(work, range(0, n_rows, step))


def run_rows(translation: Translation, inputs: list[Any], out: np.ndarray, scratch: np.ndarray) -> None:
    """Run a program on some rows, on this thread."""
    n_rows, width = len(out), scratch.shape[1]
    rest = n_rows % width
    whole = n_rows - rest
    if whole:
        _run_groups(translation, [x[:whole] for x in inputs], out[:whole], scratch)
    if rest:  # the last rows fill part of a vector: zeros fill the others
        padded = np.zeros((width, out.shape[1]), out.dtype)
        _run_groups(translation, [_padded(x[whole:], width) for x in inputs], padded, scratch)
        out[whole:] = padded[:rest]


def empty(n_rows: int, n_columns: int, dtype: Any) -> np.ndarray:
    """Uninitialized result that starts on a cache line: whole vectors then fill whole lines."""
    size = n_rows * n_columns
    return aligned(-(-size // lanes(dtype)), dtype).reshape(-1)[:size].reshape(n_rows, n_columns)


def _padded(rows: Any, width: int) -> Any:
    if isinstance(rows, np.ndarray):
        return np.concatenate([rows, np.zeros((width - len(rows), rows.shape[1]), rows.dtype)])
    padded = rows.copy()
    padded.resize((width, rows.shape[1]))
    return padded


def _run_groups(t: Translation, inputs: list[Any], out: np.ndarray, scratch: np.ndarray) -> None:
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
    run(t.code, t.floats, t.ints, scratch, addresses, sizes, strides, indptr, indices, values, out)


def _with_unit_stride(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Rows of `dtype` whose numbers are next to each other; rows may be apart, as in a slice of columns."""
    fits = x.dtype == dtype and x.strides[1] == x.itemsize and x.strides[0] % x.itemsize == 0 and x.strides[0] > 0
    return x if fits else np.ascontiguousarray(x, dtype=dtype)


@compiled
def run(code, floats, ints, scratch, addresses, sizes, strides, indptr, indices, values, out):
    """Run the instructions on every group of W rows; see :class:`Translation`.

    Dense input k is at ``addresses[k]``, with ``sizes[k]`` features, ``strides[k]`` numbers from row to row. Row i of
    CSR input k has the entries ``indptr[k, i]`` to ``indptr[k, i + 1]`` of `indices` and `values`.
    """
    width = scratch.shape[1]
    n_rows, n_outputs = out.shape
    flat = out.reshape(-1)
    for row in range(0, n_rows, width):
        for number in range(len(code)):
            operation, target, a, b, size, f, i, more, column = code[number]
            if operation == LOAD:
                if len(addresses) > 0:
                    rows = numba.carray(pointer(addresses[a]), n_rows * strides[a], scratch.dtype)
                    _load(rows, row * strides[a], strides[a], sizes[a], floats[f], scratch, target)
                else:
                    _densify(indptr[a], indices, values, row, sizes[a], floats[f], scratch, target)
                if b:
                    for r in range(width):
                        scratch[target + sizes[a], r] = floats[f + 1]
            elif operation == CONSTANT:
                for j in range(size):
                    for r in range(width):
                        scratch[target + j, r] = floats[f + j]
            elif operation == HADAMARD:
                for j in range(b, size):
                    for r in range(width):
                        scratch[a + j, r] = 0.0
                _hadamard(scratch, a, floats[f : f + size], target, size)
            elif operation == GATHER:
                at = row * n_outputs + column if column >= 0 else -1
                _gather(scratch, target, a, ints[i : i + size], floats[f : f + size], flat, at, n_outputs)
            elif operation == PRODUCT:
                at = row * n_outputs + column if column >= 0 else -1
                _multiply(scratch, target, a, b, ints, i, more, size, floats[f], flat, at, n_outputs)
            elif operation == SCATTER:
                scratch[target : target + size] = 0.0
                for j in range(b):
                    for k in range(more):
                        entry = ints[i + j * more + k]
                        accumulate(scratch, target + (entry >> 1), a + j, -floats[f] if entry & 1 else floats[f])
            elif operation == SPREAD:
                scratch[target : target + size] = 0.0
                _spread(indptr[a], indices, values, row, ints, i, more >> 1, floats[f], scratch, target)
                if more & 1:
                    for k in range(more >> 1):
                        entry = ints[i + b * (more >> 1) + k]
                        constant = -floats[f + 1] if entry & 1 else floats[f + 1]
                        for r in range(width):
                            scratch[target + (entry >> 1), r] += constant
            elif operation == COPY:
                for j in range(size):
                    copy(scratch, target + j, a + j, floats[f])
            elif operation == NORM:
                _norm(scratch, a, b, target, floats[f])
            elif operation == SPARSE_NORM:
                _sparse_norm(indptr[a], values, row, floats[f : f + 3], scratch, target)
            elif operation == SCALE:
                _factors(scratch, b, more, floats[f + 1])
                for j in range(size):
                    rescale(scratch, target + j, a + j, 0, floats[f])
            elif operation == RELU:
                for j in range(size):
                    rectify(scratch, target + j, a + j, floats[f])
            elif operation == STEP:
                for j in range(size):
                    step_at(scratch, target + j, a + j, floats[f])
            else:
                _store(scratch, a, size, flat, row * n_outputs + column, n_outputs)


@compiled
def _load(rows, start, stride, n_features, scale, scratch, target):
    """Transpose W rows into vectors."""
    width = scratch.shape[1]
    whole = n_features - n_features % width
    for j in range(0, whole, width):
        load_tile(rows, start + j, stride, scratch, target + j, scale)
    for r in range(width):
        for j in range(whole, n_features):
            scratch[target + j, r] = scale * rows[start + r * stride + j]


@compiled
def _densify(indptr, indices, values, row, n_features, scale, scratch, target):
    """Spread W sparse rows into vectors, zeros included."""
    scratch[target : target + n_features] = 0.0
    for r in range(scratch.shape[1]):
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            scratch[target + indices[entry], r] += scale * values[entry]


@compiled
def _spread(indptr, indices, values, row, ints, codes, n_nonzeros, scale, scratch, target):
    """Add each nonzero of W sparse rows to its `n_nonzeros` signed places."""
    last = indptr[row + scratch.shape[1]] - 1
    for r in range(scratch.shape[1]):
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            prefetch(ints, codes + indices[min(entry + AHEAD, last)] * n_nonzeros)  # far apart: each is a cache miss
            value = scale * values[entry]
            first = codes + indices[entry] * n_nonzeros
            for k in range(n_nonzeros):
                code = ints[first + k]
                scratch[target + (code >> 1), r] += -value if code & 1 else value


@compiled
def _norm(scratch, source, n, target, tiny):
    """Norms of n vectors, lane by lane, divided by the largest entry so that squares cannot overflow.

    The inverse of a number below `tiny`, the smallest normal one, could overflow too.
    """
    width = scratch.shape[1]
    whole = n - n % 8
    scratch[:2] = 0.0  # of the tile in which results leave: the largest entry or its inverse, the sum
    for j in range(source, source + whole, 8):
        largest(scratch, 0, j, 8)
    for j in range(source + whole, source + n):
        largest(scratch, 0, j, 1)
    for r in range(width):
        top = scratch[0, r]
        scratch[target, r] = tiny if top < tiny else top
        scratch[0, r] = 1.0 / scratch[target, r]
    for j in range(source, source + whole, 8):
        add_squares(scratch, 1, j, 0, 8)
    for j in range(source + whole, source + n):
        add_squares(scratch, 1, j, 0, 1)
    for r in range(width):
        scratch[target, r] *= np.sqrt(scratch[1, r])


@compiled
def _sparse_norm(indptr, values, row, numbers, scratch, target):
    """Norms of W sparse rows times numbers[0], with an entry numbers[1] more; numbers[2] as in :func:`_norm`."""
    scale, constant, top = numbers
    for r in range(scratch.shape[1]):
        top = max(numbers[2], abs(constant))
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            size = scale * abs(values[entry])
            if size > top or size != size:  # not a number stays that
                top = size
        total = (constant / top) ** 2
        for entry in range(indptr[row + r], indptr[row + r + 1]):
            ratio = scale * values[entry] / top
            total += ratio * ratio
        scratch[target, r] = top * np.sqrt(total)


@compiled
def _factors(scratch, by, inverse, tiny):
    """Vector 0, of the tile in which results leave, becomes the factors of a Scale step."""
    for r in range(scratch.shape[1]):
        c = scratch[by, r]
        if inverse:
            scratch[0, r] = 0.0 if c < tiny else 1.0 / c
        else:
            scratch[0, r] = c


@compiled
def _gather(scratch, target, source, rows, weights, flat, at, stride):
    """Weighted vectors `rows` of source to target, or with at ≥ 0 straight to columns of W rows."""
    width = scratch.shape[1]
    if at < 0:
        for j in range(len(rows)):
            copy(scratch, target + j, source + rows[j], weights[j])
        return
    whole = len(rows) - len(rows) % width
    for j in range(0, whole, width):
        gather_tile(scratch, source, rows, j, weights, j, flat, at + j, stride)
    for j in range(whole, len(rows)):
        copy(scratch, j - whole, source + rows[j], weights[j])
    _store(scratch, 0, len(rows) - whole, flat, at + whole, stride)


@compiled
def _multiply(scratch, target, a, b, ints, a_rows, b_rows, size, scale, flat, at, stride):
    """Products of vectors of a and b to target, or with at ≥ 0 straight to columns of W rows."""
    width = scratch.shape[1]
    if at < 0:
        for j in range(size):
            multiply(scratch, target + j, a + ints[a_rows + j], b + ints[b_rows + j], scale)
        return
    whole = size - size % width
    for j in range(0, whole, width):
        multiply_tile(scratch, a, b, ints, a_rows + j, b_rows + j, scale, flat, at + j, stride)
    for j in range(whole, size):
        multiply(scratch, j - whole, a + ints[a_rows + j], b + ints[b_rows + j], scale)
    _store(scratch, 0, size - whole, flat, at + whole, stride)


@compiled
def _store(scratch, source, n, flat, start, stride):
    """Transpose n vectors into columns of W rows."""
    width = scratch.shape[1]
    whole = n - n % width
    for j in range(0, whole, width):
        store_tile(scratch, source + j, flat, start + j, stride)
    for r in range(width):
        for j in range(whole, n):
            flat[start + r * stride + j] = scratch[source + j, r]


@compiled
def _hadamard(scratch, source, diagonal, target, n):
    """Vectors target, … = H_n (diagonal ⊙ vectors source, …); n is a power of two, in place or apart.

    Wide strides go first, eight vectors at a time (sixteen at a stride of pages would fall into one set of the
    cache), then blocks that the first-level cache holds take two rounds of sixteen.
    """
    if n <= 16:
        _round(scratch, source, diagonal, target, n, n, n, True)
        return
    span = n
    rest = n // (BLOCK if n > BLOCK else 16)
    while rest > 1:
        radix = rest if n <= BLOCK else 4 if rest == 16 else min(rest, 8)
        _round(scratch, source, diagonal, target, n, span, radix, span == n)
        span //= radix
        rest //= radix
    for start in range(target, target + n, span):
        if span == BLOCK:
            for i in range(start, start + 16):
                butterflies(scratch, i, i, 16, 16)
        for i in range(start, start + span, 16):
            butterflies(scratch, i, i, 1, 16)


@compiled
def _round(scratch, source, diagonal, target, n, span, radix, first):
    """One round of butterflies of a radix over spans of vectors, the first with the diagonal."""
    stride = span // radix
    for start in range(0, n, span):
        for i in range(start, start + stride):
            if first:
                if radix == 16:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 16)
                elif radix == 8:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 8)
                elif radix == 4:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 4)
                elif radix == 2:
                    weighted_butterflies(scratch, source + i, diagonal, i, target + i, stride, 2)
                else:
                    copy(scratch, target + i, source + i, diagonal[i])
            elif radix == 8:
                butterflies(scratch, target + i, target + i, stride, 8)
            elif radix == 4:
                butterflies(scratch, target + i, target + i, stride, 4)
            else:
                butterflies(scratch, target + i, target + i, stride, 2)
