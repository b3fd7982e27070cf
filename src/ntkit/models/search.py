"""The kernel, its metric, its parameters, the number of features and α, chosen on held-out rows within a time budget.

All candidates start on few rows with few features; the better half goes on with more rows and features, and the best
ones with all rows, where features are doubled as long as the error falls (successive halving, Jamieson and Talwalkar
2016). Metrics are learned once, without the rows on which models of all rows are compared. Each fit chooses its α and
gives its error by predicting rows of a sample without them (leave-one-out), so that no rows are lost to validation. The
final model is the best of the last fits, or an average of the best ones.
"""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing
from ntkit._progress import fits_bar
from ntkit._random import RandomState, generator, keyed, row_uniforms, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Integer, Seed, Text
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.features import NTKFeatures, RandomFourierFeatures
from ntkit.models._checks import check_alphas, check_weight
from ntkit.models._features import MOST_LEARNED, SAMPLE, importances, seeded
from ntkit.models._rows import as_arrays, as_rows, n_rows_of, take_rows
from ntkit.models._targets import RealTargets, check_labels
from ntkit.models.adaptive import AdaptiveFeatures
from ntkit.models.average import AverageClassifier, AverageRegressor, greedy_weights
from ntkit.models.metric import LearnedMetric
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.preprocessing import ArcsinhScaler, ImageStandardizer

_FIRST_ROWS, _FIRST_COMPONENTS = 2000, 512
_ALL_ROWS_COMPONENTS = 2048  # features of the first fits on all rows
_FALLS = 0.01  # relative; features are doubled while the error falls by this
_NEAR = 1.5  # loss over the least one, up to which a model may be part of an average
_FEW_ROWS = 5000  # below, metrics are learned from several draws
_ENOUGH_ROWS = 10_000  # below, metrics are learned again from all rows for the final model
_PRODUCT, _PRODUCTS = 1024, 4.0  # order of a product of matrices that tells the speed; seconds of a fit over its cost
_OVERTIME = 1.1  # of the budget, up to which metrics of the final models are learned again
_SHARE = 0.5  # of the budget, after which no further candidate is tried on few rows
_REPEATS, _REPEAT_SHARE = 4, 0.2  # further draws from which metrics of few rows are learned; of the budget


class Round(NamedTuple):
    """Sizes at which candidates are compared."""

    n_rows: int
    n_components: int


def default_candidates(n_features: int, *, sparse: bool = False) -> dict[str, Any]:
    """Maps for scaled rows to choose from: linear, kernels that learn their metric, the NTK, Gaussians for sparse rows.

    Examples
    --------
    >>> list(default_candidates(4))
    ['linear', 'learned', 'ntk depth=1', 'ntk depth=3']
    """
    candidates: dict[str, Any] = {"linear": "passthrough"}
    if not sparse and n_features <= MOST_LEARNED:
        candidates["learned"] = AdaptiveFeatures()
    for depth in (1, 3):
        candidates[f"ntk depth={depth}"] = NTKFeatures(depth=depth, bias="auto")
    if sparse:
        for factor in (0.35, 0.6, 1.0, 1.8):
            lengthscale = round(factor * n_features**0.5, 4)
            candidates[f"gaussian lengthscale={lengthscale:g}"] = RandomFourierFeatures(lengthscale=lengthscale)
    return candidates


