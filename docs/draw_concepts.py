"""Draw the pictures of the landing page and of "What is an NTK, and when does it help?" (docs/concepts.md).

    python docs/draw_concepts.py                   # all pictures, into docs/_static; about two minutes on two cores
    python docs/draw_concepts.py width features    # some of them

Pictures are 4.8 inches wide, so that their text is still readable on a phone. All numbers come from ntkit, but for the
networks that torch trains and the trees of scikit-learn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from ntkit import FeatureRidge, GradientFeatures, KernelRidge, KernelRidgeClassifier, NTKFeatures, kernels, networks

FOLDER = Path(__file__).parent / "_static"
EXACT, BLUE, ORANGE, GREY = "#1c1c1e", "#0a7d91", "#d9822b", "#77777d"
mpl.rcParams.update({"font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True})


def new_axes(height=3.1):
    """Return a new figure of the common width, and its axes."""
    figure = Figure(figsize=(4.8, height), layout="constrained")
    ax = figure.subplots()
    ax.grid(True, color="#ececef", linewidth=0.8)
    return figure, ax


def on_circle(degrees):
    """Return the points of the unit circle at these angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def width():
    """NTKs of random finite networks against the angle between two inputs, and their limit."""
    figure, ax = new_axes()
    angles = np.linspace(0, 180, 91)
    X = on_circle(angles)
    net = networks.fully_connected(2)
    for size, colour in ((16, ORANGE), (1024, BLUE)):
        for seed in range(8):
            Z = GradientFeatures(net, width=size, random_state=seed).fit_transform(X)
            ax.plot(angles, Z @ Z[0], color=colour, linewidth=1, alpha=0.75)
    ax.plot(angles, kernels.ntk(X[:1], X, depth=2).ravel(), color=EXACT, linewidth=2.2)
    ax.set(xlabel="angle between two inputs", ylabel="tangent kernel", ylim=(0, 6.2), xlim=(0, 180))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda a, _: f"{a:.0f}°"))
    ax.set_xticks([0, 45, 90, 135, 180])
    lines = [("width 16, eight networks", ORANGE), ("width 1024, eight networks", BLUE)]
    write_lines(ax, 177, 5.6, 0.6, [*lines, ("infinite width: the NTK", EXACT)], ha="right")
    return figure


def training():
    """Wide networks trained by gradient descent, and kernel regression with the NTK."""
    import torch

    figure, ax = new_axes()
    at = np.array([-2.6, -1.9, -1.2, -0.5, 0.3, 1.0, 1.8, 2.6])
    y = np.sin(2 * at) + 0.3 * at
    grid = np.linspace(-3, 3, 241)
    X, X_grid = (np.stack([x, np.ones_like(x)], axis=1) for x in (at, grid))  # the second column acts as a bias
    for seed in range(5):
        torch.manual_seed(seed)
        m = 8192
        W, v = torch.randn(m, 2, dtype=torch.float64), torch.randn(m, dtype=torch.float64)
        W.requires_grad_(), v.requires_grad_()

        def outputs(rows, W=W, v=v, m=m):
            return (2 / m) ** 0.5 * (torch.as_tensor(rows) @ W.T).relu() @ v

        with torch.no_grad():
            start, start_grid = outputs(X), outputs(X_grid)
        target = torch.as_tensor(y)
        for _ in range(4000):
            loss = ((outputs(X) - start - target) ** 2).sum() / 2
            grads = torch.autograd.grad(loss, (W, v))
            with torch.no_grad():
                for p, g in zip((W, v), grads, strict=True):
                    p -= 0.05 * g
        with torch.no_grad():
            trained = outputs(X_grid) - start_grid
        ax.plot(grid, trained.numpy(), color=BLUE, linewidth=1.2, alpha=0.8)
    model = KernelRidge("ntk", depth=1, alphas=1e-6, fit_intercept=False, solver="direct").fit(X, y)
    ax.plot(grid, model.predict(X_grid), "--", color=EXACT, linewidth=1.8)
    ax.plot(at, y, "o", color=ORANGE, markersize=7, markeredgecolor="white", zorder=3)
    ax.set(xlabel="input", ylabel="output", xlim=(-3, 3), ylim=(-1.5, 2.7))
    lines = [("training data", ORANGE), ("five trained networks, width 8192", BLUE)]
    write_lines(ax, -2.9, 2.45, 0.35, [*lines, ("kernel regression with the NTK", EXACT)])
    return figure


def write_lines(ax, x, y, step, lines, **options):
    """Write lines of text below each other; `lines` has pairs of text and colour."""
    for i, (text, colour) in enumerate(lines):
        ax.text(x, y - i * step, text, color=colour, va="center", **options)


