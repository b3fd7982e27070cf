"""Features of the polynomial kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState, keyed
from ntkit._state import Floats
from ntkit._validation import check_bool, check_choice, check_int, check_real
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.draws import Draws, ProgramDraws
from ntkit.features.series.base import SeriesDraws, degrees_of, last_degree, log_masses, positive_norms
from ntkit.kernels import KernelSpec
from ntkit.kernels.dot_product import binomial_logs
from ntkit.kernels.zonal import Series
from ntkit.programs import Program, power_of_two
from ntkit.sketches import TensorSketch
from ntkit.sketches.series import SeriesSketch

_METHODS = ("tree", "power", "count")
_ELEMENTS = 2**20  # number of weights of rows held at a time
_MIN_SHARE = 1e-300  # smallest share of a degree of the kernel: positive, but negligible


@dataclass(frozen=True, kw_only=True, eq=False)
class PolynomialPlan(Plan):
    """The kernel as a series, and the law of its sketch."""

    degree: int
    gamma: float
    coef0: float
    series: Series
    law: SeriesSketch | TensorSketch
    normalize: bool

    def matrix(self, X: Array) -> Array:
        """See :meth:`Plan.matrix`."""
        gamma = self.gamma or 1.0
        kernel = KernelSpec.of("polynomial", degree=self.degree, coef0=self.coef0, gamma=gamma)
        return kernel.matrix(X if self.gamma else 0 * X)

    def weights(self, norms: Array, kept: np.ndarray) -> Array:
        """Compute √a_j r^j. With `normalize` they are scaled to restore ‖Z(x)‖² = k(x, x) if degrees were omitted."""
        weights = self.series.weights(norms, kept)
        every = degrees_of(self.series, self.degree)
        if not self.normalize or len(kept) >= len(every):
            return weights
        xp: Any = _array.namespace(norms)
        total, found = (xp.sum(w * w, axis=1) for w in (self.series.weights(norms, every), weights))
        usable = (found > 0) & xp.isfinite(total)
        ratio = xp.where(usable, total, xp.ones_like(total)) / xp.where(usable, found, xp.ones_like(found))
        return weights * xp.sqrt(ratio)[:, None]


class PolynomialSketch(FeatureMap):
    """Features Z with Z(x)·Z(y) ≈ (γ⟨x, y⟩ + c)^p, the polynomial kernel.

    It replaces scikit-learn's ``PolynomialCountSketch`` and is many times faster and more accurate. The kernel is
    expanded by degrees,

        (γ⟨x, y⟩ + c)^p = Σ_j a_j ⟨x, y⟩^j,   a_j = C(p, j) γ^j c^{p−j},
        Z(x) = ⊕_j √a_j ‖x‖^j Z_j(x/‖x‖),     Z_j(u)·Z_j(v) ≈ ⟨u, v⟩^j,

    and every degree gets a share of the components. Degrees whose monomials fit in their share are exact: the constant,
    usually the linear part, and higher degrees for few columns. The other degrees are sketched.

    Parameters
    ----------
    degree : int
        p.
    gamma : float
        γ ≥ 0.
    coef0 : float
        c ≥ 0.
    n_components : int
        Number m of features; powers of two are the most efficient. If all degrees together have fewer monomials, there
        are fewer features and no error.
    method : {"tree", "power", "count"}
        How a degree is sketched. "tree": by trees of independent TensorSRHTs, as in
        :class:`~ntkit.sketches.PolySketch`; the most accurate. "power": by powers of one sketch, as in
        :class:`~ntkit.sketches.PowerSketch`; faster for high degrees, with up to 20 % more error. "count":
        :class:`~ntkit.sketches.TensorSketch` of √γ x with √c appended, without expansion; this is the law of
        scikit-learn's sketch.
    normalize : bool
        For "tree" and "power": whether sketches are rescaled to their known norms. Then ‖Z(x)‖² = k(x, x) exactly, and
        errors for similar rows are two to four times smaller, but there is a bias of order 1/m. Without `normalize`,
        "tree" is unbiased, and every degree has a component if there are enough.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget
        (``sklearn.set_config(working_memory=…)``).
    random_state : None, int, RandomState or Generator
        Draws the sketch in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    shares_ : ndarray of shape (degree + 1,)
        Weights by which the components are divided among the degrees, learned from the norms of the rows of `fit` (see
        Notes).
    budget_ : Budget
        ``exact`` and ``sketched``: number of components of each degree.
    sketch_ : operator
        The draws; for "count", the program that applies them.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Let w_j(x) = a_j ‖x‖^{2j}; these add up to k(x, x). Let f_j = Σ_x w_j(x)/Σ_x k(x, x), and let g_j be the mean of
    w_j(x)/k(x, x) over the rows of `fit`. Shares ∝ f_j minimize the error of the kernel matrix; shares ∝ g_j minimize
    the relative errors of single rows. `shares_` is √(f_j² + g_j²/4). Degrees with a share of less than half a
    component are omitted. So fit on rows like the rows to transform: much longer or shorter rows have a larger error.

    On 300 rows of 50 columns (uniform entries with row sum 1; Gaussian unit rows), 2000 components, degrees 2 to 16 and
    c from 0 to 2.5, the relative error of the kernel matrix was 0 to 0.99 times the error of scikit-learn's sketch.

    If there are more than four times as many columns as components (and more than 1024 columns), rows are first mapped
    by OSNAPs, in time proportional to their nonzeros, for dense and sparse rows. Fitting on dense or sparse rows gives
    the same map, and it accepts both. A row takes O(p d log d + (p + n log p) w log w + m) for "tree", where n is the
    number of sketched degrees and w the largest number of components of a degree, O(d log d + (log p + n) w log w + m)
    for "power" and O(p (d + m log m)) for "count".

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Lemma 1.
    .. [2] Song et al., "Fast sketching of polynomial kernels of polynomial degree", ICML 2021.
    .. [3] Pham, Pagh, "Fast and scalable polynomial kernels via explicit feature maps", KDD 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import PolynomialSketch
    >>> X = np.random.default_rng(0).standard_normal((5, 64)) / 8
    >>> sketch = PolynomialSketch(degree=3, coef0=1.0, n_components=4096, random_state=0).fit(X)
    >>> Z = sketch.transform(X)
    >>> K = (X @ X.T + 1) ** 3
    >>> bool(np.abs(Z @ Z.T - K).max() < 0.02 * K.max())
    True
    >>> sketch.budget_.exact  # the constant, all monomials of degrees 1 and 2
    {0: 1, 1: 64, 2: 2080}
    """

    _learned: ClassVar[dict[str, Any]] = {"shares_": Floats(None, minimum=0)}
    _remade: ClassVar[tuple[str, ...]] = ("budget_",)

    def __init__(
        self,
        *,
        degree: int = 2,
        gamma: float = 1.0,
        coef0: float = 0.0,
        n_components: int = 100,
        method: str = "tree",
        normalize: bool = True,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.n_components = n_components
        self.method = method
        self.normalize = normalize
        self.batch_size = batch_size
        self.random_state = random_state

    def _check_series(self) -> Series:
        """Return the kernel as a series, given by the logarithms of its coefficients."""
        name = type(self).__name__
        p = check_int(self.degree, "degree", name, minimum=1)
        gamma = check_real(self.gamma, "gamma", name, minimum=0)
        return Series(logs=binomial_logs(p, gamma, check_real(self.coef0, "coef0", name, minimum=0)))

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:  # noqa: ARG002
        series = self._check_series()
        # If all rows are zero, assume rows with γ‖x‖² = 1.
        return {"shares_": _learn_shares(series, positive_norms(X, self.gamma**-0.5 if self.gamma > 0 else 1.0))}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> PolynomialPlan:
        name, (d,), shares = type(self).__name__, shape, learned["shares_"]
        m = check_int(self.n_components, "n_components", name, minimum=1)
        method = check_choice(self.method, "method", name, _METHODS)
        normalize = check_bool(self.normalize, "normalize", name)
        series = self._check_series()
        logs = series.log_coefficients(self.degree)
        if len(shares) != len(logs) or ((shares > 0) != np.isfinite(logs)).any():
            raise ValueError(
                f"The shares of {name} were learned with another 'degree', 'gamma' or 'coef0'. Fit it again."
            )
        law: SeriesSketch | TensorSketch
        if method == "count":
            law = TensorSketch(d + (self.coef0 > 0), m, degree=self.degree)
        else:
            law = SeriesSketch(
                d,
                tuple(shares.tolist()),
                m,
                normalize=normalize,
                shared=method == "power",
                every_degree=not normalize,
            )
            assert law.width is not None
            # Inner nodes are at least as wide as any root: a degree with most of the components needs wide inner nodes.
            widest = power_of_two(max(law.budget.sketched.values(), default=1))
            law = replace(law, width=max(widest, law.width if law.shared else 256)).with_leaves()
        return PolynomialPlan(
            shape=shape,
            kernel=None,
            degree=self.degree,
            gamma=float(self.gamma),
            coef0=float(self.coef0),
            series=series,
            law=law,
            normalize=normalize,
        )

    def _draw(self, plan: PolynomialPlan, seed: np.random.SeedSequence) -> Draws:
        if isinstance(plan.law, SeriesSketch):
            kept = np.array(list(plan.law.budget.coefficients))
            return SeriesDraws(plan.law.sample(keyed(seed, "series")), lambda norms: plan.weights(norms, kept))
        sketch = plan.law.sample(seed)
        program = Program((plan.n_features,))
        x = program.load(scale=plan.gamma**0.5, constant=plan.coef0**0.5 if plan.coef0 > 0 else None)
        program.output(sketch.emit(program, *[x] * sketch.degree))
        return ProgramDraws(program)

    def _describe(self, plan: PolynomialPlan, draws: Draws) -> dict[str, Any]:  # noqa: ARG002
        self.__dict__.pop("budget_", None)
        return {"budget_": plan.law.budget} if isinstance(plan.law, SeriesSketch) else {}

    @property
    def sketch_(self) -> Any:
        """The draws."""
        return self._draws.operator if isinstance(self._draws, SeriesDraws) else self._draws.program


def _learn_shares(series: Series, norms: np.ndarray) -> np.ndarray:
    """Compute √(f_j² + g_j²/4) for norms > 0, see the notes of :class:`PolynomialSketch`."""
    degrees = np.arange(last_degree(series) + 1)
    logs = log_masses(series, norms, last_degree(series))
    if not np.isfinite(logs).any():  # γ = c = 0
        return np.zeros(len(degrees))
    total, top = np.zeros(len(degrees)), logs.max()
    step = max(1, _ELEMENTS // len(degrees))
    for start in range(0, len(norms), step):
        weights = 2 * series.log_weights(norms[start : start + step], degrees)
        weights = np.exp(weights - weights.max(axis=1, keepdims=True))
        total += (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0)
    f = np.exp(logs - top) / np.exp(logs - top).sum()
    # Every degree of the kernel has a positive share, so that `_plan` notices shares of another kernel in a file.
    return np.where(np.isfinite(logs), np.maximum(np.hypot(f, 0.5 * total / len(norms)), _MIN_SHARE), 0.0)
