"""What the commands do: functions from options to a report (plain data, ready for JSON)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ntkit._files import replacing
from ntkit.cli.demo import run as demo
from ntkit.tables import TableEncoder, explain_task, level_text, read_table

__all__ = ["compare", "demo", "evaluate", "fit", "predict"]

_PARQUET = (".parquet", ".pq")


class Table(NamedTuple):
    """Rows and targets of a file, which rows to train and to test on, and why the task is what it is (or "")."""

    X: Any
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    task: str
    reason: str

    def rows(self, indices: np.ndarray) -> Any:
        """Some rows of X."""
        return self.X.iloc[indices] if hasattr(self.X, "iloc") else self.X[indices]


def fit(
    *, data: Path, target: str, output: Path, task: str, time_budget: float, components: int, test: float,
    drop: Sequence[str] | None, drop_missing_target: bool, seed: int, kernel: str, depth: int | None,
    lengthscale: float | None, statistics: bool, progress: bool, plot: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Search, test, refit on all rows, save."""
    from sklearn.base import clone
    from sklearn.pipeline import Pipeline

    from ntkit.models import FeatureRidgeSearch, FeatureRidgeSearchClassifier
    from ntkit.persistence import save

    _check_file(output)
    if plot is not None:
        _check_plot(plot)
    began = time.perf_counter()
    table = _load_table(data, target, task, drop, drop_missing_target, test, seed)
    y, train = table.y, table.train
    with _errors_in(data):
        whole = TableEncoder().fit(table.X)  # what it refuses is refused now, not after the search
    encoder = TableEncoder().fit(table.rows(train)) if len(table.test) else whole
    Z = encoder.transform(table.rows(train))
    search = (FeatureRidgeSearch if table.task == "regression" else FeatureRidgeSearchClassifier)(
        n_components=components,
        time_budget=time_budget,
        candidates=candidates(kernel, depth, lengthscale, Z.shape[1]),
        progress=progress,
        random_state=seed,
    ).fit(Z, y[train])
    best, scores = search.best_estimator_, None
    if len(table.test):
        tested = Pipeline([("table", encoder), ("model", best)])
        scores = _evaluate_model(tested, table.rows(table.test), y[table.test], y[train])
        best = clone(best).fit(whole.transform(table.X), y)
    save(Pipeline([("table", whole), ("model", best)]), output, statistics=statistics)
    columns = _importances(search, encoder)
    if plot is not None:
        _plot_importances(columns, plot)
    return {
        "command": "fit",
        "data": str(data),
        "target": target,
        "task": table.task,
        "task_reason": table.reason,
        "n_rows": len(y),
        "n_train": len(train),
        "n_test": len(table.test),
        "n_columns": int(table.X.shape[1]),
        "n_features": int(Z.shape[1]),
        "n_classes": len(np.unique(y)) if table.task == "classification" else None,
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


def _n_components(model: Any) -> int:
    """Features of a model, of an average of all of them."""
    return sum(_n_components(each) for each in getattr(model, "estimators_", [])) or int(model.coef_.shape[-1])


def _importances(search: Any, encoder: TableEncoder) -> dict[str, float] | None:
    """Share of each column of the table in the changes of the prediction, largest first; None without a metric."""
    found = getattr(search, "feature_importances_", None)
    if found is None:
        return None
    totals: dict[str, float] = {}
    for name, share in zip(encoder.get_source_names_out(), found, strict=True):
        totals[str(name)] = totals.get(str(name), 0.0) + float(share)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _check_plot(path: Path) -> None:
    from ntkit.display._common import check_matplotlib

    _check_file(path)
    check_matplotlib("ntkit fit --plot")
    if path.suffix.lower() != ".png":
        raise ValueError(f"--plot writes a .png file. Got '{path}'.")


def _plot_importances(columns: dict[str, float] | None, path: Path) -> None:
    from matplotlib.figure import Figure

    from ntkit.cli.page import as_png
    from ntkit.display import ImportanceDisplay

    if columns is None:
        raise ValueError("The model chosen has not learned which columns matter: there is nothing to plot.")
    figure = Figure(figsize=(6.4, 1.0 + 0.26 * min(len(columns), 21)), layout="constrained")
    ImportanceDisplay.from_values(list(columns.values()), names=list(columns), ax=figure.subplots())
    with replacing(path) as file:
        file.write(as_png(figure))


def predict(*, model: Path, data: Path, output: Path, proba: bool, std: bool) -> dict[str, Any]:
    """Write predictions, one row for each row of the table."""
    import pandas as pd

    _check_file(output)
    if output.name.lower().endswith(_PARQUET):
        import pyarrow  # noqa: F401 (if it is missing, say so before the work)
    estimator, text = _load_model(model)
    classifier = hasattr(estimator, "classes_")
    if proba and not classifier:
        raise ValueError("--proba is for classification, and this model does regression. --std gives its uncertainty.")
    if std and classifier:
        raise ValueError("--std is for regression, and this model does classification. --proba gives its uncertainty.")
    X, _ = read_table(data, text=text)
    columns: dict[str, Any] = {}
    with _errors_in(data):
        if std:
            columns["prediction"], columns["std"] = estimator.predict(X, return_std=True)
        else:
            columns["prediction"] = estimator.predict(X)
    if proba:
        P = estimator.predict_proba(X)
        columns |= {f"probability {c}": P[:, i] for i, c in enumerate(estimator.classes_)}
    _write_frame(pd.DataFrame(columns), output)
    return {
        "command": "predict",
        "model": str(model),
        "data": str(data),
        "n_rows": len(X),
        "columns": list(columns),
        "output": str(output),
    }


def evaluate(*, model: Path, data: Path, target: str, drop_missing_target: bool) -> dict[str, Any]:
    """Scores of a saved model on a table with targets, and scores of the best constant."""
    estimator, text = _load_model(model)
    classes = getattr(estimator, "classes_", None)
    labels_are_text = classes is not None and classes.dtype.kind not in "biuf"
    X, y = read_table(
        data, target, drop_missing_target=drop_missing_target, text=text | ({target} if labels_are_text else set())
    )
    with _errors_in(data):
        remedy = "The model has learned numbers."
        y = np.array([level_text(value) for value in y]) if labels_are_text else _as_numbers(y, target, remedy)
        scores = _evaluate_model(estimator, X, y, y)
    return {
        "command": "evaluate",
        "model": str(model),
        "data": str(data),
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
    """All maps on one table: a report, and with `output` its plot and page."""
    from ntkit.cli import comparison, page

    if output is not None:
        page.check_folder(output)
    table = _load_table(data, target, task, drop, drop_missing_target, test, seed)
    task, y = table.task, table.y[table.train]
    with _errors_in(data):
        encoder = TableEncoder().fit(table.rows(table.train))
        rows = comparison.Split(
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
        "data": data.name,
        "target": target,
        "task": task,
        "task_reason": table.reason,
        "error_label": "test MSE" if task == "regression" else "test error (share misclassified)",
        "facts": {
            "file": data.name,
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
        "versions": page.versions(),
        "files": [],
    }
    if output is not None:
        report["files"] = page.write(report, output)
    return report


def candidates(kernel: str, depth: int | None, lengthscale: float | None, n_features: int) -> dict[str, Any] | None:
    """Maps to search; None: the default ones."""
    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures
    from ntkit.models.search import default_candidates

    if kernel == "auto" and depth is None and lengthscale is None:
        return None
    found = default_candidates(n_features)
    if depth is not None:
        found = {name: value for name, value in found.items() if not name.startswith("ntk")}
        found[f"ntk depth={depth}"] = NTKFeatures(depth=depth, bias="auto")
        found[f"ntk depth={depth} bias=0"] = NTKFeatures(depth=depth)
    if lengthscale is not None:
        found = {name: value for name, value in found.items() if not name.startswith("gaussian")}
        found[f"gaussian lengthscale={lengthscale:g}"] = RandomFourierFeatures(lengthscale=lengthscale)
    return {name: value for name, value in found.items() if kernel == "auto" or name.startswith(kernel)}


def _load_table(
    data: Path, target: str, task: str, drop: Sequence[str] | None, drop_missing_target: bool, test: float, seed: int
) -> Table:
    X, y = read_table(data, target, drop=drop or (), drop_missing_target=drop_missing_target)
    with _errors_in(data):
        task, reason = explain_task(y) if task == "auto" else (task, "")
        remedy = "Regression needs numbers. Say --task classification if the values are classes."
        y = _as_numbers(y, target, remedy) if task == "regression" else _as_labels(y, target)
        return Table(X, y, *_split(y, task, test, seed), task, reason)


def _as_numbers(y: np.ndarray, target: str, remedy: str) -> np.ndarray:
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The target '{target}' does not hold numbers: {error}. {remedy}") from error


def _as_labels(y: np.ndarray, target: str) -> np.ndarray:
    """Labels: whole numbers, booleans or text."""
    if y.dtype.kind == "f" and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    y = y if y.dtype.kind in "biuf" else np.array([level_text(value) for value in y])
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(f"Classification needs two classes or more. The target '{target}' is {classes[0]} everywhere.")
    if len(classes) > max(50, len(y) / 2):
        raise ValueError(
            f"The target '{target}' has {len(classes)} classes in {len(y)} rows: too many to learn. Say "
            "--task regression if it is a number."
        )
    return y


def _split(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of rows to train and to test on; every class is in both if it has enough rows."""
    from sklearn.model_selection import train_test_split

    n = len(y)
    if fraction == 0:
        return np.arange(n), np.arange(0)
    n_test = min(max(round(fraction * n), 1), n - 2)
    if n_test < 1:
        raise ValueError(f"{n} rows are too few to hold some out. Say --test 0, or give more rows.")
    stratify = None
    if task == "classification":
        classes, counts = np.unique(y, return_counts=True)
        stratify = y if counts.min() >= 2 and len(classes) <= min(n_test, n - n_test) else None
    train, test = train_test_split(np.arange(n), test_size=n_test, stratify=stratify, random_state=seed)
    return np.sort(train), np.sort(test)


def _load_model(path: Path) -> tuple[Any, set[str]]:
    """A model and the columns that it takes as text."""
    from ntkit.persistence import load

    model = load(path)
    if not hasattr(model, "predict"):
        raise ValueError(f"'{path}' holds a {type(model).__name__}, which makes no predictions.")
    first = model.steps[0][1] if hasattr(model, "steps") else None
    return model, set(first.text_columns_) if isinstance(first, TableEncoder) else set()


def _evaluate_model(model: Any, X: Any, y: np.ndarray, y_train: np.ndarray) -> dict[str, Any]:
    """Scores of a model, and of the constant that suits `y_train` best."""
    if hasattr(model, "classes_"):
        classes = model.classes_
        share = np.mean(y_train[:, None] == classes, axis=0)
        return {
            "scores": _class_scores(y, model.predict_proba(X), classes),
            "baseline": _class_scores(y, np.tile(share, (len(y), 1)), classes),
            "unseen_class_rows": int((~np.isin(y, classes)).sum()),
        }
    prediction = np.asarray(model.predict(X), dtype=np.float64)
    return {
        "scores": _number_scores(y, prediction),
        "baseline": _number_scores(y, np.full(len(y), y_train.mean())),
    }


def _number_scores(y: np.ndarray, prediction: np.ndarray) -> dict[str, float | None]:
    residual = y - prediction
    mse, variance = float(np.mean(residual**2)), float(np.var(y))
    return {
        "MSE": mse,
        "RMSE": mse**0.5,
        "MAE": float(np.mean(np.abs(residual))),
        "R2": 1 - mse / variance if variance > 0 else None,
    }


def _class_scores(y: np.ndarray, proba: np.ndarray, classes: np.ndarray) -> dict[str, float | None]:
    """Rows of a class that the model does not know are wrong, and left out of the log loss."""
    from sklearn.metrics import f1_score

    prediction = classes[proba.argmax(axis=1)].astype(y.dtype)
    known = np.isin(y, classes)
    chosen = proba[known, np.searchsorted(classes, y[known])]
    return {
        "accuracy": float(np.mean(prediction == y)),
        "log loss": float(-np.mean(np.log(np.clip(chosen, 1e-15, 1)))) if known.any() else None,
        "macro F1": float(f1_score(y, prediction, average="macro", zero_division=0.0)),
    }


@contextmanager
def _errors_in(data: Path) -> Iterator[None]:
    """Errors about rows and columns, with the name of their file."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"'{data}': {error}") from error


def _check_file(output: Path) -> None:
    """Raise unless a file can be made there: before the work, not after it."""
    target = Path(os.path.realpath(output))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder '{output.parent}' for the output does not exist. Make it first.")
    if target.exists() and not target.is_file():
        what = "folder" if target.is_dir() else "device"
        raise IsADirectoryError(f"The output '{output}' is a {what}. Name a file.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"The folder '{output.parent}' cannot be written to.")


def _write_frame(frame: Any, output: Path) -> None:
    """Write a data frame by the ending of the name; the file appears complete or not at all."""
    name = output.name.lower()
    with replacing(output) as file:
        if name.endswith(_PARQUET):
            frame.to_parquet(file, index=False)
        else:
            compression = "gzip" if name.endswith(".gz") else None
            frame.to_csv(file, index=False, sep="\t" if ".tsv" in name else ",", compression=compression)
