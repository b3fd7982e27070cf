"""The back end for CUDA: fusion of steps on the CPU, kernels by Triton's interpreter, and all of it on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.programs.generators import assert_close, case, legible, program_of, random_rows
from tests.reference.sketches import hadamard_matrix
from tests.tiers import gpu, thorough

from ntkit.programs import Program, analysis, array_api, power_of_two, run
from ntkit.programs import steps as s
from ntkit.programs.cuda import fusion
from ntkit.programs.cuda.fusion import FusedStep, GatherTransforms, MultiplyColumns
from ntkit.sketches import SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, fwht
from ntkit.sketches.series import SeriesSketch

linux = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
D = 12
SERIES = (0.3, 0.5, 0.25, 0.4, 0.0, 0.2)


def series_program(**switches) -> Program:
    """Features of a series, for rows of any norm, times the norm: every DivideByNorm of a root has a second operand."""
    program = Program((D,))
    x = program.load()
    n = program.norm(x)
    operator = SeriesSketch(D, SERIES, 60, width=16, **switches).sample(3)
    for part in operator.emit_parts(program, x, norm=n, multiplier=n):
        program.output(part)
    return program


def transform(p, x, seed=0):
    return p.hadamard(x, np.random.default_rng(seed).choice([-1.0, 1.0], p.size(x)))


def rows(n, size=14, seed=0):
    return np.random.default_rng(seed).integers(n, size=size, dtype=np.int32)


def normalized_gather(p):
    x = p.load(scale=0.5)
    p.output(p.normalize(p.gather(transform(p, x), rows(16), np.linspace(-1, 1, 14)), factor=3.0))


def normalized_product(p):
    x = p.load()
    z = p.product(transform(p, x), rows(16), transform(p, x, 1), rows(16, seed=1), 0.25)
    p.output(p.normalize(z, p.norm(x), factor=-2.0, floor=1e-5))


def normalized_with_a_floor(p):
    x = p.load()
    p.output(p.normalize(p.gather(transform(p, x), rows(16)), floor=12.0))  # about half of the rows


def values_that_are_read_again(p):
    """Neither the transform nor the normalized value may disappear in a fused step."""
    x = p.load()
    h = transform(p, x)
    g = p.gather(h, rows(16))
    p.output(p.normalize(g))
    p.output(g)
    p.output(h)


def normalized_twice(p):
    g = p.gather(transform(p, p.load()), rows(16))
    p.output(p.normalize(g))
    p.output(p.normalize(g, factor=2.0))


def concatenation(p):
    """Written in place: the parts are fused steps, a scale and a normalization, with no other reader."""
    x = p.load()
    h = transform(p, x)
    parts = [p.gather(h, rows(16)), p.normalize(p.gather(h, rows(16, seed=1))), p.scale(x, p.norm(x))]
    p.output(p.norm(p.concatenate(parts)))
    p.output(p.concatenate(parts))


def concatenations_that_are_not_written_in_place(p):
    """One part is read again, or is an output itself."""
    h = transform(p, p.load())
    a, b, c = (p.gather(h, rows(16, seed=seed)) for seed in range(3))
    p.output(p.concatenate([a, b]))
    p.output(p.norm(b))
    p.output(p.concatenate([p.gather(h, rows(16, seed=3)), c]))
    p.output(c)


def weighted_concatenation(p):
    h = transform(p, p.load())
    p.output(p.concatenate([p.gather(h, rows(16)), p.gather(h, rows(16, seed=1))], [0.5, -2.0]))


def outputs_repeated(p):
    x = p.load()
    z = p.normalize(p.gather(transform(p, x), rows(16)))
    for value in (z, x, z, p.concatenate([z, p.norm(x)]), p.norm(x), z):
        p.output(value)


def part_repeated_in_a_concatenation(p):
    z = p.gather(transform(p, p.load()), rows(16))
    p.output(p.concatenate([z, z]))


def rare_steps(p):
    x = p.load(constant=2.0)
    z = p.gather(transform(p, x), rows(16))
    p.output(p.convolve([z, p.activate(z, "relu", 0.5)]))
    p.output(p.scatter(z, np.arange(28, dtype=np.int32).reshape(14, 2) % 14, 0.5, 7))
    p.output(p.dense(p.activate(z, "step"), np.random.default_rng(0).standard_normal((5, 14)).astype(np.float32)))
    p.output(p.scale(z, p.norm(z), factor=2.0, inverse=True))
    p.output(p.slice(p.constant(np.arange(9.0)), 2, 5))


def gather_without_a_transform(p):
    x = p.load()
    p.output(p.product(x, rows(D), transform(p, x), rows(16), 2.0))
    p.output(p.gather(x, rows(D), 0.5))


def weighted_diagonal(p):
    """Entries of several magnitudes are not signs, so the transform stays a separate step."""
    h = p.hadamard(p.load(), np.linspace(0.5, 1.5, D))
    p.output(p.gather(h, rows(16)))


def scaled_diagonal(p):
    h = p.hadamard(p.load(), np.random.default_rng(0).choice([-0.25, 0.25], D))
    p.output(p.gather(h, rows(16)))
    p.output(p.hadamard(h, np.ones(16)))


BUILDERS = [
    normalized_gather, normalized_product, normalized_with_a_floor, values_that_are_read_again, normalized_twice,
    concatenation, concatenations_that_are_not_written_in_place, weighted_concatenation, outputs_repeated,
    part_repeated_in_a_concatenation, rare_steps, gather_without_a_transform, weighted_diagonal, scaled_diagonal,
]  # fmt: skip


def built(build) -> Program:
    program = Program((D,))
    build(program)
    return program


def programs() -> dict[str, Program]:
    """Small programs of all kinds, on rows of 12 features."""
    found = {build.__name__: built(build) for build in BUILDERS}
    laws = {
        "SRHT": SRHT(D, 30), "TensorSRHT": TensorSRHT(D, 20, degree=3), "PolySketch": PolySketch(D, 33, degree=5),
        "PowerSketch": PowerSketch(D, 17, degree=6), "sparse PolySketch": PolySketch(D, 16, degree=3, sparse=True),
        "CountSketch": CountSketch(D, 5), "TensorSketch": TensorSketch(D, 16, degree=2),
    }  # fmt: skip
    found |= {name: program_of(law.sample(0)) for name, law in laws.items()}
    found["PolySketch with a constant"] = program_of(PolySketch(D + 1, 8, degree=3).sample(0), scale=0.5, constant=2.0)
    for switches in (
        {},
        {"normalize": False},
        {"shared": True},
        {"sparse": True},
        {"shared": True, "normalize": False},
    ):
        found[f"series {switches}"] = series_program(**switches)
    return found


# Fusion


def evaluate(program: Program, X: np.ndarray) -> np.ndarray:
    """Compute the outputs of a fused program: its own steps by their formulas, the others by the reference back end."""

    def compute(index, read):
        step = program.steps[index]
        if not isinstance(step, FusedStep):
            return array_api.apply_step(step, read, [X])
        sides = read[: step.n_sides]
        if isinstance(step, GatherTransforms):
            out = step.scale * step.weights
            for value, signs, chosen in zip(sides, step.signs, step.rows, strict=True):
                n = value.shape[1]
                H = hadamard_matrix(power_of_two(n))[:, :n]
                out = out * (value * signs[:n] @ H.T)[:, chosen]
        else:
            assert isinstance(step, MultiplyColumns)
            out = np.ones(())
            for value, start in zip(sides, step.starts, strict=True):
                out = out * value[:, start : start + step.size]
        assert out.shape == (len(X), step.size)
        if step.norm is None:
            assert step.multiplier is None
            return out
        by = read[step.n_sides :]
        assert (step.multiplier is None) == (not by)
        return array_api.apply_step(
            s.DivideByNorm((0, *(1 for _ in by)), step.size, step.norm.factor, step.norm.floor), [out, *by], [X]
        )

    return np.concatenate(analysis.interpret(program, compute), axis=-1)


def kinds(program: Program) -> list[str]:
    return [type(step).__name__ for step in program.steps]


@pytest.mark.parametrize("fuse", [fusion.fuse_transforms, fusion.multiply_transforms])
def test_fused_programs_compute_the_same(fuse):
    X = np.random.default_rng(0).standard_normal((20, D))
    for name, program in programs().items():
        if fuse is fusion.multiply_transforms and not fusion.suits_multiplication(program):
            continue
        with case(name):
            expected = legible(program, [X])
            fused = fuse(program)
            assert fused.n_outputs == program.n_outputs
            # Matrices of multiply_transforms are float32: ±1 times a weight.
            dtype = "float32" if fuse is fusion.multiply_transforms else "float64"
            assert_close(evaluate(fused, X).astype(dtype), expected, dtype, np.abs(expected).max(), epsilons=100)


def test_transforms_are_fused_into_their_gathers():
    assert kinds(fusion.fuse_transforms(built(normalized_gather))) == ["Load", "GatherTransforms"]
    assert kinds(fusion.fuse_transforms(built(normalized_product))) == ["Load", "EuclideanNorm", "GatherTransforms"]
    step = fusion.fuse_transforms(built(normalized_product)).steps[-1]
    assert step.norm.factor == -2.0
    assert step.multiplier == 1
    assert step.n_sides == 2
    step = fusion.fuse_transforms(built(normalized_gather)).steps[-1]
    assert step.scale == 0.5  # of the load
    assert step.multiplier is None


def test_values_with_several_readers_are_not_fused():
    found = kinds(fusion.fuse_transforms(built(values_that_are_read_again)))
    assert sorted(found) == ["DivideByNorm", "GatherTransforms", "GatherTransforms", "Load"]
    assert kinds(fusion.fuse_transforms(built(normalized_twice))).count("DivideByNorm") == 2


def test_transforms_that_cannot_be_fused():
    assert "Hadamard" in kinds(fusion.fuse_transforms(built(weighted_diagonal)))
    assert "Hadamard" not in kinds(fusion.fuse_transforms(built(scaled_diagonal)))
    long = program_of(SRHT(2 * fusion.LONGEST_TRANSFORM, 5).sample(0))
    assert kinds(fusion.fuse_transforms(long)) == ["Load", "Hadamard", "Gather"]


def test_series_are_fused_with_their_norms():
    """Except for rows that are longer than their transforms, here of 16 coordinates, in fuse_transforms."""
    for switches in ({}, {"shared": True}):
        program = series_program(**switches)
        normalized = [step for step in program.steps if isinstance(step, s.DivideByNorm)]
        for fuse in (fusion.fuse_transforms, fusion.multiply_transforms):
            fused = fuse(program)
            found = [step for step in fused.steps if isinstance(step, FusedStep) and step.norm is not None]
            apart = [step for step in fused.steps if isinstance(step, s.DivideByNorm)]
            assert len(found) + len(apart) == len(normalized)
            assert all(step.size > 16 for step in apart)
            assert not apart or fuse is fusion.fuse_transforms
            assert {step.multiplier is None for step in found} == {True, False}
            assert not any(isinstance(step, s.Hadamard) for step in fused.steps)


def test_one_matrix_for_all_that_is_gathered_from_a_value():
    program = program_of(PolySketch(D, 33, degree=4).sample(0))
    fused = fusion.multiply_transforms(program)
    assert kinds(fused) == [
        "Load",
        "MatrixProduct",
        "MultiplyColumns",
        "MultiplyColumns",
        "MatrixProduct",
        "MatrixProduct",
        "MultiplyColumns",
    ]
    assert all(len(step.matrix) % 8 == 0 for step in fused.steps if isinstance(step, s.MatrixProduct))
    assert all(step.matrix.dtype == np.float32 for step in fused.steps if isinstance(step, s.MatrixProduct))


def test_which_programs_suit_multiplication():
    for build in (normalized_gather, normalized_product, gather_without_a_transform, concatenation, outputs_repeated):
        assert fusion.suits_multiplication(built(build)), build
    for build in (values_that_are_read_again, scaled_diagonal):  # transforms are read otherwise
        assert not fusion.suits_multiplication(built(build)), build
    assert fusion.suits_multiplication(program_of(SRHT(fusion.LONGEST_MATRIX, 5).sample(0)))
    assert not fusion.suits_multiplication(program_of(SRHT(fusion.LONGEST_MATRIX + 1, 5).sample(0)))
    assert not fusion.suits_multiplication(program_of(SRHT(9, fusion.WIDEST_PRODUCT + 1).sample(0)))
    assert not fusion.suits_multiplication(program_of(CountSketch(9, 4).sample(0)))  # no transform at all


def test_a_normalization_is_fused_only_where_whole_rows_fit():
    """Rows longer than a Triton program has at a time cannot be normalized there."""
    for size, fused in ((100, True), (128, True), (129, False)):
        p = Program((100,))
        p.output(p.normalize(p.gather(transform(p, p.load()), rows(128, size))))
        assert ("DivideByNorm" not in kinds(fusion.fuse_transforms(p))) == fused, size


def test_orders_and_tiles():
    p = Program((5, 3000))
    p.output(p.product(transform(p, p.load(0)), rows(8), transform(p, p.load(1)), rows(4096), 1.0))
    (step,) = (step for step in fusion.fuse_transforms(p).steps if isinstance(step, GatherTransforms))
    assert fusion.orders(fusion.fuse_transforms(p), step) == [256, 4096]
    for longest in (16, 64, 1024, 16384):
        for size in (1, 17, 1000, 20000):
            found = fusion.tile(longest, size)
            assert found == power_of_two(found)
            assert 16 <= found <= max(4 * longest, 16)


# Triton's interpreter

SCRIPT = """
import numpy as np
import torch
from tests.programs import test_cuda as tests
from ntkit.programs import cuda
import ntkit._array as arrays
from ntkit.sketches import SRHT, CountSketch, PolySketch, PowerSketch, TensorSRHT, fwht

