"""Feature maps: scikit-learn transformers whose inner products approximate a kernel."""

from ntkit.features.fourier import RandomFourierFeatures
from ntkit.features.front import NTKFeatures
from ntkit.features.gradient import GradientFeatures
from ntkit.features.ntk import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.features.polynomial import PolynomialSketch
from ntkit.features.scaling import ArcsinhScaler

__all__ = [
    "ArcsinhScaler",
    "GradientFeatures",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "PolynomialSketch",
    "RandomFourierFeatures",
]
