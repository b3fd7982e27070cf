"""Checks of randomized maps. Each raises AssertionError on a map that it rejects.

All take a function from a seed to a drawn map X ↦ Z and judge the Gram matrices Z Zᵀ of a few rows over many seeds.
The level of a check is the probability of a false alarm for a correct map. It is nominal: products of high degree
have heavy tails, so keep n_components ≥ 64 and n_seeds ≥ 400.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 1e-6
Sample = Callable[[int], Callable[[np.ndarray], Any]]


def spread_rows(n_features: int, seed: int = 0) -> np.ndarray:
    """Six rows with cosines −1, −½, 0, ½, 1 and others between them, and norms from ½ to 2."""
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.standard_normal((n_features, 2)))[0]
    angles = np.pi * np.array([0, 0, 1 / 3, 1 / 2, 3 / 4, 1])
    norms = np.array([1.0, 0.5, 2.0, 1.5, 0.7, 1.2])
    return (norms * (frame @ [np.cos(angles), np.sin(angles)])).T


def kept(sample: Sample) -> Sample:
    """The same maps of one set of rows; each is drawn once, however many checks look at it."""
    found: dict[int, Any] = {}

    def of_seed(seed: int) -> Callable[[np.ndarray], Any]:
        return lambda X: found[seed] if seed in found else found.setdefault(seed, sample(seed)(X))

    return of_seed


def gram_matrices(sample: Sample, X: np.ndarray, n_seeds: int, seed: int = 0) -> np.ndarray:
    """Estimates Z Zᵀ of shape (n_seeds, n_rows, n_rows) from the seeds seed, seed + 1, …."""
    grams = []
    for t in range(seed, seed + n_seeds):
        Z = np.asarray(sample(t)(X), dtype=np.float64)
        grams.append(Z @ Z.T)
    return np.array(grams)


def check_unbiased(sample: Sample, X: np.ndarray, exact: np.ndarray, *, n_seeds: int = 400, seed: int = 0) -> None:
    """|mean − exact| ≤ t·se in every entry, t Student's quantile.

    False alarms: 1e-6 in all, split over the entries and the two sides (nominal, see above). A map that is exact
    for every seed has se = 0: rounding is allowed for.
    """
    judge_mean(gram_matrices(sample, X, n_seeds, seed), exact)


def check_variance(
    sample: Sample,
    X: np.ndarray,
    variance: np.ndarray,
    *,
    n_seeds: int = 1000,
    seed: int = 0,
    low: float = 0.5,
    high: float = 2.0,
) -> None:
    """Sample variances of all entries within [low, high] times their formula; low = 0 for an upper bound.

    False alarms: a sample variance of T draws of kurtosis κ has relative standard deviation √((κ − 1)/T). For κ ≤ 9
    and T = 1000 that is at most 0.09: [0.5, 2] is 5.6 standard deviations away below and 11 above, nominally 1e-8
    per entry. (Below is the safer side: such variances are skewed upwards.) For κ = 14 it is 0.11.
    """
    grams = gram_matrices(sample, X, n_seeds, seed)
    estimated = grams.var(axis=0, ddof=1)
    rounding = 1e-14 * _scale(grams.mean(axis=0)) ** 2  # of a formula whose terms cancel, as at full size
    too_low = estimated < low * variance - rounding
    too_high = estimated > high * variance + rounding
    bad = too_low | too_high
    assert not bad.any(), (
        f"variances {estimated[bad]} are not within [{low}, {high}] times their formula {np.asarray(variance)[bad]}"
    )


def check_rms_scaling(
    sample: Callable[[int, int], Callable[[np.ndarray], Any]],
    X: np.ndarray,
    exact: np.ndarray,
    *,
    n_components: int,
    n_seeds: int = 400,
    seed: int = 0,
    low: float = 0.4,
    high: float = 0.6,
) -> None:
    """Four times the components halve the RMS error (of entries relative to √(K_ii K_jj)); ratio in [low, high].

    `sample` takes n_components and a seed; low < 0.5 also for maps with a bias of order 1/n_components. False alarms:
    a mean square over T seeds of errors of kurtosis κ has relative standard deviation √((κ − 1)/T), its root half of
    that, and the ratio of two √2 times as much: for one entry of the Gram matrix, κ = 3 and T = 400, 0.05 · 0.5, a
    quarter of what the band allows (6e-5). The mean over entries has less, heavier tails have more: measure it, and
    state in the test what other seeds gave.
    """
    small, large = (
        rms_error(lambda t, m=m: sample(m, t), X, exact, n_seeds=n_seeds, seed=seed)
        for m in (n_components, 4 * n_components)
    )
    assert small > 0, "no error at all: nothing to judge"
    assert low <= large / small <= high, f"RMS errors {small:.3g} and {large:.3g} have the ratio {large / small:.3g}"


def rms_error(sample: Sample, X: np.ndarray, exact: np.ndarray, *, n_seeds: int = 400, seed: int = 0) -> float:
    """RMS over seeds and entries of the errors, relative to √(K_ii K_jj)."""
    errors = (gram_matrices(sample, X, n_seeds, seed) - exact) / _scale(exact)
    return float(np.sqrt(np.mean(errors**2)))


def check_uncorrelated(
    first: Sample, second: Sample, X: np.ndarray, Y: np.ndarray, *, n_seeds: int = 400, seed: int = 0
) -> None:
    """Errors of two maps from equal seeds, one of X and one of Y, are uncorrelated in every entry.

    Then their mean has the standard deviation of the mean of independent maps. False alarms: 1e-6 in all, split over
    the entries and the two sides; r √(T − 2)/√(1 − r²) has Student's law for normal errors (nominal, see above).
    """
    pairs = np.triu_indices(len(X))
    a, b = (gram_matrices(sample, rows, n_seeds, seed)[:, *pairs] for sample, rows in ((first, X), (second, Y)))
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    norms = np.linalg.norm(a, axis=0) * np.linalg.norm(b, axis=0)
    assert (norms > 0).all(), "an entry without error: nothing to correlate"
    correlations = np.sum(a * b, axis=0) / norms
    t = stats.t.isf(LEVEL / 2 / a.shape[1], n_seeds - 2)
    allowed = t / np.sqrt(n_seeds - 2 + t**2)
    worst = np.abs(correlations).max()
    assert worst <= allowed, f"errors have a correlation of {worst:.2f}, more than {allowed:.2f}"


def check_distinct(draws: Sequence[np.ndarray]) -> None:
    """No two of the arrays of draws agree, nor do signs that were flipped, on the length they have in common.

    False alarms: two independent arrays of 64 or more signs agree up to a sign with probability 2^{-63}; of a
    permutation or of many rows with less. At least 64 entries in common are asked for.
    """
    arrays = [np.asarray(draw).ravel() for draw in draws]
    assert len(arrays) > 1, "one array of draws: nothing to compare"
    for (i, a), (j, b) in combinations(enumerate(arrays), 2):
        common = min(len(a), len(b))
        assert common >= 64, f"draws {i} and {j} have {common} entries in common, too few to tell"
        a, b = a[:common].astype(np.int64), b[:common].astype(np.int64)
        assert not np.array_equal(a, b), f"draws {i} and {j} are the same"
        assert not np.array_equal(a, -b), f"draws {i} and {j} are the same up to a sign"


def judge_mean(estimates: np.ndarray, exact: np.ndarray) -> None:
    """As :func:`check_unbiased`, for Gram matrices of many seeds that are there already."""
    n_seeds = len(estimates)
    n_entries = exact.shape[0] * (exact.shape[0] + 1) // 2  # of a symmetric matrix
    t = stats.t.isf(LEVEL / 2 / n_entries, n_seeds - 1)
    error = np.abs(estimates.mean(axis=0) - exact)
    allowed = t * estimates.std(axis=0, ddof=1) / np.sqrt(n_seeds) + 1e-12 * _scale(exact)
    bad = error > allowed
    assert not bad.any(), f"means are off by {error[bad]}, more than {allowed[bad]}"


def _scale(exact: np.ndarray) -> np.ndarray:
    norms = np.sqrt(np.diag(exact))
    return np.outer(norms, norms)
