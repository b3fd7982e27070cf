"""Columns of tables: what is learned about them and how they become numbers."""

from __future__ import annotations

import datetime
import warnings
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np

from ntkit import _state
from ntkit._validation import describe, message
from ntkit.tables._dates import Date, date_format_of, fit_date
from ntkit.tables._numerals import STYLES, is_numeral, numeral_style, to_float

_LARGEST = float(np.finfo(np.float32).max)
_FLAT = 1e-4  # a column that varies by less than this part of its size loses digits in float32
_MOST_RARE = 10_000  # levels that are kept only to tell them from those that come later
_FEWEST_KEYS = 50  # rows from which on increasing whole numbers look like keys


@dataclass(frozen=True)
class Number(_state.Declared):
    """A column of numbers: its mean stands for missing values, `missing` adds a column that tells where.

    `style` says how they are written where they are text.
    """

    _state = {  # noqa: RUF012
        "name": _state.Text(),
        "mean": _state.Real(),
        "offset": _state.Real(),
        "missing": _state.Flag(),
        "style": _state.Text(STYLES),
    }
    name: str
    mean: float
    offset: float
    missing: bool
    style: str = STYLES[0]

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
    """A column of text or categories: one column for each level (None: missing), one for all others if `other`.

    `rare` are the levels among the others, if they are not too many to keep; else there are none.
    """

    _state = {  # noqa: RUF012
        "name": _state.Text(),
        "levels": _state.Many(_state.Optional(_state.Text())),
        "other": _state.Flag(),
        "rare": _state.Many(_state.Text()),
    }
    name: str
    levels: tuple[str | None, ...]
    other: bool
    rare: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns made of it."""
        levels = ["(missing)" if level is None else level for level in self.levels]
        return [f"{self.name}={level}" for level in levels + ["(other)"] * self.other]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"The levels of the column {describe(self.name)} must be distinct")

    def put(self, column: Any, out: np.ndarray) -> list[str]:
        """Write the columns made of it; values that `fit` has not seen."""
        codes, distinct = _factorize(column, self.name)
        number = {level: i for i, level in enumerate(self.levels)}
        rest = len(self.levels) if self.other else -1
        place = np.array([number.get(level, rest) for level in (*distinct, None)])[codes]
        out[:] = 0.0
        seen = np.flatnonzero(place >= 0)
        out[seen, place[seen]] = 1.0
        if self.other and not self.rare:  # too many to know them all
            return []
        known = {*self.levels, *self.rare}
        return [level for level in distinct if level not in known]


@dataclass(frozen=True)
class Unused(_state.Declared):
    """A column that nothing is made of: an identifier, or free text."""

    _state = {"name": _state.Text()}  # noqa: RUF012
    name: str
    names = ()


Column = Number | Text | Date | Unused


def as_frame(X: Any) -> Any:
    """A pandas data frame, also of an array with text; None for arrays of numbers."""
    if hasattr(X, "to_pandas") and not hasattr(X, "iloc"):
        try:
            X = X.to_pandas()
        except ImportError as error:  # polars needs pyarrow for it
            raise ImportError(f"Data frames of polars need pyarrow: pip install 'ntkit[cli]'. {error}") from error
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OU" and any(isinstance(v, str) for v in X.flat):
        import pandas as pd

        X = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).infer_objects()
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


def fit_column(column: Any, name: str, most: int) -> Column:
    """What a column of a data frame holds, with at most `most` levels."""
    kind = _kind_of(column, name)
    if kind == "number":
        _warn_of_keys(column, name)
        return fit_number(name, to_numbers(column, name))
    if kind == "date":
        return fit_date(column, name, "")
    codes, distinct = _factorize(column, name)
    if kind == "text":
        style = _style_of(distinct, name, most)
        if style is not None:
            return fit_number(name, to_numbers(column, name, style), style)
        date_format = date_format_of(distinct, name)
        if date_format is not None:
            return fit_date(column, name, date_format)
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    return _fit_levels(dict(zip(distinct, counts.tolist(), strict=True)), len(column), name, most)


def _fit_levels(levels: dict[Any, int], n_rows: int, name: str, most: int) -> Text | Unused:
    """The most frequent levels of a column, or none if nearly all values are different."""
    n_there = sum(levels.values())
    if len(levels) > max(most, n_there / 2):
        _warn_of_identifier(name, list(levels), n_there)
        return Unused(name)
    if n_there < n_rows:
        levels[None] = n_rows - n_there
    ordered = sorted(levels, key=lambda level: (-levels[level], level is None, level or ""))
    kept = sorted(ordered[:most], key=lambda level: (level is None, level or ""))
    rare = tuple(level for level in ordered[most:] if level is not None)
    return Text(name, tuple(kept), len(kept) < len(levels), rare if len(rare) <= _MOST_RARE else ())


def _style_of(distinct: list[str], name: str, most: int) -> str | None:
    """How a column of text writes numbers; None if it holds categories: few whole numbers may be codes."""
    style = numeral_style(distinct)
    if style == "point" and len(distinct) <= most and all(text.strip().lstrip("+-").isdecimal() for text in distinct):
        return None
    if style != "either":
        return style
    example = next(text for text in distinct if "," in text)
    warnings.warn(
        f"The numbers of the column '{name}', such as '{example}', can be read in two ways. The comma is taken to "
        "separate thousands. Write numbers without it to be sure.",
        stacklevel=2,
    )
    return "thousands"


def fit_number(name: str, values: np.ndarray, style: str = STYLES[0]) -> Number:
    """Mean of a column of numbers, and whether some are missing."""
    values = _finite(values, name).astype(np.float64, copy=False)
    there = values[~np.isnan(values)]
    mean = float(there.mean()) if there.size else 0.0
    spread = float(np.ptp(there)) if there.size else 0.0
    offset = mean if spread > 0 and spread < _FLAT * abs(mean) else 0.0
    return Number(name, mean, offset, there.size < values.size, style)


def _warn_of_identifier(name: str, distinct: list[str], n_rows: int) -> None:
    """Warn of a column whose values are nearly all different; raise if they are numbers with some words among them."""
    words = [level for level in distinct if not is_numeral(level)]
    if len(words) < len(distinct) / 2:
        raise ValueError(
            f"The column '{name}' is mostly numbers, but has text such as '{words[0] if words else ''}' among them. "
            f"Correct it or leave it empty where the number is missing. Or leave it out: {_drop(name)}."
        )
    warnings.warn(
        f"The column '{name}' has {len(distinct)} different values in {n_rows} rows, such as '{distinct[0]}': it looks "
        f"like an identifier or free text, and is not used. To leave it out yourself: {_drop(name)}.",
        stacklevel=2,
    )


def _warn_of_keys(column: Any, name: str) -> None:
    """Warn of whole numbers that increase from row to row: they are used, but may mean nothing."""
    if getattr(column.dtype, "kind", "O") not in "iu" or len(column) < _FEWEST_KEYS or column.hasnans:
        return
    values = column.to_numpy()
    if (values[1:] > values[:-1]).all():
        warnings.warn(
            f"The column '{name}' holds whole numbers that increase from row to row, like keys of a database. It is "
            f"used as a number. If it means nothing, leave it out: {_drop(name)}.",
            stacklevel=2,
        )


def _drop(name: str) -> str:
    return f"frame.drop(columns=['{name}'])"


def _kind_of(column: Any, name: str) -> str:
    """What a column holds: "number" (booleans and durations too), "date", "text" or "category"; refuses all else."""
    import pandas as pd

    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype | pd.StringDtype):
        return "category" if isinstance(dtype, pd.CategoricalDtype) else "text"
    kind = getattr(dtype, "kind", "O")
    if kind != "O":
        if kind in "biufmM":
            return "date" if kind == "M" else "number"
        raise TypeError(_object_message(name, str(dtype)))
    types = set(map(type, column.dropna()))
    if types and all(issubclass(t, datetime.date) for t in types):
        return "date"
    numbers = {t for t in types if issubclass(t, Real | Decimal | np.bool_ | datetime.timedelta)}
    others = types - numbers - {t for t in types if issubclass(t, str)}
    if others:
        raise TypeError(_object_message(name, next(iter(others)).__name__))
    return "number" if types == numbers else "text"


def _object_message(name: str, what: str) -> str:
    return (
        f"The column '{name}' holds objects of type {what}, not numbers, text or dates. Convert it or leave it out: "
        f"{_drop(name)}."
    )


def to_numbers(column: Any, name: str, style: str = STYLES[0]) -> np.ndarray:
    """A column as floating-point numbers, NaN where missing; durations in days, text as `style` says."""
    if isinstance(column, np.ndarray):
        return _finite(column, name)
    kind = getattr(column.dtype, "kind", "O")
    if kind == "m":
        return (column.dt.total_seconds() / 86400).to_numpy(dtype=np.float64, na_value=np.nan)
    if kind in "biuf":
        return _finite(column.to_numpy(dtype=np.float64, na_value=np.nan), name, column)
    if _kind_of(column, name) == "date":  # which also refuses objects
        raise TypeError(f"The column '{name}' holds dates, but held numbers in the table fitted on. Convert it.")
    codes, distinct = _factorize(column, name, as_text=False)
    table = np.full(len(distinct) + 1, np.nan)
    for i, value in enumerate(distinct):
        try:
            if isinstance(value, datetime.timedelta):
                table[i] = value.total_seconds() / 86400
            else:
                table[i] = to_float(value, style) if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"The column '{name}' must hold numbers, as in the table fitted on. Got {describe(value)} in "
                f"{_row(column, codes == i)}. Correct it, or leave it empty where the number is missing."
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
