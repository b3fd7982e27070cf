"""The array-API namespace of traced arrays."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

float32, float64, int32, int64, bool = np.float32, np.float64, np.int32, np.int64, np.bool_  # noqa: A001
pi, inf, nan, newaxis = np.pi, np.inf, np.nan, None
finfo, isdtype, result_type = np.finfo, np.isdtype, np.result_type


def _tracer() -> Any:
    from ntkit.graphs import tracer  # the two modules import each other

    return tracer


def _unary(op: str) -> Any:
    return lambda x: _tracer().record(op, x)


def _binary(op: str) -> Any:
    return lambda a, b: _tracer().record(op, a, b)


exp, log, log1p, expm1, sqrt, sin, cos = map(_unary, ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos"))
asin, acos, atan, asinh, tanh, sign = map(_unary, ("asin", "acos", "atan", "asinh", "tanh", "sign"))
abs, isnan, logical_not, root = map(_unary, ("abs", "isnan", "logical_not", "root"))  # noqa: A001
add, subtract, multiply, divide = map(_binary, ("add", "subtract", "multiply", "divide"))
maximum, minimum, matmul = map(_binary, ("maximum", "minimum", "matmul"))
where = lambda condition, a, b: _where(condition, a, b)  # noqa: E731


def _where(condition: Any, a: Any, b: Any) -> Any:
    return _tracer().record("where", condition, a, b)


def atan2(y: Any, x: Any) -> Any:
    """Compute the angle of points with x ≥ 0 and y ≥ 0. Kernels need no other points."""
    zero = x <= 0
    ratio = y / where(zero, ones_like(x), x)
    return where(zero, full_like(x, np.pi / 2), atan(ratio))


def asarray(x: Any, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:  # noqa: ARG001
    """Turn a NumPy array into a constant."""
    found = _tracer().as_traced(x, dtype)
    return found if dtype is None else astype(found, dtype)


def astype(x: Any, dtype: Any, *, copy: Any = None) -> Any:  # noqa: ARG001
    """Cast `x` to another dtype."""
    return _tracer().cast(x, dtype)


def full(shape: Any, value: float, *, dtype: Any = None, device: Any = None) -> Any:  # noqa: ARG001
    """Return an array of equal entries."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return _tracer().filled(shape, value, np.float32 if dtype is None else dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:  # noqa: ARG001
    """Return an array of zeros."""
    return full(shape, 0.0, dtype=dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:  # noqa: ARG001
    """Return an array of ones."""
    return full(shape, 1.0, dtype=dtype)


empty = zeros


def sort(x: Any, *, axis: int = -1) -> Any:
    """Sort a constant in increasing order."""
    tracer = _tracer()
    if x.node.value is None:
        raise tracer.TraceError("A graph can sort constants only.")
    return tracer.constant(np.sort(x.node.value, axis=axis), x.dtype)


def arange(stop: int, *, dtype: Any = None, device: Any = None) -> Any:  # noqa: ARG001
    """Return 0, 1, …, stop - 1."""
    return _tracer().constant(np.arange(stop), dtype)


def full_like(x: Any, value: float) -> Any:
    """Return equal entries, with the shape and dtype of `x`."""
    return full(x.shape, value, dtype=x.dtype)


def zeros_like(x: Any) -> Any:
    """Return zeros, with the shape and dtype of `x`."""
    return full(x.shape, 0.0, dtype=x.dtype)


def ones_like(x: Any) -> Any:
    """Return ones, with the shape and dtype of `x`."""
    return full(x.shape, 1.0, dtype=x.dtype)


def clip(x: Any, lower: Any = None, upper: Any = None) -> Any:
    """Clip `x` to a lower and an upper bound; None means no bound."""
    x = x if lower is None else maximum(x, lower)
    return x if upper is None else minimum(x, upper)


def reshape(x: Any, shape: Any) -> Any:
    """Reshape `x`."""
    return _tracer().reshape(x, shape)


def broadcast_to(x: Any, shape: Any) -> Any:
    """Broadcast `x` to a shape."""
    tracer = _tracer()
    return tracer.expanded(tracer.as_traced(x), tuple(shape))


def permute_dims(x: Any, axes: Any) -> Any:
    """Permute the axes of `x`."""
    return _tracer().transpose(x, axes)


def matrix_transpose(x: Any) -> Any:
    """Swap the last two axes."""
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Any, source: int, destination: int) -> Any:
    """Move one axis to another position."""
    axes = [axis for axis in range(x.ndim) if axis != source % x.ndim]
    axes.insert(destination % x.ndim, source % x.ndim)
    return permute_dims(x, axes)


def flip(x: Any, *, axis: int) -> Any:
    """Reverse the entries along an axis."""
    return _tracer().take(x, np.arange(x.shape[axis])[::-1], axis)


def concat(arrays: Sequence[Any], *, axis: int = 0) -> Any:
    """Concatenate arrays along an axis."""
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else _tracer().record("concat", *arrays, axis=axis % arrays[0].ndim)


def stack(arrays: Sequence[Any], *, axis: int = 0) -> Any:
    """Stack arrays along a new axis."""
    place = axis % (arrays[0].ndim + 1)
    return concat([reshape(x, (*x.shape[:place], 1, *x.shape[place:])) for x in arrays], axis=place)


def take(x: Any, indices: Any, *, axis: int | None = None) -> Any:
    """Select entries along an axis."""
    return _tracer().take(x, indices, 0 if axis is None else axis)


def _reduction(op: str) -> Any:
    def reduce(x: Any, *, axis: Any = None, keepdims: Any = False) -> Any:
        axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        return _tracer().record(op, x, axis=tuple(sorted(a % x.ndim for a in axes)), keepdims=keepdims)

    return reduce


sum, mean, max, min = map(_reduction, ("sum", "mean", "max", "min"))  # noqa: A001


def argmax(x: Any, *, axis: int) -> Any:
    """Return the index of the largest entry along an axis."""
    return _tracer().record("argmax", x, axis=axis % x.ndim)


def _rfft(x: Any) -> Any:
    return Spectrum(_tracer().record("rfft", x))


def _irfft(spectrum: Any, *, n: int) -> Any:
    return _tracer().record("irfft", spectrum.parts, size=n)


class Spectrum:
    """Complex numbers, with real and imaginary parts on a last axis of size 2."""

    def __init__(self, parts: Any):
        self.parts = parts

    def __mul__(self, other: Spectrum) -> Spectrum:
        (a, b), (c, d) = ((x.parts[..., 0], x.parts[..., 1]) for x in (self, other))
        return Spectrum(stack([a * c - b * d, a * d + b * c], axis=-1))


fft = SimpleNamespace(rfft=_rfft, irfft=_irfft)
