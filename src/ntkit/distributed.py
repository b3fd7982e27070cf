"""Dask support: map and reduce rows on the workers that hold them. The only module that imports Dask.

A fit takes one round. A worker turns every block of rows into statistics of fixed size, these are added up in a tree,
and the caller solves with the total. Everything on a worker is the result of a task, including rows sent by the caller,
so Dask can recompute what is lost with a worker.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from ntkit import _array
from ntkit._array import Array
from ntkit._images import as_floats
from ntkit._random import generator
from ntkit._validation import describe
from ntkit.features.landmarks.choose import check_finite
from ntkit.models._checks import result_dtype
from ntkit.models._features import counted, fit_weighted
from ntkit.models._kernel_matrix import MatrixOfRows
from ntkit.models._rows import Block, Source, as_arrays, concatenated, take_rows
from ntkit.models._statistics import Statistics

__all__ = ["first_rows", "map_rows"]

_BLOCK_BYTES = 2**26  # bytes of kernel values that a worker computes at a time if they are not kept
_SHARE = 0.5  # kernel values are kept if they take at most this fraction of the workers' memory

_PATIENCE = 60.0  # seconds without workers before an error is raised, unless Dask's "no-workers-timeout" is set
_POLL_SECONDS = 1.0  # interval between checks of the workers

_FAN_IN = 4  # statistics added up by one task
_FEWEST_ROWS, _MOST_ROWS = 8192, 131072  # rows per task; its result is as large as 2 m rows of float32 features


def map_rows(function: Callable[[Any], Array], X: Any, *, n_columns: int | None, dtype: Any = None) -> Any:
    """Apply a function to every block of rows of a Dask array or data frame. The row chunks do not change.

    Parameters
    ----------
    function : callable
        Maps rows, or images (n, height, width, channels), to an array with the same number of rows.
    X : Dask array or data frame
        Chunked along the rows only.
    n_columns : int or None
        Number of columns of the result; None if the result has one axis.
    dtype : dtype, optional
        Dtype of the result. By default float32 if X is float32, else float64. Floating-point images keep their dtype;
        images of 8- or 16-bit integers give float32.

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
    function = _BlockFunction(function, meta)
    if _is_frame(blocks):
        return blocks.map_partitions(function, meta=meta)
    if n_columns is None:
        return blocks.map_blocks(function, drop_axis=list(range(1, blocks.ndim)), dtype=dtype, meta=meta)
    chunks = blocks.chunks[0], (n_columns,)
    return blocks.map_blocks(function, chunks=chunks, drop_axis=list(range(2, blocks.ndim)), dtype=dtype, meta=meta)


class _BlockFunction:
    """A function of rows that returns `empty` for an empty block; sent to the workers."""

    def __init__(self, function: Callable[[Any], Array], empty: np.ndarray):
        self.function, self.empty = function, empty
        self.__name__ = getattr(function, "__name__", type(function).__name__)  # for Dask's keys

    # Dask passes the index of the block under these names, for arrays and for data frames.
    def __call__(self, rows: Any, block_id: Any = None, partition_info: Any = None) -> Array:
        if not rows.shape[0]:
            return self.empty
        with _naming_block(partition_info["number"] if partition_info else block_id[0]):
            values = self.function(rows)
        return values.astype(self.empty.dtype, copy=False) if _array.is_numpy(values) else values


