"""Compiled counterpart of the array-API code in :mod:`ntkit.kernels.distances`, for NumPy arrays and CSR rows.

Everything is float64 unless its name says otherwise. A tile of scaled distances is computed either from differences
(:func:`differences`) or from inner products (:func:`squares`), whose inaccurate entries are then recomputed.
:func:`apply_profile` writes the kernel values.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from ntkit._compiled import compiled
from ntkit.kernels import _profiles

Float64 = np.ndarray[Any, np.dtype[np.float64]]
inlined = numba.njit(inline="always", error_model="numpy", fastmath={"contract"})

_GAUSSIAN, _MATERN_3_2 = _profiles.GAUSSIAN.code, _profiles.MATERN_3_2.code
_MATERN_5_2, _ABSOLUTE = _profiles.MATERN_5_2.code, _profiles.ABSOLUTE.code
EPSILON = 2.0**-52  # machine epsilon of float64
INACCURATE = -1.0  # marks a squared distance that has to be recomputed
TINY = 1e-30  # φ(0) = 1, so a sum of values of φ in float32 does not change without values below this one
CHUNK = 512  # numbers of a row processed at a time; buffers of 4 KiB stay in the first-level cache

# exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x − n ln 2, |r| ≤ ln(2)/2. ln 2 is split into a sum of two
# numbers. The first one ends in 32 zero bits (as in fdlibm), so its product with n is exact. The Taylor polynomial of
# degree 13 has an error of 4e-18.
_PER_OCTAVE = 1.0 / math.log(2.0)
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
_ROUNDER = 1.5 * 2.0**52  # adding this number rounds to an integer n, which is then in the lowest bits of the sum
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(14))
_LOWEST = -709.0  # at lower x, 2^n is not a normal number, and exp(x) becomes zero
_FAR = _profiles.UNDERFLOW**2  # a² beyond which e^{−a} times a polynomial underflows


@inlined
def exponentials(x: Float64, powers: Float64, bits: np.ndarray, size: int) -> None:
    """Compute exp(x) in place for x ≤ 0, with an error of 1.6e-16, vectorized (unlike the C library).

    `powers` is scratch memory, and `bits` is a view of it as integers.
    """
    c = _TAYLOR
    for j in range(size):
        x[j] = max(x[j], _LOWEST)
        powers[j] = x[j] * _PER_OCTAVE + _ROUNDER
    for j in range(size):
        n = powers[j] - _ROUNDER
        r = (x[j] - n * _LN2[0]) - n * _LN2[1]
        r2 = r * r
        even = c[2] + r2 * (c[4] + r2 * (c[6] + r2 * (c[8] + r2 * (c[10] + r2 * c[12]))))
        odd = c[3] + r2 * (c[5] + r2 * (c[7] + r2 * (c[9] + r2 * (c[11] + r2 * c[13]))))
        x[j] = 1.0 + (r + r2 * (even + r * odd))
    for j in range(size):
        bits[j] = ((bits[j] + 1023) & 0x7FF) << 52  # 2^n
    for j in range(size):
        x[j] *= powers[j]


@compiled
def apply_profile(T: Float64, profile: int, out: np.ndarray) -> None:
    """Write φ(a) to `out`; the tile T holds a², or a for the ℓ1 norm.

    In float32, values below TINY become 0: many processors calculate much more slowly with subnormal numbers.
    """
    n, m = T.shape
    least = TINY if out.itemsize == 4 else 0.0
    x, powers = np.empty(CHUNK), np.empty(CHUNK)
    bits = powers.view(np.int64)
    for i in range(n):
        for start in range(0, m, CHUNK):
            row = T[i, start : start + CHUNK]
            size = len(row)
            if profile == _ABSOLUTE:
                for j in range(size):
                    x[j] = -row[j]
            elif profile == _GAUSSIAN:
                for j in range(size):
                    x[j] = -0.5 * row[j]
            else:
                for j in range(size):
                    x[j] = -math.sqrt(row[j])
            exponentials(x, powers, bits, size)
            # Where exp underflows, a² may be infinite, and 0 · ∞ would be NaN.
            if profile == _MATERN_3_2:
                for j in range(size):
                    x[j] *= 1.0 + math.sqrt(min(row[j], _FAR))
            elif profile == _MATERN_5_2:
                for j in range(size):
                    square = min(row[j], _FAR)
                    x[j] *= 1.0 + math.sqrt(square) + square * (1.0 / 3.0)
            for j in range(size):
                out[i, start + j] = x[j] if x[j] >= least else 0.0


@compiled
def squares(
    T: Float64, x_squares: Float64, y_squares: Float64, rounding: float, alpha: float, beta: float, reach: float
) -> int:
    """Replace inner products by ‖x‖² + ‖y‖² − 2⟨x, y⟩, in place; return how many are marked as inaccurate.

    See :func:`ntkit.kernels.distances.inaccurate`.
    """
    n, m = T.shape
    count = 0
    for i in range(n):
        row = T[i]
        for j in range(m):
            total = x_squares[i] + y_squares[j]
            square = total - 2.0 * row[j]
            error = rounding * total
            close = not (square - EPSILON * error > reach)
            lost = not (error <= alpha + beta * math.sqrt(max(square, 0.0)))
            bad = close & (lost | (square <= EPSILON * error))
            count += bad
            row[j] = INACCURATE if bad else square
    return count


# "reassoc" allows the compiler to sum several columns at a time.
@compiled(fastmath=("contract", "reassoc"))
def recompute(T: Float64, X: Float64, Y: Float64, scale: float) -> None:
    """Recompute the marked entries of a tile as (scale · ‖x − y‖)²."""
    n, m = T.shape
    for i in range(n):
        for j in range(m):
            if T[i, j] == INACCURATE:
                total = 0.0
                for k in range(X.shape[1]):
                    difference = (X[i, k] - Y[j, k]) * scale
                    total += difference * difference
                T[i, j] = total


@compiled
def recompute_sparse(
    T: Float64,
    x_data: Float64,
    x_columns: np.ndarray,
    x_starts: np.ndarray,
    y_data: Float64,
    y_columns: np.ndarray,
    y_starts: np.ndarray,
    scale: float,
    absolute: bool,
) -> None:
    """Recompute the marked entries of a tile of CSR rows with sorted columns.

    The result is (scale · ‖x − y‖)², or scale · ‖x − y‖₁ if `absolute`.
    """
    n, m = T.shape
    for i in range(n):
        for j in range(m):
            if T[i, j] != INACCURATE:
                continue
            p, q = x_starts[i], y_starts[j]
            total = 0.0
            while p < x_starts[i + 1] or q < y_starts[j + 1]:
                x_first = q == y_starts[j + 1] or (p < x_starts[i + 1] and x_columns[p] <= y_columns[q])
                y_first = p == x_starts[i + 1] or (q < y_starts[j + 1] and y_columns[q] <= x_columns[p])
                difference = 0.0
                if x_first:
                    difference += x_data[p]
                if y_first:
                    difference -= y_data[q]
                p += x_first
                q += y_first
                difference *= scale
                total += abs(difference) if absolute else difference * difference
            T[i, j] = total


@compiled
def differences(Xt: Float64, Yt: Float64, scale: float, absolute: bool, T: Float64) -> None:
    """Fill a tile with (scale · ‖x − y‖)², or with scale · ‖x − y‖₁ if `absolute`.

    `Xt` and `Yt` are transposed: they have a row for each column of the data, padded with rows of zeros to a multiple
    of 4. Processing four rows at a time reduces the passes over the tile.
    """
    n, m = T.shape
    for i in range(n):
        for start in range(0, m, CHUNK):
            row = T[i, start : start + CHUNK]
            row[:] = 0.0
            for k in range(0, len(Xt), 4):
                x0, x1, x2, x3 = Xt[k, i], Xt[k + 1, i], Xt[k + 2, i], Xt[k + 3, i]
                y0, y1 = Yt[k, start : start + CHUNK], Yt[k + 1, start : start + CHUNK]
                y2, y3 = Yt[k + 2, start : start + CHUNK], Yt[k + 3, start : start + CHUNK]
                if absolute:
                    for j in range(len(row)):
                        first, second = abs(x0 - y0[j]) + abs(x1 - y1[j]), abs(x2 - y2[j]) + abs(x3 - y3[j])
                        row[j] += (first + second) * scale
                else:
                    for j in range(len(row)):
                        z0, z1 = (x0 - y0[j]) * scale, (x1 - y1[j]) * scale
                        z2, z3 = (x2 - y2[j]) * scale, (x3 - y3[j]) * scale
                        row[j] += (z0 * z0 + z1 * z1) + (z2 * z2 + z3 * z3)


@compiled(fastmath=("contract", "reassoc"))
def signed_sums(Xt: Float64, Yt: Float64, W: Float64, out: Float64) -> None:
    """Compute out[i, k] = Σ_j W[i, j] sign(x_ik − y_jk); `Xt` and `Yt` have a row for each column of the data."""
    n, m = W.shape
    for i in range(n):
        for k in range(len(Xt)):
            x, total = Xt[k, i], 0.0
            for j in range(m):
                total += W[i, j] if x > Yt[k, j] else (-W[i, j] if x < Yt[k, j] else 0.0)
            out[i, k] = total


@compiled(fastmath=("contract", "reassoc"))
def absolute_sums(Zt: Float64, W: Float64, out: Float64) -> None:
    """Add Σ_ij W[i, j] |z_ik − z_jk| to out[k]."""
    n = len(W)
    for i in range(n):
        for k in range(len(Zt)):
            z, total = Zt[k, i], 0.0
            for j in range(n):
                total += W[i, j] * abs(z - Zt[k, j])
            out[k] += total


# The exponential in float32, for predictions. The polynomial of degree 7 has an error of 1e-8. ln 2 is split into two
# numbers, and the first one ends in 15 zero bits.
_LN2_SINGLE = (np.float32(0.693359375), np.float32(-2.12194440e-4))
_TAYLOR_SINGLE = tuple(np.float32(1.0 / math.factorial(k)) for k in range(8))
_ROUNDER_SINGLE = np.float32(1.5 * 2.0**23)
_LOWEST_SINGLE = np.float32(-87.0)
_PER_OCTAVE_SINGLE = np.float32(1.0 / math.log(2.0))
_ONE, _THIRD, _HALF = np.float32(1.0), np.float32(1.0 / 3.0), np.float32(-0.5)


@inlined
def exponentials_single(x: np.ndarray, powers: np.ndarray, bits: np.ndarray, size: int) -> None:
    """As :func:`exponentials`, in float32, with an error of 1e-7."""
    c = _TAYLOR_SINGLE
    for j in range(size):
        x[j] = max(x[j], _LOWEST_SINGLE)
        powers[j] = x[j] * _PER_OCTAVE_SINGLE + _ROUNDER_SINGLE
    for j in range(size):
        n = powers[j] - _ROUNDER_SINGLE
        r = (x[j] - n * _LN2_SINGLE[0]) - n * _LN2_SINGLE[1]
        p = c[2] + r * (c[3] + r * (c[4] + r * (c[5] + r * (c[6] + r * c[7]))))
        x[j] = _ONE + (r + r * r * p)
    for j in range(size):
        bits[j] = ((bits[j] + np.int32(127)) & np.int32(0xFF)) << np.int32(23)  # 2^n
    for j in range(size):
        x[j] *= powers[j]


@compiled(fastmath=("contract", "reassoc"))
def weighted_sums(X: np.ndarray, Yt: np.ndarray, profile: int, W: np.ndarray, out: np.ndarray) -> None:
    """Compute out[i, k] = Σ_j W[k, j] φ(‖x_i − y_j‖) in float32, without forming the kernel matrix.

    `Yt` has a row for each column of the data. Rows are already scaled, so distances equal a. Sums of CHUNK terms in
    float32 are accumulated in float64.
    """
    n, d = X.shape
    m = Yt.shape[1]
    a, x, powers = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    bits = powers.view(np.int32)
    for i in range(n):
        out[i] = 0.0
        for start in range(0, m, CHUNK):
            size = min(CHUNK, m - start)
            a[:size] = np.float32(0.0)
            for k in range(d):
                value, row = X[i, k], Yt[k, start : start + size]
                if profile == _ABSOLUTE:
                    for j in range(size):
                        a[j] += abs(value - row[j])
                else:
                    for j in range(size):
                        a[j] += (value - row[j]) * (value - row[j])
            if profile == _ABSOLUTE:
                for j in range(size):
                    x[j] = -a[j]
            elif profile == _GAUSSIAN:
                for j in range(size):
                    x[j] = _HALF * a[j]
            else:
                for j in range(size):
                    a[j] = math.sqrt(a[j])
                    x[j] = -a[j]
            exponentials_single(x, powers, bits, size)
            if profile == _MATERN_3_2:
                for j in range(size):
                    x[j] *= _ONE + a[j]
            elif profile == _MATERN_5_2:
                for j in range(size):
                    x[j] *= _ONE + a[j] + a[j] * a[j] * _THIRD
            for k in range(len(W)):
                weights, total = W[k, start : start + size], np.float32(0.0)
                for j in range(size):
                    total += weights[j] * x[j]
                out[i, k] += total
