from __future__ import annotations

import re

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
from tests.reference.dot_product import maclaurin, truncated_kernel, weight
from tests.statistical import check_unbiased, check_variance, kept, spread_rows
from tests.tiers import gpu, sampled

from ntkit.features.series.maclaurin import MaclaurinFeatures
from ntkit.kernels import dot_product, exponential, gaussian, nngp, ntk

LAWS = ("optimal", "geometric")
KERNELS = ("gaussian", "exponential", "ntk", "nngp", (0.5, 0.0, 2.0, 1.0))
law = pytest.mark.parametrize("law", LAWS)
kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def maps(kernel, m, **parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: (
        lambda X: MaclaurinFeatures(kernel, n_components=m, random_state=seed, **parameters).fit_transform(X)
    )


# The law.


@law
@kernel
def test_features_equal_the_formula(kernel, law, rng):
    for d, m in [(3, 40), (1, 12), (8, 9), (2, 1)]:
        X = rng.standard_normal((5, d))
        X[2] = 0
        features = MaclaurinFeatures(
            kernel, n_components=m, lengthscale=1.3, depth=2, degree=5, method=law, random_state=0
        ).fit(X)
        assert features.degree_ == (5 if isinstance(kernel, str) else 3)
        naive = np.array([maclaurin(features, x) for x in X])
        np.testing.assert_allclose(features.transform(X), naive, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("kernel", "law"), sampled([(kernel, law) for kernel in KERNELS for law in LAWS], 4))
def test_inner_products_are_unbiased(kernel, law):
    """False alarms: 1e-6 each. For the series up to the degree, at norms from ½ to 2."""
    X = spread_rows(6)
    parameters = {"lengthscale": 1.5, "degree": 4, "method": law}
    degrees = range(5 if isinstance(kernel, str) else 4)
    K = truncated_kernel(X, kernel, degrees, 1.5)
    right = kept(maps(kernel, 128, **parameters))
    check_unbiased(right, X, K, n_seeds=400)
    with pytest.raises(AssertionError):
        check_unbiased(lambda seed: lambda X: 1.1 * right(seed)(X), X, K, n_seeds=400)


@law
def test_the_check_of_the_mean_rejects_faults(law):
    X = spread_rows(6)
    parameters = {"lengthscale": 1.5, "degree": 4, "method": law}
    right = kept(maps("gaussian", 128, **parameters))
    K = truncated_kernel(X, "gaussian", range(5), 1.5)
    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: right(0)(X),  # noqa: ARG005
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=400)
    for degrees, lengthscale in ((3, 1.5), (5, 1.6)):
        with pytest.raises(AssertionError):
            check_unbiased(right, X, truncated_kernel(X, "gaussian", range(degrees), lengthscale), n_seeds=400)


def test_a_degree_1_that_does_not_fit_is_unbiased_too():
    """False alarms: 1e-6."""
    X = spread_rows(40)
    features = MaclaurinFeatures((1.0, 0.5, 0.5), n_components=64, random_state=0).fit(X)
    assert 1 < np.sum(features.degrees_ == 1) < 40
    check_unbiased(maps((1.0, 0.5, 0.5), 64), X, dot_product(X, function=(1.0, 0.5, 0.5)))


def pair_spread(X):
    """ν = E⟨ω, u⟩²⟨ω, v⟩² of unit rows."""
    U = X / np.linalg.norm(X, axis=1, keepdims=True)
    return 1 + 2 * (U @ U.T) ** 2 - 2 * (U**2) @ (U**2).T, U @ U.T


