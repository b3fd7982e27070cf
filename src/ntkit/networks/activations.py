"""Activations and their mathematics: σ and σ′, dual activations, Hermite series.

For Gaussian (u, v) with variances a, b and covariance c, an activation σ has the dual E[σ(u)σ(v)] and the derivative
dual E[σ′(u)σ′(v)] = ∂/∂c E[σ(u)σ(v)] (Price's theorem). For z ~ N(0, 1) it expands in normalized Hermite polynomials,
σ(√a z) = Σ_j h_j(a) He_j(z)/√(j!), and then E[σ(u)σ(v)] = Σ_j h_j(a) h_j(b) t^j at the correlation t (Mehler). All
coefficients here have the form h_j(a) = u r^j (A_j + B_j a) with functions u, r of the variance::

    piecewise linear   u = √a          r = 1                 B = 0
    Erf                u = 1           r = √(2a/(1 + 2a))    B = 0
    GELU               u = 1/√(1+a)    r = √(a/(1 + a))      A_1 = B_1 = 1/2, else A_j = j B_j
    Sin, Gaussian      u = e^{−a/2}    r = √a                A_j = ±1/√(j!), B = 0

A new activation is one class: a frozen dataclass with `sigma`, `sigma_prime` and `moments`, and for sketched features
`hermite_factors` and `hermite_weights`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_bool, check_real
from ntkit.networks.fold import UnsupportedError
from ntkit.networks.layers import Layer, set_field

SAME = 2e-15  # smaller 1 − |t| is rounding error only, which κ₀ would amplify to √(2 · 2e-15)/π = 2e-8


@dataclass(frozen=True, repr=False)
class Activation(Layer):
    """Base class of the activations. With ``normalize`` (the default), σ is divided by √E[σ(z)²]."""

    normalize: bool = field(default=True, kw_only=True)
    growth: ClassVar[tuple[int, int] | None] = None
    """Powers of ‖x‖ (0 or 1) with which E[σ(u)σ(v)] grows, for rows x near zero and near infinity; None if unknown."""
    slope_growth: ClassVar[int] = 0
    """Power of ‖x‖ with which E[σ′(u)²] grows near infinity."""

    def __post_init__(self) -> None:
        if type(self) is Activation:
            raise TypeError("Activation is abstract; use ReLU(), Erf(), GELU(), … instead.")
        set_field(self, "normalize", check_bool(self.normalize, "normalize", type(self).__name__))

    def sigma(self, u: Array) -> Array:
        """Apply σ to every entry, without normalization."""
        raise self._lacks("sigma")

    def sigma_prime(self, u: Array) -> Array:
        """Apply σ′ to every entry, without normalization."""
        raise self._lacks("sigma_prime")

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Compute E[σ(u)σ(v)] and E[σ′(u)σ′(v)] without normalization, for covariances c and variances a, b."""
        raise self._lacks("moments")

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Compute u and r (None: r = 1) for variances `a`; with `derivative`, u r/√a in place of u."""
        raise self._lacks("hermite_factors")

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return A_j and B_j for j < n, without normalization."""
        raise self._lacks("hermite_weights")

    @property
    def second_moment(self) -> float:
        """E[σ(z)²] for z ~ N(0, 1)."""
        return _second_moment(self)

    @property
    def scale(self) -> float:
        """Factor of σ: 1/√E[σ(z)²] if normalized, else 1."""
        return self.second_moment**-0.5 if self.normalize else 1.0

    def dual(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Compute the dual and derivative dual for covariances `c` and variances `a`, `b` (shapes broadcast).

        Where a variance is zero, the dual is zero, except for Gaussian: it is e^{−b/2} where a = 0.
        """
        forward, derivative = self.moments(c, a, b)
        factor = 1 / self.second_moment if self.normalize else 1.0
        return (forward, derivative) if factor == 1 else (factor * forward, factor * derivative)

    def dual_at_ends(self, a: Array, *, derivative: bool) -> tuple[Array, Array]:
        """Compute the dual or derivative dual at the correlations 1 and −1, for two equal variances `a`."""
        return self.dual(a, a, a)[int(derivative)], self.dual(-a, a, a)[int(derivative)]

    def _lacks(self, method: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} lacks the method {method!r}, which this computation needs.")


@lru_cache(maxsize=256)
def _second_moment(activation: Activation) -> float:
    one = np.ones(())
    return float(activation.moments(one, one, one)[0])


@dataclass(frozen=True, repr=False)
class PiecewiseLinear(Activation):
    """Base class of σ(z) = max(z, 0) + α min(z, 0). Its kernels are functions of the cosine, times both norms.

    Σ → s · gain · (w t + (1 − w) κ₁(t)) and Θ → Θ · gain · (w + (1 − w) κ₀(t)) for t = Σ/s, s = √(ab), with the
    arc-cosine functions κ₀, κ₁ and w = 2α/(1 + α²): 0 for ReLU, −1 for the absolute value.

    Examples
    --------
    >>> from ntkit import networks as nn
    >>> isinstance(nn.LeakyReLU(1.0), nn.PiecewiseLinear), nn.LeakyReLU(1.0).mix
    (True, 1.0)
    """

    growth: ClassVar[tuple[int, int] | None] = (1, 1)

    @property
    def negative_slope(self) -> float:
        """Slope α below 0; above 0 the slope is 1."""
        return 0.0

    @property
    def mix(self) -> float:
        """Weight w = 2α/(1 + α²) of the linear part of the kernel."""
        return 2 * self.negative_slope / (1 + self.negative_slope**2)

    @property
    def second_moment(self) -> float:
        """E[σ(z)²] = (1 + α²)/2 for z ~ N(0, 1)."""
        return (1 + self.negative_slope**2) / 2

    @property
    def gain(self) -> float:
        """Variance of the output for an input of unit variance: 1 if normalized."""
        return 1.0 if self.normalize else self.second_moment

    def sigma(self, u: Array) -> Array:
        """Compute max(u, 0) + α min(u, 0)."""
        xp: Any = _array.namespace(u)
        if self.negative_slope == -1:
            return xp.abs(u)
        if self.negative_slope == 0:
            return u.relu() if _array.is_torch(u) else xp.clip(u, 0, None)
        return xp.where(u > 0, u, self.negative_slope * u)

    def sigma_prime(self, u: Array) -> Array:
        """Return 1 above zero, α below, and 0 at zero."""
        xp: Any = _array.namespace(u)
        up, down = xp.astype(u > 0, u.dtype), xp.astype(u < 0, u.dtype)
        return up if self.negative_slope == 0 else up + self.negative_slope * down

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """See :meth:`Activation.moments`: the normalized dual times (1 + α²)/2."""
        forward, derivative = self._of_cosines(c, a, b)
        return self.second_moment * forward, self.second_moment * derivative

    def dual(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """See :meth:`Activation.dual`. Skips two factors that cancel."""
        forward, derivative = self._of_cosines(c, a, b)
        return (forward, derivative) if self.gain == 1 else (self.gain * forward, self.gain * derivative)

    def dual_at_ends(self, a: Array, *, derivative: bool) -> tuple[Array, Array]:
        """See :meth:`Activation.dual_at_ends`."""
        at_one = self.gain * (_array.namespace(a).ones_like(a) if derivative else a)
        return at_one, at_one * (self.mix if derivative else -self.mix)

    def _of_cosines(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        xp, w = _array.namespace(c), self.mix
        scale = _array.sqrt(a) * _array.sqrt(b)  # the product of the variances could overflow
        t = xp.clip(c / xp.where(scale > 0, scale, xp.ones_like(scale)), -1, 1)
        gap = 1 - xp.abs(t)
        gap = xp.where(gap > SAME, gap, xp.zeros_like(gap))
        k0, k1, _ = arc_cosine_pair(gap, t < 0)
        if w == 0:
            return scale * k1, k0
        return scale * (w * t + (1 - w) * k1), w + (1 - w) * k0

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Return √a and 1."""
        xp = _array.namespace(a)
        return (xp.ones_like(a) if derivative else xp.sqrt(a)), None

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (1 − α) times the weights of max(z, 0), except (1 + α)/2 for j = 1."""
        constant = (1 - self.negative_slope) * _hermite_series(n, 0, 1 / math.sqrt(2 * math.pi))
        constant[1:2] = (1 + self.negative_slope) / 2
        return constant, np.zeros(n)


@dataclass(frozen=True, repr=False)
class ReLU(PiecewiseLinear):
    """σ(z) = max(z, 0).

    Examples
    --------
    >>> ReLU() == ReLU(normalize=True)
    True
    """


@dataclass(frozen=True, repr=False)
class LeakyReLU(PiecewiseLinear):
    """σ(z) = max(z, 0) + ``slope`` · min(z, 0).

    Examples
    --------
    >>> LeakyReLU(0.1)
    LeakyReLU(0.1)
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        set_field(self, "slope", check_real(self.slope, "slope", "LeakyReLU"))

    @property
    def negative_slope(self) -> float:
        """Return `slope`."""
        return float(self.slope)


@dataclass(frozen=True, repr=False)
class Abs(PiecewiseLinear):
    """σ(z) = abs(z).

    Examples
    --------
    >>> Abs()
    Abs()
    """

    @property
    def negative_slope(self) -> float:
        """Return −1."""
        return -1.0


@dataclass(frozen=True, repr=False)
class Erf(Activation):
    """σ(z) = erf(z).

    Examples
    --------
    >>> Erf(normalize=False)
    Erf(normalize=False)
    """

    growth: ClassVar[tuple[int, int] | None] = (1, 0)
    slope_growth: ClassVar[int] = -1

    def sigma(self, u: Array) -> Array:
        """Compute erf(u)."""
        return _erf(u)

    def sigma_prime(self, u: Array) -> Array:
        """Compute 2/√π e^{−u²}."""
        return (2 / math.sqrt(math.pi)) * _array.namespace(u).exp(-u * u)

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Compute (2/π) arcsin(2c/√((1+2a)(1+2b))) (Williams 1997) and (4/π)/√((1+2a)(1+2b) − 4c²), its derivative.

        The arcsine is computed as an arctangent, which is more accurate near ±π/2.
        """
        pair = _ShiftedPair(2 * c, 2 * a, 2 * b)
        forward = (2 / math.pi) * _array.namespace(c).atan2(pair.cosine, pair.sine)
        return forward, (4 / math.pi) * pair.x_inverse * pair.y_inverse / pair.sine

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Return 1 and √(2a/(1 + 2a))."""
        xp = _array.namespace(a)
        root = xp.sqrt(1 + 2 * a)
        return (math.sqrt(2) / root if derivative else xp.ones_like(a)), xp.sqrt(2 * a) / root

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights, which are nonzero for odd degrees only."""
        return _hermite_series(n, 1, math.sqrt(2 / math.pi)), np.zeros(n)


@dataclass(frozen=True, repr=False)
class GELU(Activation):
    """σ(z) = z Φ(z), where Φ is the standard normal distribution function.

    Examples
    --------
    >>> GELU()
    GELU()
    """

    growth: ClassVar[tuple[int, int] | None] = (1, 1)

    def sigma(self, u: Array) -> Array:
        """Compute u Φ(u)."""
        return u * _normal(u)

    def sigma_prime(self, u: Array) -> Array:
        """Compute Φ(u) + u Φ′(u)."""
        return _normal(u) + u * _array.namespace(u).exp(-0.5 * u * u) / math.sqrt(2 * math.pi)

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Compute the moments by Stein's lemma and Price's theorem.

        With D = ab − c², Δ = (1+a)(1+b) − c² = 1 + a + b + D and u = 1/(1+a) + 1/(1+b)::

            E[σσ]   = c P + (D + c²u)/(2π√Δ),    P = 1/4 + arctan(c/√Δ)/2π
            E[σ′σ′] = P + c (2u + v/Δ)/(2π√Δ),    v = (ab − (1+a+b)²)/((1+a)(1+b)) − D u

        v equals c²u − 1 − a − b, written so that large variances do not cancel. The code works relative to (1+a)(1+b).
        """
        pair = _ShiftedPair(c, a, b)
        x, y = pair.x_inverse**2, pair.y_inverse**2
        u, t, sine = x + y, pair.cosine / (2 * math.pi), pair.sine
        orthant = 0.25 + _array.namespace(c).atan2(pair.cosine, sine) / (2 * math.pi)
        scale = 1 / (2 * math.pi * pair.x_inverse * pair.y_inverse)
        forward = c * orthant + scale * (pair.area + pair.cosine * pair.cosine * u) / sine
        v = pair.product * pair.product * (x * y) - pair.shift * pair.shift - pair.area * u
        return forward, orthant + t * (2 * u + v / (sine * sine)) / sine

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Return 1/√(1 + a) and √(a/(1 + a))."""
        xp = _array.namespace(a)
        root = xp.sqrt(1 + a)
        return (1 / (1 + a) if derivative else 1 / root), xp.sqrt(a) / root

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return A_j = j B_j and B_j, except A_1 = B_1 = 1/2."""
        linear = _hermite_series(n, 0, 1 / math.sqrt(2 * math.pi))
        constant = np.arange(n) * linear
        constant[1:2] = linear[1:2] = 0.5
        return constant, linear


@dataclass(frozen=True, repr=False)
class Sin(Activation):
    """σ(z) = sin(z).

    Examples
    --------
    >>> Sin()
    Sin()
    """

    growth: ClassVar[tuple[int, int] | None] = (1, 0)

    def sigma(self, u: Array) -> Array:
        """Compute sin(u)."""
        return _array.namespace(u).sin(u)

    def sigma_prime(self, u: Array) -> Array:
        """Compute cos(u)."""
        return _array.namespace(u).cos(u)

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Compute e^{−(a+b)/2} sinh c and e^{−(a+b)/2} cosh c without overflow or cancellation."""
        xp = _array.namespace(c)
        size = xp.abs(c)
        top = xp.exp(xp.clip(size - (a + b) / 2, None, 0)) / 2
        return xp.sign(c) * top * -xp.expm1(-2 * size), top * (1 + xp.exp(-2 * size))

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Return e^{−a/2} and √a, also for the derivative."""
        xp = _array.namespace(a)
        return xp.exp(-a / 2), xp.sqrt(a)

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ±1/√(j!) for odd degrees, else 0."""
        j = np.arange(n)
        return np.array([0, 1, 0, -1])[j % 4] / np.sqrt(np.cumprod(np.maximum(j, 1.0))), np.zeros(n)


@dataclass(frozen=True, repr=False)
class Gaussian(Activation):
    """σ(z) = √2 cos(z + φ), with a phase φ per unit, uniform on [0, 2π): random Fourier features.

    For Gaussian (u, v) with variances a, b and covariance c::

        E[σ(u)σ(v)] = E[σ′(u)σ′(v)] = e^{c − (a + b)/2}

    So Dense followed by Gaussian gives the Gaussian kernel exp(−‖x − y‖²/2). Unit variances (see :class:`Normalize`)
    with correlation t give e^{t − 1}, as in [1]_. Since E[σ(u)²] = 1 for every variance, `normalize` has no effect, and
    zeros do not stay zeros.

    Notes
    -----
    The fixed phase −π/4, σ(z) = sin z + cos z, has the same kernels.

    References
    ----------
    .. [1] Shankar et al., "Neural Kernels Without Tangents", ICML 2020, arXiv:2003.02237.

    Examples
    --------
    >>> from ntkit.kernels import network_kernel
    >>> from ntkit.networks import Dense, Sequential
    >>> network_kernel(Sequential(Dense(), Gaussian()), [[0.0, 1.0]], [[2.0, 1.0]], kind="nngp")  # e^{−2}
    array([[0.13533528]])
    """

    growth: ClassVar[tuple[int, int] | None] = (0, 0)

    def sigma(self, u: Array) -> Array:
        """Compute √2 cos(u − π/4)."""
        xp = _array.namespace(u)
        return xp.sin(u) + xp.cos(u)

    def sigma_prime(self, u: Array) -> Array:
        """Compute −√2 sin(u − π/4)."""
        xp = _array.namespace(u)
        return xp.cos(u) - xp.sin(u)

    def moments(self, c: Array, a: Array, b: Array) -> tuple[Array, Array]:
        """Return e^{c − (a+b)/2} twice. Rounding may violate c ≤ (a+b)/2, so the exponent is clipped at 0."""
        xp = _array.namespace(c)
        value = xp.exp(xp.clip(c - (a + b) / 2, None, 0))
        return value, value

    def hermite_factors(self, a: Array, *, derivative: bool) -> tuple[Array, Array | None]:
        """Return e^{−a/2} and √a, also for the derivative."""
        xp = _array.namespace(a)
        return xp.exp(-a / 2), xp.sqrt(a)

    def hermite_weights(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return 1/√(j!)."""
        return 1 / np.sqrt(np.cumprod(np.maximum(np.arange(n), 1.0))), np.zeros(n)


def arc_cosine_pair(x: Array, negative: Array) -> tuple[Array, Array, Array]:
    """Compute κ₀(t), κ₁(t) and 1 − κ₁(t) for t = 1 − x, or t = x − 1 where `negative`, with 0 ≤ x ≤ 1.

    With θ = arccos|t| and q = (sin θ − θ cos θ)/π:  κ₁ = max(t, 0) + q,  κ₀ = 1 − θ/π for t ≥ 0, else θ/π.
    """
    xp = _array.namespace(x)
    theta, sine = angle(x)
    q = (sine - theta * (1 - x)) / math.pi
    k0 = xp.where(negative, theta / math.pi, 1 - theta / math.pi)
    k1 = xp.where(negative, q, 1 - x + q)
    return k0, k1, xp.where(negative, 1 - q, x - q)


def angle(x: Array) -> tuple[Array, Array]:
    """Compute θ = arccos(1 − x) and sin θ for 0 ≤ x ≤ 1."""
    xp = _array.namespace(x)
    return 2 * xp.atan2(_array.sqrt(x), xp.sqrt(2 - x)), _array.sqrt(x * (2 - x))


class _ShiftedPair:
    """Cosine and sine of a pair with variances 1 + a and 1 + b and covariance c, where |c| ≤ √(ab).

    cosine = c/√((1+a)(1+b)) and sine² = shift + area, with shift = (1+a+b)/((1+a)(1+b)) and
    area = (ab − c²)/((1+a)(1+b)) ≥ 0. Nothing overflows. Where |c| = √(ab) up to rounding, the area is 0.
    """

    def __init__(self, c: Array, a: Array, b: Array):
        xp = _array.namespace(c, a, b)
        self.x_inverse, self.y_inverse = 1 / xp.sqrt(1 + a), 1 / xp.sqrt(1 + b)
        self.cosine = c * self.x_inverse * self.y_inverse
        self.product = (xp.sqrt(a) * self.x_inverse) * (xp.sqrt(b) * self.y_inverse)
        self.shift = self.y_inverse**2 + self.x_inverse**2 * (b * self.y_inverse**2)
        size = xp.abs(self.cosine)
        gap = self.product - size
        gap = xp.where(gap > SAME * self.product, gap, xp.zeros_like(gap))
        self.area = gap * (self.product + size)
        self.sine = xp.sqrt(self.shift + self.area)


def _hermite_series(n: int, first: int, value: float) -> np.ndarray:
    """Compute c_{j+2} = −c_j (j − 1 + first)/√((j+1)(j+2)) from c_first = `value`.

    These are the Hermite coefficients of max(z, 0) for `first` = 0 (even degrees) and of erf for `first` = 1.
    """
    c = np.zeros(n)
    c[first : first + 1] = value
    for j in range(first, n - 2, 2):
        c[j + 2] = -c[j] * (j - 1 + first) / math.sqrt((j + 1) * (j + 2))
    return c


def _erf(u: Array) -> Array:
    """Compute erf, which the array API standard lacks."""
    if _array.is_torch(u):
        return u.erf()
    from scipy.special import erf

    return erf(u)


def _normal(u: Array) -> Array:
    """Compute the standard normal distribution function Φ."""
    return 0.5 * (1 + _erf(u * 0.5**0.5))
