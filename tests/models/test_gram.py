"""GramRidge, GramRidgeClassifier and gram_matrix against features written out side by side, and against bad input."""

from __future__ import annotations

import pickle
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from tests.reference.gram import kernel, side_by_side
from tests.reference.ridge import dual_ridge, left_out, mean_square, ridge
from threadpoolctl import threadpool_limits

from ntkit import NTKFeatures, RandomFourierFeatures
from ntkit._random import generator, seed_sequence
from ntkit.kernels import arc_cosine, gaussian
from ntkit.models import GramRidge, GramRidgeClassifier, gram_matrix
from ntkit.models._draws import Draws
from ntkit.models._gram import Dual, Primal, factorize, panels

BOTH = pytest.mark.parametrize("law", [GramRidge, GramRidgeClassifier])
SOLVERS = pytest.mark.parametrize("solver", ["dual", "primal"])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


class Rectified(TransformerMixin, BaseEstimator):
    """max(Wx + b, 0): features with a mean, and norms other than 1."""

    def __init__(self, n_components=12, bias=1.0, random_state=None):
        self.n_components = n_components
        self.bias = bias
        self.random_state = random_state

    def fit(self, X, y=None):  # noqa: ARG002
        rng = np.random.default_rng(self.random_state)
        self.weights_ = rng.standard_normal((X.shape[1], self.n_components))
        self.constants_ = self.bias * rng.standard_normal(self.n_components)
        return self

    def transform(self, X):
        if isinstance(X, np.ndarray):
            return np.maximum(X @ self.weights_.astype(X.dtype) + self.constants_.astype(X.dtype), 0)
        import torch

        wide = torch.promote_types(X.dtype, torch.float32)
        weights, constants = (torch.from_numpy(a).to(wide) for a in (self.weights_, self.constants_))
        return (X.to(wide) @ weights + constants).clamp(min=0).to(X.dtype)


def maps(n_components=12, **parameters):
    return Rectified(n_components, **parameters)


def rows(seed, n, d=5, k=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
    Y = np.tanh(X @ rng.standard_normal((d, k or 1))) + 0.1 * rng.standard_normal((n, k or 1)) + 2.0
    return X, Y if k else Y[:, 0]


def labelled(seed, n, n_classes=3, d=4, distance=2.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return rng.standard_normal((n_classes, d))[y] * distance + rng.standard_normal((n, d)), y


def draws_of(model, X):
    """Features of all draws, from maps with the seeds of the fitted ones."""
    return [clone(m).fit(X).transform(X) for m in model.maps_]


# Against ridge regression on all features.


@SOLVERS
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("k", [None, 1, 3])
@pytest.mark.parametrize("n_draws", [1, 3])
def test_regression_is_ridge_regression_on_all_features(solver, normalize, center, k, n_draws):
    X, Y = rows(0, 30, k=k)
    new = rows(1, 7)[0]
    model = GramRidge(
        maps(), n_draws, alphas=0.2, normalize=normalize, center=center, solver=solver, random_state=0, keep_gram=True
    ).fit(X, Y)
    assert len(model.maps_) == model.n_draws_ == n_draws
    Z = side_by_side([m.transform(X) for m in model.maps_], normalize=normalize)
    Z_new = side_by_side([m.transform(new) for m in model.maps_], normalize=normalize)
    coef, constant = ridge(Z, Y, np.ones(30), 0.2, intercept=center)
    expected = Z_new @ coef + constant
    predictions = model.predict(new)
    assert predictions.shape == ((7,) if k is None else (7, k))
    assert predictions.dtype == np.float64
    np.testing.assert_allclose(predictions, expected if k else expected[:, 0], rtol=1e-8)
    theirs = Ridge(alpha=0.2, fit_intercept=center).fit(Z, Y)
    np.testing.assert_allclose(predictions, theirs.predict(Z_new).reshape(predictions.shape), rtol=1e-8)
    # The weights are those of features over √D, divided by √D once more.
    scaled = coef.T / n_draws**0.5
    np.testing.assert_allclose(model.coef_, scaled if k else scaled[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.gram_, kernel(draws_of(model, X), normalize=normalize, center=center), atol=1e-10)
    intercept = Y.mean(axis=0) if center else np.zeros(k or 1)
    np.testing.assert_allclose(model.intercept_, intercept if k else np.atleast_1d(intercept)[0], atol=1e-9)
    assert model.alpha_ == 0.2
    assert np.isnan(model.errors_).all()
    assert model.n_features_in_ == 5
    assert model.preprocessor_ is None


def test_the_smaller_problem_is_solved():
    X, y = rows(0, 40)
    for n_draws, kind in ((3, Primal), (4, Dual)):
        model = GramRidge(maps(10), n_draws, random_state=0, warm_start=True)
        assert type(model.set_params(n_draws=n_draws + (n_draws == 4)).fit(X, y)._problem) is kind
    assert type(GramRidge(maps(10), 4, random_state=0, warm_start=True).fit(X, y)._problem) is Primal  # as many of each


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("n_draws", [2, 5])
def test_solvers_agree(center, n_draws):
    X, Y = rows(0, 50, k=2)
    one, other = (
        GramRidge(maps(), n_draws, solver=solver, center=center, random_state=0).fit(X, Y)
        for solver in ("dual", "primal")
    )
    # Both find the same α by the same errors, as far as these are solved for.
    assert one.alpha_ == pytest.approx(other.alpha_, rel=1e-9)
    both = np.isfinite(one.errors_) & np.isfinite(other.errors_)
    assert both.sum() >= 5
    np.testing.assert_allclose(one.errors_[both], other.errors_[both], rtol=1e-5)
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-6)


@SOLVERS
@pytest.mark.parametrize("center", [True, False])
def test_errors_are_those_of_a_fit_without_the_rows(solver, center):
    X, Y = rows(3, 40, k=2)
    alphas = np.array([0.01, 0.1, 1.0])
    model = GramRidge(
        maps(), 2, alphas=alphas, validation_fraction=0.2, center=center, solver=solver, random_state=5
    ).fit(X, Y)
    held = np.sort(generator(seed_sequence(5), "validation").permutation(40)[:8])
    Z = side_by_side(draws_of(model, X))
    for alpha, error in zip(alphas, model.errors_, strict=True):
        predictions = left_out(Z, Y, np.ones(40), alpha, [held], intercept=center)
        assert error == pytest.approx(mean_square(Y[held], predictions, np.ones(8)), rel=1e-7)
    assert model.alpha_ == alphas[np.argmin(model.errors_)]


@pytest.mark.parametrize(("fraction", "n", "held"), [(0.1, 40, 4), (0.001, 40, 1), (0.999, 40, 39), (0.5, 2, 1)])
def test_sizes_of_the_rows_held_back(fraction, n, held, monkeypatch):
    X, y = rows(0, n)
    seen = []
    monkeypatch.setattr(GramRidge, "_loss", lambda self, targets, predictions: seen.append(len(targets)) or 1.0)  # noqa: ARG005
    GramRidge(maps(), validation_fraction=fraction, random_state=0).fit(X, y)
    assert set(seen) == {held}


def test_default_alphas_are_relative_to_the_diagonal():
    X, y = rows(0, 60)
    for normalize in (True, False):
        model = GramRidge(maps(100), 2, normalize=normalize, random_state=0, keep_gram=True).fit(X, y)
        mean = np.trace(kernel(draws_of(model, X), normalize=normalize, center=True)) / 60
        np.testing.assert_allclose(model.alphas_, mean * 10.0 ** np.arange(-7, 2.5, 0.5), rtol=1e-9)
        larger = GramRidge(maps(100), 2, normalize=normalize, random_state=0).fit(7 * X, y)
        if normalize:
            assert larger.alphas_[0] < 1e-7  # the mean of a diagonal of ones, less what the centre takes
    np.testing.assert_array_less(model.alphas_[:-1], model.alphas_[1:])


def test_the_path_ends_where_errors_rise():
    X, y = rows(0, 80)
    y = y + np.random.default_rng(1).standard_normal(80)
    model = GramRidge(maps(200), 2, random_state=0).fit(X, y)
    tried = np.isfinite(model.errors_)
    assert tried[-1]
    assert not tried[0]
    assert (np.diff(tried.astype(int)) >= 0).all()  # from the largest downwards
    assert (model.errors_[tried][:3] > 1.02 * np.nanmin(model.errors_)).all()
    largest = model.alphas_[model.errors_ <= 1.001 * np.nanmin(model.errors_)].max()
    assert model.alpha_ == largest
    close = GramRidge(maps(200), 2, alphas=[0.1, 0.1000001], random_state=0).fit(X, y)
    assert close.errors_[0] != close.errors_[1]
    assert close.alpha_ == 0.1000001  # the larger of two that are as good


@pytest.mark.parametrize("alphas", [[1.0, 0.01, 0.1], np.array([[0.1], [1.0], [0.01]]), (0.01, 1, 0.1)])
def test_alphas_of_any_form_and_order(alphas):
    X, y = rows(0, 40)
    expected = GramRidge(maps(), 2, alphas=[0.01, 0.1, 1.0], random_state=0).fit(X, y)
    model = GramRidge(maps(), 2, alphas=alphas, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.alphas_, [0.01, 0.1, 1.0])
    np.testing.assert_array_equal(model.errors_, expected.errors_)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))


