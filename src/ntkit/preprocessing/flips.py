"""Mirror images for data augmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_data, message


def flip_images(X: Any) -> Array:
    """Mirror images, left to right.

    Parameters
    ----------
    X : array or torch tensor of shape (n, height, width, channels)

    Returns
    -------
    array or torch tensor of the shape and dtype of X
        A view for NumPy arrays, a copy for tensors.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.preprocessing import flip_images
    >>> flip_images(np.arange(4).reshape(1, 2, 2, 1))[0, ..., 0]
    array([[1, 0],
           [3, 2]])
    """
    X = check_data(X, "X", "flip_images", ndims=(4,))
    return _array.namespace(X).flip(X, axis=2)


def with_flips(X: Any, y: Any = None) -> Any:
    """Return images together with their mirror images, to train on both.

    Parameters
    ----------
    X : array or torch tensor of shape (n, height, width, channels)
    y : array-like of n rows, or None
        Labels or targets.

    Returns
    -------
    X : array or torch tensor of shape (2 n, height, width, channels)
        All images, then all mirror images in the same order.
    y : array or torch tensor of 2 n rows
        All targets, repeated. Returned only if y is given.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.preprocessing import with_flips
    >>> X, y = with_flips(np.arange(4).reshape(2, 1, 2, 1), ["cat", "dog"])
    >>> X[..., 0, :, 0].tolist(), y.tolist()
    ([[0, 1], [2, 3], [1, 0], [3, 2]], ['cat', 'dog', 'cat', 'dog'])
    """
    X = check_data(X, "X", "with_flips", ndims=(4,))
    xp: Any = _array.namespace(X)
    both = xp.concat([X, xp.flip(X, axis=2)], axis=0)
    if y is None:
        return both
    y = y if _array.is_torch(y) else np.asarray(y)
    if y.ndim == 0 or y.shape[0] != X.shape[0]:
        raise ValueError(message("with_flips", "y", f"None or an array of {X.shape[0]} rows, like X", y))
    return both, _array.namespace(y).concat([y, y], axis=0)
