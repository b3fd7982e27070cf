"""Features of the dual activations of a layer: random units, or sketched power series.

Let φ(x) and φ(y) have squared norms a and b, and let σ have the dual κ(c, a, b) = E σ(u)σ(v) over Gaussian (u, v) of
variances a, b and covariance c. Forward features have inner products ≈ κ(⟨φ(x), φ(y)⟩, a, b). Derivative features
approximate the dual of σ′ in the same way.

Random units: u = Wφ with E w wᵀ = I; the features are σ(u_i)/√m and σ′(u_i)/√m. Both can share W: derivative features
are multiplied by ψ, which comes from earlier layers.

Series: κ = Σ_j h_j(a) h_j(b) t^j at the cosine t, with h_j as in :mod:`ntkit.kernels.expansions`. Degree j of the unit
vector is sketched (:class:`~ntkit.sketches.series.SeriesSketch`) and multiplied by h_j(a). For ReLU and other piecewise
linear activations h_j(a)² is a times a constant, and a fitted polynomial is more accurate than the Taylor series.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array, root
from ntkit._random import keyed
from ntkit.kernels.expansions import truncated_coefficients
from ntkit.networks import Activation, PiecewiseLinear, ReLU
from ntkit.programs import Program, run
from ntkit.sketches.series import PaddedOperator, SeriesOperator
from ntkit.sketches.srht import SRHTOperator


class Units(ABC):
    """Forward and derivative features. Planned units hold laws; drawn units hold the draws."""

    n_forward: int
    n_derivative: int

    @abstractmethod
    def draw(self, seed: np.random.SeedSequence) -> Units:
        """Return units with draws instead of laws."""

    @abstractmethod
    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:
        """Compute forward and derivative features of vectors along the last axis; None for features not needed.

        `power` holds the squared norms of the vectors, without the last axis.
        """


@dataclass(frozen=True, eq=False)
class RandomUnits(Units):
    """σ(Wφ)/√m and σ′(Wφ)/√m; both use the first rows of W, unless `slopes` holds other rows for σ′."""

    activation: Activation
    matrix: Any
    n_forward: int
    n_derivative: int
    slopes: Any = None

    def draw(self, seed: np.random.SeedSequence) -> Units:
        """See :meth:`Units.draw`."""
        slopes = None if self.slopes is None else self.slopes.sample(keyed(seed, "slopes"))
        return replace(self, matrix=self.matrix.sample(seed), slopes=slopes)

    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:
        """See :meth:`Units.features`."""
        scale = self.activation.scale
        if isinstance(self.activation, ReLU) and not self.n_derivative:
            return rectified(phi, self._transposed("matrix", phi, scale * self.n_forward**-0.5)), None
        xp: Any = _array.namespace(phi)
        u = v = xp.matmul(phi, self._transposed("matrix", phi))
        if self.slopes is not None:
            v = xp.matmul(phi, self._transposed("slopes", phi))
        forward = derivative = None
        if self.n_forward:
            forward = self.activation.sigma(u[..., : self.n_forward]) * (scale * self.n_forward**-0.5)
        if self.n_derivative:
            derivative = self.activation.sigma_prime(v[..., : self.n_derivative]) * (scale * self.n_derivative**-0.5)
        return forward, derivative

    def _transposed(self, name: str, x: Array, scale: float = 1.0) -> Array:
        """Return Wᵀ times a number, as an array like x; cached on a GPU, where a copy for every batch would be slow."""
        on_device = _array.is_torch(x) and x.device.type != "cpu"
        key = (name, x.device, x.dtype, scale) if on_device else None
        if key in self._kept:
            return self._kept[key]
        matrix = getattr(self, name)
        if scale != 1:  # in float64 if x is, so that no precision is lost
            matrix = scale * (matrix.astype(np.float64) if "64" in str(x.dtype) else matrix)
        values = _array.constant(matrix.T, x)
        if on_device:
            self._kept[key] = values
        return values

    @cached_property
    def _kept(self) -> dict[Any, Array]:
        return {}


def rectified(x: Array, transposed: Array) -> Array:
    """Compute max(W x, 0) from Wᵀ; on CUDA the maximum is fused into the matrix product."""
    xp: Any = _array.namespace(x)
    constant = _array.is_torch(x) and not _array.wants_gradient([x])
    if constant and x.device.type == "cuda":
        import torch

        if hasattr(torch, "_addmm_activation"):  # undocumented, but available since torch 1.13
            rows, size = x.reshape(-1, x.shape[-1]), transposed.shape[1]
            missing = -x.shape[-1] % 8 if x.dtype.itemsize == 2 else 0
            if missing:  # 16-bit products are much slower if the row length is not a multiple of 16 bytes
                rows = torch.nn.functional.pad(rows, (0, missing))
                transposed = torch.nn.functional.pad(transposed, (0, 0, 0, missing))
            out = torch._addmm_activation(transposed.new_zeros(size), rows, transposed)
            return out.reshape(*x.shape[:-1], size)
    u = xp.matmul(x, transposed)
    return u.relu_() if constant else xp.clip(u, 0, None)


@dataclass(frozen=True, eq=False)
class SeriesUnits(Units):
    """Sketched series; `normalize` divides vectors by their own norms, not by the norms that they should have.

    The features of a series have columns of very different size: its constant is one column. If pixels are added with
    random signs next, rotations (SRHTs of full size) spread the features evenly over all columns.
    """

    activation: Activation
    forward: Any
    derivative: Any
    normalize: bool
    forward_rotation: Any = None
    derivative_rotation: Any = None

    def draw(self, seed: np.random.SeedSequence) -> Units:
        """See :meth:`Units.draw`."""
        keys = {
            "forward": ("forward",),
            "derivative": ("derivative",),
            "forward_rotation": ("rotation", "forward"),
            "derivative_rotation": ("rotation", "derivative"),
        }
        laws: Any = {name: getattr(self, name) for name in keys}
        drawn: Any = {name: None if law is None else law.sample(keyed(seed, *keys[name])) for name, law in laws.items()}
        return replace(self, **drawn)

    @property
    def n_forward(self) -> int:  # type: ignore[override]
        """Number of forward features."""
        return size_of(self.forward_rotation or self.forward)

    @property
    def n_derivative(self) -> int:  # type: ignore[override]
        """Number of derivative features."""
        return size_of(self.derivative_rotation or self.derivative)

    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:
        """See :meth:`Units.features`."""
        xp: Any = _array.namespace(phi)
        assert power is not None
        norms = xp.astype(root(power), phi.dtype, copy=False)[..., None]
        out = run(self._program, (phi, norms))
        cut = self.n_forward if self._homogeneous else size_of(self.forward)
        forward, derivative = out[..., :cut], out[..., cut:]
        if not self._homogeneous:
            forward = self._weighted(self.forward, self.forward_rotation, forward, power, derivative=False)
            derivative = self._weighted(self.derivative, self.derivative_rotation, derivative, power, derivative=True)
        return (None if self.forward is None else forward), (None if self.derivative is None else derivative)

    @property
    def _homogeneous(self) -> bool:
        return isinstance(self.activation, PiecewiseLinear)

    @cached_property
    def _program(self) -> Program:
        """The program of forward features, then derivative features.

        Forward features have norm √a for a homogeneous σ, otherwise norm 1. Derivative features have norm 1. For other
        activations the weights h_j(a), and then the rotation, are applied after the program.
        """
        first = self.forward or self.derivative
        assert first is not None
        program = Program((first.factors[0], 1))
        x, norms = program.load(0), program.load(1)
        norm = program.norm(x) if self.normalize else norms
        pairs = ((self.forward, self.forward_rotation, norms), (self.derivative, self.derivative_rotation, None))
        for series, rotation, multiplier in pairs:
            if series is None:
                continue
            multiplier = multiplier if self._homogeneous else None
            parts = emit_series(program, series, x, norm=norm, multiplier=multiplier, units=self)
            if rotation is not None and self._homogeneous:
                parts = [rotation.emit(program, program.concatenate(parts))]
            for part in parts:
                program.output(part)
        return program

    def _weighted(
        self,
        series: SeriesOperator | None,
        rotation: SRHTOperator | None,
        values: Array,
        power: Array,
        *,
        derivative: bool,
    ) -> Array:
        """Multiply the columns of degree j by h_j(a), divided by the root of the coefficient that the series used."""
        if series is None:
            return values
        xp: Any = _array.namespace(values)
        budget = series.law.budget
        degrees = tuple(budget.coefficients)
        table = _of_variances(
            lambda a: truncated_coefficients(self.activation, a, degrees, derivative=derivative), power
        )
        table = table / _array.constant(np.sqrt(list(budget.coefficients.values())), table)
        sizes = [budget.exact.get(j) or budget.sketched[j] for j in degrees]
        columns = xp.asarray(np.repeat(np.arange(len(degrees)), sizes), device=_array.device(values))
        values = values * xp.astype(xp.take(table, columns, axis=-1), values.dtype, copy=False)
        return values if rotation is None else rotation.apply(values)


def emit_series(
    program: Program, series: Any, value: int, *, norm: int | None, multiplier: int | None, units: SeriesUnits
) -> list[int]:
    """Append the features of a series at value/norm, times the scalar value `multiplier` (None: 1)."""
    if units.normalize and isinstance(series, PaddedOperator):
        (part,) = series.emit_parts(program, value, norm=norm)
        return [program.normalize(part, multiplier)]
    return series.emit_parts(program, value, norm=norm, multiplier=multiplier)


def size_of(law: Any) -> int:
    """Return the number of components of a law or an operator; a series may have fewer than requested."""
    budget = getattr(law, "budget", None)
    if budget is not None:
        return sum(budget.exact.values()) + sum(budget.sketched.values())
    return 0 if law is None else law.n_components


def variance_after(activation: Activation, power: Array, *, derivative: bool = False) -> Array:
    """Compute Σ(x, x) after an activation from Σ(x, x) before it; with `derivative`, the factor for Θ(x, x)."""
    xp: Any = _array.namespace(power)
    if isinstance(activation, PiecewiseLinear):
        return activation.dual_at_ends(power, derivative=derivative)[0]
    wide = xp.astype(power, _array.wide_dtype(power), copy=False)
    found = _of_variances(lambda a: activation.dual_at_ends(a, derivative=derivative)[0], wide)
    return xp.astype(found, power.dtype, copy=False)


def _of_variances(function: Callable[[Array], Array], power: Array) -> Array:
    """Evaluate a function of variances; its derivative is 0 where they are 0, like the derivative of ‖x‖² at 0."""
    if not (_array.wants_gradient([power]) or _array.is_traced(power)):
        return function(power)
    xp: Any = _array.namespace(power)
    positive = power > 0
    values = function(xp.where(positive, power, xp.ones_like(power)))
    at_zero = function(xp.zeros((), dtype=power.dtype, device=_array.device(power)))
    positive = positive if values.ndim == positive.ndim else positive[..., None]
    return xp.where(positive, values, at_zero)
