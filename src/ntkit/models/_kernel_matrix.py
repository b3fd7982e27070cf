"""Kernel matrices that need not be in memory: products with them, their columns and small submatrices.

Everything is in float64: NumPy arrays for rows in host memory, torch tensors for rows on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import free_memory, row_batches, run_on_threads
from ntkit._validation import check_real
from ntkit.features.landmarks import choose as _landmarks
from ntkit.features.landmarks.choose import block_rows, check_finite, take, wide
from ntkit.kernels import KernelSpec

_MEMORY_SHARE = 0.6  # kernel values may take this share of the free memory
_SEARCH_BYTES = 2**25  # a thread searches for neighbours in blocks of kernel values of this size


class KernelMatrix(ABC):
    """The matrix A = S K S, where K is a kernel matrix and S = diag(`scale`) (None: ones)."""

    def __init__(self, n_rows: int, scale: Array | None):
        self.n_rows, self.scale = n_rows, scale

    @property
    @abstractmethod
    def held(self) -> Array | None:
        """K, if all of it is in memory."""

    @abstractmethod
    def _times(self, V: Array) -> Array:
        """Return K V."""

    @abstractmethod
    def _columns(self, indices: np.ndarray) -> Array:
        """Return columns of K."""

    @abstractmethod
    def _diagonal(self) -> Array:
        """Return the diagonal of K."""

    @abstractmethod
    def _parts(self, indices: np.ndarray) -> Array:
        """Return the submatrix K[J, J] for each list of indices J, as an array of shape (lists, length, length)."""

    def times(self, V: Array) -> Array:
        """Return A V, for V of shape (n, k)."""
        if self.scale is None:
            return self._times(V)
        return self.scale[:, None] * self._times(self.scale[:, None] * V)

    def columns(self, indices: np.ndarray) -> Array:
        """Return columns of A."""
        K = self._columns(indices)
        return K if self.scale is None else self.scale[:, None] * K * take(self.scale, indices)[None, :]

    def diagonal(self) -> Array:
        """Return the diagonal of A."""
        values = self._diagonal()
        return values if self.scale is None else self.scale**2 * values

    def parts(self, indices: np.ndarray) -> Array:
        """Return the submatrix A[J, J] for each list of indices J."""
        K = self._parts(indices)
        if self.scale is None:
            return K
        scale = take(self.scale, indices)
        return scale[:, :, None] * K * scale[:, None, :]

    def near(self, n_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
        """Return indices of up to `n_neighbors` nearest preceding rows for each row, and a mask of the valid ones."""
        return near_in_kernel(self.held, self._diagonal(), n_neighbors)

    def landmarks(self, size: int, seed: np.random.SeedSequence) -> np.ndarray:
        """Draw `size` rows by their ridge leverage scores in K and return their indices."""
        if size >= self.n_rows:
            return np.arange(self.n_rows)
        return _landmarks.leverage(self._source(), size, seed)

    @abstractmethod
    def _source(self) -> Any:
        """Return K in the form that the leverage scores need."""

    def whole(self) -> Array:
        """Return the matrix A, in memory that may be overwritten."""
        K = self.held
        K = self._columns(np.arange(self.n_rows)) if K is None else self._taken()
        if self.scale is not None:
            K *= self.scale[:, None]
            K *= self.scale[None, :]
        return K

    @abstractmethod
    def _taken(self) -> Array:
        """Return K in memory that may be overwritten; an own copy of K is given up."""


class MatrixOfRows(KernelMatrix):
    """Kernel matrix of rows. Blocks of its rows are cached after the first use, up to `cache` bytes."""

    def __init__(
        self,
        kernel: KernelSpec,
        X: Any,
        *,
        scale: Array | None = None,
        cache: int = 0,
        batch_size: int | None = None,
        progress: bool = False,
    ):
        super().__init__(int(X.shape[0]), scale)
        self.kernel, self.X, self.cache, self.progress = kernel, wide(X), cache, progress
        self._K: Array | None = None
        self._kept: dict[int, Array] = {}
        self._step = block_rows(self.n_rows, batch_size, X)

    @property
    def held(self) -> Array | None:
        """K, computed if it fits into the cache; else None."""
        if self._K is None and 8 * self.n_rows**2 <= self.cache:
            self._K = self._values(self.X)
        return self._K

    def _taken(self) -> Array:
        K, self._K = self.held, None
        return K

    def _times(self, V: Array) -> Array:
        K = self.held
        if K is not None:
            return K @ V
        xp: Any = _array.namespace(V)
        return xp.concat([block @ V for _, block in self._blocks()])

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        """Yield blocks of rows of K; the first blocks may come from the cache."""
        for number, rows in enumerate(row_batches(self.n_rows, 1, batch_size=self._step)):
            block = self._kept.get(number)
            if block is None:
                block = self._values(self.X[rows], self.X)
                if 8 * self.n_rows * rows.stop <= self.cache:
                    self._kept[number] = block
            yield rows, block

    def _columns(self, indices: np.ndarray) -> Array:
        if self._K is not None:
            return take(self._K, indices).T  # K is symmetric, and rows are contiguous in memory
        return self._values(self.X, None if len(indices) == self.n_rows else take(self.X, indices))

    def _values(self, X: Any, Y: Any = None) -> Array:
        K = _native(self.kernel.matrix(X, Y, progress=self.progress and Y is None))
        check_finite(K)
        return K

    def _diagonal(self) -> Array:
        return _native(self.kernel.diagonal(self.X))

    def _parts(self, indices: np.ndarray) -> Array:
        if self._K is not None:
            return _gathered(self._K, indices)
        parts = [_native(self.kernel.matrix(take(self.X, part))) for part in indices]
        return _array.namespace(*parts).stack(parts)

    def _source(self) -> Any:
        held = self.held
        if held is None:
            return _landmarks.ComputedMatrix(self.kernel, self.X, None)
        return _landmarks.StoredMatrix(held, None)

    def near(self, n_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nearest preceding rows: by kernel distance if K is in memory, else by Euclidean distance.

        The Euclidean search looks for twice as many neighbours, since on average half of them precede the row.
        """
        if self.held is not None:
            return super().near(n_neighbors)
        from sklearn.neighbors import NearestNeighbors

        X = self.X if _array.is_sparse(self.X) else self.X.reshape(self.n_rows, -1)
        X = X.cpu().numpy() if _array.is_torch(X) else X
        search = NearestNeighbors(n_neighbors=min(2 * n_neighbors + 1, self.n_rows)).fit(X)
        found = search.kneighbors(X, return_distance=False)
        before = found < np.arange(self.n_rows)[:, None]
        order = np.argsort(~before, axis=1, kind="stable")[:, :n_neighbors]
        found, before = np.take_along_axis(found, order, 1), np.take_along_axis(before, order, 1)
        return np.where(before, found, 0), before


