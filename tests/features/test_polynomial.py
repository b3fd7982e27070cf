from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import PolynomialCountSketch
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.conftest import as_numpy
from tests.statistical import check_rms_scaling, check_unbiased, spread_rows

from ntkit import PolynomialSketch
from ntkit.kernels import polynomial

METHODS = ("tree", "power", "count")


@parametrize_with_checks([PolynomialSketch(method=method) for method in METHODS])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", METHODS)
def test_many_estimator_checks_ran(method):
    checks = list(estimator_checks_generator(PolynomialSketch(method=method)))
    assert len(checks) >= 45


def maps(law, **parameters):
    """Seed ↦ feature map, for the statistical checks."""
    return lambda seed: lambda X: law(random_state=seed, **parameters).fit_transform(X)


@pytest.mark.parametrize(("degree", "gamma", "coef0"), [(1, 2.0, 0.0), (2, 0.5, 1.0), (3, 1.0, 0.5)])
@pytest.mark.parametrize("method", ["tree", "count"])
def test_inner_products_are_unbiased(degree, gamma, coef0, method):
    X = spread_rows(12)
    K = polynomial(X, degree=degree, gamma=gamma, coef0=coef0)
    parameters = {"degree": degree, "gamma": gamma, "coef0": coef0, "n_components": 128, "method": method}
    check_unbiased(maps(PolynomialSketch, **parameters), X, K, n_seeds=400)
    with pytest.raises(AssertionError):
        check_unbiased(maps(PolynomialSketch, **parameters | {"gamma": 1.05 * gamma}), X, K, n_seeds=400)
    if coef0:
        with pytest.raises(AssertionError):
            check_unbiased(maps(PolynomialSketch, **parameters | {"coef0": 0.0}), X, K, n_seeds=400)


@pytest.mark.parametrize("method", METHODS)
def test_four_times_the_components_halve_the_error(method):
    X = spread_rows(12)
    K = polynomial(X, degree=3, gamma=1.0, coef0=1.0)

    def sample(n_components, seed):
        parameters = {"degree": 3, "coef0": 1.0, "n_components": n_components, "method": method}
        return maps(PolynomialSketch, **parameters)(seed)

    low = 0.35 if method == "power" else 0.4  # its bias falls faster than its noise
    check_rms_scaling(sample, X, K, n_components=256, low=low)


@pytest.mark.parametrize("degree", [2, 3, 8])
def test_no_more_error_than_scikit_learn(degree, rng):
    X = rng.standard_normal((60, 40))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    K = (X @ X.T) ** degree

    def error(law, **parameters):
        Z = [law(degree=degree, n_components=256, random_state=s, **parameters).fit_transform(X) for s in range(20)]
        return np.sqrt(np.mean([np.mean((z @ z.T - K) ** 2) for z in Z]))

    theirs = error(PolynomialCountSketch)
    for method in METHODS:
        assert error(PolynomialSketch, method=method) < 1.1 * theirs
    if degree == 8:  # measured 0.2: 3^(p/2) against √p
        assert error(PolynomialSketch) < 0.5 * theirs


