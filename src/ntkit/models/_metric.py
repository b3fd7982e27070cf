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
NEAR, FINALISTS = 0.15, 3  # relative; paths whose error is within this of the least are compared at a larger size
BETTER = 0.03  # relative; a metric of another path must be better by this to be followed


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
    fits: tuple[Any, ...] = field(default=(), repr=False)

    @property
    def expected(self) -> float:
        """Error to expect with twice as many landmarks: rough kernels gain more from them than smooth ones."""
        return self.error * self.gain

    @property
    def full(self) -> bool:
        """Whether the metric has entries outside of the diagonal."""
        return self.metric.ndim == 2


class _Fit:
    """Ridge regression on Nyström features of some rows, and its error on others, for any α."""

    def __init__(self, spec: KernelSpec, Z: np.ndarray, Y: np.ndarray, weight: np.ndarray, split: Split):
        self.spec, self.landmarks = spec, np.ascontiguousarray(Z[split.landmarks])
        K = np.asarray(spec.matrix(self.landmarks.astype(np.float64)))
        m = len(K)
        scale = np.sqrt(np.maximum(np.diagonal(K), np.finfo(np.float64).tiny))
        K /= scale[:, None] * scale[None, :]
        K[np.diag_indices(m)] += JITTER * m**0.5
        self.normalization = triangular_root(K) / scale[:, None]
        root = self.normalization.astype(Z.dtype)
        statistics = Statistics(m, Y.shape[1])
        rows = times_triangular(spec.matrix(np.ascontiguousarray(Z[split.train]), self.landmarks), root)
        statistics.add(rows, Y[split.train], weight[split.train], np.zeros(len(split.train)))
        self.problem: Any = from_statistics(
            statistics.finish(), Selection("loo", 0), intercept=True, several=True, solver="cholesky"
        )
        self.scale = self.problem.scale or 1.0
        self.held = times_triangular(spec.matrix(np.ascontiguousarray(Z[split.held]), self.landmarks), root)
        self.Y, self.weight = Y[split.held], weight[split.held]

    def solve(self, alpha: float) -> tuple[float, np.ndarray | None]:
        """Error and weights for one α, relative to the kernel's scale."""
        fit = self.problem.fit(alpha * self.scale)
        if fit is None:
            return np.inf, None
        coef, intercept, _ = self.problem.weights(fit.X, alpha * self.scale)
        squares = ((self.held @ coef.astype(self.held.dtype) + intercept - self.Y) ** 2).sum(axis=1)
        error = float(np.average(squares, weights=self.weight))
        return (error if np.isfinite(error) else np.inf), coef

    def gain(self, alpha: float, error: float) -> float:
        """Error over that with half of the landmarks: the normalization is triangular, so half of the features."""
        half = len(self.landmarks) // 2
        if self.problem.by_eigen or not hasattr(self.problem, "A") or half < 16 or not np.isfinite(error):
            return 1.0
        A = np.ascontiguousarray(self.problem.A[:half, :half])
        factor = cholesky(A, alpha * self.scale)
        if factor is None:
            return 1.0
        coef = cholesky_solve(factor, self.problem.R[:half])
        intercept = self.problem.y_mean - self.problem.z_mean[:half] @ coef
        squares = ((self.held[:, :half] @ coef.astype(self.held.dtype) + intercept - self.Y) ** 2).sum(axis=1)
        return min(1.0, error / float(np.average(squares, weights=self.weight)))

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
    ):
        self.X, self.Y, self.weight, self.splits, self.tick = X, Y, weight, splits, tick
        self.resolution = resolution
        self.d = X.shape[1]
        self.variance = float(sum(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight) for y in Y.T))

    def first(self, kernel: Kernel) -> Trial:
        """The best fit with equal weights of all columns."""
        return self._best_length(kernel, np.ones(self.d), 1.0, 1e-3, 0)

    def transfer(self, kernel: Kernel, trial: Trial) -> Trial:
        """The best fit with the metric of another trial."""
        return self._best_length(kernel, trial.metric, 1.0, trial.alpha, trial.round)

    def rounds(self, trial: Trial, *, full: bool, most: int) -> list[Trial]:
        """The fits that follow on a first one, each with the metric of the one before."""
        trials, least, idle = [trial], trial.error, 0
        for index in range(trial.round + 1, trial.round + most + 1):
            metric = metric_of(self.outer_products(trial), full=full) if trial.fits else None
            if metric is None:
                break
            trial = self._best_length(trial.kernel, metric, trial.factor, trial.alpha, index, tune=index % 2 == 1)
            trials.append(trial)
            idle = 0 if trial.error < (1 - GAIN) * least else idle + 1
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
        """Fits with the kernel and the metric of a trial and some length scales."""
        Z = apply(trial.metric, self.X)
        median = self._median(trial.kernel, Z)
        found = []
        for factor in factors if trial.kernel.has_length else (1.0,):
            self.tick(trial.kernel.label)
            began = time.perf_counter()
            fit = self._fit(trial.kernel, trial.metric, Z, factor, factor * median, trial.alpha, trial.round)
            gains = [each.gain(fit.alpha, fit.error) for each, _ in fit.fits]
            seconds = time.perf_counter() - began
            found.append(replace(fit, seconds=seconds, gain=float(np.mean(gains)) if gains else 1.0))
        return found

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
        """The fit of the best α, downhill from a first one, or from the best of some far apart, in steps of √10."""
        spec = kernel.spec(length)
        fits = [_Fit(spec, Z, self.Y, self.weight, split) for split in self.splits]
        solved: dict[int, tuple[float, list[Any]]] = {}

        def error(i: int) -> float:
            if i not in solved:
                errors, weights = zip(*(fit.solve(10.0 ** (i / 2)) for fit in fits), strict=True)
                solved[i] = float(np.mean(errors)), list(weights)
            return solved[i][0]

        i = min(max(round(2 * np.log10(alpha)), LOWEST), HIGHEST)
        if widely:
            i = min(range(LOWEST, HIGHEST + 1, 4), key=error)
        while not np.isfinite(error(i)) and i < HIGHEST:
            i += 1
        while True:
            near = [j for j in (i + 1, i - 1) if LOWEST <= j <= HIGHEST]
            better = next((j for j in near if error(j) < error(i)), None)
            if better is None:
                break
            i = better
        found, weights = solved[i][0], solved[self._undersmoothed(i, error)][1]
        duals = () if not np.isfinite(found) else tuple(fit.dual(w) for fit, w in zip(fits, weights, strict=True))
        return Trial(
            kernel, metric, factor, length, 10.0 ** (i / 2), found, index, fits=tuple(zip(fits, duals, strict=False))
        )

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


