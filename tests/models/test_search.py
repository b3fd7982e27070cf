"""The search finds the kernel that was planted, in the time it has, for rows of every kind."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from threadpoolctl import threadpool_limits

from ntkit import (
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    FeatureRidgeSearchClassifier,
    NTKFeatures,
    RandomFourierFeatures,
)
from ntkit.models import _search as module
from ntkit.models import _search_clock as sizes

SMALL = {"gaussian": RandomFourierFeatures(lengthscale=2.0), "linear": "passthrough"}
KEYS = {"name", "round", "n_rows", "n_components", "loss", "error", "alpha", "seconds"}
BOTH = pytest.mark.parametrize("law", [FeatureRidgeSearch, FeatureRidgeSearchClassifier])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


def small(law=FeatureRidgeSearch, n_components=16, time_budget=None, **parameters):
    options = {"candidates": SMALL, "n_averaged": 1, "random_state": 0} | parameters
    return law(n_components=n_components, time_budget=time_budget, **options)


@pytest.fixture
def X(rng):
    return rng.standard_normal((200, 4))


@pytest.fixture
def y(X, rng):
    return np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(200)


def targets(law, y):
    return y if law is FeatureRidgeSearch else np.where(y > 0, "large", "small")


# The right choice.


class Columns(TransformerMixin, BaseEstimator):
    """Chosen columns."""

    def __init__(self, columns=(0,)):
        self.columns = columns

    def fit(self, X, y=None):  # noqa: ARG002
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X[:, list(self.columns)]


@pytest.mark.parametrize("best", ["first", "second", "third", "fourth", "all"])
def test_the_planted_candidate_is_chosen(best, rng):
    """The targets are linear in a column that only one candidate sees; the others have errors of at least 0.1² + 1."""
    X = rng.standard_normal((300, 4))
    columns = {"first": [0], "second": [1], "third": [2], "fourth": [3], "all": [0, 1, 2, 3]}
    y = X[:, columns[best]].sum(axis=1) + 0.1 * rng.standard_normal(300)
    candidates = {name: Columns(chosen) for name, chosen in columns.items() if name != "all" or best == "all"}
    for law in (FeatureRidgeSearch, FeatureRidgeSearchClassifier):
        search = small(law, candidates=candidates).fit(X, targets(law, y))
        assert search.best_name_ == best
        assert search.score(X, targets(law, y)) > 0.9


@pytest.mark.parametrize(
    ("best", "function"),
    [
        ("wide", lambda X: np.cos(X.sum(axis=1) / 2)),
        ("narrow", lambda X: np.sin(10 * X[:, 0])),
    ],
)
def test_the_search_finds_the_right_kernel(best, function, rng):
    X = rng.uniform(-2, 2, (1500, 4 if best == "wide" else 1))  # in four dimensions, rows see few others nearby
    candidates = {
        "narrow": RandomFourierFeatures(lengthscale=0.1),
        "linear": "passthrough",
        "wide": RandomFourierFeatures(lengthscale=2.0),
        "useless": RandomFourierFeatures(lengthscale=0.001),
    }
    y = function(X) + 0.05 * rng.standard_normal(1500)
    search = small(n_components=300, candidates=candidates).fit(X[:1000], y[:1000])
    assert search.best_name_ == best
    assert search.score(X[1000:], y[1000:]) > 0.9


def test_the_best_estimator(X, y):
    gaussians = {"narrow": RandomFourierFeatures(lengthscale=1.0), "wide": RandomFourierFeatures(lengthscale=2.0)}
    search = small(n_components=24, alphas=[0.1, 1.0], candidates=gaussians).fit(X, y)
    best = search.best_estimator_
    assert isinstance(best, FeatureRidge)
    assert best.n_samples_seen_ == 200
    assert best.alpha_ in (0.1, 1.0)
    np.testing.assert_array_equal(best.predict(X), search.predict(X))
    assert best.features_[-1].n_components == 24
    assert search.n_features_in_ == 4
    assert isinstance(small(FeatureRidgeSearchClassifier).fit(X, y > 0).best_estimator_, FeatureRidgeClassifier)


def test_results_are_complete(X, y):
    candidates = {f"{i}": RandomFourierFeatures(lengthscale=2.0 + i) for i in range(6)} | {"linear": "passthrough"}
    for law in (FeatureRidgeSearch, FeatureRidgeSearchClassifier):
        search = small(law, candidates=candidates).fit(X, targets(law, y))
        assert all(set(result) == KEYS for result in search.results_)
        assert {result["name"] for result in search.results_ if result["round"] == 0} == set(candidates)
        assert [result["round"] for result in search.results_] == sorted(result["round"] for result in search.results_)
        for result in search.results_:
            assert result["n_rows"] == 200  # all rows: their errors are leave-one-out errors
            assert result["n_components"] == (4 if result["name"] == "linear" else 16)
            assert 0 <= result["error"] < np.inf
            assert 0 <= result["loss"] < np.inf
            assert result["loss"] == pytest.approx(result["error"]) or law is FeatureRidgeSearchClassifier
            assert result["alpha"] > 0
            assert result["seconds"] > 0
        last = [r for r in search.results_ if r["round"] == search.results_[-1]["round"]]
        assert search.best_name_ == min(last, key=lambda r: r["loss"])["name"]


def test_rows_and_features_grow_from_round_to_round(rng):
    X = rng.standard_normal((4000, 2))
    candidates = {f"{i}": RandomFourierFeatures(lengthscale=1.0 + i) for i in range(6)}
    search = small(n_components=600, candidates=candidates).fit(X[:, :], np.abs(X[:, 0]) + X[:, 1])
    rounds = {}
    for result in search.results_:
        rounds.setdefault(result["round"], []).append(result)
    assert len(rounds) > 1
    for number in range(1, len(rounds)):
        before, after = rounds[number - 1], rounds[number]
        assert len(after) <= len(before)
        assert after[0]["n_rows"] > before[0]["n_rows"]
        assert after[0]["n_components"] >= before[0]["n_components"]
        losses = {r["name"]: r["loss"] for r in before}
        assert {r["name"] for r in after} == set(sorted(losses, key=losses.get)[: len(after)])
    assert rounds[0][0]["n_rows"] <= 2000
    assert rounds[len(rounds) - 1][0]["n_rows"] == 4000
    assert rounds[len(rounds) - 1][0]["n_components"] == 600


def test_sizes_of_rounds_and_numbers_of_survivors():
    small = sizes.Round(2000, 512)
    assert sizes.few_row_rounds(3999, 4096) == [sizes.Round(3999, 1024)]
    assert sizes.few_row_rounds(4000, 4096) == [small]
    assert sizes.few_row_rounds(12000, 4096) == [small, sizes.Round(6000, 1024)]
    assert sizes.few_row_rounds(4000, 100) == [sizes.Round(2000, 100)]
    assert [sizes.n_survivors(n) for n in (1, 2, 4, 7, 8, 9, 20)] == [1, 2, 4, 4, 4, 5, 10]


def test_weights_count_in_every_round(rng, monkeypatch):
    """Targets of rows with weight 0 have no effect, and errors are weighted means."""
    monkeypatch.setattr(sizes, "FIRST_ROWS", 40)
    X, weight = rng.standard_normal((200, 3)), rng.integers(0, 4, 200).astype(float)
    candidates = {"first": Columns([0]), "second": Columns([1]), "third": Columns([2])}
    y, results = X[:, 0] + 0.5 * rng.standard_normal(200), []
    for targets in (y, np.where(weight > 0, y, 1e3)):
        results.append(small(candidates=candidates).fit(X, targets, weight).results_)
    assert {result["n_rows"] for result in results[0]} == {40, 200}
    for one, other in zip(*results, strict=True):
        assert one["loss"] == pytest.approx(other["loss"])
        assert one["error"] == pytest.approx(one["loss"])


@BOTH
def test_losses_equal_fits_without_the_rows(law, X, y):
    """The mean squared error of regression, one row at a time; the share of wrong classes for the other."""
    X, t = X[:40], targets(law, y[:40])
    candidates = {"a": FunctionTransformer(np.square), "b": "passthrough"}
    search = small(law, candidates=candidates, alphas=1.0).fit(X, t)
    errors = dict.fromkeys(candidates, 0.0)
    for i in range(40):
        rest = np.arange(40) != i
        for name in candidates:
            scaled = search.best_estimator_.features_[0]  # of all rows: the scaling is not done again for each row
            Z = scaled.transform(X) ** 2 if name == "a" else scaled.transform(X)
            model = type(search.best_estimator_)(FunctionTransformer(), alphas=1.0).fit(Z[rest], t[rest])
            scores = Z[[i]] @ np.atleast_2d(model.coef_).T + model.intercept_
            predicted = scores[0, 0] if law is FeatureRidgeSearch else model.classes_[scores[0].argmax()]
            errors[name] += ((predicted - t[i]) ** 2 if law is FeatureRidgeSearch else predicted != t[i]) / 40
    for result in search.results_:
        assert result["error"] == pytest.approx(errors[result["name"]], rel=1e-8)


@BOTH
def test_default_candidates(law, X, y):
    search = law(n_components=16, n_averaged=1, random_state=0).fit(X, targets(law, y))
    names = [r["name"] for r in search.results_ if r["round"] == 0]
    assert {name for name in names if "learned" not in name} == set(module.default_candidates(4)) - {"learned"}
    assert "learned matern diagonal" in names  # one for each kernel and kind of metric, and for further draws
    assert sum("#" in name for name in names) == module._REPEATS
    assert len(set(names)) == len(names)
    assert search.best_name_ in names
    assert search.summary_ == f"tried {len(names)} of {len(names)} candidates"
    assert search.n_candidates_tried_ == len(names)
    assert law().get_params() == law(**law().get_params()).get_params()


@BOTH
def test_with_few_rows_several_draws_are_averaged(law, X, y, monkeypatch):
    """Each learns its metric from all rows; draws of much larger errors are left out."""
    errors = iter([0.5, 1.0, 0.6])
    fit = module.LearnedMetric.fit

    def with_error(self, rows, y=None, sample_weight=None):
        metric = fit(self, rows, y, sample_weight)
        if len(rows) == len(X):
            metric.error_ = metric._alternatives[0]["error_"] = next(errors)
        return metric

    monkeypatch.setattr(module.LearnedMetric, "fit", with_error)
    monkeypatch.setattr(module, "_REPEATS", 0)
    options = {"n_components": 16, "time_budget": None, "trees": False, "random_state": 0}
    search = law(candidates={"a": module.AdaptiveFeatures()}, **options).fit(X, targets(law, y))
    average = search.best_estimator_
    used = [model.features_[-1].metric_ for model in average.estimators_]
    assert [metric.error_ for metric in used] == [0.5, 0.6]
    assert {metric.n_samples_used_ for metric in used} == {len(X)}
    np.testing.assert_array_equal(average.weights_, [0.5, 0.5])
    assert next(errors, None) is None


def test_candidates_far_behind_are_not_fitted_on_all_rows(rng):
    X = rng.standard_normal((5000, 4))
    narrow = module.RandomFourierFeatures(lengthscale=0.01)
    for factor, among_all in (
        (1e-3, {"linear"}),
        (10.0, {"linear", "narrow"}),
    ):  # of noise; losses differ less with more
        t = X[:, 0] + factor * rng.standard_normal(5000)
        search = small(candidates={"linear": "passthrough", "narrow": narrow}, n_components=64).fit(X, t)
        assert {result["name"] for result in search.results_ if result["n_rows"] == 2000} == {"linear", "narrow"}
        assert {result["name"] for result in search.results_ if result["n_rows"] == 5000} == among_all


# The time.


class Clock:
    """Time that passes in fits only, by the amount of work."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


