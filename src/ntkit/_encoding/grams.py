"""Models from a Gram matrix: the fitted steps and maps, and the weights of all draws; not the matrix."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ntkit._encoding.estimators import Reader, Writer, as_seed, column_names, read_columns, read_seed, sizes
from ntkit._encoding.models import read_labels, write_labels
from ntkit._encoding.values import real_array, require
from ntkit._validation import check_bool, check_choice, check_int, check_real, describe

MARK = "alpha_"
_KEYS = (
    "alpha_", "alphas_", "errors_", "constant", "preprocessor_", "draws", "shape", "settings", "seed", "single",
    "labels", "temperature", "n_features_in_", "feature_names_in_",
)  # fmt: skip
_DRAW = ("map", "mean", "coef")
_SETTINGS = ("normalize", "center", "product_dtype")
_MOST_DRAWS = 10**6


def n_columns(model: Any) -> None:
    """Models do not transform."""


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted model."""
    from ntkit._array import to_numpy

    if model._coef is None:
        raise ValueError(
            f"{where} has no weights to predict with: it was fitted by fit_predict or with keep_coef=False, so that "
            "there is nothing to save. Call fit with keep_coef=True."
        )

    def value(array: Any, name: str) -> Any:
        return writer.value(to_numpy(array), f"{where}.{name}")

    classifier = hasattr(model, "predict_proba")
    before = model._draws.before
    return {
        "alpha_": float(model.alpha_),
        "alphas_": value(model.alphas_, "alphas_"),
        "errors_": value(model.errors_, "errors_"),
        "constant": value(model._constant, "constant"),
        "preprocessor_": None if before is None else writer.estimator(before, f"{where}.preprocessor_"),
        "draws": [
            {
                "map": writer.estimator(model._drawn[d].map, f"{where}.maps_[{d}]"),
                "mean": value(model._drawn[d].mean, f"means[{d}]"),
                "coef": value(coef, f"coef[{d}]"),
            }
            for d, coef in enumerate(model._coef)
        ],
        "shape": [int(size) for size in model._shape],
        "settings": dict(zip(_SETTINGS, model._draws.settings, strict=True)),
        "seed": writer.value(as_seed(model._seed), where),
        "single": None if classifier else bool(model._single),
        "labels": _labels(model, where) if classifier else None,
        "temperature": model.temperature_ if classifier else None,
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put weights, steps and maps into a model, and check that they fit."""
    require(state, where, *_KEYS)
    model._check_parameters()
    (n_targets,) = _read_solution(reader, model, state, where).shape
    seed = read_seed(reader, state["seed"], where)
    model._seed = seed.entropy, seed.spawn_key, seed.pool_size
    if hasattr(model, "predict_proba"):
        labels, dtype = read_labels(state["labels"], n_targets, where)
        model.classes_ = np.sort(np.array(labels, dtype=dtype))
        given = state["temperature"]
        model.temperature_ = None if given is None else check_real(given, "temperature", where, minimum=0, strict=True)
    else:
        model._single = check_bool(state["single"], "single", where)
    if not hasattr(model, "predict_proba") and (
        state["labels"] is not None or state["temperature"] is not None or (model._single and n_targets != 1)
    ):
        raise ValueError(f"{where} has classes, or {n_targets} targets in place of one")
    n_features = read_columns(model, state, where)
    shape = state["shape"]
    if not isinstance(shape, list) or len(shape) < 2:
        raise TypeError(f"{where} must have a shape of rows, not {describe(shape)}")
    model._shape = tuple(check_int(size, "shape", where, minimum=1) for size in shape)
    if prod(model._shape[1:]) != n_features:
        raise ValueError(f"{where} must have rows of {n_features} numbers, not of the shape {model._shape[1:]}")
    _read_draws(reader, model, state, seed, where)


def _labels(model: Any, where: str) -> dict[str, Any]:
    classes = model.classes_
    return write_labels(classes.tolist(), classes.dtype, where)


def _read_solution(reader: Reader, model: Any, state: dict[str, Any], where: str) -> np.ndarray:
    """Set α and the constants; return these."""
    model.alphas_ = real_array(reader.value(state["alphas_"], where), f"{where}.alphas_", (None,), positive=True)
    model.errors_ = reader.value(state["errors_"], where)  # NaN where they were not computed
    errors = model.errors_
    if not isinstance(errors, np.ndarray) or errors.dtype != np.float64 or errors.shape != model.alphas_.shape:
        raise ValueError(f"{where}.errors_ must be {len(model.alphas_)} numbers, not {describe(errors)}")
    model.alpha_ = check_real(state["alpha_"], "alpha_", where, minimum=0)
    model._constant = real_array(reader.value(state["constant"], where), f"{where}.constant", (None,))
    return model._constant


def _read_draws(reader: Reader, model: Any, state: dict[str, Any], seed: Any, where: str) -> None:
    from ntkit.models._draws import PRODUCT_DTYPES, Draw, Draws

    settings = require(state["settings"], where, *_SETTINGS)
    for name in ("normalize", "center"):
        check_bool(settings[name], name, where)
    if settings["product_dtype"] is not None:
        check_choice(settings["product_dtype"], "product_dtype", where, PRODUCT_DTYPES)
    before, n_in = state["preprocessor_"], model.n_features_in_
    if before is not None:
        before = reader.estimator(before, f"{where}.preprocessor_")
        n_in = _columns(before, n_in, f"{where}.preprocessor_")
    if not isinstance(state["draws"], list) or not 1 <= len(state["draws"]) <= _MOST_DRAWS:
        raise TypeError(f"{where} must have a list of draws")
    model._drawn, model._coef, model._problem = {}, [], None
    for d, data in enumerate(state["draws"]):
        require(data, f"{where}.draws[{d}]", *_DRAW)
        feature_map = reader.estimator(data["map"], f"{where}.maps_[{d}]")
        m = _columns(feature_map, n_in, f"{where}.maps_[{d}]")
        coef = reader.value(data["coef"], f"{where}.coef[{d}]")
        model._coef.append(real_array(coef, f"{where}.coef[{d}]", (m, len(model._constant))))
        mean = reader.value(data["mean"], f"{where}.means[{d}]")
        if settings["center"] or mean is not None:
            real_array(mean, f"{where}.means[{d}]", (m,), single=True)
        model._drawn[d] = Draw(feature_map, mean)
    model.n_draws_ = len(model._coef)
    model._draws = Draws(model._drawn[0].map, seed, batch_size=model.batch_size, owner=type(model).__name__, **settings)
    model._draws.before = before


def _columns(transformer: Any, n_in: int | None, where: str) -> int | None:
    """Columns that a fitted transformer makes, after a check that it takes what it gets."""
    if not hasattr(transformer, "transform"):
        raise TypeError(f"{where} must be a transformer")
    takes, makes = sizes(transformer, where)
    if None not in (n_in, takes) and n_in != takes:
        raise ValueError(f"{where} takes {takes} columns, but gets {n_in}")
    return makes
