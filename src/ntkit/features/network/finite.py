"""Finite networks of any architecture, and the gradients of their output, in torch.

Everything is an image: a vector has one pixel, and Flatten only makes the next Dense layer see all pixels at once. So
every network consists of a few kinds of steps: weights on patches, activations, averages, norms, and sums of branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._precision import exact_products
from ntkit.networks import (
    Activation,
    Algebra,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    Residual,
    Sequential,
    fold,
)
from ntkit.networks.fold import Path
from ntkit.networks.layers import Window, as_pair


@dataclass(frozen=True)
class Linear:
    """A layer with weights, x ↦ `scale` · W x + `bias` · β on every patch of an image; β is the last column of W.

    `patch` is (rows, columns, channels), and the entries of a row of W have this order. `pads` are the numbers of zeros
    left, right, above and below. `n_out` holds the numbers of rows and columns of the output.
    """

    fan_out: int
    patch: tuple[int, int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int]
    n_out: tuple[int, int]
    scale: float
    bias: float
    trainable: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of W, (fan_out, fan_in), with one more column if there are biases."""
        return self.fan_out, prod(self.patch) + (self.bias > 0)


@dataclass(frozen=True)
class Norm:
    """Division by √(Σ x² / `n_units`); the sum is over the channels of a pixel, or also over all pixels if `whole`."""

    n_units: int
    whole: bool


@dataclass(frozen=True)
class Sum:
    """Branches that take the same input and are added up."""

    branches: tuple[tuple[Step, ...], ...]


Step: TypeAlias = Linear | Activation | AvgPool | Norm | Sum


@dataclass(frozen=True)
class Finite:
    """The input of a layer of a finite network: the shape of the images, and the steps that made them.

    The kernel of `raw` pixels is the sum over channels; the kernel of other pixels is the mean. The pixels of a `flat`
    image are one vector.
    """

    height: int
    width: int
    channels: int
    raw: bool = False
    flat: bool = False
    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step, **changes: Any) -> Finite:
        """Return the images after more steps."""
        return replace(self, steps=self.steps + steps, **changes)


class FiniteSteps(Algebra[Finite]):
    """Steps of a network with `n_units` units or channels in each layer; weights are divided by √fan_in."""

    def __init__(self, n_units: int):
        self.n_units = n_units

    def fork(self, image: Finite) -> Finite:
        """Start a branch without steps."""
        return replace(image, steps=())

    def join(self, layer: Residual, before: Finite, ends: list[Finite], path: Path) -> Finite:
        """Add up branches, which need equal numbers of channels: raw ones are projected by untrained weights."""
        ends = [replace(self.weights(Conv(1, trainable=False), e), flat=e.flat) if e.raw else e for e in ends]
        total = Sum(tuple(end.steps for end in ends))
        return replace(ends[0], steps=(*before.steps, total))

    def weights(self, layer: Conv, image: Finite) -> Finite:
        """Add a layer with weights; raw channels do not count in the fan-in."""
        rows, columns = layer.windows(image.height, image.width)
        fan_in = rows.size * columns.size * (1 if image.raw else image.channels)
        step = Linear(
            self.n_units,
            (rows.size, columns.size, image.channels),
            (rows.stride, columns.stride),
            (*_zeros(columns, image.width), *_zeros(rows, image.height)),
            (rows.n_out, columns.n_out),
            layer.weight_std / fan_in**0.5,
            layer.bias_std,
            layer.trainable,
        )
        return Finite(rows.n_out, columns.n_out, self.n_units, steps=(*image.steps, step))


def resolve(layers: Sequence[Layer], shape: tuple[int, ...], width: int) -> tuple[Step, ...]:
    """Return the steps of a network with `width` units or channels and one output; the last of `layers` is Dense."""
    *hidden, last = layers
    height, breadth, channels = (1, 1, *shape) if len(shape) == 1 else shape
    image = fold(Sequential(*hidden), FiniteSteps(width), Finite(height, breadth, channels, raw=True))
    return fold(last, FiniteSteps(1), image).steps


@FiniteSteps.rule(Dense)
def _(algebra: FiniteSteps, layer: Dense, image: Finite, path: Path) -> Finite:
    size = (image.height, image.width)
    own: Any = {"trainable": layer.trainable, "weight_std": layer.weight_std, "bias_std": layer.bias_std}
    return algebra.weights(Conv(size, padding="valid", **own), image)


@FiniteSteps.rule(Conv)
def _(algebra: FiniteSteps, layer: Conv, image: Finite, path: Path) -> Finite:
    return algebra.weights(layer, image)


@FiniteSteps.rule(AvgPool)
def _(algebra: FiniteSteps, layer: AvgPool, image: Finite, path: Path) -> Finite:
    rows, columns = layer.windows(image.height, image.width)
    return image.then(layer, height=rows.n_out, width=columns.n_out)


@FiniteSteps.rule(GlobalAvgPool)
def _(algebra: FiniteSteps, layer: GlobalAvgPool, image: Finite, path: Path) -> Finite:
    return image.then(AvgPool((image.height, image.width)), height=1, width=1)


@FiniteSteps.rule(Flatten)
def _(algebra: FiniteSteps, layer: Flatten, image: Finite, path: Path) -> Finite:
    return replace(image, flat=True)


@FiniteSteps.rule(Normalize)
def _(algebra: FiniteSteps, layer: Normalize, image: Finite, path: Path) -> Finite:
    n_pixels = image.height * image.width if image.flat else 1
    return image.then(Norm(n_pixels * (1 if image.raw else image.channels), image.flat))


