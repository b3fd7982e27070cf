"""Features of any network's kernel: one walk over its layers."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkit import _array, networks
from ntkit._array import Array
from ntkit._batching import batch_rows, progress_bar
from ntkit._precision import exact_products
from ntkit._random import RandomState
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features._base import FeatureMap
from ntkit.features._compile import Options, stages_of
from ntkit.features._images import as_floats, check_image_shape, check_images
from ntkit.features._network import Flow, run, widths
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.networks import Layer, output_shape

_KINDS = {"ntk": ("ntk",), "nngp": ("nngp",), "both": ("ntk", "nngp")}
_DIRECTIONS = ("hadamard", "orthogonal", "gaussian", "leverage")
_PRECISIONS = ("bfloat16", "float16", "float32", "float64")
_PASSES = 6  # arrays of the size of a layer's values that are alive at a time


class NetworkMap(FeatureMap):
    """What the feature maps of networks share: everything but which network it is."""

    method: str
    kind: str
    hidden_components: int | None
    derivative_components: int | None
    directions: str
    degree: int
    derivative_degree: int
    split: float | None = None
    normalize: bool
    replace: bool
    image_shape: tuple[int, int, int] | None
    precision: str | None
    batch_size: int | None
    progress: bool

    @abstractmethod
    def _net(self) -> Layer:
        """The network."""

    def _kernel(self, X: Array) -> Array:
        from ntkit.kernels import network_kernel

        check_is_fitted(self)
        X = _array.namespace(X).reshape(X, (-1, *self._input_shape))
        values = network_kernel(self._net(), X, kind=self.kind)
        return values if self.kind != "both" else values.nngp + values.ntk

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows or images of the shape of X.

        Parameters
        ----------
        X : array or torch tensor of shape (n_samples, n_features) or (n_samples, height, width, channels)
            Only the shape of a row matters: the map is oblivious to the data.
        y : ignored

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            options = self._options()
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            self._sparse = False
            self._input_shape = tuple(int(size) for size in X.shape[1:])
            net = self._net()
            self._check_shape(net)
            self._stages = stages_of(net, self._input_shape, options, seed)
            row = Flow(np.zeros((1, *self._input_shape), np.float32), None, None)
            self._n_features_out, self._widest = widths(self._stages, row)
            n_first = self._n_features_out
            if self.kind == "both":
                n_first = self._stages[-1].sizes[0]  # type: ignore[attr-defined]
            self.ntk_columns_ = slice(0, n_first if self.kind != "nngp" else 0)
            self.nngp_columns_ = slice(0 if self.kind == "nngp" else n_first, self._n_features_out)
        return self

    def _check_shape(self, net: Layer) -> None:
        """Raise if the network cannot take such rows."""
        try:
            output_shape(net, self._input_shape)
        except ValueError as error:
            if len(self._input_shape) > 1 or "takes images" not in str(error):
                raise
            raise ValueError(f"{error} For flat rows set image_shape=(height, width, channels).") from None

    def _options(self) -> Options:
        """Check the parameters."""
        name = type(self).__name__
        m = check_int(self.n_components, "n_components", name, minimum=1)
        check_choice(self.kind, "kind", name, tuple(_KINDS))
        for flag in ("normalize", "replace", "progress"):
            check_bool(getattr(self, flag), flag, name)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        if self.precision is not None:
            check_choice(self.precision, "precision", name, _PRECISIONS)
        if self.split is not None:
            check_real(self.split, "split", name, minimum=0, maximum=1)
        hidden = self._size("hidden_components", max(m // 2, 1) if m < 512 else max(256, min(m // 4, 1024)))
        return Options(
            n_components=m,
            kinds=_KINDS[self.kind],
            random=check_choice(self.method, "method", name, ("sketch", "random")) == "random",
            directions=check_choice(self.directions, "directions", name, _DIRECTIONS),
            hidden=hidden,
            derivative=self._size("derivative_components", hidden),
            degree=check_int(self.degree, "degree", name, minimum=1, maximum=LARGEST_DEGREE),
            derivative_degree=check_int(
                self.derivative_degree, "derivative_degree", name, minimum=1, maximum=LARGEST_DEGREE
            ),
            split=self.split,
            normalize=self.normalize,
            replace=self.replace,
        )

    def _size(self, name: str, default: int) -> int:
        value = getattr(self, name)
        return default if value is None else check_int(value, name, type(self).__name__, minimum=1)

    def _check_rows(self, X: Any, *, reset: bool) -> Array:
        """Images, or rows of a network on vectors."""
        if not reset:
            check_is_fitted(self)
        if _array.is_dask(X) and reset:
            from ntkit.distributed import first_rows

            X = first_rows(X)
        if _array.is_sparse(X):
            raise TypeError(
                message(type(self).__name__, "X", "a dense array, not a sparse one", X, "Call .toarray() on it.")
            )
        if reset:
            shape = check_image_shape(self.image_shape, type(self).__name__)
            self._of_images = shape is not None or getattr(X, "ndim", 2) in (3, 4) or self._flat_images
            self.__dict__.pop("image_shape_", None)
        if not self._of_images:
            return super()._check_rows(X, reset=reset)
        return check_images(self, X, self.image_shape, reset=reset)

    @property
    def _flat_images(self) -> bool:
        """Whether flat rows without a shape are images of one pixel."""
        return False

    def _transform(self, X: Array) -> Array:
        xp: Any = _array.namespace(X)
        X = X.detach() if _array.is_torch(X) else X
        dtype = as_floats(X[:0, ...]).dtype
        compute = self._compute_dtype(X, dtype)
        out = xp.empty((X.shape[0], self._n_features_out), dtype=dtype, device=_array.device(X))
        per_row = _PASSES * self._widest * (2 if compute in _halves(xp) else 4 if compute == xp.float32 else 8)
        step = batch_rows(X.shape[0], per_row, batch_size=self.batch_size, like=X, owner=type(self).__name__)
        start = 0
        on_cuda = _array.is_torch(X) and X.device.type == "cuda"
        with (
            exact_products() if on_cuda else nullcontext(),
            progress_bar(type(self).__name__ if self.progress else None, X.shape[0]) as bar,
        ):
            while start < X.shape[0]:
                rows = slice(start, min(start + step, X.shape[0]))
                try:
                    block = xp.astype(as_floats(X[rows, ...]), compute, copy=False)
                    out[rows, :] = run(self._stages, Flow(block, None, None)).values
                    start = rows.stop
                    bar.update(rows.stop - rows.start)
                except Exception as error:
                    if type(error).__name__ != "OutOfMemoryError" or step == 1:
                        raise
                if start < rows.stop:  # out here the error no longer holds what was computed
                    step = -(-step // 2)
                    xp.cuda.empty_cache()
        return out

    def _compute_dtype(self, X: Array, dtype: Any) -> Any:
        """Precision inside: `precision` on CUDA, elsewhere that of the result (16-bit numbers: float32)."""
        xp: Any = _array.namespace(X)
        if _array.is_torch(X) and X.device.type == "cuda":
            return dtype if self.precision is None else getattr(xp, self.precision)
        return xp.float32 if dtype in _halves(xp) else dtype

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags


def _halves(xp: Any) -> tuple[Any, ...]:
    return tuple(getattr(xp, name) for name in ("float16", "bfloat16") if hasattr(xp, name))


class NetworkFeatures(NetworkMap):
    """Features of the NTK or the NNGP kernel of any network of :mod:`ntkit.networks`.

    Every pixel (or row) has features φ with ⟨φ(x), φ(y)⟩ ≈ Σ(x, y), the NNGP covariance, and ψ with
    ⟨ψ(x), ψ(y)⟩ ≈ Θ(x, y), the tangent kernel, and every layer of the network acts on them: trained weights,
    Θ → Θ + Σ, append φ to ψ; a convolution takes the direct sum over its patch; pooling takes means; an activation
    takes features of its dual activations, φ ← forward features of φ and ψ ← Q²(ψ ⊗ derivative features of φ).

    Parameters
    ----------
    net : Layer or None
        The network, on images or on vectors; None: ``networks.fully_connected(1)``.
    n_components : int
        Number of features, for each kernel. (Fewer come out where fewer are exact.)
    method : {"sketch", "random"}
        Features of dual activations: sketched power series (:class:`NTKSketch`), mostly the more accurate, or random
        units σ(Wφ), σ′(Wφ) (:class:`NTKRandomFeatures`), which are the faster on a GPU.
    kind : {"ntk", "nngp", "both"}
        Kernel of the trained network, of the random one, or both, side by side: see `ntk_columns_`, `nngp_columns_`.
    hidden_components : int or None
        Components of φ and of Q²(…) before the last activation. None: a quarter of `n_components`, from 256 to 1024;
        half of it below 512.
    derivative_components : int or None
        Components of derivative features φ̇; None: as `hidden_components`.
    directions : {"hadamard", "orthogonal", "gaussian", "leverage"}
        Law of the rows of W for "random"; see :class:`NTKRandomFeatures`. "hadamard": orthogonal in blocks, made of
        three Hadamard transforms with random signs, as good as "orthogonal" and drawn in no time. For activations that
        are not homogeneous, rows get the norms of Gaussian ones.
    degree, derivative_degree : int
        For "sketch": degrees of the series of σ and of σ′. Fitted polynomials with coefficients ≥ 0 for ReLU, LeakyReLU
        and Abs; Hermite series with what is left over in the highest degrees for the others, which need higher ones
        where variances are well above 1.
    split : float or None
        Share of φ among the features of the NTK, if the last layer is trained; None: 0.6 of its share of the trained
        layers.
    normalize : bool
        Whether features get the norms that they should have, √Σ(x, x) and √Θ(x, x): exactly so at every pixel until
        pixels are pooled, whose covariances are not known. Errors are smaller by a third to a half; the price is a bias
        that falls with `hidden_components`. Without it Z(x)·Z(y) is unbiased for one hidden layer ("sketch": of the
        kernel with polynomials in place of the dual activations).
    replace : bool
        Whether rows of Hadamard matrices are drawn independently, as in the papers.
    image_shape : (height, width, channels) or None
        For images given as flat rows.
    precision : {"bfloat16", "float16", "float32", "float64"} or None
        In which the values of layers are held and multiplied on CUDA: "bfloat16" takes half the memory and tensor
        cores, with errors of some 0.003 of the kernel. None, and always elsewhere: that of the result.
    batch_size : int or None
        Rows whose intermediate results are held at a time; None: as many as a working-memory budget holds. On CUDA
        fewer are tried where memory runs out.
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
    Patches of many channels are not written out: pixels are added with random signs, which is one row block of an SRHT
    of the direct sum. Before a global average, the mean of ψ ⊗ φ̇ over all pixels is one matrix product for each image,
    of which the entries are then sketched. See ``docs/design/convolutional.md`` for both, and for measurements.

    Time and memory are linear in the pixels. Where values are added with random signs the error is about
    ``hidden_components^{-1/2}``, in the end ``n_components^{-1/2}``.

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
