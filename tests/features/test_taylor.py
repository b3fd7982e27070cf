from __future__ import annotations

import pickle
import re
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.conftest import as_numpy
from tests.reference import series as reference
from tests.reference.dot_product import dot_product_sketch, truncated_kernel, weight
from tests.statistical import check_rms_scaling, check_unbiased, kept, spread_rows
from tests.tiers import gpu, sampled, scaled

from ntkit.features.fourier import RandomFourierFeatures
from ntkit.features.series import base
from ntkit.features.series.dot_product import DotProductSketch, tail_factors
from ntkit.features.series.maclaurin import MaclaurinFeatures
from ntkit.kernels import dot_product, exponential, gaussian, nngp, ntk

KERNELS = ("gaussian", "exponential", "ntk", "nngp", (0.5, 0.0, 2.0, 1.0))
kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
normalize = pytest.mark.parametrize("normalize", [True, False])


def maps(kernel, m, **parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: (
        lambda X: DotProductSketch(kernel, n_components=m, random_state=seed, **parameters).fit_transform(X)
    )


# The law.


@normalize
@kernel
def test_features_equal_the_formula(kernel, normalize, rng):
    for d, m in [(3, 40), (1, 12), (8, 9), (2, 1)]:
        X = rng.standard_normal((5, d))
        X[2] = 0
        parameters = {"lengthscale": 1.3, "depth": 2, "degree": 5, "normalize": normalize, "random_state": 0}
        features = DotProductSketch(kernel, n_components=m, **parameters).fit(X)
        naive = np.array([dot_product_sketch(features, x) for x in X])
        np.testing.assert_allclose(features.transform(X), naive, rtol=1e-10, atol=1e-13)


def test_features_of_a_sparse_fit_equal_the_formula(rng):
    X = rng.standard_normal((4, 1030)) * (rng.random((4, 1030)) < 0.03)  # more than 4 · 256 columns
    features = DotProductSketch("gaussian", n_components=20, lengthscale=6.0, degree=3, random_state=0).fit(
        sp.csr_array(X)
    )
    assert features.sketch_.tree.leaves
    np.testing.assert_allclose(clone(features).fit(X).transform(X), features.transform(X), rtol=1e-10, atol=1e-13)
    naive = np.array([dot_product_sketch(features, x) for x in X])
    for rows in (X, sp.csr_array(X)):
        np.testing.assert_allclose(features.transform(rows), naive, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kernel", sampled(KERNELS, 2), ids=str)
def test_inner_products_are_unbiased(kernel):
    """False alarms: 1e-6 each. For the degrees kept, at norms from ½ to 2."""
    X = spread_rows(12)
    parameters = {"lengthscale": 1.5, "degree": 4, "normalize": False}
    budget = DotProductSketch(kernel, n_components=128, **parameters).fit(X).budget_
    assert budget.sketched
    K = truncated_kernel(X, kernel, budget.coefficients, 1.5)
    right = kept(maps(kernel, 128, **parameters))
    check_unbiased(right, X, K, n_seeds=400)
    with pytest.raises(AssertionError):
        check_unbiased(lambda seed: lambda X: 1.05 * right(seed)(X), X, K, n_seeds=400)


def test_the_check_of_the_mean_rejects_faults():
    X = spread_rows(12)
    parameters = {"lengthscale": 1.5, "degree": 4, "normalize": False}
    K = truncated_kernel(X, "gaussian", range(5), 1.5)
    right = kept(maps("gaussian", 128, **parameters))

    def same_weights(seed):
        """The weights of a mean norm for all rows."""

        def transform(X):
            features = DotProductSketch("gaussian", n_components=128, **parameters, random_state=seed).fit(X)
            weights = features._draws.weights
            features._draws.weights = lambda norms: weights(np.full_like(norms, norms.mean()))
            return features.transform(X)

        return transform

    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: right(0)(X),  # noqa: ARG005
        same_weights,
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=200)
    for degrees, lengthscale in ((3, 1.5), (5, 1.6)):
        with pytest.raises(AssertionError):
            check_unbiased(right, X, truncated_kernel(X, "gaussian", range(degrees), lengthscale), n_seeds=200)


@pytest.mark.parametrize("normalize", sampled([False, True], 1))
def test_more_components_lower_the_error(normalize):
    """Four times the components: 471 instead of 87 are sketched, √(87/471) = 0.43. Other seeds: 0.39 to 0.46."""
    X = spread_rows(40)
    K = truncated_kernel(X, "gaussian", range(5), 1.5)
    parameters = {"lengthscale": 1.5, "degree": 4, "normalize": normalize}
    check_rms_scaling(
        lambda m, seed: maps("gaussian", m, **parameters)(seed),
        X,
        K,
        n_components=128,
        n_seeds=200,
        low=0.33,
        high=0.53,
    )


@kernel
def test_norms_equal_the_kernel(kernel, rng):
    """Exact up to the dropped degrees."""
    X = rng.standard_normal((9, 20))
    features = DotProductSketch(kernel, n_components=128, lengthscale=5.0, degree=6, random_state=0).fit(X)
    assert features.budget_.sketched
    degrees = features.budget_.coefficients
    squares = [sum(weight(kernel, j, r, 5.0) ** 2 for j in degrees) for r in np.linalg.norm(X, axis=1)]
    np.testing.assert_allclose((features.transform(X) ** 2).sum(axis=1), squares, rtol=1e-10)


def test_normalizing_lowers_the_error(rng):
    X = rng.standard_normal((60, 20))
    X[30:] = X[:30] + 0.3 * rng.standard_normal((30, 20))
    for kernel, K in (("gaussian", gaussian(X, lengthscale=20**0.5)), ("ntk", ntk(X, depth=1))):

        def error(normalize, kernel=kernel, K=K):
            parameters = {"lengthscale": 20**0.5, "degree": 12, "normalize": normalize}
            Z = [maps(kernel, 256, **parameters)(seed)(X) for seed in range(10)]
            return np.sqrt(np.mean([np.linalg.norm(z @ z.T - K) ** 2 for z in Z]))

        assert error(True) < error(False)


@pytest.mark.parametrize(("d", "factor"), [(3, 0.01), (10, 0.1), (64, 0.5)])
def test_less_error_than_fourier_features(d, factor, rng):
    """For standardized rows and ℓ = √d; measured factors: 0.001, 0.05 and 0.32."""
    X = rng.standard_normal((200, d))
    parameters = {"lengthscale": d**0.5, "random_state": 0}
    ours = DotProductSketch("gaussian", n_components=1024, **parameters).fit(X).estimate_error(X)
    assert ours < factor * RandomFourierFeatures(n_components=1024, **parameters).fit(X).estimate_error(X)


# Kernels, degrees, learned attributes.


def test_kernels_are_the_exact_ones(rng):
    X = rng.standard_normal((6, 4))
    exact = {
        "gaussian": gaussian(X, lengthscale=1.7), "exponential": exponential(X, lengthscale=1.7),
        "ntk": ntk(X, depth=2), "nngp": nngp(X, depth=2), (1.0, 0.0, 0.3): dot_product(X, function=[1.0, 0.0, 0.3]),
    }  # fmt: skip
    for kernel, K in exact.items():
        features = DotProductSketch(kernel, n_components=8, lengthscale=1.7, depth=2, degree=3).fit(X)
        np.testing.assert_array_equal(features.exact_kernel(X), K)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kernel", ["ntk", "nngp"])
def test_errors_of_relu_kernels(kernel, depth, rng):
    X = rng.standard_normal((100, 20))
    assert DotProductSketch(kernel, n_components=2048, depth=depth, random_state=0).fit(X).estimate_error(X) < 0.04


def test_few_features_are_exact(rng):
    """All monomials of all degrees fit: truncation is the only error."""
    X = rng.standard_normal((30, 2))
    features = DotProductSketch("gaussian", n_components=1024, lengthscale=3.0, degree=20).fit(X)
    Z = features.transform(X)
    assert not features.budget_.sketched
    assert Z.shape[1] < 1024
    np.testing.assert_allclose(Z @ Z.T, gaussian(X, lengthscale=3.0), rtol=1e-9)
    wide = DotProductSketch("gaussian", n_components=60, lengthscale=3.0, degree=20).fit(X)
    assert max(wide.budget_.coefficients) < 20  # no room: degrees whose share is below half a component are dropped
    coefficients = (2.0, 3.0, 1.0)
    Z = DotProductSketch(coefficients, n_components=64).fit_transform(X)
    assert Z.shape == (30, 6)
    np.testing.assert_allclose(Z @ Z.T, dot_product(X, function=coefficients), rtol=1e-10)


def test_automatic_degrees():
    """Poisson's tail, averaged over the rows."""
    X = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    for tolerance in (1e-2, 1e-4, 1e-8):
        features = DotProductSketch("gaussian", n_components=64, lengthscale=1.0, tolerance=tolerance).fit(X)
        tails = [np.mean([stats.poisson(s).sf(features.degree_ - k) for s in (1.0, 4.0)]) for k in (0, 1)]
        assert tails[0] <= tolerance < tails[1]
    # e^{s} weighs the rows of the exponential kernel.
    features = DotProductSketch("exponential", n_components=64, lengthscale=1.0, tolerance=1e-4).fit(X)
    masses = np.exp([1.0, 4.0])
    tails = [np.dot(masses, stats.poisson([1.0, 4.0]).sf(features.degree_ - k)) / masses.sum() for k in (0, 1)]
    assert tails[0] <= 1e-4 < tails[1]
    assert DotProductSketch("ntk", n_components=64).fit(X).degree_ == 64
    assert DotProductSketch("ntk", n_components=64, tolerance=0.11).fit(X).degree_ == 2
    assert DotProductSketch([0.0] * 100 + [1.0], n_components=64).fit(X).degree_ == 100
    assert DotProductSketch([0.0, 1.0], n_components=64, tolerance=1).fit(X).degree_ == 1
    assert DotProductSketch([0.0, 1.0], n_components=64, degree=9).fit(X).degree_ == 1


def test_learned_attributes(rng):
    X = rng.standard_normal((50, 6))
    norms = np.linalg.norm(X, axis=1)
    for kernel in KERNELS:
        features = DotProductSketch(kernel, n_components=8, lengthscale=2.0, degree=5).fit(X)
        mean = [np.mean([weight(kernel, j, r, 2.0) ** 2 for r in norms]) for j in range(features.degree_ + 1)]
        np.testing.assert_allclose(features.weights_, np.array(mean) / np.sum(mean), rtol=1e-9)
        for rows in (np.vstack([X, np.zeros((9, 6))]), sp.csr_array(X)):
            np.testing.assert_allclose(clone(features).fit(rows).weights_, features.weights_, rtol=1e-12)
        zero, one = (clone(features).fit(rows).weights_ for rows in (0 * X, np.eye(6) * features.lengthscale_))
        np.testing.assert_allclose(zero, one, rtol=1e-12)
    assert DotProductSketch("gaussian", n_components=8).fit(X).lengthscale_ == pytest.approx(np.sqrt(3 * X.var()))
    assert DotProductSketch("ntk", n_components=8, degree=4).fit(X).lengthscale_ == 1.0


# Functions of the cosine.

COSINE_KERNELS = ("arc_cosine0", "arc_cosine1", "hidden_ntk")
cosine_kernel = pytest.mark.parametrize("kernel", COSINE_KERNELS)


def named(kernel: str) -> dict:
    """Parameters `kernel` and `kernel_params` of a map: of "arc_cosine0" the name and the order."""
    if not kernel.startswith("arc_cosine"):
        return {"kernel": kernel}
    return {"kernel": "arc_cosine", "kernel_params": {"order": int(kernel[-1])}}


def test_old_names_of_arc_cosine_kernels(rng):
    X = rng.standard_normal((5, 3))
    with pytest.warns(FutureWarning, match=r"'arc_cosine' with kernel_params=\{'order': 1\}"):
        old = DotProductSketch("arc_cosine1", n_components=16, degree=4, random_state=0).fit(X)
    new = DotProductSketch(**named("arc_cosine1"), n_components=16, degree=4, random_state=0).fit(X)
    np.testing.assert_array_equal(old.transform(X), new.transform(X))


def of_cosines(X: np.ndarray, kernel: str) -> np.ndarray:
    """The closed form, row by row; 0 for zero rows."""
    K = np.zeros((len(X), len(X)))
    for i, x in enumerate(X):
        for j, y in enumerate(X):
            r, s = np.linalg.norm(x), np.linalg.norm(y)
            if r > 0 and s > 0:
                factor = 1.0 if kernel == "arc_cosine0" else r * s
                K[i, j] = factor * reference.cosine_function(kernel, np.clip(x @ y / (r * s), -1, 1))
    return K


@cosine_kernel
def test_kernels_of_cosines_are_their_closed_forms(kernel, rng, to_library):
    for features in [DotProductSketch, MaclaurinFeatures]:
        X = rng.standard_normal((7, 4))
        X[3] = 0
        X[5] = 2 * X[4]
        X[6] = -X[4]
        fitted = features(**named(kernel), n_components=8, degree=4).fit(X)
        expected = of_cosines(X, kernel)
        for rows in (X, sp.csr_array(X), to_library(X)):
            np.testing.assert_allclose(as_numpy(fitted.exact_kernel(rows)), expected, rtol=1e-12, atol=3e-8)
        assert fitted.exact_kernel(X.astype(np.float32)).dtype == np.float32


@cosine_kernel
def test_coefficients_of_cosines(kernel, rng):
    """The learned attributes do not depend on the norms: coefficients divided by their sum, here up to degree 12."""
    a = reference.cosine_coefficients(kernel, 12)
    features = DotProductSketch(**named(kernel), n_components=64, degree=12).fit(rng.standard_normal((9, 3)) * 7.0)
    np.testing.assert_allclose(features.weights_, a / a.sum(), atol=1e-13)
    t = np.linspace(-0.6, 0.6, 7)
    series = features._planned.series
    values = np.exp(series.log_coefficients(1000)) @ t ** np.arange(1001)[:, None]
    np.testing.assert_allclose(values, reference.cosine_function(kernel, t), rtol=1e-12)
    at_one = {"hidden_ntk": 0.5}.get(kernel, 1.0)
    assert 0 < at_one - np.exp(series.log_coefficients(1024)).sum() < 0.03
    np.testing.assert_allclose(
        np.exp(series.log_trace(np.array([2.0, 3.0]))), at_one * (2 if kernel[-1] == "0" else 13)
    )


@cosine_kernel
def test_features_of_cosines(kernel, rng, to_library):
    """With all monomials the series itself, for all kinds of rows."""
    X = rng.standard_normal((6, 2))
    X[2] = 0
    features = DotProductSketch(**named(kernel), n_components=1024, degree=10, random_state=0).fit(X)
    assert not features.budget_.sketched
    Z = features.transform(X)
    norms = np.linalg.norm(X, axis=1)
    units = X / np.where(norms > 0, norms, 1)[:, None]
    scales = (norms > 0) * (1.0 if kernel == "arc_cosine0" else norms)
    K = np.outer(scales, scales) * reference.series(units @ units.T, reference.cosine_coefficients(kernel, 10))
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-12)
    assert not Z[2].any()
    for rows in (sp.csr_array(X), to_library(X)):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-12)
    np.testing.assert_allclose(features.transform(X.astype(np.float32)), Z, atol=1e-5)
    whole = rng.integers(0, 5, (4, 2), dtype=np.uint8)
    np.testing.assert_allclose(features.transform(whole), features.transform(whole.astype(float)), rtol=1e-12)


