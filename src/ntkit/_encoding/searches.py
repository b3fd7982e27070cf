"""Searches: the best model, and what they tried."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import Reader, Writer, as_seed, read_seed
from ntkit._encoding.values import require

MARK = "best_estimator_"


def n_columns(model: Any) -> None:
    """Models do not transform."""


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted search."""
    return {
        "best_estimator_": writer.estimator(model.best_estimator_, f"{where}.best_estimator_"),
        "best_name_": model.best_name_,
        "results_": writer.value(model.results_, f"{where}.results_"),
        "seed": writer.value(as_seed(model._seed), where),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put the best model into a search."""
    require(state, where, "best_estimator_", "best_name_", "results_", "seed")
    best = reader.estimator(state["best_estimator_"], f"{where}.best_estimator_")
    if type(best) is not model._model or not hasattr(best, "features_"):
        raise ValueError(f"{where}.best_estimator_ must be a fitted {model._model.__name__}")
    name, results = state["best_name_"], reader.value(state["results_"], f"{where}.results_")
    if not isinstance(name, str) or not isinstance(results, list) or not all(isinstance(row, dict) for row in results):
        raise TypeError(f"{where} must have a name and a list of results")
    model._seed = read_seed(reader, state["seed"], where)
    model.results_, model.best_name_, model.best_estimator_ = results, name, best
    model.n_features_in_ = best.n_features_in_
    if hasattr(best, "feature_names_in_"):
        model.feature_names_in_ = best.feature_names_in_
