"""Exact kernels: ntkit compared with neural-tangents 0.6.5.

    python benchmarks/peers/kernels.py            measure the missing cases and print the tables
    python benchmarks/peers/kernels.py --quick    smoke test on few rows

bench_exact_kernels.py measures the kernel matrices; this script only reads its results. It measures kernel ridge
regression on rows of protein. neural-tangents needs an old JAX and NumPy, so it computes its matrices in a separate
environment, created on first use, and passes them on in files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import bench_exact_kernels
from bench_exact_kernels import DEPTH, neural_tangents_kernel, python_of
from experiment import (
    Meter,
    UnavailableError,
    dataset,
    load_runs,
    main,
    markdown_table,
    mean_deviation,
    methods_of,
    select,
)

TITLE = "Exact kernels: time, memory and error compared with neural-tangents"
ALPHAS = tuple(10.0**k for k in range(-3, 4))
SEEDS = 3
LABELS = {
    "neural-tangents": "neural-tangents, then scikit-learn's KernelRidge",
    "ntkit": '• ntkit KernelRidge("ntk")',
}


def cases(args):
    rows, seeds = (300, 1) if args.quick else (5000, SEEDS)
    return [{"library": library, "rows": rows, "seed": seed} for seed in range(seeds) for library in LABELS]


def measure(library, rows, seed):
    """Measure one fit and prediction in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        parts = prepared(rows, seed)
        np.savez(Path(folder) / "rows.npz", **parts)
        if library == "ntkit":
            return _process(sys.executable, "ntkit", folder)
        kernel = _process(python_of("neural-tangents"), "matrices", folder)
        solution = _process(sys.executable, "solve", folder)
    found = {key: kernel[key] + solution[key] for key in ("fit_seconds", "predict_seconds")}
    return solution | found | {"peak_mib": max(kernel["peak_mib"], solution["peak_mib"])}


def prepared(rows, seed):
    """Return standardized rows of protein in random order: `rows` training rows and `rows` test rows."""
    data = dataset("protein")
    order = np.random.default_rng(seed).permutation(len(data.y))[: 2 * rows]
    X, y = data.X[order].astype(np.float64), data.y[order]
    X = ((X - X[:rows].mean(axis=0)) / X[:rows].std(axis=0)).astype(np.float32)
    return {"X": X[:rows], "y": y[:rows], "X_test": X[rows:], "y_test": y[rows:]}


def _process(python, job, folder):
    """Run one of the jobs below in a process and return its findings."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [str(python), __file__, "--worker", job, folder], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"the process failed (exit status {done.returncode}): {message}")
    return json.loads(done.stdout.splitlines()[-1])


def matrices(folder, X, y, X_test, y_test):  # noqa: ARG001
    """Compute kernel matrices with neural-tangents and save them; a first call compiles for the same shapes."""
    kernel = neural_tangents_kernel(images=False)
    kernel(X, None)
    kernel(X_test, X)
    with Meter() as meter:
        start = time.perf_counter()
        K = kernel(X, None)
        middle = time.perf_counter()
        K_test = kernel(X_test, X)
        stop = time.perf_counter()
    np.save(folder / "K.npy", K)
    np.save(folder / "K_test.npy", K_test)
    return {"fit_seconds": middle - start, "predict_seconds": stop - middle, "peak_mib": meter.peak_mib}


def solve(folder, X, y, X_test, y_test):  # noqa: ARG001
    """Solve with scikit-learn from the saved matrices; α is chosen on a held-out fifth of the rows."""
    from sklearn.kernel_ridge import KernelRidge

    with Meter() as meter:
        K, K_test = (np.load(folder / name).astype(np.float64) for name in ("K.npy", "K_test.npy"))
        mean, n = y.mean(), len(y) // 5  # KernelRidge fits no intercept
        start = time.perf_counter()
        errors = {}
        for alpha in ALPHAS:
            model = KernelRidge(alpha=alpha, kernel="precomputed").fit(K[n:, n:], y[n:] - mean)
            errors[alpha] = np.mean((model.predict(K[:n, n:]) + mean - y[:n]) ** 2)
        alpha = min(errors, key=errors.get)
        model = KernelRidge(alpha=alpha, kernel="precomputed").fit(K, y - mean)
        middle = time.perf_counter()
        predictions = model.predict(K_test) + mean
        stop = time.perf_counter()
    seconds = {"fit_seconds": middle - start, "predict_seconds": stop - middle}
    return {"error": float(np.mean((predictions - y_test) ** 2)), "alpha": alpha, **seconds, "peak_mib": meter.peak_mib}


def ntkit_ridge(_folder, X, y, X_test, y_test):
    """Fit ntkit's KernelRidge, α by leave-one-out error; a first fit on a tenth of the rows compiles."""
    from ntkit import KernelRidge

    model = KernelRidge("ntk", alphas=ALPHAS, depth=DEPTH, random_state=0)
    model.fit(X[::10], y[::10]).predict(X_test[:100])
    with Meter() as meter:
        start = time.perf_counter()
        model.fit(X, y)
        middle = time.perf_counter()
        predictions = model.predict(X_test)
        stop = time.perf_counter()
    seconds = {"fit_seconds": middle - start, "predict_seconds": stop - middle}
    error = float(np.mean((predictions - y_test) ** 2))
    return {"error": error, "alpha": float(model.alpha_), **seconds, "peak_mib": meter.peak_mib}


