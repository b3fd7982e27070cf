"""Hermite coefficients of activations against integrals, and the series made of them against the exact duals."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.conftest import as_numpy
from tests.kernels.duals import dual
from tests.reference import expansions as reference
from tests.tiers import gpu, sampled

from ntkit import networks as nn
from ntkit.kernels import arc_cosine, nonnegative_polynomial
from ntkit.kernels.expansions import (
    derivative_coefficients,
    derivative_dual_at_one,
    dual_at_one,
    dual_degree,
    dual_polynomial,
    hermite_coefficients,
    truncated_coefficients,
)

LARGEST_DEGREE = 128
KINKED = [nn.ReLU(), nn.LeakyReLU(0.1), nn.LeakyReLU(-0.5), nn.LeakyReLU(1.0), nn.LeakyReLU(3.0), nn.Abs()]
SMOOTH = [nn.Erf(), nn.GELU(), nn.Sin(), nn.Gaussian()]
ALL = [*KINKED, *SMOOTH, nn.ReLU(normalize=False), nn.Erf(normalize=False), nn.GELU(normalize=False)]
VARIANCES = np.array([1e-6, 1e-3, 0.3, 1.0, 4.0, 30.0, 100.0])
COSINES = np.cos(np.linspace(0, np.pi, 401))


def value(coefficients, t):
    """Σ_j c_j t^j of coefficients along the last axis, for all t."""
    return np.polynomial.polynomial.polyval(t, np.moveaxis(np.asarray(coefficients), -1, 0))


def scale_of(layer):
    """√E[σ(z)²] if the activation is divided by it, otherwise 1."""
    return math.sqrt(reference.second_moment(layer)) if layer.normalize else 1.0


@pytest.mark.parametrize("layer", ALL, ids=repr)
def test_coefficients_are_the_integrals(layer):
    """To 1e-12 of the root of E[σ²], which bounds all of them; the integration is good to about 1e-14."""
    coefficients = hermite_coefficients(layer, VARIANCES, 32), derivative_coefficients(layer, VARIANCES, 32)
    for result, function, at_one in zip(
        coefficients, reference.function(layer), (dual_at_one, derivative_dual_at_one), strict=True
    ):
        expected = np.array([reference.hermite_by_quadrature(function, a, 32) / scale_of(layer) for a in VARIANCES])
        if isinstance(layer, nn.Gaussian):
            expected = np.abs(expected)
        assert result.shape == (len(VARIANCES), 33)
        assert (np.abs(result - expected) <= 1e-12 * np.sqrt(at_one(layer, VARIANCES))[:, None]).all()
        assert np.abs(expected).max() > 0.1  # of something


@pytest.mark.parametrize("layer", sampled([nn.ReLU(), nn.Abs(), *SMOOTH], 3), ids=repr)
def test_small_coefficients_keep_their_digits(layer):
    for variance, degree in ((1e-6, 2), (1e-6, 13), (0.5, 6), (100.0, 31)):
        expected = reference.hermite_in_many_digits(layer, variance, degree) / scale_of(layer)
        result = hermite_coefficients(layer, np.array(variance), degree)[degree]
        if isinstance(layer, nn.Gaussian):
            expected = abs(expected)
        assert result == pytest.approx(expected, rel=1e-12, abs=1e-55), f"variance {variance}, degree {degree}"


@pytest.mark.parametrize("layer", ALL, ids=repr)
def test_the_series_are_the_duals(layer):
    a, b = 2.0, 0.4
    t = 0.9 * COSINES
    for coefficients, exact in zip((hermite_coefficients, derivative_coefficients), dual(layer, t, a, b), strict=True):
        h_a, h_b = coefficients(layer, np.array([a, b]), LARGEST_DEGREE)
        assert (h_a * h_b >= 0).all()
        # The truncated part is at most 0.9^129 of the value at t = 1.
        np.testing.assert_allclose(value(h_a * h_b, t), exact, atol=2e-6)


def test_derivatives_equal_prices_formula():
    for layer in ALL:
        h, g = hermite_coefficients(layer, VARIANCES, 33), derivative_coefficients(layer, VARIANCES, 32)
        expected = np.sqrt(np.arange(1, 34)) * h[:, 1:] / np.sqrt(VARIANCES)[:, None]
        np.testing.assert_allclose(g, expected, rtol=1e-12, atol=1e-300, err_msg=repr(layer))


def test_at_variance_zero_they_are_the_limit():
    for layer in ALL:
        for coefficients in (hermite_coefficients, derivative_coefficients):
            zero, tiny = coefficients(layer, np.array([0.0, 1e-40]), 8)
            assert np.isfinite(zero).all(), layer
            np.testing.assert_allclose(zero, tiny, atol=1e-15, err_msg=repr(layer))
        at_zero = 1.0 if isinstance(layer, nn.Gaussian) else 0.0
        assert float(dual_at_one(layer, np.array(0.0))) == at_zero, layer
        limit = np.sum(derivative_coefficients(layer, np.array(0.0), LARGEST_DEGREE) ** 2)
        # A kink leaves a tail of the order 1/√degree.
        assert float(derivative_dual_at_one(layer, np.array(0.0))) == pytest.approx(limit, abs=0.06 * limit), layer


def test_at_one_the_squares_sum_up():
    a = VARIANCES[:5]
    for layer in SMOOTH:
        for coefficients, at_one in (
            (hermite_coefficients, dual_at_one),
            (derivative_coefficients, derivative_dual_at_one),
        ):
            squares = np.sum(coefficients(layer, a, LARGEST_DEGREE) ** 2, axis=-1)
            np.testing.assert_allclose(at_one(layer, a), squares, rtol=1e-6, err_msg=repr(layer))


def test_at_one_of_homogeneous_activations():
    for layer, factor in ((nn.ReLU(), 1), (nn.Abs(normalize=False), 1), (nn.ReLU(normalize=False), 0.5)):
        np.testing.assert_array_equal(dual_at_one(layer, VARIANCES), factor * VARIANCES, err_msg=repr(layer))
        np.testing.assert_array_equal(derivative_dual_at_one(layer, VARIANCES), np.full(7, factor), err_msg=repr(layer))


CALLS = [
    lambda a: hermite_coefficients(nn.GELU(), a, 6),
    lambda a: derivative_coefficients(nn.Erf(), a, 6),
    lambda a: truncated_coefficients(nn.Sin(), a, [1, 2, 3, 5], derivative=True),
    lambda a: truncated_coefficients(nn.ReLU(), a, [0, 1, 2]),
    lambda a: dual_at_one(nn.Gaussian(), a),
    lambda a: derivative_dual_at_one(nn.LeakyReLU(0.2), a),
]


def test_any_library_shape_and_dtype(to_library):
    a = np.random.default_rng(0).uniform(0, 3, (2, 3, 1, 4))
    a[0, 0] = 0
    for i, call in enumerate(CALLS):
        message = f"call {i}"
        expected = call(a)
        result = call(to_library(a))
        assert type(result) is type(to_library(a)), message
        np.testing.assert_allclose(as_numpy(result), expected, rtol=1e-14, atol=1e-15, err_msg=message)
        single = call(to_library(a.astype(np.float32)))
        assert as_numpy(single).dtype == np.float32, message
        np.testing.assert_allclose(as_numpy(single), expected, rtol=1e-6, atol=1e-6, err_msg=message)
        flat = call(a.ravel()).reshape(expected.shape)
        np.testing.assert_allclose(flat, expected, rtol=1e-14, atol=1e-15, err_msg=message)
        assert call(np.zeros((0, 3))).shape[:2] == (0, 3), message
        whole = call(np.array([0, 1, 200], dtype=np.uint8))
        assert whole.dtype == np.float64, message
        np.testing.assert_allclose(whole, call(np.array([0.0, 1.0, 200.0])), err_msg=message)
        np.testing.assert_allclose(call(2.0), call(np.array([2.0]))[0], err_msg=message)


def test_tensors_keep_no_graph():
    a = torch.ones(3, requires_grad=True)
    assert not hermite_coefficients(nn.ReLU(), a, 2).requires_grad


@gpu
def test_cuda_gives_the_same():
    for layer in ALL:
        for call in (
            lambda a, layer=layer: hermite_coefficients(layer, a, 16),
            lambda a, layer=layer: derivative_coefficients(layer, a, 16),
            # Squares, as the last coefficient is the root of a difference.
            lambda a, layer=layer: truncated_coefficients(layer, a, range(9)) ** 2,
            lambda a, layer=layer: derivative_dual_at_one(layer, a),
        ):
            result = call(torch.from_numpy(VARIANCES).cuda())
            assert result.is_cuda, layer
            np.testing.assert_allclose(result.cpu(), call(VARIANCES), rtol=1e-12, atol=1e-15, err_msg=repr(layer))


def test_large_variances_and_degrees_do_not_overflow():
    a = np.array([1e-300, 1e-20, 1e3, 1e6, 1e200])
    for layer in ALL:
        for coefficients in (hermite_coefficients, derivative_coefficients):
            assert np.isfinite(coefficients(layer, a, LARGEST_DEGREE)).all(), layer
    # Half of the weight of a Poisson law of mean 100 lies at or below it.
    h = hermite_coefficients(nn.Gaussian(), torch.tensor([100.0]), LARGEST_DEGREE)
    assert float(torch.sum(h[0, :101] ** 2)) == pytest.approx(0.527, abs=1e-3)


# --- truncation ---


DEGREES = [(0, 1), (0, 1, 2), (0, 1, 2, 3, 4, 5, 6), (1, 3, 5), (0, 2, 4), (0, 1, 2, 4, 7, 8, 16), (3,), (2, 5)]


@pytest.mark.parametrize("layer", SMOOTH, ids=repr)
@pytest.mark.parametrize("derivative", [False, True])
def test_the_truncated_weight_goes_to_the_right_degree(layer, derivative):
    a = np.array([0.0, 0.02, 0.5, 1.5])
    coefficients = derivative_coefficients if derivative else hermite_coefficients
    squares = coefficients(layer, a, LARGEST_DEGREE) ** 2
    for degrees in DEGREES:
        if isinstance(layer, nn.Erf | nn.Sin) and not any(j % 2 != derivative for j in degrees):
            with pytest.raises(ValueError, match=f"at least one {'even' if derivative else 'odd'} degree"):
                truncated_coefficients(layer, a, degrees, derivative=derivative)
            continue
        expected = np.array([reference.truncated(row, degrees) for row in squares])
        result = truncated_coefficients(layer, a, degrees, derivative=derivative)
        np.testing.assert_allclose(result**2, expected**2, atol=2e-14, err_msg=f"degrees {degrees}")


@pytest.mark.parametrize("layer", ALL, ids=repr)
@pytest.mark.parametrize("derivative", [False, True])
def test_truncated_series_are_exact_at_both_ends(layer, derivative):
    a = np.append(VARIANCES, 0.0)
    at_one = (derivative_dual_at_one if derivative else dual_at_one)(layer, a)
    at_minus_one = np.array([dual(layer, -1.0, v)[int(derivative)][0] for v in VARIANCES])
    for degrees in ((0, 1), (0, 1, 2, 3), (0, 1, 2, 4, 8), range(17), (1, 2), (1, 6)):
        message = f"degrees {degrees}"
        h = truncated_coefficients(layer, a, degrees, derivative=derivative)
        assert h.shape == (8, len(degrees)), message
        assert (h >= 0).all(), message
        error = 1e-13 * at_one.max()
        np.testing.assert_allclose(np.sum(h**2, axis=-1), at_one, rtol=1e-13, atol=error, err_msg=message)
        signs = (-1.0) ** np.array(degrees)
        np.testing.assert_allclose(np.sum(signs * h**2, axis=-1)[:-1], at_minus_one, atol=error, err_msg=message)


def test_a_parity_without_degrees_gives_its_weight_to_the_highest_degree():
    """The sum then stays exact at t = 1."""
    for layer in ALL:
        for degrees in ((0, 2, 4), (1, 3), (3,), (4,)):
            for derivative in (False, True):
                at_one = (derivative_dual_at_one if derivative else dual_at_one)(layer, VARIANCES)
                try:
                    h = truncated_coefficients(layer, VARIANCES, degrees, derivative=derivative)
                except ValueError:
                    assert isinstance(layer, nn.Erf | nn.Sin | nn.Abs) or layer == nn.LeakyReLU(1.0), layer
                    continue
                np.testing.assert_allclose(
                    np.sum(h**2, axis=-1), at_one, rtol=1e-13, err_msg=f"{layer!r}, {degrees}, {derivative}"
                )


def test_degrees_without_weight_get_none():
    h = truncated_coefficients(nn.ReLU(), VARIANCES, range(8))
    assert (h[:, [3, 5, 7]] == 0).all()
    assert (truncated_coefficients(nn.Erf(), VARIANCES, range(8))[:, ::2] == 0).all()
    assert (truncated_coefficients(nn.Sin(), VARIANCES, range(8), derivative=True)[:, 1::2] == 0).all()
    assert (truncated_coefficients(nn.LeakyReLU(1.0), VARIANCES, range(8))[:, [0, *range(2, 8)]] == 0).all()


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Abs(), *SMOOTH], ids=repr)
def test_no_other_place_for_the_tail_is_better(layer):
    """Each part of the tail moved from the highest degree of its parity to a lower one makes the error larger."""
    a, n = np.array(1.0), 6
    for derivative, exact in enumerate(dual(layer, COSINES, 1.0)):
        squares = truncated_coefficients(layer, a, range(n + 1), derivative=bool(derivative)) ** 2
        plain = (derivative_coefficients if derivative else hermite_coefficients)(layer, a, n) ** 2
        error = np.abs(value(squares, COSINES) - exact).max()
        for top in (n - 1, n):
            tail = squares[top] - plain[top]
            for j in range(n - 1) if tail > 1e-9 else ():
                other = squares.copy()
                other[top] -= tail
                other[j] += tail
                message = f"derivative {derivative}, from {top} to {j}"
                assert np.abs(value(other, COSINES) - exact).max() > error, message


@pytest.mark.parametrize("layer", [*KINKED, *SMOOTH], ids=repr)
def test_errors_shrink_with_the_degree_and_are_below_the_weight_moved(layer):
    for a in (0.3, 5.0):
        for derivative, exact in enumerate(dual(layer, COSINES, a)):
            coefficients = derivative_coefficients if derivative else hermite_coefficients
            at_one = exact[0]
            errors = []
            for n in (1, 2, 3, 6, 11):
                squares = truncated_coefficients(layer, a, range(n + 1), derivative=bool(derivative)) ** 2
                errors.append(np.abs(value(squares, COSINES) - exact).max())
                moved = at_one - np.sum(coefficients(layer, a, n) ** 2)
                assert errors[-1] <= moved + 1e-14, f"variance {a}, derivative {derivative}, degree {n}"
            assert all(later <= earlier + 1e-14 for earlier, later in pairwise(errors)), (a, derivative)


# --- fits and degrees ---


def test_polynomials_of_relu_are_the_known_ones():
    for degree in (0, 1, 4, 9, 16):
        for order, derivative in ((1, False), (0, True)):
            expected, error = nonnegative_polynomial(lambda t, order=order: arc_cosine(t, order), degree)
            for layer in (nn.ReLU(), nn.ReLU(normalize=False)):
                known = dual_polynomial(layer, degree, derivative=derivative)
                assert known == (tuple(expected.tolist()), error), (layer, degree, derivative)


@pytest.mark.parametrize("layer", KINKED, ids=repr)
def test_polynomials_are_nonnegative_exact_at_one_and_know_their_error(layer):
    for derivative, exact in enumerate(dual(layer, COSINES, 1.0)):
        for degree in (0, 1, 2, 5, 8, 33):
            message = f"degree {degree}, derivative {derivative}"
            coefficients, error = dual_polynomial(layer, degree, derivative=bool(derivative))
            assert len(coefficients) == degree + 1, message
            assert min(coefficients) >= 0, message
            assert sum(coefficients) == pytest.approx(1, abs=1e-12), message
            largest = np.abs(value(coefficients, COSINES) - exact).max()
            assert largest == pytest.approx(error, abs=2e-3), message
        # κ₀ has a square root at t = ±1, so its error decreases as 1/√degree; the error of κ₁ as degree^{−3/2}.
        assert error < (0.05 if derivative else 5e-4)


def test_polynomials_of_the_absolute_value_have_its_parity():
    for degree in (1, 5, 6, 33):
        forward, _ = dual_polynomial(nn.Abs(), degree)
        derivative, _ = dual_polynomial(nn.Abs(), degree, derivative=True)
        assert not any(forward[1::2])
        assert not any(derivative[::2])
    assert dual_polynomial(nn.LeakyReLU(-1.0), 5) == dual_polynomial(nn.Abs(), 5)
    assert dual_polynomial(nn.Abs(), 0, derivative=True)[0] == (1.0,)


def test_polynomials_are_better_than_truncated_series():
    for layer, derivative in ((nn.ReLU(), True), (nn.Abs(), True), (nn.Abs(), False)):
        _, error = dual_polynomial(layer, 12, derivative=derivative)
        squares = truncated_coefficients(layer, 1.0, range(13), derivative=derivative) ** 2
        exact = dual(layer, COSINES, 1.0)[int(derivative)]
        assert error < 0.9 * np.abs(value(squares, COSINES) - exact).max()


@pytest.mark.parametrize("layer", [nn.ReLU(normalize=False), nn.Abs(), nn.LeakyReLU(1.0), *SMOOTH], ids=repr)
def test_the_degree_is_the_smallest_that_does(layer):
    tolerance, variances = 0.02, (0.5, 3.0)
    duals = [dual(layer, COSINES, a) for a in variances]
    for derivative in (False, True):
        degree = dual_degree(layer, tolerance, variance=np.array(variances), derivative=derivative)
        errors = []
        for n in (degree - 1, degree):
            if n < 0 or (n == 0 and not hermite_coefficients(layer, 1.0, 0).any() and not derivative):
                errors.append(math.inf)
                continue
            parts = []
            for a, exact in zip(variances, duals, strict=True):
                squares = truncated_coefficients(layer, a, range(n + 1), derivative=derivative) ** 2
                exact = exact[int(derivative)]
                parts.append(np.abs(value(squares, COSINES) - exact).max() / exact[0])
            errors.append(max(parts))
        assert errors[1] <= tolerance < errors[0], f"derivative {derivative}"


def test_degrees_of_hard_and_easy_cases():
    assert dual_degree(nn.ReLU(), 1e-9, derivative=True) == LARGEST_DEGREE
    assert dual_degree(nn.LeakyReLU(1.0), 1e-9) == 1
    assert dual_degree(nn.LeakyReLU(1.0), 1e-9, derivative=True) == 0
    assert dual_degree(nn.Sin(), 1e-6, variance=0.0) == 1
    assert dual_degree(nn.Gaussian(), 1e-6, variance=np.zeros(2)) == 0
    assert dual_degree(nn.ReLU(), 0.01, variance=[0.0, 7.0]) == dual_degree(nn.ReLU(), 0.01)
    assert dual_degree(nn.Erf(), 0.01, variance=torch.tensor([1.0])) == dual_degree(nn.Erf(), 0.01)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hermite_coefficients(nn.Dense(), 1.0, 3), TypeError, "'activation' parameter of hermite_coefficients"),
        (lambda: dual_at_one(nn.ReLU, 1.0), TypeError, r"an activation.*Write ReLU\(\), not ReLU"),
        (lambda: hermite_coefficients(nn.ReLU(), 1.0, -1), ValueError, "'degree'.*an int from 0 to 128. Got -1"),
        (lambda: hermite_coefficients(nn.ReLU(), 1.0, 129), ValueError, "from 0 to 128. Got 129"),
        (lambda: derivative_coefficients(nn.ReLU(), 1.0, 2.0), TypeError, "'degree' parameter of derivative_coeff"),
        (lambda: hermite_coefficients(nn.Erf(), [1.0, -1.0], 2), ValueError, "'variance'.*finite and ≥ 0.*Clip"),
        (lambda: derivative_dual_at_one(nn.Erf(), [np.nan]), ValueError, "'variance' parameter of derivative_dual"),
        (lambda: dual_at_one(nn.Erf(), math.inf), ValueError, "finite and ≥ 0. Got inf"),
        (lambda: dual_at_one(nn.Erf(), None), TypeError, "array of real numbers"),
        (lambda: dual_at_one(nn.Erf(), [1j]), TypeError, "array of real numbers"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, 3), TypeError, "'degrees'.*an increasing sequence of ints"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, "13"), TypeError, "'degrees'.*an increasing sequence of ints"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, []), ValueError, "an increasing sequence"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, [3, 1]), ValueError, r"an increasing sequence.*Got \[3, 1\]"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, [1, 1]), ValueError, "an increasing sequence"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, [1, 200]), ValueError, "'degrees'.*from 0 to 128. Got 200"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, [0, 2]), ValueError, r"odd degree, since the dual of Erf\(\)"),
        (lambda: truncated_coefficients(nn.Erf(), 1.0, [1], derivative=1), TypeError, "True or False"),
        (lambda: dual_polynomial(nn.Erf(), 3), TypeError, r"ReLU\(\), LeakyReLU\(\) or Abs\(\).*truncated_"),
        (lambda: dual_polynomial(nn.ReLU(), -1), ValueError, "'degree' parameter of dual_polynomial must be an int ≥"),
        (lambda: dual_polynomial(nn.ReLU(), 2, derivative=0), TypeError, "True or False"),
        (lambda: dual_degree(nn.ReLU(), -0.1), ValueError, "'tolerance' parameter of dual_degree"),
        (lambda: dual_degree("relu", 0.1), TypeError, "'activation' parameter of dual_degree"),
        (lambda: dual_degree(nn.Erf(), 0.1, variance=-1.0), ValueError, "finite and ≥ 0"),
        (lambda: dual_degree(nn.Erf(), 0.1, derivative="x"), TypeError, "True or False"),
    ],
)  # fmt: skip
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
