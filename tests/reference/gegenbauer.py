"""Gegenbauer polynomials, radial functions and random Gegenbauer features as the paper writes them.

Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from scipy.integrate import quad


def polynomial(t: float, degree: int, d: int) -> float:
    """Eq. (2): Σ_j c_j t^{ℓ−2j} (1 − t²)^j. Its terms cancel: for small degrees only."""
    c, total = 1.0, 0.0
    for j in range(degree // 2 + 1):
        total += c * t ** (degree - 2 * j) * (1 - t * t) ** j
        c *= -(degree - 2 * j) * (degree - 2 * j - 1) / (2 * (j + 1) * (d - 1 + 2 * j))
    return total


@lru_cache
def dimension(degree: int, d: int) -> int:
    """Count the monomials of degree ℓ in d variables, minus the monomials of degree ℓ − 2."""

    def monomials(degree: int) -> int:
        return sum(1 for _ in combinations_with_replacement(range(d), degree)) if degree >= 0 else 0

    return monomials(degree) - monomials(degree - 2)


def coefficient(function: Callable[[float], float], degree: int, d: int) -> float:
    """Eq. (7), over angles: α_ℓ ∫ κ P_ℓ sin^{d−2} / ∫ sin^{d−2}."""

    def integrand(theta: float) -> float:
        t = math.cos(theta)
        return function(t) * polynomial(t, degree, d) * math.sin(theta) ** (d - 2)

    top = quad(integrand, 0, math.pi, epsabs=1e-13, epsrel=1e-12)[0]
    return dimension(degree, d) * top / quad(lambda theta: math.sin(theta) ** (d - 2), 0, math.pi)[0]


def relu_function(kernel: str, number: int) -> Callable[[float], float]:
    """κ of "ntk" and "nngp" of some depth and of "arc_cosine" of some order, from their closed forms."""

    def arc_cosine(t: float, order: int) -> float:
        t = min(max(t, -1.0), 1.0)
        theta, sine = math.acos(t), math.sqrt(1 - t * t)
        if order == 0:
            return 1 - theta / math.pi
        if order == 1:
            return (sine + (math.pi - theta) * t) / math.pi
        return (3 * sine * t + (math.pi - theta) * (1 + 2 * t * t)) / (3 * math.pi)

    def network(t: float) -> float:
        sigma = theta = t
        for _ in range(number):
            theta = theta * arc_cosine(sigma, 0) + arc_cosine(sigma, 1)
            sigma = arc_cosine(sigma, 1)
        return theta if kernel == "ntk" else sigma

    return network if kernel in ("ntk", "nngp") else lambda t: arc_cosine(t, number)


def radial_dot_product(derivatives: Callable[[int], float], r: float, degree: int, i: int, d: int) -> float:
    """Lemma 4, of κ(⟨x, y⟩) with given derivatives at 0."""
    square = dimension(degree, d) / 2**degree * math.gamma(d / 2) / math.sqrt(math.pi)
    square *= derivatives(degree + 2 * i) / math.factorial(2 * i)
    square *= math.gamma(i + 0.5) / math.gamma(i + degree + d / 2)
    return math.sqrt(square) * r ** (degree + 2 * i)


def radial(
    kernel: Any, r: float, degree: int, i: int, d: int, *, lengthscale: float = 1.0, depth: int = 1, power: int = 1
) -> float:
    """h_{ℓ,i}(r): Lemma 4 (Taylor coefficients, "exponential"), 15 ("gaussian"), 16 (all others)."""
    if kernel in ("gaussian", "exponential"):
        value = radial_dot_product(lambda j: 1.0, r / lengthscale, degree, i, d)  # noqa: ARG005
        return value * math.exp(-0.5 * (r / lengthscale) ** 2) if kernel == "gaussian" else value
    if isinstance(kernel, Sequence) and not isinstance(kernel, str):

        def derivative(j: int) -> float:
            return math.factorial(j) * kernel[j] if j < len(kernel) else 0.0

        return radial_dot_product(derivative, r, degree, i, d)
    if i > 0:
        return 0.0
    if kernel in ("ntk", "nngp"):
        function, power = relu_function(kernel, depth), 1
    else:
        function = relu_function(kernel, power) if kernel == "arc_cosine" else kernel
    return math.sqrt(max(coefficient(function, degree, d), 0.0)) * r**power


def table(kernel: Any, norms: Sequence[float], degree: int, order: int, d: int, **parameters: Any) -> np.ndarray:
    """h of all norms, degrees and orders, (n, degree + 1, order)."""
    return np.array(
        [[[radial(kernel, r, k, i, d, **parameters) for i in range(order)] for k in range(degree + 1)] for r in norms]
    )


def mixed(at_rows: np.ndarray, at_radii: np.ndarray) -> np.ndarray:
    """Tables of radial functions in the basis, for each degree, of the eigenvectors of E_r h h^T, largest first.

    Their largest entries are positive.
    """
    out = np.zeros_like(at_rows)
    for k in range(at_rows.shape[1]):
        second = np.zeros((at_rows.shape[2],) * 2)
        for h in at_radii[:, k]:
            second += np.outer(h, h) / len(at_radii)
        vectors = np.linalg.eigh(second)[1][:, ::-1]
        signs = [math.copysign(1.0, v[np.argmax(np.abs(v))]) for v in vectors.T]
        out[:, k] = at_rows[:, k] @ (vectors * signs)
    return out


def definition_8(X: np.ndarray, directions: Sequence[np.ndarray], h: np.ndarray) -> np.ndarray:
    """Z(x)_{j,i} = M^{-1/2} Σ_ℓ √α_ℓ h_{ℓ,i}(r) P_ℓ(⟨x, w_j⟩/r), the i-th of all directions side by side."""
    n, n_degrees, order = h.shape
    d, size = X.shape[1], len(directions)
    Z = np.zeros((n, order, size))
    for row, x in enumerate(X):
        r = math.sqrt(sum(value**2 for value in x))
        for i in range(order):
            for j, w in enumerate(directions):
                t = float(np.dot(x, w)) / r
                for k in range(n_degrees):
                    Z[row, i, j] += math.sqrt(dimension(k, d) / size) * h[row, k, i] * polynomial(t, k, d)
    return Z.reshape(n, -1)


def kernel_of(X: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Σ_ℓ ⟨h_ℓ(r), h_ℓ(r')⟩ P_ℓ(cos), Definition 3 with the degrees and orders of h."""
    K = np.zeros((len(X), len(X)))
    for a, x in enumerate(X):
        for b, y in enumerate(X):
            t = float(np.dot(x, y)) / math.sqrt(float(np.dot(x, x)) * float(np.dot(y, y)))
            for k in range(h.shape[1]):
                K[a, b] += float(np.dot(h[a, k], h[b, k])) * polynomial(t, k, X.shape[1])
    return K


def harmonics(u: np.ndarray, degree: int) -> np.ndarray:
    """Real spherical harmonics of a unit vector in R² or R³ whose squares add up to 1, by closed formulas."""
    if len(u) == 2:
        angle = math.atan2(u[1], u[0])
        return np.array([math.cos(degree * angle), math.sin(degree * angle)] if degree else [1.0])
    x, y, z = u
    if degree > 3:
        raise ValueError("written out to degree 3 only")
    return (
        np.array([1.0]),
        np.array([x, y, z]),
        np.array([math.sqrt(3) * x * y, math.sqrt(3) * y * z, math.sqrt(3) * x * z,
                  math.sqrt(0.75) * (x * x - y * y), (3 * z * z - 1) / 2]),
        np.array([math.sqrt(15) * x * y * z, math.sqrt(15 / 4) * (x * x - y * y) * z,
                  math.sqrt(3 / 8) * x * (5 * z * z - 1), math.sqrt(3 / 8) * y * (5 * z * z - 1),
                  math.sqrt(5 / 8) * x * (x * x - 3 * y * y), math.sqrt(5 / 8) * y * (3 * x * x - y * y),
                  z * (5 * z * z - 3) / 2]),
    )[degree]  # fmt: skip
