"""Choose which harmonics and radial functions of a generalized zonal kernel become features, and evaluate them.

A factor is a kernel of some columns, k = Σ_ℓ ⟨h_ℓ(r), h_ℓ(r')⟩ P_ℓ(t). Consider rows with uniform directions whose
norms have the distribution of the norms of `fit`. The eigenfunctions of the kernel are products of a harmonic of degree
ℓ and one of the radial functions that diagonalize E_r h_ℓ(r) h_ℓ(r)ᵀ. A *mode* is a degree and a radial function; it
has α_ℓ eigenfunctions of equal eigenvalue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import generator, keyed
from ntkit.features import directions as _directions
from ntkit.kernels.zonal import Homogeneous, Series, harmonic_dimension, non_negative, recursion

_MAX_RADIUS = 25.0  # largest norm r, in length scales, to which radial functions are adapted; they take about r² terms
_ROUNDING = 1e-13  # modes below this share of the kernel are rounding errors
_MAX_HARMONICS = 1536  # degrees with more harmonics are never exact: each takes a product with an α_ℓ × α_ℓ matrix
_LARGE_DEGREE = 512  # a degree with more harmonics has 2 instead of 4 candidate directions per harmonic
RANDOM_HARMONICS = 8  # random features omit degrees with more harmonics per component: their values are rare but huge
_MIN_RANDOM_SHARE = 1 / 16  # with a smaller share of the components, random features would mostly add noise
_HIGHEST_SERIES_DEGREE = 256  # highest degree of the first attempt, and of power series, where each degree takes an SVD
_HIGHEST_DEGREE = 1024  # highest degree that degree="auto" chooses: its coefficient takes about 4000 quadrature nodes
_HIGHEST_RANDOM_DEGREE = 20  # highest degree of random features that degree="auto" chooses
_NEGLIGIBLE = 1e-12  # if less than this share of the kernel is omitted, the rest is rounding errors
_SHELL = 0.5  # rows form a shell around the origin if the smallest norm is at least this times the largest
_MAX_EXTRA_SHARE = 0.01  # on a shell, radial functions after the first are omitted if they hold at most this share


@dataclass(frozen=True)
class Mode:
    """Degree ℓ, index of the radial function, and energy E_r h(r)²."""

    degree: int
    index: int
    energy: float


@dataclass
class Radial:
    """Radial functions for each degree: the orthogonal combinations that represent most of the kernel at given norms.

    Homogeneous kernels have one radial function per degree, √c_ℓ r^p; `mixtures` holds the √c_ℓ. For other kernels they
    are combinations of √(a_{ℓ+2i} b_{ℓ,i}) (r/ℓ)^{ℓ+2i} over i; `mixtures` holds the coefficients of (r/anchor)^{ℓ+2i}
    in columns.
    """

    modes: list[Mode]
    mixtures: np.ndarray
    total: float
    """E k(x, x)."""
    power: int | None = None
    lengthscale: float = 1.0
    damped: bool = False
    anchor: float = 1.0
    within: bool = True
    """Whether some norms are at most `anchor`; rows with larger norms have no features."""

    @classmethod
    def of_kernel(
        cls, function: Homogeneous | Series, n_features: int, radii: np.ndarray, degree: int, order: int | None
    ) -> Self:
        """Compute the modes of a kernel up to `degree`, for rows of norms `radii`, with at most `order` per degree."""
        if isinstance(function, Homogeneous):  # all modes depend on the norm in the same way, so norms do not matter
            total = float(function.diagonal(np.ones(1))[0])
            c = non_negative(*function.precise_coefficients(degree, n_features), n_features)
            modes = [Mode(k, 0, float(a)) for k, a in enumerate(c) if a > _ROUNDING * total]
            return cls(modes, np.sqrt([c[mode.degree] for mode in modes]), total, power=function.power)
        if not function.diagonal(radii).any():  # zero rows only
            radii = np.full_like(radii, function.lengthscale)
        total = float(np.mean(function.diagonal(radii)))
        if not np.isfinite(total):
            raise ValueError(
                f"The kernel of the rows of X must be finite. Got rows of norm {float(radii.max()):.3g}, for which it "
                "overflows. Scale X down, or raise the lengthscale."
            )
        anchor = min(float(radii.max()) or function.lengthscale, _MAX_RADIUS * function.lengthscale)
        n_terms = function.n_terms(anchor)
        logs = function.log_parts(degree, n_terms, n_features)
        H = np.exp(logs + function.log_powers(np.minimum(radii, anchor), degree, n_terms)) / len(radii) ** 0.5
        within = bool(radii.min() <= anchor)
        if within:
            H[radii > anchor] = 0.0  # these rows have no features
        at_anchor = np.exp(logs + function.log_powers(np.array([anchor]), degree, n_terms)[0])
        modes, columns = [], []
        for k in range(degree + 1):
            _, sizes, mixtures = np.linalg.svd(H[:, k], full_matrices=False)
            mixtures *= np.sign(mixtures[np.arange(len(mixtures)), np.abs(mixtures).argmax(axis=1)])[:, None]
            for i, size in enumerate(sizes[:order]):
                if size**2 > _ROUNDING * total:
                    modes.append(Mode(k, i, float(size) ** 2))
                    columns.append(at_anchor[k] * mixtures[i])
        mixtures = np.stack(columns, axis=1) if columns else np.empty((n_terms, 0))
        return cls(modes, mixtures, total, None, function.lengthscale, function.damped, anchor, within)

    @classmethod
    def for_components(
        cls, function: Homogeneous | Series, n_features: int, radii: np.ndarray, n_components: int, order: int | None
    ) -> Self:
        """As :meth:`of_kernel`, up to a degree whose modes fill `n_components` features.

        Some degrees may vanish, as all odd degrees except 1 do for the NTK of depth 1. Then higher degrees are added
        until no further mode fits or matters.
        """
        highest = _HIGHEST_DEGREE if isinstance(function, Homogeneous) else _HIGHEST_SERIES_DEGREE
        degree = first_degree(n_features, n_components)
        radial = cls.of_kernel(function, n_features, radii, degree, order)
        while n_features > 1:
            held = sum(mode.energy for mode in radial.modes)
            size = sum(harmonic_dimension(mode.degree, n_features) for mode in radial.modes)
            if size >= n_components or held >= (1 - _NEGLIGIBLE) * radial.total:
                break
            every = sum(harmonic_dimension(k, n_features) for k in range(degree + 1))
            wanted = int(1.1 * n_components * every / max(size, 1))
            next_degree = max(whole_degree(n_features, wanted, highest), min(degree + degree // 4 + 2, highest))
            while harmonic_dimension(next_degree, n_features) > n_components:
                next_degree -= 1
            if next_degree <= degree:
                break
            try:
                more = cls.of_kernel(function, n_features, radii, next_degree, order)
            except ValueError:  # the function is not accurate enough for these degrees
                break
            if len(more.modes) == len(radial.modes):
                break
            radial, degree = more, next_degree
        return radial

    def thin(self, radii: np.ndarray) -> None:
        """Keep only the first radial function of each degree if rows lie on a shell and the others hold little.

        On a surface the norm is a function of the direction. Then further radial functions hardly extend the space of
        functions that the features span, and higher degrees are a better use of the features.
        """
        first = [mode for mode in self.modes if mode.index == 0]
        held = sum(mode.energy for mode in self.modes) - sum(mode.energy for mode in first)
        if radii.min() >= _SHELL * radii.max() and held <= _MAX_EXTRA_SHARE * self.total:
            self.take(first)

    def take(self, chosen: Sequence[Mode]) -> None:
        """Keep only these modes, in this order."""
        indices = {mode: i for i, mode in enumerate(self.modes)}
        self.mixtures = self.mixtures[..., [indices[mode] for mode in chosen]]
        self.modes = list(chosen)

    def values(self, r: Array) -> Array:
        """Evaluate the radial functions of all modes at float64 norms, (n, modes)."""
        xp: Any = _array.namespace(r)
        place = {"device": _array.device(r), "dtype": r.dtype}
        mixtures = xp.asarray(self.mixtures, **place)
        if self.power is not None:
            scales = xp.where(r > 0, r**self.power, xp.zeros_like(r))  # 0 for r = p = 0 too: a zero row has no features
            return scales[:, None] * mixtures
        # Powers relative to their values at the anchor. Far beyond it damping dominates, so the ratio may be clipped.
        ratio = xp.log(xp.clip(r, 1e-300, None) / self.anchor)
        damping = xp.zeros_like(r)
        if self.damped:
            ratio = xp.clip(ratio, None, 4.0)
            # Divide by ℓ before squaring, so that squares do not overflow.
            damping = 0.5 * ((self.anchor / self.lengthscale) ** 2 - (r / self.lengthscale) ** 2)
        i = xp.arange(self.mixtures.shape[0], **place)
        terms = xp.exp(2 * i * ratio[:, None] + damping[:, None])
        degrees = xp.asarray(np.array([mode.degree for mode in self.modes], dtype=np.float64), **place)
        return xp.exp(degrees * ratio[:, None]) * xp.matmul(terms, mixtures)


@dataclass
class Factor:
    """A zonal kernel of some columns: its radial functions and its harmonics.

    The harmonics of degrees[i] are Y(u) = (P_ℓ(⟨u, w_k⟩))_k mixing[i] with sizes[i] directions w_k, the columns of
    `directions` from firsts[i] on. All degrees share the first `n_shared` columns, so that one recursion computes all
    degrees. The remaining columns are the directions of random features.
    """

    columns: np.ndarray | None
    n_features: int
    radial: Radial
    center: np.ndarray | None = None
    """Point that is subtracted from the columns first; None: nothing is subtracted."""
    directions: Array = None
    n_shared: int = 0
    degrees: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    firsts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    mixing: list[Array] = field(default_factory=list)

    def draw(self, seed: np.random.SeedSequence, degrees: Sequence[int], random: np.ndarray) -> Factor:
        """Return a copy with directions drawn for the harmonics of increasing `degrees`.

        `random` holds the directions of random features.
        """
        sizes = np.array([harmonic_dimension(k, self.n_features) for k in degrees], dtype=np.int64)
        firsts = np.zeros(len(degrees), np.int64)
        shared, mixing = [np.empty((self.n_features, 0))], []
        if self.n_features == 2:  # no single pair of directions works for all degrees
            w, firsts = draw_pairs(seed, degrees)
            shared.append(w)
            mixing = [np.eye(size) for size in sizes]
        elif degrees:
            w, mixing = draw_harmonics(seed, degrees, self.n_features)
            shared.append(w)
        return replace(
            self,
            directions=np.concatenate([*shared, random], axis=1),
            n_shared=sum(w.shape[1] for w in shared),
            degrees=np.array(degrees, dtype=np.int64),
            firsts=firsts,
            sizes=sizes,
            mixing=mixing,
        )

    def placed(self, dtype: Any, device: Any) -> Factor:
        """Return a copy with the draws in the dtype of the rows, and on their torch device."""

        def place(values: Any) -> Any:
            if device is None:
                return values.astype(dtype)
            import torch

            return torch.from_numpy(values).to(dtype).to(device)

        return replace(self, directions=place(self.directions), mixing=[place(mixing) for mixing in self.mixing])

    def harmonics(self, t: Array, *, differentiable: bool) -> dict[int, Array]:
        """Compute the harmonics of each degree from cosines with the directions."""
        blocks = self._polynomials(t, differentiable=differentiable)
        pairs = zip(self.degrees.tolist(), blocks, self.mixing, strict=True)
        return {degree: block @ mixing for degree, block, mixing in pairs}

    def _polynomials(self, t: Array, *, differentiable: bool) -> list[Array]:
        """Compute P_ℓ of the cosines with the directions of each degree."""
        if not len(self.degrees):
            return []
        top, d = int(self.degrees[-1]), self.n_features
        starts = np.cumsum([0, *self.sizes])
        if _array.is_numpy(t):
            from ntkit.features.zonal._numba import values

            flat = np.empty(len(t) * starts[-1], t.dtype)
            values(t, self.n_shared, self.degrees, self.firsts, self.sizes, *recursions(top, d, t.dtype), flat)
            parts = np.split(flat, len(t) * starts[1:-1])
            return [part.reshape(len(t), -1) for part in parts]
        spans = [slice(int(first), int(first + size)) for first, size in zip(self.firsts, self.sizes, strict=True)]
        if differentiable or not _array.has_triton(t):
            return [value[:, span] for value, span in zip(polynomials(t, self.degrees, d), spans, strict=True)]
        from ntkit.features.zonal import _triton

        each = np.repeat(self.degrees, self.sizes)
        columns = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        flat = _triton.values(t, columns, each, *recursions(top, d, np.float64))
        return [flat[:, int(start) : int(stop)] for start, stop in pairwise(starts)]


def choose(
    factors: Sequence[Factor], n_components: int, tolerance: float
) -> tuple[list[tuple[Mode, ...]], list[Mode], int]:
    """Choose products of modes with exact features, modes for random features, and the number of random features.

    Products are made exact in decreasing order of their eigenvalues, if they fit. If there is a single factor, the
    remaining components go to random features of all other modes, except the smallest modes, which together hold less
    than `tolerance` of the kernel.
    """
    products: list[tuple[tuple[Mode, ...], float, int]] = [((), 1.0, 1)]
    total = 1.0
    for factor in factors:
        total *= factor.radial.total
        candidates = (
            ((*modes, mode), energy * mode.energy, size * harmonic_dimension(mode.degree, factor.n_features))
            for modes, energy, size in products
            for mode in factor.radial.modes
        )
        products = [item for item in candidates if item[1] > _ROUNDING * total]
        products.sort(key=lambda item: (-item[1] / item[2], item[2]))
        if len(factors) > 1:  # more products than components cannot become features, with any further factor
            products = products[:n_components]
    exact, rest, left = [], [], n_components
    for item in products:
        if item[2] <= min(left, _MAX_HARMONICS):
            exact.append(item[0])
            left -= item[2]
        else:
            rest.append(item)
    if len(factors) > 1 or left < _MIN_RANDOM_SHARE * n_components:
        return exact, [], 0
    most = RANDOM_HARMONICS * left
    if 2 * left >= n_components:  # otherwise most components could be unused in high dimensions
        most = max([most, *(item[2] for item in rest[:1])])
    modes = [item[0][0] for item in rest if item[2] <= most]
    return exact, random_modes(modes, tolerance * total), left


def random_modes(modes: Sequence[Mode], negligible: float) -> list[Mode]:
    """Drop the modes of least energy, as long as they add up to at most `negligible`; return the others."""
    modes = sorted(modes, key=lambda mode: mode.energy)
    dropped = np.cumsum([mode.energy for mode in modes]) <= negligible
    kept = (mode for mode, drop in zip(modes, dropped, strict=True) if not drop)
    return sorted(kept, key=lambda mode: (mode.degree, mode.index))


def count_candidates(size: int) -> int:
    """Return the number of random directions from which `size` directions for the harmonics of a degree are chosen."""
    return (4 if size <= _LARGE_DEGREE else 2) * size


def draw_harmonics(
    seed: np.random.SeedSequence, degrees: Sequence[int], n_features: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw directions w_k, (d, α), and a matrix A for each degree such that Y(u)·Y(v) = P_ℓ(⟨u, v⟩).

    Here Y(u) = (P_ℓ(⟨u, w_k⟩))_k A over the first α_ℓ directions, and α is the largest α_ℓ. The functions P_ℓ(⟨·, w_k⟩)
    span the harmonics of degree ℓ for almost all sets of α_ℓ directions, and A Aᵀ is the inverse of P_ℓ(⟨w_j, w_k⟩).
    Each degree keeps the directions of the previous degree and adds directions that are well separated. They are chosen
    from 4α random candidates (2α if α is large) by a pivoted Cholesky decomposition of the residual of the degree's
    kernel matrix given the directions already chosen.
    """
    from scipy.linalg import cholesky, solve_triangular
    from scipy.linalg.lapack import dpstrf

    def kernel(left: np.ndarray, right: np.ndarray, degree: int) -> np.ndarray:
        return polynomial(np.clip(left.T @ right, -1, 1), degree, n_features)

    sizes = [harmonic_dimension(degree, n_features) for degree in degrees]
    candidates = count_candidates(max(sizes))
    rest = _directions.uniform(keyed(seed, "harmonics"), n_features, candidates, orthogonal=False)
    w = np.empty((n_features, 0))
    mixing = []
    for degree, size in zip(degrees, sizes, strict=True):
        left = kernel(rest, rest, degree)
        if w.shape[1]:
            root = cholesky(kernel(w, w, degree), lower=True)
            known = solve_triangular(root, kernel(w, rest, degree), lower=True)
            left -= known.T @ known
        if size > w.shape[1]:
            _, order, _, _ = dpstrf(left, tol=1e-10)
            chosen, others = np.split(order - 1, [size - w.shape[1]])
            w, rest = np.concatenate([w, rest[:, chosen]], axis=1), rest[:, others]
        root = cholesky(kernel(w, w, degree), lower=True)
        mixing.append(solve_triangular(root, np.eye(size), lower=True).T)
    return w, mixing


