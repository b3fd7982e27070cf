"""What all feature maps share: validation of rows of any library, names and types of their output."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_data


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base class: rows in (NumPy, pandas, SciPy sparse, torch), features of the same library out."""

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Validate the rows of `fit` (`reset`) or `transform`."""
        if not reset:
            check_is_fitted(self)
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