@cosine_kernel
def test_torch_differentiates_cosines(kernel, rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((3, 3))).requires_grad_()
    features = DotProductSketch(**named(kernel), n_components=16, degree=4, method="power", random_state=0).fit(X)
    assert torch.autograd.gradcheck(features.transform, (X,))


# How degrees are sketched.


def power_features(features: DotProductSketch, x: np.ndarray) -> np.ndarray:
    """Of one row of norm r, from the reference of the series; sketched for coefficients a_j: w_j(r) = √a_j r^j."""
    r = np.linalg.norm(x)
    parts = reference.series_sketch(features.sketch_, x / r)
    kept = features.budget_.coefficients
    roots = [np.sqrt(features.sampled_.get(j, 1.0) * features.kernel[j] / a) * r**j for j, a in kept.items()]
    return np.concatenate([root * part for root, part in zip(roots, parts, strict=True)])


@pytest.mark.parametrize("sparse", [False, True])
def test_powers_equal_the_law(sparse, rng, to_library):
    for normalize in [True, False]:
        for n_sampled in [0, 2]:
            d = 2100 if sparse else 80  # T is an OSNAP for more than 4 · 512 columns
            X = rng.standard_normal((4, d)) / d**0.5
            coefficients = (0.1, 0.5, 1.0, 0.3, 0.0, 0.6, 0.5, 0.4)
            parameters = {
                "degree": 5 if n_sampled else 7,
                "n_sampled": n_sampled,
                "normalize": normalize,
                "random_state": 0,
            }
            features = DotProductSketch(coefficients, n_components=60, method="power", **parameters).fit(
                sp.csr_array(X) if sparse else X
            )
            assert features.sketch_.law.shared
            assert features.sketch_.law.sparse == sparse
            naive = np.array([power_features(features, x) for x in X])
            for rows in (X, sp.csr_array(X), to_library(X)):
                np.testing.assert_allclose(as_numpy(features.transform(rows)), naive, atol=1e-12)
            np.testing.assert_allclose(features.transform(X.astype(np.float32)), naive, atol=1e-5)


