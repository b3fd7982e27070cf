"""Ridge regression written out: normal equations with a column of ones, one fit per left-out row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def ridge(
    Z: np.ndarray, Y: np.ndarray, weight: np.ndarray, alpha: float, *, intercept: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """β (m, k) and b (k,) with the least Σ w (y − βᵀz − b)² + α‖β‖²; among equals the smallest ‖β‖² + ‖b‖²."""
    D, penalty = _design(Z, alpha, intercept=intercept)
    A = D.T @ (weight[:, None] * D) + penalty
    R = D.T @ (weight[:, None] * _matrix(Y))
    solution = np.linalg.lstsq(A, R, rcond=1e-11)[0]
    return (solution[:-1], solution[-1]) if intercept else (solution, np.zeros(R.shape[1]))


def dual_ridge(
    Z: np.ndarray, Y: np.ndarray, weight: np.ndarray, alpha: float, *, intercept: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """As above, for α > 0, with one unknown per row: β = Zᵀa with (K + α/w) a + b = y and Σ a = 0."""
    Z, Y, weight = _matrix(Z)[weight > 0], _matrix(Y)[weight > 0], weight[weight > 0]
    n = len(Z)
    A = Z @ Z.T + np.diag(alpha / weight)
    if not intercept:
        return Z.T @ np.linalg.solve(A, Y), np.zeros(Y.shape[1])
    A = np.block([[A, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solution = np.linalg.solve(A, np.vstack([Y, np.zeros((1, Y.shape[1]))]))
    return Z.T @ solution[:-1], solution[-1]


def left_out(
    Z: np.ndarray,
    Y: np.ndarray,
    weight: np.ndarray,
    alpha: float,
    sets: Iterable[Iterable[int]],
    *,
    intercept: bool = True,
) -> np.ndarray:
    """Return predictions for sets of rows, each from a fit on all other rows, concatenated.

    For a single row with a weight above 1, one unit of weight is left out, as if the row were repeated.
    """
    predictions = []
    for rows in sets:
        rows = list(rows)
        rest = weight.copy()
        rest[rows] = 0.0 if len(rows) > 1 else np.maximum(weight[rows] - 1.0, 0.0)
        used = rest > 0
        coef, constant = ridge(Z[used], _matrix(Y)[used], rest[used], alpha, intercept=intercept)
        predictions.extend(Z[row] @ coef + constant for row in rows)
    return np.array(predictions)


def mean_square(Y: np.ndarray, predictions: np.ndarray, weight: np.ndarray) -> float:
    """Weighted mean over rows of squared errors, summed over targets."""
    return float(weight @ ((_matrix(Y) - predictions) ** 2).sum(axis=1) / weight.sum())


def noise_variance(
    Z: np.ndarray, Y: np.ndarray, weight: np.ndarray, alpha: float, *, intercept: bool = True
) -> np.ndarray:
    """(Σ w (y − ŷ)² + α‖β‖²)/W of each target, from residuals and weights themselves."""
    coef, constant = ridge(Z, Y, weight, alpha, intercept=intercept)
    residuals = _matrix(Y) - Z @ coef - constant
    return (weight @ residuals**2 + alpha * (coef**2).sum(axis=0)) / weight.sum()


def spread(Z: np.ndarray, weight: np.ndarray, alpha: float, new: np.ndarray, *, intercept: bool = True) -> np.ndarray:
    """Posterior variance of the prediction for new rows over σ²: dᵀ(DᵀWD + P)⁻¹d with rows d = (z, 1)."""
    D, penalty = _design(Z, alpha, intercept=intercept)
    d, _ = _design(new, alpha, intercept=intercept)
    inverse = np.linalg.inv(D.T @ (weight[:, None] * D) + penalty)
    return np.einsum("ij,jk,ik->i", d, inverse, d)


def gaussian_process_spread(
    Z: np.ndarray, weight: np.ndarray, alpha: float, new: np.ndarray, *, intercept: bool = True
) -> np.ndarray:
    """The same as variance of a Gaussian process of covariance zᵀz′/α and an unknown constant mean (kriging)."""
    Z, new, weight = _matrix(Z)[weight > 0], _matrix(new), weight[weight > 0]
    K, k = Z @ Z.T / alpha + np.diag(1 / weight), Z @ new.T / alpha
    if intercept:
        ones = np.ones((len(Z), 1))
        K = np.block([[K, ones], [ones.T, np.zeros((1, 1))]])
        k = np.vstack([k, np.ones((1, len(new)))])
    return (new**2).sum(axis=1) / alpha - np.einsum("ij,ij->j", k, np.linalg.solve(K, k))


def centred_sums(Z: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    """Means and sums about them in extended precision, rounded to float64 at the end."""
    Z, Y, weight = (np.asarray(a, dtype=np.longdouble) for a in (Z, Y, weight))
    total = weight.sum()
    z_mean, y_mean = weight @ Z / total, weight @ Y / total
    z, y = Z - z_mean, Y - y_mean
    sums = {
        "weight": total,
        "z_mean": z_mean,
        "y_mean": y_mean,
        "gram": (weight[:, None] * z).T @ z,
        "cross": (weight[:, None] * z).T @ y,
        "y_square": weight @ y**2,
    }
    return {name: np.asarray(value, dtype=np.float64) for name, value in sums.items()}


def _design(Z: np.ndarray, alpha: float, *, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a one appended, and the penalty, which spares that column."""
    Z = np.asarray(Z, dtype=np.float64)
    if not intercept:
        return Z, alpha * np.eye(Z.shape[1])
    return np.hstack([Z, np.ones((len(Z), 1))]), np.diag([alpha] * Z.shape[1] + [0.0])


