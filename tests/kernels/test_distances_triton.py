"""The GPU kernels of distances, run by Triton's interpreter on the CPU."""

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
from ntkit.kernels.tiles import gram
from ntkit.kernels.distances import FEW_COLUMNS, Gaussian, Laplace, Matern

assert "triton" not in sys.modules and "ntkit.kernels._distances_triton" not in sys.modules
arrays.has_triton = arrays.is_torch  # CPU tensors take the way of CUDA tensors
rng = np.random.default_rng(0)
for d in (3, FEW_COLUMNS + 6):
    X = rng.standard_normal((40, d)) / d**0.5
    X[20:] += 1e8
    Y = np.concatenate([X[:10], X[25:35] + 0.01, rng.standard_normal((50, d))])
    X[3], Y[40] = 1e200, -1e200
    for kernel in (Gaussian(1.7), Laplace(3.0), Laplace(3.0, "l1"), Matern(1.3, 0.5), Matern(2.0), Matern(2.0, 2.5)):
        expected = kernel.matrix(X, Y)
        (K,) = gram(kernel, kernel.prepare(torch.from_numpy(X)), kernel.prepare(torch.from_numpy(Y)))
        np.testing.assert_allclose(K, expected, rtol=1e-12, atol=1e-300)
        assert np.array_equal(K == 1, expected == 1) and (expected == 1).sum() == 9
        x, y = X[4:].astype("f4"), Y[4:40].astype("f4")
        (K,) = gram(kernel, kernel.prepare(torch.from_numpy(x)), kernel.prepare(torch.from_numpy(y)))
        assert K.dtype == torch.float32
        np.testing.assert_allclose(K, kernel.matrix(x, y), rtol=1e-6, atol=1e-37)
        (K,) = gram(kernel, kernel.prepare(torch.from_numpy(X)), None)
        assert torch.equal(K, K.T) and (K.diagonal() == 1).all()
print("all equal")
"""


def test_triton_kernels_equal_the_compiled_ones():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, env=environment
    )
    assert "all equal" in out.stdout, out.stderr[-3000:]