def is_power(d: int, m: int, degree: int, *, sparse: bool = False, method: str = "auto") -> bool:
    X = np.eye(2, d)
    features = DotProductSketch([0.0] * degree + [1.0], n_components=m, method=method, random_state=0)
    return features.fit(sp.csr_array(X) if sparse else X).sketch_.law.shared


def test_which_sketch_is_chosen():
    """From degree 32 on, or from 8 on where T makes rows shorter: from 513 features on at m = 64, 2049 at m = 4096."""
    assert [is_power(20, 64, p) for p in (2, 8, 31, 32, 100)] == [False, False, False, True, True]
    assert [is_power(513, 64, p) for p in (2, 7, 8, 31)] == [False, False, True, True]
    assert not is_power(512, 64, 31)
    assert not is_power(2048, 4096, 31)
    assert is_power(2049, 4096, 8)
    assert is_power(513, 64, 8, sparse=True)
    assert not is_power(512, 64, 8, sparse=True)
    assert not is_power(20, 64, 100, method="tree")
    assert is_power(20, 64, 2, method="power")
    assert not is_power(1, 64, 100)  # no degree is sketched
    assert is_power(20, 64, 1024)


def test_trees_have_their_limit():
    X = np.eye(3)
    assert DotProductSketch([0.0] * 128 + [1.0], n_components=8, method="tree").fit(X).degree_ == 128
    for parameters in (
        {"kernel": [0.0] * 129 + [1.0]},
        {"kernel": "ntk", "degree": 130},
        {"kernel": [1.0] * 200, "degree": 3, "n_sampled": 2},
    ):
        rule = (
            r"'method' parameter of DotProductSketch must be 'power' or 'auto' for degrees above 128 \(here up to \d+\)"
        )
        with pytest.raises(ValueError, match=rule + r". Got 'tree' instead. Set method='power', or lower the degree."):
            DotProductSketch(n_components=64, method="tree", **parameters).fit(X)


