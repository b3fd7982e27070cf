"""Choice of the penalty α: a search over a grid for the smallest held-out loss."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ntkit._array import Array, to_numpy
from ntkit._state import Declared, Field, Floats, Optional, Real
from ntkit.models._problems import Fit, Problem

Loss: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
_SLACK = 0.001  # choose the largest α whose error exceeds the best by at most this share: it is the most stable
_MAX_RAISES = 40  # factors of 10 by which α is raised at most until the system can be solved
_FALL = 0.01  # if the error falls by at least this share in the last step of the grid, a further α may be better
_NEGLIGIBLE = 1e-4  # errors below this share of the largest error need no improvement
_ZERO = 1e-16  # a mean squared error below this share of the mean square of the targets counts as 0
GRID = 10.0 ** np.arange(-7, 2.5, 0.5)
"""Default α, as multiples of the mean k̄ of the diagonal of the (centred) kernel matrix.

With α = 100 k̄ a model of n rows has Σ λ/(λ + α) ≤ n k̄/α = n/100 degrees of freedom: a larger α cannot reduce the error
by more than about a hundredth. At the other end, smaller α are added while the error falls."""
_MIN_MULTIPLE = 1e-10  # smallest α that is added, as a multiple of k̄


@dataclass
class Solution(Declared):
    """A ridge model: weights of features (m, k) or of rows (n, k), intercepts, and the path of α."""

    coef: Array
    intercept: Array
    noise: Array | None
    """Variance of the noise that maximizes the evidence: (Σ w (y − ŷ)² + α‖f‖²)/W."""
    alpha: float
    alphas: np.ndarray
    errors: np.ndarray
    """Mean held-out loss for every α; NaN where it was not computed."""
    left_out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Targets, predictions and weights of the held-out rows."""

    _state: ClassVar[dict[str, Field]] = {
        "coef": Floats("m", "k"),
        "intercept": Floats("k"),
        "noise": Optional(Floats("k", minimum=0.0, finite=False)),
        "alpha": Real(minimum=0.0),
        "alphas": Floats("a", minimum=0.0),
        "errors": Floats("a", finite=False),
    }
    _transient: ClassVar[tuple[str, ...]] = ("left_out",)


def penalties(alphas: Any, scale: Callable[[], float], mean_weight: float) -> np.ndarray:
    """Return the candidate α in increasing order. Default values are relative to the kernel and the weights."""
    if alphas is not None:
        return np.unique(np.asarray(alphas, dtype=np.float64))
    return GRID * ((scale() or 1.0) * (mean_weight or 1.0))


def choose(
    problem: Problem,
    alphas: np.ndarray,
    loss: Loss,
    owner: str,
    resolution: float = 0.0,
    *,
    open_ended: bool = False,
    expected: float | None = None,
) -> Solution:
    """Find the best α and return its solution. Not every α need be tried.

    Losses that differ by less than `resolution` count as equal. With `open_ended`, smaller α are added to the grid
    while the error falls. If an `expected` α is known, the search starts there.
    """
    search = _Search(problem, alphas, loss, resolution)
    best = search.whole_grid() if problem.evaluates_all else search.descend(expected)
    if best is None and problem.rescue():
        search = _Search(problem, alphas, loss, resolution)
        best = search.whole_grid()
    if best is None:
        problem.rescue()  # raises if the kernel is indefinite by more than rounding
        best = search.raise_penalty(owner)
    if open_ended:
        best = search.go_down(best)
    elif search.falls_at(best):
        which, comparative = ("smallest", "smaller") if best == 0 else ("largest", "larger")
        warnings.warn(
            f"The best alpha of {owner}, {search.alphas[best]:.3g}, is the {which} of the given alphas, and the error "
            f"still falls towards it. Pass {comparative} alphas too.",
            stacklevel=_frames_of_package(),
        )
    _warn_of_trouble(problem, search.fits[best], float(search.alphas[best]), owner)
    return search.solution(best)


def _warn_of_trouble(problem: Problem, fit: Fit, alpha: float, owner: str) -> None:
    """Warn if rows or columns differ so much in size that the model is useless."""
    texts = {
        "row": f"One row of X given to {owner} has features {problem.heaviest**0.5:.1g} times as large as the others: "
        "it alone determines the model. Remove or clip it, or scale the columns by ntkit.preprocessing.ArcsinhScaler.",
        "columns": f"Some features of {owner} are so much smaller than others that the penalty alpha={alpha:.3g} "
        "suppresses them, though the targets depend on them. Scale the columns by "
        "sklearn.preprocessing.StandardScaler, or pass smaller alphas.",
        "rounding": f"The system of {owner} with alpha={alpha:.3g} is ill-conditioned: rounding errors hide directions "
        "that the targets depend on. Scale the columns by sklearn.preprocessing.StandardScaler, or pass larger alphas.",
    }
    kind = problem.trouble(fit.X, alpha)
    if kind:
        warnings.warn(texts[kind], stacklevel=_frames_of_package())


