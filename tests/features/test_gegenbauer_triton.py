"""The Triton kernels of Gegenbauer features, run by Triton's interpreter, and on a device where there is one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.tiers import gpu

from ntkit import GegenbauerFeatures

CASES = [
    {"kernel": "gaussian"},
    {"kernel": "ntk", "depth": 2},
    {"kernel": "ntk", "harmonics": False, "degree": 12},  # high degrees make more of rounding errors of 16-bit rows
    {"kernel": "gaussian", "harmonics": False},
]
SCRIPT = f"""
import numpy as np, torch
from ntkit import GegenbauerFeatures, _array
rng = np.random.default_rng(0)
cases = []
for d in (1, 2, 3, 9):
    X = rng.standard_normal((37, d))
    X[3] = 0
    for parameters in {CASES}:
        if d == 1:
            parameters.pop("degree", None)
        features = GegenbauerFeatures(n_components=200, random_state=0, **parameters).fit(X)
        cases.append((d, features, X, features.transform(X)))
_array.has_triton = _array.is_torch  # CPU tensors take the way of CUDA tensors
for d, features, X, expected in cases:
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5))[: 2 if d == 9 else 1]:
        got = torch.empty(expected.shape, dtype=dtype)
        features._draws.fill(torch.from_numpy(X).to(dtype), features._draws.place(dtype, "cpu"), got)
        assert got.dtype == dtype
        error = np.abs(got.double().numpy() - expected).max()
        assert error < bound * np.abs(expected).max(), (d, features, dtype, error)
print("all equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
def test_the_triton_kernels_equal_the_compiled_ones():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert "all equal" in out.stdout, out.stderr[-3000:]


@gpu
@pytest.mark.parametrize("parameters", CASES)
@pytest.mark.parametrize("d", [1, 2, 3, 9])
def test_cuda_tensors_equal_numpy_arrays(d, parameters, rng):
    X = rng.standard_normal((1000, d))
    X[3] = 0
    parameters = {name: value for name, value in parameters.items() if name != "degree" or d > 1}
    features = GegenbauerFeatures(n_components=500, random_state=0, **parameters).fit(X)
    expected = features.transform(X)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        got = features.transform(torch.from_numpy(X).to("cuda", dtype))
        assert got.dtype == dtype
        assert got.is_cuda
        assert np.abs(got.double().cpu().numpy() - expected).max() < bound * np.abs(expected).max()
    rows = torch.from_numpy(X[4:9]).cuda().requires_grad_()  # another way, that has gradients
    np.testing.assert_allclose(features.transform(rows).detach().cpu(), expected[4:9], atol=1e-11)
