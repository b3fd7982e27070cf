"""Features of dual activations: random units and sketched series, against formulas and explicit matrices."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.stats import qmc
from tests.conftest import as_numpy
from tests.reference.features import series
from tests.reference.kernels import dual_by_quadrature
from tests.reference.sketches import srht_matrix
from tests.tiers import gpu

from ntkit.features.network.units import RandomUnits, SeriesUnits, rectified, variance_after
from ntkit.kernels.expansions import dual_polynomial, truncated_coefficients
from ntkit.networks import GELU, Abs, Erf, Gaussian, LeakyReLU, PiecewiseLinear, ReLU, Sin
from ntkit.sketches import SRHT
from ntkit.sketches.series import SeriesSketch

SCALARS = {
    ReLU(): lambda u: max(u, 0.0),
    LeakyReLU(0.3): lambda u: u if u > 0 else 0.3 * u,
    LeakyReLU(-2.0, normalize=False): lambda u: u if u > 0 else -2 * u,
    Abs(): abs,
    Erf(): math.erf,
    GELU(): lambda u: u * 0.5 * (1 + math.erf(u / math.sqrt(2))),
    Sin(): math.sin,
    Gaussian(): lambda u: math.sqrt(2) * math.cos(u - math.pi / 4),
}
ACTIVATIONS = pytest.mark.parametrize("activation", SCALARS, ids=str)
PLAIN = [type(a)(a.slope, normalize=False) if isinstance(a, LeakyReLU) else type(a)(normalize=False) for a in SCALARS]
KINDS = [
    pytest.param(np.asarray, 1e-13, id="numpy"),
    pytest.param(lambda x: x.astype(np.float32), 1e-5, id="numpy32"),
    pytest.param(torch.from_numpy, 1e-13, id="torch"),
    pytest.param(lambda x: torch.from_numpy(x).float(), 1e-5, id="torch32"),
]


@lru_cache
def second_moment(activation):
    """E[σ(z)²] by quadrature, on either side of 0."""
    z, w = np.polynomial.legendre.leggauss(100)
    total = 0.0
    for side in (-1, 1):
        u = side * (6 + 6 * z)
        values = np.array([SCALARS[activation](v) for v in u]) ** 2
        total += float(np.sum(6 * w * values * np.exp(-u * u / 2))) / math.sqrt(2 * math.pi)
    return total


# σ and σ′.


@ACTIVATIONS
@pytest.mark.parametrize(("convert", "bound"), KINDS)
def test_activations_of_all_kinds_of_arrays(activation, convert, bound):
    u = np.array([[-3.0, -1.0, -0.25, 0.0], [1e-3, 0.5, 2.0, 5.0]])
    x = convert(u)
    for function, expected in (
        ("sigma", [[SCALARS[activation](v) for v in row] for row in u]),
        ("sigma_prime", [[slope(activation, v) for v in row] for row in u]),
    ):
        got = getattr(activation, function)(x)
        assert type(got) is type(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(as_numpy(got), expected, atol=bound * (1 if function == "sigma" else 1e5), rtol=0)


def slope(activation, u):
    """Derivative by differences; 0 at a corner."""
    if isinstance(activation, PiecewiseLinear) and u == 0:
        return 0.0
    step = 1e-5
    return (SCALARS[activation](u + step) - SCALARS[activation](u - step)) / (2 * step)


# Random units.


@ACTIVATIONS
@pytest.mark.parametrize(("convert", "bound"), KINDS)
def test_random_units_are_activations_of_products(activation, convert, bound, rng):
    """σ(Wφ) and σ′(Wφ) over √(m E[σ(z)²]), entry by entry; the first rows of W serve for both."""
    for n_forward, n_derivative in [(5, 5), (7, 3), (3, 7), (4, 0), (0, 4)]:
        matrix = rng.standard_normal((max(n_forward, n_derivative), 3)).astype(np.float32)
        phi = rng.standard_normal((2, 4, 3))
        x = convert(phi.copy())
        forward, derivative = RandomUnits(activation, matrix, n_forward, n_derivative).features(x, None)
        scale = second_moment(activation) ** -0.5 if activation.normalize else 1.0
        u = phi @ matrix.T.astype(float)
        for got, size, function in ((forward, n_forward, SCALARS[activation]), (derivative, n_derivative, None)):
            if not size:
                assert got is None
                continue
            assert got.dtype == x.dtype
            values = np.vectorize(function or (lambda v: slope(activation, v)))(u[..., :size])
            np.testing.assert_allclose(as_numpy(got), scale / math.sqrt(size) * values, atol=max(20 * bound, 1e-7))
        np.testing.assert_array_equal(as_numpy(x), as_numpy(convert(phi)))


@pytest.mark.parametrize(("convert", "bound"), KINDS)
def test_rectified(convert, bound, rng):
    matrix, x = rng.standard_normal((6, 4)), rng.standard_normal((2, 3, 3, 4))
    expected = np.maximum(np.einsum("...i,ji->...j", x, matrix), 0)
    np.testing.assert_allclose(as_numpy(rectified(convert(x), convert(matrix.T))), expected, atol=10 * bound)
    assert (expected == 0).any()


@gpu
@pytest.mark.parametrize("n_columns", [1, 27, 32])
@pytest.mark.parametrize("activation", [ReLU(), Erf()], ids=str)
def test_units_on_a_device_keep_their_matrix(activation, n_columns, rng):
    """Once for each dtype; rows of any length are multiplied in 16 bits."""
    matrix, x = rng.standard_normal((24, n_columns)).astype(np.float32), rng.standard_normal((3, 5, n_columns))
    units = RandomUnits(activation, matrix, 24, 0)
    expected = units.features(x, None)[0]
    for dtype, bound in (torch.float64, 1e-6), (torch.bfloat16, 0.03), (torch.float64, 1e-6):
        got = units.features(torch.from_numpy(x).to("cuda", dtype), None)[0]
        np.testing.assert_allclose(got.double().cpu().numpy(), expected, atol=bound * np.abs(expected).max())
    assert len(units._kept) == 2


@pytest.mark.parametrize("activation", [*SCALARS, *PLAIN], ids=str)
def test_means_of_random_units_are_duals(activation):
    """On 2¹⁶ quasi-random Gaussian rows entries of σ(u)σ(v) and σ′(u)σ′(v) average to the duals, to 1e-3.

    Measured: errors up to 1e-4 of the duals, 4e-4 of the derivative duals.
    """
    n = 2**16
    matrix = qmc.MultivariateNormalQMC(np.zeros(2), rng=0).random(n).astype(np.float32)
    x, y = np.array([[0.8, 0.3]]), np.array([[-0.2, 1.1]])
    units = RandomUnits(activation, matrix, n, n)
    exact = activation.dual(x @ y.T, (x**2).sum(), (y**2).sum())
    for got, value in zip(zip(units.features(x, None), units.features(y, None), strict=True), exact, strict=True):
        assert (got[0] @ got[1].T).item() == pytest.approx(value.item(), abs=1e-3)


# Sketched series.


def drawn(activation, n_features, size, *, degree, normalize, rotations=False, sizes=(True, True)):
    """Units of a series with the coefficients that a network's features have."""

    def law(*, derivative):
        if isinstance(activation, PiecewiseLinear):
            coefficients = np.array(dual_polynomial(activation, degree, derivative=derivative)[0]) * activation.gain
        else:
            coefficients = truncated_coefficients(activation, 1.0, range(degree + 1), derivative=derivative) ** 2
        return SeriesSketch(n_features, tuple(coefficients.tolist()), size, normalize=normalize)

    operators = [
        law(derivative=d).sample(1) if wanted else None for d, wanted in zip((False, True), sizes, strict=True)
    ]
    turns = [None, None]
    if rotations:
        sizes = [None if o is None else o.n_components for o in operators]
        turns = [None if n is None else SRHT(n, 2 ** (n - 1).bit_length()).sample(3) for n in sizes]
    return SeriesUnits(activation, *operators, normalize, *turns)


