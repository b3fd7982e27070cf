"""What the commands do: functions from options to a report (plain data, ready for JSON)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ntkit.tables import TableEncoder, read_table
from ntkit.tables._columns import level_text
from ntkit.tables.encoder import explain_task

_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".pq")


def load_data(
    data: Path, target: str, task: str, *, drop: Sequence[str] = (), drop_missing_target: bool = False
) -> tuple[Any, np.ndarray, str, str]:
    """Rows, targets, the task and the reason for it ("" if it was given)."""
    X, y = read_table(data, target, drop=drop, drop_missing_target=drop_missing_target)
    reason = ""
    if task == "auto":
        task, reason = explain_task(y)
    return X, as_targets(y, task, target), task, reason


def as_targets(y: np.ndarray, task: str, target: str) -> np.ndarray:
    """Targets as float64, or as labels: whole numbers, booleans or text."""
    if task == "regression":
        try:
            return np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Regression needs numbers, but the target '{target}' is not: {error}. Say --task classification "
                "if its values are classes."
            ) from error
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


def split(y: np.ndarray, task: str, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train and to test on; every class in both where it has rows enough."""
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


def take(X: Any, rows: np.ndarray) -> Any:
    """Some rows of a data frame or an array."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


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


def fit(
    data: Path,
    target: str,
    output: Path,
    *,
    task: str = "auto",
    time_budget: float = 60.0,
    components: int = 4096,
    test: float = 0.2,
    drop: Sequence[str] = (),
    drop_missing_target: bool = False,
    seed: int = 0,
    kernel: str = "auto",
    depth: int | None = None,
    lengthscale: float | None = None,
    statistics: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Search, test, refit on all rows, save."""
    from sklearn.base import clone
    from sklearn.pipeline import Pipeline

    from ntkit.models import FeatureRidgeSearch, FeatureRidgeSearchClassifier
    from ntkit.persistence import save

    check_folder(output)
    began = time.perf_counter()
    X, y, task, reason = load_data(data, target, task, drop=drop, drop_missing_target=drop_missing_target)
    train, held_out = split(y, task, test, seed)
    whole = TableEncoder().fit(X)  # what it refuses is refused now, not after the search
    encoder = TableEncoder().fit(take(X, train)) if len(held_out) else whole
    Z = encoder.transform(take(X, train))
    search = (FeatureRidgeSearch if task == "regression" else FeatureRidgeSearchClassifier)(
        n_components=components,
        time_budget=time_budget,
        candidates=candidates(kernel, depth, lengthscale, Z.shape[1]),
        progress=progress,
        random_state=seed,
    ).fit(Z, y[train])
    best, scores = search.best_estimator_, None
    if len(held_out):
        scores = evaluate_model(
            Pipeline([("table", encoder), ("model", best)]), take(X, held_out), y[held_out], y[train]
        )
        best = clone(best).fit(whole.transform(X), y)
    save(Pipeline([("table", whole), ("model", best)]), output, statistics=statistics)
    return {
        "command": "fit",
        "data": str(data),
        "target": target,
        "task": task,
        "task_reason": reason,
        "n_rows": len(y),
        "n_train": len(train),
        "n_test": len(held_out),
        "n_columns": int(X.shape[1]),
        "n_features": int(Z.shape[1]),
        "n_classes": len(np.unique(y)) if task == "classification" else None,
        "results": search.results_,
        "best": {"name": search.best_name_, "n_components": int(best.coef_.shape[-1]), "alpha": float(best.alpha_)},
        "test": scores,
        "seconds": time.perf_counter() - began,
        "model": str(output),
        "model_bytes": output.stat().st_size,
    }


def load_model(path: Path) -> tuple[Any, set[str]]:
    """A model and the columns that it takes as text."""
    from ntkit.persistence import load

    model = load(path)
    if not hasattr(model, "predict"):
        raise ValueError(f"'{path}' holds a {type(model).__name__}, which makes no predictions.")
    first = model.steps[0][1] if hasattr(model, "steps") else None
    return model, set(first.text_columns_) if isinstance(first, TableEncoder) else set()


def predict(model: Path, data: Path, output: Path, *, proba: bool = False, std: bool = False) -> dict[str, Any]:
    """Write predictions, one row for each row of the table."""
    import pandas as pd

    check_folder(output)
    estimator, text = load_model(model)
    classifier = hasattr(estimator, "classes_")
    if proba and not classifier:
        raise ValueError("--proba is for classification, and this model does regression. --std gives its uncertainty.")
    if std and classifier:
        raise ValueError("--std is for regression, and this model does classification. --proba gives its uncertainty.")
    X, _ = read_table(data, text=text)
    columns: dict[str, Any] = {}
    if std:
        columns["prediction"], columns["std"] = estimator.predict(X, return_std=True)
    else:
        columns["prediction"] = estimator.predict(X)
    if proba:
        P = estimator.predict_proba(X)
        columns |= {f"probability {c}": P[:, i] for i, c in enumerate(estimator.classes_)}
    write_frame(pd.DataFrame(columns), output)
    return {
        "command": "predict",
        "model": str(model),
        "data": str(data),
        "n_rows": len(X),
        "columns": list(columns),
        "output": str(output),
    }


