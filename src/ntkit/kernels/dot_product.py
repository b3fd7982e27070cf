"""Dot-product kernels κ(⟨x, y⟩), such as polynomial and exponential kernels, and kernels of the cosine."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_int, check_real, describe, message
from ntkit.kernels.arccos import arc_cosine_of_gap
from ntkit.kernels.chain import MIN_GAP, cosine_gradients, cosines_and_gaps
from ntkit.kernels.series import arc_cosine_taylor
from ntkit.kernels.spec import KernelSpec, check_returned
from ntkit.kernels.tiles import Rows, assign, inner_products, row_norms
from ntkit.networks import UnsupportedError

if TYPE_CHECKING:
    from ntkit.kernels.zonal import Zonal

__all__ = ["dot_product", "exponential", "polynomial"]

Function: TypeAlias = Callable[[Array], Array] | Sequence[float] | np.ndarray


def polynomial(X: Any, Y: Any = None, *, degree: int = 2, coef0: float = 0.0, gamma: float = 1.0) -> Array:
    """Compute the polynomial kernel (γ⟨x, y⟩ + c)^p.

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
    return Polynomial(degree, coef0, gamma).matrix(X, Y)


def exponential(X: Any, Y: Any = None, *, lengthscale: float = 1.0) -> Array:
    """Compute the exponential dot-product kernel exp(⟨x, y⟩ / ℓ²).

    The Gaussian kernel is this kernel times e^{−(‖x‖² + ‖y‖²)/(2ℓ²)}.

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
    return Exponential(lengthscale).matrix(X, Y)


def dot_product(X: Any, Y: Any = None, *, function: Function) -> Array:
    """Compute the dot-product kernel κ(⟨x, y⟩).

    Parameters
    ----------
    X : array or CSR of shape (n, d)
    Y : array or CSR of shape (m, d), default=None
        None means `X`.
    function : callable or sequence of float
        Either κ, called on the calling thread, tile by tile, with float64 arrays of inner products (of the library of
        `X`), and applied elementwise; or the Taylor coefficients of κ at 0, with the coefficient of t^j at index j. κ
        is a kernel in every dimension if and only if all Taylor coefficients are non-negative; this is not checked.

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
    return DotProduct(function).matrix(X, Y)


class InnerProductKernel(KernelSpec):
    """Kernel κ(⟨x, y⟩)."""

    sparse: ClassVar[bool] = True

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Compute inner products by BLAS in float64, then apply the function."""
        assign(outs[0], self.apply(inner_products(a.data, b.data)))

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Return κ(‖x‖²)."""
        norms = row_norms(a.data)
        return (self.apply((norms * norms)[:, None])[:, 0],)

    @abstractmethod
    def apply(self, inner: Array) -> Array:
        """Return κ for a tile of inner products."""

    def slope(self, inner: Array) -> Array:
        """Return κ′ for a tile of inner products."""
        del inner
        raise UnsupportedError(f"The derivative of {self!r} is not known.")

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """Return Σ_j c_j κ′(⟨x, y_j⟩) y_j."""
        xp: Any = _array.namespace(X)
        slopes = self.slope(inner_products(X, Y))
        Y = _array.widen(Y)
        return xp.stack([xp.matmul(slopes * C[:, k][None, :], Y) for k in range(C.shape[1])], axis=1)

    def on_sphere(self, t: np.ndarray) -> np.ndarray:
        """See :meth:`KernelSpec.on_sphere`; equals κ."""
        return self.apply(np.asarray(t, dtype=np.float64))

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`."""
        return self.zonal.taylor(degree)

    def scratch_per_pair(self, a: Rows) -> int:
        """Return the bytes for an inner product and the temporaries of the function."""
        return max(24, self.bytes_per_pair(a))


@KernelSpec.register("polynomial")
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
        """Return (γ t + c)^p."""
        return (self.gamma * inner + self.coef0) ** int(self.degree)

    def slope(self, inner: Array) -> Array:
        """Return p γ (γ t + c)^{p−1}."""
        return self.degree * self.gamma * (self.gamma * inner + self.coef0) ** int(self.degree - 1)

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`; the Taylor coefficients are binomial."""
        from ntkit.kernels.zonal import Series

        return Series(logs=binomial_logs(self.degree, self.gamma, self.coef0))


@KernelSpec.register("exponential")
@dataclass(frozen=True)
class Exponential(InnerProductKernel):
    """Parameters of :func:`exponential`."""

    lengthscale: float = 1.0
    owner: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        check_real(self.lengthscale, "lengthscale", self.owner, minimum=0, strict=True)

    def apply(self, inner: Array) -> Array:
        """Return exp(t / ℓ²)."""
        return _array.namespace(inner).exp(inner / self.lengthscale / self.lengthscale)

    def slope(self, inner: Array) -> Array:
        """Return exp(t / ℓ²)/ℓ²."""
        return self.apply(inner) / self.lengthscale / self.lengthscale

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`."""
        from ntkit.kernels.zonal import Series

        return Series(lengthscale=self.lengthscale)


