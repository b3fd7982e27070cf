"""The back end for host memory: stages, tiles, threads and layouts give the results of the reference back end."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.programs.generators import (
    KINDS,
    LAYOUTS,
    assert_close,
    case,
    legible,
    random_matrix,
    random_program,
    random_rows,
)
from tests.reference import series as reference

from ntkit.programs import Program, host, run
from ntkit.programs import steps as s
from ntkit.programs.analysis import levels
from ntkit.programs.host import stages as plans
from ntkit.sketches import OSNAP, SRHT, TensorSketch, TensorSRHT

LIBRARY_STEPS = s.MatrixProduct, s.Convolve


def csr(inputs):
    return [sp.csr_array(x) for x in inputs]


def assert_equal(out, expected, dtype="float64"):
    """Three layers of width 40, or a convolution: errors of some epsilons, relative to the largest entry."""
    assert_close(out, expected, dtype, max(5.0, np.abs(expected).max(initial=0)), epsilons=40)


# Random programs


def random_case(seed: int, n: int, n_inputs: int = 1, kinds=KINDS) -> tuple[Program, list[np.ndarray], float]:
    rng = np.random.default_rng(seed)
    inputs = [random_rows(rng, n, int(rng.integers(1, 40))) for _ in range(n_inputs)]
    program, scale = random_program(rng, inputs, kinds)
    return program, inputs, scale


COMPILED = tuple(kind for kind in KINDS if kind not in LIBRARY_STEPS)


@pytest.mark.parametrize("kinds", [KINDS, COMPILED], ids=["all steps", "one stage"])
@pytest.mark.parametrize("n_inputs", [1, 2])
@given(seed=st.integers(0, 2**32), n=st.sampled_from([1, 3, 16, 17, 40]))
def test_random_programs_equal_the_legible_back_end(kinds, n_inputs, seed, n):
    program, inputs, scale = random_case(seed, n, n_inputs, kinds)
    expected = legible(program, inputs)
    assert expected.shape == (n, program.n_outputs)
    assert_close(run(program, inputs), expected, scale=scale)
    assert_close(run(program, csr(inputs)), expected, scale=scale)
    assert_close(run(program, [x.astype(np.float32) for x in inputs]), expected, "float32", scale)
    assert_close(run(program, csr(x.astype(np.float32) for x in inputs)), expected, "float32", scale)


def test_random_programs_equal_loops():
    for seed in range(20):
        with case(seed):
            program, inputs, scale = random_case(seed, 6, 2)
            expected = reference.run(program, inputs)
            assert_close(legible(program, inputs), expected, scale=scale)
            assert_close(run(program, inputs), expected, scale=scale)


def test_random_programs_have_all_kinds_of_steps_and_several_levels():
    """The tests above detect planted faults."""
    programs = [random_case(seed, 5)[0] for seed in range(60)]
    seen = [{type(step) for step in program.steps} for program in programs]
    for kind in KINDS:
        assert sum(kind in kinds for kinds in seen) >= 15, kind
    deepest = [max(levels(program, LIBRARY_STEPS)) for program in programs]
    assert np.mean(np.array(deepest) >= 2) > 0.5
    assert max(deepest) > 3
    steps = [step for program in programs for step in program.steps]
    assert sum(isinstance(step, s.DivideByNorm) and len(step.operands) == 2 for step in steps) >= 10
    assert sum(isinstance(step, s.DivideByNorm) and step.floor > 0 for step in steps) >= 10
    assert sum(isinstance(step, s.ScaleBy) and step.inverse for step in steps) >= 10
    assert sum(isinstance(step, s.Threshold) and step.kind == "step" for step in steps) >= 3


# Stages


def odd_program(build) -> tuple[Program, np.random.Generator]:
    rng = np.random.default_rng(2)
    program = Program((9, 6))
    build(program, random_matrix(rng, 7, 9), random_matrix(rng, 6, 7))
    return program, rng


def output_of_a_product(p, A, _):
    p.output(p.dense(p.load(), A))


def product_of_a_product(p, A, B):
    p.output(p.dense(p.dense(p.load(), A), B))


def product_of_a_product_and_other_outputs(p, A, B):
    x = p.load()
    p.output(x)
    p.output(p.dense(p.dense(x, A), B))


def product_of_a_product_with_steps_on_the_side(p, A, B):
    x = p.load()
    h = p.dense(x, A)
    p.output(p.concatenate([p.dense(h, B), p.activate(h, "relu"), p.norm(x)]))


def products_of_two_inputs(p, A, B):
    p.output(p.concatenate([p.dense(p.load(0), A), p.dense(p.load(1, scale=2.0), B.T)]))


def only_the_first_input_is_read(p, A, _):
    p.output(p.norm(p.dense(p.load(0), A)))


def only_the_second_input_is_read(p, _, B):
    p.output(p.norm(p.dense(p.load(1), B.T)))


def second_input_after_a_product(p, A, _):
    h = p.dense(p.load(0), A)
    rows = np.arange(6, dtype=np.int32)
    p.output(p.product(h, rows, p.load(1), rows, 1.0))
    p.output(p.load(1, scale=-1.0, constant=3.0))


def product_that_nobody_reads(p, A, _):
    x = p.load()
    p.dense(x, A)
    p.output(p.activate(x, "relu"))


def product_of_a_constant(p, A, _):
    p.output(p.dense(p.constant(np.arange(9.0)), A))
    p.output(p.load())


def constant_after_a_product(p, A, _):
    h = p.dense(p.load(), A)
    p.output(p.concatenate([h, p.constant(np.arange(3.0))], [2.0, -1.0]))


def level_0_outputs(p, A, _):
    x = p.load()
    for value in (p.norm(x), x, p.load(scale=2.0), p.constant(np.ones(2)), p.dense(x, A), p.norm(x)):
        p.output(value)


def one_value_in_two_products(p, A, B):
    unit = p.normalize(p.load())
    h = p.dense(unit, A)
    p.output(p.dense(p.activate(h, "relu"), B))
    p.output(p.dense(unit, -A))
    p.output(unit)


def value_of_level_0_read_at_level_2(p, A, B):
    x = p.load()
    n = p.norm(x)
    h = p.dense(p.activate(p.dense(x, A), "step"), B)
    p.output(p.scale(h, n))
    p.output(p.normalize(h, n))


def scale_of_a_product_by_a_product(p, A, B):
    h = p.dense(p.load(), A)
    c = p.dense(p.activate(h, "relu"), B[:1])
    p.output(p.scale(h, c))
    p.output(p.activate(c, "relu", 3.0))


def convolution_of_an_input_and_a_product(p, A, B):
    h = p.dense(p.dense(p.load(), A), B)
    p.output(p.convolve([p.load(1), h]))
    p.output(p.convolve([p.load(1), p.load(1, scale=-1.0), h]))


def product_of_a_convolution(p, A, _):
    x = p.load()
    c = p.convolve([x, x])
    p.output(p.dense(c, A))
    p.output(p.dense(p.normalize(c), A))


def convolution_of_convolutions(p, *_):
    x = p.load()
    c = p.convolve([x, x])
    p.output(p.convolve([c, c, x]))
    p.output(c)


def convolution_that_nobody_reads(p, *_):
    p.convolve([p.load(), p.load()])
    p.output(p.load(1))


ODD_PROGRAMS = [
    output_of_a_product, product_of_a_product, product_of_a_product_and_other_outputs,
    product_of_a_product_with_steps_on_the_side, products_of_two_inputs, only_the_first_input_is_read,
    only_the_second_input_is_read, second_input_after_a_product, product_that_nobody_reads, product_of_a_constant,
    constant_after_a_product, level_0_outputs, one_value_in_two_products, value_of_level_0_read_at_level_2,
    scale_of_a_product_by_a_product, convolution_of_an_input_and_a_product, product_of_a_convolution,
    convolution_of_convolutions, convolution_that_nobody_reads,
]  # fmt: skip


@pytest.mark.parametrize("build", ODD_PROGRAMS, ids=lambda build: build.__name__)
def test_programs_that_cut_in_odd_places(build):
    program, rng = odd_program(build)
    for n in (0, 1, 17, 600):
        inputs = [random_rows(rng, n, 9), random_rows(rng, n, 6)]
        expected = legible(program, inputs)
        for dtype in ("float32", "float64"):
            single = [x.astype(dtype) for x in inputs]
            with case((n, dtype)):
                assert_equal(run(program, single), expected, dtype)
                assert_equal(run(program, csr(single)), expected, dtype)


def test_odd_programs_in_other_libraries(to_library):
    for build in ODD_PROGRAMS:
        with case(build.__name__):
            program, rng = odd_program(build)
            inputs = [random_rows(rng, 17, 9), random_rows(rng, 17, 6)]
            assert_equal(run(program, [to_library(x) for x in inputs]), reference.run(program, inputs))


def test_a_stage_for_each_library_step_in_a_row():
    rng = np.random.default_rng(0)
    program = network(rng, depth=3)
    for sparse in (False, True):
        stages = host.plan(program, np.float64, sparse=sparse).stages
        assert [len(stage.library_steps) for stage in stages] == [0, 1, 1, 1]
        assert [stage.n_inputs for stage in stages] == ([1, 0, 0, 0] if sparse else [1, 1, 1, 1])
    plain = Program((5,))
    plain.output(plain.normalize(plain.load()))
    assert len(host.plan(plain, np.float64, sparse=False).stages) == 1


def test_plans_are_kept_for_each_dtype_and_format():
    program = network(np.random.default_rng(0))
    found = [host.plan(program, dtype, sparse=sparse) for dtype in ("f4", "f8") for sparse in (False, True)]
    assert len(set(map(id, found))) == 4
    assert host.plan(program, np.float32, sparse=False) is found[0]


def test_sketches_between_products():
    """A sparse sketch, products of degree 2 by transforms and by convolution, a layer, and an SRHT on top."""
    rng = np.random.default_rng(3)
    program = Program((30,))
    x = program.load()
    sketch = OSNAP(30, 16).sample(0).emit(program, x)
    z = TensorSRHT((16, 16), 24).sample(1).emit(program, sketch, sketch)
    h = program.activate(program.dense(z, random_matrix(rng, 20, 24)), "relu")
    program.output(SRHT(20, 12).sample(2).emit(program, h))
    program.output(sketch)
    program.output(TensorSketch((30, 24), 17).sample(3).emit(program, x, z))
    X = random_rows(rng, 77, 30)
    expected = legible(program, [X])
    assert_close(run(program, [X]), expected, scale=10)
    assert_close(run(program, csr([X])), expected, scale=10)


# Tiles, threads, layouts


def network(rng: np.random.Generator, d: int = 24, width: int = 40, depth: int = 3) -> Program:
    """ReLU features of unit vectors, all layers side by side, times the norm; level 0 and products are outputs too."""
    program = Program((d,))
    x = program.load()
    n = program.norm(x)
    h = program.normalize(x)
    program.output(h)
    for _ in range(depth):
        z = program.dense(h, random_matrix(rng, width, program.size(h)))
        h = program.activate(z, "relu", 2**0.5)
        program.output(program.scale(h, n))
    program.output(z)
    program.output(n)
    return program


def tensor_sketch(rng: np.random.Generator, d: int = 24, m: int = 33) -> Program:
    """A TensorSketch of degree 3, normalized."""
    program = Program((d,))
    x = program.load()
    z = TensorSketch(d, m, degree=3).sample(int(rng.integers(100))).emit(program, x, x, x)
    program.output(program.normalize(z, program.norm(x)))
    program.output(z)
    return program


def transforms(rng: np.random.Generator, d: int = 24) -> Program:
    """One stage: a normalized product of transforms."""
    program = Program((d,))
    x = program.load()
    h = program.hadamard(x, rng.choice([-1.0, 1.0], d))
    rows = rng.integers(32, size=(2, 40), dtype=np.int32)
    program.output(program.normalize(program.product(h, rows[0], h, rows[1], 1.0), program.norm(x)))
    program.output(program.scatter(x, rng.integers(20, size=(d, 2), dtype=np.int32), 1.0, 10))
    return program


PROGRAMS = [network, tensor_sketch, transforms]


@cache
def known(make) -> tuple[Program, np.ndarray, np.ndarray]:
    """A program, 1100 rows, and the result of the legible back end."""
    rng = np.random.default_rng(4)
    program, X = make(rng), random_rows(rng, 1100, 24)
    return program, X, legible(program, [X])


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_rows(make, dtype, to_library):
    """Groups of W rows, tails of all sizes, and several tiles."""
    program, X, expected = known(make)
    for n in (*range(18), 31, 33, 63, 64, 65, 1000):
        with case(n):
            assert_equal(run(program, [to_library(X[:n].astype(dtype))]), expected[:n], dtype)
            assert_equal(run(program, csr([X[:n].astype(dtype)])), expected[:n], dtype)


def test_single_precision_has_single_accuracy():
    for make in PROGRAMS:
        program, X, exact = known(make)
        for rows in (X.astype(np.float32), sp.csr_array(X.astype(np.float32))):
            error = np.linalg.norm(run(program, [rows]) - exact) / np.linalg.norm(exact)
            assert 0 < error < 4 * np.finfo(np.float32).eps, make


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_does_not_matter(layout):
    for make in PROGRAMS:
        for dtype in ("float32", "float64"):
            with case((make, dtype)):
                program, X, _ = known(make)
                rows = LAYOUTS[layout](X[:99].astype(dtype))
                np.testing.assert_array_equal(run(program, [rows]), run(program, [rows.copy(order="C")]))


def test_inputs_of_different_layouts_and_types():
    program, rng = odd_program(second_input_after_a_product)
    X, Y = random_rows(rng, 50, 9), random_rows(rng, 50, 6)
    expected = run(program, [X, Y])
    np.testing.assert_allclose(run(program, [np.asfortranarray(X), Y[::-1].copy()[::-1]]), expected, atol=1e-14)
    for mixed in (
        run(program, [X.astype(np.float32), Y]),
        run(program, [X, Y.astype(np.float32)]),
        run(program, csr([X.astype(np.float32), Y])),
        run(program, [torch.from_numpy(X).float(), torch.from_numpy(Y)]).numpy(),
    ):
        assert_close(mixed, expected, epsilons=50)
    ints = [np.arange(450).reshape(50, 9) % 5, Y]
    assert_close(run(program, ints), run(program, [ints[0].astype(float), Y]), epsilons=50)


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_do_not_depend_on_their_batch(make, sparse):
    """To rounding: BLAS adds up in another order for another number of rows."""
    program, X, expected = known(make)
    for dtype in ("float32", "float64"):
        rows = X.astype(dtype)
        rows = sp.csr_array(rows) if sparse else rows
        for part in (slice(0, 1), slice(3, 20), slice(63, 65), slice(500, 700)):
            assert_equal(run(program, [rows[part]]), expected[part], dtype)
        for batch_size in (1, 16, 17, 100, 5000):
            with case(batch_size):
                assert_equal(run(program, [rows], batch_size=batch_size), expected, dtype)


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("sparse", [False, True])
def test_tiles_and_threads_do_not_matter(monkeypatch, make, sparse):
    """Twice the same run gives the same bits; other tiles and threads the same up to rounding."""
    program, X, expected = known(make)
    rows = sp.csr_array(X) if sparse else X
    first = run(program, [rows])
    np.testing.assert_array_equal(run(program, [rows]), first)
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        for fewest, most, chunk in ((8, 8, 2**12), (8, 24, 2**14), (64, 512, 2**16), (2000, 2000, 2**23)):
            monkeypatch.setattr(plans, "MIN_TILE_ROWS", fewest)
            monkeypatch.setattr(plans, "MAX_TILE_ROWS", most)
            monkeypatch.setattr(plans, "CHUNK_BYTES", chunk)
            monkeypatch.setattr(plans, "MIN_NUMBERS_PER_TASK", chunk)
            assert_equal(run(program, [rows]), expected)


def test_threads_do_not_matter_to_the_bit_where_tiles_are_the_same(monkeypatch):
    """BLAS has one thread in every tile as soon as there are two of ours."""
    monkeypatch.setattr(plans, "MIN_TILE_ROWS", 64)
    monkeypatch.setattr(plans, "MAX_TILE_ROWS", 64)
    for make in PROGRAMS:
        program, X, _ = known(make)
        results = []
        for threads in (2, 3, 4):
            monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
            results.append(run(program, [X]))
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_rows_of_a_task_are_whole_groups_within_the_budget():
    for make in PROGRAMS:
        program, _, _ = known(make)
        for dtype in (np.float32, np.float64):
            for sparse in (False, True):
                how = host.plan(program, dtype, sparse=sparse)
                width = host.lanes(dtype)
                for n_rows, budget, n_threads in ((1, 2**30, 1), (10**6, 2**20, 4), (10**6, 2**30, 2), (500, 0, 3)):
                    rows = how.rows_per_task(n_rows, budget, n_threads, 8 * sum(program.n_features))
                    assert rows % width == 0
                    assert rows > 0
                    held = how.n_between * rows * np.dtype(dtype).itemsize
                    assert held <= max(budget, width * how.n_between * np.dtype(dtype).itemsize)


@pytest.mark.parametrize("make", PROGRAMS)
def test_a_workspace_can_be_used_again(make):
    """On fewer rows, and next to columns that stay unchanged."""
    program, X, expected = known(make)
    space = host.plan(program, np.float64, sparse=False).workspace(100)
    for n in (100, 17, 1, 64):
        wide = np.full((n, program.n_outputs), np.nan)
        space.run([X[:n]], wide)
        assert_equal(wide, expected[:n])


def test_many_concurrent_callers():
    for make in PROGRAMS:
        program, X, expected = known(make)
        fresh = make(np.random.default_rng(4))  # all create its plan at the same time
        with ThreadPoolExecutor(4) as pool:
            for out in pool.map(lambda p, X=X: run(p, [X]), [program, fresh] * 6):
                assert_equal(out, expected)


def test_nan_and_infinity_stay_in_their_rows():
    for make in PROGRAMS:
        program, X, expected = known(make)
        bad = X[:40].copy()
        bad[5, 3], bad[20, 0] = np.nan, np.inf
        others = np.setdiff1d(np.arange(40), [5, 20])
        with np.errstate(invalid="ignore"):
            for rows in (bad, sp.csr_array(bad)):
                out = run(program, [rows])
                assert_equal(out[others], expected[others])
                assert np.isnan(out[[5, 20]]).any(axis=1).all()


def test_gradients_through_layers():
    rng = np.random.default_rng(13)
    for make in (lambda rng: network(rng, d=6, width=7, depth=2), lambda rng: tensor_sketch(rng, d=6, m=5)):
        program = make(rng)
        X = torch.from_numpy(rng.standard_normal((3, 6))).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, p=program: run(p, [x]), (X,), atol=1e-6)
        zeros = torch.zeros((2, 6), dtype=torch.float32, requires_grad=True)
        out = run(program, [zeros])
        assert not out.detach().numpy().any()
        out.sum().backward()
        assert torch.isfinite(zeros.grad).all()


def test_torch_is_not_needed():
    code = """
