"""Tables: ntkit compared with other libraries by one protocol.

    python benchmarks/peers/tables.py            measure the missing cases and print the tables
    python benchmarks/peers/tables.py --quick    smoke test on few rows

Each case runs in a separate process with a time limit, so that its peak memory is its own; it uses one thread per core.
Data sets are loaded from ntkit.datasets or $NTKIT_DATA. lightgbm, catboost and xrfm are used if installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from experiment import Meter, UnavailableError, main, markdown_table, mean_deviation, pyplot, select
from peers.data import GAUSSIAN_PROCESS_TABLES, TEXT_TABLES, load
from peers.methods import EXACT_ROWS, METHODS, N_COMPONENTS, Problem, error_of

TITLE = "Tables: error, time and memory compared with other libraries"
LIMIT = 300  # time limit of one case in seconds
CHOICE_ROWS = 10_000  # hyper-parameters are tuned on at most this many training rows; a fifth of them is held out
EXACT_CHOICE_ROWS = 5000  # the limit for methods that store an n × n matrix
WARM_ROWS = 500  # rows of the first fit, which is not timed: it loads and compiles code
RATIO_LIMIT = 10  # larger ratios of errors are drawn at this value
# Number of seeds for each data set, in order; more seeds where a case takes only seconds.
SEEDS = {
    "protein": 1,
    "california_housing": 1,
    "magic04": 1,
    "pendigits": 1,
    "abalone": 3,
    "year_subset": 1,
    "mushroom": 1,
    "connect4": 1,
    "elevation": 1,
    "shuttle": 1,
    "mnist": 1,
    **dict.fromkeys((*GAUSSIAN_PROCESS_TABLES, *TEXT_TABLES), 1),
}
# These tables were added later; only the most relevant methods were measured on them.
REDUCED_TABLES = {*GAUSSIAN_PROCESS_TABLES, *TEXT_TABLES}
REDUCED_METHODS = (
    "linear",
    "default",
    "search",
    "boosting",
    "lightgbm",
    "lightgbm_tuned",
    "catboost",
    "xrfm",
    "nystroem",
)
UNITS = {
    "protein": "Å²",
    "california_housing": "(100 000 USD)²",
    "abalone": "rings²",
    "year_subset": "years²",
    "elevation": "km²",
}
ABOUT = {
    "elevation": "60 000 points drawn uniformly from the sphere",
    "mnist": "images as flat rows, values from 0 to 1",
}

PROTOCOL = f"""\
All methods get the same rows. The test set is the usual one where the data set defines one, otherwise a random quarter
of the rows, different for each seed. Columns are standardized by the training rows, except columns of zeros and ones;
images are scaled to values from 0 to 1. Regression targets are standardized too; errors are in their original units.
Rows are float32; exact kernels are solved in float64. All feature maps have {N_COMPONENTS} features.

Hyper-parameters are tuned on at most {CHOICE_ROWS} random training rows: four fifths to fit, one fifth to validate. The
test set is used once, for the error. Methods that store an n × n matrix, and xRFM because it is slow, get at most
{EXACT_ROWS} random training rows, {EXACT_CHOICE_ROWS} of them for tuning. γ is 0.1, 0.3, 1, 3, 10 or 30 times
1/(d·Var(X)), scikit-learn's "scale"; α is one of 10⁻⁴, 10⁻³, …, 10². On features, ntkit chooses α from its own grid by
leave-one-out error, as it always does; `FeatureRidge()` and `FeatureRidgeSearch` also choose kernel, metric and size.
HistGradientBoosting, CatBoost and xRFM use their defaults. LightGBM appears twice: with its defaults, and tuned with 20
random settings. Categories are one-hot encoded for all methods.

