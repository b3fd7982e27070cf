"""One T and one S for all factors against independent draws; sampled tails of series; shares of the degrees.

    python benchmarks/bench_power.py degrees    error and time of ⟨x, y⟩^p: which sketch, when (Theorem 5.1)
    python benchmarks/bench_power.py tail       sampled against truncated series (Theorem B.5, Corollary C.3)
    python benchmarks/bench_power.py budget     shares of the degrees: least variance, equal, as in Theorem A.1
    python benchmarks/bench_power.py all

Theorems are those of Song, Woodruff, Yu, Zhang, "Fast sketching of polynomial kernels of polynomial degree", ICML 2021;
its Table 1 is papers/power_table1.py. "power" is its Algorithm 1 (PowerSketch), "tree" the independent tree
(PolySketch), "count" ntkit's TensorSketch, which has the law of scikit-learn's PolynomialCountSketch. MNIST is read
from $NTKIT_DATA. Rows are float32 and of norm 1 (scikit-learn turns them into float64), times those of transform on all
cores, in which contestants take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from dataclasses import replace
from math import factorial
from pathlib import Path

import numpy as np

from bench_sketches import make
from common import RESULTS, medians, memory_mib, reset_peak, versions

DOCS = RESULTS.parents[1] / "docs"
STYLES = {"power": ("C1", "s"), "tree": ("C0", "o"), "count": ("C2", "^"), "scikit-learn": ("C3", "x")}
TITLES = {"mnist": "MNIST", "close": "close rows, 784 features", "long": "close rows, 30 000 features"}


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def mnist_rows(n):
    from ntkit.datasets import load_dataset

    X = load_dataset("mnist").X
    chosen = np.random.default_rng(0).choice(len(X), n, replace=False)
    return unit(X[chosen].reshape(n, -1).astype(np.float64))


def close_rows(n, d=784):
    """√c_i u + √(1 − c_i) noise: cosines √(c_i c_j), c uniform from 0.8 to 0.99."""
    rng = np.random.default_rng(0)
    c = rng.uniform(0.8, 0.99, size=(n, 1))
    noise = rng.standard_normal((n, d)) / d**0.5
    centre = rng.standard_normal(d) / d**0.5
    return unit(c**0.5 * centre + (1 - c) ** 0.5 * noise)


SETS = {"mnist": mnist_rows, "close": close_rows, "long": lambda n: close_rows(n, d=30_000)}


def cosines(X):
    return np.clip(X.astype(np.float64) @ X.T.astype(np.float64), -1, 1)


def gram(Z):
    Z = Z.astype(np.float64)
    return Z @ Z.T


def relative_error(G, K):
    return float(np.linalg.norm(G - K) / np.linalg.norm(K))


# Theorem 5.1.


def degrees(args):
    """Relative errors of the kernel matrix, of pairs i ≠ j with a cosine above 0.9 apart; time and memory per row.

    Errors of close rows are nearly the same number for all pairs, so they take more seeds and fewer rows. Times of
    "mnist" and "close" are the same measurement: they have the same d. scikit-learn, slow, takes every second size of
    these; its errors, of the law of "count", are left out where they take long.
    """
    sizes = [256, 1024, 4096, 16384] if args.quick else [2**k for k in range(8, 15)]
    counts = {"mnist": (300, 5), "close": (100, 15), "long": (60, 10)}  # rows and seeds
    out = []
    for d, sets in ((784, ("mnist", "close")), (30_000, ("long",))):
        rows = {name: SETS[name](counts[name][0]) for name in sets}
        many = SETS[sets[0]](1000 if d == 784 else 200)
        for p in (2, 4, 8, 16, 32, 64):
            for m in sizes if d == 784 else [256, 1024, 4096, 16384]:
                names = [*STYLES] if d == 784 and m in (256, 1024, 4096, 16384) else [*STYLES][:3]
                for measured in contest(names, many, p, m, rounds=2 if args.quick else 5):
                    for set_name, X in rows.items():
                        out.append({"set": set_name} | measured)
                        out[-1] |= power_errors(measured["contestant"], X, p, m, counts[set_name][1], args.quick)
                        show_power(out[-1])
    save(args, "degrees", {"rows_and_seeds": counts, "rows": out})
    plot_which(args, out)


def contest(names, X, p, m, rounds):
    """Seconds and peak memory per row; scikit-learn, once, of as many rows as 256 MiB hold (it needs n·p·m numbers)."""
    rows = {"scikit-learn": X[: 2**25 // (p * m)], "count": X[: max(32, 2**25 // (p * m))]}
    rows = {name: rows.get(name, X) for name in names}
    maps = {name: make(name, p, m, 0).fit(X) for name in names}
    functions = {name: lambda name=name: maps[name].transform(rows[name]) for name in names}
    seconds = medians({name: functions[name] for name in names if name != "scikit-learn"}, rounds)
    out = []
    for name, function in functions.items():
        start = time.perf_counter()
        mib = added_mib(function)
        per_row = seconds.get(name, time.perf_counter() - start) / len(rows[name])
        row = {"degree": p, "n_components": m, "contestant": name, "seconds_per_row": per_row}
        out.append(row | {"peak_kib_per_row": 1024 * mib / len(rows[name])})
    if "scikit-learn" in names:
        for row in out:
            row["ratio"] = out[-1]["seconds_per_row"] / row["seconds_per_row"]
    return out


def power_errors(name, X, p, m, seeds, quick):
    """Means over seeds; nothing or fewer seeds where that takes long."""
    if name == "scikit-learn" and p * m > 2**14:
        return {}
    seeds //= 5 if quick else 3 if name == "count" and p * m > 2**17 else 1
    t = cosines(X)
    K = t**p
    close = (t > 0.9) & ~np.eye(len(X), dtype=bool)
    step = max(1, 2**24 // (p * m)) if name == "scikit-learn" else len(X)
    errors = []
    for seed in range(seeds):
        feature_map = make(name, p, m, seed).fit(X)
        G = gram(np.concatenate([feature_map.transform(X[i : i + step]) for i in range(0, len(X), step)]))
        errors.append((relative_error(G, K), relative_error(G[close], K[close])))
    mean, mean_close = np.mean(errors, axis=0).tolist()
    return {"error": mean, "close_error": mean_close, "seeds": seeds}


def show_power(row):
    print(f"{row['set']:5s} degree {row['degree']:2d}  m {row['n_components']:5d}  {row['contestant']:12s} "
          f"{row['seconds_per_row'] * 1e6:9.1f} µs {row['peak_kib_per_row']:8.1f} KiB per row", end="")  # fmt: skip
    errors = f"   error {row['error']:8.2g}, close pairs {row['close_error']:8.2g}" if "error" in row else ""
    print(errors, flush=True)


def plot_which(args, rows):
    """For a degree and a time per row: the best method and its error; what shared draws save and cost."""
    plt = pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 8.6), layout="constrained")
    axes = axes.ravel()
    for ax, name in zip(axes, SETS, strict=False):
        plot_winners(ax, [r for r in rows if r["set"] == name], TITLES[name])
    plot_trade(axes[3], rows)
    names = ("power", "tree", "count")
    handles = [plt.Rectangle((0, 0), 1, 1, color=STYLES[name][0], alpha=0.8) for name in names]
    labels = [f'method="{name}"' for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(folder(args, DOCS) / "power_which.png", dpi=110)


def plot_winners(ax, rows, title):
    """Colour: the method of the smallest error within the time (pale: another within 10 %). Number: that error."""
    ps = sorted({r["degree"] for r in rows})
    fast = [r["seconds_per_row"] * 1e6 for r in rows if r["contestant"] in ("power", "tree")]
    budgets = [2**k for k in range(2, 14) if min(fast) <= 2**k < 2 * max(fast)]
    for i, p in enumerate(ps):
        for k, budget in enumerate(budgets):
            best = {}
            for r in rows:
                if r["degree"] == p and "error" in r and r["seconds_per_row"] * 1e6 <= budget:
                    best[r["contestant"]] = min(best.get(r["contestant"], np.inf), r["error"])
            if best:
                winner = min(best, key=best.get)
                error = best.pop(winner)
                colour = STYLES[winner][0] if error < 1 else "0.8"  # features that are all 0 have an error of 1
                near = any(other <= 1.1 * error for other in best.values())
                ax.bar(i, 1, 0.96, k - 0.5, color=colour, alpha=0.35 if near else 0.8, edgecolor="white")
                shown = f"{100 * error:.2g}" if error < 1 else "≥ 100"
                ax.text(i, k, shown, ha="center", va="center", fontsize=8)
    ax.set(xlim=(-0.5, len(ps) - 0.5), ylim=(-0.5, len(budgets) - 0.5), xlabel="degree")
    ax.set_xticks(range(len(ps)), ps)
    ax.set_yticks(range(len(budgets)), budgets)
    ax.set_ylabel("time per row, at most (µs)")
    ax.set_title(f"{title}: smallest relative error (%)\nup to 16384 features; pale: two within a tenth", fontsize=9)


def plot_trade(ax, rows, m=4096):
    """Tree against power at equal sizes: how many times slower, how many times less error."""
    ax.axhline(1, color="0.7", lw=0.8)
    for name, line in zip(SETS, ("-", "--", ":"), strict=True):
        found = {(r["degree"], r["contestant"]): r for r in rows if r["n_components"] == m and r["set"] == name}
        ps = sorted({p for p, _ in found})
        seconds = [found[p, "tree"]["seconds_per_row"] / found[p, "power"]["seconds_per_row"] for p in ps]
        errors = [found[p, "power"]["error"] / found[p, "tree"]["error"] for p in ps]
        if name != "close":  # the times of "mnist"
            ax.loglog(ps, seconds, line, marker="o", ms=4, color="0.2")
        ax.loglog(ps, errors, line, marker="o", ms=4, color="C1", label=TITLES[name])
    ax.set_xticks(ps, ps)
    ax.minorticks_off()
    low, high = ax.get_ylim()
    ticks = [t for t in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if low <= t <= high]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.set(xlabel="degree", ylabel="ratio")
    title = f"Shared draws at {m} features. Black: time of tree / time of power\norange: error of power / error of tree"
    ax.set_title(title, fontsize=9)
    ax.legend(frameon=False, fontsize=8)


def added_mib(function):
    """Peak memory beyond what is there already, the result included (Linux)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier calls left would be used again, and not be counted
    reset_peak()
    before = memory_mib("VmRSS")
    function()
    return max(memory_mib() - before, 0.0)


