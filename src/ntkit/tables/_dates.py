"""Columns of dates and times: their encoding, and the formats of dates in text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkit import _state
from ntkit._validation import describe

ISO = "ISO8601"
_LOOKS_LIKE_DATE = re.compile(r"\s*\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?\s*")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
FORMATS = ("", ISO, *(day + time for day in _DAYS for time in _TIMES))
"""Formats of dates in text; "" for columns of dates that are not text."""
_YEAR, _DAY = 365.2425, 86400.0  # days, seconds
PARTS = ("years", "season", "weekday", "weekend", "time")
"""The trend in years; day of the year, weekday and time of day as angles; an indicator of Saturday and Sunday."""
_ANGLES = ("season", "weekday", "time")


@dataclass(frozen=True)
class Date(_state.Declared):
    """A column of dates: those of its `PARTS` that vary in the training rows and, if `missing`, an indicator.

    ``years`` is the time since the mean date in years. An angle φ becomes the columns sin φ and cos φ. Missing dates
    are 0 in all of them.
    """

    _state = {  # noqa: RUF012
        "name": _state.Text(),
        "format": _state.Text(FORMATS),
        "mean": _state.Real(),
        "parts": _state.Many(_state.Text(PARTS)),
        "missing": _state.Flag(),
    }
    name: str
    format: str
    mean: float  # days since 1970
    parts: tuple[str, ...]
    missing: bool

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        found = [
            f"{self.name}={part}{end}"
            for part in self.parts
            for end in ((" sin", " cos") if part in _ANGLES else ("",))
        ]
        return [*found, f"{self.name}=(missing)"] if self.missing else found

    def put(self, column: Any, out: np.ndarray) -> None:
        """Write the encoded columns to `out`."""
        days = to_days(column, self.name, self.format)
        missing = np.isnan(days)
        values = _part_values(np.where(missing, self.mean, days), self.mean)
        index = 0
        for part in self.parts:
            columns = [np.sin(values[part]), np.cos(values[part])] if part in _ANGLES else [values[part]]
            for each in columns:
                out[:, index] = np.where(missing, 0.0, each)
                index += 1
        if self.missing:
            out[:, index] = missing


def _part_values(days: np.ndarray, mean: float) -> dict[str, np.ndarray]:
    dates = np.floor(days).astype("datetime64[D]")
    start = dates.astype("datetime64[Y]")
    day_of_year = (dates - start.astype("datetime64[D]")).astype(np.float64) + (days - np.floor(days))
    weekday = (np.floor(days) + 3) % 7  # 1 January 1970 was a Thursday; 0 is Monday
    return {
        "years": (days - mean) / _YEAR,
        "season": 2 * np.pi * day_of_year / _YEAR,
        "weekday": 2 * np.pi * weekday / 7,
        "weekend": (weekday >= 5).astype(np.float64),
        "time": 2 * np.pi * (days - np.floor(days)),
    }


def fit_date(column: Any, name: str, date_format: str) -> Date:
    """Learn the mean date and which parts of the dates vary."""
    days = to_days(column, name, date_format)
    present = days[~np.isnan(days)]
    mean = float(present.mean()) if present.size else 0.0
    values = _part_values(present, mean)
    varying = [part for part in PARTS if present.size and np.ptp(values[part]) > 0]
    if present.size and np.ptp(present) <= 1:  # all dates lie within one day
        varying = [part for part in varying if part in ("years", "time")]
    return Date(name, date_format, mean, tuple(varying), bool(present.size < days.size))


def to_days(column: Any, name: str, date_format: str) -> np.ndarray:
    """Convert dates to days since 1970, with fractions, NaN where missing. Times with a zone are converted to UTC."""
    import pandas as pd

    kind = getattr(column.dtype, "kind", "O")
    if kind in "biufm":
        raise TypeError(
            f"The column '{name}' must hold dates, as in the training table. Got dtype {column.dtype}. Convert it."
        )
    if kind != "M" and any(isinstance(value, str) for value in column.dropna()):
        date_format = date_format or ISO  # the format in which data frames write dates to CSV files
        values = column.astype(object).where(column.notna(), None)
        parsed = pd.to_datetime(values, format=date_format, errors="coerce", utc=True)
        bad = (parsed.isna() & column.notna()).to_numpy()
        if bad.any():
            row = column.index[int(bad.argmax())]
            like = "2024-12-31" if date_format == ISO else pd.Timestamp(2024, 12, 31).strftime(date_format)
            raise ValueError(
                f"The column '{name}' must hold dates written like {like}, as in the training table. Got "
                f"{describe(column[row])} in row {row}. Correct it, or leave it empty if the date is missing."
            )
        column = parsed
    stamps = pd.to_datetime(column, utc=True, errors="coerce")
    seconds = stamps.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(seconds), np.nan, seconds.astype(np.float64) / (1e6 * _DAY))


def date_format_of(texts: Sequence[str], name: str) -> str | None:
    """Return the format in which all texts are dates, or None. Warn if several formats are possible."""
    import pandas as pd

    if not texts or not all(_LOOKS_LIKE_DATE.fullmatch(text) for text in texts):
        return None
    values = pd.Series(list(texts), dtype=object)

    def fits(form: str) -> bool:
        return bool(pd.to_datetime(values, format=form, errors="coerce", utc=True).notna().all())

    if fits(ISO):
        return ISO
    found = [form for form in FORMATS[2:] if fits(form)]
    if len(found) > 1:
        first, second = (pd.Timestamp(2024, 12, 31).strftime(form) for form in found[:2])
        warnings.warn(
            f"The dates of the column '{name}', such as '{texts[0]}', can be read in two ways: 31 December 2024 "
            f"would be {first} or {second}. The first format is used. Write dates as 2024-12-31 to be sure.",
            stacklevel=2,
        )
    return found[0] if found else None