@SOLVERS
@pytest.mark.parametrize("alphas", [0.3, [0.3]])
def test_one_alpha_needs_no_validation(solver, alphas):
    X, y = rows(0, 30)
    one, other = (
        GramRidge(maps(), alphas=alphas, validation_fraction=fraction, solver=solver, random_state=0).fit(X, y)
        for fraction in (None, 0.1)
    )
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert np.isnan(one.errors_).all()
    assert np.isnan(other.errors_).all()


def test_alpha_zero_interpolates():
    X, y = rows(0, 20)
    model = GramRidge(maps(64), 2, alphas=0.0, normalize=False, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-6)
    assert model.alpha_ == 0.0


def test_alphas_lost_in_rounding_are_raised_with_a_warning():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2)).astype(np.float32)
    X[30:] = X[:30]  # a singular kernel, of which single precision makes an indefinite one
    y = X[:, 0].astype(np.float64)
    parameters = {"alphas": 1e-12, "gram_dtype": "float32", "random_state": 0}
    with pytest.warns(UserWarning, match=r"alpha=1e-12 is indefinite by rounding errors; alpha=.* was taken"):
        model = GramRidge(RandomFourierFeatures(n_components=64), 2, **parameters).fit(X, y)
    assert 1e-11 < model.alpha_ < 1e-3
    np.testing.assert_allclose(model.predict(X), y, atol=0.05)


# Draws.


def test_a_draw_does_not_depend_on_their_number():
    X, y = rows(0, 30)
    few, many = (GramRidge(maps(), n, random_state=3).fit(X, y) for n in (2, 5))
    for one, other in zip(few.maps_, many.maps_, strict=False):
        np.testing.assert_array_equal(one.transform(X), other.transform(X))
    for i, one in enumerate(many.maps_):
        for other in many.maps_[i + 1 :]:
            assert np.abs(one.transform(X) - other.transform(X)).max() > 0.1
    other_seed = GramRidge(maps(), 2, random_state=4).fit(X, y)
    assert np.abs(few.maps_[0].transform(X) - other_seed.maps_[0].transform(X)).max() > 0.1


def test_the_mean_over_draws_is_an_estimate_of_so_many_features():
    """Var K̂ = (1 − k²)²/(m D) for random Fourier features; shared draws would give D times that.

    200 seeds: a sample variance is off by a factor of 2 with probability below 1e-6 (relative deviation 0.1).
    """
    X = np.array([[0.0, 0.0], [0.7, 0.4]])
    m, n_draws = 16, 5
    k = gaussian(X, lengthscale=1.0)[0, 1]
    features = RandomFourierFeatures(n_components=m, lengthscale=1.0)
    estimates = np.array([gram_matrix(features, X, n_draws=n_draws, random_state=s)[0, 1] for s in range(200)])
    variance = (1 - k**2) ** 2 / (m * n_draws)
    assert 0.5 < estimates.var() / variance < 2
    assert abs(estimates.mean() - k) < 6 * (variance / 200) ** 0.5
    shared = [gram_matrix(features, X, random_state=s)[0, 1] for s in range(200)]  # what equal draws would give
    assert np.var(shared) / variance > 2.5


def test_other_libraries_maps_and_maps_within_maps():
    X, y = rows(0, 30)
    for features in (
        RBFSampler(n_components=10),
        FeatureUnion([("a", RBFSampler(n_components=6)), ("b", RandomFourierFeatures(n_components=4))]),
    ):
        model = GramRidge(features, 3, alphas=0.1, random_state=0).fit(X, y)
        Z = [m.transform(X) for m in model.maps_]
        assert np.abs(Z[0] - Z[1]).max() > 0.1
        coef, constant = ridge(side_by_side(Z), y, np.ones(30), 0.1)
        np.testing.assert_allclose(model.predict(X), (side_by_side(Z) @ coef + constant)[:, 0], rtol=1e-8)
    first, second = (dict(m.transformer_list) for m in model.maps_[:2])
    assert len({first["a"].random_state, first["b"].random_state, second["a"].random_state}) == 3


