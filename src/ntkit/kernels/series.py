"""Taylor series of network kernels in the cosine of unit vectors; all coefficients are ≥ 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ntkit._state import reserve
from ntkit._validation import check_choice, check_int
from ntkit.kernels.arccos import arc_cosine
from ntkit.networks import Algebra, Dense, Layer, PiecewiseLinear, Residual, fold, fully_connected
from ntkit.networks.fold import Path

__all__ = ["arc_cosine_taylor", "relu_ntk_taylor"]


def arc_cosine_taylor(order: int, degree: int) -> np.ndarray:
    """Compute the Taylor coefficients of κ₀ or κ₁ at 0, which are non-negative.

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
    return _arc_cosine_taylor(2 ** max(7, degree.bit_length()))[order][: degree + 1].copy()


def relu_ntk_taylor(depth: int, degree: int, *, kind: str = "ntk") -> np.ndarray:
    """Compute the Taylor coefficients at 0 of K_relu^(L) or, for kind "nngp", of Σ_relu^(L); they are non-negative.

    This is the recursion of :func:`relu_ntk` in truncated power series. Every step adds only non-negative terms, so no
    digits cancel.

    Parameters
    ----------
    depth : int ≥ 1
        Number L of ReLU layers.
    degree : int ≥ 0
        Highest power.
    kind : {"ntk", "nngp"}, default="ntk"
        "ntk" for K_relu^(L), "nngp" for Σ_relu^(L).

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
    check_choice(kind, "kind", "relu_ntk_taylor", ("ntk", "nngp"))
    return network_taylor(fully_connected(depth), check_int(degree, "degree", "relu_ntk_taylor", minimum=0))[kind]


@lru_cache(maxsize=16)
def _arc_cosine_taylor(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the Taylor coefficients of κ₀ and κ₁."""
    return _compose(_identity_series(degree))[::-1]


@dataclass(frozen=True)
class Expansion:
    """Truncated series of Σ and Θ in the cosine, and the variance, which is Σ at cosine one."""

    nngp: np.ndarray
    ntk: np.ndarray
    variance: float


class PowerSeries(Algebra[Expansion]):
    """The recursion over layers in truncated power series; every step adds only terms ≥ 0, so no digits cancel."""

    def join(self, layer: Residual, before: Expansion, ends: list[Expansion], path: Path) -> Expansion:
        """Add the kernels of the branches."""
        return Expansion(
            np.sum([end.nngp for end in ends], axis=0),
            np.sum([end.ntk for end in ends], axis=0),
            sum(end.variance for end in ends),
        )


@PowerSeries.rule(Dense)
def _(algebra: PowerSeries, layer: Dense, state: Expansion, path: Path) -> Expansion:
    scale, bias = layer.weight_std**2, np.zeros(len(state.nngp))
    bias[0] = layer.bias_std**2
    ntk = state.ntk + state.nngp if layer.trainable else state.ntk
    return Expansion(
        scale * state.nngp + bias, scale * ntk + layer.trainable * bias, scale * state.variance + layer.bias_std**2
    )


@PowerSeries.rule(PiecewiseLinear)
def _(algebra: PowerSeries, layer: PiecewiseLinear, state: Expansion, path: Path) -> Expansion:
    w, u = layer.mix, state.nngp / state.variance
    forward, derivative = _compose(u)
    forward, derivative = w * u + (1 - w) * forward, (1 - w) * derivative
    derivative[0] += w
    variance = layer.gain * state.variance
    return Expansion(variance * forward, layer.gain * _product(state.ntk, derivative), variance)


@lru_cache(maxsize=64)
def _network_taylor(net: Layer, degree: int) -> Expansion:
    return fold(net, PowerSeries(), Expansion(_identity_series(degree), np.zeros(degree + 1), 1.0))


def network_taylor(net: Layer, degree: int) -> dict[str, np.ndarray]:
    """Return the Taylor coefficients of both kernels of a network, as copies that the caller may modify."""
    size = 2 ** max(7, (degree).bit_length())  # a power of two, so that few different sizes are computed and cached
    state = _network_taylor(net, size)
    return {"nngp": state.nngp[: degree + 1].copy(), "ntk": state.ntk[: degree + 1].copy()}


def _identity_series(degree: int) -> np.ndarray:
    return np.array([0.0, 1.0] + [0.0] * (degree - 1))[: degree + 1]


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.convolve(a, b)[: len(a)] if len(a) else a


def _compose(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the series of κ₁(u(t)) and κ₀(u(t)) for a series u with coefficients ≥ 0 and 0 ≤ u(0) < 1.

    κ₀(u)′ = u′ (1 − u²)^{−1/2}/π and κ₁(u)′ = κ₀(u) u′, integrated from the values at u(0).
    """
    degree = len(u) - 1
    reserve(0, "The Taylor coefficients of a network", seconds=2e-5 * degree)
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
