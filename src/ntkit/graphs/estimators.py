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
    """Record the graph of a fitted map, scaler, model or pipeline.

    Parameters
    ----------
    estimator : fitted estimator
    owner : str
        Name of the caller, for error messages.

    Returns
    -------
    Graph
        It has the output "features", or "prediction", or "index" and "probabilities".

    Raises
    ------
    NotExpressibleError
        If a step cannot be written in array operations; the message names it.
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
    """Return the shape of a row or image that an estimator was fitted on; flat unless it was fitted on images."""
    first = _expression.steps(estimator)[0]
    shape = getattr(first, "image_shape_", None)
    if shape is not None and getattr(first, "image_shape", None) is None and shape[:2] != (1, 1):
        return tuple(shape)
    return (int(estimator.n_features_in_),)