@pytest.mark.parametrize("coef0", [0.0, 2.0])
@pytest.mark.parametrize("method", METHODS)
def test_all_kinds_of_rows_give_the_same_features(method, coef0, rng, to_library):
    import pandas as pd

    X = rng.standard_normal((21, 10))
    fitted = PolynomialSketch(degree=3, gamma=0.5, coef0=coef0, n_components=20, method=method, random_state=0).fit(X)
    Z = fitted.transform(X)
    assert Z.shape == (21, 20)
    np.testing.assert_allclose(fitted.transform(sp.csr_array(X)), Z, atol=1e-12)
    np.testing.assert_allclose(fitted.transform(sp.csc_matrix(X)), Z, atol=1e-12)
    np.testing.assert_allclose(as_numpy(fitted.transform(to_library(X))), Z, atol=1e-12)
    np.testing.assert_allclose(clone(fitted).fit_transform(to_library(X)), Z, atol=1e-12)
    np.testing.assert_allclose(clone(fitted).fit_transform(pd.DataFrame(X).rename(columns=str)), Z, atol=1e-12)
    np.testing.assert_allclose(fitted.transform(X.astype(np.float32)), Z, rtol=1e-4, atol=1e-4)
    assert fitted.transform(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("method", METHODS)
def test_a_sparse_fit_takes_dense_rows_too(method, rng):
    X = rng.standard_normal((21, 10)) * (rng.random((21, 10)) < 0.3)
    fitted = PolynomialSketch(degree=3, coef0=1.0, n_components=20, method=method, random_state=0).fit(sp.csr_array(X))
    np.testing.assert_allclose(fitted.transform(X), fitted.transform(sp.csr_array(X)), atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_features_do_not_depend_on_batches_pickling_or_order_of_fits(method, rng):
    X = rng.standard_normal((50, 7))
    fitted = PolynomialSketch(degree=2, n_components=9, method=method, random_state=3).fit(X)
    Z = fitted.transform(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X), Z)
    np.testing.assert_array_equal(fitted.set_params(batch_size=11).transform(X), Z)
    np.testing.assert_array_equal(np.vstack([fitted.transform(X[:20]), fitted.transform(X[20:])]), Z)
    np.testing.assert_array_equal(clone(fitted).fit(X[:1]).transform(X), Z)
    assert not np.allclose(clone(fitted).set_params(random_state=4).fit_transform(X), Z)


def test_torch_tensors_stay_tensors(rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((5, 4))).float()
    fitted = PolynomialSketch(n_components=8, random_state=0).fit(X)
    Z = fitted.transform(X)
    assert isinstance(Z, torch.Tensor)
    assert Z.dtype == torch.float32
    with pytest.raises(ValueError, match="X has 3 features, but PolynomialSketch is expecting 4"):
        fitted.transform(X[:, :3])
    with pytest.raises(ValueError, match="must be finite"):
        fitted.transform(X * float("nan"))


def test_in_place_of_polynomial_count_sketch():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    accuracy = {}
    for law in (PolynomialSketch, PolynomialCountSketch):
        model = make_pipeline(law(degree=4, gamma=0.1, coef0=1, n_components=512, random_state=0), RidgeClassifier())
        accuracy[law] = cross_val_score(model, X, y, cv=3).mean()
    assert accuracy[PolynomialSketch] > 0.9
    assert accuracy[PolynomialSketch] > accuracy[PolynomialCountSketch] - 0.02


def test_grid_search_names_and_output():
    X, y = load_digits(return_X_y=True, as_frame=True)
    model = make_pipeline(PolynomialSketch(gamma=1e-3, n_components=64, random_state=0), RidgeClassifier())
    search = GridSearchCV(model, {"polynomialsketch__degree": [1, 2], "polynomialsketch__method": METHODS}, cv=2)
    search.set_params(estimator__polynomialsketch__coef0=1.0).fit(X[:300], y[:300])
    frame = PolynomialSketch(n_components=3, random_state=0).set_output(transform="pandas").fit_transform(X[:4])
    assert list(frame.columns) == ["polynomialsketch0", "polynomialsketch1", "polynomialsketch2"]


@pytest.mark.parametrize(
    ("parameter", "value", "error"),
    [
        ("degree", 0, ValueError), ("degree", 2.0, TypeError), ("gamma", -1.0, ValueError), ("gamma", "a", TypeError),
        ("coef0", -0.1, ValueError), ("coef0", np.nan, ValueError), ("n_components", 0, ValueError),
        ("n_components", None, TypeError), ("method", "trees", ValueError), ("batch_size", 0, ValueError),
        ("random_state", -1, ValueError),
    ],
)  # fmt: skip
def test_bad_parameters(parameter, value, error):
    with pytest.raises(error, match=rf"'{parameter}' parameter of PolynomialSketch must be .*Got {value!r} instead"):
        PolynomialSketch(**{parameter: value}).fit(np.ones((2, 3)))


def test_bad_rows():
    with pytest.raises(NotFittedError):
        PolynomialSketch().transform(np.ones((2, 3)))
    fitted = PolynomialSketch().fit(np.ones((2, 3)))
    with pytest.raises(ValueError, match="NaN"):
        fitted.transform([[np.nan, 1, 2]])
    with pytest.raises(ValueError, match="4 features"):
        fitted.transform(np.ones((2, 4)))


@pytest.mark.parametrize("method", METHODS)
def test_zero_rows_map_to_zero_without_a_constant(method):
    Z = PolynomialSketch(degree=3, n_components=16, method=method, random_state=0).fit_transform(np.zeros((2, 5)))
    assert not Z.any()


def test_a_failed_fit_leaves_the_map_unfitted():
    sketch = PolynomialSketch(random_state=-1)
    with pytest.raises(ValueError, match="random_state"):
        sketch.fit(np.ones((2, 3)))
    with pytest.raises(NotFittedError):
        sketch.transform(np.ones((2, 3)))


def test_names_are_those_of_the_fitted_map():
    sketch = PolynomialSketch(n_components=4, random_state=0)
    with pytest.raises(NotFittedError):
        sketch.get_feature_names_out()
    sketch.fit(np.ones((2, 3))).set_params(n_components=9)
    assert len(sketch.get_feature_names_out()) == sketch.transform(np.ones((2, 3))).shape[1] == 4
