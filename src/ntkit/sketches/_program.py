"""Straight-line programs: what all sketches and the feature maps made of them have in common.

An operator describes its map once, as steps on vectors (:class:`Program`); three interpreters run the description:
:mod:`ntkit.sketches._agnostic` (array API, the legible one), :mod:`ntkit.sketches._numba` (rows in cache, for host
memory) and :mod:`ntkit.sketches._triton` (CUDA). So compositions and trees of sketches are fused without any code
of their own. A step never changes a value: values are numbered, and each is written once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


def power_of_two(n: int) -> int:
    """Smallest power of two ≥ n.

    Examples
    --------
    >>> [power_of_two(n) for n in (1, 2, 3, 1000)]
    [1, 2, 4, 1024]
    """
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, eq=False)
class Load:
    """The rows of input number `source`, times `scale`; `constant`, unless None, is appended as a last feature."""

    source: int
    scale: float
    constant: float | None


@dataclass(frozen=True, eq=False)
class Hadamard:
    """H · (diagonal ⊙ v), v zero-padded to a power of two; H has entries ±1 (Sylvester's order)."""

    value: int
    diagonal: Floats


@dataclass(frozen=True, eq=False)
class Gather:
    """Coordinate l is weights[l] · v[rows[l]]."""

    value: int
    rows: Ints
    weights: Floats


@dataclass(frozen=True, eq=False)
class Product:
    """Coordinate l is scale · a[a_rows[l]] · b[b_rows[l]]."""

    a: int
    a_rows: Ints
    b: int
    b_rows: Ints
    scale: float


@dataclass(frozen=True, eq=False)
class Scatter:
    """Coordinate i is Σ of ±scale · v[j] over all codes[j, k] = 2i (sign +) or 2i + 1 (sign −)."""

    value: int
    codes: Ints
    scale: float


@dataclass(frozen=True, eq=False)
class Concatenate:
    """The values one after the other, each times its weight."""

    values: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Constant:
    """The same vector for every row."""

    vector: Floats


@dataclass(frozen=True, eq=False)
class Slice:
    """Coordinates `start`, `start + 1`, … of a value."""

    value: int
    start: int


@dataclass(frozen=True, eq=False)
class Norm:
    """The Euclidean norm of a value, a vector of length 1."""

    value: int


@dataclass(frozen=True, eq=False)
class Scale:
    """A value times `factor` · c, or `factor` / c with `inverse`, c the one coordinate of the value `by`.

    The inverse of c = 0, and of any c below `floor` or the smallest normal number, is 0.
    """

    value: int
    by: int
    factor: float
    inverse: bool
    floor: float


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix of shape (size, size of v) times v."""

    value: int
    matrix: np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, eq=False)
class Activate:
    """scale · max(v, 0), or scale · (1 if v > 0 else 0), of every coordinate."""

    value: int
    kind: Activation
    scale: float


Activation: TypeAlias = Literal["relu", "step"]
Step: TypeAlias = (
    Load | Constant | Hadamard | Gather | Product | Scatter | Concatenate | Slice | Norm | Scale | Dense | Activate
)


def operands(step: Step) -> tuple[int, ...]:
    """Values that a step reads."""
    if isinstance(step, Load | Constant):
        return ()
    if isinstance(step, Product):
        return (step.a, step.b)
    if isinstance(step, Concatenate):
        return step.values
    if isinstance(step, Scale):
        return (step.value, step.by)
    return (step.value,)


@dataclass
class Program:
    """A list of steps; step number i computes value number i, a vector of length ``sizes[i]``.

    The methods append a step and return the number of its value. A step asked for twice is computed once, so trees
    that update one path, and powers that share their squares, need no bookkeeping of their own. (Arrays count as the
    same if they are the same object.) `cache` is for the interpreters.
    """

    n_features: tuple[int, ...]
    steps: list[Step] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _known: dict[Hashable, int] = field(default_factory=dict, repr=False)

    @property
    def n_outputs(self) -> int:
        """Columns of the result: the outputs one after the other."""
        return sum(self.sizes[value] for value in self.outputs)

    def load(self, source: int = 0, *, scale: float = 1.0, constant: float | None = None) -> int:
        """Append :class:`Load`."""
        return self._append(Load(source, scale, constant), self.n_features[source] + (constant is not None))

    def constant(self, vector: Floats) -> int:
        """Append :class:`Constant`."""
        return self._append(Constant(vector), len(vector))

    def hadamard(self, value: int, diagonal: Floats) -> int:
        """Append :class:`Hadamard`."""
        return self._append(Hadamard(value, diagonal), power_of_two(self.sizes[value]))

    def gather(self, value: int, rows: Ints, weights: Floats) -> int:
        """Append :class:`Gather`."""
        return self._append(Gather(value, rows, weights), len(rows))

    def product(self, a: int, a_rows: Ints, b: int, b_rows: Ints, scale: float) -> int:
        """Append :class:`Product`."""
        return self._append(Product(a, a_rows, b, b_rows, scale), len(a_rows))

    def scatter(self, value: int, codes: Ints, scale: float, size: int) -> int:
        """Append :class:`Scatter`."""
        return self._append(Scatter(value, codes, scale), size)

    def concatenate(self, values: Sequence[int], weights: Sequence[float] | None = None) -> int:
        """Append :class:`Concatenate`; without `weights` they are 1."""
        weights = [1.0] * len(values) if weights is None else weights
        size = sum(self.sizes[value] for value in values)
        return self._append(Concatenate(tuple(values), tuple(weights)), size)

    def slice(self, value: int, start: int, size: int) -> int:
        """Append :class:`Slice`."""
        return self._append(Slice(value, start), size)

    def norm(self, value: int) -> int:
        """Append :class:`Norm`."""
        return self._append(Norm(value), 1)

    def scale(self, value: int, by: int, *, factor: float = 1.0, inverse: bool = False, floor: float = 0.0) -> int:
        """Append :class:`Scale`."""
        return self._append(Scale(value, by, factor, inverse, floor), self.sizes[value])

    def dense(self, value: int, matrix: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """Append :class:`Dense`."""
        return self._append(Dense(value, matrix), len(matrix))

    def activate(self, value: int, kind: Activation, scale: float = 1.0) -> int:
        """Append :class:`Activate`."""
        return self._append(Activate(value, kind, scale), self.sizes[value])

    def output(self, value: int) -> None:
        """Make `value` the next columns of the result."""
        self.outputs.append(value)

    def last_use(self) -> list[int]:
        """For each value the number of the last step that reads it, its own if none does."""
        last = list(range(len(self.steps)))
        for number, step in enumerate(self.steps):
            for value in operands(step):
                last[value] = number
        return last

    def _append(self, step: Step, size: int) -> int:
        fields = (getattr(step, name) for name in step.__dataclass_fields__)
        parts = (id(part) if isinstance(part, np.ndarray) else part for part in fields)
        key = (type(step), size, *parts)  # the step keeps its arrays, and so their identities, alive
        if key not in self._known:
            self.steps.append(step)
            self.sizes.append(size)
            self._known[key] = len(self.steps) - 1
        return self._known[key]
