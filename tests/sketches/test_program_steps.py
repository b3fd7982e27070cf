"""Norm, Scale, Dense, Activate and weighted Concatenate: all interpreters against loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from tests.conftest import as_numpy
from tests.reference import series as reference

from ntkit.sketches import _agnostic
from ntkit.sketches._base import execute
from ntkit.sketches._program import Program

D = 21  # not a multiple of a vector's lanes
SIZES = [0, 1, 5, 16, 17, 1000]
MATRIX = np.random.default_rng(1).uniform(-0.5, 0.5, (11, D)).astype(np.float32)
WIDER = np.random.default_rng(2).uniform(-0.5, 0.5, (4, D + 1)).astype(np.float32)
DIAGONAL = np.random.default_rng(3).uniform(-1, 1, D)


def norm(p):
    p.output(p.norm(p.load()))


def norm_of_scaled_rows(p):
    p.output(p.norm(p.load(scale=-0.3)))


def norm_with_a_constant(p):
    p.output(p.norm(p.load(scale=2.5, constant=-1.5)))


def norms_of_several_loads(p):
    for scale, constant in ((1.0, None), (1.0, 2.0), (-2.0, None), (0.0, None), (0.0, 3.0)):
        p.output(p.norm(p.load(scale=scale, constant=constant)))


def norm_and_the_rows_themselves(p):
    x = p.load()
    p.output(x)
    p.output(p.norm(x))


def norm_of_a_computed_value(p):
    p.output(p.norm(p.hadamard(p.load(), DIAGONAL)))


def norm_of_a_norm(p):
    p.output(p.norm(p.norm(p.load(scale=-2.0))))


def scale_by_a_norm(p):
    x = p.load()
    p.output(p.scale(x, p.norm(x), factor=-0.7))


def unit_vectors(p):
    x = p.load()
    p.output(p.scale(x, p.norm(x), inverse=True))


def unit_vectors_with_a_factor(p):
    x = p.load(constant=0.0)
    p.output(p.scale(x, p.norm(x), factor=3.0, inverse=True))


def scale_in_place(p):
    x = p.load()
    p.output(p.scale(p.hadamard(x, DIAGONAL), p.norm(x), inverse=True))


def scale_twice_in_place(p):
    x = p.load()
    n = p.norm(x)
    p.output(p.scale(p.scale(p.hadamard(x, DIAGONAL), n, inverse=True), n, factor=0.5))


def scale_of_an_output(p):
    x = p.load()
    h = p.hadamard(x, DIAGONAL)
    p.output(h)
    p.output(p.scale(h, p.norm(x), inverse=True))


def scale_of_a_value_read_again(p):
    x = p.load()
    h = p.hadamard(x, DIAGONAL)
    s = p.scale(h, p.norm(x), inverse=True)
    p.output(p.concatenate([s, h]))


def scale_of_a_scalar_by_another(p):
    x = p.load()
    p.output(p.scale(p.norm(x), p.norm(p.load(constant=1.0)), inverse=True))


def scale_of_a_scalar_by_itself(p):
    n = p.norm(p.load())
    p.output(p.scale(n, n, factor=0.5))


def scale_of_a_scalar_by_itself_that_is_read_again(p):
    n = p.norm(p.load())
    s = p.scale(n, n)
    p.output(p.concatenate([s, n]))


def scale_by_a_coordinate(p):
    x = p.load()
    p.output(p.scale(x, p.slice(x, 2, 1), factor=2.0))


def scale_of_a_constant(p):
    p.output(p.scale(p.constant(np.arange(5.0)), p.norm(p.load())))


def relu(p):
    p.output(p.activate(p.load(), "relu"))


def step(p):
    p.output(p.activate(p.load(), "step", 1.5))


def relu_in_place(p):
    p.output(p.activate(p.hadamard(p.load(), DIAGONAL), "relu", -0.6))


def step_in_place(p):
    p.output(p.activate(p.scale(p.load(), p.norm(p.load())), "step", 0.8))


def both_activations_of_one_value(p):
    h = p.hadamard(p.load(), DIAGONAL)
    p.output(p.activate(h, "relu", 2.0))
    p.output(p.activate(h, "relu", 0.5))
    p.output(p.activate(p.load(scale=-1.0), "step"))


def activation_of_an_output(p):
    h = p.hadamard(p.load(), DIAGONAL)
    p.output(p.activate(h, "relu"))
    p.output(h)


def dense(p):
    p.output(p.dense(p.load(), MATRIX))


def dense_of_a_scaled_load(p):
    p.output(p.dense(p.load(scale=-2.0, constant=0.5), WIDER))


def dense_of_unit_vectors(p):
    x = p.load()
    p.output(p.dense(p.scale(x, p.norm(x), inverse=True), MATRIX))


def layer(p):
    x = p.load()
    n = p.norm(x)
    h = p.dense(p.scale(x, n, inverse=True), MATRIX)
    p.output(p.scale(p.activate(h, "relu", 2**0.5), n, factor=11**-0.5))
    p.output(n)


def weighted_concatenation(p):
    x = p.load()
    p.output(p.concatenate([x, p.norm(x), x], [0.5, -2.0, 0.0]))


def concatenation_of_one_value(p):
    p.output(p.concatenate([p.load()], [3.0]))


def outputs_twice(p):
    x = p.load()
    n = p.norm(x)
    s, a = p.scale(x, n, inverse=True), p.activate(x, "relu")
    for value in (n, s, a, n, s, a, x, x):
        p.output(value)


def outputs_of_dense_twice(p):
    h = p.dense(p.load(), MATRIX)
    for value in (h, p.activate(h, "relu"), h):
        p.output(value)


BUILDERS: dict[str, Callable[[Program], None]] = {
    f.__name__: f
    for f in (
        norm, norm_of_scaled_rows, norm_with_a_constant, norms_of_several_loads, norm_and_the_rows_themselves,
        norm_of_a_computed_value, norm_of_a_norm, scale_by_a_norm, unit_vectors, unit_vectors_with_a_factor,
        scale_in_place, scale_twice_in_place, scale_of_an_output, scale_of_a_value_read_again,
        scale_of_a_scalar_by_another, scale_of_a_scalar_by_itself, scale_of_a_scalar_by_itself_that_is_read_again,
        scale_by_a_coordinate, scale_of_a_constant, relu, step, relu_in_place, step_in_place,
        both_activations_of_one_value, activation_of_an_output, dense, dense_of_a_scaled_load, dense_of_unit_vectors,
        layer, weighted_concatenation, concatenation_of_one_value, outputs_twice, outputs_of_dense_twice,
    )
}  # fmt: skip


@cache
def rows() -> np.ndarray:
    """Sparse rows, exact in float32; the second, the fourth and the last of 1000 are zero."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, D)) * (rng.random((1000, D)) < 0.4)
    X[[1, 3, -1]] = 0
    return X.astype(np.float32).astype(float)


