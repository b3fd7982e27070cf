"""Per-sample gradients of parameters without factors, in torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ntkit.features.empirical.rows import Batch

Values = Any
"""A function (module, inputs, targets, n_rows) → values of shape (n_rows, n_outputs)."""
MOST_NUMBERS = 2**26
"""Numbers of explicit gradients held at a time."""


def per_sample_gradients(
    module: nn.Module, names: Sequence[str], batch: Batch, values: Values, n_outputs: int
) -> Iterator[tuple[slice, int, dict[str, Tensor]]]:
    """Yield a slice of rows, the index of an output, and the gradients (rows, *shape) by parameter name.

    Uses ``torch.func.vmap`` where possible, else works row by row.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    chosen = {name: parameters[name].detach() for name in names}
    size = sum(p.numel() for p in chosen.values())
    step = max(1, MOST_NUMBERS // size)
    for start in range(0, batch.n_rows, step):
        rows = slice(start, min(start + step, batch.n_rows))
        part = take(batch, rows)
        for output in range(n_outputs):
            try:
                found = _mapped(module, chosen, part, values, output)
            except RuntimeError:  # vmap does not support all operations
                found = _one_by_one(module, chosen, part, values, output)
            yield rows, output, {name: g.detach() for name, g in found.items()}


def _mapped(
    module: nn.Module, chosen: dict[str, Tensor], batch: Batch, values: Values, output: int
) -> dict[str, Tensor]:
    def value_of_row(parameters: dict[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        lead = tree(inputs, lambda x: x[None])
        target = None if targets is None else targets[None]
        with replaced(module, parameters):
            return values(module, lead, target, 1)[0, output]

    axes = (None, tree(batch.inputs, lambda _: 0), None if batch.targets is None else 0)
    return torch.func.vmap(torch.func.grad(value_of_row), in_dims=axes)(chosen, batch.inputs, batch.targets)


def _one_by_one(
    module: nn.Module, chosen: dict[str, Tensor], batch: Batch, values: Values, output: int
) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {name: [] for name in chosen}
    for row in range(batch.n_rows):
        part = take(batch, slice(row, row + 1))
        for name, grad in row_gradients(module, list(chosen), part, values, output).items():
            found[name].append(torch.zeros_like(chosen[name]) if grad is None else grad)
    return {name: torch.stack(grads) for name, grads in found.items()}


def row_gradients(
    module: nn.Module, names: Sequence[str], batch: Batch, values: Values, output: int = 0
) -> dict[str, Tensor | None]:
    """Compute the gradients of one row by plain autograd; None for parameters that do not affect the output."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    with torch.enable_grad():
        value = values(module, batch.inputs, batch.targets, batch.n_rows)[:, output].sum()
        if not value.requires_grad:
            return dict.fromkeys(names)
        grads = torch.autograd.grad(value, [parameters[name] for name in names], allow_unused=True)
    return dict(zip(names, grads, strict=True))


class replaced:  # noqa: N801
    """Replace parameters by tensors within a context. Tied parameters all get the same tensor."""

    def __init__(self, module: nn.Module, tensors: dict[str, Tensor]):
        self.module, self.tensors = module, tensors

    def __enter__(self) -> None:
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        new = {id(parameters[name]): tensor for name, tensor in self.tensors.items()}
        self.originals: list[tuple[nn.Module, str, Any]] = []
        for layer in self.module.modules():
            for leaf, parameter in layer._parameters.items():
                if parameter is not None and id(parameter) in new:
                    self.originals.append((layer, leaf, parameter))
        for layer, leaf, parameter in self.originals:
            layer._parameters[leaf] = new[id(parameter)]

    def __exit__(self, *error: Any) -> None:
        for layer, leaf, parameter in self.originals:
            layer._parameters[leaf] = parameter


def take(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch."""
    inputs = tree(batch.inputs, lambda x: x[rows])
    n_rows = len(range(*rows.indices(batch.n_rows)))
    return Batch(inputs, None if batch.targets is None else batch.targets[rows], n_rows)


def tree(inputs: Any, function: Any) -> Any:
    """Apply a function to all tensors of the inputs, and keep their structure."""
    if isinstance(inputs, Mapping):
        return {key: function(value) for key, value in inputs.items()}
    return tuple(map(function, inputs)) if isinstance(inputs, tuple) else function(inputs)
