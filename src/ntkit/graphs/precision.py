"""Passes that lower the precision of parts of a graph to the precision of the rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ntkit.graphs.graph import SINGLE, WIDE, Graph, Node


def all_single(graph: Graph) -> Graph:
    """Run every operation in the precision of the rows."""
    return _rebuilt(graph, lambda node, read: Node(node.op, tuple(map(_single, read)), node.shape, _dtype(node),
                                                   node.attributes, node.value))  # fmt: skip


def single_products(graph: Graph) -> Graph:
    """Run only matrix products in the precision of the rows."""

    def build(node: Node, read: list[Node]) -> Node:
        if node.op != "matmul" or node.dtype != WIDE:
            return Node(node.op, tuple(read), node.shape, node.dtype, node.attributes, node.value)
        product = Node(node.op, tuple(map(_single, read)), node.shape, SINGLE, node.attributes)
        return Node("cast", (product,), node.shape, WIDE)

    return _rebuilt(graph, build)


def cusps(graph: Graph) -> list[Node]:
    """Find float64 square roots of matrices over pairs of rows: small distances and angles, which need wide inputs."""
    return [node for node in graph.nodes() if node.op == "root" and node.dtype == WIDE and 1 not in node.shape[-2:]]


def single_after_cusps(graph: Graph) -> Graph:
    """Run the square roots found by :func:`cusps`, and all that depends on them, in the precision of the rows."""
    downstream = {id(node) for node in cusps(graph)}
    for node in graph.nodes():
        if any(id(read) in downstream for read in node.inputs):
            downstream.add(id(node))

    def build(node: Node, read: list[Node]) -> Node:
        if id(node) not in downstream:
            return Node(node.op, tuple(read), node.shape, node.dtype, node.attributes, node.value)
        return Node(node.op, tuple(map(_single, read)), node.shape, _dtype(node), node.attributes)

    return _rebuilt(graph, build)


def single_operations(graph: Graph, names: frozenset[str]) -> Graph:
    """Run the named operations in the precision of the rows, for back ends that lack them in float64."""

    def build(node: Node, read: list[Node]) -> Node:
        if node.op not in names or node.dtype != WIDE:
            return Node(node.op, tuple(read), node.shape, node.dtype, node.attributes, node.value)
        value = Node(node.op, tuple(map(_single, read)), node.shape, SINGLE, node.attributes)
        return Node("cast", (value,), node.shape, WIDE)

    return _rebuilt(graph, build)


def _dtype(node: Node) -> np.dtype:
    return SINGLE if node.dtype == WIDE else node.dtype


def _single(node: Node) -> Node:
    """Return an array in the precision of the rows."""
    if node.dtype != WIDE:
        return node
    if node.op == "constant":
        return Node("constant", (), node.shape, SINGLE, value=node.value)
    if node.op == "cast" and node.inputs[0].dtype == SINGLE:
        return node.inputs[0]
    return Node("cast", (node,), node.shape, SINGLE)


def _wide(node: Node) -> Node:
    return Node("cast", (node,), node.shape, WIDE)


def _rebuilt(graph: Graph, build: Callable[[Node, list[Node]], Node]) -> Graph:
    made: dict[int, Node] = {id(graph.source): graph.source}
    for node in graph.nodes():
        if node is graph.source:
            continue
        new = build(node, [made[id(read)] for read in node.inputs])
        if new.dtype == WIDE and new.op != "cast":
            new.inputs = tuple(read if read.dtype != SINGLE else _wide(read) for read in new.inputs)
        if new.op == "cast" and new.inputs[0].dtype == new.dtype:
            new = new.inputs[0]
        made[id(node)] = new
    return Graph(graph.source, {name: made[id(node)] for name, node in graph.outputs.items()})
