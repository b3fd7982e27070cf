"""Kernel matrices computed tile by tile: per-row work is done once, and scratch fits in the working memory.

Values are computed in float64 for any input and cast to its dtype. There is no float64 copy of the data or of the
matrix, only of the rows of a tile; wide rows are copied one panel of columns at a time (:func:`inner_products`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches, run_on_threads, with_progress, working_memory

if TYPE_CHECKING:
    from ntkit.kernels.spec import KernelSpec

TILE_BYTES = 2**21  # size of a float64 tile on the host, about one second-level cache
PANEL = 512  # columns of the data multiplied at a time: with the 512 rows of a tile they fill that cache, too


@dataclass(frozen=True)
class Rows:
    """Rows of data with the per-row results of ``prepare``: named arrays whose first axis is the row."""

    data: Array
    stats: Mapping[Any, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.data.shape[0])

    def __getitem__(self, rows: slice) -> Rows:
        data = self.data[rows] if _array.is_sparse(self.data) else self.data[rows, ...]
        return Rows(data, {name: values[rows, ...] for name, values in self.stats.items()})


def on_host(x: Array) -> bool:
    """Return whether tiles of `x` are computed by NumPy on threads."""
    return _array.is_sparse(x) or _array.is_numpy(x)


def gram(kernel: KernelSpec, a: Rows, b: Rows | None, *, progress: bool = False) -> tuple[Array, ...]:
    """Compute the Gram matrices of `a` against `b`; if `b` is None, of `a` against itself, exactly symmetric."""
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
        scratch = height * width * kernel.scratch_per_pair(a) + (height + width) * kernel.bytes_per_row(a)
        most = 1 if kernel.calls_back else max(1, working_memory() // scratch)
        run_on_threads(work, tiles, progress=bar, most=most)
    else:
        for tile in with_progress(tiles, bar):
            work(tile)
    if symmetric:
        for out, values in zip(outs, kernel.own_values(a), strict=True):
            _set_diagonal(out, values)
    return tuple(outs)


def tile_shape(a: Rows, b: Rows, bytes_per_pair: int, bytes_per_row: int) -> tuple[int, int]:
    """Return the rows and columns of a tile: square on the host (for symmetry), as large as possible elsewhere."""
    if on_host(a.data):
        side = max(1, int((TILE_BYTES // bytes_per_pair) ** 0.5))
        fits = working_memory() // (2 * bytes_per_row + side * bytes_per_pair)
        side = max(1, min(side, fits))
        return side, side
    budget = working_memory(a.data)
    columns = max(1, min(len(b), budget // (2 * bytes_per_row + bytes_per_pair)))
    rows = (budget - columns * bytes_per_row) // (columns * bytes_per_pair + bytes_per_row)
    return max(1, min(len(a), rows)), columns


def row_norms(X: Array) -> Array:
    """Compute the norms of the rows in float64, scaled by the largest entry so that squares cannot overflow."""
    if _array.is_sparse(X):
        top = np.abs(X).max(axis=1).toarray().ravel().astype(np.float64)
        scaled = divide_rows(X.astype(np.float64), top)
        return top * np.sqrt(np.asarray(scaled.multiply(scaled).sum(axis=1)).ravel())
    xp = _array.namespace(X)
    parts = []
    in_cache = max(1, 2**18 // X.shape[1]) if _array.is_numpy(X) else None
    for rows in row_batches(X.shape[0], 32 * X.shape[1], batch_size=in_cache, like=X):
        block = _array.widen(X[rows, :])
        top = xp.max(xp.abs(block), axis=1)
        scaled = divide_rows(block, top)
        parts.append(top * _array.sqrt(xp.sum(scaled * scaled, axis=1)))
    return xp.concat(parts)


def divide_rows(X: Array, divisors: Array) -> Array:
    """Divide the rows of `X` by their divisors; rows with divisor zero are unchanged."""
    xp = _array.namespace(divisors)
    safe = xp.where(divisors > 0, divisors, xp.ones_like(divisors))
    if _array.is_sparse(X):
        quotient = X.copy()
        quotient.data = X.data / np.repeat(safe, np.diff(X.indptr))
        return quotient
    return X / safe[:, None]


def inner_products(A: Array, B: Array, norms: tuple[Array, Array] | None = None) -> Array:
    """Compute A Bᵀ in float64, on the host by panels of columns; rows are divided by `norms` if given."""
    x_norms, y_norms = norms or (None, None)
    if _array.is_sparse(A):
        return (_wide(A, x_norms) @ _wide(B, y_norms).T).toarray()
    xp = _array.namespace(A)
    panels = list(row_batches(A.shape[1], 1, batch_size=PANEL)) if on_host(A) else [slice(None)]
    total: Array = None
    for panel in panels or [slice(None)]:
        product = xp.matmul(_wide(A[:, panel], x_norms), xp.matrix_transpose(_wide(B[:, panel], y_norms)))
        total = product if total is None else xp.add(total, product)
    return total


def bytes_of_inner_products(X: Array) -> int:
    """Return the scratch bytes of :func:`inner_products` per row.

    It makes two copies: of a panel on the host, of an average row for CSR, of the whole row elsewhere.
    """
    if _array.is_sparse(X):
        return 40 * (X.nnz // max(X.shape[0], 1) + 1)
    return 16 * int(min(X.shape[1], PANEL) if on_host(X) else X.shape[1])


def assign(out: Array, values: Array) -> None:
    """Write `values` into `out`, cast to its dtype."""
    out[...] = _array.namespace(values).astype(values, out.dtype, copy=False)


def row_blocks(kernel: KernelSpec, X: Array, Y: Array | None, batch_size: int | None) -> Iterator[Any]:
    """Iterate over (rows, Gram matrices of X[rows] against Y); each block fits in the working memory."""
    b = kernel.prepare(X if Y is None else Y)
    row_bytes = 8 * kernel.n_outputs * len(b)
    for rows in row_batches(X.shape[0], row_bytes, batch_size=batch_size, like=X, owner="row_blocks"):
        a = b[rows] if Y is None else kernel.prepare(Rows(X)[rows].data)
        yield rows, gram(kernel, a, b)


def _wide(X: Array, norms: Array | None) -> Array:
    X = X.astype(np.float64) if _array.is_sparse(X) else _array.widen(X)
    return X if norms is None else divide_rows(X, norms)


def _empty(X: Array, Y: Array) -> Array:
    shape = (X.shape[0], Y.shape[0])
    dtype = _array.result_dtype(X, Y)
    if on_host(X):
        return np.empty(shape, dtype)
    return _array.namespace(X).empty(shape, dtype=dtype, device=_array.device(X))


def _mirror(out: Array, rows: slice, columns: slice) -> None:
    """Copy a tile on or above the diagonal to its mirror position."""
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