def program_of(name: str, n_features: int = D) -> Program:
    program = Program((n_features,))
    BUILDERS[name](program)
    return program


@cache
def expected(name: str) -> np.ndarray:
    return reference.run(program_of(name), [rows()])


def assert_close(actual, expected, dtype, scale: float | np.ndarray = 10.0):
    """Errors of a hundred epsilons of numbers of about `scale`."""
    actual = as_numpy(actual)
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    bad = np.abs(actual - expected) > 100 * np.finfo(dtype).eps * scale
    assert not bad.any(), f"{actual[bad][:5]} instead of {expected[bad][:5]}"
    assert np.isfinite(actual).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BUILDERS)
def test_steps_equal_loops_in_all_libraries(name, dtype, to_library):
    program = program_of(name)
    for n in SIZES:
        X = rows()[:n].astype(dtype)
        out = execute(program, [to_library(X)])
        assert type(out) is type(to_library(X))
        assert_close(out, expected(name)[:n], dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BUILDERS)
def test_steps_of_sparse_rows_equal_loops(name, dtype):
    program = program_of(name)
    for n in SIZES:
        assert_close(execute(program, [sp.csr_array(rows()[:n].astype(dtype))]), expected(name)[:n], dtype)


@pytest.mark.parametrize("name", BUILDERS)
def test_interpreters_agree(name):
    """The array code of NumPy rows too, which `execute` leaves to the compiled code."""
    parts = _agnostic.execute(program_of(name), [rows()])
    assert_close(np.concatenate(parts, axis=-1), expected(name), "float64")


