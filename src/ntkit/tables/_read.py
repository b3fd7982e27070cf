"""Reading of tables from CSV, TSV, Parquet and NPZ files."""

from __future__ import annotations

import csv
import gzip
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkit.tables._npz import no_such, read_npz
from ntkit.tables._numerals import is_code, is_numeral, numeral_style, to_float

if TYPE_CHECKING:
    from pandas import DataFrame

FRAME_ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
"""Endings of files that hold data frames."""
PARQUET_ENDINGS = (".parquet", ".pq")
_TSV_ENDINGS = (".tsv", ".tsv.gz")
_SEPARATORS = "\t;,"  # in order of preference: numbers and text contain commas most often, tabs least often
_SNIFFED_LINES = 50  # lines from which the separator is inferred


def read_frames(path: Path, n_rows: int, *, text: Collection[str] = ()) -> Iterator[DataFrame]:
    r"""Read a CSV, TSV or Parquet file as data frames of at most `n_rows` rows.

    Parameters
    ----------
    path : path
        A text file (``.csv``, ``.tsv``, ``.txt``), a compressed text file (``.csv.gz``, ``.tsv.gz``) or a Parquet file
        (``.parquet``, ``.pq``).
    n_rows : int
        Maximum number of rows of a block.
    text : collection of str, default=()
        Columns of a text file that are read as text even if they look like numbers.

    Yields
    ------
    DataFrame
        Its index is the row number in the file, counted from 0 below the header.

    Notes
    -----
    Text files are UTF-8, with or without a byte order mark. Their first line has the names of the columns, which must
    be distinct. The separator of ``.tsv`` files is the tab. In other text files it is the first of tab, semicolon and
    comma that divides each of the first 50 lines into the same number of fields, at least two. All lines must have the
    same number of fields as the first. Columns of numbers with decimal commas (1234,5 or 1.234,5) become numbers. A
    first column without a name is taken for the row numbers that pandas writes, and is left out with a warning. The
    index that pandas stores in a Parquet file is left out too.

    A column that holds text in the first block is text in all blocks. A column that holds numbers in the first block
    must hold numbers in all blocks; otherwise an error names the row.

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
    """Return the names of the columns that contain text other than numbers."""
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
        its array ``X``, or ``X_train`` for the target ``y_train``. Without a target they are ``X``, ``X_test`` or the
        only array with two axes.
    target : str, optional
        The column (or array) of targets. ``y`` also finds ``y_train``.
    drop : sequence of str, default=()
        Columns to leave out.
    drop_missing_target : bool, default=False
        Whether to leave out rows without a target. If False, such rows are an error.
    text : collection of str, default=()
        Columns of a text file that are read as text even if they look like numbers.

    Returns
    -------
    X : DataFrame, or ndarray of shape (n_samples, n_features) from an NPZ file
        The index of a data frame is the row number in the file, counted from 0.
    y : ndarray of shape (n_samples,), or None without a target
        Whole numbers with leading zeros in a text file, such as 007, stay text.

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
            raise ValueError(f"'{path}' has arrays, not named columns, so columns cannot be dropped.")
        X, y = read_npz(path, target)
    else:
        _check_ending(path, (*FRAME_ENDINGS, ".npz"))
        X, y = _select(next(_frames(path, None, text)), path, target, drop)
        if y is not None and y.dtype.kind in "iu" and not path.name.lower().endswith(PARQUET_ENDINGS):
            y = _codes_as_text(path, y)
    if X.shape[0] == 0 or X.shape[1] == 0:
        what = "rows" if X.shape[0] == 0 else "columns to learn from" if target is not None else "columns"
        raise ValueError(f"The table '{path}' has no {what}.")
    return (X, None) if y is None else _without_missing(X, y, str(target), path, drop_missing_target)


def _codes_as_text(path: Path, y: Any) -> Any:
    """Return targets such as 007 as text, because numbers would lose the zeros; return others unchanged."""
    import pandas as pd

    options: dict[str, Any] = {"encoding": "utf-8-sig", "sep": _separator(path), "index_col": False}
    text = pd.read_csv(path, usecols=[y.name], dtype=str, **options)[y.name]
    return text.set_axis(y.index) if any(is_code(value) for value in text.unique()) else y


def _check_ending(path: Path, endings: tuple[str, ...]) -> None:
    if not path.name.lower().endswith((*endings, ".txt")):
        raise ValueError(f"Cannot tell what kind of table '{path}' is. Its name should end in {', '.join(endings)}.")


def _select(frame: DataFrame, path: Path, target: str | None, drop: Sequence[str]) -> tuple[Any, Any]:
    """Split a data frame into the columns to learn from and the target."""
    names, targets = list(frame.columns), [] if target is None else [target]
    for name in (*targets, *drop):
        if name not in names:
            raise ValueError(no_such(path, "column", name, names))
    if target in drop:
        raise ValueError(f"The column '{target}' is the target and cannot be dropped.")
    return frame.drop(columns=[*drop, *targets]), None if target is None else frame[target]


def _frames(path: Path, n_rows: int | None, text: Collection[str] = ()) -> Iterator[DataFrame]:
    """Yield a file in blocks of `n_rows` rows, or in one block if None. Columns named in `text` are read as text."""
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise ImportError("Reading tables needs pandas: pip install 'ntkit[cli]'.") from error
    with _errors_of(path):
        blocks = _parquet(path, n_rows) if path.name.lower().endswith(PARQUET_ENDINGS) else _csv(path, n_rows, text)
        row = 0
        for frame in blocks:
            frame.columns = [str(name) for name in frame.columns]
            frame.index = range(row, row + len(frame))
            row += len(frame)
            yield frame


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Replace errors of pandas and of decompression by errors that name the file."""
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
    except pd.errors.ParserError as error:
        long_line = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        if long_line is None:
            raise ValueError(f"Cannot read '{path}': {str(error).strip()}.") from error
        expected, line, found = long_line.groups()
        raise ValueError(
            f"Line {line} of '{path}' has {found} fields, but {expected} are expected. Put quotes around fields that "
            "contain the separator, or correct the line."
        ) from error
    except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"Cannot read '{path}': {str(error).strip()}.") from error


