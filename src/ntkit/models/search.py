"""Regression and classification with a search over kernels, features and penalties within a time budget."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ntkit._array import Array
from ntkit.models._features import importances
from ntkit.models._search import Search, default_candidates
from ntkit.models._targets import RealTargets, check_labels
from ntkit.models.average import AverageClassifier, AverageRegressor
from ntkit.models.ridge import FeatureRidge, FeatureRidgeClassifier
from ntkit.models.trees import TreesClassifier, TreesRegressor

__all__ = ["FeatureRidgeSearch", "FeatureRidgeSearchClassifier", "default_candidates"]


class SearchModel(Search):
    """Attributes and predictions of the best estimator of a search."""

    def _of_best(self, name: str) -> Any:
        """Return an attribute of the best estimator; raise AttributeError before `fit`."""
        if "best_estimator_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has no {name} yet. Call fit first.")
        return getattr(self.best_estimator_, name)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the gradients of the learned function."""
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
        """The candidate values of α of the best estimator."""
        return self._of_best("alphas_")

    @property
    def errors_(self) -> np.ndarray:
        """Mean loss of the best estimator on held-out rows, for each of `alphas_`."""
        return self._of_best("errors_")

    @property
    def intercept_(self) -> Any:
        """Intercept of the best estimator."""
        return self._of_best("intercept_")

    def expressions(self, X: Any) -> dict[str, Any]:
        """Return a dictionary of results as expressions of array operations, without checks; see `FeatureRidge`."""
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


class FeatureRidgeSearch(MultiOutputMixin, RegressorMixin, SearchModel):
    """Regression that chooses the kernel, its parameters and α by the error on held-out rows, within a time budget.

    Parameters
    ----------
    n_components : int
        Maximum number of features of the final model. It starts with 2048, which are doubled while the error falls by
        1 % or more.
    time_budget : float or None
        Approximate seconds for the search. Before every fit, its time is estimated from the times of earlier fits.
        While less than half of the budget is used, every candidate is fitted on few rows. None: no limit.
    candidates : dict or None
        Unfitted transformers by name. They get rows scaled by :class:`ArcsinhScaler` (images by
        :class:`ImageStandardizer`); their `n_components` and `random_state` are set, if they have them. "passthrough"
        is linear regression. None: Laplace, Matérn and Gaussian kernels that learn their metric
        (:class:`AdaptiveFeatures`), the NTK of depths 1 and 3, and linear regression, see ``results_``. For sparse
        rows, Gaussian kernels of four length scales replace the learned metrics. Images have no default candidates.
    alphas : float, array of float or None
        As for :class:`FeatureRidge`.
    n_selection : int
        Number of rows on which the candidates are compared by their leave-one-out errors.
    n_averaged : int
        Maximum number of models in an average, whose weights are chosen by its error on these rows; 1: only the best
        model. Below 10 000 rows, models with learned metrics are replaced by up to this number of models of equal
        weight, whose metrics are learned from all rows with different draws.
    trees : bool
        Whether an average may include gradient-boosted trees, with a weight of at most 0.9 that is chosen on the same
        rows. Only with the default candidates, rows that are not sparse and `n_averaged` > 1.
    progress : bool
        Whether to show progress bars.
    random_state : None, int, RandomState or Generator
        Draws the held-out rows and the maps.

    Attributes
    ----------
    best_name_ : str
        Name of the chosen candidate, or names and weights of several.
    best_estimator_ : FeatureRidge or AverageRegressor
        The chosen model, fitted on all rows. Its features are a Pipeline of the scaler and the map. An average has
        `estimators_` and `weights_`.
    n_candidates_tried_ : int
    summary_ : str
        Summary of the search, such as "tried 4 of 8 candidates: budget spent".
    feature_importances_ : ndarray of shape (n_features,)
        See :class:`LearnedMetric`; for an average, the weighted mean. Available if the best candidates have learned a
        metric.
    results_ : list of dict
        All fits: "name", "round", "n_rows", "n_components", "loss" (the measure of comparison), "error" (mean squared
        error on held-out rows), "alpha", "seconds". "trees" have their number of rounds as "n_components", and None as
        "alpha".
    alpha_, alphas_, errors_, intercept_
        Attributes of `best_estimator_`.
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
    _tree_type = TreesRegressor

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

    def _losses(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return np.sum((predictions - targets) ** 2, axis=1)


class FeatureRidgeSearchClassifier(ClassifierMixin, SearchModel):
    """Classification that chooses the kernel, its parameters and α by the loss on held-out rows, within a time budget.

    Parameters
    ----------
    n_components, time_budget, candidates, alphas, n_selection, n_averaged, trees, progress, random_state
        As for :class:`FeatureRidgeSearch`.

    Attributes
    ----------
    classes_ : ndarray
    best_name_, best_estimator_, results_, alpha_, alphas_, errors_, intercept_, n_features_in_, feature_names_in_
        As for :class:`FeatureRidgeSearch`; "loss" is the log loss of the probabilities on held-out rows, "error" the
        misclassification rate.

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
    _tree_type = TreesClassifier

    def _check_y(self, y: Any) -> np.ndarray:
        return check_labels(y, type(self).__name__)

    def _needed(self, y: np.ndarray) -> np.ndarray:
        return np.unique(y, return_index=True)[1]  # a row of each class

    def _errors(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return (predictions.argmax(axis=1) != targets.argmax(axis=1)).astype(np.float64)

    def _predicted(self, model: Any, scores: np.ndarray) -> np.ndarray:
        return np.exp(model._targets.log_probabilities(scores, scores, type(self).__name__))

    def _losses(self, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        p = np.take_along_axis(predictions, targets.argmax(axis=1)[:, None], axis=1)[:, 0]
        return -np.log(np.maximum(p, 1e-300))

    @property
    def classes_(self) -> np.ndarray:
        """The classes, sorted."""
        return self._of_best("classes_")

    def decision_function(self, X: Any) -> Array:
        """Return log-odds of the classes; see :meth:`FeatureRidgeClassifier.decision_function`.

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
        """Return the logarithms of :meth:`predict_proba`.

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
        """Return calibrated probabilities of the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self.best_estimator_.predict_proba(X)
