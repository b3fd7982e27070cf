"""Argument checks with one error template.

Every message names the argument, the rule, the value received and, where the cure is not obvious, the
remedy:  "The 'depth' parameter of ntk must be an int ≥ 1. Got 0 instead."
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
    """Short text for a value in an error message."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def message(owner: str, name: str, rule: str, value: object, remedy: str = "") -> str:
    """Text of an argument error: argument, rule, value received, remedy."""
    text = f"The '{name}' parameter of {owner} must be {rule}. Got {describe(value)} instead."
    return f"{text} {remedy}" if remedy else text


def check_int(value: object, name: str, owner: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return `value` as an int, or raise an error that names the rule broken."""
    rule = "an int"
    if minimum is not None and maximum is not None:
        rule = f"an int from {minimum} to {maximum}"
    elif minimum is not None:
        rule = f"an int ≥ {minimum}"
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


def check_data(X: Any, name: str, owner: str, *, ndims: Sequence[int] = (2,), sparse: bool = False) -> Array:
    """Return `X` as a finite real array of an allowed rank; torch tensors and CSR stay what they are.

    Dense arrays keep their dtype, whole numbers too (their kernels are float64); CSR rows become floating.
    """
    X = real_array(X, name, owner, sparse=sparse)
    if X.ndim not in ndims:
        raise ValueError(_rank_message(X, name, owner, ndims))
    if 0 in X.shape:
        raise ValueError(message(owner, name, "non-empty, with at least one row and one feature", X))
    _check_finite(X, name, owner)
    return X


def real_array(X: Any, name: str, owner: str, *, sparse: bool = False, canonical: bool = True) -> Array:
    """Return `X` as an array of real numbers, of any rank; sparse rows as CSR, without duplicates if `canonical`."""
    return _as_real(_as_array(X, name, owner, sparse=sparse, canonical=canonical), name, owner)


def check_same_kind(X: Array, Y: Array, owner: str) -> None:
    """Raise unless `X` and `Y` come from one array library, one device and have rows of one shape."""
    check_same_library(X, Y, owner)
    if tuple(X.shape[1:]) != tuple(Y.shape[1:]):
        raise ValueError(
            f"X and Y of {owner} must have rows of the same shape. Got {tuple(X.shape[1:])} and {tuple(Y.shape[1:])}."
        )


def check_same_library(X: Array, Y: Array, owner: str, names: str = "X and Y") -> None:
    """Raise unless `X` and `Y` come from one array library and one device."""
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


def _as_array(X: Any, name: str, owner: str, *, sparse: bool, canonical: bool) -> Array:
    if X is None:  # NumPy would make it a NaN
        raise TypeError(message(owner, name, "an array of real numbers", X))
    if _array.is_sparse(X):
        if not sparse:
            raise TypeError(message(owner, name, "a dense array", X, "Call .toarray() on it if it fits in memory."))
        rows = X.tocsr()
        if canonical and not rows.has_canonical_format:
            rows = rows.copy() if rows is X else rows  # never sum duplicates in the caller's array
            rows.sum_duplicates()
        return rows
    if isinstance(X, np.ma.MaskedArray):
        if np.ma.is_masked(X):
            remedy = "Fill or impute them: X.filled(0) or sklearn.impute.SimpleImputer."
            raise ValueError(message(owner, name, "free of masked entries", X, remedy))
        return X.data
    if _array.is_torch(X) and str(X.layout) != "torch.strided":
        raise TypeError(message(owner, name, "a dense tensor", X, "Call .to_dense() on it."))
    if isinstance(X, np.matrix):
        return np.asarray(X)
    if _array.is_array(X):
        return X
    try:
        return np.asarray(X)
    except (TypeError, ValueError) as error:
        raise ValueError(message(owner, name, "an array with rows of equal length", X)) from error


def _as_real(X: Array, name: str, owner: str) -> Array:
    if _array.is_sparse(X) or _array.is_numpy(X):
        if X.dtype.kind == "f" and X.dtype.itemsize <= 8:
            return X
        if X.dtype.kind in "biuf":
            return X.astype(np.float64) if _array.is_sparse(X) or X.dtype.kind == "f" else X
        if X.dtype.kind == "O":
            try:
                return X.astype(np.float64)
            except (TypeError, ValueError):
                pass
    else:
        xp = _array.namespace(X)
        if xp.isdtype(X.dtype, ("bool", "integral", "real floating")):
            return X
    raise TypeError(message(owner, name, "an array of real numbers", X, "Encode categories and text as numbers."))


def _rank_message(X: Array, name: str, owner: str, ndims: Sequence[int]) -> str:
    layouts = {2: "2-D (n_samples, n_features)", 4: "4-D (n_samples, height, width, channels)"}
    rule = " or ".join(layouts[n] for n in ndims)
    remedy = ""
    if X.ndim == 1 and 2 in ndims:
        remedy = "Use X.reshape(-1, 1) for one feature or X.reshape(1, -1) for one row."
    elif X.ndim == 3 and 4 in ndims:
        remedy = "Use X[..., None] for images of one channel or X[None] for one image."
    return message(owner, name, rule, X, remedy)


def _check_finite(X: Array, name: str, owner: str) -> None:
    values = X.data if _array.is_sparse(X) else X
    xp = _array.namespace(values)
    if not xp.isdtype(values.dtype, "real floating"):
        return
    # One reduction: any NaN or infinity survives the sum; a finite overflow is settled by the mask below.
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(values))) or bool(xp.all(xp.isfinite(values))):
            return
    bad = xp.nonzero(~xp.isfinite(values))
    where = "" if _array.is_sparse(X) else f" at index {tuple(int(i[0]) for i in bad)}"
    value = float(values[tuple(int(i[0]) for i in bad)])
    raise ValueError(
        f"The '{name}' parameter of {owner} must be finite. Got {value}{where}, and "
        f"{int(bad[0].shape[0])} such entries in all. Drop these rows or impute them "
        "(sklearn.impute.SimpleImputer)."
    )
