"""Exact kernels of infinitely wide networks: NTK and NNGP of any network of :mod:`ntkit.networks`.

Three ways, one result: cosines through a compiled recursion (vectors and homogeneous activations), pairs of
images through compiled code (:mod:`ntkit.kernels._pairs`), and the array-API walk (everything, any device).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_choice, check_int, message
from ntkit.kernels._base import Kernel, Rows, evaluate, on_host
from ntkit.kernels._pairs import image_chain
from ntkit.kernels._walk import pair_variances, pools, row_variances, self_variances, start, walk
from ntkit.kernels.activations import HOMOGENEOUS, gain, homogeneous_chain, mix
from ntkit.kernels.arccos import NEAR
from ntkit.kernels.dot_product import assign, divide_rows, inner_products, row_norms
from ntkit.networks import Activation, Dense, Layer, fully_connected, output_shape
from ntkit.networks import cntk as cntk_network
from ntkit.networks._layers import Size, flatten

__all__ = ["NetworkKernels", "cntk", "network_kernel", "nngp", "ntk"]

_KINDS = {"ntk": ("ntk",), "nngp": ("nngp",), "both": ("nngp", "ntk")}


class NetworkKernels(NamedTuple):
    """Both kernels of a network, as :func:`network_kernel` gives them for ``kind="both"``.

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
    """Neural tangent kernel of a fully connected ReLU network, ‖x‖‖y‖ K_relu^(L)(cos(x, y)).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`; the matrix is then exactly symmetric and costs half.
    depth : int ≥ 1
        Number L of ReLU layers.

    Returns
    -------
    array of shape (n, m)
        Of the library, device and dtype of `X`; computed in float64. The diagonal is (L + 1)‖x‖², a
        zero row gives zeros.

    Notes
    -----
    O(nm(d + L)) time. Cosines within 1e-8 of ±1 are recomputed from ‖x/‖x‖ ∓ y/‖y‖‖², so duplicates,
    antipodes and collinear rows are exact to rounding at any depth.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Definition 1 and Eq. (5).

    Examples
    --------
    >>> ntk([[3.0, 4.0]], [[6.0, 8.0], [-3.0, -4.0], [0.0, 0.0]], depth=1)
    array([[100.,   0.,   0.]])
    """
    return evaluate(fully_connected_kernel("ntk", depth), X, Y)[0]


def nngp(X: Any, Y: Any = None, *, depth: int) -> Array:
    """NNGP kernel of a fully connected ReLU network, ‖x‖‖y‖ Σ_relu^(L)(cos(x, y)), the L-fold κ₁.

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
    return evaluate(fully_connected_kernel("nngp", depth), X, Y)[0]


def cntk(X: Any, Y: Any = None, *, depth: int, kernel_size: Size = 3, progress: bool = False) -> Array:
    """Convolutional NTK with global average pooling, Definition 2.

    Parameters
    ----------
    X : array of shape (n, h, w, c)
    Y : array of shape (m, h, w, c), default=None
        None means `X`.
    depth : int ≥ 1
        Number L of convolutions. At L = 1 the definition trains nothing: the kernel is zero.
    kernel_size : int or (int, int), default=3
        Size q of the filters.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    array of shape (n, m)

    Notes
    -----
    O(L h² w²) time per pair of images whatever q, O(h w) memory per pair on the host. The network is
    ``networks.cntk(depth, kernel_size)``; :func:`network_kernel` takes any other.

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
    return evaluate(Network(cntk_network(depth, kernel_size), "ntk", "cntk"), X, Y, progress=progress)[0]


def network_kernel(
    net: Layer, X: Any, Y: Any = None, *, kind: str = "ntk", progress: bool = False
) -> Array | NetworkKernels:
    """Exact infinite-width kernel of a network.

    Parameters
    ----------
    net : Layer
        Description from :mod:`ntkit.networks`; see there for the scaling.
    X : array or CSR of shape (n, d), or array of shape (n, h, w, c)
        Rows or images. CSR for fully connected networks of homogeneous activations.
    Y : like `X`, default=None
        None means `X`.
    kind : {"ntk", "nngp", "both"}, default="ntk"
        Tangent kernel of training all trainable layers, kernel of the random network itself, or both
        at the price of one.
    progress : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    array of shape (n, m), or for "both" a named tuple (nngp, ntk) of such arrays

    Notes
    -----
    Networks of stride-1 convolutions, pooling and piecewise linear activations, and all fully connected networks of
    such activations, run compiled; others (residual branches, strides, Erf, GELU, Sin, Gaussian, Normalize on images)
    hold h² w² numbers for each pair in flight and are about 14 times slower. Tensors that require gradients are taken
    as constants.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> net = nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense())
    >>> network_kernel(net, np.eye(2), kind="nngp")
    array([[1., 0.],
           [0., 1.]])
    """
    values = evaluate(Network(net, kind), X, Y, progress=progress)
    return NetworkKernels(*values) if kind == "both" else values[0]


