"""Dask: rows are mapped and reduced to their statistics where they are. The only module that imports Dask.

One round: every block of rows becomes statistics of a fixed size on a worker, these are added up in a tree, and the sum
comes to the caller, who solves. A block that is lost with its worker is computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from ntkit import _array
from ntkit._array import Array
from ntkit._images import as_floats
from ntkit._validation import describe
from ntkit.features.landmarks.choose import check_finite
from ntkit.models._checks import result_dtype
from ntkit.models._features import counted, fit_weighted
from ntkit.models._kernel_matrix import MatrixOfRows
from ntkit.models._rows import Block, Source, as_arrays, take_rows
from ntkit.models._statistics import Statistics

__all__ = ["first_rows", "map_rows"]

_BLOCK_BYTES = 2**26  # of kernel values that a worker computes at a time, if they are not kept
_SHARE = 0.5  # of the workers' memory that kernel values may take

_FAN_IN = 4  # statistics added up by one task
_FEWEST_ROWS, _MOST_ROWS = 8192, 131072  # of a task: its result is as large as 2 m rows of float32 features


def map_rows(function: Callable[[Any], Array], X: Any, *, n_columns: int | None, dtype: Any = None) -> Any:
    """Apply a function of rows to every block of a Dask array or data frame; the row chunks stay what they are.

    Parameters
    ----------
    function : callable
        From rows, or images (n, height, width, channels), to an array with as many rows.
    X : Dask array or data frame
        Chunked along the rows only.
    n_columns : int or None
        Columns of the result; None: it has one axis.
    dtype : dtype, optional
        Of the result; by default that of features: float32 if X is float32, else float64; of images their own if it
        is a floating one, and float32 for whole numbers of 8 or 16 bits.

    Returns
    -------
    Dask array

    Examples
    --------
    >>> import dask.array as da
    >>> X = da.ones((6, 2), chunks=(4, -1))
    >>> map_rows(lambda rows: rows @ np.ones((2, 3)), X, n_columns=3).chunks
    ((4, 2), (3,))
    """
    blocks = _rows_together(X)
    shape = (0,) if n_columns is None else (0, n_columns)
    dtype = _floating(blocks) if dtype is None else dtype
    meta = np.empty(shape, dtype=dtype)
    function = _OfRows(function, meta)
    if _is_frame(blocks):
        return blocks.map_partitions(function, meta=meta)
    if n_columns is None:
        return blocks.map_blocks(function, drop_axis=list(range(1, blocks.ndim)), dtype=dtype, meta=meta)
    chunks = blocks.chunks[0], (n_columns,)
    return blocks.map_blocks(function, chunks=chunks, drop_axis=list(range(2, blocks.ndim)), dtype=dtype, meta=meta)


class _OfRows:
    """A function of rows that knows what becomes of none; sent to the workers."""

    def __init__(self, function: Callable[[Any], Array], empty: np.ndarray):
        self.function, self.empty = function, empty
        self.__name__ = getattr(function, "__name__", type(function).__name__)  # for Dask's keys

    def __call__(self, rows: Any) -> Array:
        if not rows.shape[0]:
            return self.empty
        values = self.function(rows)
        return values.astype(self.empty.dtype, copy=False) if _array.is_numpy(values) else values


def first_rows(X: Any) -> Any:
    """Rows of the first block that has any, computed.

    Parameters
    ----------
    X : Dask array or data frame

    Returns
    -------
    array or data frame

    Examples
    --------
    >>> import dask.array as da
    >>> first_rows(da.ones((6, 2), chunks=(4, -1))).shape
    (4, 2)
    """
    blocks = _rows_together(X)
    for number in range(blocks.npartitions):
        rows = (blocks.get_partition(number) if _is_frame(blocks) else blocks.blocks[number]).compute()
        if rows.shape[0]:
            return rows
    raise ValueError(f"A Dask collection without rows was given: {describe(X)}.")


def reduce_statistics(model: Any, X: Any, y: Any, sample_weight: Any) -> None:
    """Fit the features of a model and give it the statistics of all rows."""
    from dask import delayed

    source = DaskSource(X, y, sample_weight, type(model).__name__)
    model._begin(source)
    worker = delayed(_Worker(model), pure=True)
    add = delayed(_add_up, pure=True)
    tasks = [worker(*blocks, start) for *blocks, start in source.groups()]
    while len(tasks) > 1:
        tasks = [add(tasks[i : i + _FAN_IN]) for i in range(0, len(tasks), _FAN_IN)]
    total = tasks[0].compute()
    model._statistics, model._targets = total.statistics, total.targets


class DaskSource(Source):
    """Blocks of a Dask array or data frame, with targets and weights in equal blocks."""

    def __init__(self, X: Any, y: Any, sample_weight: Any, owner: str):
        if y is None:
            raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
        self.owner = owner
        self.rows = _rows_together(X)
        sizes = [np.nan] * self.rows.npartitions if _is_frame(self.rows) else list(self.rows.chunks[0])
        self.sizes = None if any(np.isnan(size) for size in sizes) else [int(size) for size in sizes]
        self.n_rows = None if self.sizes is None else sum(self.sizes)
        self.X = _delayed(self.rows)
        self._first: Any = None  # Block
        self.y = self._like_rows(y, "y", owner)
        self.weight = (
            [None] * len(self.X) if sample_weight is None else self._like_rows(sample_weight, "sample_weight", owner)
        )

    def blocks(self, n_rows: int) -> Iterator[Block]:
        """Yield the blocks here, computed one at a time."""
        from dask import compute

        for block in zip(self.X, self.y, self.weight, strict=True):
            X, y, weight = compute(*block)
            yield from as_arrays(X, y, weight, self.owner).blocks(n_rows)

    def first(self) -> Block:
        """The first rows."""
        from dask import compute

        if self._first is None:
            for rows, weight in zip(self.X, self.weight, strict=True):
                self._first = Block(*compute(rows, None, weight))
                if self._first.X.shape[0]:
                    break
            else:
                first_rows(self.rows)  # raises: there are none
        assert self._first is not None
        return self._first

    def fit_step(self, step: Any, before: Callable[[Any], Any]) -> bool:
        """Fit a StandardScaler from moments of the blocks."""
        from dask import compute, delayed
        from sklearn.preprocessing import StandardScaler

        if not isinstance(step, StandardScaler):
            raise TypeError(
                f"{type(step).__name__} cannot be fitted on a Dask collection here; StandardScaler and maps that "
                "do not look at the data can. Fit it beforehand and pass it in sklearn.frozen.FrozenEstimator."
            )
        step.fit(before(self.first().X))  # checks, names and types
        blocks = zip(self.X, self.weight, strict=True)
        fitted = compute(*(delayed(_fit_scaler)(clone(step), before, *block, self.owner) for block in blocks))
        parts = [part for part in fitted if part is not None]
        if parts:  # else all weights are 0, which the model will say
            _combine_scalers(step, parts)
        return True

    def groups(self) -> Iterator[tuple[list[Any], list[Any], list[Any], int]]:
        """Neighbouring blocks that make enough rows for a task, and the number of the first row."""
        chosen: list[int] = []
        start = rows = 0
        enough = _rows_per_task(self.n_rows or 0)
        for number in range(len(self.X)):
            chosen.append(number)
            rows += self.sizes[number] if self.sizes else enough
            if rows >= enough or number == len(self.X) - 1:
                # Without sizes every block gets row numbers of its own: the sample then depends on the blocks.
                first = start if self.sizes else number << 40
                yield [self.X[i] for i in chosen], [self.y[i] for i in chosen], [self.weight[i] for i in chosen], first
                start, rows, chosen = start + rows, 0, []

    def _like_rows(self, values: Any, name: str, owner: str) -> list[Any]:
        """Targets or weights in the blocks of the rows."""
        if not _array.is_dask(values):
            if self.sizes is None or not hasattr(values, "__len__") or len(values) != self.n_rows:
                raise ValueError(
                    f"{name} of {owner} must be a Dask collection with the blocks of X, or, where the sizes of these "
                    f"are known, an array of {self.n_rows} values. Got {describe(values)}."
                )
            ends = np.cumsum(self.sizes)
            return [take_rows(values, slice(end - size, end)) for size, end in zip(self.sizes, ends, strict=True)]
        known = not _is_frame(values) and not np.isnan(values.shape[0])
        if self.sizes is not None and known and values.chunks[0] != tuple(self.sizes):
            if values.shape[0] != self.n_rows:
                raise ValueError(
                    f"X and {name} of {owner} must have equal numbers of rows. Got {self.n_rows} and {values.shape[0]}."
                )
            values = values.rechunk({0: tuple(self.sizes)})
        blocks = _delayed(_rows_together(values, name))
        if len(blocks) != len(self.X):
            raise ValueError(
                f"X and {name} of {owner} must have equal blocks. Got {len(self.X)} and {len(blocks)} of them."
            )
        return blocks


def _rows_per_task(n_rows: int) -> int:
    """Rows that make four tasks for every thread, within bounds."""
    from distributed import get_client

    try:
        n_threads = sum(get_client().nthreads().values())
    except ValueError:  # Dask's own threads, or none
        n_threads = os.cpu_count() or 1
    return min(max(n_rows // (4 * max(n_threads, 1)), _FEWEST_ROWS), _MOST_ROWS)


@dataclass
class _Partial:
    """Statistics of some rows, and what their targets are."""

    statistics: Statistics
    targets: Any


class _Worker:
    """Maps blocks of rows and adds up their statistics; sent to the workers."""

    __name__ = "statistics"  # for Dask's keys

    def __init__(self, model: Any):
        self.model = model

    def __call__(self, X: list[Any], y: list[Any], weight: list[Any], start: int) -> _Partial:
        model = copy(self.model)
        empty = model._statistics
        model._statistics, model._targets = Statistics(empty.n_components, 0, empty.sample.size), type(model)._codec()
        for block in zip(X, y, weight, strict=True):
            source = as_arrays(*block, type(model).__name__)
            for rows in source.blocks(model._block_rows(source)):
                model._add(rows, start=start)
        return _Partial(model._statistics.finish(), model._targets)


def _add_up(parts: list[_Partial]) -> _Partial:
    """Sum of statistics; the parts stay as they are, for Dask may need them again."""
    targets, places = parts[0].targets.union([part.targets for part in parts])
    first = parts[0].statistics
    total = Statistics(first.n_components, 0, first.sample.size)
    for part, columns in zip(parts, places, strict=True):
        other = part.statistics.fork()
        if columns:
            other.place_targets(columns, targets.n_targets)
        total.merge(other)
    return _Partial(total, targets)


def _fit_scaler(step: Any, before: Callable[[Any], Any], rows: Any, weight: Any, owner: str) -> Any:
    rows, weight = counted(rows, weight, owner)
    if not rows.shape[0] or (weight is not None and not weight.any()):
        return None
    fit_weighted(step, before(rows), weight)
    return step


def _combine_scalers(step: Any, parts: list[Any]) -> None:
    """Moments of all rows from those of the blocks (Chan, Golub, LeVeque 1983)."""
    from sklearn.preprocessing._data import _handle_zeros_in_scale, _is_constant_feature

    counts = np.array([np.max(part.n_samples_seen_) for part in parts], dtype=np.float64)
    total = counts.sum()
    step.n_samples_seen_ = int(total) if total.is_integer() else total
    if step.mean_ is None:
        return
    means = np.stack([part.mean_ for part in parts])
    step.mean_ = counts @ means / total
    if step.with_std:
        variances = np.stack([part.var_ for part in parts])
        step.var_ = counts @ (variances + (means - step.mean_) ** 2) / total
        constant = _is_constant_feature(step.var_, step.mean_, step.n_samples_seen_)
        step.scale_ = _handle_zeros_in_scale(np.sqrt(step.var_), constant_mask=constant)


def cluster() -> Any:
    """Client of the cluster that the caller is connected to, or None."""
    from distributed import get_client

    try:
        return get_client()
    except ValueError:  # Dask's own threads
        return None


class OfCluster(MatrixOfRows):
    """Kernel matrix of rows, of which every thread of a cluster multiplies some; they stay there if there is room.

    A product sends V to all workers and gets K V in parts: O(nk) numbers for O(n²k) work. Dask manages the memory, and
    shows progress on its dashboard.
    """

    def __init__(self, client: Any, kernel: Any, X: Any, *, scale: Array | None = None):
        super().__init__(kernel, X, scale=scale)
        check_finite(self._diagonal()[:, None])
        self.client = client
        limits = [worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
        self._rows_there = client.scatter(self.X, broadcast=True, hash=False)
        step = -(-self.n_rows // max(1, 2 * sum(client.nthreads().values())))
        self._parts_there = [slice(i, min(i + step, self.n_rows)) for i in range(0, self.n_rows, step)]
        self._kept_there: list[Any] | None = None
        if all(limits) and 8 * self.n_rows**2 <= _SHARE * sum(limits):
            self._kept_there = [
                client.submit(_kernel_rows, kernel, self._rows_there, part, pure=False) for part in self._parts_there
            ]

    def _times(self, V: Array) -> Array:
        sent = self.client.scatter(V, broadcast=True, hash=False)  # equal data sent twice would race
        if self._kept_there is not None:
            parts = [self.client.submit(_times, block, sent, pure=False) for block in self._kept_there]
        else:
            parts = [
                self.client.submit(_kernel_times, self.kernel, self._rows_there, part, sent, pure=False)
                for part in self._parts_there
            ]
        return np.concatenate(self.client.gather(parts))


def _kernel_rows(kernel: Any, X: Any, rows: slice) -> Array:
    return kernel.matrix(X[rows], X)


def _times(K: Array, V: Array) -> Array:
    return K @ V


def _kernel_times(kernel: Any, X: Any, rows: slice, V: Array) -> Array:
    step = max(1, _BLOCK_BYTES // (8 * X.shape[0]))
    parts = [slice(i, min(i + step, rows.stop)) for i in range(rows.start, rows.stop, step)]
    return np.concatenate([_kernel_rows(kernel, X, part) @ V for part in parts])


def _rows_together(X: Any, name: str = "X") -> Any:
    """The collection, if its rows are whole."""
    cut = {} if _is_frame(X) else {axis: len(parts) for axis, parts in enumerate(X.chunks) if axis and len(parts) > 1}
    if cut:
        places = " and ".join(f"axis {axis} ({number} chunks)" for axis, number in cut.items())
        raise ValueError(f"{name} is chunked along {places}; use {name}.rechunk({dict.fromkeys(cut, -1)}).")
    return X


def _is_frame(X: Any) -> bool:
    return not hasattr(X, "chunks")


def _delayed(X: Any) -> list[Any]:
    """The blocks of a collection, one by one."""
    return list(np.ravel(X.to_delayed()))


def _floating(X: Any) -> Any:
    """Dtype of features of a collection."""
    return as_floats(np.empty(0, X.dtype)).dtype if X.ndim == 4 else result_dtype(X)
