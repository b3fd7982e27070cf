"""Fourier features of kernels that depend on the distance x − y."""

from ntkit.features.fourier.fastfood import FastfoodFeatures
from ntkit.features.fourier.maps import OrthogonalFourierFeatures, RandomFourierFeatures

__all__ = ["FastfoodFeatures", "OrthogonalFourierFeatures", "RandomFourierFeatures"]
