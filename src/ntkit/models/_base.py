"""Base classes of the ridge models: parameters, choice of α, predictions, classes and probabilities."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing
from ntkit._expression import NotExpressibleError
from ntkit._random import RandomState
from ntkit._state import COLUMNS, Declared, Field, Flag, Part, Seed
from ntkit._validation import check_bool, check_choice, check_int
from ntkit.models._calibrate import log_probabilities
from ntkit.models._checks import check_alphas, check_gradient_rows, like_rows, result_dtype, to_library
from ntkit.models._path import GRID, Solution, choose, penalties
from ntkit.models._problems import Problem, Selection
from ntkit.models._targets import ClassTargets, RealTargets, Targets

_SELECTIONS = ("loo", "holdout")


class RidgeModel(OldSpellings, AllOrNothing, Declared, BaseEstimator):
    """Base class of all ridge models. A subclass builds a :class:`Problem`; this class does the rest.

    A fitted model has `_targets` (the encoding of y), `_solution`, and the fitted features or kernel.
    """

    alphas: Any
    fit_intercept: bool
    selection: str
    n_selection: int
    batch_size: int | None
    progress: bool
    random_state: RandomState
    n_features_in_: int
    _targets: Any
    _solution: Any
    _centred: bool  # whether the intercept was fitted; `fit_intercept` may have been changed since then
    _codec: ClassVar[type[Targets]]

    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "_seed": Seed(),
        "_centred": Flag(),
        "_solution": Part(Solution),
    }

    def _check_common(self) -> None:
        """Check the parameters that all ridge models have."""
        name = type(self).__name__
        check_alphas(self.alphas, name)
        check_bool(self.fit_intercept, "fit_intercept", name)
        check_choice(self.selection, "selection", name, _SELECTIONS)
        check_int(self.n_selection, "n_selection", name, minimum=1)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        check_bool(self.progress, "progress", name)

    @property
    def _several(self) -> bool:
        """Whether there is more than one α to choose from."""
        return self.alphas is None or np.size(self.alphas) > 1

    @property
    def _leaves_out(self) -> Selection:
        """How rows are held out. No row is held out if there is nothing to choose and nothing to calibrate."""
        needed = self._several or issubclass(self._codec, ClassTargets)
        return Selection(self.selection, self.n_selection if needed else 0)

    def _choose(self, problem: Problem, mean_weight: float) -> Solution:
        """Return the solution for the best α. `mean_weight` is 1 unless rows have weights below 1."""
        alphas = penalties(self.alphas, lambda: problem.scale, mean_weight)
        targets, name, more = self._targets, type(self).__name__, self.alphas is None
        multiple = self._expected_multiple() if more else None
        expected = None if multiple is None else multiple * alphas[0] / GRID[0]
        found = choose(problem, alphas, targets.loss, name, targets.resolution, open_ended=more, expected=expected)
        return targets.settle(found)

    def _expected_multiple(self) -> float | None:
        """Return the expected α as a multiple of the mean k(x, x), if the features know it."""
        return None

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        if self._targets.n_targets != len(self._solution.intercept):
            raise ValueError(f"the solution must have {self._targets.n_targets} targets")

    def _solve(self) -> None:
        """Compute the solution if it is out of date."""
        check_is_fitted(self)

    def _read(self, name: str) -> Any:
        """Return a field of the solution as a NumPy array or a number; raise AttributeError if there is no solution."""
        try:
            self._solve()
        except (NotFittedError, ValueError) as error:
            raise AttributeError(str(error)) from error
        return to_numpy(getattr(self._solution, name))

    @property
    def alpha_(self) -> float:
        """The chosen α."""
        return self._read("alpha")

    @property
    def alphas_(self) -> np.ndarray:
        """The candidate values of α."""
        return self._read("alphas")

    @property
    def errors_(self) -> np.ndarray:
        """Mean loss on held-out rows, for each of `alphas_`."""
        return self._read("errors")

    @abstractmethod
    def _scores(self, X: Any) -> Array:
        """Return predictions in float64, of shape (n, n_targets)."""

    def _score_expression(self, X: Array) -> Array:  # noqa: ARG002
        """Return predictions in float64, of shape (n, n_targets), as one expression of array operations."""
        raise NotExpressibleError(
            f"{type(self).__name__} cannot be written as one expression of array operations, because it repeats its "
            "random draws to predict. Use FeatureRidge or KernelRidge, or detach the rows."
        )

    def _for_workers(self) -> Self:
        """Return a model that Dask's workers can predict with."""
        self._solve()
        return self

    def _map_rows(self, method: str, X: Any, n_columns: int | None, dtype: Any = None, **attributes: Any) -> Any:
        """Apply a method to a Dask collection. The results have the same dtype as for rows in memory.

        `attributes` are set on the model of each worker; use them for attributes that pickles do not contain.
        """
        from ntkit.distributed import map_rows

        call = _Call(self._for_workers(), method, attributes)
        return map_rows(call, X, n_columns=n_columns, dtype=result_dtype(X) if dtype is None else dtype)

    def __sklearn_is_fitted__(self) -> bool:
        return "_targets" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        features = getattr(self, "features", None)
        tags.input_tags.sparse = hasattr(features, "__sklearn_tags__") and get_tags(features).input_tags.sparse
        return tags


