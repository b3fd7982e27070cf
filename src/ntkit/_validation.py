"""Argument checks with one error template.

Every message names the argument, the rule, the value received and, unless it is obvious, the remedy:
"The 'depth' parameter of ntk must be an int ≥ 1. Got 0 instead."
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array


def describe(value: object) -> str:
    """Describe a value briefly for an error message."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    if hasattr(value, "iloc") and hasattr(value, "shape") and not isinstance(value, type):
        return f"{type(value).__name__} of shape {value.shape}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def message(owner: str, name: str, rule: str, value: object, remedy: str = "") -> str:
    """Compose an error message from the argument, the rule, the value received and the remedy."""
    text = f"The '{name}' parameter of {owner} must be {rule}. Got {describe(value)} instead."
    return f"{text} {remedy}" if remedy else text


def check_int(value: object, name: str, owner: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return `value` as an int, or raise an error that states the allowed range."""
    rule = "an int"
    if minimum is not None and maximum is not None:
        rule = f"an int from {minimum} to {maximum}"
    elif minimum is not None:
        rule = f"an int ≥ {minimum}"
    elif maximum is not None:
        rule = f"an int ≤ {maximum}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(message(owner, name, rule, value))
    number = int(value)
    too_small = minimum is not None and number < minimum
    if too_small or (maximum is not None and number > maximum):
        raise ValueError(message(owner, name, rule, value))
    return number


def check_real(
    value: object,
    name: str,
    owner: str,
    *,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    strict: bool = False,
) -> float:
    """Return `value` as a finite float ≥ `minimum` (> with `strict`) and ≤ `maximum`, or raise an error."""
    rule = "a finite real number"
    if minimum > -math.inf:
        rule += f" {'>' if strict else '≥'} {minimum:g}"
    if maximum < math.inf:
        rule += f" and ≤ {maximum:g}"
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(message(owner, name, rule, value))
    number = float(value)
    if not (math.isfinite(number) and minimum <= number <= maximum) or (strict and number == minimum):
        raise ValueError(message(owner, name, rule, value))
    return number


def check_bool(value: object, name: str, owner: str) -> bool:
    """Return `value` as a bool, or raise an error."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(message(owner, name, "True or False", value))
    return bool(value)


def check_choice(value: Any, name: str, owner: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`, or raise an error that lists them."""
    rule = "one of " + ", ".join(repr(c) for c in choices)
    if not isinstance(value, str):
        raise TypeError(message(owner, name, rule, value))
    if value not in choices:
        raise ValueError(message(owner, name, rule, value))
    return value


def check_data(
    X: Any, name: str, owner: str, *, ndims: Sequence[int] = (2,), sparse: bool = False, missing: bool = False
) -> Array:
    """Return `X` as a finite real array with an allowed number of axes. torch tensors and CSR keep their type.

    With `missing`, NaN is allowed and marks a missing value. Dense arrays keep their dtype, integers included (their
    kernels are float64). CSR rows become floating point.
    """
    X = real_array(X, name, owner, sparse=sparse)
    if X.ndim not in ndims:
        raise ValueError(_rank_message(X, name, owner, ndims))
    if 0 in X.shape:
        what = "sample" if X.shape[0] == 0 else "feature"
        found = f"Found 0 {what}(s) (shape={tuple(X.shape)}) while a minimum of 1 is required."
        raise ValueError(message(owner, name, "non-empty, with at least one row and one feature", X, found))
    _check_finite(X, name, owner, missing=missing)
    return X


def real_array(X: Any, name: str, owner: str, *, sparse: bool = False, canonical: bool = True) -> Array:
    """Return `X` as an array of real numbers; sparse rows become CSR, without duplicate entries if `canonical`."""
    return _as_real(_as_array(X, name, owner, sparse=sparse, canonical=canonical), name, owner)


def refuse_lossy(X: Any, name: str, owner: str) -> None:
    """Raise for arrays that a conversion would silently change: masked arrays, dates, special tensors."""
    rows = X if isinstance(X, list | tuple) else [X]
    if any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in rows):
        remedy = f"Fill or impute them: {name}.filled(0) or sklearn.impute.SimpleImputer."
        raise ValueError(message(owner, name, "free of masked entries", X, remedy))
    if _array.is_numpy(X) and X.dtype.kind in "mM":
        raise TypeError(message(owner, name, "an array of real numbers", X, _DATES))
    if _array.is_torch(X):
        for found, kind, remedy in (
            (X.is_nested, "nested", "Pad it: torch.nested.to_padded_tensor."),
            (str(X.layout) != "torch.strided", "sparse", "Call .to_dense() on it."),
            (X.is_quantized, "quantized", "Call .dequantize() on it."),
            (X.device.type == "meta", "meta", "It holds no values; create it on another device."),
        ):
            if found:
                raise TypeError(
                    f"The '{name}' parameter of {owner} must be a dense tensor with numbers. Got a {kind} tensor of "
                    f"dtype {X.dtype} instead. {remedy}"
                )


def refuse_complex(X: Any, name: str, owner: str) -> None:
    """Raise a ValueError for complex numbers, as scikit-learn's estimators do."""
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise ValueError(message(owner, name, "an array of real numbers", X, COMPLEX))


def check_same_kind(X: Array, Y: Array, owner: str) -> None:
    """Raise unless `X` and `Y` share the array library, the device and the shape of a row."""
    check_same_library(X, Y, owner)
    if tuple(X.shape[1:]) != tuple(Y.shape[1:]):
        raise ValueError(
            f"X and Y of {owner} must have rows of the same shape. Got {tuple(X.shape[1:])} and {tuple(Y.shape[1:])}."
        )


def check_same_library(X: Array, Y: Array, owner: str, names: str = "X and Y") -> None:
    """Raise unless `X` and `Y` share the array library and the device."""
    families = (_array.is_numpy, _array.is_torch, _array.is_sparse)
    if type(X) is not type(Y) and not any(belongs(X) and belongs(Y) for belongs in families):
        raise TypeError(
            f"{names} of {owner} must come from the same array library. Got {type(X).__module__}."
            f"{type(X).__name__} and {type(Y).__module__}.{type(Y).__name__}; convert one of them."
        )
    if not _array.is_sparse(X) and _array.device(X) != _array.device(Y):
        raise ValueError(
            f"{names} of {owner} must be on the same device. Got {_array.device(X)} and "
            f"{_array.device(Y)}; move one with .to(device)."
        )


COMPLEX = "Complex data not supported: take the real part, or both parts as columns."
_DATES = "Convert dates and times, for example to days: (dates - start) / np.timedelta64(1, 'D')."
TABLES = "TableRegressor and TableClassifier accept text, categories, dates and missing values directly."
_TEXT = f"Encode categories and strings as numbers, or use a model that does: {TABLES}"
_NOT_NUMBERS = (str, bytes, np.datetime64, np.timedelta64)  # refused, although float() accepts some of them


def _as_array(X: Any, name: str, owner: str, *, sparse: bool, canonical: bool) -> Array:
    if X is None:  # NumPy would convert it to NaN
        raise TypeError(message(owner, name, "an array of real numbers", X))
    if _array.is_sparse(X):
        if not sparse:
            raise TypeError(
                message(
                    owner, name, "a dense array, not a sparse one", X, "Call .toarray() on it if it fits in memory."
                )
            )
        rows = X.tocsr()
        if canonical and not rows.has_canonical_format:
            rows = rows.copy() if rows is X else rows  # do not modify the caller's array
            rows.sum_duplicates()
        return rows
    refuse_lossy(X, name, owner)
    if _array.is_dask(X):
        raise TypeError(message(owner, name, "an array in memory", X, "Call .compute() on it."))
    if isinstance(X, np.ma.MaskedArray):
        return X.data
    if isinstance(X, np.matrix):
        return np.asarray(X)
    if _array.is_array(X):
        return X
    if hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2:
        return _frame_values(X, name, owner)
    try:
        return np.asarray(X)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(message(owner, name, "an array with rows of equal length", X)) from error


def _frame_values(frame: Any, name: str, owner: str) -> np.ndarray:
    """Return the values of a numeric data frame, with NaN for missing values."""
    if all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in frame.dtypes):
        return frame.to_numpy() if len(frame.columns) else np.empty((len(frame), 0))
    columns = []
    for i, (label, dtype) in enumerate(frame.dtypes.items()):
        column = frame.iloc[:, i]
        nullable = not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "O") in "biuf"
        values = column.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else np.asarray(column)
        try:
            columns.append(_as_real(values, name, owner))
        except (TypeError, ValueError) as error:
            dates = getattr(dtype, "kind", "O") in "mM"
            raise type(error)(
                f"The column {label!r} of '{name}' must hold real numbers for {owner}. Got dtype {dtype} instead. "
                + (f"{_DATES} {TABLES}" if dates else _TEXT)
            ) from error
    return np.column_stack(columns)


def _as_real(X: Array, name: str, owner: str) -> Array:
    rule = "an array of real numbers"
    if not (_array.is_sparse(X) or _array.is_numpy(X)):
        xp = _array.namespace(X)
        if xp.isdtype(X.dtype, ("bool", "integral", "real floating")):
            return X
        kind = "c" if xp.isdtype(X.dtype, "complex floating") else "O"
    else:
        kind = X.dtype.kind
        if kind == "f" and X.dtype.itemsize <= 8:
            return X if X.dtype.isnative else X.astype(X.dtype.newbyteorder("="))
        if kind in "biuf":
            whole = kind != "f" and not _array.is_sparse(X) and X.dtype.isnative
            with np.errstate(over="ignore"):  # long doubles; infinity is detected later
                return X if whole else X.astype(np.float64)
        if kind == "O":
            return _real_objects(X, name, owner)
    remedy = COMPLEX if kind == "c" else _DATES if kind in "mM" else _TEXT
    raise TypeError(message(owner, name, rule, X, remedy))


def _real_objects(X: np.ndarray, name: str, owner: str) -> np.ndarray:
    """Convert an object array to float64; None becomes NaN."""
    rule = "an array of real numbers"
    others = [x for x in X.flat if isinstance(x, _NOT_NUMBERS)]
    if others:
        other = next((x for x in others if not _is_numeral(x)), others[0])
        raise TypeError(message(owner, name, f"{rule}, without entries such as {describe(other)}", X, _TEXT))
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, OverflowError) else TypeError
        raise kind(message(owner, name, rule, X, f"An entry cannot be converted: {error}.")) from error


def _is_numeral(x: Any) -> bool:
    """Whether a string spells a number."""
    try:
        float(x)
    except (TypeError, ValueError):
        return False
    return True


def _rank_message(X: Array, name: str, owner: str, ndims: Sequence[int]) -> str:
    layouts = {1: "1-D (n_samples,)", 2: "2-D (n_samples, n_features)", 4: "4-D (n_samples, height, width, channels)"}
    rule = " or ".join(layouts[n] for n in ndims)
    remedy = ""
    if X.ndim == 1 and 2 in ndims:
        remedy = "Reshape your data: X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one row."
    elif X.ndim == 3 and 4 in ndims:
        remedy = "Use X[..., None] for images of one channel or X[None] for one image."
    return message(owner, name, rule, X, remedy)


def _check_finite(X: Array, name: str, owner: str, *, missing: bool) -> None:
    if _array.all_finite(X):
        return
    values = X.data if _array.is_sparse(X) else X
    xp = _array.namespace(values)
    bad = xp.nonzero(xp.isinf(values) if missing else ~xp.isfinite(values))
    if not bad[0].shape[0]:
        return
    where = "" if _array.is_sparse(X) else f" at index {tuple(int(i[0]) for i in bad)}"
    value = float(values[tuple(int(i[0]) for i in bad)])
    remedy = "" if missing or name != "X" else f" {TABLES}"
    raise ValueError(
        f"The '{name}' parameter of {owner} must be finite. Got {value}{where}, and {int(bad[0].shape[0])} such "
        f"entries in all. Input {name} contains {'' if missing else 'NaN or '}infinity: drop these rows or impute them "
        f"(sklearn.impute.SimpleImputer).{remedy}"
    )


def check_overflow(Z: Array, X: Array, owner: str, what: str = "features", of: str = "entries") -> None:
    """Raise unless all entries of Z, computed from X, are finite. Otherwise the entries of X are too large.

    The message calls the entries of Z `what` and the entries of X `of`.
    """
    if _array.all_finite(Z):
        return
    raise ValueError(
        f"The 'X' parameter of {owner} must have entries small enough that the {what} are finite in {Z.dtype}. Got "
        f"{of} up to {_array.largest(X):.3g} instead. Scale the columns first with ArcsinhScaler or "
        "sklearn.preprocessing.StandardScaler, and use float64."
    )
