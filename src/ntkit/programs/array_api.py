"""Programs in array-API code: the readable back end, for any array library and for differentiation in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit.programs import steps as s
from ntkit.programs.analysis import interpret, peak_live
from ntkit.programs.program import Program
from ntkit.programs.steps import Step, power_of_two

_LARGEST_FACTOR = 64  # H_n is applied as a product of Hadamard matrices of at most this order


def run(program: Program, inputs: Sequence[Array], *, batch_size: int | None = None) -> Array:
    """Run a program on the rows of arrays of one dtype; return the concatenated outputs."""
    first = inputs[0]
    xp: Any = _array.namespace(first)
    bytes_per_row = peak_live(program, lambda index: workspace(program, index)) * xp.finfo(first.dtype).bits // 8
    batches = list(row_batches(first.shape[0], bytes_per_row, batch_size=batch_size, like=first))
    if len(batches) <= 1:
        return expression(program, inputs)
    if _array.wants_gradient(inputs):
        parts = [_side_by_side(evaluate(program, [x[rows, :] for x in inputs])) for rows in batches]
        return xp.concat(parts, axis=0)
    out = xp.empty((first.shape[0], program.n_outputs), dtype=first.dtype, device=_array.device(first))
    for rows in batches:
        out[rows, :] = _side_by_side(evaluate(program, [x[rows, :] for x in inputs]))
    return out


def expression(program: Program, inputs: Sequence[Array]) -> Array:
    """Return the concatenated outputs of a program as one expression, without batches."""
    return _side_by_side(evaluate(program, inputs))


def _side_by_side(values: list[Array]) -> Array:
    return values[0] if len(values) == 1 else _array.namespace(*values).concat(values, axis=-1)


def evaluate(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a program, each as an array of shape (n_rows, size)."""
    return interpret(program, lambda index, read: apply_step(program.steps[index], read, inputs))


def apply_step(step: Step, read: Sequence[Array], inputs: Sequence[Array]) -> Array:
    """Compute the value of one step from its operands `read` and the inputs of the program."""
    if isinstance(step, s.Load):
        return _load(step, inputs)
    if isinstance(step, s.Constant):
        return _constant(step, inputs)
    return lookup(_STEPS, step, "array_api")(step, *read)


def lookup(table: dict[type[Step], Any], step: Step, back_end: str) -> Any:
    """Return the entry for a step in the table of a back end, or raise an error that names both."""
    try:
        return table[type(step)]
    except KeyError:
        raise TypeError(f"The back end '{back_end}' cannot run a step {type(step).__name__}.") from None


def workspace(program: Program, index: int) -> int:
    """Return how many numbers per row :func:`apply_step` holds in addition to operands and result.

    A transform holds its padded operand and the result of the previous factor, a product the gathered coordinates of
    both operands.
    """
    step = program.steps[index]
    if isinstance(step, s.Load | s.Constant | s.Slice | s.EuclideanNorm | s.Gather | s.Concatenate):
        return step.size + (program.size(step.operands[0]) if isinstance(step, s.EuclideanNorm) else 0)
    if isinstance(step, s.Convolve):
        return 4 * len(step.operands) * step.size  # complex half-spectra, their product, its inverse transform
    if isinstance(step, s.Scatter):
        return step.size + program.size(step.operands[0])
    return 2 * step.size


def norm(x: Array) -> Array:
    """Compute Euclidean norms along the last axis, which is kept with length 1.

    Rows are divided by their largest entry so that squares cannot overflow. If the largest entry is below the smallest
    normal number, rows are divided by that number instead, since the inverse of the entry could overflow.
    """
    xp: Any = _array.namespace(x)
    top = xp.max(xp.abs(x), axis=-1, keepdims=True)
    tiny = xp.finfo(x.dtype).smallest_normal
    top = xp.where(top < tiny, xp.full_like(top, tiny), top)
    ratio = x / top
    total = xp.sum(ratio * ratio, axis=-1, keepdims=True)
    root = xp.sqrt(xp.where(total == 0, xp.ones_like(total), total))  # a square root has no gradient at 0
    return xp.where(total == 0, xp.zeros_like(total), top * root)


def inverse(c: Array, floor: float = 0.0) -> Array:
    """Return 1/c, or 0 where c is below `floor` or the smallest normal number."""
    xp: Any = _array.namespace(c)
    small = c < max(floor, float(xp.finfo(c.dtype).smallest_normal))
    return xp.where(small, xp.zeros_like(c), 1 / xp.where(small, xp.ones_like(c), c))


