"""Random Gegenbauer features of generalized zonal kernels: NTK, Gaussian, any dot-product kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, on_one_thread, row_batches, run_on_threads
from ntkit._precision import exact_products
from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool, check_int, check_real, message
from ntkit.features import _zonal
from ntkit.features._base import FeatureMap
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.features._series import row_norms
from ntkit.kernels import KernelSpec
from ntkit.kernels.tiles import divide_rows
from ntkit.kernels.zonal import harmonic_dimension, zonal_kernel
from ntkit.networks import UnsupportedError

_TILE_BYTES = 2**22  # of the result that a thread writes at a time
_TILE_ROWS = 128
RADII = 65  # quantiles of the norms that are kept
_HIGHEST = 256  # degree chosen by itself
_RANDOM = 20  # highest degree of random features chosen by itself


class GegenbauerFeatures(FeatureMap):
    """Features of a zonal kernel by Gegenbauer polynomials: spherical harmonics where they fit, random ones beyond.

    A generalized zonal kernel of rows x, y in R^d of norms r, r' and cosine t is, with the Gegenbauer polynomials P_ℓ
    of dimension d (P_ℓ(1) = 1) and α_ℓ the number of harmonics of degree ℓ,

        k(x, y) = Σ_ℓ Σ_i h_{ℓ,i}(r) h_{ℓ,i}(r') P_ℓ(t),   P_ℓ(⟨u, v⟩) = α_ℓ E_w P_ℓ(⟨u, w⟩) P_ℓ(⟨v, w⟩)

    for w uniform on the sphere. Definition 8 of [1]_ takes M directions w_j and s radial functions, n_components = M s:

        Z(x)_{j,i} = M^{-1/2} Σ_{ℓ ≤ q} √α_ℓ h_{ℓ,i}(r) P_ℓ(⟨x, w_j⟩/r),   E Z(x)·Z(y) = Σ_{ℓ ≤ q, i < s} …

    That is ``harmonics=False``. By default the modes (ℓ, i) of the largest eigenvalues E h_{ℓ,i}(r)²/α_ℓ that fit in
    n_components are features without randomness, all α_ℓ harmonics of each; only what is left is random. In
    low dimensions nothing is left: the features are then the best ones of their number for uniform directions.

    Parameters
    ----------
    kernel : {"ntk", "nngp", "gaussian", "exponential", "arc_cosine"}, callable or sequence of float
        NTK or NNGP kernel of `depth` ReLU layers, exp(−‖x − y‖²/(2ℓ²)), exp(⟨x, y⟩/ℓ²), ‖x‖^p ‖y‖^p κ_p(cos) with the
        arc-cosine function of order p = `power`; a function κ of arrays of cosines, for ‖x‖^p ‖y‖^p κ(cos); or
        Taylor coefficients a_j ≥ 0, for Σ a_j ⟨x, y⟩^j.
    n_components : int
        Number of features. There are fewer if all that matter to the kernel within rounding are fewer.
    depth : int
        Number L of ReLU layers of "ntk" and "nngp".
    power : int
        p of "arc_cosine" (0, 1 or 2) and of a function.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian" and "exponential"; "scale": √(d·Var(X)/2), as :class:`RandomFourierFeatures` has it.
    degree : int or "auto"
        Highest degree q. "auto": that of the last whole degree that fits, or 20, or less in high dimensions, where
        degrees of more than 8 times as many harmonics as components make random features of rare but huge values.
    order : int or "auto"
        Most radial functions of a degree, s; "auto": as many as the norms seen in `fit` need. The s of the paper are
        monomials; ours are the mixtures of them that hold most of the kernel at the norms seen.
    harmonics : bool
        Whether modes that fit become features whole.
    tolerance : float ≥ 0
        Share of k(x, x), on average, that random features may leave out: modes that add up to less.
    orthogonal : bool
        Whether random directions are orthogonal in blocks of d (256 at most); less variance, as unbiased.
    groups : sequence of sequences of int, optional
        Columns, each in one group: the Gaussian kernel is the product of those of the groups, which then have modes of
        their own, and products of modes are features. For a place on a sphere and a time: ``[(0, 1, 2), (3,)]``.
        For "gaussian" only; all features are harmonics, and what does not fit is left out.
    projection : int, optional
        Dimension to which rows are reduced by an SRHT (an OSNAP if rows are
        more than four times as long) before, norms kept; for rows of many
        columns, of which even degree 2 has too many harmonics.
    batch_size : int or None
        Most rows to work on at a time; None: as many as suit the cache or the device.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size, up to
        rounding.

    Attributes
    ----------
    degree_ : int
        Highest degree used.
    modes_ : list of tuple
        (degree, index of the radial function) of each mode that is taken whole; pairs of these with `groups`.
    random_modes_ : list of tuple
        The same of the modes that random features hold.
    truncation_ : float
        Share of k(x, x) that the features leave out, on average over the norms seen.
    lengthscale_ : float
        ℓ; without meaning but for "gaussian" and "exponential".
    radii_ : ndarray
        Quantiles of the norms seen in `fit` (a row for each of `groups`): all that the map knows of the data.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Theorem 9 of [1]_: Z Zᵀ + λI lies between (K + λI)/(1 + ε) and (K + λI)/(1 − ε) with probability 1 − δ for
    M ≥ (8/3) ε⁻² log(16 s_λ/δ) Σ_ℓ α_ℓ min(π²(ℓ + 1)²/(6λ) Σ_j ‖h_ℓ(r_j)‖², s) random directions; Theorems 11 and 12
    bound the degrees and orders that matter by the radius. Features taken whole have no variance. O(m (d + q)) per
    row for random features, and α_ℓ² for a degree that is taken whole. The numbers of harmonics grow like d^ℓ/ℓ!: in
    more than some ten columns other maps are better (``docs/design/zonal.md``).

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
    >>> Z = GegenbauerFeatures("gaussian", 256, lengthscale=0.5, random_state=0).fit_transform(X)
    >>> bool(np.abs(Z @ Z.T - gaussian(X, lengthscale=0.5)).max() < 1e-6)
    True
    """

    _learned: ClassVar[tuple[str, ...]] = ("lengthscale_", "radii_")

    def __init__(
        self,
        kernel: str | Callable[[np.ndarray], np.ndarray] | Sequence[float] = "ntk",
        n_components: int = 1024,
        *,
        depth: int = 1,
        power: int = 1,
        lengthscale: float | str = "scale",
        degree: int | str = "auto",
        order: int | str = "auto",
        harmonics: bool = True,
        tolerance: float = 1e-3,
        orthogonal: bool = True,
        groups: Sequence[Sequence[int]] | None = None,
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
        self.orthogonal = orthogonal
        self.groups = groups
        self.projection = projection
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Choose the modes for the norms of the rows of X, and draw the map.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
            Only the number of features, quantiles of the norms of the rows and, with ``lengthscale="scale"``, the
            variance of the entries matter (of the first rows of a Dask collection).
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            if self.batch_size is not None:
                check_int(self.batch_size, "batch_size", name, minimum=1)
            lengthscale = check_lengthscale(self.lengthscale, name)
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            if lengthscale is None:
                self.lengthscale_ = 1.0
                spec = self._check_spec()
                scaled = isinstance(self.kernel, str) and hasattr(spec, "lengthscale")
                lengthscale = default_lengthscale(X) if scaled else getattr(spec, "lengthscale", 1.0)
            self.lengthscale_ = lengthscale
            self._sparse = _array.is_sparse(X)
            groups = self._check_groups()
            self.radii_ = np.stack([_quantiles(X if columns is None else X[:, columns]) for columns in groups])
            self._draw(seed)
        return self

    def _draw(self, seed: np.random.SeedSequence) -> None:
        """Choose the modes and make the draws for ``n_features_in_``, ``radii_`` and ``lengthscale_``."""
        with on_one_thread():
            self._choose(seed)

    def _choose(self, seed: np.random.SeedSequence) -> None:
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        order = None if self._is_auto("order", 1) else check_int(self.order, "order", name, minimum=1)
        whole = check_bool(self.harmonics, "harmonics", name)
        check_bool(self.orthogonal, "orthogonal", name)
        tolerance = check_real(self.tolerance, "tolerance", name, minimum=0, maximum=1)
        groups = self._check_groups()
        self._reduction = self._draw_projection(keyed(seed, "projection"))
        self._spec = self._check_spec()
        function = self._series()
        self._factors = []
        for columns, radii in zip(groups, self.radii_, strict=True):
            d = self._reduction.n_components if self._reduction is not None else self.n_features_in_
            d = d if columns is None else len(columns)
            radial = _zonal.Radial.of(function, d, radii, self._degree(d, m), order)
            self._factors.append(_zonal.Factor(columns, d, radial))
        if whole:
            exact, random, left = _zonal.choose(self._factors, m, tolerance)
        else:
            radial = self._factors[0].radial
            exact, random, left = [], _zonal.random_modes(radial.modes, tolerance * radial.total), m
        self._blocks = exact
        self._random, n_groups = _zonal.grouped(random, left)
        size = left // n_groups if n_groups else 0
        self._n_features_out = sum(map(self._size, exact)) + n_groups * size
        if not self._n_features_out:
            raise ValueError(
                f"{name} has no feature: with n_components={m} and tolerance={tolerance} none of this kernel is left. "
                "Raise n_components or lower the tolerance."
            )
        for number, factor in enumerate(self._factors):
            used = {modes[number] for modes in exact} | {mode for mode, _ in self._random}
            factor.radial.take(sorted(used, key=lambda mode: (mode.degree, mode.index)))
            directions = _zonal.draw_directions(
                keyed(seed, "random"), factor.n_features, size, orthogonal=self.orthogonal
            )
            degrees = sorted({modes[number].degree for modes in exact})
            factor.draw(keyed(seed, "group", number), degrees, directions)
        self._describe()
        self._placed: list[tuple[Any, list[_zonal.Factor]]] = []

    def _describe(self) -> None:
        """Attributes that say what the features hold."""
        single = len(self._factors) == 1
        pairs = [tuple((mode.degree, mode.index) for mode in modes) for modes in self._blocks]
        self.modes_ = [pair[0] if single else pair for pair in pairs]
        self.random_modes_ = [(mode.degree, mode.index) for mode, _ in self._random]
        self.degree_ = max(mode.degree for factor in self._factors for mode in factor.radial.modes)
        held = sum(float(np.prod([mode.energy for mode in modes])) for modes in self._blocks)
        held += sum(mode.energy for mode, _ in self._random)
        held *= all(factor.radial.within for factor in self._factors)
        self.truncation_ = max(1 - held / float(np.prod([factor.radial.total for factor in self._factors])), 0.0)

    def _size(self, modes: Sequence[_zonal.Mode]) -> int:
        """Features of a product of modes."""
        sizes = [
            harmonic_dimension(mode.degree, factor.n_features)
            for mode, factor in zip(modes, self._factors, strict=True)
        ]
        return int(np.prod(sizes))

    def _is_auto(self, parameter: str, minimum: int) -> bool:
        value = getattr(self, parameter)
        if isinstance(value, str) and value != "auto":
            raise ValueError(message(type(self).__name__, parameter, f"'auto' or an int ≥ {minimum}", value))
        return isinstance(value, str)

    def _degree(self, n_features: int, n_components: int) -> int:
        """The degree given, or one beyond which no degree fits whole; but not too few for random features."""
        if not self._is_auto("degree", 0):
            name = type(self).__name__
            most = 1 if n_features == 1 and self.groups is None else None
            degree = check_int(self.degree, "degree", name, minimum=0, maximum=most)
            return min(degree, 1) if n_features == 1 else degree
        if n_features == 1:
            return 1
        degree, left = 0, n_components
        while left > 0 and degree < _HIGHEST:
            left -= harmonic_dimension(degree, n_features)
            degree += 1
        degree = max(degree, 2)
        while degree < _RANDOM and harmonic_dimension(degree + 1, n_features) <= _zonal.HARMONICS * n_components:
            degree += 1
        return degree

    def _check_groups(self) -> list[np.ndarray | None]:
        """Columns of each group; None for all."""
        if self.groups is None:
            return [None]
        name, d = type(self).__name__, self.n_features_in_
        rule = f"None or a sequence of groups of columns in which each of 0 to {d - 1} is once"
        try:
            groups = [np.array([index(column) for column in group], dtype=np.int64) for group in self.groups]
        except (TypeError, ValueError):
            raise TypeError(message(name, "groups", rule, self.groups)) from None
        if not groups or sorted(np.concatenate(groups).tolist()) != list(range(d)) or any(not len(g) for g in groups):
            raise ValueError(message(name, "groups", rule, self.groups))
        gaussian = isinstance(self.kernel, str) and self.kernel == "gaussian"
        for parameter, right in (("kernel", gaussian), ("harmonics", self.harmonics is True)):
            if not right:
                rule = f"{'gaussian' if parameter == 'kernel' else True!r} with groups"
                raise ValueError(message(name, parameter, rule, getattr(self, parameter)))
        if self.projection is not None:
            raise ValueError(message(name, "projection", "None with groups", self.projection))
        return list(groups)

    def _draw_projection(self, seed: np.random.SeedSequence) -> Any:
        """Operator that reduces the number of columns, None where there is nothing to reduce."""
        if self.projection is None:
            return None
        from ntkit.sketches.tree import is_long, leaf_law

        size = check_int(self.projection, "projection", type(self).__name__, minimum=1)
        if size >= self.n_features_in_:
            return None
        law = leaf_law(self.n_features_in_, size, sparse=is_long(self.n_features_in_, size))
        return law.sample(seed)

    def _transform(self, X: Array) -> Array:
        if not _array.is_torch(X):
            return self._on_host(X, _array.result_dtype(X))
        import torch

        dtype = _array.result_dtype(X)
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        differentiable = _array.wants_gradient([X])
        if X.device.type == "cpu" and not differentiable:
            view = _array.host_view(X.to(wide))
            return torch.from_numpy(self._on_host(view, view.dtype)).to(dtype)  # type: ignore[union-attr]
        factors = self._tables(wide, X.device)
        with exact_products():
            if differentiable:
                return self._of_rows(X.to(wide), wide, factors, differentiable=True).to(dtype)
            Z = torch.empty((X.shape[0], self._n_features_out), dtype=dtype, device=X.device)
            for rows in row_batches(X.shape[0], 8 * self._numbers_per_row(), batch_size=self.batch_size, like=X):
                Z[rows] = self._of_rows(X[rows].to(wide), wide, factors)
        return Z

    def _numbers_per_row(self) -> int:
        """Numbers held for a row, about."""
        inner = [3 * factor.radial.mixtures.shape[0] + 4 * factor.directions.shape[1] for factor in self._factors]
        return 3 * self.n_features_in_ + 2 * self._n_features_out + sum(inner)

    def _on_host(self, X: Any, dtype: Any) -> np.ndarray:
        """Tiles of rows on threads."""
        Z = np.empty((X.shape[0], self._n_features_out), dtype)
        step = max(_TILE_ROWS, 2 * _TILE_BYTES // (Z.itemsize * (self._n_features_out + self._numbers_per_row() // 4)))
        step = batch_rows(len(Z), 1, batch_size=step if self.batch_size is None else min(step, self.batch_size))
        factors = self._tables(Z.dtype, None)

        def fill(start: int) -> None:
            rows = slice(start, start + step)
            self._of_rows(X[rows], Z.dtype, factors, out=Z[rows])

        run_on_threads(fill, range(0, len(Z), step))
        return Z

    def _of_rows(
        self,
        X: Any,
        dtype: Any,
        factors: list[_zonal.Factor],
        *,
        out: np.ndarray | None = None,
        differentiable: bool = False,
    ) -> Any:
        """Features of some rows, written to `out` if it is given (on the host)."""
        radial, harmonics, t = [], [], None
        norms = row_norms(X, differentiable=differentiable) if self._reduction is not None else None
        if self._reduction is not None:
            X = self._reduction.apply(X)
        for factor in factors:
            rows = X if factor.columns is None else X[:, factor.columns]
            r = row_norms(rows, differentiable=differentiable)
            cosines = _cosines(rows, r, factor.directions, dtype)
            radial.append(_cast(factor.radial.values(r if norms is None else norms), dtype))
            harmonics.append(factor.harmonics(cosines, differentiable=differentiable))
            t = cosines[:, factor.n_shared :] if t is None else t
        xp: Any = _array.namespace(radial[0])
        pieces: list[Any] = []
        places = [{mode: i for i, mode in enumerate(factor.radial.modes)} for factor in self._factors]
        filled = 0
        for modes in self._blocks:
            block, last = None, len(modes) - 1
            for i, mode in enumerate(modes):
                values, scales = harmonics[i][mode.degree], radial[i][:, places[i][mode], None]
                if out is not None and last == 0:  # the usual case without a copy
                    np.multiply(values, scales, out=out[:, filled : filled + values.shape[1]])
                    filled += values.shape[1]
                    continue
                piece = values * scales
                block = piece if block is None else xp.reshape(block[:, :, None] * piece[:, None, :], (X.shape[0], -1))
            if block is not None:
                pieces.append(block)
        if self._random:
            weights = radial[0][:, [places[0][mode] for mode, _ in self._random]]
            pieces.append(self._random_part(t, weights, xp, differentiable=differentiable))
        if out is None:
            return xp.concat(pieces, axis=1)
        for piece in pieces:
            out[:, filled : filled + piece.shape[1]] = piece
            filled += piece.shape[1]
        return out

    def _random_part(self, t: Any, weights: Any, xp: Any, *, differentiable: bool) -> Any:
        """Σ √α_ℓ h(r) P_ℓ(t)/√M over the modes of each group, the groups side by side."""
        d, size = self._factors[0].n_features, t.shape[1]
        degrees = [mode.degree for mode, _ in self._random]
        groups = [group for _, group in self._random]
        scales = np.array([(harmonic_dimension(k, d) / size) ** 0.5 for k in degrees])
        if _array.is_numpy(t):
            from ntkit.features._gegenbauer_numba import sums

            out = np.empty((len(t), (max(groups) + 1) * size), t.dtype)
            first = np.searchsorted(degrees, np.arange(max(degrees) + 2))
            weights = np.ascontiguousarray(weights * scales, dtype=t.dtype)
            sums(t, weights, first, np.array(groups), *_zonal.recursions(max(degrees), d, t.dtype), out)
            return out
        weights = weights * xp.asarray(scales, dtype=weights.dtype, device=weights.device)
        if _array.has_triton(t) and not differentiable:
            from ntkit.features import _gegenbauer_triton

            spread = xp.zeros((len(t), max(groups) + 1, max(degrees) + 1), dtype=t.dtype, device=t.device)
            spread[:, groups, degrees] = weights
            return _gegenbauer_triton.sums(t, spread, *_zonal.recursions(max(degrees), d, np.float64))
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

    def _tables(self, dtype: Any, device: Any) -> list[_zonal.Factor]:
        """Directions and matrices in the precision of the rows and on their torch device; the last copies are kept."""
        for key, kept in self._placed:
            if key == (dtype, device):
                return kept
        factors = [factor.placed(dtype, device) for factor in self._factors]
        self._placed[:] = [((dtype, device), factors)]
        return factors

    def _check_spec(self) -> KernelSpec:
        """The kernel that the parameters and ``lengthscale_`` describe."""
        own: Any = {"depth": self.depth, "power": self.power, "lengthscale": self.lengthscale_}
        return zonal_kernel(self.kernel, type(self).__name__, **own)

    def _series(self) -> Any:
        try:
            return self._spec.zonal
        except UnsupportedError as error:
            rule = f"a kernel of radial functions and Gegenbauer polynomials. ({error})"
            raise ValueError(message(type(self).__name__, "kernel", rule, self.kernel)) from error

    def _kernel(self, X: Array) -> Array:
        return self._spec.matrix(X)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_placed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_factors" in state:
            self._placed = []


def _quantiles(X: Any) -> np.ndarray:
    """Quantiles of the norms of rows."""
    norms = row_norms(X)
    norms = norms.cpu().numpy() if _array.is_torch(norms) else norms
    return np.quantile(norms, np.linspace(0, 1, RADII))


def _cosines(X: Any, norms: Any, directions: Any, dtype: Any) -> Any:
    """⟨x, w⟩/‖x‖; 0 for a zero row."""
    if _array.is_sparse(X):
        return np.asarray(divide_rows(X.astype(np.float64), norms).astype(dtype) @ directions)
    return _cast(divide_rows(X, norms), dtype) @ directions


def _cast(X: Any, dtype: Any) -> Any:
    return X.to(dtype) if _array.is_torch(X) else np.ascontiguousarray(X, dtype)
