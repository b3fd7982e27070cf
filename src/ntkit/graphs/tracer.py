"""Symbolic arrays: array-API code that runs on them is recorded as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ntkit.graphs import namespace as _namespace
from ntkit.graphs import numpy_back_end
from ntkit.graphs.graph import ELEMENTWISE, ROWS, SINGLE, WIDE, Graph, Node, full_shape, symbolic

_TRUTH = np.dtype(bool)
_COMPARISONS = frozenset(
    [
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "equal",
        "not_equal",
        "logical_and",
        "logical_or",
        "logical_not",
        "isnan",
    ]
)


class TraceError(TypeError):
    """Raised by code that needs the values of a symbolic array."""


class Traced:
    """A symbolic array: only its shape and dtype are known."""

    __array_ufunc__ = None  # makes NumPy arrays defer to this class in binary operators
    is_traced = True

    def __init__(self, node: Node):
        self.node = node

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes. Multiples of the number of rows are multiples of ``ROWS``."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.node.shape)

    @property
    def dtype(self) -> np.dtype:
        """Dtype; float32 stands for the precision of the rows, float64 for the wide precision."""
        return self.node.dtype

    @property
    def device(self) -> str:
        """Device, which is always "cpu"."""
        return "cpu"

    @property
    def T(self) -> Traced:  # noqa: N802
        """Transpose of a matrix."""
        return transpose(self, (1, 0))

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _namespace

    def __len__(self) -> int:
        return self.node.shape[0]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        raise TraceError("The values of an array are needed, but only its shape is known while a graph is recorded.")

    __bool__ = __float__ = __int__ = __index__ = __iter__ = __array__ = _refuse

    def __getitem__(self, key: Any) -> Traced:
        return _get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.node = _set(self, key, as_traced(value, self.dtype)).node

    def __neg__(self) -> Traced:
        return record("negative", self)

    def __abs__(self) -> Traced:
        return record("abs", self)

    def __invert__(self) -> Traced:
        return record("logical_not", self)

    def __pow__(self, power: Any) -> Traced:
        return raised(self, power)


def _operator(op: str, *, swapped: bool = False) -> Callable[[Traced, Any], Traced]:
    def method(self: Traced, other: Any) -> Traced:
        return record(op, other, self) if swapped else record(op, self, other)

    return method


_OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "matmul": "matmul",
              "and": "logical_and", "or": "logical_or"}  # fmt: skip
for _name, _op in _OPERATORS.items():
    setattr(Traced, f"__{_name}__", _operator(_op))
    setattr(Traced, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
                   "ne": "not_equal"}.items():  # fmt: skip
    setattr(Traced, f"__{_name}__", _operator(_op))
Traced.__hash__ = object.__hash__  # type: ignore[method-assign]


def trace(function: Callable[[Traced], dict[str, Traced]], shape: Sequence[int]) -> Graph:
    """Record the array operations of a function as a graph.

    Parameters
    ----------
    function : callable
        Array-API code that returns named arrays.
    shape : sequence of int
        Shape of one row.

    Returns
    -------
    Graph

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.graphs import run, trace
    >>> graph = trace(lambda x: {"doubled": 2 * x}, (3,))
    >>> run(graph, np.ones((1, 3)))["doubled"]
    array([[2., 2., 2.]], dtype=float32)
    """
    if prod(shape) >= ROWS:
        raise ValueError(f"A row must have fewer than {ROWS} entries. Got the shape {tuple(shape)} instead.")
    source = Node("input", (), (ROWS, *map(int, shape)), SINGLE)
    outputs = {name: value.node for name, value in function(Traced(source)).items()}
    return Graph(source, outputs)


def constant(value: Any, dtype: Any = None) -> Traced:
    """Return a constant array."""
    value = np.asarray(value)
    kept = value.astype(np.float64) if value.dtype.kind == "f" else value
    default = WIDE if value.dtype == np.float64 else SINGLE if value.dtype.kind == "f" else value.dtype
    return Traced(Node("constant", (), kept.shape, np.dtype(dtype or default), value=kept))


def as_traced(x: Any, dtype: Any = None) -> Traced:
    """Turn numbers and NumPy arrays into constants of a dtype; return traced arrays unchanged."""
    return x if isinstance(x, Traced) else constant(x, dtype)


def filled(shape: Sequence[int], value: float, dtype: Any) -> Traced:
    """Return an array of equal entries."""
    small = constant(np.full([1] * len(shape), value), dtype)
    return expanded(small, tuple(int(size) for size in shape))


def record(op: str, *operands: Any, **attributes: Any) -> Traced:
    """Record an operation and return its result. Operations on constants are evaluated at once."""
    dtype = _operand_dtype(operands)
    traced = [as_traced(x, _TRUTH if isinstance(x, bool | np.bool_) else dtype) for x in operands]
    if op in ELEMENTWISE:
        return _elementwise(op, traced, dtype)
    if op in ("matmul", "concat"):
        traced = [cast(x, dtype) for x in traced]
    nodes = [x.node for x in traced]
    shape, dtype = _result(op, nodes, attributes, dtype)
    return _finish(Node(op, tuple(nodes), shape, dtype, attributes))


def cast(x: Traced, dtype: Any) -> Traced:
    """Cast `x` to another dtype."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    node = x.node
    if node.op == "constant":
        assert node.value is not None
        value = node.value if dtype.kind == "f" and node.value.dtype.kind == "f" else node.value.astype(dtype)
        return Traced(Node("constant", (), node.shape, dtype, value=value))
    if node.op == "expand":
        return expanded(cast(Traced(node.inputs[0]), dtype), node.shape)
    return Traced(Node("cast", (node,), node.shape, dtype))


