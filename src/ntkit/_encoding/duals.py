"""Kernel ridge regression and classification: the rows of the fit and their coefficients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._encoding.estimators import REMEDY, Reader, Writer, column_names, read_columns
from ntkit._encoding.models import read_labels, write_labels
from ntkit._encoding.values import real_array, require
from ntkit._images import check_image_shape
from ntkit._validation import check_bool, check_choice, check_int, check_real

MARK = "_dual"
_KEYS = (
    "rows", "dual", "intercept", "single", "labels", "alpha_", "alphas_", "errors_", "solver_", "n_iter_",
    "lengthscale_", "image_shape_", "n_features_in_", "feature_names_in_",
)  # fmt: skip


def n_columns(model: Any) -> None:
    """Models do not transform."""


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted model; how its iterations went is not kept."""
    if _array.is_sparse(model.X_fit_):
        raise TypeError(f"{where} has sparse rows, which cannot be saved. Fit it on dense ones. {REMEDY}")
    arrays = {
        "rows": _plain(model.X_fit_),
        "dual": model._dual,
        "intercept": model._intercept,
        "alphas_": model.alphas_,
        "errors_": getattr(model, "errors_", None),
    }
    classes = getattr(model, "classes_", None)
    return {
        **{name: writer.value(array, f"{where}.{name}") for name, array in arrays.items()},
        "single": bool(getattr(model, "_single", False)),
        "labels": None if classes is None else write_labels(classes.tolist(), classes.dtype, where),
        "alpha_": float(model.alpha_),
        "solver_": model.solver_,
        "n_iter_": int(model.n_iter_),
        "lengthscale_": getattr(model, "lengthscale_", None),
        "image_shape_": list(model.image_shape_) if hasattr(model, "image_shape_") else None,
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put rows and coefficients into a model, and check that they fit."""
    require(state, where, *_KEYS)
    model._check_parameters()
    n_features = read_columns(model, state, where)
    shape = check_image_shape(state["image_shape_"], where)
    if shape is not None:
        if prod(shape) != n_features:
            raise ValueError(f"{where} must have images of {n_features} numbers, not of the shape {shape}")
        model.image_shape_ = shape
    arrays = {name: reader.value(state[name], f"{where}.{name}") for name in ("rows", "dual", "intercept", "alphas_")}
    rows, precomputed = arrays["rows"], model._has_name("precomputed")
    if precomputed != (rows is None):
        raise ValueError(f"{where} must have rows, unless its kernel is precomputed")
    if rows is not None:
        real_array(rows, f"{where}.rows", (None, *(shape or (n_features,))), single=True)
    n_rows = n_features if precomputed else len(rows)
    _, n_targets = real_array(arrays["dual"], f"{where}.dual", (n_rows, None)).shape
    model.X_fit_, model._dual = rows, arrays["dual"]
    model._intercept = real_array(arrays["intercept"], f"{where}.intercept", (n_targets,))
    _read_choice(reader, model, state, arrays["alphas_"], where)
    _read_targets(model, state, n_targets, where)
    if model._has_lengthscale:
        model.lengthscale_ = check_real(state["lengthscale_"], "lengthscale_", where, minimum=0, strict=True)
    elif state["lengthscale_"] is not None:
        raise ValueError(f"{where} has a length scale, but its kernel has none")
    model._resolve()
    model._scores(np.zeros((1, *(shape or (n_features,)))))  # raises unless the kernel takes such rows


def _read_choice(reader: Reader, model: Any, state: dict[str, Any], alphas: Any, where: str) -> None:
    """The penalties, and how the one was found."""
    model.alphas_ = real_array(alphas, f"{where}.alphas_", (None,), positive=True)
    model.alpha_ = check_real(state["alpha_"], "alpha_", where, minimum=0)
    if model.alpha_ not in model.alphas_:
        raise ValueError(f"{where}.alpha_ must be one of its alphas")
    errors = reader.value(state["errors_"], f"{where}.errors_")
    if errors is not None:
        if not isinstance(errors, np.ndarray) or errors.dtype != np.float64 or errors.shape != alphas.shape:
            raise ValueError(f"{where}.errors_ must be {len(alphas)} numbers")
        model.errors_ = errors
    model.solver_ = check_choice(state["solver_"], "solver_", where, ("direct", "pcg", "gradient", "sketch"))
    model.n_iter_ = check_int(state["n_iter_"], "n_iter_", where, minimum=0, maximum=2**60)


def _read_targets(model: Any, state: dict[str, Any], n_targets: int, where: str) -> None:
    """Whether y has one axis, or the classes."""
    single = check_bool(state["single"], "single", where)
    if hasattr(model, "decision_function"):
        labels, dtype = read_labels(state["labels"], n_targets, where)
        model.classes_ = np.array(labels, dtype=dtype)
        return
    if state["labels"] is not None or (single and n_targets != 1):
        raise ValueError(f"{where} has classes, or {n_targets} targets in place of one")
    model._single = single


def _plain(X: Any) -> Any:
    """Rows as a NumPy array of floating-point numbers; None stays None."""
    if X is None:
        return None
    if _array.is_torch(X):
        X = X.detach().cpu()
        X = X.numpy() if X.dtype.itemsize >= 4 else X.float().numpy()
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
