"""Exact kernels: NTK, NNGP and CNTK of any network, arc-cosine, dot-product, Gaussian, Laplace and Matérn kernels."""

from ntkit.kernels.arccos import arc_cosine, relu_ntk
from ntkit.kernels.distances import gaussian, laplace, matern
from ntkit.kernels.dot_product import dot_product, exponential, polynomial
from ntkit.kernels.fit import nonnegative_polynomial
from ntkit.kernels.network import NetworkKernels, cntk, network_kernel, nngp, ntk
from ntkit.kernels.series import arc_cosine_taylor, relu_ntk_taylor
from ntkit.kernels.spec import KernelSpec, diagonal, gram, row_blocks

__all__ = [
    "KernelSpec",
    "NetworkKernels",
    "arc_cosine",
    "arc_cosine_taylor",
    "cntk",
    "diagonal",
    "dot_product",
    "exponential",
    "gaussian",
    "gram",
    "laplace",
    "matern",
    "network_kernel",
    "nngp",
    "nonnegative_polynomial",
    "ntk",
    "polynomial",
    "relu_ntk",
    "relu_ntk_taylor",
    "row_blocks",
]
