"""Kernels of fully connected networks with piecewise linear activations, by a compiled recursion of correlations.

Without biases the kernels are ‖x‖‖y‖ times functions of the cosine. With biases a Dense layer maps the correlation of a
pair to Σ′ = α(x)α(y) Σ + β(x)β(y), where α² + β² = 1 for every row; α and β follow from the variances of the row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels import tiles
from ntkit.kernels.norms import moderate_norms
from ntkit.kernels.spec import KernelSpec
from ntkit.kernels.tiles import Rows, assign, divide_rows, inner_products, row_norms
from ntkit.networks import Algebra, Dense, Layer, PiecewiseLinear, UnsupportedError, fold
from ntkit.networks.activations import arc_cosine_pair
from ntkit.networks.fold import Path

MIN_GAP = 1e-26  # lower bound on 1 − |t| in derivatives, since the derivative of κ₀ is infinite at ±1
NEAR_GAP = 1e-8  # below this, 1 − |t| has lost half its digits to the rounding of t and is recomputed from the rows


@dataclass(frozen=True)
class DenseLayers:
    """Consecutive Dense layers: Σ → gΣ + b and Θ → g(Θ + τΣ) + υ."""

    gain: float = 1.0
    trained: float = 0.0
    bias: float = 0.0
    trained_bias: float = 0.0

    def then(self, layer: Dense) -> DenseLayers:
        """Return these layers followed by one more."""
        gain = layer.weight_std**2
        bias = gain * self.bias + layer.bias_std**2
        trained_bias = gain * self.trained_bias + layer.trainable * bias
        return DenseLayers(gain * self.gain, self.trained + layer.trainable, bias, trained_bias)


@dataclass(frozen=True)
class Links:
    """A chain: Dense layers, σ₁, Dense layers, …, σ_L, Dense layers.

    `mixes` are the weights w of the activations; the gain of an activation is part of the Dense layers after it.
    """

    weights: tuple[DenseLayers, ...] = (DenseLayers(),)
    mixes: tuple[float, ...] = ()


class Chain(Algebra[Links]):
    """Dense layers and piecewise linear activations, without branches."""


@Chain.rule(Dense)
def _(algebra: Chain, layer: Dense, links: Links, path: Path) -> Links:
    return Links((*links.weights[:-1], links.weights[-1].then(layer)), links.mixes)


@Chain.rule(PiecewiseLinear)
def _(algebra: Chain, layer: PiecewiseLinear, links: Links, path: Path) -> Links:
    return Links((*links.weights, DenseLayers(gain=layer.gain)), (*links.mixes, layer.mix))


@lru_cache(maxsize=256)
def cosine_chain(net: Layer, kinds: tuple[str, ...]) -> CosineChain | None:
    """Return the kernel of a network that is a chain, else None."""
    try:
        return CosineChain(fold(net, Chain(), Links()), kinds)
    except UnsupportedError:
        return None


@dataclass(frozen=True)
class CosineChain(KernelSpec):
    """Kernel of a chain on vectors."""

    links: Links
    kinds: tuple[str, ...]
    owner: ClassVar[str] = "network_kernel"
    sparse: ClassVar[bool] = True

    @cached_property
    def mixes(self) -> np.ndarray:
        """Weights w of the activations, see :func:`recursion`."""
        return np.array(self.links.mixes)

    @cached_property
    def trained(self) -> np.ndarray:
        """How often Σ is added to Θ before the first activation and after each activation."""
        return np.array([weights.trained for weights in self.links.weights])

    @property
    def biased(self) -> bool:
        """Whether any layer has a bias."""
        return any(weights.bias for weights in self.links.weights)

    @property
    def n_outputs(self) -> int:
        """Number of matrices, one for each kind."""
        return len(self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Compute the norms of the rows; with biases also a table of shape (n, layers, 3).

        The table holds α, β and √υ/sd at every layer, where sd is the standard deviation of the row.
        """
        norms = row_norms(X)
        if not self.biased:
            return Rows(X, {"norm": norms, "scale": self._factor**0.5 * norms})
        xp: Any = _array.namespace(norms)
        inner = moderate_norms(norms)
        outer = xp.where(norms > 1, norms / xp.where(norms > 1, inner, xp.ones_like(inner)), xp.ones_like(norms))
        variance, table = inner * inner, []
        for weights in self.links.weights:
            new_variance = weights.gain * variance + weights.bias
            positive = new_variance > 0
            safe = xp.where(positive, new_variance, xp.ones_like(new_variance))
            ratios = [weights.gain * variance, weights.bias + 0 * safe, weights.trained_bias + 0 * safe]
            alpha, beta, upsilon = (xp.sqrt(ratio / safe) for ratio in ratios)
            table.append(xp.stack([xp.where(positive, alpha, xp.ones_like(alpha)), beta, upsilon], axis=-1))
            variance = new_variance
        stats = {"norm": norms, "scale": outer * xp.sqrt(variance), "table": xp.stack(table, axis=1)}
        return Rows(X, stats)

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Compute cosines by BLAS, recompute those near ±1 from differences, then run the recursion."""
        compiled = tiles.on_host(a.data) or _array.has_triton(a.data)
        if not compiled or _array.wants_gradient([a.data, b.data]):
            values = self._values(*cosines_and_gaps(a, b), _tables(a, b))
            scales = a.stats["scale"][:, None] * b.stats["scale"][None, :]
            for kind, out in zip(self.kinds, outs, strict=True):
                assign(out, scales * values[kind])
            return
        cosines = inner_products(a.data, b.data, (a.stats["norm"], b.stats["norm"]))
        if _array.is_numpy(cosines):
            self._fill_compiled(a, b, cosines, outs)
        elif self._fill_triton(a, b, cosines, outs):
            self._fill_near(a, b, cosines, outs)

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Return the value at cosine one times the squared scale of each row."""
        one, table = np.ones(()), a.stats.get("table")
        if table is not None:
            one = _array.namespace(table).ones_like(a.stats["norm"])
        values = self._values(one, 0 * one, None if table is None else (table, table))
        if table is None:
            values = {kind: float(value) for kind, value in values.items()}
        return tuple(values[kind] * a.stats["scale"] * a.stats["scale"] for kind in self.kinds)

    def on_sphere(self, t: np.ndarray) -> np.ndarray:
        """See :meth:`KernelSpec.on_sphere`; runs compiled code."""
        from ntkit.kernels import _numba

        flat = np.ascontiguousarray(t, dtype=np.float64).reshape(1, -1)
        out, none, table = np.empty_like(flat), np.empty((0, 0)), np.empty((0, 0, 0))
        outs = (out, none) if self.kinds[0] == "nngp" else (none, out)
        scale = np.full(1, self._factor), np.ones(flat.shape[1])
        near = np.empty((0, 2), np.int64), np.empty(0)
        _numba.chain(flat, *near, self.mixes, self.trained, table, table, *scale, *outs)
        return out.reshape(t.shape)

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """Compute the gradients of ‖x‖‖y‖ κ(t): ‖y‖ (κ′ ŷ + (κ − tκ′) x̂); the tangential part is 0 where t = ±1."""
        return cosine_gradients(X, Y, C, 1, self._with_slope)

    def _with_slope(self, t: Array, gap: Array) -> tuple[Array, Array]:
        """Return κ(t) and κ′(t)."""
        xp = _array.namespace(t)
        tau = float(self.trained[0])
        sigma, d_sigma, theta, d_theta = t, xp.ones_like(t), tau * t, tau * xp.ones_like(t)
        for w, tau in zip(self.links.mixes, self.trained[1:].tolist(), strict=True):
            k0, k1, k1_gap = arc_cosine_pair(gap, sigma < 0)
            slope = w + (1 - w) * k0
            bend = (1 - w) / math.pi * (xp.clip(gap, MIN_GAP, None) * (2 - gap)) ** -0.5 * d_sigma
            upper = w * xp.where(sigma < 0, 2 - gap, gap) + (1 - w) * k1_gap
            sigma, d_sigma = w * sigma + (1 - w) * k1, slope * d_sigma
            theta, d_theta = theta * slope + tau * sigma, d_theta * slope + theta * bend + tau * d_sigma
            gap = xp.where(sigma < 0, 1 + sigma, xp.clip(upper, 0, 1))
        value, derivative = (sigma, d_sigma) if self.kinds[0] == "nngp" else (theta, d_theta)
        return self._factor * value, self._factor * derivative

    @property
    def _factor(self) -> float:
        """Product of all gains."""
        return math.prod(weights.gain for weights in self.links.weights)

    def _fill_near(self, a: Rows, b: Rows, cosines: Array, outs: Sequence[Array]) -> None:
        """Recompute the entries whose cosine is near ±1."""
        xp = _array.namespace(cosines)
        i, j = xp.nonzero(1 - xp.abs(cosines) < NEAR_GAP)
        if not i.shape[0]:
            return
        near = cosines[i, j]
        tables = (
            None
            if "table" not in a.stats
            else (xp.take(a.stats["table"], i, axis=0), xp.take(b.stats["table"], j, axis=0))
        )
        values = self._values(near, xp.clip(_gaps(a, b, i, j, near), 0, 1), tables)
        scales = xp.take(a.stats["scale"], i) * xp.take(b.stats["scale"], j)
        for kind, out in zip(self.kinds, outs, strict=True):
            _array.scatter(out, i, j, xp.astype(scales * values[kind], out.dtype, copy=False))

    def _values(self, cosines: Array, gap: Array, tables: tuple[Array, Array] | None) -> dict[str, Array]:
        sigma, theta = recursion(cosines, gap, self.mixes, self.trained, tables)
        return {"nngp": sigma, "ntk": theta}

    def _fill_triton(self, a: Rows, b: Rows, cosines: Array, outs: Sequence[Array]) -> bool:
        import torch

        from ntkit.kernels import _triton

        mixes, trained = (torch.from_numpy(v).to(cosines.device) for v in (self.mixes, self.trained))
        by_kind = dict(zip(self.kinds, outs, strict=True))
        tables = (
            (a.stats["table"].contiguous(), b.stats["table"].permute(1, 2, 0).contiguous()) if self.biased else None
        )
        scales = a.stats["scale"], b.stats["scale"]
        return _triton.chain(cosines, mixes, trained, tables, *scales, by_kind.get("nngp"), by_kind.get("ntk"))

    def _fill_compiled(self, a: Rows, b: Rows, cosines: np.ndarray, outs: Sequence[Array]) -> None:
        from ntkit.kernels import _numba

        near = _numba.near_pairs(cosines)
        gap = np.empty(0)
        if len(near):
            i, j = near.T
            gap = _gaps(a, b, i, j, cosines[i, j])
        # numba does not support half precision.
        tiles = [np.empty(out.shape) if out.dtype == np.float16 else out for out in outs]
        by_kind = dict(zip(self.kinds, tiles, strict=True))
        none, no_table = np.empty((0, 0)), np.empty((0, 0, 0))
        x_table, y_table = a.stats.get("table", no_table), b.stats.get("table", no_table)
        _numba.chain(
            cosines, near, gap, self.mixes, self.trained,
            np.ascontiguousarray(x_table), np.ascontiguousarray(np.moveaxis(y_table, 0, -1)),
            a.stats["scale"], b.stats["scale"], by_kind.get("nngp", none), by_kind.get("ntk", none),
        )  # fmt: skip
        for tile, out in zip(tiles, outs, strict=True):
            if tile is not out:
                assign(out, tile)


