"""Dual activations, read off the kernels of the smallest networks that have them."""

from __future__ import annotations

import array_api_strict
import numpy as np
from tests.conftest import as_numpy

from ntkit import networks as nn
from ntkit.kernels import network_kernel

WAYS = {
    "vectors": lambda X: X,
    "vectors in array-API code": array_api_strict.asarray,
    "pixels": lambda X: X[:, None, None, :],
    "pixels in array-API code": lambda X: array_api_strict.asarray(X[:, None, None, :]),
}
"""Kinds of input that are computed by different code; every row is a vector or an image of one pixel."""


def dual_of_rows(layer: nn.Activation, X: np.ndarray, Y: np.ndarray, way: str = "vectors") -> tuple[np.ndarray, ...]:
    """Σ = E[σ(u)σ(v)] and Θ = ⟨x, y⟩ E[σ′(u)σ′(v)] for u = ⟨w, x⟩, v = ⟨w, y⟩ and all rows x, y."""
    net = nn.Sequential(nn.Dense(), layer)
    if way.startswith("pixels"):
        net = nn.Sequential(nn.Conv(1), layer, nn.Flatten())
    values = network_kernel(net, WAYS[way](X), WAYS[way](Y), kind="both")
    return as_numpy(values.nngp), as_numpy(values.ntk)


def dual(
    layer: nn.Activation, t: np.ndarray, a: float, b: float | None = None, way: str = "vectors"
) -> tuple[np.ndarray, np.ndarray]:
    """E[σ(u)σ(v)] and E[σ′(u)σ′(v)] for Gaussian u, v of variances `a`, `b` (None: `a`) and correlations `t` ≠ 0."""
    t = np.atleast_1d(np.asarray(t, dtype=float))
    b = a if b is None else b
    X = np.array([[a**0.5, 0.0]])
    Y = b**0.5 * np.stack([t, np.sqrt((1 - t) * (1 + t))], axis=1)
    forward, tangent = dual_of_rows(layer, X, Y, way)
    return forward[0], tangent[0] / (a**0.5 * b**0.5 * t)
