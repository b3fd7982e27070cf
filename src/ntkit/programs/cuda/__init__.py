"""Programs on CUDA tensors, by Triton kernels and torch."""

from ntkit.programs.cuda.runner import run

__all__ = ["run"]
