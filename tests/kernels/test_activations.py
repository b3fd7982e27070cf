"""Dual activations against integrals, on every kind of input."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.special import erf, ndtr
from tests.kernels.duals import WAYS, dual, dual_of_rows
from tests.reference.kernels import dual_by_quadrature

from ntkit import networks as nn
from ntkit.kernels.expansions import dual_at_one

SMOOTH = {
    nn.Erf: (erf, lambda z: 2 / math.sqrt(math.pi) * np.exp(-z * z)),
    nn.GELU: (lambda z: z * ndtr(z), lambda z: ndtr(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
    nn.Sin: (np.sin, np.cos),
    nn.Gaussian: (lambda z: np.sin(z) + np.cos(z), lambda z: np.cos(z) - np.sin(z)),
}
SLOPES = {
    nn.ReLU: 0.0,
    nn.Abs: -1.0,
    **{lambda s=s, **k: nn.LeakyReLU(s, **k): s for s in (0.1, -0.5, 1.0, 3.0)},
}
CASES = [(1.0, 1.0, 0.5), (2.0, 0.5, -0.9), (0.3, 0.7, 0.1), (1.5, 1.5, 1.4999), (0.2, 3.0, 1e-3)]
"""Variances a, b and the covariance c."""


@pytest.mark.parametrize("kind", SMOOTH)
def test_smooth_duals_match_quadrature(kind):
    functions = SMOOTH[kind]
    moment = dual_by_quadrature(*functions, 1.0, 1.0, 1.0)[0]
    assert float(dual_at_one(kind(normalize=False), 1.0)) == pytest.approx(moment, rel=1e-10)
    for a, b, c in CASES:
        expected = np.array(dual_by_quadrature(*functions, a, b, c))
        for way in WAYS:
            for layer, scale in ((kind(normalize=False), 1.0), (kind(), moment)):
                values = np.concatenate(dual(layer, c / math.sqrt(a * b), a, b, way))
                message = f"{layer!r} on {way} for a, b, c = {a, b, c}"
                np.testing.assert_allclose(values, expected / scale, rtol=1e-8, atol=1e-14, err_msg=message)


@pytest.mark.parametrize("make", SLOPES, ids=[f"slope {s}" for s in SLOPES.values()])
def test_piecewise_linear_duals_match_integration_over_the_angle(make):
    # Homogeneous of degree one: E[σ(u)σ(v)] = √(ab) · 2 · mean over the angle of σ(cos φ) σ(cos(φ − θ)).
    slope = SLOPES[make]
    phi = (np.arange(200_000) + 0.5) * (2 * math.pi / 200_000)
    u = np.cos(phi)

    def sigma(z):
        return np.where(z > 0, z, slope * z)

    moment = (1 + slope**2) / 2
    assert float(dual_at_one(make(normalize=False), 1.0)) == pytest.approx(moment, rel=1e-14)
    for a, b, c in CASES:
        t = c / math.sqrt(a * b)
        v = np.cos(phi - math.acos(t))
        forward = math.sqrt(a * b) * np.mean(2 * sigma(u) * sigma(v))
        step = 1e-6 / math.sqrt(a * b)
        for way in WAYS:
            for layer, scale in ((make(normalize=False), 1.0), (make(), moment)):
                message = f"{layer!r} on {way} for a, b, c = {a, b, c}"
                values = dual(layer, [t, t + step, t - step], a, b, way)
                assert values[0][0] == pytest.approx(forward / scale, rel=1e-7, abs=1e-9), message
                # Price's theorem: the derivative dual is the derivative of the dual in the covariance.
                quotient = (values[0][1] - values[0][2]) / 2e-6
                assert values[1][0] == pytest.approx(quotient, rel=1e-4), message


def test_equal_and_opposite_rows_are_exact():
    """Σ(x, ±x) and Θ(x, ±x) of piecewise linear activations, without the √eps of κ₀ near t = ±1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3))
    squares = np.sum(X * X, axis=1)
    for make, slope in SLOPES.items():
        mix = 2 * slope / (1 + slope**2)
        for way in WAYS:
            for sign in (1, -1):
                forward, tangent = (np.diagonal(K) for K in dual_of_rows(make(), X, sign * X, way))
                message = f"slope {slope} on {way}, sign {sign}"
                expected = squares if sign == 1 else -mix * squares
                np.testing.assert_allclose(forward, expected, rtol=1e-14, atol=1e-14, err_msg=message)
                np.testing.assert_allclose(tangent, expected, rtol=1e-14, atol=1e-14, err_msg=message)