# Theorem B.5, Corollaries B.6 and C.3.

KERNELS = {"ntk, depth 1": ("ntk", 1), "ntk, depth 3": ("ntk", 3), "hidden_ntk": ("hidden_ntk", 1)}
HIGHEST_OF_TREES = 128


def tail(args):
    """Bias², variance and mean squared error of the kernel matrix, each over ‖K‖_F², for three kernels and two sets.

    Degrees up to s and N draws of those above, against the series cut off where it has as many degrees, and twice as
    many, which takes about the time of the sampled one, whose degrees are higher. "power" has nodes divided by their
    norms, as is the default, and degrees up to 1024; "tree", without this, is unbiased but for the end of the series at
    degree 128. The baseline is NTKPolynomialSketch, whose polynomial is fitted ("hidden_ntk": DotProductSketch with its
    defaults).
    """
    n, m, seeds, rounds = (60, 1024, 12, 2) if args.quick else (150, 4096, 30, 3)
    pairs = [(8, 8), (16, 16)] if args.quick else [(8, 8), (16, 16), (32, 8), (32, 32)]
    out = []
    for set_name in ("mnist", "close"):
        draw = SETS[set_name]
        X = draw(n)
        many = draw(1000)
        for title, (kernel, depth) in KERNELS.items():
            K = exact_kernel(kernel, cosines(X), depth)
            contestants = [("baseline", baseline(kernel, depth, m))]
            for normalize in (True, False):
                for s, n_sampled in pairs if normalize else [pairs[0], pairs[-1]]:
                    kind = "power, normalized" if normalize else "tree, not normalized"
                    kind = f"{kind}, s = {s}, N = {n_sampled}"
                    sampled = series_map(kernel, depth, m, normalize, degree=s, n_sampled=n_sampled)
                    contestants.append((f"{kind}: sampled", sampled))
                    drawn = round(np.mean([count_degrees(sampled(seed).fit(X)) for seed in range(10)]))
                    for label, count in (("cut", drawn), ("cut at twice as many", 2 * drawn))[: 2 if normalize else 1]:
                        degree = find_degree(kernel, depth, count)
                        contestants.append((f"{kind}: {label}", series_map(kernel, depth, m, normalize, degree=degree)))
            fitted = {name: of_seed(0).fit(many) for name, of_seed in contestants}
            seconds = medians({name: lambda f=f: f.transform(many) for name, f in fitted.items()}, rounds)
            for name, of_seed in contestants:
                row = {"set": set_name, "kernel": title, "contestant": name, "seconds": seconds[name]}
                row |= {"ratio": seconds["baseline"] / seconds[name], "degrees": count_degrees(fitted[name])}
                row |= {"highest_degree": max(fitted[name].budget_.coefficients)}
                row |= bias_and_variance([gram(of_seed(seed).fit_transform(X)) for seed in range(seeds)], K)
                out.append(row)
                print(f"{set_name:5s} {title:12s} {name:56s} {row['degrees']:3d} degrees to {row['highest_degree']:4d} "
                      f"{row['seconds'] * 1e3:6.1f} ms  bias² {row['bias2']:9.2e} ± {row['bias2_deviation']:.1e}  "
                      f"variance {row['variance']:8.2e}  mse {row['mse']:8.2e}", flush=True)  # fmt: skip
    save(args, "tail", {"rows_of_errors": n, "n_components": m, "seeds": seeds, "rows": out, "norms": norms(args)})


