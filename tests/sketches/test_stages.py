"""Programs with matrix products: cut into stages, they compute what the legible interpreter does."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import as_numpy
from tests.reference import series as reference

from ntkit.sketches import OSNAP, SRHT, TensorSRHT, _agnostic, _stages
from ntkit.sketches._base import execute
from ntkit.sketches._program import Dense, Program, operands, power_of_two

seeds = st.integers(0, 2**32)


def random_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Half of the entries zero, and some rows all of them; exact in float32."""
    X = rng.uniform(0.5, 1.5, (n, d)) * rng.choice([-1, 1], (n, d)) * (rng.random((n, d)) < 0.5)
    X[rng.random(n) < 0.1] = 0
    return X.astype(np.float32).astype(float)


def matrix(rng: np.random.Generator, size: int, n: int) -> np.ndarray:
    return (rng.standard_normal((size, n)) / np.sqrt(n)).astype(np.float32)


def levels(program: Program) -> list[int]:
    """Matrix products on the way to every value."""
    level: list[int] = []
    for step in program.steps:
        level.append(max((level[v] for v in operands(step)), default=0) + isinstance(step, Dense))
    return level


def random_program(rng: np.random.Generator, inputs: list[np.ndarray], *, direct: bool) -> tuple[Program, float]:
    """Twenty random steps, a third of them matrix products, and random outputs; the largest number in it.

    `direct` lets a matrix product read another one. Steps that would turn rounding errors into large ones (a unit
    vector of almost nothing, the sign of almost zero) are left out: the values are known while the program is made.
    """
    program = Program(tuple(x.shape[1] for x in inputs))
    values: list[np.ndarray] = []

    def pick(*, scalar: bool = False) -> int:
        allowed = [v for v in range(len(values)) if not scalar or program.sizes[v] == 1]
        return int(rng.choice(allowed)) if allowed else 0

    def add_step() -> None:
        kind = rng.choice(list("DDDDDDNIISAAcHGPOC/l"))
        a, b, size = pick(), pick(), int(rng.integers(1, 30))
        n, k = program.sizes[a], program.sizes[b]
        if kind == "D":
            if direct or not isinstance(program.steps[a], Dense):
                program.dense(a, matrix(rng, size, n))
        elif kind == "N":
            program.norm(a)
        elif kind in "IS":
            by = program.norm(b) if rng.random() < 0.5 else pick(scalar=True)
            evaluate()
            c = np.abs(values[by])
            inverse = kind == "I" and (values[by] >= 0).all() and ((c == 0) | (c > 0.05)).all()
            if program.sizes[by] == 1 and a != by:
                program.scale(a, by, factor=0.7, inverse=bool(inverse))
        elif kind == "A":
            clear = (np.abs(values[a]) > 1e-3).all()
            program.activate(a, "step" if clear and rng.random() < 0.5 else "relu", 1.2)
        elif kind == "c":
            program.constant(rng.uniform(-1, 1, size))
        elif kind == "H":
            program.hadamard(a, rng.uniform(-1, 1, n) / power_of_two(n) ** 0.5)
        elif kind == "G":
            program.gather(a, rng.integers(n, size=size, dtype=np.int32), rng.uniform(-1, 1, size))
        elif kind == "P":
            rows = (rng.integers(s, size=size, dtype=np.int32) for s in (n, k))
            program.product(a, next(rows), b, next(rows), 0.7)
        elif kind == "O":
            program.scatter(a, rng.integers(2 * size, size=(n, 2), dtype=np.int32), 0.5, size)
        elif kind == "C":
            program.concatenate([a, b, a], rng.uniform(-1, 1, 3).tolist())
        elif kind == "/":
            start = int(rng.integers(n))
            program.slice(a, start, int(rng.integers(1, n - start + 1)))
        else:
            constant = rng.choice([None, 0.0, 2.0])
            program.load(int(rng.integers(len(inputs))), scale=float(rng.choice([1.0, -0.5])), constant=constant)

    def evaluate() -> None:
        known = dict(enumerate(values))
        for number in range(len(values), len(program.steps)):
            known[number] = _agnostic.evaluate(program, number, known, inputs)
            values.append(known[number])

    program.load()
    evaluate()
    while len(program.steps) < 20:
        add_step()
        evaluate()
    for value in rng.integers(len(values), size=4):
        program.output(int(value))
    return program, max(float(np.abs(v).max(initial=0)) for v in values)


