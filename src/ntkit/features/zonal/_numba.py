"""Compiled recursions of Gegenbauer polynomials: values of polynomials, or their weighted sums, for rows of cosines."""

from __future__ import annotations

import numpy as np

from ntkit._compiled import compiled

_LANES = 2048  # number of values processed at a time, so that all stay in the first-level cache


@compiled
def values(
    t: np.ndarray, n_shared: int, degrees: np.ndarray, firsts: np.ndarray, sizes: np.ndarray, steps: np.ndarray,
    backs: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Write P_ℓ of cosines for increasing degrees ℓ, as one array (rows, sizes[i]) after the other.

    The cosines for degrees[i] are the sizes[i] columns of `t` from firsts[i] on, all among the first `n_shared`.
    """
    n_rows = len(t)
    at_once = max(_LANES // n_shared, 1)
    x, before, value = (
        np.empty(at_once * n_shared, t.dtype),
        np.empty(at_once * n_shared, t.dtype),
        np.empty(at_once * n_shared, t.dtype),
    )
    for top in range(0, n_rows, at_once):
        some = min(n_rows - top, at_once)
        n = some * n_shared
        for row in range(some):
            for j in range(n_shared):
                x[row * n_shared + j] = t[top + row, j]
        for j in range(n):
            before[j], value[j] = 0.0, 1.0
        degree, offset = 0, 0
        for i in range(len(degrees)):
            _advance(x[:n], before[:n], value[:n], degree, degrees[i], steps, backs)
            degree = degrees[i]
            first, size = firsts[i], sizes[i]
            for row in range(some):
                start = offset + (top + row) * size
                for j in range(size):
                    out[start + j] = value[row * n_shared + first + j]
            offset += n_rows * size


@compiled
def _advance(
    x: np.ndarray, before: np.ndarray, value: np.ndarray, start: int, stop: int, steps: np.ndarray, backs: np.ndarray
) -> None:
    """Advance P_{k−1}, P_k from k = start to k = stop, up to four degrees per pass over the values."""
    k = start + 1
    while k + 3 <= stop:
        a0, a1, a2, a3 = steps[k], steps[k + 1], steps[k + 2], steps[k + 3]
        b0, b1, b2, b3 = backs[k], backs[k + 1], backs[k + 2], backs[k + 3]
        for j in range(len(x)):
            p = a0 * x[j] * value[j] - b0 * before[j]
            q = a1 * x[j] * p - b1 * value[j]
            p = a2 * x[j] * q - b2 * p
            before[j] = p
            value[j] = a3 * x[j] * p - b3 * q
        k += 4
    while k <= stop:
        a0, b0 = steps[k], backs[k]
        for j in range(len(x)):
            p = a0 * x[j] * value[j] - b0 * before[j]
            before[j] = value[j]
            value[j] = p
        k += 1


@compiled
def sums(
    t: np.ndarray, weights: np.ndarray, first: np.ndarray, groups: np.ndarray, steps: np.ndarray, backs: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Write Σ weights P_ℓ(t) of each group into `out`, the groups side by side.

    Columns first[ℓ] to first[ℓ + 1] of `weights` are the modes of degree ℓ; groups[i] is the group of mode i.
    """
    size, top = t.shape[1], len(first) - 2
    x, before, value = np.empty(size, t.dtype), np.empty(size, t.dtype), np.empty(size, t.dtype)
    alone = np.zeros(top + 5, t.dtype)
    for row in range(t.shape[0]):
        out[row] = 0.0
        for j in range(size):
            x[j], before[j], value[j] = t[row, j], 0.0, 1.0
        if out.shape[1] == size:
            for i in range(len(groups)):
                alone[_degree_of(first, i)] = weights[row, i]
            _add(x, before, value, alone, steps, backs, out[row])
            continue
        for k in range(top + 1):
            if k > 0:
                a, b = steps[k], backs[k]
                for j in range(size):
                    p = a * x[j] * value[j] - b * before[j]
                    before[j] = value[j]
                    value[j] = p
            for i in range(first[k], first[k + 1]):
                weight, target = weights[row, i], out[row, groups[i] * size :]
                for j in range(size):
                    target[j] += weight * value[j]


@compiled
def _degree_of(first: np.ndarray, mode: int) -> int:
    k = 0
    while first[k + 1] <= mode:
        k += 1
    return k


@compiled
def _add(
    x: np.ndarray, before: np.ndarray, value: np.ndarray, weights: np.ndarray, steps: np.ndarray, backs: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Add Σ weights[ℓ] P_ℓ to `out`, starting from P_{−1} = 0 and P_0 = 1; four degrees per pass over the values."""
    for j in range(len(x)):
        out[j] += weights[0]
    k, top = 1, len(steps) - 1
    while k + 3 <= top:
        a0, a1, a2, a3 = steps[k], steps[k + 1], steps[k + 2], steps[k + 3]
        b0, b1, b2, b3 = backs[k], backs[k + 1], backs[k + 2], backs[k + 3]
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        for j in range(len(x)):
            p = a0 * x[j] * value[j] - b0 * before[j]
            q = a1 * x[j] * p - b1 * value[j]
            r = a2 * x[j] * q - b2 * p
            s = a3 * x[j] * r - b3 * q
            before[j] = r
            value[j] = s
            out[j] += (w0 * p + w1 * q) + (w2 * r + w3 * s)
        k += 4
    while k <= top:
        a0, b0, w0 = steps[k], backs[k], weights[k]
        for j in range(len(x)):
            p = a0 * x[j] * value[j] - b0 * before[j]
            before[j] = value[j]
            value[j] = p
            out[j] += w0 * p
        k += 1
