"""Feature maps of the NTK: error against size and time, speed against the published formulation, a GPU.

    python benchmarks/bench_ntk_features.py errors      errors of all maps on MNIST and protein, and the plot
    python benchmarks/bench_ntk_features.py times       their times again
    python benchmarks/bench_ntk_features.py speed       this CPU: BLAS, ZᵀZ and the formulation with complex FFTs
    python benchmarks/bench_ntk_features.py learning    ridge regression on the features beside RBF features
    python benchmarks/bench_ntk_features.py device      a GPU: rows per second

Data are read from $NTKIT_DATA (mnist.npz, uci_protein.npz). Errors are over 1000 rows, scaled to norm 1:
‖ZZᵀ − K‖_F/‖K‖_F and the spectral ε at λ = 10⁻³‖K‖. Times are medians of rounds in which the contestants take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from common import RESULTS, device_medians, medians, memory_mib, reset_peak, versions

SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
DEPTHS = (1, 3, 5)
SEEDS = 3
LABELS = {
    "polynomial": "NTKPolynomialSketch",
    "sketch": "NTKSketch",
    "random": "NTKRandomFeatures",
    "random, paper": "Algorithm 2, as published",
    "sketch, paper": "Algorithm 1, as published",
    "gradient": "GradientFeatures",
}


def rows(name, n=None, *, unit=True):
    """Rows of a data set, float32; protein standardized; `n` of them at random."""
    file = np.load(Path(os.environ["NTKIT_DATA"]) / {"mnist": "mnist.npz", "protein": "uci_protein.npz"}[name])
    if name == "mnist":
        X = file["X_train"].reshape(60000, 784).astype("float32") / 255
    else:
        X = file["X"].astype("float64")
        X = ((X - X.mean(0)) / X.std(0)).astype("float32")
    if n is not None:
        X = X[np.random.default_rng(0).choice(len(X), n, replace=False)]
    return X / np.linalg.norm(X, axis=1, keepdims=True) if unit else X


def make(name, depth, m, seed=0):
    from ntkit import GradientFeatures, NTKPolynomialSketch, NTKRandomFeatures, NTKSketch, networks

    shared = {"n_components": m, "random_state": seed}
    if name == "gradient":
        return GradientFeatures(networks.fully_connected(depth), **shared)
    if name == "polynomial":
        return NTKPolynomialSketch(depth=depth, **shared)
    if name == "sketch":
        return NTKSketch(depth=depth, **shared)
    if name == "sketch, paper":
        options = {"series": "taylor", "variant": "paper", "normalize": False, "projection": True, "replace": True}
        return NTKSketch(depth=depth, degree=8, derivative_degree=9, **options, **shared)
    if name == "random, paper":
        options = {"directions": "gaussian", "split": 0.5, "normalize": False, "replace": True}
        return NTKRandomFeatures(depth=depth, derivative_components=m, hidden_components=m, **options, **shared)
    return NTKRandomFeatures(depth=depth, **shared)


def errors(sizes, seeds):
    from ntkit.diagnostics import spectral_error
    from ntkit.kernels import ntk

    found = []
    for data in ("mnist", "protein"):
        X = rows(data, 1000)
        for depth in DEPTHS:
            K = ntk(X.astype("float64"), depth=depth)
            norm, lam = np.linalg.norm(K), 1e-3 * np.linalg.norm(K, 2)
            for name in LABELS:
                for m in sizes:
                    if name == "gradient" and _least(X, depth) > m:
                        continue
                    if "paper" in name and m > (8192 if depth == 1 else 4096):  # minutes for each
                        continue
                    maps = [make(name, depth, m, seed).fit(X) for seed in range(seeds)]
                    Z = [f.transform(X).astype("float64") for f in maps]
                    Z = [z if np.isfinite(z).all() else np.full_like(z, 1e9) for z in Z]  # overflow without normalize
                    relative = [float(np.linalg.norm(z @ z.T - K) / norm) for z in Z]
                    spectral = [spectral_error(K, z, lam) for z in Z]
                    seconds = medians({"transform": lambda f=maps[0]: f.transform(X)}, 3)["transform"]
                    row = {"data": data, "depth": depth, "map": name, "n_components": m, "columns": Z[0].shape[1]}
                    row |= {"error": relative, "spectral": spectral, "seconds_per_1000_rows": seconds}
                    found.append(row)
                    save("ntk_features.json", "errors", found)
                    print(
                        f"{data:8} depth {depth} {name:14} m={m:6}: error {np.mean(relative):.4f} ± "
                        f"{np.std(relative):.4f}, spectral {np.mean(spectral):.3f}, {1000 * seconds:.1f} ms", flush=True
                    )  # fmt: skip
    return found


def times(found):
    """Measure the times of all maps of :func:`errors` again, on a machine at rest."""
    for data in ("mnist", "protein"):
        X = rows(data, 1000)
        for row in found:
            if row["data"] == data:
                mapping = make(row["map"], row["depth"], row["n_components"]).fit(X)
                seconds = medians({"transform": lambda f=mapping: f.transform(X)}, 3)["transform"]
                row["seconds_per_1000_rows"] = seconds
                print(f"{data} {row['depth']} {row['map']} {row['n_components']}: {1000 * seconds:.1f} ms", flush=True)
    return found


def _least(X, depth):
    return X.shape[1] + depth  # weights of a network of width 1


def plot(found, path):
    import matplotlib.pyplot as plt

    colours = dict(zip(LABELS, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(4, 3, figsize=(11, 13), constrained_layout=True)
    titles = {"mnist": "MNIST (784 features)", "protein": "protein (9 features)"}
    for i, data in enumerate(("mnist", "protein")):
        for j, depth in enumerate(DEPTHS):
            for k, (key, label) in enumerate((("error", "relative error"), ("spectral", "spectral ε"))):
                axis = axes[2 * k + i, j]
                for name, title in LABELS.items():
                    mine = [r for r in found if (r["data"], r["depth"], r["map"]) == (data, depth, name)]
                    if mine:
                        x = [r["n_components"] for r in mine]
                        mean = np.array([np.mean(r[key]) for r in mine])
                        spread = np.array([np.std(r[key]) for r in mine])
                        bars = np.minimum(spread, 0.5 * mean), spread  # log axes have no room below 0
                        axis.errorbar(x, mean, bars, label=title, color=colours[name], marker="o", ms=3, lw=1.4)
                axis.set(
                    xscale="log", yscale="log", title=f"{titles[data]}, depth {depth}", ylabel=label if j == 0 else None
                )
                axis.set_ylim(*((1e-3, 2) if k == 0 else (0.1, 20)))
                axis.set_xticks(SIZES, [str(s) for s in SIZES], fontsize=8, rotation=30)
                axis.minorticks_off()
                axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("number of features")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_time(found, path):
    import matplotlib.pyplot as plt

    colours = dict(zip(LABELS, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.5), constrained_layout=True, sharey="row")
    for i, data in enumerate(("mnist", "protein")):
        for j, depth in enumerate(DEPTHS):
            axis = axes[i, j]
            for name, title in LABELS.items():
                mine = [r for r in found if (r["data"], r["depth"], r["map"]) == (data, depth, name)]
                x = [1000 * r["seconds_per_1000_rows"] for r in mine]
                axis.plot(x, [np.mean(r["error"]) for r in mine], label=title, color=colours[name], marker="o", ms=3)
            axis.set(xscale="log", yscale="log", title=f"{data}, depth {depth}", xlabel="ms per 1000 rows")
            axis.set_ylim(1e-3, 2)
            axis.grid(alpha=0.3)
        axes[i, 0].set_ylabel("relative error")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def learning(sizes=(1024, 4096), seeds=SEEDS):
    """Ridge regression on the features, penalty by held-out rows: protein (mean squared error), MNIST (% errors)."""
    from scipy.linalg import cho_factor, cho_solve
    from sklearn.kernel_approximation import RBFSampler

    found = []
    for data, depths in (("protein", (1, 3)), ("mnist", (1, 3))):
        X = rows(data, unit=data == "mnist")
        if data == "protein":
            X = np.concatenate([X, np.ones((len(X), 1), "float32")], axis=1)  # an offset that is not homogeneous
            y = np.load(Path(os.environ["NTKIT_DATA"]) / "uci_protein.npz")["y"].astype("float64")[:, None]
        else:
            y = np.load(Path(os.environ["NTKIT_DATA"]) / "mnist.npz")["y_train"]
            y = np.eye(10)[y] - 0.1
        order = np.random.default_rng(0).permutation(len(X))[:20000]
        train, held, test = order[:14000], order[14000:16000], order[16000:]

        def loss(prediction, part, data=data, y=y):
            if data == "protein":
                return float(np.mean((prediction - y[part]) ** 2))
            return float(100 * np.mean(prediction.argmax(1) != y[part].argmax(1)))

        for m in sizes:
            contestants = {(name, depth): None for name in ("polynomial", "random", "sketch") for depth in depths}
            contestants |= {("RBF features", gamma): None for gamma in (0.1, 0.3, 1.0, 3.0)}
            for name, setting in contestants:
                losses = []
                for seed in range(seeds):
                    if name == "RBF features":
                        scale = setting / (X.shape[1] if data == "protein" else 1)
                        mapping = RBFSampler(gamma=scale, n_components=m, random_state=seed)
                    else:
                        mapping = make(name, setting, m, seed)
                    Z = mapping.fit(X[:100]).transform(X[order]).astype("float64")
                    mean = y[train].mean(0)
                    G, b = Z[:14000].T @ Z[:14000], Z[:14000].T @ (y[train] - mean)
                    best = None
                    for alpha in 10.0 ** np.arange(-7, 0) * np.trace(G):
                        factor = cho_factor(G + alpha * np.eye(len(G)), overwrite_a=True, check_finite=False)
                        out = Z[14000:] @ cho_solve(factor, b) + mean
                        score = loss(out[:2000], held), loss(out[2000:], test)
                        best = min(best or score, score)
                    losses.append(best[1])
                row = {"data": data, "map": name, "setting": setting, "n_components": m, "test_loss": losses}
                found.append(row)
                print(f"{data} {name} {setting} m={m}: {np.mean(losses):.3f} ± {np.std(losses):.3f}", flush=True)
    return found


class FFTPolySketch:
    """PolySketch as published: complex FFTs in place of Hadamard transforms at every node, all degrees by padding.

    A node maps a ⊗ b to m^{-1/2} (F D₁ a)[p₁] ⊙ (F D₂ b)[p₂], F the discrete Fourier transform; degree j has x in its
    first j leaves and e₁ in the others.
    """

    def __init__(self, d, m, degree, generator):
        import torch

        self.d, self.m, self.degree = d, m, degree
        self.nodes = {}
        for node in _spans(0, degree):
            if node[1] - node[0] > 1:
                sizes = [m if b - a > 1 else d for a, b in _halves(*node)]
                signs = [1.0 - 2.0 * torch.randint(2, (s,), generator=generator) for s in sizes]
                rows = [torch.randint(s, (m,), generator=generator) for s in sizes]
                self.nodes[node] = (signs, rows)

    def degrees(self, x):
        import torch

        known = {}

        def value(start, stop, j):
            """Node with j leading leaves x and e₁ in the others."""
            j = min(max(j, 0), stop - start)
            if (start, stop, j) in known:
                return known[start, stop, j]
            if stop - start == 1:
                result = x if j else torch.zeros(1, self.d).index_fill(1, torch.tensor([0]), 1.0)
            else:
                signs, picks = self.nodes[start, stop]
                children = _halves(start, stop)
                inner = [value(a, b, j - (a - start)) for a, b in children]
                fourier = [torch.fft.fft(v * s)[:, p] for v, s, p in zip(inner, signs, picks, strict=True)]
                result = fourier[0] * fourier[1] / self.m**0.5
            known[start, stop, j] = result
            return result

        return [value(0, self.degree, j) for j in range(self.degree + 1)]


def _halves(start, stop):
    middle = start + (stop - start + 1) // 2
    return (start, middle), (middle, stop)


def _spans(start, stop):
    if stop - start == 1:
        return [(start, stop)]
    return [(start, stop), *(node for half in _halves(start, stop) for node in _spans(*half))]


class FFTSeries:
    """Features of Σ c_j t^j: all degrees side by side, mixed down by one more transform and real parts taken."""

    def __init__(self, d, coefficients, m, generator, out=None):
        import torch

        self.roots = [c**0.5 for c in coefficients]
        self.poly = FFTPolySketch(d, m, len(coefficients) - 1, generator)
        size = m * len(coefficients)
        self.signs = 1.0 - 2.0 * torch.randint(2, (size,), generator=generator)
        self.rows = torch.randint(size, ((out or m) // 2,), generator=generator)

    def __call__(self, x):
        import torch

        n = x.shape[0]
        parts = [(root * z).expand(n, -1) for root, z in zip(self.roots, self.poly.degrees(x), strict=True)]
        mixed = torch.fft.fft(torch.cat(parts, dim=1) * self.signs)[:, self.rows] / len(self.rows) ** 0.5
        return torch.cat([mixed.real, mixed.imag], dim=1)


def published(name, X, depth, m, degrees, seed=0, batch=1024):
    """Remark 1, Algorithm 1 or Algorithm 2 in torch with complex FFTs; rows in batches."""
    import torch

    from ntkit.kernels import KernelSpec
    from ntkit.kernels.fit import fitted_polynomial, taylor_polynomial

    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(X)
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    d = x.shape[1]
    if name == "remark 1":
        series = FFTSeries(d, fitted_polynomial(KernelSpec.of("ntk", depth=depth), degrees)[0], m, generator)
        step = series
    elif name == "algorithm 2":
        half = m // 2
        layers = []
        size = psi = d
        for _ in range(depth):
            w0, w1 = (torch.randn(size, half, generator=generator) for _ in range(2))
            signs = [1.0 - 2.0 * torch.randint(2, (s,), generator=generator) for s in (half, psi)]
            picks = [torch.randint(s, (half // 2,), generator=generator) for s in (half, psi)]
            layers.append((w0, w1, signs, picks))
            size, psi = half, m

        def step(v):
            phi = psi = v
            for w0, w1, signs, picks in layers:
                dot = (2 / half) ** 0.5 * (phi @ w0 > 0).float()
                phi = (2 / half) ** 0.5 * torch.relu(phi @ w1)
                f = [torch.fft.fft(a * s)[:, p] for a, s, p in zip((dot, psi), signs, picks, strict=True)]
                q = f[0] * f[1] / (half // 2) ** 0.5
                psi = torch.cat([q.real, q.imag, phi], dim=1)
            return psi

    else:
        k1, k0 = (taylor_polynomial(KernelSpec.of("arc_cosine", order=order), degrees + 1 - order) for order in (1, 0))
        layers = []
        size = psi = d
        for number in range(depth):
            signs = [1.0 - 2.0 * torch.randint(2, (s,), generator=generator) for s in (m, psi)]
            picks = [torch.randint(s, (m // 4,), generator=generator) for s in (m, psi)]
            forward = FFTSeries(size, k1, m, generator, out=m if number < depth - 1 else m // 2)
            layers.append((forward, FFTSeries(size, k0, m, generator), signs, picks))
            size, psi = m, m + m // 2

        def step(v):
            phi = psi = v
            for forward, derivative, signs, picks in layers:
                dot = derivative(phi)
                phi = forward(phi)
                f = [torch.fft.fft(a * s)[:, p] for a, s, p in zip((dot, psi), signs, picks, strict=True)]
                q = f[0] * f[1] / (m // 4) ** 0.5
                psi = torch.cat([q.real, q.imag, phi], dim=1)
            return psi

    with torch.inference_mode():
        parts = [norms[i : i + batch] * step(x[i : i + batch] / norms[i : i + batch]) for i in range(0, len(x), batch)]
        return torch.cat(parts).numpy()


CASES = {
    "random L=1": ("algorithm 2", "random", 1, None),
    "random L=2": ("algorithm 2", "random", 2, None),
    "polynomial degree 2": ("remark 1", "polynomial", 1, 2),
    "polynomial degree 8": ("remark 1", "polynomial", 1, 8),
    "polynomial auto": (None, "polynomial", 1, None),
    "polynomial auto L=3": (None, "polynomial", 3, None),
    "sketch L=1": ("algorithm 1", "sketch", 1, 8),
    "sketch L=2": ("algorithm 1", "sketch", 2, 8),
}


def case_map(case, m, seed=0):
    _, name, depth, degree = CASES[case]
    found = make(name, depth, m, seed)
    return found.set_params(degree=degree) if name == "polynomial" and degree else found


def speed(rounds, only="", m=4096):
    from ntkit.kernels import ntk
    from ntkit.programs import Program
    from ntkit.programs.steps import MatrixProduct

    found = []
    for data, n in (("protein", None), ("mnist", 10000)):
        X = rows(data, n, unit=False)
        few = rows(data, 1000)
        Z = np.ones((len(X), m), "float32")
        for case, (baseline, _, depth, degree) in CASES.items():
            if only not in f"{data} {case}":
                continue
            mapping = case_map(case, m).fit(X)
            products = []
            for step in getattr(mapping._draws, "program", Program(())).steps:
                if isinstance(step, MatrixProduct):
                    A = np.ones((len(X), step.matrix.shape[1]), "float32")
                    products.append(
                        (A, np.ascontiguousarray(step.matrix.T), np.empty((len(X), len(step.matrix)), "float32"))
                    )
            contestants = {"ntkit": lambda f=mapping: f.transform(X), "ZᵀZ": lambda: Z.T @ Z}
            if products:
                contestants["BLAS"] = lambda p=products: [np.matmul(a, w, out=o) for a, w, o in p]
            part = X[: len(X) // 16]  # the published formulation is slow
            if baseline:
                contestants["ntkit, part"] = lambda f=mapping, part=part: f.transform(part)
                contestants["published, part"] = lambda b=(baseline, part, depth, m, degree): published(*b)
            times = medians(contestants, rounds)
            K = ntk(few.astype("float64"), depth=depth)

            def error(z, K=K):
                z = z.astype("float64")
                return float(np.linalg.norm(z @ z.T - K) / np.linalg.norm(K))

            row = {"data": data, "case": case, "rows": len(X), "columns": mapping._n_features_out, "seconds": times}
            row["error"] = float(np.mean([error(case_map(case, m, s).fit_transform(few)) for s in range(SEEDS)]))
            row["peak_mib"] = apart("ntkit", data, n, case)
            if baseline:
                mine = [error(published(baseline, few, depth, m, degree, s)) for s in range(SEEDS)]
                row |= {
                    "published_error": float(np.mean(mine)),
                    "published_peak_mib": apart("published", data, n, case),
                }
                row["times_faster"] = times["published, part"] / times["ntkit, part"]
            row["of_gram"] = times["ntkit"] / times["ZᵀZ"]
            if products:
                row["of_blas"] = times["ntkit"] / times["BLAS"]
            found.append(row)
            print(json.dumps(row, ensure_ascii=False), flush=True)
            merge_speed([row])


def merge_speed(found):
    path = RESULTS / "ntk_features.json"
    known = json.loads(path.read_text()).get("speed", []) if path.exists() else []
    new = {(row["data"], row["case"]) for row in found}
    save(path.name, "speed", [row for row in known if (row["data"], row["case"]) not in new] + found)


def apart(who, data, n, case):
    """Peak memory in MiB, beyond the rows, of one transform in a fresh process."""
    command = [sys.executable, __file__, "peak", who, data, str(n or 0), case]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(who, data, n, case):
    import torch  # noqa: F401

    X = rows(data, int(n) or None, unit=False)
    baseline, _, depth, degree = CASES[case]
    mapping = case_map(case, 4096).fit(X)
    run = mapping.transform if who == "ntkit" else lambda part: published(baseline, part, depth, 4096, degree)
    run(X[:64])
    X = X if who == "ntkit" else X[: len(X) // 16]
    before = memory_mib("VmRSS")
    reset_peak()
    run(X)
    print(memory_mib() - before)


def device(rounds, n=100_000, d=784, m=8192):
    import torch

    torch.manual_seed(0)
    X = torch.rand(n, d, device="cuda")
    found = []
    few = X[:1000]
    for name in ("polynomial", "sketch", "random"):
        for depth in (1, 3):
            mapping = make(name, depth, m).fit(few)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            seconds = device_medians({"transform": lambda f=mapping: f.transform(X)}, rounds)["transform"]
            peak_gib = (torch.cuda.max_memory_allocated() - before) / 2**30
            from ntkit.programs.steps import MatrixProduct

            flops = 2 * n * sum(s.matrix.size for s in mapping._draws.program.steps if isinstance(s, MatrixProduct))
            traffic = 4 * n * (d + m)
            row = {
                "map": name,
                "depth": depth,
                "rows_per_second": n / seconds,
                "seconds": seconds,
                "peak_gib": peak_gib,
            }
            row |= {"tflops_of_matrix_products": flops / seconds / 1e12, "gb_per_s_in_and_out": traffic / seconds / 1e9}
            row["error_on_1000"] = mapping.estimate_error(few)
            found.append(row)
            print(json.dumps(row), flush=True)
    Z = torch.empty(n, m, device="cuda")
    A, B = X, torch.rand(d, m, device="cuda")
    times = device_medians({"copy": lambda: Z.fill_(1.0), "matmul": lambda: torch.matmul(A, B, out=Z)}, rounds)
    found.append(
        {
            "map": "bounds",
            "write_gb_per_s": 4 * n * m / times["copy"] / 1e9,
            "fp32_tflops": 2 * n * d * m / times["matmul"] / 1e12,
        }
    )
    print(json.dumps(found[-1]), flush=True)
    return found


def save(name, key, found, kind="numpy"):
    path = RESULTS / name
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= {"versions": versions(kind), key: found}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def main():
    if sys.argv[1:2] == ["peak"]:
        peak(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=["errors", "times", "speed", "learning", "device", "plot"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="for speed: cases with this in 'data case', such as 'mnist random'")
    parser.add_argument("--quick", action="store_true", help="few sizes and seeds")
    arguments = parser.parse_args()
    docs = Path(__file__).resolve().parents[1] / "docs"
    if arguments.question == "errors":
        found = errors(SIZES[::3] if arguments.quick else SIZES, 1 if arguments.quick else SEEDS)
        save("ntk_features.json", "errors", found)
    elif arguments.question == "times":
        save("ntk_features.json", "errors", times(json.loads((RESULTS / "ntk_features.json").read_text())["errors"]))
    elif arguments.question == "learning":
        save("ntk_features.json", "learning", learning(seeds=1 if arguments.quick else SEEDS))
    elif arguments.question == "speed":
        speed(1 if arguments.quick else arguments.rounds, arguments.only)
    elif arguments.question == "device":
        save("ntk_features_h200.json", "device", device(arguments.rounds), "cuda")
        return
    found = json.loads((RESULTS / "ntk_features.json").read_text()).get("errors", [])
    if found:
        plot(found, docs / "ntk_features.png")
        plot_time(found, docs / "ntk_features_time.png")


if __name__ == "__main__":
    main()
