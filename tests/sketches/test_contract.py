"""The contract of all operators, tested on one operator of each kind.

`test_laws.py` has the tests of each law.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from math import prod

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
from sklearn import config_context
from tests.conftest import as_numpy
from tests.reference import sketches as reference
from tests.sketches.helpers import assert_close, make_rows, row_kron, run_in_new_process
from tests.tiers import ALL, sampled

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, direct_sum


def composed(seed: int):
    """A composition with a direct sum inside, on a tensor product."""
    blocks = direct_sum(OSNAP(5, 6).sample(seed), CountSketch(4, 5).sample(seed + 1))
    return SRHT(11, 7).sample(seed + 2) @ blocks @ TensorSRHT((4, 3), 9).sample(seed + 3)


OPERATORS = {
    "srht": SRHT(6, 21).sample,  # 21 of 3 · 8 rows
    "osnap": OSNAP(20, 18, n_nonzeros=4).sample,  # blocks of 4 and 5
    "tensor": TensorSRHT((3, 9, 1), 10, degree=3).sample,
    "tensorsketch": TensorSketch(5, 7).sample,
    "tree": PolySketch(5, 8, 3).sample,
    "power": PowerSketch(3, 5, 6).sample,
    "composed": composed,
}
TENSORS = ["tensor", "tensorsketch", "tree", "power", "composed"]  # more than one factor
EPSILON = np.finfo(float).eps
POWERS = ["srht", "osnap", "tensorsketch", "tree", "power"]  # one array can be used for all factors


@pytest.fixture(params=OPERATORS)
def operator(request):
    return OPERATORS[request.param](3)


@pytest.fixture(params=TENSORS)
def tensor(request):
    return OPERATORS[request.param](3)


@pytest.fixture(params=POWERS)
def power(request):
    return OPERATORS[request.param](3)


# Values


def test_the_cases_match_their_lists():
    degrees = {name: OPERATORS[name](3).degree for name in OPERATORS}
    assert [name for name, degree in degrees.items() if degree > 1] == TENSORS
    assert [name for name in OPERATORS if len(set(OPERATORS[name](3).factors)) == 1] == POWERS


def test_matrix(operator):
    S = operator.matrix()
    assert S.shape == (operator.n_components, prod(operator.factors))
    assert_close(S, reference.matrix(operator))


def test_values_and_types_in_all_libraries(operator, to_library):
    S = reference.matrix(operator)
    for dtype, n_rows in product(("float32", "float64"), (1, 2, 8, 15, 16, 17, 40)):
        X = make_rows(operator.factors, n_rows, dtype)
        out = operator.apply(*map(to_library, X))
        assert type(out) is type(to_library(X[0]))
        assert as_numpy(out).dtype == dtype
        assert_close(out, row_kron(X) @ S.T, dtype, case=(dtype, n_rows))


def test_one_array_can_be_used_for_all_factors(to_library):
    for name, dtype in product(POWERS, ("float32", "float64")):
        operator = OPERATORS[name](3)
        X = make_rows(operator.factors[:1], 21, dtype)[0]
        expected = reference.apply_power(operator, X.astype(float))
        out = operator.apply(to_library(X))
        assert as_numpy(out).dtype == dtype
        assert_close(out, expected, dtype, case=(name, dtype))
        assert_close(operator.apply(*[to_library(X)] * operator.degree), expected, dtype, case=(name, dtype))
        assert_close(operator.apply(sp.csr_array(X)), expected, dtype, case=(name, dtype, "csr"))


@cache
def many_columns() -> dict:
    """Operators on 5000 features, and their results for some rows; float32 represents these rows exactly."""
    whole = direct_sum(SRHT(2000, 30).sample(0), OSNAP(3000, 40).sample(1))
    laws = [
        SRHT(5000, 20), CountSketch(5000, 20), TensorSRHT(5000, 20), TensorSketch(5000, 9), PolySketch(5000, 16, 3),
        PolySketch(5000, 16, 2, sparse=True), PowerSketch(5000, 16, 3),
    ]  # fmt: skip
    operators = {repr(law): law.sample(0) for law in laws} | {"composed": SRHT(70, 20).sample(2) @ whole}
    X = make_rows((5000,), 7, "float32", density=0.3)[0].astype(float)
    return {name: (operator, X, reference.apply_power(operator, X)) for name, operator in operators.items()}


def test_many_columns(to_library):
    for name, (operator, X, expected) in many_columns().items():
        for dtype in ("float32", "float64"):
            rows = X.astype(dtype)
            assert_close(operator.apply(to_library(rows)), expected, dtype, case=(name, dtype))
            assert_close(operator.apply(sp.csr_array(rows)), expected, dtype, case=(name, dtype, "csr"))


# Shapes


def test_leading_axes(operator, to_library):
    X = make_rows(operator.factors, 12)
    flat = operator.apply(*X)
    assert flat.flags.writeable
    for leading in [(12,), (3, 4), (2, 1, 6), (2, 3, 1, 2), (1, 1, 2, 3, 2)]:
        out = operator.apply(*(to_library(x.reshape(*leading, -1)) for x in X))
        assert_close(out, flat.reshape(*leading, -1), case=leading)
    assert_close(operator.apply(*(to_library(x[5]) for x in X)), flat[5])


def test_no_rows_and_rows_of_zeros(to_library):
    for name, sample in OPERATORS.items():
        operator = sample(3)
        for leading in [(0,), (0, 3), (2, 0), (2, 0, 3)]:
            out = operator.apply(*(to_library(np.zeros((*leading, d), np.float32)) for d in operator.factors))
            assert tuple(out.shape) == (*leading, operator.n_components), name
            assert as_numpy(out).dtype == np.float32, name
        zeros = operator.apply(*(to_library(np.zeros((3, d))) for d in operator.factors))
        np.testing.assert_array_equal(as_numpy(zeros), np.zeros((3, operator.n_components)), err_msg=name)


# Types


def test_halves_are_rounded_once(operator):
    """Sums are made in float32: the error is half an epsilon of rounding the result, and a little for float32."""
    import torch

    for dtype in (torch.float16, torch.bfloat16):
        X = [torch.from_numpy(x).to(dtype) for x in make_rows(operator.factors, 19)]
        expected = operator.apply(*(x.double().numpy() for x in X))
        results = [operator.apply(*X)]
        if dtype == torch.float16:
            results.append(torch.from_numpy(operator.apply(*(x.numpy() for x in X))))
        for out in results:
            assert out.dtype == dtype
            assert_close(out.double(), expected, factor=0.6 * torch.finfo(dtype).eps / EPSILON, case=dtype)


def test_whole_numbers_give_float64(operator, to_library):
    for dtype in ("bool", "int8", "uint8", "int16", "int32", "int64"):
        X = [np.abs(4 * x).astype(dtype) for x in make_rows(operator.factors, 9)]
        expected = operator.apply(*(x.astype(float) for x in X))
        for out in (operator.apply(*map(to_library, X)), operator.apply(*map(sp.csr_array, X))):
            assert as_numpy(out).dtype == np.float64, dtype
            assert_close(out, expected, case=dtype)


def test_wide_numbers_become_float64(operator):
    X = [np.abs(4 * x) for x in make_rows(operator.factors, 9)]
    assert_close(operator.apply(*(x.astype(np.longdouble) for x in X)), operator.apply(*X))
    whole = [x.astype(np.uint64) for x in X]
    assert_close(operator.apply(*whole), operator.apply(*(x.astype(float) for x in whole)))
    assert operator.apply(*whole).dtype == np.float64


def test_mixed_types(tensor):
    for one, other, result in [("float32", "float64", "float64"), ("int64", "float32", "float64")]:
        for types in ((one, other), (other, one)):
            X = [(4 * x).astype(types[i % 2]) for i, x in enumerate(make_rows(tensor.factors, 19))]
            expected = tensor.apply(*(x.astype(float) for x in X))
            for out in (tensor.apply(*X), tensor.apply(sp.csr_array(X[0]), *(sp.csc_array(x) for x in X[1:]))):
                assert out.dtype == result, types
                assert_close(out, expected, result, case=types)
    X = [(4 * x).astype(("float16", "float32")[i % 2]) for i, x in enumerate(make_rows(tensor.factors, 19))]
    assert tensor.apply(*X).dtype == np.float32
    assert_close(tensor.apply(*X), tensor.apply(*(x.astype(float) for x in X)), "float32")


MIXED = [("float32", "bfloat16"), ("int64", "bfloat16"), ("float64", "float32"), ("float16", "bfloat16")]


def print_mixed_tensors() -> None:
    """All operators with several factors on tensors of mixed types; each line names a case before it runs."""
    import torch

    for name, pair, swapped, gradient in product(TENSORS, MIXED, (False, True), (False, True)):
        types = [getattr(torch, dtype) for dtype in (reversed(pair) if swapped else pair)]
        print(name, *types, "with gradients" if gradient else "", flush=True)
        operator = OPERATORS[name](3)
        rows = [torch.from_numpy(4 * x) for x in make_rows(operator.factors, 19)]
        X = [x.to(types[i % 2]) for i, x in enumerate(rows)]
        exact = operator.apply(*(x.double() for x in X))
        for x in X:
            x.requires_grad_(gradient and x.dtype.is_floating_point)
        out = operator.apply(*X)
        whole = not all(dtype.is_floating_point for dtype in types)
        wanted = torch.float64 if whole else torch.result_type(*(torch.ones(2, dtype=dtype) for dtype in types))
        assert out.dtype == wanted, f"{out.dtype}, not {wanted}"
        assert_close(out.detach().double(), exact, str(wanted).removeprefix("torch."))
    print("all cases")


def test_mixed_tensors():
    """In a separate process, since misread memory can crash it."""
    assert run_in_new_process("tests.sketches.test_contract", "print_mixed_tensors").endswith("all cases\n")


# Sparse rows

LAYOUTS = ["csr_array", "csr_matrix", "csc_array", "coo_array", "coo_matrix", "lil_array", "dok_array", "bsr_array",
           "dia_array"]  # fmt: skip


def test_sparse_rows_of_all_layouts(operator):
    for dtype in ("float32", "float64"):
        X = make_rows(operator.factors, 29, dtype, density=0.3)
        expected = operator.apply(*(x.astype(float) for x in X))
        for layout in LAYOUTS:
            out = operator.apply(*(getattr(sp, layout)(x) for x in X))
            assert isinstance(out, np.ndarray)
            assert out.dtype == dtype, layout
            assert_close(out, expected, dtype, case=(layout, dtype))
    assert operator.apply(*(sp.csr_array((0, d)) for d in operator.factors)).shape == (0, operator.n_components)


def test_a_sparse_vector_is_one_row(operator):
    X = [x[0] for x in make_rows(operator.factors, 1, density=0.7)]
    for layout in ("csr_array", "coo_array", "dok_array"):
        vectors = [getattr(sp, layout)(x) for x in X]
        assert {x.ndim for x in vectors} == {1}
        assert_close(operator.apply(*vectors), operator.apply(*X), case=layout)


def test_sparse_rows_need_no_order_and_are_not_modified(operator):
    """Columns in reverse, explicit zeros, every entry in two parts, 64-bit indices."""
    rows, dense = [], make_rows(operator.factors, 29, density=0.4)
    for x in dense:
        columns = np.tile(np.repeat(np.arange(x.shape[1])[::-1], 2), len(x))
        data = np.repeat(x[:, ::-1].ravel(), 2) * np.tile([0.75, 0.25], x.size)
        starts = np.arange(len(x) + 1) * 2 * x.shape[1]
        rows.append(sp.csr_array((data, columns, starts), shape=x.shape))
    for index in (np.int32, np.int64):
        for x in rows:
            x.indices, x.indptr = x.indices.astype(index), x.indptr.astype(index)
        before = [(x.data.copy(), x.indices.copy(), x.indptr.copy()) for x in rows]
        assert_close(operator.apply(*rows), operator.apply(*dense))
        for old, x in zip(before, rows, strict=True):
            for array, now in zip(old, (x.data, x.indices, x.indptr), strict=True):
                np.testing.assert_array_equal(now, array)


# Memory layouts


def test_memory_layout_does_not_matter(operator):
    X = make_rows(operator.factors, 18)
    expected = operator.apply(*X)
    read_only = [x.copy() for x in X]
    for x in read_only:
        x.flags.writeable = False
    layouts = {
        "read-only": read_only,
        "Fortran": [np.asfortranarray(x) for x in X],
        "every second row": [np.repeat(x, 2, axis=0)[::2] for x in X],
        "every third column": [np.repeat(x, 3, axis=1)[:, ::3] for x in X],
        "backwards": [x[::-1, ::-1].copy()[::-1, ::-1] for x in X],
        "big-endian": [x.astype(">f8") for x in X],
        "unaligned": [np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(float).reshape(x.shape) for x in X],
        "lists": [x.tolist() for x in X],
        "objects": [x.astype(object) for x in X],
        "masked arrays without masked entries": [np.ma.masked_array(x) for x in X],
    }
    for name, layout in layouts.items():
        np.testing.assert_array_equal(operator.apply(*layout), expected, err_msg=name)
    wide = operator.apply(*(np.broadcast_to(x[0], (5, x.shape[1])) for x in X))
    np.testing.assert_array_equal(wide, np.tile(expected[0], (5, 1)))


def test_torch_views(operator):
    import torch

    X = [torch.from_numpy(x) for x in make_rows(operator.factors, 18)]
    kept = [x.clone() for x in X]
    expected = operator.apply(*X)
    layouts = {
        "transposed": [x.T.contiguous().T for x in X],
        "every second column": [x.repeat_interleave(2, dim=1)[:, ::2] for x in X],
        "a lazy minus sign": [torch.complex(x, -x).conj().imag for x in X],
        "a parameter, detached": [torch.nn.Parameter(x.clone()).detach() for x in X],
    }
    for name, layout in layouts.items():
        assert torch.equal(operator.apply(*layout), expected), name
    assert all(torch.equal(x, y) for x, y in zip(X, kept, strict=True))


def test_nan_and_infinity_stay_in_their_rows(operator):
    X = make_rows(operator.factors, 20)
    expected = operator.apply(*X)
    X[0][3, 0] = np.nan
    X[-1][17, 0] = np.inf
    with np.errstate(invalid="ignore"):  # ∞ − ∞ in NumPy's product of transforms
        out = operator.apply(*X)
    others = np.delete(np.arange(20), [3, 17])
    np.testing.assert_array_equal(out[others], expected[others])
    assert not np.isfinite(out[3]).all()
    assert not np.isfinite(out[17]).all()


# Batches and memory


def test_rows_do_not_depend_on_their_batch(operator):
    for dtype, to_rows in product(("float32", "float64"), (np.asarray, sp.csr_array)):
        X = [to_rows(x) for x in make_rows(operator.factors, 83, dtype, density=0.5)]
        whole = operator.apply(*X)
        for rows in (slice(0, 1), slice(3, 20), slice(40, 83), np.array([82, 5, 5, 0, 17, 33, 64, 1, 2, 3, 4])):
            part = operator.apply(*(x[rows] for x in X))
            np.testing.assert_array_equal(part, whole[rows], err_msg=f"{dtype} {to_rows.__name__} {rows}")


def test_rows_do_not_depend_on_working_memory(operator, to_library):
    X = make_rows(operator.factors, 24)
    whole = operator.apply(*X)
    for memory, leading in product((1e-4, 1e-2, 1), ((24,), (3, 8), (2, 3, 4))):
        with config_context(working_memory=memory):
            out = operator.apply(*(to_library(x.reshape(*leading, -1)) for x in X))
        assert_close(out, whole.reshape(*leading, -1), case=(memory, leading))


MIB = 2**20
LEADING = {
    "srht": SRHT(200, 64), "osnap": OSNAP(200, 64), "tensor": TensorSRHT(200, 64),
    "tensorsketch": TensorSketch(200, 64), "tree": PolySketch(200, 64, 3), "tree of degree 64": PolySketch(20, 16, 64),
    "power of degree 64": PowerSketch(20, 16, 64), "tensorsketch of degree 64": TensorSketch(20, 16, 64),
}  # fmt: skip
COLUMNS = {
    "srht": SRHT(5000, 16), "osnap": OSNAP(5000, 16), "tensor": TensorSRHT(5000, 16),
    "tensorsketch": TensorSketch(5000, 16), "tree": PolySketch(5000, 16, 3), "power": PowerSketch(5000, 16, 3),
}  # fmt: skip


def check_memory(function, X, budget: float) -> None:
    """At most the budget (in MiB), the result and one copy of it, and 1 MiB for small objects, on two threads.

    NumPy's allocations are counted, also for array_api_strict. The rows themselves are not included.
    """
    function(X[: min(20, X.shape[0]), ...])  # compiled before, and lazily imported modules loaded
    with config_context(working_memory=budget):
        tracemalloc.start()
        try:
            out = function(X)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    size = prod(out.shape) * 8
    assert peak <= budget * MIB + 2 * size + MIB, f"{peak / MIB:.1f} MiB; the result has {size / MIB:.1f} MiB"


def to_strict(X: np.ndarray):
    import array_api_strict

    return array_api_strict.asarray(X)


@pytest.fixture
def two_threads(monkeypatch):
    """Each thread has its own scratch memory."""
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)


@pytest.mark.parametrize("name", [*LEADING][: None if ALL else -1])  # the last takes seconds
@pytest.mark.usefixtures("two_threads")
def test_leading_axes_and_high_degrees_within_working_memory(name):
    law = LEADING[name]
    X = make_rows((law.n_features,), 6000)[0] / law.n_features**0.5
    for leading in [(2000, 3), (40, 150)]:
        for rows in (X.reshape(*leading, -1), to_strict(X.reshape(*leading, -1))):
            check_memory(law.sample(0).apply, rows, 3)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.usefixtures("two_threads")
def test_many_columns_within_working_memory(name):
    operator = COLUMNS[name].sample(0)
    X = make_rows((5000,), 1200, np.float32, density=0.1)[0]
    for rows in (X.astype(np.float64), X, X.astype(np.int8), sp.csr_array(X), to_strict(X.astype(np.float64))):
        check_memory(operator.apply, rows, 16)


@pytest.mark.usefixtures("two_threads")
def test_degrees_within_working_memory():
    operator = PolySketch(20, 16, 64).sample(0)
    X = make_rows((20,), 1000)[0] / 20**0.5
    for rows in sampled([X, X.reshape(5, 200, -1), to_strict(X.reshape(5, 200, -1)), to_strict(X)], 2):
        check_memory(operator.apply_degrees, rows, 3)


def test_the_memory_check_notices_rows_that_run_in_one_piece():
    X = to_strict(make_rows((5000,), 1200)[0])
    for name in sampled(["srht", "tree"], 1):
        operator = COLUMNS[name].sample(0)
        with pytest.raises(AssertionError, match="MiB; the result has"):
            check_memory(lambda rows, operator=operator: without_budget(operator, rows), X, 16)


def without_budget(operator, X):
    with config_context(working_memory=2**14):
        return operator.apply(X)


# Threads and processes


def print_digests() -> None:
    """Draws and results of every law."""
    X = make_rows((37,), 301)[0]
    kinds = {"float32": X.astype(np.float32), "float64": X, "csr": sp.csr_array(X * (X > 0.9))}
    laws = [
        SRHT(37, 50), CountSketch(37, 50), OSNAP(37, 50), TensorSRHT(37, 50, degree=3), TensorSketch(37, 50),
        PolySketch(37, 50, 5), PolySketch(37, 50, 3, sparse=True), PowerSketch(37, 50, 6),
    ]  # fmt: skip
    for law, (kind, rows) in product(laws, kinds.items()):
        print(law, kind, hashlib.sha256(np.ascontiguousarray(law.sample(7).apply(rows)).tobytes()).hexdigest())


def test_new_processes_draw_the_same_and_threads_do_not_change_results(capsys):
    """Python's own hashes differ between processes; seeds must not come from them."""
    print_digests()
    here = capsys.readouterr().out
    assert here.count("\n") == 24
    for n_threads in sampled(["5", "1"], 1):
        environment = {"NUMBA_NUM_THREADS": n_threads, "PYTHONHASHSEED": n_threads}
        assert run_in_new_process("tests.sketches.test_contract", "print_digests", **environment) == here


