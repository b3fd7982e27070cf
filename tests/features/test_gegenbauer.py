from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from tests import tiers
from tests.conftest import as_numpy
from tests.reference import gegenbauer as reference
from tests.statistical import (
    check_rms_scaling,
    check_unbiased,
    check_variance,
    gram_matrices,
    judge_mean,
    kept,
    rms_error,
    spread_rows,
)

from ntkit.diagnostics import spectral_error, statistical_dimension
from ntkit.features import directions
from ntkit.features.zonal import _numba as _gegenbauer_numba
from ntkit.features.zonal import modes as _zonal
from ntkit.features.zonal.gegenbauer import GegenbauerFeatures
from ntkit.kernels import arc_cosine, dot_product, exponential, gaussian, nngp, ntk
from ntkit.kernels import zonal as kernels

KERNELS = ["ntk", "nngp", "gaussian", "exponential", "arc_cosine", (0.5, 1.0, 0.25), np.exp]


def rows_of(rng, n, d, low=0.5, high=2.0):
    """Uniform directions, norms spread over an interval."""
    X = rng.standard_normal((n, d))
    return X * (rng.uniform(low, high, n) / np.linalg.norm(X, axis=1))[:, None]


def maps(kernel, n_components, **parameters):
    """Seed ↦ feature map, for the statistical checks."""
    parameters = {"n_components": n_components, **parameters}
    return lambda seed: lambda X: GegenbauerFeatures(kernel, random_state=seed, **parameters).fit_transform(X)


def law(orthogonal):
    return "orthogonal" if orthogonal else "gaussian"


def held(fitted, X, n_terms=40):
    """Return the share of the kernel in each mode by definition: radial functions and their mixtures, written out."""
    norms = np.linalg.norm(X, axis=1)
    degree, d = fitted.degree_, X.shape[1]
    parameters = {"lengthscale": fitted.lengthscale_, "depth": fitted.depth, "power": fitted.power}
    h = reference.table(fitted.kernel, norms, degree, n_terms, d, **parameters)
    if fitted.kernel in ("gaussian", "exponential") or isinstance(fitted.kernel, tuple):
        h = reference.mixed(h, reference.table(fitted.kernel, fitted.radii_[0], degree, n_terms, d, **parameters))
    kept = np.zeros_like(h)
    for k, i in [*fitted.modes_, *fitted.random_modes_]:
        kept[:, k, i] = h[:, k, i]
    return kept, reference.kernel_of(X, kept)


def exact_kernel(kernel, X, lengthscale=1.0, depth=1, power=1):
    if isinstance(kernel, str) and kernel != "arc_cosine":
        functions = {"ntk": ntk, "nngp": nngp, "gaussian": gaussian, "exponential": exponential}
        parameters = {"depth": depth} if kernel in ("ntk", "nngp") else {"lengthscale": lengthscale}
        return functions[kernel](X, **parameters)
    if isinstance(kernel, tuple):
        return dot_product(X, function=kernel)
    norms = np.linalg.norm(X, axis=1)
    t = np.clip((X @ X.T) / np.outer(norms, norms), -1, 1)
    return np.outer(norms, norms) ** power * (arc_cosine(t, power) if kernel == "arc_cosine" else kernel(t))


# Definition 8.