def exact_kernel(kernel, t, depth):
    from ntkit.kernels import arc_cosine, relu_ntk

    return relu_ntk(t, depth) if kernel == "ntk" else 0.5 * t * arc_cosine(t, 0)


def taylor(kernel, depth, degree):
    from ntkit.kernels import arc_cosine_taylor, relu_ntk_taylor

    if kernel == "ntk":
        return relu_ntk_taylor(depth, degree)
    return 0.5 * np.concatenate([[0.0], arc_cosine_taylor(0, degree - 1)])


def baseline(kernel, depth, m):
    from ntkit import DotProductSketch, NTKPolynomialSketch

    if kernel == "ntk":
        return lambda seed: NTKPolynomialSketch(depth=depth, n_components=m, random_state=seed)
    return lambda seed: DotProductSketch(kernel, n_components=m, random_state=seed)


def series_map(kernel, depth, m, normalize, **options):
    """A map by its seed; coefficients that end, of rows of norm 1, where trees are to take all that are drawn."""
    from ntkit import DotProductSketch

    if normalize:
        options |= {"kernel": kernel, "depth": depth, "method": "power"}
    else:
        options |= {"kernel": taylor(kernel, depth, HIGHEST_OF_TREES).tolist(), "method": "tree"}
    return lambda seed: DotProductSketch(n_components=m, normalize=normalize, random_state=seed, **options)


