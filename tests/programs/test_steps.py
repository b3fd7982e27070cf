"""Every kind of step, in every library and precision, on sparse rows and with gradients, against loops over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.conftest import as_numpy
from tests.programs import generators
from tests.programs.generators import KINDS, LAYOUTS, case, legible
from tests.reference import series as reference

from ntkit.programs import Program, array_api, host, run
from ntkit.programs import steps as s
from ntkit.programs.host.instructions import translate
from ntkit.sketches import PolySketch

D = 21  # not a multiple of a vector's lanes
SIZES = [0, 1, 5, 16, 17, 150]
DRAWS = np.random.default_rng(1)
MATRIX = DRAWS.uniform(-0.5, 0.5, (11, D)).astype(np.float32)
WIDER = DRAWS.uniform(-0.5, 0.5, (4, D + 1)).astype(np.float32)
DIAGONAL = DRAWS.uniform(-1, 1, D)
ROWS, OTHER_ROWS = DRAWS.integers(D, size=(2, 37), dtype=np.int32)  # two groups of 16 and a rest
WEIGHTS = DRAWS.uniform(-1, 1, 37)
CODES = DRAWS.integers(2 * 10, size=(D, 3), dtype=np.int32)  # with collisions
EVEN, ODD = (DRAWS.integers(2 * size, size=(D, 2), dtype=np.int32) for size in (8, 9))

BUILDERS: dict[str, Callable[[Program], None]] = {}


def builder(function: Callable[[Program], None]) -> Callable[[Program], None]:
    BUILDERS[function.__name__] = function
    return function


@builder
def loads(p):
    for scale, constant in ((1.0, None), (1.0, 2.0), (-2.0, None), (0.0, None), (0.0, 3.0)):
        p.output(p.load(scale=scale, constant=constant))


@builder
def constant(p):
    p.output(p.constant(np.arange(5.0)))
    p.output(p.load())


@builder
def hadamard(p):
    p.output(p.hadamard(p.load(), DIAGONAL))


@builder
def hadamard_of_a_value_read_again(p):
    x = p.load(constant=1.0)
    h = p.hadamard(x, np.append(DIAGONAL, 0.5))
    p.output(p.concatenate([p.hadamard(h, np.ones(32)), h, x]))


@builder
def gather(p):
    p.output(p.gather(p.load(), ROWS, WEIGHTS))


@builder
def gather_read_again(p):
    g = p.gather(p.load(), ROWS, WEIGHTS)
    p.output(g)
    p.output(p.gather(g, OTHER_ROWS, 2.0))


@builder
def product(p):
    p.output(p.product(p.load(), ROWS, p.load(scale=2.0), OTHER_ROWS, -0.5))


@builder
def product_read_again(p):
    x = p.load()
    square = p.product(x, ROWS, x, OTHER_ROWS, 1.5)
    p.output(p.product(square, ROWS, x, OTHER_ROWS, 1.0))
    p.output(square)


@builder
def scatter(p):
    p.output(p.scatter(p.load(), CODES, 0.7, 10))


@builder
def scatter_with_a_constant(p):
    p.output(p.scatter(p.load(scale=-2.0, constant=1.5), np.vstack([CODES, [[3, 3, 4]]]).astype(np.int32), 0.7, 10))


@builder
def scatter_of_a_computed_value(p):
    p.output(p.scatter(p.activate(p.load(), "relu"), CODES, 0.7, 10))


@builder
def concatenation(p):
    x = p.load()
    p.output(p.concatenate([x, p.norm(x), x], [0.5, -2.0, 0.0]))
    p.output(p.concatenate([x], [3.0]))
    p.output(p.concatenate([p.norm(x), x]))


@builder
def slices(p):
    x = p.load()
    p.output(p.slice(x, 20, 1))
    p.output(p.slice(p.hadamard(x, DIAGONAL), 3, 17))


@builder
def norms_of_loads(p):
    for scale, constant in ((1.0, None), (-0.3, None), (2.5, -1.5), (0.0, None), (0.0, 3.0)):
        p.output(p.norm(p.load(scale=scale, constant=constant)))


@builder
def norm_of_a_computed_value(p):
    h = p.norm(p.hadamard(p.load(), DIAGONAL))
    p.output(h)
    p.output(p.norm(h))


@builder
def norm_and_the_rows_themselves(p):
    x = p.load()
    p.output(x)
    p.output(p.norm(x))


@builder
def scale_by_a_norm(p):
    x = p.load()
    p.output(p.scale(x, p.norm(x), factor=-0.7))


@builder
def scale_by_an_inverse_norm(p):
    x = p.load(constant=0.0)
    p.output(p.scale(x, p.norm(x), factor=3.0, inverse=True))


@builder
def scale_twice_in_place(p):
    x = p.load()
    n = p.norm(x)
    p.output(p.scale(p.scale(p.hadamard(x, DIAGONAL), n, inverse=True), n, factor=0.5))


@builder
def scale_of_an_output_and_of_a_value_read_again(p):
    x = p.load()
    h = p.hadamard(x, DIAGONAL)
    p.output(h)
    p.output(p.concatenate([p.scale(h, p.norm(x), inverse=True), h]))


@builder
def scale_of_a_scalar_by_another(p):
    p.output(p.scale(p.norm(p.load()), p.norm(p.load(constant=1.0)), inverse=True))


@builder
def scale_of_a_scalar_by_itself(p):
    n = p.norm(p.load())
    p.output(p.scale(n, n, factor=0.5))


@builder
def scale_of_a_scalar_by_itself_that_is_read_again(p):
    n = p.norm(p.load())
    p.output(p.concatenate([p.scale(n, n), n]))


@builder
def scale_by_a_coordinate_and_of_a_constant(p):
    x = p.load()
    p.output(p.scale(x, p.slice(x, 2, 1), factor=2.0))
    p.output(p.scale(p.constant(np.arange(5.0)), p.norm(x)))


@builder
def normalize(p):
    p.output(p.normalize(p.load()))


@builder
def normalize_with_a_factor(p):
    p.output(p.normalize(p.load(scale=-3.0, constant=1.0), factor=-2.5))


@builder
def normalize_by_a_norm(p):
    x = p.load()
    p.output(p.normalize(p.gather(x, ROWS, WEIGHTS), p.norm(x), factor=0.5))


@builder
def normalize_by_a_negative_coordinate(p):
    x = p.load()
    p.output(p.normalize(x, p.slice(x, 4, 1)))


@builder
def normalize_with_a_floor(p):
    """About half of the rows are below 2.8."""
    p.output(p.normalize(p.load(), floor=2.8))
    p.output(p.normalize(p.load(scale=2.0), p.norm(p.load()), floor=5.6))


@builder
def normalize_in_place(p):
    p.output(p.normalize(p.hadamard(p.load(), DIAGONAL), factor=1.5))


@builder
def normalize_in_place_by_a_norm(p):
    x = p.load()
    p.output(p.normalize(p.hadamard(x, DIAGONAL), p.norm(x)))


@builder
def normalize_of_an_output_and_of_a_value_read_again(p):
    x = p.load()
    h = p.hadamard(x, DIAGONAL)
    p.output(h)
    unit = p.normalize(h)
    p.output(p.concatenate([unit, p.normalize(unit, p.norm(x)), h]))


@builder
def normalize_of_a_sparse_sketch(p):
    x = p.load()
    p.output(p.normalize(p.scatter(x, CODES, 0.7, 10), p.norm(x), floor=1e-5))


@builder
def normalize_of_a_scalar(p):
    n = p.norm(p.load())
    p.output(p.normalize(n, factor=3.0))
    p.output(p.normalize(p.slice(p.load(), 1, 1)))


@builder
def normalize_of_a_scalar_by_itself(p):
    n = p.norm(p.load())
    p.output(p.normalize(n, n))


@builder
def normalized_layers(p):
    x = p.normalize(p.load())
    for draws in (DIAGONAL, DIAGONAL[::-1].copy()):
        h = p.hadamard(x, draws)
        x = p.normalize(p.product(h, ROWS[:D], h, OTHER_ROWS[:D], 1.0), floor=1e-5)
    p.output(x)


@builder
def convolve_two(p):
    x = p.load()
    p.output(p.convolve([x, p.load(scale=-0.5)]))


@builder
def convolve_a_value_with_itself(p):
    x = p.load()
    p.output(p.convolve([x, x]))
    p.output(p.convolve([x, x, x]))


@builder
def convolve_three_of_even_size(p):
    x = p.load()
    p.output(p.convolve([p.gather(x, ROWS[:16]), p.gather(x, ROWS[16:32], 0.5), p.gather(x, OTHER_ROWS[:16])]))


@builder
def convolve_scatters(p):
    x = p.load()
    for codes, size in ((EVEN, 8), (ODD, 9)):
        p.output(p.convolve([p.scatter(x, codes, 1.0, size), p.scatter(x, codes[::-1].copy(), 1.0, size)]))


@builder
def convolve_with_a_constant(p):
    p.output(p.convolve([p.load(constant=1.0), p.constant(np.linspace(-1, 1, D + 1))]))


@builder
def convolve_numbers(p):
    x = p.load()
    p.output(p.convolve([p.norm(x), p.slice(x, 3, 1)]))
    p.output(p.convolve([p.slice(x, 5, 2), p.slice(x, 3, 2)]))


@builder
def steps_after_a_convolution(p):
    x = p.load()
    c = p.convolve([x, p.activate(x, "relu")])
    p.output(p.normalize(c, p.norm(x)))
    p.output(c)
    p.output(p.convolve([c, x]))


@builder
def dense(p):
    p.output(p.dense(p.load(), MATRIX))


@builder
def dense_of_a_scaled_load(p):
    p.output(p.dense(p.load(scale=-2.0, constant=0.5), WIDER))


@builder
def layer(p):
    x = p.load()
    h = p.dense(p.normalize(x), MATRIX)
    p.output(p.scale(p.activate(h, "relu", 2**0.5), p.norm(x), factor=11**-0.5))
    p.output(p.norm(x))


@builder
def relu(p):
    p.output(p.activate(p.load(), "relu"))
    p.output(p.activate(p.hadamard(p.load(), DIAGONAL), "relu", -0.6))


@builder
def relu_of_an_output(p):
    h = p.hadamard(p.load(), DIAGONAL)
    for value in (p.activate(h, "relu", 2.0), p.activate(h, "relu", 0.5), h):
        p.output(value)


@builder
def step(p):
    p.output(p.activate(p.load(), "step", 1.5))
    p.output(p.activate(p.scale(p.load(), p.norm(p.load())), "step", 0.8))


@builder
def outputs_twice(p):
    x = p.load()
    n, h, g = p.norm(x), p.dense(x, MATRIX), p.gather(x, ROWS)
    for value in (n, x, h, g, p.normalize(x), p.activate(h, "relu"), n, h, x, g, p.normalize(x)):
        p.output(value)


DISCONTINUOUS = {"step"}


@cache
def rows() -> np.ndarray:
    """Sparse rows, exact in float32; the second, the fourth and the last are zero."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SIZES[-1], D)) * (rng.random((SIZES[-1], D)) < 0.4)
    X[[1, 3, -1]] = 0
    return X.astype(np.float32).astype(float)


