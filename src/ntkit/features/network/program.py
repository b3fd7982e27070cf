"""Write the stages of a network on vectors as one program: the fast back end, which also takes sparse rows.

It supports networks of Dense layers and homogeneous activations that preserve norms, where Σ(x, x) = ‖x‖² and
Θ(x, x) = c‖x‖² with a constant c. Sketched series are computed for x/‖x‖, and their features are multiplied by the norm
of x after the last activation. Random units take rows of any norm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ntkit.features.network.stages import Activate, Columns, Finish, Project, Stages, Start, Train
from ntkit.features.network.units import RandomUnits, SeriesUnits, emit_series
from ntkit.networks import PiecewiseLinear, ReLU
from ntkit.programs import Program


def can_emit(stages: Stages) -> bool:
    """Return whether stages can be written as a program."""
    return all(
        type(stage) in (Start, Train, Project, Finish) or (type(stage) is Activate and _is_simple(stage))
        for _, stage in stages
    )


def _is_simple(stage: Activate) -> bool:
    layer = stage.activation
    if not isinstance(layer, PiecewiseLinear) or layer.gain != 1:
        return False
    return isinstance(stage.units, SeriesUnits) or isinstance(layer, ReLU)


@dataclass(frozen=True)
class Vectors:
    """Values of a program: η and φ (None: no columns), their norm (‖x‖, or None for 1), and Θ(x, x)/‖x‖²."""

    eta: int | None
    phi: int | None
    norm: int | None
    theta: float = 0.0

    def psi(self, program: Program, columns: Columns) -> list[int]:
        """Return η and w ⊙ φ."""
        parts = [] if self.eta is None else [self.eta]
        if self.phi is not None and columns.weights.any():
            weight = float(columns.weights[0])
            parts.append(program.concatenate([self.phi], [weight]))
        return parts


def emit_stages(stages: Stages, n_features: int) -> Program:
    """Write drawn stages as a program."""
    program = Program((n_features,))
    x = program.load()
    last = max((i for i, (_, stage) in enumerate(stages) if isinstance(stage, Activate)), default=0)
    start = stages[0][1]
    assert isinstance(start, Start)
    norm = program.norm(x) if start.track else None
    vectors = Vectors(None, x, norm)
    for i, (_, stage) in enumerate(stages):
        if isinstance(stage, Train):
            vectors = replace(vectors, theta=vectors.theta + 1)
        elif isinstance(stage, Project):
            vectors = _project(program, stage, vectors)
        elif isinstance(stage, Activate):
            vectors = _activate(program, stage, vectors, norm, is_last=i == last)
        elif isinstance(stage, Finish):
            _finish(program, stage, vectors)
    return program


def _activate(program: Program, stage: Activate, vectors: Vectors, norm: int | None, *, is_last: bool) -> Vectors:
    assert vectors.phi is not None
    units: Any = stage.units
    new_norm = norm if is_last or isinstance(units, RandomUnits) else None
    forward = derivative = None
    if isinstance(units, SeriesUnits):
        if units.forward is not None:
            phi, norm_of_phi = vectors.phi, vectors.norm
            parts = emit_series(program, units.forward, phi, norm=norm_of_phi, multiplier=new_norm, units=units)
            forward = program.concatenate(parts)
        if units.derivative is not None:
            parts = emit_series(program, units.derivative, vectors.phi, norm=vectors.norm, multiplier=None, units=units)
            derivative = program.concatenate(parts)
    else:
        forward, derivative = _random(program, stage, vectors, new_norm)
    theta, product = vectors.theta, None
    if stage.product is not None:
        psi = program.concatenate(vectors.psi(program, stage.columns))
        if not stage.normalize and vectors.norm != new_norm:
            psi = psi if vectors.norm is None else program.scale(psi, vectors.norm, inverse=True)
            psi = psi if new_norm is None else program.scale(psi, new_norm)
        product = stage.product.emit(program, psi, derivative)
        if stage.normalize:
            product = program.normalize(product, new_norm, factor=theta**0.5)
    return Vectors(product, forward, new_norm, theta)


def _random(program: Program, stage: Activate, vectors: Vectors, new_norm: int | None) -> tuple[int | None, int | None]:
    """Compute √2 ReLU(Wφ)/√m and √2 Step(Wφ)/√m."""
    units: Any = stage.units
    phi: Any = vectors.phi

    def activated(matrix: np.ndarray, kind: Any, size: int) -> int:
        value = program.dense(phi, matrix)
        value = value if len(matrix) == size else program.slice(value, 0, size)
        return program.activate(value, kind, units.activation.scale * size**-0.5)

    forward = derivative = None
    if units.n_forward:
        forward = activated(units.matrix, "relu", units.n_forward)
        forward = program.normalize(forward, new_norm) if stage.normalize else forward
    if units.n_derivative:
        derivative = activated(units.matrix if units.slopes is None else units.slopes, "step", units.n_derivative)
        derivative = program.normalize(derivative) if stage.normalize else derivative
    return forward, derivative


def _project(program: Program, stage: Project, vectors: Vectors) -> Vectors:
    eta, phi = vectors.eta, vectors.phi
    if stage.phi is not None:
        phi = stage.phi.emit(program, vectors.phi)
        phi = program.normalize(phi, vectors.norm) if stage.normalize else phi
    if stage.psi is not None:
        eta = stage.psi.emit(program, program.concatenate(vectors.psi(program, stage.columns)))
        eta = program.normalize(eta, vectors.norm, factor=vectors.theta**0.5) if stage.normalize else eta
    return replace(vectors, eta=eta, phi=phi)


def _finish(program: Program, stage: Finish, vectors: Vectors) -> None:
    for kind, sketch in zip(stage.kinds, stage.maps, strict=True):
        phi: Any = vectors.phi
        parts = vectors.psi(program, stage.columns) if kind == "ntk" else [phi]
        if not parts:
            parts = [program.constant(np.zeros(stage.n_components))]
        elif sketch is not None:
            value = sketch.emit(program, program.concatenate(parts))
            factor = vectors.theta**0.5 if kind == "ntk" else 1.0
            parts = [program.normalize(value, vectors.norm, factor=factor) if stage.has_norms else value]
        for part in parts:
            program.output(part)
