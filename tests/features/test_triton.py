"""Feature maps on CUDA tensors: by Triton's interpreter on the CPU, and for real where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.tiers import gpu

from ntkit import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch

SCRIPT = """
import numpy as np
import torch
import ntkit._array as arrays
from ntkit import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch

arrays.has_triton = arrays.is_torch  # CPU tensors take the way of CUDA tensors
X = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 20))).bfloat16().double()
X[2] = 0
X[3] *= 1e18
maps = [
    NTKPolynomialSketch(depth=2, n_components=300, degree=7), NTKPolynomialSketch(n_components=64, normalize=False),
    NTKSketch(depth=2, n_components=100, degree=4, derivative_degree=5), NTKRandomFeatures(depth=2, n_components=100),
    NTKPolynomialSketch(n_components=3000, degree=3, width=16), NTKRandomFeatures(n_components=64, normalize=False),
    NTKSketch(n_components=64, variant="paper", projection=True, degree=2, derivative_degree=1),
]
for features in maps:
    expected = features.set_params(random_state=0).fit_transform(X.numpy())
    for dtype, bound in {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.15}.items():
        got = features.transform(X.to(dtype))
        assert got.dtype == dtype
        if dtype == torch.bfloat16 and isinstance(features, NTKRandomFeatures):
            continue  # steps jump where the preactivation is rounded across 0
        for row, other in zip(got.double().numpy(), expected):
            assert np.linalg.norm(row - other) <= bound * np.linalg.norm(other), (features, dtype)
print("all equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
def test_feature_maps_through_triton_kernels_equal_the_compiled_ones():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert "all equal" in out.stdout, out.stderr[-3000:]


MAPS = [
    NTKPolynomialSketch(depth=3, n_components=2048),
    NTKPolynomialSketch(n_components=8192, degree=8),
    NTKPolynomialSketch(n_components=1000, degree=8, normalize=False),
    NTKSketch(depth=2, n_components=1024),
    NTKSketch(depth=2, n_components=1024, variant="paper", projection=True),
    NTKRandomFeatures(depth=3, n_components=1024),
    NTKRandomFeatures(n_components=1000, normalize=False),
]


@gpu
@pytest.mark.parametrize("features", MAPS, ids=str)
def test_cuda_features_equal_numpy_features(features, rng):
    X = torch.from_numpy(rng.standard_normal((100, 200)))
    X[2] = 0
    expected = features.set_params(random_state=0).fit_transform(X.numpy())
    for dtype, bound in {torch.float64: 1e-11, torch.float32: 1e-4}.items():
        got = features.transform(X.to("cuda", dtype))
        assert got.dtype == dtype
        assert got.device.type == "cuda"
        error = np.linalg.norm(got.double().cpu().numpy() - expected) / np.linalg.norm(expected)
        # Step features of preactivations near 0 may differ: one in a million, each by √(2/m) of the norm.
        assert error < (bound if not isinstance(features, NTKRandomFeatures) else max(bound, 2e-3))
    few, all_rows = features.transform(X.float().cuda()[::7]), features.transform(X.float().cuda())
    assert torch.linalg.norm(few - all_rows[::7]) < 2e-3 * torch.linalg.norm(few)  # cuBLAS rounds by the shape
