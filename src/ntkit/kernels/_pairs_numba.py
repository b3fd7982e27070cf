"""Compiled exact kernels of pairs of images, for chains of stride-1 convolutions and piecewise linear activations.

A convolution moves both pixels of a pair together, and an activation acts on each pair of pixels separately. So until
pixels are pooled, pairs of pixels with different displacements (i′ − i, j′ − j) do not interact. Each displacement is
therefore propagated through all layers separately, as one (h − |di|) × (w − |dj|) field that fits in the first-level
cache, instead of a (h, w, h, w) array per layer. This takes O(hw) memory per pair of images and no traffic beyond the
cache.

Layout: for a horizontal displacement, the rows of both images are cut to their overlap and stored `stride` apart, with
zeros between them. A vertical displacement is then an offset of whole rows. Filters and activations treat such a field
as one long vector. The zeros between rows and the `front` zeros before the field provide the zero padding of the
convolutions.
"""

from __future__ import annotations

import numpy as np

from ntkit._compiled import compiled
from ntkit.kernels._numba import Float64, arc_cosine_pair
from ntkit.networks.activations import SAME

CONV, ACTIVATION = 0, 1
# Columns of `ops`: kind of layer, filter size, zeros above and to the left, zeros below and to the right, whether the
# layer is trained, image size after the layer
KIND, Q_H, Q_W, BEFORE_H, BEFORE_W, AFTER_H, AFTER_W, TRAINED, H_OUT, W_OUT = range(10)
N_COLUMNS = 10
# Columns of `factors`: weight_std²/q² of a convolution or gain of an activation; weight w of an activation; bias_std²
SCALE, MIX, BIAS = range(3)
N_FACTORS = 3
SD, INVERSE = 0, 1  # indices of the statistics: standard deviation at a pixel, and its inverse (0 if it is 0)


@compiled
def segment(
    pairs: np.ndarray,
    X: Float64,
    Y: Float64,
    nngp_in: Float64,
    ntk_in: Float64,
    x_stats: Float64,
    y_stats: Float64,
    ops: np.ndarray,
    factors: Float64,
    reach: np.ndarray,
    window: np.ndarray,
    nngp_out: Float64,
    ntk_out: Float64,
) -> None:
    """Propagate pairs of images through convolutions and activations and sum the result over windows.

    Parameters
    ----------
    pairs : (p, 2) int
        Rows of X and Y that form a pair.
    X, Y : (n, channels, h, w)
        Images, for the first segment of a network; without rows for later segments.
    nngp_in, ntk_in : (p, h, w, h, w)
        Σ and Θ of the pairs, for later segments; without rows for the first.
    x_stats, y_stats : (n, activations, 2, h, w)
        Standard deviation and its inverse at every activation, zero outside the image.
    ops, factors : (n_ops, N_COLUMNS) int, (n_ops, N_FACTORS) float
        The layers, in the columns named above.
    reach : (2,) int
        Largest vertical and horizontal displacement needed at the end of the segment.
    window : (2,) int
        Size of the windows over which the result is summed; windows do not overlap.
    nngp_out, ntk_out : (p, h′, w′, h′, w′)
        Sums over pairs of windows are added to these arrays, which the caller sets to zero. `ntk_out` has no rows if
        Θ is not computed.
    """
    from_images = len(X) > 0
    h, w = x_stats.shape[3], x_stats.shape[4]
    whole = window[0] == _end(ops, H_OUT, h) and window[1] == _end(ops, W_OUT, w)
    pad_h, pad_w = _padding(ops)
    wide = w + pad_w
    front = pad_h * wide + pad_w
    size = front + (h + pad_h) * wide + max(pad_w, w) + 1
    nngp, ntk, scratch = np.zeros(size), np.zeros(size), np.zeros(size)
    channels = X.shape[1] if from_images else 0
    x_cut, y_cut = np.empty((channels, h * wide)), np.empty((channels, h * wide))
    x_sd, y_sd = (np.empty((x_stats.shape[1], 2, h * wide)), np.empty((x_stats.shape[1], 2, h * wide)))
    for p in range(len(pairs)):
        a, b = pairs[p]
        for dj in range(-reach[1], reach[1] + 1):
            stride = w - abs(dj) + pad_w
            if from_images:
                _cut_all(X[a], max(0, -dj), stride, pad_w, x_cut)
                _cut_all(Y[b], max(0, dj), stride, pad_w, y_cut)
            for s in range(2):
                _cut_all(x_stats[a, :, s], max(0, -dj), stride, pad_w, x_sd[:, s])
                _cut_all(y_stats[b, :, s], max(0, dj), stride, pad_w, y_sd[:, s])
            for di in range(-reach[0], reach[0] + 1):
                x_off, y_off = max(0, -di) * stride, max(0, di) * stride
                n = (h - abs(di)) * stride
                if from_images:
                    _inner_products(x_cut, y_cut, x_off, y_off, nngp[front : front + n])
                    ntk[front : front + n] = 0.0
                else:
                    _gather(nngp_in[p], di, dj, stride, nngp, front)
                    if len(ntk_out) > 0:
                        _gather(ntk_in[p], di, dj, stride, ntk, front)
                n = _layers(
                    nngp, ntk, scratch, front, n, stride, ops, factors, x_sd, y_sd, x_off, y_off, h, dj,
                    from_images, len(ntk_out) > 0,
                )  # fmt: skip
                _add_windows(nngp, front, n, stride, di, dj, window, whole, nngp_out[p])
                if len(ntk_out) > 0:
                    _add_windows(ntk, front, n, stride, di, dj, window, whole, ntk_out[p])


