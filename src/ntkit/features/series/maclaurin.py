"""Random Maclaurin features of dot-product kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState, generator
from ntkit._state import Real
from ntkit._validation import check_choice, check_int
from ntkit.features.draws import RowDraws
from ntkit.features.series.base import KernelLike, SeriesMap, SeriesPlan, degrees_of, log_masses, row_norms
from ntkit.kernels.tiles import divide_rows
from ntkit.kernels.zonal import Zonal
from ntkit.programs import array_api
from ntkit.sketches.draws import draw_signs
from ntkit.sketches.series import share_out

_TILE_BYTES = 2**20  # size of the results that a thread writes at a time, so that products stay in its cache
_TILE_ROWS = 128  # smallest number of rows in a tile: BLAS packs the signs again for every tile


@dataclass(frozen=True, kw_only=True, eq=False)
class MaclaurinPlan(SeriesPlan):
    """The degrees and their shares of the features; if `shares` is None, each feature draws its degree at random."""

    n_components: int
    degree: int
    degrees: np.ndarray
    shares: dict[int, float] | None


class MaclaurinDraws(RowDraws):
    """Signs ω_k in columns: for k = 1, 2, … the signs of all features of degree k or more."""

    def __init__(self, plan: MaclaurinPlan, seed: np.random.SeedSequence):
        super().__init__()
        d, m = plan.n_features, plan.n_components
        if plan.shares is None:
            shared = _draw_degrees(generator(seed, "maclaurin", "degrees"), plan.degrees, m)
        else:
            shared = _share(plan.shares, d, m)
        self.series, self.degrees, self.linear = plan.series, shared.degrees, shared.linear
        self.n_components = len(self.degrees)
        self.distinct, self.counts = np.unique(self.degrees, return_counts=True)
        self.scales = np.array([shared.sizes[j] ** -0.5 for j in self.distinct.tolist()])
        self.starts = self._starts()
        widths = [self.n_components - start for start in self.starts]
        self.tables = [draw_signs(seed, "maclaurin", k, size=(d, width)) for k, width in enumerate(widths)]

    def _starts(self) -> list[int]:
        """Return, for k = 1, 2, …, the index of the first feature with a k-th factor; all later features have one."""
        starts = np.searchsorted(self.degrees, np.arange(1, self.degrees[-1] + 1)).tolist()
        if self.linear is not None:
            starts[0] = self.linear.stop
        return [start for start in starts if start < self.n_components]

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`."""
        return 2 * (3 * self.n_components + 2 * X.shape[1])

    def tile_rows(self, X: Array, dtype: np.dtype) -> int:
        """See :meth:`RowDraws.tile_rows`."""
        return max(_TILE_ROWS, _TILE_BYTES // ((self.n_components + X.shape[1]) * dtype.itemsize))

    def _parts(self, X: Any, dtype: Any, *, differentiable: bool = False) -> tuple[Any, Array]:
        """Return the unit rows, and m_j^{-1/2} w_j(‖x‖) for all degrees j."""
        norms = row_norms(X, differentiable=differentiable)
        if differentiable or _array.is_torch(X):
            xp: Any = _array.namespace(X)
            units = xp.astype(divide_rows(_array.widen(X), norms), dtype)
        else:
            X = _array.without_duplicates(X) if _array.is_sparse(X) else X
            units = divide_rows(X.astype(np.float64, copy=False), norms).astype(dtype)
        with np.errstate(over="ignore"):  # weights overflow only if k(x, x) does; `transform` raises an error then
            weights = self.series.weights(norms, self.distinct) * _array.constant(self.scales, norms)
        return units, _array.namespace(weights).astype(weights, dtype)

    def fill(self, X: Any, tables: list[Array], out: Array) -> None:
        """See :meth:`RowDraws.fill`. The weights of the norms are multiplied by one factor after another."""
        wide = tables[0].dtype if tables else out.dtype
        units, weights = self._parts(X, wide)
        Z = out if out.dtype == wide else out.new_empty(out.shape, dtype=wide)
        stops = np.cumsum(self.counts).tolist()
        for i, (count, stop) in enumerate(zip(self.counts.tolist(), stops, strict=True)):
            Z[:, stop - count : stop] = weights[:, i : i + 1]
        if self.linear is not None:
            Z[:, self.linear] *= units.toarray() if _array.is_sparse(units) else units
        for start, matrix in zip(self.starts, tables, strict=True):
            Z[:, start:] *= units @ matrix
        if Z is not out:
            out[...] = Z

    def features(self, X: Any, tables: list[Array]) -> Any:
        """See :meth:`RowDraws.features`."""
        units, weights = self._parts(X, X.dtype, differentiable=True)
        xp: Any = _array.namespace(weights)
        Z = array_api.take(weights, np.repeat(np.arange(len(self.counts)), self.counts))
        if self.linear is not None:
            first, last = self.linear.start, self.linear.stop
            Z = xp.concat([Z[:, :first], Z[:, self.linear] * units, Z[:, last:]], axis=1)
        for start, matrix in zip(self.starts, tables, strict=True):
            Z = xp.concat([Z[:, :start], Z[:, start:] * (units @ matrix)], axis=1)
        return Z


class MaclaurinFeatures(SeriesMap):
    """Random Maclaurin features of the Gaussian kernel, the NTK and other dot-product kernels [1]_.

    The kernels are Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j with weights w_j that depend on the norms:

        "gaussian"       exp(−‖x − y‖²/(2ℓ²))              w_j(r) = (r/ℓ)^j e^{−r²/(2ℓ²)} / √(j!)
        "exponential"    exp(⟨x, y⟩/ℓ²)                    w_j(r) = (r/ℓ)^j / √(j!)
        "ntk", "nngp"    ‖x‖‖y‖ Σ_j a_j cos(x, y)^j        w_j(r) = √a_j r
        "hidden_ntk"     ‖x‖‖y‖ cos(x, y) κ₀(cos(x, y))/2  w_j(r) = √a_j r
        "arc_cosine"     ‖x‖^p ‖y‖^p κ_p(cos(x, y))        w_j(r) = √a_j r^p, p = 0 or 1
        "polynomial"     (γ⟨x, y⟩ + c)^p                   w_j(r) = √(C(p, j) γ^j c^{p−j}) r^j
        [a_0, a_1, …]    Σ_j a_j ⟨x, y⟩^j                  w_j(r) = √a_j r^j

    Here a_j are the Taylor coefficients of K_relu^(L) for "ntk", of Σ_relu^(L) for "nngp", of κ_p for "arc_cosine" and
    of t κ₀(t)/2 for "hidden_ntk", see :class:`DotProductSketch`. Each of the m_j features of degree j is

        z(x) = m_j^{-1/2} w_j(‖x‖) ∏_{k≤j} ⟨ω_k, x/‖x‖⟩,   ω_k ∈ {±1}^d uniform and independent,

        E Z(x)·Z(y) = Σ_{j≤p} w_j(‖x‖) w_j(‖y‖) cos(x, y)^j,

        Var Z(x)·Z(y) = Σ_j w_j(‖x‖)² w_j(‖y‖)² (ν^j − cos(x, y)^{2j})/m_j,
        ν = 1 + 2 cos(x, y)² − 2 Σ_i u_i² v_i²,   u = x/‖x‖, v = y/‖y‖,

    where the variance sums over the degrees that are not exact (see `method`).

    Parameters
    ----------
    kernel : str, Layer or sequence of float
        A name above, a network of Dense layers with ReLU, LeakyReLU or Abs between them (without biases), or Taylor
        coefficients a_j ≥ 0.
    n_components : int
        Number m of features. If the series only has degrees 0 and 1 and these fit, there are fewer features and the map
        is exact.
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"order": 0}`` for "arc_cosine" or ``{"degree": 3}`` for
        "polynomial".
    lengthscale : float > 0 or "scale"
        ℓ, for "gaussian" and "exponential". "scale": √(d·Var(X)/2), with the variance over all entries of the X given
        to `fit`, as in :class:`RandomFourierFeatures`.
    depth : int
        Number L of ReLU layers, for "ntk" and "nngp".
    degree : int from 1 to 128 or "auto"
        Highest degree p. "auto": the smallest degree that reaches `tolerance`. For kernels given by name it is at most
        64 and at most log m / log ν, where ν = 3d/(d + 2) is the mean of ν for x = y: higher degrees would add more
        noise to ‖Z(x)‖² than the error of omitting them.
    tolerance : float from 0 to 1
        For ``degree="auto"``: the largest share of k(x, x) that may be omitted, for rows of norm `radius_`.
    method : {"optimal", "geometric"}
        How the features are divided among the degrees. "optimal": m_j is proportional to w_j(R)² ν^{j/4}, R =
        `radius_`. This minimizes the sum Σ_j w_j(R)⁴ ν^{j/2}/m_j, in which each term is the geometric mean of the
        variances for orthogonal and for equal rows. Degree 0 has one feature. Degree 1 has the d entries of x if its
        share is d or more. Both are then exact. "geometric": every feature draws its degree with probability
        p_j ∝ 2^{−j}, and m p_j replaces m_j, as in [1]_. The variance is then
        [Σ_j w_j(‖x‖)² w_j(‖y‖)² ν^j/p_j − (E Z(x)·Z(y))²]/m.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the signs in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size, up to
        rounding.

    Attributes
    ----------
    lengthscale_ : float
        ℓ; 1 for kernels without a length scale.
    radius_ : float
        R: root mean square of the norms of the nonzero rows of `fit` (ℓ if all rows are 0).
    degree_ : int
        Highest degree p.
    degrees_ : ndarray of int
        Degree of every feature, in ascending order.
    signs_ : ndarray of int8
        The ω_k in columns: for k = 1, 2, … the signs of all features of degree k or more. If degree 1 is exact, it has
        no signs.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A row takes O(d Σ_j j m_j) in matrix products; for SciPy CSR rows, nnz replaces d. This is the simpler map;
    :class:`DotProductSketch` takes the same kernels and has a smaller error for similar rows and for few features.

    The weights of the Gaussian kernel vanish for rows with ‖x‖²/ℓ² well above the degree. Centre the columns first;
    this does not change the Gaussian kernel. Features overflow if k(x, x) does. For a zero row only features of degree
    0 are nonzero (none for homogeneous kernels such as the NTK).

    References
    ----------
    .. [1] Kar, Karnick, "Random Feature Maps for Dot Product Kernels", AISTATS 2012, arXiv:1201.6530, Algorithm 1.
    .. [2] Wacker, Kanagawa, Filippone, "Improved Random Features for Dot Product Kernels", arXiv:2201.08712: variances
       of such features, and the numbers of features per degree that minimize the variance.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import MaclaurinFeatures
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> Z = MaclaurinFeatures("gaussian", n_components=4096, lengthscale=3.0, random_state=0).fit_transform(X)
    >>> K = gaussian(X, lengthscale=3.0)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.05 * np.linalg.norm(K))
    True
    """

    _learned: ClassVar[dict[str, Any]] = {"lengthscale_": Real(0, strict=True), "radius_": Real(0, strict=True)}
    _remade: ClassVar[tuple[str, ...]] = ("degree_",)

    _old_names: ClassVar[dict[str, Any]] = {"law": "method"}
    _old_positions: ClassVar[int] = 2

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        *,
        n_components: int = 1024,
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int = 1,
        degree: int | str = "auto",
        tolerance: float = 1e-3,
        method: str = "optimal",
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.n_components = n_components
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.depth = depth
        self.degree = degree
        self.tolerance = tolerance
        self.method = method
        self.batch_size = batch_size
        self.random_state = random_state

    def _learn_from_norms(self, series: Zonal, norms: np.ndarray) -> dict[str, Any]:  # noqa: ARG002
        top = norms.max()
        return {"radius_": float(top * np.sqrt(np.mean((norms / top) ** 2)))}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> MaclaurinPlan:
        name, (d,) = type(self).__name__, shape
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, ("optimal", "geometric"))
        spec = self._check_spec(learned["lengthscale_"])
        series, radius = spec.zonal, np.array([learned["radius_"]])
        degree = self._check_degree(series, radius)
        spread = log(3 * d / (d + 2))
        if isinstance(self.degree, str) and series.n_taylor is None and spread > 0:
            degree = min(degree, max(1, int(log(m) / spread)))
        degrees, shares = degrees_of(series, degree), None
        if method == "optimal":
            logs = log_masses(series, radius, degree)[degrees] + 0.25 * spread * degrees
            shares = dict(zip(degrees.tolist(), np.exp(logs - logs.max()).tolist(), strict=True))
        return MaclaurinPlan(shape=shape, kernel=spec, n_components=m, degree=degree, degrees=degrees, shares=shares)

    def _draw_bytes(self, plan: MaclaurinPlan) -> int:
        """Count one byte per sign. A feature of degree j has j rows of signs; random degrees count as the highest."""
        d, m = plan.n_features, plan.n_components
        n_factors = plan.degree * m if plan.shares is None else int(_share(plan.shares, d, m).degrees.sum())
        return 4 * d * n_factors + 64 * m

    def _draw(self, plan: MaclaurinPlan, seed: np.random.SeedSequence) -> MaclaurinDraws:
        return MaclaurinDraws(plan, seed)

    def _describe(self, plan: MaclaurinPlan, draws: MaclaurinDraws) -> dict[str, Any]:  # noqa: ARG002
        return {"degree_": plan.degree}

    @property
    def degrees_(self) -> np.ndarray:
        """Degree of every feature."""
        return self._draws.degrees

    @property
    def signs_(self) -> np.ndarray:
        """The ω_k in columns."""
        return np.hstack([np.empty((self.n_features_in_, 0), np.int8), *self._draws.tables])


