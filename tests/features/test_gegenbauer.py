from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from tests.reference import gegenbauer as reference
from tests.statistical import check_rms_scaling, check_unbiased, check_variance, rms_error, spread_rows

from ntkit.diagnostics import spectral_error, statistical_dimension
from ntkit.features import _gegenbauer_numba, _zonal, gegenbauer
from ntkit.features.gegenbauer import GegenbauerFeatures
from ntkit.kernels import arc_cosine, dot_product, exponential, gaussian, nngp, ntk
from ntkit.kernels import zonal as kernels

KERNELS = ["ntk", "nngp", "gaussian", "exponential", "arc_cosine", (0.5, 1.0, 0.25), np.exp]


@parametrize_with_checks([GegenbauerFeatures(n_components=16), GegenbauerFeatures("gaussian", n_components=16)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


def test_many_estimator_checks_ran():
    assert len(list(estimator_checks_generator(GegenbauerFeatures(n_components=16)))) >= 45


def rows_of(rng, n, d, low=0.5, high=2.0):
    """Uniform directions, norms spread over an interval."""
    X = rng.standard_normal((n, d))
    return X * (rng.uniform(low, high, n) / np.linalg.norm(X, axis=1))[:, None]


def maps(*args, **parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: lambda X: GegenbauerFeatures(*args, random_state=seed, **parameters).fit_transform(X)


def held(fitted, X, n_terms=40):
    """What the modes of a map hold of the kernel, by definition: radial functions and their mixtures, written out."""
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


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_features_are_those_of_definition_8(kernel, d, rng):
    X = rows_of(rng, 7, d)
    features = GegenbauerFeatures(
        kernel, 9, depth=2, lengthscale=1.3, degree=4, tolerance=0.0, harmonics=False, random_state=0
    ).fit(X)
    directions = features._factors[0].directions.T
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1)
    Z = features.transform(X)
    order = Z.shape[1] // len(directions)
    assert Z.shape[1] == order * len(directions) <= 9
    assert features.modes_ == []
    h, _ = held(features, X, n_terms=12 if not isinstance(kernel, tuple) else 2)
    np.testing.assert_allclose(Z, reference.definition_8(X, directions, h[:, :, :order]), atol=1e-7)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders_of_definition_8(order, rng):
    """As many radial functions as asked for, in blocks of as many directions."""
    X = rows_of(rng, 65, 3, low=0.1, high=3.0)
    features = GegenbauerFeatures(
        "gaussian", 2**14, lengthscale=1.0, degree=3, order=order, tolerance=0.0, harmonics=False, random_state=0
    ).fit(X)
    size = 2**14 // order
    assert features._factors[0].directions.shape == (3, size)
    assert {i for _, i in features.random_modes_} == set(range(order))
    assert len(features.random_modes_) == 4 * order
    h, _ = held(features, X[:3])
    some = [0, 1, size - 1]
    Z = features.transform(X[:3])
    assert Z.shape == (3, order * size)
    naive = reference.definition_8(X[:3], features._factors[0].directions.T[some], h[:, :, :order])
    naive = naive.reshape(3, order, 3) * (3 / size) ** 0.5
    np.testing.assert_allclose(Z.reshape(3, order, size)[:, :, some], naive, atol=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
@pytest.mark.parametrize("kernel", KERNELS)
def test_harmonics_hold_the_kernel_up_to_the_degree(kernel, d, rng):
    """Mixtures are orthogonal: where all modes are taken nothing changes."""
    X = rows_of(rng, 12, d)
    degree = 1 if d == 1 else 3
    features = GegenbauerFeatures(kernel, 2048, depth=2, lengthscale=1.3, degree=degree, random_state=0).fit(X)
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


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize(
    ("kernel", "harmonics", "parameters"),
    [
        ("ntk", True, {"depth": 3, "degree": 4}),
        ("ntk", False, {"depth": 3, "degree": 4}),
        ("gaussian", True, {"lengthscale": 0.8, "degree": 5, "order": 1}),
        ("gaussian", False, {"lengthscale": 0.4, "degree": 2, "order": 2}),
    ],
)
def test_inner_products_are_unbiased(kernel, harmonics, parameters, orthogonal):
    """False alarms: 1e-6 each, for the kernel of the modes held."""
    X = spread_rows(6)
    right = maps(kernel, 96, harmonics=harmonics, orthogonal=orthogonal, tolerance=0.0, **parameters)
    fitted = GegenbauerFeatures(kernel, 96, harmonics=harmonics, tolerance=0.0, **parameters).fit(X)
    assert bool(fitted.modes_) == harmonics
    orders = {i for _, i in fitted.random_modes_}
    assert orders == ({0, 1} if parameters.get("order") == 2 else {0})
    _, K = held(fitted, X, n_terms=60)
    features = [right(seed)(X) for seed in range(400)]
    check_unbiased(lambda seed: lambda X: features[seed], X, K)  # noqa: ARG005
    with pytest.raises(AssertionError):
        check_unbiased(lambda seed: lambda X: 1.05 * features[seed], X, K)  # noqa: ARG005


def test_a_direction_alone_is_unbiased_too():
    """False alarms: 1e-6. Each feature counts, not only their mean."""
    X = spread_rows(3)
    check_unbiased(
        maps("ntk", 1, degree=2, harmonics=False, tolerance=0.0), X,
        held(GegenbauerFeatures("ntk", 1, degree=2, harmonics=False, tolerance=0.0).fit(X), X)[1], n_seeds=800,
    )  # fmt: skip


def test_variance_is_that_of_independent_directions():
    """Var = (E f_x(w)² f_y(w)² − K²)/M, the mean over the circle by the trapezoidal rule, exact for polynomials."""
    X = spread_rows(2)
    parameters = {"degree": 4, "harmonics": False, "orthogonal": False, "tolerance": 0.0}
    fitted = GegenbauerFeatures("ntk", 64, **parameters).fit(X)
    h, K = held(fitted, X)
    angles = 2 * np.pi * np.arange(64) / 64
    f = 8 * reference.definition_8(X, np.stack([np.cos(angles), np.sin(angles)], axis=1), h[:, :, :1])
    np.testing.assert_allclose(f @ f.T / 64, K, atol=1e-9)
    formula = ((f**2) @ (f**2).T / 64 - K**2) / 64
    check_variance(maps("ntk", 64, **parameters), X, formula, n_seeds=500)
    with pytest.raises(AssertionError):
        check_variance(maps("ntk", 256, **parameters), X, formula, n_seeds=500)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_four_times_the_components_halve_the_error(orthogonal):
    """Ratios for 20 other seeds: 0.47 to 0.54."""
    X = spread_rows(4)
    parameters = {"degree": 4, "harmonics": False, "tolerance": 0.0, "orthogonal": orthogonal}
    _, K = held(GegenbauerFeatures("ntk", 64, **parameters).fit(X), X)
    check_rms_scaling(lambda m, seed: maps("ntk", m, **parameters)(seed), X, K, n_components=64, n_seeds=200)


def test_orthogonal_directions_and_harmonics_have_less_error():
    X = spread_rows(6)
    parameters = {"degree": 3, "tolerance": 0.0, "depth": 2}
    _, K = held(GegenbauerFeatures("ntk", 60, harmonics=False, **parameters).fit(X), X)
    plain, orthogonal, whole = (
        rms_error(maps("ntk", 60, harmonics=h, orthogonal=o, **parameters), X, K, n_seeds=60)
        for h, o in ((False, False), (False, True), (True, True))
    )
    assert orthogonal < 0.9 * plain
    assert whole < 0.5 * orthogonal


def test_spectral_error_is_below_that_of_theorem_9(rng):
    """M of Theorem 9 for ε = ½, δ = 0.1 suffices for all of ten seeds, and four times as many halve the error."""
    X, d, degree, lam, eps, delta = rows_of(rng, 80, 3), 3, 5, 4.0, 0.5, 0.1
    parameters = {"depth": 2, "degree": degree, "harmonics": False, "orthogonal": False, "tolerance": 0.0}
    h, K = held(GegenbauerFeatures("ntk", 8, **parameters).fit(X), X, n_terms=1)
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


@pytest.mark.parametrize("harmonics", [True, False])
@pytest.mark.parametrize("orthogonal", [True, False])
def test_random_directions_are_orthogonal_if_asked_for(orthogonal, harmonics, rng):
    X = rows_of(rng, 9, 4)
    features = GegenbauerFeatures(
        "ntk", 48, depth=3, degree=4, harmonics=harmonics, orthogonal=orthogonal, random_state=0
    ).fit(X)
    factor = features._factors[0]
    w = factor.directions[:, factor.n_shared :][:, :4]
    assert np.allclose(w.T @ w, np.eye(4)) == orthogonal


@pytest.mark.parametrize(("d", "size"), [(1, 3), (2, 7), (5, 23), (300, 400)])
def test_directions_are_orthogonal_in_blocks(d, size):
    w = _zonal.draw_directions(np.random.SeedSequence(0), d, size, orthogonal=True).T
    assert w.shape == (size, d)
    block = min(d, 256)
    for start in range(0, size, block):
        part = w[start : start + block]
        np.testing.assert_allclose(part @ part.T, np.eye(len(part)), atol=1e-12)
    if d > 1:
        assert np.abs(w[:1] @ w[block : 2 * block].T).max() < 1 - 1e-6
    more = _zonal.draw_directions(np.random.SeedSequence(0), d, size + 9, orthogonal=True).T
    np.testing.assert_allclose(more[:size], w, atol=1e-12)
    assert _zonal.draw_directions(np.random.SeedSequence(0), d, 0, orthogonal=True).shape == (d, 0)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_directions_are_uniform(orthogonal):
    """False alarms: 1e-6 each; for d = 3 coordinates are uniform on [−1, 1] (Archimedes)."""
    from scipy import stats

    firsts = [
        _zonal.draw_directions(np.random.SeedSequence(seed), 3, 1, orthogonal=orthogonal)[:, 0] for seed in range(400)
    ]
    for coordinate in np.array(firsts).T:
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > 1e-6


# Harmonics.


@pytest.mark.parametrize(
    ("d", "degree"),
    [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 40), (3, 2), (3, 20), (4, 8), (7, 3), (9, 2), (30, 2), (200, 1)],
)
def test_harmonics_are_exact(d, degree, rng):
    """Features of the kernel P_ℓ are its α_ℓ harmonics, whatever their directions."""
    size = kernels.harmonic_dimension(degree, d)
    X = rows_of(rng, 30, d)
    X[1], X[2] = 3 * X[0], -X[0]
    features = GegenbauerFeatures(
        lambda t: kernels.gegenbauer(t, degree, d)[-1], size, power=0, degree=degree, random_state=0
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
        lambda t: kernels.gegenbauer(t, degree, d)[-1], size, power=0, degree=degree, random_state=0
    ).fit_transform(X)
    Y = np.array([reference.harmonics(x, degree) for x in X])
    rotation = np.linalg.lstsq(Y, Z, rcond=None)[0]
    np.testing.assert_allclose(Y @ rotation, Z, atol=1e-12)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-12)


@pytest.mark.parametrize(("d", "degree"), [(3, 8), (3, 20), (5, 6), (9, 3)])
def test_harmonics_are_well_conditioned(d, degree):
    """Norms of mixing matrices multiply rounding errors; random directions have some of thousands.

    Directions of one degree alone, and those that all degrees up to it share.
    """
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
    features = GegenbauerFeatures("ntk", 9, random_state=0).fit(X)
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


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 8, 20, 50])
def test_modes_come_by_eigenvalue_as_long_as_they_fit(m, rng):
    X = rows_of(rng, 65, 3, 0.3, 1.5)
    features = GegenbauerFeatures("gaussian", m, lengthscale=1.0, degree=4, random_state=0).fit(X)
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
@pytest.mark.parametrize("harmonics", [True, False])
def test_any_number_of_components(kernel, harmonics, rng):
    X = rows_of(rng, 10, 3)
    sizes = []
    for m in (1, 2, 3, 4, 5, 7, 10, 33):
        features = GegenbauerFeatures(kernel, m, lengthscale=2.0, harmonics=harmonics, random_state=0).fit(X)
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


