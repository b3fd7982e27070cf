"""Hermite coefficients by integration, and the rule by which a truncated series keeps its sum, term by term."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import mpmath
import numpy as np

from ntkit import networks as nn


def function(layer: nn.Activation) -> tuple[Callable, Callable]:
    """σ and σ′ without normalization; for Gaussian with the phase −π/4, which has the kernels of a random one."""
    from scipy.special import erf, ndtr

    if isinstance(layer, nn.ReLU | nn.LeakyReLU | nn.Abs):
        slope = {nn.ReLU: 0.0, nn.Abs: -1.0}.get(type(layer), getattr(layer, "slope", None))
        return lambda z: np.where(z > 0, z, slope * z), lambda z: np.where(z > 0, 1.0, slope)
    return {
        nn.Erf: (erf, lambda z: 2 / math.sqrt(math.pi) * np.exp(-z * z)),
        nn.GELU: (lambda z: z * ndtr(z), lambda z: ndtr(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
        nn.Sin: (np.sin, np.cos),
        nn.Gaussian: (lambda z: np.sin(z) + np.cos(z), lambda z: np.cos(z) - np.sin(z)),
    }[type(layer)]


@cache
def second_moment(layer: nn.Activation) -> float:
    """E[σ(z)²] for z ~ N(0, 1), without normalization."""
    sigma, _ = function(layer)
    return float(hermite_by_quadrature(lambda z: sigma(z) ** 2, 1.0, 0)[0])


def hermite_by_quadrature(sigma: Callable, variance: float, degree: int) -> np.ndarray:
    """E[σ(√a z) He_j(z)]/√(j!) by Gauss–Legendre quadrature on short intervals, none across the kink at 0."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(-16, 16, 321)
    z = (edges[:-1, None] + (nodes + 1) / 2 * np.diff(edges)[:, None]).ravel()
    weights = np.tile(weights, 320) * (edges[1] - edges[0]) / 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    values = weights * sigma(math.sqrt(variance) * z)
    last, polynomial = np.zeros_like(z), np.ones_like(z)
    coefficients = []
    for j in range(degree + 1):
        coefficients.append(float(np.sum(values * polynomial)))
        last, polynomial = polynomial, (z * polynomial - math.sqrt(j) * last) / math.sqrt(j + 1)
    return np.array(coefficients)


def hermite_in_many_digits(layer: nn.Activation, variance: float, degree: int) -> float:
    """One coefficient by integration in 60 digits, so that small ones are right too; without normalization."""
    sigma = {
        nn.ReLU: lambda x: max(x, 0),
        nn.Abs: abs,
        nn.Erf: mpmath.erf,
        nn.GELU: lambda x: x * mpmath.ncdf(x),
        nn.Sin: mpmath.sin,
        nn.Gaussian: lambda x: mpmath.sin(x) + mpmath.cos(x),
    }[type(layer)]
    with mpmath.workdps(60):
        root = mpmath.sqrt(mpmath.mpf(variance))

        def integrand(z):
            he = mpmath.mpf(2) ** (-mpmath.mpf(degree) / 2) * mpmath.hermite(degree, z / mpmath.sqrt(2))
            return sigma(root * z) * he * mpmath.npdf(z)

        value = mpmath.quad(integrand, [-40, -20, -10, -5, 0, 5, 10, 20, 40])
        return float(value / mpmath.sqrt(mpmath.factorial(degree)))


def truncated(squares: Sequence[float], degrees: Sequence[int]) -> np.ndarray:
    """Return the coefficients of `degrees` if each h_i² goes to the next kept degree of its parity, or the last."""
    weights = dict.fromkeys(degrees, 0.0)
    for i, square in enumerate(squares):
        same = [j for j in degrees if j % 2 == i % 2]
        above = [j for j in same if j >= i]
        weights[above[0] if above else max(same, default=max(degrees))] += square
    return np.sqrt([weights[j] for j in degrees])
