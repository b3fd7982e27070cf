"""Draws of a feature map, and how they are applied to rows of any array library and number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import Any, ClassVar, final

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, count_threads, progress_bar, run_on_threads, working_memory
from ntkit._images import as_floats
from ntkit._precision import exact_products
from ntkit.programs import Program, run

__all__ = ["Draws", "ProgramDraws", "RowDraws", "place"]


class Draws(ABC):
    """The random arrays of a map, drawn from a plan and a seed, and the computation of features from them."""

    n_components: int

    @abstractmethod
    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """Compute the features of validated rows.

        If X is a torch tensor that requires gradients, so do the features. `batch_size` bounds the rows held at a time.
        `progress` is the name of a progress bar; None: no bar.
        """


class ProgramDraws(Draws):
    """A map that consists of one program."""

    def __init__(self, program: Program):
        self.program, self.n_components = program, program.n_outputs

    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """See :meth:`Draws.run`; programs split rows into batches themselves."""
        if _array.is_sparse(X) or batch_size is not None or progress is None:
            return run(self.program, (X,), batch_size=batch_size)
        with progress_bar(progress, X.shape[0]) as bar:
            out = run(self.program, (X,))
            bar.update(X.shape[0])
        return out


class RowDraws(Draws):
    """A map that is computed block by block; subclasses define the computation for a block.

    If `threaded`, rows in host memory are split into tiles, which run on threads in NumPy. All other rows run in
    batches that fit in memory, by the operations of their own library. If a GPU runs out of memory, batches are halved.
    """

    threaded: ClassVar[bool] = True
    tables: Any = ()
    """NumPy arrays, possibly nested in lists and tuples, to be converted to the precision and device of the rows."""

    def __init__(self) -> None:
        self._placed: tuple[Any, Any] | None = None

    @abstractmethod
    def features(self, X: Array, tables: Any) -> Array:
        """Compute the features of a block of floating-point rows, as one expression that torch can differentiate."""

    def fill(self, X: Array, tables: Any, out: Array) -> None:
        """Write the features of a block to `out` in the fastest way; gradients are not needed here."""
        out[...] = self.features(X, tables)

    @abstractmethod
    def numbers_per_row(self, X: Array) -> int:
        """Estimate how many numbers the computation holds for each row of X."""

    def tile_rows(self, X: Array, dtype: np.dtype) -> int:  # noqa: ARG002
        """Return the number of rows in a tile on the host."""
        return 128

    def rows_at_once(self, X: Array) -> int | None:  # noqa: ARG002
        """Return the largest number of rows in a batch; None: limited only by memory."""
        return None

    def compute_dtype(self, X: Array, dtype: Any) -> Any:
        """Return the dtype in which features of `dtype` are computed: float32 for 16-bit features."""
        return _array.namespace(X).float32 if is_half(dtype) else dtype

    def place(self, dtype: Any, device: Any) -> Any:
        """Convert the tables to a dtype, and to a torch device unless it is None."""
        return place(self.tables, dtype, device)

    @final
    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """See :meth:`Draws.run`."""
        if _array.is_traced(X):
            return self.features(X, self.place(np.dtype(np.float64), None))
        if _array.is_sparse(X) or _array.is_numpy(X):
            return self._run_numpy(X, batch_size, progress)
        dtype = _dtype(X)
        if not _array.is_torch(X):
            xp: Any = _array.namespace(X)
            out = xp.empty((X.shape[0], self.n_components), dtype=dtype, device=_array.device(X))
            return self._run_batches(X, dtype, None, out, batch_size, progress)
        compute = self.compute_dtype(X, dtype)
        if _array.wants_gradient([X]):
            with exact_products():
                return self.features(X.to(compute), self.at(compute, X.device)).to(dtype)
        X = X.detach()
        if self.threaded and X.device.type == "cpu":
            import torch

            view: Any = _array.host_view(X.to(compute))
            return torch.from_numpy(self._run_numpy(view, batch_size, progress)).to(dtype)
        with exact_products() if X.device.type == "cuda" else nullcontext():
            out = X.new_empty((X.shape[0], self.n_components), dtype=dtype)
            return self._run_batches(X, compute, X.device, out, batch_size, progress)

    def at(self, dtype: Any, device: Any) -> Any:
        """Return the tables converted by :meth:`place`; the last converted copy is cached."""
        kept = self._placed  # read only once: another thread may replace it
        key = str(dtype), str(device)
        if kept is not None and kept[0] == key:
            return kept[1]
        tables = self.place(dtype, device)
        self._placed = key, tables
        return tables

    def _run_numpy(self, X: Any, batch_size: int | None, progress: str | None) -> np.ndarray:
        dtype = np.dtype(_dtype(X))
        out = np.empty((X.shape[0], self.n_components), dtype)
        if not self.threaded:
            return self._run_batches(X, np.dtype(self.compute_dtype(X, dtype)), None, out, batch_size, progress)
        tables = self.at(dtype, None)
        per_row = count_threads() * dtype.itemsize * self.numbers_per_row(X)
        step = max(1, min(self.tile_rows(X, dtype), working_memory() // per_row))
        step = batch_rows(X.shape[0], 1, batch_size=step if batch_size is None else min(step, batch_size))

        def fill(start: int) -> None:
            rows = slice(start, start + step)
            self.fill(X[rows], tables, out[rows])

        run_on_threads(fill, range(0, X.shape[0], step), progress=progress)
        return out

    def _run_batches(
        self, X: Any, compute: Any, device: Any, out: Array, batch_size: int | None, progress: str | None
    ) -> Array:
        tables = self.at(compute, device)
        like = None if _array.is_sparse(X) else X
        itemsize = 4 if "32" in str(compute) else 2 if "16" in str(compute) else 8
        step = batch_rows(X.shape[0], itemsize * self.numbers_per_row(X), batch_size=batch_size, like=like)
        if batch_size is None:
            step = min(step, self.rows_at_once(X) or step)
        start = 0
        with progress_bar(progress, X.shape[0]) as bar:
            while start < X.shape[0]:
                rows = slice(start, min(start + step, X.shape[0]))
                try:
                    self.fill(_as_floats(X, rows, compute), tables, out[rows, ...])
                    start = rows.stop
                    bar.update(rows.stop - rows.start)
                except Exception as error:
                    if type(error).__name__ != "OutOfMemoryError" or step == 1:
                        raise
                if start < rows.stop:  # outside the except block, where the error no longer holds intermediate results
                    step = -(-step // 2)
                    _array.namespace(X).cuda.empty_cache()
        return out


def is_half(dtype: Any) -> bool:
    """Return whether a dtype of any array library has 16 bits."""
    return "16" in str(dtype)


def place(tables: Any, dtype: Any, device: Any) -> Any:
    """Convert NumPy arrays, possibly nested in lists and tuples, to a dtype and, unless None, to a torch device."""
    if isinstance(tables, list | tuple):
        return [place(part, dtype, device) for part in tables]
    if device is None:
        return tables.astype(dtype, copy=False)
    import torch

    return torch.from_numpy(tables).to(device).to(dtype)


def _dtype(X: Any) -> Any:
    """Return the dtype of the features of rows or images."""
    return as_floats(X[:0, ...]).dtype if X.ndim == 4 else _array.result_dtype(X)


def _as_floats(X: Any, rows: slice, dtype: Any) -> Any:
    if _array.is_sparse(X):
        return X[rows].astype(dtype, copy=False)
    return _array.namespace(X).astype(X[rows, ...], dtype, copy=False)
