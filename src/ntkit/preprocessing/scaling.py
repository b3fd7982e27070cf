"""Columns of a table made fit for a kernel."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.preprocessing import StandardScaler

from ntkit._state import COLUMNS, Declared, Field, Floats, Optional


class ArcsinhScaler(Declared, StandardScaler):
    """Standardized columns with their tails drawn in: arcsinh((x − mean)/deviation).

    Near the mean that is standardization; a value of 100 deviations becomes 5.3. Columns of tables often have rare huge
    values, and kernels take them for the most important thing there is: one such row can spoil a fit, or the choice
    of a kernel. See ``docs/design/learning.md`` for measurements.

    Parameters
    ----------
    copy, with_mean, with_std
        As for scikit-learn's ``StandardScaler``; sparse rows need ``with_mean=False``.

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

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        self._validate_params()
        needed = {"scale_": self.with_std, "mean_": self.with_mean}
        if any(getattr(self, name, None) is None for name, need in needed.items() if need):
            raise ValueError("An ArcsinhScaler lacks its means or scales")
        if np.size(self.n_samples_seen_) not in (1, self.n_features_in_) or (
            self.scale_ is not None and not self.scale_.all()
        ):
            raise ValueError("An ArcsinhScaler has scales of 0, or counts that do not fit")

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """Scale the columns of X.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features)
        copy : bool, optional
            Whether to leave X as it is.

        Returns
        -------
        array or sparse matrix of the shape of X
        """
        scaled = super().transform(X, copy=copy)
        if hasattr(scaled, "data") and hasattr(scaled, "nnz"):
            np.arcsinh(scaled.data, out=scaled.data)
            return scaled
        return np.arcsinh(scaled)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Undo the scaling.

        Parameters
        ----------
        X : array, data frame or sparse matrix of shape (n_samples, n_features)
        copy : bool, optional
            Whether to leave X as it is.

        Returns
        -------
        array or sparse matrix of the shape of X
        """
        if hasattr(X, "nnz"):
            X = X.copy()
            np.sinh(X.data, out=X.data)
            return super().inverse_transform(X, copy=copy)
        return super().inverse_transform(np.sinh(X), copy=copy)
