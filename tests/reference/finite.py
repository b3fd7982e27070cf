"""A finite random network of a description, in torch; the infinite-width kernels are its limit."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tests.reference.expansions import second_moment
from tests.reference.kernels import pair

from ntkit import networks as nn

_FUNCTIONS: dict[type, Callable] = {
    nn.ReLU: F.relu,
    nn.Abs: torch.abs,
    nn.Erf: torch.erf,
    nn.GELU: F.gelu,
    nn.Sin: torch.sin,
}


class FiniteNetwork:
    """Weights are drawn on the first call and kept; the last Dense has `width` units too."""

    def __init__(self, net: nn.Layer, width: int, seed: int) -> None:
        self.net, self.width = net, width
        self.generator = torch.Generator().manual_seed(seed)
        self.weights: list[torch.Tensor] = []
        self.fresh = True

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        self._next = iter(self.weights)
        # The kernel of the input is ⟨x, y⟩: undo the division by the first layer's number of channels.
        X = X * math.sqrt(X.shape[-1])
        out = self._run(self.net, X if X.ndim == 2 else X.permute(0, 3, 1, 2))
        self.fresh = False
        return out

    def ntk(self, X: torch.Tensor, n_outputs: int = 1) -> torch.Tensor:
        """Mean over the first output units of ⟨∇f(x), ∇f(y)⟩ over the trained weights."""
        out = self(X)[:, :n_outputs]
        trained = [w for w in self.weights if w.requires_grad]
        K = torch.zeros(len(X), len(X), dtype=out.dtype)
        for unit in out.T:
            grads = [torch.autograd.grad(f, trained, retain_graph=True) for f in unit]
            J = torch.stack([torch.cat([g.flatten() for g in grad]) for grad in grads])
            K += J @ J.T / n_outputs
        return K

    def _weight(self, layer: nn.Dense | nn.Conv, *shape: int) -> torch.Tensor:
        if not self.fresh:
            return next(self._next)
        weight = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        weight.requires_grad_(layer.trainable)
        self.weights.append(weight)
        return weight

    def _phases(self, n_units: int) -> torch.Tensor:
        if not self.fresh:
            return next(self._next)
        self.weights.append(2 * math.pi * torch.rand(n_units, generator=self.generator, dtype=torch.float64))
        return self.weights[-1]

    def _run(self, layer: nn.Layer, X: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, nn.Sequential):
            for part in layer.layers:
                X = self._run(part, X)
            return X
        if isinstance(layer, nn.Residual):
            return sum(self._run(branch, X) for branch in layer.branches)
        if isinstance(layer, nn.Dense):
            weight = self._weight(layer, self.width, X.shape[1])
            return layer.weight_std / math.sqrt(X.shape[1]) * X @ weight.T
        if isinstance(layer, nn.Conv):
            return self._conv(layer, X)
        if isinstance(layer, nn.Normalize):
            # Derivatives go through the norm: in the limit they do not count.
            return X / (X * X).mean(1, keepdim=True).sqrt()
        if isinstance(layer, nn.Gaussian):
            phases = self._phases(X.shape[1]).reshape(-1, *(1,) * (X.ndim - 2))
            return math.sqrt(2) * torch.cos(X + phases)
        if isinstance(layer, nn.Activation):
            leaky = isinstance(layer, nn.LeakyReLU)
            out = F.leaky_relu(X, layer.slope) if leaky else _FUNCTIONS[type(layer)](X)
            return out / math.sqrt(second_moment(layer)) if layer.normalize else out
        if isinstance(layer, nn.AvgPool):
            return F.avg_pool2d(X, pair(layer.size), pair(layer.stride or layer.size))
        return X.mean((2, 3)) if isinstance(layer, nn.GlobalAvgPool) else X.flatten(1)

    def _conv(self, layer: nn.Conv, X: torch.Tensor) -> torch.Tensor:
        q = pair(layer.kernel_size)
        weight = self._weight(layer, self.width, X.shape[1], *q)
        if layer.padding == "same":
            pads = []
            for size, k, stride in zip(X.shape[:1:-1], q[::-1], pair(layer.stride)[::-1], strict=True):
                total = max((math.ceil(size / stride) - 1) * stride + k - size, 0)
                pads += [total // 2, total - total // 2]
            X = F.pad(X, pads)
        scale = layer.weight_std / math.sqrt(X.shape[1] * q[0] * q[1])
        return scale * F.conv2d(X, weight, stride=pair(layer.stride))
