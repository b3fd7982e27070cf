"""Images made fit for a kernel: standardized, or whitened as a whole or by patches."""

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
    beside,
    channel_averages,
    channel_means,
    inverse_root,
    moments,
    product_dtype,
    to_host,
)

TINY = float(np.finfo(np.float64).tiny)


class _ImageTransformer(Declared, AllOrNothing, TransformerMixin, BaseEstimator):
    """Base class: images in, images of the same library and layout out, in batches."""

    image_shape: Shape | None
    _in_transform: ClassVar[tuple[str, ...]] = ()
    """Parameters that `transform` needs, as they were when `fit` was called."""
    _state: ClassVar[dict[str, Any]] = {**COLUMNS, **IMAGES, "_settings": Mapping(Field())}

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn from images.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or rows that are such images laid flat
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
        """Return the images made from X.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, height, width, channels), or rows that are such images laid flat

        Returns
        -------
        array or torch tensor
            Images, or flat rows if X has these, on the device of X; in the dtype of X if it is a floating one, float32
            for whole numbers of 8 or 16 bits, and float64 for longer ones.
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
        """Images, or flat rows if X has these, as one expression of array operations, without checks.

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
        """Raise if a parameter is wrong."""

    @abstractmethod
    def _learn(self, images: Array) -> None:
        """Set what is fitted."""

    @abstractmethod
    def _apply(self, images: Array, dtype: Any) -> Array:
        """Images made from a batch, with products in some dtype."""

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        """Raise unless shapes fit; transform needs the parameters of `fit`, which a file has as the present ones."""
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
        """Memory that `_apply` needs."""
        return 32 * int(np.prod(self.image_shape_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class ImageStandardizer(OneToOneFeatureMixin, _ImageTransformer):
    """Images with channels of mean 0 and deviation 1: (x − mean)/scale, with two numbers for each channel.

    Mean and deviation are those of a channel over all pixels of all training images. A constant channel becomes 0: its
    scale is 1.

    Parameters
    ----------
    image_shape : (height, width, channels) or None
        Shape of the images that are given as flat rows; None: one pixel with a channel for each feature.

    Attributes
    ----------
    mean_, scale_ : ndarray of shape (channels,)
    image_shape_ : (height, width, channels)
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Sums are in float64, over batches of images: images of bytes are never all held as floating-point numbers by `fit`.

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
        """Nothing to check: the shape is checked with the images."""

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        if len(self.mean_) != self.image_shape_[2]:
            raise ValueError(f"{type(self).__name__} must have a mean for each of {self.image_shape_[2]} channels")

    def _learn(self, images: Array) -> None:
        self.mean_ = channel_means(images)
        deviation = np.sqrt(channel_averages(images, lambda x: (x - beside(self.mean_, x)) ** 2))
        check_overflow(deviation, images, type(self).__name__, "deviations")
        self.scale_ = np.where(deviation > 0, deviation, 1.0)

    def _apply(self, images: Array, dtype: Any) -> Array:  # noqa: ARG002
        images = _array.widen(images)
        return (images - beside(self.mean_, images)) / beside(self.scale_, images)


class ZCAWhitening(OneToOneFeatureMixin, _ImageTransformer):
    """Whitening of whole images: z = W (x − μ) with W = (C + ε I)^{-1/2}, [1]_.

    μ is the mean and C = (1/n) Σ (x − μ)(x − μ)ᵀ the covariance of the training images as vectors of d numbers, and
    ε = `regularization` · tr(C)/d. Of all matrices that whiten (W C Wᵀ = I for ε = 0) the symmetric one changes images
    the least. With `per_image`, x stands for (x − m)/s here, with the mean m and the deviation s of the d numbers of
    that image; a constant image becomes 0. The result does not depend on the scale of the images (0 to 255 or 0 to 1),
    with `per_image` not even on that of each.

    Parameters
    ----------
    regularization : float ≥ 0, default=0.1
        ε in units of the mean eigenvalue of C. 0 needs a regular C, thus more images than d.
    image_shape : (height, width, channels) or None
        Shape of the images that are given as flat rows; None: one pixel with a channel for each feature.
    per_image : bool, default=True
        Whether each image is first brought to mean 0 and deviation 1.

    Attributes
    ----------
    mean_ : array of shape (d,)
        μ.
    whitening_ : array of shape (d, d)
        W, symmetric. Both are float64, of the library and on the device of the training images; images of any other are
        taken too.
    regularization_ : float
        ε.
    image_shape_ : (height, width, channels)
    n_features_in_ : int
        d.
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(n d²) for C and O(d³) for W, in float64, and O(d²) for each image that is transformed, in its own precision on
    the host and in float64 on a GPU (TF32 would leave three digits). On a GPU W comes from a Newton–Schulz iteration
    (Chapter 6 of [2]_), which has matrix products only, or from eigenvectors where that leaves a residual: where
    C + ε I is nearly singular. If all training images are the same, tr(C)/d is taken as 1.

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
        rows = xp.astype(rows - beside(self.mean_, rows), dtype, copy=False)
        return xp.reshape(xp.matmul(rows, beside(self.whitening_, rows)), images.shape)

    def _rows(self, images: Array) -> Array:
        """Images as float64 vectors, each standardized by itself if wanted."""
        xp: Any = _array.namespace(images)
        rows = _array.widen(xp.reshape(images, (images.shape[0], -1)))
        if not self._settings["per_image"]:
            return rows
        rows = rows - rows[:, :1]  # first, so that constant images are 0 without rounding
        rows = rows - xp.mean(rows, axis=1, keepdims=True)
        deviation = xp.sqrt(xp.mean(rows**2, axis=1, keepdims=True))
        return rows / xp.where(deviation > 0, deviation, xp.ones_like(deviation))


class PatchWhitening(ClassNamePrefixFeaturesOutMixin, _ImageTransformer):
    """Whitened patches as the channels of a pixel: a convolution that images of natural scenes gain from, [1]_.

    Around each pixel there is a patch of q×q pixels, as a vector p of q²c numbers after the mean of each of the c
    channels was subtracted, with 0 outside of the image. The pixel becomes

        z = (Λ + ε I)^{-1/2} Vᵀ (p − μ),

    with the mean μ and the covariance C = V Λ Vᵀ of patches drawn from the training images, the k largest eigenvalues
    Λ in descending order, and ε = `regularization` · tr(C)/(q²c). With `contrast`, p stands for
    (p − m)/√(s² + contrast) here, with the mean m and the variance s² of the numbers of that patch.

    Parameters
    ----------
    patch_size : int, default=5
        q. Pixels of the patch that are outside of the image for all its pixels are left out: images of one pixel have
        patches of one.
    n_components : int or None
        Number k of channels that come out; None: all q²c. Inner products are then those of ZCA whitening, which
        differs by the rotation V.
    regularization : float ≥ 0, default=0.1
        ε in units of the mean eigenvalue. 0 needs positive eigenvalues.
    n_patches : int, default=100_000
        Patches drawn from the training images, without replacement; all if there are no more.
    padding : {"same", "valid"}
        Whether there is a patch around each pixel, or only where it fits into the image.
    contrast : float > 0 or None
        Constant of the normalization of each patch, in squared units of the images (10 for 0 to 255 in [1]_); None:
        patches are not normalized.
    image_shape : (height, width, channels) or None
        Shape of the images that are given as flat rows; None: one pixel with a channel for each feature.
    random_state : None, int, RandomState or Generator
        Draws the patches in `fit`.

    Attributes
    ----------
    channel_mean_ : ndarray of shape (channels,)
        Mean of each channel over all training images.
    mean_ : ndarray of shape (q²c,)
        μ, ordered as (row, column, channel) of the patch.
    components_ : ndarray of shape (k, q²c)
        (Λ + ε I)^{-1/2} Vᵀ. The entry of the largest size in each row is positive.
    regularization_ : float
        ε.
    image_shape_, output_shape_ : (height, width, channels)
        Shapes of the images that come in and go out.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(q²c k) for each pixel, by matrix products over batches of images, in their own precision on the host and in
    float64 on a GPU. If all patches are the same, tr(C)/(q²c) is taken as 1.

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
        chosen.sort()  # neighbours in memory are read together
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
        """Check that the patches have the sizes that the parameters give."""
        super()._check_state(limit)
        sizes = self._set_shapes(), self.output_shape_[2], self.image_shape_[2]
        if sizes != (len(self.mean_), len(self.components_), len(self.channel_mean_)):
            raise ValueError(f"The components of {type(self).__name__} do not fit its images")

    def _set_shapes(self) -> int:
        """Set the shape of the images that go out, and return the length of a patch."""
        (rows, before, after), (columns, left, right) = self._place_patches()
        size = (before + after + 1) * (left + right + 1) * self.image_shape_[2]
        k = self._settings["n_components"] or size
        self.output_shape_ = rows, columns, check_int(k, "n_components", type(self).__name__, minimum=1, maximum=size)
        self._n_features_out = int(np.prod(self.output_shape_))
        return size

    def _place_patches(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """For rows and for columns: number of patches, and the pixels of a patch before and after its centre."""
        size, same = int(self._settings["patch_size"]), self._settings["padding"] == "same"
        if not same and size > min(self.image_shape_[:2]):
            rule = f"at most {min(self.image_shape_[:2])} for images of shape {self.image_shape_} and padding='valid'"
            raise ValueError(message(type(self).__name__, "patch_size", rule, size, "Or use padding='same'."))

        def along(n_pixels: int) -> tuple[int, int, int]:
            before, after = min((size - 1) // 2, n_pixels - 1), min(size // 2, n_pixels - 1)
            return n_pixels if same else n_pixels - size + 1, before, after

        return along(self.image_shape_[0]), along(self.image_shape_[1])

    def _cut(self, images: Array, numbers: np.ndarray) -> Array:
        """Patches with certain numbers, counted over images, rows and columns, as float64 vectors."""
        (n_rows, before, after), (n_columns, left, right) = self._place_patches()
        same = self._settings["padding"] == "same"
        image, row, column = np.unravel_index(numbers, (images.shape[0], n_rows, n_columns))
        row = row[:, None, None] + np.arange(before + after + 1)[:, None] - (before if same else 0)
        column = column[:, None, None] + np.arange(left + right + 1) - (left if same else 0)
        height, width = images.shape[1:3]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = image[:, None, None], row.clip(0, height - 1), column.clip(0, width - 1)
        patches = _array.widen(images[tuple(as_index(each, images) for each in index)])
        patches = patches - beside(self.channel_mean_, patches)
        patches = patches * beside(inside[..., None], patches)
        return self._normalize(_array.namespace(images).reshape(patches, (len(numbers), -1)))

    def _normalize(self, patches: Array) -> Array:
        """The contrast of each patch (a row) made the same, if wanted."""
        contrast = self._settings["contrast"]
        if contrast is None:
            return patches
        xp: Any = _array.namespace(patches)
        patches = patches - xp.mean(patches, axis=1, keepdims=True)
        return patches / xp.sqrt(xp.mean(patches**2, axis=1, keepdims=True) + float(contrast))

    def _directions(self, covariance: np.ndarray, n_patches: int) -> np.ndarray:
        """Principal directions over the square roots of what they have of the covariance and of ε."""
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
        centred = centred - beside(self.channel_mean_, centred)
        if self._settings["padding"] == "same":
            shape = n_images, height + before + after, width + left + right, channels
            padded = xp.zeros(shape, dtype=dtype, device=_array.device(images))
            padded[:, before : before + height, left : left + width, :] = centred
        else:
            padded = xp.astype(centred, dtype, copy=False)
        patches = self._normalize(all_patches(padded, before + after + 1, left + right + 1))
        out = xp.matmul(patches, beside(self.components_.T, patches))
        out -= beside(self.components_ @ self.mean_, out)
        return xp.reshape(out, (n_images, *self.output_shape_))


def _singular(estimator: Any, what: str) -> str:
    rule = f"greater than 0 where the covariance is singular, as that of these {what} is"
    return message(
        type(estimator).__name__, "regularization", rule, estimator.regularization, "Use 0.1, or more images."
    )
