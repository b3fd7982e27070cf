"""ntkit: neural tangent kernels at scale.

Exact kernels of infinitely wide networks, oblivious sketches and feature maps of these kernels, and models that use
them. Submodules load on first use, so ``import ntkit`` is quick and imports neither numba, torch, Dask nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ntkit import (
        attribution,
        datasets,
        diagnostics,
        display,
        distributed,
        features,
        kernels,
        models,
        networks,
        persistence,
        preprocessing,
        sketches,
        tables,
    )
    from ntkit.features import (
        CNTKSketch,
        DotProductSketch,
        FastfoodFeatures,
        FlipAveraged,
        GaussianFeatures,
        GegenbauerFeatures,
        GradientFeatures,
        MaclaurinFeatures,
        NetworkFeatures,
        NTKFeatures,
        NTKPolynomialSketch,
        NTKRandomFeatures,
        NTKSketch,
        NystroemFeatures,
        OrthogonalFourierFeatures,
        PolynomialSketch,
        RandomFourierFeatures,
    )
    from ntkit.features.empirical import EmpiricalNTKFeatures
    from ntkit.kernels import network_kernel
    from ntkit.models import (
        AdaptiveFeatures,
        FeatureKMeans,
        FeatureRidge,
        FeatureRidgeClassifier,
        FeatureRidgeSearch,
        FeatureRidgeSearchClassifier,
        GramRidge,
        GramRidgeClassifier,
        KernelRidge,
        KernelRidgeClassifier,
        LearnedMetric,
        TableClassifier,
        TableRegressor,
        gram_matrix,
    )
    from ntkit.persistence import inspect, load, save
    from ntkit.preprocessing import (
        ArcsinhScaler,
        ImageStandardizer,
        PatchWhitening,
        PiecewiseLinearEncoder,
        ZCAWhitening,
        flip_images,
        with_flips,
    )

__version__ = "0.2.0"

_SUBMODULES = (
    "attribution",
    "datasets",
    "diagnostics",
    "display",
    "distributed",
    "features",
    "kernels",
    "models",
    "networks",
    "persistence",
    "preprocessing",
    "sketches",
    "tables",
)
_ON_REQUEST = ("export", "torch")  # not in __all__: ``from ntkit import *`` must neither import torch nor shadow it
_PUBLIC_MODULES = ("ntkit", *(f"ntkit.{name}" for name in (*_SUBMODULES, *_ON_REQUEST)), "ntkit.kernels.zonal")
_NAMES = {
    "AdaptiveFeatures": "ntkit.models",
    "ArcsinhScaler": "ntkit.preprocessing",
    "CNTKSketch": "ntkit.features",
    "DotProductSketch": "ntkit.features",
    "EmpiricalNTKFeatures": "ntkit.features.empirical",
    "FastfoodFeatures": "ntkit.features",
    "FeatureKMeans": "ntkit.models",
    "FeatureRidge": "ntkit.models",
    "FeatureRidgeClassifier": "ntkit.models",
    "FeatureRidgeSearch": "ntkit.models",
    "FeatureRidgeSearchClassifier": "ntkit.models",
    "FlipAveraged": "ntkit.features",
    "GaussianFeatures": "ntkit.features",
    "GegenbauerFeatures": "ntkit.features",
    "GradientFeatures": "ntkit.features",
    "GramRidge": "ntkit.models",
    "GramRidgeClassifier": "ntkit.models",
    "ImageStandardizer": "ntkit.preprocessing",
    "KernelRidge": "ntkit.models",
    "KernelRidgeClassifier": "ntkit.models",
    "LearnedMetric": "ntkit.models",
    "MaclaurinFeatures": "ntkit.features",
    "NTKFeatures": "ntkit.features",
    "NTKPolynomialSketch": "ntkit.features",
    "NTKRandomFeatures": "ntkit.features",
    "NTKSketch": "ntkit.features",
    "NetworkFeatures": "ntkit.features",
    "NystroemFeatures": "ntkit.features",
    "OrthogonalFourierFeatures": "ntkit.features",
    "PatchWhitening": "ntkit.preprocessing",
    "PiecewiseLinearEncoder": "ntkit.preprocessing",
    "PolynomialSketch": "ntkit.features",
    "RandomFourierFeatures": "ntkit.features",
    "TableClassifier": "ntkit.models",
    "TableRegressor": "ntkit.models",
    "ZCAWhitening": "ntkit.preprocessing",
    "flip_images": "ntkit.preprocessing",
    "gram_matrix": "ntkit.models",
    "inspect": "ntkit.persistence",
    "load": "ntkit.persistence",
    "network_kernel": "ntkit.kernels",
    "save": "ntkit.persistence",
    "with_flips": "ntkit.preprocessing",
}

__all__ = [
    "AdaptiveFeatures",
    "ArcsinhScaler",
    "CNTKSketch",
    "DotProductSketch",
    "EmpiricalNTKFeatures",
    "FastfoodFeatures",
    "FeatureKMeans",
    "FeatureRidge",
    "FeatureRidgeClassifier",
    "FeatureRidgeSearch",
    "FeatureRidgeSearchClassifier",
    "FlipAveraged",
    "GaussianFeatures",
    "GegenbauerFeatures",
    "GradientFeatures",
    "GramRidge",
    "GramRidgeClassifier",
    "ImageStandardizer",
    "KernelRidge",
    "KernelRidgeClassifier",
    "LearnedMetric",
    "MaclaurinFeatures",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "NetworkFeatures",
    "NystroemFeatures",
    "OrthogonalFourierFeatures",
    "PatchWhitening",
    "PiecewiseLinearEncoder",
    "PolynomialSketch",
    "RandomFourierFeatures",
    "TableClassifier",
    "TableRegressor",
    "ZCAWhitening",
    "__version__",
    "attribution",
    "datasets",
    "diagnostics",
    "display",
    "distributed",
    "features",
    "flip_images",
    "gram_matrix",
    "inspect",
    "kernels",
    "load",
    "models",
    "network_kernel",
    "networks",
    "persistence",
    "preprocessing",
    "save",
    "sketches",
    "tables",
    "with_flips",
]


def __getattr__(name: str) -> Any:
    if name in (*_SUBMODULES, *_ON_REQUEST):
        return import_module(f"ntkit.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'ntkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