def raised(x: Traced, power: Any) -> Traced:
    """Compute x^p. Small integer powers become products, which are more accurate and faster."""
    if isinstance(power, Traced) or float(power) not in (1.0, 2.0, 3.0, 4.0, 0.5, -0.5, -1.0):
        return record("power", x, power)
    p = float(power)
    if abs(p) == 0.5:
        root = record("sqrt", x)
        return root if p > 0 else record("divide", 1.0, root)
    if p == -1.0:
        return record("divide", 1.0, x)
    square = record("multiply", x, x)
    if p in (1.0, 2.0):
        return x if p == 1.0 else square
    return record("multiply", square, x if p == 3.0 else square)


def reshape(x: Traced, shape: Sequence[int]) -> Traced:
    """Reshape `x`."""
    target = full_shape(shape, x.size)
    node = x.node
    if target == node.shape:
        return x
    if node.op == "expand" and prod(node.inputs[0].shape) == 1:
        return expanded(reshape(Traced(node.inputs[0]), [1] * len(target)), target)
    if node.op == "reshape":
        node = node.inputs[0]
        if node.shape == target:
            return Traced(node)
    symbolic(target)
    return _finish(Node("reshape", (node,), target, node.dtype))


def transpose(x: Traced, axes: Sequence[int]) -> Traced:
    """Permute the axes of `x`."""
    axes = tuple(int(axis) % x.ndim for axis in axes)
    return x if axes == tuple(range(x.ndim)) else record("transpose", x, axes=axes)


def _operand_dtype(operands: Sequence[Any]) -> np.dtype:
    """Return the dtype for plain numbers among traced arrays: the widest floating dtype."""
    found = [x.dtype for x in operands if isinstance(x, Traced) and x.dtype.kind == "f"]
    return max(found, key=lambda dtype: dtype.itemsize) if found else SINGLE


