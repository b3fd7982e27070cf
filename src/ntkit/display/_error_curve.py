"""Plot the errors of feature maps against their size or time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import with_progress
from ntkit._random import RandomState, keyed, seed_sequence
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.diagnostics import (
    as_plain_rows,
    checked_matrix_and_features,
    exact_kernel_of,
    int_seed,
    relative_error,
    sample_rows,
    spectral_error,
)
from ntkit.display._common import axes_or_new, check_matplotlib, number_array

_ABSCISSAS = {"n_components": "Number of features", "seconds": "Seconds"}
_METRICS = {"relative": "Relative error", "spectral": "Spectral error"}


class ErrorCurveDisplay:
    """Plot of the errors of feature maps against the number of features or time: mean and range over seeds.

    Create it with :meth:`from_estimators` or :meth:`from_values`. All parameters are stored as attributes.

    Parameters
    ----------
    n_components : dict of str to ndarray of shape (n_sizes,)
        Number of features, for each map.
    errors : dict of str to ndarray of shape (n_sizes, n_repeats)
        Errors for each map, size and seed.
    seconds : dict of str to ndarray of shape (n_sizes, n_repeats), default=None
        Seconds for each map, size and seed.
    error_name : str, default="Error"
        Name of the errors, for the axis.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    lines_ : list of matplotlib Line2D
        Mean errors, one line per map.
    fill_between_ : list of matplotlib PolyCollection
        Range from the smallest to the largest error over seeds.
    reference_ : matplotlib Line2D or None
        The slope m^{-1/2}.

    See Also
    --------
    KernelApproximationDisplay : Kernel values of one map against the exact values.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import NTKPolynomialSketch, NTKRandomFeatures
    >>> from ntkit.display import ErrorCurveDisplay
    >>> X = np.random.default_rng(0).standard_normal((300, 10))
    >>> maps = {"polynomial": NTKPolynomialSketch(depth=2), "random": NTKRandomFeatures(depth=2)}
    >>> display = ErrorCurveDisplay.from_estimators(maps, X, n_components=(64, 256), random_state=0)
    >>> display.errors["random"].shape
    (2, 3)
    >>> bool(display.errors["polynomial"].mean() < display.errors["random"].mean())
    True
    """

    def __init__(
        self,
        *,
        n_components: Mapping[str, Any],
        errors: Mapping[str, Any],
        seconds: Mapping[str, Any] | None = None,
        error_name: str = "Error",
    ):
        self.n_components = n_components
        self.errors = errors
        self.seconds = seconds
        self.error_name = error_name

    def plot(
        self,
        ax: Any = None,
        *,
        x: str = "n_components",
        reference: bool = True,
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw the errors, on logarithmic axes.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        x : {"n_components", "seconds"}, default="n_components"
            Horizontal axis. For seconds, it is the median over seeds, which one slow run does not affect.
        reference : bool, default=True
            Whether to draw the slope m^{-1/2} of random features if x="n_components". It is the median of such lines
            through the errors of the smallest maps.
        line_kw, fill_between_kw : dict, default=None
            Passed to matplotlib's ``plot`` and ``fill_between``.

        Returns
        -------
        display : ErrorCurveDisplay
        """
        owner = f"{type(self).__name__}.plot"
        check_choice(x, "x", owner, _ABSCISSAS)
        check_bool(reference, "reference", owner)
        places = self._places(x, owner)
        ax = axes_or_new(ax, owner)
        self.lines_, self.fill_between_, self.reference_ = [], [], None
        for label, errors in self.errors.items():
            where = places[label]
            (line,) = ax.plot(where, errors.mean(axis=1), **({"label": label, "marker": "o"} | (line_kw or {})))
            style = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0} | (fill_between_kw or {})
            self.fill_between_.append(ax.fill_between(where, errors.min(axis=1), errors.max(axis=1), **style))
            self.lines_.append(line)
        if reference and x == "n_components":
            self.reference_ = self._draw_reference(ax)
        ax.set(xscale="log", yscale="log", xlabel=_ABSCISSAS[x], ylabel=self.error_name)
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _places(self, x: str, owner: str) -> dict[str, Any]:
        """Return the horizontal coordinates of the errors of each map."""
        if x == "n_components":
            return dict(self.n_components)
        if self.seconds is None:
            raise ValueError(message(owner, "x", "'n_components' for a display without seconds", x))
        return {label: np.median(seconds, axis=1) for label, seconds in self.seconds.items()}

    def _draw_reference(self, ax: Any) -> Any:
        sizes = self.n_components
        smallest = {label: np.argmin(sizes[label]) for label in self.errors}
        scale = np.median([e[smallest[k]].mean() * np.sqrt(sizes[k][smallest[k]]) for k, e in self.errors.items()])
        ends = np.array([min(m.min() for m in sizes.values()), max(m.max() for m in sizes.values())])
        style = {"color": "grey", "linestyle": ":", "label": "slope of m$^{-1/2}$", "zorder": 1}
        return ax.plot(ends, scale / np.sqrt(ends), **style)[0]

    @classmethod
    def from_estimators(
        cls,
        feature_maps: Mapping[str, Any] | Sequence[Any],
        X: Any,
        *,
        n_components: Sequence[int] = (128, 256, 512, 1024, 2048),
        n_repeats: int = 3,
        metric: str | Callable[[Array, Array], float] = "relative",
        kernel: str | Callable[..., Any] | None = None,
        kernel_params: dict[str, Any] | None = None,
        n_samples: int = 500,
        random_state: RandomState = None,
        progress: bool = False,
        x: str = "n_components",
        ax: Any = None,
        reference: bool = True,
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Measure the errors of maps on a sample of rows, and draw them.

        Parameters
        ----------
        feature_maps : dict of str to transformer, or list of transformers
            Maps with the parameters `n_components` and `random_state`: maps of ntkit, or others if `kernel` is given.
            They are cloned. The maps of a list are labelled by their class names.
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features), or images of shape \
                (n_images, height, width, channels) for maps that take them
        n_components : sequence of int, default=(128, 256, 512, 1024, 2048)
            Sizes to try. Errors are drawn at the actual number of features, which may be smaller for some maps.
        n_repeats : int, default=3
            Number of seeds for each map and size.
        metric : {"relative", "spectral"} or callable, default="relative"
            "relative": ‖Z Zᵀ − K‖_F / ‖K‖_F. "spectral": :func:`ntkit.diagnostics.spectral_error`, where λ is the mean
            of the diagonal of K. Or a function of K and Z with values ≥ 0.
        kernel : str, network or callable, default=None
            The exact kernel, as in :func:`ntkit.kernels.gram`; None: the kernel that each ntkit map approximates.
        kernel_params : dict, default=None
            Parameters of `kernel`.
        n_samples : int, default=500
            Rows drawn from X without replacement; all rows if X has fewer. Their exact kernel is computed.
        random_state : None, int, RandomState or Generator
            Seed of the sample and the maps.
        progress : bool, default=False
            Whether to show a progress bar.
        x : {"n_components", "seconds"}, default="n_components"
            Horizontal axis. Seconds are for `fit` and `transform` on the sample, after one warm-up run of each map.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        reference : bool, default=True
            Whether to draw the slope m^{-1/2}; see :meth:`plot`.
        line_kw, fill_between_kw : dict, default=None
            Passed to matplotlib's ``plot`` and ``fill_between``.

        Returns
        -------
        display : ErrorCurveDisplay
        """
        owner = f"{cls.__name__}.from_estimators"
        check_matplotlib(owner)
        maps = _named(feature_maps, owner)
        sizes = _checked_sizes(n_components, owner)
        check_int(n_repeats, "n_repeats", owner, minimum=1)
        check_bool(progress, "progress", owner)
        check_choice(x, "x", owner, _ABSCISSAS)
        if not callable(metric):
            check_choice(metric, "metric", owner, _METRICS)
        seed = seed_sequence(random_state, owner=owner)
        rows = sample_rows(X, n_samples, seed, owner)
        found, errors, seconds = _measure(
            maps, rows, sizes, metric,
            exact=lambda fitted: exact_kernel_of(fitted, rows, kernel, kernel_params or {}, owner),
            seeds=[int_seed(keyed(seed, "map", j)) for j in range(n_repeats)],
            progress=cls.__name__ if progress else None,
            owner=owner,
        )  # fmt: skip
        display = cls(
            n_components={label: numbers.mean(axis=1) for label, numbers in found.items()},
            errors=errors,
            seconds=seconds,
            error_name="Error" if callable(metric) else _METRICS[metric],
        )
        return display.plot(ax, x=x, reference=reference, line_kw=line_kw, fill_between_kw=fill_between_kw)

    @classmethod
    def from_values(
        cls,
        n_components: Any,
        errors: Mapping[str, Any],
        *,
        seconds: Mapping[str, Any] | None = None,
        error_name: str = "Error",
        x: str = "n_components",
        ax: Any = None,
        reference: bool = True,
        line_kw: dict[str, Any] | None = None,
        fill_between_kw: dict[str, Any] | None = None,
    ) -> Self:
        """Draw given errors.

        Parameters
        ----------
        n_components : array of shape (n_sizes,), or dict of str to such an array
            Numbers of features, common to all maps or for each map.
        errors : dict of str to array of shape (n_sizes,) or (n_sizes, n_repeats)
            Errors of each map.
        seconds : dict of str to array of shape (n_sizes,) or (n_sizes, n_repeats), default=None
            Seconds of each map.
        error_name : str, default="Error"
            Name of the errors, for the axis.
        x : {"n_components", "seconds"}, default="n_components"
            Horizontal axis.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        reference : bool, default=True
            Whether to draw the slope m^{-1/2}; see :meth:`plot`.
        line_kw, fill_between_kw : dict, default=None
            Passed to matplotlib's ``plot`` and ``fill_between``.

        Returns
        -------
        display : ErrorCurveDisplay
        """
        owner = f"{cls.__name__}.from_values"
        check_matplotlib(owner)
        if not isinstance(errors, Mapping) or not errors:
            raise TypeError(message(owner, "errors", "a non-empty dict of label to array", errors))
        checked = {label: _checked(values, "errors", owner) for label, values in errors.items()}
        given = n_components if isinstance(n_components, Mapping) else dict.fromkeys(errors, n_components)
        sizes, times = {}, {}
        for label, values in checked.items():
            sizes[label] = _sizes(_of(given, label, "n_components", owner), values, owner)
            if seconds is not None:
                times[label] = _alike(_of(seconds, label, "seconds", owner), values, owner)
        display = cls(n_components=sizes, errors=checked, seconds=times or None, error_name=error_name)
        return display.plot(ax, x=x, reference=reference, line_kw=line_kw, fill_between_kw=fill_between_kw)


def _named(feature_maps: Any, owner: str) -> dict[str, Any]:
    """Return the maps by label."""
    rule = "a non-empty dict of label to transformer, or a list of transformers"
    if isinstance(feature_maps, Mapping):
        maps = {str(label): features for label, features in feature_maps.items()}
    elif isinstance(feature_maps, Sequence) and not isinstance(feature_maps, str):
        maps = {type(features).__name__: features for features in feature_maps}
        if len(maps) < len(feature_maps):
            raise ValueError(message(owner, "feature_maps", "a dict if two maps are of the same class", feature_maps))
    else:
        raise TypeError(message(owner, "feature_maps", rule, feature_maps))
    if not maps:
        raise ValueError(message(owner, "feature_maps", rule, feature_maps))
    for features in maps.values():
        known = features.get_params() if hasattr(features, "get_params") and not isinstance(features, type) else ()
        if not {"n_components", "random_state"}.issubset(known):
            rule = "maps with the parameters n_components and random_state"
            raise TypeError(message(owner, "feature_maps", rule, features))
    return maps


def _checked_sizes(n_components: Any, owner: str) -> list[int]:
    """Check the sizes to try."""
    rule = "a non-empty sequence of int ≥ 1"
    if not isinstance(n_components, Sequence | np.ndarray):
        raise TypeError(message(owner, "n_components", rule, n_components))
    if not len(n_components):
        raise ValueError(message(owner, "n_components", rule, n_components))
    return [check_int(m, "n_components", owner, minimum=1) for m in n_components]


def _measure(
    maps: dict[str, Any],
    rows: Any,
    sizes: Sequence[int],
    metric: str | Callable[[Array, Array], float],
    *,
    exact: Callable[[Any], Array],
    seeds: Sequence[int],
    progress: str | None,
    owner: str,
) -> list[dict[str, np.ndarray]]:
    """Measure the numbers of features, errors and seconds of each map, as arrays of sizes × seeds."""
    results: list[dict[str, np.ndarray]] = [
        {label: np.zeros((len(sizes), len(seeds))) for label in maps} for _ in range(3)
    ]
    matrices: dict[str, Array] = {}
    tasks = [(label, i, j) for label in maps for i in range(len(sizes)) for j in range(len(seeds))]
    for label, i, j in with_progress(tasks, progress):
        trial = _resized(maps[label], sizes[i], seeds[j])
        if label not in matrices:
            matrices[label] = exact(trial.fit(rows))
            trial.transform(rows)  # load compiled code before the timing
        _array.wait(rows)
        start = time.perf_counter()
        Z = as_plain_rows(trial.fit(rows).transform(rows))
        _array.wait(Z)
        seconds = time.perf_counter() - start
        error = _error(metric, *checked_matrix_and_features(matrices[label], Z, owner))
        if not 0 <= error < np.inf:
            where = f"That was for {label!r} with {Z.shape[1]} features."
            raise ValueError(message(owner, "metric", "an error that is finite and ≥ 0", error, where))
        for values, value in zip(results, (Z.shape[1], error, seconds), strict=True):
            values[label][i, j] = value
    return results


def _resized(features: Any, n_components: int, seed: int) -> Any:
    """Copy a map with another size and seed."""
    if hasattr(features, "resized"):  # a map of ntkit
        return features.resized(n_components, random_state=seed)
    return clone(features).set_params(n_components=n_components, random_state=seed)


def _error(metric: str | Callable[[Array, Array], float], K: Array, Z: Array) -> float:
    if callable(metric):
        return float(metric(K, Z))
    if metric == "relative":
        return relative_error(K, Z)
    xp: Any = _array.namespace(K)
    return spectral_error(K, Z, float(xp.mean(xp.linalg.diagonal(K))))


def _checked(values: Any, name: str, owner: str) -> np.ndarray:
    """Check the values of all sizes and seeds."""
    rule = "arrays of shape (n_sizes,) or (n_sizes, n_repeats) of finite numbers ≥ 0"
    array = number_array(
        values, name, owner, lambda a: a.ndim in (1, 2) and np.isfinite(a).all() and a.min() >= 0, rule
    )
    return array[:, None] if array.ndim == 1 else array


def _alike(values: Any, errors: np.ndarray, owner: str) -> np.ndarray:
    """Check seconds, which must be for the same sizes as the errors."""
    seconds = _checked(values, "seconds", owner)
    if len(seconds) != len(errors):
        raise ValueError(message(owner, "seconds", f"given for {len(errors)} sizes, like the errors", seconds))
    return seconds


def _sizes(values: Any, errors: np.ndarray, owner: str) -> np.ndarray:
    """Check numbers of features, one for each error."""
    shape = (len(errors),)
    rule = f"an array of shape {shape}, with a number ≥ 1 for each error"
    return number_array(values, "n_components", owner, lambda a: a.shape == shape and bool((a >= 1).all()), rule)


def _of(values: Mapping[str, Any], label: str, name: str, owner: str) -> Any:
    if not isinstance(values, Mapping) or label not in values:
        raise ValueError(message(owner, name, f"a dict with a value for {label!r}, like the errors", values))
    return values[label]
