"""The contract of all operators."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np
import pytest
import scipy.sparse as sp
from tests.conftest import as_numpy
from tests.reference import sketches as reference

from ntkit.sketches import (
    OSNAP,
    SRHT,
    CountSketch,
    PolySketch,
    PowerSketch,
    TensorSketch,
    TensorSRHT,
    _agnostic,
    direct_sum,
)
from ntkit.sketches._base import execute

CASES = {
    "srht": SRHT(5, 7),
    "srht-one-feature": SRHT(1, 3),
    "srht-few": SRHT(40, 6),
    "srht-replace": SRHT(6, 21, replace=True),
    "countsketch": CountSketch(20, 6),
    "osnap": OSNAP(20, 18, n_nonzeros=4),
    "osnap-full": OSNAP(3, 4, n_nonzeros=4),
    "tensorsrht-1": TensorSRHT(5, 9, degree=1),
    "tensorsrht-2": TensorSRHT(5, 9),
    "tensorsrht-3": TensorSRHT(3, 33, degree=3, replace=True),
    "tensorsrht-mixed": TensorSRHT((3, 9, 1), 10, degree=3),
    "tensorsketch-1": TensorSketch(5, 6, degree=1),
    "tensorsketch-2": TensorSketch(5, 7),
    "tensorsketch-3": TensorSketch(3, 8, degree=3),
    "tensorsketch-one": TensorSketch(3, 1),
    "tensorsketch-mixed": TensorSketch((3, 6), 5),
    "polysketch-1": PolySketch(5, 9, 1),
    "polysketch-2": PolySketch(5, 9, 2),
    "polysketch-3": PolySketch(5, 8, 3),
    "polysketch-5": PolySketch(3, 6, 5, replace=True),
    "polysketch-sparse-1": PolySketch(6, 5, 1, sparse=True),
    "polysketch-sparse-3": PolySketch(6, 5, 3, sparse=True, n_nonzeros=2),
    "powersketch-1": PowerSketch(5, 9, 1),
    "powersketch-2": PowerSketch(5, 9, 2),
    "powersketch-5": PowerSketch(3, 5, 5),
    "powersketch-6": PowerSketch(2, 6, 6, replace=True),
    "powersketch-sparse-3": PowerSketch(6, 5, 3, sparse=True),
}
POWERS = [name for name in CASES if "mixed" not in name]  # one array can stand for all factors
DEGREES = [name for name in CASES if name.startswith(("poly", "power"))]


@pytest.fixture(params=CASES)
def operator(request):
    return CASES[request.param].sample(3)


@pytest.fixture(params=POWERS)
def power(request):
    return CASES[request.param].sample(4)


def factors(operator, n_rows: int, dtype="float64", density: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(n_rows)
    return [
        (rng.standard_normal((n_rows, d)) * (rng.random((n_rows, d)) <= density)).astype(dtype)
        for d in operator.factors
    ]


def row_kron(arrays: list[np.ndarray]) -> np.ndarray:
    out = np.ones((len(arrays[0]), 1))
    for X in arrays:
        out = (out[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    return out


def assert_close(actual, expected, dtype="float64", factor=100):
    """Equal to rounding: errors of a few hundred epsilons of the largest entry."""
    actual, expected = as_numpy(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    atol = factor * np.finfo(dtype).eps * max(np.max(np.abs(expected), initial=0), 1e-3)
    np.testing.assert_allclose(actual.astype(float), expected.astype(float), rtol=0, atol=atol)


def test_matrix_is_the_reference_of_the_draws(operator):
    expected = reference.matrix(operator)
    assert expected.shape == (operator.n_components, prod(operator.factors))
    assert_close(operator.matrix(), expected)


def test_sizes_are_those_asked_for(operator):
    distribution = next(law for law in CASES.values() if repr(law.sample(3)) == repr(operator))
    assert operator.n_components == distribution.n_components
    assert operator.degree == getattr(distribution, "degree", 1) == len(operator.factors)
    assert f"{operator.n_components})" in repr(operator)


@pytest.mark.parametrize("n_rows", [1, 2, 8, 15, 16, 17, 40])
def test_apply_is_the_matrix_on_the_tensor_product(operator, n_rows):
    X = factors(operator, n_rows)
    assert_close(operator.apply(*X), row_kron(X) @ reference.matrix(operator).T)


def test_apply_is_linear_in_every_factor(operator):
    X, other = factors(operator, 6), factors(operator, 7)
    for i, x in enumerate(X):
        y = other[i][:6]
        mixed = operator.apply(*X[:i], 2 * x - 3 * y, *X[i + 1 :])
        parts = 2 * operator.apply(*X) - 3 * operator.apply(*X[:i], y, *X[i + 1 :])
        assert_close(mixed, parts)


def test_one_array_stands_for_all_factors(power):
    X = factors(power, 11)[0]
    assert_close(power.apply(X), power.apply(*[X] * power.degree))
    assert_close(power.apply(X), reference.apply_power(power, X))


def test_leading_axes(operator):
    X = factors(operator, 12)
    flat = operator.apply(*X)
    cubes = operator.apply(*(x.reshape(2, 1, 6, -1) for x in X))
    np.testing.assert_array_equal(cubes, flat.reshape(2, 1, 6, -1))
    np.testing.assert_array_equal(operator.apply(*(x[5] for x in X)), flat[5])
    assert operator.apply(*X).flags.writeable


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_no_rows(operator, shape, to_library):
    out = operator.apply(*(to_library(np.zeros((*shape, d))) for d in operator.factors))
    assert tuple(out.shape) == (*shape, operator.n_components)


def test_no_sparse_rows(operator):
    out = operator.apply(*(sp.csr_array((0, d)) for d in operator.factors))
    assert out.shape == (0, operator.n_components)


def test_zero_rows_give_zero(operator, to_library):
    out = as_numpy(operator.apply(*(to_library(np.zeros((3, d))) for d in operator.factors)))
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_libraries_agree(operator, dtype, to_library):
    X = factors(operator, 21, dtype)
    out = operator.apply(*(to_library(x) for x in X))
    assert type(out) is type(to_library(X[0]))
    assert as_numpy(out).dtype == dtype
    assert_close(out, row_kron([x.astype(float) for x in X]) @ reference.matrix(operator).T, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_torch_halves(operator, dtype):
    import torch

    X = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in factors(operator, 9)]
    out = operator.apply(*X)
    assert out.dtype == X[0].dtype
    expected = operator.apply(*(x.to(torch.float64).numpy() for x in X))
    assert np.abs(as_numpy(out.to(torch.float64)) - expected).max() <= 1e-2 * np.abs(expected).max()


def test_numpy_halves(operator):
    X = factors(operator, 9, "float16")
    out = operator.apply(*X)
    assert out.dtype == np.float16
    expected = operator.apply(*(x.astype(float) for x in X))
    assert np.abs(out - expected).max() <= 1e-2 * np.abs(expected).max()


def test_long_doubles_keep_at_least_double_precision(operator):
    X = factors(operator, 9)
    assert_close(operator.apply(*(x.astype(np.longdouble) for x in X)), operator.apply(*X))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["csr_array", "csr_matrix", "csc_array", "coo_array", "lil_array", "coo_matrix"])
def test_sparse_rows_equal_dense_rows(operator, layout, dtype):
    X = factors(operator, 29, dtype, density=0.3)
    rows = [getattr(sp, layout)(x) for x in X]
    out = operator.apply(*rows)
    assert isinstance(out, np.ndarray)
    assert out.dtype == dtype
    assert_close(out, operator.apply(*(x.astype(float) for x in X)), dtype)


def test_sparse_rows_out_of_order_and_with_explicit_zeros(operator):
    rows = []
    for x in factors(operator, 29, density=0.4):
        csr = sp.csr_array(x)
        csr.data[::3] = 0
        order = np.concatenate([np.arange(b - 1, a - 1, -1) for a, b in zip(csr.indptr, csr.indptr[1:], strict=False)])
        backwards = sp.csr_array((csr.data[order], csr.indices[order], csr.indptr), shape=x.shape)
        rows.append(backwards)
    assert_close(operator.apply(*rows), operator.apply(*(r.toarray() for r in rows)))


def test_duplicate_sparse_entries_add_up_and_stay_as_they_are(operator):
    rows = []
    for x in factors(operator, 10):
        data = np.repeat(x.ravel(), 2) * np.tile([0.75, 0.25], x.size)
        indices = np.tile(np.repeat(np.arange(x.shape[1]), 2), len(x))
        indptr = np.arange(len(x) + 1) * 2 * x.shape[1]
        rows.append(sp.csr_array((data, indices, indptr), shape=x.shape))
    before = [r.copy() for r in rows]
    out = operator.apply(*rows)
    for old, new in zip(before, rows, strict=True):
        np.testing.assert_array_equal(old.data, new.data)
        np.testing.assert_array_equal(old.indices, new.indices)
    assert_close(out, operator.apply(*factors(operator, 10)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_whole_numbers_give_float64(operator, dtype, to_library):
    X = [np.abs(4 * x).astype(dtype) for x in factors(operator, 9)]
    expected = operator.apply(*(x.astype(float) for x in X))
    library = to_library if dtype != "uint64" else np.asarray  # torch knows little of uint64
    out = as_numpy(operator.apply(*(library(x) for x in X)))
    assert out.dtype == np.float64
    assert_close(out, expected)
    sparse = operator.apply(*(sp.csr_array(x) for x in X))
    assert sparse.dtype == np.float64
    assert_close(sparse, expected)


def test_memory_layout_does_not_matter(operator):
    X = factors(operator, 18)
    expected = operator.apply(*X)
    read_only = [x.copy() for x in X]
    for x in read_only:
        x.flags.writeable = False
    unaligned = [np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float64).reshape(x.shape) for x in X]
    layouts = [
        [np.asfortranarray(x) for x in X],
        [np.repeat(x, 2, axis=0)[::2] for x in X],
        [np.repeat(x, 3, axis=1)[:, ::3] for x in X],
        [x[::-1, ::-1].copy()[::-1, ::-1] for x in X],
        [x.astype(">f8") for x in X],
        read_only,
        unaligned,
        [x.tolist() for x in X],
    ]
    for layout in layouts:
        np.testing.assert_array_equal(operator.apply(*layout), expected)
    wide = operator.apply(*(np.broadcast_to(x[0], (5, x.shape[1])) for x in X))
    np.testing.assert_array_equal(wide, np.tile(expected[0], (5, 1)))


def test_torch_views(operator):
    import torch

    X = [torch.from_numpy(x) for x in factors(operator, 18)]
    expected = operator.apply(*X)
    for layout in ([x.T.contiguous().T for x in X], [x.repeat_interleave(2, dim=1)[:, ::2] for x in X]):
        assert torch.equal(operator.apply(*layout), expected)
    negative = [torch.complex(x, -x).conj().imag for x in X]  # a lazy minus sign
    assert torch.equal(operator.apply(*negative), expected)


def test_inputs_are_not_changed(operator):
    X = factors(operator, 18)
    kept = [x.copy() for x in X]
    operator.apply(*X)
    for x, y in zip(X, kept, strict=True):
        np.testing.assert_array_equal(x, y)


def test_mixed_precisions_give_the_wider(operator):
    if operator.degree == 1:
        return
    first, *others = factors(operator, 5)
    out = operator.apply(first.astype(np.float32), *others)
    assert out.dtype == np.float64
    assert_close(out, operator.apply(first.astype(np.float32).astype(float), *others))
    sparse = operator.apply(sp.csr_array(first.astype(np.float32)), *(sp.csc_array(x) for x in others))
    assert sparse.dtype == np.float64
    assert_close(sparse, out)


def test_torch_gradients(operator):
    import torch

    X = [torch.from_numpy(x).requires_grad_() for x in factors(operator, 2)]
    assert torch.autograd.gradcheck(operator.apply, X)
    assert_close(operator.apply(*X), operator.apply(*(x.detach() for x in X)))
    with torch.no_grad():
        assert not operator.apply(*X).requires_grad
    if len(X) > 1:
        assert operator.apply(X[0], *(x.detach() for x in X[1:])).requires_grad
        assert operator.apply(X[0].detach(), *X[1:]).requires_grad


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_values_are_the_same_with_and_without_gradients(power, dtype):
    import torch

    X = torch.from_numpy(factors(power, 9)[0]).to(getattr(torch, dtype))
    plain, traced = power.apply(X), power.apply(X.clone().requires_grad_()).detach()
    assert traced.dtype == plain.dtype
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-5
    assert (plain - traced).abs().max() <= tolerance * plain.abs().max()


def test_equal_seeds_give_equal_operators():
    for law in CASES.values():
        X = factors(law.sample(0), 4)
        one = law.sample(11).apply(*X)
        for rng in (11, np.int64(11), np.random.SeedSequence(11)):
            np.testing.assert_array_equal(law.sample(rng).apply(*X), one)
        for make in (np.random.default_rng, np.random.RandomState):
            np.testing.assert_array_equal(law.sample(make(5)).apply(*X), law.sample(make(5)).apply(*X))


@pytest.mark.parametrize(
    "law",
    [
        SRHT(64, 64), CountSketch(64, 64), OSNAP(64, 64), TensorSRHT(64, 64), TensorSketch(64, 64),
        PolySketch(64, 64, 3), PolySketch(64, 64, 3, sparse=True), PowerSketch(64, 64, 3),
    ],
    ids=repr,
)  # fmt: skip
def test_other_seeds_give_other_operators(law):
    rng = np.random.default_rng(0)
    x = np.linspace(1, 2, 64)
    results = [law.sample(r).apply(x) for r in (0, 1, 2, None, None, rng, rng)]
    assert len({r.tobytes() for r in results}) == len(results)


def test_a_distribution_does_not_change_by_sampling():
    for law in CASES.values():
        before = repr(law)
        law.sample(0)
        assert repr(law) == before
        assert law == copy.deepcopy(law) == pickle.loads(pickle.dumps(law))
        assert hash(law) == hash(copy.copy(law))


@pytest.mark.parametrize("name", CASES)
def test_copies_and_pickles_are_the_same_map(name):
    operator = CASES[name].sample(0)
    X = factors(operator, 5)
    fresh = [pickle.loads(pickle.dumps(operator)), copy.copy(operator), copy.deepcopy(operator)]
    size = len(pickle.dumps(operator))
    expected = operator.apply(*X)
    if name in DEGREES:
        degrees = operator.apply_degrees(X[0])
    used = [pickle.loads(pickle.dumps(operator)), copy.copy(operator), copy.deepcopy(operator)]
    assert len(pickle.dumps(operator)) == size  # what was compiled stays behind
    for same in [*fresh, *used]:
        np.testing.assert_array_equal(same.apply(*X), expected)
        assert repr(same) == repr(operator)
        if name in DEGREES:
            np.testing.assert_array_equal(same.apply_degrees(X[0]), degrees)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_do_not_depend_on_their_batch(operator, dtype, sparse):
    X = [sp.csr_array(x) if sparse else x for x in factors(operator, 83, dtype, density=0.5)]
    whole = operator.apply(*X)
    for rows in (slice(0, 1), slice(3, 20), slice(40, 83), np.array([82, 5, 5, 0, 17, 33, 64, 1, 2, 3, 4])):
        np.testing.assert_array_equal(operator.apply(*(x[rows] for x in X)), whole[rows])


@pytest.mark.parametrize("working_memory", [1e-3, 0.1])
def test_rows_do_not_depend_on_working_memory(operator, working_memory, to_library):
    from sklearn import config_context

    X = [to_library(x) for x in factors(operator, 83)]
    whole = as_numpy(operator.apply(*X))
    with config_context(working_memory=working_memory):
        assert_close(operator.apply(*X), whole)


def test_nan_and_infinity_stay_in_their_rows(operator):
    X = factors(operator, 20)
    expected = operator.apply(*X)
    X[0][3, 0] = np.nan
    X[-1][17, 0] = np.inf
    with np.errstate(invalid="ignore"):  # ∞ − ∞ in NumPy's product of transforms
        out = operator.apply(*X)
    others = np.delete(np.arange(20), [3, 17])
    np.testing.assert_array_equal(out[others], expected[others])
    assert not np.isfinite(out[3]).all()
    assert not np.isfinite(out[17]).all()


SCRIPT = """
import hashlib, numpy as np, scipy.sparse as sp
from ntkit.sketches import *
X = np.random.default_rng(0).standard_normal((301, 37)).astype(np.float32)
S = sp.random_array((301, 37), density=0.3, rng=np.random.default_rng(1), format="csr")
for law in [SRHT(37, 50), OSNAP(37, 50), TensorSRHT(37, 50, degree=3), TensorSketch(37, 50),
            PolySketch(37, 50, 5), PolySketch(37, 50, 3, sparse=True), PowerSketch(37, 50, 6)]:
    operator = law.sample(0)
    for rows in (X, X.astype(np.float64), S):
        print(law, hashlib.sha256(np.ascontiguousarray(operator.apply(rows)).tobytes()).hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads():
    def run(n_threads: int) -> str:
        environment = {**os.environ, "NUMBA_NUM_THREADS": str(n_threads)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    one = run(1)
    assert one.count("\n") == 21
    assert run(2) == run(5) == one


def test_many_callers_at_once(power):
    X = factors(power, 200)[0]
    expected = pickle.loads(pickle.dumps(power)).apply(X)
    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: power.apply(X), range(16)):
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_code_equals_array_code(power, dtype):
    X = factors(power, 37, dtype)[0]
    program = power.program()
    expected = np.concatenate(_agnostic.execute(program, [X]), axis=-1)
    assert expected.dtype == dtype
    assert_close(execute(program, (X,)), expected, dtype)
    assert_close(execute(program, (sp.csr_array(X),)), expected, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_scaled_input_with_a_constant_feature(power, dtype):
    if power.factors[0] == 1:
        return
    X = factors(power, 21, dtype)[0][:, :-1]
    program = power.program(scale=0.5, constant=-2.0)
    longer = np.hstack([0.5 * X, np.full((21, 1), -2.0, dtype)])
    expected = np.concatenate(_agnostic.execute(power.program(), [longer]), axis=-1)
    assert_close(np.concatenate(_agnostic.execute(program, [X]), axis=-1), expected, dtype)
    assert_close(execute(program, (X,)), expected, dtype)
    assert_close(execute(program, (sp.csr_array(X),)), expected, dtype)


@pytest.mark.parametrize("name", DEGREES)
def test_degrees_at_once_in_all_libraries(name, to_library):
    law = CASES[name]
    operator = law.sample(2)
    X = factors(operator, 13)[0]
    lowest = 1 if isinstance(law, PowerSketch) else 0
    whole = as_numpy(operator.apply_degrees(to_library(X)))
    assert whole.shape == (13, law.degree + 1 - lowest, law.n_components)
    assert_close(whole[:, -1], operator.apply(X))
    chosen = [law.degree, lowest, law.degree, lowest]
    assert_close(operator.apply_degrees(to_library(X), chosen), whole[:, np.array(chosen) - lowest])
    assert_close(operator.apply_degrees(to_library(X[4])), whole[4])
    assert_close(
        operator.apply_degrees(to_library(X[:12].reshape(3, 4, -1))), whole[:12].reshape(3, 4, *whole.shape[1:])
    )
    assert_close(operator.apply_degrees(sp.csr_array(X)), whole)
    assert operator.apply_degrees(to_library(X[:0])).shape == (0, *whole.shape[1:])
    assert as_numpy(operator.apply_degrees(to_library(X.astype(np.float32)))).dtype == np.float32
    np.testing.assert_array_equal(operator.apply_degrees(X)[5:9], operator.apply_degrees(X[5:9]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, on its first use of these
@pytest.mark.parametrize("law", [SRHT(5, 7), TensorSRHT(5, 7), PolySketch(5, 7, 3), TensorSketch(5, 7), OSNAP(5, 8)])
def test_forward_derivatives_and_function_transforms(law, rng):
    import torch
    from torch.autograd import forward_ad

    operator = law.sample(0)
    X, V = torch.from_numpy(rng.standard_normal((2, 3, 5)))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(operator.apply(forward_ad.make_dual(X, V))).tangent
    step = 1e-6
    expected = (operator.apply(X + step * V) - operator.apply(X - step * V)) / (2 * step)
    np.testing.assert_allclose(tangent, expected, atol=1e-7)
    assert_close(torch.func.jvp(operator.apply, (X,), (V,))[1], tangent)
    assert_close(torch.func.vmap(operator.apply)(X), operator.apply(X))
    slope = torch.func.jacrev(operator.apply)(X[0])
    assert_close(slope @ V[0], tangent[0])


@pytest.mark.parametrize("name", DEGREES)
def test_gradients_of_degrees(name):
    import torch

    operator = CASES[name].sample(2)
    X = torch.from_numpy(factors(operator, 2)[0]).requires_grad_()
    assert torch.autograd.gradcheck(operator.apply_degrees, (X,))


def test_numpy_integers_are_sizes_too():
    five, seven, two = np.int64(5), np.int32(7), np.uint8(2)
    laws = [
        SRHT(five, seven), CountSketch(five, seven), OSNAP(five, seven, n_nonzeros=two), TensorSRHT(five, seven, two),
        TensorSRHT((five, five), seven), TensorSketch(five, seven, two), PolySketch(five, seven, two),
        PolySketch(five, seven, two, sparse=True, n_nonzeros=two), PowerSketch(five, seven, two),
    ]  # fmt: skip
    for law in laws:
        operator = law.sample(np.int64(0))
        assert operator.apply(np.ones((3, 5))).shape == (3, 7)


def test_large_sizes_and_many_rows(rng):
    X = rng.standard_normal((300, 3000)).astype(np.float32)
    operator = direct_sum(SRHT(1000, 700).sample(0), OSNAP(2000, 400).sample(1))
    expected = np.hstack([
        X[:, :1000] @ reference.srht_matrix(operator.operators[0]).T,
        X[:, 1000:] @ reference.osnap_matrix(operator.operators[1]).T,
    ])  # fmt: skip
    assert_close(operator.apply(X), expected, "float32")
    assert_close(operator.apply(sp.csr_array(X)), expected, "float32")