class Costly(TransformerMixin, BaseEstimator):
    """Some columns that take the time the search believes a fit to take."""

    clock = Clock()

    def __init__(self, n_components=4, number=0):
        self.n_components, self.number = n_components, number

    def fit(self, X, y=None):  # noqa: ARG002
        self.n_features_in_ = X.shape[1]
        Costly.clock.now += sizes.fit_cost(sizes.Round(X.shape[0], self.n_components))
        return self

    def transform(self, X):
        return np.resize(X[:, : 1 + self.number % X.shape[1]], (X.shape[0], self.n_components))


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(sizes, "fit_cost", lambda config: 1e-6 * config.n_rows * config.n_components**2)
    Costly.clock = Clock()
    for part in (module, sizes):
        monkeypatch.setattr(part, "time", Costly.clock)
    return Costly.clock


def fits(n_rows, n_candidates, budget, rng, n_components=16):
    """Number of fits to compare candidates, and seconds of all fits."""
    began = Costly.clock.now
    X = rng.standard_normal((n_rows, 3))
    candidates = {f"{i}": Costly(number=i) for i in range(n_candidates)}
    search = small(n_components=n_components, time_budget=budget, candidates=candidates, alphas=1.0).fit(X, X[:, 0])
    assert search.best_estimator_.n_samples_seen_ == n_rows
    assert search.best_name_ in candidates
    return len(search.results_), Costly.clock.now - began


