"""Choice of the sketch of each parameter, and allocation of the components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

import numpy as np

from ntkit.programs import power_of_two

SCATTER_COST = 50.0
"""Cost of adding a number at a random index, in multiply-adds of a matrix product: 1.1 and 0.02 ns on a CPU core."""
GATHER_COST = 40.0
"""Cost of a gathered entry of a transform, in the same unit."""
TOLERATED_VARIANCE = 1.25
"""The cheaper of two sketches is used up to this ratio of variances, which is 1.12 in the error of the kernel."""
SMALL_SHARE = 0.05
"""Work of a layer that is negligible, as a share of the forward and backward pass of the network."""
STEPS = 4
"""Shares are rounded to powers of 2^(1/STEPS), so that rounding errors on another device do not change a plan."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A trained parameter, and how its gradient is computed.

    The gradient of a row of X is the sum over positions t of left_t ⊗ right_t, where left_t has `shape[0]` and right_t
    `shape[1]` entries. `source` is "factors" (recorded by hooks), "expanded" (the same for all rows, so it is replaced
    by one copy per row) or "fallback" (per-sample gradients). `axis` is the axis of the rows of X in the input of the
    layer, or -1 if there is none.
    """

    name: str
    shape: tuple[int, int]
    source: str
    axis: int = 0
    n_positions: int = 1
    n_groups: int = 1

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.shape[0] * self.shape[1]

    @property
    def is_matrix(self) -> bool:
        """Whether a TensorSRHT can sketch it."""
        return self.source == "factors" and min(self.shape) > 1


@dataclass(frozen=True, kw_only=True)
class PlannedSketch:
    """A parameter with the law of its sketch, its number of components, its share of the kernel, and its columns.

    `law` is "identity", "count" or "tensor".
    """

    parameter: Parameter
    law: str
    n_components: int
    share: float = 0.0
    start: int = 0

    @property
    def columns(self) -> slice:
        """Columns of its components among all features."""
        return slice(self.start, self.start + self.n_components)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Variances measured for a parameter, summed over all pairs of probe rows.

    `count` and `tensor` are the variances of kernel entries with one component of a CountSketch or a TensorSRHT
    (infinite if no TensorSRHT was tried).
    """

    count: float
    tensor: float


def measure(Z: np.ndarray, *, exact: bool, tensor: bool) -> Measured:
    """Estimate the variances of both laws from a sketch Z of the probe rows.

    Let m zᵢₗzⱼₗ be the estimate of Kᵢⱼ by component l. Summed over all pairs, its second moment is E sₗ² with
    sₗ = m Σᵢ zᵢₗ², and E sₗ = tr K. The variance of a CountSketch is (tr K)² + ‖K‖², minus terms of single weights; the
    variance of a TensorSRHT is E sₗ² − ‖K‖². ‖Z Zᵀ‖² overestimates ‖K‖² by the variance over m, which is subtracted.
    """
    Z = np.asarray(Z, dtype=np.float64)
    m = Z.shape[1]
    trace, square = float((Z**2).sum()), float(((Z @ Z.T) ** 2).sum())
    if exact:
        return Measured(count=trace**2 + square, tensor=inf)
    second = float(((m * (Z**2).sum(axis=0)) ** 2).mean()) if tensor else 0.0
    # square ≈ ‖K‖² + variance/m, with the variance second − ‖K‖² or trace² + ‖K‖²
    norm = (square - second / m) / (1 - 1 / m) if tensor else (square - trace**2 / m) / (1 + 1 / m)
    norm = min(max(norm, trace**2 / len(Z)), trace**2)
    count = trace**2 + norm
    return Measured(count=count, tensor=max(second - norm, count) if tensor else inf)