def program_of(name: str, n_features: int = D) -> Program:
    program = Program((n_features,))
    BUILDERS[name](program)
    return program


@cache
def expected(name: str) -> np.ndarray:
    return reference.run(program_of(name), [rows()])


def assert_close(actual, expected, dtype, scale: float | np.ndarray | None = None):
    """Errors below a hundred epsilons of the largest entry, which is taken to be 10 at least."""
    scale = max(10.0, np.abs(expected).max(initial=0)) if scale is None else scale
    actual = as_numpy(actual)
    assert np.isfinite(actual).all()
    ratio = 1 / np.asarray(scale, dtype=float)  # of huge and tiny rows
    generators.assert_close((actual * ratio).astype(dtype), expected * ratio, dtype, epsilons=100)
    assert actual.dtype == dtype


def programs(names: Iterable[str] = BUILDERS) -> list[tuple[str, Program]]:
    return [(name, program_of(name)) for name in sorted(names)]


def test_all_kinds_of_steps_are_tried():
    found = {type(step) for name in BUILDERS for step in program_of(name).steps}
    assert found == set(KINDS)
    assert found == {kind for kind in vars(s).values() if isinstance(kind, type) and issubclass(kind, s.Step)} - {
        s.Step
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_equal_loops_in_all_libraries(dtype, to_library):
    for name, program in programs():
        with case(name):
            for n in SIZES:
                X = to_library(rows()[:n].astype(dtype))
                out = run(program, [X])
                assert type(out) is type(X)
                assert_close(out, expected(name)[:n], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_of_sparse_rows_equal_loops(dtype):
    for name, program in programs():
        with case(name):
            for n in SIZES:
                assert_close(run(program, [sp.csr_array(rows()[:n].astype(dtype))]), expected(name)[:n], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_legible_back_end_equals_loops(dtype):
    """On NumPy rows, which `run` leaves to compiled code."""
    for name, program in programs():
        with case(name):
            assert_close(legible(program, [rows().astype(dtype)]), expected(name), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, np.float16])
def test_16_bit_numbers_are_computed_in_float32(dtype):
    """The result is the float32 one, rounded once."""
    for name, program in programs():
        with case(name):
            X = rows()[:20]
            if dtype is np.float16:
                half = X.astype(dtype)
                np.testing.assert_array_equal(
                    run(program, [half]), run(program, [half.astype("f4")]).astype(dtype), name
                )
            else:
                half = torch.from_numpy(X).to(dtype)
                out = run(program, [half])
                assert out.dtype == dtype
                assert torch.equal(out, run(program, [half.float()]).to(dtype)), name


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool"])
def test_whole_numbers_give_float64(dtype):
    X = np.random.default_rng(6).integers(0, 2, (20, D))
    for name, program in programs():
        with case(name):
            out = run(program, [X.astype(dtype)])
            assert out.dtype == np.float64
            np.testing.assert_array_equal(out, run(program, [X.astype(float)]))


def test_sparse_whole_numbers_give_float64():
    X = sp.csr_array(np.random.default_rng(6).integers(0, 2, (20, D)))
    for name, program in programs():
        with case(name):
            out = run(program, [X])
            assert out.dtype == np.float64
            np.testing.assert_array_equal(out, run(program, [X.astype(float)]))


@pytest.mark.parametrize("n_features", [1, 7, 8, 9, 16, 100])
def test_norms_of_any_length(n_features, rng):
    for dtype in ("float32", "float64"):
        X = rng.standard_normal((20, n_features)).astype(dtype)
        norms = np.linalg.norm(X.astype(float), axis=1)[:, None]
        for given in (X, sp.csr_array(X)):
            program = program_of("norm_and_the_rows_themselves", n_features)
            assert_close(run(program, [given]), np.hstack([X, norms]), dtype)
            assert_close(run(program_of("normalize", n_features), [given]), X / norms, dtype)


@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 31, 33, 64])
def test_convolutions_of_any_length(n, rng):
    """Also for a single coordinate, and for lengths with small and large prime factors."""
    X, Y = rng.standard_normal((2, 7, n))
    p = Program((n, n))
    p.output(p.convolve([p.load(0), p.load(1)]))
    p.output(p.convolve([p.load(0), p.load(1), p.load(0)]))
    exact = reference.run(p, [X, Y])
    for dtype in ("float32", "float64"):
        pair = [X.astype(dtype), Y.astype(dtype)]
        assert_close(run(p, pair), exact, dtype)
        assert_close(run(p, [sp.csr_array(x) for x in pair]), exact, dtype)


