"""Piecewise linear encoding of columns, for additive functions."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, as_floating, check_rows
from ntkit._state import COLUMNS, Declared, Field, Floats, Integer, Integers, Real
from ntkit._validation import check_int


class PiecewiseLinearEncoder(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Encode columns by piecewise linear functions: one ramp for each interval between two knots.

        φ_jk(x) = s · min(max((x_j − t_jk) / (t_j,k+1 − t_jk), 0), 1)

    with knots t_j0 < t_j1 < … of column j. A linear function of these features is a sum over columns of continuous
    functions that are linear between knots [1]_. A ridge penalty on its weights penalizes the squared steps of these
    functions from knot to knot. So the features have the kernel Σ_j min(r_j(x), r_j(y)) of Brownian motions, where
    r_j(x) is the position of x_j among the knots of column j, an integer at each knot.

    Knots are quantiles of a column, in which a value that occurs c times has the weight √c, so that a column with many
    zeros still has knots elsewhere. A column with few distinct values has a knot at each value; with two distinct
    values, it has a single ramp. Values outside the range of the knots are treated as the nearest knot.

    Parameters
    ----------
    n_knots : int
        Maximum number of knots per column.

    Attributes
    ----------
    columns_ : ndarray of shape (n_ramps,)
        Index of the column of each ramp.
    starts_, widths_ : ndarray of shape (n_ramps,)
        t_jk and t_j,k+1 − t_jk.
    scale_ : float
        Scale s, chosen so that the variances of the features over the rows of `fit` sum to 1.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A constant column has no ramp. If all columns are constant, there is one ramp, which is 0 for all rows of `fit`.

    References
    ----------
    .. [1] Gorishniy, Rubachev, Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022,
       arXiv:2203.05556, Section 3.2 (the encoding, without s).

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import PiecewiseLinearEncoder
    >>> X = np.array([[0.0], [1.0], [2.0], [4.0]])
    >>> encoder = PiecewiseLinearEncoder().fit(X)
    >>> encoder.transform(np.array([[3.0]])) / encoder.scale_
    array([[1. , 1. , 0.5]])
    """

    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "columns_": Integers("_n_features_out", minimum=0),
        "starts_": Floats("_n_features_out"),
        "widths_": Floats("_n_features_out", minimum=0.0),
        "scale_": Real(minimum=0.0),
        "_n_features_out": Integer(1),
    }

    def __init__(self, *, n_knots: int = 14):
        self.n_knots = n_knots

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Choose the knots.

        Parameters
        ----------
        X : array, data frame or torch tensor of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            check_int(self.n_knots, "n_knots", type(self).__name__, minimum=2)
            rows = _array.to_numpy(as_floating(check_rows(self, X, reset=True)))
            rows = np.asarray(rows, dtype=np.float64)
            knots = [_knots(column, self.n_knots) for column in rows.T]
            if not any(len(each) > 1 for each in knots):
                knots[0] = np.array([knots[0][0], np.inf])  # a ramp that is 0 for all rows
            self.columns_ = np.repeat(np.arange(len(knots)), [len(each) - 1 for each in knots])
            self.starts_ = np.concatenate([each[:-1] for each in knots])
            self.widths_ = np.minimum(np.concatenate([np.diff(each) for each in knots]), np.finfo(np.float64).max)
            self._n_features_out, self.scale_ = len(self.columns_), 1.0
            total = float(np.var(self._ramps(rows), axis=0).sum())
            self.scale_ = total**-0.5 if total > 0 else 1.0
        return self

    def transform(self, X: Any) -> Array:
        """Encode the rows of X.

        Parameters
        ----------
        X : array, data frame or torch tensor of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_ramps)
            The result has the library, device and precision of X. Gradients of tensors are kept.
        """
        check_is_fitted(self)
        rows = as_floating(check_rows(self, X, reset=False))
        if _array.is_torch(rows) and not rows.is_floating_point():
            rows = _array.widen(rows)
        return self._ramps(rows)

    def expression(self, X: Array) -> Array:
        """Encode X with array operations only, without checks.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        return self._ramps(X)

    def _ramps(self, rows: Array) -> Array:
        xp: Any = _array.namespace(rows)
        starts, slopes = (_array.constant(values, rows) for values in (self.starts_, 1 / self.widths_))
        columns = xp.asarray(self.columns_, device=_array.device(rows))
        return xp.clip((xp.take(rows, columns, axis=1) - starts) * slopes, 0.0, 1.0) * self.scale_

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        check_int(self.n_knots, "n_knots", type(self).__name__, minimum=2)
        if self.columns_.max() >= self.n_features_in_ or not self.widths_.all():
            raise ValueError("ramps must belong to existing columns and have widths above 0")


def _knots(column: np.ndarray, most: int) -> np.ndarray:
    """Return the sorted knots of a column, at least one and at most `most`."""
    values, counts = np.unique(column, return_counts=True)
    if len(values) <= most:
        return _apart(values)
    weights = np.sqrt(counts)
    positions = np.cumsum(weights) - weights / 2
    ends = (positions[0], positions[-1])
    return _apart(np.unique(np.interp(np.linspace(*ends, most), positions, values)))


def _apart(knots: np.ndarray) -> np.ndarray:
    """Drop knots so close to the previous one that float32 rounding errors would turn the ramp into a step."""
    smallest_gap = 1e-6 * max(float(np.abs(knots).max()), float(np.finfo(np.float64).tiny))
    return knots[np.concatenate([[True], np.diff(knots) > smallest_gap])]
