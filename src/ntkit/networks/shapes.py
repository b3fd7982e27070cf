"""Shapes in a network, which reveal layers with invalid inputs; and growth of kernels with the norms of rows."""

from __future__ import annotations

from typing import NamedTuple, NoReturn, TypeAlias

from ntkit._validation import message
from ntkit.networks.activations import Activation
from ntkit.networks.fold import Algebra, Path, UnsupportedError, fold
from ntkit.networks.layers import AvgPool, Conv, Dense, Flatten, GlobalAvgPool, Layer, Normalize, Residual

Shape: TypeAlias = tuple[int | None, ...]


def output_shape(net: Layer, input_shape: tuple[int, ...]) -> Shape:
    """Return the shape of the output of `net`, and check every layer.

    Parameters
    ----------
    net : Layer
        The network.
    input_shape : tuple of int
        (features,) or (height, width, channels).

    Returns
    -------
    tuple
        (features,); None stands for infinite width.

    Raises
    ------
    ValueError
        If a layer cannot take its input, or if the infinite-width kernel is not known exactly (an
        activation of values that are not Gaussian). The message names the layer by its position:
        "layer 2.0.1" is layer 1 of branch 0 of layer 2.

    Examples
    --------
    >>> from ntkit.networks import Conv, Flatten, Sequential
    >>> output_shape(Sequential(Conv(5, padding="valid"), Flatten()), (4, 4, 1))
    Traceback (most recent call last):
    ...
    ValueError: Layer 0, Conv(5, padding='valid'), cannot take images of 4 × 4 pixels: its 5 × 5 window does
    not fit. Use a smaller window or padding='same'.
    """
    if not isinstance(net, Layer):
        raise TypeError(message("output_shape", "net", "a network of ntkit.networks", net))
    shape = tuple(input_shape)
    if len(shape) not in (1, 3) or not all(isinstance(s, int) and s > 0 for s in shape):
        raise ValueError(message("output_shape", "input_shape", "(features,) or (height, width, channels)", shape))
    try:
        final = fold(net, Shapes(), ShapeFlow(shape)).shape
    except UnsupportedError as error:
        raise TypeError(f"{error} It is not a layer of ntkit.networks. Register a rule with Shapes.rule.") from error
    if len(final) == 3:
        raise ValueError(
            f"The network ends in images of {_pixels(final)} pixels; end it with GlobalAvgPool() or Flatten()."
        )
    return final


class ShapeFlow(NamedTuple):
    """Input of a layer: its shape, whether it is Gaussian, and whether it comes from weights of this branch."""

    shape: Shape
    gaussian: bool = False
    fresh: bool = False
    pixels: int = 1  # number of pixels of an image that Flatten has concatenated


class Shapes(Algebra[ShapeFlow]):
    """Tracks shapes, and whether the kernel after each layer is known exactly. The state is a :class:`ShapeFlow`.

    Examples
    --------
    >>> from ntkit.networks import Dense, fold
    >>> fold(Dense(), Shapes(), ShapeFlow((5,))).shape
    (None,)
    """

    def fork(self, flow: ShapeFlow) -> ShapeFlow:
        """Enter a branch, which has no weights of its own yet."""
        return flow._replace(fresh=False)

    def join(self, layer: Residual, before: ShapeFlow, ends: list[ShapeFlow], path: Path) -> ShapeFlow:
        """Check that the branches end in the same shape and are uncorrelated."""
        if len({_kernel_shape(end) for end in ends}) > 1:
            shapes = ", ".join(str(_kernel_shape(end)) for end in ends)
            refuse(layer, path, before, f"its branches end in different shapes {shapes}", "")
        if sum(not end.fresh for end in ends) > 1:
            reason = "more than one branch ends without weights of its own, so the branches are correlated"
            refuse(layer, path, before, reason, "End all branches but one in Dense() or Conv().")
        return ends[0]._replace(gaussian=all(end.gaussian for end in ends), fresh=all(e.fresh for e in ends))


@Shapes.rule(Dense)
def _(algebra: Shapes, layer: Dense, flow: ShapeFlow, path: Path) -> ShapeFlow:
    if len(flow.shape) != 1:
        refuse(layer, path, flow, "it takes vectors", "Put GlobalAvgPool() or Flatten() before it.")
    return ShapeFlow((None,), gaussian=True, fresh=True)


@Shapes.rule(Activation)
def _(algebra: Shapes, layer: Activation, flow: ShapeFlow, path: Path) -> ShapeFlow:
    if not flow.gaussian:
        refuse(layer, path, flow, "its input is not Gaussian", "Put Dense() or Conv(3) before it.")
    return ShapeFlow(flow.shape)


