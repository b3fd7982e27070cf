"""Front doors: one name per kernel, the map behind it chosen by what was measured."""

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
_LOW = 5  # columns up to which harmonics have the smallest error
_GAUSSIAN: dict[str, Any] = {
    "gegenbauer": partial(GegenbauerFeatures, "gaussian"),
    "taylor": partial(DotProductSketch, "gaussian"),
    "orthogonal": OrthogonalFourierFeatures,
    "fourier": RandomFourierFeatures,
    "fastfood": FastfoodFeatures,
}
_TRIED = 300  # rows on which maps of the Gaussian are tried
_FEW = 16  # columns up to which harmonics are tried
_MANY = 2048  # columns up to which sketches of Taylor series are tried
_LARGE = 2**25  # frequencies, all of their coordinates, from which on they are not drawn one by one


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenPlan(Plan):
    """The map that was chosen, planned, and the constant that is appended to rows before it."""

    kernel: KernelSpec
    method: str
    chosen: FeatureMap
    planned: Any
    learned: dict[str, Any]
    """What the map that was chosen has learned."""
    bias: float = 0.0

    def matrix(self, X: Array) -> Array:
        """See :meth:`Plan.matrix`."""
        return self.kernel.matrix(with_constant(X, self.bias))


class ChosenDraws(Draws):
    """The draws of the map that was chosen."""

    def __init__(self, draws: Draws, bias: float):
        self.draws, self.bias, self.n_components = draws, bias, draws.n_components

    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """See :meth:`Draws.run`."""
        return self.draws.run(with_constant(X, self.bias), batch_size=batch_size, progress=progress)


class FrontDoor(FeatureMap):
    """Maps that hand rows on to another."""

    _remade: ClassVar[tuple[str, ...]] = ("method_", "bias_")

    def _draw_bytes(self, plan: ChosenPlan) -> int:
        return plan.chosen._draw_bytes(plan.planned)

    def _draw(self, plan: ChosenPlan, seed: np.random.SeedSequence) -> ChosenDraws:
        return ChosenDraws(plan.chosen._draw(plan.planned, seed), plan.bias)

    def _describe(self, plan: ChosenPlan, draws: ChosenDraws) -> dict[str, Any]:  # noqa: ARG002
        return {"method_": plan.method}

    @property
    def map_(self) -> FeatureMap:
        """The map that was chosen, fitted."""
        draws, plan = self._draws, self._planned
        fitted = clone(plan.chosen)  # type: ignore[attr-defined]
        fitted.set_params(batch_size=self.batch_size, random_state=self.random_state)
        fitted.n_features_in_ = plan.n_features + (plan.bias > 0)  # type: ignore[attr-defined]
        fitted._sparse = self._sparse
        fitted.__dict__.update({name: plan.learned[name] for name in fitted._learned})  # type: ignore[attr-defined]
        fitted._use(plan.planned, self._seed, draws.draws)  # type: ignore[attr-defined]
        return fitted


class NTKFeatures(FrontDoor):
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

    Notes
    -----
    The features are random and do not look at the data. Theorems 1 and 2 of [1]_: for suitable sizes
    ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ, with a number of features that is independent of
    that of the rows. The error of "polynomial" on rows of your own falls like ``n_components^{-1/2}``:
    :meth:`estimate_error` measures it, :meth:`suggest_n_components` inverts it. A row takes O(p (d log d + m log m))
    for d columns, m components and degree p ("polynomial" and "sketch"), O(m (d + L m)) by matrix products ("random").

    Up to some 10 000 rows :class:`~ntkit.KernelRidge` solves with the exact kernel. Where the rows lie near a
    low-dimensional set, :class:`NystroemFeatures` needs fewer features. For convolutions, other activations or biases
    in all layers there is :class:`NetworkFeatures`.

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
            method = "gegenbauer" if shape[0] <= _LOW else "polynomial"
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

    Notes
    -----
    Claim 1 of [1]_ for the Fourier methods: on a set of diameter D the error is below ε everywhere with constant
    probability for O(d ε⁻² log(D/(ℓ ε))) features. The other methods have smaller errors where they suit the rows; see
    the notes of each map for its guarantee and cost. A row takes O(d m) ("orthogonal", "fourier"), O(m log d)
    ("fastfood"), O(p (d log d + m log m)) up to degree p ("taylor").

    Up to some 10 000 rows :class:`~ntkit.KernelRidge` solves with the exact kernel. :class:`NystroemFeatures` learns
    from the rows and often needs fewer features, but takes a kernel value for each landmark and O(m²) per row.

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
            errors = {key: made.estimate_error(X, n_samples=_TRIED, random_state=0) for key, made in maps.items()}
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
        """Methods that may be best for rows of this kind."""
        if self._sparse:
            return ["fourier"]
        if n_columns * n_components > 2 * _LARGE:
            return ["fastfood"]
        return ["gegenbauer"] * (n_columns <= _FEW) + ["taylor"] * (n_columns <= _MANY) + ["orthogonal"]

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
