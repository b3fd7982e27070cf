"""Profiles of distance kernels: the Gaussian, exponential and Matérn functions φ(a) of a scaled distance a."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ntkit import _array
from ntkit._array import Array

UNDERFLOW = 770.0
"""For a ≥ this, e^{−a}(1 + a + a²/3), the largest profile that contains e^{−a}, is 0 in float64."""


@dataclass(frozen=True)
class Profile:
    """A function φ with φ(0) = 1, and its properties.

    Parameters
    ----------
    code : int
        Its code in compiled functions.
    value : callable
        a ↦ φ(a).
    slope : callable
        a ↦ −φ′(a)/a, with 0 instead of infinity at a = 0.
    margin : (float, float)
        (α, β) with |d log φ / d(a²)| ≤ 1/(α + βa): an error δ of a² causes a relative error of φ of at most δ/(α + βa).
    reach : float
        For larger a², φ is 0 in float64, or, for the Gaussian, so small (e^{−100}) that its digits do not matter.
    """

    code: int
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    margin: tuple[float, float]
    reach: float

    def of_square(self, square: Array) -> Array:
        """Return φ(√s) for squares s ≥ 0."""
        if self.code == GAUSSIAN.code:
            return _array.namespace(square).exp(square * -0.5)
        return self.value(_array.root(square))


def _gaussian(a: Array) -> Array:
    """Return exp(−a²/2)."""
    return _array.namespace(a).exp(a * a * -0.5)


def _exponential(a: Array) -> Array:
    """Return e^{−a}."""
    return _array.namespace(a).exp(-a)


def _exponential_slope(a: Array) -> Array:
    """Return e^{−a}/a, or 0 for a = 0."""
    xp = _array.namespace(a)
    apart = a > 0
    return xp.where(apart, xp.exp(-a) / xp.where(apart, a, xp.ones_like(a)), xp.zeros_like(a))


def _matern_3_2(a: Array) -> Array:
    """Return (1 + a) e^{−a}."""
    a = _array.namespace(a).clip(a, 0, UNDERFLOW)  # avoids 0 · ∞ = NaN
    return (1 + a) * _exponential(a)


def _matern_5_2(a: Array) -> Array:
    """Return (1 + a + a²/3) e^{−a}."""
    a = _array.namespace(a).clip(a, 0, UNDERFLOW)
    return (1 + a + a * a / 3) * _exponential(a)


GAUSSIAN = Profile(0, _gaussian, _gaussian, (2.0, 0.0), 200.0)
EXPONENTIAL = Profile(1, _exponential, _exponential_slope, (0.0, 2.0), UNDERFLOW**2)
MATERN_3_2 = Profile(2, _matern_3_2, _exponential, (2.0, 2.0), UNDERFLOW**2)
# |d log φ/d(a²)| = (1 + a)/(6 + 6a + 2a²) ≤ 1/(4 + 2a).
MATERN_5_2 = Profile(3, _matern_5_2, lambda a: _matern_3_2(a) / 3, (4.0, 2.0), UNDERFLOW**2)
ABSOLUTE = Profile(4, _exponential, _exponential_slope, (0.0, 2.0), UNDERFLOW**2)
"""The exponential of ℓ1 distances; compiled code receives these distances themselves, not their squares."""
