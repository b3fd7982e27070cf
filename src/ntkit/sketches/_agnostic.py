"""Programs in array-API code: the legible interpreter, for any array library and for differentiation in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.sketches._program import (
    Activate,
    Concatenate,
    Constant,
    Dense,
    Gather,
    Hadamard,
    Load,
    Norm,
    Product,
    Program,
    Scale,
    Scatter,
    Slice,
    operands,
    power_of_two,
)

_FACTOR = 64  # H_n is applied as a product of Hadamard matrices of at most this order


def execute(program: Program, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of the program, one (n_rows, size) array each."""
    return interpret(program, lambda number, values: evaluate(program, number, values, inputs))


def interpret(program: Program, run: Callable[[int, dict[int, Any]], Any]) -> list[Any]:
    """Call `run` on the number of every step with the values so far; values that nobody reads again are dropped."""
    last = program.last_use()
    values: dict[int, Any] = {}
    outputs = set(program.outputs)
    for number, step in enumerate(program.steps):
        values[number] = run(number, values)
        for used in {number, *operands(step)}:
            if last[used] == number and used not in outputs:
                del values[used]
    return [values[value] for value in program.outputs]


def evaluate(program: Program, number: int, values: dict[int, Array], inputs: Sequence[Array]) -> Array:
    """Value of one step."""
    step, size = program.steps[number], program.sizes[number]
    like = inputs[0]
    xp: Any = _array.namespace(like)
    if isinstance(step, Load):
        return _load(step, inputs[step.source])
    if isinstance(step, Constant):
        return xp.broadcast_to(constant(step.vector, like), (like.shape[0], len(step.vector)))
    if isinstance(step, Hadamard):
        v = values[step.value]
        return hadamard(v * constant(step.diagonal[: v.shape[-1]], like))
    if isinstance(step, Gather):
        return take(values[step.value], step.rows) * constant(step.weights, like)
    if isinstance(step, Product):
        return step.scale * take(values[step.a], step.a_rows) * take(values[step.b], step.b_rows)
    if isinstance(step, Scatter):
        return _scatter(step, values[step.value], size)
    if isinstance(step, Concatenate):
        parts = zip(step.values, step.weights, strict=True)
        return xp.concat([values[value] * weight for value, weight in parts], axis=-1)
    if isinstance(step, Norm):
        return norm(values[step.value])
    if isinstance(step, Scale):
        return _scaled(step, values[step.value], values[step.by])
    if isinstance(step, Dense):
        return xp.matmul(values[step.value], xp.matrix_transpose(constant(step.matrix, like)))
    if isinstance(step, Activate):
        v = values[step.value]
        relu = step.kind == "relu"
        return step.scale * (xp.where(v <= 0, xp.zeros_like(v), v) if relu else xp.astype(v > 0, v.dtype))
    assert isinstance(step, Slice)
    return values[step.value][..., step.start : step.start + size]


def norm(x: Array) -> Array:
    """Euclidean norms along the last axis, which stays; over the largest entry, so that squares cannot overflow."""
    xp: Any = _array.namespace(x)
    top = xp.max(xp.abs(x), axis=-1, keepdims=True)
    tiny = xp.finfo(x.dtype).smallest_normal  # the inverse of a smaller number could overflow too
    top = xp.where(top < tiny, xp.full_like(top, tiny), top)
    ratio = x / top
    total = xp.sum(ratio * ratio, axis=-1, keepdims=True)
    root = xp.sqrt(xp.where(total == 0, xp.ones_like(total), total))  # a square root has no gradient at 0
    return xp.where(total == 0, xp.zeros_like(total), top * root)


def hadamard(x: Array) -> Array:
    """H x along the last axis, zero-padded to a power of two n, H with entries ±1 in Sylvester's order.

    H_n is a Kronecker product of smaller ones: x is folded into axes of length ≤ 64, and each is multiplied by its
    matrix. That is more arithmetic than butterflies need, but matrix products run at the speed of the machine.
    """
    xp: Any = _array.namespace(x)
    n = power_of_two(x.shape[-1])
    if n > x.shape[-1]:
        rows = x.shape[:-1]
        padding = xp.zeros((*rows, n - x.shape[-1]), dtype=x.dtype, device=_array.device(x))
        x = xp.concat([x, padding], axis=-1)
    shape = x.shape
    stride = 1
    while stride < n:
        order = min(_FACTOR, n // stride)
        factor = constant(matrix(order), x)
        if stride == 1:  # one large product in place of many with single vectors; H is symmetric
            x = xp.matmul(xp.reshape(x, (-1, order)), factor)
        else:
            x = xp.matmul(factor, xp.reshape(x, (-1, order, stride)))
        stride *= order
    return xp.reshape(x, shape)


@lru_cache
def matrix(order: int) -> np.ndarray:
    """Hadamard matrix of a small order, entry (i, j) = (−1)^(number of ones that i and j have in common)."""
    bits = np.arange(order)
    return 1.0 - 2.0 * (np.bitwise_count(bits[:, None] & bits) % 2)


def take(x: Array, rows: np.ndarray) -> Array:
    """Coordinates `rows` of the last axis."""
    xp: Any = _array.namespace(x)
    index = xp.asarray(rows.astype(np.int64), device=_array.device(x))
    return xp.take(x, index, axis=-1)


def constant(values: np.ndarray, like: Array) -> Array:
    """NumPy `values` in the library, dtype and device of `like`."""
    xp: Any = _array.namespace(like)
    return xp.astype(xp.asarray(values, device=_array.device(like)), like.dtype)


def _load(step: Load, x: Array) -> Array:
    xp: Any = _array.namespace(x)
    x = x if step.scale == 1.0 else x * step.scale
    if step.constant is None:
        return x
    column = xp.full((x.shape[0], 1), step.constant, dtype=x.dtype, device=_array.device(x))
    return xp.concat([x, column], axis=-1)


def _scaled(step: Scale, x: Array, by: Array) -> Array:
    xp: Any = _array.namespace(x)
    if not step.inverse:
        return step.factor * x * by
    small = by < max(step.floor, float(xp.finfo(by.dtype).smallest_normal))
    inverse = step.factor / xp.where(small, xp.ones_like(by), by)
    return x * xp.where(small, xp.zeros_like(by), inverse)


def _scatter(step: Scatter, x: Array, size: int) -> Array:
    xp: Any = _array.namespace(x)
    rows, signs = step.codes >> 1, 1.0 - 2.0 * (step.codes & 1)
    n_features, n_nonzeros = rows.shape
    if not (_array.is_numpy(x) or _array.is_torch(x)):  # the standard has no scattered sums: an explicit matrix
        matrix = np.zeros((n_features, size))
        np.add.at(matrix, (np.arange(n_features)[:, None], rows), step.scale * signs)
        return xp.matmul(x, constant(matrix, x))
    out = xp.zeros((x.shape[0], size), dtype=x.dtype, device=_array.device(x))
    for k in range(n_nonzeros):
        terms = x * constant(step.scale * signs[:, k], x)
        if _array.is_numpy(x):
            np.add.at(out.T, rows[:, k], terms.T)
        else:
            out = out.index_add(1, xp.asarray(rows[:, k], device=_array.device(x)), terms)
    return out
