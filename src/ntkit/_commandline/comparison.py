"""All feature maps on one table, and exact kernels where they fit: error, time and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

ALPHAS = 10.0 ** np.arange(-7, 2)  # times the mean of the diagonal of the kernel


class Method(NamedTuple):
    """A feature map of a kernel; `make` takes a number of components and a seed. Without components: the columns."""

    kernel: str
    map: str
    make: Callable[[int, int], Any] | None


class Exact(NamedTuple):
    """An exact kernel of standardized rows."""

    kernel: str
    gram: Callable[[np.ndarray, np.ndarray | None], np.ndarray]


class Rows(NamedTuple):
    """Rows to train and to test on; targets are numbers, or class numbers."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def methods(lengthscale: float) -> list[Method]:
    """Maps to compare; the Gaussian kernel at that length scale and half of it."""
    from sklearn.kernel_approximation import RBFSampler

    from ntkit.features import NTKFeatures
    from ntkit.features.fourier import RandomFourierFeatures

    def ntk(depth: int, method: str) -> Callable[[int, int], Any]:
        return lambda m, seed: NTKFeatures(depth=depth, n_components=m, method=method, bias="auto", random_state=seed)

    def fourier(scale: float) -> Callable[[int, int], Any]:
        return lambda m, seed: RandomFourierFeatures(n_components=m, lengthscale=scale, random_state=seed)

    def sampler(scale: float) -> Callable[[int, int], Any]:
        return lambda m, seed: RBFSampler(gamma=0.5 / scale**2, n_components=m, random_state=seed)

    found = [Method("linear", "", None)]
    for depth in (1, 3):
        found += [Method(f"NTK depth {depth}", name, ntk(depth, name)) for name in ("polynomial", "random", "sketch")]
    for scale in (lengthscale, lengthscale / 2):
        name = f"Gaussian ℓ = {scale:.3g}"
        found += [Method(name, "Fourier", fourier(scale)), Method(name, "RBFSampler", sampler(scale))]
    return found


def exact_kernels(lengthscale: float, n_features: int) -> list[Exact]:
    """The kernels that the maps approximate."""
    from ntkit import kernels
    from ntkit.features.auto import with_constant

    def ntk(depth: int) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
        def gram(X: np.ndarray, Y: np.ndarray | None) -> np.ndarray:
            bias = n_features**0.5
            others = None if Y is None else with_constant(Y, bias)
            return kernels.ntk(with_constant(X, bias), others, depth=depth)

        return gram

    def gaussian(scale: float) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
        return lambda X, Y: kernels.gaussian(X, Y, lengthscale=scale)

    found = [Exact(f"NTK depth {depth}", ntk(depth)) for depth in (1, 3)]
    return found + [Exact(f"Gaussian ℓ = {s:.3g}", gaussian(s)) for s in (lengthscale, lengthscale / 2)]