@pytest.mark.parametrize("n_candidates", [9, 3, 2])
def test_the_budget_is_kept(n_candidates, clock, rng):  # noqa: ARG001
    """To a tenth, if it suffices for three small fits and one on all rows."""
    n_rows, m = 20000, 16
    final, first = (sizes.fit_cost(sizes.Round(n, m)) for n in (n_rows, 2000))
    counts = []
    for budget in (final + 4 * first, 2.5 * final, 4 * final, 8 * final, 1e9):
        count, seconds = fits(n_rows, n_candidates, budget, rng, m)
        assert seconds <= 1.1 * budget
        counts.append(count)
    assert counts == sorted(counts)
    assert counts[0] <= 5
    assert counts[-1] == fits(n_rows, n_candidates, None, rng, m)[0]
    assert counts[0] < counts[-1]


def test_no_time_at_all(clock, rng):  # noqa: ARG001
    """There is a model, after few fits."""
    for budget in (0, 0.0, 1e-9):
        assert fits(1000, 9, budget, rng)[0] <= 4


@BOTH
def test_no_time_for_the_default_candidates(law, X, y):
    search = law(n_components=16, time_budget=0, random_state=0).fit(X, targets(law, y))
    assert search.predict(X).shape == (200,)
    assert len(search.results_) <= 5


