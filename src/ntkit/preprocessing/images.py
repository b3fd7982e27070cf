"""Standardize images, or whiten whole images or patches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._estimator import AllOrNothing
from ntkit._images import IMAGES, Shape, as_floats, check_images, check_state_of_images
from ntkit._random import RandomState, generator, seed_sequence
from ntkit._state import COLUMNS, Declared, Field, Floats, Mapping, Real, Seed
from ntkit._validation import check_bool, check_choice, check_int, check_overflow, check_real, message
from ntkit.preprocessing.whitening import (
    all_patches,
    as_index,
    channel_averages,
    channel_means,
    constant_like,
    inverse_root,
    moments,
    product_dtype,
    to_host,
)

TINY = float(np.finfo(np.float64).tiny)  # smallest scale allowed in a file: scales must be positive


class _ImageTransformer(Declared, AllOrNothing, TransformerMixin, BaseEstimator):
    """Base class of transformers that map images to images of the same library and layout, in batches."""

    image_shape: Shape | None
    _in_transform: ClassVar[tuple[str, ...]] = ()
    """Parameters that `transform` uses with their values at the time of `fit`."""
    _state: ClassVar[dict[str, Any]] = {**COLUMNS, **IMAGES, "_settings": Mapping(Field())}

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn from images.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or flattened images as rows
        y : ignored

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_parameters()
            images = check_images(self, X, self.image_shape, reset=True)
            self._settings = {name: getattr(self, name) for name in self._in_transform}
            with np.errstate(over="ignore", invalid="ignore"):
                self._learn(images)
        return self

    def transform(self, X: Any) -> Array:
        """Transform the images in X.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or flattened images as rows

        Returns
        -------
        array or torch tensor
            Images, or flat rows if X has flat rows, on the device of X. Floating-point images keep their dtype;
            integers of 8 or 16 bits become float32, longer integers float64.
        """
        images = check_images(self, X, self.image_shape, reset=False)
        xp: Any = _array.namespace(images)
        n_images, shape = images.shape[0], self._shape_out()
        dtype = as_floats(images[:0]).dtype
        out = xp.empty((n_images, *shape), dtype=dtype, device=_array.device(images))
        for rows in row_batches(n_images, self._bytes_per_image(), like=images):
            out[rows] = self._apply(images[rows], product_dtype(images, dtype))
        check_overflow(out, images, type(self).__name__, "results")
        return out if getattr(X, "ndim", 2) == 4 else xp.reshape(out, (n_images, -1))

    def expression(self, X: Array) -> Array:
        """Transform X with array operations only, without checks; flat rows stay flat.

        Parameters
        ----------
        X : torch tensor or traced array with images or rows
        """
        check_is_fitted(self)
        xp: Any = _array.namespace(X)
        images = xp.reshape(X, (-1, *self.image_shape_))
        out = xp.astype(self._apply(images, X.dtype), X.dtype, copy=False)
        return out if X.ndim == 4 else xp.reshape(out, (X.shape[0], -1))

    @abstractmethod
    def _check_parameters(self) -> None:
        """Raise an error if a parameter is invalid."""

    @abstractmethod
    def _learn(self, images: Array) -> None:
        """Set the fitted attributes."""

    @abstractmethod
    def _apply(self, images: Array, dtype: Any) -> Array:
        """Transform a batch of images, with matrix products in `dtype`."""

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        """Raise unless the shapes are consistent. In a file, the parameters of `fit` are the current parameters."""
        self._check_parameters()
        check_state_of_images(self)
        self._settings = {name: getattr(self, name) for name in self._in_transform}

    def _file_state(self) -> dict[str, Any]:
        if self.__dict__.get("_settings") != {name: getattr(self, name) for name in self._in_transform}:
            raise ValueError(f"a {type(self).__name__} has other parameters than when it was fitted. Fit it again.")
        return super()._file_state()

    def _shape_out(self) -> Shape:
        return self.image_shape_

    def _bytes_per_image(self) -> int:
        """Return the bytes that `_apply` needs per image."""
        return 32 * int(np.prod(self.image_shape_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class ImageStandardizer(OneToOneFeatureMixin, _ImageTransformer):
    """Scale each channel to mean 0 and standard deviation 1: (x − mean)/scale.

    The mean and standard deviation of a channel are taken over all pixels of all training images. A constant channel
    becomes 0; its scale is 1.

    Parameters
    ----------
    image_shape : (height, width, channels) or None
        Shape of images given as flat rows; None: one pixel with one channel per feature.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (channels,)
    image_shape_ : (height, width, channels)
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Sums are in float64, over batches of images, so `fit` never converts all images to floating point at once.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.preprocessing import ImageStandardizer
    >>> X = np.random.default_rng(0).integers(256, size=(10, 4, 4, 3), dtype=np.uint8)
    >>> Z = ImageStandardizer().fit_transform(X)
    >>> Z.dtype, Z.shape
    (dtype('float32'), (10, 4, 4, 3))
    >>> np.allclose(Z.mean(axis=(0, 1, 2)), 0, atol=1e-6), np.allclose(Z.std(axis=(0, 1, 2)), 1)
    (True, True)
    """

    _state: ClassVar[dict[str, Any]] = {"mean_": Floats("c"), "scale_": Floats("c", minimum=TINY)}

    def __init__(self, *, image_shape: Shape | None = None):
        self.image_shape = image_shape

    def _check_parameters(self) -> None:
        """Do nothing: the shape is checked with the images."""

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        if len(self.mean_) != self.image_shape_[2]:
            raise ValueError(f"{type(self).__name__} must have a mean for each of its {self.image_shape_[2]} channels")

    def _learn(self, images: Array) -> None:
        self.mean_ = channel_means(images)
        deviation = np.sqrt(channel_averages(images, lambda x: (x - constant_like(self.mean_, x)) ** 2))
        check_overflow(deviation, images, type(self).__name__, "deviations")
        self.scale_ = np.where(deviation > 0, deviation, 1.0)

    def _apply(self, images: Array, dtype: Any) -> Array:  # noqa: ARG002
        images = _array.widen(images)
        return (images - constant_like(self.mean_, images)) / constant_like(self.scale_, images)


class ZCAWhitening(OneToOneFeatureMixin, _ImageTransformer):
    """Whiten whole images: z = W (x − μ) with W = (C + ε I)^{-1/2}, [1]_.

    μ is the mean and C = (1/n) Σ (x − μ)(x − μ)ᵀ the covariance of the training images, as vectors of d numbers, and
    ε = `regularization` · tr(C)/d. Of all whitening matrices (W C Wᵀ = I for ε = 0), the symmetric one changes images
    least. With `per_image`, x is first replaced by (x − m)/s, where m and s are the mean and standard deviation of the
    d numbers of that image; a constant image becomes 0. The result does not depend on the scale of the images (0 to 255
    or 0 to 1) or, with `per_image`, on the scale of each image.

    Parameters
    ----------
    regularization : float ≥ 0, default=0.1
        ε in units of the mean eigenvalue of C. With 0, C must be nonsingular, which takes more than d images.
    image_shape : (height, width, channels) or None
        Shape of images given as flat rows; None: one pixel with one channel per feature.
    per_image : bool, default=True
        Whether each image is first scaled to mean 0 and standard deviation 1.

    Attributes
    ----------
    mean_ : array of shape (d,)
        μ.
    whitening_ : array of shape (d, d)
        Symmetric W. `mean_` and `whitening_` are float64, in the array library and on the device of the training
        images. Images of any library and device can be transformed.
    regularization_ : float
        ε.
    image_shape_ : (height, width, channels)
    n_features_in_ : int
        d.
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    `fit` takes O(n d²) time for C and O(d³) for W, in float64. `transform` takes O(d²) per image, in the precision of
    the image on the host and in float64 on a GPU (TF32 would leave three digits). On a GPU, W comes from a
    Newton–Schulz iteration (Chapter 6 of [2]_), which uses only matrix products, or from eigenvectors if the iteration
    leaves a residual because C + ε I is nearly singular. If all training images are equal, tr(C)/d is replaced by 1.

    References
    ----------
    .. [1] Lee et al., "Finite Versus Infinite Neural Networks: an Empirical Study", NeurIPS 2020, arXiv:2007.15801.
    .. [2] Higham, "Functions of Matrices", SIAM, 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.preprocessing import ZCAWhitening
    >>> X = np.random.default_rng(0).random((200, 2, 2, 3))
    >>> X[..., 1] += X[..., 0]
    >>> Z = ZCAWhitening(regularization=0.0, per_image=False).fit_transform(X)
    >>> Z.shape, np.allclose(np.cov(Z.reshape(200, 12).T, bias=True), np.eye(12))
    ((200, 2, 2, 3), True)
    """

    _in_transform = ("per_image",)
    _state: ClassVar[dict[str, Any]] = {
        "mean_": Floats("n_features_in_"),
        "whitening_": Floats("n_features_in_", "n_features_in_"),
        "regularization_": Real(0),
    }

    def __init__(self, *, regularization: float = 0.1, image_shape: Shape | None = None, per_image: bool = True):
        self.regularization = regularization
        self.image_shape = image_shape
        self.per_image = per_image

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_real(self.regularization, "regularization", name, minimum=0)
        check_bool(self.per_image, "per_image", name)

    def _learn(self, images: Array) -> None:
        n_images, d = images.shape[0], self.n_features_in_

        def blocks() -> Iterator[Array]:
            for rows in row_batches(n_images, self._bytes_per_image(), like=images):
                yield self._rows(images[rows])

        self.mean_, covariance, size = moments(blocks, n_images)
        check_overflow(covariance, images, type(self).__name__, "covariances")
        xp: Any = _array.namespace(covariance)
        self.regularization_ = float(self.regularization) * size
        shift = self.regularization_ * xp.eye(d, dtype=covariance.dtype, device=_array.device(covariance))
        root = inverse_root(covariance + shift)
        if root is None:
            raise ValueError(_singular(self, f"{n_images} images of {d} numbers"))
        self.whitening_ = root

    def _apply(self, images: Array, dtype: Any) -> Array:
        xp: Any = _array.namespace(images)
        rows = self._rows(images)
        rows = xp.astype(rows - constant_like(self.mean_, rows), dtype, copy=False)
        return xp.reshape(xp.matmul(rows, constant_like(self.whitening_, rows)), images.shape)

    def _rows(self, images: Array) -> Array:
        """Return images as float64 vectors, each standardized separately with `per_image`."""
        xp: Any = _array.namespace(images)
        rows = _array.widen(xp.reshape(images, (images.shape[0], -1)))
        if not self._settings["per_image"]:
            return rows
        rows = rows - rows[:, :1]  # makes constant images exactly 0
        rows = rows - xp.mean(rows, axis=1, keepdims=True)
        deviation = xp.sqrt(xp.mean(rows**2, axis=1, keepdims=True))
        return rows / xp.where(deviation > 0, deviation, xp.ones_like(deviation))


class PatchWhitening(ClassNamePrefixFeaturesOutMixin, _ImageTransformer):
    """Replace each pixel by its whitened patch: a convolution that helps with images of natural scenes, [1]_.

    The patch of q×q pixels around a pixel is a vector p of q²c numbers, after the mean of each of the c channels is
    subtracted; pixels outside the image are 0. The pixel becomes

        z = (Λ + ε I)^{-1/2} Vᵀ (p − μ),

    where μ is the mean and C = V Λ Vᵀ the covariance of patches drawn from the training images, with the k largest
    eigenvalues Λ in descending order, and ε = `regularization` · tr(C)/(q²c). With `contrast`, p is first replaced by
    (p − m)/√(s² + contrast), where m and s² are the mean and variance of the numbers of that patch.

    Parameters
    ----------
    patch_size : int, default=5
        Side q of a patch. It is cut to what can lie inside the image: images of one pixel have patches of one pixel.
    n_components : int or None
        Number k of output channels; None: all q²c. With all channels, the result differs from ZCA whitening only by the
        rotation V, so its inner products are the same.
    regularization : float ≥ 0, default=0.1
        ε in units of the mean eigenvalue. With 0, all eigenvalues must be positive.
    n_patches : int, default=100_000
        Patches drawn from the training images, without replacement; all patches if there are fewer.
    padding : {"same", "valid"}
        "same": one patch around each pixel. "valid": only patches that lie inside the image.
    contrast : float > 0 or None
        Constant of the normalization of each patch, in squared units of the images (10 for 0 to 255 in [1]_); None:
        patches are not normalized.
    image_shape : (height, width, channels) or None
        Shape of images given as flat rows; None: one pixel with one channel per feature.
    random_state : None, int, RandomState or Generator
        Seed of the patches drawn in `fit`.

    Attributes
    ----------
    channel_mean_ : ndarray of shape (channels,)
        Mean of each channel over all training images.
    mean_ : ndarray of shape (q²c,)
        μ, ordered as (row, column, channel) of the patch.
    components_ : ndarray of shape (k, q²c)
        (Λ + ε I)^{-1/2} Vᵀ. The entry of largest absolute value in each row is positive.
    regularization_ : float
        ε.
    image_shape_, output_shape_ : (height, width, channels)
        Shapes of the input and output images.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    `transform` takes O(q²c k) time per pixel, by matrix products over batches of images, in the precision of the images
    on the host and in float64 on a GPU. If all patches are equal, tr(C)/(q²c) is replaced by 1.

    References
    ----------
    .. [1] Coates, Ng, "Learning Feature Representations with K-means", Neural Networks: Tricks of the Trade, 2012,
       Section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.preprocessing import PatchWhitening
    >>> X = np.random.default_rng(0).random((20, 8, 8, 3))
    >>> PatchWhitening(patch_size=3, random_state=0).fit_transform(X).shape
    (20, 8, 8, 27)
    >>> PatchWhitening(patch_size=3, n_components=10, padding="valid", random_state=0).fit_transform(X).shape
    (20, 6, 6, 10)
    """

    _in_transform = ("patch_size", "n_components", "padding", "contrast")
    _state: ClassVar[dict[str, Any]] = {
        "_seed": Seed(),
        "channel_mean_": Floats("c"),
        "mean_": Floats("size"),
        "components_": Floats("k", "size"),
        "regularization_": Real(0),
    }
    _remade: ClassVar[tuple[str, ...]] = ("output_shape_", "_n_features_out")

    def __init__(
        self,
        *,
        patch_size: int = 5,
        n_components: int | None = None,
        regularization: float = 0.1,
        n_patches: int = 100_000,
        padding: str = "same",
        contrast: float | None = None,
        image_shape: Shape | None = None,
        random_state: RandomState = None,
    ):
        self.patch_size = patch_size
        self.n_components = n_components
        self.regularization = regularization
        self.n_patches = n_patches
        self.padding = padding
        self.contrast = contrast
        self.image_shape = image_shape
        self.random_state = random_state

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check_int(self.patch_size, "patch_size", name, minimum=1)
        check_real(self.regularization, "regularization", name, minimum=0)
        check_int(self.n_patches, "n_patches", name, minimum=1)
        check_choice(self.padding, "padding", name, ("same", "valid"))
        if self.n_components is not None:
            check_int(self.n_components, "n_components", name, minimum=1)
        if self.contrast is not None:
            check_real(self.contrast, "contrast", name, minimum=0, strict=True)

    def _learn(self, images: Array) -> None:
        self._seed = seed = seed_sequence(self.random_state, owner=type(self).__name__)
        size = self._set_shapes()
        n_places = images.shape[0] * self.output_shape_[0] * self.output_shape_[1]
        n_patches = min(int(self.n_patches), n_places)
        chosen = generator(seed, "patches").choice(n_places, n_patches, replace=False)
        chosen.sort()  # read memory in order
        self.channel_mean_ = channel_means(images)

        def blocks() -> Iterator[Array]:
            for some in row_batches(n_patches, 32 * size, like=images):
                yield self._cut(images, chosen[some])

        mean, covariance, mean_eigenvalue = moments(blocks, n_patches)
        check_overflow(covariance, images, type(self).__name__, "covariances")
        self.mean_ = to_host(mean)
        self.regularization_ = float(self.regularization) * mean_eigenvalue
        self.components_ = self._directions(to_host(covariance), n_patches)

    def _check_state(self, limit: int) -> None:
        """Check that the sizes of the patches agree with the parameters."""
        super()._check_state(limit)
        sizes = self._set_shapes(), self.output_shape_[2], self.image_shape_[2]
        if sizes != (len(self.mean_), len(self.components_), len(self.channel_mean_)):
            raise ValueError(f"The components of {type(self).__name__} do not match its images")

    def _set_shapes(self) -> int:
        """Set the shape of the output images, and return the length of a patch vector."""
        (rows, before, after), (columns, left, right) = self._place_patches()
        size = (before + after + 1) * (left + right + 1) * self.image_shape_[2]
        k = self._settings["n_components"] or size
        self.output_shape_ = rows, columns, check_int(k, "n_components", type(self).__name__, minimum=1, maximum=size)
        self._n_features_out = int(np.prod(self.output_shape_))
        return size

    def _place_patches(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return, for rows and columns, the number of patches and the pixels of a patch before and after its centre."""
        size, same = int(self._settings["patch_size"]), self._settings["padding"] == "same"
        if not same and size > min(self.image_shape_[:2]):
            rule = f"at most {min(self.image_shape_[:2])} for images of shape {self.image_shape_} and padding='valid'"
            raise ValueError(message(type(self).__name__, "patch_size", rule, size, "Or use padding='same'."))

        def along(n_pixels: int) -> tuple[int, int, int]:
            before, after = min((size - 1) // 2, n_pixels - 1), min(size // 2, n_pixels - 1)
            return n_pixels if same else n_pixels - size + 1, before, after

        return along(self.image_shape_[0]), along(self.image_shape_[1])

    def _cut(self, images: Array, indices: np.ndarray) -> Array:
        """Return patches as float64 vectors. Indices run over images, rows and columns."""
        (n_rows, before, after), (n_columns, left, right) = self._place_patches()
        same = self._settings["padding"] == "same"
        image, row, column = np.unravel_index(indices, (images.shape[0], n_rows, n_columns))
        row = row[:, None, None] + np.arange(before + after + 1)[:, None] - (before if same else 0)
        column = column[:, None, None] + np.arange(left + right + 1) - (left if same else 0)
        height, width = images.shape[1:3]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = image[:, None, None], row.clip(0, height - 1), column.clip(0, width - 1)
        patches = _array.widen(images[tuple(as_index(each, images) for each in index)])
        patches = patches - constant_like(self.channel_mean_, patches)
        patches = patches * constant_like(inside[..., None], patches)
        return self._normalize(_array.namespace(images).reshape(patches, (len(indices), -1)))

    def _normalize(self, patches: Array) -> Array:
        """Normalize the contrast of each patch (a row), if `contrast` is set."""
        contrast = self._settings["contrast"]
        if contrast is None:
            return patches
        xp: Any = _array.namespace(patches)
        patches = patches - xp.mean(patches, axis=1, keepdims=True)
        return patches / xp.sqrt(xp.mean(patches**2, axis=1, keepdims=True) + float(contrast))

    def _directions(self, covariance: np.ndarray, n_patches: int) -> np.ndarray:
        """Return the principal directions divided by √(eigenvalue + ε)."""
        k = self.output_shape_[2]
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = values[: -k - 1 : -1] + self.regularization_, vectors[:, : -k - 1 : -1].T
        if values[-1] <= values[0] * len(covariance) * np.finfo(np.float64).eps:
            raise ValueError(_singular(self, f"{n_patches} patches of {len(covariance)} numbers"))
        largest = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1)
        return vectors * np.sign(largest) / np.sqrt(values[:, None])

    def _shape_out(self) -> Shape:
        return self.output_shape_

    def _bytes_per_image(self) -> int:
        k, size = self.components_.shape
        return 8 * (self.output_shape_[0] * self.output_shape_[1] * (3 * size + 2 * k) + 3 * self.n_features_in_)

    def _apply(self, images: Array, dtype: Any) -> Array:
        xp: Any = _array.namespace(images)
        (_, before, after), (_, left, right) = self._place_patches()
        n_images, height, width, channels = images.shape
        centred = _array.widen(images)
        centred = centred - constant_like(self.channel_mean_, centred)
        if self._settings["padding"] == "same":
            shape = n_images, height + before + after, width + left + right, channels
            padded = xp.zeros(shape, dtype=dtype, device=_array.device(images))
            padded[:, before : before + height, left : left + width, :] = centred
        else:
            padded = xp.astype(centred, dtype, copy=False)
        patches = self._normalize(all_patches(padded, before + after + 1, left + right + 1))
        out = xp.matmul(patches, constant_like(self.components_.T, patches))
        out -= constant_like(self.components_ @ self.mean_, out)
        return xp.reshape(out, (n_images, *self.output_shape_))


def _singular(estimator: Any, what: str) -> str:
    rule = f"greater than 0, because the covariance of these {what} is singular"
    return message(
        type(estimator).__name__, "regularization", rule, estimator.regularization, "Use 0.1, or more images."
    )
