"""Kernels by name: whole matrices, diagonals and row blocks of any of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_int, message
from ntkit.kernels._base import Kernel, Rows, evaluate, evaluate_blocks, evaluate_diagonal
from ntkit.kernels.dot_product import DotProduct, Exponential, Gaussian, Polynomial, assign, check_returned
from ntkit.kernels.network import Network, fully_connected_kernel
from ntkit.networks import Layer, cntk
from ntkit.networks._layers import Size

__all__ = ["diagonal", "gram", "row_blocks"]

KernelLike: TypeAlias = str | Layer | Callable[..., Array]


def gram(kernel: KernelLike, X: Any, Y: Any = None, **params: Any) -> Array:
    """Matrix of any kernel between the rows of `X` and `Y`.

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "polynomial", "exponential" or "dot_product"; or a network of
        :mod:`ntkit.networks`; or a function ``kernel(X, Y, **params)`` that returns the matrix.
    X, Y : array
        Rows; None for `Y` means `X`.
    **params
        Parameters of the kernel, for a network ``kind="ntk" | "nngp"``.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> gram("ntk", [[1.0, 0.0]], depth=2)
    array([[3.]])
    """
    return evaluate(resolve(kernel, params, "gram"), X, Y)[0]


def diagonal(kernel: KernelLike, X: Any, **params: Any) -> Array:
    """K(x, x) of every row of `X`, without the matrix.

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
    return evaluate_diagonal(resolve(kernel, params, "diagonal"), X)[0]


def row_blocks(
    kernel: KernelLike, X: Any, Y: Any = None, *, batch_size: int | None = None, **params: Any
) -> Iterator[tuple[slice, Array]]:
    """Iterate over blocks of rows of a kernel matrix that need never exist as a whole.

    Parameters
    ----------
    kernel, X, Y, **params
        As for :func:`gram`. Work that belongs to single rows of `Y` is done once.
    batch_size : int ≥ 1, default=None
        Rows per block; None fills scikit-learn's ``working_memory`` (a quarter of the free memory on a
        CUDA device).

    Yields
    ------
    rows : slice
        Rows of `X`.
    block : array of shape (rows, m)
        Their part of the matrix.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.eye(3)
    >>> for rows, K in row_blocks("gaussian", X, batch_size=2, lengthscale=1.0):
    ...     print(rows.start, rows.stop, K.shape)
    0 2 (2, 3)
    2 3 (1, 3)
    """
    resolved = resolve(kernel, params, "row_blocks")
    if batch_size is not None:
        check_int(batch_size, "batch_size", "row_blocks", minimum=1)

    blocks = evaluate_blocks(resolved, X, Y, batch_size=batch_size)
    return ((rows, matrices[0]) for rows, matrices in blocks)


def resolve(kernel: KernelLike, params: dict[str, Any], owner: str) -> Kernel:
    """Kernel object of a name, a network or a function, with its parameters checked."""
    if isinstance(kernel, Layer):
        resolved = _build(lambda *, kind="ntk": Network(kernel, kind), "network", params)
        if resolved.n_outputs > 1:
            raise ValueError(message(owner, "kind", "'ntk' or 'nngp'", params["kind"]))
        return resolved
    if isinstance(kernel, str) and kernel in _BUILDERS:
        return _build(_BUILDERS[kernel], kernel, params)
    if callable(kernel) and not isinstance(kernel, type):
        return FunctionKernel(kernel, tuple(params.items()))
    rule = "one of " + ", ".join(map(repr, _BUILDERS)) + ", a network or a function"
    raise ValueError(message(owner, "kernel", rule, kernel))


def _ntk(*, depth: int) -> Kernel:
    return fully_connected_kernel("ntk", depth)


def _nngp(*, depth: int) -> Kernel:
    return fully_connected_kernel("nngp", depth)


def _cntk(*, depth: int, kernel_size: Size = 3) -> Kernel:
    return Network(cntk(depth, kernel_size), "ntk", "cntk")


_BUILDERS: dict[str, Callable[..., Kernel]] = {
    "ntk": _ntk,
    "nngp": _nngp,
    "cntk": _cntk,
    "gaussian": Gaussian,
    "polynomial": Polynomial,
    "exponential": Exponential,
    "dot_product": DotProduct,
}


def _build(builder: Callable[..., Kernel], name: str, params: dict[str, Any]) -> Kernel:
    try:
        inspect.signature(builder).bind(**params)
    except TypeError as error:
        known = ", ".join(inspect.signature(builder).parameters)
        raise TypeError(f"The kernel {name!r} takes the parameters {known}: {error}.") from error
    return builder(**params)


@dataclass(frozen=True)
class FunctionKernel(Kernel):
    """A user's function ``f(X, Y, **params)``, called on tiles."""

    function: Callable[..., Array]
    params: tuple[tuple[str, Any], ...] = ()
    owner: ClassVar[str] = "gram"
    ndims: ClassVar[Sequence[int]] = (2, 4)
    sparse: ClassVar[bool] = True
    symmetric: ClassVar[bool] = False

    @property
    def calls_back(self) -> bool:
        """Always."""
        return True

    def prepare(self, X: Array) -> Rows:
        """Nothing to prepare."""
        return Rows(X)

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Call the function on the tile's rows."""
        assign(outs[0], self._call(a, b))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """Call the function on single rows: all that is known of it."""
        rows = [a[i : i + 1] for i in range(len(a))]
        single = [self._call(row, row)[:, 0] for row in rows]
        return (_array.namespace(*single).concat(single),)

    def _call(self, a: Rows, b: Rows) -> Array:
        K = self.function(a.data, b.data, **dict(self.params))
        check_returned(K, (len(a), len(b)), "The kernel function")
        return K

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """One call for everything asked for: the function may not be cheap to call."""
        return len(a), len(b)
