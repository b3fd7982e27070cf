"""Fitted estimators that the tests of torch modules, gradients and exported files share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import ntkit
from ntkit import networks

NETWORK = networks.Sequential(networks.Dense(), networks.GELU(), networks.Dense())
IMAGE_NETWORK = networks.Sequential(
    networks.Conv(3), networks.ReLU(), networks.AvgPool(2), networks.Conv(3), networks.ReLU(), networks.GlobalAvgPool()
)


def rows(n: int = 60, d: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def images(n: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 4, 4, 2))


def targets(X: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(9).standard_normal(len(X))
    return np.sin(X[:, 0]) * X[:, 1] + 0.1 * noise


def labels(X: np.ndarray) -> np.ndarray:
    return np.array(["low", "middle", "high"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]


MAPS: dict[str, Any] = {
    "fourier": ntkit.RandomFourierFeatures(n_components=33, random_state=0),
    "orthogonal": ntkit.OrthogonalFourierFeatures(n_components=32, random_state=0),
    "fastfood": ntkit.FastfoodFeatures(n_components=32, random_state=0),
    "ntk sketch": ntkit.NTKSketch(depth=1, n_components=64, random_state=0),
    "ntk random": ntkit.NTKRandomFeatures(depth=2, n_components=64, random_state=0),
    "ntk polynomial": ntkit.NTKPolynomialSketch(n_components=64, random_state=0),
    "ntk": ntkit.NTKFeatures(n_components=64, random_state=0),
    "gaussian": ntkit.GaussianFeatures(n_components=64, random_state=0),
    "polynomial": ntkit.PolynomialSketch(degree=3, coef0=1.0, n_components=32, random_state=0),
    "gegenbauer": ntkit.GegenbauerFeatures(n_components=64, random_state=0),
    "maclaurin": ntkit.MaclaurinFeatures(n_components=32, random_state=0),
    "dot product": ntkit.DotProductSketch("exponential", n_components=64, random_state=0),
    "network": ntkit.NetworkFeatures(NETWORK, n_components=32, random_state=0),
    "nystroem": ntkit.NystroemFeatures(n_components=12, random_state=0),
    "nystroem ntk": ntkit.NystroemFeatures("ntk", depth=2, n_components=12, random_state=0),
    "nystroem laplace": ntkit.NystroemFeatures("laplace", n_components=12, random_state=0),
    "nystroem l1": ntkit.NystroemFeatures("laplace", kernel_params={"norm": "l1"}, n_components=12, random_state=0),
    "nystroem matern": ntkit.NystroemFeatures("matern", n_components=12, random_state=0),
    "nystroem exponential": ntkit.NystroemFeatures("exponential", n_components=12, random_state=0),
    "nystroem network": ntkit.NystroemFeatures(NETWORK, n_components=12, random_state=0),
    "gradient": ntkit.GradientFeatures(
        networks.Sequential(networks.Dense(), networks.ReLU(), networks.Dense()), width=8, random_state=0
    ),
    "arcsinh": ntkit.ArcsinhScaler(),
    "piecewise": ntkit.PiecewiseLinearEncoder(n_knots=5),
    "pipeline": make_pipeline(
        SimpleImputer(), RobustScaler(), MinMaxScaler(), MaxAbsScaler(), StandardScaler(), PCA(4, whiten=True),
        ntkit.RandomFourierFeatures(n_components=16, random_state=0),
    ),
}  # fmt: skip
IMAGE_MAPS: dict[str, Any] = {
    "cntk": ntkit.CNTKSketch(depth=2, n_components=16, random_state=0),
    "image network": ntkit.NetworkFeatures(IMAGE_NETWORK, n_components=16, random_state=0),
    "flips": ntkit.FlipAveraged(ntkit.CNTKSketch(depth=2, n_components=16, random_state=0)),
    "standardizer": ntkit.ImageStandardizer(),
    "zca": ntkit.ZCAWhitening(),
    "patches": ntkit.PatchWhitening(),
    "nystroem cntk": ntkit.NystroemFeatures("cntk", depth=2, n_components=4, random_state=0),
}
REGRESSORS: dict[str, Any] = {
    "feature ridge": ntkit.FeatureRidge(ntkit.NTKFeatures(n_components=64, random_state=0), random_state=0),
    "default": ntkit.FeatureRidge(random_state=0),
    "adaptive": ntkit.FeatureRidge(ntkit.AdaptiveFeatures(n_components=16, random_state=0), random_state=0),
    "additive": ntkit.FeatureRidge(ntkit.AdaptiveFeatures(n_components=16, random_state=0), random_state=0),
    "kernel ridge": ntkit.KernelRidge("ntk", depth=2, alphas=0.1),
    "kernel ridge gaussian": ntkit.KernelRidge("gaussian", alphas=0.1),
    "scaled": make_pipeline(
        ntkit.ArcsinhScaler(),
        ntkit.FeatureRidge(ntkit.GaussianFeatures(n_components=32, random_state=0), random_state=0),
    ),
    "linear": make_pipeline(ntkit.NTKFeatures(n_components=32, random_state=0), Ridge()),
}
CLASSIFIERS: dict[str, Any] = {
    "feature classifier": ntkit.FeatureRidgeClassifier(
        ntkit.NTKFeatures(n_components=64, random_state=0), random_state=0
    ),
    "kernel classifier": ntkit.KernelRidgeClassifier("gaussian", alphas=0.1),
}


@cache
def fitted(name: str) -> Any:
    """A fitted estimator of a name, of float64 rows."""
    from sklearn.base import clone

    if name in IMAGE_MAPS:
        return clone(IMAGE_MAPS[name]).fit(images())
    X = rows()
    if name in MAPS:
        return clone(MAPS[name]).fit(X, targets(X))
    if name == "additive":
        X = rows(300)
        model = clone(REGRESSORS[name]).fit(X, np.abs(X).sum(axis=1))
        assert model.features_.additive_ is not None
        return model
    y = labels(X) if name in CLASSIFIERS else targets(X)
    return clone({**REGRESSORS, **CLASSIFIERS}[name]).fit(X, y)


def new_data(name: str, n: int = 5) -> np.ndarray:
    """Rows or images that the estimator of a name has not seen."""
    return images(n, seed=7) if name in IMAGE_MAPS else rows(n, seed=7)
