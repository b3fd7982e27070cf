"""Products of features, summed over draws: Gram matrices, concatenated features, products with new rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._precision import exact_products
from ntkit.kernels.chain import recursion
from ntkit.models._checks import to_library
from ntkit.models._draws import Draw, MapDraws
from ntkit.models._linalg import diagonal, panels, symmetric, zeros
from ntkit.models._problems import Weights
from ntkit.models._rows import n_rows_of
from ntkit.models._statistics import Statistics

# Terms per product on tensor cores, which sum in float32 and round down; longer sums had errors of 1e-5.
_MAX_TERMS = 2048


class Gram:
    """The n × n matrix ZZᵀ, summed draw by draw in `dtype`."""

    def __init__(self, dtype: str):
        self.dtype, self.n_draws, self.complete = dtype, 0, False
        self.total: Array = None

    def add(self, Z: Array) -> None:
        """Add the features of a draw; until :meth:`finish` only the lower triangle is valid."""
        n, self.complete = int(Z.shape[0]), False
        if self.total is None:
            self.total = zeros((n, n), self.dtype, Z)
        Z = _to_multiply(Z)
        for rows in panels(n):
            add_product(self.total[rows, : rows.stop], Z[rows], Z[: rows.stop])
        self.n_draws += 1

    def finish(self) -> None:
        """Copy the lower triangle to the upper one."""
        for rows in panels(len(self.total)):
            self.total[: rows.start, rows] = self.total[rows, : rows.start].T
            self.total[rows, rows] = symmetric(self.total[rows, rows])
        self.complete = True

    def kernel(self) -> Array:
        """Return the mean over draws."""
        return self.total / self.n_draws

    def with_layers(self, n_layers: int) -> Gram:
        """Return the kernel with ReLU layers on top; it counts as one draw."""
        top = Gram("float64")
        top.total, top.n_draws, top.complete = zeros(self.total.shape, "float64", self.total), 1, True
        squares = self.squares()
        xp: Any = _array.namespace(squares)
        for rows in panels(len(self.total)):
            K = xp.astype(self.total[rows], xp.float64) / self.n_draws
            top.total[rows] = with_relu_layers(K, squares[rows], squares, n_layers)
        return top

    def squares(self) -> Array:
        """Return the diagonal of the kernel."""
        xp: Any = _array.namespace(self.total)
        return xp.astype(diagonal(self.total), xp.float64) / self.n_draws


class Held:
    """The features of all draws. They take less memory than ZZᵀ if rows outnumber features."""

    def __init__(self) -> None:
        self.draws: list[Array] = []
        self.complete = False

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.draws)

    def add(self, Z: Array) -> None:
        """Add the features of a draw."""
        self.draws.append(Z)
        self.complete = False

    def finish(self) -> None:
        """Mark the draws as complete."""
        self.complete = True

    def kernel(self) -> Array:
        """Return the mean of ZZᵀ over draws."""
        return self.as_gram("float64").kernel()

    def as_gram(self, dtype: str) -> Gram:
        """Compute the Gram matrix of the features."""
        gram = Gram(dtype)
        for Z in self.draws:
            gram.add(Z)
        gram.finish()
        return gram

    def statistics(self, Y: np.ndarray, weight: np.ndarray, keys: np.ndarray, n_selection: int) -> Statistics:
        """Compute the sums over rows of all features divided by √n_draws."""
        xp: Any = _array.namespace(*self.draws)
        m = sum(int(Z.shape[1]) for Z in self.draws)
        sums = Statistics(m, Y.shape[1], n_selection)
        for rows in panels(len(Y), m):
            Z = xp.concat([_to_float(Z[rows]) for Z in self.draws], axis=1) / self.n_draws**0.5
            sums.add(Z, to_library(Y[rows], Z), to_library(weight[rows], Z), keys[rows])
        return sums


class Cross:
    """The sum over draws Σ_d Z_d(X_new) Z_d(X)ᵀ."""

    def __init__(self, dtype: str):
        self.dtype = dtype
        self.total: Array = None
        self.squares: Array = None

    def add(self, draws: MapDraws, draw: Draw, new: Any, Z: Array) -> None:
        """Add a draw; Z holds its features of the rows of the fit."""
        xp: Any = _array.namespace(Z)
        if self.total is None:
            self.total = zeros((n_rows_of(new), Z.shape[0]), self.dtype, Z)
            self.squares = zeros((n_rows_of(new),), "float64", Z)
        for part, block in draws.blocks(draw, new):
            block = to_library(block, Z)
            self.squares[part] += xp.sum(xp.astype(block, xp.float64) ** 2, axis=1)
            add_product(self.total[part], xp.astype(block, Z.dtype, copy=False), Z)

    def scores(self, weights: Weights, gram: Gram, n_layers: int) -> Array:
        """Return predictions, from the weights of the rows of the fit; the kernel has `n_layers` ReLU layers on top."""
        xp: Any = _array.namespace(self.total)
        columns, parts = gram.squares(), []
        for rows in panels(len(self.total), self.total.shape[1]):
            K = xp.astype(self.total[rows], xp.float64) / gram.n_draws
            if n_layers:
                K = with_relu_layers(K, self.squares[rows] / gram.n_draws, columns, n_layers)
            parts.append(xp.matmul(K, weights.coef) + weights.intercept)
        return xp.concat(parts)


def with_relu_layers(K: Array, x_squares: Array, y_squares: Array, n_layers: int) -> Array:
    """Apply κ₁ to cosines `n_layers` times: the exact kernel of fully connected ReLU layers on features of norm 1.

    K may also hold products of centred features, with their squared norms: ‖x − y‖² = 2 − 2 cos is the same.
    """
    xp: Any = _array.namespace(K)
    half = xp.clip(0.5 * (x_squares[:, None] + y_squares[None, :]) - K, 0, 2)  # 1 − cos
    gap = xp.where(half > 1, 2 - half, half)
    none = np.zeros(n_layers + 1)
    return recursion(1 - half, gap, none[1:], none)[0]


def add_product(total: Array, A: Array, B: Array) -> None:
    """Add ABᵀ to a matrix. The product has the precision of A and B; sums of 16-bit numbers are in float32."""
    if not _array.is_torch(A):
        with np.errstate(over="ignore", invalid="ignore"):  # overflow shows on the diagonal, which is checked later
            total += A @ B.T
        return
    import torch

    A, B = _to_multiply(A), _to_multiply(B)
    with exact_products():
        if A.dtype.itemsize >= 4:
            total += A @ B.T
            return
        for start in range(0, A.shape[1], _MAX_TERMS):
            part = slice(start, start + _MAX_TERMS)
            total += torch.mm(A[:, part], B[:, part].T, out_dtype=torch.float32)


def _to_float(Z: Array) -> Array:
    """Convert 16-bit features to float32."""
    return _array.namespace(Z).astype(Z, _array.namespace(Z).float32) if Z.dtype.itemsize < 4 else Z


def _to_multiply(Z: Array) -> Array:
    """Convert features to a dtype whose products are summed in float32: 16 bits only on CUDA with torch ≥ 2.8."""
    if not _array.is_torch(Z) or Z.dtype.itemsize >= 4:
        return Z
    import torch

    return Z if Z.device.type == "cuda" and torch.__version__ >= (2, 8) else Z.to(torch.float32)