@pytest.mark.parametrize("n_features", [1, 7, 8, 9, 16, 100])
def test_norms_of_any_length(n_features, rng):
    X = rng.standard_normal((20, n_features))
    for dtype in ("float32", "float64"):
        program = program_of("norm", n_features)
        exact = np.linalg.norm(X.astype(dtype).astype(float), axis=1)[:, None]
        assert_close(execute(program, [X.astype(dtype)]), exact, dtype)
        assert_close(execute(program, [sp.csr_array(X.astype(dtype))]), exact, dtype)


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_of_zeros_alone(name, to_library):
    zeros = np.zeros((3, D))
    exact = reference.run(program_of(name), [zeros])
    assert_close(execute(program_of(name), [to_library(zeros)]), exact, "float64")
    assert_close(execute(program_of(name), [sp.csr_array(zeros)]), exact, "float64")


def test_zero_over_its_norm_is_zero(to_library):
    for name in ("unit_vectors", "unit_vectors_with_a_factor", "scale_in_place", "scale_twice_in_place"):
        out = as_numpy(execute(program_of(name), [to_library(rows()[:5])]))
        assert not out[[1, 3]].any()
        assert out[[0, 2, 4]].any(axis=1).all()


def test_anything_over_zero_is_zero(to_library):
    p = Program((2,))
    x = p.load()
    p.output(p.scale(x, p.slice(x, 1, 1), factor=5.0, inverse=True))
    X = np.array([[3.0, 0.0], [3.0, 2.0]])
    np.testing.assert_allclose(as_numpy(execute(p, [to_library(X)])), [[0, 0], [7.5, 5]])
    np.testing.assert_allclose(execute(p, [sp.csr_array(X)]), [[0, 0], [7.5, 5]])


EXTREMES = [("float32", 1e30), ("float32", 1e-30), ("float64", 1e200), ("float64", 1e-200), ("float64", 1e30)]


@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
@pytest.mark.parametrize("name", ["norm", "norm_of_scaled_rows", "norm_and_the_rows_themselves"])
def test_norms_neither_overflow_nor_underflow(name, dtype, size, to_library):
    X = (size * rows()[:20]).astype(dtype)
    exact = reference.run(program_of(name), [X])
    assert_close(execute(program_of(name), [to_library(X)]), exact, dtype, np.abs(exact))
    assert_close(execute(program_of(name), [sp.csr_array(X)]), exact, dtype, np.abs(exact))


@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
@pytest.mark.parametrize("name", ["unit_vectors", "scale_in_place", "dense_of_unit_vectors"])
def test_unit_vectors_of_huge_and_tiny_rows(name, dtype, size, to_library):
    X = (size * rows()[:20]).astype(dtype)
    exact = reference.run(program_of(name), [X])
    assert_close(execute(program_of(name), [to_library(X)]), exact, dtype)
    assert_close(execute(program_of(name), [sp.csr_array(X)]), exact, dtype)


def test_rows_of_very_different_sizes_in_one_vector():
    X = rows()[:16].astype(np.float32) * np.logspace(-30, 30, 16, dtype=np.float32)[:, None]
    exact = reference.run(program_of("norm"), [X])
    for given in (X, sp.csr_array(X)):
        assert_close(execute(program_of("norm"), [given]), exact, "float32", exact)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-39), ("float64", 1e-310)])
