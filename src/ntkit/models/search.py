"""The kernel, its parameters and α, chosen by the error on rows left out, within a time budget.

The right kernel matters more than the right sketch of it. All candidates start on 2000 rows with 512
features; the better half goes on to 6000 rows with 1024, and in the order found there to all rows with all features, as
far as the time goes (successive halving, Jamieson and Talwalkar 2016). Each fit chooses its α and gives its error by
predicting rows without them (leave-one-out), so that no rows are lost to validation, and the best of the last fits is
the final model.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import with_progress
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Seed, Text
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.features import NTKFeatures, RandomFourierFeatures
from ntkit.models._checks import check_alphas, check_weight
from ntkit.models._features import seeded
from ntkit.models._rows import as_arrays, as_rows, n_rows_of, take_rows
from ntkit.models._targets import RealTargets, check_labels
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.preprocessing import ArcsinhScaler, ImageStandardizer

_FINALISTS = 6  # candidates that are compared on all rows, with all features, if there is time
_FIRST_ROWS, _FIRST_COMPONENTS = 2000, 512


class Round(NamedTuple):
    """Sizes at which candidates are compared."""

    n_rows: int
    n_components: int


def default_candidates(n_features: int) -> dict[str, Any]:
    """Maps for scaled rows to choose from: linear, the NTK of several depths, Gaussians of several length scales.

    Examples
    --------
    >>> list(default_candidates(4))[:3]
    ['linear', 'ntk depth=1', 'ntk depth=2']
    """
    candidates: dict[str, Any] = {"linear": "passthrough"}
    for depth in (1, 2, 3, 5):
        candidates[f"ntk depth={depth}"] = NTKFeatures(depth=depth, bias="auto")
    candidates["ntk depth=1 bias=0"] = NTKFeatures(depth=1)
    candidates["ntk depth=3 bias=0"] = NTKFeatures(depth=3)
    for factor in (0.2, 0.35, 0.6, 1.0, 1.8):
        lengthscale = round(factor * n_features**0.5, 4)
        candidates[f"gaussian lengthscale={lengthscale:g}"] = RandomFourierFeatures(lengthscale=lengthscale)
    return candidates


class Search(OldSpellings, AllOrNothing, Declared, BaseEstimator):
    """What the search for regression and for classification share."""

    _model: type[FeatureRidge] | type[FeatureRidgeClassifier]

    _old_positions: ClassVar[int] = 2
    _old_names: ClassVar[dict[str, Any]] = {"n_validation": "n_selection"}
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "_seed": Seed(),
        "best_name_": Text(),
        "best_estimator_": Estimator(("predict",)),
        "results_": Field(),
    }

    def __init__(
        self,
        *,
        n_components: int = 4096,
        time_budget: float | None = 60.0,
        candidates: dict[str, Any] | None = None,
        alphas: Any = None,
        n_selection: int = 5000,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.time_budget = time_budget
        self.candidates = candidates
        self.alphas = alphas
        self.n_selection = n_selection
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
        began = time.perf_counter()
        self._seed = seed_sequence(self.random_state, owner=name)
        self.results_: list[dict[str, Any]] = []
        self.best_name_, self.best_estimator_ = self._compete(X, y, weight, began)
        self.n_features_in_ = self.best_estimator_.n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _compete(self, X: Any, y: np.ndarray, weight: np.ndarray | None, began: float) -> tuple[str, Any]:
        """The best candidate, and its model on all rows."""
        names = list(self._candidates(X))
        order = generator(self._seed, "rows").permutation(len(y))
        needed = self._needed(y[order])
        order = np.concatenate([order[needed], np.delete(order, needed)])
        whole = Round(len(y), self.n_components)
        rounds = _rounds(whole, len(names))
        best, least = None, np.inf
        for index, size in enumerate(rounds):
            losses: dict[str, float] = {}
            chosen = np.sort(order[: size.n_rows])
            some = (X, y, weight)
            if size.n_rows < len(y):
                some = take_rows(X, chosen), y[chosen], None if weight is None else weight[chosen]
            # The best of the round before come first, so that a round for which there is no time left is not lost.
            for name in with_progress(names, f"round {index + 1} of {len(rounds)}" if self.progress else None):
                if len(names) > 1 and self._spent(began, size, whole, done=best is not None):
                    break
                losses[name], model = self._try(name, index, size, some)
                if size == whole and (best is None or losses[name] < least):
                    best, least = (name, model), losses[name]
            if losses:
                names = sorted(losses, key=losses.__getitem__)[: _survivors(len(names))]
        return best or (names[0], self._estimator(names[0], self.n_components, X).fit(X, y, weight))

    def _try(self, name: str, index: int, size: Round, some: tuple[Any, Any, Any]) -> tuple[float, Any]:
        """Fit a candidate on some rows; return what it is ranked by, its loss on rows left out, and the model."""
        start = time.perf_counter()
        model = self._estimator(name, size.n_components, some[0]).fit(*some)
        loss = float(model.errors_[list(model.alphas_).index(model.alpha_)])
        targets, predictions, weight = model._solution.left_out
        self.results_.append(
            {
                "name": name,
                "round": index,
                "n_rows": n_rows_of(some[0]),
                "n_components": int(model.coef_.shape[-1]),
                "loss": loss,
                "error": float(np.average(self._errors(targets, predictions), weights=weight)),
                "alpha": model.alpha_,
                "seconds": time.perf_counter() - start,
            }
        )
        resolution = self._model._codec.resolution
        rank = np.round(loss / resolution) if resolution else loss  # rounding errors decide nothing
        return (float(rank) if np.isfinite(loss) else np.inf), model

    def _spent(self, began: float, size: Round, whole: Round, *, done: bool) -> bool:
        """Whether a fit of this size, and one on all rows if there is none yet, would go beyond the budget."""
        if self.time_budget is None:
            return False
        past = [(Round(r["n_rows"], r["n_components"]), r["seconds"]) for r in self.results_ if r["name"] != "linear"]
        if not past or (len(past) < 3 and size.n_rows <= _FIRST_ROWS):  # the first fits load compiled code
            return False
        rate = float(np.median([seconds / _cost(earlier) for earlier, seconds in past[-5:]]))
        to_come = _cost(size) + (0.0 if done or size == whole else _cost(whole))
        return time.perf_counter() - began + rate * to_come > self.time_budget

    def _estimator(self, name: str, n_components: int, X: Any) -> Any:
        """Unfitted model of a candidate."""
        features: Any = self._candidates(X)[name]
        if features != "passthrough":
            features = seeded(features, keyed(self._seed, name), all_parts=True)
        if hasattr(features, "n_components"):
            features.set_params(n_components=n_components)
        # Sparse rows keep their zeros; columns of very different size are rare among them.
        scaler = ImageStandardizer() if _has_images(X) else ArcsinhScaler(with_mean=not _array.is_sparse(X))
        pipeline = Pipeline([("scale", scaler), ("features", features)])
        # One seed for all: the same rows are left out.
        seed = int(keyed(self._seed, "model").generate_state(1)[0])
        return self._model(pipeline, alphas=self.alphas, n_selection=self.n_selection, random_state=seed)

    def _candidates(self, X: Any) -> dict[str, Any]:
        if self.candidates is None and _has_images(X):
            rule = "a dict of maps of images, such as {'cntk': CNTKSketch()}, if X has images"
            raise ValueError(message(type(self).__name__, "candidates", rule, self.candidates))
        return default_candidates(int(X.shape[1])) if self.candidates is None else self.candidates

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.n_selection, "n_selection", name, minimum=1)
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
    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Error of each row."""

    def _of_best(self, name: str) -> Any:
        """An attribute of the best estimator; an AttributeError before `fit`."""
        if "best_estimator_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has not been fitted: it has no attribute {name!r}.")
        return getattr(self.best_estimator_, name)

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
        Features of the final model.
    time_budget : float or None
        Seconds that the search and the final fit may take, about: it is checked before every fit against the time that
        fits have taken so far. None: all candidates are compared.
    candidates : dict or None
        Unfitted transformers by name; they get rows scaled by :class:`ArcsinhScaler` (images by
        :class:`ImageStandardizer`), and `n_components` and `random_state` set where they have them. "passthrough" is
        linear regression. None: the NTK of depths 1 to 5 and Gaussian kernels of five length scales, see ``results_``;
        not for images.
    alphas : float, array of float or None
        As for :class:`FeatureRidge`.
    n_selection : int
        Rows to compare the candidates by: each is predicted by the model fitted without it.
    progress : bool
        Whether to show progress bars.
    random_state : None, int, RandomState or Generator
        Draws the rows left out and the maps.

    Attributes
    ----------
    best_name_ : str
        Name of the candidate chosen.
    best_estimator_ : FeatureRidge
        It, fitted on all rows; its features are a Pipeline of the scaler and the map.
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


