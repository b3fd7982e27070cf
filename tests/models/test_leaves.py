"""Features of leaves equal the reference in every form, and are part of the features where they help."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.reference.trees import leaf_indicators
from threadpoolctl import threadpool_limits

import ntkit
from ntkit import AdaptiveFeatures, FeatureRidge, LearnedMetric
from ntkit.models import _metric as engine
from ntkit.models import _metric_comparison, _metric_fits
from ntkit.models._statistics import KeptRows
from ntkit.models.leaves import TreeLeaves

SCALE = _metric_comparison.LEAF_SCALE


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


def steps(X):
    """Products of steps: trees find them, smooth kernels do not."""
    return 2.0 * (X[:, 0] > 0.3) * (X[:, 1] > -0.5) + (X[:, 2] > 0) * (X[:, 3] < 0.7)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).standard_normal((1600, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def leaves(X):
    return TreeLeaves(n_trees=7, random_state=0).fit(X[:400], steps(X[:400]))


@parametrize_with_checks([TreeLeaves(n_trees=3, random_state=0)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_equal_the_reference(n_targets, X):
    Y = np.column_stack([steps(X), X[:, 4]])[:, :n_targets]
    leaves = TreeLeaves(n_trees=7, random_state=0).fit(X[:400], Y[:400] if n_targets > 1 else Y[:400, 0])
    expected = leaf_indicators(leaves.trees_, X)
    n_trees = len(leaves.trees_.root_)
    assert n_trees == 7 // n_targets * n_targets
    assert expected.shape[1] <= 16 * n_trees
    assert (expected.sum(axis=1) == n_trees).all()
    assert (expected[:400].sum(axis=0) >= 20).all()
    for rows in (X, X.astype(np.float64)):
        Z = leaves.transform(rows)
        assert Z.dtype == rows.dtype
        np.testing.assert_allclose(Z, expected * n_trees**-0.5, rtol=1e-6)
    W = np.random.default_rng(1).standard_normal((Z.shape[1], 3))
    np.testing.assert_allclose(leaves.times(X, W), Z @ W, rtol=1e-10, atol=1e-12)
    assert list(leaves.get_feature_names_out()[:2]) == ["treeleaves0", "treeleaves1"]


def test_expressions_agree_at_the_thresholds(leaves, X):
    torch = pytest.importorskip("torch")
    trees, edges = leaves.trees_, X[:40].copy()
    edges[::2, 0] = trees.threshold_[(trees.column_ == 0) & (trees.left_ != np.arange(len(trees.left_)))][0]
    for rows in (edges, edges.astype(np.float64)):
        expected = leaves.transform(rows)
        tensor = torch.as_tensor(rows)
        np.testing.assert_allclose(leaves.expression(tensor).numpy(), expected, rtol=1e-6)
        np.testing.assert_array_equal(leaves.transform(tensor).numpy(), expected)
        slopes = leaves.transform(tensor.requires_grad_()) + 0 * tensor.sum()
        np.testing.assert_allclose(slopes.detach().numpy(), expected, rtol=1e-6)


def test_files_and_pickles(leaves, X, tmp_path):
    ntkit.save(leaves, tmp_path / "leaves.ntkit")
    for again in (ntkit.load(tmp_path / "leaves.ntkit"), pickle.loads(pickle.dumps(leaves))):
        np.testing.assert_array_equal(again.transform(X), leaves.transform(X))


@pytest.mark.parametrize(("name", "value", "rule"), [("_n_features_out", 5, "one feature for each leaf"),
                                                     ("n_features_in_", 4, "TreesRegressor of 4 columns")])  # fmt: skip
def test_planted_sizes_are_refused(name, value, rule, leaves, tmp_path):
    """Compiled code must not write outside of an array."""
    planted = pickle.loads(pickle.dumps(leaves))
    setattr(planted, name, value)
    with pytest.raises(ValueError, match=rule):
        ntkit.save(planted, tmp_path / "leaves.ntkit") or ntkit.load(tmp_path / "leaves.ntkit")


def test_bad_input(leaves, X):
    with pytest.raises(ValueError, match=r"'n_trees' parameter of TreeLeaves must be an int ≥ 1\. Got 0"):
        TreeLeaves(n_trees=0).fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        TreeLeaves().transform(X)
    with pytest.raises(ValueError, match="4 features"):
        leaves.transform(X[:, :4])
    with pytest.raises(ValueError, match="NaN"):
        leaves.transform(np.full((1, 5), np.nan))


# In metrics and features.


@pytest.fixture(scope="module")
def features(X):
    found = AdaptiveFeatures(n_components=60, random_state=0).fit(X[:1200], steps(X[:1200]))
    assert found.leaves_ is found.metric_.leaves_ is not None
    return found


def test_features_end_with_leaves(features, X, rng):
    Z, indicators = features.transform(X), features.leaves_.transform(X)
    n = indicators.shape[1]
    np.testing.assert_allclose(Z[:, -n:], SCALE * indicators, rtol=1e-6)
    np.testing.assert_array_equal(Z[:, :60], features.map_.transform(features.metric_.transform(X)))
    ramps = 0 if features.additive_ is None else features.additive_._n_features_out
    assert Z.shape[1] == features._n_features_out == 60 + ramps + n
    W = rng.standard_normal((Z.shape[1], 2))
    np.testing.assert_allclose(features.times(X.astype(np.float64), W), features.transform(X.astype(np.float64)) @ W,
                               atol=1e-8)  # fmt: skip
    without = AdaptiveFeatures(n_components=60, trees=False, random_state=0).fit(X[:1200], steps(X[:1200]))
    assert without.leaves_ is None
    np.testing.assert_array_equal(without.transform(X), Z[:, :-n])


def test_expressions_of_features_with_leaves(features, X, rng):
    torch = pytest.importorskip("torch")
    rows = X[:50].astype(np.float64)
    W = rng.standard_normal((features._n_features_out, 2))
    np.testing.assert_allclose(features.expression(torch.as_tensor(rows)).numpy(), features.transform(rows), atol=1e-9)
    found = features.weighted_expression(torch.as_tensor(rows), W).numpy()
    np.testing.assert_allclose(found, features.transform(rows) @ W, atol=1e-8)


def test_files_of_features_with_leaves(features, X, tmp_path):
    ntkit.save(features, tmp_path / "features.ntkit")
    again = ntkit.load(tmp_path / "features.ntkit")
    assert again.leaves_ is again.metric_.leaves_
    np.testing.assert_array_equal(again.transform(X), features.transform(X))


def test_leaves_lower_the_error_of_steps(X):
    y, errors = steps(X) + 0.1 * X[:, 4], []
    for trees in (True, False):
        model = FeatureRidge(AdaptiveFeatures(n_components=200, trees=trees), random_state=0).fit(X[:1200], y[:1200])
        errors.append(1 - model.score(X[1200:], y[1200:]))
    assert errors[0] < 0.6 * errors[1]


def test_where_leaves_are_not_used(X):
    smooth = LearnedMetric(random_state=0).fit(X[:1200], np.sin(X[:1200, 0] * X[:1200, 1]))
    assert smooth.leaves_ is None
    assert any(result["leaves"] for result in smooth.results_)  # they were tried
    few = LearnedMetric(random_state=0).fit(X[:900], steps(X[:900]))
    sparse = LearnedMetric(random_state=0, kernel="gaussian").fit(sp.csr_array(X[:1200]), steps(X[:1200]))
    for metric in (few, sparse):
        assert metric.leaves_ is None
        assert not any(result["leaves"] for result in metric.results_)


def test_classes_and_alternatives(X):
    """The same metric without leaves is the second alternative; the last class follows from the others."""
    labels = np.array(["low", "middle", "high"])[np.minimum(steps(X[:1200]), 2).astype(int)]
    metric = LearnedMetric(random_state=0).fit(X[:1200], labels)
    assert len(np.unique(metric.leaves_.trees_.output_)) == 2
    first, second = list(metric.alternatives().items())[:2]
    assert first[0] == second[0] + ", leaves"
    assert first[1].leaves_ is metric.leaves_
    assert second[1].leaves_ is None
    assert first[1].error_ < second[1].error_
    np.testing.assert_array_equal(first[1].metric_, second[1].metric_)


# The engine.


@pytest.mark.parametrize("n_rows", [500, 60])
def test_leading_features_share_the_sums(n_rows, rng):
    """Also with fewer rows than features, where there are no sums."""
    Z, held = rng.standard_normal((n_rows, 80)), rng.standard_normal((40, 80))
    Y, weight = rng.standard_normal((n_rows, 2)), rng.uniform(0.5, 2, n_rows)
    other = rng.standard_normal((40, 2)), np.ones(40)
    whole = _metric_fits.RidgeSolver(KeptRows(Z.copy(), Y, weight, np.zeros(n_rows)), held, *other)
    part = _metric_fits.RidgeSolver(KeptRows(Z[:, :30].copy(), Y, weight, np.zeros(n_rows)), held[:, :30], *other)
    before = whole.solve(0.1)[0]
    for alpha in (1e-3, 1.0):
        error, coef = whole.leading(30).solve(alpha)
        expected, expected_coef = part.solve(alpha)
        assert error == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(coef, expected_coef, rtol=1e-7, atol=1e-12)
        assert whole.leading(30).squares(alpha).mean() == pytest.approx(error, rel=1e-9)
    assert whole.solve(0.1)[0] == before


@pytest.mark.parametrize("additive", [False, True])
def test_errors_with_leaves_equal_ridge_regression_on_all_parts(additive, X, rng):
    """The trees are fitted on half as many rows as there are, none of which is held out."""
    X, y = X[:700], steps(X[:700]) + 0.1 * rng.standard_normal(700)
    order = rng.permutation(700)
    split = _metric_fits.Split(order[100:400], order[:100], order[100:140])
    rows = engine.Comparison(X, y[:, None], np.ones(700), [split])
    rows.ramps = (0.7 * ntkit.PiecewiseLinearEncoder().fit(X).transform(X)).astype(np.float32)
    trial = rows.lengths(rows.first(engine.GAUSSIAN), (1.0,))[int(additive)]
    assert trial.additive == additive
    seen = []

    def fit_leaves(rows, targets, weight):
        seen.append(rows)
        return TreeLeaves(random_state=0).fit(rows, targets, weight)

    found, deviation = rows.with_leaves(trial, fit_leaves, order[400:])
    held = {row.tobytes() for row in X[split.held]}
    assert len(seen[0]) == 350
    assert not held & {row.tobytes() for row in seen[0]}
    fit = trial.fits[0][0]
    Z = (X * trial.metrics[0]).astype(np.float64)
    K = np.asarray(fit.spec.matrix(Z, fit.landmarks.astype(np.float64))) @ fit.normalization
    kernel = np.hstack([K, rows.ramps]) if additive else K
    Z = np.hstack(
        [kernel, SCALE * fit_leaves(seen[0], y[order[np.r_[400:700, 100:150]], None], np.ones(350)).transform(X)]
    )

    def squares(Z, alpha):
        centre, mean = Z[split.train].mean(axis=0), y[split.train].mean()
        A = Z[split.train] - centre
        coef = np.linalg.solve(A.T @ A + alpha * fit.scale * np.eye(A.shape[1]), A.T @ (y[split.train] - mean))
        return ((Z[split.held] - centre) @ coef + mean - y[split.held]) ** 2

    before, after = squares(kernel, trial.alpha), squares(Z, found.alpha)
    assert found.error == pytest.approx(after.mean() / before.mean() * trial.error, rel=1e-3)
    assert deviation == pytest.approx(np.std(after - before) / 10 * trial.error / before.mean(), rel=1e-2)
