"""Front doors: the map that was chosen, and its method."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import Reader, Writer, column_names, read_columns
from ntkit._encoding.values import require
from ntkit._validation import check_real

MARK = "map_"


def n_columns(model: Any) -> int:
    """Number of features."""
    return int(model._n_features_out)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted front door."""
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
    n_features = read_columns(model, state, where)
    fitted = reader.estimator(state["map"], f"{where}.map_")
    if (
        not isinstance(fitted, model.map_class(model.method_of(state["method_"])))
        or fitted.n_features_in_ != n_features
    ):
        raise ValueError(f"{where} must have a map of {n_features} features by its method")
    errors = {model.method_of(method): check_real(error, "errors_", where) for method, error in state["errors_"]}
    model.take_map(state["method_"], fitted, errors)
