"""Models: the fitted features, the weights, and the statistics if wanted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ntkit._encoding.estimators import Reader, Writer, as_seed, column_names, read_columns, read_seed, sizes
from ntkit._encoding.values import real_array, require
from ntkit._validation import check_bool, check_int, check_real, describe

MARK = "features_"
_LONGEST_LABEL = 4096
_MANY = 2**60
_KEYS = (
    "features_", "solution", "single", "itemsize", "seed", "labels", "temperature", "n_samples", "n_features_in_",
    "feature_names_in_", "statistics",
)  # fmt: skip
_SOLUTION = ("coef", "intercept", "noise", "alphas", "errors", "alpha")
_NUMBERS = ("n_components", "n_targets", "sample_size", "count", "weight", "device")


def n_columns(model: Any) -> None:
    """Models do not transform."""


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted model."""
    from ntkit._array import to_numpy

    model._solve()
    classifier = hasattr(model, "predict_proba")
    solution = {name: to_numpy(getattr(model._solution, name)) for name in _SOLUTION}
    return {
        "features_": writer.estimator(model.features_, f"{where}.features_"),
        "solution": {name: writer.value(value, f"{where}.{name}") for name, value in solution.items()},
        "single": bool(model._single),
        "itemsize": int(model._itemsize),
        "seed": writer.value(as_seed(model._seed), where),
        "labels": write_labels(model._labels, model._label_dtype, where) if classifier else None,
        "temperature": float(model._temperature) if classifier else None,
        "n_samples": int(model.n_samples_seen_),
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
        "statistics": _write_statistics(writer, model, where) if writer.statistics else None,
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put weights and features into a model, and check that they fit."""
    require(state, where, *_KEYS)
    model._check_parameters()
    model._solution = _read_solution(reader, state["solution"], where)
    n_components, n_targets = model._solution.coef.shape
    model._covariance = None
    model._single = check_bool(state["single"], "single", where)
    model._itemsize = check_int(state["itemsize"], "itemsize", where, minimum=1, maximum=8)
    seed = read_seed(reader, state["seed"], where)
    model._seed = seed.entropy, seed.spawn_key, seed.pool_size
    model._n_samples = check_int(state["n_samples"], "n_samples", where, minimum=1, maximum=_MANY)
    model._labels = []
    if hasattr(model, "predict_proba"):
        model._labels, model._label_dtype = read_labels(state["labels"], n_targets, where)
        model._temperature = check_real(state["temperature"], "temperature", where, minimum=0, strict=True)
    elif state["labels"] is not None or state["temperature"] is not None or (model._single and n_targets != 1):
        raise ValueError(f"{where} has classes, or {n_targets} targets in place of one")
    n_features = read_columns(model, state, where)
    model.features_ = reader.estimator(state["features_"], f"{where}.features_")
    if not hasattr(model.features_, "transform"):
        raise TypeError(f"{where}.features_ must be a transformer")
    found = sizes(model.features_, f"{where}.features_")
    for what, size, expected in zip(("columns", "components"), found, (n_features, n_components), strict=True):
        if size not in (None, expected):
            raise ValueError(f"{where}.features_ has {size} {what}, but the model {expected}")
    statistics = state["statistics"]
    model._statistics = None
    if statistics is not None:
        model._statistics = _read_statistics(reader, statistics, n_components, n_targets, where)
        if model._statistics.count != model._n_samples:
            raise ValueError(f"{where}.statistics must be of {model._n_samples} rows")


def _read_solution(reader: Reader, data: Any, where: str) -> Any:
    from ntkit.models._solve import Solution

    values = {name: reader.value(value, f"{where}.{name}") for name, value in require(data, where, *_SOLUTION).items()}
    _, n_targets = real_array(values["coef"], f"{where}.coef", (None, None)).shape
    real_array(values["intercept"], f"{where}.intercept", (n_targets,))
    real_array(values["noise"], f"{where}.noise", (n_targets,), positive=True)
    (n_alphas,) = real_array(values["alphas"], f"{where}.alphas", (None,), positive=True).shape
    errors = values["errors"]  # NaN where they were not computed
    if not isinstance(errors, np.ndarray) or errors.dtype != np.float64 or errors.shape != (n_alphas,):
        raise ValueError(f"{where}.errors must be {n_alphas} numbers, not {describe(errors)}")
    values["alpha"] = check_real(values["alpha"], "alpha", where, minimum=0)
    if values["alpha"] not in values["alphas"]:
        raise ValueError(f"{where}.alpha must be one of its alphas")
    return Solution(**values, left_out=None)


def write_labels(given: list[Any], dtype: Any, where: str) -> dict[str, Any]:
    """Data of class labels."""
    labels = [label.item() if isinstance(label, np.generic) else label for label in given]
    for label in labels:
        if not isinstance(label, bool | int | float | str):
            raise TypeError(
                f"{where} has {describe(label)}, a {type(label).__name__}, as a class. Only ints, floats, bools and "
                "text can be saved."
            )
    data = {"values": labels, "dtype": np.dtype(dtype).str}
    try:
        read_labels(data, len(labels), where)
    except (TypeError, ValueError) as error:
        raise TypeError(f"The classes of {where} cannot be saved: {error}.") from error
    return data


def read_labels(data: Any, n_classes: int, where: str) -> tuple[list[Any], np.dtype]:
    """Class labels in the order in which they were met, and the dtype of their array."""
    require(data, f"the classes of {where}", "values", "dtype")
    labels, text = data["values"], data["dtype"]
    known = isinstance(text, str) and re.fullmatch(r"[<>|](b1|[iu][1248]|f[248]|U\d{1,4}|O)", text)
    if not known or (text[1] == "U" and int(text[2:]) > _LONGEST_LABEL):
        raise ValueError(f"{where} has classes of dtype {describe(text)}")
    if not isinstance(labels, list) or len(labels) != n_classes or len(labels) < 2:
        raise ValueError(f"{where} must have {n_classes} classes, two at least")
    if not all(isinstance(label, bool | int | float | str) for label in labels) or len(set(labels)) < len(labels):
        raise ValueError(f"{where} must have distinct numbers or texts as classes")
    dtype = np.dtype(text)
    if np.sort(np.array(labels, dtype=dtype)).tolist() != sorted(labels):
        raise ValueError(f"the classes of {where} are not all of dtype {text}")
    return labels, dtype


def _write_statistics(writer: Writer, model: Any, where: str) -> dict[str, Any]:
    if model._statistics is None:
        raise ValueError(f"{where} was loaded without its statistics, so that these cannot be saved.")
    arrays, numbers = model._statistics.finish().state()
    if not numbers["device"].startswith("cuda"):
        numbers["device"] = "cpu"
    return {
        "arrays": {name: writer.value(array, f"{where}.statistics.{name}") for name, array in arrays.items()},
        "numbers": {name: writer.value(numbers[name], where) for name in _NUMBERS},
    }


def _read_statistics(reader: Reader, data: Any, m: int, k: int, where: str) -> Any:
    """Statistics of m components and k targets."""
    from ntkit.models._statistics import Statistics

    where = f"{where}.statistics"
    require(data, where, "arrays", "numbers")
    numbers = dict(require(data["numbers"], where, *_NUMBERS))
    if (numbers["n_components"], numbers["n_targets"]) != (m, k):
        raise ValueError(f"{where} must be of {m} components and {k} targets")
    size = check_int(numbers["sample_size"], "sample_size", where, minimum=0, maximum=_MANY)
    count = check_int(numbers["count"], "count", where, minimum=1, maximum=_MANY)
    numbers["weight"] = check_real(numbers["weight"], "weight", where, minimum=0)
    numbers["device"] = _device(numbers["device"], where)
    given, shapes = data["arrays"], _shapes(data["arrays"], m, k, count)
    arrays = {}
    for name, part in require(given, where, *shapes).items():
        arrays[name] = real_array(
            reader.value(part, f"{where}.{name}"), f"{where}.{name}", shapes[name],
            single=name in ("Z", "sample_Z"), infinite=name in ("keys", "sample_keys"),
            positive=name in ("weight", "sample_weight"),
        )  # fmt: skip
    sampled = {len(arrays[name]) for name in shapes if name.startswith("sample_")}
    if len(sampled) != 1 or max(sampled) > (size if "sample_Z" in shapes else 0):
        raise ValueError(f"{where} has a sample that does not fit")
    return Statistics.restore(arrays, numbers | {"corrections": []})


def _shapes(given: Any, m: int, k: int, count: int) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the arrays that must be there: sums or all rows, and a sample that has rows or none yet."""
    shapes: dict[str, tuple[int | None, ...]] = {"sample_keys": (None,)}
    if "sample_Z" in given:
        shapes |= {"sample_Z": (None, m), "sample_Y": (None, k), "sample_weight": (None,)}
    if "gram" in given:
        return shapes | {"gram": (m, m), "cross": (m, k), "z_mean": (m,), "y_mean": (k,), "y_square": (k,)}
    return shapes | {"Z": (count, m), "Y": (count, k), "weight": (count,), "keys": (count,)}


def _device(wanted: Any, where: str) -> str:
    """The GPU if the statistics were on one and there is one here, else the host."""
    if not isinstance(wanted, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", wanted):
        raise ValueError(f"{where} has the device {describe(wanted)}")
    if wanted == "cpu":
        return wanted
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
