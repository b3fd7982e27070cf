"""Shared parts of the reproductions of Han, Zandieh, Avron (ICML 2022): maps, ridge regression (Tables 2 and 4).

Points on the sphere are drawn uniformly from the grids; heights are in km. The month, scaled to −¼ … ¼, is the fourth
column of air temperatures. Columns of proteins are standardized. 90 % of the rows are for training; λ is chosen on them
by twofold cross-validation. Times are for fit (training rows) and transform (all rows) in float64.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from experiment import (
    Meter,
    UnavailableError,
    dataset,
    hardware,
    machines,
    markdown_table,
    mean,
    mean_deviation,
    median,
    on_device,
    pyplot,
    select,
    to_numpy,
)

# name: (label in tables, label in pictures)
MAPS = {
    "nystroem": ("`NystroemFeatures`", "Nyström, leverage scores"),
    "sklearn": ("scikit-learn's `Nystroem`, uniform", "Nyström, scikit-learn"),
    "fourier": ("`RandomFourierFeatures`", "Fourier"),
    "orthogonal": ("`OrthogonalFourierFeatures`", "Orthogonal Fourier"),
    "fastfood": ("`FastfoodFeatures`", "Fastfood"),
    "maclaurin": ("`MaclaurinFeatures`", "Maclaurin"),
    "maclaurin, paper": ("`MaclaurinFeatures`, published law", "Maclaurin, published law"),
    "taylor": ("`DotProductSketch`", "DotProductSketch"),
    "polynomial": ("`NTKPolynomialSketch`", "NTKPolynomialSketch"),
    "random": ("`NTKRandomFeatures`", "NTKRandomFeatures"),
    "definition 8": ("Gegenbauer, Definition 8, degree 15", "Gegenbauer, Definition 8"),
    "gegenbauer": ("`GegenbauerFeatures`", "Gegenbauer"),
    "groups": ("`GegenbauerFeatures`, sphere × month", "Gegenbauer, sphere × month"),
}
ROWS = {name: row for name, (row, _) in MAPS.items()}
LABELS = {name: label for name, (_, label) in MAPS.items()}
# The names in the paper.
NAMES = {
    "nystroem": "Nyström",
    "fourier": "Fourier",
    "fastfood": "FastFood",
    "maclaurin, paper": "Maclaurin",
    "taylor": "PolySketch",
    "definition 8": "Gegenbauer",
}
SETS = {"elevation": "Elevation", "co2": "CO₂", "airtemp": "Climate", "protein": "Protein"}
SIZES = {"elevation": 64800, "airtemp": 60000, "protein": 45730}
SEEDS = range(3)
LENGTHSCALE = 0.5**0.5  # the kernel exp(−‖x − y‖²) of Figure 1


def make(name, kernel, m, seed, *, lengthscale=1.0, depth=2):
    """Return the map of this name."""
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
    fourier = {
        "fourier": ntkit.RandomFourierFeatures,
        "orthogonal": ntkit.OrthogonalFourierFeatures,
        "fastfood": ntkit.FastfoodFeatures,
    }
    if name in fourier:
        return fourier[name](lengthscale=lengthscale, **shared)
    if name.startswith("maclaurin"):
        return ntkit.MaclaurinFeatures(
            kernel, method="geometric" if "paper" in name else "optimal", **of_kernel, **shared
        )
    if name == "taylor":
        return ntkit.DotProductSketch(kernel, **of_kernel, **shared)
    if name == "polynomial":
        return ntkit.NTKPolynomialSketch(depth=depth, **shared)
    if name == "random":
        return ntkit.NTKRandomFeatures(depth=depth, **shared)
    options = {"gegenbauer": {"groups": None}, "groups": {"groups": ((0, 1, 2), (3,))}}
    # No tolerance: with a small λ, ridge regression uses degrees with little weight in the kernel.
    published = {"harmonics": False, "directions": "gaussian", "degree": 15, "tolerance": 0.0}
    return ntkit.GegenbauerFeatures(kernel, **options.get(name, published), **of_kernel, **shared)


def table(name, seed, n):
    """Return `n` random rows and their targets."""
    if name == "co2":
        raise UnavailableError("the CO₂ emissions of the paper (ODIAC) are not among ntkit's data sets")
    rng = np.random.default_rng(seed)
    data = dataset(name)
    X, y = data.X.astype(np.float64), data.y.astype(np.float64)
    if name == "protein":
        X = (X - X.mean(0)) / X.std(0)
        order = rng.permutation(len(X))[:n]
    else:
        weights = np.sqrt(np.maximum(1 - X[:, 2] ** 2, 0)) + 1e-9  # areas of the grid cells
        order = rng.choice(len(X), n, replace=False, p=weights / weights.sum())
        if name == "airtemp":
            X[:, 3] = (X[:, 3] - 6.5) / 22  # months 1 … 12 to −¼ … ¼
        else:
            y = y / 1000
    return X[order], y[order]


def ridge(Z, y, Z_test, y_test):
    """Return the test error of ridge regression with λ by twofold cross-validation, and λ."""
    n, half, center = len(y), len(y) // 2, y.mean()
    y = y - center
    parts = [slice(0, half), slice(half, n)]
    grams = [Z[p].T @ Z[p] for p in parts]
    moments = [Z[p].T @ y[p] for p in parts]
    alphas = 10.0 ** np.arange(-11, 1.01, 0.5) * np.trace(grams[0] + grams[1]) / 2
    errors = np.zeros(len(alphas))
    for fold in (0, 1):
        w, v = np.linalg.eigh(grams[fold])
        w, b = np.maximum(w, 0), v.T @ moments[fold]
        # Squared errors on the other half follow from its sums.
        G, c = v.T @ grams[1 - fold] @ v, v.T @ moments[1 - fold]
        square = float(y[parts[1 - fold]] @ y[parts[1 - fold]])
        for i, alpha in enumerate(alphas):
            beta = b / (w + alpha)
            errors[i] += square - 2 * beta @ c + beta @ G @ beta
    alpha = float(alphas[np.argmin(errors)])
    w, v = np.linalg.eigh(grams[0] + grams[1])
    beta = v @ ((v.T @ (moments[0] + moments[1])) / (np.maximum(w, 0) + 2 * alpha))
    return float(np.mean((Z_test @ beta + center - y_test) ** 2)), alpha


@lru_cache
def choose_lengthscale(name, n=12000, m=1024):
    """Return the length scale with the smallest error of Nyström features on a sixth of `n` random rows.

    The rows are drawn from the whole table, so they include test rows: about a quarter of the test rows of protein.
    """
    X, y = table(name, 100, n)
    scales = (0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.7) if name != "protein" else (0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
    split = n * 5 // 6
    errors = {}
    for lengthscale in scales:
        Z = make("nystroem", "gaussian", m, 0, lengthscale=lengthscale).fit_transform(X)
        errors[lengthscale] = ridge(Z[:split], y[:split], Z[split:], y[split:])[0]
    return min(errors, key=errors.get)


def regression_cases(args, maps, **fixed):
    """Return the cases of `maps` on each data set, and one case of the missing data set to report it once."""
    m, seeds = (64, range(2)) if args.quick else (1024, SEEDS)
    here = {"m": m, "device": args.device, **fixed}
    out = [
        {"data": name, "method": method, "n": 2000 if args.quick else n, "seed": seed, **here}
        for name, n in SIZES.items()
        for seed in seeds
        for method in maps(name)
        if method != "sklearn" or args.device == "cpu"
    ]
    return [*out, {**out[0], "data": "co2"}]


def regression(kernel, lengthscale, *, data, method, n, m, seed, device):
    """Measure the mean squared test error, seconds, and peak memory including the features."""
    X, y = table(data, seed, n)
    split = len(X) * 9 // 10
    (X,) = on_device(device, X)
    feature_map = make(method, kernel, m, seed, lengthscale=lengthscale)
    warm = split if device == "cuda" else 2 * m  # Triton compiles by shape, Numba by type
    feature_map.fit(X[:warm]).transform(X[:warm])
    with Meter(device) as meter:
        feature_map.fit(X[:split])
        Z, Z_test = feature_map.transform(X[:split]), feature_map.transform(X[split:])
    mse, alpha = ridge(to_numpy(Z), y[:split], to_numpy(Z_test), y[split:])
    found = {"mse": mse, "alpha": alpha, "seconds": meter.seconds, "peak_mib": meter.peak_mib}
    return found | {"lengthscale_used": lengthscale, "hardware": hardware(device)}


def regression_table(title, runs, paper, methods):
    """Return the table of errors and seconds, with the paper's numbers where they exist."""
    columns = [
        (name, whose) for name in SETS for whose in ("paper", "ours") if name in (paper if whose == "paper" else SIZES)
    ]
    header = [f"{SETS[name]}, paper" if whose == "paper" else f"{name}, ours" for name, whose in columns]
    rows = []
    for method in methods:
        label = f"{ROWS[method]} ({NAMES[method]})" if paper and method in NAMES else ROWS[method]
        there = {name: paper[name].get(NAMES.get(method)) for name in paper}
        theirs = {name: f"{pair[0]:g}, {pair[1]:g} s" if pair else "–" for name, pair in there.items()}
        cells = (
            theirs[name] if whose == "paper" else cell(select(runs, data=name, method=method))
            for name, whose in columns
        )
        rows.append((label, *cells))
    return noted(markdown_table((title, *header), rows))


