from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from ntkit.kernels import KernelSpec, arc_cosine, nonnegative_polynomial, relu_ntk
from ntkit.kernels.fit import fitted_degree, fitted_polynomial, taylor_polynomial

LARGEST_DEGREE = 128
FINE = np.cos(np.linspace(0, np.pi, 20_001))  # ten times as fine as the fit, and with the ends


def nngp(t: np.ndarray, depth: int) -> np.ndarray:
    for _ in range(depth):
        t = arc_cosine(t, 1)
    return t


def spec(kind: str, depth: int = 1) -> KernelSpec:
    if kind in ("step", "relu"):
        return KernelSpec.of("arc_cosine", order=int(kind == "relu"))
    return KernelSpec.of(kind, depth=depth)


FUNCTIONS = {
    "step": lambda t: arc_cosine(t, 0),
    "relu": lambda t: arc_cosine(t, 1),
    "ntk 1": lambda t: relu_ntk(t, 1),
    "ntk 3": lambda t: relu_ntk(t, 3),
    "nngp 2": lambda t: nngp(t, 2),
    "exponential": np.exp,
    "polynomial": lambda t: 0.5 + 0.25 * t**2 + 2 * t**3,
    "large": lambda t: 1e6 * np.exp(3 * (t - 1)),
    "small": lambda t: 1e-6 * (1 + t) ** 2,
    "not positive definite": lambda t: 1 + t - t**2 / 2,
}


def value(a: np.ndarray, t: np.ndarray) -> np.ndarray:
    return sum(c * t**j for j, c in enumerate(a))


def check_fit(a: np.ndarray, error: float, function) -> None:
    """Non-negative, exact at 1, and `error` is the largest deviation to 1e-3 of κ(1)."""
    at_one = float(function(np.ones(1))[0])
    assert (np.asarray(a) >= 0).all()
    np.testing.assert_allclose(np.sum(a), at_one, rtol=1e-12)
    deviation = np.abs(value(a, FINE) - function(FINE)).max() / at_one
    assert deviation >= error - 1e-12
    assert deviation <= error + 1e-3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_fit_is_nonnegative_exact_at_one_and_reports_its_error(name):
    for degree in (0, 1, 2, 5, 16, 40):
        a, error = nonnegative_polynomial(FUNCTIONS[name], degree)
        assert a.shape == (degree + 1,)
        check_fit(a, error, FUNCTIONS[name])


def test_a_polynomial_is_found_again():
    for degree in (3, 4, 12):
        exact = np.zeros(degree + 1)
        exact[[0, 2, 3]] = 0.5, 0.25, 2
        a, error = nonnegative_polynomial(FUNCTIONS["polynomial"], degree)
        np.testing.assert_allclose(a, exact, atol=1e-8, err_msg=f"degree {degree}")
        assert error < 1e-10, degree


def test_degree_0_is_the_constant():
    a, error = nonnegative_polynomial(FUNCTIONS["relu"], 0)
    np.testing.assert_allclose(a, [1])
    np.testing.assert_allclose(error, 1, atol=1e-3)


def test_a_multiple_has_a_multiple_of_the_coefficients():
    a, error = nonnegative_polynomial(FUNCTIONS["ntk 1"], 10)
    for factor in (1e-8, 3.0, 1e8):
        other, same = nonnegative_polynomial(lambda t, factor=factor: factor * relu_ntk(t, 1), 10)
        np.testing.assert_allclose(other, factor * a, rtol=1e-8, atol=1e-10 * factor)
        np.testing.assert_allclose(same, error, rtol=1e-8)


def test_no_other_polynomial_with_this_sum_is_closer():
    """Moving a little weight between any two degrees makes the mean square larger."""
    t = np.cos((np.arange(4000) + 0.5) * np.pi / 4000)
    a, _ = nonnegative_polynomial(FUNCTIONS["ntk 1"], 8)
    best = np.mean((value(a, t) - relu_ntk(t, 1)) ** 2)
    for i in range(9):
        for j in range(9):
            moved = a.copy()
            step = min(1e-3, a[i])
            moved[i] -= step
            moved[j] += step
            assert np.mean((value(moved, t) - relu_ntk(t, 1)) ** 2) >= best * (1 - 1e-6)


