"""Gradients of finite random networks as features: what the kernels of infinite width improve upon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array, networks
from ntkit._array import Array
from ntkit._batching import row_batches, working_memory
from ntkit._random import RandomState, generator
from ntkit._validation import check_int, message
from ntkit.features import _finite
from ntkit.features._base import FeatureMap
from ntkit.features._finite import Input, Step
from ntkit.features._images import as_floats, check_images
from ntkit.networks import Dense, Layer, PiecewiseLinear, output_shape
from ntkit.networks.fold import flatten
from ntkit.programs import array_api

_WIDTH = 128
_CACHE = 2**25  # bytes for batches of images on the host: larger ones leave the cache and take twice the time


class GradientFeatures(FeatureMap):
    """Gradients of a finite random network's output: Z(x) = ∂f(x)/∂W over all trained weights.

    f has `width` units or channels in every hidden layer and one output, with weights from N(0, 1) and layers divided
    by √fan_in, in which the channels of the input do not count (Θ^(0)(x, y) = ⟨x, y⟩): a convolution of q × q patches
    of w channels is divided by q √w, the first one by q. As the width grows, Z(x)·Z(y) tends to the NTK of the network.
    For Dense, ReLU, Dense these are, for unit k, √(2/w) a_k Step(w_k·x) x and √(2/w) ReLU(w_k·x): the "GradRF" baseline
    of [1]_. It needs many more features than the other maps for the same error.

    Parameters
    ----------
    net : Layer or None
        A network of :mod:`ntkit.networks`, on vectors or images, with at least one trained layer; None:
        ``fully_connected(1)``. Dense layers with ReLU, LeakyReLU or Abs between them are computed in the library of X,
        all others in torch (``pip install ntkit[torch]``), whatever X is.
    width : int or None
        Units or channels of hidden layers; None: 128, or what `n_components` allows.
    n_components : int or None
        Largest number of features, from which the width is found; for use in place of `width`. If it is less than
        a network of width 1 has weights, so many of them are chosen at random (and scaled, to keep the mean).
    image_shape : tuple (height, width, channels) or None
        Shape of the images that flat rows of X stand for. None: rows are vectors, and images are given as
        (n_samples, height, width, channels).
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the weights in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    width_ : int
        Units or channels of hidden layers.
    weights_ : list of ndarray
        Weights of all layers in order, (fan_out, fan_in) each; fan_in counts the rows, columns and channels of a patch
        in this order, and a Dense layer after Flatten has one patch, the image.
    image_shape_ : tuple
        Shape of the images, if X holds such.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The number of features is that of trained weights, d w + (L − 1) w² + w for ``fully_connected(L)`` and
    (L − 1) q² w² for ``cntk(L, q)``. Time and memory per row are of that order, time for a convolution as many times
    more as its output has pixels. For an error ε the width must grow as ε⁻⁴ by the known bounds (Section 1 of [1]_).

    A network that does not end in a Dense layer, but in pooling, an activation or a sum, has many outputs. It is
    followed by a Dense layer that is not trained, which leaves its NTK as it is: f is then a random combination
    of the outputs. In the same way the input itself, as a branch of a Residual, is projected to the width.

    Whole numbers of 8 or 16 bits in images give float32 features, other whole numbers float64. Zero rows have zero
    features, unless an activation is Gaussian. Gradients go through the norms of Normalize layers too, which the NTK
    takes for constants: that is a difference of order 1/w.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Section 5.
    .. [2] Arora et al., "On exact computation with an infinitely wide neural net", NeurIPS 2019, Theorem 3.1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import GradientFeatures, networks
    >>> X = np.random.default_rng(0).standard_normal((5, 10))
    >>> GradientFeatures(networks.fully_connected(2), width=16, random_state=0).fit_transform(X).shape
    (5, 432)
    """

    _on_resizing: ClassVar[dict[str, Any]] = {"width": None}

    def __init__(
        self,
        net: Layer | None = None,
        *,
        width: int | None = None,
        n_components: int | None = None,
        image_shape: tuple[int, int, int] | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.net = net
        self.width = width
        self.n_components = n_components
        self.image_shape = image_shape
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the weights for rows or images of the size of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features), or images of shape \
                (n_samples, height, width, channels)
            Only the shape of a row matters.
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        layers = self._check_layers()
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        with self._all_or_nothing():
            seed = self._new_seed()
            self._sparse = _array.is_sparse(self._check_rows(X, reset=True))
            inputs = self._inputs()
            output_shape(self._net(), (inputs,) if isinstance(inputs, int) else inputs)
            if not _count(layers, inputs, 1):
                raise ValueError(message(name, "net", "a network with a layer that is trained", self._net()))
            if not _is_chain(layers):
                _finite.import_torch()
            self.width_ = self._width(layers)
            self.weights_ = []
            for number, shape in enumerate(_shapes(layers, inputs, self.width_)):
                draws = generator(seed, number, "weights").standard_normal(shape)
                self.weights_.append(draws.astype(np.float32))
            self._layers, self._chosen = layers, None
            self._n_features_out = _count(layers, inputs, self.width_)
            if self.n_components is not None and self._n_features_out > self.n_components:
                chosen = generator(seed, "chosen").choice(self._n_features_out, self.n_components, replace=False)
                self._chosen = np.sort(chosen)
                self._n_features_out = self.n_components
        return self

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate vectors, or images, which keep their dtype."""
        if reset and _array.is_dask(X):
            from ntkit.distributed import first_rows

            X = first_rows(X)
        if reset:
            self.__dict__.pop("image_shape_", None)
        if hasattr(self, "image_shape_") or (reset and (self.image_shape is not None or getattr(X, "ndim", 2) == 4)):
            images = check_images(self, X, self.image_shape, reset=reset)
            return images if _array.is_torch(images) else np.asarray(images)
        return super()._check_rows(X, reset=reset)

    def _transform(self, X: Array) -> Array:
        """The gradients with respect to the trained layers one after the other, each in C order."""
        X = self._as_images(X)
        n_rows = X.shape[0]
        steps = _finite.resolve(self._layers, self._inputs(), self.width_)
        out: Any = None
        for rows in self._batches(steps, X):
            block = X[rows].toarray() if _array.is_sparse(X) else X[rows, ...]
            xp: Any = _array.namespace(block)
            block = as_floats(block) if block.ndim == 4 else xp.astype(block, _array.result_dtype(X), copy=False)
            Z = self._gradients(steps, block)
            if Z.shape[0] == n_rows:
                return Z
            if out is None:
                out = xp.empty((n_rows, Z.shape[1]), dtype=Z.dtype, device=_array.device(Z))
            out[rows, :] = Z
        return out

    def _batches(self, steps: Sequence[Step], X: Array) -> Iterator[slice]:
        bytes_per_row = 8 * (_finite.floats_per_row(steps) + self.n_features_in_)
        like = None if _array.is_sparse(X) else X
        batch_size = self.batch_size
        if batch_size is None and X.ndim == 4 and _array.host_view(X) is not None:
            batch_size = max(1, min(_CACHE, working_memory()) // bytes_per_row)
        return row_batches(X.shape[0], bytes_per_row, batch_size=batch_size, like=like)

    def _gradients(self, steps: Sequence[Step], X: Array) -> Array:
        if _is_chain(self._layers):
            Z = _chain_gradients(self._layers, self.weights_, X)
        else:
            Z = _finite.gradients(steps, self.weights_, X)
        return Z if self._chosen is None else array_api.take(Z, self._chosen) * (Z.shape[1] / len(self._chosen)) ** 0.5

    def _kernel(self, X: Array) -> Array:
        from ntkit.kernels import network_kernel

        return network_kernel(self._net(), self._as_images(X), kind="ntk")

    def _net(self) -> Layer:
        return networks.fully_connected(1) if self.net is None else self.net

    def _inputs(self) -> Input:
        return getattr(self, "image_shape_", self.n_features_in_)

    def _as_images(self, X: Array) -> Array:
        """Rows of images in their shape, vectors as they are."""
        return _array.namespace(X).reshape(X, (-1, *self.image_shape_)) if hasattr(self, "image_shape_") else X

    def _check_layers(self) -> list[Layer]:
        """All layers, a Dense layer last, or an error if there is no network."""
        net = self._net()
        if not isinstance(net, Layer):
            rule = "a network of ntkit.networks, such as networks.fully_connected(2)"
            raise TypeError(message(type(self).__name__, "net", rule, net))
        layers = list(flatten(net))
        return layers if layers and isinstance(layers[-1], Dense) else [*layers, Dense(trainable=False)]

    def _width(self, layers: list[Layer]) -> int:
        name = type(self).__name__
        if self.width is not None and self.n_components is not None:
            raise ValueError(
                f"The 'width' and 'n_components' parameters of {name} exclude each other. Got {self.width} and "
                f"{self.n_components}; leave one None."
            )
        if self.n_components is None:
            return _WIDTH if self.width is None else check_int(self.width, "width", name, minimum=1)
        most = check_int(self.n_components, "n_components", name, minimum=1)
        inputs = self._inputs()
        if _count(layers, inputs, 1) > most:
            return 1
        low, high = 1, most + 1
        if _count(layers, inputs, high) == _count(layers, inputs, low):
            return _WIDTH
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _count(layers, inputs, middle) <= most else (low, middle)
        return low


def _is_chain(layers: list[Layer]) -> bool:
    """Whether Dense layers and piecewise linear activations alternate, which needs no torch."""
    return len(layers) % 2 == 1 and all(
        isinstance(layer, PiecewiseLinear if number % 2 else Dense) for number, layer in enumerate(layers)
    )


def _shapes(layers: list[Layer], inputs: Input, width: int) -> list[tuple[int, int]]:
    """(fan_out, fan_in) of every layer with weights."""
    return [layer.shape for layer in _finite.linears(_finite.resolve(layers, inputs, width))]


def _count(layers: list[Layer], inputs: Input, width: int) -> int:
    """Number of trained weights."""
    steps = _finite.resolve(layers, inputs, width)
    return sum(prod(layer.shape) for layer in _finite.linears(steps) if layer.trainable)


def _chain_gradients(layers: list[Layer], weights: list[np.ndarray], x: Array) -> Array:
    """Forward, then backward: the gradient of W is the outer product of what comes back and what went in."""
    xp: Any = _array.namespace(x)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    activations = layers[1::2]
    matrices, inputs, slopes = [], [], []
    for number, (layer, drawn) in enumerate(zip(dense, weights, strict=True)):
        # What goes in, scaled, with a column for biases: h is its product with W as drawn.
        fan_in = drawn.shape[1] - (layer.bias_std > 0)
        x = x * (layer.weight_std / (fan_in**0.5 if number else 1.0))
        inputs.append(xp.concat([x, xp.full_like(x[:, :1], layer.bias_std)], axis=1) if layer.bias_std else x)
        matrices.append(xp.astype(xp.asarray(drawn, device=_array.device(x)), x.dtype))
        h = xp.matmul(inputs[-1], xp.matrix_transpose(matrices[-1]))
        if number < len(activations):
            activation: Any = activations[number]
            slopes.append(activation.scale * activation.sigma_prime(h))
            x = h * slopes[-1]
    back = xp.ones((x.shape[0], 1), dtype=x.dtype, device=_array.device(x))
    parts = []
    for number in reversed(range(len(dense))):
        if dense[number].trainable:
            outer = back[:, :, None] * inputs[number][:, None, :]
            parts.append(xp.reshape(outer, (x.shape[0], -1)))
        if number:
            fan_in = weights[number].shape[1] - (dense[number].bias_std > 0)
            back = xp.matmul(back, matrices[number][:, :fan_in]) * (dense[number].weight_std / fan_in**0.5)
            back = back * slopes[number - 1]
    return xp.concat(parts[::-1], axis=1)
