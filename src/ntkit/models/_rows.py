"""Blocks of rows from arrays, memory maps, streams and files; memory does not grow with the number of rows."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ntkit import _array
from ntkit._random import generator, row_uniforms
from ntkit._validation import describe, message, refuse_lossy
from ntkit.tables import FRAME_ENDINGS

BLOCK_BYTES = 2**28  # features per block: large enough for a matrix product at full speed
_MIN_ROWS, _MAX_ROWS = 1024, 16384  # rows per block


class Place(NamedTuple):
    """Origin of rows: the file or stream item, the index of the first row in it, and the names of the targets."""

    name: str
    start: int = 0
    targets: Sequence[str] = ()


class Block(NamedTuple):
    """Rows with their targets and weights (None: all 1), and their origin if they do not come from arrays."""

    X: Any
    y: Any
    weight: Any = None
    place: Place | None = None

    @contextmanager
    def located(self, part: str) -> Iterator[None]:
        """Add the file or stream item, the row and the column to errors about `part`: "X", "y" or "weight"."""
        try:
            yield
        except (TypeError, ValueError) as error:
            if self.place is not None:
                _raise_at(self._where(part, str(error)), error)
            raise

    def _where(self, part: str, text: str) -> str:
        assert self.place is not None
        name, start, targets = self.place
        fault = _find_fault(getattr(self, part), part, text)
        if fault is None:
            return f"{name}, rows {start} to {start + n_rows_of(self.X) - 1} (counted from 0)"
        row, column, value = fault
        if part == "y" and targets:
            column = targets[column or 0]
        value = value.item() if isinstance(value, np.generic) else value
        column = "" if column is None else f", column {column!r}"
        return f"{name}, row {start + row} (counted from 0){column}, value {describe(value)}"


class Source(ABC):
    """Blocks of rows. `n_rows` is None if unknown; `repeatable` tells whether they can be read more than once."""

    n_rows: int | None = None
    repeatable = True

    @abstractmethod
    def blocks(self, n_rows: int) -> Iterator[Block]:
        """Yield blocks of at most `n_rows` rows."""

    def fit_step(self, step: Any, before: Callable[[Any], Any]) -> bool:  # noqa: ARG002
        """Fit a transformer on all rows, mapped by `before`, if the source can do so itself; return whether it did."""
        return False

    def sample(self, n_rows: int, seed: np.random.SeedSequence) -> Block:
        """Return at most `n_rows` random rows, in one pass. A stream that cannot be repeated gives its first rows."""
        if not self.repeatable:
            block = self.first()
            return Block(*(take_rows(values, slice(0, n_rows)) for values in block[:3]))
        kept: list[tuple[np.ndarray, Block]] = []
        start = 0
        for block in self.blocks(_MAX_ROWS):
            size = n_rows_of(block.X)
            keys = row_uniforms(seed, start, start + size)[:, 0]
            start += size
            bound = (
                np.partition(np.concatenate([each for each, _ in kept]), n_rows - 1)[n_rows - 1]
                if (sum(len(each) for each, _ in kept) > n_rows)
                else np.inf
            )
            chosen = np.flatnonzero(keys < bound)
            kept.append((keys[chosen], Block(*(take_rows(values, chosen) for values in block[:3]))))
        if not kept:
            return self.first()  # raises: there are no rows
        keys = np.concatenate([each for each, _ in kept])
        bound = np.partition(keys, n_rows - 1)[n_rows - 1] if len(keys) > n_rows else np.inf
        parts = [[take_rows(v, np.flatnonzero(each <= bound)) for v in block[:3]] for each, block in kept]
        return Block(*(concatenated([part[i] for part in parts]) for i in range(3)))

    def identity(self) -> str:
        """Return a text that distinguishes this source from others of the same size, without reading the rows."""
        return ""

    def first(self) -> Block:
        """Return the first block; a later pass yields it again."""
        block = next(self.blocks(_MAX_ROWS), None)
        if block is None:
            raise ValueError("There are no rows to fit on: the stream is empty, or the files are.")
        return block


class ArraySource(Source):
    """Rows of arrays, data frames, sparse matrices, tensors or memory maps."""

    place: Place | None = None

    def __init__(self, X: Any, y: Any, weight: Any):
        self.X, self.y, self.weight = X, y, weight
        self.n_rows = n_rows_of(X)

    def blocks(self, n_rows: int) -> Iterator[Block]:
        """Yield slices."""
        for start in range(0, self.n_rows or 0, n_rows):
            rows = slice(start, start + n_rows)
            place = None if self.place is None else self.place._replace(start=start)
            yield Block(take_rows(self.X, rows), take_rows(self.y, rows), take_rows(self.weight, rows), place)

    def sample(self, n_rows: int, seed: np.random.SeedSequence) -> Block:
        """See :meth:`Source.sample`; here no pass over the rows is needed."""
        if self.n_rows is None or self.n_rows <= n_rows:
            return Block(self.X, self.y, self.weight)
        chosen = np.sort(generator(seed).permutation(self.n_rows)[:n_rows])
        return Block(*(take_rows(values, chosen) for values in (self.X, self.y, self.weight)))


class StreamSource(Source):
    """An iterable of (X, y) or (X, y, sample_weight)."""

    def __init__(self, stream: Iterable[Any], owner: str):
        self.stream, self.owner = stream, owner
        self.repeatable = iter(stream) is not stream

    def first(self) -> Block:
        """Return the first block; a later pass yields it again."""
        if not self.repeatable:
            seen: list[Any] = []
            for index, item in enumerate(self.stream):
                seen.append(item)
                if next(self._blocks_of(index, item, 1), None) is not None:
                    break
            self.stream = chain(seen, self.stream)
            return StreamSource(seen, self.owner).first()
        return super().first()

    def blocks(self, n_rows: int) -> Iterator[Block]:
        """Yield the blocks of the stream; large blocks are split."""
        for index, item in enumerate(self.stream):
            yield from self._blocks_of(index, item, n_rows)

    def _blocks_of(self, index: int, item: Any, n_rows: int) -> Iterator[Block]:
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            raise TypeError(
                f"A stream given to {self.owner}.fit must yield tuples (X, y) or (X, y, sample_weight). "
                f"Got {describe(item)} as item {index}."
            )
        X, y, weight = [*list(item), None][:3]
        place = Place(f"Item {index} of the stream")
        try:
            source = as_arrays(X, y, weight, self.owner)
        except (TypeError, ValueError) as error:
            _raise_at(f"{place.name} (counted from 0)", error)
        source.place = place
        yield from source.blocks(n_rows)


class TableSource(Source):
    """Rows of CSV and Parquet files; `target` names one column or several.

    All files must have the columns of the first file, or `columns`, in any order: columns are found by name. A column
    that has text in the first rows is read as text in all files.
    """

    def __init__(self, paths: list[Path], target: str | list[str], owner: str, columns: Sequence[str] | None = None):
        self.paths, self.owner = paths, owner
        self.columns = None if columns is None else list(columns)
        self._text: list[str] | None = None  # columns of text in the first rows
        self.targets = [target] if isinstance(target, str) else list(target)
        self.single = isinstance(target, str)
        for path in paths:
            if path.is_dir():
                raise FileNotFoundError(f"{owner}.fit got the folder '{path}', which has no CSV or Parquet files.")
            if not path.is_file():
                raise FileNotFoundError(f"{owner}.fit got the path '{path}', which is not a file.")
            if not path.name.lower().endswith(FRAME_ENDINGS):
                raise ValueError(
                    f"{owner}.fit reads .csv, .csv.gz, .tsv, .parquet and .pq files. Got '{path}'; read other formats "
                    "yourself, and pass the rows or a generator of (X, y) blocks."
                )

    def identity(self) -> str:
        """Return the names, sizes and modification times of the files."""
        states = [path.stat() for path in self.paths]
        files = zip(self.paths, states, strict=True)
        return repr([(path.name, state.st_size, state.st_mtime_ns) for path, state in files])

    def blocks(self, n_rows: int) -> Iterator[Block]:
        """Yield data frames without the target columns, and the targets."""
        from ntkit.tables import read_frames, text_columns

        for path in self.paths:
            for frame in read_frames(path, n_rows, text=self._text or ()):
                missing = [name for name in self.targets if name not in frame.columns]
                if missing:
                    columns = ", ".join(map(repr, frame.columns))
                    raise ValueError(
                        f"'{path}' has no column {missing[0]!r}, the target given to {self.owner}.fit. "
                        f"Its columns are {columns}."
                    )
                if frame.empty:
                    continue
                self._text = text_columns(frame) if self._text is None else self._text
                y = frame[self.targets[0]] if self.single else frame[self.targets]
                X = self._in_order(frame.drop(columns=self.targets), path)
                yield Block(X, y.to_numpy(), None, Place(f"'{path}'", int(frame.index[0]), self.targets))

    def _in_order(self, X: Any, path: Path) -> Any:
        """Return the columns in the order of the first file."""
        names = list(X.columns)
        if self.columns is None:
            self.columns = names
        if names == self.columns:
            return X
        wrong = {
            "lacks": [name for name in self.columns if name not in names],
            "adds": [name for name in names if name not in self.columns],
        }
        if any(wrong.values()):
            found = " and ".join(f"{what} {_listed(some)}" for what, some in wrong.items() if some)
            raise ValueError(
                f"All files given to {self.owner} must have the feature names of the first rows, in any order. "
                f"'{path}' {found}."
            )
        return X[self.columns]


def as_source(X: Any, y: Any, weight: Any, owner: str, columns: Sequence[str] | None = None) -> Source:
    """Return a source for the arguments of a model's `fit`; `columns` are the names from earlier rows, if any."""
    paths = _paths(X, y)
    if paths:
        if not (isinstance(y, str) or (isinstance(y, list | tuple) and y and all(isinstance(c, str) for c in y))):
            raise TypeError(message(f"{owner}.fit", "y", "the name of the target column if X is a path", y))
        if weight is not None:
            raise TypeError(message(f"{owner}.fit", "sample_weight", "None if X is a path", weight))
        return TableSource(paths, y if isinstance(y, str) else list(y), owner, columns)
    if y is None and _is_stream(X):
        if weight is not None:
            raise TypeError(
                message(
                    f"{owner}.fit", "sample_weight", "None if X is a stream", weight, "Yield (X, y, sample_weight)."
                )
            )
        return StreamSource(X, owner)
    if y is None:
        raise ValueError(
            f"{owner} requires y to be passed, but the target y is None. It may be None only for a stream of (X, y)."
        )
    source = as_arrays(X, y, weight, owner)
    if source.n_rows == 0:
        raise ValueError(message(f"{owner}.fit", "X", "non-empty", X, "Found array with 0 sample(s)."))
    return source


