"""Ridge regression and classification on features, in one pass over the rows."""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._random import RandomState
from ntkit._validation import message
from ntkit.models._base import FeatureModel
from ntkit.models._blocks import as_rows, block_rows, n_rows_of, take_rows
from ntkit.models._calibrate import left_out_log_loss, log_probabilities, temperature
from ntkit.models._checks import check_labels, check_targets, like_rows, to_library, winners
from ntkit.models._solve import Covariance


class FeatureRidge(MultiOutputMixin, RegressorMixin, FeatureModel):
    """Ridge regression on features, in one pass over the rows and constant memory.

    Minimizes Σ w (y − βᵀZ(x) − b)² + α‖β‖². Only the sums Σ w z zᵀ, Σ w z yᵀ, Σ w y² are kept (or the features
    themselves while they have fewer rows than columns); α is the one of `alphas` with the smallest error on rows left
    out, which follows from the same sums and a sample of rows. See ``docs/design/learning.md``.

    Parameters
    ----------
    features : transformer
        Any scikit-learn transformer: a map of ntkit, or a Pipeline such as
        ``make_pipeline(ArcsinhScaler(), NTKFeatures(bias="auto"))``, which is the default (None) with 2048
        components. It is cloned and fitted; to use one already fitted wrap it in
        ``sklearn.frozen.FrozenEstimator``.
    alphas : float, array of float or None
        Strengths of the penalty to choose from. None: 10⁻⁷, 10^-6.5, …, 10² times the mean squared norm of the
        (centred) features.
    fit_intercept : bool
        Whether b is fitted, without penalty, or 0.
    selection : {"loo", "holdout"}
        Error of each α: on each row of a sample predicted without that row, or on the sample (at most a fifth of all
        rows) predicted without all of it.
    n_selection : int
        Size of the sample: drawn at random from all rows, without replacement.
    solver : {"auto", "eigen", "cholesky"}
        "eigen": one eigendecomposition gives the error for every α. "cholesky": a factorization for each α on the way
        from the middle of `alphas` downhill. "auto" takes the first up to 1024 unknowns, the second, faster, above.
    batch_size : int or None
        Rows mapped at a time; None: 256 MiB of features.
    progress : bool
        Whether `fit` shows a progress bar.
    random_state : None, int, RandomState or Generator
        Draws the sample, and the default features.

    Attributes
    ----------
    coef_ : ndarray of shape (n_components,) or (n_targets, n_components)
    intercept_ : float or ndarray of shape (n_targets,)
    alpha_ : float
        The α chosen.
    alphas_ : ndarray
        The α to choose from.
    errors_ : ndarray
        Mean squared error on rows left out, summed over targets, for each of `alphas_`; NaN for those not tried or
        lost in rounding.
    noise_variance_ : float or ndarray of shape (n_targets,)
        Variance of the targets about the model, at its largest evidence.
    features_ : transformer
        The fitted features.
    n_samples_seen_ : int
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(n m²) time for n rows and m features, plus m³/3 per α; 20 m² bytes of memory and some blocks. Rows in float32, and
    so features in float32, take half the time; the sums are in float64 in either case.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FeatureRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (2000, 3))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(2000)
    >>> model = FeatureRidge(random_state=0).fit(X[:1500], y[:1500])
    >>> bool(model.score(X[1500:], y[1500:]) > 0.97)
    True
    >>> mean, std = model.predict(X[1500:], return_std=True)
    >>> bool(0.9 < np.mean(np.abs(y[1500:] - mean) < 2 * std) < 1)
    True
    """

    _covariance: Covariance | None
    _centred: bool | None = None

    def __init__(
        self,
        features: Any = None,
        alphas: Any = None,
        *,
        fit_intercept: bool = True,
        selection: str = "loo",
        n_selection: int = 1000,
        solver: str = "auto",
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.features = features
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.n_selection = n_selection
        self.solver = solver
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def _targets(self, y: Any) -> np.ndarray:
        owner = type(self).__name__
        values = check_targets(y, owner)
        Y = values[:, None] if values.ndim == 1 else values
        known = self._statistics.n_targets
        if not known:
            self._single = values.ndim == 1
        elif Y.shape[1] != known:
            raise ValueError(f"y of {owner} must have as many columns in every block. Got {Y.shape[1]} after {known}.")
        return Y

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images
        return_std : bool, default=False
            Whether to return standard deviations too: of a new target, noise included, in the Bayesian view, where the
            penalty is a Gaussian prior: σ²(1 + 1/W + z̃ᵀ(G + α)⁻¹z̃).

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets), or two of them
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            light = self._for_workers()
            light._covariance = None
            mean = self._map_rows(light.predict, X, self._n_columns)
            if not return_std:
                return mean
            heavy = copy(light)
            heavy._covariance = self._factorize()
            return mean, self._map_rows(_Deviation(heavy), X, self._n_columns)
        scores = self._scores(X)
        mean = like_rows(scores if not self._single else scores[:, 0], X)
        if not return_std:
            return mean
        xp: Any = _array.namespace(scores)
        noise = to_library(self._solution.noise, scores)
        std = xp.sqrt(noise * (1 + self._spread(X))[:, None])
        return mean, like_rows(std if not self._single else std[:, 0], X)

    def _factorize(self) -> Covariance:
        """What standard deviations are computed from, computed once."""
        self._solve()
        if self._covariance is None:
            if self._statistics is None:
                raise ValueError(
                    "return_std needs the statistics of the fit, which this model was saved without. Save it with "
                    "ntkit.save(model, path, statistics=True)."
                )
            intercept = self.fit_intercept if self._centred is None else self._centred
            self._covariance = Covariance(self._statistics, self._solution.alpha, intercept=intercept)
        return self._covariance

    def _spread(self, X: Any) -> Array:
        """1/W + z̃ᵀ(G + α)⁻¹z̃ of each row."""
        covariance = self._factorize()
        X = as_rows(X, "X", type(self).__name__)
        step = self.batch_size or block_rows(self._solution.coef.shape[0], 8, X)
        starts = range(0, max(n_rows_of(X), 1), step)
        parts = [covariance.spread(self._transform(take_rows(X, slice(i, i + step)))) for i in starts]
        return _array.namespace(*parts).concat(parts, axis=0)

    def _solved(self) -> None:
        self._covariance = None
        self._centred = self.fit_intercept  # a parameter set later waits for the next fit

    @property
    def _n_columns(self) -> int | None:
        self._solve()
        return None if self._single else int(self._solution.coef.shape[1])

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features."""
        return self._fitted(lambda s: s.coef[:, 0] if self._single else s.coef.T)

    @property
    def intercept_(self) -> Any:
        """Constant term."""
        return self._fitted(lambda s: float(s.intercept[0]) if self._single else s.intercept)

    @property
    def noise_variance_(self) -> Any:
        """Variance of the targets about the model."""
        return self._fitted(lambda s: float(s.noise[0]) if self._single else s.noise)


class _Deviation:
    """The standard deviations of a prediction; sent to Dask's workers."""

    def __init__(self, model: FeatureRidge):
        self.model = model

    def __call__(self, X: Any) -> Array:
        return self.model.predict(X, return_std=True)[1]


