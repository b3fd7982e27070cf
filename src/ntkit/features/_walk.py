"""The walk over the layers of a ReLU network that Algorithms 1 and 2 share, written as a program.

With φ^(0) = ψ^(0) = x, layer ℓ makes

    φ̇^(ℓ)  features of κ₀,   φ^(ℓ)  features of κ₁,   both of φ^(ℓ−1),
    ψ^(ℓ) = Q²(ψ^(ℓ−1) ⊗ φ̇^(ℓ)) ⊕ φ^(ℓ),

Q² a TensorSRHT. ⟨φ^(L)(x), φ^(L)(y)⟩ approximates the NNGP kernel, ⟨ψ^(L)(x), ψ^(L)(y)⟩ the NTK. The two algorithms
differ in what stands for κ₀ and κ₁: sketched polynomials, or random Step and ReLU features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ntkit._batching import run_on_threads
from ntkit._random import generator, keyed
from ntkit.programs import Program, array_api, power_of_two
from ntkit.sketches.countsketch import OSNAPOperator
from ntkit.sketches.series import PaddedOperator, PaddedSeries, SeriesOperator, SeriesSketch
from ntkit.sketches.srht import SRHTOperator
from ntkit.sketches.tensor import TensorSRHTOperator

_FEW = 16  # features up to which products of Hadamard matrices have too few different rows
_WHOLE = 1024  # features up to which all directions of a block are orthogonal to each other
_BLOCK = 256  # directions of a block beyond that: QR takes time with the square of it


@dataclass(frozen=True)
class State:
    """A value, and the value of size 1 that is about its norm (None: 1; ψ^(ℓ) has √(ℓ + 1) times that)."""

    value: int
    norm: int | None


class Activation(ABC):
    """Features of κ₀ or κ₁ of the layer before."""

    n_components: int

    @abstractmethod
    def emit(self, program: Program, phi: State, by: int | None) -> int:
        """Append the features of φ/‖φ‖, times the one coordinate of `by`."""


@dataclass(frozen=True)
class Polynomial(Activation):
    """A sketched series of κ₀ or κ₁ (Algorithm 1, lines 7 and 8)."""

    series: SeriesOperator | PaddedOperator
    normalize: bool

    @property
    def n_components(self) -> int:  # type: ignore[override]
        """Number of features."""
        return self.series.n_components

    def emit(self, program: Program, phi: State, by: int | None) -> int:
        """Append the features."""
        if self.normalize and isinstance(self.series, PaddedOperator):
            (value,) = self.series.emit_parts(program, phi.value, norm=phi.norm)
            return normed(program, value, by, normalize=True)
        parts = self.series.emit_parts(program, phi.value, norm=phi.norm, by=by)
        return parts[0] if len(parts) == 1 else program.concatenate(parts)


@dataclass(frozen=True)
class Random(Activation):
    """√(2/m) Step(W φ) or √(2/m) ReLU(W φ), E w wᵀ = I for every row w of W (Eq. 11 and 15)."""

    kind: str
    matrix: np.ndarray
    normalize: bool

    @property
    def n_components(self) -> int:  # type: ignore[override]
        """Number of features."""
        return len(self.matrix)

    def emit(self, program: Program, phi: State, by: int | None) -> int:
        """Append the features."""
        scale = (2.0 / len(self.matrix)) ** 0.5
        value = program.dense(phi.value, self.matrix)
        if self.kind == "step":
            return normed(program, program.activate(value, "step", scale), by, normalize=self.normalize)
        return normed(program, program.activate(value, "relu", scale), by, had=phi.norm, normalize=self.normalize)


def normed(
    program: Program, value: int, by: int | None, *, had: int | None = None, length: float = 1.0, normalize: bool
) -> int:
    """Append what gives features the norm length · `by`: exactly with `normalize`, else if they had length · `had`."""
    if normalize:
        return program.normalize(value, by, factor=length)
    if had == by:
        return value
    value = value if had is None else program.scale(value, had, inverse=True)
    return value if by is None else program.scale(value, by)


@dataclass(frozen=True)
class Layer:
    """κ₁ features, and for the NTK κ₀ features, Q² and the SRHT R that mixes both parts of ψ, if there is one."""

    forward: Activation
    derivative: Activation | None = None
    product: TensorSRHTOperator | None = None
    mix: SRHTOperator | None = None


def emit_walk(
    program: Program,
    layers: Sequence[Layer],
    *,
    normalize: bool,
    homogeneous: bool,
    first: SRHTOperator | OSNAPOperator | None = None,
    lift: SRHTOperator | OSNAPOperator | None = None,
) -> list[int]:
    """Append all layers; return the parts of ψ^(L), the last of them φ^(L).

    Features have the norm of x in the end. `homogeneous` activations (random ones: Step and ReLU take any norm) let it
    pass through all layers; polynomials need unit vectors and get it in the last one. `first` and `lift` are the
    maps Q¹ of x and V of it with which Algorithm 1 begins.
    """
    x = program.load()
    norm = program.norm(x) if normalize or not homogeneous else None
    phi = State(x if first is None else first.emit(program, x), norm)
    psi = State(phi.value if lift is None else lift.emit(program, phi.value), norm)
    parts: list[int] = []
    for number, layer in enumerate(layers, 1):
        by = norm if homogeneous or number == len(layers) else None
        forward = layer.forward.emit(program, phi, by)
        parts = [forward]
        if layer.derivative is not None and layer.product is not None:
            derivative = layer.derivative.emit(program, phi, None)
            psi_value = psi.value
            if not normalize:
                psi_value = normed(program, psi_value, by, had=psi.norm, normalize=False)
            product = layer.product.emit(program, psi_value, derivative)
            if normalize:
                product = normed(program, product, by, length=number**0.5, normalize=True)
            parts = [product, forward]
            if layer.mix is not None:
                parts = [layer.mix.emit(program, program.concatenate(parts))]
                if normalize and layer.mix.n_components > 1:  # of one component, made of two, only a sign would stay
                    parts = [normed(program, parts[0], by, length=(number + 1) ** 0.5, normalize=True)]
            if number < len(layers):
                psi = State(parts[0] if len(parts) == 1 else program.concatenate(parts), by)
        phi = State(forward, by)
    return parts


def draw_directions(
    seed: np.random.SeedSequence, *, n_features: int, size: int, law: str, sampler: str = "exact", sweeps: int = 1
) -> np.ndarray:
    """Rows w of a random matrix with E w wᵀ = I, as float32.

    "gaussian": w ~ N(0, I). "leverage": √d w/‖w‖ with w of density ∝ ‖w‖² e^{−‖w‖²/2} (Eq. 15): a uniform direction,
    drawn as such, or by Algorithm 3 (``sampler="gibbs"``). "orthogonal": √d times Haar-distributed orthonormal
    vectors, in independent blocks. "hadamard": blocks of rows of H D₁ H D₂ H D₃ / n with random signs D_i, n the power
    of two ≥ d, of which the first d columns are kept: nearly the same [1]_, in a small part of the time.

    .. [1] Yu et al., "Orthogonal random features", NeurIPS 2016, Section 4.
    """
    if law == "orthogonal" or (law == "hadamard" and n_features <= _FEW):
        return _orthogonal(seed, n_features, size)
    if law == "hadamard":
        return _hadamard(seed, n_features, size)
    rng = generator(seed, "directions")
    if law == "leverage" and sampler == "gibbs":
        w = gibbs(keyed(seed, "gibbs"), n_features=n_features, size=size, sweeps=sweeps)
    else:
        w = rng.standard_normal((size, n_features))
    if law == "leverage":
        w *= n_features**0.5 / np.linalg.norm(w, axis=1, keepdims=True)
    return w.astype(np.float32)


def _orthogonal(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """√d times rows that are orthonormal in blocks; one task draws a few small blocks or a large one."""
    block = n_features if n_features <= _WHOLE else _BLOCK
    at_once = max(_BLOCK // block, 1)
    out = np.empty((size, n_features), np.float32)

    def draw(start: int) -> None:
        stop = min(start + at_once * block, size)
        rng, count = generator(seed, "block", start // block), -(-(stop - start) // block)
        rows = haar(rng, n_features, (count, block))
        out[start:stop] = n_features**0.5 * rows.reshape(-1, n_features)[: stop - start]

    # Each on its own thread: QR on several threads waits for all of them at every column.
    run_on_threads(draw, range(0, size, at_once * block))
    return out


def _hadamard(seed: np.random.SeedSequence, n_features: int, size: int) -> np.ndarray:
    """Blocks of rows of H D₁ H D₂ H D₃ / n, the first columns of them."""
    n = power_of_two(n_features)
    out = np.empty((size, n_features), np.float32)

    def draw(start: int) -> None:
        stop = min(start + n, size)
        rng = generator(seed, "block", start // n)
        signs = 1 - 2 * rng.integers(0, 2, (3, n), dtype=np.int8).astype(np.float32)
        rows = rng.permutation(n)[: stop - start]
        block = array_api.hadamard(np.eye(n, dtype=np.float32)[rows]) * signs[0]
        block = array_api.hadamard(block) * (signs[1] / n)
        out[start:stop] = (array_api.hadamard(block) * signs[2])[:, :n_features]

    run_on_threads(draw, range(0, size, n))
    return out


def haar(rng: np.random.Generator, n_features: int, shape: int | tuple[int, ...]) -> np.ndarray:
    """Orthonormal rows, uniformly distributed: `shape` of them, or (…, n), n ≤ d for each of several matrices.

    QR of Gaussian matrices, the diagonal of R made positive.
    """
    *leading, size = (shape,) if isinstance(shape, int) else shape
    q, r = np.linalg.qr(rng.standard_normal((*leading, n_features, size)))
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return np.swapaxes(q * signs[..., None, :], -2, -1)


def gibbs(seed: np.random.SeedSequence, *, n_features: int, size: int, sweeps: int) -> np.ndarray:
    """Rows of density ∝ ‖w‖² e^{−‖w‖²/2} by Algorithm 3: from N(0, I), all coordinates anew, one given the others.

    Given z, the sum of the other squares, a coordinate has the distribution function
    F(t) = Φ(t) − t e^{−t²/2} / (√(2π) (z + 1)), inverted here by bisection, for all rows at once.
    """
    w = generator(seed, "start").standard_normal((size, n_features))
    uniforms = generator(seed, "uniforms")
    squares = (w**2).sum(axis=1)
    for _ in range(sweeps):
        for j in range(n_features):
            z = np.maximum(squares - w[:, j] ** 2, 0.0)
            w[:, j] = _inverse(uniforms.random(size), z)
            squares = z + w[:, j] ** 2
    return w


def _inverse(u: np.ndarray, z: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    low, high = np.full_like(u, -9.0), np.full_like(u, 9.0)
    for _ in range(60):  # 18 · 2^{-60}: all digits of the middle
        middle = 0.5 * (low + high)
        density = np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi)
        below = ndtr(middle) - middle * density / (z + 1.0) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def series_law(
    n_features: int, coefficients: tuple[float, ...], n_components: int, *, inner: int | None, sparse: bool,
    normalize: bool, replace: bool,
) -> SeriesSketch | PaddedSeries:  # fmt: skip
    """Law of a sketched series: shares for each degree, or with `inner` components padded and mixed (Algorithm 1)."""
    if inner is None:
        return SeriesSketch(n_features, coefficients, n_components, sparse=sparse, normalize=normalize, replace=replace)
    return PaddedSeries(n_features, coefficients, n_components, inner, sparse=sparse, replace=replace)