def test_many_concurrent_callers(operator):
    X = make_rows(operator.factors, 200)
    expected = pickle.loads(pickle.dumps(operator)).apply(*X)
    with ThreadPoolExecutor(8) as pool:
        for out in pool.map(lambda _: operator.apply(*X), range(16)):
            np.testing.assert_array_equal(out, expected)


def test_copies_and_pickles_are_the_same_map(operator):
    X = make_rows(operator.factors, 5)
    fresh = [pickle.loads(pickle.dumps(operator)), copy.copy(operator), copy.deepcopy(operator)]
    size = len(pickle.dumps(operator))
    expected = operator.apply(*X)
    used = [pickle.loads(pickle.dumps(operator)), copy.copy(operator), copy.deepcopy(operator)]
    assert len(pickle.dumps(operator)) == size  # compiled programs stay behind
    for same in [*fresh, *used]:
        np.testing.assert_array_equal(same.apply(*X), expected)
        assert repr(same) == repr(operator)
        assert (same.factors, same.n_components) == (operator.factors, operator.n_components)


# Derivatives in torch


def test_gradients(operator):
    import torch

    X = [torch.from_numpy(x).requires_grad_() for x in make_rows(operator.factors, 2)]
    assert torch.autograd.gradcheck(operator.apply, X)
    detached = [x.detach() for x in X]
    assert_close(operator.apply(*X), operator.apply(*detached))
    with torch.no_grad():
        assert not operator.apply(*X).requires_grad
    for i in range(len(X)):
        assert operator.apply(*detached[:i], X[i], *detached[i + 1 :]).requires_grad


