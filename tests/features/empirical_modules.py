"""Small torch modules of all kinds for the tests of EmpiricalNTKFeatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

CLASSES = 4


class Branches(nn.Module):
    """A residual sum, a layer used twice, and an output that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = h + self.twice(torch.tanh(self.twice(torch.tanh(h))))
        return self.last(h).mul_(2.0)


class Tokens(nn.Module):
    """A language model: tied embeddings, learned positions of two kinds, attention as torch writes it."""

    def __init__(self, *, batch_first: bool = False):
        super().__init__()
        self.batch_first = batch_first
        self.tokens, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        self.shift, self.start = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(1, 6, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1])) + self.shift + self.start
        h = self.block(h) if self.batch_first else self.block(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h)


class Cross(nn.Module):
    """Attention to another sequence, of other sizes; called by names."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True, add_bias_kv=True)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, query: torch.Tensor, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        out, _ = self.attend(query, memory, memory[..., :3])
        return {"logits": self.last(out.mean(1))}


class Gated(nn.Module):
    """Parameters in the hands of functions: a scale, a matrix in einsum, and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.mixing = nn.Parameter(torch.rand(6)), nn.Parameter(torch.randn(6, 5))
        self.unused, self.last = nn.Parameter(torch.ones(3)), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(torch.einsum("ni,ij->nj", x * torch.sigmoid(self.scale), self.mixing)))


class Folded(nn.Module):
    """Pixels of an image become rows of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(3, 5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = x.movedim(1, -1).reshape(-1, 3)
        return self.last(torch.relu(self.inner(pixels)).reshape(len(x), -1, 5).mean(1))


def convolutional(kind: int, **options: Any) -> nn.Module:
    """A convolution with options, channels normalized, a second one, and a linear readout."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[kind - 1]
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[kind - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[kind - 1]
    return nn.Sequential(
        conv(4, 6, 3, **options), norm(6), nn.ReLU(inplace=True), conv(6, 8, 2), nn.GroupNorm(2, 8), nn.Tanh(), pool(1),
        nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def perturbed(module: nn.Module) -> nn.Module:
    """Biases, scales and running averages that are not 0 or 1."""
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_floating_point() and tensor.ndim <= 1:
                tensor.add_(0.3 * torch.rand_like(tensor)) if "var" in name else tensor.add_(
                    0.3 * torch.randn_like(tensor)
                )
    return module.eval()


def images(*sizes: int) -> Callable[[int], torch.Tensor]:
    """Random rows of a shape."""
    return lambda n: torch.randn(n, *sizes)


def labels(n: int) -> torch.Tensor:
    """Classes."""
    return torch.arange(n) % CLASSES


@dataclass(frozen=True)
class Case:
    """A module, rows and targets for it, and the parameters that take the slow way."""

    make: Callable[[], nn.Module]
    rows: Callable[[int], Any]
    targets: Callable[[int], torch.Tensor] = labels
    fallback: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


def _tokens(n: int) -> torch.Tensor:
    return torch.randint(0, 11, (n, 6))


CASES: dict[str, Case] = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, CLASSES)), images(6)),
    "branches": Case(Branches, images(6)),
    "conv1d": Case(lambda: convolutional(1, stride=2, padding=2), images(4, 9)),
    "conv1d even": Case(
        lambda: nn.Sequential(nn.Conv1d(4, 6, 4, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(30, CLASSES)),
        images(4, 5),
    ),
    "conv2d": Case(lambda: convolutional(2, groups=2, dilation=2, padding="same"), images(4, 6, 5)),
    "conv2d reflect": Case(lambda: convolutional(2, padding=(1, 2), padding_mode="reflect"), images(4, 5, 6)),
    "conv3d": Case(lambda: convolutional(3, padding="valid", bias=False), images(4, 4, 4, 5)),
    "depthwise": Case(
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=4, padding_mode="circular", padding=1), nn.InstanceNorm2d(8, affine=True),
            nn.Flatten(), nn.Linear(8 * 16, CLASSES)), images(4, 4, 4)),
    "norms": Case(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.RMSNorm(8), nn.Linear(8, CLASSES)),
        images(6),
    ),
    "tokens": Case(Tokens, _tokens, _tokens),
    "tokens, rows first": Case(lambda: Tokens(batch_first=True), _tokens, _tokens),
    "cross": Case(Cross, lambda n: {"query": torch.randn(n, 3, 8), "memory": torch.randn(n, 4, 5)},
                  fallback=("attend.bias_k", "attend.bias_v")),
    "gated": Case(Gated, images(6), fallback=("mixing",), unused=("unused",)),
    "folded": Case(Folded, images(3, 2, 3)),
    "weight norm": Case(
        lambda: nn.Sequential(
            nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.Linear(5, CLASSES)),
        images(2, 3), fallback=("1.parametrizations.weight.original0", "1.parametrizations.weight.original1"),
    ),
}  # fmt: skip
