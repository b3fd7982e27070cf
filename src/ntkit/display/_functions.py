"""Plots of kernel functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ntkit._validation import check_int, message
from ntkit.display._common import axes_or_new
from ntkit.kernels import relu_ntk


def plot_relu_ntk(depths: Sequence[int] = range(1, 33), *, ax: Any = None) -> Any:
    """Plot the normalized ReLU-NTK functions K_relu^(L)(t)/(L + 1), as in the left part of Figure 1 of [1]_.

    Parameters
    ----------
    depths : sequence of int, default=1…32
        The depths L. Powers of two are emphasized and labelled.
    ax : matplotlib Axes, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib Axes

    References
    ----------
    .. [1] Zandieh et al., "Scaling Neural Tangent Kernels via Sketching and Random Features",
       NeurIPS 2021, Figure 1.

    Examples
    --------
    >>> from ntkit.display import plot_relu_ntk
    >>> ax = plot_relu_ntk([1, 2, 4])
    >>> ax.get_xlabel()
    'cosine t'
    """
    depths = [check_int(depth, "depths", "plot_relu_ntk", minimum=1) for depth in depths]
    if not depths:
        raise ValueError(message("plot_relu_ntk", "depths", "a non-empty sequence of int ≥ 1", depths))
    ax = axes_or_new(ax, "plot_relu_ntk")
    from matplotlib import colormaps

    angles = np.linspace(np.pi, 0, 801)  # dense in t near ±1, where the curves bend
    t = np.cos(angles)
    shades = 0.92 * (1 - np.log2(depths) / max(np.log2(max(depths)), 1))
    for depth, colour in zip(depths, colormaps["viridis"](shades), strict=True):
        named = depth & (depth - 1) == 0
        ax.plot(
            t,
            relu_ntk(t, depth) / (depth + 1),
            color=colour,
            linewidth=2 if named else 0.7,
            alpha=1 if named else 0.5,
            label=f"L = {depth}" if named else None,
        )
    ax.set(xlabel="cosine t", ylabel="K$_{relu}^{(L)}$(t) / (L + 1)", xlim=(-1, 1), ylim=(None, 1.02))
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)
    return ax
