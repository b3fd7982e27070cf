"""Sketches written out from their formulas: explicit matrices, loops and Kronecker products of an operator's draws."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np


def padded(d: int) -> int:
    """Smallest power of two ≥ d."""
    n = 1
    while n < d:
        n *= 2
    return n


def hadamard_matrix(n: int) -> np.ndarray:
    """Sylvester's construction, H_{2n} = [[H, H], [H, −H]]."""
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    assert len(H) == n
    return H


def sampled_rows(signs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """P H D without its scale: rows of the Hadamard matrix of the padded order, columns of the d features."""
    H = hadamard_matrix(padded(len(signs)))
    P = np.zeros((len(rows), len(H)))
    for i, row in enumerate(rows):
        P[i, row] = 1
    return P @ H[:, : len(signs)] @ np.diag(signs)


def srht_matrix(operator: Any) -> np.ndarray:
    """m^{-1/2} P H D."""
    return sampled_rows(operator.signs, operator.rows) / np.sqrt(len(operator.rows))


def osnap_matrix(operator: Any) -> np.ndarray:
    """s nonzeros ±s^{-1/2} in every column; a CountSketch for s = 1."""
    d, s = operator.rows.shape
    S = np.zeros((operator.n_components, d))
    for j, k in product(range(d), range(s)):
        S[operator.rows[j, k], j] += operator.signs[j, k] / np.sqrt(s)
    return S


def tensor_srht_matrix(operator: Any) -> np.ndarray:
    """Row l is m^{-1/2} times the Kronecker product of row r_{il} of H D_i over the factors i."""
    parts = [sampled_rows(signs, rows) for signs, rows in zip(operator.signs, operator.rows, strict=True)]
    m = len(operator.rows[0])
    rows = []
    for k in range(m):
        row = np.ones(1)
        for part in parts:
            row = np.kron(row, part[k])
        rows.append(row / np.sqrt(m))
    return np.array(rows)


def tensor_sketch_matrix(operator: Any) -> np.ndarray:
    """Column (j_1, …, j_p) has ∏ sign_i(j_i) in row Σ hash_i(j_i) mod m."""
    m, sizes = operator.n_components, [len(count.rows) for count in operator.counts]
    S = np.zeros((m, int(np.prod(sizes))))
    for column, index in enumerate(product(*(range(d) for d in sizes))):
        row, sign = 0, 1
        for count, j in zip(operator.counts, index, strict=True):
            row += int(count.rows[j, 0])
            sign *= int(count.signs[j, 0])
        S[row % m, column] = sign
    return S


def first_matrix(operator: Any) -> np.ndarray:
    """Matrix of a leaf, an SRHT or an OSNAP."""
    return osnap_matrix(operator) if operator.rows.ndim == 2 else srht_matrix(operator)


def poly_sketch(operator: Any, values: Sequence[np.ndarray]) -> np.ndarray:
    """The tree of Figure 3 (Zandieh et al.) on p vectors, or as a matrix on p identity matrices.

    A node with s leaves below has ⌈s/2⌉ of them on its left.
    """
    nodes = {span: tensor_srht_matrix(node) for span, node in operator.nodes}

    def value(start: int, stop: int) -> np.ndarray:
        if stop - start == 1:
            return first_matrix(operator.leaves[start]) @ values[start] if operator.leaves else values[start]
        middle = stop - (stop - start) // 2
        return nodes[start, stop] @ np.kron(value(start, middle), value(middle, stop))

    return value(0, len(values))


def power_sketch(operator: Any, x: np.ndarray, degree: int) -> np.ndarray:
    """Algorithm 1 of Song et al. (ICML 2021) on a vector, or its matrix on an identity matrix."""
    T, S = first_matrix(operator.first), tensor_srht_matrix(operator.square)
    w = [T @ x]
    while 2 ** len(w) <= degree:
        w.append(S @ np.kron(w[-1], w[-1]))
    j, *others = (i for i in range(len(w)) if degree // 2**i % 2 == 1)
    z = w[j]
    for i in others:
        z = S @ np.kron(z, w[i])
    return z


def matrix(operator: Any) -> np.ndarray:
    """Explicit matrix of any drawn sketch, (m, d_1 ⋯ d_p)."""
    eyes = [np.eye(d) for d in operator.factors]
    return {
        "SRHTOperator": srht_matrix,
        "OSNAPOperator": osnap_matrix,
        "TensorSRHTOperator": tensor_srht_matrix,
        "TensorSketchOperator": tensor_sketch_matrix,
        "PolySketchOperator": lambda operator: poly_sketch(operator, eyes),
        "PowerSketchOperator": lambda operator: power_sketch(operator, eyes[0], len(eyes)),
    }[type(operator).__name__](operator)


def apply_power(operator: Any, X: np.ndarray) -> np.ndarray:
    """Sketches of x ⊗ … ⊗ x for the rows x, without the matrix of a high degree."""
    p = len(operator.factors)
    name = type(operator).__name__
    if name == "TensorSRHTOperator":
        out = np.full((len(X), operator.n_components), operator.n_components**-0.5)
        for signs, rows in zip(operator.signs, operator.rows, strict=True):
            out = out * (X @ sampled_rows(signs, rows).T)
        return out
    if name == "TensorSketchOperator":
        return np.array([_convolved([osnap_matrix(count) @ x for count in operator.counts]) for x in X])
    if name == "PolySketchOperator":
        return np.array([poly_sketch(operator, [x] * p) for x in X])
    if name == "PowerSketchOperator":
        return np.array([power_sketch(operator, x, p) for x in X])
    return X @ matrix(operator).T


def _convolved(counts: Sequence[np.ndarray]) -> np.ndarray:
    m = len(counts[0])
    total = counts[0]
    for count in counts[1:]:
        total = np.array([sum(total[i] * count[(k - i) % m] for i in range(m)) for k in range(m)])
    return total


def variance(
    xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], n_components: int, n: int | None = None
) -> float | np.ndarray:
    """Var⟨S(x₁ ⊗ … ⊗ x_p), S(y₁ ⊗ … ⊗ y_p)⟩ of a TensorSRHT (p = 1: an SRHT, a CountSketch, an OSNAP).

    With `n`, the padded size, rows are drawn without replacement: each factor's come as independent permutations one
    after the other. Blocks of n rows are uncorrelated (a whole permutation of any factor averages exactly), and a
    block of b rows enters with weight b/m.
    """
    A, B, C = 1.0, 1.0, 1.0
    for x, y in zip(xs, ys, strict=True):
        c = np.sum(x * y, axis=-1)
        a = np.sum(x * x, axis=-1) * np.sum(y * y, axis=-1) + 2 * c**2 - 2 * np.sum(x * x * y * y, axis=-1)
        A, C = A * a, C * c**2
        if n is not None and n > 1:
            B = B * (n * c**2 - a) / (n - 1)
    if n is None:
        return (A - C) / n_components
    blocks = [min(n, n_components - start) for start in range(0, n_components, n)]
    total = 0.0
    for b in blocks:
        both = B - C if n > 1 else 0.0
        total = total + (b / n_components) ** 2 * ((A - C) / b + (1 - 1 / b) * both)
    return total


def tensor_sketch_variance(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], n_components: int) -> float | np.ndarray:
    """Var⟨S(x₁ ⊗ … ⊗ x_p), S(y₁ ⊗ … ⊗ y_p)⟩ of a TensorSketch.

    In each factor the signs leave three pairings of the four indices: same tuples (c²), and T, U. Collisions of T or U
    alone have probability 1/m, of a mixture κ/m².
    """
    m = n_components
    every, with_t, with_u, same = 1.0, 1.0, 1.0, 1.0
    for x, y in zip(xs, ys, strict=True):
        c = np.sum(x * y, axis=-1) ** 2
        fourth = np.sum(x * x * y * y, axis=-1)
        t, u = np.sum(x * x, axis=-1) * np.sum(y * y, axis=-1) - fourth, c - fourth
        every, with_t, with_u, same = every * (c + t + u), with_t * (c + t), with_u * (c + u), same * c
    mixed = every - with_t - with_u + same
    return (with_t + with_u - 2 * same) / m + (1 if m % 2 else 2) * mixed / m**2
