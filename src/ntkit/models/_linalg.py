"""Dense linear algebra in float64 that all models share: one Cholesky factorization, one eigendecomposition.

Matrices are NumPy arrays or torch tensors in row-major order. Only their lower triangles are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array

EPS = float(np.finfo(np.float64).eps)
INDEFINITE = (
    "The kernel must be positive semi-definite. Got a matrix with negative eigenvalues that are no rounding errors."
)
_MOST_THREADED = 10_000  # rows; OpenBLAS crashes in threaded factorizations from about 15 000 rows on
_BLOCK = 2048  # rows of a block of larger factorizations
_PANEL_BYTES = 2**30
_FEWEST_ROWS = 256  # of a panel: smaller products are not worth their overhead
_ALIGNED = 64  # row counts for which products on tensor cores are fast


def zeros(shape: tuple[int, ...], dtype: str, like: Array) -> Array:
    """Zeros in the library and on the device of `like`."""
    xp: Any = _array.namespace(like)
    return xp.zeros(shape, dtype=getattr(xp, dtype), device=_array.device(like))


def diagonal(A: Array) -> Array:
    """A view of the diagonal."""
    return A.diagonal() if _array.is_torch(A) else A.reshape(-1)[:: A.shape[1] + 1]


def panels(n: int, width: int | None = None) -> list[slice]:
    """Slices of n rows: an eighth of them, so that half of a symmetric product is saved, and at most 1 GiB each."""
    step = min(max(-(-n // 8), _FEWEST_ROWS), max(_PANEL_BYTES // (8 * (width or n)), _FEWEST_ROWS))
    step += -step % _ALIGNED
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def symmetric(A: Array) -> Array:
    """Both triangles from the lower one."""
    xp: Any = _array.namespace(A)
    return xp.tril(A) + xp.tril(A, k=-1).T


def cholesky(A: Array, shift: float = 0.0) -> Array | None:
    """L with L Lᵀ = A + shift·I, written over A; None if that is not positive definite up to rounding.

    Above the diagonal the result is undefined. A matrix in another order than row by row is copied.
    """
    A = A.contiguous() if _array.is_torch(A) else np.ascontiguousarray(A)
    diagonal(A)[...] += shift
    if _array.is_torch(A):
        import torch

        # The lower triangle is the upper one in the order that LAPACK and cuSOLVER work in: no copy is made.
        turned, info = A.mT, torch.empty((), dtype=torch.int32, device=A.device)
        torch.linalg.cholesky_ex(turned, upper=True, out=(turned, info))
        return None if int(info) else A
    done = _factorize(A) if len(A) <= _MOST_THREADED else _factorize_blocks(A, _BLOCK)
    return A if done else None


def shifted_cholesky(A: Array, shift: float) -> Array:
    """Factor of a copy of A + shift·I, with ten times the shift where rounding made that indefinite, and so on."""
    xp: Any = _array.namespace(A)
    for power in range(8):
        factor = cholesky(xp.asarray(A, copy=True), 10.0**power * shift)
        if factor is not None:
            return factor
    raise ValueError(INDEFINITE)


def _factorize(A: np.ndarray) -> bool:
    """Write the lower factor over A, by LAPACK; whether A is positive definite."""
    from scipy.linalg import lapack

    # Fortran sees the transpose: its upper triangle is the lower one here, and LAPACK works in place.
    _, info = lapack.dpotrf(A.T, lower=False, clean=False, overwrite_a=True)
    return not info


def _factorize_blocks(A: np.ndarray, block: int) -> bool:
    """As :func:`_factorize`, by products of blocks."""
    for start in range(0, len(A), block):
        stop = min(start + block, len(A))
        corner = np.ascontiguousarray(A[start:stop, start:stop])
        if not _factorize(corner):
            return False
        A[start:stop, start:stop] = corner
        below = A[stop:, start:stop] = solve_lower(corner, A[stop:, start:stop].T).T
        for i in range(stop, len(A), block):
            j = min(i + block, len(A))
            A[i:, i:j] -= below[i - stop :] @ below[i - stop : j - stop].T
    return True


def solve_lower(factor: Array, B: Array, *, transposed: bool = False) -> Array:
    """L⁻¹B, or L⁻ᵀB."""
    if _array.is_torch(factor):
        import torch

        return torch.linalg.solve_triangular(factor.T if transposed else factor, B, upper=transposed)
    from scipy.linalg import blas

    # B in Fortran's order is solved in place.
    return blas.dtrsm(1.0, factor.T, np.array(B, order="F"), lower=False, trans_a=not transposed, overwrite_b=True)


def cholesky_solve(factor: Array, B: Array) -> Array:
    """(L Lᵀ)⁻¹B."""
    return solve_lower(factor, solve_lower(factor, B), transposed=True)


def eigh(A: Array) -> tuple[Array, Array]:
    """Eigenvalues in increasing order and eigenvectors of a symmetric matrix, which may be overwritten."""
    if _array.is_torch(A):
        import torch

        return torch.linalg.eigh(A)
    from scipy.linalg import eigh as decompose

    # The transpose is in Fortran's order, in which LAPACK works in place; its upper triangle is the lower one here.
    return decompose(A.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