def assert_close(actual, expected, dtype="float64", scale: float = 1.0):
    """Errors of some thousand epsilons of the largest number on the way: twenty steps, sums of up to 90 terms."""
    actual = as_numpy(actual)
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5000 * np.finfo(dtype).eps * max(scale, 1))


@pytest.mark.parametrize("n_inputs", [1, 2])
@pytest.mark.parametrize("direct", [False, True])
@given(seed=seeds, n=st.sampled_from([1, 3, 16, 17, 40]))
def test_random_programs_equal_the_legible_interpreter(n_inputs, direct, seed, n):
    rng = np.random.default_rng(seed)
    inputs = [random_rows(rng, n, int(rng.integers(1, 40))) for _ in range(n_inputs)]
    program, scale = random_program(rng, inputs, direct=direct)
    expected = np.concatenate(_agnostic.execute(program, inputs), axis=-1)
    assert_close(execute(program, inputs), expected, scale=scale)
    assert_close(execute(program, [sp.csr_array(x) for x in inputs]), expected, scale=scale)
    assert_close(execute(program, [x.astype(np.float32) for x in inputs]), expected, "float32", scale)


def test_random_programs_have_several_levels():
    """What the test above is worth: half of its programs have outputs of different levels, some levels above 2."""
    deepest = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        program, _ = random_program(rng, [random_rows(rng, 5, 8)], direct=True)
        level = levels(program)
        deepest.append(max(level))
        assert len(program.outputs) == 4
    assert np.mean(np.array(deepest) >= 2) > 0.5
    assert max(deepest) > 3


def test_the_legible_interpreter_equals_loops():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        inputs = [random_rows(rng, 6, 9), random_rows(rng, 6, 4)]
        program, scale = random_program(rng, inputs, direct=True)
        expected = reference.run(program, inputs)
        assert_close(np.concatenate(_agnostic.execute(program, inputs), axis=-1), expected, scale=scale)


def network(rng: np.random.Generator, d: int = 24, width: int = 40, depth: int = 3) -> Program:
    """ReLU features of unit vectors, all layers side by side, times the norm; level 0 and products are outputs too."""
    program = Program((d,))
    x = program.load()
    n = program.norm(x)
    h = program.scale(x, n, inverse=True)
    program.output(h)
    for _ in range(depth):
        z = program.dense(h, matrix(rng, width, program.sizes[h]))
        h = program.activate(z, "relu", 2**0.5)
        program.output(program.scale(h, n))
    program.output(z)
    program.output(n)
    return program


