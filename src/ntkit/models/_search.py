"""Choose the kernel, its metric and parameters, the number of features and α on held-out rows within a time budget.

All candidates start on few rows with few features. The better half continues with more rows and features, and the best
candidates with all rows, where features are doubled while the error falls (successive halving, Jamieson and Talwalkar
2016). Metrics are learned once, without the rows on which models of all rows are compared. Each fit chooses its α, and
its error is the leave-one-out error on a sample of rows, so that no rows are lost to validation. The final model is the
best of the last fits, or an average of the best ones, possibly with boosted trees.
"""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from ntkit import _array
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing
from ntkit._progress import fits_bar
from ntkit._random import RandomState, generator, keyed, row_uniforms, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Integer, Seed, Text
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.features import NTKFeatures, RandomFourierFeatures
from ntkit.models._checks import check_alphas, check_weight
from ntkit.models._features import MAX_LEARNED_COLUMNS, SAMPLE, TABLE_WIDTH, seeded
from ntkit.models._rows import as_arrays, as_rows, n_rows_of, take_rows
from ntkit.models._search_clock import FIRST_COMPONENTS, Entry, Round, SearchClock, few_row_rounds, n_survivors
from ntkit.models.adaptive import LARGEST, AdaptiveFeatures, automatic_size
from ntkit.models.average import AverageClassifier, AverageRegressor, greedy_weights
from ntkit.models.metric import LearnedMetric
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.trees import FAR_BEHIND, BoostedTrees, Choice, TreesClassifier, TreesRegressor
from ntkit.preprocessing import ArcsinhScaler, ImageStandardizer

_ALL_ROWS_COMPONENTS = 2048  # features of the first fits on all rows
_MIN_FALL = 0.01  # features are doubled while the error falls by this share
_AVERAGE_LOSS = 1.5  # models may be part of an average if their loss is at most this times the smallest
_FEW_ROWS = 5000  # with fewer rows, metrics are learned several times, from different draws
_ENOUGH_ROWS = 10_000  # with fewer rows, the final model learns its metric again, from all rows
_OVERTIME = 1.1  # metrics of the final models are learned again only within this share of the budget
_FEW_ROWS_SHARE = 0.5  # after this share of the budget, no further candidate is tried on few rows
_REPEATS, _REPEAT_SHARE = 4, 0.2  # further draws for metrics of few rows, within this share of the budget
_MAX_ON_ALL_ROWS = 6  # candidates compared on all rows
_TREES = "trees"  # their name in results and averages
_TREES_SHARE = 1 / 4  # size and number of trees are chosen within this share of the budget
_TREE_SHARES = np.arange(1, 10) / 10  # possible weights of trees in an average


def default_candidates(n_features: int, *, sparse: bool = False) -> dict[str, Any]:
    """Return the default candidates: linear, kernels with learned metrics, the NTK; for sparse rows Gaussian kernels.

    Examples
    --------
    >>> list(default_candidates(4))
    ['linear', 'learned', 'ntk depth=1', 'ntk depth=3']
    """
    candidates: dict[str, Any] = {"linear": "passthrough"}
    if not sparse and n_features <= MAX_LEARNED_COLUMNS:
        candidates["learned"] = AdaptiveFeatures()
    for depth in (1, 3):
        candidates[f"ntk depth={depth}"] = NTKFeatures(depth=depth, bias="auto")
    if sparse:
        for factor in (0.35, 0.6, 1.0, 1.8):
            lengthscale = round(factor * n_features**0.5, 4)
            candidates[f"gaussian lengthscale={lengthscale:g}"] = RandomFourierFeatures(lengthscale=lengthscale)
    return candidates


