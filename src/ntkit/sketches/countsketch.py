"""CountSketch and OSNAP: sparse sketching matrices, applied in time proportional to the nonzeros of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ntkit._random import RandomState, generator
from ntkit.programs import Program
from ntkit.sketches.base import Distribution, Operator
from ntkit.sketches.draws import draw_signs

_MAX_COMPONENTS = 2**30  # a row index and its sign share one int32


@dataclass(frozen=True)
class CountSketch(Distribution):
    """CountSketch: adds every feature, with a random sign, to one of m coordinates.

    S has one nonzero ±1 per column, in a uniformly random row:

        E⟨Sx, Sy⟩   = ⟨x, y⟩
        Var⟨Sx, Sy⟩ = [‖x‖²‖y‖² + ⟨x,y⟩² − 2 Σ x_j²y_j²] / m

    Parameters
    ----------
    n_features, n_components : int
        d and m.

    Notes
    -----
    Time O(nnz(x) + m) per row. The operator stores 4 bytes per feature.

    References
    ----------
    .. [1] Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
    .. [2] Clarkson, Woodruff, "Low-rank approximation and regression in input sparsity time", STOC 2013, Theorem 3.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import CountSketch
    >>> S = CountSketch(5, 3).sample(0)
    >>> np.abs(S.matrix()).sum(axis=0)
    array([1., 1., 1., 1., 1.])
    """

    n_features: int
    n_components: int

    def __post_init__(self) -> None:
        self._check_sizes("n_features")
        self._check_sizes("n_components", maximum=_MAX_COMPONENTS)

    def sample(self, rng: RandomState = None) -> OSNAPOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        return _sample(self._seed(rng), self.n_features, self.n_components, 1)


@dataclass(frozen=True)
class OSNAP(Distribution):
    """OSNAP: adds every feature, with random signs, to s coordinates, one in each of s blocks.

    S has s nonzeros ±s^{-1/2} per column. If s divides m, ⟨Sx, Sy⟩ has the same mean and variance as for a
    :class:`CountSketch`; otherwise the variance is larger by the factor (m/s²) Σ_b 1/m_b, where m_b are the sizes of
    the blocks. Its tails are lighter: m = O(ε⁻² log(1/δ)) and s = O(ε⁻¹ log(1/δ)) keep ‖x‖² within 1 ± ε [2]_, where a
    CountSketch needs m = O(ε⁻²/δ).

    Parameters
    ----------
    n_features, n_components : int
        d and m.
    n_nonzeros : int
        s, at most m. The blocks have equal sizes if s divides m; otherwise their sizes differ by at most one.

    Notes
    -----
    Time O(s nnz(x) + m) per row. The operator stores 4 s bytes per feature.

    References
    ----------
    .. [1] Nelson, Nguyễn, "OSNAP: Faster numerical linear algebra algorithms via sparser subspace embeddings",
       FOCS 2013.
    .. [2] Kane, Nelson, "Sparser Johnson–Lindenstrauss transforms", J. ACM 61, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import csr_array
    >>> from ntkit.sketches import OSNAP
    >>> S = OSNAP(1_000_000, 64, n_nonzeros=4).sample(0)
    >>> row = csr_array(([3.0, 4.0], ([0, 0], [17, 999_999])), shape=(1, 1_000_000))
    >>> S.apply(row).shape
    (1, 64)
    """

    n_features: int
    n_components: int
    n_nonzeros: int = 4

    def __post_init__(self) -> None:
        self._check_sizes("n_features")
        self._check_sizes("n_components", maximum=_MAX_COMPONENTS)
        self._check_sizes("n_nonzeros", maximum=self.n_components)

    def sample(self, rng: RandomState = None) -> OSNAPOperator:
        """Draw an operator; see :meth:`Distribution.sample`."""
        return _sample(self._seed(rng), self.n_features, self.n_components, self.n_nonzeros)


def _sample(seed: np.random.SeedSequence, n_features: int, m: int, s: int) -> OSNAPOperator:
    edges = np.arange(s + 1) * m // s
    size = (n_features, s)
    rows = generator(seed, "rows").integers(edges[:-1], edges[1:], size=size, dtype=np.int32)
    return OSNAPOperator(rows=rows, signs=draw_signs(seed, size=size), n_components=m)


class OSNAPOperator(Operator):
    """x ↦ Σ_{j,k} s^{-1/2} signs[j, k] x[j] e_{rows[j, k]}."""

    def __init__(self, *, rows: np.ndarray, signs: np.ndarray, n_components: int):
        self._codes = 2 * rows + (signs < 0)  # one int32 holds a row and its sign
        self.factors, self.n_components = (len(rows),), n_components

    @property
    def rows(self) -> np.ndarray:
        """Row of the k-th nonzero of column j, as an array of shape (n_features, s)."""
        return self._codes >> 1

    @property
    def signs(self) -> np.ndarray:
        """Sign of the k-th nonzero of column j, as an array of shape (n_features, s)."""
        return (1 - 2 * (self._codes & 1)).astype(np.int8)

    def emit(self, program: Program, *values: int) -> int:
        """Append the signed sums."""
        (value,) = values
        return program.scatter(value, self._codes, self._codes.shape[1] ** -0.5, self.n_components)
