"""Default feature maps: one class per kernel, which picks the approximation method by measured error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from ntkit import _array, _state
from ntkit._array import Array
from ntkit._random import RandomState
from ntkit._validation import check_choice, check_int, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.draws import Draws
from ntkit.features.fourier import FastfoodFeatures, OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.features.network import GradientFeatures, NTKRandomFeatures, NTKSketch
from ntkit.features.series import DotProductSketch, NTKPolynomialSketch
from ntkit.features.zonal import GegenbauerFeatures
from ntkit.kernels import KernelSpec
from ntkit.networks import fully_connected

_NTK: dict[str, Any] = {
    "polynomial": NTKPolynomialSketch,
    "random": NTKRandomFeatures,
    "sketch": NTKSketch,
    "gegenbauer": partial(GegenbauerFeatures, "ntk"),
}
_GEGENBAUER_MAX_COLUMNS = 5  # "gegenbauer" has the smallest error for the NTK up to this many columns (measured)
_GAUSSIAN: dict[str, Any] = {
    "gegenbauer": partial(GegenbauerFeatures, "gaussian"),
    "taylor": partial(DotProductSketch, "gaussian"),
    "orthogonal": OrthogonalFourierFeatures,
    "fourier": RandomFourierFeatures,
    "fastfood": FastfoodFeatures,
}
_SAMPLE_ROWS = 300  # number of rows on which methods for the Gaussian kernel are compared
_TRY_GEGENBAUER = 16  # "gegenbauer" is tried up to this many columns
_TRY_TAYLOR = 2048  # "taylor" is tried up to this many columns
_MAX_FREQUENCY_NUMBERS = 2**25  # above this many numbers in all frequencies, use "fastfood", which does not store them


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenPlan(Plan):
    """The chosen map, its plan, and the constant that is appended to rows before the map is applied."""

    kernel: KernelSpec
    method: str
    chosen: FeatureMap
    planned: Any
    learned: dict[str, Any]
    """Values that the chosen map has learned."""
    bias: float = 0.0

    def matrix(self, X: Array) -> Array:
        """See :meth:`Plan.matrix`."""
        return self.kernel.matrix(with_constant(X, self.bias))


class ChosenDraws(Draws):
    """The draws of the chosen map."""

    def __init__(self, draws: Draws, bias: float):
        self.draws, self.bias, self.n_components = draws, bias, draws.n_components

    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """See :meth:`Draws.run`."""
        return self.draws.run(with_constant(X, self.bias), batch_size=batch_size, progress=progress)


class FrontDoor(FeatureMap):
    """Base class of maps that delegate to another map."""

    _remade: ClassVar[tuple[str, ...]] = ("method_", "bias_")

    def _draw_bytes(self, plan: ChosenPlan) -> int:
        return plan.chosen._draw_bytes(plan.planned)

    def _draw(self, plan: ChosenPlan, seed: np.random.SeedSequence) -> ChosenDraws:
        return ChosenDraws(plan.chosen._draw(plan.planned, seed), plan.bias)

    def _describe(self, plan: ChosenPlan, draws: ChosenDraws) -> dict[str, Any]:  # noqa: ARG002
        return {"method_": plan.method}

    @property
    def map_(self) -> FeatureMap:
        """The chosen map, fitted."""
        draws, plan = self._draws, self._planned
        fitted = clone(plan.chosen)  # type: ignore[attr-defined]
        fitted.set_params(batch_size=self.batch_size, random_state=self.random_state)
        fitted.n_features_in_ = plan.n_features + (plan.bias > 0)  # type: ignore[attr-defined]
        fitted._sparse = self._sparse
        fitted.__dict__.update({name: plan.learned[name] for name in fitted._learned})  # type: ignore[attr-defined]
        fitted._use(plan.planned, self._seed, draws.draws)  # type: ignore[attr-defined]
        return fitted


class NTKFeatures(FrontDoor):
    """Features of the NTK of a fully connected ReLU network, by the method that suits the data.

    Z(x)·Z(y) ≈ NTK(x, y) = ‖x‖‖y‖ K_relu^(L)(cos(x, y)), where x and y are rows with `bias` appended. All methods have
    ‖Z(x)‖² = (L + 1)‖x‖² except "gegenbauer", which omits high degrees. Scale the columns first (for example by
    scikit-learn's ``StandardScaler``), as for any kernel.

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features. With 5 columns or fewer, there may be fewer features.
    method : {"auto", "polynomial", "random", "sketch", "gegenbauer", "gradient"}
        "auto" picks the method with the smallest relative error according to the measurements in
        ``docs/design/ntk-features.md`` and ``docs/design/zonal.md``: "gegenbauer" for rows of up to 5 columns
        (including the column of `bias`), otherwise "polynomial", for all `n_components` and depths. The methods are
        :class:`NTKPolynomialSketch`, :class:`NTKRandomFeatures`, :class:`NTKSketch`, :class:`GegenbauerFeatures` and
        :class:`GradientFeatures` with their default parameters.
    bias : float ≥ 0 or "auto"
        Constant b appended to every row, so that learned functions need not be homogeneous in x. The kernel is
        NTK((x, b), (y, b)), the NTK of a network whose first layer has biases. "auto": √n_features, the norm of
        a row of standardized columns, which works well for tables.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    method_ : str
        The method used.
    bias_ : float
        The constant appended to rows; 0: no constant is appended.
    map_ : transformer
        The fitted map.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The features are random and do not depend on the data. Theorems 1 and 2 of [1]_: for suitable sizes
    ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ, and the number of features does not depend on the
    number of rows. The error of "polynomial" on your rows falls like ``n_components^{-1/2}``. :meth:`estimate_error`
    measures the error; :meth:`suggest_n_components` finds the size for a target error. With d columns, m components and
    degree p, a row takes O(p (d log d + m log m)) ("polynomial" and "sketch") or O(m (d + L m)) by matrix products
    ("random").

    Below about 10 000 rows, use :class:`~ntkit.KernelRidge` with the exact kernel. If the rows lie near a
    low-dimensional set, :class:`NystroemFeatures` needs fewer features. For convolutions, other activations or biases
    in all layers, use :class:`NetworkFeatures`.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Theorems 1
       and 2, Remark 1.
    .. [2] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022.

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

    _old_positions: ClassVar[int] = 2

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
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

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> ChosenPlan:  # noqa: ARG002
        name, (n_columns,) = type(self).__name__, shape
        depth = check_int(self.depth, "depth", name, minimum=1)
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, ("auto", *_NTK, "gradient"))
        _check_bias(self.bias, name)
        bias = float(n_columns) ** 0.5 if isinstance(self.bias, str) else float(self.bias)
        shape = (n_columns + (bias > 0),)
        if method == "auto":
            method = "gegenbauer" if shape[0] <= _GEGENBAUER_MAX_COLUMNS else "polynomial"
        if method == "gradient":
            chosen: Any = GradientFeatures(fully_connected(depth), n_components=m)
        else:
            chosen = _NTK[method](depth=depth, n_components=m)
        chosen._sparse = self._sparse
        inner = chosen._learn(np.zeros((1, *shape)), np.random.SeedSequence(0))  # the NTK has no scale to learn
        return ChosenPlan(
            shape=(n_columns,),
            kernel=KernelSpec.of("ntk", depth=depth),
            method=method,
            chosen=chosen,
            planned=chosen._plan(shape, inner),
            learned=inner,
            bias=bias,
        )

    def _describe(self, plan: ChosenPlan, draws: ChosenDraws) -> dict[str, Any]:
        return {"bias_": plan.bias} | super()._describe(plan, draws)


