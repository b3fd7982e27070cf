"""Preprocessing for kernels: scaled and encoded columns, whitened and mirrored images."""

from ntkit.preprocessing.flips import flip_images, with_flips
from ntkit.preprocessing.images import ImageStandardizer, PatchWhitening, ZCAWhitening
from ntkit.preprocessing.piecewise import PiecewiseLinearEncoder
from ntkit.preprocessing.scaling import ArcsinhScaler

__all__ = [
    "ArcsinhScaler",
    "ImageStandardizer",
    "PatchWhitening",
    "PiecewiseLinearEncoder",
    "ZCAWhitening",
    "flip_images",
    "with_flips",
]
