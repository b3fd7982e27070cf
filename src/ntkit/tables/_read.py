"""Reading tables from files: CSV, TSV, Parquet and NPZ."""

from __future__ import annotations

import gzip
import os
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkit.tables._columns import is_numeral

if TYPE_CHECKING:
    from pandas import DataFrame

FRAME_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")  # of files that hold data frames
_PARQUET = (".parquet", ".pq")
_TABS = (".tsv", ".tsv.gz")
_SEPARATORS = ",;\t"
_MOST_NAMES, _LONGEST_NAME = 40, 60  # listed in an error message, and characters of each


def read_frames(path: Path, n_rows: int, *, text: Collection[str] = ()) -> Iterator[DataFrame]:
    r"""Read a CSV, TSV or Parquet file as data frames of at most `n_rows` rows.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv`` or ``.txt`` file, the first two perhaps compressed (``.csv.gz``, ``.tsv.gz``), or a Parquet
        file (``.parquet``, ``.pq``).
    n_rows : int
        Most rows of a block.
    text : collection of str, default=()
        Columns of a CSV file that are read as text even if they look like numbers.

    Yields
    ------
    DataFrame
        Its index is the row in the file, counted from 0 below the header.

    Notes
    -----
    Text files are UTF-8, with or without a byte order mark, and their first line has the names of the columns, which
    must be distinct. The separator is the tab in ``.tsv`` files. In the others it is the comma if the first line has
    one outside quotes, else the semicolon, else the tab. A first column without a name holds the row numbers that
    pandas writes: it is left out, with a warning. The index that pandas stores in a Parquet file is left out too.

    A column of text in the first block is text in all blocks. A column of numbers in the first block must hold numbers
    in all blocks; the error names the row.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ntkit.tables import read_frames
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "flowers.csv"
    ...     _ = path.write_text("width;colour\n1.5;red\n0.5;blue\n2.5;red\n")
    ...     [frame["width"].tolist() for frame in read_frames(path, 2)]
    [[1.5, 0.5], [2.5]]
    """
    path = Path(path)
    _check_ending(path, FRAME_ENDINGS)
    return _frames(path, n_rows, text)


def text_columns(frame: DataFrame) -> list[str]:
    """Names of the columns with text that is no number."""
    return [name for name in frame if _text_in(frame[name]).any()]


