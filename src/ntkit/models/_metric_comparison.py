"""Comparison of fits with different kernels, metrics and length scales; see :mod:`ntkit.models._metric`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ntkit._batching import run_on_threads
from ntkit.kernels.distances import DistanceKernel
from ntkit.models._metric_fits import Kernel, NystroemFit, Split, Trial, apply, descend_alpha, metric_of
from ntkit.models.leaves import TreeLeaves

# Rounds. Shares are relative to the error so far.
PROGRESS = 0.005  # a round that lowers the error by a smaller share does not count as progress
FAST_PROGRESS = 0.05  # after max_rounds, rounds continue only while each lowers the error by this share
PATIENCE = 2  # a path ends after this many consecutive rounds without progress
# Length scales, as multiples of the median distance. With longer ones all kernel values are nearly 1, and float32
# cannot distinguish them.
SHORTEST, LONGEST = 1e-3, 12.0
LENGTH_STEP = 1.8  # ratio of two neighbouring length scales
LENGTH_MARGIN = 0.002  # a neighbouring length scale must lower the error by this share
MAX_LENGTHS = 7  # length scales tried in a round
LEAF_SCALE = 0.35
"""Norm of the features of leaves; the features of the kernel have unit norm."""
GRADIENT_ROWS = 2000  # number of rows over which gradients are averaged, all targets together

FitLeaves: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], TreeLeaves]
"""Function that fits an encoder to rows, targets and weights."""


class Comparison:
    """Compares fits on the same rows by their errors on the same held-out rows."""

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
        """Return the best fit with equal weights for all columns."""
        return self._best_length(kernel, (np.ones(self.d),) * len(self.splits), 1.0, 1e-3, 0)

    def descended(self, trial: Trial, metrics: Sequence[np.ndarray], alpha: float, index: int) -> Trial:
        """Return the fit with the kernel of a trial and other metrics, which include the length scale."""
        began = time.perf_counter()
        self.tick(trial.kernel.label)
        length = float(np.exp(np.mean([-np.log(self._median(trial.kernel, M, s)) for s, M in enumerate(metrics)])))
        fit = self._fit(trial.kernel, self._scaled(trial.kernel, metrics), min(length, LONGEST), alpha, index)
        return replace(fit, seconds=time.perf_counter() - began)

    def rounds(self, trial: Trial, *, full: bool, most: int) -> list[Trial]:
        """Return a first fit and the fits that follow, each with the metric from the gradients of the previous fit.

        There are at most `most` rounds, or up to three times as many while the error falls fast.
        """
        trials, lowest, idle, fast = [trial], trial.error, 0, False
        for number in range(1, 3 * most + 1):
            metric = metric_of(self.outer_products(trial), full=full) if trial.fits else None
            if metric is None or (number > most and not fast):
                break
            metrics, index = (metric,) * len(self.splits), trial.round + 1
            trial = self._best_length(trial.kernel, metrics, trial.length, trial.alpha, index, tune=number % 2 == 1)
            trials.append(trial)
            idle = 0 if trial.error < (1 - PROGRESS) * lowest else idle + 1
            fast = trial.error < (1 - FAST_PROGRESS) * lowest
            lowest = min(lowest, trial.error)
            if idle >= PATIENCE or lowest <= self.resolution:
                break
        return trials

    def _best_length(
        self,
        kernel: Kernel,
        metrics: tuple[np.ndarray, ...],
        length: float,
        alpha: float,
        index: int,
        *,
        tune: bool = True,
    ) -> Trial:
        """Return the best fit with a metric, descending over length scales from `length`; without `tune`, fit once."""
        began, metrics = time.perf_counter(), self._scaled(kernel, metrics)
        tried: dict[float, Trial] = {}

        def error(length: float) -> float:
            if length not in tried:
                self.tick(kernel.label)
                near = alpha if not tried else next(reversed(tried.values())).alpha
                widely = not index and not tried  # if little is explained, the error may have several minima in α
                tried[length] = self._fit(kernel, metrics, length, near, index, widely=widely)
            return tried[length].error

        error(length)
        while tune and kernel.has_length and len(tried) < MAX_LENGTHS:
            near = [
                each
                for each in (round(length / LENGTH_STEP, 9), round(length * LENGTH_STEP, 9))
                if SHORTEST < each < LONGEST
            ]
            better = next((each for each in near if error(each) < (1 - LENGTH_MARGIN) * error(length)), None)
            if better is None:
                break
            length = better
        return replace(tried[length], seconds=time.perf_counter() - began)

    def lengths(self, trial: Trial, lengths: Sequence[float]) -> list[Trial]:
        """Return fits with the kernel and the metric of a trial for some length scales, without and with ramps."""
        metrics = self._scaled(trial.kernel, trial.metrics)
        rows = [apply(M, self.X) for M in metrics]
        found = []
        for length in lengths if trial.kernel.has_length else (1.0,):
            self.tick(trial.kernel.label)
            began = time.perf_counter()
            spec = trial.kernel.spec(length)
            fits = [
                NystroemFit(spec, Z, self.Y, self.weight, split, self.ramps)
                for Z, split in zip(rows, self.splits, strict=True)
            ]
            fit = self._solved(replace(trial, metrics=metrics, length=length), fits)
            gains = [each.gain(fit.alpha, fit.error, self.resolution) for each, _ in fit.fits]
            fit = replace(fit, gain=float(np.mean(gains)) if gains else 1.0)
            found.append(replace(fit, seconds=time.perf_counter() - began))
            if self.ramps is not None:
                alpha, error = self._extended(fits, fit.alpha)
                found.append(replace(found[-1], alpha=alpha, error=error, additive=True))
        return found

    def _extended(self, fits: list[NystroemFit], alpha: float) -> tuple[float, float]:
        """Return the best α with further features, starting from the best α without them, and its error."""
        index, solved = descend_alpha([fit.solve_extended for fit in fits], alpha)
        return 10.0 ** (index / 2), solved(index)[0]

    def with_leaves(self, trial: Trial, fit_leaves: FitLeaves, spare: np.ndarray) -> tuple[Trial, float]:
        """Return a trial to which features of leaves are added, and the standard error of the change of its error.

        As in the final model, trees are fitted on half as many rows as there are: on `spare`, indices of rows that no
        split uses, then on training rows. Spare rows that the trees do not need are held out too.
        """
        began = time.perf_counter()
        spec = trial.kernel.spec(trial.length)
        found: dict[int, tuple[NystroemFit, np.ndarray]] = {}

        def fit(index: int) -> None:
            metric, split = trial.metrics[index], self.splits[index]
            n_trees = (len(split.train) + len(split.held) + len(spare)) // 2
            half = np.concatenate([spare, split.train])[:n_trees]
            extras = fit_leaves(self.X[half], self.Y[half], self.weight[half]).transform(self.X)
            extras *= LEAF_SCALE
            ramps = self.ramps if trial.additive else None
            extras = extras if ramps is None else np.hstack([ramps, extras])
            larger = split._replace(held=np.concatenate([split.held, spare[n_trees:]]))
            fitted = NystroemFit(spec, apply(metric, self.X), self.Y, self.weight, larger, extras)
            found[index] = fitted, fitted.squares(trial.alpha, 0 if ramps is None else ramps.shape[1])

        run_on_threads(fit, range(len(self.splits)))
        fits, before = zip(*(found[index] for index in range(len(self.splits))), strict=True)
        alpha, error = self._extended(fits, trial.alpha)
        weight = np.concatenate([fit.solver.weight for fit in fits])
        old, new = np.concatenate(before), np.concatenate([fit.squares(alpha) for fit in fits])
        with np.errstate(invalid="ignore", divide="ignore"):  # errors may be infinite or 0: then leaves are not used
            change, scale = np.average(new - old, weights=weight), trial.error / np.average(old, weights=weight)
            variance = np.average((new - old - change) ** 2, weights=weight) * (weight**2).sum() / weight.sum() ** 2
        trial = replace(trial, alpha=alpha, error=error * scale, leaves=True, seconds=time.perf_counter() - began)
        return trial, float(variance**0.5 * scale)

    def _fit(
        self,
        kernel: Kernel,
        metrics: tuple[np.ndarray, ...],
        length: float,
        alpha: float,
        index: int,
        *,
        widely: bool = False,
    ) -> Trial:
        """Return the fit with the best α, descending from `alpha`, or with `widely` from the best of a coarse grid."""
        spec = kernel.spec(length)
        fits = [
            NystroemFit(spec, apply(M, self.X), self.Y, self.weight, split)
            for M, split in zip(metrics, self.splits, strict=True)
        ]
        return self._solved(Trial(kernel, metrics, length, alpha, np.inf, index), fits, widely=widely)

    def _solved(self, trial: Trial, fits: list[NystroemFit], *, widely: bool = False) -> Trial:
        """Return the trial with its best α."""
        i, solved = descend_alpha([fit.solve for fit in fits], trial.alpha, widely=widely)
        found, weights = solved(i)
        duals = () if not np.isfinite(found) else tuple(fit.dual(w) for fit, w in zip(fits, weights, strict=True))
        return replace(trial, alpha=10.0 ** (i / 2), error=found, fits=tuple(zip(fits, duals, strict=False)))

    def _scaled(self, kernel: Kernel, metrics: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Divide metrics by the median distance of two landmarks, if the kernel is a function of distances."""
        return tuple(M / self._median(kernel, M, index) for index, M in enumerate(metrics))

    def _median(self, kernel: Kernel, metric: np.ndarray, index: int) -> float:
        """Return the median distance of two landmarks of a split, in the norm of the kernel; 1 for other kernels."""
        spec = kernel.spec()
        if not isinstance(spec, DistanceKernel):
            return 1.0
        some = apply(metric, self.X[self.splits[index].landmarks[:256]].astype(np.float64))
        distances = spec.distances(some, some)[np.triu_indices(len(some), 1)] / spec.scale
        if not distances.size:
            return 1.0
        # If most landmarks are equal, the mean distance still gives a scale.
        return float(np.median(distances)) or float(np.mean(distances)) or 1.0

    def outer_products(self, trial: Trial) -> np.ndarray:
        """Return A for the function of a trial, in units of the columns: a mean over splits and over a sample of rows.

        Each target has its own rows.
        """
        n_targets = self.Y.shape[1]
        rows = self.splits[0].train
        step = max(GRADIENT_ROWS // (n_targets * len(trial.fits) or 1), min(50, len(rows)))
        mean = np.zeros((self.d, self.d))
        for M, (fit, dual) in zip(trial.metrics, trial.fits, strict=False):
            total = np.zeros((self.d, self.d))
            for k in range(n_targets):
                some = rows[np.arange(k * step, (k + 1) * step) % len(rows)][: len(rows)]
                G = np.asarray(fit.spec.gradient(apply(M, self.X[some]), fit.landmarks, dual[:, k]))
                G *= np.sqrt(self.weight[some] / max(self.weight[some].mean(), 1e-300))[:, None]
                total += G.T @ G / len(some)
            mean += (M @ total @ M.T if trial.full else M[:, None] * total * M[None, :]) / len(trial.fits)
        return mean