def digits():
    """Return the training and test parts of scikit-learn's digits."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X / 16, y, test_size=797, stratify=y, random_state=0)


def features():
    """Relative error of features against their number."""
    figure, ax = new_axes()
    X = digits()[0]
    K = kernels.ntk(X, depth=2)
    sizes = 2 ** np.arange(6, 14)
    errors = []
    for m in sizes:
        draws = []
        for seed in range(5):
            Z = NTKFeatures(depth=2, n_components=int(m), random_state=seed).fit_transform(X)
            draws.append(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))
        errors.append(np.mean(draws))
        print(m, f"{errors[-1]:.4f}")
    ax.plot(sizes, 100 * np.array(errors), "o-", color=BLUE, linewidth=2)
    guide = 100 * errors[0] * np.sqrt(sizes[0] / sizes)
    ax.plot(sizes, guide * 1.25, ":", color=GREY, linewidth=1.5)
    ax.text(sizes[3], 1.45 * guide[3], "slope m$^{-1/2}$", color=GREY)
    ax.set(xscale="log", yscale="log", xlabel="number of features m", ylabel="error of the kernel matrix")
    ax.set_xticks(sizes[::2], [f"{m}" for m in sizes[::2]])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(ticks := [1, 2, 5, 10, 20], [f"{t} %" for t in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    return figure


def few_rows():
    """Test error on digits against the number of labelled rows."""
    figure, ax = new_axes()
    X, X_test, y, y_test = digits()
    sizes = (60, 125, 250, 500, 1000)
    methods = {
        "NTK": lambda: KernelRidgeClassifier("ntk", depth=2, alphas=np.logspace(-3, 1, 5), solver="direct"),
        "logistic regression": lambda: LogisticRegression(max_iter=3000),
        "gradient-boosted trees": lambda: HistGradientBoostingClassifier(random_state=0),
    }
    for (name, new), colour in zip(methods.items(), (BLUE, GREY, ORANGE), strict=True):
        errors = []
        for n in sizes:
            draws = []
            for seed in range(5):
                order = np.random.default_rng(seed).permutation(len(y))
                rows = order[np.sort(np.unique(y[order], return_index=True)[1])]  # at least one row of each class
                rows = np.concatenate([rows, np.setdiff1d(order, rows, assume_unique=True)[: n - len(rows)]])
                draws.append(np.mean(new().fit(X[rows], y[rows]).predict(X_test) != y_test))
            errors.append(100 * np.mean(draws))
        print(name, np.round(errors, 1))
        ax.plot(sizes, errors, "o-", color=colour, linewidth=2, label=name)
    ax.set(xscale="log", yscale="log", xlabel="labelled digits", ylabel="test error", ylim=(0.6, 60))
    ax.set_xticks(sizes, [str(n) for n in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_yticks(ticks := [1, 2, 5, 10, 20, 50], [f"{t} %" for t in ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.legend(frameon=False, loc="upper right", labelcolor="linecolor", handlelength=1.2, reverse=True)
    return figure


def uncertainty():
    """Mean and standard deviation of a prediction, with a gap in the data."""
    figure, ax = new_axes()
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -0.5, 60), rng.uniform(1.2, 3, 40)])
    y = np.sin(2 * x) + 0.3 * x + 0.15 * rng.standard_normal(len(x))
    grid = np.linspace(-4.5, 4.5, 300)
    ntk = NTKFeatures(depth=2, n_components=512, bias=1.0, random_state=0)
    mean, std = FeatureRidge(ntk, random_state=0).fit(x[:, None], y).predict(grid[:, None], return_std=True)
    ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.18, linewidth=0)
    ax.plot(grid, mean, color=BLUE, linewidth=2)
    ax.plot(x, y, "o", color=EXACT, markersize=3)
    ax.set(xlabel="input", ylabel="prediction", xlim=(-4.5, 4.5), ylim=(-2.2, 3.2))
    write_lines(ax, -4.3, 2.9, 0.45, [("mean ± 2 standard deviations", BLUE), ("training data", EXACT)])
    return figure


def memory():
    """Memory of a fit against the number of rows, from the runs of benchmarks/peers/scale.py."""
    figure, ax = new_axes(3.3)
    file = FOLDER.parents[1] / "benchmarks" / "peers" / "results" / "scale.json"
    runs = [run["case"] | run["found"] for run in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    found = {}
    for way, colour in (("exact", GREY), ("features", BLUE)):
        found[way] = sorted((run["rows"], run["peak_mib"], run["fit_seconds"]) for run in runs if run["way"] == way)
        rows, peaks, _ = zip(*found[way], strict=True)
        ax.plot(rows, peaks, "o-", color=colour, linewidth=2, markersize=5)
    (n, peak, seconds), (many, few_mib, many_seconds) = found["exact"][-1], found["features"][-1]
    ax.plot([n, many], [peak, peak * (many / n) ** 2], "--", color=GREY, linewidth=2)
    ax.axhline(16 * 1024, color="#b3403a", linewidth=1)
    ax.text(950, 19 * 1024, "a laptop, 16 GiB", color="#b3403a", fontsize=9.5)
    ax.text(many, 1.6e7, "more than 8 TB", color=GREY, ha="right")
    exact = f"exact kernel matrix:\n{n // 1000} 000 rows in {seconds:.0f} s"
    ax.text(n * 1.35, peak / 1.2, exact, color=GREY, va="top", linespacing=1.3)
    features = f"2048 features, {few_mib:.0f} MiB:\na million rows in {many_seconds:.0f} s"
    ax.text(many, few_mib / 1.5, features, color=BLUE, ha="right", va="top", linespacing=1.3)
    ax.set(xscale="log", yscale="log", xlabel="training rows", xlim=(800, 1.5e6), ylim=(8, 5e7))
    ax.set_yticks([2.0**10, 2.0**20], ["1 GiB", "1 TiB"])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xticks([1e3, 1e4, 1e5, 1e6], ["1 000", "10 000", "100 000", "1 000 000"])
    ax.xaxis.set_minor_locator(NullLocator())
    return figure


PICTURES = {f.__name__: f for f in (memory, width, training, features, few_rows, uncertainty)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="pictures to draw; all if none is named")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder for the pictures")
    args = parser.parse_args()
    for name in args.names or PICTURES:
        PICTURES[name]().savefig(args.output / f"concept_{name}.png", dpi=200)