def test_learned_metrics_come_first_when_time_is_short(clock, monkeypatch, rng):
    """Learning a metric has spent the budget; the model uses it nevertheless."""
    learn = module.Search._metric

    def slow(self, *args):
        clock.now += 100
        return learn(self, *args)

    monkeypatch.setattr(module.Search, "_metric", slow)
    X = rng.standard_normal((300, 3))
    search = FeatureRidgeSearch(n_components=64, time_budget=100, random_state=0).fit(X, np.sin(3 * X[:, 0]))
    assert search.best_name_.startswith("learned")
    assert {result["name"].split()[0] for result in search.results_} == {"learned", "linear"}
    assert search.summary_.endswith("budget spent")


def test_one_candidate(X, y):
    """Its results are there, too."""
    search = small(candidates={"only": RandomFourierFeatures()}).fit(X, y)
    assert search.best_name_ == "only"
    assert [result["name"] for result in search.results_] == ["only"]
    assert search.results_[0]["n_rows"] == 200
    assert search.best_estimator_.n_samples_seen_ == 200


# Seeds and copies.


def without_seconds(search):
    return [{key: value for key, value in result.items() if key != "seconds"} for result in search.results_]


@BOTH
def test_seeds(law, X, y):
    candidates = SMALL | {"ntk": NTKFeatures(depth=1), "sampler": RBFSampler(), "landmarks": Nystroem()}
    first, second, other = (
        small(law, candidates=candidates, random_state=seed).fit(X, targets(law, y)) for seed in (0, 0, 1)
    )
    assert without_seconds(first) == without_seconds(second)
    assert without_seconds(first) != without_seconds(other)
    assert first.best_name_ == second.best_name_
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    np.testing.assert_array_equal(first.best_estimator_.coef_, second.best_estimator_.coef_)
    state = np.random.default_rng(0)
    assert without_seconds(small(random_state=state).fit(X, y)) != without_seconds(small(random_state=state).fit(X, y))
    small(law, candidates=candidates, random_state=None).fit(X, targets(law, y))
    small(law, candidates=candidates, random_state=np.random.RandomState(0)).fit(X, targets(law, y))


