"""Kernels, splits and fits from which :mod:`ntkit.models._metric` learns metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ntkit._lapack import times_triangle, triangular_root
from ntkit.kernels import KernelSpec
from ntkit.kernels.distances import DistanceKernel
from ntkit.models._linalg import cholesky, cholesky_solve
from ntkit.models._problems import Selection, from_statistics
from ntkit.models._statistics import KeptRows, Statistics

FLOOR = 1e-6  # added to eigenvalues of A, as a share of the largest, so that no direction is lost for good
LOWEST, HIGHEST = -16, 8  # range of i in α = 10^(i/2) times the mean of k(x, x)
FEW_ROWS = 2000  # with fewer rows, errors are averaged over several splits
JITTER = 1e-6  # times √m, added to the diagonal of kernel matrices of m landmarks, so that factorizations succeed


class Split(NamedTuple):
    """Indices of the rows to fit on, the rows to predict, and the landmarks."""

    train: np.ndarray
    held: np.ndarray
    landmarks: np.ndarray


@dataclass(frozen=True)
class Kernel:
    """A kernel without its length scale."""

    name: str
    items: tuple[tuple[str, Any], ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        """Parameters except the length scale."""
        return dict(self.items)

    @property
    def has_length(self) -> bool:
        """Whether the kernel has a length scale."""
        return "lengthscale" in KernelSpec.parameters(self.name)

    @property
    def is_distance(self) -> bool:
        """Whether the kernel is a function of a distance, with k(x, x) = 1."""
        return isinstance(self.spec(), DistanceKernel)

    @property
    def separable(self) -> bool:
        """Whether the kernel is a product over columns, for which only a diagonal metric makes sense."""
        return self.params.get("norm") == "l1"

    def spec(self, length: float = 1.0) -> KernelSpec:
        """Return the kernel with a length scale."""
        return KernelSpec.of(self.name, **self.params, **({"lengthscale": length} if self.has_length else {}))

    @property
    def label(self) -> str:
        """A short name."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.items)])


PRODUCT_LAPLACE = Kernel("laplace", (("norm", "l1"),))
MATERN = Kernel("matern", (("nu", 1.5),))
GAUSSIAN = Kernel("gaussian")


@dataclass(frozen=True, eq=False)
class Trial:
    """A fit: kernel, metric, length scale, α, and error on held-out rows.

    With few rows there are several splits, and `metrics` has one metric for each, learned without its held-out rows.
    `length` is the length scale; metrics of kernels with length scales are such that the median distance is 1.
    """

    kernel: Kernel
    metrics: tuple[np.ndarray, ...]
    """M for each split: weights of the columns (d,), or matrices (d, d)."""
    length: float
    alpha: float
    error: float
    round: int = 0
    seconds: float = 0.0
    gain: float = 1.0
    """Error divided by the error with half of the landmarks; doubling the landmarks changes the error similarly."""
    additive: bool = False
    """Whether functions of single columns are added to the function of the kernel."""
    leaves: bool = False
    """Whether functions of the leaves of trees are added."""
    fits: tuple[Any, ...] = field(default=(), repr=False)
    """For each split, the :class:`NystroemFit` and the weights of its landmarks."""

    @property
    def expected(self) -> float:
        """Expected error with twice as many landmarks, which help rough kernels more than smooth ones."""
        return self.error * self.gain

    @property
    def full(self) -> bool:
        """Whether the metric is a matrix, not a diagonal."""
        return self.metrics[0].ndim == 2

    @property
    def metric(self) -> np.ndarray:
        """The mean metric of the splits: geometric for weights of columns, of the squares for matrices."""
        if len(self.metrics) == 1:
            return self.metrics[0]
        if not self.full:
            weights: np.ndarray = np.exp(np.mean(np.log(self.metrics), axis=0))
            return weights
        return symmetric_root(np.mean([M @ M.T for M in self.metrics], axis=0))