def test_truncation_is_what_is_left_out(rng):
    X = rows_of(rng, 65, 3, 0.3, 1.5)  # as many as quantiles are kept
    for kernel in (*KERNELS, "gaussian"):
        for m in (4, 30):
            features = GegenbauerFeatures(kernel, m, lengthscale=0.8, degree=3, random_state=0).fit(X)
            if features.random_modes_:
                continue
            Z = features.transform(X)
            diagonal = np.diag(exact_kernel(kernel, X, lengthscale=0.8))
            left_out = np.mean(diagonal - (Z**2).sum(axis=1)) / np.mean(diagonal)
            assert features.truncation_ == pytest.approx(left_out, abs=1e-10)


@pytest.mark.parametrize("harmonics", [True, False])
def test_truncation_counts_random_modes(harmonics, rng):
    """On average over 300 seeds and 65 rows; false alarms: 6 standard errors."""
    X = rows_of(rng, 65, 4)
    shares = []
    for seed in range(300):
        features = GegenbauerFeatures("ntk", 40, depth=2, degree=4, harmonics=harmonics, random_state=seed).fit(X)
        Z = features.transform(X)
        shares.append(1 - np.sum(Z**2) / (3 * np.sum(X**2)))
    assert features.random_modes_
    assert features.truncation_ > 0.05
    assert abs(np.mean(shares) - features.truncation_) < 6 * np.std(shares) / 300**0.5