def test_a_candidate_draws_the_same_in_any_company(X, y):
    """An additional candidate must not change the fits of the others."""
    few, more = small().fit(X, y), small(candidates={"ntk": NTKFeatures()} | SMALL).fit(X, y)
    results = [{r["name"]: r["error"] for r in s.results_ if r["round"] == 0} for s in (few, more)]
    assert all(results[1][name] == error for name, error in results[0].items())


@BOTH
def test_copies(law, X, y):
    search = small(law).fit(X, targets(law, y))
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert again.results_ == search.results_
    fresh = clone(search)
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    assert not hasattr(fresh, "classes_")
    np.testing.assert_array_equal(fresh.fit(X, targets(law, y)).predict(X), search.predict(X))


def test_candidates_are_not_modified(X, y):
    candidates = {"a": RandomFourierFeatures(n_components=7, lengthscale=2.0), "b": NTKFeatures(n_components=5)}
    small(candidates=candidates).fit(X, y)
    assert candidates["a"].n_components == 7
    assert candidates["a"].random_state is None
    assert candidates["b"].n_components == 5
    assert not hasattr(candidates["a"], "frequencies_")


# Rows of every kind.


@BOTH
@pytest.mark.parametrize("convert", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_rows(law, convert, X, y):
    X = X * (np.abs(X) > 0.5)
    for candidates in (SMALL, None):
        search = small(law, candidates=candidates).fit(convert(X), targets(law, y))
        predictions = search.predict(convert(X))
        assert predictions.shape == (200,)
        if law is FeatureRidgeSearch:
            np.testing.assert_allclose(search.predict(X), predictions, rtol=1e-6)
    assert small(law).__sklearn_tags__().input_tags.sparse
    assert law().__sklearn_tags__().input_tags.sparse
    dense = small(law, candidates={"a": FunctionTransformer(accept_sparse=False), "b": Columns()})
    assert not dense.__sklearn_tags__().input_tags.sparse


@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 6, 9])
def test_few_rows(n_rows, X, y):
    search = small().fit(X[:n_rows], y[:n_rows])
    assert np.isfinite(search.predict(X)).all()
    if n_rows > 1:
        labels = np.array(["a", "b"])[np.arange(n_rows) % 2]
        predicted = small(FeatureRidgeSearchClassifier).fit(X[:n_rows], labels).predict(X)
        assert set(predicted) <= {"a", "b"}


@pytest.mark.parametrize(("n_rows", "n_rare"), [(6, 1), (10, 1), (40, 2), (5, 2)])
def test_rare_classes(n_rows, n_rare, X):
    """Every fit must see rows of at least two classes."""
    labels = np.where(np.arange(n_rows) < n_rare, "rare", "common")
    for seed in range(5):
        search = small(FeatureRidgeSearchClassifier, random_state=seed).fit(X[:n_rows], labels)
        np.testing.assert_array_equal(search.classes_, ["common", "rare"])
        assert all(np.isfinite(result["error"]) for result in search.results_)


def test_a_rare_class_among_many_rows(rng):
    """Not with the few rows of the first round, unless it is put there."""
    X = rng.standard_normal((9000, 2))
    candidates = {f"{i}": RandomFourierFeatures(lengthscale=1.0 + i) for i in range(5)}
    search = small(FeatureRidgeSearchClassifier, candidates=candidates).fit(X, np.arange(9000) == 77)
    np.testing.assert_array_equal(search.classes_, [False, True])


def test_every_row_has_its_own_class(X):
    search = small(FeatureRidgeSearchClassifier).fit(X[:8], np.arange(8))
    np.testing.assert_array_equal(search.classes_, np.arange(8))


def test_constant_targets_or_rows(X, y):
    constant = small().fit(X, np.full(200, 3.0))
    np.testing.assert_allclose(constant.predict(X), 3.0)
    same = small().fit(np.ones((200, 4)), y)
    np.testing.assert_allclose(same.predict(X), y.mean(), atol=0.1)
    zeros = small().fit(np.zeros((200, 4)), np.zeros(200))
    np.testing.assert_array_equal(zeros.predict(X * 0), 0)


