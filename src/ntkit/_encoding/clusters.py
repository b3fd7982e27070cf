"""Clusterings: the fitted features and the centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._encoding.estimators import Reader, Writer, column_names, read_columns, sizes
from ntkit._encoding.values import real_array, require
from ntkit._validation import check_int, check_real

MARK = "cluster_centers_"
_KEYS = ("features_", "cluster_centers_", "labels_", "inertia_", "n_iter_", "n_features_in_", "feature_names_in_")


def n_columns(model: Any) -> int:
    """One distance for each cluster."""
    return int(model._n_features_out)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted clustering."""
    from ntkit._array import to_numpy

    return {
        "features_": writer.estimator(model.features_, f"{where}.features_"),
        "cluster_centers_": writer.value(model.cluster_centers_, f"{where}.cluster_centers_"),
        "labels_": writer.value(to_numpy(model.labels_), f"{where}.labels_"),
        "inertia_": float(model.inertia_),
        "n_iter_": int(model.n_iter_),
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put features and centres into a clustering, and check that they fit."""
    require(state, where, *_KEYS)
    model._check_parameters()
    n_features = read_columns(model, state, where)
    model.features_ = reader.estimator(state["features_"], f"{where}.features_")
    takes, gives = sizes(model.features_, f"{where}.features_")
    if takes not in (None, n_features):
        raise ValueError(f"{where}.features_ takes {takes} columns, not {n_features}")
    centers = reader.value(state["cluster_centers_"], f"{where}.cluster_centers_")
    shape = (model.n_clusters, gives)
    model.cluster_centers_ = real_array(centers, f"{where}.cluster_centers_", shape, single=True)
    labels = reader.value(state["labels_"], f"{where}.labels_")
    known = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype == np.int64
    if not known or (labels.size and not 0 <= labels.min() <= labels.max() < model.n_clusters):
        raise ValueError(f"{where}.labels_ must be numbers of clusters, 0 to {model.n_clusters - 1}")
    model.labels_ = labels
    model.inertia_ = check_real(state["inertia_"], "inertia_", where, minimum=0)
    model.n_iter_ = check_int(state["n_iter_"], "n_iter_", where, minimum=0)