def evaluate(model: Path, data: Path, target: str, *, drop_missing_target: bool = False) -> dict[str, Any]:
    """Scores of a saved model on a table with targets, beside those of the best constant."""
    estimator, text = load_model(model)
    classes = getattr(estimator, "classes_", None)
    if classes is not None and classes.dtype.kind not in "biuf":
        text |= {target}
    X, y = read_table(data, target, drop_missing_target=drop_missing_target, text=text)
    y = _like_model(y, classes, target)
    return {
        "command": "evaluate",
        "model": str(model),
        "data": str(data),
        "target": target,
        "task": "regression" if classes is None else "classification",
        "n_rows": len(y),
        **evaluate_model(estimator, X, y, y),
    }


def _like_model(y: np.ndarray, classes: np.ndarray | None, target: str) -> np.ndarray:
    """Targets of the kind that the model has learned."""
    if classes is not None and classes.dtype.kind not in "biuf":
        return np.array([level_text(value) for value in y])
    try:
        return np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The model has learned numbers, but the target '{target}' is not: {error}.") from error


def evaluate_model(model: Any, X: Any, y: np.ndarray, y_train: np.ndarray) -> dict[str, Any]:
    """Scores of a model, and of the constant that suits `y_train` best."""
    if hasattr(model, "classes_"):
        proba = model.predict_proba(X)
        classes = model.classes_
        levels, counts = np.unique(y_train, return_counts=True)
        share = np.array([counts[levels == c].sum() for c in classes]) / max(len(y_train), 1)
        constant = np.tile(share, (len(y), 1))
        unseen = int((~np.isin(y, classes)).sum())
        return {"scores": _class_scores(y, proba, classes), "baseline": _class_scores(y, constant, classes)} | {
            "unseen_class_rows": unseen
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
    place = np.searchsorted(classes, y[known])
    chosen = proba[known, place]
    return {
        "accuracy": float(np.mean(prediction == y)),
        "log loss": float(-np.mean(np.log(np.clip(chosen, 1e-15, 1)))) if known.any() else None,
        "macro F1": float(f1_score(y, prediction, average="macro", zero_division=0.0)),
    }


def check_folder(output: Path) -> None:
    """Raise unless a file can be made there: before the work, not after it."""
    folder = output.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"The folder '{folder}' for the output does not exist. Make it first.")
    if output.is_dir():
        raise IsADirectoryError(f"The output '{output}' is a folder. Name a file.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"The folder '{folder}' cannot be written to.")


def write_frame(frame: Any, output: Path) -> None:
    """Write a data frame by the ending of the name; the file appears complete or not at all."""
    name = output.name.lower()
    part = output.with_name(f".{output.name}.part")
    try:
        if name.endswith((".parquet", ".pq")):
            frame.to_parquet(part, index=False)
        else:
            compression = "gzip" if name.endswith(".gz") else None
            frame.to_csv(part, index=False, sep="\t" if ".tsv" in name else ",", compression=compression)
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)


def compare(
    data: Path,
    target: str,
    *,
    task: str = "auto",
    components: Sequence[int] = (256, 1024, 4096),
    output: Path | None = None,
    seeds: int = 1,
    seed: int = 0,
    test: float = 0.2,
    max_exact: int = 5000,
    drop: Sequence[str] = (),
    drop_missing_target: bool = False,
    progress: bool = False,
    command_line: str = "",
) -> dict[str, Any]:
    """All maps on one table: a report, and with `output` its plot and page."""
    from ntkit._commandline import comparison, writing

    X, y, task, reason = load_data(data, target, task, drop=drop, drop_missing_target=drop_missing_target)
    train, held_out = split(y, task, test, seed)
    encoder = TableEncoder().fit(take(X, train))
    rows = comparison.Rows(
        encoder.transform(take(X, train)), y[train], encoder.transform(take(X, held_out)), y[held_out]
    )
    results = comparison.compare(
        rows, task, sorted(components), seeds=range(seed, seed + seeds), max_exact=max_exact, progress=progress
    )
    constant = y[train].mean() if task == "regression" else _most_frequent(y[train])
    report: dict[str, Any] = {
        "command": "compare",
        "command_line": command_line,
        "data": data.name,
        "target": target,
        "task": task,
        "task_reason": reason,
        "error_label": "test MSE" if task == "regression" else "test error (share misclassified)",
        "facts": {
            "file": data.name,
            "target": f"{target} ({task})",
            "training rows": len(train),
            "test rows": len(held_out),
            "columns": int(X.shape[1]),
            "columns after encoding": int(rows.X.shape[1]),
            **({"classes": len(np.unique(y))} if task == "classification" else {}),
            "error of a constant": comparison.held_out_error(rows.y_test, np.full(len(held_out), constant), task),
            "seeds per map": seeds,
        },
        "results": results,
        "best": min(results, key=lambda r: r["error"]),
        "versions": writing.versions(),
        "files": [],
    }
    if output is not None:
        report["files"] = _write_comparison(report, output)
    return report


def _write_comparison(report: dict[str, Any], folder: Path) -> list[str]:
    from ntkit._commandline import writing

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "comparison.png"
    writing.plot_comparison(report["results"], report["error_label"]).savefig(picture, dpi=150)
    page = folder / "comparison.html"
    page.write_text(writing.comparison_page(report, picture.read_bytes()), encoding="utf-8")
    return [str(picture), str(page)]


def _most_frequent(labels: np.ndarray) -> Any:
    classes, counts = np.unique(labels, return_counts=True)
    return classes[counts.argmax()]
