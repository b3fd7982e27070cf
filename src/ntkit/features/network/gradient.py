"""Gradients of finite random networks as features: a baseline for the kernels of infinite width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from ntkit import _array, networks
from ntkit._array import Array
from ntkit._batching import working_memory
from ntkit._images import RowOrImageInput
from ntkit._random import RandomState, generator
from ntkit._validation import check_int, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.draws import RowDraws
from ntkit.features.network import finite
from ntkit.features.network.finite import Step
from ntkit.kernels import KernelSpec
from ntkit.networks import Dense, Layer, PiecewiseLinear, UnsupportedError, output_shape
from ntkit.networks.fold import flatten
from ntkit.programs import array_api

_DEFAULT_WIDTH = 128  # units or channels of hidden layers
_BATCH_BYTES = 2**25  # size of batches of images on the host; larger batches leave the cache and take twice the time


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientPlan(Plan):
    """A network of finite width, as steps; `n_components` of its gradients are kept."""

    layers: tuple[Layer, ...]
    steps: tuple[Step, ...]
    width: int
    n_components: int

    @property
    def n_weights(self) -> int:
        """Number of trained weights."""
        return count_weights(self.steps)


class GradientDraws(RowDraws):
    """The weights of the network, one matrix for each layer, and the indices of the gradients that are kept."""

    threaded = False

    def __init__(self, plan: GradientPlan, seed: np.random.SeedSequence):
        super().__init__()
        self.plan, self.n_components = plan, plan.n_components
        shapes = [layer.shape for layer in finite.linears(plan.steps)]
        self.weights = [
            generator(seed, number, "weights").standard_normal(shape).astype(np.float32)
            for number, shape in enumerate(shapes)
        ]
        self.chosen = None
        if plan.n_weights > plan.n_components:
            chosen = generator(seed, "chosen").choice(plan.n_weights, plan.n_components, replace=False)
            self.chosen = np.sort(chosen)

    def features(self, X: Array, tables: Any) -> Array:
        """Compute the gradients with respect to the trained layers one after the other, each in C order."""
        X = X.toarray() if _array.is_sparse(X) else X
        if _is_chain(self.plan.layers):
            Z = _chain_gradients(self.plan.layers, self.weights, X)
        else:
            Z = finite.gradients(self.plan.steps, self.weights, X)
        return Z if self.chosen is None else array_api.take(Z, self.chosen) * (Z.shape[1] / len(self.chosen)) ** 0.5

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`."""
        return finite.floats_per_row(self.plan.steps) + int(np.prod(X.shape[1:]))

    def rows_at_once(self, X: Array) -> int | None:
        """See :meth:`RowDraws.rows_at_once`."""
        if X.ndim == 4 and _array.host_view(X) is not None:
            return max(1, min(_BATCH_BYTES, working_memory()) // (8 * self.numbers_per_row(X)))
        return None


class GradientFeatures(RowOrImageInput, FeatureMap):
    """Gradients of a finite random network's output: Z(x) = ∂f(x)/∂W over all trained weights.

    f has `width` units or channels in every hidden layer and one output. Weights are from N(0, 1), and layers are
    divided by √fan_in, where the channels of the input do not count (Θ^(0)(x, y) = ⟨x, y⟩): a convolution of q × q
    patches of w channels is divided by q √w, the first convolution by q. As the width grows, Z(x)·Z(y) tends to the NTK
    of the network. For Dense, ReLU, Dense, the features of unit k are √(2/w) a_k Step(w_k·x) x and √(2/w) ReLU(w_k·x).
    This is the "GradRF" baseline of [1]_. It needs many more features than the other maps for the same error.

    Parameters
    ----------
    net : Layer or None
        A network of :mod:`ntkit.networks`, on vectors or images, with at least one trained layer; None:
        ``fully_connected(1)``. Dense layers with ReLU, LeakyReLU or Abs between them are computed in the library of X,
        all other networks in torch (``pip install ntkit[torch]``), for any X.
    width : int or None
        Units or channels of hidden layers; None: 128, or the largest width that `n_components` allows.
    n_components : int or None
        Largest number of features, which determines the width; use it instead of `width`. If a network of width 1 has
        more weights than this, `n_components` of them are chosen at random (and scaled to keep the mean).
    image_shape : tuple (height, width, channels) or None
        Shape of the images if X has flat rows. None: rows are vectors, and images are given as
        (n_samples, height, width, channels).
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the weights in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    width_ : int
        Units or channels of hidden layers.
    weights_ : list of ndarray
        Weights of all layers in order, each (fan_out, fan_in). fan_in runs over the rows, columns and channels of a
        patch in this order; a Dense layer after Flatten has one patch, the image. Layers with biases have one more
        column.
    image_shape_ : tuple
        Shape of the images, if X has images.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The number of features is the number of trained weights: d w + (L − 1) w² + w for ``fully_connected(L)`` and
    (L − 1) q² w² for ``cntk(L, q)``. Time and memory per row are of this order; the time of a convolution is multiplied
    by the number of pixels of its output. For an error ε the width must grow as ε⁻⁴ by the known bounds (Section 1 of
    [1]_).

    A network that ends in pooling, an activation or a sum instead of a Dense layer has many outputs. It is followed by
    a Dense layer that is not trained, which does not change its NTK: f is then a random combination of the outputs. In
    the same way, if the input itself is a branch of a Residual, it is projected to the width.

    Images of 8-bit or 16-bit integers give float32 features, other integers float64. Zero rows have zero features,
    unless an activation is Gaussian. Gradients also go through the norms of Normalize layers, which the NTK treats as
    constants; the difference is of order 1/w.

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

    _remade: ClassVar[tuple[str, ...]] = ("width_",)

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

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> GradientPlan:
        name, net = type(self).__name__, self._net()
        layers = self._check_layers(net)
        output_shape(net, shape)
        try:
            n_weights = count_weights(finite.resolve(layers, shape, 1))
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error
        if not n_weights:
            raise ValueError(message(name, "net", "a network with at least one trained layer", net))
        if not _is_chain(layers):
            finite.import_torch()
        width = self._width(layers, shape)
        steps = finite.resolve(layers, shape, width)
        m = count_weights(steps) if self.n_components is None else min(self.n_components, count_weights(steps))
        kernel = KernelSpec.of(net, kind="ntk")
        return GradientPlan(shape=shape, kernel=kernel, layers=tuple(layers), steps=steps, width=width, n_components=m)

    def _draw(self, plan: GradientPlan, seed: np.random.SeedSequence) -> GradientDraws:
        return GradientDraws(plan, seed)

    def _draw_bytes(self, plan: GradientPlan) -> int:
        n_weights = sum(prod(layer.shape) for layer in finite.linears(plan.steps))
        return 20 * n_weights + 8 * finite.floats_per_row(plan.steps)

    def _describe(self, plan: GradientPlan, draws: GradientDraws) -> dict[str, Any]:
        return {"width_": plan.width}

    @property
    def weights_(self) -> list[np.ndarray]:
        """Weights of all layers."""
        return self._draws.weights

    def _net(self) -> Layer:
        return networks.fully_connected(1) if self.net is None else self.net

    def _check_layers(self, net: Any) -> list[Layer]:
        """Return all layers, with a Dense layer last; raise an error if `net` is not a network."""
        if not isinstance(net, Layer):
            rule = "a network of ntkit.networks, such as networks.fully_connected(2)"
            raise TypeError(message(type(self).__name__, "net", rule, net))
        layers = list(flatten(net))
        return layers if layers and isinstance(layers[-1], Dense) else [*layers, Dense(trainable=False)]

    def _width(self, layers: list[Layer], shape: tuple[int, ...]) -> int:
        name = type(self).__name__
        if self.width is not None and self.n_components is not None:
            raise ValueError(
                f"The 'width' and 'n_components' parameters of {name} are mutually exclusive. Got {self.width} and "
                f"{self.n_components}. Set one of them to None."
            )
        if self.n_components is None:
            return _DEFAULT_WIDTH if self.width is None else check_int(self.width, "width", name, minimum=1)
        most = check_int(self.n_components, "n_components", name, minimum=1)

        def count(width: int) -> int:
            return count_weights(finite.resolve(layers, shape, width))

        if count(1) > most:
            return 1
        low, high = 1, most + 1
        if count(high) == count(low):
            return _DEFAULT_WIDTH
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if count(middle) <= most else (low, middle)
        return low


def count_weights(steps: Sequence[Step]) -> int:
    """Count the trained weights."""
    return sum(prod(layer.shape) for layer in finite.linears(steps) if layer.trainable)


def _is_chain(layers: Sequence[Layer]) -> bool:
    """Return whether Dense layers and piecewise linear activations alternate; such networks do not need torch."""
    return len(layers) % 2 == 1 and all(
        isinstance(layer, PiecewiseLinear if number % 2 else Dense) for number, layer in enumerate(layers)
    )


def _chain_gradients(layers: Sequence[Layer], weights: list[np.ndarray], x: Array) -> Array:
    """Compute gradients by a forward and a backward pass.

    The gradient of W is the outer product of the gradient of the layer's output and the layer's input.
    """
    xp: Any = _array.namespace(x)
    dense = [layer for layer in layers if isinstance(layer, Dense)]
    activations = layers[1::2]
    matrices, inputs, slopes = [], [], []
    for number, (layer, drawn) in enumerate(zip(dense, weights, strict=True)):
        # The scaled input of the layer, with a column for biases: h is its product with W as drawn.
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
