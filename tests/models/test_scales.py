"""Ends of grids of penalties; columns, rows and targets of unequal size."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.preprocessing import FunctionTransformer

from ntkit.models import FeatureRidge, FeatureRidgeClassifier, GramRidge, KernelRidge
from ntkit.models._path import GRID


def regressor(alphas, **parameters):
    return FeatureRidge(FunctionTransformer(), alphas=alphas, random_state=0, **parameters)


def linear(n, m, noise, rng):
    X = rng.standard_normal((n, m))
    return X, X @ np.ones(m) + noise * rng.standard_normal(n)


@pytest.mark.parametrize(
    "make", [regressor, lambda a: GramRidge(FunctionTransformer(), alphas=a), lambda a: KernelRidge("ntk", alphas=a)]
)
def test_the_best_of_given_alphas_at_an_end_warns(make, rng):
    X, y = linear(200, 5, 0.5, rng)
    with pytest.warns(UserWarning, match=r"The best alpha of \w+, \S+, is the smallest of the given.*smaller alphas"):
        make([50.0, 500.0, 5000.0]).fit(X, y)


def test_an_end_where_the_error_no_longer_falls_does_not_warn(rng):
    X, y = linear(200, 5, 0.5, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regressor([1e-9, 1e-8, 1e-7]).fit(X, y)  # the best of these is as good as any
        regressor([1e5, 1e6]).fit(X, y)  # two are for a comparison, not a search
        regressor([1e-9, 1e-8, 1e-7]).fit(X, X @ np.ones(5))  # errors of 10⁻²⁰
    with pytest.warns(UserWarning, match="largest of the given alphas"):
        regressor([1e-4, 1e-2, 1.0]).fit(*linear(120, 100, 100.0, rng))


def test_default_alphas_go_down_while_the_error_falls():
    t = np.linspace(-1, 1, 300)[:, None] ** np.arange(1, 12)
    model = regressor(None).fit(t, np.sin(9 * t[:, 0]))
    steps = len(model.alphas_) - len(GRID)
    assert 0 < steps <= 6
    np.testing.assert_allclose(
        model.alphas_ / model.alphas_[-1] * GRID[-1], 10.0 ** np.arange(-7 - steps / 2, 2.5, 0.5)
    )
    assert model.errors_[model.alphas_ == model.alpha_] <= 1.001 * np.nanmin(model.errors_)
    assert len(regressor(None).fit(t, np.cos(t[:, 0])).alphas_) == len(GRID)  # errors are below 10⁻⁴ of the largest


def test_classifiers_too():
    X = np.linspace(-1, 1, 300)[:, None] ** np.arange(1, 12)
    model = FeatureRidgeClassifier(FunctionTransformer(), random_state=0).fit(X, np.sin(9 * X[:, 0]) > 0)
    assert np.isfinite(model.errors_[model.alphas_ == model.alpha_]).all()
    assert model.score(X, np.sin(9 * X[:, 0]) > 0) > 0.95


@pytest.mark.parametrize("alphas", [1e-3, [1e-3, 1e-2], [1e-6, 1e-3, 1.0]])
def test_columns_of_unequal_units_are_kept(alphas, rng):
    """With several penalties, the eigenvectors lost the column of scale 0.1 next to the column of 10⁹: R² 0.51."""
    X, y = linear(300, 5, 0.0, rng)
    X *= [1e9, 0.1, 1, 1, 1]
    assert regressor(alphas).fit(X, y).score(X, y) > 0.9999


def test_columns_that_default_alphas_suppress_cause_a_warning(rng):
    X, y = linear(300, 5, 0.0, rng)
    with pytest.warns(UserWarning, match="so much smaller than others"):
        regressor(None).fit(X * [1e9, 0.1, 1, 1, 1], y)


def test_directions_hidden_by_rounding_warn(rng):
    X, y = linear(300, 5, 0.0, rng)
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    mixed = X * [1e9, 0.1, 1, 1, 1] @ rotation
    with pytest.warns(UserWarning, match="is ill-conditioned"):
        regressor(1e-3).fit(mixed, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twice = np.hstack([X, X])  # no direction of these is hidden: rows have no part in them
        assert regressor(1e-13).fit(twice, y).score(twice, y) > 0.9999


@pytest.mark.parametrize("n", [400, 3000])
def test_a_huge_row_in_single_precision(n, rng):
    """Products in float32 lost all other rows: R² −845."""
    X, y = linear(n, 5, 0.0, rng)
    X[7], y[7] = 1e5 * X[7], 1e5 * y[7]
    others = np.arange(n) != 7
    with pytest.warns(UserWarning, match=r"One row of X given to FeatureRidge has features .* times as large"):
        model = regressor(1e-3).fit(X.astype(np.float32), y)
    assert model.score(X[others], y[others]) > 0.9999


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e30, 1e150])
def test_targets_of_any_size_with_single_precision(size, rng):
    X, y = linear(300, 5, 0.1, rng)
    X = X.astype(np.float32)
    expected = regressor(1e-3).fit(X, y)
    found = regressor(1e-3).fit(X, size * y)
    np.testing.assert_allclose(found.coef_ / size, expected.coef_, rtol=1e-4)


def test_the_same_column_twice_without_a_penalty(rng):
    """Cholesky's method divided rounding errors by each other."""
    X, y = linear(60, 5, 0.1, rng)
    model = regressor(0.0).fit(np.column_stack([X, X[:, 0]]), y)
    np.testing.assert_allclose(model.coef_[0], model.coef_[5], rtol=1e-6)
    np.testing.assert_allclose(model.predict(np.column_stack([X, X[:, 0]])), regressor(0.0).fit(X, y).predict(X))


def test_kernel_values_far_from_zero_warn(rng):
    X, y = linear(60, 5, 0.1, rng)
    K = X @ X.T + 1e13
    with pytest.warns(UserWarning, match=r"ill-conditioned|singular"):
        KernelRidge("precomputed", alphas=1e-3, solver="direct").fit(K, y)
