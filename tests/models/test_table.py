"""Raw tables as input: accepted types, output types, and equality with the learner on the encoded columns."""

from __future__ import annotations

import pickle
import warnings
from functools import cache

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import ntkit
from ntkit import (
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    KernelRidge,
    NTKFeatures,
    TableClassifier,
    TableRegressor,
)
from ntkit.tables import TableEncoder


def small(law):
    """A quick learner."""
    return law(NTKFeatures(n_components=24), random_state=0)


@parametrize_with_checks(
    [TableRegressor(small(FeatureRidge)), TableClassifier(small(FeatureRidgeClassifier))],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "rows are drawn by position to choose the penalty",
        "check_regressor_multioutput": "predictions are float32, as encoded columns are",
    },
)
def test_estimator_checks(estimator, check):
    check(estimator)


@cache
def raw(n=300):
    """A data frame with all kinds of columns, and targets that depend on each of them."""
    rng = np.random.default_rng(0)
    days = pd.date_range("2022-01-03", periods=n, freq="31h")
    frame = pd.DataFrame(
        {
            "size": rng.uniform(0, 2, n),
            "town": rng.choice(["Ulm", "Bonn", "Trier"], n),
            "grade": pd.Categorical(rng.choice(["a", "b"], n)),
            "new": rng.random(n) < 0.5,
            "day": days,
            "sold": days.strftime("%d.%m.%Y"),
            "cost": [f"{value:.2f}".replace(".", ",") for value in rng.uniform(0, 9, n)],
        }
    )
    y = frame["size"] + (frame["town"] == "Ulm") + frame["new"] + np.sin(2 * np.pi * days.day_of_year / 365)
    frame.loc[::9, "size"] = np.nan
    frame.loc[::7, "town"] = None
    return frame, y.to_numpy()


def test_it_is_the_learner_on_the_encoded_columns():
    frame, y = raw()
    Z = TableEncoder().fit_transform(frame)
    for law, own, targets in (
        (TableRegressor, FeatureRidge, y),
        (TableClassifier, FeatureRidgeClassifier, np.where(y > 2, "dear", "cheap")),
    ):
        model = law(small(own)).fit(frame, targets)
        learner = small(own).fit(Z, targets)
        np.testing.assert_array_equal(model.predict(frame), learner.predict(Z))
        if law is TableRegressor:
            for mine, theirs in zip(
                model.predict(frame, return_std=True), learner.predict(Z, return_std=True), strict=True
            ):
                np.testing.assert_array_equal(mine, theirs)
        else:
            assert model.classes_.tolist() == ["cheap", "dear"]
            for method in ("predict_proba", "predict_log_proba", "decision_function"):
                np.testing.assert_array_equal(getattr(model, method)(frame), getattr(learner, method)(Z))


def test_default_learners():
    frame, y = raw()
    ridge = TableRegressor("ridge", n_components=64, random_state=0).fit(frame[:200], y[:200])
    assert type(ridge.model_) is FeatureRidge
    assert ridge.score(frame[200:], y[200:]) > 0.8
    assert ridge.feature_importances_.shape == (7,)
    assert ridge.feature_importances_.sum() == pytest.approx(1)
    assert {"size", "town"} & set(ridge.feature_names_in_[np.argsort(-ridge.feature_importances_)[:3]])
    search = TableRegressor(time_budget=0, n_components=32, random_state=0).fit(frame, y)
    assert type(search.model_) is FeatureRidgeSearch
    assert search.model_.n_components == 32
    with pytest.raises(AttributeError, match="has not learned a metric"):
        TableRegressor(small(FeatureRidge)).fit(frame, y).feature_importances_  # noqa: B018


def test_targets_by_name_and_tables_by_path(tmp_path):
    frame, y = raw()
    model = TableRegressor(small(FeatureRidge)).fit(frame.assign(price=y), "price")
    expected = TableRegressor(small(FeatureRidge)).fit(frame, y).predict(frame)
    np.testing.assert_array_equal(model.predict(frame), expected)
    frame.assign(price=y).to_csv(tmp_path / "a.csv", index=False)
    by_path = TableRegressor(small(FeatureRidge)).fit(tmp_path / "a.csv", "price")
    np.testing.assert_allclose(by_path.predict(tmp_path / "a.csv"), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"no column 'prize' for the targets. Its columns are: size, town"):
        TableRegressor("ridge").fit(frame, "prize")
    with pytest.raises(TypeError, match=r"'y' parameter of TableRegressor.fit must be the name of a column"):
        TableRegressor("ridge").fit(tmp_path / "a.csv", y)


def test_other_libraries_and_columns_in_another_order():
    polars = pytest.importorskip("polars")
    frame, y = raw()
    model = TableRegressor(small(FeatureRidge)).fit(frame, y)
    plain = frame.assign(grade=frame["grade"].astype(str))
    other = polars.DataFrame(
        {name: plain[name].astype(object).where(plain[name].notna(), None).tolist() for name in plain}
    )
    np.testing.assert_allclose(model.predict(other), model.predict(frame), rtol=1e-5, atol=1e-6)
    shuffled = frame[frame.columns[::-1]].assign(more=1)
    np.testing.assert_array_equal(model.predict(shuffled), model.predict(frame))
    again = TableRegressor(small(FeatureRidge)).fit(other.with_columns(price=polars.Series(y)), "price")
    assert again.score(frame, y) == pytest.approx(model.score(frame, y), rel=1e-3)