class RidgeSolver:
    """Ridge regression for any α: fits on the features of some rows, which it overwrites, and predicts others."""

    def __init__(self, rows: KeptRows, held: np.ndarray, Y: np.ndarray, weight: np.ndarray):
        statistics = Statistics(rows.Z.shape[1], Y.shape[1])
        statistics.add(*rows)
        self.rows = statistics.finish().rows()
        self.problem: Any = from_statistics(
            statistics, Selection("loo", 0), intercept=True, several=True, solver="cholesky"
        )
        self.held, self.Y, self.weight = held, Y, weight

    def leading(self, size: int) -> RidgeSolver:
        """Return the solver for the first `size` features. It shares the sums, if there are more rows than features."""
        held = self.held[:, :size]
        if self.rows is not None:
            return RidgeSolver(replace(self.rows, Z=self.rows.Z[:, :size].copy()), held, self.Y, self.weight)
        part = copy(self)
        part.problem, part.held = self.problem.leading(size), held
        return part

    def solve(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Return the error and the weights for one α."""
        fit = self.problem.fit(alpha)
        if fit is None:
            return np.inf, None
        coef, intercept, _ = self.problem.weights(fit.X, alpha)
        return self.error(self.held, coef, intercept), coef

    def predictions(self, alpha: float) -> np.ndarray | None:
        """Return predictions for the held-out rows for one α; None if there is no solution."""
        fit = self.problem.fit(alpha)
        if fit is None:
            return None
        coef, intercept, _ = self.problem.weights(fit.X, alpha)
        return self.held @ coef.astype(self.held.dtype) + intercept

    def squares(self, alpha: float) -> np.ndarray:
        """Return the squared error of each held-out row for one α, infinity if there is no solution."""
        found = self.predictions(alpha)
        return np.full(len(self.Y), np.inf) if found is None else ((found - self.Y) ** 2).sum(axis=1)

    def error(self, held: np.ndarray, coef: np.ndarray, intercept: Any) -> float:
        """Return the mean squared error on the held-out rows, infinity if it is not finite."""
        squares = ((held @ coef.astype(held.dtype) + intercept - self.Y) ** 2).sum(axis=1)
        error = float(np.average(squares, weights=self.weight))
        return error if np.isfinite(error) else np.inf


class NystroemFit:
    """Ridge regression on Nyström features, for any α. With `extras`, also on these further features in addition."""

    def __init__(
        self,
        spec: KernelSpec,
        Z: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        split: Split,
        extras: np.ndarray | None = None,
    ):
        self.spec, self.landmarks = spec, np.ascontiguousarray(Z[split.landmarks])
        K = np.asarray(spec.matrix(self.landmarks.astype(np.float64)))
        m = len(K)
        scale = np.sqrt(np.maximum(np.diagonal(K), np.finfo(np.float64).tiny))
        K /= scale[:, None] * scale[None, :]
        K[np.diag_indices(m)] += JITTER * m**0.5
        self.normalization = triangular_root(K) / scale[:, None]
        root = self.normalization.astype(Z.dtype)
        rows, held = (
            times_triangle(spec.matrix(np.ascontiguousarray(Z[part]), self.landmarks), root)
            for part in (split.train, split.held)
        )
        if extras is not None:
            rows, held = np.hstack([rows, extras[split.train]]), np.hstack([held, extras[split.held]])
        kept = KeptRows(rows, Y[split.train], weight[split.train], np.zeros(len(rows)))
        whole = RidgeSolver(kept, held, Y[split.held], weight[split.held])
        self.extended = None if extras is None else whole
        self.solver = whole if extras is None else whole.leading(m)
        self.scale = self.solver.problem.scale or 1.0

    def solve(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Return the error and the weights for one α, relative to the scale of the kernel."""
        return self.solver.solve(alpha * self.scale)

    def solve_extended(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Return the error and the weights for one α with the further features."""
        assert self.extended is not None
        return self.extended.solve(alpha * self.scale)

    def squares(self, alpha: float, n_extras: int | None = None) -> np.ndarray:
        """Return the squared error of each held-out row for one α, with some of the further features (None: all)."""
        solver = self.extended
        assert solver is not None
        solver = solver if n_extras is None else solver.leading(len(self.landmarks) + n_extras)
        return solver.squares(alpha * self.scale)

    def gain(self, alpha: float, error: float, resolution: float = 0.0) -> float:
        """Return the error divided by the error with half of the landmarks; smaller errors count as `resolution`.

        The normalization is triangular, so half of the landmarks have the first half of the features.
        """
        half, problem = len(self.landmarks) // 2, self.solver.problem
        if problem.by_eigen or not hasattr(problem, "A") or half < 16 or not np.isfinite(error):
            return 1.0
        factor = cholesky(np.ascontiguousarray(problem.A[:half, :half]), alpha * self.scale)
        if factor is None:
            return 1.0
        coef = cholesky_solve(factor, problem.R[:half])
        intercept = problem.y_mean - problem.z_mean[:half] @ coef
        with_half = self.solver.error(self.solver.held[:, :half], coef, intercept)
        return min(1.0, max(error, resolution) / max(with_half, resolution))

    def dual(self, coef: np.ndarray) -> np.ndarray:
        """Return the weights of the landmarks."""
        return self.normalization @ coef


def descend_alpha(
    solvers: Sequence[Callable[[float], tuple[float, Any]]], alpha: float, *, widely: bool = False
) -> tuple[int, Callable[[int], tuple[float, list[Any]]]]:
    """Find the best α = 10^(i/2), descending in steps of √10 from `alpha`, or with `widely` from the best of a grid.

    Returns i, and a function from i to the mean error over splits and the weights of each split.
    """
    known: dict[int, tuple[float, list[Any]]] = {}

    def solved(i: int) -> tuple[float, list[Any]]:
        if i not in known:
            errors, weights = zip(*(solve(10.0 ** (i / 2)) for solve in solvers), strict=True)
            known[i] = float(np.mean(errors)), list(weights)
        return known[i]

    i = min(max(round(2 * np.log10(alpha)), LOWEST), HIGHEST)
    if widely:
        i = min(range(LOWEST, HIGHEST + 1, 4), key=lambda j: solved(j)[0])
    while not np.isfinite(solved(i)[0]) and i < HIGHEST:
        i += 1
    while True:
        near = [j for j in (i + 1, i - 1) if LOWEST <= j <= HIGHEST]
        better = next((j for j in near if solved(j)[0] < solved(i)[0]), None)
        if better is None:
            return i, solved
        i = better


def apply(metric: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Multiply rows by a metric, in the precision of the rows."""
    M = metric.astype(X.dtype)
    return X @ M if M.ndim == 2 else X * M


def metric_of(A: np.ndarray, *, full: bool, floor: float = FLOOR) -> np.ndarray | None:
    """Return M with M² = A/‖A‖ + floor, with `full=False` for the diagonal of A; None if A is zero or not finite."""
    if not np.isfinite(A).all() or not np.trace(A) > 0:
        return None
    if not full:
        squares = np.diagonal(A)
        return np.sqrt(squares / squares.max() + floor)
    A = A / np.linalg.eigvalsh(A)[-1]
    return symmetric_root(A, floor)


def symmetric_root(A: np.ndarray, added: float = 0.0) -> np.ndarray:
    """Return M with M² = A + `added`, where negative eigenvalues of A, which are rounding errors, count as 0."""
    values, vectors = np.linalg.eigh(A)
    root: np.ndarray = (vectors * np.sqrt(np.maximum(values, 0) + added)) @ vectors.T
    return root


def make_splits(order: np.ndarray, n_held: int, n_train: int, n_landmarks: int, n_splits: int = 1) -> list[Split]:
    """Split rows that are in random order: hold out the first rows, or with few rows several parts in turn.

    Equal orders give equal held-out rows, so a metric is never tested on rows it was learned from at another size.
    """
    splits = []
    for index in range(n_splits if len(order) < FEW_ROWS else 1):
        held = np.arange(index * n_held, (index + 1) * n_held)
        train = np.delete(order, held)[:n_train]
        splits.append(Split(train, order[held], train[:n_landmarks]))
    return splits