def hadamard(x: Array) -> Array:
    """Compute H x along the last axis, zero-padded to a power of two n; H has entries ±1 in Sylvester's order.

    H_n is a Kronecker product of smaller Hadamard matrices: x is folded into axes of length ≤ 64, and each axis is
    multiplied by its matrix. This needs more arithmetic than butterflies, but matrix products reach the peak speed of
    the machine.
    """
    xp: Any = _array.namespace(x)
    n = power_of_two(x.shape[-1])
    if n > x.shape[-1]:
        padding = xp.zeros((*x.shape[:-1], n - x.shape[-1]), dtype=x.dtype, device=_array.device(x))
        x = xp.concat([x, padding], axis=-1)
    shape = x.shape
    stride = 1
    while stride < n:
        order = min(_LARGEST_FACTOR, n // stride)
        factor = _array.constant(hadamard_matrix(order), x)
        if stride == 1:  # one large product instead of many with single vectors; H is symmetric
            x = xp.matmul(xp.reshape(x, (-1, order)), factor)
        else:
            x = xp.matmul(factor, xp.reshape(x, (-1, order, stride)))
        stride *= order
    return xp.reshape(x, shape)


@lru_cache
def hadamard_matrix(order: int) -> np.ndarray:
    """Return the Hadamard matrix of a small order, with entry (i, j) = (−1)^popcount(i & j)."""
    bits = np.arange(order)
    return 1.0 - 2.0 * (np.bitwise_count(bits[:, None] & bits) % 2)


def take(x: Array, rows: np.ndarray) -> Array:
    """Return the coordinates `rows` of the last axis."""
    xp: Any = _array.namespace(x)
    return xp.take(x, xp.asarray(rows.astype(np.int64), device=_array.device(x)), axis=-1)


def convolve(values: Sequence[Array]) -> Array:
    """Compute the circular convolution along the last axis by real Fourier transforms."""
    xp: Any = _array.namespace(*values)
    if 0 in values[0].shape:  # torch's FFT rejects empty arrays
        return values[0] * values[-1]
    if _array.is_numpy(values[0]):
        from scipy import fft  # float32 stays float32
    else:
        fft = xp.fft
    product = fft.rfft(values[0])
    for value in values[1:]:
        product = product * fft.rfft(value)
    return fft.irfft(product, n=values[0].shape[-1])


def _load(step: s.Load, inputs: Sequence[Array]) -> Array:
    x = inputs[step.source]
    xp: Any = _array.namespace(x)
    x = x if step.scale == 1.0 else x * step.scale
    if step.constant is None:
        return x
    column = xp.full((x.shape[0], 1), step.constant, dtype=x.dtype, device=_array.device(x))
    return xp.concat([x, column], axis=-1)


def _constant(step: s.Constant, inputs: Sequence[Array]) -> Array:
    xp: Any = _array.namespace(inputs[0])
    return xp.broadcast_to(_array.constant(step.vector, inputs[0]), (inputs[0].shape[0], step.size))


def _scatter(step: s.Scatter, x: Array) -> Array:
    xp: Any = _array.namespace(x)
    rows, signs = step.codes >> 1, 1.0 - 2.0 * (step.codes & 1)
    n_features, n_nonzeros = rows.shape
    if not (_array.is_numpy(x) or _array.is_torch(x)):  # the standard has no scatter-add: use an explicit matrix
        matrix = np.zeros((n_features, step.size))
        np.add.at(matrix, (np.arange(n_features)[:, None], rows), step.scale * signs)
        return xp.matmul(x, _array.constant(matrix, x))
    out = xp.zeros((x.shape[0], step.size), dtype=x.dtype, device=_array.device(x))
    for k in range(n_nonzeros):
        terms = x * _array.constant(step.scale * signs[:, k], x)
        if _array.is_numpy(x):
            np.add.at(out.T, rows[:, k], terms.T)
        else:
            out = out.index_add(1, xp.asarray(rows[:, k], device=_array.device(x)), terms)
    return out


def _concatenate(step: s.Concatenate, *read: Array) -> Array:
    xp: Any = _array.namespace(*read)
    parts = [x if weight == 1.0 else x * weight for x, weight in zip(read, step.weights, strict=True)]
    return xp.concat(parts, axis=-1)


def _normalize(step: s.DivideByNorm, v: Array, *multiplier: Array) -> Array:
    factors = step.factor * inverse(norm(v), step.floor)
    return v * (factors * multiplier[0] if multiplier else factors)


def _dense(step: s.MatrixProduct, v: Array) -> Array:
    xp: Any = _array.namespace(v)
    return xp.matmul(v, xp.matrix_transpose(_array.constant(step.matrix, v)))


def _activate(step: s.Threshold, v: Array) -> Array:
    xp: Any = _array.namespace(v)
    return step.scale * (xp.where(v <= 0, xp.zeros_like(v), v) if step.kind == "relu" else xp.astype(v > 0, v.dtype))


_STEPS: dict[type[Step], Callable[..., Array]] = {
    s.Hadamard: lambda step, v: hadamard(v * _array.constant(step.diagonal[: v.shape[-1]], v)),
    s.Gather: lambda step, v: take(v, step.rows) * _array.constant(step.weights, v),
    s.Product: lambda step, a, b: step.scale * take(a, step.a_rows) * take(b, step.b_rows),
    s.Scatter: _scatter,
    s.Concatenate: _concatenate,
    s.Slice: lambda step, v: v[..., step.start : step.start + step.size],
    s.Convolve: lambda step, *read: convolve(read),  # noqa: ARG005
    s.EuclideanNorm: lambda step, v: norm(v),  # noqa: ARG005
    s.ScaleBy: lambda step, v, c: v * (step.factor * (inverse(c) if step.inverse else c)),
    s.DivideByNorm: _normalize,
    s.MatrixProduct: _dense,
    s.Threshold: _activate,
}