@law
def test_variance_equals_the_formula(law):
    """False alarms: the kurtosis is at most 5.2, see check_variance; ratios of 3000 other seeds: 0.93 to 1.13."""
    X = spread_rows(6)
    parameters = {"lengthscale": 2.0, "degree": 3, "method": law}
    features = MaclaurinFeatures("gaussian", n_components=512, **parameters, random_state=0).fit(X)
    nu, cosines = pair_spread(X)
    W = np.array([[weight("gaussian", j, r, 2.0) for r in np.linalg.norm(X, axis=1)] for j in range(4)])
    pairs = [np.outer(w, w) for w in W]
    if law == "optimal":
        counts = np.bincount(features.degrees_)
        assert features._draws.linear is not None
        formula = sum(pairs[j] ** 2 * (nu**j - cosines ** (2 * j)) / counts[j] for j in (2, 3))
    else:
        p = 0.5 ** np.arange(4) / sum(0.5 ** np.arange(4))
        mean = sum(pairs[j] * cosines**j for j in range(4))
        formula = (sum(pairs[j] ** 2 * nu**j / p[j] for j in range(4)) - mean**2) / 512
    right = kept(maps("gaussian", 512, **parameters))
    check_variance(right, X, formula)
    with pytest.raises(AssertionError):
        check_variance(right, X, 4 * formula)

    def repeated(seed):
        def transform(X):
            features = MaclaurinFeatures("gaussian", n_components=512, **parameters, random_state=seed).fit(X)
            draws = features._draws
            draws.tables = [np.tile(draws.tables[0][:, :1], table.shape[1]) for table in draws.tables]
            return features.transform(X)

        return transform

    with pytest.raises(AssertionError):
        check_variance(repeated, X, formula, n_seeds=200)


def test_geometric_degrees_have_their_law():
    """χ² of 10⁵ draws at level 1e-6."""
    features = MaclaurinFeatures((1.0, 1.0, 0.0, 1.0), n_components=10**5, method="geometric", random_state=0).fit(
        np.ones((1, 2))
    )
    counts = np.bincount(features.degrees_, minlength=4)
    assert counts[2] == 0
    p = np.array([8, 4, 1]) / 13
    assert stats.chisquare(counts[[0, 1, 3]], 1e5 * p).pvalue > 1e-6


def test_signs_are_distinct_and_fair():
    """False alarms: a mean of 60 000 signs has the standard deviation 0.004."""
    features = MaclaurinFeatures("gaussian", n_components=4096, lengthscale=3.0, random_state=0).fit(np.eye(12))
    assert features.signs_.dtype == np.int8
    assert set(np.unique(features.signs_)) == {-1, 1}
    assert abs(features.signs_.mean()) < 0.025
    columns = {column.tobytes() for column in features.signs_.T}
    assert len(columns) > 0.4 * min(2**12, features.signs_.shape[1])
    ends = np.cumsum([4096 - start for start in features._draws.starts])
    first, second = np.split(features.signs_, ends[:-1], axis=1)[:2]
    assert abs((first[:, -second.shape[1] :] * second).mean()) < 0.025


def test_optimal_shares():
    """m_j ∝ w_j(R)² ν^{j/4} of the degrees that are not exact, up to whole numbers."""
    X = 2.0 * np.eye(8)
    features = MaclaurinFeatures("gaussian", n_components=1000, lengthscale=2.0, degree=4, random_state=0).fit(X)
    assert features.radius_ == pytest.approx(2.0)
    counts = np.bincount(features.degrees_)
    assert counts[0] == 1
    assert counts[1] == 8
    assert counts.sum() == 1000
    shares = np.array([weight("gaussian", j, 2.0, 2.0) ** 2 * 2.4 ** (j / 4) for j in (2, 3, 4)])
    np.testing.assert_allclose(counts[2:], 991 * shares / shares.sum(), atol=2)


def test_less_error_than_the_geometric_law(rng):
    """At m = 1024 the ratio is a third; the test requires less than 0.6."""
    X = rng.standard_normal((100, 10))
    K = gaussian(X, lengthscale=10**0.5)

    def error(law):
        Z = [maps("gaussian", 512, lengthscale=10**0.5, method=law)(seed)(X) for seed in range(10)]
        return np.sqrt(np.mean([np.linalg.norm(z @ z.T - K) ** 2 for z in Z]))

    assert error("optimal") < 0.6 * error("geometric")