def first_rows(X: Any) -> Any:
    """Compute the rows of the first block that is not empty.

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
        (rows,) = compute(blocks.partitions[number])
        if rows.shape[0]:
            return rows
    raise ValueError(f"X must have rows, but the Dask collection is without rows: {describe(X)}.")


def reduce_statistics(model: Any, X: Any, y: Any, sample_weight: Any) -> None:
    """Fit the features of a model, and set its statistics to the total over all rows."""
    from dask import delayed

    source = DaskSource(X, y, sample_weight, type(model).__name__)
    model._begin(source)
    worker = delayed(_Worker(model), pure=True)
    add = delayed(_add_up, pure=True)
    tasks = [worker(*group) for group in source.groups()]
    while len(tasks) > 1:
        tasks = [add(tasks[i : i + _FAN_IN]) for i in range(0, len(tasks), _FAN_IN)]
    (total,) = compute(tasks[0])
    model._statistics, model._targets = total.statistics, total.targets


class DaskSource(Source):
    """Blocks of a Dask array or data frame, with targets and weights in the same blocks."""

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
        """Yield the blocks in this process, computed one at a time."""
        for block in zip(self.X, self.y, self.weight, strict=True):
            X, y, weight = compute(*block)
            yield from as_arrays(X, y, weight, self.owner).blocks(n_rows)

    def first(self) -> Block:
        """Return the first block that is not empty."""
        if self._first is None:
            for rows, weight in zip(self.X, self.weight, strict=True):
                self._first = Block(*compute(rows, None, weight))
                if self._first.X.shape[0]:
                    break
            else:
                first_rows(self.rows)  # raises: there are none
        assert self._first is not None
        return self._first

    def sample(self, n_rows: int, seed: np.random.SeedSequence) -> Block:
        """Draw random rows from all blocks, on the workers. If the sizes are unknown, draw equally from each block."""
        from dask import delayed

        sizes = self.sizes or [1] * len(self.X)
        total = self.n_rows or 0
        counts: list[int] = [n_rows // len(self.X) + 1] * len(self.X)
        if self.sizes is not None:
            keep = np.sort(generator(seed).permutation(total)[:n_rows])
            counts = list(np.histogram(keep, np.concatenate([[0], np.cumsum(self.sizes)]))[0])
        take = delayed(_some_rows, pure=True)
        blocks = enumerate(zip(self.X, self.y, self.weight, counts, strict=True))
        tasks = [take(*block, number, seed, self.owner) for number, block in blocks if sizes[number] != 0]
        parts = [part for part in compute(*tasks) if part is not None]
        if not parts:
            first_rows(self.rows)  # raises: there are none
        X, y, weight = (concatenated([part[i] for part in parts]) for i in range(3))
        return Block(X, y, weight)

    def fit_step(self, step: Any, before: Callable[[Any], Any]) -> bool:
        """Fit a StandardScaler from the moments of the blocks."""
        from dask import delayed
        from sklearn.preprocessing import StandardScaler

        if not isinstance(step, StandardScaler):
            raise TypeError(
                f"{type(step).__name__} cannot be fitted on a Dask collection; only StandardScaler and maps that do "
                "not depend on the data can. Fit it beforehand and wrap it in sklearn.frozen.FrozenEstimator."
            )
        step.fit(before(self.first().X))  # for its checks, column names and dtypes
        blocks = enumerate(zip(self.X, self.weight, strict=True))
        fitted = compute(*(delayed(_fit_scaler)(clone(step), before, *block, self.owner, i) for i, block in blocks))
        parts = [part for part in fitted if part is not None]
        if parts:  # else all weights are 0, and the model raises an error
            _combine_scalers(step, parts)
        return True

    def groups(self) -> Iterator[tuple[list[Any], list[Any], list[Any], int, int]]:
        """Yield groups of adjacent blocks with enough rows for a task, and the index of the first row and block."""
        chosen: list[int] = []
        start = rows = 0
        enough = _rows_per_task(self.n_rows or 0)
        for number in range(len(self.X)):
            chosen.append(number)
            rows += self.sizes[number] if self.sizes else enough
            if rows >= enough or number == len(self.X) - 1:
                # If sizes are unknown, every block gets its own range of row indices; the sample then depends on the
                # blocks.
                first = start if self.sizes else number << 40
                X, y, weight = ([values[i] for i in chosen] for values in (self.X, self.y, self.weight))
                yield X, y, weight, first, chosen[0]
                start, rows, chosen = start + rows, 0, []

    def _like_rows(self, values: Any, name: str, owner: str) -> list[Any]:
        """Split targets or weights into the blocks of the rows."""
        if not _array.is_dask(values):
            if self.sizes is None or not hasattr(values, "__len__") or len(values) != self.n_rows:
                raise ValueError(
                    f"{name} of {owner} must be a Dask collection with the blocks of X or, if the block sizes are "
                    f"known, an array of {self.n_rows} values. Got {describe(values)} instead."
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
                f"X and {name} of {owner} must have the same blocks. Got {len(self.X)} and {len(blocks)} blocks."
            )
        return blocks


def _some_rows(X: Any, y: Any, weight: Any, count: int, number: int, seed: Any, owner: str) -> Any:
    """Draw random rows of a block; return None if the block is empty."""
    with _naming_block(number):
        source = as_arrays(X, y, weight, owner)
        rows = np.sort(generator(seed, number).permutation(source.n_rows or 0)[:count])
        return tuple(take_rows(values, rows) for values in (source.X, source.y, source.weight)) if len(rows) else None


def _rows_per_task(n_rows: int) -> int:
    """Return the rows per task: four tasks per thread, within bounds."""
    client = cluster()
    workers = {} if client is None else _workers(client)
    n_threads = sum(worker["nthreads"] for worker in workers.values()) or os.cpu_count() or 1
    return min(max(n_rows // (4 * n_threads), _FEWEST_ROWS), _MOST_ROWS)


@dataclass
class _Partial:
    """Statistics of some rows, and the encoding of their targets."""

    statistics: Statistics
    targets: Any


class _Worker:
    """Computes the statistics of blocks of rows; sent to the workers."""

    __name__ = "statistics"  # for Dask's keys

    def __init__(self, model: Any):
        self.model = model

    def __call__(self, X: list[Any], y: list[Any], weight: list[Any], start: int, number: int) -> _Partial:
        model = copy(self.model)
        empty = model._statistics
        model._statistics, model._targets = Statistics(empty.n_components, 0, empty.sample.size), type(model)._codec()
        for i, block in enumerate(zip(X, y, weight, strict=True), number):
            with _naming_block(i):
                source = as_arrays(*block, type(model).__name__)
                for rows in source.blocks(model._block_rows(source)):
                    model._add(rows, start=start)
        return _Partial(model._statistics.finish(), model._targets)


def _add_up(parts: list[_Partial]) -> _Partial:
    """Add up statistics. The parts are not modified, because Dask may need them again."""
    targets, places = parts[0].targets.union([part.targets for part in parts])
    first = parts[0].statistics
    total = Statistics(first.n_components, 0, first.sample.size)
    for part, columns in zip(parts, places, strict=True):
        other = part.statistics.fork()
        if columns:
            other.place_targets(columns, targets.n_targets)
        total.merge(other)
    return _Partial(total, targets)


def _fit_scaler(step: Any, before: Callable[[Any], Any], rows: Any, weight: Any, owner: str, number: int) -> Any:
    with _naming_block(number):
        rows, weight = counted(rows, weight, owner)
        if not rows.shape[0] or (weight is not None and not weight.any()):
            return None
        fit_weighted(step, before(rows), weight)
    return step


@contextmanager
def _naming_block(number: int) -> Iterator[None]:
    """Add the index of the block to errors."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if type(error) in (TypeError, ValueError):  # subclasses may take other arguments
            error.args = (f"Block {number} of the Dask collection (X.partitions[{number}]): {error}",)
        raise


