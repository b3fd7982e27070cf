"""Exact kernels: arc-cosine functions, NTK, NNGP and CNTK of any network, Gaussian and dot-product kernels."""

from ntkit.kernels._named import diagonal, gram, row_blocks
from ntkit.kernels.arccos import arc_cosine, arc_cosine_taylor, relu_ntk, relu_ntk_taylor
from ntkit.kernels.dot_product import dot_product, exponential, gaussian, polynomial
from ntkit.kernels.fit import nonnegative_polynomial
from ntkit.kernels.network import NetworkKernels, cntk, network_kernel, nngp, ntk

__all__ = [
    "NetworkKernels",
    "arc_cosine",
    "arc_cosine_taylor",
    "cntk",
    "diagonal",
    "dot_product",
    "exponential",
    "gaussian",
    "gram",
    "network_kernel",
    "nngp",
    "nonnegative_polynomial",
    "ntk",
    "polynomial",
    "relu_ntk",
    "relu_ntk_taylor",
    "row_blocks",
]
