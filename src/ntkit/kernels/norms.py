"""Scaling of rows whose norms are so large or so small that their squares overflow or underflow float64."""

from __future__ import annotations

import math
from typing import Any

from ntkit import _array
from ntkit._array import Array
from ntkit.kernels.tiles import Rows, row_norms
from ntkit.networks import Layer, UnsupportedError, fold
from ntkit.networks.shapes import Growth, Powers

LIMIT = 1e140  # squares of norms from 1/LIMIT to LIMIT are well within the range of float64


def moderate_norms(norms: Array) -> Array:
    """Replace extreme norms ‖x‖ by moderate ones r; for k(x, y) ∝ ‖x‖^p this leaves a factor (‖x‖/r)^p.

    r = LIMIT · (1 + log(‖x‖/LIMIT)) increases with ‖x‖, so that rows of different norms stay different.
    """
    xp: Any = _array.namespace(norms)
    large, small = norms > LIMIT, (norms < 1 / LIMIT) & (norms > 0)
    if _array.is_traced(norms) or not bool(xp.any(large | small)):
        return norms
    one = xp.ones_like(norms)
    above = LIMIT * (1 + xp.log(xp.where(large, norms, LIMIT * one)) - math.log(LIMIT))
    below = 1 / (LIMIT * (1 - xp.log(xp.where(small, norms, one / LIMIT)) - math.log(LIMIT)))
    return xp.where(large, above, xp.where(small, below, norms))


def extreme_factors(net: Layer, X: Array) -> dict[Any, Array]:
    """Return factors that make extreme rows moderate, and factors that undo this in the kernels.

    The dictionary is empty if no row is extreme. "factor" multiplies the rows, "outer" multiplies k(x, y), "own_nngp"
    and "own_ntk" multiply Σ(x, x) and Θ(x, x).
    """
    norms = row_norms(_array.namespace(X).reshape(X, (X.shape[0], -1)))
    inner = moderate_norms(norms)
    if inner is norms:
        return {}
    try:
        powers = fold(net, Growth(), Powers())
    except UnsupportedError:  # a user-defined layer
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
    """Return the rows, multiplied by their factors if there are any."""
    if "factor" not in rows.stats:
        return rows.data
    factor = rows.stats["factor"]
    return _array.widen(rows.data) * _array.namespace(factor).reshape(factor, (-1, *[1] * (rows.data.ndim - 1)))


def unscaled(K: Array, a: Rows, b: Rows) -> Array:
    """Convert kernel values of scaled rows to kernel values of the original rows."""
    K = K * a.stats["outer"][:, None] if "outer" in a.stats else K
    return K * b.stats["outer"][None, :] if "outer" in b.stats else K


def unscaled_own(values: Array, rows: Rows, kind: str) -> Array:
    """Convert values K(x, x) of scaled rows to values of the original rows."""
    return values * rows.stats[f"own_{kind}"] if f"own_{kind}" in rows.stats else values
