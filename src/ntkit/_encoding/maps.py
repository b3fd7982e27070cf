"""Feature maps: parameters, a seed and what `fit` has learned, from which the draws are made again.

So files are small, and no index from a file gets near compiled code.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ntkit import __version__
from ntkit._encoding.draws import count_draws
from ntkit._encoding.estimators import OtherDrawsError, Reader, Writer, as_seed, column_names, read_columns, read_seed
from ntkit._encoding.values import real_array, require
from ntkit._images import check_image_shape
from ntkit._validation import check_bool, check_int, check_real
from ntkit.features.lengthscale import check_lengthscale
from ntkit.features.series.base import HIGHEST_DEGREE
from ntkit.features.zonal.gegenbauer import RADII

MARK = "_n_features_out"
MOST_DRAWS = 2**34
_MOST_LANDMARKS = 2**15
_MOST_RADII = 2**16
_MOST_FEATURES = {False: 2**27, True: 2**31 - 1}  # of dense, of sparse rows
_KEYS = (
    "n_features_in_", "feature_names_in_", "image_shape_", "sparse", "seed", "learned", "n_components_",
    "fingerprint",
)  # fmt: skip


def n_columns(model: Any) -> int:
    """Number of features."""
    return int(model._n_features_out)


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:
    """Data of a fitted map, after a check that the map can be made from it."""
    state = {
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
        "image_shape_": list(model.image_shape_) if hasattr(model, "image_shape_") else None,
        "sparse": bool(model._sparse),
        "seed": writer.value(as_seed(model._seed), where),
        "learned": {key: writer.value(getattr(model, key, None), f"{where}.{key}") for key in type(model)._learned},
        "n_components_": n_columns(model),
        "fingerprint": writer.value(_fingerprint(model).tolist(), where),
    }
    name = type(model).__name__
    try:
        reader = Reader(dict(writer.arrays), version=__version__, tolerance=1e-9)
        reader.estimator(node | {"state": state}, where)
    except OtherDrawsError as error:
        raise ValueError(
            f"{where}, a {name}, has other parameters than when it was fitted, and could not be loaded again. "
            "Fit it again, or set them back."
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}, a {name}, could not be loaded again: {error}") from error
    return state


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Make the draws of a map, and check that they are those it had."""
    require(state, where, *_KEYS)
    sparse = check_bool(state["sparse"], "sparse", where)
    most = _MOST_FEATURES[sparse]
    n_features = check_int(state["n_features_in_"], "n_features_in_", where, minimum=1, maximum=most)
    shape = _read_shape(model, state, n_features, where)
    seed = read_seed(reader, state["seed"], where)
    learned = _read_learned(reader, model, state["learned"], shape, where)
    n_draws = count_draws(model, shape)
    if n_draws > MOST_DRAWS:
        raise ValueError(f"{where} needs some {float(n_draws):.1e} random numbers, more than {MOST_DRAWS:.1e}")
    if model.batch_size is not None:
        check_int(model.batch_size, "batch_size", type(model).__name__, minimum=1)
    if hasattr(model, "lengthscale"):
        check_lengthscale(model.lengthscale, type(model).__name__)
    if len(shape) == 3:
        model.image_shape_ = shape
    model.n_features_in_, model._sparse = n_features, sparse
    model._settle(shape, learned, seed)
    read_columns(model, state, where)
    _check_draws(reader, model, state, where)


def _read_learned(reader: Reader, model: Any, data: Any, shape: tuple[int, ...], where: str) -> dict[str, Any]:
    """What a map has learned from rows, after a check that it can be that."""
    learned: dict[str, Any] = {}
    if isinstance(data, dict) and reader.version != __version__:
        data = {key: None for key in ("groups_", "center_") if key in type(model)._learned} | data
    for key, entry in require(data, where, *type(model)._learned).items():
        place = f"{where}.{key}"
        value = reader.value(entry, place)
        if value is None and key in ("groups_", "center_"):
            learned[key] = None  # columns that are not split
            continue
        if value is None and key in ("lengthscale_", "landmark_indices_"):
            continue  # of a kernel without a length scale, of landmarks that are not rows
        if key in ("lengthscale_", "radius_"):
            value = check_real(value, key, where, minimum=0, strict=True)
        elif key == "landmark_indices_":
            if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind != "i" or (value < 0).any():
                raise ValueError(f"{place} must be an array of numbers ≥ 0")
            if model.kernel == "precomputed" and (value >= prod(shape)).any():
                raise ValueError(f"{place} must be less than {prod(shape)}, the number of columns")
        elif key == "groups_":
            value = _read_groups(value, prod(shape), place)
        elif key == "center_":
            real_array(value, place, shape)
        elif key == "landmarks_":
            columns = (None,) if isinstance(model.kernel, str) and model.kernel == "precomputed" else shape
            real_array(value, place, (None, *columns), single=True)
            most = model.n_components if isinstance(model.landmarks, str) else len(model.landmarks)
            if len(value) > min(check_int(most, "n_components", where, minimum=1), _MOST_LANDMARKS):
                raise ValueError(f"{place} has {len(value)} landmarks, more than {min(most, _MOST_LANDMARKS)}")
        else:
            real_array(value, place, (None, RADII) if key == "radii_" else (None,), positive=True)
            if key == "shares_":
                most = check_int(model.degree, "degree", where, minimum=1) + 1
            else:
                most = _MOST_RADII if key == "radii_" else HIGHEST_DEGREE + 1
            if value.size > most:
                raise ValueError(f"{place} has too many numbers, {value.size}")
        learned[key] = value
    return learned