rng = np.random.default_rng(0)
# bfloat16 has 8 bits, float16 11; each of the up to eight products of a program rounds
BOUNDS = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 0.01, torch.bfloat16: 0.08}

def half(X):
    "Numbers that bfloat16 represents, so that only the computation is rounded."
    return torch.from_numpy(X).bfloat16().double()

def check(program, X, bounds=BOUNDS, **how):
    expected = tests.legible(program, [x.numpy() for x in X])
    for dtype, bound in bounds.items():
        got = cuda.run(program, [x.to(dtype) for x in X], **how)
        assert got.dtype == dtype
        error = np.linalg.norm(got.double().numpy() - expected) / np.linalg.norm(expected)
        assert error < bound, (dtype, error)
"""

SMALL = """
X = half(rng.standard_normal((5, tests.D)))
X[3] = 0
for name, program in tests.programs().items():
    with tests.case(name):
        check(program, [X])
        check(program, [X], {torch.float32: 3e-6}, batch_size=2)
        if not any(isinstance(step, tests.s.Convolve) for step in program.steps):  # torch has no transforms of no rows
            assert cuda.run(program, [X[:0].float()]).shape == (0, program.n_outputs)
X = half(np.vstack([1e-3 * X, X, 30 * X]))
for dtype, bound in BOUNDS.items():  # rows below the floor, zero rows, rows above it
    program = tests.built(tests.normalized_with_a_floor)
    got, expected = cuda.run(program, [X.to(dtype)]).double().numpy(), tests.legible(program, [X.numpy()])
    assert (got.any(axis=1) == expected.any(axis=1)).all()
    assert 0 < expected.any(axis=1).sum() < len(X)