def test_only_rows_of_zeros(to_library):
    zeros = np.zeros((3, D))
    for name, program in programs():
        with case(name):
            exact = reference.run(program, [zeros])
            assert_close(run(program, [to_library(zeros)]), exact, "float64")
            assert_close(run(program, [sp.csr_array(zeros)]), exact, "float64")
            if name.startswith("normalize"):
                assert "constant" in name or "factor" in name or not exact.any()


def test_anything_over_zero_is_zero(to_library):
    p = Program((2,))
    x = p.load()
    p.output(p.scale(x, p.slice(x, 1, 1), factor=5.0, inverse=True))
    X = np.array([[3.0, 0.0], [3.0, 2.0]])
    np.testing.assert_allclose(as_numpy(run(p, [to_library(X)])), [[0, 0], [7.5, 5]])
    np.testing.assert_allclose(run(p, [sp.csr_array(X)]), [[0, 0], [7.5, 5]])


def test_the_floor_of_a_norm(to_library):
    """Rows below the floor become 0, rows at the floor and above unit vectors."""
    p = Program((2,))
    p.output(p.normalize(p.load(), factor=5.0, floor=10.0))
    X = np.array([[6.0, 7.0], [6.0, 8.0], [60.0, 80.0], [9.99, 0.0], [0.0, 0.0]])
    exact = [[0, 0], [3, 4], [3, 4], [0, 0], [0, 0]]
    np.testing.assert_allclose(as_numpy(run(p, [to_library(X)])), exact)
    np.testing.assert_allclose(run(p, [sp.csr_array(X)]), exact)