def draw_pairs(seed: np.random.SeedSequence, degrees: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Draw directions of the plane, (2, n); return them and, for each degree, the index of the first of its pair.

    If the angle between two directions is π/2^{a+1}, then P_ℓ(⟨u, w⟩) = cos(ℓ θ) of the second is ± sin(ℓ θ) of the
    first for all ℓ = 2^a (2b + 1). So one pair serves all degrees with the same power of two. Degree 0 only uses the
    first direction of a pair.
    """
    powers = [(k & -k).bit_length() - 1 if k else 0 for k in map(int, degrees)]
    used = sorted(set(powers))
    angles = generator(seed, "circle").uniform(0, 2 * np.pi, max(used, default=0) + 1)[used]
    angles = np.stack([angles, angles + np.pi / 2.0 ** (np.array(used) + 1)], axis=1).ravel()
    return np.stack([np.cos(angles), np.sin(angles)]), 2 * np.searchsorted(used, powers)


def first_degree(n_features: int, n_components: int) -> int:
    """Return the degree up to which all modes fit if no degree vanishes, or a higher degree for random features."""
    if n_features == 1:
        return 1
    degree = max(whole_degree(n_features, n_components, _HIGHEST_SERIES_DEGREE), 2)
    most = RANDOM_HARMONICS * n_components
    while degree < _HIGHEST_RANDOM_DEGREE and harmonic_dimension(degree + 1, n_features) <= most:
        degree += 1
    return degree


def whole_degree(n_features: int, n_components: int, highest: int) -> int:
    """Return the number of degrees, from 0 on, that together have `n_components` harmonics; at most `highest`."""
    degree, left = 0, n_components
    while left > 0 and degree < highest:
        left -= harmonic_dimension(degree, n_features)
        degree += 1
    return degree


def share_left(factors: Sequence[Factor], n_components: int) -> float:
    """Compute the share of k(x, x) that features without randomness omit, averaged over the norms of `fit`."""
    if not all(factor.radial.within for factor in factors):
        return 1.0
    exact, _, _ = choose(factors, n_components, 0.0)
    held = sum(float(np.prod([mode.energy for mode in modes])) for modes in exact)
    return 1 - held / float(np.prod([factor.radial.total for factor in factors]))


def polynomial(t: Array, degree: int, n_features: int) -> Array:
    """Compute P_ℓ for one degree, without keeping the lower degrees."""
    return next(polynomials(t, [degree], n_features))


def polynomials(t: Array, degrees: Sequence[int] | np.ndarray, n_features: int) -> Iterator[Array]:
    """Yield P_ℓ for increasing degrees ℓ."""
    before, value, k = _array.namespace(t).ones_like(t), t, 1
    for degree in map(int, degrees):
        while k < degree:
            k += 1
            a, b = recursion(k, n_features)
            before, value = value, a * t * value - b * before
        yield value if degree else before


def recursions(degree: int, n_features: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors a_k, b_k of P_k = a_k t P_{k−1} − b_k P_{k−2} for k = 1 … ℓ, with P_{−1} = 0."""
    steps, backs = np.ones(degree + 1, dtype), np.zeros(degree + 1, dtype)
    for k in range(2, degree + 1):
        steps[k], backs[k] = recursion(k, n_features)
    return steps, backs


def grouped(modes: Sequence[Mode], n_components: int) -> tuple[list[tuple[Mode, int]], int]:
    """Assign modes to groups; return pairs (mode, group) and the number of groups.

    A group becomes one feature per direction. Modes of the same degree must be in different groups, because their
    products do not vanish on average. So the i-th radial functions of all degrees form group i. More groups leave fewer
    directions. The groups from i on are dropped if the variance they cost, about the square of the energy over the
    number of directions, exceeds the square of the energy they hold.
    """
    ranked: list[tuple[Mode, int]] = []
    for mode in modes:
        rank = sum(other.degree == mode.degree for other, _ in ranked)
        ranked.append((mode, rank))
    ranks = max((rank for _, rank in ranked), default=-1) + 1
    energies = np.array([sum(mode.energy for mode, rank in ranked if rank == i) for i in range(ranks)])
    counts = np.arange(1, min(ranks, n_components) + 1)
    held = np.cumsum(energies)[: len(counts)]
    if not len(counts):
        return [], 0
    n_groups = int(counts[np.argmin((energies.sum() - held) ** 2 + held**2 * counts / n_components)])
    return [(mode, rank) for mode, rank in ranked if rank < n_groups], n_groups
