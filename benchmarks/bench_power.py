"""Shared draws (one T and one S for all factors) and independent draws; sampled tails of series; shares of degrees.

`degrees` measures error and time of sketches of ⟨x, y⟩^p (Theorem 5.1). `tail` compares sampled with truncated series
(Theorem B.5, Corollary C.3). `norms` shows why nodes are normalized. `budget` compares how the degrees share
components: least variance, equal, or as in Theorem A.1.

The theorems are from Song, Woodruff, Yu, Zhang, "Fast sketching of polynomial kernels of polynomial degree", ICML 2021;
papers/power_table1.py reproduces its Table 1. "power" is its Algorithm 1 (PowerSketch), "tree" the independent tree
(PolySketch), "count" ntkit's TensorSketch, which has the same distribution as scikit-learn's PolynomialCountSketch.
Rows are float32 with norm 1 (scikit-learn converts them to float64). Times are for transform on all cores; methods take
turns.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import factorial
from pathlib import Path

import numpy as np

from bench_sketches import make
from experiment import Question, added_mib, ask, dataset, grid, main, medians, methods_of, pyplot, select

TITLE = "Powers and series: shared draws, sampled tails, shares of the degrees"
STYLES = {"tree": ("C0", "o"), "power": ("C1", "s"), "count": ("C2", "^"), "scikit-learn": ("C3", "x")}
TITLES = {"mnist": "MNIST", "close": "close rows, 784 features", "long": "close rows, 30 000 features"}
SEEDS = {"mnist": 5, "close": 15, "long": 10}  # number of seeds for errors
FEW = {"mnist": 300, "close": 100, "long": 60}  # number of rows for errors


def unit(X):
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def mnist_rows(n):
    X = dataset("mnist").X
    chosen = np.random.default_rng(0).choice(len(X), n, replace=False)
    return unit(X[chosen].reshape(n, -1).astype(np.float64))


def close_rows(n, d=784):
    """Return unit rows √c_i u + √(1 − c_i) noise, with cosines √(c_i c_j) and c uniform from 0.8 to 0.99."""
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


def degree_cases(args):
    if args.quick:
        return grid(rows="close", degree=(2, 8), m=(256, 1024), seeds=2, rounds=2)
    out = []
    for name, seeds in SEEDS.items():
        sizes = [2**k for k in range(8, 15)] if name != "long" else [256, 1024, 4096, 16384]
        out += grid(rows=name, degree=(2, 4, 8, 16, 32, 64), m=sizes, seeds=seeds, rounds=5)
    return out


def degrees(rows, degree, m, seeds, rounds):
    """Measure relative errors of the kernel matrix, and of its pairs with a cosine above 0.9; time and memory per row.

    Close rows have nearly the same error for all pairs, so they need more seeds and fewer rows. scikit-learn is slow:
    it is measured at every second size, and its errors, which follow the same law as "count", only where they are fast.
    """
    X, many = SETS[rows](FEW[rows]), SETS[rows](200 if rows == "long" else 1000)
    names = [*STYLES] if rows != "long" and m in (256, 1024, 4096, 16384) else [*STYLES][:3]
    found = times_and_memory(names, many, degree, m, rounds)
    return {"methods": {name: row | power_errors(name, X, degree, m, seeds) for name, row in found.items()}}


def times_and_memory(names, X, p, m, rounds):
    """Measure seconds and peak memory per row; scikit-learn once, on at most 256 MiB (it stores n·p·m numbers)."""
    rows = {"scikit-learn": X[: 2**25 // (p * m)], "count": X[: max(32, 2**25 // (p * m))]}
    rows = {name: rows.get(name, X) for name in names}
    maps = {name: make(name, p, m, 0).fit(X) for name in names}
    functions = {name: lambda name=name: maps[name].transform(rows[name]) for name in names}
    seconds = medians({name: functions[name] for name in names if name != "scikit-learn"}, rounds)
    out = {}
    for name, function in functions.items():
        start = time.perf_counter()
        mib = added_mib(function)
        per_row = seconds.get(name, time.perf_counter() - start) / len(rows[name])
        out[name] = {"seconds_per_row": per_row, "peak_kib_per_row": 1024 * mib / len(rows[name])}
    return out


def power_errors(name, X, p, m, seeds):
    """Return mean errors over seeds; slow cases use fewer seeds or are skipped."""
    if name == "scikit-learn" and p * m > 2**14:
        return {}
    seeds //= 3 if name == "count" and p * m > 2**17 else 1
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


def plot(runs, folder):
    """Plot the best method and its error by degree and time per row, and the trade-off of shared draws."""
    plt = pyplot()
    rows = methods_of(select(runs, question="degrees"))
    if {row["rows"] for row in rows} != {*SETS}:
        return []
    figure, axes = plt.subplots(2, 2, figsize=(10, 8.6), layout="constrained")
    axes = axes.ravel()
    for ax, name in zip(axes, SETS, strict=False):
        plot_winners(ax, select(rows, rows=name), TITLES[name])
    plot_trade(axes[3], rows)
    names = ("power", "tree", "count")
    handles = [plt.Rectangle((0, 0), 1, 1, color=STYLES[name][0], alpha=0.8) for name in names]
    labels = [f'method="{name}"' for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(Path(folder) / "power_which.png", dpi=110)
    plt.close(figure)
    return ["power_which.png"]


def plot_winners(ax, rows, title):
    """Plot the best method within a time as colour (pale: another is within 10 %), and its error as text."""
    ps = sorted({r["degree"] for r in rows})
    fast = [r["seconds_per_row"] * 1e6 for r in rows if r["method"] in ("power", "tree")]
    budgets = [2**k for k in range(2, 14) if min(fast) <= 2**k < 2 * max(fast)]
    for i, p in enumerate(ps):
        for k, budget in enumerate(budgets):
            best = {}
            for r in rows:
                if r["degree"] == p and "error" in r and r["seconds_per_row"] * 1e6 <= budget:
                    best[r["method"]] = min(best.get(r["method"], np.inf), r["error"])
            if best:
                winner = min(best, key=best.get)
                error = best.pop(winner)
                colour = STYLES[winner][0] if error < 1 else "0.8"  # zero features already have an error of 1
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
    """Plot ratios of time and error of tree and power at equal sizes."""
    ax.axhline(1, color="0.7", lw=0.8)
    for name, line in zip(SETS, ("-", "--", ":"), strict=True):
        found = {(r["degree"], r["method"]): r for r in select(rows, m=m, rows=name)}
        ps = sorted({p for p, _ in found})
        seconds = [found[p, "tree"]["seconds_per_row"] / found[p, "power"]["seconds_per_row"] for p in ps]
        errors = [found[p, "power"]["error"] / found[p, "tree"]["error"] for p in ps]
        if name != "close":  # its times equal those of "mnist"
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


# Theorem B.5, Corollaries B.6 and C.3.

KERNELS = {"ntk, depth 1": ("ntk", 1), "ntk, depth 3": ("ntk", 3), "hidden_ntk": ("hidden_ntk", 1)}
HIGHEST_OF_TREES = 128


def tail_cases(args):
    if args.quick:
        return grid(rows="close", kernel="ntk, depth 1", pairs=[[[8, 8]]], n=40, m=256, seeds=4, rounds=1)
    pairs = [[8, 8], [16, 16], [32, 8], [32, 32]]
    return grid(rows=("mnist", "close"), kernel=KERNELS, pairs=[pairs], n=150, m=4096, seeds=30, rounds=3)


def tail(rows, kernel, pairs, n, m, seeds, rounds):
    """Measure bias², variance and mean squared error of the kernel matrix, relative to ‖K‖_F².

    For each (s, N) in `pairs`, the sampled series has all degrees up to s and N draws of higher degrees. It is compared
    with series truncated ("cut") at the same number of degrees and at twice that number; the latter takes about the
    time of the sampled series, whose degrees are higher. "power" divides nodes by their norms, the default, and has
    degrees up to 1024; "tree" does not, and is unbiased apart from the end of the series at degree 128. The baseline is
    NTKPolynomialSketch, whose polynomial is fitted ("hidden_ntk": DotProductSketch with its defaults).
    """
    X, many = SETS[rows](n), SETS[rows](1000)
    name, depth = KERNELS[kernel]
    K = exact_kernel(name, cosines(X), depth)
    maps = {"baseline": baseline(name, depth, m)}
    for normalize in (True, False):
        for s, n_sampled in pairs if normalize else [pairs[0], pairs[-1]]:
            kind = "power, normalized" if normalize else "tree, not normalized"
            kind = f"{kind}, s = {s}, N = {n_sampled}"
            sampled = series_map(name, depth, m, normalize, degree=s, n_sampled=n_sampled)
            maps[f"{kind}: sampled"] = sampled
            drawn = round(np.mean([count_degrees(sampled(seed).fit(X)) for seed in range(10)]))
            for label, count in (("cut", drawn), ("cut at twice as many", 2 * drawn))[: 2 if normalize else 1]:
                degree = find_degree(name, depth, count)
                maps[f"{kind}: {label}"] = series_map(name, depth, m, normalize, degree=degree)
    fitted = {label: of_seed(0).fit(many) for label, of_seed in maps.items()}
    seconds = medians({label: lambda f=f: f.transform(many) for label, f in fitted.items()}, rounds)
    found = {}
    for label, of_seed in maps.items():
        found[label] = {"seconds": seconds[label], "degrees": count_degrees(fitted[label])}
        found[label]["highest_degree"] = int(max(fitted[label].budget_.coefficients))
        found[label] |= bias_and_variance([gram(of_seed(seed).fit_transform(X)) for seed in range(seeds)], K)
    return {"methods": found}


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
    """Return a function from seed to map; trees get finitely many coefficients, for rows of norm 1."""
    from ntkit import DotProductSketch

    if normalize:
        options |= {"kernel": kernel, "depth": depth, "method": "power"}
    else:
        options |= {"kernel": taylor(kernel, depth, HIGHEST_OF_TREES).tolist(), "method": "tree"}
    return lambda seed: DotProductSketch(n_components=m, normalize=normalize, random_state=seed, **options)


def count_degrees(feature_map):
    return len(feature_map.budget_.coefficients)


def find_degree(kernel, depth, n_degrees):
    """Return the degree at which the series has `n_degrees` nonzero terms."""
    return int(np.flatnonzero(taylor(kernel, depth, 1024))[n_degrees - 1])


def bias_and_variance(grams, K):
    """Estimate bias² and variance from E_s = G_s − K of independent seeds s.

    bias² is the mean of ⟨E_s, E_t⟩ over s ≠ t, which excludes the variance; its standard deviation is by the jackknife.
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