print("all equal")
"""

LARGE = """
laws = [
    SRHT(5, 7), SRHT(300, 100), SRHT(1024, 1000), TensorSRHT((3, 20), 9), TensorSRHT((300, 1000), 513),
    PolySketch(9, 20, degree=1), SRHT(50, 5000), TensorSRHT(9, 700), TensorSRHT((50, 2000), 64), CountSketch(20000, 4),
    PolySketch(20000, 64, degree=2, sparse=True),
]
arrays.has_triton = arrays.is_torch  # CPU tensors take the way of CUDA tensors
for law in laws:
    with tests.case(law):
        operator = law.sample(0)
        X = [half(rng.standard_normal((3, d))) for d in operator.factors]
        expected = operator.apply(*(x.numpy() for x in X))
        for dtype, bound in BOUNDS.items():
            got = operator.apply(*(x.to(dtype) for x in X))
            assert got.dtype == dtype
            error = np.linalg.norm(got.double().numpy() - expected) / np.linalg.norm(expected)
            assert error < bound, (dtype, error)
X = torch.from_numpy(rng.integers(-4, 5, (2, 3, 50)).astype(float))
assert torch.equal(fwht(X.float()).double(), torch.from_numpy(fwht(X.numpy())))
x = torch.zeros(32)
x[3] = float("inf")
assert bool(torch.isinf(SRHT(32, 4).sample(0).apply(x)).all())
print("all equal")
"""

HUGE = """
X = half(rng.standard_normal((4, tests.D)))
for name in ("normalized_gather", "normalized_product", "normalized_twice"):
    program = tests.built(getattr(tests, name))
    expected = cuda.run(program, [X.float()]).numpy()
    for dtype, size, bound in (
        (torch.bfloat16, 1e30, 0.05), (torch.float32, 1e30, 1e-5), (torch.bfloat16, 1e-30, 0.05),
    ):
        if name == "normalized_product":  # squares of 1e15 are as large
            size = size ** 0.5
        with tests.case((name, dtype, size)):
            scaled = (X * size).to(dtype)
            got = cuda.run(program, [scaled]).double().numpy()
            by = size if name == "normalized_product" else 1.0
            if name == "normalized_product" and size < 1:
                continue  # below the floor
            assert np.isfinite(got).all()
            exact = cuda.run(program, [scaled.double()]).numpy()
            assert np.linalg.norm(got - exact) < bound * np.linalg.norm(exact)
            assert np.linalg.norm(exact) > 1e-3 * by * np.linalg.norm(expected)
