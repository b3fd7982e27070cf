"""Programs on CUDA tensors, run by Triton kernels and torch."""

from ntkit.programs.cuda.runner import run

__all__ = ["run"]