class GivenMatrix(KernelMatrix):
    """A kernel matrix that the caller has computed."""

    def __init__(self, K: Array, *, scale: Array | None = None):
        super().__init__(int(K.shape[0]), scale)
        self.K = _native(_array.widen(K))

    @property
    def held(self) -> Array:
        """K."""
        return self.K

    def _taken(self) -> Array:
        return self.K.clone() if _array.is_torch(self.K) else self.K.copy()

    def _times(self, V: Array) -> Array:
        return self.K @ V

    def _columns(self, indices: np.ndarray) -> Array:
        return take(self.K.T, indices).T

    def _diagonal(self) -> Array:
        return self.K.diagonal()

    def _parts(self, indices: np.ndarray) -> Array:
        return _gathered(self.K, indices)

    def _source(self) -> Any:
        return _landmarks.StoredMatrix(self.K, None)


def near_in_kernel(K: Array, diagonal: Array, n_neighbors: int) -> tuple[np.ndarray, np.ndarray]:
    """Find, for every row, the preceding rows with the smallest k(x, x) + k(y, y) − 2 k(x, y).

    Returns
    -------
    indices : ndarray of int of shape (n, n_neighbors)
    there : ndarray of bool of shape (n, n_neighbors)
        Mask of the valid indices: the first rows have fewer than `n_neighbors` preceding rows.
    """
    n_rows = int(K.shape[0])
    indices = np.zeros((n_rows, n_neighbors), dtype=np.int64)
    there = np.arange(n_neighbors)[None, :] < np.arange(n_rows)[:, None]
    on_device = _array.is_torch(K)
    step = block_rows(n_rows, None, K) if on_device else max(1, _SEARCH_BYTES // (8 * n_rows))

    def search(rows: slice) -> None:
        size = min(n_neighbors, rows.stop)
        distances = diagonal[None, : rows.stop] - 2 * K[rows, : rows.stop]
        if on_device:
            import torch

            after = torch.arange(rows.stop, device=K.device)[None, :] >= torch.arange(
                rows.start, rows.stop, device=K.device
            )[:, None]  # fmt: skip
            distances[after] = float("inf")
            nearest = torch.topk(distances, size, dim=1, largest=False).indices.cpu().numpy()
        else:
            distances[np.arange(rows.stop)[None, :] >= np.arange(rows.start, rows.stop)[:, None]] = np.inf
            nearest = np.argpartition(distances, size - 1, axis=1)[:, :size]
            # A partition leaves the order open: sort, so that the valid indices come first.
            at = np.take_along_axis(distances, nearest, 1)
            nearest = np.take_along_axis(nearest, np.argsort(at, axis=1, kind="stable"), 1)
        indices[rows, :size] = nearest

    batches = list(row_batches(n_rows, 1, batch_size=step))
    if on_device:
        for rows in batches:
            search(rows)
    else:
        run_on_threads(search, batches)
    return np.where(there, indices, 0), there


def cache_bytes(cache_size: Any, like: Any, owner: str) -> int:
    """Return the bytes for kernel values: `cache_size` MiB, by default a share of the free memory."""
    if cache_size is None:
        return int(_MEMORY_SHARE * free_memory(like))
    return int(check_real(cache_size, "cache_size", owner, minimum=0) * 2**20)


def _gathered(K: Array, indices: np.ndarray) -> Array:
    if _array.is_torch(K):
        import torch

        places = torch.from_numpy(indices).to(K.device)
        return K[places[:, :, None], places[:, None, :]]
    return K[indices[:, :, None], indices[:, None, :]]


def _native(K: Array) -> Array:
    """Convert tensors in host memory to NumPy arrays."""
    view = _array.host_view(K)
    return K if view is None else view
