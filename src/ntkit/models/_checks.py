"""Checks of targets, weights and penalties; arrays from one library to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._validation import message


def check_alphas(alphas: Any, owner: str, name: str = "alphas") -> None:
    """Raise unless `alphas` is None (but for `alpha`), a number ≥ 0 or a non-empty array of such."""
    rule = "a finite number ≥ 0, or a non-empty array of such numbers"
    if name == "alphas":
        if alphas is None:
            return
        rule = f"None, {rule}"
    try:
        if alphas is None or np.asarray(alphas).dtype.kind in "USb":
            raise TypeError(message(owner, name, rule, alphas))
        values = np.asarray(alphas, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message(owner, name, rule, alphas)) from error
    if values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(message(owner, name, rule, alphas))


def check_targets(y: Any, owner: str) -> np.ndarray:
    """Targets as a float64 array with one or two axes."""
    y = to_numpy(y)
    y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=owner, copy=True)
    if y.ndim > 2 or y.ndim == 0:
        raise ValueError(message(owner, "y", "of shape (n_samples,) or (n_samples, n_targets)", y))
    return y


def check_labels(y: Any, owner: str) -> np.ndarray:
    """Class labels as an array with one axis."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    y = to_numpy(y)
    y = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    y = check_array(y, ensure_2d=False, dtype=None, input_name="y", estimator=owner)
    y = column_or_1d(y, warn=True)
    labels = list(dict.fromkeys(y.tolist()))
    try:
        sorted(labels)
    except TypeError as error:  # they have no order
        raise TypeError(message(owner, "y", "all text or all numbers", labels)) from error
    distinct = np.array(labels, dtype=y.dtype)
    for start in range(0, len(distinct), 20):  # of more it may say that there are too many for the rows of a block
        check_classification_targets(distinct[start : start + 20])
    return y


def check_weight(weight: Any, n_rows: int, owner: str) -> np.ndarray:
    """Sample weights as a float64 array, ones if None."""
    if weight is None:
        return np.ones(n_rows)
    rule = f"an array of {n_rows} finite numbers ≥ 0"
    try:
        weight = np.array(to_numpy(weight), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message(owner, "sample_weight", rule, weight)) from error
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.shape != (n_rows,) or not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(message(owner, "sample_weight", rule, weight))
    return weight


def like_rows(values: Array, X: Any) -> Array:
    """Results in the library and the floating dtype of the rows."""
    if _array.is_torch(X):
        values = to_library(values, X)
        return values.to(X.dtype) if X.dtype.is_floating_point else values
    return to_numpy(values).astype(result_dtype(X), copy=False)


def result_dtype(X: Any) -> Any:
    """NumPy dtype of results for rows of an array or a data frame: float32 if all of it is, else float64."""
    dtypes = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", [None]))
    return np.float32 if all(dtype == np.float32 for dtype in dtypes) else np.float64


def to_library(x: Array, like: Array) -> Array:
    """`x` in the library and on the device of `like`."""
    if _array.is_torch(like):
        import torch

        return torch.as_tensor(x, device=like.device)
    return to_numpy(x)


def winners(scores: Array, classes: np.ndarray, X: Any) -> Array:
    """Classes with the largest scores; a tensor where X is one and the classes are numbers."""
    best = _array.namespace(scores).argmax(scores, axis=1)
    if _array.is_torch(X) and classes.dtype.kind in "biuf":
        return to_library(classes, X)[to_library(best, X)]
    return classes[to_numpy(best)]
