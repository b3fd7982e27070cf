"""How good are the probabilities of ridge classifiers? Log loss and calibration error by method, with LightGBM.

Regression targets are cut into quantile classes. All calibration methods use the same leave-one-out scores. Log losses
are means over seeds; calibration errors are for the most probable class, in 15 bins. Seconds are the time of the
calibration alone; for LightGBM (defaults, one thread, if installed) the time of its fit.
"""

from __future__ import annotations

import time
from importlib.util import find_spec

import numpy as np

from experiment import dataset, grid, main, table

TITLE = "Calibration: log loss and calibration error of ridge classifiers"
# name: (number of quantile classes, 0 if the table has classes; number of training rows)
TABLES = {
    "digits": (0, 1000), "pendigits": (0, 6000), "magic04": (0, 12000), "connect4": (0, 20000), "shuttle": (0, 20000),
    "california_housing": (5, 12000), "protein": (4, 20000), "abalone": (5, 2500), "year_subset": (10, 3500),
}  # fmt: skip
TEST_ROWS = 10000


def split(name, seed):
    """Return training and test rows; test rows whose class is not in the training rows are dropped."""
    data = dataset(name)
    n_quantiles, n_train = TABLES[name]
    X, y = data.X.reshape(len(data.X), -1), data.y
    if n_quantiles:
        y = np.searchsorted(np.quantile(y, np.linspace(0, 1, n_quantiles + 1)[1:-1]), y)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:n_train], order[n_train : n_train + TEST_ROWS]
    classes = np.unique(y[train])
    test = test[np.isin(y[test], classes)]
    return X[train], np.searchsorted(classes, y[train]), X[test], np.searchsorted(classes, y[test])


def calibration_error(p, labels, n_bins=15):
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    return float(np.abs(np.bincount(bins, confidence - right)).sum() / len(labels))


def scores_of(log_p, labels, seconds):
    p = np.exp(log_p)
    return {
        "log_loss": float(-log_p[np.arange(len(labels)), labels].mean()),
        "calibration_error": calibration_error(p, labels),
        "accuracy": float((p.argmax(axis=1) == labels).mean()),
        "smallest": float(p.min()),
        "seconds": seconds,
    }


def timed(function, *args):
    start = time.perf_counter()
    found = function(*args)
    return found, time.perf_counter() - start


def ridge(X, y, X_test, y_test, seed, n_rows):
    """Evaluate both calibration methods of one ridge classifier."""
    from ntkit import FeatureRidgeClassifier
    from ntkit.models._calibrate import fit_calibration, log_probabilities, temperature

    model = FeatureRidgeClassifier(n_selection=n_rows, random_state=seed).fit(X, y)
    scores = model.features_.transform(X_test) @ model.coef_.T + model.intercept_
    targets, left_out, weight = model._solution.left_out
    labels = targets.argmax(axis=1)
    one, seconds_one = timed(temperature, left_out, labels, weight)
    full, seconds_full = timed(fit_calibration, left_out, labels, weight, scores.shape[1])
    return {
        "temperature": scores_of(log_probabilities(scores, one), y_test, seconds_one),
        "calibration": scores_of(log_probabilities(scores, full), y_test, seconds_full),
    }


def lightgbm(X, y, X_test, y_test, seed):
    from lightgbm import LGBMClassifier

    model, seconds = timed(LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed).fit, X, y)
    p = model.predict_proba(X_test)
    return {"lightgbm": scores_of(np.log(np.maximum(p, np.finfo(float).tiny)), y_test, seconds)}


def cases(args):
    tables, seeds = (("digits", "california_housing"), 1) if args.quick else (TABLES, 2)
    return grid(table=tables, rows=1000, seeds=seeds)


def measure(table, rows, seeds):
    """Return means over seeds; `rows` leave-one-out rows are used to calibrate."""
    runs = []
    for seed in range(200, 200 + seeds):
        parts = split(table, seed)
        runs.append(ridge(*parts, seed, rows) | (lightgbm(*parts, seed) if find_spec("lightgbm") else {}))
    return {
        "methods": {
            method: {key: float(np.mean([run[method][key] for run in runs])) for key in runs[0][method]}
            for method in runs[0]
        }
    }


def report(runs):
    columns = "table method log_loss:.4f log_loss/:.3f calibration_error:.4f accuracy:.4f smallest:.0e seconds:.3f"
    return table(runs, columns)


if __name__ == "__main__":
    main(__name__)
