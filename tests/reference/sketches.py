"""Sketches written out from their formulas: explicit matrices, loops and Kronecker products of an operator's draws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import pairwise, product
from typing import Any

import numpy as np
import scipy.linalg


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


def hadamard_rows(rows: np.ndarray, n: int) -> np.ndarray:
    """Some rows of `hadamard_matrix(n)`; bit k of a row's index is the sign of the second half at order 2^{k+1}."""
    H = np.ones((len(rows), 1))
    for k in range(n.bit_length() - 1):
        sign = np.where(np.asarray(rows) // 2**k % 2 == 1, -1.0, 1.0)
        H = np.hstack([H, sign[:, None] * H])
    return H


def sampled_rows(signs: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """P H D without its scale: rows of the Hadamard matrix of the padded order, columns of the d features."""
    return hadamard_rows(rows, padded(len(signs)))[:, : len(signs)] * signs


def srht_matrix(operator: Any) -> np.ndarray:
    """m^{-1/2} P H D."""
    return sampled_rows(operator.signs, operator.rows) / np.sqrt(len(operator.rows))


@lru_cache(maxsize=64)
def osnap_matrix(operator: Any) -> np.ndarray:
    """s nonzeros ±s^{-1/2} in every column; a CountSketch for s = 1."""
    d, s = operator.rows.shape
    S = np.zeros((operator.n_components, d))
    for j, k in product(range(d), range(s)):
        S[operator.rows[j, k], j] += operator.signs[j, k] / np.sqrt(s)
    return S


@lru_cache(maxsize=64)
def factor_matrices(operator: Any) -> list[np.ndarray]:
    """P_i H D_i of all factors i of a TensorSRHT."""
    return [sampled_rows(signs, rows) for signs, rows in zip(operator.signs, operator.rows, strict=True)]


def apply_tensor_srht(operator: Any, *values: np.ndarray) -> np.ndarray:
    """S (A ⊗ B ⊗ …) of vectors or matrices: row l is m^{-1/2} times the Kronecker product of rows l of P_i H D_i A."""
    parts = [factor @ value for factor, value in zip(factor_matrices(operator), values, strict=True)]
    return np.array([reduce(np.kron, rows) for rows in zip(*parts, strict=True)]) / np.sqrt(operator.n_components)


def tensor_srht_matrix(operator: Any) -> np.ndarray:
    """The matrix of a TensorSRHT."""
    return apply_tensor_srht(operator, *(np.eye(len(signs)) for signs in operator.signs))


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

    The tree is read from the nodes: the left child of a node is the largest span that begins with it.
    """
    nodes = dict(operator.nodes)

    def value(start: int, stop: int) -> np.ndarray:
        if stop - start == 1:
            return first_matrix(operator.leaves[start]) @ values[start] if operator.leaves else values[start]
        middle = max((b for a, b in nodes if a == start and b < stop), default=start + 1)
        return apply_tensor_srht(nodes[start, stop], value(start, middle), value(middle, stop))

    return value(0, len(values))


def left_leaves(n_leaves: int) -> int:
    """Leaves on the left of a node: the largest power of two below `n_leaves`."""
    return padded(n_leaves) // 2


def power_sketch(operator: Any, x: np.ndarray, degree: int) -> np.ndarray:
    """Algorithm 1 of Song et al. (ICML 2021) on a vector, or its matrix on an identity matrix.

    A tree whose leaves are all T x and whose nodes are all S; equal subtrees have equal values.
    """
    values = {1: first_matrix(operator.first) @ x}

    def value(n_leaves: int) -> np.ndarray:
        if n_leaves not in values:
            left = left_leaves(n_leaves)
            values[n_leaves] = apply_tensor_srht(operator.square, value(left), value(n_leaves - left))
        return values[n_leaves]

    return value(degree)


def kind(operator: Any) -> str:
    """Return which sketch an operator is, by its attributes."""
    names = {
        "outer": "composition",
        "operators": "direct sum",
        "square": "power",
        "nodes": "tree",
        "counts": "tensor sketch",
    }
    for attribute, name in names.items():
        if hasattr(operator, attribute):
            return name
    if isinstance(operator.rows, tuple):
        return "tensor srht"
    return "osnap" if operator.rows.ndim == 2 else "srht"


def matrix(operator: Any) -> np.ndarray:
    """Explicit matrix of any drawn sketch, (m, d_1 ⋯ d_p)."""
    eyes = [np.eye(d) for d in operator.factors]
    return {
        "srht": srht_matrix,
        "osnap": osnap_matrix,
        "tensor srht": tensor_srht_matrix,
        "tensor sketch": tensor_sketch_matrix,
        "tree": lambda operator: poly_sketch(operator, eyes),
        "power": lambda operator: power_sketch(operator, eyes[0], len(eyes)),
        "composition": lambda operator: matrix(operator.outer) @ matrix(operator.inner),
        "direct sum": lambda operator: scipy.linalg.block_diag(*map(matrix, operator.operators)),
    }[kind(operator)](operator)


def apply_power(operator: Any, X: np.ndarray) -> np.ndarray:
    """Sketches of x ⊗ … ⊗ x for the rows x, without the matrix of a high degree."""
    p = len(operator.factors)
    if kind(operator) == "tensor srht":
        return np.array([apply_tensor_srht(operator, *[x] * p) for x in X])
    if kind(operator) == "tensor sketch":
        counts = [osnap_matrix(count) for count in operator.counts]
        return np.array([_convolved([count @ x for count in counts]) for x in X])
    if kind(operator) == "tree":
        return np.array([poly_sketch(operator, [x] * p) for x in X])
    if kind(operator) == "power":
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


def osnap_variance(x: np.ndarray, y: np.ndarray, n_components: int, n_nonzeros: int) -> float | np.ndarray:
    """Var⟨Sx, Sy⟩ of an OSNAP whose blocks may have unequal sizes m_b: (1/s²) Σ_b 1/m_b takes the place of 1/m."""
    edges = [k * n_components // n_nonzeros for k in range(n_nonzeros + 1)]
    collision = sum(1 / (stop - start) for start, stop in pairwise(edges)) / n_nonzeros**2
    return variance([x], [y], 1) * collision


def tensor_sketch_variance(xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], n_components: int) -> float | np.ndarray:
    """Return Var⟨S(x₁ ⊗ … ⊗ x_p), S(y₁ ⊗ … ⊗ y_p)⟩ of a TensorSketch.

    In each factor the signs leave three pairings of the four indices: same tuples (c²), and T, U. Collisions of T or of
    U have probability 1/m, collisions of a mixture κ/m².
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
