"""Gradients of weighted sums of distance kernels."""

from __future__ import annotations

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches, run_on_threads
from ntkit.kernels._profiles import EXPONENTIAL
from ntkit.kernels.distances import LOST, SLICE, DistanceKernel, origin_of, rounding


def gradient_l2(kernel: DistanceKernel, x: Array, y: Array, coefficients: Array) -> Array:
    """Compute Σ_j w_j (y_j − x) with w_j = c_j s² (−φ′(a)/a), as W(Y − o) − (Σ W)(X − o), o a point among the rows.

    Where this formula loses digits, the sum is computed directly. The estimated error is
    ε (‖x − o‖ Σ|w| + Σ|w| ‖y − o‖), compared with Σ|w| ‖x − y‖.
    """
    xp = _array.namespace(x)
    # The relative error of e^{−a}/a is the relative error of a, which needs differences; for e^{−a} it is the absolute
    # error of a.
    a = kernel.distances(x, y, differences=kernel.function is EXPONENTIAL)
    slopes = kernel.slope(a) * kernel.scale * kernel.scale
    origin = origin_of(y)
    x0, y0 = x - origin, y - origin
    x_sizes, y_sizes = (xp.sqrt(xp.sum(Z * Z, axis=1)) for Z in (x0, y0))
    parts = []
    for k in range(coefficients.shape[1]):
        weights = slopes * coefficients[:, k][None, :]
        sizes = xp.abs(weights)
        values = xp.matmul(weights, y0) - xp.sum(weights, axis=1)[:, None] * x0
        errors = rounding(y.shape[0]) * (x_sizes * xp.sum(sizes, axis=1) + xp.matmul(sizes, y_sizes))
        (lost,) = xp.nonzero(~(errors * kernel.scale <= LOST * xp.sum(sizes * a, axis=1)))
        for i in range(lost.shape[0]):
            row = int(lost[i])
            values[row, :] = _weighted_differences(weights[row, :], x[row, :], y)
        parts.append(values)
    return xp.stack(parts, axis=1)


def gradient_l1(kernel: DistanceKernel, x: Array, y: Array, coefficients: Array) -> Array:
    """Compute −s Σ_j c_j k(x, y_j) sign(x_i − y_ji), one column i at a time."""
    xp = _array.namespace(x)
    values = kernel.profile(kernel.distances(x, y)) * -kernel.scale
    if _array.is_numpy(x):
        return _gradient_l1_on_host(values, x, y, coefficients)
    signs = (xp.sign(x[:, i][:, None] - y[:, i][None, :]) for i in range(x.shape[1]))
    return xp.stack([xp.matmul(values * sign, coefficients) for sign in signs], axis=2)


def _gradient_l1_on_host(values: Array, x: Array, y: Array, coefficients: Array) -> Array:
    """As :func:`gradient_l1`, in compiled code on threads."""
    import numpy as np

    from ntkit.kernels._distances_numba import signed_sums

    xt, yt = np.ascontiguousarray(x.T), np.ascontiguousarray(y.T)
    out = np.empty((len(x), coefficients.shape[1], x.shape[1]))

    def fill(start: int) -> None:
        rows = slice(start, start + 64)
        for k in range(coefficients.shape[1]):
            signed_sums(xt[:, rows], yt, values[rows] * coefficients[:, k], out[rows, k])

    run_on_threads(fill, range(0, len(x), 64))
    return out


def _weighted_differences(weights: Array, x: Array, y: Array) -> Array:
    """Compute Σ_j w_j (y_j − x) for one row x, in slices that bound the memory."""
    xp = _array.namespace(y)
    slices = row_batches(y.shape[0], 0, batch_size=max(1, SLICE // y.shape[1]))
    return sum(xp.matmul(weights[part], y[part, :] - x[None, :]) for part in slices)
