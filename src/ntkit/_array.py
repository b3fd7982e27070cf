"""Helpers for arrays of any library: namespace, device and precision of NumPy arrays, torch tensors and SciPy CSR rows.

torch is imported only inside functions that receive a tensor, so it is loaded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np

Array: TypeAlias = Any
"""A NumPy array, a torch tensor, or any other array that follows the array API standard."""


def is_numpy(x: object) -> bool:
    """Whether `x` is a NumPy array."""
    return isinstance(x, np.ndarray)


def is_torch(x: object) -> bool:
    """Whether `x` is a torch tensor."""
    return bool(compat.is_torch_array(x))


def is_traced(x: object) -> bool:
    """Whether `x` is a symbolic array from which :mod:`ntkit.graphs` records a graph."""
    return bool(getattr(type(x), "is_traced", False))


def is_sparse(x: object) -> bool:
    """Whether `x` is a SciPy sparse array or matrix."""
    module = type(x).__module__
    if not module.startswith("scipy.sparse"):  # avoid importing SciPy for other arrays
        return False
    from scipy.sparse import issparse

    return bool(issparse(x))


def is_dask(x: object) -> bool:
    """Whether `x` is a Dask array, data frame or series."""
    return type(x).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(x, "__dask_graph__")


def is_array(x: object) -> bool:
    """Whether `x` is a dense array of some array library. Lists, data frames and sparse matrices are not."""
    return bool(compat.is_array_api_obj(x)) and not is_sparse(x) and not isinstance(x, type)


def has_triton(x: object) -> bool:
    """Whether `x` is a CUDA tensor for which Triton kernels can be compiled."""
    return is_torch(x) and x.device.type == "cuda" and find_spec("triton") is not None  # type: ignore[attr-defined]


def namespace(*arrays: Array) -> ModuleType:
    """Return the array API namespace common to all `arrays`."""
    return compat.array_namespace(*arrays)


def device(x: Array) -> Any:
    """Return the device of `x`."""
    return compat.device(x)


def wide_dtype(x: Array) -> Any:
    """Return the dtype for exact kernels: float64, or float32 on devices without float64 (Apple's MPS)."""
    xp = namespace(x)
    on_mps = is_torch(x) and x.device.type == "mps"
    return xp.float32 if on_mps else xp.float64


def widen(x: Array) -> Array:
    """Cast `x` to :func:`wide_dtype`."""
    return namespace(x).astype(x, wide_dtype(x), copy=False)


def result_dtype(*arrays: Array) -> Any:
    """Return the floating dtype for values computed from `arrays`; :func:`wide_dtype` if any array holds integers."""
    xp: Any = np if is_sparse(arrays[0]) else namespace(*arrays)
    if not all(xp.isdtype(a.dtype, "real floating") for a in arrays):
        return np.float64 if xp is np else wide_dtype(arrays[0])
    return xp.result_type(*(a.dtype for a in arrays))


def host_view(x: Array) -> np.ndarray | None:
    """Return a NumPy array that shares memory with `x`, or None if `x` is not in host memory."""
    if is_numpy(x):
        return x
    half = is_torch(x) and x.dtype.is_floating_point and x.dtype.itemsize < 4
    if is_torch(x) and x.device.type == "cpu" and not half:
        return x.detach().resolve_neg().numpy()
    return None


def like(values: np.ndarray, x: Array) -> Array:
    """Return NumPy `values` as an array of the same library as `x`, without a copy."""
    if is_torch(x):
        import torch

        return torch.from_numpy(values)
    return values


def to_numpy(x: Any) -> Any:
    """Convert tensors to NumPy arrays (bfloat16, which NumPy lacks, to float32); return other values unchanged."""
    if not is_torch(x):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x.resolve_neg()).numpy()


def all_finite(x: Array) -> bool:
    """Whether all entries are finite. For sparse rows, only stored entries are checked."""
    x = x.data if is_sparse(x) else x
    xp: Any = namespace(x)
    if not xp.isdtype(x.dtype, "real floating"):
        return True
    # A sum is one cheap reduction that NaN and infinity survive. If the sum of finite entries overflows, check each.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(xp.sum(x))) or bool(xp.all(xp.isfinite(x)))


def largest(x: Array) -> float:
    """Return the largest absolute value of an entry, or 0 if `x` is empty."""
    x = x.data if is_sparse(x) else x.detach() if is_torch(x) else x
    xp: Any = namespace(x)
    if 0 in x.shape or xp.isdtype(x.dtype, "bool"):
        return float(0 not in x.shape)
    return max(float(xp.max(x)), -float(xp.min(x)))


def constant(values: np.ndarray, x: Array) -> Array:
    """Convert NumPy `values` to the library, dtype and device of `x`."""
    xp: Any = namespace(x)
    return xp.astype(xp.asarray(values, device=device(x)), x.dtype)


def without_duplicates(x: Any) -> Any:
    """Return sparse rows with duplicate entries summed. The caller's rows are not modified."""
    if x.has_canonical_format:
        return x
    x = x.copy()
    x.sum_duplicates()
    return x


def wants_gradient(arrays: Sequence[Array]) -> bool:
    """Whether any of these is a torch tensor under differentiation (in any of torch's modes) or under ``vmap``."""
    if not is_torch(arrays[0]):
        return False
    import torch
    from torch.autograd.forward_ad import unpack_dual

    is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)  # torch.func has no public test
    if is_wrapped is not None and any(map(is_wrapped, arrays)):
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
        return True
    return any(unpack_dual(x).tangent is not None for x in arrays)


def is_differentiated(x: Array) -> bool:
    """Whether expressions of `x` may be differentiated: `x` is traced or wants a gradient."""
    return is_traced(x) or wants_gradient([x])


def sqrt(x: Array) -> Array:
    """Compute √x for x ≥ 0. If `x` may be differentiated, the derivative at 0 is 0."""
    return root(x) if is_differentiated(x) else namespace(x).sqrt(x)


def root(x: Array) -> Array:
    """Compute √x for x ≥ 0, with derivative 0 at 0."""
    xp: Any = namespace(x)
    if is_traced(x):
        return xp.root(x)
    positive = x > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, xp.ones_like(x))), xp.zeros_like(x))


def wait(x: Array) -> None:
    """Wait until all work queued on the device of `x` is done. CUDA calls are asynchronous."""
    if is_torch(x) and x.device.type == "cuda":
        import torch

        torch.cuda.synchronize(x.device)


def scatter(x: Array, i: Array, j: Array, values: Array) -> None:
    """Set x[i[k], j[k]] = values[k]; the array API standard has no such assignment."""
    if is_numpy(x) or is_torch(x):
        x[i, j] = values
        return
    for k in range(values.shape[0]):
        x[int(i[k]), int(j[k])] = values[k]
