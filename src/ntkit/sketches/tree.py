"""Binary trees of TensorSRHTs, which PolySketch, PowerSketch and the sketches of series are made of.

A node is named by the leaves start, …, stop − 1 below it. With s leaves it has 2^k < s of them on its left, as many as
possible, and the rest on its right: the depth is ⌈log₂ s⌉, and all degrees have the nodes of whole powers of two in
common.
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
    """The two parts of a node.

    Examples
    --------
    >>> children(0, 8), children(0, 11), children(8, 11)
    (((0, 4), (4, 8)), ((0, 8), (8, 11)), ((8, 10), (10, 11)))
    """
    middle = start + (1 << (stop - start - 1).bit_length() - 1)
    return (start, middle), (middle, stop)


def is_long(n_features: int, size: int) -> bool:
    """Whether a feature map maps the rows to `size` components by an OSNAP, in time proportional to their nonzeros.

    It depends on sizes alone, so that a map fitted on dense rows and one fitted on sparse rows are the same. Beyond
    four times the components the OSNAP changed errors by a few percent, and was faster for dense rows too.
    """
    return n_features > 4 * power_of_two(size)


def leaf_law(n_features: int, size: int, *, sparse: bool, n_nonzeros: int = 2, replace: bool = False) -> OSNAP | SRHT:
    """Law of a map of the rows to `size` components: an OSNAP if `sparse`, else an SRHT."""
    if sparse:
        return OSNAP(n_features, size, n_nonzeros=min(n_nonzeros, size))
    return SRHT(n_features, size, replace=replace)


@dataclass(frozen=True, eq=False)
class Tree:
    """Trees over the leaves 0, 1, …, one for each degree; they have their inner nodes in common.

    Attributes
    ----------
    leaves : tuple of operators
        One for each leaf; or one for all where draws are `shared`; none if leaves are the rows themselves.
    nodes : tuple of (node, operator)
        Inner nodes; where draws are `shared`, (0, s) is every node with s leaves.
    roots : tuple of (degree, operator)
        The root of each degree ≥ 2.
    shared : bool
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
        """Append the tree of a degree; return the index of its value. See :func:`emit_tree`."""
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
        The value of a leaf, the operator of a node.
    root : operator, optional
        The operator of the root, by default that of its node.
    finish : function
        Appends what comes after every inner node.
    known : dict
        Values of inner nodes that are there already; new ones are added.
    shared : bool
        Whether all nodes with s leaves are (0, s): they have one operator and one value.
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
    """Draw the trees of some degrees ≥ 2, given with the components of their roots.

    Inner nodes have `width` components. Where draws are `shared`, all nodes with inputs of equal sizes are one S; a
    root has the signs of S, and rows of its own if it has other components.
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