@Shapes.rule(Normalize)
def _(algebra: Shapes, layer: Normalize, flow: ShapeFlow, path: Path) -> ShapeFlow:
    return flow


@Shapes.rule(Conv, AvgPool)
def _(algebra: Shapes, layer: Conv | AvgPool, flow: ShapeFlow, path: Path) -> ShapeFlow:
    height, width, channels = _image(layer, flow, path)
    rows, cols = layer.windows(height, width)
    if min(rows.n_out, cols.n_out) < 1:
        reason = f"its {rows.size} × {cols.size} window does not fit"
        remedy = "Use a smaller window" + (" or padding='same'." if isinstance(layer, Conv) else ".")
        refuse(layer, path, flow, reason, remedy)
    if isinstance(layer, Conv):
        return ShapeFlow((rows.n_out, cols.n_out, None), gaussian=True, fresh=True)
    return flow._replace(shape=(rows.n_out, cols.n_out, channels))


@Shapes.rule(GlobalAvgPool)
def _(algebra: Shapes, layer: GlobalAvgPool, flow: ShapeFlow, path: Path) -> ShapeFlow:
    return flow._replace(shape=(_image(layer, flow, path)[2],))


@Shapes.rule(Flatten)
def _(algebra: Shapes, layer: Flatten, flow: ShapeFlow, path: Path) -> ShapeFlow:
    height, width, channels = _image(layer, flow, path)
    size = None if channels is None else height * width * channels
    # The units are not exchangeable, because the pixels differ.
    return flow._replace(shape=(size,), gaussian=False, pixels=height * width)


class Powers(NamedTuple):
    """Powers of ‖x‖ with which k(x, y) grows near zero and near infinity, and Θ(x, x) near infinity."""

    zero: int = 1
    infinity: int = 1
    own: int = 0  # Θ = 0 before the first trained layer, whatever the power


class Growth(Algebra[Powers]):
    """Computes how kernels grow with the norm of a row.

    The powers are (1, 1, 2) unless a layer sets a scale: biases, Erf, Sin, Gaussian and Normalize do.
    """

    def join(self, layer: Residual, before: Powers, ends: list[Powers], path: Path) -> Powers:
        """Return the powers of the dominant branch: power 0 wins near zero, power 1 near infinity."""
        zeros, infinities, own = zip(*ends, strict=True)
        return Powers(min(zeros), max(infinities), max(own))


@Growth.rule(AvgPool, GlobalAvgPool, Flatten)
def _(algebra: Growth, layer: Layer, powers: Powers, path: Path) -> Powers:
    return powers


@Growth.rule(Dense, Conv)
def _(algebra: Growth, layer: Dense | Conv, powers: Powers, path: Path) -> Powers:
    own = max(powers.own, 2 * powers.infinity) if layer.trainable else powers.own
    return Powers(0 if layer.bias_std else powers.zero, powers.infinity, own)


@Growth.rule(Activation)
def _(algebra: Growth, layer: Activation, powers: Powers, path: Path) -> Powers:
    if layer.growth is None:
        raise UnsupportedError(f"The growth of {type(layer).__name__} is not known; set its attribute 'growth'.")
    zero, infinity = layer.growth
    own = powers.own + layer.slope_growth * powers.infinity
    return Powers(powers.zero * zero, powers.infinity * infinity, own)


@Growth.rule(Normalize)
def _(algebra: Growth, layer: Normalize, powers: Powers, path: Path) -> Powers:
    return Powers(0, 0, powers.own - 2 * powers.infinity)


def refuse(layer: Layer, path: Path, flow: ShapeFlow, reason: str, remedy: str) -> NoReturn:
    """Raise an error for a layer that cannot take its input."""
    what = "vectors" if len(flow.shape) == 1 else f"images of {_pixels(flow.shape)} pixels"
    place = f"Layer {'.'.join(map(str, path))}, {layer!r}," if path else f"{layer!r}"
    raise ValueError(f"{place} cannot take {what}: {reason}. {remedy}".rstrip())


def _image(layer: Layer, flow: ShapeFlow, path: Path) -> tuple[int, int, int | None]:
    if len(flow.shape) != 3:
        refuse(layer, path, flow, "it takes images", "Give X as (n, height, width, channels).")
    return flow.shape  # type: ignore[return-value]


def _kernel_shape(flow: ShapeFlow) -> Shape:
    """Return the shape without channels, which a kernel does not depend on. For vectors, return their pixels."""
    return flow.shape[:-1] or (flow.pixels,)


def _pixels(shape: Shape) -> str:
    return f"{shape[0]} × {shape[1]}"