@FiniteSteps.rule(Activation)
def _(algebra: FiniteSteps, layer: Activation, image: Finite, path: Path) -> Finite:
    layer.sigma(np.zeros(1))  # raises if the activation does not define sigma
    return image.then(layer)


def linears(steps: Sequence[Step]) -> Iterator[Linear]:
    """Yield all layers with weights, in the order of evaluation."""
    for step in steps:
        if isinstance(step, Linear):
            yield step
        elif isinstance(step, Sum):
            for branch in step.branches:
                yield from linears(branch)


def floats_per_row(steps: Sequence[Step]) -> int:
    """Estimate how many numbers one row takes while its gradients are computed: activations, patches, gradients."""
    layers = list(linears(steps))
    activations = sum(prod(layer.n_out) * layer.fan_out for layer in layers)
    patches = max(prod(layer.n_out) * prod(layer.patch) for layer in layers)
    return 4 * activations + 2 * patches + 2 * sum(prod(layer.shape) for layer in layers if layer.trainable)


def gradients(steps: Sequence[Step], weights: Sequence[np.ndarray], x: Array) -> Array:
    """Compute gradients of the output with respect to the trained weights, one row for every image or vector.

    There is one forward and one backward pass for all rows together. The gradient of W is then, for each row, the
    product of the gradient of the layer's output and the layer's input patches. The result is of the library of `x`.
    """
    torch = import_torch()
    if not _array.is_torch(x):
        return gradients(steps, weights, torch.from_numpy(np.array(x))).numpy()  # a copy: x may be read-only
    differentiable = x.requires_grad and torch.is_grad_enabled()
    x = x if differentiable else x.detach()
    trace: list[tuple[Linear, Array, Array]] = []
    # Disable TF32, which rounds to three digits and is torch's default for convolutions.
    with torch.inference_mode(False), torch.enable_grad(), exact_products():
        images = (x if x.ndim == 4 else x[:, None, None, :]).permute(0, 3, 1, 2)
        matrices = (torch.from_numpy(w).to(x.device, x.dtype) for w in weights)
        output = _forward(steps, matrices, images, trace)
        returned = torch.autograd.grad(output.sum(), [h for *_, h in trace], create_graph=differentiable)
    with torch.set_grad_enabled(differentiable), exact_products():
        parts = [
            (layer.scale * back.flatten(2) @ _patches(layer, entered)).flatten(1)
            for (layer, entered, _), back in zip(trace, returned, strict=True)
        ]
        return torch.cat(parts, dim=1)


def import_torch() -> Any:
    """Import torch, or raise an error that says how to install it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "GradientFeatures needs torch for networks other than Dense layers with ReLU, LeakyReLU or Abs between "
            "them. Install it: pip install 'ntkit[torch]'."
        ) from error
    return torch


def _zeros(window: Window, size: int) -> tuple[int, int]:
    """Return the numbers of zeros before and after an axis."""
    return window.before, max((window.n_out - 1) * window.stride + window.size - size - window.before, 0)


def _forward(
    steps: Sequence[Step], matrices: Iterator[Array], x: Array, trace: list[tuple[Linear, Array, Array]]
) -> Array:
    """Apply steps to images (n, channels, rows, columns); append inputs and outputs of trained layers to `trace`."""
    from torch.nn import functional

    for step in steps:
        if isinstance(step, Linear):
            x = _linear(step, next(matrices), x, trace)
        elif isinstance(step, Sum):
            x = sum(_forward(branch, matrices, x, trace) for branch in step.branches)
        elif isinstance(step, AvgPool):
            x = functional.avg_pool2d(x, as_pair(step.size), as_pair(step.stride or step.size))
        elif isinstance(step, Norm):
            x = _divide_by_norm(step, x)
        else:
            x = step.sigma(x) * step.scale
    return x


def _linear(step: Linear, matrix: Array, x: Array, trace: list[tuple[Linear, Array, Array]]) -> Array:
    from torch.nn import functional

    x = functional.pad(x, step.pads) if any(step.pads) else x
    biases = step.bias * matrix[:, -1] if step.bias else None
    matrix = matrix[:, :-1] if step.bias else matrix
    if step.patch == (*x.shape[2:], x.shape[1]):  # for a single patch a matrix product is faster
        h = (step.scale * x.permute(0, 2, 3, 1).flatten(1) @ matrix.mT)[:, :, None, None]
    else:
        filters = (step.scale * matrix).unflatten(1, step.patch).permute(0, 3, 1, 2)
        h = functional.conv2d(x, filters, stride=step.stride)
    h = h if biases is None else h + biases[:, None, None]
    if step.trainable:
        if not h.requires_grad:
            h.requires_grad_()
        trace.append((step, x, h))
    return h


def _patches(step: Linear, x: Array) -> Array:
    """Return patches of padded images as rows, (n, positions, fan_in); biases add a column `bias` / `scale`."""
    (rows, columns, _), (down, across) = step.patch, step.stride
    windows = x.permute(0, 2, 3, 1).unfold(1, rows, down).unfold(2, columns, across)
    patches = windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
    if not step.bias:
        return patches
    import torch

    return torch.cat([patches, torch.full_like(patches[..., :1], step.bias / step.scale)], dim=-1)


def _divide_by_norm(step: Norm, x: Array) -> Array:
    import torch

    variance = (x * x).sum((1, 2, 3) if step.whole else 1, keepdim=True) / step.n_units
    positive = variance > 0
    return x * torch.where(positive, variance, 1).rsqrt() * positive  # zeros stay zeros and have zero gradients
