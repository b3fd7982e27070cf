"""The maps of the paper as presets of the network map: Algorithms 1 and 2, and Definition 3."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ntkit import networks
from ntkit._array import Array
from ntkit._random import RandomState
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.features.degrees import layer_degrees
from ntkit.features.draws import Draws
from ntkit.features.network.maps import LayerwiseMap, NetworkMap, NetworkPlan
from ntkit.features.network.plan import Options, split_components
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.networks import Layer, ReLU


class FullyConnectedMap(NetworkMap):
    """Base class of maps for the network (Dense, ReLU) × depth, Dense."""

    depth: int

    def _net(self) -> Layer:
        return networks.fully_connected(check_int(self.depth, "depth", type(self).__name__, minimum=1))

    def __sklearn_tags__(self) -> Any:
        tags = super(NetworkMap, self).__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class NTKSketch(FullyConnectedMap):
    """Features of the NTK by sketched arc-cosine kernels, layer by layer: Algorithm 1 of [1]_.

    Layer ℓ sketches polynomials of φ^(ℓ−1) that approximate κ₁ and κ₀, and one tensor product:

        φ^(ℓ) ≈ features of κ₁,   φ̇^(ℓ) ≈ features of κ₀,   ψ^(ℓ) = Q²(ψ^(ℓ−1) ⊗ φ̇^(ℓ)) ⊕ φ^(ℓ).

    Z(x) = ‖x‖ ψ^(L)(x/‖x‖). Its last columns ‖x‖ φ^(L) are features of the NNGP kernel (`nngp_columns_`).

    Parameters
    ----------
    depth : int
        Number L of ReLU layers.
    n_components : int
        Number of features (s* in the paper). For ``kind="nngp"`` there are fewer features if all degrees together have
        fewer monomials.
    degree, derivative_degree : int or "auto"
        Degrees of the polynomials for κ₁ and κ₀ (2p + 2 and 2p' + 1). "auto" chooses them from the number of columns,
        the number of components and the depth: twice the degrees must lower the predicted error ‖ZZᵀ − K‖_F/‖K‖_F by
        5 %. With 1024 components this is usually 2 and 5 for one layer, 4 and 9 for two or three layers. The prediction
        is for "split" with the default sizes.
    series : {"fitted", "taylor"}
        "fitted": polynomials with non-negative coefficients fitted to κ₁ and κ₀. "taylor": their Taylor polynomials.
        Both have P(1) = 1, because norms would shrink from layer to layer otherwise: the remainder of a Taylor
        polynomial is added to its highest coefficient.
    variant : {"split", "paper"}
        "split" gives each degree, and each part of ψ, its share of the components. "paper" sketches each of them with
        the full number of components and then mixes them by SRHTs, as in the paper. At equal size this is slower and
        less accurate.
    kind : {"ntk", "nngp"}
        The kernel.
    split : float or None
        Share of φ^(ℓ) among the components of ψ^(ℓ), for "split"; None: 0.6/(L + 1).
    nngp_components, ntk_components : int or None
        Components of φ^(ℓ) (r) and of Q²(…) (s; in "paper", of ψ^(ℓ) after mixing) in the layers before the last;
        None: `n_components`.
    derivative_components : int or None
        Components of φ̇^(ℓ) (s); None: `n_components`, or `ntk_components` in "paper".
    poly_components, derivative_poly_components : int or None
        For "paper": components of the PolySketches for κ₁ (m) and κ₀ (n₁); None: `n_components`.
    projection : bool
        For "paper": whether a Gaussian matrix G finally maps ψ^(L), which has `ntk_components`, to the features, as in
        line 10. Without `projection`, ψ^(L) has `n_components` and is the result.
    normalize : bool
        Whether φ^(ℓ), φ̇^(ℓ) and products are rescaled to their known norms. Then ‖Z(x)‖² = (L + 1)‖x‖² exactly
        (except with `projection`), and errors do not build up with depth. ``variant="paper", series="taylor",
        normalize=False, projection=True, replace=True`` is exactly Algorithm 1, except that P(1) = 1.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    degree_, derivative_degree_ : int
        Degrees used.
    nngp_columns_ : slice
        Columns that are features of the NNGP kernel (none with "paper", where all columns are mixed).
    coefficients_, derivative_coefficients_ : ndarray
        Coefficients of the polynomials for κ₁ and κ₀.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Theorem 1 of [1]_: for suitable sizes ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ, with
    O(ε⁻² log 1/δ) components. "split" is unbiased for L = 1 without `normalize` (with respect to the kernel with
    polynomials instead of κ₀ and κ₁). For fully connected networks :class:`NTKPolynomialSketch` is faster and more
    accurate; this method extends to other networks (:class:`NetworkFeatures`).

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

    _remade: ClassVar[tuple[str, ...]] = (
        "degree_", "derivative_degree_", "coefficients_", "derivative_coefficients_",
    )  # fmt: skip

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        degree: int | str = "auto",
        derivative_degree: int | str = "auto",
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

    def _describe(self, plan: NetworkPlan, draws: Draws) -> dict[str, Any]:
        options = plan.options
        forward, derivative = options.coefficients(ReLU())
        return {
            "degree_": options.degree,
            "derivative_degree_": options.derivative_degree,
            "coefficients_": np.array(forward),
            "derivative_coefficients_": np.array(derivative),
        } | super()._describe(plan, draws)

    def _options(self, n_features: int) -> Options:
        """Check the parameters and return the options."""
        name, checked = type(self).__name__, self._checked()
        m = checked["n_components"]
        paper = check_choice(self.variant, "variant", name, ("split", "paper")) == "paper"
        if check_bool(self.projection, "projection", name) and not paper:
            raise ValueError(message(name, "projection", "False unless variant='paper'", self.projection))
        sizes = {key: self._size(key, m) for key in ("nngp_components", "ntk_components")}
        inner = self._size("poly_components", m), self._size("derivative_poly_components", m)
        taylor = check_choice(self.series, "series", name, ("fitted", "taylor")) == "taylor"
        degree, derivative_degree = self._degrees(n_features, m, checked["split"], taylor=taylor)
        return Options(
            **checked,
            random=False,
            directions="gaussian",
            phi_hidden=sizes["nngp_components"],
            eta_hidden=sizes["ntk_components"],
            derivative=self._size("derivative_components", sizes["ntk_components"] if paper else m),
            degree=degree,
            derivative_degree=derivative_degree,
            taylor=taylor,
            padded=inner if paper else None,
            projected=self.projection,
        )

    def _degrees(self, n_features: int, m: int, split: float | None, *, taylor: bool) -> tuple[int, int]:
        """Return the degrees for κ₁ and κ₀, given or chosen."""
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        kind = "nngp" if self.kind == "nngp" else "ntk"
        in_phi = m
        if self.kind == "ntk":
            in_phi = split_components(m, 0.6 / (depth + 1) if split is None else split)

        def degree(parameter: str, index: int, minimum: int) -> int:
            value = getattr(self, parameter)
            if not isinstance(value, str):
                return check_int(value, parameter, name, minimum=minimum, maximum=LARGEST_DEGREE)
            if value != "auto":
                raise ValueError(message(name, parameter, "an int or 'auto'", value))
            return layer_degrees(kind, depth, n_features, m, in_phi, taylor=taylor)[index]

        return degree("degree", 0, 2), degree("derivative_degree", 1, 1)


class NTKRandomFeatures(FullyConnectedMap):
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
    directions : {"orthogonal", "gaussian", "leverage"}
        Law of the rows of W₀ and W₁. "gaussian": independent N(0, I), Eq. 11. "leverage": √d times uniform directions,
        which are the leverage-score features of Eq. 15, with a spectral guarantee for L = 1 (Theorem 3).
        "orthogonal": √d times orthonormal directions, in blocks of d (of 256 if d > 1024), with a smaller variance.
    sampler : {"exact", "gibbs"}
        How "leverage" is drawn. "exact": directly, because the direction of w with density ∝ ‖w‖² e^{−‖w‖²/2} is
        uniform. "gibbs": by Gibbs sampling, Algorithm 3, which converges to the same law. Other laws ignore it.
    gibbs_sweeps : int
        Number of sweeps over all coordinates (T in Algorithm 3). One sweep is close to the law; five sweeps are
        indistinguishable from it.
    kind : {"ntk", "nngp"}
        The kernel.
    split : float or None
        Share of the ReLU features, m₁, among the features; None: 0.6/(L + 1), chosen by measurements.
    derivative_components : int or None
        m₀, in every layer; None: half of `n_components` (twice as many did not reduce the error).
    hidden_components : int or None
        m₁, and the number of components of ψ, in the layers before the last; None: half of `n_components`.
    normalize : bool
        Whether φ, φ̇ and products are rescaled to their known norms. Then ‖Z(x)‖² = (L + 1)‖x‖² exactly (unless all
        ReLUs of a row are zero, which only happens with few components), and the error is a third smaller. Without
        `normalize`, Z(x)·Z(y) is an unbiased estimate of NTK(x, y) for L = 1.
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the paper.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    nngp_columns_ : slice
        Columns that are features of the NNGP kernel.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    A row takes O(d (m₀ + m₁)) for L = 1 and O(m₁ (m₀ + m₁)) for every further layer, in matrix products. Theorem 2 of
    [1]_: ``|Z(x)·Z(y) − NTK(x, y)| ≤ ε NTK(x, y)`` with probability 1 − δ for m₁ = O(L⁶ε⁻⁴ log L/δ) and
    m₀, m_s = Õ(L²ε⁻²).

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

    _old_names: ClassVar[dict[str, Any]] = {"features": "directions", "step_components": "derivative_components"}

    def __init__(
        self,
        *,
        depth: int = 1,
        n_components: int = 1024,
        directions: str = "orthogonal",
        sampler: str = "exact",
        gibbs_sweeps: int = 1,
        kind: str = "ntk",
        split: float | None = None,
        derivative_components: int | None = None,
        hidden_components: int | None = None,
        normalize: bool = True,
        replace: bool = False,
        batch_size: int | None = None,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.n_components = n_components
        self.directions = directions
        self.sampler = sampler
        self.gibbs_sweeps = gibbs_sweeps
        self.kind = kind
        self.split = split
        self.derivative_components = derivative_components
        self.hidden_components = hidden_components
        self.normalize = normalize
        self.replace = replace
        self.batch_size = batch_size
        self.random_state = random_state

    def _options(self, n_features: int) -> Options:
        name, checked = type(self).__name__, self._checked()
        half = max(checked["n_components"] // 2, 1)
        hidden = self._size("hidden_components", half)
        return Options(
            **checked,
            random=True,
            independent=True,
            directions=check_choice(self.directions, "directions", name, ("orthogonal", "gaussian", "leverage")),
            sampler=check_choice(self.sampler, "sampler", name, ("exact", "gibbs")),
            sweeps=check_int(self.gibbs_sweeps, "gibbs_sweeps", name, minimum=1),
            phi_hidden=hidden,
            eta_hidden=hidden,
            derivative=self._size("derivative_components", half),
            degree=0,
            derivative_degree=0,
        )


class CNTKSketch(LayerwiseMap):
    """Features of the convolutional NTK with global average pooling: Definition 3 of [1]_, linear in the pixels.

    Every pixel has features φ of the NNGP kernel and ψ of the tangent kernel. Let μ be the patch of a pixel: the direct
    sum of φ over its q² pixels, divided by √N, where N is the mean of their squared norms. Then

        φ^(h) = √N ⊕_l √c_l Z_l(μ),    φ̇^(h) = ⊕_l √b_l Z_l(μ),    ψ^(h) = patch of Q²(ψ^(h−1) ⊗ φ̇^(h)) ⊕ φ^(h),

    where Z_l is a sketch of μ^{⊗l}. Z(x) is the mean over all pixels of Q²(ψ^(L−1) ⊗ φ̇^(L)). The kernel is
    :func:`ntkit.kernels.cntk`.

    Parameters
    ----------
    depth : int
        Number L ≥ 2 of convolutions. L = 1, where no layer is trained, is allowed for ``kind="nngp"`` only.
    kernel_size : int or (int, int)
        Size q of the filters.
    n_components : int
        Number of features.
    image_shape : (height, width, channels) or None
        Shape of the images if X has flat rows. None: X has the shape (n, height, width, channels).
    method : {"sketch", "random"}
        "sketch": sketched series, as in Definition 3. "random": random units, as in Algorithm 2. See
        :class:`NetworkFeatures`.
    kind : {"ntk", "nngp", "both"}
        Kernel of the network, or both kernels; see :class:`NetworkFeatures`.
    hidden_components, derivative_components : int or None
        Components of φ^(h) and of Q²(…) before the last layer, and of φ̇^(h); see :class:`NetworkFeatures`.
    degree, derivative_degree : int
        Degrees of the polynomials for κ₁ and κ₀ (2p + 2 and 2p′ + 1). The defaults have errors of at most 0.006 for κ₁
        and 0.05 for κ₀. Higher degrees only help with tens of thousands of components, when the error of the sketch is
        below these errors; on CIFAR-10 they did not raise accuracy.
    directions, normalize, replace, precision, batch_size, progress, random_state
        See :class:`NetworkFeatures`.

    Attributes
    ----------
    image_shape_ : tuple
    n_features_in_ : int
        height · width · channels.
    ntk_columns_, nngp_columns_ : slice
        Columns of the features of either kernel.

    Notes
    -----
    Theorem 4 of [1]_: ``|Z(x)·Z(y) − Θ_cntk(x, y)| ≤ ε Θ_cntk(x, y)`` with probability 1 − δ for suitable sizes, in
    time linear in the number of pixels. The exact kernel takes the square of the number of pixels for every pair of
    images.

    This map differs from the definition to be faster and more accurate at equal size. :class:`NetworkFeatures` and
    ``docs/design/convolutional.md`` describe the differences.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Definition 3 and Theorem 4.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import CNTKSketch
    >>> from ntkit.kernels import cntk
    >>> X = np.random.default_rng(0).standard_normal((10, 6, 6, 3))
    >>> Z = CNTKSketch(depth=2, n_components=4096, random_state=0).fit_transform(X)
    >>> K = cntk(X, depth=2)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.1 * np.linalg.norm(K))
    True
    """

    _old_positions: ClassVar[int] = 4

    def __init__(
        self,
        *,
        depth: int = 3,
        kernel_size: int | tuple[int, int] = 3,
        n_components: int = 1024,
        image_shape: tuple[int, int, int] | None = None,
        method: str = "sketch",
        kind: str = "ntk",
        hidden_components: int | None = None,
        derivative_components: int | None = None,
        directions: str = "hadamard",
        degree: int = 2,
        derivative_degree: int = 3,
        normalize: bool = True,
        replace: bool = False,
        precision: str | None = None,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.depth = depth
        self.kernel_size = kernel_size
        self.n_components = n_components
        self.image_shape = image_shape
        self.method = method
        self.kind = kind
        self.hidden_components = hidden_components
        self.derivative_components = derivative_components
        self.directions = directions
        self.degree = degree
        self.derivative_degree = derivative_degree
        self.normalize = normalize
        self.replace = replace
        self.precision = precision
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def _net(self) -> Layer:
        name = type(self).__name__
        check_int(self.depth, "depth", name, minimum=1)
        if self.depth == 1 and self.kind != "nngp":
            rule = "an int ≥ 2 for the tangent kernel, because the first and the last layer are not trained"
            raise ValueError(message(name, "depth", rule, self.depth, "Use kind='nngp' for depth 1."))
        rule = "an int ≥ 1 or a tuple of two ints ≥ 1"
        if isinstance(self.kernel_size, list):
            raise TypeError(message(name, "kernel_size", rule, self.kernel_size))
        sizes = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size, self.kernel_size)
        if len(sizes) != 2:
            raise ValueError(message(name, "kernel_size", rule, self.kernel_size))
        for size in sizes:
            check_int(size, "kernel_size", name, minimum=1)
        return networks.cntk(self.depth, self.kernel_size)

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        if reset and self.image_shape is None and getattr(X, "ndim", 2) == 2:
            rule = "images of shape (n, height, width, channels)"
            remedy = "Set image_shape=(height, width, channels) for flattened images."
            raise ValueError(message(type(self).__name__, "X", rule, X, remedy))
        return super()._check_rows(X, reset=reset)

    def __sklearn_tags__(self) -> Any:
        tags = super(NetworkMap, self).__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags
