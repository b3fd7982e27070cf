"""Convolutional layers applied to pixels, one pixel at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from tests.reference.kernels import pair

from ntkit.networks import AvgPool, Conv

Place = tuple[int, int]


def windows(layer: Conv | AvgPool, height: int, width: int) -> dict[Place, list[Place | None]]:
    """Pixels in the window of every output, row by row; None outside of the image (XLA's SAME and VALID)."""
    sizes = pair(layer.kernel_size if isinstance(layer, Conv) else layer.size)
    steps = pair((layer.stride if isinstance(layer, Conv) else layer.stride or layer.size) or 1)
    same = isinstance(layer, Conv) and layer.padding == "same"
    rows, cols = (list(_axis(*axis, same)) for axis in zip((height, width), sizes, steps, strict=True))
    return {
        (i, j): [(y, z) if y is not None and z is not None else None for y in rows[i] for z in cols[j]]
        for i in range(len(rows))
        for j in range(len(cols))
    }


def _axis(size: int, q: int, stride: int, same: bool) -> Iterator[list[int | None]]:
    n_out = math.ceil(size / stride) if same else (size - q) // stride + 1
    before = max((n_out - 1) * stride + q - size, 0) // 2 if same else 0
    for o in range(n_out):
        places = [o * stride - before + a for a in range(q)]
        yield [p if 0 <= p < size else None for p in places]


def patches(x: np.ndarray, layer: Conv) -> np.ndarray:
    """Direct sum of the pixels of each patch of one image, over the root of their number."""
    return _each(x, layer, lambda pixels: np.concatenate(pixels) / math.sqrt(len(pixels)))


def mix_patches(x: np.ndarray, signs: np.ndarray, layer: Conv) -> np.ndarray:
    """[D_1 … D_{q²}] times the direct sum, D_o a diagonal matrix of signs."""
    matrix = np.hstack([np.diag(d) for d in signs.reshape(-1, signs.shape[-1])])
    return _each(x, layer, lambda pixels: matrix @ np.concatenate(pixels) / math.sqrt(len(pixels)))


def average(x: np.ndarray, layer: Conv | AvgPool) -> np.ndarray:
    """Mean over each window."""
    return _each(x, layer, lambda pixels: sum(pixels) / len(pixels))


def _each(x: np.ndarray, layer: Conv | AvgPool, function) -> np.ndarray:
    zero = np.zeros(x.shape[2])
    places = windows(layer, *x.shape[:2])
    values = {o: function([zero if p is None else x[p] for p in window]) for o, window in places.items()}
    height, width = (1 + max(o[axis] for o in places) for axis in range(2))
    return np.array([[values[i, j] for j in range(width)] for i in range(height)])
