"""Learn metrics: weights of columns or matrices M, and a kernel k(Mx, My), that predict held-out rows well.

Metrics of kernels of distances are learned by descent on the leave-one-out error (:mod:`ntkit.models._metric_descent`).
Other kernels, such as the NTK, learn in rounds: ridge regression gives a function f = Σ c_j k(M·, M l_j), and its
average outer product of gradients

    A = (1/n) Σ_i ∇f(x_i) ∇f(x_i)ᵀ    (summed over targets)

shows along which directions f changes. M² ∝ A (or its diagonal) is the metric of the next fit.

Kernels, metrics after each round, and length scales are compared on held-out rows. Fits are small: 4000 rows and 512
landmarks take well below a tenth of a second. The best fits are compared again with more rows and landmarks, since
length scales shrink with the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import NamedTuple

import numpy as np

from ntkit._batching import run_on_threads
from ntkit.kernels.distances import DistanceKernel
from ntkit.models._metric_comparison import LENGTH_STEP, Comparison, FitLeaves
from ntkit.models._metric_descent import descend
from ntkit.models._metric_fits import FEW_ROWS, GAUSSIAN, MATERN, PRODUCT_LAPLACE, Kernel, Trial, make_splits

# Margins are shares of the error that they are compared with.
# Fits whose error exceeds the best by at most FINALIST_MARGIN are compared at a larger size.
FINALIST_MARGIN, MAX_FINALISTS = 0.15, 4
FINALIST_MARGIN_FEW_ROWS = 0.6  # with few rows, fits are cheap, errors noisy, and averages of unlike kernels help
SHORTER = 2  # this number of fits is also compared with a shorter length scale
SHORT_STEP = 1.4  # ratio of the length scales when these fits are compared once more, with more rows
OPENING, MAX_KERNELS = 2, 2  # after two rounds of descent, only the two best kernels continue
FULL_ROUNDS = 4  # rounds of descent from a diagonal metric to a full one
ADDITIVE_MARGIN = 0.002  # functions of single columns must lower the error by this share to be used
LEAF_ROWS = 1000  # with fewer rows, trees see too few of them
# Leaves must lower the error by the share LEAF_MARGIN, and by LEAF_DEVIATIONS standard errors of the change.
LEAF_MARGIN, LEAF_DEVIATIONS = 0.003, 0.5
ADDITIVE_SCALE = 0.7
"""Square root of the total variance of the ramps; the features of the kernel have unit norm."""


class Sizes(NamedTuple):
    """Numbers of rows and landmarks, in the rounds and (`refined`) in the comparison of the best fits; splits.

    Several splits are used only below FEW_ROWS rows. With 2 · `n_rows_refined` rows or more, there is another
    comparison, of twice the refined size.
    """

    n_rows: int = 4000
    n_landmarks: int = 512
    n_splits: int = 3
    n_rows_refined: int = 8000
    n_landmarks_refined: int = 1024


MAX_COLUMNS = 256
"""With more columns, full metrics and product kernels are tried only on request."""
KERNELS = [PRODUCT_LAPLACE, MATERN, GAUSSIAN]
"""The kernels that are compared by default."""
MIN_ROWS = 30
"""With fewer rows, no metric is learned."""
ROWS_PER_COLUMN = 20  # rows per column that a full metric needs


class Learned(NamedTuple):
    """The best fit of each kernel and kind of metric, in order of their errors, and all fits that were tried."""

    finalists: list[Finalist]
    trials: list[Trial]


class Path(NamedTuple):
    """Fits with metrics of consecutive rounds; the descents, one for each split, from which the next ones come."""

    trials: list[Trial]
    descents: list[Iterator[tuple[np.ndarray, float]]]


class Finalist(NamedTuple):
    """A fit and the average outer product of the gradients of its function."""

    trial: Trial
    outer_products: np.ndarray


class Learner:
    """Tries kernels and metrics on few rows, then compares the best fits with more rows.

    Errors up to `resolution` leave nothing to gain from leaves or more landmarks. `ramps` are features of single
    columns (:class:`PiecewiseLinearEncoder`), tried in addition to the kernels of the best fits. `fit_leaves` fits
    features of the leaves of trees, tried in addition to the best fit.
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
        small, large = (
            make_splits(order, n_held, 4 * n_rows // 5, min(n, n_landmarks), sizes.n_splits)
            for n_rows, n_landmarks in (
                (sizes.n_rows, sizes.n_landmarks),
                (sizes.n_rows_refined, sizes.n_landmarks_refined),
            )
        )
        rows = Comparison(self.X, self.Y, self.weight, small, self.tick, self.resolution)
        paths = self._follow(rows, [split.train for split in large])
        ends = sorted((min(path, key=self._rank) for path in paths), key=self._rank)
        rows = Comparison(self.X, self.Y, self.weight, large, self.tick, self.resolution, self.ramps)
        best: dict[tuple[Kernel, bool], Trial] = {}
        for trial in self._refine(rows, ends):
            best.setdefault((trial.kernel, trial.full), trial)
        if n >= 2 * sizes.n_rows_refined:
            best = self._enlarge(order, n_held, best)
        finalists = [Finalist(trial, rows.outer_products(trial)) for trial in best.values()]
        used = sum(len(part) for part in large[0][:2])
        spare = order[used:] if len(large) == 1 else order[:0]
        with_leaves = self._with_leaves(rows, finalists[0].trial, spare)
        if with_leaves is not None:
            finalists.insert(0, finalists[0]._replace(trial=with_leaves))
        return Learned(finalists, self.trials)

    def _enlarge(
        self, order: np.ndarray, n_held: int, best: dict[tuple[Kernel, bool], Trial]
    ) -> dict[tuple[Kernel, bool], Trial]:
        """Compare the two best fits, also with a shorter length scale, with twice as many rows and landmarks."""
        sizes = self.sizes
        splits = make_splits(order, n_held, 2 * (4 * sizes.n_rows_refined // 5), 2 * sizes.n_landmarks_refined)
        rows = Comparison(self.X, self.Y, self.weight, splits, self.tick, self.resolution, self.ramps)
        near = list(best.values())[:SHORTER]
        found = self._fit_lengths(rows, [(end, end.length / step) for step in (1.0, SHORT_STEP) for end in near])
        larger: dict[tuple[Kernel, bool], Trial] = {}
        for trial in found:
            key = trial.kernel, trial.full
            larger.setdefault(key, replace(trial, gain=best[key].gain))  # the sizes of final models go by these gains
        return larger | {key: trial for key, trial in best.items() if key not in larger}

    def _with_leaves(self, rows: Comparison, best: Trial, spare: np.ndarray) -> Trial | None:
        """Return the best fit with features of the leaves of trees, if these lower its error; else None."""
        if self.fit_leaves is None or len(self.X) < LEAF_ROWS or not best.fits or best.error <= self.resolution:
            return None
        trial, deviation = rows.with_leaves(best, self.fit_leaves, spare)
        self.trials.append(replace(trial, fits=()))
        return trial if best.error - trial.error > max(LEAF_DEVIATIONS * deviation, LEAF_MARGIN * best.error) else None

    def _follow(self, rows: Comparison, parts: Sequence[np.ndarray]) -> list[list[Trial]]:
        """Return the fits of each kernel and kind of metric, round by round; descents use the rows of `parts`."""
        kernels = [self.kernel] if self.kernel else [MATERN, GAUSSIAN] if self.wide else KERNELS
        first: dict[Kernel, Trial] = {}  # each thread writes other entries

        def begin(kernel: Kernel) -> None:
            first[kernel] = rows.first(kernel)

        run_on_threads(begin, kernels)
        seed, opening = int(self.rng.integers(2**63)), min(OPENING, self.most_rounds)
        paths = [self._path(first[kernel], parts, seed) for kernel in kernels if kernel.is_distance]
        self._advance(rows, paths, opening)
        best = sorted(paths, key=self._reached)[:MAX_KERNELS]
        self._advance(rows, best, self.most_rounds - opening)
        allows_full = bool(self.most_rounds) and self._allows_full()
        round_kernels = [path for path in best if not path.trials[0].kernel.separable]
        if round_kernels and allows_full:
            start = min(min(round_kernels, key=self._reached).trials, key=self._rank)
            full = self._path(start, parts, seed, full=True)
            self._advance(rows, [full], FULL_ROUNDS)
            paths.append(full._replace(trials=full.trials[1:]))
        for kernel in kernels:
            if not kernel.is_distance:
                kinds = (True,) if self.metric == "full" else (False, True) if allows_full else (False,)
                paths += [Path(rows.rounds(first[kernel], full=full, most=self.most_rounds), []) for full in kinds]
        self.trials += [replace(trial, fits=()) for path in paths for trial in path.trials]
        whole = [path.trials for path in paths if path.trials[-1].full]
        return whole if self.metric == "full" and whole else [path.trials for path in paths]

    def _reached(self, path: Path) -> tuple[float, int]:
        """Return the lowest rank on a path."""
        return min(map(self._rank, path.trials))

    def _path(self, start: Trial, parts: Sequence[np.ndarray], seed: int, *, full: bool = False) -> Path:
        """Return a path of descents from a fit, one for each split, that use the rows of `parts`."""
        spec = start.kernel.spec()
        assert isinstance(spec, DistanceKernel)
        metrics = [M / start.length for M in start.metrics]
        descents = [
            descend(
                spec, self.X[part], self.Y[part], self.weight[part], np.diag(M) if full else M, start.alpha,
                np.random.default_rng([seed, index]), FULL_ROUNDS if full else self.most_rounds,
            )
            for index, (M, part) in enumerate(zip(metrics, parts, strict=True))
        ]  # fmt: skip
        return Path([start], descents)

    def _advance(self, rows: Comparison, paths: list[Path], n_rounds: int) -> None:
        """Continue paths by some rounds, and add a fit for each of them."""
        found: dict[tuple[int, int], list[tuple[np.ndarray, float]]] = {}

        def run(task: tuple[int, int]) -> None:
            found[task] = list(islice(paths[task[0]].descents[task[1]], n_rounds))

        n_splits = len(rows.splits)
        run_on_threads(run, product(range(len(paths)), range(n_splits)))
        fits: dict[tuple[int, int], Trial] = {}

        def fit(task: tuple[int, int]) -> None:
            path, number = paths[task[0]], task[1]
            metrics, alphas = zip(*(found[task[0], split][number] for split in range(n_splits)), strict=True)
            alpha = float(np.exp(np.mean(np.log(alphas))))
            fits[task] = rows.descended(path.trials[0], metrics, alpha, path.trials[-1].round + 1 + number)

        run_on_threads(fit, product(range(len(paths)), range(n_rounds)))
        for index, path in enumerate(paths):
            path.trials.extend(fits[index, number] for number in range(n_rounds))

    def _allows_full(self) -> bool:
        """Whether to try full metrics; unless they are asked for, only if there are enough rows for their entries."""
        n, d = self.X.shape
        if self.metric != "auto":
            return self.metric == "full"
        return not self.wide and d > 1 and n >= ROWS_PER_COLUMN * d

    def _rank(self, trial: Trial) -> tuple[float, int]:
        """Return the sort key of a fit: its expected error, then its round."""
        return trial.expected * (1 + ADDITIVE_MARGIN if trial.additive else 1), trial.round

    def _refine(self, rows: Comparison, ends: list[Trial]) -> list[Trial]:
        """Fit the best ends with more rows and landmarks, the very best also with shorter length scales."""
        margin = FINALIST_MARGIN if len(self.X) >= FEW_ROWS else FINALIST_MARGIN_FEW_ROWS
        bound = max((1 + margin) * ends[0].error, self.resolution)
        near = [end for end in ends if end.error <= bound][:MAX_FINALISTS] or ends[:1]
        tasks = [(end, end.length) for end in near]
        tasks += [(end, end.length / LENGTH_STEP) for end in near[:SHORTER]]
        return self._fit_lengths(rows, tasks)

    def _fit_lengths(self, rows: Comparison, tasks: list[tuple[Trial, float]]) -> list[Trial]:
        """Return fits with the kernels and metrics of some trials and with other length scales, best first."""
        tasks = [(end, length) for end, length in tasks if end.kernel.has_length or length == end.length]
        found: dict[int, list[Trial]] = {}

        def fit(index: int) -> None:
            end, length = tasks[index]
            found[index] = rows.lengths(end, (length,))

        run_on_threads(fit, range(len(tasks)))
        finalists = [trial for index in range(len(tasks)) for trial in found[index]]
        self.trials += [replace(trial, fits=()) for trial in finalists]
        return sorted(finalists, key=self._rank)
