"""Nyström features of a kernel whose metric is learned from the targets."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, check_rows
from ntkit._random import RandomState, keyed, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Integer
from ntkit._validation import check_choice, check_int, message
from ntkit.features import NystroemFeatures
from ntkit.models._checks import check_weight
from ntkit.models.metric import LearnedMetric

_LANDMARKS = ("uniform", "leverage", "kmeans")
USUAL, LARGE = 2048, 4096
"""Numbers of landmarks for n_components="auto"."""
_GAINS = 0.93  # error over the error with half of the landmarks: below, more of them are worth their time


class AdaptiveFeatures(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features of a kernel that adapts to the targets: :class:`LearnedMetric`, then :class:`NystroemFeatures`.

        Z(x)·Z(y) ≈ k(Mx, My),

    with the kernel k, its length scale and M learned from rows and targets, and landmarks among the rows. These are the
    default features of :class:`FeatureRidge` for tables.

    Parameters
    ----------
    n_components : int or "auto"
        Number of landmarks, and of features; the number of rows where there are fewer. "auto": 2048, and 4096 where
        the metric's fits say that these would lower the error by more than about 7 %.
    metric : LearnedMetric, FrozenEstimator or None
        The metric to learn; None: ``LearnedMetric()``. One that is fitted already, in scikit-learn's
        ``FrozenEstimator``, is used as it is.
    landmarks : {"uniform", "leverage", "kmeans"}
        As for :class:`NystroemFeatures`.
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the machine.
    random_state : None, int, RandomState or Generator
        Draws landmarks, and the metric's rows if it has no seed of its own.

    Attributes
    ----------
    metric_ : LearnedMetric
    map_ : NystroemFeatures
        Of rows that the metric has scaled.
    feature_importances_ : ndarray of shape (n_features,)
        See :class:`LearnedMetric`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Kernel values with m landmarks and O(m²) per row. Columns should be scaled, with their tails drawn in
    (:class:`ArcsinhScaler`): the metric weighs columns, but not parts of a column.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import AdaptiveFeatures, FeatureRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (900, 8))
    >>> y = np.sin(6 * X[:, 0]) * X[:, 1]
    >>> model = FeatureRidge(AdaptiveFeatures(n_components=256, random_state=0), random_state=0).fit(X[:800], y[:800])
    >>> bool(model.score(X[800:], y[800:]) > 0.95)
    True
    >>> bool(model.features_.feature_importances_[:2].sum() > 0.9)
    True
    """

    learns_from_targets: ClassVar[bool] = True
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "metric_": Estimator(("transform",)),
        "map_": Estimator(("transform",)),
        "_n_features_out": Integer(1),
    }

    def __init__(
        self,
        *,
        n_components: int | str = "auto",
        metric: Any = None,
        landmarks: str = "uniform",
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.metric = metric
        self.landmarks = landmarks
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the metric and choose landmarks.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Real targets or classes. Not needed for a metric that is fitted already.
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_parameters()
            seed = seed_sequence(self.random_state, owner=type(self).__name__)
            if _array.is_dask(X):
                from ntkit.distributed import DaskSource

                source = DaskSource(X, y, sample_weight, type(self).__name__)
                X, y, sample_weight, _ = source.sample(_SAMPLE, keyed(seed, "sample"))
            check_rows(self, X, reset=True, sparse=True)
            self.metric_ = self._fitted_metric(X, y, sample_weight, seed)
            Z = self.metric_.transform(X)
            if sample_weight is not None:
                Z = Z[np.flatnonzero(check_weight(sample_weight, int(Z.shape[0]), type(self).__name__))]
            self.map_ = self._map(keyed(seed, "landmarks"), int(Z.shape[0])).fit(Z)
            self._n_features_out = self.map_._n_features_out
        return self

    def _fitted_metric(self, X: Any, y: Any, weight: Any, seed: np.random.SeedSequence) -> Any:
        if isinstance(self.metric, FrozenEstimator):
            return self.metric.estimator
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        metric = LearnedMetric() if self.metric is None else clone(self.metric)
        if metric.random_state is None:
            metric.set_params(random_state=int(keyed(seed, "metric").generate_state(1)[0]))
        return metric.fit(X, y, weight)

    def _map(self, seed: np.random.SeedSequence, n_rows: int) -> NystroemFeatures:
        metric = self.metric_
        params = dict(metric.kernel_params_)
        size: Any = self.n_components
        if size == "auto":
            size = LARGE if metric.gain_ < _GAINS and n_rows > 2 * LARGE else USUAL
        return NystroemFeatures(
            metric.kernel_, n_components=size, landmarks=self.landmarks, lengthscale=1.0,
            depth=params.pop("depth", None), kernel_params=params or None, normalization="cholesky",
            batch_size=self.batch_size, random_state=int(seed.generate_state(1)[0]),
        )  # fmt: skip

    def transform(self, X: Any) -> Array:
        """Return the features of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_components)
            Of the library and device of X; float32 for float32.
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.transform, X, n_columns=self._n_features_out)
        check_rows(self, X, reset=False, sparse=True)
        return self.map_.transform(self.metric_.transform(X))

    def times(self, X: Any, weights: Array, tolerance: float = 0.0) -> Array:
        """Z(X) @ weights without the features; see :meth:`NystroemFeatures.times`."""
        check_rows(self, X, reset=False, sparse=True)
        return self.map_.times(self.metric_.transform(X), weights, tolerance)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the changes of the function learned."""
        if "metric_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has not been fitted: it has no feature_importances_.")
        return self.metric_.feature_importances_

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.n_components != "auto":
            if isinstance(self.n_components, str):
                raise ValueError(message(name, "n_components", "an int ≥ 1 or 'auto'", self.n_components))
            check_int(self.n_components, "n_components", name, minimum=1)
        check_choice(self.landmarks, "landmarks", name, _LANDMARKS)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        metric = self.metric.estimator if isinstance(self.metric, FrozenEstimator) else self.metric
        if metric is not None and not isinstance(metric, LearnedMetric):
            raise TypeError(message(name, "metric", "None, a LearnedMetric, or a FrozenEstimator of one", self.metric))
        if isinstance(self.metric, FrozenEstimator):
            check_is_fitted(metric)

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        self._check_parameters()
        if not isinstance(self.metric_, LearnedMetric) or not isinstance(self.map_, NystroemFeatures):
            raise ValueError("there must be a LearnedMetric and NystroemFeatures")
        sizes = {self.n_features_in_, self.metric_.n_features_in_, self.map_.n_features_in_}
        if len(sizes) > 1 or self._n_features_out != self.map_._n_features_out:
            raise ValueError("the metric and the map must be of the same columns")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not isinstance(self.metric, FrozenEstimator)
        tags.input_tags.sparse = True
        return tags


_SAMPLE = 20_000  # rows of a Dask collection from which the metric is learned and landmarks are taken
