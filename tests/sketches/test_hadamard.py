from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import as_numpy
from tests.reference.sketches import hadamard_matrix, padded

from ntkit.sketches import _agnostic, fwht


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
def test_reference_and_array_code_agree_on_the_matrix(n):
    H = hadamard_matrix(n)
    np.testing.assert_array_equal(H @ H.T, n * np.eye(n))
    np.testing.assert_array_equal(fwht(np.eye(n)), H)
    np.testing.assert_array_equal(_agnostic.hadamard(np.eye(n)), H)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 2, 3, 5, 15, 16, 17, 31, 33, 100, 255, 257, 500, 1023, 2000])
def test_transform_is_the_padded_matrix(d, dtype, to_library, rng):
    X = rng.standard_normal((19, d)).astype(dtype)
    Y = as_numpy(fwht(to_library(X)))
    assert Y.dtype == dtype
    expected = X.astype(float) @ hadamard_matrix(padded(d))[:d]
    np.testing.assert_allclose(Y, expected, rtol=0, atol=16 * np.finfo(dtype).eps * np.abs(X).sum(axis=1).max())


@pytest.mark.parametrize("log_n", [12, 13, 14, 15, 16, 17])
def test_long_transforms_of_unit_vectors_are_exact(log_n):
    n = 1 << log_n
    at = np.array([0, 1, 15, 16, 255, 256, 2047, 2048, n // 2 - 1, n // 2, n - 1])
    X = np.zeros((len(at), n), np.float32)
    X[np.arange(len(at)), at] = 1
    expected = 1 - 2 * (np.bitwise_count(np.arange(n) & at[:, None]) % 2).astype(np.float32)
    np.testing.assert_array_equal(fwht(X), expected)
    np.testing.assert_array_equal(fwht(X.astype(float)), expected)


@pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 9, 15, 16, 17, 40])
def test_any_number_of_rows(n_rows, rng):
    X = rng.standard_normal((n_rows, 24))
    for dtype in (np.float32, np.float64):
        Y = fwht(X.astype(dtype))
        np.testing.assert_allclose(Y, X @ hadamard_matrix(32)[:24], rtol=0, atol=1000 * np.finfo(dtype).eps)


def test_ortho_is_its_own_inverse_and_keeps_norms(to_library, rng):
    X = rng.standard_normal((5, 64))
    Y = fwht(to_library(X), norm="ortho")
    np.testing.assert_allclose(np.linalg.norm(as_numpy(Y), axis=1), np.linalg.norm(X, axis=1), rtol=1e-14)
    np.testing.assert_allclose(as_numpy(fwht(Y, norm="ortho")), X, atol=1e-14)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_any_axis(axis, to_library, rng):
    X = rng.standard_normal((3, 4, 6))
    Y = as_numpy(fwht(to_library(X), axis=axis))
    d = X.shape[axis]
    expected = np.apply_along_axis(lambda x: hadamard_matrix(padded(d))[:, :d] @ x, axis, X)
    np.testing.assert_allclose(Y, expected, atol=1e-13)


def test_odd_inputs(rng):
    x = rng.integers(-9, 9, size=(3, 6))
    expected = x @ hadamard_matrix(8)[:6]
    assert fwht(x).dtype == np.float64
    for same in (x, x.astype(np.int8), x.astype(float)[::-1][::-1], np.asfortranarray(x), x.astype(">f8"), x.tolist()):
        np.testing.assert_array_equal(fwht(same), expected)
    np.testing.assert_array_equal(fwht(x > 0), (x > 0) @ hadamard_matrix(8)[:6])
    np.testing.assert_array_equal(fwht(x[0]), expected[0])
    assert fwht(np.zeros((0, 6))).shape == (0, 8)
    assert fwht(np.zeros((2, 0, 6))).shape == (2, 0, 8)
    assert fwht(x.astype(np.float16)).dtype == np.float16


def test_an_empty_axis_other_than_the_transformed_one_is_allowed():
    assert fwht(np.zeros((6, 0)), axis=0).shape == (8, 0)


def test_nan_stays_in_its_row():
    X = np.ones((20, 4))
    X[3, 1] = np.nan
    X[5, 2] = np.inf
    finite = np.isfinite(fwht(X)).all(axis=1)
    assert sorted(np.flatnonzero(~finite)) == [3, 5]


def test_torch_gradient_is_the_transposed_transform(rng):
    import torch

    X = torch.from_numpy(rng.standard_normal((2, 5))).requires_grad_()
    assert torch.autograd.gradcheck(fwht, (X,))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fwht(np.ones(4), norm="forward"), ValueError, "'norm' parameter of fwht .*None or 'ortho'.*'forward'"),
        (lambda: fwht(np.ones(4), axis=1), ValueError, "'axis' parameter of fwht must be an int from -1 to 0. Got 1"),
        (
            lambda: fwht(np.ones(4), axis=0.0),
            TypeError,
            "'axis' parameter of fwht must be an int from -1 to 0. Got 0.0",
        ),
        (lambda: fwht(np.ones(4) * 1j), TypeError, "'X' parameter of fwht must be an array of real.*complex128"),
        (lambda: fwht("text"), TypeError, "'X' parameter of fwht must be an array of real numbers"),
        (lambda: fwht(np.ones((3, 0))), ValueError, "'X' parameter of fwht .*at least one entry along axis"),
        (lambda: fwht(np.ones((0, 3)), axis=0), ValueError, "'X' parameter of fwht .*at least one entry along axis"),
        (lambda: fwht(1.0), ValueError, "'X' parameter of fwht .*at least one axis"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_sparse_rows_are_refused_by_name():
    from scipy.sparse import csr_array

    with pytest.raises(TypeError, match="'X' parameter of fwht"):
        fwht(csr_array(np.eye(4)))
