from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from tests.conftest import as_numpy
from tests.statistical import check_unbiased, check_variance, kept, rms_error, spread_rows
from tests.tiers import gpu

from ntkit.features.fourier import OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.features.fourier._numba import waves
from ntkit.kernels import gaussian

SIZES = (64, 65)  # pairs only, or a single cosine


def maps(**parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: lambda X: RandomFourierFeatures(random_state=seed, **parameters).fit_transform(X)


def naive(features, X):
    """The formula of the docstring, one row and one frequency at a time, from the draws."""
    W, m = features.frequencies_, features.get_feature_names_out().size
    half = W.shape[1]
    Z = np.empty((len(X), m))
    for row, x in zip(Z, X, strict=True):
        for i in range(half):
            phase = sum(x[j] * W[j, i] for j in range(len(x)))
            alone = m % 2 == 1 and i == half - 1
            row[i] = np.sqrt(2) * np.cos(phase + features._draws.phase) if alone else np.cos(phase)
            if not alone:
                row[half + i] = np.sin(phase)
    return Z / np.sqrt(half)


# The law.


def test_features_equal_the_formula(rng):
    for m in [1, 2, 7, 8]:
        X = rng.standard_normal((5, 3))
        features = RandomFourierFeatures(n_components=m, lengthscale=0.7, random_state=0).fit(X)
        assert features.frequencies_.shape == (3, -(-m // 2))
        np.testing.assert_allclose(features.transform(X), naive(features, X), atol=1e-14)


@pytest.mark.parametrize("lengthscale", [0.5, 2.0])
@pytest.mark.parametrize("m", SIZES)
def test_inner_products_are_unbiased(m, lengthscale):
    """False alarms: 1e-6 each. The kernel is off by 0.03 or more somewhere for a 5 % wrong length scale, 9 se."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=lengthscale)
    right = kept(maps(n_components=m, lengthscale=lengthscale))
    check_unbiased(right, X, K, n_seeds=1000)
    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: np.full((len(X), m), m**-0.5),  # noqa: ARG005
        lambda seed: lambda X: right(0)(X),  # noqa: ARG005
        lambda seed: lambda X: 1.05 * right(seed)(X),
        lambda seed: lambda X: (m / 2) ** 0.5 * right(seed)(X),
        lambda seed: lambda X: 2**0.5 * right(seed)(X)[:, -(m // 2) :],  # sines only
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=1000)
    with pytest.raises(AssertionError):
        check_unbiased(right, X, gaussian(X, lengthscale=1.05 * lengthscale), n_seeds=1000)


def test_a_single_cosine_needs_its_phase():
    """False alarms: 1e-6. Without the phase the mean has k(x, −y) in it."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=2.0)
    check_unbiased(maps(n_components=1, lengthscale=2.0), X, K, n_seeds=2000)

    def without(seed):
        W = np.random.default_rng(seed).standard_normal((6, 1)) / 2.0
        return lambda X: 2**0.5 * np.cos(X @ W)

    with pytest.raises(AssertionError):
        check_unbiased(without, X, K, n_seeds=2000)


def test_variance_equals_the_formula():
    """False alarms: errors of a mean of 32 cosines have a kurtosis near 3, see check_variance."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=1.5)
    formula = (1 - K**2) ** 2 / 64
    right = kept(maps(n_components=64, lengthscale=1.5))
    check_variance(right, X, formula)

    def repeated(seed):  # the first 8 of 32 frequencies, four times each
        return lambda X: 2 * right(seed)(X)[:, [*range(8), *range(32, 40)]]

    check_unbiased(repeated, X, K)  # the mean does not tell
    with pytest.raises(AssertionError):
        check_variance(repeated, X, formula)
    with pytest.raises(AssertionError):
        check_variance(right, X, formula / 4)


def test_less_error_than_scikit_learn(rng):
    """The formulas are (1 − k²)²/m and (1 + k⁴/2 − k²)/m (also for k = 1)."""
    X = rng.standard_normal((40, 10))
    K = gaussian(X, lengthscale=5.0)

    def theirs(seed):
        return lambda X: RBFSampler(gamma=1 / 50, n_components=128, random_state=seed).fit_transform(X)

    ratio = rms_error(maps(n_components=128, lengthscale=5.0), X, K, n_seeds=100)
    ratio /= rms_error(theirs, X, K, n_seeds=100)
    expected = np.sqrt(np.mean((1 - K**2) ** 2) / np.mean(1 + K**4 / 2 - K**2))
    assert expected < 0.75
    assert ratio == pytest.approx(expected, rel=0.15)


def test_norms_are_one_and_zero_rows_are_no_exception(rng):
    X = rng.standard_normal((9, 4))
    X[3] = 0
    Z = RandomFourierFeatures(n_components=32, random_state=0).fit_transform(X)
    np.testing.assert_allclose((Z**2).sum(axis=1), 1)
    np.testing.assert_array_equal(Z[3], np.repeat([0.25, 0.0], 16))
    for rows in (X, sp.csr_array(X)):
        assert np.isfinite(RandomFourierFeatures(n_components=33, random_state=0).fit_transform(rows)).all()


def test_more_components_keep_the_first_frequencies(rng):
    X = rng.standard_normal((3, 4))
    small, large = (RandomFourierFeatures(n_components=m, random_state=0).fit(X).frequencies_ for m in (11, 40))
    np.testing.assert_array_equal(small, large[:, :6])


# Cosines and sines.


@pytest.mark.parametrize("phase", [None, 2.5])
def test_waves(phase, rng):
    """Each entry of a row stays accurate if other entries are so large that the C library is called for them."""
    for dtype in ["float32", "float64"]:
        eps = np.finfo(dtype).eps
        scales = np.array([0, 1e-30, 1, 10, 8e3, 1e5, 1e6, 1e7, 1e15])[:, None]
        Z = (scales * rng.uniform(-1, 1, (9, 51))).astype(dtype)
        Z[2, :26] = np.pi / 4 * np.arange(-13, 13)  # where the polynomials meet
        Z[4, 0], Z[5, 1] = 8000.0, 1e5
        x = Z[:, :26].astype("float64")
        if phase is None:
            Z = np.concatenate([Z, Z[:, :1]], axis=1)
        waves(Z, 26, phase)
        cosines, sines = np.cos(x), np.sin(x)
        if phase is not None:
            cosines[:, -1], sines = 2**0.5 * np.cos(x[:, -1] + phase), sines[:, :-1]
        np.testing.assert_allclose(26**0.5 * Z, np.hstack([cosines, sines]), rtol=0, atol=1.5 * eps)


def test_waves_of_non_finite_values():
    Z = np.array([[np.nan, 1.0, 0.0, 0.0], [np.inf, 1.0, 0.0, 0.0]])
    waves(Z, 2, None)
    np.testing.assert_array_equal(np.isnan(Z), [[True, False, True, False]] * 2)
    np.testing.assert_allclose(Z[:, 1], 0.5**0.5 * np.cos(1.0))


@pytest.mark.parametrize("kind", [RandomFourierFeatures, OrthogonalFourierFeatures])
def test_rows_of_any_size(kind, rng):
    for m in [1, 2, 33]:
        for dtype in ["float32", "float64"]:
            X = rng.standard_normal((5, 3)) * np.array([1e-15, 1e15, 1, 0, 1])[:, None]
            X[4] = 1.0
            features = kind(n_components=m, lengthscale=1.0, random_state=0).fit(X)
            Z = features.transform(X.astype(dtype))
            assert Z.dtype == dtype
            assert np.abs(Z).max() <= (2 / -(-m // 2)) ** 0.5
            np.testing.assert_allclose(Z[0], Z[3], atol=1e-6)
            for i in range(5):  # BLAS adds up a single row in another order: phases of 1e15 have few digits in common
                atol = 2 if i == 1 else 1e-5
                np.testing.assert_allclose(features.transform(X[i : i + 1].astype(dtype))[0], Z[i], atol=atol)
            one = kind(n_components=m, random_state=0).fit(X[:1, :1])
            assert np.isfinite(one.transform(X[:1, :1])).all()


# Orthogonal frequencies.


def directions(d, size, seed=0, lengthscale=0.7):
    features = OrthogonalFourierFeatures(n_components=2 * size, lengthscale=lengthscale, random_state=seed).fit(
        np.zeros((1, d))
    )
    W = lengthscale * features.frequencies_.T
    norms = np.linalg.norm(W, axis=1)
    return W / norms[:, None], norms


@pytest.mark.parametrize(("d", "size"), [(1, 5), (2, 9), (7, 300), (256, 260), (257, 100), (300, 300), (301, 650)])
def test_frequencies_are_orthogonal_in_blocks(d, size):
    Q, norms = directions(d, size)
    assert Q.shape == (size, d)
    for start in range(0, size, d):
        block = Q[start : start + d]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-9)
    if size > d > 1:  # blocks differ, also up to signs
        assert np.abs(Q[:1] @ Q[d : 2 * d].T).max() < 1 - 1e-6
    assert len(np.unique(norms)) == size
    more, _ = directions(d, size + 3)
    np.testing.assert_allclose(more[:size], Q, atol=1e-9)


@pytest.mark.parametrize("d", [3, 300])
def test_frequencies_have_the_law_of_the_gaussian(d):
    """False alarms: 1e-6 in each of four tests of Kolmogorov and Smirnov. Signs of R not fixed fail the last."""
    from scipy import stats

    Q, norms = directions(d, 40 * d if d < 10 else 2 * d)
    assert stats.kstest(norms, stats.chi(d).cdf).pvalue > 1e-6
    few = slice(None) if d < 10 else slice(0, 4)  # coordinates of one block depend on each other a little
    assert stats.kstest((Q * norms[:, None])[:, few].ravel(), "norm").pvalue > 1e-6
    firsts = np.array([directions(d, 1, seed)[0][0] for seed in range(200)])
    uniform = stats.beta(0.5, (d - 1) / 2)
    assert stats.kstest(firsts[:, 0] ** 2, uniform.cdf).pvalue > 1e-6
    assert stats.binomtest(int((firsts[:, 0] > 0).sum()), 200).pvalue > 1e-6


@pytest.mark.parametrize("m", [32, 33])
def test_orthogonal_is_unbiased(m):
    """False alarms: 1e-6. Lengths √d in place of χ_d give a Bessel function, no Gaussian."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=1.0)

    fitted = [OrthogonalFourierFeatures(n_components=m, lengthscale=1.0, random_state=s).fit(X) for s in range(1000)]

    def of_one_length(seed):
        features = fitted[seed]
        features._draws.tables *= 6**0.5 / np.linalg.norm(features.frequencies_, axis=0)
        return features.transform

    check_unbiased(lambda seed: fitted[seed].transform, X, K, n_seeds=1000)
    with pytest.raises(AssertionError):
        check_unbiased(of_one_length, X, K, n_seeds=1000)


def variance_of_orthogonal(K, m, d):
    """From moments: E cos(w·z) cos(v·z) = Σ_{jl} (−‖z‖²/2)^{j+l}/(j! l!) (d/2)_j (d/2)_l/(d/2)_{j+l} for w ⊥ v."""
    from scipy.special import factorial, poch

    j = np.arange(40)
    terms = np.log(K)[..., None] ** j * poch(d / 2, j) / factorial(j)
    both = sum((terms[..., a, None] * terms / poch(d / 2, a + j)).sum(axis=-1) for a in j)
    return ((1 - K**2) ** 2 + 2 * (min(m // 2, d) - 1) * (both - K**2)) / m


@pytest.mark.parametrize("m", [32, 256])
def test_variance_of_orthogonal(m):
    """Half of a block, and four blocks. False alarms: see check_variance. The docstring's formula is off by O(1/d²)."""
    X = spread_rows(32)
    K = gaussian(X, lengthscale=1.0)
    formula = variance_of_orthogonal(K, m, 32)
    approximate = ((1 - K**2) ** 2 - (min(m // 2, 32) - 1) / 32 * K**2 * 4 * np.log(K) ** 2) / m
    assert np.abs(formula - approximate).max() < 0.5 * min(1, 64 / m) / 32**2

    def maps_of(kind):
        return lambda seed: kind(n_components=m, lengthscale=1.0, random_state=seed).fit_transform

    check_variance(maps_of(OrthogonalFourierFeatures), X, formula)
    if m == 256:
        with pytest.raises(AssertionError):
            check_variance(maps_of(RandomFourierFeatures), X, formula)


# Length scales.


@pytest.mark.parametrize("kind", ["float64", "float32", "csr", "torch", "integers"])
def test_scale_equals_svc(kind, rng):
    import torch

    X = 3 * rng.standard_normal((50, 6)) + 2
    X *= rng.random(X.shape) < 0.6
    rows = {
        "float64": X, "float32": X.astype(np.float32), "csr": sp.csr_array(X), "torch": torch.from_numpy(X),
        "integers": np.rint(X).astype(np.int64),
    }[kind]  # fmt: skip
    features = RandomFourierFeatures(n_components=4, random_state=0).fit(rows)
    dense = as_numpy(rows.toarray() if kind == "csr" else rows)
    svc = SVC(gamma="scale").fit(dense, np.arange(50) % 2)
    assert isinstance(features.lengthscale_, float)
    assert features.lengthscale_ == pytest.approx((2 * svc._gamma) ** -0.5, rel=1e-6 if kind == "float32" else 1e-12)
    assert features.lengthscale_ == pytest.approx(np.sqrt(6 * dense.var(dtype=np.float64) / 2))


def test_scale_in_batches(rng):
    from sklearn import config_context

    X = rng.standard_normal((40000, 5))
    whole = RandomFourierFeatures(n_components=4, random_state=0).fit(X).lengthscale_
    with config_context(working_memory=1):
        assert RandomFourierFeatures(n_components=4, random_state=0).fit(X).lengthscale_ == pytest.approx(
            whole, rel=1e-13
        )


def test_scale_of_equal_entries():
    for rows in [np.zeros((4, 3)), np.full((4, 3), 0.1), np.ones((1, 1)), sp.csr_array((4, 3))]:
        features = RandomFourierFeatures(n_components=4, random_state=0).fit(rows)
        assert features.lengthscale_ == 0.5**0.5
        assert np.isfinite(features.transform(rows)).all()


def test_scale_of_extreme_entries(rng):
    for factor in [1e-200, 1e200]:
        X = rng.standard_normal((20, 3))
        plain = RandomFourierFeatures(n_components=8, random_state=0).fit(X)
        features = RandomFourierFeatures(n_components=8, random_state=0).fit(factor * X)
        assert features.lengthscale_ == pytest.approx(factor * plain.lengthscale_)
        np.testing.assert_allclose(features.transform(factor * X), plain.transform(X), atol=1e-12)


def test_scale_of_duplicate_entries():
    rows = sp.csr_matrix((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert not rows.has_canonical_format
    features = RandomFourierFeatures(n_components=8, random_state=0).fit(rows)
    dense = np.array([[3.0, 0.0], [0.0, 1.0]])
    assert features.lengthscale_ == pytest.approx(dense.std())
    assert rows.nnz == 3
    np.testing.assert_allclose(features.transform(rows), features.transform(dense), atol=1e-14)


def test_a_given_lengthscale_is_kept(rng):
    X = rng.standard_normal((5, 3))
    for value in (2, np.float32(0.5), 1e-3):
        features = RandomFourierFeatures(n_components=8, lengthscale=value).fit(X)
        assert features.lengthscale_ == float(value)
        assert isinstance(features.lengthscale_, float)
        assert features.lengthscale is value


# Array libraries, types, batches.


@pytest.mark.parametrize("m", SIZES)
def test_the_code_for_devices_agrees(m, rng):
    """Run on the CPU; batches write to parts of the result."""
    import torch

    X = rng.standard_normal((23, 4))
    features = RandomFourierFeatures(n_components=m, lengthscale=2.0, random_state=0).fit(X)
    tensor = torch.from_numpy(X)
    Z = torch.empty((23, m), dtype=torch.float64)
    draws = features._draws
    tables = draws.at(torch.float64, tensor.device)
    for rows in (slice(0, 10), slice(10, 23)):
        draws.fill(tensor[rows], tables, Z[rows])
    np.testing.assert_allclose(as_numpy(Z), features.transform(X), atol=1e-13)


@gpu
@pytest.mark.parametrize("m", SIZES)
def test_cuda(m, rng):
    import torch

    X = rng.standard_normal((1000, 30))
    features = RandomFourierFeatures(n_components=m, random_state=0).fit(X)
    Z = features.transform(X)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        rows = torch.from_numpy(X).to("cuda", dtype)
        for batch_size in (None, 77):
            out = features.set_params(batch_size=batch_size).transform(rows)
            assert out.device == rows.device
            assert out.dtype == dtype
            np.testing.assert_allclose(as_numpy(out.double()), Z, atol=error)
    assert features.estimate_error(torch.from_numpy(X).cuda()) == pytest.approx(features.estimate_error(X))
    assert clone(features).fit(torch.from_numpy(X).cuda()).lengthscale_ == pytest.approx(features.lengthscale_)


# In use.


def test_errors_can_be_estimated_and_sizes_suggested(rng):
    import torch

    X = rng.standard_normal((100, 5))
    features = RandomFourierFeatures(n_components=2048, random_state=0).fit(X)
    Z, K = features.transform(X), gaussian(X, lengthscale=features.lengthscale_)
    error = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert error < 0.2
    for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
        assert features.estimate_error(rows) == pytest.approx(error)
    m = RandomFourierFeatures().suggest_n_components(X, 0.2)
    assert RandomFourierFeatures(n_components=2 * m, random_state=0).fit(X).estimate_error(X) < 0.2


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(RandomFourierFeatures(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
    assert repr(RandomFourierFeatures()) == "RandomFourierFeatures()"
