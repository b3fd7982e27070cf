"""Statistics of the maps of the NTK: bias, rates, deep networks, spectral error, laws of the directions.

The level of a check is the probability of a false alarm: LEVEL = 1e-6 unless stated otherwise.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn.datasets import load_digits
from tests.reference.features import polynomial_kernel
from tests.statistical import LEVEL, check_rms_scaling, check_unbiased, gram_matrices, rms_error, spread_rows
from tests.tiers import ALL, sampled, thorough
from threadpoolctl import threadpool_limits

from ntkit import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.diagnostics import spectral_error, statistical_dimension
from ntkit.features import directions as module
from ntkit.features.directions import Directions
from ntkit.features.network.stages import Activate
from ntkit.kernels import nngp, ntk
from ntkit.programs import Program

SEED = 100_000 * int(os.environ.get("NTKIT_TEST_SEED", "0"))  # the nightly sweep
GIBBS = {"directions": "leverage", "sampler": "gibbs"}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other: small QR decompositions then take seconds."""
    with threadpool_limits(1, user_api="blas"):
        yield


def maps(law, **parameters):
    """Seed ↦ feature map, for the statistical checks; every map is drawn once."""
    known = {}

    def sample(seed):
        def features(X):
            if seed not in known:
                known[seed] = law(random_state=seed, **parameters).fit_transform(X)
            return known[seed]

        return features

    return sample


def times(factor, sample):
    return lambda seed: lambda X: factor * sample(seed)(X)


def check_faults(sample, X, exact, n_seeds=400):
    """Scales that are wrong by 5 %, a lost √2, the zero map and a constant one are rejected."""
    for factor in (1.05, 0.95, 2**-0.5, 0.0):
        with pytest.raises(AssertionError):
            check_unbiased(times(factor, sample), X, exact, n_seeds=n_seeds, seed=SEED)
    with pytest.raises(AssertionError):
        check_unbiased(lambda _: lambda X: np.ones((len(X), 8)), X, exact, seed=SEED)


def activations(fitted):
    """Planned activations of all layers."""
    return [stage for _, stage in fitted._planned.stages if isinstance(stage, Activate)]


def cosines(X):
    norms = np.linalg.norm(X, axis=1)
    return X @ X.T / np.outer(norms, norms), np.outer(norms, norms)


# Bias.


@pytest.mark.parametrize("directions", ["gaussian", "leverage"])  # test_laws has orthogonal ones
def test_random_features_are_unbiased(directions):
    X = spread_rows(12)
    sample = maps(NTKRandomFeatures, n_components=256, directions=directions, normalize=False)
    check_unbiased(sample, X, ntk(X, depth=1), seed=SEED)
    check_faults(sample, X, ntk(X, depth=1))
    with pytest.raises(AssertionError):
        check_unbiased(sample, X, nngp(X, depth=1), seed=SEED)


def test_random_features_by_gibbs_sampling_are_unbiased():
    X = spread_rows(3)
    sample = maps(NTKRandomFeatures, n_components=96, gibbs_sweeps=4, normalize=False, **GIBBS)
    check_unbiased(sample, X, ntk(X, depth=1), seed=SEED)
    check_faults(sample, X, ntk(X, depth=1))


def test_nngp_features_are_unbiased():
    X = spread_rows(12)
    sample = maps(NTKRandomFeatures, kind="nngp", n_components=256, directions="gaussian", normalize=False)
    check_unbiased(sample, X, nngp(X, depth=1), seed=SEED)
    check_faults(sample, X, nngp(X, depth=1))


def test_step_features_in_place_of_relu_are_rejected(monkeypatch):
    X, activate = spread_rows(12), Program.activate
    monkeypatch.setattr(Program, "activate", lambda p, value, _, scale: activate(p, value, "step", scale))
    sample = maps(NTKRandomFeatures, n_components=256, normalize=False)
    with pytest.raises(AssertionError):
        check_unbiased(sample, X, ntk(X, depth=1), n_seeds=100, seed=SEED)