def test_tails_of_trees_end_at_their_limit():
    for options in [{"method": "tree"}, {"normalize": False}]:
        features = DotProductSketch("ntk", n_components=64, n_sampled=4, random_state=0, **options).fit(np.eye(3))
        assert len(features.weights_) == 129
        assert features.degree_ == 4


def test_powers_of_high_degree_need_their_norms(rng):
    """Without normalization ‖w_k‖² would vary by (1 + e)^(2^k)."""
    X = rng.standard_normal((5, 30))
    text = "'method' parameter .* 'tree' for degree {} without normalize: .* Got '{}' instead. Set normalize=True"
    with pytest.raises(ValueError, match=text.format(40, "power")):
        DotProductSketch("ntk", n_components=1024, degree=40, method="power", normalize=False).fit(X)
    with pytest.raises(ValueError, match=text.format(400, "auto")):
        DotProductSketch([0.0] * 400 + [1.0], n_components=1024, normalize=False).fit(X)
    Z = DotProductSketch("ntk", n_components=1024, degree=40, normalize=False, random_state=0).fit_transform(X)
    assert np.linalg.norm(Z @ Z.T - ntk(X, depth=1)) < 0.2 * np.linalg.norm(ntk(X, depth=1))


@pytest.mark.parametrize("top", [scaled(200, 1024)])
def test_high_degrees(top, rng):
    """1/(1 − t) up to a high degree, t = 0.9: all but 0.9^{degree + 1} of the norm, which is exact."""
    X = rng.standard_normal((5, 30))
    X *= np.sqrt(0.9) / np.linalg.norm(X, axis=1, keepdims=True)
    features = DotProductSketch([1.0] * (top + 1), n_components=2 * top, degree=top, n_sampled=1, random_state=0).fit(X)
    assert features.degree_ == top
    assert len(features.budget_.coefficients) == top + 1
    norm = 10 * (1 - 0.9 ** (top + 1))
    np.testing.assert_allclose((features.transform(X) ** 2).sum(axis=1), norm, rtol=1e-10)
    single = features.transform(X.astype(np.float32))
    np.testing.assert_allclose((single.astype(float) ** 2).sum(axis=1), norm, rtol=1e-4)
    one = DotProductSketch([1.0] * (top + 1), n_components=2 * top, degree=top).fit_transform(X[:, :1])
    np.testing.assert_allclose(one @ one.T, 1 / (1 - X[:, :1] * X[:, 0]), rtol=1e-12)