EXTREMES = [("float32", 1e30), ("float32", 1e-30), ("float64", 1e200), ("float64", 1e-200)]


@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
def test_huge_and_tiny_rows(dtype, size, to_library):
    X = (size * rows()[:20]).astype(dtype)
    for name in ("norm_and_the_rows_themselves", "normalize", "normalize_in_place", "layer", "normalize_of_a_scalar"):
        with case(name):
            program, scale = program_of(name), 1.0
            exact = reference.run(program, [X])
            if name in ("norm_and_the_rows_themselves", "layer"):
                scale = np.where(
                    np.abs(exact) > 0, np.linalg.norm(X.astype(float) / size, axis=1)[:, None] * size, size
                )
            for given in (to_library(X), sp.csr_array(X)):
                assert_close(run(program, [given]), exact, dtype, scale)


def test_rows_of_very_different_sizes_in_one_vector():
    X = rows()[:16].astype(np.float32) * np.logspace(-30, 30, 16, dtype=np.float32)[:, None]
    for name in ("norm_and_the_rows_themselves", "normalize_by_a_norm"):
        exact = reference.run(program_of(name), [X])
        scale = np.abs(exact).max(axis=1, keepdims=True)
        for given in (X, sp.csr_array(X)):
            assert_close(run(program_of(name), [given]), exact, "float32", np.where(scale > 0, scale, 1))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-39), ("float64", 1e-310)])
