"""Sketches compared with scikit-learn's PolynomialCountSketch, the FFT formulation in torch and a memory copy.

Times are medians of rounds in which the methods take turns. Errors are ‖ZZᵀ − K‖_F / ‖K‖_F over 500 rows, averaged over
seeds. Peak memory is what a fresh process needs in addition to the data. scikit-learn returns float64 for float32 rows.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from experiment import DEVICES, Question, added_mib, apart, ask, grid, main, medians, methods_of, pyplot, select

TITLE = "Sketches: time, memory and error compared with scikit-learn, FFTs and a copy"
METHODS = ("tree", "power", "count")


def clustered_rows(n, d, seed=0, similarity=0.8):
    """Return unit rows in ten clusters, so that K has structure: cosines of `similarity` within, about 0 between."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((10, d)) / d**0.5
    noise = rng.standard_normal((n, d)) / d**0.5
    X = similarity**0.5 * centres[rng.integers(10, size=n)] + (1 - similarity) ** 0.5 * noise
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype("float32")


def text_rows(n=11314, d=130107, density=0.001, seed=0):
    """Return sparse unit rows like 20 newsgroups: same shape, Zipf word frequencies, random counts, `density`."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(seed)
    nnz = int(1.23 * n * d * density)  # 23 % more, as duplicates are merged
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


DATA = {"dense": lambda: clustered_rows(4096, 1024), "text": text_rows, "few": lambda: clustered_rows(512, 128)}


def kernel_error(name, X, degree, n_components, seeds=5):
    X = X[:500]
    if not isinstance(X, np.ndarray):  # columns of zeros affect only scikit-learn's time
        X = X[:, np.unique(X.indices)]
    K = X @ X.T
    K = (K.toarray() if hasattr(K, "toarray") else K).astype("float64") ** degree
    errors = []
    for seed in range(seeds):
        Z = make(name, degree, n_components, seed).fit_transform(X).astype("float64")
        errors.append(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))
    return float(np.mean(errors))


def once(name, data, degree, m):
    """Return the MiB that a transform adds, and its seconds."""
    X = DATA[data]()
    feature_map = make(name, degree, m, 0).fit(X)
    feature_map.transform(X[:64])  # imports and compiles
    start = time.perf_counter()
    mib = added_mib(lambda: feature_map.transform(X))
    return mib, time.perf_counter() - start


def polynomial(data, degree, m, rounds):
    """Measure one size with memory: float32, 4096 × 1024 → 1024."""
    X = DATA[data]()
    maps = {name: make(name, degree, m, 0).fit(X) for name in ("scikit-learn", *METHODS)}
    seconds = medians({name: lambda f=f: f.transform(X) for name, f in maps.items()}, rounds)
    return {
        "methods": {
            name: {
                "seconds": seconds[name],
                "error": kernel_error(name, X, degree, m),
                "peak_mib": apart(once, name, data, degree, m)[0],
            }
            for name in maps
        }
    }


def degree_cases(args):
    if args.quick:
        return grid(data="few", degree=2, sizes=[[64]], rounds=1)
    axes = {"data": "dense", "sizes": [[256, 1024, 4096]]}
    return grid(degree=(2, 3, 4, 6, 8), rounds=7, **axes) + grid(degree=(12, 16, 24, 32), rounds=5, **axes)


def degrees(data, degree, sizes, rounds):
    """Measure error and time of every method on 4096 × 1024 rows; scikit-learn with 1024 components."""
    X = DATA[data]()
    names = {"scikit-learn → 1024": ("scikit-learn", 1024)}
    names |= {f"{name} → {m}": (name, m) for name in METHODS for m in sizes}
    maps = {label: make(name, degree, m, 0).fit(X) for label, (name, m) in names.items()}
    seconds = medians({label: lambda f=f: f.transform(X) for label, f in maps.items()}, rounds)
    errors = {label: kernel_error(name, X, degree, m) for label, (name, m) in names.items()}
    return {"methods": {label: {"seconds": seconds[label], "error": errors[label]} for label in names}}


def constant(rows, coef0, degree, m, seeds):
    """Measure kernel errors for (⟨x, y⟩ + c)^p."""
    from sklearn.kernel_approximation import PolynomialCountSketch

    from ntkit import PolynomialSketch

    rng = np.random.RandomState(0)
    positive, units = rng.random_sample((300, 50)), rng.standard_normal((300, 50))
    if rows == "unit rows":
        X = units / np.linalg.norm(units, axis=1, keepdims=True)
    else:
        X = positive / positive.sum(axis=1, keepdims=True)
    K = (X @ X.T + coef0) ** degree
    errors = {}
    for name, law in {"scikit-learn": PolynomialCountSketch, "tree": PolynomialSketch}.items():
        maps = (law(degree=degree, coef0=coef0, n_components=m, random_state=s) for s in range(seeds))
        Z = (feature_map.fit_transform(X) for feature_map in maps)
        errors[name] = {"error": float(np.mean([np.linalg.norm(z @ z.T - K) for z in Z]) / np.linalg.norm(K))}
    return {"methods": errors}


def all_degree_cases(args):
    if args.device == "cuda":
        axes = {"n": 2**12 if args.quick else 2**16, "d": 1024, "dtype": ("float32", "bfloat16"), "device": "cuda"}
        return grid(law=("PolySketch", "PowerSketch"), **axes, rounds=7)
    points = [(64, 1024)] if args.quick else [(4096, 1024), (256, 16384)]
    axes = {"dtype": "float32", "device": "cpu", "rounds": 2 if args.quick else 7}
    return [case for n, d in points for case in grid(law=("PolySketch", "PowerSketch"), n=n, d=d, **axes)]


def all_degrees(law, n, d, dtype, device, rounds):
    """Time all degrees 0 … 8 by updated paths, and one sketch of degree 8."""
    import torch

    from ntkit import sketches

    operator = getattr(sketches, law)(d, n_components=1024, degree=8).sample(0)
    if device == "cuda":
        X = (torch.randn(n, d, device=device) / 32).to(getattr(torch, dtype))
        exact = operator.apply(X[:256].double())
        found = {"rounding_error": float((operator.apply(X[:256]).double() - exact).norm() / exact.norm())}
    else:
        X, found = clustered_rows(n, d), {}
    functions = {"one degree": lambda: operator.apply(X), "all degrees": lambda: operator.apply_degrees(X)}
    seconds = medians(functions, rounds, device)
    return found | {"methods": {name: {"seconds": t, "rows_per_second": n / t} for name, t in seconds.items()}}


def fft_formulations(n, device):
    """Return TensorSRHT with a real FFT for H (n/2 complex coordinates as n real ones), and TensorSketch by FFT."""
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


def tensor_cases(args):
    sizes = 1024 if args.quick else (1024, 2048, 4096, 8192, 16384)
    entries, rounds = 2**20 if args.quick else 2**28 if args.device == "cuda" else 2**25, 2 if args.quick else 7
    dtypes = ("float32", "bfloat16") if args.device == "cuda" else "float32"
    return grid(dtype=dtypes, n=sizes, entries=entries, device=args.device, rounds=rounds)


def tensor(dtype, n, entries, device, rounds):
    """Time one TensorSRHT of two inputs, n → n, FFT formulations, and a copy of one input.

    The copy writes to memory that is already allocated; all others allocate their result, as for users. A copy reads
    and writes one array, the sketch reads two and writes one: at 1.5 times the time of a copy it reaches memory
    bandwidth.
    """
    import torch

    from ntkit.sketches import TensorSRHT

    X, Y = (torch.randn(entries // n, n, device=device).to(getattr(torch, dtype)) for _ in range(2))
    Z = torch.empty_like(X)
    operator = TensorSRHT(n, n).sample(0)
    functions = {"copy": lambda: Z.copy_(X), "ntkit": lambda: operator.apply(X, Y)}
    if dtype == "float32":
        functions |= {k: lambda f=f: f(X, Y) for k, f in fft_formulations(n, device).items()}
    seconds = medians(functions, rounds, device)
    exact = operator.apply(X[:64].double(), Y[:64].double())
    error = float((operator.apply(X[:64], Y[:64]).double() - exact).norm() / exact.norm())
    return {"rounding_error": error, "methods": {name: {"seconds": value} for name, value in seconds.items()}}


def sparse(degree, m, rounds):
    """Measure sparse rows like 20 newsgroups; scikit-learn takes minutes and runs only once, at degree 2."""
    X = DATA["text"]()
    maps = {name: make(name, degree, m, 0).fit(X) for name in METHODS}
    seconds = medians({name: lambda f=f: f.transform(X) for name, f in maps.items()}, rounds)
    found = {}
    for name in ("scikit-learn", *METHODS) if degree == 2 else METHODS:
        mib, alone = apart(once, name, "text", degree, m)
        found[name] = {"seconds": seconds.get(name, alone), "error": kernel_error(name, X, degree, m), "peak_mib": mib}
    return {"methods": found}


def nonzeros(d, nonzeros, n, rounds):
    """Time OSNAP on sparse rows by nonzeros per row and number of columns."""
    from scipy.sparse import csr_array

    from ntkit.sketches import OSNAP

    operator = OSNAP(d, 1024).sample(0)
    index = np.random.default_rng(0).integers(d, size=n * nonzeros).astype(np.int32)
    pointers = np.arange(0, n * nonzeros + 1, nonzeros)
    X = csr_array((np.ones(n * nonzeros, "float32"), index, pointers), shape=(n, d))
    X.sum_duplicates()
    seconds = medians({"ntkit": lambda: operator.apply(X)}, rounds)["ntkit"]
    return {"seconds": seconds, "nanoseconds_per_nonzero": seconds / X.nnz * 1e9}


def plot(runs, folder):
    """Plot error against time for each degree, one curve per method; scikit-learn as points."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 5, figsize=(13, 3.3), sharey=True, layout="constrained")
    styles = {"tree": ("C0", "o-"), "power": ("C1", "s-"), "count": ("C2", "^-"), "scikit-learn": ("C3", "x")}
    for ax, degree in zip(axes, (2, 4, 8, 16, 32), strict=True):
        rows = methods_of(select(runs, question="degrees", degree=degree))
        for name, (colour, style) in styles.items():
            line = [row for row in rows if row["method"].startswith(name)]
            label = name if name == "scikit-learn" else f'method="{name}"'
            seconds, errors = [row["seconds"] for row in line], [row["error"] for row in line]
            ax.loglog(seconds, errors, style, color=colour, label=label, markersize=5)
        ax.set(title=f"degree {degree}", xlabel="seconds, 4096 × 1024 rows")
        ax.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("relative kernel error")
    axes[0].legend(fontsize=8)
    figure.suptitle("PolynomialSketch: 256, 1024 and 4096 features; scikit-learn: 1024")
    figure.savefig(Path(folder) / "polynomial_sketch.png", dpi=130)
    plt.close(figure)
    return ["polynomial_sketch.png"]


