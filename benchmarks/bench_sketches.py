"""Sketches against scikit-learn's PolynomialCountSketch, the FFT formulation in torch and a copy of memory.

    python benchmarks/bench_sketches.py                 all questions, on this CPU
    python benchmarks/bench_sketches.py --device cuda   those of torch, on a GPU

Times are medians of rounds in which the contestants take turns. Errors are ‖ZZᵀ − K‖_F / ‖K‖_F over 500 rows, a mean
over seeds. Peak memory is what a fresh process needs beyond the data. (scikit-learn returns float64 for float32 rows.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from common import RESULTS, device_medians, medians, memory_mib, reset_peak, versions

METHODS = ("tree", "power", "count")
SEEDS = 5
DEGREES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
SIZES = (1024, 2048, 4096, 8192, 16384)


def clustered_rows(n, d, seed=0, similarity=0.8):
    """Unit rows in ten clusters: cosines of about `similarity` within, about 0 between, so that K has structure."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((10, d)) / d**0.5
    noise = rng.standard_normal((n, d)) / d**0.5
    X = similarity**0.5 * centres[rng.integers(10, size=n)] + (1 - similarity) ** 0.5 * noise
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype("float32")


def text_rows(n=11314, d=130107, density=0.001, seed=0):
    """Sparse unit rows of the shape of 20 newsgroups: frequent and rare words (Zipf), random counts, `density` full."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(seed)
    nnz = int(1.23 * n * d * density)  # some fall on the same place
    words = np.minimum((d ** rng.random(nnz) - 1).astype(np.int64), d - 1)
    words = rng.permutation(d)[words]
    X = csr_array((1 + rng.random(nnz).astype("float32"), (rng.integers(n, size=nnz), words)), shape=(n, d))
    X.sum_duplicates()
    norms = np.sqrt(X.multiply(X).sum(axis=1))
    return csr_array(X.multiply(1 / np.maximum(norms, 1e-6)[:, None]), dtype=np.float32)


def make(name, degree, n_components, seed):
    from sklearn.kernel_approximation import PolynomialCountSketch

    from ntkit import PolynomialSketch

    if name == "scikit-learn":
        return PolynomialCountSketch(degree=degree, n_components=n_components, random_state=seed)
    return PolynomialSketch(degree=degree, n_components=n_components, method=name, random_state=seed)


def kernel_error(name, X, degree, n_components):
    X = X[:500]
    if not isinstance(X, np.ndarray):  # features that do not occur change nothing but scikit-learn's time
        X = X[:, np.unique(X.indices)]
    K = X @ X.T
    K = (K.toarray() if hasattr(K, "toarray") else K).astype("float64") ** degree
    errors = []
    for seed in range(SEEDS):
        Z = make(name, degree, n_components, seed).fit_transform(X).astype("float64")
        errors.append(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))
    return float(np.mean(errors))


def apart(name, data, degree, n_components):
    """MiB that a transform adds in a process of its own, and its seconds there."""
    command = [sys.executable, __file__, "--apart", name, data, str(degree), str(n_components)]
    return map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def report(name, data, degree, n_components):
    X = DATA[data]()
    feature_map = make(name, int(degree), int(n_components), 0).fit(X)
    feature_map.transform(X[:64])  # compiled and imported
    reset_peak()
    before = memory_mib("VmRSS")
    start = time.perf_counter()
    feature_map.transform(X)
    print(max(memory_mib() - before, 0.0), time.perf_counter() - start)


DATA = {"dense": lambda: clustered_rows(4096, 1024), "text": text_rows}


def polynomial(rounds):
    """Degree 8, 4096 × 1024 → 1024, float32."""
    X = DATA["dense"]()
    maps = {name: make(name, 8, 1024, 0).fit(X) for name in (*METHODS, "scikit-learn")}
    seconds = medians({name: lambda f=f: f.transform(X) for name, f in maps.items()}, rounds)
    rows = []
    for name in maps:
        row = {"task": "polynomial, degree 8, 4096 × 1024 → 1024", "contestant": name, "seconds": seconds[name]}
        row["ratio"] = seconds["scikit-learn"] / seconds[name]
        row["error"] = kernel_error(name, X, 8, 1024)
        row["peak_mib"], _ = apart(name, "dense", 8, 1024)
        rows.append(row)
    return rows


def degrees(rounds):
    """Error and time of every method at degrees 2 to 32, for three sizes."""
    X = DATA["dense"]()
    rows = []
    for degree in DEGREES:
        maps = {}
        for name in (*METHODS, "scikit-learn"):
            for m in (256, 1024, 4096):
                if name != "scikit-learn" or m == 1024:
                    maps[name, m] = make(name, degree, m, 0).fit(X)
        few = 5 if degree > 8 else rounds
        seconds = medians({key: lambda f=f: f.transform(X) for key, f in maps.items()}, few)
        for name, m in maps:
            row = {"task": f"polynomial, degree {degree}, 4096 × 1024 → {m}", "contestant": name, "degree": degree}
            row |= {"n_components": m, "seconds": seconds[name, m], "error": kernel_error(name, X, degree, m)}
            row["ratio"] = seconds["scikit-learn", 1024] / row["seconds"]
            rows.append(row)
    return rows


def constant(rounds):
    """Kernel error over scikit-learn's for (⟨x, y⟩ + c)^p, 2000 components, means of ten seeds; no times."""
    from sklearn.kernel_approximation import PolynomialCountSketch

    from ntkit import PolynomialSketch

    del rounds
    rng = np.random.RandomState(0)
    positive, units = rng.random_sample((300, 50)), rng.standard_normal((300, 50))
    kinds = {
        "positive rows of sum 1": positive / positive.sum(axis=1, keepdims=True),
        "unit rows": units / np.linalg.norm(units, axis=1, keepdims=True),
    }
    rows = []
    for kind, X in kinds.items():
        for coef0 in (0, 0.1, 1, 2.5):
            for degree in range(2, 17):
                K = (X @ X.T + coef0) ** degree
                errors = {}
                for name, law in {"tree": PolynomialSketch, "scikit-learn": PolynomialCountSketch}.items():
                    maps = (law(degree=degree, coef0=coef0, n_components=2000, random_state=s) for s in range(10))
                    Z = (feature_map.fit_transform(X) for feature_map in maps)
                    errors[name] = float(np.mean([np.linalg.norm(z @ z.T - K) for z in Z]) / np.linalg.norm(K))
                row = {"task": f"{kind}, c = {coef0}, degree {degree}", "contestant": "tree", "seconds": float("nan")}
                rows.append(row | {"ratio": errors["tree"] / errors["scikit-learn"], "error": errors["tree"]})
    return rows


