"""The choice of α among known losses."""

from __future__ import annotations

import numpy as np
import pytest

from ntkit.models._path import choose
from ntkit.models._problems import Fit, Problem, Weights

ALPHAS = 10.0 ** np.arange(-9, 10)


class Known(Problem):
    """A problem whose losses are known; it cannot be solved for α below `least`."""

    scale, left_targets, left_weight = 1.0, np.zeros((1, 1)), np.ones(1)

    def __init__(self, losses, alphas=ALPHAS, *, evaluates_all=True, least=0.0):
        self.losses, self.evaluates_all, self.least = dict(zip(alphas, losses, strict=True)), evaluates_all, least

    def fit(self, alpha):
        return None if alpha < self.least else Fit(np.array([[alpha]]), np.full((1, 1), self.losses.get(alpha, np.nan)))

    def weights(self, X, alpha):  # noqa: ARG002
        return Weights(X, np.zeros(1), None)


def solve(problem, alphas=ALPHAS, resolution=0.0):
    return choose(problem, np.array(alphas), lambda _, predictions, __: float(predictions[0, 0]), "Model", resolution)


@pytest.mark.parametrize("evaluates_all", [True, False])
def test_the_least_loss_is_found_wherever_it_is(evaluates_all):
    """At either end too; not all α are tried where each takes a factorization."""
    for best in range(len(ALPHAS)):
        losses = 1.0 + np.abs(np.arange(len(ALPHAS)) - best)
        solution = solve(Known(losses, evaluates_all=evaluates_all))
        assert solution.alpha == ALPHAS[best] == solution.coef[0, 0]
        tried = np.isfinite(solution.errors)
        np.testing.assert_array_equal(solution.errors[tried], losses[tried])
        assert tried.all() if evaluates_all else tried.sum() <= 10


def test_the_search_starts_where_the_best_is_expected():
    for best in range(len(ALPHAS)):
        losses = 1.0 + np.abs(np.arange(len(ALPHAS)) - best)
        for expected, most in ((1.2 * ALPHAS[best], 3), (ALPHAS[max(best - 2, 0)], 5), (1e-30, len(ALPHAS))):
            problem = Known(losses, evaluates_all=False)
            loss = lambda _, predictions, __: float(predictions[0, 0])  # noqa: E731
            solution = choose(problem, ALPHAS.copy(), loss, "Model", expected=expected)
            assert solution.alpha == ALPHAS[best]
            assert np.isfinite(solution.errors).sum() <= most


def test_the_largest_alpha_as_good_as_the_best_is_taken():
    for last, index in ((1.0009, 3), (1.0011, 2)):
        assert solve(Known([3.0, 1.0, 1.0005, last, 5.0], ALPHAS[:5]), ALPHAS[:5]).alpha == ALPHAS[index]
    for resolution, index in ((0.0, 0), (1e-6, 1)):
        problem = Known([1e-9, 5e-7, 1.0], ALPHAS[:3])
        assert solve(problem, ALPHAS[:3], resolution).alpha == ALPHAS[index]


def test_penalties_that_cannot_be_solved_for():
    """Alphas of the grid are skipped; if there is none, the smallest of 10α, 100α, … is taken."""
    assert solve(Known([0.0, 1.0, 2.0], ALPHAS[:3], least=ALPHAS[1]), ALPHAS[:3]).alpha == ALPHAS[1]
    with pytest.warns(UserWarning, match=r"Rounding errors .* with alpha=2 indefinite; alpha=2e\+04 was used"):
        solution = solve(Known([1.0, 1.0], [1.0, 2.0], evaluates_all=False, least=3e3), [1.0, 2.0])
    assert solution.alpha == 2e4
    np.testing.assert_array_equal(solution.alphas, [1.0, 2.0, 2e4])
    assert np.isnan(solution.errors).all()
    with pytest.raises(ValueError, match="Model has no solution for any alpha"):
        solve(Known([1.0], [1.0], least=np.inf), [1.0])
