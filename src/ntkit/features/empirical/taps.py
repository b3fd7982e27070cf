"""Hooks that record the factors of the gradients of all layers in one forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ntkit.features.empirical.factors import (
    ConvUse,
    EmbeddingUse,
    LinearUse,
    Use,
    VectorUse,
    by_rows,
    normalized,
)

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CHANNEL_NORMS = (nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
TRAILING_NORMS = (nn.LayerNorm, nn.RMSNorm)
LAYERS = (nn.Linear, nn.Embedding, *CONVS, *CHANNEL_NORMS, *TRAILING_NORMS)
"""Layers whose gradients follow from their input and the gradient of their output."""

Sink = Callable[[Use], None]


class Call(NamedTuple):
    """A call of a layer: the names of its parameters, the shape of its input, and its number of trailing axes."""

    names: tuple[str, ...]
    input_shape: tuple[int, ...]
    n_trailing: int


class _Tap(torch.autograd.Function):
    """The identity, which passes its gradient to a function in the backward pass.

    The anchor requires a gradient, so autograd always visits this function. The output is a copy, which the next layer
    may overwrite.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, show: Callable[[Tensor], None]) -> Tensor:  # noqa: ARG004
        ctx.show = show
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.show(grads[0].detach())
        return grads[0], None, None


