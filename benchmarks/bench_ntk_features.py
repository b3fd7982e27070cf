"""Feature maps of the NTK: error by size and time, speed compared with the published formulation, a GPU.

Errors are over 1000 rows, scaled to norm 1: ‖ZZᵀ − K‖_F/‖K‖_F and the spectral ε at λ = 10⁻³‖K‖. Times are medians of
rounds in which the methods take turns. `speed` compares ntkit with BLAS, ZᵀZ and the formulation with complex FFTs.
`learning` compares ridge regression on NTK and RBF features. `device` measures rows per second on a GPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiment import Question, added_mib, apart, ask, dataset, grid, main, medians, pyplot, select

TITLE = "Feature maps of the NTK: error, time, memory"
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
DEPTHS = (1, 3, 5)
WIDTHS = {"mnist": 784, "protein": 9}
LABELS = {
    "polynomial": "NTKPolynomialSketch",
    "sketch": "NTKSketch",
    "random": "NTKRandomFeatures",
    "random, paper": "Algorithm 2, as published",
    "sketch, paper": "Algorithm 1, as published",
    "gradient": "GradientFeatures",
}


def rows(name, n=None, *, unit=True):
    """Return `n` random rows of a data set in float32 (None: all rows); protein is standardized."""
    X = dataset(name).X
    if name == "mnist":
        X = X.reshape(len(X), -1).astype("float32") / 255
    else:
        X = X.astype("float64")
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


def relative_error(Z, K):
    Z = Z.astype("float64")
    return float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


def error_cases(args):
    if args.quick:
        return grid(data="protein", depth=1, features=LABELS, m=256, n=300, seeds=1)
    return [
        case
        for case in grid(data=("mnist", "protein"), depth=DEPTHS, features=LABELS, m=SIZES, n=1000, seeds=3)
        if case["features"] != "gradient"
        or case["m"] >= WIDTHS[case["data"]] + case["depth"]  # at least a network of width 1
        if "paper" not in case["features"]
        or case["m"] <= (8192 if case["depth"] == 1 else 4096)  # larger sizes take minutes each
    ]


def errors(data, depth, features, m, n, seeds):
    from ntkit.diagnostics import spectral_error
    from ntkit.kernels import ntk

    X = rows(data, n)
    K = ntk(X.astype("float64"), depth=depth)
    lam = 1e-3 * np.linalg.norm(K, 2)
    maps = [make(features, depth, m, seed).fit(X) for seed in range(seeds)]
    Z = [f.transform(X).astype("float64") for f in maps]
    Z = [z if np.isfinite(z).all() else np.full_like(z, 1e9) for z in Z]  # maps without normalize may overflow
    seconds = medians({"transform": lambda: maps[0].transform(X)}, 3)["transform"]
    return {
        "columns": Z[0].shape[1],
        "error": [relative_error(z, K) for z in Z],
        "spectral": [spectral_error(K, z, lam) for z in Z],
        "seconds_per_1000_rows": 1000 * seconds / n,
    }


def plot(runs, folder):
    """Plot errors by size and by time."""
    plt = pyplot()
    found = select(runs, question="errors")
    pictures = {"ntk_features.png": plot_sizes, "ntk_features_time.png": plot_times}
    for file, draw in pictures.items():
        figure = draw(plt, found)
        figure.savefig(Path(folder) / file, dpi=110)
        plt.close(figure)
    return list(pictures)


def plot_sizes(plt, found):
    colours = dict(zip(LABELS, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(4, 3, figsize=(11, 13), constrained_layout=True)
    titles = {"mnist": "MNIST (784 features)", "protein": "protein (9 features)"}
    for i, data in enumerate(("mnist", "protein")):
        for j, depth in enumerate(DEPTHS):
            for k, (key, label) in enumerate((("error", "relative error"), ("spectral", "spectral ε"))):
                axis = axes[2 * k + i, j]
                for name, title in LABELS.items():
                    mine = select(found, data=data, depth=depth, features=name)
                    if mine:
                        x = [r["m"] for r in mine]
                        mean = np.array([np.mean(r[key]) for r in mine])
                        spread = np.array([np.std(r[key]) for r in mine])
                        bars = np.minimum(spread, 0.5 * mean), spread  # bars must stay above 0 on a logarithmic axis
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
    return figure


def plot_times(plt, found):
    colours = dict(zip(LABELS, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.5), constrained_layout=True, sharey="row")
    for i, data in enumerate(("mnist", "protein")):
        for j, depth in enumerate(DEPTHS):
            axis = axes[i, j]
            for name, title in LABELS.items():
                mine = select(found, data=data, depth=depth, features=name)
                x = [1000 * r["seconds_per_1000_rows"] for r in mine]
                axis.plot(x, [np.mean(r["error"]) for r in mine], label=title, color=colours[name], marker="o", ms=3)
            axis.set(xscale="log", yscale="log", title=f"{data}, depth {depth}", xlabel="ms per 1000 rows")
            axis.set_ylim(1e-3, 2)
            axis.grid(alpha=0.3)
        axes[i, 0].set_ylabel("relative error")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    return figure


def learning_cases(args):
    sizes, seeds = (256, 1) if args.quick else ((1024, 4096), 3)
    data = "protein" if args.quick else ("protein", "mnist")
    depths, gammas = (1, 1.0) if args.quick else ((1, 3), (0.1, 0.3, 1.0, 3.0))
    ours = grid(data=data, m=sizes, features=("polynomial", "random", "sketch"), setting=depths, seeds=seeds)
    return ours + grid(data=data, m=sizes, features="RBF features", setting=gammas, seeds=seeds)


def learning(data, m, features, setting, seeds):
    """Measure ridge regression on the features: mean squared error on protein, % misclassified on MNIST.

    The penalty is chosen on held-out rows. `setting` is the depth, or γ for RBF features.
    """
    from scipy.linalg import cho_factor, cho_solve
    from sklearn.kernel_approximation import RBFSampler

    X = rows(data, unit=data == "mnist")
    if data == "protein":
        X = np.concatenate(
            [X, np.ones((len(X), 1), "float32")], axis=1
        )  # a constant column: the NTK without bias is homogeneous
        y = dataset(data).y[:, None]
    else:
        y = np.eye(10)[dataset(data).y] - 0.1
    order = np.random.default_rng(0).permutation(len(X))[:20000]
    train, held, test = order[:14000], order[14000:16000], order[16000:]

    def loss(prediction, part):
        if data == "protein":
            return float(np.mean((prediction - y[part]) ** 2))
        return float(100 * np.mean(prediction.argmax(1) != y[part].argmax(1)))

    losses = []
    for seed in range(seeds):
        if features == "RBF features":
            scale = setting / (X.shape[1] if data == "protein" else 1)
            mapping = RBFSampler(gamma=scale, n_components=m, random_state=seed)
        else:
            mapping = make(features, setting, m, seed)
        Z = mapping.fit(X[:100]).transform(X[order]).astype("float64")
        mean = y[train].mean(0)
        G, b = Z[:14000].T @ Z[:14000], Z[:14000].T @ (y[train] - mean)
        scores = []
        for alpha in 10.0 ** np.arange(-7, 0) * np.trace(G):
            factor = cho_factor(G + alpha * np.eye(len(G)), overwrite_a=True, check_finite=False)
            out = Z[14000:] @ cho_solve(factor, b) + mean
            scores.append((loss(out[:2000], held), loss(out[2000:], test)))
        losses.append(min(scores)[1])
    return {"test_loss": losses}


class FFTPolySketch:
    """PolySketch as published: complex FFTs instead of Hadamard transforms at every node, all degrees by padding.

    A node maps a ⊗ b to m^{-1/2} (F D₁ a)[p₁] ⊙ (F D₂ b)[p₂], where F is the discrete Fourier transform; degree j has x
    in its first j leaves and e₁ in the others.
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
            """Return the value of a node with x in its first j leaves and e₁ in the others."""
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
    """Features of Σ c_j t^j: all degrees concatenated, reduced by another transform to real and imaginary parts."""

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
    """Compute Remark 1, Algorithm 1 or Algorithm 2 in torch with complex FFTs, in batches of rows."""
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