def test_gradients_of_powers(power):
    import torch

    X = torch.from_numpy(make_rows(power.factors[:1], 2)[0]).requires_grad_()
    assert torch.autograd.gradcheck(power.apply, (X,))


def test_values_are_the_same_with_and_without_gradients(operator):
    import torch

    for dtype, n_epsilons in ((torch.float32, 100), (torch.bfloat16, 1)):  # bfloat16: float32, rounded once
        X = [torch.from_numpy(x).to(dtype) for x in make_rows(operator.factors, 9)]
        plain, traced = operator.apply(*X), operator.apply(*(x.clone().requires_grad_() for x in X)).detach()
        assert traced.dtype == plain.dtype == dtype
        assert (plain - traced).abs().max() <= n_epsilons * torch.finfo(dtype).eps * plain.abs().max(), dtype


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, on its first use of these
def test_forward_derivatives_and_function_transforms(operator):
    import torch
    from torch.autograd import forward_ad

    X, V = (tuple(torch.from_numpy(x) for x in make_rows(operator.factors, 3, seed=seed)) for seed in (0, 1))
    # the map is linear in each factor
    expected = sum(operator.apply(*X[:i], V[i], *X[i + 1 :]) for i in range(len(X)))
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(operator.apply(*map(forward_ad.make_dual, X, V))).tangent
    assert_close(tangent, expected)
    assert_close(torch.func.jvp(operator.apply, X, V)[1], expected)
    assert_close(torch.func.vmap(operator.apply)(*X), operator.apply(*X))
    slope = torch.func.jacrev(operator.apply)(*(x[0] for x in X))
    assert_close(slope @ V[0][0], operator.apply(V[0][0], *(x[0] for x in X[1:])))


