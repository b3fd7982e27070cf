"""Operations of graphs in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def like(x: Tensor, precision: Tensor) -> Tensor:
    """Cast `x` to the precision of the module."""
    return x.to(precision.dtype)


def widened(x: Tensor) -> Tensor:
    """Cast `x` to float64, or to float32 on devices without float64."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape `x`; -1 stands for the size that depends on the number of rows."""
    return x.reshape(shape)


def expanded(x: Tensor, rows: Tensor, shape: tuple[int, ...], factors: tuple[int, ...]) -> Tensor:
    """Broadcast `x` to a shape. The size of an axis with a nonzero factor is the factor times the number of rows."""
    return x.expand([rows.shape[0] * factor if factor else size for size, factor in zip(shape, factors, strict=True)])


def _root(x: Tensor) -> Tensor:
    """Compute √x, with derivative 0 at 0."""
    positive = x > 0
    return torch.where(positive, torch.sqrt(torch.where(positive, x, 1.0)), 0.0)


def _concat(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, dim=axis)


def _sum(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.sum(x, dim=axis, keepdim=keepdims)


def _mean(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.mean(x, dim=axis, keepdim=keepdims)


def _max(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.amax(x, dim=axis, keepdim=keepdims)


def _min(x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.amin(x, dim=axis, keepdim=keepdims)


def _argmax(x: Tensor, axis: int) -> Tensor:
    return torch.argmax(x, dim=axis)


def _take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    taken = torch.index_select(x, axis, indices.reshape(-1))
    return taken.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _slice(x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    return x[(*[slice(None)] * axis, slice(start, stop, step))]


def _transpose(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.permute(axes)


def _pad(x: Tensor, widths: tuple[tuple[int, int], ...]) -> Tensor:
    return torch.nn.functional.pad(x, [n for pair in reversed(widths) for n in pair])


def _rfft(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x))


def _irfft(x: Tensor, size: int) -> Tensor:
    return torch.fft.irfft(torch.view_as_complex(x.contiguous()), n=size)


_SAME_NAME = (
    "where", "logical_and", "logical_or", "logical_not", "abs", "sqrt", "exp", "log", "log1p", "expm1", "sin", "cos",
    "asin", "acos", "atan", "asinh", "tanh", "sign", "isnan", "matmul", "less", "less_equal", "greater",
    "greater_equal", "not_equal", "maximum", "minimum", "add", "subtract", "multiply", "divide", "negative",
)  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "power": torch.pow,
    "root": _root,
    "equal": torch.eq,
    "sum": _sum,
    "mean": _mean,
    "max": _max,
    "min": _min,
    "argmax": _argmax,
    "take": _take,
    "slice": _slice,
    "transpose": _transpose,
    "concat": _concat,
    "pad": _pad,
    "rfft": _rfft,
    "irfft": _irfft,
}