class OfFeatures(RidgeModel):
    """Base class of models that have one weight per feature."""

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features."""
        coef = self._read("coef")
        return coef[:, 0] if getattr(self._targets, "single", False) else coef.T


class _Call:
    """A model's method that is sent to Dask's workers."""

    def __init__(self, model: Any, method: str, attributes: dict[str, Any]):
        self.model, self.method, self.attributes, self.__name__ = model, method, attributes, method

    def __call__(self, X: Any) -> Array:
        vars(self.model).update(self.attributes)
        return getattr(self.model, self.method)(X)


class RidgeRegressor(MultiOutputMixin, RegressorMixin, RidgeModel):
    """Base class of ridge models for real targets."""

    _codec = RealTargets
    _state: ClassVar[dict[str, Field]] = {"_targets": Part(RealTargets)}

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images
        return_std : bool, default=False
            Whether to return standard deviations too. They are the standard deviations of a new target, including its
            noise, in the Bayesian view where the penalty is a Gaussian prior. Some models have no posterior.

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets), or two of them
            An array of the same library as X; float32 if X is float32.
        """
        self._solve()
        check_bool(return_std, "return_std", f"{type(self).__name__}.predict")
        if _array.is_dask(X):
            n_columns = None if self._targets.single else self._targets.n_targets
            mean = self._map_rows("predict", X, n_columns)
            if not return_std:
                return mean
            return mean, self._map_rows("_deviations", X, n_columns, _posterior=self._factorize())
        if _array.is_torch(X) and _array.wants_gradient([X]) and not return_std:
            check_gradient_rows(self, X)
            return self._targets.decode(self._score_expression(X), X)
        mean = self._targets.decode(self._scores(X), X)
        return (mean, self._deviations(X)) if return_std else mean

    def expressions(self, X: Array) -> dict[str, Array]:
        """Return a dictionary with the prediction as one expression of array operations, without checks.

        Parameters
        ----------
        X : torch tensor or traced array with rows or images
        """
        self._solve()
        scores = self._score_expression(X)
        return {"prediction": scores[:, 0] if self._targets.single else scores}

    def _deviations(self, X: Any) -> Array:
        """Return standard deviations of new targets."""
        spread = self._spread(X)
        noise = to_library(self._solution.noise, spread)
        return self._targets.decode(_array.namespace(spread).sqrt(noise * (1 + spread)[:, None]), X)

    @abstractmethod
    def _spread(self, X: Any) -> Array:
        """Return the variance of each prediction divided by the variance of the noise."""

    def _factorize(self) -> Any:
        """Return the factorization that :meth:`_spread` needs; it is computed once."""
        raise ValueError(
            f"{type(self).__name__} has no posterior and so no standard deviations. Use FeatureRidge, or KernelRidge "
            "with solver='direct'."
        )

    def _per_target(self, values: np.ndarray) -> Any:
        return float(values[0]) if self._targets.single else values

    @property
    def intercept_(self) -> Any:
        """Intercept."""
        return self._per_target(self._read("intercept"))

    @property
    def noise_variance_(self) -> Any:
        """Variance of the noise: the targets minus the model."""
        noise = self._read("noise")
        if noise is None:
            raise AttributeError(f"The solver of this {type(self).__name__} does not compute noise_variance_.")
        return self._per_target(noise)


