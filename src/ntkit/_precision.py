"""Full-precision matrix products and convolutions on CUDA devices: no TF32, and sums in at least float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_SHORT_SUMS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def exact_products() -> Iterator[None]:
    """Forbid TF32 for float32 products and 16-bit sums for 16-bit products, whatever torch's settings are.

    The user's settings are restored at the end. They apply to the whole process: with several threads inside, the first
    to enter changes them and the last to leave restores them.
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
_inside = 0  # active calls, over all threads and nested ones included
_restore: Callable[[], None]


def _forbid() -> Callable[[], None]:
    """Change the settings and return a function that restores them.

    torch has an old and a new name for each setting. It raises an error if the old one allows what the new one forbids,
    so both are set.
    """
    import torch

    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    # Set old names only where needed: setting False would also undo a user's ban on split sums.
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
        for flags, value in zip(newer, before, strict=True):  # last: setting an old name also sets the new one
            flags.fp32_precision = value

    for flags, name in older:
        setattr(flags, name, False)
    if precision is not None:
        torch.set_float32_matmul_precision("highest")
    for flags in newer:
        flags.fp32_precision = "ieee"
    return restore


def _says_true(flags: Any, name: str) -> bool:
    """Whether a setting is on. A setting that contradicts its new name cannot be read and counts as off."""
    try:
        return bool(getattr(flags, name))
    except RuntimeError:
        return False


def _parts(cudnn: Any) -> list[Any]:
    """Return the parts of cuDNN that have their own precision setting."""
    return [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]


def _older_precision() -> str | None:
    """Return torch's float32 matmul precision (the old name) if it allows TF32, else None."""
    import torch

    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # the new name allows TF32, the old one does not
        return None
    return None if precision == "highest" else precision
