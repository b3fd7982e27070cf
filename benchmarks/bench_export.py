"""Exported maps and models compared with ntkit: deviation, time of 10 000 predictions, file size.

Rows have 32 independent normal entries in float32; targets are sin(x₁)x₂ plus noise, or three classes of them. Maps
have 1024 features, exact kernels 2000 rows. "onnxruntime" runs the file of ``ntkit.export.to_onnx`` and "torch" the
module of ``ntkit.torch``, both in float32 and with the number of threads that ntkit uses. Times are medians of rounds
in which the methods take turns. Errors are the largest deviation from ntkit on float64 copies of the rows, relative to
the largest result; classifiers are compared by their probabilities. The tests cover ``torch.export`` on smaller
estimators.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

from experiment import grid, main, medians, table

TITLE = "Exported maps and models: deviation, time and size"
MAPS = (
    "RandomFourierFeatures", "OrthogonalFourierFeatures", "FastfoodFeatures", "GaussianFeatures", "GegenbauerFeatures",
    "MaclaurinFeatures", "DotProductSketch", "PolynomialSketch", "NTKFeatures", "NTKSketch", "NTKRandomFeatures",
    "NTKPolynomialSketch", "NystroemFeatures gaussian", "NystroemFeatures laplace", "NystroemFeatures ntk",
    "ArcsinhScaler",
)  # fmt: skip
MODELS = (
    "FeatureRidge default", "FeatureRidge NTKFeatures", "FeatureRidge GaussianFeatures", "KernelRidge gaussian",
    "KernelRidge laplace", "KernelRidge matern", "KernelRidge ntk", "FeatureRidgeClassifier default",
    "FeatureRidgeClassifier NTKFeatures", "KernelRidgeClassifier gaussian",
)  # fmt: skip
IMAGES = ("CNTKSketch",)
N_COLUMNS = 32
IMAGE_SHAPE = (8, 8, 3)


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, N_COLUMNS))


def make(name, m):
    import ntkit

    kind, _, detail = name.partition(" ")
    if kind == "NystroemFeatures":
        return ntkit.NystroemFeatures(detail, n_components=m, random_state=0)
    if kind.startswith("KernelRidge"):
        return getattr(ntkit, kind)(detail, alphas=1.0)
    if kind.startswith("FeatureRidge"):
        features = None if detail == "default" else make(detail, m)
        return getattr(ntkit, kind)(features, random_state=0)
    return getattr(ntkit, kind)() if kind == "ArcsinhScaler" else getattr(ntkit, kind)(n_components=m, random_state=0)


def cases(args):
    if args.quick:
        return grid(name=("FeatureRidge GaussianFeatures",), m=64, n=200, n_fit=200, rounds=2)
    return grid(name=MAPS + MODELS, m=1024, n=10_000, n_fit=2000, rounds=5) + grid(
        name=IMAGES, m=256, n=1000, n_fit=20, rounds=3
    )


def data(name, n, n_fit):
    X, fit = rows(n, 1), rows(n_fit)
    if name in IMAGES:
        rng = np.random.default_rng(0)
        X, fit = (rng.standard_normal((size, *IMAGE_SHAPE)) for size in (n, n_fit))
        return X.astype(np.float32), fit, None
    noise = 0.1 * np.random.default_rng(2).standard_normal(n_fit)
    y = np.sin(fit[:, 0]) * fit[:, 1] + noise
    return X.astype(np.float32), fit, np.digitize(y, [-0.3, 0.3]) if "Classifier" in name else y


def measure(name, m, n, n_fit, rounds):
    import onnxruntime
    import torch

    from ntkit.export import to_onnx
    from ntkit.torch import Features, Model

    X, fit, y = data(name, n, n_fit)
    estimator = make(name, m).fit(fit, y)
    method = next(each for each in ("transform", "predict_proba", "predict") if hasattr(estimator, each))
    ours = getattr(estimator, method)
    path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    to_onnx(estimator, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    output = session.get_outputs()[-1].name
    module = (Features if method == "transform" else Model)(estimator, dtype=torch.float32)
    x, true = torch.from_numpy(X), np.asarray(ours(X.astype(np.float64)))

    def by_torch():
        with torch.no_grad():
            return module(x).numpy()

    calls = {
        "ntkit": lambda: ours(X),
        "onnxruntime": lambda: session.run([output], {"X": X})[0],
        "torch": by_torch,
    }
    errors = {name: float(np.abs(np.asarray(call()) - true).max() / np.abs(true).max()) for name, call in calls.items()}
    seconds = medians(calls, rounds)
    found = {name: {"seconds": seconds[name], "error": errors[name]} for name in calls}
    found["onnxruntime"]["file_kb"] = os.path.getsize(path) / 1000
    return {"methods": found}


def report(runs):
    return table(runs, "name method seconds:.4f seconds/:.2f error:.1e file_kb:.0f")


if __name__ == "__main__":
    main(__name__)
