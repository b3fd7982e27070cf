from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from tests.conftest import as_numpy
from tests.reference.sketches import matrix

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

OUTER = [SRHT(6, 5), SRHT(6, 9, replace=True), CountSketch(6, 4), OSNAP(6, 7), TensorSRHT(6, 5, degree=1),
         PolySketch(6, 5, 1), PowerSketch(6, 5, 1, sparse=True), TensorSketch(6, 5, degree=1)]  # fmt: skip
INNER = [SRHT(3, 6), OSNAP(10, 6), TensorSRHT(3, 6), TensorSRHT((2, 5, 3), 6, degree=3), TensorSketch(3, 6),
         PolySketch(3, 6, 3), PolySketch(4, 6, 2, sparse=True), PowerSketch(3, 6, 3)]  # fmt: skip


def inputs(operator, n_rows=11):
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n_rows, d)) for d in operator.factors]


def product(operator, arrays):
    """Rows of the explicit matrix on Kronecker products."""
    rows = []
    for vectors in zip(*arrays, strict=True):
        row = np.ones(1)
        for x in vectors:
            row = np.kron(row, x)
        rows.append(operator @ row)
    return np.array(rows)


@pytest.mark.parametrize("inner", INNER, ids=repr)
@pytest.mark.parametrize("outer", OUTER, ids=repr)
def test_a_composition_multiplies_the_matrices(outer, inner):
    A, B = outer.sample(0), inner.sample(1)
    both = A @ B
    expected = matrix(A) @ matrix(B)
    assert (both.factors, both.degree, both.n_components) == (B.factors, B.degree, A.n_components)
    np.testing.assert_allclose(both.matrix(), expected, atol=1e-13)
    X = inputs(B)
    out = product(expected, X)
    scale = np.abs(out).max()
    np.testing.assert_allclose(both.apply(*X), out, atol=1e-13 * scale, rtol=0)
    np.testing.assert_allclose(both.apply(*map(sp.csr_array, X)), out, atol=1e-13 * scale, rtol=0)
    np.testing.assert_allclose(both.apply(*X), A.apply(B.apply(*X)), atol=1e-13 * scale, rtol=0)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).apply(*X), both.apply(*X))
    if len(set(B.factors)) == 1:
        power = product(expected, X[:1] * B.degree)
        np.testing.assert_allclose(both.apply(X[0]), power, atol=1e-13 * np.abs(power).max(), rtol=0)


def test_compositions_associate(to_library):
    A, B, C = SRHT(8, 5).sample(0), OSNAP(9, 8).sample(1), TensorSRHT((3, 4), 9).sample(2)
    X = inputs(C)
    expected = product(matrix(A) @ matrix(B) @ matrix(C), X)
    for same in ((A @ B) @ C, A @ (B @ C)):
        assert repr(same) == "FusedComposition(3 × 4 → 5)"
        np.testing.assert_allclose(as_numpy(same.apply(*map(to_library, X))), expected, atol=1e-13)


@pytest.mark.parametrize("order", ["left", "right"])
def test_long_compositions_with_a_tensor_sketch_inside(order):
    A, B, C = SRHT(8, 5).sample(0), OSNAP(9, 8).sample(1), TensorSketch((3, 4), 9).sample(2)
    both = (A @ B) @ C if order == "left" else A @ (B @ C)
    X = inputs(C)
    np.testing.assert_allclose(both.apply(*X), product(matrix(A) @ matrix(B) @ matrix(C), X), atol=1e-13)


def test_a_composition_is_one_program_run_by_both_interpreters(rng):
    both = SRHT(16, 9).sample(0) @ (OSNAP(12, 16).sample(1) @ PolySketch(5, 12, 3).sample(2))
    X = rng.standard_normal((35, 5))
    np.testing.assert_allclose(both.apply(X), _agnostic.execute(both.program(), [X])[0], atol=1e-13 * 10)


PARTS = [
    [SRHT(5, 7)],
    [SRHT(5, 7), CountSketch(3, 2)],
    [OSNAP(4, 4), SRHT(1, 1), SRHT(17, 3, replace=True), TensorSRHT(6, 5, degree=1)],
    [PolySketch(6, 5, 1), PowerSketch(3, 5, 1)],
]


