"""The fast Walsh–Hadamard transform."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_int, message, real_array
from ntkit.programs import Program, power_of_two, run


def fwht(X: Array, *, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the Walsh–Hadamard transform along an axis, in Sylvester's (natural) order.

    y[i] = Σ_j (−1)^{popcount(i & j)} x[j],  x zero-padded to n = 2^k entries; H Hᵀ = n I.

    Parameters
    ----------
    X : array of shape (…, d)
        NumPy array, torch tensor or any other array that follows the array API standard.
    axis : int
        Axis to transform.
    norm : None or "ortho"
        "ortho" divides by √n, which makes the transform orthogonal and its own inverse.

    Returns
    -------
    array of shape (…, n), n the smallest power of two ≥ d
        Integers become float64; floating-point input keeps its dtype.

    Notes
    -----
    O(n log n) additions per row. NumPy arrays and CPU tensors are transformed in cache, 16 float32 rows at a time.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit.sketches import fwht
    >>> fwht(np.array([1.0, 2.0, 3.0]))
    array([ 6.,  2.,  0., -4.])
    """
    if norm not in (None, "ortho"):
        raise ValueError(message("fwht", "norm", "None or 'ortho'", norm))
    X = real_array(X, "X", "fwht")
    if X.ndim == 0:
        raise ValueError(message("fwht", "X", "an array with at least one axis", X))
    axis = check_int(axis, "axis", "fwht", minimum=-X.ndim, maximum=X.ndim - 1)
    if X.shape[axis] == 0:
        raise ValueError(message("fwht", "X", f"an array with at least one entry along axis {axis}", X))
    xp = _array.namespace(X)
    Y = run(_program(X.shape[axis], norm), (xp.moveaxis(X, axis, -1),))
    return xp.moveaxis(Y, -1, axis)


@lru_cache(maxsize=64)
def _program(n_features: int, norm: str | None) -> Program:
    program = Program((n_features,))
    scale = power_of_two(n_features) ** -0.5 if norm else 1.0
    program.output(program.hadamard(program.load(scale=scale), np.ones(n_features)))
    return program
