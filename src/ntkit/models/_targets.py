"""Encoding of targets as columns of numbers, and back: real targets, and classes with calibrated probabilities."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._state import Declared, Field, Flag, Integer, Labels, Optional, Part
from ntkit._validation import check_data, message, refuse_complex, refuse_lossy
from ntkit.models._calibrate import Calibration, fit_calibration, left_out_log_loss, log_probabilities, logits
from ntkit.models._checks import like_rows, to_library
from ntkit.models._path import Solution


class Targets(Declared):
    """The encoding of a model's targets. `owner` is the name of the model, for messages."""

    n_targets: int
    resolution: ClassVar[float] = 0.0
    """Losses that differ by less than this count as equal."""

    @abstractmethod
    def encode(self, y: Any, owner: str) -> np.ndarray:
        """Return targets of some rows as a float64 matrix (n, n_targets). Later calls use the same encoding."""

    @property
    def shift(self) -> float:
        """Constant that is subtracted from all columns before a model is fitted."""
        return 0.0

    @abstractmethod
    def loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        """Return the mean loss of predictions for held-out rows; the choice of α minimizes it."""

    def ready(self, owner: str) -> None:
        """Raise unless the targets so far suffice to solve for a model."""

    def settle(self, solution: Solution) -> Solution:
        """Return a new solution with its columns in their final order; classes calibrate their probabilities."""
        return solution

    @abstractmethod
    def union(self, others: list[Self]) -> tuple[Self, list[list[int]]]:
        """Return the union of several encodings, and the indices of each one's columns in it. Some may be empty."""


class RealTargets(Targets):
    """Targets of regression: one column, or several."""

    def __init__(self) -> None:
        self.n_targets = 0
        self.single = True

    _state: ClassVar[dict[str, Field]] = {"n_targets": Integer(minimum=1), "single": Flag()}

    def encode(self, y: Any, owner: str) -> np.ndarray:
        """See :meth:`Targets.encode`."""
        refuse_complex(y, "y", owner)
        if _array.is_numpy(y) and y.dtype.kind == "O" and all(isinstance(value, str) for value in y.flat):
            with suppress(ValueError):  # a column of a file that has text further down is read as text
                y = y.astype(np.float64)
        y = np.array(to_numpy(check_data(y, "y", owner, ndims=(1, 2))), dtype=np.float64)
        Y = y[:, None] if y.ndim == 1 else y
        if not self.n_targets:
            self.single, self.n_targets = y.ndim == 1, Y.shape[1]
        elif Y.shape[1] != self.n_targets:
            raise ValueError(
                f"y of {owner} must have the same number of columns in every block. Got {Y.shape[1]} columns after "
                f"blocks with {self.n_targets}."
            )
        return Y

    def loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        """Return the mean squared error, summed over targets."""
        with np.errstate(over="ignore"):
            return float(weight @ ((targets - predictions) ** 2).sum(axis=1)) / (float(weight.sum()) or 1.0)

    def decode(self, values: Array, X: Any) -> Array:
        """Return predictions in the shape of y (1-D if y was 1-D), in the library and precision of X."""
        return like_rows(values[:, 0] if self.single else values, X)

    def union(self, others: list[Self]) -> tuple[Self, list[list[int]]]:
        """See :meth:`Targets.union`."""
        known = next((other for other in others if other.n_targets), self)
        return copy(known), [list(range(other.n_targets)) for other in others]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if self.single and self.n_targets != 1:
            raise ValueError(f"a single target must have one column, not {self.n_targets}")