def cell(runs):
    """Format the error over seeds and the median seconds."""
    return f"{mean_deviation(runs, 'mse', 3)}, {seconds(runs)} s{shared_time(runs)}" if runs else "–"


def seconds(runs):
    """Format the median seconds with two significant digits."""
    found = median(runs, "seconds")
    return f"{found:#.2g}" if found < 10 else f"{found:.0f}"


def shared_time(runs):
    """Return a mark if one time was recorded for all seeds."""
    return " †" if len(runs) > 1 and len({run["seconds"] for run in runs}) == 1 else ""


def noted(table):
    """Append the explanation of the mark if the table contains it."""
    return f"{table}\n\n† One time measurement for all seeds." if "†" in table else table


def methods_of(runs):
    return [method for method in ROWS if select(runs, method=method)]


def ranking(runs, methods):
    """Return the mean errors of the methods that have runs, the smallest error first."""
    errors = {method: mean(select(runs, method=method), "mse") for method in methods}
    return dict(sorted(((k, v) for k, v in errors.items() if v is not None), key=lambda item: item[1]))


def listed(errors):
    return ", ".join(f"{NAMES[method]} {error:.3f}" for method, error in errors.items())


def slowdown(runs, names):
    """Return the time of Nyström features relative to Definition 8, by data set."""
    out = {}
    for name in names:
        pair = [median(select(runs, data=name, method=method), "seconds") for method in ("nystroem", "definition 8")]
        if None not in pair:
            out[name] = pair[0] / pair[1]
    return out