def test_subnormal_rows_stay_finite(dtype, size, to_library):
    """Their reciprocals overflow. Digits are lost, but no more than that."""
    X = np.array([[size, 0, 0], [size, -size, 0], [0, 0, 0], [1, 2, 3]], dtype=dtype)
    p = Program((3,))
    x = p.load()
    n = p.norm(x)
    p.output(n)
    p.output(p.scale(x, n, inverse=True))
    for given in (to_library(X), sp.csr_array(X)):
        out = as_numpy(execute(p, [given]))
        assert np.isfinite(out).all()
        np.testing.assert_allclose(out[3], np.array([14**0.5, *(np.array([1, 2, 3]) / 14**0.5)]), rtol=1e-6)
        assert (np.abs(out[:2, 0]) <= 1.5 * size).all()
        assert (np.abs(out[:2, 1:]) <= 1.01).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_duplicate_sparse_entries_add_up_in_a_norm(dtype):
    """[3, 4] with its 3 stored as 1 + 2."""
    X = sp.csr_array((np.array([1, 2, 4], dtype=dtype), np.array([0, 0, 2]), np.array([0, 3])), shape=(1, 3))
    np.testing.assert_allclose(execute(program_of("norm", 3), [X]), [[5]])
    assert X.nnz == 3


def test_sparse_entries_out_of_order_and_explicit_zeros():
    X = sp.csr_array((np.array([4.0, 0.0, 3.0, 0.0]), np.array([2, 1, 0, 1]), np.array([0, 3, 4])), shape=(2, 3))
    np.testing.assert_allclose(execute(program_of("norm", 3), [X]), [[5], [0]])


