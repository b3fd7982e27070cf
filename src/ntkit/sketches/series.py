"""Sketches of power series Σ a_j ⟨x, y⟩^j with a_j ≥ 0: every degree gets its share of the components."""

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

_HIGHEST_MONOMIAL = 128  # roots of larger multinomial coefficients may overflow in single precision
_FLOOR = 1e-5  # a sketch of a unit vector with a smaller norm is the rounding error of terms that cancelled


@dataclass(frozen=True)
class Budget:
    """How many components each degree gets.

    Attributes
    ----------
    exact : dict
        Degrees whose monomials fit in their share, and their number.
    sketched : dict
        The other degrees, and the components of their sketches.
    coefficients : dict
        a_j of all these degrees, larger by a common factor where others were dropped, so that their sum stays.
    """

    exact: dict[int, int]
    sketched: dict[int, int]
    coefficients: dict[int, float]


def allocate(
    coefficients: Sequence[float], n_features: int, n_components: int, *, every_degree: bool = False
) -> Budget:
    """Share m components among the degrees of Σ a_j t^j.

    A sketch of degree j with m_j components has a standard deviation of about a_j m_j^{-1/2}; under Σ m_j = m the sum
    of the variances is smallest for m_j ∝ a_j. Degree j has C(d + j − 1, j) monomials: where these are no more than
    its share, they stand for themselves, without error, and the others share what is left. (To give an exact degree
    more than its share pays by this formula, but not for degree 1, where an SRHT without replacement does better.) Of
    the others, those with a share of less than half a component are dropped, unless `every_degree` is to have one.

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
    while fits:  # what one degree leaves may be enough for another
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
    """C(d + j − 1, j), or any number > `most` if that is more, since large ones take long to compute.

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
    """Make the coefficients a tuple of finite floats ≥ 0, or raise."""
    name = type(law).__name__
    given: Any = law.coefficients
    if not isinstance(given, Sequence | np.ndarray) or len(given) == 0:
        raise TypeError(message(name, "coefficients", "a sequence of one or more finite numbers ≥ 0", given))
    checked = tuple(check_real(a, "coefficients", name, minimum=0) for a in given)
    object.__setattr__(law, "coefficients", checked)