def apply(metric: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Rows times a metric, in their precision."""
    M = metric.astype(X.dtype)
    return X @ M if M.ndim == 2 else X * M


def metric_of(A: np.ndarray, *, full: bool) -> np.ndarray | None:
    """M with M² = A/‖A‖ + FLOOR, or that of the diagonal of A; None if A is zero or not finite."""
    if not np.isfinite(A).all() or not np.trace(A) > 0:
        return None
    if not full:
        squares = np.diagonal(A)
        return np.sqrt(squares / squares.max() + FLOOR)
    values, vectors = np.linalg.eigh(A / np.trace(A))
    values = np.maximum(values, 0) / values[-1] + FLOOR
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
    """The best fit, the average outer product of its gradients, and all fits that led to it, best ones first."""

    best: Trial
    outer_products: np.ndarray
    trials: list[Trial]
    finalists: list[Trial]


class Learner:
    """Tries kernels and metrics on few rows, compares the best fits with more of them.

    Errors up to `resolution` are equal: a metric that needs fewer rounds is then better, as it keeps more columns.
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
    ):
        self.resolution = resolution
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
        ends = self._follow(Comparison(self.X, self.Y, self.weight, splits, self.tick, self.resolution))
        n_train, n_landmarks = 4 * sizes.n_rows_refined // 5, min(n, sizes.n_landmarks_refined)
        splits = make_splits(order, n_held, n_train, n_landmarks, sizes.n_splits_refined)
        large = Comparison(self.X, self.Y, self.weight, splits, self.tick, self.resolution)
        if self._missed(ends, large.variance):
            ends = self._follow(large)
        finalists = self._refine(large, ends)
        return Learned(finalists[0], large.outer_products(finalists[0]), self.trials, finalists)

    def _missed(self, ends: list[Trial], variance: float) -> bool:
        """Whether little was explained, and metrics did not help, where few of many columns may matter."""
        first = min((trial.error for trial in self.trials if trial.round == 0), default=0.0)
        learned = ends[0].error < (1 - BETTER) * first
        return ends[0].error > POOR * variance and not learned and self.X.shape[1] >= MANY_COLUMNS

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
        """What fits are compared by: the error to expect; of errors too small to matter, fewer rounds are better."""
        return max(trial.expected, self.resolution), trial.round

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
        bound = max((1 + NEAR) * ends[0].error, self.resolution)
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