def _read_groups(value: Any, n_features: int, where: str) -> list[list[int]]:
    """Groups of columns, if each column is in one of them."""
    lists = isinstance(value, list) and all(isinstance(group, list) and group for group in value)
    columns = [column for group in value for column in group] if lists else []
    whole = all(isinstance(column, int) and not isinstance(column, bool) for column in columns)
    if len(columns) != n_features or not whole or sorted(columns) != list(range(n_features)):
        raise ValueError(f"{where} must have each of the {n_features} columns in one group")
    return value


def _read_shape(model: Any, state: dict[str, Any], n_features: int, where: str) -> tuple[int, ...]:
    """Shape of an image, (height, width, channels), or of a row, (features,)."""
    given = check_image_shape(getattr(model, "image_shape", None), where)
    shape = check_image_shape(state["image_shape_"], where)
    if shape is None:
        if given is not None:
            raise ValueError(f"{where} must have the shape of its images")
        return (n_features,)
    if given not in (None, shape):
        raise ValueError(f"{where} has images of shape {shape}, but image_shape={given}")
    if state["sparse"] or prod(shape) != n_features:
        raise ValueError(f"{where} must have dense images of {n_features} numbers, not of the shape {shape}")
    return shape


def _check_draws(reader: Reader, model: Any, state: dict[str, Any], where: str) -> None:
    expected, found = state["n_components_"], _fingerprint(model)
    if n_columns(model) != expected:
        raise OtherDrawsError(f"{where}, a {type(model).__name__}, has {n_columns(model)} components, not {expected}.")
    saved = np.array(reader.value(state["fingerprint"], where), dtype=np.float64)
    if found.shape != saved.shape:
        raise ValueError(f"the fingerprint of {where} must have the shape {found.shape}")
    scale = np.abs(found).max(axis=1, keepdims=True, initial=0.0, where=np.isfinite(found))
    if not np.isclose(found, saved, rtol=0, atol=reader.tolerance * scale, equal_nan=True).all():
        raise OtherDrawsError(
            f"The features of {where}, a {type(model).__name__}, are not those it had when it was saved."
        )


def _fingerprint(model: Any) -> np.ndarray:
    """Some features of some rows, (3, 16) or fewer."""
    size = getattr(model, "lengthscale_", 1.0)
    size /= getattr(model._planned, "gamma", 1.0) ** 0.5 or 1.0  # not the parameter, which may have changed
    X = _rows(3, model.n_features_in_, sparse=model._sparse, size=size)
    X = X.reshape(3, *model.image_shape_) if hasattr(model, "image_shape_") else X
    chosen = np.unique(np.linspace(0, n_columns(model) - 1, 16).astype(np.int64))
    with np.errstate(all="ignore"):
        return np.asarray(model._run(X))[:, chosen]


def _rows(n_rows: int, n_features: int, *, sparse: bool, size: float = 0.0) -> Any:
    """Rows of norm `size`, the same everywhere; at most 1024 entries of sparse ones are not 0."""
    columns = np.arange(n_features)
    if sparse:
        columns = np.unique(np.linspace(0, n_features - 1, min(n_features, 1024)).astype(np.int64))
    factors = np.array([[389], [577], [811]])[:n_rows]
    values = factors * (columns + 1) % 1021 - 510.5
    values *= size / np.linalg.norm(values, axis=1, keepdims=True)
    if not sparse:
        return values
    from scipy.sparse import csr_matrix

    starts = np.arange(n_rows + 1) * len(columns)
    return csr_matrix((values.ravel(), np.tile(columns, n_rows), starts), shape=(n_rows, n_features))
