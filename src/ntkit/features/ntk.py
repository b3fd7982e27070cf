"""Features of the neural tangent kernel of fully connected ReLU networks: Algorithms 1 and 2, and Remark 1."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ntkit._array import Array
from ntkit._random import RandomState, generator, keyed
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features._base import ProgramMap
from ntkit.features._walk import Layer, Polynomial, Random, draw_directions, emit_walk, series_law
from ntkit.kernels import KernelSpec
from ntkit.kernels.fit import (
    LARGEST_DEGREE,
    fitted_degree,
    fitted_polynomial,
    polynomial_error,
    taylor_polynomial,
)
from ntkit.programs import Program
from ntkit.sketches import OSNAP, SRHT, TensorSRHT
from ntkit.sketches.countsketch import OSNAPOperator
from ntkit.sketches.series import SeriesSketch
from ntkit.sketches.srht import SRHTOperator
from ntkit.sketches.tree import is_long, leaf_law

_KINDS = ("ntk", "nngp")
_STEP, _RELU = (KernelSpec.of("arc_cosine", order=order) for order in (0, 1))
_FEW = 32  # features of rows whose kernel matrices have their eigenvalues in high degrees


class ReLUMap(ProgramMap):
    """What the maps of this module share: the kernel they approximate, and checks of parameters."""

    depth: int
    kind: str
    split: float | None = None

    def _kernel(self, X: Array) -> Array:
        return KernelSpec.of(self.kind, depth=self.depth).matrix(X)

    def _size(self, name: str, default: int) -> int:
        """A number of components, or its default if None."""
        value = getattr(self, name)
        return default if value is None else check_int(value, name, type(self).__name__, minimum=1)

    def _split(self, n_components: int, depth: int) -> int:
        """Components of φ^(L) among all: somewhat less than its share 1/(L + 1) of the kernel's diagonal."""
        split = 0.6 / (depth + 1) if self.split is None else self.split
        check_real(split, "split", type(self).__name__, minimum=0, maximum=1)
        if self.kind == "nngp":
            return n_components
        return min(max(round(split * n_components), 1), max(n_components - 1, 1))


