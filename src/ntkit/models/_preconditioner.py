"""Preconditioners of kernel systems A + λI, A = S K S: features of the kernel plus a correction from neighbours.

For features Z (n × m) with Z Zᵀ ≈ A, the system is close to

    P = Z Zᵀ + E,    P⁻¹ = Fᵀ (I − W (I + Wᵀ W)⁻¹ Wᵀ) F,    E⁻¹ = Fᵀ F,  W = F Z.

Applying P⁻¹ to a vector costs O(nm), far less than the O(n²) of a product with A. With E = μI this is Algorithm 2
of [1]_ for fewer features than rows, since the algorithm uses its QR decomposition only through R Rᵀ = P⁻¹. μ is λ plus
the mean of A over directions outside the span of Z: if the spectrum decays slowly, A is not small in these directions,
and λ alone would be too small.

With neighbours, F is a sparse triangular matrix instead. The entries of row i are at the indices J: row i itself and
k near rows before it,

    F[i, J] = c/√c_i,    c = (A_JJ − Z_J Z_Jᵀ + λI)⁻¹ e_i.

Among all triangular matrices with this sparsity pattern, this F minimizes the Kullback–Leibler divergence between
N(0, (FᵀF)⁻¹) and N(0, E) [2]_. Combining landmarks with a factorized sparse inverse is the idea of [3]_. It needs
Z Zᵀ ⪯ A, which holds for Nyström features.

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
_JITTER = 1e-13  # added to diagonals, times the trace: factorizes matrices that are singular up to rounding
_N_PROBES = 8  # random directions for the mean of A outside the span of Z
_GATHER_BYTES = 2**24  # host memory of the rows of Z that one thread gathers at a time


@dataclass
class Preconditioner:
    """Features `Z` of A, their Gram matrix, the mean `rest` of A outside their span, and neighbours or None."""

    matrix: KernelMatrix
    Z: Array
    gram: Array
    rest: float
    neighbors: tuple[np.ndarray, np.ndarray] | None = None
    keep: bool = False
    """Whether matrices that do not depend on λ are kept for the next λ."""
    _missing: dict[int, Array] = field(default_factory=dict, repr=False)

    @classmethod
    def of_features(
        cls, matrix: KernelMatrix, Z: Array, n_neighbors: int, seed: np.random.SeedSequence, least: float = 0.0
    ) -> Any:
        """Build the preconditioner from the features times S.

        Neighbours are not used if the mean of diag(A − Z Zᵀ) is at most `least`, the smallest λ.
        """
        xp: Any = _array.namespace(Z)
        gram = xp.matmul(xp.matrix_transpose(Z), Z)
        n_neighbors = min(n_neighbors, matrix.n_rows - 1)
        missed = float(xp.sum(matrix.diagonal()) - xp.sum(gram.diagonal())) / matrix.n_rows
        if n_neighbors and missed > least:
            return cls(matrix, Z, gram, 0.0, matrix.near(n_neighbors))
        return cls(matrix, Z, gram, _mean_outside(matrix, Z, gram, seed))

    def at(self, alpha: float) -> Solve:
        """Return the function V ↦ P⁻¹ V for λ = `alpha`."""
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
        """Compute F by solving one small system for each row."""
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

        # Without K in memory, `parts` calls the kernel, which may be a user's function: never from two threads at once.
        run_on_threads(work, range(len(batches)), most=1 if on_device or self.matrix.held is None else None)
        return SparseFactor(places, counts, _array.namespace(*parts).concat(parts))

    def _missing_at(self, places: np.ndarray) -> Array:
        """Return A_JJ − Z_J Z_Jᵀ for several lists of indices J."""
        Z = take(self.Z, places)
        xp: Any = _array.namespace(Z)
        return self.matrix.parts(places) - xp.matmul(Z, xp.matrix_transpose(Z))


def _factor_rows(missing: Array, counts: np.ndarray, floor: float) -> Array:
    """Compute entries of some rows of F; they are 0 where `counts` is False."""
    xp: Any = _array.namespace(missing)
    options: Any = {"dtype": missing.dtype, "device": _array.device(missing)}
    count = xp.asarray(counts, device=_array.device(missing))
    eye = xp.eye(counts.shape[1], **options)
    # Where `counts` is False, the equation is replaced by one of the identity.
    E = xp.where(count[:, :, None] & count[:, None, :], missing + floor * eye, eye)
    last = xp.zeros((*counts.shape, 1), **options)
    last[:, -1] = 1.0
    c = xp.linalg.solve(E, last)[:, :, 0]
    diagonal = E[:, -1, -1]
    # Rounding can make the matrix indefinite: then the row of F keeps only its diagonal entry.
    good = (c[:, -1] > 0) & xp.all(xp.isfinite(c), axis=1)
    alone = last[:, :, 0] / xp.sqrt(xp.clip(diagonal, floor, None))[:, None]
    return xp.where(good[:, None], c / xp.sqrt(xp.where(good, c[:, -1], xp.ones_like(diagonal)))[:, None], alone)


class SparseFactor:
    """Sparse matrix with entries `values` in the columns `places` of each row, and its transpose."""

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
        """Return F V."""
        return self.matrix @ V

    def transposed_times(self, V: Array) -> Array:
        """Return Fᵀ V."""
        return self.transpose @ V


def _on_device(M: Any, like: Any) -> Any:
    import torch

    parts = (torch.from_numpy(part.astype(np.int64)) for part in (M.indptr, M.indices))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that sparse CSR tensors are in beta
        return torch.sparse_csr_tensor(*parts, torch.from_numpy(M.data), size=M.shape).to(like.device)


class Nystroem(NamedTuple):
    """Features `Z` = C L⁻ᵀ, where C are the columns of A at `landmarks`, C_L its rows at them and L Lᵀ = C_L.

    They satisfy Z Zᵀ = C (C_L)⁻¹ Cᵀ ⪯ A. `lower` is L.
    """

    Z: Array
    landmarks: np.ndarray
    lower: Array

    def dual(self, weights: Array) -> Array:
        """Return coefficients x with A x = Z w that are 0 except at the landmarks."""
        xp: Any = _array.namespace(weights)
        shape = int(self.Z.shape[0]), int(weights.shape[1])
        x = xp.zeros(shape, dtype=weights.dtype, device=_array.device(weights))
        x[to_library(self.landmarks, weights)] = solve_lower(self.lower, weights, transposed=True)
        return x


def nystroem_features(matrix: KernelMatrix, n_components: int, seed: np.random.SeedSequence) -> Nystroem:
    """Compute Nyström features of A, with landmarks drawn by their leverage scores."""
    landmarks = matrix.landmarks(n_components, seed)
    C = matrix.columns(landmarks)
    xp: Any = _array.namespace(C)
    W = take(C, landmarks)
    lower = shifted_cholesky(W, _JITTER * float(xp.sum(xp.abs(W.diagonal()))) or 1.0)
    return Nystroem(solve_lower(lower, C.T).T, landmarks, lower)


def _mean_outside(matrix: KernelMatrix, Z: Array, gram: Array, seed: np.random.SeedSequence) -> float:
    """Estimate the mean of vᵀAv over random unit vectors v orthogonal to the span of Z; 0 if Z spans everything."""
    n_rows, m = int(Z.shape[0]), int(Z.shape[1])
    if m >= n_rows:
        return 0.0
    xp: Any = _array.namespace(Z)
    V = generator(seed, "outside").standard_normal((n_rows, _N_PROBES))
    V = xp.asarray(V, device=_array.device(Z))
    factor = shifted_cholesky(gram, _JITTER * float(xp.sum(gram.diagonal())) or 1.0)
    for _ in range(2):  # the second projection removes the rounding errors of the first
        V = V - Z @ cholesky_solve(factor, Z.T @ V)
    squares = xp.sum(V * V, axis=0)
    return max(0.0, float(xp.mean(xp.sum(V * matrix.times(V), axis=0) / squares)))