@pytest.mark.parametrize("parts", PARTS, ids=len)
def test_a_direct_sum_is_block_diagonal(parts, to_library):
    operators = [law.sample(i) for i, law in enumerate(parts)]
    both = direct_sum(*operators)
    expected = scipy.linalg.block_diag(*map(matrix, operators))
    assert both.factors == (expected.shape[1],)
    np.testing.assert_allclose(both.matrix(), expected, atol=1e-14)
    X = inputs(both, 19)[0]
    np.testing.assert_allclose(as_numpy(both.apply(to_library(X))), X @ expected.T, atol=1e-13)
    np.testing.assert_allclose(both.apply(sp.csr_array(X)), X @ expected.T, atol=1e-13)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).apply(X), both.apply(X))


def test_direct_sums_nest_and_compose(rng):
    A, B, C = SRHT(5, 4).sample(0), OSNAP(3, 4).sample(1), CountSketch(6, 5).sample(2)
    inner = direct_sum(direct_sum(A, B), C @ SRHT(2, 6).sample(3))
    outer = SRHT(13, 20).sample(4) @ inner
    blocks = scipy.linalg.block_diag(matrix(A), matrix(B), matrix(C) @ matrix(SRHT(2, 6).sample(3)))
    X = rng.standard_normal((9, 10))
    np.testing.assert_allclose(outer.apply(X), X @ (matrix(outer.outer) @ blocks).T, atol=1e-13)
    poly = inner @ TensorSRHT((3, 4), 10).sample(5)
    Y, Z = rng.standard_normal((9, 3)), rng.standard_normal((9, 4))
    np.testing.assert_allclose(poly.apply(Y, Z), product(blocks @ matrix(poly.inner), [Y, Z]), atol=1e-13)


def test_a_direct_sum_over_one_operator_twice(rng):
    A = SRHT(5, 8).sample(0)
    X = rng.standard_normal((4, 10))
    np.testing.assert_array_equal(direct_sum(A, A).apply(X), np.hstack([A.apply(X[:, :5]), A.apply(X[:, 5:])]))


def test_a_direct_sum_with_a_tensor_sketch_of_degree_1(rng):
    count = TensorSketch(3, 5, degree=1).sample(0)
    parts = [SRHT(4, 6).sample(1), SRHT(5, 6).sample(2) @ count]
    X = rng.standard_normal((4, 7))
    expected = np.hstack([parts[0].apply(X[:, :4]), parts[1].apply(X[:, 4:])])
    np.testing.assert_allclose(direct_sum(*parts).apply(X), expected, atol=1e-13)


def test_gradients_through_compositions(rng):
    import torch

    both = (
        SRHT(9, 4).sample(0) @ direct_sum(OSNAP(3, 5).sample(1), SRHT(2, 4).sample(2)) @ PolySketch(3, 5, 3).sample(3)
    )
    X = torch.from_numpy(rng.standard_normal((2, 3))).requires_grad_()
    assert torch.autograd.gradcheck(both.apply, (X,))


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (SRHT(5, 4), SRHT(3, 6)),
        (SRHT(8, 4), SRHT(3, 6)),  # padding is no excuse
        (TensorSRHT(6, 4), SRHT(3, 6)),
        (TensorSketch(6, 4), SRHT(3, 6)),
        (SRHT(5, 4), TensorSketch(3, 6)),
        (PolySketch(6, 4, 2), TensorSRHT(3, 6)),
    ],
    ids=repr,
)
def test_sizes_must_match(outer, inner):
    with pytest.raises(ValueError, match=r"outer operator on the 6 components of the inner one. Got \w+\(.* → 4\) and"):
        outer.sample(0) @ inner.sample(1)


@pytest.mark.parametrize("other", [np.eye(5), 3, None, SRHT(3, 5)])
def test_only_operators_compose(other):
    with pytest.raises(TypeError, match=r"outer @ inner composes two operators. Got .*apply\(X\)"):
        SRHT(5, 4).sample(0) @ other
