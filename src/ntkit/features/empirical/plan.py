"""Which sketch each parameter gets, and how many of the components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

import numpy as np

from ntkit.programs import power_of_two

LAWS = ("identity", "count", "tensor")
SCATTER = 50.0
"""Cost of adding a number to a random place, in multiplications of a matrix product: 1.1 and 0.02 ns on a CPU core."""
BUTTERFLY = 40.0
"""Cost of a gathered entry of a transform, in the same unit."""
EXCESS = 1.25
"""Ratio of variances up to which the cheaper of two sketches is taken: 1.12 in the error of the kernel."""
SMALL_SHARE = 0.05
"""Work of a layer, as a share of the forward and backward pass of the network, that does not matter."""
STEPS = 4
"""Shares are rounded to powers of 2^(1/STEPS): so rounding errors of another device or dtype do not change a plan."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A trained parameter and how its gradient is found.

    `shape` is (rows, the rest): the gradient of a row of X is the sum over positions t of left_t ⊗ right_t, with
    left_t of `shape[0]` and right_t of `shape[1]` entries. `source` is "factors" (caught by hooks), "expanded" (used
    as a constant for all rows: one copy for each row is put in its place) or "fallback" (per-sample gradients).
    `axis` is the axis of rows of X in what enters a layer; -1: there is none.
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
class Sketched:
    """A parameter, the law of its sketch ("identity", "count" or "tensor"), its components and share of the kernel."""

    parameter: Parameter
    law: str
    n_components: int
    share: float = 0.0
    start: int = 0

    @property
    def columns(self) -> slice:
        """Where its components stand among all."""
        return slice(self.start, self.start + self.n_components)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a probe has found for a parameter, summed over pairs of rows of the probe.

    `count` and `tensor` are the variances of entries of the kernel with one component of a CountSketch or a
    TensorSRHT (infinite where none was tried).
    """

    count: float
    tensor: float


def measure(Z: np.ndarray, *, exact: bool, tensor: bool) -> Measured:
    """Variances of two laws from some components Z of the rows of a probe.

    Let m zᵢₗzⱼₗ be the estimate of Kᵢⱼ by component l. Summed over all pairs, its second moment is E sₗ² with
    sₗ = m Σᵢ zᵢₗ², and E sₗ = tr K. A CountSketch has the variance (tr K)² + ‖K‖² (less terms of single weights),
    a TensorSRHT E sₗ² − ‖K‖². ‖Z Zᵀ‖² is too large by the variance over m, which is taken off.
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
) -> tuple[Sketched, ...]:
    """Choose laws and share out the components: m_l ∝ √(variance of one component).

    That minimizes the summed variance Σ_l v_l / m_l of the kernel for Σ_l m_l = `n_components`. No parameter gets
    more components than it has weights; then it is not sketched. `largest` bounds the weights of a parameter whose
    gradient is formed, for some rows at a time.
    """
    weights = np.array([each.count**0.5 for each in found])
    sizes = [each.size for each in parameters]
    first = shares(weights, sizes, n_components)
    total = sum(2.0 * p.n_positions * p.size for p in parameters)
    laws = [
        _choose(p, each, m, SMALL_SHARE * total, largest) for p, each, m in zip(parameters, found, first, strict=True)
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
            planned.append(Sketched(parameter=p, law=law, n_components=m, share=share, start=start))
            start += m
    return tuple(planned)


def probe_plan(parameters: Sequence[Parameter], n_components: int) -> tuple[Sketched, ...]:
    """A plan to measure with: equal numbers of components."""
    planned, start = [], 0
    for p in parameters:
        m = min(n_components, p.size)
        law = "identity" if m == p.size else "tensor" if p.is_matrix else "count"
        planned.append(Sketched(parameter=p, law=law, n_components=m, start=start))
        start += m
    return tuple(planned)


def shares(weights: np.ndarray, sizes: Sequence[int], n_components: int) -> list[int]:
    """Whole numbers ∝ `weights`, rounded to a coarse scale, each at most `sizes`, that sum to `n_components`.

    Parameters of weight 0 get none. Where all are at their size, the sum is smaller. Each other gets one at least, if
    there are enough.
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
    """Whole numbers near `exact` with the sum `total`: all but the largest remainders are rounded down."""
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
    """Multiplications for a row: the gradient is formed, and scattered."""
    return (p.n_positions + SCATTER) * p.size


def dense_cost(p: Parameter, m: int) -> float:
    """Multiplications for a row: both factors times a matrix of ±1 of m columns."""
    return p.n_positions * m * (p.shape[0] + p.shape[1] * p.n_groups)


def transform_cost(p: Parameter, m: int) -> float:
    """Multiplications for a row: both factors transformed, m entries gathered of each."""
    sizes = (power_of_two(p.shape[0]), power_of_two(p.shape[1]))
    # Products with Hadamard matrices of order 64 at most, see programs.array_api.hadamard.
    work = sum(n * min(n, 64) * max(1.0, log2(n) / 6) for n in sizes)
    return p.n_positions * p.n_groups * (work + 2 * BUTTERFLY * m)


def _choose(p: Parameter, found: Measured, m: int, negligible: float, largest: int) -> str:
    if m >= p.size:
        return "identity"
    if not p.is_matrix or found.tensor == inf:
        return "count"
    if p.size > largest:
        return "tensor"
    if count_cost(p) <= min(dense_cost(p, m), transform_cost(p, m)):
        return "count"
    affordable = max(2.0 * p.n_positions * p.size, negligible)  # its own forward and backward pass
    return "count" if found.tensor > EXCESS * found.count and count_cost(p) <= affordable else "tensor"
