"""Feature maps of the NTK written out row by row: draws of a fitted map as explicit matrices and tensor products."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any

import numpy as np
from tests.reference.sketches import first_matrix, poly_sketch, sampled_rows, srht_matrix


def unit(v: np.ndarray) -> np.ndarray:
    """v/‖v‖, and 0 for 0."""
    norm = np.linalg.norm(v)
    return v / norm if norm > 0 else v


@lru_cache(maxsize=4096)
def _factors(operator: Any) -> list[np.ndarray]:
    return [sampled_rows(signs, rows) for signs, rows in zip(operator.signs, operator.rows, strict=True)]


def tensor_srht(operator: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Row l of the matrix is m^{-1/2} times a Kronecker product of Hadamard rows; it meets the matrix x ⊗ y."""
    A, B = _factors(operator)
    return np.einsum("ki,ki->k", A @ np.outer(x, y), B) / np.sqrt(len(A))


def monomials(x: np.ndarray, degree: int) -> np.ndarray:
    """√(j!/∏ α_k!) x^α of all |α| = j: ⟨x, y⟩^j without error."""
    values = []
    for index in combinations_with_replacement(range(len(x)), degree):
        repeats = prod(factorial(count) for count in Counter(index).values())
        values.append(np.sqrt(factorial(degree) / repeats) * np.prod(x[list(index)]))
    return np.array(values)


def series(operator: Any, x: np.ndarray) -> np.ndarray:
    """⊕_j √a_j Z_j(x) of a SeriesOperator: monomials, an SRHT (OSNAP) for degree 1, else its tree of TensorSRHTs."""
    law, nodes = operator.law, dict(operator.nodes)
    fix = unit if law.normalize else (lambda v: v)

    def leaf(number: int) -> np.ndarray:
        return fix(first_matrix(operator.leaves[number]) @ x) if operator.leaves else x

    def block(start: int, stop: int) -> np.ndarray:
        if stop - start == 1:
            return leaf(start)
        middle = (start + stop) // 2
        return fix(tensor_srht(nodes[start, stop], block(start, middle), block(middle, stop)))

    def tree(degree: int) -> np.ndarray:
        edges, start = [], 0
        for k in reversed(range(degree.bit_length())):
            if degree >> k & 1:
                edges.append((start, start + 2**k))
                start += 2**k
        if len(edges) == 1:
            edges = [(0, degree // 2), (degree // 2, degree)]
        value = block(*edges[-1])
        for left in reversed(edges[:-1]):
            value = fix(tensor_srht(nodes[degree, left[0], degree], block(*left), value))
        return value

    parts = []
    for j, a in law.budget.coefficients.items():
        if j == 0:
            size = law.budget.exact.get(0) or law.budget.sketched[0]
            value = np.full(size, size**-0.5)
        elif j in law.budget.exact:
            value = monomials(x, j)
        elif j == 1:
            value = fix(first_matrix(operator.linear) @ x)
        else:
            value = tree(j)
        parts.append(np.sqrt(a) * value)
    return np.concatenate(parts)


def padded_series(operator: Any, x: np.ndarray) -> np.ndarray:
    """T ⊕_j √c_j Q(x^{⊗j} ⊗ e₁^{⊗(p−j)}), Eq. 7 and 8."""
    p = len(operator.poly.factors)
    e1 = np.eye(len(x))[0]
    sketched = [poly_sketch(operator.poly, [x] * j + [e1] * (p - j)) for j in operator.degrees]
    return srht_matrix(operator.mix) @ np.concatenate(
        [root * z for root, z in zip(operator.roots, sketched, strict=True)]
    )


def algorithm_1(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKSketch of one row, lines 4 to 10; with ``normalize`` all φ, φ̇ and products get the norms they stand for."""
    norm = np.linalg.norm(x)
    if norm == 0:
        return np.zeros(fitted._n_features_out)
    phi = psi = x / norm
    if fitted._first is not None:
        phi = psi = first_matrix(fitted._first) @ phi
    if fitted._lift is not None:
        psi = first_matrix(fitted._lift) @ psi

    def polynomial(activation: Any) -> np.ndarray:
        if not hasattr(activation.series, "mix"):
            return series(activation.series, phi)  # degree by degree, with the norm of each
        value = padded_series(activation.series, phi)
        return unit(value) if fitted.normalize else value

    for number, layer in enumerate(fitted.layers_, 1):
        forward = polynomial(layer.forward)
        psi_next = forward
        if layer.derivative is not None:
            product = tensor_srht(layer.product, psi, polynomial(layer.derivative))
            product = number**0.5 * unit(product) if fitted.normalize else product
            psi_next = np.concatenate([product, forward])
            if layer.mix is not None:
                psi_next = srht_matrix(layer.mix) @ psi_next
                psi_next = (number + 1) ** 0.5 * unit(psi_next) if fitted.normalize else psi_next
        phi, psi = forward, psi_next
    if fitted._projection is not None:
        psi = fitted._projection.astype(np.float64) @ psi
    return norm * psi


def algorithm_2(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKRandomFeatures of one row, on x/‖x‖ as the paper has it."""
    norm = np.linalg.norm(x)
    if norm == 0:
        return np.zeros(fitted._n_features_out)
    phi = psi = x / norm
    if fitted._lift is not None:
        psi = first_matrix(fitted._lift) @ psi
    for number, layer in enumerate(fitted.layers_, 1):
        W1 = layer.forward.matrix.astype(np.float64)
        forward = np.sqrt(2 / len(W1)) * np.maximum(W1 @ phi, 0)
        forward = unit(forward) if fitted.normalize else forward
        psi_next = forward
        if layer.derivative is not None:
            W0 = layer.derivative.matrix.astype(np.float64)
            step = np.sqrt(2 / len(W0)) * (W0 @ phi > 0)
            step = unit(step) if fitted.normalize else step
            product = tensor_srht(layer.product, psi, step)
            product = number**0.5 * unit(product) if fitted.normalize else product
            psi_next = np.concatenate([product, forward])
        phi, psi = forward, psi_next
    return norm * psi


def polynomial_sketch(fitted: Any, x: np.ndarray) -> np.ndarray:
    """NTKPolynomialSketch of one row: ‖x‖ ⊕_j √a_j Z_j(x/‖x‖)."""
    norm = np.linalg.norm(x)
    return norm * series(fitted.sketch_, x / norm) if norm > 0 else np.zeros(fitted._n_features_out)


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

    from ntkit.networks import Dense
    from ntkit.networks._layers import flatten

    dense = [layer for layer in flatten(net) if isinstance(layer, Dense)]
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