def count_degrees(feature_map):
    return len(feature_map.budget_.coefficients)


def find_degree(kernel, depth, n_degrees):
    """Where the series has so many terms."""
    return int(np.flatnonzero(taylor(kernel, depth, 1024))[n_degrees - 1])


def bias_and_variance(grams, K):
    """From E_s = G_s − K of independent seeds: bias² is the mean of ⟨E_s, E_t⟩ over s ≠ t, so without the variance.

    Its standard deviation is that of the jackknife.
    """
    errors = np.stack([(G - K).ravel() for G in grams]) / np.linalg.norm(K)
    products = errors @ errors.T
    n = len(grams)
    off = products - np.diag(products.diagonal())
    bias2 = off.sum() / (n * (n - 1))
    without = (off.sum() - 2 * off.sum(axis=1)) / ((n - 1) * (n - 2))
    mse = products.trace() / n
    deviation = np.sqrt((n - 1) * np.mean((without - without.mean()) ** 2))
    out = {"bias2": bias2, "bias2_deviation": deviation, "variance": mse - bias2, "mse": mse}
    return {name: float(value) for name, value in out.items()}


def norms(args):
    """Why nodes of "power" are divided by their norms: ‖z(x)‖² for ‖x‖ = 1 without that, quantiles 0.1, 0.5 and 0.9.

    An error e of ‖w₀‖² enters as (1 + e)^p: Theorem 5.1 asks for m to grow like p².
    """
    from ntkit.sketches import PowerSketch

    x = mnist_rows(1)[0].astype(np.float64)
    out = []
    for m in (1024, 4096, 16384):
        for p in (16, 64, 256, 1024):
            values = [PowerSketch(len(x), m, degree=p).sample(seed).apply(x) for seed in range(5 if args.quick else 25)]
            low, middle, high = np.quantile([float(z @ z) for z in values], [0.1, 0.5, 0.9])
            out.append({"n_components": m, "degree": p, "quantiles": [float(low), float(middle), float(high)]})
            print(f"‖z‖² of PowerSketch, m {m:5d}, degree {p:4d}: {low:.2g}, {middle:.2g}, {high:.2g}", flush=True)
    return out


# Theorem A.1.


