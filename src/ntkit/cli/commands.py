"""The commands as functions. Each takes its options and returns a report: plain data that can be written as JSON."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ntkit._files import replacing
from ntkit.cli.data import (
    STREAM,
    Table,
    as_numbers,
    check_file,
    errors_in,
    in_message,
    load_model,
    load_table,
    name_of,
    read,
    text_columns,
    write_frame,
)
from ntkit.cli.demo import run as demo
from ntkit.cli.progress import PhaseBar
from ntkit.cli.scores import evaluate_model, evaluate_trees
from ntkit.tables import PARQUET_ENDINGS, TableEncoder, level_text

__all__ = ["compare", "demo", "evaluate", "fit", "predict"]

_MAX_TREES_SIZE = 10**8  # rows × columns × classes; above this size, trees would take minutes and are skipped
_MAX_ONE_THREAD_SIZE = 10**7  # rows × columns × classes; up to this size, trees take seconds on one thread
# First guesses of the durations of the phases after the search, as fractions of the time budget.
_PHASE_FRACTIONS = {"test": 0.07, "final fit": 0.25}


def fit(
    *, data: Path, target: str, output: Path, task: str, time_budget: float, components: int, test: float,
    drop: Sequence[str] | None, drop_missing_target: bool, seed: int, kernel: str, depth: int | None,
    lengthscale: float | None, statistics: bool, progress: bool, plot: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Search for a model, test it, fit it on all rows and save it."""
    from ntkit.persistence import save

    check_file(output)
    if plot is not None:
        _check_plot(plot)
    began = time.perf_counter()
    table = load_table(data, target, task, drop, drop_missing_target, test, seed)
    with errors_in(data):
        # Fitted on all rows: invalid columns are found before the search, and the final fit has the same columns.
        encoder = TableEncoder().fit(table.X)
    options = {"time_budget": time_budget, "n_components": components, "random_state": seed}
    maps = candidates(kernel, depth, lengthscale, len(encoder.get_feature_names_out()))
    phases = [("search", max(time_budget, 1.0)), *((name, f * time_budget) for name, f in _PHASE_FRACTIONS.items())]
    bar = PhaseBar(phases if len(table.test) else phases[:1], shown=progress)
    with bar.running():
        model, search, scores = _search(table, encoder, options, maps, bar)
    save(model, output, statistics=statistics)
    columns = _importances(search, encoder)
    if plot is not None and columns is None:
        warnings.warn(
            f"There is no plot: the chosen model, {search.best_name_}, has no column importances.", stacklevel=2
        )
        plot = None
    if plot is not None and columns is not None:
        _plot_importances(columns, plot)
    best = model.model_
    return {
        "command": "fit",
        "data": name_of(data),
        "target": target,
        "task": table.task,
        "task_reason": table.reason,
        "n_rows": len(table.y),
        "n_train": len(table.train),
        "n_test": len(table.test),
        "n_columns": int(table.X.shape[1]),
        "n_features": len(encoder.get_feature_names_out()),
        "n_classes": len(np.unique(table.y)) if table.task == "classification" else None,
        "results": search.results_,
        "tried": search.summary_,
        "best": {"name": search.best_name_, "n_components": _n_components(best), "alpha": float(best.alpha_)},
        "columns": columns,
        "plot": None if plot is None else str(plot),
        "test": scores,
        "seconds": time.perf_counter() - began,
        "model": str(output),
        "model_bytes": output.stat().st_size,
    }


def _search(
    table: Table, encoder: TableEncoder, options: dict[str, Any], maps: dict[str, Any] | None, bar: PhaseBar
) -> tuple[Any, Any, dict[str, Any] | None]:
    """Return the model fitted on all rows, the search, and the test scores of the model fitted on training rows."""
    from sklearn.base import clone
    from sklearn.frozen import FrozenEstimator

    from ntkit.models import (
        FeatureRidgeSearch,
        FeatureRidgeSearchClassifier,
        TableClassifier,
        TableRegressor,
    )

    regression = table.task == "regression"
    kind = TableRegressor if regression else TableClassifier
    learner = (FeatureRidgeSearch if regression else FeatureRidgeSearchClassifier)(candidates=maps, **options)
    model = kind(learner, encoder=FrozenEstimator(encoder))
    y, train, test = table.y, table.train, table.test
    with bar.phase("search"):
        model.fit(table.rows(train), y[train])
    search, scores = model.model_, None
    best = search.best_estimator_
    if len(test):
        bar.expected["final fit"] = _final_fit_seconds(search)
        with bar.phase("test"):
            scores = evaluate_model(model, table.rows(test), y[test], y[train])
            scores |= {"trees": _trees(table, encoder)}
        with bar.phase("final fit"):
            model = model.set_params(learner=clone(best)).fit(table.X, y)
            best = model.model_
    model.model_ = best  # the model alone, without the other candidates
    return model.set_params(learner="search", encoder=None, **options), search, scores