class _Shares(NamedTuple):
    """Degrees of all features in ascending order; m_j of the formula; the columns of degree 1 if it is exact."""

    degrees: np.ndarray
    sizes: dict[int, float]
    linear: slice | None


def _draw_degrees(rng: np.random.Generator, degrees: np.ndarray, m: int) -> _Shares:
    """Draw independent degrees with probabilities ∝ 2^{−j}."""
    p = 0.5 ** (degrees - degrees[0])
    p /= p.sum()
    drawn = np.sort(rng.choice(degrees, m, p=p))
    return _Shares(drawn, dict(zip(degrees.tolist(), (m * p).tolist(), strict=True)), None)


def _share(shares: dict[int, float], n_features: int, m: int) -> _Shares:
    """Divide m features among the degrees in proportion to their shares; degrees 0 and 1 are exact if they fit."""
    rest = dict(sorted(sorted(shares.items(), key=lambda item: -item[1])[:m]))
    counts: dict[int, int] = {}
    if 0 in rest:
        counts[0] = 1
        del rest[0]
    left, linear = m - len(counts), None
    fits = 1 in rest and left - n_features >= len(rest) - 1
    if fits and n_features * sum(rest.values()) <= left * rest[1]:
        linear = slice(len(counts), len(counts) + n_features)
        counts[1] = n_features
        left -= n_features
        del rest[1]
    counts |= share_out(rest, left)
    sizes: dict[int, float] = dict(counts)
    if linear is not None:
        sizes[1] = 1.0
    return _Shares(np.repeat(list(counts), list(counts.values())), sizes, linear)
