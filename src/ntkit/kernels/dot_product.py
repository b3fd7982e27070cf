"""Gaussian, polynomial, exponential and general dot-product kernels, functions of inner products and norms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_int, check_real, describe, message
from ntkit.kernels._base import Kernel, Rows, evaluate, on_host

__all__ = ["dot_product", "exponential", "gaussian", "polynomial"]

Function: TypeAlias = Callable[[Array], Array] | Sequence[float] | np.ndarray


def gaussian(X: Any, Y: Any = None, *, lengthscale: float = 1.0) -> Array:
    """Gaussian (RBF) kernel exp(−‖x − y‖² / (2 ℓ²)).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    lengthscale : float > 0, default=1.0
        ℓ; scikit-learn's ``gamma`` is 1/(2 ℓ²).

    Returns
    -------
    array of shape (n, m)
        Of the library, device and dtype of `X`.

    Examples
    --------
    >>> gaussian([[0.0, 0.0]], [[3.0, 4.0]], lengthscale=5.0)
    array([[0.60653066]])
    """
    return evaluate(Gaussian(lengthscale), X, Y)[0]


def polynomial(X: Any, Y: Any = None, *, degree: int = 2, coef0: float = 0.0, gamma: float = 1.0) -> Array:
    """Polynomial kernel (γ⟨x, y⟩ + c)^p.

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    degree : int ≥ 1, default=2
        p.
    coef0 : float ≥ 0, default=0.0
        c.
    gamma : float > 0, default=1.0
        γ.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> polynomial([[1.0, 2.0]], [[3.0, 4.0]], degree=2, coef0=1.0)
    array([[144.]])
    """
    return evaluate(Polynomial(degree, coef0, gamma), X, Y)[0]


def exponential(X: Any, Y: Any = None, *, lengthscale: float = 1.0) -> Array:
    """Exponential dot-product kernel exp(⟨x, y⟩ / ℓ²); the Gaussian is it times e^{−(‖x‖² + ‖y‖²)/(2ℓ²)}.

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    lengthscale : float > 0, default=1.0
        ℓ.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> exponential([[1.0, 0.0]], [[0.0, 1.0]])
    array([[1.]])
    """
    return evaluate(Exponential(lengthscale), X, Y)[0]


def dot_product(X: Any, Y: Any = None, *, function: Function) -> Array:
    """Dot-product kernel κ(⟨x, y⟩).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    function : callable or sequence of float
        κ itself, applied elementwise to float64 arrays of inner products (of the library of `X`), or its
        Taylor coefficients at 0, that of t^j at index j. It is a kernel in every dimension if and only
        if all Taylor coefficients are non-negative; this is not checked.

    Returns
    -------
    array of shape (n, m)

    Examples
    --------
    >>> import numpy as np
    >>> dot_product([[1.0, 2.0]], [[3.0, 0.0]], function=[1.0, 0.0, 2.0])
    array([[19.]])
    >>> dot_product([[1.0, 2.0]], [[3.0, 0.0]], function=np.cosh)
    array([[10.067662]])
    """
    return evaluate(DotProduct(function), X, Y)[0]


class VectorKernel(Kernel):
    """Kernel of rows that needs no work ahead of its tiles."""

    sparse: ClassVar[bool] = True

    def prepare(self, X: Array) -> Rows:
        """Nothing to prepare."""
        return Rows(X)

    def bytes_per_pair(self, a: Rows) -> int:
        """The inner product; a handful of float64 temporaries on a device."""
        return 8 if on_host(a.data) else 64


class InnerProductKernel(VectorKernel):
    """Kernel κ(⟨x, y⟩)."""

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Inner products by BLAS in float64, then the function."""
        assign(outs[0], self.apply(inner_products(a.data, b.data)))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """The function of ‖x‖²."""
        norms = row_norms(a.data)
        return (self.apply((norms * norms)[:, None])[:, 0],)

    @abstractmethod
    def apply(self, inner: Array) -> Array:
        """The function of a tile of inner products."""


@dataclass(frozen=True)
class Gaussian(VectorKernel):
    """Parameters of :func:`gaussian`."""

    lengthscale: float = 1.0
    owner: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check_real(self.lengthscale, "lengthscale", self.owner, minimum=0, strict=True)

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """exp(−(‖x‖² + ‖y‖² − 2⟨x, y⟩)/2), rows divided by ℓ.

        Dense rows are taken relative to a row of the tile: far from the origin the squares would cancel.
        """
        if _array.is_sparse(a.data):
            x, y = (Z.astype(np.float64) / self.lengthscale for Z in (a.data, b.data))
        else:
            origin = _array.widen(b.data[:1, :])
            x, y = ((_array.widen(Z) - origin) / self.lengthscale for Z in (a.data, b.data))
        xp = _array.namespace(outs[0])
        squares = (row_norms(x) ** 2)[:, None] + (row_norms(y) ** 2)[None, :] - 2 * inner_products(x, y)
        assign(outs[0], xp.exp(xp.clip(squares, 0, None) * -0.5))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """Ones."""
        if on_host(a.data):
            return (np.ones(len(a)),)
        return (_array.namespace(a.data).ones(len(a), dtype=_array.wide_dtype(a.data), device=_array.device(a.data)),)