def _final_fit_seconds(search: Any) -> float:
    """Estimate the duration of the final fit by the last fits of the chosen models in the search."""
    names = [part.partition(" ")[2] for part in search.best_name_.split(" + ")] + [search.best_name_]
    last = {result["name"]: result["seconds"] for result in search.results_}
    return max(sum(seconds for name, seconds in last.items() if name in names), 1.0)


def _trees(table: Table, encoder: TableEncoder) -> dict[str, Any] | None:
    """Return the scores of gradient-boosted trees on the held-out rows, or None if they would take minutes."""
    n_classes = 1 if table.task == "regression" else len(np.unique(table.y))
    if len(table.train) * len(encoder.get_feature_names_out()) * n_classes > _MAX_TREES_SIZE:
        return None
    rows = [(encoder.transform(table.rows(some)), table.y[some]) for some in (table.train, table.test)]
    # OpenMP threads wait for each other by spinning. On a busy machine one thread is many times faster.
    threads = 1 if rows[0][0].size * n_classes <= _MAX_ONE_THREAD_SIZE else None
    with warnings.catch_warnings(), threadpool_limits(threads, user_api="openmp"):
        warnings.simplefilter("ignore")  # about bins of columns with few values
        return evaluate_trees(table.task, rows[0], rows[1])


def _n_components(model: Any) -> int:
    """Return the number of features of a model; for an average, the sum over its models. Trees have none."""
    models = [each for each in getattr(model, "estimators_", [model]) if hasattr(each, "coef_")]
    return sum(int(each.coef_.shape[-1]) for each in models)


def _importances(search: Any, encoder: TableEncoder) -> dict[str, float] | None:
    """Return the importance of each column of the table, largest first, or None for a model without a metric."""
    found = getattr(search, "feature_importances_", None)
    if found is None:
        return None
    totals: dict[str, float] = {}
    for name, share in zip(encoder.get_source_names_out(), found, strict=True):
        totals[str(name)] = totals.get(str(name), 0.0) + float(share)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _check_plot(path: Path) -> None:
    from ntkit.display import check_matplotlib

    check_file(path)
    check_matplotlib("ntkit fit --plot")