# Kernels, degrees, learned attributes.


def test_kernels_are_the_exact_ones(rng):
    X = rng.standard_normal((6, 4))
    exact = {
        "gaussian": gaussian(X, lengthscale=1.7), "exponential": exponential(X, lengthscale=1.7),
        "ntk": ntk(X, depth=2), "nngp": nngp(X, depth=2), (1.0, 0.0, 0.3): dot_product(X, function=[1.0, 0.0, 0.3]),
    }  # fmt: skip
    for kernel, K in exact.items():
        features = MaclaurinFeatures(kernel, n_components=8, lengthscale=1.7, depth=2).fit(X)
        np.testing.assert_array_equal(features.exact_kernel(X), K)
        np.testing.assert_allclose(features.exact_kernel(sp.csr_array(X)), K, rtol=1e-12)


@law
def test_the_error_is_small_where_it_should_be(law, rng):
    X = rng.standard_normal((100, 10))
    bound = {"optimal": 0.03, "geometric": 0.1}[law]
    features = MaclaurinFeatures("gaussian", n_components=1024, lengthscale=10**0.5, method=law, random_state=0).fit(X)
    assert features.estimate_error(X) < bound
    for depth in (1, 2):
        assert MaclaurinFeatures("ntk", n_components=4096, depth=depth, random_state=0).fit(X).estimate_error(X) < 0.05


def test_degrees_0_and_1_only_are_exact(rng):
    X = rng.standard_normal((9, 4))
    for coefficients, size in (((2.0,), 1), ((0.0, 3.0), 4), ((2.0, 3.0), 5)):
        features = MaclaurinFeatures(coefficients, n_components=16).fit(X)
        Z = features.transform(X)
        assert Z.shape == (9, size)
        np.testing.assert_allclose(Z @ Z.T, dot_product(X, function=coefficients), atol=1e-12)
        assert len(features.get_feature_names_out()) == size


def test_one_feature_is_exact_up_to_truncation(rng):
    X = rng.standard_normal((9, 1))
    Z = MaclaurinFeatures("gaussian", n_components=32, lengthscale=2.0, degree=20).fit_transform(X)
    np.testing.assert_allclose(Z @ Z.T, gaussian(X, lengthscale=2.0), atol=1e-6)


def test_automatic_degrees(rng):
    """Poisson's tail at ‖x‖²/ℓ²; noise bounds it; a given series is bounded only by its length."""
    X = np.eye(3)
    for scale, tolerance in ((1.0, 1e-3), (1.0, 1e-6), (0.5, 1e-3)):
        features = MaclaurinFeatures("gaussian", n_components=10**5, lengthscale=scale, tolerance=tolerance).fit(X)
        tail = stats.poisson(scale**-2)
        assert tail.sf(features.degree_) <= tolerance < tail.sf(features.degree_ - 1)
        assert MaclaurinFeatures("exponential", n_components=10**5, lengthscale=scale, tolerance=tolerance).fit(
            X
        ).degree_ == (features.degree_)
    wide = np.eye(64)
    assert MaclaurinFeatures("ntk", n_components=1024).fit(wide).degree_ == int(np.log(1024) / np.log(192 / 66))
    assert MaclaurinFeatures("ntk", n_components=1).fit(wide).degree_ == 1
    assert MaclaurinFeatures("ntk", n_components=256).fit(np.ones((2, 1))).degree_ == 64
    assert MaclaurinFeatures([0.0] * 20 + [1.0], n_components=64).fit(wide).degree_ == 20
    assert MaclaurinFeatures([1.0, 1.0, 1.0, 1e-9], n_components=64).fit(wide).degree_ == 2
    assert MaclaurinFeatures([1.0, 1.0, 1.0, 1e-9], n_components=64, tolerance=0).fit(wide).degree_ == 3
    assert MaclaurinFeatures([0.0, 1.0], n_components=64, tolerance=1).fit(wide).degree_ == 1
    assert (
        MaclaurinFeatures("gaussian", n_components=64, lengthscale=1.0, degree=100)
        .fit(rng.standard_normal((4, 3)))
        .degree_
        == 100
    )