@pytest.mark.parametrize("scale", [1e-150, 1e-9, 1e9, 1e150])
def test_targets_of_any_size(scale, X, y):
    """The same choice, and predictions that grow with the targets."""
    search, scaled = small().fit(X, y), small().fit(X, y * scale)
    assert scaled.best_name_ == search.best_name_
    np.testing.assert_allclose(scaled.predict(X), search.predict(X) * scale, rtol=1e-5)


# Candidates of one's own.


def test_transformers_of_others(X, y):
    candidates = {
        "pca": make_pipeline(PCA(2), RandomFourierFeatures(n_components=8, lengthscale=2.0, random_state=0)),
        "nystroem": Nystroem(gamma=0.1),
        "sampler": RBFSampler(),
        "function": FunctionTransformer(np.square),
        "linear": "passthrough",
    }
    search = small(n_components=20, candidates=candidates).fit(X, y)
    assert {result["name"] for result in search.results_} == set(candidates)
    assert search.best_name_ in candidates


@BOTH
def test_passthrough_is_linear(law, X, y):
    search = small(law, candidates={"nothing": "passthrough"}).fit(X, targets(law, y))
    assert search.best_estimator_.coef_.shape[-1] == 4


@BOTH
def test_bad_rows(law, X, y):
    name, t = law.__name__, targets(law, y)
    for value in (np.nan, np.inf):
        bad = X.copy()
        bad[150, 2] = value
        for candidates in (SMALL, {"linear": "passthrough"}, None):
            with pytest.raises(ValueError, match=r"(?i)NaN|infinity"):
                small(law, candidates=candidates).fit(bad, t)
    with pytest.raises(ValueError, match=f"{name} requires y to be passed"):
        small(law).fit(X, None)
    with pytest.raises(ValueError, match=rf"inconsistent numbers of samples: X of {name} has 200 rows, y has 199"):
        small(law).fit(X, t[:-1])
    with pytest.raises(ValueError, match="0 sample"):
        small(law).fit(X[:0], t[:0])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        small(law).fit(X[:, 0], t)
    with pytest.raises((TypeError, ValueError), match=f"'X' parameter of {name}|requires y"):
        small(law).fit("rows.csv", t)
    with pytest.raises(NotFittedError):
        small(law).predict(X)


class Failing(TransformerMixin, BaseEstimator):
    """Fails at a number of rows."""

    def __init__(self, n_rows=0):
        self.n_rows = n_rows

    def fit(self, X, y=None):  # noqa: ARG002
        if X.shape[0] == self.n_rows:
            raise ArithmeticError("failed")
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return X


@pytest.mark.parametrize("names", ["a", "ab"], ids=["one", "two"])
def test_a_search_that_fails_leaves_the_one_before(names, X, y):
    failing = {name: Failing(200 if name == names[-1] else 0) for name in names}
    search = small(candidates=failing)
    with pytest.raises(ArithmeticError, match="failed"):
        search.fit(X, y)
    assert not hasattr(search, "best_estimator_")
    assert not hasattr(search, "results_")
    search.set_params(candidates=SMALL).fit(X, y)
    before = search.predict(X), search.best_name_, list(search.results_)
    with pytest.raises(ArithmeticError, match="failed"):
        search.set_params(candidates=failing).fit(X[:, :3], -y)
    np.testing.assert_array_equal(search.predict(X), before[0])
    assert (search.best_name_, search.results_) == before[1:]
    assert search.n_features_in_ == 4


def test_features_are_doubled_while_the_error_falls(rng, monkeypatch):
    """A rough function needs all the features there are; of a linear one with noise few are enough."""
    monkeypatch.setattr(module, "_ALL_ROWS_COMPONENTS", 64)
    X = rng.uniform(-1, 1, (1500, 2))
    rough = np.sign(np.sin(6 * X)).prod(axis=1)
    candidates = {"a": RandomFourierFeatures(lengthscale=0.1), "b": "passthrough"}
    sizes = {}
    for name, y in (("rough", rough), ("linear", X[:, 0] + rng.standard_normal(1500))):
        search = small(n_components=512, candidates=candidates).fit(X, y)
        sizes[name] = max(result["n_components"] for result in search.results_ if result["round"])
    assert sizes["rough"] == 512
    assert sizes["linear"] < 512


