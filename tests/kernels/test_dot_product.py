from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from tests.conftest import as_numpy

from ntkit.kernels import arc_cosine_taylor, diagonal, dot_product, exponential, gaussian, polynomial

SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.integers(0, 10**6))


def rows(shape):
    n, m, d, seed = shape
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal((m, d))


@given(SHAPES, st.floats(0.1, 10))
def test_gaussian_is_scikit_learns(shape, lengthscale):
    X, Y = rows(shape)
    expected = rbf_kernel(X, Y, gamma=0.5 / lengthscale**2)
    np.testing.assert_allclose(gaussian(X, Y, lengthscale=lengthscale), expected, rtol=1e-10, atol=1e-300)


@given(SHAPES, st.integers(1, 6), st.floats(0, 3), st.floats(0.1, 3))
def test_polynomial_is_scikit_learns(shape, degree, coef0, gamma):
    X, Y = rows(shape)
    expected = polynomial_kernel(X, Y, degree=degree, coef0=coef0, gamma=gamma)
    value = polynomial(X, Y, degree=degree, coef0=coef0, gamma=gamma)
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12)


@given(SHAPES)
def test_gaussian_is_a_scaled_exponential(shape):
    X, Y = rows(shape)
    x, y = (np.exp(-np.sum(Z**2, axis=1) / (2 * 1.5**2)) for Z in (X, Y))
    expected = exponential(X, Y, lengthscale=1.5) * np.outer(x, y)
    np.testing.assert_allclose(gaussian(X, Y, lengthscale=1.5), expected, rtol=1e-10)


def test_dot_product_from_function_and_coefficients(rng, to_library):
    X = rng.uniform(-0.3, 0.3, (6, 4))
    coefficients = arc_cosine_taylor(1, 40)
    from ntkit.kernels import arc_cosine

    by_series = as_numpy(dot_product(to_library(X), function=coefficients))
    by_function = as_numpy(dot_product(to_library(X), function=lambda t: arc_cosine(t, 1)))
    np.testing.assert_allclose(by_series, by_function, rtol=1e-12)
    np.testing.assert_allclose(dot_product(X, function=[0, 0, 0, 2]), 2 * (X @ X.T) ** 3, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("function", "params"),
    [
        (gaussian, {"lengthscale": 2.0}),
        (polynomial, {"degree": 3, "coef0": 1.0, "gamma": 0.5}),
        (exponential, {"lengthscale": 2.0}),
        (dot_product, {"function": [1.0, 0.5, 0.25]}),
    ],
)
def test_libraries_dtypes_sparse_and_diagonal(function, params, rng, to_library):
    rows = rng.standard_normal((7, 5))
    rows[2] = 0
    for dtype in ("float32", "float64"):
        X = rows.astype(dtype)
        K = as_numpy(function(to_library(X), **params))
        assert K.dtype == dtype
        wide = function(X.astype(float), **params)
        np.testing.assert_allclose(K, wide, rtol=1e-6 if dtype == "float32" else 1e-13, err_msg=dtype)
        assert (K == K.T).all(), dtype
        np.testing.assert_allclose(function(sparse.csr_array(X), **params), K, rtol=1e-6, err_msg=dtype)
        values = as_numpy(diagonal(function.__name__, to_library(X), **params))
        assert values.dtype == dtype
        np.testing.assert_allclose(values, np.diagonal(K), rtol=1e-6, err_msg=dtype)
        part = as_numpy(function(to_library(X), to_library(X[:3]), **params))
        np.testing.assert_allclose(part, K[:, :3], rtol=1e-6, err_msg=dtype)


def test_large_symmetric_matrices_are_mirrored(rng):
    """Matrices of several tiles equal the matrix of `X` and a copy of it."""
    X = rng.standard_normal((1100, 2))
    for function, params in (
        (gaussian, {}),
        (polynomial, {"coef0": 1.0}),
        (exponential, {"lengthscale": 2.0}),
        (dot_product, {"function": [1.0, 0.5, 0.25]}),
    ):
        K = function(X, **params)
        assert (K == K.T).all(), function.__name__
        expected = function(X, X.copy(), **params)
        np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-12, err_msg=function.__name__)


def test_gaussian_of_duplicates_far_from_the_origin_is_one():
    X = np.array([[1e6, 1e6], [1e6, 1e6 + 1e-3]], dtype=np.float64)
    np.testing.assert_allclose(gaussian(X, X.copy(), lengthscale=1.0), np.ones((2, 2)), atol=1e-3)
    assert (np.diagonal(gaussian(X)) == 1).all()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: gaussian([[1.0]], lengthscale=0),
            ValueError,
            "'lengthscale' parameter of gaussian must be.*> 0. Got 0",
        ),
        (lambda: gaussian([[1.0]], lengthscale="a"), TypeError, "'lengthscale' parameter of gaussian"),
        (lambda: exponential([[1.0]], lengthscale=np.inf), ValueError, "finite"),
        (lambda: polynomial([[1.0]], degree=0), ValueError, "'degree' parameter of polynomial must be an int ≥ 1"),
        (lambda: polynomial([[1.0]], coef0=-1), ValueError, "'coef0' parameter of polynomial must be.*≥ 0"),
        (lambda: polynomial([[1.0]], gamma=0), ValueError, "'gamma'"),
        (lambda: dot_product([[1.0]], function=[]), ValueError, "'function' parameter of dot_product"),
        (lambda: dot_product([[1.0]], function=[np.nan]), ValueError, "finite Taylor coefficients"),
        (lambda: gaussian(np.full((2, 2), np.nan)), ValueError, "4 such entries"),
        (lambda: gaussian(sparse.csr_array([[np.nan]])), ValueError, "finite"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