def test_learned_attributes(rng):
    X = rng.standard_normal((50, 6))
    features = MaclaurinFeatures("gaussian", n_components=8).fit(X)
    assert features.radius_ == pytest.approx(np.sqrt(np.mean(np.sum(X**2, axis=1))))
    assert features.lengthscale_ == pytest.approx(np.sqrt(3 * X.var()))
    assert isinstance(features.radius_, float)
    assert MaclaurinFeatures("ntk", n_components=8).fit(X).lengthscale_ == 1.0
    assert MaclaurinFeatures((0.0, 1.0, 1.0), n_components=8, lengthscale=3.0).fit(X).lengthscale_ == 1.0
    for rows in (np.vstack([X, np.zeros((9, 6))]), sp.csr_array(X)):
        assert clone(features).fit(rows).radius_ == pytest.approx(features.radius_)
    assert MaclaurinFeatures("gaussian", n_components=8, lengthscale=3.0).fit(0 * X).radius_ == 3.0


# Array libraries, types, batches.


@law
def test_the_code_for_devices_agrees(law, rng):
    """Run on the CPU."""
    import torch

    for dtype in ["float64", "float32", "bfloat16"]:
        X = torch.from_numpy(rng.standard_normal((23, 6))).to(getattr(torch, dtype))
        X[3] = 0
        features = MaclaurinFeatures("gaussian", n_components=64, lengthscale=2.0, method=law, random_state=0).fit(X)
        Z = features.transform(X)
        wide = torch.float32 if dtype == "bfloat16" else X.dtype
        for batch_size in (None, 10):
            out = features._draws._run_batches(X, wide, X.device, torch.empty_like(Z), batch_size, None)
            assert out.dtype == X.dtype
            np.testing.assert_allclose(as_numpy(out.double()), as_numpy(Z.double()), rtol=0, atol=1e-5)


@gpu
@law
def test_cuda(law, rng):
    import torch

    X = rng.standard_normal((1000, 30))
    X[3] = 0
    features = MaclaurinFeatures("gaussian", n_components=200, method=law, random_state=0).fit(X)
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
    assert again.radius_ == pytest.approx(features.radius_)


@kernel
def test_torch_differentiates(kernel, rng):
    import torch

    for law in LAWS:
        X = torch.from_numpy(rng.standard_normal((3, 2))).requires_grad_()
        features = MaclaurinFeatures(
            kernel, n_components=12, lengthscale=2.0, degree=3, method=law, random_state=0
        ).fit(X)
        assert torch.autograd.gradcheck(features.transform, (X,))
        plain = features.transform(X.detach().numpy().copy())
        np.testing.assert_allclose(as_numpy(features.transform(X)), plain, rtol=1e-12, atol=1e-14)
        with torch.no_grad():
            assert not features.transform(X).requires_grad
        zero = torch.zeros((1, 2), dtype=torch.float64, requires_grad=True)
        features.transform(zero).sum().backward()
        assert torch.isfinite(zero.grad).all()


# Edge cases.