@pytest.mark.parametrize(("kind", "depth"), [("step", 1), ("relu", 1), ("ntk", 1), ("ntk", 3), ("nngp", 2)])
def test_the_error_falls_with_the_degree(kind, depth):
    """The mean square can only fall; the largest deviation may rise a little from one degree to the next."""
    errors = [fitted_polynomial(spec(kind, depth), degree)[1] for degree in range(25)]
    t = np.cos((np.arange(2000) + 0.5) * np.pi / 2000)
    exact = FUNCTIONS[kind](t) if kind in FUNCTIONS else (relu_ntk(t, depth) if kind == "ntk" else nngp(t, depth))
    squares = [np.mean((value(fitted_polynomial(spec(kind, depth), d)[0], t) - exact) ** 2) for d in range(25)]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(squares))
    assert all(later <= 1.05 * earlier for earlier, later in pairwise(errors))
    assert errors[1] > errors[4] > errors[8] > errors[16] > errors[24]


def test_named_fits_equal_fits_of_their_functions():
    for kind, depth, name in (
        ("step", 1, "step"), ("relu", 1, "relu"), ("ntk", 1, "ntk 1"), ("ntk", 3, "ntk 3"), ("nngp", 2, "nngp 2")
    ):  # fmt: skip
        for degree in (0, 1, 7, 20):
            a, error = fitted_polynomial(spec(kind, depth), degree)
            expected, same = nonnegative_polynomial(FUNCTIONS[name], degree)
            assert isinstance(a, tuple)
            # Compiled code and array code round in different ways.
            np.testing.assert_allclose(a, expected, rtol=1e-12, atol=1e-15, err_msg=f"{name}, degree {degree}")
            assert error == pytest.approx(same, rel=1e-12), (name, degree)


@pytest.mark.parametrize(("kind", "depth"), [("step", 1), ("relu", 1), ("ntk", 1), ("ntk", 3), ("nngp", 3)])
def test_the_degree_is_the_smallest_for_its_tolerance(kind, depth):
    for tolerance in (0.9, 0.5, 0.2, 0.1131, 0.1, 0.06, 0.0435, 0.03, 0.02, 0.01):
        smallest = next(
            (d for d in range(LARGEST_DEGREE) if fitted_polynomial(spec(kind, depth), d)[1] <= tolerance), None
        )
        expected = LARGEST_DEGREE if smallest is None else smallest
        assert fitted_degree(spec(kind, depth), tolerance) == expected, tolerance


def test_a_constant_is_enough_for_a_large_tolerance():
    for kind in ("step", "relu", "ntk", "nngp"):
        assert fitted_polynomial(spec(kind, 1), 0)[1] < 1.1
        assert fitted_degree(spec(kind, 1), 1.1) == 0


def test_no_degree_is_enough_for_no_tolerance():
    assert fitted_degree(spec("relu", 1), 0.0) == LARGEST_DEGREE
    assert fitted_degree(spec("step", 1), 0) == LARGEST_DEGREE


# Taylor


def taylor(order: int, degree: int) -> list[float]:
    """Derivatives at 0 of the closed forms."""
    with mpmath.workdps(40):
        kappa = {
            0: lambda t: 1 - mpmath.acos(t) / mpmath.pi,
            1: lambda t: (mpmath.sqrt(1 - t * t) + t * (mpmath.pi - mpmath.acos(t))) / mpmath.pi,
        }[order]
        return [float(c) for c in mpmath.taylor(kappa, 0, degree)]


