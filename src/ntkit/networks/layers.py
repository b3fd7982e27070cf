"""Layers as frozen dataclasses. Activations and their mathematics are in their own file."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple, TypeAlias

from ntkit._validation import check_bool, check_choice, check_int, check_real, message

Size: TypeAlias = int | tuple[int, int]


class Layer:
    """Base class of all layers. Equal descriptions compare and hash equal."""

    def __repr__(self) -> str:
        """Return the constructor call without default values."""
        specs = sorted(fields(self), key=lambda spec: bool(spec.kw_only))  # type: ignore[arg-type]
        values = [(spec, getattr(self, spec.name)) for spec in specs]
        parts = [
            f"{spec.name}={value!r}" if spec.kw_only else repr(value)
            for spec, value in values
            if spec.default is MISSING or value != spec.default
        ]
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Dense(Layer):
    """Fully connected layer on vectors, x ↦ ``weight_std`` · W x / √fan_in + ``bias_std`` · β.

    Parameters
    ----------
    trainable : bool, default=True
        Whether the layer's weights and biases contribute to the tangent kernel. A frozen layer is still applied.
    weight_std : float > 0, default=1.0
        Standard deviation of the weights before division by √fan_in.
    bias_std : float ≥ 0, default=0.0
        Standard deviation of the biases, one for each unit (of a convolution: each channel).

    Examples
    --------
    >>> Dense(trainable=False, bias_std=0.1)
    Dense(trainable=False, bias_std=0.1)
    """

    trainable: bool = field(default=True, kw_only=True)
    weight_std: float = field(default=1.0, kw_only=True)
    bias_std: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        _set_weights(self)


@dataclass(frozen=True, repr=False)
class Conv(Layer):
    """Convolution of images with a filter of ``kernel_size`` × ``kernel_size`` pixels.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Height and width of the filter, odd or even.
    stride : int or (int, int), default=1
        Step between outputs.
    padding : {"same", "valid"}, default="same"
        "same" pads with zeros to ⌈size / stride⌉ outputs; an odd zero goes to the bottom or right.
        "valid" uses whole patches only.
    trainable, weight_std, bias_std
        As for :class:`Dense`.

    Examples
    --------
    >>> Conv(3, stride=2)
    Conv(3, stride=2)
    """

    kernel_size: Size
    stride: Size = field(default=1, kw_only=True)
    padding: str = field(default="same", kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    weight_std: float = field(default=1.0, kw_only=True)
    bias_std: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        _set_size(self, "kernel_size")
        _set_size(self, "stride")
        check_choice(self.padding, "padding", "Conv", ("same", "valid"))
        _set_weights(self)

    def windows(self, height: int, width: int) -> tuple[Window, Window]:
        """Return the windows along the rows and along the columns of an image."""
        (q_h, q_w), (step_h, step_w) = as_pair(self.kernel_size), as_pair(self.stride)
        return _window(height, q_h, step_h, self.padding), _window(width, q_w, step_w, self.padding)


@dataclass(frozen=True, repr=False)
class Normalize(Layer):
    """Scale every vector, or every pixel of an image, to unit variance: x ↦ x / √(mean over the units of x²).

    The kernels Σ and Θ are divided by √(Σ(x, x) Σ(y, y)), for images pixel by pixel. Where a variance is zero, they
    are zero. Gaussian inputs stay Gaussian, so an activation or a layer with weights may follow.

    Notes
    -----
    The tangent kernel treats the norm as a constant. The norm is a mean over all units, so in a finite network its
    derivative changes the kernel only by O(1/width).

    Examples
    --------
    >>> from ntkit.kernels import network_kernel
    >>> network_kernel(Sequential(Normalize(), Dense()), [[3.0, 4.0]], [[2.0, 0.0], [0.0, 0.0]])
    array([[0.6, 0. ]])
    """


@dataclass(frozen=True, repr=False)
class AvgPool(Layer):
    """Average over windows of ``size`` × ``size`` pixels; whole windows only.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the window.
    stride : int or (int, int), default=None
        Step between windows; None means ``size``, so that windows do not overlap.

    Examples
    --------
    >>> from ntkit.networks import output_shape
    >>> output_shape(AvgPool(2), (9, 8, 3))
    Traceback (most recent call last):
    ...
    ValueError: The network ends in images of 4 × 4 pixels; end it with GlobalAvgPool() or Flatten().
    """

    size: Size
    stride: Size | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _set_size(self, "size")
        if self.stride is not None:
            _set_size(self, "stride")

    def windows(self, height: int, width: int) -> tuple[Window, Window]:
        """Return the windows along the rows and along the columns of an image."""
        (rows, cols), (row_step, col_step) = as_pair(self.size), as_pair(self.stride or self.size)
        return _window(height, rows, row_step, "valid"), _window(width, cols, col_step, "valid")


@dataclass(frozen=True, repr=False)
class GlobalAvgPool(Layer):
    """Average over all pixels: images become vectors.

    Examples
    --------
    >>> from ntkit.networks import output_shape
    >>> output_shape(GlobalAvgPool(), (8, 8, 3))
    (3,)
    """


@dataclass(frozen=True, repr=False)
class Flatten(Layer):
    """Concatenate all pixels: images become vectors. The kernel is the mean over pixels (i, j) of K[ij, ij].

    Examples
    --------
    >>> from ntkit.networks import ReLU, output_shape
    >>> output_shape(Sequential(Conv(3), ReLU(), Flatten()), (8, 8, 3))
    (None,)
    """


class _Container(Layer):
    """Base class of layers that contain layers."""

    _attribute = ""

    def __init__(self, *parts: Layer) -> None:
        for i, part in enumerate(parts):
            if not isinstance(part, Layer):
                name = f"{self._attribute}[{i}]"
                remedy = "Write ReLU(), not ReLU." if isinstance(part, type) else ""
                raise TypeError(message(type(self).__name__, name, "a layer", part, remedy))
        object.__setattr__(self, self._attribute, tuple(parts))

    def __repr__(self) -> str:
        parts = [repr(p) for p in getattr(self, self._attribute)]
        line = f"{type(self).__name__}({', '.join(parts)})"
        if len(line) <= 88:
            return line
        body = ",\n".join(p.replace("\n", "\n    ") for p in parts).replace("\n", "\n    ")
        return f"{type(self).__name__}(\n    {body},\n)"


@dataclass(frozen=True, repr=False, init=False)
class Sequential(_Container):
    """Layers applied in order. Without layers, the identity.

    Examples
    --------
    >>> from ntkit.networks import ReLU
    >>> Sequential(Dense(), ReLU(), Dense())
    Sequential(Dense(), ReLU(), Dense())
    """

    layers: tuple[Layer, ...]
    _attribute = "layers"


@dataclass(frozen=True, repr=False, init=False)
class Residual(_Container):
    """Sum of branches that all take the same input; ``Sequential()`` is the identity branch.

    The kernels of the branches add up. This is exact if all branches, except at most one, end in a layer with its own
    weights (a Dense or Conv, possibly pooled): the outputs of different branches are then uncorrelated.

    Examples
    --------
    >>> from ntkit.networks import ReLU
    >>> Residual(Sequential(), Sequential(ReLU(), Conv(3)))
    Residual(Sequential(), Sequential(ReLU(), Conv(3)))
    """

    branches: tuple[Layer, ...]
    _attribute = "branches"

    def __init__(self, *branches: Layer) -> None:
        super().__init__(*branches)
        if len(branches) < 2:
            raise ValueError(
                message(
                    "Residual",
                    "branches",
                    "two or more layers",
                    branches,
                    "Write Residual(Sequential(), body) for x + body(x).",
                )
            )


class Window(NamedTuple):
    """One axis of a convolution or pooling. Output o covers the inputs o·stride − before + (0 … size − 1)."""

    size: int
    stride: int
    before: int
    n_out: int


def as_pair(value: Size) -> tuple[int, int]:
    """Return ``(value, value)`` for an int; return a pair unchanged."""
    return (value, value) if isinstance(value, int) else value


def set_field(layer: Layer, name: str, value: object) -> None:
    """Store a checked value, a plain Python number, in a frozen layer. This keeps equality and repr simple."""
    object.__setattr__(layer, name, value)


def _set_weights(layer: Dense | Conv) -> None:
    owner = type(layer).__name__
    set_field(layer, "trainable", check_bool(layer.trainable, "trainable", owner))
    set_field(layer, "weight_std", check_real(layer.weight_std, "weight_std", owner, minimum=0, strict=True))
    set_field(layer, "bias_std", check_real(layer.bias_std, "bias_std", owner, minimum=0))


def _set_size(layer: Layer, name: str) -> None:
    """Check the size `name` of a layer, and store it as an int if both sides are equal."""
    value, owner = getattr(layer, name), type(layer).__name__
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(message(owner, name, "an int ≥ 1 or a pair of them", value))
        rows, cols = (check_int(v, name, owner, minimum=1) for v in value)
        size: Size = rows if rows == cols else (rows, cols)
    elif isinstance(value, list):
        raise TypeError(message(owner, name, "an int ≥ 1 or a pair (tuple) of them", value))
    else:
        size = check_int(value, name, owner, minimum=1)
    set_field(layer, name, size)


def _window(size_in: int, size: int, stride: int, padding: str) -> Window:
    if padding == "valid":
        return Window(size, stride, 0, (size_in - size) // stride + 1 if size_in >= size else 0)
    n_out = -(-size_in // stride)
    zeros = max((n_out - 1) * stride + size - size_in, 0)
    return Window(size, stride, zeros // 2, n_out)
