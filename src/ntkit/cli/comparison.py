"""Comparison of feature maps, exact kernels and gradient-boosted trees on one table: error, time and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ntkit.cli.scores import new_trees

Predictor = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray, int, int], tuple[Predictor, float]]


class Method(NamedTuple):
    """A method to compare: ``fit(X, y, n_components, seed)`` returns a function that predicts, and α.

    `size` is None for methods that use the number of components and the seed. For the others it is the size to report:
    the number of columns, rows or trees.
    """

    kernel: str
    map: str
    fit: Fit
    size: int | None = None


class TrainTest(NamedTuple):
    """Training and test rows with their targets, which are numbers or labels."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def methods(rows: TrainTest, task: str, *, exact: bool) -> list[Method]:
    """Return the methods to compare. The Gaussian kernel has two length scales."""
    from sklearn.kernel_approximation import RBFSampler

    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures
    from ntkit.preprocessing import ArcsinhScaler

    def ntk(**params: Any) -> Fit:
        return _feature_fit(task, lambda m, seed: NTKFeatures(n_components=m, bias="auto", random_state=seed, **params))

    def fourier(scale: float) -> Fit:
        return _feature_fit(
            task, lambda m, seed: RandomFourierFeatures(n_components=m, lengthscale=scale, random_state=seed)
        )

    def sampler(scale: float) -> Fit:
        return _feature_fit(task, lambda m, seed: RBFSampler(gamma=0.5 / scale**2, n_components=m, random_state=seed))

    n_rows, n_columns = rows.X.shape
    lengthscale = float(np.sqrt(n_columns * ArcsinhScaler().fit_transform(rows.X).var() / 2)) or 1.0
    found = [Method("linear", "", _feature_fit(task, lambda *_: "passthrough"), n_columns)]
    kernels = []
    for depth in (1, 3):
        name = f"NTK depth {depth}"
        found += [Method(name, kind, ntk(depth=depth, method=kind)) for kind in ("polynomial", "random", "sketch")]
        kernels += [Method(name, "exact", _kernel_fit(task, n_columns**0.5, "ntk", depth=depth), n_rows)]
    for scale in (lengthscale, lengthscale / 2):
        name = f"Gaussian ℓ = {scale:.3g}"
        found += [Method(name, "Fourier", fourier(scale)), Method(name, "RBFSampler", sampler(scale))]
        kernels += [Method(name, "exact", _kernel_fit(task, 0.0, "gaussian", lengthscale=scale), n_rows)]
    adaptive = [Method("learned metric", "Nyström", _feature_fit(task, _adaptive))]
    return found + adaptive + kernels * exact + _trees(task)


def _adaptive(n_components: int, seed: int) -> Any:
    from ntkit.models import AdaptiveFeatures

    return AdaptiveFeatures(n_components=n_components, random_state=seed)


def _trees(task: str) -> list[Method]:
    """Return the baselines: gradient boosting of scikit-learn and, if installed, LightGBM, with default parameters."""

    def fit_of(make: Callable[[], Any]) -> Fit:
        def fit(X: np.ndarray, y: np.ndarray, *_: int) -> tuple[Predictor, float]:
            return make().fit(X, y).predict, float("nan")

        return fit

    found = [Method("trees", "HistGradientBoosting", fit_of(lambda: new_trees(task)), 100)]
    try:
        import lightgbm
    except ImportError:
        return found
    model = lightgbm.LGBMRegressor if task == "regression" else lightgbm.LGBMClassifier
    return [*found, Method("trees", "LightGBM", fit_of(lambda: model(random_state=0, verbose=-1)), 100)]


def _feature_fit(task: str, make: Callable[[int, int], Any]) -> Fit:
    def fit(X: np.ndarray, y: np.ndarray, n_components: int, seed: int) -> tuple[Predictor, float]:
        from sklearn.pipeline import Pipeline

        from ntkit.models import FeatureRidge, FeatureRidgeClassifier
        from ntkit.preprocessing import ArcsinhScaler

        features = Pipeline([("scale", ArcsinhScaler()), ("features", make(n_components, seed))])
        model = (FeatureRidge if task == "regression" else FeatureRidgeClassifier)(features, random_state=seed)
        return model.fit(X, y).predict, model.alpha_

    return fit


def _kernel_fit(task: str, bias: float, kernel: str, **params: Any) -> Fit:
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
    """Fit kernel ridge regression or classification. α minimizes the leave-one-out error, in any order of rows."""
    from ntkit.models import KernelRidge, KernelRidgeClassifier

    model = KernelRidge if task == "regression" else KernelRidgeClassifier
    return model(kernel, alphas=None, solver="direct", random_state=0, **params).fit(X, y)


def compare(
    rows: TrainTest,
    task: str,
    components: Sequence[int],
    *,
    seeds: Sequence[int] = (0,),
    max_exact: int = 5000,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Fit and test all methods. Return one dict per method and size, averaged over seeds."""
    from tqdm.auto import tqdm

    jobs = [
        (method, size, [seeds[0]] if method.size else seeds)
        for method in methods(rows, task, exact=len(rows.X) <= max_exact)
        for size in ([method.size] if method.size else components)
    ]
    results = []
    n_fits = sum(len(draws) for _, _, draws in jobs)
    with tqdm(total=n_fits, desc="compare", unit=" fits", leave=False, disable=not progress) as bar:
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


def _warm_up(method: Method, rows: TrainTest, task: str, size: int) -> None:
    """Run once on a few rows, so that compilation and loading of compiled code are not timed."""
    few = np.unique(rows.y, return_index=True)[1][:20] if task == "classification" else np.arange(min(20, len(rows.X)))
    _run(method, TrainTest(rows.X[few], rows.y[few], rows.X[few], rows.y[few]), task, size, 0)


def _run(method: Method, rows: TrainTest, task: str, size: int, seed: int) -> dict[str, float]:
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
    """Return the mean squared error, or the fraction of misclassified rows."""
    return float(np.mean((y - prediction) ** 2) if task == "regression" else np.mean(y != prediction))