class ClassTargets(Targets):
    """Targets of classification: one column per class, 1 for its rows and 0 for others, minus 1/n_classes.

    Until a solution is settled, columns are in the order in which the classes were met, since more may come.
    """

    # If the classes are separable, log losses are 0 up to the tolerance of the temperature, about 1e-8. Without a
    # resolution, rounding errors would choose α.
    resolution = 1e-6

    def __init__(self) -> None:
        self.labels = np.empty(0)
        self.calibration: Calibration | None = None

    _state: ClassVar[dict[str, Field]] = {"labels": Labels(), "calibration": Optional(Part(Calibration))}

    @property
    def n_targets(self) -> int:  # type: ignore[override]
        """Number of classes met so far."""
        return len(self.labels)

    @property
    def shift(self) -> float:
        """See :attr:`Targets.shift`."""
        return 1.0 / len(self.labels)

    @property
    def classes(self) -> np.ndarray:
        """The classes, sorted."""
        return np.sort(self.labels)

    def encode(self, y: Any, owner: str) -> np.ndarray:
        """See :meth:`Targets.encode`."""
        indices = self.meet(check_labels(y, owner), owner)
        one_hot = np.zeros((len(indices), len(self.labels)))
        one_hot[np.arange(len(indices)), indices] = 1.0
        return one_hot

    def meet(self, y: np.ndarray, owner: str) -> np.ndarray:
        """Return the indices of labels, in the order in which they were met; new labels are appended."""
        distinct, inverse = np.unique(y, return_inverse=True)
        known = {label: index for index, label in enumerate(self.labels.tolist())}
        new = [label for label in distinct.tolist() if label not in known]
        if len({isinstance(label, str | bytes) for label in (*known, *new)}) > 1:
            rule = f"labels like those before, such as {next(iter(known))!r}" if known else "all text or all numbers"
            raise TypeError(message(owner, "y", rule, new[0]))
        if new:
            dtype = np.result_type(self.labels.dtype, distinct.dtype) if known else distinct.dtype
            self.labels = np.array([*known, *new], dtype=dtype)
            known |= {label: index for index, label in enumerate(self.labels.tolist())}
        return np.array([known[label] for label in distinct.tolist()])[inverse.reshape(-1)]

    def ready(self, owner: str) -> None:
        """See :meth:`Targets.ready`."""
        if len(self.labels) < 2:
            raise ValueError(
                f"{owner} needs rows of at least two classes. Got only one class: {self.labels.tolist()[0]!r}."
            )

    def loss(self, targets: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
        """Return the log loss of calibrated probabilities; it is smoother than the misclassification rate."""
        return left_out_log_loss(targets, predictions, weight)

    def settle(self, solution: Solution) -> Solution:
        """Put the columns in the order of the sorted classes; calibrate probabilities on the held-out rows."""
        order = np.argsort(self.labels, kind="stable")
        index = to_library(order, solution.coef)
        noise = None if solution.noise is None else solution.noise[index]
        coef, intercept = solution.coef[:, index], solution.intercept[index]
        solution = replace(solution, coef=coef, intercept=intercept, noise=noise)
        self.calibration = None
        if solution.left_out is not None:
            targets, predictions, weight = solution.left_out
            solution.left_out = targets[:, order], predictions[:, order], weight
            labels = targets[:, order].argmax(axis=1)
            self.calibration = fit_calibration(predictions[:, order], labels, weight, len(order))
        return solution

    def calibrated(self, scores: Array) -> Array:
        """Return calibrated log-odds of the classes, or the scores themselves if no rows were held out."""
        if self.calibration is None:
            return scores
        return logits(scores if _array.is_differentiated(scores) else to_numpy(scores), self.calibration)

    def decode(self, scores: Array, X: Any) -> Array:
        """Return the most probable classes; a tensor if X is a tensor and the classes are numbers."""
        best, classes = to_numpy(self.calibrated(scores)).argmax(axis=1), self.classes
        if _array.is_torch(X) and classes.dtype.kind in "biuf":
            return to_library(classes, X)[to_library(best, X)]
        return classes[best]

    def log_probabilities(self, scores: Array, X: Any, owner: str) -> Array:
        """Return the logarithms of the probabilities of the classes."""
        if self.calibration is None:
            raise ValueError(
                f"This {owner} has no probabilities: they are calibrated on held-out rows, and none were held out. "
                "(KernelRidgeClassifier with solver='sketch' never holds out rows.)"
            )
        scores = scores if _array.is_differentiated(scores) else to_numpy(scores)
        return like_rows(log_probabilities(scores, self.calibration), X)

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        k = len(self.labels)
        if len(set(self.labels.tolist())) < k:
            raise ValueError("all classes must be different")
        if self.calibration is not None and len(self.calibration.offsets) != k:
            raise ValueError(f"the calibration must have {k} classes")

    def union(self, others: list[Self]) -> tuple[Self, list[list[int]]]:
        """See :meth:`Targets.union`."""
        whole = copy(self)
        for other in others:
            if len(other.labels):
                whole.meet(other.labels, "FeatureRidgeClassifier")
        index = {label: i for i, label in enumerate(whole.labels.tolist())}
        return whole, [[index[label] for label in other.labels.tolist()] for other in others]


def check_labels(y: Any, owner: str) -> np.ndarray:
    """Return class labels as a 1-D array; raise if they are invalid."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    refuse_lossy(y, "y", owner)
    try:
        y = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(to_numpy(y))
    except (TypeError, ValueError) as error:
        raise ValueError(message(owner, "y", "an array of labels", y)) from error
    refuse_lossy(y, "y", owner)  # again: a data frame may hold dates
    if y.dtype.kind in "cV" or y.ndim not in (1, 2) or not y.size:
        remedy = "Complex data not supported." if y.dtype.kind == "c" else "" if y.size else "Found 0 sample(s)."
        raise ValueError(message(owner, "y", "a non-empty array of labels of shape (n_samples,)", y, remedy))
    y = column_or_1d(y, warn=True)
    labels: Any = y
    try:
        labels = list(dict.fromkeys(y.tolist()))
        missing = [label for label in labels if label is None or (isinstance(label, float) and not isfinite(label))]
        sorted(labels if not missing else [])
    except TypeError as error:  # labels cannot be sorted, or pd.NA is among them
        raise TypeError(message(owner, "y", "all text or all numbers, none missing", labels)) from error
    if missing:
        raise ValueError(message(owner, "y", "free of None, NaN and infinity", missing[0], "Drop these rows."))
    if y.dtype.kind == "O" and not isinstance(labels[0], str | bytes):
        plain = np.array(labels)
        y = y.astype(plain.dtype) if plain.dtype.kind in "biuf" else y
    distinct = np.array(labels, dtype=y.dtype)
    for start in range(0, len(distinct), 20):  # scikit-learn may warn that more are too many for the rows of a block
        check_classification_targets(distinct[start : start + 20])
    return y