def read_table(
    path: str | os.PathLike[str],
    target: str | None = None,
    *,
    drop: Sequence[str] = (),
    drop_missing_target: bool = False,
    text: Collection[str] = (),
) -> tuple[Any, Any]:
    r"""Read rows and targets from a file.

    Parameters
    ----------
    path : path
        A CSV, TSV or Parquet file, as for :func:`read_frames`, or an NPZ file (``.npz``). The rows of an NPZ file are
        its array ``X``, or ``X_train`` for the target ``y_train``; without a target ``X``, ``X_test`` or the only array
        with two axes.
    target : str, optional
        The column (or array) with the targets. ``y`` also finds ``y_train``.
    drop : sequence of str, default=()
        Columns to leave out.
    drop_missing_target : bool, default=False
        Whether to leave out rows without a target; else they are an error.
    text : collection of str, default=()
        Columns of a CSV file that are read as text even if they look like numbers.

    Returns
    -------
    X : DataFrame, or ndarray of shape (n_samples, n_features) from an NPZ file
        The index of a data frame is the row in the file, counted from 0.
    y : ndarray of shape (n_samples,), or None without a target

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ntkit.tables import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "flowers.csv"
    ...     _ = path.write_text("width,colour,species\n1.5,red,rose\n0.5,,violet\n")
    ...     X, y = read_table(path, "species")
    >>> list(X.columns), y
    (['width', 'colour'], array(['rose', 'violet'], dtype=object))
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"The file '{path}' {what}.")
    if path.name.lower().endswith(".npz"):
        if drop:
            raise ValueError(f"'{path}' has arrays, not named columns: columns cannot be dropped.")
        X, y = _read_npz(path, target)
    else:
        _check_ending(path, (*FRAME_ENDINGS, ".npz"))
        X, y = _select(next(_frames(path, None, text)), path, target, drop)
    if X.shape[0] == 0 or X.shape[1] == 0:
        what = "rows" if X.shape[0] == 0 else "columns to learn from" if target is not None else "columns"
        raise ValueError(f"The table '{path}' has no {what}.")
    return (X, None) if y is None else _without_missing(X, y, str(target), path, drop_missing_target)


def _no_such(path: Path, kind: str, name: str, names: Sequence[str]) -> str:
    """Message for a name that is not there: the names there are and the closest one."""
    close = get_close_matches(name, names, 1, 0.6) or [n for n in names if n.lower() == name.lower()]
    short = [n if len(n) <= _LONGEST_NAME else n[: _LONGEST_NAME - 1] + "…" for n in names[:_MOST_NAMES]]
    shown = ", ".join(short) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"'{path}' has no {kind} '{name}'.{meant} It has: {shown}."


def _check_ending(path: Path, endings: tuple[str, ...]) -> None:
    if not path.name.lower().endswith((*endings, ".txt")):
        raise ValueError(f"Cannot tell what kind of table '{path}' is. Its name should end in {', '.join(endings)}.")


def _select(frame: DataFrame, path: Path, target: str | None, drop: Sequence[str]) -> tuple[Any, Any]:
    """The columns to learn from, and the target."""
    names, targets = list(frame.columns), [] if target is None else [target]
    for name in (*targets, *drop):
        if name not in names:
            raise ValueError(_no_such(path, "column", name, names))
    if target in drop:
        raise ValueError(f"The column '{target}' is the target and cannot be dropped.")
    return frame.drop(columns=[*drop, *targets]), None if target is None else frame[target]


def _frames(path: Path, n_rows: int | None, text: Collection[str] = ()) -> Iterator[DataFrame]:
    """Blocks of a file; None: all rows in one block. Columns named in `text` are read as text."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError("Reading tables needs pandas: pip install 'ntkit[cli]'.") from error
    with _errors_of(path):
        blocks = _parquet(path, n_rows) if path.name.lower().endswith(_PARQUET) else _csv(path, n_rows, text)
        row = 0
        for frame in blocks:
            frame.columns = [str(name) for name in frame.columns]
            frame.index = range(row, row + len(frame))
            row += len(frame)
            yield frame


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Errors of pandas and of decompression, with the name of the file."""
    import pandas as pd

    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not UTF-8 text: {error}. Save it as UTF-8.") from error
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"The table '{path}' is empty.") from error
    except pd.errors.ParserWarning as error:
        raise ValueError(
            f"Rows of '{path}' have more fields than its first line has names. Name all columns."
        ) from error
    except (pd.errors.ParserError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"Cannot read '{path}': {str(error).strip()}.") from error


def _csv(path: Path, n_rows: int | None, text: Collection[str]) -> Iterator[DataFrame]:
    import pandas as pd

    options: dict[str, Any] = {"encoding": "utf-8-sig", "sep": _separator(path)}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
    names = [str(name) for name in header.iloc[0]]
    _check_distinct(path, [name for name in names if name])
    start = 0 if names[0] else 1
    if start:
        warnings.warn(f"The first column of '{path}' has no name and is taken for row numbers: left out.", stacklevel=2)
    types = dict.fromkeys(set(text) & set(names), str)
    options |= {"index_col": False, "low_memory": False, "dtype": types}
    numbers: list[str] = []
    if n_rows is not None:
        first = _strictly(pd.read_csv, path, nrows=n_rows, **options).iloc[:, start:]
        options["dtype"] = types | dict.fromkeys(text_columns(first), str)
        numbers = [name for name in first if first[name].dtype.kind in "biuf" and first[name].notna().any()]
    with pd.read_csv(path, chunksize=n_rows, iterator=True, **options) as reader:
        while (frame := _strictly(next, reader, None)) is not None:
            frame = frame.iloc[:, start:]
            for name in numbers:
                _check_numbers(frame[name], path)
            yield frame


def _separator(path: Path) -> str:
    """The separator of a text file, by its ending and its first line."""
    if path.name.lower().endswith(_TABS):
        return "\t"
    with (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
        line = next((line for line in file if line.strip()), "")
    bare = "".join(line.split('"')[::2])  # without what is quoted
    return next((separator for separator in _SEPARATORS if separator in bare), ",")


def _strictly(read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of pandas; its warning about fields that it would drop is an error."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return read(*arguments, **options)


def _text_in(column: Any) -> np.ndarray:
    """Where a column holds text that is no number."""
    if column.dtype.kind in "biuf":
        return np.zeros(len(column), dtype=bool)
    return np.array([isinstance(value, str) and not is_numeral(value) for value in column], dtype=bool)


def _check_numbers(column: Any, path: Path) -> None:
    """Raise an error for text in a column that began with numbers."""
    if (text := _text_in(column)).any():
        row = column.index[text.argmax()]
        raise ValueError(
            f"The column '{column.name}' of '{path}' begins with numbers, but has the text {column[row]!r} in row "
            f"{row} (counted from 0). Correct it, or leave it empty where the number is missing."
        )


def _parquet(path: Path, n_rows: int | None) -> Iterator[DataFrame]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install 'ntkit[cli]'.") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_distinct(path, list(file.schema_arrow.names))
            for part in [file.read()] if n_rows is None else file.iter_batches(batch_size=n_rows):
                yield part.to_pandas()
    except pa.ArrowException as error:
        raise ValueError(f"Cannot read '{path}' as Parquet: {str(error).strip()}") from error


def _check_distinct(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"'{path}' has more than one column named '{twice[0]}'. Column names must be distinct.")


def _read_npz(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        # opened here, as NumPy leaves files open that are no archives
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = list(file.files)
            rows, labels = _array_names(path, names, target, lambda name: np.ndim(file[name]))
            X = file[rows]
            y = None if labels is None else file[labels]
            for name, array in ((rows, X), (labels, y)):
                if isinstance(array, bytes):  # what NumPy makes of a part that does not begin as arrays do
                    raise EOFError(f"'{name}' is no array")
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, zlib.error) as error:
        raise ValueError(f"Cannot read '{path}' as NPZ: {error}.") from error
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"'{path}' has arrays of Python objects, which are not read for safety. Save numbers or text (dtype str)."
        ) from error
    if X.ndim != 2:
        raise ValueError(
            f"The array '{rows}' of '{path}' must have two axes, rows and columns. Got the shape {X.shape}; "
            f"X.reshape(len(X), -1) makes rows of images."
        )
    if y is not None and (y.ndim != 1 or len(y) != len(X)):
        raise ValueError(
            f"The array '{labels}' of '{path}' must have one value for each of the {len(X)} rows of '{rows}'. Got the "
            f"shape {y.shape}."
        )
    return X, y


def _array_names(path: Path, names: list[str], target: str | None, ndim: Any) -> tuple[str, str | None]:
    """Names of the arrays with the rows and the targets."""
    if target is None:
        found = [name for name in names if name in ("X", "X_test")] or [n for n in names if ndim(n) == 2]
        if not found or (len(found) > 1 and found[0] not in ("X", "X_test")):
            raise ValueError(f"'{path}' needs an array 'X' with the rows. It has: {', '.join(names) or 'nothing'}.")
        return min(found), None
    if target not in names and target == "y" and "y_train" in names:
        target = "y_train"
    if target not in names:
        raise ValueError(_no_such(path, "array", target, names))
    own = "X" + target[1:] if target.startswith("y") else "X"
    rows = next((name for name in (own, "X", "X_train") if name in names), None)
    if rows is None:
        raise ValueError(f"'{path}' needs an array 'X' with the rows. It has: {', '.join(names)}.")
    return rows, target


def _without_missing(X: Any, y: Any, target: str, path: Path, drop: bool) -> tuple[Any, np.ndarray]:
    """Rows with a target, or an error if some have none."""
    frame = hasattr(y, "isna")
    missing = y.isna().to_numpy() if frame else np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)
    if missing.all():
        raise ValueError(f"The target '{target}' of '{path}' is missing in all {len(missing)} rows.")
    if missing.any() and not drop:
        raise ValueError(
            f"The target '{target}' of '{path}' is missing in {missing.sum()} of {len(missing)} rows, first in row "
            f"{missing.argmax()} (counted from 0). Pass drop_missing_target=True to leave these rows out."
        )
    rows = np.flatnonzero(~missing)
    if missing.any():
        X, y = (X.iloc[rows], y.iloc[rows]) if frame else (X[rows], y[rows])
    values = y.to_numpy(dtype=None if y.dtype.kind in "biuf" else object) if frame else y
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        raise ValueError(
            f"The target '{target}' of '{path}' is infinite in {(~finite).sum()} rows, first in row "
            f"{rows[finite.argmin()]} (counted from 0). Remove them."
        )
    return X, values
