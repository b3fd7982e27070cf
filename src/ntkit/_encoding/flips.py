"""Features averaged over mirror images: the fitted features."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import Reader, Writer, column_names, sizes
from ntkit._encoding.images import read_image_shape
from ntkit._encoding.values import require
from ntkit._validation import check_bool, check_int

MARK = "features_"
_KEYS = ("features_", "flat", "n_features_in_", "feature_names_in_", "image_shape_", "n_components_")


def n_columns(model: Any) -> int:
    """Number of features."""
    return int(model._n_features_out)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of fitted features."""
    return {
        "features_": writer.estimator(model.features_, f"{where}.features_"),
        "flat": bool(model._flat),
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
        "image_shape_": list(model.image_shape_),
        "n_components_": n_columns(model),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put the fitted features in, and check that they fit."""
    require(state, where, *_KEYS)
    model.image_shape_ = read_image_shape(model, state, where)
    model._flat = check_bool(state["flat"], "flat", where)
    model._n_features_out = check_int(state["n_components_"], "n_components_", where, minimum=1, maximum=2**31 - 1)
    features = reader.estimator(state["features_"], f"{where}.features_")
    if not hasattr(features, "transform"):
        raise TypeError(f"{where}.features_ must be a transformer")
    expected = model.n_features_in_, model._n_features_out
    for what, found, size in zip(
        ("columns", "components"), sizes(features, f"{where}.features_"), expected, strict=True
    ):
        if found not in (None, size):
            raise ValueError(f"{where}.features_ has {found} {what}, not {size}")
    model.features_ = features