import sys
import numpy as np
from ntkit.programs import Program, run
program = Program((3,))
x = program.load()
h = program.activate(program.dense(x, np.ones((2, 3), np.float32)), "relu")
program.output(program.scale(h, program.norm(x), inverse=True))
out = run(program, [np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])])
assert np.allclose(out, [[1.4, 1.4], [0, 0]]), out
assert "torch" not in sys.modules
assert not any(name.startswith("ntkit.programs.cuda") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


# Planted faults: the comparison must reject them.


@pytest.mark.parametrize("fault", ["transposed", "5 % too large", "one row", "activation", "convolved with another"])
def test_the_comparison_rejects_faults(fault):
    rng = np.random.default_rng(14)
    A = random_matrix(rng, 9, 9)
    X = random_rows(rng, 40, 9)

    def program(fault: str) -> Program:
        p = Program((9,))
        B = {"transposed": A.T.copy(), "5 % too large": np.float32(1.05) * A, "one row": A.copy()}.get(fault, A)
        if fault == "one row":
            B[4] = B[5]
        x = p.load()
        h = p.activate(p.dense(x, B), "step" if fault == "activation" else "relu")
        p.output(p.convolve([h, p.activate(x, "relu") if fault == "convolved with another" else x]))
        return p

    expected = legible(program(""), [X])
    assert_equal(run(program(""), [X]), expected)
    assert_equal(run(program(""), [X.astype(np.float32)]), expected, "float32")
    with pytest.raises(AssertionError):
        assert_equal(run(program(fault), [X.astype(np.float32)]), expected, "float32")