# Transposes


def test_transposed_map(operator):
    import torch

    S = reference.matrix(operator)
    for dtype in ("float32", "float64"):
        V = make_rows((operator.n_components,), 24, dtype)[0]
        for to_library in (np.asarray, torch.from_numpy):
            for leading in [(24,), (2, 3, 4), (2, 1, 3, 4)]:
                out = operator.apply_transpose(to_library(V.reshape(*leading, -1)))
                assert type(out) is type(to_library(V))
                assert as_numpy(out).dtype == dtype
                assert_close(out, (V.astype(float) @ S).reshape(*leading, -1), dtype, case=(dtype, leading))
            assert_close(operator.apply_transpose(to_library(V[0])), V[0].astype(float) @ S, dtype)
        sparse = operator.apply_transpose(sp.csr_array(V * (V > 0)))
        assert isinstance(sparse, np.ndarray)
        assert sparse.dtype == dtype
        assert_close(sparse, (V * (V > 0)).astype(float) @ S, dtype)


def test_transposed_map_of_other_types(operator):
    import torch

    S = reference.matrix(operator)
    V = np.rint(4 * make_rows((operator.n_components,), 9)[0])
    for dtype in ("bool", "int8", "int64"):
        out = operator.apply_transpose(V.astype(dtype))
        assert out.dtype == np.float64, dtype
        assert_close(out, V.astype(dtype).astype(float) @ S, case=dtype)
    for dtype in (torch.float16, torch.bfloat16):
        out = operator.apply_transpose(torch.from_numpy(V).to(dtype))
        assert out.dtype == dtype
        assert_close(out.double(), V @ S, factor=0.6 * torch.finfo(dtype).eps / EPSILON, case=dtype)
    no_rows = operator.apply_transpose(np.zeros((0, operator.n_components), np.float32))
    assert no_rows.shape == (0, S.shape[1])
    assert no_rows.dtype == np.float32


