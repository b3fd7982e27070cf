"""Columns of tables: what is learned about them and how they become numbers."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

from ntkit import _state
from ntkit._validation import describe, message

_LARGEST = float(np.finfo(np.float32).max)
_FLAT = 1e-4  # a column that varies by less than this part of its size loses digits in float32


@dataclass(frozen=True)
class Number(_state.Declared):
    """A column of numbers: its mean stands for missing values, `missing` adds a column that tells where."""

    _state = {"name": _state.Text(), "mean": _state.Real(), "offset": _state.Real(), "missing": _state.Flag()}  # noqa: RUF012
    name: str
    mean: float
    offset: float
    missing: bool

    @property
    def names(self) -> list[str]:
        """Names of the columns made of it."""
        return [self.name, f"{self.name}=(missing)"] if self.missing else [self.name]

    def put(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the columns made of it."""
        gone = np.isnan(values)
        out[:, 0] = np.where(gone, self.mean, values) - self.offset if gone.any() else values - self.offset
        if self.missing:
            out[:, 1] = gone


@dataclass(frozen=True)
class Text(_state.Declared):
    """A column of text or categories: one column for each level (None: missing), one for all others if `other`."""

    _state = {  # noqa: RUF012
        "name": _state.Text(),
        "levels": _state.Many(_state.Optional(_state.Text())),
        "other": _state.Flag(),
    }
    name: str
    levels: tuple[str | None, ...]
    other: bool

    @property
    def names(self) -> list[str]:
        """Names of the columns made of it."""
        levels = ["(missing)" if level is None else level for level in self.levels]
        return [f"{self.name}={level}" for level in levels + ["(other)"] * self.other]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"The levels of the column {describe(self.name)} must be distinct")

    def put(self, column: Any, out: np.ndarray) -> None:
        """Write the columns made of it."""
        codes, distinct = _factorize(column, self.name)
        number = {level: i for i, level in enumerate(self.levels)}
        rest = len(self.levels) if self.other else -1
        place = np.array([number.get(level, rest) for level in (*distinct, None)])[codes]
        out[:] = 0.0
        seen = np.flatnonzero(place >= 0)
        out[seen, place[seen]] = 1.0


def as_frame(X: Any) -> Any:
    """A pandas data frame, or None for arrays."""
    if hasattr(X, "to_pandas") and not hasattr(X, "iloc"):
        X = X.to_pandas()
    return X if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2 else None


def has_names(frame: Any) -> bool:
    """Whether a data frame has names for columns, as text, not numbers."""
    return any(isinstance(name, str) for name in frame.columns)


def check_frame(frame: Any) -> list[str]:
    """Names of the columns of a data frame with rows and distinct names."""
    owner = "TableEncoder"
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        remedy = "frame.columns = frame.columns.astype(str) makes them text."
        raise TypeError(message(owner, "X", "a data frame whose column names are all text", names, remedy))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"The table has more than one column named '{twice}'. Column names must be distinct.")
    if len(frame) == 0:
        found = f"Found 0 sample(s) (shape={frame.shape}) while a minimum of 1 is required."
        raise ValueError(message(owner, "X", "non-empty, with at least one row", frame, found))
    return names


def fit_column(column: Any, name: str, most: int) -> Number | Text:
    """What a column of a data frame holds, with at most `most` levels."""
    if _is_number(column, name):
        return fit_number(name, to_numbers(column, name))
    codes, distinct = _factorize(column, name)
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    n_rows = int(counts.sum())
    if len(distinct) > max(most, n_rows / 2):
        raise ValueError(_identifier_message(name, distinct, n_rows))
    levels = dict(zip(distinct, counts.tolist(), strict=True))
    if n_rows < len(column):
        levels[None] = len(column) - n_rows
    kept = sorted(levels, key=lambda level: (-levels[level], level is None, level or ""))[:most]
    kept.sort(key=lambda level: (level is None, level or ""))
    return Text(name, tuple(kept), len(kept) < len(levels))


def fit_number(name: str, values: np.ndarray) -> Number:
    """Mean of a column of numbers, and whether some are missing."""
    values = _finite(values, name).astype(np.float64, copy=False)
    there = values[~np.isnan(values)]
    mean = float(there.mean()) if there.size else 0.0
    spread = float(np.ptp(there)) if there.size else 0.0
    offset = mean if spread > 0 and spread < _FLAT * abs(mean) else 0.0
    return Number(name, mean, offset, there.size < values.size)


