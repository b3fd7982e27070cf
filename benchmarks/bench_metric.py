"""What learning a metric contributes: LearnedMetric with one ingredient removed or fixed at a time.

    python benchmarks/bench_metric.py            measure the missing cases and print the tables

Errors are those of FeatureRidge(AdaptiveFeatures) on a held-out fifth of the training rows of the tables of
benchmarks/peers; their test sets are not used.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

from experiment import Question, ask, main

TITLE = "Learned metrics: contribution of each ingredient"
TABLES = ("concrete", "airfoil", "abalone", "parkinsons", "pumadyn32nm", "california_housing", "magic04")
VARIANTS = {
    "auto": {},
    "no rounds": {"max_rounds": 0},
    "two rounds": {"max_rounds": 2},
    "diagonal only": {"metric": "diagonal"},
    "full only": {"metric": "full"},
    "product Laplace only": {"kernel": "laplace", "kernel_params": {"norm": "l1"}},
    "Matérn only": {"kernel": "matern"},
    "Gaussian only": {"kernel": "gaussian"},
}
SIZES = (512, 1024, 2048, 4096)


def held_out(data, seed, rows=None):
    """Split the training rows of a table in four fifths and one fifth; also return the number of classes or 0."""
    from peers.tables import prepared

    X, y, _, _, unit = prepared(data, seed, rows)
    n = 4 * len(y) // 5
    return X[:n], y[:n], X[n:], y[n:], 0 if unit else int(y.max()) + 1


def evaluate(features, data, seed, rows):
    """Return the error relative to the variance of the targets (or percent misclassified) and the seconds."""
    from sklearn.pipeline import make_pipeline

    from ntkit import ArcsinhScaler, FeatureRidge, FeatureRidgeClassifier

    X, y, X_held, y_held, classes = held_out(data, seed, rows)
    start = time.perf_counter()
    law = FeatureRidgeClassifier if classes else FeatureRidge
    model = law(make_pipeline(ArcsinhScaler(width=2.0), features), random_state=seed).fit(X, y)
    seconds = time.perf_counter() - start
    found = model.predict(X_held)
    error = 100 * np.mean(found != y_held) if classes else np.mean((found - y_held) ** 2) / np.var(y_held)
    return {"error": float(error), "seconds": seconds}


def measure_variants(data, seed, rows):
    from ntkit import AdaptiveFeatures, LearnedMetric

    found = {}
    for name, params in VARIANTS.items():
        metric = LearnedMetric(**params, random_state=seed)
        found[name] = evaluate(AdaptiveFeatures(n_components=2048, metric=metric, random_state=seed), data, seed, rows)
    return {"methods": found}


def measure_sizes(data, seed, rows):
    from ntkit import AdaptiveFeatures, LearnedMetric

    found = {}
    for size in reversed(SIZES):
        features = AdaptiveFeatures(n_components=size, metric=LearnedMetric(random_state=seed), random_state=seed)
        found[f"{size} landmarks"] = evaluate(features, data, seed, rows)
    return {"methods": found}


def cases_of(tables, seeds):
    def cases(args):
        if args.quick:
            return [{"data": "digits", "seed": 0, "rows": 200}]
        return [{"data": data, "seed": seed, "rows": None} for seed in seeds for data in tables]

    return cases


QUESTIONS = {
    "ingredients": Question(
        "One ingredient removed or fixed (error: mean squared / variance, or percent misclassified)",
        cases_of(TABLES, (0,)),
        measure_variants,
        "data seed method error:.4g error/:.2f seconds:.1f",
    ),
    "sizes": Question(
        "Number of landmarks", cases_of(("california_housing", "protein"), (0,)), measure_sizes,
        "data seed method error:.4g error/:.2f seconds:.1f",
    ),
}  # fmt: skip
cases, measure, report = ask(QUESTIONS)

if __name__ == "__main__":
    main(__name__)
