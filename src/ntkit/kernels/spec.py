"""Kernel specifications: one interface to kernels given by a name, a network or a function."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches, working_memory
from ntkit._validation import check_choice, check_data, check_int, check_real, check_same_kind, describe, message
from ntkit.kernels import tiles
from ntkit.kernels.tiles import Rows
from ntkit.networks import Layer, UnsupportedError

if TYPE_CHECKING:
    from ntkit.kernels.zonal import Zonal

KernelLike: TypeAlias = str | Layer | Callable[..., Array]
Builder = TypeVar("Builder", bound=Callable[..., "KernelSpec"])
_NAMES: dict[str, Callable[..., KernelSpec]] = {}


class KernelSpec(ABC):
    """An exact kernel with given parameters, as immutable data.

    Create one with :meth:`of`. A kernel that depends only on norms and cosines also knows its function on the unit
    sphere: `at_one`, `taylor` and `gegenbauer`.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.kernels import KernelSpec
    >>> spec = KernelSpec.of("ntk", depth=2)
    >>> spec.matrix(np.eye(2)).round(3)
    array([[3.   , 0.686],
           [0.686, 3.   ]])
    >>> spec.at_one
    3.0
    >>> spec.taylor(2).round(3)
    array([0.686, 0.958, 0.616])
    """

    owner: ClassVar[str]
    """The name used in error messages."""
    ndims: ClassVar[Sequence[int]] = (2,)
    sparse: ClassVar[bool] = False
    symmetric: ClassVar[bool] = True  # whether K(x, y) = K(y, x) is guaranteed

    @staticmethod
    def register(name: str) -> Callable[[Builder], Builder]:
        """Return a decorator that registers a subclass or function which builds the named kernel."""

        def add(builder: Builder) -> Builder:
            _NAMES[name] = builder
            return builder

        return add

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of all registered kernels."""
        return tuple(_NAMES)

    @staticmethod
    def parameters(name: str) -> tuple[str, ...]:
        """Return the names of the parameters of a registered kernel."""
        return tuple(inspect.signature(_NAMES[name]).parameters)

    @staticmethod
    def of(kernel: KernelLike | KernelSpec, **params: Any) -> KernelSpec:
        """Create a kernel from a name, a network or a function.

        Parameters
        ----------
        kernel : str, Layer or callable
            One of the names below; a network of :mod:`ntkit.networks`; or a function ``kernel(X, Y, **params)`` that
            returns the matrix and is called on the calling thread.
        **params
            Parameters of the kernel; for a network ``kind="ntk"`` or ``"nngp"``.

        Returns
        -------
        KernelSpec

        Notes
        -----
        ===============  =====================================================  ================================
        name             k(x, y)                                                parameters
        ===============  =====================================================  ================================
        "ntk"            NTK of ReLU layers, ‖x‖‖y‖ K_relu^(L)(cos)             depth
        "nngp"           NNGP kernel of ReLU layers, ‖x‖‖y‖ Σ_relu^(L)(cos)     depth
        "cntk"           convolutional NTK of images                            depth, kernel_size
        "gaussian"       exp(−‖x − y‖²/(2ℓ²))                                   lengthscale
        "laplace"        exp(−‖x − y‖/ℓ)                                        lengthscale, norm
        "matern"         Matérn kernel with ν = 1/2, 3/2 or 5/2                 lengthscale, nu
        "exponential"    exp(⟨x, y⟩/ℓ²)                                         lengthscale
        "polynomial"     (γ⟨x, y⟩ + c)^p                                        degree, coef0, gamma
        "dot_product"    κ(⟨x, y⟩), κ a function or Taylor coefficients         function
        "arc_cosine"     ‖x‖^p ‖y‖^p κ_p(cos), p = 0, 1, 2                      order
        "hidden_ntk"     ‖x‖‖y‖ cos κ₀(cos)/2                                   none
        "zonal"          ‖x‖^p ‖y‖^p κ(cos)                                     function, power
        ===============  =====================================================  ================================

        Examples
        --------
        >>> from ntkit.kernels import KernelSpec
        >>> KernelSpec.of("polynomial", degree=3)
        Polynomial(degree=3, coef0=0.0, gamma=1.0)
        """
        return KernelSpec.resolve(kernel, params, "KernelSpec.of")

    @staticmethod
    def resolve(kernel: KernelLike | KernelSpec, params: dict[str, Any], owner: str) -> KernelSpec:
        """As :meth:`of`, for the parameter `kernel` of `owner`, which error messages mention."""
        if isinstance(kernel, KernelSpec) and not params:
            return kernel
        if isinstance(kernel, Layer):
            from ntkit.kernels.network import Network

            if "kind" in params:
                check_choice(params["kind"], "kind", owner, ("ntk", "nngp"))
            return _build(lambda kind="ntk": Network(kernel, kind), "network", params)
        if isinstance(kernel, str) and kernel in _NAMES:
            return _build(_NAMES[kernel], kernel, params)
        if callable(kernel) and not isinstance(kernel, type):
            return FunctionKernel(kernel, tuple(params.items()))
        names = ", ".join(repr(name) for name in sorted(_NAMES))
        raise ValueError(message(owner, "kernel", f"one of {names}, a network or a function", kernel))

    def matrix(self, X: Any, Y: Any = None, *, progress: bool = False) -> Array:
        """Compute the kernel matrix between the rows of `X` and `Y` (None means `X`).

        The result has the library, device and dtype of `X`.
        """
        return self.matrices(X, Y, progress=progress)[0]

    def matrices(self, X: Any, Y: Any = None, *, progress: bool = False) -> tuple[Array, ...]:
        """Compute all matrices of a kernel that has several (``kind="both"``)."""
        if _array.is_traced(X):
            return self._traced(X, Y)
        X, Y, finish = self._checked(X, Y)
        kernel = self.specialize(X)
        a = kernel.prepare(X)
        b = None if Y is None else kernel.prepare(Y)
        return tuple(finish(K) for K in tiles.gram(kernel, a, b, progress=progress))

    def diagonal(self, X: Any) -> Array:
        """Compute K(x, x) of every row, without forming the matrix."""
        X, _, finish = self._checked(X, None)
        kernel = self.specialize(X)
        values = kernel.own_values(kernel.prepare(X))[0]
        return finish(_array.namespace(values).astype(values, _array.result_dtype(X), copy=False))

    def blocks(self, X: Any, Y: Any = None, *, batch_size: int | None = None) -> Iterator[tuple[slice, Array]]:
        """Iterate over (rows of `X`, their block of the matrix); each block fits in the working memory."""
        X, Y, finish = self._checked(X, Y)  # raise errors now, not at the first block
        parts = tiles.row_blocks(self.specialize(X), X, Y, batch_size)
        return ((rows, finish(matrices[0])) for rows, matrices in parts)

    def gradient(self, X: Any, Y: Any, coefficients: Any) -> Array:
        """Compute the gradients ∇f(x) of f(x) = Σ_j c_j k(x, y_j) at the rows of `X`, in float64.

        Parameters
        ----------
        X : array of shape (n, d)
        Y : array of shape (m, d)
        coefficients : array of shape (m,) or (m, k)
            c_j, for one function or for k functions.

        Returns
        -------
        array of shape (n, d) or (n, k, d)
            If k(x, y) has a cusp at x = y, as the Laplace kernel and the NTK do, the discontinuous part is omitted
            there.

        Examples
        --------
        >>> from ntkit.kernels import KernelSpec
        >>> KernelSpec.of("polynomial", degree=2).gradient([[1.0, 2.0]], [[1.0, 0.0]], [3.0])  # 3 (x₁)²
        array([[6., 0.]])
        """
        X, Y = (check_data(Z, name, self.owner, ndims=(2,)) for Z, name in ((X, "X"), (Y, "Y")))
        check_same_kind(X, Y, self.owner)
        C = check_data(coefficients, "coefficients", self.owner, ndims=(1, 2))
        if C.shape[0] != Y.shape[0]:
            raise ValueError(message(self.owner, "coefficients", f"an array of {Y.shape[0]} rows, one per row of Y", C))
        views = [_array.host_view(Z) for Z in (X, Y)]
        on_host = all(view is not None for view in views)
        x, y = (Z if v is None or not on_host else v for Z, v in zip((X, Y), views, strict=True))
        x, y = (Z.detach() if _array.is_torch(Z) else Z for Z in (x, y))  # type: ignore[union-attr]
        C = C.detach().cpu().double().numpy() if _array.is_torch(C) else np.asarray(C, dtype=np.float64)
        xp: Any = _array.namespace(x)
        c = xp.asarray(C.reshape(len(C), -1), device=_array.device(x))
        G = xp.zeros((x.shape[0], c.shape[1], x.shape[1]), dtype=c.dtype, device=_array.device(x))
        # Blocks of rows x and y bound the memory: a few copies of rows and a few numbers per pair at a time.
        budget, per_row = working_memory(x), 24 * x.shape[1] * (c.shape[1] + 2)
        step = max(1, min(int((budget / 64) ** 0.5), budget // (4 * per_row)))
        for rows in row_batches(x.shape[0], 1, batch_size=step):
            for others in row_batches(y.shape[0], 1, batch_size=step):
                G[rows, ...] = G[rows, ...] + self.gradients(x[rows, :], y[others, :], c[others, :])
        G = G[:, 0, :] if C.ndim == 1 else G
        return _array.like(G, X) if on_host else G

    def on_sphere(self, t: np.ndarray) -> np.ndarray:
        """Return k(x, y) for unit vectors with the cosines t, in float64."""
        del t
        raise UnsupportedError(f"{self!r} is not a function of the cosine on the unit sphere.")

    @cached_property
    def at_one(self) -> float:
        """k(x, x) of a unit vector."""
        return float(self.on_sphere(np.ones(1))[0])

    def taylor(self, degree: int) -> np.ndarray:
        """Return the Taylor coefficients at 0 of the function of the cosine on the unit sphere; they are ≥ 0."""
        del degree
        raise UnsupportedError(f"The Taylor coefficients of {self!r} are not known.")

    def gegenbauer(self, degree: int, n_features: int) -> np.ndarray:
        """Return the coefficients of the Gegenbauer polynomials P_0 … P_q in dimension d, on the unit sphere.

        See :func:`ntkit.kernels.zonal.gegenbauer_coefficients`.
        """
        from ntkit.kernels.zonal import gegenbauer_coefficients

        return gegenbauer_coefficients(self, degree, n_features)

    @property
    def zonal(self) -> Zonal:
        """The kernel as a power series in the cosine whose weights depend on the norms."""
        raise UnsupportedError(f"{self!r} cannot be written as Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j.")

    # Subclasses implement or override the following methods.

    @property
    def calls_back(self) -> bool:
        """Whether a user-defined function receives the rows or their products.

        Arrays are then not converted to another library.
        """
        return False

    @property
    def n_outputs(self) -> int:
        """Number of matrices that `fill` writes."""
        return 1

    def check(self, X: Any, name: str = "X") -> Array:
        """Return validated data."""
        return check_data(X, name, self.owner, ndims=self.ndims, sparse=self.sparse)

    def specialize(self, X: Array) -> KernelSpec:
        """Return a faster kernel with the same values on data like `X` if there is one, else this kernel."""
        del X
        return self

    def prepare(self, X: Array) -> Rows:
        """Do the work that depends on single rows; by default none."""
        return Rows(X)

    @abstractmethod
    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Write the values of one tile into `outs`, arrays of shape (len(a), len(b))."""

    @abstractmethod
    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Return K(x, x) of every row."""

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """Compute the gradients for a block of rows, of shape (n, k, d), for C of shape (m, k)."""
        del X, Y, C
        raise UnsupportedError(f"The gradient of {self!r} is not known.")

    def bytes_per_pair(self, a: Rows) -> int:
        """Return the bytes per pair in a tile: one inner product on the host, a few float64 temporaries on a device."""
        return 8 if tiles.on_host(a.data) else 64

    def scratch_per_pair(self, a: Rows) -> int:
        """Return the total bytes per pair while its tile is computed; this limits the number of threads."""
        return self.bytes_per_pair(a)

    def bytes_per_row(self, a: Rows) -> int:
        """Return the scratch bytes per row of a tile."""
        return tiles.bytes_of_inner_products(a.data)

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Return the number of rows and columns of a tile."""
        return tiles.tile_shape(a, b, self.bytes_per_pair(a), self.bytes_per_row(a))

    def _traced(self, X: Array, Y: np.ndarray) -> tuple[Array, ...]:
        """Compute the matrices between traced rows and constant rows."""
        xp: Any = _array.namespace(X)
        kernel = self.specialize(X)
        if kernel.calls_back:
            raise UnsupportedError(f"A kernel with a user-defined function cannot be traced. Got {self!r}.")
        a, b = kernel.prepare(X), kernel.prepare(xp.asarray(Y))
        outs = [xp.empty((len(a), len(b)), dtype=X.dtype) for _ in range(kernel.n_outputs)]
        kernel.fill(a, b, outs)
        return tuple(outs)

    def _checked(self, X: Any, Y: Any) -> tuple[Array, Array | None, Callable[[Array], Array]]:
        """Return validated `X` and `Y`, and a function that converts results back to the library of `X`.

        CPU tensors become NumPy arrays that share their memory.
        """
        X = self.check(X)
        if Y is not None:
            Y = self.check(Y, "Y")
            check_same_kind(X, Y, self.owner)
        if not _array.is_torch(X):
            return X, Y, lambda K: K
        if _array.wants_gradient([Z for Z in (X, Y) if Z is not None]):
            return X, Y, lambda K: K
        views = [_array.host_view(Z) for Z in (X, Y) if Z is not None]
        if self.calls_back or any(view is None for view in views):
            return X.detach(), None if Y is None else Y.detach(), lambda K: K
        return views[0], None if Y is None else views[1], lambda K: _array.like(K, X)


DEEPEST = 4096
"""Largest depth of an estimator's kernel; every layer takes time and memory."""


def of_estimator(kernel: Any, own: dict[str, Any], params: dict[str, Any] | None, owner: str) -> KernelSpec:
    """Return the kernel of an estimator.

    The kernel receives the parameters in `own`, as far as it takes them, and the additional parameters in `params`.
    """
    if params is not None and not isinstance(params, dict):
        raise TypeError(message(owner, "kernel_params", "a dict or None", params))
    given = dict(params or {})
    takes = inspect.signature(_NAMES[kernel]).parameters if isinstance(kernel, str) and kernel in _NAMES else ()
    own = {name: value for name, value in own.items() if name in takes}
    if "depth" in own:
        check_int(own["depth"], "depth", owner, minimum=1, maximum=DEEPEST)
    if "lengthscale" in own:
        check_real(own["lengthscale"], "lengthscale", owner, minimum=0, strict=True)
    twice = sorted(own.keys() & given.keys() - {"order"})
    if twice:
        rule = f"a dict without {twice[0]!r}, which is a separate parameter of {owner}"
        raise ValueError(message(owner, "kernel_params", rule, given))
    return KernelSpec.resolve(kernel, own | given, owner)


def gram(kernel: KernelLike, X: Any, Y: Any = None, **params: Any) -> Array:
    """Compute the matrix of any kernel between the rows of `X` and `Y`.

    Parameters
    ----------
    kernel : str, Layer or callable
        A name, a network or a function ``kernel(X, Y, **params)``, see :meth:`KernelSpec.of`.
    X, Y : array
        Rows; None for `Y` means `X`.
    **params
        Parameters of the kernel; for a network ``kind="ntk"`` or ``"nngp"``.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> gram("ntk", [[1.0, 0.0]], depth=2)
    array([[3.]])
    """
    return KernelSpec.resolve(kernel, params, "gram").matrix(X, Y)


def diagonal(kernel: KernelLike, X: Any, **params: Any) -> Array:
    """Compute K(x, x) for every row of `X`, without forming the matrix.

    Parameters
    ----------
    kernel, X, **params
        As for :func:`gram`.

    Returns
    -------
    array of shape (n,)

    Examples
    --------
    >>> diagonal("ntk", [[3.0, 4.0], [0.0, 0.0]], depth=2)
    array([75.,  0.])
    """
    return KernelSpec.resolve(kernel, params, "diagonal").diagonal(X)


def row_blocks(
    kernel: KernelLike, X: Any, Y: Any = None, *, batch_size: int | None = None, **params: Any
) -> Iterator[tuple[slice, Array]]:
    """Iterate over blocks of rows of a kernel matrix, without forming the whole matrix.

    Parameters
    ----------
    kernel, X, Y, **params
        As for :func:`gram`. Work that depends on single rows of `Y` is done once.
    batch_size : int ≥ 1, default=None
        Rows per block. None chooses the largest block that fits in scikit-learn's ``working_memory`` (on a CUDA
        device, in a quarter of the free memory).

    Yields
    ------
    rows : slice
        Rows of `X`.
    block : array of shape (rows, m)
        The corresponding rows of the matrix.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(3)
    >>> for rows, K in row_blocks("gaussian", X, batch_size=2, lengthscale=1.0):
    ...     print(rows.start, rows.stop, K.shape)
    0 2 (2, 3)
    2 3 (1, 3)
    """
    spec = KernelSpec.resolve(kernel, params, "row_blocks")
    if batch_size is not None:
        check_int(batch_size, "batch_size", "row_blocks", minimum=1)
    return spec.blocks(X, Y, batch_size=batch_size)


def _build(builder: Callable[..., KernelSpec], name: str, params: dict[str, Any]) -> KernelSpec:
    try:
        inspect.signature(builder).bind(**params)
    except TypeError as error:
        known = ", ".join(inspect.signature(builder).parameters) or "none"
        raise TypeError(f"The kernel {name!r} takes the parameters {known}: {error}.") from error
    return builder(**params)


@dataclass(frozen=True)
class FunctionKernel(KernelSpec):
    """A user-defined function ``f(X, Y, **params)``, called once for the whole matrix or block."""

    function: Callable[..., Array]
    params: tuple[tuple[str, Any], ...] = ()
    owner: ClassVar[str] = "gram"
    ndims: ClassVar[Sequence[int]] = (2, 4)
    sparse: ClassVar[bool] = True
    symmetric: ClassVar[bool] = False

    @property
    def calls_back(self) -> bool:
        """Always True."""
        return True

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Call the function on the rows of the tile."""
        tiles.assign(outs[0], self._call(a, b))

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Call the function on each row separately, since nothing else is known about it."""
        rows = [a[i : i + 1] for i in range(len(a))]
        single = [self._call(row, row)[:, 0] for row in rows]
        return (_array.namespace(*single).concat(single),)

    def _call(self, a: Rows, b: Rows) -> Array:
        K = self.function(a.data, b.data, **dict(self.params))
        check_returned(K, (len(a), len(b)), "The kernel function")
        return K

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Return the whole shape, so that the function, which may be slow to call, is called once."""
        return len(a), len(b)


def check_returned(values: Any, shape: tuple[int, ...], what: str) -> None:
    """Raise unless a user-defined function returned a real array of the right shape."""
    if not _array.is_array(values) or tuple(values.shape) != shape:
        raise ValueError(f"{what} must return an array of shape {shape} here. Got {describe(values)} instead.")
    if not _array.namespace(values).isdtype(values.dtype, ("bool", "integral", "real floating")):
        raise TypeError(f"{what} must return real numbers. Got {describe(values)} instead.")
