"""Checks of images: (n, height, width, channels), or flat rows with a known shape."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import RowInput, check_rows
from ntkit._state import Integer, Many
from ntkit._validation import check_int, message

Shape: TypeAlias = tuple[int, ...]
IMAGES = {"image_shape_": Many(Integer(1), 3)}
"""Declared state of estimators that take images."""


class RowOrImageInput(RowInput):
    """Mixin for estimators that take rows or images. With the parameter `image_shape`, images may be flat rows."""

    image_shape: Shape | None = None

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate rows, or images if `fit` gets images or `image_shape` is set."""
        if reset and _array.is_dask(X):
            from ntkit.distributed import first_rows

            X = first_rows(X)
        if not reset:
            check_is_fitted(self)
        images = hasattr(self, "image_shape_")
        if reset:
            self.__dict__.pop("image_shape_", None)
            shape = check_image_shape(self.image_shape, type(self).__name__)
            images = shape is not None or getattr(X, "ndim", 2) in (3, 4)
        if not images:
            return super()._check_rows(X, reset=reset)
        if _array.is_sparse(X):
            name = type(self).__name__
            raise TypeError(message(name, "X", "dense for images, not sparse", X, "Call .toarray() on it."))
        return check_images(self, X, self.image_shape, reset=reset)


def check_images(estimator: Any, X: Any, image_shape: Any, *, reset: bool, flat: Shape | None = None) -> Array:
    """Validate images for `fit` (`reset`) or `transform`, and return them as (n, height, width, channels).

    X has that shape, or its rows are images of `image_shape`, flattened in that order. If `image_shape` is None, flat
    rows are images of the shape `flat`, by default one pixel with one channel per feature. Arrays keep their dtype,
    integers included; see :func:`as_floats`. A fit sets ``image_shape_`` and ``n_features_in_``.
    """
    name = type(estimator).__name__
    if not reset:
        check_is_fitted(estimator)
    given = check_image_shape(image_shape, name)
    X = check_rows(estimator, X, reset=reset, ndims=(2, 4))
    n_features = int(np.prod(X.shape[1:]))
    if X.ndim == 4:
        shape = tuple(int(s) for s in X.shape[1:])
        if reset and given is not None and shape != given:
            raise ValueError(message(name, "image_shape", f"{shape}, the shape of the images, or None", given))
        if reset and given is None:
            _check_channels_last(shape, hasattr(estimator, "image_shape"), name)
    else:
        shape = given or flat or (1, 1, n_features)
        if reset and int(np.prod(shape)) != n_features:
            rule = f"rows of {int(np.prod(shape))} features, which are flattened images of shape {shape}"
            raise ValueError(message(name, "X", rule, X, "Set image_shape=(height, width, channels)."))
    if reset:
        estimator.image_shape_, estimator.n_features_in_ = shape, n_features
        return _array.namespace(X).reshape(X, (-1, *shape))
    fitted = estimator.image_shape_
    if X.ndim == 4 and shape != fitted:
        raise ValueError(f"X has images of shape {shape}, but {name} is expecting images of shape {fitted} as input.")
    return _array.namespace(X).reshape(X, (-1, *fitted))


def check_state_of_images(estimator: Any) -> None:
    """Raise unless the image shape loaded from a file agrees with `n_features_in_` and `image_shape`."""
    shape = estimator.image_shape_ = tuple(estimator.image_shape_)
    if int(np.prod(shape)) != estimator.n_features_in_ or check_image_shape(
        estimator.image_shape, type(estimator).__name__
    ) not in (None, shape):
        raise ValueError(
            f"{type(estimator).__name__} has images of shape {shape}, which contradicts n_features_in_ or image_shape"
        )


def _check_channels_last(shape: Shape, confirmable: bool, owner: str) -> None:
    """Raise for images that look like (channels, height, width): at most 4 of the first axis, then a square."""
    channels, width, last = shape
    if channels > 4 or width != last or width <= 4:
        return
    remedy = "Move the channels last with X.permute(0, 2, 3, 1) (tensors) or X.transpose(0, 2, 3, 1) (arrays)"
    remedy += f". If they are last already, set image_shape={shape}." if confirmable else "."
    raise ValueError(
        f"The 'X' parameter of {owner} must be images of shape (n, height, width, channels). Got images of shape "
        f"{shape}, which look like (channels, height, width). {remedy}"
    )


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
    """Convert images to floating point: integers of 8 or 16 bits become float32, longer ones float64."""
    xp: Any = _array.namespace(X)
    if xp.isdtype(X.dtype, "real floating"):
        return X
    short = xp.isdtype(X.dtype, "bool") or xp.iinfo(X.dtype).bits <= 16
    return xp.astype(X, xp.float32 if short else _array.wide_dtype(X))
