"""Kernel ridge regression with exact kernels: iterations, time and memory, sketched solutions.

Protein is standardized, MNIST is divided by 255, air temperatures are unchanged. Kernels are divided by the mean of
their diagonal, so that penalties are comparable. λ is relative to the largest eigenvalue, except for "absolute".
Iterations are counted until the residual is 10⁻⁶. Times are the minimum over runs in separate processes.
"""

from __future__ import annotations

import os
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from experiment import DEVICES, Meter, Question, apart, ask, dataset, grid, main, on_device, pyplot, select, to_numpy

TITLE = "Kernel ridge regression: iterations, time, memory, sketched solutions"
KERNELS = {"gaussian": {}, "ntk 1": {"depth": 1}, "ntk 3": {"depth": 3}}
LAMBDAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
PRECONDITIONERS = ("none", "sketch", "nystroem", "nystroem + neighbours")
MEMORY_LIMIT = 21 * 2**30  # bytes per process: raise MemoryError before the machine runs out of memory


def rows(name, n):
    data = dataset(name)
    chosen = np.random.default_rng(0).permutation(len(data.X))[:n]
    X = data.X[chosen].reshape(len(chosen), -1).astype("float64")
    if data.task == "classification":
        X, y = X / 255, np.eye(10)[data.y[chosen]]
    else:
        y = data.y[chosen]
        X = X if name == "airtemp" else (X - data.X.mean(0)) / data.X.std(0)
    return X, (y - y.mean(0)) / (y.std() if y.ndim == 1 else 1)


def matrix(X, kernel):
    """Return the kernel matrix divided by its mean diagonal, its largest eigenvalue, and the kernel's parameters."""
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


def iteration_cases(args):
    n, lambdas = (1000, (1e-3,)) if args.quick else (10000, LAMBDAS)
    data = "protein" if args.quick else ("protein", "mnist")
    meanings = "relative" if args.quick else ("relative", "absolute")
    kernels = "ntk 1" if args.quick else KERNELS
    axes = {"data": data, "kernel": kernels, "meaning": meanings, "lambda": lambdas, "n": n, "device": args.device}
    return grid(**axes)


def iterations(data, kernel, meaning, n, device, **penalty):
    from ntkit.models._iterative import conjugate_gradients

    X, y = rows(data, n)
    X, y = on_device(device, X, y[:, None] if y.ndim == 1 else y[:, 3:4])
    K, top, params = matrix(X, kernel)
    lam = penalty["lambda"] * (top if meaning == "relative" else 1.0)
    found = {}
    for name in PRECONDITIONERS:
        P = preconditioner(name, K, X, kernel, params, round(20 * n**0.5), lam)
        start = time.perf_counter()
        solve = (lambda V: V) if P is None else P.at(lam)
        run = conjugate_gradients(lambda V: K @ V + lam * V, y, solve, tol=np.array([1e-6]), max_iter=2 * n)
        found[name] = {"iterations": run.n_iter, "converged": bool(run.converged)}
        found[name] |= {"residual": float(run.history[-1, 0]), "seconds": time.perf_counter() - start}
    return {"top": top, "methods": found}


def preconditioner(name, K, X, kernel, params, size, lam):
    """Return a preconditioner of KernelRidge by name."""
    from ntkit import DotProductSketch
    from ntkit._random import seed_sequence
    from ntkit.models._kernel_matrix import GivenMatrix
    from ntkit.models._preconditioner import Preconditioner, nystroem_features

    held, seed = GivenMatrix(K), seed_sequence(0)
    if name == "none":
        return None
    if name == "sketch":
        Z = DotProductSketch(kernel.split()[0], n_components=size, **params, random_state=0).fit_transform(X)
        Z *= float((Z * Z).sum(1).mean()) ** -0.5
    else:
        Z = nystroem_features(held, size, seed).Z
    return Preconditioner.of_features(held, Z, 32 if "neighbours" in name else 0, seed, lam)


def time_cases(args):
    if args.quick:
        return grid(kernel="ntk 1", n=1000)
    return grid(kernel="gaussian", n=(2000, 4000, 10000, 20000, 40000)) + grid(
        kernel="ntk 1", n=(2000, 4000, 10000, 20000)
    )


