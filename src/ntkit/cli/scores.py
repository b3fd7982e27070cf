"""Scores of models, of constant predictions and of gradient-boosted trees as baselines."""

from __future__ import annotations

from typing import Any

import numpy as np

MAIN = {"regression": "RMSE", "classification": "accuracy"}
"""The score that decides which of two models is better."""


def evaluate_model(model: Any, X: Any, y: np.ndarray, y_train: np.ndarray) -> dict[str, Any]:
    """Return the scores of a model and of the best constant prediction for `y_train`."""
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


def new_trees(task: str) -> Any:
    """Return scikit-learn's gradient boosting with default parameters."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    return model(random_state=0)


def evaluate_trees(task: str, train: tuple[Any, np.ndarray], test: tuple[Any, np.ndarray]) -> dict[str, Any]:
    """Fit and score scikit-learn's HistGradientBoosting with default parameters."""
    trees = new_trees(task).fit(*train)
    return {"name": "HistGradientBoosting", "scores": evaluate_model(trees, *test, train[1])["scores"]}


def is_better(task: str, scores: dict[str, Any], others: dict[str, Any]) -> bool:
    """Tell whether `scores` are better than `others`."""
    name = MAIN[task]
    return bool(scores[name] < others[name] if task == "regression" else scores[name] > others[name])


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
    """Return class scores. Rows of a class unknown to the model count as errors, and do not enter the log loss."""
    from sklearn.metrics import f1_score

    prediction = classes[proba.argmax(axis=1)].astype(y.dtype)
    known = np.isin(y, classes)
    chosen = proba[known, np.searchsorted(classes, y[known])]
    return {
        "accuracy": float(np.mean(prediction == y)),
        "log loss": float(-np.mean(np.log(np.clip(chosen, 1e-15, 1)))) if known.any() else None,
        "macro F1": float(f1_score(y, prediction, average="macro", zero_division=0.0)),
    }