def _csv(path: Path, n_rows: int | None, text: Collection[str]) -> Iterator[DataFrame]:
    import pandas as pd

    options: dict[str, Any] = {"encoding": "utf-8-sig", "sep": _separator(path)}
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
    names = [str(name) for name in header.iloc[0]]
    _check_distinct(path, [name for name in names if name])
    start = 0 if names[0] else 1
    if start:
        warnings.warn(
            f"The first column of '{path}' has no name. It is taken for row numbers and left out.", stacklevel=2
        )
    types = dict.fromkeys(set(text) & set(names), str)
    options |= {"index_col": False, "low_memory": False, "dtype": types}
    numbers, commas, complete = [], None, len(names) < 2
    if n_rows is not None:
        first = _strictly(pd.read_csv, path, nrows=n_rows, **options).iloc[:, start:]
        commas = _with_commas(first, types, options["sep"])
        others = [name for name in text_columns(first) if name not in commas]
        options["dtype"] = types | dict.fromkeys(others, str)
        numbers = [name for name in first if first[name].dtype.kind in "biuf" and first[name].notna().any()]
    with pd.read_csv(path, chunksize=n_rows, iterator=True, **options) as reader:
        while (frame := _strictly(next, reader, None)) is not None:
            if not complete and frame.iloc[:, -1].isna().any():
                _check_fields(path, options["sep"], len(names))
                complete = True
            frame = frame.iloc[:, start:]
            for name in _with_commas(frame, types, options["sep"]) if commas is None else commas:
                frame[name] = _without_commas(frame[name], path)
            for name in numbers:
                _check_numbers(frame[name], path)
            yield frame


def _open_text(path: Path) -> Any:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    return opened(path, "rt", encoding="utf-8-sig", newline="")