def share_out(weights: dict[int, float], total: int) -> dict[int, int]:
    """Divide a whole number into shares ≥ 1, in proportion to weights up to rounding.

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

    The features are ⊕_j √a_j Z_j(x), Z_j a sketch of x^{⊗j} with its share of the components (:func:`allocate`), or
    all monomials of degree j where they fit. The sketch of degree j is a tree of TensorSRHTs over j leaves
    (:mod:`ntkit.sketches.tree`), whose blocks of 2^k leaves are shared by all degrees. (Algorithm 1 of [1]_ pads
    all degrees to the highest one with e₁, and so gives each the error of the largest tree.) With `shared` it is
    Algorithm 1 of [2]_: one T for all leaves, one S for all nodes, so that all blocks of 2^k leaves are the same

        w_0 = T x,   w_k = S(w_{k−1} ⊗ w_{k−1}),   z_j = S(w_k ⊗ z_{j'}),   j' = j − 2^k < 2^k,   z_{2^k} = w_k;

    degrees have their digits from the lowest on in common, and only the last node of each is its own.

    Parameters
    ----------
    n_features, n_components : int
        d and m. The operator has fewer components if the monomials of all degrees are fewer.
    coefficients : sequence of float ≥ 0
        a_j at index j.
    width : int, optional
        Components of inner nodes, rounded up to a power of two; by default a quarter of m, 256 at least, or with
        `shared` twice as many.
    sparse : bool
        Whether leaves are OSNAPs, for sparse rows.
    normalize : bool
        Whether every node is divided by its norm, which for a unit vector is 1 but for the error of the sketch. Then
        ‖Z(x)‖² = Σ a_j exactly and the error for similar rows is much smaller; the price is a bias of order 1/m.
    replace : bool
        See :class:`TensorSRHT`.
    shared : bool
        Whether all leaves are one T and all nodes one S. T is an SRHT from d to `width` components, an OSNAP for sparse
        rows, and left out for dense ones of no more features than `width`. The error of w_k then enters as its
        square into w_{k+1}, so that inner products are not unbiased even without `normalize`.
    every_degree : bool
        Whether every degree has a component; else those with a share of less than half of one are dropped.

    Notes
    -----
    With w = `width` and p the highest degree, O(p d log d + (p + n log p) w log w + m) per row for n degrees, and with
    `shared` O(d log d + (log p + n) w log w + m), with n log p for n where degrees have gaps. One S for all nodes had
    the error of one for each (single degrees, exponential series and the NTK, d = 10, 100, 1000; within 17 %, either
    way), and for many degrees it took half the time, as nodes then share transforms too. At the default widths shared
    draws had the error of the tree for random rows. For rows of cosine 0.8 it was up to 20 % more where d ≤
    1000, and where d = 10 000 up to 35 %, 50 % for degree 2: the error of T is that of all degrees.

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
        # Of sparse rows no monomials are taken: as if there were too many.
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
            leaves = (self._first(width).sample(keyed(seed, "T")),) if projected else ()
        else:
            n_leaves = max(sketched, default=0) if self.sparse else 0
            leaves = tuple(self._first(width).sample(keyed(seed, "leaf", i)) for i in range(n_leaves))
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
        linear = self._first(sketched[1]).sample(keyed(seed, "linear")) if 1 in sketched else None
        if self.shared and leaves and isinstance(linear, SRHTOperator):
            linear = SRHTOperator(signs=leaves[0].signs, rows=linear.rows)  # the transform of T serves for both
        return SeriesOperator(self, tree=tree, linear=linear)

    def with_leaves(self) -> SeriesSketch:
        """The law that suits the length of rows: with OSNAPs as leaves for long ones."""
        return replace(self, sparse=is_long(self.n_features, max(self._inner, self.n_components)))

    @property
    def _inner(self) -> int:
        """Components of inner nodes."""
        assert self.width is not None
        return power_of_two(self.width)

    def _first(self, size: int) -> Any:
        return leaf_law(self.n_features, size, sparse=self.sparse, replace=self.replace)


class SeriesOperator(Operator):
    """The draws of a :class:`SeriesSketch`: the trees of degrees ≥ 2, and `linear`, the sketch of degree 1.

    Where draws are shared, T is the one leaf, if there is one, and inner nodes of equal sizes are one S.
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
        self, program: Program, value: int, *, norm: int | None = None, by: int | None = None, roots: bool = True
    ) -> list[int]:
        """Append the features of all degrees.

        `norm` is the norm of the vector, None for a unit vector; the features of x/‖x‖ are multiplied by the one
        coordinate of the value `by`, and without `roots` not by the roots of the coefficients.
        """
        emitter, degrees = _SeriesEmitter(self, program, value, norm, by), self.law.budget.coefficients
        return [emitter.part(j, a**0.5 if roots else 1.0) for j, a in degrees.items()]


class _SeriesEmitter:
    """Writes the steps of one series.

    The factor `by` goes into leaf 0, which all degrees have in common, or, where nodes are normalized or shared, into
    the last step.
    """

    def __init__(self, operator: SeriesOperator, program: Program, value: int, norm: int | None, by: int | None):
        self.operator, self.law, self.program = operator, operator.law, program
        self.known: dict[Span, int] = {}
        self.products: list[int] = []  # monomials of degrees 1, 2, …
        self.value, self.norm, self.by = value, norm, by

    def part(self, degree: int, root: float) -> int:
        """√a Z of one degree."""
        program, budget = self.program, self.law.budget
        if degree == 0:
            size = budget.exact.get(0) or budget.sketched[0]
            constant = program.constant(np.full(size, root * size**-0.5))
            return constant if self.by is None else program.scale(constant, self.by)
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
            return program.normalize(value, self.by, factor=root, floor=_FLOOR)
        if self.by is None or (degree > 1 and not self.law.shared):  # there already, by leaf 0
            return program.concatenate([value], [root])
        return program.scale(value, self.by, factor=root)

    def monomials(self, degree: int) -> int:
        """All x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, times `by`, without their weights."""
        self.products = self.products or [self.scaled()]
        for j in range(len(self.products) + 1, degree + 1):
            table = _monomials(self.law.n_features, j)
            lower = self.products[-1]
            self.products.append(self.program.product(lower, table.tails, self.unit(self.value), table.heads, 1.0))
        return self.products[degree - 1]

    def leaf(self, index: int) -> int:
        """Unit vector at a leaf; leaf 0 has the norm `by` instead, unless nodes are normalized or shared."""
        leaves, shared = self.operator.tree.leaves, self.law.shared
        first = index == 0 and not self.law.normalize and not shared
        if not leaves:
            return self.scaled() if first else self.unit(self.value)
        value = self.normalized(self.unit(leaves[0 if shared else index].emit(self.program, self.value)))
        return self.program.scale(value, self.by) if first and self.by is not None else value

    def unit(self, value: int) -> int:
        """A value over the norm of the row."""
        return value if self.norm is None else self.program.scale(value, self.norm, inverse=True)

    def scaled(self) -> int:
        """x/‖x‖ times `by`."""
        if self.by == self.norm:
            return self.value
        unit = self.unit(self.value)
        return unit if self.by is None else self.program.scale(unit, self.by)

    def normalized(self, value: int) -> int:
        """A value over its own norm, if the law asks for it."""
        return self.program.normalize(value, floor=_FLOOR) if self.law.normalize else value


