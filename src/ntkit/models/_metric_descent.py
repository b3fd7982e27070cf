"""Descent on the leave-one-out error of kernel ridge regression, in the metric and α together.

With the kernel matrix K of some rows, k(Mx, My) + 1 (the 1 is for the intercept), and C = (K + α diag(1/w))⁻¹, the
weights of the rows are c = CY. The residuals that the rows would have if they were left out, and the loss, are

    r_i = c_i / C_ii,   ℓ = ½ log Σ_i w_i ‖r_i‖².

With g_i = w_i r_i / C_ii, the derivative of ½ Σ w_i ‖r_i‖² is

    ∂/∂K = C diag(⟨g_i, r_i⟩) C − (C g) cᵀ,

so a gradient costs little more than the loss itself (Rasmussen and Williams 2006, Section 5.4.2).

Metrics are changed by factors, M ← M exp(B), with B diagonal or symmetric: equal steps then change the weights of all
columns by equal factors, whatever their size. Each step uses other rows, drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ntkit._lapack import cholesky_in_place, invert_from_cholesky
from ntkit.kernels.distances import DistanceKernel
from ntkit.models._linalg import diagonal, symmetric

STEPS = 6  # steps per round
BATCH = 600  # rows per step; a step takes about 10 ms on one core
WHOLE = 700  # up to this number of rows, each step uses all of them
RATE = 0.2  # a step changes the weight of a column by at most about this share; it falls to 0 in the second half
FULL_RATE = 0.1  # for full metrics
MEAN_DECAY, SQUARE_DECAY, TINY_GRADIENT = 0.8, 0.95, 1e-3  # means over steps, as in Adam (Kingma and Ba 2015)
HIGHEST_START = 0.03  # with a larger α, a first fit that explains nothing would have no gradients
LOWEST_ALPHA, HIGHEST_ALPHA = 1e-9, 1e3
SINGLE_ALPHA = 1e-4  # from this α on, float32 is accurate enough, and faster
RANGE = 1e-4  # smallest weight of a column (or eigenvalue), as a share of the largest: distances must not collapse


class LeaveOneOutLoss:
    """The loss ℓ of rows Z exp(B) as a function of B, at B = 0, and of log α.

    Parameters
    ----------
    spec : DistanceKernel
    Y : ndarray of shape (n, k)
        Centred targets.
    weight : ndarray of shape (n,)
        Positive weights.
    """

    def __init__(self, spec: DistanceKernel, Y: np.ndarray, weight: np.ndarray):
        self.spec, self.Y, self.weight = spec, Y, weight

    def __call__(self, Z: np.ndarray, alpha: float, *, full: bool) -> tuple[float, np.ndarray, float] | None:
        """Return ℓ, ∂ℓ/∂B (for a diagonal B its diagonal), and ∂ℓ/∂ log α; None if there is no solution."""
        spec, rows = self.spec, self.spec.prepare(Z)
        K = np.empty((len(Z), len(Z)), np.float32 if alpha >= SINGLE_ALPHA else np.float64)
        spec.fill(rows, rows, (K,))
        found = self._by_kernel(K, alpha)
        if found is None:
            return None
        total, G = found
        value = 0.5 * float(np.log(total / self.weight.sum()))
        by_alpha = alpha * float(np.sum(np.diagonal(G) / self.weight))
        if spec.absolute:
            G *= K
            return value, -spec.scale * self._absolute_sums(Z, G), by_alpha
        G *= spec.slope(spec.distances(Z, Z).astype(np.float32))
        own = (G.sum(axis=0) + G.sum(axis=1))[:, None] / 2
        if full:
            product = Z.T @ (G @ Z)
            by_metric = Z.T @ (own * Z) - (product + product.T) / 2
        else:
            by_metric = (own * Z**2).sum(axis=0) - np.einsum("ik,ik->k", Z, G @ Z)
        return value, -2 * spec.scale**2 * by_metric, by_alpha

    @staticmethod
    def _absolute_sums(Z: np.ndarray, G: np.ndarray) -> np.ndarray:
        """Return Σ_ij G_ij |z_ik − z_jk| for every column k."""
        from ntkit.kernels._distances_numba import absolute_sums

        out = np.zeros(Z.shape[1])
        absolute_sums(np.ascontiguousarray(Z.T), G, out)
        return out

    def _by_kernel(self, K: np.ndarray, alpha: float) -> tuple[float, np.ndarray] | None:
        """Return T = Σ w_i ‖r_i‖² and ∂(½ log T)/∂K, the latter in float32; None if there is no solution."""
        dtype = K.dtype
        C = inverse(K.copy(), (alpha / self.weight).astype(dtype))
        if C is None:
            return None
        own = np.diagonal(C).astype(np.float64)[:, None]
        c = C @ self.Y.astype(dtype)
        residuals = c / own
        g = self.weight[:, None] * residuals / own
        total = float((self.weight[:, None] * residuals**2).sum())
        if not np.isfinite(total) or total <= 0:
            return None
        scaled = C.astype(np.float32) * np.sqrt((g * residuals).sum(axis=1) / total).astype(np.float32)
        product = scaled @ scaled.T
        product -= (C @ (g / total).astype(dtype)).astype(np.float32) @ c.T.astype(np.float32)
        return total, product


def inverse(K: np.ndarray, shift: np.ndarray) -> np.ndarray | None:
    """Return (K + 1 + diag(shift))⁻¹ from a Cholesky factorization, or None if it fails; K is overwritten."""
    K += 1
    diagonal(K)[...] += shift
    return symmetric(K) if cholesky_in_place(K) and invert_from_cholesky(K) else None


def descend(
    spec: DistanceKernel,
    X: np.ndarray,
    Y: np.ndarray,
    weight: np.ndarray,
    metric: np.ndarray,
    alpha: float,
    rng: np.random.Generator,
    n_rounds: int,
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the metric and α after each of `n_rounds` rounds of descent from `metric`, a diagonal or a matrix."""
    X, full, rows = X.astype(np.float64), metric.ndim == 2, _batches(len(X), rng)
    rate, n_steps = FULL_RATE if full else RATE, STEPS * n_rounds
    M, log_alpha = metric.astype(np.float64), float(np.log(np.clip(alpha, LOWEST_ALPHA, HIGHEST_START)))
    means, squares, n_done = np.zeros(M.size + 1), np.zeros(M.size + 1), 0
    for step in range(n_steps):
        some = next(rows)
        found = LeaveOneOutLoss(spec, Y[some], weight[some])(
            X[some] @ M if full else X[some] * M, float(np.exp(log_alpha)), full=full
        )
        gradient = None if found is None else np.append(found[1].ravel(), found[2])
        if gradient is None or not np.isfinite(gradient).all():  # rounding errors make K + α indefinite
            log_alpha = min(log_alpha + 1.0, float(np.log(HIGHEST_ALPHA)))
        else:
            n_done += 1
            means = MEAN_DECAY * means + (1 - MEAN_DECAY) * gradient
            squares = SQUARE_DECAY * squares + (1 - SQUARE_DECAY) * gradient**2
            size = rate * min(1.0, 2 * (1 - step / n_steps)) / (1 - MEAN_DECAY**n_done)
            change = size * means / (np.sqrt(squares / (1 - SQUARE_DECAY**n_done)) + TINY_GRADIENT)
            M = _changed(M, -change[:-1].reshape(M.shape))
            log_alpha = float(np.clip(log_alpha - change[-1], np.log(LOWEST_ALPHA), np.log(HIGHEST_ALPHA)))
        if step % STEPS == STEPS - 1:
            yield _bounded(M), float(np.exp(log_alpha))


def _batches(n_rows: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the rows of each step: parts of random orders of all rows."""
    if n_rows <= WHOLE:
        while True:
            yield np.arange(n_rows)
    while True:
        order = rng.permutation(n_rows)
        for start in range(0, n_rows - BATCH + 1, BATCH):
            yield order[start : start + BATCH]


def _changed(M: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return M exp(B)."""
    if M.ndim == 1:
        return M * np.exp(B)
    values, vectors = np.linalg.eigh((B + B.T) / 2)
    return (M @ (vectors * np.exp(values))) @ vectors.T


def _bounded(M: np.ndarray) -> np.ndarray:
    """Raise weights below RANGE times the largest; make a matrix symmetric, which changes no distances."""
    if M.ndim == 1:
        return np.maximum(M, RANGE * M.max())
    values, vectors = np.linalg.eigh(M @ M.T)
    roots = np.sqrt(np.maximum(values, 0.0))
    return (vectors * np.maximum(roots, RANGE * roots[-1])) @ vectors.T