def as_arrays(X: Any, y: Any, weight: Any, owner: str) -> ArraySource:
    """Return a source for arrays, which must have equal numbers of rows."""
    X, y = as_rows(X, "X", owner), as_rows(y, "y", owner)
    weight = None if weight is None else as_rows(weight, "sample_weight", owner)
    n_rows = n_rows_of(X)
    for name, values in (("y", y), ("sample_weight", weight)):
        if values is not None and n_rows_of(values) != n_rows:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: X of {owner} has {n_rows} rows, {name} "
                f"has {n_rows_of(values)}."
            )
    return ArraySource(X, y, weight)


def as_rows(X: Any, name: str, owner: str) -> Any:
    """Convert `X` to an array or data frame that can be sliced by rows. Its values are left to the transformers."""
    refuse_lossy(X, name, owner)
    if _array.is_sparse(X):
        return X.tocsr()
    if X is None or _array.is_dask(X):
        remedy = "" if X is None else "Call .compute() on it."
        raise TypeError(message(owner, name, "an array with rows, in memory", X, remedy))
    named = hasattr(X, "columns") and hasattr(X, "shape")  # data frames of any library keep their column names
    if _array.is_numpy(X) or _array.is_torch(X) or hasattr(X, "iloc") or named:
        n_axes = len(X.shape)
        if n_axes == 0 or (n_axes == 1 and name == "X" and not _is_text(X)):
            raise ValueError(
                f"Expected 2D array, got {'scalar' if n_axes == 0 else '1D'} array instead. "
                + message(owner, name, "2-D (n_samples, n_features)", X, "Reshape your data with X.reshape(-1, 1).")
            )
        return X
    try:
        rows = np.asarray(X)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(message(owner, name, "an array with rows of equal length", X)) from error
    if rows.ndim == 0 and rows.dtype.kind == "O":
        raise TypeError(message(owner, name, "an array with rows", X))
    return as_rows(rows, name, owner)