@pytest.mark.parametrize("kernel", KERNELS)
def test_random_features_equal_definition_8(kernel, rng):
    for d in [2, 3, 6]:
        X = rows_of(rng, 7, d)
        features = GegenbauerFeatures(
            kernel, n_components=9, depth=2, lengthscale=1.3, degree=4, tolerance=0.0, harmonics=False, random_state=0
        ).fit(X)
        directions = features._draws.factors[0].directions.T
        np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
        Z = features.transform(X)
        order = Z.shape[1] // len(directions)
        assert Z.shape[1] == order * len(directions) <= 9
        assert features.modes_ == []
        h, _ = held(features, X, n_terms=12 if not isinstance(kernel, tuple) else 2)
        np.testing.assert_allclose(Z, reference.definition_8(X, directions, h[:, :, :order]), atol=1e-7)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders_of_definition_8(order, rng):
    """The map has the requested number of radial functions, in blocks of that many directions."""
    X = rows_of(rng, 65, 3, low=0.1, high=3.0)
    features = GegenbauerFeatures(
        "gaussian",
        n_components=2**14,
        lengthscale=1.0,
        degree=3,
        order=order,
        tolerance=0.0,
        harmonics=False,
        random_state=0,
    ).fit(X)
    size = 2**14 // order
    assert features._draws.factors[0].directions.shape == (3, size)
    assert {i for _, i in features.random_modes_} == set(range(order))
    assert len(features.random_modes_) == 4 * order
    h, _ = held(features, X[:3])
    some = [0, 1, size - 1]
    Z = features.transform(X[:3])
    assert Z.shape == (3, order * size)
    naive = reference.definition_8(X[:3], features._draws.factors[0].directions.T[some], h[:, :, :order])
    naive = naive.reshape(3, order, 3) * (3 / size) ** 0.5
    np.testing.assert_allclose(Z.reshape(3, order, size)[:, :, some], naive, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_harmonics_hold_the_kernel_up_to_the_degree(kernel, rng):
    """Mixtures are orthogonal: if all modes are taken, the kernel does not change."""
    for d in [1, 2, 3, 6]:
        X = rows_of(rng, 12, d)
        degree = 1 if d == 1 else 3
        features = GegenbauerFeatures(
            kernel, n_components=2048, depth=2, lengthscale=1.3, degree=degree, random_state=0
        ).fit(X)
        Z = features.transform(X)
        assert features.random_modes_ == []
        assert Z.shape[1] < 2048
        order = 3 if isinstance(kernel, tuple) else 20
        parameters = {"lengthscale": 1.3, "depth": 2}
        if d == 1:
            K = exact_kernel(kernel, X, **parameters)
        else:
            h = reference.table(kernel, np.linalg.norm(X, axis=1), degree, order, d, **parameters)
            K = reference.kernel_of(X, h)
        np.testing.assert_allclose(Z @ Z.T, K, rtol=0, atol=1e-9 * np.abs(K).max())


UNBIASED = [
    ("ntk", True, {"depth": 3, "degree": 4}),
    ("ntk", False, {"depth": 3, "degree": 4}),
    ("gaussian", True, {"lengthscale": 0.8, "degree": 5, "order": 1}),
    ("gaussian", False, {"lengthscale": 0.4, "degree": 2, "order": 2}),
]


@pytest.mark.parametrize(
    ("kernel", "harmonics", "parameters", "orthogonal"),
    [(*case, i % 3 > 0 if j else i % 3 == 0) for j in range(1 + tiers.ALL) for i, case in enumerate(UNBIASED)],
)
def test_inner_products_are_unbiased(kernel, harmonics, parameters, orthogonal):
    """False alarms: 1e-6 each, for the kernel of the modes held."""
    X = spread_rows(6)
    right = maps(kernel, 96, harmonics=harmonics, directions=law(orthogonal), tolerance=0.0, **parameters)
    fitted = GegenbauerFeatures(kernel, n_components=96, harmonics=harmonics, tolerance=0.0, **parameters).fit(X)
    assert bool(fitted.modes_) == harmonics
    orders = {i for _, i in fitted.random_modes_}
    assert orders == ({0, 1} if parameters.get("order") == 2 else {0})
    _, K = held(fitted, X, n_terms=60)
    grams = gram_matrices(right, X, tiers.scaled(200, 400))
    judge_mean(grams, K)
    with pytest.raises(AssertionError):
        judge_mean(1.05**2 * grams, K)


def test_a_single_direction_is_unbiased():
    """False alarms: 1e-6. Each feature counts, not only their mean."""
    X = spread_rows(3)
    parameters = {"n_components": 1, "degree": 2, "harmonics": False, "tolerance": 0.0}
    expected = held(GegenbauerFeatures("ntk", **parameters).fit(X), X)[1]
    check_unbiased(maps("ntk", **parameters), X, expected, n_seeds=tiers.scaled(400, 800))


def test_variance_equals_independent_directions():
    """Var = (E f_x(w)² f_y(w)² − K²)/M, the mean over the circle by the trapezoidal rule, exact for polynomials."""
    X = spread_rows(2)
    parameters = {"degree": 4, "harmonics": False, "directions": "gaussian", "tolerance": 0.0}
    fitted = GegenbauerFeatures("ntk", n_components=64, **parameters).fit(X)
    h, K = held(fitted, X)
    angles = 2 * np.pi * np.arange(64) / 64
    f = 8 * reference.definition_8(X, np.stack([np.cos(angles), np.sin(angles)], axis=1), h[:, :, :1])
    np.testing.assert_allclose(f @ f.T / 64, K, atol=1e-9)
    formula = ((f**2) @ (f**2).T / 64 - K**2) / 64
    right = kept(maps("ntk", 64, **parameters))
    check_variance(right, X, formula, n_seeds=500)
    with pytest.raises(AssertionError):
        check_variance(right, X, 4 * formula, n_seeds=500)


@pytest.mark.parametrize("orthogonal", [False, *[True] * tiers.ALL])  # test_laws has orthogonal ones
def test_four_times_the_components_halve_the_error(orthogonal):
    """Ratios for 20 other seeds: 0.47 to 0.54."""
    X = spread_rows(4)
    parameters = {"degree": 4, "harmonics": False, "tolerance": 0.0, "directions": law(orthogonal)}
    _, K = held(GegenbauerFeatures("ntk", n_components=64, **parameters).fit(X), X)
    check_rms_scaling(lambda m, seed: maps("ntk", m, **parameters)(seed), X, K, n_components=64, n_seeds=200)


def test_orthogonal_directions_and_harmonics_have_less_error():
    X = spread_rows(6)
    parameters = {"degree": 3, "tolerance": 0.0, "depth": 2}
    _, K = held(GegenbauerFeatures("ntk", n_components=60, harmonics=False, **parameters).fit(X), X)
    plain, orthogonal, whole = (
        rms_error(maps("ntk", 60, harmonics=h, directions=law(o), **parameters), X, K, n_seeds=60)
        for h, o in ((False, False), (False, True), (True, True))
    )
    assert orthogonal < 0.9 * plain
    assert whole < 0.5 * orthogonal


def test_spectral_error_is_below_the_bound_of_theorem_9(rng):
    """M of Theorem 9 for ε = ½, δ = 0.1 suffices for all of ten seeds, and four times M halves the error."""
    X, d, degree, lam, eps, delta = rows_of(rng, 80, 3), 3, 5, 4.0, 0.5, 0.1
    parameters = {"depth": 2, "degree": degree, "harmonics": False, "directions": "gaussian", "tolerance": 0.0}
    h, K = held(GegenbauerFeatures("ntk", n_components=8, **parameters).fit(X), X, n_terms=1)
    sums = (h[:, :, 0] ** 2).sum(axis=0)
    bounds = [
        kernels.harmonic_dimension(k, d) * min(np.pi**2 * (k + 1) ** 2 / (6 * lam) * sums[k], 1)
        for k in range(degree + 1)
    ]
    size = 8 / (3 * eps**2) * np.log(16 * statistical_dimension(K, lam) / delta) * sum(bounds)
    errors = [
        np.mean([spectral_error(K, maps("ntk", m, **parameters)(seed)(X), lam) for seed in range(10)])
        if m < size
        else max(spectral_error(K, maps("ntk", m, **parameters)(seed)(X), lam) for seed in range(10))
        for m in (int(size) // 16, int(size) // 4, int(size) + 1)
    ]
    assert errors[2] < eps
    assert 0.4 < errors[1] / errors[0] < 0.62
    small = np.mean([spectral_error(K, maps("ntk", 36, **parameters)(seed)(X), lam) for seed in range(10)])
    assert small > eps  # and far fewer do not


# Directions.


@pytest.mark.parametrize("orthogonal", [True, False])
def test_random_directions_are_orthogonal_if_asked_for(orthogonal, rng):
    for harmonics in [True, False]:
        X = rows_of(rng, 9, 4)
        features = GegenbauerFeatures(
            "ntk", n_components=48, depth=3, degree=4, harmonics=harmonics, directions=law(orthogonal), random_state=0
        ).fit(X)
        factor = features._draws.factors[0]
        w = factor.directions[:, factor.n_shared :][:, :4]
        assert np.allclose(w.T @ w, np.eye(4)) == orthogonal


def test_directions_are_orthogonal_in_blocks():
    for d, size in [(1, 3), (2, 7), (5, 23), (300, 400)]:
        w = directions.uniform(np.random.SeedSequence(0), d, size, orthogonal=True).T
        assert w.shape == (size, d)
        block = min(d, 256)
        for start in range(0, size, block):
            part = w[start : start + block]
            np.testing.assert_allclose(part @ part.T, np.eye(len(part)), atol=1e-12)
        if d > 1:
            assert np.abs(w[:1] @ w[block : 2 * block].T).max() < 1 - 1e-6
        more = directions.uniform(np.random.SeedSequence(0), d, size + 9, orthogonal=True).T
        np.testing.assert_allclose(more[:size], w, atol=1e-12)
        assert directions.uniform(np.random.SeedSequence(0), d, 0, orthogonal=True).shape == (d, 0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_directions_are_uniform(orthogonal):
    """False alarms: 1e-6 each; for d = 3 coordinates are uniform on [−1, 1] (Archimedes)."""
    from scipy import stats

    firsts = [
        directions.uniform(np.random.SeedSequence(seed), 3, 1, orthogonal=orthogonal)[:, 0] for seed in range(400)
    ]
    for coordinate in np.array(firsts).T:
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > 1e-6


# Harmonics.


@pytest.mark.parametrize(
    ("d", "degree"),
    [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 40), (3, 2), (3, 20), (4, 8), (7, 3), (9, 2), (30, 2), (200, 1)],
)
def test_harmonics_are_exact(d, degree, rng):
    """Features of the kernel P_ℓ are its α_ℓ harmonics, for any directions."""
    size = kernels.harmonic_dimension(degree, d)
    X = rows_of(rng, 30, d)
    X[1], X[2] = 3 * X[0], -X[0]
    features = GegenbauerFeatures(
        lambda t: kernels.gegenbauer(t, degree, d)[-1], n_components=size, power=0, degree=degree, random_state=0
    ).fit(X)
    assert features.modes_ == [(degree, 0)]
    assert features.degree_ == degree
    Z = features.transform(X)
    assert Z.shape == (30, size)
    norms = np.linalg.norm(X, axis=1)
    exact = kernels.gegenbauer(np.clip((X @ X.T) / np.outer(norms, norms), -1, 1), degree, d)[-1]
    np.testing.assert_allclose(Z @ Z.T, exact, rtol=0, atol=1e-13 * (1 + degree) ** 2)
    Z = features.transform(X.astype(np.float32))
    np.testing.assert_allclose(Z @ Z.T, exact, rtol=0, atol=2e-5 * (1 + degree / 4) ** 2)


@pytest.mark.parametrize(("d", "degree"), [(2, 1), (2, 2), (2, 5), (3, 1), (3, 2), (3, 3)])
def test_harmonics_are_rotations_of_the_closed_formulas(d, degree, rng):
    X = rows_of(rng, 40, d, 1.0, 1.0)
    size = kernels.harmonic_dimension(degree, d)
    Z = GegenbauerFeatures(
        lambda t: kernels.gegenbauer(t, degree, d)[-1], n_components=size, power=0, degree=degree, random_state=0
    ).fit_transform(X)
    Y = np.array([reference.harmonics(x, degree) for x in X])
    rotation = np.linalg.lstsq(Y, Z, rcond=None)[0]
    np.testing.assert_allclose(Y @ rotation, Z, atol=1e-12)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-12)


def test_harmonics_are_well_conditioned():
    """The norms of mixing matrices multiply rounding errors; with random directions some norms are in the thousands.

    Tested are directions of a single degree, and directions that all degrees up to it share.
    """
    for d, degree in [(3, 8), (3, 20), (5, 6), (9, 3)]:
        for degrees in ([degree], list(range(degree + 1))):
            w, mixing = _zonal.draw_harmonics(np.random.SeedSequence(0), degrees, d)
            assert w.shape == (d, kernels.harmonic_dimension(degree, d))
            assert max(np.linalg.norm(matrix, 2) for matrix in mixing) < 40
            for matrix, k in zip(mixing, degrees, strict=True):
                K = kernels.gegenbauer(np.clip(w.T @ w, -1, 1), k, d)[-1][: len(matrix), : len(matrix)]
                np.testing.assert_allclose(matrix.T @ K @ matrix, np.eye(len(matrix)), atol=1e-10)


def test_harmonics_are_orthonormal_on_the_sphere(rng):
    """E Z_j Z_k = δ c_ℓ/α_ℓ for uniform directions: 200 000 of them, errors below 6 standard errors."""
    X = rows_of(rng, 200_000, 3, 1.0, 1.0)
    features = GegenbauerFeatures("ntk", n_components=9, random_state=0).fit(X)
    Z = features.transform(X)
    assert features.modes_ == [(0, 0), (1, 0), (2, 0)]
    c = kernels.gegenbauer_coefficients("ntk", 2, 3)
    values = np.repeat(c / [1, 3, 5], [1, 3, 5])
    np.testing.assert_allclose(Z.T @ Z / len(X), np.diag(values), atol=6 * 0.4 / len(X) ** 0.5)


# Which modes.


def energies(kernel, features, n_terms, **parameters):
    """Eigenvalue and size of all modes, from the radial functions at the norms seen."""
    d = features.n_features_in_
    at_radii = reference.table(kernel, features.radii_[0], features.degree_, n_terms, d, **parameters)
    mixed = reference.mixed(at_radii, at_radii)
    values = (mixed**2).mean(axis=0)
    return {
        (k, i): (values[k, i] / reference.dimension(k, d), reference.dimension(k, d))
        for k in range(values.shape[0])
        for i in range(n_terms)
    }


def test_modes_are_sorted_by_eigenvalue_and_added_while_they_fit(rng):
    for m in [1, 2, 3, 4, 5, 8, 20, 50]:
        X = rows_of(rng, 65, 3, 0.3, 1.5)
        features = GegenbauerFeatures("gaussian", n_components=m, lengthscale=1.0, degree=4, random_state=0).fit(X)
        np.testing.assert_allclose(features.radii_[0], np.sort(np.linalg.norm(X, axis=1)), rtol=1e-12)
        table = energies("gaussian", features, 25)
        if features.degree_ < 4:
            table |= {(k, 0): (0.0, 2 * k + 1) for k in range(features.degree_ + 1, 5)}
        left, expected = m, []
        for mode, (value, size) in sorted(table.items(), key=lambda item: -item[1][0]):
            if value > 1e-10 and size <= left:
                expected.append(mode)
                left -= size
        few = [mode for mode in features.modes_ if table[mode][0] > 1e-10]
        assert few == expected
        assert features.transform(X).shape[1] <= m
        values = [table[mode][0] for mode in few]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_number_of_components(kernel, rng):
    for harmonics in [True, False]:
        X = rows_of(rng, 10, 3)
        sizes = []
        for m in (1, 2, 3, 4, 5, 7, 10, 33):
            features = GegenbauerFeatures(
                kernel, n_components=m, lengthscale=2.0, harmonics=harmonics, random_state=0
            ).fit(X)
            Z = features.transform(X)
            assert 1 <= Z.shape[1] <= m
            assert len(features.get_feature_names_out()) == Z.shape[1]
            assert np.isfinite(Z).all()
            assert 0 <= features.truncation_ < 1
            if not features.random_modes_:
                assert ((Z**2).sum(axis=1) <= np.diag(exact_kernel(kernel, X, lengthscale=2.0)) * (1 + 1e-12)).all()
            sizes.append(Z.shape[1])
        assert sizes[0] == 1
        assert sizes == sorted(sizes)


def test_truncation_is_the_weight_of_the_dropped_modes(rng):
    X = rows_of(rng, 65, 3, 0.3, 1.5)  # the number of quantiles that are kept
    for kernel in (*KERNELS, "gaussian"):
        for m in (4, 30):
            features = GegenbauerFeatures(kernel, n_components=m, lengthscale=0.8, degree=3, random_state=0).fit(X)
            if features.random_modes_:
                continue
            Z = features.transform(X)
            diagonal = np.diag(exact_kernel(kernel, X, lengthscale=0.8))
            left_out = np.mean(diagonal - (Z**2).sum(axis=1)) / np.mean(diagonal)
            assert features.truncation_ == pytest.approx(left_out, abs=1e-10)


@pytest.mark.parametrize("harmonics", [True, False])
def test_truncation_counts_random_modes(harmonics, rng):
    """On average over many seeds and 65 rows; false alarms: 6 standard errors."""
    X = rows_of(rng, 65, 4)
    shares = []
    n_seeds = tiers.scaled(100, 300)
    for seed in range(n_seeds):
        features = GegenbauerFeatures(
            "ntk", n_components=40, depth=2, degree=4, harmonics=harmonics, random_state=seed
        ).fit(X)
        Z = features.transform(X)
        shares.append(1 - np.sum(Z**2) / (3 * np.sum(X**2)))
    assert features.random_modes_
    assert features.truncation_ > 0.05
    assert abs(np.mean(shares) - features.truncation_) < 6 * np.std(shares) / n_seeds**0.5


def test_truncation_far_beyond_the_length_scale(rng):
    """Rows of more than 25 length scales have no features, which would take degrees by the hundred: that is said."""
    for norms, share in [((1, 1), 0.0), ((10, 10), 0.0), ((1, 200), 33 / 65), ((200, 200), 1.0)]:
        X = np.vstack([rows_of(rng, n, 2, norm, norm) for n, norm in zip((32, 33), norms, strict=True)])
        features = GegenbauerFeatures("gaussian", n_components=512, lengthscale=1.0, random_state=0).fit(X)
        Z = features.transform(X)
        assert np.isfinite(Z).all()
        assert features.truncation_ == pytest.approx(share, abs=1e-9)
        assert 1 - np.mean((Z**2).sum(axis=1)) == pytest.approx(share, abs=1e-9)


def test_fewer_features_where_the_kernel_has_no_more(rng):
    X = rows_of(rng, 20, 2)
    features = GegenbauerFeatures((0.5, 1.0, 0.25), n_components=100, random_state=0).fit(X)
    assert sorted(features.modes_) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert features.random_modes_ == []
    assert features.transform(X).shape == (20, 6)
    assert features.truncation_ < 1e-14
    assert features.estimate_error(X) < 1e-13
    on_sphere = GegenbauerFeatures("gaussian", n_components=1024, lengthscale=1.0).fit(rows_of(rng, 20, 3, 1.0, 1.0))
    assert {i for _, i in on_sphere.modes_} == {0}  # of equal norms one radial function is all
    assert on_sphere.truncation_ < 1e-12
    assert len(on_sphere.get_feature_names_out()) == (on_sphere.degree_ + 1) ** 2 < 400


def test_tolerance_leaves_modes_out(rng):
    X = rows_of(rng, 20, 5, 1.0, 1.0)
    parameters = {"lengthscale": 1.0, "degree": 12, "harmonics": False}
    c = kernels.gegenbauer_coefficients("exponential", 30, 5) / np.e
    rests = 1 - np.cumsum(c)
    for tolerance in (0.0, 1e-6, 1e-3, 0.1, 0.5):
        features = GegenbauerFeatures("gaussian", n_components=64, tolerance=tolerance, **parameters).fit(X)
        beyond = max(rests[12], 0)
        smallest = np.sort(c[:13])
        dropped = smallest[: np.searchsorted(np.cumsum(smallest), tolerance, side="right")].sum()
        assert features.truncation_ == pytest.approx(dropped + beyond, abs=1e-12)
        assert len(features.random_modes_) == 13 - np.searchsorted(np.cumsum(smallest), tolerance, side="right")


def test_degrees(rng):
    X = rows_of(rng, 20, 4)
    for degree in (0, 1, 2, 7):
        features = GegenbauerFeatures(
            "ntk", n_components=64, depth=2, degree=degree, harmonics=False, tolerance=0.0
        ).fit(X)
        assert features.degree_ == degree
        assert features.random_modes_ == [(k, 0) for k in range(degree + 1)]
    assert GegenbauerFeatures("ntk", n_components=64).fit(X[:, :1]).degree_ == 1
    many = rng.standard_normal((5, 3000))  # with many columns, degrees with too many harmonics are dropped
    assert GegenbauerFeatures("ntk", n_components=64).fit(many).degree_ <= 2
    for kernel in KERNELS:
        features = GegenbauerFeatures(kernel, n_components=32, random_state=0).fit(many)
        assert np.isfinite(features.transform(many)).all()


def test_degrees_that_are_chosen(rng):
    """All degrees that fit completely; up to 20 for random features, but after the complete degrees only those with at
    most 8 harmonics per component, or the next one.
    """
    assert GegenbauerFeatures("nngp", n_components=201, depth=2).fit(rows_of(rng, 9, 2)).degree_ == 100
    parameters = {"depth": 3, "tolerance": 0.0}
    assert (
        GegenbauerFeatures("ntk", n_components=1024, harmonics=False, **parameters).fit(rows_of(rng, 9, 5)).degree_
        == 20
    )
    X = rows_of(rng, 9, 30)
    for m, modes in ((31 + 57, [(2, 0)]), (31 + 400, [(2, 0)])):  # degree 2 has 464 harmonics, degree 3 has 4930
        features = GegenbauerFeatures("ntk", n_components=m, **parameters).fit(X)
        assert features.modes_ == [(0, 0), (1, 0)]
        assert features.random_modes_ == modes


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(
    ("kernel", "parameters", "below"),
    [("ntk", {}, 0.8), ("nngp", {}, 0.5), ("arc_cosine", {"power": 0}, 0.8), ("arc_cosine", {"power": 2}, 0.4)],
)
def test_degrees_that_vanish_take_no_room(kernel, parameters, below, d, rng):
    """Every other degree counts here. Errors are `below` times the error with the degrees that would fit if all
    counted.
    """
    X, m, fitting = rows_of(rng, 200, d), *((256, 128) if d == 2 else (1024, 32))
    features = GegenbauerFeatures(kernel, n_components=m, tolerance=0.01, random_state=0, **parameters).fit(X)
    assert features.random_modes_ == []
    size = sum(kernels.harmonic_dimension(k, d) for k, _ in features.modes_)
    assert features.transform(X).shape[1] == size
    following = kernels.harmonic_dimension(features.degree_ + 2, d)
    assert features.truncation_ < 1e-10 or size + following > m
    few = GegenbauerFeatures(kernel, n_components=m, degree=fitting, tolerance=0.01, random_state=0, **parameters).fit(
        X
    )
    assert few.transform(X).shape[1] < 0.65 * m
    assert features.estimate_error(X) < below * few.estimate_error(X)
    assert features.truncation_ < below * few.truncation_


def test_high_degrees_of_the_plane(rng):
    """More than 256, of all or of even ones; no degree of a polynomial is looked for beyond the last."""
    X = rows_of(rng, 30, 2)
    for depth, degrees in ((1, [0, 1, *range(2, 1021, 2)]), (2, None)):
        features = GegenbauerFeatures("ntk", n_components=1024, depth=depth, random_state=0).fit(X)
        assert features.transform(X).shape == (30, 1023)
        assert degrees is None or sorted(k for k, _ in features.modes_) == degrees
    few = GegenbauerFeatures((0.5, 0.0, 1.0), n_components=1024, random_state=0).fit(X)
    assert few.degree_ == 2
    assert few.truncation_ < 1e-14


def test_pairs_of_directions_of_the_plane(rng):
    """One pair for each power of two: harmonics of 300 degrees without error."""
    import torch

    c = rng.uniform(0.5, 1.0, 300)
    X = rows_of(rng, 20, 2)
    norms = np.linalg.norm(X, axis=1)
    t = np.clip(X @ X.T / np.outer(norms, norms), -1, 1)
    features = GegenbauerFeatures(
        lambda t: kernels.gegenbauer_series(c, t, 2), n_components=1024, power=0, degree=299, random_state=0
    ).fit(X)
    assert features._draws.factors[0].directions.shape == (2, 18)
    Z = features.transform(X)
    assert Z.shape == (20, 599)
    np.testing.assert_allclose(Z @ Z.T, kernels.gegenbauer_series(c, t, 2), rtol=0, atol=1e-8)
    x = torch.from_numpy(X).requires_grad_()
    np.testing.assert_allclose(as_numpy(features.transform(x)), Z, atol=1e-10)


def test_few_components_left_are_not_random(rng):
    """Below 1/16 of all: ten degrees of R³ fit in 100."""
    X = rows_of(rng, 9, 3)
    for m, some in ((100, False), (106, False), (107, True)):
        features = GegenbauerFeatures("ntk", n_components=m, depth=3, random_state=0).fit(X)
        assert sorted(features.modes_) == [(k, 0) for k in range(10)]
        assert bool(features.random_modes_) == some
        assert features.transform(X).shape[1] == (m if some else 100)


def test_degree_of_functions_ends_where_rounding_begins(rng):
    X = rows_of(rng, 20, 40)
    features = GegenbauerFeatures(np.exp, n_components=1024, random_state=0).fit(X)
    named = kernels.gegenbauer_coefficients("exponential", features.degree_, 40)
    assert features.truncation_ == pytest.approx(1 - named.sum() / np.e, abs=1e-7)
    with pytest.raises(ValueError, match="lost in rounding"):
        GegenbauerFeatures("arc_cosine", n_components=64, power=2, degree=20).fit(rng.standard_normal((10, 1000)))


# Kernels in whole.


@pytest.mark.parametrize(
    ("kernel", "error"),
    [("ntk", 0.03), ("nngp", 0.003), ("gaussian", 1e-4), ("exponential", 1e-4), ("arc_cosine", 0.003), (np.exp, 1e-6)],
)
def test_defaults_are_close_to_the_kernel(kernel, error, rng):
    X = rows_of(rng, 100, 3)
    features = GegenbauerFeatures(kernel, n_components=1024, lengthscale=2.0, random_state=0).fit(X)
    Z, K = features.transform(X), exact_kernel(kernel, X, lengthscale=2.0)
    relative = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert relative < error
    np.testing.assert_allclose(features.exact_kernel(X), K, rtol=1e-10, atol=1e-12)
    assert features.estimate_error(X) == pytest.approx(relative, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("kernel", [*KERNELS, np.array([0.5, 1.0, 0.25])])
def test_exact_kernels_of_all_kinds_of_rows(kernel, rng):
    import torch

    X = rows_of(rng, 12, 3)
    X[0] = 0
    features = GegenbauerFeatures(kernel, n_components=64, power=2, lengthscale=1.5, depth=3, random_state=0).fit(X)
    K = features.exact_kernel(X)
    expected = exact_kernel(
        tuple(kernel) if isinstance(kernel, np.ndarray) else kernel, X[1:], power=2, lengthscale=1.5, depth=3
    )
    np.testing.assert_allclose(K[1:, 1:], expected, rtol=1e-10, atol=1e-12)
    if kernel not in ("gaussian", "exponential") if isinstance(kernel, str) else kernel is np.exp:
        np.testing.assert_array_equal(K[0], 0)
    for rows in (sp.csr_array(X), torch.from_numpy(X)):
        other = features.exact_kernel(rows)
        assert isinstance(other, torch.Tensor) == isinstance(rows, torch.Tensor)
        np.testing.assert_allclose(as_numpy(other), K, rtol=1e-10, atol=1e-12)
        assert features.estimate_error(rows) == pytest.approx(features.estimate_error(X), rel=1e-6, abs=1e-9)


def test_depth_and_power_count(rng):
    X = rows_of(rng, 50, 3)
    for parameters in ({"depth": 1}, {"depth": 4}):
        assert GegenbauerFeatures("nngp", n_components=1024, **parameters).fit(X).estimate_error(X) < 0.01
    for power in (0, 1, 2, 3):
        kernel = "arc_cosine" if 0 < power < 3 else np.exp
        features = GegenbauerFeatures(kernel, n_components=1024, power=power).fit(X)
        Z = features.transform(X)
        K = exact_kernel(kernel, X, power=power)
        np.testing.assert_allclose(Z @ Z.T, K, rtol=0, atol=0.01 * K.max())


# Groups and projections.


def test_groups_are_a_product_of_kernels(rng):
    X = rng.standard_normal((40, 4)) / 2
    groups = [(3, 0, 2), (1,)]
    features = GegenbauerFeatures("gaussian", n_components=600, lengthscale=1.2, groups=groups, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_allclose(Z @ Z.T, gaussian(X, lengthscale=1.2), rtol=0, atol=2e-4)
    assert features.radii_.shape == (2, 65)
    assert all(len(pair) == 2 and all(len(mode) == 2 for mode in pair) for pair in features.modes_)
    assert Z.shape[1] == sum(kernels.harmonic_dimension(a[0], 3) * 1 for a, _ in features.modes_)
    assert features.random_modes_ == []
    few = GegenbauerFeatures("gaussian", n_components=40, lengthscale=1.2, groups=groups, random_state=0).fit(X)
    assert few.modes_ == features.modes_[: len(few.modes_)] or few.truncation_ > features.truncation_
    left_out = 1 - np.mean((few.transform(X) ** 2).sum(axis=1))
    assert few.truncation_ == pytest.approx(left_out, abs=0.03)  # norms of groups as if independent
    import torch

    for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-13)


def test_features_of_groups_are_products_of_the_features_of_each_group(rng):
    """Each block is the tensor product of harmonics times radial functions, in the order of the groups."""
    X = rng.standard_normal((10, 3))
    features = GegenbauerFeatures(
        "gaussian", n_components=60, lengthscale=1.5, groups=[(0, 1), (2,)], random_state=0
    ).fit(X)
    Z = features.transform(X)
    parts = [X[:, :2], X[:, 2:]]
    tables = []
    for part, radii in zip(parts, features.radii_, strict=True):
        d = part.shape[1]
        degree = 1 if d == 1 else 15
        arguments = (degree, 40, d)
        at_rows, at_radii = (
            reference.table("gaussian", r, *arguments, lengthscale=1.5) for r in (np.linalg.norm(part, axis=1), radii)
        )
        tables.append(reference.mixed(at_rows, at_radii))
    start = 0
    for (k, i), (j, n) in features.modes_:
        size = kernels.harmonic_dimension(k, 2)
        block = Z[:, start : start + size]
        start += size
        left = np.outer(tables[0][:, k, i], tables[0][:, k, i]) * np.array(
            [
                [reference.polynomial(x @ y / np.linalg.norm(x) / np.linalg.norm(y), k, 2) for y in parts[0]]
                for x in parts[0]
            ]
        )
        signs = np.sign(parts[1][:, 0]) ** j
        right = np.outer(tables[1][:, j, n] * signs, tables[1][:, j, n] * signs)
        np.testing.assert_allclose(block @ block.T, left * right, atol=1e-7)
    assert start == Z.shape[1]


def test_one_group_of_all_columns_equals_no_groups(rng):
    X = rows_of(rng, 30, 3)
    one = GegenbauerFeatures("gaussian", n_components=81, lengthscale=1.0, groups=[(0, 1, 2)], random_state=0).fit(X)
    none = GegenbauerFeatures("gaussian", n_components=81, lengthscale=1.0, random_state=0).fit(X)
    assert [pair if len(one._draws.factors) == 1 else pair[0] for pair in one.modes_] == none.modes_
    Z = none.transform(X)
    np.testing.assert_allclose(one.transform(X) @ one.transform(X).T, Z @ Z.T, atol=1e-10)


def sphere(rng, n, d, part=-1.0):
    """Unit vectors, the last entry above `part`."""
    X = rng.standard_normal((20 * n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X[X[:, -1] > part][:n]


def standardized(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def tables(rng, n=600):
    """Rows by a name, and the groups that are in them."""
    place, other = sphere(rng, n, 3), 5 * sphere(rng, n, 4)
    angle = rng.uniform(0, 2 * np.pi, n)
    hour = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    month = rng.integers(1, 13, n)[:, None].astype(float)
    one_hot = np.eye(4)[rng.integers(0, 4, n)]
    noise = rng.standard_normal((n, 2))
    stack = np.hstack
    return {
        "month": (stack([place, month]), [[0, 1, 2], [3]]),
        "kilometres": (stack([6371 * place, month]), [[0, 1, 2], [3]]),
        "three digits": (stack([place.round(3), month]), [[0, 1, 2], [3]]),
        "hour": (stack([place, hour]), [[0, 1, 2], [3, 4]]),
        "frequencies": (stack([hour, np.stack([np.cos(2 * angle), np.sin(2 * angle)], axis=1)]), [[0, 1], [2, 3]]),
        "torus": (stack([hour, np.roll(hour, 1, axis=0), np.roll(hour, 2, axis=0)]), [[0, 1], [2, 3], [4, 5]]),
        "any order": (
            stack([month, place[:, :1], hour[:, 1:], place[:, 1:2], noise, hour[:, :1], place[:, 2:]]),
            [[1, 3, 7], [2, 6], [0, 4, 5]],
        ),
        "two spheres": (stack([month, other, place]), [[1, 2, 3, 4], [5, 6, 7], [0]]),
        "one hot and a sphere": (stack([one_hot, place, month]), [[4, 5, 6], [0, 1, 2, 3, 7]]),
        "constant": (stack([place, np.ones((n, 1)), month]), [[0, 1, 2], [4], [3]]),
        "constant alone": (stack([np.full((n, 1), 7.0), place]), [[1, 2, 3], [0]]),
        "standardized": (standardized(stack([place, month])), [[0, 1, 2], [3]]),
        "part of a sphere": (stack([sphere(rng, n, 3, 0.5), month]), [[0, 1, 2], [3]]),
        "part, standardized": (standardized(stack([sphere(rng, n, 3, -0.3), month])), [[0, 1, 2], [3]]),
        "all on one sphere": (place, None),
        "roots of shares": (rng.dirichlet([1, 1, 1], n) ** 0.5, None),
        "one hot": (stack([one_hot, month]), None),
        "one hot, standardized": (standardized(stack([one_hot, month])), None),
        "signs": (stack([np.sign(noise), month]), None),
        "shares": (rng.dirichlet([1, 1, 1], n), None),
        "normal": (rng.standard_normal((n, 4)), None),
        "not quite": (stack([place * (1 + 0.05 * noise[:, :1]), month]), None),
        "degrees": (np.rad2deg(stack([np.arcsin(place[:, 2:]), angle[:, None]])), None),
        "grid": (np.stack(np.meshgrid(*[np.arange(8.0)] * 3), axis=-1).reshape(-1, 3), None),
        "equal rows": (np.ones((n, 3)), None),
        "few rows": (stack([place, month])[:20], None),
        "one row": (stack([place, month])[:1], None),
        "many columns": (stack([place, rng.standard_normal((n, 62))]), None),
    }


@pytest.mark.parametrize("name", tables(np.random.default_rng(0), 50))
def test_spheres_are_found(name, rng):
    import torch

    X, groups = tables(rng)[name]
    features = GegenbauerFeatures("gaussian", n_components=128, random_state=0).fit(X)
    assert features.groups_ == groups
    assert (features.center_ is None) == (groups is None)
    assert len(features.radii_) == len(groups or [0])
    Z = features.transform(X)
    assert np.isfinite(Z).all()
    shifted = X if groups is None else X - features.center_
    given = GegenbauerFeatures("gaussian", n_components=128, groups=groups, random_state=0).set_params(
        lengthscale=features.lengthscale_
    )
    if given.fit(shifted).modes_ == features.modes_:  # otherwise one radial function is enough on a sphere
        np.testing.assert_allclose(given.transform(shifted), Z, atol=1e-7)
    for rows in (X.astype(np.float32), sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).float()):
        other = GegenbauerFeatures("gaussian", n_components=128, random_state=0).fit(rows)
        assert other.groups_ == groups
        if len(X) > 20:
            assert other.truncation_ == pytest.approx(features.truncation_, rel=0.05, abs=1e-5)
        scale = 1e-4 if "float32" in str(rows.dtype) else 1e-10
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=scale * (1 + np.abs(X).max()))


def test_groups_are_not_detected_in_other_cases(rng):
    X, _ = tables(rng)["month"]
    for parameters in (
        {"kernel": "ntk"}, {"kernel": "exponential"}, {"kernel": (1.0, 1.0)}, {"kernel": "gaussian", "groups": None},
        {"kernel": "gaussian", "harmonics": False}, {"kernel": "gaussian", "projection": 2},
    ):  # fmt: skip
        features = GegenbauerFeatures(n_components=32, random_state=0, **parameters).fit(X)
        assert features.groups_ is None
        assert features.center_ is None
    given = GegenbauerFeatures("gaussian", n_components=32, groups=((3, 0), (1, 2))).fit(X)
    assert given.groups_ == [[3, 0], [1, 2]]
    assert given.center_ is None


def ridge_error(features, X, y, split):
    """Mean squared error on the rows from `split` on, the best of some penalties."""
    Z = features.fit(X[:split]).transform(X)
    left, sizes, right = np.linalg.svd(Z[:split], full_matrices=False)
    errors = []
    for alpha in sizes[0] ** 2 * 10.0 ** np.arange(-10, 0):
        coef = right.T @ (sizes / (sizes**2 + alpha) * (left.T @ (y[:split] - y[:split].mean())))
        errors.append(np.mean((Z[split:] @ coef + y[:split].mean() - y[split:]) ** 2))
    return min(errors)


def seasons(rng, n, month):
    """Places of a sphere without a cap and months, and a smooth field with noise."""
    place = sphere(rng, n, 3, -0.7)
    number = rng.integers(0, 12, n)
    directions = 2 * rng.standard_normal((200, 3))
    phases = 2 * np.pi * rng.random(200)
    speeds = rng.integers(-1, 2, 200) * 2 * np.pi / 12
    waves = np.cos(place @ directions.T + number[:, None] * speeds + phases)
    y = waves @ rng.standard_normal(200) / 10 + 0.05 * rng.standard_normal(n)
    angle = 2 * np.pi * number[:, None] / 12
    columns = {
        "scaled": (number[:, None] - 5.5) / 10,
        "raw": number[:, None] + 1.0,
        "circle": np.hstack([np.cos(angle), np.sin(angle)]) / 2,
    }
    return np.hstack([place, columns[month]]), y


@pytest.mark.parametrize(
    ("month", "lengthscale", "scaled"), [("scaled", 0.4, False), ("circle", 0.5, False), ("scaled", 1.0, True)]
)
def test_places_and_months_are_as_good_as_landmarks(month, lengthscale, scaled):
    """At most 1.05 times the error of Nyström features over three draws; without groups more than 1.2 times.

    Ratios here: 0.68, 0.83, 0.84 and 1.39, 2.21, 1.92.
    """
    from ntkit import NystroemFeatures

    errors = []
    for seed in range(3):
        X, y = seasons(np.random.default_rng(seed), 2400, month)
        shared = {"n_components": 256, "lengthscale": lengthscale, "random_state": seed}
        maps = (
            NystroemFeatures("gaussian", **shared),
            GegenbauerFeatures("gaussian", **shared),
            GegenbauerFeatures("gaussian", groups=None, **shared),
        )
        errors.append([ridge_error(features, standardized(X) if scaled else X, y, 2000) for features in maps])
    landmarks, auto, plain = np.mean(errors, axis=0)
    assert auto < 1.05 * landmarks
    assert plain > 1.2 * landmarks


def test_months_need_no_scaling(rng):
    """They are centred at the middle of their range, so that 12 of them have 12 functions; the mean has up to 24."""
    X, y = seasons(rng, 2400, "raw")
    shared = {"n_components": 256, "lengthscale": 1.0, "random_state": 0}
    features = GegenbauerFeatures("gaussian", **shared).fit(X)
    assert features.center_[3] == 6.5
    assert len({line for _, line in features.modes_}) <= 12
    given = GegenbauerFeatures("gaussian", groups=[(0, 1, 2), (3,)], **shared)
    assert ridge_error(features, X, y, 2000) < 0.8 * ridge_error(given, X, y, 2000)


def test_one_radial_function_is_kept_near_a_sphere(rng):
    """For standardized places, if the other modes hold less than 1 %; more if `order` asks for more."""
    X, groups = tables(rng, 2000)["standardized"]
    parameters = {"n_components": 256, "lengthscale": 1.0, "random_state": 0}
    features = GegenbauerFeatures("gaussian", **parameters).fit(X)
    assert features.groups_ == groups
    assert {i for (_, i), _ in features.modes_} == {0}
    assert len({i for _, (_, i) in features.modes_}) > 1
    assert features.truncation_ < 0.01
    assert features.estimate_error(X) < 0.01
    more = GegenbauerFeatures("gaussian", order=3, **parameters).fit(X)
    assert {i for (_, i), _ in more.modes_} > {0}


def test_constant_columns_take_no_features(rng):
    X, _ = tables(rng)["month"]
    constant = np.hstack([X[:, :2], np.full((len(X), 1), 3.0), X[:, 2:]])
    parameters = {"n_components": 200, "lengthscale": 0.5, "random_state": 0}
    plain = GegenbauerFeatures("gaussian", **parameters).fit(X)
    features = GegenbauerFeatures("gaussian", **parameters).fit(constant)
    assert features.groups_ == [[0, 1, 3], [4], [2]]
    assert [modes[:2] for modes in features.modes_] == plain.modes_
    assert features.truncation_ == pytest.approx(plain.truncation_)


def test_groups_that_were_found_are_kept(rng):
    """By pickles and copies; a fit to other rows finds other groups."""
    X, groups = tables(rng)["month"]
    features = GegenbauerFeatures("gaussian", n_components=64, random_state=0).fit(X)
    again = pickle.loads(pickle.dumps(features))
    assert again.groups_ == groups
    np.testing.assert_array_equal(again.center_, features.center_)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    assert features.fit(rng.standard_normal((50, 3))).groups_ is None
    assert features.transform(X[:, :3]).shape[0] == len(X)


@pytest.mark.parametrize("sparse", [False, True])
def test_projections_keep_norms_and_products_on_average(sparse, rng):
    """Of the linear kernel: ‖x‖‖y‖ cos(Sx, Sy). Cosines are off by O(1/64); false alarms: 6 se."""
    X = rows_of(rng, 5, 100)
    X[1] = 0.5 * X[0] + X[1]
    X[2] = -2 * X[0]
    rows = sp.csr_array(X) if sparse else X
    grams, n_seeds = [], tiers.scaled(100, 300)
    for seed in range(n_seeds):
        features = GegenbauerFeatures((0.0, 1.0), n_components=64, projection=64, random_state=seed).fit(rows)
        Z = features.transform(rows)
        assert Z.shape == (5, 64)
        grams.append(Z @ Z.T)
        np.testing.assert_allclose(np.diag(grams[-1]), (X**2).sum(axis=1))
    scale = np.linalg.norm(X, axis=1)
    errors = (np.mean(grams, axis=0) - X @ X.T) / np.outer(scale, scale)
    assert (np.abs(errors) < 1 / 64 + 6 * (np.array(grams) / np.outer(scale, scale)).std(axis=0) / n_seeds**0.5).all()
    assert np.abs(np.array(grams).std(axis=0)[0, 1]) > 0.01


def test_projections_that_do_not_reduce_the_dimension(rng):
    X = rows_of(rng, 20, 4)
    plain = GegenbauerFeatures("ntk", n_components=32, random_state=0).fit(X).transform(X)
    for size in (4, 5, 100):
        np.testing.assert_array_equal(
            GegenbauerFeatures("ntk", n_components=32, projection=size, random_state=0).fit(X).transform(X), plain
        )


def test_projections_of_all_kinds_of_rows(rng):
    import torch

    X = rng.standard_normal((20, 60))
    X[3] = 0
    features = GegenbauerFeatures("gaussian", n_components=64, projection=8, random_state=0).fit(X)
    Z = features.transform(X)
    assert np.isfinite(Z).all()
    for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-12)
    features.set_params(batch_size=3)
    np.testing.assert_allclose(features.transform(X), Z, atol=1e-12)
    again = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


# Rows of all kinds.


@pytest.mark.parametrize("kernel", KERNELS)
def test_libraries_and_precisions_agree(kernel, rng):
    import torch

    for harmonics in [True, False]:
        X = rows_of(rng, 21, 5) * (rng.random((21, 5)) < 0.7)
        X[4] = 0
        features = GegenbauerFeatures(
            kernel, n_components=48, lengthscale=1.5, harmonics=harmonics, random_state=0
        ).fit(X)
        Z = features.transform(X)
        assert Z.dtype == np.float64
        assert Z.shape == (21, len(features.get_feature_names_out()))
        scale = np.abs(Z).max()
        for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
            out = features.transform(rows)
            assert isinstance(out, torch.Tensor) == isinstance(rows, torch.Tensor)
            np.testing.assert_allclose(as_numpy(out), Z, atol=1e-13 * scale)
        float32 = features.transform(X.astype(np.float32))
        np.testing.assert_allclose(float32, Z, atol=1e-5 * scale)
        for rows in (
            X.astype(np.float32), sp.csr_array(X.astype(np.float32)), torch.from_numpy(X).float(),
            torch.from_numpy(X).float().requires_grad_(),
        ):  # fmt: skip
            out = features.transform(rows)
            assert "float32" in str(out.dtype)
            np.testing.assert_allclose(as_numpy(out), Z, atol=1e-5 * scale)
            np.testing.assert_allclose(features.transform(X), Z, atol=1e-13 * scale)  # no tables of another precision
        for dtype, error in ((torch.float16, 0.01), (torch.bfloat16, 0.08)):
            short = torch.from_numpy(X).to(dtype)
            out = features.transform(short)
            assert out.dtype == dtype
            exact = features.transform(short.double().numpy())
            np.testing.assert_allclose(out.double().numpy(), exact, atol=error * scale)
            gradient = features.transform(short.requires_grad_())
            assert gradient.dtype == dtype
            np.testing.assert_allclose(gradient.detach().double().numpy(), exact, atol=error * scale)


@pytest.mark.parametrize("kernel", ["ntk", "gaussian", (0.0, 1.0, 0.5)])
def test_gradients(kernel, rng):
    import torch

    for harmonics in [True, False]:
        X = rows_of(rng, 4, 3)
        features = GegenbauerFeatures(
            kernel, n_components=16, lengthscale=1.5, harmonics=harmonics, random_state=0
        ).fit(X)
        x = torch.from_numpy(X).requires_grad_()
        assert torch.autograd.gradcheck(features.transform, x)
        zero = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
        features.transform(zero).sum().backward()
        assert torch.isfinite(zero.grad).all()
        with torch.no_grad():
            assert not features.transform(x).requires_grad
        many = features.set_params(batch_size=3).transform(x)
        np.testing.assert_allclose(many.detach(), features.transform(X), atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_any_size(kernel, rng):
    """Zero, tiny and huge rows, and such that `fit` did not see."""
    for dtype in ["float32", "float64"]:
        for harmonics in [True, False]:
            X = rows_of(rng, 6, 4)
            features = GegenbauerFeatures(
                kernel, n_components=24, lengthscale=1.0, harmonics=harmonics, random_state=0
            ).fit(X)
            far = X * np.array([0, 1e-15, 1e-4, 1, 10, 1e3])[:, None]
            if kernel == "exponential":
                far[4:] = 4 * X[4:]
            Z = features.transform(far.astype(dtype))
            assert Z.dtype == dtype
            assert np.isfinite(Z).all()
            for i in range(6):
                one = features.transform(far[i : i + 1].astype(dtype))
                np.testing.assert_allclose(one[0], Z[i], atol=1e-5 * np.abs(Z[i]).max())
            if kernel in ("ntk", "nngp", "arc_cosine") or kernel is np.exp:
                np.testing.assert_array_equal(Z[0], 0)
                ratios = np.linalg.norm(Z[1:], axis=1) / np.linalg.norm(far[1:], axis=1)
                near = np.linalg.norm(features.transform(X), axis=1) / np.linalg.norm(X, axis=1)
                np.testing.assert_allclose(ratios, near[1:], rtol=1e-5)
            else:
                np.testing.assert_allclose(Z[1], Z[0], atol=1e-12)


@pytest.mark.parametrize("kernel", ["ntk", "nngp", "arc_cosine", np.exp, "gaussian"])
def test_maps_scale_with_the_rows(kernel, rng):
    for scale in [1e-15, 1e15]:
        X = rows_of(rng, 20, 4)
        near = GegenbauerFeatures(kernel, n_components=24, random_state=0).fit(X)
        far = GegenbauerFeatures(kernel, n_components=24, random_state=0).fit(scale * X)
        assert far.modes_ == near.modes_
        assert far.truncation_ == pytest.approx(near.truncation_)
        Z = far.transform(scale * X) / (1 if kernel == "gaussian" else scale)
        np.testing.assert_allclose(Z, near.transform(X), atol=1e-9)


def test_gaussian_for_rows_far_beyond_the_training_norms(rng):
    """No features hold rows there; they vanish, as k(x, y) does for all rows seen."""
    for harmonics in [True, False]:
        X = rows_of(rng, 20, 3)
        for size in (0.01, 1.0):
            features = GegenbauerFeatures(
                "gaussian", n_components=64, lengthscale=1.0, harmonics=harmonics, random_state=0
            ).fit(size * X)
            for factor in (1e2, 1e4, 1e15, 1e100):
                Z = features.transform(np.array(factor * X))
                assert np.isfinite(Z).all()
                if not harmonics:
                    continue
                assert ((Z**2).sum(axis=1) <= 1 + 1e-9).all()
            assert np.abs(features.transform(1e4 * X)).max() < 1e-9


@pytest.mark.parametrize("kernel", ["gaussian", "exponential", (0.5, 1.0, 0.25), "ntk"])
def test_rows_slightly_beyond_the_training_norms(kernel, rng):
    """Radial functions are defined for all norms; only their mixtures depend on the training norms."""
    for harmonics in [True, False]:
        X, far = rows_of(rng, 65, 3, 0.5, 1.0), rows_of(rng, 5, 3, 1.5, 3.0)
        features = GegenbauerFeatures(
            kernel, n_components=30, lengthscale=1.0, degree=2, tolerance=0.0, harmonics=harmonics, random_state=0
        ).fit(X)
        h, _ = held(features, far, n_terms=3 if isinstance(kernel, tuple) else 25)
        Z = features.transform(far)
        if harmonics:
            taken = [mode for mode in features.modes_ if mode[1] < 2]  # others are all but rounding at the norms seen
            assert len(taken) >= 3
            sizes = [kernels.harmonic_dimension(k, 3) for k, _ in features.modes_]
            ends = np.cumsum(sizes)
            for mode, end, size in zip(features.modes_, ends, sizes, strict=True):
                if mode in taken:
                    block = Z[:, end - size : end]
                    np.testing.assert_allclose((block**2).sum(axis=1), h[:, *mode] ** 2, rtol=1e-6)
        else:
            order = Z.shape[1] // features._draws.factors[0].directions.shape[1]
            naive = reference.definition_8(far, features._draws.factors[0].directions.T, h[:, :, :order])
            np.testing.assert_allclose(Z, naive, atol=1e-6 * np.abs(naive).max())


def test_zero_rows_have_no_features_of_homogeneous_kernels(rng):
    """Of degree 0 too: ‖x‖⁰ is 0 for them."""
    X = rows_of(rng, 5, 3)
    X[2] = 0
    Z = GegenbauerFeatures(np.exp, n_components=16, power=0, random_state=0).fit_transform(X)
    np.testing.assert_array_equal(Z[2], 0)
    np.testing.assert_allclose((Z[[0, 1, 3, 4]] ** 2).sum(axis=1), np.e, rtol=0.02)


def test_few_rows_and_columns(rng):
    for kernel in KERNELS:
        for X in (
            rng.standard_normal((1, 1)),
            rng.standard_normal((1, 5)),
            rng.standard_normal((9, 1)),
            np.ones((4, 2)),
        ):
            for m in (1, 8):
                features = GegenbauerFeatures(kernel, n_components=m, random_state=0).fit(X)
                Z = features.transform(X)
                assert np.isfinite(Z).all()
                assert 1 <= Z.shape[1] <= m


def test_only_zero_rows():
    for kernel in KERNELS:
        X = np.zeros((3, 4))
        features = GegenbauerFeatures(kernel, n_components=8, random_state=0).fit(X)
        Z = features.transform(X)
        if kernel in ("gaussian", "exponential") or isinstance(kernel, tuple):
            np.testing.assert_allclose(Z @ Z.T, 0.5 if isinstance(kernel, tuple) else 1.0, rtol=1e-12)
        else:
            np.testing.assert_array_equal(Z, 0)
        assert np.isfinite(features.transform(X + 1.0)).all()


def test_one_column_holds_the_kernel(rng):
    X = rng.standard_normal((30, 1))
    features = GegenbauerFeatures("gaussian", n_components=64, lengthscale=1.0, random_state=0).fit(X)
    assert features.degree_ == 1
    assert features.estimate_error(X) < 1e-6
    features = GegenbauerFeatures("ntk", n_components=64, random_state=0).fit(X)
    assert features.modes_ == [(0, 0), (1, 0)]
    assert features.estimate_error(X) < 1e-14


# Compiled recursions.


@pytest.mark.parametrize("d", [2, 3, 10])
def test_compiled_polynomials(d, rng):
    """Degrees up to 11 with shared and separate directions, for fewer and more numbers than are processed at a time."""
    for dtype in ["float32", "float64"]:
        error = 100 * np.finfo(dtype).eps
        degrees = np.array([0, 1, 2, 3, 5, 6, 7, 8, 11])
        for n_rows, width in ((1, 1), (7, 3), (900, 5), (5, 2047), (2, 2500)):
            for shared in (True, False):
                sizes = np.arange(1, 10) * width // 9 + 1 if shared else np.full(9, width)
                firsts = np.zeros(9, np.int64) if shared else width * np.arange(9)
                n_shared = int((firsts + sizes).max())
                t = rng.uniform(-1, 1, (n_rows, n_shared + 4)).astype(dtype)
                out = np.full(n_rows * sizes.sum() + 3, 7.0, dtype)
                _gegenbauer_numba.values(t, n_shared, degrees, firsts, sizes, *_zonal.recursions(11, d, t.dtype), out)
                place = 0
                for degree, first, size in zip(degrees.tolist(), firsts, sizes, strict=True):
                    expected = kernels.gegenbauer(t[:, first : first + size].astype(float), degree, d)[-1]
                    found = out[place : place + n_rows * size].reshape(n_rows, size)
                    np.testing.assert_allclose(found, expected, atol=error)
                    place += n_rows * size
                assert (out[place:] == 7.0).all()


@pytest.mark.parametrize("top", [0, 1, 2, 3, 4, 5, 8, 9])
def test_compiled_sums(top, rng):
    for n_groups in [1, 2, 3]:
        for dtype in ["float32", "float64"]:
            degrees = np.sort(np.concatenate([rng.permutation(top + 1)[: top + 1 - top // 3] for _ in range(n_groups)]))
            degrees[-1] = top
            degrees = np.sort(degrees)
            groups = np.array([int((degrees[:i] == k).sum()) for i, k in enumerate(degrees)])
            n_groups = int(groups.max()) + 1
            t = rng.uniform(-1, 1, (4, 37)).astype(dtype)
            weights = rng.standard_normal((4, len(degrees))).astype(dtype)
            out = np.full((4, 37 * n_groups), np.nan, dtype)
            first = np.searchsorted(degrees, np.arange(top + 2))
            _gegenbauer_numba.sums(t, weights, first, groups, *_zonal.recursions(top, 5, t.dtype), out)
            P = kernels.gegenbauer(t.astype(float), top, 5)
            expected = np.zeros((4, n_groups, 37))
            for i, (k, group) in enumerate(zip(degrees, groups, strict=True)):
                expected[:, group] += weights[:, i, None] * P[k]
            np.testing.assert_allclose(out.reshape(4, n_groups, 37), expected, atol=200 * np.finfo(dtype).eps)


# Length scales.


def test_scale_equals_the_scale_of_the_rows(rng):
    X = 3 * rng.standard_normal((50, 6)) + 2
    X *= rng.random(X.shape) < 0.6
    for rows in (X, sp.csr_array(X)):
        features = GegenbauerFeatures("gaussian", n_components=4).fit(rows)
        assert features.lengthscale_ == pytest.approx((6 * X.var() / 2) ** 0.5)
    assert GegenbauerFeatures("gaussian", n_components=4, lengthscale=3).fit(X).lengthscale_ == 3.0
    assert GegenbauerFeatures("gaussian", n_components=4).fit(np.ones((3, 2))).lengthscale_ == pytest.approx(0.5**0.5)
    doubled = sp.csr_array((np.ones(4), np.array([0, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 2))
    features = GegenbauerFeatures("gaussian", n_components=4).fit(doubled)
    assert features.lengthscale_ == pytest.approx(
        GegenbauerFeatures("gaussian", n_components=4).fit(doubled.toarray()).lengthscale_
    )


# Fits, copies, draws again.


def test_fits_leave_the_first_if_they_fail(rng):
    X = rng.standard_normal((6, 4))
    features = GegenbauerFeatures("gaussian", n_components=8, random_state=0).fit(X)
    Z, before = features.transform(X), features.__dict__.copy()
    for bad in ({"n_components": 0}, {"degree": -1}, {"batch_size": 0}, {"kernel": "x"}, {"groups": [(0,)]}):
        good = {name: features.get_params()[name] for name in bad}
        with pytest.raises(ValueError, match=next(iter(bad))):
            features.set_params(**bad).fit(X[:, :2])
        features.set_params(**good)
        assert features.__dict__.keys() == before.keys()
        np.testing.assert_array_equal(features.transform(X), Z)


def test_parameters_set_after_the_fit_wait_for_the_next_one(rng):
    X = rng.standard_normal((6, 4))
    features = GegenbauerFeatures("gaussian", n_components=9, harmonics=False, random_state=0).fit(X)
    Z = features.transform(X)
    features.set_params(
        kernel="ntk", n_components=4, lengthscale=0.1, degree=1, order=1, harmonics=True, tolerance=0.5, projection=2,
        directions="gaussian", groups=[(0, 1), (2, 3)], depth=7, power=0, random_state=1,
    )  # fmt: skip
    for copy in (features, pickle.loads(pickle.dumps(features))):
        np.testing.assert_array_equal(copy.transform(X), Z)
        assert len(copy.get_feature_names_out()) == Z.shape[1]


def test_harmonics_and_random_features_have_independent_directions(rng):
    features = GegenbauerFeatures("ntk", n_components=40, random_state=0).fit(rng.standard_normal((6, 4)))
    drawn = features._draws.factors[0].directions
    for i in range(drawn.shape[1] - 1):
        others = np.abs(drawn[:, i] @ drawn[:, i + 1 :])
        assert others.max() < 1 - 1e-9 or (np.abs(drawn[:, i]).max() == 1)


def test_groups_have_independent_draws(rng):
    X = np.tile(rng.standard_normal((6, 3)), 2)  # the same degrees for both
    features = GegenbauerFeatures("gaussian", n_components=400, groups=[(0, 1, 2), (3, 4, 5)], random_state=0).fit(X)
    first, second = (factor.directions for factor in features._draws.factors)
    assert first.shape[1] > 8
    common = min(first.shape[1], second.shape[1])
    same = np.isclose(first[:, :common], second[:, :common]).all(axis=0)
    assert same.sum() <= 4  # degrees 0 and 1 are the coordinates


# Errors.

COUNTS = [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError)]
BAD = {
    "kernel": [("relu", ValueError), (None, TypeError), ([], ValueError), ([-1.0], ValueError), (3.0, TypeError)],
    "degree": [(-1, ValueError), (1.5, TypeError), ("a", ValueError), (True, TypeError), (None, TypeError)],
    "order": [(0, ValueError), (1.5, TypeError), ("a", ValueError), (True, TypeError), (None, TypeError)],
    "projection": COUNTS,
}  # fmt: skip


def test_bad_parameters():
    for name, value, error in [(n, v, e) for n, values in BAD.items() for v, e in values]:
        rule = rf"'{name}' parameter of GegenbauerFeatures must be .+\. Got {re.escape(repr(value))} instead"
        with pytest.raises(error, match=rule):
            GegenbauerFeatures(**{name: value}).fit(np.ones((2, 3)))


def test_parameters_that_do_not_go_together(rng):
    for parameters, error, text in [
        ({"kernel": "arc_cosine", "power": 3}, ValueError, "'power' .* an int from 0 to 2. Got 3"),
        ({"kernel": np.exp, "power": -1}, ValueError, "'power' .* an int ≥ 0. Got -1"),
        ({"kernel": np.exp, "power": 1.0}, TypeError, "'power' .* Got 1.0"),
        ({"kernel": lambda t: -t}, ValueError, "not positive definite in dimension 3: .* degree 1 is -1 < 0"),
        ({"kernel": lambda t: t[:2], "degree": 2}, ValueError, "must return finite .*of the same shape"),
        ({"kernel": lambda t: 1.0, "degree": 2}, ValueError, "must return finite .*of the same shape"),  # noqa: ARG005
        ({"degree": "a"}, ValueError, "'degree' parameter of GegenbauerFeatures must be 'auto' or an int ≥ 0. Got 'a'"),
        ({"order": "a"}, ValueError, "'order' parameter of GegenbauerFeatures must be 'auto' or an int ≥ 1. Got 'a'"),
        (
            {"kernel": "gaussian", "groups": [(0, 1)]},
            ValueError,
            r"'groups' .* each column from 0 to 2 exactly once. Got \[\(0, 1\)\]",
        ),
        ({"kernel": "gaussian", "groups": [(0, 1), (1, 2)]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1, 2), ()]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": []}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1, 3)]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1.5, 2)]}, (TypeError, ValueError), "'groups'"),
        ({"kernel": "gaussian", "groups": 3}, TypeError, "'groups' .* Got 3"),
        ({"kernel": "gaussian", "groups": "a"}, ValueError, "'groups' .* must be 'auto' or None or a .* Got 'a'"),
        ({"kernel": "ntk", "groups": "a"}, ValueError, "'groups' .* Got 'a'"),
        ({"kernel": "gaussian", "groups": [0, 1, 2]}, TypeError, "'groups'"),
        ({"kernel": "ntk", "groups": [(0, 1), (2,)]}, ValueError, "'kernel' .* 'gaussian' with groups. Got 'ntk'"),
        ({"kernel": np.ones(3), "groups": [(0, 1), (2,)]}, ValueError, "'kernel' .* 'gaussian' with groups"),
        (
            {"kernel": "gaussian", "harmonics": False, "groups": [(0, 1), (2,)]},
            ValueError,
            "'harmonics' .* True with groups. Got False",
        ),
        (
            {"kernel": "gaussian", "projection": 2, "groups": [(0, 1), (2,)]},
            ValueError,
            "'projection' .* None with groups. Got 2",
        ),
        ({"tolerance": 1.0, "harmonics": False}, ValueError, "tolerance"),
    ]:
        with pytest.raises(error, match=text):
            GegenbauerFeatures(**parameters).fit(rng.standard_normal((5, 3)))


def test_degree_of_one_column(rng):
    with pytest.raises(ValueError, match=r"'degree' parameter of GegenbauerFeatures must be .* 0 to 1\. Got 2"):
        GegenbauerFeatures(degree=2).fit(rng.standard_normal((5, 1)))


def test_in_use(rng):
    X = rows_of(rng, 60, 3)
    m = GegenbauerFeatures("gaussian", lengthscale=1.0).suggest_n_components(X, 0.1)
    assert (
        GegenbauerFeatures("gaussian", n_components=m, lengthscale=1.0, random_state=0).fit(X).estimate_error(X) < 0.1
    )
    assert repr(GegenbauerFeatures()) == "GegenbauerFeatures()"


@pytest.mark.parametrize(
    "parameters", [{"kernel": "ntk"}, {"kernel": "gaussian"}, {"kernel": "ntk", "harmonics": False}]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, on first use
def test_forward_derivatives(parameters, rng):
    """Compare torch.func.jvp with finite differences: dual tensors do not set requires_grad."""
    import torch

    X, V = rng.standard_normal((2, 6, 4))
    features = GegenbauerFeatures(n_components=40, random_state=0, **parameters).fit(X)
    step = 1e-6
    expected = (features.transform(X + step * V) - features.transform(X - step * V)) / (2 * step)
    _, found = torch.func.jvp(features.transform, (torch.from_numpy(X),), (torch.from_numpy(V),))
    np.testing.assert_allclose(as_numpy(found), expected, atol=1e-7)


def test_many_groups_take_little_time(rng):
    X = rng.standard_normal((200, 6))
    features = GegenbauerFeatures(
        "gaussian", n_components=512, groups=[(i,) for i in range(6)], lengthscale=2.0, random_state=0
    )
    Z = features.fit(X).transform(X)
    assert Z.shape == (200, 512)
    assert features.estimate_error(X) < 0.05


def test_all_taylor_coefficients_count(rng):
    X = rng.standard_normal((20, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    features = GegenbauerFeatures([1.0] + [0.0] * 900 + [1.0], n_components=4, random_state=0).fit(X)
    assert features.truncation_ > 0.4
    with pytest.raises(ValueError, match="up to 1001 Taylor coefficients"):
        GegenbauerFeatures([1.0] * 1002).fit(X)


def test_errors_of_functions_on_tensors(rng):
    import torch

    for dtype in ["float16", "float64"]:
        X = torch.from_numpy(rng.standard_normal((50, 3))).to(getattr(torch, dtype)).requires_grad_()
        features = GegenbauerFeatures("arc_cosine", n_components=256, random_state=0).fit(X)
        assert features.estimate_error(X) < 0.01
