"""Front doors: one name per kernel, the map behind it chosen by what was measured."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState
from ntkit._validation import check_choice, check_int, message
from ntkit.features._base import FeatureMap
from ntkit.features.gradient import GradientFeatures
from ntkit.features.ntk import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.networks import fully_connected

_MAPS: dict[str, Any] = {"polynomial": NTKPolynomialSketch, "random": NTKRandomFeatures, "sketch": NTKSketch}
_METHODS = ("auto", *_MAPS, "gradient")


class NTKFeatures(FeatureMap):
    """Features of the NTK of a fully connected ReLU network, by the map that suits the data.

    Z(x)·Z(y) ≈ NTK(x, y) = ‖x‖‖y‖ K_relu^(L)(cos(x, y)), and ‖Z(x)‖² = (L + 1)‖x‖², of rows with `bias` appended. Scale
    columns (for example by scikit-learn's ``StandardScaler``) before, as for any kernel.

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features.
    method : {"auto", "polynomial", "random", "sketch", "gradient"}
        "auto" picks the map with the smallest relative error by the measurements in ``docs/design/ntk-features.md``:
        for fully connected networks that is "polynomial" at every number of features, depth and size. The others are
        :class:`NTKPolynomialSketch`, :class:`NTKRandomFeatures`, :class:`NTKSketch` and :class:`GradientFeatures`
        with their defaults.
    bias : float ≥ 0 or "auto"
        Constant appended to every row, so that functions need not be homogeneous in x: the kernel is
        NTK((x, b), (y, b)), that of a network whose first layer has biases. "auto": √n_features, the norm of
        a row of standardized columns, which serves tables well.
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    method_ : str
        The method used.
    bias_ : float
        The constant appended; 0: none is.
    map_ : transformer
        The fitted map.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import RidgeClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from ntkit import NTKFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> model = make_pipeline(NTKFeatures(depth=2, n_components=2048, random_state=0), RidgeClassifier(alpha=1.0))
    >>> bool(model.fit(X[:1500] / 16, y[:1500]).score(X[1500:] / 16, y[1500:]) > 0.9)
    True
    """

    def __init__(
        self,
        depth: int = 1,
        n_components: int = 1024,
        *,
        method: str = "auto",
        bias: float | str = 0.0,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.n_components = n_components
        self.method = method
        self.bias = bias
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Choose and draw the map for rows of the size and kind of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_samples, n_features)
            Only the number of features and whether X is sparse matter: the map is oblivious to the data.
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, _METHODS)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        _check_bias(self.bias, name)
        with self._all_or_nothing():
            seed = self._new_seed()
            shared: dict[str, Any] = {
                "n_components": m,
                "batch_size": self.batch_size,
                "random_state": self.random_state if isinstance(self.random_state, Integral) else seed,
            }
            X = self._check_rows(X, reset=True)
            self._sparse = _array.is_sparse(X)
            self.bias_ = self._bias(self.n_features_in_)
            X = with_constant(X[:1], self.bias_)
            self.method_ = "polynomial" if method == "auto" else method
            if self.method_ == "gradient":
                self.map_ = GradientFeatures(fully_connected(depth), **shared).fit(X)
            else:
                self.map_ = _MAPS[self.method_](depth=depth, **shared).fit(X)
            self._n_features_out = self.map_._n_features_out
        return self

    def _transform(self, X: Array) -> Array:
        return self.map_.transform(with_constant(X, self.bias_))

    def _kernel(self, X: Array) -> Array:
        from ntkit.kernels import ntk

        return ntk(with_constant(X, self._bias(int(X.shape[-1]))), depth=self.depth)

    def _bias(self, n_features: int) -> float:
        return float(n_features) ** 0.5 if isinstance(self.bias, str) else float(self.bias)


def _check_bias(bias: Any, owner: str) -> None:
    """Raise unless `bias` is "auto" or a finite number ≥ 0."""
    if isinstance(bias, str) and bias == "auto":
        return
    rule = "'auto' or a finite real number ≥ 0"
    if isinstance(bias, bool | np.bool_) or not isinstance(bias, Real):
        raise TypeError(message(owner, "bias", rule, bias))
    if not (np.isfinite(float(bias)) and float(bias) >= 0):
        raise ValueError(message(owner, "bias", rule, bias))


def with_constant(X: Array, value: float) -> Array:
    """Append a column with a constant to rows; none if it is 0."""
    if value == 0.0:
        return X
    if _array.is_sparse(X):
        from scipy.sparse import hstack

        return hstack([X, np.full((X.shape[0], 1), value, dtype=X.dtype)], format="csr")
    xp: Any = _array.namespace(X)
    dtype = _array.result_dtype(X)
    column = xp.full((X.shape[0], 1), value, dtype=dtype, device=_array.device(X))
    return xp.concat([xp.astype(X, dtype, copy=False), column], axis=1)