class Counting(TransformerMixin, BaseEstimator):
    """Scales rows, and counts what is asked of it."""

    calls = 0

    def fit(self, X, y=None):  # noqa: ARG002
        type(self).calls += 1
        self.scale_ = np.abs(X).max()
        return self

    def transform(self, X):
        return X / self.scale_


def test_steps_before_the_map_are_fitted_once():
    X, y = rows(0, 30)
    Counting.calls = 0
    inner = Pipeline([("count", Counting()), ("map", maps())])
    model = GramRidge(Pipeline([("scale", StandardScaler()), ("inner", inner)]), 3, alphas=0.1, random_state=0)
    model.fit(X, y)
    assert Counting.calls == 1
    scaled = StandardScaler().fit_transform(X)
    scaled /= np.abs(scaled).max()
    Z = side_by_side([m.transform(scaled) for m in model.maps_])
    coef, constant = ridge(Z, y, np.ones(30), 0.1)
    np.testing.assert_allclose(model.predict(X), (Z @ coef + constant)[:, 0], rtol=1e-8)
    assert not hasattr(inner[0], "scale_")  # what was given stays as it was
    np.testing.assert_allclose(model.preprocessor_.transform(X), scaled, rtol=1e-12)


def test_features_that_are_not_random_have_one_draw():
    X, y = rows(0, 30)
    model = GramRidge(FunctionTransformer(), alphas=0.5, normalize=False).fit(X, y)
    np.testing.assert_allclose(model.predict(X), Ridge(alpha=0.5).fit(X, y).predict(X), rtol=1e-8)
    frozen = FrozenEstimator(maps(random_state=0).fit(X))
    assert GramRidge(frozen).fit(X, y).maps_[0] is not None
    for features in (FunctionTransformer(), frozen, make_pipeline(maps(), StandardScaler())):
        with pytest.raises(ValueError, match=r"must be 1 if the last step of 'features' has no 'random_state'. Got 2"):
            GramRidge(features, 2).fit(X, y)
        with pytest.raises(ValueError, match="'n_draws' parameter of gram_matrix must be 1 if"):
            gram_matrix(features, X, n_draws=2)


# Adding draws.


@pytest.mark.parametrize(
    ("solver", "numbers"), [("dual", (1, 3, 4)), ("primal", (2, 5)), ("auto", (2, 3, 8)), ("auto", (1, 2))]
)
def test_warm_start_equals_a_fit_from_the_start(solver, numbers):
    X, y = rows(0, 40)
    parameters = {"solver": solver, "random_state": 0, "keep_gram": True}
    warm = GramRidge(maps(), warm_start=True, **parameters)
    for n_draws in numbers:
        warm.set_params(n_draws=n_draws).fit(X, y)
        cold = GramRidge(maps(), n_draws, **parameters).fit(X, y)
        assert warm.n_draws_ == n_draws
        np.testing.assert_array_equal(warm.gram_, cold.gram_)
        np.testing.assert_array_equal(warm.errors_, cold.errors_)
        np.testing.assert_array_equal(warm.coef_, cold.coef_)
        np.testing.assert_array_equal(warm.predict(X), cold.predict(X))


@pytest.mark.parametrize("hidden_layers", [0, 1])
def test_predictions_of_new_rows_go_on_with_warm_start(hidden_layers, monkeypatch):
    X, y = rows(0, 60)
    new = X[:20] + 0.1
    parameters = {"hidden_layers": hidden_layers, "solver": "dual", "random_state": 0}
    warm = GramRidge(maps(), 3, warm_start=True, **parameters)
    warm.fit_predict(X, y, new)
    drawn = []
    draw = Draws.draw
    monkeypatch.setattr(Draws, "draw", lambda self, number, rows: drawn.append(number) or draw(self, number, rows))
    predictions = warm.set_params(n_draws=7).fit_predict(X, y, new)
    assert drawn == [3, 4, 5, 6]
    np.testing.assert_array_equal(predictions, GramRidge(maps(), 7, **parameters).fit_predict(X, y, new))
    drawn.clear()
    predictions = warm.fit_predict(X, y, new + 1)  # other rows: from the start
    assert drawn == list(range(7))
    np.testing.assert_array_equal(predictions, GramRidge(maps(), 7, **parameters).fit_predict(X, y, new + 1))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("hidden_layers", [1, 3])
@pytest.mark.parametrize("torch_rows", [False, True])
def test_layers_on_top_are_exact(center, hidden_layers, torch_rows):
    X, y = rows(0, 80)
    X, new, y = X[:60], X[60:], y[:60]
    alpha = 0.01
    model = GramRidge(
        maps(), 5, alphas=alpha, validation_fraction=None, center=center, hidden_layers=hidden_layers, random_state=0
    )
    K, cross = (gram_matrix(maps(), X, Y, n_draws=5, random_state=0) for Y in (X, new))
    for _ in range(hidden_layers):
        K, cross = (arc_cosine(np.clip(A, -1, 1), 1) for A in (K, cross))
    n = len(X)
    system = np.block([[K + alpha * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    if center:
        solved = np.linalg.solve(system, np.append(y, 0))
    else:
        solved = np.append(np.linalg.solve(K + alpha * np.eye(n), y), 0)
    if torch_rows:
        torch = pytest.importorskip("torch")
        X, new = torch.from_numpy(X), torch.from_numpy(new)
    predictions = as_numpy(model.fit_predict(X, y, new))
    np.testing.assert_allclose(predictions, cross.T @ solved[:n] + solved[n], rtol=1e-9, atol=1e-9)


def test_warm_start_computes_only_what_is_new(monkeypatch):
    X, y = rows(0, 20)
    fits = []
    original = Rectified.fit
    monkeypatch.setattr(Rectified, "fit", lambda self, *a: fits.append(self) or original(self, *a))
    model = GramRidge(maps(), 2, warm_start=True).fit(X, y)  # without a seed the first one stays
    assert len(fits) == 2
    before = [m.transform(X) for m in model.maps_]
    model.set_params(n_draws=3).fit(X, -y)
    assert len(fits) == 3
    for one, other in zip(before, model.maps_, strict=False):
        np.testing.assert_array_equal(one, other.transform(X))
    opposite = model.predict(X)
    model.fit(X, y)
    assert len(fits) == 3
    np.testing.assert_allclose(model.predict(X), -opposite, rtol=1e-9)


def test_weights_of_draws_that_were_not_kept():
    X, y = rows(0, 30)
    model = GramRidge(maps(), 4, warm_start=True, keep_coef=False, random_state=0).fit(X, y)
    assert model.maps_ == []
    model.set_params(keep_coef=True).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), GramRidge(maps(), 4, random_state=0).fit(X, y).predict(X))


def test_warm_starts_that_cannot_be():
    X, y = rows(0, 30)
    model = GramRidge(maps(), 4, warm_start=True, random_state=0).fit(X, y)
    expected = model.predict(X)
    for parameters, data, text in (
        ({"n_draws": 3}, X, r"'n_draws' parameter of GramRidge must be an int ≥ 4, .* Got 3 instead\. Set warm_start="),
        ({}, X[:, :4], r"'X' parameter of GramRidge must be of shape \(30, 5\), as before"),
        ({"normalize": False}, X, "must stay as they are"),
        ({"center": False}, X, "must stay as they are"),
        ({"solver": "primal"}, X, "must stay as they are"),
        ({"gram_dtype": "float32"}, X, "must stay as they are"),
        ({"product_dtype": "float32"}, X, "must stay as they are"),
    ):
        before = model.get_params(deep=False)
        with pytest.raises(ValueError, match=text):
            model.set_params(**parameters).fit(data, y)
        model.set_params(**before)
        np.testing.assert_array_equal(model.predict(X), expected)
    model.set_params(warm_start=False, n_draws=2).fit(X, y)
    assert model.n_draws_ == 2


def test_a_warm_start_that_fails_leaves_the_model_as_it_was(monkeypatch):
    X, y = rows(0, 20)
    model = GramRidge(maps(), 2, warm_start=True, keep_gram=True, random_state=0).fit(X, y)
    expected = model.predict(X)
    original, calls = Rectified.fit, []

    def fail(self, *arguments):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rectified, "fit", fail)
        with pytest.raises(KeyboardInterrupt):
            model.set_params(n_draws=5).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), expected)
    assert model.n_draws_ == 2
    assert not hasattr(model, "gram_")  # half a sum
    model.fit(X, y)  # from the start
    cold = GramRidge(maps(), 5, keep_gram=True, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), cold.predict(X))
    np.testing.assert_array_equal(model.gram_, cold.gram_)