def naive(units, x, power, *, derivative):
    """Each degree of the unit vector times h_j(a); the explicit matrix of the rotation."""
    operator = units.derivative if derivative else units.forward
    norm = np.linalg.norm(x) if units.normalize else math.sqrt(power)
    values = series(operator, x / norm)
    if isinstance(units.activation, PiecewiseLinear):
        values = values if derivative else math.sqrt(power) * values
    else:
        budget, start = operator.law.budget, 0
        table = truncated_coefficients(units.activation, power, tuple(budget.coefficients), derivative=derivative)
        for h, (j, a) in zip(table, budget.coefficients.items(), strict=True):
            stop = start + (budget.exact.get(j) or budget.sketched[j])
            values[start:stop] *= h / math.sqrt(a)
            start = stop
    rotation = units.derivative_rotation if derivative else units.forward_rotation
    return values if rotation is None else srht_matrix(rotation) @ values


@ACTIVATIONS
def test_series_units_are_sketched_degrees(activation, rng):
    for rotations in [False, True]:
        for normalize in [True, False]:
            units = drawn(activation, 6, 24, degree=5, normalize=normalize, rotations=rotations)
            X = rng.standard_normal((2, 3, 6))
            power = (X**2).sum(axis=-1) * rng.uniform(
                0.7, 1.3, (2, 3)
            )  # the variance that φ represents, not its own norm
            pairs = list(zip(X.reshape(-1, 6), power.ravel(), strict=True))
            expected = [
                np.array([naive(units, x, a, derivative=d) for x, a in pairs]).reshape(2, 3, -1) for d in (False, True)
            ]
            assert (units.n_forward, units.n_derivative) == tuple(values.shape[-1] for values in expected)
            for convert, bound in (parameters.values for parameters in KINDS):
                got = units.features(convert(X), convert(power))
                for values, true in zip(got, expected, strict=True):
                    assert values.dtype == convert(X).dtype
                    np.testing.assert_allclose(as_numpy(values), true, atol=20 * bound)


