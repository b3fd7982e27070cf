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
from ntkit._state import COLUMNS, Declared, Estimator, Field, Integer, Optional
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.features import NystroemFeatures
from ntkit.models._checks import check_weight, to_library
from ntkit.models._metric import ADDITIVE_SCALE
from ntkit.models._metric_comparison import LEAF_SCALE
from ntkit.models.leaves import TreeLeaves
from ntkit.models.metric import LearnedMetric
from ntkit.preprocessing import PiecewiseLinearEncoder

_LANDMARKS = ("uniform", "leverage", "kmeans")
USUAL, LARGE, LARGEST = 2048, 4096, 6144
"""Numbers of landmarks for n_components="auto"."""
# `gain_` of a metric is the share of the error that remains if the number of landmarks is doubled.
_LARGE_GAIN = 0.93  # take LARGE below this share
_LARGEST_GAIN = 0.5  # take LARGEST; up to 2 · LARGE rows, nothing between: LARGE would take most of the time of a fit


def automatic_size(metric: LearnedMetric, n_rows: int) -> int:
    """Return the number of landmarks for n_components="auto"."""
    if metric.gain_ < _LARGEST_GAIN:
        return LARGEST
    return LARGE if metric.gain_ < _LARGE_GAIN and n_rows > 2 * LARGE else USUAL