“Fit” is the time to fit the chosen configuration on all training rows; “total” includes tuning. “Predict” is the time
for 10 000 rows; “memory” is the increase of the peak over the start. All are measured after a first fit on {WARM_ROWS}
rows, which loads and compiles code. A case that takes more than {LIMIT} s is stopped. Errors are means over seeds ±
standard deviation; the lowest error is bold, and • marks ntkit."""


def cases(args):
    """List all data sets with the first seed, then with the others: an interrupted run lacks seeds, not data sets."""
    if args.quick:
        wanted = [("abalone", 0), ("mushroom", 0)]
        return [_case(data, name, seed, rows=300, limit=60) for data, seed in wanted for name in METHODS]
    rounds = range(max(SEEDS.values()))
    wanted = [(data, seed) for seed in rounds for data, count in SEEDS.items() if seed < count]
    return [
        _case(data, name, seed)
        for data, seed in wanted
        for name in METHODS
        if data not in REDUCED_TABLES or name in REDUCED_METHODS
    ]


def _case(data, method, seed, *, rows=None, limit=LIMIT):
    return {"data": data, "method": method, "seed": seed, "rows": rows, "limit": limit}


def measure(**case):
    """Run the case in a process; return its findings, or that it did not finish."""
    cores = str(len(os.sched_getaffinity(0)))
    threads = {f"{name}_NUM_THREADS": cores for name in ("OPENBLAS", "OMP", "MKL", "NUMBA")}
    command = [sys.executable, __file__, "--worker", json.dumps(case)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=case["limit"], env=os.environ | threads, check=False
        )
    except subprocess.TimeoutExpired:
        return {"unfinished": True}
    if done.returncode == -signal.SIGKILL:
        return {"unfinished": True, "reason": "ran out of memory"}
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"the process failed (exit status {done.returncode}): {message}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "unavailable" in found:
        raise UnavailableError(found["unavailable"])
    return found


def worker(data, method, seed, rows, limit):  # noqa: ARG001
    """Measure one case: tune, fit, predict."""
    X, y, X_test, y_test, unit = prepared(data, seed, rows)
    method = METHODS[method]
    problem = Problem(0 if unit else int(y.max()) + 1, seed, 1 / float(X.shape[1] * X.var()))
    if method.exact:
        X, y = X[:EXACT_ROWS], y[:EXACT_ROWS]
    some = warm_rows(y)
    warm_up = method.model(problem, method.settings[0], method.alphas[0])
    warm_up.fit(X[some], y[some]).predict(X_test[:100])  # loads and compiles code
    with Meter() as meter:
        start = time.perf_counter()
        n = min(EXACT_CHOICE_ROWS if method.exact else CHOICE_ROWS, len(y))
        held, kept = slice(0, n // 5), slice(n // 5, n)
        setting, alpha = method.choose(problem, X[kept], y[kept], X[held], y[held])
        chosen = time.perf_counter()
        model = method.model(problem, setting, alpha).fit(X, y)
        fitted = time.perf_counter()
        predictions = model.predict(X_test)
        predicted = time.perf_counter()
    return {
        "error": error_of(problem, predictions, y_test) * (unit or 1),
        "fit_seconds": fitted - chosen,
        "total_seconds": fitted - start,
        "predict_seconds": (predicted - fitted) * 10_000 / len(y_test),
        "peak_mib": meter.peak_mib,
        "train_rows": len(y),
        "columns": X.shape[1],
        "test_rows": len(y_test),
        "classes": problem.classes,
        "chosen": method.chosen(setting, alpha, model),
    }


def prepared(name, seed, rows=None):
    """Return scaled training and test rows and targets in random order, and the variance of the targets.

    Regression targets are scaled to mean 0 and variance 1; labels become 0, 1, …, and the variance is then None.
    """
    data = load(name)
    rng = np.random.default_rng(seed)
    X, y = data.X.reshape(len(data.X), -1), data.y
    if data.X_test is not None:
        order = rng.permutation(len(y))
        X, y, X_test, y_test = X[order], y[order], data.X_test.reshape(len(data.X_test), -1), data.y_test
    else:
        order = rng.permutation(len(y))
        if name == "elevation":
            areas = np.sqrt(np.maximum(1 - X[:, 2] ** 2, 0)) + 1e-9  # areas of the grid cells
            order = rng.choice(len(y), 60_000, replace=False, p=areas / areas.sum())
            y = y / 1000
        n = len(order) * 3 // 4
        X, X_test, y, y_test = X[order[:n]], X[order[n:]], y[order[:n]], y[order[n:]]
    X, y, X_test, y_test = X[:rows], y[:rows], X_test[:rows], y_test[:rows]
    X, X_test = scaled(X, X_test)
    if data.task == "classification":
        classes = np.unique(np.concatenate([y, y_test]))
        return X, np.searchsorted(classes, y), X_test, np.searchsorted(classes, y_test), None
    mean, deviation = y.mean(), y.std()
    return X, (y - mean) / deviation, X_test, (y_test - mean) / deviation, float(deviation**2)


def scaled(X, X_test):
    """Standardize columns by the training rows, except columns of zeros and ones; scale images to [0, 1]."""
    from sklearn.preprocessing import StandardScaler

    if X.dtype == np.uint8:
        return X.astype(np.float32) / 255, X_test.astype(np.float32) / 255
    scaler = StandardScaler().fit(X)
    binary = np.all((X == 0) | (X == 1), axis=0)
    scaler.mean_[binary], scaler.scale_[binary] = 0, 1
    return scaler.transform(X).astype(np.float32), scaler.transform(X_test).astype(np.float32)


def warm_rows(y):
    """Return the indices of the rows for the first fit; they cover the first 20 classes."""
    firsts = np.unique(y, return_index=True)[1][:20]
    return np.union1d(firsts, np.arange(min(WARM_ROWS, len(y))))


# The report.


def report(runs):
    parts = [PROTOCOL, method_table()]
    parts += [data_table(runs, data) for data in names_of(runs, "data")]
    return "\n\n".join([*parts, summary(runs)])


def method_table():
    rows = [(_label(name), method.about) for name, method in METHODS.items()]
    table = markdown_table(("method", "hyper-parameters"), rows)
    return table.replace("---:", "---")


def data_table(runs, data):
    """Return the table of one data set."""
    runs = select(runs, data=data)
    about = next((run for run in runs if "error" in run), None)
    if about is None:
        return f"### {data}\n\nNo method finished."
    best = min(errors_of(runs).values())
    unit = "misclassified, %" if about["classes"] else f"mean squared error, {UNITS.get(data, '')}".rstrip(", ")
    n = max(run["train_rows"] for run in runs if "error" in run)
    rows = []
    seeds = seeds_of(runs)
    for name in METHODS:
        mine = select(runs, method=name)
        finished = [run for run in mine if "error" in run and run["seed"] in seeds]
        if name not in errors_of(runs):
            reason = mine[0].get("reason", f"did not finish in {mine[0]['limit']} s") if mine else "not measured"
            rows.append((_label(name), reason, "–", "–", "–", "–", "–"))
            continue
        error = mean_deviation(finished, "error", digits(best))
        if errors_of(runs)[name] == best:
            error = f"**{error}**"
        numbers = [short(np.mean([run[key] for run in finished])) for key in _COLUMNS]
        rows.append((_label(name), error, *numbers, finished[0]["chosen"] or "–"))
    header = ("", unit, "fit, s", "total, s", "predict, s", "memory, MiB", "chosen (first seed)")
    intro = (
        f"{n} training rows, {about['test_rows']} test rows, {about['columns']} columns, "
        f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    )
    capped = sorted({_label(r["method"]) for r in runs if r.get("train_rows", n) < n})
    notes = [ABOUT[data]] if data in ABOUT else []
    notes += [f"on {EXACT_ROWS} training rows: {', '.join(capped)}"] if capped else []
    return f"### {data}\n\n{'; '.join([intro, *notes])}.\n\n{markdown_table(header, rows)}"


_COLUMNS = ("fit_seconds", "total_seconds", "predict_seconds", "peak_mib")


def _label(name):
    method = METHODS[name]
    return f"• ntkit {method.label}" if method.ours else method.label


def names_of(runs, key):
    """Return the values of `key` in the runs, in the order of SEEDS or METHODS."""
    order = list(SEEDS if key == "data" else METHODS)
    there = {run[key] for run in runs}
    return [name for name in order if name in there] + sorted(there - set(order))


def digits(value):
    """Return the number of decimals that shows three significant digits."""
    return int(np.clip(2 - np.floor(np.log10(value)), 0, 4)) if value > 0 else 2


def short(value):
    return f"{value:.{digits(value) if value < 100 else 0}f}"


def seeds_of(runs):
    """Return the seeds that all methods of a data set share, so that means are comparable."""
    there = [{run["seed"] for run in select(runs, method=name)} for name in names_of(runs, "method")]
    return set.intersection(*there) if there else set()


def errors_of(runs):
    """Return the mean error on a data set over the shared seeds, for each method that finished all of them."""
    errors, seeds = {}, seeds_of(runs)
    for name in names_of(runs, "method"):
        mine = [run for run in select(runs, method=name) if run["seed"] in seeds]
        if mine and all("error" in run for run in mine):
            errors[name] = float(np.mean([run["error"] for run in mine]))
    return errors


def ratios(runs):
    """Return errors relative to the lowest of each data set; misclassification rates get half a test row added."""
    found = {}
    for data in names_of(runs, "data"):
        mine = select(runs, data=data)
        errors = errors_of(mine)
        if errors:
            about = next(run for run in mine if "error" in run)
            half = 50 / about["test_rows"] if about["classes"] else 0.0
            best = min(errors.values())
            found[data] = {name: (error + half) / (best + half) for name, error in errors.items()}
    return found


def standings(runs):
    """Return mean, median and worst ratio, wins and data sets of each method, sorted by data sets, then mean."""
    found = {}
    for name in names_of(runs, "method"):
        values = np.array([mine[name] for mine in ratios(runs).values() if name in mine])
        if len(values):
            mean = float(np.exp(np.log(values).mean()))
            found[name] = {"mean": mean, "median": float(np.median(values)), "worst": float(values.max())}
            found[name] |= {"best": int((values == 1).sum()), "count": len(values)}
    # Methods that lack data sets come last: their means are over other data sets.
    return dict(sorted(found.items(), key=lambda item: (-item[1]["count"], item[1]["mean"])))


def summary(runs):
    rows = []
    for name, mine in standings(runs).items():
        seconds = [run["total_seconds"] for run in select(runs, method=name) if "error" in run]
        numbers = [f"{mine[key]:.2f}" for key in ("mean", "median", "worst")]
        rows.append((_label(name), *numbers, mine["best"], mine["count"], short(float(np.median(seconds)))))
    header = ("", "mean", "median", "worst", "wins", "data sets", "median total, s")
    return (
        "### Summary\n\nError relative to the best method on each data set (1 is the best): geometric mean, median and "
        "worst over data sets. “Wins” counts the data sets with the lowest error, ties included. Half a test row is "
        "added to the number of misclassified rows, since some are 0. “Total” is the time of tuning and fit.\n\n"
        + markdown_table(header, rows)
    )


# Pictures.


def plot(runs, folder):
    return [_plot_ratios(runs, folder), _plot_times(runs, folder)]


def _plot_ratios(runs, folder):
    """Plot errors relative to the lowest; larger ratios than RATIO_LIMIT are drawn at RATIO_LIMIT."""
    plt = pyplot()
    names = list(standings(runs))[::-1]
    found = ratios(runs)
    figure, ax = plt.subplots(figsize=(8, 0.32 * len(names) + 1.6), constrained_layout=True)
    marks = "osD^v<>Pphd*X"
    for number, (data, mine) in enumerate(found.items()):
        there = [name for name in names if name in mine]
        places = [names.index(name) + 0.3 * (number / max(len(found) - 1, 1) - 0.5) for name in there]
        color = plt.cm.tab20(number)
        ax.plot(
            [min(mine[name], RATIO_LIMIT) for name in there],
            places,
            marks[number % 13],
            color=color,
            ms=5,
            alpha=0.85,
            label=data,
        )
    for place, name in enumerate(names):
        ax.axhline(place, color="0.93", lw=6 if METHODS[name].ours else 0.6, zorder=0)
    ax.set(xscale="log", xlabel="error / lowest error on the data set")
    ax.set_yticks(range(len(names)), [_label(name) for name in names])
    ticks = [t for t in (1, 1.2, 1.5, 2, 3, 5, RATIO_LIMIT) if t <= 1.05 * ax.get_xlim()[1]]
    ax.set_xticks(ticks, [f"{tick:g}" if tick < RATIO_LIMIT else f"≥ {RATIO_LIMIT}" for tick in ticks])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(Path(folder) / "peers_ratios.png")
    plt.close(figure)
    return "peers_ratios.png"


def _plot_times(runs, folder):
    """Plot error against seconds; errors above twice the lowest are drawn at the upper edge."""
    plt = pyplot()
    names = names_of(runs, "data")
    rows = -(-len(names) // 3)
    figure, axes = plt.subplots(
        rows, 3, figsize=(9, 2.5 * rows + 0.9), constrained_layout=True, sharex=True, squeeze=False
    )
    there = names_of(runs, "method")
    marks = dict(zip(there, "os^vD<>PphdX*H81234", strict=False))
    colors = {name: plt.cm.autumn(0.7 * k / 5) for k, name in enumerate(n for n in there if METHODS[n].ours)}
    for ax, data in zip(axes.flat, names, strict=False):
        mine = select(runs, data=data)
        top = 2 * min(errors_of(mine).values(), default=0) or np.inf
        for name, error in errors_of(mine).items():
            seconds = np.mean([run["total_seconds"] for run in select(mine, method=name)])
            ax.plot(seconds, min(error, top), marks[name], color=colors.get(name, "0.45"), ms=6, alpha=0.9)
        about = next((run for run in mine if "error" in run), {"classes": 0})
        ax.set(title=data, xscale="log", ylabel="misclassified, %" if about["classes"] else "mean squared error")
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel("total seconds")
    handles = [plt.Line2D([], [], ls="", marker=marks[n], color=colors.get(n, "0.45"), label=_label(n)) for n in there]
    figure.legend(handles=handles, ncols=3, frameon=False, fontsize=8, loc="outside lower center")
    figure.savefig(Path(folder) / "peers_times.png")
    plt.close(figure)
    return "peers_times.png"


if __name__ == "__main__":
    if "--worker" in sys.argv:
        warnings.simplefilter("ignore")  # a grid of penalties contains ill-conditioned problems
        try:
            print(json.dumps(worker(**json.loads(sys.argv[-1]))))
        except UnavailableError as reason:
            print(json.dumps({"unavailable": str(reason)}))
    else:
        main(__name__)
