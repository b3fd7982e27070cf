"""What all estimators share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_data


class AllOrNothing:
    """Estimators whose `fit` works or leaves them as they were."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise


class OfRows:
    """Estimators of rows of any library."""

    n_features_in_: int

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate the rows of `fit` (`reset`; some of the rows of a Dask collection) or `transform`."""
        if not reset:
            check_is_fitted(self)
        elif _array.is_dask(X):
            from ntkit.distributed import first_rows

            X = first_rows(X)
        if not _array.is_torch(X):
            return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
        X = check_data(X, "X", type(self).__name__)
        if reset:
            self.n_features_in_ = int(X.shape[1])
            self.__dict__.pop("feature_names_in_", None)
        elif X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features "
                "as input."
            )
        return X
