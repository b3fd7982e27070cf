"""Ramps equal the reference, knots are at the values, and models on them are additive."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.reference import piecewise as reference

import ntkit
from ntkit import PiecewiseLinearEncoder


@pytest.fixture
def X(rng):
    columns = [rng.standard_normal(200), rng.integers(0, 2, 200), rng.integers(0, 5, 200), np.full(200, 3.0)]
    return np.column_stack(columns)


def knots_of(encoder):
    """Knots of each column, from the attributes."""
    found = []
    for j in range(encoder.n_features_in_):
        mine = encoder.columns_ == j
        starts, widths = encoder.starts_[mine], encoder.widths_[mine]
        found.append([*starts, starts[-1] + widths[-1]] if mine.any() else [0.0])
    return found


def test_ramps_equal_the_reference(X, rng):
    encoder = PiecewiseLinearEncoder(n_knots=6).fit(X)
    rows = np.vstack([X[:20], 10 * rng.standard_normal((20, 4))])  # beyond the knots too
    expected = [reference.ramps(row, knots_of(encoder)) for row in rows]
    np.testing.assert_allclose(encoder.transform(rows), encoder.scale_ * np.array(expected), atol=1e-12)
    assert encoder.transform(X).var(axis=0).sum() == pytest.approx(1)


def test_knots(X):
    """At quantiles of a continuous column, at all values of one with few of them, none of a constant one."""
    continuous, binary, few, constant = knots_of(PiecewiseLinearEncoder(n_knots=6).fit(X))
    np.testing.assert_allclose(continuous, np.quantile(X[:, 0], np.linspace(0, 1, 6)), atol=0.15)
    assert (continuous[0], continuous[-1]) == (X[:, 0].min(), X[:, 0].max())
    assert (binary, few, constant) == ([0, 1], [0, 1, 2, 3, 4], [0.0])


def test_columns_of_many_zeros_have_knots_at_other_values(rng):
    x = np.where(rng.random(2000) < 0.95, 0.0, rng.uniform(1, 2, 2000))[:, None]
    knots = knots_of(PiecewiseLinearEncoder(n_knots=8).fit(x))[0]
    assert sum(knot >= 1 for knot in knots) >= 4


def test_sums_of_functions_of_columns_are_linear(rng):
    """Exactly for functions that are linear between knots, far from it for products."""
    X = rng.uniform(-1, 1, (500, 2))
    encoder = PiecewiseLinearEncoder(n_knots=20)
    linear = 3 * X[:, 0] - 2 * X[:, 1]
    model = make_pipeline(encoder, Ridge(1e-8)).fit(X, linear)
    np.testing.assert_allclose(model.predict(X), linear, atol=1e-5)
    additive, product = np.abs(X[:, 0]) + np.sin(3 * X[:, 1]), X[:, 0] * X[:, 1]
    assert model.fit(X, additive).score(X, additive) > 0.999
    assert model.fit(X, product).score(X, product) < 0.3


def test_the_kernel_is_a_sum_of_brownian_motions(rng):
    """⟨φ(x), φ(y)⟩ = s² Σ min(r(x), r(y)) where x is at a knot."""
    x = rng.standard_normal((300, 1))
    encoder = PiecewiseLinearEncoder(n_knots=9).fit(x)
    knots = np.array(knots_of(encoder)[0])
    Z = encoder.transform(knots[:, None]) / encoder.scale_
    np.testing.assert_allclose(Z @ Z.T, np.minimum.outer(np.arange(9), np.arange(9)), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors(dtype, X):
    encoder = PiecewiseLinearEncoder().fit(X)
    rows = torch.tensor(X, dtype=dtype, requires_grad=True)
    Z = encoder.transform(rows)
    assert Z.dtype == dtype
    np.testing.assert_allclose(Z.detach().numpy(), encoder.transform(X), atol=1e-5)
    Z.sum().backward()
    assert torch.isfinite(rows.grad).all()
    assert rows.grad.abs().sum() > 0
    assert encoder.transform(X.astype(np.float32)).dtype == np.float32


def test_frames_copies_and_files(X, tmp_path):
    frame = pd.DataFrame(X, columns=list("abcd"))
    encoder = PiecewiseLinearEncoder().fit(frame)
    np.testing.assert_array_equal(encoder.transform(frame), PiecewiseLinearEncoder().fit(X).transform(X))
    ntkit.save(encoder, tmp_path / "encoder.ntkit")
    for again in (pickle.loads(pickle.dumps(encoder)), ntkit.load(tmp_path / "encoder.ntkit")):
        np.testing.assert_array_equal(again.transform(frame), encoder.transform(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        encoder.transform(frame[list("dcba")])


def test_constant_columns():
    encoder = PiecewiseLinearEncoder().fit(np.ones((5, 2)))
    np.testing.assert_allclose(encoder.transform(np.full((3, 2), 7.0)), np.zeros((3, 1)), atol=1e-300)


def test_values_of_any_size(X):
    """Ramps do not depend on the units of columns."""
    expected = PiecewiseLinearEncoder().fit(X).transform(X)
    for factor in (1e-200, 1e200):
        np.testing.assert_allclose(PiecewiseLinearEncoder().fit(factor * X).transform(factor * X), expected, atol=1e-9)


@pytest.mark.parametrize("n_knots", [1, 0, 2.5, "many"])
def test_bad_parameters(n_knots, X):
    with pytest.raises((ValueError, TypeError), match="'n_knots' parameter of PiecewiseLinearEncoder must be"):
        PiecewiseLinearEncoder(n_knots=n_knots).fit(X)


def test_bad_rows(X):
    with pytest.raises(ValueError, match="NaN"):
        PiecewiseLinearEncoder().fit(np.full_like(X, np.nan))
    with pytest.raises(ValueError, match="features"):
        PiecewiseLinearEncoder().fit(X).transform(X[:, :2])


@parametrize_with_checks([PiecewiseLinearEncoder(n_knots=4)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
