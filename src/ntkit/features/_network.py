"""The walk of features through a network: what :mod:`ntkit.kernels.covariances` does to covariances, done to vectors.

Every pixel (or row) has a vector of values in two parts, [η | φ]:

    ⟨φ(x), φ(y)⟩ ≈ Σ(x, y),      ⟨ψ(x), ψ(y)⟩ ≈ Θ(x, y),      ψ = η ⊕ w ⊙ φ,

with weights w for the columns of φ: a layer with trained weights, Θ → Θ + Σ, only adds to w², and all that is linear
(patches, pooling, sums over pixels) happens to both parts at once. An activation, Σ → κ and Θ → Θ ⊙ κ′, makes

    φ ← forward features,     η ← Q²(ψ ⊗ derivative features),     w ← 0,

Q² a TensorSRHT. Before a global average, the mean over pixels p of Q²(ψ_p ⊗ φ̇_p) is Q² of the matrix C = mean ψ_p φ̇_pᵀ:
one matrix product for each image in place of a sketch for each pixel, and as C is written out, the sketch needs no
Hadamard transforms: entries are added with random signs (:class:`ActivateAndPool`).

Σ(x, x) and Θ(x, x) are carried along: exact until values are pooled, from the values after that. With them features are
given the norms that they should have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.features._pixels import (
    average,
    joined,
    mean_of_pixels,
    mix_patches,
    patches,
    squares,
    sum_pixels,
    with_norms,
)
from ntkit.features._units import Units, after
from ntkit.networks import Activation, AvgPool, Conv
from ntkit.sketches.base import Operator


@dataclass(frozen=True)
class Flow:
    """Values of a batch, (n, h, w, c) or (n, c), and Σ(x, x) and Θ(x, x), without the last axis (None: not needed)."""

    values: Array
    power: Array | None
    theta: Array | None

    @property
    def n_pixels(self) -> int:
        """Pixels of an image, 1 for rows."""
        return int(np.prod(self.values.shape[1:-1]))


@dataclass(frozen=True, eq=False)
class Columns:
    """Which columns are η, and the weights of the others, φ, in ψ."""

    n_eta: int
    weights: np.ndarray

    @property
    def n_columns(self) -> int:
        """All of them."""
        return self.n_eta + len(self.weights)

    @property
    def n_psi(self) -> int:
        """Columns of ψ."""
        return self.n_columns if self.weights.any() else self.n_eta

    def parts(self, values: Array) -> list[Array]:
        """η and φ, those that there are."""
        parts = [values[..., : self.n_eta]] if self.n_eta else []
        return [*parts, self.phi(values)] if len(self.weights) else parts

    def phi(self, values: Array) -> Array:
        """φ."""
        return values if self.n_eta == 0 else values[..., self.n_eta :]

    def psi(self, values: Array) -> Array:
        """ψ = η ⊕ w ⊙ φ."""
        if not self.weights.any():
            return values[..., : self.n_eta]
        if (self.weights == 1).all():
            return values
        return values * _array.constant(np.append(np.ones(self.n_eta), self.weights), values)


class Stage(ABC):
    """One thing that happens to the values."""

    def width(self, flow: Flow) -> int:  # noqa: ARG002
        """How many numbers a row has inside, if these are more than what comes in and goes out."""
        return 0

    @abstractmethod
    def apply(self, flow: Flow) -> Flow:
        """The flow after it."""


def run(stages: Sequence[Stage], flow: Flow) -> Flow:
    """The flow after all stages."""
    for stage in stages:
        flow = stage.apply(flow)
    return flow


def widths(stages: Sequence[Stage], row: Flow) -> tuple[int, int]:
    """How many numbers one row has after all stages, and at most on the way."""
    most = row.values.size
    for stage in stages:
        inside = stage.width(row)
        row = stage.apply(row)
        most = max(most, inside, row.values.size)
    return row.values.size, most


@dataclass(frozen=True, eq=False)
class Start(Stage):
    """Images or rows as they come: Σ(x, x) of every pixel, Θ = 0."""

    track: bool

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        if not self.track:
            return flow
        power = squares(flow.values)
        return Flow(flow.values, power, _array.namespace(power).zeros_like(power))


@dataclass(frozen=True, eq=False)
class Patches(Stage):
    """The pixels of each patch side by side."""

    layer: Conv
    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        values = joined([patches(part, self.layer) for part in self.columns.parts(flow.values)])
        return Flow(values, *_averages(flow, self.layer))


@dataclass(frozen=True, eq=False)
class Mix(Stage):
    """The pixels of each patch added with random signs, (q_h, q_w, c)."""

    layer: Conv
    signs: np.ndarray

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return Flow(mix_patches(flow.values, self.signs, self.layer), *_averages(flow, self.layer))


def _averages(flow: Flow, layer: Conv) -> tuple[Array | None, Array | None]:
    """Σ(x, x) and Θ(x, x) after a convolution: means over its patches, exactly."""
    if flow.power is None or flow.theta is None:
        return None, None
    return average(flow.power, layer), average(flow.theta, layer)


@dataclass(frozen=True, eq=False)
class Train(Stage):
    """Trained weights, Θ → Θ + Σ: of the values nothing changes but what they count for."""

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return flow if flow.power is None else replace(flow, theta=flow.theta + flow.power)


@dataclass(frozen=True, eq=False)
class Scale(Stage):
    """Values times a number."""

    factor: float

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        power, theta = (None if v is None else self.factor**2 * v for v in (flow.power, flow.theta))
        return Flow(self.factor * flow.values, power, theta)


@dataclass(frozen=True, eq=False)
class Bias(Stage):
    """Biases, Σ → Σ + b² and, if they are trained, Θ → Θ + b²: a column b of φ."""

    value: float
    trained: bool

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        xp: Any = _array.namespace(flow.values)
        constant = xp.full_like(flow.values[..., :1], self.value)
        power = None if flow.power is None else flow.power + self.value**2
        theta = flow.theta + self.value**2 if flow.theta is not None and self.trained else flow.theta
        return Flow(joined([flow.values, constant]), power, theta)


@dataclass(frozen=True, eq=False)
class Activate(Stage):
    """Forward features, and with `product` the sketch of ψ ⊗ derivative features."""

    activation: Activation
    columns: Columns
    units: Units
    product: Any
    """A TensorSRHT of pairs of vectors, or for :class:`ActivateAndPool` a :class:`Fold` of a matrix; None without ψ."""
    normalize: bool

    @property
    def columns_after(self) -> Columns:
        """What the columns are after it."""
        return Columns(0 if self.product is None else self.product.n_components, np.zeros(self.units.n_forward))

    def width(self, flow: Flow) -> int:
        """See :meth:`Stage.width`."""
        return flow.n_pixels * (self.units.n_forward + self.units.n_derivative)

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        forward, derivative = self.units.features(self.columns.phi(flow.values), flow.power)
        power, slope = self.diagonals(flow)
        theta = None if slope is None else flow.theta * slope
        parts, powers = [], []
        if self.product is not None:
            parts.append(self.product.apply(self.columns.psi(flow.values), derivative))
            powers.append(theta if self.normalize else None)
        if forward is not None:
            parts.append(forward)
            powers.append(power if self.normalize else None)
        return Flow(joined(parts, powers), power, theta)

    def diagonals(self, flow: Flow) -> tuple[Array | None, Array | None]:
        """Σ(x, x) after the activation, and what it multiplies Θ(x, x) by."""
        if flow.power is None:
            return None, None
        return after(self.activation, flow.power), after(self.activation, flow.power, derivative=True)


@dataclass(frozen=True, eq=False)
class ActivateAndPool(Activate):
    """An activation and the mean over all pixels after it."""

    def width(self, flow: Flow) -> int:
        """See :meth:`Stage.width`."""
        return max(super().width(flow), 0 if self.product is None else self.product.signs.size)

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        xp: Any = _array.namespace(flow.values)
        forward, derivative = self.units.features(self.columns.phi(flow.values), flow.power)
        power, slope = self.diagonals(flow) if self.normalize else (None, None)
        parts = []
        if self.product is not None:
            psi, derivative = _pixels_flat(self.columns.psi(flow.values)), _pixels_flat(with_norms(derivative, slope))
            matrix = xp.matmul(xp.matrix_transpose(psi), derivative)
            parts.append(self.product.apply(matrix, 1 / flow.n_pixels))
        if forward is not None:
            parts.append(mean_of_pixels(with_norms(forward, power)))
        values = joined(parts)
        return Flow(values, *remeasured(values, flow, self.columns_after))


@dataclass(frozen=True, eq=False)
class Fold:
    """A matrix C written row by row, times signs, cut into pieces of length m that are added.

    A CountSketch of the vector of C with buckets of equal size; m pieces or more keep all entries, without signs.
    Var⟨·, ·⟩ ≤ 2‖C‖²‖C′‖²/m for entries of equal size, as those of random units and of rotated series are in the mean.
    """

    signs: np.ndarray
    m: int

    @property
    def n_components(self) -> int:
        """Number of features: m, or all entries if these are fewer."""
        return min(self.m, self.signs.size)

    def apply(self, matrix: Array, scale: float) -> Array:
        """Map the matrices of a batch, (n, rows, columns), times a number."""
        xp: Any = _array.namespace(matrix)
        n, size, m = matrix.shape[0], self.signs.size, self.m
        if size <= m:
            return xp.reshape(matrix, (n, size)) * scale
        flat = xp.reshape(matrix * (_array.constant(self.signs, matrix) * scale), (n, size))
        whole = size - size % m
        out = xp.sum(xp.reshape(flat[:, :whole], (n, -1, m)), axis=1)
        if whole < size:
            out[:, : size - whole] += flat[:, whole:]
        return out


def _pixels_flat(values: Array) -> Array:
    return _array.namespace(values).reshape(values, (values.shape[0], -1, values.shape[-1]))


def remeasured(values: Array, flow: Flow, columns: Columns) -> tuple[Array | None, Array | None]:
    """Σ(x, x) and Θ(x, x) from the values: pooling mixes pixels, whose covariances are not known."""
    if flow.power is None:
        return None, None
    return squares(columns.phi(values)), squares(columns.psi(values))


@dataclass(frozen=True, eq=False)
class Pool(Stage):
    """Means over windows, or over all pixels (None)."""

    layer: AvgPool | None
    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        values = mean_of_pixels(flow.values) if self.layer is None else average(flow.values, self.layer)
        return Flow(values, *remeasured(values, flow, self.columns))


@dataclass(frozen=True, eq=False)
class SideBySide(Stage):
    """All pixels side by side, over the root of their number: [all η | all φ]."""

    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        xp: Any = _array.namespace(flow.values)
        n, scale = flow.values.shape[0], flow.n_pixels**-0.5
        flat = joined([xp.reshape(part, (n, -1)) * scale for part in self.columns.parts(flow.values)])
        return Flow(flat, *_means(flow))


@dataclass(frozen=True, eq=False)
class SumPixels(Stage):
    """All pixels added with random signs, (h, w, c): in the mean as if they were side by side."""

    signs: np.ndarray

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return Flow(sum_pixels(flow.values, self.signs), *_means(flow))


def _means(flow: Flow) -> tuple[Array | None, Array | None]:
    """Σ(x, x) and Θ(x, x) of pixels side by side: means over them, exactly."""
    if flow.power is None or flow.theta is None:
        return None, None
    xp: Any = _array.namespace(flow.power)
    return xp.mean(flow.power, axis=(1, 2)), xp.mean(flow.theta, axis=(1, 2))


@dataclass(frozen=True, eq=False)
class Unit(Stage):
    """Every vector divided by √Σ(x, x)."""

    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        power = squares(self.columns.phi(flow.values)) if flow.power is None else flow.power
        xp: Any = _array.namespace(power)
        positive = power > 0
        inverse = xp.where(positive, 1 / xp.where(positive, power, xp.ones_like(power)), xp.zeros_like(power))
        values = flow.values * xp.astype(xp.sqrt(inverse), flow.values.dtype, copy=False)[..., None]
        if flow.power is None:
            return Flow(values, None, None)
        return Flow(values, power * inverse, flow.theta * inverse)


@dataclass(frozen=True, eq=False)
class Branches(Stage):
    """Branches that take the same input; their kernels add, so their columns go side by side: [all η | all φ]."""

    branches: tuple[tuple[Stage, ...], ...]
    columns: tuple[Columns, ...]

    def width(self, flow: Flow) -> int:
        """See :meth:`Stage.width`."""
        return max(widths(stages, flow)[1] for stages in self.branches)

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        ends = [run(stages, flow) for stages in self.branches]
        pairs = list(zip(ends, self.columns, strict=True))
        etas = [end.values[..., : c.n_eta] for end, c in pairs if c.n_eta]
        phis = [c.phi(end.values) for end, c in pairs]
        power = theta = None
        if flow.power is not None:
            power, theta = sum(end.power for end in ends), sum(end.theta for end in ends)  # type: ignore[misc]
        return Flow(joined([*etas, *phis]), power, theta)


@dataclass(frozen=True, eq=False)
class Project(Stage):
    """ψ and φ sketched to fewer columns, each by its own map (ψ by none if it has no columns); then η = ψ, w = 0."""

    columns: Columns
    psi: Operator | None
    phi: Operator

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        parts = [self.phi.apply(self.columns.phi(flow.values))]
        if self.psi is not None:
            parts.insert(0, self.psi.apply(self.columns.psi(flow.values)))
        return replace(flow, values=joined(parts))


@dataclass(frozen=True, eq=False)
class Finish(Stage):
    """The features asked for: ψ, φ or both, each sketched to its size (by None: as it is); zeros for Θ = 0."""

    columns: Columns
    kinds: tuple[str, ...]
    maps: tuple[Operator | None, ...]
    n_components: int
    normalize: bool

    @property
    def sizes(self) -> list[int]:
        """Features of each kind."""
        columns = [self.columns.n_psi if kind == "ntk" else len(self.columns.weights) for kind in self.kinds]
        return [min(size, self.n_components) or self.n_components for size in columns]

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        parts = []
        for kind, sketch in zip(self.kinds, self.maps, strict=True):
            part = self.columns.psi(flow.values) if kind == "ntk" else self.columns.phi(flow.values)
            if part.shape[-1] == 0:
                xp: Any = _array.namespace(part)
                shape = (part.shape[0], self.n_components)
                parts.append(xp.zeros(shape, dtype=part.dtype, device=_array.device(part)))
            elif sketch is None:
                parts.append(part)
            else:
                power = flow.theta if kind == "ntk" else flow.power
                parts.append(with_norms(sketch.apply(part), power if self.normalize else None))
        return replace(flow, values=joined(parts))