def preparation(runs):
    """Describe the measurements and the machine."""
    sizes = ", ".join(f"{name} {n}" for name, n in sorted({(run["data"], run["n"]) for run in runs}))
    m = ", ".join(str(m) for m in sorted({run["m"] for run in runs}))
    seeds = len({run["seed"] for run in runs})
    return (
        f"m = {m} features. Mean squared errors are on a tenth of the rows, the test set, over {seeds} splits and "
        "draws; λ is chosen by twofold cross-validation on the other rows. Seconds are the median time to fit and "
        f"transform all rows in float64. Rows: {sizes}. {machines(runs)}; the paper does not state its machine."
    )


DATA = (
    "The paper's CO₂ emissions are not among ntkit's data sets. Monthly air temperatures (`airtemp`) replace its "
    "climate data: the same kind of rows but other targets, so only the order of the maps can be compared. Elevation "
    "is drawn from another grid of the Earth (heights in km, which fits the paper's numbers). PolySketch is our "
    "`DotProductSketch`, in which each degree has its own share of the features. Gegenbauer is Definition 8 up to "
    "degree 15 with independent directions, as in the paper. The other methods are not in the paper."
)


def plot_regression(panels, file):
    """Plot errors against seconds; each of `panels` is a row of the figure, a list of (title, runs)."""
    plt = pyplot()
    n_columns = max(len(row) for row in panels)
    height = 3.0 * len(panels) + 1.0
    figure, axes = plt.subplots(len(panels), n_columns, figsize=(11, height), layout="constrained", squeeze=False)
    markers = dict(zip(LABELS, "sDo^v<>PXdph*", strict=True))
    handles = {}
    for row, each in zip(axes, panels, strict=True):
        for ax in row[len(each) :]:
            ax.set_axis_off()
        for ax, (title, runs) in zip(row, each, strict=False):
            for method in methods_of(runs):
                found = select(runs, method=method)
                ours = method in ("gegenbauer", "groups")
                color = "C3" if ours else "C0" if method == "definition 8" else "0.35"
                (line,) = ax.plot(
                    median(found, "seconds"), mean(found, "mse"), markers[method], color=color,
                    ms=9 if ours else 7 if method == "definition 8" else 6, alpha=0.85,
                )  # fmt: skip
                handles[method] = line
            ax.set(title=title, xscale="log", yscale="log", xlabel="seconds", ylabel="mean squared error")
            plain_ticks(ax.xaxis)
            plain_ticks(ax.yaxis)
    shown = [method for method in LABELS if method in handles]
    labels = [LABELS[method] for method in shown]
    figure.legend([handles[k] for k in shown], labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(Path(file), dpi=150)
    plt.close(figure)


def plain_ticks(axis):
    """Label a logarithmic axis with at least three plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    low, high = axis.get_view_interval()
    for subs in ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), tuple(np.arange(10, 100, 2) / 10)):
        locator = LogLocator(subs=subs, numticks=20)
        if sum(low <= tick <= high for tick in locator.tick_values(low, high)) >= 3:
            break
    axis.set_major_locator(locator)
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def panels_of(runs, suffix=""):
    """Return one panel for each data set with runs."""
    return [(name + suffix, found) for name in SIZES if (found := select(runs, data=name))]
