"""Features of dot-product kernels, one row and one feature at a time, from the draws of a fitted map."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from tests.reference.features import series as sketched_series


def coefficient(kernel: Any, degree: int, depth: int = 1) -> float:
    """Taylor coefficient of the kernel as a function of ⟨x, y⟩/ℓ² (of the cosine for the NTK)."""
    if kernel in ("gaussian", "exponential"):
        return 1 / math.factorial(degree)
    if kernel in ("ntk", "nngp"):
        return _of_relu(kernel, depth)[degree]
    return kernel[degree] if degree < len(kernel) else 0.0


@lru_cache
def _of_relu(kernel: str, depth: int, n_points: int = 256) -> list[float]:
    """Coefficients up to 20 by Cauchy's integral over |t| = 0.7 of the closed forms."""
    t = 0.7 * np.exp(2j * np.pi * np.arange(n_points) / n_points)
    sigma = theta = t
    for _ in range(depth):
        kappa0 = (np.pi - np.arccos(sigma)) / np.pi
        kappa1 = (np.sqrt(1 - sigma) * np.sqrt(1 + sigma) + sigma * (np.pi - np.arccos(sigma))) / np.pi
        theta, sigma = theta * kappa0 + kappa1, kappa1
    values = theta if kernel == "ntk" else sigma
    coefficients = [float(np.mean(values * t ** (-j)).real) for j in range(21)]
    return [a if a > 1e-12 else 0.0 for a in coefficients]


def weight(kernel: Any, degree: int, r: float, lengthscale: float = 1.0, depth: int = 1) -> float:
    """w_j(r)."""
    a = coefficient(kernel, degree, depth)
    if kernel in ("ntk", "nngp"):
        return math.sqrt(a) * r
    if kernel not in ("gaussian", "exponential"):
        return math.sqrt(a) * r**degree
    power = math.sqrt(a) * (r / lengthscale) ** degree
    return power * math.exp(-(r**2) / (2 * lengthscale**2)) if kernel == "gaussian" else power


def truncated_kernel(X: np.ndarray, kernel: Any, degrees: Any, lengthscale: float = 1.0, depth: int = 1) -> np.ndarray:
    """Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j over some degrees."""
    norms = np.linalg.norm(X, axis=1)
    cosines = (X @ X.T) / np.outer(norms, norms)
    K = np.zeros_like(cosines)
    for j in degrees:
        w = np.array([weight(kernel, j, r, lengthscale, depth) for r in norms])
        K += np.outer(w, w) * cosines**j
    return K


def maclaurin(fitted: Any, x: np.ndarray) -> np.ndarray:
    """MaclaurinFeatures of one row: m_j^{-1/2} w_j(‖x‖) ∏_k ⟨ω_k, x/‖x‖⟩, one feature at a time."""
    r = float(np.linalg.norm(x))
    unit = x / r if r > 0 else x
    degrees = fitted.degrees_.tolist()
    exact = set() if fitted._draws.linear is None else set(range(*fitted._draws.linear.indices(len(degrees))))
    signs = [list(column) for column in fitted.signs_.T.astype(float)]
    values = np.empty(len(degrees))
    for i, j in enumerate(degrees):
        if fitted.method == "geometric":
            laws = [2.0**-k for k in range(fitted.degree_ + 1) if coefficient(fitted.kernel, k, fitted.depth) > 0]
            size = len(degrees) * 2.0**-j / sum(laws)
        else:
            size = 1 if i in exact else degrees.count(j)
        w = weight(fitted.kernel, j, r, fitted.lengthscale_, fitted.depth) if j == 0 or r > 0 else 0.0
        values[i] = w / math.sqrt(size)
        if i in exact:
            values[i] *= unit[sorted(exact).index(i)]
    position = 0
    for k in range(1, max(degrees) + 1):
        for i, j in enumerate(degrees):
            if j >= k and i not in exact:
                values[i] *= float(np.dot(signs[position], unit))
                position += 1
    assert position == len(signs)
    return values


def dot_product_sketch(fitted: Any, x: np.ndarray) -> np.ndarray:
    """DotProductSketch of one row: ⊕_j w_j(‖x‖) Z_j(x/‖x‖)."""
    r = float(np.linalg.norm(x))
    budget = fitted.sketch_.law.budget
    features = sketched_series(fitted.sketch_, x / r if r > 0 else x)
    parts, start = [], 0
    for j, a in budget.coefficients.items():
        size = budget.exact.get(j) or budget.sketched[j]
        w = weight(fitted.kernel, j, r, fitted.lengthscale_, fitted.depth) if j == 0 or r > 0 else 0.0
        parts.append(w / math.sqrt(a) * features[start : start + size])
        start += size
    assert start == len(features)
    return np.concatenate(parts)
