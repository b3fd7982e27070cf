"""Binary trees of TensorSRHTs: the building blocks of PolySketch, PowerSketch and the sketches of power series.

The node (start, stop) has the leaves start, …, stop − 1 below it. Of its s leaves, the largest 2^k < s are in its left
child and the rest in its right child. The depth is ⌈log₂ s⌉, and trees of different degrees share the nodes whose
number of leaves is a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ntkit._random import keyed
from ntkit.programs import Program, power_of_two
from ntkit.sketches.countsketch import OSNAP, OSNAPOperator
from ntkit.sketches.srht import SRHT, SRHTOperator
from ntkit.sketches.tensor import TensorSRHT, TensorSRHTOperator

Leaf: TypeAlias = OSNAPOperator | SRHTOperator
Span: TypeAlias = tuple[int, int]


def children(start: int, stop: int) -> tuple[Span, Span]:
    """Return the left and the right child of a node.

    Examples
    --------
    >>> children(0, 8), children(0, 11), children(8, 11)
    (((0, 4), (4, 8)), ((0, 8), (8, 11)), ((8, 10), (10, 11)))
    """
    middle = start + (1 << (stop - start - 1).bit_length() - 1)
    return (start, middle), (middle, stop)


def is_long(n_features: int, size: int) -> bool:
    """Return whether a feature map should use an OSNAP to map rows to `size` components.

    An OSNAP takes time proportional to the nonzeros of the rows. The choice depends on the sizes alone, so that maps
    fitted on dense rows and on sparse rows are the same. Above four times the components the OSNAP changed the
    measured errors by a few percent and was faster for dense rows, too.
    """
    return n_features > 4 * power_of_two(size)


def leaf_law(n_features: int, size: int, *, sparse: bool, n_nonzeros: int = 2, replace: bool = False) -> OSNAP | SRHT:
    """Return the distribution of a map from rows to `size` components: an OSNAP if `sparse`, else an SRHT."""
    if sparse:
        return OSNAP(n_features, size, n_nonzeros=min(n_nonzeros, size))
    return SRHT(n_features, size, replace=replace)


@dataclass(frozen=True, eq=False)
class Tree:
    """Trees over the leaves 0, 1, …, one for each degree, which share their inner nodes.

    Attributes
    ----------
    leaves : tuple of operators
        One operator for each leaf, or a single one for all leaves if `shared`. Empty if the leaves are the rows.
    nodes : tuple of (node, operator)
        Inner nodes. If `shared`, (0, s) stands for every node with s leaves.
    roots : tuple of (degree, operator)
        The root of each degree ≥ 2.
    shared : bool
        Whether all nodes with s leaves have the same operator.
    """

    leaves: tuple[Leaf, ...]
    nodes: tuple[tuple[Span, TensorSRHTOperator], ...]
    roots: tuple[tuple[int, TensorSRHTOperator], ...]
    shared: bool

    def emit(
        self,
        program: Program,
        degree: int,
        leaf: Callable[[int], int],
        finish: Callable[[int], int] = lambda value: value,
        known: dict[Span, int] | None = None,
    ) -> int:
        """Append the tree of one degree; return the index of its value. See :func:`emit_tree`."""
        nodes, roots = dict(self.nodes), dict(self.roots)
        known = {} if known is None else known
        return emit_tree(
            program, degree, leaf, nodes.__getitem__, roots.get(degree), finish=finish, known=known, shared=self.shared
        )


def emit_tree(
    program: Program,
    degree: int,
    leaf: Callable[[int], int],
    node: Callable[[Span], TensorSRHTOperator],
    root: TensorSRHTOperator | None = None,
    *,
    finish: Callable[[int], int] = lambda value: value,
    known: dict[Span, int],
    shared: bool,
) -> int:
    """Append a tree over the leaves 0, …, degree − 1; return the index of its value.

    Parameters
    ----------
    program : Program
    degree : int
    leaf, node : functions
        Return the value of a leaf and the operator of a node.
    root : operator, optional
        The operator of the root; by default the operator of its node.
    finish : function
        Appends further steps to the value of an inner node and returns the new value.
    known : dict
        Values of inner nodes computed so far; new values are added.
    shared : bool
        Whether all nodes with s leaves have one operator and one value, stored under (0, s).
    """

    def value(start: int, stop: int) -> int:
        if stop - start == 1:
            return leaf(start)
        span = (0, stop - start) if shared else (start, stop)
        if span not in known:
            known[span] = finish(node(span).emit(program, *(value(*part) for part in children(start, stop))))
        return known[span]

    if degree == 1:
        return leaf(0)
    top = node((0, degree)) if root is None else root
    return top.emit(program, *(value(*part) for part in children(0, degree)))


def draw_tree(
    seed: np.random.SeedSequence,
    degrees: Mapping[int, int],
    *,
    leaves: tuple[Leaf, ...],
    n_features: int,
    width: int,
    replace: bool,
    shared: bool = False,
) -> Tree:
    """Draw the trees of the given degrees ≥ 2; `degrees` maps each degree to the number of components of its root.

    Inner nodes have `width` components. If `shared`, all nodes with inputs of equal sizes use the same S. A root then
    uses the signs of S, and its own rows if it does not have `width` components.
    """
    nodes: dict[Span, TensorSRHTOperator] = {}
    roots: dict[int, TensorSRHTOperator] = {}
    squares: dict[Span, TensorSRHTOperator] = {}

    def sizes(start: int, stop: int) -> Span:
        left, right = (width if leaves or part[1] - part[0] > 1 else n_features for part in children(start, stop))
        return left, right

    def draw(start: int, stop: int, n_components: int, *key: int | str) -> TensorSRHTOperator:
        inputs = sizes(start, stop)
        if not shared:
            return TensorSRHT(inputs, n_components, replace=replace).sample(keyed(seed, *key))
        if inputs not in squares:
            squares[inputs] = TensorSRHT(inputs, width, replace=replace).sample(keyed(seed, "S", *inputs))
        if n_components == width:
            return squares[inputs]
        own = TensorSRHT(inputs, n_components, replace=replace).sample(keyed(seed, *key))
        return TensorSRHTOperator(signs=squares[inputs].signs, rows=own.rows)

    def draw_inner(start: int, stop: int) -> None:
        span = (0, stop - start) if shared else (start, stop)
        if stop - start > 1 and span not in nodes:
            for part in children(start, stop):
                draw_inner(*part)
            nodes[span] = draw(start, stop, width, "node", *span)

    for degree, n_components in degrees.items():
        for part in children(0, degree):
            draw_inner(*part)
        roots[degree] = draw(0, degree, n_components, "root", degree)
    return Tree(leaves, tuple(nodes.items()), tuple(roots.items()), shared)
