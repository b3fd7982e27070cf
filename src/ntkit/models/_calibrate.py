"""Probabilities from least-squares scores: matrix scaling, regularized towards one temperature.

Least-squares scores order the classes well, but they are not probabilities. Where classes have an order, the scores of
a class in the middle stay low for every row (masking, [3]_, Section 4.2), and one temperature cannot repair that.
:func:`fit_calibration` learns a linear map of the scores on held-out rows; see there for the formula.

References
----------
.. [1] Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599, Section 4.2.
.. [2] Kull et al., "Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with Dirichlet
   calibration", NeurIPS 2019, arXiv:1910.12656.
.. [3] Hastie, Tibshirani, Friedman, "The Elements of Statistical Learning", 2nd edition, 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import to_numpy
from ntkit._state import Declared, Field, Floats, Real

# Precisions of the Gaussian priors, for scores of mean square 1. The entries of V have variance 1/k, so that Vᵀc has
# variance 1 in each logit, whatever the number of classes k. Offsets have variance 1/3. Chosen by log loss on 14 tables
# with 30 to 4000 held-out rows, where a factor of 3 in either changes the mean by less than 2 %.
_MATRIX_PRECISION = 1.0  # times k
_OFFSET_PRECISION = 3.0

# Rows of unknown label that the calibration assumes in addition to the n rows it has seen. Chosen on the same tables.
# A whole row in the mixture raises the mean log loss by 8 % with 30 held-out rows and by 4 % with 100, since most
# tables have few errors. With 0 rows, probabilities could be arbitrarily close to 0 and 1.
_SMOOTHING_ROWS = 0.2

# Bounds of log(root mean square of the scores / temperature): from logits that hardly differ to logits that differ by
# hundreds. Least-squares scores of separable classes need about 2.
_LOG_SLOPE_BOUNDS = (-3.0, 6.0)


@dataclass(frozen=True)
class Calibration(Declared):
    """A map from scores to probabilities; made by :func:`fit_calibration`, applied by :func:`log_probabilities`.

    Attributes
    ----------
    temperature : float
        The scores are divided by it.
    matrix : ndarray of shape (n_classes, n_classes)
        Correction of the logits that is linear in the scores: entry (i, j) times score i is added to logit j.
    offsets : ndarray of shape (n_classes,)
        Correction of the logits that is the same for every row.
    smoothing : float
        Share of the uniform distribution in the probabilities, which are at least smoothing / n_classes.
    """

    temperature: float
    matrix: np.ndarray
    offsets: np.ndarray
    smoothing: float

    _state: ClassVar[dict[str, Field]] = {
        "temperature": Real(minimum=0.0, strict=True),
        "matrix": Floats("k", "k"),
        "offsets": Floats("k"),
        "smoothing": Real(minimum=0.0, strict=True),
    }

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if self.smoothing >= 1:
            raise ValueError(f"smoothing must be below 1, not {self.smoothing}")


def log_probabilities(scores: np.ndarray, calibration: Calibration | float) -> np.ndarray:
    """Compute the logarithms of calibrated probabilities.

    Parameters
    ----------
    scores : ndarray of shape (n, n_classes)
    calibration : Calibration or float
        A float is a temperature: the probabilities are softmax(scores / temperature).

    Returns
    -------
    ndarray of shape (n, n_classes)
    """
    if not isinstance(calibration, Calibration):
        return _log_softmax(scores / calibration)
    if not _array.is_numpy(scores):
        xp: Any = _array.namespace(scores)
        values = logits(scores, calibration)
        powers = xp.exp(values - xp.max(values, axis=1, keepdims=True))
        shares = powers / xp.sum(powers, axis=1, keepdims=True)
        return xp.log((1 - calibration.smoothing) * shares + calibration.smoothing / scores.shape[1])
    uniform = np.log(calibration.smoothing / scores.shape[1])
    return np.logaddexp(np.log1p(-calibration.smoothing) + _log_softmax(logits(scores, calibration)), uniform)


def logits(scores: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Compute the logarithms of the probabilities without smoothing, up to a constant for each row."""
    if _array.is_numpy(scores):
        centred = _centre(scores)
        return centred / calibration.temperature + centred @ calibration.matrix + calibration.offsets
    centred = scores - _array.namespace(scores).mean(scores, axis=1, keepdims=True)
    matrix = calibration.matrix + np.eye(len(calibration.offsets)) / calibration.temperature
    return centred @ _array.constant(matrix, scores) + _array.constant(calibration.offsets, scores)