def _plot_importances(columns: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    from ntkit.cli.page import as_png
    from ntkit.display import ImportanceDisplay

    figure = Figure(figsize=(6.4, 1.0 + 0.26 * min(len(columns), 21)), layout="constrained")
    ImportanceDisplay.from_values(list(columns.values()), names=list(columns), ax=figure.subplots())
    with replacing(path) as file:
        file.write(as_png(figure))


def predict(*, model: Path, data: Path, output: Path, proba: bool, std: bool, keep: bool = False) -> dict[str, Any]:
    """Write one prediction for each row of the table."""
    import pandas as pd

    if output != STREAM:
        check_file(output)
    if output.name.lower().endswith(PARQUET_ENDINGS):
        import pyarrow  # noqa: F401 (a missing package is reported before the work)
    estimator = load_model(model)
    classifier = hasattr(estimator, "classes_")
    if proba and not classifier:
        raise ValueError("--proba needs a classification model, and this is a regression model. Use --std instead.")
    if std and classifier:
        raise ValueError("--std needs a regression model, and this is a classification model. Use --proba instead.")
    text = text_columns(estimator)
    X, _, kept = read(data, text=text, keep=keep)
    columns = _predictions(estimator, X, data, proba=proba, std=std)
    frame = pd.DataFrame(columns)
    if kept is not None:
        twice = [name for name in frame if name in kept]
        if twice:
            where = in_message(data)
            raise ValueError(f"{where} has a column '{twice[0]}' already. Rename the column, or omit --keep.")
        frame = pd.concat([kept.reset_index(drop=True), frame], axis=1)
    write_frame(frame, output)
    return {
        "command": "predict",
        "model": str(model),
        "data": name_of(data),
        "n_rows": len(X),
        "columns": list(frame),
        "output": str(output),
    }


def _predictions(estimator: Any, X: Any, data: Path, *, proba: bool, std: bool) -> dict[str, Any]:
    """Return columns of predictions, with probabilities or standard deviations on request."""
    columns: dict[str, Any] = {}
    with errors_in(data):
        columns["prediction"] = estimator.predict(X)
    if std:  # outside errors_in: a model without statistics is not an error in the data
        columns["std"] = estimator.predict(X, return_std=True)[1]
    if proba:
        P = estimator.predict_proba(X)
        columns |= {f"probability {c}": P[:, i] for i, c in enumerate(estimator.classes_)}
    return columns


def evaluate(*, model: Path, data: Path, target: str, drop_missing_target: bool) -> dict[str, Any]:
    """Return the scores of a saved model on a table with targets, and the scores of the best constant."""
    estimator = load_model(model)
    text = text_columns(estimator)
    classes = getattr(estimator, "classes_", None)
    labels_are_text = classes is not None and classes.dtype.kind not in "biuf"
    X, y, _ = read(
        data, target, drop_missing_target=drop_missing_target, text=text | ({target} if labels_are_text else set())
    )
    with errors_in(data):
        remedy = "The model predicts numbers."
        y = np.array([level_text(value) for value in y]) if labels_are_text else as_numbers(y, target, remedy)
        scores = evaluate_model(estimator, X, y, y)
    return {
        "command": "evaluate",
        "model": str(model),
        "data": name_of(data),
        "target": target,
        "task": "regression" if classes is None else "classification",
        "n_rows": len(y),
        **scores,
    }


def compare(
    *, data: Path, target: str, task: str, components: Sequence[int], output: Path | None, seeds: int, seed: int,
    test: float, max_exact: int, drop: Sequence[str] | None, drop_missing_target: bool, progress: bool,
    command_line: str,
) -> dict[str, Any]:  # fmt: skip
    """Compare all maps on one table. With `output`, also write a plot and an HTML page."""
    from ntkit.cli import comparison, page

    if output is not None:
        page.check_folder(output)
        page.warn_without_plots()
    table = load_table(data, target, task, drop, drop_missing_target, test, seed)
    task, y = table.task, table.y[table.train]
    with errors_in(data):
        encoder = TableEncoder().fit(table.rows(table.train))
        rows = comparison.TrainTest(
            *(encoder.transform(table.rows(table.train)), y),
            *(encoder.transform(table.rows(table.test)), table.y[table.test]),
        )
    results = comparison.compare(
        rows, task, sorted(components), seeds=range(seed, seed + seeds), max_exact=max_exact, progress=progress
    )
    classes, counts = np.unique(y, return_counts=True)
    constant = np.full(len(table.test), y.mean() if task == "regression" else classes[counts.argmax()])
    report: dict[str, Any] = {
        "command": "compare",
        "command_line": command_line,
        "data": name_of(data, short=True),
        "target": target,
        "task": task,
        "task_reason": table.reason,
        "error_label": "test MSE" if task == "regression" else "test error rate",
        "facts": {
            "file": name_of(data, short=True),
            "target": f"{target} ({task})",
            "training rows": len(y),
            "test rows": len(table.test),
            "columns": int(table.X.shape[1]),
            "columns after encoding": int(rows.X.shape[1]),
            **({"classes": len(np.unique(table.y))} if task == "classification" else {}),
            "error of a constant": comparison.error_of(constant, rows.y_test, task),
            "seeds per map": seeds,
        },
        "results": results,
        "best": min(results, key=lambda r: r["error"]),
        "best_kernel": min((r for r in results if r["kernel"] != "trees"), key=lambda r: r["error"]),
        "versions": page.versions(),
        "files": [],
    }
    if output is not None:
        report["files"] = page.write(report, output)
    return report


def candidates(kernel: str, depth: int | None, lengthscale: float | None, n_features: int) -> dict[str, Any] | None:
    """Return the feature maps to search, or None for the default maps."""
    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures
    from ntkit.models.search import default_candidates

    if kernel == "auto" and depth is None and lengthscale is None:
        return None
    # Only the defaults for sparse rows have Gaussian kernels of several length scales.
    found = default_candidates(n_features, sparse=kernel == "gaussian")
    if depth is not None:
        found = {name: value for name, value in found.items() if not name.startswith("ntk")}
        found[f"ntk depth={depth}"] = NTKFeatures(depth=depth, bias="auto")
        found[f"ntk depth={depth} bias=0"] = NTKFeatures(depth=depth)
    if lengthscale is not None:
        found = {name: value for name, value in found.items() if not name.startswith("gaussian")}
        found[f"gaussian lengthscale={lengthscale:g}"] = RandomFourierFeatures(lengthscale=lengthscale)
    return {name: value for name, value in found.items() if kernel == "auto" or name.startswith(kernel)}
