"""BLAS and LAPACK for NumPy matrices in row-major order, without Python's global lock.

SciPy's own functions hold this lock while they compute, so threads would wait for each other. SciPy also has the
addresses of these routines, which are called here through ctypes, which releases the lock.

Fortran has column-major order and sees transposes: its upper triangle is the lower one here. Nothing is copied. All
matrices have float32 or float64 numbers, and must be writeable where they are results.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np


def cholesky_in_place(A: np.ndarray) -> bool:
    """Overwrite the lower triangle of A with L, where L Lᵀ = A; return whether A is positive definite."""
    n, failed = len(A), ctypes.c_int()
    _call("lapack", "potrf", A, "U", n, A, max(n, 1), failed)
    return not failed.value


def invert_from_cholesky(L: np.ndarray) -> bool:
    """Overwrite the lower triangle L with that of (L Lᵀ)⁻¹; return whether it exists."""
    n, failed = len(L), ctypes.c_int()
    _call("lapack", "potri", L, "U", n, L, max(n, 1), failed)
    return not failed.value


def invert_triangle(L: np.ndarray) -> bool:
    """Overwrite the lower triangle L with its inverse; return whether it exists."""
    n, failed = len(L), ctypes.c_int()
    _call("lapack", "trtri", L, "U", "N", n, L, max(n, 1), failed)
    return not failed.value


def solve_triangle(L: np.ndarray, Bt: np.ndarray, *, transposed: bool) -> None:
    """Overwrite Bᵀ with (L⁻¹B)ᵀ, or (L⁻ᵀB)ᵀ if `transposed`."""
    k, n = Bt.shape
    _call("blas", "trsm", L, "L", "U", "N" if transposed else "T", "N", n, k, 1.0, L, max(n, 1), Bt, max(n, 1))


def times_triangle(K: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Overwrite K with K R, for an upper triangular R, in half the time of a full product; return K."""
    n, m = K.shape
    _call("blas", "trmm", K, "L", "L", "N", "N", m, n, 1.0, R, max(m, 1), K, max(m, 1))
    return K


def triangular_root(C: np.ndarray) -> np.ndarray | None:
    """Return L⁻ᵀ for C = L Lᵀ, or None if C is not positive definite."""
    root = np.array(C, dtype=np.float64, order="C")
    if not (cholesky_in_place(root) and invert_triangle(root)):
        return None
    return np.ascontiguousarray(np.tril(root).T)


def add_gram(Z: np.ndarray, out: np.ndarray) -> None:
    """Add ZᵀZ to the lower triangle of `out`; Z is copied if it is not in row-major order."""
    Z = np.ascontiguousarray(Z)
    n, m = Z.shape
    _call("blas", "syrk", Z, "U", "N", m, n, 1.0, Z, max(m, 1), 1.0, out, max(m, 1))


def _call(library: str, name: str, like: np.ndarray, *arguments: Any) -> None:
    """Call a routine for the precision of `like`. Arguments are references, as in Fortran."""
    real, prefix = {"float32": (ctypes.c_float, "s"), "float64": (ctypes.c_double, "d")}[like.dtype.name]
    values: list[Any] = []
    for each in arguments:
        if isinstance(each, np.ndarray):
            if not each.flags.c_contiguous or each.dtype != like.dtype:
                raise TypeError(f"{prefix}{name} needs matrices of {like.dtype} in row-major order.")
            values.append(ctypes.c_void_p(each.ctypes.data))
        elif isinstance(each, str):
            values.append(ctypes.c_char_p(each.encode()))
        else:
            number = (
                each if isinstance(each, ctypes.c_int) else (real if isinstance(each, float) else ctypes.c_int)(each)
            )
            values.append(ctypes.byref(number))
    _routine(library, prefix + name)(*values)


@lru_cache
def _routine(library: str, name: str) -> Any:
    from numba.extending import get_cython_function_address

    return ctypes.CFUNCTYPE(None)(get_cython_function_address(f"scipy.linalg.cython_{library}", name))
