"""The GPU kernels: by Triton's interpreter on the CPU, and for real where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from ntkit.sketches import SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, fwht

SCRIPT = """
import numpy as np
import torch
import ntkit._array as arrays
from ntkit.sketches import SRHT, CountSketch, PolySketch, PowerSketch, TensorSRHT, fwht

arrays.has_triton = arrays.is_torch  # CPU tensors take the way of CUDA tensors
rng = np.random.default_rng(0)

def check(function, *X, bfloat16):
    expected = function(*X)
    bounds = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: bfloat16}
    for dtype, bound in bounds.items():
        got = function(*(torch.from_numpy(x).to(dtype) for x in X))
        assert got.dtype == dtype
        error = np.linalg.norm(got.double().numpy() - expected) / np.linalg.norm(expected)
        assert error < bound, (function, dtype, error)

laws = [
    SRHT(5, 7), SRHT(300, 100), SRHT(1024, 1000), TensorSRHT((3, 20), 9), TensorSRHT((300, 1000), 513),
    TensorSRHT(40, 30, degree=3), PolySketch(20, 33, degree=5), PowerSketch(17, 64, degree=7),
    PolySketch(20, 33, degree=3, sparse=True), PolySketch(9, 20, degree=1), SRHT(50, 5000), TensorSRHT(9, 700),
    TensorSRHT((50, 2000), 64), CountSketch(20000, 4), PolySketch(20000, 64, degree=2, sparse=True),
]
for law in laws:
    operator = law.sample(0)
    # Entries that bfloat16 represents, so that only the computation is rounded.
    X = [torch.from_numpy(rng.standard_normal((3, d))).bfloat16().double().numpy() for d in operator.factors]
    check(operator.apply, *X, bfloat16=0.01 if operator.degree < 3 else 0.06)
    if hasattr(operator, "apply_degrees"):
        check(operator.apply_degrees, X[0], bfloat16=0.06)
check(fwht, rng.integers(-4, 5, (2, 3, 50)).astype(float), bfloat16=0.01)
both = SRHT(16, 5).sample(0) @ TensorSRHT((3, 4), 16).sample(1)
check(both.apply, np.ones((2, 3)), np.ones((2, 4)), bfloat16=0.01)
scaled = PolySketch(5, 8, degree=3).sample(0).program(scale=0.5)  # the factor is left to the products
program = PolySketch(6, 8, degree=3).sample(0).program(scale=0.5, constant=2.0)
from ntkit.sketches._base import execute
from ntkit.sketches._program import Program
check(lambda X: execute(program, (X,), batch_size=2), np.ones((5, 5)), bfloat16=0.03)
check(lambda X: execute(scaled, (X,)), np.ones((5, 5)), bfloat16=0.03)
twice = Program((4,))
twice.output(twice.hadamard(twice.hadamard(twice.load(), np.ones(4)), np.ones(4)))
check(lambda X: execute(twice, (X,)), np.ones((3, 4)), bfloat16=0.01)
x = torch.zeros(32)
x[3] = float("inf")
assert bool(torch.isinf(SRHT(32, 4).sample(0).apply(x)).all())
print("all equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
def test_triton_kernels_equal_the_compiled_ones():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert "all equal" in out.stdout, out.stderr[-3000:]


# sizes: below the smallest matrix of tensor cores, folded and not, the longest row of one program, longer
LAWS = [
    SRHT(5, 7), SRHT(300, 100), SRHT(16384, 16384), SRHT(20000, 300), SRHT(50, 20000), SRHT(50, 5000),
    TensorSRHT(9, 8192), TensorSRHT((50, 8192), 64), CountSketch(20000, 4), TensorSRHT((3, 20), 9),
    TensorSRHT((300, 1000), 513), TensorSRHT(40, 30, degree=3), TensorSRHT(4096, 4096), TensorSRHT(8192, 5000),
    TensorSketch(30, 64, degree=3), PolySketch(20, 33, degree=5), PolySketch(1024, 1024, degree=8),
    PolySketch(20, 33, degree=3, sparse=True), PowerSketch(17, 64, degree=7),
]  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_cuda_tensors_equal_numpy_arrays(law, rng):
    operator = law.sample(0)
    X = [torch.from_numpy(rng.standard_normal((37, d))).bfloat16().double() for d in operator.factors]
    expected = operator.apply(*(x.numpy() for x in X))
    for dtype, bound in {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 0.02}.items():
        got = operator.apply(*(x.to("cuda", dtype) for x in X))
        assert got.dtype == dtype
        assert got.device.type == "cuda"
        error = np.linalg.norm(got.double().cpu().numpy() - expected) / np.linalg.norm(expected)
        assert error < bound
    if hasattr(operator, "apply_degrees"):
        got = operator.apply_degrees(X[0].float().cuda()).double().cpu().numpy()
        expected = operator.apply_degrees(X[0].numpy())
        assert np.linalg.norm(got - expected) < 5e-6 * np.linalg.norm(expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_rows_do_not_depend_on_batches_or_strides(rng):
    from ntkit.sketches._base import execute

    operator = PolySketch(100, 64, degree=4).sample(0)
    X = torch.from_numpy(rng.standard_normal((1000, 100))).float().cuda()
    whole = operator.apply(X)
    assert torch.equal(execute(operator.program(), (X,), batch_size=17), whole)
    assert torch.equal(operator.apply(X.T.contiguous().T), whole)
    assert torch.equal(operator.apply(X[::3]), whole[::3])
    assert fwht(X).shape == (1000, 128)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gradients(rng):
    operator = PolySketch(5, 8, degree=3).sample(0)
    X = torch.from_numpy(rng.standard_normal((2, 5))).cuda().requires_grad_()
    assert torch.autograd.gradcheck(operator.apply, (X,))