def compare(
    rows: Rows,
    task: str,
    components: Sequence[int],
    *,
    seeds: Sequence[int] = (0,),
    max_exact: int = 5000,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Fit and test everything; one dict per map and size, averaged over seeds."""
    from tqdm.auto import tqdm

    variance = _standardized(rows).X.var()
    lengthscale = float(np.sqrt(rows.X.shape[1] * variance / 2)) or 1.0
    maps = methods(lengthscale)
    exact = exact_kernels(lengthscale, rows.X.shape[1]) if len(rows.X) <= max_exact else []
    jobs = [(method, m) for method in maps for m in (components if method.make else [rows.X.shape[1]])]
    total = sum(len(seeds) if method.make else 1 for method, _ in jobs) + len(exact)
    results = []
    with tqdm(total=total, desc="compare", disable=not progress) as bar:
        for method, m in jobs:
            if method.make is None or m == components[0]:
                _warm_up(method, rows, task, m)
            runs = []
            for seed in seeds if method.make else seeds[:1]:
                runs.append(_run(method, rows, task, m, seed))
                bar.update()
            results.append(_mean(runs, method.kernel, method.map, m))
        for kernel in exact:
            results.append(_mean([_run_exact(kernel, rows, task)], kernel.kernel, "exact", len(rows.X)))
            bar.update()
    return results


def _standardized(rows: Rows) -> Rows:
    from ntkit.preprocessing import ArcsinhScaler

    scaler = ArcsinhScaler().fit(rows.X)
    return rows._replace(X=scaler.transform(rows.X), X_test=scaler.transform(rows.X_test))


def _warm_up(method: Method, rows: Rows, task: str, m: int) -> None:
    """Compile, or load what is compiled, outside all timings."""
    few = np.unique(rows.y, return_index=True)[1][:20] if task == "classification" else np.arange(min(20, len(rows.X)))
    _run(method, Rows(rows.X[few], rows.y[few], rows.X[few], rows.y[few]), task, m, 0)


def _run(method: Method, rows: Rows, task: str, m: int, seed: int) -> dict[str, Any]:
    from sklearn.pipeline import Pipeline

    from ntkit.models import FeatureRidge, FeatureRidgeClassifier
    from ntkit.preprocessing import ArcsinhScaler

    features = method.make(m, seed) if method.make else "passthrough"
    model = (FeatureRidge if task == "regression" else FeatureRidgeClassifier)(
        Pipeline([("scale", ArcsinhScaler()), ("features", features)]), random_state=seed
    )
    start = time.perf_counter()
    model.fit(rows.X, rows.y)
    fitted = time.perf_counter()
    prediction = model.predict(rows.X_test)
    ended = time.perf_counter()
    return {
        "error": held_out_error(rows.y_test, prediction, task),
        "alpha": model.alpha_,
        "fit_seconds": fitted - start,
        "predict_seconds": ended - fitted,
    }


def _run_exact(kernel: Exact, rows: Rows, task: str) -> dict[str, Any]:
    start = time.perf_counter()
    rows = _standardized(rows._replace(X=rows.X.astype(np.float64), X_test=rows.X_test.astype(np.float64)))
    weights, alpha, decode = exact_ridge(kernel.gram(rows.X, None), rows.y, task)
    fitted = time.perf_counter()
    prediction = decode(kernel.gram(rows.X_test, rows.X) @ weights)
    ended = time.perf_counter()
    return {
        "error": held_out_error(rows.y_test, prediction, task),
        "alpha": alpha,
        "fit_seconds": fitted - start,
        "predict_seconds": ended - fitted,
    }


def exact_ridge(K: np.ndarray, y: np.ndarray, task: str) -> tuple[np.ndarray, float, Callable[[Any], np.ndarray]]:
    """Kernel ridge regression, with α chosen on the last quarter of the rows.

    Returns the dual weights (K + α)⁻¹(Y − mean), the α, and what turns K(x, X) @ weights into predictions.
    """
    classes = np.unique(y) if task == "classification" else None
    Y = y[:, None].astype(np.float64) if classes is None else (y[:, None] == classes).astype(np.float64)
    n = len(K)
    cut = n - max(n // 4, 1)
    alphas = ALPHAS * float(np.trace(K)) / n

    def decoder(mean: np.ndarray) -> Callable[[Any], np.ndarray]:
        return lambda Z: (Z + mean)[:, 0] if classes is None else classes[(Z + mean).argmax(axis=1)]

    decode = decoder(Y[:cut].mean(axis=0))
    errors = []
    for alpha in alphas:
        weights = _dual(K[:cut, :cut], Y[:cut] - Y[:cut].mean(axis=0), alpha)
        errors.append(np.inf if weights is None else held_out_error(y[cut:], decode(K[cut:, :cut] @ weights), task))
    order = np.argsort(errors, kind="stable")
    for alpha in alphas[order]:
        weights = _dual(K, Y - Y.mean(axis=0), alpha)
        if weights is not None:
            return weights, float(alpha), decoder(Y.mean(axis=0))
    raise ValueError("The kernel matrix has numbers that are not finite. Look for extreme values in the table.")


def _dual(K: np.ndarray, Y: np.ndarray, alpha: float) -> np.ndarray | None:
    """(K + α)⁻¹Y, or None where that is lost in rounding."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    K = K.astype(np.float64)
    K[np.diag_indices_from(K)] += alpha
    try:
        return cho_solve(cho_factor(K, overwrite_a=True, check_finite=False), Y)
    except LinAlgError:
        return None


def held_out_error(y: np.ndarray, prediction: np.ndarray, task: str) -> float:
    """Mean squared error, or the share of rows misclassified."""
    return float(np.mean((y - prediction) ** 2) if task == "regression" else np.mean(y != prediction))


def _mean(runs: Sequence[dict[str, Any]], kernel: str, name: str, m: int) -> dict[str, Any]:
    mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    std = float(np.std([run["error"] for run in runs], ddof=1)) if len(runs) > 1 else None
    return {"kernel": kernel, "map": name, "n_components": m, **mean, "error_std": std, "n_seeds": len(runs)}