# One pass.


@SOLVERS
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("k", [None, 2])
def test_fit_predict_equals_fit_and_predict(solver, center, k):
    X, Y = rows(0, 40, k=k)
    new = rows(1, 9)[0]
    model = GramRidge(
        make_pipeline(StandardScaler(), maps()), 3, solver=solver, center=center, batch_size=4, random_state=0
    )
    expected = clone(model).fit(X, Y)
    predictions = model.fit_predict(X, Y, new)
    assert predictions.shape == ((9,) if k is None else (9, 2))
    np.testing.assert_allclose(predictions, expected.predict(new), rtol=1e-8)
    np.testing.assert_allclose(model.fit_predict(X, Y), expected.predict(X), rtol=1e-8)
    np.testing.assert_array_equal(model.errors_, expected.errors_)
    assert model.alpha_ == expected.alpha_
    if solver == "primal":
        np.testing.assert_allclose(model.predict(new), predictions, rtol=1e-10)
    else:
        with pytest.raises(ValueError, match="no weights to predict with: it was fitted by fit_predict"):
            model.predict(new)
        assert not hasattr(model, "coef_")
        assert model.maps_ == []
    without = clone(model).set_params(keep_coef=False)
    np.testing.assert_array_equal(without.fit_predict(X, Y, new), predictions)
    assert without.maps_ == []


@pytest.mark.parametrize("n_classes", [2, 3])
@SOLVERS
def test_fit_predict_of_classes(n_classes, solver):
    X, y = labelled(0, 60, n_classes)
    new = labelled(0, 33, n_classes)[0]
    model = GramRidgeClassifier(maps(), 3, solver=solver, random_state=0)
    expected = clone(model).fit(X, y)
    np.testing.assert_array_equal(model.fit_predict(X, y, new), expected.predict(new))
    classes, scores = model.fit_predict(X, y, new, return_scores=True)
    np.testing.assert_array_equal(classes, expected.predict(new))
    np.testing.assert_allclose(scores, expected.decision_function(new), atol=1e-9)
    assert scores.shape == ((33,) if n_classes == 2 else (33, 3))
    assert model.temperature_ == expected.temperature_
    with pytest.raises(TypeError, match=r"'return_scores' .* GramRidgeClassifier\.fit_predict must be True or False"):
        model.fit_predict(X, y, new, return_scores=1)


def test_fit_predict_with_rows_of_another_kind():
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    new = rows(1, 9)[0]
    expected = GramRidge(maps(), 4, alphas=0.1, random_state=0).fit(X, y).predict(new)
    model = GramRidge(maps(), 4, alphas=0.1, random_state=0)
    single = model.fit_predict(X, y, new.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=1e-4)
    tensor = model.fit_predict(torch.from_numpy(X), y, torch.from_numpy(new).float())
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-4)
    with pytest.raises(ValueError, match="X has 4 features, but GramRidge is expecting 5 features as input"):
        model.fit_predict(X, y, new[:, :4])


# The matrix alone.


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("gram_dtype", ["float64", "float32"])
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_gram_matrices(normalize, center, gram_dtype, batch_size):
    X, y = rows(0, 25)
    new = rows(1, 6)[0]
    X[3] = 0.0  # a row without features
    options = {"normalize": normalize, "center": center, "gram_dtype": gram_dtype, "batch_size": batch_size}
    features = maps(bias=0.0)
    K = gram_matrix(features, X, n_draws=3, random_state=2, **options)
    model = GramRidge(features, 3, keep_gram=True, random_state=2, **options).fit(X, y)
    Z, Z_new = ([m.transform(some) for m in model.maps_] for some in (X, new))
    expected = kernel(Z, normalize=normalize, center=center)
    cross = kernel(Z, Z_new, normalize=normalize, center=center)
    loose = {"rtol": 0, "atol": (1e-12 if gram_dtype == "float64" else 1e-6) * np.abs(cross).max()}
    np.testing.assert_allclose(K, expected, **loose | {"atol": loose["atol"] * max(np.abs(expected).max(), 1)})
    np.testing.assert_allclose(model.gram_, K, rtol=1e-6 if gram_dtype == "float32" else 1e-12)
    np.testing.assert_allclose(gram_matrix(features, X, new, n_draws=3, random_state=2, **options), cross, **loose)
    assert K.dtype == gram_dtype
    np.testing.assert_array_equal(K, K.T)
    if normalize and not center:
        np.testing.assert_allclose(np.delete(np.diag(K), 3), 1.0, rtol=1e-6)
        assert (K[3] == 0).all()
    if center:
        np.testing.assert_allclose(K.sum(axis=0), 0.0, atol=1e-4 * np.abs(K).max())


