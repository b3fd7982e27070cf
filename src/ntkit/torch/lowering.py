"""Turn graphs of array operations into ``torch.fx`` modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx, nn

from ntkit.graphs import ROWS, Graph, Node, symbolic
from ntkit.torch import operations

_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(bool): torch.bool}


def module(graph: Graph, dtype: torch.dtype) -> Any:
    """Make a ``torch.fx.GraphModule`` that computes a graph, with its constants as buffers.

    The empty buffer `precision` has the dtype of the rows and results. `wide_names` lists the buffers in float64.
    """
    root = nn.Module()
    root.register_buffer("precision", torch.empty(0, dtype=dtype))
    code, values = fx.Graph(), {}
    x = values[id(graph.source)] = code.placeholder("x")
    precision = code.get_attr("precision")
    buffers = _Buffers(root, code, dtype)
    for node in graph.nodes():
        if node is graph.source:
            continue
        if node.op == "constant":
            assert node.value is not None
            values[id(node)] = buffers.node(node.value, node.dtype)
        else:
            indices = node.attributes.get("indices")
            at = None if indices is None else buffers.node(indices, indices.dtype)
            read = [values[id(part)] for part in node.inputs]
            values[id(node)] = _call(code, node, read, x, precision, at)
    results = {}
    for name, node in graph.outputs.items():
        value = values[id(node)]
        results[name] = code.call_function(operations.like, (value, precision)) if node.dtype.kind == "f" else value
    code.output(results)
    made = fx.GraphModule(root, code)
    made.wide_names = tuple(buffers.wide)
    return made


class _Buffers:
    """Buffers for the constants of a graph. Equal constants share a buffer."""

    def __init__(self, root: nn.Module, code: fx.Graph, dtype: torch.dtype):
        self.root, self.code, self.dtype = root, code, dtype
        self.known: dict[Any, fx.Node] = {}
        self.wide: list[str] = []

    def node(self, values: np.ndarray, dtype: np.dtype) -> fx.Node:
        """Return the ``fx`` node that reads the buffer of some values."""
        key = dtype.str, values.shape, values.tobytes()
        if key not in self.known:
            name = f"constant_{len(self.known)}"
            value = torch.from_numpy(np.array(values))
            if dtype.kind == "f" and dtype.itemsize < 8:
                value = value.to(self.dtype)
            elif dtype.kind == "f":
                self.wide.append(name)
            self.root.register_buffer(name, value)
            self.known[key] = self.code.get_attr(name)
        return self.known[key]


def _call(
    code: fx.Graph, node: Node, read: list[fx.Node], x: fx.Node, precision: fx.Node, indices: fx.Node | None
) -> fx.Node:
    attributes = dict(node.attributes)
    if node.op == "cast":
        if node.dtype.kind == "f" and node.dtype.itemsize < 8:
            return code.call_function(operations.like, (read[0], precision))
        if node.dtype.kind == "f":
            return code.call_function(operations.widened, (read[0],))
        return code.call_method("to", (read[0], _DTYPES[node.dtype]))
    if node.op == "reshape":
        return code.call_function(operations.reshaped, (read[0], symbolic(node.shape)))
    if node.op == "expand":
        factor = [size // ROWS if size % ROWS == 0 else 0 for size in node.shape]
        return code.call_function(operations.expanded, (read[0], x, tuple(node.shape), tuple(factor)))
    if node.op == "take":
        attributes["indices"] = indices
    return code.call_function(operations.OPERATIONS[node.op], tuple(read), attributes)
