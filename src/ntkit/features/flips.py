"""Images and their mirror images: trained on both, or features averaged over both."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing
from ntkit._validation import check_data, message
from ntkit.features._images import Shape, check_images


class FlipAveraged(AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features averaged over an image and its mirror image: Z(x) = (Z₀(x) + Z₀(flip x))/2.

    If Z₀ has the kernel K, then Z has the kernel averaged over reflections of both arguments, [1]_:

        Z(x)·Z(y) ≈ ¼ [K(x, y) + K(flip x, y) + K(x, flip y) + K(flip x, flip y)],

    for which an image and its mirror image are the same. If K(flip x, flip y) = K(x, y), ridge regression with it and
    the penalty λ/2 predicts what that with K and λ predicts when trained on mirror images too (:func:`with_flips`).

    Parameters
    ----------
    features : transformer or None
        Z₀, any transformer of images. It gets them as X has them, flat rows or (n, height, width, channels), and is
        cloned and fitted on X. None: ``RandomFourierFeatures(random_state=0)`` of flat rows.
    image_shape : (height, width, channels) or None
        Shape of the images that are given as flat rows; None: one pixel with a channel for each feature, for which a
        reflection changes nothing.

    Attributes
    ----------
    features_ : transformer
        Z₀, fitted.
    image_shape_ : (height, width, channels)
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Twice the time of Z₀, and the same number of features.

    References
    ----------
    .. [1] Haasdonk, Burkhardt, "Invariant kernel functions for pattern analysis and machine learning", Machine
       Learning 68, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.features import FlipAveraged, RandomFourierFeatures, flip_images
    >>> X = np.random.default_rng(0).random((10, 4, 4, 3))
    >>> features = FlipAveraged(RandomFourierFeatures(64, random_state=0), image_shape=(4, 4, 3))
    >>> Z = features.fit_transform(X.reshape(10, 48))
    >>> Z.shape, np.allclose(Z, features.transform(flip_images(X).reshape(10, 48)))
    ((10, 64), True)
    """

    def __init__(self, features: Any = None, *, image_shape: Shape | None = None):
        self.features = features
        self.image_shape = image_shape

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the features on images.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or rows that are such images laid flat
        y : targets or None
            For the features.

        Returns
        -------
        self
        """
        name = type(self).__name__
        if self.features is not None and not all(hasattr(self.features, method) for method in ("fit", "transform")):
            raise TypeError(message(name, "features", "None or a transformer with fit and transform", self.features))
        with self._all_or_nothing():
            images = check_images(self, X, self.image_shape, reset=True)
            self._flat = self.features is None
            self.features_ = self._default() if self.features is None else clone(self.features)
            self.features_.fit(self._as_given(images, X), y)
            first = self.features_.transform(self._as_given(images[:1], X))
            self._n_features_out = int(np.prod(first.shape[1:]))
        return self

    def transform(self, X: Any) -> Array:
        """Return the averaged features of images.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or rows that are such images laid flat

        Returns
        -------
        array of shape (n_samples, n_components)
            Whatever the features return.
        """
        images = check_images(self, X, self.image_shape, reset=False)
        mirrored = _array.namespace(images).flip(images, axis=2)
        halves = [self.features_.transform(self._as_given(side, X)) / 2 for side in (images, mirrored)]
        return halves[0] + halves[1]  # in this order: sums of bytes would overflow

    def _as_given(self, images: Array, X: Any) -> Array:
        """Images in the layout of X."""
        if getattr(X, "ndim", 2) == 4 and not self._flat:
            return images
        return _array.namespace(images).reshape(images, (images.shape[0], -1))

    @staticmethod
    def _default() -> Any:
        from ntkit.features.fourier import RandomFourierFeatures

        return RandomFourierFeatures(random_state=0)


def flip_images(X: Any) -> Array:
    """Mirror images, left to right.

    Parameters
    ----------
    X : array or torch tensor of shape (n, height, width, channels)

    Returns
    -------
    array or torch tensor of the shape and dtype of X
        A view of NumPy arrays, a copy of tensors.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.features import flip_images
    >>> flip_images(np.arange(4).reshape(1, 2, 2, 1))[0, ..., 0]
    array([[1, 0],
           [3, 2]])
    """
    X = check_data(X, "X", "flip_images", ndims=(4,))
    return _array.namespace(X).flip(X, axis=2)


def with_flips(X: Any, y: Any = None) -> Any:
    """Images and their mirror images, to train on both.

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
        All targets twice. Only if y is given.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.features import with_flips
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
        raise ValueError(message("with_flips", "y", f"None or an array of {X.shape[0]} rows, as X has", y))
    return both, _array.namespace(y).concat([y, y], axis=0)
