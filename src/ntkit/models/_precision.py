"""Matrix products on CUDA devices in the precision of their factors, with sums in float32 at least."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_SHORT_SUMS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 CUDA tensors not in TF32, nor sums of 16-bit products in 16 bits, whatever torch is set to.

    The settings of the user come back at the end.
    """
    import torch

    flags = torch.backends.cuda.matmul
    # One of two names for one setting; torch refuses to read the older one after the newer was set.
    name, exact = ("fp32_precision", "ieee") if hasattr(flags, "fp32_precision") else ("allow_tf32", False)
    before = {name: getattr(flags, name)} | {short: True for short in _SHORT_SUMS if getattr(flags, short)}
    try:
        for flag in before:
            setattr(flags, flag, exact if flag == name else False)
        yield
    finally:
        for flag, value in before.items():
            setattr(flags, flag, value)