def fit_calibration(scores: np.ndarray, labels: np.ndarray, weight: np.ndarray, n_classes: int) -> Calibration:
    """Fit the calibration with the smallest penalized log loss on scores of held-out rows.

    With k classes, c = scores minus their mean over the classes, and s the root mean square of c,

        p(scores) = (1 − ε) softmax(c / T + Vᵀc + b) + ε / k,    ε = 0.2 / (n + 1).

    T, V and b minimize  Σ w ℓ + k s²‖V‖² / 2 + 3 ‖b‖² / 2,  where ℓ is the cross-entropy between the softmax and
    (1 − ε) one-hot + ε / k. This is matrix scaling ([1]_, Section 4.2). ODIR ([2]_) penalizes b and the entries of V
    off the diagonal. Here the diagonal of V has the same penalty, so that few rows give V ≈ 0 and b ≈ 0, which is
    temperature scaling. The trace of V is 0. If T reaches its upper bound, V is set to 0. Both uses of ε bound the
    confidence: n rows without an error don't show that errors are much rarer than 1/n.

    Parameters
    ----------
    scores : ndarray of shape (n, n_classes)
        Rows with a score that is not finite are dropped.
    labels : ndarray of int of shape (n,)
        Classes may be absent.
    weight : ndarray of shape (n,)
        A row of weight 2 counts as two rows; n above is the sum of the weights. If the mean weight is below 1, the
        weights are divided by it, since a row is at least one observation.
    n_classes : int

    Returns
    -------
    Calibration

    Notes
    -----
    The problem is convex. L-BFGS takes 20 to 250 evaluations of O(n k²) each: 20 ms for n = 1000 and k = 10, 1 s for
    k = 100. Probabilities are exact up to 1e-8 (1e-7 for k = 100).

    Adding a constant to all scores of a row changes nothing; dividing all scores by a constant divides T by it. Unlike
    a single temperature, the map can change which class has the largest value. Classifiers therefore predict from the
    calibrated values. With two classes, the calibration moves the threshold.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.standard_normal((5000, 3))
    >>> labels = np.array([rng.choice(3, p=p) for p in np.exp(log_probabilities(scores, 0.5))])
    >>> calibration = fit_calibration(scores, labels, np.ones(5000), 3)
    >>> bool(abs(calibration.temperature - 0.5) < 0.05)
    True
    """
    from scipy.optimize import minimize

    scores, labels, weight = _used(scores, labels, weight)
    weight = weight / min(float(weight.mean()), 1.0) if len(weight) else weight
    total = float(weight.sum())
    smoothing = _SMOOTHING_ROWS / (total + 1.0)
    centred = _centre(scores)
    scale = float(np.sqrt(weight @ (centred**2).sum(axis=1) / (total * n_classes))) if total else 0.0
    if scale == 0.0:
        centred, scale = np.zeros_like(centred), 1.0
    objective = _Objective(centred / scale, _smooth(labels, smoothing, n_classes), weight)
    start = np.zeros(1 + n_classes + n_classes**2)
    start[0] = 1.0
    bounds = [tuple(np.exp(_LOG_SLOPE_BOUNDS))] + [(None, None)] * (len(start) - 1)
    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10}
    found = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    if found.x[0] <= 1.001 * bounds[0][0]:  # scores say nothing about the labels: V must not reverse their order
        bounds[1 + n_classes :] = [(0.0, 0.0)] * n_classes**2
        found = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    slope, offsets, matrix = objective.split(found.x)
    return Calibration(scale / float(slope), matrix / scale, offsets.copy(), smoothing)


