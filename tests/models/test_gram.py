"""GramRidge, GramRidgeClassifier and gram_matrix compared with explicit concatenated features.

test_contract.py covers what all learners share: kinds of rows, targets, files, failed fits.
"""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.conftest import as_numpy, peak_memory
from tests.reference.gram import kernel, side_by_side
from tests.reference.ridge import dual_ridge, left_out, mean_square, noise_variance, ridge
from threadpoolctl import threadpool_limits

from ntkit import NTKFeatures, RandomFourierFeatures
from ntkit._random import keyed, row_uniforms, seed_sequence
from ntkit.kernels import arc_cosine, gaussian
from ntkit.models import GramRidge, GramRidgeClassifier, _problems, gram_matrix
from ntkit.models._calibrate import fit_calibration, left_out_log_loss, log_probabilities, logits
from ntkit.models._draws import MapDraws
from ntkit.models._gram import with_relu_layers
from ntkit.models._linalg import panels
from ntkit.models.gram import Gram, Held

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


def rows(seed, n, d=5, k=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 1, (n, 1))
    Y = np.tanh(X @ rng.standard_normal((d, k or 1))) + 0.1 * rng.standard_normal((n, k or 1)) + 2.0
    return X, Y if k else Y[:, 0]


def labelled(seed, n, n_classes=3, d=4, distance=2.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return rng.standard_normal((n_classes, d))[y] * distance + rng.standard_normal((n, d)), y


def weights(seed, n):
    """Weights below, at and above 1, and some zeros."""
    return np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 2.0, 3.5], n)


def model(n_draws=2, features=None, law=GramRidge, **parameters):
    """Return a model of features with a mean; `random_state` defaults to 0."""
    features = Rectified() if features is None else features
    return law(features, n_draws=n_draws, **{"random_state": 0, **parameters})


def all_features(fitted, X, **options):
    """Features of all draws side by side, from maps with the seeds of the fitted ones."""
    return side_by_side([clone(m).fit(X).transform(X) for m in fitted.maps_], **options)


def of_weights(Z, Y, weight, alpha, new, **options):
    """Predictions by both forms of the reference, which must agree."""
    (coef, constant), (dual, other) = (way(Z, Y, weight, alpha, **options) for way in (ridge, dual_ridge))
    np.testing.assert_allclose(new @ coef + constant, new @ dual + other, rtol=1e-6)
    return coef, constant, new @ coef + constant


# Against ridge regression on all features.


@pytest.mark.parametrize(
    ("solver", "normalize", "intercept", "k", "n_draws", "weighted"),
    [  # all pairs
        ("dual", True, True, None, 1, False),
        ("dual", False, True, 3, 3, True),
        ("dual", True, False, 1, 3, False),
        ("dual", False, False, None, 1, True),
        ("primal", False, True, 1, 1, False),
        ("primal", True, True, None, 3, True),
        ("primal", False, False, None, 3, False),
        ("primal", True, False, 3, 1, True),
        ("auto", True, True, 1, 1, True),
        ("auto", False, False, 3, 3, False),
        ("auto", True, False, None, 3, True),
    ],
)
def test_regression_is_ridge_regression_on_all_features(solver, normalize, intercept, k, n_draws, weighted):
    """The constant is not penalized: targets far from zero make no difference."""
    X, Y = rows(0, 30, k=k)
    Y, new = Y + 50.0, rows(1, 7)[0]
    weight = weights(2, 30) if weighted else None
    options = {"normalize": normalize, "fit_intercept": intercept, "solver": solver, "keep_gram": True}
    fitted = model(n_draws, alphas=0.2, **options).fit(X, Y, weight)
    assert len(fitted.maps_) == fitted.n_draws_ == n_draws
    w = np.ones(30) if weight is None else weight
    Z = side_by_side([m.transform(X) for m in fitted.maps_], normalize=normalize)
    Z_new = side_by_side([m.transform(new) for m in fitted.maps_], normalize=normalize)
    coef, constant, expected = of_weights(Z, Y, w, 0.2, Z_new, intercept=intercept)
    predictions = fitted.predict(new)
    assert predictions.shape == ((7,) if k is None else (7, k))
    np.testing.assert_allclose(predictions, expected if k else expected[:, 0], rtol=1e-8)
    theirs = Ridge(alpha=0.2, fit_intercept=intercept).fit(Z, Y, weight)
    np.testing.assert_allclose(predictions, theirs.predict(Z_new).reshape(predictions.shape), rtol=1e-8)
    # The weights are for features that are not divided by √D.
    scaled = coef.T / n_draws**0.5
    np.testing.assert_allclose(fitted.coef_, scaled if k else scaled[0], rtol=1e-6, atol=1e-7)
    # The constant is for features that are centred on all rows.
    constant = constant + Z.mean(axis=0) @ coef if intercept else constant
    np.testing.assert_allclose(fitted.intercept_, constant if k else constant[0], rtol=1e-9, atol=1e-9)
    noise = noise_variance(Z, Y, w, 0.2, intercept=intercept)
    np.testing.assert_allclose(fitted.noise_variance_, noise if k else noise[0], rtol=1e-6)
    draws = [m.transform(X) for m in fitted.maps_]
    np.testing.assert_allclose(fitted.gram_, kernel(draws, normalize=normalize, center=intercept), atol=1e-10)
    assert fitted.alpha_ == 0.2
    assert np.isnan(fitted.errors_).all()  # one α needs none
    assert fitted.preprocessor_ is None
    with pytest.raises(ValueError, match="GramRidge has no posterior and so no standard deviations"):
        fitted.predict(X, return_std=True)


@pytest.mark.parametrize(("n_draws", "kind"), [(3, Held), (4, Held), (5, Gram)])
def test_the_smaller_problem_is_solved(n_draws, kind):
    X, y = rows(0, 40)
    fitted = model(n_draws, Rectified(10), warm_start=True).fit(X, y)
    assert type(fitted._sums) is kind


@pytest.mark.parametrize(("n_draws", "intercept", "weighted"), [(2, True, True), (2, False, False), (5, False, True)])
def test_solvers_agree(n_draws, intercept, weighted):
    X, Y = rows(0, 50, k=2)
    weight = weights(1, 50) if weighted else None
    one, other = (
        model(n_draws, solver=solver, fit_intercept=intercept).fit(X, Y, weight) for solver in ("dual", "primal")
    )
    # Both choose the same α by the same errors. Without a penalty to speak of, rounding errors count.
    np.testing.assert_allclose(one.alphas_, other.alphas_, rtol=1e-9)
    assert one.alpha_ == pytest.approx(other.alpha_, rel=1e-9)
    np.testing.assert_allclose(one.errors_[5:], other.errors_[5:], rtol=1e-5)
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-6)