class _Monomials(NamedTuple):
    """All x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, in lexicographic order.

    Each is its first variable `heads`, of exponent `leads`, times monomial `tails` of degree j − 1; `roots` is the
    square root of the multinomial coefficient j!/∏ αₖ!: ⟨x, y⟩^j is Σ_α (j!/∏ αₖ!) x^α y^α.
    """

    tails: np.ndarray
    heads: np.ndarray
    leads: np.ndarray
    roots: np.ndarray


@lru_cache(maxsize=256)
def _monomials(n_features: int, degree: int) -> _Monomials:
    """Monomials of a degree ≥ 1 from those of one degree less: x_i times all that begin with x_i or later."""
    if degree == 1:
        each = np.arange(n_features, dtype=np.int32)
        ones = np.ones(n_features, dtype=np.int32)
        return _Monomials(each, each, ones, np.ones(n_features))
    before = _monomials(n_features, degree - 1)
    starts = np.searchsorted(before.heads, np.arange(n_features))
    sizes = len(before.heads) - starts
    heads = np.repeat(np.arange(n_features, dtype=np.int32), sizes)
    within = np.arange(len(heads)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tails = (np.repeat(starts, sizes) + within).astype(np.int32)
    leads = (1 + np.where(before.heads[tails] == heads, before.leads[tails], 0)).astype(np.int32)
    return _Monomials(tails, heads, leads, before.roots[tails] * np.sqrt(degree / leads))


@dataclass(frozen=True)
class PaddedSeries(Distribution):
    """The series as Algorithm 1 writes it: T ⊕_j √a_j Q(x^{⊗j} ⊗ e₁^{⊗(p−j)}), T an SRHT, Q one PolySketch.

    Parameters
    ----------
    n_features, n_components : int
    coefficients : sequence of float ≥ 0
    inner_components : int
        Components of Q.
    replace : bool
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
        mix = SRHT(len(degrees) * m, self.n_components, replace=self.replace)
        roots = tuple(self.coefficients[j] ** 0.5 for j in degrees)
        return PaddedOperator(poly.sample(keyed(seed, "poly")), mix.sample(keyed(seed, "mix")), degrees, roots)


class PaddedOperator(Operator):
    """The draws of a :class:`PaddedSeries`: the PolySketch, and the SRHT that mixes the degrees."""

    def __init__(self, poly: PolySketchOperator, mix: SRHTOperator, degrees: Sequence[int], roots: Sequence[float]):
        self.poly, self.mix, self.degrees, self.roots = poly, mix, degrees, roots
        self.factors, self.n_components = poly.factors[:1], mix.n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append the features of a unit vector."""
        (value,) = values
        parts = self.poly.emit_degrees(program, value, self.degrees)
        return self.mix.emit(program, program.concatenate(parts, self.roots))

    def emit_parts(self, program: Program, value: int, *, norm: int | None = None, by: int | None = None) -> list[int]:
        """Append the features; see :meth:`SeriesOperator.emit_parts`."""
        unit = value if norm is None else program.scale(value, norm, inverse=True)
        features = self.emit(program, unit)
        return [features if by is None else program.scale(features, by)]