def all_degrees(rounds):
    """All degrees 0 … p by updated paths, against one sketch of degree p."""
    from ntkit.sketches import PolySketch, PowerSketch

    rows = []
    for d in (1024, 16384):
        X = clustered_rows(2**22 // d, d)
        for law in (PolySketch, PowerSketch):
            operator = law(d, alphas=1024, degree=8).sample(0)
            one, every = (lambda: operator.apply(X)), (lambda: operator.apply_degrees(X))
            seconds = medians({"one degree": one, "all degrees": every}, rounds)
            for name in seconds:
                row = {"task": f"{law.__name__}, degree 8, {len(X)} × {d} → 1024", "contestant": name}
                rows.append(row | {"seconds": seconds[name], "ratio": seconds["one degree"] / seconds[name]})
    return rows


def fft_formulations(n, device):
    """TensorSRHT with a (real) FFT for H, n/2 complex coordinates, their halves side by side; TensorSketch by FFT."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(n // 2 + 1, (n // 2,), generator=generator).to(device) for _ in range(2)]
    hashes = [torch.randint(n, (n,), generator=generator).to(device) for _ in range(2)]
    signs = [(2.0 * torch.randint(2, (n,), generator=generator) - 1).to(device) for _ in range(2)]

    def tensor_srht(X, Y):
        product = torch.fft.rfft(X * signs[0])[:, rows[0]] * torch.fft.rfft(Y * signs[1])[:, rows[1]]
        return torch.cat((product.real, product.imag), dim=1) * (n / 2) ** -0.5

    def tensor_sketch(X, Y):
        counts = [torch.zeros_like(x).index_add_(1, h, x * s) for x, h, s in zip((X, Y), hashes, signs, strict=True)]
        return torch.fft.irfft(torch.fft.rfft(counts[0]) * torch.fft.rfft(counts[1]), n=n)

    return {"FFT for H, in torch": tensor_srht, "CountSketch + FFT, in torch": tensor_sketch}


def tensor(rounds, device):
    """One TensorSRHT of two inputs, n → n, against FFT formulations and against copying as many bytes.

    The copy goes to memory that is already there; all others allocate their result, as users see it.
    """
    import torch

    from ntkit.sketches import TensorSRHT

    rows = []
    entries, clock = (2**28, device_medians) if device == "cuda" else (2**25, medians)
    for dtype in (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,):
        for n in SIZES:
            X, Y = (torch.randn(entries // n, n, device=device).to(dtype) for _ in range(2))
            Z = torch.empty_like(X)
            operator = TensorSRHT(n, n).sample(0)
            functions = {"ntkit": lambda: operator.apply(X, Y), "copy": lambda: Z.copy_(X)}
            if dtype == torch.float32:
                functions |= {k: lambda f=f: f(X, Y) for k, f in fft_formulations(n, device).items()}
            seconds = clock(functions, rounds)
            exact = TensorSRHT(n, n).sample(0).apply(X[:64].double(), Y[:64].double())
            error = float((operator.apply(X[:64], Y[:64]).double() - exact).norm() / exact.norm())
            for name, value in seconds.items():
                row = {"task": f"TensorSRHT, n = {n}, {str(dtype)[6:]}", "contestant": name, "seconds": value}
                row["ratio"] = value / seconds["ntkit"]  # how many times faster ntkit is
                if name == "ntkit":  # two inputs read, one written, where a copy reads and writes one
                    row |= {"fraction_of_copy_speed": 1.5 * seconds["copy"] / value, "rounding_error": error}
                rows.append(row)
    return rows


def sparse(rounds):
    """Rows of the shape of 20 newsgroups, 1024 features; scikit-learn, which takes minutes, runs once, at degree 2."""
    X = DATA["text"]()
    rows = []
    for degree in (2, 4, 8):
        maps = {name: make(name, degree, 1024, 0).fit(X) for name in METHODS}
        seconds = medians({name: lambda f=f: f.transform(X) for name, f in maps.items()}, rounds)
        for name in (*METHODS, "scikit-learn") if degree == 2 else METHODS:
            row = {"task": f"text, degree {degree}, 11314 × 130107 → 1024", "contestant": name}
            row["peak_mib"], once = apart(name, "text", degree, 1024)
            row |= {"seconds": seconds.get(name, once), "error": kernel_error(name, X, degree, 1024)}
            rows.append(row)
        if degree == 2:
            for row in rows:
                row["ratio"] = rows[-1]["seconds"] / row["seconds"]
    return rows


def nonzeros(rounds):
    """OSNAP of sparse rows: time against nonzeros per row and number of features."""
    from scipy.sparse import csr_array

    from ntkit.sketches import OSNAP

    rng = np.random.default_rng(0)
    rows = []
    for d in (10_000, 100_000, 1_000_000):
        operator = OSNAP(d, 1024).sample(0)
        for nnz in (10, 100, 1000):
            n = 4096
            index = rng.integers(d, size=n * nnz).astype(np.int32)
            X = csr_array((np.ones(n * nnz, "float32"), index, np.arange(0, n * nnz + 1, nnz)), shape=(n, d))
            X.sum_duplicates()
            (seconds,) = medians({"ntkit": lambda: operator.apply(X)}, rounds).values()
            rows.append({"task": f"OSNAP, d = {d}, {nnz} nonzeros per row", "contestant": "ntkit", "seconds": seconds})
            rows[-1]["nanoseconds_per_nonzero"] = seconds / X.nnz * 1e9
    return rows


def polysketch_on_device(rounds):
    import torch

    from ntkit.sketches import PolySketch, PowerSketch

    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        X = (torch.randn(2**16, 1024, device="cuda") / 32).to(dtype)
        for law in (PolySketch, PowerSketch):
            operator = law(1024, alphas=1024, degree=8).sample(0)
            exact = operator.apply(X[:256].double())
            error = float((operator.apply(X[:256]).double() - exact).norm() / exact.norm())
            functions = {"one degree": lambda: operator.apply(X), "all degrees": lambda: operator.apply_degrees(X)}
            for name, value in device_medians(functions, rounds).items():
                row = {"task": f"{law.__name__}, degree 8, 65536 × 1024 → 1024, {str(dtype)[6:]}", "contestant": name}
                rows.append(row | {"seconds": value, "rows_per_second": len(X) / value, "rounding_error": error})
    return rows


def plot(rows, path):
    """Error against time for all degrees, one curve per method; scikit-learn as points at its default size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chosen = [r for r in rows if "degree" in r and r["degree"] in (2, 4, 8, 16, 32)]
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.3), sharey=True, layout="constrained")
    styles = {"tree": ("C0", "o-"), "power": ("C1", "s-"), "count": ("C2", "^-"), "scikit-learn": ("C3", "x")}
    for ax, degree in zip(axes, (2, 4, 8, 16, 32), strict=True):
        for name, (colour, style) in styles.items():
            line = [r for r in chosen if r["degree"] == degree and r["contestant"] == name]
            label = name if name == "scikit-learn" else f'method="{name}"'
            seconds, errors = [r["seconds"] for r in line], [r["error"] for r in line]
            ax.loglog(seconds, errors, style, color=colour, label=label, markersize=5)
        ax.set(title=f"degree {degree}", xlabel="seconds, 4096 × 1024 rows")
        ax.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("relative kernel error")
    axes[0].legend(fontsize=8)
    figure.suptitle("PolynomialSketch: 256, 1024 and 4096 features; scikit-learn: 1024")
    figure.savefig(path, dpi=130)


