"""Values of an independent implementation (neural-tangents 0.6.5, float64)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import as_numpy

from ntkit import networks as nn
from ntkit.kernels import cntk, diagonal, network_kernel, nngp, ntk

GOLDEN = dict(np.load(Path(__file__).parents[1] / "golden" / "exact_kernels.npz"))
KEYS = [key for key in GOLDEN if key.split("_")[1] not in "AB"]
CHANNELS = GOLDEN["im_A"].shape[-1]
ACTIVATIONS = {
    "erf": nn.Erf(normalize=False),
    "gelu": nn.GELU(normalize=False),
    "sin": nn.Sin(normalize=False),
    "abs": nn.Abs(normalize=False),
    "lrelu": nn.LeakyReLU(0.1, normalize=False),
}


def compute(key: str, A, B):
    """Return ntkit's value for a golden key, and K(x, x), K(y, y), which set the scale."""
    parts = key.split("_")
    depth = int(next(p for p in parts if p[0] == "L")[1:])
    if parts[:2] == ["fc", "relu"]:
        function = {"ntk": ntk, "nngp": nngp}[parts[2]]
        return function(A, B, depth=depth), *(diagonal(parts[2], Z, depth=depth) for Z in (A, B))
    if parts[0] == "fc":
        dense = nn.Dense(weight_std=1.5)
        net = nn.Sequential(*(dense, ACTIVATIONS[parts[1]]) * depth, dense)
        A, B = A / A.shape[1] ** 0.5, B / B.shape[1] ** 0.5
        kind, scale = parts[3], 1
    elif parts[1] == "def2":
        return cntk(A, B, depth=depth), *(diagonal("cntk", Z, depth=depth) for Z in (A, B))
    else:
        end = nn.GlobalAvgPool() if parts[2] == "gap" else nn.Flatten()
        net = nn.Sequential(*(nn.Conv(3), nn.ReLU()) * depth, end, nn.Dense())
        kind, scale = parts[-1], CHANNELS
    values = network_kernel(net, A, B, kind=kind), *(diagonal(net, Z, kind=kind) for Z in (A, B))
    return tuple(v / scale for v in values)


def test_there_are_golden_values():
    assert len(KEYS) == 38


def check(key: str, dtype: str, tolerance: float, to_library) -> None:
    prefix = key[:2].replace("cn", "im")
    A, B = (to_library(GOLDEN[f"{prefix}_{name}"].astype(dtype)) for name in "AB")
    values = compute(key, A, B)
    assert type(values[0]) is type(A)
    K, x_values, y_values = (as_numpy(v) for v in values)
    assert K.dtype == x_values.dtype == dtype
    scale = np.sqrt(np.outer(x_values, y_values))
    assert np.abs(K - GOLDEN[key]).max() <= tolerance * scale.min(), key


@pytest.mark.parametrize("key", KEYS)
def test_golden(key):
    check(key, "float32", 1e-4, np.asarray)


def test_golden_of_every_library(to_library):
    for key in KEYS:
        check(key, "float64", 1e-7, to_library)
