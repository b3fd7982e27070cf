"""Graphs of fitted estimators."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from ntkit import _expression
from ntkit._expression import NotExpressibleError
from ntkit._validation import message
from ntkit.graphs.graph import Graph
from ntkit.graphs.tracer import TraceError, trace
from ntkit.networks import UnsupportedError


def estimator_graph(estimator: Any, owner: str) -> Graph:
    """The graph of a fitted map, scaler or model, or of a pipeline, for rows of its number of columns.

    Parameters
    ----------
    estimator : fitted estimator
    owner : str
        Who asks, for messages.

    Returns
    -------
    Graph
        With the outputs "features", "prediction", or "index" and "probabilities".

    Raises
    ------
    NotExpressibleError
        If a step cannot be written as array operations; the message names it.
    """
    if not hasattr(estimator, "fit"):
        raise TypeError(message(owner, "estimator", "a fitted estimator", estimator))
    check_is_fitted(estimator)
    try:
        return trace(lambda X: _expression.outputs(estimator, X), row_shape(estimator))
    except NotExpressibleError:
        raise
    except (TraceError, UnsupportedError, AttributeError) as error:
        name = type(_expression.final(estimator)).__name__
        raise NotExpressibleError(
            f"{name} cannot be written as a graph of array operations: {str(error).rstrip('.')}. Use its own methods."
        ) from error


def row_shape(estimator: Any) -> tuple[int, ...]:
    """Shape of a row or an image that an estimator was fitted on; flat unless it saw images."""
    first = _expression.steps(estimator)[0]
    shape = getattr(first, "image_shape_", None)
    if shape is not None and getattr(first, "image_shape", None) is None and shape[:2] != (1, 1):
        return tuple(shape)
    return (int(estimator.n_features_in_),)
