"""Dense linear algebra in float64 for all models: Cholesky factorization and eigendecomposition.

Matrices are NumPy arrays or torch tensors in row-major order. Only their lower triangles are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._lapack import cholesky_in_place, solve_triangle

EPS = float(np.finfo(np.float64).eps)
INDEFINITE = (
    "The kernel must be positive semi-definite. Got a matrix with negative eigenvalues too large to be rounding errors."
)
_MAX_THREADED = 10_000  # rows; OpenBLAS crashes in threaded factorizations from about 15 000 rows on
_BLOCK = 2048  # rows per block in larger factorizations
_PANEL_BYTES = 2**30  # largest size of a panel
_MIN_PANEL_ROWS = 256  # smaller products are not worth their overhead
_COPIED = 128  # rows of a triangle that are copied at a time; their columns stay in the cache
_ALIGNED = 64  # products on tensor cores are fast if the number of rows is a multiple of this


def zeros(shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Return zeros in the library and on the device of `like`."""
    xp: Any = _array.namespace(like)
    return xp.zeros(shape, dtype=getattr(xp, dtype), device=_array.device(like))


def diagonal(A: Array) -> Array:
    """Return a view of the diagonal."""
    return A.diagonal() if _array.is_torch(A) else A.reshape(-1)[:: A.shape[1] + 1]


def panels(n: int, width: int | None = None) -> list[slice]:
    """Split n rows into slices of an eighth of them, so that symmetry saves almost half of a product; at most 1 GiB."""
    step = min(max(-(-n // 8), _MIN_PANEL_ROWS), max(_PANEL_BYTES // (8 * (width or n)), _MIN_PANEL_ROWS))
    step += -step % _ALIGNED
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def symmetric(A: Array) -> Array:
    """Return a copy whose upper triangle is the transpose of the lower one."""
    if _array.is_numpy(A):
        out = A.copy()
        for start in range(0, len(A), _COPIED):
            part, rest = slice(start, start + _COPIED), slice(start + _COPIED, None)
            corner = np.tril(A[part, part])
            out[part, part] = corner + np.tril(corner, -1).T
            out[part, rest] = A[rest, part].T
        return out
    xp: Any = _array.namespace(A)
    return xp.tril(A) + xp.tril(A, k=-1).T


def cholesky(A: Array, shift: float = 0.0) -> Array | None:
    """Overwrite A with L, where L Lᵀ = A + shift·I; return None if this matrix is not positive definite numerically.

    Above the diagonal the result is undefined. A matrix that is not in row-major order is copied.
    """
    A = A.contiguous() if _array.is_torch(A) else np.ascontiguousarray(A)
    diagonal(A)[...] += shift
    if _array.is_torch(A):
        import torch

        # LAPACK and cuSOLVER use column-major order, where the lower triangle is the upper one: no copy is made.
        turned, info = A.mT, torch.empty((), dtype=torch.int32, device=A.device)
        torch.linalg.cholesky_ex(turned, upper=True, out=(turned, info))
        return None if int(info) else A
    done = cholesky_in_place(A) if len(A) <= _MAX_THREADED else _factorize_blocks(A, _BLOCK)
    return A if done else None


def shifted_cholesky(A: Array, shift: float) -> Array:
    """Factorize a copy of A + shift·I. While rounding makes it indefinite, multiply the shift by ten."""
    xp: Any = _array.namespace(A)
    for power in range(8):
        factor = cholesky(xp.asarray(A, copy=True), 10.0**power * shift)
        if factor is not None:
            return factor
    raise ValueError(INDEFINITE)


def _factorize_blocks(A: np.ndarray, block: int) -> bool:
    """Do the same as :func:`cholesky_in_place`, by products of blocks."""
    for start in range(0, len(A), block):
        stop = min(start + block, len(A))
        corner = np.ascontiguousarray(A[start:stop, start:stop])
        if not cholesky_in_place(corner):
            return False
        A[start:stop, start:stop] = corner
        below = A[stop:, start:stop] = solve_lower(corner, A[stop:, start:stop].T).T
        for i in range(stop, len(A), block):
            j = min(i + block, len(A))
            A[i:, i:j] -= below[i - stop :] @ below[i - stop : j - stop].T
    return True


def solve_lower(factor: Array, B: Array, *, transposed: bool = False) -> Array:
    """Return L⁻¹B, or L⁻ᵀB if `transposed`."""
    if _array.is_torch(factor):
        import torch

        return torch.linalg.solve_triangular(factor.T if transposed else factor, B, upper=transposed)
    out = np.array(B, dtype=factor.dtype, order="F").T
    solve_triangle(np.ascontiguousarray(factor), out, transposed=transposed)
    return out.T


def cholesky_solve(factor: Array, B: Array) -> Array:
    """Return (L Lᵀ)⁻¹B."""
    return solve_lower(factor, solve_lower(factor, B), transposed=True)


def eigh(A: Array) -> tuple[Array, Array]:
    """Return the eigenvalues in increasing order and the eigenvectors of a symmetric matrix; it may be overwritten."""
    if _array.is_torch(A):
        import torch

        return torch.linalg.eigh(A)
    from scipy.linalg import eigh as decompose

    # The transpose is in Fortran order, where LAPACK works in place. Its upper triangle is the lower one here.
    return decompose(A.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
