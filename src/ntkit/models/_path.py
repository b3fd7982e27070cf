"""The choice of the penalty α: one search over a grid, by the loss on rows left out."""

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
_SLACK = 0.001  # relative; the largest α with an error within this of the best is taken: it is the most stable
_MOST_RAISES = 40
_FALLS = 0.01  # relative; an error that still falls by as much at an end of the grid would go on falling
_NEGLIGIBLE = 1e-4  # of the largest error: nobody minds then
_ZERO = 1e-16  # mean squared error over the mean square of the targets that is as good as 0
GRID = 10.0 ** np.arange(-7, 2.5, 0.5)
"""Default α, as multiples of the mean k̄ of the diagonal of the (centred) kernel matrix.

With α = 100 k̄ a model of n rows has Σ λ/(λ + α) ≤ n k̄/α = n/100 degrees of freedom: a larger α cannot gain more than
about a hundredth of the error. At the other end smaller ones follow, as long as the error falls."""
_LEAST = 1e-10


@dataclass
class Solution(Declared):
    """A ridge model: weights of features (m, k) or of rows (n, k), constants, and how α was chosen."""

    coef: Array
    intercept: Array
    noise: Array | None
    """Variance of the targets about the model of largest evidence: (Σ w (y − ŷ)² + α‖f‖²)/W."""
    alpha: float
    alphas: np.ndarray
    errors: np.ndarray
    """Mean loss on rows left out, for every α; NaN where it was not needed."""
    left_out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Targets and predictions of the rows left out, and their weights."""

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
    """The penalties to choose from, in increasing order; default ones are relative to the kernel and to the weights."""
    if alphas is not None:
        return np.unique(np.asarray(alphas, dtype=np.float64))
    return GRID * ((scale() or 1.0) * (mean_weight or 1.0))


def choose(
    problem: Problem, alphas: np.ndarray, loss: Loss, owner: str, resolution: float = 0.0, *, open_ended: bool = False
) -> Solution:
    """Solve for all α, or for as many as it takes to find the best, and return the model of the best.

    Losses that differ by less than `resolution` are equal. An `open_ended` grid goes down while the error falls.
    """
    search = _Search(problem, alphas, loss, resolution)
    best = search.whole_grid() if problem.evaluates_all else search.descend()
    if best is None and problem.rescue():
        search = _Search(problem, alphas, loss, resolution)
        best = search.whole_grid()
    if best is None:
        problem.rescue()  # raises if the kernel is indefinite by more than rounding
        best = search.raise_penalty(owner)
    if open_ended:
        best = search.go_down(best)
    elif search.falls_at(best):
        which, way = ("smallest", "down") if best == 0 else ("largest", "up")
        warnings.warn(
            f"The best alpha of {owner}, {search.alphas[best]:.3g}, is the {which} of those given, and the error still "
            f"falls towards it. Pass alphas that go further {way}.",
            stacklevel=_frames_of_package(),
        )
    _warn_of_trouble(problem, search.fits[best], float(search.alphas[best]), owner)
    return search.solution(best)


def _warn_of_trouble(problem: Problem, fit: Fit, alpha: float, owner: str) -> None:
    """Warn of rows and columns whose sizes differ so much that the model is useless."""
    texts = {
        "row": f"One row of X given to {owner} has features {problem.heaviest**0.5:.1g} times as large as the others: "
        "it decides the model alone. Remove or clip it, or scale the columns by ntkit.preprocessing.ArcsinhScaler.",
        "columns": f"Some features of {owner} are so much smaller than others that the penalty alpha={alpha:.3g} "
        "leaves nothing of them, though the targets depend on them. Scale the columns by "
        "sklearn.preprocessing.StandardScaler, or pass smaller alphas.",
        "rounding": f"The system of {owner} with alpha={alpha:.3g} is ill-conditioned: rounding errors hide directions "
        "that the targets depend on. Scale the columns by sklearn.preprocessing.StandardScaler, or pass larger alphas.",
    }
    kind = problem.trouble(fit.X, alpha)
    if kind:
        warnings.warn(texts[kind], stacklevel=_frames_of_package())


class _Search:
    """Errors of the α of a grid, computed when asked for."""

    def __init__(self, problem: Problem, alphas: np.ndarray, loss: Loss, resolution: float):
        self.problem, self.alphas, self.loss, self.resolution = problem, alphas, loss, resolution
        self.errors = np.full(len(alphas), np.nan)
        self.fits: dict[int, Fit] = {}
        self.targets, self.weight = to_numpy(problem.left_targets), to_numpy(problem.left_weight)

    def error(self, index: int) -> float:
        """Error on rows left out for one α; infinity if it cannot be solved for or does not exist."""
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
        """Index of the best α, after all have been tried; None if none can be solved for."""
        for index in range(len(self.alphas)):
            self.error(index)
        if not np.isfinite(self.errors).any():
            return max(self.fits, default=None)
        return self._stronger(int(np.argmin(self.errors)))

    def descend(self) -> int | None:
        """Index of the best α, by steps of 3 and 1 downhill from the middle; None if none can be solved for."""
        current = len(self.alphas) // 2
        while current < len(self.alphas):
            self.error(current)
            if current in self.fits:
                break
            current += 1
        if current == len(self.alphas):
            return None
        for step in (3, 1):
            while True:
                lower = min((current - step, current + step), key=self.error)
                if not self.error(lower) < self.error(current) - self.resolution:
                    break
                current = lower
        return self._stronger(current)

    def _stronger(self, index: int) -> int:
        """The largest α tried that is as good as the best."""
        bound = self.error(index) * (1 + _SLACK) + self.resolution
        return max((other for other in self.fits if other >= index and self.errors[other] <= bound), default=index)

    def raise_penalty(self, owner: str) -> int:
        """Add the least of 10α, 100α, … that can be solved for, α the largest of the grid."""
        alpha = float(self.alphas[-1]) or np.finfo(np.float64).eps * (self.problem.scale or 1.0)
        for _ in range(_MOST_RAISES):
            alpha *= 10
            fit = self.problem.fit(alpha)
            if fit is not None:
                break
        else:
            raise ValueError(f"The system of {owner} cannot be solved for any alpha: its kernel is not positive.")
        warnings.warn(
            f"The system of {owner} with alpha={self.alphas[-1]:.3g} is indefinite by rounding errors; "
            f"alpha={alpha:.3g} was taken. Use larger alphas, or a higher precision.",
            stacklevel=_frames_of_package(),
        )
        self.alphas, self.errors = np.append(self.alphas, alpha), np.append(self.errors, np.nan)
        self.fits[len(self.alphas) - 1] = fit
        return len(self.alphas) - 1

    def falls_at(self, index: int) -> bool:
        """Whether an α is the first or the last of three or more, and the error falls towards it."""
        last = len(self.alphas) - 1
        if last < 2 or index not in (0, last):
            return False
        error, beside = self.errors[index], self.errors[1 if index == 0 else last - 1]
        finite = self.errors[np.isfinite(self.errors)]
        negligible = max(_NEGLIGIBLE * finite.max(initial=0.0), _ZERO * float(np.mean(to_numpy(self.targets) ** 2)))
        return bool(error < (1 - _FALLS) * beside and error > negligible)

    def go_down(self, index: int) -> int:
        """Index of the best α, if smaller ones follow the first as long as the error falls towards it."""
        least = _LEAST / GRID[0] * self.alphas[0]
        while index == 0 and self.falls_at(0) and self.alphas[0] > 1.01 * least:
            self.alphas = np.insert(self.alphas, 0, self.alphas[0] / 10**0.5)
            self.errors = np.insert(self.errors, 0, np.nan)
            self.fits = {other + 1: fit for other, fit in self.fits.items()}
            index = int(not self.error(0) < self.error(1))
        return self._stronger(index)

    def solution(self, index: int) -> Solution:
        """The model of one α."""
        fit, alpha = self.fits[index], float(self.alphas[index])
        left_out = None if fit.predictions is None else (self.targets, to_numpy(fit.predictions), self.weight)
        errors = np.where(np.isfinite(self.errors), self.errors, np.nan)
        if left_out is None:
            errors[:] = np.nan
        return Solution(*self.problem.weights(fit.X, alpha), alpha, self.alphas, errors, left_out)


def _frames_of_package() -> int:
    """Stack level of the caller of ntkit, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ntkit":
        frame, level = frame.f_back, level + 1
    return level
