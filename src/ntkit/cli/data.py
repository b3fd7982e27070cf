"""Reading of tables and models, and writing of predictions, for the commands."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ntkit._files import replacing
from ntkit.tables import (
    FRAME_ENDINGS,
    PARQUET_ENDINGS,
    TableEncoder,
    explain_task,
    is_numeral,
    level_text,
    read_table,
)

STREAM = Path("-")
"""The path that stands for standard input or output."""
_MAGIC = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz", b"PK\x03\x04": ".npz"}
"""File endings by the first bytes of the content; other content is plain text."""
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets run cells that begin so (OWASP, "CSV Injection")
_MEMORY_LIMIT = 2**32  # bytes that loading a small model file may take: the default of `ntkit.load`


class Table(NamedTuple):
    """Rows and targets of a file, indices of training and test rows, the task and the reason for it ("" if given)."""

    X: Any
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    task: str
    reason: str

    def rows(self, indices: np.ndarray) -> Any:
        """Return the rows of `X` at the given indices."""
        return self.X.iloc[indices] if hasattr(self.X, "iloc") else self.X[indices]


def load_table(
    data: Path, target: str, task: str, drop: Sequence[str] | None, drop_missing_target: bool, test: float, seed: int
) -> Table:
    """Read a table, infer the task and split the rows."""
    X, y, _ = read(data, target, drop=drop or (), drop_missing_target=drop_missing_target)
    with errors_in(data):
        task, reason = explain_task(y) if task == "auto" else (task, "")
        remedy = "Regression needs numbers. Use --task classification if the values are classes."
        y = as_numbers(y, target, remedy) if task == "regression" else as_labels(y, target)
        return Table(X, y, *_split(y, task, test, seed), task, reason)


def as_numbers(y: np.ndarray, target: str, remedy: str) -> np.ndarray:
    """Return regression targets as floating-point numbers."""
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The target '{target}' is not a column of numbers: {error}. {remedy}") from error


def as_labels(y: np.ndarray, target: str) -> np.ndarray:
    """Return labels: whole numbers, booleans or text."""
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    y = y if y.dtype.kind in "biuf" else np.array([level_text(value) for value in y])
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"Classification needs at least two classes. The target '{target}' is always {classes[0]}.")
    if len(classes) > max(50, len(y) / 2):
        raise ValueError(
            f"The target '{target}' has {len(classes)} classes in {len(y)} rows, which is too many to learn. Use "
            "--task regression if the target is a number."
        )
    return y


def _split(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training and test rows, stratified by class if all classes have enough rows."""
    from sklearn.model_selection import train_test_split

    n = len(y)
    if fraction == 0:
        return np.arange(n), np.arange(0)
    n_test = min(max(round(fraction * n), 1), n - 2)
    if n_test < 1:
        raise ValueError(f"{n} rows are too few to hold some out for a test. At least 3 are needed.")
    stratify = None
    if task == "classification":
        classes, counts = np.unique(y, return_counts=True)
        stratify = y if counts.min() >= 2 and len(classes) <= min(n_test, n - n_test) else None
    train, test = train_test_split(np.arange(n), test_size=n_test, stratify=stratify, random_state=seed)
    return np.sort(train), np.sort(test)


def load_model(path: Path) -> Any:
    """Load a model that predicts."""
    from ntkit.persistence import load

    if path.is_file() and path.name.lower().endswith((*FRAME_ENDINGS, ".npz")):
        with open(path, "rb") as file:
            if file.read(9)[8:] != b"{":
                raise ValueError(f"'{path}' is a table, not a model. Give the model first, then the table.")
    # A file may take the memory that its size suggests, so that all models of `ntkit fit` can be loaded.
    size = path.stat().st_size if path.is_file() else 0
    model = load(path, memory_limit=max(_MEMORY_LIMIT, 4 * size))
    if not hasattr(model, "predict"):
        raise ValueError(
            f"'{path}' holds a {type(model).__name__}, which cannot predict. Give a file written by 'ntkit fit'."
        )
    return model


