"""Features of the leaves of boosted trees, for functions with steps in several columns."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import run_on_threads
from ntkit._compiled import compiled
from ntkit._estimator import AllOrNothing, as_floating, check_rows
from ntkit._random import RandomState, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Integer
from ntkit._validation import check_int
from ntkit.models._checks import to_library
from ntkit.models._targets import RealTargets
from ntkit.models.trees import ROWS_PER_TASK, TreesRegressor, numbers


class TreeLeaves(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Encode rows by the leaves that they reach in T boosted trees: one indicator for each leaf.

        φ_l(x) = T^{-1/2} · 1[x is in leaf l]

    Each row has T non-zero features, and norm 1. The trees have at most 16 leaves, so a linear function of these
    features is a sum of functions that have steps in a few columns each. Smooth kernels approximate such functions
    badly. A ridge penalty fits the values of all leaves together, as in [1]_; boosting only chooses the splits.

    The splits depend on the targets. Rows that chose the splits are fitted better than new ones, so fit the trees on a
    part of the rows, and the linear function on all.

    Parameters
    ----------
    n_trees : int
        Number of trees of all targets together; at least one for each target.
    random_state : None, int, RandomState or Generator
        Draws the columns that may split a node.

    Attributes
    ----------
    trees_ : TreesRegressor
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    References
    ----------
    .. [1] He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014, Section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import FeatureRidge
    >>> from ntkit.models.leaves import TreeLeaves
    >>> X = np.random.default_rng(0).standard_normal((900, 3))
    >>> y = 1.0 * (X[:, 0] > 0.3) * (X[:, 1] > -0.5)
    >>> leaves = TreeLeaves(random_state=0).fit(X[:300], y[:300])
    >>> model = FeatureRidge(leaves, random_state=0).fit(X[:600], y[:600])
    >>> bool(model.score(X[600:], y[600:]) > 0.97)
    True
    """

    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "trees_": Estimator(("predict",)),
        "_n_features_out": Integer(1),
    }

    def __init__(self, *, n_trees: int = 60, random_state: RandomState = None):
        self.n_trees = n_trees
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the trees.

        Parameters
        ----------
        X : array, data frame or torch tensor of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Real targets, or indicators of classes.
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            name = type(self).__name__
            check_int(self.n_trees, "n_trees", name, minimum=1)
            rows = numbers(check_rows(self, X, reset=True))
            Y = RealTargets().encode(y, name)
            seed = int(seed_sequence(self.random_state, owner=name).generate_state(1)[0])
            trees = TreesRegressor(max(self.n_trees // Y.shape[1], 1), size="shallow", random_state=seed)
            self.trees_ = trees.fit(rows, Y[:, 0] if Y.shape[1] == 1 else Y, sample_weight)
            self._n_features_out = self.trees_.n_leaves
        return self

    def transform(self, X: Any) -> Array:
        """Encode the rows of X.

        Parameters
        ----------
        X : array, data frame or torch tensor of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_leaves)
            The result has the library, device and precision of X.
        """
        check_is_fitted(self)
        rows = as_floating(check_rows(self, X, reset=False))
        if _array.wants_gradient([rows]):
            return self.expression(rows)
        dtype = np.float32 if str(rows.dtype).endswith("float32") else np.float64
        out = np.zeros((int(rows.shape[0]), self._n_features_out), dtype=dtype)
        self._by_tasks(put_leaves, numbers(rows), out, dtype(self._scale))
        return to_library(out, rows)

    def times(self, X: Any, weights: Array, tolerance: float = 0.0) -> Array:  # noqa: ARG002
        """Return the features times weights of shape (n_leaves, n_targets), in float64, without the features.

        The result is exact; `tolerance` is there because other maps have it.
        """
        check_is_fitted(self)
        rows = as_floating(check_rows(self, X, reset=False))
        values = self._scale * _array.to_numpy(weights).astype(np.float64)
        out = np.zeros((int(rows.shape[0]), values.shape[1]))
        self._by_tasks(add_leaves, numbers(rows), out, np.ascontiguousarray(values))
        return to_library(out, rows)

    def _by_tasks(self, function: Any, rows: np.ndarray, out: np.ndarray, value: Any) -> None:
        trees = self.trees_
        nodes = (trees.column_, trees.threshold_, trees.left_, trees.right_, trees.root_, trees.leaf_indices())

        def task(start: int) -> None:
            some = slice(start, start + ROWS_PER_TASK)
            function(rows[some], *nodes, value, out[some])

        run_on_threads(task, range(0, len(rows), ROWS_PER_TASK))

    def expression(self, X: Array) -> Array:
        """Encode X with array operations only, without checks.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        xp: Any = _array.namespace(X)
        found, leaves = self.trees_.membership(X)
        n_leaves = max(len(each) for each in leaves)
        flat = xp.reshape(xp.permute_dims(found, (1, 0, 2)), (X.shape[0], len(leaves) * n_leaves))
        exist = np.concatenate([i * n_leaves + np.arange(len(each)) for i, each in enumerate(leaves)])
        kept = xp.take(flat, xp.asarray(exist, device=_array.device(X)), axis=1)
        return xp.astype(kept, X.dtype) * self._scale

    @property
    def _scale(self) -> float:
        return len(self.trees_.root_) ** -0.5

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        check_int(self.n_trees, "n_trees", type(self).__name__, minimum=1)
        if not isinstance(self.trees_, TreesRegressor) or self.trees_.n_features_in_ != self.n_features_in_:
            raise ValueError(f"there must be a TreesRegressor of {self.n_features_in_} columns")
        if self._n_features_out != self.trees_.n_leaves:
            raise ValueError("there must be one feature for each leaf")


@compiled
def put_leaves(
    X: Any, column: Any, threshold: Any, left: Any, right: Any, root: Any, index: Any, value: Any, out: Any
) -> None:
    """Set the feature of each leaf that a row reaches to `value`. Indices must be valid."""
    for tree in range(len(root)):
        for i in range(len(X)):
            node = root[tree]
            while left[node] != node:
                node = left[node] if X[i, column[node]] <= threshold[node] else right[node]
            out[i, index[node]] = value


@compiled
def add_leaves(
    X: Any, column: Any, threshold: Any, left: Any, right: Any, root: Any, index: Any, value: Any, out: Any
) -> None:
    """Add the values of each leaf that a row reaches to `out`. Indices must be valid."""
    for tree in range(len(root)):
        for i in range(len(X)):
            node = root[tree]
            while left[node] != node:
                node = left[node] if X[i, column[node]] <= threshold[node] else right[node]
            for k in range(out.shape[1]):
                out[i, k] += value[index[node], k]