@pytest.mark.parametrize("n", [0, 1, 5, 16, 17, 64, 65, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_number_of_rows(n, dtype, to_library):
    rng = np.random.default_rng(0)
    program, X = network(rng), random_rows(rng, 1000, 24)
    expected = np.concatenate(_agnostic.execute(program, [X]), axis=-1)
    scale = 0.2 if dtype == "float32" else 1.0
    assert_close(execute(program, [to_library(X[:n].astype(dtype))]), expected[:n], dtype, scale)
    assert_close(execute(program, [sp.csr_array(X[:n].astype(dtype))]), expected[:n], dtype, scale)


def test_single_precision_has_single_accuracy():
    """Three layers of width 40: relative errors of a few epsilons."""
    rng = np.random.default_rng(1)
    program, X = network(rng), random_rows(rng, 300, 24)
    exact = np.concatenate(_agnostic.execute(program, [X]), axis=-1)
    for given_rows in (X.astype(np.float32), sp.csr_array(X.astype(np.float32))):
        error = np.linalg.norm(execute(program, [given_rows]) - exact) / np.linalg.norm(exact)
        assert 0 < error < 4 * np.finfo(np.float32).eps


def one_product(build) -> tuple[Program, np.random.Generator]:
    rng = np.random.default_rng(2)
    program = Program((9, 6))
    build(program, matrix(rng, 7, 9), matrix(rng, 6, 7))
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
    unit = p.scale(p.load(), p.norm(p.load()), inverse=True)
    h = p.dense(unit, A)
    p.output(p.dense(p.activate(h, "relu"), B))
    p.output(p.dense(unit, -A))
    p.output(unit)


def value_of_level_0_read_at_level_2(p, A, B):
    x = p.load()
    n = p.norm(x)
    h = p.dense(p.activate(p.dense(x, A), "step"), B)
    p.output(p.scale(h, n))


def scale_of_a_product_by_a_product(p, A, B):
    h = p.dense(p.load(), A)
    c = p.dense(p.activate(h, "relu"), B[:1])
    p.output(p.scale(h, c))
    p.output(p.activate(c, "relu", 3.0))


BUILDERS = [
    output_of_a_product, product_of_a_product, product_of_a_product_and_other_outputs,
    product_of_a_product_with_steps_on_the_side, products_of_two_inputs, only_the_first_input_is_read,
    only_the_second_input_is_read, second_input_after_a_product, product_that_nobody_reads, product_of_a_constant,
    constant_after_a_product, level_0_outputs, one_value_in_two_products, value_of_level_0_read_at_level_2,
    scale_of_a_product_by_a_product,
]  # fmt: skip


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [0, 1, 17, 600])
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_programs_that_cut_in_odd_places(build, n, sparse):
    program, rng = one_product(build)
    inputs = [random_rows(rng, n, 9), random_rows(rng, n, 6)]
    expected = np.concatenate(_agnostic.execute(program, inputs), axis=-1)
    out = execute(program, [sp.csr_array(x) for x in inputs] if sparse else inputs)
    assert_close(out, expected, scale=0.1)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_odd_programs_in_other_libraries(build, to_library):
    program, rng = one_product(build)
    inputs = [random_rows(rng, 17, 9), random_rows(rng, 17, 6)]
    assert_close(execute(program, [to_library(x) for x in inputs]), reference.run(program, inputs), scale=0.1)


def test_sketches_between_products():
    """A sparse sketch, a product of degree 2, a layer, and an SRHT on top."""
    rng = np.random.default_rng(3)
    program = Program((30,))
    x = program.load()
    s = OSNAP(30, 16).sample(0).emit(program, x)
    z = TensorSRHT((16, 16), 24).sample(1).emit(program, s, s)
    h = program.activate(program.dense(z, matrix(rng, 20, 24)), "relu")
    program.output(SRHT(20, 12).sample(2).emit(program, h))
    program.output(s)
    X = random_rows(rng, 77, 30)
    expected = np.concatenate(_agnostic.execute(program, [X]), axis=-1)
    assert_close(execute(program, [X]), expected, scale=10)
    assert_close(execute(program, [sp.csr_array(X)]), expected, scale=10)


LAYOUTS = {
    "fortran": np.asfortranarray,
    "columns": lambda X: np.hstack([X, X, X])[:, X.shape[1] : 2 * X.shape[1]],
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "reversed rows": lambda X: X[::-1].copy()[::-1],
    "reversed columns": lambda X: X[:, ::-1].copy()[:, ::-1],
    "every second row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "one row for all": lambda X: np.broadcast_to(X[:1], X.shape),
    "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_layout_does_not_matter(layout, dtype):
    rng = np.random.default_rng(4)
    program, X = network(rng), random_rows(rng, 99, 24).astype(dtype)
    given_rows = LAYOUTS[layout](X)
    np.testing.assert_array_equal(execute(program, [given_rows]), execute(program, [given_rows.copy(order="C")]))


def test_inputs_of_different_layouts_and_types():
    program, rng = one_product(second_input_after_a_product)
    X, Y = random_rows(rng, 50, 9), random_rows(rng, 50, 6)
    expected = execute(program, [X, Y])
    np.testing.assert_allclose(execute(program, [np.asfortranarray(X), Y[::-1].copy()[::-1]]), expected, atol=1e-14)
    mixed = execute(program, [X.astype(np.float32), Y])
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(mixed, expected, atol=1e-14)
    mixed = execute(program, [sp.csr_array(X.astype(np.float32)), sp.csr_array(Y)])
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(mixed, expected, atol=1e-14)


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_whole_numbers_give_float64(dtype):
    rng = np.random.default_rng(5)
    program, X = network(rng), np.random.default_rng(6).integers(0, 2, (20, 24))
    out = execute(program, [X.astype(dtype)])
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, execute(program, [X.astype(float)]))


def test_inputs_are_not_changed():
    rng = np.random.default_rng(7)
    program, X = network(rng), random_rows(rng, 70, 24)
    copy, A = X.copy(), sp.csr_array(X)
    data = A.data.copy()
    execute(program, [X])
    execute(program, [A])
    np.testing.assert_array_equal(X, copy)
    np.testing.assert_array_equal(A.data, data)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_do_not_depend_on_their_batch(dtype, sparse):
    """To rounding: BLAS adds up in another order for another number of rows."""
    rng = np.random.default_rng(8)
    program, X = network(rng), random_rows(rng, 700, 24).astype(dtype)
    X = sp.csr_array(X) if sparse else X
    whole = execute(program, [X])
    for rows in (slice(0, 1), slice(3, 20), slice(63, 65), slice(500, 700)):
        part = execute(program, [X[rows]])
        np.testing.assert_allclose(part, whole[rows], rtol=0, atol=50 * np.finfo(dtype).eps)


@pytest.mark.parametrize("sparse", [False, True])
def test_tiles_and_threads_do_not_matter(monkeypatch, sparse):
    """Twice the same run gives the same bits; other tiles and threads the same up to rounding."""
    rng = np.random.default_rng(9)
    program, X = network(rng), random_rows(rng, 1100, 24)
    X = sp.csr_array(X) if sparse else X
    first = execute(program, [X])
    np.testing.assert_array_equal(execute(program, [X]), first)
    for threads in (1, 2, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        for fewest, most in ((8, 8), (8, 24), (64, 512), (2000, 2000)):
            monkeypatch.setattr(_stages, "FEWEST", fewest)
            monkeypatch.setattr(_stages, "MOST", most)
            np.testing.assert_allclose(execute(program, [X]), first, rtol=0, atol=1e-14)


def test_threads_do_not_matter_to_the_bit_where_tiles_are_the_same(monkeypatch):
    """BLAS has one thread in every tile as soon as there are two of ours."""
    rng = np.random.default_rng(10)
    program, X = network(rng), random_rows(rng, 1100, 24)
    monkeypatch.setattr(_stages, "FEWEST", 64)
    monkeypatch.setattr(_stages, "MOST", 64)
    results = []
    for threads in (2, 3, 4):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        results.append(execute(program, [X]))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_many_callers_at_once():
    rng = np.random.default_rng(11)
    program, X = network(rng), random_rows(rng, 400, 24)
    expected = execute(program, [X])
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: execute(program, [X]), range(12)):
            np.testing.assert_allclose(out, expected, rtol=0, atol=1e-14)


def test_nan_and_infinity_stay_in_their_rows():
    rng = np.random.default_rng(12)
    program, X = network(rng), random_rows(rng, 40, 24)
    expected = execute(program, [X])
    bad = X.copy()
    bad[5, 3], bad[20, 0] = np.nan, np.inf
    others = np.setdiff1d(np.arange(40), [5, 20])
    with np.errstate(invalid="ignore"):
        for given_rows in (bad, sp.csr_array(bad)):
            out = execute(program, [given_rows])
            np.testing.assert_allclose(out[others], expected[others], rtol=0, atol=1e-14)
            assert np.isnan(out[[5, 20], -1]).all()


def test_gradients_through_layers():
    import torch

    rng = np.random.default_rng(13)
    program = network(rng, d=6, width=7, depth=2)
    X = torch.from_numpy(rng.standard_normal((3, 6))).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: execute(program, [x]), (X,), atol=1e-6)
    zeros = torch.zeros((2, 6), dtype=torch.float32, requires_grad=True)
    out = execute(program, [zeros])
    assert not out.detach().numpy().any()
    out.sum().backward()
    assert torch.isfinite(zeros.grad).all()