# Degrees that are drawn.

TAIL = (0.3, 0.5, 0.2, 0.3, 0.25, 0.0, 0.2, 0.15)


def test_factors_have_the_mean_1():
    """By enumeration of all sequences of draws."""
    for n_draws in [1, 2, 3]:
        p = np.array([0.2, 0.5, 0.0, 0.3])
        mean = np.zeros(4)
        for drawn in product(np.flatnonzero(p), repeat=n_draws):
            counts = np.bincount(drawn, minlength=4)
            mean += np.prod(p[list(drawn)]) * tail_factors(counts, p)
        np.testing.assert_allclose(mean, [1.0, 1.0, 0.0, 1.0], rtol=1e-12)


def test_number_of_draws(rng):
    """Factors n_l/(N p_l), whole n_l that add up to N, p_l the weights of the tail."""
    X = rng.standard_normal((40, 10))
    features = DotProductSketch(**named("arc_cosine0"), n_components=512, degree=5, n_sampled=20, random_state=0).fit(X)
    a = np.exp(features._planned.series.log_coefficients(1024))
    np.testing.assert_allclose(features.weights_, a / a.sum(), atol=1e-15)
    p = a[6:] / a[6:].sum()
    counts = {j: factor * 20 * p[j - 6] for j, factor in features.sampled_.items()}
    assert all(j > 5 and j % 2 == 1 for j in counts)
    np.testing.assert_allclose(list(counts.values()), np.round(list(counts.values())), atol=1e-9)
    assert round(sum(counts.values())) == 20
    assert features.degree_ == 5
    assert set(features.budget_.coefficients) == {0, 1, 3, 5, *features.sampled_}
    other = clone(features).set_params(random_state=1).fit(X)
    assert other.sampled_ != features.sampled_
    assert clone(features).fit(X).sampled_ == features.sampled_


