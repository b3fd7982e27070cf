"""Arc-cosine kernels κ₀, κ₁, κ₂, and the ReLU-NTK function K_relu^(L) built from them.

They are functions of a cosine t in [−1, 1]. They are evaluated from x = 1 − |t|, which is exact in floating point near
t = ±1, so no digits are lost there: arccos|t| = 2 arctan √(x/(2 − x)).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_int, describe
from ntkit.kernels.chain import recursion
from ntkit.kernels.spec import KernelSpec
from ntkit.networks.activations import angle, arc_cosine_pair

__all__ = ["arc_cosine", "relu_ntk"]


def arc_cosine(t: Any, order: int) -> Array:
    """Compute the arc-cosine kernel κ_order of unit vectors with cosine `t` (Cho and Saul), scaled to κ(1) = 1.

    With θ = arccos t::

        κ₀(t) = (π − θ)/π
        κ₁(t) = (sin θ + (π − θ) cos θ)/π
        κ₂(t) = (3 sin θ cos θ + (π − θ)(1 + 2 cos² θ))/(3π)

    κ₁ is the kernel of a ReLU layer; κ₀ = κ₁′ is the kernel of its derivative.

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
    return finish(arc_cosine_of_gap(t, 1 - xp.abs(t), order))


def arc_cosine_of_gap(t: Array, gap: Array, order: int) -> Array:
    """Compute κ_order(t); `gap` is 1 − |t|, which may be known more accurately than t."""
    if order < 2:
        return arc_cosine_pair(gap, t < 0)[order]
    xp = _array.namespace(t)
    theta, sine = angle(gap)
    # With θ = arccos|t| and e = 3 sin θ |cos θ| − θ(1 + 2 cos² θ): 3π κ₂ = −e for t < 0, else e + π(1 + 2 cos² θ).
    square = 1 + 2 * t * t
    even = 3 * sine * xp.abs(t) - theta * square
    return xp.where(t < 0, -even, even + math.pi * square) / (3 * math.pi)


def relu_ntk(t: Any, depth: int) -> Array:
    """Compute the ReLU-NTK function K_relu^(L)(t) of Definition 1 of [1]_, with L = `depth`.

    Σ⁰ = K⁰ = t and, for ℓ = 1 … L::

        Σ^ℓ = κ₁(Σ^{ℓ−1})            K^ℓ = K^{ℓ−1} · κ₀(Σ^{ℓ−1}) + Σ^ℓ

    So K^L(1) = L + 1, and the NTK of vectors is ‖x‖‖y‖ K^L(cos(x, y)).

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
    depth = check_int(depth, "depth", "relu_ntk", minimum=1)
    t, finish = _cosines(t, "relu_ntk")
    if _array.is_numpy(t):
        return finish(KernelSpec.of("ntk", depth=depth).on_sphere(t))
    return finish(recursion(t, 1 - _array.namespace(t).abs(t), np.zeros(depth), np.ones(depth + 1))[1])


def _cosines(t: Any, owner: str) -> tuple[Array, Any]:
    """Return the clipped cosines in wide precision, and a function that casts a result back to the type of `t`."""
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
