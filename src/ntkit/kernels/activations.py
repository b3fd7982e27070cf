"""Dual activations: how an infinitely wide layer maps covariances.

For Gaussian (u, v) with variances a, b and covariance c, an activation σ has the dual E[σ(u)σ(v)] and the
derivative dual E[σ′(u)σ′(v)] = ∂/∂c E[σ(u)σ(v)] (Price's theorem); both are divided by E[σ(z)²],
z ~ N(0, 1), if the activation is normalized.
"""

from __future__ import annotations

import math

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.arccos import SAME, arc_cosine_pair
from ntkit.networks import GELU, Abs, Activation, Erf, Gaussian, LeakyReLU, ReLU, Sin

HOMOGENEOUS = (ReLU, LeakyReLU, Abs)


def mix(activation: Activation) -> float:
    """Weight w with which a piecewise linear σ's normalized dual is s · (w t + (1 − w) κ₁(t)).

    σ(z) = max(z, 0) + α min(z, 0) gives w = 2α/(1 + α²): 0 for ReLU, −1 for the absolute value.
    """
    alpha = negative_slope(activation)
    return 2 * alpha / (1 + alpha * alpha)


def second_moment(activation: Activation) -> float:
    """E[σ(z)²] for z ~ N(0, 1)."""
    if isinstance(activation, HOMOGENEOUS):
        return (1 + negative_slope(activation) ** 2) / 2
    one = np.ones(())
    return float(_DUALS[type(activation)](one, one, one)[0])


def gain(activation: Activation) -> float:
    """Variance after the activation for unit variance before it (homogeneous activations): 1 if normalized."""
    return 1.0 if activation.normalize else second_moment(activation)


def dual(activation: Activation, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Dual and derivative dual for covariances `c` and variances `a`, `b` (shapes broadcast).

    Where a variance is zero the dual is zero, but for Gaussian: e^{−b/2} where a = 0.
    """
    if isinstance(activation, HOMOGENEOUS):
        forward, derivative = _homogeneous(c, a, b, mix(activation))
        factor = gain(activation)
    else:
        forward, derivative = _DUALS[type(activation)](c, a, b)
        factor = 1 / second_moment(activation) if activation.normalize else 1.0
    return (forward, derivative) if factor == 1 else (factor * forward, factor * derivative)


def homogeneous_chain(t: Array, gap: Array, mixes: np.ndarray, trained: np.ndarray) -> tuple[Array, Array]:
    """NNGP and NTK, on unit vectors with cosine `t`, of Dense, σ₁, Dense, …, σ_L, Dense.

    Σ⁰ = t, K⁰ = τ₀ t and, with weight w of layer ℓ (see :func:`mix`) and τ_ℓ = 1 for a trained Dense, else 0::

        Σ^ℓ = w Σ^{ℓ−1} + (1 − w) κ₁(Σ^{ℓ−1})
        K^ℓ = K^{ℓ−1} · (w + (1 − w) κ₀(Σ^{ℓ−1})) + τ_ℓ Σ^ℓ

    `gap` is 1 − |t|, given apart because it is known more accurately than t near ±1; the recursion
    carries it along: 1 − Σ^ℓ = w (1 − Σ^{ℓ−1}) + (1 − w)(1 − κ₁(Σ^{ℓ−1})).
    """
    xp = _array.namespace(t)
    theta = float(trained[0]) * t
    for w, tau in zip(mixes.tolist(), trained[1:].tolist(), strict=True):
        negative = t < 0
        k0, k1, k1_gap = arc_cosine_pair(gap, negative)
        forward = w * t + (1 - w) * k1
        upper_gap = w * xp.where(negative, 2 - gap, gap) + (1 - w) * k1_gap
        theta = theta * (w + (1 - w) * k0) + tau * forward
        gap = xp.where(forward < 0, 1 + forward, xp.clip(upper_gap, 0, 1))
        t = forward
    return t, theta


def negative_slope(activation: Activation) -> float:
    """Slope of a piecewise linear σ below 0; above it is 1."""
    if isinstance(activation, LeakyReLU):
        return float(activation.slope)
    return -1.0 if isinstance(activation, Abs) else 0.0


def _homogeneous(c: Array, a: Array, b: Array, w: float) -> tuple[Array, Array]:
    xp = _array.namespace(c)
    scale = xp.sqrt(a) * xp.sqrt(b)  # the product of the variances could overflow
    t = xp.clip(c / xp.where(scale > 0, scale, xp.ones_like(scale)), -1, 1)
    gap = 1 - xp.abs(t)
    gap = xp.where(gap > SAME, gap, xp.zeros_like(gap))
    k0, k1, _ = arc_cosine_pair(gap, t < 0)
    if w == 0:
        return scale * k1, k0
    return scale * (w * t + (1 - w) * k1), w + (1 - w) * k0


def _determinant(c: Array, a: Array, b: Array) -> Array:
    """Determinant ab − c² ≥ 0, without the cancellation of two large squares."""
    xp = _array.namespace(c)
    root = xp.sqrt(a) * xp.sqrt(b)
    return xp.clip((root - c) * (root + c), 0, None)


def _erf(c: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """(2/π) arcsin(2c/√((1+2a)(1+2b))) (Williams 1997) and its derivative (4/π)/√((1+2a)(1+2b) − 4c²)."""
    xp = _array.namespace(c)
    sine = 2 * c / (xp.sqrt(1 + 2 * a) * xp.sqrt(1 + 2 * b))
    forward = (2 / math.pi) * xp.asin(xp.clip(sine, -1, 1))
    return forward, (4 / math.pi) / xp.sqrt(1 + 2 * (a + b) + 4 * _determinant(c, a, b))


def _gelu(c: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Dual of z Φ(z), by Stein's lemma and Price's theorem.

    With D = ab − c², Δ = 1 + a + b + D and u = (2+a+b)/((1+a)(1+b))::

        E[σσ]   = c P + (D + c²u)/(2π√Δ),    P = 1/4 + arcsin(c/√((1+a)(1+b)))/2π
        E[σ′σ′] = P + c (2u + (c²u − 1 − a − b)/Δ)/(2π√Δ)
    """
    xp = _array.namespace(c)
    determinant = _determinant(c, a, b)
    delta = 1 + a + b + determinant
    u = 1 / (1 + a) + 1 / (1 + b)
    sine = c / (xp.sqrt(1 + a) * xp.sqrt(1 + b))
    orthant = 0.25 + xp.asin(xp.clip(sine, -1, 1)) / (2 * math.pi)
    norm = 1 / (2 * math.pi * xp.sqrt(delta))
    forward = c * orthant + (determinant + c * c * u) * norm
    return forward, orthant + norm * c * (2 * u + (c * c * u - 1 - a - b) / delta)


def _sin(c: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """e^{−(a+b)/2} sinh c and e^{−(a+b)/2} cosh c, written so that nothing overflows or cancels (|c| ≤ (a+b)/2)."""
    xp = _array.namespace(c)
    size = xp.abs(c)
    top = xp.exp(xp.clip(size - (a + b) / 2, None, 0)) / 2
    return xp.sign(c) * top * -xp.expm1(-2 * size), top * (1 + xp.exp(-2 * size))


def _gaussian(c: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """e^{c − (a+b)/2}, twice: |c| ≤ (a+b)/2 but for rounding."""
    xp = _array.namespace(c)
    value = xp.exp(xp.clip(c - (a + b) / 2, None, 0))
    return value, value


_DUALS = {Erf: _erf, GELU: _gelu, Sin: _sin, Gaussian: _gaussian}
