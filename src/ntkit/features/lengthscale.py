"""Length scales of Gaussian kernels: validation, and a default computed from the variance of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._batching import row_batches
from ntkit._validation import check_real, message


def check_lengthscale(lengthscale: Any, owner: str) -> float | None:
    """Return a valid length scale as a float, or None for "scale"."""
    rule = "a finite real number > 0 or 'scale'"
    if isinstance(lengthscale, str):
        if lengthscale != "scale":
            raise ValueError(message(owner, "lengthscale", rule, lengthscale))
        return None
    try:
        return check_real(lengthscale, "lengthscale", owner, minimum=0, strict=True)
    except (TypeError, ValueError) as error:
        raise type(error)(message(owner, "lengthscale", rule, lengthscale)) from None


def default_lengthscale(X: Any, weight: np.ndarray | None = None) -> float:
    """Return √(d·Var(X)/2), or √½ if all entries are equal up to rounding; `weight` holds the weights of the rows."""
    deviation = _deviation(X, np.ones(X.shape[0]) if weight is None else weight)
    return deviation * (X.shape[1] / 2) ** 0.5 or 0.5**0.5


def _deviation(X: Any, weight: np.ndarray) -> float:
    """Compute the standard deviation of all entries in float64.

    Entries are divided by the largest entry first, so that their squares cannot overflow.
    """
    size = float(weight.sum()) * X.shape[1]
    if _array.is_sparse(X):
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        weight = np.repeat(weight, np.diff(X.indptr))
        X = X.data[:, None]
        if not X.size:
            return 0.0
    elif _array.is_torch(X):
        X = X.detach()
    top = _array.largest(X)
    if top == 0:
        return 0.0
    batches = list(row_batches(X.shape[0], 32 * X.shape[1], like=X))
    mean = sum(_total(_array.widen(X[rows]) / top, weight[rows]) for rows in batches) / size
    squares = sum(_total((_array.widen(X[rows]) / top - mean) ** 2, weight[rows]) for rows in batches)
    squares += (size - float(weight.sum()) * X.shape[1]) * mean**2  # entries that are not stored
    deviation = (squares / size) ** 0.5
    return top * deviation if deviation > 1e-15 else 0.0


def _total(X: Any, weight: np.ndarray) -> float:
    """Sum all entries, each row multiplied by its weight."""
    sums = _array.namespace(X).sum(X, axis=1)
    return float(weight @ (sums.cpu().numpy() if _array.is_torch(sums) else sums))
