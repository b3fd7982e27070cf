"""Compare a kernel matrix with its approximation by features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkit._random import RandomState, seed_sequence
from ntkit._validation import check_choice, message
from ntkit.diagnostics import as_plain_rows, exact_kernel_of, sample_rows
from ntkit.display._common import axes_or_new, check_matplotlib, checked_matrices

_KINDS = ("scatter", "matrix", "spectrum")
_TITLES = ("Exact kernel", "Features", "Difference")


class KernelApproximationDisplay:
    """Plot of exact kernel values against their approximation Z Zᵀ by a feature map.

    Create it with :meth:`from_estimator` or :meth:`from_matrices`. All parameters are stored as attributes.

    Parameters
    ----------
    exact : ndarray of shape (n, n)
        Kernel matrix K of some rows.
    approximate : ndarray of shape (n, n)
        Z Zᵀ of the same rows.
    name : str, default=None
        Name of the map, for the legend or the title.

    Attributes
    ----------
    relative_error : float
        ‖Z Zᵀ − K‖_F / ‖K‖_F.
    ax_ : matplotlib Axes, or ndarray of three for kind="matrix"
    figure_ : matplotlib Figure
    scatter_ : matplotlib PathCollection
        Kernel values of the pairs i ≤ j, for kind="scatter".
    diagonal_ : matplotlib Line2D
        Line of equal exact and approximate values, for kind="scatter".
    images_ : list of three matplotlib AxesImage
        Exact, approximate, difference, for kind="matrix".
    lines_ : list of two matplotlib Line2D
        Eigenvalues of K and of Z Zᵀ, for kind="spectrum".

    See Also
    --------
    ErrorCurveDisplay : Errors of several maps against their sizes.
    ntkit.diagnostics.kernel_error : The relative error alone.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKFeatures
    >>> from ntkit.display import KernelApproximationDisplay
    >>> X = np.random.default_rng(0).standard_normal((300, 5))
    >>> features = NTKFeatures(n_components=512, random_state=0).fit(X)
    >>> display = KernelApproximationDisplay.from_estimator(features, X, random_state=0)
    >>> round(display.relative_error, 3) == round(features.estimate_error(X, n_samples=200, random_state=0), 3)
    True
    """

    def __init__(self, *, exact: Any, approximate: Any, name: str | None = None):
        self.exact = exact
        self.approximate = approximate
        self.name = name

    @property
    def relative_error(self) -> float:
        """Relative error in Frobenius norm."""
        size = np.linalg.norm(self.exact)
        error = np.linalg.norm(self.approximate - self.exact)
        return float(error / size) if size > 0 else float(error)

    def plot(self, ax: Any = None, *, kind: str = "scatter", name: str | None = None, **kwargs: Any) -> Self:
        """Draw the kernel values.

        Parameters
        ----------
        ax : matplotlib Axes, or three of them for kind="matrix", default=None
            Where to draw; None makes a new figure.
        kind : {"scatter", "matrix", "spectrum"}, default="scatter"
            "scatter": one point for each pair of rows, exact against approximate value. "matrix": both matrices and
            their difference as images. "spectrum": eigenvalues of both matrices in decreasing order.
        name : str, default=None
            Name of the map; None: the name of the display.
        **kwargs
            Passed to matplotlib's ``scatter``, ``imshow`` or ``plot``. They do not affect the colours of the difference
            and the exact spectrum, which is black.

        Returns
        -------
        display : KernelApproximationDisplay
        """
        owner = f"{type(self).__name__}.plot"
        check_matplotlib(owner)
        check_choice(kind, "kind", owner, _KINDS)
        name = self.name if name is None else name
        label = f"{name or 'features'}, relative error {self.relative_error:.3g}"
        draw = {"scatter": self._scatter, "matrix": self._matrices, "spectrum": self._spectrum}[kind]
        draw(_three_axes(ax, owner) if kind == "matrix" else axes_or_new(ax, owner), label, kwargs)
        return self

    def _scatter(self, ax: Any, label: str, kwargs: dict[str, Any]) -> None:
        pairs = np.triu_indices(len(self.exact))
        exact, approximate = self.exact[pairs], self.approximate[pairs]
        # Rasterize: tens of thousands of points make a vector graphic slow.
        style = {"s": 6, "alpha": 0.3, "linewidths": 0, "rasterized": True, "label": label, **kwargs}
        self.scatter_ = ax.scatter(exact, approximate, **style)
        ends = [min(exact.min(), approximate.min()), max(exact.max(), approximate.max())]
        (self.diagonal_,) = ax.plot(ends, ends, color="black", linewidth=1, linestyle="--")
        ax.set(xlabel="Exact kernel", ylabel="Z·Z′ of the features")
        legend = ax.legend(loc="upper left")
        for handle in legend.legend_handles:
            handle.set_alpha(1)
        self.ax_, self.figure_ = ax, ax.figure

    def _matrices(self, axes: np.ndarray, label: str, kwargs: dict[str, Any]) -> None:
        difference = self.approximate - self.exact
        both = np.stack([self.exact, self.approximate])
        widest = np.abs(difference).max() or 1.0
        self.images_ = []
        for ax, matrix, title in zip(axes, (self.exact, self.approximate, difference), _TITLES, strict=True):
            style = {"vmin": both.min(), "vmax": both.max()} | kwargs
            if matrix is difference:
                style = kwargs | {"vmin": -widest, "vmax": widest, "cmap": "RdBu_r"}
            image = ax.imshow(matrix, **style)
            ax.figure.colorbar(image, ax=ax, shrink=0.7)
            ax.set(title=title, xticks=[], yticks=[])
            self.images_.append(image)
        axes[1].set_xlabel(label)
        self.ax_, self.figure_ = axes, axes[0].figure

    def _spectrum(self, ax: Any, label: str, kwargs: dict[str, Any]) -> None:
        self.lines_ = []
        own = {"label": "exact kernel", "color": "black"}
        for matrix, style in ((self.exact, own), (self.approximate, {"label": label} | kwargs)):
            eigenvalues = np.linalg.eigvalsh(matrix)[::-1]
            # Hide zero eigenvalues: their rounding errors would stretch the axis over fifteen decades.
            shown = eigenvalues > len(matrix) * np.finfo(float).eps * eigenvalues[0]
            ranks = np.arange(1, len(matrix) + 1)
            self.lines_ += ax.plot(ranks[shown], eigenvalues[shown], **style)
        ax.set(xlabel="Rank", ylabel="Eigenvalue", xscale="log", yscale="log")
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure

    @classmethod
    def from_estimator(
        cls,
        feature_map: Any,
        X: Any,
        *,
        kernel: str | Callable[..., Any] | None = None,
        kernel_params: dict[str, Any] | None = None,
        n_samples: int = 200,
        random_state: RandomState = None,
        kind: str = "scatter",
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Compare a fitted map with its exact kernel on a sample of rows.

        Parameters
        ----------
        feature_map : transformer
            A fitted feature map of ntkit, or any other transformer if `kernel` is given.
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features), or images of shape \
                (n_images, height, width, channels) for maps that take them
        kernel : str, network or callable, default=None
            The exact kernel, as in :func:`ntkit.kernels.gram`; None: the kernel that an ntkit map approximates.
        kernel_params : dict, default=None
            Parameters of `kernel`.
        n_samples : int, default=200
            Rows drawn from X without replacement, in their order; all rows if X has fewer.
        random_state : None, int, RandomState or Generator
            Seed of the sample.
        kind : {"scatter", "matrix", "spectrum"}, default="scatter"
            What to draw; see :meth:`plot`.
        ax : matplotlib Axes, or three of them for kind="matrix", default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the map; None: the name of its class.
        **kwargs
            Passed to matplotlib's ``scatter``, ``imshow`` or ``plot``; see :meth:`plot`.

        Returns
        -------
        display : KernelApproximationDisplay
        """
        owner = f"{cls.__name__}.from_estimator"
        check_matplotlib(owner)
        check_choice(kind, "kind", owner, _KINDS)
        check_is_fitted(feature_map)
        rows = sample_rows(X, n_samples, seed_sequence(random_state, owner=owner), owner)
        K = exact_kernel_of(feature_map, rows, kernel, kernel_params or {}, owner)
        exact, approximate = checked_matrices(K, as_plain_rows(feature_map.transform(rows)), owner)
        name = type(feature_map).__name__ if name is None else name
        return cls(exact=exact, approximate=approximate, name=name).plot(ax, kind=kind, **kwargs)

    @classmethod
    def from_matrices(
        cls,
        K: Any,
        Z: Any,
        *,
        kind: str = "scatter",
        ax: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Compare a kernel matrix with features.

        Parameters
        ----------
        K : array of shape (n, n)
            Kernel matrix.
        Z : array of shape (n, m)
            Features of the same rows.
        kind : {"scatter", "matrix", "spectrum"}, default="scatter"
            What to draw; see :meth:`plot`.
        ax : matplotlib Axes, or three of them for kind="matrix", default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the features.
        **kwargs
            Passed to matplotlib's ``scatter``, ``imshow`` or ``plot``; see :meth:`plot`.

        Returns
        -------
        display : KernelApproximationDisplay
        """
        owner = f"{cls.__name__}.from_matrices"
        check_matplotlib(owner)
        exact, approximate = checked_matrices(K, Z, owner)
        return cls(exact=exact, approximate=approximate, name=name).plot(ax, kind=kind, **kwargs)


def _three_axes(ax: Any, owner: str) -> np.ndarray:
    if ax is None:
        import matplotlib.pyplot as plt

        return plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")[1]
    axes = np.asarray(ax, dtype=object).ravel()
    if len(axes) != 3:
        remedy = "Create them with plt.subplots(1, 3)."
        raise ValueError(message(owner, "ax", "three matplotlib Axes for kind='matrix'", ax, remedy))
    return axes
