"""Turn graphs of array operations into ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import __version__
from ntkit.graphs import ROWS, Graph, Node, symbolic

OPSET = 18
"""ONNX operator set: the first in which all reductions take their axes as an input."""
IR_VERSION = 9
UNSUPPORTED_WIDE = frozenset(("asin", "acos", "atan", "asinh"))
"""Operations that onnxruntime lacks in float64."""
_NAMES = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "maximum": "Max",
    "minimum": "Min", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "equal": "Equal", "logical_and": "And", "logical_or": "Or",
    "logical_not": "Not", "where": "Where", "negative": "Neg", "abs": "Abs", "sqrt": "Sqrt", "exp": "Exp", "log": "Log",
    "sin": "Sin", "cos": "Cos", "asin": "Asin", "acos": "Acos", "atan": "Atan", "asinh": "Asinh", "tanh": "Tanh",
    "sign": "Sign", "isnan": "IsNaN", "matmul": "MatMul",
}  # fmt: skip
_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}


def emit(graph: Graph, name: str, dtype: str, classes: np.ndarray | None) -> bytes:
    """Return the content of an ONNX file.

    Parameters
    ----------
    graph : Graph
    name : str
        Name of the model.
    dtype : {"float32", "float64"}
        Dtype of the input and the results.
    classes : ndarray or None
        Classes of a classifier, into which the output "index" points.
    """
    from onnx import checker, helper

    writer = _NodeWriter(graph, np.dtype(dtype))
    writer.write()
    outputs = []
    for output, node in graph.outputs.items():
        value, kept = writer.result(node), [None if n == -1 else n for n in symbolic(node.shape)]
        if output == "index":
            assert classes is not None
            output, value = "label", writer.add("Gather", [writer.labels(classes), value], axis=0)
            kind = writer.label_type
        else:
            kind = writer.type_of(np.dtype(dtype))
        writer.add("Identity", [value], output=output)
        outputs.append(helper.make_tensor_value_info(output, kind, ["n", *kept[1:]]))
    shape = ["n", *graph.source.shape[1:]]
    rows = helper.make_tensor_value_info("X", writer.type_of(np.dtype(dtype)), shape)
    made = helper.make_graph(writer.nodes, name, [rows], outputs, writer.initializers)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(made, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ntkit",
                              producer_version=__version__)  # fmt: skip
    checker.check_model(model)
    return model.SerializeToString()


class _NodeWriter:
    """Translates the operations of a graph to ONNX nodes."""

    def __init__(self, graph: Graph, dtype: np.dtype):
        self.graph, self.dtype = graph, dtype
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.values: dict[int, str] = {id(graph.source): "X"}
        self._known: dict[Any, str] = {}
        self._n_rows: str | None = None
        self.label_type = 0

    def write(self) -> None:
        """Write all operations."""
        for node in self.graph.nodes():
            if node is self.graph.source:
                continue
            if node.op == "constant":
                assert node.value is not None
                self.values[id(node)] = self.constant(node.value.astype(self.precision(node.dtype)))
            else:
                self.values[id(node)] = self.operation(node, [self.values[id(read)] for read in node.inputs])

    def precision(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype of an array in the file."""
        return self.dtype if dtype == np.float32 else dtype

    def type_of(self, dtype: np.dtype) -> int:
        """Return the ONNX code of a dtype."""
        from onnx import helper

        return helper.np_dtype_to_tensor_dtype(dtype)

    def result(self, node: Node) -> str:
        """Return an output, cast to the dtype of the results."""
        value = self.values[id(node)]
        if node.dtype.kind != "f" or self.precision(node.dtype) == self.dtype:
            return value
        return self.add("Cast", [value], to=self.type_of(self.dtype))

    def add(self, kind: str, inputs: list[str], *, output: str | None = None, **attributes: Any) -> str:
        """Append an operation, and return the name of its result."""
        from onnx import helper

        name = f"v{len(self.nodes)}" if output is None else output
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values: np.ndarray) -> str:
        """Return the name of a constant. Equal constants are stored once."""
        from onnx import numpy_helper

        key = values.dtype.str, values.shape, values.tobytes()
        if key not in self._known:
            self._known[key] = f"c{len(self._known)}"
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), self._known[key]))
        return self._known[key]

    def integers(self, values: Any) -> str:
        """Return the name of a constant vector of integers."""
        return self.constant(np.asarray(values, dtype=np.int64).reshape(-1))

    def labels(self, classes: np.ndarray) -> str:
        """Store the classes as a constant, and return its name."""
        from onnx import TensorProto, helper

        if classes.dtype.kind in "OUS":
            texts = [label.decode() if isinstance(label, bytes) else str(label) for label in classes.tolist()]
            self.label_type = TensorProto.STRING
            encoded = [text.encode() for text in texts]
            self.initializers.append(helper.make_tensor("classes", TensorProto.STRING, [len(encoded)], encoded))
            return "classes"
        kept = classes.astype(np.int64) if classes.dtype.kind in "iu" else classes
        self.label_type = self.type_of(kept.dtype)
        return self.constant(kept)

    def operation(self, node: Node, read: list[str]) -> str:
        """Write one operation, and return the name of its result."""
        attributes, op = node.attributes, node.op
        if op in _NAMES:
            return self.add(_NAMES[op], read)
        if op in _REDUCTIONS:
            return self.add(_REDUCTIONS[op], [*read, self.integers(attributes["axis"])],
                            keepdims=int(attributes["keepdims"]))  # fmt: skip
        if op == "cast":
            same = self.precision(node.dtype) == self.precision(node.inputs[0].dtype)
            return read[0] if same else self.add("Cast", read, to=self.type_of(self.precision(node.dtype)))
        if op == "reshape":
            return self.add("Reshape", [*read, self.integers(symbolic(node.shape))])
        if op == "take":
            indices = self.constant(np.asarray(attributes["indices"], dtype=np.int64))
            return self.add("Gather", [*read, indices], axis=attributes["axis"])
        if op == "slice":
            parts = (attributes[key] for key in ("start", "stop", "axis", "step"))
            return self.add("Slice", [*read, *map(self.integers, parts)])
        if op == "concat":
            return self.add("Concat", read, axis=attributes["axis"])
        return getattr(self, f"_{op}")(node, read)

    def _transpose(self, node: Node, read: list[str]) -> str:
        return self.add("Transpose", read, perm=list(node.attributes["axes"]))

    def _pad(self, node: Node, read: list[str]) -> str:
        before, after = zip(*node.attributes["widths"], strict=True)
        return self.add("Pad", [*read, self.integers([*before, *after])])

    def _argmax(self, node: Node, read: list[str]) -> str:
        return self.add("ArgMax", read, axis=node.attributes["axis"], keepdims=0)

    def _not_equal(self, node: Node, read: list[str]) -> str:  # noqa: ARG002
        return self.add("Not", [self.add("Equal", read)])

    def _root(self, node: Node, read: list[str]) -> str:
        zero = self.constant(np.zeros((), self.precision(node.dtype)))
        return self.add("Sqrt", [self.add("Max", [*read, zero])])

    def _log1p(self, node: Node, read: list[str]) -> str:
        return self.add("Log", [self.add("Add", [*read, self._one(node)])])

    def _expm1(self, node: Node, read: list[str]) -> str:
        return self.add("Sub", [self.add("Exp", read), self._one(node)])

    def _one(self, node: Node) -> str:
        return self.constant(np.ones((), self.precision(node.dtype)))

    def _expand(self, node: Node, read: list[str]) -> str:
        """Broadcast to a shape, in which a size may be a multiple of the number of rows."""
        sizes = [size // ROWS if size % ROWS == 0 else size for size in node.shape]
        if self._n_rows is None:
            self._n_rows = self.add("Shape", ["X"], start=0, end=1)
        parts = []
        for size, factor in zip(node.shape, sizes, strict=True):
            is_rows = size % ROWS == 0
            parts.append(self.add("Mul", [self._n_rows, self.integers(factor)]) if is_rows else self.integers(size))
        return self.add("Expand", [*read, self.add("Concat", parts, axis=0)])

    def _rfft(self, node: Node, read: list[str]) -> str:
        """Write a real Fourier transform as a matrix product."""
        n = node.inputs[0].shape[-1]
        turns = np.outer(np.arange(n), np.arange(n // 2 + 1)) % n * (2 * np.pi / n)
        matrix = np.stack([np.cos(turns), -np.sin(turns)], axis=-1).reshape(n, -1)
        product = self.add("MatMul", [*read, self.constant(matrix.astype(self.precision(node.dtype)))])
        return self.add("Reshape", [product, self.integers(symbolic(node.shape))])

    def _irfft(self, node: Node, read: list[str]) -> str:
        """Write an inverse real Fourier transform as a matrix product."""
        n, half = node.shape[-1], node.inputs[0].shape[-2]
        turns = np.outer(np.arange(half), np.arange(n)) % n * (2 * np.pi / n)
        weights = np.where((np.arange(half) == 0) | (2 * np.arange(half) == n), 1.0, 2.0)[:, None] / n
        matrix = np.stack([weights * np.cos(turns), -weights * np.sin(turns)], axis=1).reshape(2 * half, n)
        flat = self.add("Reshape", [*read, self.integers(symbolic((*node.shape[:-1], 2 * half)))])
        return self.add("MatMul", [flat, self.constant(matrix.astype(self.precision(node.dtype)))])
