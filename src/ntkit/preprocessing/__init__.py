"""What comes before a kernel: scaled columns, whitened and mirrored images."""

from ntkit.preprocessing.flips import flip_images, with_flips
from ntkit.preprocessing.images import ImageStandardizer, PatchWhitening, ZCAWhitening
from ntkit.preprocessing.scaling import ArcsinhScaler

__all__ = [
    "ArcsinhScaler",
    "ImageStandardizer",
    "PatchWhitening",
    "ZCAWhitening",
    "flip_images",
    "with_flips",
]
