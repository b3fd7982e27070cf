"""Feature maps: scikit-learn transformers whose inner products approximate a kernel."""

from ntkit.features.cntk import CNTKSketch
from ntkit.features.flips import FlipAveraged, flip_images, with_flips
from ntkit.features.fourier import RandomFourierFeatures
from ntkit.features.front import NTKFeatures
from ntkit.features.gradient import GradientFeatures
from ntkit.features.network import NetworkFeatures
from ntkit.features.ntk import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.features.polynomial import PolynomialSketch
from ntkit.features.preprocessing import ImageStandardizer, PatchWhitening, ZCAWhitening
from ntkit.features.scaling import ArcsinhScaler

__all__ = [
    "ArcsinhScaler",
    "CNTKSketch",
    "FlipAveraged",
    "GradientFeatures",
    "ImageStandardizer",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "NetworkFeatures",
    "PatchWhitening",
    "PolynomialSketch",
    "RandomFourierFeatures",
    "ZCAWhitening",
    "flip_images",
    "with_flips",
]