class Taps:
    """Context that adds hooks to a module and removes them at the end.

    `names` maps the ids of parameters to names, and `axes` maps names to the axis of rows. `expanded` lists the
    parameters that are replaced by one copy per row. `sink` receives every use of a parameter during the backward pass
    with respect to `anchor`.
    """

    def __init__(
        self,
        module: nn.Module,
        names: dict[int, str],
        n_rows: int,
        *,
        sink: Sink | None = None,
        axes: dict[str, int] | None = None,
        expanded: Sequence[str] = (),
    ):
        self.module, self.names, self.n_rows = module, names, n_rows
        self.sink, self.axes, self.expanded = sink, axes or {}, expanded
        self.calls: list[Call] = []
        device = next(module.parameters()).device
        self.anchor = torch.zeros((), device=device, requires_grad=True)

    def __enter__(self) -> Taps:
        with ExitStack() as stack:
            for layer in self.module.modules():
                if isinstance(layer, LAYERS) and self._used(layer):
                    handle = layer.register_forward_hook(self._hook, with_kwargs=True, prepend=True)
                    stack.callback(handle.remove)
                elif isinstance(layer, nn.MultiheadAttention) and self._used(layer):
                    stack.enter_context(self._attention(layer))
            for name in self.expanded:
                stack.enter_context(self._copies(name))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def _used(self, layer: nn.Module) -> bool:
        own = [p for p in layer._parameters.values() if p is not None]
        if isinstance(layer, nn.MultiheadAttention):
            own += [p for p in layer.out_proj._parameters.values() if p is not None]
        return any(id(p) in self.names for p in own)

    def tap(self, x: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        """Return a copy of `x` whose gradient is passed to `show` in the backward pass."""
        return _Tap.apply(x, self.anchor, show)

    def _hook(self, layer: Any, args: Any, kwargs: Any, out: Any) -> Any:
        x = args[0] if args else kwargs["input"]
        named = {key: self.names.get(id(p)) for key, p in layer._parameters.items()}
        weight, bias = named.get("weight"), named.get("bias")
        any_name = next(name for name in (weight, bias) if name is not None)
        trailing = len(layer.normalized_shape) if isinstance(layer, TRAILING_NORMS) else int(not _is_index(layer))
        if isinstance(layer, (*CONVS, *CHANNEL_NORMS)):
            trailing = x.ndim - 1
        self.calls.append(Call(tuple(n for n in (weight, bias) if n), tuple(x.shape), trailing))
        axis = self.axes.get(any_name, 0)
        x, version = x.detach(), x._version

        def show(grad: Tensor) -> None:
            if x._version != version:
                raise RuntimeError(
                    f"The input of the layer of '{any_name}' was changed in place after the layer had read it, so its "
                    "gradient would be wrong. Replace operations such as x += y by x = x + y."
                )
            for use in self._uses(layer, x, grad, weight, bias, axis):
                self._send(use)

        if axis < 0 and self.sink is not None:  # the same for all rows: make one copy per row
            out = out.expand(self.n_rows, *out.shape[int(out.shape[0] == 1 and out.ndim > 2) :])
        return self.tap(out, show)

    def _send(self, use: Use) -> None:
        if self.sink is not None:
            self.sink(use)

    def _uses(
        self, layer: Any, x: Tensor, grad: Tensor, weight: str | None, bias: str | None, axis: int
    ) -> Iterator[Use]:
        n = self.n_rows
        if isinstance(layer, nn.Embedding):
            if weight is not None:
                yield EmbeddingUse(weight, x, grad, axis, n, layer.padding_idx)
        elif isinstance(layer, nn.Linear):
            yield from linear_uses(weight, bias, x, grad, axis, n)
        elif isinstance(layer, CONVS):
            if weight is not None:
                yield ConvUse(weight, x, grad, layer, n)
            if bias is not None:
                yield VectorUse(bias, by_channels(grad, n))
        else:
            n_trailing = len(layer.normalized_shape) if isinstance(layer, TRAILING_NORMS) else 0
            for name, values in ((weight, lambda: grad * normalized(layer, x)), (bias, lambda: grad)):
                if name is not None and n_trailing:
                    yield VectorUse(name, by_rows(values(), max(axis, 0), n, n_trailing).sum(1))
                elif name is not None:
                    yield VectorUse(name, by_channels(values(), n))

    @contextmanager
    def _copies(self, name: str) -> Iterator[None]:
        """Replace a parameter by one copy per row."""
        owner_name, _, leaf = name.rpartition(".")
        owner = self.module.get_submodule(owner_name)
        parameter = owner._parameters[leaf]
        assert parameter is not None
        copies = parameter.detach()
        copies = copies if copies.ndim > 1 and len(copies) == 1 else copies[None]
        copies = copies.expand(self.n_rows, *copies.shape[1:])
        owner._parameters[leaf] = self.tap(copies, lambda grad: self._send(VectorUse(name, grad)))
        try:
            yield
        finally:
            owner._parameters[leaf] = parameter

    @contextmanager
    def _attention(self, layer: nn.MultiheadAttention) -> Iterator[None]:
        """Record the products inside an attention layer.

        Its forward method calls functions rather than layers, so hooks would record nothing. During a pass it is
        replaced by the same code with another `linear`.
        """
        own = {id(p): p for p in (*layer._parameters.values(), *layer.out_proj._parameters.values()) if p is not None}

        def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            out = functional.linear(x, weight, bias)
            weight_at, bias_at = (None if p is None else self._locate(p, own) for p in (weight, bias))
            if weight_at is None and bias_at is None:
                return out
            names = tuple(each[0] for each in (weight_at, bias_at) if each)
            # Inside attention, rows are on axis 1, (positions, rows, entries), or merged, (positions · rows, entries).
            self.calls.append(Call(names, (-1, self.n_rows, x.shape[-1]), 1))
            entered = x.detach()

            def show(grad: Tensor) -> None:
                a, b = (t.reshape(-1, self.n_rows, t.shape[-1]) for t in (entered, grad))
                for use in located_uses(weight_at, bias_at, a, b, self.n_rows):
                    self._send(use)

            return self.tap(out, show)

        code = _with_linear(linear)
        original = layer.__dict__.get("forward")
        layer.__dict__["forward"] = MethodType(code, layer)
        try:
            yield
        finally:
            if original is None:
                del layer.__dict__["forward"]
            else:
                layer.__dict__["forward"] = original

    def _locate(self, part: Tensor, own: dict[int, nn.Parameter]) -> tuple[str, int] | None:
        """Return the parameter that a tensor is a slice of, by name, and the index of its first row; or None."""
        for key, parameter in own.items():
            if key not in self.names or part.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr():
                continue
            stride = parameter.stride(0)
            row, rest = divmod(part.storage_offset() - parameter.storage_offset(), stride)
            if not rest and part.shape[1:] == parameter.shape[1:] and 0 <= row < len(parameter):
                return self.names[key], row
        return None


def linear_uses(weight: str | None, bias: str | None, x: Tensor, grad: Tensor, axis: int, n_rows: int) -> Iterator[Use]:
    """Yield the uses of the parameters of a linear layer."""
    if weight is not None:
        yield LinearUse(weight, x, grad, axis, n_rows)
    if bias is not None:
        yield VectorUse(bias, by_rows(grad, max(axis, 0), n_rows, 1).sum(1))


def located_uses(weight: Any, bias: Any, x: Tensor, grad: Tensor, n_rows: int) -> Iterator[Use]:
    """Yield the uses of slices of the parameters of an attention layer, where rows of X are on axis 1."""
    if weight is not None:
        yield LinearUse(weight[0], x, grad, 1, n_rows, weight[1])
    if bias is not None:
        yield VectorUse(bias[0], by_rows(grad, 1, n_rows, 1).sum(1), bias[1])


def by_channels(x: Tensor, n_rows: int) -> Tensor:
    """Sum (images, channels, …) over all axes except rows and channels."""
    return x.reshape(n_rows, -1, x.shape[1], *x.shape[2:]).sum(dim=(1, *range(3, x.ndim + 1)))


def _is_index(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Embedding)


def _with_linear(linear: Callable[..., Tensor]) -> Any:
    """Return the forward method of attention with another `linear`, without changing anything global."""
    names = ("_in_projection_packed", "_in_projection", "multi_head_attention_forward")
    scope = {**vars(functional), "linear": linear}
    for name in names:
        scope[name] = _rebound(getattr(functional, name), scope)
    inner = type("functional", (), {**scope, **{name: staticmethod(scope[name]) for name in names}})
    forward: Any = nn.MultiheadAttention.forward
    return _rebound(forward, {**forward.__globals__, "F": inner})


def _rebound(function: Any, scope: dict[str, Any]) -> FunctionType:
    copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
