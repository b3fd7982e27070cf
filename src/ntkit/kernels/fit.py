"""Polynomials with non-negative coefficients that stand for dot-product kernels on the unit sphere."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ntkit._validation import check_choice, check_int, check_real, message
from ntkit.kernels.arccos import arc_cosine, arc_cosine_taylor, relu_ntk
from ntkit.kernels.dot_product import check_returned

LARGEST_DEGREE = 128
_NODES = 2000


def nonnegative_polynomial(function: Callable[[np.ndarray], Any], degree: int) -> tuple[np.ndarray, float]:
    """Fit Σ a_j t^j with a_j ≥ 0 to κ(t) on [−1, 1], exact at t = 1.

    Such a polynomial is a kernel on the sphere of any dimension, so it has features (Remark 1 of [1]_), and it keeps
    κ(1), so their norms are right. It is the least-squares fit in the angle: of ∫ (Σ a_j cos^j θ − κ(cos θ))² dθ,
    by SciPy's ``nnls``.

    Parameters
    ----------
    function : callable
        κ, applied to a float64 array of cosines; κ(1) > 0.
    degree : int ≥ 0
        Highest j.

    Returns
    -------
    coefficients : ndarray of shape (degree + 1,)
    error : float
        ``max |Σ a_j t^j − κ(t)| / κ(1)``.

    Notes
    -----
    The coefficients sum to κ(1), so κ = κ Σ a_j/κ(1), and the fit minimizes ‖(t^j − κ/κ(1)) a‖ over a ≥ 0 with that
    sum: homogeneous but for the sum, which one more equation of any weight fixes up to a factor.

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features", NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.kernels import nonnegative_polynomial, relu_ntk
    >>> a, error = nonnegative_polynomial(lambda t: relu_ntk(t, 1), 8)
    >>> print(f"{a.sum():.6f}, {error:.3f}")
    2.000000, 0.016
    """
    owner = "nonnegative_polynomial"
    degree = check_int(degree, "degree", owner, minimum=0)
    if not callable(function):
        raise TypeError(message(owner, "function", "a callable on arrays of cosines", function))
    t = _nodes()
    values = function(np.append(t, 1.0))
    check_returned(values, (len(t) + 1,), "function")
    values = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(values).all() and values[-1] > 0):
        raise ValueError(message(owner, "function", "finite on [−1, 1] and positive at 1", values))
    return _fit(t, values[:-1], float(values[-1]), degree)


def _fit(t: np.ndarray, values: np.ndarray, at_one: float, degree: int) -> tuple[np.ndarray, float]:
    from scipy.optimize import nnls

    powers = t[:, None] ** np.arange(degree + 1)
    equations = np.vstack([powers - values[:, None] / at_one, np.full(degree + 1, np.sqrt(len(t)))])
    a, _ = nnls(equations, np.append(np.zeros(len(t)), np.sqrt(len(t)) * at_one), maxiter=100 * (degree + 1))
    a *= at_one / a.sum()
    return a, float(np.abs(powers @ a - values).max() / at_one)


@lru_cache(maxsize=256)
def relu_polynomial(kind: str, depth: int, degree: int) -> tuple[tuple[float, ...], float]:
    """Coefficients and error for κ₀ ("step"), κ₁ ("relu"), K_relu^(L) ("ntk") or Σ^(L) ("nngp")."""
    a, error = nonnegative_polynomial(_function(kind, depth), degree)
    return tuple(a.tolist()), error


def relu_error(kind: str, depth: int, coefficients: np.ndarray) -> float:
    """Largest error of any polynomial for one of these functions, relative to its value at 1."""
    function = _function(kind, depth)
    t = _nodes()
    values = np.polynomial.polynomial.polyval(t, coefficients)
    return float(np.abs(values - function(t)).max() / function(np.ones(1))[0])


def _nodes() -> np.ndarray:
    return np.cos((np.arange(_NODES) + 0.5) * np.pi / _NODES)


def _function(kind: str, depth: int) -> Callable[[np.ndarray], Any]:
    check_choice(kind, "kind", "relu_polynomial", ("ntk", "nngp", "relu", "step"))
    if kind == "ntk":
        return lambda t: relu_ntk(t, depth)
    if kind == "nngp":

        def composed(t: np.ndarray) -> Any:
            for _ in range(depth):
                t = arc_cosine(t, 1)
            return t

        return composed
    return lambda t: arc_cosine(t, 1 if kind == "relu" else 0)


def relu_degree(kind: str, depth: int, tolerance: float) -> int:
    """Smallest degree whose fit has at most that error, by bisection; `LARGEST_DEGREE` if none has.

    Examples
    --------
    >>> relu_degree("ntk", 1, 0.02)
    6
    """
    check_real(tolerance, "tolerance", "relu_degree", minimum=0)
    if relu_polynomial(kind, depth, 0)[1] <= tolerance:
        return 0
    low, high = 0, 1
    while high < LARGEST_DEGREE and relu_polynomial(kind, depth, high)[1] > tolerance:
        low, high = high, min(2 * high, LARGEST_DEGREE)
    while high - low > 1:
        middle = (low + high) // 2
        if relu_polynomial(kind, depth, middle)[1] > tolerance:
            low = middle
        else:
            high = middle
    return high


def taylor_polynomial(kind: str, degree: int) -> tuple[float, ...]:
    """Taylor coefficients of κ₀ ("step") or κ₁ ("relu"); the rest up to the value 1 at t = 1 goes to the highest."""
    check_choice(kind, "kind", "taylor_polynomial", ("relu", "step"))
    a = arc_cosine_taylor(1 if kind == "relu" else 0, degree)
    a[-1] += 1.0 - a.sum()
    return tuple(a.tolist())
