"""Table 1 of Song, Woodruff, Yu, Zhang (ICML 2021): growth of time and size of sketches of x^{⊗p}.

    python benchmarks/papers/power_table1.py                  everything
    python benchmarks/papers/power_table1.py --device cuda    times of dense rows on a GPU

[AKK+20] is the tree of independent sketches (PolySketch), Theorem 5.1 the sketch with one T and one S (PowerSketch).
[WZ20] is adaptive, that is, it depends on the rows; it is not in ntkit.

Times are for transform of float32 rows to m = 1024 features, medians of three calls: 500 dense rows by d and p, dense
rows of 10⁵ columns by their number, 2000 sparse rows of 10⁵ columns by their nonzeros. Slopes are of log time against
log size; for d and the nonzeros only over the larger half of the sizes, where m takes a smaller share of the time.
scikit-learn's PolynomialCountSketch is called once, and only where that takes less than half a minute.

Errors are subspace embedding errors of X^{⊗p}: ε = ‖K^{-1/2} Z Zᵀ K^{-1/2} − I‖ for n rows of 1024 columns, where
K = (X Xᵀ)^p. The required dimension is where the median of ε over seeds falls below ½. "random" rows are uniform on the
sphere; "close" rows are √c_i u + √(1 − c_i) noise, with c uniform from 0.8 to 0.99.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_power import STYLES
from bench_sketches import make
from experiment import (
    Claim,
    Meter,
    added_mib,
    devices_of,
    fullest,
    hardware,
    machines,
    main,
    markdown_table,
    on_device,
    pyplot,
    select,
)

TITLE = "Table 1: growth of time and size of sketches of tensor powers"
PAPER = {  # exponents of growth
    "time, d": {"tree": "1", "power": "1", "WZ20": "1"},
    "time, nonzeros": {"tree": "–", "power": "–", "WZ20": "–"},  # the table is for dense rows
    "time, n": {"tree": "1", "power": "1", "WZ20": "1"},
    "time, p": {"tree": "1", "power": "0", "WZ20": "2.5"},
    "dimension, n": {"tree": "2", "power": "1", "WZ20": "1"},
    "dimension, p": {"tree": "1", "power": "2", "WZ20": "0"},
    "dimension, 1/ε": {"tree": "2", "power": "2", "WZ20": "2"},
}
METHODS = ("tree", "power")
M = 1024
EPSILON = 0.5
KINDS = ("random", "close")
DIMENSIONS = {"d": 1024, "sizes": [2**k for k in range(5, 17)]}


def cases(args):
    quick = args.quick
    seeds = range(1 if quick else 3)
    dims = [1000, 4000] if quick else [1000, 2000, 4000, 8000, 16000, 32000, 64000, 100000]
    middle, largest, few = (4000, 4000, 50) if quick else (32000, 100000, 500)
    points = [{"p": p, "n": few, "d": d} for p in (8, 32) for d in dims]
    points += [{"p": p, "n": few, "d": middle} for p in (2, 4, 8, 16, 32, 64)]
    points += [{"p": 32, "n": few * 2**k, "d": largest} for k in range(4)]
    points = [{**point, "nonzeros": None} for point in points]
    if args.device == "cpu":
        nonzeros = [10 * 2**k for k in range(3 if quick else 10)]
        points += [{"p": p, "n": 4 * few, "d": largest, "nonzeros": k} for p in (8, 32) for k in nonzeros]
    out = []
    for point in points:
        here = args.device == "cpu" and point["nonzeros"] is None and point["p"] in (8, 32) and point["n"] == few
        methods = (*METHODS, "scikit-learn") if here and point["p"] * point["d"] <= 512_000 else METHODS
        for method in methods:
            for seed in seeds:
                case = {"what": "time", "method": method, **point, "m": M, "seed": seed, "device": args.device}
                if case not in out:
                    out.append(case)
    return out + dimension_cases(quick) if args.device == "cpu" else out


def dimension_cases(quick):
    """Return cases by n at degree 4, and by p for 16 rows."""
    pairs = [(8, 2), (8, 4), (16, 4)] if quick else [(n, 4) for n in (8, 16, 32, 64)]
    pairs += [] if quick else [(16, p) for p in (2, 8, 16, 32)]
    return [
        {"what": "dimension", "method": method, "rows": kind, "n": n, "p": p, "seed": seed, "device": "cpu"}
        for kind in KINDS
        for n, p in pairs
        for method in METHODS
        for seed in range(3 if quick else 15)
    ]


def measure(*, what, **case):
    return measure_time(**case) if what == "time" else measure_errors(**case)


def measure_time(*, method, p, n, d, nonzeros, m, seed, device):
    X = dense_rows(n, d, seed) if nonzeros is None else sparse_rows(n, d, nonzeros, seed)
    if nonzeros is None:
        (X,) = on_device(device, X)
    feature_map = make(method, p, m, seed).fit(X)
    once = method == "scikit-learn"
    if not once:
        feature_map.transform(X)  # loads compiled code
    seconds = []
    for _ in range(1 if once else 3):
        with Meter(device) as meter:
            feature_map.transform(X)
        seconds.append(meter.seconds)
    peak = meter.peak_mib if device == "cuda" or once else added_mib(lambda: feature_map.transform(X))
    return {"seconds": float(np.median(seconds)), "peak_mib": peak, "hardware": hardware(device)}


def dense_rows(n, d, seed):
    X = np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32)
    X *= d**-0.5  # in place: the largest array has 1.6 GB
    return X


def sparse_rows(n, d, nonzeros, seed):
    from scipy.sparse import csr_array

    index = np.random.default_rng(seed).integers(d, size=n * nonzeros).astype(np.int32)
    values = np.full(n * nonzeros, nonzeros**-0.5, "float32")
    X = csr_array((values, index, np.arange(0, n * nonzeros + 1, nonzeros)), shape=(n, d))
    X.sum_duplicates()
    return X


def measure_errors(*, method, rows, n, p, seed, device):
    """Measure ε for all sizes."""
    d, sizes = DIMENSIONS["d"], DIMENSIONS["sizes"]
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if rows == "close":
        c = rng.uniform(0.8, 0.99, size=(n, 1))
        X = c**0.5 * rng.standard_normal(d) + (1 - c) ** 0.5 * X
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    w, v = np.linalg.eigh((X @ X.T) ** p)
    errors = []
    for m in sizes:
        Z = make(method, p, m, seed).fit_transform(X)
        whitened = (v / np.sqrt(w)).T @ Z
        errors.append(float(np.abs(np.linalg.eigvalsh(whitened @ whitened.T) - 1).max()))
    return {"sizes": sizes, "errors": errors, "hardware": hardware(device)}


# Evaluation of the runs.


def times(runs, key, **fixed):
    """Return {seed: (sizes, seconds)} along one axis."""
    found = select(runs, what="time", **fixed)
    curves = {}
    for seed in sorted({run["seed"] for run in found}):
        points = sorted((run[key], run["seconds"]) for run in select(found, seed=seed))
        if len(points) > 1:
            curves[seed] = tuple(np.array(values, dtype=float) for values in zip(*points, strict=True))
    return curves


def axes_of(runs):
    """Return the varied key and the fixed parameters of each axis of time, as found in the runs."""
    dense = [run for run in select(runs, what="time", nonzeros=None) if run["method"] != "scikit-learn"]
    sparse = [run for run in select(runs, what="time") if run["nonzeros"] is not None]
    out = {}
    if dense:
        few, largest = min(run["n"] for run in dense), max(run["d"] for run in dense)
        middle = max((run["d"] for run in dense if run["p"] == 2), default=None)
        for p in (8, 32):
            out["time, d", p] = ("d", {"p": p, "n": few, "nonzeros": None})
        out["time, p", None] = ("p", {"n": few, "d": middle, "nonzeros": None})
        out["time, n", 32] = ("n", {"p": 32, "d": largest, "nonzeros": None})
    if sparse:
        for p in (8, 32):
            out["time, nonzeros", p] = ("nonzeros", {"p": p, "n": sparse[0]["n"], "d": sparse[0]["d"]})
    return out


def time_slopes(runs, axis, method):
    """Return the slopes of all seeds; for d and nonzeros, over the larger half of the sizes."""
    key, fixed = axis
    slopes = []
    for sizes, seconds in times([r for r in runs if r.get(key) is not None], key, method=method, **fixed).values():
        half = (len(sizes) - 1) // 2 if key in ("d", "nonzeros") else 0
        slopes.append(slope(sizes[half:], seconds[half:]))
    return slopes


def slope(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def median_errors(runs, method, rows, n, p):
    found = select(runs, what="dimension", method=method, rows=rows, n=n, p=p)
    if not found:
        return None
    return np.array(found[0]["sizes"], dtype=float), np.median([run["errors"] for run in found], axis=0)


def needed(runs, method, rows, n, p):
    """Interpolate the size from which the median of ε stays below ½; None if there is no such size."""
    found = median_errors(runs, method, rows, n, p)
    if found is None:
        return None
    sizes, errors = found
    above = np.flatnonzero(errors > EPSILON)
    i = above[-1] if len(above) else -1
    if i == -1 or i == len(sizes) - 1:
        return None
    share = np.log(errors[i] / EPSILON) / np.log(errors[i] / errors[i + 1])
    return float(np.exp(np.log(sizes[i]) + share * np.log(sizes[i + 1] / sizes[i])))


def dimension_curve(runs, method, rows, key):
    """Return the required dimension by n (degree 4) or p (16 rows)."""
    fixed = {"p": 4} if key == "n" else {"n": 16}
    values = sorted({run[key] for run in select(runs, what="dimension", **fixed)})
    points = [(value, needed(runs, method, rows, **fixed, **{key: value})) for value in values]
    return [(value, m) for value, m in points if m is not None]


def dimension_slope(runs, method, rows, key):
    """Return the exponent of the dimension in n or p; in 1/ε from the errors below 1 of all n and p."""
    if key == "1/ε":
        pairs = sorted({(run["n"], run["p"]) for run in select(runs, what="dimension", rows=rows, method=method)})
        slopes = []
        for n, p in pairs:
            sizes, errors = median_errors(runs, method, rows, n, p)
            small = errors < 1
            if small.sum() > 2:
                slopes.append(-1 / slope(sizes[small], errors[small]))
        return float(np.mean(slopes)) if slopes else None
    points = dimension_curve(runs, method, rows, key)
    return slope(*zip(*points, strict=True)) if len(points) > 1 else None


def report(runs):
    seeds = {what: len({run["seed"] for run in select(runs, what=what)}) for what in ("time", "dimension")}
    text = (
        f"Exponents a of times and dimensions that grow like size^a. All times are at {M} features, so the paper's "
        "terms in n²p² and n³p², which come from the dimension, do not grow; the exponents of the paper are for its "
        f"term in n·d, for dense rows (seeds: {seeds['time']}). The dimension is where the median of ε falls below ½ "
        f"(seeds: {seeds['dimension']}). "
    )
    lines = [f"{text}{machines(runs)}."]
    for device in devices_of(runs):
        here = select(runs, device=device)
        header = (f"{device}, growth of", "[AKK+20]", "ours, tree", "Theorem 5.1", "ours, power", "[WZ20]")
        rows = _growth_rows(here)
        lines += ["", markdown_table(header, rows)]
        if missing := [label for label, _, tree, _, power, _ in rows if tree == power == "–"]:
            lines += ["", f"Not measured, {device}: {'; '.join(missing)}."]
        if ratios := _ratios(here):
            lines += ["", f"Time of the tree relative to powers, {device}: {ratios}."]
    return "\n".join([*lines, "", _differences(runs)])


def _growth_rows(runs):
    rows = []
    for (what, _), axis in axes_of(runs).items():
        label = f"{what}, {_fixed(axis)}"
        rows.append((label, *_cells(what, {m: _shown(time_slopes(runs, axis, m)) for m in METHODS})))
    if select(runs, what="dimension"):
        for key in ("n", "p", "1/ε"):
            for kind in KINDS:
                ours = {method: dimension_slope(runs, method, kind, key) for method in METHODS}
                ours = {method: "–" if value is None else f"{value:.2f}" for method, value in ours.items()}
                rows.append((f"dimension, {key}, {kind} rows", *_cells(f"dimension, {key}", ours)))
    return rows


def _fixed(axis):
    _, fixed = axis
    names = {"p": "degree {}", "n": "{} rows", "d": "d = {}"}
    shown = [names[key].format(value) for key, value in fixed.items() if key in names and value is not None]
    return ", ".join(shown)


def _cells(what, ours):
    paper = PAPER[what]
    return paper["tree"], ours["tree"], paper["power"], ours["power"], f"{paper['WZ20']}; not in ntkit"


def _shown(slopes):
    if not slopes:
        return "–"
    return f"{np.mean(slopes):.2f}" + (f" ± {np.std(slopes, ddof=1):.2f}" if len(slopes) > 1 else "")


def _ratios(runs):
    """Return ratios of times at the largest d, by degree."""
    shown = []
    for (what, p), (key, fixed) in axes_of(runs).items():
        if what == "time, d":
            found = {m: times(runs, key, method=m, **fixed) for m in METHODS}
            if all(found.values()):
                last = {m: np.median([seconds[-1] for _, seconds in found[m].values()]) for m in METHODS}
                d = int(next(iter(found["tree"].values()))[0][-1])
                shown.append(f"{last['tree'] / last['power']:.1f} at d = {d}, degree {p}")
    return ", ".join(shown)


def _differences(runs):
    text = (
        "Differences from the paper: the table states bounds for the worst rows, up to logarithms; we measure two "
        "kinds of rows. Transforms are padded to powers of two, and at small d or few nonzeros the steps that depend "
        "only on m take most of the time, so slopes below 1 do not contradict a linear term."
    )
    in_n = {kind: dimension_slope(runs, "tree", kind, "n") for kind in KINDS}
    if None not in in_n.values():
        text += (
            " The n² of the tree comes from bounding the largest eigenvalue of the error by its Frobenius norm; the "
            f"measured exponents are {in_n['random']:.2f} (random rows) and {in_n['close']:.2f} (close rows)."
        )
    return text


def claims(runs):
    here = fullest(runs)
    axes = axes_of(here)
    slopes = {
        (*name, method): np.mean(found)
        for name, axis in axes.items()
        for method in METHODS
        if (found := time_slopes(here, axis, method))
    }
    out = []
    linear = {p: slopes["time, d", p, "power"] for p in (8, 32) if ("time, d", p, "power") in slopes}
    if linear:
        shown = ", ".join(f"exponent {value:.2f} at degree {p}" for p, value in linear.items())
        text = "The time of powers grows at most linearly in d (exponent at most 1.1)"
        out.append(Claim(text, bool(max(linear.values()) <= 1.1), shown))
    in_p = [slopes.get(("time, p", None, method)) for method in METHODS]
    if None not in in_p:
        out.append(
            Claim(
                "For long rows, the time of the tree grows with the degree (exponent above ½), and the time of powers "
                "hardly grows (exponent below ¼)",
                bool(in_p[0] > 0.5 and in_p[1] < 0.25),
                f"exponents in p {in_p[0]:.2f} (tree) and {in_p[1]:.2f} (powers)",
            )
        )
    for key, text in (
        ("n", "The required dimension grows faster with n for the tree than for powers (n² and n"),
        ("p", "The required dimension grows faster with p for powers than for the tree (p² and p"),
    ):
        found = {kind: [dimension_slope(here, method, kind, key) for method in METHODS] for kind in KINDS}
        if all(None not in pair for pair in found.values()):
            lead = [tree - power if key == "n" else power - tree for tree, power in found.values()]
            shown = "; ".join(f"{kind} rows {tree:.2f} and {power:.2f}" for kind, (tree, power) in found.items())
            text += "; exponents more than 0.3 apart for both kinds of rows)"
            out.append(Claim(text, min(lead) > 0.3, f"exponents of tree and powers: {shown}"))
    return out


def plot(runs, folder):
    plt = pyplot()
    names = []
    for device in devices_of(runs):
        here = select(runs, device=device)
        size = (2, (11, 7.2)) if select(here, what="dimension") or device == "cpu" else (1, (11, 4.0))
        figure, axes = plt.subplots(size[0], 3, figsize=size[1], layout="constrained", squeeze=False)
        plot_times(axes[0], here, device)
        if size[0] == 2:
            plot_dimensions(axes[1], here)
        handles = {h.get_label(): h for ax in axes.ravel() for h in ax.get_lines() if not h.get_label().startswith("_")}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
        names.append(f"power_table1_{device}.png")
        figure.savefig(Path(folder) / names[-1], dpi=150)
        plt.close(figure)
    return names


def plot_times(axes, runs, device):
    """Plot times by d, p and nonzeros; on a GPU by the number of rows instead of nonzeros."""
    last = "time, n" if device == "cuda" else "time, nonzeros"
    labels = {"time, d": "columns of dense rows", "time, p": "degree"}
    labels |= {"time, nonzeros": "nonzeros per row", "time, n": "rows"}
    for ax, what in zip(axes, ("time, d", "time, p", last), strict=True):
        for (name, p), (key, fixed) in axes_of(runs).items():
            if name != what:
                continue
            for method in (*METHODS, "scikit-learn") if what == "time, d" else METHODS:
                found = [run for run in runs if run.get(key) is not None]
                for sizes, seconds in list(times(found, key, method=method, **fixed).values())[:1]:
                    n = fixed.get("n", sizes)
                    color, marker = STYLES[method]
                    line = "--" if p == 8 else "-"
                    label = f"{method}, degree {p}" if p else "_"
                    ax.loglog(sizes, seconds / n * 1e6, line, marker=marker, ms=4, color=color, label=label)
        ax.set(xlabel=labels[what], ylabel="time per row (µs)")
        finish(ax, plain=what == "time, p")


def plot_dimensions(axes, runs):
    """Plot the required dimension by n and p, and the median ε by m for the largest n."""
    lines = {"random": "-", "close": ":"}
    for method in METHODS:
        color, marker = STYLES[method]
        for kind in KINDS:
            style = {"color": color, "marker": marker, "ms": 4, "ls": lines[kind], "label": f"{method}, {kind} rows"}
            for ax, key in zip(axes, ("n", "p"), strict=False):
                if points := dimension_curve(runs, method, kind, key):
                    ax.loglog(*zip(*points, strict=True), **style)
            if n := max((run["n"] for run in select(runs, what="dimension", p=4)), default=None):
                found = median_errors(runs, method, kind, n, 4)
                if found:
                    axes[2].loglog(*found, **style)
                axes[2].set(title=f"{n} rows, degree 4", xlabel="components", ylabel="median ε")
    axes[0].set(title="degree 4", xlabel="rows n", ylabel=f"components for ε ≤ {EPSILON:g}")
    axes[1].set(title="16 rows", xlabel="degree p", ylabel=f"components for ε ≤ {EPSILON:g}")
    axes[2].axhline(EPSILON, color="0.7", lw=0.8)
    for ax, plain in zip(axes, (True, True, False), strict=True):
        finish(ax, plain=plain)


def finish(ax, *, plain):
    """Add a grid, and ticks at the measured sizes if `plain`; say so if nothing was measured."""
    if not ax.get_lines():
        ax.text(0.5, 0.5, f"{ax.get_xlabel()}: not measured", ha="center", color="0.5", transform=ax.transAxes)
        ax.set_axis_off()
        return
    ax.grid(alpha=0.3)
    if plain:
        sizes = sorted({int(size) for line in ax.get_lines() for size in line.get_xdata()})
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.set_xticks([], minor=True)


if __name__ == "__main__":
    main(__name__)
