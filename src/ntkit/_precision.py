"""Matrix products and convolutions on CUDA devices in the precision of their factors, with sums in float32 at least."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SHORT_SUMS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 CUDA tensors not in TF32, nor sums of 16-bit products in 16 bits, whatever torch is set to.

    The settings of the user come back at the end.
    """
    import torch

    products = torch.backends.cuda.matmul
    # Set only where needed: False would undo that the user has forbidden to split sums.
    wanted: list[tuple[Any, str, Any]] = [(products, short, False) for short in _SHORT_SUMS if getattr(products, short)]
    # One of two names for one setting; torch refuses to read the older one after the newer was set.
    if hasattr(products, "fp32_precision"):
        wanted += [(products, "fp32_precision", "ieee"), (torch.backends.cudnn.conv, "fp32_precision", "ieee")]
    else:
        wanted += [(products, "allow_tf32", False), (torch.backends.cudnn, "allow_tf32", False)]
    before = [(flags, name, getattr(flags, name)) for flags, name, _ in wanted]
    try:
        for flags, name, value in wanted:
            setattr(flags, name, value)
        yield
    finally:
        for flags, name, value in before:
            setattr(flags, name, value)