def recursion(
    t: Array, gap: Array, mixes: np.ndarray, trained: np.ndarray, tables: tuple[Array, Array] | None = None
) -> tuple[Array, Array]:
    """Compute the NNGP and the NTK of the chain Dense, σ₁, Dense, …, σ_L, Dense on unit vectors with cosine `t`.

    Σ⁰ = t, K⁰ = τ₀ t and, with the weight w of activation ℓ and τ_ℓ = 1 for a trained Dense layer, else 0::

        Σ^ℓ = w Σ^{ℓ−1} + (1 − w) κ₁(Σ^{ℓ−1})
        K^ℓ = K^{ℓ−1} · (w + (1 − w) κ₀(Σ^{ℓ−1})) + τ_ℓ Σ^ℓ

    `gap` is 1 − |t|, which near ±1 is known more accurately than t. The recursion updates it, too:
    1 − Σ^ℓ = w (1 − Σ^{ℓ−1}) + (1 − w)(1 − κ₁(Σ^{ℓ−1})). If there are biases, `tables` holds α, β and √υ/sd for both
    rows, in arrays of shape (…, layers, 3).
    """
    xp = _array.namespace(t)
    theta = float(trained[0]) * t
    if tables is not None:
        t, gap, theta = _with_biases(t, gap, theta, *(table[..., 0, :] for table in tables))
    for layer, (w, tau) in enumerate(zip(mixes.tolist(), trained[1:].tolist(), strict=True), 1):
        negative = t < 0
        k0, k1, k1_gap = arc_cosine_pair(gap, negative)
        forward = w * t + (1 - w) * k1
        upper_gap = w * xp.where(negative, 2 - gap, gap) + (1 - w) * k1_gap
        theta = theta * (w + (1 - w) * k0) + tau * forward
        gap = xp.where(forward < 0, 1 + forward, xp.clip(upper_gap, 0, 1))
        t = forward
        if tables is not None:
            t, gap, theta = _with_biases(t, gap, theta, *(table[..., layer, :] for table in tables))
    return t, theta


