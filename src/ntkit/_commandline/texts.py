"""Reports of the commands as text."""

from __future__ import annotations

from typing import Any

from ntkit._commandline.writing import number, text_table

_OTHER = {"regression": "classification", "classification": "regression"}


def fit(report: dict[str, Any]) -> str:
    """What was tried, what was chosen, how good it is."""
    held_out = f", {report['n_test']} held out to test on" if report["n_test"] else ""
    columns = f"{report['n_columns']} columns, {report['n_features']} after encoding"
    parts = [f"Table: {report['n_rows']} rows{held_out}; {columns}.", _task(report), ""]
    if report["results"]:
        error = "MSE" if report["task"] == "regression" else "error"
        ordered = sorted(report["results"], key=lambda r: (r["rung"], r["loss"]))
        rows = [
            [r["name"], r["n_rows"], r["n_components"], r["error"], r["alpha"], f"{r['seconds']:.2f}"] for r in ordered
        ]
        parts += [text_table(["kernel", "rows", "features", error, "alpha", "seconds"], rows), ""]
    best = report["best"]
    parts += [f"Chosen: {best['name']}, {best['n_components']} features, alpha {number(best['alpha'])}."]
    if report["test"]:
        parts += ["", _scores(report["test"], "on held-out rows")]
    size = report["model_bytes"] / 2**20
    parts += ["", f"Model: {report['model']} ({size:.1f} MiB), fitted on all rows; {report['seconds']:.1f} s in all."]
    return "\n".join(parts)


def predict(report: dict[str, Any]) -> str:
    """Where the predictions are."""
    return f"{report['n_rows']} predictions: {report['output']} (columns {', '.join(report['columns'])})."


def evaluate(report: dict[str, Any]) -> str:
    """Scores beside those of a constant."""
    return f"{report['model']} on {report['n_rows']} rows of {report['data']}:\n{_scores(report, report['task'])}"


def compare(report: dict[str, Any]) -> str:
    """All maps in one table."""
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
    parts += [f"Smallest error: {best['kernel']}, {best['map'] or 'the columns'}, {best['n_components']} features."]
    parts += [f"Written: {', '.join(report['files'])}"] if report["files"] else []
    return "\n".join(parts)


def _task(report: dict[str, Any]) -> str:
    task = report["task"]
    if not report["task_reason"]:
        return f"Task: {task}."
    return f"Task: {task}, as {report['task_reason']} (otherwise say --task {_OTHER[task]})."


def _scores(report: dict[str, Any], title: str) -> str:
    rows = [[name, number(value), number(report["baseline"][name])] for name, value in report["scores"].items()]
    text = text_table([title, "model", "constant"], rows)
    if report.get("unseen_class_rows"):
        text += f"\n{report['unseen_class_rows']} rows are of classes that the model has not seen: counted as errors."
    return text
