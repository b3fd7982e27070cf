"""Which harmonics and radial functions of a generalized zonal kernel become features, and how they are evaluated.

A factor is a kernel of some columns, k = Σ_ℓ ⟨h_ℓ(r), h_ℓ(r')⟩ P_ℓ(t). For rows whose norms are spread as those seen
and whose directions are uniform, its eigenfunctions are the products of a harmonic of degree ℓ and one of the
radial functions that diagonalize E_r h_ℓ(r) h_ℓ(r)ᵀ. A *mode* is such a degree and radial function, with α_ℓ
eigenfunctions of equal eigenvalue.
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

_LARGEST = 25.0  # norms over the length scale up to which radial functions are adapted: they take some r² terms
_ROUNDING = 1e-13  # share of the kernel below which modes are rounding errors
_WIDEST = 1536  # harmonics of a degree that are taken whole: they take a product with a square matrix of that size
_MANY = 512  # harmonics of a degree, of whose directions there are fewer to choose from
HARMONICS = 8  # of a degree, for each component, up to which random features hold it: others are rare but huge
_SMALLEST = 1 / 16  # share of the components from which on random features are worth their noise
_HIGHEST = 256  # highest degree of a first try, and of power series, whose degrees take an SVD each
_FARTHEST = 1024  # highest degree chosen by itself: its coefficient takes some 4000 nodes of a quadrature
_RANDOM = 20  # highest degree of random features chosen by itself
_REST = 1e-12  # share of the kernel below which what is left out is rounding errors
_SHELL = 0.5  # smallest norm over the largest one from which rows count as a shell around the origin
_THICKNESS = 0.01  # share of the kernel on a shell up to which radial functions after the first are left out


@dataclass(frozen=True)
class Mode:
    """Degree ℓ, index of the radial function, and E_r h(r)²."""

    degree: int
    index: int
    energy: float


@dataclass
class Radial:
    """Orthogonal mixtures of the radial functions of a kernel, for each degree, that hold most of it at given norms.

    Homogeneous kernels have one for each degree, √c_ℓ r^p; `mixtures` are the √c_ℓ. Others mix the functions
    √(a_{ℓ+2i} b_{ℓ,i}) (r/ℓ)^{ℓ+2i} over i; `mixtures` has the coefficients of (r/anchor)^{ℓ+2i} in columns.
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
    """Whether some of the norms are such that rows have features at all."""

    @classmethod
    def of(
        cls, function: Homogeneous | Series, n_features: int, radii: np.ndarray, degree: int, order: int | None
    ) -> Self:
        """Those of a kernel for rows of some norms, up to a degree, `order` at most for each."""
        if isinstance(function, Homogeneous):  # all modes grow alike with the norm, so that none need be known
            total = float(function.diagonal(np.ones(1))[0])
            c = non_negative(*function.precise_coefficients(degree, n_features), n_features)
            modes = [Mode(k, 0, float(a)) for k, a in enumerate(c) if a > _ROUNDING * total]
            return cls(modes, np.sqrt([c[mode.degree] for mode in modes]), total, power=function.power)
        if not function.diagonal(radii).any():  # zero rows only
            radii = np.full_like(radii, function.lengthscale)
        total = float(np.mean(function.diagonal(radii)))
        if not np.isfinite(total):
            raise ValueError(
                f"The kernel of rows of norm {float(radii.max()):.3g} is larger than any number. Divide the rows by "
                "something, or raise the lengthscale."
            )
        anchor = min(float(radii.max()) or function.lengthscale, _LARGEST * function.lengthscale)
        n_terms = function.n_terms(anchor)
        logs = function.log_parts(degree, n_terms, n_features)
        H = np.exp(logs + function.log_powers(np.minimum(radii, anchor), degree, n_terms)) / len(radii) ** 0.5
        within = bool(radii.min() <= anchor)
        if within:
            H[radii > anchor] = 0.0  # rows that have no features
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
    def filling(
        cls, function: Homogeneous | Series, n_features: int, radii: np.ndarray, n_components: int, order: int | None
    ) -> Self:
        """As :meth:`of`, up to a degree whose modes fill `n_components` features.

        Where degrees vanish, as all odd ones but the first do for the NTK of depth 1, this takes higher ones: up to
        where no mode fits or counts.
        """
        farthest = _FARTHEST if isinstance(function, Homogeneous) else _HIGHEST
        degree = first_degree(n_features, n_components)
        radial = cls.of(function, n_features, radii, degree, order)
        while n_features > 1:
            held = sum(mode.energy for mode in radial.modes)
            size = sum(harmonic_dimension(mode.degree, n_features) for mode in radial.modes)
            if size >= n_components or held >= (1 - _REST) * radial.total:
                break
            every = sum(harmonic_dimension(k, n_features) for k in range(degree + 1))
            wanted = int(1.1 * n_components * every / max(size, 1))
            further = max(whole_degree(n_features, wanted, farthest), min(degree + degree // 4 + 2, farthest))
            while harmonic_dimension(further, n_features) > n_components:
                further -= 1
            if further <= degree:
                break
            try:
                more = cls.of(function, n_features, radii, further, order)
            except ValueError:  # a function that is not known well enough for these degrees
                break
            if len(more.modes) == len(radial.modes):
                break
            radial, degree = more, further
        return radial

    def thin(self, radii: np.ndarray) -> None:
        """Keep the first radial function of each degree alone, if rows lie on a shell and the others hold little.

        On a surface the norm is a function of the direction. Further radial functions hardly add to the functions
        that the features span, so the features are better spent on higher degrees.
        """
        first = [mode for mode in self.modes if mode.index == 0]
        held = sum(mode.energy for mode in self.modes) - sum(mode.energy for mode in first)
        if radii.min() >= _SHELL * radii.max() and held <= _THICKNESS * self.total:
            self.take(first)

    def take(self, chosen: Sequence[Mode]) -> None:
        """Keep these modes only, in this order."""
        places = {mode: i for i, mode in enumerate(self.modes)}
        self.mixtures = self.mixtures[..., [places[mode] for mode in chosen]]
        self.modes = list(chosen)

    def values(self, r: Array) -> Array:
        """Radial functions of all modes at norms in float64, (n, modes)."""
        xp: Any = _array.namespace(r)
        place = {"device": _array.device(r), "dtype": r.dtype}
        mixtures = xp.asarray(self.mixtures, **place)
        if self.power is not None:
            scales = xp.where(r > 0, r**self.power, xp.zeros_like(r))  # 0⁰ too: a zero row has no features
            return scales[:, None] * mixtures
        # Powers relative to those at the anchor. Far beyond it, where damping wins, the ratio need not be right.
        ratio = xp.log(xp.clip(r, 1e-300, None) / self.anchor)
        damping = xp.zeros_like(r)
        if self.damped:
            ratio = xp.clip(ratio, None, 4.0)
            damping = 0.5 * (
                (self.anchor / self.lengthscale) ** 2 - (r / self.lengthscale) ** 2
            )  # of units of ℓ: no overflow
        i = xp.arange(self.mixtures.shape[0], **place)
        terms = xp.exp(2 * i * ratio[:, None] + damping[:, None])
        degrees = xp.asarray(np.array([mode.degree for mode in self.modes], dtype=np.float64), **place)
        return xp.exp(degrees * ratio[:, None]) * xp.matmul(terms, mixtures)


@dataclass
class Factor:
    """A zonal kernel of some columns: its radial functions and its harmonics.

    The harmonics of degrees[i] are Y(u) = (P_ℓ(⟨u, w_k⟩))_k mixing[i] with sizes[i] directions w_k, columns of
    `directions` from firsts[i] on. All degrees share the first ones, so that one recursion serves all. The last
    columns are the directions of random features, from `n_shared` on.
    """

    columns: np.ndarray | None
    n_features: int
    radial: Radial
    center: np.ndarray | None = None
    """Subtracted from the columns first; None: nothing is."""
    directions: Array = None
    n_shared: int = 0
    degrees: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    firsts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    mixing: list[Array] = field(default_factory=list)

    def draw(self, seed: np.random.SeedSequence, degrees: Sequence[int], random: np.ndarray) -> Factor:
        """With directions for the harmonics of some degrees, in order; `random` are those of random features."""
        sizes = np.array([harmonic_dimension(k, self.n_features) for k in degrees], dtype=np.int64)
        firsts = np.zeros(len(degrees), np.int64)
        shared, mixing = [np.empty((self.n_features, 0))], []
        if self.n_features == 2:  # two directions cannot be apart for all degrees
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
        """A copy with the draws in the precision of rows, and on their torch device."""

        def place(values: Any) -> Any:
            if device is None:
                return values.astype(dtype)
            import torch

            return torch.from_numpy(values).to(dtype).to(device)

        return replace(self, directions=place(self.directions), mixing=[place(mixing) for mixing in self.mixing])

    def harmonics(self, t: Array, *, differentiable: bool) -> dict[int, Array]:
        """Harmonics of each degree, of cosines with the directions."""
        blocks = self._polynomials(t, differentiable=differentiable)
        pairs = zip(self.degrees.tolist(), blocks, self.mixing, strict=True)
        return {degree: block @ mixing for degree, block, mixing in pairs}

    def _polynomials(self, t: Array, *, differentiable: bool) -> list[Array]:
        """P_ℓ of the cosines with the directions of each degree."""
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
    """Products of modes that become features one by one, the modes left for random features, and their components.

    Those with the largest eigenvalues that fit come first. What is left goes to random features (of a single factor)
    of all other modes but those that add up to less than `tolerance` of the kernel.
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
        if len(factors) > 1:  # those after n_components others by eigenvalue come after them with any further factor
            products = products[:n_components]
    exact, rest, left = [], [], n_components
    for item in products:
        if item[2] <= min(left, _WIDEST):
            exact.append(item[0])
            left -= item[2]
        else:
            rest.append(item)
    if len(factors) > 1 or left < _SMALLEST * n_components:
        return exact, [], 0
    most = HARMONICS * left
    if 2 * left >= n_components:  # most of them would be idle otherwise, in high dimensions
        most = max([most, *(item[2] for item in rest[:1])])
    modes = [item[0][0] for item in rest if item[2] <= most]
    return exact, random_modes(modes, tolerance * total), left


def random_modes(modes: Sequence[Mode], negligible: float) -> list[Mode]:
    """The modes but for those of least energy, which add up to less than what is negligible."""
    modes = sorted(modes, key=lambda mode: mode.energy)
    dropped = np.cumsum([mode.energy for mode in modes]) <= negligible
    kept = (mode for mode, drop in zip(modes, dropped, strict=True) if not drop)
    return sorted(kept, key=lambda mode: (mode.degree, mode.index))


def count_candidates(size: int) -> int:
    """Random directions, enough to choose `size` of them for the harmonics of a degree."""
    return (4 if size <= _MANY else 2) * size


def draw_harmonics(
    seed: np.random.SeedSequence, degrees: Sequence[int], n_features: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Directions w_k, (d, α), and a matrix A for each degree: Y(u) = (P_ℓ(⟨u, w_k⟩))_k A has the products P_ℓ(⟨u, v⟩).

    The k are the first α_ℓ ones; α is the largest α_ℓ. P_ℓ(⟨·, w_k⟩) span the harmonics of degree ℓ for almost all sets
    of α_ℓ directions, and A Aᵀ is the inverse of P_ℓ(⟨w_j, w_k⟩). To those of one degree the next adds, out of four
    times as many random ones (twice, if they are many), some that are well apart: by a pivoted Cholesky
    decomposition of what is left of its kernel matrix given those there are.
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
    """Directions of the plane, (2, n), and for each degree the first of the two that are for it (of the one, for 0).

    With an angle of π/2^{a+1} between two directions, P_ℓ(⟨u, w⟩) = cos(ℓ θ) of the second is ± sin(ℓ θ) of the first
    for all ℓ = 2^a (2b + 1). So one pair serves all degrees with the same power of two.
    """
    powers = [(k & -k).bit_length() - 1 if k else 0 for k in map(int, degrees)]
    used = sorted(set(powers))
    angles = generator(seed, "circle").uniform(0, 2 * np.pi, max(used, default=0) + 1)[used]
    angles = np.stack([angles, angles + np.pi / 2.0 ** (np.array(used) + 1)], axis=1).ravel()
    return np.stack([np.cos(angles), np.sin(angles)]), 2 * np.searchsorted(used, powers)


def first_degree(n_features: int, n_components: int) -> int:
    """The degree up to which modes fit whole if no degree vanishes; at least what random features need."""
    if n_features == 1:
        return 1
    degree = max(whole_degree(n_features, n_components, _HIGHEST), 2)
    while degree < _RANDOM and harmonic_dimension(degree + 1, n_features) <= HARMONICS * n_components:
        degree += 1
    return degree


def whole_degree(n_features: int, n_components: int, highest: int) -> int:
    """Number of degrees, from 0 on, that it takes for `n_components` harmonics."""
    degree, left = 0, n_components
    while left > 0 and degree < highest:
        left -= harmonic_dimension(degree, n_features)
        degree += 1
    return degree


def share_left(factors: Sequence[Factor], n_components: int) -> float:
    """Share of k(x, x) that features without randomness leave out, on average over the norms seen."""
    if not all(factor.radial.within for factor in factors):
        return 1.0
    exact, _, _ = choose(factors, n_components, 0.0)
    held = sum(float(np.prod([mode.energy for mode in modes])) for modes in exact)
    return 1 - held / float(np.prod([factor.radial.total for factor in factors]))


def polynomial(t: Array, degree: int, n_features: int) -> Array:
    """P_ℓ alone, without those of lower degree being kept."""
    return next(polynomials(t, [degree], n_features))


def polynomials(t: Array, degrees: Sequence[int] | np.ndarray, n_features: int) -> Iterator[Array]:
    """P_ℓ for each of some degrees, in order."""
    before, value, k = _array.namespace(t).ones_like(t), t, 1
    for degree in map(int, degrees):
        while k < degree:
            k += 1
            a, b = recursion(k, n_features)
            before, value = value, a * t * value - b * before
        yield value if degree else before


def recursions(degree: int, n_features: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Factors a_k, b_k of P_k = a_k t P_{k−1} − b_k P_{k−2} for k = 1 … ℓ, the P of index −1 being 0."""
    steps, backs = np.ones(degree + 1, dtype), np.zeros(degree + 1, dtype)
    for k in range(2, degree + 1):
        steps[k], backs[k] = recursion(k, n_features)
    return steps, backs


def grouped(modes: Sequence[Mode], n_components: int) -> tuple[list[tuple[Mode, int]], int]:
    """Modes with the number of the feature of each direction that holds them, and how many features there are.

    Modes of one degree need one each: their products would not vanish on average. More radial functions
    leave fewer directions: the i-th of all degrees are dropped where the variance they cost, about the square of the
    energy over the number of directions, is more than the square of the energy that they hold.
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