def sampled(n, size, weight=1.0):
    """Return the indices of the leave-one-out rows for random_state=0; rows of weight 0 are never among them."""
    keys = row_uniforms(keyed(seed_sequence(0), "sample"), 0, n)[:, 0]
    return np.argsort(np.where(np.broadcast_to(weight, n) > 0, keys, np.inf))[:size]


def left_out_errors(fitted, X, Y, weight, alpha, *, selection, n_selection, intercept):
    """Mean loss by a fit without each row, or without one unit of its weight, or without all rows held out."""
    used = int((weight > 0).sum())
    chosen = sampled(len(X), min(n_selection, used if selection == "loo" else used // 5), weight)
    Z = all_features(fitted, X)
    if selection == "holdout":
        predictions = left_out(Z, Y, weight, alpha, [chosen], intercept=intercept)
    else:
        predictions = []
        for row in chosen:
            rest = weight - np.minimum(weight, 1.0) * (np.arange(len(X)) == row)
            coef, constant = ridge(Z, Y, rest, alpha, intercept=intercept)
            predictions.append(Z[row] @ coef + constant)
    return mean_square(Y[chosen], np.array(predictions), weight[chosen])


@SOLVERS
@pytest.mark.parametrize(
    ("selection", "n_selection", "intercept", "weighted", "few"),
    [  # all pairs
        ("loo", 1000, True, True, True),
        ("loo", 9, False, True, False),
        ("loo", 1000, False, False, True),
        ("loo", 9, True, False, False),
        ("holdout", 1000, True, False, False),
        ("holdout", 1000, False, True, True),
        ("holdout", 5, True, True, False),
        ("holdout", 5, False, False, True),
    ],
)
def test_errors_equal_fits_without_the_rows(solver, selection, n_selection, intercept, weighted, few, monkeypatch):
    """By eigenvectors for few unknowns, otherwise by a factorization for each α."""
    if not few:
        monkeypatch.setattr(_problems, "_FEW", 0)
    X, Y = rows(3, 40, k=2)
    weight = weights(0, 40) if weighted else np.ones(40)
    alphas = np.array([0.01, 0.1, 1.0])
    options = {"selection": selection, "n_selection": n_selection}
    fitted = model(alphas=alphas, solver=solver, fit_intercept=intercept, **options).fit(X, Y, weight)
    expected = [left_out_errors(fitted, X, Y, weight, alpha, intercept=intercept, **options) for alpha in alphas]
    tried = np.isfinite(fitted.errors_)
    assert tried.sum() >= 2
    np.testing.assert_allclose(fitted.errors_[tried], np.array(expected)[tried], rtol=1e-6)
    assert fitted.alpha_ == alphas[np.nanargmin(fitted.errors_)]


@pytest.mark.parametrize("few", [True, False])
@SOLVERS
def test_the_largest_alpha_as_good_as_the_best_is_chosen(solver, few, monkeypatch):
    """Errors within 0.1 % of the least are as good, errors of 0.5 % more are not."""
    if not few:
        monkeypatch.setattr(_problems, "_FEW", 0)
    X, y = rows(0, 80)
    y = y + np.random.default_rng(1).standard_normal(80)
    options = {"solver": solver, "features": Rectified(20), "selection": "loo"}
    coarse = model(**options).fit(X, y)
    alphas = coarse.alpha_ * 1.1 ** np.arange(-12, 13)
    fitted = model(alphas=alphas, **options).fit(X, y)
    ratio = fitted.errors_ / np.nanmin(fitted.errors_) - 1
    best = int(np.nanargmin(ratio))
    assert 0 < best < 24
    as_good = np.flatnonzero(ratio <= 0.001)
    assert as_good.max() > best  # larger than the best one
    assert ((ratio[best:] > 0.002) & (ratio[best:] < 0.008)).any()  # a slack of 1 % would choose these
    assert fitted.alpha_ == alphas[as_good.max()]
    assert np.isnan(fitted.errors_).any() == (not few)


@pytest.mark.parametrize("normalize", [True, False])
def test_default_alphas_are_relative_to_the_diagonal(normalize):
    X, y = rows(0, 60)
    weight = np.where(np.arange(60) < 40, 2.0, 0.0)
    powers = 10.0 ** np.arange(-7, 2.5, 0.5)
    for scale, solver in ((1, "dual"), (7, "primal")):
        fitted = model(2, Rectified(20), normalize=normalize, solver=solver).fit(scale * X, y)
        K = kernel([m.transform(scale * X) for m in fitted.maps_], normalize=normalize, center=True)
        np.testing.assert_allclose(fitted.alphas_, np.trace(K) / 60 * powers, rtol=1e-9)
    # Weights above 1 are repeated rows and have no effect; small weights make the penalties small.
    fitted = model(normalize=normalize).fit(X[:40], y[:40])
    np.testing.assert_allclose(model(normalize=normalize).fit(X, y, weight).alphas_, fitted.alphas_, rtol=1e-9)
    light = model(normalize=normalize).fit(X[:40], y[:40], np.full(40, 1e-3))
    np.testing.assert_allclose(light.alphas_, 1e-3 * fitted.alphas_, rtol=1e-9)
    np.testing.assert_allclose(light.predict(X), fitted.predict(X), rtol=1e-9)


def test_alpha_zero_interpolates():
    X, y = rows(0, 20)
    weight = np.append(np.ones(19), 0.0)
    for given in (None, weight):
        fitted = model(2, Rectified(64), alphas=0.0, normalize=False).fit(X, y, given)
        np.testing.assert_allclose(fitted.predict(X[:19]), y[:19], atol=1e-6)
        assert fitted.alpha_ == 0.0


@pytest.mark.parametrize("eigenvectors", [True, False])
def test_alphas_lost_in_rounding(eigenvectors, monkeypatch):
    """Eigenvectors help, but take too long for many rows; then α is raised with a warning."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2)).astype(np.float32)
    X[30:] = X[:30]  # a singular kernel that becomes indefinite in single precision
    y = X[:, 0].astype(np.float64)
    one = model(features=RandomFourierFeatures(n_components=64), alphas=1e-12, gram_dtype="float32")
    if eigenvectors:
        assert one.fit(X, y).alpha_ == 1e-12
    else:
        monkeypatch.setattr(_problems, "_MAX_EIGEN", 0)
        with pytest.warns(UserWarning, match=r"Rounding errors .* alpha=1e-12 indefinite; alpha=.* was used"):
            one.fit(X, y)
        assert 1e-11 < one.alpha_ < 1e-3
    np.testing.assert_allclose(one.predict(X), y, atol=0.05)


# Weights.


@pytest.mark.parametrize(
    ("features", "law", "solver"),
    [
        (Rectified(), GramRidge, "dual"),
        (Rectified(), GramRidgeClassifier, "primal"),
        (make_pipeline(StandardScaler(), Rectified()), GramRidge, "primal"),
        (make_pipeline(StandardScaler(), Rectified()), GramRidgeClassifier, "dual"),
    ],
)
def test_weights_are_repeated_rows(features, law, solver):
    """Weight 2 is the row twice and weight 0 is no row: in the fit, in the choice of α, in steps before the map."""
    X, y = labelled(0, 50, distance=0.7)
    weight = np.random.default_rng(1).integers(0, 4, 50)
    weight[:2] = 0
    X[:2] *= 100
    repeated = np.repeat(np.arange(50), weight)
    one, other = (model(3, features, law=law, solver=solver) for _ in range(2))
    one.fit(X, y, weight)
    other.fit(X[repeated], y[repeated])
    np.testing.assert_allclose(one.alphas_, other.alphas_, rtol=1e-8)
    np.testing.assert_allclose(one.errors_[4:], other.errors_[4:], rtol=1e-5)
    assert one.alpha_ == pytest.approx(other.alpha_, rel=1e-8)
    for method in ("predict", "predict_proba") if law is GramRidgeClassifier else ("predict",):
        np.testing.assert_allclose(getattr(one, method)(X), getattr(other, method)(X), rtol=1e-5, atol=1e-7)
    new = X[:9] + 0.1
    score = {"return_scores": True} if law is GramRidgeClassifier else {}
    found = clone(one).transduce(X, y, new, weight, **score)
    expected = one.decision_function(new) if score else one.predict(new)
    np.testing.assert_allclose(found[1] if score else found, expected, atol=1e-8)


@pytest.mark.parametrize("selection", ["loo", "holdout"])
@SOLVERS
def test_rows_of_weight_zero_do_not_count(solver, selection):
    """Also for the length scale of the map. These rows come last, so the keys choose the same leave-one-out rows."""
    X, y = rows(0, 60)
    X[30:] *= 10
    features = RandomFourierFeatures(n_components=8)
    one, other = (model(2, features, solver=solver, selection=selection, n_selection=20) for _ in range(2))
    one.fit(X, y, np.repeat([1.0, 0.0], 30))
    other.fit(X[:30], y[:30])
    np.testing.assert_allclose(one.errors_[4:], other.errors_[4:], rtol=1e-6)
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-7)


# Draws.


def test_a_draw_does_not_depend_on_their_number():
    X, y = rows(0, 30)
    few, many = (model(n, random_state=3).fit(X, y).maps_ for n in (2, 5))
    for one, other in zip(few, many, strict=False):
        np.testing.assert_array_equal(one.transform(X), other.transform(X))
    other_seed = model(2, random_state=4).fit(X, y).maps_
    draws = [m.transform(X) for m in (*many, *other_seed)]
    for i, one in enumerate(draws):
        assert all(np.abs(one - other).max() > 0.1 for other in draws[i + 1 :])


def test_the_mean_over_draws_has_the_variance_of_a_larger_map():
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
    shared = [gram_matrix(features, X, random_state=s)[0, 1] for s in range(200)]  # the result of equal draws
    assert np.var(shared) / variance > 2.5


@pytest.mark.parametrize(
    "features",
    [
        RBFSampler(n_components=10),
        FeatureUnion([("a", RBFSampler(n_components=6)), ("b", RandomFourierFeatures(n_components=4))]),
    ],
)
def test_other_libraries_maps_and_maps_within_maps(features):
    X, y = rows(0, 30)
    fitted = model(3, features, alphas=0.1).fit(X, y)
    Z = [m.transform(X) for m in fitted.maps_]
    assert np.abs(Z[0] - Z[1]).max() > 0.1
    np.testing.assert_allclose(
        fitted.predict(X), of_weights(side_by_side(Z), y, np.ones(30), 0.1, side_by_side(Z))[2][:, 0]
    )
    seeds = [value for m in fitted.maps_ for name, value in m.get_params().items() if name.endswith("random_state")]
    assert len(set(seeds)) == len(seeds) >= 3


class Counting(TransformerMixin, BaseEstimator):
    """Scale rows, and count the calls."""

    calls = 0

    def fit(self, X, y=None):  # noqa: ARG002
        type(self).calls += 1
        self.scale_ = np.abs(X).max()
        return self

    def transform(self, X):
        return X / self.scale_


@pytest.mark.parametrize("weight", [None, 2.0])
def test_steps_before_the_map_are_fitted_once(weight):
    X, y = rows(0, 30)
    Counting.calls = 0
    inner = Pipeline([("count", Counting()), ("map", Rectified())])
    features = Pipeline([("scale", StandardScaler()), ("inner", inner)])
    fitted = model(3, features, alphas=0.1).fit(X, y, weight)
    assert Counting.calls == 1
    scaled = StandardScaler().fit_transform(X)
    scaled /= np.abs(scaled).max()
    Z = side_by_side([m.transform(scaled) for m in fitted.maps_])
    expected = of_weights(Z, y, np.full(30, weight or 1.0), 0.1, Z)[2]
    np.testing.assert_allclose(fitted.predict(X), expected[:, 0], rtol=1e-8)
    assert not hasattr(inner[0], "scale_")  # inputs are unchanged
    np.testing.assert_allclose(fitted.preprocessor_.transform(X), scaled, rtol=1e-12)


def test_steps_before_the_map_have_independent_seeds():
    X, y = rows(0, 30)
    features = make_pipeline(Rectified(8), Rectified(8))
    one, same, other = (model(2, features, random_state=seed).fit(X, y).predict(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3


def test_features_that_are_not_random_have_one_draw():
    X, y = rows(0, 30)
    fitted = GramRidge(FunctionTransformer(), alphas=0.5, normalize=False).fit(X, y)
    np.testing.assert_allclose(fitted.predict(X), Ridge(alpha=0.5).fit(X, y).predict(X), rtol=1e-8)
    frozen = FrozenEstimator(Rectified(random_state=0).fit(X))
    assert len(GramRidge(frozen).fit(X, y).maps_) == 1
    for features in (FunctionTransformer(), frozen, make_pipeline(Rectified(), StandardScaler())):
        with pytest.raises(ValueError, match=r"must be 1 if the last step of 'features' has no 'random_state'. Got 2"):
            GramRidge(features, n_draws=2).fit(X, y)
        with pytest.raises(ValueError, match="'n_draws' parameter of gram_matrix must be 1 if"):
            gram_matrix(features, X, n_draws=2)


# Adding draws.


@pytest.mark.parametrize(
    ("solver", "numbers"), [("dual", (1, 3, 4)), ("primal", (2, 5)), ("auto", (2, 3, 8)), ("auto", (1, 2))]
)
def test_warm_start_equals_a_fit_from_the_start(solver, numbers):
    X, y = rows(0, 40)
    weight = weights(1, 40) if solver == "auto" else None
    options = {"solver": solver, "keep_gram": True}
    warm = model(warm_start=True, **options)
    for n_draws in numbers:
        warm.set_params(n_draws=n_draws).fit(X, y, weight)
        cold = model(n_draws, **options).fit(X, y, weight)
        assert warm.n_draws_ == n_draws
        for name in ("gram_", "errors_", "coef_"):
            np.testing.assert_array_equal(getattr(warm, name), getattr(cold, name))
        np.testing.assert_array_equal(warm.predict(X), cold.predict(X))


def test_warm_start_computes_only_new_draws(monkeypatch):
    X, y = rows(0, 20)
    fits = []
    original = Rectified.fit
    monkeypatch.setattr(Rectified, "fit", lambda self, *a: fits.append(self) or original(self, *a))
    warm = model(warm_start=True, random_state=None).fit(X, y)  # without a seed the first one stays
    assert len(fits) == 2
    before = [m.transform(X) for m in warm.maps_]
    opposite = warm.set_params(n_draws=3).fit(X.copy(), -y).predict(X)
    assert len(fits) == 3
    for one, other in zip(before, warm.maps_, strict=False):
        np.testing.assert_array_equal(one, other.transform(X))
    np.testing.assert_allclose(warm.fit(X, y).predict(X), -opposite, rtol=1e-9)
    assert len(fits) == 3


@SOLVERS
def test_weights_of_draws_that_were_not_kept(solver):
    X, y = rows(0, 30)
    warm = model(3, solver=solver, warm_start=True, keep_coef=False).fit(X, y)
    assert warm.maps_ == []
    assert not hasattr(warm, "coef_")
    with pytest.raises(ValueError, match=r"no weights to predict with: .* Call fit with keep_coef=True"):
        warm.predict(X)
    warm.set_params(keep_coef=True, n_draws=4).fit(X, y)
    np.testing.assert_array_equal(warm.predict(X), model(4, solver=solver).fit(X, y).predict(X))


OTHER_ROWS = "'X' parameter of GramRidge must be the rows of the previous fit, with the same weights"


@pytest.mark.parametrize(
    ("parameters", "change", "text"),
    [
        ({"n_draws": 3}, None, r"'n_draws' parameter of GramRidge must be an int ≥ 4, .* Got 3 instead\. Set warm"),
        ({}, "columns", OTHER_ROWS),
        ({}, "rows", OTHER_ROWS),
        ({}, "one number", OTHER_ROWS),
        ({}, "in place", OTHER_ROWS),
        ({}, "weights", OTHER_ROWS),
        ({"normalize": False}, None, "must not be changed"),
        ({"fit_intercept": False}, None, "must not be changed"),
        ({"solver": "primal"}, None, "must not be changed"),
        ({"gram_dtype": "float32"}, None, "must not be changed"),
        ({"product_dtype": "float32"}, None, "must not be changed"),
    ],
)
@SOLVERS
def test_warm_starts_that_cannot_be(solver, parameters, change, text):
    """Rows of the same shape, but other rows: their products with the first ones would be nonsense (R² of −10⁴)."""
    X, y = rows(0, 30)
    warm = model(4, solver=solver, warm_start=True).fit(X, y)
    if solver == "primal" and set(parameters) & {"solver", "gram_dtype"}:  # features can be solved for either way
        expected = model(4, solver=solver).set_params(**parameters).fit(X, y).predict(X)
        np.testing.assert_array_equal(warm.set_params(**parameters).fit(X, y).predict(X), expected)
        return
    expected, given, weight = warm.predict(X), X.copy(), weights(0, 30) if change == "weights" else None
    if change == "columns":
        given = X[:, :4]
    elif change == "rows":
        given = rows(1, 30)[0]
    elif change == "one number":
        given[17, 2] = np.nextafter(given[17, 2], 9)
    elif change == "in place":
        given = np.multiply(X, 1.5, out=X)
    with pytest.raises(ValueError, match=text):
        warm.set_params(**parameters).fit(given, y, weight)
    np.testing.assert_array_equal(warm.predict(rows(0, 30)[0]), expected)
    warm.set_params(warm_start=False).fit(given, y, weight)
    cold = model(4, solver=solver).set_params(**parameters).fit(given, y, weight)
    np.testing.assert_array_equal(warm.predict(given), cold.predict(given))


def test_a_failed_warm_start_leaves_the_model_unchanged(monkeypatch):
    X, y = rows(0, 20)
    warm = model(2, warm_start=True, keep_gram=True).fit(X, y)
    expected = warm.predict(X)
    original, calls = Rectified.fit, []

    def fail(self, *arguments):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rectified, "fit", fail)
        with pytest.raises(KeyboardInterrupt):
            warm.set_params(n_draws=5).fit(X, y)
    np.testing.assert_array_equal(warm.predict(X), expected)
    assert warm.n_draws_ == 2
    assert not hasattr(warm, "gram_")  # half a sum
    warm.fit(X, y)  # from the start
    cold = model(5, keep_gram=True).fit(X, y)
    np.testing.assert_array_equal(warm.predict(X), cold.predict(X))
    np.testing.assert_array_equal(warm.gram_, cold.gram_)


# One pass.


@pytest.mark.parametrize(
    ("solver", "intercept", "k"),
    [("dual", True, None), ("dual", False, 2), ("primal", True, 2), ("primal", False, None)],
)
def test_transduce_equals_fit_and_predict(solver, intercept, k):
    X, Y = rows(0, 40, k=k)
    new = rows(1, 9)[0]
    features = make_pipeline(StandardScaler(), Rectified())
    one = model(3, features, solver=solver, fit_intercept=intercept, batch_size=4)
    expected = clone(one).fit(X, Y)
    predictions = one.transduce(X, Y, new)
    assert predictions.shape == ((9,) if k is None else (9, 2))
    np.testing.assert_allclose(predictions, expected.predict(new), rtol=1e-8)
    np.testing.assert_array_equal(one.errors_, expected.errors_)
    assert one.alpha_ == expected.alpha_
    if solver == "primal":
        np.testing.assert_allclose(one.predict(new), predictions, rtol=1e-10)
    else:
        with pytest.raises(ValueError, match="no weights to predict with: it was fitted by transduce"):
            one.predict(new)
        assert not hasattr(one, "coef_")
        assert one.maps_ == []
    without = clone(one).set_params(keep_coef=False)
    np.testing.assert_array_equal(without.transduce(X, Y, new), predictions)
    assert without.maps_ == []


@pytest.mark.parametrize(("n_classes", "solver"), [(2, "dual"), (3, "dual"), (2, "primal")])
def test_transduce_of_classes(n_classes, solver):
    X, y = labelled(0, 60, n_classes)
    new = labelled(0, 33, n_classes)[0]
    one = model(3, law=GramRidgeClassifier, solver=solver)
    expected = clone(one).fit(X, y)
    np.testing.assert_array_equal(one.transduce(X, y, new), expected.predict(new))
    classes, scores = one.transduce(X, y, new, return_scores=True)
    np.testing.assert_array_equal(classes, expected.predict(new))
    np.testing.assert_allclose(scores, expected.decision_function(new), atol=1e-9)
    assert scores.shape == ((33,) if n_classes == 2 else (33, 3))
    with pytest.raises(TypeError, match=r"'return_scores' .* GramRidgeClassifier\.transduce must be True or False"):
        one.transduce(X, y, new, return_scores=1)


def test_the_temperature_is_known_after_transduce():
    X, y = labelled(0, 60)
    one = model(3, law=GramRidgeClassifier, solver="dual")
    one.transduce(X, y, X)
    assert one.temperature_ == clone(one).fit(X, y).temperature_


@pytest.mark.parametrize("hidden_layers", [0, 1])
def test_transduce_goes_on_with_warm_start(hidden_layers, monkeypatch):
    X, y = rows(0, 60)
    new = X[:20] + 0.1
    options = {"hidden_layers": hidden_layers, "solver": "dual"}
    warm = model(3, warm_start=True, **options)
    warm.transduce(X, y, new)
    drawn = []
    draw = MapDraws.draw
    monkeypatch.setattr(MapDraws, "draw", lambda self, number, rows: drawn.append(number) or draw(self, number, rows))
    predictions = warm.set_params(n_draws=7).transduce(X, y, new.copy())
    assert drawn == [3, 4, 5, 6]
    np.testing.assert_array_equal(predictions, model(7, **options).transduce(X, y, new))
    drawn.clear()
    predictions = warm.transduce(X, y, new + 1)  # other rows: from the start
    assert drawn == list(range(7))
    np.testing.assert_array_equal(predictions, model(7, **options).transduce(X, y, new + 1))
    with pytest.raises(ValueError, match="must be the rows of the previous fit"):
        warm.transduce(X + 1, y, new + 1)


def test_transduce_with_rows_of_another_kind():
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    new = rows(1, 9)[0]
    one = model(4, alphas=0.1)
    expected = clone(one).fit(X, y).predict(new)
    for given, X_new, dtype in (
        (X, new.astype(np.float32), np.float32),
        (torch.from_numpy(X), torch.from_numpy(new).float(), torch.float32),
        (torch.from_numpy(X), new, np.float64),
        (X, torch.from_numpy(new), torch.float64),
    ):
        predictions = one.transduce(given, y, X_new)
        assert predictions.dtype == dtype
        np.testing.assert_allclose(as_numpy(predictions), expected, rtol=1e-4)
    with pytest.raises(ValueError, match="X has 4 features, but GramRidge is expecting 5 features as input"):
        one.transduce(X, y, new[:, :4])


# Layers on top.


@pytest.mark.parametrize(
    ("intercept", "hidden_layers", "torch_rows"),
    [(True, 1, False), (True, 3, True), (False, 1, True), (False, 3, False)],
)
def test_layers_on_top_are_exact(intercept, hidden_layers, torch_rows):
    X, y = rows(0, 80)
    X, new, y = X[:60], X[60:], y[:60]
    weight, alpha = weights(0, 60) + 0.5, 0.01
    K, cross = (gram_matrix(Rectified(), X, Y, n_draws=5, random_state=0) for Y in (X, new))
    for _ in range(hidden_layers):
        K, cross = (arc_cosine(np.clip(A, -1, 1), 1) for A in (K, cross))
    A = K + np.diag(alpha / weight)
    ones = np.ones((60, 1))
    if intercept:
        solved = np.linalg.solve(np.block([[A, ones], [ones.T, np.zeros((1, 1))]]), np.append(y, 0))
    else:
        solved = np.append(np.linalg.solve(A, y), 0)
    if torch_rows:
        torch = pytest.importorskip("torch")
        X, new = torch.from_numpy(X), torch.from_numpy(new)
    one = model(5, alphas=alpha, fit_intercept=intercept, hidden_layers=hidden_layers)
    predictions = as_numpy(one.transduce(X, y, new, weight))
    np.testing.assert_allclose(predictions, cross.T @ solved[:60] + solved[60], rtol=1e-8, atol=1e-8)


def test_layers_on_top_of_rows_that_point_apart():
    """Cosines from −1 to 1: rectified features have only positive cosines."""
    expected = cosines = np.linspace(-1, 1, 41)
    for n_layers in (1, 2, 3):
        expected = arc_cosine(expected, 1)
        found = with_relu_layers(cosines[None], np.ones(1), np.ones(41), n_layers)
        np.testing.assert_allclose(found[0], expected, atol=1e-13)


def test_layers_on_top_are_put_on_the_sums_of_a_fit_without():
    X, y = rows(0, 30)
    warm = model(3, warm_start=True, solver="dual")
    for hidden_layers in (1, 0, 2):
        expected = model(3, solver="dual", hidden_layers=hidden_layers).transduce(X, y, X)
        np.testing.assert_array_equal(warm.set_params(hidden_layers=hidden_layers).transduce(X, y, X), expected)


def test_layers_on_top_go_with_unit_features_and_transduce():
    X, y = np.ones((4, 2)), np.arange(4) % 2
    with pytest.raises(ValueError, match=r"'hidden_layers' .* must be 0 for fit, .* Got 2 instead. Call transduce."):
        model(hidden_layers=2).fit(X, y)
    with pytest.raises(ValueError, match=r"'normalize' .* must be True if hidden_layers > 0. Got False"):
        model(hidden_layers=2, normalize=False).transduce(X, y, X)
    with pytest.raises(ValueError, match=r"'solver' .* must be 'auto' or 'dual' if hidden_layers > 0. Got 'prim"):
        model(hidden_layers=2, solver="primal").transduce(X, y, X)


def test_layers_on_top_refuse_rows_of_zeros():
    X, y = rows(0, 30)
    X[3] = 0
    one = model(features=Rectified(bias=0.0), hidden_layers=1)
    text = r"'X' .* must be free of rows whose features are all zero if hidden_layers > 0"
    with pytest.raises(ValueError, match=text):
        one.transduce(X, y, X)
    one.set_params(hidden_layers=0, warm_start=True, solver="dual").transduce(X, y, X)
    with pytest.raises(ValueError, match=text):
        one.set_params(hidden_layers=1).transduce(X, y, X)


# Only the matrix.


@pytest.mark.parametrize(
    ("normalize", "center", "gram_dtype", "batch_size"),
    [  # all pairs
        (True, True, "float64", None),
        (True, False, "float32", 1),
        (False, True, "float32", 7),
        (False, False, "float64", 1),
        (True, False, "float64", 7),
        (False, False, "float32", None),
        (True, True, "float32", 1),
    ],
)
def test_gram_matrices(normalize, center, gram_dtype, batch_size):
    X, y = rows(0, 25)
    new = rows(1, 6)[0]
    X[3] = 0.0  # a row without features
    options = {"normalize": normalize, "gram_dtype": gram_dtype, "batch_size": batch_size, "random_state": 2}
    features = Rectified(bias=0.0)
    K = gram_matrix(features, X, n_draws=3, center=center, **options)
    fitted = model(3, features, keep_gram=True, fit_intercept=center, **options).fit(X, y)
    Z, Z_new = ([m.transform(some) for m in fitted.maps_] for some in (X, new))
    eps = 1e-12 if gram_dtype == "float64" else 1e-6
    for found, expected in (
        (K, kernel(Z, normalize=normalize, center=center)),
        (fitted.gram_, K),
        (
            gram_matrix(features, X, new, n_draws=3, center=center, **options),
            kernel(Z, Z_new, normalize=normalize, center=center),
        ),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=eps * np.abs(expected).max())
        assert found.dtype == gram_dtype or found is fitted.gram_
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
    maps = model(2, features, alphas=1.0).fit(X[:10], X[:10, 0]).maps_  # with the same seeds
    np.testing.assert_allclose(K, kernel([m.transform(X) for m in maps], normalize=False, center=False), atol=1e-13)
    for n in (1, 255, 256, 257, 2048, 2049, 5000):
        assert [row for part in panels(n) for row in range(n)[part]] == list(range(n))
    assert len(panels(4096)) == 8


def test_memory_is_two_matrices_and_a_draw(monkeypatch):
    monkeypatch.setattr(_problems, "_FEW", 0)  # eigenvectors take more
    n = 1200
    X, y = rows(0, n)
    one = model(20, Rectified(16), solver="dual", alphas=[0.1, 1.0], n_selection=50)
    assert peak_memory(lambda: one.fit(X, y)) < 3 * 8 * n**2


# Libraries and precisions.


@pytest.mark.parametrize(("solver", "single"), [("dual", False), ("dual", True), ("primal", False)])
def test_torch_equals_numpy(solver, single):
    torch = pytest.importorskip("torch")
    X, y = labelled(0, 60)
    weight, loose = weights(0, 60), 1e-3 if single else 1e-6
    tensor = torch.from_numpy(X).float() if single else torch.from_numpy(X).requires_grad_()
    one, other = (model(3, law=GramRidgeClassifier, solver=solver, keep_gram=True) for _ in range(2))
    one.fit(X, y, weight)
    other.fit(tensor, torch.from_numpy(y), torch.from_numpy(weight))
    if tensor.requires_grad:
        with pytest.raises(TypeError, match=r"Use FeatureRidge or KernelRidge, or detach the rows"):
            other.decision_function(tensor)
        tensor = tensor.detach()
    assert other.predict(tensor).tolist() == one.predict(X).tolist()
    scores = other.decision_function(tensor)
    assert scores.dtype == tensor.dtype
    np.testing.assert_allclose(as_numpy(scores), one.decision_function(X), atol=loose)
    np.testing.assert_allclose(as_numpy(other.predict_proba(tensor)), one.predict_proba(X), atol=10 * loose)
    np.testing.assert_allclose(other.errors_[8:], one.errors_[8:], rtol=10 * loose)
    for held in (other.gram_, other._solution.coef):  # no intermediate result goes to the host
        assert isinstance(held, torch.Tensor)


@pytest.mark.parametrize(("solver", "intercept"), [("dual", True), ("dual", False), ("primal", True)])
def test_products_in_bfloat16_are_of_features_rounded_after_they_are_centred(solver, intercept):
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    new = rows(1, 8)[0]
    tensor, new_tensor = torch.from_numpy(X).float(), torch.from_numpy(new).float()
    options = {"alphas": 0.1, "fit_intercept": intercept, "solver": solver, "keep_gram": True}
    fitted = model(2, Rectified(30), product_dtype="bfloat16", **options).fit(tensor, y)

    def rounded(some):
        parts = []
        for m in fitted.maps_:
            Z, at = (side_by_side([m.transform(part).numpy()]).astype(np.float32) for part in (tensor, some))
            mean = Z.mean(axis=0, dtype=np.float64).astype(np.float32) if intercept else np.float32(0)
            parts.append(torch.from_numpy(at - mean).bfloat16().double().numpy())
        return np.hstack(parts) / 2**0.5

    Z, Z_new = rounded(tensor), rounded(new_tensor)
    # Now and then a number lies so near the middle of two that it is rounded the other way.
    np.testing.assert_allclose(as_numpy(fitted.gram_), Z @ Z.T, atol=3e-4)
    assert np.median(np.abs(as_numpy(fitted.gram_) - Z @ Z.T)) < 1e-6
    expected = of_weights(Z, y, np.ones(40), 0.1, Z_new, intercept=intercept)[2][:, 0]
    np.testing.assert_allclose(as_numpy(fitted.predict(new_tensor)), expected, rtol=5e-3)
    once = clone(fitted).transduce(tensor, y, new_tensor)
    np.testing.assert_allclose(as_numpy(once), as_numpy(fitted.predict(new_tensor)), rtol=1e-4)
    with pytest.raises(ValueError, match=r"'product_dtype' .* must be 'float32' or 'float64' for features in NumPy"):
        clone(fitted).fit(X, y)


def test_features_in_bfloat16_stay_so():
    torch = pytest.importorskip("torch")
    X, y = rows(0, 40)
    tensor = torch.from_numpy(X).bfloat16()
    given, asked, wide = (model(alphas=0.1, product_dtype=p).fit(tensor, y) for p in (None, "bfloat16", "float32"))
    np.testing.assert_array_equal(given.coef_, asked.coef_)
    assert given.predict(tensor).dtype == torch.bfloat16
    assert 1e-5 < np.abs(wide.coef_ - given.coef_).max() < 0.1


@pytest.mark.parametrize(("product_dtype", "loose"), [("float32", 1e-4), ("float64", 1e-9)])
@SOLVERS
def test_other_precisions_of_products(product_dtype, loose, solver):
    X, y = rows(0, 30)
    expected = model(alphas=0.1, solver=solver).fit(X, y).predict(X)
    fitted = model(alphas=0.1, solver=solver, product_dtype=product_dtype).fit(X, y)
    difference = np.abs(fitted.predict(X) / expected - 1).max()
    assert difference <= loose
    assert product_dtype == "float64" or difference > 1e-12
    np.testing.assert_allclose(clone(fitted).fit(X.astype(np.float32), y).predict(X), expected, rtol=1e-3)


def test_features_in_half_precision_are_multiplied_in_single():
    X, y = labelled(0, 40)
    fitted = GramRidge(FunctionTransformer(lambda X: X.astype(np.float16)), alphas=1.0, normalize=False).fit(X, y)
    np.testing.assert_allclose(fitted.predict(X), Ridge(alpha=1.0).fit(X, y).predict(X), atol=0.01)


def test_norms_of_any_size():
    """Squares of such features overflow or vanish in float32."""
    X = np.array([[1e30, 2e30], [1e-30, -3e-30], [1.0, 1.0], [0.0, 0.0]], np.float32)
    K = gram_matrix(FunctionTransformer(), X)
    Z = side_by_side([X.astype(np.float64)])
    np.testing.assert_allclose(K, Z @ Z.T, atol=1e-6)
    with pytest.raises(ValueError, match="too large: their squares overflow"):
        GramRidge(FunctionTransformer(), normalize=False, fit_intercept=False, solver="dual").fit(X, np.arange(4.0))


@pytest.mark.parametrize("n", [1, 2, 12, 50])
def test_rows_that_are_all_the_same(n):
    """Without a warning; features are all the same too, or zero."""
    for bias, solver in ((1.0, "dual"), (1.0, "primal"), (0.0, "dual"), (0.0, "primal")):
        X, y = np.full((n, 3), bias), np.arange(float(n)) + 2.5
        fitted = model(features=Rectified(bias=bias), solver=solver).fit(X, y)
        np.testing.assert_allclose(fitted.predict(X), y.mean())
        assert np.isfinite(fitted.predict(np.ones((2, 3)))).all()
        assert np.isfinite(fitted.set_params(fit_intercept=False).fit(X, y).predict(X)).all()


def test_data_frames_keep_their_names_through_the_steps_before_the_map():
    pd = pytest.importorskip("pandas")
    X, y = rows(0, 30)
    frame = pd.DataFrame(X, columns=list("abcde"))
    features = make_pipeline(StandardScaler().set_output(transform="pandas"), RandomFourierFeatures(n_components=16))
    for weight in (None, weights(0, 30)):
        fitted = model(features=features).fit(frame, pd.Series(y), weight)
        assert fitted.feature_names_in_.tolist() == list("abcde")
        expected = model(features=features).fit(X, y, weight).predict(X)
        np.testing.assert_allclose(fitted.predict(frame), expected, rtol=1e-9)
    assert not hasattr(fitted.fit(X, y), "feature_names_in_")


@BOTH
def test_predictions_of_dask_collections(law):
    da = pytest.importorskip("dask.array")
    X, y = labelled(0, 40)
    fitted = model(3, make_pipeline(StandardScaler(), Rectified()), law=law, keep_gram=True).fit(X, y)
    for method in ("predict", "decision_function", "predict_proba") if law is GramRidgeClassifier else ("predict",):
        expected = getattr(fitted, method)(X)
        found = getattr(fitted, method)(da.from_array(X, chunks=(7, -1)))
        assert found.chunks[0] == (7,) * 5 + (5,)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(TypeError, match=r"must be rows in memory.* take Dask collections"):
        model(law=law).fit(da.from_array(X), y)
    with pytest.raises(TypeError, match=r"'X_new' parameter of .*transduce must be rows in memory"):
        model(law=law).transduce(X, y, da.from_array(X))


@BOTH
def test_pickles_lack_the_matrix(law):
    X, y = labelled(0, 200)
    fitted = model(3, law=law, warm_start=True, keep_gram=True).fit(X, y)
    text = pickle.dumps(fitted)
    assert len(text) < 8 * 200**2 / 4
    again = pickle.loads(text)
    assert hasattr(fitted, "gram_")
    assert not hasattr(again, "gram_")
    for name in ("coef_", "intercept_", "alpha_", "alphas_", "errors_", "n_draws_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fitted, name))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    again.set_params(n_draws=5).fit(X, y)  # from the start
    np.testing.assert_array_equal(again.predict(X), model(5, law=law).fit(X, y).predict(X))


# Classification.


@pytest.mark.parametrize(
    ("labels", "solver", "selection"),
    [
        (np.array(["b", "a", "c"]), "dual", "loo"),
        (np.array([3, -1, 7]), "primal", "holdout"),
        (np.array([True, False]), "dual", "holdout"),
        (np.array([2.0, 1.0]), "primal", "loo"),
    ],
    ids=str,
)
def test_classification_is_ridge_regression_of_indicators(labels, solver, selection):
    X, indices = labelled(0, 60, len(labels), distance=0.5)
    y = labels[indices]
    fitted = model(3, law=GramRidgeClassifier, alphas=0.2, solver=solver, selection=selection).fit(X, y)
    np.testing.assert_array_equal(fitted.classes_, np.unique(y))
    Z = all_features(fitted, X)
    Y = (y[:, None] == fitted.classes_).astype(float) - 1 / len(labels)
    coef, _, scores = of_weights(Z, Y, np.ones(60), 0.2, Z)
    np.testing.assert_allclose(fitted.coef_, coef.T / 3**0.5, atol=1e-8)
    np.testing.assert_allclose(fitted.intercept_, Y.mean(axis=0), atol=1e-8)
    # Predictions are calibrated on leave-one-out rows, whose log loss is also known for a single α.
    chosen = sampled(60, 60 if selection == "loo" else 12)
    left = left_out(Z, Y, np.ones(60), 0.2, [[row] for row in chosen] if selection == "loo" else [chosen])
    ones = np.ones(len(chosen))
    assert fitted.errors_[0] == pytest.approx(left_out_log_loss(Y[chosen], left, ones), rel=1e-5)
    calibration = fit_calibration(left, Y[chosen].argmax(axis=1), ones, len(labels))
    expected = logits(scores, calibration)
    decisions = expected if len(labels) > 2 else expected[:, 1] - expected[:, 0]
    np.testing.assert_allclose(fitted.decision_function(X), decisions, atol=1e-5)
    np.testing.assert_allclose(fitted.predict_log_proba(X), log_probabilities(scores, calibration), atol=1e-5)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[expected.argmax(axis=1)])


# Old spellings, which go in version 0.3.


@BOTH
def test_old_spellings_warn_and_work(law):
    X, y = labelled(0, 40)
    expected = law(Rectified(), n_draws=3, random_state=0)
    with pytest.warns(FutureWarning, match=rf"Pass the parameters of {law.__name__} by name: n_draws=3"):
        positions = law(Rectified(), 3, random_state=0)
    assert positions.get_params()["n_draws"] == 3
    for old, new in (
        ({"center": False}, {"fit_intercept": False}),
        ({"validation_fraction": 0.2}, {"selection": "holdout"}),
        ({"validation_fraction": None}, {"selection": "loo"}),
    ):
        (name,) = old
        (new_name,) = new
        with pytest.warns(FutureWarning, match=rf"{name}.* of {law.__name__} is now {new_name}="):
            one = law(Rectified(), n_draws=3, random_state=0, **old)
        with pytest.warns(FutureWarning, match=rf"{name}.* of {law.__name__} is now {new_name}="):
            positions.set_params(**old)
        assert {**expected.get_params(deep=False), **new} == {
            **one.get_params(deep=False),
            "features": expected.features,
        }
        np.testing.assert_array_equal(one.fit(X, y).coef_, clone(expected).set_params(**new).fit(X, y).coef_)
        with pytest.raises(TypeError, match=rf"got both '{new_name}' and '{name}', its old name"):
            law(**old, **new)
    predictions = clone(expected).transduce(X, y, X)
    with pytest.warns(FutureWarning, match=r"fit_predict is now transduce\(X, y, X_new\)"):
        np.testing.assert_array_equal(clone(expected).fit_predict(X, y), predictions)
    scores = {"return_scores": True} if law is GramRidgeClassifier else {}
    with pytest.warns(FutureWarning, match=r"fit_predict is now transduce\(X, y, X_new\)"):
        found = clone(expected).fit_predict(X, y, X_new=X[:7], **scores)
    np.testing.assert_allclose(found[0] if scores else found, predictions[:7], rtol=1e-12)


# Bad input.


BAD = [
    ("features", "ntk", TypeError, "a transformer with fit and transform"),
    ("features", NTKFeatures, TypeError, "a transformer with fit and transform"),
    ("features", Pipeline([("a", StandardScaler()), ("b", "passthrough")]), TypeError, "a transformer with fit"),
    ("n_draws", 0, ValueError, "an int ≥ 1. Got 0"),
    ("n_draws", 2.0, TypeError, "an int ≥ 1. Got 2.0"),
    ("normalize", 1, TypeError, "True or False. Got 1"),
    ("gram_dtype", "bfloat16", ValueError, "one of 'float32', 'float64'. Got 'bfloat16'"),
    ("gram_dtype", 32, TypeError, "one of 'float32', 'float64'. Got"),
    ("product_dtype", "float16", ValueError, "one of 'bfloat16', 'float32', 'float64'. Got 'float16'"),
    ("product_dtype", 32, TypeError, "one of 'bfloat16', 'float32', 'float64'. Got"),
]
BAD_OF_MODELS = [
    ("hidden_layers", -1, ValueError, "an int ≥ 0. Got -1"),
    ("hidden_layers", 1.5, TypeError, "an int ≥ 0. Got 1.5"),
    ("solver", "svd", ValueError, "one of 'auto', 'dual', 'primal'. Got 'svd'"),
    ("solver", None, TypeError, "one of 'auto', 'dual', 'primal'. Got None"),
    ("keep_coef", None, TypeError, "True or False. Got None"),
    ("keep_gram", 0, TypeError, "True or False. Got 0"),
    ("warm_start", "no", TypeError, "True or False. Got 'no'"),
]
COMMON = {"alphas", "fit_intercept", "selection", "n_selection", "batch_size", "progress", "random_state"}


@BOTH
def test_bad_parameters(law):
    """test_contract.py tests the checks that all learners share."""
    X, y = labelled(0, 20)
    for name, value, error, text in BAD + BAD_OF_MODELS:
        one = law(**{"features": Rectified(), name: value})
        text = re.escape(f"The '{name}' parameter of {law.__name__} must be {text}")
        with pytest.raises(error, match=text):
            one.fit(X, y)
        with pytest.raises(error, match=text):
            one.transduce(X, y, X)
    assert {name for name, *_ in BAD + BAD_OF_MODELS} | COMMON == set(law().get_params(deep=False))


def test_bad_parameters_of_gram_matrix():
    for name, value, error, text in [
        *BAD,
        ("center", "yes", TypeError, "True or False. Got 'yes'"),
        ("batch_size", 0, ValueError, "an int ≥ 1. Got 0"),
        ("progress", 1, TypeError, "True or False. Got 1"),
        ("random_state", -1, ValueError, "None, an int ≥ 0"),
    ]:
        text = re.escape(f"The '{name}' parameter of gram_matrix must be {text}")
        with pytest.raises(error, match=text):
            gram_matrix(**{"features": Rectified(), "X": np.ones((4, 2)), name: value})


def test_features_that_are_not_finite():
    X, y = rows(0, 20)
    with pytest.raises(ValueError, match="'X' parameter of GramRidge must be free of NaN and infinity, and its feat"):
        GramRidge(FunctionTransformer(lambda X: np.where(X > 0, X, np.inf))).fit(X, y)


def test_progress_bars(capsys):
    X, y = rows(0, 30)
    model(4, progress=True).fit(X, y)
    shown = capsys.readouterr().err
    for text in ("GramRidge:", "GramRidge: weights", "4/4"):
        assert text in shown
    gram_matrix(Rectified(), X, n_draws=2, progress=True)
    assert "gram_matrix: 100%" in capsys.readouterr().err
    model(4).fit(X, y)
    assert not capsys.readouterr().err


def test_an_interrupted_warm_start_is_not_gone_on_with(monkeypatch):
    """The draw that was being added had been counted twice."""
    import ntkit.models.gram as gram

    X = np.random.default_rng(0).standard_normal((60, 5))
    y = X[:, 0]
    model = GramRidge(NTKFeatures(n_components=30), alphas=0.1, warm_start=True, solver="dual", random_state=0)
    model.transduce(X[:40], y[:40], X[40:])

    def interrupt(_gram, _features):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gram.Gram, "add", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.set_params(n_draws=2).transduce(X[:40], y[:40], X[40:])
    expected = GramRidge(NTKFeatures(n_components=30), n_draws=2, alphas=0.1, solver="dual", random_state=0).transduce(
        X[:40], y[:40], X[40:]
    )
    np.testing.assert_allclose(model.transduce(X[:40], y[:40], X[40:]), expected, rtol=1e-9)


def test_models_without_weights_cannot_be_saved(tmp_path):
    import ntkit

    X = np.random.default_rng(0).standard_normal((30, 5))
    y = X[:, 0]
    model = GramRidge(NTKFeatures(n_components=30), keep_coef=False, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="has no weights to predict with"):
        ntkit.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
