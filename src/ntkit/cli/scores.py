"""Scores of models on rows with targets, of constants, and of trees as a yardstick."""

from __future__ import annotations

from typing import Any

import numpy as np

MAIN = {"regression": "RMSE", "classification": "accuracy"}
"""The score by which models are compared in words."""


def evaluate_model(model: Any, X: Any, y: np.ndarray, y_train: np.ndarray) -> dict[str, Any]:
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


def new_trees(task: str) -> Any:
    """Gradient boosting with default parameters."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    law = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    return law(random_state=0)


def evaluate_trees(task: str, train: tuple[Any, np.ndarray], test: tuple[Any, np.ndarray]) -> dict[str, Any]:
    """Scores of scikit-learn's HistGradientBoosting with default parameters on the same rows and columns."""
    trees = new_trees(task).fit(*train)
    return {"name": "HistGradientBoosting", "scores": evaluate_model(trees, *test, train[1])["scores"]}


def is_better(task: str, scores: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether scores are better than others."""
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
