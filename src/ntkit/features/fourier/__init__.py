"""Fourier features of kernels of the distance."""

from ntkit.features.fourier.fastfood import FastfoodFeatures
from ntkit.features.fourier.maps import OrthogonalFourierFeatures, RandomFourierFeatures

__all__ = ["FastfoodFeatures", "OrthogonalFourierFeatures", "RandomFourierFeatures"]
