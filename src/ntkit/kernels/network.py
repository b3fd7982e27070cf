"""Exact kernels of infinitely wide networks: NTK and NNGP of any network of :mod:`ntkit.networks`.

Three implementations give the same result: a compiled recursion of correlations for vectors
(:mod:`ntkit.kernels.chain`), compiled code for pairs of images (:mod:`ntkit.kernels._pairs`), and covariances in
array-API code for all networks on any device (:mod:`ntkit.kernels.covariances`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_choice, check_int, message
from ntkit.kernels._pairs import image_chain
from ntkit.kernels.chain import CosineChain, cosine_chain
from ntkit.kernels.covariances import Covariances, Known, Own, State, pools, row_variances, start
from ntkit.kernels.norms import extreme_factors, scaled, unscaled, unscaled_own
from ntkit.kernels.series import network_taylor
from ntkit.kernels.spec import KernelSpec
from ntkit.kernels.tiles import Rows, assign
from ntkit.networks import Layer, fold, fully_connected, output_shape
from ntkit.networks import cntk as cntk_network
from ntkit.networks.layers import Size

if TYPE_CHECKING:
    from ntkit.kernels.zonal import Zonal

__all__ = ["NetworkKernels", "cntk", "network_kernel", "nngp", "ntk"]

_KINDS = {"ntk": ("ntk",), "nngp": ("nngp",), "both": ("nngp", "ntk")}


class NetworkKernels(NamedTuple):
    """Both kernels of a network, as returned by :func:`network_kernel` for ``kind="both"``.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> nngp, ntk = network_kernel(nn.fully_connected(2), np.eye(1), kind="both")
    >>> float(nngp[0, 0]), float(ntk[0, 0])
    (1.0, 3.0)
    """

    nngp: Array
    ntk: Array


def ntk(X: Any, Y: Any = None, *, depth: int) -> Array:
    """Compute the neural tangent kernel of a fully connected ReLU network, ‖x‖‖y‖ K_relu^(L)(cos(x, y)).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`; the matrix is then exactly symmetric and takes half the time.
    depth : int ≥ 1
        Number L of ReLU layers.

    Returns
    -------
    array of shape (n, m)
        Same library, device and dtype as `X`; computed in float64. K(x, x) = (L + 1)‖x‖², and zero rows give zeros.

    Notes
    -----
    O(nm(d + L)) time. Cosines within 1e-8 of ±1 are recomputed from ‖x/‖x‖ ∓ y/‖y‖‖², so the results for duplicate,
    antipodal and collinear rows are exact up to rounding at any depth.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Definition 1 and Eq. (5).

    Examples
    --------
    >>> ntk([[3.0, 4.0]], [[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]], depth=1)
    array([[100.,   0.,   0.]])
    """
    return KernelSpec.of("ntk", depth=depth).matrix(X, Y)


def nngp(X: Any, Y: Any = None, *, depth: int) -> Array:
    """Compute the NNGP kernel of a fully connected ReLU network, ‖x‖‖y‖ Σ_relu^(L)(cos(x, y)).

    Σ_relu^(L) is the L-fold composition of the arc-cosine function κ₁.

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    depth : int ≥ 1
        Number L of ReLU layers.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> nngp([[3.0, 4.0]], [[6.0, 8.0], [-4.0, 3.0]], depth=1)
    array([[50.        ,  7.95774715]])
    """
    return KernelSpec.of("nngp", depth=depth).matrix(X, Y)


def cntk(X: Any, Y: Any = None, *, depth: int, kernel_size: Size = 3, progress: bool = False) -> Array:
    """Compute the convolutional NTK with global average pooling (Definition 2 of [1]_).

    Parameters
    ----------
    X : array of shape (n, h, w, c)
    Y : array of shape (m, h, w, c), default=None
        None means `X`.
    depth : int ≥ 1
        Number L of convolutions. At L = 1 no layer is trained in Definition 2, so the kernel is zero.
    kernel_size : int or (int, int), default=3
        Size q of the filters.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    array of shape (n, m)

    Notes
    -----
    O(L h² w²) time per pair of images for any q, and O(h w) memory per pair on the host. The network is
    ``networks.cntk(depth, kernel_size)``; for other networks, use :func:`network_kernel`.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Definition 2.

    Examples
    --------
    >>> import numpy as np
    >>> image = np.ones((1, 1, 1, 3))
    >>> cntk(image, depth=3, kernel_size=1)
    array([[6.]])
    """
    return KernelSpec.of("cntk", depth=depth, kernel_size=kernel_size).matrix(X, Y, progress=progress)


def network_kernel(
    net: Layer, X: Any, Y: Any = None, *, kind: str = "ntk", progress: bool = False
) -> Array | NetworkKernels:
    """Compute the exact infinite-width kernel of a network.

    Parameters
    ----------
    net : Layer
        Network built from :mod:`ntkit.networks`, which defines the scaling.
    X : array or CSR of shape (n, d), or array of shape (n, h, w, c)
        Rows or images. CSR is supported for fully connected networks with homogeneous activations.
    Y : like `X`, default=None
        None means `X`.
    kind : {"ntk", "nngp", "both"}, default="ntk"
        "ntk" is the tangent kernel with respect to all trainable layers, "nngp" the covariance of the random network.
        "both" costs no more than one of them.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    array of shape (n, m), or for "both" a named tuple (nngp, ntk) of two such arrays

    Notes
    -----
    Compiled code handles networks of stride-1 convolutions, pooling and piecewise linear activations, and all fully
    connected networks with such activations. Other networks on images (residual branches, strides, Erf, GELU, Sin,
    Gaussian, Normalize) hold h² w² numbers for each pair that is being computed and are about 14 times slower. Tensors
    that require gradients are treated as constants.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> net = nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense())
    >>> network_kernel(net, np.eye(2), kind="nngp")
    array([[1., 0.],
           [0., 1.]])
    """
    values = Network(net, kind).matrices(X, Y, progress=progress)
    return NetworkKernels(*values) if kind == "both" else values[0]


@KernelSpec.register("ntk")
def _(depth: int) -> Network:
    return _fully_connected("ntk", depth)


@KernelSpec.register("nngp")
def _(depth: int) -> Network:
    return _fully_connected("nngp", depth)


@KernelSpec.register("cntk")
def _(depth: int, kernel_size: Size = 3) -> Network:
    return Network(cntk_network(depth, kernel_size), "ntk", "cntk")


def _fully_connected(kind: str, depth: int) -> Network:
    """Return the kernel of a fully connected ReLU network; error messages refer to it by its kind."""
    return Network(fully_connected(check_int(depth, "depth", kind, minimum=1)), kind, kind)


@dataclass(frozen=True)
class Network(KernelSpec):
    """Parameters of :func:`network_kernel`, and its implementation in array-API code.

    `owner` is the function name used in error messages.
    """

    net: Layer
    kind: str = "ntk"
    owner: str = field(default="network_kernel", compare=False, repr=False)  # type: ignore[misc]
    ndims: ClassVar[Sequence[int]] = (2, 4)
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.net, Layer):
            rule, remedy = "a network of ntkit.networks", "Use, for example, networks.fully_connected(2)."
            raise TypeError(message(self.owner, "net", rule, self.net, remedy))
        check_choice(self.kind, "kind", self.owner, tuple(_KINDS))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the matrices that are computed."""
        return _KINDS[self.kind]

    @property
    def n_outputs(self) -> int:
        """Number of matrices, one for each kind."""
        return len(self.kinds)

    def check(self, X: Any, name: str = "X") -> Array:
        """Return validated data, or raise if the network cannot take its shape."""
        X = super().check(X, name)
        output_shape(self.net, tuple(int(s) for s in X.shape[1:]))
        if _array.is_sparse(X) and cosine_chain(self.net, self.kinds) is None:
            rule = "a dense array unless all activations are ReLU, LeakyReLU or Abs, without Residual or Normalize"
            raise TypeError(message(self.owner, name, rule, X, f"Use {name}.toarray()."))
        return X

    def specialize(self, X: Array) -> KernelSpec:
        """Return the compiled kernel for this network if there is one, else this kernel."""
        if X.ndim == 2:
            return cosine_chain(self.net, self.kinds) or self
        return image_chain(self.net, X, self.kinds) or self

    def on_sphere(self, t: np.ndarray) -> np.ndarray:
        """See :meth:`KernelSpec.on_sphere`."""
        chain = self._chain()
        if chain is not None and not chain.biased:
            return chain.on_sphere(t)
        own = Own()
        fold(self.net, Covariances(own), State(np.ones((1, 1)), None))
        state = State(np.asarray(t, dtype=np.float64).reshape(1, -1), np.zeros((1, t.size)))
        state = fold(self.net, Covariances(Known(own.found, own.found)), state)
        return np.asarray(getattr(state, self.kinds[0])).reshape(t.shape)

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`; runs the recursion over layers in truncated power series."""
        self._chain()
        return network_taylor(self.net, degree)[self.kinds[0]]

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`; networks without biases have the form ‖x‖‖y‖ κ(cos)."""
        from ntkit.kernels.zonal import Homogeneous

        chain = self._chain()
        if chain is None or chain.biased:
            return super().zonal
        return Homogeneous(chain.on_sphere, 1, self.taylor)

    def _chain(self) -> CosineChain | None:
        """Return the network as a chain, or None if it is not one; raise if it does not take vectors."""
        output_shape(self.net, (1,))
        return cosine_chain(self.net, self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Compute the variances of each row at all activations and Normalize layers, keyed by layer paths."""
        rows = Rows(X, extreme_factors(self.net, X))
        parts = [row_variances(self.net, scaled(rows[batch])) for batch in self._row_batches(X)]
        found = {path: _array.namespace(X).concat([part[path] for part in parts]) for path in parts[0]}
        return Rows(X, {**rows.stats, **found})

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Propagate all pairs of a tile through the network."""
        state = start(scaled(a), scaled(b), all_pixels=pools(self.net), ntk="ntk" in self.kinds)
        state = fold(self.net, Covariances(Known(a.stats, b.stats)), state)
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, unscaled(getattr(state, kind), a, b))

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Propagate the pairs (x, x) through the network."""
        parts = []
        for rows in self._row_batches(a.data):
            X = scaled(a[rows])
            state = start(X, X, all_pixels=pools(self.net), ntk="ntk" in self.kinds, paired=True)
            state = fold(self.net, Covariances(Own()), state)
            parts.append([unscaled_own(getattr(state, kind)[:, 0], a[rows], kind) for kind in self.kinds])
        return tuple(_array.namespace(*part).concat(part) for part in zip(*parts, strict=True))

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """Compute gradients in closed form for a chain without biases, else by torch.

        K = F(c, a, b) with c = ⟨x, y⟩, a = ‖x‖², b = ‖y‖², so ∇K = F_c y + 2 F_a x.
        """
        chain = self._chain()
        if chain is not None and not chain.biased:
            return chain.gradients(X, Y, C)
        try:
            import torch
        except ImportError as error:
            text = f"The gradient of {self.net!r} needs torch. Install it with pip install 'ntkit[torch]'."
            raise ImportError(text) from error
        x, y, weights = (torch.as_tensor(Z if _array.is_torch(Z) else np.asarray(Z)).double() for Z in (X, Y, C))
        with torch.enable_grad():
            a = (x * x).sum(1).requires_grad_()
            b = (y * y).sum(1)
            bound = (1 - 1e-12) * (a.detach()[:, None] * b).sqrt()  # derivatives are infinite where rows coincide
            c = torch.minimum(torch.maximum(x @ y.T, -bound), bound).requires_grad_()
            found = []
            for variance in (a, b):
                own = Own()
                fold(self.net, Covariances(own), State(variance[:, None], None))
                found.append(own.found)
            state = fold(self.net, Covariances(Known(*found)), State(c, torch.zeros_like(c)))
            K = getattr(state, self.kinds[0])
            parts = []
            for k in range(weights.shape[1]):
                total = (K * weights[:, k]).sum()
                slopes = torch.autograd.grad(total, (c, a), retain_graph=True, materialize_grads=True)
                along, radial = (torch.nan_to_num(slope, 0.0, 0.0, 0.0) for slope in slopes)
                parts.append(along @ y + 2 * radial[:, None] * x)
        G = torch.stack(parts, 1).detach()
        return G if _array.is_torch(X) else _array.namespace(X).asarray(G.numpy())

    def bytes_per_pair(self, a: Rows) -> int:
        """Return the size of about a dozen float64 arrays of the state's size."""
        if a.data.ndim == 2:
            return 96
        pixels = a.data.shape[1] * a.data.shape[2]
        return int(96 * pixels * (pixels if pools(self.net) else 1))

    def bytes_per_row(self, a: Rows) -> int:
        """Return the size of a few float64 copies of an image, or of a panel of columns of a vector."""
        return super().bytes_per_row(a) if a.data.ndim == 2 else 24 * int(np.prod(a.data.shape[1:]))

    def _row_batches(self, X: Array) -> Iterator[slice]:
        """Iterate over batches of rows whose pairs (x, x) fit in the working memory."""
        row_bytes = self.bytes_per_pair(Rows(X)) + 24 * int(np.prod(X.shape[1:]))
        return row_batches(X.shape[0], row_bytes, like=X)