def test_draws_have_their_law():
    """Counts of three degrees over many seeds; false alarms: 1e-6."""
    X = np.eye(2)
    kernel = (1.0, 0.0, 0.2, 0.5, 0.3)
    counts = np.zeros(3)
    n_seeds = scaled(300, 1000)
    for seed in range(n_seeds):
        drawn = DotProductSketch(kernel, n_components=8, degree=1, n_sampled=1, random_state=seed).fit(X).sampled_
        (degree,) = drawn
        counts[degree - 2] += 1
        assert drawn[degree] == pytest.approx(1 / kernel[degree])
    assert stats.chisquare(counts, n_seeds * np.array([0.2, 0.5, 0.3])).pvalue > 1e-6


def test_norms_of_sampled_degrees(rng):
    """‖Z(x)‖² = Σ factor w_j(‖x‖)² with `normalize`."""
    X = rng.standard_normal((9, 20)) / 4
    features = DotProductSketch(TAIL, n_components=128, degree=2, n_sampled=3, random_state=0).fit(X)
    squares = np.sum(X**2, axis=1)
    expected = sum(features.sampled_.get(j, float(j <= 2)) * a * squares**j for j, a in enumerate(TAIL))
    np.testing.assert_allclose((features.transform(X) ** 2).sum(axis=1), expected, rtol=1e-10)


def test_sampled_degrees_are_unbiased():
    """Of the whole series, by trees. False alarms: 1e-6."""
    X = spread_rows(12) * 0.6
    K = reference.series(X @ X.T, TAIL)
    parameters = {"degree": 2, "n_sampled": 2, "normalize": False, "method": "tree"}
    right = kept(maps(TAIL, 128, **parameters))
    assert DotProductSketch(TAIL, n_components=128, **parameters).fit(X).budget_.sketched
    check_unbiased(right, X, K, n_seeds=400)

    def without_factors(seed):
        def transform(X):
            features = DotProductSketch(TAIL, n_components=128, **parameters, random_state=seed).fit(X)
            series, kept = features._planned.series, np.array(list(features.budget_.coefficients))
            features._draws.weights = lambda norms: series.weights(norms, kept)
            return features.transform(X)

        return transform

    with pytest.raises(AssertionError, match="means are off"):
        check_unbiased(without_factors, X, K, n_seeds=200)
    with pytest.raises(AssertionError, match="means are off"):
        check_unbiased(right, X, reference.series(X @ X.T, TAIL[:3]), n_seeds=400)


def test_no_degree_to_sample(rng):
    X = rng.standard_normal((9, 5)) / 3
    for parameters in ({"kernel": TAIL, "degree": 7}, {"kernel": TAIL, "n_sampled": 30}, {"kernel": (1.0, 1.0, 0.0)}):
        features = DotProductSketch(n_components=300, **{"n_sampled": 2} | parameters).fit(X)
        assert features.sampled_ == {}
    assert DotProductSketch(TAIL, n_components=64).fit(X).sampled_ == {}
    only = DotProductSketch((0.0, 0.0, 0.0, 2.0), n_components=64, n_sampled=1, random_state=0).fit(
        X
    )  # p = 1 has no coefficients
    assert only.sampled_ == {3: 1.0}
    np.testing.assert_allclose(only.transform(X) @ only.transform(X).T, 2 * (X @ X.T) ** 3, rtol=1e-9)