class _Clock:
    """Time that is left, and an estimate of what fits take: an overhead and a rate."""

    def __init__(self, budget: float | None):
        self.began, self.budget = time.perf_counter(), np.inf if budget is None else budget
        self.fits: list[tuple[float, float]] = []
        self.spent = False
        self.reserved = 0.0  # for metrics that are learned again
        self.product: float | None = None  # seconds of a product of matrices

    def elapsed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self.began

    def allows(self, *sizes: Round) -> bool:
        """Whether there is time for fits of these sizes."""
        fits = self.elapsed() + self.reserved + sum(self.estimate(size) for size in sizes) <= self.budget
        self.spent |= not fits
        return fits

    def estimate(self, size: Round) -> float:
        """Seconds of a fit: a line through the times of the smallest and the largest fits so far.

        As long as all were small, their times are mostly overhead, and the slope comes from the speed of products.
        """
        if not self.fits:
            return 0.0
        costs, seconds = np.array(sorted(self.fits)).T
        overhead, first = float(np.median(seconds[:3])), float(np.median(costs[:3]))
        last, most = float(np.median(costs[-3:])), float(np.median(seconds[-3:]))
        if last > 8 * first:
            rate = max((most - overhead) / (last - first), 0.0)
        else:
            rate = min(overhead / first, self._slope() or np.inf)
        return overhead + rate * max(_cost(size) - first, 0.0)

    def _slope(self) -> float:
        """Seconds per unit of cost, from the time of a product of matrices; 0 if the clock is too coarse."""
        if self.product is None:
            A = np.ones((_PRODUCT, _PRODUCT), dtype=np.float32)
            times = []
            for _ in range(3):
                began = time.perf_counter()
                A @ A
                times.append(time.perf_counter() - began)
            self.product = min(times)
        return _PRODUCTS * self.product / _PRODUCT**3


class _Entry:
    """A candidate on its way through the rounds; of one that learns its metric, one of the kernels found.

    `origin` is the name of the candidate, `repeat` tells apart metrics that were learned from other draws.
    """

    def __init__(self, name: str, features: Any, *, origin: str = "", repeat: int = 0):
        self.name, self.features, self.origin, self.repeat = name, features, origin or name, repeat
        self.loss = self.rank = np.inf
        self.model: Any = None  # of all rows
        self.n_components = 0
        self.alpha: float | None = None
        self.grown = False  # whether more features no longer help


