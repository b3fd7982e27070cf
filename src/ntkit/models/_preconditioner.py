"""Preconditioners of kernel systems A + λI, A = S K S: features of the kernel, and what they miss among neighbours.

For features Z (n × m) with Z Zᵀ ≈ A the system is nearly

    P = Z Zᵀ + E,    P⁻¹ = Fᵀ (I − W (I + Wᵀ W)⁻¹ Wᵀ) F,    E⁻¹ = Fᵀ F,  W = F Z,

and P⁻¹ costs O(nm) for each vector, far less than the O(n²) of A. With E = μI this is Algorithm 2 of [1]_ for fewer
features than rows, as R Rᵀ = P⁻¹ is all that it needs of its QR decomposition. μ is λ plus the mean of A over
directions outside the span of Z: what λ alone calls empty, a slowly decaying spectrum has filled.

With neighbours F is a sparse triangular matrix instead. Its row i has entries at J, row i and k near rows before it:

    F[i, J] = c/√c_i,    c = (A_JJ − Z_J Z_Jᵀ + λI)⁻¹ e_i,

which of all triangular matrices with these places makes the Gaussian N(0, (FᵀF)⁻¹) closest to N(0, E) (least
Kullback–Leibler divergence, [2]_); landmarks and a factorized sparse inverse together are the idea of [3]_. It needs
Z Zᵀ ⪯ A, as Nyström features have it.

.. [1] Song, Woodruff, Yu, Zhang, "Fast Sketching of Polynomial Kernels of Polynomial Degree", ICML 2021.
.. [2] Schäfer, Katzfuss, Owhadi, "Sparse Cholesky Factorization by Kullback–Leibler Minimization", SISC 2021.
.. [3] Zhao, Xu, Huang, Chow, Xi, "An Adaptive Factorized Nyström Preconditioner for Regularized Kernel Matrices",
   SISC 2024.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches, run_on_threads
from ntkit._random import generator
from ntkit.features.landmarks.choose import take
from ntkit.models._checks import to_library
from ntkit.models._kernel_matrix import KernelMatrix
from ntkit.models._linalg import cholesky_solve, shifted_cholesky, solve_lower

Solve: TypeAlias = Callable[[Array], Array]
_JITTER = 1e-13  # of the trace: keeps factorizations of matrices that are singular up to rounding
_N_PROBES = 8
_GATHER_BYTES = 2**24


@dataclass
class Preconditioner:
    """Features `Z` of A, their Gram matrix, the mean of A outside their span, and neighbours or None."""

    matrix: KernelMatrix
    Z: Array
    gram: Array
    rest: float
    neighbors: tuple[np.ndarray, np.ndarray] | None = None
    keep: bool = False
    """Whether what is the same for all λ is kept for the next one."""
    _missing: dict[int, Array] = field(default_factory=dict, repr=False)

    @classmethod
    def of_features(
        cls, matrix: KernelMatrix, Z: Array, n_neighbors: int, seed: np.random.SeedSequence, least: float = 0.0
    ) -> Any:
        """From features of the rows, already times S; without neighbours if little is missing beside the `least` λ."""
        xp: Any = _array.namespace(Z)
        gram = xp.matmul(xp.matrix_transpose(Z), Z)
        n_neighbors = min(n_neighbors, matrix.n_rows - 1)
        missed = float(xp.sum(matrix.diagonal()) - xp.sum(gram.diagonal())) / matrix.n_rows
        if n_neighbors and missed > least:
            return cls(matrix, Z, gram, 0.0, matrix.near(n_neighbors))
        return cls(matrix, Z, gram, _mean_outside(matrix, Z, gram, seed))

    def at(self, alpha: float) -> Solve:
        """V ↦ P⁻¹ V for λ = `alpha`."""
        if self.neighbors is not None:
            return self._with_neighbors(alpha)
        Z = self.Z
        shift = max(alpha + self.rest, _JITTER * float(_array.namespace(Z).sum(self.gram.diagonal()))) or 1.0
        factor = shifted_cholesky(self.gram, shift)
        return lambda V: (V - Z @ cholesky_solve(factor, Z.T @ V)) / shift

    def _with_neighbors(self, alpha: float) -> Solve:
        F = self._sparse_factor(alpha)
        W = F.times(self.Z)
        factor = shifted_cholesky(W.T @ W, 1.0)

        def solve(V: Array) -> Array:
            U = F.times(V)
            return F.transposed_times(U - W @ cholesky_solve(factor, W.T @ U))

        return solve

    def _sparse_factor(self, alpha: float) -> SparseFactor:
        """F: one small system for each row."""
        assert self.neighbors is not None
        near, there = self.neighbors
        n_rows, k = near.shape
        places = np.concatenate([near, np.arange(n_rows)[:, None]], axis=1)
        counts = np.concatenate([there, np.ones((n_rows, 1), dtype=bool)], axis=1)
        floor = alpha + _JITTER * float(_array.namespace(self.gram).max(self.matrix.diagonal())) or 1.0
        row_bytes = 8 * (k + 1) * max(int(self.Z.shape[1]), k + 1)
        on_device = _array.is_torch(self.Z)
        step = None if on_device else max(1, _GATHER_BYTES // row_bytes)
        batches = list(row_batches(n_rows, 8 * row_bytes, batch_size=step, like=self.Z))
        parts: list[Array] = [None] * len(batches)

        def work(number: int) -> None:
            rows = batches[number]
            E = self._missing.get(number)
            if E is None:
                E = self._missing_at(places[rows])
                if self.keep:
                    self._missing[number] = E
            parts[number] = _factor_rows(E, counts[rows], floor)

        # Kernel functions of users, of which small matrices may be asked, are not called by two threads at a time.
        run_on_threads(work, range(len(batches)), most=1 if on_device or self.matrix.held is None else None)
        return SparseFactor(places, counts, _array.namespace(*parts).concat(parts))

    def _missing_at(self, places: np.ndarray) -> Array:
        """A_JJ − Z_J Z_Jᵀ of several lists J."""
        Z = take(self.Z, places)
        xp: Any = _array.namespace(Z)
        return self.matrix.parts(places) - xp.matmul(Z, xp.matrix_transpose(Z))


def _factor_rows(missing: Array, counts: np.ndarray, floor: float) -> Array:
    """Entries of some rows of F, 0 at places that do not count."""
    xp: Any = _array.namespace(missing)
    options: Any = {"dtype": missing.dtype, "device": _array.device(missing)}
    count = xp.asarray(counts, device=_array.device(missing))
    eye = xp.eye(counts.shape[1], **options)
    # Places that do not count become equations of their own.
    E = xp.where(count[:, :, None] & count[:, None, :], missing + floor * eye, eye)
    last = xp.zeros((*counts.shape, 1), **options)
    last[:, -1] = 1.0
    c = xp.linalg.solve(E, last)[:, :, 0]
    diagonal = E[:, -1, -1]
    # Rounding can leave a matrix that is not positive definite: such a row stands for itself.
    good = (c[:, -1] > 0) & xp.all(xp.isfinite(c), axis=1)
    alone = last[:, :, 0] / xp.sqrt(xp.clip(diagonal, floor, None))[:, None]
    return xp.where(good[:, None], c / xp.sqrt(xp.where(good, c[:, -1], xp.ones_like(diagonal)))[:, None], alone)


class SparseFactor:
    """Sparse matrix with entries `values` at `places` (columns of each row), and its transpose."""

    def __init__(self, places: np.ndarray, counts: np.ndarray, values: Array):
        from scipy.sparse import csr_array

        n_rows = len(places)
        pointers = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
        kept = values.cpu().numpy() if _array.is_torch(values) else values
        F = csr_array((kept[counts], places[counts], pointers), shape=(n_rows, n_rows))
        self.matrix: Any = F
        self.transpose: Any = F.T.tocsr()
        if _array.is_torch(values):
            self.matrix, self.transpose = (_on_device(M, values) for M in (self.matrix, self.transpose))

    def times(self, V: Array) -> Array:
        """F V."""
        return self.matrix @ V

    def transposed_times(self, V: Array) -> Array:
        """Fᵀ V."""
        return self.transpose @ V


def _on_device(M: Any, like: Any) -> Any:
    import torch

    parts = (torch.from_numpy(part.astype(np.int64)) for part in (M.indptr, M.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that sparse tensors are new, and not checked
        return torch.sparse_csr_tensor(*parts, torch.from_numpy(M.data), size=M.shape).to(like.device)


class Nystroem(NamedTuple):
    """Features `Z` = C L⁻ᵀ, C the columns of A at `landmarks` and L Lᵀ = C_L, `lower` L: Z Zᵀ = C (C_L)⁻¹ Cᵀ ⪯ A."""

    Z: Array
    landmarks: np.ndarray
    lower: Array

    def dual(self, weights: Array) -> Array:
        """Coefficients x, 0 but at the landmarks, with A x = Z w."""
        xp: Any = _array.namespace(weights)
        shape = int(self.Z.shape[0]), int(weights.shape[1])
        x = xp.zeros(shape, dtype=weights.dtype, device=_array.device(weights))
        x[to_library(self.landmarks, weights)] = solve_lower(self.lower, weights, transposed=True)
        return x


def nystroem_features(matrix: KernelMatrix, n_components: int, seed: np.random.SeedSequence) -> Nystroem:
    """Features of A from landmarks drawn by their leverage scores."""
    landmarks = matrix.landmarks(n_components, seed)
    C = matrix.columns(landmarks)
    xp: Any = _array.namespace(C)
    W = take(C, landmarks)
    lower = shifted_cholesky(W, _JITTER * float(xp.sum(xp.abs(W.diagonal()))) or 1.0)
    return Nystroem(solve_lower(lower, C.T).T, landmarks, lower)


def _mean_outside(matrix: KernelMatrix, Z: Array, gram: Array, seed: np.random.SeedSequence) -> float:
    """Mean of vᵀAv over random directions v outside the span of Z; 0 if that is everything."""
    n_rows, m = int(Z.shape[0]), int(Z.shape[1])
    if m >= n_rows:
        return 0.0
    xp: Any = _array.namespace(Z)
    V = generator(seed, "outside").standard_normal((n_rows, _N_PROBES))
    V = xp.asarray(V, device=_array.device(Z))
    factor = shifted_cholesky(gram, _JITTER * float(xp.sum(gram.diagonal())) or 1.0)
    for _ in range(2):  # once leaves what rounding has added
        V = V - Z @ cholesky_solve(factor, Z.T @ V)
    squares = xp.sum(V * V, axis=0)
    return max(0.0, float(xp.mean(xp.sum(V * matrix.times(V), axis=0) / squares)))
