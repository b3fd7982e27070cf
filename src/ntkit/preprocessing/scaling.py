"""Scale the columns of a table for a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, check_rows
from ntkit._state import COLUMNS, Declared, Field, Floats, Optional
from ntkit._validation import check_data, check_overflow, check_real, message


class ArcsinhScaler(Declared, AllOrNothing, StandardScaler):
    """Standardize columns and compress their tails: w · arcsinh(z/w) for z = (x − mean)/deviation.

    Up to w standard deviations from the mean this is nearly standardization, beyond it nearly a logarithm: with the
    width w = 1, z = 100 becomes 5.3. Columns of tables often contain rare, huge values, which dominate a kernel: one
    such row can spoil a fit or the choice of a kernel. See ``docs/design/learning.md`` for measurements.

    Parameters
    ----------
    copy, with_mean, with_std
        As for scikit-learn's ``StandardScaler``. Sparse rows need ``with_mean=False``. NaN (a missing value) stays
        NaN.
    width : float > 0
        w. Smooth functions of columns without tails stay smoother with a larger width. Default models of tables use 2.

    Attributes
    ----------
    mean_, scale_, var_, n_samples_seen_, n_features_in_, feature_names_in_
        As for scikit-learn's ``StandardScaler``.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import ArcsinhScaler
    >>> X = np.array([[0.0], [1.0], [2.0], [1000.0]])
    >>> ArcsinhScaler().fit_transform(X).round(2).ravel()
    array([-0.55, -0.55, -0.55,  1.32])
    """

    _state: ClassVar[dict[str, Any]] = {
        **COLUMNS,
        **{name: Optional(Floats("n_features_in_", single=True)) for name in ("scale_", "mean_", "var_")},
        "n_samples_seen_": Field(),
    }

    def __init__(self, *, copy: bool = True, with_mean: bool = True, with_std: bool = True, width: float = 1.0):
        super().__init__(copy=copy, with_mean=with_mean, with_std=with_std)
        self.width = width

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        self._validate_params()
        self._check_width()
        needed = {"scale_": self.with_std, "mean_": self.with_mean}
        if any(getattr(self, name, None) is None for name, need in needed.items() if need):
            raise ValueError("An ArcsinhScaler lacks its means or scales")
        if np.size(self.n_samples_seen_) not in (1, self.n_features_in_) or (
            self.scale_ is not None and not self.scale_.all()
        ):
            raise ValueError("An ArcsinhScaler has scales of 0, or counts of the wrong size")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn means and standard deviations.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
            NaN marks a missing value.
        y : ignored
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            return super().fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Update the means and standard deviations with more rows.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
        y : ignored
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        self._check_width()
        with self._all_or_nothing(), np.errstate(over="ignore", invalid="ignore"):
            rows = self._rows(X)
            super().partial_fit(rows, y, sample_weight)
            values = rows.to_numpy() if hasattr(rows, "iloc") else rows
            if self.var_ is not None and (np.isinf(self.var_).any() or _array.all_finite(values)):
                check_overflow(self.var_, values, type(self).__name__, "variances")
        return self

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """Scale the columns of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
        copy : bool, optional
            Whether to copy X rather than modify it.

        Returns
        -------
        array, sparse matrix or tensor of the shape of X
        """
        check_is_fitted(self)
        if _array.is_torch(X):
            return self._of_tensor(X, lambda Z, mean, scale: self.width * ((Z - mean) / scale / self.width).asinh())
        rows = self._rows(X)
        with np.errstate(over="ignore"):
            scaled = super().transform(rows, copy=copy)
            if not _array.is_sparse(scaled):
                return _finite(self.width * np.arcsinh(scaled / self.width), np.asarray(rows), type(self).__name__)
            scaled.data[...] = self.width * np.arcsinh(scaled.data / self.width)
        return scaled

    def expression(self, X: Array) -> Array:
        """Scale X with array operations only, without checks, for torch or for tracing.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        X = X - _array.constant(self.mean_, X) if self.with_mean else X
        X = X / _array.constant(self.scale_, X) if self.with_std else X
        return _array.namespace(X).asinh(X / self.width) * self.width

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Undo the scaling.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
        copy : bool, optional
            Whether to copy X rather than modify it.

        Returns
        -------
        array, sparse matrix or tensor of the shape of X
        """
        check_is_fitted(self)
        if _array.is_torch(X):
            return self._of_tensor(X, lambda Z, mean, scale: self.width * (Z / self.width).sinh() * scale + mean)
        rows = check_rows(self, X, reset=False, sparse=True, missing=True)
        values = rows.data if _array.is_sparse(rows) else rows
        with np.errstate(over="ignore"):
            values = _finite(self.width * np.sinh(values / self.width), rows, type(self).__name__)
        if _array.is_sparse(rows):
            values = type(rows)((values, rows.indices, rows.indptr), shape=rows.shape)
        return super().inverse_transform(values, copy=copy)

    def _check_width(self) -> None:
        check_real(self.width, "width", type(self).__name__, minimum=0, strict=True)

    def _rows(self, X: Any) -> Any:
        """Convert rows to a type that scikit-learn accepts, and keep the column names."""
        name = type(self).__name__
        rows = _array.to_numpy(check_data(X, "X", name, sparse=True, missing=True))
        if _array.is_sparse(rows) and self.with_mean:
            raise TypeError(message(name, "X", "dense, not sparse, with with_mean=True", X, "Set with_mean=False."))
        if hasattr(X, "iloc"):
            return type(X)(rows, columns=X.columns, index=X.index)
        return np.asarray(rows) if _array.is_array(rows) else rows

    def _of_tensor(self, X: Any, function: Callable[[Any, Any, Any], Any]) -> Any:
        """Apply a function to rows, means and scales, in the dtype and on the device of the rows."""
        import torch

        X = check_rows(self, X, reset=False, missing=True)
        dtype = X.dtype if X.is_floating_point() else _array.wide_dtype(X)
        Z = X.to(torch.float32 if dtype.itemsize < 4 else dtype)
        mean = _array.constant(self.mean_, Z) if self.with_mean else 0.0
        scale = _array.constant(self.scale_, Z) if self.with_std else 1.0
        return _finite(function(Z, mean, scale).to(dtype), X, type(self).__name__)


def _finite(Z: Array, X: Array, owner: str) -> Array:
    """Return scaled rows, or raise an error if an entry is infinite. Missing values stay NaN."""
    if not _array.all_finite(Z) and bool(_array.namespace(Z).any(_array.namespace(Z).isinf(Z))):
        check_overflow(Z, X, owner, "values")
    return Z
