"""The steps of a program. Each step computes one vector from its operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Activation: TypeAlias = Literal["relu", "step"]


def power_of_two(n: int) -> int:
    """Return the smallest power of two ≥ n.

    Examples
    --------
    >>> [power_of_two(n) for n in (1, 2, 3, 1000)]
    [1, 2, 4, 1024]
    """
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True, eq=False)
class Step:
    """One step: the indices of the values that it reads, and the size of its result."""

    operands: tuple[int, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Load(Step):
    """The rows of input `source` times `scale`, with `constant` (unless None) appended as a last feature."""

    source: int
    scale: float
    constant: float | None

    @property
    def is_plain(self) -> bool:
        """Whether the value equals the input."""
        return self.scale == 1.0 and self.constant is None


@dataclass(frozen=True, eq=False)
class Constant(Step):
    """The same vector for every row."""

    vector: Floats


@dataclass(frozen=True, eq=False)
class Hadamard(Step):
    """H · (diagonal ⊙ v), v zero-padded to a power of two; H has entries ±1 (Sylvester's order)."""

    diagonal: Floats


@dataclass(frozen=True, eq=False)
class Gather(Step):
    """Coordinate l is weights[l] · v[rows[l]]."""

    rows: Ints
    weights: Floats


@dataclass(frozen=True, eq=False)
class Product(Step):
    """Coordinate l is scale · a[a_rows[l]] · b[b_rows[l]]."""

    a_rows: Ints
    b_rows: Ints
    scale: float


@dataclass(frozen=True, eq=False)
class Scatter(Step):
    """Coordinate i is the sum of ±scale · v[j] over all codes[j, k] = 2i (sign +) or 2i + 1 (sign −)."""

    codes: Ints
    scale: float


@dataclass(frozen=True, eq=False)
class Concatenate(Step):
    """The concatenated operands, each times its weight."""

    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Slice(Step):
    """Coordinates `start`, `start + 1`, … of a value."""

    start: int


@dataclass(frozen=True, eq=False)
class Convolve(Step):
    """The circular convolution of all operands, which have equal sizes."""


@dataclass(frozen=True, eq=False)
class EuclideanNorm(Step):
    """The Euclidean norm of a value, a vector of size 1."""


@dataclass(frozen=True, eq=False)
class ScaleBy(Step):
    """The first operand times `factor` · c, or times `factor` / c if `inverse`.

    c is the single coordinate of the second operand. If c is below the smallest normal number, 1/c is replaced by 0.
    """

    factor: float
    inverse: bool


@dataclass(frozen=True, eq=False)
class DivideByNorm(Step):
    """`factor` · v / ‖v‖, times the single coordinate of the second operand, if any.

    The result is 0 where ‖v‖ is below `floor` or below the smallest normal number.
    """

    factor: float
    floor: float


@dataclass(frozen=True, eq=False)
class MatrixProduct(Step):
    """A matrix of shape (size, size of v) times v."""

    matrix: np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, eq=False)
class Threshold(Step):
    """scale · max(v, 0) for "relu", scale · (1 if v > 0 else 0) for "step", for every coordinate."""

    kind: Activation
    scale: float
