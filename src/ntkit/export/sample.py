"""Generate rows similar to the training rows of an estimator, from what the estimator stores."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array, _expression
from ntkit._random import generator, seed_sequence
from ntkit.graphs import Graph

N_ROWS = 256  # rows on which an exported graph is compared with its model


def sample_rows(estimator: Any, graph: Graph) -> np.ndarray:
    """Generate rows or images, in float64.

    Landmarks or training rows that the estimator keeps are mixed in pairs. Without them, rows are normal, with the mean
    and scale of the first step.
    """
    rng = generator(seed_sequence(0, owner="to_onnx"), "rows")
    shape = graph.source.shape[1:]
    size = int(np.prod(shape))
    known = _known_rows(estimator)
    if known is not None and known.size and known[0].size == size:
        chosen = known.reshape(len(known), -1)[rng.integers(len(known), size=(2, N_ROWS))]
        share = rng.uniform(0, 1, (N_ROWS, 1)) * (rng.uniform(0, 1, (N_ROWS, 1)) < 0.75)
        return ((1 - share) * chosen[0] + share * chosen[1]).reshape(N_ROWS, *shape)
    rows = rng.standard_normal((N_ROWS, size))
    first = _first(estimator)
    scale, mean = getattr(first, "scale_", None), getattr(first, "mean_", None)
    if size in [np.size(part) for part in (scale, mean) if part is not None]:
        rows = rows * (1.0 if scale is None else np.ravel(scale)) + (0.0 if mean is None else np.ravel(mean))
    elif hasattr(first, "lengthscale_"):
        rows = rows * (first.lengthscale_ / (size / 2) ** 0.5)
    return rows.reshape(N_ROWS, *shape)


def _first(estimator: Any) -> Any:
    """Return the first step that receives the rows."""
    first = _expression.steps(estimator)[0]
    for name in ("best_estimator_", "features_", "metric_"):
        inner = getattr(first, name, None)
        if inner is not None and hasattr(inner, "get_params"):
            return _first(inner)
    models = getattr(first, "estimators_", None)
    return _first(models[0]) if models else first


def _known_rows(estimator: Any) -> np.ndarray | None:
    """Return the training rows or landmarks that a kernel or map keeps, or None."""
    steps = _expression.steps(estimator)
    first = steps[0]
    for name in ("best_estimator_", "features_"):
        inner = getattr(first, name, None)
        if inner is not None and hasattr(inner, "get_params"):
            return _known_rows(inner)
    if hasattr(first, "estimators_"):
        return _known_rows(first.estimators_[0])
    if hasattr(first, "metric_") and hasattr(first, "map_"):
        landmarks, metric = _dense(first.map_.landmarks_), first.metric_
        M = np.diag(metric.metric_) if metric.metric_.ndim == 1 else metric.metric_
        return landmarks @ np.linalg.pinv(M) + metric.center_
    rows = getattr(first, "landmarks_", getattr(first, "X_fit_", None))
    if rows is None and type(first).__name__ == "ArcsinhScaler" and len(steps) > 1:
        inner = _known_rows(steps[1])
        return None if inner is None else np.asarray(first.inverse_transform(inner))
    return None if rows is None else _dense(rows)


def _dense(rows: Any) -> np.ndarray:
    rows = rows.toarray() if _array.is_sparse(rows) else _array.to_numpy(rows)
    return np.asarray(rows, dtype=np.float64)
