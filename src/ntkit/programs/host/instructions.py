"""Translate programs into instructions for :func:`ntkit.programs.host.kernel.run`.

Assigns places in scratch memory, which are reused once a value is no longer read, and collects tables of numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from ntkit.programs import steps as s
from ntkit.programs.analysis import last_use, output_slices, readers
from ntkit.programs.array_api import lookup
from ntkit.programs.host.lanes import lanes
from ntkit.programs.program import Program
from ntkit.programs.steps import Step, power_of_two

Operation = IntEnum(
    "Operation",
    "LOAD CONSTANT HADAMARD GATHER PRODUCT SCATTER SPREAD COPY STORE NORM SPARSE_NORM SCALE NORMALIZE RELU STEP",
)
INSTRUCTION = np.dtype(
    [
        ("operation", np.int64),
        ("target", np.int64),  # first vector of the result
        ("size", np.int64),  # vectors of the result
        ("source", np.int64),  # first vector of the operand; for LOAD, SPREAD and SPARSE_NORM the index of an input
        ("source_size", np.int64),  # vectors of the operand
        ("second", np.int64),  # first vector of the second operand, −1 if there is none
        ("floats", np.int64),  # offset of its numbers in the table of floats
        ("ints", np.int64),  # offset of its numbers in the table of ints
        ("second_ints", np.int64),  # offset of the ints for the second operand
        ("count", np.int64),  # nonzeros per column of a sparse matrix
        ("flag", np.int64),  # LOAD, SPREAD: whether a constant is appended; SCALE: whether to divide
        ("column", np.int64),  # column of the result to which the vectors are stored, −1 if they stay in scratch memory
    ]
)


@dataclass(frozen=True, eq=False)
class Instructions:
    """A program as arrays: records of :data:`INSTRUCTION`, tables, and the number of scratch vectors that it needs."""

    code: np.ndarray
    floats: np.ndarray
    ints: np.ndarray
    n_vectors: int


Entries: TypeAlias = dict[str, int]


def translate(program: Program, dtype: Any, *, sparse: bool) -> Instructions:
    """Translate a program into instructions for rows of `dtype`, dense or CSR."""
    writer = _Writer(program, dtype, sparse=sparse)
    writer.write()
    code = np.zeros(len(writer.code), INSTRUCTION)
    for record, entries in zip(code, writer.code, strict=True):
        for name, value in ({"second": -1, "column": -1} | entries).items():
            record[name] = value
    return Instructions(
        code=code,
        floats=np.concatenate([*writer.floats, np.zeros(0)]).astype(dtype),
        ints=np.concatenate([*writer.ints, np.zeros(0, np.int32)]).astype(np.int32, copy=False),
        n_vectors=writer.n_vectors,
    )


class _Writer:
    """Assigns places in scratch memory and collects instructions and tables."""

    def __init__(self, program: Program, dtype: Any, *, sparse: bool):
        self.program = program
        self.sparse = sparse
        self.tiny = float(np.finfo(dtype).tiny)
        self.n_vectors = lanes(dtype)  # the first W vectors are a tile for temporary results and stores
        self.free: dict[int, list[int]] = defaultdict(list)
        self.place: dict[int, int] = {}
        self.code: list[dict[str, int]] = []
        self.floats: list[np.ndarray] = []
        self.ints: list[np.ndarray] = []
        self.n_floats = self.n_ints = 0
        self.last, self.readers = last_use(program), readers(program)
        self.columns: dict[int, list[int]] = defaultdict(list)
        for value, columns in zip(program.outputs, output_slices(program), strict=True):
            self.columns[value].append(columns.start)

    def write(self) -> None:
        """Write the instructions of all steps."""
        for value, step in enumerate(self.program.steps):
            if not self.is_read_sparse(value, step):
                self.write_step(value, step)
            for used in {value, *step.operands}:
                if self.last[used] == value and used in self.place:
                    self.free[self.capacity(used)].append(self.place.pop(used))

    def is_read_sparse(self, value: int, step: Step) -> bool:
        """Return whether all readers of a loaded row read its nonzeros directly, so that it needs no place."""
        if not self.sparse or not isinstance(step, s.Load) or self.columns[value]:
            return False
        return all(
            isinstance(self.program.steps[reader], s.Scatter | s.EuclideanNorm) for reader in self.readers[value]
        )

    def write_step(self, value: int, step: Step) -> None:
        """Write one step, and stores of its value if it is an output.

        Values that are gathered only for the result are stored directly and get no place.
        """
        columns = self.columns[value]
        direct = isinstance(step, s.Gather | s.Product) and not self.readers[value] and len(columns) == 1
        in_place = self.is_in_place(value, step)
        if in_place:
            self.place[value] = self.place[step.operands[0]]
        elif not direct:
            self.place[value] = self.find_place(self.capacity(value))
        to = {"target": self.place.get(value, 0), "size": step.size, "column": columns[0] if direct else -1}
        for entries in lookup(_STEPS, step, "host")(self, step):
            self.code.append(to | entries | {"target": to["target"] + entries.get("target", 0)})
        if in_place:
            del self.place[step.operands[0]]
        for column in () if direct else columns:
            store = {"operation": Operation.STORE, "source": self.place[value], "size": step.size, "column": column}
            self.code.append(store)

    def capacity(self, value: int) -> int:
        """Return the number of vectors reserved for a value, including the padding for a transform."""
        return power_of_two(self.program.size(value))

    def is_in_place(self, value: int, step: Step) -> bool:
        """Return whether a step may overwrite its operand: no later step reads it, and both have equal capacities."""
        if not isinstance(step, s.Hadamard | s.ScaleBy | s.DivideByNorm | s.Threshold):
            return False
        operand = step.operands[0]
        fits = self.capacity(operand) == self.capacity(value) and operand in self.place
        return fits and self.last[operand] == value

    def find_place(self, capacity: int) -> int:
        """Return the first of `capacity` vectors, reused if any are free."""
        if self.free[capacity]:
            return self.free[capacity].pop()
        self.n_vectors += capacity
        return self.n_vectors - capacity

    def table(self, values: Any) -> int:
        """Add numbers to the table of floats; return their offset."""
        self.floats.append(np.asarray(values, dtype=np.float64))
        self.n_floats += len(values)
        return self.n_floats - len(values)

    def index(self, values: np.ndarray) -> int:
        """Add numbers to the table of ints; return their offset."""
        self.ints.append(values)
        self.n_ints += len(values)
        return self.n_ints - len(values)


def _place(writer: _Writer, step: Step) -> Entries:
    """Return the entries that describe the first operand."""
    return {"source": writer.place[step.operands[0]], "source_size": writer.program.size(step.operands[0])}


def _load(writer: _Writer, step: s.Load) -> Iterator[Entries]:
    floats = writer.table([step.scale, step.constant or 0.0])
    yield {"operation": Operation.LOAD, "source": step.source, "flag": step.constant is not None, "floats": floats}


def _hadamard(writer: _Writer, step: s.Hadamard) -> Iterator[Entries]:
    diagonal = np.zeros(step.size)
    n = writer.program.size(step.operands[0])
    diagonal[:n] = step.diagonal[:n]
    yield {"operation": Operation.HADAMARD, **_place(writer, step), "floats": writer.table(diagonal)}


def _gather(writer: _Writer, step: s.Gather) -> Iterator[Entries]:
    ints, floats = writer.index(step.rows), writer.table(step.weights)
    yield {"operation": Operation.GATHER, **_place(writer, step), "ints": ints, "floats": floats}


def _product(writer: _Writer, step: s.Product) -> Iterator[Entries]:
    ints, second_ints = writer.index(step.a_rows), writer.index(step.b_rows)
    second = {"second": writer.place[step.operands[1]], "second_ints": second_ints}
    floats = writer.table([step.scale])
    yield {"operation": Operation.PRODUCT, **_place(writer, step), **second, "ints": ints, "floats": floats}


def _scatter(writer: _Writer, step: s.Scatter) -> Iterator[Entries]:
    codes = {"ints": writer.index(step.codes.ravel()), "count": step.codes.shape[1]}
    if step.operands[0] in writer.place:
        yield {"operation": Operation.SCATTER, **_place(writer, step), **codes, "floats": writer.table([step.scale])}
        return
    loaded: Any = writer.program.steps[step.operands[0]]
    appended = loaded.constant is not None
    floats = writer.table([step.scale * loaded.scale, step.scale * (loaded.constant or 0.0)])
    source = {"source": loaded.source, "source_size": len(step.codes) - appended, "flag": appended}
    yield {"operation": Operation.SPREAD, **source, **codes, "floats": floats}


def _concatenate(writer: _Writer, step: s.Concatenate) -> Iterator[Entries]:
    target = 0
    for operand, weight in zip(step.operands, step.weights, strict=True):
        part = {"source": writer.place[operand], "size": writer.program.size(operand), "target": target}
        yield {"operation": Operation.COPY, **part, "floats": writer.table([weight])}
        target += part["size"]


def _slice(writer: _Writer, step: s.Slice) -> Iterator[Entries]:
    source = writer.place[step.operands[0]] + step.start
    yield {"operation": Operation.COPY, "source": source, "floats": writer.table([1.0])}


def _norm(writer: _Writer, step: s.EuclideanNorm) -> Iterator[Entries]:
    if step.operands[0] in writer.place:
        yield {"operation": Operation.NORM, **_place(writer, step), "floats": writer.table([writer.tiny])}
        return
    loaded: Any = writer.program.steps[step.operands[0]]
    floats = writer.table([abs(loaded.scale), loaded.constant or 0.0, writer.tiny])
    yield {"operation": Operation.SPARSE_NORM, "source": loaded.source, "floats": floats}


def _scale(writer: _Writer, step: s.ScaleBy) -> Iterator[Entries]:
    second, floats = writer.place[step.operands[1]], writer.table([step.factor, writer.tiny])
    entries = {"operation": Operation.SCALE, **_place(writer, step), "second": second}
    yield {**entries, "flag": step.inverse, "floats": floats}


def _normalize(writer: _Writer, step: s.DivideByNorm) -> Iterator[Entries]:
    second = writer.place[step.operands[1]] if len(step.operands) > 1 else -1
    floats = writer.table([step.factor, max(step.floor, writer.tiny), writer.tiny])
    yield {"operation": Operation.NORMALIZE, **_place(writer, step), "second": second, "floats": floats}


def _activate(writer: _Writer, step: s.Threshold) -> Iterator[Entries]:
    operation = Operation.RELU if step.kind == "relu" else Operation.STEP
    yield {"operation": operation, **_place(writer, step), "floats": writer.table([step.scale])}


_STEPS: dict[type[Step], Callable[[_Writer, Any], Iterable[Entries]]] = {
    s.Load: _load,
    s.Constant: lambda writer, step: [{"operation": Operation.CONSTANT, "floats": writer.table(step.vector)}],
    s.Hadamard: _hadamard,
    s.Gather: _gather,
    s.Product: _product,
    s.Scatter: _scatter,
    s.Concatenate: _concatenate,
    s.Slice: _slice,
    s.EuclideanNorm: _norm,
    s.ScaleBy: _scale,
    s.DivideByNorm: _normalize,
    s.Threshold: _activate,
}