def test_subnormal_rows_stay_finite(dtype, size, to_library):
    """Their reciprocals overflow. Digits are lost, but no more than that."""
    X = np.array([[size, 0, 0], [size, -size, 0], [0, 0, 0], [1, 2, 3]], dtype=dtype)
    p = Program((3,))
    x = p.load()
    n = p.norm(x)
    for value in (n, p.scale(x, n, inverse=True), p.normalize(x), p.normalize(x, n)):
        p.output(value)
    direction = np.array([1, 2, 3]) / 14**0.5
    for given in (to_library(X), sp.csr_array(X)):
        out = as_numpy(run(p, [given]))
        assert np.isfinite(out).all()
        np.testing.assert_allclose(out[3], [14**0.5, *direction, *direction, 1, 2, 3], rtol=1e-6)
        assert (np.abs(out[:2, 0]) <= 1.5 * size).all()
        assert (np.abs(out[:2, 1:]) <= 1.01).all()


def test_duplicate_sparse_entries_add_up():
    """[3, 0, 4] with its 3 stored as 1 + 2, entries out of order, and explicit zeros."""
    for dtype in ("float32", "float64"):
        data, indices = np.array([1, 4, 0, 2, 0], dtype=dtype), np.array([0, 2, 1, 0, 1])
        X = sp.csr_array((data, indices, np.array([0, 4, 5])), shape=(2, 3))
        for name, exact in {
            "norm_and_the_rows_themselves": [[3, 0, 4, 5], [0, 0, 0, 0]],
            "normalize": [[0.6, 0, 0.8], [0, 0, 0]],
            "convolve_a_value_with_itself": [[9, 16, 24, 91, 144, 108], [0] * 6],
        }.items():
            with case(name):
                np.testing.assert_allclose(run(program_of(name, 3), [X]), exact, rtol=1e-6)
        p = Program((3,))
        p.output(p.norm(p.load()))  # no other step reads the row, so it is not made dense
        np.testing.assert_allclose(run(p, [X]), [[5], [0]], rtol=1e-6)
        assert X.nnz == 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_do_not_vanish_in_a_norm(bad):
    """Not even where all other entries are zero; other rows do not notice."""
    others = np.setdiff1d(np.arange(20), [1, 2])
    for position in (0, 3, D - 1):
        X = rows()[:20].copy()
        X[1, position] = X[2, position] = bad
        for given in (X, sp.csr_array(X)):
            for name in ("norms_of_loads", "normalize"):
                with case((position, type(given), name)), np.errstate(invalid="ignore"):
                    out = run(program_of(name), [given])
                    assert not np.isfinite(out[[1, 2], 0 if name == "norms_of_loads" else position]).any()
                    assert_close(out[others], expected(name)[others], "float64")


