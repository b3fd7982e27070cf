"""Compositions and direct sums of operators; `test_contract.py` tests the contract of all operators."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from tests.reference.sketches import matrix
from tests.sketches.helpers import assert_close, make_rows, row_kron

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, direct_sum

OUTER = [SRHT(6, 5), SRHT(6, 9, replace=True), CountSketch(6, 4), OSNAP(6, 7), TensorSRHT(6, 5, degree=1),
         PolySketch(6, 5, 1), PowerSketch(6, 5, 1, sparse=True), TensorSketch(6, 5, degree=1)]  # fmt: skip
INNER = [SRHT(3, 6), OSNAP(10, 6), TensorSRHT(3, 6), TensorSRHT((2, 5, 3), 6, degree=3), TensorSketch(3, 6),
         PolySketch(3, 6, 3), PolySketch(4, 6, 2, sparse=True), PowerSketch(3, 6, 3)]  # fmt: skip


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_a_composition_multiplies_the_matrices(inner):
    B = inner.sample(1)
    X = make_rows(B.factors, 11)
    for outer in OUTER:
        A = outer.sample(0)
        both = A @ B
        expected = matrix(A) @ matrix(B)
        assert (both.factors, both.degree, both.n_components) == (B.factors, B.degree, A.n_components)
        assert_close(both.matrix(), expected, case=outer)
        assert_close(both.apply(*X), row_kron(X) @ expected.T, case=outer)
        assert_close(both.apply(*map(sp.csr_array, X)), row_kron(X) @ expected.T, case=outer)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).apply(*X), both.apply(*X))


def test_a_composition_of_powers():
    for inner in (TensorSRHT(3, 6), TensorSketch(3, 6), PolySketch(3, 6, 3), PolySketch(4, 6, 2, sparse=True)):
        A, B = SRHT(6, 5).sample(0), inner.sample(1)
        X = make_rows(B.factors[:1], 11)[0]
        assert_close((A @ B).apply(X), row_kron([X] * B.degree) @ (matrix(A) @ matrix(B)).T, case=inner)


@pytest.mark.parametrize("innermost", [TensorSRHT((3, 4), 9), TensorSketch((3, 4), 9)], ids=repr)
def test_compositions_associate(innermost, to_library):
    A, B, C = SRHT(8, 5).sample(0), OSNAP(9, 8).sample(1), innermost.sample(2)
    X = make_rows(C.factors, 11)
    expected = row_kron(X) @ (matrix(A) @ matrix(B) @ matrix(C)).T
    for same in ((A @ B) @ C, A @ (B @ C)):
        assert_close(same.apply(*map(to_library, X)), expected)


PARTS = [
    [SRHT(5, 7)],
    [SRHT(5, 7), CountSketch(3, 2)],
    [OSNAP(4, 4), SRHT(1, 1), SRHT(17, 3, replace=True), TensorSRHT(6, 5, degree=1), TensorSketch(3, 5, degree=1)],
    [PolySketch(6, 5, 1), PowerSketch(3, 5, 1)],
]


@pytest.mark.parametrize("parts", PARTS, ids=len)
def test_a_direct_sum_is_block_diagonal(parts, to_library):
    operators = [law.sample(i) for i, law in enumerate(parts)]
    both = direct_sum(*operators)
    expected = scipy.linalg.block_diag(*map(matrix, operators))
    assert (both.n_components, *both.factors) == expected.shape
    assert_close(both.matrix(), expected)
    X = make_rows(both.factors, 19)[0]
    assert_close(both.apply(to_library(X)), X @ expected.T)
    assert_close(both.apply(to_library(X.astype(np.float32))), X @ expected.T, "float32")
    assert_close(both.apply(sp.csr_array(X)), X @ expected.T)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(both)).apply(X), both.apply(X))


def test_direct_sums_nest_and_compose():
    A, B, C = SRHT(5, 4).sample(0), OSNAP(3, 4).sample(1), CountSketch(6, 5).sample(2)
    D = SRHT(2, 6).sample(3)
    inner = direct_sum(direct_sum(A, B), C @ D)
    blocks = scipy.linalg.block_diag(matrix(A), matrix(B), matrix(C) @ matrix(D))
    E, F = SRHT(13, 20).sample(4), TensorSRHT((3, 4), 10).sample(5)
    X = make_rows((10,), 9)[0]
    assert_close((E @ inner).apply(X), X @ (matrix(E) @ blocks).T)
    X = make_rows((3, 4), 9)
    assert_close((inner @ F).apply(*X), row_kron(X) @ (blocks @ matrix(F)).T)


def test_a_direct_sum_over_one_operator_twice():
    A = SRHT(5, 8).sample(0)
    X = make_rows((10,), 4)[0]
    np.testing.assert_array_equal(direct_sum(A, A).apply(X), np.hstack([A.apply(X[:, :5]), A.apply(X[:, 5:])]))


def test_gradients_through_compositions_of_direct_sums():
    import torch

    blocks = direct_sum(OSNAP(3, 5).sample(1), SRHT(2, 4).sample(2))
    both = SRHT(9, 4).sample(0) @ blocks @ PolySketch(3, 5, 3).sample(3)
    X = torch.from_numpy(make_rows((3,), 2)[0]).requires_grad_()
    assert torch.autograd.gradcheck(both.apply, (X,))


def test_representations():
    A, B, C = SRHT(8, 5).sample(0), OSNAP(9, 8).sample(1), TensorSRHT((3, 4), 9).sample(2)
    assert repr(A @ B) == "Composition(9 → 5)"
    assert repr(A @ (B @ C)) == repr((A @ B) @ C) == "Composition(3 × 4 → 5)"
    assert repr(A @ B @ TensorSketch(3, 9).sample(0)) == "Composition(3^2 → 5)"
    assert repr(direct_sum(A, B)) == "DirectSum(17 → 13)"


def test_sizes_must_match():
    for outer, inner in [
        (SRHT(5, 4), SRHT(3, 6)),
        (SRHT(8, 4), SRHT(3, 6)),  # padding is no excuse
        (TensorSRHT(6, 4), SRHT(3, 6)),
        (TensorSketch(6, 4), SRHT(3, 6)),
        (SRHT(5, 4), TensorSketch(3, 6)),
        (PolySketch(6, 4, 2), TensorSRHT(3, 6)),
    ]:
        rule = r"outer operator on the 6 components of the inner operator. Got \w+\(.* → 4\) and"
        with pytest.raises(ValueError, match=rule):
            outer.sample(0) @ inner.sample(1)


def test_only_operators_compose():
    for other in (np.eye(5), 3, None, SRHT(3, 5)):
        with pytest.raises(TypeError, match=r"outer @ inner composes two operators. Got .*apply\(X\)"):
            SRHT(5, 4).sample(0) @ other


def test_only_operators_of_degree_1_add_up():
    good, rule = SRHT(5, 7).sample(0), r"'operators' parameter of direct_sum must be "
    for bad in (TensorSRHT(5, 7), TensorSketch(5, 7), PolySketch(5, 7, 2)):
        with pytest.raises(TypeError, match=rule + r".*degree 1.*Got \w+\(5\^2 → 7\)"):
            direct_sum(good, bad.sample(0))
    with pytest.raises(TypeError, match=rule + r".*Got SRHT\("):
        direct_sum(good, SRHT(5, 7))
    with pytest.raises(TypeError, match=rule + r".*Got ndarray of shape"):
        direct_sum(np.eye(3))
    with pytest.raises(ValueError, match=rule + "at least one operator"):
        direct_sum()