def test_a_scale_of_zero_in_a_load():
    p = Program((D,))
    p.output(p.norm(p.load(scale=0.0)))
    for X in (rows()[:5], sp.csr_array(rows()[:5])):
        np.testing.assert_array_equal(execute(p, [X]), np.zeros((5, 1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 3, D - 1])
def test_nan_and_infinity_do_not_vanish_in_a_norm(bad, position):
    """Not even where all other entries are zero; other rows do not notice."""
    X = rows()[:20].copy()
    X[1, position] = X[2, position] = bad
    for given in (X, sp.csr_array(X)):
        out = execute(program_of("norm"), [given])
        assert not np.isfinite(out[[1, 2]]).any()
        others = np.setdiff1d(np.arange(20), [1, 2])
        assert_close(out[others], expected("norm")[others], "float64")


def test_nan_passes_a_relu():
    X = np.array([[np.nan, 1.0, -1.0, -np.inf, np.inf]])
    np.testing.assert_array_equal(execute(program_of("relu", 5), [X]), [[np.nan, 1, 0, 0, np.inf]])
    (out,) = _agnostic.execute(program_of("relu", 5), [X])
    np.testing.assert_array_equal(out, [[np.nan, 1, 0, 0, np.inf]])


def test_steps_at_zero():
    X = np.array([[0.0, -0.0, 1e-300, -1e-300]])
    np.testing.assert_array_equal(execute(program_of("step", 4), [X]), [[0, 0, 1.5, 0]])


@pytest.mark.parametrize("layout", ["fortran", "columns", "every second column", "reversed rows", "every third row"])
@pytest.mark.parametrize("name", ["norm", "unit_vectors", "relu", "dense", "layer"])
def test_memory_layout_does_not_matter(name, layout, to_library):
    X = rows()[:99]
    if layout == "fortran":
        given, exact = np.asfortranarray(X), expected(name)[:99]
    elif layout == "columns":
        given, exact = np.hstack([X, X, X])[:, D : 2 * D], expected(name)[:99]
    elif layout == "every second column":
        given, exact = np.repeat(X, 2, axis=1)[:, ::2], expected(name)[:99]
    elif layout == "reversed rows":
        given, exact = X[::-1], expected(name)[:99][::-1]
    else:
        given, exact = X[::3], expected(name)[:99:3]
    assert_close(execute(program_of(name), [given]), exact, "float64")
    assert_close(execute(program_of(name), [to_library(given)]), exact, "float64")


def test_leading_axes():
    X = rows()[:12]
    np.testing.assert_allclose(
        execute(program_of("layer"), [X.reshape(2, 6, D)]).reshape(12, -1), expected("layer")[:12]
    )
    np.testing.assert_allclose(execute(program_of("layer"), [X[0]]), expected("layer")[0])


@pytest.mark.parametrize("name", BUILDERS)
def test_gradients_are_those_of_finite_differences(name):
    import torch

    if name in ("step", "step_in_place", "both_activations_of_one_value"):
        return  # discontinuous where an entry is zero
    program = program_of(name)
    X = torch.from_numpy(np.random.default_rng(4).uniform(0.2, 1, (2, D)) * np.where(np.arange(D) % 2, 1, -1))
    assert torch.autograd.gradcheck(lambda x: execute(program, [x]), (X.requires_grad_(),), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BUILDERS)
def test_gradients_are_finite_and_rows_of_zeros_have_them_too(name, dtype):
    import torch

    X = torch.from_numpy(rows()[:17].astype(dtype)).requires_grad_()
    out = execute(program_of(name), [X])
    assert_close(out, expected(name)[:17], dtype)
    if name in ("step", "step_in_place"):
        assert not out.requires_grad
        return
    out.sum().backward()
    assert torch.isfinite(X.grad).all()


def test_gradients_of_norms():
    import torch

    X = torch.from_numpy(rows()[:17].copy()).requires_grad_()
    execute(program_of("norm"), [X]).sum().backward()
    exact = np.array([reference.unit(x) for x in rows()[:17]])
    np.testing.assert_allclose(X.grad.numpy(), exact, atol=1e-14)


def test_gradients_of_norms_with_ties():
    """Of the largest entry, by which the others are divided."""
    import torch

    X = torch.tensor([[2.0, -2.0, 2.0], [1.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    execute(program_of("norm", 3), [X]).sum().backward()
    exact = np.array([reference.unit(x) for x in X.detach().numpy()])
    np.testing.assert_allclose(X.grad.numpy(), exact, atol=1e-15)


def test_a_step_asked_for_twice_is_computed_once():
    p = Program((D,))
    x = p.load()
    n = p.norm(x)
    assert p.norm(x) == n
    s = p.scale(x, n, inverse=True)
    assert p.scale(x, n, inverse=True) == s
    assert len({s, p.scale(x, n), p.scale(x, n, factor=2.0), p.scale(x, n, factor=2.0, inverse=True)}) == 4
    h = p.dense(x, MATRIX)
    assert p.dense(x, MATRIX) == h != p.dense(x, MATRIX.copy())
    assert p.activate(h, "relu") != p.activate(h, "step")
    assert p.activate(h, "relu") != p.activate(h, "relu", 2.0)
    assert p.concatenate([x, n]) == p.concatenate([x, n], [1.0, 1.0]) != p.concatenate([x, n], [1.0, 2.0])


# Planted faults: the comparison must reject them.


@pytest.mark.parametrize("fault", [lambda Z: 0 * Z, lambda Z: 1.05 * Z, lambda Z: Z[::-1], lambda Z: np.abs(Z) + 1e-3])
@pytest.mark.parametrize("name", ["norm", "unit_vectors", "relu_in_place", "dense", "layer"])
def test_the_comparison_rejects_faults(name, fault):
    out = execute(program_of(name), [rows()[:17].astype(np.float32)])
    with pytest.raises(AssertionError):
        assert_close(fault(out), expected(name)[:17], "float32")
