"""A finite network of a description for one vector or image, pixel by pixel, and its gradients by torch's autograd."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from ntkit import networks as nn

_FUNCTIONS = {
    nn.Erf: torch.erf,
    nn.GELU: lambda z: z * (1 + torch.erf(z / 2**0.5)) / 2,
    nn.Sin: torch.sin,
    nn.Gaussian: lambda z: 2**0.5 * torch.cos(z - math.pi / 4),
}


class Value(NamedTuple):
    """Pixels (rows, columns, channels), one for vectors; `raw` before the first weights, `flat` after Flatten."""

    pixels: torch.Tensor
    raw: bool
    flat: bool = False


def image_gradients(net: nn.Layer, weights: list[np.ndarray], X: np.ndarray) -> np.ndarray:
    """∂f/∂W over the trained weights, in the order in which they are met, for every row or image of X."""
    rows = []
    for x in torch.tensor(X, dtype=torch.float64):
        x = x if x.ndim == 3 else x[None, None, :]
        parameters = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in weights]
        trained: list[torch.Tensor] = []
        left = iter(parameters)
        # The kernel of the input is the sum over channels, but all layers divide by fan_in, channels included.
        value = _run(net, Value(x * math.sqrt(x.shape[2]), raw=True), left, trained)
        if not _ends_in_dense(net):
            value = _run(nn.Dense(trainable=False), value, left, trained)
        assert next(left, None) is None, "weights are left over"
        grads = torch.autograd.grad(value.pixels.sum(), trained)
        rows.append(np.concatenate([g.numpy().ravel() for g in grads]))
    return np.array(rows)


def second_moment(layer: nn.Activation) -> float:
    """E σ(z)² by the trapezoidal rule, z standard normal."""
    z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    return float((_sigma(layer, z) ** 2 * torch.exp(-(z**2) / 2)).sum() * 1e-4 / (2 * math.pi) ** 0.5)


def _sigma(layer: nn.Activation, z: torch.Tensor) -> torch.Tensor:
    if type(layer) in _FUNCTIONS:
        return _FUNCTIONS[type(layer)](z)
    below = {nn.ReLU: 0.0, nn.Abs: -1.0}.get(type(layer), getattr(layer, "slope", None))
    return torch.where(z > 0, z, below * z)


def _ends_in_dense(net: nn.Layer) -> bool:
    if isinstance(net, nn.Sequential):
        return bool(net.layers) and _ends_in_dense(net.layers[-1])
    return isinstance(net, nn.Dense)


def _run(layer: nn.Layer, value: Value, weights: Iterator[torch.Tensor], trained: list[torch.Tensor]) -> Value:
    x = value.pixels
    height, width, _ = x.shape
    if isinstance(layer, nn.Sequential):
        for part in layer.layers:
            value = _run(part, value, weights, trained)
        return value
    if isinstance(layer, nn.Residual):
        total: torch.Tensor | int = 0
        for branch in layer.branches:
            end = _run(branch, value, weights, trained)
            flat = end.flat
            end = _run(nn.Conv(1, trainable=False), end, weights, trained) if end.raw else end
            total = total + end.pixels
        return Value(total, raw=False, flat=flat)
    if isinstance(layer, nn.Dense):
        return Value((_weight(layer, weights, trained) @ x.reshape(-1) / x.numel() ** 0.5)[None, None], raw=False)
    if isinstance(layer, nn.Conv):
        W = _weight(layer, weights, trained)
        patches = _windows(x, layer.kernel_size, layer.stride, layer.padding)
        return Value(torch.stack([torch.stack([W @ p / len(p) ** 0.5 for p in row]) for row in patches]), raw=False)
    if isinstance(layer, nn.Activation):
        factor = layer.second_moment**-0.5 if layer.normalize else 1.0
        return Value(factor * _sigma(layer, x), value.raw)
    if isinstance(layer, nn.Flatten):
        return value._replace(flat=True)
    if isinstance(layer, nn.Normalize):
        variances = (x**2).mean() if value.flat else (x**2).mean(2, keepdim=True)
        return value._replace(pixels=x / variances.sqrt())
    if isinstance(layer, nn.GlobalAvgPool):
        layer = nn.AvgPool((height, width))
    q = _pair(layer.size)
    patches = _windows(x, layer.size, layer.stride or layer.size, "valid")
    means = [[p.reshape(q[0] * q[1], -1).mean(0) for p in row] for row in patches]
    return Value(torch.stack([torch.stack(row) for row in means]), value.raw)


def _weight(layer: nn.Dense | nn.Conv, weights: Iterator[torch.Tensor], trained: list[torch.Tensor]) -> torch.Tensor:
    W = next(weights)
    if layer.trainable:
        trained.append(W)
    return layer.weight_std * W


def _windows(x: torch.Tensor, size, stride, padding: str) -> list[list[torch.Tensor]]:
    """Patches laid flat (row, column, channel), zeros outside the image."""
    firsts = []
    for length, q, step in zip(x.shape, _pair(size), _pair(stride), strict=False):
        if padding == "same":
            n_out = math.ceil(length / step)
            start = -(max((n_out - 1) * step + q - length, 0) // 2)
        else:
            n_out, start = (length - q) // step + 1, 0
        firsts.append([start + step * i for i in range(n_out)])
    zero = torch.zeros(x.shape[2], dtype=x.dtype)

    def pixel(i: int, j: int) -> torch.Tensor:
        return x[i, j] if 0 <= i < x.shape[0] and 0 <= j < x.shape[1] else zero

    (rows, columns) = _pair(size)
    return [
        [torch.cat([pixel(top + a, left + b) for a in range(rows) for b in range(columns)]) for left in firsts[1]]
        for top in firsts[0]
    ]


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