@compiled
def _layers(nngp, ntk, scratch, front, n, stride, ops, factors, x_sd, y_sd, x_off, y_off, h, dj, fresh, want_ntk):
    """Propagate one field through all layers; return its new length. `fresh` means that Θ is still zero."""
    activation = 0
    for op in range(len(ops)):
        if ops[op, KIND] == ACTIVATION:
            _activate(
                nngp[front : front + n],
                ntk[front : front + n],
                scratch[front : front + n],
                x_sd[activation, SD, x_off : x_off + n],
                y_sd[activation, SD, y_off : y_off + n],
                x_sd[activation, INVERSE, x_off : x_off + n],
                y_sd[activation, INVERSE, y_off : y_off + n],
                factors[op, SCALE],
                factors[op, MIX],
                want_ntk and not fresh,
            )
            activation += 1
            continue
        n_out = n - (h - ops[op, H_OUT]) * stride
        if want_ntk and ops[op, TRAINED]:
            ntk[front : front + n] += nngp[front : front + n]
            fresh = False
        if want_ntk and not fresh:
            _filter(ntk, scratch, front, n, n_out, stride, ops[op], factors[op, SCALE])
        _filter(nngp, scratch, front, n, n_out, stride, ops[op], factors[op, SCALE])
        n, h = n_out, ops[op, H_OUT]
        if factors[op, BIAS] > 0.0:
            _add(nngp[front : front + n], factors[op, BIAS])
            if want_ntk and ops[op, TRAINED]:
                _add(ntk[front : front + n], factors[op, BIAS])
        if op + 1 == len(ops) or ops[op + 1, KIND] == CONV:
            # No activation follows that would clear the values which the filter wrote between the rows.
            _clear(nngp, front, n, stride, ops[op, W_OUT] - abs(dj))
            _clear(ntk, front, n, stride, ops[op, W_OUT] - abs(dj))
    return n


@compiled
def _activate(nngp, ntk, scales, x_sd, y_sd, x_inverse, y_inverse, gain, mix, want_ntk):
    """Σ → s · gain · (w t + (1 − w) κ₁(t)), Θ → Θ · gain · (w + (1 − w) κ₀(t)), t = Σ/s, s = sd(x) sd(y)."""
    # Three short loops, because LLVM vectorizes a loop only if few pairs of arrays could overlap.
    for j in range(len(nngp)):
        scales[j] = x_sd[j] * y_sd[j]
    for j in range(len(nngp)):
        nngp[j] *= x_inverse[j] * y_inverse[j]
    if want_ntk:
        for j in range(len(nngp)):
            t = nngp[j]
            gap = 1.0 - abs(t)
            k0, k1, _ = arc_cosine_pair(gap if gap > SAME else 0.0, t < 0.0)
            nngp[j] = gain * scales[j] * (mix * t + (1.0 - mix) * k1)
            slope = gain * (mix + (1.0 - mix) * k0)
            ntk[j] *= slope if scales[j] > 0.0 else 0.0
    else:
        for j in range(len(nngp)):
            t = nngp[j]
            gap = 1.0 - abs(t)
            _, k1, _ = arc_cosine_pair(gap if gap > SAME else 0.0, t < 0.0)
            nngp[j] = gain * scales[j] * (mix * t + (1.0 - mix) * k1)


