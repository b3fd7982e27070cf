"""Stages that propagate feature vectors through a network, as :mod:`ntkit.kernels.covariances` does for covariances.

Every pixel (or row) has a vector of values in two parts, [η | φ]:

    ⟨φ(x), φ(y)⟩ ≈ Σ(x, y),      ⟨ψ(x), ψ(y)⟩ ≈ Θ(x, y),      ψ = η ⊕ w ⊙ φ,

with weights w for the columns of φ. A layer with trained weights, Θ → Θ + Σ, only adds to w². Linear operations
(patches, pooling, sums over pixels) act on both parts at once. An activation, Σ → κ and Θ → Θ ⊙ κ′, sets

    φ ← forward features,     η ← Q²(ψ ⊗ derivative features),     w ← 0,

where Q² is a TensorSRHT. Before a global average, the mean over pixels p of Q²(ψ_p ⊗ φ̇_p) is Q² of the matrix
C = mean ψ_p φ̇_pᵀ. This is one matrix product for each image instead of a sketch for each pixel. As C is computed
explicitly, its sketch needs no Hadamard transforms: entries are added with random signs (:class:`ActivateAndPool`).

Σ(x, x) and Θ(x, x) are tracked. They are exact until values are pooled, and are computed from the values after that.
Features are scaled to the norms that follow from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import generator, keyed
from ntkit.features.network.pixels import (
    average,
    joined,
    mean_of_pixels,
    mix_patches,
    patches,
    squares,
    sum_pixels,
    with_norms,
)
from ntkit.features.network.units import Units, variance_after
from ntkit.networks import Activation, AvgPool, Conv
from ntkit.networks.fold import Path
from ntkit.programs import power_of_two


@dataclass(frozen=True)
class Flow:
    """Values of a batch, (n, h, w, c) or (n, c), with Σ(x, x) and Θ(x, x), without the last axis (None: not needed)."""

    values: Array
    power: Array | None
    theta: Array | None

    @property
    def n_pixels(self) -> int:
        """Number of pixels of an image; 1 for rows."""
        return int(np.prod(self.values.shape[1:-1]))


@dataclass(frozen=True, eq=False)
class Columns:
    """The number of columns of η, and the weights in ψ of the other columns, φ."""

    n_eta: int
    weights: np.ndarray

    def __reduce__(self) -> Any:
        """Write runs of equal weights only once."""
        starts = np.flatnonzero(np.append(True, np.diff(self.weights) != 0)[: len(self.weights)])
        counts = np.diff(np.append(starts, len(self.weights)))
        return _columns, (self.n_eta, self.weights[starts].tolist(), counts.tolist())

    @property
    def n_columns(self) -> int:
        """Number of all columns."""
        return self.n_eta + len(self.weights)

    @property
    def n_psi(self) -> int:
        """Number of columns of ψ."""
        return self.n_columns if self.weights.any() else self.n_eta

    def parts(self, values: Array) -> list[Array]:
        """Return η and φ, without parts that have no columns."""
        parts = [values[..., : self.n_eta]] if self.n_eta else []
        return [*parts, self.phi(values)] if len(self.weights) else parts

    def phi(self, values: Array) -> Array:
        """Return φ."""
        return values if self.n_eta == 0 else values[..., self.n_eta :]

    def psi(self, values: Array) -> Array:
        """Return ψ = η ⊕ w ⊙ φ."""
        if not self.weights.any():
            return values[..., : self.n_eta]
        if (self.weights == 1).all():
            return values
        return values * _array.constant(np.append(np.ones(self.n_eta), self.weights), values)


def _columns(n_eta: int, values: list[float], counts: list[int]) -> Columns:
    return Columns(n_eta, np.repeat(np.array(values, dtype=np.float64), np.array(counts, dtype=np.int64)))


class Stage(ABC):
    """One operation on the values. A planned stage holds laws; a drawn stage holds the draws."""

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """Return the stage with draws instead of laws."""
        return self

    def width(self, flow: Flow) -> int:
        """Return the number of intermediate values per row, if it may exceed the input and the output."""
        return 0

    @abstractmethod
    def apply(self, flow: Flow) -> Flow:
        """Return the flow after this stage."""


Stages: TypeAlias = tuple[tuple[Path, Stage], ...]
"""Stages in order, each with the path of its layer, which is the key of its draws."""


def draw_stages(stages: Stages, seed: np.random.SeedSequence) -> Stages:
    """Draw planned stages; `seed` is the seed of the whole network, or of the branches that the stages belong to."""
    return tuple((path, stage.draw(keyed(seed, *path[-2:]) if path else seed)) for path, stage in stages)


def apply_stages(stages: Stages, flow: Flow) -> Flow:
    """Return the flow after all stages."""
    for _, stage in stages:
        flow = stage.apply(flow)
    return flow


def widths(stages: Stages, flow: Flow) -> tuple[int, int]:
    """Return the number of values per row after all stages, and the largest number at any stage.

    The stages run on zero rows, because only shapes matter.
    """
    flow = Flow(*(None if values is None else values[:0, ...] for values in (flow.values, flow.power, flow.theta)))
    most = prod(flow.values.shape[1:])
    for _, stage in stages:
        inside = stage.width(flow)
        flow = stage.apply(flow)
        most = max(most, inside, prod(flow.values.shape[1:]))
    return prod(flow.values.shape[1:]), most


@dataclass(frozen=True, eq=False)
class Start(Stage):
    """The input images or rows, with Σ(x, x) of every pixel and Θ = 0."""

    track: bool

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        if not self.track:
            return flow
        power = squares(flow.values)
        return Flow(flow.values, power, _array.namespace(power).zeros_like(power))


@dataclass(frozen=True, eq=False)
class Patches(Stage):
    """Concatenates the pixels of each patch."""

    layer: Conv
    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        values = joined([patches(part, self.layer) for part in self.columns.parts(flow.values)])
        return Flow(values, *_averages(flow, self.layer))


@dataclass(frozen=True)
class Signs:
    """Law of random signs for adding pixels, (…, columns): orthogonal for different pixels if columns suffice.

    The signs are rows of a Hadamard matrix with its columns in random order, times random signs of columns and rows.
    Cross terms of parts that all pixels share with entries of equal size (the mean of ReLUs, the constant of a series)
    then cancel exactly, not only on average.
    """

    shape: tuple[int, ...]

    def draw_bytes(self) -> int:
        """Return an upper bound on the bytes that `sample` takes."""
        return 32 * prod(self.shape)

    def sample(self, seed: np.random.SeedSequence) -> np.ndarray:
        """Draw the signs, as int8."""
        n_pixels, n_columns = int(np.prod(self.shape[:-1])), self.shape[-1]
        rng, order = generator(seed), power_of_two(n_columns)
        if n_pixels > order:
            return 2 * rng.integers(0, 2, self.shape, dtype=np.int8) - 1
        return _orthogonal_signs(rng, rng.permutation(order)[:n_pixels], n_columns).reshape(self.shape)


def _orthogonal_signs(rng: np.random.Generator, chosen: np.ndarray, n_columns: int) -> np.ndarray:
    """Return rows of a Hadamard matrix with random columns, times random signs of rows and columns."""
    columns = rng.permutation(power_of_two(n_columns))[:n_columns]
    hadamard = 1 - 2 * (np.bitwise_count(chosen[:, None] & columns) % 2).astype(np.int8)
    left, right = (2 * rng.integers(0, 2, n, dtype=np.int8) - 1 for n in hadamard.shape)
    return hadamard * left[:, None] * right


@dataclass(frozen=True, eq=False)
class Mix(Stage):
    """Adds the pixels of each patch with random signs, (q_h, q_w, c)."""

    layer: Conv
    signs: Any

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        return replace(self, signs=self.signs.sample(keyed(seed, "signs")))

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return Flow(mix_patches(flow.values, self.signs, self.layer), *_averages(flow, self.layer))


def _averages(flow: Flow, layer: Conv) -> tuple[Array | None, Array | None]:
    """Compute Σ(x, x) and Θ(x, x) after a convolution, which are exactly the means over its patches."""
    if flow.power is None or flow.theta is None:
        return None, None
    return average(flow.power, layer), average(flow.theta, layer)


@dataclass(frozen=True, eq=False)
class Train(Stage):
    """Trained weights, Θ → Θ + Σ. The values do not change, only their weights in ψ."""

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return flow if flow.power is None else replace(flow, theta=flow.theta + flow.power)


@dataclass(frozen=True, eq=False)
class Scale(Stage):
    """Multiplies values by a number."""

    factor: float

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        power, theta = (None if v is None else self.factor**2 * v for v in (flow.power, flow.theta))
        return Flow(self.factor * flow.values, power, theta)


@dataclass(frozen=True, eq=False)
class Bias(Stage):
    """Biases, Σ → Σ + b² and, if they are trained, Θ → Θ + b²; adds a column b to φ."""

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
    """An activation: forward features and, with `product`, the sketch of ψ ⊗ derivative features."""

    activation: Activation
    columns: Columns
    units: Units
    product: Any
    """A TensorSRHT of pairs of vectors, or a :class:`Fold` of a matrix in :class:`ActivateAndPool`; None without ψ."""
    normalize: bool

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        product = self.product
        if product is not None:
            product = product.sample(keyed(seed, "fold" if isinstance(product, Fold) else "product"))
        return replace(self, units=self.units.draw(keyed(seed, "units")), product=product)

    @property
    def columns_after(self) -> Columns:
        """Columns after this stage."""
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
        """Compute Σ(x, x) after the activation, and the factor by which it multiplies Θ(x, x)."""
        if flow.power is None:
            return None, None
        return variance_after(self.activation, flow.power), variance_after(self.activation, flow.power, derivative=True)


@dataclass(frozen=True, eq=False)
class ActivateAndPool(Activate):
    """An activation followed by the mean over all pixels."""

    def width(self, flow: Flow) -> int:
        """See :meth:`Stage.width`."""
        return max(super().width(flow), 0 if self.product is None else self.product.size)

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
    """Sketch of a matrix C: its entries, row by row and times signs, are cut into pieces of length m and added.

    This is a CountSketch of the entries of C with buckets of equal size. If C has at most m entries, they are kept
    without signs. Var⟨·, ·⟩ ≤ 2‖C‖²‖C′‖²/m for entries of equal size; random units and rotated series have entries of
    equal size on average. The signs of rows that are added are orthogonal, as in :class:`Signs`.
    """

    shape: tuple[int, int]
    m: int
    signs: np.ndarray | None = None
    """Signs, (rows, columns); None before they are drawn."""

    @property
    def n_components(self) -> int:
        """Number of features: m, or the number of entries if it is smaller."""
        return min(self.m, self.size)

    @property
    def size(self) -> int:
        """Number of entries of the matrix."""
        return self.shape[0] * self.shape[1]

    def draw_bytes(self) -> int:
        """Return an upper bound on the bytes that `sample` takes."""
        return 32 * self.size

    def sample(self, seed: np.random.SeedSequence) -> Fold:
        """Draw the signs."""
        rows, cols = self.shape
        rng, order = generator(seed), power_of_two(cols)
        chosen = rng.permutation(order)[np.arange(rows) // max(self.m // cols, 1) % order]
        return replace(self, signs=_orthogonal_signs(rng, chosen, cols))

    def apply(self, matrix: Array, scale: float) -> Array:
        """Map the matrices of a batch, (n, rows, columns), and multiply them by `scale`."""
        xp: Any = _array.namespace(matrix)
        n, size, m = matrix.shape[0], self.size, self.m
        if size <= m:
            return xp.reshape(matrix, (n, size)) * scale
        assert self.signs is not None
        flat = xp.reshape(matrix * (_array.constant(self.signs, matrix) * scale), (n, size))
        whole = size - size % m
        out = xp.sum(xp.reshape(flat[:, :whole], (n, size // m, m)), axis=1)
        if whole < size:
            out[:, : size - whole] += flat[:, whole:]
        return out


def _pixels_flat(values: Array) -> Array:
    n, *pixels, size = values.shape
    return _array.namespace(values).reshape(values, (n, prod(pixels), size))


def remeasured(values: Array, flow: Flow, columns: Columns) -> tuple[Array | None, Array | None]:
    """Compute Σ(x, x) and Θ(x, x) from the values: pooling mixes pixels, and their covariances are not known."""
    if flow.power is None:
        return None, None
    return squares(columns.phi(values)), squares(columns.psi(values))


@dataclass(frozen=True, eq=False)
class Pool(Stage):
    """Means over the windows of `layer`, or over all pixels if it is None."""

    layer: AvgPool | None
    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        values = mean_of_pixels(flow.values) if self.layer is None else average(flow.values, self.layer)
        return Flow(values, *remeasured(values, flow, self.columns))


@dataclass(frozen=True, eq=False)
class SideBySide(Stage):
    """Concatenates all pixels, divided by the square root of their number: [all η | all φ]."""

    columns: Columns

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        xp: Any = _array.namespace(flow.values)
        n, scale = flow.values.shape[0], flow.n_pixels**-0.5
        flat = joined([xp.reshape(part, (n, prod(part.shape[1:]))) * scale for part in self.columns.parts(flow.values)])
        return Flow(flat, *_means(flow))


@dataclass(frozen=True, eq=False)
class SumPixels(Stage):
    """Adds all pixels with random signs, (h, w, c): in expectation equivalent to concatenating them."""

    signs: Any

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        return replace(self, signs=self.signs.sample(keyed(seed, "signs")))

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        return Flow(sum_pixels(flow.values, self.signs), *_means(flow))


def _means(flow: Flow) -> tuple[Array | None, Array | None]:
    """Compute Σ(x, x) and Θ(x, x) of concatenated pixels, which are exactly the means over the pixels."""
    if flow.power is None or flow.theta is None:
        return None, None
    xp: Any = _array.namespace(flow.power)
    return xp.mean(flow.power, axis=(1, 2)), xp.mean(flow.theta, axis=(1, 2))


@dataclass(frozen=True, eq=False)
class Unit(Stage):
    """Divides every vector by √Σ(x, x)."""

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
    """Branches with the same input. Their kernels add, so their columns are concatenated: [all η | all φ]."""

    branches: tuple[Stages, ...]
    columns: tuple[Columns, ...]

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        return replace(self, branches=tuple(draw_stages(branch, seed) for branch in self.branches))

    def width(self, flow: Flow) -> int:
        """See :meth:`Stage.width`."""
        return max(widths(stages, flow)[1] for stages in self.branches)

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        ends = [apply_stages(stages, flow) for stages in self.branches]
        pairs = list(zip(ends, self.columns, strict=True))
        etas = [end.values[..., : c.n_eta] for end, c in pairs if c.n_eta]
        phis = [c.phi(end.values) for end, c in pairs]
        power = theta = None
        if flow.power is not None:
            power, theta = sum(end.power for end in ends), sum(end.theta for end in ends)  # type: ignore[misc]
        return Flow(joined([*etas, *phis]), power, theta)


@dataclass(frozen=True, eq=False)
class Project(Stage):
    """Sketches ψ and φ, each by its own map (None: unchanged). If ψ is sketched, then η = ψ and w = 0 afterwards."""

    columns: Columns
    psi: Any
    phi: Any
    normalize: bool

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        psi, phi = (
            None if law is None else law.sample(keyed(seed, name))
            for name, law in (("psi", self.psi), ("phi", self.phi))
        )
        return replace(self, psi=psi, phi=phi)

    @property
    def columns_after(self) -> Columns:
        """Columns after this stage."""
        n_eta = self.columns.n_eta if self.psi is None else self.psi.n_components
        n_phi = len(self.columns.weights) if self.phi is None else self.phi.n_components
        weights = self.columns.weights if self.psi is None and self.phi is None else np.zeros(n_phi)
        return Columns(n_eta, weights)

    def apply(self, flow: Flow) -> Flow:
        """See :meth:`Stage.apply`."""
        eta, phi = flow.values[..., : self.columns.n_eta], self.columns.phi(flow.values)
        powers: list[Array | None] = [None, None]
        if self.phi is not None:
            phi, powers[1] = self.phi.apply(phi), flow.power
        if self.psi is not None:
            eta, powers[0] = self.psi.apply(self.columns.psi(flow.values)), flow.theta
        pairs = [(part, power if self.normalize else None) for part, power in zip((eta, phi), powers, strict=True)]
        pairs = [pair for pair in pairs if pair[0].shape[-1]]
        return replace(flow, values=joined(*map(list, zip(*pairs, strict=True))))


@dataclass(frozen=True, eq=False)
class Finish(Stage):
    """The requested features: ψ, φ or both, each sketched to its size (map None: unchanged); zeros if Θ = 0."""

    columns: Columns
    kinds: tuple[str, ...]
    maps: tuple[Any, ...]
    n_components: int
    normalize: bool

    def draw(self, seed: np.random.SeedSequence) -> Stage:
        """See :meth:`Stage.draw`."""
        pairs = zip(self.kinds, self.maps, strict=True)
        maps = (None if law is None else law.sample(keyed(seed, "finish", kind)) for kind, law in pairs)
        return replace(self, maps=tuple(maps))

    @property
    def sizes(self) -> list[int]:
        """Number of features of each kind."""
        columns = [self.columns.n_psi if kind == "ntk" else len(self.columns.weights) for kind in self.kinds]
        pairs = zip(columns, self.maps, strict=True)
        return [(size if law is None else law.n_components) or self.n_components for size, law in pairs]

    @property
    def has_norms(self) -> bool:
        """Whether sketches are scaled to their known norms; of a single component only the sign would remain."""
        return self.normalize and self.n_components > 1

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
                parts.append(with_norms(sketch.apply(part), power if self.has_norms else None))
        return replace(flow, values=joined(parts))
