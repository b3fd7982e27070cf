"""Rows so long or so short that their squares leave float64."""

from __future__ import annotations

import math
from typing import Any

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.tiles import Rows, row_norms
from ntkit.networks import Layer, UnsupportedError, fold
from ntkit.networks.shapes import Growth, Powers

LIMIT = 1e140  # norms up to which, and down to the inverse of which, squares stay well within float64


def settled(norms: Array) -> Array:
    """Norms r within reach in place of extreme ones: of k(x, y) ∝ ‖x‖^p the rest is a factor (‖x‖/r)^p.

    Longer rows stay longer: r is LIMIT · (1 + log(‖x‖/LIMIT)), so that rows that differ still do.
    """
    xp: Any = _array.namespace(norms)
    large, small = norms > LIMIT, (norms < 1 / LIMIT) & (norms > 0)
    if _array.is_traced(norms) or not bool(xp.any(large | small)):
        return norms
    one = xp.ones_like(norms)
    above = LIMIT * (1 + xp.log(xp.where(large, norms, LIMIT * one)) - math.log(LIMIT))
    below = 1 / (LIMIT * (1 - xp.log(xp.where(small, norms, one / LIMIT)) - math.log(LIMIT)))
    return xp.where(large, above, xp.where(small, below, norms))


def extremes(net: Layer, X: Array) -> dict[Any, Array]:
    """Factors of rows ("factor") and of their kernels, if some are extreme; else nothing.

    Those of k(x, y) are "outer", those of Σ(x, x) and Θ(x, x) "own_nngp" and "own_ntk".
    """
    norms = row_norms(_array.namespace(X).reshape(X, (X.shape[0], -1)))
    inner = settled(norms)
    if inner is norms:
        return {}
    try:
        powers = fold(net, Growth(), Powers())
    except UnsupportedError:  # a layer of the user's own
        return {}
    xp: Any = _array.namespace(norms)
    ratio = norms / xp.where(inner > 0, inner, xp.ones_like(inner))
    large = norms > LIMIT
    return {
        "factor": 1 / xp.where(ratio > 0, ratio, xp.ones_like(ratio)),
        "outer": xp.where(large, ratio**powers.infinity, ratio**powers.zero),
        "own_nngp": xp.where(large, ratio ** (2 * powers.infinity), ratio ** (2 * powers.zero)),
        "own_ntk": xp.where(large, ratio**powers.own, ratio ** (2 * powers.zero)),
    }


def scaled(rows: Rows) -> Array:
    """Rows as a walk takes them, multiplied by their factors where there are some."""
    if "factor" not in rows.stats:
        return rows.data
    factor = rows.stats["factor"]
    return _array.widen(rows.data) * _array.namespace(factor).reshape(factor, (-1, *[1] * (rows.data.ndim - 1)))


def unscaled(K: Array, a: Rows, b: Rows) -> Array:
    """Kernel values of rows, from those of scaled rows."""
    K = K * a.stats["outer"][:, None] if "outer" in a.stats else K
    return K * b.stats["outer"][None, :] if "outer" in b.stats else K


def unscaled_own(values: Array, rows: Rows, kind: str) -> Array:
    """Values of pairs (x, x), from those of scaled rows."""
    return values * rows.stats[f"own_{kind}"] if f"own_{kind}" in rows.stats else values