def test_every_degree_is_kept(rng):
    """Degrees of tiny weight too, one component each; with fewer components than degrees the message counts them."""
    X = rng.standard_normal((9, 50)) / 30
    kernel = [1.0] * 20
    assert len(DotProductSketch(kernel, n_components=64, degree=12).fit(X).budget_.coefficients) < 13
    for m in (64, 20):
        features = DotProductSketch(kernel, n_components=m, degree=12, n_sampled=3, random_state=0).fit(X)
        assert set(features.budget_.coefficients) == {*range(13), *features.sampled_}
        assert features.transform(X).shape == (9, m)
    rule = (
        r"'n_components' parameter of DotProductSketch must be at least 1\d, the number of degrees kept and drawn with"
    )
    with pytest.raises(ValueError, match=rule + r" n_sampled=3. Got 10 instead. Raise it, or lower 'degree' or"):
        DotProductSketch(kernel, n_components=10, degree=12, n_sampled=3, random_state=0).fit(X)


@pytest.mark.parametrize("kernel", ["ntk", "gaussian", "exponential", "arc_cosine0", "hidden_ntk"])
def test_slow_decay(kernel, rng):
    """On average over draws, the norms of the features are closer to the diagonal than without the tail."""
    X = rng.standard_normal((30, 20))
    exact = np.diag(DotProductSketch(**named(kernel), n_components=8, degree=3).fit(X).exact_kernel(X))
    kept, drawn = (
        np.mean(
            [
                (
                    DotProductSketch(**named(kernel), n_components=256, degree=6, random_state=seed, **p).fit_transform(
                        X
                    )
                    ** 2
                ).sum(axis=1)
                for seed in range(5)
            ],
            axis=0,
        )
        for p in ({}, {"n_sampled": 6})
    )
    assert np.abs(drawn - exact).mean() <= np.abs(kept - exact).mean() + 1e-9 * exact.mean()


@pytest.mark.parametrize("sparse", [False, True])
def test_files_of_sampled_degrees(sparse, rng, tmp_path):
    import ntkit

    X = rng.standard_normal((6, 40))
    parameters = {"n_sampled": 12, "random_state": 3}
    features = DotProductSketch("hidden_ntk", n_components=60, **parameters).fit(sp.csr_array(X) if sparse else X)
    ntkit.save(features, tmp_path / "map")
    again = ntkit.load(tmp_path / "map")
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    assert again.sampled_ == features.sampled_
    copy = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(copy.transform(X), features.transform(X))


# Array libraries, types, batches.


@gpu
@pytest.mark.parametrize("method", ["tree", "power"])
def test_cuda(method, rng):
    import torch

    X = rng.standard_normal((1000, 30))
    X[3] = 0
    features = DotProductSketch("gaussian", n_components=200, method=method, random_state=0).fit(X)
    Z = features.transform(X)
    scale = np.abs(Z).max()
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 6e-2)):
        rows = torch.from_numpy(X).to("cuda", dtype)
        for batch_size in (None, 77):
            out = features.set_params(batch_size=batch_size).transform(rows)
            assert out.device == rows.device
            assert out.dtype == dtype
            np.testing.assert_allclose(as_numpy(out.double()), Z, rtol=0, atol=error * scale)
    again = clone(features).fit(torch.from_numpy(X).cuda())
    np.testing.assert_allclose(again.weights_, features.weights_)


@kernel
def test_torch_differentiates(kernel, rng):
    import torch

    for normalize in [True, False]:
        X = torch.from_numpy(rng.standard_normal((3, 3))).requires_grad_()
        parameters = {"lengthscale": 2.0, "degree": 4, "normalize": normalize, "random_state": 0}
        features = DotProductSketch(kernel, n_components=16, **parameters).fit(X)
        assert torch.autograd.gradcheck(features.transform, (X,))
        plain = features.transform(X.detach().numpy().copy())
        np.testing.assert_allclose(as_numpy(features.transform(X)), plain, rtol=1e-10, atol=1e-13)
        with torch.no_grad():
            assert not features.transform(X).requires_grad
        zero = torch.zeros((1, 3), dtype=torch.float64, requires_grad=True)
        features.transform(zero).sum().backward()
        assert torch.isfinite(zero.grad).all()


