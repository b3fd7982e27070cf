"""Straight-line programs: the common representation of sketches and of the feature maps built from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ntkit.programs import steps as s
from ntkit.programs.steps import Activation, Floats, Ints, Step, power_of_two


@dataclass
class Program:
    """A list of steps. Step i computes value i, one vector per row, and never changes another value.

    Each method appends a step and returns the index of its value. A step equal to an earlier one is not appended
    again; so trees that differ in one path, and powers that share their squares, need no bookkeeping.

    Parameters
    ----------
    n_features : tuple of int
        Number of columns of each input.

    Attributes
    ----------
    steps : list of Step
    outputs : list of int
        Indices of the values that are concatenated to the result.
    cache : dict
        Data that back ends derive from the program.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.programs import Program, run
    >>> program = Program((3,))
    >>> x = program.load()
    >>> program.output(program.normalize(x))
    >>> run(program, [np.array([[3.0, 0.0, 4.0]])])
    array([[0.6, 0. , 0.8]])
    """

    n_features: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _known: dict[Hashable, list[int]] = field(default_factory=dict, repr=False)

    @property
    def n_outputs(self) -> int:
        """Number of columns of the result."""
        return sum(self.steps[value].size for value in self.outputs)

    def size(self, value: int) -> int:
        """Return the number of coordinates of a value."""
        return self.steps[value].size

    def load(self, source: int = 0, *, scale: float = 1.0, constant: float | None = None) -> int:
        """Append :class:`~ntkit.programs.steps.Load`."""
        return self.append(s.Load((), self.n_features[source] + (constant is not None), source, scale, constant))

    def constant(self, vector: Floats) -> int:
        """Append :class:`~ntkit.programs.steps.Constant`."""
        return self.append(s.Constant((), len(vector), vector))

    def hadamard(self, value: int, diagonal: Floats) -> int:
        """Append :class:`~ntkit.programs.steps.Hadamard`."""
        return self.append(s.Hadamard((value,), power_of_two(self.size(value)), diagonal))

    def gather(self, value: int, rows: Ints, weights: Floats | float = 1.0) -> int:
        """Append :class:`~ntkit.programs.steps.Gather`; a scalar means equal weights."""
        weights = weights if isinstance(weights, np.ndarray) else np.full(len(rows), weights)
        return self.append(s.Gather((value,), len(rows), rows, weights))

    def product(self, a: int, a_rows: Ints, b: int, b_rows: Ints, scale: float) -> int:
        """Append :class:`~ntkit.programs.steps.Product`."""
        return self.append(s.Product((a, b), len(a_rows), a_rows, b_rows, scale))

    def scatter(self, value: int, codes: Ints, scale: float, size: int) -> int:
        """Append :class:`~ntkit.programs.steps.Scatter`."""
        return self.append(s.Scatter((value,), size, codes, scale))

    def concatenate(self, values: Sequence[int], weights: Sequence[float] | None = None) -> int:
        """Append :class:`~ntkit.programs.steps.Concatenate`; the default weights are 1.

        A single value with weight 1 is returned unchanged.
        """
        weights = (1.0,) * len(values) if weights is None else tuple(weights)
        if len(values) == 1 and weights[0] == 1.0:
            return values[0]
        return self.append(s.Concatenate(tuple(values), sum(map(self.size, values)), weights))

    def slice(self, value: int, start: int, size: int) -> int:
        """Append :class:`~ntkit.programs.steps.Slice`."""
        return self.append(s.Slice((value,), size, start))

    def convolve(self, values: Sequence[int]) -> int:
        """Append :class:`~ntkit.programs.steps.Convolve`."""
        return self.append(s.Convolve(tuple(values), self.size(values[0])))

    def norm(self, value: int) -> int:
        """Append :class:`~ntkit.programs.steps.EuclideanNorm`."""
        return self.append(s.EuclideanNorm((value,), 1))

    def scale(self, value: int, multiplier: int, *, factor: float = 1.0, inverse: bool = False) -> int:
        """Append :class:`~ntkit.programs.steps.ScaleBy`."""
        return self.append(s.ScaleBy((value, multiplier), self.size(value), factor, inverse))

    def normalize(self, value: int, multiplier: int | None = None, *, factor: float = 1.0, floor: float = 0.0) -> int:
        """Append :class:`~ntkit.programs.steps.DivideByNorm`."""
        operands = (value,) if multiplier is None else (value, multiplier)
        return self.append(s.DivideByNorm(operands, self.size(value), factor, floor))

    def dense(self, value: int, matrix: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """Append :class:`~ntkit.programs.steps.MatrixProduct`."""
        return self.append(s.MatrixProduct((value,), len(matrix), matrix))

    def activate(self, value: int, kind: Activation, scale: float = 1.0) -> int:
        """Append :class:`~ntkit.programs.steps.Threshold`."""
        return self.append(s.Threshold((value,), self.size(value), kind, scale))

    def output(self, value: int) -> None:
        """Append the coordinates of `value` to the columns of the result."""
        self.cache.clear()
        self.outputs.append(value)

    def append(self, step: Step) -> int:
        """Append a step unless an equal step exists; return the index of its value."""
        same_key = self._known.setdefault((type(step), *_digest(step)), [])
        for value in same_key:
            if _equal(step, self.steps[value]):
                return value
        self.cache.clear()
        self.steps.append(step)
        same_key.append(len(self.steps) - 1)
        return len(self.steps) - 1


def _content(step: Step) -> Iterator[Any]:
    """Yield the fields of a step: numbers, strings and arrays, with tuples flattened."""
    for part in (getattr(step, entry.name) for entry in fields(step)):
        yield from part if isinstance(part, tuple) else (part,)


def _digest(step: Step) -> Iterator[Hashable]:
    """Yield a hashable summary of a step.

    An array contributes its shape and its first entries only, which avoids a pass over large arrays.
    """
    for part in _content(step):
        if isinstance(part, np.ndarray):
            yield part.shape
            yield part.reshape(-1)[:8].tobytes()
        else:
            yield part


def _equal(a: Step, b: Step) -> bool:
    """Return whether two steps with equal digests have equal arrays."""
    pairs = zip(_content(a), _content(b), strict=True)
    return all(x is y or not isinstance(x, np.ndarray) or np.array_equal(x, y) for x, y in pairs)
