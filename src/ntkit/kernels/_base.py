"""What all exact kernels share: per-row work done once, Gram matrices filled tile by tile.

A kernel object is frozen data (its parameters). ``prepare`` does the work that belongs to single rows
(norms, variances), ``gram`` fills whole matrices, ``diagonal`` gives K(x, x) alone. Values are computed in
float64 whatever the input and cast to the input's dtype, tile by tile: no float64 copy of the data or of
the matrix is ever held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches, run_on_threads, with_progress, working_memory
from ntkit._validation import check_data, check_same_kind

TILE_BYTES = 2**21  # a float64 tile of the host's second-level cache


@dataclass(frozen=True)
class Rows:
    """Rows of data with what ``prepare`` found out about each: arrays whose first axis is the row."""

    data: Array
    stats: tuple[Array, ...] = ()

    def __len__(self) -> int:
        return int(self.data.shape[0])

    def __getitem__(self, rows: slice) -> Rows:
        data = self.data[rows] if _array.is_sparse(self.data) else self.data[rows, ...]
        return Rows(data, tuple(s[rows, ...] for s in self.stats))


class Kernel(ABC):
    """Exact kernel with given parameters."""

    owner: ClassVar[str]
    ndims: ClassVar[Sequence[int]] = (2,)
    sparse: ClassVar[bool] = False
    symmetric: ClassVar[bool] = True  # whether K(x, y) = K(y, x) may be relied on

    @property
    def calls_back(self) -> bool:
        """Whether a user's function gets the rows or their products, which then stay in the library they came in."""
        return False

    @property
    def n_outputs(self) -> int:
        """How many matrices `fill` writes."""
        return 1

    def check(self, X: Any, name: str = "X") -> Array:
        """Validated data."""
        return check_data(X, name, self.owner, ndims=self.ndims, sparse=self.sparse)

    def specialize(self, X: Array) -> Kernel:
        """Kernel that computes the same on rows such as those of `X`, faster if there is one."""
        del X
        return self

    @abstractmethod
    def prepare(self, X: Array) -> Rows:
        """Per-row work."""

    @abstractmethod
    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Write the values of one tile into `outs`, arrays of shape (len(a), len(b))."""

    @abstractmethod
    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """K(x, x) of every row."""

    def bytes_per_pair(self, a: Rows) -> int:
        """Scratch needed for a pair in flight."""
        del a
        return 8

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Rows and columns of a tile: square on the host (symmetry), as large as allowed elsewhere."""
        budget = TILE_BYTES if on_host(a.data) else working_memory(a.data)
        pairs = max(1, budget // self.bytes_per_pair(a))
        if on_host(a.data):
            side = max(1, int(pairs**0.5))
            return side, side
        columns = min(len(b), pairs)
        return max(1, min(len(a), pairs // columns)), columns


def on_host(x: Array) -> bool:
    """Whether tiles of `x` are computed by NumPy on threads."""
    return _array.is_sparse(x) or _array.is_numpy(x)


def gram(kernel: Kernel, a: Rows, b: Rows | None, *, progress: bool = False) -> tuple[Array, ...]:
    """Gram matrices of `a` against `b`; with None of `a` against itself, exactly symmetric."""
    bar = kernel.owner if progress else None
    symmetric = b is None and kernel.symmetric
    b = a if b is None else b
    outs = [_empty(a.data, b.data) for _ in range(kernel.n_outputs)]
    height, width = kernel.tile_shape(a, b)
    if symmetric:
        height = width = min(height, width)
    tiles = [
        (slice(i, min(i + height, len(a))), slice(j, min(j + width, len(b))))
        for i in range(0, len(a), height)
        for j in range(i if symmetric else 0, len(b), width)
    ]

    def work(tile: tuple[slice, slice]) -> None:
        rows, columns = tile
        kernel.fill(a[rows], b[columns], [out[rows, columns] for out in outs])
        if symmetric:
            for out in outs:
                _mirror(out, rows, columns)

    if on_host(a.data):
        scratch = height * width * kernel.bytes_per_pair(a)
        run_on_threads(work, tiles, progress=bar, most=max(1, working_memory() // scratch))
    else:
        for tile in with_progress(tiles, bar):
            work(tile)
    if symmetric:
        for out, values in zip(outs, kernel.diagonal(a), strict=True):
            _set_diagonal(out, values)
    return tuple(outs)


def evaluate(kernel: Kernel, X: Any, Y: Any = None, *, progress: bool = False) -> tuple[Array, ...]:
    """Validate `X` and `Y` and return the Gram matrices."""
    X, Y, finish = _checked(kernel, X, Y)
    kernel = kernel.specialize(X)
    a = kernel.prepare(X)
    b = None if Y is None else kernel.prepare(Y)
    return tuple(finish(K) for K in gram(kernel, a, b, progress=progress))


def evaluate_diagonal(kernel: Kernel, X: Any) -> tuple[Array, ...]:
    """Validate `X` and return K(x, x) of its rows."""
    X, _, finish = _checked(kernel, X, None)
    kernel = kernel.specialize(X)
    dtype = _array.result_dtype(X)
    values = kernel.diagonal(kernel.prepare(X))
    return tuple(finish(_array.namespace(v).astype(v, dtype, copy=False)) for v in values)


def evaluate_blocks(
    kernel: Kernel, X: Any, Y: Any = None, *, batch_size: int | None = None
) -> Iterator[tuple[slice, tuple[Array, ...]]]:
    """Iterate over (rows, Gram matrices of X[rows] against Y), each block no larger than the working memory."""
    X, Y, finish = _checked(kernel, X, Y)  # now, not at the first block
    return _blocks(kernel.specialize(X), X, Y, finish, batch_size)


def _blocks(
    kernel: Kernel, X: Array, Y: Array | None, finish: Callable[[Array], Array], batch_size: int | None
) -> Iterator[tuple[slice, tuple[Array, ...]]]:
    b = kernel.prepare(X if Y is None else Y)
    row_bytes = 8 * kernel.n_outputs * len(b)
    batches = row_batches(X.shape[0], row_bytes, batch_size=batch_size, like=X, owner="row_blocks")
    for rows in batches:
        a = b[rows] if Y is None else kernel.prepare(Rows(X)[rows].data)
        yield rows, tuple(finish(K) for K in gram(kernel, a, b))


def _checked(kernel: Kernel, X: Any, Y: Any) -> tuple[Array, Array | None, Callable[[Array], Array]]:
    """Validated `X` and `Y`, CPU tensors as NumPy arrays that share their memory, and the way back."""
    X = kernel.check(X)
    if Y is not None:
        Y = kernel.check(Y, "Y")
        check_same_kind(X, Y, kernel.owner)
    if not _array.is_torch(X):
        return X, Y, lambda K: K
    views = [_array.host_view(Z) for Z in (X, Y) if Z is not None]
    if kernel.calls_back or any(view is None for view in views):
        return X.detach(), None if Y is None else Y.detach(), lambda K: K
    return views[0], None if Y is None else views[1], lambda K: _array.like(K, X)


def _empty(X: Array, Y: Array) -> Array:
    shape = (X.shape[0], Y.shape[0])
    dtype = _array.result_dtype(X, Y)
    if on_host(X):
        return np.empty(shape, dtype)
    return _array.namespace(X).empty(shape, dtype=dtype, device=_array.device(X))


def _mirror(out: Array, rows: slice, columns: slice) -> None:
    """Copy a tile on or above the diagonal to its place below it."""
    tile = out[rows, columns]
    xp = _array.namespace(out)
    if rows == columns:
        upper = xp.triu(tile)
        tile[...] = upper + xp.matrix_transpose(xp.triu(tile, k=1))
    else:
        out[columns, rows] = xp.matrix_transpose(tile)


def _set_diagonal(out: Array, values: Array) -> None:
    if _array.is_numpy(out):
        np.fill_diagonal(out, values)
    elif _array.is_torch(out):
        out.diagonal().copy_(values)
    else:
        for i in range(out.shape[0]):
            out[i, i] = float(values[i])
