"""Features of dot-product kernels: sketches of the degrees of their Taylor series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._random import RandomState, generator, keyed
from ntkit._state import Floats, Real
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.features.series.base import (
    HIGHEST_DEGREE,
    KernelLike,
    SeriesDraws,
    SeriesMap,
    SeriesPlan,
    last_degree,
    log_masses,
)
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.kernels.zonal import Zonal
from ntkit.sketches.series import SeriesSketch

_POWER_DEGREE = 32  # from this degree on, "power" takes at most about half the time of "tree" (measured)
_POWER_DEGREE_LONG = 8  # as above, for rows with more columns than the base sketch of "power" has components


@dataclass(frozen=True, kw_only=True, eq=False)
class DotProductPlan(SeriesPlan):
    """Weights of the degrees, and options for their sketches."""

    n_components: int
    weights: np.ndarray
    degree: int
    n_sampled: int
    normalize: bool
    method: str

    def draw_tail(self, rng: np.random.Generator) -> dict[int, float]:
        """Sample degrees above `degree`; return them with their factors."""
        tail = self.weights[self.degree + 1 :]
        if not self.n_sampled or not tail.any():
            return {}
        p = tail / tail.sum()
        factors = tail_factors(rng.multinomial(self.n_sampled, p), p)
        return {self.degree + 1 + i: float(factors[i]) for i in np.flatnonzero(factors).tolist()}

    def law(self, sampled: dict[int, float], owner: str) -> SeriesSketch:
        """Return the law of the sketches of the degrees kept and drawn."""
        weights = self.weights.copy()
        weights[self.degree + 1 :] = 0
        for j, factor in sampled.items():
            weights[j] = factor * self.weights[j]
        n_degrees = np.count_nonzero(weights)
        if self.n_sampled and n_degrees > self.n_components:
            rule = f"at least {n_degrees}, the number of degrees kept and drawn with n_sampled={self.n_sampled}"
            remedy = "Raise it, or lower 'degree' or 'n_sampled'."
            raise ValueError(message(owner, "n_components", rule, self.n_components, remedy))
        law = SeriesSketch(
            self.n_features,
            tuple(weights.tolist()),
            self.n_components,
            normalize=self.normalize,
            every_degree=self.n_sampled > 0,
        )
        return replace(law, width=None, shared=self._is_shared(law, owner)).with_leaves()

    def _is_shared(self, law: SeriesSketch, owner: str) -> bool:
        """Return whether all degrees share one base sketch (method "power")."""
        # Over all degrees and not only the drawn ones: the answer must not depend on the draws.
        highest = int(np.flatnonzero(self.weights).max(initial=0))
        shared = self.method == "power" or (self.method == "auto" and self._powers_are_faster(law, highest))
        top = max(law.budget.sketched, default=0)
        if shared and not self.normalize and top**2 > law.n_components:
            rule = f"'tree' for degree {top} without normalize: norms of powers would vary by orders of magnitude"
            remedy = f"Set normalize=True, or use method='tree' with a degree of at most {LARGEST_DEGREE}."
            raise ValueError(message(owner, "method", rule, self.method, remedy))
        return shared

    def _powers_are_faster(self, law: SeriesSketch, highest: int) -> bool:
        if not self.normalize and highest <= LARGEST_DEGREE:
            return False
        width = replace(law, width=None, shared=True).width
        assert width is not None
        top = max(law.budget.sketched, default=0)
        return top >= _POWER_DEGREE or (top >= _POWER_DEGREE_LONG and law.n_features > width)


class SampledDraws(SeriesDraws):
    """A sketched series, and the factors of its sampled degrees."""

    def __init__(self, operator: Any, weights: Any, sampled: dict[int, float]):
        super().__init__(operator, weights)
        self.sampled = sampled


class DotProductSketch(SeriesMap):
    """Features of the Gaussian kernel, the NTK and other dot-product kernels by sketches of their Taylor series.

    The kernels are Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j with weights w_j that depend on the norms:

        "gaussian"       exp(−‖x − y‖²/(2ℓ²))              w_j(r) = (r/ℓ)^j e^{−r²/(2ℓ²)} / √(j!)
        "exponential"    exp(⟨x, y⟩/ℓ²)                    w_j(r) = (r/ℓ)^j / √(j!)
        "ntk", "nngp"    ‖x‖‖y‖ Σ_j a_j cos(x, y)^j        w_j(r) = √a_j r
        "hidden_ntk"     ‖x‖‖y‖ cos(x, y) κ₀(cos(x, y))/2  w_j(r) = √a_j r
        "arc_cosine"     ‖x‖^p ‖y‖^p κ_p(cos(x, y))        w_j(r) = √a_j r^p, p = 0 or 1
        "polynomial"     (γ⟨x, y⟩ + c)^p                   w_j(r) = √(C(p, j) γ^j c^{p−j}) r^j
        [a_0, a_1, …]    Σ_j a_j ⟨x, y⟩^j                  w_j(r) = √a_j r^j

    Here a_j are the Taylor coefficients of K_relu^(L) for "ntk", of Σ_relu^(L) for "nngp", of the arc-cosine functions
    (:func:`~ntkit.kernels.arc_cosine`), and of t κ₀(t)/2 = t/4 + Σ_n C(2n, n) 4^{-n} t^{2n+2}/(2π(2n + 1)) for
    "hidden_ntk", the NTK of one hidden layer whose output weights are not trained [3]_. The features are

        Z(x) = ⊕_{j≤p} w_j(‖x‖) Z_j(x/‖x‖),   Z_j(u)·Z_j(v) ≈ ⟨u, v⟩^j.

    If all monomials of degree j fit in its share of the components, Z_j consists of these monomials and is exact
    (degree 0 is a constant, degree 1 is x itself). Otherwise Z_j is a sketch made of
    :class:`~ntkit.sketches.TensorSRHT` (see `method`).

    Parameters
    ----------
    kernel : str, Layer or sequence of float
        A name above, a network of Dense layers with ReLU, LeakyReLU or Abs between them (without biases), or at most
        1025 Taylor coefficients a_j ≥ 0.
    n_components : int
        Number m of features. There are fewer features if all degrees together have fewer monomials, as for one to four
        columns or a low degree. The only error is then the error of the omitted degrees.
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"order": 0}`` for "arc_cosine" or ``{"degree": 3}`` for
        "polynomial".
    lengthscale : float > 0 or "scale"
        ℓ, for "gaussian" and "exponential". "scale": √(d·Var(X)/2), with the variance over all entries of the X given
        to `fit`, as in :class:`RandomFourierFeatures`.
    depth : int
        Number L of ReLU layers, for "ntk" and "nngp".
    degree : int from 1 to 1024 or "auto"
        Highest degree p. "auto": the smallest degree that reaches `tolerance`, up to 64 for kernels given by name; if
        `n_sampled` > 0, it is `n_sampled`.
    tolerance : float from 0 to 1
        For ``degree="auto"``: the largest share of Σ k(x, x) over the rows of `fit` that may be omitted. Ignored if
        `n_sampled` > 0.
    normalize : bool
        Whether sketches are divided by their norms. Then ‖Z(x)‖² = Σ w_j(‖x‖)² exactly, over the degrees kept, and the
        error for similar rows is much smaller, but there is a bias of order 1/m. Without `normalize` and with
        ``method="tree"``, Z(x)·Z(y) is an unbiased estimate of Σ w_j(‖x‖) w_j(‖y‖) cos(x, y)^j over the degrees kept.
    method : {"auto", "tree", "power"}
        How degrees are sketched. "tree": by trees of independent TensorSRHTs, up to degree 128. "power": by powers of
        one sketch of x, as in Algorithm 1 of [3]_ (:class:`~ntkit.sketches.series.SeriesSketch` with `shared`), which
        is faster for high degrees and long rows. "auto": "power" if the highest sketched degree is at least 32, or at
        least 8 for rows of more than max(m'/2, 512) columns, where m' is the power of two ≥ m; otherwise "tree".
        Without `normalize`, "auto" is "tree" up to degree 128.
    n_sampled : int from 0 to 1024
        Number N of degrees sampled from all degrees above p up to q, for series that decay slowly. q is 1024 (128 for
        trees), or the degree of the last coefficient if coefficients are given. Degrees are sampled with replacement
        with probabilities p_l proportional to `weights_`, and a degree drawn n_l times gets the factor n_l/(N p_l). The
        mean over the draws is the whole series up to q (Theorem B.5 of [3]_, with s = p terms and N samples). No degree
        that is kept or drawn is then omitted, so each must have at least one component.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the sketches in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    lengthscale_ : float
        ℓ; 1 for kernels without a length scale.
    degree_ : int
        Highest degree p, not counting sampled degrees.
    weights_ : ndarray of shape (`degree_` + 1,), with `n_sampled` (q + 1,)
        Σ w_j(‖x‖)² over the nonzero rows of `fit` (over a row of norm ℓ if all rows are 0), divided by the sum over j.
        Components are divided among the degrees in proportion to these weights, which minimizes the sum of all
        variances. Degrees with a share of less than half a component are omitted, unless the monomials of all degrees
        fit or degrees are sampled.
    sampled_ : dict of int to float
        The sampled degrees above p, and their factors n_l/(N p_l).
    budget_ : Budget
        ``exact`` and ``sketched``: number of components of each degree.
    sketch_ : operator
        The draws.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The variance of Z(x)·Z(y) is about Σ' w_j(‖x‖)² w_j(‖y‖)²/m_j, summed over sketched degrees with m_j components. It
    is smaller for similar rows and, with `normalize`, zero for equal rows. For standardized rows of d = 3, 10 and 64
    columns, ℓ = √d and m = 1024, the relative error of the Gaussian kernel matrix was 0.00004, 0.003 and 0.022. For
    :class:`RandomFourierFeatures` it was 0.05, 0.06 and 0.07. This map suits rows whose norms are not much larger
    than ℓ.

    A row takes O(p' (d log d + w log w) + m log m), with p' ≤ p − 1 + log₂ p for each sketched degree p and
    w = max(m/4, 256). For d > 4m, where leaves are OSNAPs, O(nnz(x)) replaces d log d. With ``method="power"`` a row
    takes O(d log d + (log p + n) w log w + m), with n sketched degrees without gaps (n log p instead of n with gaps)
    and w twice as large. For the NTK, :class:`NTKPolynomialSketch` fits a polynomial instead of truncating the series,
    so that ‖Z(x)‖² = k(x, x), and uses lower degrees for more than 32 columns.

    The time of "tree" divided by the time of "power", with all degrees from 2 on and m = 1024 and 4096, was 0.8 to 1.6
    for highest degrees 8 and 16 and 1.7 to 2.5 for 32 and 64, with d = 10 and 100; 1.3 to 4.5 with d = 1000; and 6
    (degree 8) to 44 (degree 64) with d = 10 000. The errors of kernel matrices are the same for random rows. For rows
    with cosine 0.8, the error of "power" was up to 20 % larger for d ≤ 1000 and, from degree 8 on, up to 30 % larger
    for d = 10 000.

    The weights of the Gaussian kernel vanish for rows with ‖x‖²/ℓ² well above the degree. Centre the columns first;
    this does not change the Gaussian kernel. Features overflow if k(x, x) does. For a zero row only features of degree
    0 are nonzero (none for homogeneous kernels such as the NTK).

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Lemma 1
       and Remark 1.
    .. [2] Cotter, Keshet, Srebro, "Explicit Approximations of the Gaussian Kernel", arXiv:1109.4603: Taylor features,
       all monomials.
    .. [3] Song et al., "Fast sketching of polynomial kernels of polynomial degree", ICML 2021, arXiv:2108.09420,
       Algorithm 1, Theorems 5.1, A.1, B.2 and B.5, Corollary B.6, Appendix C (Fact C.2 with its missing plus sign).

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import DotProductSketch
    >>> from ntkit.kernels import gaussian
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> Z = DotProductSketch("gaussian", n_components=1024, lengthscale=3.0, random_state=0).fit_transform(X)
    >>> K = gaussian(X, lengthscale=3.0)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.01 * np.linalg.norm(K))
    True
    >>> sampled = DotProductSketch("ntk", n_components=1024, n_sampled=16, random_state=0).fit(X)
    >>> sampled.degree_, len(sampled.sampled_) <= 16
    (16, True)
    """

    _highest: ClassVar[int] = HIGHEST_DEGREE
    _learned: ClassVar[dict[str, Any]] = {"lengthscale_": Real(0, strict=True), "weights_": Floats(None, minimum=0)}
    _remade: ClassVar[tuple[str, ...]] = ("degree_", "sampled_", "budget_")

    _old_names: ClassVar[dict[str, Any]] = {"sketch": "method"}
    _old_positions: ClassVar[int] = 2

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        *,
        n_components: int = 1024,
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int = 1,
        degree: int | str = "auto",
        tolerance: float = 1e-4,
        normalize: bool = True,
        method: str = "auto",
        n_sampled: int = 0,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.n_components = n_components
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.depth = depth
        self.degree = degree
        self.tolerance = tolerance
        self.normalize = normalize
        self.method = method
        self.n_sampled = n_sampled
        self.batch_size = batch_size
        self.random_state = random_state

    def _learn_from_norms(self, series: Zonal, norms: np.ndarray) -> dict[str, Any]:
        degree = self._check_degree(series, norms)
        if self._check_sampled():
            infinite = series.n_taylor is None
            degree = max(degree, LARGEST_DEGREE) if infinite and self._needs_trees() else last_degree(series)
        logs = log_masses(series, norms, degree)
        masses = np.exp(logs - logs.max())
        return {"weights_": masses / masses.sum()}

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> DotProductPlan:
        name, weights = type(self).__name__, learned["weights_"]
        m = check_int(self.n_components, "n_components", name, minimum=1)
        normalize = check_bool(self.normalize, "normalize", name)
        method = check_choice(self.method, "method", name, ("auto", "tree", "power"))
        spec = self._check_spec(learned["lengthscale_"])
        degree = len(weights) - 1
        if not 0 <= degree <= HIGHEST_DEGREE:
            rule = f"must have a degree from 0 to {HIGHEST_DEGREE}. Got {degree} instead. Fit it again."
            raise ValueError(f"The weights of {name} {rule}")
        n_sampled = self._check_sampled()
        if n_sampled:
            given = self._given_degree(spec.zonal)
            degree = min(degree, n_sampled if given is None else given)
        highest = int(np.flatnonzero(weights).max(initial=0))
        if method == "tree" and highest > LARGEST_DEGREE:
            rule = f"'power' or 'auto' for degrees above {LARGEST_DEGREE} (here up to {highest})"
            raise ValueError(message(name, "method", rule, method, "Set method='power', or lower the degree."))
        return DotProductPlan(
            shape=shape,
            kernel=spec,
            n_components=m,
            weights=weights,
            degree=degree,
            n_sampled=n_sampled,
            normalize=normalize,
            method=method,
        )

    def _draw_bytes(self, plan: DotProductPlan) -> int:
        """Count the degrees kept, and up to 12 powers for each sampled degree, which a chain of powers needs."""
        law, n_all = plan.law({}, type(self).__name__), len(plan.weights)
        n_degrees = min(n_all, plan.degree + 1 + 12 * plan.n_sampled)
        return -(-law.draw_bytes() * n_degrees // n_all)

    def _draw(self, plan: DotProductPlan, seed: np.random.SeedSequence) -> SampledDraws:
        sampled = plan.draw_tail(generator(seed, "tail"))
        law = plan.law(sampled, type(self).__name__)
        kept = np.array(list(law.budget.coefficients))
        roots = np.sqrt([sampled.get(int(j), 1.0) for j in kept])

        def weights(norms: Array) -> Array:
            """Compute w_j(r), times the square root of the factor if degree j was sampled."""
            return plan.series.weights(norms, kept) * _array.constant(roots, norms)

        return SampledDraws(law.sample(keyed(seed, "series")), weights, sampled)

    def _describe(self, plan: DotProductPlan, draws: SampledDraws) -> dict[str, Any]:
        return {"degree_": plan.degree, "sampled_": draws.sampled, "budget_": draws.budget}

    def _check_sampled(self) -> int:
        return check_int(self.n_sampled, "n_sampled", type(self).__name__, minimum=0, maximum=HIGHEST_DEGREE)

    def _needs_trees(self) -> bool:
        """Return whether sketches must be trees, so that they are unbiased or because the user asked for trees."""
        return self.method == "tree" or (self.method == "auto" and not self.normalize)

    @property
    def sketch_(self) -> Any:
        """The draws."""
        return self._draws.operator


def tail_factors(counts: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the factors n_l/(N p_l) of degrees of probability p_l that were drawn n_l times out of N; the means are 1.

    Examples
    --------
    >>> import numpy as np
    >>> tail_factors(np.array([1, 3, 0]), np.array([0.25, 0.5, 0.25]))
    array([1. , 1.5, 0. ])
    """
    drawn = counts > 0
    return np.where(drawn, counts / (counts.sum() * np.where(drawn, p, 1.0)), 0.0)