def budget(args):
    """Relative error of series up to a degree, of rows of norm 1, by how the degrees share the components.

    "least variance", in proportion to the coefficients, is what DotProductSketch does; "equal"; "squares", in
    proportion to j² as in Theorem A.1, but one component at least. The ratio is that of errors to "least variance";
    "expected" the same of √Σ a_j²/m_j over the degrees that are sketched. All leave monomials that fit to stand for
    themselves.
    """
    from numpy.polynomial.polynomial import polyval

    from ntkit import DotProductSketch

    n, seeds, rounds = (200, 2, 2) if args.quick else (500, 5, 5)
    degree = 32
    series = {
        "gaussian, lengthscale 0.5": [np.exp(-4.0) * 4.0**j / factorial(j) for j in range(degree + 1)],
        "ntk, depth 1": taylor("ntk", 1, degree),
        "ntk, depth 3": taylor("ntk", 3, degree),
    }
    out = []
    for set_name, X in (("mnist", mnist_rows(n)), ("year_subset", year_rows(n))):
        for title, a in series.items():
            K = polyval(cosines(X), a)
            for m in (1024, 4096):
                law = DotProductSketch(list(a), n_components=m, degree=degree, random_state=0).fit(X).sketch_.law
                laws = {name: with_shares(law, a, name) for name in ("least variance", "equal", "squares")}
                operators = {name: [law.sample(seed) for seed in range(seeds)] for name, law in laws.items()}
                seconds = medians({name: lambda o=o: o[0].apply(X) for name, o in operators.items()}, rounds)
                for name, drawn in operators.items():
                    error = float(np.mean([relative_error(gram(o.apply(X)), K) for o in drawn]))
                    row = {"set": set_name, "series": title, "n_components": m, "shares": name, "error": error}
                    row |= {"seconds": seconds[name], "deviation": expected(laws[name])}
                    out.append(row)
                for row in out[-3:]:
                    row["ratio"] = row["error"] / out[-3]["error"]
                    row["expected"] = row["deviation"] / out[-3]["deviation"]
                    print(f"{set_name:11s} {title:26s} m {m:4d} {row['shares']:14s} error {row['error']:.4f}  ratio "
                          f"{row['ratio']:5.2f}, expected {row['expected']:5.2f}  {row['seconds'] * 1e3:6.1f} ms",
                          flush=True)  # fmt: skip
    save(args, "budget", {"rows_of_errors": n, "degree": degree, "seeds": seeds, "rows": out})


def year_rows(n):
    from ntkit.datasets import load_dataset

    X = load_dataset("year_subset").X[:n].astype(np.float64)
    return unit((X - X.mean(0)) / X.std(0))


def with_shares(law, a, shares):
    """The law of a series with coefficients a, its components shared otherwise."""
    from ntkit.sketches.series import Budget, allocate

    j = np.arange(len(a))
    weights = {"least variance": np.asarray(a), "equal": np.sign(a), "squares": np.sign(a) * np.maximum(j, 1) ** 2.0}
    least = weights[shares].sum() / law.n_components if shares == "squares" else 0  # none is left out
    chosen = allocate(np.maximum(weights[shares], least * np.sign(a)), law.n_features, law.n_components)
    law = replace(law, coefficients=tuple(map(float, a)))
    if shares != "least variance":
        kept = {degree: float(a[degree]) for degree in chosen.coefficients}
        object.__setattr__(law, "budget", Budget(chosen.exact, chosen.sketched, kept))  # no option for users
    return law


def expected(law):
    """√Σ a_j²/m_j over the degrees that are sketched."""
    return float(np.sqrt(sum(law.budget.coefficients[j] ** 2 / m for j, m in law.budget.sketched.items())))


def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9})
    return plt


def folder(args, usual):
    return args.folder or usual


def save(args, question, values):
    file = folder(args, RESULTS) / "power.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    results["versions"] = versions()
    results[question] = values
    file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = {"degrees": degrees, "tail": tail, "budget": budget}
    parser.add_argument("question", choices=(*questions, "all"))
    parser.add_argument("--quick", action="store_true", help="few rows, sizes and seeds; needs --folder")
    parser.add_argument("--folder", type=Path, help="for results and plots, instead of benchmarks/results and docs")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.folder:
        parser.error("--quick needs --folder: its results are not those to keep.")
    for name in questions if arguments.question == "all" else [arguments.question]:
        questions[name](arguments)