class Search(OldSpellings, AllOrNothing, Declared, BaseEstimator):
    """What the search for regression and for classification share."""

    _model: type[FeatureRidge] | type[FeatureRidgeClassifier]
    _average_of: type[AverageRegressor] | type[AverageClassifier]

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
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.time_budget = time_budget
        self.candidates = candidates
        self.alphas = alphas
        self.n_selection = n_selection
        self.n_averaged = n_averaged
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose among the candidates and fit the best on all rows.

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
        clock = _Clock(self.time_budget)
        self._seed = seed_sequence(self.random_state, owner=name)
        self.results_: list[dict[str, Any]] = []
        self.best_name_, self.best_estimator_ = self._compete(X, y, weight, clock)
        self.n_features_in_ = self.best_estimator_.n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _compete(self, X: Any, y: np.ndarray, weight: np.ndarray | None, clock: _Clock) -> tuple[str, Any]:
        """The best candidate or average, and its model on all rows."""
        entries = [_Entry(name, features) for name, features in self._candidates(X).items()]
        data = (X, y, weight)
        with fits_bar(type(self).__name__ if self.progress else None) as bar:
            self._bar = bar
            try:
                learned = self._learned(entries, data, clock)
                done = self._on_few_rows(learned, data, clock)
                finals = self._on_all_rows(done, data, clock)
                best = self._average(finals, data, clock)
            finally:
                del self._bar
        origins = {entry.origin for entry in learned}
        n_candidates = len(learned) + sum(entry.name not in origins for entry in entries)
        self.n_candidates_tried_ = len({result["name"] for result in self.results_})
        spent = ": budget spent" if clock.spent else ""
        self.summary_ = f"tried {self.n_candidates_tried_} of {n_candidates} candidates{spent}"
        return best

    def _on_few_rows(self, entries: list[_Entry], data: tuple[Any, Any, Any], clock: _Clock) -> list[_Entry]:
        """Candidates that go on, best ones first: all are tried on few rows, the better half on more."""
        X, y, weight = data
        order = generator(self._seed, "rows").permutation(len(y))
        needed = self._needed(y[order])
        order = np.concatenate([order[needed], np.delete(order, needed)])
        if len(entries) == 1:
            return entries
        least = Round(len(y), min(_FIRST_COMPONENTS, self.n_components))  # of the final model
        for index, size in enumerate(_rounds(len(y), self.n_components)):
            if index and not clock.allows(size, least):
                break
            chosen = np.sort(order[: size.n_rows])
            some = (take_rows(X, chosen), y[chosen], None if weight is None else weight[chosen])
            tried: list[_Entry] = []
            for entry in entries:
                in_time = clock.elapsed() <= _SHARE * clock.budget and clock.allows(size, least)
                if tried and not in_time and entry.features != "passthrough":  # a linear model takes no time
                    clock.spent = True
                    continue
                self._try(entry, index, size, some, clock)
                tried.append(entry)
            survivors = sorted(tried, key=lambda entry: entry.rank)[: _survivors(len(entries))]
            # Those for which there was no time any more keep their places of the round before.
            entries = survivors + [entry for entry in entries if index and entry not in tried]
        return entries

    def _on_all_rows(self, entries: list[_Entry], data: tuple[Any, Any, Any], clock: _Clock) -> list[_Entry]:
        """Candidates with models of all rows, best ones first."""
        n, index = len(data[1]), len(_rounds(len(data[1]), self.n_components)) if len(entries) > 1 else 0
        size = Round(n, min(_ALL_ROWS_COMPONENTS, self.n_components) if len(entries) > 1 else self.n_components)
        while size.n_components > _FIRST_COMPONENTS and not clock.allows(size):
            size = Round(n, size.n_components // 2)
        done: list[_Entry] = []
        # Two first; then more features for the better one, which often bring more than further candidates.
        for some in (entries[:2], entries[2:_MOST_ON_ALL_ROWS]):
            for entry in some:
                if done and not clock.allows(size):
                    break
                self._try(entry, index, size, data, clock)
                done.append(entry)
            done.sort(key=lambda entry: entry.rank)
            if len(entries) > 1:
                for entry in done[: 1 if len(done) <= 2 else max(self.n_averaged, 2)]:
                    if not done[0].grown or entry is done[0]:  # else more features will not help others either
                        self._grow(entry, index, data, clock)
                done.sort(key=lambda entry: entry.rank)
        return done

    def _grow(self, entry: _Entry, index: int, data: tuple[Any, Any, Any], clock: _Clock) -> None:
        """Double the features of a model of all rows while its error falls and there is time."""
        n = len(data[1])
        while entry.n_components < min(self.n_components, n) and not entry.grown:
            size = Round(n, min(2 * entry.n_components, self.n_components))
            if not clock.allows(size):
                return
            before, model, rank, n_components = entry.loss, entry.model, entry.rank, entry.n_components
            self._try(entry, index + 1, size, data, clock)
            entry.grown = not entry.loss < (1 - _FALLS) * before
            if not entry.loss < before:
                entry.loss, entry.model, entry.rank, entry.n_components = before, model, rank, n_components

    def _average(self, done: list[_Entry], data: tuple[Any, Any, Any], clock: _Clock) -> tuple[str, Any]:
        """The best model or an average of some, whichever predicts rows left out better."""
        best = done[0]
        near = [entry for entry in done if entry.loss <= _NEAR * best.loss] if self.n_averaged > 1 else []
        near = near or [best]
        left_out = [entry.model._solution.left_out for entry in near]
        if len({len(each[0]) if each is not None else 0 for each in left_out}) > 1 or left_out[0] is None:
            near, left_out = near[:1], left_out[:1]
        shares = [1.0]
        if len(near) > 1:
            targets, _, weight = left_out[0]
            predictions = [self._predicted(entry.model, each[1]) for entry, each in zip(near, left_out, strict=True)]
            stack = np.stack(predictions)
            shares = greedy_weights(
                lambda each: self._loss(targets, np.tensordot(each, stack, 1), weight), len(near), most=self.n_averaged
            )
        chosen = sorted((pair for pair in zip(shares, near, strict=True) if pair[0] > 0), key=lambda pair: -pair[0])
        if len(data[1]) < _ENOUGH_ROWS:
            self._learn_again([entry for _, entry in chosen], data, clock)
        if len(chosen) == 1:
            return chosen[0][1].name, chosen[0][1].model
        name = " + ".join(f"{share:.2g} {entry.name}" for share, entry in chosen)
        return name, self._average_of.of([entry.model for _, entry in chosen], [share for share, _ in chosen])

    def _learned(self, entries: list[_Entry], data: tuple[Any, Any, Any], clock: _Clock) -> list[_Entry]:
        """Entries with fitted metrics, learned from rows on which no error is going to be estimated.

        A candidate that tries several kernels becomes one entry for each. Few rows leave time to learn from several
        draws: their averages are better than any of them.
        """
        keys = row_uniforms(keyed(seed_sequence(self._model_seed), "sample"), 0, len(data[1]))[:, 0]
        others = np.sort(np.argsort(keys, kind="stable")[min(self.n_selection, len(keys) // 5) :])
        if len(others) > 2 * SAMPLE:
            others = others[np.sort(generator(self._seed, "metric").permutation(len(others))[:SAMPLE])]
        done: list[_Entry] = []
        for entry in entries:
            if not _learns(entry.features):
                done.append(entry)
                continue
            if len(entries) > 1 and clock.elapsed() > _SHARE * clock.budget:
                clock.spent = True
                continue
            began = clock.elapsed()
            done += self._alternatives(entry, others, data)
            seconds = clock.elapsed() - began
            if len(keys) < _ENOUGH_ROWS:
                clock.reserved = max(clock.reserved, seconds)
            repeats = _REPEATS if len(keys) < _FEW_ROWS and len(entries) > 1 else 0
            for repeat in range(1, repeats + 1):
                if clock.elapsed() + seconds > _REPEAT_SHARE * clock.budget:
                    break
                again = _Entry(entry.name, entry.features, repeat=repeat)
                done += self._alternatives(again, others, data)[:1]
        # Learned metrics come first: where time is short, they are tried, and others are not.
        done.sort(key=lambda entry: not isinstance(entry.features, AdaptiveFeatures))
        return done or entries[:1]

    def _alternatives(self, entry: _Entry, rows: np.ndarray, data: tuple[Any, Any, Any]) -> list[_Entry]:
        """An entry for each kernel and kind of metric that a candidate has found, the best one first."""
        metric = self._metric(entry, rows, data)
        found = metric.alternatives() if metric.kernel == "auto" else {"": metric}
        suffix = f" #{entry.repeat + 1}" if entry.repeat else ""
        return [
            _Entry(
                f"{entry.name} {name}".strip() + suffix,
                clone(entry.features).set_params(metric=FrozenEstimator(each)),
                origin=entry.origin,
                repeat=entry.repeat,
            )
            for name, each in found.items()
        ]

    def _metric(self, entry: _Entry, rows: np.ndarray | None, data: tuple[Any, Any, Any]) -> LearnedMetric:
        """Learn the metric of a candidate from some rows, or from all."""
        X, y, weight = data
        if rows is not None:
            X, y, weight = take_rows(X, rows), y[rows], None if weight is None else weight[rows]
        metric = LearnedMetric() if entry.features.metric is None else clone(entry.features.metric)
        if metric.random_state is None:
            seed = keyed(keyed(self._seed, entry.origin), f"repeat {entry.repeat}" if entry.repeat else "metric")
            metric.set_params(random_state=int(seed.generate_state(1)[0]))
        scaled = self._scaler(X).fit(X, sample_weight=weight).transform(X)
        return metric.fit(scaled, self._model._codec().encode(y, type(self).__name__), weight)

    def _learn_again(self, entries: list[_Entry], data: tuple[Any, Any, Any], clock: _Clock) -> None:
        """Learn the metrics of the final models from all rows, and fit these."""
        candidates, known = self._candidates(data[0]), {}
        for entry in entries:
            features = candidates[entry.origin]
            if not _learns(features) or clock.elapsed() + clock.reserved > _OVERTIME * clock.budget:
                continue
            key = entry.origin, entry.repeat
            if key not in known:
                metric = self._metric(_Entry(entry.origin, features, repeat=entry.repeat), None, data)
                known[key] = metric.alternatives() if metric.kernel == "auto" else {"": metric}
            own, found = entry.features.metric.estimator, list(known[key].values())
            same = [each for each in found if each.kernel_ == own.kernel_ and each.metric_.ndim == own.metric_.ndim]
            entry.features = clone(features).set_params(metric=FrozenEstimator((same or found)[0]))
            entry.model = self._estimator(entry, entry.n_components, data[0]).fit(*data)

    def _try(self, entry: _Entry, index: int, size: Round, some: tuple[Any, Any, Any], clock: _Clock) -> None:
        """Fit a candidate on some rows; what it is ranked by is its loss on rows left out."""
        start = time.perf_counter()
        model = self._estimator(entry, size.n_components, some[0])
        if self.alphas is None and entry.alpha is not None and index > 1:
            model.set_params(alphas=entry.alpha * 10.0 ** np.arange(-1, 1.5, 0.5))  # it hardly changes any more
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
            clock.fits.append((_cost(Round(size.n_rows, n_components)), seconds))
        resolution = self._model._codec.resolution
        rank = np.round(loss / resolution) if resolution else loss  # rounding errors decide nothing
        entry.rank, entry.loss = (float(rank), loss) if np.isfinite(loss) else (np.inf, np.inf)
        entry.model, entry.n_components, entry.alpha = model, size.n_components, model.alpha_
        self._bar.set_postfix_str(entry.name, refresh=False)
        self._bar.update()

    @property
    def _model_seed(self) -> int:
        """One seed for all models: the same rows are left out."""
        return int(keyed(self._seed, "model").generate_state(1)[0])

    @staticmethod
    def _scaler(X: Any) -> Any:
        # Sparse rows keep their zeros; columns of very different size are rare among them.
        return ImageStandardizer() if _has_images(X) else ArcsinhScaler(with_mean=not _array.is_sparse(X))

    def _estimator(self, entry: _Entry, n_components: int, X: Any) -> Any:
        """Unfitted model of a candidate."""
        features: Any = entry.features
        if features != "passthrough":
            features = seeded(features, keyed(self._seed, entry.name), all_parts=True)
        if hasattr(features, "n_components"):
            features.set_params(n_components=n_components)
        pipeline = Pipeline([("scale", self._scaler(X)), ("features", features)])
        n_selection = self.n_selection
        if isinstance(entry.features, AdaptiveFeatures):  # metrics were learned from all other rows
            n_selection = max(min(n_selection, n_rows_of(X) // 5), 1)
        return self._model(pipeline, alphas=self.alphas, n_selection=n_selection, random_state=self._model_seed)

    def _candidates(self, X: Any) -> dict[str, Any]:
        if self.candidates is None and _has_images(X):
            rule = "a dict of maps of images, such as {'cntk': CNTKSketch()}, if X has images"
            raise ValueError(message(type(self).__name__, "candidates", rule, self.candidates))
        return self.candidates or default_candidates(int(X.shape[1]), sparse=_array.is_sparse(X))

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.n_selection, "n_selection", name, minimum=1)
        check_int(self.n_averaged, "n_averaged", name, minimum=1)
        check_alphas(self.alphas, name)
        check_bool(self.progress, "progress", name)
        if self.time_budget is not None:
            check_real(self.time_budget, "time_budget", name, minimum=0)
        rule = "None or a non-empty dict from names to transformers, or 'passthrough'"
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
        """Targets, or an error."""

    def _needed(self, y: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Indices of rows that every fit must have."""
        return np.empty(0, dtype=np.intp)

    @abstractmethod
    def _predicted(self, model: Any, scores: np.ndarray) -> np.ndarray:
        """What averages are taken of, from the scores of a model."""

    @abstractmethod
    def _loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        """Loss of an average."""

    @abstractmethod
    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Error of each row."""

    def _of_best(self, name: str) -> Any:
        """An attribute of the best estimator; an AttributeError before `fit`."""
        if "best_estimator_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has not been fitted: it has no attribute {name!r}.")
        return getattr(self.best_estimator_, name)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the changes of the function learned."""
        found = importances(self._of_best("predict").__self__)
        if found is None:
            raise AttributeError("The best candidate has no feature_importances_: it has not learned a metric.")
        return found

    @property
    def alpha_(self) -> float:
        """The α of the best estimator."""
        return self._of_best("alpha_")

    @property
    def alphas_(self) -> np.ndarray:
        """The α that it was chosen from."""
        return self._of_best("alphas_")

    @property
    def errors_(self) -> np.ndarray:
        """Mean loss of the best candidate on rows left out, for each of `alphas_`."""
        return self._of_best("errors_")

    @property
    def intercept_(self) -> Any:
        """Constant term of the best estimator."""
        return self._of_best("intercept_")

    def expressions(self, X: Any) -> dict[str, Any]:
        """Results as expressions of array operations, without checks, by their names; see :class:`FeatureRidge`."""
        return self.best_estimator_.expressions(X)

    def predict(self, X: Any) -> Any:
        """Predict with the best estimator.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        return self.best_estimator_.predict(X)


class FeatureRidgeSearch(MultiOutputMixin, RegressorMixin, Search):
    """Regression with the kernel, its parameters and α chosen by the error on rows left out, within a time budget.

    Parameters
    ----------
    n_components : int
        Most features of the final model. They are doubled from 2048 on while the error falls by 1 % or more.
    time_budget : float or None
        Seconds that the search may take, about: before every fit it is compared with an estimate from the times of
        earlier fits. Every candidate gets a fit on few rows as long as half of it is left. None: no limit.
    candidates : dict or None
        Unfitted transformers by name; they get rows scaled by :class:`ArcsinhScaler` (images by
        :class:`ImageStandardizer`), and `n_components` and `random_state` set where they have them. "passthrough" is
        linear regression. None: Laplace, Matérn and Gaussian kernels that learn their metric
        (:class:`AdaptiveFeatures`), the NTK of depths 1 and 3, and linear regression, see ``results_``; for sparse rows
        Gaussian kernels of four length scales in place of the first; not for images.
    alphas : float, array of float or None
        As for :class:`FeatureRidge`.
    n_selection : int
        Rows to compare the candidates by: each is predicted by the model fitted without it.
    n_averaged : int
        Most models of an average, with weights chosen by its error on these rows; 1: the best model alone.
    progress : bool
        Whether to show progress bars.
    random_state : None, int, RandomState or Generator
        Draws the rows left out and the maps.

    Attributes
    ----------
    best_name_ : str
        Name of the candidate chosen, or of several with their weights.
    best_estimator_ : FeatureRidge or AverageRegressor
        It, fitted on all rows; its features are a Pipeline of the scaler and the map. An average has `estimators_` and
        `weights_`.
    n_candidates_tried_ : int
    summary_ : str
        What was tried, such as "tried 4 of 8 candidates: budget spent".
    feature_importances_ : ndarray of shape (n_features,)
        See :class:`LearnedMetric`; of an average the weighted mean. Only where the best candidates have learned a
        metric.
    results_ : list of dict
        All fits: "name", "round", "n_rows", "n_components", "loss" (what they are compared by), "error" (mean squared
        error on rows left out), "alpha", "seconds".
    alpha_, alphas_, errors_, intercept_
        Of `best_estimator_`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FeatureRidgeSearch
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((600, 4))
    >>> y = np.abs(X[:, 0]) + X[:, 1] * X[:, 2]
    >>> search = FeatureRidgeSearch(n_components=256, random_state=0).fit(X[:500], y[:500])
    >>> bool(search.score(X[500:], y[500:]) > 0.9)
    True
    """

    _model = FeatureRidge
    _average_of = AverageRegressor

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict with the best estimator; see :meth:`FeatureRidge.predict`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return standard deviations too.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets), or two of them
        """
        check_is_fitted(self)
        return self.best_estimator_.predict(X, return_std=return_std)

    def _check_y(self, y: Any) -> np.ndarray:
        targets = RealTargets()
        Y = targets.encode(y, type(self).__name__)
        return Y[:, 0] if targets.single else Y

    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return np.mean((predictions - targets) ** 2, axis=1)

    def _predicted(self, model: Any, scores: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return scores

    def _loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        return float(np.average(self._errors(targets, predictions), weights=weight))


class FeatureRidgeSearchClassifier(ClassifierMixin, Search):
    """Classification with the kernel, its parameters and α chosen by the error on rows left out, within a time budget.

    Parameters
    ----------
    n_components, time_budget, candidates, alphas, n_selection, n_averaged, progress, random_state
        As for :class:`FeatureRidgeSearch`.

    Attributes
    ----------
    classes_ : ndarray
    best_name_, best_estimator_, results_, alpha_, alphas_, errors_, intercept_, n_features_in_, feature_names_in_
        As for :class:`FeatureRidgeSearch`; "loss" is the log loss of the probabilities of rows left out, "error" the
        share of them misclassified.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from ntkit import FeatureRidgeSearchClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> search = FeatureRidgeSearchClassifier(n_components=128, random_state=0).fit(X[::2], y[::2])
    >>> bool(search.score(X[1::2], y[1::2]) > 0.9)
    True
    """

    _model = FeatureRidgeClassifier
    _average_of = AverageClassifier

    def _check_y(self, y: Any) -> np.ndarray:
        return check_labels(y, type(self).__name__)

    def _needed(self, y: np.ndarray) -> np.ndarray:
        return np.unique(y, return_index=True)[1]  # a row of each class

    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return (predictions.argmax(axis=1) != targets.argmax(axis=1)).astype(np.float64)

    def _predicted(self, model: Any, scores: np.ndarray) -> np.ndarray:
        return np.exp(model._targets.log_probabilities(scores, scores, type(self).__name__))

    def _loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        p = np.take_along_axis(predictions, targets.argmax(axis=1)[:, None], axis=1)[:, 0]
        return float(np.average(-np.log(np.maximum(p, 1e-300)), weights=weight))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted."""
        return self._of_best("classes_")

    def decision_function(self, X: Any) -> Array:
        """Predictions for the classes; see :meth:`FeatureRidgeClassifier.decision_function`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes
        """
        check_is_fitted(self)
        return self.best_estimator_.decision_function(X)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.best_estimator_.predict_log_proba(X)

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities of the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)


_FEWEST_SURVIVORS, _MOST_ON_ALL_ROWS = 4, 6  # candidates that go on; that are compared on all rows


def _rounds(n_rows: int, n_components: int) -> list[Round]:
    """Sizes of the comparisons on few rows: three times the rows and twice the features in the second."""
    rounds = []
    for factor in (1, 3):
        rows, components = factor * _FIRST_ROWS, (1 + factor // 2) * _FIRST_COMPONENTS
        if 2 * rows <= n_rows:
            rounds.append(Round(rows, min(components, n_components)))
    return rounds or [Round(n_rows, min(2 * _FIRST_COMPONENTS, n_components))]


def _survivors(n_candidates: int) -> int:
    """How many candidates go on: half of them, four at least; the time budget then says how far they come."""
    return max(-(-n_candidates // 2), min(_FEWEST_SURVIVORS, n_candidates))


def _cost(size: Round) -> float:
    """Time of a fit, up to a factor: the product ZᵀZ and some factorizations."""
    m = size.n_components
    return size.n_rows * m**2 + 4.0 * m**3


def _learns(features: Any) -> bool:
    """Whether features have a metric to learn."""
    return isinstance(features, AdaptiveFeatures) and not isinstance(features.metric, FrozenEstimator)


def _has_images(X: Any) -> bool:
    return len(X.shape) == 4