class NTKPolynomialSketch(ReLUMap):
    """Features of the NTK by one sketched polynomial: the map with the smallest error of the kernel.

    NTK(x, y) = ‖x‖‖y‖ K(cos(x, y)) with K = K_relu^(L). A polynomial Σ a_j t^j with a_j ≥ 0 and Σ a_j = K(1) is fitted
    to K (Remark 1 of [1]_), and its degrees share the components in proportion to a_j: Z(x) = ‖x‖ ⊕_j √a_j Z_j(x/‖x‖),
    Z_0 = 1, Z_j a sketch of x^{⊗j}. Where all monomials of a degree fit in its share (for degree 1 those are
    x itself), they stand for themselves, without error.

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features. (Fewer come out if the monomials of all degrees are fewer, as for rows of one to four
        features or a low degree: the map is then exact.)
    degree : int or "auto"
        Highest degree; "auto" takes the smallest that reaches `tol`, up to 128.
    tol : float or None
        For ``degree="auto"``: bound for ``max |Σ a_j t^j − K(t)| / K(1)``. None: 0.005 (L + 1), at most 0.05, which
        lies well below the error of the sketch for up to some 10⁴ components; for rows of at most 32 features, whose
        kernel matrices have many small eigenvalues that only high degrees give, 0.002 (L + 1), at most 0.02.
    kind : {"ntk", "nngp"}
        Kernel of a trained network, or of its random initialization.
    width : int or None
        Size of the inner nodes of the trees; None: a quarter of `n_components`, 256 at least.
    normalize : bool
        Whether sketches are divided by their norms, so that ‖Z(x)‖² = (L + 1)‖x‖² exactly; the price is a bias of order
        1/width. Without it Z(x)·Z(y) is an unbiased estimate of ‖x‖‖y‖ Σ a_j cos(x, y)^j, with a larger error, above
        all for similar rows.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper; see
        :class:`~ntkit.sketches.TensorSRHT`.
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    degree_ : int
        Highest degree used.
    coefficients_ : ndarray of shape (`degree_` + 1,)
        a_j; many are 0. (Degrees too small for a component of their own gave theirs to the others.)
    fit_error_ : float
        ``max |Σ a_j t^j − K(t)| / K(1)`` over [−1, 1]. It is reached near t = 1; elsewhere the fit is much closer.
    budget_ : Budget
        ``exact`` and ``sketched``: components of each degree.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The variance of Z(x)·Z(y) is about ‖x‖²‖y‖² (Σ' a_j)² / m', the sum over sketched degrees, m' their components; less
    for similar rows, down to 0 for equal ones. Without `normalize` it is several times that for similar rows.
    O(p' (d log d + w log w) + m log m) per row, p' ≤ p − 1 + log₂ p for each sketched degree p, w the width;
    O(nnz(x)) instead of d log d for d > 4m, where leaves are OSNAPs.

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

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        degree: int | str = "auto",
        tol: float | None = None,
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
        self.tol = tol
        self.kind = kind
        self.width = width
        self.normalize = normalize
        self.replace = replace
        self.batch_size = batch_size
        self.random_state = random_state

    def _draw(self, seed: np.random.SeedSequence) -> None:
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        m = check_int(self.n_components, "n_components", name, minimum=1)
        kind = check_choice(self.kind, "kind", name, _KINDS)
        if self.tol is not None:
            check_real(self.tol, "tol", name, minimum=0)
        if self.width is not None:
            check_int(self.width, "width", name, minimum=1)
        for flag in ("normalize", "replace"):
            check_bool(getattr(self, flag), flag, name)
        spec = KernelSpec.of(kind, depth=depth)
        if self.degree == "auto":
            tol = self.tol
            if tol is None:
                tol = (0.002 if self.n_features_in_ <= _FEW else 0.005) * min(depth + 1, 10)
            degree = fitted_degree(spec, tol)
        elif isinstance(self.degree, str):
            raise ValueError(message(name, "degree", "an int ≥ 1 or 'auto'", self.degree))
        else:
            degree = check_int(self.degree, "degree", name, minimum=1, maximum=LARGEST_DEGREE)
        coefficients, _ = fitted_polynomial(spec, degree)
        law = SeriesSketch(
            self.n_features_in_,
            coefficients,
            m,
            width=self.width,
            normalize=self.normalize,
            replace=self.replace,
        ).with_leaves()
        self.degree_, self.budget_ = degree, law.budget
        self.coefficients_ = np.array([law.budget.coefficients.get(j, 0.0) for j in range(degree + 1)])
        self.fit_error_ = polynomial_error(spec, self.coefficients_)
        self.sketch_ = law.sample(keyed(seed, "series"))

    def _emit(self) -> Program:
        program = Program((self.n_features_in_,))
        x = program.load()
        norm = program.norm(x)
        for part in self.sketch_.emit_parts(program, x, norm=norm, by=norm):
            program.output(part)
        return program


class _Sizes(NamedTuple):
    """Sizes of Algorithm 1."""

    depth: int
    m: int
    r: int
    s: int
    derivative: int
    inner: int | None
    derivative_inner: int | None
    split: int
    paper: bool


class NTKSketch(ReLUMap):
    """Features of the NTK by sketched arc-cosine kernels, layer by layer: Algorithm 1 of [1]_.

    Layer ℓ sketches polynomials of φ^(ℓ−1) that stand for κ₁ and κ₀, and one tensor product:

        φ^(ℓ) ≈ features of κ₁,   φ̇^(ℓ) ≈ features of κ₀,   ψ^(ℓ) = Q²(ψ^(ℓ−1) ⊗ φ̇^(ℓ)) ⊕ φ^(ℓ).

    Z(x) = ‖x‖ ψ^(L)(x/‖x‖); its last columns ‖x‖ φ^(L) are features of the NNGP kernel (`nngp_columns_`).

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features (s* in the paper). (Fewer come out for ``kind="nngp"`` if the monomials of all degrees are
        fewer.)
    degree, derivative_degree : int
        Degrees of the polynomials for κ₁ and κ₀ (2p + 2 and 2p' + 1).
    series : {"fitted", "taylor"}
        Polynomials with non-negative coefficients fitted to κ₁ and κ₀, or their Taylor polynomials. In both P(1) = 1,
        or norms would shrink from layer to layer: what a Taylor polynomial lacks goes to its highest coefficient.
    variant : {"split", "paper"}
        "split" gives each degree, and each part of ψ, its share of the components. "paper" sketches them all with as
        many components as sums of them need and mixes these down by SRHTs, as the paper has it: at equal size
        that is slower and less accurate.
    kind : {"ntk", "nngp"}
        Which kernel.
    split : float or None
        Share of φ^(ℓ) among the components of ψ^(ℓ), for "split"; None: 0.6/(L + 1).
    nngp_components, ntk_components : int or None
        Components of φ^(ℓ) (r) and of Q²(…) (s; in "paper" of ψ^(ℓ) after mixing) in the layers before the last;
        None: `n_components`.
    derivative_components : int or None
        Components of φ̇^(ℓ) (s); None: `n_components`, in "paper" `ntk_components`.
    poly_components, derivative_poly_components : int or None
        For "paper": components of the PolySketches for κ₁ (m) and κ₀ (n₁); None: `n_components`.
    projection : bool
        For "paper": whether a Gaussian matrix G maps ψ^(L), of `ntk_components`, to the features in the end, as line 10
        does. Without it ψ^(L) has `n_components` and is the result.
    normalize : bool
        Whether φ^(ℓ), φ̇^(ℓ) and products are divided by their norms, which are known: ‖Z(x)‖² = (L + 1)‖x‖² exactly
        (but for `projection`), and errors do not build up with depth. ``variant="paper", series="taylor",
        normalize=False, projection=True, replace=True`` is Algorithm 1 to the letter, but that P(1) = 1.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper.
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    nngp_columns_ : slice
        Columns of the features that are features of the NNGP kernel (none with "paper", where all are mixed).
    coefficients_, derivative_coefficients_ : ndarray
        Of the polynomials for κ₁ and κ₀.
    layers_ : tuple
        The draws.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Theorem 1 of [1]_: for suitable sizes ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ, with
    O(ε⁻² log 1/δ) components. "split" is unbiased for L = 1 without `normalize` (for the kernel with polynomials in
    place of κ₀ and κ₁). For fully connected networks :class:`NTKPolynomialSketch` is faster and more accurate; this
    map is the one that extends to networks with more structure.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKSketch
    >>> from ntkit.kernels import ntk
    >>> X = np.random.default_rng(0).standard_normal((50, 20))
    >>> Z = NTKSketch(depth=2, n_components=4096, random_state=0).fit_transform(X)
    >>> K = ntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.1 * np.linalg.norm(K))
    True
    """

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        degree: int = 8,
        derivative_degree: int = 17,
        series: str = "fitted",
        variant: str = "split",
        kind: str = "ntk",
        split: float | None = None,
        nngp_components: int | None = None,
        ntk_components: int | None = None,
        derivative_components: int | None = None,
        poly_components: int | None = None,
        derivative_poly_components: int | None = None,
        projection: bool = False,
        normalize: bool = True,
        replace: bool = False,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.n_components = n_components
        self.degree = degree
        self.derivative_degree = derivative_degree
        self.series = series
        self.variant = variant
        self.kind = kind
        self.split = split
        self.nngp_components = nngp_components
        self.ntk_components = ntk_components
        self.derivative_components = derivative_components
        self.poly_components = poly_components
        self.derivative_poly_components = derivative_poly_components
        self.projection = projection
        self.normalize = normalize
        self.replace = replace
        self.batch_size = batch_size
        self.random_state = random_state

    def _draw(self, seed: np.random.SeedSequence) -> None:
        sizes = self._sizes()
        sparse = is_long(self.n_features_in_, sizes.m)
        d = size = psi = self.n_features_in_
        self._first: OSNAPOperator | SRHTOperator | None = None
        self._lift: OSNAPOperator | SRHTOperator | None = None
        if sizes.paper:
            self._first = self._input(d, sizes.r, sparse=sparse).sample(keyed(seed, "first"))
            if self.kind == "ntk":
                self._lift = SRHT(sizes.r, sizes.s, replace=self.replace).sample(keyed(seed, "lift"))
            size, psi = sizes.r, sizes.s
        elif sparse and self.kind == "ntk":
            self._lift = self._input(d, sizes.s, sparse=True).sample(keyed(seed, "lift"))
            psi = sizes.s
        layers = []
        for number in range(1, sizes.depth + 1):
            of_sparse = sparse and number == 1 and not sizes.paper
            last = number == sizes.depth
            layer = self._layer(sizes, size, psi, keyed(seed, number), last=last, sparse=of_sparse)
            layers.append(layer)
            size = layer.forward.n_components
            if layer.product is not None:
                psi = layer.product.n_components + size if layer.mix is None else layer.mix.n_components
        self.layers_ = tuple(layers)
        self._projection = None
        if self.projection:
            n_rows, n_columns = sizes.m, psi if self.kind == "ntk" else size
            draws = generator(seed, "projection").standard_normal((n_rows, n_columns))
            self._projection = (draws / n_rows**0.5).astype(np.float32)

    def _sizes(self) -> _Sizes:
        """Check the parameters; return sizes by the letters of the paper."""
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        check_choice(self.kind, "kind", name, _KINDS)
        paper = check_choice(self.variant, "variant", name, ("split", "paper")) == "paper"
        for flag in ("projection", "normalize", "replace"):
            check_bool(getattr(self, flag), flag, name)
        if self.projection and not paper:
            raise ValueError(message(name, "projection", "False unless variant='paper'", self.projection))
        forward, derivative = self._polynomials(name)
        self.coefficients_, self.derivative_coefficients_ = np.array(forward), np.array(derivative)
        depth = check_int(self.depth, "depth", name, minimum=1)
        s, split = self._size("ntk_components", m), self._split(m, depth)
        inner, derivative_inner = self._size("poly_components", m), self._size("derivative_poly_components", m)
        self._normalize = self.normalize
        return _Sizes(
            depth=depth,
            m=m,
            r=self._size("nngp_components", m),
            s=s,
            derivative=self._size("derivative_components", s if paper else m),
            inner=inner if paper else None,
            derivative_inner=derivative_inner if paper else None,
            split=m if paper else split,
            paper=paper,
        )

    def _input(self, d: int, size: int, *, sparse: bool) -> OSNAP | SRHT:
        """Law of a map of the rows."""
        return leaf_law(d, size, sparse=sparse, replace=self.replace)

    def _layer(
        self, sizes: _Sizes, size: int, psi: int, seed: np.random.SeedSequence, *, last: bool, sparse: bool
    ) -> Layer:
        """Draw the layer on φ of `size` and ψ of `psi` components."""
        options: dict[str, Any] = {"sparse": sparse, "normalize": self.normalize, "replace": self.replace}
        whole = sizes.m if last and not self.projection else sizes.s
        phi_size = sizes.r
        if last and not self.projection and (self.kind == "nngp" or not sizes.paper):
            phi_size = sizes.split
        law = series_law(size, tuple(self.coefficients_.tolist()), phi_size, inner=sizes.inner, **options)
        forward = Polynomial(law.sample(keyed(seed, "forward")), self.normalize)
        if self.kind == "nngp":
            return Layer(forward)
        coefficients = tuple(self.derivative_coefficients_.tolist())
        law = series_law(size, coefficients, sizes.derivative, inner=sizes.derivative_inner, **options)
        derivative = Polynomial(law.sample(keyed(seed, "derivative")), self.normalize)
        n_product = whole - forward.n_components if last and not sizes.paper else whole
        mixed = sizes.paper or n_product == 0  # one component for both parts
        n_product = max(n_product, 1)
        product = TensorSRHT((psi, derivative.n_components), n_product, replace=self.replace)
        mix = None
        if mixed:
            law_of_mix = SRHT(n_product + forward.n_components, whole, replace=self.replace)
            mix = law_of_mix.sample(keyed(seed, "mix"))
        return Layer(forward, derivative, product.sample(keyed(seed, "product")), mix)

    def _polynomials(self, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
        degree = check_int(self.degree, "degree", name, minimum=2, maximum=LARGEST_DEGREE)
        other = check_int(self.derivative_degree, "derivative_degree", name, minimum=1, maximum=LARGEST_DEGREE)
        if check_choice(self.series, "series", name, ("fitted", "taylor")) == "taylor":
            return taylor_polynomial(_RELU, degree), taylor_polynomial(_STEP, other)
        return fitted_polynomial(_RELU, degree)[0], fitted_polynomial(_STEP, other)[0]

    def _emit(self) -> Program:
        program = Program((self.n_features_in_,))
        parts = emit_walk(
            program,
            self.layers_,
            normalize=self._normalize,
            homogeneous=False,
            first=self._first,
            lift=self._lift,
        )
        if self._projection is not None:
            parts = [program.dense(part, self._projection) for part in parts]
        for part in parts:
            program.output(part)
        self.nngp_columns_ = _nngp_columns(program, mixed=self.layers_[-1].mix is not None)
        return program


class NTKRandomFeatures(ReLUMap):
    """Random features of the NTK: Algorithm 2 of [1]_.

    Layer ℓ takes random Step and ReLU features of φ^(ℓ−1), and sketches one tensor product:

        φ̇^(ℓ) = √(2/m₀) Step(W₀ φ^(ℓ−1)),   φ^(ℓ) = √(2/m₁) ReLU(W₁ φ^(ℓ−1)),
        ψ^(ℓ) = Q²(ψ^(ℓ−1) ⊗ φ̇^(ℓ)) ⊕ φ^(ℓ),   φ^(0) = ψ^(0) = x,   Z(x) = ψ^(L)(x).

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features, m₁ + m_s.
    features : {"orthogonal", "gaussian", "leverage"}
        Law of the rows of W₀ and W₁. "gaussian": independent N(0, I), Eq. 11. "leverage": √d times uniform directions,
        which are the leverage-score features of Eq. 15, with a spectral guarantee at L = 1 (Theorem 3).
        "orthogonal": √d times orthonormal directions, in blocks of d (of 256 if d > 1024), for a smaller variance.
    sampler : {"exact", "gibbs"}
        How "leverage" draws (other laws have one way): directly (the direction of w with density ∝ ‖w‖² e^{−‖w‖²/2} is
        uniform), or by Gibbs sampling, Algorithm 3, whose law tends to the same one.
    gibbs_sweeps : int
        Sweeps over all coordinates (T in Algorithm 3). One is close to the law, five cannot be told from it.
    kind : {"ntk", "nngp"}
        Which kernel.
    split : float or None
        Share of ReLU features, m₁, among the features; None: 0.6/(L + 1), found by measuring.
    step_components : int or None
        m₀, in every layer; None: half of `n_components` (twice as many did not help).
    hidden_components : int or None
        m₁ in the layers before the last, and of ψ there; None: half of `n_components`.
    normalize : bool
        Whether φ, φ̇ and products are divided by their norms, which are known: ‖Z(x)‖² = (L + 1)‖x‖² exactly (unless
        all ReLUs of a row are off, which takes few components), and the error is a third smaller. Without it
        Z(x)·Z(y) is an unbiased estimate of NTK(x, y) for L = 1.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper.
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    nngp_columns_ : slice
        Columns of the features that are features of the NNGP kernel.
    layers_ : tuple
        The draws.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    O(d (m₀ + m₁)) per row for L = 1, O(m₁ (m₀ + m₁)) for every further layer, as matrix products. Theorem 2 of [1]_:
    ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ for m₁ = O(L⁶ε⁻⁴ log L/δ) and m₀, m_s = Õ(L²ε⁻²).

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Algorithms 2 and 3, Theorems 2 and 3.
    .. [2] Yu et al., "Orthogonal random features", NeurIPS 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKRandomFeatures
    >>> from ntkit.kernels import ntk
    >>> X = np.random.default_rng(0).standard_normal((50, 20))
    >>> Z = NTKRandomFeatures(depth=2, n_components=4096, random_state=0).fit_transform(X)
    >>> K = ntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.1 * np.linalg.norm(K))
    True
    """

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        features: str = "orthogonal",
        sampler: str = "exact",
        gibbs_sweeps: int = 1,
        kind: str = "ntk",
        split: float | None = None,
        step_components: int | None = None,
        hidden_components: int | None = None,
        normalize: bool = True,
        replace: bool = False,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.n_components = n_components
        self.features = features
        self.sampler = sampler
        self.gibbs_sweeps = gibbs_sweeps
        self.kind = kind
        self.split = split
        self.step_components = step_components
        self.hidden_components = hidden_components
        self.normalize = normalize
        self.replace = replace
        self.batch_size = batch_size
        self.random_state = random_state

    def _draw(self, seed: np.random.SeedSequence) -> None:
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        m = check_int(self.n_components, "n_components", name, minimum=1)
        kind = check_choice(self.kind, "kind", name, _KINDS)
        law = check_choice(self.features, "features", name, ("orthogonal", "gaussian", "leverage"))
        sampler = check_choice(self.sampler, "sampler", name, ("exact", "gibbs"))
        sweeps = check_int(self.gibbs_sweeps, "gibbs_sweeps", name, minimum=1)
        for flag in ("normalize", "replace"):
            check_bool(getattr(self, flag), flag, name)
        half = max(m // 2, 1)
        steps, hidden = self._size("step_components", half), self._size("hidden_components", half)
        in_phi = self._split(m, depth)
        self._normalize = self.normalize

        def random(kind: str, n_features: int, size: int, number: int) -> Random:
            part = keyed(seed, number, kind)
            w = draw_directions(part, n_features=n_features, size=size, law=law, sampler=sampler, sweeps=sweeps)
            return Random(kind, w, self.normalize)

        size = psi = self.n_features_in_
        self._lift = None
        if is_long(size, m) and kind == "ntk":
            self._lift = leaf_law(size, m, sparse=True).sample(keyed(seed, "lift"))
            psi = m
        layers = []
        for number in range(1, depth + 1):
            phi_size, q_size = (in_phi, max(m - in_phi, 1)) if number == depth else (hidden, hidden)
            forward = random("relu", size, phi_size, number)
            if kind == "ntk":
                derivative = random("step", size, steps, number)
                product = TensorSRHT((psi, steps), q_size, replace=self.replace).sample(keyed(seed, number, "product"))
                mix = SRHT(2, 1).sample(keyed(seed, number, "mix")) if number == depth and m == 1 else None
                layers.append(Layer(forward, derivative, product, mix))
            else:
                layers.append(Layer(forward))
            size, psi = phi_size, phi_size + q_size
        self.layers_ = tuple(layers)

    def _emit(self) -> Program:
        program = Program((self.n_features_in_,))
        for part in emit_walk(program, self.layers_, normalize=self._normalize, homogeneous=True, lift=self._lift):
            program.output(part)
        self.nngp_columns_ = _nngp_columns(program, mixed=self.layers_[-1].mix is not None)
        return program


def _nngp_columns(program: Program, *, mixed: bool) -> slice:
    """Columns of the last output, unless all are mixed."""
    stop = program.n_outputs
    return slice(stop, stop) if mixed else slice(stop - program.size(program.outputs[-1]), stop)