def _elementwise(op: str, operands: list[Traced], dtype: np.dtype) -> Traced:
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    result = _TRUTH if op in _COMPARISONS else dtype
    if op in ("add", "multiply", "divide", "subtract"):
        unchanged = _without_effect(op, operands, shape)
        if unchanged is not None:
            return cast(unchanged, dtype)
    nodes = []
    for x in operands:
        inner = x.node.inputs[0] if x.node.op == "expand" else x.node
        inner = cast(Traced(inner), dtype).node if inner.dtype.kind == "f" and inner.dtype != dtype else inner
        nodes.append(inner)
    inner_shape = np.broadcast_shapes(*(node.shape for node in nodes))
    return expanded(_finish(Node(op, tuple(nodes), inner_shape, result)), shape)


def _without_effect(op: str, operands: list[Traced], shape: tuple[int, ...]) -> Traced | None:
    """Return the other operand of a sum with 0 or a product with 1, else None."""
    neutral = 0.0 if op in ("add", "subtract") else 1.0
    for i, j in ((0, 1), (1, 0)):
        node = operands[j].node
        node = node.inputs[0] if node.op == "expand" else node
        is_neutral = node.value is not None and node.value.size == 1 and node.value.item() == neutral
        if is_neutral and operands[i].shape == shape and (i == 0 or op in ("add", "multiply")):
            return operands[i]
    return None


def expanded(x: Traced, shape: tuple[int, ...]) -> Traced:
    """Broadcast `x` to a shape. Constants are stored in their unexpanded shape if the rows are an axis."""
    if x.shape == shape:
        return x
    node = x.node.inputs[0] if x.node.op == "expand" else x.node
    if ROWS not in [size for size in shape if size] and not any(s % ROWS == 0 and s for s in shape):
        return _finish(Node("expand", (node,), shape, node.dtype))
    return Traced(Node("expand", (node,), shape, node.dtype))


def _finish(node: Node) -> Traced:
    """Return the array of a node, evaluated if all its inputs are constants."""
    if not all(read.value is not None for read in node.inputs):
        return Traced(node)
    with np.errstate(all="ignore"):
        value = np.asarray(numpy_back_end.apply(node, [read.value for read in node.inputs], 1))
    value = value.astype(np.float64) if node.dtype.kind == "f" else value.astype(node.dtype)
    return Traced(Node("constant", (), value.shape, node.dtype, value=value))