import pytest
from tests.programs.test_steps import unknown_program
with pytest.raises(TypeError, match="cannot run a step Unknown"):
    cuda.run(unknown_program(), [torch.zeros(2, 21)])
print("all equal")
"""


@linux
@pytest.mark.parametrize(
    "script",
    [pytest.param(SMALL, id="small"), pytest.param(LARGE, id="large", marks=thorough), pytest.param(HUGE, id="huge")],
)
def test_kernels_in_the_interpreter_equal_the_legible_back_end(script):
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = subprocess.run([sys.executable, "-c", SCRIPT + script], capture_output=True, text=True, env=environment)
    assert "all equal" in out.stdout, out.stderr[-3000:]


# On a GPU

# sizes: below the smallest matrix of tensor cores, folded and not, the longest row of one program, longer
LAWS = [
    SRHT(5, 7), SRHT(300, 100), SRHT(16384, 16384), SRHT(20000, 300), SRHT(50, 20000), TensorSRHT(9, 8192),
    TensorSRHT((50, 8192), 64), TensorSRHT((300, 1000), 513), TensorSRHT(8192, 5000), TensorSketch(30, 64, degree=3),
    PolySketch(1024, 1024, degree=8), PolySketch(20, 33, degree=3, sparse=True), PowerSketch(17, 64, degree=7),
]  # fmt: skip


@gpu
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


@gpu
def test_small_programs_on_cuda():
    X = torch.from_numpy(random_rows(np.random.default_rng(0), 50, D)).bfloat16().double()
    bounds = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 0.02, torch.bfloat16: 0.1}
    for name, program in programs().items():
        expected = legible(program, [X.numpy()])
        for dtype, bound in bounds.items():
            with case((name, dtype)):
                got = run(program, [X.to("cuda", dtype)]).double().cpu().numpy()
                assert np.linalg.norm(got - expected) < bound * np.linalg.norm(expected)


@gpu
def test_cuda_rows_do_not_depend_on_batches_or_strides(rng):
    program = series_program()
    X = torch.from_numpy(rng.standard_normal((1000, D))).float().cuda()
    whole = run(program, [X])
    assert torch.equal(run(program, [X], batch_size=17), whole)
    assert torch.equal(run(program, [X.T.contiguous().T]), whole)
    assert torch.equal(run(program, [X[::3]]), whole[::3])
    assert fwht(X).shape == (1000, 16)


@gpu
def test_cuda_gradients(rng):
    program = series_program()
    X = torch.from_numpy(rng.standard_normal((2, D))).cuda().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(program, [x]), (X,), atol=1e-6)
