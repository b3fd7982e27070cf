from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from tests.conftest import as_numpy
from tests.statistical import check_distinct, check_unbiased, check_variance, kept, spread_rows
from tests.tiers import gpu, sampled

from ntkit import _array
from ntkit._random import generator
from ntkit.features.fourier import RandomFourierFeatures
from ntkit.features.fourier.fastfood import FastfoodFeatures
from ntkit.kernels import gaussian

SIZES = (64, 65)  # pairs only, or a single cosine


def maps(**parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: lambda X: FastfoodFeatures(random_state=seed, **parameters).fit_transform(X)


class Draws:
    """Return the draws of a fitted map of the Gaussian: B, Π, g/‖g‖ of all blocks, and the frequency lengths."""

    def __init__(self, features):
        d, size = features.n_features_in_, -(-features.n_components // 2)
        n = max(64, 1 << (d - 1).bit_length())
        shape, seed = (-(-size // n), n), np.random.SeedSequence(features.random_state)
        self.signs = 1 - 2 * generator(seed, "fastfood", "signs").integers(2, size=shape, dtype=np.int8)[:, :d]
        places = np.tile(np.arange(n, dtype=np.int32), (shape[0], 1))
        self.places = generator(seed, "fastfood", "places").permuted(places, axis=1)
        normals = generator(seed, "fastfood", "normals").standard_normal(shape)
        self.directions = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        self.lengths = np.sqrt(generator(seed, "fastfood", "lengths").chisquare(n, size))


def expected_frequencies(features):
    """Rows of all blocks V = S H G Π H B / (ℓ√n ‖g‖), as explicit matrices."""
    draws = Draws(features)
    d, n = features.n_features_in_, draws.places.shape[1]
    H = hadamard(n).astype(float)
    blocks = []
    for block, (signs, places, g) in enumerate(zip(draws.signs, draws.places, draws.directions, strict=True)):
        lengths = draws.lengths[block * n : (block + 1) * n]
        permutation = np.eye(n)[places]
        V = np.diag(g) @ permutation @ H[:, :d] @ np.diag(signs.astype(float))
        blocks.append(np.diag(lengths) @ (H @ V)[: len(lengths)])
    return np.vstack(blocks) / (features.lengthscale_ * n**0.5)


def frequencies(features):
    """Return the frequencies of a fitted map, which does not store them: phases of unit vectors."""
    return features._draws.phases(np.eye(features.n_features_in_), None).T


def naive(features, X):
    W, m = expected_frequencies(features), features.get_feature_names_out().size
    half = len(W)
    phases = X @ W.T
    cosines, sines = np.cos(phases), np.sin(phases[:, : m // 2])
    if m % 2:
        cosines[:, -1] = 2**0.5 * np.cos(phases[:, -1] + features._draws.phase)
    return np.hstack([cosines, sines]) / half**0.5


# The law.


@pytest.mark.parametrize("d", [1, 3, 64, 65, 300])
def test_features_equal_the_formula(d, rng):
    for m in [1, 2, 127, 128, 1301]:
        X = rng.standard_normal((19, d))
        features = FastfoodFeatures(n_components=m, lengthscale=0.7, random_state=0).fit(X)
        assert frequencies(features).shape == (-(-m // 2), d)
        np.testing.assert_allclose(frequencies(features), expected_frequencies(features), atol=1e-13)
        Z = features.transform(X)
        assert Z.shape == (19, m)
        np.testing.assert_allclose(Z, naive(features, X), atol=1e-12)


def test_lengths_of_the_frequencies(rng):
    """At full size d = n the lengths are the drawn ones; the directions of a block come from one matrix."""
    X = rng.standard_normal((2, 64))
    features = FastfoodFeatures(n_components=256, lengthscale=2.0, random_state=0).fit(X)
    W = frequencies(features)
    draws = Draws(features)
    np.testing.assert_allclose(2.0 * np.linalg.norm(W, axis=1), draws.lengths)
    np.testing.assert_allclose(np.linalg.norm(draws.directions, axis=1), 1)
    assert (np.sort(draws.places, axis=1) == np.arange(64)).all()


def test_frequencies_have_the_law_of_the_gaussian(rng):
    """False alarms: 1e-6 for each test of Kolmogorov and Smirnov; one coordinate of one frequency for each seed."""
    from scipy import stats

    X = rng.standard_normal((2, 64))
    drawn = [FastfoodFeatures(n_components=128, lengthscale=2.0, random_state=seed).fit(X) for seed in range(300)]
    W = 2.0 * np.array([frequencies(features) for features in drawn])
    for row, column in ((0, 0), (5, 9), (63, 63)):
        assert stats.kstest(W[:, row, column], "norm").pvalue > 1e-6
    lengths = np.linalg.norm(W, axis=2).ravel()
    assert stats.kstest(lengths, stats.chi(64).cdf).pvalue > 1e-6


def test_blocks_have_independent_draws(rng):
    features = FastfoodFeatures(n_components=2 * 3 * 128, random_state=0).fit(rng.standard_normal((2, 128)))
    draws = Draws(features)
    check_distinct(draws.signs)
    check_distinct(draws.places)
    check_distinct(np.round(1e6 * draws.directions))
    W = frequencies(features)
    lengths = np.linalg.norm(W, axis=1)
    check_distinct(np.round(1e6 * lengths.reshape(3, 128)))
    check_distinct(np.round(1e6 * W / lengths[:, None]).reshape(3, -1))


@pytest.mark.parametrize(("m", "d"), sampled([(64, 6), (65, 3), (65, 6), (64, 3), (64, 70), (65, 70)], 3))
def test_inner_products_are_unbiased(m, d):
    """False alarms: 1e-6 each. The kernel is off by 0.02 or more somewhere for a 5 % wrong length scale."""
    X = spread_rows(d)
    K = gaussian(X, lengthscale=1.0)
    right = kept(maps(n_components=m, lengthscale=1.0))
    check_unbiased(right, X, K, n_seeds=1000)
    if (d, m) != (6, 64):
        return
    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: np.full((len(X), m), m**-0.5),  # noqa: ARG005
        lambda seed: lambda X: 1.05 * right(seed)(X),
        lambda seed: lambda X: 2**0.5 * right(seed)(X)[:, -(m // 2) :],  # sines only
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=1000)
    with pytest.raises(AssertionError):
        check_unbiased(right, X, gaussian(X, lengthscale=1.05), n_seeds=1000)


@pytest.mark.parametrize(("m", "axes"), sampled([(256, 1), (64, 1), (64, 2), (256, 2), (64, 64), (256, 64)], 3))
def test_variance_equals_the_formula(m, axes):
    """Half of a block, and two blocks; Σ_j z_j⁴ = ‖z‖⁴/axes. False alarms: 1e-6, sample variances vary by 0.05 or 0.06.

    Pairs that are closer have a part of order 1/n² that is not in the formula.
    """
    X = np.zeros((4, 64))
    X[:, :axes] = np.array([0.0, 1.0, 2.2, -1.2])[:, None] * axes**-0.5
    K = gaussian(X, lengthscale=1.0)
    independent = (1 - K**2) ** 2 / m
    formula = independent + (min(m // 2, 64) - 1) / 64 * K**2 * 4 * np.log(K) ** 2 * (1 - 2 / axes) / m
    right = kept(maps(n_components=m, lengthscale=1.0))
    check_variance(right, X, formula, low=0.7, high=1.5)
    if m == 256 and axes != 2:
        with pytest.raises(AssertionError):
            check_variance(right, X, independent, low=0.7, high=1.5)


def test_more_components_keep_the_first_frequencies(rng):
    X = rng.standard_normal((3, 70))
    small, large = (frequencies(FastfoodFeatures(n_components=m, random_state=0).fit(X)) for m in (11, 700))
    np.testing.assert_array_equal(small, large[:6])


def test_norms_are_one_and_zero_rows_are_no_exception(rng):
    X = rng.standard_normal((9, 4))
    X[3] = 0
    Z = FastfoodFeatures(n_components=32, random_state=0).fit_transform(X)
    np.testing.assert_allclose((Z**2).sum(axis=1), 1)
    np.testing.assert_array_equal(Z[3], np.repeat([0.25, 0.0], 16))


def test_rows_of_any_size(rng):
    for m in [1, 2, 33]:
        for dtype in ["float32", "float64"]:
            X = rng.standard_normal((5, 3)) * np.array([1e-15, 1e15, 1, 0, 1])[:, None]
            X[4] = 1.0
            X = X.astype(dtype)
            features = FastfoodFeatures(n_components=m, lengthscale=1.0, random_state=0).fit(X)
            Z = features.transform(X)
            assert Z.dtype == dtype
            assert np.abs(Z).max() <= (2 / -(-m // 2)) ** 0.5
            np.testing.assert_allclose(Z[0], Z[3], atol=1e-6)
            for i in range(5):
                np.testing.assert_array_equal(features.transform(X[i : i + 1])[0], Z[i])
            assert np.isfinite(FastfoodFeatures(n_components=m).fit_transform(X[:1, :1])).all()


# Length scales.


def test_scale_equals_random_fourier_features(rng):
    X = 3 * rng.standard_normal((50, 6)) + 2
    assert (
        FastfoodFeatures(n_components=4).fit(X).lengthscale_
        == RandomFourierFeatures(n_components=4).fit(X).lengthscale_
    )
    assert FastfoodFeatures(n_components=4, lengthscale=np.float32(0.5)).fit(X).lengthscale_ == 0.5


# Array libraries, types, batches.


@pytest.mark.parametrize("m", SIZES)
def test_the_code_for_devices_agrees(m, rng, monkeypatch):
    """Run on the CPU, by the interpreter that torch differentiates; batches write to parts of the result."""
    import torch

    X = rng.standard_normal((23, 70))
    features = FastfoodFeatures(n_components=m, lengthscale=9.0, random_state=0).fit(X)
    monkeypatch.setattr(_array, "wants_gradient", lambda inputs: True)  # noqa: ARG005
    Z = torch.empty((23, m), dtype=torch.float64)
    for rows in (slice(0, 10), slice(10, 23)):
        features._draws.fill(torch.from_numpy(X[rows]), (), Z[rows])
    np.testing.assert_allclose(as_numpy(Z), features.transform(X), atol=1e-13)


@gpu
@pytest.mark.parametrize("d", [30, 1000, 5000])
@pytest.mark.parametrize("m", [600, 8193])
def test_cuda(m, d, rng):
    import torch

    X = rng.standard_normal((500, d))
    features = FastfoodFeatures(n_components=m, random_state=0).fit(X)
    Z = features.transform(X)
    for dtype, error in ((torch.float64, 1e-12), (torch.float32, 2e-5), (torch.bfloat16, 3e-2)):
        rows = torch.from_numpy(X).to("cuda", dtype)
        expected = features.transform(rows.double().cpu().numpy())
        for batch_size in (None, 77):
            out = features.set_params(batch_size=batch_size).transform(rows)
            assert out.device == rows.device
            assert out.dtype == dtype
            np.testing.assert_allclose(as_numpy(out.double()), expected, atol=error)
    rows = torch.from_numpy(X).cuda().requires_grad_()
    out = features.transform(rows)
    np.testing.assert_allclose(as_numpy(out), Z, atol=1e-12)
    out.sum().backward()
    assert rows.grad.device == rows.device


# In use.


def test_errors_can_be_estimated_and_sizes_suggested(rng):
    X = rng.standard_normal((100, 5))
    features = FastfoodFeatures(n_components=2048, random_state=0).fit(X)
    Z, K = features.transform(X), gaussian(X, lengthscale=features.lengthscale_)
    error = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert error < 0.2
    assert features.estimate_error(X) == pytest.approx(error)
    m = FastfoodFeatures().suggest_n_components(X, 0.2)
    assert FastfoodFeatures(n_components=2 * m, random_state=0).fit(X).estimate_error(X) < 0.2


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(FastfoodFeatures(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
    assert repr(FastfoodFeatures()) == "FastfoodFeatures()"