def test_scikit_learn():
    frame, y = raw()
    model = TableRegressor(small(FeatureRidge))
    assert clone(model).get_params()["learner__random_state"] == 0
    assert cross_val_score(model, frame, y, cv=3).min() > 0.3
    grid = GridSearchCV(
        model, {"learner__alphas": [1e-3, 1e3], "encoder": [None, TableEncoder(max_categories=2)]}, cv=2
    )
    assert grid.fit(frame, y).best_params_["learner__alphas"] == 1e-3
    assert TableRegressor(Ridge()).fit(frame, y).score(frame, y) > 0.5
    assert TableClassifier(LogisticRegression()).fit(frame, y > 2).predict_proba(frame).shape == (300, 2)


def test_weights():
    frame, y = raw()
    weight = np.repeat([1.0, 0.0], 150)
    expected = small(FeatureRidge).fit(TableEncoder().fit_transform(frame), y, sample_weight=weight)
    model = TableRegressor(small(FeatureRidge)).fit(frame, y, sample_weight=weight)
    np.testing.assert_array_equal(model.model_.coef_, expected.coef_)


def test_frozen_encoder():
    frame, y = raw()
    encoder = TableEncoder().fit(frame)
    model = TableRegressor(small(FeatureRidge), encoder=FrozenEstimator(encoder)).fit(frame[:20], y[:20])
    assert model.encoder_ is encoder
    assert model.predict(frame).shape == (300,)


def test_files_and_pickles(tmp_path):
    frame, y = raw()
    model = TableClassifier(small(FeatureRidgeClassifier)).fit(frame, np.where(y > 2, "007", "01"))
    ntkit.save(model, tmp_path / "m")
    for other in (ntkit.load(tmp_path / "m"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict_proba(frame), model.predict_proba(frame))
        assert other.predict(frame)[0] in ("007", "01")


def test_warnings_of_unseen_values_name_column_and_values():
    frame, y = raw()
    model = TableRegressor(small(FeatureRidge)).fit(frame, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.predict(frame.assign(town="Rom", grade=pd.Categorical(["c"] * 300)))
    assert [str(w.message).partition(":")[0] for w in caught] == [
        "Values that fit has not seen in the columns 'town' ('Rom'), 'grade' ('c')"
    ]


@pytest.mark.parametrize(
    ("parameters", "kind", "what"),
    [
        (
            {"learner": "trees"},
            ValueError,
            "'learner' parameter of TableRegressor must be 'search', 'ridge' or an estimator",
        ),
        ({"learner": Ridge}, TypeError, "'learner' parameter of TableRegressor must be"),
        (
            {"learner": Ridge(), "n_components": 3},
            ValueError,
            "'n_components' .* must be None, because Ridge has no n_components",
        ),
        ({"encoder": Ridge()}, TypeError, "'encoder' parameter of TableRegressor must be None, a TableEncoder"),
        ({"time_budget": -1}, ValueError, "'time_budget'"),
        ({"n_components": 0}, ValueError, "'n_components'"),
        ({"progress": 1}, TypeError, "'progress'"),
    ],
)
def test_bad_parameters(parameters, kind, what):
    frame, y = raw()
    with pytest.raises(kind, match=what):
        TableRegressor(**parameters).fit(frame, y)


def test_bad_targets():
    frame, y = raw()
    for targets, what in (
        (None, "requires y"),
        (y[:5], "equal numbers of rows|equal|inconsistent"),
        (["a"] * 300, "numbers"),
    ):
        with pytest.raises((ValueError, TypeError), match=what):
            TableRegressor(small(FeatureRidge)).fit(frame, targets)
    with pytest.raises((ValueError, TypeError), match="NaN"):
        TableClassifier(small(FeatureRidgeClassifier)).fit(frame, np.where(y > 2, np.nan, 1.0))


def test_errors_of_the_plain_estimators_point_here():
    frame, y = raw()
    remedy = "TableRegressor and TableClassifier accept text, categories, dates and missing values directly"
    missing = np.where(np.eye(300, 2, dtype=bool), np.nan, 1.0)
    for model in (FeatureRidge(NTKFeatures(n_components=8)), FeatureRidge(), KernelRidge()):
        for X in (frame[["town"]], frame[["size", "town"]].to_numpy(), frame[["day"]], missing):
            with pytest.raises((ValueError, TypeError), match=remedy):
                model.fit(X, y)


def test_number_of_features():
    """`FeatureRidge(n_components=…)` sets the size of its features, the default ones or others."""
    X, y = np.random.default_rng(0).standard_normal((80, 3)), np.arange(80.0)
    assert FeatureRidge(n_components=32, random_state=0).fit(X, y).coef_.shape == (32,)
    pipeline = make_pipeline(StandardScaler(), NTKFeatures(n_components=64))
    model = FeatureRidgeClassifier(pipeline, n_components=16, random_state=0).fit(X, y > 40)
    assert model.coef_.shape == (2, 16)
    assert pipeline[-1].n_components == 64  # clones only
    with pytest.raises(
        ValueError, match=r"'n_components' .* must be None, because StandardScaler has no n_components. Got 32"
    ):
        FeatureRidge(StandardScaler(), n_components=32).fit(X, y)