def test_gram_matrices_of_more_rows_than_a_panel():
    """The lower triangle is computed in panels, the upper one copied from it."""
    X = np.random.default_rng(0).standard_normal((1100, 3))
    features = RandomFourierFeatures(n_components=8, lengthscale=1.0)
    K = gram_matrix(features, X, n_draws=2, normalize=False, random_state=0)
    Z = [features.set_params(random_state=s).fit_transform(X) for s in seeds(2)]
    np.testing.assert_allclose(K, kernel(Z, normalize=False, center=False), atol=1e-13)
    for n in (1, 255, 256, 257, 2048, 2049, 5000):
        covered = [row for rows in panels(n) for row in range(n)[rows]]
        assert covered == list(range(n))
    assert len(panels(4096)) == 8


def seeds(n_draws):
    """Seeds of the draws of random_state=0."""
    X, y = rows(0, 10, d=3)
    features = RandomFourierFeatures(n_components=8, lengthscale=1.0)
    return [m.random_state for m in GramRidge(features, n_draws, alphas=1.0, random_state=0).fit(X, y).maps_]


def test_memory_is_that_of_two_matrices_and_a_draw():
    n = 1200
    X, y = rows(0, n)
    GramRidge(maps(16), 2, solver="dual", alphas=[0.1, 1.0]).fit(X[:50], y[:50])  # compile first
    tracemalloc.start()
    try:
        GramRidge(maps(16), 40, solver="dual", alphas=[0.1, 1.0], random_state=0).fit(X, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 8 * n**2


# Libraries and precisions.


def test_rows_of_any_library_and_precision():
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    expected = GramRidge(maps(64), 2, alphas=[0.01, 0.1, 1.0], random_state=0, keep_gram=True).fit(X, y)
    for cast, dtype, loose in (
        (torch.from_numpy, torch.float64, 1e-8),
        (lambda x: torch.from_numpy(x).float(), torch.float32, 1e-3),
        (lambda x: x.astype(np.float32), np.float32, 1e-3),
        (lambda x: torch.from_numpy(x).requires_grad_(), torch.float64, 1e-8),
        (lambda x: x.tolist(), np.float64, 1e-8),
    ):
        model = clone(expected).fit(cast(X), y)
        assert model.alpha_ == expected.alpha_
        predictions = model.predict(cast(X))
        assert getattr(predictions, "dtype", None) == dtype
        np.testing.assert_allclose(as_numpy(predictions), expected.predict(X), rtol=loose)
        np.testing.assert_allclose(as_numpy(model.gram_), expected.gram_, atol=1e-2 * loose)
        np.testing.assert_allclose(as_numpy(model.predict(X)), expected.predict(X), rtol=loose)
        with_tensors = clone(expected).fit(cast(X), torch.from_numpy(y))
        np.testing.assert_array_equal(with_tensors.coef_, model.coef_)
    assert isinstance(clone(expected).fit(torch.from_numpy(X), y).gram_, torch.Tensor)


@SOLVERS
def test_torch_equals_numpy(solver):
    torch = pytest.importorskip("torch")
    X, y = labelled(0, 60)
    one = GramRidgeClassifier(maps(), 3, solver=solver, random_state=0).fit(X, y)
    other = GramRidgeClassifier(maps(), 3, solver=solver, random_state=0).fit(torch.from_numpy(X), torch.from_numpy(y))
    tensor = torch.from_numpy(X)
    assert other.predict(tensor).tolist() == one.predict(X).tolist()
    np.testing.assert_allclose(as_numpy(other.predict_proba(tensor)), one.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(as_numpy(other.decision_function(tensor)), one.decision_function(X), atol=1e-7)
    assert isinstance(other._coef[0], torch.Tensor)


@SOLVERS
@pytest.mark.parametrize("center", [True, False])
def test_products_in_bfloat16_are_of_features_rounded_after_they_are_centred(solver, center):
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    new = rows(1, 8)[0]
    parameters = {"alphas": 0.1, "center": center, "solver": solver, "random_state": 0, "keep_gram": True}
    model = GramRidge(maps(30), 2, product_dtype="bfloat16", **parameters).fit(torch.from_numpy(X).float(), y)

    def rounded(some):
        parts = []
        for m in model.maps_:
            Z, at = (
                side_by_side([m.transform(torch.from_numpy(rows_).float()).numpy()]).astype(np.float32)
                for rows_ in (X, some)
            )
            mean = Z.mean(axis=0, dtype=np.float64).astype(np.float32) if center else np.float32(0)
            parts.append(torch.from_numpy(at - mean).bfloat16().double().numpy())
        return np.hstack(parts) / 2**0.5

    Z, Z_new = rounded(X), rounded(new)
    # Now and then a number lies so near the middle of two that it is rounded the other way.
    np.testing.assert_allclose(as_numpy(model.gram_), Z @ Z.T, atol=3e-4)
    assert np.median(np.abs(as_numpy(model.gram_) - Z @ Z.T)) < 1e-6
    coef, constant = ridge(Z, y, np.ones(40), 0.1, intercept=center)
    expected = (Z_new @ coef + constant)[:, 0]
    tensor = torch.from_numpy(new).float()
    np.testing.assert_allclose(as_numpy(model.predict(tensor)), expected, rtol=5e-3)
    once = clone(model).fit_predict(torch.from_numpy(X).float(), y, tensor)
    np.testing.assert_allclose(as_numpy(once), as_numpy(model.predict(tensor)), rtol=1e-4)
    with pytest.raises(ValueError, match=r"'product_dtype' .* must be 'float32' or 'float64' for features in NumPy"):
        clone(model).fit(X, y)


def test_features_in_bfloat16_stay_so():
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    tensor = torch.from_numpy(X).bfloat16()
    model = GramRidge(maps(30), 2, alphas=0.1, random_state=0).fit(tensor, y)
    asked = GramRidge(maps(30), 2, alphas=0.1, product_dtype="bfloat16", random_state=0).fit(tensor, y)
    np.testing.assert_array_equal(model.coef_, asked.coef_)
    assert model.predict(tensor).dtype == torch.bfloat16
    wide = GramRidge(maps(30), 2, alphas=0.1, product_dtype="float32", random_state=0).fit(tensor, y)
    assert 1e-5 < np.abs(wide.coef_ - model.coef_).max() < 0.1


@pytest.mark.parametrize(("product_dtype", "loose"), [("float32", 1e-4), ("float64", 1e-9)])
@SOLVERS
def test_other_precisions_of_products(product_dtype, loose, solver):
    X, y = rows(0, 30)
    expected = GramRidge(maps(), 2, alphas=0.1, solver=solver, random_state=0).fit(X, y).predict(X)
    model = GramRidge(maps(), 2, alphas=0.1, solver=solver, product_dtype=product_dtype, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), expected, rtol=loose)
    if product_dtype == "float32":
        assert np.abs(model.predict(X) - expected).max() > 1e-12
    single = GramRidge(maps(), 2, alphas=0.1, solver=solver, product_dtype=product_dtype, random_state=0)
    np.testing.assert_allclose(single.fit(X.astype(np.float32), y).predict(X), expected, rtol=1e-3)


def test_other_dtypes_and_kinds_of_features():
    X, y = labelled(0, 40)
    whole = GramRidge(FunctionTransformer(lambda X: (10 * X).astype(np.int64)), alphas=1.0).fit(X, y)
    assert whole.predict(X).dtype == np.float64
    half = GramRidge(FunctionTransformer(lambda X: X.astype(np.float16)), alphas=1.0, normalize=False).fit(X, y)
    np.testing.assert_allclose(half.predict(X), Ridge(alpha=1.0).fit(X, y).predict(X), atol=0.01)
    import scipy.sparse as sp

    sparse = GramRidge(FunctionTransformer(sp.csr_matrix), alphas=1.0, normalize=False).fit(X, y)
    np.testing.assert_allclose(sparse.predict(X), Ridge(alpha=1.0).fit(X, y).predict(X), rtol=1e-8)
    rows_ = sp.csr_matrix(np.where(np.abs(X) > 1, X, 0))
    model = GramRidge(RandomFourierFeatures(n_components=16), 2, random_state=0).fit(rows_, y)
    np.testing.assert_allclose(model.predict(rows_), model.predict(rows_.toarray()), rtol=1e-9)


def test_norms_of_any_size():
    """Squares of such features overflow or vanish in float32."""
    X = np.array([[1e30, 2e30], [1e-30, -3e-30], [1.0, 1.0], [0.0, 0.0]], np.float32)
    K = gram_matrix(FunctionTransformer(), X)
    Z = side_by_side([X.astype(np.float64)])
    np.testing.assert_allclose(K, Z @ Z.T, atol=1e-6)
    with pytest.raises(ValueError, match="too large to be multiplied in their precision"):
        GramRidge(FunctionTransformer(), normalize=False, center=False, solver="dual").fit(X, np.arange(4.0))


# Images.


def image_maps():
    flat = FunctionTransformer(lambda X: X.reshape(len(X), -1) / 255.0)
    return make_pipeline(flat, RandomFourierFeatures(n_components=32))


@pytest.mark.parametrize("shape", [(4, 4, 3), (1, 1, 1), (2, 3, 1)])
def test_images(shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (30, *shape), dtype=np.uint8)
    X[0], X[1] = 0, 7  # no light, and the same everywhere
    y = X.reshape(30, -1)[:, 0] > 100
    model = GramRidgeClassifier(image_maps(), 3, random_state=0).fit(X, y)
    assert model.n_features_in_ == np.prod(shape)
    proba = model.predict_proba(X)
    assert proba.dtype == np.float64
    assert np.isfinite(proba).all()
    tensors = GramRidgeClassifier(image_maps(), 3, random_state=0).fit(torch.from_numpy(X), y)
    np.testing.assert_allclose(as_numpy(tensors.predict_proba(torch.from_numpy(X))), proba, atol=1e-3)
    assert model.predict(X[:1]).shape == (1,)
    for batch_size in (1, 7, 100):
        other = GramRidgeClassifier(image_maps(), 3, batch_size=batch_size, random_state=0).fit(X, y)
        np.testing.assert_allclose(other.predict_proba(X), proba, atol=1e-6)


@SOLVERS
@pytest.mark.parametrize("center", [True, False])
def test_one_row_and_rows_that_are_all_the_same(solver, center):
    X = np.ones((1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = GramRidge(maps(), 2, solver=solver, center=center, random_state=0).fit(X, [2.5])
    if center:
        np.testing.assert_allclose(model.predict(X), 2.5)
    assert model.alpha_ == model.alphas_[-1]
    X = np.ones((12, 3))
    model = GramRidge(maps(), 2, solver=solver, random_state=0).fit(X, np.arange(12.0))
    np.testing.assert_allclose(model.predict(X), 5.5)
    X = np.zeros((12, 3))
    model = GramRidge(maps(bias=0.0), 2, solver=solver, random_state=0).fit(X, np.arange(12.0))
    np.testing.assert_allclose(model.predict(X), 5.5)
    assert np.isfinite(model.predict(np.ones((2, 3)))).all()


# Classification.


LABELS = [np.array(["b", "a", "c"]), np.array([3, -1, 7]), np.array([2.0, 1.0, 0.0]), np.array([True, False])]


@pytest.mark.parametrize("labels", LABELS, ids=str)
@SOLVERS
def test_classification_is_ridge_regression_of_indicators(labels, solver):
    X, numbers = labelled(0, 60, len(labels), distance=0.5)
    y = labels[numbers]
    parameters = {"alphas": 0.2, "solver": solver, "validation_fraction": 0.5, "random_state": 1}
    model = GramRidgeClassifier(maps(), 3, **parameters).fit(X, y)
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.classes_.dtype == y.dtype
    Z = side_by_side(draws_of(model, X))
    Y = (y[:, None] == model.classes_).astype(float) - 1 / len(labels)
    coef, constant = dual_ridge(Z, Y, np.ones(60), 0.2)
    scores = Z @ coef + constant
    expected = scores if len(labels) > 2 else scores[:, 1] - scores[:, 0]
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-8)
    np.testing.assert_array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])
    assert model.coef_.shape == (len(labels), 36)
    np.testing.assert_allclose(model.coef_, coef.T / 3**0.5, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, Y.mean(axis=0), atol=1e-8)
    # Probabilities: softmax of the scores, at the temperature with the smallest loss on the rows held back.
    held = np.sort(generator(seed_sequence(1), "validation").permutation(60)[:30])
    left = left_out(Z, Y, np.ones(60), 0.2, [held])
    temperatures = model.temperature_ * np.array([1.0, 0.9, 1.1])
    losses = [log_loss(y[held], softmax(left / t), labels=model.classes_) for t in temperatures]
    assert model.errors_[0] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0] <= min(losses) * (1 + 1e-6)
    np.testing.assert_allclose(model.predict_proba(X), softmax(scores / model.temperature_), atol=1e-7)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_classes_are_learned():
    X, y = labelled(0, 300)
    new, truth = labelled(0, 600)
    new, truth = new[300:], truth[300:]
    model = GramRidgeClassifier(maps(64), 8, random_state=0).fit(X, y)
    assert model.score(new, truth) > 0.85
    assert log_loss(truth, model.predict_proba(new)) < 0.45
    assert np.isfinite(model.errors_).sum() > 3


