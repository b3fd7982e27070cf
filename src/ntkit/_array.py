"""Array libraries: namespace, device and precision of NumPy arrays, torch tensors and SciPy CSR rows.

torch is never imported here: a tensor brings its module along.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np

Array: TypeAlias = Any
"""A NumPy array, a torch tensor or any array of the array API standard."""


def is_numpy(x: object) -> bool:
    """Whether `x` is a NumPy array."""
    return isinstance(x, np.ndarray)


def is_torch(x: object) -> bool:
    """Whether `x` is a torch tensor."""
    return bool(compat.is_torch_array(x))


def is_traced(x: object) -> bool:
    """Whether `x` is an array without numbers, of which a graph is being made (:mod:`ntkit.graphs`)."""
    return bool(getattr(type(x), "is_traced", False))


def is_sparse(x: object) -> bool:
    """Whether `x` is a SciPy sparse array or matrix."""
    module = type(x).__module__
    if not module.startswith("scipy.sparse"):  # spares everyone else the import
        return False
    from scipy.sparse import issparse

    return bool(issparse(x))


def is_dask(x: object) -> bool:
    """Whether `x` is a Dask array, data frame or series."""
    return type(x).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(x, "__dask_graph__")


def is_array(x: object) -> bool:
    """Whether `x` is an array of some array library (lists, data frames and sparse rows are not)."""
    return bool(compat.is_array_api_obj(x)) and not is_sparse(x) and not isinstance(x, type)


def has_triton(x: object) -> bool:
    """Whether `x` is a CUDA tensor for which Triton kernels can be compiled."""
    return is_torch(x) and x.device.type == "cuda" and find_spec("triton") is not None  # type: ignore[attr-defined]


def namespace(*arrays: Array) -> ModuleType:
    """Array API namespace common to all `arrays`."""
    return compat.array_namespace(*arrays)


def device(x: Array) -> Any:
    """Device of `x`."""
    return compat.device(x)


def wide_dtype(x: Array) -> Any:
    """Dtype in which exact kernels are computed: float64, or float32 on devices without it (Apple's MPS)."""
    xp = namespace(x)
    on_mps = is_torch(x) and x.device.type == "mps"
    return xp.float32 if on_mps else xp.float64


def widen(x: Array) -> Array:
    """Return `x` in the dtype of :func:`wide_dtype`."""
    return namespace(x).astype(x, wide_dtype(x), copy=False)


def result_dtype(*arrays: Array) -> Any:
    """Floating dtype of values computed from all `arrays`: theirs, or the wide one if any holds whole numbers."""
    xp: Any = np if is_sparse(arrays[0]) else namespace(*arrays)
    if not all(xp.isdtype(a.dtype, "real floating") for a in arrays):
        return np.float64 if xp is np else wide_dtype(arrays[0])
    return xp.result_type(*(a.dtype for a in arrays))


def host_view(x: Array) -> np.ndarray | None:
    """NumPy array that shares memory with `x`, or None if `x` is not in host memory."""
    if is_numpy(x):
        return x
    half = is_torch(x) and x.dtype.is_floating_point and x.dtype.itemsize < 4
    if is_torch(x) and x.device.type == "cpu" and not half:
        return x.detach().resolve_neg().numpy()
    return None


def like(values: np.ndarray, x: Array) -> Array:
    """Return NumPy `values` as an array of the library of `x` (no copy)."""
    if is_torch(x):
        import torch

        return torch.from_numpy(values)
    return values


def to_numpy(x: Any) -> Any:
    """Tensors as NumPy arrays (those of bfloat16, which NumPy lacks, as float32); all else as it is."""
    if not is_torch(x):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x.resolve_neg()).numpy()


def all_finite(x: Array) -> bool:
    """Whether all entries, of sparse rows those that are stored, are finite."""
    x = x.data if is_sparse(x) else x
    xp: Any = namespace(x)
    if not xp.isdtype(x.dtype, "real floating"):
        return True
    # One reduction: any NaN or infinity survives the sum; a finite overflow is settled by the second.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(xp.sum(x))) or bool(xp.all(xp.isfinite(x)))


def largest(x: Array) -> float:
    """Largest size of an entry, 0 if there is none."""
    x = x.data if is_sparse(x) else x.detach() if is_torch(x) else x
    xp: Any = namespace(x)
    if 0 in x.shape or xp.isdtype(x.dtype, "bool"):
        return float(0 not in x.shape)
    return max(float(xp.max(x)), -float(xp.min(x)))


def constant(values: np.ndarray, x: Array) -> Array:
    """Return NumPy `values` in the library, dtype and device of `x`."""
    xp: Any = namespace(x)
    return xp.astype(xp.asarray(values, device=device(x)), x.dtype)


def without_duplicates(x: Any) -> Any:
    """Return sparse rows whose entries are all in different places; the caller's rows stay as they are."""
    if x.has_canonical_format:
        return x
    x = x.copy()
    x.sum_duplicates()
    return x


def wants_gradient(arrays: Sequence[Array]) -> bool:
    """Whether these are torch tensors to differentiate, in any of torch's modes, or to map over."""
    if not is_torch(arrays[0]):
        return False
    import torch
    from torch.autograd.forward_ad import unpack_dual

    is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)  # torch.func; no public way to ask
    if is_wrapped is not None and any(map(is_wrapped, arrays)):
        return True
    if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
        return True
    return any(unpack_dual(x).tangent is not None for x in arrays)


def is_differentiated(x: Array) -> bool:
    """Whether derivatives of expressions of `x` may be asked for."""
    return is_traced(x) or wants_gradient([x])


def sqrt(x: Array) -> Array:
    """√ of numbers ≥ 0; where it may be differentiated, with a derivative of 0 at 0."""
    return root(x) if is_differentiated(x) else namespace(x).sqrt(x)


def root(x: Array) -> Array:
    """√ of numbers ≥ 0, with a derivative of 0 at 0."""
    xp: Any = namespace(x)
    if is_traced(x):
        return xp.root(x)
    positive = x > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, x, xp.ones_like(x))), xp.zeros_like(x))


def wait(x: Array) -> None:
    """Return when the device of `x` has done all it was asked to: CUDA calls return before."""
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
