"""Draws of sketches of gradients, and their evaluation in torch.

All draws are made by NumPy from keyed seeds: a plan and a seed are one sketch on every device and in every dtype.
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
from ntkit.features.empirical.plan import Sketched, dense_cost, transform_cost
from ntkit.programs import array_api
from ntkit.sketches import TensorSRHT
from ntkit.sketches.draws import draw_rows, draw_signs

CHUNK = 2**24
"""Numbers that the evaluation of one layer holds at a time on the host: 64 MiB, as larger ones gain no speed."""
CHUNK_ON_DEVICE = 2**28


class LayerSketch:
    """The sketch of one parameter."""

    def __init__(self, sketched: Sketched, seed: np.random.SeedSequence):
        self.sketched, self.seed = sketched, keyed(seed, sketched.parameter.name, sketched.law)
        self.shape, self.m = sketched.parameter.shape, sketched.n_components
        self._moved: dict[Any, Any] = {}

    def add(self, use: Use, out: Tensor) -> None:
        """Add the sketch of a use's gradients to (rows, components)."""
        chunk = CHUNK if out.device.type == "cpu" else CHUNK_ON_DEVICE
        step = max(1, chunk // max(self.numbers_per_row(use), 1))
        for start in range(0, use.n_rows, step):
            rows = slice(start, min(start + step, use.n_rows))
            out[rows] += self.of_factors(use.factors(rows), out.dtype)

    def numbers_per_row(self, use: Use) -> int:
        """Numbers per row that the evaluation holds."""
        factors = use.n_positions * use.n_groups * sum(self.shape)
        if self.sketched.law == "tensor":
            return factors + 3 * use.n_positions * use.n_groups * self.m
        return factors + 3 * self.sketched.parameter.size

    def of_factors(self, factors: Factors, dtype: torch.dtype) -> Tensor:
        """The sketch of sums of outer products."""
        if self.sketched.law == "tensor":
            return self._tensor(factors, dtype)
        return self.of_gradients(product(factors, self.shape, dtype).flatten(1))

    def of_gradients(self, G: Tensor) -> Tensor:
        """The sketch of gradients that were formed, (rows, weights)."""
        if self.sketched.law == "identity":
            return G
        rows, signs = self._moved_to(G.device, G.dtype)
        return G.new_zeros(len(G), self.m).index_add_(1, rows, G * signs)

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Component and sign of every weight; consecutive weights, as many as there are components, never collide."""
        size = self.sketched.parameter.size
        return draw_rows(self.seed, n=self.m, size=size, replace=False), draw_signs(self.seed, size=size)

    @cached_property
    def tensor(self) -> Any:
        """The TensorSRHT."""
        return TensorSRHT(self.shape, self.m).sample(self.seed)

    def _moved_to(self, device: torch.device, dtype: torch.dtype) -> Any:
        key = (device, dtype)
        if key not in self._moved:
            if self.sketched.law == "tensor":
                draws = zip(self.tensor.signs, self.tensor.rows, strict=True)
                self._moved[key] = [_sampled_rows(s, r).to(device, dtype) for s, r in draws]
            else:
                rows, signs = (torch.from_numpy(each) for each in self.counts)
                self._moved[key] = rows.to(device), signs.to(device, dtype)
        return self._moved[key]

    def _tensor(self, factors: Factors, dtype: torch.dtype) -> Tensor:
        left, right, offset = factors
        p = self.sketched.parameter
        on_host = right.device.type == "cpu"
        half = not on_host and right.dtype.itemsize == 2 and left.dtype == right.dtype
        right = right if half else right.to(dtype)
        if not on_host or not left.is_floating_point() or dense_cost(p, self.m) <= transform_cost(p, self.m):
            left_part, right_part = self._dense(left, right, offset)
        else:
            left_part, right_part = self._transformed(left.to(dtype), right, offset)
        return (left_part * right_part).sum(dim=(1, 2), dtype=dtype) * self.m**-0.5

    def _dense(self, left: Tensor, right: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Both factors times sampled rows of the Hadamard matrices."""
        to_left, to_right = self._moved_to(right.device, right.dtype)
        if not left.is_floating_point():
            return to_left[left][:, None], right @ to_right
        _, groups, _, size = left.shape
        block = to_left[offset : offset + groups * size].view(groups, size, self.m)
        return left.to(right.dtype) @ block, right @ to_right

    def _transformed(self, left: Tensor, right: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Both factors transformed, and the sampled entries gathered."""
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
    """Columns (H D)[r] for every sampled row r, as (entries, components) of ±1 in int8."""
    shared = np.arange(len(signs), dtype=np.uint32)[:, None] & rows.astype(np.uint32)[None]
    odd = np.bitwise_count(shared) & 1
    return torch.from_numpy(signs[:, None] * (1 - 2 * odd.astype(np.int8)))


class Draws:
    """The sketches of all parameters of a plan."""

    def __init__(self, plan: Sequence[Sketched], seed: np.random.SeedSequence):
        self.layers = {each.parameter.name: LayerSketch(each, seed) for each in plan}
        self.n_components = sum(each.n_components for each in plan)

    def add(self, use: Use, out: Tensor) -> None:
        """Add a use of a parameter to the features of its rows."""
        layer = self.layers[use.name]
        with torch.no_grad(), exact_products():
            layer.add(use, out[:, layer.sketched.columns])

    def add_gradients(self, name: str, G: Tensor, out: Tensor) -> None:
        """Add gradients that were formed, (rows, weights), to the features of these rows."""
        layer = self.layers[name]
        with torch.no_grad():
            out[:, layer.sketched.columns] += layer.of_gradients(G.to(accurate(G.dtype)))
