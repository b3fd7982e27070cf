"""Gegenbauer polynomials and generalized zonal kernels, which are series of Gegenbauer polynomials.

For x, y in R^d with cosine t and norms r, r', a generalized zonal kernel [1]_ is

    k(x, y) = Σ_ℓ ⟨h_ℓ(r), h_ℓ(r')⟩ P_ℓ(t).

P_ℓ is the Gegenbauer polynomial of degree ℓ in dimension d with P_ℓ(1) = 1 (Chebyshev for d = 2, Legendre for d = 3),
and h_ℓ(r) is a vector of radial functions. P_ℓ(⟨u, v⟩) = (1/α_ℓ) Σ_k Y_k(u) Y_k(v), summed over the α_ℓ orthonormal
spherical harmonics of degree ℓ, so P_ℓ(⟨u, v⟩) = α_ℓ E_w P_ℓ(⟨u, w⟩) P_ℓ(⟨v, w⟩) for w uniform on the sphere.

.. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022, Definition 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, lgamma, log
from typing import Any, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._state import reserve
from ntkit._validation import check_int, check_real, message
from ntkit.kernels.spec import KernelLike, KernelSpec, of_estimator
from ntkit.networks import Layer, UnsupportedError

__all__ = [
    "gegenbauer",
    "gegenbauer_coefficients",
    "gegenbauer_series",
    "harmonic_dimension",
    "radial_functions",
    "taylor_to_gegenbauer",
]

ZonalLike: TypeAlias = KernelLike | KernelSpec | Sequence[float] | np.ndarray
NAMES = ("ntk", "nngp", "gaussian", "exponential", "polynomial", "arc_cosine", "hidden_ntk")
_EPS = float(np.finfo(np.float64).eps)
_PRECISE = 1e-10  # coefficients with a smaller error, relative to κ(1), are not refined further
_TERMS = (512, 2048, 8192)  # numbers of Taylor terms, tried in this order
_LARGEST_LOG = 345.0  # logarithms are clipped here, since the square of e^345 is still finite in float64
_MAX_TAYLOR = 1001  # most Taylor coefficients that a user may pass


def gegenbauer(t: Any, degree: int, n_features: int) -> Array:
    """Evaluate the Gegenbauer polynomials P_0 … P_q in dimension d, with P_ℓ(1) = 1.

    P_0 = 1, P_1 = t, P_ℓ = ((2ℓ + d − 4) t P_{ℓ−1} − (ℓ − 1) P_{ℓ−2})/(ℓ + d − 3). The recursion is stable on [−1, 1].

    Parameters
    ----------
    t : array
        Cosines.
    degree : int ≥ 0
        q; at most 1 for d = 1, where the sphere is {−1, 1}.
    n_features : int ≥ 1
        d.

    Returns
    -------
    array of shape ``(degree + 1, *t.shape)``

    Examples
    --------
    >>> from ntkit.kernels.zonal import gegenbauer
    >>> gegenbauer([0.5], 3, 3)[:, 0]  # Legendre
    array([ 1.    ,  0.5   , -0.125 , -0.4375])
    """
    degree, d = _sizes(degree, n_features, "gegenbauer")
    t = _floats(t)
    xp = _array.namespace(t)
    values = [xp.ones_like(t), t]
    for k in range(2, degree + 1):
        step, back = recursion(k, d)
        values.append(step * t * values[-1] - back * values[-2])
    return xp.stack(values[: degree + 1])


def _floats(t: Any) -> Array:
    """Return the cosines as a floating-point array; integers become the widest floats."""
    t = t if _array.is_array(t) else np.asarray(t, dtype=np.float64)
    return t if _array.namespace(t).isdtype(t.dtype, "real floating") else _array.widen(t)


def recursion(degree: int, n_features: int) -> tuple[float, float]:
    """Return the factors a, b of P_ℓ = a t P_{ℓ−1} − b P_{ℓ−2} for ℓ ≥ 2, d ≥ 2."""
    bottom = degree + n_features - 3
    return (2 * degree + n_features - 4) / bottom, (degree - 1) / bottom


def harmonic_dimension(degree: int, n_features: int) -> int:
    """Return the dimension α_ℓ of the spherical harmonics of degree ℓ in R^d.

    α_ℓ = C(d + ℓ − 1, ℓ) − C(d + ℓ − 3, ℓ − 2).

    Parameters
    ----------
    degree : int ≥ 0
    n_features : int ≥ 1

    Returns
    -------
    int

    Examples
    --------
    >>> from ntkit.kernels.zonal import harmonic_dimension
    >>> [harmonic_dimension(degree, 3) for degree in range(4)]
    [1, 3, 5, 7]
    """
    degree = check_int(degree, "degree", "harmonic_dimension", minimum=0)
    d = check_int(n_features, "n_features", "harmonic_dimension", minimum=1)
    if d == 1:
        return int(degree < 2)
    return comb(d + degree - 1, degree) - (comb(d + degree - 3, degree - 2) if degree > 1 else 0)


def gegenbauer_coefficients(
    kernel: ZonalLike, degree: int, n_features: int, *, depth: int = 1, power: int = 1
) -> np.ndarray:
    """Compute the coefficients c_0 … c_q of κ(t) = Σ_ℓ c_ℓ P_ℓ(t) in dimension d.

    c_ℓ = α_ℓ ∫ κ P_ℓ (1 − t²)^{(d−3)/2} dt / ∫ (1 − t²)^{(d−3)/2} dt. κ is a kernel on the sphere in R^d if and only if
    all c_ℓ ≥ 0 (Schoenberg). For the NTK, c_ℓ is the square of the radial function h_ℓ (Lemma 16 of [1]_).

    Parameters
    ----------
    kernel : str, KernelSpec, callable or sequence of float
        κ: "ntk" (K_relu^(L)), "nngp" (Σ_relu^(L)), "arc_cosine", "exponential" (e^t), "gaussian" (e^{t−1}, the Gaussian
        kernel of unit vectors), "laplace" (e^{−√(2−2t)}); another :class:`ntkit.kernels.KernelSpec`; a function that
        takes arrays of cosines; or Taylor coefficients, with the coefficient of t^j at index j.
    degree : int ≥ 0
        q; at most 1 for d = 1.
    n_features : int ≥ 1
        d.
    depth : int ≥ 1
        L of "ntk" and "nngp".
    power : {0, 1, 2}
        Order of "arc_cosine".

    Returns
    -------
    ndarray of shape (degree + 1,)

    Raises
    ------
    ValueError
        If the coefficients of a function are lost in rounding: an error of 10⁻¹⁶ in its values causes an error of
        √α_ℓ 10⁻¹⁶ in c_ℓ.

    Notes
    -----
    Two methods are combined; for each degree the more accurate one is used. The first is Gauss–Legendre quadrature over
    the angle θ, t = cos θ. It converges exponentially for every function that is analytic in θ, such as arc-cosine
    kernels, whose singularities at t = ±1 would slow down Gauss–Gegenbauer quadrature in t. Its error is about √α_ℓ ε.
    The second, for named kernels, is a sum of Taylor coefficients (:func:`taylor_to_gegenbauer`) without cancellation.
    It converges quickly in high dimensions, where α_ℓ is large.

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022, Eq. (7).

    Examples
    --------
    >>> from ntkit.kernels.zonal import gegenbauer_coefficients
    >>> gegenbauer_coefficients("ntk", 3, 3).round(6)
    array([0.5     , 1.      , 0.390625, 0.      ])
    >>> gegenbauer_coefficients([0, 0, 1.0], 2, 3).round(6)  # t² = 1/3 + 2/3 P₂
    array([0.333333, 0.      , 0.666667])
    """
    name = "gegenbauer_coefficients"
    degree, d = _sizes(degree, n_features, name)
    spec = zonal_kernel(kernel, name, depth=depth, power=power, lengthscale=1.0)
    try:
        series = spec.zonal
    except UnsupportedError:  # distance kernels: only their values on the sphere are needed
        series = Homogeneous(spec.on_sphere, 1, spec.taylor)
    if isinstance(series, Series):
        n_terms = degree + 400 if series.n_taylor is None else series.n_taylor - 1
        return taylor_to_gegenbauer(series.taylor(n_terms + 2 * series.n_terms(1.0)), degree, d)
    assert isinstance(series, Homogeneous)
    return series.precise_coefficients(degree, d)[0]


def gegenbauer_series(coefficients: Any, t: Any, n_features: int) -> Array:
    """Evaluate Σ_ℓ c_ℓ P_ℓ(t) in dimension d.

    Parameters
    ----------
    coefficients : sequence of float
        c_ℓ at index ℓ.
    t : array
        Cosines.
    n_features : int ≥ 1
        d.

    Returns
    -------
    array of the same shape as t

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.kernels.zonal import gegenbauer_coefficients, gegenbauer_series
    >>> t = np.linspace(-1, 1, 5)
    >>> c = gegenbauer_coefficients("exponential", 16, 4)
    >>> bool(np.abs(gegenbauer_series(c, t, 4) - np.exp(t)).max() < 1e-14)
    True
    """
    c = _check_coefficients(coefficients, "gegenbauer_series")
    degree, d = _sizes(len(c) - 1, n_features, "gegenbauer_series")
    t = _floats(t)
    previous, value = _array.namespace(t).ones_like(t), t
    total = float(c[0]) * previous + (float(c[1]) * value if degree else 0.0)
    for k in range(2, degree + 1):
        step, back = recursion(k, d)
        previous, value = value, step * t * value - back * previous
        total = total + float(c[k]) * value
    return total


def taylor_to_gegenbauer(coefficients: Any, degree: int, n_features: int) -> np.ndarray:
    """Convert Taylor coefficients to Gegenbauer coefficients: Σ_j a_j t^j has c_ℓ = Σ_i b_{ℓ,i} a_{ℓ+2i}.

    b_{ℓ,i} = α_ℓ 2^{−ℓ} Γ(d/2)/√π (ℓ + 2i)!/(2i)! Γ(i + ½)/Γ(i + ℓ + d/2) is the coefficient of P_ℓ in t^{ℓ+2i}
    (Lemma 4 of [1]_). It is positive, so there is no cancellation if all a_j ≥ 0.

    Parameters
    ----------
    coefficients : sequence of float
        a_j at index j.
    degree : int ≥ 0
        Highest ℓ; at most 1 for d = 1.
    n_features : int ≥ 1
        d.

    Returns
    -------
    ndarray of shape (degree + 1,)

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022.

    Examples
    --------
    >>> from ntkit.kernels.zonal import taylor_to_gegenbauer
    >>> taylor_to_gegenbauer([0, 0, 0, 1.0], 3, 2)  # 4 t³ = 3 T₁ + T₃
    array([0.  , 0.75, 0.  , 0.25])
    """
    degree, d = _sizes(degree, n_features, "taylor_to_gegenbauer")
    a = _check_coefficients(coefficients, "taylor_to_gegenbauer")
    c = np.zeros(degree + 1)
    for k in range(min(degree + 1, len(a))):
        part = a[k::2]
        c[k] = float(np.exp(log_parts(k, len(part), d)) @ part)
    return c


def log_parts(degree: int, order: int, n_features: int) -> np.ndarray:
    """Return log b_{ℓ,i} for i < order, see :func:`taylor_to_gegenbauer`."""
    from scipy.special import gammaln

    half = n_features / 2
    i = np.arange(order)
    constant = _log_dimension(degree, n_features) - degree * log(2) + lgamma(half) - 0.5 * log(np.pi)
    powers = gammaln(degree + 2 * i + 1) - gammaln(2 * i + 1)
    return constant + powers + gammaln(i + 0.5) - gammaln(i + degree + half)


def radial_functions(
    kernel: ZonalLike,
    r: Any,
    degree: int,
    order: int,
    n_features: int,
    *,
    lengthscale: float = 1.0,
    depth: int = 1,
    power: int = 1,
) -> np.ndarray:
    """Compute the radial functions h_{ℓ,i}(r) of k(x, y) = Σ_ℓ Σ_i h_{ℓ,i}(‖x‖) h_{ℓ,i}(‖y‖) P_ℓ(cos(x, y)).

    - Dot-product kernels Σ_j a_j ⟨x, y⟩^j have h_{ℓ,i}(r) = √(a_{ℓ+2i} b_{ℓ,i}) r^{ℓ+2i}, with b as in
      :func:`taylor_to_gegenbauer` (Lemma 4 of [1]_).
    - The Gaussian kernel exp(−‖x − y‖²/2) has the radial functions of e^{⟨x,y⟩} times e^{−r²/2} (Lemma 15).
    - The NTK and other kernels ‖x‖^p ‖y‖^p κ(cos) have a single function h_ℓ(r) = √c_ℓ r^p (Lemma 16).

    Parameters
    ----------
    kernel : str, callable or sequence of float
        "gaussian", "exponential" (exp(⟨x, y⟩/ℓ²)), "ntk", "nngp", "arc_cosine"; a function κ of the cosine; or the
        Taylor coefficients a_j of a dot-product kernel.
    r : array of shape (n,)
        Norms.
    degree : int ≥ 0
        Highest ℓ; at most 1 for d = 1.
    order : int ≥ 1
        Number s of radial functions for each ℓ. For kernels with a single h_ℓ, such as the NTK, the others are 0.
    n_features : int ≥ 1
        d.
    lengthscale : float > 0
        Length scale of "gaussian" and "exponential".
    depth : int ≥ 1
        L of "ntk" and "nngp".
    power : int ≥ 0
        p for a function κ; the order, which is also the power, of "arc_cosine".

    Returns
    -------
    ndarray of shape (n, degree + 1, order)

    References
    ----------
    .. [1] Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022.

    Examples
    --------
    >>> from ntkit.kernels.zonal import radial_functions
    >>> h = radial_functions("gaussian", [1.0, 2.0], 20, 20, 3)
    >>> (h**2).sum(axis=(1, 2)).round(12)  # k(x, x)
    array([1., 1.])
    """
    name = "radial_functions"
    degree, d = _sizes(degree, n_features, name)
    order = check_int(order, "order", name, minimum=1)
    r = np.asarray(r, dtype=np.float64)
    if r.ndim != 1 or not np.isfinite(r).all() or (r < 0).any():
        raise ValueError(message(name, "r", "a 1-D array of finite numbers ≥ 0", r))
    spec = zonal_kernel(kernel, name, depth=depth, power=power, lengthscale=lengthscale)
    return spec.zonal.radial(r, degree, order, d)


class Zonal(ABC):
    """k(x, y) = Σ_ℓ ⟨h_ℓ(r), h_ℓ(r')⟩ P_ℓ(t) = Σ_j w_j(r) w_j(r') t^j for norms r, r' and cosine t."""

    @abstractmethod
    def radial(self, r: np.ndarray, degree: int, order: int, n_features: int) -> np.ndarray:
        """Return h_{ℓ,i}(r), an array of shape (n, degree + 1, order)."""

    @abstractmethod
    def diagonal(self, r: np.ndarray) -> np.ndarray:
        """Return k(x, x) for vectors with the norms r."""

    @abstractmethod
    def log_coefficients(self, degree: int) -> np.ndarray:
        """Return log a_j for the Taylor coefficients a_j, j ≤ `degree`; −∞ where a_j = 0."""

    @abstractmethod
    def log_weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """Return log w_j(r) for norms r > 0, with shape (norms, degrees)."""

    @abstractmethod
    def log_trace(self, norms: np.ndarray) -> float:
        """Return the logarithm of the sum of k(x, x) over all norms r > 0."""

    @property
    def n_taylor(self) -> int | None:
        """Number of Taylor coefficients; None if there are infinitely many."""
        return None

    @abstractmethod
    def taylor(self, degree: int) -> np.ndarray:
        """Return the Taylor coefficients in the cosine of unit vectors."""

    @property
    def at_zero(self) -> float:
        """w_0(0); at norm zero the weights of all other degrees are 0."""
        return 0.0

    def weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """Return w_j(r), with shape (norms, degrees)."""
        xp: Any = _array.namespace(norms)
        positive = norms > 0
        safe = xp.where(positive, norms, xp.ones_like(norms))
        with np.errstate(over="ignore"):  # the kernel itself may overflow
            values = xp.exp(self.log_weights(safe, degrees))
        return xp.where(positive[:, None], values, _array.constant(self.at_zero * (degrees == 0), norms))