class FeatureRidgeClassifier(ClassifierMixin, FeatureModel):
    """Classification by ridge regression on features, in one pass over the rows and constant memory.

    The targets are 1 for the class of a row and 0 for the others, minus 1/n_classes, as in Section 5.1 of [1]_; the
    class with the largest prediction wins. See :class:`FeatureRidge` for everything else.

    Parameters
    ----------
    features, alphas, fit_intercept, selection, n_selection, solver, batch_size, progress, random_state
        As for :class:`FeatureRidge`.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    coef_ : ndarray of shape (n_classes, n_components)
    intercept_ : ndarray of shape (n_classes,)
    alpha_, alphas_, features_, n_samples_seen_, n_features_in_, feature_names_in_
        As for :class:`FeatureRidge`.
    errors_ : ndarray
        Log loss of the probabilities on rows left out, for each of `alphas_`; NaN for those not tried or lost in
        rounding. It is smoother than the share of rows misclassified.
    temperature_ : float
        Probabilities are softmax(predictions / temperature_), which has the smallest log loss on the rows left out.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import FeatureRidgeClassifier, NTKFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> model = FeatureRidgeClassifier(NTKFeatures(depth=2, n_components=2048, random_state=0), random_state=0)
    >>> bool(model.fit(X[:1500], y[:1500]).score(X[1500:], y[1500:]) > 0.9)
    True
    >>> model.predict_proba(X[1500:]).shape
    (297, 10)
    """

    _loss = staticmethod(left_out_log_loss)

    def __init__(
        self,
        features: Any = None,
        alphas: Any = None,
        *,
        fit_intercept: bool = True,
        selection: str = "loo",
        n_selection: int = 1000,
        solver: str = "auto",
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.features = features
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.n_selection = n_selection
        self.solver = solver
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, classes: Any = None) -> Self:
        """Add rows to those seen so far; see :meth:`FeatureRidge.partial_fit`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,)
        sample_weight : array of shape (n_samples,), optional
        classes : array, optional
            Classes that may come, for other tools' sake: here new classes may come at any time.

        Returns
        -------
        self
        """
        self._coming = None if classes is None else check_labels(classes, type(self).__name__)
        try:
            return super().partial_fit(X, y, sample_weight)
        finally:
            self.__dict__.pop("_coming", None)

    def _targets(self, y: Any) -> np.ndarray:
        coming = getattr(self, "_coming", None)
        if coming is not None:
            self._encode(coming)
        numbers = self._encode(check_labels(y, type(self).__name__))
        one_hot = np.zeros((len(numbers), len(self._labels)))
        one_hot[np.arange(len(numbers)), numbers] = 1.0
        return one_hot

    def _encode(self, labels: np.ndarray) -> np.ndarray:
        """Numbers of labels in the order in which they have been met."""
        distinct, inverse = np.unique(labels, return_inverse=True)
        known = {label: number for number, label in enumerate(self._labels)}
        new = [label for label in distinct.tolist() if label not in known]
        if len({isinstance(label, str | bytes) for label in (*known, *new)}) > 1:
            rule = f"labels like those before, such as {self._labels[0]!r}" if known else "all text or all numbers"
            raise TypeError(message(type(self).__name__, "y", rule, new[0]))
        if new:
            self._labels = [*self._labels, *new]
            known |= {label: number for number, label in enumerate(self._labels)}
            self._label_dtype = np.result_type(getattr(self, "_label_dtype", distinct.dtype), distinct.dtype)
        return np.array([known[label] for label in distinct.tolist()])[inverse.reshape(-1)]

    @property
    def classes_(self) -> np.ndarray:
        """The classes met so far, sorted."""
        if not getattr(self, "_labels", None):
            raise AttributeError(f"This {type(self).__name__} has not been fitted: it has no attribute 'classes_'.")
        return np.sort(np.array(self._labels, dtype=self._label_dtype))

    def _solve(self) -> None:
        check_is_fitted(self)
        if self._solution is None and len(self._labels) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least two classes. Got one class only: {self._labels[0]!r}."
            )
        super()._solve()

    def _shift(self) -> float:
        return 1.0 / len(self._labels)

    def _solved(self) -> None:
        solution = self._solution
        order = np.argsort(np.array(self._labels, dtype=self._label_dtype), kind="stable")
        index = to_library(order, solution.coef)
        solution.coef = solution.coef[:, index]
        solution.intercept = solution.intercept[index]
        targets, predictions, weight = (to_numpy(a) for a in solution.left_out)
        scores = predictions[:, order]
        self._temperature = temperature(scores, targets[:, order].argmax(axis=1), weight)

    def decision_function(self, X: Any) -> Array:
        """Predictions for the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes: the second's minus the first's
        """
        self._solve()
        binary = len(self.classes_) == 2
        if _array.is_dask(X):
            n_columns = None if binary else len(self.classes_)
            return self._map_rows(self._for_workers().decision_function, X, n_columns)
        scores = self._scores(X)
        return like_rows(scores[:, 1] - scores[:, 0] if binary else scores, X)

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
            return self._map_rows(self._for_workers().predict, X, None, self.classes_.dtype)
        return winners(self._scores(X), self.classes_, X)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        self._solve()
        if _array.is_dask(X):
            return self._map_rows(self._for_workers().predict_log_proba, X, len(self.classes_))
        log_p = log_probabilities(to_numpy(self._scores(X)), self._temperature)
        return like_rows(log_p, X)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, calibrated on the rows left out in the fit.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        self._solve()
        if _array.is_dask(X):
            return self._map_rows(self._for_workers().predict_proba, X, len(self.classes_))
        log_p = self.predict_log_proba(X)
        return _array.namespace(log_p).exp(log_p)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features."""
        return self._fitted(lambda s: s.coef.T)

    @property
    def intercept_(self) -> np.ndarray:
        """Constant terms."""
        return self._fitted(lambda s: s.intercept)

    @property
    def temperature_(self) -> float:
        """What predictions are divided by before the softmax."""
        return self._fitted(lambda s: self._temperature)  # noqa: ARG005
