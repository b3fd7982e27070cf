from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import as_numpy
from tests.reference.sketches import hadamard_matrix, hadamard_rows, padded

from ntkit.sketches import fwht


def test_the_matrix_is_sylvesters():
    """All sizes up to 1024, by the reference written with blocks, the one written row by row, and the transform."""
    for n in (2**k for k in range(11)):
        H = hadamard_matrix(n)
        np.testing.assert_array_equal(H @ H.T, n * np.eye(n))
        np.testing.assert_array_equal(hadamard_rows(np.arange(n), n), H)
        np.testing.assert_array_equal(fwht(np.eye(n)), H)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_padded_with_zeros(dtype, to_library, rng):
    for d in (1, 2, 3, 5, 15, 16, 17, 31, 33, 100, 255, 257, 500, 1023, 2000):
        X = rng.standard_normal((19, d)).astype(dtype)
        Y = as_numpy(fwht(to_library(X)))
        assert Y.dtype == dtype
        expected = X.astype(float) @ hadamard_rows(np.arange(padded(d)), padded(d))[:d]
        atol = 16 * np.finfo(dtype).eps * np.abs(X).sum(axis=1).max()
        np.testing.assert_allclose(Y, expected, rtol=0, atol=atol, err_msg=f"{d} features")


@pytest.mark.parametrize("log_n", [12, 14, 17])
def test_long_transforms_of_unit_vectors_are_exact(log_n):
    n = 1 << log_n
    at = np.array([0, 1, 15, 16, 255, 256, 2047, 2048, n // 2 - 1, n // 2, n - 1])
    X = np.zeros((len(at), n), np.float32)
    X[np.arange(len(at)), at] = 1
    expected = hadamard_rows(at, n)  # H is symmetric
    np.testing.assert_array_equal(fwht(X), expected)
    np.testing.assert_array_equal(fwht(X.astype(float)), expected)


def test_any_number_of_rows(rng):
    for n_rows in (1, 2, 7, 8, 9, 15, 16, 17, 40):
        X = rng.standard_normal((n_rows, 24))
        for dtype in (np.float32, np.float64):
            expected, atol = X @ hadamard_matrix(32)[:24], 1000 * np.finfo(dtype).eps
            np.testing.assert_allclose(fwht(X.astype(dtype)), expected, rtol=0, atol=atol, err_msg=f"{n_rows} rows")


def test_ortho_is_its_own_inverse_and_keeps_norms(to_library, rng):
    X = rng.standard_normal((5, 64))
    Y = fwht(to_library(X), norm="ortho")
    np.testing.assert_allclose(np.linalg.norm(as_numpy(Y), axis=1), np.linalg.norm(X, axis=1), rtol=1e-14)
    np.testing.assert_allclose(as_numpy(fwht(Y, norm="ortho")), X, atol=1e-14)


def test_any_axis(to_library, rng):
    X = rng.standard_normal((3, 4, 6, 2))
    for axis in range(-4, 4):
        d = X.shape[axis]
        expected = np.apply_along_axis(lambda x, d=d: hadamard_matrix(padded(d))[:, :d] @ x, axis, X)
        Y = as_numpy(fwht(to_library(X), axis=axis))
        np.testing.assert_allclose(Y, expected, atol=1e-13, err_msg=f"axis {axis}")


def test_types_layouts_and_empty_arrays(rng):
    x = rng.integers(-9, 9, size=(3, 6))
    expected = x @ hadamard_matrix(8)[:6]
    assert fwht(x).dtype == np.float64
    for same in (x, x.astype(np.int8), x.astype(float)[::-1][::-1], np.asfortranarray(x), x.astype(">f8"), x.tolist()):
        np.testing.assert_array_equal(fwht(same), expected)
    np.testing.assert_array_equal(fwht(x > 0), (x > 0) @ hadamard_matrix(8)[:6])
    np.testing.assert_array_equal(fwht(x[0]), expected[0])
    assert fwht(x.astype(np.float16)).dtype == np.float16
    assert fwht(np.zeros((0, 6))).shape == (0, 8)
    assert fwht(np.zeros((2, 0, 6))).shape == (2, 0, 8)
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


def test_bad_arguments():
    from scipy.sparse import csr_array

    ones = np.ones(4)
    for arguments, options, error, text in [
        (ones, {"norm": "forward"}, ValueError, "'norm' parameter of fwht .*None or 'ortho'.*'forward'"),
        (ones, {"axis": 1}, ValueError, "'axis' parameter of fwht must be an int from -1 to 0. Got 1"),
        (ones, {"axis": 0.0}, TypeError, "'axis' parameter of fwht must be an int from -1 to 0. Got 0.0"),
        (ones * 1j, {}, TypeError, "'X' parameter of fwht must be an array of real.*complex128"),
        ("text", {}, TypeError, "'X' parameter of fwht must be an array of real numbers"),
        (np.ones((3, 0)), {}, ValueError, "'X' parameter of fwht .*at least one entry along axis"),
        (np.ones((0, 3)), {"axis": 0}, ValueError, "'X' parameter of fwht .*at least one entry along axis"),
        (1.0, {}, ValueError, "'X' parameter of fwht .*at least one axis"),
        (csr_array(np.eye(4)), {}, TypeError, "'X' parameter of fwht must be a dense array"),
    ]:
        with pytest.raises(error, match=text):
            fwht(arguments, **options)
