"""Power series of dual activations. Their coefficients are ≥ 0, so every term is a kernel and has features.

For z ~ N(0, 1), an activation is a series of normalized Hermite polynomials, σ(√a z) = Σ_j h_j(a) He_j(z)/√(j!). So for
Gaussian (u, v) with variances a, b and correlation t::

    E[σ(u)σ(v)]   = Σ_j h_j(a) h_j(b) t^j
    E[σ′(u)σ′(v)] = Σ_j g_j(a) g_j(b) t^j,      g_j(a) = √(j+1) h_{j+1}(a)/√a

by Mehler's formula (Daniely et al., NeurIPS 2016). h_j has the same sign for all variances, so each product is ≥ 0. The
coefficients of each activation are defined in :mod:`ntkit.networks.activations`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array, root
from ntkit._validation import check_bool, check_int, check_real, message, real_array
from ntkit.kernels.arccos import arc_cosine
from ntkit.kernels.fit import LARGEST_DEGREE, fit, nodes
from ntkit.networks import Activation, PiecewiseLinear

_NODES = 2000  # number of intervals in the angle between the correlations at which `dual_degree` measures errors


def hermite_coefficients(activation: Activation, variance: Any, degree: int) -> Array:
    """Compute the Hermite coefficients h_0 … h_degree of an activation at every variance.

    ::

        h_j(a) = E[σ(√a z) He_j(z)]/√(j!),    Σ_j h_j(a) h_j(b) t^j = E[σ(u)σ(v)]

    If the activation is normalized, σ is divided by √E[σ(z)²]. For Gaussian, whose phase is random, the second equation
    holds with h_j(a) = e^{−a/2} a^{j/2}/√(j!).

    Parameters
    ----------
    activation : Activation
        An activation of :mod:`ntkit.networks`.
    variance : float or array
        Variances a ≥ 0 of any shape.
    degree : int from 0 to 128
        Highest j.

    Returns
    -------
    array of shape (*variance.shape, degree + 1)
        Same library, device and dtype as `variance`; computed in float64. At a = 0, the limit.

    Notes
    -----
    Computed from closed forms, with relative errors of a few ε and O(degree) multiplications per variance. The axis of
    degrees is the first in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> h = hermite_coefficients(nn.ReLU(), np.array([1.0, 4.0]), 4)
    >>> h.shape
    (2, 5)
    >>> print(np.round(h[0] ** 2, 4))  # κ₁ = 1/π + t/2 + t²/(2π) + …
    [0.3183 0.5    0.1592 0.     0.0133]
    """
    return _coefficients(activation, variance, degree, "hermite_coefficients", derivative=False)


def derivative_coefficients(activation: Activation, variance: Any, degree: int) -> Array:
    """Compute the Hermite coefficients g_0 … g_degree of the derivative of an activation at every variance.

    ::

        g_j(a) = E[σ′(√a z) He_j(z)]/√(j!) = √(j+1) h_{j+1}(a)/√a,    Σ_j g_j(a) g_j(b) t^j = E[σ′(u)σ′(v)]

    Parameters, result and cost are the same as for :func:`hermite_coefficients`.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> derivative_coefficients(nn.GELU(normalize=False), np.zeros(1), 2)  # at variance 0 only σ′(0) = 1/2
    array([[0.5, 0. , 0. ]])
    """
    return _coefficients(activation, variance, degree, "derivative_coefficients", derivative=True)


def dual_at_one(activation: Activation, variance: Any) -> Array:
    """Compute E[σ(√a z)²], the sum of all h_j(a)², exactly.

    Parameters
    ----------
    activation : Activation
    variance : float or array
        Variances a ≥ 0.

    Returns
    -------
    array like `variance`

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> dual_at_one(nn.ReLU(), np.array([0.0, 3.0]))
    array([0., 3.])
    """
    return _at_one(activation, variance, "dual_at_one", derivative=False)


def derivative_dual_at_one(activation: Activation, variance: Any) -> Array:
    """Compute E[σ′(√a z)²], the sum of all g_j(a)², exactly; at a = 0, the limit.

    Parameters
    ----------
    activation : Activation
    variance : float or array
        Variances a ≥ 0.

    Returns
    -------
    array like `variance`

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> derivative_dual_at_one(nn.Abs(), np.array([0.0, 3.0]))
    array([1., 1.])
    """
    return _at_one(activation, variance, "derivative_dual_at_one", derivative=True)


def truncated_coefficients(
    activation: Activation, variance: Any, degrees: Sequence[int], *, derivative: bool = False
) -> Array:
    """Compute coefficients ĥ_j(a) ≥ 0 for chosen degrees j; at every variance their squares sum to the dual at t = 1.

    Σ_j ĥ_j(a) ĥ_j(b) t^j approximates the dual. The weight h_i(a)² of an omitted degree i is moved to the next kept
    degree of the same parity, or to the highest kept degree of that parity if i is beyond it. Among the kept powers
    with the same sign as t^i for every t, this power is the closest, as |t^i| ≤ |t^j| and |t^j| decreases with j. For
    a = b the sum is exact at t = ±1, and its error in between is less than the weight that was moved. If no degree of a
    parity is kept, its weight is moved to the highest kept degree, and the sum is still exact at t = 1.

    Parameters
    ----------
    activation : Activation
    variance : float or array
        Variances a ≥ 0 of any shape.
    degrees : sequence of int
        Degrees to keep, increasing, from 0 to 128. At least one must be odd for Erf and Sin, and even for Abs; for
        their derivatives it is the other way round.
    derivative : bool, default=False
        Whether to expand E[σ′(u)σ′(v)] instead of E[σ(u)σ(v)].

    Returns
    -------
    array of shape (*variance.shape, len(degrees))
        Same library, device and dtype as `variance`.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import networks as nn
    >>> h = truncated_coefficients(nn.ReLU(), np.ones(1), [0, 1, 2, 4])
    >>> print(np.round(h**2, 4), np.sum(h**2).round(12))
    [[0.3183 0.5    0.1592 0.0225]] 1.0
    """
    owner = "truncated_coefficients"
    _check_activation(activation, owner)
    check_bool(derivative, "derivative", owner)
    kept = _check_degrees(activation, degrees, owner, derivative)
    a, dtype = _variances(variance, owner, graph=True)  # gradients of features flow through this function
    return _stack(_truncate(activation, a, kept, derivative), dtype)


def dual_polynomial(
    activation: Activation, degree: int, *, derivative: bool = False
) -> tuple[tuple[float, ...], float]:
    """Fit a polynomial with coefficients ≥ 0 to the dual of a piecewise linear activation on [−1, 1], exact at t = 1.

    Scaled to one at t = 1, the dual is w t + (1 − w) κ₁(t) and the derivative dual is w + (1 − w) κ₀(t), with
    w = 2α/(1 + α²) for slopes 1 and α. Since |w| ≤ 1, κ₁ = 1/π + t/2 + … and κ₀ = 1/2 + …, no Taylor coefficient is
    negative for any slope. The dual of Abs is even, its derivative dual is odd, and so are the fitted polynomials.

    Parameters
    ----------
    activation : ReLU, LeakyReLU or Abs
        Normalized or not.
    degree : int ≥ 0
        Highest power.
    derivative : bool, default=False
        Whether to fit the derivative dual.

    Returns
    -------
    coefficients : tuple of float
        They sum to one.
    error : float
        Largest error on [−1, 1]; see :func:`ntkit.kernels.nonnegative_polynomial`.

    Examples
    --------
    >>> from ntkit import networks as nn
    >>> coefficients, error = dual_polynomial(nn.Abs(), 5, derivative=True)  # odd: 2κ₀ − 1 = (2/π) arcsin t
    >>> print([round(c, 2) for c in coefficients])
    [0.0, 0.58, 0.0, 0.0, 0.0, 0.42]
    """
    owner = "dual_polynomial"
    if not isinstance(activation, PiecewiseLinear):
        rule, remedy = "ReLU(), LeakyReLU() or Abs()", "Use truncated_coefficients for other activations."
        raise TypeError(message(owner, "activation", rule, activation, remedy))
    degree = check_int(degree, "degree", owner, minimum=0)
    return _fit(activation.mix, degree, check_bool(derivative, "derivative", owner))


def dual_degree(activation: Activation, tolerance: float, *, variance: Any = 1.0, derivative: bool = False) -> int:
    """Return the smallest n such that :func:`truncated_coefficients` with degrees 0 … n has an error ≤ `tolerance`.

    The error is the maximum of |Σ_j ĥ_j(a)² t^j − E[σ(u)σ(v)]| / E[σ(u)²] over correlations t and the given variances a
    of both u and v. It never increases with n.

    Parameters
    ----------
    activation : Activation
    tolerance : float ≥ 0
    variance : float or array, default=1.0
        Typical variances, or the ends of their range. For Erf, GELU, Sin and Gaussian only the largest one matters.
    derivative : bool, default=False
        Whether to use the derivative dual.

    Returns
    -------
    int
        128 if no lower degree is accurate enough.

    Examples
    --------
    >>> from ntkit import networks as nn
    >>> dual_degree(nn.Erf(), 1e-3), dual_degree(nn.Erf(), 1e-3, variance=10.0), dual_degree(nn.ReLU(), 1e-3)
    (5, 27, 8)
    """
    owner = "dual_degree"
    _check_activation(activation, owner)
    tolerance = check_real(tolerance, "tolerance", owner, minimum=0)
    check_bool(derivative, "derivative", owner)
    a, _ = _variances(variance, owner)
    xp = _array.namespace(a)
    a = xp.reshape(a, (-1, 1))
    if isinstance(activation, PiecewiseLinear):
        a = xp.ones_like(a[:1, :])  # the error is the same at any variance
    t = xp.cos(xp.arange(_NODES + 1, dtype=a.dtype, device=_array.device(a)) * (math.pi / _NODES))[None, :]
    exact = activation.dual(a * t, a, a)[int(derivative)]
    allowed = tolerance * activation.dual_at_ends(a, derivative=derivative)[0]

    def is_close(degree: int) -> bool:
        values = xp.zeros_like(exact)
        for h in reversed(_truncate(activation, a, tuple(range(degree + 1)), derivative)):
            values = values * t + h * h
        return bool(xp.all(xp.abs(values - exact) <= allowed))

    lowest = 0 if any(_weights(activation, 0, derivative)[0]) else 1  # an odd function has no degree 0
    return bisect_left(range(LARGEST_DEGREE), True, lo=lowest, key=is_close)


def _coefficients(activation: Activation, variance: Any, degree: int, owner: str, *, derivative: bool) -> Array:
    _check_activation(activation, owner)
    degree = check_int(degree, "degree", owner, minimum=0, maximum=LARGEST_DEGREE)
    a, dtype = _variances(variance, owner)
    return _stack(_expand(activation, a, degree, derivative), dtype)


def _at_one(activation: Activation, variance: Any, owner: str, *, derivative: bool) -> Array:
    _check_activation(activation, owner)
    a, dtype = _variances(variance, owner)
    return _array.namespace(a).astype(activation.dual_at_ends(a, derivative=derivative)[0], dtype, copy=False)


def _stack(columns: list[Array], dtype: Any) -> Array:
    """Stack arrays along a last axis that is the first in memory, so that columns are not interleaved."""
    xp = _array.namespace(columns[0])
    return xp.moveaxis(xp.stack([xp.astype(column, dtype, copy=False) for column in columns]), 0, -1)


def _expand(activation: Activation, a: Array, degree: int, derivative: bool) -> list[Array]:
    """Compute h_j(a), or g_j(a) if `derivative`, for j up to `degree`."""
    xp = _array.namespace(a)
    power, ratio = activation.hermite_factors(a, derivative=derivative)
    zero = xp.zeros_like(a)
    columns = []
    for constant, linear in _weights(activation, degree, derivative):
        if linear:
            columns.append(power * (constant + linear * a))
        else:
            columns.append(power * constant if constant else zero)
        power = power if ratio is None else power * ratio
    return columns


@lru_cache(maxsize=256)
def _weights(activation: Activation, degree: int, derivative: bool) -> tuple[tuple[float, float], ...]:
    """Return the constant and linear Hermite weights A_j, B_j of an activation, including its normalization.

    For the derivative these are √(j+1) A_{j+1} and √(j+1) B_{j+1}.
    """
    n = degree + 1 + derivative
    constant, linear = (activation.scale * weights for weights in activation.hermite_weights(n))
    if derivative:
        roots = np.sqrt(np.arange(1, n))
        constant, linear = roots * constant[1:], roots * linear[1:]
    return tuple(zip(constant.tolist(), linear.tolist(), strict=True))


def _truncate(activation: Activation, a: Array, kept: tuple[int, ...], derivative: bool) -> list[Array]:
    """Compute the coefficients of :func:`truncated_coefficients`."""
    xp = _array.namespace(a)
    exact = _expand(activation, a, kept[-1], derivative)
    at_one, at_minus_one = activation.dual_at_ends(a, derivative=derivative)
    coefficients = dict.fromkeys(kept, xp.zeros_like(a))
    orphan = None
    for parity, rest in enumerate(((at_one + at_minus_one) / 2, (at_one - at_minus_one) / 2)):
        groups = _groups(activation, kept, parity, derivative)
        if not groups:
            orphan = rest
            continue
        top, _ = groups.popitem()
        for j, group in groups.items():
            weight = reduce(add, [exact[i] * exact[i] for i in group])
            coefficients[j] = xp.abs(exact[j]) if group == [j] else root(weight)
            rest = rest - weight
        # A small remainder has lost its digits and may be negative.
        coefficients[top] = root(xp.maximum(rest, exact[top] * exact[top]))
    if orphan is not None:
        coefficients[kept[-1]] = root(coefficients[kept[-1]] ** 2 + xp.clip(orphan, 0, None))
    return [coefficients[j] for j in kept]


def _groups(activation: Activation, kept: tuple[int, ...], parity: int, derivative: bool) -> dict[int, list[int]]:
    """Return, for each kept degree of a parity, the degrees whose weight it receives, without degrees of weight 0."""
    present = [any(weights) for weights in _weights(activation, kept[-1], derivative)]
    groups: dict[int, list[int]] = {}
    start = parity
    for j in kept:
        if j % 2 == parity:
            group = [i for i in range(start, j + 1, 2) if present[i]]
            groups |= {j: group} if group else {}
            start = j + 2
    return groups


@lru_cache(maxsize=256)
def _fit(w: float, degree: int, derivative: bool) -> tuple[tuple[float, ...], float]:
    """Fit a polynomial to the scaled dual; the even or odd dual of Abs is fitted by powers of its parity only.

    Otherwise powers of the other parity would receive about 2 % of the weight, because of the equation at t = 1, and
    the largest error would be larger.
    """
    t = nodes()
    values = w + (1 - w) * arc_cosine(t, 0) if derivative else w * t + (1 - w) * arc_cosine(t, 1)
    degrees = np.arange(int(derivative), degree + 1, 2) if w == -1 and degree > 0 else np.arange(degree + 1)
    coefficients, error = fit(t, values, 1.0, degrees)
    return tuple(np.pad(coefficients, (0, degree + 1 - len(coefficients))).tolist()), error


def _check_activation(activation: object, owner: str) -> None:
    if not isinstance(activation, Activation):
        remedy = "Write ReLU(), not ReLU." if isinstance(activation, type) else ""
        raise TypeError(message(owner, "activation", "an activation of ntkit.networks", activation, remedy))


def _check_degrees(activation: Activation, degrees: Any, owner: str, derivative: bool) -> tuple[int, ...]:
    rule = f"an increasing sequence of ints from 0 to {LARGEST_DEGREE}"
    if not isinstance(degrees, Sequence | np.ndarray) or isinstance(degrees, str):
        raise TypeError(message(owner, "degrees", rule, degrees))
    kept = tuple(check_int(j, "degrees", owner, minimum=0, maximum=LARGEST_DEGREE) for j in degrees)
    if not kept or any(i >= j for i, j in pairwise(kept)):
        raise ValueError(message(owner, "degrees", rule, degrees))
    if not any(_groups(activation, kept, parity, derivative) for parity in (0, 1)):
        parity = "even" if any(_weights(activation, 0, derivative)[0]) else "odd"
        dual = f"the {'derivative ' if derivative else ''}dual of {activation!r}"
        rule = f"a sequence with at least one {parity} degree, since {dual} is {parity}"
        raise ValueError(message(owner, "degrees", rule, degrees))
    return kept


def _variances(variance: Any, owner: str, *, graph: bool = False) -> tuple[Array, Any]:
    """Return the variances in wide precision, detached from torch's graph unless `graph`, and the result's dtype."""
    a = real_array(variance, "variance", owner)
    dtype = _array.result_dtype(a)
    xp: Any = _array.namespace(a)
    a = _array.widen(a.detach() if _array.is_torch(a) and not graph else a)
    if not _array.is_traced(a) and not bool(xp.all((a >= 0) & (a < math.inf))):
        remedy = "Clip negative rounding errors to zero."
        raise ValueError(message(owner, "variance", "finite and ≥ 0", variance, remedy))
    return a, dtype