@pytest.mark.parametrize("kind", ["nngp", *["ntk"] * ALL])  # test_laws has the NTK
def test_polynomial_sketches_are_unbiased_for_the_fitted_polynomial(kind):
    X = spread_rows(12)
    parameters = {"depth": 2, "degree": 6, "n_components": 256, "kind": kind, "normalize": False}
    fitted = NTKPolynomialSketch(**parameters).fit(X)
    t, norms = cosines(X)
    # Degrees whose share is below one component give it to the others, so the budget's coefficients count.
    exact = norms * sum(a * t**j for j, a in fitted.budget_.coefficients.items())
    sample = maps(NTKPolynomialSketch, **parameters)
    check_unbiased(sample, X, exact, seed=SEED)
    check_faults(sample, X, exact)
    np.testing.assert_allclose(exact, norms * np.polynomial.polynomial.polyval(t, fitted.coefficients_), atol=0.02)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param({}, id="split", marks=thorough),  # test_laws has both
        pytest.param({"variant": "paper"}, id="paper", marks=thorough),
        pytest.param({"variant": "paper", "projection": True, "series": "taylor", "replace": True}, id="letter"),
    ],
)
def test_sketches_are_unbiased_for_their_polynomials(parameters):
    """At depth 1: P₁(t) + t P₀(t), times the norms."""
    X = spread_rows(12)
    parameters = {"degree": 4, "derivative_degree": 3, "n_components": 256, "normalize": False, **parameters}
    fitted = NTKSketch(**parameters).fit(X)
    forward, derivative = fitted.coefficients_, fitted.derivative_coefficients_
    if "variant" not in parameters:  # the coefficients after degrees without a component gave theirs to others
        (stage,) = activations(fitted)
        budgets = [law.budget for law in (stage.units.forward, stage.units.derivative)]
        forward, derivative = ([b.coefficients.get(j, 0.0) for j in range(5)] for b in budgets)
    exact = polynomial_kernel(X, 1, forward, derivative)
    sample = maps(NTKSketch, **parameters)
    check_unbiased(sample, X, exact, seed=SEED)
    check_faults(sample, X, exact)


# Rates.


@pytest.mark.parametrize("depth", [3, *[1] * ALL])  # test_laws has depth 1
@pytest.mark.parametrize(
    ("law", "parameters", "n_features"),
    # Enough columns that no degree's monomials fit; degrees that fit would have no error.
    sampled(
        [
            pytest.param(NTKPolynomialSketch, {"degree": 8}, 600, id="polynomial"),
            pytest.param(NTKSketch, {"degree": 4, "derivative_degree": 5}, 600, id="sketch"),
            pytest.param(NTKSketch, {"degree": 4, "derivative_degree": 5, "variant": "paper"}, 64, id="paper"),
            pytest.param(NTKRandomFeatures, {}, 64, id="orthogonal"),
            pytest.param(NTKRandomFeatures, {"directions": "leverage"}, 64, id="leverage"),
        ],
        3,
    ),
)
def test_four_times_the_components_halve_the_error(law, parameters, n_features, depth):
    """Ratios of five other seeds were 0.50 ± 0.02 on average, 0.45 ± 0.02 for random features at depth 1."""
    X = spread_rows(n_features)
    fitted = law(depth=depth, n_components=64, **parameters).fit(X)
    exact = ntk(X, depth=depth)
    if law is NTKPolynomialSketch:
        t, norms = cosines(X)
        exact = norms * np.polynomial.polynomial.polyval(t, fitted.coefficients_)
    elif law is NTKSketch:
        exact = polynomial_kernel(X, depth, fitted.coefficients_, fitted.derivative_coefficients_)
    known = {m: maps(law, depth=depth, n_components=m, **parameters) for m in (64, 256)}

    def check(sample):
        n_seeds = 400 if depth == 1 and law is NTKRandomFeatures else 100
        check_rms_scaling(sample, X, exact, n_components=64, n_seeds=n_seeds, seed=SEED, low=0.35, high=0.65)

    check(lambda m, seed: known[m](seed))
    with pytest.raises(AssertionError):  # components that are not used
        check(lambda _, seed: known[64](seed))


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_orthogonal_directions_have_a_smaller_variance(kind):
    """RMS errors over 100 seeds have a relative standard deviation of about 0.04; ratios measured: 0.93 and 0.71."""
    X = spread_rows(32)
    K = {"ntk": ntk, "nngp": nngp}[kind](X, depth=1)

    def error(directions):
        parameters = {"n_components": 64, "derivative_components": 512, "split": 0.5 if kind == "ntk" else None}
        sample = maps(NTKRandomFeatures, kind=kind, directions=directions, normalize=False, **parameters)
        return rms_error(sample, X, K, n_seeds=150, seed=SEED)

    assert error("orthogonal") < (0.97 if kind == "ntk" else 0.9) * error("gaussian")


