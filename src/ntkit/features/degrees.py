"""Degrees of sketched polynomials, chosen from the numbers of columns and components alone.

A polynomial of higher degree is closer to its kernel, but costs more time and leaves fewer components to lower degrees.
The rule predicts the error of the features for every candidate degree p and takes the p that minimizes

    p^γ · error(p),   error(p)² = E[(P_p(t) − K(t))² + V_p(t)] / E[K(t)²],

where P_p is the sketched polynomial and V_p the variance of the sketch. γ = 0.07: twice the degree must lower the error
by 5 %. (For a single polynomial the factor is max(p, 8)^γ: degrees below 8 hardly save time.) If a sketch of degree j
with m_j components preserves norms, it has about the variance of a sample correlation,

    V_p(t) = Σ_j a_j² (1 − t^{2j})² / m_j   over the sketched degrees j.

Exact degrees have no variance. Half of the cosines t follow the law of uniform directions in d dimensions, with density
∝ (1 − t²)^{(d−3)/2}. The other half is uniform on [0, 1], for clustered rows and rows with a constant column.

The shares of the two laws, γ and 8 were chosen on Gaussian and clustered rows, California housing, protein, magic04,
pendigits, airfoil and MNIST, with and without a constant column (``docs/design/ntk-features.md``). For Gaussian rows,
the prediction for :class:`~ntkit.NTKPolynomialSketch` was within 5 % of the measured error, 15 % at 64 components.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.polynomial import polynomial

from ntkit.kernels import KernelSpec
from ntkit.kernels.fit import fitted_polynomial, taylor_polynomial
from ntkit.sketches.series import Budget, SeriesSketch, allocate
from ntkit.sketches.tree import is_long

CANDIDATES = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
LAYER_CANDIDATES = (2, 3, 4, 5, 6, 8)  # degrees p for κ₁; κ₀ has 2p + 1. Higher degrees lowered no measured error.
_TIME_EXPONENT = 0.07  # γ
_FREE_DEGREE = 8  # up to this degree, a single polynomial costs about the same time
_NODES = 256  # number of angles at which errors are evaluated
_STEP, _RELU = (KernelSpec.of("arc_cosine", order=order) for order in (0, 1))


@lru_cache(maxsize=256)
def series_degree(spec: KernelSpec, n_features: int, n_components: int, width: int | None = None) -> int:
    """Choose the degree of the polynomial that :class:`~ntkit.NTKPolynomialSketch` fits to a kernel.

    Examples
    --------
    >>> spec = KernelSpec.of("ntk", depth=1)
    >>> [series_degree(spec, d, 1024) for d in (8, 32, 33, 784)]
    [32, 14, 14, 8]
    """
    return _best_degree(
        CANDIDATES, lambda degree: series_error(spec, n_features, n_components, degree, width), free=_FREE_DEGREE
    )


def series_error(
    spec: KernelSpec, n_features: int, n_components: int, degree: int, width: int | None = None, *, uniform: float = 0.5
) -> float:
    """Predict the relative error of :class:`~ntkit.NTKPolynomialSketch`.

    `uniform` is the share of cosines that is uniform on [0, 1].
    """
    t, weights = _cosines(n_features, uniform)
    law = SeriesSketch(n_features, fitted_polynomial(spec, degree)[0], n_components, width=width).with_leaves()
    return _relative_error(weights, spec.on_sphere(t), *_moments(law.budget, t))


@lru_cache(maxsize=256)
def layer_degrees(
    kind: str, depth: int, n_features: int, n_components: int, in_phi: int, *, taylor: bool = False
) -> tuple[int, int]:
    """Choose the degrees for κ₁ and κ₀ in all layers of :class:`~ntkit.NTKSketch`.

    φ^(L) has `in_phi` components; all layers before the last have `n_components`. Errors are propagated from layer to
    layer to first order. Let s be the cosine of φ^(ℓ−1) with variance v, and θ be ℓ times the cosine of ψ^(ℓ−1), with
    variance u. Then

        v ← V_{κ₁}(s) + P_{κ₁}'(s)² v,   v₀ = V_{κ₀}(s) + P_{κ₀}'(s)² v,
        u ← ℓ² (1 − (θ P_{κ₀}(s)/ℓ)²)² / m_Q + θ² v₀ + P_{κ₀}(s)² u + v₀ u + v,

    where m_Q is the number of components of Q²(ψ ⊗ φ̇).

    Examples
    --------
    >>> layer_degrees("ntk", 1, 784, 1024, 307)
    (2, 5)
    """
    t, weights = _cosines(n_features)
    exact = KernelSpec.of(kind, depth=depth).on_sphere(t)
    long = is_long(n_features, n_components)

    def error(degree: int) -> float:
        forward, derivative = layer_polynomials(degree, 2 * degree + 1, taylor=taylor)
        size, s, v, theta, u = n_features, t, np.zeros_like(t), t, np.zeros_like(t)
        for layer in range(1, depth + 1):
            phi_size = n_components if layer < depth else in_phi
            columns = n_components + 1 if long and layer == 1 else size  # long rows have no exact monomials
            k0, v0 = _moments(allocate(derivative, columns, n_components), s, v)
            budget = allocate(forward, columns, phi_size)
            s_next, v = _moments(budget, s, v)
            size = sum(budget.exact.values()) + sum(budget.sketched.values())
            product = n_components if layer < depth else max(n_components - size, 1)
            u = (layer * (1 - (theta * k0 / layer) ** 2)) ** 2 / product + theta**2 * v0 + (k0**2 + v0) * u + v
            theta, s = theta * k0 + s_next, s_next
        mean, variance = (theta, u) if kind == "ntk" else (s, v)
        return _relative_error(weights, exact, mean, variance)

    degree = _best_degree(LAYER_CANDIDATES, error)
    return degree, 2 * degree + 1


def layer_polynomials(
    degree: int, derivative_degree: int, *, taylor: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the coefficients of the polynomials for κ₁ and κ₀."""
    if taylor:
        return taylor_polynomial(_RELU, degree), taylor_polynomial(_STEP, derivative_degree)
    return fitted_polynomial(_RELU, degree)[0], fitted_polynomial(_STEP, derivative_degree)[0]


def _best_degree(candidates: Sequence[int], error: Callable[[int], float], *, free: int = 1) -> int:
    return min(candidates, key=lambda degree: max(degree, free) ** _TIME_EXPONENT * error(degree))


def _relative_error(weights: np.ndarray, exact: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    return float(np.sqrt(weights @ ((mean - exact) ** 2 + variance) / (weights @ exact**2)))


def _cosines(n_features: int, uniform: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and their weights; a share `uniform` of the weight is uniform on [0, 1]."""
    angles = (np.arange(_NODES) + 0.5) * np.pi / _NODES
    sphere = np.sin(angles) ** max(n_features - 2, 0)
    positive = np.where(angles < np.pi / 2, np.sin(angles), 0.0)
    return np.cos(angles), (1 - uniform) * sphere / sphere.sum() + uniform * positive / positive.sum()


def _moments(budget: Budget, t: np.ndarray, inner: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Compute P(t) and the variance of its sketch, where t itself has the variance `inner`."""
    coefficients = np.zeros(max(budget.coefficients) + 1)
    coefficients[list(budget.coefficients)] = list(budget.coefficients.values())
    variance = polynomial.polyval(t, polynomial.polyder(coefficients)) ** 2 * inner
    for j, size in budget.sketched.items():
        variance = variance + (budget.coefficients[j] * (1 - t ** (2 * j))) ** 2 / size
    return polynomial.polyval(t, coefficients), variance