def _identifier_message(name: str, distinct: list[str | None], n_rows: int) -> str:
    remedy = f"Leave it out: {_drop(name)}."
    words = [level for level in distinct if level is not None and not is_numeral(level)]
    if len(words) < len(distinct) / 2:
        return (
            f"The column '{name}' is mostly numbers, but has text such as '{words[0] if words else ''}' among them. "
            f"Correct it or leave it empty where the number is missing. Or {remedy[0].lower()}{remedy[1:]}"
        )
    return (
        f"The column '{name}' has {len(distinct)} different values in {n_rows} rows, such as '{distinct[0]}': it looks "
        f"like an identifier or free text. {remedy}"
    )


def _drop(name: str) -> str:
    return f"frame.drop(columns=['{name}'])"


def is_numeral(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_number(column: Any, name: str) -> bool:
    """Whether a column holds numbers or booleans, not text or categories; refuses all else."""
    import pandas as pd

    dtype = column.dtype
    kind = "O" if isinstance(dtype, pd.CategoricalDtype | pd.StringDtype) else getattr(dtype, "kind", "O")
    if kind in "biuf":
        return True
    if isinstance(dtype, pd.CategoricalDtype | pd.StringDtype):
        return False
    types = set(map(type, column.dropna())) if kind == "O" else set()
    if kind in "Mm" or any(issubclass(t, datetime.date | datetime.time | datetime.timedelta) for t in types):
        raise TypeError(
            f"The column '{name}' holds dates or times. Convert it to numbers, such as days since some date, year, "
            f"month or hour, or leave it out: {_drop(name)}."
        )
    numbers = {t for t in types if issubclass(t, Real | Decimal | np.bool_)}
    others = types - numbers - {t for t in types if issubclass(t, str)}
    if kind != "O" or others:
        what = next(iter(others)).__name__ if others else str(dtype)
        raise TypeError(
            f"The column '{name}' holds objects of type {what}, not numbers or text. Convert it or leave it out: "
            f"{_drop(name)}."
        )
    return types == numbers


def to_numbers(column: Any, name: str) -> np.ndarray:
    """A column as floating-point numbers, NaN where missing."""
    if isinstance(column, np.ndarray):
        return _finite(column, name)
    if getattr(column.dtype, "kind", "O") in "biuf":
        return _finite(column.to_numpy(dtype=np.float64, na_value=np.nan), name, column)
    _is_number(column, name)  # refuses dates and objects
    codes, distinct = _factorize(column, name, as_text=False)
    table = np.full(len(distinct) + 1, np.nan)
    for i, value in enumerate(distinct):
        try:
            table[i] = float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"The column '{name}' must hold numbers, as in the table fitted on. Got {describe(value)} in "
                f"{_row(column, codes == i)}."
            ) from None
    return _finite(table[codes], name, column)


def _row(column: Any, places: np.ndarray) -> str:
    """The first of some rows: its label in a data frame, its position in an array."""
    place = int(places.argmax())
    label = column.index[place] if hasattr(column, "index") else place
    return f"row {label}" + " (counted from 0)" * isinstance(label, Integral)


def _finite(values: np.ndarray, name: str, column: Any = None) -> np.ndarray:
    """Return `values`, or raise an error that names the row of `column` with an infinite number."""
    bad = np.abs(values) > _LARGEST
    if bad.any():
        raise ValueError(
            f"The column '{name}' has an infinite or too large number, {values[bad.argmax()]} in {_row(column, bad)}; "
            f"such rows in all: {int(bad.sum())}. Correct it, or leave it empty where the number is missing."
        )
    return values


def _factorize(column: Any, name: str, *, as_text: bool = True) -> tuple[np.ndarray, list[Any]]:
    """Number of the value of each row, −1 where missing, and the values."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(column)
    except TypeError as error:
        raise TypeError(f"The column '{name}' holds objects, not text. Convert it or leave it out.") from error
    if not as_text:
        return codes, list(distinct)
    texts = [level_text(value) for value in distinct]
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    if len(number) < len(texts):  # 1 and 1.0
        codes = np.array([*(number[text] for text in texts), -1])[codes]
    return codes, list(number)


def level_text(value: Any) -> str:
    """A level as text; 1, 1.0 and "1" are one level, whatever a file made of it."""
    if isinstance(value, str):
        return value
    if isinstance(value, Real) and not isinstance(value, bool | Integral | np.bool_):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value)
