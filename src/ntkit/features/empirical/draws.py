"""Random sketches of gradients, evaluated in torch.

NumPy makes all draws from keyed seeds, so a plan and a seed give the same sketch on every device and in every dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ntkit._precision import exact_products
from ntkit._random import keyed
from ntkit.features.empirical.factors import Factors, Use, accurate, product
from ntkit.features.empirical.plan import PlannedSketch, dense_cost, transform_cost
from ntkit.programs import array_api
from ntkit.sketches import TensorSRHT
from ntkit.sketches.draws import draw_rows, draw_signs

CHUNK = 2**24
"""Numbers held at a time to sketch one layer on the host (64 MiB in float32). Larger chunks are not faster."""
CHUNK_ON_DEVICE = 2**28
"""Numbers held at a time to sketch one layer on a GPU."""


class LayerSketch:
    """Sketch of the gradients of one parameter."""

    def __init__(self, planned: PlannedSketch, seed: np.random.SeedSequence):
        self.planned, self.seed = planned, keyed(seed, planned.parameter.name, planned.law)
        self.shape, self.m = planned.parameter.shape, planned.n_components
        self._moved: dict[Any, Any] = {}

    def add(self, use: Use, out: Tensor) -> None:
        """Add the sketched gradients of a use of the parameter to `out`, of shape (rows, components)."""
        chunk = CHUNK if out.device.type == "cpu" else CHUNK_ON_DEVICE
        step = max(1, chunk // max(self.numbers_per_row(use), 1))
        for start in range(0, use.n_rows, step):
            rows = slice(start, min(start + step, use.n_rows))
            out[rows] += self.of_factors(use.factors(rows), out.dtype)

    def numbers_per_row(self, use: Use) -> int:
        """Return how many numbers per row the evaluation holds."""
        factors = use.n_positions * use.n_groups * sum(self.shape)
        if self.planned.law == "tensor":
            return factors + 3 * use.n_positions * use.n_groups * self.m
        return factors + 3 * self.planned.parameter.size

    def of_factors(self, factors: Factors, dtype: torch.dtype) -> Tensor:
        """Sketch sums of outer products."""
        if self.planned.law == "tensor":
            return self._tensor(factors, dtype)
        return self.of_gradients(product(factors, self.shape, dtype).flatten(1))

    def of_gradients(self, G: Tensor) -> Tensor:
        """Sketch explicit gradients of shape (rows, weights)."""
        if self.planned.law == "identity":
            return G
        rows, signs = self._moved_to(G.device, G.dtype)
        return G.new_zeros(len(G), self.m).index_add_(1, rows, G * signs)

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Component and sign of every weight. No two of m consecutive weights share a component."""
        size = self.planned.parameter.size
        return draw_rows(self.seed, n=self.m, size=size, replace=False), draw_signs(self.seed, size=size)

    @cached_property
    def tensor(self) -> Any:
        """TensorSRHT of the two factors."""
        return TensorSRHT(self.shape, self.m).sample(self.seed)

    def _moved_to(self, device: torch.device, dtype: torch.dtype) -> Any:
        key = (device, dtype)
        if key not in self._moved:
            if self.planned.law == "tensor":
                draws = zip(self.tensor.signs, self.tensor.rows, strict=True)
                self._moved[key] = [_sampled_rows(s, r).to(device, dtype) for s, r in draws]
            else:
                rows, signs = (torch.from_numpy(each) for each in self.counts)
                self._moved[key] = rows.to(device), signs.to(device, dtype)
        return self._moved[key]

    def _tensor(self, factors: Factors, dtype: torch.dtype) -> Tensor:
        left, right, offset = factors
        p = self.planned.parameter
        on_host = right.device.type == "cpu"
        half = not on_host and right.dtype.itemsize == 2 and left.dtype == right.dtype
        right = right if half else right.to(dtype)
        if not on_host or not left.is_floating_point() or dense_cost(p, self.m) <= transform_cost(p, self.m):
            left_part, right_part = self._dense(left, right, offset)
        else:
            left_part, right_part = self._transformed(left.to(dtype), right, offset)
        return (left_part * right_part).sum(dim=(1, 2), dtype=dtype) * self.m**-0.5

    def _dense(self, left: Tensor, right: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Multiply both factors by the sampled rows of the Hadamard matrices."""
        to_left, to_right = self._moved_to(right.device, right.dtype)
        if not left.is_floating_point():
            return to_left[left][:, None], right @ to_right
        _, groups, _, size = left.shape
        block = to_left[offset : offset + groups * size].view(groups, size, self.m)
        return left.to(right.dtype) @ block, right @ to_right

    def _transformed(self, left: Tensor, right: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Transform both factors, and gather the sampled entries."""
        signs, rows = self.tensor.signs, self.tensor.rows
        n, groups, positions, size = left.shape
        if size < self.shape[0]:
            whole = left.new_zeros(n, groups, positions, self.shape[0])
            for g in range(groups):
                whole[:, g, :, offset + g * size : offset + (g + 1) * size] = left[:, g]
            left = whole
        parts = []
        for x, s, r in zip((left, right), signs, rows, strict=True):
            x = array_api.hadamard(x * torch.from_numpy(s).to(x))
            parts.append(x.index_select(-1, torch.from_numpy(r)))
        return parts[0], parts[1]


def _sampled_rows(signs: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return (H D)[r] for every sampled row r as the columns of an int8 matrix of ±1, (entries, components)."""
    shared = np.arange(len(signs), dtype=np.uint32)[:, None] & rows.astype(np.uint32)[None]
    odd = np.bitwise_count(shared) & 1
    return torch.from_numpy(signs[:, None] * (1 - 2 * odd.astype(np.int8)))


class ModuleSketch:
    """Sketches of all parameters of a plan."""

    def __init__(self, plan: Sequence[PlannedSketch], seed: np.random.SeedSequence):
        self.layers = {each.parameter.name: LayerSketch(each, seed) for each in plan}
        self.n_components = sum(each.n_components for each in plan)

    def add(self, use: Use, out: Tensor) -> None:
        """Add the sketched gradients of a use of a parameter to the features of its rows."""
        layer = self.layers[use.name]
        with torch.no_grad(), exact_products():
            layer.add(use, out[:, layer.planned.columns])

    def add_gradients(self, name: str, G: Tensor, out: Tensor) -> None:
        """Sketch explicit gradients of shape (rows, weights), and add them to the features of these rows."""
        layer = self.layers[name]
        with torch.no_grad():
            out[:, layer.planned.columns] += layer.of_gradients(G.to(accurate(G.dtype)))
