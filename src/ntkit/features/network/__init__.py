"""Features of kernels of networks: sketched or random features layer by layer, and gradients of finite networks."""

from ntkit.features.network.gradient import GradientFeatures
from ntkit.features.network.maps import NetworkFeatures
from ntkit.features.network.presets import CNTKSketch, NTKRandomFeatures, NTKSketch

__all__ = ["CNTKSketch", "GradientFeatures", "NTKRandomFeatures", "NTKSketch", "NetworkFeatures"]
