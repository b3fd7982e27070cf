"""The walk of covariances through any network, in array-API code: legible first, the truth for all others.

The state of a pair (x, y) at a layer is its NNGP covariance Σ and its tangent kernel Θ:

* vectors: one number each, arrays of shape (n, m);
* images whose pixels are never averaged: pixel (i, j) of x against the same pixel of y, (n, m, h, w);
* images that are pooled: every pixel of x against every pixel of y, (n, m, h, w, h, w).

A layer with weights maps Σ → w² Σ and Θ → w² (Θ + Σ) (Θ → w² Θ if frozen), a convolution averaging over
its patch; an activation maps Σ to its dual and Θ to Θ times its derivative dual; pooling averages both; Normalize
divides both by √(Σ(x, x) Σ(y, y)). Activations and Normalize need the variances of single rows too:
``row_variances`` collects them, in the order in which the walk meets these layers, by walking the pairs (x, x).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.activations import dual
from ntkit.networks import (
    Activation,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    Residual,
    Sequential,
)
from ntkit.networks._layers import Window, flatten


@dataclass(frozen=True)
class State:
    """Covariances and tangent kernels of a block of pairs; `ntk` is None if not asked for."""

    nngp: Array
    ntk: Array | None

    def map(self, function: Callable[[Array], Array]) -> State:
        """Apply a linear operation to both."""
        return State(function(self.nngp), None if self.ntk is None else function(self.ntk))


Variances = Callable[[State], tuple[Array, Array]]
"""Gives the variances of x and of y at an activation or Normalize, in shapes that broadcast with the state."""


def walk(layer: Layer, state: State, variances: Variances) -> State:
    """State after `layer`."""
    if isinstance(layer, Sequential):
        for part in layer.layers:
            state = walk(part, state, variances)
        return state
    if isinstance(layer, Residual):
        ends = [walk(branch, state, variances) for branch in layer.branches]
        return State(_sum([end.nngp for end in ends]), None if state.ntk is None else _sum([end.ntk for end in ends]))
    if isinstance(layer, Dense | Conv):
        if state.ntk is not None and layer.trainable:
            state = replace(state, ntk=state.ntk + state.nngp)
        scale = layer.weight_std**2
        if isinstance(layer, Conv):
            state = state.map(lambda A: _average(A, layer))
        return state if scale == 1 else state.map(lambda A: scale * A)
    if isinstance(layer, Activation):
        forward, derivative = dual(layer, state.nngp, *variances(state))
        return State(forward, None if state.ntk is None else state.ntk * derivative)
    if isinstance(layer, Normalize):
        x_inverse, y_inverse = map(_inverse_root, variances(state))
        return state.map(lambda A: A * x_inverse * y_inverse)
    if isinstance(layer, AvgPool):
        return state.map(lambda A: _average(A, layer))
    if isinstance(layer, GlobalAvgPool | Flatten):
        return state.map(lambda A: _pixels_to_vector(A, layer))
    raise TypeError(f"{type(layer).__name__} is not a layer that ntkit knows.")


def pools(layers: Iterable[Layer]) -> bool:
    """Whether any of the layers averages over pixels, so that the walk needs all pairs of pixels."""
    return any(
        isinstance(layer, AvgPool | GlobalAvgPool)
        or (isinstance(layer, Residual) and pools(p for b in layer.branches for p in flatten(b)))
        for layer in layers
    )


def start(X: Array, Y: Array, *, all_pixels: bool, ntk: bool, paired: bool = False) -> State:
    """State at the input: Σ = ⟨x, y⟩ (over channels, for every pair of pixels), Θ = 0.

    `paired` takes the pairs (X[i], Y[i]) only, as blocks of shape (n, 1, …).
    """
    xp = _array.namespace(X)
    X, Y = _array.widen(X), _array.widen(Y)
    n, m, d = X.shape[0], Y.shape[0], X.shape[-1]
    if X.ndim == 2:
        nngp = xp.sum(X * Y, axis=1)[:, None] if paired else xp.matmul(X, xp.matrix_transpose(Y))
    elif not all_pixels:
        X, Y = X[:, None, ...], Y[:, None, ...] if paired else Y[None, ...]
        nngp = xp.zeros((n, 1 if paired else m, *X.shape[2:4]), dtype=X.dtype, device=_array.device(X))
        for channel in range(d):  # few channels: a loop needs no (n, m, h, w, c) intermediate
            nngp = nngp + X[..., channel] * Y[..., channel]
    else:
        pixels = X.shape[1:3]
        a = xp.reshape(X, (n, -1, d))
        b = xp.matrix_transpose(xp.reshape(Y, (m, -1, d)))
        products = xp.matmul(a[:, None, ...], b[:, None, ...] if paired else b[None, ...])
        nngp = xp.reshape(products, (n, -1, *pixels, *pixels))
    return State(nngp, xp.zeros_like(nngp) if ntk else None)


def self_variances(record: list[Array] | None = None) -> Variances:
    """Variances for a walk over pairs (x, x): the same-pixel entries of Σ itself, recorded on the way."""

    def variances(state: State) -> tuple[Array, Array]:
        own = same_pixels(state.nngp) if state.nngp.ndim == 6 else state.nngp
        own = _array.namespace(own).clip(own, 0, None)  # pooling can cancel to a rounding below zero
        if record is not None:
            record.append(own[:, 0, ...])
        if state.nngp.ndim == 6:
            return own[..., None, None], own[:, :, None, None, ...]
        return own, own

    return variances


def pair_variances(x_stats: Sequence[Array], y_stats: Sequence[Array]) -> Variances:
    """Variances for a walk over all pairs of two sets of rows, from what was recorded for each."""
    pairs = iter(zip(x_stats, y_stats, strict=True))

    def variances(state: State) -> tuple[Array, Array]:
        a, b = next(pairs)
        a, b = a[:, None, ...], b[None, ...]
        if state.nngp.ndim == 6:
            return a[..., None, None], b[:, :, None, None, ...]
        return a, b

    return variances


def row_variances(net: Layer, X: Array) -> tuple[Array, ...]:
    """Variances of the rows of `X` at every activation and Normalize of `net`, arrays of shape (n,) or (n, h, w)."""
    layers = list(flatten(net))
    while layers and not needs_variances(layers[-1]):
        layers.pop()  # nothing after the last of these layers is needed
    state = start(X, X, all_pixels=pools(layers), ntk=False, paired=True)
    record: list[Array] = []
    walk(Sequential(*layers), state, self_variances(record))
    return tuple(record)


def window_sum(A: Array, axes: Sequence[int], window: Window, size_in: int) -> Array:
    """Sum over a window, moving along all `axes` together: out[o] = Σ_a A[o·stride − before + a], zero outside."""
    xp = _array.namespace(A)
    shape = list(A.shape)
    for axis in axes:
        shape[axis] = window.n_out
    out = xp.zeros(tuple(shape), dtype=A.dtype, device=_array.device(A))
    for a in range(window.size):
        shift = a - window.before
        first = max(0, -(shift // window.stride))  # smallest o with o·stride + shift ≥ 0
        last = min(window.n_out - 1, (size_in - 1 - shift) // window.stride)
        if last < first:
            continue
        inside = slice(first * window.stride + shift, last * window.stride + shift + 1, window.stride)
        place = _index(A.ndim, axes, slice(first, last + 1))
        out[place] = out[place] + A[_index(A.ndim, axes, inside)]
    return out


def _average(A: Array, layer: Conv | AvgPool) -> Array:
    """Average over the layer's windows: a convolution moves both pixels together, pooling each alone."""
    height, width = A.shape[2], A.shape[3]
    rows, cols = layer.windows(height, width)
    moves: list[tuple[tuple[int, ...], Window, int]]
    if A.ndim == 4:
        moves = [((2,), rows, height), ((3,), cols, width)]
    elif isinstance(layer, Conv):
        moves = [((2, 4), rows, height), ((3, 5), cols, width)]
    else:
        moves = [((2,), rows, height), ((4,), rows, height), ((3,), cols, width), ((5,), cols, width)]
    scale = 1.0
    for axes, window, size in moves:
        A = window_sum(A, axes, window, size)
        scale /= window.size
    return A * scale