class Search(OldSpellings, AllOrNothing, Declared, BaseEstimator):
    """Base class of the searches: successive rounds, learned metrics and averages."""

    _model: type[FeatureRidge] | type[FeatureRidgeClassifier]
    _average_of: type[AverageRegressor] | type[AverageClassifier]
    _tree_type: type[TreesRegressor] | type[TreesClassifier]

    _old_positions: ClassVar[int] = 2
    _old_names: ClassVar[dict[str, Any]] = {"n_validation": "n_selection"}
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "_seed": Seed(),
        "best_name_": Text(),
        "best_estimator_": Estimator(("predict",)),
        "results_": Field(),
        "n_candidates_tried_": Integer(0),
        "summary_": Text(),
    }

    def __init__(
        self,
        *,
        n_components: int = 8192,
        time_budget: float | None = 60.0,
        candidates: dict[str, Any] | None = None,
        alphas: Any = None,
        n_selection: int = 2000,
        n_averaged: int = 3,
        trees: bool = True,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.time_budget = time_budget
        self.candidates = candidates
        self.alphas = alphas
        self.n_selection = n_selection
        self.n_averaged = n_averaged
        self.trees = trees
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose among the candidates and fit the best one on all rows.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features), or images of shape \
                (n_samples, height, width, channels)
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        name = type(self).__name__
        self._check_parameters()
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None.")
        if _array.is_dask(X):
            raise TypeError(message(name, "X", "rows in memory", X, f"{self._model.__name__} takes Dask collections."))
        X = as_rows(X, "X", name)
        y = self._check_y(y)
        as_arrays(X, y, None, name)  # raises if their lengths differ
        weight = None if sample_weight is None else check_weight(sample_weight, len(y), name)
        if weight is not None and not weight.any():
            raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
        clock = SearchClock(self.time_budget)
        self._seed = seed_sequence(self.random_state, owner=name)
        self.results_: list[dict[str, Any]] = []
        self.best_name_, self.best_estimator_ = self._compete(X, y, weight, clock)
        self.n_features_in_ = self.best_estimator_.n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _compete(self, X: Any, y: np.ndarray, weight: np.ndarray | None, clock: SearchClock) -> tuple[str, Any]:
        """Return the name of the best candidate or average, and its model on all rows."""
        entries = [Entry(name, features) for name, features in self._candidates(X).items()]
        data = (X, y, weight)
        with fits_bar(type(self).__name__ if self.progress else None) as bar:
            self._bar = bar
            try:
                learned = self._learned(entries, data, clock)
                done = self._on_few_rows(learned, data, clock)
                trees = self._grow_trees(done, data, clock)
                finals = self._on_all_rows(done, data, clock)
                best = self._average(finals, trees, data, clock)
            finally:
                del self._bar
        origins = {entry.origin for entry in learned}
        n_candidates = len(learned) + sum(entry.name not in origins for entry in entries)
        self.n_candidates_tried_ = len({result["name"] for result in self.results_} - {_TREES})
        spent = ": budget spent" if clock.spent else ""
        self.summary_ = f"tried {self.n_candidates_tried_} of {n_candidates} candidates{spent}"
        return best

    def _on_few_rows(self, entries: list[Entry], data: tuple[Any, Any, Any], clock: SearchClock) -> list[Entry]:
        """Try all candidates on few rows, the better half on more rows; return the remaining ones, best first."""
        X, y, weight = data
        order = generator(self._seed, "rows").permutation(len(y))
        needed = self._needed(y[order])
        order = np.concatenate([order[needed], np.delete(order, needed)])
        if len(entries) == 1:
            return entries
        final = Round(len(y), min(FIRST_COMPONENTS, self.n_components))  # smallest size of the final model
        for index, size in enumerate(few_row_rounds(len(y), self.n_components)):
            if index and not clock.allows(size, final):
                break
            chosen = np.sort(order[: size.n_rows])
            some = (take_rows(X, chosen), y[chosen], None if weight is None else weight[chosen])
            tried: list[Entry] = []
            for entry in entries:
                in_time = clock.elapsed() <= _FEW_ROWS_SHARE * clock.budget and clock.allows(size, final)
                if tried and not in_time and entry.features != "passthrough":  # a linear model takes almost no time
                    clock.spent = True
                    continue
                self._try(entry, index, size, some, clock)
                tried.append(entry)
            survivors = sorted(tried, key=lambda entry: entry.rank)[: n_survivors(len(entries))]
            # Entries for which there was no time keep their positions from the previous round.
            entries = survivors + [entry for entry in entries if index and entry not in tried]
        return entries

    def _on_all_rows(self, entries: list[Entry], data: tuple[Any, Any, Any], clock: SearchClock) -> list[Entry]:
        """Fit the best candidates on all rows; return them sorted, best first."""
        n, several = len(data[1]), len(entries) > 1
        index = len(few_row_rounds(n, self.n_components)) if several else 0
        size = Round(n, self._first_size(entries[0], n) if several else self.n_components)
        while size.n_components > FIRST_COMPONENTS and not clock.allows(size):
            if clock.learns_again:
                clock.learns_again = False  # more features matter more than metrics of all rows
            else:
                size = Round(n, size.n_components // 2)
        done: list[Entry] = []
        entries = [entry for entry in entries if not entry.loss > FAR_BEHIND * entries[0].loss]  # losses on few rows
        # Two candidates first, then more features for the better one: these often help more than further candidates.
        for some in (entries[:2], entries[2:_MAX_ON_ALL_ROWS]):
            for entry in some:
                if done and not clock.allows(size):
                    break
                self._try(entry, index, size, data, clock)
                done.append(entry)
            done.sort(key=lambda entry: entry.rank)
            if several:
                for entry in done[: 1 if len(done) <= 2 else max(self.n_averaged, 2)]:
                    if not done[0].grown or entry is done[0]:  # otherwise more features will not help others either
                        self._grow(entry, index, data, clock)
                done.sort(key=lambda entry: entry.rank)
        return done

    def _first_size(self, entry: Entry, n_rows: int) -> int:
        """Return the number of features of the first fits on all rows.

        If the targets have almost no noise, the metric asks for as many landmarks as possible. Smaller fits would only
        take time.
        """
        size, metric = _ALL_ROWS_COMPONENTS, getattr(getattr(entry.features, "metric", None), "estimator", None)
        if isinstance(metric, LearnedMetric) and automatic_size(metric, n_rows) == LARGEST:
            size = min(LARGEST, n_rows)
        return min(size, self.n_components)

    def _grow(self, entry: Entry, index: int, data: tuple[Any, Any, Any], clock: SearchClock) -> None:
        """Double the features of a model of all rows while its error falls and there is time, or add half of them."""
        n = len(data[1])
        while entry.n_components < min(self.n_components, n) and not entry.grown:
            sizes = [
                Round(n, min(many, self.n_components)) for many in (2 * entry.n_components, 3 * entry.n_components // 2)
            ]
            size = next(filter(clock.allows, sizes), None)
            if size is None:
                return
            before, model, rank, n_components = entry.loss, entry.model, entry.rank, entry.n_components
            self._try(entry, index + 1, size, data, clock)
            entry.grown = not entry.loss < (1 - _MIN_FALL) * before
            if not entry.loss < before:
                entry.loss, entry.model, entry.rank, entry.n_components = before, model, rank, n_components

    def _grow_trees(
        self, entries: list[Entry], data: tuple[Any, Any, Any], clock: SearchClock
    ) -> tuple[BoostedTrees, Choice] | None:
        """Choose boosted trees on the rows on which metrics are compared; return them unfitted, or None."""
        X, y, weight = data
        rows, others = self._selection(y, weight)
        usable = self.trees and self.candidates is None and self.n_averaged > 1 and not _array.is_sparse(X)
        if not usable or len(self._needed(y)) != len(self._needed(y[others])) or clock.elapsed() >= clock.budget / 2:
            return None
        began = clock.elapsed()
        targets, their_weight = self._encoded(y)[rows], np.ones(len(rows)) if weight is None else weight[rows]
        model = self._tree_type(random_state=int(keyed(self._seed, _TREES).generate_state(1)[0]))
        found = model.choose(
            (take_rows(X, others), y[others], None if weight is None else weight[others]),
            take_rows(X, rows),
            lambda predictions: self._loss(targets, predictions, their_weight),
            _TREES_SHARE * clock.budget,
            other=min((entry.loss for entry in entries if np.isfinite(entry.loss)), default=0.0),
        )
        clock.reserved += 1.5 * found.seconds  # for the fit on all rows
        self.results_.append(
            {
                "name": _TREES,
                "round": 0,
                "n_rows": len(others),
                "n_components": model.n_rounds,
                "loss": found.loss,
                "error": float(np.average(self._errors(targets, found.predictions), weights=their_weight)),
                "alpha": None,
                "seconds": clock.elapsed() - began,
            }
        )
        return model, found

    def _selection(self, y: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows on which learned metrics are compared, in the order of `left_out`, and all other rows."""
        keys = row_uniforms(keyed(seed_sequence(self._model_seed), "sample"), 0, len(y))[:, 0]
        counted = np.ones(len(y), dtype=bool) if weight is None else weight > 0
        order = np.argsort(np.where(counted, keys, np.inf), kind="stable")[: np.count_nonzero(counted)]
        n_selection = max(min(self.n_selection, len(order) // 5), 1)
        return order[:n_selection], np.sort(order[n_selection:])

    def _average(
        self,
        done: list[Entry],
        trees: tuple[BoostedTrees, Choice] | None,
        data: tuple[Any, Any, Any],
        clock: SearchClock,
    ) -> tuple[str, Any]:
        """Return the best model or an average of several, whichever predicts held-out rows better."""
        best = done[0]
        near = [entry for entry in done if entry.loss <= _AVERAGE_LOSS * best.loss] if self.n_averaged > 1 else []
        near = near or [best]
        left_out = [entry.model._solution.left_out for entry in near]
        if len({len(each[0]) if each is not None else 0 for each in left_out}) > 1 or left_out[0] is None:
            near, left_out = near[:1], left_out[:1]
        shares, tree_share = [1.0], 0.0
        if left_out[0] is not None and self.n_averaged > 1:
            targets, _, weight = left_out[0]
            predictions = [self._predicted(entry.model, each[1]) for entry, each in zip(near, left_out, strict=True)]
            stack = np.stack(predictions)
            shares = greedy_weights(
                lambda each: self._loss(targets, np.tensordot(each, stack, 1), weight), len(near), most=self.n_averaged
            )
            tree_share = self._tree_share(targets, np.tensordot(shares, stack, 1), weight, trees)
        chosen = sorted((pair for pair in zip(shares, near, strict=True) if pair[0] > 0), key=lambda pair: -pair[0])
        if len(data[1]) < _ENOUGH_ROWS:
            chosen = self._draw_again(chosen, data, clock)
        if len(chosen) == 1 and not tree_share:
            return chosen[0][1].name, chosen[0][1].model
        parts = [((1 - tree_share) * share, entry.name, entry.model) for share, entry in chosen]
        if trees is not None and tree_share:
            parts.append((tree_share, _TREES, trees[0].fit(*data)))
        weights, names, models = zip(*parts, strict=True)
        name = " + ".join(f"{weight:.2g} {name}" for weight, name in zip(weights, names, strict=True))
        return name, self._average_of.of(list(models), list(weights))

    def _tree_share(
        self, targets: np.ndarray, others: np.ndarray, weight: np.ndarray, trees: tuple[BoostedTrees, Choice] | None
    ) -> float:
        """Return the weight of the trees in an average with the predictions of the other models, 0 if it gains little.

        The gain on the held-out rows must be larger than its standard error.
        """
        if trees is None:
            return 0.0
        predictions = trees[1].predictions[: len(targets)]  # the first rows of both are the same
        n = len(predictions)
        targets, others, weight = targets[:n], others[:n], weight[:n]
        base = self._losses(targets, others)
        gains = [base - self._losses(targets, (1 - s) * others + s * predictions) for s in _TREE_SHARES]
        best = int(np.argmax([np.average(gain, weights=weight) for gain in gains]))
        gain = float(np.average(gains[best], weights=weight))
        variance = float(np.average((gains[best] - gain) ** 2, weights=weight)) * (weight**2).sum() / weight.sum() ** 2
        return float(_TREE_SHARES[best]) if gain > variance**0.5 else 0.0

    def _learned(self, entries: list[Entry], data: tuple[Any, Any, Any], clock: SearchClock) -> list[Entry]:
        """Return entries with fitted metrics, learned from rows on which no error will be estimated.

        A candidate that tries several kernels becomes one entry for each. With few rows there is time to learn from
        several draws; averages of such models are better than any one of them.
        """
        n, others = len(data[1]), self._selection(data[1], data[2])[1]
        if len(others) > 2 * SAMPLE:
            others = others[np.sort(generator(self._seed, "metric").permutation(len(others))[:SAMPLE])]
        done: list[Entry] = []
        for entry in entries:
            if not _learns(entry.features):
                done.append(entry)
                continue
            if len(entries) > 1 and clock.elapsed() > _FEW_ROWS_SHARE * clock.budget:
                clock.spent = True
                continue
            began = clock.elapsed()
            done += self._alternatives(entry, others, data)
            seconds = clock.elapsed() - began
            clock.metric_seconds, clock.learns_again = max(clock.metric_seconds, seconds), n < _ENOUGH_ROWS
            repeats = _REPEATS if n < _FEW_ROWS and len(entries) > 1 else 0
            for repeat in range(1, repeats + 1):
                if clock.elapsed() + seconds > _REPEAT_SHARE * clock.budget:
                    break
                again = Entry(entry.name, entry.features, repeat=repeat)
                done += self._alternatives(again, others, data)[:1]
        # Learned metrics come first, so that they are tried when time is short.
        done.sort(key=lambda entry: not isinstance(entry.features, AdaptiveFeatures))
        return done or entries[:1]

    def _alternatives(self, entry: Entry, rows: np.ndarray | None, data: tuple[Any, Any, Any]) -> list[Entry]:
        """Return an entry for each kernel and kind of metric that a candidate has found, best first."""
        metric = self._metric(entry, rows, data)
        found = metric.alternatives() if metric.kernel == "auto" else {"": metric}
        suffix = f" #{entry.repeat + 1}" if entry.repeat else ""
        return [
            Entry(
                f"{entry.name} {name}".strip() + suffix,
                clone(entry.features).set_params(metric=FrozenEstimator(each)),
                origin=entry.origin,
                repeat=entry.repeat,
            )
            for name, each in found.items()
        ]

    def _metric(self, entry: Entry, rows: np.ndarray | None, data: tuple[Any, Any, Any]) -> LearnedMetric:
        """Learn the metric of a candidate from some rows; None: all rows."""
        X, y, weight = data
        if rows is not None:
            X, y, weight = take_rows(X, rows), y[rows], None if weight is None else weight[rows]
        metric = LearnedMetric() if entry.features.metric is None else clone(entry.features.metric)
        if metric.random_state is None:
            seed = keyed(keyed(self._seed, entry.origin), f"repeat {entry.repeat}" if entry.repeat else "metric")
            metric.set_params(random_state=int(seed.generate_state(1)[0]))
        scaled = self._scaler(X).fit(X, sample_weight=weight).transform(X)
        return metric.fit(scaled, self._encoded(y), weight)

    def _encoded(self, y: np.ndarray) -> np.ndarray:
        """Return targets as columns of numbers."""
        return self._model._codec().encode(y, type(self).__name__)

    def _draw_again(
        self, chosen: list[tuple[float, Entry]], data: tuple[Any, Any, Any], clock: SearchClock
    ) -> list[tuple[float, Entry]]:
        """Replace models of learned metrics by the best models of several draws, which learn from all rows.

        With few rows, the best kernel depends on the draw. An average over draws is then better than a choice on the
        held-out rows, which are even fewer. The other models keep their shares.
        """
        candidates = self._candidates(data[0])
        draws = [pair for pair in chosen if _learns(candidates[pair[1].origin])]
        kept = [pair for pair in chosen if not _learns(candidates[pair[1].origin])]
        found: list[Entry] = []
        for repeat in range(self.n_averaged if draws else 0):
            entry = draws[min(repeat, len(draws) - 1)][1]
            seconds = clock.metric_seconds + clock.estimate(Round(len(data[1]), entry.n_components)) + clock.reserved
            if clock.elapsed() + seconds > (clock.budget if found else _OVERTIME * clock.budget):
                break
            origin = Entry(entry.origin, candidates[entry.origin], repeat=repeat)
            drawn = self._alternatives(origin, None, data)[0]
            drawn.loss = drawn.features.metric.estimator.error_
            if drawn.loss > _AVERAGE_LOSS * min((each.loss for each in found), default=np.inf):
                continue
            drawn.model = self._estimator(drawn, entry.n_components, data[0])
            drawn.model.set_params(n_selection=self.n_selection).fit(*data)
            found.append(drawn)
            self._bar.set_postfix_str(drawn.name, refresh=False)
            self._bar.update()
        if not found:
            return chosen
        least = min(entry.loss for entry in found)
        found = [entry for entry in found if entry.loss <= _AVERAGE_LOSS * least]
        total = sum(share for share, _ in draws)
        shares = [(total / len(found), entry) for entry in found] + kept
        return sorted(shares, key=lambda pair: -pair[0])

    def _try(self, entry: Entry, index: int, size: Round, some: tuple[Any, Any, Any], clock: SearchClock) -> None:
        """Fit a candidate on some rows and rank it by its loss on held-out rows."""
        start = time.perf_counter()
        model = self._estimator(entry, size.n_components, some[0])
        if self.alphas is None and entry.alpha is not None and index > 1:
            model.set_params(alphas=entry.alpha * 10.0 ** np.arange(-1, 1.5, 0.5))  # by now α hardly changes
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The best alpha of")
            model.fit(*some)
        loss = float(model.errors_[list(model.alphas_).index(model.alpha_)])
        targets, predictions, weight = model._solution.left_out
        seconds = time.perf_counter() - start
        n_components = int(model.coef_.shape[-1])
        self.results_.append(
            {
                "name": entry.name,
                "round": index,
                "n_rows": n_rows_of(some[0]),
                "n_components": n_components,
                "loss": loss,
                "error": float(np.average(self._errors(targets, predictions), weights=weight)),
                "alpha": model.alpha_,
                "seconds": seconds,
            }
        )
        if entry.features != "passthrough":
            clock.record(Round(size.n_rows, n_components), seconds)
        resolution = self._model._codec.resolution
        rank = np.round(loss / resolution) if resolution else loss  # rounding errors must not decide
        entry.rank, entry.loss = (float(rank), loss) if np.isfinite(loss) else (np.inf, np.inf)
        entry.model, entry.n_components, entry.alpha = model, size.n_components, model.alpha_
        self._bar.set_postfix_str(entry.name, refresh=False)
        self._bar.update()

    @property
    def _model_seed(self) -> int:
        """Seed of all models: they hold out the same rows."""
        return int(keyed(self._seed, "model").generate_state(1)[0])

    @staticmethod
    def _scaler(X: Any) -> Any:
        # Sparse rows are not centred, so that they stay sparse.
        if _has_images(X):
            return ImageStandardizer()
        sparse = _array.is_sparse(X)
        return ArcsinhScaler(with_mean=not sparse, width=1.0 if sparse else TABLE_WIDTH)

    def _estimator(self, entry: Entry, n_components: int, X: Any) -> Any:
        """Return the unfitted model of a candidate."""
        features: Any = entry.features
        if features != "passthrough":
            features = seeded(features, keyed(self._seed, entry.name), all_parts=True)
        if hasattr(features, "n_components"):
            features.set_params(n_components=n_components)
        pipeline = Pipeline([("scale", self._scaler(X)), ("features", features)])
        n_selection = self.n_selection
        if isinstance(entry.features, AdaptiveFeatures):  # the metric was learned from all other rows
            n_selection = max(min(n_selection, n_rows_of(X) // 5), 1)
        return self._model(pipeline, alphas=self.alphas, n_selection=n_selection, random_state=self._model_seed)

    def _candidates(self, X: Any) -> dict[str, Any]:
        if self.candidates is None and _has_images(X):
            rule = "a dict of maps of images, such as {'cntk': CNTKSketch()}, if X holds images"
            raise ValueError(message(type(self).__name__, "candidates", rule, self.candidates))
        return self.candidates or default_candidates(int(X.shape[1]), sparse=_array.is_sparse(X))

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.n_selection, "n_selection", name, minimum=1)
        check_int(self.n_averaged, "n_averaged", name, minimum=1)
        check_alphas(self.alphas, name)
        check_bool(self.trees, "trees", name)
        check_bool(self.progress, "progress", name)
        if self.time_budget is not None:
            check_real(self.time_budget, "time_budget", name, minimum=0)
        rule = "None or a non-empty dict from names to transformers or 'passthrough'"
        if self.candidates is not None and not (
            isinstance(self.candidates, dict)
            and self.candidates
            and all(isinstance(name, str) for name in self.candidates)
            and all(
                c == "passthrough" or (hasattr(c, "transform") and not isinstance(c, type))
                for c in self.candidates.values()
            )
        ):
            raise TypeError(message(name, "candidates", rule, self.candidates))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        candidates = self.candidates.values() if isinstance(self.candidates, dict) else []
        tags.input_tags.sparse = all(isinstance(c, str) or get_tags(c).input_tags.sparse for c in candidates)
        return tags

    @abstractmethod
    def _check_y(self, y: Any) -> np.ndarray:
        """Return valid targets, or raise an error."""

    def _needed(self, y: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Return the indices of rows that every fit must include."""
        return np.empty(0, dtype=np.intp)

    @abstractmethod
    def _predicted(self, model: Any, scores: np.ndarray) -> np.ndarray:
        """Convert the scores of a model to the predictions that are averaged."""

    @abstractmethod
    def _losses(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Return the loss of each row."""

    def _loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        """Return the mean loss."""
        return float(np.average(self._losses(targets, predictions), weights=weight))

    @abstractmethod
    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Return the error of each row."""


def _learns(features: Any) -> bool:
    """Whether the features have a metric that is not yet learned."""
    return isinstance(features, AdaptiveFeatures) and not isinstance(features.metric, FrozenEstimator)


def _has_images(X: Any) -> bool:
    return len(X.shape) == 4
