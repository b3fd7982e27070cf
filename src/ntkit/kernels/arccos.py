"""Arc-cosine kernels κ₀, κ₁, κ₂, the ReLU-NTK function K_relu^(L) built from them, and their Taylor series.

Functions of a cosine t in [−1, 1]. They are evaluated through x = 1 − |t|, exact in floating point near
t = ±1, so nothing is lost there: arccos|t| = 2 arctan √(x/(2 − x)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_choice, check_int, describe

__all__ = ["arc_cosine", "arc_cosine_taylor", "relu_ntk", "relu_ntk_taylor"]

NEAR = 1e-8  # below this 1 − |t| has lost half its digits to rounding of t: worth computing again
SAME = 2e-15  # below this 1 − |t| is rounding alone; κ₀ would turn it into an error of √(2 · 2e-15)/π = 2e-8


def arc_cosine(t: Any, order: int) -> Array:
    """Arc-cosine kernel κ_order of unit vectors with cosine `t` (Cho and Saul), scaled to κ(1) = 1.

    With θ = arccos t::

        κ₀(t) = (π − θ)/π
        κ₁(t) = (sin θ + (π − θ) cos θ)/π
        κ₂(t) = (3 sin θ cos θ + (π − θ)(1 + 2 cos² θ))/(3π)

    κ₁ is the kernel of a ReLU layer, κ₀ = κ₁′ that of its derivative.

    Parameters
    ----------
    t : float or array
        Cosines in [−1, 1].
    order : {0, 1, 2}
        Order of the kernel.

    Returns
    -------
    float or array like `t`

    References
    ----------
    .. [1] Cho and Saul, "Kernel Methods for Deep Learning", NeurIPS 2009.
    .. [2] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Definition 1, Eq. (2).

    Examples
    --------
    >>> arc_cosine(0.0, 0)
    0.5
    >>> arc_cosine([-1.0, 1.0], 1)
    array([0., 1.])
    """
    order = check_int(order, "order", "arc_cosine", minimum=0, maximum=2)
    t, finish = _cosines(t, "arc_cosine")
    xp = _array.namespace(t)
    negative = t < 0
    x = 1 - xp.abs(t)
    if order < 2:
        k0, k1, _ = arc_cosine_pair(x, negative)
        return finish(k0 if order == 0 else k1)
    theta, sine = _angle(x)
    # (3 sin θ |cos θ| − θ(1 + 2 cos² θ))/(3π) is the even part; t > 0 adds 1 + 2 cos² θ over 3 once.
    square = 1 + 2 * t * t
    even = 3 * sine * xp.abs(t) - theta * square
    return finish(xp.where(negative, -even, even + math.pi * square) / (3 * math.pi))


def relu_ntk(t: Any, depth: int) -> Array:
    """ReLU-NTK function K_relu^(L)(t) of Definition 1, L = `depth`.

    Σ⁰ = K⁰ = t and, for ℓ = 1 … L::

        Σ^ℓ = κ₁(Σ^{ℓ−1})            K^ℓ = K^{ℓ−1} · κ₀(Σ^{ℓ−1}) + Σ^ℓ

    so K^L(1) = L + 1, and the NTK of vectors is ‖x‖‖y‖ K^L(cos(x, y)).

    Parameters
    ----------
    t : float or array
        Cosines in [−1, 1].
    depth : int ≥ 1
        Number L of ReLU layers.

    Returns
    -------
    float or array like `t`

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Definition 1, Eqs. (2)–(4).

    Examples
    --------
    >>> relu_ntk(1.0, 3)
    4.0
    >>> relu_ntk([-1.0, 0.0, 1.0], 1)
    array([0.        , 0.31830989, 2.        ])
    """
    from ntkit.kernels.activations import homogeneous_chain

    depth = check_int(depth, "depth", "relu_ntk", minimum=1)
    t, finish = _cosines(t, "relu_ntk")
    mixes, trained = np.zeros(depth), np.ones(depth + 1)
    if not _array.is_numpy(t):
        _, theta = homogeneous_chain(t, 1 - _array.namespace(t).abs(t), mixes, trained)
        return finish(theta)
    from ntkit.kernels import _numba

    flat = np.ascontiguousarray(t).reshape(1, -1)
    out = np.empty_like(flat)
    none = np.empty((0, 2), np.int64)
    unit = np.ones(flat.shape[1])
    _numba.chain(flat, none, np.empty(0), mixes, trained, np.ones(1), unit, np.empty((0, 0)), out)
    return finish(out.reshape(t.shape))


def arc_cosine_pair(x: Array, negative: Array) -> tuple[Array, Array, Array]:
    """κ₀(t), κ₁(t) and 1 − κ₁(t) for t = ±(1 − x), 0 ≤ x ≤ 1; the minus where `negative`.

    With θ = arccos|t| and q = (sin θ − θ cos θ)/π:  κ₁ = max(t, 0) + q,  κ₀ = 1 − θ/π or θ/π.
    """
    xp = _array.namespace(x)
    theta, sine = _angle(x)
    q = (sine - theta * (1 - x)) / math.pi
    k0 = xp.where(negative, theta / math.pi, 1 - theta / math.pi)
    k1 = xp.where(negative, q, 1 - x + q)
    return k0, k1, xp.where(negative, 1 - q, x - q)


def arc_cosine_taylor(order: int, degree: int) -> np.ndarray:
    """Taylor coefficients at 0 of κ₀ or κ₁, all non-negative.

    ::

        κ₀(t) = 1/2 + (1/π) Σ_i (2i)! / (4^i (i!)² (2i+1)) t^{2i+1}
        κ₁(t) = 1/π + t/2 + (1/π) Σ_i (2i)! / (4^i (i!)² (2i+1)(2i+2)) t^{2i+2}

    Parameters
    ----------
    order : {0, 1}
        κ₀ or κ₁.
    degree : int ≥ 0
        Highest power.

    Returns
    -------
    ndarray of shape (degree + 1,)
        Coefficient of t^j at index j.

    References
    ----------
    .. [1] Zandieh et al., NeurIPS 2021, Eq. (6); Lemma 3 bounds the remainder.

    Examples
    --------
    >>> import math
    >>> arc_cosine_taylor(0, 3) * math.pi
    array([1.57079633, 1.        , 0.        , 0.16666667])
    """
    order = check_int(order, "order", "arc_cosine_taylor", minimum=0, maximum=1)
    degree = check_int(degree, "degree", "arc_cosine_taylor", minimum=0)
    forward, derivative = _compose(_identity_series(degree))
    return derivative if order == 0 else forward


def relu_ntk_taylor(depth: int, degree: int, *, kind: str = "ntk") -> np.ndarray:
    """Taylor coefficients at 0 of K_relu^(L) or, with kind "nngp", of Σ_relu^(L); all non-negative.

    The recursion of :func:`relu_ntk` in truncated power series. Every step adds non-negative terms
    only, so no digits cancel.

    Parameters
    ----------
    depth : int ≥ 1
        Number L of ReLU layers.
    degree : int ≥ 0
        Highest power.
    kind : {"ntk", "nngp"}, default="ntk"
        Which of the two functions.

    Returns
    -------
    ndarray of shape (degree + 1,)
        Coefficient of t^j at index j. Their infinite sum is L + 1 for "ntk" and 1 for "nngp".

    Examples
    --------
    >>> import math
    >>> relu_ntk_taylor(1, 2) * math.pi
    array([1.        , 3.14159265, 1.5       ])
    """
    depth = check_int(depth, "depth", "relu_ntk_taylor", minimum=1)
    degree = check_int(degree, "degree", "relu_ntk_taylor", minimum=0)
    check_choice(kind, "kind", "relu_ntk_taylor", ("ntk", "nngp"))
    sigma = theta = _identity_series(degree)
    for _ in range(depth):
        sigma, derivative = _compose(sigma)
        theta = _product(theta, derivative) + sigma
    return theta if kind == "ntk" else sigma


def _cosines(t: Any, owner: str) -> tuple[Array, Any]:
    """Cosines in wide precision, clipped, and the function that casts a result back to what `t` was."""
    scalar = isinstance(t, float | int | np.number)
    t = t if _array.is_array(t) else np.asarray(t)
    xp = _array.namespace(t)
    if not xp.isdtype(t.dtype, ("bool", "integral", "real floating")):
        raise TypeError(f"The 't' parameter of {owner} must be real. Got {describe(t)} instead.")
    floating = xp.isdtype(t.dtype, "real floating")
    dtype = t.dtype if floating else _array.wide_dtype(t)
    slack = 8 * float(xp.finfo(dtype).eps)
    t = _array.widen(t)
    if not bool(xp.all(xp.abs(t) <= 1 + slack)):
        worst = float(xp.max(xp.abs(t)))
        raise ValueError(
            f"The 't' parameter of {owner} must lie in [-1, 1] (cosines). Got an entry with |t| = {worst} "
            "instead. Divide inner products by the norms of both vectors."
        )

    def finish(values: Array) -> Array:
        return float(values) if scalar else xp.astype(values, dtype, copy=False)

    return xp.clip(t, -1, 1), finish


def _angle(x: Array) -> tuple[Array, Array]:
    """θ = arccos(1 − x) and sin θ for 0 ≤ x ≤ 1."""
    xp = _array.namespace(x)
    return 2 * xp.atan2(xp.sqrt(x), xp.sqrt(2 - x)), xp.sqrt(x * (2 - x))


def _identity_series(degree: int) -> np.ndarray:
    return np.array([0.0, 1.0] + [0.0] * (degree - 1))[: degree + 1]


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.convolve(a, b)[: len(a)] if len(a) else a


def _compose(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Series of κ₁(u(t)) and κ₀(u(t)) for a series u with coefficients ≥ 0 and 0 ≤ u(0) < 1.

    κ₀(u)′ = u′ (1 − u²)^{−1/2}/π and κ₁(u)′ = κ₀(u) u′, integrated from the values at u(0).
    """
    degree = len(u) - 1
    f = -_product(u, u)
    f[0] += 1
    # g = f^{−1/2} from n f₀ gₙ = Σ_k (k/2 − n) f_k g_{n−k}: f_k ≤ 0 and k/2 < n, so all terms are ≥ 0.
    g = np.empty_like(u)
    g[0] = f[0] ** -0.5
    for n in range(1, degree + 1):
        k = np.arange(1, n + 1)
        g[n] = np.sum((k / 2 - n) * f[k] * g[n - k]) / (n * f[0])
    slope = np.arange(1, degree + 1) * u[1:]
    powers = np.arange(1, degree + 1)
    derivative = np.concatenate([[arc_cosine(float(u[0]), 0)], _product(slope, g[:-1]) / math.pi / powers])
    forward = np.concatenate([[arc_cosine(float(u[0]), 1)], _product(derivative[:-1], slope) / powers])
    return forward, derivative