def norms(m, degree, seeds):
    """Return the quantiles 0.1, 0.5 and 0.9 of ‖z(x)‖² for ‖x‖ = 1 if nodes of "power" are not divided by their norms.

    An error e of ‖w₀‖² enters as (1 + e)^p, so Theorem 5.1 requires m to grow like p².
    """
    from ntkit.sketches import PowerSketch

    x = mnist_rows(1)[0].astype(np.float64)
    values = [PowerSketch(len(x), m, degree=degree).sample(seed).apply(x) for seed in range(seeds)]
    quantiles = np.quantile([float(z @ z) for z in values], [0.1, 0.5, 0.9])
    return dict(zip(("low", "median", "high"), quantiles.tolist(), strict=True))


# Theorem A.1.


def budget_cases(args):
    n, seeds, rounds = (100, 1, 1) if args.quick else (500, 5, 5)
    sets, series = ("mnist", "year_subset"), ("gaussian, lengthscale 0.5", "ntk, depth 1", "ntk, depth 3")
    sizes = 1024 if args.quick else (1024, 4096)
    axes = {"rows": sets[:1] if args.quick else sets, "series": series[:1] if args.quick else series}
    return grid(**axes, m=sizes, degree=32, n=n, seeds=seeds, rounds=rounds)


def budget(rows, series, m, degree, n, seeds, rounds):
    """Measure the relative error of a series, on rows of norm 1, by how its degrees share the components.

    The shares are "least variance" (proportional to the coefficients, as in DotProductSketch), "equal", or "squares"
    (proportional to j² as in Theorem A.1, at least one component each). `deviation` is the error expected by theory,
    √Σ a_j²/m_j over the sketched degrees. In all of them, degrees whose monomials fit are represented exactly.
    """
    from numpy.polynomial.polynomial import polyval

    from ntkit import DotProductSketch

    if series.startswith("gaussian"):
        a = [np.exp(-4.0) * 4.0**j / factorial(j) for j in range(degree + 1)]
    else:
        a = taylor("ntk", int(series[-1]), degree)
    X = mnist_rows(n) if rows == "mnist" else year_rows(n)
    K = polyval(cosines(X), a)
    law = DotProductSketch(list(a), n_components=m, degree=degree, random_state=0).fit(X).sketch_.law
    laws = {name: with_shares(law, a, name) for name in ("least variance", "equal", "squares")}
    operators = {name: [law.sample(seed) for seed in range(seeds)] for name, law in laws.items()}
    seconds = medians({name: lambda o=o: o[0].apply(X) for name, o in operators.items()}, rounds)
    errors = {name: [relative_error(gram(o.apply(X)), K) for o in drawn] for name, drawn in operators.items()}
    return {
        "methods": {
            name: {"error": float(np.mean(errors[name])), "seconds": seconds[name], "deviation": expected(laws[name])}
            for name in laws
        }
    }


