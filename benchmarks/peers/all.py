"""Run all comparisons of ntkit with other libraries, and write the page that shows them.

    python benchmarks/peers/all.py            measure the missing cases and write docs/results/peers.md
    python benchmarks/peers/all.py --page     only write the page, from existing results
    python benchmarks/peers/all.py --quick    smoke test of some minutes

An interrupted run resumes where it stopped. Quick runs write to benchmarks/peers/results/quick/peers.md.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from experiment import FailedCasesError, Runs, arguments, markdown_table, perform, results_file, select
from peers import kernels, scale, tables
from peers.methods import EXACT_ROWS, METHODS

HERE = Path(__file__).resolve().parent
INTRODUCTION = """\
ntkit is compared with scikit-learn's kernel approximations and exact kernels, gradient-boosted trees, xRFM and a linear
model on the same rows, with the same splits and one [protocol](#tables). Exact kernels are also compared with
neural-tangents. `make peers` runs the comparison and writes this page. The page shows losses as well as wins."""
MARGIN = 1.02  # errors whose ratio is below this count as equal
TREES = ("boosting", "lightgbm", "lightgbm_tuned", "catboost")
MAPS = ("rbf_sampler", "nystroem", "count_sketch")
KERNELS = ("kernel_ridge_ntk", "kernel_ridge_rbf")
OURS = tuple(name for name, method in METHODS.items() if method.ours)
OUR_MAPS = tuple(name for name in OURS if name not in KERNELS)


def main():
    """Run the comparisons, report what could not be measured, write the page; return the exit status."""
    args = options()
    failed = []
    for module in () if args.report else (tables, scale, kernels):
        try:
            missing = perform(module, args)
        except FailedCasesError as error:
            missing = error.missing
            failed.append(str(error))
        for reason in missing:
            print("not measured:", reason)
    folder = HERE / "results" / "quick" if args.quick else HERE.parents[1] / "docs" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    files = [Runs(results_file(module, quick=args.quick)) for module in (tables, scale, kernels)]
    (folder / "peers.md").write_text(page(*files, folder))
    print("written:", folder / "peers.md")
    return f"failed: {'; '.join(failed)}" if failed else 0


def options():
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--page", dest="report", action="store_true", help="only write the page, from existing results")
    return arguments(parser).parse_args()


def page(of_tables, of_scale, of_kernels, folder):
    """Return the page as MyST Markdown and write its pictures to the folder."""
    runs = list(of_tables)
    parts = ["# Comparison with other libraries", INTRODUCTION]
    if tables.ratios(runs):
        ratios, times = tables.plot(runs, folder)
        parts += [
            tables.summary(runs).replace("### Summary", "## Summary"),
            *machines(runs),
            f"![Errors of all methods relative to the lowest error on each data set]({ratios})",
            "## When not to use ntkit",
            lessons(runs),
            "## Tables",
            tables.PROTOCOL,
            tables.method_table(),
            f"![Error against time including tuning]({times})",
            "Errors above twice the lowest error of a data set are drawn at twice the lowest.",
            *(tables.data_table(runs, data) for data in tables.names_of(runs, "data")),
        ]
    else:
        parts += ["## Tables", "Not run."]
    if growth := list(of_scale):
        (picture,) = scale.plot(growth, folder)
        parts += ["## Scaling with the number of rows", f"![{scale.TITLE}]({picture})", scale.report(growth)]
    parts += ["## Exact kernels", kernels.report(list(of_kernels)), "## Machine and versions"]
    return "\n\n".join([*parts, environments(of_tables, of_scale, of_kernels)]) + "\n"


def machines(runs):
    """Say which methods were timed on which machine, if there are several machines."""
    timed = [run for run in runs if run["method"] in METHODS]
    found = {
        machine: {run["method"] for run in select(timed, hardware=machine)}
        for machine in {run["hardware"] for run in timed}
    }
    if len(found) < 2:
        return []
    parts = [
        f"{machine} ({_list([METHODS[name].label for name in METHODS if name in names])})"
        for machine, names in sorted(found.items())
    ]
    return [f"Times are comparable only between methods measured on the same machine: {'; '.join(parts)}."]


# When not to use ntkit.


def lessons(runs):
    """Return statements about where other methods are better or sufficient, computed from the runs."""
    found = [lesson(runs) for lesson in (trees, learned, linear, exact, maps, training, predicting)]
    intro = (
        f"These statements are computed from the runs below. Errors within {100 * (MARGIN - 1):.0f} % of each other "
        "count as equal. ntkit's best model is known only from the test error; `FeatureRidgeSearch` must choose "
        "without it."
    )
    return "\n\n".join([intro, *(text for text in found if text), where_best(runs)])


def trees(runs):
    better = _better(runs, TREES, OURS)
    return better and f"**Trees have a lower error** than ntkit's best model on {better}."


def learned(runs):
    better = _better(runs, ("xrfm",), OURS)
    return better and (
        f"**Learned features have a lower error.** xRFM, on at most {EXACT_ROWS} training rows, beats ntkit's best "
        f"model on {better}."
    )


def linear(runs):
    found = tables.ratios(runs)
    enough = [
        _pair(runs, data, "linear", best)
        for data, mine in found.items()
        if "linear" in mine and (best := _best(mine, OURS)) and mine["linear"] <= MARGIN * mine[best]
    ]
    return enough and f"**A linear model is enough** on {_list(enough)}."


def exact(runs):
    better = _better(runs, KERNELS, OUR_MAPS)
    return better and (
        f"**Exact kernels have a lower error than feature maps.** On at most {EXACT_ROWS} training rows, the better of "
        f"ntkit's and scikit-learn's `KernelRidge` beats ntkit's best feature map on {better}."
    )


def maps(runs):
    found = tables.ratios(runs)
    same = [
        _pair(runs, data, theirs, ours)
        for data, mine in found.items()
        if (theirs := _best(mine, MAPS)) and (ours := _best(mine, OURS)) and mine[theirs] <= MARGIN * mine[ours]
    ]
    return (
        same
        and f"**scikit-learn's tuned feature maps are as good** as ntkit's best model, or better, on {_list(same)}."
    )


def training(runs):
    return _slower(runs, "total_seconds", "search", TREES, "**Little time to train.** Tuning and fit take")


def predicting(runs):
    return _slower(
        runs,
        "predict_seconds",
        "search",
        ("linear", *TREES),
        "**Little time to predict.** Predictions for 10 000 rows take",
    )


def where_best(runs):
    found = tables.ratios(runs)
    best = [data for data, mine in found.items() if any(mine.get(name) == 1 for name in OURS)]
    return f"ntkit has the lowest error of all methods on {len(best)} of {len(found)} data sets" + (
        f": {', '.join(best)}." if best else "."
    )


def _best(ratios, names):
    there = [name for name in names if name in ratios]
    return min(there, key=ratios.get, default=None)


def _better(runs, theirs, ours):
    """List the data sets on which the best of `theirs` beats the best of `ours`, with both errors."""
    found = []
    for data, mine in tables.ratios(runs).items():
        one, other = _best(mine, theirs), _best(mine, ours)
        if one and other and MARGIN * mine[one] < mine[other]:
            found.append(_pair(runs, data, one, other))
    return _list(found)


def _pair(runs, data, *names):
    errors = tables.errors_of(select(runs, data=data))
    unit = " %" * any(run.get("classes") for run in select(runs, data=data))
    digits = tables.digits(min(error for error in errors.values()))
    shown = (f"{METHODS[name].label} {errors[name]:.{digits}f}{unit}" for name in names)
    return f"{data} ({', '.join(shown)})"


def _slower(runs, key, ours, theirs, text):
    """Return a statement if `ours` is slower than any of `theirs`, by medians over the data sets that all finished."""
    names = [ours, *(name for name in theirs if select(runs, method=name))]
    datas = [data for data, mine in tables.ratios(runs).items() if set(names) <= set(mine)]
    if not datas:
        return ""
    seconds = {
        name: float(np.median([np.mean([r[key] for r in select(runs, data=d, method=name)]) for d in datas]))
        for name in names
    }
    shown = {name: f"{METHODS[name].label} {tables.short(value)} s" for name, value in seconds.items()}
    faster = [shown[name] for name in names[1:] if seconds[name] < seconds[ours]]
    return faster and f"{text} {', '.join([shown[ours], *faster])} (medians over {len(datas)} data sets)."


def _list(items):
    return "; ".join(items)


def environments(*files):
    """Return the table of machines and versions."""
    known = []
    for file in files:
        known += [each for each in file.content["environments"] if each not in known]
    if not known:
        return "Nothing has been run."
    rows = [(key, *(each.get(key) or "–" for each in known)) for key in known[0]]
    return markdown_table(("", *range(1, len(known) + 1)), rows).replace("---:", "---")


if __name__ == "__main__":
    sys.exit(main())
