"""Reports of the commands, as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntkit.cli.demo_rows import size
from ntkit.cli.scores import is_better

_OTHER = {"regression": "classification", "classification": "regression"}


def fit(report: dict[str, Any]) -> str:
    """Describe the search, the chosen model, its test scores and its file."""
    held_out = f", {report['n_test']} of them held out for the test" if report["n_test"] else ""
    columns = f"{report['n_columns']} columns, {report['n_features']} after encoding"
    parts = [f"Table: {report['n_rows']} rows{held_out}; {columns}.", _task(report), ""]
    if report["results"]:
        error = "MSE" if report["task"] == "regression" else "error"
        ordered = sorted(report["results"], key=lambda r: (r["round"], r["loss"]))
        rows = [
            [r["name"], r["round"] + 1, r["n_rows"], r["n_components"], r["error"], r["alpha"], f"{r['seconds']:.2f}"]
            for r in ordered
        ]
        parts += [text_table(["kernel", "round", "rows", "features", error, "alpha", "seconds"], rows), ""]
    best = report["best"]
    parts += [f"Chosen: {best['name']}, {best['n_components']} features, alpha {number(best['alpha'])}"]
    parts[-1] += f" ({report['tried']})."
    if report["columns"]:
        parts += ["", _columns(report["columns"])]
    if report["test"]:
        parts += ["", _scores(report["test"], "on held-out rows"), *_verdict(report)]
    file = f"{report['model']} ({size(report['model_bytes'])})"
    parts += ["", f"Model: {file}, fitted on all rows. Total time: {report['seconds']:.1f} s."]
    return "\n".join(parts)


def _verdict(report: dict[str, Any]) -> list[str]:
    """Return a line that says that trees are better, if they are."""
    trees, task = report["test"].get("trees"), report["task"]
    if not trees or not is_better(task, trees["scores"], report["test"]["scores"]):
        return []
    return [f"Gradient-boosted trees are better on these rows: consider scikit-learn's {trees['name']}."]


def _columns(columns: dict[str, float], n_shown: int = 8) -> str:
    """List the most important columns with bars."""
    shown = list(columns.items())[:n_shown]
    width = max(len(name) for name, _ in shown)
    top = max(share for _, share in shown) or 1.0
    lines = [f"  {name.ljust(width)} {share:6.1%} {'█' * round(24 * share / top)}".rstrip() for name, share in shown]
    if len(columns) > n_shown:
        rest = sum(list(columns.values())[n_shown:])
        lines.append(f"  {f'{len(columns) - n_shown} others'.ljust(width)} {rest:6.1%}")
    return "\n".join(["Column importances (shares of the mean squared gradient, columns standardized):", *lines])


def predict(report: dict[str, Any]) -> str:
    """Name the file and the columns of the predictions. Empty if they went to standard output."""
    if report["output"] == "-":
        return ""
    return f"Wrote {report['n_rows']} rows to {report['output']}, with the columns {', '.join(report['columns'])}."


def evaluate(report: dict[str, Any]) -> str:
    """Show the scores of the model and of the best constant."""
    return f"{report['model']} on {report['n_rows']} rows of {report['data']}:\n{_scores(report, report['task'])}"


def compare(report: dict[str, Any]) -> str:
    """Show all methods in one table."""
    facts = "\n".join(f"{name}: {number(value)}" for name, value in report["facts"].items())
    rows = [
        [r["kernel"], r["map"] or "–", r["n_components"], r["error"], r["error_std"]]
        + [f"{r[key]:.3f}" for key in ("fit_seconds", "predict_seconds")]
        for r in report["results"]
    ]
    header = ["kernel", "map", "features", report["error_label"], "±", "fit s", "predict s"]
    if all(r["error_std"] is None for r in report["results"]):
        header, rows = [h for h in header if h != "±"], [[*row[:4], *row[5:]] for row in rows]
    best = report["best"]
    parts = [facts, _task(report), "", text_table(header, rows, left=2), ""]
    parts += [f"Smallest error: {_method(best)}."]
    if best["kernel"] == "trees":
        ours = report["best_kernel"]
        text = f"Gradient-boosted trees are better on these rows than all kernels: {number(best['error'])} against "
        parts += [f"{text}{number(ours['error'])} ({_method(ours)})."]
    parts += [f"Wrote {' and '.join(report['files'])}."] if report["files"] else []
    return "\n".join(parts)


def _method(result: dict[str, Any]) -> str:
    unit = "trees" if result["kernel"] == "trees" else "features"
    return f"{result['kernel']}, {result['map'] or 'original columns'}, {result['n_components']} {unit}"


def demo(report: dict[str, Any]) -> str:
    """Show the tables of both parts of the demo."""
    rows = [
        [r["method"], r["chosen"], f"{r['accuracy']:.2%}", f"{r['fit_seconds']:.2f}", f"{r['search_seconds']:.2f}"]
        for r in report["results"]
    ]
    parts = [
        _demo_rows(report),
        "",
        (
            f"2. Handwritten digits: {report['n_train']} training rows, {report['n_test']} test rows, "
            f"{report['n_features']} columns; {report['n_components']} features."
        ),
        "",
        text_table(["method", "chosen", "test accuracy", "fit s", "search s"], rows, left=2),
        "",
        "Accuracies vary by about 0.3 % by chance.",
    ]
    parts += [f"Plots: {', '.join(report['files'])}"] if report["files"] else []
    return "\n".join(parts)


def _demo_rows(report: dict[str, Any]) -> str:
    """Show memory, time and error as the rows grow."""
    rows = []
    for r in report["rows"]:
        exact, features = r["exact"], r["features"]
        if exact:
            cells = [f"{exact['fit_seconds']:.2f}", f"{exact['error']:.3f}"]
        elif not r["exact_fits"]:
            cells = ["does not fit", "–"]
        else:
            seconds = r["exact_expected_seconds"]
            cells = [f"about {seconds / 60:.0f} min" if seconds else "–", "–"]
        peak = "–" if features["peak_bytes"] is None else size(features["peak_bytes"])
        cells += [peak, f"{features['fit_seconds']:.2f}", f"{features['error']:.3f}"]
        rows.append([f"{r['n_rows']:,}".replace(",", " "), size(r["matrix_bytes"]), *cells])
    memory = f"; this machine has {size(report['memory_bytes'])}" if report["memory_bytes"] else ""
    header = ["rows", "exact: matrix", "fit s", "error", "features: memory", "fit s", "error"]
    return (
        f"1. More rows than a kernel matrix can hold: synthetic rows of {report['rows_columns']} columns, "
        f"{report['rows_components']} features{memory}.\n\n"
        + text_table(header, rows, left=0)
        + "\n\nErrors are mean squared errors on test rows; predicting the mean has error 1."
    )


def _task(report: dict[str, Any]) -> str:
    task = report["task"]
    if not report["task_reason"]:
        return f"Task: {task}."
    text = f"Task: {task}, because {report['task_reason']}"
    # Text cannot be regressed on, and fractions are hardly ever classes.
    return f"{text} (otherwise use --task {_OTHER[task]})." if "whole numbers" in text else f"{text}."


def _scores(report: dict[str, Any], title: str) -> str:
    others = {"constant": report["baseline"]}
    trees = report.get("trees")
    if trees:
        others[trees["name"]] = trees["scores"]
    rows = [
        [name, number(value), *(number(other[name]) for other in others.values())]
        for name, value in report["scores"].items()
    ]
    text = text_table([title, "model", *others], rows)
    if report.get("unseen_class_rows"):
        text += f"\n{report['unseen_class_rows']} rows have classes that the model has not seen; they count as errors."
    return text


def number(value: Any, digits: int = 4) -> str:
    """Format a number with `digits` significant digits; other values become plain text.

    Examples
    --------
    >>> [number(v) for v in (0.123456, 12345.678, 1e-7, 7, None, "a")]
    ['0.1235', '12346', '1.000e-07', '7', '–', 'a']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not isinstance(value, float | np.floating):
        return str(value)
    size = abs(float(value))
    if size == 0 or 1e-3 <= size < 1e7:
        decimals = digits - 1 - (math.floor(math.log10(size)) if size else 0)
        return f"{value:.{max(decimals, 0)}f}"
    return f"{value:.{digits - 1}e}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1) -> str:
    """Format rows under a header. The first `left` columns are aligned to the left, the others to the right.

    Examples
    --------
    >>> print(text_table(["kernel", "error"], [["linear", 0.51234], ["ntk", 12.25]]))
    kernel  error
    linear  0.512
    ntk    12.250
    """
    columns = [_column([row[i] for row in rows]) for i in range(len(header))]
    widths = [max(map(len, [name, *column])) for name, column in zip(header, columns, strict=True)]
    lines = []
    for line in [list(header), *map(list, zip(*columns, strict=True))]:
        parts = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append(" ".join(parts).rstrip())
    return "\n".join(lines)


def _column(values: Sequence[Any]) -> list[str]:
    """Format the values of a column, with the same number of decimals if their sizes are similar."""
    sizes = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v) and v != 0]
    if not sizes or max(sizes) >= 1e5 * min(sizes) or min(sizes) < 1e-4 or max(sizes) >= 1e7:
        return [number(value, 3) for value in values]
    low, high = (math.floor(math.log10(f(sizes))) for f in (min, max))
    decimals = max(2 - low, 3 - high, 0)
    return [f"{v:.{decimals}f}" if isinstance(v, float) and math.isfinite(v) else number(v) for v in values]


def to_json(value: Any) -> str:
    """Return JSON on one line. NaN and infinities become null."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