@pytest.mark.parametrize("kind", ["step", "relu"])
def test_taylor_coefficients_below_the_top_and_the_rest_at_the_top(kind):
    for degree in (0, 1, 2, 3, 8, 9):
        a = taylor_polynomial(spec(kind), degree)
        assert len(a) == degree + 1
        assert min(a) >= 0
        np.testing.assert_allclose(math.fsum(a), 1, rtol=1e-15, err_msg=f"degree {degree}")
        exact = taylor(int(kind == "relu"), degree)
        np.testing.assert_allclose(a[:-1], exact[:-1], atol=1e-14, err_msg=f"degree {degree}")
        np.testing.assert_allclose(a[-1], 1 - math.fsum(exact[:-1]), atol=1e-14, err_msg=f"degree {degree}")


@pytest.mark.parametrize("kind", ["step", "relu"])
def test_high_taylor_polynomials_are_near_their_functions(kind):
    a = taylor_polynomial(spec(kind), 200)
    assert np.abs(value(a, FINE) - FUNCTIONS[kind](FINE)).max() < (0.1 if kind == "step" else 0.001)


def test_a_fit_is_better_than_taylor():
    for kind in ("step", "relu"):
        for degree in (4, 8, 16):
            error = np.abs(value(taylor_polynomial(spec(kind), degree), FINE) - FUNCTIONS[kind](FINE)).max()
            assert fitted_polynomial(spec(kind, 1), degree)[1] < error


# Errors


@pytest.mark.parametrize(("degree", "error"), [(-1, ValueError), (2.0, TypeError), ("2", TypeError), (None, TypeError)])
def test_degrees(degree, error):
    with pytest.raises(
        error, match=rf"'degree' parameter of nonnegative_polynomial must be an int ≥ 0. Got {degree!r}"
    ):
        nonnegative_polynomial(np.exp, degree)


@pytest.mark.parametrize("function", [None, 3.0, "exp"])
def test_functions_must_be_callable(function):
    with pytest.raises(
        TypeError, match=rf"'function' parameter of nonnegative_polynomial must be a callable.*Got {function!r}"
    ):
        nonnegative_polynomial(function, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t - 1,
        lambda t: -np.exp(t),
        lambda t: np.where(t < 0, np.nan, 1.0),
        lambda t: np.where(t > 0.5, np.inf, 1.0),
    ],
)
def test_functions_must_be_finite_and_positive_at_one(function):
    rule = r"'function' parameter of nonnegative_polynomial must be finite on \[−1, 1\] and positive at 1. Got"
    with pytest.raises(ValueError, match=rule):
        nonnegative_polynomial(function, 3)


def test_functions_must_return_arrays_of_the_same_shape():
    for function in (lambda _: 1.0, lambda t: t[:-1], lambda t: t[:, None]):
        with pytest.raises(ValueError, match=r"function must return an array of shape \(2001,\) here. Got"):
            nonnegative_polynomial(function, 3)
    with pytest.raises(TypeError, match=r"function must return real numbers. Got"):
        nonnegative_polynomial(lambda t: 1j * t, 3)


@pytest.mark.parametrize(("tolerance", "error"), [(-0.1, ValueError), (np.nan, ValueError), ("1", TypeError)])
def test_tolerances(tolerance, error):
    with pytest.raises(
        error, match=rf"'tol(erance)?' parameter of fitted_degree must be a finite real number ≥ 0. Got {tolerance!r}"
    ):
        fitted_degree(spec("ntk", 1), tolerance)


def test_taylor_degrees():
    with pytest.raises(ValueError, match=r"'degree' parameter of .* must be an int ≥ 0. Got -1"):
        taylor_polynomial(spec("relu"), -1)


# Planted faults: the check of a fit must reject them.


@pytest.mark.parametrize("fault", ["sum", "sign", "error too small", "error too large", "no degree 2"])
def test_the_check_rejects_faults(fault):
    a, error = nonnegative_polynomial(FUNCTIONS["ntk 1"], 8)
    if fault == "sum":
        a = 1.01 * a
    elif fault == "sign":
        a[[1, 3]] += a[3] + 0.1, -a[3] - 0.1
    elif fault == "no degree 2":
        a[[1, 2]] = a[1] + a[2], 0
    else:
        error += 0.01 if fault == "error too large" else -0.01
    with pytest.raises(AssertionError):
        check_fit(a, error, FUNCTIONS["ntk 1"])
