"""Probabilities from least-squares scores: softmax of the scores over a temperature (Guo et al. 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit._array import to_numpy


def log_probabilities(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Logarithms of softmax(scores / temperature), row by row."""
    scaled = (scores - scores.max(axis=1, keepdims=True)) / temperature
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def temperature(scores: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """Temperature with the smallest log loss on scores of rows that the model was not fitted on.

    Parameters
    ----------
    scores : ndarray of shape (n, n_classes)
    labels : ndarray of int of shape (n,)
    weight : ndarray of shape (n,)

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.standard_normal((5000, 3))
    >>> labels = np.array([rng.choice(3, p=p) for p in np.exp(log_probabilities(scores, 0.5))])
    >>> bool(abs(temperature(scores, labels, np.ones(5000)) - 0.5) < 0.05)
    True
    """
    from scipy.optimize import minimize_scalar

    finite = np.isfinite(scores).all(axis=1) & (weight > 0)
    scores, labels, weight = scores[finite], labels[finite], weight[finite]
    spread = float(np.ptp(scores, axis=1).mean()) if len(scores) else 0.0
    if spread == 0.0:
        return 1.0

    def loss(log_temperature: float) -> float:
        log_p = log_probabilities(scores, spread * float(np.exp(log_temperature)))
        return -float(np.average(log_p[np.arange(len(labels)), labels], weights=weight))

    best = minimize_scalar(loss, bounds=(-6.0, 3.0), method="bounded")
    return spread * float(np.exp(best.x))


def left_out_log_loss(targets: Any, predictions: Any, weight: Any) -> float:
    """Log loss at the best temperature: `targets` one-hot up to a constant, `predictions` for them."""
    targets, scores, weight = to_numpy(targets), to_numpy(predictions), to_numpy(weight)
    if not np.isfinite(scores).all() or weight.sum() == 0:
        return np.inf
    labels = targets.argmax(axis=1)
    log_p = log_probabilities(scores, temperature(scores, labels, weight))
    return -float(np.average(log_p[np.arange(len(labels)), labels], weights=weight))
