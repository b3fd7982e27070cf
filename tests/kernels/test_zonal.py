from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import eval_chebyt, eval_gegenbauer, eval_legendre, gammaln, ive
from tests.conftest import as_numpy
from tests.reference import gegenbauer as reference

from ntkit.kernels import arc_cosine, dot_product, exponential, gaussian, nngp, ntk, relu_ntk, relu_ntk_taylor
from ntkit.kernels.zonal import (
    gegenbauer,
    gegenbauer_coefficients,
    gegenbauer_series,
    harmonic_dimension,
    radial_functions,
    taylor_to_gegenbauer,
)

GOLDEN = json.loads(Path(__file__).with_name("gegenbauer_golden.json").read_text())
COSINES = np.concatenate([np.linspace(-1, 1, 41), [1 - 1e-9, -1 + 1e-9]])
DIMENSIONS = [2, 3, 4, 9, 50]


def sphere(rng, n, d):
    w = rng.standard_normal((n, d))
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def angles(d, size=200):
    """Cosines and weights of ∫ f(cos θ) sin^{d−2} θ dθ over its value for f = 1."""
    nodes, weights = np.polynomial.legendre.leggauss(size)
    theta = np.pi / 2 * (1 + nodes)
    weights = weights * np.sin(theta) ** (d - 2)
    return np.cos(theta), weights / weights.sum()


# Polynomials.


def test_polynomials_equal_the_paper(to_library):
    for d in DIMENSIONS:
        values = as_numpy(gegenbauer(to_library(COSINES), 9, d))
        assert values.shape == (10, *COSINES.shape)
        expected = [[reference.polynomial(t, k, d) for t in COSINES] for k in range(10)]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-13, err_msg=f"d = {d}")


def test_polynomials_of_high_degree():
    """Of d = 2, 3 and 8, as SciPy has them; errors grow like ℓ² ε next to ±1."""
    for degree in (0, 1, 2, 3, 64, 256):
        of_eight = eval_gegenbauer(degree, 3.0, COSINES) / eval_gegenbauer(degree, 3.0, 1.0)
        for d, expected in ((2, eval_chebyt(degree, COSINES)), (3, eval_legendre(degree, COSINES)), (8, of_eight)):
            values = gegenbauer(COSINES, degree, d)[-1]
            error = 1e-15 * (1 + degree) ** 2
            np.testing.assert_allclose(values, expected, atol=error, err_msg=f"degree {degree}, d = {d}")


def test_polynomials_at_the_ends_and_in_high_dimensions():
    for d in (2, 3, 10, 1000, 10**6):
        values = gegenbauer([1.0, -1.0], 40, d)
        np.testing.assert_allclose(values[:, 0], 1, rtol=1e-12)
        np.testing.assert_allclose(values[:, 1], (-1.0) ** np.arange(41), rtol=1e-12)
        assert np.abs(gegenbauer(COSINES, 40, d)).max() <= 1 + 1e-12
    t = np.array([0.9, -0.4])
    np.testing.assert_allclose(gegenbauer(t, 5, 10**9), t ** np.arange(6)[:, None], atol=1e-7)


def test_polynomials_of_one_feature():
    np.testing.assert_array_equal(gegenbauer([1.0, -1.0], 1, 1), [[1, 1], [1, -1]])
    np.testing.assert_array_equal(gegenbauer([1.0, -1.0], 0, 1), [[1, 1]])


def test_polynomials_keep_shape_and_dtype():
    import torch

    assert gegenbauer(0.5, 3, 3).shape == (4,)
    assert gegenbauer(np.zeros((2, 3)), 4, 3).shape == (5, 2, 3)
    assert gegenbauer(np.zeros(3, np.float32), 4, 3).dtype == np.float32
    assert gegenbauer(torch.zeros(3, dtype=torch.float32), 4, 3).dtype == torch.float32
    t = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: gegenbauer(t, 5, 4), t)


def test_polynomials_are_orthogonal():
    """Eq. (3): E P_ℓ P_k = δ/α_ℓ under the law of ⟨x, w⟩."""
    for d in DIMENSIONS:
        t, weights = angles(d)
        P = gegenbauer(t, 12, d)
        alpha = np.array([float(harmonic_dimension(k, d)) for k in range(13)])
        products = (P * weights) @ P.T * np.sqrt(np.outer(alpha, alpha))
        np.testing.assert_allclose(products, np.eye(13), atol=1e-10, err_msg=f"d = {d}")


