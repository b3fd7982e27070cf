"""Sizes, entries and the clock of a search; see :mod:`ntkit.models._search`."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

FIRST_ROWS, FIRST_COMPONENTS = 2000, 512  # size of the first round
_MIN_SURVIVORS = 4  # candidates that continue after a round, at least
_PRODUCT_ORDER = 1024  # order of the matrices whose product measures the speed of the machine
_PRODUCT_FACTOR = 4.0  # a fit takes this many times the seconds of a matrix product of the same cost


class Round(NamedTuple):
    """Numbers of rows and features at which candidates are compared."""

    n_rows: int
    n_components: int


class SearchClock:
    """The time budget, and estimates of the time of fits: an overhead plus a rate times the cost."""

    def __init__(self, budget: float | None):
        self.began, self.budget = time.perf_counter(), np.inf if budget is None else budget
        self.fits: list[tuple[float, float]] = []
        self.spent = False
        self.reserved = 0.0  # seconds reserved for final fits
        self.metric_seconds = 0.0  # seconds that learning metrics again would take
        self.learns_again = False  # whether these are reserved too
        self.product: float | None = None  # seconds of a product of two matrices

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self.began

    def record(self, size: Round, seconds: float) -> None:
        """Add the time of a fit of this size."""
        self.fits.append((fit_cost(size), seconds))

    def allows(self, *sizes: Round) -> bool:
        """Whether there is time for fits of these sizes."""
        reserved = self.reserved + (self.metric_seconds if self.learns_again else 0.0)
        fits = self.elapsed() + reserved + sum(self.estimate(size) for size in sizes) <= self.budget
        self.spent |= not fits
        return fits

    def estimate(self, size: Round) -> float:
        """Estimate the seconds of a fit by a line through the times of the smallest and the largest fits so far.

        While all fits are small, their times are mostly overhead. Then the slope comes from the speed of products.
        """
        if not self.fits:
            return 0.0
        costs, seconds = np.array(sorted(self.fits)).T
        overhead, smallest = float(np.median(seconds[:3])), float(np.median(costs[:3]))
        largest, longest = float(np.median(costs[-3:])), float(np.median(seconds[-3:]))
        if largest > 8 * smallest:
            rate = max((longest - overhead) / (largest - smallest), 0.0)
        else:
            rate = min(overhead / smallest, self._slope() or np.inf)
        return overhead + rate * max(fit_cost(size) - smallest, 0.0)

    def _slope(self) -> float:
        """Return the seconds per unit of cost, from the time of a matrix product; 0 if the clock is too coarse."""
        if self.product is None:
            A = np.ones((_PRODUCT_ORDER, _PRODUCT_ORDER), dtype=np.float32)
            times = []
            for _ in range(3):
                began = time.perf_counter()
                A @ A
                times.append(time.perf_counter() - began)
            self.product = min(times)
        return _PRODUCT_FACTOR * self.product / _PRODUCT_ORDER**3


class Entry:
    """A candidate in the rounds. A candidate that learns its metric becomes one entry for each kernel it finds.

    `origin` is the name of the candidate, `repeat` numbers metrics that were learned from different draws.
    """

    def __init__(self, name: str, features: Any, *, origin: str = "", repeat: int = 0):
        self.name, self.features, self.origin, self.repeat = name, features, origin or name, repeat
        self.loss = self.rank = np.inf
        self.model: Any = None  # the last fit
        self.n_components = 0
        self.alpha: float | None = None
        self.grown = False  # True when more features no longer help


def few_row_rounds(n_rows: int, n_components: int) -> list[Round]:
    """Return the sizes of the comparisons on few rows; the second has three times the rows and twice the features."""
    rounds = []
    for factor in (1, 3):
        rows, components = factor * FIRST_ROWS, (1 + factor // 2) * FIRST_COMPONENTS
        if 2 * rows <= n_rows:
            rounds.append(Round(rows, min(components, n_components)))
    return rounds or [Round(n_rows, min(2 * FIRST_COMPONENTS, n_components))]


def n_survivors(n_candidates: int) -> int:
    """Return how many candidates continue: half of them, at least four. The time budget may stop them earlier."""
    return max(-(-n_candidates // 2), min(_MIN_SURVIVORS, n_candidates))


def fit_cost(size: Round) -> float:
    """Return the time of a fit up to a factor: the product ZᵀZ and some factorizations."""
    m = size.n_components
    return size.n_rows * m**2 + 4.0 * m**3