MAPS = {
    "random L=1": ("algorithm 2", "random", 1, None),
    "random L=2": ("algorithm 2", "random", 2, None),
    "polynomial degree 2": ("remark 1", "polynomial", 1, 2),
    "polynomial degree 8": ("remark 1", "polynomial", 1, 8),
    "polynomial auto": (None, "polynomial", 1, None),
    "polynomial auto L=3": (None, "polynomial", 3, None),
    "sketch L=1": ("algorithm 1", "sketch", 1, 8),
    "sketch L=2": ("algorithm 1", "sketch", 2, 8),
}


def speed_map(name, m, seed=0):
    _, kind, depth, degree = MAPS[name]
    found = make(kind, depth, m, seed)
    return found.set_params(degree=degree) if kind == "polynomial" and degree else found


def speed_cases(args):
    if args.quick:
        return grid(data="protein", features="random L=1", n=2000, m=256, seeds=1, rounds=1)
    axes = {"features": MAPS, "m": 4096, "seeds": 3, "rounds": 5}
    return grid(data="protein", n=None, **axes) + grid(data="mnist", n=10000, **axes)


def speed(data, features, n, m, seeds, rounds):
    """Time ntkit, ZᵀZ, and its matrix products by BLAS; the slow published formulation gets 1/16 of the rows."""
    from ntkit.kernels import ntk
    from ntkit.programs import Program
    from ntkit.programs.steps import MatrixProduct

    baseline, _, depth, degree = MAPS[features]
    X, few = rows(data, n, unit=False), rows(data, 1000)
    Z = np.ones((len(X), m), "float32")
    mapping = speed_map(features, m).fit(X)
    products = [
        (np.ones((len(X), step.matrix.shape[1]), "float32"), np.ascontiguousarray(step.matrix.T))
        for step in getattr(mapping._draws, "program", Program(())).steps
        if isinstance(step, MatrixProduct)
    ]
    outs = [np.empty((len(A), W.shape[1]), "float32") for A, W in products]
    functions = {"ZᵀZ": lambda: Z.T @ Z, "ntkit": lambda: mapping.transform(X)}
    if products:
        functions["BLAS"] = lambda: [np.matmul(A, W, out=out) for (A, W), out in zip(products, outs, strict=True)]
    part = X[: len(X) // 16]
    if baseline:
        functions["ntkit, 1/16"] = lambda: mapping.transform(part)
        functions["published, 1/16"] = lambda: published(baseline, part, depth, m, degree)
    found = {name: {"seconds": seconds} for name, seconds in medians(functions, rounds).items()}
    K = ntk(few.astype("float64"), depth=depth)
    ours = [relative_error(speed_map(features, m, seed).fit_transform(few), K) for seed in range(seeds)]
    found["ntkit"] |= {"error": float(np.mean(ours)), "peak_mib": apart(peak, "ntkit", data, features, n, m)}
    if baseline:
        theirs = [relative_error(published(baseline, few, depth, m, degree, seed), K) for seed in range(seeds)]
        peak_mib = apart(peak, "published", data, features, n, m)
        found["published, 1/16"] |= {"error": float(np.mean(theirs)), "peak_mib": peak_mib}
    return {"rows": len(X), "columns": int(mapping._n_features_out), "methods": found}


def peak(who, data, features, n, m):
    """Return the MiB that one transform adds to the rows."""
    import torch  # noqa: F401

    X = rows(data, n, unit=False)
    baseline, _, depth, degree = MAPS[features]
    mapping = speed_map(features, m).fit(X)
    run = mapping.transform if who == "ntkit" else lambda part: published(baseline, part, depth, m, degree)
    run(X[:64])
    X = X if who == "ntkit" else X[: len(X) // 16]
    return added_mib(lambda: run(X))


def device_cases(args):
    n, m, rounds = (10_000, 512, 2) if args.quick else (100_000, 8192, 5)
    sizes = {"n": n, "d": 784, "m": m, "rounds": rounds}
    maps = grid(features=("polynomial", "sketch", "random"), depth=(1, 3), **sizes)
    return maps + grid(features="bounds", depth=None, **sizes)


def on_gpu(features, depth, n, d, m, rounds):
    import torch

    from ntkit.programs.steps import MatrixProduct

    torch.manual_seed(0)
    X = torch.rand(n, d, device="cuda")
    if features == "bounds":
        Z, B = torch.empty(n, m, device="cuda"), torch.rand(d, m, device="cuda")
        functions = {"write": lambda: Z.fill_(1.0), "matmul": lambda: torch.matmul(X, B, out=Z)}
        times = medians(functions, rounds, "cuda")
        flops = 2 * n * d * m / times["matmul"]
        return {"write_gb_per_s": 4 * n * m / times["write"] / 1e9, "fp32_tflops": flops / 1e12}
    few = X[:1000]
    mapping = make(features, depth, m).fit(few)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = medians({"transform": lambda: mapping.transform(X)}, rounds, "cuda")["transform"]
    found = {"seconds": seconds, "rows_per_second": n / seconds}
    found["peak_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
    flops = 2 * n * sum(s.matrix.size for s in mapping._draws.program.steps if isinstance(s, MatrixProduct))
    found["tflops_of_matrix_products"] = flops / seconds / 1e12
    found["gb_per_s_in_and_out"] = 4 * n * (d + m) / seconds / 1e9
    return found | {"error_on_1000": mapping.estimate_error(few)}


QUESTIONS = {
    "errors": Question(
        "Errors by size", error_cases, errors,
        "data depth features m error:.4f spectral:.3f seconds_per_1000_rows:.4f",
    ),
    "speed": Question(
        "This CPU: ntkit compared with ZᵀZ, BLAS and the published formulation", speed_cases, speed,
        "data features method seconds:.3f seconds/:.2f error:.4f peak_mib:.0f",
    ),
    "learning": Question(
        "Ridge regression on the features", learning_cases, learning,
        "data features setting m test_loss:.3f",
    ),
    "device": Question(
        "A GPU", device_cases, on_gpu,
        "features depth seconds:.4f rows_per_second:.3g peak_gib:.2f tflops_of_matrix_products:.1f "
        "gb_per_s_in_and_out:.0f error_on_1000:.4f write_gb_per_s:.0f fp32_tflops:.1f",
        ("cuda",),
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