def _pixels_to_vector(A: Array, layer: GlobalAvgPool | Flatten) -> Array:
    xp = _array.namespace(A)
    if A.ndim == 6 and isinstance(layer, Flatten):
        A = same_pixels(A)
    return xp.mean(A, axis=tuple(range(2, A.ndim)))


def _inverse_root(a: Array) -> Array:
    """1/√a, zero where a is zero."""
    xp = _array.namespace(a)
    return xp.where(a > 0, 1 / xp.sqrt(xp.where(a > 0, a, xp.ones_like(a))), xp.zeros_like(a))


def _sum(arrays: Sequence[Array]) -> Array:
    return reduce(add, arrays)


def same_pixels(A: Array) -> Array:
    """Entries [i, j, i, j] of (n, m, h, w, h, w)."""
    xp = _array.namespace(A)
    n, m, h, w = A.shape[:4]
    diagonal = xp.linalg.diagonal(xp.reshape(A, (n, m, h * w, h * w)))
    return xp.reshape(diagonal, (n, m, h, w))


def _index(ndim: int, axes: Sequence[int], part: slice) -> tuple[slice, ...]:
    return tuple(part if axis in axes else slice(None) for axis in range(ndim))


def needs_variances(layer: Layer) -> bool:
    """Whether a layer is or contains an activation or Normalize."""
    if isinstance(layer, Residual):
        return any(needs_variances(p) for b in layer.branches for p in flatten(b))
    return isinstance(layer, Activation | Normalize)
