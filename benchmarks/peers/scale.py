"""Time, memory and error of the exact kernel and of features as the number of rows grows.

    python benchmarks/peers/scale.py [--quick]

The data are synthetic: standard normal rows with 20 columns; the target is a random network with two hidden layers of
ReLUs, plus noise with a tenth of its variance. Features choose their penalty by leave-one-out error. The exact kernel
uses a fixed penalty, the power of ten that leave-one-out error chooses for 4000 rows, so that it factorizes only once.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from experiment import Meter, main, markdown_table, mean_deviation, pyplot, select

TITLE = "Time, memory and error of the exact kernel and of features by number of rows"
DEPTH = 2
COLUMNS = 20
ALPHA = 10.0
NOISE = 0.1  # variance of the noise; the noiseless target has variance 1
TEST_ROWS = 10_000
WAYS = {
    "exact": "exact kernel matrix (`KernelRidge`)",
    "features": "2048 features (`FeatureRidge`)",
    "more features": "8192 features (`FeatureRidge`)",
}
SIZES = {
    "exact": (1000, 2000, 4000, 8000, 16_000, 32_000),
    "features": (1000, 4000, 16_000, 64_000, 256_000, 1_000_000),
    "more features": (4000, 16_000, 64_000, 256_000),
}


def cases(args):
    most = 4000 if args.quick else 10**9
    return [
        {"way": way, "rows": n, "seed": 0}  # one seed: another random target would be easier or harder
        for way, sizes in SIZES.items()
        for n in sizes
        if n <= most
    ]


def measure(**case):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # so that its peak memory is its own
        return pool.submit(worker, **case).result()


def worker(way, rows, seed):
    X, y = teacher(rows + TEST_ROWS, seed)
    learner(way, 200, seed).fit(X[:200], y[:200]).predict(X[:10])  # compiles the code
    model = learner(way, None, seed)
    with Meter() as fit:
        model.fit(X[:rows], y[:rows])
    with Meter() as predict:
        error = float(np.mean((model.predict(X[rows:]) - y[rows:]) ** 2))
    return {
        "fit_seconds": fit.seconds,
        "predict_seconds": predict.seconds,
        "peak_mib": fit.peak_mib,
        "excess": error - NOISE,
        "alpha": float(model.alpha_),
    }


def teacher(n, seed):
    """Return rows and targets f + noise, where Var f = 1 and the noise has variance NOISE."""
    rng = np.random.default_rng([1, seed])
    width = 32
    weights = [rng.standard_normal(shape) for shape in ((COLUMNS, width), (width, width), (width, 1))]
    X = rng.standard_normal((n, COLUMNS), dtype=np.float32)
    f = X
    for W in weights[:-1]:
        f = np.maximum(f @ (W * np.sqrt(2 / len(W))).astype(np.float32), 0)
    f = (f @ weights[-1].astype(np.float32)).ravel()
    y = (f - f.mean()) / f.std() + np.sqrt(NOISE) * rng.standard_normal(n)
    return X, y.astype(np.float32)


def learner(way, n_components, seed):
    from ntkit import FeatureRidge, KernelRidge, NTKFeatures

    if way == "exact":
        return KernelRidge("ntk", alphas=ALPHA, depth=DEPTH, solver="direct")
    m = n_components or (2048 if way == "features" else 8192)
    return FeatureRidge(NTKFeatures(depth=DEPTH, n_components=m, random_state=seed), random_state=seed)


def report(runs):
    rows = []
    for way, label in WAYS.items():
        for n in sorted({run["rows"] for run in select(runs, way=way)}):
            found = select(runs, way=way, rows=n)
            values = (mean_deviation(found, "fit_seconds", 2), mean_deviation(found, "peak_mib", 0))
            rows.append((label, f"{n:,}".replace(",", " "), *values, mean_deviation(found, "excess", 4)))
    text = markdown_table(("", "rows", "fit, s", "peak memory, MiB", "excess error"), rows)
    return (
        f"{text}\n\nNTK of depth {DEPTH}, {COLUMNS} columns. The data are synthetic: a random ReLU network plus noise. "
        f"The excess error is the mean squared error on {TEST_ROWS} test rows minus the variance of the noise, "
        f"{NOISE}; the noiseless target has variance 1. Memory is what a fit adds to the rows themselves. Features "
        f"choose their penalty by leave-one-out error. The exact kernel uses α = {ALPHA:g}, the power of ten that "
        "leave-one-out error chooses for 4000 rows, and factorizes once."
    )


def plot(runs, folder):
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.1), layout="constrained")
    names = {"exact": "exact kernel matrix", "features": "2048 features", "more features": "8192 features"}
    for ax, key, label in zip(
        axes,
        ("fit_seconds", "peak_mib", "excess"),
        ("seconds to fit", "memory of a fit, MiB", "excess test error"),
        strict=True,
    ):
        for (way, name), colour in zip(names.items(), ("0.35", "C0", "C3"), strict=True):
            sizes = sorted({run["rows"] for run in select(runs, way=way)})
            means = [np.mean([run[key] for run in select(runs, way=way, rows=n)]) for n in sizes]
            ax.plot(sizes, means, "o-", color=colour, ms=3.5, label=name)
        ax.set(xscale="log", yscale="log", xlabel="training rows", title=label)
    axes[1].axhline(16 * 1024, color="0.7", lw=0.8, ls="--")
    axes[1].annotate("16 GiB", (900, 18 * 1024), color="0.5", fontsize=8)
    ticks = (0.06, 0.08, 0.1, 0.15)
    axes[2].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes[2].minorticks_off()
    axes[2].legend(frameon=False)
    figure.savefig(folder / "scale.png", dpi=150)
    plt.close(figure)
    return ["scale.png"]


if __name__ == "__main__":
    main(__name__)
