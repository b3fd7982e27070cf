"""Each law: its explicit matrix, sizes, draws, seeds and degrees.

`test_contract.py` tests the contract of all operators.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import as_numpy
from tests.reference import sketches as reference
from tests.sketches.helpers import assert_close, make_rows, row_kron

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT

LAWS = {
    "srht": SRHT(5, 7),
    "srht-one-feature": SRHT(1, 3),
    "srht-one-component": SRHT(5, 1),
    "srht-few": SRHT(40, 6),
    "srht-full": SRHT(8, 8),
    "srht-replace": SRHT(6, 21, replace=True),
    "countsketch": CountSketch(20, 6),
    "countsketch-one": CountSketch(3, 1),
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
    "polysketch-6": PolySketch(2, 5, 6),
    "polysketch-one-component": PolySketch(3, 1, 3),
    "polysketch-sparse-1": PolySketch(6, 5, 1, sparse=True),
    "polysketch-sparse-3": PolySketch(6, 5, 3, sparse=True, n_nonzeros=2),
    "powersketch-1": PowerSketch(5, 9, 1),
    "powersketch-2": PowerSketch(5, 9, 2),
    "powersketch-5": PowerSketch(3, 5, 5),
    "powersketch-7": PowerSketch(2, 6, 7, replace=True),
    "powersketch-sparse-3": PowerSketch(6, 5, 3, sparse=True),
}
DEGREES = {name: law for name, law in LAWS.items() if isinstance(law, PolySketch | PowerSketch)}


# Matrices


@pytest.mark.parametrize("name", LAWS)
def test_the_matrix_equals_the_draws(name):
    law = LAWS[name]
    operator = law.sample(3)
    S = reference.matrix(operator)
    assert operator.n_components == law.n_components
    assert operator.degree == getattr(law, "degree", 1) == len(operator.factors)
    assert operator.factors == (
        law.n_features if isinstance(law.n_features, tuple) else operator.degree * (law.n_features,)
    )
    assert repr(operator).endswith(f" → {law.n_components})")
    assert S.shape == (operator.n_components, np.prod(operator.factors))
    assert_close(operator.matrix(), S)
    X = make_rows(operator.factors, 17)
    scale = float(np.prod([np.linalg.norm(x, axis=1).max() for x in X]))
    assert_close(operator.apply(*X), row_kron(X) @ S.T, scale=scale)
    assert_close(operator.apply(*map(sp.csr_array, X)), row_kron(X) @ S.T, scale=scale)


sizes, small, degrees = st.integers(1, 40), st.integers(1, 12), st.integers(1, 9)
n_rows = st.one_of(st.just(1), st.integers(1, 20))
seeds, flags = st.integers(0, 2**32), st.booleans()
ANY = {
    "SRHT": st.builds(SRHT, sizes, st.integers(1, 150), flags),
    "CountSketch": st.builds(CountSketch, sizes, sizes),
    "OSNAP": st.tuples(sizes, sizes, sizes).map(lambda a: OSNAP(a[0], a[1], n_nonzeros=min(a[1:]))),
    "TensorSRHT": st.builds(TensorSRHT, sizes, st.integers(1, 100), degrees, flags),
    "TensorSketch": st.builds(TensorSketch, sizes, small, degrees),
    "PolySketch": st.builds(PolySketch, small, st.integers(1, 20), degrees, flags, small, flags),
    "PowerSketch": st.builds(PowerSketch, small, st.integers(1, 20), degrees, flags, small, flags),
}


def check_any(actual, expected, X: np.ndarray, degree: int, dtype="float64") -> None:
    """Nine factors and sums of up to 64 terms; entries can cancel to zero, their rounding errors do not."""
    scale = float(np.linalg.norm(X, axis=-1).max()) ** degree
    assert_close(actual, expected, dtype, scale=scale, factor=5000)


@pytest.mark.parametrize("name", ANY)
@given(data=st.data())
def test_powers_of_rows_of_any_size(name, data):
    law, seed = data.draw(ANY[name]), data.draw(seeds)
    operator = law.sample(seed)
    X = make_rows((law.n_features,), data.draw(n_rows), density=data.draw(st.sampled_from([1.0, 0.3])), seed=seed)[0]
    expected = reference.apply_power(operator, X)
    check_any(operator.apply(X), expected, X, operator.degree)
    check_any(operator.apply(sp.csr_array(X)), expected, X, operator.degree)
    single = operator.apply(X.astype(np.float32))
    assert single.dtype == np.float32
    check_any(single, expected, X, operator.degree, "float32")


@given(law=st.sampled_from([TensorSRHT, TensorSketch]), d=st.lists(st.integers(1, 6), min_size=1, max_size=4),
       m=sizes, n=n_rows, seed=seeds)  # fmt: skip
def test_factors_of_any_sizes(law, d, m, n, seed):
    operator = law(tuple(d), m, degree=len(d)).sample(seed)
    X = make_rows(d, n, seed=seed)
    expected = row_kron(X) @ reference.matrix(operator).T
    check_any(operator.apply(*X), expected, row_kron(X), 1)
    check_any(operator.apply(*map(sp.csr_array, X)), expected, row_kron(X), 1)


def test_high_degrees(to_library):
    """64 factors, whose rounding errors add up; rows of norm 1, each judged by its own size."""
    X = make_rows((3,), 9)[0]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for law in (
        TensorSRHT(3, 9, 64), TensorSketch(3, 9, 64), PolySketch(3, 9, 64), PolySketch(3, 9, 63, sparse=True),
        PowerSketch(3, 9, 63),
    ):  # fmt: skip
        operator = law.sample(0)
        for dtype in ("float32", "float64"):
            rows = X.astype(dtype)
            expected = reference.apply_power(operator, rows.astype(float))
            largest = np.abs(expected).max(axis=1, keepdims=True)
            assert (largest > 0).all()
            for out in (operator.apply(to_library(rows)), operator.apply(sp.csr_array(rows))):
                assert_close(as_numpy(out) / largest, expected / largest, dtype, factor=2000, case=(law, dtype))


# Draws


def test_draws_have_the_types_and_ranges_of_their_law():
    for law in (SRHT(30, 80), SRHT(30, 80, replace=True)):
        operator = law.sample(0)
        assert operator.signs.shape == (30,)
        assert operator.rows.shape == (80,)
        assert set(np.unique(operator.signs)) == {-1, 1}
        assert operator.rows.min() >= 0
        assert operator.rows.max() < 32
    tensor = TensorSRHT((30, 5), 80).sample(0)
    assert [len(signs) for signs in tensor.signs] == [30, 5]
    assert [(len(rows), rows.min() >= 0, rows.max() < n) for rows, n in zip(tensor.rows, (32, 8), strict=True)] == [
        (80, True, True)
    ] * 2
    for m, s in ((20, 4), (22, 4), (5, 4), (7, 7)):
        operator = OSNAP(500, m, n_nonzeros=s).sample(0)
        assert operator.rows.shape == operator.signs.shape == (500, s)
        assert set(np.unique(operator.signs)) == {-1, 1}
        for k, rows in enumerate(operator.rows.T):  # one nonzero in each block, any row of it
            assert set(rows) == set(range(k * m // s, (k + 1) * m // s)), (m, s, k)
    assert [(count.rows.shape, count.n_components) for count in TensorSketch((30, 5), 8).sample(0).counts] == [
        ((30, 1), 8),
        ((5, 1), 8),
    ]


def test_rows_without_replacement_are_whole_permutations():
    for rows in (SRHT(30, 80).sample(0).rows, *TensorSRHT(30, 80).sample(0).rows):
        assert sorted(rows[:32]) == sorted(rows[32:64]) == list(range(32))
        assert len(set(rows[64:])) == 16
        assert list(rows[:32]) != list(rows[32:64])
    assert len(set(SRHT(30, 80, replace=True).sample(0).rows[:32])) < 32  # all distinct: probability 1e-13


@pytest.mark.parametrize("d", [1, 3, 8, 20])
def test_full_size_is_an_isometry(d):
    n = reference.padded(d)
    for k in (1, 2, 5):
        for law in (SRHT(d, k * n), TensorSRHT(d, k * n, degree=1), PolySketch(d, k * n, 1)):
            S = law.sample(7).matrix()
            np.testing.assert_allclose(S.T @ S, np.eye(d), atol=1e-14, err_msg=repr(law))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_tree_has_the_largest_power_of_two_of_its_leaves_on_the_left(sparse):
    for degree in range(1, 20):
        operator = PolySketch(6, 11, degree, sparse=sparse).sample(0)
        expected = {}

        def add(start, stop, expected=expected):
            if stop - start > 1:
                middle = start + reference.left_leaves(stop - start)
                expected[start, stop] = (middle - start, stop - middle)
                add(start, middle)
                add(middle, stop)

        add(0, degree)
        nodes = dict(operator.nodes)
        assert set(nodes) == set(expected), degree
        assert len(operator.leaves) == (degree if sparse or degree == 1 else 0)
        for (start, stop), children in expected.items():
            node = nodes[start, stop]
            leaf = 16 if sparse else 6
            assert node.factors == tuple(16 if n > 1 else leaf for n in children)
            assert node.n_components == (11 if stop - start == degree else 16)


def test_parts_of_a_power_sketch():
    for sparse in (False, True):
        operator = PowerSketch(6, 11, 5, sparse=sparse).sample(0)
        assert (operator.first.factors, operator.first.n_components) == ((6,), 11)
        assert (operator.square.factors, operator.square.n_components) == ((11, 11), 11)
    one = PowerSketch(24, 64, 1).sample(3)
    X = make_rows((24,), 5)[0]
    np.testing.assert_array_equal(one.apply(X), one.first.apply(X))


# Seeds and sizes


def test_equal_seeds_give_equal_operators():
    for name, law in LAWS.items():
        X = make_rows(law.sample(0).factors, 4)
        one = law.sample(11).apply(*X)
        for seed in (11, np.int64(11), np.random.SeedSequence(11)):
            np.testing.assert_array_equal(law.sample(seed).apply(*X), one, err_msg=name)
        for make in (np.random.default_rng, np.random.RandomState):
            np.testing.assert_array_equal(law.sample(make(5)).apply(*X), law.sample(make(5)).apply(*X), err_msg=name)


def test_other_seeds_give_other_operators():
    """Fresh entropy each time for None; a generator moves on. Two of eleven equal: probability below 1e-15."""
    for law in (
        SRHT(64, 64), CountSketch(64, 64), OSNAP(64, 64), TensorSRHT(64, 64), TensorSketch(64, 64),
        PolySketch(64, 64, 3), PolySketch(64, 64, 3, sparse=True), PowerSketch(64, 64, 3),
    ):  # fmt: skip
        rng, state = np.random.default_rng(0), np.random.RandomState(0)
        spawned = np.random.SeedSequence(0).spawn(2)
        x = np.linspace(1, 2, 64)
        results = [law.sample(r).apply(x) for r in (0, 1, 2, None, None, rng, rng, state, state, *spawned)]
        assert len({r.tobytes() for r in results}) == len(results), law


def test_laws_are_values():
    """Sampling does not change a law; equal laws are equal and have equal hashes."""
    for law in LAWS.values():
        before = repr(law)
        law.sample(0)
        assert repr(law) == before
        assert law == copy.deepcopy(law) == pickle.loads(pickle.dumps(law))
        assert hash(law) == hash(copy.copy(law))
    assert len(set(LAWS.values())) == len(LAWS)
    for law in (TensorSRHT, TensorSketch):
        assert law([5, 6], 7) == law((5, 6), 7)
        assert hash(law([5, 6], 7)) == hash(law((5, 6), 7))


def test_numpy_integers_are_sizes_and_seeds():
    five, seven, two = np.int64(5), np.int32(7), np.uint8(2)
    laws = [
        SRHT(five, seven), CountSketch(five, seven), OSNAP(five, seven, n_nonzeros=two), TensorSRHT(five, seven, two),
        TensorSRHT((five, five), seven), TensorSketch(five, seven, two), PolySketch(five, seven, two),
        PolySketch(five, seven, two, sparse=True, n_nonzeros=two), PowerSketch(five, seven, two),
    ]  # fmt: skip
    plain = [
        SRHT(5, 7), CountSketch(5, 7), OSNAP(5, 7, n_nonzeros=2), TensorSRHT(5, 7, 2), TensorSRHT((5, 5), 7),
        TensorSketch(5, 7, 2), PolySketch(5, 7, 2), PolySketch(5, 7, 2, sparse=True, n_nonzeros=2),
        PowerSketch(5, 7, 2),
    ]  # fmt: skip
    X = make_rows((5,), 3)[0]
    for law, same in zip(laws, plain, strict=True):
        np.testing.assert_array_equal(law.sample(np.int64(0)).apply(X), same.sample(0).apply(X), err_msg=repr(law))


def test_more_nonzeros_than_components_fill_the_columns():
    for law in (PolySketch, PowerSketch):
        many, all_of_them = (law(5, 3, 1, sparse=True, n_nonzeros=s).sample(0) for s in (4, 3))
        assert (many.matrix() != 0).sum(axis=0).tolist() == [3] * 5
        assert (all_of_them.matrix() != 0).sum(axis=0).tolist() == [3] * 5


# Several degrees in one call


@pytest.mark.parametrize("name", ["polysketch-1", "polysketch-6", "polysketch-sparse-3", "powersketch-7",
                                  "powersketch-sparse-3"])  # fmt: skip
def test_degrees_in_all_libraries(name, to_library):
    law = LAWS[name]
    operator = law.sample(2)
    X = make_rows(operator.factors[:1], 13)[0]
    lowest = 1 if isinstance(law, PowerSketch) else 0
    expected = operator.apply_degrees(X)
    whole = operator.apply_degrees(to_library(X))
    assert type(whole) is type(to_library(X))
    assert as_numpy(whole).shape == (13, law.degree + 1 - lowest, law.n_components)
    assert_close(whole, expected)
    assert_close(as_numpy(whole)[:, -1], operator.apply(X))
    chosen = [law.degree, lowest, law.degree, lowest]
    assert_close(operator.apply_degrees(to_library(X), chosen), expected[:, np.array(chosen) - lowest])
    assert_close(operator.apply_degrees(to_library(X), np.array(chosen)), expected[:, np.array(chosen) - lowest])
    for leading in [(4,), (3, 4), (2, 1, 3, 2)]:
        rows = X[: np.prod(leading)]
        out = operator.apply_degrees(to_library(rows.reshape(*leading, -1)))
        assert_close(out, expected[: len(rows)].reshape(*leading, *expected.shape[1:]), case=leading)
    assert_close(operator.apply_degrees(to_library(X[4])), expected[4])
    assert operator.apply_degrees(to_library(X[:0])).shape == (0, *expected.shape[1:])
    single = operator.apply_degrees(to_library(X.astype(np.float32)))
    assert as_numpy(single).dtype == np.float32
    assert_close(single, expected, "float32")


@pytest.mark.parametrize("name", DEGREES)
def test_degrees_of_sparse_rows_parts_pickles_and_gradients(name):
    import torch

    operator = DEGREES[name].sample(2)
    X = make_rows(operator.factors[:1], 13, density=0.7)[0]
    whole = operator.apply_degrees(X)
    assert_close(operator.apply_degrees(sp.csr_array(X)), whole)
    np.testing.assert_array_equal(operator.apply_degrees(X[5:9]), whole[5:9])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(operator)).apply_degrees(X), whole)
    assert torch.autograd.gradcheck(operator.apply_degrees, (torch.from_numpy(X[:2]).requires_grad_(),))


@given(d=small, m=st.integers(1, 20), p=degrees, n=n_rows, seed=seeds, sparse=flags)
def test_degrees_of_a_tree_have_unit_vectors_in_the_other_leaves(d, m, p, n, seed, sparse):
    operator = PolySketch(d, m, p, sparse=sparse).sample(seed)
    X = make_rows((d,), n, seed=seed)[0]
    e1 = np.zeros((n, d))
    e1[:, 0] = 1
    out = operator.apply_degrees(X)
    assert out.shape == (n, p + 1, m)
    for j in range(p + 1):
        values = [*[X] * j, *[e1] * (p - j)]
        check_any(out[:, j], operator.apply(*values), X, j)
        check_any(out[0, j], reference.poly_sketch(operator, [v[0] for v in values]), X, j)


@given(d=small, m=st.integers(1, 20), p=degrees, n=n_rows, seed=seeds, sparse=flags)
def test_degrees_of_a_power_sketch_are_the_algorithm_at_each_degree(d, m, p, n, seed, sparse):
    operator = PowerSketch(d, m, p, sparse=sparse).sample(seed)
    X = make_rows((d,), n, seed=seed)[0]
    out = operator.apply_degrees(X)
    assert out.shape == (n, p, m)
    for j in range(1, p + 1):
        check_any(out[:, j - 1], [reference.power_sketch(operator, x, j) for x in X], X, j)


@given(
    d=small,
    m=st.integers(1, 20),
    p=degrees,
    chosen=st.data(),
    seed=seeds,
    law=st.sampled_from([PolySketch, PowerSketch]),
)
def test_any_choice_of_degrees_in_any_order(d, m, p, chosen, seed, law):
    lowest = 0 if law is PolySketch else 1
    wanted = chosen.draw(st.lists(st.integers(lowest, p), min_size=1, max_size=6))
    operator = law(d, m, p, sparse=chosen.draw(flags)).sample(seed)
    X = make_rows((d,), 3, density=0.5, seed=seed)[0]
    expected = operator.apply_degrees(X)[:, [j - lowest for j in wanted]]
    scale = max(1.0, float(np.linalg.norm(X, axis=1).max())) ** p
    for rows in (X, sp.csr_array(X)):
        assert_close(operator.apply_degrees(rows, wanted), expected, scale=scale, factor=5000)


# Parameters that laws pass to their parts


def test_rows_with_replacement_reach_every_row():
    """False alarms: some row of 8 is missing among 800 draws with probability 8 · (7/8)^800 < 1e-45."""
    operators = (SRHT(8, 800, replace=True).sample(0), TensorSRHT(8, 800, replace=True).sample(0))
    for rows in (operators[0].rows, *operators[1].rows):
        assert set(rows.tolist()) == set(range(8))


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
def test_composite_laws_pass_on_how_they_draw(law):
    """False alarms: 64 rows drawn with replacement from 64 are distinct with probability 64!/64^64 < 1e-26."""
    for replaced in (False, True):
        operator = law(64, 64, 3, replace=replaced).sample(0)
        tensors = [operator.square] if law is PowerSketch else [node for _, node in operator.nodes]
        for tensor in tensors:
            assert all((len(set(rows.tolist())) < 64) == replaced for rows in tensor.rows)
        if law is PowerSketch:
            assert (len(set(operator.first.rows.tolist())) < 64) == replaced
    for n_nonzeros in (1, 3):
        operator = law(64, 64, 3, sparse=True, n_nonzeros=n_nonzeros).sample(0)
        leaves = [operator.first] if law is PowerSketch else operator.leaves
        assert [leaf.rows.shape for leaf in leaves] == [(64, n_nonzeros)] * len(leaves)