@dataclass(frozen=True, eq=False)
class Homogeneous(Zonal):
    """The kernel ‖x‖^p ‖y‖^p κ(cos(x, y)), with w_j(r) = √a_j r^p.

    `values` is κ, `power` is p, and `series` returns the Taylor coefficients a_j of κ up to a degree (or raises if
    they are not known).
    """

    values: Callable[[np.ndarray], np.ndarray]
    power: int
    series: Callable[[int], np.ndarray]

    def radial(self, r: np.ndarray, degree: int, order: int, n_features: int) -> np.ndarray:
        """Return √c_ℓ r^p for i = 0, and 0 for i > 0."""
        c, errors = self.precise_coefficients(degree, n_features)
        out = np.zeros((len(r), degree + 1, order))
        out[:, :, 0] = (r**self.power)[:, None] * np.sqrt(non_negative(c, errors, n_features))
        return out

    def diagonal(self, r: np.ndarray) -> np.ndarray:
        """Return κ(1) r^{2p}."""
        return self.at_one * r ** (2 * self.power)

    @property
    def at_one(self) -> float:
        """κ(1)."""
        return float(self.values(np.ones(1))[0])

    def log_coefficients(self, degree: int) -> np.ndarray:
        """See :meth:`Zonal.log_coefficients`."""
        with np.errstate(divide="ignore"):
            return np.log(self.series(degree))

    def taylor(self, degree: int) -> np.ndarray:
        """See :meth:`Zonal.taylor`."""
        return self.series(degree)

    def log_weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """See :meth:`Zonal.log_weights`."""
        a = self.log_coefficients(int(degrees.max()))[degrees]
        return _array.constant(0.5 * a, norms) + self.power * _array.namespace(norms).log(norms)[:, None]

    def log_trace(self, norms: np.ndarray) -> float:
        """See :meth:`Zonal.log_trace`."""
        return float(np.logaddexp.reduce(2 * self.power * np.log(norms))) + log(self.at_one)

    def precise_coefficients(self, degree: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`coefficients`, but raise an error if a coefficient is lost in rounding."""
        values, errors = self.coefficients(degree, n_features)
        worst = int(np.argmax(errors))
        if not errors[worst] <= 1e-6 * max(float(np.abs(values).sum()), 1e-300):
            raise ValueError(
                f"The coefficient of degree {worst} of this function in dimension {n_features} is lost in rounding "
                f"(its error may be {errors[worst]:.1e}). Use a lower degree, or give Taylor coefficients."
            )
        return values, errors

    def coefficients(self, degree: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Compute c_0 … c_q and estimates of their rounding errors; κ should be smooth in the angle."""
        t, weights = _angles(degree, n_features)
        values = self.values(t)
        with np.errstate(over="ignore", invalid="ignore"):  # infinite dimensions have infinite errors
            dimensions = np.exp([_log_dimension(k, n_features) for k in range(degree + 1)])
            c = dimensions * (gegenbauer(t, degree, n_features) @ (weights * values))
            c = np.where(np.isfinite(c), c, 0.0)
            rounding = (4 + n_features / 100) * _EPS  # includes the rounding of sin^{d−2}
            errors = rounding * np.sqrt(dimensions * (weights @ values**2))
        try:
            return self._with_taylor(c, errors, n_features)
        except UnsupportedError:
            return c, errors

    def _with_taylor(self, c: np.ndarray, errors: np.ndarray, n_features: int) -> tuple[np.ndarray, np.ndarray]:
        """Replace coefficients by sums of Taylor coefficients where these are more accurate."""
        top = self.at_one
        for n_terms in _TERMS:
            worse = np.flatnonzero(errors > _PRECISE * top)
            worse = worse[worse < n_terms - 1]
            if not worse.size:
                continue
            a = self.taylor(n_terms)
            rest = max(top - float(a.sum()), 0.0)
            for k in worse.tolist():
                parts = np.exp(log_parts(k, (n_terms - k) // 2 + 1, n_features))
                # Once b decreases, the omitted terms have smaller b than the last one.
                error = rest * (parts[-1] if parts[-1] < parts[-2] else 1.0) + 4 * _EPS * top
                if error < errors[k]:
                    c[k], errors[k] = float(parts @ a[k::2]), error
        return c, errors


@dataclass(frozen=True, eq=False)
class Series(Zonal):
    """The kernel g(x) g(y) Σ_j a_j ⟨x, y⟩^j/ℓ^{2j}, with w_j(r) = √a_j (r/ℓ)^j g.

    g(x) = e^{−‖x‖²/(2ℓ²)} if `damped`, else 1.
    """

    lengthscale: float = 1.0
    damped: bool = False
    logs: np.ndarray | None = None
    """Logarithms of all a_j; None means the exponential, a_j = 1/j!."""

    @property
    def n_taylor(self) -> int | None:
        """See :meth:`Zonal.n_taylor`."""
        return None if self.logs is None else len(self.logs)

    @property
    def at_zero(self) -> float:
        """√a_0."""
        return float(np.exp(0.5 * self.log_coefficients(0)[0]))

    def log_coefficients(self, degree: int) -> np.ndarray:
        """See :meth:`Zonal.log_coefficients`."""
        from scipy.special import gammaln

        if self.logs is None:
            return -gammaln(np.arange(degree + 1) + 1.0)
        return np.pad(self.logs, (0, max(degree + 1 - len(self.logs), 0)), constant_values=-np.inf)[: degree + 1]

    def log_weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """See :meth:`Zonal.log_weights`."""
        xp: Any = _array.namespace(norms)
        a = self.log_coefficients(int(degrees.max()))[degrees]
        halves, powers = (_array.constant(v, norms) for v in (0.5 * a, degrees))
        logs = xp.log(norms)[:, None] - log(self.lengthscale)
        if not self.damped:
            return halves + powers * logs
        return halves + powers * logs - 0.5 * xp.exp(2 * xp.clip(logs, None, _LARGEST_LOG))

    def log_trace(self, norms: np.ndarray) -> float:
        """See :meth:`Zonal.log_trace`."""
        if self.damped:
            return log(len(norms))
        if self.logs is None:
            logs = np.log(norms) - log(self.lengthscale)
            return float(np.logaddexp.reduce(np.exp(2 * np.minimum(logs, _LARGEST_LOG))))
        return float(np.logaddexp.reduce(2 * self.log_weights(norms, np.arange(len(self.logs))), axis=None))

    def n_terms(self, radius: float) -> int:
        """Return how many radial functions per degree matter for norms up to `radius`.

        For the exponential, their squares are proportional to Poisson probabilities with mean (r/ℓ)².
        """
        if self.n_taylor is not None:
            return (self.n_taylor + 1) // 2
        ratio = radius / self.lengthscale
        return int(ratio**2 + 8 * ratio + 30) // 2

    def taylor(self, degree: int) -> np.ndarray:
        """Return the Taylor coefficients in the cosine of unit vectors."""
        j = np.arange(degree + 1)
        logs = self.log_coefficients(degree) - 2 * j * log(self.lengthscale)
        return np.exp(logs - self.lengthscale**-2 if self.damped else logs)

    def radial(self, r: np.ndarray, degree: int, order: int, n_features: int) -> np.ndarray:
        """Return √(a_{ℓ+2i} b_{ℓ,i}) (r/ℓ)^{ℓ+2i} g."""
        logs = self.log_parts(degree, order, n_features)
        return np.exp(logs + self.log_powers(r, degree, order))

    def log_parts(self, degree: int, order: int, n_features: int) -> np.ndarray:
        """Return log √(a_{ℓ+2i} b_{ℓ,i}), an array of shape (degree + 1, order)."""
        a = self.log_coefficients(degree + 2 * order)
        parts = [log_parts(k, order, n_features) + a[k : k + 2 * order : 2] for k in range(degree + 1)]
        return 0.5 * np.stack(parts)

    def log_powers(self, r: np.ndarray, degree: int, order: int) -> np.ndarray:
        """Return log((r/ℓ)^{ℓ+2i} g), an array of shape (n, degree + 1, order)."""
        powers = np.arange(degree + 1)[:, None] + 2 * np.arange(order)
        with np.errstate(divide="ignore"):
            logs = np.log(r / self.lengthscale)[:, None, None]
        out = np.where(powers > 0, powers * np.where(powers > 0, logs, 0.0), 0.0)
        return out - 0.5 * (r / self.lengthscale)[:, None, None] ** 2 if self.damped else out

    def diagonal(self, r: np.ndarray) -> np.ndarray:
        """Return g² Σ_j a_j (r/ℓ)^{2j}."""
        if self.damped:
            return np.ones_like(r)
        a = self.log_coefficients(2000 if self.n_taylor is None else self.n_taylor - 1)
        with np.errstate(divide="ignore"):
            logs = 2 * np.log(r / self.lengthscale)
        powers = np.arange(len(a))
        with np.errstate(over="ignore"):
            return np.exp(a + np.where(powers > 0, powers * np.where(powers > 0, logs[:, None], 0.0), 0.0)).sum(axis=1)


def zonal_kernel(
    kernel: ZonalLike, owner: str, *, highest: int = _MAX_TAYLOR - 1, params: dict[str, Any] | None = None,
    functions: bool = True, **own: Any,
) -> KernelSpec:  # fmt: skip
    """Return the kernel given by a name, a network, coefficients or, if `functions`, a function of the cosine.

    `own` are parameters of the owner: depth, lengthscale, and `power` of a function or of "arc_cosine". The kernel
    receives those that it takes. `params` are additional parameters of the kernel.
    """
    own["order"] = own.pop("power", 1)
    if isinstance(kernel, str) and kernel == "arc_cosine" and "order" not in (params or {}):
        check_int(own["order"], "power", owner, minimum=0, maximum=2)
    if isinstance(kernel, KernelSpec | Layer) or (isinstance(kernel, str) and kernel in KernelSpec.names()):
        return of_estimator(kernel, own, params, owner)
    if functions and callable(kernel) and not isinstance(kernel, type):
        check_int(own["order"], "power", owner, minimum=0)
        return of_estimator("zonal", {"function": kernel, "power": own["order"]}, params, owner)
    rule = (
        f"one of {', '.join(map(repr, NAMES))}, a network, {'a function of the cosine, ' if functions else ''}or up to "
        f"{highest + 1} Taylor coefficients ≥ 0, finite and not all 0"
    )
    if isinstance(kernel, str | bytes) or not isinstance(kernel, Sequence | np.ndarray):
        raise (ValueError if isinstance(kernel, str) else TypeError)(message(owner, "kernel", rule, kernel))
    try:
        a = np.array([check_real(value, "kernel", owner, minimum=0) for value in kernel])
    except (TypeError, ValueError) as error:
        raise type(error)(message(owner, "kernel", rule, kernel)) from None
    if not 0 < a.size <= highest + 1 or not a.any():
        raise ValueError(message(owner, "kernel", rule, kernel))
    return of_estimator("dot_product", {"function": a}, params, owner)


def non_negative(c: np.ndarray, errors: np.ndarray, n_features: int) -> np.ndarray:
    """Return the coefficients with negative rounding errors set to 0; raise if a coefficient is truly negative."""
    worst = int(np.argmin(c + errors))
    if c[worst] < -1e3 * errors[worst] - 1e-12 * np.abs(c).sum():
        raise ValueError(
            f"The 'kernel' function is not positive definite in dimension {n_features}: its Gegenbauer coefficient of "
            f"degree {worst} is {c[worst]:.3g} < 0."
        )
    return np.maximum(c, 0.0)


def _check_coefficients(coefficients: Any, owner: str) -> np.ndarray:
    try:
        c = np.asarray(coefficients, dtype=np.float64)
    except (TypeError, ValueError):
        c = np.empty(0)
    if c.ndim != 1 or not c.size or not np.isfinite(c).all():
        raise ValueError(message(owner, "coefficients", "a non-empty sequence of finite numbers", coefficients))
    return c


def _sizes(degree: Any, n_features: Any, owner: str) -> tuple[int, int]:
    d = check_int(n_features, "n_features", owner, minimum=1)
    most = {"maximum": 1} if d == 1 else {}
    return check_int(degree, "degree", owner, minimum=0, **most), d


def _log_dimension(degree: int, n_features: int) -> float:
    """Return log α_ℓ, even if α_ℓ is too large for a float."""
    return log(harmonic_dimension(degree, n_features))


@lru_cache(maxsize=16)
def _angles(degree: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines of Gauss–Legendre nodes θ in [0, π], and weights that include sin^{d−2} θ and sum to 1."""
    if n_features == 1:
        return np.array([-1.0, 1.0]), np.array([0.5, 0.5])
    size = 128 + 4 * degree + int(16 * n_features**0.5)
    reserve(0, f"Coefficients of degree {degree} in dimension {n_features}", seconds=1e-5 * size + 1e-8 * size**2)
    nodes = np.cos(np.pi * (4 * np.arange(size, 0, -1) - 1) / (4 * size + 2)) * (1 - (1 - 1 / size) / (8 * size**2))
    for _ in range(2):  # Newton's method from Tricomi's approximation; SciPy's root finder takes four times as long
        previous, last = _last_two(nodes, size)
        nodes = nodes - last * (1 - nodes**2) / (size * (previous - nodes * last))
    previous, last = _last_two(nodes, size)
    weights = (1 - nodes**2) / (last * nodes - previous) ** 2  # up to a factor; SciPy's weights are off by 1e-13
    t = -np.sin(0.5 * np.pi * nodes)  # θ = π/2 + π/2·node
    logs = np.log(weights) + (n_features - 2) * np.log(np.cos(0.5 * np.pi * nodes))
    weights = np.exp(logs - logs.max())
    return t, weights / weights.sum()


def _last_two(t: np.ndarray, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Legendre polynomials of degrees q − 1 and q."""
    previous, last = np.ones_like(t), t
    for k in range(2, degree + 1):
        a, b = recursion(k, 3)
        previous, last = last, a * t * last - b * previous
    return previous, last
