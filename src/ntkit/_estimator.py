"""Base classes and checks of rows shared by all estimators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.utils.validation import check_is_fitted, validate_data

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_data, refuse_complex


class AllOrNothing:
    """Mixin for estimators whose `fit` either succeeds or leaves them unchanged."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise


class RowInput:
    """Mixin for estimators that take rows from any array library."""

    n_features_in_: int

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate rows for `fit` (`reset`) or `transform`. Of a Dask collection, `fit` checks the first block."""
        if not reset:
            check_is_fitted(self)
        elif _array.is_dask(X):
            from ntkit.distributed import first_rows

            X = first_rows(X)
        return as_floating(check_rows(self, X, reset=reset, sparse=True))


def check_rows(
    estimator: Any, X: Any, *, reset: bool, ndims: Sequence[int] = (2,), sparse: bool = False, missing: bool = False
) -> Array:
    """Check the values, shape, column count and column names of rows. All estimators use this check.

    A fit (`reset`) sets ``n_features_in_`` and ``feature_names_in_``; later calls must agree with them. Arrays are
    returned as by :func:`check_data`, except that libraries other than torch come back as NumPy arrays.
    """
    name = type(estimator).__name__
    refuse_complex(X, "X", name)
    rows = check_data(X, "X", name, ndims=ndims, sparse=sparse, missing=missing)
    if reset and _array.is_torch(rows):
        rows = rows.detach()  # fitted values are constants: no gradients through fit
    if not (_array.is_torch(rows) or _array.is_sparse(rows) or get_config()["array_api_dispatch"]):
        rows = np.asarray(rows)
    if rows.ndim == 2:
        validate_data(estimator, X if hasattr(X, "columns") else rows, reset=reset, skip_check_array=True)
    elif reset:
        estimator.__dict__.pop("feature_names_in_", None)
    return rows


def as_floating(X: Array) -> Array:
    """Convert NumPy arrays and CSR rows to float64 unless they are float32; return tensors unchanged."""
    if _array.is_torch(X) or X.dtype in (np.float32, np.float64):
        return X
    return X.astype(np.float64) if _array.is_sparse(X) or _array.is_numpy(X) else X
