"""Matrix products and convolutions on CUDA devices in the precision of their factors, with sums in float32 at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_SHORT_SUMS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 CUDA tensors not in TF32, nor sums of 16-bit products in 16 bits, whatever torch is set to.

    The settings of the user come back at the end. They are those of the whole process: where several threads are
    inside, the first one changes them and the last one brings them back.
    """
    global _inside, _restore
    with _lock:
        if not _inside:
            _restore = _forbid()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _restore()


_lock = Lock()
_inside = 0  # threads, and calls within others
_restore: Callable[[], None]


def _forbid() -> Callable[[], None]:
    """Change the settings; what brings them back.

    torch has an older and a newer name for the same thing, and raises where the older one allows what the newer one
    forbids: both are set.
    """
    import torch

    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # Older names are set only where needed: False would also undo that the user has forbidden to split sums.
    older = [(products, name) for name in _SHORT_SUMS if _says_true(products, name)]
    older += [(cudnn, "allow_tf32")] if _says_true(cudnn, "allow_tf32") else []
    newer = [flags for flags in (products, *_parts(cudnn)) if hasattr(flags, "fp32_precision")]
    before = [flags.fp32_precision for flags in newer]
    precision = _older_precision()

    def restore() -> None:
        for flags, name in older:
            setattr(flags, name, True)
        if precision is not None:
            torch.set_float32_matmul_precision(precision)
        for flags, value in zip(newer, before, strict=True):  # last: setting an older name sets the newer one too
            flags.fp32_precision = value

    for flags, name in older:
        setattr(flags, name, False)
    if precision is not None:
        torch.set_float32_matmul_precision("highest")
    for flags in newer:
        flags.fp32_precision = "ieee"
    return restore


def _says_true(flags: Any, name: str) -> bool:
    """Whether a setting is on; one that contradicts its newer name cannot be read, and does not count."""
    try:
        return bool(getattr(flags, name))
    except RuntimeError:
        return False


def _parts(cudnn: Any) -> list[Any]:
    """What has a precision of its own in cuDNN."""
    return [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]


def _older_precision() -> str | None:
    """What ``set_float32_matmul_precision`` was last given, if that allows TF32."""
    import torch

    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # TF32 by the newer name, and not by this one
        return None
    return None if precision == "highest" else precision
