"""Fitted estimators as expressions of array operations, which torch can differentiate and graphs can record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array


class NotExpressibleError(TypeError):
    """Raised for an estimator, or a step of a pipeline, that cannot be written in array operations."""


def features(estimator: Any, X: Array) -> Array:
    """Apply ``transform`` of a fitted transformer or pipeline, without checking the rows."""
    for step in steps(estimator):
        X = _step(step, X)
    return X


def weighted(estimator: Any, X: Array, weights: np.ndarray, tolerance: float) -> Array:
    """Compute features times weights in float64, from kernel values alone if the last step supports it.

    `tolerance` is the acceptable error.
    """
    *others, last = steps(estimator)
    for step in others:
        X = _step(step, X)
    if hasattr(last, "weighted_expression"):
        return last.weighted_expression(X, weights, tolerance)
    Z = _array.widen(_step(last, X))
    return Z @ _array.constant(weights, Z)


def outputs(estimator: Any, X: Array) -> dict[str, Array]:
    """Compute all outputs of a fitted transformer, model or pipeline.

    The keys are "features" for a transformer, "prediction" for a regressor, and "index" (into ``classes_``) and
    "probabilities" for a classifier.
    """
    *others, last = steps(estimator)
    for step in others:
        X = _step(step, X)
    if hasattr(last, "expressions"):
        return last.expressions(X)
    if hasattr(last, "predict") and not hasattr(last, "transform"):
        return _linear_model(last, X)
    return {"features": _step(last, X)}


def final(estimator: Any) -> Any:
    """Return the last step of a pipeline."""
    return steps(estimator)[-1]


def steps(estimator: Any) -> list[Any]:
    """Return the steps of a pipeline, with nested pipelines flattened. A single estimator is one step."""
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline

    if isinstance(estimator, FrozenEstimator):
        return steps(estimator.estimator)
    if not isinstance(estimator, Pipeline):
        return [estimator]
    found = [step for _, part in estimator.steps if part not in (None, "passthrough") for step in steps(part)]
    return found or [None]


def _step(step: Any, X: Array) -> Array:
    if step is None:
        return X
    if hasattr(step, "expression"):
        return step.expression(X)
    for kind in type(step).__mro__:
        if kind.__module__.startswith("sklearn.") and kind.__name__ in _SKLEARN_STEPS:
            return _SKLEARN_STEPS[kind.__name__](step, X)
    known = ", ".join(sorted(_SKLEARN_STEPS))
    raise NotExpressibleError(
        f"The step {type(step).__name__} cannot be written in array operations. Supported are ntkit's own "
        f"transformers of numbers, and from scikit-learn {known}. Apply this step beforehand, or leave it out."
    )


def _affine(X: Array, center: Any, scale: Any) -> Array:
    X = X if center is None else X - _array.constant(np.asarray(center, dtype=np.float64), X)
    return X if scale is None else X * _array.constant(np.asarray(scale, dtype=np.float64), X)


def _standard_scaler(step: Any, X: Array) -> Array:
    center = step.mean_ if step.with_mean else None
    return _affine(X, center, 1 / step.scale_ if step.with_std else None)


def _robust_scaler(step: Any, X: Array) -> Array:
    center = step.center_ if step.with_centering else None
    return _affine(X, center, 1 / step.scale_ if step.with_scaling else None)


def _min_max_scaler(step: Any, X: Array) -> Array:
    Z = _affine(X, None, step.scale_)
    Z = Z + _array.constant(np.asarray(step.min_, dtype=np.float64), Z)
    return _array.namespace(Z).clip(Z, *map(float, step.feature_range)) if step.clip else Z


def _imputer(step: Any, X: Array) -> Array:
    missing = step.missing_values
    if not (isinstance(missing, float) and np.isnan(missing)) or step.add_indicator or step.statistics_.dtype == object:
        raise NotExpressibleError(
            "A SimpleImputer can be written in array operations only if it fills NaN with numbers and adds no "
            f"indicators. Got {step!r} instead."
        )
    xp: Any = _array.namespace(X)
    return xp.where(xp.isnan(X), _array.constant(np.asarray(step.statistics_, dtype=np.float64), X), X)


def _pca(step: Any, X: Array) -> Array:
    matrix = step.components_.T
    if step.whiten:
        matrix = matrix / np.sqrt(np.maximum(step.explained_variance_, np.finfo(np.float64).eps))
    return _affine(X, step.mean_, None) @ _array.constant(np.ascontiguousarray(matrix), X)


_SKLEARN_STEPS: dict[str, Callable[[Any, Array], Array]] = {
    "StandardScaler": _standard_scaler,
    "RobustScaler": _robust_scaler,
    "MinMaxScaler": _min_max_scaler,
    "MaxAbsScaler": lambda step, X: _affine(X, None, 1 / step.scale_),
    "SimpleImputer": _imputer,
    "PCA": _pca,
}


def _linear_model(model: Any, X: Array) -> dict[str, Array]:
    """Compute the predictions of a linear regression model of scikit-learn."""
    from sklearn.base import is_regressor

    if not is_regressor(model) or not hasattr(model, "coef_") or hasattr(model, "link"):
        raise NotExpressibleError(
            f"The model {type(model).__name__} cannot be written in array operations. Supported are ntkit's own "
            "models of features and of kernels, and scikit-learn's linear models for regression."
        )
    Z = _array.widen(X)
    coef = np.asarray(model.coef_, dtype=np.float64)
    values = Z @ _array.constant(np.atleast_2d(coef).T, Z)
    values = values + _array.constant(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64)), Z)
    return {"prediction": values[:, 0] if coef.ndim == 1 else values}
