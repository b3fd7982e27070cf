"""The walk of shapes through a network, which finds the layer that cannot take its input."""

from __future__ import annotations

from typing import NamedTuple, NoReturn, TypeAlias

from ntkit._validation import message
from ntkit.networks._layers import (
    GELU,
    Abs,
    Activation,
    AvgPool,
    Conv,
    Dense,
    Erf,
    Flatten,
    Gaussian,
    GlobalAvgPool,
    Layer,
    LeakyReLU,
    Normalize,
    ReLU,
    Residual,
    Sequential,
    Sin,
)

Shape: TypeAlias = tuple[int | None, ...]
_KNOWN = (Dense, Conv, ReLU, LeakyReLU, Abs, Erf, GELU, Sin, Gaussian, Normalize, AvgPool, GlobalAvgPool, Flatten)


def output_shape(net: Layer, input_shape: tuple[int, ...]) -> Shape:
    """Return the shape of the output of `net`, walking over all its layers.

    Parameters
    ----------
    net : Layer
        The network.
    input_shape : tuple of int
        (features,) or (height, width, channels).

    Returns
    -------
    tuple
        (features,), None standing for the infinite width.

    Raises
    ------
    ValueError
        If a layer cannot take what reaches it, or if the infinite-width kernel is not known exactly (an
        activation of values that are not Gaussian). The message names the layer by its position:
        "layer 2.0.1" is layer 1 of branch 0 of layer 2.

    Examples
    --------
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
    final = _walk(net, _Flow(shape), "").shape
    if len(final) == 3:
        raise ValueError(
            f"The network ends in images of {_pixels(final)} pixels; end it with GlobalAvgPool() or Flatten()."
        )
    return final


class _Flow(NamedTuple):
    """What reaches a layer: shape, whether it is Gaussian, whether it comes from weights of this branch."""

    shape: Shape
    gaussian: bool = False
    fresh: bool = False
    pixels: int = 1  # of an image that Flatten has laid out side by side


def _walk(layer: Layer, flow: _Flow, path: str) -> _Flow:
    if isinstance(layer, Sequential):
        for i, part in enumerate(layer.layers):
            flow = _walk(part, flow, f"{path}.{i}")
        return flow
    if isinstance(layer, Residual):
        return _walk_residual(layer, flow, path)
    if type(layer) not in _KNOWN:
        raise TypeError(f"Layer {path.removeprefix('.') or 0}, a {type(layer).__name__}, is not one of ntkit.networks.")
    if isinstance(layer, Dense):
        if len(flow.shape) != 1:
            _refuse(layer, path, flow, "it takes vectors", "Put GlobalAvgPool() or Flatten() before it.")
        return _Flow((None,), gaussian=True, fresh=True)
    if isinstance(layer, Activation):
        if not flow.gaussian:
            _refuse(layer, path, flow, "its input is not Gaussian", "Put Dense() or Conv(3) before it.")
        return _Flow(flow.shape, gaussian=False, fresh=False)
    if isinstance(layer, Normalize):
        return flow
    return _walk_image_layer(layer, flow, path)


def _walk_image_layer(layer: Layer, flow: _Flow, path: str) -> _Flow:
    if len(flow.shape) != 3:
        _refuse(layer, path, flow, "it takes images", "Give X as (n, height, width, channels).")
    height, width, channels = flow.shape
    if isinstance(layer, GlobalAvgPool):
        return flow._replace(shape=(channels,))
    if isinstance(layer, Flatten):
        size = None if channels is None else height * width * channels  # type: ignore[operator]
        # Pixels differ: the units are not exchangeable.
        return flow._replace(shape=(size,), gaussian=False, pixels=height * width)  # type: ignore[operator]
    assert isinstance(layer, Conv | AvgPool)
    rows, cols = layer.windows(height, width)  # type: ignore[arg-type]
    if min(rows.n_out, cols.n_out) < 1:
        reason = f"its {rows.size} × {cols.size} window does not fit"
        remedy = "Use a smaller window" + (" or padding='same'." if isinstance(layer, Conv) else ".")
        _refuse(layer, path, flow, reason, remedy)
    if isinstance(layer, Conv):
        return _Flow((rows.n_out, cols.n_out, None), gaussian=True, fresh=True)
    return flow._replace(shape=(rows.n_out, cols.n_out, channels))


def _walk_residual(layer: Residual, flow: _Flow, path: str) -> _Flow:
    ends = [_walk(b, flow._replace(fresh=False), f"{path}.{i}") for i, b in enumerate(layer.branches)]
    if len({_kernel_shape(end) for end in ends}) > 1:
        shapes = ", ".join(str(_kernel_shape(end)) for end in ends)
        _refuse(layer, path, flow, f"its branches end in different shapes {shapes}", "")
    if sum(not end.fresh for end in ends) > 1:
        _refuse(
            layer,
            path,
            flow,
            "more than one branch ends without weights of its own, so the branches are correlated",
            "End all branches but one in Dense() or Conv().",
        )
    return ends[0]._replace(gaussian=all(end.gaussian for end in ends), fresh=all(e.fresh for e in ends))


def _kernel_shape(flow: _Flow) -> Shape:
    """Shape without the channels, which a kernel does not see; for vectors the pixels that they are made of."""
    return flow.shape[:-1] or (flow.pixels,)


def _refuse(layer: Layer, path: str, flow: _Flow, reason: str, remedy: str) -> NoReturn:
    what = "vectors" if len(flow.shape) == 1 else f"images of {_pixels(flow.shape)} pixels"
    place = f"Layer {path.removeprefix('.')}, {layer!r}," if path else f"{layer!r}"
    raise ValueError(f"{place} cannot take {what}: {reason}. {remedy}".rstrip())


def _pixels(shape: Shape) -> str:
    return f"{shape[0]} × {shape[1]}"
