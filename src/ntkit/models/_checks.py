"""Checks of penalties and weights; conversion of arrays between libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._validation import check_data, message, real_array


def check_alphas(alphas: Any, owner: str) -> None:
    """Raise unless `alphas` is None, a number ≥ 0 or a non-empty array of numbers ≥ 0."""
    rule = "None, a finite number ≥ 0, or a non-empty array of such numbers"
    if alphas is None:
        return
    try:
        if np.asarray(alphas).dtype.kind in "USbmM":
            raise TypeError(message(owner, "alphas", rule, alphas))
        values = np.asarray(alphas, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message(owner, "alphas", rule, alphas)) from error
    if values.size == 0 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(message(owner, "alphas", rule, alphas))


def check_gradient_rows(model: Any, X: Any) -> None:
    """Raise unless a tensor that requires gradients has the number of columns of the fit, and finite values."""
    name = type(model).__name__
    rows = check_data(X, "X", name, ndims=(2, 4))
    if int(np.prod(rows.shape[1:])) != model.n_features_in_:
        found = int(np.prod(rows.shape[1:]))
        raise ValueError(f"X has {found} features, but {name} is expecting {model.n_features_in_} features as input.")


def check_weight(weight: Any, n_rows: int, owner: str) -> np.ndarray:
    """Return the sample weights as a float64 array; ones for None."""
    if weight is None:
        return np.ones(n_rows)
    rule = f"an array of {n_rows} finite numbers ≥ 0"
    weight = np.array(to_numpy(real_array(weight, "sample_weight", owner)), dtype=np.float64)
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.shape != (n_rows,) or not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(message(owner, "sample_weight", rule, weight))
    return weight


def like_rows(values: Array, X: Any) -> Array:
    """Convert results to the library and the floating dtype of the rows."""
    if _array.is_torch(X):
        values = to_library(values, X)
        return values.to(X.dtype) if X.dtype.is_floating_point else values
    return to_numpy(values).astype(result_dtype(X), copy=False)


def result_dtype(X: Any) -> Any:
    """Return the NumPy dtype of results for an array or a data frame: float32 if all its columns are, else float64."""
    dtypes = [X.dtype] if hasattr(X, "dtype") else list(getattr(X, "dtypes", [None]))
    return np.float32 if all(dtype == np.float32 for dtype in dtypes) else np.float64


def to_library(x: Array, like: Array) -> Array:
    """Convert `x` to the library and the device of `like`."""
    if _array.is_torch(like):
        import torch

        return torch.as_tensor(x, device=like.device)
    return to_numpy(x)


def n_units(weight: np.ndarray) -> float:
    """Return Σ max(w, 1) over rows of positive weight w: the number of observations. Σw/n_units ≤ 1."""
    return float(np.maximum(weight, 1.0)[weight > 0].sum())
