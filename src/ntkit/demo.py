"""``make demo``: NTK ridge regression on handwritten digits, exact and by features, beside linear and RBF baselines.

All kernels go through the same protocol: targets one-hot with zero mean, kernel parameters and
regularization chosen on a part of the training rows, refitted on all of them, tested once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ntkit.display import plot_relu_ntk
from ntkit.features import NTKFeatures
from ntkit.kernels import gaussian, ntk, polynomial

Kernel = Callable[[np.ndarray, np.ndarray], np.ndarray]
ALPHAS = 10.0 ** np.arange(-6, 3)
DEPTHS = (1, 2, 3, 4, 6, 8)
COMPONENTS = 4096


class Result(NamedTuple):
    """One row of the table."""

    name: str
    chosen: str
    accuracy: float
    seconds: float


def candidates() -> dict[str, dict[str, Kernel]]:
    """Kernels to choose from, by method and by parameter."""
    return {
        "linear": {"": lambda X, Y: polynomial(X, Y, degree=1)},
        "RBF": {
            f"length scale {scale:g}": lambda X, Y, scale=scale: gaussian(X, Y, lengthscale=scale)  # type: ignore[misc]
            for scale in (0.2, 0.3, 0.4, 0.6, 0.8, 1.2)
        },
        "NTK": {
            f"depth {depth}": lambda X, Y, depth=depth: ntk(X, Y, depth=depth)  # type: ignore[misc]
            for depth in DEPTHS
        },
        "features": {f"depth {depth}": _feature_kernel(depth) for depth in DEPTHS},
    }


def _feature_kernel(depth: int) -> Kernel:
    """Z(X) Z(Y)ᵀ of NTK features."""

    def kernel(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        features = NTKFeatures(depth=depth, n_components=COMPONENTS, random_state=0).fit(X)
        return features.transform(X) @ features.transform(Y).T

    return kernel


def ridge_predictions(K: np.ndarray, K_new: np.ndarray, targets: np.ndarray, alphas: np.ndarray) -> list[np.ndarray]:
    """Kernel ridge predictions K_new (K + αI)⁻¹ targets for every α, from one eigendecomposition."""
    values, vectors = np.linalg.eigh(K)
    rotated, projected = vectors.T @ targets, K_new @ vectors
    return [projected @ (rotated / (np.maximum(values, 0) + a)[:, None]) for a in alphas]


def fit_and_test(
    name: str, kernels: dict[str, Kernel], train: Sequence[np.ndarray], test: Sequence[np.ndarray]
) -> Result:
    """Choose kernel and α on the last quarter of the training rows, refit on all, score on the test rows."""
    start = time.perf_counter()
    X, y = train
    one_hot = np.eye(10)[y] - 0.1
    cut = 3 * len(X) // 4
    scores = {}
    for label, kernel in kernels.items():
        K = kernel(X, X)
        alphas = ALPHAS * np.trace(K) / len(K)
        outputs = ridge_predictions(K[:cut, :cut], K[cut:, :cut], one_hot[:cut], alphas)
        for alpha, output in zip(alphas, outputs, strict=True):
            scores[label, alpha] = np.mean(output.argmax(1) == y[cut:])
    label, alpha = max(scores, key=scores.__getitem__)
    kernel = kernels[label]
    (output,) = ridge_predictions(kernel(X, X), kernel(test[0], X), one_hot, np.array([alpha]))
    accuracy = float(np.mean(output.argmax(1) == test[1]))
    return Result(name, label, accuracy, time.perf_counter() - start)


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test halves of scikit-learn's digits, rows of unit norm."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import normalize

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(normalize(X), y, test_size=0.5, stratify=y, random_state=0)
    return (X_train, y_train), (X_test, y_test)


def table(results: Sequence[Result]) -> str:
    """The results as text."""
    lines = [f"{'kernel':8} {'chosen':18} {'test accuracy':>13} {'seconds':>8}"]
    lines += [f"{r.name:8} {r.chosen:18} {r.accuracy:13.2%} {r.seconds:8.2f}" for r in results]
    return "\n".join(lines)


def plot(results: Sequence[Result], path: Path) -> None:
    """Save the ReLU-NTK functions beside the test errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    plot_relu_ntk(ax=left)
    left.set_title("ReLU-NTK functions, L = 1 … 32")
    names = [r.name for r in results]
    errors = [100 * (1 - r.accuracy) for r in results]
    bars = right.bar(names, errors, color=["#b0b0b0", "#7a9cc6", "#440154", "#8a4fa0"])
    right.bar_label(bars, fmt="%.2f %%")
    right.margins(y=0.12)
    right.set(ylabel="test error in %", title="Digits, kernel ridge regression")
    right.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m ntkit.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the plot (made if missing)")
    folder = parser.parse_args(arguments).output
    folder.mkdir(parents=True, exist_ok=True)
    train, test = digits()
    print(f"Digits: {len(train[0])} training rows, {len(test[0])} test rows, {train[0].shape[1]} features.")
    ntk(train[0][:2], depth=1)  # compiled code loads now, not inside a timing
    _feature_kernel(1)(train[0][:2], train[0][:2])
    results = [fit_and_test(name, kernels, train, test) for name, kernels in candidates().items()]
    print(table(results))
    print(f"(features: the NTK replaced by {COMPONENTS} columns, for when there are too many rows for a kernel matrix)")
    plot(results, folder / "relu_ntk.png")
    print(f"Plot: {folder / 'relu_ntk.png'}")


if __name__ == "__main__":
    main()
