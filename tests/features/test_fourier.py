from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from tests.statistical import check_rms_scaling, check_unbiased, check_variance, rms_error, spread_rows

from ntkit.features import fourier
from ntkit.features._fourier_numba import waves
from ntkit.features.fourier import OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.kernels import gaussian

SIZES = (64, 65)  # pairs only, and one cosine alone


@parametrize_with_checks([RandomFourierFeatures(n_components=m) for m in (16, 17)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


def test_many_estimator_checks_ran():
    checks = list(estimator_checks_generator(RandomFourierFeatures(n_components=16)))
    assert len(checks) >= 45


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
            row[i] = np.sqrt(2) * np.cos(phase + features._phase) if alone else np.cos(phase)
            if not alone:
                row[half + i] = np.sin(phase)
    return Z / np.sqrt(half)


# The law.


@pytest.mark.parametrize("m", [1, 2, 7, 8])
def test_features_are_those_of_the_formula(m, rng):
    X = rng.standard_normal((5, 3))
    features = RandomFourierFeatures(m, lengthscale=0.7, random_state=0).fit(X)
    assert features.frequencies_.shape == (3, -(-m // 2))
    np.testing.assert_allclose(features.transform(X), naive(features, X), atol=1e-14)


@pytest.mark.parametrize("lengthscale", [0.5, 2.0])
@pytest.mark.parametrize("m", SIZES)
def test_inner_products_are_unbiased(m, lengthscale):
    """False alarms: 1e-6 each. The kernel is off by 0.03 or more somewhere for a 5 % wrong length scale, 9 se."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=lengthscale)
    right = maps(n_components=m, lengthscale=lengthscale)
    check_unbiased(right, X, K, n_seeds=1000)
    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: np.full((len(X), m), m**-0.5),  # noqa: ARG005
        lambda seed: lambda X: right(0)(X),  # noqa: ARG005
        lambda seed: lambda X: 1.05 * right(seed)(X),
        lambda seed: lambda X: (m / 2) ** 0.5 * right(seed)(X),
        lambda seed: lambda X: 2**0.5 * right(seed)(X)[:, -(m // 2) :],  # sines alone
        maps(n_components=m, lengthscale=1.05 * lengthscale),
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=1000)


def test_a_cosine_alone_needs_its_phase():
    """False alarms: 1e-6. Without the phase the mean has k(x, −y) in it."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=2.0)
    check_unbiased(maps(n_components=1, lengthscale=2.0), X, K, n_seeds=2000)

    def without(seed):
        def transform(X):
            features = RandomFourierFeatures(1, lengthscale=2.0, random_state=seed).fit(X)
            features._phase = 0.0
            return features.transform(X)

        return transform

    with pytest.raises(AssertionError):
        check_unbiased(without, X, K, n_seeds=2000)


def test_variance_is_that_of_the_formula():
    """False alarms: errors of a mean of 32 cosines have a kurtosis near 3, see check_variance."""
    X = spread_rows(6)
    K = gaussian(X, lengthscale=1.5)
    formula = (1 - K**2) ** 2 / 64
    right = maps(n_components=64, lengthscale=1.5)
    check_variance(right, X, formula)

    def repeated(seed):
        def transform(X):
            features = RandomFourierFeatures(64, lengthscale=1.5, random_state=seed).fit(X)
            features.frequencies_ = np.tile(features.frequencies_[:, :8], 4)
            return features.transform(X)

        return transform

    check_unbiased(repeated, X, K)  # the mean does not tell
    with pytest.raises(AssertionError):
        check_variance(repeated, X, formula)
    with pytest.raises(AssertionError):
        check_variance(maps(n_components=256, lengthscale=1.5), X, formula)


def test_four_times_the_components_halve_the_error():
    """Ratios for 20 other seeds: 0.47 to 0.54."""
    X = spread_rows(6)
    check_rms_scaling(
        lambda m, seed: maps(n_components=m, lengthscale=1.5)(seed), X, gaussian(X, lengthscale=1.5), n_components=64
    )


def test_less_error_than_scikit_learn(rng):
    """As the formulas say: (1 − k²)²/m against (1 + k⁴/2 − k²)/m (also for k = 1)."""
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
    Z = RandomFourierFeatures(32, random_state=0).fit_transform(X)
    np.testing.assert_allclose((Z**2).sum(axis=1), 1)
    np.testing.assert_array_equal(Z[3], np.repeat([0.25, 0.0], 16))
    for rows in (X, sp.csr_array(X)):
        assert np.isfinite(RandomFourierFeatures(33, random_state=0).fit_transform(rows)).all()


def test_more_components_keep_the_first_frequencies(rng):
    X = rng.standard_normal((3, 4))
    small, large = (RandomFourierFeatures(m, random_state=0).fit(X).frequencies_ for m in (11, 40))
    np.testing.assert_array_equal(small, large[:, :6])


# Cosines and sines.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("phase", [None, 2.5])
def test_waves(phase, dtype, rng):
    """Each number of a row is as exact beside large ones, for which the C library is called."""
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


def test_waves_of_what_is_not_finite():
    Z = np.array([[np.nan, 1.0, 0.0, 0.0], [np.inf, 1.0, 0.0, 0.0]])
    waves(Z, 2, None)
    np.testing.assert_array_equal(np.isnan(Z), [[True, False, True, False]] * 2)
    np.testing.assert_allclose(Z[:, 1], 0.5**0.5 * np.cos(1.0))


@pytest.mark.parametrize("kind", [RandomFourierFeatures, OrthogonalFourierFeatures])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 2, 33])
def test_rows_of_any_size(kind, dtype, m, rng):
    X = rng.standard_normal((5, 3)) * np.array([1e-15, 1e15, 1, 0, 1])[:, None]
    X[4] = 1.0
    features = kind(m, lengthscale=1.0, random_state=0).fit(X)
    Z = features.transform(X.astype(dtype))
    assert Z.dtype == dtype
    assert np.abs(Z).max() <= (2 / -(-m // 2)) ** 0.5
    np.testing.assert_allclose(Z[0], Z[3], atol=1e-6)
    for i in range(5):  # BLAS adds up a single row in another order: phases of 1e15 have few digits in common
        atol = 2 if i == 1 else 1e-5
        np.testing.assert_allclose(features.transform(X[i : i + 1].astype(dtype))[0], Z[i], atol=atol)
    one = kind(m, random_state=0).fit(X[:1, :1])
    assert np.isfinite(one.transform(X[:1, :1])).all()


# Orthogonal frequencies.


@parametrize_with_checks([OrthogonalFourierFeatures(n_components=m) for m in (16, 17)])
def test_scikit_learn_estimator_checks_of_orthogonal(estimator, check):
    check(estimator)


def directions(d, size, seed=0, lengthscale=0.7):
    features = OrthogonalFourierFeatures(2 * size, lengthscale=lengthscale, random_state=seed).fit(np.zeros((1, d)))
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

    def right(seed):
        return OrthogonalFourierFeatures(m, lengthscale=1.0, random_state=seed).fit_transform

    def of_one_length(seed):
        features = OrthogonalFourierFeatures(m, lengthscale=1.0, random_state=seed).fit(X)
        features.frequencies_ *= 6**0.5 / np.linalg.norm(features.frequencies_, axis=0)
        return features.transform

    check_unbiased(right, X, K, n_seeds=1000)
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
        return lambda seed: kind(m, lengthscale=1.0, random_state=seed).fit_transform

    check_variance(maps_of(OrthogonalFourierFeatures), X, formula)
    if m == 256:
        with pytest.raises(AssertionError):
            check_variance(maps_of(RandomFourierFeatures), X, formula)


@pytest.mark.parametrize("m", SIZES)
def test_orthogonal_with_all_kinds_of_rows(m, rng):
    import torch

    X = rng.standard_normal((21, 10)) * (rng.random((21, 10)) < 0.7)
    features = OrthogonalFourierFeatures(m, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_allclose(Z, naive(features, X), atol=1e-14)
    for rows in (sp.csr_array(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_()):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-13)
    for rows in (X.astype(np.float32), torch.from_numpy(X).float()):
        assert "float32" in str(features.transform(rows).dtype)
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=2e-6)
    for batch_size in (1, 7, 100):
        np.testing.assert_allclose(features.set_params(batch_size=batch_size).transform(X), Z, atol=1e-13)
    again = pickle.loads(pickle.dumps(features))
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    np.testing.assert_array_equal(clone(features).fit(X).frequencies_, features.frequencies_)
    drawn = clone(features)
    drawn.n_features_in_, drawn.lengthscale_ = 10, features.lengthscale_
    drawn._draw(np.random.SeedSequence(0))
    np.testing.assert_array_equal(drawn.transform(X), features.transform(X))
    error = np.linalg.norm(Z @ Z.T - gaussian(X, lengthscale=features.lengthscale_))
    assert features.estimate_error(X) == pytest.approx(error / np.linalg.norm(features._kernel(X)))


# Length scales.


@pytest.mark.parametrize("kind", ["float64", "float32", "csr", "torch", "integers"])
def test_scale_is_that_of_svc(kind, rng):
    import torch

    X = 3 * rng.standard_normal((50, 6)) + 2
    X *= rng.random(X.shape) < 0.6
    rows = {
        "float64": X, "float32": X.astype(np.float32), "csr": sp.csr_array(X), "torch": torch.from_numpy(X),
        "integers": np.rint(X).astype(np.int64),
    }[kind]  # fmt: skip
    features = RandomFourierFeatures(4, random_state=0).fit(rows)
    dense = as_numpy(rows.toarray() if kind == "csr" else rows)
    svc = SVC(gamma="scale").fit(dense, np.arange(50) % 2)
    assert isinstance(features.lengthscale_, float)
    assert features.lengthscale_ == pytest.approx((2 * svc._gamma) ** -0.5, rel=1e-6 if kind == "float32" else 1e-12)
    assert features.lengthscale_ == pytest.approx(np.sqrt(6 * dense.var(dtype=np.float64) / 2))


def test_scale_in_batches(rng):
    from sklearn import config_context

    X = rng.standard_normal((40000, 5))
    whole = RandomFourierFeatures(4, random_state=0).fit(X).lengthscale_
    with config_context(working_memory=1):
        assert RandomFourierFeatures(4, random_state=0).fit(X).lengthscale_ == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("rows", [np.zeros((4, 3)), np.full((4, 3), 0.1), np.ones((1, 1)), sp.csr_array((4, 3))])
def test_scale_of_equal_entries(rows):
    features = RandomFourierFeatures(4, random_state=0).fit(rows)
    assert features.lengthscale_ == 0.5**0.5
    assert np.isfinite(features.transform(rows)).all()


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_scale_of_extreme_entries(factor, rng):
    X = rng.standard_normal((20, 3))
    plain = RandomFourierFeatures(8, random_state=0).fit(X)
    features = RandomFourierFeatures(8, random_state=0).fit(factor * X)
    assert features.lengthscale_ == pytest.approx(factor * plain.lengthscale_)
    np.testing.assert_allclose(features.transform(factor * X), plain.transform(X), atol=1e-12)


def test_scale_of_duplicate_entries():
    rows = sp.csr_matrix((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert not rows.has_canonical_format
    features = RandomFourierFeatures(8, random_state=0).fit(rows)
    dense = np.array([[3.0, 0.0], [0.0, 1.0]])
    assert features.lengthscale_ == pytest.approx(dense.std())
    assert rows.nnz == 3
    np.testing.assert_allclose(features.transform(rows), features.transform(dense), atol=1e-14)


def test_a_given_lengthscale_is_kept(rng):
    X = rng.standard_normal((5, 3))
    for value in (2, np.float32(0.5), 1e-3):
        features = RandomFourierFeatures(8, lengthscale=value).fit(X)
        assert features.lengthscale_ == float(value)
        assert isinstance(features.lengthscale_, float)
        assert features.lengthscale is value


# Array libraries, types, batches.


@pytest.mark.parametrize("m", SIZES)
def test_all_kinds_of_rows_give_the_same_features(m, rng, to_library):
    import pandas as pd

    X = rng.standard_normal((21, 10)) * (rng.random((21, 10)) < 0.7)
    features = RandomFourierFeatures(m, random_state=0).fit(X)
    Z = features.transform(X)
    assert Z.shape == (21, m)
    for rows in (sp.csr_array(X), sp.csc_matrix(X), sp.coo_array(X), to_library(X), X.tolist(), np.asfortranarray(X)):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-13)
        np.testing.assert_allclose(as_numpy(clone(features).fit_transform(rows)), Z, atol=1e-12)
    np.testing.assert_allclose(clone(features).fit_transform(pd.DataFrame(X).rename(columns=str)), Z, atol=1e-12)
    for view in (np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1], np.repeat(X, 3, axis=0)[::3]):
        np.testing.assert_allclose(features.transform(view), Z, atol=1e-13)


@pytest.mark.parametrize("m", SIZES)
def test_float32_stays_float32(m, rng):
    import torch

    X = rng.standard_normal((21, 10)).astype(np.float32)
    features = RandomFourierFeatures(m, random_state=0).fit(X)
    Z = features.transform(X.astype(np.float64))
    for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
        out = features.transform(rows)
        assert "float32" in str(out.dtype)
        np.testing.assert_allclose(as_numpy(out), Z, atol=2e-6)
    np.testing.assert_array_equal(features.transform(X), as_numpy(features.transform(torch.from_numpy(X))))
    np.testing.assert_array_equal(features.transform(X), clone(features).fit(X.astype(np.float64)).transform(X))


@pytest.mark.parametrize("m", SIZES)
def test_torch(m, rng):
    import torch

    X = rng.standard_normal((7, 4))
    features = RandomFourierFeatures(m, lengthscale=2.0, random_state=0).fit(torch.from_numpy(X))
    Z = features.transform(X)
    for dtype, error in ((torch.float64, 1e-13), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        out = features.transform(torch.from_numpy(X).to(dtype))
        assert out.dtype == dtype
        np.testing.assert_allclose(as_numpy(out.double()), Z, atol=error)
    whole = torch.arange(8).reshape(2, 4)
    assert features.transform(whole).dtype == torch.float64
    np.testing.assert_allclose(features.transform(whole), features.transform(whole.double()))


@pytest.mark.parametrize("m", SIZES)
def test_the_code_for_devices_agrees(m, rng):
    """Run on the CPU; batches write to parts of the result."""
    import torch

    X = rng.standard_normal((23, 4))
    features = RandomFourierFeatures(m, lengthscale=2.0, random_state=0).fit(X)
    tensor = torch.from_numpy(X)
    Z = torch.empty((23, m), dtype=torch.float64)
    for rows in (slice(0, 10), slice(10, 23)):
        features._fill(tensor[rows], Z[rows])
    np.testing.assert_allclose(as_numpy(Z), features.transform(X), atol=1e-13)


@pytest.mark.parametrize("m", SIZES)
def test_cuda(m, rng):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X = rng.standard_normal((1000, 30))
    features = RandomFourierFeatures(m, random_state=0).fit(X)
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


@pytest.mark.parametrize("m", [4, 5])
def test_torch_differentiates(m, rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((3, 2))).requires_grad_()
    features = RandomFourierFeatures(m, random_state=0).fit(X)
    assert torch.autograd.gradcheck(features.transform, (X,))
    np.testing.assert_allclose(
        as_numpy(features.transform(X)), features.transform(X.detach().numpy().copy()), atol=1e-14
    )
    with torch.no_grad():
        assert not features.transform(X).requires_grad


@pytest.mark.parametrize("kind", ["float64", "float32", "csr"])
def test_features_do_not_depend_on_batches(kind, rng):
    """Up to rounding: BLAS sums a single row in another order."""
    X = rng.standard_normal((700, 30)).astype("float32" if kind == "float32" else "float64")
    rows = sp.csr_array(X) if kind == "csr" else X
    features = RandomFourierFeatures(65, random_state=0).fit(rows)
    Z = features.transform(rows)
    error = 5e-6 if kind == "float32" else 1e-13
    for batch_size in (1, 7, 128, 699, 10**6):
        features.set_params(batch_size=batch_size)
        np.testing.assert_allclose(features.transform(rows), Z, atol=error)
    parts = [features.transform(part) for part in (rows[:1], rows[1:300], rows[300:])]
    np.testing.assert_allclose(np.vstack(parts), Z, atol=error)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_features_do_not_depend_on_threads(threads, rng, monkeypatch):
    import numba

    X = rng.standard_normal((900, 30))
    features = RandomFourierFeatures(64, random_state=0).fit(X)
    Z = features.transform(X)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
    monkeypatch.setattr(fourier, "_TILE_BYTES", 1)
    np.testing.assert_allclose(features.transform(X), Z, atol=1e-13)


def test_rows_are_left_as_they_are(rng):
    X = rng.standard_normal((9, 5))
    kept = X.copy()
    features = RandomFourierFeatures(8).fit(X)
    features.transform(X)
    np.testing.assert_array_equal(X, kept)
    X.setflags(write=False)
    features.transform(X)


# Fits, copies, draws again.


def test_fits_leave_the_first_if_they_fail(rng):
    X = rng.standard_normal((6, 4))
    features = RandomFourierFeatures(8, random_state=0).fit(X)
    Z, before = features.transform(X), features.__dict__.copy()
    for bad in ({"n_components": 0}, {"lengthscale": -1.0}, {"batch_size": 0}, {"random_state": -1}):
        good = {name: features.get_params()[name] for name in bad}
        with pytest.raises(ValueError, match=next(iter(bad))):
            features.set_params(**bad).fit(X[:, :2])
        features.set_params(**good)
        assert features.__dict__.keys() == before.keys()
        np.testing.assert_array_equal(features.transform(X), Z)
    with pytest.raises(ValueError, match="NaN"):
        features.fit(np.full((3, 2), np.nan))
    np.testing.assert_array_equal(features.transform(X), Z)


def test_parameters_set_after_the_fit_wait_for_the_next_one(rng):
    X = rng.standard_normal((6, 4))
    features = RandomFourierFeatures(9, random_state=0).fit(X)
    Z, K = features.transform(X), features._kernel(X)
    features.set_params(n_components=4, lengthscale=0.1, random_state=1)
    for copy in (features, pickle.loads(pickle.dumps(features))):
        np.testing.assert_array_equal(copy.transform(X), Z)
        np.testing.assert_array_equal(copy._kernel(X), K)
        assert len(copy.get_feature_names_out()) == 9


def test_pickles(rng):
    X = rng.standard_normal((6, 40))
    features = RandomFourierFeatures(257, random_state=0).fit(X)
    size = len(pickle.dumps(features))
    for rows in (X, X.astype(np.float32), sp.csr_array(X)):
        features.transform(rows)
    stored = pickle.dumps(features)
    assert len(stored) == size
    assert size < features.frequencies_.nbytes + 2000
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))
    np.testing.assert_array_equal(again.transform(X.astype(np.float32)), features.transform(X.astype(np.float32)))
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(RandomFourierFeatures())).transform(X)


@pytest.mark.parametrize("random_state", [None, 7, np.random.RandomState(0), np.random.default_rng(0)])
def test_the_seed_kept_draws_the_same_map_again(random_state, rng):
    X = rng.standard_normal((6, 4))
    features = RandomFourierFeatures(9, random_state=random_state).fit(X)
    entropy, spawn_key, pool_size = features._seed
    seed = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size)
    again = RandomFourierFeatures(9)
    again.n_features_in_, again.lengthscale_ = features.n_features_in_, features.lengthscale_
    again._draw(seed)
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


def test_seeds(rng):
    X = rng.standard_normal((6, 4))
    features = RandomFourierFeatures(8, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_array_equal(clone(features).fit_transform(X), Z)
    assert not np.allclose(clone(features).set_params(random_state=1).fit_transform(X), Z)
    assert not np.allclose(*(RandomFourierFeatures(8).fit_transform(X) for _ in range(2)))
    state = np.random.RandomState(0)
    assert not np.allclose(*(RandomFourierFeatures(8, random_state=state).fit_transform(X) for _ in range(2)))


# Errors.

COUNTS = [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError)]
BAD = {
    "n_components": [*COUNTS, (None, TypeError)],
    "lengthscale": [
        (0, ValueError), (-1.0, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("auto", ValueError),
        (None, TypeError), (True, TypeError), ([1.0], TypeError),
    ],
    "batch_size": COUNTS,
    "random_state": [(-1, ValueError), (0.5, TypeError), ("a", TypeError)],
}  # fmt: skip


@pytest.mark.parametrize("kind", [RandomFourierFeatures, OrthogonalFourierFeatures])
@pytest.mark.parametrize(("name", "value", "error"), [(n, v, e) for n, values in BAD.items() for v, e in values])
def test_bad_parameters(kind, name, value, error):
    rule = rf"'{name}' parameter of {kind.__name__} must be .+\. Got {re.escape(repr(value))} instead"
    with pytest.raises(error, match=rule):
        kind(**{name: value}).fit(np.ones((2, 3)))


def test_bad_rows(rng):
    import torch

    X = rng.standard_normal((4, 5))
    features = RandomFourierFeatures(8).fit(X)
    for rows in (X[:, :4], sp.csr_array(X[:, :4]), torch.from_numpy(X[:, :4])):
        with pytest.raises(ValueError, match="X has 4 features, but RandomFourierFeatures is expecting 5 features"):
            features.transform(rows)
        with pytest.raises(NotFittedError):
            RandomFourierFeatures().transform(rows)
    X[1, 2] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        features.transform(X)
    with pytest.raises(ValueError, match="must be finite"):
        features.transform(torch.from_numpy(X))


# In use.


def test_errors_can_be_estimated_and_sizes_suggested(rng):
    import torch

    X = rng.standard_normal((100, 5))
    features = RandomFourierFeatures(2048, random_state=0).fit(X)
    Z, K = features.transform(X), gaussian(X, lengthscale=features.lengthscale_)
    error = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert error < 0.2
    for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
        assert features.estimate_error(rows) == pytest.approx(error)
    m = RandomFourierFeatures().suggest_n_components(X, 0.2)
    assert RandomFourierFeatures(2 * m, random_state=0).fit(X).estimate_error(X) < 0.2


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(RandomFourierFeatures(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
    assert repr(RandomFourierFeatures()) == "RandomFourierFeatures()"


def test_names_and_output(rng):
    import pandas as pd

    frame = pd.DataFrame(rng.standard_normal((4, 3)), columns=["a", "b", "c"])
    features = RandomFourierFeatures(5, random_state=0).set_output(transform="pandas").fit(frame)
    names = [f"randomfourierfeatures{i}" for i in range(5)]
    assert list(features.transform(frame).columns) == names
    assert list(features.feature_names_in_) == ["a", "b", "c"]