@pytest.mark.parametrize("law", [NTKPolynomialSketch, NTKSketch, NTKRandomFeatures])
def test_deep_networks(law):
    """Relative errors with 1024 components on digits, at depths 1, 2, 4, 8; half of the bounds was measured."""
    X = load_digits().data[:200] / 16
    bounds = {NTKPolynomialSketch: (0.04, 0.06, 0.09, 0.11)}.get(law, (0.07, 0.1, 0.16, 0.28))
    for depth, bound in zip((1, 2, 4, 8), bounds, strict=True):
        K = ntk(X, depth=depth)
        Z = law(depth=depth, n_components=1024, random_state=SEED + depth).fit_transform(X)
        assert np.linalg.norm(Z @ Z.T - K) < bound * np.linalg.norm(K)
        np.testing.assert_allclose((Z**2).sum(1), (depth + 1) * (X**2).sum(1), rtol=1e-10)


def test_theorem_3():
    """(1 − ε)(K + λI) ⪯ ZZᵀ + λI ⪯ (1 + ε)(K + λI) with ε = ½, failure probability δ = 1e-6 for each draw.

    n = 20 rows of norm 1 in dimension 5, λ = 2. The sizes are those of the proof: m₁ = 16/3 · d/ε² · min(rank², ‖X‖²/λ)
    · log(48 s_λ/δ) ≈ 6,600, m₀ = 48 n/(λε²) · log(48 s_λ/δ) ≈ 36,000 and, with the constant 1 that the theorem leaves
    open, m_s = n/(ε²(1 + λ)) · log³(n/(εδ)) ≈ 143,000.
    """
    n, d, lam, eps, delta = 20, 5, 2.0, 0.5, 1e-6
    X = np.random.default_rng(0).standard_normal((n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    K = ntk(X, depth=1)
    assert lam < np.linalg.norm(K, 2)
    logarithm = np.log(48 * statistical_dimension(K, lam) / delta)
    m1 = 16 / 3 * d / eps**2 * min(np.linalg.matrix_rank(X) ** 2, np.linalg.norm(X, 2) ** 2 / lam) * logarithm
    m0 = 48 * n / (lam * eps**2) * logarithm
    ms = n / (eps**2 * (1 + lam)) * np.log(n / (eps * delta)) ** 3
    m1, m0, ms = (int(np.ceil(m)) for m in (m1, m0, ms))
    errors = []
    for seed in range(3):
        features = NTKRandomFeatures(
            n_components=m1 + ms,
            split=m1 / (m1 + ms),
            derivative_components=m0,
            directions="leverage",
            normalize=False,
            replace=True,
            random_state=SEED + seed,
        )
        Z = features.fit_transform(X)
        assert activations(features)[0].units.n_forward == m1
        errors.append(spectral_error(K, Z, lam))
        assert spectral_error(K, 0 * Z, lam) > eps  # λ is small enough that the check can fail
        assert spectral_error(K, 1.5 * Z, lam) > eps
    assert max(errors) < eps


# Laws of the directions.


def check_same_law(values, law):
    """Kolmogorov–Smirnov at LEVEL."""
    assert stats.kstest(values, law.cdf).pvalue > LEVEL


def check_mean(values, expected):
    """Student's test at LEVEL."""
    assert stats.ttest_1samp(values, expected).pvalue > LEVEL


def check_uniform_directions(w):
    """Squares of coordinates of directions are Beta(½, (d−1)/2), signs are symmetric, coordinates uncorrelated.

    1 + d(d−1)/2 + 2d tests at LEVEL.
    """
    d = w.shape[1]
    u = w / np.linalg.norm(w, axis=1, keepdims=True)
    for j in range(d):
        check_same_law(u[:, j] ** 2, stats.beta(0.5, (d - 1) / 2))
        check_mean(u[:, j], 0)
        for i in range(j):
            check_mean(u[:, i] * u[:, j], 0)
    check_mean(u[:, 0] * u[:, 1] * u[:, 2], 0)


def check_norms(w):
    """‖w‖² ~ χ²_{d+2}."""
    check_same_law((w**2).sum(axis=1), stats.chi2(w.shape[1] + 2))


def test_gibbs_sampling_has_the_law_of_equation_86():
    w = module.gibbs(np.random.SeedSequence(SEED), n_features=6, size=5000, sweeps=10)
    check_norms(w)
    check_uniform_directions(w)
    check_mean((w**2).sum(axis=1), 8)
    gaussian = np.random.default_rng(SEED).standard_normal((5000, 6))
    check_uniform_directions(gaussian)
    with pytest.raises(AssertionError):
        check_norms(gaussian)
    with pytest.raises(AssertionError):
        check_uniform_directions(w * np.array([1.3, 1, 1, 1, 1, 1]))
    with pytest.raises(AssertionError):
        check_uniform_directions(w + 0.3)


@pytest.mark.parametrize("z", [0.0, 0.5, 3.0, 100.0])
def test_one_coordinate_given_the_others(z):
    """The density ∝ (z + t²) e^{−t²/2}, normalized and integrated numerically, at quantiles found by bisection."""
    u = np.array([1e-6, 0.01, 0.25, 0.5, 0.7, 0.99, 1 - 1e-6])
    t = module._inverse(u, np.full_like(u, z))

    def density(s):
        return (z + s**2) * np.exp(-(s**2) / 2) / (z + 1) / np.sqrt(2 * np.pi)

    below = [integrate.quad(density, -12, x, points=[0], epsabs=1e-12)[0] for x in t]
    np.testing.assert_allclose(below, u, rtol=1e-7, atol=1e-10)
    assert integrate.quad(density, -12, 12)[0] == pytest.approx(1)


def test_one_coordinate_by_gibbs_sampling():
    """With one feature a single sweep has the exact law already: |w| ~ χ_3."""
    w = module.gibbs(np.random.SeedSequence(SEED), n_features=1, size=5000, sweeps=1)
    check_norms(w)
    check_mean(w[:, 0], 0)


@pytest.mark.parametrize("sampler", ["exact", "gibbs"])
def test_leverage_directions_are_uniform(sampler):
    w = Directions(5, 5000, "leverage", sampler=sampler, sweeps=8).sample(np.random.SeedSequence(SEED))
    check_uniform_directions(w.astype(np.float64))


@pytest.mark.parametrize("law", ["gaussian", "leverage", "orthogonal"])
def test_directions_have_the_identity_as_covariance(law):
    draws = [Directions(4, 4, law).sample(np.random.SeedSequence(SEED + s)) for s in range(800)]
    w = np.concatenate(draws).astype(np.float64)
    if law == "gaussian":
        check_same_law(w.ravel(), stats.norm)
    else:
        check_uniform_directions(w[::4])  # one of each block: independent
    check_mean((w[::4, 0]) ** 2, 1)
    check_mean((w[::4, 0] * w[::4, 1]), 0)


def check_haar(draw):
    """Trace moments of orthogonal matrices: E tr Q = 0, E (tr Q)² = 1, E tr Q² = 1, first entries symmetric."""
    rng = np.random.default_rng(SEED)
    matrices = np.array([draw(rng) for _ in range(2000)])
    identities = np.broadcast_to(np.eye(4), (2000, 4, 4))
    np.testing.assert_allclose(matrices @ matrices.transpose(0, 2, 1), identities, atol=1e-12)
    traces = np.trace(matrices, axis1=1, axis2=2)
    check_mean(traces, 0)
    check_mean(traces**2, 1)
    check_mean(np.trace(matrices @ matrices, axis1=1, axis2=2), 1)
    for i in range(4):
        check_mean(matrices[:, i, i], 0)
        check_same_law(matrices[:, i, i] ** 2, stats.beta(0.5, 1.5))
    check_mean(np.linalg.det(matrices), 0)


def test_haar():
    check_haar(lambda rng: module.haar(rng, 4, 4))
    with pytest.raises(AssertionError):  # QR with the signs of LAPACK
        check_haar(lambda rng: np.linalg.qr(rng.standard_normal((4, 4)))[0].T)


def test_part_of_a_haar_matrix():
    rng = np.random.default_rng(SEED)
    rows = np.array([module.haar(rng, 7, 3) for _ in range(1500)])
    np.testing.assert_allclose(rows @ rows.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (1500, 3, 3)), atol=1e-12)
    for i in range(3):
        check_uniform_directions(rows[:, i])


@thorough
def test_exact_and_gibbs_sampled_leverage_features_agree():
    """Means of Gram matrices from 200 seeds each; Welch's test at LEVEL for each of 36 entries."""
    X = spread_rows(3)
    exact = maps(NTKRandomFeatures, n_components=64, directions="leverage", normalize=False)
    gibbs = maps(NTKRandomFeatures, n_components=64, gibbs_sweeps=4, normalize=False, **GIBBS)
    a, b = (gram_matrices(sample, X, 200, SEED) for sample in (exact, gibbs))
    assert stats.ttest_ind(a, b, equal_var=False).pvalue.min() > LEVEL / 36
    assert stats.ttest_ind(a, 1.2 * b, equal_var=False).pvalue.min() < LEVEL / 36
