"""How good are the probabilities of ridge classifiers? Log loss and calibration error by map, and LightGBM beside them.

    python benchmarks/bench_calibration.py            all tables, into results/calibration.json
    python benchmarks/bench_calibration.py --quick    two tables and one seed, printed only

Tables are those of ntkit.datasets ($NTKIT_DATA); targets of regression are cut into quantile classes. All maps see the
same leave-one-out scores of --rows rows. Log losses are ratios to one temperature, in the mean over seeds; calibration
errors are those of the most probable class, in 15 bins. Seconds are of the calibration alone; LightGBM's (defaults,
one thread, where installed) are of its fit.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec

import numpy as np

from common import RESULTS, versions

# name: quantile classes (0: the table has classes), training rows
TABLES = {
    "digits": (0, 1000), "pendigits": (0, 6000), "magic04": (0, 12000), "connect4": (0, 20000), "shuttle": (0, 20000),
    "california_housing": (5, 12000), "protein": (4, 20000), "abalone": (5, 2500), "year_subset": (10, 3500),
}  # fmt: skip
TEST_ROWS = 10000


def split(name, seed):
    """Training and test rows; classes that the training rows lack are dropped from the test rows."""
    from ntkit.datasets import load_dataset

    data = load_dataset(name)
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


def figures(log_p, labels, seconds):
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
    """Figures of both calibrations of one ridge classifier."""
    from ntkit import FeatureRidgeClassifier
    from ntkit.models._calibrate import fit_calibration, log_probabilities, temperature

    model = FeatureRidgeClassifier(n_selection=n_rows, random_state=seed).fit(X, y)
    scores = model.features_.transform(X_test) @ model.coef_.T + model.intercept_
    targets, left_out, weight = model._solution.left_out
    labels = targets.argmax(axis=1)
    one, seconds_one = timed(temperature, left_out, labels, weight)
    full, seconds_full = timed(fit_calibration, left_out, labels, weight, scores.shape[1])
    return {
        "temperature": figures(log_probabilities(scores, one), y_test, seconds_one),
        "calibration": figures(log_probabilities(scores, full), y_test, seconds_full),
    }


def lightgbm(X, y, X_test, y_test, seed):
    from lightgbm import LGBMClassifier

    model, seconds = timed(LGBMClassifier(n_jobs=1, verbose=-1, random_state=seed).fit, X, y)
    p = model.predict_proba(X_test)
    return {"lightgbm": figures(np.log(np.maximum(p, np.finfo(float).tiny)), y_test, seconds)}


def compare(name, seeds, n_rows):
    runs = []
    for seed in seeds:
        parts = split(name, seed)
        runs.append(ridge(*parts, seed, n_rows) | (lightgbm(*parts, seed) if find_spec("lightgbm") else {}))
    found = []
    for method in runs[0]:
        row = {key: float(np.mean([run[method][key] for run in runs])) for key in runs[0][method]}
        baseline = np.mean([run["temperature"]["log_loss"] for run in runs])
        row = {"table": name, "method": method, "ratio": float(row["log_loss"] / baseline), **row}
        found.append(row)
        print(
            f"{name:18} {method:11}: log loss {row['log_loss']:.4f} ({row['ratio']:.3f}×), calibration error "
            f"{row['calibration_error']:.4f}, accuracy {row['accuracy']:.4f}, smallest probability "
            f"{row['smallest']:.0e}, {1000 * row['seconds']:.0f} ms", flush=True
        )  # fmt: skip
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000, help="held-out rows of the calibration")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two tables and one seed; nothing is saved")
    arguments = parser.parse_args()
    found = []
    for name in ("digits", "california_housing") if arguments.quick else TABLES:
        found += compare(name, range(200, 201 if arguments.quick else 200 + arguments.seeds), arguments.rows)
    if not arguments.quick:
        content = {"versions": versions(), "rows": arguments.rows, "calibration": found}
        (RESULTS / "calibration.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
