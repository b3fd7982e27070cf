"""PowerSketch: sketches of tensor powers by repeated squaring with one T and one S."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ntkit._random import RandomState, keyed
from ntkit.programs import Program
from ntkit.sketches.base import DegreesOperator
from ntkit.sketches.poly import TensorPowerLaw
from ntkit.sketches.tensor import TensorSRHT, TensorSRHTOperator
from ntkit.sketches.tree import Leaf, emit_tree


@dataclass(frozen=True)
class PowerSketch(TensorPowerLaw):
    """Sketch of x^{⊗p} by repeated squaring with one T and one S (Algorithm 1 of [1]_).

    w₀ = T x,  w_{i+1} = S(w_i ⊗ w_i);  for the binary digits i₁ < i₂ < … of p:  z = w_{i₁}, then z ← S(w_i ⊗ z).
    T is an SRHT (an OSNAP for sparse rows), S a TensorSRHT of degree 2.

    With m = Õ(ε⁻² n p²) the Gram matrix of any n rows is within 1 ± ε of ⟨x, y⟩^p (Theorem 5.1 of [1]_). All squarings
    share the draws of S, so ⟨z(x), z(y)⟩ is biased: an error of ⟨w_i(x), w_i(y)⟩ is itself raised to a power, and the
    mean exceeds ⟨x, y⟩^p by O(p²/m). :class:`PolySketch` is unbiased. Its error is about √p times smaller for m ≫ p²
    and much smaller still for smaller m, but it takes up to p/log₂ p times as long. PowerSketch is worthwhile for rows
    with d ≫ m.

    Parameters
    ----------
    n_features : int
        d.
    n_components : int
        m. A power of two is most efficient, since all transforms are padded to a power of two.
    degree : int
        p.
    sparse : bool
        Whether T is an OSNAP instead of an SRHT, for sparse rows.
    n_nonzeros : int
        Nonzeros per column of the OSNAP (at most m).
    replace : bool
        Whether the sampled rows of S and T are independent; see :class:`TensorSRHT`.

    Notes
    -----
    Time per row: O(d log d + m log m log p), or O(s nnz(x) + m log m log p) if `sparse`, with s = `n_nonzeros`.

    References
    ----------
    .. [1] Song et al., "Fast sketching of polynomial kernels of polynomial degree", ICML 2021, arXiv:2108.09420,
       Algorithm 1, Theorems 4.8 and 5.1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import PowerSketch
    >>> x = np.random.default_rng(0).standard_normal(50)
    >>> x /= np.linalg.norm(x)
    >>> P = PowerSketch(50, 4096, degree=5).sample(0)
    >>> bool(abs(np.linalg.norm(P.apply(x)) - 1) < 0.3)
    True
    >>> P.apply_degrees(x, [1, 2, 5]).shape
    (3, 4096)
    """

    def sample(self, rng: RandomState = None) -> PowerSketchOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        m = self.n_components
        return PowerSketchOperator(
            first=self._leaf_law(m).sample(keyed(seed, "T")),
            square=TensorSRHT(m, m, replace=self.replace).sample(keyed(seed, "S")),
            degree=self.degree,
        )


class PowerSketchOperator(DegreesOperator):
    """Algorithm 1 with T = `first` and S = `square`.

    As a linear map of x₁ ⊗ … ⊗ x_p it is a tree in which every leaf is T and every node is S.
    """

    lowest = 1

    def __init__(self, *, first: Leaf, square: TensorSRHTOperator, degree: int):
        self.first, self.square = first, square
        self.factors, self.n_components = first.factors * degree, first.n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append the tree over `values`; any number of factors is allowed."""
        leaves = {value: self.first.emit(program, value) for value in dict.fromkeys(values)}
        shared = len(leaves) == 1  # equal leaves give equal nodes
        return emit_tree(
            program, len(values), lambda i: leaves[values[i]], lambda _: self.square, known={}, shared=shared
        )

    def emit_degrees(self, program: Program, value: int, degrees: Sequence[int]) -> list[int]:
        """Append the sketches of value^{⊗j}, which share their squarings."""
        return [self.emit(program, *[value] * j) for j in degrees]
