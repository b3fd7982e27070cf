"""Sketches of power series Σ a_j ⟨x, y⟩^j with a_j ≥ 0: every degree gets its share of the components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool, check_real, message
from ntkit.sketches._base import Distribution, ProgramOperator
from ntkit.sketches._program import Floats, Program, power_of_two
from ntkit.sketches.countsketch import OSNAP, OSNAPOperator
from ntkit.sketches.poly import PolySketch, PolySketchOperator, Span
from ntkit.sketches.srht import SRHT, SRHTOperator
from ntkit.sketches.tensor import TensorSRHT, TensorSRHTOperator

_HIGHEST_MONOMIAL = 128  # roots of larger multinomial coefficients may overflow in single precision
_FLOOR = 1e-5  # norms of sketches of unit vectors below this are rounding errors of what cancelled
Leaf: TypeAlias = OSNAPOperator | SRHTOperator
Node: TypeAlias = tuple[int, ...]
"""An inner node (start, stop), or (degree, start, stop) for one that only one degree needs.

Where draws are shared, (degree,) is the inner node of x^{⊗degree} and (degree, m) the one with the m components of
that degree.
"""


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
        a_j of all these degrees; those of degrees too small for a component of their own went to the others.
    """

    exact: dict[int, int]
    sketched: dict[int, int]
    coefficients: dict[int, float]


def allocate(coefficients: Sequence[float], n_features: int, n_components: int) -> Budget:
    """Share m components among the degrees of Σ a_j t^j.

    A sketch of degree j with m_j components has a standard deviation of about a_j m_j^{-1/2}; under Σ m_j = m the sum
    of the variances is smallest for m_j ∝ a_j. Degree j has C(d + j − 1, j) monomials: where these are no more than
    its share, they stand for themselves, without error, and the others share what is left. For j = 1 this is
    the best use of an SRHT without replacement.

    Examples
    --------
    >>> allocate([1.0, 2.0, 1.0], n_features=10, n_components=31)
    Budget(exact={0: 1, 1: 10}, sketched={2: 20}, coefficients={0: 1.0, 1: 2.0, 2: 1.0})
    """
    positive = {j: float(a) for j, a in enumerate(coefficients) if a > 0}
    if not positive:
        return Budget({}, {0: n_components}, {0: 0.0})
    total = sum(positive.values())
    worth = {j: a for j, a in positive.items() if a * n_components >= 0.5 * total}
    largest = sorted(sorted(worth or positive, key=lambda j: -positive[j])[:n_components])
    kept = sum(positive[j] for j in largest)
    chosen = {j: positive[j] * total / kept for j in largest}
    exact: dict[int, int] = {}
    left, rest = n_components, dict(chosen)
    more = True
    while more:  # what one degree leaves may be enough for another
        more = False
        for j, a in list(rest.items()):
            size = count_monomials(n_features, j, left)
            fair = left * a / sum(rest.values()) if j else 1
            if size <= fair and left - size >= len(rest) - 1 and (j <= _HIGHEST_MONOMIAL or n_features == 1):
                exact[j] = size
                left -= size
                del rest[j]
                more = True
    return Budget(dict(sorted(exact.items())), _shares(rest, left), chosen)