def test_probabilities_need_rows_held_back():
    X, y = labelled(0, 30)
    model = GramRidgeClassifier(maps(), alphas=1.0, validation_fraction=None).fit(X, y)
    assert model.predict(X).shape == (30,)
    assert model.temperature_ is None
    for method in ("predict_proba", "predict_log_proba"):
        with pytest.raises(ValueError, match=r"has no probabilities: .* Fit it with validation_fraction=0.1"):
            getattr(model, method)(X)


def test_bad_labels():
    X, y = labelled(0, 30)
    with pytest.raises(ValueError, match=r"needs rows of at least two classes. Got one class only: 2"):
        GramRidgeClassifier(maps()).fit(X, np.full(30, 2))
    with pytest.raises(TypeError, match="'y' parameter of GramRidgeClassifier must be all text or all numbers"):
        GramRidgeClassifier(maps()).fit(X, np.array(["a", 1] * 15, dtype=object))
    with pytest.raises(ValueError, match="Unknown label type"):
        GramRidgeClassifier(maps()).fit(X, np.linspace(0, 1, 30))
    with pytest.raises(ValueError, match="y should be a 1d array"):
        GramRidgeClassifier(maps()).fit(X, np.stack([y, y], axis=1))


# Linear algebra.


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_matrices_are_factorized_in_place(library):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, 30))
    A = A @ A.T
    expected = np.linalg.cholesky(A + 0.5 * np.eye(30))
    A = np.tril(A) + np.triu(np.full((30, 30), 7.0), 1)  # only the lower triangle is read
    given = A.copy() if library == "numpy" else pytest.importorskip("torch").from_numpy(A.copy())
    factor = factorize(given, 0.5)
    assert factor is given
    np.testing.assert_allclose(np.tril(as_numpy(factor)), expected, rtol=1e-9)
    given[3, 3] = -1e6
    assert factorize(given, 0.0) is None


