"""Features of zonal kernels by spherical harmonics."""

from ntkit.features.zonal.gegenbauer import GegenbauerFeatures

__all__ = ["GegenbauerFeatures"]