def test_nan_passes_a_relu_and_steps_at_zero():
    X = np.array([[np.nan, 1.0, -1.0, -np.inf, np.inf, 0.0, -0.0, 1e-300, -1e-300]])
    for kind, exact in {
        "relu": [np.nan, 2, 0, 0, np.inf, 0, 0, 2e-300, 0],
        "step": [0, 2, 0, 0, 2, 0, 0, 2, 0],
    }.items():
        p = Program((9,))
        p.output(p.activate(p.load(), kind, 2.0))
        for out in (run(p, [X]), legible(p, [X])):
            np.testing.assert_array_equal(out, [exact])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_layout_does_not_matter(layout):
    for dtype in ("float32", "float64"):
        X = rows()[:99].astype(dtype)
        for name, program in programs():
            with case(name):
                given = LAYOUTS[layout](X)
                np.testing.assert_array_equal(run(program, [given]), run(program, [given.copy(order="C")]))
                tensor = torch.from_numpy(np.repeat(X, 2, axis=1))[:, ::2] if layout == "fortran" else None
                if tensor is not None:
                    np.testing.assert_array_equal(run(program, [tensor]).numpy(), run(program, [X]))


def test_leading_axes(to_library):
    X = rows()[:12]
    out = as_numpy(run(program_of("layer"), [to_library(X.reshape(2, 6, D))]))
    assert out.shape == (2, 6, 12)
    np.testing.assert_allclose(out.reshape(12, -1), expected("layer")[:12], atol=1e-14)
    np.testing.assert_allclose(as_numpy(run(program_of("layer"), [to_library(X[0])])), expected("layer")[0], atol=1e-14)


def test_gradients_equal_finite_differences():
    X = torch.from_numpy(np.random.default_rng(4).uniform(0.2, 1, (2, D)) * np.where(np.arange(D) % 2, 1, -1))
    for name, program in programs(BUILDERS.keys() - DISCONTINUOUS - {"normalize_with_a_floor"}):
        with case(name):
            assert torch.autograd.gradcheck(
                lambda x, p=program: run(p, [x]), (X.requires_grad_(),), atol=1e-6, fast_mode=True
            )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_are_finite_and_rows_of_zeros_have_them_too(dtype):
    for name, program in programs():
        with case(name):
            X = torch.from_numpy(rows()[:17].astype(dtype)).requires_grad_()
            out = run(program, [X])
            assert_close(out, expected(name)[:17], dtype)
            if name in DISCONTINUOUS:
                assert not out.requires_grad
                continue
            out.sum().backward()
            assert torch.isfinite(X.grad).all()