@pytest.mark.parametrize("kind", ["float64", "float32", "csr", "torch"])
def test_factors_are_held_for_some_rows_at_a_time(kind, rng, monkeypatch):
    import torch

    X = rng.standard_normal((301, 30)).astype("float32" if kind == "float32" else "float64")
    rows = sp.csr_array(X) if kind == "csr" else torch.from_numpy(X) if kind == "torch" else X
    features = DotProductSketch(n_components=65, random_state=0).fit(X)
    Z = features.transform(rows)
    seen = []
    draws = features._draws
    weights = draws.weights
    monkeypatch.setattr(draws, "weights", lambda norms: seen.append(len(norms)) or weights(norms))
    monkeypatch.setattr(base, "_ELEMENTS", 1000)
    parts = features.transform(rows)
    n_degrees = len(features.budget_.coefficients)
    assert seen == [1000 // n_degrees] * (301 // (1000 // n_degrees)) + [301 % (1000 // n_degrees)]
    assert type(parts) is type(Z)
    assert parts.dtype == Z.dtype
    np.testing.assert_allclose(as_numpy(parts), as_numpy(Z), rtol=1e-6 if kind == "float32" else 1e-13)


# Edge cases.


@kernel
def test_small_and_large_rows(kernel, rng):
    """Norms of any size, as long as the kernel is finite; lengths scale along for the kernels that have one."""
    for dtype in ["float64", "float32"]:
        for factor in [1e-15, 1.0, 1e15]:
            X = (factor * rng.standard_normal((20, 5))).astype(dtype)
            given = None if isinstance(kernel, str) else tuple(a / factor ** (2 * j) for j, a in enumerate(kernel))
            parameters = {"degree": 6, "random_state": 0}
            Z = DotProductSketch(given or kernel, n_components=32, **parameters).fit_transform(X).astype(np.float64)
            assert np.isfinite(Z).all()
            expected = DotProductSketch(kernel, n_components=32, **parameters).fit_transform(
                X.astype(np.float64) / factor
            )
            expected *= factor if kernel in ("ntk", "nngp") else 1.0
            error = 1e-4 if dtype == "float32" else 1e-9
            np.testing.assert_allclose(Z, expected, rtol=0, atol=error * np.abs(expected).max())


def test_rows_far_from_the_training_rows(rng):
    X = rng.standard_normal((20, 5))
    features = DotProductSketch("gaussian", n_components=64, lengthscale=1.0, random_state=0).fit(X)
    for factor in (1e15, 1e200):
        np.testing.assert_array_equal(features.transform(factor * X), 0.0)
        far = clone(features).fit(factor * X)
        assert np.isfinite(far.transform(factor * X)).all()
        assert np.isfinite(far.transform(X)).all()
    np.testing.assert_allclose((features.transform(1e-15 * X) ** 2).sum(axis=1), 1.0)


@kernel
def test_constant_rows(kernel):
    for value in [0.0, 0.5]:
        for shape in [(1, 1), (1, 6), (4, 1)]:
            X = np.full(shape, value)
            for rows in (X, sp.csr_array(X), X.astype(np.float32)):
                Z = DotProductSketch(kernel, n_components=12, degree=5, random_state=0).fit_transform(rows)
                assert np.isfinite(Z).all()
                np.testing.assert_array_equal(Z, np.broadcast_to(Z[0], Z.shape))
                if value == 0:
                    at_zero = 0.0 if kernel in ("ntk", "nngp") else 1.0 if isinstance(kernel, str) else kernel[0]
                    np.testing.assert_allclose((Z**2).sum(axis=1), at_zero, rtol=1e-6)


# Errors.

BAD = {
    "kernel": [
        ("cubic", ValueError), (None, TypeError), (2.0, TypeError), ([], ValueError), ([0.0, 0.0], ValueError),
        ([1.0, -1.0], ValueError), ([1.0, np.inf], ValueError), ([1.0, "a"], TypeError), ([1.0] * 1026, ValueError),
    ],
    "degree": [(0, ValueError), (1025, ValueError), (1.5, TypeError), ("a", ValueError), (None, TypeError)],
    "n_sampled": [(-1, ValueError), (1025, ValueError), (1.5, TypeError), ("auto", TypeError), (None, TypeError)],
}  # fmt: skip


def test_bad_kernels_and_degrees():
    for name, value, error in [(n, v, e) for n, values in BAD.items() for v, e in values]:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        rule = rf"'{name}' parameter of DotProductSketch must be .+\. Got {re.escape(shown)} instead"
        with pytest.raises(error, match=rule):
            DotProductSketch(**{name: value}).fit(np.ones((2, 3)))


# In use.


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), DotProductSketch(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.9
    assert repr(DotProductSketch()) == "DotProductSketch()"
