"""Programs on transposed arrays of shape (size, n_rows), for exported graphs.

In this layout a gather of coordinates copies contiguous rows of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.programs import steps as s
from ntkit.programs.analysis import interpret
from ntkit.programs.array_api import convolve, hadamard_matrix, inverse, lookup
from ntkit.programs.program import Program
from ntkit.programs.steps import Step, power_of_two

_LARGEST_FACTOR = 64  # largest order of a Hadamard factor, as in array_api


def expression(program: Program, inputs: Sequence[Array]) -> Array:
    """Return the concatenated outputs of a program for arrays of rows, as one expression."""
    columns = [_array.namespace(x).matrix_transpose(x) for x in inputs]
    found = interpret(program, lambda index, read: _apply(program.steps[index], read, columns))
    xp: Any = _array.namespace(*found)
    return xp.matrix_transpose(found[0] if len(found) == 1 else xp.concat(found, axis=0))


def _apply(step: Step, read: Sequence[Array], inputs: Sequence[Array]) -> Array:
    if isinstance(step, s.Load):
        return _load(step, inputs[step.source])
    if isinstance(step, s.Constant):
        xp: Any = _array.namespace(inputs[0])
        return xp.broadcast_to(_array.constant(step.vector[:, None], inputs[0]), (step.size, inputs[0].shape[1]))
    return lookup(_STEPS, step, "columns")(step, *read)


def _load(step: s.Load, x: Array) -> Array:
    xp: Any = _array.namespace(x)
    x = x if step.scale == 1.0 else x * step.scale
    if step.constant is None:
        return x
    return xp.concat([x, xp.full((1, x.shape[1]), step.constant, dtype=x.dtype, device=_array.device(x))], axis=0)


def _column(values: Any, x: Array) -> Array:
    return _array.constant(np.asarray(values, dtype=np.float64)[:, None], x)


def _take(x: Array, rows: np.ndarray) -> Array:
    xp: Any = _array.namespace(x)
    return xp.take(x, xp.asarray(rows.astype(np.int64), device=_array.device(x)), axis=0)


def _hadamard(step: s.Hadamard, v: Array) -> Array:
    xp: Any = _array.namespace(v)
    size, n_rows = v.shape
    n = power_of_two(size)
    v = v * _column(step.diagonal[:size], v)
    if n > size:
        v = xp.concat([v, xp.zeros((n - size, n_rows), dtype=v.dtype, device=_array.device(v))], axis=0)
    stride = 1
    while stride < n:
        order = min(_LARGEST_FACTOR, n // stride)
        H = _array.constant(hadamard_matrix(order), v)
        if order == n:
            return xp.matmul(H, v)
        v = xp.reshape(xp.matmul(H, xp.reshape(v, (-1, order, stride * n_rows))), (n, n_rows))
        stride *= order
    return v


def _gather(step: s.Gather, v: Array) -> Array:
    return _take(v, step.rows) * _column(step.weights, v)


def _product(step: s.Product, a: Array, b: Array) -> Array:
    return step.scale * _take(a, step.a_rows) * _take(b, step.b_rows)


def _scatter(step: s.Scatter, x: Array) -> Array:
    matrix = np.zeros((step.size, step.codes.shape[0]))
    signs = step.scale * (1.0 - 2.0 * (step.codes & 1))
    np.add.at(matrix, (step.codes >> 1, np.arange(len(matrix[0]))[:, None]), signs)
    return _array.namespace(x).matmul(_array.constant(matrix, x), x)


def _concatenate(step: s.Concatenate, *read: Array) -> Array:
    parts = [x if weight == 1.0 else x * weight for x, weight in zip(read, step.weights, strict=True)]
    return _array.namespace(*read).concat(parts, axis=0)


def _norm(v: Array) -> Array:
    """Compute :func:`ntkit.programs.array_api.norm` along the first axis."""
    xp: Any = _array.namespace(v)
    top = xp.max(xp.abs(v), axis=0, keepdims=True)
    tiny = float(xp.finfo(v.dtype).smallest_normal)
    top = xp.where(top < tiny, xp.full_like(top, tiny), top)
    ratio = v / top
    return top * _array.root(xp.sum(ratio * ratio, axis=0, keepdims=True))


def _normalize(step: s.DivideByNorm, v: Array, *multiplier: Array) -> Array:
    factors = step.factor * inverse(_norm(v), step.floor)
    return v * (factors * multiplier[0] if multiplier else factors)


def _convolve(step: s.Convolve, *read: Array) -> Array:  # noqa: ARG001
    xp: Any = _array.namespace(*read)
    return xp.matrix_transpose(convolve([xp.matrix_transpose(x) for x in read]))


def _activate(step: s.Threshold, v: Array) -> Array:
    xp: Any = _array.namespace(v)
    return step.scale * (xp.clip(v, 0, None) if step.kind == "relu" else xp.astype(v > 0, v.dtype))


_STEPS: dict[type[Step], Callable[..., Array]] = {
    s.Hadamard: _hadamard,
    s.Gather: _gather,
    s.Product: _product,
    s.Scatter: _scatter,
    s.Concatenate: _concatenate,
    s.Slice: lambda step, v: v[step.start : step.start + step.size, :],
    s.Convolve: _convolve,
    s.EuclideanNorm: lambda step, v: _norm(v),  # noqa: ARG005
    s.ScaleBy: lambda step, v, c: v * (step.factor * (inverse(c) if step.inverse else c)),
    s.DivideByNorm: _normalize,
    s.MatrixProduct: lambda step, v: _array.namespace(v).matmul(_array.constant(step.matrix, v), v),
    s.Threshold: _activate,
}
