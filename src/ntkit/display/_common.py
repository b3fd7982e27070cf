"""Helpers shared by all displays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._validation import message
from ntkit.diagnostics import checked_matrix_and_features


def check_matplotlib(caller: str) -> None:
    """Raise an error that says how to install matplotlib if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401 (a broken installation may have the package alone)
    except ImportError as error:
        raise ImportError(f"{caller} needs matplotlib: pip install 'ntkit[plot]'.") from error


def axes_or_new(ax: Any, caller: str) -> Any:
    """Return `ax`, or the axes of a new figure, which notebooks show."""
    check_matplotlib(caller)
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(layout="constrained")[1]


def approximate(Z: Array) -> np.ndarray:
    """Compute Z Zᵀ, in host memory."""
    Z = _array.widen(Z)
    xp: Any = _array.namespace(Z)
    return np.asarray(to_numpy(xp.matmul(Z, xp.matrix_transpose(Z))))


def checked_matrices(K: Any, Z: Any, owner: str) -> tuple[np.ndarray, np.ndarray]:
    """Check the shapes and values of K and Z, and return K and Z Zᵀ in host memory."""
    K, Z = checked_matrix_and_features(K, Z, owner)
    return np.asarray(to_numpy(K)), approximate(Z)


def number_array(values: Any, name: str, owner: str, check: Callable[[np.ndarray], Any], rule: str) -> np.ndarray:
    """Return `values` as a float64 array that passes `check`, or raise an error that states the rule."""
    try:
        array = np.asarray(to_numpy(values), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(message(owner, name, rule, values)) from error
    if not array.size or not check(array):
        raise ValueError(message(owner, name, rule, values))
    return array
