"""Features of kernels that are power series in the cosine of two rows."""

from ntkit.features.series.dot_product import DotProductSketch
from ntkit.features.series.maclaurin import MaclaurinFeatures
from ntkit.features.series.ntk import NTKPolynomialSketch
from ntkit.features.series.polynomial import PolynomialSketch

__all__ = ["DotProductSketch", "MaclaurinFeatures", "NTKPolynomialSketch", "PolynomialSketch"]