def count_monomials(n_features: int, degree: int, most: int) -> int:
    """C(d + j − 1, j), or a number > `most` if that is more: large ones would take their time.

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


def _shares(weights: dict[int, float], total: int) -> dict[int, int]:
    """Whole numbers ≥ 1 with a given sum, in proportion to weights as well as may be."""
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
    all monomials of degree j where they fit. The sketch of degree j is a tree of TensorSRHTs over j leaves, cut
    into blocks of 2^k leaves by the binary digits of j; blocks are shared by all degrees. (Algorithm 1 of [1]_ pads
    all degrees to the highest one with e₁, and so gives each the error of the largest tree.) With `shared` it is
    Algorithm 1 of [2]_: one T for all leaves, one S for all nodes, so that all blocks of 2^k leaves are the same

        w_0 = T x,   w_k = S(w_{k−1} ⊗ w_{k−1}),   z_j = S(z_{j'} ⊗ w_k),   j' = j − 2^k < 2^k,   z_{2^k} = w_k;

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

    Notes
    -----
    With w = `width` and p the highest degree, O(p d log d + (p + n log p) w log w + m) per row for n degrees, and with
    `shared` O(d log d + (log p + n) w log w + m), with n log p for n where degrees have gaps. One S for all nodes had
    the error of one for each (single degrees, exponential series and the NTK, d = 10, 100, 1000; within 17 %, either
    way), and for many degrees it took half the time, as nodes then share transforms too. At the default widths the
    error of shared draws was that of the tree for random rows. For rows of cosine 0.8 it was up to 20 % more where d ≤
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
    budget: Budget = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_sizes("n_features", "n_components")
        _check_coefficients(self)
        for name in ("sparse", "normalize", "replace", "shared"):
            check_bool(getattr(self, name), name, type(self).__name__)
        if self.width is None:
            width = max(256, power_of_two(self.n_components) // 4)
            object.__setattr__(self, "width", 2 * width if self.shared else width)
        self._check_sizes("width")
        object.__setattr__(self, "budget", self._budget())

    def _budget(self) -> Budget:
        # Of sparse rows no monomials are taken: as if there were too many.
        n_features = self.n_components + 1 if self.sparse else self.n_features
        return allocate(self.coefficients, n_features, self.n_components)

    def sample(self, rng: RandomState = None) -> SeriesOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        sketched = self.budget.sketched
        leaves, nodes = self._draw_shared(seed) if self.shared else self._draw_tree(seed)
        linear = self._first(sketched[1]).sample(keyed(seed, "linear")) if 1 in sketched else None
        if self.shared and leaves and isinstance(linear, SRHTOperator):
            linear = SRHTOperator(signs=leaves[0].signs, rows=linear.rows)  # of the one transform of the row
        return SeriesOperator(self, nodes=tuple(nodes.items()), leaves=leaves, linear=linear)

    def _draw_tree(self, seed: np.random.SeedSequence) -> tuple[tuple[Leaf, ...], dict[Node, TensorSRHTOperator]]:
        """Leaves and nodes with draws of their own."""
        width = self._inner
        nodes: dict[Node, TensorSRHTOperator] = {}

        def size(start: int, stop: int) -> int:
            return width if self.sparse or stop - start > 1 else self.n_features

        def draw(node: Node, left: int, right: int, n_components: int) -> None:
            if node not in nodes:
                law = TensorSRHT((left, right), n_components, replace=self.replace)
                nodes[node] = law.sample(keyed(seed, "node", *node))

        def draw_block(start: int, stop: int) -> None:
            if stop - start > 1:
                middle = (start + stop) // 2
                draw_block(start, middle)
                draw_block(middle, stop)
                draw((start, stop), size(start, middle), size(middle, stop), width)

        sketched = self.budget.sketched
        for j, m in sketched.items():
            parts = _parts(j) if j > 1 else []
            for part in parts:
                draw_block(*part)
            for i in range(len(parts) - 1):
                right = size(*parts[-1]) if i == 0 else width
                draw((j, *_joined(parts, i)), size(*parts[-2 - i]), right, m if i == len(parts) - 2 else width)
        n_leaves = max(sketched, default=0) if self.sparse else 0
        leaves = tuple(self._first(width).sample(keyed(seed, "leaf", i)) for i in range(n_leaves))
        return leaves, nodes

    def _draw_shared(self, seed: np.random.SeedSequence) -> tuple[tuple[Leaf, ...], dict[Node, TensorSRHTOperator]]:
        """One T and one S for all degrees; the last node of each has the signs of S and rows of its own."""
        width = self._inner
        projected = self.sparse or self.n_features > width
        leaves = (self._first(width).sample(keyed(seed, "T")),) if projected else ()
        squares: dict[tuple[int, ...], TensorSRHTOperator] = {}
        nodes: dict[Node, TensorSRHTOperator] = {}

        def draw(node: Node) -> None:
            if node in nodes or node == (1,):
                return
            parts = _halves(node[0])
            for part in parts:
                draw((part,))
            sizes = tuple(width if projected or part > 1 else self.n_features for part in parts)
            if sizes not in squares:
                squares[sizes] = TensorSRHT(sizes, width, replace=self.replace).sample(keyed(seed, "S", *sizes))
            nodes[node] = squares[sizes]
            if len(node) > 1:
                own = TensorSRHT(sizes, node[1], replace=self.replace).sample(keyed(seed, "node", *node))
                nodes[node] = TensorSRHTOperator(signs=squares[sizes].signs, rows=own.rows)

        for j, m in self.budget.sketched.items():
            if j > 1:
                draw((j, m))
        return leaves, nodes

    @property
    def _inner(self) -> int:
        """Components of inner nodes."""
        assert self.width is not None
        return power_of_two(self.width)

    def _first(self, size: int) -> OSNAP | SRHT:
        if self.sparse:
            return OSNAP(self.n_features, size, n_nonzeros=min(4, size))
        return SRHT(self.n_features, size, replace=self.replace)


class SeriesOperator(ProgramOperator):
    """The draws of a :class:`SeriesSketch`: `nodes`, `leaves` for sparse rows, and `linear`, the sketch of degree 1.

    Where they are shared, T is the one leaf, if there is one, and inner nodes of equal sizes are one S.
    """

    def __init__(
        self,
        law: SeriesSketch,
        *,
        nodes: tuple[tuple[Node, TensorSRHTOperator], ...],
        leaves: tuple[Leaf, ...],
        linear: Leaf | None,
    ):
        self.law, self.nodes, self.leaves, self.linear = law, nodes, leaves, linear
        self.factors = (law.n_features,)
        self.n_components = sum(law.budget.exact.values()) + sum(law.budget.sketched.values())

    def emit(self, program: Program, *values: int) -> int:
        """Append the features of a unit vector."""
        (value,) = values
        return program.concatenate(self.emit_parts(program, value))

    def emit_parts(self, program: Program, value: int, *, norm: int | None = None, by: int | None = None) -> list[int]:
        """Append the features of all degrees.

        `norm` is the norm of the vector, None for a unit vector; the features of x/‖x‖ are multiplied by the one
        coordinate of the value `by`.
        """
        return _Emitter(self, program, value, norm, by).parts()


class _Emitter:
    """Writes the steps of one series.

    The factor `by` goes into leaf 0, which all degrees have in common, or, where
    nodes are normalized, into the last step.
    """

    def __init__(self, operator: SeriesOperator, program: Program, value: int, norm: int | None, by: int | None):
        self.operator, self.law, self.program = operator, operator.law, program
        self.nodes = dict(operator.nodes)
        self.diagonals: dict[int, Floats] = {}
        self.powers: dict[Node, int] = {}
        self.products: list[int] = []  # monomials of degrees 1, 2, …
        self.value, self.norm, self.by = value, norm, by

    def parts(self) -> list[int]:
        budget = self.law.budget
        return [self.part(j, a**0.5) for j, a in budget.coefficients.items()]

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
        if self.operator.linear is not None and degree == 1:
            value = self.unit(self.first(self.operator.linear))
        else:
            value = self.power((degree, budget.sketched[degree])) if self.law.shared else self.tree(degree)
        return self.finished(value, root, whole=degree > 1 and not self.law.shared)

    def finished(self, value: int, root: float, *, whole: bool) -> int:
        """A sketch of norm about 1 (about that of `by`, if `whole`) times √a, and with its norm right."""
        program = self.program
        if self.law.normalize:
            norm = program.norm(value)
            if self.by is None:
                return program.scale(value, norm, factor=root, inverse=True, floor=_FLOOR)
            return program.scale(value, program.scale(self.by, norm, inverse=True, floor=_FLOOR), factor=root)
        if not whole and self.by is not None:
            return program.scale(value, self.by, factor=root)
        return program.concatenate([value], [root])

    def monomials(self, degree: int) -> int:
        """All x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, times `by`, without their weights."""
        self.products = self.products or [self.scaled()]
        for j in range(len(self.products) + 1, degree + 1):
            table = _monomials(self.law.n_features, j)
            lower = self.products[-1]
            self.products.append(self.program.product(lower, table.tails, self.unit(self.value), table.heads, 1.0))
        return self.products[degree - 1]

    def leaf(self, number: int) -> int:
        """Unit vector at a leaf; leaf 0 has the norm `by` instead, unless nodes are normalized."""
        program = self.program
        if not self.operator.leaves:
            return self.scaled() if number == 0 and not self.law.normalize else self.unit(self.value)
        value = self.unit(self.operator.leaves[number].emit(program, self.value))
        if self.law.normalize:
            return self.normalized(value)
        return value if number or self.by is None else program.scale(value, self.by)

    def unit(self, value: int) -> int:
        return value if self.norm is None else self.program.scale(value, self.norm, inverse=True)

    def scaled(self) -> int:
        """x/‖x‖ times `by`."""
        if self.by == self.norm:
            return self.value
        unit = self.unit(self.value)
        return unit if self.by is None else self.program.scale(unit, self.by)

    def tree(self, degree: int) -> int:
        """Sketch of one degree: its blocks, the small ones first, joined one after the other."""
        parts = _parts(degree)
        value = self.block(*parts[-1])
        for i in range(len(parts) - 1):
            node = self.nodes[degree, *_joined(parts, i)]
            value = node.emit(self.program, self.block(*parts[-2 - i]), value)
            value = value if i == len(parts) - 2 else self.normalized(value)
        return value

    def power(self, node: Node) -> int:
        """Value of a node where draws are shared: that of all digits but the highest, joined with the highest."""
        program = self.program
        if node in self.powers:
            return self.powers[node]
        if node == (1,):
            if not self.operator.leaves:
                return self.unit(self.value)
            return self.normalized(self.unit(self.first(self.operator.leaves[0])))
        a, b = (self.power((part,)) for part in _halves(node[0]))
        tensor = self.nodes[node]
        a, b = (program.hadamard(v, self.diagonal(s)) for v, s in zip((a, b), tensor.signs, strict=True))
        value = program.product(a, tensor.rows[0], b, tensor.rows[1], tensor.n_components**-0.5)
        self.powers[node] = value if len(node) > 1 else self.normalized(value)
        return self.powers[node]

    def first(self, operator: Leaf) -> int:
        """A first map of the row."""
        if not isinstance(operator, SRHTOperator):
            return operator.emit(self.program, self.value)
        transform = self.program.hadamard(self.value, self.diagonal(operator.signs))
        return self.program.gather(transform, operator.rows, operator._weights)

    def diagonal(self, signs: np.ndarray) -> Floats:
        """The same array for the same signs, so that transforms that are the same are computed once."""
        return self.diagonals.setdefault(id(signs), signs.astype(np.float64))

    def block(self, start: int, stop: int) -> int:
        """Value of a whole block of leaves."""
        if stop - start == 1:
            return self.leaf(start)
        middle = (start + stop) // 2
        halves = self.block(start, middle), self.block(middle, stop)
        return self.normalized(self.nodes[start, stop].emit(self.program, *halves))

    def normalized(self, value: int) -> int:
        if not self.law.normalize:
            return value
        return self.program.scale(value, self.program.norm(value), inverse=True, floor=_FLOOR)


def _parts(degree: int) -> list[Span]:
    """Blocks of leaves that make up a degree ≥ 2, the largest first: two halves of a power of two, else its digits.

    >>> _parts(8), _parts(11)
    ([(0, 4), (4, 8)], [(0, 8), (8, 10), (10, 11)])
    """
    if degree & (degree - 1) == 0:
        return [(0, degree // 2), (degree // 2, degree)] if degree > 1 else [(0, 1)]
    parts, start = [], 0
    for k in reversed(range(degree.bit_length())):
        if degree >> k & 1:
            parts.append((start, start + (1 << k)))
            start += 1 << k
    return parts


def _halves(degree: int) -> tuple[int, int]:
    """The degrees that make up a degree ≥ 2: two halves of a power of two, else the lower digits and the highest.

    >>> _halves(8), _halves(11)
    ((4, 4), (3, 8))
    """
    top = 1 << degree.bit_length() - 1
    return (degree - top, top) if degree > top else (top // 2, top // 2)


def _joined(parts: list[Span], i: int) -> Span:
    """The leaves below the i-th join of the parts from the right."""
    return parts[-2 - i][0], parts[-1][1]


class _Monomials(NamedTuple):
    """All x_{i₁} ⋯ x_{i_j}, i₁ ≤ … ≤ i_j, in lexicographic order.

    `tails` is the number of each among those of degree j − 1 without its first variable, `heads` that variable, `leads`
    its exponent, `roots` the square root of the multinomial coefficient j!/∏ αₖ!: ⟨x, y⟩^j is Σ_α (j!/∏ αₖ!) x^α y^α.
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

    def sample(self, rng: RandomState = None) -> PaddedOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        degrees = [j for j, a in enumerate(self.coefficients) if a > 0] or [0]
        m = self.inner_components
        poly = PolySketch(self.n_features, m, degree=max(degrees[-1], 1), sparse=self.sparse, replace=self.replace)
        mix = SRHT(len(degrees) * m, self.n_components, replace=self.replace)
        roots = tuple(self.coefficients[j] ** 0.5 for j in degrees)
        return PaddedOperator(poly.sample(keyed(seed, "poly")), mix.sample(keyed(seed, "mix")), degrees, roots)


class PaddedOperator(ProgramOperator):
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
