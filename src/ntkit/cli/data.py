"""Tables and models that commands read, and the files that they write."""

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
from ntkit.tables import FRAME_ENDINGS, TableEncoder, explain_task, level_text, read_table

PARQUET = (".parquet", ".pq")
STREAM = Path("-")
"""Standard input or output."""
_MAGIC = {b"PAR1": ".parquet", b"\x1f\x8b": ".csv.gz", b"PK\x03\x04": ".npz"}
"""First bytes of files that are no plain text."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # with what spreadsheets let formulas begin


class Table(NamedTuple):
    """Rows and targets of a file, which rows to train and to test on, and why the task is what it is (or "")."""

    X: Any
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    task: str
    reason: str

    def rows(self, indices: np.ndarray) -> Any:
        """Some rows of X."""
        return self.X.iloc[indices] if hasattr(self.X, "iloc") else self.X[indices]


def load_table(
    data: Path, target: str, task: str, drop: Sequence[str] | None, drop_missing_target: bool, test: float, seed: int
) -> Table:
    """Read a table, find out the task, and split the rows."""
    X, y, _ = read(data, target, drop=drop or (), drop_missing_target=drop_missing_target)
    with errors_in(data):
        task, reason = explain_task(y) if task == "auto" else (task, "")
        remedy = "Regression needs numbers. Say --task classification if the values are classes."
        y = as_numbers(y, target, remedy) if task == "regression" else as_labels(y, target)
        return Table(X, y, *_split(y, task, test, seed), task, reason)


def as_numbers(y: np.ndarray, target: str, remedy: str) -> np.ndarray:
    """Targets of regression."""
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The target '{target}' does not hold numbers: {error}. {remedy}") from error


def as_labels(y: np.ndarray, target: str) -> np.ndarray:
    """Labels: whole numbers, booleans or text."""
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    y = y if y.dtype.kind in "biuf" else np.array([level_text(value) for value in y])
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"Classification needs two classes or more. The target '{target}' is {classes[0]} everywhere.")
    if len(classes) > max(50, len(y) / 2):
        raise ValueError(
            f"The target '{target}' has {len(classes)} classes in {len(y)} rows: too many to learn. Say "
            "--task regression if it is a number."
        )
    return y


def _split(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of rows to train and to test on; every class is in both if it has enough rows."""
    from sklearn.model_selection import train_test_split

    n = len(y)
    if fraction == 0:
        return np.arange(n), np.arange(0)
    n_test = min(max(round(fraction * n), 1), n - 2)
    if n_test < 1:
        raise ValueError(f"{n} rows are too few to hold some out. Say --test 0, or give more rows.")
    stratify = None
    if task == "classification":
        classes, counts = np.unique(y, return_counts=True)
        stratify = y if counts.min() >= 2 and len(classes) <= min(n_test, n - n_test) else None
    train, test = train_test_split(np.arange(n), test_size=n_test, stratify=stratify, random_state=seed)
    return np.sort(train), np.sort(test)


def load_model(path: Path) -> Any:
    """A model that predicts."""
    from ntkit.persistence import load

    if path.is_file() and path.name.lower().endswith((*FRAME_ENDINGS, ".npz")):
        with open(path, "rb") as file:
            if file.read(9)[8:] != b"{":
                raise ValueError(f"'{path}' is a table, not a model. Give the model first, then the table.")
    model = load(path)
    if not hasattr(model, "predict"):
        raise ValueError(f"'{path}' holds a {type(model).__name__}, which makes no predictions.")
    return model


def text_columns(model: Any) -> set[str]:
    """The columns that a model takes as text."""
    encoder = getattr(model, "encoder_", None)
    if hasattr(model, "steps"):  # a pipeline
        encoder = model.steps[0][1]
    return set(encoder.text_columns_) if isinstance(encoder, TableEncoder) else set()


def read(
    data: Path, target: str | None = None, *, text: Collection[str] = (), keep: bool = False, **options: Any
) -> tuple[Any, Any, Any]:
    """Rows and targets of a file, or of standard input; with `keep` also all columns as text, as they were."""
    with _file_of(data) as path:
        X, y = read_table(path, target, text=text, **options)
        kept = None
        if keep:
            if not hasattr(X, "columns"):
                raise ValueError(f"'{data}' has arrays, not named columns: --keep cannot keep them.")
            is_text = not path.name.lower().endswith(PARQUET)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they were said before
                kept = read_table(path, text=list(X.columns))[0] if is_text else X
        return X, y, kept


def name_of(data: Path, *, short: bool = False) -> str:
    """A file's name for a report."""
    return "standard input" if data == STREAM else data.name if short else str(data)


@contextmanager
def _file_of(data: Path) -> Iterator[Path]:
    """The file with a table; standard input is copied to a temporary one, which messages do not name."""
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
                law = TypeError if isinstance(error, TypeError) else ValueError
                raise law(str(error).replace(f"'{path}'", "Standard input")) from error
    for each in caught:
        warnings.warn(str(each.message).replace(f"'{path}'", "standard input"), stacklevel=2)


@contextmanager
def errors_in(data: Path) -> Iterator[None]:
    """Errors and warnings about rows and columns, with the name of their file."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"'{name_of(data)}': {error}") from error


def check_file(output: Path) -> None:
    """Raise unless a file can be made there: before the work, not after it."""
    target = Path(os.path.realpath(output))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder '{output.parent}' for the output does not exist. Make it first.")
    if target.exists() and not target.is_file():
        what = "folder" if target.is_dir() else "device"
        raise IsADirectoryError(f"The output '{output}' is a {what}. Name a file.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"The folder '{output.parent}' cannot be written to.")


def write_frame(frame: Any, output: Path) -> None:
    """Write a data frame by the ending of the name, or as CSV to standard output; a file is complete or not there."""
    name = output.name.lower()
    if not name.endswith(PARQUET):
        _warn_of_formulas(frame)
    if output == STREAM:
        _write_to_stdout(frame)
        return
    with replacing(output) as file:
        if name.endswith(PARQUET):
            frame.to_parquet(file, index=False)
        else:
            compression = "gzip" if name.endswith(".gz") else None
            frame.to_csv(file, index=False, sep="\t" if ".tsv" in name else ",", compression=compression)


def _write_to_stdout(frame: Any) -> None:
    try:
        frame.to_csv(sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:  # `head` has seen enough; nothing is left to print at the end of the process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn_of_formulas(frame: Any) -> None:
    """Warn of labels that spreadsheets would run. They are written as they are: other programs need them so."""
    labels = [str(name).removeprefix("probability ") for name in frame]
    if "prediction" in frame and frame["prediction"].dtype.kind not in "biuf":
        labels += [str(value) for value in frame["prediction"].unique()]
    risky = [label for label in labels if label.startswith(_FORMULAS) and not is_number(label)]
    if risky:
        warnings.warn(
            f"Labels such as {risky[0]!r} begin like formulas, which spreadsheets run. Import the file as text there.",
            stacklevel=2,
        )


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