def fully_connected_kernel(kind: str, depth: int) -> Network:
    """Kernel of a fully connected ReLU network, which messages call by its kind."""
    return Network(fully_connected(check_int(depth, "depth", kind, minimum=1)), kind, kind)


@dataclass(frozen=True)
class Network(Kernel):
    """Parameters of :func:`network_kernel`, and the walk in array-API code; `owner` is the name in messages."""

    net: Layer
    kind: str = "ntk"
    owner: str = "network_kernel"  # type: ignore[misc]
    ndims: ClassVar[Sequence[int]] = (2, 4)
    sparse: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.net, Layer):
            rule, remedy = "a network of ntkit.networks", "For example networks.fully_connected(2)."
            raise TypeError(message(self.owner, "net", rule, self.net, remedy))
        check_choice(self.kind, "kind", self.owner, tuple(_KINDS))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the matrices computed."""
        return _KINDS[self.kind]

    @property
    def n_outputs(self) -> int:
        """One matrix for each kind."""
        return len(self.kinds)

    def check(self, X: Any, name: str = "X") -> Array:
        """Validated data whose shape the network can take."""
        X = super().check(X, name)
        output_shape(self.net, tuple(int(s) for s in X.shape[1:]))
        if _array.is_sparse(X) and _cosine_chain(self.net, self.kinds) is None:
            rule = "a dense array unless all activations are ReLU, LeakyReLU or Abs, without Residual or Normalize"
            raise TypeError(message(self.owner, name, rule, X, "Call .toarray() on it."))
        return X

    def specialize(self, X: Array) -> Kernel:
        """Compiled or closed-form kernel where there is one."""
        if X.ndim == 2:
            return _cosine_chain(self.net, self.kinds) or self
        return image_chain(self.net, X, self.kinds) or self

    def prepare(self, X: Array) -> Rows:
        """Variances at all activations and Normalize layers, from the pairs (x, x)."""
        parts = [row_variances(self.net, X[rows, ...]) for rows in self._row_batches(X)]
        return Rows(X, _concat(parts))

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Walk all pairs of a tile."""
        state = start(a.data, b.data, all_pixels=self._all_pixels, ntk="ntk" in self.kinds)
        state = walk(self.net, state, pair_variances(a.stats, b.stats))
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, getattr(state, kind))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """Walk the pairs (x, x)."""
        parts = []
        for rows in self._row_batches(a.data):
            X = a.data[rows, ...]
            state = start(X, X, all_pixels=self._all_pixels, ntk="ntk" in self.kinds, paired=True)
            state = walk(self.net, state, self_variances())
            parts.append([getattr(state, kind)[:, 0] for kind in self.kinds])
        return _concat(parts)

    def bytes_per_pair(self, a: Rows) -> int:
        """About a dozen float64 arrays of the state's size."""
        if a.data.ndim == 2:
            return 96
        pixels = a.data.shape[1] * a.data.shape[2]
        return int(96 * pixels * (pixels if self._all_pixels else 1))

    def _row_batches(self, X: Array) -> Iterator[slice]:
        return row_batches(X.shape[0], self.bytes_per_pair(Rows(X)), like=X)

    @property
    def _all_pixels(self) -> bool:
        return pools(flatten(self.net))


