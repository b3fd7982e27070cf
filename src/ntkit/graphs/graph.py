"""Graphs of array operations: what a tracer records, and what back ends run.

A graph has one input of shape (n_rows, …). Its number of rows is not known: while a graph is made, the sizes of arrays
are multiples of :data:`ROWS` where they are multiples of the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

ROWS = 1_000_003
"""Number of rows while a graph is made: a prime number larger than the other sizes of arrays."""
SINGLE, WIDE = np.dtype(np.float32), np.dtype(np.float64)
ELEMENTWISE = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "power",
        "maximum",
        "minimum",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_not",
        "where",
        "negative",
        "abs",
        "sqrt",
        "root",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sin",
        "cos",
        "asin",
        "acos",
        "atan",
        "asinh",
        "tanh",
        "sign",
        "isnan",
        "cast",
    ]
)


@dataclass(eq=False)
class Node:
    """An array: an operation, what it reads, its attributes, and the shape and dtype of the result.

    Constants have a `value`, in float64 unless it holds indices or truth values.
    """

    op: str
    inputs: tuple[Node, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: dict[str, Any] = field(default_factory=dict)
    value: np.ndarray | None = None

    @property
    def n_rows_axes(self) -> int:
        """How many axes depend on the number of rows."""
        return sum(size % ROWS == 0 and size > 0 for size in self.shape)


@dataclass(frozen=True, eq=False)
class Graph:
    """Operations from an input of shape (n_rows, …) to named outputs."""

    source: Node
    outputs: dict[str, Node]

    def nodes(self) -> list[Node]:
        """All arrays that the outputs depend on, each after those that it reads."""
        found: dict[int, Node] = {id(self.source): self.source}
        stack = [(node, False) for node in reversed(list(self.outputs.values()))]
        while stack:
            node, ready = stack.pop()
            if id(node) in found:
                continue
            if ready:
                found[id(node)] = node
            else:
                stack.append((node, True))
                stack += [(read, False) for read in reversed(node.inputs)]
        return list(found.values())

    def constants(self) -> list[Node]:
        """Constants of the graph."""
        return [node for node in self.nodes() if node.op == "constant"]


def symbolic(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape with -1 in place of the size that depends on the number of rows."""
    found = tuple(-1 if size % ROWS == 0 and size > 0 else int(size) for size in shape)
    if found.count(-1) > 1:
        raise ValueError(f"Only one axis may depend on the number of rows. Got the shape {tuple(shape)}.")
    return found


def full_shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """A shape of so many entries with its -1 resolved."""
    known = prod(n for n in shape if n != -1)
    return tuple(int(size // known) if n == -1 else int(n) for n in shape)


def readers(nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Pairs of an array and one that reads it."""
    for node in nodes:
        for read in node.inputs:
            yield read, node