def _separator(path: Path) -> str:
    """Infer the separator of a text file from its ending and its first lines."""
    if path.name.lower().endswith(_TSV_ENDINGS):
        return "\t"
    with _open_text(path) as file:
        lines = [line for line in islice(file, _SNIFFED_LINES) if line.strip()]
    # Lines without their quoted parts. Lines with an open quote are skipped.
    bare = ["".join(line.split('"')[::2]) for line in lines if line.count('"') % 2 == 0] or [""]
    found = [separator for separator in _SEPARATORS if separator in bare[0]]
    consistent = [each for each in found if len({line.count(each) for line in bare}) == 1]
    usual = sorted(found, key=",;\t".index)  # if no separator divides all lines into the same number of fields
    return next(iter([*consistent, *usual]), ",")


def _check_fields(path: Path, separator: str, n_fields: int) -> None:
    """Raise an error that names the first line with too few fields. pandas would treat the rest as missing."""
    limit = csv.field_size_limit(2**31 - 1)  # pandas has no limit
    try:
        with _open_text(path) as file:
            reader = csv.reader(file, delimiter=separator)
            for row in reader:
                if 0 < len(row) < n_fields and (len(row) > 1 or row[0].strip()):
                    raise ValueError(
                        f"Line {reader.line_num} of '{path}' has {len(row)} field{'s' * (len(row) > 1)}, but the "
                        f"first line has {n_fields} names. Complete the line or remove it."
                    )
    finally:
        csv.field_size_limit(limit)


def _with_commas(frame: DataFrame, text: Collection[str], separator: str) -> list[str]:
    """Return the names of columns with decimal commas. 1,234 has a decimal comma unless commas separate the columns."""
    styles = ("comma",) if separator == "," else ("comma", "either")
    found = []
    for name in frame:
        if name not in text and frame[name].dtype.kind not in "biufM":
            levels = frame[name].dropna().unique()
            if all(isinstance(level, str) for level in levels) and numeral_style(levels) in styles:
                found.append(name)
    return found


def _without_commas(column: Any, path: Path) -> Any:
    """Convert a column with decimal commas to numbers."""

    def number(value: Any) -> float:
        try:
            return to_float(value, "comma") if isinstance(value, str) else float(value)
        except ValueError:
            row = column.index[(column == value).to_numpy().argmax()]
            raise ValueError(
                f"The column '{column.name}' of '{path}' has numbers with decimal commas, but the text {value!r} in "
                f"row {row} (counted from 0). Correct it, or leave it empty if the number is missing."
            ) from None

    return column.map(number, na_action="ignore").astype(np.float64)


def _strictly(read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of pandas. Turn its warning about dropped fields into an error."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return read(*arguments, **options)


def _text_in(column: Any) -> np.ndarray:
    """Return a mask of the values of a column that are text other than numbers."""
    if column.dtype.kind in "biuf":
        return np.zeros(len(column), dtype=bool)
    return np.array([isinstance(value, str) and not is_numeral(value) for value in column], dtype=bool)


def _check_numbers(column: Any, path: Path) -> None:
    """Raise if a column that began with numbers holds other text."""
    if (text := _text_in(column)).any():
        row = column.index[text.argmax()]
        raise ValueError(
            f"The column '{column.name}' of '{path}' begins with numbers, but has the text {column[row]!r} in row "
            f"{row} (counted from 0). Correct it, or leave it empty if the number is missing."
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


def _without_missing(X: Any, y: Any, target: str, path: Path, drop: bool) -> tuple[Any, np.ndarray]:
    """Return the rows with a target. If `drop` is False, raise if some have none."""
    frame = hasattr(y, "isna")
    missing = y.isna().to_numpy() if frame else np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)
    if missing.all():
        raise ValueError(
            f"The target '{target}' of '{path}' is missing in all {len(missing)} rows. Name another column."
        )
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
            f"{rows[finite.argmin()]} (counted from 0). Remove these rows."
        )
    return X, values
