"""BLAS and LAPACK without Python's lock equal NumPy, in both precisions, and refuse other matrices."""

from __future__ import annotations

import numpy as np
import pytest

from ntkit import _lapack


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request):
    return request.param


@pytest.fixture
def positive(dtype, rng):
    Z = rng.standard_normal((7, 9)).astype(dtype)
    return Z @ Z.T + np.eye(7, dtype=dtype)


def close(found, expected, dtype):
    np.testing.assert_allclose(found, expected, atol=2e-4 if dtype == np.float32 else 1e-12)


def test_cholesky_and_inverses(positive, dtype):
    L = positive.copy()
    assert _lapack.cholesky_in_place(L)
    close(np.tril(L), np.linalg.cholesky(positive), dtype)
    inverse = L.copy()
    assert _lapack.invert_from_cholesky(inverse)
    close(np.tril(inverse), np.tril(np.linalg.inv(positive)), dtype)
    triangle = L.copy()
    assert _lapack.invert_triangle(triangle)
    close(np.tril(triangle), np.linalg.inv(np.tril(L)), dtype)
    assert not _lapack.cholesky_in_place(-positive)


def test_solutions_and_products(positive, dtype, rng):
    L = np.linalg.cholesky(positive)
    B, K = rng.standard_normal((7, 3)).astype(dtype), rng.standard_normal((5, 7)).astype(dtype)
    for transposed in (False, True):
        Bt = B.T.copy()
        _lapack.solve_triangle(L, Bt, transposed=transposed)
        close(Bt.T, np.linalg.solve(L.T if transposed else L, B), dtype)
    R = np.ascontiguousarray(L.T)
    expected = K @ R
    close(_lapack.times_triangle(K, R), expected, dtype)
    for Z in (K, np.asfortranarray(K)):
        total = np.ones((7, 7), dtype)
        _lapack.add_gram(Z, total)
        close(np.tril(total), np.tril(1 + Z.T @ Z), dtype)


def test_triangular_root(positive, dtype):
    root = _lapack.triangular_root(positive)
    close(root @ root.T, np.linalg.inv(positive), dtype)
    assert np.array_equal(root, np.triu(root))
    assert _lapack.triangular_root(-positive) is None


def test_other_orders_and_types_are_refused(rng):
    with pytest.raises(TypeError, match="row-major order"):
        _lapack.cholesky_in_place(np.asfortranarray(rng.standard_normal((3, 3)))[::-1])
    with pytest.raises(TypeError, match="matrices of float64"):
        _lapack.solve_triangle(np.eye(3), np.ones((2, 3), np.float32), transposed=False)


def test_empty_matrices(dtype):
    assert _lapack.cholesky_in_place(np.zeros((0, 0), dtype))
    assert _lapack.times_triangle(np.zeros((0, 3), dtype), np.eye(3, dtype=dtype)).shape == (0, 3)
    total = np.ones((3, 3), dtype)
    _lapack.add_gram(np.zeros((0, 3), dtype), total)
    np.testing.assert_array_equal(total, 1)
