"""Feature maps of the NTK written out row by row: draws of a fitted map as explicit matrices and tensor products."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement
from math import factorial, prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.reference.series import padded_series, series_sketch
from tests.reference.sketches import apply_tensor_srht, first_matrix, srht_matrix

from ntkit._random import keyed
from ntkit.features.network.stages import Activate, Finish, Project, Start, Train, draw_stages


def unit(v: np.ndarray) -> np.ndarray:
    """v/‖v‖, and 0 for 0."""
    norm = np.linalg.norm(v)
    return v / norm if norm > 0 else v


def monomials(x: np.ndarray, degree: int) -> np.ndarray:
    """√(j!/∏ α_k!) x^α of all |α| = j: ⟨x, y⟩^j without error."""
    values = []
    for index in combinations_with_replacement(range(len(x)), degree):
        repeats = prod(factorial(count) for count in Counter(index).values())
        values.append(np.sqrt(factorial(degree) / repeats) * np.prod(x[list(index)]))
    return np.array(values)


def series(operator: Any, x: np.ndarray) -> np.ndarray:
    """⊕_j √a_j Z_j(x) of a SeriesOperator."""
    return np.concatenate(series_sketch(operator, x, monomials))


def drawn_layers(fitted: Any) -> SimpleNamespace:
    """The draws of a fully connected map, named as in the paper: `first` of x, `lift` of ψ^(0), layers, last."""
    found = SimpleNamespace(first=None, lift=None, layers=[], last=None)
    for _, stage in draw_stages(fitted._planned.stages, fitted._seed):
        if isinstance(stage, Activate):
            found.layers.append(SimpleNamespace(units=stage.units, product=stage.product, mix=None))
        elif isinstance(stage, Project) and stage.phi is not None:
            assert not found.layers
            found.first = stage.phi
        elif isinstance(stage, Project) and found.layers:
            found.layers[-1].mix = stage.psi
        elif isinstance(stage, Project):
            found.lift = stage.psi
        elif isinstance(stage, Finish):
            (found.last,) = stage.maps
        else:
            assert isinstance(stage, Start | Train)
    return found


def algorithm_1(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKSketch of one row, lines 4 to 10; with ``normalize``, all φ, φ̇ and products get the norms they represent."""
    norm, drawn = np.linalg.norm(x), drawn_layers(fitted)
    if norm == 0:
        return np.zeros(fitted._n_features_out)
    phi = psi = x / norm
    if drawn.first is not None:
        phi = first_matrix(drawn.first) @ phi
        phi = psi = unit(phi) if fitted.normalize else phi
    if drawn.lift is not None:
        psi = first_matrix(drawn.lift) @ psi

    def polynomial(operator: Any) -> np.ndarray:
        if not hasattr(operator, "srht"):
            return series(operator, phi)  # degree by degree, with the norm of each
        value = padded_series(operator, phi)
        return unit(value) if fitted.normalize else value

    for number, layer in enumerate(drawn.layers, 1):
        forward = polynomial(layer.units.forward)
        psi_next = forward
        if layer.units.derivative is not None:
            product = apply_tensor_srht(layer.product, psi, polynomial(layer.units.derivative))
            product = number**0.5 * unit(product) if fitted.normalize else product
            psi_next = np.concatenate([product, forward])
            if layer.mix is not None:
                psi_next = srht_matrix(layer.mix) @ psi_next
                psi_next = (number + 1) ** 0.5 * unit(psi_next) if fitted.normalize else psi_next
        phi, psi = forward, psi_next
    if drawn.last is not None:
        psi = drawn.last.matrix.astype(np.float64) @ psi
    return norm * psi


def algorithm_2(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKRandomFeatures of one row, on x/‖x‖ as the paper has it."""
    norm, drawn = np.linalg.norm(x), drawn_layers(fitted)
    if norm == 0:
        return np.zeros(fitted._n_features_out)
    phi = psi = x / norm
    assert drawn.first is drawn.last is None
    if drawn.lift is not None:
        psi = first_matrix(drawn.lift) @ psi
    for number, layer in enumerate(drawn.layers, 1):
        W1 = layer.units.matrix.astype(np.float64)
        forward = np.sqrt(2 / len(W1)) * np.maximum(W1 @ phi, 0)
        forward = unit(forward) if fitted.normalize else forward
        psi_next = forward
        if layer.product is not None:
            W0 = layer.units.slopes.astype(np.float64)
            step = np.sqrt(2 / len(W0)) * (W0 @ phi > 0)
            step = unit(step) if fitted.normalize else step
            product = apply_tensor_srht(layer.product, psi, step)
            product = number**0.5 * unit(product) if fitted.normalize else product
            psi_next = np.concatenate([product, forward])
        phi, psi = forward, psi_next
    return norm * psi


def polynomial_sketch(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKPolynomialSketch of one row: ‖x‖ ⊕_j √a_j Z_j(x/‖x‖)."""
    norm = np.linalg.norm(x)
    operator = fitted._planned.law.sample(keyed(fitted._seed, "series"))
    return norm * series(operator, x / norm) if norm > 0 else np.zeros(fitted._n_features_out)


def polynomial_kernel(X: np.ndarray, depth: int, forward: np.ndarray, derivative: np.ndarray) -> np.ndarray:
    """‖x‖‖y‖ K(cos) with K^ℓ = K^{ℓ−1} P₀(Σ^{ℓ−1}) + Σ^ℓ, Σ^ℓ = P₁(Σ^{ℓ−1}): polynomials in place of κ₀ and κ₁."""
    norms = np.linalg.norm(X, axis=1)
    sigma = theta = (X @ X.T) / np.outer(norms, norms)
    for _ in range(depth):
        slope = np.polynomial.polynomial.polyval(sigma, derivative)
        sigma = np.polynomial.polynomial.polyval(sigma, forward)
        theta = theta * slope + sigma
    return np.outer(norms, norms) * theta


def gradients(net: Any, weights: list[np.ndarray], X: np.ndarray) -> np.ndarray:
    """∂f/∂W over all trained weights of an explicit finite network, by torch's automatic differentiation."""
    import torch
    from tests.reference.finite import FiniteNetwork
    from tests.reference.kernels import dense_layers

    dense = dense_layers(net)
    network = FiniteNetwork(net, width=weights[0].shape[0], seed=0)
    network.fresh = False
    network.weights = [
        torch.tensor(w, dtype=torch.float64, requires_grad=layer.trainable)
        for w, layer in zip(weights, dense, strict=True)
    ]
    trained = [w for w in network.weights if w.requires_grad]
    rows = []
    for x in torch.tensor(X, dtype=torch.float64):
        (output,) = network(x[None])[0]
        rows.append(np.concatenate([g.numpy().ravel() for g in torch.autograd.grad(output, trained)]))
    return np.array(rows)