class GaussianFeatures(FrontDoor):
    """Features of the Gaussian kernel exp(−‖x − y‖²/(2ℓ²)), by the method that suits the data.

    Scale the columns first (for example by scikit-learn's ``StandardScaler``), as for any kernel. Centre them too: this
    does not change the kernel, but makes some methods more accurate.

    Parameters
    ----------
    n_components : int
        Number of features. With few columns there may be fewer features, if these already represent the whole kernel.
    lengthscale : float > 0 or "scale"
        ℓ; "scale": √(d·Var(X)/2), as in :class:`RandomFourierFeatures`.
    method : {"auto", "gegenbauer", "taylor", "orthogonal", "fourier", "fastfood"}
        :class:`GegenbauerFeatures` (nearly exact for few columns), :class:`DotProductSketch` (for rows whose norms are
        at most a few length scales), :class:`OrthogonalFourierFeatures`, :class:`RandomFourierFeatures`,
        :class:`FastfoodFeatures` (for very many columns). "auto" compares methods on 300 of the rows and takes the one
        with the smallest relative error: "gegenbauer" (up to 16 columns), "taylor" (up to 2048 columns) and
        "orthogonal". Sparse rows always get "fourier"; dense rows whose frequencies hold more than 2²⁵ numbers get
        "fastfood".
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
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

    Notes
    -----
    Claim 1 of [1]_ holds for the Fourier methods: on a set of diameter D, O(d ε⁻² log(D/(ℓ ε))) features have an error
    below ε everywhere with constant probability. The other methods have smaller errors where they suit the rows; see
    the notes of each class for its guarantee and cost. A row takes O(d m) ("orthogonal", "fourier"), O(m log d)
    ("fastfood") or O(p (d log d + m log m)) up to degree p ("taylor").

    Below about 10 000 rows, use :class:`~ntkit.KernelRidge` with the exact kernel. :class:`NystroemFeatures` learns
    from the rows and often needs fewer features, but computes a kernel value for each landmark and takes O(m²) per row.

    References
    ----------
    .. [1] Rahimi, Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007.
    .. [2] Yu et al., "Orthogonal Random Features", NeurIPS 2016.
    .. [3] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from ntkit import GaussianFeatures
    >>> X, y = load_diabetes(return_X_y=True)
    >>> features = GaussianFeatures(n_components=512, lengthscale=6.0, random_state=0)
    >>> model = make_pipeline(StandardScaler(), features, Ridge(alpha=0.1)).fit(X[:300], y[:300])
    >>> bool(model.score(X[300:], y[300:]) > 0.4)
    True
    """

    _learned: ClassVar[dict[str, Any]] = {
        "lengthscale_": _state.Real(0, strict=True),
        "method_": _state.Text(tuple(_GAUSSIAN)),
        "errors_": _state.Mapping(_state.Real(0)),
        "_inner": _state.Mapping(_state.Field()),
    }
    _old_positions: ClassVar[int] = 1

    def __init__(
        self,
        *,
        n_components: int = 1024,
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

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, ("auto", *_GAUSSIAN))
        lengthscale = check_lengthscale(self.lengthscale, name)
        lengthscale = default_lengthscale(X) if lengthscale is None else lengthscale
        tried = self._candidates(X.shape[1], m) if method == "auto" else [method]
        maps = {other: self._make(other, lengthscale, seed).fit(X) for other in tried}
        errors = {}
        if len(tried) > 1:
            errors = {key: made.estimate_error(X, n_samples=_SAMPLE_ROWS, random_state=0) for key, made in maps.items()}
        method = min(tried, key=lambda other: errors.get(other, 0.0))
        inner = {key: getattr(maps[method], key) for key in maps[method]._learned}
        return {"lengthscale_": lengthscale, "method_": method, "errors_": errors, "_inner": inner}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> ChosenPlan:
        method, lengthscale = learned["method_"], learned["lengthscale_"]
        chosen = self._make(method, lengthscale, None)
        kernel = KernelSpec.of("gaussian", lengthscale=lengthscale)
        symbols = {"n_features_in_": shape[0]}
        inner = {key: chosen._learned[key].check(learned["_inner"].get(key), key, symbols) for key in chosen._learned}
        inner["lengthscale_"] = lengthscale
        planned = chosen._plan(shape, inner)
        return ChosenPlan(shape=shape, kernel=kernel, method=method, chosen=chosen, planned=planned, learned=inner)

    def _candidates(self, n_columns: int, n_components: int) -> list[str]:
        """Return the methods that "auto" compares."""
        if self._sparse:
            return ["fourier"]
        if n_columns * n_components > 2 * _MAX_FREQUENCY_NUMBERS:  # a frequency makes two components
            return ["fastfood"]
        few = ["gegenbauer"] * (n_columns <= _TRY_GEGENBAUER) + ["taylor"] * (n_columns <= _TRY_TAYLOR)
        return [*few, "orthogonal"]

    def _make(self, method: str, lengthscale: float, seed: Any) -> Any:
        return _GAUSSIAN[method](
            n_components=self.n_components,
            lengthscale=lengthscale,
            batch_size=self.batch_size,
            random_state=seed,
        )


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
    """Append a constant column to rows, unless the constant is 0."""
    if value == 0.0:
        return X
    if _array.is_sparse(X):
        from scipy.sparse import hstack

        return hstack([X, np.full((X.shape[0], 1), value, dtype=X.dtype)], format="csr")
    xp: Any = _array.namespace(X)
    dtype = _array.result_dtype(X)
    column = xp.full((X.shape[0], 1), value, dtype=dtype, device=_array.device(X))
    return xp.concat([xp.astype(X, dtype, copy=False), column], axis=1)