def temperature(scores: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    """Find the temperature with the smallest log loss on scores of held-out rows, without penalties.

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

    scores, labels, weight = _used(scores, labels, weight)
    spread = float(np.ptp(scores, axis=1).mean()) if len(scores) else 0.0
    if spread == 0.0:
        return 1.0

    def loss(log_temperature: float) -> float:
        return _log_loss(log_probabilities(scores, spread * float(np.exp(log_temperature))), labels, weight)

    best = minimize_scalar(loss, bounds=(-6.0, 3.0), method="bounded")
    return spread * float(np.exp(best.x))


def left_out_log_loss(targets: Any, predictions: Any, weight: Any) -> float:
    """Compute the log loss at the best temperature; the choice of α minimizes it.

    The matrix and the offsets of :func:`fit_calibration` are not used here: with them, the chosen α was better on some
    tables and worse on others, at several times the cost.

    Parameters
    ----------
    targets : array of shape (n, n_classes)
        One-hot up to a constant.
    predictions : array of shape (n, n_classes)
        Scores of held-out rows.
    weight : array of shape (n,)

    Returns
    -------
    float
        Infinity if a prediction is not finite or if no row has a positive weight.
    """
    targets, scores, weight = to_numpy(targets), to_numpy(predictions), to_numpy(weight)
    if not np.isfinite(scores).all() or weight.sum() == 0:
        return np.inf
    labels = targets.argmax(axis=1)
    return _log_loss(log_probabilities(scores, temperature(scores, labels, weight)), labels, weight)


class _Objective:
    """Penalized cross-entropy per unit of weight and its gradient, for (slope, offsets, matrix) in one vector."""

    def __init__(self, scores: np.ndarray, targets: np.ndarray, weight: np.ndarray):
        self.scores, self.targets = scores, targets
        self.n_classes = targets.shape[1]
        self.total = float(weight.sum()) or 1.0
        self.share = (weight / self.total)[:, None]

    def split(self, parameters: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        k = self.n_classes
        return parameters[0], parameters[1 : k + 1], parameters[k + 1 :].reshape(k, k)

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        slope, offsets, matrix = self.split(parameters)
        log_p = _log_softmax(slope * self.scores + self.scores @ matrix + offsets)
        error = self.share * (np.exp(log_p) - self.targets)
        by_scores = self.scores.T @ error
        for_offsets = _OFFSET_PRECISION / self.total
        for_matrix = _MATRIX_PRECISION * self.n_classes / self.total
        penalty = (for_offsets * offsets @ offsets + for_matrix * np.vdot(matrix, matrix)) / 2
        gradient = (
            [np.trace(by_scores)],
            error.sum(axis=0) + for_offsets * offsets,
            (by_scores + for_matrix * matrix).ravel(),
        )
        return float(penalty - (self.share * self.targets * log_p).sum()), np.concatenate(gradient)


def _used(scores: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select the rows with finite scores and positive weight."""
    used = np.isfinite(scores).all(axis=1) & (weight > 0)
    return scores[used], labels[used], weight[used]


def _centre(scores: np.ndarray) -> np.ndarray:
    return scores - scores.mean(axis=1, keepdims=True)


def _smooth(labels: np.ndarray, smoothing: float, n_classes: int) -> np.ndarray:
    """Return (1 − smoothing) one-hot + smoothing / n_classes."""
    targets = np.full((len(labels), n_classes), smoothing / n_classes)
    targets[np.arange(len(labels)), labels] += 1.0 - smoothing
    return targets


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _log_loss(log_p: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> float:
    return -float(np.average(log_p[np.arange(len(labels)), labels], weights=weight))