def _combine_scalers(step: Any, parts: list[Any]) -> None:
    """Combine the moments of the blocks to the moments of all rows (Chan, Golub, LeVeque 1983)."""
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
    """Return the client of the cluster that Dask computes on, or None."""
    from dask.base import get_scheduler
    from distributed import Client

    client = getattr(get_scheduler(), "__self__", None)
    return client if isinstance(client, Client) else None


def compute(*values: Any) -> tuple[Any, ...]:
    """Compute Dask collections like `dask.compute`, but do not wait forever for workers."""
    import dask

    client = cluster()
    if client is None:
        return dask.compute(*values, traverse=False)
    return tuple(_gather(client, lambda: client.compute(values)))


def _gather(client: Any, submit: Callable[[], list[Any]]) -> list[Any]:
    """Submit tasks and wait for their results. If the cluster fails, the error says what to do."""
    from distributed import CancelledError, KilledWorker

    try:
        with _seceded():
            return _wait(client, submit())
    except Exception as error:
        if client.status != "running":
            text = (
                "The Dask client was closed or lost its scheduler before all results arrived. Connect a new Client "
                "and call again."
            )
        elif isinstance(error, KilledWorker):
            text = (
                f"Dask gave up on a task because {error.allowed_failures + 1} workers died running it, perhaps for "
                "lack of memory. Use smaller chunks, fewer threads per worker, or a larger memory_limit. The logs of "
                "the workers have details."
            )
        elif isinstance(error, CancelledError):
            text = (
                f"Dask cancelled a task: {error} Data from client.scatter is lost with its worker. Make collections "
                "from files or arrays (da.from_zarr, da.from_array), which Dask can load again."
            )
        else:
            raise
        raise RuntimeError(text) from error


def _wait(client: Any, futures: list[Any]) -> list[Any]:
    """Gather futures; raise an error if no worker runs for some time."""
    from dask import config
    from dask.utils import parse_timedelta
    from distributed import CancelledError

    setting = "distributed.scheduler.no-workers-timeout"
    patience = parse_timedelta(config.get(setting, None) or _PATIENCE)
    last_seen = time.monotonic()
    results = asyncio.run_coroutine_threadsafe(_gathered(client, futures), client.loop.asyncio_loop)
    try:
        while True:
            try:
                return results.result(_POLL_SECONDS)
            except TimeoutError:
                if results.done():
                    return results.result()
            if client.status != "running":
                raise CancelledError("The client was closed.")
            workers = _workers(client)
            if any(worker["status"] == "running" for worker in workers.values()):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > patience:
                state = f"{len(workers)}, all paused for lack of memory" if workers else "none"
                raise RuntimeError(
                    f"The Dask cluster has no running workers: for {patience:g} s there were {state}. Start workers "
                    "and call again. (Workers quit if they lack ntkit or another module that a task needs.) "
                    f"dask.config.set({{'{setting}': '10 min'}}) waits longer for them."
                )
    finally:
        results.cancel()