class RidgeClassifier(ClassifierMixin, RidgeModel):
    """Base class of ridge models for classes, with probabilities."""

    _codec = ClassTargets
    _state: ClassVar[dict[str, Field]] = {"_targets": Part(ClassTargets)}

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        if self._targets.n_targets < 2:
            raise ValueError("there must be at least two classes")

    def decision_function(self, X: Any) -> Array:
        """Return calibrated log-odds of the classes, up to a constant for each row.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes: the second class minus the first
        """
        self._solve()
        if _array.is_dask(X):
            n_columns = None if self._targets.n_targets == 2 else self._targets.n_targets
            return self._map_rows("decision_function", X, n_columns)
        if _array.is_torch(X) and _array.wants_gradient([X]):
            check_gradient_rows(self, X)
            return self._decisions(self._score_expression(X), X)
        return self._decisions(self._scores(X), X)

    def _decisions(self, scores: Array, X: Any) -> Array:
        values = self._targets.calibrated(scores)
        return like_rows(values[:, 1] - values[:, 0] if self._targets.n_targets == 2 else values, X)

    def predict(self, X: Any) -> Array:
        """Predict the classes of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,)
            A torch tensor if X is one and the classes are numbers.
        """
        self._solve()
        if _array.is_dask(X):
            return self._map_rows("predict", X, None, self.classes_.dtype)
        return self._targets.decode(self._scores(X), X)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        self._solve()
        if _array.is_dask(X):
            return self._map_rows("predict_log_proba", X, self._targets.n_targets)
        if _array.is_torch(X) and _array.wants_gradient([X]):
            check_gradient_rows(self, X)
            return self._targets.log_probabilities(self._score_expression(X), X, type(self).__name__)
        return self._targets.log_probabilities(self._scores(X), X, type(self).__name__)

    def expressions(self, X: Array) -> dict[str, Array]:
        """Return the index of the class and all probabilities as expressions of array operations, without checks.

        Parameters
        ----------
        X : torch tensor or traced array with rows or images
        """
        self._solve()
        scores = self._score_expression(X)
        xp: Any = _array.namespace(scores)
        found = {"index": xp.argmax(self._targets.calibrated(scores), axis=1)}
        if self._targets.calibration is not None:
            found["probabilities"] = xp.exp(log_probabilities(scores, self._targets.calibration))
        return found

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes, calibrated on the rows held out in the fit.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        self._solve()
        if _array.is_dask(X):
            return self._map_rows("predict_proba", X, self._targets.n_targets)
        log_p = self.predict_log_proba(X)
        return _array.namespace(log_p).exp(log_p)

    @property
    def classes_(self) -> np.ndarray:
        """The classes met so far, sorted."""
        if not len(getattr(getattr(self, "_targets", None), "labels", ())):
            raise AttributeError(f"This {type(self).__name__} has no classes_ yet. Call fit first.")
        return self._targets.classes

    @property
    def intercept_(self) -> np.ndarray:
        """Intercepts."""
        return self._read("intercept")

    @property
    def temperature_(self) -> float:
        """Temperature of the calibration: scores are divided by it. The calibration also has linear corrections."""
        self._read("alpha")
        if self._targets.calibration is None:
            raise AttributeError(f"This {type(self).__name__} has no probabilities: no rows were held out.")
        return self._targets.calibration.temperature
