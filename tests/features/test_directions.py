"""Laws of random directions: orthogonal blocks, rows that are uniform on the sphere. Means are in test_laws.

The level of a check is the probability of a false alarm for a correct law.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy import stats
from tests.statistical import LEVEL
from tests.tiers import scaled

from ntkit.features.directions import LAWS, Directions, orthonormal_rows, random_rotations, uniform
from ntkit.programs import array_api

SEED = 100_000 * int(os.environ.get("NTKIT_TEST_SEED", "0"))  # the nightly sweep
SIZES = pytest.mark.parametrize("n_features", [20, 32, 64])
N_DRAWS = scaled(1000, 2000)


@SIZES
def test_blocks_are_orthogonal(n_features):
    """Blocks of n rows, n the power of two ≥ d: W Wᵀ = n I of all n columns, and Wᵀ W = n I of the first d."""
    n = 1 << (n_features - 1).bit_length()
    w = Directions(n_features, 3 * n, "hadamard").sample(np.random.SeedSequence(SEED)).astype(np.float64)
    for block in w.reshape(3, n, n_features):
        np.testing.assert_allclose(block.T @ block, n * np.eye(n_features), atol=2e-5 * n)
        if n == n_features:
            np.testing.assert_allclose(block @ block.T, n * np.eye(n), atol=2e-5 * n)
    assert not np.allclose(w[:n], w[n : 2 * n])


def test_no_direction_comes_twice():
    """Of more rows than are drawn at a time."""
    seed = np.random.SeedSequence(SEED)
    rows = [Directions(20, 700, law).sample(seed) for law in LAWS]
    rows += [uniform(seed, 20, 700, orthogonal=orthogonal).T for orthogonal in (True, False)]
    rows += [orthonormal_rows(seed, 20, 700), orthonormal_rows(seed, 300, 700)]
    for w in rows:
        assert len(np.unique(np.round(w[:, :20], 5), axis=0)) == 700


def test_rotations_are_orthogonal():
    for n in (1, 2, 8, 64):
        q = random_rotations(np.random.default_rng(SEED), 3, n)
        np.testing.assert_allclose(q @ q.transpose(0, 2, 1), np.broadcast_to(np.eye(n), (3, n, n)), atol=1e-12)


def check_uniform(rows, probes):
    """⟨probe, w⟩/‖w‖ squared is Beta(½, (d−1)/2) for unit probes, by Kolmogorov–Smirnov, at LEVEL in all."""
    d = rows.shape[1]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for probe in probes:
        p = stats.kstest((rows @ probe) ** 2, stats.beta(0.5, (d - 1) / 2).cdf).pvalue
        assert p > LEVEL / len(probes)


def probes(d):
    """One-hot, two-hot and dense unit vectors."""
    two = np.zeros(d)
    two[[1, d - 1]] = 0.5**0.5
    return np.stack([np.eye(d)[0], np.eye(d)[d - 1], two, np.full(d, d**-0.5)])


def old_law(n):
    """Independent first rows of H D₁ H D₂ H D₃ / n, as "hadamard" once was."""
    w = np.tile(np.eye(n)[0], (10 * N_DRAWS, 1))
    for signs in 1.0 - 2.0 * np.random.default_rng(SEED).integers(0, 2, (3, *w.shape)):
        w = array_api.hadamard(w) * signs
    return w / n


@pytest.mark.parametrize("law", LAWS)
@SIZES
def test_single_rows_are_uniform(law, n_features):
    """The first row and the last one of independent draws, for sparse and dense vectors; also with Gaussian norms."""
    size = n_features + 3
    for gaussian_norms in (False, True):
        law_ = Directions(n_features, size, law, gaussian_norms)
        draws = np.array([law_.sample(np.random.SeedSequence([SEED, s]))[[0, -1]] for s in range(N_DRAWS)])
        for i in range(2):
            check_uniform(draws[:, i].astype(np.float64), probes(n_features))
            if gaussian_norms or law == "gaussian":
                assert stats.kstest((draws[:, i] ** 2).sum(axis=1), stats.chi2(n_features).cdf).pvalue > LEVEL


@pytest.mark.parametrize("n_features", [32, 64])
def test_products_of_hadamard_matrices_are_not_uniform(n_features):
    """Coordinates of the directions take few values, as features of one-hot rows show."""
    with pytest.raises(AssertionError):
        check_uniform(old_law(n_features), probes(n_features))
    signs = np.random.default_rng(SEED).choice([-1.0, 1.0], (N_DRAWS, n_features))
    with pytest.raises(AssertionError):
        check_uniform(signs, probes(n_features))
