"""Reading tables from files: CSV, TSV, Parquet and NPZ."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

_CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
_PARQUET = (".parquet", ".pq")
_MOST_NAMES = 40  # listed in an error message


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
        A CSV file (``.csv``, ``.csv.gz``; separated by commas, or by semicolons if there are no commas in its first
        line), ``.tsv``, Parquet (``.parquet``, ``.pq``) or NPZ (``.npz``) file. CSV files are UTF-8 and their first
        line has the names of the columns. The rows of an NPZ file are its array ``X``, or ``X_train`` for the target
        ``y_train``; without a target ``X``, ``X_test`` or the only array with two axes.
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
    name = path.name.lower()
    if name.endswith(".npz"):
        if drop:
            raise ValueError(f"'{path}' has arrays, not named columns: columns cannot be dropped.")
        X, y = _read_npz(path, target)
    elif name.endswith((*_CSV, *_PARQUET)):
        X, y = _read_frame(path, target, drop, text)
    else:
        raise ValueError(
            f"Cannot tell what kind of table '{path}' is. Its name should end in .csv, .csv.gz, .tsv, .parquet or .npz."
        )
    if X.shape[0] == 0 or X.shape[1] == 0:
        what = "rows" if X.shape[0] == 0 else "columns to learn from" if target is not None else "columns"
        raise ValueError(f"The table '{path}' has no {what}.")
    return (X, None) if y is None else _without_missing(X, y, str(target), path, drop_missing_target)


def no_such(path: Path, kind: str, name: str, names: Sequence[str]) -> str:
    """Message for a name that is not there: the names there are and the closest one."""
    close = get_close_matches(name, names, 1, 0.6) or [n for n in names if n.lower() == name.lower()]
    shown = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"'{path}' has no {kind} '{name}'.{meant} It has: {shown}."


def _read_frame(path: Path, target: str | None, drop: Sequence[str], text: Collection[str]) -> tuple[Any, Any]:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("Reading tables needs pandas: pip install 'ntkit[cli]'.") from error
    try:
        frame = _read_parquet(path) if path.name.lower().endswith(_PARQUET) else _read_csv(path, text)
    except UnicodeDecodeError as error:
        raise ValueError(f"'{path}' is not UTF-8 text: {error}. Save it as UTF-8.") from error
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"The table '{path}' is empty.") from error
    except (pd.errors.ParserError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"Cannot read '{path}': {str(error).strip()}.") from error
    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    for name in (*([target] if target is not None else []), *drop):
        if name not in names:
            raise ValueError(no_such(path, "column", name, names))
    if target in drop:
        raise ValueError(f"The column '{target}' is the target and cannot be dropped.")
    y = None if target is None else frame[target]
    return frame.drop(columns=[*drop, *([target] if target is not None else [])]), y


def _read_csv(path: Path, text: Collection[str]) -> Any:
    import pandas as pd

    options: dict[str, Any] = {"encoding": "utf-8-sig"}
    tabs = path.name.lower().endswith((".tsv", ".tsv.gz"))
    first = pd.read_csv(path, sep="\0", header=None, nrows=1, dtype=str, quoting=3, **options).iloc[0, 0]
    options["sep"] = "\t" if tabs else ";" if "," not in str(first) and ";" in str(first) else ","
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
    names = [str(name) for name in header.iloc[0]]
    _check_distinct(path, [name for name in names if name])
    types: Any = {name: str for name in names if name in text}
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(path, dtype=types, low_memory=False, index_col=False, **options)
        except pd.errors.ParserWarning as error:
            raise ValueError(
                f"The rows of '{path}' have more fields than its first line has names ({len(names)}). Name all columns."
            ) from error
    if not names[0]:  # as pandas writes its row numbers
        index = frame.columns[0]
        frame = frame.drop(columns=index)
        warnings.warn(f"The first column of '{path}' has no name and is taken for row numbers: left out.", stacklevel=2)
    return frame


def _read_parquet(path: Path) -> Any:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Reading Parquet files needs pyarrow: pip install 'ntkit[cli]'.") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_distinct(path, list(file.schema_arrow.names))
            return file.read().to_pandas()
    except pa.ArrowException as error:
        raise ValueError(f"Cannot read '{path}' as Parquet: {str(error).strip()}") from error


def _check_distinct(path: Path, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"'{path}' has more than one column named '{twice[0]}'. Column names must be distinct.")


def _read_npz(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            rows, labels = _array_names(path, names, target, lambda name: file[name].ndim)
            X = file[rows]
            y = None if labels is None else file[labels]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
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
        raise ValueError(no_such(path, "array", target, names))
    own = "X" + target[1:] if target.startswith("y") else "X"
    rows = next((name for name in (own, "X", "X_train") if name in names), None)
    if rows is None:
        raise ValueError(f"'{path}' needs an array 'X' with the rows. It has: {', '.join(names)}.")
    return rows, target


def _without_missing(X: Any, y: Any, target: str, path: Path, drop: bool) -> tuple[Any, np.ndarray]:
    """Rows with a target, or an error if some have none."""
    if hasattr(y, "isna"):
        missing = y.isna().to_numpy()
        values = y.to_numpy(dtype=object) if missing.any() or y.dtype.kind not in "biuf" else y.to_numpy()
    else:
        values = y
        missing = np.isnan(y) if y.dtype.kind == "f" else np.zeros(len(y), dtype=bool)
    count = int(missing.sum())
    if count == len(missing):
        raise ValueError(f"The target '{target}' of '{path}' is missing in all {count} rows.")
    if count and not drop:
        raise ValueError(
            f"The target '{target}' of '{path}' is missing in {count} of {len(missing)} rows. Say "
            "--drop-missing-target (in Python drop_missing_target=True) to leave these rows out."
        )
    if count:
        X, values = X[~missing] if not hasattr(X, "loc") else X.loc[~missing].reset_index(drop=True), values[~missing]
        values = np.array(values.tolist()) if hasattr(y, "isna") and y.dtype.kind in "biuf" else values
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise ValueError(f"The target '{target}' of '{path}' is infinite in {count} rows. Remove them.")
    return X, values