def test_polynomials_reproduce_themselves(rng):
    """Lemma 1 with 40 000 directions; false alarms: 6 standard errors of a mean of bounded values, 2e-9 each."""
    for d, degree in ((2, 1), (2, 7), (3, 2), (3, 5), (9, 3), (50, 2)):
        x, y = sphere(rng, 2, d)
        w = sphere(rng, 40_000, d)
        for first, second in ((x, y), (x, x), (x, -x)):
            for other in (degree, degree + 1):
                values = gegenbauer(w @ first, degree, d)[-1] * gegenbauer(w @ second, other, d)[-1]
                values *= harmonic_dimension(degree, d)
                expected = gegenbauer(float(first @ second), degree, d)[-1] if other == degree else 0.0
                assert abs(values.mean() - expected) < 6 * values.std() / 200, f"d = {d}, degrees {degree}, {other}"


def test_numbers_of_harmonics():
    for d in (2, 3, 4, 7):
        numbers = [harmonic_dimension(degree, d) for degree in range(7)]
        assert numbers == [reference.dimension(degree, d) for degree in range(7)], d
        assert all(isinstance(number, int) for number in numbers)


def test_numbers_of_harmonics_of_one_and_many_features():
    assert [harmonic_dimension(degree, 1) for degree in range(4)] == [1, 1, 0, 0]
    assert harmonic_dimension(np.int64(2), np.int64(784)) == 784 * 785 // 2 - 1
    assert harmonic_dimension(3, 10**6) == math.comb(10**6 + 2, 3) - 10**6  # no overflow


def test_harmonics_of_the_reference_add_up(rng):
    for d in (2, 3):
        for degree in range(4):
            for x, y in sphere(rng, 20, d).reshape(10, 2, d):
                product = reference.harmonics(x, degree) @ reference.harmonics(y, degree)
                assert product == pytest.approx(gegenbauer(float(x @ y), degree, d)[-1], abs=1e-14), (d, degree)


# Coefficients.


def named(kernel):
    """Arguments of gegenbauer_coefficients for a name of the golden file."""
    name, _, number = kernel.partition(" ")
    parameter = "power" if name == "arc_cosine" else "depth"
    return name, {parameter: int(number)} if number else {}


@pytest.mark.parametrize("kernel", [k for k in GOLDEN["coefficients"] if k not in ("arc_cosine 2", "exponential")])
def test_coefficients_of_relu_kernels(kernel):
    """Errors, over κ(1), of all degrees to 64 and dimensions from 2 to 1000."""
    name, parameters = named(kernel)
    for d, golden in GOLDEN["coefficients"][kernel].items():
        c = gegenbauer_coefficients(name, 64, int(d), **parameters)
        top = parameters["depth"] + 1 if name == "ntk" else 1
        np.testing.assert_allclose(c[GOLDEN["degrees"]], np.array(golden, float), rtol=0, atol=2e-10 * top)


def test_coefficients_of_small_degrees_have_all_digits():
    for kernel in ("ntk 1", "ntk 3", "nngp 1", "nngp 3", "arc_cosine 0", "arc_cosine 1"):
        name, parameters = named(kernel)
        for d in ("2", "3", "4", "8"):
            c = gegenbauer_coefficients(name, 3, int(d), **parameters)
            np.testing.assert_allclose(c, np.array(GOLDEN["coefficients"][kernel][d][:4], float), rtol=0, atol=3e-14)


def test_coefficients_of_arc_cosine_2():
    """Quadrature is accurate to √α_ℓ ε, or raises an error."""
    for d, golden in GOLDEN["coefficients"]["arc_cosine 2"].items():
        for degree, exact in zip(GOLDEN["degrees"], map(float, golden), strict=True):
            error = 1e-15 * max(harmonic_dimension(degree, int(d)), 1) ** 0.5
            if error > 1e-4:
                with pytest.raises(ValueError, match="lost in rounding"):
                    gegenbauer_coefficients("arc_cosine", degree, int(d), power=2)
            elif error < 1e-8:
                c = gegenbauer_coefficients("arc_cosine", degree, int(d), power=2)
                assert c[degree] == pytest.approx(exact, rel=0, abs=20 * error)


