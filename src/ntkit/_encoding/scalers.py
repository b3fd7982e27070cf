"""Scalers of scikit-learn: an array or a few, with an entry for each column."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._encoding.estimators import CLASSES, Reader, Writer, column_names, read_columns
from ntkit._encoding.values import real_array, require
from ntkit._validation import check_bool, check_choice, check_real

MARK = "n_features_in_"
_OPTIONAL = {"mean_": "with_mean", "var_": "with_std", "center_": "with_centering"}


def n_columns(model: Any) -> int:
    """As many as come in."""
    return int(model.n_features_in_)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted scaler."""
    from ntkit._array import to_numpy

    arrays = {name: to_numpy(getattr(model, name)) for name in CLASSES[type(model).__name__].arrays}
    _check(model, arrays, n_columns(model), where)
    seen = getattr(model, "n_samples_seen_", None)
    return {
        "n_features_in_": n_columns(model),
        "feature_names_in_": column_names(model),
        "n_samples_seen_": writer.value(seen, f"{where}.n_samples_seen_"),
        "arrays": {name: writer.value(value, f"{where}.{name}") for name, value in arrays.items()},
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put the arrays into a scaler."""
    require(state, where, "n_features_in_", "feature_names_in_", "n_samples_seen_", "arrays")
    n_features = read_columns(model, state, where)
    arrays = require(state["arrays"], where, *CLASSES[type(model).__name__].arrays)
    arrays = {name: reader.value(data, f"{where}.{name}") for name, data in arrays.items()}
    _check(model, arrays, n_features, where)
    vars(model).update(arrays)
    seen = reader.value(state["n_samples_seen_"], f"{where}.n_samples_seen_")
    if isinstance(seen, np.ndarray):
        if seen.shape != (n_features,) or seen.dtype.kind not in "iuf" or not (seen >= 0).all():
            raise ValueError(f"{where}.n_samples_seen_ must be {n_features} numbers ≥ 0")
    elif seen is not None:
        check_real(seen, "n_samples_seen_", where, minimum=0)
        seen = np.int64(seen) if isinstance(seen, int) else np.float64(seen)
    if seen is not None:
        model.n_samples_seen_ = seen


def _check(model: Any, arrays: dict[str, Any], n_features: int, where: str) -> None:
    """Raise unless the parameters of a scaler are of the right kind, and the arrays that it needs are there."""
    parameters = model.get_params()
    for name, value in parameters.items():
        if name in ("feature_range", "quantile_range"):
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise TypeError(f"{where}.{name} must be a pair")
            for number in value:
                check_real(number, name, where)
        elif name == "norm":
            check_choice(value, name, where, ("l1", "l2", "max"))
        else:
            check_bool(value, name, where)
    scaled = parameters.get("with_std", True) and parameters.get("with_scaling", True)
    for name, array in arrays.items():
        needed = scaled if name == "scale_" else parameters.get(_OPTIONAL.get(name, ""), True)
        if array is None and not needed:
            continue
        real_array(array, f"{where}.{name}", (n_features,), single=True)
        if name == "scale_" and (array == 0).any():
            raise ValueError(f"{where}.scale_ has zeros")
