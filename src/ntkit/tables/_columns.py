"""Columns of numbers and categories: what `fit` learns about a column, and how it is encoded."""

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
# A column whose range is below this fraction of its mean is centred, as float32 would lose its digits.
_MIN_RELATIVE_RANGE = 1e-4
_MAX_RARE_LEVELS = 10_000  # rare levels that are stored, to tell them from levels that `fit` has not seen
_MIN_KEY_ROWS = 50  # rows from which on increasing whole numbers are reported as possible keys


@dataclass(frozen=True)
class Number(_state.Declared):
    """A column of numbers. Missing values become the mean; if `missing`, a second column marks them.

    `style` is the way in which text writes the numbers.
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
        """Names of the encoded columns."""
        return [self.name, f"{self.name}=(missing)"] if self.missing else [self.name]

    def put(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the encoded columns to `out`."""
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, self.mean, values) - self.offset if missing.any() else values - self.offset
        if self.missing:
            out[:, 1] = missing


@dataclass(frozen=True)
class Categories(_state.Declared):
    """A column of text or categories. Each level gets an indicator column; the level None stands for missing values.

    If `other`, one more column marks all levels that are not in `levels`. `rare` has these levels, or is empty if they
    are too many to store.
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
        """Names of the encoded columns."""
        levels = ["(missing)" if level is None else level for level in self.levels]
        return [f"{self.name}={level}" for level in levels + ["(other)"] * self.other]

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if not self.levels or len(set(self.levels)) < len(self.levels):
            raise ValueError(f"The levels of the column {describe(self.name)} must be distinct")

    def put(self, column: Any, out: np.ndarray) -> list[str]:
        """Write the encoded columns to `out`. Return the values that `fit` has not seen."""
        codes, distinct = _factorize(column, self.name)
        positions = {level: i for i, level in enumerate(self.levels)}
        default = len(self.levels) if self.other else -1
        position = np.array([positions.get(level, default) for level in (*distinct, None)])[codes]
        out[:] = 0.0
        known_rows = np.flatnonzero(position >= 0)
        out[known_rows, position[known_rows]] = 1.0
        if self.other and not self.rare:  # the rare levels are not stored, so new ones cannot be told apart
            return []
        known = {*self.levels, *self.rare}
        return [level for level in distinct if level not in known]


@dataclass(frozen=True)
class Unused(_state.Declared):
    """A column that is not used: an identifier or free text."""

    _state = {"name": _state.Text()}  # noqa: RUF012
    name: str
    names = ()


Column = Number | Categories | Date | Unused


def as_frame(X: Any) -> Any:
    """Return a pandas data frame, also for an array with text, or None for an array of numbers."""
    if hasattr(X, "to_pandas") and not hasattr(X, "iloc"):
        try:
            X = X.to_pandas()
        except ImportError as error:  # polars needs pyarrow for it
            raise ImportError(f"Polars data frames need pyarrow: pip install 'ntkit[cli]'. {error}") from error
    if isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OU" and any(isinstance(v, str) for v in X.flat):
        import pandas as pd

        X = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])]).infer_objects()
    return X if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2 else None


def has_names(frame: Any) -> bool:
    """Tell whether a data frame has column names that are text, not only numbers."""
    return any(isinstance(name, str) for name in frame.columns)


def check_frame(frame: Any) -> list[str]:
    """Return the column names of a data frame. Raise unless they are distinct text and there are rows."""
    owner = "TableEncoder"
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        remedy = "Use frame.columns = frame.columns.astype(str)."
        raise TypeError(message(owner, "X", "a data frame whose column names are all text", names, remedy))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"The table has more than one column named '{twice}'. Column names must be distinct.")
    if len(frame) == 0:
        found = f"Found 0 sample(s) (shape={frame.shape}) while a minimum of 1 is required."
        raise ValueError(message(owner, "X", "non-empty, with at least one row", frame, found))
    return names


def fit_column(column: Any, name: str, max_levels: int) -> Column:
    """Learn how to encode a column of a data frame, with at most `max_levels` levels."""
    kind = _kind_of(column, name)
    if kind == "number":
        _warn_of_keys(column, name)
        return fit_number(name, to_numbers(column, name))
    if kind == "date":
        return fit_date(column, name, "")
    codes, distinct = _factorize(column, name)
    if kind == "text":
        style = _style_of(distinct, name, max_levels)
        if style is not None:
            return fit_number(name, to_numbers(column, name, style), style)
        date_format = date_format_of(distinct, name)
        if date_format is not None:
            return fit_date(column, name, date_format)
    counts = np.bincount(codes[codes >= 0], minlength=len(distinct))
    return _fit_levels(dict(zip(distinct, counts.tolist(), strict=True)), len(column), name, max_levels)


def _fit_levels(counts: dict[Any, int], n_rows: int, name: str, max_levels: int) -> Categories | Unused:
    """Keep the most frequent levels of a column, or none if nearly all values are different."""
    n_present = sum(counts.values())
    if len(counts) > max(max_levels, n_present / 2):
        _warn_of_identifier(name, list(counts), n_present)
        return Unused(name)
    if n_present < n_rows:
        counts[None] = n_rows - n_present
    ordered = sorted(counts, key=lambda level: (-counts[level], level is None, level or ""))
    kept = sorted(ordered[:max_levels], key=lambda level: (level is None, level or ""))
    rare = tuple(level for level in ordered[max_levels:] if level is not None)
    return Categories(name, tuple(kept), len(kept) < len(counts), rare if len(rare) <= _MAX_RARE_LEVELS else ())


def _style_of(distinct: list[str], name: str, max_levels: int) -> str | None:
    """Return how a column of text writes numbers, or None for categories. A few whole numbers may be codes."""
    style = numeral_style(distinct)
    whole = all(text.strip().lstrip("+-").isdecimal() for text in distinct)
    if style == "point" and len(distinct) <= max_levels and whole:
        return None
    if style != "either":
        return style
    example = next(text for text in distinct if "," in text)
    warnings.warn(
        f"The numbers of the column '{name}', such as '{example}', can be read in two ways. The comma is read as a "
        "thousands separator. Write the numbers without commas to be sure.",
        stacklevel=2,
    )
    return "thousands"


def fit_number(name: str, values: np.ndarray, style: str = STYLES[0]) -> Number:
    """Learn the mean of a column of numbers and whether values are missing."""
    values = _finite(values, name).astype(np.float64, copy=False)
    present = values[~np.isnan(values)]
    mean = float(present.mean()) if present.size else 0.0
    value_range = float(np.ptp(present)) if present.size else 0.0
    offset = mean if value_range > 0 and value_range < _MIN_RELATIVE_RANGE * abs(mean) else 0.0
    return Number(name, mean, offset, present.size < values.size, style)


def _warn_of_identifier(name: str, distinct: list[str], n_rows: int) -> None:
    """Warn of a column whose values are nearly all different. Raise if most of them are numbers."""
    words = [level for level in distinct if not is_numeral(level)]
    if len(words) < len(distinct) / 2:
        raise ValueError(
            f"The column '{name}' is mostly numbers, but has text such as '{words[0] if words else ''}' among them. "
            f"Correct it, leave it empty if the number is missing, or leave out the column: {_drop(name)}."
        )
    warnings.warn(
        f"The column '{name}' has {len(distinct)} different values in {n_rows} rows, such as '{distinct[0]}': it looks "
        f"like an identifier or free text, and is not used. To silence this message, leave it out: {_drop(name)}.",
        stacklevel=2,
    )


def _warn_of_keys(column: Any, name: str) -> None:
    """Warn of whole numbers that increase from row to row. They are used, but may be meaningless keys."""
    if getattr(column.dtype, "kind", "O") not in "iu" or len(column) < _MIN_KEY_ROWS or column.hasnans:
        return
    values = column.to_numpy()
    if (values[1:] > values[:-1]).all():
        warnings.warn(
            f"The column '{name}' holds whole numbers that increase from row to row, like keys of a database. It is "
            f"used as a number. If it has no meaning, leave it out: {_drop(name)}.",
            stacklevel=2,
        )


def _drop(name: str) -> str:
    return f"frame.drop(columns=['{name}'])"


def _kind_of(column: Any, name: str) -> str:
    """Return "number" (also for booleans and durations), "date", "text" or "category". Raise for other objects."""
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
        f"The column '{name}' holds objects of type {what}, not numbers, text or dates. Convert it, or leave it out: "
        f"{_drop(name)}."
    )


def to_numbers(column: Any, name: str, style: str = STYLES[0]) -> np.ndarray:
    """Convert a column to floating-point numbers, NaN where missing. Durations become days; text is read by `style`."""
    if isinstance(column, np.ndarray):
        return _finite(column, name)
    kind = getattr(column.dtype, "kind", "O")
    if kind == "m":
        return (column.dt.total_seconds() / 86400).to_numpy(dtype=np.float64, na_value=np.nan)
    if kind in "biuf":
        return _finite(column.to_numpy(dtype=np.float64, na_value=np.nan), name, column)
    if _kind_of(column, name) == "date":  # raises for objects
        raise TypeError(f"The column '{name}' holds dates, but held numbers in the training table. Convert it.")
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
                f"The column '{name}' must hold numbers, as in the training table. Got {describe(value)} in "
                f"{_row(column, codes == i)}. Correct it, or leave it empty if the number is missing."
            ) from None
    return _finite(table[codes], name, column)


def _row(column: Any, mask: np.ndarray) -> str:
    """Name the first row where `mask` is true: by its label in a data frame, by its index in an array."""
    index = int(mask.argmax())
    label = column.index[index] if hasattr(column, "index") else index
    return f"row {label}" + " (counted from 0)" * isinstance(label, Integral)


def _finite(values: np.ndarray, name: str, column: Any = None) -> np.ndarray:
    """Return `values`. Raise an error that names the row of `column` if a number is infinite or too large."""
    bad = np.abs(values) > _LARGEST
    if bad.any():
        raise ValueError(
            f"The column '{name}' has an infinite or too large number, {values[bad.argmax()]} in {_row(column, bad)}. "
            f"Number of such rows: {int(bad.sum())}. Correct it, or leave it empty if the number is missing."
        )
    return values


def _factorize(column: Any, name: str, *, as_text: bool = True) -> tuple[np.ndarray, list[Any]]:
    """Return the index of the value of each row, −1 where missing, and the distinct values."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(column)
    except TypeError as error:
        raise TypeError(f"The column '{name}' holds objects, not text. Convert it, or leave it out.") from error
    if not as_text:
        return codes, list(distinct)
    texts = [level_text(value) for value in distinct]
    positions = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    if len(positions) < len(texts):  # different values with the same text, such as 1 and 1.0
        codes = np.array([*(positions[text] for text in texts), -1])[codes]
    return codes, list(positions)


def level_text(value: Any) -> str:
    """Return a level as text. 1, 1.0 and "1" are the same level, as files may store any of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Real) and not isinstance(value, bool | Integral | np.bool_):
        number = float(value)
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value)
