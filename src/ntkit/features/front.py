"""Front doors: one name per kernel, the map behind it chosen by what was measured."""

from __future__ import annotations

from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState
from ntkit._validation import check_choice, check_int, message
from ntkit.features._base import FeatureMap
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.features.fastfood import FastfoodFeatures
from ntkit.features.fourier import OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.features.gegenbauer import GegenbauerFeatures
from ntkit.features.gradient import GradientFeatures
from ntkit.features.ntk import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.features.taylor import DotProductSketch
from ntkit.networks import fully_connected

_MAPS: dict[str, Any] = {
    "polynomial": NTKPolynomialSketch,
    "random": NTKRandomFeatures,
    "sketch": NTKSketch,
    "gegenbauer": partial(GegenbauerFeatures, "ntk"),
}
_METHODS = ("auto", *_MAPS, "gradient")
_LOW = 5  # columns up to which harmonics have the smallest error
_GAUSSIAN: dict[str, Any] = {
    "gegenbauer": GegenbauerFeatures,
    "taylor": DotProductSketch,
    "orthogonal": OrthogonalFourierFeatures,
    "fourier": RandomFourierFeatures,
    "fastfood": FastfoodFeatures,
}
_TRIED = 300  # rows on which maps of the Gaussian are tried
_FEW = 16  # columns up to which harmonics are tried
_MANY = 2048  # columns up to which sketches of Taylor series are tried
_LARGE = 2**25  # frequencies, all of their coordinates, from which on they are not drawn one by one


class NTKFeatures(FeatureMap):
    """Features of the NTK of a fully connected ReLU network, by the map that suits the data.

    Z(x)·Z(y) ≈ NTK(x, y) = ‖x‖‖y‖ K_relu^(L)(cos(x, y)) of rows with `bias` appended. ‖Z(x)‖² = (L + 1)‖x‖² but for
    "gegenbauer", which leaves high degrees out. Scale columns (for example by scikit-learn's ``StandardScaler``)
    before, as for any kernel.

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features. There may be fewer of up to 5 columns.
    method : {"auto", "polynomial", "random", "sketch", "gegenbauer", "gradient"}
        "auto" picks the map with the smallest relative error by the measurements in ``docs/design/ntk-features.md`` and
        ``docs/design/zonal.md``: "gegenbauer" for dense rows of up to 5 columns (with that of `bias`), else
        "polynomial", at every number of features and depth. The methods are :class:`NTKPolynomialSketch`,
        :class:`NTKRandomFeatures`, :class:`NTKSketch`, :class:`GegenbauerFeatures` and :class:`GradientFeatures` with
        their defaults.
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
            Only the number of features matters: the map is oblivious to the data.
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
            low = X.shape[1] <= _LOW
            self.method_ = method if method != "auto" else "gegenbauer" if low else "polynomial"
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


class GaussianFeatures(FeatureMap):
    """Features of the Gaussian kernel exp(−‖x − y‖²/(2ℓ²)), by the map that suits the data.

    Scale columns (for example by scikit-learn's ``StandardScaler``) before, as for any kernel, and centre them, which
    does not change the kernel but makes some maps better.

    Parameters
    ----------
    n_components : int
        Number of features. There may be fewer of few columns, where fewer hold all of the kernel.
    lengthscale : float > 0 or "scale"
        ℓ; "scale": √(d·Var(X)/2), as :class:`RandomFourierFeatures` has it.
    method : {"auto", "gegenbauer", "taylor", "orthogonal", "fourier", "fastfood"}
        :class:`GegenbauerFeatures` (nearly exact for few columns), :class:`DotProductSketch` (for norms that are not
        many length scales), :class:`OrthogonalFourierFeatures`, :class:`RandomFourierFeatures`,
        :class:`FastfoodFeatures` (for very many columns). "auto" tries those that may be best on 300 of the rows and
        takes the one with the smallest relative error there: the first up to 16 columns, the second up to 2048, and the
        third; sparse rows always get "fourier", dense ones with frequencies of more than 2²⁵ numbers "fastfood".
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    method_ : str
        The method used.
    errors_ : dict
        Relative errors of the methods that "auto" tried.
    map_ : transformer
        The fitted map.
    lengthscale_ : float
        ℓ.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from ntkit import GaussianFeatures
    >>> X, y = load_diabetes(return_X_y=True)
    >>> features = GaussianFeatures(512, lengthscale=6.0, random_state=0)
    >>> model = make_pipeline(StandardScaler(), features, Ridge(alpha=0.1)).fit(X[:300], y[:300])
    >>> bool(model.score(X[300:], y[300:]) > 0.4)
    True
    """

    def __init__(
        self,
        n_components: int = 1024,
        *,
        lengthscale: float | str = "scale",
        method: str = "auto",
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.n_components = n_components
        self.lengthscale = lengthscale
        self.method = method
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Choose and draw the map.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
            What the maps need of it, and some rows to try them on (the first ones of a Dask collection).
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, ("auto", *_GAUSSIAN))
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        lengthscale = check_lengthscale(self.lengthscale, name)
        with self._all_or_nothing():
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self._sparse = _array.is_sparse(X)
            lengthscale = default_lengthscale(X) if lengthscale is None else lengthscale
            tried = self._candidates(m) if method == "auto" else [method]
            maps = {other: self._make(other, lengthscale, seed).fit(X) for other in tried}
            errors = {}
            if len(tried) > 1:
                errors = {o: m.estimate_error(X, n_samples=_TRIED, random_state=0) for o, m in maps.items()}
            method = min(tried, key=lambda other: errors.get(other, 0.0))
            self._take_map(method, maps[method], errors)
        return self

    def _take_map(self, method: str, fitted: Any, errors: dict[str, float]) -> None:
        """Use a fitted map."""
        self.method_, self.map_, self.errors_, self.lengthscale_ = method, fitted, errors, fitted.lengthscale_
        self._sparse, self._seed = fitted._sparse, fitted._seed
        self._n_features_out = fitted._n_features_out

    @classmethod
    def _method_of(cls, method: Any) -> str:
        """The method, if it is one."""
        return check_choice(method, "method", cls.__name__, tuple(_GAUSSIAN))

    @staticmethod
    def _map_class(method: str) -> type:
        """Class of the map of a method."""
        return _GAUSSIAN[method]

    def _candidates(self, n_components: int) -> list[str]:
        """Methods that may be best for rows of this kind."""
        d = self.n_features_in_
        if self._sparse:
            return ["fourier"]
        if d * n_components > 2 * _LARGE:
            return ["fastfood"]
        return ["gegenbauer"] * (d <= _FEW) + ["taylor"] * (d <= _MANY) + ["orthogonal"]

    def _make(self, method: str, lengthscale: float, seed: np.random.SeedSequence) -> Any:
        law = _GAUSSIAN[method]
        kernel = {"kernel": "gaussian"} if method in ("gegenbauer", "taylor") else {}
        return law(
            **kernel,
            n_components=self.n_components,
            lengthscale=lengthscale,
            batch_size=self.batch_size,
            random_state=self.random_state if isinstance(self.random_state, Integral) else seed,
        )

    def _transform(self, X: Array) -> Array:
        return self.map_.transform(X)

    def _kernel(self, X: Array) -> Array:
        return self.map_._kernel(X)


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
