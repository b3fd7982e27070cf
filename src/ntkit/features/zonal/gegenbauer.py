"""Random Gegenbauer features of generalized zonal kernels: NTK, Gaussian, any dot-product kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import on_one_thread
from ntkit._random import RandomState, generator, keyed
from ntkit._state import Floats, Integer, Many, Optional, Real
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features import directions
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.base import draw_bytes as _draw_bytes
from ntkit.features.draws import RowDraws
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.features.series.base import row_norms
from ntkit.features.zonal import modes as _zonal
from ntkit.features.zonal import spheres
from ntkit.kernels import KernelSpec
from ntkit.kernels.tiles import divide_rows
from ntkit.kernels.zonal import harmonic_dimension, zonal_kernel
from ntkit.networks import UnsupportedError
from ntkit.sketches.tree import is_long, leaf_law

_TILE_BYTES = 2**22  # size of the results that a thread writes at a time
_TILE_ROWS = 128  # smallest number of rows in a tile
RADII = 65  # number of quantiles of the norms that are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class ZonalPlan(Plan):
    """Modes of each factor that become features: exact ones in `blocks`, random ones with `n_random` directions."""

    kernel: KernelSpec
    factors: tuple[_zonal.Factor, ...]
    blocks: list[tuple[_zonal.Mode, ...]]
    random: list[tuple[_zonal.Mode, int]]
    n_random: int
    n_components: int
    orthogonal: bool
    reduction: Any
    """Law of the map that reduces the columns first, or None."""

    @property
    def truncation(self) -> float:
        """Share of k(x, x) that is omitted."""
        held = sum(float(np.prod([mode.energy for mode in modes])) for modes in self.blocks)
        held += sum(mode.energy for mode, _ in self.random)
        held *= all(factor.radial.within for factor in self.factors)
        return max(1 - held / float(np.prod([factor.radial.total for factor in self.factors])), 0.0)


class ZonalDraws(RowDraws):
    """Directions of harmonics and of random features; the tables are the factors with their directions."""

    def __init__(self, plan: ZonalPlan, seed: np.random.SeedSequence):
        super().__init__()
        self.n_components = plan.n_components
        self.blocks, self.random = plan.blocks, plan.random
        self.reduction = None if plan.reduction is None else plan.reduction.sample(keyed(seed, "projection"))
        self.factors = []
        with on_one_thread():
            for number, factor in enumerate(plan.factors):
                w = directions.uniform(
                    keyed(seed, "random"), factor.n_features, plan.n_random, orthogonal=plan.orthogonal
                )
                degrees = sorted({modes[number].degree for modes in plan.blocks})
                self.factors.append(factor.draw(keyed(seed, "group", number), degrees, w))

    def place(self, dtype: Any, device: Any) -> list[_zonal.Factor]:
        """See :meth:`RowDraws.place`."""
        return [factor.placed(dtype, device) for factor in self.factors]

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`."""
        inner = [3 * factor.radial.mixtures.shape[0] + 4 * factor.directions.shape[1] for factor in self.factors]
        return 2 * (3 * X.shape[1] + 2 * self.n_components + sum(inner))

    def tile_rows(self, X: Array, dtype: np.dtype) -> int:
        """See :meth:`RowDraws.tile_rows`."""
        numbers = self.n_components + self.numbers_per_row(X) // 8
        return max(_TILE_ROWS, 2 * _TILE_BYTES // (dtype.itemsize * numbers))

    def fill(self, X: Any, tables: Any, out: Any) -> None:
        """See :meth:`RowDraws.fill`."""
        if _array.is_torch(X):
            out[...] = self._of_rows(X, X.dtype, tables)
        else:
            self._of_rows(X, out.dtype, tables, out=out)

    def features(self, X: Any, tables: Any) -> Any:
        """See :meth:`RowDraws.features`."""
        return self._of_rows(X, X.dtype, tables, differentiable=True)

    def _of_rows(
        self,
        X: Any,
        dtype: Any,
        factors: list[_zonal.Factor],
        *,
        out: np.ndarray | None = None,
        differentiable: bool = False,
    ) -> Any:
        """Compute the features of rows; on the host they are written to `out` if it is given."""
        radial, harmonics, t = [], [], None
        norms = row_norms(X, differentiable=differentiable) if self.reduction is not None else None
        if self.reduction is not None:
            X = self.reduction.apply(X)
        for factor in factors:
            rows = X if factor.columns is None else _part(X, factor.columns, factor.center)
            r = row_norms(rows, differentiable=differentiable)
            cosines = _cosines(rows, r, factor.directions, dtype)
            radial.append(_cast(factor.radial.values(r if norms is None else norms), dtype))
            harmonics.append(factor.harmonics(cosines, differentiable=differentiable))
            t = cosines[:, factor.n_shared :] if t is None else t
        xp: Any = _array.namespace(radial[0])
        pieces: list[Any] = []
        indices = [{mode: i for i, mode in enumerate(factor.radial.modes)} for factor in self.factors]
        filled = 0
        for modes in self.blocks:
            block, last = None, len(modes) - 1
            for i, mode in enumerate(modes):
                values, scales = harmonics[i][mode.degree], radial[i][:, indices[i][mode], None]
                if out is not None and last == 0:  # avoid a copy in the usual case
                    np.multiply(values, scales, out=out[:, filled : filled + values.shape[1]])
                    filled += values.shape[1]
                    continue
                piece = values * scales
                block = piece if block is None else xp.reshape(block[:, :, None] * piece[:, None, :], (X.shape[0], -1))
            if block is not None:
                pieces.append(block)
        if self.random:
            weights = radial[0][:, [indices[0][mode] for mode, _ in self.random]]
            pieces.append(self._random_part(t, weights, xp, differentiable=differentiable))
        if out is None:
            return xp.concat(pieces, axis=1)
        for piece in pieces:
            out[:, filled : filled + piece.shape[1]] = piece
            filled += piece.shape[1]
        return out

    def _random_part(self, t: Any, weights: Any, xp: Any, *, differentiable: bool) -> Any:
        """Compute Σ √α_ℓ h(r) P_ℓ(t)/√M over the modes of each group, the groups side by side."""
        d, size = self.factors[0].n_features, t.shape[1]
        degrees = [mode.degree for mode, _ in self.random]
        groups = [group for _, group in self.random]
        scales = np.array([(harmonic_dimension(k, d) / size) ** 0.5 for k in degrees])
        if _array.is_numpy(t):
            from ntkit.features.zonal._numba import sums

            out = np.empty((len(t), (max(groups) + 1) * size), t.dtype)
            first = np.searchsorted(degrees, np.arange(max(degrees) + 2))
            weights = np.ascontiguousarray(weights * scales, dtype=t.dtype)
            sums(t, weights, first, np.array(groups), *_zonal.recursions(max(degrees), d, t.dtype), out)
            return out
        weights = weights * xp.asarray(scales, dtype=weights.dtype, device=weights.device)
        if _array.has_triton(t) and not differentiable:
            from ntkit.features.zonal import _triton

            spread = xp.zeros((len(t), max(groups) + 1, max(degrees) + 1), dtype=t.dtype, device=t.device)
            spread[:, groups, degrees] = weights
            return _triton.sums(t, spread, *_zonal.recursions(max(degrees), d, np.float64))
        before, value = xp.zeros_like(t), xp.ones_like(t)
        parts: dict[int, Any] = {}
        steps, backs = _zonal.recursions(max(degrees), d, np.float64)
        for k in range(max(degrees) + 1):
            if k:
                before, value = value, float(steps[k]) * t * value - float(backs[k]) * before
            for i in np.flatnonzero(np.array(degrees) == k):
                term = weights[:, i, None] * value
                parts[groups[i]] = parts[groups[i]] + term if groups[i] in parts else term
        return xp.concat([parts[group] for group in sorted(parts)], axis=1)


class GegenbauerFeatures(FeatureMap):
    """Features of a zonal kernel by Gegenbauer polynomials: spherical harmonics that fit, then random features.

    Let x, y in R^d be rows of norms r, r' and cosine t. A generalized zonal kernel is

        k(x, y) = Σ_ℓ Σ_i h_{ℓ,i}(r) h_{ℓ,i}(r') P_ℓ(t),   P_ℓ(⟨u, v⟩) = α_ℓ E_w P_ℓ(⟨u, w⟩) P_ℓ(⟨v, w⟩)

    with the Gegenbauer polynomials P_ℓ of dimension d (P_ℓ(1) = 1), the number α_ℓ of harmonics of degree ℓ, and w
    uniform on the sphere. Definition 8 of [1]_ takes M directions w_j and s radial functions, n_components = M s:

        Z(x)_{j,i} = M^{-1/2} Σ_{ℓ ≤ q} √α_ℓ h_{ℓ,i}(r) P_ℓ(⟨x, w_j⟩/r),   E Z(x)·Z(y) = Σ_{ℓ ≤ q, i < s} …

    This is ``harmonics=False``. By default, the modes (ℓ, i) with the largest eigenvalues E h_{ℓ,i}(r)²/α_ℓ that fit in
    n_components become exact features: all α_ℓ harmonics of each mode, without randomness. Only the remaining
    components are random. In low dimensions none remain, and the features are then optimal for uniform directions among
    all features of their number.

    Parameters
    ----------
    kernel : {"ntk", "nngp", "gaussian", "exponential", "arc_cosine"}, callable or sequence of float
        NTK or NNGP kernel of `depth` ReLU layers, exp(−‖x − y‖²/(2ℓ²)), exp(⟨x, y⟩/ℓ²), or ‖x‖^p ‖y‖^p κ_p(cos) with
        the arc-cosine function of order p = `power`. A function κ of arrays of cosines gives ‖x‖^p ‖y‖^p κ(cos), and
        Taylor coefficients a_j ≥ 0 give Σ a_j ⟨x, y⟩^j.
    n_components : int
        Number of features. There may be fewer, if these represent the kernel up to rounding errors.
    depth : int
        Number L of ReLU layers of "ntk" and "nngp".
    power : int
        p of "arc_cosine" (0, 1 or 2) and of a function.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian" and "exponential"; "scale": √(d·Var(X)/2), as in :class:`RandomFourierFeatures`.
    degree : int or "auto"
        Highest degree q. "auto": the highest degree whose harmonics all fit (up to 1024; degrees that vanish in the
        kernel take no components), or 20 if that is higher. In high dimensions it stops below 20: degrees with more
        than 8 times as many harmonics as components would give random features with rare but huge values.
    order : int or "auto"
        Largest number s of radial functions per degree; "auto": the number that the norms in `fit` need. The radial
        functions of the paper are monomials; here they are the combinations of monomials that represent most of the
        kernel at the norms in `fit`.
    harmonics : bool
        Whether modes that fit become exact features.
    tolerance : float ≥ 0
        Largest share of k(x, x), on average, that random features may omit: the smallest modes.
    directions : {"orthogonal", "gaussian"}
        Law of the random directions. All are uniform: "orthogonal" ones are orthogonal in blocks of min(d, 256) and
        have less variance; "gaussian" ones are independent.
    groups : "auto", None or sequence of sequences of int
        Groups of columns; each column is in one group. The Gaussian kernel is the product of the kernels of the groups,
        each group has its own modes, and the features are products of modes. For a place on a sphere and a time:
        ``[(0, 1, 2), (3,)]``. For "gaussian" only. All features are harmonics, and modes that do not fit are omitted.
        "auto": `fit` looks for columns that lie on a sphere, such as unit vectors of places or the cosine and sine of
        an hour. They may be anywhere among the columns, and may be standardized. Each sphere becomes a group, and the
        other columns become one more group, if the features then represent more of the kernel without randomness (see
        Notes). None: columns are not split. "auto" does not split them either for other kernels, with
        ``harmonics=False``, with `projection`, or for more than 64 columns.
    projection : int, optional
        Dimension to which rows are first reduced by an SRHT (by an OSNAP if there are more than four times as many
        columns), with their norms kept. Use it for many columns, where even degree 2 has too many harmonics.
    batch_size : int or None
        Largest number of rows to work on at a time; None: chosen to suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size, up to
        rounding.

    Attributes
    ----------
    degree_ : int
        Highest degree used.
    modes_ : list of tuple
        (degree, index of the radial function) of each exact mode; with `groups`, a tuple with one such pair per group.
    random_modes_ : list of tuple
        (degree, index of the radial function) of each mode that is represented by random features.
    truncation_ : float
        Share of k(x, x) that the features omit, averaged over the norms in `fit`.
    lengthscale_ : float
        ℓ; only meaningful for "gaussian" and "exponential".
    groups_ : list of list of int, or None
        Columns of each group; None: columns are not split.
    center_ : ndarray of shape (n_features,), or None
        The point that is subtracted from rows if ``groups="auto"`` has split the columns. It does not change the
        kernel.
    radii_ : ndarray
        Quantiles of the norms in `fit`, a row for each group. The map learns nothing else from the data.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Theorem 9 of [1]_: Z Zᵀ + λI lies between (K + λI)/(1 + ε) and (K + λI)/(1 − ε) with probability 1 − δ for
    M ≥ (8/3) ε⁻² log(16 s_λ/δ) Σ_ℓ α_ℓ min(π²(ℓ + 1)²/(6λ) Σ_j ‖h_ℓ(r_j)‖², s) random directions. Theorems 11 and 12
    bound the relevant degrees and orders by the radius. Exact features have no variance. A row takes O(m (d + q)) for
    random features, and α_ℓ² for an exact degree. The number of harmonics grows like d^ℓ/ℓ!, so for more than about ten
    columns other maps are better (``docs/design/zonal.md``).

    ``groups="auto"`` searches 4096 rows for combinations of squared columns that are constant to about three digits:
    such rows lie on a sphere around the origin. For spheres around other points, such as the spheres of standardized
    rows, the combinations include the columns themselves, and the axes may differ by a factor of 2. Columns with only
    two values, such as one-hot columns, never belong to a sphere. The number of rows must be more than four times the
    number of columns. Rows are then centred, which does not change the kernel: each sphere at its centre (or at the
    mean of the rows, if they cover a small part of it), and other columns at their means or the middle of their ranges,
    whichever omits less of the kernel. Near a sphere, each degree keeps one radial function if the others hold less
    than 1 % of the kernel, because higher degrees are then a better use of the features.

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022, arXiv:2202.03474.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import GegenbauerFeatures
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((200, 3))
    >>> X /= np.linalg.norm(X, axis=1, keepdims=True)
    >>> Z = GegenbauerFeatures("gaussian", n_components=256, lengthscale=0.5, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=0.5)).max() < 1e-6)
    True

    Places on the sphere at different times:

    >>> X = np.column_stack([X, np.linspace(0, 12, 200)])
    >>> GegenbauerFeatures("gaussian", n_components=256, lengthscale=0.5, random_state=0).fit(X).groups_
    [[0, 1, 2], [3]]
    """

    _learned: ClassVar[dict[str, Any]] = {
        "lengthscale_": Real(0, strict=True),
        "radii_": Floats(None, RADII, minimum=0),
        "groups_": Optional(Many(Many(Integer(0)))),
        "center_": Optional(Floats("n_features_in_")),
    }
    _remade: ClassVar[tuple[str, ...]] = ("modes_", "random_modes_", "degree_", "truncation_")

    _old_names: ClassVar[dict[str, Any]] = {"orthogonal": ("directions", lambda x: "orthogonal" if x else "gaussian")}
    _old_positions: ClassVar[int] = 2

    def __init__(
        self,
        kernel: str | Callable[[np.ndarray], np.ndarray] | Sequence[float] = "ntk",
        *,
        n_components: int = 1024,
        depth: int = 1,
        power: int = 1,
        lengthscale: float | str = "scale",
        degree: int | str = "auto",
        order: int | str = "auto",
        harmonics: bool = True,
        tolerance: float = 1e-3,
        directions: str = "orthogonal",
        groups: str | Sequence[Sequence[int]] | None = "auto",
        projection: int | None = None,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.n_components = n_components
        self.depth = depth
        self.power = power
        self.lengthscale = lengthscale
        self.degree = degree
        self.order = order
        self.harmonics = harmonics
        self.tolerance = tolerance
        self.directions = directions
        self.groups = groups
        self.projection = projection
        self.batch_size = batch_size
        self.random_state = random_state

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:
        lengthscale = check_lengthscale(self.lengthscale, type(self).__name__)
        if lengthscale is None:
            spec = self._check_spec(1.0)
            scaled = isinstance(self.kernel, str) and hasattr(spec, "lengthscale")
            lengthscale = default_lengthscale(X) if scaled else getattr(spec, "lengthscale", 1.0)
        learned: dict[str, Any] = {"lengthscale_": lengthscale, "groups_": None, "center_": None}
        if self._splits_columns():
            learned |= self._find_groups(X, lengthscale, seed)
        return learned | {"radii_": self._norms(X, learned["groups_"], learned["center_"])}

    def _splits_columns(self) -> bool:
        """Return whether `fit` may split the columns by ``groups="auto"``."""
        auto = self._is_auto("groups", "None or a sequence of groups of columns")
        gaussian = isinstance(self.kernel, str) and self.kernel == "gaussian"
        return auto and gaussian and self.harmonics is True and self.projection is None

    def _find_groups(self, X: Any, lengthscale: float, seed: np.random.SeedSequence) -> dict[str, Any]:
        """Split the columns by the spheres on which rows lie, if exact modes then represent more of the kernel."""
        m = check_int(self.n_components, "n_components", type(self).__name__, minimum=1)
        with on_one_thread():
            found = spheres.find_groups(X, generator(seed, "spheres"))
            if not found:
                return {}
            plans: list[Any] = [(None, None), *found]
            shares = []
            for groups, center in plans:
                learned = {"groups_": groups, "center_": center, "radii_": self._norms(X, groups, center)}
                factors = self._make_factors(X.shape[1], None, self._check_spec(lengthscale), learned)
                shares.append(_zonal.share_left(factors, m))
        groups, center = plans[int(np.argmin(shares))]
        return {"groups_": groups, "center_": center}

    def _norms(self, X: Any, groups: list[list[int]] | None, center: np.ndarray | None) -> np.ndarray:
        """Compute quantiles of the norms of the rows, for each group of columns."""
        pairs = ((columns, _center_of(columns, center)) for columns in self._check_groups(X.shape[1], groups))
        return np.stack([_quantiles(X if columns is None else _part(X, columns, c)) for columns, c in pairs])

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> ZonalPlan:
        with on_one_thread():
            return self._choose(shape, learned)

    def _choose(self, shape: tuple[int, ...], learned: dict[str, Any]) -> ZonalPlan:
        name, (n_columns,) = type(self).__name__, shape
        m = check_int(self.n_components, "n_components", name, minimum=1)
        whole = check_bool(self.harmonics, "harmonics", name)
        orthogonal = check_choice(self.directions, "directions", name, ("orthogonal", "gaussian")) == "orthogonal"
        tolerance = check_real(self.tolerance, "tolerance", name, minimum=0, maximum=1)
        reduction = self._check_projection(n_columns)
        spec = self._check_spec(learned["lengthscale_"])
        factors = self._make_factors(n_columns, reduction, spec, learned)
        if learned["center_"] is not None and isinstance(self.order, str):
            for factor, radii in zip(factors, learned["radii_"], strict=True):
                if factor.n_features > 1:
                    factor.radial.thin(radii)
        if whole:
            exact, random, left = _zonal.choose(factors, m, tolerance)
        else:
            radial = factors[0].radial
            exact, random, left = [], _zonal.random_modes(radial.modes, tolerance * radial.total), m
        grouped, n_groups = _zonal.grouped(random, left)
        size = left // n_groups if n_groups else 0
        n_components = sum(_size(modes, factors) for modes in exact) + n_groups * size
        if not n_components:
            raise ValueError(
                f"With n_components={m} and tolerance={tolerance}, {name} has no features of this kernel. Raise "
                "n_components or lower tolerance."
            )
        for number, factor in enumerate(factors):
            used = {modes[number] for modes in exact} | {mode for mode, _ in grouped}
            factor.radial.take(sorted(used, key=lambda mode: (mode.degree, mode.index)))
        return ZonalPlan(
            shape=shape,
            kernel=spec,
            factors=tuple(factors),
            blocks=exact,
            random=grouped,
            n_random=size,
            n_components=n_components,
            orthogonal=orthogonal,
            reduction=reduction,
        )

    def _make_factors(
        self, n_columns: int, reduction: Any, spec: KernelSpec, learned: dict[str, Any]
    ) -> list[_zonal.Factor]:
        """Make the kernel of each group of columns, with all modes that may become features."""
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        order = None if self._is_auto("order", "an int ≥ 1") else check_int(self.order, "order", name, minimum=1)
        function = self._series(spec)
        factors = []
        groups = self._check_groups(n_columns, learned["groups_"])
        for columns, radii in zip(groups, learned["radii_"], strict=True):
            d = n_columns if columns is None else len(columns)
            d = d if reduction is None else reduction.n_components
            if self._is_auto("degree", "an int ≥ 0"):
                radial = _zonal.Radial.for_components(function, d, radii, m, order)
            else:
                most = 1 if d == 1 and columns is None else None
                degree = check_int(self.degree, "degree", name, minimum=0, maximum=most)
                radial = _zonal.Radial.of_kernel(function, d, radii, min(degree, 1) if d == 1 else degree, order)
            factors.append(_zonal.Factor(columns, d, radial, _center_of(columns, learned["center_"])))
        return factors

    def _draw_bytes(self, plan: ZonalPlan) -> int:
        """Count the kernel matrices of candidate directions for harmonics, and all directions.

        Times are counted as bytes that could be filled meanwhile. A block of orthogonal directions takes at least
        0.1 ms (2¹⁴ bytes). Polynomials of all pairs of candidates take 4 ns per pair and degree (half a byte).
        """
        total = _draw_bytes(plan.reduction)
        for number, factor in enumerate(plan.factors):
            sizes = [harmonic_dimension(modes[number].degree, factor.n_features) for modes in plan.blocks] or [0]
            n_candidates = _zonal.count_candidates(max(sizes)) if factor.n_features > 2 else sum(sizes)
            total += 32 * factor.n_features * (n_candidates + plan.n_random + 256)
            total += 2**14 * plan.n_random // factor.n_features if plan.orthogonal else 0
            if factor.n_features > 2:
                n_steps = sum({modes[number].degree for modes in plan.blocks})
                total += (48 + n_steps // 2) * n_candidates**2 + 8 * sum(size**2 for size in set(sizes))
        return total

    def _draw(self, plan: ZonalPlan, seed: np.random.SeedSequence) -> ZonalDraws:
        return ZonalDraws(plan, seed)

    def _describe(self, plan: ZonalPlan, draws: ZonalDraws) -> dict[str, Any]:  # noqa: ARG002
        pairs = [tuple((mode.degree, mode.index) for mode in modes) for modes in plan.blocks]
        return {
            "modes_": [pair[0] if len(plan.factors) == 1 else pair for pair in pairs],
            "random_modes_": [(mode.degree, mode.index) for mode, _ in plan.random],
            "degree_": max(mode.degree for factor in plan.factors for mode in factor.radial.modes),
            "truncation_": plan.truncation,
            "groups_": [f.columns.tolist() for f in plan.factors if f.columns is not None] or None,
        }

    def _is_auto(self, parameter: str, others: str) -> bool:
        """Return whether a parameter is "auto"; raise an error if it is another string."""
        value = getattr(self, parameter)
        if isinstance(value, str) and value != "auto":
            raise ValueError(message(type(self).__name__, parameter, f"'auto' or {others}", value))
        return isinstance(value, str)

    def _check_groups(self, n_columns: int, found: list[list[int]] | None) -> list[np.ndarray | None]:
        """Return the columns of each group, from the parameter or `found`; None stands for all columns."""
        chosen: Any = self.groups
        if isinstance(chosen, str):
            chosen = found if self._splits_columns() else None
        if chosen is None:
            return [None]
        name, d = type(self).__name__, n_columns
        rule = f"'auto', None or a sequence of groups that contain each column from 0 to {d - 1} exactly once"
        try:
            groups = [np.array([index(column) for column in group], dtype=np.int64) for group in chosen]
        except (TypeError, ValueError):
            raise TypeError(message(name, "groups", rule, chosen)) from None
        if not groups or sorted(np.concatenate(groups).tolist()) != list(range(d)) or any(not len(g) for g in groups):
            raise ValueError(message(name, "groups", rule, chosen))
        gaussian = isinstance(self.kernel, str) and self.kernel == "gaussian"
        for parameter, right in (("kernel", gaussian), ("harmonics", self.harmonics is True)):
            if not right:
                rule = f"{'gaussian' if parameter == 'kernel' else True!r} with groups"
                raise ValueError(message(name, parameter, rule, getattr(self, parameter)))
        if self.projection is not None:
            raise ValueError(message(name, "projection", "None with groups", self.projection))
        return list(groups)

    def _check_projection(self, n_columns: int) -> Any:
        """Return the law of the map that reduces the number of columns, or None if there is nothing to reduce."""
        if self.projection is None:
            return None
        size = check_int(self.projection, "projection", type(self).__name__, minimum=1)
        return None if size >= n_columns else leaf_law(n_columns, size, sparse=is_long(n_columns, size))

    def _check_spec(self, lengthscale: float) -> KernelSpec:
        """Return the kernel given by the parameters and a length scale."""
        name = type(self).__name__
        power = check_int(self.power, "power", name, minimum=0)
        return zonal_kernel(self.kernel, name, depth=self.depth, power=power, lengthscale=lengthscale)

    def _series(self, spec: KernelSpec) -> Any:
        try:
            return spec.zonal
        except UnsupportedError as error:
            rule = f"a kernel that expands in radial functions and Gegenbauer polynomials. ({error})"
            raise ValueError(message(type(self).__name__, "kernel", rule, self.kernel)) from error


def _size(modes: Sequence[_zonal.Mode], factors: Sequence[_zonal.Factor]) -> int:
    """Return the number of features of a product of modes."""
    pairs = zip(modes, factors, strict=True)
    return int(np.prod([harmonic_dimension(mode.degree, factor.n_features) for mode, factor in pairs]))


def _part(X: Any, columns: np.ndarray, center: np.ndarray | None) -> Any:
    """Return some columns of rows, minus their centre if given; centred columns are dense and float64."""
    X = X[:, columns]
    if center is None:
        return X
    if _array.is_sparse(X):
        X = X.toarray()
    X = _array.namespace(X).astype(X, _array.wide_dtype(X), copy=False)
    return X - _array.constant(center, X)


def _center_of(columns: np.ndarray | None, center: np.ndarray | None) -> np.ndarray | None:
    """Return the point that is subtracted from columns, or None if it is 0."""
    point = None if columns is None or center is None else center[columns]
    return point if point is not None and point.any() else None


def _quantiles(X: Any) -> np.ndarray:
    """Compute quantiles of the norms of rows."""
    norms = row_norms(X)
    norms = norms.cpu().numpy() if _array.is_torch(norms) else norms
    return np.quantile(norms, np.linspace(0, 1, RADII))


def _cosines(X: Any, norms: Any, directions: Any, dtype: Any) -> Any:
    """Compute ⟨x, w⟩/‖x‖, which is 0 for a zero row."""
    if _array.is_sparse(X):
        return np.asarray(divide_rows(X.astype(np.float64), norms).astype(dtype) @ directions)
    return _cast(divide_rows(X, norms), dtype) @ directions


def _cast(X: Any, dtype: Any) -> Any:
    if _array.is_torch(X):
        return X.to(dtype)
    return _array.namespace(X).astype(X, dtype) if _array.is_traced(X) else np.ascontiguousarray(X, dtype)