# The report.


def report(runs):
    return "\n\n".join([matrix_table(), ridge_table(runs)])


def matrix_table():
    """Return the table of bench_exact_kernels.py."""
    head = "### Kernel matrices"
    runs = select(load_runs(bench_exact_kernels), device="cpu")
    if not runs:
        return f"{head}\n\nNot measured yet: run bench_exact_kernels.py."
    labels = {"ntkit": "• ntkit"}
    rows = [
        (row["task"], labels.get(row["method"], row["method"]), f"{row['seconds']:.3f}", f"{row['peak_mib']:.0f}",
         f"{row['error']:.0e}")
        for row in methods_of(runs)
    ]  # fmt: skip
    cores = runs[0]["hardware"].partition(" of ")[0]
    speedups = [run["methods"]["neural-tangents"]["seconds"] / run["methods"]["ntkit"]["seconds"] for run in runs]
    return (
        f"{head}\n\nfloat32, {cores}. The libraries take turns; times are medians. Memory is the peak of the whole "
        "process. The error is the largest deviation of 200 × 200 entries (2 × 2 images) from float64, relative to "
        "√(K(x, x) K(y, y)).\n\n"
        + markdown_table(("matrix", "library", "seconds", "memory, MiB", "error"), rows)
        + f"\n\nntkit is {min(speedups):.1f} to {max(speedups):.0f} times as fast."
    )


def ridge_table(runs):
    """Return the table of kernel ridge regression on protein."""
    head = "### Kernel ridge regression with the NTK"
    if not runs:
        return f"{head}\n\nNot measured."
    rows = []
    for library, label in LABELS.items():
        mine = select(runs, library=library)
        if mine:
            columns = (("error", 3), ("fit_seconds", 2), ("predict_seconds", 2), ("peak_mib", 0))
            alphas = ", ".join(f"{alpha:g}" for alpha in sorted({run["alpha"] for run in mine}))
            rows.append((label, *(mean_deviation(mine, key, digits) for key, digits in columns), alphas))
        else:
            rows.append((label, *["–"] * 5))
    n = max(run["rows"] for run in runs)
    return (
        f"{head}\n\n{n} training rows and {n} test rows of protein; {DEPTH} layers; α from 10⁻³, …, 10³. "
        "neural-tangents computes the matrix; scikit-learn's `KernelRidge` solves with it and chooses α on a held-out "
        "fifth of the rows, without computing the matrix again. ntkit chooses α by leave-one-out error. Times exclude "
        "compilation and passing the matrix on in files. Memory is the increase of the peak over the start.\n\n"
        + markdown_table(
            ("", "mean squared error, Å²", "fit, s", "predict, s", "memory, MiB", "chosen α (all seeds)"), rows
        )
    )


if __name__ == "__main__":
    if "--worker" in sys.argv:
        job, folder = sys.argv[-2:]
        with np.load(Path(folder) / "rows.npz") as arrays:
            jobs = {"matrices": matrices, "solve": solve, "ntkit": ntkit_ridge}
            print(json.dumps(jobs[job](Path(folder), **arrays)))
    else:
        main(__name__)
