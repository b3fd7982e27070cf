"""Kernel ridge regression written out: dense solves, one fit per left-out row, iterations of one column."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def kernel_ridge(
    K: np.ndarray, Y: np.ndarray, alpha: float, weight: np.ndarray | None = None, *, intercept: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """c and b of Σ_i c_i k(x, x_i) + b: (K + α/w) c + b = y and Σ c = 0, or b = 0; c = 0 for w = 0."""
    weight = np.ones(len(K)) if weight is None else np.asarray(weight, dtype=np.float64)
    counted = weight > 0
    A = K[np.ix_(counted, counted)] + np.diag(alpha / weight[counted])
    dual, constant = np.zeros(Y.shape), np.zeros(Y.shape[1:])
    if not intercept:
        dual[counted] = np.linalg.solve(A, Y[counted])
        return dual, constant
    ones = np.ones((len(A), 1))
    A = np.block([[A, ones], [ones.T, np.zeros((1, 1))]])
    solution = np.linalg.solve(A, np.concatenate([Y[counted], constant[None]]))
    dual[counted] = solution[:-1]
    return dual, solution[-1]


def left_out(
    K: np.ndarray,
    Y: np.ndarray,
    alpha: float,
    rows: Iterable[int],
    weight: np.ndarray | None = None,
    *,
    way: str = "loo",
    intercept: bool = True,
) -> np.ndarray:
    """Predictions for some rows by fits without them: without one unit of each one's weight, or without all of them."""
    Y, rows = Y.reshape(len(K), -1), list(rows)
    weight = np.ones(len(K)) if weight is None else weight
    predictions = []
    for row in rows:
        others = weight.copy()
        if way == "loo":
            others[row] -= min(1, weight[row])
        else:
            others[rows] = 0
        dual, constant = kernel_ridge(K, Y, alpha, others, intercept=intercept)
        predictions.append(K[row] @ dual + constant)
    return np.array(predictions)


def centred(K: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """S (I − 1wᵀ/W) K (I − w1ᵀ/W) S with S = diag(√w)."""
    weight = np.ones(len(K)) if weight is None else weight
    H = np.eye(len(K)) - weight / weight.sum()
    return np.sqrt(np.outer(weight, weight)) * (H @ K @ H.T)


def objective(K: np.ndarray, dual: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """‖Kc − y‖² + α cᵀKc."""
    return float(((K @ dual - y) ** 2).sum() + alpha * np.sum(dual * (K @ dual)))


def conjugate_gradients(A: np.ndarray, b: np.ndarray, inverse: np.ndarray, n_iter: int) -> list[np.ndarray]:
    """Iterates x_0 = 0, …, x_{n_iter} of preconditioned conjugate gradients for one right-hand side."""
    x, r = np.zeros(len(b)), b.copy()
    z = inverse @ r
    p, iterates = z.copy(), [x]
    for _ in range(n_iter):
        step = (r @ z) / (p @ A @ p)
        x = x + step * p
        new = r - step * (A @ p)
        new_z = inverse @ new
        p = new_z + (new @ new_z) / (r @ z) * p
        r, z = new, new_z
        iterates.append(x)
    return iterates


def gradient_steps(A: np.ndarray, b: np.ndarray, R: np.ndarray, rate: float, n_iter: int) -> list[np.ndarray]:
    """Line 9 of Algorithm 2 (Song et al.), z ← z − η (RᵀAR)ᵀ (RᵀAR z − Rᵀb), and x = R z after each step."""
    B = R.T @ A @ R
    z = np.zeros(len(b))
    iterates = [R @ z]
    for _ in range(n_iter):
        z = z - rate * B.T @ (B @ z - R.T @ b)
        iterates.append(R @ z)
    return iterates


def near_before(K: np.ndarray, row: int, n_neighbors: int) -> list[int]:
    """Return at most `n_neighbors` nearest preceding rows of a row, by k(x, x) + k(y, y) − 2 k(x, y)."""
    distances = [K[row, row] + K[j, j] - 2 * K[row, j] for j in range(row)]
    return sorted(range(row), key=lambda j: distances[j])[:n_neighbors]


def sparse_factor(E: np.ndarray, neighbors: list[list[int]]) -> np.ndarray:
    """F with F[i, J] = c/√c_i, c = (E_JJ)⁻¹ e_i and J the neighbours and i."""
    F = np.zeros_like(E)
    for i, near in enumerate(neighbors):
        J = [*near, i]
        c = np.linalg.inv(E[np.ix_(J, J)])[:, -1]
        F[i, J] = c / np.sqrt(c[-1])
    return F


def sketched_ridge(Z: np.ndarray, b: np.ndarray, alpha: float, S: np.ndarray) -> np.ndarray:
    """w with the least ‖S(Zw − b)‖² + α‖w‖², by least squares on stacked rows."""
    n_features = Z.shape[1]
    stacked = np.vstack([S @ Z, np.sqrt(alpha) * np.eye(n_features)])
    return np.linalg.lstsq(stacked, np.concatenate([S @ b, np.zeros((n_features, *b.shape[1:]))]), rcond=None)[0]


def statistical_dimension(K: np.ndarray, alpha: float) -> float:
    """tr K (K + αI)⁻¹."""
    return float(np.trace(K @ np.linalg.inv(K + alpha * np.eye(len(K)))))