class _Search:
    """Held-out errors for a grid of α, computed on demand."""

    def __init__(self, problem: Problem, alphas: np.ndarray, loss: Loss, resolution: float):
        self.problem, self.alphas, self.loss, self.resolution = problem, alphas, loss, resolution
        self.errors = np.full(len(alphas), np.nan)
        self.fits: dict[int, Fit] = {}
        self.targets, self.weight = to_numpy(problem.left_targets), to_numpy(problem.left_weight)

    def error(self, index: int) -> float:
        """Return the held-out error for one α; infinity if there is no solution or no such index."""
        if not 0 <= index < len(self.alphas):
            return np.inf
        if np.isnan(self.errors[index]):
            self.errors[index] = self._evaluate(index)
        return float(self.errors[index])

    def _evaluate(self, index: int) -> float:
        fit = self.problem.fit(float(self.alphas[index]))
        if fit is None:
            return np.inf
        self.fits[index] = fit
        if fit.predictions is None:
            return 0.0
        error = self.loss(self.targets, to_numpy(fit.predictions), self.weight)
        return error if np.isfinite(error) else np.inf

    def whole_grid(self) -> int | None:
        """Try every α and return the index of the best; None if no α has a solution."""
        for index in range(len(self.alphas)):
            self.error(index)
        if not np.isfinite(self.errors).any():
            return max(self.fits, default=None)
        return self._stronger(int(np.argmin(self.errors)))

    def descend(self, expected: float | None = None) -> int | None:
        """Descend from the middle by steps of 3, then 1, and return the index of the best α; None if no solution.

        With an `expected` α, descend from there by steps of 1.
        """
        current, steps = len(self.alphas) // 2, [3, 1]
        if expected is not None:
            current, steps = int(np.argmin(np.abs(np.log(self.alphas / expected)))), [1]
        while current < len(self.alphas):
            self.error(current)
            if current in self.fits:
                break
            current += 1
        if current == len(self.alphas):
            return None
        for step in steps:
            while True:
                lower = min((current - step, current + step), key=self.error)
                if not self.error(lower) < self.error(current) - self.resolution:
                    break
                current = lower
        return self._stronger(current)

    def _stronger(self, index: int) -> int:
        """Return the index of the largest α tried whose error is within the slack of the best."""
        bound = self.error(index) * (1 + _SLACK) + self.resolution
        return max((other for other in self.fits if other >= index and self.errors[other] <= bound), default=index)

    def raise_penalty(self, owner: str) -> int:
        """Append the smallest of 10α, 100α, … that has a solution, where α is the largest of the grid."""
        alpha = float(self.alphas[-1]) or np.finfo(np.float64).eps * (self.problem.scale or 1.0)
        for _ in range(_MAX_RAISES):
            alpha *= 10
            fit = self.problem.fit(alpha)
            if fit is not None:
                break
        else:
            raise ValueError(f"The system of {owner} has no solution for any alpha: its kernel is not positive.")
        warnings.warn(
            f"Rounding errors make the system of {owner} with alpha={self.alphas[-1]:.3g} indefinite; "
            f"alpha={alpha:.3g} was used instead. Use larger alphas, or a higher precision.",
            stacklevel=_frames_of_package(),
        )
        self.alphas, self.errors = np.append(self.alphas, alpha), np.append(self.errors, np.nan)
        self.fits[len(self.alphas) - 1] = fit
        return len(self.alphas) - 1

    def falls_at(self, index: int) -> bool:
        """Whether `index` is the first or the last of at least three α, and the error falls towards it."""
        last = len(self.alphas) - 1
        if last < 2 or index not in (0, last):
            return False
        error, neighbor = self.errors[index], self.errors[1 if index == 0 else last - 1]
        finite = self.errors[np.isfinite(self.errors)]
        negligible = max(_NEGLIGIBLE * finite.max(initial=0.0), _ZERO * float(np.mean(to_numpy(self.targets) ** 2)))
        return bool(error < (1 - _FALL) * neighbor and error > negligible)

    def go_down(self, index: int) -> int:
        """Add smaller α while the error falls, and return the index of the best."""
        smallest = _MIN_MULTIPLE / GRID[0] * self.alphas[0]
        while index == 0 and self.falls_at(0) and self.alphas[0] > 1.01 * smallest:
            self.alphas = np.insert(self.alphas, 0, self.alphas[0] / 10**0.5)
            self.errors = np.insert(self.errors, 0, np.nan)
            self.fits = {other + 1: fit for other, fit in self.fits.items()}
            index = int(not self.error(0) < self.error(1))
        return self._stronger(index)

    def solution(self, index: int) -> Solution:
        """Return the solution for one α."""
        fit, alpha = self.fits[index], float(self.alphas[index])
        left_out = None if fit.predictions is None else (self.targets, to_numpy(fit.predictions), self.weight)
        errors = np.where(np.isfinite(self.errors), self.errors, np.nan)
        if left_out is None:
            errors[:] = np.nan
        return Solution(*self.problem.weights(fit.X, alpha), alpha, self.alphas, errors, left_out)


def _frames_of_package() -> int:
    """Return the stack level of the code that called ntkit, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ntkit":
        frame, level = frame.f_back, level + 1
    return level
