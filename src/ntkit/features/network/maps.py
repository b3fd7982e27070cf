"""Features of the kernel of any network: one plan, two back ends."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit import _array, networks
from ntkit._array import Array
from ntkit._images import RowOrImageInput
from ntkit._random import RandomState
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.directions import LAWS
from ntkit.features.draws import Draws, ProgramDraws, RowDraws, is_half
from ntkit.features.network.plan import Options, plan_stages
from ntkit.features.network.program import can_emit, emit_stages
from ntkit.features.network.stages import Activate, Finish, Flow, Stages, apply_stages, draw_stages, widths
from ntkit.features.network.units import RandomUnits
from ntkit.kernels import KernelSpec
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.networks import Conv, Layer, UnsupportedError, output_shape
from ntkit.networks.fold import leaves

_KINDS = {"ntk": ("ntk",), "nngp": ("nngp",), "both": ("ntk", "nngp")}
_PRECISIONS = ("bfloat16", "float16", "float32", "float64")
_PASSES = 6  # number of arrays of the size of a layer's values that exist at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkPlan(Plan):
    """The stages of a network, with laws instead of draws; `fused` says whether they run as one program."""

    net: Layer
    kind: str
    options: Options
    stages: Stages
    fused: bool
    precision: str | None

    def matrix(self, X: Array) -> Array:
        """See :meth:`Plan.matrix`."""
        if not _array.is_sparse(X):
            X = _array.namespace(X).reshape(X, (-1, *self.shape))
        kernels = [KernelSpec.of(self.net, kind=kind) for kind in _KINDS[self.kind]]
        return sum(kernel.matrix(X) for kernel in kernels)


class NetworkDraws(RowDraws):
    """Stages with their draws, run layer by layer with the array library of the rows."""

    threaded = False

    def __init__(self, stages: Stages, shape: tuple[int, ...], precision: str | None):
        super().__init__()
        self.stages, self.precision = stages, precision
        row = Flow(np.zeros((1, *shape), np.float32), None, None)
        self.n_components, self._widest = widths(stages, row)

    def features(self, X: Array, tables: Any) -> Array:
        """See :meth:`RowDraws.features`."""
        return apply_stages(self.stages, Flow(X, None, None)).values

    def numbers_per_row(self, X: Array) -> int:
        """See :meth:`RowDraws.numbers_per_row`."""
        return _PASSES * self._widest

    def compute_dtype(self, X: Array, dtype: Any) -> Any:
        """Return `precision` on CUDA, elsewhere the dtype of the result (float32 for 16-bit results)."""
        xp: Any = _array.namespace(X)
        if _array.is_torch(X) and X.device.type == "cuda":
            return dtype if self.precision is None else getattr(xp, self.precision)
        return xp.float32 if is_half(dtype) else dtype


class FusedDraws(ProgramDraws):
    """Stages as one program. Random units run layer by layer on CUDA, where matrix products leave little to fuse."""

    def __init__(self, stages: Stages, shape: tuple[int, ...]):
        super().__init__(emit_stages(stages, shape[0]))
        self.layers: NetworkDraws | None = None
        if any(isinstance(stage, Activate) and isinstance(stage.units, RandomUnits) for _, stage in stages):
            self.layers = NetworkDraws(stages, shape, None)

    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:
        """See :meth:`Draws.run`."""
        if self.layers is not None and _array.is_torch(X) and X.device.type == "cuda":
            return self.layers.run(X, batch_size=batch_size, progress=progress)
        return super().run(X, batch_size=batch_size, progress=progress)


class NetworkMap(RowOrImageInput, FeatureMap):
    """Base class of feature maps of networks; subclasses define the network and its options."""

    kind: str
    normalize: bool
    replace: bool
    image_shape: tuple[int, int, int] | None = None
    precision: str | None = None
    _remade: ClassVar[tuple[str, ...]] = ("ntk_columns_", "nngp_columns_")

    @abstractmethod
    def _net(self) -> Layer:
        """Return the network."""

    @abstractmethod
    def _options(self, n_features: int) -> Options:
        """Check the parameters and return the options, for rows or pixels with `n_features` numbers."""

    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> NetworkPlan:
        name = type(self).__name__
        options = self._options(shape[-1])
        if self.precision is not None:
            check_choice(self.precision, "precision", name, _PRECISIONS)
        if hasattr(self, "progress"):
            check_bool(self.progress, "progress", name)
        net = self._net()
        if self._sparse and any(isinstance(layer, Conv) for layer in leaves(net)):
            raise TypeError(_dense(name))
        self._check_shape(net, shape)
        try:
            stages = plan_stages(net, shape, options)
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error
        fused = self.precision is None and len(shape) == 1 and can_emit(stages)
        if self._sparse and not fused:
            raise TypeError(_dense(name))
        return NetworkPlan(
            shape=shape,
            kernel=None,
            net=net,
            kind=self.kind,
            options=options,
            stages=stages,
            fused=fused,
            precision=self.precision,
        )

    def _draw(self, plan: NetworkPlan, seed: np.random.SeedSequence) -> Draws:
        stages = draw_stages(plan.stages, seed)
        if plan.fused:
            return FusedDraws(stages, plan.shape)
        return NetworkDraws(stages, plan.shape, plan.precision)

    def _describe(self, plan: NetworkPlan, draws: Draws) -> dict[str, Any]:
        finish = plan.stages[-1][1]
        assert isinstance(finish, Finish)
        sizes = dict(zip(finish.kinds, finish.sizes, strict=True))
        n_ntk = sizes.get("ntk", 0)
        found = {"ntk_columns_": slice(0, n_ntk), "nngp_columns_": slice(n_ntk, draws.n_components)}
        if plan.kind == "ntk":  # the last columns of ψ are φ, unless both are mixed or φ has weights other than 1
            weights = finish.columns.weights
            n_phi = len(weights) if (weights == 1).all() and finish.maps == (None,) else 0
            found["nngp_columns_"] = slice(n_ntk - n_phi, n_ntk)
        return found

    def _check_shape(self, net: Layer, shape: tuple[int, ...]) -> None:
        """Raise an error if the network cannot take rows of this shape."""
        try:
            output_shape(net, shape)
        except ValueError as error:
            if len(shape) > 1 or "takes images" not in str(error):
                raise
            raise ValueError(f"{error} For flat rows set image_shape=(height, width, channels).") from None

    def _run(self, X: Array) -> Array:
        if _array.is_sparse(X) and not self._planned.fused:  # type: ignore[attr-defined]
            raise TypeError(_dense(type(self).__name__))
        return super()._run(X)

    def _size(self, name: str, default: int) -> int:
        value = getattr(self, name)
        return default if value is None else check_int(value, name, type(self).__name__, minimum=1)

    def _checked(self) -> dict[str, Any]:
        """Check and return the options that all maps of networks have."""
        name = type(self).__name__
        for flag in ("normalize", "replace"):
            check_bool(getattr(self, flag), flag, name)
        split = getattr(self, "split", None)
        if split is not None:
            check_real(split, "split", name, minimum=0, maximum=1)
        return {
            "n_components": check_int(self.n_components, "n_components", name, minimum=1),
            "kinds": _KINDS[check_choice(self.kind, "kind", name, tuple(_KINDS))],
            "split": split,
            "normalize": self.normalize,
            "replace": self.replace,
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        net = getattr(self, "net", None)  # not validated yet: scikit-learn reads tags before `fit`
        tags.input_tags.sparse = not (isinstance(net, Layer) and any(isinstance(layer, Conv) for layer in leaves(net)))
        return tags


def _dense(owner: str) -> str:
    rule = "dense for networks other than Dense layers with ReLU, LeakyReLU or Abs between them"
    return f"The 'X' parameter of {owner} must be {rule}. Got a sparse matrix instead. Use X.toarray()."


class LayerwiseMap(NetworkMap):
    """Maps with the parameters of :class:`NetworkFeatures`."""

    method: str
    hidden_components: int | None
    derivative_components: int | None
    directions: str
    degree: int
    derivative_degree: int

    def _options(self, n_features: int) -> Options:
        name, checked = type(self).__name__, self._checked()
        m = checked["n_components"]
        hidden = self._size("hidden_components", max(m // 2, 1) if m < 512 else max(256, min(m // 4, 1024)))
        degrees: Any = {
            key: check_int(getattr(self, key), key, name, minimum=1, maximum=LARGEST_DEGREE)
            for key in ("degree", "derivative_degree")
        }
        return Options(
            **checked,
            **degrees,
            random=check_choice(self.method, "method", name, ("sketch", "random")) == "random",
            directions=check_choice(self.directions, "directions", name, LAWS),
            phi_hidden=hidden,
            eta_hidden=hidden,
            derivative=self._size("derivative_components", hidden),
        )


class NetworkFeatures(LayerwiseMap):
    """Features of the NTK or the NNGP kernel of any network of :mod:`ntkit.networks`.

    Every pixel (or row) has features φ with ⟨φ(x), φ(y)⟩ ≈ Σ(x, y), the NNGP covariance, and ψ with
    ⟨ψ(x), ψ(y)⟩ ≈ Θ(x, y), the tangent kernel. Every layer of the network acts on them. Trained weights, Θ → Θ + Σ,
    append φ to ψ. A convolution takes the direct sum over its patch. Pooling takes means. An activation takes features
    of its dual activations: φ ← forward features of φ and ψ ← Q²(ψ ⊗ derivative features of φ).

    Parameters
    ----------
    net : Layer or None
        The network, on images or on vectors; None: ``networks.fully_connected(1)``.
    n_components : int
        Number of features, for each kernel. There may be fewer, if fewer features are exact.
    method : {"sketch", "random"}
        Features of dual activations. "sketch": sketched power series (:class:`NTKSketch`), usually more accurate.
        "random": random units σ(Wφ), σ′(Wφ) (:class:`NTKRandomFeatures`), faster on a GPU.
    kind : {"ntk", "nngp", "both"}
        "ntk": kernel of the trained network. "nngp": kernel of the random network. "both": the features of both kernels
        side by side, see `ntk_columns_` and `nngp_columns_`.
    hidden_components : int or None
        Components of φ and of Q²(…) before the last activation. None: a quarter of `n_components`, from 256 to 1024;
        half of `n_components` if it is below 512.
    derivative_components : int or None
        Components of derivative features φ̇; None: `hidden_components`.
    directions : {"hadamard", "orthogonal", "gaussian", "leverage"}
        Law of the rows of W for "random"; see :class:`NTKRandomFeatures`. "hadamard": orthogonal in blocks, a random
        rotation made from few numbers times a Hadamard matrix with random signs; as accurate as "orthogonal" and much
        faster to draw. For activations that are not homogeneous, rows get the norms of Gaussian vectors.
    degree, derivative_degree : int
        For "sketch": degrees of the series of σ and of σ′. ReLU, LeakyReLU and Abs use fitted polynomials with
        coefficients ≥ 0. Other activations use Hermite series whose remainder is added to the highest degrees; they
        need higher degrees if variances are well above 1.
    split : float or None
        Share of φ among the features of the NTK, if the last layer is trained; None: 0.6 times the share of trained
        layers that follow the last activation.
    normalize : bool
        Whether features are scaled to the norms that they should have, √Σ(x, x) and √Θ(x, x). These norms are exact at
        every pixel until pixels are pooled, because the covariances between pixels are not known. Errors are smaller by
        a third to a half, but there is a bias that falls with `hidden_components`. Without `normalize`, Z(x)·Z(y) is
        unbiased for one hidden layer (for "sketch", with respect to the kernel with polynomials instead of the dual
        activations).
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the papers.
    image_shape : (height, width, channels) or None
        Shape of the images if X has flat rows.
    precision : {"bfloat16", "float16", "float32", "float64"} or None
        Precision in which the values of layers are held and multiplied on CUDA. "bfloat16" takes half the memory and
        uses tensor cores, with errors of about 0.003 of the kernel. None, and always on other devices: the precision of
        the result.
    batch_size : int or None
        Number of rows whose intermediate results are held at a time; None: limited by a working-memory budget.
        If CUDA memory runs out, smaller batches are tried.
    progress : bool
        Whether `transform` shows a progress bar.
    random_state : None, int, RandomState or Generator
        Draws the map in `fit`. Equal seeds give equal features for NumPy and torch and for any batch size.

    Attributes
    ----------
    ntk_columns_, nngp_columns_ : slice
        Columns of the features of either kernel.
    image_shape_ : tuple
        If X has images.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Patches of many channels are not stored: pixels are added with random signs, which is one row block of an SRHT of
    the direct sum. Before a global average, the mean of ψ ⊗ φ̇ over all pixels is one matrix product for each image,
    whose entries are then sketched. ``docs/design/convolutional.md`` explains both and has measurements.

    Time and memory are linear in the number of pixels. Adding values with random signs causes an error of about
    ``hidden_components^{-1/2}``; the final sketch causes about ``n_components^{-1/2}``.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021,
       Algorithms 1 and 2, Definition 3.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NetworkFeatures, network_kernel
    >>> from ntkit import networks as nn
    >>> net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.AvgPool(2), nn.Conv(3), nn.GELU(), nn.GlobalAvgPool())
    >>> X = np.random.default_rng(0).standard_normal((10, 8, 8, 3))
    >>> Z = NetworkFeatures(net, n_components=2048, random_state=0).fit_transform(X)
    >>> K = network_kernel(net, X)
    >>> bool(np.linalg.norm(Z @ Z.T - K) < 0.15 * np.linalg.norm(K))
    True
    """

    def __init__(
        self,
        net: Layer | None = None,
        n_components: int = 1024,
        *,
        method: str = "sketch",
        kind: str = "ntk",
        hidden_components: int | None = None,
        derivative_components: int | None = None,
        directions: str = "hadamard",
        degree: int = 4,
        derivative_degree: int = 9,
        split: float | None = None,
        normalize: bool = True,
        replace: bool = False,
        image_shape: tuple[int, int, int] | None = None,
        precision: str | None = None,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.net = net
        self.n_components = n_components
        self.method = method
        self.kind = kind
        self.hidden_components = hidden_components
        self.derivative_components = derivative_components
        self.directions = directions
        self.degree = degree
        self.derivative_degree = derivative_degree
        self.split = split
        self.normalize = normalize
        self.replace = replace
        self.image_shape = image_shape
        self.precision = precision
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def _net(self) -> Layer:
        if self.net is None:
            return networks.fully_connected(1)
        if not isinstance(self.net, Layer):
            rule = "a network of ntkit.networks, such as networks.myrtle(5)"
            raise TypeError(message(type(self).__name__, "net", rule, self.net))
        return self.net