@pytest.mark.parametrize(("norms", "share"), [((1, 1), 0.0), ((10, 10), 0.0), ((1, 200), 33 / 65), ((200, 200), 1.0)])
def test_truncation_far_beyond_the_length_scale(norms, share, rng):
    """Rows of more than 25 length scales have no features, which would take degrees by the hundred: that is said."""
    X = np.vstack([rows_of(rng, n, 2, norm, norm) for n, norm in zip((32, 33), norms, strict=True)])
    features = GegenbauerFeatures("gaussian", 512, lengthscale=1.0, random_state=0).fit(X)
    Z = features.transform(X)
    assert np.isfinite(Z).all()
    assert features.truncation_ == pytest.approx(share, abs=1e-9)
    assert 1 - np.mean((Z**2).sum(axis=1)) == pytest.approx(share, abs=1e-9)


def test_fewer_features_where_the_kernel_has_no_more(rng):
    X = rows_of(rng, 20, 2)
    features = GegenbauerFeatures((0.5, 1.0, 0.25), 100, random_state=0).fit(X)
    assert sorted(features.modes_) == [(0, 0), (0, 1), (1, 0), (2, 0)]
    assert features.random_modes_ == []
    assert features.transform(X).shape == (20, 6)
    assert features.truncation_ < 1e-14
    assert features.estimate_error(X) < 1e-13
    on_sphere = GegenbauerFeatures("gaussian", 1024, lengthscale=1.0).fit(rows_of(rng, 20, 3, 1.0, 1.0))
    assert {i for _, i in on_sphere.modes_} == {0}  # of equal norms one radial function is all
    assert on_sphere.truncation_ < 1e-12
    assert len(on_sphere.get_feature_names_out()) == (on_sphere.degree_ + 1) ** 2 < 400


def test_tolerance_leaves_modes_out(rng):
    X = rows_of(rng, 20, 5, 1.0, 1.0)
    parameters = {"lengthscale": 1.0, "degree": 12, "harmonics": False}
    c = kernels.gegenbauer_coefficients("exponential", 30, 5) / np.e
    rests = 1 - np.cumsum(c)
    for tolerance in (0.0, 1e-6, 1e-3, 0.1, 0.5):
        features = GegenbauerFeatures("gaussian", 64, tolerance=tolerance, **parameters).fit(X)
        beyond = max(rests[12], 0)
        smallest = np.sort(c[:13])
        dropped = smallest[: np.searchsorted(np.cumsum(smallest), tolerance, side="right")].sum()
        assert features.truncation_ == pytest.approx(dropped + beyond, abs=1e-12)
        assert len(features.random_modes_) == 13 - np.searchsorted(np.cumsum(smallest), tolerance, side="right")


def test_degrees(rng):
    X = rows_of(rng, 20, 4)
    for degree in (0, 1, 2, 7):
        features = GegenbauerFeatures("ntk", 64, depth=2, degree=degree, harmonics=False, tolerance=0.0).fit(X)
        assert features.degree_ == degree
        assert features.random_modes_ == [(k, 0) for k in range(degree + 1)]
    assert GegenbauerFeatures("ntk", 64).fit(X[:, :1]).degree_ == 1
    many = rng.standard_normal((5, 3000))  # in many columns degrees whose harmonics are too many are left out
    assert GegenbauerFeatures("ntk", 64).fit(many).degree_ <= 2
    for kernel in KERNELS:
        features = GegenbauerFeatures(kernel, 32, random_state=0).fit(many)
        assert np.isfinite(features.transform(many)).all()


def test_degrees_that_are_chosen(rng):
    """As many as fit whole; 20 of random features, but of more than the next one up to 8 harmonics a component."""
    assert GegenbauerFeatures("nngp", 201).fit(rows_of(rng, 9, 2)).degree_ == 100
    parameters = {"depth": 3, "tolerance": 0.0}
    assert GegenbauerFeatures("ntk", 1024, harmonics=False, **parameters).fit(rows_of(rng, 9, 5)).degree_ == 20
    X = rows_of(rng, 9, 30)
    for m, modes in ((31 + 57, [(2, 0)]), (31 + 400, [(2, 0)])):  # degree 2 has 464 harmonics, degree 3 has 4930
        features = GegenbauerFeatures("ntk", m, **parameters).fit(X)
        assert features.modes_ == [(0, 0), (1, 0)]
        assert features.random_modes_ == modes


def test_few_components_left_are_not_random(rng):
    """Below 1/16 of all: ten degrees of R³ fit in 100."""
    X = rows_of(rng, 9, 3)
    for m, some in ((100, False), (106, False), (107, True)):
        features = GegenbauerFeatures("ntk", m, depth=3, random_state=0).fit(X)
        assert sorted(features.modes_) == [(k, 0) for k in range(10)]
        assert bool(features.random_modes_) == some
        assert features.transform(X).shape[1] == (m if some else 100)


def test_degree_of_functions_ends_where_rounding_begins(rng):
    X = rows_of(rng, 20, 40)
    features = GegenbauerFeatures(np.exp, 1024, random_state=0).fit(X)
    named = kernels.gegenbauer_coefficients("exponential", features.degree_, 40)
    assert features.truncation_ == pytest.approx(1 - named.sum() / np.e, abs=1e-7)
    with pytest.raises(ValueError, match="lost in rounding"):
        GegenbauerFeatures("arc_cosine", 64, power=2, degree=20).fit(rng.standard_normal((10, 1000)))


# Kernels in whole.


@pytest.mark.parametrize(
    ("kernel", "error"),
    [("ntk", 0.03), ("nngp", 0.003), ("gaussian", 1e-4), ("exponential", 1e-4), ("arc_cosine", 0.003), (np.exp, 1e-6)],
)
def test_defaults_are_close_to_the_kernel(kernel, error, rng):
    X = rows_of(rng, 100, 3)
    features = GegenbauerFeatures(kernel, 1024, lengthscale=2.0, random_state=0).fit(X)
    Z, K = features.transform(X), exact_kernel(kernel, X, lengthscale=2.0)
    relative = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert relative < error
    np.testing.assert_allclose(features._kernel(X), K, rtol=1e-10, atol=1e-12)
    assert features.estimate_error(X) == pytest.approx(relative, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("kernel", [*KERNELS, np.array([0.5, 1.0, 0.25])])
def test_exact_kernels_of_all_kinds_of_rows(kernel, rng):
    import torch

    X = rows_of(rng, 12, 3)
    X[0] = 0
    features = GegenbauerFeatures(kernel, 64, power=2, lengthscale=1.5, depth=3, random_state=0).fit(X)
    K = features._kernel(X)
    expected = exact_kernel(
        tuple(kernel) if isinstance(kernel, np.ndarray) else kernel, X[1:], power=2, lengthscale=1.5, depth=3
    )
    np.testing.assert_allclose(K[1:, 1:], expected, rtol=1e-10, atol=1e-12)
    if kernel not in ("gaussian", "exponential") if isinstance(kernel, str) else kernel is np.exp:
        np.testing.assert_array_equal(K[0], 0)
    for rows in (sp.csr_array(X), torch.from_numpy(X)):
        other = features._kernel(rows)
        assert isinstance(other, torch.Tensor) == isinstance(rows, torch.Tensor)
        np.testing.assert_allclose(as_numpy(other), K, rtol=1e-10, atol=1e-12)
        assert features.estimate_error(rows) == pytest.approx(features.estimate_error(X), rel=1e-6, abs=1e-9)


def test_depth_and_power_count(rng):
    X = rows_of(rng, 50, 3)
    for parameters in ({"depth": 1}, {"depth": 4}):
        assert GegenbauerFeatures("nngp", 1024, **parameters).fit(X).estimate_error(X) < 0.01
    for power in (0, 1, 2, 3):
        kernel = "arc_cosine" if 0 < power < 3 else np.exp
        features = GegenbauerFeatures(kernel, 1024, power=power).fit(X)
        Z = features.transform(X)
        K = exact_kernel(kernel, X, power=power)
        np.testing.assert_allclose(Z @ Z.T, K, rtol=0, atol=0.01 * K.max())


# Groups and projections.


def test_groups_are_a_product_of_kernels(rng):
    X = rng.standard_normal((40, 4)) / 2
    groups = [(3, 0, 2), (1,)]
    features = GegenbauerFeatures("gaussian", 600, lengthscale=1.2, groups=groups, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_allclose(Z @ Z.T, gaussian(X, lengthscale=1.2), rtol=0, atol=2e-4)
    assert features.radii_.shape == (2, 65)
    assert all(len(pair) == 2 and all(len(mode) == 2 for mode in pair) for pair in features.modes_)
    assert Z.shape[1] == sum(kernels.harmonic_dimension(a[0], 3) * 1 for a, _ in features.modes_)
    assert features.random_modes_ == []
    few = GegenbauerFeatures("gaussian", 40, lengthscale=1.2, groups=groups, random_state=0).fit(X)
    assert few.modes_ == features.modes_[: len(few.modes_)] or few.truncation_ > features.truncation_
    left_out = 1 - np.mean((few.transform(X) ** 2).sum(axis=1))
    assert few.truncation_ == pytest.approx(left_out, abs=0.03)  # norms of groups as if independent
    import torch

    for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-13)


def test_features_of_groups_are_products_of_those_of_each(rng):
    """Each block is the tensor product of harmonics times radial functions, in the order of the groups."""
    X = rng.standard_normal((10, 3))
    features = GegenbauerFeatures("gaussian", 60, lengthscale=1.5, groups=[(0, 1), (2,)], random_state=0).fit(X)
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


def test_one_group_of_all_columns_changes_nothing(rng):
    X = rows_of(rng, 30, 3)
    one = GegenbauerFeatures("gaussian", 81, lengthscale=1.0, groups=[(0, 1, 2)], random_state=0).fit(X)
    none = GegenbauerFeatures("gaussian", 81, lengthscale=1.0, random_state=0).fit(X)
    assert [pair if len(one._factors) == 1 else pair[0] for pair in one.modes_] == none.modes_
    Z = none.transform(X)
    np.testing.assert_allclose(one.transform(X) @ one.transform(X).T, Z @ Z.T, atol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
def test_projections_keep_norms_and_products_on_average(sparse, rng):
    """Of the linear kernel: ‖x‖‖y‖ cos(Sx, Sy). Over 300 seeds cosines are off by O(1/64); false alarms: 6 se."""
    X = rows_of(rng, 5, 100)
    X[1] = 0.5 * X[0] + X[1]
    X[2] = -2 * X[0]
    rows = sp.csr_array(X) if sparse else X
    grams = []
    for seed in range(300):
        features = GegenbauerFeatures((0.0, 1.0), 64, projection=64, random_state=seed).fit(rows)
        Z = features.transform(rows)
        assert Z.shape == (5, 64)
        grams.append(Z @ Z.T)
        np.testing.assert_allclose(np.diag(grams[-1]), (X**2).sum(axis=1))
    scale = np.linalg.norm(X, axis=1)
    errors = (np.mean(grams, axis=0) - X @ X.T) / np.outer(scale, scale)
    assert (np.abs(errors) < 1 / 64 + 6 * (np.array(grams) / np.outer(scale, scale)).std(axis=0) / 300**0.5).all()
    assert np.abs(np.array(grams).std(axis=0)[0, 1]) > 0.01


def test_projections_that_reduce_nothing(rng):
    X = rows_of(rng, 20, 4)
    plain = GegenbauerFeatures("ntk", 32, random_state=0).fit(X).transform(X)
    for size in (4, 5, 100):
        np.testing.assert_array_equal(
            GegenbauerFeatures("ntk", 32, projection=size, random_state=0).fit(X).transform(X), plain
        )


def test_projections_of_all_kinds_of_rows(rng):
    import torch

    X = rng.standard_normal((20, 60))
    X[3] = 0
    features = GegenbauerFeatures("gaussian", 64, projection=8, random_state=0).fit(X)
    Z = features.transform(X)
    assert np.isfinite(Z).all()
    for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-12)
    features.set_params(batch_size=3)
    np.testing.assert_allclose(features.transform(X), Z, atol=1e-12)
    again = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


# Rows of all kinds.


@pytest.mark.parametrize("harmonics", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_libraries_and_precisions_agree(kernel, harmonics, rng):
    import torch

    X = rows_of(rng, 21, 5) * (rng.random((21, 5)) < 0.7)
    X[4] = 0
    features = GegenbauerFeatures(kernel, 48, lengthscale=1.5, harmonics=harmonics, random_state=0).fit(X)
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


def test_whole_numbers(rng):
    import torch

    X = rng.integers(0, 255, (20, 4), dtype=np.uint8)
    features = GegenbauerFeatures("gaussian", 32, random_state=0).fit(X)
    Z = features.transform(X.astype(np.float64))
    for rows in (X, X.astype(np.int64), torch.from_numpy(X), sp.csr_array(X)):
        out = features.transform(rows)
        assert "float64" in str(out.dtype)
        np.testing.assert_allclose(as_numpy(out), Z, atol=1e-12)
    again = GegenbauerFeatures("gaussian", 32).fit(torch.from_numpy(X))
    np.testing.assert_allclose(again.radii_, features.radii_, rtol=1e-14)


@pytest.mark.parametrize("harmonics", [True, False])
@pytest.mark.parametrize("kernel", ["ntk", "gaussian", (0.0, 1.0, 0.5)])
def test_gradients(kernel, harmonics, rng):
    import torch

    X = rows_of(rng, 4, 3)
    features = GegenbauerFeatures(kernel, 16, lengthscale=1.5, harmonics=harmonics, random_state=0).fit(X)
    x = torch.from_numpy(X).requires_grad_()
    assert torch.autograd.gradcheck(features.transform, x)
    zero = torch.zeros((2, 3), dtype=torch.float64, requires_grad=True)
    features.transform(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()
    with torch.no_grad():
        assert not features.transform(x).requires_grad
    many = features.set_params(batch_size=3).transform(x)
    np.testing.assert_allclose(many.detach(), features.transform(X), atol=1e-13)


@pytest.mark.parametrize("kind", ["float64", "float32", "csr", "torch"])
@pytest.mark.parametrize("harmonics", [True, False])
def test_features_do_not_depend_on_batches(kind, harmonics, rng):
    import torch

    X = rows_of(rng, 300, 5)
    rows = {
        "float64": X, "float32": X.astype(np.float32), "csr": sp.csr_array(X), "torch": torch.from_numpy(X)
    }[kind]  # fmt: skip
    features = GegenbauerFeatures("ntk", 65, harmonics=harmonics, random_state=0).fit(rows)
    Z = as_numpy(features.transform(rows))
    error = 1e-5 if kind == "float32" else 1e-12
    for batch_size in (1, 7, 128, 299, 10**6):
        features.set_params(batch_size=batch_size)
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=error)
    parts = [as_numpy(features.transform(part)) for part in (rows[:1], rows[1:120], rows[120:])]
    np.testing.assert_allclose(np.vstack(parts), Z, atol=error)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_features_do_not_depend_on_threads(threads, rng, monkeypatch):
    import numba

    X = rows_of(rng, 900, 5)
    features = GegenbauerFeatures("gaussian", 64, harmonics=threads > 1, random_state=0).fit(X)
    Z = features.transform(X)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
    monkeypatch.setattr(gegenbauer, "_TILE_BYTES", 1)
    np.testing.assert_allclose(features.transform(X), Z, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("harmonics", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_of_any_size(kernel, harmonics, dtype, rng):
    """Zero, tiny and huge rows, and such that `fit` did not see."""
    X = rows_of(rng, 6, 4)
    features = GegenbauerFeatures(kernel, 24, lengthscale=1.0, harmonics=harmonics, random_state=0).fit(X)
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


@pytest.mark.parametrize("scale", [1e-15, 1e15])
@pytest.mark.parametrize("kernel", ["ntk", "nngp", "arc_cosine", np.exp, "gaussian"])
def test_maps_scale_with_the_rows(kernel, scale, rng):
    X = rows_of(rng, 20, 4)
    near = GegenbauerFeatures(kernel, 24, random_state=0).fit(X)
    far = GegenbauerFeatures(kernel, 24, random_state=0).fit(scale * X)
    assert far.modes_ == near.modes_
    assert far.truncation_ == pytest.approx(near.truncation_)
    Z = far.transform(scale * X) / (1 if kernel == "gaussian" else scale)
    np.testing.assert_allclose(Z, near.transform(X), atol=1e-9)


@pytest.mark.parametrize("harmonics", [True, False])
def test_gaussian_far_beyond_what_was_seen(harmonics, rng):
    """No features hold rows there; they vanish, as k(x, y) does for all rows seen."""
    X = rows_of(rng, 20, 3)
    for size in (0.01, 1.0):
        features = GegenbauerFeatures("gaussian", 64, lengthscale=1.0, harmonics=harmonics, random_state=0).fit(
            size * X
        )
        for factor in (1e2, 1e4, 1e15, 1e100):
            Z = features.transform(np.array(factor * X))
            assert np.isfinite(Z).all()
            if not harmonics:
                continue
            assert ((Z**2).sum(axis=1) <= 1 + 1e-9).all()
        assert np.abs(features.transform(1e4 * X)).max() < 1e-9


@pytest.mark.parametrize("harmonics", [True, False])
@pytest.mark.parametrize("kernel", ["gaussian", "exponential", (0.5, 1.0, 0.25), "ntk"])
def test_rows_somewhat_beyond_what_was_seen(kernel, harmonics, rng):
    """Radial functions are those of all norms, only their mixtures those of the norms seen."""
    X, far = rows_of(rng, 65, 3, 0.5, 1.0), rows_of(rng, 5, 3, 1.5, 3.0)
    features = GegenbauerFeatures(
        kernel, 30, lengthscale=1.0, degree=2, tolerance=0.0, harmonics=harmonics, random_state=0
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
        order = Z.shape[1] // features._factors[0].directions.shape[1]
        naive = reference.definition_8(far, features._factors[0].directions.T, h[:, :, :order])
        np.testing.assert_allclose(Z, naive, atol=1e-6 * np.abs(naive).max())


def test_zero_rows_have_no_features_of_homogeneous_kernels(rng):
    """Of degree 0 too: ‖x‖⁰ is 0 for them."""
    X = rows_of(rng, 5, 3)
    X[2] = 0
    Z = GegenbauerFeatures(np.exp, 16, power=0, random_state=0).fit_transform(X)
    np.testing.assert_array_equal(Z[2], 0)
    np.testing.assert_allclose((Z[[0, 1, 3, 4]] ** 2).sum(axis=1), np.e, rtol=0.02)


@pytest.mark.parametrize("kernel", KERNELS)
def test_few_rows_and_columns(kernel, rng):
    for X in (rng.standard_normal((1, 1)), rng.standard_normal((1, 5)), rng.standard_normal((9, 1)), np.ones((4, 2))):
        for m in (1, 8):
            features = GegenbauerFeatures(kernel, m, random_state=0).fit(X)
            Z = features.transform(X)
            assert np.isfinite(Z).all()
            assert 1 <= Z.shape[1] <= m


@pytest.mark.parametrize("kernel", KERNELS)
def test_zero_rows_alone(kernel):
    X = np.zeros((3, 4))
    features = GegenbauerFeatures(kernel, 8, random_state=0).fit(X)
    Z = features.transform(X)
    if kernel in ("gaussian", "exponential") or isinstance(kernel, tuple):
        np.testing.assert_allclose(Z @ Z.T, 0.5 if isinstance(kernel, tuple) else 1.0, rtol=1e-12)
    else:
        np.testing.assert_array_equal(Z, 0)
    assert np.isfinite(features.transform(X + 1.0)).all()


def test_one_column_holds_the_kernel(rng):
    X = rng.standard_normal((30, 1))
    features = GegenbauerFeatures("gaussian", 64, lengthscale=1.0, random_state=0).fit(X)
    assert features.degree_ == 1
    assert features.estimate_error(X) < 1e-6
    features = GegenbauerFeatures("ntk", 64, random_state=0).fit(X)
    assert features.modes_ == [(0, 0), (1, 0)]
    assert features.estimate_error(X) < 1e-14


def test_rows_are_left_as_they_are(rng):
    X = rng.standard_normal((9, 5))
    kept = X.copy()
    features = GegenbauerFeatures("gaussian", 8).fit(X)
    features.transform(X)
    np.testing.assert_array_equal(X, kept)
    X.setflags(write=False)
    features.transform(X)
    features.fit(X)


def test_data_frames(rng):
    import pandas as pd

    frame = pd.DataFrame(rng.standard_normal((12, 3)), columns=["a", "b", "c"])
    features = GegenbauerFeatures(n_components=5, random_state=0).set_output(transform="pandas").fit(frame)
    out = features.transform(frame)
    assert list(out.columns) == [f"gegenbauerfeatures{i}" for i in range(out.shape[1])]
    assert list(features.feature_names_in_) == ["a", "b", "c"]


def test_dask(rng):
    import dask.array as da

    X = rng.standard_normal((40, 5))
    features = GegenbauerFeatures("gaussian", 40, random_state=0).fit(X)
    lazy = da.from_array(X, chunks=(13, 5))
    out = features.transform(lazy)
    size = len(features.get_feature_names_out())
    assert out.chunks == ((13, 13, 13, 1), (size,))
    np.testing.assert_allclose(out.compute(), features.transform(X), atol=1e-13)
    first = GegenbauerFeatures("gaussian", 40, random_state=0).fit(lazy)  # the first chunk is what it sees
    features = GegenbauerFeatures("gaussian", 40, random_state=0).fit(X[:13])
    np.testing.assert_allclose(first.radii_, features.radii_)
    np.testing.assert_allclose(first.transform(X), features.transform(X), atol=1e-12)


# Compiled recursions.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [2, 3, 10])
def test_compiled_polynomials(d, dtype, rng):
    """Degrees to 11 of columns that they share, or not, of numbers less and more than what is worked on at a time."""
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_groups", [1, 2, 3])
@pytest.mark.parametrize("top", [0, 1, 2, 3, 4, 5, 8, 9])
def test_compiled_sums(top, n_groups, dtype, rng):
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


def test_scale_is_that_of_the_rows(rng):
    X = 3 * rng.standard_normal((50, 6)) + 2
    X *= rng.random(X.shape) < 0.6
    for rows in (X, sp.csr_array(X)):
        features = GegenbauerFeatures("gaussian", 4).fit(rows)
        assert features.lengthscale_ == pytest.approx((6 * X.var() / 2) ** 0.5)
    assert GegenbauerFeatures("gaussian", 4, lengthscale=3).fit(X).lengthscale_ == 3.0
    assert GegenbauerFeatures("gaussian", 4).fit(np.ones((3, 2))).lengthscale_ == pytest.approx(0.5**0.5)
    doubled = sp.csr_array((np.ones(4), np.array([0, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 2))
    features = GegenbauerFeatures("gaussian", 4).fit(doubled)
    assert features.lengthscale_ == pytest.approx(GegenbauerFeatures("gaussian", 4).fit(doubled.toarray()).lengthscale_)


# Fits, copies, draws again.


def test_fits_leave_the_first_if_they_fail(rng):
    X = rng.standard_normal((6, 4))
    features = GegenbauerFeatures("gaussian", 8, random_state=0).fit(X)
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
    features = GegenbauerFeatures("gaussian", 9, harmonics=False, random_state=0).fit(X)
    Z = features.transform(X)
    features.set_params(
        kernel="ntk", n_components=4, lengthscale=0.1, degree=1, order=1, harmonics=True, tolerance=0.5, projection=2,
        orthogonal=False, groups=[(0, 1), (2, 3)], depth=7, power=0, random_state=1,
    )  # fmt: skip
    for copy in (features, pickle.loads(pickle.dumps(features))):
        np.testing.assert_array_equal(copy.transform(X), Z)
        assert len(copy.get_feature_names_out()) == Z.shape[1]


def test_pickles(rng):
    import torch

    X = rng.standard_normal((6, 5))
    features = GegenbauerFeatures("gaussian", 100, random_state=0).fit(X)
    size = len(pickle.dumps(features))
    for rows in (X, X.astype(np.float32), sp.csr_array(X), torch.from_numpy(X).requires_grad_()):
        features.transform(rows)
    stored = pickle.dumps(features)
    assert len(stored) == size
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    np.testing.assert_array_equal(again.transform(X.astype(np.float32)), features.transform(X.astype(np.float32)))
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(GegenbauerFeatures())).transform(X)


@pytest.mark.parametrize("random_state", [None, 7, np.random.RandomState(0), np.random.default_rng(0)])
@pytest.mark.parametrize("parameters", [{}, {"harmonics": False}, {"groups": [(0, 1), (2, 3)]}, {"projection": 2}])
def test_the_seed_kept_draws_the_same_map_again(random_state, parameters, rng):
    X = rng.standard_normal((70, 4))
    features = GegenbauerFeatures("gaussian", 30, random_state=random_state, **parameters).fit(X)
    entropy, spawn_key, pool_size = features._seed
    seed = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size)
    again = GegenbauerFeatures("gaussian", 30, **parameters)
    for name in ("n_features_in_", "lengthscale_", "radii_"):
        setattr(again, name, getattr(features, name))
    again._draw(seed)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    assert again.modes_ == features.modes_
    assert again.truncation_ == features.truncation_


def test_seeds(rng):
    X = rng.standard_normal((6, 4))
    features = GegenbauerFeatures("ntk", 40, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_array_equal(clone(features).fit_transform(X), Z)
    assert not np.allclose(clone(features).set_params(random_state=1).fit_transform(X), Z)
    assert not np.allclose(*(GegenbauerFeatures(n_components=40).fit_transform(X) for _ in range(2)))
    directions = features._factors[0].directions
    for i in range(directions.shape[1] - 1):  # of harmonics of all degrees, and random ones: all their own
        others = np.abs(directions[:, i] @ directions[:, i + 1 :])
        assert others.max() < 1 - 1e-9 or (np.abs(directions[:, i]).max() == 1)


def test_groups_have_draws_of_their_own(rng):
    X = rng.standard_normal((6, 6))
    features = GegenbauerFeatures("gaussian", 400, groups=[(0, 1, 2), (3, 4, 5)], random_state=0).fit(X)
    first, second = (factor.directions for factor in features._factors)
    assert first.shape[1] > 8
    common = min(first.shape[1], second.shape[1])
    same = np.isclose(first[:, :common], second[:, :common]).all(axis=0)
    assert same.sum() <= 4  # degree 0 and 1 are those of the coordinates


# Errors.

COUNTS = [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError)]
BAD = {
    "kernel": [("relu", ValueError), (None, TypeError), ([], ValueError), ([-1.0], ValueError), (3.0, TypeError)],
    "n_components": [*COUNTS, (None, TypeError)],
    "depth": [*COUNTS, (None, TypeError)],
    "degree": [(-1, ValueError), (1.5, TypeError), ("a", ValueError), (True, TypeError), (None, TypeError)],
    "order": [(0, ValueError), (1.5, TypeError), ("a", ValueError), (True, TypeError), (None, TypeError)],
    "harmonics": [(1, TypeError), (None, TypeError), ("yes", TypeError)],
    "orthogonal": [(1, TypeError), (None, TypeError)],
    "tolerance": [(-0.1, ValueError), (1.5, ValueError), (np.nan, ValueError), ("a", TypeError), (None, TypeError)],
    "lengthscale": [
        (0, ValueError), (-1.0, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("auto", ValueError),
        (None, TypeError), (True, TypeError),
    ],
    "projection": COUNTS,
    "batch_size": COUNTS,
    "random_state": [(-1, ValueError), (0.5, TypeError), ("a", TypeError)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value", "error"), [(n, v, e) for n, values in BAD.items() for v, e in values])
def test_bad_parameters(name, value, error):
    rule = rf"'{name}' parameter of GegenbauerFeatures must be .+\. Got {re.escape(repr(value))} instead"
    with pytest.raises(error, match=rule):
        GegenbauerFeatures(**{name: value}).fit(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ({"kernel": "arc_cosine", "power": 3}, ValueError, "'power' .* an int from 0 to 2. Got 3"),
        ({"kernel": np.exp, "power": -1}, ValueError, "'power' .* an int ≥ 0. Got -1"),
        ({"kernel": np.exp, "power": 1.0}, TypeError, "'power' .* Got 1.0"),
        ({"kernel": lambda t: -t}, ValueError, "not positive definite in dimension 3: .* degree 1 is -1 < 0"),
        ({"kernel": lambda t: t[:2], "degree": 2}, ValueError, "must return finite .*of the shape"),
        ({"kernel": lambda t: 1.0, "degree": 2}, ValueError, "must return finite .*of the shape"),  # noqa: ARG005
        ({"degree": "a"}, ValueError, "'degree' parameter of GegenbauerFeatures must be 'auto' or an int ≥ 0. Got 'a'"),
        ({"order": "a"}, ValueError, "'order' parameter of GegenbauerFeatures must be 'auto' or an int ≥ 1. Got 'a'"),
        (
            {"kernel": "gaussian", "groups": [(0, 1)]},
            ValueError,
            r"'groups' .* each of 0 to 2 is once. Got \[\(0, 1\)\]",
        ),
        ({"kernel": "gaussian", "groups": [(0, 1), (1, 2)]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1, 2), ()]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": []}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1, 3)]}, ValueError, "'groups'"),
        ({"kernel": "gaussian", "groups": [(0, 1.5, 2)]}, (TypeError, ValueError), "'groups'"),
        ({"kernel": "gaussian", "groups": 3}, TypeError, "'groups' .* Got 3"),
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
    ],
)
def test_parameters_that_do_not_go_together(parameters, error, text, rng):
    with pytest.raises(error, match=text):
        GegenbauerFeatures(**parameters).fit(rng.standard_normal((5, 3)))


def test_degree_of_one_column(rng):
    with pytest.raises(ValueError, match=r"'degree' parameter of GegenbauerFeatures must be .* 0 to 1\. Got 2"):
        GegenbauerFeatures(degree=2).fit(rng.standard_normal((5, 1)))


def test_bad_rows(rng):
    import torch

    X = rng.standard_normal((4, 5))
    features = GegenbauerFeatures(n_components=8).fit(X)
    for rows in (X[:, :4], sp.csr_array(X[:, :4]), torch.from_numpy(X[:, :4])):
        with pytest.raises(ValueError, match="X has 4 features, but GegenbauerFeatures is expecting 5 features"):
            features.transform(rows)
        with pytest.raises(NotFittedError):
            GegenbauerFeatures().transform(rows)
    X[1, 2] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        features.transform(X)
    with pytest.raises(ValueError, match="must be finite"):
        features.transform(torch.from_numpy(X))


def test_in_use(rng):
    X = rows_of(rng, 60, 3)
    m = GegenbauerFeatures("gaussian", lengthscale=1.0).suggest_n_components(X, 0.1)
    assert GegenbauerFeatures("gaussian", m, lengthscale=1.0, random_state=0).fit(X).estimate_error(X) < 0.1
    assert repr(GegenbauerFeatures()) == "GegenbauerFeatures()"


@pytest.mark.parametrize(
    "parameters", [{"kernel": "ntk"}, {"kernel": "gaussian"}, {"kernel": "ntk", "harmonics": False}]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, on first use
def test_forward_derivatives(parameters, rng):
    """torch.func.jvp against finite differences: dual tensors do not say that they want a gradient."""
    import torch

    X, V = rng.standard_normal((2, 6, 4))
    features = GegenbauerFeatures(n_components=40, random_state=0, **parameters).fit(X)
    step = 1e-6
    expected = (features.transform(X + step * V) - features.transform(X - step * V)) / (2 * step)
    _, found = torch.func.jvp(features.transform, (torch.from_numpy(X),), (torch.from_numpy(V),))
    np.testing.assert_allclose(as_numpy(found), expected, atol=1e-7)


def test_many_groups_take_little_time(rng):
    X = rng.standard_normal((200, 6))
    features = GegenbauerFeatures("gaussian", 512, groups=[(i,) for i in range(6)], lengthscale=2.0, random_state=0)
    Z = features.fit(X).transform(X)
    assert Z.shape == (200, 512)
    assert features.estimate_error(X) < 0.05


def test_all_taylor_coefficients_count(rng):
    X = rng.standard_normal((20, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    features = GegenbauerFeatures([1.0] + [0.0] * 900 + [1.0], 4, random_state=0).fit(X)
    assert features.truncation_ > 0.4
    with pytest.raises(ValueError, match="up to 1001 Taylor coefficients"):
        GegenbauerFeatures([1.0] * 1002).fit(X)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_errors_of_functions_on_tensors(dtype, rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((50, 3))).to(getattr(torch, dtype)).requires_grad_()
    features = GegenbauerFeatures("arc_cosine", 256, random_state=0).fit(X)
    assert features.estimate_error(X) < 0.01
