"""Front doors: the map that was chosen, and its method."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import Reader, Writer, column_names, read_columns
from ntkit._encoding.values import require
from ntkit._validation import check_int, check_real

MARK = "_planned"


def n_columns(model: Any) -> int:
    """Number of features."""
    return int(model._n_features_out)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted front door."""
    _check_batch_size(model, where)
    asked = [model.method_, "auto"], [model.lengthscale_, "scale"]
    given = model.method, model.lengthscale
    if not all(value in values for value, values in zip(given, asked, strict=True)):
        raise ValueError(
            f"{where}, a {type(model).__name__}, has other parameters than when it was fitted. Fit it again, or set "
            "them back."
        )
    return {
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
        "method_": model.method_,
        "errors_": [[method, error] for method, error in model.errors_.items()],
        "map": writer.estimator(model.map_, f"{where}.map_"),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put the map into a front door."""
    require(state, where, "n_features_in_", "feature_names_in_", "method_", "errors_", "map")
    _check_batch_size(model, where)
    n_features = read_columns(model, state, where)
    fitted = reader.estimator(state["map"], f"{where}.map_")
    if (
        not isinstance(fitted, model._map_class(model._method_of(state["method_"])))
        or fitted.n_features_in_ != n_features
    ):
        raise ValueError(f"{where} must have a map of {n_features} features by its method")
    errors = {model._method_of(method): check_real(error, "errors_", where) for method, error in state["errors_"]}
    model._take_map(state["method_"], fitted, errors)


def _check_batch_size(model: Any, where: str) -> None:
    """Raise for a value with which no row could be transformed."""
    if model.batch_size is not None:
        check_int(model.batch_size, "batch_size", where, minimum=1)
