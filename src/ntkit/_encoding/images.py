"""What makes images from images: means, scales and whitening matrices."""

from __future__ import annotations

from math import prod
from typing import Any

from ntkit._encoding.estimators import CLASSES, Reader, Writer, as_seed, column_names, read_columns, read_seed
from ntkit._encoding.values import real_array, require
from ntkit._images import check_image_shape
from ntkit._validation import check_real

MARK = "image_shape_"
_KEYS = ("n_features_in_", "feature_names_in_", "image_shape_", "regularization_", "seed", "arrays")


def n_columns(model: Any) -> int:
    """Numbers of the images that go out, laid flat."""
    return prod(model._shape_out())


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> dict[str, Any]:  # noqa: ARG001
    """Data of a fitted transformer."""
    from ntkit._array import to_numpy

    name = type(model).__name__
    if model._settings != {key: getattr(model, key) for key in model._settings}:
        raise ValueError(
            f"{where}, a {name}, has other parameters than when it was fitted, and could not be loaded again. "
            "Fit it again, or set them back."
        )
    seed = getattr(model, "_seed", None)
    arrays = {key: to_numpy(getattr(model, key)) for key in CLASSES[name].arrays}
    return {
        "n_features_in_": int(model.n_features_in_),
        "feature_names_in_": column_names(model),
        "image_shape_": list(model.image_shape_),
        "regularization_": getattr(model, "regularization_", None),
        "seed": None if seed is None else writer.value(as_seed(seed), where),
        "arrays": {key: writer.value(value, f"{where}.{key}") for key, value in arrays.items()},
    }


def read(reader: Reader, model: Any, state: Any, where: str) -> None:
    """Put the arrays into a transformer, and check that they fit."""
    require(state, where, *_KEYS)
    model._check_parameters()
    model._settings = {key: getattr(model, key) for key in model._in_transform}
    model.image_shape_ = read_image_shape(model, state, where)
    if hasattr(model, "regularization"):
        model.regularization_ = check_real(state["regularization_"], "regularization_", where, minimum=0)
    elif state["regularization_"] is not None:
        raise ValueError(f"{where} has no regularization")
    if hasattr(model, "random_state"):
        seed = read_seed(reader, state["seed"], where)
        model._seed = seed.entropy, seed.spawn_key, seed.pool_size
    elif state["seed"] is not None:
        raise ValueError(f"{where} has no seed")
    shapes = _shapes(model)
    data = require(state["arrays"], where, *shapes)
    for key, shape in shapes.items():
        array = real_array(reader.value(data[key], f"{where}.{key}"), f"{where}.{key}", shape, positive=key == "scale_")
        if key == "scale_" and not array.all():
            raise ValueError(f"{where}.scale_ has zeros")
        setattr(model, key, array)


def read_image_shape(model: Any, state: dict[str, Any], where: str) -> tuple[int, ...]:
    """The shape of the images that come in, after a check that it has as many numbers as they have columns."""
    n_features = read_columns(model, state, where)
    check_image_shape(model.image_shape, where)
    shape = check_image_shape(state["image_shape_"], where)
    if shape is None or prod(shape) != n_features:
        raise ValueError(f"{where} must have images of {n_features} numbers, not of the shape {shape}")
    return shape


def _shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays."""
    d, channels = model.n_features_in_, model.image_shape_[2]
    name = type(model).__name__
    if name == "ImageStandardizer":
        return {"mean_": (channels,), "scale_": (channels,)}
    if name == "ZCAWhitening":
        return {"mean_": (d,), "whitening_": (d, d)}
    size = model._set_shapes()
    return {"channel_mean_": (channels,), "mean_": (size,), "components_": (model.output_shape_[2], size)}
