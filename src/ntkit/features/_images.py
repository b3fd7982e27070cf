"""Images as input: (n, height, width, channels), or flat rows with a known shape."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_data, check_int, message

Shape: TypeAlias = tuple[int, ...]


def check_images(estimator: Any, X: Any, image_shape: Any, *, reset: bool, flat: Shape | None = None) -> Array:
    """Validate images for `fit` (`reset`) or `transform`, and return them as (n, height, width, channels).

    X has that shape, or rows that are images of `image_shape` laid flat in that order. Where `image_shape` is None,
    flat rows are images of the shape `flat`, by default of one pixel with a channel for each feature. Arrays keep their
    dtype, whole numbers too: see :func:`as_floats`. A fit sets ``image_shape_`` and ``n_features_in_``.
    """
    name = type(estimator).__name__
    if not reset:
        check_is_fitted(estimator)
    given = check_image_shape(image_shape, name)
    if not _array.is_torch(X) and getattr(X, "ndim", 2) <= 2:
        X = validate_data(estimator, X, reset=reset, dtype="numeric")
    X = check_data(X, "X", name, ndims=(2, 4))
    n_features = int(np.prod(X.shape[1:]))
    if X.ndim == 4:
        shape = tuple(int(s) for s in X.shape[1:])
        if reset and given is not None and shape != given:
            raise ValueError(message(name, "image_shape", f"{shape}, the shape of the images, or None", given))
    else:
        shape = given or flat or (1, 1, n_features)
        if reset and int(np.prod(shape)) != n_features:
            rule = f"rows of {int(np.prod(shape))} features, images of {shape} laid flat"
            raise ValueError(message(name, "X", rule, X, "Give image_shape=(height, width, channels)."))
    if reset:
        estimator.image_shape_, estimator.n_features_in_ = shape, n_features
        if X.ndim == 4 or _array.is_torch(X):
            estimator.__dict__.pop("feature_names_in_", None)
        return _array.namespace(X).reshape(X, (-1, *shape))
    fitted = estimator.image_shape_
    if X.ndim == 2 and n_features != estimator.n_features_in_:
        raise ValueError(
            f"X has {n_features} features, but {name} is expecting {estimator.n_features_in_} features as input."
        )
    if X.ndim == 4 and shape != fitted:
        raise ValueError(f"X has images of shape {shape}, but {name} is expecting images of shape {fitted} as input.")
    return _array.namespace(X).reshape(X, (-1, *fitted))


def check_image_shape(image_shape: Any, owner: str) -> Shape | None:
    """Return (height, width, channels) as a tuple of ints ≥ 1, or None."""
    if image_shape is None:
        return None
    rule = "None or a tuple (height, width, channels)"
    if not isinstance(image_shape, tuple | list) or len(image_shape) != 3:
        raise (ValueError if isinstance(image_shape, tuple | list) else TypeError)(
            message(owner, "image_shape", rule, image_shape)
        )
    return tuple(check_int(size, "image_shape", owner, minimum=1) for size in image_shape)


def as_floats(X: Array) -> Array:
    """Images as floating-point numbers: whole numbers of 8 or 16 bits become float32, longer ones float64."""
    xp: Any = _array.namespace(X)
    if xp.isdtype(X.dtype, "real floating"):
        return X
    short = xp.isdtype(X.dtype, "bool") or xp.iinfo(X.dtype).bits <= 16
    return xp.astype(X, xp.float32 if short else _array.wide_dtype(X))
