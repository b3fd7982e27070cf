"""Degrees chosen from sizes: NTKPolynomialSketch and NTKSketch."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tiers import sampled

from ntkit import NTKFeatures, NTKPolynomialSketch, NTKSketch
from ntkit.features.degrees import _moments as moments
from ntkit.features.degrees import layer_degrees, series_degree, series_error
from ntkit.kernels import KernelSpec, ntk
from ntkit.sketches.series import allocate

SIZES = [(depth, m) for depth in (1, 3) for m in (64, 256, 1024, 4096)]


def relative_error(features, X, K):
    Z = features.fit_transform(X)
    return np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)


@pytest.mark.parametrize(("depth", "m"), SIZES)
def test_no_jump_from_32_to_33_columns(depth, m):
    n_steps = {}
    for d in (32, 33):
        X = np.ones((1, d))
        n_steps[d] = [
            len(
                NTKFeatures(depth=depth, n_components=m, method=method, random_state=0).fit(X).map_._draws.program.steps
            )
            for method in ("polynomial", "sketch")
        ]
    assert max(np.divide(n_steps[32], n_steps[33])) < 1.3
    assert max(np.divide(n_steps[33], n_steps[32])) < 1.3


@pytest.mark.parametrize(("depth", "m"), sampled(SIZES, 2))
def test_degrees_seldom_jump_between_neighbouring_numbers_of_columns(depth, m):
    """They do where the monomials of one more degree fit into its share, and where two degrees are equally good."""
    spec = KernelSpec.of("ntk", depth=depth)
    degrees = np.array([series_degree(spec, d, m) for d in range(16, 129)])
    jumps = np.abs(np.diff(np.log(degrees))) > np.log(1.5)
    assert jumps.sum() <= 4
    layers = np.array([layer_degrees("ntk", depth, d, m, max(m // 4, 1)) for d in range(16, 129)])
    assert (np.abs(np.diff(np.log(layers[:, 0]))) > np.log(1.5)).sum() <= 3


def test_long_rows_and_exact_monomials():
    spec = KernelSpec.of("ntk", depth=1)
    assert series_degree(spec, 10**6, 256) <= 8
    assert series_degree(spec, 1, 64) > 64  # one monomial for each degree
    assert series_degree(spec, 3, 4096) > series_degree(spec, 3, 64)  # monomials of more degrees fit
    assert min(layer_degrees("ntk", 50, 10**6, 64, 1)) >= 2
    assert series_degree(KernelSpec.of("nngp", depth=2), 20, 1) >= 1


def test_predicted_means_and_variances_equal_the_formula():
    """Σ_j a_j² (1 − t^{2j})²/m_j over the sketched degrees, and the variance of t itself times P′(t)²."""
    budget = allocate((0.4, 0.1, 0.0, 0.3, 0.2), 30, 200)
    assert list(budget.sketched) == [3, 4]
    t, inner = np.array([-0.9, 0.0, 0.5, 1.0]), np.array([0.1, 0.2, 0.0, 0.3])
    mean, variance = moments(budget, t, inner)
    for i, x in enumerate(t):
        a = budget.coefficients
        slope = sum(j * a[j] * x ** (j - 1) for j in a if j)
        noise = sum((a[j] * (1 - x ** (2 * j))) ** 2 / m for j, m in budget.sketched.items())
        assert mean[i] == pytest.approx(sum(a[j] * x**j for j in a), rel=1e-12)
        assert variance[i] == pytest.approx(noise + slope**2 * inner[i], rel=1e-12)


@pytest.mark.parametrize(("depth", "d", "m", "degree"), [(1, 8, 256, 12), (1, 24, 1024, 8), (3, 16, 1024, 16)])
def test_the_prediction_is_the_error_of_gaussian_rows(depth, d, m, degree, rng):
    """Mean of 8 seeds. Measured: standard deviation 0.5 % of the mean, prediction 2 to 4 % too high.

    So 8 % is seven standard deviations away, nominally 1e-11.
    """
    X = rng.standard_normal((300, d))
    K = ntk(X, depth=depth)
    options = {"depth": depth, "n_components": m, "degree": degree}
    found = np.mean([relative_error(NTKPolynomialSketch(random_state=s, **options), X, K) for s in range(8)])
    spec = KernelSpec.of("ntk", depth=depth)
    assert series_error(spec, d, m, degree, uniform=0.0) == pytest.approx(found, rel=0.08)
    for fault in (4 * m, m // 4):  # the number of components that other sizes would have
        assert series_error(spec, d, fault, degree, uniform=0.0) != pytest.approx(found, rel=0.08)


@pytest.mark.parametrize("depth", [1, 3])
def test_ntk_sketch_needs_no_higher_degrees_at_1024_components(depth, rng):
    """Compare errors of 12 seeds with the former defaults, degrees 8 and 17.

    Measured ratios: 0.92 for one layer, 1.00 for three, standard deviation 2 %; so 1.13 is six standard deviations
    away, nominally 1e-9.
    """
    X = rng.standard_normal((200, 16))
    K = ntk(X, depth=depth)
    errors, n_steps = {}, {}
    for name, degrees in {"auto": {}, "high": {"degree": 8, "derivative_degree": 17}, "linear": {"degree": 2,
                          "derivative_degree": 1}}.items():  # fmt: skip
        maps = [NTKSketch(depth=depth, n_components=1024, random_state=s, **degrees) for s in range(12)]
        errors[name] = np.mean([relative_error(f, X, K) for f in maps])
        n_steps[name] = len(maps[0]._draws.program.steps)
    assert errors["auto"] < 1.13 * errors["high"]
    assert 1.5 * n_steps["auto"] < n_steps["high"]
    if depth == 3:  # not vacuous: degrees that are too low are rejected (ratio 1.40, standard deviation 4 %)
        assert errors["linear"] > 1.13 * errors["high"]


def test_given_degrees_and_tolerances_are_kept(rng):
    X = rng.standard_normal((3, 6))
    fitted = NTKSketch(n_components=32, degree=5).fit(X)
    assert fitted.degree_ == 5
    assert fitted.derivative_degree_ == NTKSketch(n_components=32).fit(X).derivative_degree_
    assert len(fitted.coefficients_) == 6
    fitted = NTKSketch(n_components=32, degree=5, derivative_degree=7).fit(X)
    assert (fitted.degree_, fitted.derivative_degree_) == (5, 7)
    assert NTKPolynomialSketch(n_components=32, tolerance=0.02).fit(X).degree_ == 6
    assert NTKPolynomialSketch(n_components=32, degree=9).fit(X).degree_ == 9
    for law in (NTKSketch, NTKPolynomialSketch):
        with pytest.raises(ValueError, match=r"'degree' parameter.*'auto'"):
            law(degree="best").fit(X)
    with pytest.raises(ValueError, match=r"'derivative_degree' parameter.*'auto'"):
        NTKSketch(derivative_degree="best").fit(X)
