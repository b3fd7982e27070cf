"""``ntkit demo``: handwritten digits by ridge classification on features, beside the exact neural tangent kernel.

All models go through the same protocol: kernel parameters are chosen on a quarter of the training rows, the model is
fitted on all of them and tested once. Exact kernels cost O(n³) for n rows, features O(n).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntkit._commandline.comparison import exact_ridge
from ntkit._commandline.writing import text_table
from ntkit.display import plot_relu_ntk

DEPTHS = (1, 2, 4, 8)
LENGTHSCALES = (0.3, 0.4, 0.6, 0.8)
COMPONENTS = 4096

Predictor = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Predictor]


def candidates(components: int = COMPONENTS) -> dict[str, dict[str, Fit]]:
    """Ways to fit, by method and by parameter."""
    from sklearn.preprocessing import FunctionTransformer

    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures

    return {
        "linear": {"": _by_features(FunctionTransformer())},
        "RBF features": {
            f"length scale {s:g}": _by_features(
                RandomFourierFeatures(n_components=components, lengthscale=s, random_state=0)
            )
            for s in LENGTHSCALES
        },
        "NTK features": {
            f"depth {depth}": _by_features(NTKFeatures(depth=depth, n_components=components, random_state=0))
            for depth in DEPTHS
        },
        "exact NTK": {f"depth {depth}": _by_kernel(depth) for depth in DEPTHS},
    }


def _by_features(features: Any) -> Fit:
    def fit(X: np.ndarray, y: np.ndarray) -> Predictor:
        from ntkit.models import FeatureRidgeClassifier

        return FeatureRidgeClassifier(features, random_state=0).fit(X, y).predict

    return fit


def _by_kernel(depth: int) -> Fit:
    def fit(X: np.ndarray, y: np.ndarray) -> Predictor:
        from ntkit.kernels import ntk

        weights, _, decode = exact_ridge(ntk(X, depth=depth), y, "classification")
        return lambda X_new: decode(ntk(X_new, X, depth=depth) @ weights)

    return fit


def fit_and_test(
    name: str, fits: dict[str, Fit], train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> dict[str, Any]:
    """Choose on the last quarter of the training rows, fit on all, score on the test rows."""
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
    """Training and test halves of scikit-learn's digits, rows of unit norm."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import normalize

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(normalize(X), y, test_size=0.5, stratify=y, random_state=0)
    return (X_train, y_train), (X_test, y_test)


def run(folder: Path, *, components: int = COMPONENTS, progress: bool = False) -> dict[str, Any]:
    """Fit, test and plot; the results as plain data."""
    from tqdm.auto import tqdm

    folder.mkdir(parents=True, exist_ok=True)
    train, test = digits()
    methods = candidates(components)
    for fits in methods.values():  # compiled code loads now, not inside a timing
        next(iter(fits.values()))(train[0][:20], train[1][:20])
    bar = tqdm(methods.items(), desc="demo", disable=not progress)
    results = [fit_and_test(name, fits, train, test) for name, fits in bar]
    picture = folder / "digits.png"
    plot(results, picture)
    return {
        "command": "demo",
        "n_train": len(train[0]),
        "n_test": len(test[0]),
        "n_features": train[0].shape[1],
        "n_components": components,
        "results": results,
        "files": [str(picture)],
    }


def text(report: dict[str, Any]) -> str:
    """The results as text."""
    rows = [
        [r["method"], r["chosen"], f"{r['accuracy']:.2%}", f"{r['fit_seconds']:.2f}", f"{r['search_seconds']:.2f}"]
        for r in report["results"]
    ]
    return (
        f"Digits: {report['n_train']} training rows, {report['n_test']} test rows, {report['n_features']} columns; "
        f"{report['n_components']} features.\n\n"
        + text_table(["method", "chosen", "test accuracy", "fit s", "search s"], rows, left=2)
        + f"\n\nBy chance accuracies vary by 0.3 % or so. "
        "Features stand for the kernel when rows are too many for a matrix of all pairs.\n"
        f"Plot: {report['files'][0]}"
    )


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Save the ReLU-NTK functions beside the test errors."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'ntkit[plot]'.") from error

    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    plot_relu_ntk(ax=left)
    left.set_title("ReLU-NTK functions, L = 1 … 32", fontsize=11)
    left.spines[["top", "right"]].set_visible(False)
    names = [f"{r['method']}\n{r['chosen']}".strip() for r in results]
    errors = [100 * (1 - r["accuracy"]) for r in results]
    bars = right.barh(names, errors, color=["#b0b0b0", "#7a9cc6", "#8a4fa0", "#440154"], height=0.6)
    right.bar_label(
        bars, labels=[f"{e:.2f} %  ({r['fit_seconds']:.2f} s)" for e, r in zip(errors, results, strict=True)], padding=4
    )
    right.invert_yaxis()
    right.margins(x=0.32)
    right.set_xlabel("test error in % (fit time)")
    right.set_title("Digits, ridge classification", fontsize=11)
    right.tick_params(axis="y", length=0)
    right.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
