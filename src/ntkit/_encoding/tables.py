"""Encoders of tables: means and levels of the columns."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import Reader, Writer
from ntkit._encoding.values import real_array, require

MARK = "_columns"


def n_columns(model: Any) -> int:
    """Number of columns made."""
    return len(model.get_feature_names_out())


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted encoder."""
    arrays, data = model._state()
    return {"arrays": {name: writer.value(array, f"{where}.{name}") for name, array in arrays.items()}, "data": data}


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put means and levels into an encoder."""
    require(state, where, "arrays", "data")
    arrays = {name: reader.value(value, f"{where}.{name}") for name, value in state["arrays"].items()}
    for name, array in arrays.items():
        real_array(array, f"{where}.{name}", (None,))
    fitted = type(model)._from_state(arrays, state["data"])
    vars(model).update({name: value for name, value in vars(fitted).items() if name not in model.get_params()})
