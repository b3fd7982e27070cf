"""Factorizations of dense matrices against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conftest import as_numpy

from ntkit.models import _linalg
from ntkit.models._linalg import _factorize_blocks, cholesky, cholesky_solve, eigh, shifted_cholesky, solve_lower

N = 37


def definite(n, rng):
    A = rng.standard_normal((n, n + 3))
    return A @ A.T


@pytest.mark.parametrize("n", [1, 5, 64, 100])
def test_cholesky_in_blocks(n, rng):
    A = definite(n, rng)
    for block in (1, 16, 200):
        factor = A.copy()
        assert _factorize_blocks(factor, block)
        np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(A), atol=1e-10)
        assert not _factorize_blocks(A - 1e6 * np.eye(n), block)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("most_threaded", [10_000, 10])
def test_factorizations(library, most_threaded, rng, monkeypatch):
    """In place, from the lower triangle only, of matrices in any order; None where there is no factor."""
    monkeypatch.setattr(_linalg, "_MAX_THREADED", most_threaded)
    monkeypatch.setattr(_linalg, "_BLOCK", 16)
    put = np.asarray
    if library == "torch":
        import torch

        put = torch.from_numpy
    A, B = definite(N, rng), rng.standard_normal((N, 3))
    lower = np.tril(A) + np.triu(np.full((N, N), np.nan), 1)
    expected = np.linalg.cholesky(A + 0.5 * np.eye(N))
    given = put(lower.copy())
    factor = cholesky(given, 0.5)
    assert factor is given
    np.testing.assert_allclose(np.tril(as_numpy(factor)), expected, atol=1e-10)
    for turned in (np.asfortranarray(A), np.repeat(A, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(np.tril(as_numpy(cholesky(put(turned), 0.5))), expected, atol=1e-10)
    np.testing.assert_allclose(as_numpy(solve_lower(factor, put(B))), np.linalg.solve(expected, B), atol=1e-9)
    np.testing.assert_allclose(
        as_numpy(solve_lower(factor, put(B), transposed=True)), np.linalg.solve(expected.T, B), atol=1e-9
    )
    solution = as_numpy(cholesky_solve(factor, put(B)))
    np.testing.assert_allclose(solution, np.linalg.solve(A + 0.5 * np.eye(N), B), atol=1e-9)
    assert cholesky(put(A.copy()), -1e6) is None
    values, vectors = (as_numpy(part) for part in eigh(put(A.copy())))
    np.testing.assert_allclose(vectors * values @ vectors.T, A, atol=1e-10)


def test_shifts_grow_until_a_factor_exists():
    A = np.diag([1.0, -1e-6])
    kept = A.copy()
    factor = shifted_cholesky(A, 1e-8)  # 1e-6 leaves zero: 1e-5 is the first that does
    np.testing.assert_allclose(np.tril(factor) @ np.tril(factor).T, A + 1e-5 * np.eye(2), atol=1e-12)
    np.testing.assert_array_equal(A, kept)
    with pytest.raises(ValueError, match="kernel must be positive semi-definite"):
        shifted_cholesky(A, 1e-15)