@KernelSpec.register("dot_product")
@dataclass(frozen=True)
class DotProduct(InnerProductKernel):
    """Parameters of :func:`dot_product`."""

    function: Function
    owner: ClassVar[str] = "dot_product"

    @property
    def calls_back(self) -> bool:
        """True if `function` is a callable, False for coefficients."""
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
        object.__setattr__(self, "function", tuple(coefficients.tolist()))

    def apply(self, inner: Array) -> Array:
        """Return κ(t), computed from coefficients by Horner's rule."""
        if callable(self.function):
            values = self.function(inner)
            check_returned(values, tuple(inner.shape), "The 'function' parameter of dot_product")
            return values
        return _horner(self.function, inner)

    def slope(self, inner: Array) -> Array:
        """Return κ′(t), which is known for coefficients only."""
        if callable(self.function):
            return super().slope(inner)
        return _horner([j * a for j, a in enumerate(self.function)][1:] or [0.0], inner)

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`; for coefficients ≥ 0."""
        from ntkit.kernels.zonal import Series

        if callable(self.function):
            return super().zonal
        coefficients = np.asarray(self.function)
        if (coefficients < 0).any() or not coefficients.any():
            raise ValueError(message(self.owner, "function", "coefficients ≥ 0, not all 0", self.function))
        with np.errstate(divide="ignore"):
            return Series(logs=np.log(coefficients))


class CosineKernel(KernelSpec):
    """Kernel ‖x‖^p ‖y‖^p κ(cos(x, y)); it is 0 for zero rows, even if p = 0."""

    power: int
    sparse: ClassVar[bool] = True

    def prepare(self, X: Array) -> Rows:
        """Compute the norms of the rows."""
        return Rows(X, {"norm": row_norms(X)})

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Compute cosines by BLAS, recompute those near ±1 from differences, then apply κ."""
        values = self.apply(*cosines_and_gaps(a, b))
        assign(outs[0], self._scales(a)[:, None] * values * self._scales(b)[None, :])

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Return κ(1) ‖x‖^{2p}."""
        return (self.at_one * self._scales(a) ** 2,)

    @abstractmethod
    def apply(self, t: Array, gap: Array) -> Array:
        """Return κ(t); `gap` is 1 − |t|, which is more accurate near ±1."""

    def slope(self, t: Array, gap: Array) -> Array:
        """Return κ′(t); `gap` is 1 − |t|."""
        raise UnsupportedError(f"The derivative of {self!r} is not known.")

    def gradients(self, X: Array, Y: Array, C: Array) -> Array:
        """See :func:`ntkit.kernels.chain.cosine_gradients`."""
        return cosine_gradients(X, Y, C, self.power, lambda t, gap: (self.apply(t, gap), self.slope(t, gap)))

    def on_sphere(self, t: np.ndarray) -> np.ndarray:
        """See :meth:`KernelSpec.on_sphere`."""
        t = np.asarray(t, dtype=np.float64)
        return self.apply(t, 1 - np.abs(t))

    @property
    def zonal(self) -> Zonal:
        """See :meth:`KernelSpec.zonal`."""
        from ntkit.kernels.zonal import Homogeneous

        return Homogeneous(self.on_sphere, self.power, self.taylor)

    def bytes_per_pair(self, a: Rows) -> int:
        """Return the size of a few float64 temporaries."""
        return 64

    def _scales(self, a: Rows) -> Array:
        norms = a.stats["norm"]
        xp = _array.namespace(norms)
        return xp.where(norms > 0, norms**self.power, xp.zeros_like(norms))


@KernelSpec.register("zonal")
@dataclass(frozen=True)
class Cosine(CosineKernel):
    """Kernel with a user-defined κ, which is called with float64 NumPy arrays on the calling thread."""

    function: Callable[[np.ndarray], Any]
    power: int = 1
    owner: ClassVar[str] = "zonal"

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise TypeError(message(self.owner, "function", "a function that takes arrays of cosines", self.function))
        check_int(self.power, "power", self.owner, minimum=0)

    @property
    def calls_back(self) -> bool:
        """Always True."""
        return True

    def apply(self, t: Array, gap: Array) -> Array:
        """See :meth:`CosineKernel.apply`."""
        host = t.cpu().numpy() if _array.is_torch(t) else np.array(t)
        values = np.asarray(self.function(host.copy()))
        if values.shape != host.shape or values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise ValueError(
                f"The 'kernel' function must return finite real numbers in an array of the same shape as its argument, "
                f"here {host.shape}. Got {describe(values)} instead."
            )
        return _array.namespace(t).asarray(values.astype(np.float64), device=_array.device(t))


@KernelSpec.register("arc_cosine")
@dataclass(frozen=True)
class ArcCosine(CosineKernel):
    """Arc-cosine kernel ‖x‖^p ‖y‖^p κ_p(cos), p = `order` (Cho and Saul)."""

    order: int = 1
    owner: ClassVar[str] = "arc_cosine"

    def __post_init__(self) -> None:
        check_int(self.order, "order", self.owner, minimum=0, maximum=2)

    @property
    def power(self) -> int:  # type: ignore[override]
        """The power p, which equals the order."""
        return self.order

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`; for orders 0 and 1."""
        return super().taylor(degree) if self.order == 2 else arc_cosine_taylor(self.order, degree)

    def apply(self, t: Array, gap: Array) -> Array:
        """See :meth:`CosineKernel.apply`."""
        return arc_cosine_of_gap(t, gap, self.order)

    def slope(self, t: Array, gap: Array) -> Array:
        """Return κ₀′ = 1/(π√(1 − t²)), κ₁′ = κ₀ or κ₂′ = 4κ₁/3."""
        if self.order == 0:
            return _step_slope(gap)
        return arc_cosine_of_gap(t, gap, self.order - 1) * (1.0 if self.order == 1 else 4 / 3)


@KernelSpec.register("hidden_ntk")
@dataclass(frozen=True)
class HiddenNTK(CosineKernel):
    """‖x‖‖y‖ cos κ₀(cos)/2: the NTK of the hidden layer of a ReLU network of depth 1."""

    owner: ClassVar[str] = "hidden_ntk"
    power: ClassVar[int] = 1  # type: ignore[misc]

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`KernelSpec.taylor`."""
        return 0.5 * np.concatenate([[0.0], arc_cosine_taylor(0, max(degree - 1, 0))])[: degree + 1]

    def apply(self, t: Array, gap: Array) -> Array:
        """See :meth:`CosineKernel.apply`."""
        return 0.5 * t * arc_cosine_of_gap(t, gap, 0)

    def slope(self, t: Array, gap: Array) -> Array:
        """Return ½(κ₀ + tκ₀′)."""
        return 0.5 * (arc_cosine_of_gap(t, gap, 0) + t * _step_slope(gap))


def binomial_logs(degree: int, gamma: float, coef0: float) -> np.ndarray:
    """Return the logarithms of the coefficients of t^j in (γt + c)^p."""
    from scipy.special import gammaln, xlogy

    j = np.arange(degree + 1)
    with np.errstate(divide="ignore"):
        logs = gammaln(degree + 1) - gammaln(j + 1) - gammaln(degree - j + 1)
        return logs + xlogy(j, gamma) + xlogy(degree - j, coef0)


def _step_slope(gap: Array) -> Array:
    """Return κ₀′ for 1 − |t| = `gap`."""
    return (_array.namespace(gap).clip(gap, MIN_GAP, None) * (2 - gap)) ** -0.5 / math.pi


def _horner(coefficients: Any, t: Array) -> Array:
    value = _array.namespace(t).zeros_like(t)
    for coefficient in coefficients[::-1]:
        value = value * t + float(coefficient)
    return value