def text_columns(model: Any) -> set[str]:
    """Return the names of the columns that a model reads as text."""
    encoder = getattr(model, "encoder_", None)
    if hasattr(model, "steps"):  # a pipeline
        encoder = model.steps[0][1]
    return set(encoder.text_columns_) if isinstance(encoder, TableEncoder) else set()


def read(
    data: Path, target: str | None = None, *, text: Collection[str] = (), keep: bool = False, **options: Any
) -> tuple[Any, Any, Any]:
    """Read rows and targets from a file or from standard input; with `keep`, also all columns as unchanged text."""
    with _file_of(data) as path:
        X, y = read_table(path, target, text=text, **options)
        kept = None
        if keep:
            if not hasattr(X, "columns"):
                raise ValueError(f"{in_message(data)} has arrays, not named columns, so --keep cannot be used.")
            is_text = not path.name.lower().endswith(PARQUET_ENDINGS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the first reading has given the same warnings
                kept = read_table(path, text=list(X.columns))[0] if is_text else X
        return X, y, kept


def name_of(data: Path, *, short: bool = False) -> str:
    """Return the name of a file for a report."""
    return "standard input" if data == STREAM else data.name if short else str(data)


def in_message(data: Path) -> str:
    """Return the name of a file for the beginning of a message."""
    return "Standard input" if data == STREAM else f"'{data}'"


@contextmanager
def _file_of(data: Path) -> Iterator[Path]:
    """Yield the file of a table. Standard input is copied to a temporary file, which messages do not name."""
    if data != STREAM:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="ntkit-") as folder:
        raw = Path(folder) / "table"
        with open(raw, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with open(raw, "rb") as file:
            start = file.read(4)
        ending = next((e for mark, e in _MAGIC.items() if start.startswith(mark)), ".csv")
        path = raw.rename(raw.with_suffix(ending) if ending != ".csv.gz" else raw.with_name("table.csv.gz"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield path
            except (TypeError, ValueError, OSError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(_without_path(str(error), path)) from error
    for each in caught:
        warnings.warn(_without_path(str(each.message), path), stacklevel=2)


def _without_path(text: str, path: Path) -> str:
    """Replace the path of the temporary file in a message by "standard input"."""
    text = text.replace(f"'{path}'", "standard input")
    return text[0].upper() + text[1:]


@contextmanager
def errors_in(data: Path) -> Iterator[None]:
    """Put the name of the file in front of errors about its rows and columns."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{in_message(data)}: {error}") from error


def check_file(output: Path) -> None:
    """Raise unless a file can be created there. Called before the work, so that no result is lost."""
    target = Path(os.path.realpath(output))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder '{output.parent}' for the output does not exist. Create it first.")
    if target.exists() and not target.is_file():
        what = "folder" if target.is_dir() else "device"
        raise IsADirectoryError(f"The output '{output}' is a {what}. Name a file.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"The folder '{output.parent}' cannot be written to.")


def write_frame(frame: Any, output: Path) -> None:
    """Write a data frame in the format of the file ending, or as CSV to standard output. Files appear complete."""
    name = output.name.lower()
    if not name.endswith(PARQUET_ENDINGS):
        _warn_of_formulas(frame)
    if output == STREAM:
        _write_to_stdout(frame)
        return
    with replacing(output) as file:
        if name.endswith(PARQUET_ENDINGS):
            frame.to_parquet(file, index=False)
        else:
            compression = "gzip" if name.endswith(".gz") else None
            frame.to_csv(file, index=False, sep="\t" if ".tsv" in name else ",", compression=compression)


def _write_to_stdout(frame: Any) -> None:
    try:
        frame.to_csv(sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, is gone: discard the rest, as flushing it at exit would fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn_of_formulas(frame: Any) -> None:
    """Warn of labels that spreadsheets would run. The labels stay unchanged, as other programs compare them."""
    labels = [str(name) for name in frame]
    if "prediction" in frame and frame["prediction"].dtype.kind not in "biuf":
        labels += [str(value) for value in frame["prediction"].unique()]
    risky = [label for label in labels if label.startswith(_FORMULA_STARTS) and not is_numeral(label)]
    if risky:
        warnings.warn(
            f"Labels such as {risky[0]!r} begin like formulas, which spreadsheets run. Import the file as text.",
            stacklevel=2,
        )
