"""The kernel, its parameters and α, chosen by the error on held-out rows within a time budget.

The right kernel matters more than the right sketch of it. All candidates start on few rows with few features; the
better half goes on to three times the rows with twice the features, and so on (successive halving, Jamieson and
Talwalkar 2016); the last three are compared on all rows, as far as the time goes. α comes with each fit, from the
rows left out in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import with_progress
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.features import ArcsinhScaler, NTKFeatures, RandomFourierFeatures
from ntkit.models._blocks import as_rows, n_rows_of
from ntkit.models._checks import check_alphas, check_labels, check_targets, to_numpy
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier

_FINALISTS = 3  # candidates that are compared on all rows, with all features
_FIRST_ROWS, _FIRST_COMPONENTS = 2000, 512


class Rung(NamedTuple):
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


class Search(BaseEstimator):
    """What the search for regression and for classification share."""

    n_components: int
    time_budget: float | None
    candidates: dict[str, Any] | None
    alphas: Any
    n_validation: int
    progress: bool
    random_state: RandomState
    _model: type

    def fit(self, X: Any, y: Any) -> Self:
        """Choose among the candidates and fit the best on all rows.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features)
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._fit(X, y)
        return self

    def _fit(self, X: Any, y: Any) -> None:
        name = type(self).__name__
        self._check_parameters()
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None.")
        X = as_rows(X, "X", name)
        y = self._check_y(y)
        if n_rows_of(X) != len(y):
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: X of {name} has {n_rows_of(X)} rows, y "
                f"has {len(y)}."
            )
        began = time.perf_counter()
        self._seed = seed_sequence(self.random_state, owner=name)
        rows = self._split(y)
        self.results_: list[dict[str, Any]] = []
        self.best_name_ = self._compete(X, y, rows, began)
        self.best_estimator_ = self._estimator(self.best_name_, self.n_components, X).fit(X, y)
        self.n_features_in_ = self.best_estimator_.n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(self.best_estimator_, "feature_names_in_"):
            self.feature_names_in_ = self.best_estimator_.feature_names_in_

    def _compete(self, X: Any, y: np.ndarray, rows: tuple[np.ndarray, np.ndarray], began: float) -> str:
        """Name of the best candidate."""
        train, validation = rows
        names = list(self._candidates(X))
        if len(names) == 1:
            return names[0]
        held_out = _rows(X, validation), y[validation]
        rungs = _rungs(len(train), self.n_components, len(names))
        for number, rung in enumerate(rungs):
            errors: dict[str, float] = {}
            chosen = np.sort(train[: rung.n_rows])
            some = _rows(X, chosen), y[chosen]
            # The best of the rung before come first, so that a rung for which there is no time left is not lost.
            for name in with_progress(names, f"rung {number + 1} of {len(rungs)}" if self.progress else None):
                if self._spent(began, rung, Rung(len(y), self.n_components)):
                    break
                errors[name] = self._try(name, number, rung, some, held_out)
            if errors:
                names = sorted(errors, key=errors.__getitem__)[: _survivors(len(names))]
        return names[0]

    def _try(self, name: str, number: int, rung: Rung, some: tuple[Any, Any], held_out: tuple[Any, Any]) -> float:
        """Fit a candidate on some rows; return its error on those held out."""
        start = time.perf_counter()
        model = self._estimator(name, rung.n_components, some[0]).fit(*some)
        error = self._error(model, *held_out)
        self.results_.append(
            {
                "name": name,
                "rung": number,
                "n_rows": n_rows_of(some[0]),
                "n_components": int(model.coef_.shape[-1]),
                "error": error,
                "alpha": model.alpha_,
                "seconds": time.perf_counter() - start,
            }
        )
        return error

    def _spent(self, began: float, rung: Rung, last: Rung) -> bool:
        """Whether a fit on this rung, and the last one on all rows, would go beyond the budget."""
        if self.time_budget is None:
            return False
        sizes = [(Rung(r["n_rows"], r["n_components"]), r["seconds"]) for r in self.results_ if r["name"] != "linear"]
        if len(sizes) < 3:  # the first fits load compiled code
            return False
        rate = float(np.median([seconds / _cost(size) for size, seconds in sizes[-5:]]))
        return time.perf_counter() - began + rate * (_cost(rung) + _cost(last)) > self.time_budget

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers to train on, in random order, and to validate on."""
        n_rows = len(y)
        if n_rows < 5:
            return np.arange(n_rows), np.arange(n_rows)
        n_validation = min(self.n_validation, max(n_rows // 5, 1))
        order = generator(self._seed, "rows").permutation(n_rows)
        return order[n_validation:], np.sort(order[:n_validation])

    def _estimator(self, name: str, n_components: int, X: Any) -> Any:
        """Unfitted model of a candidate."""
        features: Any = self._candidates(X)[name]
        features = features if features == "passthrough" else clone(features)
        if hasattr(features, "n_components"):
            features.set_params(n_components=n_components)
        if hasattr(features, "random_state"):
            features.set_params(random_state=keyed(self._seed, name, "features"))
        # Sparse rows keep their zeros; columns of very different size are rare among them.
        scaler = ArcsinhScaler(with_mean=not _array.is_sparse(X))
        pipeline = Pipeline([("scale", scaler), ("features", features)])
        return self._model(pipeline, self.alphas, random_state=keyed(self._seed, name, "model"))

    def _candidates(self, X: Any) -> dict[str, Any]:
        return default_candidates(int(X.shape[1])) if self.candidates is None else self.candidates

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.n_components, "n_components", name, minimum=1)
        check_int(self.n_validation, "n_validation", name, minimum=1)
        check_alphas(self.alphas, name)
        check_bool(self.progress, "progress", name)
        if self.time_budget is not None:
            check_real(self.time_budget, "time_budget", name, minimum=0)
        rule = "None or a non-empty dict from names to transformers, or 'passthrough'"
        if self.candidates is not None and not (
            isinstance(self.candidates, dict)
            and self.candidates
            and all(c == "passthrough" or hasattr(c, "transform") for c in self.candidates.values())
        ):
            raise TypeError(message(name, "candidates", rule, self.candidates))

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _check_y(self, y: Any) -> np.ndarray:
        raise NotImplementedError

    def _error(self, model: Any, X: Any, y: np.ndarray) -> float:
        raise NotImplementedError

    def predict(self, X: Any) -> Array:
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
    """Regression with the kernel, its parameters and α chosen by held-out error, within a time budget.

    Parameters
    ----------
    n_components : int
        Features of the final model.
    time_budget : float or None
        Seconds that the search and the final fit may take, about: it is checked before every fit against the time that
        fits have taken so far. None: all candidates are compared.
    candidates : dict or None
        Unfitted transformers by name; they get rows scaled by :class:`ArcsinhScaler`, and `n_components` and
        `random_state` set where they have them. "passthrough" is linear regression. None: the NTK of depths 1 to 5 and
        Gaussian kernels of five length scales, see ``results_``.
    alphas : float, array of float or None
        As for :class:`FeatureRidge`.
    n_validation : int
        Rows held out to compare the candidates by; a fifth of the rows if these are fewer.
    progress : bool
        Whether to show progress bars.
    random_state : None, int, RandomState or Generator
        Draws the held-out rows and the maps.

    Attributes
    ----------
    best_name_ : str
        Name of the candidate chosen.
    best_estimator_ : FeatureRidge
        It, fitted on all rows; its features are a Pipeline of :class:`ArcsinhScaler` and the map.
    results_ : list of dict
        All fits: "name", "rung", "n_rows", "n_components", "error" (held-out mean squared error), "alpha",
        "seconds".
    n_features_in_ : int

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

    def __init__(
        self,
        n_components: int = 4096,
        time_budget: float | None = 60.0,
        *,
        candidates: dict[str, Any] | None = None,
        alphas: Any = None,
        n_validation: int = 5000,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.time_budget = time_budget
        self.candidates = candidates
        self.alphas = alphas
        self.n_validation = n_validation
        self.progress = progress
        self.random_state = random_state

    def _check_y(self, y: Any) -> np.ndarray:
        return check_targets(y, type(self).__name__)

    def _error(self, model: Any, X: Any, y: np.ndarray) -> float:
        return float(np.mean((to_numpy(model.predict(X)) - y) ** 2))


class FeatureRidgeSearchClassifier(ClassifierMixin, Search):
    """Classification with the kernel, its parameters and α chosen by held-out error, within a time budget.

    Parameters
    ----------
    n_components, time_budget, candidates, alphas, n_validation, progress, random_state
        As for :class:`FeatureRidgeSearch`.

    Attributes
    ----------
    classes_ : ndarray
    best_name_, best_estimator_, results_, n_features_in_
        As for :class:`FeatureRidgeSearch`; "error" is the share of held-out rows misclassified.

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

    def __init__(
        self,
        n_components: int = 4096,
        time_budget: float | None = 60.0,
        *,
        candidates: dict[str, Any] | None = None,
        alphas: Any = None,
        n_validation: int = 5000,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.time_budget = time_budget
        self.candidates = candidates
        self.alphas = alphas
        self.n_validation = n_validation
        self.progress = progress
        self.random_state = random_state

    def _check_y(self, y: Any) -> np.ndarray:
        return check_labels(y, type(self).__name__)

    def _error(self, model: Any, X: Any, y: np.ndarray) -> float:
        return float(np.mean(to_numpy(model.predict(X)) != y))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError(f"This {type(self).__name__} has not been fitted: it has no attribute 'classes_'.")
        return self.best_estimator_.classes_

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


def _rungs(n_rows: int, n_components: int, n_candidates: int) -> list[Rung]:
    """Sizes of the comparisons: rows times three and features times two, the last with all of both."""
    rungs = []
    rows, components = _FIRST_ROWS, _FIRST_COMPONENTS
    while n_candidates > _FINALISTS and rows < n_rows:
        rungs.append(Rung(rows, min(components, n_components)))
        n_candidates, rows, components = _survivors(n_candidates), 3 * rows, 2 * components
    return [*rungs, Rung(n_rows, n_components)]


def _survivors(n_candidates: int) -> int:
    """How many candidates go on: half of them, three at least."""
    return max(-(-n_candidates // 2), min(_FINALISTS, n_candidates))


def _cost(rung: Rung) -> float:
    """Time of a fit, up to a factor: the product ZᵀZ and some factorizations."""
    m = rung.n_components
    return rung.n_rows * m**2 + 4.0 * m**3 + 1e9


def _rows(X: Any, numbers: np.ndarray) -> Any:
    return X.iloc[numbers] if hasattr(X, "iloc") else X[numbers]