def test_coefficients_of_the_exponential_have_all_digits():
    """Also those of 1e-100; and are modified Bessel functions, c_ℓ = α_ℓ Γ(d/2) 2^{d/2−1} I_{ℓ+d/2−1}(1)."""
    degrees = np.array(GOLDEN["degrees"])
    for d, golden in GOLDEN["coefficients"]["exponential"].items():
        half = int(d) / 2
        c = gegenbauer_coefficients("exponential", 64, int(d))
        np.testing.assert_allclose(c[degrees], np.array(golden, float), rtol=1e-11)
        few = np.arange(20) if int(d) < 100 else np.arange(4)
        alpha = np.array([float(harmonic_dimension(k, int(d))) for k in few.tolist()])
        bessel = ive(few + half - 1, 1.0)
        used = bessel > 1e-280
        logs = np.log(bessel[used]) + 1 + gammaln(half) + (half - 1) * math.log(2)
        np.testing.assert_allclose(c[few][used], alpha[used] * np.exp(logs), rtol=1e-10)


def test_coefficients_of_the_gaussian_equal_those_on_the_unit_sphere():
    t = np.linspace(-1, 1, 9)
    c = gegenbauer_coefficients("gaussian", 20, 4)
    np.testing.assert_allclose(gegenbauer_series(c, t, 4), np.exp(t - 1), rtol=1e-13)


@pytest.mark.parametrize("kernel", ["ntk 1", "ntk 3", "nngp 2", "arc_cosine 0", "arc_cosine 2"])
def test_coefficients_are_the_integrals_of_the_paper(kernel):
    name, parameters = named(kernel)
    function = reference.relu_function(name, *parameters.values())
    for d in (2, 3, 4, 9):
        c = gegenbauer_coefficients(name, 6, d, **parameters)
        expected = [reference.coefficient(function, k, d) for k in range(7)]
        np.testing.assert_allclose(c, expected, rtol=0, atol=1e-10, err_msg=f"d = {d}")


def test_coefficients_of_one_feature():
    """κ(±1) = c₀ ± c₁."""
    for kernel, function in (("exponential", np.exp), (np.exp, np.exp), ("arc_cosine", lambda t: arc_cosine(t, 1))):
        c = gegenbauer_coefficients(kernel, 1, 1)
        np.testing.assert_allclose([c[0] + c[1], c[0] - c[1]], function(np.array([1.0, -1.0])), rtol=1e-14)
    np.testing.assert_allclose(gegenbauer_coefficients("ntk", 1, 1), [1.0, 1.0], atol=1e-15)  # κ(−1) = 0
    np.testing.assert_allclose(gegenbauer_coefficients([1.0, 2.0, 3.0, 4.0], 1, 1), [4.0, 6.0], rtol=1e-14)
    assert gegenbauer_coefficients("ntk", 0, 1).shape == (1,)


def test_coefficients_of_functions_equal_their_taylor_series():
    taylor = [0.5, 0.0, 1.0, 2.0, 0.0, 0.25]
    polynomial = np.polynomial.Polynomial(taylor)
    for d in (1, 2, 3, 17, 100):
        degree, message = 1 if d == 1 else 8, f"d = {d}"
        expected = taylor_to_gegenbauer(taylor, degree, d)
        error = 1e-14 * max(harmonic_dimension(degree, d), 1) ** 0.5
        by_integral = gegenbauer_coefficients(polynomial, degree, d)
        np.testing.assert_allclose(by_integral, expected, atol=error, err_msg=message)
        for coefficients in (taylor, np.array(taylor)):
            values = gegenbauer_coefficients(coefficients, degree, d)
            np.testing.assert_allclose(values, expected, rtol=1e-14, err_msg=message)
        t = np.array([1.0, -1.0]) if d == 1 else COSINES
        np.testing.assert_allclose(gegenbauer_series(expected, t, d), polynomial(t), atol=1e-13, err_msg=message)