def test_gradients_of_no_rows():
    for name, program in programs():
        with case(name):
            if any(isinstance(step, s.Convolve) for step in program.steps):
                continue  # see below
            X = torch.zeros((0, D), requires_grad=True)
            assert run(program, [X]).shape == (0, program.n_outputs)


def test_gradients_of_convolutions_of_no_rows():
    program = program_of("convolve_two")
    assert run(program, [torch.zeros((0, D), requires_grad=True)]).shape == (0, D)


def test_gradients_of_norms():
    """Also of the largest entry, by which the others are divided, and if several entries are the largest."""
    X = torch.from_numpy(rows()[:17].copy())
    X[4] = torch.tensor([2.0, -2.0, 2.0] * 7)
    p = Program((D,))
    p.output(p.norm(p.load()))
    run(p, [X.requires_grad_()]).sum().backward()
    exact = np.array([reference.unit(x) for x in X.detach().numpy()])
    np.testing.assert_allclose(X.grad.numpy(), exact, atol=1e-14)


def test_inputs_are_not_changed():
    X = rows()[:70].copy()
    copy, A = X.copy(), sp.csr_array(X)
    data = A.data.copy()
    for name, program in programs():
        with case(name):
            run(program, [X])
            run(program, [A])
            np.testing.assert_array_equal(X, copy)
            np.testing.assert_array_equal(A.data, data)


class Unknown(s.Step):
    """A step that no back end has heard of."""


def unknown_program() -> Program:
    p = Program((D,))
    p.output(p.append(Unknown((p.load(),), D)))
    return p


def test_unknown_steps_are_named():
    with pytest.raises(TypeError, match=r"The back end 'array_api' cannot run a step Unknown\."):
        array_api.run(unknown_program(), [rows()])
    with pytest.raises(TypeError, match=r"The back end 'host' cannot run a step Unknown\."):
        run(unknown_program(), [rows()])
    with pytest.raises(TypeError, match=r"The back end 'host' cannot run a step Unknown\."):
        host.run(unknown_program(), [sp.csr_array(rows())], np.float32)


@pytest.mark.parametrize("kind", [s.MatrixProduct, s.Convolve])
def test_library_steps_are_not_translated(kind):
    """They are computed between the compiled stages."""
    p = Program((D,))
    p.output(p.dense(p.load(), MATRIX) if kind is s.MatrixProduct else p.convolve([p.load(), p.load()]))
    with pytest.raises(TypeError, match=f"'host' cannot run a step {kind.__name__}"):
        translate(p, np.float64, sparse=False)


# Planted faults: the comparison must reject them.


@pytest.mark.parametrize("fault", [lambda Z: 0 * Z, lambda Z: 1.05 * Z, lambda Z: Z[::-1], lambda Z: np.abs(Z) + 1e-3])
def test_the_comparison_rejects_faults(fault):
    for name, program in programs(["norms_of_loads", "normalize", "relu", "dense", "layer", "convolve_two", "gather"]):
        with case(name):
            out = run(program, [rows()[:17].astype(np.float32)])
            assert_close(out, expected(name)[:17], "float32")
            with pytest.raises(AssertionError):
                assert_close(fault(out), expected(name)[:17], "float32")


def test_gradients_of_batches():
    """Rows in batches have the same gradients as all rows in one call."""
    X = torch.from_numpy(generators.random_rows(np.random.default_rng(0), 11, 9))
    program = generators.program_of(PolySketch(9, 8, 3).sample(0))
    gradients = []
    for batch_size in (None, 4):
        x = X.clone().requires_grad_()
        out = run(program, [x], batch_size=batch_size)
        gradients.append(torch.autograd.grad((out * torch.arange(8.0)).sum(), x)[0])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0][4:8].any()
