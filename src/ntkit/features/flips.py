"""Features averaged over an image and its mirror image."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone

from ntkit import _array
from ntkit import _expression as expression
from ntkit._array import Array
from ntkit._estimator import AllOrNothing
from ntkit._images import IMAGES, Shape, check_images, check_state_of_images
from ntkit._state import COLUMNS, Declared, Estimator, Flag, Integer
from ntkit._validation import message


class FlipAveraged(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Features averaged over an image and its mirror image: Z(x) = (Z₀(x) + Z₀(flip x))/2.

    If Z₀ approximates the kernel K, then Z approximates K averaged over reflections of both arguments [1]_:

        Z(x)·Z(y) ≈ ¼ [K(x, y) + K(flip x, y) + K(x, flip y) + K(flip x, flip y)].

    This kernel does not distinguish an image from its mirror image. If K(flip x, flip y) = K(x, y), ridge regression
    with the averaged kernel and penalty λ/2 makes the same predictions as ridge regression with K and penalty λ trained
    on the images and their mirror images (:func:`with_flips`).

    Parameters
    ----------
    features : transformer or None
        Z₀, any transformer of images. It is cloned and fitted on X. It receives images in the layout of X: flat rows or
        (n, height, width, channels). None: ``RandomFourierFeatures(random_state=0)`` of flat rows.
    image_shape : (height, width, channels) or None
        Shape of the images if X has flat rows. None: each row is one pixel with a channel for each feature, and
        reflections change nothing.

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
    It takes twice the time of Z₀ and has the same number of features.

    References
    ----------
    .. [1] Haasdonk, Burkhardt, "Invariant kernel functions for pattern analysis and machine learning", Machine
       Learning 68, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.features import FlipAveraged, RandomFourierFeatures
    >>> from ntkit.preprocessing import flip_images
    >>> X = np.random.default_rng(0).random((10, 4, 4, 3))
    >>> features = FlipAveraged(RandomFourierFeatures(n_components=64, random_state=0), image_shape=(4, 4, 3))
    >>> Z = features.fit_transform(X.reshape(10, 48))
    >>> Z.shape, np.allclose(Z, features.transform(flip_images(X).reshape(10, 48)))
    ((10, 64), True)
    """

    _state: ClassVar[dict[str, Any]] = {
        **COLUMNS,
        **IMAGES,
        "features_": Estimator(("transform",)),
        "_flat": Flag(),
        "_n_features_out": Integer(1),
    }

    def __init__(self, features: Any = None, *, image_shape: Shape | None = None):
        self.features = features
        self.image_shape = image_shape

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the features on images.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or flattened images, one per row
        y : targets or None
            Passed on to `features`.

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
        X : array or torch tensor of shape (n_samples, height, width, channels), or flattened images, one per row

        Returns
        -------
        array of shape (n_samples, n_components)
            Of the array type that `features` returns.
        """
        images = check_images(self, X, self.image_shape, reset=False)
        mirrored = _array.namespace(images).flip(images, axis=2)
        halves = [self.features_.transform(self._as_given(side, X)) / 2 for side in (images, mirrored)]
        return halves[0] + halves[1]  # halve before adding: sums of uint8 features would overflow

    def expression(self, X: Array) -> Array:
        """Compute the averaged features as one expression of array operations, without validating X.

        Parameters
        ----------
        X : torch tensor or traced array with images or rows
        """
        xp: Any = _array.namespace(X)
        images = xp.reshape(X, (-1, *self.image_shape_))
        sides = (self._as_given(side, X) for side in (images, xp.flip(images, axis=2)))
        halves = [expression.features(self.features_, side) / 2 for side in sides]
        return halves[0] + halves[1]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        check_state_of_images(self)

    def _as_given(self, images: Array, X: Any) -> Array:
        """Return images in the layout of X."""
        if getattr(X, "ndim", 2) == 4 and not self._flat:
            return images
        return _array.namespace(images).reshape(images, (images.shape[0], -1))

    @staticmethod
    def _default() -> Any:
        from ntkit.features.fourier import RandomFourierFeatures

        return RandomFourierFeatures(random_state=0)