def make_plan(
    parameters: Sequence[Parameter], found: Sequence[Measured], n_components: int, *, largest: int
) -> tuple[PlannedSketch, ...]:
    """Choose a law for each parameter, and allocate the components: m_l ∝ √(variance of one component).

    This minimizes the total variance Σ_l v_l / m_l of the kernel for Σ_l m_l = `n_components`. No parameter gets more
    components than weights; with equal numbers, it is not sketched. Parameters with more than `largest` weights get no
    CountSketch, which needs explicit gradients for some rows at a time.
    """
    weights = np.array([each.count**0.5 for each in found])
    sizes = [each.size for each in parameters]
    initial = shares(weights, sizes, n_components)
    total = sum(2.0 * p.n_positions * p.size for p in parameters)
    laws = [
        _choose(p, each, m, SMALL_SHARE * total, largest) for p, each, m in zip(parameters, found, initial, strict=True)
    ]
    weights = np.array([
        each.tensor**0.5 if law == "tensor" else each.count**0.5 for each, law in zip(found, laws, strict=True)
    ])  # fmt: skip
    counts = shares(weights, sizes, n_components)
    planned, start = [], 0
    for p, law, m, weight in zip(parameters, laws, counts, weights, strict=True):
        if m:
            law = "identity" if m >= p.size else "count" if law == "identity" else law
            share = float(weight / weights.sum())
            planned.append(PlannedSketch(parameter=p, law=law, n_components=m, share=share, start=start))
            start += m
    return tuple(planned)


def probe_plan(parameters: Sequence[Parameter], n_components: int) -> tuple[PlannedSketch, ...]:
    """Make a plan with equal numbers of components, to measure the parameters."""
    planned, start = [], 0
    for p in parameters:
        m = min(n_components, p.size)
        law = "identity" if m == p.size else "tensor" if p.is_matrix else "count"
        planned.append(PlannedSketch(parameter=p, law=law, n_components=m, start=start))
        start += m
    return tuple(planned)


def shares(weights: np.ndarray, sizes: Sequence[int], n_components: int) -> list[int]:
    """Allocate `n_components` components in proportion to `weights`, rounded to a coarse scale, each at most its size.

    Parameters of weight 0 get none. Every other parameter gets at least one if there are enough. If all reach their
    size, the sum is below `n_components`.
    """
    left, open_ = min(n_components, int(sum(s for s, w in zip(sizes, weights, strict=True) if w > 0))), weights > 0
    coarse = np.where(open_, 2.0 ** (np.round(STEPS * np.log2(np.where(open_, weights, 1.0))) / STEPS), 0.0)
    counts = np.zeros(len(sizes), dtype=np.int64)
    while open_.any():
        exact = left * coarse / coarse[open_].sum()
        full = open_ & (exact >= np.array(sizes))
        if not full.any():
            break
        counts[full] = np.array(sizes)[full]
        left -= int(np.array(sizes)[full].sum())
        open_ &= ~full
    if open_.any() and left > 0:
        counts[open_] = _rounded(left * coarse[open_] / coarse[open_].sum(), left)
    return [int(c) for c in counts]


def _rounded(exact: np.ndarray, total: int) -> np.ndarray:
    """Round to integers with the sum `total`: round up the largest remainders, and the others down."""
    counts = np.floor(exact).astype(np.int64)
    if total >= len(exact):
        counts = np.maximum(counts, 1)
    order = np.lexsort((np.arange(len(exact)), -(exact - counts)))
    while counts.sum() < total:
        counts[order[: total - int(counts.sum())]] += 1
    while counts.sum() > total:
        counts[np.argmax(counts)] -= 1
    return counts


def count_cost(p: Parameter) -> float:
    """Return the multiplications per row of a CountSketch: form the gradient, then scatter it."""
    return (p.n_positions + SCATTER_COST) * p.size


def dense_cost(p: Parameter, m: int) -> float:
    """Return the multiplications per row of a dense TensorSRHT: both factors times a ±1 matrix with m columns."""
    return p.n_positions * m * (p.shape[0] + p.shape[1] * p.n_groups)


def transform_cost(p: Parameter, m: int) -> float:
    """Return the multiplications per row of a fast TensorSRHT: transform both factors, gather m entries of each."""
    sizes = (power_of_two(p.shape[0]), power_of_two(p.shape[1]))
    # Products with Hadamard matrices of order at most 64; see programs.array_api.hadamard.
    work = sum(n * min(n, 64) * max(1.0, log2(n) / 6) for n in sizes)
    return p.n_positions * p.n_groups * (work + 2 * GATHER_COST * m)


def _choose(p: Parameter, found: Measured, m: int, negligible: float, largest: int) -> str:
    if m >= p.size:
        return "identity"
    if not p.is_matrix or found.tensor == inf:
        return "count"
    if p.size > largest:
        return "tensor"
    if count_cost(p) <= min(dense_cost(p, m), transform_cost(p, m)):
        return "count"
    affordable = max(2.0 * p.n_positions * p.size, negligible)  # work of the layer's own forward and backward pass
    return "count" if found.tensor > TOLERATED_VARIANCE * found.count and count_cost(p) <= affordable else "tensor"