def show(rows):
    print(f"\n{'task':58} {'contestant':28} {'seconds':>9} {'ratio':>7} {'error':>8} {'MiB':>6}")
    for row in rows:
        error = row.get("error", row.get("rounding_error"))
        other = [f"{row['peak_mib']:6.0f}" if "peak_mib" in row else " " * 6]
        for key in ("fraction_of_copy_speed", "nanoseconds_per_nonzero", "rows_per_second"):
            other += [f"{key} {row[key]:.3g}"] if key in row else []
        ratio = f"{row['ratio']:6.1f}×" if "ratio" in row else " " * 7
        shown = f"{error:8.1e}" if error is not None else " " * 8
        print(f"{row['task']:58} {row['contestant']:28} {row['seconds']:9.5f} {ratio} {shown} {' '.join(other)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="*", help="names of questions, such as tensor or sparse")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path, help="where to draw error against time")
    parser.add_argument("--apart", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.apart:
        report(*arguments.apart)
        return
    questions = {f.__name__: f for f in (polynomial, degrees, constant, all_degrees, sparse, nonzeros)}
    if arguments.device == "cuda":
        questions = {"polysketch_on_device": polysketch_on_device}
    questions = {"tensor": lambda rounds: tensor(rounds, arguments.device)} | questions
    rows = []
    for name, question in questions.items():
        if not arguments.only or name in arguments.only:
            found = question(arguments.rounds)
            show(found)
            rows += found
    suffix = "_gpu" if arguments.device == "cuda" else ""
    output = arguments.output or RESULTS / f"sketches{suffix}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"versions": versions(arguments.device), "rows": rows}, indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)
    print(f"\nWritten to {output}")


if __name__ == "__main__":
    main()