@pytest.mark.parametrize(("kernel", "depth"), [("ntk", 1), ("ntk", 4), ("nngp", 3)])
def test_taylor_series_and_integrals_agree(kernel, depth):
    """In dimensions where both converge, for degrees with small α_ℓ ε²; the integrals are of a function."""

    def function(t):
        if kernel == "ntk":
            return relu_ntk(t, depth)
        for _ in range(depth):
            t = arc_cosine(t, 1)
        return t

    taylor = relu_ntk_taylor(depth, 8192, kind=kernel)
    for d, degree in ((30, 10), (100, 8), (1000, 4)):
        by_series = taylor_to_gegenbauer(taylor, 10, d)
        by_integral = gegenbauer_coefficients(function, degree, d)
        np.testing.assert_allclose(by_integral, by_series[: degree + 1], rtol=0, atol=1e-8, err_msg=f"d = {d}")
        both = gegenbauer_coefficients(kernel, 10, d, depth=depth)
        np.testing.assert_allclose(both, by_series, rtol=0, atol=2e-10 * (depth + 1), err_msg=f"d = {d}")


def test_long_taylor_series_count_whole():
    taylor = np.full(1000, 1e-3)
    np.testing.assert_allclose(gegenbauer_coefficients(taylor, 2, 3), taylor_to_gegenbauer(taylor, 2, 3), rtol=1e-13)
    # On two points: c₀, c₁ are sums of even and odd coefficients.
    np.testing.assert_allclose(gegenbauer_coefficients(taylor, 1, 1), [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize(("kernel", "degree", "d"), [("ntk", 600, 10), ("nngp", 513, 3), ("nngp", 100, 100_000)])
def test_coefficients_of_degrees_beyond_tables(kernel, degree, d):
    c = gegenbauer_coefficients(kernel, degree, d)
    top = 2 if kernel == "ntk" else 1
    assert c.min() > -1e-5
    assert 0.99 * top < c.sum() < top + 1e-4


def test_coefficients_beyond_all_digits_are_an_error():
    """Where Taylor series are too short for a degree they are not tried."""
    for degree in (511, 512, 513, 700):
        with pytest.raises(ValueError, match="lost in rounding"):
            gegenbauer_coefficients("ntk", degree, 20)


def test_functions_cannot_spoil_later_coefficients():
    expected = gegenbauer_coefficients(np.exp, 3, 11)

    def overwrites(t):
        t *= 0.5
        return np.exp(t)

    half = gegenbauer_coefficients(overwrites, 3, 11)
    np.testing.assert_array_equal(gegenbauer_coefficients(np.exp, 3, 11), expected)
    np.testing.assert_allclose(half, gegenbauer_coefficients(lambda t: np.exp(0.5 * t), 3, 11))


@given(
    coefficients=st.lists(st.floats(0, 4), min_size=1, max_size=9),
    d=st.integers(2, 40),
    t=st.floats(-1, 1),
)
def test_taylor_coefficients_make_the_same_function(coefficients, d, t):
    c = taylor_to_gegenbauer(coefficients, len(coefficients) - 1, d)
    value = sum(a * t**j for j, a in enumerate(coefficients))
    assert gegenbauer_series(c, t, d) == pytest.approx(value, abs=1e-12)
    assert (c >= 0).all()
    assert c.sum() == pytest.approx(sum(coefficients))


def test_powers_in_gegenbauer_polynomials():
    """b_{ℓ,i} by the integrals of t^{ℓ+2i} P_ℓ."""
    for d in (1, 2, 3, 9):
        for degree in range(2 if d == 1 else 5):
            for i in range(4):
                power = degree + 2 * i
                value = taylor_to_gegenbauer([0.0] * power + [1.0], degree, d)[degree]
                expected = 1.0 if d == 1 else reference.coefficient(lambda t, p=power: t**p, degree, d)
                assert value == pytest.approx(expected, rel=1e-10), f"d = {d}, degree {degree}, power {power}"


def test_taylor_coefficients_may_be_few_or_negative():
    np.testing.assert_allclose(taylor_to_gegenbauer([2.0], 4, 5), [2, 0, 0, 0, 0], rtol=1e-15)
    np.testing.assert_allclose(taylor_to_gegenbauer([0, 0, -3.0], 2, 3), [-1, 0, -2], atol=1e-14)
    np.testing.assert_allclose(taylor_to_gegenbauer([0, 0, 1, 0, 1.0], 2, 3), [1 / 3 + 1 / 5, 0, 2 / 3 + 4 / 7])


def test_series(to_library):
    import torch

    c = [0.5, -1.0, 2.0]
    expected = c[0] + c[1] * COSINES + c[2] * (3 * COSINES**2 - 1) / 2
    np.testing.assert_allclose(as_numpy(gegenbauer_series(c, to_library(COSINES), 3)), expected, atol=1e-14)
    assert float(gegenbauer_series([2.0], 0.3, 3)) == 2.0
    assert gegenbauer_series(c, torch.zeros((2, 3), dtype=torch.float32), 3).dtype == torch.float32
    assert gegenbauer_series(c, np.zeros((2, 3), np.float32), 3).dtype == np.float32


# Radial functions.

RADIAL = [
    ("gaussian", {"lengthscale": 0.8}), ("exponential", {"lengthscale": 1.3}), ("ntk", {"depth": 1}),
    ("ntk", {"depth": 3}), ("nngp", {"depth": 2}), ("arc_cosine", {"power": 0}), ("arc_cosine", {"power": 2}),
    ((0.5, 1.0, 0.0, 2.0, 0.25), {}), (np.exp, {"power": 3}),
]  # fmt: skip


def exact_kernel(kernel, X, lengthscale=1.0, depth=1, power=1):
    if kernel in ("gaussian", "exponential"):
        return (gaussian if kernel == "gaussian" else exponential)(X, lengthscale=lengthscale)
    if kernel in ("ntk", "nngp"):
        return (ntk if kernel == "ntk" else nngp)(X, depth=depth)
    if isinstance(kernel, tuple):
        return dot_product(X, function=kernel)
    norms = np.linalg.norm(X, axis=1)
    t = np.clip((X @ X.T) / np.outer(norms, norms), -1, 1)
    return np.outer(norms, norms) ** power * (arc_cosine(t, power) if kernel == "arc_cosine" else kernel(t))


@pytest.mark.parametrize(("kernel", "parameters"), RADIAL)
def test_radial_functions_equal_the_lemmas(kernel, parameters):
    """Lemmas 4, 15 and 16."""
    r = [0.3, 1.0, 2.5]
    for d in (2, 3, 9):
        expected = reference.table(kernel, r, 4, 3, d, **parameters)
        values = radial_functions(kernel, r, 4, 3, d, **parameters)
        assert values.shape == (3, 5, 3)
        np.testing.assert_allclose(values**2, expected**2, rtol=1e-9, atol=1e-9, err_msg=f"d = {d}")
        assert (values >= 0).all(), d


@pytest.mark.parametrize(("kernel", "parameters"), RADIAL)
def test_radial_functions_add_up_to_the_kernel(kernel, parameters, rng):
    for d in (1, 2, 3, 9, 50):
        check_sum(kernel, parameters, d, rng)


def check_sum(kernel, parameters, d, rng):
    """The weight of truncated degrees at any cosine is at most their weight at cosine 1."""
    X = sphere(rng, 6, d) * np.array([1.0, 0.2, 0.7, 1.0, 1.5, 0.4])[:, None]
    X[3] = 2 * X[0]
    X[4] = -X[1]
    norms = np.linalg.norm(X, axis=1)
    t = np.clip((X @ X.T) / np.outer(norms, norms), -1, 1)
    by_integral = kernel is np.exp or parameters.get("power") == 2
    degree = 1 if d == 1 else 8 if by_integral and d > 9 else 30
    h = radial_functions(kernel, norms, degree, 40, d, **parameters)
    K = exact_kernel(kernel, X, **parameters)
    total = np.einsum("ali,bli,lab->ab", h, h, gegenbauer(t, degree, d))
    rest = np.maximum(1 - (h**2).sum(axis=(1, 2)) / np.diag(K), 0)
    scale = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    assert (np.abs(total - K) / scale <= np.sqrt(np.outer(rest, rest)) + 1e-9).all(), f"d = {d}"
    if d == 1:
        assert rest.max() < 1e-9, f"d = {d}"
    elif kernel not in ("ntk", "nngp", "arc_cosine"):
        assert rest.max() < (1e-5 if kernel is np.exp and d > 9 else 1e-9), f"d = {d}"
    else:  # κ₀ has a kink at 1: c_ℓ falls slowly
        assert rest.max() < (0.3 if parameters in ({"depth": 3}, {"power": 0}) else 0.1), f"d = {d}"


def test_radial_functions_of_zero_tiny_and_huge_norms():
    r = np.array([0.0, 1e-300, 1e-15, 1e3, 1e15, 1e150])
    h = radial_functions("gaussian", r, 6, 5, 3)
    assert np.isfinite(h).all()
    np.testing.assert_allclose(h[0], np.eye(7, 5) * (np.arange(7) == 0)[:, None], rtol=1e-15)
    np.testing.assert_allclose((h[:3] ** 2).sum(axis=(1, 2)), 1)
    np.testing.assert_array_equal(h[3:], 0)
    for kernel in ("ntk", "nngp", "arc_cosine"):
        h = radial_functions(kernel, r, 6, 2, 3)
        np.testing.assert_array_equal(h[0], 0)
        np.testing.assert_array_equal(h[:, :, 1], 0)
        np.testing.assert_allclose(h[1:, :, 0] / r[1:, None], np.tile(h[3, :, 0] / 1e3, (5, 1)))
    assert radial_functions("ntk", [], 3, 2, 4).shape == (0, 4, 2)
    assert radial_functions([0, 1.0], [2.0], 0, 1, 4).shape == (1, 1, 1)


def test_orders_of_gaussian_in_closed_form():
    """d = 1 and 2: e^{−r²} r^{2j}/j! and the Bessel functions e^{−r²} 2 I_ℓ(r²)."""
    r = np.array([0.5, 1.0, 2.0])
    h = radial_functions("gaussian", r, 1, 6, 1)
    for degree in range(2):
        for i in range(6):
            j = degree + 2 * i
            np.testing.assert_allclose(h[:, degree, i] ** 2, np.exp(-(r**2)) * r ** (2 * j) / math.factorial(j))
    squares = (radial_functions("gaussian", r, 6, 60, 2) ** 2).sum(axis=2)
    bessel = np.array([(1 if k == 0 else 2) * ive(k, r**2) for k in range(7)]).T
    np.testing.assert_allclose(squares, bessel, rtol=1e-12)


# Errors.


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gegenbauer([0.5], -1, 3), ValueError, "'degree' parameter of gegenbauer must be an int ≥ 0. Got -1"),
        (
            lambda: gegenbauer([0.5], 2, 1),
            ValueError,
            "'degree' parameter of gegenbauer must be an int from 0 to 1. Got 2",
        ),
        (lambda: gegenbauer([0.5], 1.0, 3), TypeError, "'degree' parameter of gegenbauer must be an int"),
        (lambda: gegenbauer([0.5], 1, 0), ValueError, "'n_features' parameter of gegenbauer must be an int ≥ 1. Got 0"),
        (lambda: harmonic_dimension(-1, 3), ValueError, "'degree' parameter of harmonic_dimension must be an int ≥ 0"),
        (lambda: harmonic_dimension(1, True), TypeError, "'n_features' parameter of harmonic_dimension"),
        (
            lambda: gegenbauer_series([], 0.5, 3),
            ValueError,
            "'coefficients' parameter of gegenbauer_series must be a non",
        ),
        (lambda: gegenbauer_series([[1.0]], 0.5, 3), ValueError, "'coefficients' parameter of gegenbauer_series"),
        (lambda: gegenbauer_series([math.nan], 0.5, 3), ValueError, "finite numbers"),
        (lambda: gegenbauer_series("ab", 0.5, 3), ValueError, "'coefficients' parameter of gegenbauer_series .*'ab'"),
        (lambda: gegenbauer_series([1, 1, 1], 0.5, 1), ValueError, "from 0 to 1. Got 2"),
        (lambda: taylor_to_gegenbauer([1.0], 2, 1), ValueError, "'degree' parameter of taylor_to_gegenbauer"),
        (
            lambda: taylor_to_gegenbauer([math.nan], 1, 3),
            ValueError,
            "'coefficients' parameter of taylor_to_gegenbauer",
        ),
        (lambda: taylor_to_gegenbauer([[1.0]], 1, 3), ValueError, "'coefficients' parameter of taylor_to_gegenbauer"),
        (lambda: taylor_to_gegenbauer("ab", 1, 3), ValueError, "'coefficients' parameter of taylor_to_gegenbauer"),
        (lambda: gegenbauer_coefficients("ntk", 2, 1), ValueError, "'degree' .* from 0 to 1. Got 2"),
        (
            lambda: gegenbauer_coefficients("relu", 2, 3),
            ValueError,
            "'kernel' parameter of gegenbauer_coefficients must be one of 'ntk', .*Got 'relu'",
        ),
        (lambda: gegenbauer_coefficients([], 2, 3), ValueError, r"'kernel' parameter .* Got \[\]"),
        (lambda: gegenbauer_coefficients([0.0, 0.0], 2, 3), ValueError, "not all 0"),
        (lambda: gegenbauer_coefficients([1.0, -1.0], 2, 3), ValueError, "Taylor coefficients ≥ 0"),
        (lambda: gegenbauer_coefficients([1.0, math.inf], 2, 3), ValueError, "'kernel' parameter"),
        (lambda: gegenbauer_coefficients([[1.0]], 2, 3), TypeError, "'kernel' parameter"),
        (lambda: gegenbauer_coefficients(None, 2, 3), TypeError, "'kernel' parameter .* Got None"),
        (lambda: gegenbauer_coefficients(dict, 2, 3), TypeError, "'kernel' parameter .* Got <class 'dict'>"),
        (
            lambda: gegenbauer_coefficients("ntk", 2, 3, depth=0),
            ValueError,
            "'depth' parameter of gegenbauer_coefficients must be an int from 1 to 4096. Got 0",
        ),
        (lambda: gegenbauer_coefficients("arc_cosine", 2, 3, power=3), ValueError, "'power' .* from 0 to 2. Got 3"),
        (lambda: gegenbauer_coefficients(np.exp, 2, 3, power=-1), ValueError, "'power' .* int ≥ 0. Got -1"),
        (lambda: gegenbauer_coefficients(lambda t: 1.0, 2, 3), ValueError, "must return finite .*of the same shape"),  # noqa: ARG005
        (lambda: gegenbauer_coefficients(lambda t: t[:1], 2, 3), ValueError, "must return finite .*of the same shape"),
        (lambda: gegenbauer_coefficients(lambda t: t * math.nan, 2, 3), ValueError, "must return finite"),
        (lambda: gegenbauer_coefficients(lambda t: "a", 2, 3), ValueError, "must return finite"),  # noqa: ARG005
        (lambda: gegenbauer_coefficients(lambda t: 1j * t, 2, 3), ValueError, "must return finite"),
        (
            lambda: gegenbauer_coefficients(np.exp, 30, 100),
            ValueError,
            "coefficient of degree 30 .* in dimension 100 is lost in rounding .* Use a lower degree, or give Taylor",
        ),
        (lambda: radial_functions(np.exp, [1.0], 30, 1, 100), ValueError, "lost in rounding"),
        (
            lambda: radial_functions(lambda t: -t, [1.0], 3, 1, 5),
            ValueError,
            "not positive definite in dimension 5: its Gegenbauer coefficient of degree 1 is -1 < 0",
        ),
        (lambda: radial_functions(lambda t: 1 - t**2, [1.0], 3, 1, 5), ValueError, "degree 2 is -0.8 < 0"),
        (
            lambda: radial_functions("ntk", [1.0], 2, 0, 3),
            ValueError,
            "'order' parameter of radial_functions must be an int ≥ 1. Got 0",
        ),
        (
            lambda: radial_functions("ntk", [-1.0], 2, 1, 3),
            ValueError,
            "'r' parameter of radial_functions must be a 1-D array of finite numbers ≥ 0",
        ),
        (lambda: radial_functions("ntk", [[1.0]], 2, 1, 3), ValueError, "'r' parameter"),
        (lambda: radial_functions("ntk", [math.nan], 2, 1, 3), ValueError, "'r' parameter"),
        (
            lambda: radial_functions("gaussian", [1.0], 2, 1, 3, lengthscale=0.0),
            ValueError,
            "'lengthscale' .* > 0. Got 0.0",
        ),
        (lambda: radial_functions("gaussian", [1.0], 2, 1, 1), ValueError, "from 0 to 1. Got 2"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_rounding_is_no_negative_coefficient():
    """Coefficients of t² of odd degrees are 0; not so of functions that are not positive definite by little."""
    h = radial_functions(lambda t: t**2, [1.0], 9, 1, 4)[0, :, 0]
    np.testing.assert_allclose(h**2, taylor_to_gegenbauer([0, 0, 1.0], 9, 4), atol=1e-14)
    with pytest.raises(ValueError, match="not positive definite"):
        radial_functions(lambda t: t**2 - 1e-6 * t, [1.0], 3, 1, 4)