def test_transposed_map_is_adjoint_at_many_columns():
    """⟨Sx, v⟩ = ⟨x, Sᵀv⟩ on pure tensors."""
    operators = [
        SRHT(5000, 20).sample(0), OSNAP(5000, 20).sample(0), TensorSRHT((500, 40), 20).sample(0),
        TensorSketch((500, 40), 9).sample(0), PolySketch(20, 16, 3).sample(0), PowerSketch(20, 16, 3).sample(0),
        SRHT(70, 20).sample(2) @ direct_sum(SRHT(2000, 30).sample(0), OSNAP(3000, 40).sample(1)),
    ]  # fmt: skip
    for operator in operators:
        X, (V,) = make_rows(operator.factors, 3), make_rows((operator.n_components,), 3, seed=1)
        left = np.sum(operator.apply(*X) * V, axis=1)
        right = np.sum(row_kron(X) * operator.apply_transpose(V), axis=1)
        norms = [np.linalg.norm(x, axis=1).max() for x in (*X, V)]
        assert_close(left, right, scale=float(np.prod(norms)), case=operator)


def test_linear_operator(operator, rng):
    """On any vector of the tensor space, pure tensor or not."""
    S, A = reference.matrix(operator), operator.as_linear_operator()
    assert isinstance(A, scipy.sparse.linalg.LinearOperator)
    assert A.shape == S.shape
    assert A.dtype == np.float64
    x, X = rng.standard_normal(S.shape[1]), rng.standard_normal((S.shape[1], 3))
    v, V = rng.standard_normal(S.shape[0]), rng.standard_normal((S.shape[0], 3))
    assert_close(A.matvec(x), S @ x)
    assert_close(A @ x[:, None], S @ x[:, None])
    assert_close(A.matmat(X), S @ X)
    assert_close(A.rmatvec(v), S.T @ v)
    assert_close(A.rmatmat(V), S.T @ V)
    assert_close(A.T @ v, S.T @ v)
    assert_close((A.H @ A) @ x, S.T @ (S @ x))
    with config_context(working_memory=1e-4):  # some unit vectors at a time
        assert_close(A.matmat(X), S @ X)
        assert_close(A.rmatmat(V), S.T @ V)
        assert_close(operator.matrix(), S)


def test_linear_operators_in_scipy_solvers(operator, rng):
    S, A = reference.matrix(operator), operator.as_linear_operator()
    b = S @ rng.standard_normal(S.shape[1])
    solution = scipy.sparse.linalg.lsqr(A, b, atol=1e-14, btol=1e-14, iter_lim=1000)[0]
    np.testing.assert_allclose(solution, np.linalg.lstsq(S, b, rcond=None)[0], atol=1e-8)
    _, values, rows = scipy.sparse.linalg.svds(A, k=2, rng=0)
    np.testing.assert_allclose(np.sort(values), np.linalg.svd(S)[1][[1, 0]], rtol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(S @ rows.T, axis=0), values, rtol=1e-8)
