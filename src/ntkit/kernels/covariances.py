"""Covariances of any network in array-API code: the readable reference for all other implementations.

The state of a pair (x, y) at a layer is its NNGP covariance Σ and its tangent kernel Θ. The shape of both arrays is

* (n, m) for vectors;
* (n, m, h, w) for images whose pixels are never averaged: pixel (i, j) of x against the same pixel of y;
* (n, m, h, w, h, w) for images that are pooled: every pixel of x against every pixel of y.

A layer with weights maps Σ → w² Σ + b² and Θ → w² (Θ + Σ) + b² (Θ → w² Θ if frozen); a convolution first averages over
its patch. An activation maps Σ to its dual and Θ to Θ times its derivative dual. Pooling averages both. Normalize
divides both by √(Σ(x, x) Σ(y, y)). Activations and Normalize also need the variances of single rows, keyed by the path
of the layer; :func:`row_variances` computes them from the pairs (x, x).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.tiles import inner_products
from ntkit.networks import (
    Activation,
    Algebra,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    Residual,
    Sequential,
    fold,
)
from ntkit.networks.fold import Path, leaves
from ntkit.networks.layers import Window


@dataclass(frozen=True)
class State:
    """Covariances and tangent kernels of a block of pairs; `ntk` is None if it is not computed."""

    nngp: Array
    ntk: Array | None

    def map(self, function: Callable[[Array], Array]) -> State:
        """Apply a function to both arrays."""
        return State(function(self.nngp), None if self.ntk is None else function(self.ntk))


@dataclass(frozen=True)
class Own:
    """Variances for pairs (x, x), which are the same-pixel entries of Σ; `found` collects them by layer path."""

    found: dict[Path, Array] = field(default_factory=dict)

    def at(self, path: Path, state: State) -> tuple[Array, Array]:
        """Return the variances of x and y at a layer, in shapes that broadcast with the state."""
        whole = state.nngp.ndim == 6
        own = same_pixels(state.nngp) if whole else state.nngp
        own = _array.namespace(own).clip(own, 0, None)  # after pooling, rounding may make a variance negative
        self.found[path] = own[:, 0, ...]
        return (own[..., None, None], own[:, :, None, None, ...]) if whole else (own, own)


@dataclass(frozen=True)
class Known:
    """Variances for all pairs of two sets of rows, taken from the variances of single rows."""

    x: Mapping[Path, Array]
    y: Mapping[Path, Array]

    def at(self, path: Path, state: State) -> tuple[Array, Array]:
        """Return the variances of x and y at a layer, in shapes that broadcast with the state."""
        a, b = self.x[path][:, None, ...], self.y[path][None, ...]
        return (a[..., None, None], b[:, :, None, None, ...]) if state.nngp.ndim == 6 else (a, b)


class Covariances(Algebra[State]):
    """Rules that map Σ and Θ through each layer; a rule for your own layer maps one :class:`State` to the next.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.networks import Dense, fold
    >>> fold(Dense(bias_std=2.0), Covariances(Own()), State(np.ones((1, 1)), np.zeros((1, 1)))).ntk
    array([[5.]])
    """

    def __init__(self, variances: Own | Known):
        self.variances = variances

    def join(self, layer: Residual, before: State, ends: list[State], path: Path) -> State:
        """Add the kernels of the branches."""
        ntk = None if before.ntk is None else reduce(add, [end.ntk for end in ends])
        return State(reduce(add, [end.nngp for end in ends]), ntk)


@Covariances.rule(Dense, Conv)
def _(algebra: Covariances, layer: Dense | Conv, state: State, path: Path) -> State:
    if state.ntk is not None and layer.trainable:
        state = State(state.nngp, state.ntk + state.nngp)
    if isinstance(layer, Conv):
        state = state.map(lambda A: average(A, layer))
    scale, shift = layer.weight_std**2, layer.bias_std**2
    if scale != 1:
        state = state.map(lambda A: scale * A)
    if not shift:
        return state
    return State(state.nngp + shift, state.ntk + shift if state.ntk is not None and layer.trainable else state.ntk)


@Covariances.rule(Activation)
def _(algebra: Covariances, layer: Activation, state: State, path: Path) -> State:
    forward, derivative = layer.dual(state.nngp, *algebra.variances.at(path, state))
    return State(forward, None if state.ntk is None else state.ntk * derivative)


@Covariances.rule(Normalize)
def _(algebra: Covariances, layer: Normalize, state: State, path: Path) -> State:
    x_inverse, y_inverse = map(_inverse_root, algebra.variances.at(path, state))
    return state.map(lambda A: A * x_inverse * y_inverse)


@Covariances.rule(AvgPool)
def _(algebra: Covariances, layer: AvgPool, state: State, path: Path) -> State:
    return state.map(lambda A: average(A, layer))


@Covariances.rule(GlobalAvgPool)
def _(algebra: Covariances, layer: GlobalAvgPool, state: State, path: Path) -> State:
    return state.map(_mean_of_pixels)


@Covariances.rule(Flatten)
def _(algebra: Covariances, layer: Flatten, state: State, path: Path) -> State:
    return state.map(lambda A: _mean_of_pixels(same_pixels(A) if A.ndim == 6 else A))


def pools(net: Layer) -> bool:
    """Return whether any layer averages over pixels, so that all pairs of pixels are needed."""
    return any(isinstance(layer, AvgPool | GlobalAvgPool) for layer in leaves(net))


def start(X: Array, Y: Array, *, all_pixels: bool, ntk: bool, paired: bool = False) -> State:
    """Return the state at the input: Σ = ⟨x, y⟩ (over channels, for every pair of pixels), Θ = 0.

    If `paired`, only the pairs (X[i], Y[i]) are computed, with shape (n, 1, …).
    """
    xp = _array.namespace(X)
    n, m, d = X.shape[0], Y.shape[0], X.shape[-1]
    if X.ndim == 2 and not paired:
        nngp = inner_products(X, Y)
        return State(nngp, xp.zeros_like(nngp) if ntk else None)
    X, Y = _array.widen(X), _array.widen(Y)
    if X.ndim == 2:
        nngp = xp.sum(X * Y, axis=1)[:, None]
    elif not all_pixels:
        X, Y = X[:, None, ...], Y[:, None, ...] if paired else Y[None, ...]
        nngp = xp.zeros((n, 1 if paired else m, *X.shape[2:4]), dtype=X.dtype, device=_array.device(X))
        for channel in range(d):  # there are few channels, and a loop avoids an (n, m, h, w, c) intermediate
            nngp = nngp + X[..., channel] * Y[..., channel]
    else:
        pixels = X.shape[1:3]
        a = xp.reshape(X, (n, -1, d))
        b = xp.matrix_transpose(xp.reshape(Y, (m, -1, d)))
        products = xp.matmul(a[:, None, ...], b[:, None, ...] if paired else b[None, ...])
        nngp = xp.reshape(products, (n, -1, *pixels, *pixels))
    return State(nngp, xp.zeros_like(nngp) if ntk else None)


def row_variances(net: Layer, X: Array) -> dict[Path, Array]:
    """Compute the variances of the rows of `X` at every activation and Normalize layer, keyed by layer path.

    Their shape is (n,) for vectors and (n, h, w) for images.
    """
    net = _up_to_last(net)
    own = Own()
    fold(net, Covariances(own), start(X, X, all_pixels=pools(net), ntk=False, paired=True))
    return own.found


def _up_to_last(net: Layer) -> Layer:
    """Drop the layers after the last one that needs variances; the paths of the others stay the same."""
    if not isinstance(net, Sequential):
        return net
    layers = list(net.layers)
    while layers and not needs_variances(layers[-1]):
        layers.pop()
    return Sequential(*layers)


def window_sum(A: Array, axes: Sequence[int], window: Window, size_in: int) -> Array:
    """Sum over a window that moves along all `axes` together: out[o] = Σ_a A[o·stride − before + a], zero outside."""
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


def average(A: Array, layer: Conv | AvgPool) -> Array:
    """Average over the layer's windows: a convolution moves both pixels together, pooling moves each separately."""
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


def _mean_of_pixels(A: Array) -> Array:
    return _array.namespace(A).mean(A, axis=tuple(range(2, A.ndim)))


def _inverse_root(a: Array) -> Array:
    """Return 1/√a, or zero where a is zero."""
    xp = _array.namespace(a)
    return xp.where(a > 0, 1 / xp.sqrt(xp.where(a > 0, a, xp.ones_like(a))), xp.zeros_like(a))


def same_pixels(A: Array) -> Array:
    """Return the entries [:, :, i, j, i, j] of an array of shape (n, m, h, w, h, w)."""
    xp = _array.namespace(A)
    n, m, h, w = A.shape[:4]
    diagonal = xp.linalg.diagonal(xp.reshape(A, (n, m, h * w, h * w)))
    return xp.reshape(diagonal, (n, m, h, w))


def _index(ndim: int, axes: Sequence[int], part: slice) -> tuple[slice, ...]:
    return tuple(part if axis in axes else slice(None) for axis in range(ndim))


def needs_variances(net: Layer) -> bool:
    """Return whether a network has an activation or a Normalize layer."""
    return any(isinstance(layer, Activation | Normalize) for layer in leaves(net))
