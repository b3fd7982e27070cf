"""Rounds of fit → average outer product of gradients → refit, compared by the error on held-out rows.

Kernel ridge regression with k(Mx, My) on a few landmarks gives a function f. Its average outer product of gradients

    A = (1/n) Σ_i ∇f(x_i) ∇f(x_i)ᵀ    (summed over targets)

says along which directions f changes, and M² ∝ A (or its diagonal) is the metric of the next fit: rows that differ in a
direction that does not matter become neighbours. Kernels, metrics and length scales are compared on held-out rows.

Fits are small: 4000 rows and 512 landmarks take well below a tenth of a second. The best ones are compared again with
more rows and landmarks, as length scales shrink with the number of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ntkit._batching import run_on_threads
from ntkit.features.landmarks.nystroem import times_triangular, triangular_root
from ntkit.kernels import KernelSpec
from ntkit.kernels.distances import DistanceKernel
from ntkit.models._linalg import cholesky, cholesky_solve
from ntkit.models._problems import Selection, from_statistics
from ntkit.models._statistics import Statistics

GAIN = 0.005  # relative; a round that lowers the error by less does not count as progress
FAST = 0.05  # relative; a round that lowers the error by more is followed by another one
PATIENCE = 2  # rounds without progress that end a path
FLOOR = 1e-6  # of the largest eigenvalue of A: directions are never lost for good
STEP = 1.8  # between two length scales
CLEAR = 0.002  # relative; a length scale must be better by this to be taken
MOST_LENGTHS = 7  # length scales tried in a round
GRADIENT_ROWS = 2000  # rows that gradients are averaged over, all targets together
# Length scales, as multiples of the median distance. With longer ones all kernel values are nearly 1, and float32 does
# not tell them apart.
SHORTEST, LONGEST = 1e-3, 12.0
LOWEST, HIGHEST = -16, 8  # α = 10^(i/2) times the mean of k(x, x)
SMOOTHER = 0.45  # length scale of a Gaussian kernel over that of a Matérn kernel which does as well
AGAIN = 3  # rounds of a path that starts from the metric of another
FEW_ROWS = 2000  # below, errors are averaged over several splits
JITTER = 1e-6  # times √m, added to kernel matrices of landmarks: factorizations then succeed for any kernel
POOR, TOLERABLE = 0.5, 1.1  # error over the variance of the targets; error over the least one
UNEXPLAINED = 0.2  # error over the variance of the targets, above which residuals are looked at
MISSED = 0.7  # error over the variance of the targets, above which paths start again with more rows
NEAR, FINALISTS = 0.15, 3  # relative; paths whose error is within this of the least are compared at a larger size
NEAR_OF_FEW = 0.6  # the same for few rows: fits are cheap, errors are noisy, and averages gain from unlike kernels
BETTER = 0.03  # relative; a metric of another path must be better by this to be followed
FINAL_ROUNDS, FINAL_PATHS = 2, 2  # at the larger size: rounds, and fits that get them
REVIVAL = 5e-3  # of the largest eigenvalue of A: a floor that gives lost columns another chance
ADDS = 0.002  # relative; what functions of single columns, beside the kernel, must bring to be kept
ADDITIVE_SCALE = 0.7
"""Root of the total variance of the ramps, beside features of unit norm."""


class Split(NamedTuple):
    """Indices of rows to fit on, to predict, and to be landmarks."""

    train: np.ndarray
    held: np.ndarray
    landmarks: np.ndarray


@dataclass(frozen=True)
class Kernel:
    """A kernel up to its length scale."""

    name: str
    items: tuple[tuple[str, Any], ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        """Parameters but for the length scale."""
        return dict(self.items)

    @property
    def has_length(self) -> bool:
        """Whether it has a length scale."""
        return "lengthscale" in KernelSpec.parameters(self.name)

    @property
    def is_distance(self) -> bool:
        """Whether it is a function of a distance, with k(x, x) = 1."""
        return isinstance(self.spec(), DistanceKernel)

    @property
    def separable(self) -> bool:
        """Whether it is a product over columns, for which only a diagonal metric makes sense."""
        return self.params.get("norm") == "l1"

    def spec(self, length: float = 1.0) -> KernelSpec:
        """The kernel with a length scale."""
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
    """A fit: kernel, metric (d,) or (d, d), length scale over the median distance, α, error on held-out rows."""

    kernel: Kernel
    metric: np.ndarray
    factor: float
    length: float
    alpha: float
    error: float
    round: int = 0
    seconds: float = 0.0
    gain: float = 1.0
    """Error over the error with half of the landmarks, about what twice as many bring."""
    additive: bool = False
    """Whether functions of single columns are added to the kernel's."""
    fits: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def expected(self) -> float:
        """Error to expect with twice as many landmarks: rough kernels gain more from them than smooth ones."""
        return self.error * self.gain

    @property
    def full(self) -> bool:
        """Whether the metric has entries outside of the diagonal."""
        return self.metric.ndim == 2


