"""Uses of a parameter in a forward pass, and the factors of its gradient, in torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Factors(NamedTuple):
    """Factors of the gradients of some rows: each gradient is the sum of left ⊗ right over groups and positions.

    `left` has the shape (rows, groups, positions, size). Its groups, one after another, are the entries from `offset`
    on along the first axis of the weights. Alternatively, `left` holds indices (rows, positions) of unit vectors.
    `right` has the shape (rows, groups, positions, rest).
    """

    left: Tensor
    right: Tensor
    offset: int = 0


class Use(ABC):
    """One use of a parameter, with the gradient of the output at that point of the network."""

    def __init__(self, name: str, n_rows: int, offset: int = 0):
        self.name, self.n_rows, self.offset = name, n_rows, offset

    @property
    @abstractmethod
    def n_positions(self) -> int:
        """Number of positions per row."""

    n_groups = 1

    @abstractmethod
    def factors(self, rows: slice) -> Factors:
        """Return the factors of some rows."""


def by_rows(x: Tensor, axis: int, n_rows: int, n_last: int) -> Tensor:
    """Reshape `x` to (rows of X, all other axes, the last `n_last` axes).

    The axis of rows may be a multiple of the number of rows of X; the entries of one row are then consecutive. With
    `axis` -1, `x` is the same for all rows.
    """
    last = x.shape[x.ndim - n_last :]
    if axis < 0:
        return x.reshape(1, -1, *last).expand(n_rows, *[-1] * (n_last + 1))
    x = x.movedim(axis, 0)
    if x.shape[0] % n_rows:
        raise ValueError(
            f"A layer got an input with {x.shape[0]} entries along the axis of rows, for {n_rows} rows. Features need "
            "a module that treats rows independently and keeps their order."
        )
    return x.reshape(n_rows, -1, *last)


class LinearUse(Use):
    """A linear layer, x ↦ W x."""

    def __init__(self, name: str, x: Tensor, grad: Tensor, axis: int, n_rows: int, offset: int = 0):
        super().__init__(name, n_rows, offset)
        self.x, self.grad = by_rows(x, axis, n_rows, 1), by_rows(grad, max(axis, 0), n_rows, 1)

    @property
    def n_positions(self) -> int:
        """See :class:`Use`."""
        return self.x.shape[1]

    def factors(self, rows: slice) -> Factors:
        """See :class:`Use`."""
        return Factors(self.grad[rows, None], self.x[rows, None], self.offset)


class EmbeddingUse(Use):
    """An embedding, i ↦ W[i]. The padding index has no gradient."""

    def __init__(self, name: str, x: Tensor, grad: Tensor, axis: int, n_rows: int, padding: int | None):
        super().__init__(name, n_rows)
        self.x, self.grad = by_rows(x, axis, n_rows, 0), by_rows(grad, max(axis, 0), n_rows, 1)
        if padding is not None:
            self.grad = self.grad.masked_fill((self.x == padding)[..., None], 0.0)

    @property
    def n_positions(self) -> int:
        """See :class:`Use`."""
        return self.x.shape[1]

    def factors(self, rows: slice) -> Factors:
        """See :class:`Use`."""
        return Factors(self.x[rows], self.grad[rows, None])


class ConvUse(Use):
    """A convolution over one, two or three axes. The right factors are patches of the input."""

    def __init__(self, name: str, x: Tensor, grad: Tensor, layer: Any, n_rows: int):
        super().__init__(name, n_rows)
        self.layer, self.n_groups = layer, layer.groups
        self.fold = x.shape[0] // n_rows
        if x.shape[0] % n_rows:
            raise ValueError(f"A convolution got {x.shape[0]} images for {n_rows} rows.")
        self.x, self.grad = x, grad

    @property
    def n_positions(self) -> int:
        """See :class:`Use`."""
        return self.fold * prod(self.grad.shape[2:])

    def factors(self, rows: slice) -> Factors:
        """See :class:`Use`."""
        start, stop, _ = rows.indices(self.n_rows)
        images = slice(start * self.fold, stop * self.fold)
        right = patches(self.x[images], self.layer)
        left = self.grad[images].reshape(len(right), self.n_groups, -1, prod(self.grad.shape[2:])).transpose(2, 3)
        return Factors(self._join(left), self._join(right))

    def _join(self, x: Tensor) -> Tensor:
        """Turn several images of one row of X into additional positions."""
        if self.fold == 1:
            return x
        n, groups, positions, size = x.shape
        x = x.reshape(n // self.fold, self.fold, groups, positions, size).transpose(1, 2)
        return x.reshape(n // self.fold, groups, -1, size)


def patches(x: Tensor, layer: Any) -> Tensor:
    """Extract patches of (images, channels, …), as (images, groups, positions, channels of a group × kernel)."""
    n_axes = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    pads = padding(layer)
    x = functional.pad(x, pads, mode=mode) if any(pads) else x
    for axis in range(n_axes):
        size = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        x = x.unfold(2 + axis, size, layer.stride[axis])[..., :: layer.dilation[axis]]
    n, channels = x.shape[:2]
    x = x.reshape(n, layer.groups, channels // layer.groups, prod(x.shape[2 : 2 + n_axes]), prod(x.shape[2 + n_axes :]))
    return x.transpose(2, 3).flatten(3)


def padding(layer: Any) -> list[int]:
    """Return the padding of a convolution before and after each axis, last axis first, as ``functional.pad`` takes."""
    pads: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):
        if layer.padding == "valid":
            pads += [0, 0]
        elif layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            pads += [total // 2, total - total // 2]
        else:
            pads += [layer.padding[axis]] * 2
    return pads


class VectorUse(Use):
    """A parameter with explicit gradients (rows, …): a bias, a scale, or one copy per row."""

    n_positions = 1

    def __init__(self, name: str, grad: Tensor, offset: int = 0):
        super().__init__(name, len(grad), offset)
        self.grad = grad.reshape(len(grad), -1)

    def factors(self, rows: slice) -> Factors:
        """See :class:`Use`."""
        left = self.grad[rows, None, None]
        return Factors(left, left.new_ones(1, 1, 1, 1).expand(len(left), 1, 1, 1), self.offset)


def normalized(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute the normalized input, which a normalization layer multiplies by its weights."""
    layer_: Any = layer
    if isinstance(layer, nn.LayerNorm):
        return functional.layer_norm(x, layer_.normalized_shape, eps=layer_.eps)
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(x, layer_.num_groups, eps=layer_.eps)
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(x, layer_.normalized_shape, eps=layer_.eps)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return functional.batch_norm(x, layer_.running_mean, layer_.running_var, eps=layer_.eps)
    return functional.instance_norm(x, eps=layer_.eps)


def formed(uses: Sequence[Use], shape: tuple[int, int], rows: slice) -> Tensor:
    """Compute the explicit gradients of some rows with respect to a parameter, (rows, *shape)."""
    return sum((product(use.factors(rows), shape) for use in uses[1:]), start=product(uses[0].factors(rows), shape))


def product(factors: Factors, shape: tuple[int, int], dtype: torch.dtype | None = None) -> Tensor:
    """Compute the sums of outer products, (rows, *shape)."""
    left, right, offset = factors
    dtype = dtype or accurate(right.dtype)
    right = right.to(dtype)
    n = len(right)
    if not left.is_floating_point():
        out = right.new_zeros(n * shape[0], shape[1])
        places = left + shape[0] * torch.arange(n, device=left.device)[:, None]
        return out.index_add_(0, places.flatten(), right.reshape(-1, shape[1])).view(n, *shape)
    sums = (left.to(dtype).transpose(2, 3) @ right).reshape(n, -1, shape[1])
    if sums.shape[1] == shape[0]:
        return sums
    out = right.new_zeros(n, *shape)
    out[:, offset : offset + sums.shape[1]] = sums
    return out


def accurate(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of features and sums: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
