"""Gegenbauer features and every other map of the same kernels: series, regression, clustering, spectral errors.

    python benchmarks/bench_zonal.py series        errors of Taylor, Chebyshev and Gegenbauer series (Figure 1)
    python benchmarks/bench_zonal.py regression    ridge regression on the sphere and on proteins (Tables 2 and 4)
    python benchmarks/bench_zonal.py times         the times of these maps again, taking turns
    python benchmarks/bench_zonal.py clustering    kernel k-means (Table 3)
    python benchmarks/bench_zonal.py spectral      spectral ε against the number of features (Theorem 9)

Figures, tables and theorems are those of Han, Zandieh, Avron, "Random Gegenbauer Features for Scalable Kernel Methods",
ICML 2022. Data are read from $NTKIT_DATA. Times are those of fit and transform of all rows in float64, on all cores.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from common import RESULTS, medians, memory_mib, reset_peak, versions

FILE = RESULTS / "zonal.json"
SEEDS = 3
LABELS = {
    "nystroem": "Nyström, leverage scores",
    "sklearn": "Nyström, scikit-learn",
    "fourier": "Fourier",
    "orthogonal": "Orthogonal Fourier",
    "fastfood": "Fastfood",
    "maclaurin": "Maclaurin",
    "maclaurin, paper": "Maclaurin, as published",
    "taylor": "DotProductSketch",
    "polynomial": "NTKPolynomialSketch",
    "random": "NTKRandomFeatures",
    "definition 8": "Gegenbauer, Definition 8",
    "gegenbauer": "Gegenbauer",
    "groups": "Gegenbauer, sphere × month",
}
OBLIVIOUS = {
    "gaussian": ("fourier", "orthogonal", "fastfood", "maclaurin", "maclaurin, paper", "taylor", "definition 8"),
    "ntk": ("maclaurin", "maclaurin, paper", "taylor", "polynomial", "random", "definition 8"),
}


def make(name, kernel, m, seed, *, lengthscale=1.0, depth=2):
    """A map by its label."""
    from sklearn.kernel_approximation import Nystroem

    import ntkit
    from ntkit.kernels import ntk

    shared = {"n_components": m, "random_state": seed}
    of_kernel = {"lengthscale": lengthscale} if kernel == "gaussian" else {"depth": depth}
    if name == "sklearn":
        if kernel == "gaussian":
            return Nystroem(gamma=0.5 / lengthscale**2, **shared)
        return Nystroem(kernel=lambda x, y: float(ntk(x[None], y[None], depth=depth)[0, 0]), **shared)
    if name == "nystroem":
        return ntkit.NystroemFeatures(kernel, **of_kernel, **shared)
    if name in ("fourier", "orthogonal", "fastfood"):
        names = {"fourier": "Random", "orthogonal": "Orthogonal", "fastfood": ""}
        law = ntkit.FastfoodFeatures if name == "fastfood" else getattr(ntkit, names[name] + "FourierFeatures")
        return law(lengthscale=lengthscale, **shared)
    if name.startswith("maclaurin"):
        return ntkit.MaclaurinFeatures(kernel, law="geometric" if "paper" in name else "optimal", **of_kernel, **shared)
    if name == "taylor":
        return ntkit.DotProductSketch(kernel, **of_kernel, **shared)
    if name == "polynomial":
        return ntkit.NTKPolynomialSketch(depth=depth, **shared)
    if name == "random":
        return ntkit.NTKRandomFeatures(depth=depth, **shared)
    options = {"gegenbauer": {}, "groups": {"groups": ((0, 1, 2), (3,))}}
    published = {"harmonics": False, "orthogonal": False, "degree": 15}
    return ntkit.GegenbauerFeatures(kernel, **options.get(name, published), **of_kernel, **shared)


# Figure 1.


def series(_args):
    """Largest error on [−1, 1] of expansions of e^{2t} and of the NTK of two ReLU layers."""
    from numpy.polynomial.polynomial import polyval
    from scipy.special import factorial

    from ntkit.kernels import relu_ntk, relu_ntk_taylor
    from ntkit.kernels.zonal import gegenbauer_coefficients, gegenbauer_series

    t = np.cos(np.linspace(0, np.pi, 4001))
    degrees = list(range(1, 41))
    out = {"degrees": degrees}
    j = np.arange(degrees[-1] + 1)
    functions = {
        "gaussian": (lambda t: np.exp(2 * t), 2.0**j / factorial(j)),
        "ntk": (lambda t: relu_ntk(t, 2), relu_ntk_taylor(2, degrees[-1])),
    }
    for name, (function, taylor) in functions.items():
        exact = function(t)
        errors = {"taylor": [float(np.abs(polyval(t, taylor[: q + 1]) - exact).max()) for q in degrees]}
        for d in (2, 4, 8, 32):
            c = (
                gegenbauer_coefficients("ntk", degrees[-1], d, depth=2)
                if name == "ntk"
                else gegenbauer_coefficients(2.0 ** np.arange(100) / factorial(np.arange(100)), degrees[-1], d)
            )
            errors[str(d)] = [float(np.abs(gegenbauer_series(c[: q + 1], t, d) - exact).max()) for q in degrees]
        out[name] = errors
    save("series", out)
    plot_series(out)


def plot_series(out):
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    labels = {"taylor": "Taylor (d = ∞)", "32": "d = 32", "8": "d = 8", "4": "d = 4", "2": "Chebyshev (d = 2)"}
    for ax, name, title in zip(
        axes, ("gaussian", "ntk"), ("Gaussian, $e^{2t}$", "NTK of two ReLU layers"), strict=True
    ):
        for key, color in zip(labels, plt.cm.viridis(np.linspace(0, 0.9, 5)), strict=True):
            ax.semilogy(out["degrees"], out[name][key], color=color, label=labels[key])
        ax.axvline(15, color="0.7", lw=0.8, ls=":")
        ax.set(title=title, xlabel="degree", ylabel="largest error on [−1, 1]")
    axes[0].legend(frameon=False)
    axes[0].set_ylim(1e-16, 20)
    figure.savefig("docs/zonal_series.png", dpi=110)


# Tables 2 and 4.


def table(name, seed, n=None):
    """Rows and targets: points of the sphere drawn uniformly, proteins standardized."""
    from ntkit.datasets import load_dataset

    rng = np.random.default_rng(seed)
    data = load_dataset(name)
    X, y = data.X.astype(np.float64), data.y.astype(np.float64)
    if name == "protein":
        X = (X - X.mean(0)) / X.std(0)
        order = rng.permutation(len(X))[:n]
    else:
        weights = np.sqrt(np.maximum(1 - X[:, 2] ** 2, 0)) + 1e-9  # cells of a grid: their areas
        size = n or {"elevation": 64800, "airtemp": 60000}[name]
        order = rng.choice(len(X), size, replace=False, p=weights / weights.sum())
        if name == "airtemp":
            X[:, 3] = (X[:, 3] - 6.5) / 22  # as far as from one pole of a small circle to the other: −¼ to ¼
        else:
            y = y / 1000
    return X[order], y[order]


def ridge(Z, y, Z_test, y_test):
    """Test error of ridge regression with λ by twofold cross-validation, and λ."""
    n, half, mean = len(y), len(y) // 2, y.mean()
    y = y - mean
    parts = [slice(0, half), slice(half, n)]
    grams = [Z[p].T @ Z[p] for p in parts]
    moments = [Z[p].T @ y[p] for p in parts]
    alphas = 10.0 ** np.arange(-11, 1.01, 0.5) * np.trace(grams[0] + grams[1]) / 2
    errors = np.zeros(len(alphas))
    for fold in (0, 1):
        w, v = np.linalg.eigh(grams[fold])
        w, b = np.maximum(w, 0), v.T @ moments[fold]
        # Squared errors on the other half from its sums alone.
        G, c = v.T @ grams[1 - fold] @ v, v.T @ moments[1 - fold]
        square = float(y[parts[1 - fold]] @ y[parts[1 - fold]])
        for i, alpha in enumerate(alphas):
            beta = b / (w + alpha)
            errors[i] += square - 2 * beta @ c + beta @ G @ beta
    alpha = float(alphas[np.argmin(errors)])
    w, v = np.linalg.eigh(grams[0] + grams[1])
    beta = v @ ((v.T @ (moments[0] + moments[1])) / (np.maximum(w, 0) + 2 * alpha))
    return float(np.mean((Z_test @ beta + mean - y_test) ** 2)), alpha


def regression(args):
    """Mean squared error and memory of every map."""
    n = 6000 if args.quick else None
    out = {}
    for name in ("elevation", "airtemp", "protein"):
        lengthscale = choose_lengthscale(name)
        for kernel in ("gaussian", "ntk"):
            maps = ["nystroem", *(["sklearn"] if kernel == "gaussian" else []), *OBLIVIOUS[kernel], "gegenbauer"]
            maps += ["groups"] if (name, kernel) == ("airtemp", "gaussian") else []
            rows = {}
            for label in maps:
                scores, memory, alphas = [], [], []
                for seed in range(SEEDS):
                    X, y = table(name, seed, n)
                    split = len(X) * 9 // 10
                    feature_map = make(label, kernel, args.components, seed, lengthscale=lengthscale)
                    reset_peak()
                    before = memory_mib("VmRSS")
                    feature_map.fit(X[:split])
                    Z, Z_test = feature_map.transform(X[:split]), feature_map.transform(X[split:])
                    memory.append(memory_mib() - before - (Z.nbytes + Z_test.nbytes) / 2**20)
                    score, alpha = ridge(Z, y[:split], Z_test, y[split:])
                    scores.append(score)
                    alphas.append(alpha)
                rows[label] = {"mse": scores, "memory_mib": memory, "alpha": alphas}
                mean, deviation = np.mean(scores), np.std(scores)
                print(f"{name} {kernel} {label:20s} {mean:8.4f} ± {deviation:.4f}", flush=True)
            out[f"{name}, {kernel}"] = {"rows": len(X), "lengthscale": lengthscale, "maps": rows}
            if not args.quick:
                save("regression", out)


def times(args):
    """Seconds of fit and transform of all rows, three rounds in random order, beside the results of `regression`."""
    out = json.loads(FILE.read_text())["regression"]
    for title, block in out.items():
        name, kernel = title.split(", ")
        X, _ = table(name, 0)
        maps = {}
        for label in block["maps"]:
            feature_map = make(label, kernel, args.components, 0, lengthscale=block["lengthscale"])

            def run(feature_map=feature_map, X=X):
                feature_map.fit(X)
                feature_map.transform(X)

            maps[label] = run
        for label, seconds in medians(maps, 3).items():
            block["maps"][label]["seconds"] = seconds
            print(f"{title:20s} {label:20s} {seconds:6.2f} s", flush=True)
        save("regression", out)
    plot_regression(out)


def choose_lengthscale(name):
    """Length scale of the Gaussian by the twofold error of Nyström features of 12 000 rows."""
    X, y = table(name, 100, 12000)
    scales = (0.1, 0.14, 0.2, 0.3, 0.5, 0.7) if name != "protein" else (0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
    errors = {}
    for lengthscale in scales:
        Z = make("nystroem", "gaussian", 1024, 0, lengthscale=lengthscale).fit_transform(X)
        errors[lengthscale] = ridge(Z[:10000], y[:10000], Z[10000:], y[10000:])[0]
    print(name, errors, flush=True)
    return min(errors, key=errors.get)


def plot_regression(out):
    plt = pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), constrained_layout=True)
    markers = dict(zip(LABELS, "sDo^v<>PXdph*", strict=False))
    for ax, (title, block) in zip(axes.T.ravel(), out.items(), strict=True):
        for label, row in block["maps"].items():
            style = {"color": "C3", "ms": 10} if label in ("gegenbauer", "groups") else {"color": "0.35", "ms": 6}
            ax.plot(row["seconds"], np.mean(row["mse"]), markers[label], label=LABELS[label], **style)
        ax.set(title=title, xscale="log", yscale="log", xlabel="seconds", ylabel="mean squared error")
        ax.set_xticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
        ax.xaxis.set_minor_formatter("")
        low, high = ax.get_ylim()
        fine = (18, 19, 20, 21, 22, 24, 26) if high < 2 * low else (0.5, 0.7, 1, 1.5, 2, 5, 7, 10, 15, 20)
        ticks = [t for t in fine if low <= t <= high]
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.yaxis.set_minor_formatter("")
    handles = {h.get_label(): h for ax in axes.ravel() for h in ax.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig("docs/zonal_regression.png", dpi=110)


# Table 3.

PAPER_COLUMNS = ("nystroem", "fourier", "fastfood", "maclaurin, paper", "taylor", "gegenbauer")
PAPER_KMEANS = {
    "abalone": (0.38, 0.38, 0.43, 0.43, 0.35, 0.35),
    "pendigits": (0.42, 0.43, 0.46, 0.46, 0.45, 0.40),
    "mushroom": (0.71, 0.72, 0.74, 0.72, 0.67, 0.71),
    "magic04": (0.64, 0.66, 0.67, 0.73, 0.66, 0.59),
    "shuttle": (0.23, 0.24, 0.24, 0.23, 0.21, 0.21),
    "connect4": (0.61, 0.81, 0.83, 0.90, 0.82, 0.78),
}


def cluster_rows(name):
    """Unit rows of standardized columns, categories as numbers as in the paper, and the number of clusters."""
    from ntkit.datasets import load_dataset

    data = load_dataset(name)
    X = np.asarray(data.X, dtype=np.float64)
    if name == "abalone":  # sex as one number; three classes of ages
        X, n_clusters = np.concatenate([X[:, :3] @ np.arange(3.0)[:, None], X[:, 3:]], axis=1), 3
    elif name == "mushroom":
        names = [str(column).rpartition("=")[0] or str(column) for column in data.feature_names]
        X, n_clusters = _codes(X, names), 2
    elif name == "connect4":
        X, n_clusters = X.reshape(len(X), 42, 3) @ np.arange(3.0), 3
    else:
        n_clusters = len(np.unique(data.y))
    X = X[:, X.std(0) > 0]
    X = (X - X.mean(0)) / X.std(0)
    return X / np.linalg.norm(X, axis=1, keepdims=True), n_clusters


def _codes(X, names):
    columns = []
    for name in dict.fromkeys(names):
        block = X[:, [i for i, other in enumerate(names) if other == name]]
        columns.append(block @ np.arange(block.shape[1], dtype=np.float64))
    return np.stack(columns, axis=1)


def clustering(args):
    """Objective of kernel k-means: mean squared distance to the centres, of the features and of the kernel itself."""
    import ntkit

    out = {}
    for name, numbers in PAPER_KMEANS.items():
        paper = dict(zip(PAPER_COLUMNS, numbers, strict=True))
        X, n_clusters = cluster_rows(name)
        X = X[:3000] if args.quick else X
        rows = {}
        for label in ("nystroem", *OBLIVIOUS["gaussian"], "gegenbauer"):
            kernel, features, seconds = [], [], []
            for seed in range(SEEDS):
                feature_map = make(label, "gaussian", 512, seed, lengthscale=args.lengthscale)
                start = time.perf_counter()
                model = ntkit.FeatureKMeans(feature_map, n_clusters, n_init=3, random_state=seed).fit(X)
                seconds.append(time.perf_counter() - start)
                features.append(model.inertia_ / len(X))
                kernel.append(model.kernel_objective(X, n_samples=10000, random_state=0))
            rows[label] = {"kernel": kernel, "features": features, "seconds": seconds, "paper": paper.get(label)}
            print(f"{name:10s} {label:18s} kernel {np.mean(kernel):.4f} features {np.mean(features):.4f} "
                  f"paper {paper.get(label)}  {np.median(seconds):.2f} s", flush=True)  # fmt: skip
        out[name] = {"rows": len(X), "columns": X.shape[1], "clusters": n_clusters, "maps": rows}
        if not args.quick:
            save("clustering", {"lengthscale": args.lengthscale, "sets": out})


# Theorem 9.


def spectral(args):
    """Spectral ε of maps of the Gaussian on unit rows, and what Theorem 9 promises for Definition 8."""
    from ntkit.diagnostics import spectral_error, statistical_dimension
    from ntkit.kernels import gaussian
    from ntkit.kernels.zonal import harmonic_dimension, radial_functions

    n, lam = 1000, 1.0
    sizes = [64, 256, 1024] if args.quick else [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    out = {"sizes": sizes, "rows": n, "lam": lam}
    for d in (3, 9, 64):
        X = np.random.default_rng(d).standard_normal((n, d))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        K = gaussian(X, lengthscale=1.0)
        s = statistical_dimension(K, lam)
        h = radial_functions("gaussian", [1.0], 30, 30, d)[0]
        energies = (h**2).sum(axis=1)
        leverage = sum(
            min(harmonic_dimension(k, d) * np.pi**2 * (k + 1) ** 2 / (6 * lam) * n * e, float(harmonic_dimension(k, d)))
            for k, e in enumerate(energies)
        )
        block = {"statistical_dimension": s, "leverage": leverage}
        block["theorem"] = [float(np.sqrt(8 / 3 * np.log(16 * s / 0.1) * leverage / m)) for m in sizes]
        for label in ("definition 8", "orthogonal 8", "gegenbauer", "fourier", "orthogonal", "taylor"):
            block[label] = []
            for m in sizes:
                errors = []
                for seed in range(SEEDS):
                    if label == "orthogonal 8":
                        feature_map = make("gegenbauer", "gaussian", m, seed).set_params(harmonics=False)
                    else:
                        feature_map = make(label, "gaussian", m, seed)
                    errors.append(spectral_error(K, feature_map.fit(X).transform(X), lam))
                block[label].append(float(np.mean(errors)))
            print(d, label, [f"{e:.2g}" for e in block[label]], flush=True)
        out[str(d)] = block
    if not args.quick:
        save("spectral", out)
        plot_spectral(out)


def plot_spectral(out):
    plt = pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), constrained_layout=True, sharey=True)
    styles = {
        "theorem": ("0.6", ":", "Theorem 9, bound for Definition 8"),
        "definition 8": ("C0", "-", "Gegenbauer, Definition 8"),
        "orthogonal 8": ("C0", "--", "the same, orthogonal directions"),
        "gegenbauer": ("C3", "-", "Gegenbauer"),
        "fourier": ("0.3", "-", "Fourier"),
        "orthogonal": ("0.3", "--", "Orthogonal Fourier"),
        "taylor": ("C2", "-", "DotProductSketch"),
    }
    for ax, d in zip(axes, (3, 9, 64), strict=True):
        for label, (color, line, text) in styles.items():
            ax.loglog(out["sizes"], np.maximum(out[str(d)][label], 1e-8), line, color=color, label=text)
        ax.set(title=f"d = {d}, statistical dimension {out[str(d)]['statistical_dimension']:.0f}", xlabel="features")
    axes[0].set(ylabel="spectral ε at λ = 1", ylim=(1e-8, 1e2))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig("docs/zonal_spectral.png", dpi=110)


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9})
    return plt


def save(question, values):
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results["versions"] = versions()
    results[question] = values
    FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = {
        "series": series, "regression": regression, "times": times, "clustering": clustering, "spectral": spectral,
    }  # fmt: skip
    parser.add_argument("question", choices=questions)
    parser.add_argument("--components", type=int, default=1024)
    parser.add_argument("--lengthscale", type=float, default=0.5**0.5, help="of the Gaussian of `clustering`")
    parser.add_argument("--quick", action="store_true", help="few rows, nothing saved")
    arguments = parser.parse_args()
    questions[arguments.question](arguments)
