"""Any sizes: sketches against the reference, and programs of random steps in both interpreters."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import sketches as reference

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, _agnostic
from ntkit.sketches._base import execute
from ntkit.sketches._program import Program, power_of_two

sizes = st.integers(1, 40)
small = st.integers(1, 12)
n_rows = st.one_of(st.just(1), st.integers(1, 20))
degrees = st.integers(1, 9)
seeds = st.integers(0, 2**32)
flags = st.booleans()

LAWS = {
    "SRHT": st.builds(SRHT, sizes, st.integers(1, 150), flags),
    "CountSketch": st.builds(CountSketch, sizes, sizes),
    "OSNAP": st.tuples(sizes, sizes, sizes).map(lambda a: OSNAP(a[0], a[1], n_nonzeros=min(a[1:]))),
    "TensorSRHT": st.builds(TensorSRHT, sizes, st.integers(1, 100), degrees, flags),
    "TensorSketch": st.builds(TensorSketch, sizes, small, degrees),
    "PolySketch": st.builds(PolySketch, small, st.integers(1, 20), degrees, flags, small, flags),
    "PowerSketch": st.builds(PowerSketch, small, st.integers(1, 20), degrees, flags, small, flags),
}


def rows(seed: int, n: int, d: int, density: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 1.5, (n, d)) * rng.choice([-1, 1], (n, d)) * (rng.random((n, d)) < density)


def assert_close(actual: np.ndarray, expected: np.ndarray, scale: float, dtype: type = np.float64) -> None:
    """Within some thousand epsilons of the largest entry or of `scale`, the norm of what was sketched.

    Nine factors and sums of up to 64 terms; entries can cancel to zero, their rounding errors do not.
    """
    assert actual.shape == expected.shape
    scale = max(np.abs(expected).max(), scale)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5000 * np.finfo(dtype).eps * scale)


def norm(X: np.ndarray) -> float:
    return float(np.linalg.norm(X, axis=1).max())


@pytest.mark.parametrize("name", LAWS)
@given(data=st.data())
def test_dense_and_sparse_rows_of_any_size_equal_the_reference(name, data):
    law = data.draw(LAWS[name])
    seed, n, density = data.draw(seeds), data.draw(n_rows), data.draw(st.sampled_from([1.0, 0.3]))
    operator = law.sample(seed)
    X = rows(seed, n, law.n_features, density)
    expected = reference.apply_power(operator, X)
    assert expected.shape == (n, law.n_components)
    scale = norm(X) ** operator.degree
    assert_close(operator.apply(X), expected, scale)
    assert_close(operator.apply(sp.csr_array(X)), expected, scale)
    single = operator.apply(X.astype(np.float32))
    assert single.dtype == np.float32
    assert_close(single, expected, scale, np.float32)


@pytest.mark.parametrize("law", [TensorSRHT, TensorSketch])
@given(d=st.lists(st.integers(1, 6), min_size=1, max_size=4), m=sizes, n=n_rows, seed=seeds)
def test_factors_of_any_sizes_equal_the_reference(law, d, m, n, seed):
    operator = law(tuple(d), m, degree=len(d)).sample(seed)
    X = [rows(seed + i, n, k) for i, k in enumerate(d)]
    products = np.ones((n, 1))
    for x in X:
        products = np.einsum("ni,nj->nij", products, x).reshape(n, -1)
    expected = products @ reference.matrix(operator).T
    scale = float(np.prod([norm(x) for x in X]))
    assert_close(operator.apply(*X), expected, scale)
    assert_close(operator.apply(*map(sp.csr_array, X)), expected, scale)


@pytest.mark.parametrize("sparse", [False, True])
@given(d=small, m=st.integers(1, 20), p=degrees, n=n_rows, seed=seeds)
def test_degrees_of_a_tree_have_unit_vectors_in_the_other_leaves(sparse, d, m, p, n, seed):
    operator = PolySketch(d, m, p, sparse=sparse).sample(seed)
    X = rows(seed, n, d)
    e1 = np.zeros((n, d))
    e1[:, 0] = 1
    out = operator.apply_degrees(X)
    assert out.shape == (n, p + 1, m)
    for j in range(p + 1):
        values = [*[X] * j, *[e1] * (p - j)]
        assert_close(out[:, j], operator.apply(*values), norm(X) ** j)
        assert_close(out[0, j], reference.poly_sketch(operator, [v[0] for v in values]), norm(X) ** j)


@pytest.mark.parametrize("sparse", [False, True])
@given(d=small, m=st.integers(1, 20), p=degrees, n=n_rows, seed=seeds)
def test_degrees_of_a_power_sketch_are_the_algorithm_at_each_degree(sparse, d, m, p, n, seed):
    operator = PowerSketch(d, m, p, sparse=sparse).sample(seed)
    X = rows(seed, n, d)
    out = operator.apply_degrees(X)
    assert out.shape == (n, p, m)
    for j in range(1, p + 1):
        assert_close(out[:, j - 1], np.array([reference.power_sketch(operator, x, j) for x in X]), norm(X) ** j)


@given(d=small, m=st.integers(1, 20), p=degrees, chosen=st.data(), seed=seeds, poly=flags)
def test_any_choice_of_degrees_in_any_order(d, m, p, chosen, seed, poly):
    law = PolySketch if poly else PowerSketch
    lowest = 0 if poly else 1
    degrees = chosen.draw(st.lists(st.integers(lowest, p), min_size=1, max_size=6))
    operator = law(d, m, p, sparse=chosen.draw(flags)).sample(seed)
    X = rows(seed, 3, d, 0.5)
    expected = operator.apply_degrees(X)[:, [j - lowest for j in degrees]]
    scale = max(norm(X), 1) ** p
    assert_close(operator.apply_degrees(X, degrees), expected, scale)
    assert_close(operator.apply_degrees(sp.csr_array(X), degrees), expected, scale)


@st.composite
def programs(draw) -> Program:
    """Random steps on random earlier values, random outputs (repeated ones too)."""
    program = Program(tuple(draw(st.lists(sizes, min_size=1, max_size=3))))
    rng = np.random.default_rng(draw(seeds))
    for source in range(len(program.n_features)):
        scale, constant = draw(st.sampled_from([1.0, -0.5])), draw(st.sampled_from([None, 0.0, 2.0]))
        program.load(source, scale=scale, constant=constant)
    for kind in draw(st.lists(st.sampled_from("cHHGGPPSSC/"), min_size=1, max_size=12)):
        pick = st.integers(0, len(program.steps) - 1)
        a, b, size = draw(pick), draw(pick), draw(sizes)
        n, k = program.sizes[a], program.sizes[b]
        if kind == "c":
            program.constant(rng.uniform(-1, 1, size))
        elif kind == "H":
            program.hadamard(a, rng.uniform(-1, 1, n) / power_of_two(n) ** 0.5)
        elif kind == "G":
            program.gather(a, rng.integers(n, size=size, dtype=np.int32), rng.uniform(-1, 1, size))
        elif kind == "P":
            a_rows, b_rows = (rng.integers(s, size=size, dtype=np.int32) for s in (n, k))
            program.product(a, a_rows, b, b_rows, 0.7)
        elif kind == "S":
            codes = rng.integers(2 * size, size=(n, draw(st.integers(1, 3))), dtype=np.int32)
            program.scatter(a, codes, 0.3, size)
        elif kind == "C":
            program.concatenate([a, b, a] if size % 2 else [b])
        else:
            start = draw(st.integers(0, n - 1))
            program.slice(a, start, draw(st.integers(1, n - start)))
    for value in draw(st.lists(st.integers(0, len(program.steps) - 1), min_size=1, max_size=4)):
        program.output(value)
    return program


@given(program=programs(), n=n_rows, seed=seeds)
def test_programs_of_random_steps_run_alike(program, n, seed):
    X = [rows(seed + i, n, d, 0.6) for i, d in enumerate(program.n_features)]
    expected = np.concatenate(_agnostic.execute(program, X), axis=-1)
    assert expected.shape == (n, program.n_outputs)
    assert_close(execute(program, X), expected, 1.0)
    assert_close(execute(program, [sp.csr_array(x) for x in X]), expected, 1.0)
    assert_close(execute(program, [x.astype(np.float32) for x in X]), expected, 1.0, np.float32)
