"""Kernel ridge regression with exact kernels: iterations, time and memory, sketched solutions.

    python benchmarks/bench_kernel_ridge.py iterations    to a residual of 10⁻⁶, with each preconditioner and without
    python benchmarks/bench_kernel_ridge.py times         beside scikit-learn's KernelRidge, 2 000 to 40 000 rows
    python benchmarks/bench_kernel_ridge.py sketched      objective of solver="sketch" over the optimum
    python benchmarks/bench_kernel_ridge.py large         100 000 rows (for --device cuda)
    python benchmarks/bench_kernel_ridge.py plot

Data are read from $NTKIT_DATA: protein (standardized), MNIST (divided by 255), air temperatures. Kernels are divided by
the mean of their diagonal, so that penalties mean the same for all; λ is relative to the largest eigenvalue, and as it
is for "absolute". Iterations are exact counts; times are medians of runs that take turns, each in a process of its own,
with peak memory. --device cuda runs on a GPU, --quick on fewer rows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

from common import RESULTS, memory_mib, reset_peak, versions

KERNELS = {"gaussian": {}, "ntk 1": {"depth": 1}, "ntk 3": {"depth": 3}}
LAMBDAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
CONTESTANTS = ("none", "sketch", "nystroem", "nystroem + neighbours")


def rows(name, n):
    from ntkit.datasets import load_dataset

    data = load_dataset(name)
    chosen = np.random.default_rng(0).permutation(len(data.X))[:n]
    X = data.X[chosen].reshape(len(chosen), -1).astype("float64")
    if data.task == "classification":
        X, y = X / 255, np.eye(10)[data.y[chosen]]
    else:
        y = data.y[chosen]
        X = X if name == "airtemp" else (X - data.X.mean(0)) / data.X.std(0)
    return X, (y - y.mean(0)) / (y.std() if y.ndim == 1 else 1)


def on(device, X):
    if device != "cuda":
        return X
    import torch

    return torch.from_numpy(X).cuda()


def matrix(X, kernel):
    """Kernel matrix over the mean of its diagonal, and its largest eigenvalue."""
    from ntkit.features.lengthscale import default_lengthscale
    from ntkit.kernels import gram

    name = kernel.split()[0]
    params = KERNELS[kernel] if name == "ntk" else {"lengthscale": default_lengthscale(X)}
    K = gram(name, X, **params)
    K /= float(K.diagonal().mean())
    v = K.sum(0)
    for _ in range(50):
        v = K @ v
        v /= (v @ v) ** 0.5
    return K, float(v @ (K @ v)), params


def preconditioners(name, K, X, kernel, params, size, penalties):
    """Those of KernelRidge for each penalty, from one set of features."""
    from ntkit import DotProductSketch
    from ntkit._random import seed_sequence
    from ntkit.models._kernel_matrix import GivenMatrix
    from ntkit.models._preconditioner import Preconditioner, nystroem_features

    held, seed = GivenMatrix(K), seed_sequence(0)
    if name == "none":
        return [None] * len(penalties)
    if name == "sketch":
        Z = DotProductSketch(kernel.split()[0], n_components=size, **params, random_state=0).fit_transform(X)
        Z *= float((Z * Z).sum(1).mean()) ** -0.5
    else:
        Z = nystroem_features(held, size, seed).Z
    return [Preconditioner.of_features(held, Z, 32 if "neighbours" in name else 0, seed, lam) for lam in penalties]


def iterations(device, quick):
    from ntkit.models._iterative import conjugate_gradients

    n, most = (2000, 3000) if quick else (10000, 20000)
    results = []
    for data in ("protein", "mnist"):
        X, y = rows(data, n)
        X, y = on(device, X), on(device, y[:, None] if y.ndim == 1 else y[:, 3:4])
        for kernel in KERNELS:
            K, top, params = matrix(X, kernel)
            for meaning, unit in (("relative", top), ("absolute", 1.0)):
                penalties = LAMBDAS[:: 2 if quick else 1]
                options = X, kernel, params, round(20 * n**0.5), [lam * unit for lam in penalties]
                made = {name: preconditioners(name, K, *options) for name in CONTESTANTS}
                for number, lam in enumerate(penalties):
                    found = {"data": data, "kernel": kernel, "meaning": meaning, "lambda": lam, "n": n, "top": top}
                    for name, each in made.items():
                        start, P = time.perf_counter(), each[number]
                        solve = (lambda V: V) if P is None else P.at(lam * unit)
                        run = conjugate_gradients(
                            lambda V, a=lam * unit, K=K: K @ V + a * V, y, solve, tol=np.array([1e-6]), max_iter=most
                        )  # fmt: skip
                        found[name] = {
                            "iterations": run.n_iter,
                            "converged": run.converged,
                            "residual": float(run.history[-1, 0]),
                            "seconds": time.perf_counter() - start,
                        }
                    results.append(found)
                    print(data, kernel, meaning, lam, {name: found[name]["iterations"] for name in made}, flush=True)
            del K, made
    return results


def times(device, quick):
    """Seconds, peak memory and predictions, each in a process of its own."""
    results = []
    for kernel in ("gaussian", "ntk 1"):
        sizes = (1000, 2000) if quick else (2000, 4000, 10000, 20000, 40000)
        for n in sizes if kernel == "gaussian" else sizes[:4]:
            found = {"kernel": kernel, "n": n}
            for who in ("scikit-learn", "direct", "pcg") if n <= 20000 else ("scikit-learn", "pcg"):
                rounds = 3 if n <= 4000 else 1
                runs = [one(who, kernel, n, device) for _ in range(rounds)]
                found[who] = min(runs, key=lambda run: run.get("seconds", np.inf))
            base = found["scikit-learn"].get("seconds")
            for who in ("direct", "pcg"):
                if base and "seconds" in found.get(who, {}):
                    found[who]["ratio"] = found[who]["seconds"] / base
            results.append(found)
            print(json.dumps(found), flush=True)
    return results


def one(who, kernel, n, device):
    command = [sys.executable, __file__, "one", "--who", who, "--kernel", kernel, "--rows", str(n), "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGSEGV:  # threaded factorizations of OpenBLAS crash from some 15 000 rows on
        alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        again = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
        found = json.loads(again.stdout.splitlines()[-1]) if not again.returncode else {}
        return found | {"crashed": "with more than one thread"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200] if done.stderr else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def run_one(who, kernel, n, device):
    import resource

    from sklearn.kernel_ridge import KernelRidge as Peer

    from ntkit import KernelRidge
    from ntkit.features.lengthscale import default_lengthscale
    from ntkit.kernels import ntk

    limit = 21 * 2**30  # an error instead of a machine without memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    X, y = rows("protein", n + 1000)
    X, X_test, y, y_test = on(device, X[:n]), on(device, X[n:]), y[:n], y[n:]
    length, alpha = default_lengthscale(X), 0.1
    KernelRidge("ntk", alphas=alpha).fit(X[:50], y[:50])  # compiles
    reset_peak()
    held, start = memory_mib("VmRSS"), time.perf_counter()
    if who == "scikit-learn":
        if kernel == "gaussian":
            model = Peer(kernel="rbf", gamma=0.5 / length**2, alpha=alpha).fit(X, y)
        else:  # scikit-learn calls functions on single pairs of rows: it gets the matrix
            model = Peer(kernel="precomputed", alpha=alpha).fit(ntk(X, depth=1), y)
        seconds = time.perf_counter() - start
        predictions = model.predict(X_test if kernel == "gaussian" else ntk(X_test, X, depth=1))
    else:
        options = {"lengthscale": length} if kernel == "gaussian" else {"depth": 1}
        model = KernelRidge(
            kernel.split()[0], alphas=alpha, solver=who, fit_intercept=False, random_state=0, **options
        ).fit(X, y)  # fmt: skip
        seconds = time.perf_counter() - start
        predictions = model.predict(X_test)
    predictions = np.asarray(predictions.cpu() if device == "cuda" else predictions)
    print(json.dumps({
        "seconds": seconds,
        "peak_mib": memory_mib() - held,
        "iterations": getattr(model, "n_iter_", None),
        "test_mse": float(np.mean((predictions - y_test) ** 2)),
        "predictions": predictions[:5].tolist(),
    }))  # fmt: skip


def sketched(device, quick):  # noqa: ARG001
    """‖Kc − y‖² + λ cᵀKc of the sketched solution over the optimum; m in multiples of the statistical dimension."""
    from ntkit import KernelRidge

    n, seeds = (1000, 2) if quick else (4000, 3)
    results = []
    for data in ("protein", "mnist"):
        X, y = rows(data, n)
        y = y if y.ndim == 1 else y[:, 3]
        for kernel in ("gaussian", "ntk 1"):
            K, top, params = matrix(X, kernel)
            unit = 1.0 if kernel == "gaussian" else 2 * float((X**2).sum(1).mean())  # K is over its mean diagonal
            for lam in (1e-3, 1e-4):
                alpha = lam * top
                best = np.linalg.solve(K + alpha * np.eye(n), y)
                optimum = float(alpha * y @ best)
                for features in ("nystroem", "sketch"):
                    for size in ("auto", 1.5, 2, 4, 8) if features == "nystroem" else ("auto",):
                        ratios, sizes, dimension = [], [], 0.0
                        for seed in range(seeds):
                            options = {"features": features, "n_components": n // 4}
                            if size != "auto":
                                options["sketch_size"] = round(size * dimension_of(K, alpha))
                            model = KernelRidge(
                                kernel.split()[0], alphas=alpha * unit, solver="sketch", solver_params=options,
                                fit_intercept=False, random_state=seed, **params,
                            )  # fmt: skip
                            c = model.fit(X, y).dual_coef_ * unit
                            Kc = K @ c
                            ratios.append(float(((Kc - y) ** 2).sum() + alpha * c @ Kc) / optimum)
                            sizes.append(model.sketch_size_)
                            dimension = model.dimension_
                        found = {
                            "data": data, "kernel": kernel, "lambda": lam, "features": features, "size": size,
                            "rows": float(np.mean(sizes)), "dimension": dimension_of(K, alpha),
                            "dimension_of_features": dimension, "ratios": ratios, "n": n,
                        }  # fmt: skip
                        results.append(found)
                        print(data, kernel, lam, features, size, sizes[0], [round(r, 4) for r in ratios], flush=True)
    return results


_DIMENSIONS = {}


def dimension_of(K, alpha):
    from ntkit.diagnostics import statistical_dimension

    key = id(K), alpha
    if key not in _DIMENSIONS:
        _DIMENSIONS[key] = statistical_dimension(K, alpha)
    return _DIMENSIONS[key]


def large(device, quick):
    from ntkit import KernelRidge, KernelRidgeClassifier

    results = []
    for data, kernel, alpha, n in (
        ("airtemp", "gaussian", 0.1, 100000),
        ("airtemp", "ntk 3", 0.1, 100000),
        ("mnist", "ntk 3", 1.0, 50000),
    ):
        n = n // 20 if quick else n
        X, y = rows(data, n + 10000)
        X, X_test, y, y_test = on(device, X[:n]), on(device, X[n:]), y[:n], y[n:]
        options = {"depth": 3} if kernel == "ntk 3" else {}
        kind = KernelRidgeClassifier if data == "mnist" else KernelRidge
        model = kind(kernel.split()[0], alphas=alpha, solver="pcg", random_state=0, **options)
        start = time.perf_counter()
        model.fit(X, y.argmax(1) if data == "mnist" else y)
        seconds = time.perf_counter() - start
        score = model.score(X_test, y_test.argmax(1) if data == "mnist" else y_test) if device != "cuda" else None
        if score is None:
            predictions = model.predict(X_test).cpu().numpy()
            score = float(np.mean(predictions == y_test.argmax(1))) if data == "mnist" else float(
                1 - np.sum((predictions - y_test) ** 2) / np.sum((y_test - y_test.mean()) ** 2)
            )  # fmt: skip
        found = {
            "data": data, "kernel": kernel, "n": n, "alpha": alpha, "seconds": seconds, "iterations": model.n_iter_,
            "residual": float(model.history_[0][-1].max()), "score": float(score),
        }  # fmt: skip
        if device == "cuda":
            import torch

            found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
            torch.cuda.reset_peak_memory_stats()
        del model
        results.append(found)
        print(json.dumps(found), flush=True)
    return results


def plot(record):
    import matplotlib.pyplot as plt

    found = [r for r in record["iterations"] if r["meaning"] == "relative"]
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), sharex=True, sharey=True)
    for row, data in zip(axes, ("protein", "mnist"), strict=True):
        for axis, kernel in zip(row, KERNELS, strict=True):
            some = [r for r in found if r["data"] == data and r["kernel"] == kernel]
            for name in CONTESTANTS:
                reached = [r for r in some if r[name]["converged"]]
                axis.plot([r["lambda"] for r in reached], [r[name]["iterations"] for r in reached], "o-", label=name)
            axis.set(xscale="log", yscale="log", title=f"{data}, {kernel}")
    axes[0, 0].invert_xaxis()
    for axis in axes[1]:
        axis.set_xlabel("λ / ‖K‖")
    for axis in axes[:, 0]:
        axis.set_ylabel("iterations to 10⁻⁶")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), title="preconditioner", frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(RESULTS.parent.parent / "docs" / "kernel_ridge_iterations.png", dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("iterations", "times", "sketched", "large", "plot", "one"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--who")
    parser.add_argument("--kernel")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--output", default=str(RESULTS / "kernel_ridge.json"))
    arguments = parser.parse_args()
    if arguments.what == "one":
        run_one(arguments.who, arguments.kernel, arguments.rows, arguments.device)
        return
    try:
        with open(arguments.output) as file:
            record = json.load(file)
    except FileNotFoundError:
        record = {}
    if arguments.what == "plot":
        plot(record)
        return
    question = {"iterations": iterations, "times": times, "sketched": sketched, "large": large}[arguments.what]
    record[arguments.what] = question(arguments.device, arguments.quick)
    record.setdefault("versions", {})[arguments.what] = versions("cuda" if arguments.device == "cuda" else "numpy")
    with open(arguments.output, "w") as file:
        json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