@ACTIVATIONS
def test_whole_series_have_the_inner_products_of_the_dual(activation, rng):
    """All monomials fit, so the series is the only error: below 2 % of the norms at degree 20 for variances ≤ 2."""
    for rotations in [False, True]:
        X = rng.standard_normal((5, 2))
        X[1] = -X[0]
        X[2] = 2 * X[0]
        X *= np.minimum(1, np.sqrt(2) / np.linalg.norm(X, axis=1, keepdims=True))
        a = (X**2).sum(axis=1)
        units = drawn(activation, 2, 5000, degree=20, normalize=False, rotations=rotations)
        for part, Z in enumerate(units.features(X, a)):
            exact = activation.dual(X @ X.T, a[:, None], a[None, :])[part]
            root = np.sqrt(np.diag(exact))
            largest = 0.02 if part == 0 or not isinstance(activation, PiecewiseLinear) else 0.2  # κ₀ is steep at ±1
            assert np.abs((Z @ Z.T - exact) / np.outer(root, root)).max() < largest
            np.testing.assert_allclose((Z**2).sum(axis=1), root**2, rtol=1e-9)


@ACTIVATIONS
def test_zero_vectors(activation, rng):
    """No NaN; forward features are zero where σ(0) = 0, and those of variance 0 otherwise."""
    for method in ["series", "random"]:
        if method == "series":
            units = drawn(activation, 4, 16, degree=3, normalize=True, rotations=True)
        else:
            units = RandomUnits(activation, rng.standard_normal((16, 4)), 16, 16)
        forward, derivative = units.features(np.zeros((2, 4)), np.zeros(2))
        assert np.isfinite(forward).all()
        assert np.isfinite(derivative).all()
        if not isinstance(activation, Gaussian):
            assert not forward.any()
        else:
            np.testing.assert_allclose((forward**2).sum(axis=1), 1.0)
        if not isinstance(activation, PiecewiseLinear):
            at_zero = float(activation.dual(np.zeros(()), np.zeros(()), np.zeros(()))[1])
            np.testing.assert_allclose((derivative**2).sum(axis=1), at_zero)


@pytest.mark.parametrize("activation", [ReLU(), GELU()], ids=str)
def test_only_requested_outputs_are_computed(activation, rng):
    for sizes in [(True, False), (False, True)]:
        X = rng.standard_normal((3, 5))
        a = (X**2).sum(axis=1)
        both = drawn(activation, 5, 20, degree=4, normalize=True)
        one = drawn(activation, 5, 20, degree=4, normalize=True, sizes=sizes)
        assert (one.n_forward > 0, one.n_derivative > 0) == sizes
        for wanted, got, expected in zip(sizes, one.features(X, a), both.features(X, a), strict=True):
            if wanted:
                np.testing.assert_allclose(got, expected, atol=1e-14)
            else:
                assert got is None


# Variances.


def test_variances_after_an_activation(to_library):
    for activation in [*SCALARS, *PLAIN]:
        a = np.array([0.0, 0.1, 1.0, 7.0])
        for derivative in (False, True):
            got = variance_after(activation, to_library(a), derivative=derivative)
            exact = activation.dual(a, a, a)[int(derivative)]
            np.testing.assert_allclose(as_numpy(got)[1:], exact[1:], rtol=1e-12)
            assert np.isfinite(as_numpy(got)).all()


@pytest.mark.parametrize("activation", [Erf(normalize=False), Sin(normalize=False)], ids=str)
def test_variances_of_smooth_activations_by_quadrature(activation):
    f, df = (lambda u: np.vectorize(SCALARS[type(activation)()])(u)), (lambda u: activation.sigma_prime(u))
    expected = dual_by_quadrature(f, df, 0.7, 0.7, 0.7)
    got = [float(variance_after(activation, np.array(0.7), derivative=d)) for d in (False, True)]
    np.testing.assert_allclose(got, expected, rtol=1e-8)
