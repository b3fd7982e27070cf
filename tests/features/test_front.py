"""Front doors choose the map that suits the rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from tests.conftest import as_numpy

from ntkit import (
    FastfoodFeatures,
    GaussianFeatures,
    GegenbauerFeatures,
    GradientFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    OrthogonalFourierFeatures,
    RandomFourierFeatures,
)
from ntkit.features import DotProductSketch
from ntkit.kernels import gaussian, network_kernel, ntk
from ntkit.networks import fully_connected

LAWS = {
    "gegenbauer": GegenbauerFeatures,
    "taylor": DotProductSketch,
    "orthogonal": OrthogonalFourierFeatures,
    "fourier": RandomFourierFeatures,
    "fastfood": FastfoodFeatures,
}


@pytest.mark.parametrize("method", LAWS)
def test_a_method_is_the_map_of_that_name(method, rng):
    X = rng.standard_normal((30, 4))
    door = GaussianFeatures(n_components=64, lengthscale=2.0, method=method, random_state=3).fit(X)
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
    door = GaussianFeatures(n_components=256, lengthscale=scale * d**0.5, random_state=0).fit(X)
    assert set(door.errors_) == {"taylor", "orthogonal"} | ({"gegenbauer"} if d <= 16 else set())
    assert door.errors_[door.method_] == min(door.errors_.values())
    K = gaussian(X, lengthscale=scale * d**0.5)
    plain = RandomFourierFeatures(n_components=256, lengthscale=scale * d**0.5, random_state=0).fit(X).transform(X)
    Z = door.transform(X)
    assert np.linalg.norm(Z @ Z.T - K) <= 1.05 * np.linalg.norm(plain @ plain.T - K)
    np.testing.assert_allclose(door.exact_kernel(X), K)


def test_few_columns_get_harmonics_that_are_nearly_exact(rng):
    X = rng.standard_normal((300, 2))
    door = GaussianFeatures(n_components=256, random_state=0).fit(X)
    assert door.method_ == "gegenbauer"
    Z = door.transform(X)
    assert np.abs(Z @ Z.T - gaussian(X, lengthscale=door.lengthscale_)).max() < 1e-3


def test_sparse_rows_and_many_columns(rng):
    X = sp.random_array((20, 500), density=0.05, rng=rng, format="csr")
    assert GaussianFeatures(n_components=16).fit(X).method_ == "fourier"
    assert GaussianFeatures(n_components=2**15).fit(rng.standard_normal((3, 2049))).method_ == "fastfood"
    assert "taylor" not in GaussianFeatures(n_components=16, random_state=0).fit(rng.standard_normal((3, 2049))).errors_


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
    door = GaussianFeatures(n_components=8, random_state=0).fit(X)
    before = door.transform(X)
    with pytest.raises(error, match=text):
        door.set_params(**parameters).fit(X)
    if "batch_size" in parameters:  # which `transform` reads, too
        with pytest.raises(error, match=f"{text} parameter of GaussianFeatures"):
            door.transform(X)
        door.set_params(batch_size=None)
    np.testing.assert_array_equal(door.transform(X), before)
    with pytest.raises(NotFittedError):
        GaussianFeatures().transform(X)


# The methods of NTKFeatures.

NTK_METHODS = ("auto", "polynomial", "random", "sketch", "gradient")


@pytest.mark.parametrize("method", NTK_METHODS)
def test_methods_of_ntk_features(method, rng):
    X = rng.standard_normal((30, 20))
    features = NTKFeatures(depth=2, n_components=512, method=method, random_state=0).fit(X)
    Z, K = features.transform(X), ntk(X, depth=2)
    laws = {"polynomial": NTKPolynomialSketch, "random": NTKRandomFeatures, "sketch": NTKSketch}
    assert features.method_ == (method if method != "auto" else features.method_)
    assert features.method_ in NTK_METHODS[1:]
    if features.method_ == "gradient":
        inner = GradientFeatures(fully_connected(2), n_components=512, random_state=0)
        assert features.map_.weights_[0].shape[1] == 20
        np.testing.assert_allclose(network_kernel(fully_connected(2), X, kind="ntk"), K)
    else:
        inner = laws[features.method_](depth=2, n_components=512, random_state=0)
        assert np.linalg.norm(Z @ Z.T - K) < 0.2 * np.linalg.norm(K)
        np.testing.assert_allclose((Z**2).sum(1), 3 * (X**2).sum(1))
        assert Z.shape == (30, 512)
    assert type(features.map_) is type(inner)
    np.testing.assert_array_equal(inner.fit_transform(X), Z)
    assert len(features.get_feature_names_out()) == Z.shape[1]
    assert features.estimate_error(X) == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


def test_auto_is_no_worse_than_the_other_methods():
    """Over 5 seeds on digits; other maps are up to three times worse."""
    X = load_digits().data[:200] / 16
    errors = {}
    for method in NTK_METHODS[:4]:
        maps = [NTKFeatures(depth=2, n_components=512, method=method, random_state=s).fit(X) for s in range(5)]
        errors[method] = np.mean([features.estimate_error(X) for features in maps])
    assert errors["auto"] < 1.1 * min(errors.values())


def test_ntk_features_pass_their_parameters_on(rng):
    X = rng.standard_normal((30, 6))
    features = NTKFeatures(depth=3, n_components=40, batch_size=7, random_state=4).fit(X)
    parameters = features.map_.get_params()
    assert {k: parameters[k] for k in ("depth", "n_components", "batch_size", "random_state")} == {
        "depth": 3, "n_components": 40, "batch_size": 7, "random_state": 4,
    }  # fmt: skip
    sparse = NTKFeatures(n_components=40, random_state=0).fit(sp.csr_array(X))
    np.testing.assert_allclose(sparse.transform(X), sparse.transform(sp.csr_array(X)), atol=1e-12)
    inner = NTKPolynomialSketch(n_components=40, random_state=0).fit(sp.csr_array(X))
    if sparse.method_ == "polynomial":
        np.testing.assert_array_equal(inner.transform(X), sparse.transform(X))


def test_messages_of_the_front_door_are_its_own():
    X = np.ones((2, 3))
    with pytest.raises(ValueError, match="'random_state' parameter of NTKFeatures"):
        NTKFeatures(random_state=-1).fit(X)
    for method in ("random", "sketch", "polynomial", "gradient"):
        assert NTKFeatures(n_components=1, method=method).fit_transform(X).shape == (2, 1)
