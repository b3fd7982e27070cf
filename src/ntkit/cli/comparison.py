"""All feature maps on one table, and exact kernels where they fit: error, time and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ntkit.cli.scores import new_trees

Predictor = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int, int], tuple[Predictor, float]]


class Method(NamedTuple):
    """A way to learn: `fit(X, y, n_components, seed)` returns what predicts, and α.

    Without a choice of components and seed, `size` is what the report says instead: columns, rows, or trees.
    """

    kernel: str
    map: str
    fit: Fit
    size: int | None = None


class Split(NamedTuple):
    """Rows to train and to test on, and their targets: numbers, or labels."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def methods(rows: Split, task: str, *, exact: bool) -> list[Method]:
    """Maps to compare, perhaps with the exact kernels; the Gaussian kernel has two length scales."""
    from sklearn.kernel_approximation import RBFSampler

    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures
    from ntkit.preprocessing import ArcsinhScaler

    def ntk(**params: Any) -> Fit:
        return _by_features(task, lambda m, seed: NTKFeatures(n_components=m, bias="auto", random_state=seed, **params))

    def fourier(scale: float) -> Fit:
        return _by_features(
            task, lambda m, seed: RandomFourierFeatures(n_components=m, lengthscale=scale, random_state=seed)
        )

    def sampler(scale: float) -> Fit:
        return _by_features(task, lambda m, seed: RBFSampler(gamma=0.5 / scale**2, n_components=m, random_state=seed))

    n_rows, n_columns = rows.X.shape
    lengthscale = float(np.sqrt(n_columns * ArcsinhScaler().fit_transform(rows.X).var() / 2)) or 1.0
    found = [Method("linear", "", _by_features(task, lambda *_: "passthrough"), n_columns)]
    kernels = []
    for depth in (1, 3):
        name = f"NTK depth {depth}"
        found += [Method(name, kind, ntk(depth=depth, method=kind)) for kind in ("polynomial", "random", "sketch")]
        kernels += [Method(name, "exact", _by_kernel(task, n_columns**0.5, "ntk", depth=depth), n_rows)]
    for scale in (lengthscale, lengthscale / 2):
        name = f"Gaussian ℓ = {scale:.3g}"
        found += [Method(name, "Fourier", fourier(scale)), Method(name, "RBFSampler", sampler(scale))]
        kernels += [Method(name, "exact", _by_kernel(task, 0.0, "gaussian", lengthscale=scale), n_rows)]
    adaptive = [Method("learned metric", "Nyström", _by_features(task, _adaptive))]
    return found + adaptive + kernels * exact + _trees(task)


def _adaptive(n_components: int, seed: int) -> Any:
    from ntkit.models import AdaptiveFeatures

    return AdaptiveFeatures(n_components=n_components, random_state=seed)


def _trees(task: str) -> list[Method]:
    """Gradient boosting with default parameters, as baselines: scikit-learn's, and LightGBM's if it is installed."""

    def by(make: Callable[[], Any]) -> Fit:
        def fit(X: np.ndarray, y: np.ndarray, *_: int) -> tuple[Predictor, float]:
            return make().fit(X, y).predict, float("nan")

        return fit

    found = [Method("trees", "HistGradientBoosting", by(lambda: new_trees(task)), 100)]
    try:
        import lightgbm
    except ImportError:
        return found
    law = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return [*found, Method("trees", "LightGBM", by(lambda: law(random_state=0, verbose=-1)), 100)]


def _by_features(task: str, make: Callable[[int, int], Any]) -> Fit:
    def fit(X: np.ndarray, y: np.ndarray, n_components: int, seed: int) -> tuple[Predictor, float]:
        from sklearn.pipeline import Pipeline

        from ntkit.models import FeatureRidge, FeatureRidgeClassifier
        from ntkit.preprocessing import ArcsinhScaler

        features = Pipeline([("scale", ArcsinhScaler()), ("features", make(n_components, seed))])
        model = (FeatureRidge if task == "regression" else FeatureRidgeClassifier)(features, random_state=seed)
        return model.fit(X, y).predict, model.alpha_

    return fit


def _by_kernel(task: str, bias: float, kernel: str, **params: Any) -> Fit:
    def fit(X: np.ndarray, y: np.ndarray, *_: int) -> tuple[Predictor, float]:
        from ntkit.features.auto import with_constant
        from ntkit.preprocessing import ArcsinhScaler

        def prepare(X: np.ndarray) -> np.ndarray:
            return with_constant(scaler.transform(X.astype(np.float64)), bias)

        scaler = ArcsinhScaler().fit(X.astype(np.float64))
        model = exact_ridge(prepare(X), y, task, kernel, **params)
        return lambda X: model.predict(prepare(X)), model.alpha_

    return fit


def exact_ridge(X: np.ndarray, y: np.ndarray, task: str, kernel: str, **params: Any) -> Any:
    """Kernel ridge regression or classification; α has the least leave-one-out error, whatever the order of rows."""
    from ntkit.models import KernelRidge, KernelRidgeClassifier

    model = KernelRidge if task == "regression" else KernelRidgeClassifier
    return model(kernel, alphas=None, solver="direct", random_state=0, **params).fit(X, y)


def compare(
    rows: Split,
    task: str,
    components: Sequence[int],
    *,
    seeds: Sequence[int] = (0,),
    max_exact: int = 5000,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Fit and test everything; one dict per map and size, averaged over seeds."""
    from tqdm.auto import tqdm

    jobs = [
        (method, size, [seeds[0]] if method.size else seeds)
        for method in methods(rows, task, exact=len(rows.X) <= max_exact)
        for size in ([method.size] if method.size else components)
    ]
    results = []
    with tqdm(total=sum(len(draws) for _, _, draws in jobs), desc="compare", disable=not progress) as bar:
        for method, size, draws in jobs:
            if method.size or size == components[0]:
                _warm_up(method, rows, task, size)
            runs = []
            for seed in draws:
                runs.append(_run(method, rows, task, size, seed))
                bar.update()
            mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            std = float(np.std([run["error"] for run in runs], ddof=1)) if len(runs) > 1 else None
            results.append(
                {"kernel": method.kernel, "map": method.map, "n_components": size}
                | mean
                | {"error_std": std, "n_seeds": len(runs)}
            )
    return results


def _warm_up(method: Method, rows: Split, task: str, size: int) -> None:
    """Compile, or load what is compiled, outside all timings."""
    few = np.unique(rows.y, return_index=True)[1][:20] if task == "classification" else np.arange(min(20, len(rows.X)))
    _run(method, Split(rows.X[few], rows.y[few], rows.X[few], rows.y[few]), task, size, 0)


def _run(method: Method, rows: Split, task: str, size: int, seed: int) -> dict[str, float]:
    start = time.perf_counter()
    predict, alpha = method.fit(rows.X, rows.y, size, seed)
    fitted = time.perf_counter()
    prediction = predict(rows.X_test)
    ended = time.perf_counter()
    return {
        "error": error_of(prediction, rows.y_test, task),
        "alpha": alpha,
        "fit_seconds": fitted - start,
        "predict_seconds": ended - fitted,
    }


def error_of(prediction: np.ndarray, y: np.ndarray, task: str) -> float:
    """Mean squared error, or the share of rows misclassified."""
    return float(np.mean((y - prediction) ** 2) if task == "regression" else np.mean(y != prediction))