class FeatureRidgeSearchClassifier(ClassifierMixin, Search):
    """Classification with the kernel, its parameters and α chosen by the error on rows left out, within a time budget.

    Parameters
    ----------
    n_components, time_budget, candidates, alphas, n_selection, progress, random_state
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

    def _check_y(self, y: Any) -> np.ndarray:
        return check_labels(y, type(self).__name__)

    def _needed(self, y: np.ndarray) -> np.ndarray:
        return np.unique(y, return_index=True)[1]  # a row of each class

    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return (predictions.argmax(axis=1) != targets.argmax(axis=1)).astype(np.float64)

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


def _rounds(whole: Round, n_candidates: int) -> list[Round]:
    """Sizes of the comparisons: few rows and features, three times the rows and twice the features, all of both."""
    rounds = []
    for factor in (1, 3):
        rows, components = factor * _FIRST_ROWS, (1 + factor // 2) * _FIRST_COMPONENTS
        if n_candidates > 1 and 2 * rows <= whole.n_rows:
            rounds.append(Round(rows, min(components, whole.n_components)))
    return [*rounds, whole]


def _survivors(n_candidates: int) -> int:
    """How many candidates go on: half of them, six at least; the time budget then says how far they come."""
    return max(-(-n_candidates // 2), min(_FINALISTS, n_candidates))


def _cost(size: Round) -> float:
    """Time of a fit, up to a factor: the product ZᵀZ and some factorizations."""
    m = size.n_components
    return size.n_rows * m**2 + 4.0 * m**3 + 1e9


def _has_images(X: Any) -> bool:
    return len(X.shape) == 4