# Estimators.


ESTIMATORS = [
    GramRidge(RandomFourierFeatures(n_components=32), 2, random_state=0),
    GramRidge(random_state=0),
    GramRidgeClassifier(RandomFourierFeatures(n_components=32), 2, random_state=0),
    GramRidgeClassifier(random_state=0),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_many_estimator_checks_ran(estimator):
    names = {check.func.__name__ for _, check in estimator_checks_generator(estimator)}
    assert len(names) >= 45
    kind = "check_classifiers_train" if isinstance(estimator, GramRidgeClassifier) else "check_regressors_train"
    assert kind in names


@BOTH
def test_clones_and_pickles(law):
    X, y = labelled(0, 40)
    model = law(maps(), 3, warm_start=True, random_state=0).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    again.set_params(n_draws=5).fit(X, y)
    cold = law(maps(), 5, random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), cold.predict(X))
    assert not hasattr(clone(model), "alpha_")
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), model.predict(X))


@BOTH
def test_random_states(law):
    X, y = labelled(0, 40)
    for state in (7, np.random.default_rng(7), np.random.RandomState(7), np.random.SeedSequence(7), None):
        assert law(maps(), 2, random_state=state).fit(X, y).n_draws_ == 2
    one, other = (law(maps(), 2, random_state=7).fit(X, y).coef_ for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert np.abs(law(maps(), 2).fit(X, y).coef_[..., :3] - law(maps(), 2).fit(X, y).coef_[..., :3]).max() > 0


@BOTH
def test_unfitted_models(law):
    model = law()
    for name in ("coef_", "intercept_", "maps_", "preprocessor_", "gram_", "alpha_", "classes_"):
        assert not hasattr(model, name)
    with pytest.raises(NotFittedError):
        model.predict(np.ones((2, 3)))
    X, y = labelled(0, 40)
    assert not hasattr(law(maps()).fit(X, y), "gram_")
    assert not hasattr(law(maps(), warm_start=True).fit(X, y), "gram_")


@BOTH
def test_a_fit_that_fails_leaves_the_model_as_it_was(law):
    X, y = labelled(0, 40)
    model = law(maps(), 2, random_state=0).fit(X, y)
    before = dict(vars(model))
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(bad, y)
    with pytest.raises(ValueError, match="NaN"):
        model.fit_predict(X, y, bad)
    assert vars(model) == before


@BOTH
def test_nothing_given_is_written_to(law):
    X, y = labelled(0, 40)
    features = FunctionTransformer()
    before = X.copy(), y.copy()
    X.flags.writeable = y.flags.writeable = False
    for solver in ("dual", "primal"):
        law(features, normalize=False, solver=solver).fit(X, y).predict(X)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(before[0].copy())
    law(FunctionTransformer(lambda X: X), normalize=False).fit(tensor, y).predict(tensor)
    np.testing.assert_array_equal(tensor.numpy(), before[0])


def test_data_frames():
    pd = pytest.importorskip("pandas")
    X, y = rows(0, 30)
    frame = pd.DataFrame(X, columns=list("abcde"))
    fourier = RandomFourierFeatures(n_components=16)
    for features in (fourier, make_pipeline(StandardScaler().set_output(transform="pandas"), fourier)):
        model = GramRidge(features, 2, random_state=0).fit(frame, pd.Series(y))
        assert model.feature_names_in_.tolist() == list("abcde")
        expected = GramRidge(features, 2, random_state=0).fit(X, y).predict(X)
        np.testing.assert_allclose(model.predict(frame), expected, rtol=1e-9)
        assert model.predict(frame.astype(np.float32)).dtype == np.float32
    model.fit(X, y)
    assert not hasattr(model, "feature_names_in_")


def test_progress_bars(capsys):
    X, y = rows(0, 30)
    GramRidge(maps(), 4, progress=True).fit(X, y)
    shown = capsys.readouterr().err
    assert "GramRidge:" in shown
    assert "GramRidge: weights" in shown
    assert "4/4" in shown
    gram_matrix(maps(), X, n_draws=2, progress=True)
    assert "gram_matrix: 100%" in capsys.readouterr().err
    GramRidge(maps(), 4).fit(X, y)
    assert not capsys.readouterr().err


# Bad input.


BAD = [
    ("features", "ntk", TypeError, "a transformer with fit and transform"),
    ("features", NTKFeatures, TypeError, "a transformer with fit and transform"),
    ("features", Pipeline([("a", StandardScaler()), ("b", "passthrough")]), TypeError, "a transformer with fit"),
    ("n_draws", 0, ValueError, "an int ≥ 1. Got 0"),
    ("n_draws", 2.0, TypeError, "an int ≥ 1. Got 2.0"),
    ("alphas", -1.0, ValueError, "None, a finite number ≥ 0, or a non-empty array"),
    ("alphas", [], ValueError, "None, a finite number ≥ 0, or a non-empty array"),
    ("alphas", "small", TypeError, "None, a finite number ≥ 0, or a non-empty array"),
    ("normalize", 1, TypeError, "True or False. Got 1"),
    ("center", "yes", TypeError, "True or False. Got 'yes'"),
    ("hidden_layers", -1, ValueError, "an int ≥ 0. Got -1"),
    ("hidden_layers", 1.5, TypeError, "an int ≥ 0. Got 1.5"),
    ("validation_fraction", 0.0, ValueError, "None or a number between 0 and 1. Got 0.0"),
    ("validation_fraction", 1, ValueError, "None or a number between 0 and 1. Got 1"),
    ("validation_fraction", np.nan, ValueError, "None or a number between 0 and 1. Got nan"),
    ("validation_fraction", "some", TypeError, "None or a number between 0 and 1. Got 'some'"),
    ("solver", "svd", ValueError, "one of 'auto', 'dual', 'primal'. Got 'svd'"),
    ("solver", None, TypeError, "one of 'auto', 'dual', 'primal'. Got None"),
    ("gram_dtype", "bfloat16", ValueError, "one of 'float32', 'float64'. Got 'bfloat16'"),
    ("gram_dtype", 32, TypeError, "one of 'float32', 'float64'. Got"),
    ("product_dtype", "float16", ValueError, "one of 'bfloat16', 'float32', 'float64'. Got 'float16'"),
    ("product_dtype", 32, TypeError, "one of 'bfloat16', 'float32', 'float64'. Got"),
    ("keep_coef", None, TypeError, "True or False. Got None"),
    ("keep_gram", 0, TypeError, "True or False. Got 0"),
    ("warm_start", "no", TypeError, "True or False. Got 'no'"),
    ("batch_size", 0, ValueError, "an int ≥ 1. Got 0"),
    ("batch_size", 1.5, TypeError, "an int ≥ 1. Got 1.5"),
    ("progress", 1, TypeError, "True or False. Got 1"),
    ("random_state", -1, ValueError, "None, an int ≥ 0"),
    ("random_state", "x", TypeError, "None, an int ≥ 0"),
]


@BOTH
@pytest.mark.parametrize(("name", "value", "error", "text"), BAD)
def test_bad_parameters(law, name, value, error, text):
    X, y = labelled(0, 20)
    text = re.escape(f"The '{name}' parameter of {law.__name__} must be {text}")
    with pytest.raises(error, match=text):
        law(**{"features": maps(), name: value}).fit(X, y)
    with pytest.raises(error, match=text):
        law(**{"features": maps(), name: value}).fit_predict(X, y, X)


def test_layers_on_top_go_with_unit_features_and_fit_predict():
    X, y = np.ones((4, 2)), np.arange(4) % 2
    with pytest.raises(ValueError, match=r"'hidden_layers' .* must be 0 for fit: .* Got 2 instead. Call fit_predict."):
        GramRidge(maps(), hidden_layers=2).fit(X, y)
    with pytest.raises(ValueError, match=r"'normalize' .* must be True if there are hidden_layers. Got False"):
        GramRidge(maps(), hidden_layers=2, normalize=False).fit_predict(X, y)
    with pytest.raises(ValueError, match=r"'solver' .* must be 'auto' or 'dual' if there are hidden_layers. Got 'prim"):
        GramRidge(maps(), hidden_layers=2, solver="primal").fit_predict(X, y)


def test_layers_on_top_refuse_rows_of_zeros():
    X, y = rows(0, 30)
    X[3] = 0
    model = GramRidge(Rectified(bias=0.0), hidden_layers=1, random_state=0)
    with pytest.raises(
        ValueError, match=r"'X' .* must be free of rows whose features are all zero if there are hidden"
    ):
        model.fit_predict(X, y)
    model.set_params(hidden_layers=0).fit_predict(X, y)


def test_every_parameter_has_bad_values():
    for law in (GramRidge, GramRidgeClassifier):
        assert {name for name, *_ in BAD} == set(law().get_params(deep=False))


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [case for case in BAD if case[0] in ("n_draws", "normalize", "center", "gram_dtype", "product_dtype")]
    + [case for case in BAD if case[0] in ("features", "batch_size", "progress", "random_state")],
)
def test_bad_parameters_of_gram_matrix(name, value, error, text):
    X = np.ones((4, 2))
    text = re.escape(f"The '{name}' parameter of gram_matrix must be {text}")
    with pytest.raises(error, match=text):
        gram_matrix(**{"features": maps(), "X": X, name: value})


