"""Learn metrics in rounds: fit, average the outer products of gradients, refit; compare errors on held-out rows.

Kernel ridge regression with k(Mx, My) on a few landmarks gives a function f. Its average outer product of gradients

    A = (1/n) Σ_i ∇f(x_i) ∇f(x_i)ᵀ    (summed over targets)

shows along which directions f changes. M² ∝ A (or its diagonal) is the metric of the next fit: rows that differ only in
directions that do not matter become neighbours. Kernels, metrics and length scales are compared on held-out rows.

Fits are small: 4000 rows and 512 landmarks take well below a tenth of a second. The best fits are compared again with
more rows and landmarks, since length scales shrink with the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ntkit._batching import run_on_threads
from ntkit.models._metric_comparison import LENGTH_STEP, PROGRESS, Comparison, FitLeaves
from ntkit.models._metric_fits import (
    FEW_ROWS,
    FLOOR,
    GAUSSIAN,
    MATERN,
    PRODUCT_LAPLACE,
    Kernel,
    Trial,
    make_splits,
    metric_of,
)

# Margins are shares of the error that they are compared with.
TRANSFER_MARGIN = 0.03  # a metric from elsewhere must lower the error by this share to start a path
TRANSFER_ROUNDS = 3  # rounds of a path that starts from the metric of another kernel
GAUSSIAN_LENGTH = 0.45  # a Gaussian kernel does about as well as a Matérn kernel at this share of its length scale
RESIDUAL_ERROR = 0.2  # above this share of the variance of the targets, a metric is learned for the residuals too
RESTART_ERROR = 0.7  # above this share of the variance of the targets, all paths start again with more rows
# Fits whose error exceeds the best by at most FINALIST_MARGIN are compared at a larger size.
FINALIST_MARGIN, MAX_FINALISTS = 0.15, 3
FINALIST_MARGIN_FEW_ROWS = 0.6  # with few rows, fits are cheap, errors noisy, and averages of unlike kernels help
FINAL_ROUNDS, FINAL_PATHS = 2, 2  # rounds at the larger size, and the number of fits that get them
REVIVAL_FLOOR = 5e-3  # a higher FLOOR that gives lost columns another chance
ADDITIVE_MARGIN = 0.002  # functions of single columns must lower the error by this share to be used
LEAF_ROWS = 1000  # with fewer rows, trees see too few of them
# Leaves must lower the error by the share LEAF_MARGIN, and by LEAF_DEVIATIONS standard errors of the change.
LEAF_MARGIN, LEAF_DEVIATIONS = 0.003, 0.5
ADDITIVE_SCALE = 0.7
"""Square root of the total variance of the ramps; the features of the kernel have unit norm."""


class Sizes(NamedTuple):
    """Numbers of rows, landmarks and splits: in the rounds, and (`refined`) in the comparison of the best fits.

    Several splits are used only below FEW_ROWS rows.
    """

    n_rows: int = 4000
    n_landmarks: int = 512
    n_splits: int = 2
    n_rows_refined: int = 8000
    n_landmarks_refined: int = 1024
    n_splits_refined: int = 3


MAX_COLUMNS = 256
"""With more columns, full metrics and product kernels are tried only on request."""
MIN_ROWS = 30
"""With fewer rows, no metric is learned."""
ROWS_PER_COLUMN = 20  # rows per column that a full metric needs
MANY_COLUMNS = 8  # from this many columns on, a kernel with equal weights may miss a dependence on few of them


class Learned(NamedTuple):
    """The best fit of each kernel and kind of metric, in order of their errors, and all fits that were tried."""

    finalists: list[Finalist]
    trials: list[Trial]


class Finalist(NamedTuple):
    """A fit and the average outer product of the gradients of its function."""

    trial: Trial
    outer_products: np.ndarray


class Learner:
    """Tries kernels and metrics on few rows, then compares the best fits with more rows.

    Errors up to `resolution` count as equal; the metric with fewer rounds is then better, since it keeps more columns.
    `ramps` are features of single columns (:class:`PiecewiseLinearEncoder`), tried in addition to the kernels of the
    best fits. `fit_leaves` fits features of the leaves of trees, tried in addition to the best fit.
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
        fit_leaves: FitLeaves | None = None,
    ):
        self.resolution, self.ramps, self.fit_leaves = resolution, ramps, fit_leaves
        self.X, self.Y, self.weight, self.rng, self.sizes, self.tick = X, Y, weight, rng, sizes, tick
        self.kernel, self.metric, self.most_rounds = kernel, metric, most_rounds
        self.trials: list[Trial] = []
        self.wide = X.shape[1] > MAX_COLUMNS

    def learn(self) -> Learned:
        """Run the comparison and return the best fits."""
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
        finalists = [Finalist(trial, large.outer_products(trial)) for trial in best.values()]
        used = sum(len(part) for part in large.splits[0][:2])
        spare = order[used:] if len(large.splits) == 1 else order[:0]
        with_leaves = self._with_leaves(large, finalists[0].trial, spare)
        if with_leaves is not None:
            finalists.insert(0, finalists[0]._replace(trial=with_leaves))
        return Learned(finalists, self.trials)

    def _with_leaves(self, rows: Comparison, best: Trial, spare: np.ndarray) -> Trial | None:
        """Return the best fit with features of the leaves of trees, if these lower its error; else None."""
        if self.fit_leaves is None or len(self.X) < LEAF_ROWS or not best.fits or best.error <= self.resolution:
            return None
        trial, deviation = rows.with_leaves(best, self.fit_leaves, spare)
        self.trials.append(replace(trial, fits=()))
        return trial if best.error - trial.error > max(LEAF_DEVIATIONS * deviation, LEAF_MARGIN * best.error) else None

    def _with_residuals(self, rows: Comparison, ends: list[Trial]) -> list[Trial]:
        """Continue diagonal paths with a metric that includes columns on which the residuals of the best fit depend.

        Columns that matter only in combination hardly change the first fits, and are lost among columns that matter
        alone. Returns the best fits of all paths.
        """
        best = next((end for end in ends if not end.full), None)
        unexplained = ends[0].error > RESIDUAL_ERROR * rows.variance
        if best is None or not unexplained or self.X.shape[1] < MANY_COLUMNS or len(self.X) < FEW_ROWS or self.wide:
            return ends
        others = rows.residuals(best) if best.kernel.is_distance else None
        if others is None:
            return ends
        path = others.rounds(others.first(best.kernel), full=False, most=self.most_rounds)
        found = min(path, key=lambda trial: trial.error)
        if not found.round or found.error > (1 - TRANSFER_MARGIN) * path[0].error:
            return ends
        paths: dict[Kernel, list[Trial]] = {}

        def follow(kernel: Kernel) -> None:
            paths[kernel] = rows.rounds(rows.combined(best, kernel, others, found), full=False, most=TRANSFER_ROUNDS)

        kernels = [end.kernel for end in ends if not end.full]
        run_on_threads(follow, kernels)
        self.trials += [replace(trial, fits=()) for kernel in kernels for trial in paths[kernel]]
        diagonal = [end for end in ends if not end.full]
        continued = [self._best(paths[kernel]) for kernel in kernels]
        improved = map(self._best, zip(diagonal, continued, strict=True))
        return sorted([*(end for end in ends if end.full), *improved], key=self._rank)

    def _missed(self, ends: list[Trial], variance: float) -> bool:
        """Whether little was explained and metrics did not help, although few of many columns may matter."""
        first = min((trial.error for trial in self.trials if trial.round == 0), default=0.0)
        learned = ends[0].error < (1 - TRANSFER_MARGIN) * first
        return ends[0].error > RESTART_ERROR * variance and not learned and self.X.shape[1] >= MANY_COLUMNS

    def _follow(self, rows: Comparison) -> list[Trial]:
        """Follow a path of rounds for each kernel and kind of metric; return the best fit of each, sorted by error."""
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
            # A path that started from the metric of another kernel found a better metric: try it with other kernels.
            behind = [
                kernel for kernel in diagonals if self._best(found[kernel]).error > (1 + TRANSFER_MARGIN) * best.error
            ]
            again: dict[Kernel, list[Trial]] = {}
            run_on_threads(lambda kernel: again.update({kernel: self._transfer(rows, kernel, found)}), behind)
            for kernel in behind:
                others[kernel, False] = others.get((kernel, False), []) + again[kernel]
        # This order does not depend on the threads.
        paths = [diagonals[kernel] + others.get((kernel, False), []) for kernel in kernels if kernel in diagonals]
        paths += [others[task] for task in tasks if task[1]]
        self.trials += [replace(trial, fits=()) for path in paths for trial in path]
        return sorted(map(self._best, paths), key=self._rank)

    def _allows_full(self) -> bool:
        """Whether there are enough rows for a full metric.

        Below FEW_ROWS, one metric serves several splits, so held-out rows of one split are training rows of others. A
        full metric has enough entries to overfit them.
        """
        n, d = self.X.shape
        return d > 1 and n >= max(FEW_ROWS, ROWS_PER_COLUMN * d)

    def _rank(self, trial: Trial) -> tuple[float, int]:
        """Return the sort key of a fit: its expected error, then, for errors below the resolution, its round."""
        expected = trial.expected * (1 + ADDITIVE_MARGIN if trial.additive else 1)
        return max(expected, self.resolution), trial.round

    def _best(self, trials: Sequence[Trial]) -> Trial:
        return min(trials, key=self._rank)

    def _transfer(self, rows: Comparison, kernel: Kernel, paths: dict[Kernel, list[Trial]]) -> list[Trial]:
        """Continue from the best diagonal metric of another kernel, which may have found what this kernel missed."""
        own = self._best(paths[kernel])
        ends = [self._best(path) for path in paths.values()]
        best = min(ends, key=lambda trial: (self._rank(trial), trial.kernel.label))
        if best.kernel == kernel or not best.round:
            return []
        trial = rows.transfer(kernel, best)
        return (
            rows.rounds(trial, full=False, most=TRANSFER_ROUNDS)
            if trial.error < (1 - TRANSFER_MARGIN) * own.error
            else [trial]
        )

    def _refine(self, rows: Comparison, ends: list[Trial]) -> list[Trial]:
        """Fit the best ends with more rows and landmarks, also with shorter length scales and a smoother kernel."""
        margin = FINALIST_MARGIN if len(self.X) >= FEW_ROWS else FINALIST_MARGIN_FEW_ROWS
        bound = max((1 + margin) * ends[0].error, self.resolution)
        near = [end for end in ends if end.error <= bound][:MAX_FINALISTS]
        tasks = [(end, end.factor) for end in near]
        tasks += [(end, end.factor / LENGTH_STEP) for end in near[:2] if end.kernel.has_length]
        smooth = [replace(end, kernel=GAUSSIAN) for end in near if end.kernel == MATERN][:1] if not self.kernel else []
        tasks += [(end, end.factor * GAUSSIAN_LENGTH) for end in smooth]
        found: dict[int, list[Trial]] = {}

        def fit(index: int) -> None:
            end, factor = tasks[index]
            found[index] = rows.lengths(end, (factor,))

        run_on_threads(fit, range(len(tasks)))
        finalists = [trial for index in range(len(tasks)) for trial in found[index]]
        self.trials += [replace(trial, fits=()) for trial in finalists]
        return sorted(finalists, key=self._rank)

    def _final_rounds(self, rows: Comparison, finalists: list[Trial]) -> list[Trial]:
        """Add rounds at the larger size for the best fits, while they lower the error.

        Gradients of fits with more rows and landmarks are more accurate. If there are many columns, each round also
        tries a metric with a higher floor: earlier rounds may have lost columns that matter a little.
        """
        best: dict[tuple[Kernel, bool], Trial] = {}
        for trial in finalists:
            best.setdefault((trial.kernel, trial.full), trial)
        paths = list(best.values())[:FINAL_PATHS] if self.most_rounds else []
        floors = (FLOOR, REVIVAL_FLOOR) if self.X.shape[1] >= MANY_COLUMNS else (FLOOR,)
        found: dict[int, list[Trial]] = {index: [] for index in range(len(paths))}

        def follow(index: int) -> None:
            trial = paths[index]
            for _ in range(FINAL_ROUNDS):
                A = rows.outer_products(trial) if trial.fits else np.zeros((1, 1))
                metrics = [metric_of(A, full=trial.full, floor=floor) for floor in floors]
                start = replace(trial, round=trial.round + 1, additive=False)
                further = [
                    fit
                    for M in metrics
                    if M is not None
                    for fit in rows.lengths(replace(start, metric=M), (trial.factor,), additive=trial.additive)
                ]
                found[index] += further
                previous = self._rank(trial)[0]
                trial = min([trial, *further], key=self._rank)
                if not self._rank(trial)[0] < (1 - PROGRESS) * previous:
                    break

        run_on_threads(follow, range(len(paths)))
        further = [trial for index in range(len(paths)) for trial in found[index]]
        self.trials += [replace(trial, fits=()) for trial in further]
        return sorted([*finalists, *further], key=self._rank)