def _result(
    op: str, nodes: list[Node], attributes: dict[str, Any], dtype: np.dtype
) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and dtype of the result of an operation that is not elementwise."""
    shape = nodes[0].shape
    if op == "matmul":
        a, b = nodes[0].shape, nodes[1].shape
        if len(b) == 1:
            return a[:-1], dtype
        return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]), dtype
    if op in ("sum", "mean", "max", "min"):
        axes = attributes["axis"]
        kept = attributes["keepdims"]
        return tuple(1 if i in axes else n for i, n in enumerate(shape) if kept or i not in axes), nodes[0].dtype
    if op == "argmax":
        return tuple(n for i, n in enumerate(shape) if i != attributes["axis"]), np.dtype(np.int64)
    if op == "take":
        axis = attributes["axis"]
        return (*shape[:axis], *attributes["indices"].shape, *shape[axis + 1 :]), nodes[0].dtype
    if op == "slice":
        axis, size = attributes["axis"], len(range(attributes["start"], attributes["stop"], attributes["step"]))
        return (*shape[:axis], size, *shape[axis + 1 :]), nodes[0].dtype
    if op == "transpose":
        return tuple(shape[axis] for axis in attributes["axes"]), nodes[0].dtype
    if op == "concat":
        axis = attributes["axis"]
        return (*shape[:axis], sum(node.shape[axis] for node in nodes), *shape[axis + 1 :]), dtype
    if op == "pad":
        return tuple(n + before + after for n, (before, after) in zip(shape, attributes["widths"], strict=True)), nodes[
            0
        ].dtype
    if op == "rfft":
        return (*shape[:-1], shape[-1] // 2 + 1, 2), nodes[0].dtype
    if op == "irfft":
        return (*shape[:-2], attributes["size"]), nodes[0].dtype
    raise TraceError(f"Graphs have no operation {op!r}.")


def _full_key(key: Any, ndim: int) -> list[Any]:
    """Return an index with one entry per axis; None marks a new axis."""
    key = list(key) if isinstance(key, tuple) else [key]
    if any(entry is Ellipsis for entry in key):
        place = next(i for i, entry in enumerate(key) if entry is Ellipsis)
        missing = ndim - sum(entry is not None and entry is not Ellipsis for entry in key)
        key[place : place + 1] = [slice(None)] * missing
    return key + [slice(None)] * (ndim - sum(entry is not None for entry in key))


def _get(x: Traced, key: Any) -> Traced:
    shape: list[int] = []
    axis = 0
    for entry in _full_key(key, x.ndim):
        size = x.shape[axis] if entry is not None else 0
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, slice):
            x = _sliced(x, axis, entry)
            shape.append(x.shape[axis])
        elif isinstance(entry, int | np.integer):
            index = int(entry) % size
            x = _sliced(x, axis, slice(index, index + 1))
        else:
            x = take(x, entry, axis)
            shape.append(x.shape[axis])
        axis += 1
    return reshape(x, shape)


def _sliced(x: Traced, axis: int, part: slice) -> Traced:
    start, stop, step = part.indices(x.shape[axis])
    if (start, step) == (0, 1) and stop == x.shape[axis]:
        return x
    if x.shape[axis] % ROWS == 0 and x.shape[axis]:
        raise TraceError("A graph cannot select some of the rows.")
    if x.node.op == "expand" and x.node.inputs[0].shape[axis : axis + 1] == (1,):
        shape = list(x.shape)
        shape[axis] = len(range(start, stop, step))
        return expanded(Traced(x.node.inputs[0]), tuple(shape))
    return record("slice", x, axis=axis, start=start, stop=stop, step=step)


def take(x: Traced, indices: Any, axis: int) -> Traced:
    """Select entries along an axis by constant indices."""
    if isinstance(indices, Traced):
        if indices.node.value is None:
            raise TraceError("A graph can select entries only by constant indices.")
        indices = indices.node.value
    return record("take", x, indices=np.asarray(indices, dtype=np.int64), axis=axis % x.ndim)


def _set(x: Traced, key: Any, value: Traced) -> Traced:
    """Return `x` with a block of entries replaced."""
    entries = _full_key(key, x.ndim)
    if len(entries) != x.ndim or not all(isinstance(entry, slice) for entry in entries):
        raise TraceError("Only blocks of entries can be replaced in a graph.")
    ranges = [entry.indices(size) for entry, size in zip(entries, x.shape, strict=True)]
    cut = [axis for axis, (start, stop, _) in enumerate(ranges) if (start, stop) != (0, x.shape[axis])]
    value = cast(value, x.dtype)
    if not cut:
        return expanded(value, x.shape)
    node = x.node.inputs[0] if x.node.op == "expand" else x.node
    if node.value is not None and not node.value.any():
        widths = [(start, size - stop) for (start, stop, _), size in zip(ranges, x.shape, strict=True)]
        return record("pad", value, widths=tuple(widths))
    if len(cut) > 1:
        kept = np.ones([1 if axis not in cut else x.shape[axis] for axis in range(x.ndim)])
        kept[tuple(entry if axis in cut else slice(None) for axis, entry in enumerate(entries))] = 0.0
        widths = [(start, size - stop) for (start, stop, _), size in zip(ranges, x.shape, strict=True)]
        return record("add", record("multiply", x, kept), record("pad", value, widths=tuple(widths)))
    (axis,) = cut
    start, stop, _ = ranges[axis]
    parts = [_sliced(x, axis, slice(0, start))] if start else []
    parts.append(value)
    parts += [_sliced(x, axis, slice(stop, None))] if stop < x.shape[axis] else []
    return record("concat", *parts, axis=axis)