@dataclass(frozen=True, eq=False)
class CosineChain(Kernel):
    """Dense layers and homogeneous activations on vectors: ‖x‖‖y‖ times a function of the cosine."""

    mixes: np.ndarray
    trained: np.ndarray
    scale: float
    kinds: tuple[str, ...]
    owner: ClassVar[str] = "network_kernel"
    sparse: ClassVar[bool] = True

    @property
    def n_outputs(self) -> int:
        """One matrix for each kind."""
        return len(self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Norms of the rows."""
        return Rows(X, (row_norms(X),))

    def bytes_per_pair(self, a: Rows) -> int:
        """The cosine; a handful of float64 temporaries where nothing is compiled."""
        return 8 if on_host(a.data) else 64

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Cosines by BLAS, those near ±1 again from differences, then the recursion."""
        x, y = divide_rows(_wide(a.data), a.stats[0]), divide_rows(_wide(b.data), b.stats[0])
        cosines = inner_products(x, y)
        if _array.is_numpy(cosines):
            self._fill_compiled(x, y, cosines, a.stats[0], b.stats[0], outs)
            return
        if _array.has_triton(cosines):
            if self._fill_triton(cosines, a.stats[0], b.stats[0], outs):
                self._fill_near(x, y, cosines, a.stats[0], b.stats[0], outs)
            return
        xp = _array.namespace(cosines)
        gap = xp.clip(1 - xp.abs(cosines), 0, 1)
        values = self._values(cosines, gap)
        norms = self.scale * a.stats[0][:, None] * b.stats[0][None, :]
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, norms * values[kind])
        self._fill_near(x, y, cosines, a.stats[0], b.stats[0], outs)

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """The value at cosine one times ‖x‖²."""
        at_one = self._values(np.ones(()), np.zeros(()))
        return tuple(self.scale * float(at_one[kind]) * a.stats[0] * a.stats[0] for kind in self.kinds)

    def _fill_near(
        self, x: Array, y: Array, cosines: Array, x_norms: Array, y_norms: Array, outs: Sequence[Array]
    ) -> None:
        """Compute again the entries with a cosine near ±1."""
        xp = _array.namespace(cosines)
        i, j = xp.nonzero(1 - xp.abs(cosines) < NEAR)
        if not i.shape[0]:
            return
        near = cosines[i, j]
        gap = xp.clip(_gaps(x, y, i, j, near), 0, 1)
        values = self._values(near, gap)
        norms = self.scale * xp.take(x_norms, i) * xp.take(y_norms, j)
        for kind, out in zip(self.kinds, outs, strict=True):
            _array.scatter(out, i, j, xp.astype(norms * values[kind], out.dtype, copy=False))

    def _values(self, cosines: Array, gap: Array) -> dict[str, Array]:
        sigma, theta = homogeneous_chain(cosines, gap, self.mixes, self.trained)
        return {"nngp": sigma, "ntk": theta}

    def _fill_triton(self, cosines: Array, x_norms: Array, y_norms: Array, outs: Sequence[Array]) -> bool:
        import torch

        from ntkit.kernels import _triton

        mixes, trained = (torch.from_numpy(v).to(cosines.device) for v in (self.mixes, self.trained))
        by_kind = dict(zip(self.kinds, outs, strict=True))
        return _triton.chain(
            cosines, mixes, trained, self.scale * x_norms, y_norms, by_kind.get("nngp"), by_kind.get("ntk")
        )

    def _fill_compiled(
        self, x: Array, y: Array, cosines: np.ndarray, x_norms: Array, y_norms: Array, outs: Sequence[Array]
    ) -> None:
        from ntkit.kernels import _numba

        near = _numba.near_pairs(cosines)
        gap = np.empty(0)
        if len(near):
            i, j = near.T
            gap = _gaps(x, y, i, j, cosines[i, j])
        # numba knows no half precision.
        tiles = [np.empty(out.shape) if out.dtype == np.float16 else out for out in outs]
        by_kind = dict(zip(self.kinds, tiles, strict=True))
        none = np.empty((0, 0))
        _numba.chain(
            cosines, near, gap, self.mixes, self.trained, self.scale * x_norms, y_norms,
            by_kind.get("nngp", none), by_kind.get("ntk", none),
        )  # fmt: skip
        for tile, out in zip(tiles, outs, strict=True):
            if tile is not out:
                assign(out, tile)


def _cosine_chain(net: Layer, kinds: tuple[str, ...]) -> CosineChain | None:
    """Closed form of a chain of Dense layers and homogeneous activations, else None."""
    mixes: list[float] = []
    trained = [0.0]
    scale = 1.0
    for layer in flatten(net):
        if isinstance(layer, Dense):
            trained[-1] += layer.trainable  # Θ → w²(Θ + Σ), so trained layers in a row add up
            scale *= layer.weight_std**2
        elif isinstance(layer, Activation) and isinstance(layer, HOMOGENEOUS):
            mixes.append(mix(layer))
            trained.append(0.0)
            scale *= gain(layer)
        else:
            return None
    return CosineChain(np.array(mixes), np.array(trained), scale, kinds)


def _gaps(x: Array, y: Array, i: Array, j: Array, cosines: Array) -> Array:
    """1 − |t| of some pairs of unit rows as ½‖x ∓ y‖², in slices that bound the memory."""
    xp = _array.namespace(cosines)
    signs = xp.where(cosines < 0, -xp.ones_like(cosines), xp.ones_like(cosines))
    width = x.nnz // x.shape[0] + y.nnz // y.shape[0] if _array.is_sparse(x) else x.shape[1]
    step = max(1, 2**20 // max(width, 1))
    parts = []
    for k in range(0, cosines.shape[0], step):
        part = slice(k, min(k + step, cosines.shape[0]))
        if _array.is_sparse(x):
            difference = x[i[part]] - y[j[part]].multiply(signs[part][:, None])
            parts.append(np.asarray(difference.multiply(difference).sum(axis=1)).ravel() / 2)
        else:
            x_rows, y_rows = xp.take(x, i[part], axis=0), xp.take(y, j[part], axis=0)
            difference = x_rows - signs[part][:, None] * y_rows
            parts.append(xp.sum(difference * difference, axis=1) / 2)
    return xp.concat(parts)


def _concat(parts: Sequence[Sequence[Array]]) -> tuple[Array, ...]:
    """Join, position by position, arrays that belong to consecutive batches of rows."""
    return tuple(_array.namespace(*part).concat(part) for part in zip(*parts, strict=True))


def _wide(X: Array) -> Array:
    return X.astype(np.float64) if _array.is_sparse(X) else _array.widen(X)
