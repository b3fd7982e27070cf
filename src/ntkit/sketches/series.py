"""Sketches of power series Σ a_j ⟨x, y⟩^j with a_j ≥ 0; the components are divided among the degrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool, check_real, message
from ntkit.programs import Program, power_of_two
from ntkit.sketches.base import Distribution, Operator
from ntkit.sketches.poly import PolySketch, PolySketchOperator
from ntkit.sketches.srht import SRHT, SRHTOperator
from ntkit.sketches.tree import Leaf, Span, Tree, draw_tree, is_long, leaf_law

_HIGHEST_MONOMIAL = 128  # degree above which roots of multinomial coefficients may overflow in single precision
_FLOOR = 1e-5  # if the sketch of a unit vector has a smaller norm, its terms cancelled and only rounding error is left


@dataclass(frozen=True)
class Budget:
    """Number of components of each degree.

    Attributes
    ----------
    exact : dict
        Degrees represented exactly by all their monomials, with the number of monomials.
    sketched : dict
        Sketched degrees, with the number of components.
    coefficients : dict
        The a_j of both kinds of degrees. If other degrees were dropped, the a_j are multiplied by a common factor
        that preserves the sum of all coefficients.
    """

    exact: dict[int, int]
    sketched: dict[int, int]
    coefficients: dict[int, float]


def allocate(
    coefficients: Sequence[float], n_features: int, n_components: int, *, every_degree: bool = False
) -> Budget:
    """Divide m components among the degrees of Σ a_j t^j.

    A sketch of degree j with m_j components has a standard deviation of about a_j m_j^{-1/2}. Subject to Σ m_j = m, the
    sum of the variances is smallest for m_j ∝ a_j. Degree j has C(d + j − 1, j) monomials. If they fit in its share,
    the monomials are used themselves, without error, and the other degrees share the remaining components. (By this
    formula it would pay to give an exact degree more than its share; but not for degree 1, where an SRHT without
    replacement has a smaller error.) Sketched degrees with a share of less than half a component are dropped, unless
    `every_degree` is set.

    Examples
    --------
    >>> allocate([1.0, 2.0, 1.0], n_features=10, n_components=31)
    Budget(exact={0: 1, 1: 10}, sketched={2: 20}, coefficients={0: 1.0, 1: 2.0, 2: 1.0})
    """
    rest = {j: float(a) for j, a in enumerate(coefficients) if a > 0}
    if not rest:
        return Budget({}, {0: n_components}, {0: 0.0})
    every = dict(rest)
    highest = _HIGHEST_MONOMIAL if n_features > 1 else max(rest)
    sizes = {j: count_monomials(n_features, j, n_components) if j <= highest else n_components + 1 for j in rest}
    if sum(sizes.values()) <= n_components:
        return Budget(sizes, {}, every)
    exact: dict[int, int] = {}
    left = n_components
    fits: list[int] = [0]
    while fits:  # components that one exact degree leaves unused may make room for another
        total, others = sum(rest.values()), len(rest) - 1
        room = left - (others if every_degree else min(others, 1))
        fair = {j: left * a / total if j else 1 for j, a in rest.items()}
        fits = [j for j in rest if sizes[j] <= min(room, fair[j])][:1]
        for j in fits:
            exact[j] = sizes[j]
            left -= sizes[j]
            del rest[j]
    if not every_degree:
        total = sum(rest.values())
        rest = {j: a for j, a in rest.items() if 2 * a * left >= total} or rest
    largest = sorted(sorted(rest, key=lambda j: -rest[j])[:left])
    chosen = {j: every[j] for j in sorted([*exact, *largest])}
    scale = sum(every.values()) / sum(chosen.values())
    shares = share_out({j: rest[j] for j in largest}, left)
    return Budget(dict(sorted(exact.items())), shares, {j: a * scale for j, a in chosen.items()})


def count_monomials(n_features: int, degree: int, most: int) -> int:
    """Return the number C(d + j − 1, j) of monomials if it is ≤ `most`, else some number > `most`.

    Stopping early avoids the slow computation of large binomial coefficients.

    Examples
    --------
    >>> count_monomials(3, 2, 100), count_monomials(1000, 1000, 100) > 100
    (6, True)
    """
    count = 1
    for i in range(1, degree + 1):
        if count > most:
            break
        count = count * (n_features + i - 1) // i
    return count


def _check_coefficients(law: SeriesSketch | PaddedSeries) -> None:
    """Convert the coefficients to a tuple of finite floats ≥ 0, or raise."""
    name = type(law).__name__
    given: Any = law.coefficients
    if not isinstance(given, Sequence | np.ndarray) or len(given) == 0:
        raise TypeError(message(name, "coefficients", "a sequence of one or more finite numbers ≥ 0", given))
    checked = tuple(check_real(a, "coefficients", name, minimum=0) for a in given)
    object.__setattr__(law, "coefficients", checked)


def share_out(weights: dict[int, float], total: int) -> dict[int, int]:
    """Divide an integer into integer shares ≥ 1 that are proportional to `weights` up to rounding.

    Examples
    --------
    >>> share_out({2: 3.0, 5: 1.0}, 10)
    {2: 7, 5: 3}
    """
    if not weights:
        return {}
    spare = total - len(weights)
    fair = {j: spare * a / sum(weights.values()) for j, a in weights.items()}
    shares = {j: 1 + int(x) for j, x in fair.items()}
    by_remainder = sorted(weights, key=lambda j: int(fair[j]) - fair[j])
    for j in by_remainder[: total - sum(shares.values())]:
        shares[j] += 1
    return shares


@dataclass(frozen=True)
class SeriesSketch(Distribution):
    """Features of a unit vector x whose inner products approximate Σ a_j ⟨x, y⟩^j.

    The features are ⊕_j √a_j Z_j(x). Z_j is a sketch of x^{⊗j} with its share of the components (:func:`allocate`), or
    consists of all monomials of degree j if they fit. The sketch of degree j is a tree of TensorSRHTs over j leaves
    (:mod:`ntkit.sketches.tree`); all degrees share the blocks of 2^k leaves. (Algorithm 1 of [1]_ pads all degrees
    with e₁ to the highest degree, so that each has the error of the largest tree.) With `shared` this is Algorithm 1
    of [2]_: one T for all leaves and one S for all nodes, so that all blocks of 2^k leaves have the same value:

        w_0 = T x,   w_k = S(w_{k−1} ⊗ w_{k−1}),   z_j = S(w_k ⊗ z_{j'}),   j' = j − 2^k < 2^k,   z_{2^k} = w_k.

    Degrees whose lower binary digits agree share the corresponding nodes; only the root of each degree is its own.

    Parameters
    ----------
    n_features, n_components : int
        d and m. The operator has fewer than m components if all degrees together have fewer monomials.
    coefficients : sequence of float ≥ 0
        a_j at index j.
    width : int, optional
        Components of inner nodes, rounded up to a power of two. By default a quarter of m (rounded up to a power of
        two), at least 256; twice that with `shared`.
    sparse : bool
        Whether leaves are OSNAPs, for sparse rows.
    normalize : bool
        Whether every node is divided by its norm, which for a unit vector is 1 up to the error of the sketch. Then
        ‖Z(x)‖² = Σ a_j exactly, and the error for similar rows is much smaller, at the price of a bias of order 1/m.
    replace : bool
        See :class:`TensorSRHT`.
    shared : bool
        Whether all leaves use one T and all nodes one S. T is an SRHT from d to `width` components, or an OSNAP if
        `sparse`; it is omitted for dense rows with at most `width` features. The error of w_k is squared along with
        w_k in w_{k+1}, so inner products are biased even without `normalize`.
    every_degree : bool
        Whether every degree gets at least one component. By default degrees with a share of less than half a component
        are dropped.

    Notes
    -----
    Time per row, with w = `width`, highest degree p and n degrees: O(p d log d + (p + n log p) w log w + m). With
    `shared`: O(d log d + (log p + n) w log w + m), where n becomes n log p if there are gaps between the degrees.

    One S for all nodes had the same error as one S per node to within 17 %, in either direction (single degrees,
    exponential series and the NTK, d = 10, 100, 1000). For many degrees it took half the time, since nodes then share
    transforms, too. At the default widths, shared draws had the same error as the tree for random rows. For rows of
    cosine 0.8 the error was up to 20 % larger for d ≤ 1000, and up to 35 % larger for d = 10 000 (50 % for degree 2):
    the error of T affects all degrees.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Lemma 1
       and Remark 1.
    .. [2] Song et al., "Fast sketching of polynomial kernels of polynomial degree", ICML 2021, arXiv:2108.09420,
       Algorithm 1, Theorems 4.8 and 5.1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches.series import SeriesSketch
    >>> X = np.random.default_rng(0).standard_normal((20, 50))
    >>> X /= np.linalg.norm(X, axis=1, keepdims=True)
    >>> Z = SeriesSketch(50, (0.5, 0.0, 0.3, 0.2), 1024, shared=True).sample(0).apply(X)
    >>> t = X @ X.T
    >>> bool(np.abs(Z @ Z.T - (0.5 + 0.3 * t**2 + 0.2 * t**3)).max() < 0.1)
    True
    """

    n_features: int
    coefficients: tuple[float, ...]
    n_components: int
    width: int | None = None
    sparse: bool = False
    normalize: bool = True
    replace: bool = False
    shared: bool = False
    every_degree: bool = False
    budget: Budget = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_sizes("n_features", "n_components")
        _check_coefficients(self)
        for name in ("sparse", "normalize", "replace", "shared", "every_degree"):
            check_bool(getattr(self, name), name, type(self).__name__)
        if self.width is None:
            width = max(256, power_of_two(self.n_components) // 4)
            object.__setattr__(self, "width", 2 * width if self.shared else width)
        self._check_sizes("width")
        object.__setattr__(self, "budget", self._budget())

    def _budget(self) -> Budget:
        # Sparse rows never use monomials: pretend that there are too many of them.
        n_features = self.n_components + 1 if self.sparse else self.n_features
        return allocate(self.coefficients, n_features, self.n_components, every_degree=self.every_degree)

    def _key(self) -> Iterator[int]:
        yield from super()._key()
        for sizes in (self.budget.exact, self.budget.sketched):
            yield len(sizes)
            for degree, size in sizes.items():
                yield from (degree, size)

    def sample(self, rng: RandomState = None) -> SeriesOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        sketched, width = self.budget.sketched, self._inner
        if self.shared:
            projected = self.sparse or self.n_features > width
            leaves = (self._leaf_law(width).sample(keyed(seed, "T")),) if projected else ()
        else:
            n_leaves = max(sketched, default=0) if self.sparse else 0
            leaves = tuple(self._leaf_law(width).sample(keyed(seed, "leaf", i)) for i in range(n_leaves))
        roots = {j: m for j, m in sketched.items() if j > 1}
        tree = draw_tree(
            seed,
            roots,
            leaves=leaves,
            n_features=self.n_features,
            width=width,
            replace=self.replace,
            shared=self.shared,
        )
        linear = self._leaf_law(sketched[1]).sample(keyed(seed, "linear")) if 1 in sketched else None
        if self.shared and leaves and isinstance(linear, SRHTOperator):
            linear = SRHTOperator(signs=leaves[0].signs, rows=linear.rows)  # reuses the Hadamard transform of T
        return SeriesOperator(self, tree=tree, linear=linear)

    def with_leaves(self) -> SeriesSketch:
        """Return this distribution with OSNAP leaves if rows are long, and without them otherwise."""
        return replace(self, sparse=is_long(self.n_features, max(self._inner, self.n_components)))

    @property
    def _inner(self) -> int:
        """Components of inner nodes: `width`, rounded up to a power of two."""
        assert self.width is not None
        return power_of_two(self.width)

    def _leaf_law(self, size: int) -> Any:
        return leaf_law(self.n_features, size, sparse=self.sparse, replace=self.replace)


class SeriesOperator(Operator):
    """The draws of a :class:`SeriesSketch`: `tree` for degrees ≥ 2 and `linear`, the sketch of degree 1.

    If draws are shared, T is the only leaf (if any), and inner nodes of equal sizes use one S.
    """

    def __init__(self, law: SeriesSketch, *, tree: Tree, linear: Leaf | None):
        self.law, self.tree, self.linear = law, tree, linear
        self.factors = (law.n_features,)
        self.n_components = sum(law.budget.exact.values()) + sum(law.budget.sketched.values())

    def emit(self, program: Program, *values: int) -> int:
        """Append the features of a unit vector."""
        (value,) = values
        return program.concatenate(self.emit_parts(program, value))

    def emit_parts(
        self,
        program: Program,
        value: int,
        *,
        norm: int | None = None,
        multiplier: int | None = None,
        roots: bool = True,
    ) -> list[int]:
        """Append the features of x/‖x‖, one value per degree.

        Parameters
        ----------
        program : Program
        value : int
            x.
        norm : int, optional
            ‖x‖; None if x is a unit vector.
        multiplier : int, optional
            A value of size 1 by which the features are multiplied.
        roots : bool
            Whether the features are multiplied by the square roots of the coefficients.
        """
        emitter, degrees = _SeriesEmitter(self, program, value, norm, multiplier), self.law.budget.coefficients
        return [emitter.part(j, a**0.5 if roots else 1.0) for j, a in degrees.items()]


class _SeriesEmitter:
    """Appends the steps of one series.

    The multiplier is applied to leaf 0, which all degrees share, or to the last step if nodes are normalized or
    shared.
    """

    def __init__(
        self, operator: SeriesOperator, program: Program, value: int, norm: int | None, multiplier: int | None
    ):
        self.operator, self.law, self.program = operator, operator.law, program
        self.known: dict[Span, int] = {}
        self.products: list[int] = []  # monomials of degrees 1, 2, …
        self.value, self.norm, self.multiplier = value, norm, multiplier

    def part(self, degree: int, root: float) -> int:
        """Append √a_j Z_j(x) for one degree j; `root` is √a_j."""
        program, budget = self.program, self.law.budget
        if degree == 0:
            size = budget.exact.get(0) or budget.sketched[0]
            constant = program.constant(np.full(size, root * size**-0.5))
            return constant if self.multiplier is None else program.scale(constant, self.multiplier)
        if degree in budget.exact:
            value = self.monomials(degree)
            weights = root * _monomials(self.law.n_features, degree).roots
            return program.gather(value, np.arange(len(weights), dtype=np.int32), weights)
        if degree == 1:
            assert self.operator.linear is not None
            value = self.unit(self.operator.linear.emit(program, self.value))
        else:
            value = self.operator.tree.emit(program, degree, self.leaf, self.normalized, self.known)
        if self.law.normalize:
            return program.normalize(value, self.multiplier, factor=root, floor=_FLOOR)
        if self.multiplier is None or (degree > 1 and not self.law.shared):  # leaf 0 contains the multiplier
            return program.concatenate([value], [root])
        return program.scale(value, self.multiplier, factor=root)

    def monomials(self, degree: int) -> int:
        """Append all monomials x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, of x/‖x‖ times the multiplier, without weights."""
        self.products = self.products or [self.scaled()]
        for j in range(len(self.products) + 1, degree + 1):
            table = _monomials(self.law.n_features, j)
            lower = self.products[-1]
            self.products.append(self.program.product(lower, table.tails, self.unit(self.value), table.heads, 1.0))
        return self.products[degree - 1]

    def leaf(self, index: int) -> int:
        """Append the value of a leaf; leaf 0 contains the multiplier, unless nodes are normalized or shared."""
        leaves, shared = self.operator.tree.leaves, self.law.shared
        multiplied = index == 0 and not self.law.normalize and not shared
        if not leaves:
            return self.scaled() if multiplied else self.unit(self.value)
        value = self.normalized(self.unit(leaves[0 if shared else index].emit(self.program, self.value)))
        return self.program.scale(value, self.multiplier) if multiplied and self.multiplier is not None else value

    def unit(self, value: int) -> int:
        """Append the value divided by ‖x‖."""
        return value if self.norm is None else self.program.scale(value, self.norm, inverse=True)

    def scaled(self) -> int:
        """Append x/‖x‖ times the multiplier."""
        if self.multiplier == self.norm:
            return self.value
        unit = self.unit(self.value)
        return unit if self.multiplier is None else self.program.scale(unit, self.multiplier)

    def normalized(self, value: int) -> int:
        """Append the value divided by its own norm if nodes are normalized."""
        return self.program.normalize(value, floor=_FLOOR) if self.law.normalize else value


class _Monomials(NamedTuple):
    """All monomials x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, in lexicographic order.

    A monomial is its first variable (index `heads`, with exponent `leads`) times the monomial with index `tails` of
    degree j − 1. `roots` is the square root of the multinomial coefficient j!/∏ αₖ!, since
    ⟨x, y⟩^j = Σ_α (j!/∏ αₖ!) x^α y^α.
    """

    tails: np.ndarray
    heads: np.ndarray
    leads: np.ndarray
    roots: np.ndarray


@lru_cache(maxsize=256)
def _monomials(n_features: int, degree: int) -> _Monomials:
    """Return the monomials of a degree ≥ 1.

    They are built from the monomials of the next lower degree: x_i times each one that begins with x_i or a later
    variable.
    """
    if degree == 1:
        each = np.arange(n_features, dtype=np.int32)
        ones = np.ones(n_features, dtype=np.int32)
        return _Monomials(each, each, ones, np.ones(n_features))
    lower = _monomials(n_features, degree - 1)
    starts = np.searchsorted(lower.heads, np.arange(n_features))
    sizes = len(lower.heads) - starts
    heads = np.repeat(np.arange(n_features, dtype=np.int32), sizes)
    within = np.arange(len(heads)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tails = (np.repeat(starts, sizes) + within).astype(np.int32)
    leads = (1 + np.where(lower.heads[tails] == heads, lower.leads[tails], 0)).astype(np.int32)
    return _Monomials(tails, heads, leads, lower.roots[tails] * np.sqrt(degree / leads))


@dataclass(frozen=True)
class PaddedSeries(Distribution):
    """Power series as in Algorithm 1 of Zandieh et al. (see :class:`SeriesSketch`).

    The features are T ⊕_j √a_j Q(x^{⊗j} ⊗ e₁^{⊗(p−j)}), with T an SRHT and Q one PolySketch.

    Parameters
    ----------
    n_features, n_components : int
        d and the components of T.
    coefficients : sequence of float ≥ 0
        a_j at index j.
    inner_components : int
        Components of Q.
    sparse : bool
        Whether the leaves of Q are OSNAPs, for sparse rows.
    replace : bool
        See :class:`TensorSRHT`.
    """

    n_features: int
    coefficients: tuple[float, ...]
    n_components: int
    inner_components: int
    sparse: bool = False
    replace: bool = False

    def __post_init__(self) -> None:
        self._check_sizes("n_features", "n_components", "inner_components")
        _check_coefficients(self)
        for name in ("sparse", "replace"):
            check_bool(getattr(self, name), name, type(self).__name__)

    def _key(self) -> Iterator[int]:
        yield from super()._key()
        yield from self._degrees

    @property
    def _degrees(self) -> list[int]:
        return [j for j, a in enumerate(self.coefficients) if a > 0] or [0]

    def sample(self, rng: RandomState = None) -> PaddedOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        degrees, m = self._degrees, self.inner_components
        poly = PolySketch(self.n_features, m, degree=max(degrees[-1], 1), sparse=self.sparse, replace=self.replace)
        srht = SRHT(len(degrees) * m, self.n_components, replace=self.replace)
        roots = tuple(self.coefficients[j] ** 0.5 for j in degrees)
        return PaddedOperator(poly.sample(keyed(seed, "poly")), srht.sample(keyed(seed, "mix")), degrees, roots)


class PaddedOperator(Operator):
    """The draws of a :class:`PaddedSeries`: `poly` is Q, and `srht` is T, which combines the degrees."""

    def __init__(self, poly: PolySketchOperator, srht: SRHTOperator, degrees: Sequence[int], roots: Sequence[float]):
        self.poly, self.srht, self.degrees, self.roots = poly, srht, degrees, roots
        self.factors, self.n_components = poly.factors[:1], srht.n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append the features of a unit vector."""
        (value,) = values
        parts = self.poly.emit_degrees(program, value, self.degrees)
        return self.srht.emit(program, program.concatenate(parts, self.roots))

    def emit_parts(
        self, program: Program, value: int, *, norm: int | None = None, multiplier: int | None = None
    ) -> list[int]:
        """Append the features; see :meth:`SeriesOperator.emit_parts`."""
        unit = value if norm is None else program.scale(value, norm, inverse=True)
        features = self.emit(program, unit)
        return [features if multiplier is None else program.scale(features, multiplier)]