class _Solver:
    """Ridge regression on features of some rows, which it overwrites, and its error on others, for any α."""

    def __init__(self, rows: np.ndarray, held: np.ndarray, Y: np.ndarray, weight: np.ndarray, split: Split):
        statistics = Statistics(rows.shape[1], Y.shape[1])
        statistics.add(rows, Y[split.train], weight[split.train], np.zeros(len(split.train)))
        self.problem: Any = from_statistics(
            statistics.finish(), Selection("loo", 0), intercept=True, several=True, solver="cholesky"
        )
        self.held, self.Y, self.weight = held, Y[split.held], weight[split.held]

    def solve(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Error and weights for one α."""
        fit = self.problem.fit(alpha)
        if fit is None:
            return np.inf, None
        coef, intercept, _ = self.problem.weights(fit.X, alpha)
        return self.error(self.held, coef, intercept), coef

    def predictions(self, alpha: float) -> np.ndarray | None:
        """Predictions of the held-out rows for one α."""
        fit = self.problem.fit(alpha)
        if fit is None:
            return None
        coef, intercept, _ = self.problem.weights(fit.X, alpha)
        return self.held @ coef.astype(self.held.dtype) + intercept

    def error(self, held: np.ndarray, coef: np.ndarray, intercept: Any) -> float:
        """Mean squared error on the held-out rows, infinite if it is not a number."""
        squares = ((held @ coef.astype(held.dtype) + intercept - self.Y) ** 2).sum(axis=1)
        error = float(np.average(squares, weights=self.weight))
        return error if np.isfinite(error) else np.inf


class _Fit:
    """Ridge regression on Nyström features, for any α; with `ramps` also on these features and the ramps."""

    def __init__(
        self,
        spec: KernelSpec,
        Z: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        split: Split,
        ramps: np.ndarray | None = None,
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
            times_triangular(spec.matrix(np.ascontiguousarray(Z[part]), self.landmarks), root)
            for part in (split.train, split.held)
        )
        self.additive = None
        if ramps is not None:  # comes first, as solvers centre their rows in place
            more = np.hstack([rows, ramps[split.train]]), np.hstack([held, ramps[split.held]])
            self.additive = _Solver(*more, Y, weight, split)
        self.solver = _Solver(rows, held, Y, weight, split)
        self.scale = self.solver.problem.scale or 1.0

    def solve(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Error and weights for one α, relative to the kernel's scale."""
        return self.solver.solve(alpha * self.scale)

    def solve_additive(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """The same with the ramps."""
        assert self.additive is not None
        return self.additive.solve(alpha * self.scale)

    def gain(self, alpha: float, error: float) -> float:
        """Error over the error with half of the landmarks; a triangular normalization has half of the features."""
        half, problem = len(self.landmarks) // 2, self.solver.problem
        if problem.by_eigen or not hasattr(problem, "A") or half < 16 or not np.isfinite(error):
            return 1.0
        factor = cholesky(np.ascontiguousarray(problem.A[:half, :half]), alpha * self.scale)
        if factor is None:
            return 1.0
        coef = cholesky_solve(factor, problem.R[:half])
        intercept = problem.y_mean - problem.z_mean[:half] @ coef
        return min(1.0, error / self.solver.error(self.solver.held[:, :half], coef, intercept))

    def dual(self, coef: np.ndarray) -> np.ndarray:
        """Weights of the landmarks."""
        return self.normalization @ coef


class Comparison:
    """Fits on the same rows, compared by their errors on the same held-out rows."""

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        splits: Sequence[Split],
        tick: Callable[[str], None] = lambda _: None,
        resolution: float = 0.0,
        ramps: np.ndarray | None = None,
    ):
        self.X, self.Y, self.weight, self.splits, self.tick = X, Y, weight, splits, tick
        self.resolution, self.ramps = resolution, ramps
        self.d = X.shape[1]
        self.variance = float(sum(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight) for y in Y.T))

    def first(self, kernel: Kernel) -> Trial:
        """The best fit with equal weights of all columns."""
        return self._best_length(kernel, np.ones(self.d), 1.0, 1e-3, 0)

    def transfer(self, kernel: Kernel, trial: Trial) -> Trial:
        """The best fit with the metric of another trial."""
        return self._best_length(kernel, trial.metric, 1.0, trial.alpha, trial.round)

    def rounds(self, trial: Trial, *, full: bool, most: int) -> list[Trial]:
        """The fits that follow on a first one, each with the metric of the one before.

        There are at most `most` of them, and up to three times as many as long as the error falls fast.
        """
        trials, least, idle, fast = [trial], trial.error, 0, False
        for number in range(1, 3 * most + 1):
            metric = metric_of(self.outer_products(trial), full=full) if trial.fits else None
            if metric is None or (number > most and not fast):
                break
            index = trial.round + 1
            trial = self._best_length(trial.kernel, metric, trial.factor, trial.alpha, index, tune=number % 2 == 1)
            trials.append(trial)
            idle, fast = 0 if trial.error < (1 - GAIN) * least else idle + 1, trial.error < (1 - FAST) * least
            least = min(least, trial.error)
            if idle >= PATIENCE or least <= self.resolution:
                break
        return trials

    def _best_length(
        self, kernel: Kernel, metric: np.ndarray, factor: float, alpha: float, index: int, *, tune: bool = True
    ) -> Trial:
        """The best fit with a metric over length scales, downhill from a first one; or that one."""
        began = time.perf_counter()
        Z = apply(metric, self.X)
        median = self._median(kernel, Z)
        tried: dict[float, Trial] = {}

        def error(factor: float) -> float:
            if factor not in tried:
                self.tick(kernel.label)
                near = alpha if not tried else next(reversed(tried.values())).alpha
                widely = not index and not tried  # the error may have several minima where little is explained
                tried[factor] = self._fit(kernel, metric, Z, factor, factor * median, near, index, widely=widely)
            return tried[factor].error

        error(factor)
        while tune and kernel.has_length and len(tried) < MOST_LENGTHS:
            near = [each for each in (round(factor / STEP, 9), round(factor * STEP, 9)) if SHORTEST < each < LONGEST]
            better = next((each for each in near if error(each) < (1 - CLEAR) * error(factor)), None)
            if better is None:
                break
            factor = better
        return replace(tried[factor], seconds=time.perf_counter() - began)

    def lengths(self, trial: Trial, factors: Sequence[float]) -> list[Trial]:
        """Fits with the kernel and the metric of a trial and some length scales; with ramps too, if there are any."""
        Z = apply(trial.metric, self.X)
        median = self._median(trial.kernel, Z)
        found = []
        for factor in factors if trial.kernel.has_length else (1.0,):
            self.tick(trial.kernel.label)
            began = time.perf_counter()
            spec = trial.kernel.spec(factor * median)
            fits = [_Fit(spec, Z, self.Y, self.weight, split, self.ramps) for split in self.splits]
            fit = self._solved(replace(trial, factor=factor, length=factor * median), fits)
            gains = [each.gain(fit.alpha, fit.error) for each, _ in fit.fits]
            fit = replace(fit, gain=float(np.mean(gains)) if gains else 1.0)
            found.append(replace(fit, seconds=time.perf_counter() - began))
            if self.ramps is not None:
                alpha, error = self._additive(fits, fit.alpha)
                found.append(replace(found[-1], alpha=alpha, error=error, additive=True))
        return found

    def _additive(self, fits: list[_Fit], alpha: float) -> tuple[float, float]:
        """The best α with ramps, near one without them, and its error."""
        index, solved = _downhill([fit.solve_additive for fit in fits], alpha)
        return 10.0 ** (index / 2), solved(index)[0]

    def _fit(
        self,
        kernel: Kernel,
        metric: np.ndarray,
        Z: np.ndarray,
        factor: float,
        length: float,
        alpha: float,
        index: int,
        *,
        widely: bool = False,
    ) -> Trial:
        """The fit of the best α, downhill from a first one, or from the best of some far apart."""
        spec = kernel.spec(length)
        fits = [_Fit(spec, Z, self.Y, self.weight, split) for split in self.splits]
        return self._solved(Trial(kernel, metric, factor, length, alpha, np.inf, index), fits, widely=widely)

    def _solved(self, trial: Trial, fits: list[_Fit], *, widely: bool = False) -> Trial:
        """A trial with its best α."""
        i, solved = _downhill([fit.solve for fit in fits], trial.alpha, widely=widely)
        found, weights = solved(i)[0], solved(self._undersmoothed(i, lambda j: solved(j)[0]))[1]
        duals = () if not np.isfinite(found) else tuple(fit.dual(w) for fit, w in zip(fits, weights, strict=True))
        return replace(trial, alpha=10.0 ** (i / 2), error=found, fits=tuple(zip(fits, duals, strict=False)))

    def residuals(self, trial: Trial) -> Comparison | None:
        """The same comparison of what a trial leaves unexplained, or None if it cannot be solved.

        Training rows are predicted by fits of the other half of them, as fits of all would explain their noise too.
        """
        split = self.splits[0]
        m, halves = len(split.landmarks), (split.train[::2], split.train[1::2])
        Z, spec, left = apply(trial.metric, self.X), trial.kernel.spec(trial.length), self.Y.copy()
        for train, held in (halves, halves[::-1], (split.train, split.held)):
            fit = _Fit(spec, Z, self.Y, self.weight, Split(train, held, train[:m]))
            found = fit.solver.predictions(trial.alpha * fit.scale)
            if found is None:
                return None
            left[held] -= found
        used = np.concatenate([split.train, split.held])
        left[np.setdiff1d(np.arange(len(left)), used)] = np.average(left[used], axis=0)
        return Comparison(self.X, left, self.weight, self.splits, self.tick)

    def combined(self, trial: Trial, kernel: Kernel, others: Comparison, other: Trial) -> Trial:
        """The best fit with the sum of the outer products of a trial and of one of its residuals."""
        metric = metric_of(self.outer_products(trial) + others.outer_products(other), full=False)
        assert metric is not None
        return self._best_length(kernel, metric, 1.0, trial.alpha, trial.round + other.round)

    def _undersmoothed(self, i: int, error: Callable[[int], float]) -> int:
        """The α whose gradients are taken: the best one, or where little is explained the smallest that is not bad.

        A kernel of all columns alike may explain next to nothing with any α. Its best fit is then nearly constant or
        linear, and says nothing about columns that matter in another way.
        """
        least = error(i)
        if least > POOR * self.variance:
            while i > LOWEST and error(i - 1) <= TOLERABLE * least:
                i -= 1
        return i

    def _median(self, kernel: Kernel, Z: np.ndarray) -> float:
        """Median distance of two landmarks, of the norm of the kernel."""
        spec = kernel.spec()
        if not isinstance(spec, DistanceKernel):
            return 1.0
        some = Z[self.splits[0].landmarks][:256].astype(np.float64)
        distances = spec.distances(some, some)[np.triu_indices(len(some), 1)] / spec.scale
        if not distances.size:
            return 1.0
        # Of landmarks that are mostly equal, the mean distance still tells the scale.
        return float(np.median(distances)) or float(np.mean(distances)) or 1.0

    def outer_products(self, trial: Trial) -> np.ndarray:
        """A for the function of a trial, in units of the columns: a mean over splits, and over some rows per target."""
        n_targets = self.Y.shape[1]
        rows = self.splits[0].train
        step = max(GRADIENT_ROWS // (n_targets * len(trial.fits) or 1), min(50, len(rows)))
        Z = apply(trial.metric, self.X)
        total = np.zeros((self.d, self.d))
        for fit, dual in trial.fits:
            for k in range(n_targets):
                some = rows[np.arange(k * step, (k + 1) * step) % len(rows)][: len(rows)]
                G = np.asarray(fit.spec.gradient(Z[some], fit.landmarks, dual[:, k]))
                G *= np.sqrt(self.weight[some] / max(self.weight[some].mean(), 1e-300))[:, None]
                total += G.T @ G / len(some)
        M = trial.metric
        total /= len(trial.fits) or 1
        return M @ total @ M.T if trial.full else M[:, None] * total * M[None, :]


def _downhill(
    solvers: Sequence[Callable[[float], tuple[float, Any]]], alpha: float, *, widely: bool = False
) -> tuple[int, Callable[[int], tuple[float, list[Any]]]]:
    """The best α = 10^(i/2): downhill from a first one, or from the best of some far apart, in steps of √10.

    Returns i, and a function from i to the mean error over splits and the weights of each.
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
    """Rows times a metric, in their precision."""
    M = metric.astype(X.dtype)
    return X @ M if M.ndim == 2 else X * M


def metric_of(A: np.ndarray, *, full: bool, floor: float = FLOOR) -> np.ndarray | None:
    """Return M with M² = A/‖A‖ + floor, or the same for the diagonal of A; None if A is zero or not finite."""
    if not np.isfinite(A).all() or not np.trace(A) > 0:
        return None
    if not full:
        squares = np.diagonal(A)
        return np.sqrt(squares / squares.max() + floor)
    values, vectors = np.linalg.eigh(A / np.trace(A))
    values = np.maximum(values, 0) / values[-1] + floor
    return (vectors * np.sqrt(values)) @ vectors.T


def make_splits(order: np.ndarray, n_held: int, n_train: int, n_landmarks: int, n_splits: int = 1) -> list[Split]:
    """Splits of rows in a random order: the first ones are held out, or of few rows several parts in turn.

    Equal orders give equal held-out rows: a metric is never tried on rows it was learned from at another size.
    """
    splits = []
    for index in range(n_splits if len(order) < FEW_ROWS else 1):
        held = np.arange(index * n_held, (index + 1) * n_held)
        train = np.delete(order, held)[:n_train]
        splits.append(Split(train, order[held], train[:n_landmarks]))
    return splits


class Sizes(NamedTuple):
    """Rows, landmarks and splits of small rows of the fits of a path, and of the comparison of the best fits."""

    n_rows: int = 4000
    n_landmarks: int = 512
    n_splits: int = 2
    n_rows_refined: int = 8000
    n_landmarks_refined: int = 1024
    n_splits_refined: int = 3


MOST_COLUMNS = 256
"""Columns up to which full metrics and products over columns are tried unasked."""
FEWEST_ROWS = 30
"""Rows from which there is anything to learn and to hold out."""
ROWS_PER_COLUMN = 20  # for a full metric
MANY_COLUMNS = 8  # from which a kernel of all columns alike may miss what depends on few of them


class Learned(NamedTuple):
    """The best fit of each kernel and kind of metric, best ones first, and all fits that led to them."""

    finalists: list[Finalist]
    trials: list[Trial]


class Finalist(NamedTuple):
    """A fit, and the average outer product of the gradients of its function."""

    trial: Trial
    outer_products: np.ndarray


class Learner:
    """Tries kernels and metrics on few rows, compares the best fits with more of them.

    Errors up to `resolution` are equal: a metric that needs fewer rounds is then better, as it keeps more columns.
    `ramps` are features of single columns (:class:`PiecewiseLinearEncoder`), tried beside the kernels of the best fits.
    """

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        rng: np.random.Generator,
        *,
        kernel: Kernel | None,
        metric: str,
        most_rounds: int,
        sizes: Sizes,
        resolution: float = 0.0,
        tick: Callable[[str], None] = lambda _: None,
        ramps: np.ndarray | None = None,
    ):
        self.resolution, self.ramps = resolution, ramps
        self.X, self.Y, self.weight, self.rng, self.sizes, self.tick = X, Y, weight, rng, sizes, tick
        self.kernel, self.metric, self.most_rounds = kernel, metric, most_rounds
        self.trials: list[Trial] = []
        self.wide = X.shape[1] > MOST_COLUMNS

    def learn(self) -> Learned:
        """The best fit."""
        n, sizes = len(self.X), self.sizes
        order = self.rng.permutation(n)
        n_held = max(min(n, sizes.n_rows_refined) // 5, 1)
        splits = make_splits(order, n_held, 4 * sizes.n_rows // 5, sizes.n_landmarks, sizes.n_splits)
        small = Comparison(self.X, self.Y, self.weight, splits, self.tick, self.resolution)
        ends = self._follow(small)
        n_train, n_landmarks = 4 * sizes.n_rows_refined // 5, min(n, sizes.n_landmarks_refined)
        splits = make_splits(order, n_held, n_train, n_landmarks, sizes.n_splits_refined)
        large = Comparison(self.X, self.Y, self.weight, splits, self.tick, self.resolution, self.ramps)
        ends = self._follow(large) if self._missed(ends, large.variance) else self._with_residuals(small, ends)
        best: dict[tuple[Kernel, bool], Trial] = {}
        for trial in self._final_rounds(large, self._refine(large, ends)):
            best.setdefault((trial.kernel, trial.full), trial)
        return Learned([Finalist(trial, large.outer_products(trial)) for trial in best.values()], self.trials)

    def _with_residuals(self, rows: Comparison, ends: list[Trial]) -> list[Trial]:
        """Ends, and fits with a metric that also has the columns on which the residuals of the best end depend.

        Columns that matter only together hardly change the first fits, and are lost beside columns that matter alone.
        """
        best = next((end for end in ends if not end.full), None)
        left = ends[0].error > UNEXPLAINED * rows.variance
        if best is None or not left or self.X.shape[1] < MANY_COLUMNS or len(self.X) < FEW_ROWS or self.wide:
            return ends
        others = rows.residuals(best) if best.kernel.is_distance else None
        if others is None:
            return ends
        path = others.rounds(others.first(best.kernel), full=False, most=self.most_rounds)
        found = min(path, key=lambda trial: trial.error)
        if not found.round or found.error > (1 - BETTER) * path[0].error:
            return ends
        paths: dict[Kernel, list[Trial]] = {}

        def follow(kernel: Kernel) -> None:
            paths[kernel] = rows.rounds(rows.combined(best, kernel, others, found), full=False, most=AGAIN)

        kernels = [end.kernel for end in ends if not end.full]
        run_on_threads(follow, kernels)
        self.trials += [replace(trial, fits=()) for kernel in kernels for trial in paths[kernel]]
        more = [self._best(paths[kernel]) for kernel in kernels]
        return sorted([*(end for end in ends if end.full), *map(self._best, zip(
            [end for end in ends if not end.full], more, strict=True))], key=self._rank)  # fmt: skip

    def _missed(self, ends: list[Trial], variance: float) -> bool:
        """Whether little was explained, and metrics did not help, where few of many columns may matter."""
        first = min((trial.error for trial in self.trials if trial.round == 0), default=0.0)
        learned = ends[0].error < (1 - BETTER) * first
        return ends[0].error > MISSED * variance and not learned and self.X.shape[1] >= MANY_COLUMNS

    def _follow(self, rows: Comparison) -> list[Trial]:
        """The best fit of each path, best ones first."""
        kernels = [self.kernel] if self.kernel else [MATERN] if self.wide else [MATERN, PRODUCT_LAPLACE]
        firsts: dict[Kernel, Trial] = {}
        diagonals: dict[Kernel, list[Trial]] = {}
        others: dict[tuple[Kernel, bool], list[Trial]] = {}

        def diagonal(kernel: Kernel) -> None:
            firsts[kernel] = rows.first(kernel)
            if self.metric != "full" or kernel.separable:
                diagonals[kernel] = rows.rounds(firsts[kernel], full=False, most=self.most_rounds)

        def further(task: tuple[Kernel, bool]) -> None:
            kernel, full = task
            if full:
                others[task] = rows.rounds(firsts[kernel], full=True, most=self.most_rounds)
            else:
                others[task] = self._transfer(rows, kernel, diagonals)

        run_on_threads(diagonal, kernels)
        full = self.metric == "full" or (self.metric == "auto" and not self.wide and self._allows_full())
        tasks = [(kernel, False) for kernel in kernels if len(diagonals) > 1]
        tasks += [(kernel, True) for kernel in kernels if full and not kernel.separable]
        run_on_threads(further, tasks)
        found = {kernel: diagonals[kernel] + others.get((kernel, False), []) for kernel in diagonals}
        best = min(map(self._best, found.values()), key=self._rank, default=None)
        if best is not None and all(best is not trial for path in diagonals.values() for trial in path):
            # A path that started from the metric of another kernel has found a better one: give it back.
            behind = [kernel for kernel in diagonals if self._best(found[kernel]).error > (1 + BETTER) * best.error]
            again: dict[Kernel, list[Trial]] = {}
            run_on_threads(lambda kernel: again.update({kernel: self._transfer(rows, kernel, found)}), behind)
            for kernel in behind:
                others[kernel, False] = others.get((kernel, False), []) + again[kernel]
        # In an order that does not depend on the threads.
        paths = [diagonals[kernel] + others.get((kernel, False), []) for kernel in kernels if kernel in diagonals]
        paths += [others[task] for task in tasks if task[1]]
        self.trials += [replace(trial, fits=()) for path in paths for trial in path]
        return sorted(map(self._best, paths), key=self._rank)

    def _allows_full(self) -> bool:
        """Whether there are enough rows for a full metric.

        Below FEW_ROWS one metric serves several splits, so that held-out rows of one split are training rows of others.
        The entries of a full metric are so many that they would fit these.
        """
        n, d = self.X.shape
        return d > 1 and n >= max(FEW_ROWS, ROWS_PER_COLUMN * d)

    def _rank(self, trial: Trial) -> tuple[float, int]:
        """Sort key of fits: the error to expect; among errors too small to matter, the number of rounds."""
        expected = trial.expected * (1 + ADDS if trial.additive else 1)
        return max(expected, self.resolution), trial.round

    def _best(self, trials: Sequence[Trial]) -> Trial:
        return min(trials, key=self._rank)

    def _transfer(self, rows: Comparison, kernel: Kernel, paths: dict[Kernel, list[Trial]]) -> list[Trial]:
        """Go on from the best diagonal metric of another kernel, which may have found what this one could not."""
        own = self._best(paths[kernel])
        ends = [self._best(path) for path in paths.values()]
        best = min(ends, key=lambda trial: (self._rank(trial), trial.kernel.label))
        if best.kernel == kernel or not best.round:
            return []
        trial = rows.transfer(kernel, best)
        return rows.rounds(trial, full=False, most=AGAIN) if trial.error < (1 - BETTER) * own.error else [trial]

    def _refine(self, rows: Comparison, ends: list[Trial]) -> list[Trial]:
        """Fits with more rows and landmarks: near ends with two length scales, and with a smoother kernel."""
        near_enough = NEAR if len(self.X) >= FEW_ROWS else NEAR_OF_FEW
        bound = max((1 + near_enough) * ends[0].error, self.resolution)
        near = [end for end in ends if end.error <= bound][:FINALISTS]
        tasks = [(end, end.factor) for end in near]
        tasks += [(end, end.factor / STEP) for end in near[:2] if end.kernel.has_length]
        smooth = [replace(end, kernel=GAUSSIAN) for end in near if end.kernel == MATERN][:1] if not self.kernel else []
        tasks += [(end, end.factor * SMOOTHER) for end in smooth]
        found: dict[int, list[Trial]] = {}

        def fit(index: int) -> None:
            end, factor = tasks[index]
            found[index] = rows.lengths(end, (factor,))

        run_on_threads(fit, range(len(tasks)))
        finalists = [trial for index in range(len(tasks)) for trial in found[index]]
        self.trials += [replace(trial, fits=()) for trial in finalists]
        return sorted(finalists, key=self._rank)

    def _final_rounds(self, rows: Comparison, finalists: list[Trial]) -> list[Trial]:
        """Add further rounds at the larger size for the best fits, as long as they lower the error.

        Gradients of fits with more rows and landmarks are more accurate. Where there are many columns, each round also
        tries a metric with a higher floor: earlier rounds may have lost columns that matter little but do matter.
        """
        best: dict[tuple[Kernel, bool], Trial] = {}
        for trial in finalists:
            best.setdefault((trial.kernel, trial.full), trial)
        paths = list(best.values())[:FINAL_PATHS] if self.most_rounds else []
        floors = (FLOOR, REVIVAL) if self.X.shape[1] >= MANY_COLUMNS else (FLOOR,)
        found: dict[int, list[Trial]] = {index: [] for index in range(len(paths))}

        def follow(index: int) -> None:
            trial = paths[index]
            for _ in range(FINAL_ROUNDS):
                A = rows.outer_products(trial) if trial.fits else np.zeros((1, 1))
                metrics = [metric_of(A, full=trial.full, floor=floor) for floor in floors]
                start = replace(trial, round=trial.round + 1)
                further = [
                    fit
                    for M in metrics
                    if M is not None
                    for fit in rows.lengths(replace(start, metric=M), (trial.factor,))
                ]
                found[index] += further
                least = self._rank(trial)[0]
                trial = min([trial, *further], key=self._rank)
                if not self._rank(trial)[0] < (1 - GAIN) * least:
                    break

        run_on_threads(follow, range(len(paths)))
        further = [trial for index in range(len(paths)) for trial in found[index]]
        self.trials += [replace(trial, fits=()) for trial in further]
        return sorted([*finalists, *further], key=self._rank)
