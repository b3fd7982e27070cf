"""The GPU kernels, run by Triton's interpreter on the CPU (with a GPU, test_network runs them for real)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("Triton is for Linux only", allow_module_level=True)

SCRIPT = """
import sys

import numpy as np
import torch
import ntkit._array as arrays
from ntkit import networks as nn
from ntkit.kernels import diagonal, network_kernel

# CPU tensors take the way of CUDA tensors: they are not seen as NumPy arrays, and Triton can take them.
arrays.has_triton = arrays.is_torch
arrays.host_view = lambda x: x if isinstance(x, np.ndarray) else None
rng = np.random.default_rng(0)

def check(net, X, Y):
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    fast = network_kernel(net, x, y, kind="both")
    for K, expected in zip(fast, network_kernel(net, X, Y, kind="both"), strict=True):
        np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-14)
    for kind, expected in zip(("nngp", "ntk"), network_kernel(net, X, kind="both"), strict=True):
        np.testing.assert_allclose(diagonal(net, x, kind=kind), np.diagonal(expected), rtol=1e-12)

nets = [
    nn.Sequential(nn.Conv(3, trainable=False), nn.ReLU(), nn.Conv((2, 3)), nn.Abs(), nn.GlobalAvgPool(), nn.Dense()),
    nn.Sequential(nn.Conv(2, padding="valid"), nn.LeakyReLU(0.3, normalize=False), nn.Conv(3), nn.Flatten()),
    nn.Sequential(nn.Conv(3), nn.ReLU(), nn.AvgPool((2, 1)), nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense()),
    nn.Sequential(
        nn.Conv(2, padding="valid", bias_std=0.5), nn.ReLU(), nn.Conv((1, 2), bias_std=0.7, trainable=False),
        nn.Conv(2, bias_std=0.3), nn.GlobalAvgPool(), nn.Dense(bias_std=0.2),
    ),
]
assert "ntkit.kernels._triton" not in sys.modules
for net in nets:
    X, Y = rng.standard_normal((2, 4, 3, 2)), rng.standard_normal((1, 4, 3, 2))
    X[0, :2] = 0
    check(net, X, Y)
    assert "ntkit.kernels._triton" in sys.modules
for net in [
    nn.fully_connected(3),
    nn.Sequential(nn.Dense(), nn.LeakyReLU(0.4), nn.Dense(trainable=False), nn.Abs()),
    nn.Sequential(
        nn.Dense(bias_std=0.5), nn.LeakyReLU(0.4), nn.Dense(bias_std=0.7, trainable=False), nn.ReLU(),
        nn.Dense(weight_std=1.5, bias_std=0.3),
    ),
]:
    X, Y = rng.standard_normal((4, 5)), rng.standard_normal((3, 5))
    X[0], Y[0], Y[1] = 0, -2 * X[1], 3 * X[1]
    check(net, X, Y)
    K = network_kernel(net, *(torch.from_numpy(Z).float() for Z in (X, Y)))
    assert K.dtype == torch.float32
    np.testing.assert_allclose(K, network_kernel(net, X.astype("f4"), Y.astype("f4")), rtol=1e-6, atol=1e-6)
print("all equal")
"""


def test_triton_kernels_equal_the_compiled_ones():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert "all equal" in out.stdout, out.stderr[-3000:]
