"""Choice of landmarks: rows sampled by their ridge leverage scores or uniformly, or k-means centres."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import ceil, log
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._random import generator
from ntkit.kernels import KernelSpec

_BLOCK_BYTES = 2**26  # size of a block of kernel values on the host: enough for a matrix product at full speed
_MIN_SAMPLE = 32  # smallest intermediate sample; otherwise an intermediate sample has half as many rows as landmarks
_ROWS_PER_CENTRE = 32  # number of rows on which k-means runs, per centre
_ITERATIONS = 10  # iterations of k-means; further iterations hardly change the features


class ComputedMatrix:
    """Kernel matrix of rows, computed block by block in float64 (kernels work in float64 internally anyway)."""

    def __init__(self, kernel: KernelSpec, X: Any, batch_size: int | None):
        self.kernel, self.X, self.batch_size = kernel, X, batch_size
        self.n_rows = int(X.shape[0])

    def square(self, rows: np.ndarray) -> Array:
        """Return the kernel matrix of some rows."""
        return self.kernel.matrix(wide(take(self.X, rows)))

    def blocks(self, rows: np.ndarray, columns: np.ndarray) -> Iterator[tuple[Array, Array]]:
        """Yield blocks of the matrix and of its diagonal, over all `rows` in their order."""
        landmark_rows = wide(take(self.X, columns))
        for part in row_batches(len(rows), 1, batch_size=block_rows(len(columns), self.batch_size, self.X)):
            X = wide(take(self.X, rows[part]))
            yield self.kernel.matrix(X, landmark_rows), self.kernel.diagonal(X)


class StoredMatrix:
    """Kernel matrix that is already in memory."""

    def __init__(self, K: Array, batch_size: int | None):
        self.K, self.batch_size = K, batch_size
        self.n_rows = int(K.shape[0])

    def square(self, rows: np.ndarray) -> Array:
        """Return the kernel matrix of some rows."""
        return wide(take(take(self.K, rows).T, rows).T)

    def blocks(self, rows: np.ndarray, columns: np.ndarray) -> Iterator[tuple[Array, Array]]:
        """Yield blocks of the matrix and of its diagonal, over all `rows` in their order."""
        for part in row_batches(len(rows), 1, batch_size=block_rows(self.n_rows, self.batch_size, self.K)):
            K = take(self.K, rows[part])
            diagonal = take(self.K.diagonal(), rows[part])
            yield wide(take(K.T, columns).T), wide(diagonal)


def uniform(n_rows: int, size: int, seed: np.random.SeedSequence) -> np.ndarray:
    """Sample `size` distinct row indices uniformly; return them in increasing order."""
    return np.sort(generator(seed, "landmarks", "order").permutation(n_rows)[:size])


def leverage(
    matrix: ComputedMatrix | StoredMatrix, size: int, seed: np.random.SeedSequence, alpha: float | None = None
) -> np.ndarray:
    """Sample `size` distinct rows by their ridge leverage scores (K (K + λI)⁻¹)_ii; return indices in increasing order.

    The method is recursive, as in Algorithm 2 of Musco and Musco. The rows are halved at random until few are left.
    Then, on the way back, a weighted sample S of half of a level's rows gives the scores of all rows of the level,

        l_i = min(1, (K − K S (SᵀKS + λI)⁻¹ SᵀK)_ii / λ),

    and the scores give the next sample. λ is `alpha`, or (1/k) Σ_{i>k} λ_i(SᵀKS). All samples have a fixed size:
    `size` for the last sample and half of `size` before. Systematic sampling includes row i with probability
    min(1, c l_i), with c such that the probabilities add up to the size.
    """
    order = generator(seed, "landmarks", "order").permutation(matrix.n_rows)
    few = min(size, max(-(-size // 2), _MIN_SAMPLE))
    sizes = [matrix.n_rows]
    while sizes[-1] > few:
        sizes.append(-(-sizes[-1] // 2))
    chosen, probabilities = order[: sizes.pop()], None
    while sizes:
        rows = order[: sizes.pop()]
        scores = leverage_scores(matrix, rows, chosen, probabilities, alpha)
        rng = generator(seed, "landmarks", "sample", len(sizes))
        part, probabilities = sample(scores, few if sizes else size, rng)
        chosen = rows[part]
    return np.sort(chosen)


def leverage_scores(
    matrix: ComputedMatrix | StoredMatrix,
    rows: np.ndarray,
    chosen: np.ndarray,
    probabilities: np.ndarray | None = None,
    alpha: float | None = None,
) -> np.ndarray:
    """Estimate ridge leverage scores of `rows` from a sample `chosen` with these probabilities (None: all 1)."""
    K = matrix.square(chosen)
    check_finite(K)
    xp: Any = _array.namespace(K)
    weights = xp.ones_like(K[:, 0])
    if probabilities is not None:
        weights = xp.asarray(probabilities**-0.5, dtype=K.dtype, device=_array.device(K))
    values, vectors = xp.linalg.eigh(weights[:, None] * K * weights[None, :])
    values = xp.clip(values, 0, None)
    total = float(xp.sum(values))
    if total == 0:
        return np.zeros(len(rows))
    lam = _ridge(values, total) if alpha is None else alpha
    whitening = weights[:, None] * vectors / xp.sqrt(values + lam)[None, :]
    parts = []
    for block, diagonal in matrix.blocks(rows, chosen):
        check_finite(block)
        parts.append(diagonal - xp.sum(xp.matmul(block, whitening) ** 2, axis=1))
    scores = xp.clip(xp.concat(parts) / lam, 0, 1)
    return scores.cpu().numpy() if _array.is_torch(scores) else scores


def _ridge(values: Array, total: float) -> float:
    """Return λ = (1/k) Σ_{i>k} λ_i, with k such that about k log k samples suffice; λ stays above rounding errors."""
    xp: Any = _array.namespace(values)
    size = int(values.shape[0])
    k = min(ceil(size / (4 * log(size))), size - 1) if size > 1 else 0
    tail = float(xp.sum(values[: size - k]))
    return max(tail / max(k, 1), 1e-12 * total)


def sample(scores: np.ndarray, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sample `size` distinct indices by systematic sampling; return them and their inclusion probabilities.

    The probabilities are proportional to the scores, but at most 1.
    """
    scores = np.maximum(scores, 1e-12 * scores.max() or 1.0)  # rows with score 0 are sampled last, but can be sampled
    decreasing = np.sort(scores)[::-1]
    tails = np.cumsum(decreasing[::-1])[::-1][:size]
    factors = (size - np.arange(size)) / tails  # factors[i] is right if exactly i rows have probability 1
    factor = factors[np.argmax(factors * decreasing[:size] <= 1 + 1e-12)]
    probabilities = np.minimum(factor * scores, 1.0)
    certain = probabilities > 1 - 1e-9  # kept apart: with rounded sums, one of these rows could be drawn twice
    others = np.flatnonzero(~certain)
    n_others = size - int(certain.sum())
    indices = np.flatnonzero(certain)
    if n_others:
        marks = np.cumsum(probabilities[others])
        marks *= n_others / marks[-1]
        drawn = np.searchsorted(marks, rng.random() + np.arange(n_others), side="right")
        indices = np.concatenate([indices, others[np.minimum(drawn, len(others) - 1)]])
    return indices, probabilities[indices]


