"""Kernel ridge regression with features and a sketch of the rows (Theorem 6.9 of Song et al., ICML 2021)."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._random import keyed
from ntkit.models._checks import to_library
from ntkit.models._linalg import cholesky_solve, shifted_cholesky, solve_lower
from ntkit.sketches import SRHT, fwht

_FIRST_ROWS = 64  # rows of the first sketch
_FACTOR = 8  # the sketch needs this many times s_λ rows to estimate s_λ


class Sketched(NamedTuple):
    """A solution x in R^n, w = Zᵀ x, the number m of rows of the sketch, and the estimated statistical dimension."""

    solution: Array
    weights: Array
    size: int
    dimension: float


def sketched_ridge(
    Z: Array, B: Array, alpha: float, *, size: int | None, epsilon: float, seed: np.random.SeedSequence
) -> Sketched:
    """Minimize ‖S(Z Zᵀ x − b)‖² + λ‖Zᵀ x‖² with an SRHT S of m rows.

    With w = Zᵀ x it is ridge regression on the sketched features S Z, so x = Sᵀ (S Z Zᵀ Sᵀ + λI)⁻¹ S b. With t
    features, S Z costs O(n t log n) and the solution O(m² t + m³). If `size` is None, m = s_λ (1 + 1/ε), where s_λ is
    the statistical dimension of the features: the objective of a sketch without replacement exceeds the optimum by
    about s_λ/(m − s_λ) of it. The theorem's m = O(ε⁻¹ (s_λ + log(1/ε)) log(s_λ/ε)) has an additional logarithm.
    """
    n_rows, n_features = (int(size) for size in Z.shape)
    dimension = estimated_dimension(Z, alpha, keyed(seed, "dimension"))
    size = min(max(1, ceil(dimension * (1 + 1 / epsilon))) if size is None else size, n_rows)
    S = SRHT(n_rows, size).sample(seed) if size < n_rows else None
    SZ, SB = (values if S is None else _apply(S, values) for values in (Z, B))
    if size <= n_features:
        u = cholesky_solve(shifted_cholesky(SZ @ SZ.T, alpha), SB)
        w = SZ.T @ u
    else:
        w = cholesky_solve(shifted_cholesky(SZ.T @ SZ, alpha), SZ.T @ SB)
        u = (SB - SZ @ w) / alpha
    return Sketched(u if S is None else _apply_transposed(S, u, n_rows), w, size, dimension)


def estimated_dimension(Z: Array, alpha: float, seed: np.random.SeedSequence) -> float:
    """Estimate s_λ = tr ZᵀZ (ZᵀZ + λI)⁻¹ from sketches whose number of rows grows to eight times s_λ.

    ZᵀZ itself would cost as much as the problem without a sketch.
    """
    size = _FIRST_ROWS
    while True:
        size = min(size, int(Z.shape[0]))
        SZ = Z if size == Z.shape[0] else _apply(SRHT(int(Z.shape[0]), size).sample(seed), Z)
        dimension = _dimension(SZ @ SZ.T if SZ.shape[0] <= SZ.shape[1] else SZ.T @ SZ, alpha)
        if size >= min(_FACTOR * dimension, Z.shape[0]):
            return dimension
        size = max(2 * size, ceil(_FACTOR * dimension))


def _dimension(gram: Array, alpha: float) -> float:
    """Return the trace of G (G + λI)⁻¹ for a matrix G of order t: t − λ‖L⁻¹‖_F², where L Lᵀ = G + λI."""
    xp: Any = _array.namespace(gram)
    order = int(gram.shape[0])
    eye = xp.eye(order, dtype=gram.dtype, device=_array.device(gram))
    return max(0.0, order - alpha * float(xp.sum(solve_lower(shifted_cholesky(gram, alpha), eye) ** 2)))


def _apply(S: Any, values: Array) -> Array:
    """Compute S times `values`, some columns at a time; S.apply takes them as rows."""
    xp: Any = _array.namespace(values)
    columns = row_batches(int(values.shape[1]), 32 * int(values.shape[0]), like=values)
    return xp.concat([S.apply(xp.asarray(values[:, part].T, copy=True)).T for part in columns], axis=1)


def _apply_transposed(S: Any, u: Array, n_rows: int) -> Array:
    """Compute Sᵀ u = m^{-1/2} D H Pᵀ u."""
    xp: Any = _array.namespace(u)
    n_padded = 1 << (n_rows - 1).bit_length()
    spread = xp.zeros((n_padded, int(u.shape[1])), dtype=u.dtype, device=_array.device(u))
    spread[to_library(S.rows.astype(np.int64), u)] = u
    signs = to_library(S.signs.astype(np.float64), u)
    return signs[:, None] * fwht(spread, axis=0)[:n_rows] / int(u.shape[0]) ** 0.5
