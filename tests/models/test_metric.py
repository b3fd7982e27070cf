"""Metrics equal the gradients, find planted directions, and leave rows of any kind unchanged."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.reference import metric as reference
from threadpoolctl import threadpool_limits

import ntkit
from ntkit import AdaptiveFeatures, FeatureRidge, FeatureRidgeClassifier, LearnedMetric, NystroemFeatures
from ntkit.models import _metric as engine
from ntkit.models import _metric_fits
from ntkit.models._path import GRID
from ntkit.models.adaptive import automatic_size
from ntkit.models.metric import encode_targets

KERNELS = {"gaussian": engine.GAUSSIAN, "matern": engine.MATERN, "l1": engine.PRODUCT_LAPLACE}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def X(rng):
    return rng.standard_normal((300, 5))


@pytest.fixture
def y(X, rng):
    return np.sin(2 * X[:, 1]) + 0.1 * rng.standard_normal(len(X))


def quick(**parameters):
    return LearnedMetric(
        **({"kernel": "gaussian", "metric": "diagonal", "max_rounds": 2, "random_state": 0} | parameters)
    )


# The engine.


def comparison(X, Y, n_landmarks=60, weight=None):
    splits = engine.make_splits(np.random.default_rng(0).permutation(len(X)), len(X) // 5, len(X), n_landmarks)
    return engine.Comparison(X, Y, np.ones(len(X)) if weight is None else weight, splits)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("full", [False, True])
def test_outer_products_equal_finite_differences(name, full, rng):
    """Of the function that the fit is, in units of the columns before the metric."""
    X = rng.standard_normal((200, 3))
    Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    rows, metric = comparison(X, Y), np.array([1.0, 0.3, 2.0])
    if full:
        metric = np.diag(metric) + 0.1
    trial = rows.descended(rows.first(KERNELS[name]), [metric], 1e-2, 1)
    fit, dual = trial.fits[0]
    assert trial.full == full

    def function(some):
        return np.asarray(fit.spec.matrix(_metric_fits.apply(trial.metrics[0], some), fit.landmarks)) @ dual

    train = rows.splits[0].train
    expected = reference.outer_products(function, X[train], 1e-5)
    found = rows.outer_products(trial)
    # The jumps of the product kernel at landmarks are omitted, and finite differences may straddle them.
    np.testing.assert_allclose(found, expected, atol=(0.1 if name == "l1" else 1e-5) * np.abs(expected).max())


@pytest.mark.parametrize("full", [False, True])
def test_metric_of_outer_products(full, rng):
    A = rng.standard_normal((4, 6)) @ np.diag([10.0, 1, 1, 0, 0, 0]) @ rng.standard_normal((6, 4))
    A = A @ A.T
    found = _metric_fits.metric_of(A, full=full)
    np.testing.assert_allclose(found, reference.metric(A, full=full, floor=_metric_fits.FLOOR), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(_metric_fits.metric_of(7 * A, full=full), found, rtol=1e-9, atol=1e-12)
    assert _metric_fits.metric_of(np.zeros((4, 4)), full=full) is None
    assert _metric_fits.metric_of(np.full((4, 4), np.nan), full=full) is None


def test_errors_equal_ridge_regression_on_held_out_rows(rng):
    """The same features, the same α: FeatureRidge fitted on the training rows predicts the held-out ones as well."""
    X = rng.standard_normal((250, 3))
    Y = np.sin(X[:, :1])
    rows = comparison(X, Y)
    trial = rows.first(engine.MATERN)
    split, (fit, _) = rows.splits[0], trial.fits[0]
    X = X * trial.metrics[0]
    assert np.median(pdist(X[split.landmarks])) == pytest.approx(1.0)
    features = NystroemFeatures(
        "matern", landmarks=X[split.landmarks], kernel_params={"nu": 1.5}, lengthscale=trial.length
    )
    model = FeatureRidge(features, alphas=trial.alpha * fit.scale).fit(X[split.train], Y[split.train, 0])
    error = np.mean((model.predict(X[split.held]) - Y[split.held, 0]) ** 2)
    assert trial.error == pytest.approx(error, rel=0.1)  # the kernel matrix of its landmarks has JITTER on the diagonal
    assert not set(split.train) & set(split.held)
    assert set(split.landmarks) <= set(split.train)


def test_gain_is_the_error_over_that_with_half_of_the_landmarks(rng):
    X = rng.uniform(-1, 1, (900, 2))
    Y = np.sin(7 * X[:, :1]) * X[:, 1:]
    rows = comparison(X, Y, n_landmarks=64)
    trial = rows.lengths(rows.first(engine.MATERN), (0.5,))[0]
    split, X = rows.splits[0], X * trial.metrics[0]
    half = engine.Comparison(X, Y, rows.weight, [split._replace(landmarks=split.landmarks[:32])])
    fit = _metric_fits.NystroemFit(trial.kernel.spec(trial.length), X, Y, rows.weight, half.splits[0])
    error, _ = fit.solve(trial.alpha * trial.fits[0][0].scale / fit.scale)
    assert trial.gain == pytest.approx(trial.error / error, rel=1e-3)
    assert trial.gain < 0.9


def test_splits():
    """Few rows are split several times; larger comparisons hold out the same rows, which no metric was learned from."""
    rng = np.random.default_rng(0)
    few, many = rng.permutation(300), rng.permutation(9000)
    splits = engine.make_splits(few, 60, 10**9, 50, n_splits=3)
    assert len(splits) == 3
    assert len(set(np.concatenate([split.held for split in splits]))) == 180
    assert all(len(split.train) == 240 for split in splits)
    small, large = (engine.make_splits(many, 1600, n, 50, n_splits=3) for n in (3200, 6400))
    assert len(small) == len(large) == 1
    np.testing.assert_array_equal(small[0].held, large[0].held)
    assert not set(large[0].train) & set(large[0].held)
    assert len(large[0].train) == 6400


def test_full_metrics_do_not_fit_noise(rng):
    """Labels of noise and many columns: neither metric may seem to predict them."""
    X, y = rng.standard_normal((500, 40)), rng.integers(0, 2, 500).astype(float) * 2.5
    metric = LearnedMetric(random_state=0).fit(X, y)
    assert metric.metric_.ndim == 1
    assert metric.error_ > 0.75


# Planted structure is found.


@pytest.mark.parametrize("kernel", ["auto", "gaussian", "matern", "laplace", "ntk"])
def test_planted_columns_are_found(kernel, rng):
    X = rng.standard_normal((700, 6))
    y = np.sin(2 * X[:, 2]) + 0.1 * rng.standard_normal(700)
    metric = LearnedMetric(kernel=kernel, random_state=0).fit(X, y)
    assert metric.feature_importances_.argmax() == 2
    assert metric.feature_importances_[2] > (0.6 if kernel == "ntk" else 0.8)  # which has a cusp at 0 in all columns
    assert metric.feature_importances_.sum() == pytest.approx(1)
    assert metric.error_ < (0.9 if kernel == "ntk" else 0.2)
    assert all(result["error"] >= 0 for result in metric.results_)


def test_planted_directions_are_found(rng):
    """A function of x₀ + x₁: the full metric stretches this direction only."""
    X = rng.standard_normal((2000, 4))
    y = np.sin(1.5 * (X[:, 0] + X[:, 1]))
    metric = LearnedMetric(kernel="gaussian", metric="full", random_state=0).fit(X, y)
    values, vectors = np.linalg.eigh(metric.metric_ @ metric.metric_.T)
    assert np.abs(vectors[:, -1] @ [0.5**0.5, 0.5**0.5, 0, 0]) > 0.99
    assert values[-1] > 5 * values[-2]  # with this ratio errors are small already, and nothing pulls any further
    assert metric.error_ < 1e-4
    diagonal = LearnedMetric(kernel="gaussian", metric="diagonal", random_state=0).fit(X, y)
    assert metric.error_ < diagonal.error_
    assert LearnedMetric(kernel="gaussian", random_state=0).fit(X, y).metric_.ndim == 2  # "auto" takes the better one


def test_learning_helps(rng):
    """One of twenty columns matters: with equal weights for all there is little to see."""
    X = rng.standard_normal((1000, 20))
    y = np.sin(3 * X[:, 0])
    features = NystroemFeatures("matern", n_components=400, random_state=0)
    fixed = FeatureRidge(features, random_state=0).fit(X[:800], y[:800])
    learned = FeatureRidge(AdaptiveFeatures(n_components=400), random_state=0).fit(X[:800], y[:800])
    assert fixed.score(X[800:], y[800:]) < 0.3
    assert learned.score(X[800:], y[800:]) > 0.95


def test_units_of_columns_do_not_matter(X, y):
    units = np.array([1e-3, 1.0, 1e3, 1e6, 1e-6])
    one, other = quick().fit(X, y), quick().fit(X * units + 10 * units, y)
    np.testing.assert_allclose(other.feature_importances_, one.feature_importances_, atol=1e-3)
    np.testing.assert_allclose(other.sensitivities_ * units, one.sensitivities_, rtol=0.05, atol=1e-3)
    np.testing.assert_allclose(other.transform(X * units + 10 * units), one.transform(X), rtol=0.05, atol=0.02)


def test_weights_count_rows(X, y):
    """Rows of weight 0 are not there."""
    weight = (np.arange(300) % 3 > 0).astype(float)
    noise = np.where(weight > 0, y, 1e3)
    one, other = quick().fit(X, noise, weight), quick().fit(X[weight > 0], y[weight > 0])
    np.testing.assert_allclose(one.metric_, other.metric_)


def test_classes_are_fitted_by_indicators(rng):
    X = rng.standard_normal((600, 5))
    y = np.array(["a", "b", "c"])[(X[:, 3] > 0.5).astype(int) + (X[:, 3] > -0.5)]
    metric = quick().fit(X, y)
    assert metric.feature_importances_[3] > 0.9
    np.testing.assert_array_equal(encode_targets(np.array([3, 1, 3]), "x"), [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(encode_targets(np.arange(30), "x"), np.arange(30.0)[:, None])
    np.testing.assert_array_equal(encode_targets(np.array([1.5, 2.0]), "x"), [[1.5], [2.0]])


def test_several_targets(rng):
    """All columns count equally, in any unit."""
    X = rng.standard_normal((600, 4))
    Y = np.stack([np.sin(X[:, 0]), 1e6 * np.sin(X[:, 2])], axis=1)
    share = quick().fit(X, Y).feature_importances_
    assert share[0] == pytest.approx(share[2], abs=0.1)
    assert share[[0, 2]].sum() > 0.9


# Rows of all kinds.


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_kinds_of_rows(metric, X, y):
    fitted = quick(metric=metric).fit(X, y)
    expected = fitted.transform(X)
    M = fitted.metric_ if metric == "full" else np.diag(fitted.metric_)
    np.testing.assert_allclose(expected, (X - fitted.center_) @ M)
    frame = pd.DataFrame(X, columns=list("abcde"))
    np.testing.assert_allclose(quick(metric=metric).fit(frame, y).transform(frame), expected)
    tensor = torch.from_numpy(X).requires_grad_()
    out = fitted.transform(tensor)
    np.testing.assert_allclose(out.detach().numpy(), expected)
    out.sum().backward()
    np.testing.assert_allclose(tensor.grad.numpy(), np.tile(M.sum(axis=1), (300, 1)))
    assert fitted.transform(X.astype(np.float32)).dtype == np.float32
    assert fitted.transform(torch.from_numpy(X).float()).dtype == torch.float32
    sparse = quick(metric=metric).fit(sp.csr_array(X), y)
    np.testing.assert_array_equal(sparse.center_, 0)
    Z = sparse.transform(sp.csr_array(X))
    assert sp.issparse(Z) == (metric == "diagonal")
    np.testing.assert_allclose(Z.toarray() if sp.issparse(Z) else Z, sparse.transform(X), atol=1e-9)


def test_dask_collections(X, y):
    import dask.array as da
    import dask.dataframe as dd

    chunks = da.from_array(X, chunks=(70, -1))
    metric = quick().fit(chunks, da.from_array(y, chunks=70))
    np.testing.assert_allclose(metric.metric_, quick().fit(X, y).metric_)  # all rows, in their order
    np.testing.assert_allclose(metric.transform(chunks).compute(), metric.transform(X))
    some = quick(max_samples=120).fit(chunks, da.from_array(y, chunks=70))
    assert some.n_samples_used_ == 120
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")), npartitions=3)
    model = FeatureRidge(AdaptiveFeatures(n_components=100), random_state=0).fit(
        frame, dd.from_pandas(pd.Series(y), npartitions=3)
    )
    assert model.n_samples_seen_ == 300
    assert ((model.predict(frame).compute() - y) ** 2).mean() < 0.1


def test_many_rows_are_sampled(X, y):
    metric = quick(max_samples=100).fit(X, y)
    assert metric.n_samples_used_ == 100
    assert quick().fit(X, y).n_samples_used_ == 300


def stream(X, y, size=60):
    for start in range(0, len(X), size):
        yield X[start : start + size], y[start : start + size]


def test_streams_and_files(X, y, tmp_path):
    """The metric and landmarks come from a sample of all rows, the sums from all of them."""
    blocks = list(stream(X, y))
    model = FeatureRidge(random_state=0).fit(blocks, None)
    assert model.n_samples_seen_ == 300
    assert model.features_[-1].metric_.n_samples_used_ == 300
    assert model.score(X, y) > 0.9
    with pytest.warns(UserWarning, match="first block"):
        once = FeatureRidge(random_state=0).fit(stream(X, y), None)
    assert once.n_samples_seen_ == 300
    assert once.features_[-1].metric_.n_samples_used_ == 60  # the first block, as a stream is read once
    frame = pd.DataFrame(X, columns=list("abcde")).assign(y=y)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    from_file = FeatureRidge(random_state=0).fit(tmp_path / "rows.csv", "y")
    np.testing.assert_allclose(from_file.predict(frame[list("abcde")]), model.predict(X), atol=0.05)
    assert from_file.feature_importances_.argmax() == 1


class Interrupted(list):
    """Blocks of rows; the pass number `last` that comes to the fourth of them ends in an interrupt."""

    passes, last = 0, 0

    def __iter__(self):
        for index, block in enumerate(list.__iter__(self)):
            self.passes += index == 3
            if self.passes == self.last and index == 3:
                raise KeyboardInterrupt
            yield block


def test_checkpoints(X, y, tmp_path, monkeypatch):
    """A fit that was interrupted while it added up rows goes on to the same model."""
    monkeypatch.setattr("ntkit.models._statistics.FLUSH", 50)  # rows between two places where a file may be written
    rows, path = Interrupted(stream(X, y)), tmp_path / "fit.checkpoint"
    whole = FeatureRidge(random_state=0).fit(rows, None)
    rows.passes, rows.last = 0, rows.passes
    model = FeatureRidge(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        model.fit(rows, None, checkpoint=path, checkpoint_every=0)
    np.testing.assert_allclose(model.fit(rows, None, checkpoint=path).predict(X), whole.predict(X), atol=1e-8)


# Seeds, copies, files, scikit-learn's checks.


ESTIMATORS = [
    LearnedMetric(kernel="gaussian", max_rounds=1, random_state=0),
    AdaptiveFeatures(n_components=8, random_state=0),
]
REASON = "landmarks are drawn at random, each row with the same probability"
UNEQUAL = {f"check_sample_weight_equivalence_on_{kind}_data": REASON for kind in ("dense", "sparse")}


@parametrize_with_checks(
    ESTIMATORS, expected_failed_checks=lambda each: {} if isinstance(each, LearnedMetric) else UNEQUAL
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_seeds(X, y):
    one, same, other = (quick(random_state=seed).fit(X, y).metric_ for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0


@pytest.mark.parametrize(
    "estimator", [quick(), quick(metric="full", kernel="matern"), AdaptiveFeatures(n_components=50, random_state=0)]
)
def test_copies_and_files(estimator, X, y, tmp_path):
    fitted = clone(estimator).fit(X, y)
    expected = fitted.transform(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X), expected)
    ntkit.save(fitted, tmp_path / "fitted.ntkit")
    again = ntkit.load(tmp_path / "fitted.ntkit")
    np.testing.assert_allclose(again.transform(X), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(again.feature_importances_, fitted.feature_importances_)


def test_a_failed_fit_leaves_the_estimator_unchanged(X, y):
    fitted = quick().fit(X, y)
    before = dict(vars(fitted))
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(np.full_like(X, np.nan), y)
    assert vars(fitted) == before


# Features.


@pytest.mark.parametrize(
    ("gain", "n_rows", "expected"),
    [(1.0, 10**6, 2048), (0.9, 8192, 2048), (0.9, 8193, 4096), (0.4, 8193, 6144), (0.4, 100, 6144)],
)
def test_automatic_size(gain, n_rows, expected):
    metric = LearnedMetric()
    metric.gain_ = gain
    assert automatic_size(metric, n_rows) == expected


def test_the_model_starts_at_the_penalty_of_the_metric(X, y):
    """It computes errors for few penalties around it."""
    model = FeatureRidge(AdaptiveFeatures(metric=quick()), solver="cholesky", random_state=0).fit(X, y)
    tried = np.flatnonzero(np.isfinite(model.errors_))
    assert np.array_equal(tried, np.arange(tried[0], tried[-1] + 1))
    multiples = GRID[tried]
    assert multiples[0] / 2 < model.features_.expected_alpha_ < 2 * multiples[-1]
    assert model.features_.expected_alpha_ == model.features_.metric_.alpha_
    everything = FeatureRidge(AdaptiveFeatures(metric=quick()), solver="eigen", random_state=0).fit(X, y)
    assert everything.errors_.min() == pytest.approx(np.nanmin(model.errors_), rel=0.02)


def test_gain_of_errors_below_the_resolution_is_one(rng):
    X = rng.uniform(-1, 1, (900, 2))
    rows = comparison(X, np.sin(7 * X[:, :1]) * X[:, 1:], n_landmarks=64)
    rows.resolution = 1e3
    assert rows.lengths(rows.first(engine.MATERN), (0.5,))[0].gain == 1.0


def test_errors_below_the_resolution_still_differ(rng):
    """Lower errors of classes mean larger margins, though all rows seem correct."""
    X = rng.uniform(-1, 1, (100, 2)).astype(np.float32)
    learner = engine.Learner(
        X, X[:, :1].astype(float), np.ones(100), rng, kernel=None, metric="auto", most_rounds=2, sizes=engine.Sizes(),
        resolution=1.0,
    )  # fmt: skip
    early, late = (
        _metric_fits.Trial(engine.MATERN, (np.ones(2),), 1.0, 1.0, error, round=number)
        for error, number in ((0.5, 0), (0.1, 3))
    )
    assert min(early, late, key=learner._rank) is late


def test_many_rows_are_compared_once_more(rng):
    """With a shorter length scale too; the gain is that of the usual size."""
    X = rng.uniform(-1, 1, (1700, 2)).astype(np.float32)
    Y = np.sin(9 * X[:, :1]).astype(np.float64)
    sizes = engine.Sizes(400, 40, 1, 800, 80)
    learner = engine.Learner(
        X, Y, np.ones(1700), rng, kernel=engine.MATERN, metric="diagonal", most_rounds=2, sizes=sizes
    )
    found = learner.learn()
    best, last = found.finalists[0].trial, found.trials[-2:]
    assert len(best.fits[0][0].landmarks) == 160
    assert last[0].length / last[1].length == pytest.approx(engine.SHORT_STEP)
    assert best.error == min(trial.error for trial in last)
    assert best.gain in {trial.gain for trial in found.trials[:-2]}


def test_adaptive_features_equal_metric_and_landmarks(X, y):
    features = AdaptiveFeatures(n_components=60, random_state=0).fit(X, y)
    Z = features.transform(X)
    assert Z.shape == (300, 60)
    np.testing.assert_array_equal(Z, features.map_.transform(features.metric_.transform(X)))
    frozen = AdaptiveFeatures(n_components=60, metric=FrozenEstimator(features.metric_), random_state=0).fit(X)
    np.testing.assert_array_equal(frozen.transform(X), Z)
    assert frozen.metric_ is features.metric_


def additive_rows(rng, n=900):
    """A sum of waves of single columns, which kernels of all columns learn slowly, and a smooth product."""
    X = rng.uniform(-1, 1, (n, 8))
    y = np.sin(5 * X).sum(axis=1) + 0.3 * X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(n)
    return X, y


def test_additive_features_where_they_help(rng):
    X, y = additive_rows(rng)
    features = AdaptiveFeatures(n_components=60, random_state=0).fit(X[:600], y[:600])
    assert features.metric_.additive_ is features.additive_ is not None
    Z = features.transform(X)
    ramps = features.additive_.transform(X)
    assert Z.shape == (900, 60 + ramps.shape[1])
    np.testing.assert_allclose(Z[:, 60:], engine.ADDITIVE_SCALE * ramps)
    np.testing.assert_array_equal(Z[:, :60], features.map_.transform(features.metric_.transform(X)))
    w = rng.standard_normal((Z.shape[1], 2))
    np.testing.assert_allclose(features.times(X, w), Z @ w, atol=1e-8)
    without = AdaptiveFeatures(n_components=60, additive=False, random_state=0).fit(X[:600], y[:600])
    assert without.additive_ is None
    assert without.transform(X).shape == (900, 60)
    scores = [FeatureRidge(each, random_state=0).fit(X[:600], y[:600]).score(X[600:], y[600:]) for each in
              (AdaptiveFeatures(n_components=200), AdaptiveFeatures(n_components=200, additive=False))]  # fmt: skip
    assert 1 - scores[0] < 0.9 * (1 - scores[1])


def test_files_of_additive_features(rng, tmp_path):
    """The encoder is shared by the features and their metric: it is in the file once, and read in the right order."""
    X = rng.standard_normal((400, 4))
    features = AdaptiveFeatures(n_components=50, random_state=0).fit(X, np.abs(X).sum(axis=1))
    assert features.additive_ is features.metric_.additive_ is not None
    ntkit.save(features, tmp_path / "features.ntkit")
    again = ntkit.load(tmp_path / "features.ntkit")
    assert again.additive_ is again.metric_.additive_
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


def test_no_additive_features_where_columns_act_together(rng):
    X = rng.uniform(-1, 1, (900, 4))
    y = np.sin(3 * X[:, 0] * X[:, 1]) + 0.05 * rng.standard_normal(900)
    metric = LearnedMetric(random_state=0).fit(X, y)
    assert metric.additive_ is None
    assert any(result["additive"] for result in metric.results_)
    assert quick(kernel="ntk").fit(X, y).additive_ is None  # features of another norm
    assert quick().fit(sp.csr_array(X), y).additive_ is None
    wide = rng.standard_normal((100, 300))
    assert quick().fit(wide, wide[:, 0]).additive_ is None


def test_additive_fits_equal_ridge_regression_on_both_parts(rng):
    """Also checks that held-out rows and training rows are centred alike."""
    X, y = additive_rows(rng, 400)
    rows = comparison(X.astype(np.float32), y[:, None])
    rows.ramps = (0.7 * ntkit.PiecewiseLinearEncoder().fit(X).transform(X)).astype(np.float32)
    kernel, _with = rows.lengths(rows.first(engine.GAUSSIAN), (1.0,))
    split, fit = rows.splits[0], kernel.fits[0][0]
    assert not kernel.additive
    assert _with.additive
    rows_of_kernel = X * kernel.metrics[0]
    K = np.asarray(fit.spec.matrix(rows_of_kernel, fit.landmarks.astype(np.float64))) @ fit.normalization
    Z = np.hstack([K, rows.ramps.astype(np.float64)])
    centre, mean = Z[split.train].mean(axis=0), y[split.train].mean()
    A = Z[split.train] - centre
    coef = np.linalg.solve(A.T @ A + _with.alpha * fit.scale * np.eye(A.shape[1]), A.T @ (y[split.train] - mean))
    errors = (Z[split.held] - centre) @ coef + mean - y[split.held]
    assert _with.error == pytest.approx(np.mean(errors**2), rel=1e-3)


def test_alternatives(X, y):
    metric = LearnedMetric(random_state=0).fit(X, y)
    found = metric.alternatives()
    first = next(iter(found.values()))
    np.testing.assert_array_equal(first.transform(X), metric.transform(X))
    assert len({(each.kernel_, each.metric_.ndim) for each in found.values()}) == len(found) > 1
    assert min(each.error_ for each in found.values()) > 0
    assert list(pickle.loads(pickle.dumps(metric)).alternatives()) == [next(iter(found))]
    for each in found.values():
        frozen = AdaptiveFeatures(n_components=40, metric=FrozenEstimator(each), random_state=0).fit(X)
        assert np.isfinite(frozen.transform(X)).all()
        assert each.feature_importances_.argmax() == 1


def test_columns_that_matter_together_are_found(rng):
    """Columns 0 and 1 matter only as a product, which single columns hide at first."""
    X = rng.standard_normal((2500, 40))
    y = np.abs(X[:, 2]) + 0.5 * X[:, 3] + np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(2500)
    metric = LearnedMetric(kernel="gaussian", metric="diagonal", random_state=0).fit(X, y)
    assert set(metric.feature_importances_.argsort()[-4:]) == {0, 1, 2, 3}
    assert metric.error_ < 0.15


def test_rounds_go_on_while_the_error_falls_fast():
    """At most three times the requested number."""

    class Falling(engine.Comparison):
        def _best_length(self, kernel, metrics, length, alpha, index, *, tune=True):  # noqa: ARG002
            return engine.Trial(kernel, metrics, length, alpha, self.rate**index, index, fits=(1,))

        def outer_products(self, trial):  # noqa: ARG002
            return np.eye(2)

    rows = comparison(np.zeros((50, 2), np.float32), np.zeros((50, 1)))
    rows.__class__ = Falling
    for rate, expected in ((0.5, 15), (0.98, 5), (0.999, 2)):
        rows.rate = rate
        first = engine.Trial(engine.GAUSSIAN, (np.ones(2),), 1.0, 1.0, 1.0, fits=(1,))
        assert [trial.round for trial in rows.rounds(first, full=False, most=5)] == list(range(expected + 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_without_features(dtype, X, y):
    """In float32 if rounding errors do not matter, otherwise in float64."""
    X = X.astype(dtype)
    model = FeatureRidge(random_state=0).fit(X, y)
    Z = model.features_.transform(X.astype(np.float64))
    expected = Z @ model.coef_ + model.intercept_
    tolerance = 1e-2 * model.noise_variance_**0.5 if dtype == np.float32 else 1e-7
    np.testing.assert_allclose(model.predict(X), expected, atol=tolerance)
    np.testing.assert_allclose(model.predict(torch.from_numpy(X)).numpy(), expected, atol=max(tolerance, 1e-4))
    batches = FeatureRidge(random_state=0, batch_size=70).fit(X, y).predict(X)
    np.testing.assert_allclose(batches, expected, atol=max(10 * tolerance, 1e-4))


@pytest.mark.parametrize("name", ["gaussian", "laplace", "matern"])
@pytest.mark.parametrize("tolerance", [0.0, 1.0])
def test_features_times_weights(name, tolerance, rng):
    params = {"laplace": [{"norm": "l1"}, {}], "matern": [{"nu": 0.5}, {"nu": 1.5}, {"nu": 2.5}], "gaussian": [{}]}
    X = rng.standard_normal((301, 7)).astype(np.float32)
    W = rng.standard_normal((130, 3))
    for each in params[name]:
        features = NystroemFeatures(name, n_components=130, kernel_params=each, lengthscale=3.0, random_state=0).fit(X)
        expected = features.transform(X.astype(np.float64)) @ W
        found = features.times(X, W, tolerance)
        assert found.dtype == np.float64
        size = np.linalg.norm(features.normalization_ @ W, axis=0).max()
        np.testing.assert_allclose(found, expected, atol=1e-6 * max(size, 1.0))
        if not tolerance:  # only the rounding errors of the features are allowed
            np.testing.assert_array_equal(found, features.transform(X).astype(np.float64) @ W)
        np.testing.assert_allclose(features.times(X.astype(np.float64), W), expected, atol=1e-12 * max(size, 1.0))
        np.testing.assert_allclose(features.times(sp.csr_array(X), W), expected, atol=1e-6 * max(size, 1.0))


def test_cholesky_normalization_is_a_rotation(rng):
    X = rng.standard_normal((120, 4))
    symmetric, triangular = (
        NystroemFeatures("laplace", n_components=40, normalization=kind, random_state=0).fit(X)
        for kind in ("symmetric", "cholesky")
    )
    Z, T = symmetric.transform(X), triangular.transform(X)
    np.testing.assert_allclose(T @ T.T, Z @ Z.T, atol=1e-8)
    assert np.abs(T - Z).max() > 0.01
    np.testing.assert_array_equal(np.tril(triangular.normalization_, -1), 0)
    twice = NystroemFeatures("gaussian", landmarks=np.repeat(X[:9], 2, axis=0), normalization="cholesky").fit(X)
    assert np.isfinite(twice.transform(X)).all()  # equal landmarks


def test_the_default_of_tables_learns(rng):
    X = rng.uniform(-1, 1, (700, 8))
    y = np.sin(5 * X[:, 0]) * X[:, 3]
    model = FeatureRidge(random_state=0).fit(X[:600], y[:600])
    assert isinstance(model.features_[-1], AdaptiveFeatures)
    assert model.score(X[600:], y[600:]) > 0.95
    assert set(np.argsort(model.feature_importances_)[-2:]) == {0, 3}
    classifier = FeatureRidgeClassifier(random_state=0).fit(X[:600], y[:600] > 0)
    assert classifier.score(X[600:], y[600:] > 0) > 0.9
    assert not isinstance(FeatureRidge().fit(sp.csr_array(X), y).features_[-1], AdaptiveFeatures)
    assert not hasattr(FeatureRidge(FunctionTransformer()).fit(X, y), "feature_importances_")


@pytest.mark.parametrize("n_rows", [1, 2, 5, 29, 30, 40])
def test_few_rows(n_rows, rng):
    X = rng.standard_normal((n_rows, 3))
    metric = LearnedMetric(random_state=0).fit(X, X[:, 0])
    assert np.isfinite(metric.transform(X)).all()
    assert (metric.results_ == []) == (n_rows < 30)
    assert FeatureRidge(random_state=0).fit(X, X[:, 0]).predict(X).shape == (n_rows,)


def test_constant_rows_or_targets(rng):
    """Constant targets, constant columns, columns that are all alike, noise."""
    X = rng.standard_normal((100, 3))
    for rows, targets in ((X, np.ones(100)), (np.ones((100, 3)), X[:, 0]), (np.repeat(X[:, :1], 3, axis=1), X[:, 0])):
        metric = LearnedMetric(random_state=0).fit(rows, targets)
        assert np.isfinite(metric.metric_).all()
        assert metric.feature_importances_.sum() == pytest.approx(1)
        assert np.isfinite(FeatureRidge(random_state=0).fit(rows, targets).predict(rows)).all()


def test_few_distinct_rows(rng):
    """Distances collapse onto few values: solves must not fail."""
    X = rng.integers(0, 2, (500, 6)).astype(float)
    y = X[:, 0] + 2 * X[:, 1] * X[:, 2]
    model = FeatureRidge(random_state=0).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.99


# Bad input.


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ({"kernel": "cubic"}, ValueError, "kernel"),
        ({"kernel": 3}, TypeError, "kernel"),
        ({"kernel": "cntk"}, ValueError, "kernel"),
        ({"kernel": "zonal"}, TypeError, "function"),
        ({"metric": "half"}, ValueError, "metric"),
        ({"max_rounds": -1}, ValueError, "max_rounds"),
        ({"max_samples": 0}, ValueError, "max_samples"),
        ({"kernel_params": {"lengthscale": 1.0}}, ValueError, "lengthscale"),
        ({"kernel_params": 1}, TypeError, "kernel_params"),
        ({"kernel": "auto", "kernel_params": {"nu": 0.5}}, ValueError, "kernel_params"),
        ({"progress": 1}, TypeError, "progress"),
    ],
)
def test_bad_parameters(parameters, error, text, X, y):
    with pytest.raises(error, match=text):
        quick(**parameters).fit(X, y)


def test_bad_rows_and_targets(X, y):
    with pytest.raises(ValueError, match="requires y"):
        quick().fit(X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(X, y[:-1])
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(X, np.where(np.arange(300) == 7, np.nan, y))
    with pytest.raises(ValueError, match="must not be zero for all rows"):
        quick().fit(X, y, np.zeros(300))
    with pytest.raises(ValueError, match="expecting 5 features"):
        quick().fit(X, y).transform(X[:, :4])
    for bad in ({"n_components": 0}, {"n_components": "many"}, {"landmarks": "few"}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            AdaptiveFeatures(**bad).fit(X, y)
    with pytest.raises(TypeError, match="metric"):
        AdaptiveFeatures(metric="diagonal").fit(X, y)
    with pytest.raises(ValueError, match="requires y"):
        AdaptiveFeatures().fit(X)


def test_progress(X, y, capsys):
    quick(progress=True).fit(X, y)
    assert "LearnedMetric" in capsys.readouterr().err
    quick().fit(X, y)
    assert capsys.readouterr().err == ""


def test_pipelines_of_scikit_learn(X, y):
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), AdaptiveFeatures(n_components=100, random_state=0), Ridge(1e-2)).fit(X, y)
    assert model.score(X, y) > 0.9
