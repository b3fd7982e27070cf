"""Run graphs in NumPy: the simple back end, which also evaluates constants while a graph is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ntkit.graphs.graph import ROWS, Graph, Node


def run(graph: Graph, X: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the outputs for some rows, each operation in its own precision."""
    values: dict[int, Any] = {}
    for node in graph.nodes():
        if node is graph.source:
            values[id(node)] = np.asarray(X, dtype=node.dtype)
        elif node.op == "constant":
            values[id(node)] = np.asarray(node.value, dtype=node.dtype)
        else:
            read = [values[id(part)] for part in node.inputs]
            with np.errstate(all="ignore"):
                values[id(node)] = np.asarray(apply(node, read, X.shape[0]), dtype=node.dtype)
    return {name: values[id(node)] for name, node in graph.outputs.items()}


def apply(node: Node, read: list[Any], n_rows: int) -> Any:
    """Compute the result of one operation."""
    if node.op in ("reshape", "expand"):
        shape = tuple(size // ROWS * n_rows if size % ROWS == 0 else size for size in node.shape)
        return read[0].reshape(shape) if node.op == "reshape" else np.broadcast_to(read[0], shape)
    return OPERATIONS[node.op](*read, **node.attributes)


def _slice(x: Any, *, axis: int, start: int, stop: int, step: int) -> Any:
    return x[(*[slice(None)] * axis, slice(start, stop, step))]


def _rfft(x: Any) -> Any:
    """Return the real and imaginary parts on a new last axis."""
    f = np.fft.rfft(x)
    return np.stack([f.real, f.imag], axis=-1)


def _irfft(x: Any, *, size: int) -> Any:
    return np.fft.irfft(x[..., 0] + 1j * x[..., 1], n=size)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims)


_SAME_NAME = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "less_equal", "greater", "greater_equal",
    "equal", "not_equal", "logical_and", "logical_or", "logical_not", "where", "negative", "abs", "sqrt", "exp",
    "log", "log1p", "expm1", "sin", "cos", "tanh", "sign", "isnan", "matmul", "power",
)  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _SAME_NAME},
    "root": lambda x: np.sqrt(np.maximum(x, 0)),
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean),
    "max": _reduction(np.max),
    "min": _reduction(np.min),
    "argmax": lambda x, axis: np.argmax(x, axis=axis),
    "take": lambda x, indices, axis: np.take(x, indices, axis=axis),
    "slice": _slice,
    "transpose": lambda x, axes: np.transpose(x, axes),
    "concat": lambda *parts, axis: np.concatenate(parts, axis=axis),
    "pad": lambda x, widths: np.pad(x, widths),
    "cast": lambda x: x,
    "rfft": _rfft,
    "irfft": _irfft,
}