class AdaptiveFeatures(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features of a kernel that adapts to the targets: :class:`LearnedMetric`, then :class:`NystroemFeatures`.

        Z(x)·Z(y) ≈ k(Mx, My),

    where the kernel k, its length scale and M are learned from rows and targets, and landmarks are chosen among the
    rows. If this lowers the error on held-out rows, features of single columns (:class:`PiecewiseLinearEncoder`) and
    indicators of the leaves of boosted trees are added. A linear model of all features is then the sum of a function of
    all columns, of functions of one column each, and of functions with steps in a few columns. These are the default
    features of :class:`FeatureRidge` for tables.

    Parameters
    ----------
    n_components : int or "auto"
        Number of landmarks, and of features of the kernel; at most the number of rows. "auto": 2048; 4096 if the
        fits of the metric predict that these lower the error by more than about 7 % (with more than 8192 rows); 6144 if
        they predict that it falls to less than half.
    metric : LearnedMetric, FrozenEstimator or None
        The metric to learn; None: ``LearnedMetric()``. A fitted metric in scikit-learn's ``FrozenEstimator`` is used
        without refitting.
    landmarks : {"uniform", "leverage", "kmeans"}
        As for :class:`NystroemFeatures`.
    additive : bool
        Whether to add features of single columns if the metric has found that they help. They come after the features
        of the kernel. There are at most 512, and `n_components` does not include them.
    trees : bool
        Whether to add features of the leaves of boosted trees if the metric has found that they help. They come last.
        There are at most 960, and `n_components` does not include them.
    batch_size : int or None
        Maximum number of rows per batch; None chooses it by the available memory.
    random_state : None, int, RandomState or Generator
        Draws the landmarks, and the rows for the metric if it has no seed of its own.

    Attributes
    ----------
    metric_ : LearnedMetric
    map_ : NystroemFeatures
        The features of the rows after the metric.
    additive_ : PiecewiseLinearEncoder or None
        Features of single columns, or None. They are multiplied by 0.7.
    leaves_ : TreeLeaves or None
        Features of the leaves of boosted trees, or None. They are multiplied by 0.35.
    feature_importances_ : ndarray of shape (n_features,)
        See :class:`LearnedMetric`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A row costs m kernel values and O(m²), for m landmarks. Scale the columns and compress their tails beforehand
    (:class:`ArcsinhScaler`): the metric weights columns, but cannot weight parts of a column.

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
        "additive_": Optional(Estimator(("transform",))),
        "leaves_": Optional(Estimator(("transform",))),
        "_n_features_out": Integer(1),
    }

    def __init__(
        self,
        *,
        n_components: int | str = "auto",
        metric: Any = None,
        landmarks: str = "uniform",
        additive: bool = True,
        trees: bool = True,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.metric = metric
        self.landmarks = landmarks
        self.additive = additive
        self.trees = trees
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the metric and choose landmarks.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Real targets or classes. Not needed if the metric is already fitted.
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
            dense = not _array.is_sparse(Z)
            self.additive_ = self.metric_.additive_ if self.additive and dense else None
            self.leaves_ = self.metric_.leaves_ if self.trees and dense else None
            extras = sum(encoder._n_features_out for encoder, _ in self._extras())
            self._n_features_out = self.map_._n_features_out + extras
        return self

    def _extras(self) -> list[tuple[Any, float]]:
        """Return the encoders of further features, and the factors of these features."""
        both = (self.additive_, ADDITIVE_SCALE), (self.leaves_, LEAF_SCALE)
        return [(encoder, factor) for encoder, factor in both if encoder is not None]

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
            size = automatic_size(metric, n_rows)
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
            An array of the same library and device as X; float32 if X is float32.
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.transform, X, n_columns=self._n_features_out)
        rows = check_rows(self, X, reset=False, sparse=True)
        Z = self.map_.transform(self.metric_.transform(X))
        extras = self._extras()
        if not extras:
            return Z
        rows = rows.toarray() if _array.is_sparse(rows) else rows
        parts = [factor * encoder.transform(rows) for encoder, factor in extras]
        return _array.namespace(Z).concat([Z, *parts], axis=1)

    def times(self, X: Any, weights: Array, tolerance: float = 0.0) -> Array:
        """Return Z(X) @ weights without computing the features; see :meth:`NystroemFeatures.times`."""
        rows, m = check_rows(self, X, reset=False, sparse=True), self.map_._n_features_out
        values = self.map_.times(self.metric_.transform(X), weights[:m], tolerance)
        rows = rows.toarray() if self._extras() and _array.is_sparse(rows) else rows
        for encoder, factor in self._extras():
            n = encoder._n_features_out
            if isinstance(encoder, TreeLeaves):
                part = encoder.times(rows, weights[m : m + n])
            else:
                xp: Any = _array.namespace(values)
                part = xp.matmul(
                    xp.astype(encoder.transform(rows), values.dtype), to_library(weights[m : m + n], values)
                )
            values, m = values + factor * part, m + n
        return values

    def expression(self, X: Array) -> Array:
        """Return the features as one expression of array operations, without checks.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        Z = self.map_.expression(self.metric_.expression(X))
        parts = [factor * encoder.expression(X) for encoder, factor in self._extras()]
        return _array.namespace(Z).concat([Z, *parts], axis=1) if parts else Z

    def weighted_expression(self, X: Array, weights: np.ndarray, tolerance: float = 0.0) -> Array:
        """Return features times weights as one expression; see :meth:`NystroemFeatures.weighted_expression`."""
        m = self.map_._n_features_out
        values = self.map_.weighted_expression(self.metric_.expression(X), weights[:m], tolerance)
        for encoder, factor in self._extras():
            n = encoder._n_features_out
            part = _array.widen(factor * encoder.expression(X))
            values, m = values + part @ _array.constant(weights[m : m + n], part), m + n
        return values

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of each column in the gradients of the learned function."""
        if "metric_" not in vars(self):
            raise AttributeError(f"This {type(self).__name__} has no feature_importances_ yet. Call fit first.")
        return self.metric_.feature_importances_

    @property
    def expected_alpha_(self) -> float:
        """The penalty with which the metric was best; :class:`FeatureRidge` starts its search there."""
        return float(self.metric_.alpha_)

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.n_components != "auto":
            if isinstance(self.n_components, str):
                raise ValueError(message(name, "n_components", "an int ≥ 1 or 'auto'", self.n_components))
            check_int(self.n_components, "n_components", name, minimum=1)
        check_choice(self.landmarks, "landmarks", name, _LANDMARKS)
        check_bool(self.additive, "additive", name)
        check_bool(self.trees, "trees", name)
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
        if not isinstance(self.additive_, PiecewiseLinearEncoder | None):
            raise ValueError("additive features must be a PiecewiseLinearEncoder")
        if not isinstance(self.leaves_, TreeLeaves | None):
            raise ValueError("features of leaves must be TreeLeaves")
        encoders = [encoder for encoder, _ in self._extras()]
        sizes = {each.n_features_in_ for each in (self, self.metric_, self.map_, *encoders)}
        n_features = self.map_._n_features_out + sum(each._n_features_out for each in encoders)
        if len(sizes) > 1 or self._n_features_out != n_features:
            raise ValueError("the metric, the map and the further features must have the same columns")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = not isinstance(self.metric, FrozenEstimator)
        tags.input_tags.sparse = True
        return tags


_SAMPLE = 20_000  # rows sampled from a Dask collection to learn the metric and choose landmarks