QUESTIONS = {
    "tensor": Question(
        "TensorSRHT of two inputs, n → n", tensor_cases, tensor,
        "n dtype device method seconds:.5f seconds/:.2f rounding_error:.1e", DEVICES,
    ),
    "polynomial": Question(
        "Polynomial kernel, degree 8",
        lambda args: (
            grid(data="few", degree=8, m=256, rounds=1)
            if args.quick
            else grid(data="dense", degree=8, m=1024, rounds=7)
        ),
        polynomial, "degree m method seconds:.4f seconds/:.3f error:.3f peak_mib:.1f",
    ),
    "degrees": Question(
        "Error and time at degrees 2 to 32",
        degree_cases, degrees, "degree method seconds:.4f seconds/:.3f error:.3f",
    ),
    "constant": Question(
        "Kernel errors of (⟨x, y⟩ + c)^p",
        lambda args: grid(
            rows=("positive rows of sum 1", "unit rows"), coef0=(0, 0.1, 1, 2.5),
            degree=2 if args.quick else range(2, 17), m=2000, seeds=1 if args.quick else 10,
        ),
        constant, "rows coef0 degree method error:.4f error/:.3f",
    ),
    "all_degrees": Question(
        "All degrees compared with one sketch of degree 8", all_degree_cases, all_degrees,
        "law n d dtype device method seconds:.4f seconds/:.2f rows_per_second:.3g rounding_error:.1e", DEVICES,
    ),
    "sparse": Question(
        "Sparse rows with the shape of 20 newsgroups",
        lambda args: [] if args.quick else grid(degree=(2, 4, 8), m=1024, rounds=7),
        sparse, "degree m method seconds:.2f seconds/:.4f error:.3f peak_mib:.1f",
    ),
    "nonzeros": Question(
        "OSNAP of sparse rows",
        lambda args: grid(
            d=(10_000,) if args.quick else (10_000, 100_000, 1_000_000), nonzeros=(10, 100, 1000),
            n=512 if args.quick else 4096, rounds=7,
        ),
        nonzeros, "d nonzeros seconds:.5f nanoseconds_per_nonzero:.2f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
