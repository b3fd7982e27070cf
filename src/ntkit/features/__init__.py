"""Feature maps: scikit-learn transformers whose inner products approximate a kernel."""

from ntkit.features.cntk import CNTKSketch
from ntkit.features.fastfood import FastfoodFeatures
from ntkit.features.flips import FlipAveraged, flip_images, with_flips
from ntkit.features.fourier import OrthogonalFourierFeatures, RandomFourierFeatures
from ntkit.features.front import GaussianFeatures, NTKFeatures
from ntkit.features.gegenbauer import GegenbauerFeatures
from ntkit.features.gradient import GradientFeatures
from ntkit.features.maclaurin import MaclaurinFeatures
from ntkit.features.network import NetworkFeatures
from ntkit.features.ntk import NTKPolynomialSketch, NTKRandomFeatures, NTKSketch
from ntkit.features.nystroem import NystroemFeatures
from ntkit.features.polynomial import PolynomialSketch
from ntkit.features.preprocessing import ImageStandardizer, PatchWhitening, ZCAWhitening
from ntkit.features.scaling import ArcsinhScaler
from ntkit.features.taylor import DotProductSketch

__all__ = [
    "ArcsinhScaler",
    "CNTKSketch",
    "DotProductSketch",
    "FastfoodFeatures",
    "FlipAveraged",
    "GaussianFeatures",
    "GegenbauerFeatures",
    "GradientFeatures",
    "ImageStandardizer",
    "MaclaurinFeatures",
    "NTKFeatures",
    "NTKPolynomialSketch",
    "NTKRandomFeatures",
    "NTKSketch",
    "NetworkFeatures",
    "NystroemFeatures",
    "OrthogonalFourierFeatures",
    "PatchWhitening",
    "PolynomialSketch",
    "RandomFourierFeatures",
    "ZCAWhitening",
    "flip_images",
    "with_flips",
]