def times(kernel, n):
    """Measure seconds, peak memory and predictions of ntkit and of scikit-learn's KernelRidge."""
    solvers = ("scikit-learn", "direct", "pcg") if n <= 20000 else ("scikit-learn", "pcg")
    rounds = 3 if 1000 < n <= 4000 else 1
    runs = {who: [in_process(who, kernel, n) for _ in range(rounds)] for who in solvers}
    return {"methods": {who: min(mine, key=lambda run: run.get("seconds", np.inf)) for who, mine in runs.items()}}


def in_process(*case):
    try:
        return apart(solve, *case)
    except BrokenProcessPool:  # threaded factorizations of OpenBLAS crash above about 15 000 rows
        before = os.environ.get("OPENBLAS_NUM_THREADS")
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        try:
            return apart(solve, *case) | {"crashed": "with more than one thread"}
        except BrokenProcessPool:
            return {"crashed": "also with one thread"}
        finally:
            os.environ.pop("OPENBLAS_NUM_THREADS")
            os.environ.update({} if before is None else {"OPENBLAS_NUM_THREADS": before})
    except MemoryError as error:
        return {"failed": f"MemoryError: {error}"}


def solve(who, kernel, n, alpha=0.1):
    import resource

    from sklearn.kernel_ridge import KernelRidge as Peer

    from ntkit import KernelRidge
    from ntkit.features.lengthscale import default_lengthscale
    from ntkit.kernels import ntk

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    X, y = rows("protein", n + 1000)
    X, X_test, y, y_test = X[:n], X[n:], y[:n], y[n:]
    length = default_lengthscale(X)
    KernelRidge("ntk", alphas=alpha).fit(X[:50], y[:50])  # compiles the code
    with Meter() as meter:
        if who != "scikit-learn":
            options = {"lengthscale": length} if kernel == "gaussian" else {"depth": 1}
            options |= {"alphas": alpha, "solver": who, "fit_intercept": False, "random_state": 0}
            model = KernelRidge(kernel.split()[0], **options).fit(X, y)
        elif kernel == "gaussian":
            model = Peer(kernel="rbf", gamma=0.5 / length**2, alpha=alpha).fit(X, y)
        else:  # scikit-learn would call a kernel function for each pair of rows, so it gets the matrix
            model = Peer(kernel="precomputed", alpha=alpha).fit(ntk(X, depth=1), y)
    as_matrix = who == "scikit-learn" and kernel != "gaussian"
    predictions = model.predict(ntk(X_test, X, depth=1) if as_matrix else X_test)
    return {
        "seconds": meter.seconds,
        "peak_mib": meter.peak_mib,
        "iterations": getattr(model, "n_iter_", None),
        "test_mse": float(np.mean((predictions - y_test) ** 2)),
        "predictions": predictions[:5].tolist(),
    }


def sketched_cases(args):
    n, seeds = (500, 1) if args.quick else (4000, 3)
    maps = [("nystroem", size) for size in (("auto", 2) if args.quick else ("auto", 1.5, 2, 4, 8))]
    return [
        {"data": data, "kernel": kernel, "lambda": lam, "features": features, "size": size, "n": n, "seeds": seeds}
        for data in (("protein",) if args.quick else ("protein", "mnist"))
        for kernel in ("gaussian", "ntk 1")
        for lam in ((1e-3,) if args.quick else (1e-3, 1e-4))
        for features, size in [*maps, ("sketch", "auto")]
    ]