@kernel
def test_small_and_large_rows(kernel, rng):
    """Norms of any size, as long as the kernel is finite; lengths scale along for the kernels that have one."""
    for law in LAWS:
        for dtype in ["float64", "float32"]:
            for factor in [1e-15, 1.0, 1e15]:
                X = (factor * rng.standard_normal((20, 5))).astype(dtype)
                given = None if isinstance(kernel, str) else tuple(a / factor ** (2 * j) for j, a in enumerate(kernel))
                features = MaclaurinFeatures(given or kernel, n_components=32, method=law, random_state=0).fit(X)
                Z = features.transform(X).astype(np.float64)
                assert np.isfinite(Z).all()
                plain = MaclaurinFeatures(kernel, n_components=32, method=law, random_state=0)
                expected = plain.fit_transform(X.astype(np.float64) / factor) * (
                    factor if kernel in ("ntk", "nngp") else 1.0
                )
                error = 1e-4 if dtype == "float32" else 1e-9
                np.testing.assert_allclose(Z, expected, rtol=0, atol=error * np.abs(expected).max())


@law
def test_rows_far_from_the_training_rows(law, rng):
    X = rng.standard_normal((20, 5))
    features = MaclaurinFeatures("gaussian", n_components=64, lengthscale=1.0, method=law, random_state=0).fit(X)
    for factor in (1e15, 1e200):
        np.testing.assert_array_equal(features.transform(factor * X), 0.0)
        far = clone(features).fit(factor * X)
        assert np.isfinite(far.transform(factor * X)).all()
        assert np.isfinite(far.transform(X)).all()
    Z = features.transform(1e-15 * X)
    np.testing.assert_allclose((Z**2).sum(axis=1), (features.transform(0 * X) ** 2).sum(axis=1))


@kernel
def test_constant_rows(kernel):
    for law in LAWS:
        for value in [0.0, 0.5]:
            for shape in [(1, 1), (1, 6), (4, 1)]:
                X = np.full(shape, value)
                for rows in (X, sp.csr_array(X), X.astype(np.float32)):
                    features = MaclaurinFeatures(kernel, n_components=12, method=law, random_state=0).fit(rows)
                    Z = features.transform(rows)
                    assert np.isfinite(Z).all()
                    assert (Z[0] == Z).all()
                    if value == 0 and kernel in ("ntk", "nngp"):
                        assert not Z.any()
                    if value == 0 and law == "optimal" and kernel not in ("ntk", "nngp"):
                        at_zero = kernel[0] if not isinstance(kernel, str) else 1.0
                        np.testing.assert_allclose((Z**2).sum(axis=1), at_zero, rtol=1e-6)


def test_few_components(rng):
    for m in [1, 2, 3]:
        X = rng.standard_normal((4, 3))
        features = MaclaurinFeatures("gaussian", n_components=m, degree=6, random_state=0).fit(X)
        assert features.transform(X).shape == (4, m)
        assert len(set(features.degrees_.tolist())) == m


# Errors.

BAD = {
    "kernel": [
        ("cubic", ValueError), (None, TypeError), (2.0, TypeError), ([], ValueError), ([0.0, 0.0], ValueError),
        ([1.0, -1.0], ValueError), ([1.0, np.nan], ValueError), ([1.0, "a"], TypeError), ([1.0] * 130, ValueError),
    ],
    "degree": [(0, ValueError), (129, ValueError), (1.5, TypeError), ("a", ValueError), (None, TypeError)],
}  # fmt: skip


def test_bad_kernels_and_degrees():
    for name, value, error in [(n, v, e) for n, values in BAD.items() for v, e in values]:
        shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
        rule = rf"'{name}' parameter of MaclaurinFeatures must be .+\. Got {re.escape(shown)} instead"
        with pytest.raises(error, match=rule):
            MaclaurinFeatures(**{name: value}).fit(np.ones((2, 3)))


def test_a_degree_below_all_of_the_kernel():
    with pytest.raises(ValueError, match="'degree' parameter of MaclaurinFeatures must be an int from 2 to 128"):
        MaclaurinFeatures((0.0, 0.0, 1.0), degree=1).fit(np.ones((2, 3)))


# In use.


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), MaclaurinFeatures(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.85
    assert repr(MaclaurinFeatures()) == "MaclaurinFeatures()"
