"""Encoding of tables as numbers, and the choice between regression and classification."""

from __future__ import annotations

import datetime
import warnings
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._estimator import AllOrNothing, as_floating, check_rows
from ntkit._state import COLUMNS, Declared, Many, Part
from ntkit._validation import check_int, describe
from ntkit.tables._columns import (
    Categories,
    Column,
    Number,
    Unused,
    as_frame,
    check_frame,
    fit_column,
    fit_number,
    has_names,
    to_numbers,
)
from ntkit.tables._dates import Date
from ntkit.tables._numerals import STYLES

_MAX_WHOLE_CLASSES = 20  # more distinct whole numbers are a regression target
_MAX_SHOWN = 5  # values or columns listed in a message


class TableEncoder(Declared, AllOrNothing, TransformerMixin, BaseEstimator):
    """Encode a data frame as a float32 matrix: numbers unchanged, text one-hot, dates as trend and cycles.

    - Numbers. A missing number becomes the mean of the column in `fit`. If numbers are missing in `fit`, another
      column is 1 where the number is missing. Booleans are numbers, and durations are days. A column of text is read as
      numbers if all its values are numbers, with decimal points, with decimal commas (``1.234,5``) or with commas
      between thousands (``1,234.5``). Text that consists of at most `max_categories` distinct whole numbers stays text,
      because it may be a code.
    - Text and categories. Each level gets an indicator column, and missing is a level. If there are more than
      `max_categories` levels, the rarest ones share a column.
    - Dates, also as text (``2024-12-31``, ``31.12.2024``, ``12/31/2024``, with or without a time). The columns are the
      time in years, sines and cosines of the day of the year, of the weekday and of the time of day, and an indicator
      of weekends. Columns that do not vary in `fit` are left out. Missing dates get an indicator column.

    A column of text looks like an identifier if it has more than `max_categories` levels and more than half as many
    levels as rows. It is left out with a warning. Whole numbers that increase from row to row are used with a warning,
    because they may be keys. Lists, other objects and infinite numbers raise an error.

    `transform` finds the columns by name, in any order, and ignores other columns. A level that `fit` has not seen is
    encoded as zeros, or in the shared column of rare levels if there is one; a warning names the column and the levels.
    A number that is missing in a column without missing numbers in `fit` becomes the mean.

    Parameters
    ----------
    max_categories : int, default=50
        Maximum number of levels of a column. The most frequent levels are kept; all others share one column.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The columns of an array of numbers are named x0, x1, …. Data frames may be from pandas or from polars (which needs
    pyarrow). float32 keeps seven digits. Therefore the mean is subtracted from a column whose range is less than 10⁻⁴
    of its mean, such as a time in seconds since 1970.

    Examples
    --------
    >>> import pandas as pd
    >>> from ntkit.tables import TableEncoder
    >>> frame = pd.DataFrame({"width": [1.0, None, 3.0], "colour": ["red", "blue", "red"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.get_feature_names_out().tolist()
    ['width', 'width=(missing)', 'colour=blue', 'colour=red']
    >>> encoder.transform(frame)
    array([[1., 0., 0., 1.],
           [2., 1., 1., 0.],
           [3., 0., 0., 1.]], dtype=float32)
    """

    _state: ClassVar[dict[str, Any]] = {
        **COLUMNS,
        "_columns": Many(Part(Number, Categories, Date, Unused), "n_features_in_"),
    }

    def __init__(self, *, max_categories: int = 50):
        self.max_categories = max_categories

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn means and levels.

        Parameters
        ----------
        X : data frame or array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self
        """
        max_levels = check_int(self.max_categories, "max_categories", type(self).__name__, minimum=1)
        with self._all_or_nothing():
            frame = as_frame(X)
            columns: list[Column]
            if frame is None or not has_names(frame):
                X = self._check_array(X, reset=True)
                columns = [fit_number(f"x{i}", X[:, i]) for i in range(X.shape[1])]
                self.__dict__.pop("feature_names_in_", None)
            else:
                columns = [fit_column(frame[name], name, max_levels) for name in check_frame(frame)]
                if not any(column.names for column in columns):
                    raise ValueError(
                        f"The table has no column to learn from: {_shown([column.name for column in columns])} hold "
                        "only identifiers, free text or a single date. Add other columns."
                    )
                self.feature_names_in_ = np.array(list(frame.columns), dtype=object)
            self.n_features_in_ = len(columns)
            self._columns = columns
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Encode rows.

        Parameters
        ----------
        X : data frame or array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of float32 of shape (n_samples, n_features_out)
        """
        check_is_fitted(self)
        columns = self._rows(X)
        n_rows = len(columns[0])
        out = np.empty((n_rows, sum(len(spec.names) for spec in self._columns)), dtype=np.float32)
        start, unseen = 0, {}
        used = [spec for spec in self._columns if not isinstance(spec, Unused)]
        for spec, column in zip(used, columns, strict=True):
            part = out[:, start : start + len(spec.names)]
            if isinstance(spec, Number):
                spec.put(to_numbers(column, spec.name, spec.style), part)
            elif new := spec.put(column, part):
                unseen[spec.name] = new
            start += len(spec.names)
        _warn_of_unseen(unseen)
        return out

    def _rows(self, X: Any) -> Any:
        """Return the columns of `X` that are used, in the order of `fit`."""
        owner = type(self).__name__
        frame = as_frame(X)
        if not hasattr(self, "feature_names_in_"):
            return self._check_array(X, reset=False).T
        if frame is None or not has_names(frame):
            others = [spec.name for spec in self._columns if not isinstance(spec, Number)]
            if others:
                raise TypeError(
                    f"This {owner} was fitted on a data frame with columns of text or dates such as '{others[0]}', and "
                    f"needs data frames. Got {describe(X)}."
                )
            return self._check_array(X, reset=False).T
        names = [spec.name for spec in self._columns if not isinstance(spec, Unused)]
        missing = [name for name in names if name not in frame.columns]
        if missing:
            plural = "s" * (len(missing) > 1)
            raise ValueError(
                f"The table lacks the column{plural} {', '.join(map(repr, missing))}, which the training table has."
            )
        check_frame(frame[names])
        return [frame[name] for name in names]

    def _check_array(self, X: Any, *, reset: bool) -> np.ndarray:
        return as_floating(_array.to_numpy(check_rows(self, X, reset=reset, missing=True)))

    def get_source_names_out(self) -> np.ndarray:
        """Return the name of the table column that each feature comes from.

        Returns
        -------
        ndarray of str, of shape (n_features_out,)
        """
        check_is_fitted(self)
        return np.array([spec.name for spec in self._columns for _ in spec.names], dtype=object)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the features: ``width``, ``width=(missing)``, ``colour=red``, ``colour=(other)``.

        Parameters
        ----------
        input_features : array of str, optional
            Names of the columns, if `fit` saw an array.

        Returns
        -------
        ndarray of str
        """
        check_is_fitted(self)
        specs = self._columns
        if input_features is not None:
            names = np.asarray(input_features, dtype=object)
            if hasattr(self, "feature_names_in_") and not np.array_equal(self.feature_names_in_, names):
                raise ValueError("input_features is not equal to feature_names_in_")
            if len(names) != self.n_features_in_:
                raise ValueError(
                    f"input_features should have length equal to number of features ({self.n_features_in_}), got "
                    f"{len(names)}"
                )
            return np.array(
                [new + name[len(s.name) :] for s, new in zip(specs, names, strict=True) for name in s.names],
                dtype=object,
            )
        return np.array([name for spec in specs for name in spec.names], dtype=object)

    @property
    def source_names_(self) -> list[str]:
        """Names of all columns of the table, including unused ones."""
        check_is_fitted(self)
        return [spec.name for spec in self._columns]

    @property
    def text_columns_(self) -> list[str]:
        """Names of the columns that are read as text: categories, dates in text, numbers with commas."""
        check_is_fitted(self)
        specs = self._columns
        texts = [s for s in specs if isinstance(s, Categories) or (isinstance(s, Date) and s.format)]
        return [s.name for s in specs if s in texts or (isinstance(s, Number) and s.style != STYLES[0])]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        """Raise unless the columns have distinct names, equal to ``feature_names_in_``."""
        check_int(self.max_categories, "max_categories", type(self).__name__, minimum=1)
        names = [column.name for column in self._columns]
        seen = getattr(self, "feature_names_in_", None)
        if len(set(names)) < len(names) or (seen is not None and seen.tolist() != names):
            raise ValueError(f"The columns of a {type(self).__name__} must be distinct and equal to feature_names_in_")


def _warn_of_unseen(unseen: dict[str, list[str]]) -> None:
    """Warn of all levels that `fit` has not seen, in one message."""
    if unseen:
        parts = [f"'{name}' ({_shown(values)})" for name, values in unseen.items()]
        warnings.warn(
            f"Values that fit has not seen in the column{'s' * (len(parts) > 1)} {_shown(parts, quoted=False)}: "
            "the model knows nothing about them. Correct them, or fit again with rows that have them.",
            stacklevel=3,
        )


def _shown(values: list[str], *, quoted: bool = True) -> str:
    """List the first values for a message."""
    shown = [f"'{value}'" if quoted else value for value in values[:_MAX_SHOWN]]
    return ", ".join(shown) + (f" and {len(values) - _MAX_SHOWN} more" * (len(values) > _MAX_SHOWN))


def infer_task(y: Any) -> str:
    """Choose "classification" or "regression" by the values of a target.

    Text, booleans and categories are classes. Numbers with fractions are a regression target. Whole numbers are classes
    if at most two are distinct, or if at most 20 are distinct and there are at least 20 rows per distinct number.

    Parameters
    ----------
    y : array of shape (n_samples,)

    Returns
    -------
    str

    Examples
    --------
    >>> import numpy as np
    >>> infer_task(np.array(["yes", "no", "yes"])), infer_task(np.array([0.5, 1.5]))
    ('classification', 'regression')
    >>> infer_task(np.arange(1000) % 10), infer_task(np.arange(1000))
    ('classification', 'regression')
    """
    return explain_task(y)[0]


def explain_task(y: Any) -> tuple[str, str]:
    """Return the task and the reason for it."""
    y = np.asarray(y)
    if y.dtype.kind in "Mm" or (y.dtype.kind == "O" and any(isinstance(v, datetime.date) for v in y)):
        raise TypeError("The target holds dates or times. Convert it to numbers, such as days since a fixed date.")
    if y.dtype.kind not in "iuf":
        try:
            plain = y.dtype.kind == "O" and not any(isinstance(v, str | bool | np.bool_) for v in y)
            y = y.astype(np.float64) if plain else y
        except (TypeError, ValueError):
            raise TypeError("The target must hold numbers or text. Convert it.") from None
    if y.dtype.kind not in "iuf":
        return "classification", "the target is text" if y.dtype.kind != "b" else "the target is true or false"
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        return "regression", "the target has fractions"
    n_distinct = len(np.unique(y))
    reason = f"the target has {n_distinct} distinct whole numbers in {len(y)} rows"
    if n_distinct <= 2 or n_distinct <= min(_MAX_WHOLE_CLASSES, len(y) / 20):
        return "classification", reason
    return "regression", reason
