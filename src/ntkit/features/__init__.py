"""Feature maps: scikit-learn transformers whose inner products approximate a kernel."""

from ntkit.features.polynomial import PolynomialSketch

__all__ = ["PolynomialSketch"]