def _workers(client: Any) -> dict[str, Any]:
    """Return the scheduler's information about its workers, by address."""
    return client.scheduler_info(n_workers=-1).get("workers", {})


async def _gathered(client: Any, futures: list[Any]) -> list[Any]:
    return await client.gather(futures, asynchronous=True)


@contextmanager
def _seceded() -> Iterator[None]:
    """Inside a Dask task, free its thread for the tasks that it waits for."""
    from distributed import rejoin, secede
    from distributed.worker import thread_state

    within = getattr(thread_state, "key", None) is not None
    if within:
        secede()
    try:
        yield
    finally:
        if within:
            rejoin()


class ClusterMatrix(MatrixOfRows):
    """Kernel matrix distributed over the threads of a cluster, which keep its rows if the memory suffices.

    A product sends V to all workers and receives K V in parts: O(nk) numbers for O(n²k) work. Dask manages the memory
    and shows progress on its dashboard.
    """

    def __init__(self, client: Any, kernel: Any, X: Any, *, scale: Array | None = None):
        super().__init__(kernel, X, scale=scale)
        check_finite(self._diagonal()[:, None])
        self.client = client
        self._remote_rows: Any = None
        self._remote_blocks: list[Any] | None = None

    def _times(self, V: Array) -> Array:
        return np.concatenate(_gather(self.client, lambda: self._product(V)))

    def _product(self, V: Array) -> list[Any]:
        """Submit the tasks that compute the parts of K V."""
        if self._remote_rows is None:
            self._distribute()
        sent = self._send(V)
        if self._remote_blocks is not None:
            return self._submit(_times, [(block, sent) for block in self._remote_blocks])
        return self._submit(_kernel_times, [(self.kernel, self._remote_rows, part, sent) for part in self._slices])

    def _distribute(self) -> None:
        """Send the rows, and assign two parts of K to each thread. Workers keep their parts if all of K fits."""
        workers = _workers(self.client)
        limits = [worker["memory_limit"] for worker in workers.values()]
        threads: list[Any] = [a for a, worker in workers.items() for _ in range(worker["nthreads"])] or [None]
        step = -(-self.n_rows // (2 * len(threads)))
        self._slices = [slice(i, min(i + step, self.n_rows)) for i in range(0, self.n_rows, step)]
        self._places = [threads[i % len(threads)] for i in range(len(self._slices))]
        self._remote_rows = self._send(self.X)
        if all(limits) and 8 * self.n_rows**2 <= _SHARE * sum(limits):
            self._remote_blocks = self._submit(
                _kernel_rows, [(self.kernel, self._remote_rows, part) for part in self._slices]
            )

    def _send(self, values: Any) -> Any:
        """Send an array as the result of a task: unlike scattered data, Dask can then make it again."""
        from dask import config

        with config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}):
            return self.client.submit(_identity, values, pure=False)

    def _submit(self, function: Callable[..., Array], arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Submit one task per part, preferably to the worker that the part is assigned to."""
        return [
            self.client.submit(function, *args, pure=False, workers=place, allow_other_workers=place is not None)
            for args, place in zip(arguments, self._places, strict=True)
        ]


def _identity(values: Any) -> Any:
    return values


def _kernel_rows(kernel: Any, X: Any, rows: slice) -> Array:
    return kernel.matrix(X[rows], X)


def _times(K: Array, V: Array) -> Array:
    return K @ V


def _kernel_times(kernel: Any, X: Any, rows: slice, V: Array) -> Array:
    step = max(1, _BLOCK_BYTES // (8 * X.shape[0]))
    parts = [slice(i, min(i + step, rows.stop)) for i in range(rows.start, rows.stop, step)]
    return np.concatenate([_kernel_rows(kernel, X, part) @ V for part in parts])


def _rows_together(X: Any, name: str = "X") -> Any:
    """Return the collection, or raise an error if its rows are split into chunks."""
    cut = {} if _is_frame(X) else {axis: len(parts) for axis, parts in enumerate(X.chunks) if axis and len(parts) > 1}
    if cut:
        places = " and ".join(f"axis {axis} ({number} chunks)" for axis, number in cut.items())
        raise ValueError(f"{name} is chunked along {places}; use {name}.rechunk({dict.fromkeys(cut, -1)}).")
    return X


def _is_frame(X: Any) -> bool:
    return not hasattr(X, "chunks")


def _delayed(X: Any) -> list[Any]:
    """Return the blocks of a collection as a list of delayed values."""
    return list(np.ravel(X.to_delayed()))


def _floating(X: Any) -> Any:
    """Return the dtype of the features of a collection."""
    return as_floats(np.empty(0, X.dtype)).dtype if X.ndim == 4 else result_dtype(X)