@compiled
def _filter(field, scratch, front, n, n_out, stride, op, factor):
    """Apply a box filter of q_h × q_w pixels, times `factor`; columns first, to keep the zeros between rows."""
    field[front + n : front + n + op[AFTER_H] * stride] = 0.0
    up = front - op[BEFORE_H] * stride
    left = front - op[BEFORE_W]
    _slide(field, up, stride, op[Q_H], 1.0, scratch[front : front + n_out])
    scratch[front + n_out : front + n_out + op[Q_W]] = 0.0
    _slide(scratch, left, 1, op[Q_W], factor, field[front : front + n_out])


@compiled
def _add(field, value):
    """Add a number to a field; a separate function, because the calling code is faster without this loop."""
    for j in range(len(field)):
        field[j] += value


@compiled
def _slide(field, start, step, q, factor, out):
    """Compute out[j] = factor · Σ_{a<q} field[start + a · step + j]."""
    n = len(out)
    if q == 3:
        first, last = field[start : start + n], field[start + 2 * step : start + 2 * step + n]
        middle = field[start + step : start + step + n]
        for j in range(n):
            out[j] = factor * (first[j] + middle[j] + last[j])
        return
    out[:] = 0.0
    for a in range(q):
        shifted = field[start + a * step : start + a * step + n]
        for j in range(n):
            out[j] += factor * shifted[j]


@compiled
def _inner_products(x, y, x_off, y_off, out):
    """Compute Σ at the input: inner products over channels."""
    out[:] = 0.0
    for k in range(len(x)):
        a, b = x[k, x_off : x_off + len(out)], y[k, y_off : y_off + len(out)]
        for j in range(len(out)):
            out[j] += a[j] * b[j]


@compiled
def _cut_all(planes, first, stride, pad, out):
    """Copy the columns of images from `first` on, with rows `stride` apart that end in `pad` zeros."""
    width = stride - pad
    for k in range(len(planes)):
        for i in range(planes.shape[1]):
            for j in range(width):
                out[k, i * stride + j] = planes[k, i, first + j]
            out[k, i * stride + width : (i + 1) * stride] = 0.0


@compiled
def _gather(cov, di, dj, stride, out, front):
    """Copy the field of one displacement from an array of all pairs of pixels."""
    h, w = cov.shape[0], cov.shape[1]
    i0, j0 = max(0, -di), max(0, -dj)
    width = w - abs(dj)
    for i in range(h - abs(di)):
        row = front + i * stride
        for j in range(width):
            out[row + j] = cov[i0 + i, j0 + j, i0 + i + di, j0 + j + dj]
        out[row + width : row + stride] = 0.0


@compiled
def _clear(field, front, n, stride, width):
    for row in range(front, front + n, stride):
        field[row + width : row + stride] = 0.0


@compiled(fastmath={"reassoc", "contract"})  # "reassoc" allows a vectorized sum
def _total(field):
    total = 0.0
    for value in field:
        total += value
    return total


@compiled
def _add_windows(field, front, n, stride, di, dj, window, whole, out):
    """Add a field to the sums over pairs of windows; positions beyond the last whole window are ignored."""
    h_out, w_out = out.shape[0], out.shape[1]
    if whole:  # one window that covers the image
        out[0, 0, 0, 0] += _total(field[front : front + n])
        return
    i0, j0 = max(0, -di), max(0, -dj)
    for r in range(n // stride):
        i, i2 = (i0 + r) // window[0], (i0 + r + di) // window[0]
        if i >= h_out or i2 >= h_out:
            continue
        for s in range(stride):
            j, j2 = (j0 + s) // window[1], (j0 + s + dj) // window[1]
            if j < w_out and j2 < w_out:
                out[i, j, i2, j2] += field[front + r * stride + s]


@compiled
def _end(ops, column, size):
    """Return the height or width at the end of the segment."""
    return ops[len(ops) - 1, column] if len(ops) > 0 else size


@compiled
def _padding(ops):
    """Return the numbers of zero rows and zero columns that the filters need around a field."""
    pad_h, pad_w = 0, 0
    for op in ops:
        pad_h = max(pad_h, op[BEFORE_H], op[AFTER_H])
        pad_w = max(pad_w, op[BEFORE_W], op[AFTER_W])
    return pad_h, pad_w
