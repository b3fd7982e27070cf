"""The loss equals refits, its gradients equal differences, and descents find planted columns."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm
from tests.reference import metric_descent as reference

from ntkit.kernels import KernelSpec
from ntkit.models import _metric_descent as descent

KERNELS = {
    "gaussian": ("gaussian", {}),
    "laplace": ("laplace", {}),
    "laplace l1": ("laplace", {"norm": "l1"}),
    "matern 3/2": ("matern", {"nu": 1.5}),
    "matern 5/2": ("matern", {"nu": 2.5}),
}
ROUND = [name for name in KERNELS if name != "laplace l1"]


def kernel(name):
    label, params = KERNELS[name]
    return KernelSpec.of(label, lengthscale=1.5, **params)


@pytest.fixture
def problem(rng):
    Z = rng.standard_normal((40, 3))
    Y = np.stack([np.sin(Z[:, 0]), Z[:, 1] * Z[:, 2]], axis=1) + 0.1 * rng.standard_normal((40, 2))
    return Z, Y, rng.uniform(0.3, 2.0, 40)


@pytest.mark.parametrize("alpha", [1e-5, 0.03])
@pytest.mark.parametrize("name", KERNELS)
def test_loss_equals_refits(name, alpha, problem):
    Z, Y, weight = problem
    found = descent.LeaveOneOutLoss(kernel(name), Y, weight)(Z, alpha, full=False)
    expected = reference.leave_one_out(np.asarray(kernel(name).matrix(Z)) + 1, Y, weight, alpha)
    assert found[0] == pytest.approx(expected, abs=1e-8 if alpha < descent.SINGLE_ALPHA else 1e-4)


@pytest.mark.parametrize(("name", "full"), [*product(KERNELS, [False]), *product(ROUND, [True])])
@pytest.mark.parametrize("alpha", [1e-5, 0.03])
def test_gradients_equal_differences(name, full, alpha, problem, monkeypatch):
    Z, Y, weight = problem
    loss = descent.LeaveOneOutLoss(kernel(name), Y, weight)
    _, by_metric, by_alpha = loss(Z, alpha, full=full)
    monkeypatch.setattr(descent, "SINGLE_ALPHA", np.inf)  # float64, for differences

    def value(B):
        return loss(Z @ expm(B), alpha, full=full)[0]

    expected = reference.derivatives(value, 3, full=full, step=1e-4)
    np.testing.assert_allclose(by_metric, expected, atol=1e-3 * np.abs(expected).max())
    h = 1e-4
    difference = (loss(Z, alpha * np.exp(h), full=full)[0] - loss(Z, alpha * np.exp(-h), full=full)[0]) / (2 * h)
    assert by_alpha == pytest.approx(difference, rel=1e-2, abs=1e-5)


def test_a_matrix_that_is_not_positive_has_no_loss(problem):
    Z, Y, weight = problem
    Z = np.repeat(Z[:20], 2, axis=0)  # equal rows
    assert descent.LeaveOneOutLoss(kernel("gaussian"), Y, weight)(Z, 1e-20, full=False) is None
    rng = np.random.default_rng(0)
    path = list(descent.descend(kernel("gaussian"), Z, Y, weight, np.ones(3), 1e-30, rng, 2))
    assert path[-1][1] > descent.LOWEST_ALPHA  # α was raised until there was a solution
    assert all(np.isfinite(M).all() for M, _ in path)


@pytest.mark.parametrize("name", ["gaussian", "laplace l1", "matern 3/2"])
def test_descents_find_the_columns(name, rng):
    """Of ten columns, two matter, one of them more."""
    X = rng.standard_normal((1000, 10)).astype(np.float32)
    Y = (np.sin(2 * X[:, :1]) + 0.3 * X[:, 1:2]).astype(np.float64) + 0.05 * rng.standard_normal((1000, 1))
    path = list(descent.descend(kernel(name), X, Y, np.ones(1000), np.full(10, 0.3), 0.03, rng, 5))
    assert len(path) == 5
    M = path[-1][0]
    assert list(np.argsort(M)[:-3:-1]) == [0, 1]
    assert M[2:].max() < 0.4 * M[0]


def test_full_descents_find_a_direction(rng):
    X = rng.standard_normal((1000, 4)).astype(np.float32)
    Y = np.sin(1.5 * (X[:, :1] + X[:, 1:2])).astype(np.float64)
    *_, (M, _) = descent.descend(kernel("gaussian"), X, Y, np.ones(1000), 0.5 * np.eye(4), 0.03, rng, 5)
    np.testing.assert_allclose(M, M.T, atol=1e-12)
    values, vectors = np.linalg.eigh(M)
    assert np.abs(vectors[:, -1] @ [0.5**0.5, 0.5**0.5, 0, 0]) > 0.99
    assert values[-1] > 3 * values[-2]


def test_weights_count_like_copies_of_rows_that_are_left_out_together(problem):
    """The sum over rows is weighted, and so is the fit."""
    Z, Y, _ = problem
    weight = np.ones(40)
    weight[:20] = 1e-9
    some = descent.LeaveOneOutLoss(kernel("gaussian"), Y[20:], weight[20:])(Z[20:], 0.01, full=False)
    found = descent.LeaveOneOutLoss(kernel("gaussian"), Y, weight)(Z, 0.01, full=False)
    assert found[0] == pytest.approx(some[0], abs=1e-4)
    np.testing.assert_allclose(found[1], some[1], atol=1e-3 * np.abs(some[1]).max())


def test_no_weight_falls_below_a_share_of_the_largest(rng):
    M = descent._bounded(np.array([1.0, 1e-9]))
    np.testing.assert_allclose(M, [1.0, descent.RANGE])
    np.testing.assert_array_equal(descent._bounded(np.array([1.0, 2e-4])), [1.0, 2e-4])
    A = rng.standard_normal((3, 3))
    full = descent._bounded(A)
    np.testing.assert_allclose(full @ full.T, A @ A.T, atol=1e-10)  # equal distances
    lost = descent._bounded(np.diag([1.0, 0.0, 2.0]))
    assert np.linalg.eigvalsh(lost)[0] == pytest.approx(2 * descent.RANGE)


def test_batches_are_parts_of_random_orders(rng):
    few = descent._batches(descent.WHOLE, rng)
    assert len(next(few)) == len(set(next(few))) == descent.WHOLE
    many = descent._batches(3 * descent.BATCH + 5, rng)
    parts = [next(many) for _ in range(4)]
    assert all(len(part) == descent.BATCH for part in parts)
    assert len(set(np.concatenate(parts[:3]))) == 3 * descent.BATCH
    assert set(parts[3]) & set(parts[0])
