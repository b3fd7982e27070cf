from __future__ import annotations

import math

import array_api_strict
import mpmath
import numpy as np
import pytest
from tests.conftest import as_numpy

from ntkit import networks as nn
from ntkit.kernels import arc_cosine, arc_cosine_taylor, network_kernel, relu_ntk, relu_ntk_taylor

EDGES = [1 - 2.0**-k for k in (1, 4, 10, 20, 30, 40, 50, 53)]
COSINES = np.array(sorted({0.0, 1.0, -1.0, *EDGES, *(-t for t in EDGES), *np.linspace(-0.95, 0.95, 39)}))


def exact(t: float, order: int) -> mpmath.mpf:
    with mpmath.workdps(50):
        t = mpmath.mpf(t)
        theta = mpmath.acos(t)
        sine = mpmath.sqrt(1 - t * t)
        return {
            0: 1 - theta / mpmath.pi,
            1: (sine + t * (mpmath.pi - theta)) / mpmath.pi,
            2: (3 * sine * t + (mpmath.pi - theta) * (1 + 2 * t * t)) / (3 * mpmath.pi),
        }[order]


def exact_ntk(t: float, depth: int) -> float:
    with mpmath.workdps(50):
        sigma = theta = mpmath.mpf(t)
        for _ in range(depth):
            theta = theta * exact(sigma, 0) + exact(sigma, 1)
            sigma = exact(sigma, 1)
        return float(theta)


def test_arc_cosine_is_exact_to_rounding(to_library):
    for order in (0, 1, 2):
        values = as_numpy(arc_cosine(to_library(COSINES), order))
        expected = [float(exact(t, order)) for t in COSINES]
        np.testing.assert_allclose(values, expected, rtol=0, atol=4e-16, err_msg=f"order {order}")
        assert values[0] == 0, order
        assert values[-1] == 1, order


def test_relu_ntk_is_exact_to_rounding_near_one_and_deep(to_library):
    for depth in (1, 2, 5, 32):
        values = as_numpy(relu_ntk(to_library(COSINES), depth))
        expected = np.array([exact_ntk(t, depth) for t in COSINES])
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-15 * (depth + 1) ** 2, err_msg=f"depth {depth}")
        assert values[-1] == depth + 1, depth


def test_relu_ntk_float32_keeps_dtype_and_digits():
    t = np.linspace(-1, 1, 101, dtype=np.float32)
    values = relu_ntk(t, 3)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, relu_ntk(t.astype(float), 3), rtol=1e-6, atol=1e-7)


def test_scalars_and_shapes():
    assert isinstance(relu_ntk(0.3, 2), float)
    assert isinstance(arc_cosine(np.float64(0.3), 1), float)
    assert relu_ntk(np.zeros((2, 3, 4)), 2).shape == (2, 3, 4)
    assert relu_ntk(np.zeros((0,)), 2).shape == (0,)
    assert arc_cosine([0, 1], 1).tolist() == [1 / math.pi, 1.0]


def test_compiled_and_array_code_agree_on_mixed_activations():
    frozen = nn.Dense(trainable=False)
    net = nn.Sequential(
        nn.Dense(), nn.ReLU(), frozen, nn.LeakyReLU(0.15), nn.Dense(), nn.Dense(), nn.Abs(), nn.Dense(),
        nn.LeakyReLU(0.6), nn.Dense(),
    )  # fmt: skip
    t = np.concatenate([COSINES, np.random.default_rng(0).uniform(-1, 1, 2000)])
    X, Y = np.array([[1.0, 0.0]]), np.stack([t, np.sqrt((1 - t) * (1 + t))], axis=1)
    compiled = network_kernel(net, X, Y, kind="both")
    arrays = network_kernel(net, array_api_strict.asarray(X), array_api_strict.asarray(Y), kind="both")
    np.testing.assert_allclose(compiled.nngp, as_numpy(arrays.nngp), rtol=0, atol=2e-15)
    np.testing.assert_allclose(compiled.ntk, as_numpy(arrays.ntk), rtol=0, atol=2e-14)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: arc_cosine(0.5, 3), ValueError, "'order' parameter of arc_cosine must be an int from 0 to 2"),
        (lambda: arc_cosine([0.5, 1.1], 1), ValueError, r"must lie in \[-1, 1\].*1.1"),
        (lambda: arc_cosine([0.5, math.nan], 1), ValueError, r"must lie in \[-1, 1\].*nan"),
        (lambda: arc_cosine([1j], 1), TypeError, "must be real"),
        (lambda: relu_ntk(0.5, 0), ValueError, "'depth' parameter of relu_ntk must be an int ≥ 1. Got 0"),
        (lambda: relu_ntk_taylor(1, -1), ValueError, "'degree' parameter of relu_ntk_taylor"),
        (lambda: relu_ntk_taylor(1, 4, kind="x"), ValueError, "one of 'ntk', 'nngp'"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_cosines_a_rounding_beyond_one_are_clipped():
    assert relu_ntk(np.nextafter(1.0, 2.0), 3) == 4.0
    assert arc_cosine(np.float32(1) + np.finfo(np.float32).eps, 0) == 1.0


def test_taylor_coefficients_have_their_closed_form():
    i = np.arange(20)
    central = np.array([math.comb(2 * k, k) / 4.0**k for k in i])
    k0, k1 = np.zeros(42), np.zeros(42)
    k0[0] = 0.5
    k0[2 * i + 1] = central / (2 * i + 1) / math.pi
    k1[:2] = 1 / math.pi, 0.5
    k1[2 * i + 2] = central / (2 * i + 1) / (2 * i + 2) / math.pi
    np.testing.assert_allclose(arc_cosine_taylor(0, 39), k0[:40], rtol=1e-14, atol=0)
    np.testing.assert_allclose(arc_cosine_taylor(1, 40), k1[:41], rtol=1e-14, atol=0)
    # Definition: K^(1) = t κ₀ + κ₁.
    expected = np.concatenate([[0], k0[:40]]) + k1[:41]
    np.testing.assert_allclose(relu_ntk_taylor(1, 40), expected, rtol=1e-14)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_taylor_series_sums_to_the_function(kind):
    t = np.linspace(-0.7, 0.7, 15)
    nngp = t
    for depth in range(1, 7):
        nngp = arc_cosine(nngp, 1)
        expected = nngp if kind == "nngp" else relu_ntk(t, depth)
        coefficients = relu_ntk_taylor(depth, 120, kind=kind)
        assert (coefficients >= 0).all(), depth
        values = np.polynomial.polynomial.polyval(t, coefficients)
        np.testing.assert_allclose(values, expected, rtol=1e-13, err_msg=f"depth {depth}")
        assert coefficients.sum() < (depth + 1 if kind == "ntk" else 1), depth
        assert relu_ntk_taylor(depth, 0, kind=kind).shape == (1,), depth


def test_taylor_remainder_at_one_decreases_as_in_lemma_3():
    # κ₁: remainder O(degree^{-3/2}), κ₀: O(degree^{-1/2}); quadrupling the degree divides them by 8 and 2.
    for order, ratio in ((1, 8), (0, 2)):
        small, large = (1 - arc_cosine_taylor(order, d).sum() for d in (100, 400))
        assert small / large == pytest.approx(ratio, rel=0.05)
