"""Graphs of array operations, which a tracer records and back ends run.

A graph has one input of shape (n_rows, …), with an unknown number of rows. While a graph is recorded, :data:`ROWS`
stands for the number of rows: sizes that are multiples of the number of rows are multiples of :data:`ROWS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

ROWS = 1_000_003
"""Stands for the number of rows while a graph is recorded: a prime that is larger than all other sizes."""
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
    """An array in a graph: its operation, inputs and attributes, and the shape and dtype of the result.

    Constants have a `value`, in float64 unless it holds integers or booleans.
    """

    op: str
    inputs: tuple[Node, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: dict[str, Any] = field(default_factory=dict)
    value: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Graph:
    """Operations from an input of shape (n_rows, …) to named outputs."""

    source: Node
    outputs: dict[str, Node]

    def nodes(self) -> list[Node]:
        """Return all nodes that the outputs depend on, in topological order."""
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
        """Return the constants of the graph."""
        return [node for node in self.nodes() if node.op == "constant"]


def symbolic(shape: Sequence[int]) -> tuple[int, ...]:
    """Replace the size that depends on the number of rows by -1."""
    found = tuple(-1 if size % ROWS == 0 and size > 0 else int(size) for size in shape)
    if found.count(-1) > 1:
        raise ValueError(f"Only one axis may depend on the number of rows. Got the shape {tuple(shape)}.")
    return found


def full_shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Resolve -1 in the shape of an array with `size` entries."""
    known = prod(n for n in shape if n != -1)
    return tuple(int(size // known) if n == -1 else int(n) for n in shape)