def _is_text(X: Any) -> bool:
    """Whether every row is a text, as for documents."""
    kind = getattr(X.dtype, "kind", "")
    return kind in ("U", "T") or (kind == "O" and all(isinstance(x, str) for x in X))


def n_rows_of(X: Any) -> int:
    """Return the number of rows."""
    return int(X.shape[0]) if hasattr(X, "shape") and len(X.shape) else len(X)


def n_features_of(X: Any) -> int:
    """Return how many numbers a row has: its features, or all channels of all pixels of an image."""
    return prod(X.shape[1:])


def take_rows(X: Any, rows: slice | np.ndarray) -> Any:
    """Return some rows of X; None stays None."""
    if X is None:
        return None
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def concatenated(parts: list[Any]) -> Any:
    """Concatenate the rows of several blocks; None if they are None."""
    if len(parts) == 1 or parts[0] is None:
        return parts[0]
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    if _array.is_sparse(parts[0]):
        from scipy.sparse import vstack

        return vstack(parts, format="csr")
    return _array.namespace(*parts).concat(parts, axis=0) if _array.is_torch(parts[0]) else np.concatenate(parts)


def block_rows(n_components: int, itemsize: int, like: Any = None) -> int:
    """Return the rows per block: 256 MiB of features on the host, a sixteenth of the free memory on a CUDA device."""
    budget = BLOCK_BYTES
    if like is not None and _array.is_torch(like) and like.device.type == "cuda":
        from ntkit._batching import working_memory

        budget, itemsize = working_memory(like) // 4, 8 + itemsize
    return min(max(budget // (n_components * itemsize), _MIN_ROWS), _MAX_ROWS)


def _paths(X: Any, y: Any) -> list[Path]:
    """Return the files that X names. A list of texts names files if y names a column or all texts end like tables."""
    if isinstance(X, str | os.PathLike):
        path = Path(X)
        if path.is_dir():
            return sorted(p for p in path.iterdir() if p.name.lower().endswith(FRAME_ENDINGS)) or [path]
        return [path]
    if not isinstance(X, list | tuple) or not X or not all(isinstance(x, str | os.PathLike) for x in X):
        return []
    named = isinstance(y, str) or all(isinstance(x, os.PathLike) or x.lower().endswith(FRAME_ENDINGS) for x in X)
    return [Path(x) for x in X] if named else []


def _is_stream(X: Any) -> bool:
    if hasattr(X, "shape") or hasattr(X, "__array__"):
        return False
    if isinstance(X, list | tuple):
        return bool(X) and isinstance(X[0], tuple) and len(X[0]) in (2, 3) and hasattr(X[0][0], "shape")
    return isinstance(X, Iterable)


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _raise_at(where: str, error: Exception) -> NoReturn:
    """Raise an error again, with its origin: in the message of TypeError and ValueError, as a note for other types."""
    if type(error) in (TypeError, ValueError):
        raise type(error)(f"{where}: {error}") from error
    error.add_note(where)
    raise error


def _find_fault(values: Any, part: str, text: str) -> tuple[int, Any, Any] | None:
    """Return the row, column and value that caused an error with this `text`; None for errors about all rows."""
    if part == "weight":
        kind = "weight"
    elif re.search("NaN|infin|finite", text):
        kind = "finite"
    elif re.search("convert|string|text|number", text):
        kind = "text"
    else:
        return None
    faults = []
    for name, column in _columns_of(values):
        plain = column.dtype.kind in "biuf"
        bad = ~np.isfinite(column) if plain else np.array([_is_fault(value, kind) for value in column], dtype=bool)
        if plain and kind == "weight":
            bad |= column < 0
        if bad.any():
            faults.append((int(bad.argmax()), name, column[bad.argmax()]))
    return min(faults, key=lambda fault: fault[0], default=None)


def _is_fault(value: Any, kind: str) -> bool:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return kind == "weight" or isinstance(value, str | bytes) == (kind == "text")
    return kind != "text" and (not isfinite(number) or (kind == "weight" and number < 0))


def _columns_of(values: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the name or index and the values of each column; for arrays that are not 2-D, the name is None."""
    if hasattr(values, "columns"):
        yield from ((name, np.asarray(values.iloc[:, index])) for index, name in enumerate(values.columns))
        return
    if _array.is_sparse(values):
        values = values.tocsc()
        for index in np.flatnonzero(np.diff(values.indptr)):
            yield int(index), values[:, [index]].toarray()[:, 0]
        return
    if _array.is_torch(values):
        values = values.detach().double().cpu()
    array = np.asarray(values)
    if array.ndim == 2:
        yield from enumerate(array.T)
    elif array.size:
        yield from ((None, column) for column in array.reshape(len(array), -1).T)


class Digest:
    """A running digest of rows, targets and weights."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, *values: Any) -> None:
        """Add arrays, data frames or None."""
        for value in values:
            for part in _plain_parts(value):
                self._hash.update(f"{part.dtype} {part.shape}".encode())
                plain = part.dtype.kind in "biufcmMSU"
                self._hash.update(np.ascontiguousarray(part).view(np.uint8) if plain else repr(part.tolist()).encode())

    def text(self) -> str:
        """Return the digest so far."""
        return self._hash.hexdigest()


def _plain_parts(values: Any) -> Iterator[np.ndarray]:
    """Yield NumPy arrays that together hold all values."""
    if values is None:
        return
    if _array.is_sparse(values):
        values = values.tocsr()
        yield from (values.data, values.indices, values.indptr)
    elif _array.is_torch(values) and values.dtype.itemsize < 4 and values.is_floating_point():
        yield _array.to_numpy(values.float())
    elif hasattr(values, "columns"):
        yield from (np.asarray(values[name]) for name in values.columns)
    else:
        yield np.atleast_1d(np.asarray(_array.to_numpy(values)))