def sketched(data, kernel, features, size, n, seeds, **penalty):
    """Measure ‖Kc − y‖² + λ cᵀKc of the sketched solution over the optimum; `size` is m / statistical dimension."""
    from ntkit import KernelRidge
    from ntkit.diagnostics import statistical_dimension

    X, y = rows(data, n)
    y = y if y.ndim == 1 else y[:, 3]
    K, top, params = matrix(X, kernel)
    unit = 1.0 if kernel == "gaussian" else 2 * float((X**2).sum(1).mean())  # mean diagonal, by which K was divided
    alpha = penalty["lambda"] * top
    optimum = float(alpha * y @ np.linalg.solve(K + alpha * np.eye(n), y))
    dimension = statistical_dimension(K, alpha)
    options = {"features": features, "n_components": n // 4}
    options |= {} if size == "auto" else {"sketch_size": round(size * dimension)}
    ratios, sizes = [], []
    for seed in range(seeds):
        model = KernelRidge(
            kernel.split()[0], alphas=alpha * unit, solver="sketch", solver_params=options, fit_intercept=False,
            random_state=seed, **params,
        )  # fmt: skip
        c = model.fit(X, y).dual_coef_ * unit
        Kc = K @ c
        ratios.append(float(((Kc - y) ** 2).sum() + alpha * c @ Kc) / optimum)
        sizes.append(model.sketch_size_)
    found = {"rows": float(np.mean(sizes)), "dimension": dimension, "dimension_of_features": model.dimension_}
    return found | {"ratios": ratios}


def large_cases(args):
    part = 100 if args.quick else 1
    points = [("airtemp", "gaussian", 0.1, 100000), ("airtemp", "ntk 3", 0.1, 100000), ("mnist", "ntk 3", 1.0, 50000)]
    return [
        {"data": data, "kernel": kernel, "alpha": alpha, "n": n // part, "device": args.device}
        for data, kernel, alpha, n in points
    ]


def large(data, kernel, alpha, n, device):
    from ntkit import KernelRidge, KernelRidgeClassifier

    X, y = rows(data, n + 10000)
    y = y.argmax(1) if data == "mnist" else y
    X, X_test = on_device(device, X[:n], X[n:])
    kind = KernelRidgeClassifier if data == "mnist" else KernelRidge
    model = kind(kernel.split()[0], alphas=alpha, solver="pcg", random_state=0, **KERNELS[kernel])
    with Meter(device) as meter:
        model.fit(X, y[:n])
    predictions, y_test = to_numpy(model.predict(X_test)), y[n:]
    if data == "mnist":
        score = np.mean(predictions == y_test)
    else:
        score = 1 - np.sum((predictions - y_test) ** 2) / np.sum((y_test - y_test.mean()) ** 2)
    found = {"seconds": meter.seconds, "peak_gib": meter.peak_mib / 1024, "iterations": int(model.n_iter_)}
    return found | {"residual": float(model.history_[0][-1].max()), "score": float(score)}


def plot(runs, folder):
    plt = pyplot()
    found = select(runs, question="iterations", meaning="relative")
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), sharex=True, sharey=True)
    for row, data in zip(axes, ("protein", "mnist"), strict=True):
        for axis, kernel in zip(row, KERNELS, strict=True):
            some = select(found, data=data, kernel=kernel)
            for name in PRECONDITIONERS:
                points = [(r["lambda"], r["methods"][name]) for r in some if r["methods"][name]["converged"]]
                axis.plot([lam for lam, _ in points], [own["iterations"] for _, own in points], "o-", label=name)
            axis.set(xscale="log", yscale="log", title=f"{data}, {kernel}")
    axes[0, 0].invert_xaxis()
    for axis in axes[1]:
        axis.set_xlabel("λ / ‖K‖")
    for axis in axes[:, 0]:
        axis.set_ylabel("iterations to 10⁻⁶")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), title="preconditioner", frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(Path(folder) / "kernel_ridge_iterations.png", dpi=120)
    plt.close(figure)
    return ["kernel_ridge_iterations.png"]


QUESTIONS = {
    "iterations": Question(
        "Iterations to a residual of 10⁻⁶, by preconditioner", iteration_cases, iterations,
        "data kernel meaning lambda:.0e device method iterations converged residual:.1e seconds:.2f", DEVICES,
    ),
    "times": Question(
        "Time and memory compared with scikit-learn's KernelRidge", time_cases, times,
        "kernel n method seconds:.2f seconds/:.2f peak_mib:.0f iterations test_mse:.4f crashed failed",
    ),
    "sketched": Question(
        'Objective of solver="sketch" relative to the optimum', sketched_cases, sketched,
        "data kernel lambda:.0e features size rows:.0f dimension:.0f dimension_of_features:.0f ratios:.4f",
    ),
    "large": Question(
        "50 000 and 100 000 rows", large_cases, large,
        "data kernel n alpha device seconds:.1f iterations residual:.1e score:.4f peak_gib:.1f", DEVICES,
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
