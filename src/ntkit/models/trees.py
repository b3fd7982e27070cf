"""Gradient-boosted trees for averages with kernel models: fitted by scikit-learn, stored as plain arrays.

Trees are good at steps in single columns, kernels at smooth functions of several columns, and an average often has a
lower error than either. The trees of scikit-learn's HistGradientBoosting are copied to arrays, so that files can be
checked when they are loaded and predictions can be written in array operations for torch and ONNX.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import run_on_threads
from ntkit._compiled import compiled
from ntkit._random import RandomState, seed_sequence
from ntkit._state import COLUMNS, Declared, Field, Flag, Floats, Integers, Labels
from ntkit._validation import check_choice, check_int, message
from ntkit.models._checks import like_rows
from ntkit.models._features import check_columns, take_columns
from ntkit.models._targets import RealTargets, check_labels

FIRST_ROUNDS = 25  # after a single one, whose time tells whether there is time for these
_OVERHEAD = 4  # the first fit takes about as long as this number of rounds, since it also sorts values into bins
_SETTINGS = {"max_features": 0.5, "early_stopping": False}
_SIZES: dict[str, dict[str, Any]] = {
    "large": {"learning_rate": 0.1, "max_leaf_nodes": 127, "min_samples_leaf": 5},
    "small": {"learning_rate": 0.05, "max_leaf_nodes": 31, "min_samples_leaf": 20},
    "shallow": {"learning_rate": 0.2, "max_leaf_nodes": 16, "min_samples_leaf": 20},
}
_MAX_ROUNDS = {"large": 400, "small": 1600}
FAR_BEHIND = 10.0  # models are given up if their loss is this many times the loss of others
_ENOUGH_ROUNDS = 100  # trees after this many rounds
_MIN_FALL = 0.003  # rounds are doubled while the loss falls by this share
ROWS_PER_TASK = 1024
_ONE_THREAD_SIZE = 10**7  # rows × columns × models; up to this size, one thread takes seconds


class BoostedTrees(Declared, BaseEstimator):
    """Base class of :class:`TreesRegressor` and :class:`TreesClassifier`.

    Node i sends a row to node `left_[i]` if its entry in column `column_[i]` is at most `threshold_[i]`, else to node
    `right_[i]`. Leaves are their own children.

    Parameters
    ----------
    n_rounds : int
        Number of trees; of each target or class, if there are several targets or more than two classes.
    size : {"small", "large", "shallow"}
        Small trees have at most 31 leaves of 20 rows or more, and the learning rate 0.05; large trees at most 127
        leaves of 5 rows or more, and the learning rate 0.1; shallow trees, whose leaves serve as features, at most 16
        leaves of 20 rows or more, and the learning rate 0.2.
    random_state : None, int, RandomState or Generator
        Draws the columns that may split a node.

    Attributes
    ----------
    column_, threshold_, left_, right_, value_ : ndarray of shape (n_nodes,)
        Nodes of all trees, parents before children.
    root_ : ndarray of shape (n_trees,)
        First node of each tree.
    output_ : ndarray of shape (n_trees,)
        Target or class of each tree.
    baseline_ : ndarray of shape (n_outputs,)
        The values of the trees are added to these.
    """

    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "column_": Integers("n_nodes", minimum=0),
        "threshold_": Floats("n_nodes"),
        "left_": Integers("n_nodes", minimum=0),
        "right_": Integers("n_nodes", minimum=0),
        "value_": Floats("n_nodes"),
        "root_": Integers("n_trees", minimum=0),
        "output_": Integers("n_trees", minimum=0),
        "baseline_": Floats("n_outputs"),
    }

    def __init__(self, n_rounds: int = 200, *, size: str = "small", random_state: RandomState = None):
        self.n_rounds = n_rounds
        self.size = size
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the trees.

        Parameters
        ----------
        X : array or data frame of shape (n_samples, n_features)
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        check_int(self.n_rounds, "n_rounds", type(self).__name__, minimum=1)
        check_choice(self.size, "size", type(self).__name__, tuple(_SIZES))
        models = [model.set_params(max_iter=self.n_rounds) for model in self._begin(y)]
        _fit(models, numbers(X), self._columns(y), sample_weight)
        take_columns(self, X)
        self._copy(models)
        return self

    def choose(
        self,
        fitted: tuple[Any, Any, Any],
        held_out: Any,
        loss: Callable[[np.ndarray], float],
        seconds: float,
        *,
        other: float = 0.0,
    ) -> Choice:
        """Set `size` and `n_rounds` to the best ones for held-out rows.

        For large and small trees, 1, 25, 50, 100, … rounds are fitted while the loss falls and there is time. Large
        trees, which learn more per second, come first.

        Parameters
        ----------
        fitted : tuple
            Rows, targets and weights (or None) for the fit.
        held_out : array
            Further rows.
        loss : callable
            Returns the loss of predictions for these rows.
        seconds : float
            Rounds are not doubled if this would take longer.
        other : float
            Loss of other models. Rounds are not doubled beyond 100 while the loss exceeds ten times this loss.
        """
        end, (X, y, weight) = time.perf_counter() + seconds, fitted
        X, held_out, targets = numbers(X), numbers(held_out), self._columns(y)
        best, size = Choice(0, np.inf, np.empty(0), 0.0), self.size
        bound = FAR_BEHIND * other or np.inf
        for self.size in _MAX_ROUNDS:
            models = [model.set_params(warm_start=True) for model in self._begin(y)]
            found = self._choose_rounds(models, (X, targets, weight), held_out, loss, end, bound)
            if found.loss < best.loss:
                best, size = found, self.size
            if time.perf_counter() > end or best.loss > bound:
                break
        self.size, self.n_rounds = size, max(best.n_rounds, 1)
        return best

    def _choose_rounds(
        self, models: list[Any], fitted: tuple[Any, Any, Any], held_out: np.ndarray, loss: Any, end: float, bound: float
    ) -> Choice:
        began, n_rounds, best = time.perf_counter(), 1, Choice(0, np.inf, np.empty(0), 0.0)
        while True:
            _fit([model.set_params(max_iter=n_rounds) for model in models], *fitted)
            before, spent = best, time.perf_counter() - began
            for index, predictions in enumerate(self._staged(models, held_out), start=1):
                found = loss(predictions) if index > before.n_rounds else np.inf
                if found < best.loss:
                    best = Choice(index, found, predictions, spent)
            falls = best.loss < (1 - _MIN_FALL) * before.loss and best.n_rounds > n_rounds // 2
            now, more = time.perf_counter(), max(2 * n_rounds, FIRST_ROUNDS)
            seconds = (now - began) * (more - n_rounds) / max(n_rounds, _OVERHEAD)
            behind = n_rounds >= _ENOUGH_ROUNDS and best.loss > bound
            if not falls or behind or n_rounds >= _MAX_ROUNDS[self.size] or now + seconds > end:
                return best
            n_rounds = more

    def _copy(self, models: list[Any]) -> None:
        """Copy the nodes of scikit-learn's trees."""
        trees = [(output, tree) for i, model in enumerate(models) for output, tree in self._trees(i, model)]
        nodes, sizes = [tree.nodes for _, tree in trees], [len(tree.nodes) for _, tree in trees]
        self.root_ = np.cumsum([0, *sizes[:-1]])
        self.output_ = np.array([output for output, _ in trees])
        whole, start = np.concatenate(nodes), np.repeat(self.root_, sizes)
        leaf, own = whole["is_leaf"].astype(bool), np.arange(len(whole))
        self.column_ = np.where(leaf, 0, whole["feature_idx"]).astype(np.int64)
        self.threshold_ = np.where(leaf, 0.0, whole["num_threshold"])
        self.left_, self.right_ = (np.where(leaf, own, start + whole[side]) for side in ("left", "right"))
        self.value_ = np.where(leaf, whole["value"], 0.0)

    def _sums(self, X: Any) -> np.ndarray:
        """Return the sums of the trees, (n_samples, n_outputs)."""
        check_is_fitted(self)
        check_columns(self, X)
        rows = numbers(X)
        if not np.isfinite(rows).all():
            raise ValueError(message(type(self).__name__, "X", "free of NaN and infinity", X))
        out = np.tile(self.baseline_, (len(rows), 1))
        nodes = (self.column_, self.threshold_, self.left_, self.right_, self.value_, self.root_, self.output_)
        starts = range(0, len(rows), ROWS_PER_TASK)
        run_on_threads(
            lambda start: add_trees(rows[start : start + ROWS_PER_TASK], *nodes, out[start : start + ROWS_PER_TASK]),
            starts,
        )
        return out

    @property
    def n_leaves(self) -> int:
        """Number of leaves of all trees."""
        return int(np.count_nonzero(self.left_ == np.arange(len(self.left_))))

    def leaf_indices(self) -> np.ndarray:
        """Return the index of each leaf among all leaves, for each node; only the entries of leaves have a meaning."""
        return np.cumsum(self.left_ == np.arange(len(self.left_))) - 1

    def membership(self, X: Array) -> tuple[Array, list[np.ndarray]]:
        """Return which leaf of each tree the rows reach, as an expression of array operations, and the leaves' nodes.

        A row is in a leaf if it turns left at all nodes of the leaf's path where the path does, and nowhere else: then
        the sum of its left turns, negative where the path turns right, is the number of left turns of the path.

        Returns
        -------
        array of shape (n_trees, n_samples, n_leaves), and a list of arrays
            Trees with fewer leaves than others have leaves without rows at the end.
        """
        ends = [*self.root_[1:], len(self.left_)]
        tables = [self._paths(root, end) for root, end in zip(self.root_, ends, strict=True)]
        n_inner, n_leaves = max(len(t[0]) for t in tables), max(t[1].shape[1] for t in tables)
        inner = np.zeros((len(tables), n_inner), dtype=np.int64)
        signs = np.zeros((len(tables), n_inner, n_leaves))
        n_left = np.full((len(tables), 1, n_leaves), -1.0)  # no row is in a leaf that does not exist
        for i, (nodes, paths, leaves) in enumerate(tables):
            inner[i, : len(nodes)] = nodes
            signs[i, : len(nodes), : len(leaves)] = paths
            n_left[i, 0, : len(leaves)] = (paths > 0).sum(axis=0)
        xp: Any = _array.namespace(X)
        thresholds = self.threshold_[inner.ravel()]
        if np.dtype(str(X.dtype).removeprefix("torch.")) != np.float64:
            thresholds = _rounded_down(thresholds)
        columns = xp.take(X, xp.asarray(self.column_[inner.ravel()], device=_array.device(X)), axis=1)
        turns = xp.astype(columns <= _array.constant(thresholds, X), xp.float32)  # small integers: exact
        turns = xp.permute_dims(xp.reshape(turns, (X.shape[0], len(tables), n_inner)), (1, 0, 2))
        found = xp.matmul(turns, _array.constant(signs, turns)) == _array.constant(n_left, turns)
        return found, [leaves for _, _, leaves in tables]

    def _sum_expression(self, X: Array) -> Array:
        """Return the sums of the trees as an expression of array operations."""
        xp: Any = _array.namespace(X)
        found, leaves = self.membership(X)
        values = np.zeros((len(leaves), max(len(each) for each in leaves), 1))
        for i, each in enumerate(leaves):
            values[i, : len(each), 0] = self.value_[each]
        wide = _array.widen(X)
        by_tree = xp.matmul(xp.astype(found, wide.dtype), _array.constant(values, wide))[:, :, 0]
        outputs = np.eye(len(self.baseline_))[self.output_]
        return xp.permute_dims(by_tree, (1, 0)) @ _array.constant(outputs, wide) + _array.constant(self.baseline_, wide)

    def _paths(self, root: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the inner nodes of a tree, the signs of their turns on the paths to its leaves, and the leaves."""
        nodes = np.arange(root, end)
        is_leaf = self.left_[nodes] == nodes
        inner, leaves = nodes[~is_leaf], nodes[is_leaf]
        place = {int(node): i for i, node in enumerate(inner)}
        paths = np.zeros((end - root, len(inner)))
        for node in inner:  # parents come before children
            for child, sign in ((self.left_[node], 1.0), (self.right_[node], -1.0)):
                paths[child - root] = paths[node - root]
                paths[child - root, place[int(node)]] = sign
        return inner, paths[is_leaf].T, leaves

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        n, own = len(self.left_), np.arange(len(self.left_))
        if not len(self.root_) or self.root_[0] != 0 or (np.diff(self.root_) <= 0).any() or self.root_[-1] >= n:
            raise ValueError("root_ must start with 0, increase, and consist of indices of nodes")
        end = np.repeat([*self.root_[1:], n], np.diff([*self.root_, n]))
        leaf = (self.left_ == own) & (self.right_ == own)
        for children in (self.left_, self.right_):
            if not (leaf | ((children > own) & (children < end))).all():
                raise ValueError("the children of a node must be later nodes of the same tree")
        inner = np.concatenate([self.left_[~leaf], self.right_[~leaf]])
        if len(np.unique(inner)) < len(inner) or len(inner) + len(self.root_) != n:
            raise ValueError("every node but a root must be the child of one node")
        if (self.column_ >= self.n_features_in_).any():
            raise ValueError(f"column_ must consist of indices of the {self.n_features_in_} columns")
        if (self.output_ >= len(self.baseline_)).any():
            raise ValueError(f"output_ must consist of indices of the {len(self.baseline_)} outputs")

    def _settings(self) -> dict[str, Any]:
        seed = seed_sequence(self.random_state, owner=type(self).__name__)
        return {**_SETTINGS, **_SIZES[self.size], "random_state": int(seed.generate_state(1)[0])}

    @abstractmethod
    def _begin(self, y: Any) -> list[Any]:
        """Return the unfitted models of scikit-learn."""

    @abstractmethod
    def _columns(self, y: Any) -> list[np.ndarray]:
        """Return the targets of each model."""

    @abstractmethod
    def _trees(self, index: int, model: Any) -> Iterator[tuple[int, Any]]:
        """Yield the output and the nodes of the trees of a model."""

    @abstractmethod
    def _staged(self, models: list[Any], X: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the predictions (n_samples, n_outputs) after each round."""


class Choice(NamedTuple):
    """The best number of rounds, its loss on held-out rows, the predictions for them, and the seconds of the fit."""

    n_rounds: int
    loss: float
    predictions: np.ndarray
    seconds: float


class TreesRegressor(MultiOutputMixin, RegressorMixin, BoostedTrees):
    """Regression with gradient-boosted trees; part of an average of :class:`FeatureRidgeSearch`.

    Parameters
    ----------
    n_rounds, size, random_state
        See :class:`BoostedTrees`.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.models.trees import TreesRegressor
    >>> X = np.random.default_rng(0).standard_normal((300, 2))
    >>> bool(TreesRegressor(random_state=0).fit(X[:200], X[:200, 0] > 0).score(X[200:], X[200:, 0] > 0) > 0.9)
    True
    """

    _state: ClassVar[dict[str, Field]] = {"_single": Flag()}

    def _begin(self, y: Any) -> list[Any]:
        return [HistGradientBoostingRegressor(**self._settings()) for _ in self._columns(y)]

    def _columns(self, y: Any) -> list[np.ndarray]:
        targets = RealTargets()
        Y = targets.encode(y, type(self).__name__)
        self._single = targets.single
        return list(Y.T)

    def _copy(self, models: list[Any]) -> None:
        self.baseline_ = np.array([float(model._baseline_prediction.squeeze()) for model in models])
        super()._copy(models)

    def _trees(self, index: int, model: Any) -> Iterator[tuple[int, Any]]:
        return ((index, tree) for (tree,) in model._predictors)

    def _staged(self, models: list[Any], X: np.ndarray) -> Iterator[np.ndarray]:
        return (np.column_stack(each) for each in zip(*(model.staged_predict(X) for model in models), strict=True))

    def expressions(self, X: Array) -> dict[str, Array]:
        """Return the prediction as an expression of array operations; see :class:`FeatureRidge`."""
        sums = self._sum_expression(X)
        return {"prediction": sums[:, 0] if self._single else sums}

    def predict(self, X: Any) -> Any:
        """Predict the targets of rows; see :meth:`FeatureRidge.predict`."""
        if _array.is_dask(X):
            return _by_blocks(self.predict, X, None if self._single else len(self.baseline_))
        sums = self._sums(X)
        return like_rows(sums[:, 0] if self._single else sums, X)


class TreesClassifier(ClassifierMixin, BoostedTrees):
    """Classification with gradient-boosted trees; part of an average of :class:`FeatureRidgeSearchClassifier`.

    Parameters
    ----------
    n_rounds, size, random_state
        See :class:`BoostedTrees`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from ntkit.models.trees import TreesClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(TreesClassifier(50, random_state=0).fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.9)
    True
    """

    _state: ClassVar[dict[str, Field]] = {"classes_": Labels("n_outputs")}

    def _begin(self, y: Any) -> list[Any]:  # noqa: ARG002
        return [HistGradientBoostingClassifier(**self._settings())]

    def _columns(self, y: Any) -> list[np.ndarray]:
        return [check_labels(y, type(self).__name__)]

    def _copy(self, models: list[Any]) -> None:
        self.classes_ = models[0].classes_
        self.baseline_ = models[0]._baseline_prediction.ravel().astype(np.float64)
        if len(self.baseline_) == 1:  # of the second of two classes
            self.baseline_ = np.array([0.0, self.baseline_[0]])
        super()._copy(models)

    def _trees(self, index: int, model: Any) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        first = int(len(model.classes_) == 2)
        return ((output, tree) for trees in model._predictors for output, tree in enumerate(trees, start=first))

    def _staged(self, models: list[Any], X: np.ndarray) -> Iterator[np.ndarray]:
        return models[0].staged_predict_proba(X)

    def expressions(self, X: Array) -> dict[str, Array]:
        """Return class and probabilities as expressions of array operations; see :class:`FeatureRidgeClassifier`."""
        sums = self._sum_expression(X)
        xp: Any = _array.namespace(sums)
        powers = xp.exp(sums - xp.max(sums, axis=1, keepdims=True))
        p = powers / xp.sum(powers, axis=1, keepdims=True)
        return {"index": xp.argmax(p, axis=1), "probabilities": p}

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes, the softmax of the sums of the trees."""
        if _array.is_dask(X):
            return _by_blocks(self.predict_proba, X, len(self.classes_))
        sums = self._sums(X)
        powers = np.exp(sums - sums.max(axis=1, keepdims=True))
        return like_rows(powers / powers.sum(axis=1, keepdims=True), X)

    def predict(self, X: Any) -> np.ndarray:
        """Predict the classes of rows in memory."""
        return self.classes_[self._sums(X).argmax(axis=1)]


@compiled
def add_trees(
    X: Any, column: Any, threshold: Any, left: Any, right: Any, value: Any, root: Any, output: Any, out: Any
) -> None:
    """Add the values of all trees for some rows to `out`. Indices must be valid."""
    for tree in range(len(root)):
        k = output[tree]
        for i in range(len(X)):
            node = root[tree]
            while left[node] != node:
                node = left[node] if X[i, column[node]] <= threshold[node] else right[node]
            out[i, k] += value[node]


def _fit(models: list[Any], X: np.ndarray, targets: list[np.ndarray], weight: Any) -> None:
    """Fit scikit-learn's models; small ones on one thread.

    OpenMP threads wait for each other by spinning: if other programs use the cores, one thread is many times faster.
    """
    with threadpool_limits(1 if X.size * len(models) <= _ONE_THREAD_SIZE else None, user_api="openmp"):
        for model, target in zip(models, targets, strict=True):
            model.fit(X, target, weight)


def numbers(X: Any) -> np.ndarray:
    """Return rows as a matrix of float64."""
    X = _array.to_numpy(X)
    if _array.is_sparse(X):
        X = X.toarray()
    return np.ascontiguousarray(X.to_numpy() if hasattr(X, "to_numpy") else X, dtype=np.float64)


def _rounded_down(x: np.ndarray) -> np.ndarray:
    """Return the largest numbers of float32 that are at most x: the same rows of float32 are at most as large."""
    near = x.astype(np.float32)
    return np.where(near > x, np.nextafter(near, np.float32(-np.inf)), near)


def _by_blocks(function: Any, X: Any, n_columns: int | None) -> Any:
    from ntkit.distributed import map_rows

    return map_rows(function, X, n_columns=n_columns)
