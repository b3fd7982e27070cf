"""``ntkit demo``: the exact neural tangent kernel and features of it, as rows grow and on handwritten digits.

The first part (`demo_rows`) fits synthetic rows until their kernel matrix no longer fits into memory. The second part
compares accuracies on digits: kernel parameters are chosen on a quarter of the training rows, then each model is fitted
on all training rows and tested once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntkit.cli import demo_rows
from ntkit.cli.comparison import Predictor, exact_ridge
from ntkit.cli.page import FILES, as_png, can_plot, check_folder, two_axes, warn_without_plots, write_files
from ntkit.display import plot_relu_ntk

DEPTHS = (1, 2, 4)
LENGTHSCALES = (0.3, 0.4, 0.6)
COMPONENTS = 1024

Fit = Callable[[np.ndarray, np.ndarray], Predictor]


def candidates(components: int = COMPONENTS) -> dict[str, dict[str, Fit]]:
    """Return functions that fit, by method and by kernel parameter."""
    from sklearn.preprocessing import FunctionTransformer

    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures
    from ntkit.models import FeatureRidgeClassifier

    def features(transformer: Any) -> Fit:
        return lambda X, y: FeatureRidgeClassifier(transformer, random_state=0).fit(X, y).predict

    def gaussian(scale: float) -> Fit:
        return features(RandomFourierFeatures(n_components=components, lengthscale=scale, random_state=0))

    def ntk(depth: int) -> Fit:
        return features(NTKFeatures(depth=depth, n_components=components, random_state=0))

    def exact(depth: int) -> Fit:
        return lambda X, y: exact_ridge(X, y, "classification", "ntk", depth=depth).predict

    return {
        "linear": {"": features(FunctionTransformer())},
        "RBF features": {f"length scale {scale:g}": gaussian(scale) for scale in LENGTHSCALES},
        "NTK features": {f"depth {depth}": ntk(depth) for depth in DEPTHS},
        "exact NTK": {f"depth {depth}": exact(depth) for depth in DEPTHS},
    }


def fit_and_test(
    name: str, fits: dict[str, Fit], train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Choose the parameter on the last quarter of the training rows, fit on all of them, and test."""
    X, y = train
    start = time.perf_counter()
    cut = 3 * len(X) // 4
    scores = dict.fromkeys(fits, 0.0)
    if len(fits) > 1:
        scores = {label: float(np.mean(fit(X[:cut], y[:cut])(X[cut:]) == y[cut:])) for label, fit in fits.items()}
    label = max(scores, key=scores.__getitem__)
    search = time.perf_counter()
    predict = fits[label](X, y)
    fitted = time.perf_counter()
    accuracy = float(np.mean(predict(test[0]) == test[1]))
    return {
        "method": name,
        "chosen": label,
        "accuracy": accuracy,
        "fit_seconds": fitted - search,
        "search_seconds": search - start,
    }


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the training and test halves of scikit-learn's digits, with rows of unit norm."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import normalize

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(normalize(X), y, test_size=0.5, stratify=y, random_state=0)
    return (X_train, y_train), (X_test, y_test)


def run(
    output: Path, *, components: int = COMPONENTS, rows: Sequence[int] | None = None, progress: bool = False
) -> dict[str, Any]:
    """Run both parts, write their plots and return the results as plain data."""
    from tqdm.auto import tqdm

    check_folder(output)
    warn_without_plots()
    rows = demo_rows.ROWS if rows is None else rows
    memory = demo_rows.total_memory()
    growth = list(tqdm(demo_rows.measure(rows), desc="rows", total=len(rows), disable=not progress))
    train, test = digits()
    methods = candidates(components)
    for fits in methods.values():  # compiled code is loaded here, so that it is not timed
        next(iter(fits.values()))(train[0][:20], train[1][:20])
    bar = tqdm(methods.items(), desc="digits", disable=not progress)
    results = [fit_and_test(name, fits, train, test) for name, fits in bar]
    files: list[str] = []
    if can_plot():
        figures = (demo_rows.plot(growth, memory=memory), plot(results))
        files = write_files(output, dict(zip(FILES["demo"], map(as_png, figures), strict=True)))
    return {
        "command": "demo",
        "memory_bytes": memory,
        "rows": growth,
        "rows_components": demo_rows.COMPONENTS,
        "rows_columns": demo_rows.COLUMNS,
        "n_train": len(train[0]),
        "n_test": len(test[0]),
        "n_features": train[0].shape[1],
        "n_components": components,
        "results": results,
        "files": files,
    }


def plot(results: Sequence[dict[str, Any]]) -> Any:
    """Plot the ReLU-NTK functions and the test errors."""
    figure, left, right = two_axes(3.8)
    plot_relu_ntk(ax=left)
    left.set_xticks([-1, -0.5, 0, 0.5, 1])
    left.set_title("ReLU-NTK functions, L = 1 … 32", fontsize=11)
    names = [f"{r['method']}\n{r['chosen']}".strip() for r in results]
    errors = [100 * (1 - r["accuracy"]) for r in results]
    bars = right.barh(names, errors, color=["#b0b0b0", "#7a9cc6", "#8a4fa0", "#440154"], height=0.6)
    right.bar_label(
        bars, labels=[f"{e:.2f} %  ({r['fit_seconds']:.2f} s)" for e, r in zip(errors, results, strict=True)], padding=4
    )
    right.invert_yaxis()
    right.margins(x=0.32)
    right.set_xlabel("test error in % (fit time)")
    right.set_title("Handwritten digits", fontsize=11)
    right.tick_params(axis="y", length=0)
    return figure
