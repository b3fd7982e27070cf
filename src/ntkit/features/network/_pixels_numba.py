"""Compiled sums over patches, with one pass over the output; a row of output pixels stays in cache."""

from __future__ import annotations

import numpy as np

from ntkit._batching import run_on_threads
from ntkit._compiled import compiled
from ntkit.networks.layers import Window


def mix_patches(x: np.ndarray, signs: np.ndarray, rows: Window, cols: Window, scale: float) -> np.ndarray:
    """See :func:`ntkit.features.network.pixels.mix_patches`."""
    out = np.empty((x.shape[0], rows.n_out, cols.n_out, x.shape[3]), x.dtype)
    weights = (scale * signs).astype(x.dtype)
    x = np.ascontiguousarray(x)

    def run(number: int) -> None:
        _mix(x[number], weights, out[number], rows.stride, rows.before, cols.stride, cols.before)

    run_on_threads(run, range(x.shape[0]))
    return out


@compiled
def _mix(x, weights, out, down, above, right, left):
    height, width, n_channels = x.shape
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(n_channels):
                out[i, j, k] = 0
            for a in range(weights.shape[0]):
                y = i * down - above + a
                if y < 0 or y >= height:
                    continue
                for b in range(weights.shape[1]):
                    z = j * right - left + b
                    if z < 0 or z >= width:
                        continue
                    for k in range(n_channels):
                        out[i, j, k] += weights[a, b, k] * x[y, z, k]