def test_torch_is_not_needed():
    code = """
import sys
import numpy as np
from ntkit.sketches._base import execute
from ntkit.sketches._program import Program
program = Program((3,))
x = program.load()
h = program.activate(program.dense(x, np.ones((2, 3), np.float32)), "relu")
program.output(program.scale(h, program.norm(x), inverse=True))
out = execute(program, [np.array([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]])])
assert np.allclose(out, [[1.4, 1.4], [0, 0]]), out
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# Planted faults: the comparison must reject them.


@pytest.mark.parametrize("fault", ["transposed", "5 % too large", "one row", "activation"])
def test_the_comparison_rejects_faults(fault):
    rng = np.random.default_rng(14)
    A = matrix(rng, 9, 9)
    X = random_rows(rng, 40, 9)

    def program(fault: str) -> Program:
        p = Program((9,))
        B = {"transposed": A.T.copy(), "5 % too large": np.float32(1.05) * A, "one row": A.copy()}.get(fault, A)
        if fault == "one row":
            B[4] = B[5]
        p.output(p.activate(p.dense(p.load(), B), "step" if fault == "activation" else "relu"))
        return p

    (expected,) = _agnostic.execute(program(""), [X])
    assert_close(execute(program(""), [X]), expected)
    assert_close(execute(program(""), [X.astype(np.float32)]), expected, "float32", 0.1)
    with pytest.raises(AssertionError):
        assert_close(execute(program(fault), [X.astype(np.float32)]), expected, "float32", 0.1)
