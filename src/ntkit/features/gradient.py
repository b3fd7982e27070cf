"""Gradients of finite random networks as features: what the kernels of infinite width improve upon."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array, networks
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._random import RandomState, generator
from ntkit._validation import check_int, message
from ntkit.features._base import FeatureMap
from ntkit.networks import Abs, Dense, LeakyReLU, ReLU
from ntkit.networks._layers import Layer, flatten
from ntkit.sketches._agnostic import take

_WIDTH = 128


class GradientFeatures(FeatureMap):
    """Gradients of a finite random network's output: Z(x) = ∂f(x)/∂W over all trained weights.

    f has `width` units in every hidden layer and one output, with weights from N(0, 1) and layers divided by √fan_in
    (not the first: Θ^(0)(x, y) = ⟨x, y⟩). As the width grows, Z(x)·Z(y) tends to the NTK of the network. For
    Dense, ReLU, Dense these are, for unit k, √(2/w) a_k Step(w_k·x) x and √(2/w) ReLU(w_k·x): the "GradRF" baseline
    of [1]_. It needs many more features than the other maps for the same error.

    Parameters
    ----------
    net : Layer or None
        A network of :mod:`ntkit.networks` with Dense layers and piecewise linear activations (ReLU, LeakyReLU, Abs);
        None: ``fully_connected(1)``.
    width : int or None
        Units of hidden layers; None: 128, or what `n_components` allows.
    n_components : int or None
        Largest number of features, from which the width is found; for use in place of `width`. If it is less than
        a network of width 1 has weights, so many of them are chosen at random (and scaled, to keep the mean).
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the weights in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    width_ : int
        Units of hidden layers.
    weights_ : list of ndarray
        Weights of all Dense layers, (fan_out, fan_in) each.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The number of features is that of trained weights, d w + (L − 1) w² + w for ``fully_connected(L)``. Time and memory
    per row are of that order. For an error ε the width must grow as ε⁻⁴ by the known bounds (Section 1 of [1]_).

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
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.net = net
        self.width = width
        self.n_components = n_components
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the weights for rows of the size of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
            Only the number of features matters.
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
            self.width_ = self._width(layers)
            self.weights_ = []
            for number, (fan_out, fan_in) in enumerate(_shapes(layers, self.n_features_in_, self.width_)):
                draws = generator(seed, number, "weights").standard_normal((fan_out, fan_in))
                self.weights_.append(draws.astype(np.float32))
            self._layers, self._chosen = layers, None
            self._n_features_out = _count(layers, self.n_features_in_, self.width_)
            if self.n_components is not None and self._n_features_out > self.n_components:
                chosen = generator(seed, "chosen").choice(self._n_features_out, self.n_components, replace=False)
                self._chosen = np.sort(chosen)
                self._n_features_out = self.n_components
        return self

    def _transform(self, X: Array) -> Array:
        """The gradients with respect to the trained Dense layers one after the other, each in C order."""
        dtype = _array.result_dtype(X)
        n_rows = X.shape[0]
        like = None if _array.is_sparse(X) else X
        parts = []
        n_weights = _count(self._layers, self.n_features_in_, self.width_)
        bytes_per_row = 8 * 3 * (n_weights + X.shape[1])
        for rows in row_batches(n_rows, bytes_per_row, batch_size=self.batch_size, like=like):
            block = X[rows].toarray() if _array.is_sparse(X) else X[rows, :]
            xp: Any = _array.namespace(block)
            gradients = _gradients(self._layers, self.weights_, xp.astype(block, dtype, copy=False))
            if self._chosen is not None:
                gradients = take(gradients, self._chosen) * (n_weights / len(self._chosen)) ** 0.5
            parts.append(gradients)
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)

    def _kernel(self, X: Array) -> Array:
        from ntkit.kernels import network_kernel

        return network_kernel(self._net(), X, kind="ntk")

    def _net(self) -> Layer:
        return networks.fully_connected(1) if self.net is None else self.net

    def _check_layers(self) -> list[Layer]:
        """Dense, activation, Dense, …, Dense, or an error that says what is not supported."""
        net = self._net()
        rule = (
            "a Sequential network of Dense layers with ReLU, LeakyReLU or Abs between them, such as "
            "networks.fully_connected(2)"
        )
        if not isinstance(net, Layer):
            raise TypeError(message(type(self).__name__, "net", rule, net))
        layers = [] if isinstance(net, networks.Residual) else list(flatten(net))
        shape_ok = len(layers) % 2 == 1 and all(
            isinstance(layer, ReLU | LeakyReLU | Abs if number % 2 else Dense) for number, layer in enumerate(layers)
        )
        if not shape_ok or not any(isinstance(layer, Dense) and layer.trainable for layer in layers):
            raise ValueError(message(type(self).__name__, "net", f"{rule}, one of them trainable", net))
        return layers

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
        d = self.n_features_in_
        if _count(layers, d, 1) > most:
            return 1
        low, high = 1, most + 1
        if _count(layers, d, high) == _count(layers, d, low):
            return _WIDTH
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _count(layers, d, middle) <= most else (low, middle)
        return low


def _shapes(layers: list[Layer], n_features: int, width: int) -> list[tuple[int, int]]:
    """(fan_out, fan_in) of every Dense layer."""
    n_dense = sum(isinstance(layer, Dense) for layer in layers)
    sizes = [n_features, *[width] * (n_dense - 1), 1]
    return list(zip(sizes[1:], sizes[:-1], strict=True))


def _count(layers: list[Layer], n_features: int, width: int) -> int:
    """Number of trained weights."""
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    shapes = _shapes(layers, n_features, width)
    return sum(a * b for (a, b), layer in zip(shapes, dense, strict=True) if layer.trainable)


def _gradients(layers: list[Layer], weights: list[np.ndarray], x: Array) -> Array:
    """Forward, then backward: the gradient of W is the outer product of what comes back and what went in."""
    from ntkit.kernels.activations import negative_slope, second_moment

    xp: Any = _array.namespace(x)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    activations = layers[1::2]
    matrices, inputs, slopes = [], [x], []
    for number, (layer, drawn) in enumerate(zip(dense, weights, strict=True)):
        scale = layer.weight_std / (drawn.shape[1] ** 0.5 if number else 1.0)
        matrices.append(xp.astype(xp.asarray(drawn, device=_array.device(x)), x.dtype) * scale)
        h = xp.matmul(inputs[-1], xp.matrix_transpose(matrices[-1]))
        if number < len(activations):
            activation: Any = activations[number]
            up = second_moment(activation) ** -0.5 if activation.normalize else 1.0
            down = up * negative_slope(activation)
            slopes.append(xp.where(h > 0, xp.full_like(h, up), xp.full_like(h, down)))
            slopes[-1] = xp.where(h == 0, xp.zeros_like(h), slopes[-1])
            inputs.append(h * slopes[-1])
    back = xp.ones((x.shape[0], 1), dtype=x.dtype, device=_array.device(x))
    parts = []
    for number in reversed(range(len(dense))):
        if dense[number].trainable:
            scale = dense[number].weight_std / (weights[number].shape[1] ** 0.5 if number else 1.0)
            outer = (scale * back)[:, :, None] * inputs[number][:, None, :]
            parts.append(xp.reshape(outer, (x.shape[0], -1)))
        if number:
            back = xp.matmul(back, matrices[number]) * slopes[number - 1]
    return xp.concat(parts[::-1], axis=1)