def test_the_gaussian_dual_is_one_on_the_diagonal_and_takes_zeros():
    X = np.sqrt([[0.0], [1e-8], [1.0], [1e3]])
    for way in WAYS:
        for layer in (nn.Gaussian(), nn.Gaussian(normalize=False)):
            forward, tangent = dual_of_rows(layer, X, X, way)
            assert (np.diagonal(forward) == 1).all(), way
            np.testing.assert_array_equal(np.diagonal(tangent), X[:, 0] ** 2, err_msg=way)
            np.testing.assert_allclose(forward[0], np.exp(-(X[:, 0] ** 2) / 2), rtol=1e-15, err_msg=way)


def test_a_phase_of_every_unit_is_needed():
    """The mean over phases is the dual; a single phase, other than ±π/4, is not."""
    a, b, c = 1.5, 0.7, 0.6
    exact = float(dual(nn.Gaussian(), c / math.sqrt(a * b), a, b)[0][0])

    def by_phase(phi):
        sigma = lambda z: math.sqrt(2) * np.cos(z + phi)  # noqa: E731
        return dual_by_quadrature(sigma, sigma, a, b, c)[0]

    for phase in (0.0, 1.0, 4.0):
        mean = np.mean([by_phase(phi) for phi in np.arange(8) * math.pi / 4 + phase])
        assert mean == pytest.approx(exact, rel=1e-12), phase
        assert by_phase(phase) != pytest.approx(exact, rel=1e-3), phase
    assert by_phase(-math.pi / 4) == pytest.approx(exact, rel=1e-12)


def test_zero_variance_gives_zero():
    X = np.array([[0.0, 0.0], [1.0, 0.0]])
    for layer in (nn.ReLU(), nn.Abs(), nn.LeakyReLU(0.2), nn.Erf(), nn.GELU(), nn.Sin()):
        for way in WAYS:
            for values in dual_of_rows(layer, X, X[:1], way):
                assert (values == 0).all(), f"{layer!r} on {way}"


def test_sin_does_not_overflow_at_large_variance():
    for values in dual(nn.Sin(normalize=False), 1.0, 1e4):
        assert values[0] == pytest.approx(0.5)


def exact_dual(kind: type, a: float, b: float, c: float) -> tuple[float, float]:
    """The textbook formulas in 80 digits."""
    with mpmath.workdps(80):
        a, b, c = map(mpmath.mpf, (a, b, c))
        if kind is nn.Sin:
            damp = mpmath.exp(-(a + b) / 2)
            return float(damp * mpmath.sinh(c)), float(damp * mpmath.cosh(c))
        if kind is nn.Erf:
            product = (1 + 2 * a) * (1 + 2 * b)
            forward = 2 / mpmath.pi * mpmath.asin(2 * c / mpmath.sqrt(product))
            return float(forward), float(4 / mpmath.pi / mpmath.sqrt(product - 4 * c * c))
        product = (1 + a) * (1 + b)
        delta = product - c * c
        bracket = a * b + c * c * (1 - a / (1 + a) - b / (1 + b))
        orthant = mpmath.mpf(1) / 4 + mpmath.asin(c / mpmath.sqrt(product)) / (2 * mpmath.pi)
        norm = 1 / (2 * mpmath.pi * mpmath.sqrt(delta))
        rest = 1 - a / (1 + a) - b / (1 + b)
        derivative = orthant + norm * (c + 2 * c * rest + bracket * c / delta)
        return float(c * orthant + bracket * norm), float(derivative)


@pytest.mark.parametrize("kind", [nn.Erf, nn.GELU, nn.Sin])
def test_smooth_duals_keep_their_digits_at_any_variance(kind):
    # All numbers are sums of few powers of two, so that variances and covariances have no rounding.
    x = np.full(4, 0.5)
    others = {1.0: x, 0.5: x * [1, 1, 1, -1], -0.5: x * [1, -1, -1, -1], 0.0: x * [1, 1, -1, -1], -1.0: -x}
    others[2.0**-20] = np.array([2.0**-20 + 0.5, 2.0**-20 - 0.5, 0.5, -0.5])
    for root in (2.0**-26, 2.0**-13, 2.0**-3, 1.0, 2.0**5, 2.0**13):
        for ratio in (1.0, 2.0, 0.5):
            for cosine, y in others.items():
                X, Y = root * x[None, :], root * ratio * y[None, :]
                a, b, c = (float(U[0] @ V[0]) for U, V in ((X, X), (Y, Y), (X, Y)))
                expected = exact_dual(kind, a, b, c)
                forward, tangent = (K.item() for K in dual_of_rows(kind(normalize=False), X, Y))
                message = f"a, b, c = {a, b, c}"
                # Relative to the largest value of the dual at these variances: nearly opposite inputs cancel.
                np.testing.assert_allclose(
                    forward, expected[0], rtol=1e-10, atol=1e-12 * math.sqrt(a * b), err_msg=message
                )
                if cosine:
                    np.testing.assert_allclose(tangent / c, expected[1], rtol=1e-10, atol=1e-12, err_msg=message)
