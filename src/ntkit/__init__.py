"""ntkit: neural tangent kernels at scale.

Exact kernels of infinitely wide networks, oblivious sketches, and explicit features of the kernels; learners on top.
Submodules load on first use, so ``import ntkit`` is quick and pulls in neither numba, torch, Dask nor
matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ntkit import (
        datasets,
        diagnostics,
        display,
        distributed,
        features,
        kernels,
        models,
        networks,
        persistence,
        sketches,
        tables,
    )
    from ntkit.features import (
        ArcsinhScaler,
        GradientFeatures,
        NTKFeatures,
        NTKPolynomialSketch,
        NTKRandomFeatures,
        NTKSketch,
        PolynomialSketch,
        RandomFourierFeatures,
    )
    from ntkit.kernels import network_kernel
    from ntkit.models import (
        FeatureRidge,
        FeatureRidgeClassifier,
        FeatureRidgeSearch,
        FeatureRidgeSearchClassifier,
    )
    from ntkit.persistence import load, save

__version__ = "0.1.0"

_SUBMODULES = (
    "datasets",
    "diagnostics",
    "display",
    "distributed",
    "features",
    "kernels",
    "models",
    "networks",
    "persistence",
    "sketches",
    "tables",
)
_NAMES = {
    "ArcsinhScaler": "ntkit.features",
    "FeatureRidge": "ntkit.models",
    "FeatureRidgeClassifier": "ntkit.models",
    "FeatureRidgeSearch": "ntkit.models",
    "FeatureRidgeSearchClassifier": "ntkit.models",
    "GradientFeatures": "ntkit.features",
    "NTKFeatures": "ntkit.features",
    "NTKPolynomialSketch": "ntkit.features",
    "NTKRandomFeatures": "ntkit.features",
    "NTKSketch": "ntkit.features",
    "PolynomialSketch": "ntkit.features",
    "RandomFourierFeatures": "ntkit.features",
    "load": "ntkit.persistence",
    "network_kernel": "ntkit.kernels",
    "save": "ntkit.persistence",
}

__all__ = [
    "ArcsinhScaler",
    "FeatureRidge",
    "FeatureRidgeClassifier",
    "FeatureRidgeSearch",
    "FeatureRidgeSearchClassifier",
    "GradientFeatures",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "PolynomialSketch",
    "RandomFourierFeatures",
    "__version__",
    "datasets",
    "diagnostics",
    "display",
    "distributed",
    "features",
    "kernels",
    "load",
    "models",
    "network_kernel",
    "networks",
    "persistence",
    "save",
    "sketches",
    "tables",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"ntkit.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'ntkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
