"""Subsampled randomized Hadamard transform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ntkit._random import RandomState
from ntkit._validation import check_bool
from ntkit.programs import Program, power_of_two
from ntkit.sketches.base import Distribution, Operator
from ntkit.sketches.draws import draw_rows, draw_signs


@dataclass(frozen=True)
class SRHT(Distribution):
    """Subsampled randomized Hadamard transform S = m^{-1/2} P H D.

    D is a diagonal of independent random signs. H is the Hadamard matrix (entries ±1) of order n, the smallest power
    of two ≥ d; x is zero-padded to n entries. P samples m of the n rows.

        E⟨Sx, Sy⟩   = ⟨x, y⟩
        Var⟨Sx, Sy⟩ = [‖x‖²‖y‖² + ⟨x,y⟩² − 2 Σ x_j²y_j²] / m · (1 − (m−1)/(n−1))     for m ≤ n;

    the last factor is 1 with ``replace=True``. Lemma 2 of [1]_: m = O(ε⁻² log²(1/εδ)) gives
    ‖Sx‖² ∈ (1 ± ε)‖x‖² with probability 1 − δ.

    Parameters
    ----------
    n_features, n_components : int
        d and m. m may exceed n.
    replace : bool
        Whether rows are drawn independently, as in the papers. By default no row is drawn twice before every row was
        drawn once: the variance is never larger, and S is orthogonal for m = n (and an isometry for m = kn).

    Notes
    -----
    Time O(n log n + m) per row. The operator stores d signs and m row indices.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Lemma 2.
    .. [2] Cohen, Nelson, Woodruff, "Optimal approximate matrix product in terms of stable rank", ICALP 2016, Theorem 9.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import SRHT
    >>> S = SRHT(1000, 1024).sample(0)
    >>> x = np.random.default_rng(0).standard_normal(1000)
    >>> bool(np.isclose(np.linalg.norm(S.apply(x)), np.linalg.norm(x)))
    True
    """

    n_features: int
    n_components: int
    replace: bool = False

    def __post_init__(self) -> None:
        self._check_sizes("n_features", "n_components")
        check_bool(self.replace, "replace", "SRHT")

    def sample(self, rng: RandomState = None) -> SRHTOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        seed = self._seed(rng)
        n = power_of_two(self.n_features)
        return SRHTOperator(
            signs=draw_signs(seed, size=self.n_features),
            rows=draw_rows(seed, n=n, size=self.n_components, replace=self.replace),
        )


class SRHTOperator(Operator):
    """x ↦ m^{-1/2} (H (signs ⊙ x))[rows]."""

    def __init__(self, *, signs: np.ndarray, rows: np.ndarray):
        self.signs, self.rows = signs, rows
        self.factors, self.n_components = (len(signs),), len(rows)

    def emit(self, program: Program, *values: int) -> int:
        """Append the transform and the sampling of its rows."""
        (value,) = values
        transform = program.hadamard(value, self.signs.astype(np.float64))
        return program.gather(transform, self.rows, self.n_components**-0.5)