def _with_biases(t: Array, gap: Array, theta: Array, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Apply the biases of a layer: Σ′ = α(x)α(y)Σ + β(x)β(y).

    Since α² + β² = 1, 1 − Σ′ = α(x)α(y)(1 − Σ) + ½‖(α, β)(x) − (α, β)(y)‖².
    """
    xp = _array.namespace(t)
    scale = x[..., 0] * y[..., 0]
    upper = scale * xp.where(t < 0, 2 - gap, gap)
    upper = upper + 0.5 * ((x[..., 0] - y[..., 0]) ** 2 + (x[..., 1] - y[..., 1]) ** 2)
    t = scale * t + x[..., 1] * y[..., 1]
    gap = xp.where(t < 0, 1 + t, xp.clip(upper, 0, 1))
    return t, gap, scale * theta + x[..., 2] * y[..., 2]


def cosines_and_gaps(a: Rows, b: Rows) -> tuple[Array, Array]:
    """Compute the cosines t of all pairs by BLAS, and 1 − |t|, near ±1 from differences; rows carry their norms."""
    t = inner_products(a.data, b.data, (a.stats["norm"], b.stats["norm"]))
    xp: Any = _array.namespace(t)
    t = xp.clip(t, -1, 1)
    gap = 1 - xp.abs(t)
    if _array.is_traced(t):
        return t, gap
    i, j = xp.nonzero(gap < NEAR_GAP)
    if i.shape[0]:
        _array.scatter(gap, i, j, xp.clip(_gaps(a, b, i, j, t[i, j]), 0, 1))
    return t, gap


def cosine_gradients(X: Array, Y: Array, C: Array, power: int, function: Any) -> Array:
    """Compute gradients of Σ_j c_j ‖x‖^p ‖y_j‖^p κ(cos), of shape (n, k, d).

    Each term is ‖x‖^{p−1} ‖y‖^p (κ′ ŷ + (pκ − tκ′) x̂). Where t = ±1, the tangential part κ′(ŷ − t x̂) is 0 for any κ′.
    `function` maps cosines and gaps to κ and κ′.
    """
    a, b = (Rows(Z, {"norm": row_norms(Z)}) for Z in (X, Y))
    t, gap = cosines_and_gaps(a, b)
    xp: Any = _array.namespace(t)
    norms, other = a.stats["norm"], b.stats["norm"]
    x, y = divide_rows(_array.widen(X), norms), divide_rows(_array.widen(Y), other)
    value, slope = function(t, gap)
    slope = xp.where(gap > 0, slope, xp.zeros_like(slope))
    radial = power * value - t * slope
    weights = C * xp.where(other > 0, other**power, xp.zeros_like(other))[:, None]
    parts = []
    for k in range(C.shape[1]):
        along = xp.matmul(radial, weights[:, k])[:, None] * x
        parts.append(along + xp.matmul(slope * weights[:, k][None, :], y))
    lengths = xp.where(norms > 0, xp.where(norms > 0, norms, xp.ones_like(norms)) ** (power - 1), xp.zeros_like(norms))
    return lengths[:, None, None] * xp.stack(parts, axis=1)


def _tables(a: Rows, b: Rows) -> tuple[Array, Array] | None:
    if "table" not in a.stats:
        return None
    return a.stats["table"][:, None, ...], b.stats["table"][None, ...]


def _gaps(a: Rows, b: Rows, i: Array, j: Array, cosines: Array) -> Array:
    """Compute 1 − |t| of the pairs (i, j) as ½‖x ∓ y‖² of unit rows, in slices that bound the memory."""
    xp = _array.namespace(cosines)
    signs = xp.where(cosines < 0, -xp.ones_like(cosines), xp.ones_like(cosines))
    sparse = _array.is_sparse(a.data)
    width = a.data.nnz // a.data.shape[0] + b.data.nnz // b.data.shape[0] if sparse else a.data.shape[1]
    step = max(1, (2**17 if tiles.on_host(a.data) else 2**20) // max(width, 1))
    parts = []
    for k in range(0, cosines.shape[0], step):
        part = slice(k, min(k + step, cosines.shape[0]))
        x, y = (_unit(rows, places[part]) for rows, places in ((a, i), (b, j)))
        if sparse:
            difference = x - y.multiply(signs[part][:, None])
            parts.append(np.asarray(difference.multiply(difference).sum(axis=1)).ravel() / 2)
        else:
            difference = x - signs[part][:, None] * y
            parts.append(xp.sum(difference * difference, axis=1) / 2)
    return xp.concat(parts)


def _unit(rows: Rows, places: Array) -> Array:
    """Return the rows at `places`, divided by their norms."""
    if _array.is_sparse(rows.data):
        return divide_rows(rows.data[places].astype(np.float64), rows.stats["norm"][places])
    xp = _array.namespace(rows.data)
    return divide_rows(_array.widen(xp.take(rows.data, places, axis=0)), xp.take(rows.stats["norm"], places))
