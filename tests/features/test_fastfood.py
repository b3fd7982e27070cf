from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import hadamard
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from tests.statistical import check_distinct, check_rms_scaling, check_unbiased, check_variance, spread_rows

from ntkit import _array
from ntkit.features import fourier
from ntkit.features.fastfood import FastfoodFeatures
from ntkit.features.fourier import RandomFourierFeatures
from ntkit.kernels import gaussian

SIZES = (64, 65)  # pairs only, and one cosine alone


@parametrize_with_checks([FastfoodFeatures(n_components=m) for m in (16, 17)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


def test_many_estimator_checks_ran():
    assert len(list(estimator_checks_generator(FastfoodFeatures(n_components=16)))) >= 45


def maps(**parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: lambda X: FastfoodFeatures(random_state=seed, **parameters).fit_transform(X)


def frequencies(features):
    """Rows of all blocks V = S H G Π H B / (ℓ√n ‖g‖), as explicit matrices."""
    d, n = features.n_features_in_, features._places.shape[1]
    H = hadamard(n).astype(float)
    blocks = []
    for block, (signs, places, g) in enumerate(
        zip(features._signs, features._places, features._directions, strict=True)
    ):
        lengths = features._lengths[block * n : (block + 1) * n]
        permutation = np.eye(n)[places]
        V = np.diag(g) @ permutation @ H[:, :d] @ np.diag(signs.astype(float))
        blocks.append(np.diag(lengths) @ (H @ V)[: len(lengths)])
    return np.vstack(blocks) / (features.lengthscale_ * n**0.5)


def naive(features, X):
    W, m = frequencies(features), features.get_feature_names_out().size
    half = len(W)
    phases = X @ W.T
    cosines, sines = np.cos(phases), np.sin(phases[:, : m // 2])
    if m % 2:
        cosines[:, -1] = 2**0.5 * np.cos(phases[:, -1] + features._phase)
    return np.hstack([cosines, sines]) / half**0.5


# The law.


@pytest.mark.parametrize("d", [1, 3, 64, 65, 300])
@pytest.mark.parametrize("m", [1, 2, 127, 128, 1301])
def test_features_are_those_of_the_formula(d, m, rng):
    X = rng.standard_normal((19, d))
    features = FastfoodFeatures(m, lengthscale=0.7, random_state=0).fit(X)
    assert frequencies(features).shape == (-(-m // 2), d)
    Z = features.transform(X)
    assert Z.shape == (19, m)
    np.testing.assert_allclose(Z, naive(features, X), atol=1e-12)


def test_lengths_of_the_frequencies(rng):
    """At full size d = n they are those drawn; the directions of a block are all of one matrix."""
    X = rng.standard_normal((2, 64))
    features = FastfoodFeatures(256, lengthscale=2.0, random_state=0).fit(X)
    W = frequencies(features)
    np.testing.assert_allclose(2.0 * np.linalg.norm(W, axis=1), features._lengths)
    np.testing.assert_allclose(np.linalg.norm(features._directions, axis=1), 1)
    assert (np.sort(features._places, axis=1) == np.arange(64)).all()


def test_frequencies_have_the_law_of_the_gaussian(rng):
    """False alarms: 1e-6 for each test of Kolmogorov and Smirnov; one coordinate of one frequency for each seed."""
    from scipy import stats

    X = rng.standard_normal((2, 64))
    drawn = [FastfoodFeatures(128, lengthscale=2.0, random_state=seed).fit(X) for seed in range(300)]
    W = 2.0 * np.array([frequencies(features) for features in drawn])
    for row, column in ((0, 0), (5, 9), (63, 63)):
        assert stats.kstest(W[:, row, column], "norm").pvalue > 1e-6
    lengths = np.concatenate([features._lengths for features in drawn])
    assert stats.kstest(lengths, stats.chi(64).cdf).pvalue > 1e-6


def test_blocks_have_draws_of_their_own(rng):
    features = FastfoodFeatures(2 * 3 * 128, random_state=0).fit(rng.standard_normal((2, 128)))
    check_distinct(features._signs)
    check_distinct(features._places)
    check_distinct(np.round(1e6 * features._directions))
    check_distinct(np.round(1e6 * features._lengths.reshape(3, 128)))


@pytest.mark.parametrize("d", [3, 6, 70])
@pytest.mark.parametrize("m", SIZES)
def test_inner_products_are_unbiased(m, d):
    """False alarms: 1e-6 each. The kernel is off by 0.02 or more somewhere for a 5 % wrong length scale."""
    X = spread_rows(d)
    K = gaussian(X, lengthscale=1.0)
    right = maps(n_components=m, lengthscale=1.0)
    check_unbiased(right, X, K, n_seeds=1000)
    if (d, m) != (6, 64):
        return
    faults = [
        lambda seed: lambda X: 0 * right(seed)(X),
        lambda seed: lambda X: np.full((len(X), m), m**-0.5),  # noqa: ARG005
        lambda seed: lambda X: 1.05 * right(seed)(X),
        lambda seed: lambda X: 2**0.5 * right(seed)(X)[:, -(m // 2) :],  # sines alone
        maps(n_components=m, lengthscale=1.05),
    ]
    for fault in faults:
        with pytest.raises(AssertionError):
            check_unbiased(fault, X, K, n_seeds=1000)


@pytest.mark.parametrize("axes", [1, 2, 64])
@pytest.mark.parametrize("m", [64, 256])
def test_variance_is_that_of_the_formula(m, axes):
    """Half of a block, and two blocks; Σ_j z_j⁴ = ‖z‖⁴/axes. False alarms: 1e-6, sample variances vary by 0.05 or 0.06.

    Pairs that are closer have a part of order 1/n² that is not in the formula.
    """
    X = np.zeros((4, 64))
    X[:, :axes] = np.array([0.0, 1.0, 2.2, -1.2])[:, None] * axes**-0.5
    K = gaussian(X, lengthscale=1.0)
    independent = (1 - K**2) ** 2 / m
    formula = independent + (min(m // 2, 64) - 1) / 64 * K**2 * 4 * np.log(K) ** 2 * (1 - 2 / axes) / m
    right = maps(n_components=m, lengthscale=1.0)
    check_variance(right, X, formula, low=0.7, high=1.5)
    if m == 256 and axes != 2:
        with pytest.raises(AssertionError):
            check_variance(right, X, independent, low=0.7, high=1.5)


def test_four_times_the_components_halve_the_error():
    """Ratios for 20 other seeds: 0.48 to 0.55."""
    X = spread_rows(70)
    check_rms_scaling(
        lambda m, seed: maps(n_components=m, lengthscale=1.5)(seed), X, gaussian(X, lengthscale=1.5), n_components=256
    )


def test_more_components_keep_the_first_frequencies(rng):
    X = rng.standard_normal((3, 70))
    small, large = (frequencies(FastfoodFeatures(m, random_state=0).fit(X)) for m in (11, 700))
    np.testing.assert_array_equal(small, large[:6])


def test_norms_are_one_and_zero_rows_are_no_exception(rng):
    X = rng.standard_normal((9, 4))
    X[3] = 0
    Z = FastfoodFeatures(32, random_state=0).fit_transform(X)
    np.testing.assert_allclose((Z**2).sum(axis=1), 1)
    np.testing.assert_array_equal(Z[3], np.repeat([0.25, 0.0], 16))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 2, 33])
def test_rows_of_any_size(dtype, m, rng):
    X = rng.standard_normal((5, 3)) * np.array([1e-15, 1e15, 1, 0, 1])[:, None]
    X[4] = 1.0
    X = X.astype(dtype)
    features = FastfoodFeatures(m, lengthscale=1.0, random_state=0).fit(X)
    Z = features.transform(X)
    assert Z.dtype == dtype
    assert np.abs(Z).max() <= (2 / -(-m // 2)) ** 0.5
    np.testing.assert_allclose(Z[0], Z[3], atol=1e-6)
    for i in range(5):
        np.testing.assert_array_equal(features.transform(X[i : i + 1])[0], Z[i])
    assert np.isfinite(FastfoodFeatures(m).fit_transform(X[:1, :1])).all()


# Length scales.


def test_scale_is_that_of_random_fourier_features(rng):
    X = 3 * rng.standard_normal((50, 6)) + 2
    assert FastfoodFeatures(4).fit(X).lengthscale_ == RandomFourierFeatures(4).fit(X).lengthscale_
    assert FastfoodFeatures(4, lengthscale=np.float32(0.5)).fit(X).lengthscale_ == 0.5


@pytest.mark.parametrize("rows", [np.zeros((4, 3)), np.full((4, 3), 0.1), np.ones((1, 1)), sp.csr_array((4, 3))])
def test_scale_of_equal_entries(rows):
    features = FastfoodFeatures(4, random_state=0).fit(rows)
    assert features.lengthscale_ == 0.5**0.5
    assert np.isfinite(features.transform(rows)).all()


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_scale_of_extreme_entries(factor, rng):
    X = rng.standard_normal((20, 3))
    plain = FastfoodFeatures(8, random_state=0).fit(X)
    features = FastfoodFeatures(8, random_state=0).fit(factor * X)
    np.testing.assert_allclose(features.transform(factor * X), plain.transform(X), atol=1e-12)


# Array libraries, types, batches.


@pytest.mark.parametrize("d", [10, 70])
@pytest.mark.parametrize("m", SIZES)
def test_all_kinds_of_rows_give_the_same_features(m, d, rng, to_library):
    import pandas as pd

    X = rng.standard_normal((21, d)) * (rng.random((21, d)) < 0.7)
    features = FastfoodFeatures(m, random_state=0).fit(X)
    Z = features.transform(X)
    for rows in (sp.csr_array(X), sp.csc_matrix(X), to_library(X), X.tolist(), np.asfortranarray(X)):
        np.testing.assert_allclose(as_numpy(features.transform(rows)), Z, atol=1e-13)
        np.testing.assert_allclose(as_numpy(clone(features).fit_transform(rows)), Z, atol=1e-12)
    np.testing.assert_allclose(clone(features).fit_transform(pd.DataFrame(X).rename(columns=str)), Z, atol=1e-12)
    for view in (np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1], np.repeat(X, 3, axis=0)[::3]):
        np.testing.assert_array_equal(features.transform(view), Z)
    whole = np.rint(X).astype(np.uint8)
    np.testing.assert_array_equal(features.transform(whole), features.transform(whole.astype(np.float64)))


@pytest.mark.parametrize("m", SIZES)
def test_float32_stays_float32(m, rng):
    import torch

    X = rng.standard_normal((21, 10)).astype(np.float32)
    features = FastfoodFeatures(m, random_state=0).fit(X)
    Z = features.transform(X.astype(np.float64))
    for rows in (X, sp.csr_array(X), torch.from_numpy(X)):
        out = features.transform(rows)
        assert "float32" in str(out.dtype)
        np.testing.assert_allclose(as_numpy(out), Z, atol=3e-6)
    np.testing.assert_array_equal(features.transform(X), as_numpy(features.transform(torch.from_numpy(X))))
    np.testing.assert_array_equal(features.transform(X), clone(features).fit(X.astype(np.float64)).transform(X))


def test_duplicate_entries_of_sparse_rows_are_added_up():
    rows = sp.csr_matrix((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    features = FastfoodFeatures(8, random_state=0).fit(rows)
    np.testing.assert_allclose(features.transform(rows), features.transform(rows.toarray()), atol=1e-14)


@pytest.mark.parametrize("m", SIZES)
def test_torch(m, rng):
    import torch

    X = rng.standard_normal((7, 4))
    features = FastfoodFeatures(m, lengthscale=2.0, random_state=0).fit(torch.from_numpy(X))
    Z = features.transform(X)
    for dtype, error in ((torch.float64, 1e-13), (torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        out = features.transform(torch.from_numpy(X).to(dtype))
        assert out.dtype == dtype
        np.testing.assert_allclose(as_numpy(out.double()), Z, atol=error)
    whole = torch.arange(8).reshape(2, 4)
    assert features.transform(whole).dtype == torch.float64
    np.testing.assert_allclose(features.transform(whole), features.transform(whole.double()))


@pytest.mark.parametrize("m", SIZES)
def test_the_code_for_devices_agrees(m, rng, monkeypatch):
    """Run on the CPU, by the interpreter that torch differentiates; batches write to parts of the result."""
    import torch

    X = rng.standard_normal((23, 70))
    features = FastfoodFeatures(m, lengthscale=9.0, random_state=0).fit(X)
    monkeypatch.setattr(_array, "wants_gradient", lambda inputs: True)  # noqa: ARG005
    Z = torch.empty((23, m), dtype=torch.float64)
    for rows in (slice(0, 10), slice(10, 23)):
        features._fill(torch.from_numpy(X[rows]), Z[rows])
    np.testing.assert_allclose(as_numpy(Z), features.transform(X), atol=1e-13)


@pytest.mark.parametrize("d", [30, 1000, 5000])
@pytest.mark.parametrize("m", [600, 8193])
def test_cuda(m, d, rng):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X = rng.standard_normal((500, d))
    features = FastfoodFeatures(m, random_state=0).fit(X)
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


@pytest.mark.parametrize("m", [4, 5])
def test_torch_differentiates(m, rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((3, 2))).requires_grad_()
    features = FastfoodFeatures(m, random_state=0).fit(X)
    assert torch.autograd.gradcheck(features.transform, (X,))
    np.testing.assert_allclose(
        as_numpy(features.transform(X)), features.transform(X.detach().numpy().copy()), atol=1e-14
    )
    with torch.no_grad():
        assert not features.transform(X).requires_grad


@pytest.mark.parametrize("kind", ["float64", "float32", "csr"])
def test_features_do_not_depend_on_batches(kind, rng):
    X = rng.standard_normal((700, 30)).astype("float32" if kind == "float32" else "float64")
    rows = sp.csr_array(X) if kind == "csr" else X
    features = FastfoodFeatures(65, random_state=0).fit(rows)
    Z = features.transform(rows)
    for batch_size in (1, 7, 128, 699, 10**6):
        np.testing.assert_array_equal(features.set_params(batch_size=batch_size).transform(rows), Z)
    parts = [features.transform(part) for part in (rows[:1], rows[1:300], rows[300:])]
    np.testing.assert_array_equal(np.vstack(parts), Z)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_features_do_not_depend_on_threads(threads, rng, monkeypatch):
    import numba

    X = rng.standard_normal((900, 30))
    features = FastfoodFeatures(64, random_state=0).fit(X)
    Z = features.transform(X)
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
    monkeypatch.setattr(fourier, "_TILE_BYTES", 1)
    np.testing.assert_array_equal(features.transform(X), Z)


def test_dask(rng):
    import dask.array as da

    X = rng.standard_normal((40, 5))
    features = FastfoodFeatures(9, random_state=0).fit(X)
    out = features.transform(da.from_array(X, chunks=(13, 5)))
    assert out.chunks == ((13, 13, 13, 1), (9,))
    np.testing.assert_array_equal(out.compute(), features.transform(X))


def test_rows_are_left_as_they_are(rng):
    X = rng.standard_normal((9, 5))
    kept = X.copy()
    features = FastfoodFeatures(8).fit(X)
    features.transform(X)
    np.testing.assert_array_equal(X, kept)
    X.setflags(write=False)
    features.transform(X)


# Fits, copies, draws again.


def test_fits_leave_the_first_if_they_fail(rng):
    X = rng.standard_normal((6, 4))
    features = FastfoodFeatures(8, random_state=0).fit(X)
    Z = features.transform(X)
    for bad in ({"n_components": 0}, {"lengthscale": -1.0}, {"batch_size": 0}, {"random_state": -1}):
        good = {name: features.get_params()[name] for name in bad}
        with pytest.raises(ValueError, match=next(iter(bad))):
            features.set_params(**bad).fit(X[:, :2])
        features.set_params(**good)
        np.testing.assert_array_equal(features.transform(X), Z)


def test_parameters_set_after_the_fit_wait_for_the_next_one(rng):
    X = rng.standard_normal((6, 4))
    features = FastfoodFeatures(9, random_state=0).fit(X)
    Z, K = features.transform(X), features._kernel(X)
    np.testing.assert_array_equal(K, gaussian(X, lengthscale=features.lengthscale_))
    features.set_params(n_components=4, lengthscale=0.1, random_state=1)
    for copy in (features, pickle.loads(pickle.dumps(features))):
        np.testing.assert_array_equal(copy.transform(X), Z)
        np.testing.assert_array_equal(copy._kernel(X), K)
        assert len(copy.get_feature_names_out()) == 9


def test_pickles_hold_the_draws_alone(rng):
    X = rng.standard_normal((6, 40))
    features = FastfoodFeatures(257, random_state=0).fit(X)
    size = len(pickle.dumps(features))
    for rows in (X, X.astype(np.float32), sp.csr_array(X)):
        features.transform(rows)
    stored = pickle.dumps(features)
    assert len(stored) == size < 3 * 64 * (1 + 4 + 8) + 8 * 129 + 2500
    np.testing.assert_array_equal(pickle.loads(stored).transform(X), features.transform(X))
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(FastfoodFeatures())).transform(X)


@pytest.mark.parametrize("random_state", [None, 7, np.random.RandomState(0), np.random.default_rng(0)])
def test_the_seed_kept_draws_the_same_map_again(random_state, rng):
    X = rng.standard_normal((6, 4))
    features = FastfoodFeatures(9, random_state=random_state).fit(X)
    entropy, spawn_key, pool_size = features._seed
    again = FastfoodFeatures(9)
    again.n_features_in_, again.lengthscale_ = features.n_features_in_, features.lengthscale_
    again._draw(np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size))
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


def test_seeds(rng):
    X = rng.standard_normal((6, 4))
    features = FastfoodFeatures(8, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_array_equal(clone(features).fit_transform(X), Z)
    assert not np.allclose(clone(features).set_params(random_state=1).fit_transform(X), Z)
    assert not np.allclose(*(FastfoodFeatures(8).fit_transform(X) for _ in range(2)))


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


@pytest.mark.parametrize(("name", "value", "error"), [(n, v, e) for n, values in BAD.items() for v, e in values])
def test_bad_parameters(name, value, error):
    rule = rf"'{name}' parameter of FastfoodFeatures must be .+\. Got {re.escape(repr(value))} instead"
    with pytest.raises(error, match=rule):
        FastfoodFeatures(**{name: value}).fit(np.ones((2, 3)))


def test_bad_rows(rng):
    import torch

    X = rng.standard_normal((4, 5))
    features = FastfoodFeatures(8).fit(X)
    for rows in (X[:, :4], sp.csr_array(X[:, :4]), torch.from_numpy(X[:, :4])):
        with pytest.raises(ValueError, match="X has 4 features, but FastfoodFeatures is expecting 5 features"):
            features.transform(rows)
    X[1, 2] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        features.transform(X)
    with pytest.raises(ValueError, match="must be finite"):
        features.transform(torch.from_numpy(X))


# In use.


def test_errors_can_be_estimated_and_sizes_suggested(rng):
    X = rng.standard_normal((100, 5))
    features = FastfoodFeatures(2048, random_state=0).fit(X)
    Z, K = features.transform(X), gaussian(X, lengthscale=features.lengthscale_)
    error = np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K)
    assert error < 0.2
    assert features.estimate_error(X) == pytest.approx(error)
    m = FastfoodFeatures().suggest_n_components(X, 0.2)
    assert FastfoodFeatures(2 * m, random_state=0).fit(X).estimate_error(X) < 0.2


def test_defaults_learn_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(FastfoodFeatures(random_state=0), RidgeClassifier())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
    assert repr(FastfoodFeatures()) == "FastfoodFeatures()"


def test_names_and_output(rng):
    import pandas as pd

    frame = pd.DataFrame(rng.standard_normal((4, 3)), columns=["a", "b", "c"])
    features = FastfoodFeatures(5, random_state=0).set_output(transform="pandas").fit(frame)
    assert list(features.transform(frame).columns) == [f"fastfoodfeatures{i}" for i in range(5)]
    assert list(features.feature_names_in_) == ["a", "b", "c"]
