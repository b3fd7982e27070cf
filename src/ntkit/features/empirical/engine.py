"""Passes over batches of rows in torch: features, exact kernels, and the analysis of a module in `fit`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ntkit._random import generator
from ntkit._validation import message
from ntkit.features.empirical import outputs
from ntkit.features.empirical.draws import ModuleSketch
from ntkit.features.empirical.factors import Use, accurate, formed
from ntkit.features.empirical.fallback import per_sample_gradients, row_gradients, take
from ntkit.features.empirical.plan import Parameter, PlannedSketch
from ntkit.features.empirical.rows import Batch, TensorRows
from ntkit.features.empirical.taps import Call, Taps

TRIALS = (5, 7)
"""Batch sizes tried to find the axis of rows in the input of a layer. They are primes: other axes rarely match both."""
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
"""Relative difference up to which two ways to compute a gradient count as equal; 0.1 for 16-bit dtypes."""
NEGLIGIBLE = 1e-3
"""A gradient is only rounding error if its norm, relative to the largest over all parameters, is below this. For
example, the exact gradient of the key bias in attention is 0."""
MODE_DEPENDENT = (
    nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention,
)  # fmt: skip
"""Layers that are random, or mix rows, in training mode."""


class Discovery(NamedTuple):
    """Parameters used for the features, notes on other parameters by name, and numbers per row that a pass holds."""

    parameters: list[Parameter]
    notes: dict[str, str]
    numbers_per_row: int


@dataclass(frozen=True)
class Engine:
    """A module and the output to differentiate."""

    module: nn.Module
    output: Any
    owner: str
    device: torch.device
    dtype: torch.dtype
    signs: np.ndarray | None = None
    """If given, the logits are summed with these signs to a single output."""

    @property
    def _tolerance(self) -> float:
        return TOLERANCE.get(self.dtype, 0.1)

    def values(self, module: Any, inputs: Any, targets: Any, n_rows: int) -> Tensor:
        """Evaluate the outputs, of shape (rows, outputs). With `signs` there is one output."""
        found = outputs.evaluate(self.output, module, inputs, targets, n_rows, self.owner)
        if found.ndim == 1:
            return found[:, None]
        if self.signs is None:
            return found
        return (found * torch.from_numpy(self.signs).to(found)).sum(1, keepdim=True)

    def run(
        self, parameters: Sequence[Parameter], batch: Batch, sink: Callable[[Use, int], None] | None = None
    ) -> tuple[Tensor, list[Call]]:
        """Run one forward pass and one backward pass per output; return the outputs and the calls of layers.

        `sink` receives every use of a parameter, with the index of the output.
        """
        names = self._names([p.name for p in parameters if p.source == "factors"])
        axes = {p.name: p.axis for p in parameters}
        expanded = [p.name for p in parameters if p.source == "expanded"]
        current = 0

        def receive(use: Use) -> None:
            assert sink is not None
            sink(use, current)

        with (
            plain_mode(),
            Taps(
                self.module, names, batch.n_rows, sink=receive if sink else None, axes=axes, expanded=expanded
            ) as taps,
        ):
            values = self.values(self.module, batch.inputs, batch.targets, batch.n_rows)
            n_outputs = values.shape[1]
            if sink is not None and values.requires_grad:
                for current in range(n_outputs):
                    more = current + 1 < n_outputs
                    torch.autograd.grad(values[:, current].sum(), taps.anchor, retain_graph=more, allow_unused=True)
        return values.detach(), taps.calls

    def features(self, plan: Sequence[PlannedSketch], sketch: ModuleSketch, batch: Batch, n_outputs: int) -> Tensor:
        """Compute the features of a batch, (rows, outputs · components)."""
        size = (batch.n_rows, n_outputs, sketch.n_components)
        with plain_mode():  # an inference tensor could not be updated
            out = torch.zeros(size, device=self.device, dtype=accurate(self.dtype))
        direct = [each.parameter for each in plan if each.parameter.source != "fallback"]
        if direct:
            values, _ = self.run(direct, batch, lambda use, k: sketch.add(use, out[:, k]))
            found = values.shape[1]
            if found != n_outputs:
                raise ValueError(f"The module of {self.owner} must have {n_outputs} outputs, as in fit. Got {found}.")
        rest = [each.parameter.name for each in plan if each.parameter.source == "fallback"]
        if rest:
            with plain_mode():
                for rows, k, grads in per_sample_gradients(self.module, rest, batch, self.values, n_outputs):
                    for name, grad in grads.items():
                        sketch.add_gradients(name, grad.flatten(1), out[rows, k])
        self._check_finite(out, plan)
        return out.flatten(1)

    def gradients(self, parameters: Sequence[Parameter], batch: Batch) -> Iterator[tuple[str, int, Tensor]]:
        """Yield name, output index and explicit gradients (rows, weights), for tests and exact kernels."""
        found: dict[tuple[str, int], list[Use]] = defaultdict(list)
        direct = [p for p in parameters if p.source != "fallback"]
        if direct:
            self.run(direct, batch, lambda use, k: found[use.name, k].append(use))
        shapes = {p.name: p.shape for p in parameters}
        for (name, k), uses in found.items():
            yield name, k, formed(uses, shapes[name], slice(None)).flatten(1)
        rest = [p.name for p in parameters if p.source == "fallback"]
        if rest:
            with plain_mode():
                n_outputs = self.values(self.module, batch.inputs, batch.targets, batch.n_rows).shape[1]
                parts: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
                for _, k, grads in per_sample_gradients(self.module, rest, batch, self.values, n_outputs):
                    for name, grad in grads.items():
                        parts[name, k].append(grad.flatten(1).to(accurate(grad.dtype)))
            for (name, k), grads_ in parts.items():
                yield name, k, torch.cat(grads_)

    def _names(self, names: Sequence[str]) -> dict[int, str]:
        known = dict(self.module.named_parameters())
        return {id(known[name]): name for name in names}

    def _check_finite(self, Z: Tensor, plan: Sequence[PlannedSketch]) -> None:
        if bool(torch.isfinite(Z.sum())) or bool(torch.isfinite(Z).all()):
            return
        bad = ~torch.isfinite(Z)
        row = int(bad.flatten(1).any(1).nonzero()[0])
        names = [each.parameter.name for each in plan if bool(bad[row, :, each.columns].any())]
        raise ValueError(
            f"{self.owner} needs finite gradients. The gradients of row {row} of a batch are not finite for "
            f"'{names[0]}'{f' and {len(names) - 1} more parameters' if len(names) > 1 else ''}. Check the row and the "
            "parameters for NaN and infinity, and use float32 instead of float16."
        )

    def discover(self, rows: TensorRows, layers: Any) -> Discovery:
        """Find the parameters to use, and how to compute the gradient of each."""
        self.check_mode()
        names, notes = self.choose(layers)
        known = dict(self.module.named_parameters())
        whole = [Parameter(name=n, shape=matrix_shape(known[n]), source="factors") for n in names]
        calls = [self.run(whole, self._repeated(rows, size))[1] for size in TRIALS]
        axes = find_axes(*calls)
        candidates = []
        for each in whole:
            if each.name in axes:
                candidates.append(Parameter(name=each.name, shape=each.shape, source="factors", axis=axes[each.name]))
            else:
                shape = (known[each.name].numel(), 1)
                candidates.append(Parameter(name=each.name, shape=shape, source="expanded"))
        parameters, notes = self.verified(candidates, rows, notes)
        numbers = sum(abs(prod(call.input_shape)) for call in calls[1]) // TRIALS[1]
        return Discovery(parameters, notes, 4 * numbers)

    def choose(self, layers: Any) -> tuple[list[str], dict[str, str]]:
        """Return the names of the trained parameters selected by `layers`, and notes on frozen parameters."""
        known = dict(self.module.named_parameters())
        wanted = list(known)
        if layers is not None:
            patterns = [layers] if isinstance(layers, str) else list(layers)
            for pattern in patterns:
                if not isinstance(pattern, str):
                    raise TypeError(message(self.owner, "layers", "None or names of layers or parameters", layers))
                if not any(_matches(name, pattern) for name in known):
                    listed = ", ".join(repr(name) for name in list(known)[:20])
                    remedy = f"The module has {listed}{' and more' * (len(known) > 20)}."
                    rule = "names, or patterns such as 'blocks.*.weight', of layers or parameters of the module"
                    raise ValueError(message(self.owner, "layers", rule, pattern, remedy))
            wanted = [name for name in known if any(_matches(name, pattern) for pattern in patterns)]
        notes = {name: "frozen" for name in wanted if not known[name].requires_grad}
        names = [name for name in wanted if known[name].requires_grad and known[name].numel()]
        if not names:
            remedy = "Enable gradients for the parameters to use: module.requires_grad_(True)."
            rule = "a module with parameters that require gradients"
            raise ValueError(message(self.owner, "module", rule, f"{len(notes)} frozen parameters", remedy))
        return names, notes

    def check_mode(self) -> None:
        """Raise for layers whose outputs are random or depend on other rows, as in training mode."""
        for name, layer in self.module.named_modules():
            dropout = getattr(layer, "dropout", 0.0) if isinstance(layer, nn.MultiheadAttention) else 1.0
            dropout = getattr(layer, "p", dropout)
            always_mixes = isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
            if isinstance(layer, MODE_DEPENDENT) and (always_mixes or (layer.training and dropout)):
                where = f"the layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__
                remedy = "Call module.eval() first."
                if always_mixes:
                    remedy = "Use track_running_stats=True; otherwise the layer mixes rows in evaluation mode, too."
                raise ValueError(
                    f"The 'module' parameter of {self.owner} must treat rows independently and without randomness. Got "
                    f"{where} in {'training' if layer.training else 'evaluation'} mode instead. {remedy}"
                )

    def verified(
        self, candidates: list[Parameter], rows: TensorRows, notes: dict[str, str]
    ) -> tuple[list[Parameter], dict[str, str]]:
        """Compare gradients with plain autograd on two rows. Use per-sample gradients where they differ."""
        batch = self._repeated(rows, 3)
        exact = [self._exact(candidates, take(batch, slice(i, i + 1))) for i in range(2)]
        names = {p.name for p in candidates if any(found[p.name] is not None for found in exact)}
        notes = notes | {p.name: "unused" for p in candidates if p.name not in names}
        if not names:
            rule = "a module whose output depends on its parameters, without torch.no_grad() or detach() in between"
            raise ValueError(message(self.owner, "module", rule, type(self.module).__name__))
        candidates = [p for p in candidates if p.name in names]
        found, counts = self._tried(candidates, batch)
        floors = [NEGLIGIBLE * max(float(g.norm()) for g in each.values() if g is not None) for each in exact]
        settled = []
        for p in candidates:
            agrees = p.name in found and all(
                _agree(found[p.name][i], exact[i][p.name], self._tolerance, floors[i]) for i in range(2)
            )
            if agrees:
                positions, groups = counts[p.name]
                settled.append(
                    Parameter(
                        name=p.name,
                        shape=p.shape,
                        source=p.source,
                        axis=p.axis,
                        n_positions=positions,
                        n_groups=groups,
                    )
                )
            else:
                size = prod(p.shape)
                settled.append(Parameter(name=p.name, shape=(size, 1), source="fallback"))
                notes[p.name] = "fallback"
        return settled, notes

    def _exact(self, candidates: Sequence[Parameter], batch: Batch) -> dict[str, Tensor | None]:
        try:
            with plain_mode():
                return row_gradients(self.module, [p.name for p in candidates], batch, self._first_output)
        except RuntimeError as error:
            if "inplace operation" not in str(error):
                raise
            rule = "a module that does not overwrite tensors needed for gradients"
            remedy = f"Replace in-place operations such as x += y by x = x + y. torch says: {error}"
            raise ValueError(message(self.owner, "module", rule, type(self.module).__name__, remedy)) from error

    def _first_output(self, module: Any, inputs: Any, targets: Any, n_rows: int) -> Tensor:
        return self.values(module, inputs, targets, n_rows)[:, :1]

    def _tried(self, candidates: list[Parameter], batch: Batch) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
        """Return the gradients of two rows found by hooks, and the positions and groups of each parameter.

        Parameters that the module does not accept as one copy per row are left out.
        """
        tried = self._try(candidates, batch)
        if tried is not None:
            return tried
        known = [p for p in candidates if p.source == "factors" and p.axis >= 0]
        found, counts = self._try(known, batch) or ({}, {})
        for p in candidates:
            one = self._try([p], batch) if p not in known else None
            if one is not None:
                found, counts = found | one[0], counts | one[1]
        return found, counts

    def _try(
        self, candidates: list[Parameter], batch: Batch
    ) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]] | None:
        uses: dict[str, list[Use]] = defaultdict(list)
        try:
            values, _ = self.run(candidates, batch, lambda use, k: uses[use.name].append(use) if k == 0 else None)
            shapes = {p.name: p.shape for p in candidates}
            found = {name: formed(each, shapes[name], slice(0, 2)) for name, each in uses.items()}
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if "changed in place" in str(error):  # a fault of the module, not of the hooks
                raise
            return None
        if any(p.source == "expanded" or p.axis < 0 for p in candidates):
            plain, _ = self.run([], batch)
            if not torch.allclose(values, plain, rtol=0, atol=self._tolerance * float(plain.abs().max())):
                return None
        return found, {name: (sum(u.n_positions for u in each), each[0].n_groups) for name, each in uses.items()}

    def _repeated(self, rows: TensorRows, size: int) -> Batch:
        """Return a batch of `size` rows, repeating the rows as needed."""
        return rows.at(np.arange(size) % rows.n_rows).take(slice(None))


def draw_output_signs(seed: np.random.SeedSequence, n_outputs: int) -> np.ndarray:
    """Draw random signs for a sum of logits."""
    return 1.0 - 2.0 * generator(seed, "outputs", "signs").integers(2, size=n_outputs)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Enable gradients, whatever the caller has set."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def matrix_shape(parameter: Tensor) -> tuple[int, int]:
    """Return the shape of a parameter as a matrix: (first axis, all other axes)."""
    if parameter.ndim < 2:
        return parameter.numel(), 1
    return parameter.shape[0], prod(parameter.shape[1:])


def find_axes(first: Sequence[Call], second: Sequence[Call]) -> dict[str, int]:
    """Find the axis of rows for each parameter by comparing calls with two batch sizes.

    The axis is -1 if no axis has the number of rows. Parameters with inconsistent calls are left out.
    """
    found: dict[str, set[int]] = defaultdict(set)
    if len(first) != len(second):
        return {}
    small, large = TRIALS
    for a, b in zip(first, second, strict=True):
        if a.names != b.names or len(a.input_shape) != len(b.input_shape):
            return {}
        pairs = list(zip(a.input_shape, b.input_shape, strict=True))[: len(a.input_shape) - a.n_trailing]
        axes = [i for i, pair in enumerate(pairs) if pair == (small, large)]
        if axes:
            axis = axes[0]
        else:
            k, rest = divmod(pairs[0][0], small) if pairs else (0, 1)
            axis = 0 if not rest and k and pairs[0][1] == k * large else -1
        for name in a.names:
            found[name].add(axis)
    return {name: axes.pop() for name, axes in found.items() if len(axes) == 1}


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _agree(found: Tensor, exact: Tensor | None, tolerance: float, floor: float) -> bool:
    found = found.flatten().double()
    expected = torch.zeros_like(found) if exact is None else exact.detach().flatten().double()
    if not bool(torch.isfinite(expected).all()):
        return True  # reported when features are computed
    return float((found - expected).norm()) <= tolerance * (float(expected.norm()) + floor)
