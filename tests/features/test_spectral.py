"""Fourier features of Laplace and Matérn kernels: the laws of their frequencies."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from tests.conftest import as_numpy
from tests.statistical import check_unbiased, check_variance, kept, spread_rows
from tests.tiers import sampled

from ntkit import FastfoodFeatures, OrthogonalFourierFeatures, RandomFourierFeatures, load, save
from ntkit._random import generator
from ntkit.kernels import gaussian, gram

LAWS = {
    "laplace": ("laplace", None),
    "l1": ("laplace", {"norm": "l1"}),
    "matern 3/2": ("matern", None),
    "matern 5/2": ("matern", {"nu": 2.5}),
}
EACH = pytest.mark.parametrize("law", LAWS)
KINDS = (RandomFourierFeatures, OrthogonalFourierFeatures, FastfoodFeatures)


def make(kind, law, m=64, lengthscale=1.3, **parameters):
    kernel, params = LAWS[law]
    return kind(n_components=m, kernel=kernel, kernel_params=params, lengthscale=lengthscale, **parameters)


def exact(law, X, lengthscale=1.3):
    kernel, params = LAWS[law]
    return gram(kernel, X, lengthscale=lengthscale, **(params or {}))


@EACH
def test_unbiased_with_the_variance_stated(law):
    """False alarms: 1e-6 for the mean; for the variance see check_variance (means of 32 bounded cosines)."""
    X = spread_rows(6)
    K, doubled = exact(law, X), exact(law, 2 * X)

    right = kept(lambda seed: make(RandomFourierFeatures, law, random_state=seed).fit_transform)
    n_seeds = 2500  # enough to tell a length scale that is 5 % wrong
    check_unbiased(right, X, K, n_seeds=n_seeds)
    check_variance(right, X, (1 + doubled - 2 * K**2) / 64)
    for wrong in (gaussian(X, lengthscale=1.3), exact(law, X, lengthscale=1.3 * 1.05)):
        with pytest.raises(AssertionError):
            check_unbiased(right, X, wrong, n_seeds=n_seeds)


@pytest.mark.parametrize(("kind", "law"), sampled(list(product(KINDS[1:], ["laplace", "matern 5/2"])), 2))
def test_structured_maps_are_unbiased(law, kind):
    """False alarms: 1e-6 each. The lengths of the other law are noticed."""
    X = spread_rows(6)

    right = kept(lambda seed: make(kind, law, random_state=seed).fit_transform)
    check_unbiased(right, X, exact(law, X), n_seeds=1000)
    with pytest.raises(AssertionError):
        check_unbiased(right, X, exact("laplace" if law != "laplace" else "matern 3/2", X), n_seeds=1000)


@EACH
def test_law_of_the_frequencies(law):
    """False alarms: 1e-6 in each test of Kolmogorov and Smirnov, on independent numbers."""
    d, size = 5, 4000
    degrees = {"matern 3/2": 3, "matern 5/2": 5}.get(law, 1)
    W = 1.3 * make(RandomFourierFeatures, law, 2 * size, random_state=0).fit(np.zeros((1, d))).frequencies_
    for row in W:  # a coordinate of Student's law in d dimensions has Student's law
        assert stats.kstest(row, stats.t(degrees).cdf).pvalue > 1e-6
    norms = np.linalg.norm(W, axis=0) ** 2 / d
    has_common_factor = stats.kstest(norms, stats.f(d, degrees).cdf).pvalue > 1e-6
    assert has_common_factor == (law != "l1")
    if law != "l1":
        orthogonal = make(OrthogonalFourierFeatures, law, 2 * size, random_state=0).fit(np.zeros((1, d))).frequencies_
        assert stats.kstest((1.3 * np.linalg.norm(orthogonal, axis=0)) ** 2 / d, stats.f(d, degrees).cdf).pvalue > 1e-6
        directions = orthogonal / np.linalg.norm(orthogonal, axis=0)
        np.testing.assert_allclose(directions[:, :d].T @ directions[:, :d], np.eye(d), atol=1e-12)
    few = make(RandomFourierFeatures, law, 100, random_state=0).fit(np.zeros((1, d))).frequencies_
    np.testing.assert_array_equal(1.3 * few, W[:, :50])


def test_gaussian_draws_do_not_change_between_versions():
    X = np.zeros((1, 7))
    seed = np.random.SeedSequence(5)
    W = RandomFourierFeatures(n_components=20, lengthscale=2.0, random_state=5).fit(X).frequencies_
    normals = generator(seed, "fourier", "frequencies").standard_normal((10, 7))
    np.testing.assert_array_equal(W, normals.T / 2.0)
    features = FastfoodFeatures(n_components=20, lengthscale=2.0, random_state=5).fit(np.zeros((1, 64)))
    W = features._draws.phases(np.eye(64), None)
    lengths = np.sqrt(generator(seed, "fastfood", "lengths").chisquare(64, 10))
    np.testing.assert_allclose(2.0 * np.linalg.norm(W, axis=0), lengths, rtol=1e-12)


@EACH
def test_copies_files_and_exact_kernel(law, rng, tmp_path):
    for kind in KINDS:
        if law == "l1" and kind is not RandomFourierFeatures:
            with pytest.raises(ValueError, match=r"'norm' parameter of .* must be 'l2' for .*Use RandomFourier"):
                make(kind, law).fit(np.zeros((1, 3)))
            continue
        import torch

        X = rng.standard_normal((30, 5))
        features = make(kind, law, 513, "scale", random_state=0).fit(X)
        Z = features.transform(X)
        K = exact(law, X, features.lengthscale_)
        assert features.estimate_error(X) == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))
        assert features.estimate_error(X) < 0.3
        np.testing.assert_allclose(as_numpy(features.transform(torch.from_numpy(X))), Z, atol=1e-9)
        save(features, tmp_path / "file")
        for again in (load(tmp_path / "file"), pickle.loads(pickle.dumps(features)), clone(features).fit(X)):
            np.testing.assert_array_equal(again.transform(X), Z)  # pickles draw again here
            assert vars(again).keys() == vars(features).keys()
        other = copy.deepcopy(features).set_params(kernel="gaussian", kernel_params=None)
        with pytest.raises(ValueError, match="has other parameters than when it was fitted"):
            save(other, tmp_path / "file")


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ({"kernel": "ntk"}, ValueError, "'kernel' parameter of RandomFourierFeatures must be one of 'gaussian'"),
        ({"kernel": 3}, TypeError, "'kernel' parameter of RandomFourierFeatures"),
        ({"kernel_params": [1]}, TypeError, "'kernel_params' parameter of RandomFourierFeatures must be a dict"),
        ({"kernel_params": {"lengthscale": 1.0}}, ValueError, "without 'lengthscale', which is a separate parameter"),
        ({"kernel_params": {"nu": 1.5}}, TypeError, "kernel 'gaussian' takes the parameters lengthscale"),
        ({"kernel": "matern", "kernel_params": {"nu": 1.0}}, ValueError, "'nu' parameter of matern must be 0.5, 1.5"),
    ],
)  # fmt: skip
def test_bad_parameters(parameters, error, text):
    with pytest.raises(error, match=text):
        RandomFourierFeatures(n_components=8, **parameters).fit(np.zeros((1, 3)))
