"""Row batches within a memory budget, and tasks on several threads.

On the host the budget is scikit-learn's ``working_memory`` (1024 MiB unless set with ``sklearn.set_config`` or
``sklearn.config_context``). On a CUDA device it is a quarter of the free memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from ntkit._array import Array, is_torch, is_traced
from ntkit._validation import check_int

T = TypeVar("T")


def working_memory(like: Array | None = None) -> int:
    """Return the bytes of scratch memory that one operation may use on the device of `like` (None: the host)."""
    if like is not None and is_torch(like) and like.device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(like.device)
        return int(free) // 4
    from sklearn import get_config

    return int(get_config()["working_memory"] * 2**20)


def free_memory(like: Array | None = None) -> int:
    """Return the free bytes on the CUDA device of `like`, or on the host."""
    if like is not None and is_torch(like) and like.device.type == "cuda":
        import torch

        # Memory that torch's allocator has reserved but does not use counts as free.
        unused = torch.cuda.memory_reserved(like.device) - torch.cuda.memory_allocated(like.device)
        return int(torch.cuda.mem_get_info(like.device)[0]) + unused
    try:
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux
        return working_memory()
    try:
        group = Path("/sys/fs/cgroup")  # the limit of a container
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no limit
        return free
    return max(0, min(free, limit - used))


def batch_rows(
    n_rows: int,
    bytes_per_row: int,
    *,
    batch_size: int | None = None,
    like: Array | None = None,
    owner: str = "row_batches",
) -> int:
    """Return the rows per batch: `batch_size` if given, else the most that fit into the budget, at least one."""
    if batch_size is not None:
        return min(check_int(batch_size, "batch_size", owner, minimum=1), max(n_rows, 1))
    if is_traced(like):
        return n_rows
    return max(1, min(n_rows, working_memory(like) // max(bytes_per_row, 1)))


def row_batches(
    n_rows: int,
    bytes_per_row: int,
    *,
    batch_size: int | None = None,
    like: Array | None = None,
    owner: str = "row_batches",
) -> Iterator[slice]:
    """Yield slices that cover ``range(n_rows)`` in order.

    Examples
    --------
    >>> list(row_batches(5, bytes_per_row=8, batch_size=2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = batch_rows(n_rows, bytes_per_row, batch_size=batch_size, like=like, owner=owner)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def count_threads() -> int:
    """Return the largest number of threads that :func:`run_on_threads` uses."""
    import numba

    # Not numba.get_num_threads(): that would start numba's own pool, which ntkit never uses.
    return int(numba.config.NUMBA_NUM_THREADS)


def run_on_threads(
    function: Callable[[T], Any], tasks: Iterable[T], *, progress: str | None = None, most: int | None = None
) -> None:
    """Call `function` on every task, on ``NUMBA_NUM_THREADS`` threads (default: all cores).

    BLAS is limited to one thread meanwhile: a tile's product and its compiled post-processing then stay in one
    core's cache, and two thread pools do not compete for the cores. If another caller is already inside, the tasks
    run on the calling thread: the cores are busy, and the BLAS limit needs a single owner that restores it. Each
    task must write its results to its own memory. The first exception is raised. `progress` names a progress bar;
    `most` limits the number of threads.
    """
    tasks = list(tasks)
    n_threads = min(count_threads(), len(tasks), most or len(tasks))
    if n_threads <= 1 or not _threads_in_use.acquire(blocking=False):
        for task in with_progress(tasks, progress):
            function(task)
        return
    try:
        with _blas_controller().limit(limits=1, user_api="blas"):
            pool = _pool(n_threads)
            running = [pool.submit(function, task) for task in tasks]
            try:
                for future in with_progress(running, progress):
                    future.result()
            finally:  # after an error or an interrupt, pending tasks must not start
                for future in running:
                    future.cancel()
                wait(running)
    finally:
        _threads_in_use.release()


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Limit BLAS to one thread. With many small problems its threads only wait for each other."""
    if not _threads_in_use.acquire(blocking=False):
        yield
        return
    try:
        with _blas_controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _threads_in_use.release()


@lru_cache(maxsize=4)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads)  # kept: starting threads takes 0.4 ms, as long as a small task


_threads_in_use = Lock()


def _forget_threads() -> None:
    """Reset the lock and the pools in a forked process, which does not inherit its parent's threads."""
    global _threads_in_use
    _threads_in_use = Lock()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def with_progress(items: Sequence[T], name: str | None) -> Iterable[T]:
    """Iterate over `items` with a progress bar called `name`, or without a bar if `name` is None."""
    if name is None:
        return items
    from tqdm.auto import tqdm

    return tqdm(items, desc=name)


def progress_bar(name: str | None, total: int | None) -> Any:
    """Return a progress bar that counts rows and is updated by hand. It is hidden if `name` is None."""
    from tqdm.auto import tqdm

    return tqdm(desc=name, total=total, unit=" rows", unit_scale=True, disable=name is None)


@lru_cache(maxsize=1)
def _blas_controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # cached: scanning the loaded libraries takes milliseconds