@BOTH
def test_averages(law, rng):
    """Two models each see half of the information: their average is better than either."""
    X = rng.standard_normal((600, 4))
    y = np.sin(X[:, 0]) + np.sin(X[:, 1]) + 0.3 * rng.standard_normal(600)
    t = targets(law, y)
    halves = {"first": Columns([0]), "second": Columns([1])}
    search = small(law, candidates=halves, n_averaged=2).fit(X[:400], t[:400])
    alone = small(law, candidates=halves).fit(X[:400], t[:400])
    best = search.best_estimator_
    assert type(best).__name__.startswith("Average")
    assert sorted(search.best_name_.split(" + ")) == sorted(
        f"{w:.2g} {n}" for w, n in zip(best.weights_, _names(search), strict=True)
    )
    assert best.weights_.sum() == pytest.approx(1)
    assert search.score(X[400:], t[400:]) > alone.score(X[400:], t[400:])
    assert search.alpha_ == best.estimators_[0].alpha_
    if law is FeatureRidgeSearch:
        parts = [model.predict(X) for model in best.estimators_]
        np.testing.assert_allclose(search.predict(X), np.tensordot(best.weights_, parts, 1), rtol=1e-12)
        _, deviation = search.predict(X, return_std=True)
        variances = [model.predict(X, return_std=True)[1] ** 2 for model in best.estimators_]
        np.testing.assert_allclose(deviation**2, np.tensordot(best.weights_, variances, 1), rtol=1e-12)
    else:
        p = search.predict_proba(X)
        np.testing.assert_allclose(p.sum(axis=1), 1)
        np.testing.assert_array_equal(search.predict(X), search.classes_[p.argmax(axis=1)])
        np.testing.assert_allclose(search.decision_function(X), np.log(p[:, 1] / p[:, 0]))
    again = clone(best).fit(X[:400], t[:400])
    np.testing.assert_allclose(again.weights_, best.weights_)
    assert again.score(X[400:], t[400:]) == search.score(X[400:], t[400:])


def _names(search):
    columns = [model.features_[-1].columns[0] for model in search.best_estimator_.estimators_]
    return [["first", "second"][column] for column in columns]


@BOTH
def test_averages_in_files(law, X, y, tmp_path):
    import ntkit

    gaussians = {f"{s}": RandomFourierFeatures(lengthscale=s) for s in (0.5, 1.0, 2.0)}
    search = small(law, candidates=gaussians, n_averaged=3).fit(X, targets(law, y))
    ntkit.save(search, tmp_path / "search.ntkit")
    again = ntkit.load(tmp_path / "search.ntkit")
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert again.summary_ == search.summary_


def test_metrics_are_learned_from_rows_on_which_no_error_is_estimated(rng, monkeypatch):
    """Targets are noise: a metric learned from the leave-one-out rows would seem to predict them."""
    seen = []
    fit = module.LearnedMetric.fit

    def record(self, X, y=None, sample_weight=None):
        seen.append(np.asarray(X))
        return fit(self, X, y, sample_weight)

    monkeypatch.setattr(module.LearnedMetric, "fit", record)
    X, y = rng.standard_normal((400, 5)), rng.standard_normal(400)
    candidates = {"a": module.AdaptiveFeatures(metric=module.LearnedMetric(kernel="matern")), "b": "passthrough"}
    search = small(n_components=64, candidates=candidates, n_selection=50, time_budget=None).fit(X, y)
    assert len(seen[0]) == 350
    seed = module.keyed(module.seed_sequence(search._model_seed), "sample")
    left_out = np.argsort(module.row_uniforms(seed, 0, 400)[:, 0])[:50]
    learning = np.delete(X, left_out, axis=0)
    scaled = module.ArcsinhScaler(width=module.TABLE_WIDTH).fit(learning).transform(learning)
    np.testing.assert_allclose(seen[0], scaled)
    model = search._estimator(sizes.Entry("a", candidates["a"]), 64, X).fit(X, y)
    np.testing.assert_allclose(np.sort(model._solution.left_out[0][:, 0]), np.sort(y[left_out]))


def test_progress(X, y, capsys):
    small(progress=True).fit(X, y)
    shown = capsys.readouterr().err
    assert "FeatureRidgeSearch" in shown
    assert any(name in shown for name in SMALL)
    small().fit(X, y)
    assert capsys.readouterr().err == ""
