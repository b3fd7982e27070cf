"""Features of the NTK of fully connected ReLU networks by one sketched polynomial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit._random import RandomState, keyed
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.degrees import series_degree
from ntkit.features.draws import Draws, ProgramDraws
from ntkit.kernels import KernelSpec
from ntkit.kernels.fit import LARGEST_DEGREE, fitted_degree, fitted_polynomial, polynomial_error
from ntkit.programs import Program
from ntkit.sketches.series import SeriesSketch


@dataclass(frozen=True, kw_only=True, eq=False)
class PolynomialFitPlan(Plan):
    """The law of a sketched polynomial."""

    law: SeriesSketch
    degree: int


class NTKPolynomialSketch(FeatureMap):
    """Features of the NTK by one sketched polynomial: the map with the smallest kernel error.

    NTK(x, y) = ‖x‖‖y‖ K(cos(x, y)) with K = K_relu^(L). A polynomial Σ a_j t^j with a_j ≥ 0 and Σ a_j = K(1) is fitted
    to K (Remark 1 of [1]_). The components are divided among its degrees in proportion to a_j:
    Z(x) = ‖x‖ ⊕_j √a_j Z_j(x/‖x‖) with Z_0 = 1 and Z_j a sketch of x^{⊗j}. If all monomials of a degree fit in its
    share (for degree 1 these are x itself), they are used instead of a sketch, without error.

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features. There are fewer features if all degrees together have fewer monomials, as for one to four
        columns or a low degree. The polynomial is then represented exactly.
    degree : int or "auto"
        Highest degree, up to 128. "auto" takes the smallest degree that reaches `tolerance`. Without `tolerance`, it
        takes the best trade-off for the numbers of columns and components: twice the degree must lower the predicted
        error ‖ZZᵀ − K‖_F/‖K‖_F by 5 %. With 1024 components, up to three layers and more than 11 columns, this is 7 to
        32. The degree is higher for few columns, whose monomials are exact, and for more components.
    tolerance : float or None
        For ``degree="auto"``: upper bound for ``max |Σ a_j t^j − K(t)| / K(1)``.
    kind : {"ntk", "nngp"}
        "ntk": kernel of a trained network. "nngp": kernel of its random initialization.
    width : int or None
        Size of the inner nodes of the trees; None: a quarter of `n_components`, but at least 256.
    normalize : bool
        Whether sketches are divided by their norms. Then ‖Z(x)‖² = (L + 1)‖x‖² exactly, but there is a bias of order
        1/width. Without `normalize`, Z(x)·Z(y) is an unbiased estimate of ‖x‖‖y‖ Σ a_j cos(x, y)^j, but its error is
        larger, especially for similar rows.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper; see
        :class:`~ntkit.sketches.TensorSRHT`.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    degree_ : int
        Highest degree used.
    coefficients_ : ndarray of shape (`degree_` + 1,)
        a_j; many are 0. (The coefficients of degrees too small for a component are added to other degrees.)
    fit_error_ : float
        ``max |Σ a_j t^j − K(t)| / K(1)`` over [−1, 1]. The maximum is near t = 1; elsewhere the fit is much closer.
    budget_ : Budget
        ``exact`` and ``sketched``: number of components of each degree.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The variance of Z(x)·Z(y) is about ‖x‖²‖y‖² (Σ' a_j)² / m', where Σ' runs over the sketched degrees and m' is their
    number of components. It is smaller for similar rows, down to 0 for equal rows; without `normalize` it is several
    times larger for similar rows. A row takes O(p' (d log d + w log w) + m log m), with p' ≤ p − 1 + log₂ p for each
    sketched degree p, and w the width. For d > 4m, where leaves are OSNAPs, O(nnz(x)) replaces d log d.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021, Remark 1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKPolynomialSketch
    >>> from ntkit.kernels import ntk
    >>> X = np.random.default_rng(0).standard_normal((50, 20))
    >>> Z = NTKPolynomialSketch(depth=2, n_components=4096, random_state=0).fit_transform(X)
    >>> K = ntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.05 * np.linalg.norm(K))
    True
    """

    _old_names: ClassVar[dict[str, Any]] = {"tol": "tolerance"}
    _remade: ClassVar[tuple[str, ...]] = ("degree_", "budget_", "coefficients_", "fit_error_")

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        degree: int | str = "auto",
        tolerance: float | None = None,
        kind: str = "ntk",
        width: int | None = None,
        normalize: bool = True,
        replace: bool = False,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.n_components = n_components
        self.degree = degree
        self.tolerance = tolerance
        self.kind = kind
        self.width = width
        self.normalize = normalize
        self.replace = replace
        self.batch_size = batch_size
        self.random_state = random_state

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> PolynomialFitPlan:  # noqa: ARG002
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        m = check_int(self.n_components, "n_components", name, minimum=1)
        kind = check_choice(self.kind, "kind", name, ("ntk", "nngp"))
        if self.tolerance is not None:
            check_real(self.tolerance, "tolerance", name, minimum=0, maximum=1)
        if self.width is not None:
            check_int(self.width, "width", name, minimum=1)
        for flag in ("normalize", "replace"):
            check_bool(getattr(self, flag), flag, name)
        spec = KernelSpec.of(kind, depth=depth)
        if not isinstance(self.degree, str):
            degree = check_int(self.degree, "degree", name, minimum=1, maximum=LARGEST_DEGREE)
        elif self.degree != "auto":
            raise ValueError(message(name, "degree", "an int ≥ 1 or 'auto'", self.degree))
        elif self.tolerance is not None:
            degree = fitted_degree(spec, self.tolerance)
        else:
            degree = series_degree(spec, shape[0], m, self.width)
        coefficients, _ = fitted_polynomial(spec, degree)
        law = SeriesSketch(
            shape[0],
            coefficients,
            m,
            width=self.width,
            normalize=self.normalize,
            replace=self.replace,
        ).with_leaves()
        return PolynomialFitPlan(shape=shape, kernel=spec, law=law, degree=degree)

    def _draw(self, plan: PolynomialFitPlan, seed: np.random.SeedSequence) -> Draws:
        program = Program((plan.n_features,))
        x = program.load()
        norm = program.norm(x)
        for part in plan.law.sample(keyed(seed, "series")).emit_parts(program, x, norm=norm, multiplier=norm):
            program.output(part)
        return ProgramDraws(program)

    def _describe(self, plan: PolynomialFitPlan, draws: Draws) -> dict[str, Any]:  # noqa: ARG002
        budget = plan.law.budget
        coefficients = np.array([budget.coefficients.get(j, 0.0) for j in range(plan.degree + 1)])
        assert plan.kernel is not None
        return {
            "degree_": plan.degree,
            "budget_": budget,
            "coefficients_": coefficients,
            "fit_error_": polynomial_error(plan.kernel, coefficients),
        }