def _matrix(Y: np.ndarray) -> np.ndarray:
    Y = np.asarray(Y, dtype=np.float64)
    return Y[:, None] if Y.ndim == 1 else Y


def extended_predictions(
    Z: np.ndarray, y: np.ndarray, weight: np.ndarray | None, alpha: float, *, intercept: bool = True
) -> np.ndarray:
    """Predictions of ridge regression for its own rows, in extended precision.

    Least squares of the rows times √w, and of √α times the identity, by Householder reflections: no squares of
    features are added up. Columns are scaled first, and rows sorted by size, so that neither costs digits.
    """
    Z, y = (np.asarray(a, dtype=np.longdouble) for a in (Z, y))
    w = np.ones(len(Z), dtype=np.longdouble) if weight is None else np.asarray(weight, dtype=np.longdouble)
    z_mean, y_mean = (w @ Z / w.sum(), w @ y / w.sum()) if intercept else (0 * Z[0], np.longdouble(0))
    size = np.abs(Z - z_mean).max(axis=0)
    size[size == 0] = 1
    centred = (Z - z_mean) / size
    penalty = np.sqrt(np.longdouble(alpha) or np.longdouble(1e-24)) / size
    A = np.concatenate([np.sqrt(w)[:, None] * centred, np.diag(penalty)])
    b = np.concatenate([np.sqrt(w) * (y - y_mean), np.zeros(Z.shape[1], dtype=np.longdouble)])
    order = np.argsort(-np.abs(A).max(axis=1), kind="stable")
    A, b = A[order], b[order]
    for j in range(A.shape[1]):
        v = A[j:, j].copy()
        v[0] += np.copysign(np.sqrt(v @ v), v[0])
        length = v @ v
        if length > 0:
            A[j:] -= np.outer(2 * v / length, v @ A[j:])
            b[j:] -= 2 * v * (v @ b[j:]) / length
    x = np.zeros(A.shape[1], dtype=np.longdouble)
    for j in reversed(range(A.shape[1])):
        x[j] = (b[j] - A[j, j + 1 :] @ x[j + 1 :]) / A[j, j] if A[j, j] else 0
    return (y_mean + centred @ x).astype(np.float64)