def year_rows(n):
    X = dataset("year_subset").X[:n].astype(np.float64)
    return unit((X - X.mean(0)) / X.std(0))


def with_shares(law, a, shares):
    """Return the law of a series with coefficients a and the given shares of its components."""
    from ntkit.sketches.series import Budget, allocate

    j = np.arange(len(a))
    weights = {"least variance": np.asarray(a), "equal": np.sign(a), "squares": np.sign(a) * np.maximum(j, 1) ** 2.0}
    least = weights[shares].sum() / law.n_components if shares == "squares" else 0  # every degree gets a component
    chosen = allocate(np.maximum(weights[shares], least * np.sign(a)), law.n_features, law.n_components)
    law = replace(law, coefficients=tuple(map(float, a)))
    if shares != "least variance":
        kept = {degree: float(a[degree]) for degree in chosen.coefficients}
        object.__setattr__(law, "budget", Budget(chosen.exact, chosen.sketched, kept))  # not available as an option
    return law


def expected(law):
    """Return √Σ a_j²/m_j over the sketched degrees."""
    return float(np.sqrt(sum(law.budget.coefficients[j] ** 2 / m for j, m in law.budget.sketched.items())))


QUESTIONS = {
    "degrees": Question(
        "Sketches of ⟨x, y⟩^p by degree and size", degree_cases, degrees,
        "rows degree m method seconds_per_row:.2e seconds_per_row/:.2f peak_kib_per_row:.1f error:.2g close_error:.2g",
    ),
    "tail": Question(
        "Sampled and truncated series", tail_cases, tail,
        "rows kernel method degrees highest_degree seconds/:.2f bias2:.1e bias2_deviation:.0e variance:.1e mse:.1e",
    ),
    "norms": Question(
        "‖z‖² of PowerSketch without normalization",
        lambda args: (
            grid(m=1024, degree=(16, 64), seeds=5)
            if args.quick
            else grid(m=(1024, 4096, 16384), degree=(16, 64, 256, 1024), seeds=25)
        ),
        norms, "m degree low:.2g median:.2g high:.2g",
    ),
    "budget": Question(
        "How degrees share components", budget_cases, budget,
        "rows series m method error:.4f error/:.2f deviation/:.2f seconds:.4f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)


if __name__ == "__main__":
    main(__name__)
