from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erf, ndtr
from tests.conftest import as_numpy
from tests.reference.kernels import dual_by_quadrature

from ntkit import networks as nn
from ntkit.kernels.activations import dual, gain, mix, second_moment

SMOOTH = {
    nn.Erf: (erf, lambda z: 2 / math.sqrt(math.pi) * np.exp(-z * z)),
    nn.GELU: (lambda z: z * ndtr(z), lambda z: ndtr(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
    nn.Sin: (np.sin, np.cos),
    nn.Gaussian: (lambda z: np.sin(z) + np.cos(z), lambda z: np.cos(z) - np.sin(z)),
}
KINKED = {
    nn.ReLU(): lambda z: np.maximum(z, 0),
    nn.LeakyReLU(0.1): lambda z: np.where(z > 0, z, 0.1 * z),
    nn.LeakyReLU(-0.5): lambda z: np.where(z > 0, z, -0.5 * z),
    nn.Abs(): np.abs,
}
CASES = [(1.0, 1.0, 0.5), (2.0, 0.5, -0.9), (0.3, 0.7, 0.1), (1.5, 1.5, 1.4999), (0.2, 3.0, 0.0)]


@pytest.mark.parametrize("kind", SMOOTH)
@pytest.mark.parametrize(("a", "b", "c"), CASES)
def test_smooth_duals_match_quadrature(kind, a, b, c, to_library):
    sigma, derivative = SMOOTH[kind]
    expected = dual_by_quadrature(sigma, derivative, a, b, c)
    arrays = [to_library(np.array([v])) for v in (c, a, b)]
    plain = [float(v[0]) for v in dual(kind(normalize=False), *arrays)]
    np.testing.assert_allclose(plain, expected, rtol=1e-8, atol=1e-14)
    moment = dual_by_quadrature(sigma, derivative, 1.0, 1.0, 1.0)[0]
    assert second_moment(kind()) == pytest.approx(moment, rel=1e-10)
    normalized = [float(v[0]) for v in dual(kind(), *arrays)]
    np.testing.assert_allclose(normalized, np.array(expected) / moment, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("layer", KINKED, ids=repr)
@pytest.mark.parametrize(("a", "b", "c"), CASES)
def test_kinked_duals_match_integration_over_the_angle(layer, a, b, c):
    # Homogeneous of degree one: E[σ(u)σ(v)] = √(ab) · 2 · mean over the angle of σ(cos φ) σ(cos(φ − θ)).
    sigma = KINKED[layer]
    theta = math.acos(c / math.sqrt(a * b))
    phi = (np.arange(200_000) + 0.5) * (2 * math.pi / 200_000)
    moment = np.mean(2 * sigma(np.cos(phi)) ** 2)
    step = 1e-6
    expected = math.sqrt(a * b) * np.mean(2 * sigma(np.cos(phi)) * sigma(np.cos(phi - theta))) / moment
    forward, derivative = (float(v) for v in dual(layer, *map(np.array, (c, a, b))))
    assert forward == pytest.approx(expected, rel=1e-7, abs=1e-9)
    # Price's theorem: the derivative dual is the derivative of the dual in the covariance.
    up, down = (float(dual(layer, *map(np.array, (c + s, a, b)))[0]) for s in (step, -step))
    assert derivative == pytest.approx((up - down) / (2 * step), rel=1e-4)


@pytest.mark.parametrize(
    "layer", [nn.ReLU, nn.Abs, nn.Erf, nn.GELU, nn.Sin, nn.Gaussian, lambda **k: nn.LeakyReLU(0.3, **k)]
)
def test_normalization(layer):
    one = np.ones(())
    assert float(dual(layer(), one, one, one)[0]) == pytest.approx(1)
    assert float(dual(layer(normalize=False), one, one, one)[0]) == pytest.approx(second_moment(layer()))


def test_the_gaussian_dual_is_one_on_the_diagonal_and_takes_zeros(to_library):
    a = to_library(np.array([0.0, 1e-8, 1.0, 1e3]))
    for layer in (nn.Gaussian(), nn.Gaussian(normalize=False)):
        for values in dual(layer, a, a, a):
            assert (as_numpy(values) == 1).all()
        for values in dual(layer, 0 * a, 0 * a, a):
            np.testing.assert_allclose(as_numpy(values), np.exp(-as_numpy(a) / 2), rtol=1e-15)


@pytest.mark.parametrize("phase", [0.0, 1.0, 4.0])
def test_a_phase_of_every_unit_is_needed(phase):
    """The mean over phases is the dual; one phase alone, but for ±π/4, is something else."""
    a, b, c = 1.5, 0.7, 0.6
    exact = float(dual(nn.Gaussian(), *map(np.array, (c, a, b)))[0])

    def by_phase(phi):
        sigma = lambda z: math.sqrt(2) * np.cos(z + phi)  # noqa: E731
        return dual_by_quadrature(sigma, sigma, a, b, c)[0]

    assert np.mean([by_phase(phi) for phi in np.arange(8) * math.pi / 4 + phase]) == pytest.approx(exact, rel=1e-12)
    assert by_phase(phase) != pytest.approx(exact, rel=1e-3)
    assert by_phase(-math.pi / 4) == pytest.approx(exact, rel=1e-12)


def test_homogeneous_constants():
    assert [mix(nn.ReLU()), mix(nn.Abs()), mix(nn.LeakyReLU(1.0))] == [0.0, -1.0, 1.0]
    assert gain(nn.ReLU(normalize=False)) == 0.5
    assert gain(nn.Abs(normalize=False)) == 1.0
    assert gain(nn.LeakyReLU(0.1)) == 1.0


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Abs(), nn.LeakyReLU(0.2), nn.Erf(), nn.GELU(), nn.Sin()])
def test_zero_variance_gives_zero(layer, to_library):
    zero, one = to_library(np.zeros(2)), to_library(np.array([0.0, 1.0]))
    forward, derivative = (as_numpy(v) for v in dual(layer, zero, zero, one))
    assert (forward == 0).all()
    assert np.isfinite(derivative).all()


def test_sin_does_not_overflow_at_large_variance():
    big = np.array(1e4)
    forward, derivative = dual(nn.Sin(normalize=False), big, big, big)
    assert float(forward) == pytest.approx(0.5)
    assert float(derivative) == pytest.approx(0.5)
