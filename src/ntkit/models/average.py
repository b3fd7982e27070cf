"""Weighted averages of fitted ridge models."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone

from ntkit import _array
from ntkit._array import Array
from ntkit._state import COLUMNS, Declared, Estimator, Field, Floats, Many
from ntkit.models.trees import BoostedTrees, TreesRegressor


class Average(Declared, BaseEstimator):
    """Models of the same targets with weights that sum to 1; built by :class:`FeatureRidgeSearch`.

    Parameters
    ----------
    estimators : list of models
    weights : list of float

    Attributes
    ----------
    estimators_ : list of models
        The model of largest weight comes first, but trees last.
    weights_ : ndarray of shape (n_estimators,)
    """

    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "estimators_": Many(Estimator(("predict",))),
        "weights_": Floats("k", minimum=0.0),
    }

    def __init__(self, estimators: Any = (), weights: Any = ()):
        self.estimators = estimators
        self.weights = weights

    @classmethod
    def of(cls, estimators: list[Any], weights: list[float]) -> Any:
        """Return the average of fitted models."""
        return cls([clone(model) for model in estimators], list(weights))._take(estimators)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit all models again.

        Parameters
        ----------
        X, y, sample_weight
            As for :class:`FeatureRidge`.

        Returns
        -------
        self
        """
        return self._take([clone(model).fit(X, y, sample_weight) for model in self.estimators])

    def _take(self, estimators: list[Any]) -> Self:
        self.estimators_, self.weights_ = list(estimators), np.asarray(self.weights, dtype=np.float64)
        self.n_features_in_ = estimators[0].n_features_in_
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(estimators[0], "feature_names_in_"):
            self.feature_names_in_ = estimators[0].feature_names_in_
        return self

    def _mean(self, method: str, X: Any) -> Any:
        """Return the weighted mean of the results of a method."""
        return _weighted([getattr(model, method)(X) for model in self.estimators_], self.weights_)

    def __getattr__(self, name: str) -> Any:
        """Return attributes such as `alpha_` and `errors_` of the first model."""
        if name.startswith("__") or name not in ("alpha_", "alphas_", "errors_", "intercept_", "features_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self.__dict__["estimators_"][0], name)

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if not len(self.estimators_) == len(self.weights_) > 0:
            raise ValueError("there must be at least one estimator, and one weight per estimator")
        if {model.n_features_in_ for model in self.estimators_} != {self.n_features_in_}:
            raise ValueError("all estimators must have the same number of columns")
        trees = [isinstance(model, BoostedTrees) for model in self.estimators_]
        if trees[0] or trees != sorted(trees) or not self.weights_[0] > 0:
            raise ValueError("trees must come after the other estimators, and the first weight must be positive")


class AverageRegressor(MultiOutputMixin, RegressorMixin, Average):
    """Weighted average of regressors: predictions are weighted means."""

    def expressions(self, X: Any) -> dict[str, Any]:
        """Return the prediction as an expression of array operations; see :class:`FeatureRidge`."""
        found = [model.expressions(X)["prediction"] for model in self.estimators_]
        return {"prediction": _weighted(found, self.weights_)}

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict the targets of rows; see :meth:`FeatureRidge.predict`.

        Variances are weighted means of the models' variances. Trees have none, and count only in the predictions.
        """
        if not return_std:
            return self._mean("predict", X)
        values: list[Any] = []
        deviations: list[Any] = []
        for model in self.estimators_:
            known = not isinstance(model, TreesRegressor)
            value, *deviation = model.predict(X, return_std=True) if known else (model.predict(X),)
            values.append(value)
            deviations += deviation
        weights = self.weights_[: len(deviations)]
        return _weighted(values, self.weights_), _weighted([d**2 for d in deviations], weights / weights.sum()) ** 0.5


class AverageClassifier(ClassifierMixin, Average):
    """Weighted average of classifiers: probabilities are weighted means."""

    def expressions(self, X: Any) -> dict[str, Any]:
        """Return class and probabilities as expressions of array operations; see :class:`FeatureRidgeClassifier`."""
        p = _weighted([model.expressions(X)["probabilities"] for model in self.estimators_], self.weights_)
        return {"index": _array.namespace(p).argmax(p, axis=1), "probabilities": p}

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted."""
        return self.estimators_[0].classes_

    def predict_proba(self, X: Any) -> Array:
        """Return weighted means of the probabilities; see :meth:`FeatureRidgeClassifier.predict_proba`."""
        return self._mean("predict_proba", X)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of :meth:`predict_proba`."""
        p = self.predict_proba(X)
        return np.log(p) if _array.is_dask(p) else _array.namespace(p).log(p)

    def decision_function(self, X: Any) -> Array:
        """Return log-odds; see :meth:`FeatureRidgeClassifier.decision_function`."""
        log_p = self.predict_log_proba(X)
        return log_p[:, 1] - log_p[:, 0] if len(self.classes_) == 2 else log_p

    def predict(self, X: Any) -> Any:
        """Predict the classes of rows."""
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.predict, X, n_columns=None, dtype=self.classes_.dtype)
        p = self.predict_proba(X)
        best = _array.namespace(p).argmax(p, axis=1)
        if _array.is_torch(best) and self.classes_.dtype.kind in "biuf":
            import torch

            return torch.as_tensor(self.classes_, device=best.device)[best]
        return self.classes_[_array.to_numpy(best)]


def _weighted(values: list[Any], weights: np.ndarray) -> Any:
    total = values[0] * float(weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value * float(weight)
    return total


def greedy_weights(losses: Any, n_models: int, *, most: int = 3, picks: int = 6) -> list[float]:
    """Choose the weights of an average greedily with replacement (Caruana et al., ICML 2004).

    Parameters
    ----------
    losses : callable
        Returns the loss of the average on held-out rows for given weights.
    n_models : int
        Number of models; the best model comes first.
    most : int
        Maximum number of different models in an average.
    picks : int
        Number of models to pick. The result is the best average after any of the picks.

    Returns
    -------
    list of float

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.models.average import greedy_weights
    >>> errors = np.array([1.0, -1.0])  # two models with opposite errors
    >>> greedy_weights(lambda weights: (weights @ errors) ** 2, 2)
    [0.5, 0.5]
    """
    counts = np.zeros(n_models)
    counts[0] = 1
    best, lowest = counts / counts.sum(), losses(counts / counts.sum())
    for _ in range(picks - 1):
        allowed = np.flatnonzero(counts) if np.count_nonzero(counts) >= most else np.arange(n_models)
        tried = [counts + np.eye(n_models)[i] for i in allowed]
        found = [losses(each / each.sum()) for each in tried]
        counts = tried[int(np.argmin(found))]
        if min(found) < lowest * (1 - _MIN_GAIN):
            best, lowest = counts / counts.sum(), min(found)
    return best.tolist()


_MIN_GAIN = 1e-3  # an average must lower the loss of a simpler one by this share