@dataclass(frozen=True)
class Polynomial(InnerProductKernel):
    """Parameters of :func:`polynomial`."""

    degree: int = 2
    coef0: float = 0.0
    gamma: float = 1.0
    owner: ClassVar[str] = "polynomial"

    def __post_init__(self) -> None:
        check_int(self.degree, "degree", self.owner, minimum=1)
        check_real(self.coef0, "coef0", self.owner, minimum=0)
        check_real(self.gamma, "gamma", self.owner, minimum=0, strict=True)

    def apply(self, inner: Array) -> Array:
        """(γ t + c)^p."""
        return (self.gamma * inner + self.coef0) ** int(self.degree)


@dataclass(frozen=True)
class Exponential(InnerProductKernel):
    """Parameters of :func:`exponential`."""

    lengthscale: float = 1.0
    owner: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        check_real(self.lengthscale, "lengthscale", self.owner, minimum=0, strict=True)

    def apply(self, inner: Array) -> Array:
        """exp(t / ℓ²)."""
        return _array.namespace(inner).exp(inner / self.lengthscale / self.lengthscale)


@dataclass(frozen=True, eq=False)
class DotProduct(InnerProductKernel):
    """Parameters of :func:`dot_product`."""

    function: Function
    owner: ClassVar[str] = "dot_product"

    @property
    def calls_back(self) -> bool:
        """True for a function, false for coefficients."""
        return callable(self.function)

    def __post_init__(self) -> None:
        if callable(self.function) and not isinstance(self.function, type):
            return
        try:
            coefficients = np.asarray(self.function, dtype=np.float64)
        except (TypeError, ValueError):
            coefficients = np.empty(0)
        if coefficients.ndim != 1 or not coefficients.size or not np.isfinite(coefficients).all():
            rule = "a callable or a non-empty sequence of finite Taylor coefficients"
            raise ValueError(message(self.owner, "function", rule, self.function))
        object.__setattr__(self, "function", coefficients)

    def apply(self, inner: Array) -> Array:
        """κ(t), by Horner's rule from coefficients."""
        if callable(self.function):
            values = self.function(inner)
            check_returned(values, tuple(inner.shape), "The 'function' parameter of dot_product")
            return values
        value = _array.namespace(inner).zeros_like(inner)
        for coefficient in self.function[::-1]:
            value = value * inner + float(coefficient)
        return value


def row_norms(X: Array) -> Array:
    """Euclidean norms of the rows in float64, scaled by the largest entry so that squares cannot overflow."""
    if _array.is_sparse(X):
        top = np.abs(X).max(axis=1).toarray().ravel().astype(np.float64)
        scaled = divide_rows(X.astype(np.float64), top)
        return top * np.sqrt(np.asarray(scaled.multiply(scaled).sum(axis=1)).ravel())
    xp = _array.namespace(X)
    parts = []
    in_cache = max(1, 2**18 // X.shape[1]) if _array.is_numpy(X) else None
    for rows in row_batches(X.shape[0], 32 * X.shape[1], batch_size=in_cache, like=X):
        block = _array.widen(X[rows, :])
        top = xp.max(xp.abs(block), axis=1)
        scaled = divide_rows(block, top)
        parts.append(top * xp.sqrt(xp.sum(scaled * scaled, axis=1)))
    return xp.concat(parts)


def divide_rows(X: Array, divisors: Array) -> Array:
    """Rows of `X` over their divisors; rows with divisor zero stay as they are."""
    xp = _array.namespace(divisors)
    safe = xp.where(divisors > 0, divisors, xp.ones_like(divisors))
    if _array.is_sparse(X):
        quotient = X.copy()
        quotient.data = X.data / np.repeat(safe, np.diff(X.indptr))
        return quotient
    return X / safe[:, None]


def inner_products(A: Array, B: Array) -> Array:
    """A Bᵀ in float64."""
    if _array.is_sparse(A):
        return (A.astype(np.float64) @ B.astype(np.float64).T).toarray()
    xp = _array.namespace(A)
    return xp.matmul(_array.widen(A), xp.matrix_transpose(_array.widen(B)))


def check_returned(values: Any, shape: tuple[int, ...], what: str) -> None:
    """Raise unless a user's function returned a real array of the right shape."""
    if not _array.is_array(values) or tuple(values.shape) != shape:
        raise ValueError(f"{what} must return an array of shape {shape} here. Got {describe(values)} instead.")
    if not _array.namespace(values).isdtype(values.dtype, ("bool", "integral", "real floating")):
        raise TypeError(f"{what} must return real numbers. Got {describe(values)} instead.")


def assign(out: Array, values: Array) -> None:
    """Write `values` into `out`, cast to its dtype."""
    out[...] = _array.namespace(values).astype(values, out.dtype, copy=False)