def centres(X: Array, size: int, seed: np.random.SeedSequence) -> Array:
    """Compute k-means centres of `size` clusters of dense rows or images, from at most 32 rows per cluster."""
    rows = uniform(X.shape[0], min(X.shape[0], _ROWS_PER_CENTRE * size), seed)
    shape = X.shape[1:]
    X = take(X, rows).reshape(len(rows), -1)
    X = X.float() if _array.is_torch(X) and X.dtype.itemsize < 4 else X
    view = _array.host_view(X)
    if view is None:
        from ntkit._lloyd import lloyd

        return lloyd(X, size, max_iter=_ITERATIONS, seed=seed).centers.reshape(size, *shape)
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    state = int(generator(seed, "landmarks", "centres").integers(2**31))
    means = KMeans(size, init="random", n_init=1, max_iter=_ITERATIONS, random_state=state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal rows make equal landmarks, which are harmless
        found = means.fit(view).cluster_centers_
    return _array.like(found.reshape(size, *shape), X)


def check_finite(K: Array) -> None:
    """Raise an error unless all kernel values are finite."""
    xp: Any = _array.namespace(K)
    parts = row_batches(int(K.shape[0]), 32 * int(K.shape[1]), like=K)
    if not all(bool(xp.all(xp.isfinite(K[rows, :]))) for rows in parts):
        raise ValueError(
            "The kernel of the rows of X must be finite. Got values that overflow. Scale the columns of X, for example "
            "with sklearn.preprocessing.StandardScaler."
        )


def take(X: Any, rows: np.ndarray) -> Any:
    """Return some rows of an array, a tensor or a CSR matrix."""
    if _array.is_torch(X):
        import torch

        return X[torch.from_numpy(rows).to(X.device)]
    if _array.is_numpy(X) or _array.is_sparse(X):
        return X[rows]
    xp: Any = _array.namespace(X)
    return xp.take(X, xp.asarray(rows), axis=0)


def wide(X: Any) -> Any:
    """Return rows in float64."""
    return X.astype(np.float64) if _array.is_sparse(X) else _array.widen(X)


def block_rows(n_columns: int, batch_size: int | None, like: Any) -> int | None:
    """Return the number of rows of a block of kernel values with `n_columns` columns.

    It is `batch_size` if given. Otherwise blocks have a fixed size on the CPU, and fit in the working memory of a GPU.
    """
    if batch_size is None and _array.is_torch(like) and like.device.type != "cpu":
        from ntkit._batching import working_memory

        return max(1, working_memory(like) // (32 * n_columns))
    return batch_size or max(1, _BLOCK_BYTES // (8 * n_columns))
