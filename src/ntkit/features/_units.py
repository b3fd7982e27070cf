"""Features of the dual activations of a layer: random units, or sketched power series.

For vectors φ(x) of squared norm a, and σ with the dual κ(c, a, b) = E σ(u)σ(v) over Gaussian (u, v) of variances a, b
and covariance c, forward features have inner products ≈ κ(⟨φ(x), φ(y)⟩, a, b) and derivative features those of σ′.

Random units: u = Wφ, E w wᵀ = I, and σ(u_i), σ′(u_i) over √m. One W serves for both: what is multiplied by derivative
features, ψ, comes from the layers before.

Series: κ = Σ_j h_j(a) h_j(b) t^j at the cosine t, with h_j as in :mod:`ntkit.kernels.expansions`. Degree j of the unit
vector is sketched (:class:`~ntkit.sketches.series.SeriesSketch`) and multiplied by h_j(a). For ReLU and its relatives
h_j(a)² is a times a constant, and a fitted polynomial is the better series.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.expansions import truncated_coefficients
from ntkit.networks import Activation, PiecewiseLinear, ReLU
from ntkit.programs import Program, run
from ntkit.sketches.series import SeriesOperator
from ntkit.sketches.srht import SRHTOperator


class Units(ABC):
    """Gives forward and derivative features, as many as were asked for (None: none)."""

    n_forward: int
    n_derivative: int

    @abstractmethod
    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:
        """Features of vectors along the last axis; `power` has their squared norms, of shape (…)."""


@dataclass(frozen=True, eq=False)
class RandomUnits(Units):
    """σ(Wφ)/√m and σ′(Wφ)/√m; the first rows of W serve for both."""

    activation: Activation
    matrix: np.ndarray
    n_forward: int
    n_derivative: int

    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:  # noqa: ARG002
        """See :meth:`Units.features`."""
        scale = self.activation.scale
        if isinstance(self.activation, ReLU) and not self.n_derivative:
            return rectified(phi, scale * self.n_forward**-0.5 * self.matrix), None
        xp: Any = _array.namespace(phi)
        u = xp.matmul(phi, _array.constant(self.matrix.T, phi))
        forward = derivative = None
        if self.n_forward:
            forward = self.activation.sigma(u[..., : self.n_forward]) * (scale * self.n_forward**-0.5)
        if self.n_derivative:
            derivative = self.activation.sigma_prime(u[..., : self.n_derivative]) * (scale * self.n_derivative**-0.5)
        return forward, derivative


def rectified(x: Array, matrix: np.ndarray) -> Array:
    """max(W x, 0); on CUDA the product leaves through the maximum, in one pass."""
    xp: Any = _array.namespace(x)
    transposed = _array.constant(matrix.T, x)
    if _array.is_torch(x) and x.device.type == "cuda":
        import torch

        if hasattr(torch, "_addmm_activation"):  # not documented, but there since 1.13
            rows, bias = x.reshape(-1, x.shape[-1]), transposed.new_zeros(len(matrix))
            return torch._addmm_activation(bias, rows, transposed).reshape(*x.shape[:-1], len(matrix))
    u = xp.matmul(x, transposed)
    return u.relu_() if _array.is_torch(u) and not u.requires_grad else xp.clip(u, 0, None)


@dataclass(frozen=True, eq=False)
class SeriesUnits(Units):
    """Sketched series; `normalize` divides vectors by their own norms, not by the ones they stand for.

    A series is no even mixture: its constant is one column. Rotations, SRHTs of full size, spread features evenly over
    all columns where these are to be added with random signs.
    """

    activation: Activation
    forward: SeriesOperator | None
    derivative: SeriesOperator | None
    normalize: bool
    forward_rotation: SRHTOperator | None = None
    derivative_rotation: SRHTOperator | None = None

    @property
    def n_forward(self) -> int:  # type: ignore[override]
        """Number of forward features."""
        return _size(self.forward_rotation or self.forward)

    @property
    def n_derivative(self) -> int:  # type: ignore[override]
        """Number of derivative features."""
        return _size(self.derivative_rotation or self.derivative)

    def features(self, phi: Array, power: Array | None) -> tuple[Array | None, Array | None]:
        """See :meth:`Units.features`."""
        xp: Any = _array.namespace(phi)
        assert power is not None
        root = xp.astype(xp.sqrt(power), phi.dtype, copy=False)[..., None]
        out = run(self._program, (phi, root))
        cut = self.n_forward if self._homogeneous else _size(self.forward)
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
        """Forward features, of norm √a for a homogeneous σ and of norm 1 else, then derivative features, of norm 1.

        What depends on the scale gets its weights, and its rotation, after the program.
        """
        first = self.forward or self.derivative
        assert first is not None
        program = Program((first.factors[0], 1))
        x, root = program.load(0), program.load(1)
        norm = program.norm(x) if self.normalize else root
        pairs = ((self.forward, self.forward_rotation, root), (self.derivative, self.derivative_rotation, None))
        for series, rotation, by in pairs:
            if series is None:
                continue
            parts = series.emit_parts(program, x, norm=norm, by=by if self._homogeneous else None)
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
        """Columns of degree j times h_j(a), over what the series has there."""
        if series is None:
            return values
        xp: Any = _array.namespace(values)
        budget = series.law.budget
        degrees = tuple(budget.coefficients)
        table = truncated_coefficients(self.activation, power, degrees, derivative=derivative)
        table = table / _array.constant(np.sqrt(list(budget.coefficients.values())), table)
        sizes = [budget.exact.get(j) or budget.sketched[j] for j in degrees]
        columns = xp.asarray(np.repeat(np.arange(len(degrees)), sizes), device=_array.device(values))
        values = values * xp.astype(xp.take(table, columns, axis=-1), values.dtype, copy=False)
        return values if rotation is None else rotation.apply(values)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_program"}


def _size(operator: SeriesOperator | SRHTOperator | None) -> int:
    return 0 if operator is None else operator.n_components


def after(activation: Activation, power: Array, *, derivative: bool = False) -> Array:
    """Σ(x, x) after an activation, or with `derivative` what it multiplies Θ(x, x) by, from Σ(x, x) before it."""
    xp: Any = _array.namespace(power)
    wide = power if isinstance(activation, PiecewiseLinear) else _array.widen(power)
    return xp.astype(activation.dual_at_ends(wide, derivative=derivative)[0], power.dtype, copy=False)
