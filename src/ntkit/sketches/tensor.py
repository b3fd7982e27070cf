"""Sketches of tensor products of a few vectors: TensorSRHT and TensorSketch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool, check_int, message
from ntkit.programs import Floats, Program, array_api, power_of_two
from ntkit.sketches.base import Distribution, Operator
from ntkit.sketches.countsketch import CountSketch, OSNAPOperator
from ntkit.sketches.draws import draw_rows, draw_signs


class TensorLaw(Distribution):
    """Base class of distributions whose factors may have different sizes."""

    n_features: int | tuple[int, ...]
    degree: int

    def _check_factors(self) -> tuple[int, ...]:
        """Return the sizes of all factors, or raise; convert a list of sizes to a tuple."""
        self._check_sizes("degree", "n_components")
        given: Any = self.n_features
        several = isinstance(given, tuple | list)
        sizes = tuple(given) if several else (given,) * self.degree
        if len(sizes) != self.degree:
            rule = f"an int ≥ 1 or a tuple of {self.degree} ints ≥ 1, one for each factor (the degree)"
            raise ValueError(message(type(self).__name__, "n_features", rule, given))
        sizes = tuple(check_int(size, "n_features", type(self).__name__, minimum=1) for size in sizes)
        object.__setattr__(self, "n_features", sizes if several else sizes[0])
        return sizes

    def _key(self) -> Iterator[int]:
        yield from self._check_factors()
        yield self.n_components
        yield int(getattr(self, "replace", False))


@dataclass(frozen=True)
class TensorSRHT(TensorLaw):
    """Sketch of x₁ ⊗ … ⊗ x_p by sampled products of sign-Hadamard transforms.

    Coordinate l is  m^{-1/2} ∏_{i≤p} (H D_i x_i)[r_{il}].  H is the Hadamard matrix (entries ±1) of order n_i, the
    smallest power of two ≥ d_i; x_i is zero-padded to n_i entries. D_i are independent random signs, r_{il} is uniform.

        E⟨Sx, Sy⟩   = ∏ ⟨x_i, y_i⟩
        Var⟨Sx, Sy⟩ = [∏ A_i − ∏ c_i²] / m            with ``replace=True``,
        A_i = ‖x_i‖²‖y_i‖² + 2 c_i² − 2 Σ_j x_ij²y_ij²,   c_i = ⟨x_i, y_i⟩.

    By default the rows r_{i1}, r_{i2}, … of each factor are distinct until all n_i rows were used. For m ≤ n_i this
    adds  (1 − 1/m) [∏ B_i − ∏ c_i²],  B_i = (n_i c_i² − A_i)/(n_i − 1) ≤ c_i²,  to the variance. At m = n, p = 2 it
    halves the variance of ‖Sx‖²; for orthogonal x, y it multiplies the variance of ⟨Sx, Sy⟩ by
    1 + (m − 1)/(n − 1)^p.

    Parameters
    ----------
    n_features : int or tuple of p ints
        d_i, one size for all factors or one for each.
    n_components : int
        m.
    degree : int
        p.
    replace : bool
        Whether all sampled rows are independent, as in the papers.

    Notes
    -----
    Time O(Σ n_i log n_i + p m) per row. The variance grows like 3^p for parallel vectors: for more than two factors,
    use :class:`PolySketch`.

    References
    ----------
    .. [1] Ahle et al., "Oblivious sketching of high-degree polynomial kernels", SODA 2020, arXiv:1909.01410,
       Definition 15 and Lemma 21.
    .. [2] Song et al., "Fast sketching of polynomial kernels of polynomial degree", ICML 2021, Definition 2.9.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import TensorSRHT
    >>> x, y = np.random.default_rng(0).standard_normal((2, 100))
    >>> S = TensorSRHT(100, 4096).sample(0)
    >>> error = S.apply(x) @ S.apply(y) - (x @ y) ** 2
    >>> bool(abs(error) < 5 / 64 * (x @ x) * (y @ y))
    True
    """

    n_features: int | tuple[int, ...]
    n_components: int
    degree: int = 2
    replace: bool = False

    def __post_init__(self) -> None:
        self._check_factors()
        check_bool(self.replace, "replace", "TensorSRHT")

    def sample(self, rng: RandomState = None) -> TensorSRHTOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        sizes = self._check_factors()
        m = self.n_components
        return TensorSRHTOperator(
            signs=tuple(draw_signs(seed, i, size=d) for i, d in enumerate(sizes)),
            rows=tuple(
                draw_rows(seed, i, n=power_of_two(d), size=m, replace=self.replace) for i, d in enumerate(sizes)
            ),
        )


class TensorSRHTOperator(Operator):
    """(x_1, …, x_p) ↦ m^{-1/2} ∏ᵢ (H (signs[i] ⊙ x_i))[rows[i]]."""

    def __init__(self, *, signs: tuple[np.ndarray, ...], rows: tuple[np.ndarray, ...]):
        self.signs, self.rows = signs, rows
        self.factors, self.n_components = tuple(len(s) for s in signs), len(rows[0])

    def emit(self, program: Program, *values: int) -> int:
        """Append the transforms and the products of their sampled coordinates."""
        scale = self.n_components**-0.5
        transforms = [program.hadamard(v, s.astype(np.float64)) for v, s in zip(values, self.signs, strict=True)]
        if self.degree == 1:
            return program.gather(transforms[0], self.rows[0], scale)
        value = program.product(transforms[0], self.rows[0], transforms[1], self.rows[1], scale)
        in_order = np.arange(self.n_components, dtype=np.int32)
        for transform, rows in zip(transforms[2:], self.rows[2:], strict=True):
            value = program.product(value, in_order, transform, rows, 1.0)
        return value

    def emit_with(self, program: Program, value: int, vector: Floats) -> int:
        """Append the sketch of value ⊗ vector, where `vector` is the same for all rows; only for degree 2."""
        weights = self.n_components**-0.5 * array_api.hadamard(vector * self.signs[1])[self.rows[1]]
        return program.gather(program.hadamard(value, self.signs[0].astype(np.float64)), self.rows[0], weights)


@dataclass(frozen=True)
class TensorSketch(TensorLaw):
    """Sketch of x₁ ⊗ … ⊗ x_p by a convolution of CountSketches.

    S(x₁ ⊗ … ⊗ x_p) = F⁻¹(∏ F C_i x_i). This is a CountSketch of the tensor product: its hash is the sum of the p hashes
    modulo m, its sign the product of the p signs. All values are real (``rfft``).

        E⟨Sx, Sy⟩   = ∏ ⟨x_i, y_i⟩
        Var⟨Sx, Sy⟩ = [∏ (c_i² + T_i) + ∏ (c_i² + U_i) − 2 ∏ c_i²] / m
                      + κ [∏ (c_i² + T_i + U_i) − ∏ (c_i² + T_i) − ∏ (c_i² + U_i) + ∏ c_i²] / m²,
        c_i = ⟨x_i, y_i⟩,  T_i = ‖x_i‖²‖y_i‖² − Σ_j x_ij²y_ij²,  U_i = c_i² − Σ_j x_ij²y_ij²,

    and κ = 1 for odd m, 2 for even m.

    Parameters
    ----------
    n_features : int or tuple of p ints
        d_i, one size for all factors or one for each.
    n_components : int
        m.
    degree : int
        p.

    Notes
    -----
    Time O(Σ nnz(x_i) + p m log m) per row. scikit-learn's ``PolynomialCountSketch`` computes the same map. The
    variance grows like 2^{p+1}/m + 3^p/m² for parallel vectors: for more than two factors, use :class:`PolySketch`.

    References
    ----------
    .. [1] Pham, Pagh, "Fast and scalable polynomial kernels via explicit feature maps", KDD 2013.
    .. [2] Avron, Nguyen, Woodruff, "Subspace embeddings for the polynomial kernel", NeurIPS 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import TensorSketch
    >>> S = TensorSketch((3, 4), 8).sample(0)
    >>> S.apply(np.ones((5, 3)), np.ones((5, 4))).shape
    (5, 8)
    """

    n_features: int | tuple[int, ...]
    n_components: int
    degree: int = 2

    def __post_init__(self) -> None:
        self._check_factors()

    def sample(self, rng: RandomState = None) -> TensorSketchOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        sizes = self._check_factors()
        return TensorSketchOperator(
            tuple(CountSketch(d, self.n_components).sample(keyed(seed, i)) for i, d in enumerate(sizes))
        )


class TensorSketchOperator(Operator):
    """(x_1, …, x_p) ↦ circular convolution of counts[i].apply(x_i), i = 1, …, p."""

    def __init__(self, counts: tuple[OSNAPOperator, ...]):
        self.counts = counts
        self.factors = tuple(count.factors[0] for count in counts)
        self.n_components = counts[0].n_components

    def emit(self, program: Program, *values: int) -> int:
        """Append the CountSketches and their convolution."""
        parts = [count.emit(program, value) for count, value in zip(self.counts, values, strict=True)]
        return parts[0] if len(parts) == 1 else program.convolve(parts)
