"""Feature maps: scikit-learn transformers whose inner products approximate a kernel."""

import warnings
from typing import Any

from ntkit.features.auto import GaussianFeatures, NTKFeatures
from ntkit.features.flips import FlipAveraged
from ntkit.features.fourier import FastfoodFeatures, OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.features.landmarks import NystroemFeatures
from ntkit.features.network import CNTKSketch, GradientFeatures, NetworkFeatures, NTKRandomFeatures, NTKSketch
from ntkit.features.series import DotProductSketch, MaclaurinFeatures, NTKPolynomialSketch, PolynomialSketch
from ntkit.features.zonal import GegenbauerFeatures

__all__ = [
    "CNTKSketch",
    "DotProductSketch",
    "FastfoodFeatures",
    "FlipAveraged",
    "GaussianFeatures",
    "GegenbauerFeatures",
    "GradientFeatures",
    "MaclaurinFeatures",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "NetworkFeatures",
    "NystroemFeatures",
    "OrthogonalFourierFeatures",
    "PolynomialSketch",
    "RandomFourierFeatures",
]

_MOVED = ("ArcsinhScaler", "ImageStandardizer", "PatchWhitening", "ZCAWhitening", "flip_images", "with_flips")


def __getattr__(name: str) -> Any:
    """Return names that have moved to ntkit.preprocessing, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    text = f"ntkit.features.{name} is now ntkit.preprocessing.{name}; the old name will be removed in version 0.3."
    warnings.warn(text, FutureWarning, stacklevel=2)
    from ntkit import preprocessing

    return getattr(preprocessing, name)
