"""Compiled counterparts of the array-API code in :mod:`ntkit.networks.activations` and :mod:`ntkit.kernels.chain`.

Everything is float64: near t = ±1 the derivative of κ₀ is infinite, so a cosine rounded to float32 would cost four
digits of the kernel. In a trial, a float32 recursion saved only a quarter of the total time, which is not worth a
second version.

``fastmath={"contract"}`` only allows fused multiply-adds. Division follows IEEE rules and raises no exceptions.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from ntkit._compiled import compiled
from ntkit.kernels.chain import NEAR_GAP

Float64 = np.ndarray[Any, np.dtype[np.float64]]
inlined = numba.njit(inline="always", error_model="numpy", fastmath={"contract"})

CHUNK = 1024  # pairs at a time, so that their state (4 arrays, 32 KiB) stays in the first-level cache for all layers


# arccos(1 − x)/√(2x) on [0, 1] as a polynomial of degree 18 in u = 2x − 1 (Chebyshev interpolation, error 2e-17). It
# was computed with 60 digits: interpolation in float64 is 100 times less accurate, and 1 − κ₁ inherits the relative
# error of arccos. Even and odd powers are separate, highest first: LLVM unrolls and vectorizes two short Horner chains,
# but not one long chain.
_EVEN = (
    1.294087904918515e-11,
    7.597606552881001e-11,
    9.606986257778525e-10,
    1.0699801762268182e-08,
    1.2584618618630428e-07,
    1.5669625983394028e-06,
    2.134555260606702e-05,
    0.0003408637234163692,
    0.007798902238973735,
    1.0471975511965979,
)
_ODD = (
    4.207679353989645e-11,
    2.514428331625947e-10,
    3.2125465398641487e-09,
    3.646596273974707e-08,
    4.402075904513191e-07,
    5.701781075076665e-06,
    8.302317819140265e-05,
    0.001519668539582746,
    0.05375149359132718,
)


@inlined
def arccos1m(x: float) -> float:
    """Compute arccos(1 − x) for 0 ≤ x ≤ 1, without the cancellation in 1 − x."""
    u = 2.0 * x - 1.0
    u2 = u * u
    even = _EVEN[0]
    for k in range(1, len(_EVEN)):
        even = even * u2 + _EVEN[k]
    odd = _ODD[0]
    for k in range(1, len(_ODD)):
        odd = odd * u2 + _ODD[k]
    return math.sqrt(2.0 * x) * (even + u * odd)


@inlined
def arc_cosine_pair(x: float, negative: bool) -> tuple[float, float, float]:
    """Compute κ₀(t), κ₁(t) and 1 − κ₁(t) for t = ±(1 − x), 0 ≤ x ≤ 1.

    With θ = arccos|t| and q = (sin θ − θ cos θ)/π:  κ₁ = max(t, 0) + q,  κ₀ = 1 − θ/π or θ/π.
    """
    theta = arccos1m(x)
    q = (math.sqrt(x * (2.0 - x)) - theta * (1.0 - x)) * (1.0 / math.pi)
    k0 = theta * (1.0 / math.pi)
    k0 = k0 if negative else 1.0 - k0
    k1 = q if negative else (1.0 - x) + q
    gap = (1.0 if negative else x) - q
    return k0, k1, gap


@compiled
def near_pairs(T: Float64) -> np.ndarray:
    """Return the indices, of shape (k, 2) and in row order, of the cosines within 1e-8 of ±1."""
    n, m = T.shape
    count = 0
    for i in range(n):
        for j in range(m):
            count += 1.0 - abs(T[i, j]) < NEAR_GAP
    near = np.empty((count, 2), np.int64)
    if count == 0:
        return near
    k = 0
    for i in range(n):
        for j in range(m):
            if 1.0 - abs(T[i, j]) < NEAR_GAP:
                near[k, 0] = i
                near[k, 1] = j
                k += 1
    return near


@compiled
def _add_biases(sigma: Float64, x: Float64, theta: Float64, size: int, x_row: Float64, y_rows: Float64) -> None:
    """Apply the biases of a layer in place; see :func:`ntkit.kernels.chain._with_biases`."""
    alpha, beta, upsilon = y_rows[0], y_rows[1], y_rows[2]
    for j in range(size):
        scale = x_row[0] * alpha[j]
        upper = scale * (2.0 - x[j] if sigma[j] < 0.0 else x[j])
        upper += 0.5 * ((x_row[0] - alpha[j]) ** 2 + (x_row[1] - beta[j]) ** 2)
        t = scale * sigma[j] + x_row[1] * beta[j]
        sigma[j] = t
        x[j] = 1.0 + t if t < 0.0 else min(max(upper, 0.0), 1.0)
        theta[j] = scale * theta[j] + x_row[2] * upsilon[j]


@compiled
def chain(
    T: Float64,
    near: np.ndarray,
    near_gap: Float64,
    mixes: Float64,
    trained: Float64,
    x_table: Float64,
    y_table: Float64,
    x_scale: Float64,
    y_scale: Float64,
    nngp: np.ndarray,
    ntk: np.ndarray,
) -> None:
    """Compute the kernels of a chain of Dense layers and positively homogeneous activations from cosines.

    See :func:`ntkit.kernels.chain.recursion`. `near` lists the pairs for which `near_gap` gives 1 − |t| more
    accurately. With biases, the tables of shape (n, layers, 3) and (layers, 3, m) hold α, β and √υ/sd of every layer;
    without biases they are empty. The results are written to `nngp` and `ntk`, except to empty arrays.
    """
    n, m = T.shape
    biased = x_table.size > 0
    # x = 1 − |Σ|, sigma = Σ, theta = K
    x = np.empty(CHUNK)
    sigma = np.empty(CHUNK)
    theta = np.empty(CHUNK)
    k_near = 0
    for i in range(n):
        for start in range(0, m, CHUNK):
            size = min(CHUNK, m - start)
            for j in range(size):
                t = T[i, start + j]
                sigma[j] = t
                x[j] = max(1.0 - abs(t), 0.0)
                theta[j] = trained[0] * t
            while k_near < len(near) and near[k_near, 0] == i and near[k_near, 1] < start + size:
                x[near[k_near, 1] - start] = near_gap[k_near]
                k_near += 1
            if biased:
                _add_biases(sigma, x, theta, size, x_table[i, 0], y_table[0, :, start : start + size])
            for layer in range(len(mixes)):
                mix = mixes[layer]
                train = trained[layer + 1]
                for j in range(size):
                    negative = sigma[j] < 0.0
                    k0, k1, gap = arc_cosine_pair(x[j], negative)
                    t = x[j] - 1.0 if negative else 1.0 - x[j]
                    t_gap = 2.0 - x[j] if negative else x[j]
                    forward = mix * t + (1.0 - mix) * k1
                    gap = mix * t_gap + (1.0 - mix) * gap
                    theta[j] = theta[j] * (mix + (1.0 - mix) * k0) + train * forward
                    sigma[j] = forward
                    x[j] = 1.0 + forward if forward < 0.0 else max(gap, 0.0)
                if biased:
                    _add_biases(
                        sigma, x, theta, size, x_table[i, layer + 1], y_table[layer + 1, :, start : start + size]
                    )
            if nngp.size > 0:
                for j in range(size):
                    nngp[i, start + j] = sigma[j] * x_scale[i] * y_scale[start + j]
            if ntk.size > 0:
                for j in range(size):
                    ntk[i, start + j] = theta[j] * x_scale[i] * y_scale[start + j]
