"""PolySketch: sketches of tensor powers and products of any degree by a binary tree of TensorSRHTs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool
from ntkit.programs import Floats, Program, power_of_two
from ntkit.sketches.base import DegreesOperator, Distribution
from ntkit.sketches.countsketch import OSNAP
from ntkit.sketches.srht import SRHT
from ntkit.sketches.tensor import TensorSRHTOperator
from ntkit.sketches.tree import Leaf, Span, Tree, children, draw_tree, leaf_law


@dataclass(frozen=True)
class TensorPowerLaw(Distribution):
    """Parameters shared by :class:`PolySketch` and :class:`~ntkit.sketches.PowerSketch`, documented there."""

    n_features: int
    n_components: int
    degree: int
    sparse: bool = False
    n_nonzeros: int = 4
    replace: bool = False

    def __post_init__(self) -> None:
        self._check_sizes("n_features", "n_components", "degree", "n_nonzeros")
        for name in ("sparse", "replace"):
            check_bool(getattr(self, name), name, type(self).__name__)

    def _leaf_law(self, size: int) -> OSNAP | SRHT:
        """Return the distribution of a leaf: a map of x to `size` components."""
        n, s = self.n_features, self.n_nonzeros
        return leaf_law(n, size, sparse=self.sparse, n_nonzeros=s, replace=self.replace)


@dataclass(frozen=True)
class PolySketch(TensorPowerLaw):
    """Sketch of x₁ ⊗ … ⊗ x_p by a binary tree of independent TensorSRHTs (Figure 3 of [1]_).

    Every inner node maps the tensor product of its two children by its own TensorSRHT of degree 2. In a node with s
    leaves, the left child has 2^k leaves, where 2^k is the largest power of two below s; p may be any integer ≥ 1.
    E⟨Qx, Qy⟩ = ∏ ⟨x_i, y_i⟩. The variance grows like p/m; a TensorSRHT of degree p has 3^p/m, a TensorSketch
    2^p/m + 3^p/m². Lemma 1 of [1]_: m = O(p ε⁻² log³(1/εδ)) gives ‖Qv‖² ∈ (1 ± ε)‖v‖² with probability 1 − δ for any
    v ∈ ℝ^{d^p}, and m = O(p⁴ s_λ ε⁻² log³(n/εδ)) gives a spectral approximation of kernel matrices of statistical
    dimension s_λ.

    Parameters
    ----------
    n_features : int
        d.
    n_components : int
        m. Inner nodes have the next power of two as their size, at no extra cost.
    degree : int
        p.
    sparse : bool
        Whether each leaf first maps x to the size of the nodes by its own OSNAP. Use this for sparse rows: the time is
        proportional to the nonzeros of x. Otherwise rows go straight into the lowest nodes, which is faster for dense
        rows and avoids the error of the OSNAPs.
    n_nonzeros : int
        Nonzeros per column of the OSNAP leaves (at most m).
    replace : bool
        Whether the sampled rows of a node are independent; see :class:`TensorSRHT`.

    Notes
    -----
    Time per row: O(p (d log d + m log m)), or O(p (s nnz(x) + m log m)) if `sparse`, with s = `n_nonzeros`. Sketching
    all degrees j = 0, …, p at once takes O(p log p · m log m) more (:meth:`PolySketchOperator.apply_degrees`).

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Lemma 1.
    .. [2] Ahle et al., "Oblivious sketching of high-degree polynomial kernels", SODA 2020, arXiv:1909.01410,
       Theorems 1.2 and 1.3.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import PolySketch
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((3, 50))
    >>> X /= np.linalg.norm(X, axis=1, keepdims=True)
    >>> Q = PolySketch(50, 4096, degree=5).sample(0)
    >>> Z = Q.apply(X)
    >>> bool(np.abs(Z @ Z.T - (X @ X.T) ** 5).max() < 0.2)
    True
    >>> Q.apply_degrees(X).shape
    (3, 6, 4096)
    """

    def sample(self, rng: RandomState = None) -> PolySketchOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        p, m, width = self.degree, self.n_components, power_of_two(self.n_components)
        leaves: tuple[Leaf, ...] = ()
        if self.sparse or p == 1:
            law = self._leaf_law(m if p == 1 else width)
            leaves = tuple(law.sample(keyed(seed, "leaf", i)) for i in range(p))
        roots = {p: m} if p > 1 else {}
        tree = draw_tree(seed, roots, leaves=leaves, n_features=self.n_features, width=width, replace=self.replace)
        return PolySketchOperator(tree, n_features=self.n_features, degree=p, n_components=m)


class PolySketchOperator(DegreesOperator):
    """A tree with independent draws for every leaf and node."""

    lowest = 0

    def __init__(self, tree: Tree, *, n_features: int, degree: int, n_components: int):
        self.tree = tree
        self.factors, self.n_components = (n_features,) * degree, n_components

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """Maps from the rows to the lowest nodes; empty if these nodes read the rows directly."""
        return self.tree.leaves

    @property
    def nodes(self) -> tuple[tuple[Span, TensorSRHTOperator], ...]:
        """Pairs of a node and its TensorSRHT. The node (start, stop) has the leaves start, …, stop − 1 below it."""
        return (*self.tree.nodes, *(((0, p), root) for p, root in self.tree.roots))

    def emit(self, program: Program, *values: int) -> int:
        """Append the tree over `values`."""
        return self.tree.emit(program, self.degree, lambda i: self._leaf(program, i, values[i]))

    def _leaf(self, program: Program, i: int, value: int) -> int:
        return self.leaves[i].emit(program, value) if self.leaves else value

    def emit_degrees(self, program: Program, value: int, degrees: Sequence[int]) -> list[int]:
        """Append the sketches of value^{⊗j} ⊗ e₁^{⊗(p−j)}.

        From degree j − 1 to j only the path from one leaf to the root changes (Lemma 1, item 2, of Zandieh et al.).
        Nodes with e₁ in all their leaves have the same value for all rows.
        """
        nodes = dict(self.nodes)

        @cache
        def constant(start: int, stop: int) -> Floats:
            """Return the value of a node with e₁ in all its leaves."""
            if stop - start == 1:
                e1 = np.zeros(self.factors[0])
                e1[0] = 1.0
                return self.leaves[start].of_vectors(e1) if self.leaves else e1
            return nodes[start, stop].of_vectors(*(constant(*child) for child in children(start, stop)))

        @cache
        def state(start: int, stop: int, j: int) -> int:
            """Return the value of a node with x in its first j ≥ 1 leaves and e₁ in the others."""
            if stop - start == 1:
                return self._leaf(program, start, value)
            left, right = children(start, stop)
            n_left = left[1] - left[0]
            node = nodes[start, stop]
            if j <= n_left:
                return node.emit_with(program, state(*left, j), constant(*right))
            return node.emit(program, state(*left, n_left), state(*right, j - n_left))

        whole = (0, self.degree)
        return [state(*whole, j) if j else program.constant(constant(*whole)) for j in degrees]
