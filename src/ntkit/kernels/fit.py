"""Polynomials with non-negative coefficients that approximate dot-product kernels on the unit sphere."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ntkit._validation import check_int, check_real, message
from ntkit.kernels.spec import KernelSpec, check_returned

LARGEST_DEGREE = 128  # highest degree that `fitted_degree` tries, and of Hermite expansions
_NODES = 2000  # number of cosines at which a fit is computed and its error is measured


def nonnegative_polynomial(function: Callable[[np.ndarray], Any], degree: int) -> tuple[np.ndarray, float]:
    """Fit Σ a_j t^j with a_j ≥ 0 to κ(t) on [−1, 1], exact at t = 1.

    Such a polynomial is a kernel on the sphere of any dimension, so it has features (Remark 1 of [1]_). It preserves
    κ(1), so the features have the right norm. The fit minimizes ∫ (Σ a_j cos^j θ − κ(cos θ))² dθ over the angle, by
    SciPy's ``nnls``.

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
    The coefficients sum to κ(1), so κ = κ Σ a_j/κ(1), and the fit minimizes ‖(t^j − κ/κ(1)) a‖ over a ≥ 0 with this
    sum. The objective is homogeneous, so one more equation, of any weight, determines the solution up to a factor; the
    sum fixes the factor.

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
        raise TypeError(message(owner, "function", "a callable that takes arrays of cosines", function))
    t = nodes()
    values = function(np.append(t, 1.0))
    check_returned(values, (len(t) + 1,), "function")
    values = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(values).all() and values[-1] > 0):
        raise ValueError(message(owner, "function", "finite on [−1, 1] and positive at 1", values))
    return fit(t, values[:-1], float(values[-1]), np.arange(degree + 1))


def fit(t: np.ndarray, values: np.ndarray, at_one: float, degrees: np.ndarray) -> tuple[np.ndarray, float]:
    """Fit coefficients of the powers in `degrees`; return them and the largest error relative to κ(1).

    The coefficients of other powers below the highest degree are 0.
    """
    from scipy.optimize import nnls

    powers = t[:, None] ** degrees
    weight = np.sqrt(len(t))
    equations = np.vstack([powers - values[:, None] / at_one, np.full(len(degrees), weight)])
    a, _ = nnls(equations, np.append(np.zeros(len(t)), weight * at_one), maxiter=100 * (int(degrees[-1]) + 1))
    coefficients = np.zeros(int(degrees[-1]) + 1)
    coefficients[degrees] = a * (at_one / a.sum())
    return coefficients, float(np.abs(powers @ coefficients[degrees] - values).max() / at_one)


@lru_cache(maxsize=256)
def fitted_polynomial(spec: KernelSpec, degree: int) -> tuple[tuple[float, ...], float]:
    """Return the coefficients and error of :func:`nonnegative_polynomial` for a kernel on the unit sphere."""
    a, error = nonnegative_polynomial(spec.on_sphere, degree)
    return tuple(a.tolist()), error


def polynomial_error(spec: KernelSpec, coefficients: np.ndarray) -> float:
    """Return the largest error of a polynomial for a kernel on the unit sphere, relative to the kernel at t = 1."""
    t = nodes()
    return float(np.abs(np.polynomial.polynomial.polyval(t, coefficients) - spec.on_sphere(t)).max() / spec.at_one)


def fitted_degree(spec: KernelSpec, tolerance: float) -> int:
    """Return the smallest degree whose fit has at most the error `tolerance`; `LARGEST_DEGREE` if there is none.

    Examples
    --------
    >>> fitted_degree(KernelSpec.of("ntk", depth=1), 0.02)
    6
    """
    check_real(tolerance, "tolerance", "fitted_degree", minimum=0)
    if fitted_polynomial(spec, 0)[1] <= tolerance:
        return 0
    low, high = 0, 1
    while high < LARGEST_DEGREE and fitted_polynomial(spec, high)[1] > tolerance:
        low, high = high, min(2 * high, LARGEST_DEGREE)
    while high - low > 1:
        middle = (low + high) // 2
        if fitted_polynomial(spec, middle)[1] > tolerance:
            low = middle
        else:
            high = middle
    return high


def taylor_polynomial(spec: KernelSpec, degree: int) -> tuple[float, ...]:
    """Return the Taylor coefficients of a kernel on the unit sphere up to a degree.

    The remainder at t = 1 is added to the highest coefficient, so that the polynomial is exact at t = 1.
    """
    a = spec.taylor(degree)
    a[-1] += spec.at_one - a.sum()
    return tuple(a.tolist())


def nodes() -> np.ndarray:
    """Return the cosines of equally spaced angles."""
    return np.cos((np.arange(_NODES) + 0.5) * np.pi / _NODES)
