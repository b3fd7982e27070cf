"""Front doors choose the map that suits the rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.conftest import as_numpy

from ntkit import (
    FastfoodFeatures,
    GaussianFeatures,
    GegenbauerFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    OrthogonalFourierFeatures,
    RandomFourierFeatures,
)
from ntkit.features import DotProductSketch
from ntkit.kernels import gaussian, ntk

LAWS = {
    "gegenbauer": GegenbauerFeatures,
    "taylor": DotProductSketch,
    "orthogonal": OrthogonalFourierFeatures,
    "fourier": RandomFourierFeatures,
    "fastfood": FastfoodFeatures,
}


@parametrize_with_checks([GaussianFeatures(16), NTKFeatures(n_components=16, method="gegenbauer")])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", LAWS)
def test_a_method_is_the_map_of_that_name(method, rng):
    X = rng.standard_normal((30, 4))
    door = GaussianFeatures(64, lengthscale=2.0, method=method, random_state=3).fit(X)
    kernel = {"kernel": "gaussian"} if method in ("gegenbauer", "taylor") else {}
    own = LAWS[method](n_components=64, lengthscale=2.0, random_state=3, **kernel).fit(X)
    assert type(door.map_) is LAWS[method]
    assert door.method_ == method
    assert door.errors_ == {}
    np.testing.assert_array_equal(door.transform(X), own.transform(X))
    np.testing.assert_array_equal(
        door.get_feature_names_out(), [f"gaussianfeatures{i}" for i in range(own._n_features_out)]
    )
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(door)).transform(X), own.transform(X))
    tensor = door.transform(torch.from_numpy(X))
    np.testing.assert_allclose(as_numpy(tensor), own.transform(X), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("d", "scale"), [(2, 1.0), (4, 1.0), (12, 1.0), (40, 1.0), (40, 0.2)])
def test_auto_takes_the_smallest_error_on_the_rows(d, scale, rng):
    X = rng.standard_normal((400, d))
    door = GaussianFeatures(256, lengthscale=scale * d**0.5, random_state=0).fit(X)
    assert set(door.errors_) == {"taylor", "orthogonal"} | ({"gegenbauer"} if d <= 16 else set())
    assert door.errors_[door.method_] == min(door.errors_.values())
    K = gaussian(X, lengthscale=scale * d**0.5)
    plain = RandomFourierFeatures(256, lengthscale=scale * d**0.5, random_state=0).fit(X).transform(X)
    Z = door.transform(X)
    assert np.linalg.norm(Z @ Z.T - K) <= 1.05 * np.linalg.norm(plain @ plain.T - K)
    np.testing.assert_allclose(door._kernel(X), K)


def test_few_columns_get_harmonics_that_are_nearly_exact(rng):
    X = rng.standard_normal((300, 2))
    door = GaussianFeatures(256, random_state=0).fit(X)
    assert door.method_ == "gegenbauer"
    Z = door.transform(X)
    assert np.abs(Z @ Z.T - gaussian(X, lengthscale=door.lengthscale_)).max() < 1e-3


def test_sparse_rows_and_many_columns(rng):
    X = sp.random_array((20, 500), density=0.05, rng=rng, format="csr")
    assert GaussianFeatures(16).fit(X).method_ == "fourier"
    assert GaussianFeatures(2**15).fit(rng.standard_normal((3, 2049))).method_ == "fastfood"
    assert "taylor" not in GaussianFeatures(16, random_state=0).fit(rng.standard_normal((3, 2049))).errors_


@pytest.mark.parametrize(
    ("d", "bias", "method"), [(5, 0.0, "gegenbauer"), (5, 1.0, "polynomial"), (6, 0.0, "polynomial")]
)
def test_the_ntk_of_few_columns_gets_harmonics(d, bias, method, rng):
    X = rng.standard_normal((300, d))
    door = NTKFeatures(depth=2, n_components=256, bias=bias, random_state=0).fit(X)
    assert door.method_ == method
    assert type(door.map_) is (GegenbauerFeatures if method == "gegenbauer" else NTKPolynomialSketch)
    rows = np.hstack([X, np.full((300, 1), bias)]) if bias else X
    K, Z = ntk(rows, depth=2), door.transform(X)
    assert np.linalg.norm(Z @ Z.T - K) < 0.06 * np.linalg.norm(K)
    np.testing.assert_array_equal(clone(door).fit(0 * X).transform(X), Z)  # the map does not depend on the rows
    sparse = clone(door).fit(sp.csr_array(X))
    assert sparse.method_ == method
    np.testing.assert_allclose(sparse.transform(X), Z, atol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "error", "text"),
    [
        ({"n_components": 0}, ValueError, "'n_components' parameter of GaussianFeatures must be an int ≥ 1. Got 0"),
        ({"n_components": 2.5}, TypeError, "'n_components'"),
        ({"method": "best"}, ValueError, "'method' parameter of GaussianFeatures must be one of 'auto', 'gegenbauer'"),
        ({"lengthscale": -1.0}, ValueError, "'lengthscale' parameter of GaussianFeatures must be .* > 0 or 'scale'"),
        ({"batch_size": 0}, ValueError, "'batch_size'"),
        ({"random_state": "x"}, TypeError, "'random_state'"),
    ],
)
def test_bad_parameters(parameters, error, text, rng):
    X = rng.standard_normal((5, 3))
    door = GaussianFeatures(8, random_state=0).fit(X)
    before = door.transform(X)
    with pytest.raises(error, match=text):
        door.set_params(**parameters).fit(X)
    np.testing.assert_array_equal(door.transform(X), before)
    with pytest.raises(NotFittedError):
        GaussianFeatures().transform(X)
