"""Boosted trees predict as scikit-learn's, in every form, and are part of an average where they help."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from tests.reference.trees import tree_sums

import ntkit
from ntkit import FeatureRidge, FeatureRidgeSearch, FeatureRidgeSearchClassifier
from ntkit.export import to_onnx
from ntkit.models import _search
from ntkit.models.average import AverageClassifier, AverageRegressor
from ntkit.models.trees import BoostedTrees, TreesClassifier, TreesRegressor

KINDS = ("one", "two", "classes", "three classes")
ALL = pytest.mark.parametrize("kind", KINDS)


def steps(X):
    """Products of steps: trees find them, smooth kernels do not."""
    return 2.0 * (X[:, 0] > 0.3) * (X[:, 1] > -0.5) + (X[:, 2] > 0) * (X[:, 3] < 0.7)


@pytest.fixture
def X(rng):
    return rng.standard_normal((400, 5)).astype(np.float32)


def fitted(kind, X, n_rounds=20, weight=None):
    """A model, and the models of scikit-learn that it copies."""
    y, Y = steps(X), np.column_stack([steps(X), X[:, 4]])
    t = {"one": y, "two": Y, "classes": np.where(y > 0, "yes", "no"), "three classes": y.astype(int)}[kind]
    law, theirs = (
        (TreesClassifier, HistGradientBoostingClassifier)
        if "classes" in kind
        else (TreesRegressor, HistGradientBoostingRegressor)
    )
    model = law(n_rounds, random_state=0).fit(X, t, weight)
    columns = list(Y.T) if kind == "two" else [t]
    return model, t, [theirs(max_iter=n_rounds, **model._settings()).fit(X, c, weight) for c in columns]


@ALL
def test_equals_scikit_learn_and_the_reference(kind, X, rng):
    weight = rng.uniform(0.5, 2, len(X))
    model, _, theirs = fitted(kind, X, weight=weight)
    wide = X.astype(np.float64)
    if "classes" in kind:
        np.testing.assert_allclose(model.predict_proba(wide), theirs[0].predict_proba(X), rtol=1e-12)
        np.testing.assert_array_equal(model.predict(X), theirs[0].predict(X))
        np.testing.assert_array_equal(model.classes_, theirs[0].classes_)
    else:
        np.testing.assert_allclose(
            model.predict(wide).reshape(len(X), -1), np.column_stack([each.predict(X) for each in theirs]), rtol=1e-12
        )
        assert model.predict(X).dtype == np.float32
    np.testing.assert_allclose(model._sums(X), tree_sums(model, X), rtol=1e-12)


@ALL
def test_expressions_agree_at_the_thresholds(kind, X):
    """In float32, thresholds are rounded down: no row changes sides."""
    torch = pytest.importorskip("torch")
    model, _, _ = fitted(kind, X)
    edges = np.repeat(X[:40], 2, axis=0)
    edges[::2, 0] = model.threshold_[(model.column_ == 0) & (model.left_ != np.arange(len(model.left_)))][:40].astype(
        np.float32
    )
    key = "probabilities" if "classes" in kind else "prediction"
    for rows in (edges, edges.astype(np.float64)):
        found = model.expressions(torch.as_tensor(rows))[key].numpy()
        wide = rows.astype(np.float64)
        true = model.predict_proba(wide) if "classes" in kind else model.predict(wide)
        np.testing.assert_allclose(found, true, rtol=1e-10)


@ALL
def test_files_and_pickles(kind, X, tmp_path):
    model, _, _ = fitted(kind, X)
    ntkit.save(model, tmp_path / "trees.ntkit")
    for again in (ntkit.load(tmp_path / "trees.ntkit"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("name", "index", "value", "rule"),
    [
        ("left_", 0, 10**9, "later nodes"),
        ("left_", 1, 0, "later nodes"),
        ("right_", 0, 1, "child of one node"),
        ("column_", 0, 5, "indices of the 5 columns"),
        ("output_", 0, 1, "indices of the 1 outputs"),
        ("root_", 0, 1, "root_ must start with 0"),
        ("root_", -1, 10**9, "root_ must start with 0"),
        ("threshold_", 0, np.nan, "NaN"),
    ],
)
def test_planted_indices_are_refused(name, index, value, rule, X, tmp_path):
    """Compiled code must not follow an index of a file out of an array, or forever."""
    model, _, _ = fitted("one", X)
    getattr(model, name)[index] = value
    path = tmp_path / "trees.ntkit"
    with pytest.raises(ValueError, match=rule):
        ntkit.save(model, path) or ntkit.load(path)


def test_bad_input(X):
    model, t, _ = fitted("one", X)
    with pytest.raises(NotFittedError):
        TreesRegressor().predict(X)
    with pytest.raises(ValueError, match="n_rounds"):
        TreesRegressor(0).fit(X, t)
    with pytest.raises(ValueError, match="X has 4 features"):
        model.predict(X[:, :4])
    with pytest.raises(ValueError, match="free of NaN"):
        model.predict(np.full((1, 5), np.nan))


def test_rows_of_other_libraries(X):
    pd, torch, da = (pytest.importorskip(name) for name in ("pandas", "torch", "dask.array"))
    model, t, _ = fitted("one", X)
    true = model.predict(X)
    np.testing.assert_array_equal(model.predict(torch.as_tensor(X)).numpy(), true)
    np.testing.assert_array_equal(model.predict(da.from_array(X, chunks=(100, -1))).compute(), true)
    np.testing.assert_array_equal(model.predict(sp.csr_array(X)), true)
    frame = pd.DataFrame(X, columns=list("abcde"))
    named = clone(model).fit(frame, t)
    np.testing.assert_array_equal(named.predict(frame), true)
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[list("edcba")])


def test_choice_of_size_and_rounds(X):
    """More rounds while the held-out loss falls; the predictions are those of the chosen trees."""
    t = steps(X)
    data = (X[:300], t[:300], None)

    def loss(predictions):
        return float(np.mean((predictions[:, 0] - t[300:]) ** 2))

    model = TreesRegressor(random_state=0)
    found = model.choose(data, X[300:], loss, np.inf)
    assert found.loss == loss(found.predictions)
    model.fit(X[:300], t[:300])
    assert len(model.root_) == found.n_rounds
    assert loss(model.predict(X[300:].astype(np.float64))[:, None]) == pytest.approx(found.loss, rel=0.2)
    other = TreesRegressor(model.n_rounds, size="small" if model.size == "large" else "large", random_state=0)
    assert loss(other.fit(X[:300], t[:300]).predict(X[300:])[:, None]) > 0.9 * found.loss
    hopeless = TreesRegressor(random_state=0)
    least = hopeless.choose(data, X[300:], loss, np.inf, other=found.loss / 100)
    assert (hopeless.size, least.n_rounds <= 100) == ("large", True)
    assert hopeless.choose(data, X[300:], loss, np.inf, other=found.loss)[:2] == found[:2]
    short = TreesRegressor(random_state=0)
    assert short.choose(data, X[300:], loss, 0.0).n_rounds == 1  # the first round tells how long others would take
    assert short.size == "large"  # these come first


def test_small_trees_are_tried_where_large_ones_only_fit_noise(rng, monkeypatch):
    X, t = rng.standard_normal((400, 3)), rng.standard_normal(400)
    rounds = {}
    choose_rounds = BoostedTrees._choose_rounds

    def record(self, *arguments):
        found = choose_rounds(self, *arguments)
        rounds[self.size] = found.n_rounds
        return found

    monkeypatch.setattr(BoostedTrees, "_choose_rounds", record)
    data, held_out = (X[:200], t[:200], None), t[200:]
    model = TreesRegressor(random_state=0)
    model.choose(data, X[200:], lambda predictions: float(np.mean((predictions[:, 0] - held_out) ** 2)), np.inf)
    assert rounds["large"] == 1
    assert "small" in rounds


@pytest.mark.parametrize(("size", "n_leaves", "n_rows"), [("small", 31, 20), ("large", 127, 5)])
def test_sizes(size, n_leaves, n_rows, rng):
    X = rng.standard_normal((4000, 3))
    model = TreesRegressor(3, size=size, random_state=0).fit(X, X[:, 0] * X[:, 1])
    assert (np.diff([*model.root_, len(model.left_)]) == 2 * n_leaves - 1).all()
    counts = np.zeros(len(model.left_), dtype=int)
    for row in X:
        node = 0
        while model.left_[node] != node:
            node = model.left_[node] if row[model.column_[node]] <= model.threshold_[node] else model.right_[node]
        counts[node] += 1
    assert counts[counts > 0].min() >= n_rows
    with pytest.raises(ValueError, match="'size' parameter of TreesRegressor must be one of"):
        TreesRegressor(size="huge").fit(X, X[:, 0])


# In the search.


@pytest.mark.parametrize("law", [FeatureRidgeSearch, FeatureRidgeSearchClassifier])
def test_search_averages_with_trees_where_they_help(law, rng, tmp_path, monkeypatch):
    monkeypatch.setattr(_search, "_REPEATS", 0)
    X = rng.standard_normal((1500, 5)).astype(np.float32)
    y = steps(X) + X[:, 4] if law is FeatureRidgeSearch else np.where(steps(X) > 1.5, "high", "low")
    options = {"n_components": 64, "time_budget": None, "random_state": 0}
    search = law(**options).fit(X[:900], y[:900])
    best = search.best_estimator_
    assert isinstance(best, AverageRegressor if law is FeatureRidgeSearch else AverageClassifier)
    assert search.best_name_.endswith(" trees")
    assert isinstance(best.estimators_[-1], BoostedTrees)
    assert not any(isinstance(model, BoostedTrees) for model in best.estimators_[:-1])
    assert best.weights_.sum() == pytest.approx(1)
    without = law(**options, trees=False).fit(X[:900], y[:900])
    assert "trees" not in without.best_name_
    assert not any(result["name"] == "trees" for result in without.results_)
    assert search.score(X[900:], y[900:]) > without.score(X[900:], y[900:])
    assert search.alpha_ == best.estimators_[0].alpha_
    assert search.feature_importances_.sum() == pytest.approx(1)
    if law is FeatureRidgeSearch:
        mean, deviation = search.predict(X[900:], return_std=True)
        np.testing.assert_array_equal(mean, search.predict(X[900:]))
        kernels = best.weights_[:-1] / best.weights_[:-1].sum()
        variances = [model.predict(X[900:], return_std=True)[1] ** 2 for model in best.estimators_[:-1]]
        np.testing.assert_allclose(deviation**2, np.tensordot(kernels, variances, 1), rtol=1e-5)
    ntkit.save(search, tmp_path / "search.ntkit")
    np.testing.assert_array_equal(ntkit.load(tmp_path / "search.ntkit").predict(X), search.predict(X))
    again = clone(best).fit(X[:900], y[:900])
    assert again.score(X[900:], y[900:]) > without.score(X[900:], y[900:])


def test_smooth_functions_need_no_trees(rng, monkeypatch):
    monkeypatch.setattr(_search, "_REPEATS", 0)
    X = rng.standard_normal((1000, 3))
    search = FeatureRidgeSearch(n_components=256, time_budget=None, random_state=0).fit(X, np.sin(X[:, 0]) * X[:, 1])
    assert any(result["name"] == "trees" for result in search.results_)
    assert "trees" not in search.best_name_


def test_rows_of_the_share_are_those_of_the_models(rng):
    """The rows that choose the trees are, in this order, the first rows that choose among the models."""
    X = rng.standard_normal((300, 3))
    y, weight = X[:, 0] + rng.standard_normal(300), rng.uniform(0, 2, 300)
    weight[::7] = 0
    search = FeatureRidgeSearch(n_components=16, time_budget=5, random_state=0).fit(X, y, weight)
    rows, others = search._selection(y, weight)
    assert weight[rows].min() > 0
    np.testing.assert_array_equal(np.sort(np.concatenate([rows, others])), np.flatnonzero(weight))
    model = FeatureRidge(alphas=1.0, n_selection=len(rows), random_state=search._model_seed).fit(X, y, weight)
    targets, _, their_weight = model._solution.left_out
    np.testing.assert_allclose(targets[:, 0], y[rows], rtol=1e-12)
    np.testing.assert_allclose(their_weight, weight[rows], rtol=1e-12)


def test_rare_classes_and_one_row(rng):
    """A class that is only among the held-out rows: no trees, no error."""
    X, y = rng.standard_normal((60, 3)), np.zeros(60, dtype=int)
    y[:30] = 1
    probe = FeatureRidgeSearchClassifier(n_components=8, time_budget=2, random_state=0).fit(X, y)
    rows, _ = probe._selection(y, None)
    y[rows[0]] = 2
    search = FeatureRidgeSearchClassifier(n_components=8, time_budget=2, random_state=0).fit(X, y)
    assert not any(result["name"] == "trees" for result in search.results_)
    assert len(search.classes_) == 3


def test_averages_with_trees_in_onnx_and_torch(X, tmp_path):
    torch, ort = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    t = steps(X)
    kernel = FeatureRidge(ntkit.NTKFeatures(n_components=32, random_state=0), random_state=0).fit(X, t)
    model = AverageRegressor.of([kernel, TreesRegressor(30, random_state=0).fit(X, t)], [0.4, 0.6])
    to_onnx(model, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: X})[0]
    np.testing.assert_allclose(found, model.predict(X), atol=1e-5)
    found = model.expressions(torch.as_tensor(X))["prediction"].numpy()
    np.testing.assert_allclose(found, model.predict(X), atol=1e-5)
