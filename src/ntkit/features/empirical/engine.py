"""Passes over batches of rows: features, exact kernels, and what `fit` has to find out about a module; in torch."""

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
from ntkit.features.empirical.draws import Draws
from ntkit.features.empirical.factors import Use, accurate, formed
from ntkit.features.empirical.fallback import per_sample_gradients, row_gradients, take
from ntkit.features.empirical.plan import Parameter, Sketched
from ntkit.features.empirical.rows import Batch, Rows
from ntkit.features.empirical.taps import Call, Taps

TRIALS = (5, 7)
"""Batch sizes tried to find the axis of rows in what enters a layer; primes, which other axes seldom have both."""
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
"""Relative error up to which two ways to compute a gradient agree; 0.1 in 16 bits."""
NEGLIGIBLE = 1e-3
"""Norm of a gradient, relative to the largest of all parameters, below which it is rounding errors: that of the bias
of keys in attention is 0."""
IN_TRAINING = (
    nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU, nn.MultiheadAttention,
)  # fmt: skip


class Discovery(NamedTuple):
    """Parameters that features are made of, notes on others, by name, and numbers per row that a pass holds."""

    parameters: list[Parameter]
    notes: dict[str, str]
    numbers_per_row: int


@dataclass(frozen=True)
class Engine:
    """A module and the output that is differentiated."""

    module: nn.Module
    output: Any
    owner: str
    device: torch.device
    dtype: torch.dtype
    signs: np.ndarray | None = None
    """Signs with which logits are added up, for one output in place of many."""

    @property
    def _tolerance(self) -> float:
        return TOLERANCE.get(self.dtype, 0.1)

    def values(self, module: Any, inputs: Any, targets: Any, n_rows: int) -> Tensor:
        """Outputs of shape (rows, outputs); one output where there are `signs`."""
        found = outputs.evaluate(self.output, module, inputs, targets, n_rows, self.owner)
        if found.ndim == 1:
            return found[:, None]
        if self.signs is None:
            return found
        return (found * torch.from_numpy(self.signs).to(found)).sum(1, keepdim=True)

    def run(
        self, parameters: Sequence[Parameter], batch: Batch, sink: Callable[[Use, int], None] | None = None
    ) -> tuple[Tensor, list[Call]]:
        """One forward pass, and a backward pass for each output; the outputs, and which layers were called.

        The sink gets every use of a parameter with the index of the output.
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

    def features(self, plan: Sequence[Sketched], draws: Draws, batch: Batch, n_outputs: int) -> Tensor:
        """Features of a batch, (rows, outputs · components)."""
        size = (batch.n_rows, n_outputs, draws.n_components)
        with plain_mode():  # no inference tensor, which nothing could be added to
            out = torch.zeros(size, device=self.device, dtype=accurate(self.dtype))
        direct = [each.parameter for each in plan if each.parameter.source != "fallback"]
        if direct:
            values, _ = self.run(direct, batch, lambda use, k: draws.add(use, out[:, k]))
            found = values.shape[1]
            if found != n_outputs:
                raise ValueError(f"The module of {self.owner} has {found} outputs; it had {n_outputs} in fit.")
        rest = [each.parameter.name for each in plan if each.parameter.source == "fallback"]
        if rest:
            with plain_mode():
                for rows, k, grads in per_sample_gradients(self.module, rest, batch, self.values, n_outputs):
                    for name, grad in grads.items():
                        draws.add_gradients(name, grad.flatten(1), out[rows, k])
        self._check_finite(out, plan)
        return out.flatten(1)

    def gradients(self, parameters: Sequence[Parameter], batch: Batch) -> Iterator[tuple[str, int, Tensor]]:
        """Yield names, indices of outputs and formed gradients (rows, weights); for tests and exact kernels."""
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

    def _check_finite(self, Z: Tensor, plan: Sequence[Sketched]) -> None:
        if bool(torch.isfinite(Z.sum())) or bool(torch.isfinite(Z).all()):
            return
        bad = ~torch.isfinite(Z)
        row = int(bad.flatten(1).any(1).nonzero()[0])
        names = [each.parameter.name for each in plan if bool(bad[row, :, each.columns].any())]
        raise ValueError(
            f"{self.owner} needs finite gradients. Those of row {row} of a batch are not, for '{names[0]}'"
            f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}. Check the row for NaN and infinity, "
            "the module's parameters, and use float32 in place of float16."
        )

    def discover(self, rows: Rows, layers: Any) -> Discovery:
        """Find the parameters that features are made of, and how their gradients are found."""
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
        """Names of the trained parameters that `layers` asks for, and notes on those that are frozen."""
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
            remedy = "Set requires_grad of those that features are to be made of: module.requires_grad_(True)."
            rule = "a module with parameters that require gradients"
            raise ValueError(message(self.owner, "module", rule, f"{len(notes)} frozen ones", remedy))
        return names, notes

    def check_mode(self) -> None:
        """Raise for layers whose outputs are random, or depend on other rows, as long as they are in training mode."""
        for name, layer in self.module.named_modules():
            dropout = getattr(layer, "dropout", 0.0) if isinstance(layer, nn.MultiheadAttention) else 1.0
            dropout = getattr(layer, "p", dropout)
            alike = isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
            if isinstance(layer, IN_TRAINING) and (alike or (layer.training and dropout)):
                where = f"the layer '{name}' ({type(layer).__name__})" if name else type(layer).__name__
                remedy = "Call module.eval() first."
                if alike:
                    remedy = "Make it with track_running_stats=True: without, it mixes rows in evaluation mode too."
                raise ValueError(
                    f"The 'module' parameter of {self.owner} must treat every row by itself, without chance. Got "
                    f"{where} in {'training' if layer.training else 'evaluation'} mode. {remedy}"
                )

    def verified(
        self, candidates: list[Parameter], rows: Rows, notes: dict[str, str]
    ) -> tuple[list[Parameter], dict[str, str]]:
        """Compare with plain autograd on two rows; what differs is left to per-sample gradients."""
        batch = self._repeated(rows, 3)
        exact = [self._exact(candidates, take(batch, slice(i, i + 1))) for i in range(2)]
        names = {p.name for p in candidates if any(found[p.name] is not None for found in exact)}
        notes = notes | {p.name: "unused" for p in candidates if p.name not in names}
        if not names:
            rule = "a module whose output depends on its parameters, without torch.no_grad() or detach() on the way"
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
            rule = "a module that overwrites nothing that its gradients need"
            remedy = f"Replace operations such as x += y by x = x + y. torch says: {error}"
            raise ValueError(message(self.owner, "module", rule, type(self.module).__name__, remedy)) from error

    def _first_output(self, module: Any, inputs: Any, targets: Any, n_rows: int) -> Tensor:
        return self.values(module, inputs, targets, n_rows)[:, :1]

    def _tried(self, candidates: list[Parameter], batch: Batch) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
        """Gradients of two rows by taps, positions and groups; without parameters whose copies a module cannot take."""
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
            if "changed in place" in str(error):  # about the module, not about taps
                raise
            return None
        if any(p.source == "expanded" or p.axis < 0 for p in candidates):
            plain, _ = self.run([], batch)
            if not torch.allclose(values, plain, rtol=0, atol=self._tolerance * float(plain.abs().max())):
                return None
        return found, {name: (sum(u.n_positions for u in each), each[0].n_groups) for name, each in uses.items()}

    def _repeated(self, rows: Rows, size: int) -> Batch:
        """A batch of a size, of as many rows as there are, again and again."""
        return rows.at(np.arange(size) % rows.n_rows).take(slice(None))


def draw_output_signs(seed: np.random.SeedSequence, n_outputs: int) -> np.ndarray:
    """Signs with which logits are added up."""
    return 1.0 - 2.0 * generator(seed, "outputs", "signs").integers(2, size=n_outputs)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Gradients on, whatever the caller has set."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def matrix_shape(parameter: Tensor) -> tuple[int, int]:
    """(rows, the rest)."""
    if parameter.ndim < 2:
        return parameter.numel(), 1
    return parameter.shape[0], prod(parameter.shape[1:])


def find_axes(first: Sequence[Call], second: Sequence[Call]) -> dict[str, int]:
    """The axis of rows for each parameter that layers were called with, from calls with two numbers of rows.

    -1: no axis has the number of rows. Parameters whose calls differ are left out.
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
        return True  # reported where features are computed
    return float((found - expected).norm()) <= tolerance * (float(expected.norm()) + floor)