@BOTH
def test_several_alphas_need_validation(law):
    X, y = labelled(0, 20)
    for alphas in (None, [0.1, 1.0]):
        with pytest.raises(ValueError, match=r"'alphas' .* must be a single number if validation_fraction is None"):
            law(maps(), alphas=alphas, validation_fraction=None).fit(X, y)


@BOTH
def test_bad_rows(law):
    X, y = labelled(0, 20)
    dask = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match=r"must be rows in memory.* take Dask collections"):
        law(maps()).fit(dask.from_array(X), y)
    with pytest.raises(TypeError, match=r"'X_new' parameter of .*fit_predict must be rows in memory"):
        law(maps()).fit_predict(X, y, dask.from_array(X))
    for data, text in (
        (X[:0], "Found array with 0 sample"),
        (X[:5], "inconsistent numbers of samples"),
        (X[:, 0], "Expected 2D array"),
    ):
        with pytest.raises(ValueError, match=text):
            law(maps()).fit(data, y if len(data) else y[:0])
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        law(maps()).fit(X, None)
    model = law(maps()).fit(X, y)
    with pytest.raises(ValueError, match=rf"X has 3 features, but {law.__name__} is expecting 4 features"):
        model.predict(X[:, :3])
    with pytest.raises(ValueError, match=r"'X' .* free of NaN and infinity"):
        law(FunctionTransformer()).fit(np.where(X[3, 1] == X, np.inf, X), y)
    for function, text in (
        (lambda X: X[:, :0], "a transformer with at least one feature"),
        (lambda X: X[:, :, None], "a transformer with 2-D results"),
    ):
        with pytest.raises(ValueError, match=f"'features' parameter of {law.__name__} must be {text}"):
            law(FunctionTransformer(function)).fit(X, y)
