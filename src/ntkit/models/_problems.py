"""Ridge regression problems that can be solved for any penalty α and give predictions for held-out rows.

All models minimize Σ w (y − f(x) − b)² + α‖f‖², where the intercept b is not penalized (or is 0). Rows are centred and
multiplied by √w. The unknowns X solve (A + α)X = R:

- primal, with the sums over rows: A = Σ w z̃z̃ᵀ (m × m), R = Σ w z̃ỹᵀ, and X are the weights of the features;
- dual, with a kernel matrix: A = S K̃ S (n × n), S = diag(√w), R = S Ỹ, and S X are the weights of the rows.

The residuals that a set S of training rows would have if the model were fitted without them follow from the same
factorization. With the hat matrix H (of rows times √w) they are

    e₋ₛ = (I − H_SS)⁻¹ e_S,   I − H_SS = I − √w√wᵀ/W − Z̃_S (A + α)⁻¹ Z̃_Sᵀ = α([(A + α)⁻¹]_SS − √w√wᵀ/(W(τ + α))).

The first form is primal, the second dual. As A√w = 0 for centred rows, τ√w√wᵀ/W can be added to A without changing a
solution. This replaces the difference of two large terms by one that keeps its digits for small α. In the dual
e_S = αX_S, so that α cancels.

S is the whole sample ("holdout"), or one row at a time ("loo", where the diagonal suffices). If a row has a weight
w > 1, only one unit of it is left out, e/(1 − H_ii/w), as from a data set that contains the row w times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit.models._checks import to_library
from ntkit.models._linalg import (
    EPS,
    INDEFINITE,
    cholesky,
    cholesky_solve,
    diagonal,
    eigh,
    panels,
    solve_lower,
    symmetric,
    zeros,
)
from ntkit.models._statistics import KeptRows, Statistics, add_outer

TINY = 1e-300  # replaces α = 0 in divisions
_FEW = 1024  # with at most this many unknowns, an eigendecomposition takes well below a second
_MAX_EIGEN = 4096  # with at most this many unknowns, an eigendecomposition replaces a factorization that fails
_MAX_UNEVEN = 1e6  # above this ratio of diagonal entries, eigenvectors lose digits that a Cholesky factorization keeps
_LOST = 1e-6  # warn if rounding errors may hide more than this share of the variance of the targets
_NEGLECTED = 0.1  # warn if a column that α suppresses explains more than this share of the variance of a target
_HEAVY = 1e8  # warn if k(x, x) of a row exceeds the mean of the other rows by this factor: float64 sums lose digits


class Fit(NamedTuple):
    """Unknowns (unknowns, k) for one α, and predictions (s, k) for the held-out rows."""

    X: Array
    predictions: Array | None


class Weights(NamedTuple):
    """Weights of features or rows, intercepts (k,), and variances of the noise (k,)."""

    coef: Array
    intercept: Array
    noise: Array | None


class Selection(NamedTuple):
    """How rows are held out: `way` is "loo" or "holdout", `size` the largest number of rows."""

    way: str
    size: int

    def n_rows(self, n_used: int) -> int:
        """Return how many of `n_used` rows to hold out: with "holdout" a fifth at most, so that others remain."""
        return min(self.size, n_used if self.way == "loo" else max(n_used // 5, min(n_used, 1)))


class Problem(ABC):
    """Ridge regression for any α.

    Attributes
    ----------
    scale : float
        Mean of the diagonal of the kernel matrix; default penalties are multiples of it.
    left_targets, left_weight : arrays of shape (s, k) and (s,)
        Targets and weights of the held-out rows; s may be 0.
    evaluates_all : bool
        Whether solving for all penalties costs about as much as solving for one.
    heaviest : float
        Largest k(x, x) divided by the mean of k(x, x) over the other rows.
    """

    scale: float
    left_targets: Array
    left_weight: Array
    evaluates_all = False
    heaviest = 1.0

    @abstractmethod
    def fit(self, alpha: float) -> Fit | None:
        """Solve for one α; return None if rounding errors make that impossible."""

    @abstractmethod
    def weights(self, X: Array, alpha: float) -> Weights:
        """Convert the unknowns to weights, intercepts and variances of the noise."""

    def rescue(self) -> bool:
        """Switch to a slower method that solves for any α; return whether there is one."""
        return False

    def trouble(self, X: Array, alpha: float) -> str:  # noqa: ARG002
        """Return what makes the solution X useless: "row" (one row dominates), "columns", "rounding", or ""."""
        return "row" if self.heaviest > _HEAVY else ""


class DirectProblem(Problem):
    """A problem whose matrix is factorized: one eigendecomposition, or a Cholesky factorization for each α."""

    R: Array
    """Right-hand sides."""
    total: float
    """Σ w."""
    constant: Array | None
    """√w/√W of the held-out rows, None without an intercept."""
    least = 0.0
    """Smallest α for held-out errors: for smaller α only the rounding errors change."""
    least_shift = 0.0
    """Smallest shift of the diagonal that can be told from rounding errors."""
    most_negative = np.inf
    """Negative eigenvalues up to this share of the largest are rounding errors; others mean an indefinite kernel."""
    rounding = 0.0
    """Rounding errors of the eigenvalues of A that come from centring."""

    def __init__(self, way: str, solver: str, n_unknowns: int, *, several: bool):
        self.way = way
        self.evaluates_all = solver == "eigen" or (solver == "auto" and several and n_unknowns <= _FEW)
        self.by_eigen = self.evaluates_all
        self.solver, self.n_unknowns = solver, n_unknowns
        self._eigen: _Eigen | None = None

    @abstractmethod
    def matrix(self) -> Array:
        """Return A, valid in its lower triangle, in memory that may be overwritten."""

    def is_singular(self, alpha: float) -> bool:
        """Whether the solution for α ignores directions, because their eigenvalues are rounding errors."""
        eigen = self._eigen
        return eigen is not None and alpha <= eigen.floor and bool((eigen.values <= eigen.floor).any())

    def gram_matrix(self) -> Array:
        """Return A without the term τ√w√wᵀ/W that reduces rounding errors."""
        return self.matrix()

    @abstractmethod
    def probes(self) -> Array:
        """Return P, one column per held-out row: Z̃_Sᵀ in the primal, unit vectors in the dual."""

    @abstractmethod
    def residual(self, X: Array) -> Array:
        """Return √w (y − ŷ) of the held-out rows; in the dual, divided by α."""

    @abstractmethod
    def complement(self, form: Array, constant: Array | float, alpha: float, identity: Array | float) -> Array:
        """Return I − H (in the dual, divided by α) from Pᵀ(A + α)⁻¹P and √w√wᵀ/W, or its diagonal from theirs."""

    @property
    def n_left(self) -> int:
        """Number of held-out rows."""
        return int(self.left_weight.shape[0])

    def fit(self, alpha: float) -> Fit | None:
        """See :meth:`Problem.fit`."""
        found = self._solved(alpha)
        if found is None:
            return None
        X, half = found
        if not self.n_left:
            return Fit(X, None)
        if alpha < self.least:
            return Fit(X, self._left_out(*(self._solved(self.least) or found), self.least))
        return Fit(X, self._left_out(X, half, alpha))

    def _solved(self, alpha: float) -> tuple[Array, Array] | None:
        """Return X, and B with BᵀB = Pᵀ(A + α)⁻¹P; None if the factorization fails."""
        singular = alpha < self.least_shift and self.n_unknowns <= _MAX_EIGEN
        if self.by_eigen or singular:
            self._eigen = self._eigen or _Eigen(self.matrix(), self.R, self.probes(), self.most_negative, self.rounding)
            return self._eigen.at(alpha)
        A = self.matrix()
        own = diagonal(A) + max(alpha, self.least_shift)  # a copy
        factor = cholesky(A, max(alpha, self.least_shift))
        if factor is None or self._is_noise(diagonal(factor) ** 2, own):
            return None
        return cholesky_solve(factor, self.R), solve_lower(factor, self.probes())

    def _is_noise(self, pivots: Array, own: Array) -> bool:
        """Whether a pivot is as small as rounding errors and an eigendecomposition can replace the factorization."""
        xp: Any = _array.namespace(pivots)
        return not self.by_eigen and self.n_unknowns <= _MAX_EIGEN and bool(xp.any(pivots < EPS * own))

    def rescue(self) -> bool:
        """See :meth:`Problem.rescue`."""
        if self._eigen is not None and self._eigen.indefinite:
            raise ValueError(INDEFINITE)
        possible = not self.by_eigen and self.n_unknowns <= _MAX_EIGEN
        self.by_eigen |= possible
        self.evaluates_all |= possible
        return possible

    def _look_at(self, own: Array, noise: Array | float = 0.0) -> None:
        """Choose the method by the diagonal of A; entries up to `noise` are rounding errors.

        A Cholesky factorization has errors of about eps·√(A_ii A_jj) in A_ij, so columns may have any units. An
        eigendecomposition has errors of about eps·‖A‖ in every entry.
        """
        xp: Any = _array.namespace(own)
        largest = float(xp.max(own))
        smallest = float(xp.min(xp.where(own > noise, own, largest)))
        if self.solver == "auto" and largest > _MAX_UNEVEN * smallest:
            self.by_eigen = False

    def _left_out(self, X: Array, half: Array, alpha: float) -> Array:
        """Return predictions for the held-out rows."""
        xp: Any = _array.namespace(X)
        residual, weight = self.residual(X), self.left_weight
        constant, root = self.constant, xp.sqrt(weight)[:, None]
        if self.way == "loo":
            rest = self.complement(xp.sum(half**2, axis=0), 0.0 if constant is None else constant**2, alpha, 1.0)
            rest = xp.clip(rest, EPS * (float(xp.max(rest)) or 1.0), None)
            error = residual / self._of_one_unit(rest, alpha)[:, None]
        else:
            identity = xp.eye(half.shape[1], dtype=xp.float64, device=_array.device(half))
            outer = 0.0 if constant is None else constant[:, None] * constant[None, :]
            rest = self.complement(xp.matmul(half.T, half), outer, alpha, identity)
            jitter = 4 * EPS * (float(xp.max(xp.linalg.diagonal(rest))) or 1.0)
            error = xp.linalg.solve(rest + jitter * identity, residual)
        return self.left_targets - error / xp.where(root > 0, root, xp.ones_like(root))

    def _of_one_unit(self, rest: Array, alpha: float) -> Array:  # noqa: ARG002
        """Return 1 − H_ii/w for rows with a weight w > 1, from `rest`; in the dual, divided by α."""
        return one_unit(rest, self.left_weight, 1.0)

    def posterior(self, alpha: float) -> Posterior:
        """Return the factorization for standard deviations."""
        alpha = max(alpha, self.least)
        shift = alpha or EPS * (float(_array.namespace(self.R).sum(diagonal(self.matrix()))) or 1.0)
        for _ in range(11):  # up to 10⁻⁶ of the trace, the size of rounding errors of float32 products
            factor = cholesky(self.matrix(), shift)
            if factor is not None:
                return Posterior(factor, shift, 1 / self.total if self._centred else 0.0)
            shift *= 10  # rounding has made the matrix indefinite
        raise ValueError(INDEFINITE)

    _centred: bool


def one_unit(rest: Array, weight: Array, inverse_alpha: float) -> Array:
    """Return (1 − u/w)/α + (u/w)·rest with u = min(w, 1): leave one unit of a row of weight w out, not all of it."""
    xp: Any = _array.namespace(rest)
    share = 1 / xp.where(weight > 1, weight, xp.ones_like(weight))
    return xp.where(share < 1, (1 - share) * inverse_alpha + share * rest, rest)


class _Eigen:
    """One eigendecomposition for all α. Eigenvalues below the rounding errors are ignored unless α is above them."""

    def __init__(self, A: Array, R: Array, P: Array, most_negative: float, rounding: float):
        xp: Any = _array.namespace(A)
        self.values, self.vectors = eigh(symmetric(A))
        self.indefinite = float(xp.min(self.values)) < -most_negative * float(xp.max(xp.abs(self.values))) - rounding
        self.R, self.P = xp.matmul(self.vectors.T, R), xp.matmul(self.vectors.T, P)
        # Only rounding makes eigenvalues of A negative, so the lowest one shows how large rounding errors are.
        rounding = max(EPS * A.shape[0] * float(xp.max(self.values)), rounding)
        self.floor = max(-2 * float(xp.min(self.values)), rounding)

    def at(self, alpha: float) -> tuple[Array, Array] | None:
        """Return X, and B with BᵀB = Pᵀ(A + α)⁻¹P; None if A + α is indefinite by more than rounding."""
        xp: Any = _array.namespace(self.values)
        shifted = (self.values if self.indefinite else xp.clip(self.values, 0.0, None)) + alpha
        if self.indefinite and float(xp.min(shifted)) <= 0:
            return None
        kept = ((self.values > self.floor) | (alpha > self.floor)) & (shifted > 0)
        kept = kept | (shifted > 0) if self.indefinite else kept
        inverse = xp.where(kept, 1 / xp.where(kept, shifted, xp.ones_like(shifted)), 0.0)
        return xp.matmul(self.vectors, inverse[:, None] * self.R), xp.sqrt(inverse)[:, None] * self.P


class Posterior:
    """Variance of predictions divided by the noise: 1/W + z̃ᵀ(G + α)⁻¹z̃, or 1/W + (k(x, x) − kᵀ(A + α)⁻¹k)/α."""

    def __init__(self, factor: Array, alpha: float, offset: float):
        self.factor, self.alpha, self.offset = factor, alpha, offset

    def of_features(self, z: Array) -> Array:
        """Return it for centred features of shape (m, n)."""
        half = solve_lower(to_library(self.factor, z), z)
        return self.offset + _array.namespace(z).sum(half**2, axis=0)

    def of_kernel(self, k: Array, square: Array) -> Array:
        """Return it for centred kernel values: with the rows of the fit, times √w, (n_fit, n), and k(x, x), (n,)."""
        xp: Any = _array.namespace(k)
        half = solve_lower(to_library(self.factor, k), k)
        return self.offset + xp.clip(square - xp.sum(half**2, axis=0), 0.0, None) / self.alpha


class FromSums(DirectProblem):
    """The primal problem, with one unknown per feature, from sums over the rows."""

    def __init__(
        self,
        statistics: Statistics,
        selection: Selection,
        *,
        intercept: bool,
        several: bool = True,
        solver: str = "auto",
        shift: float = 0.0,
    ):
        super().__init__(selection.way, solver, statistics.n_components, several=several)
        sample, self.total, self._centred = statistics.sample, statistics.weight, intercept
        self.A, self.R, self.y_square = statistics.gram, statistics.cross, statistics.y_square
        self.z_mean, self.y_mean = statistics.z_mean, statistics.y_mean - shift
        xp: Any = _array.namespace(self.A)
        if not intercept:
            self.A = xp.asarray(self.A, copy=True)
            add_outer(self.A, self.z_mean[:, None], [self.total])
            self.R = self.R + self.total * self.z_mean[:, None] * self.y_mean[None, :]
            self.y_square = self.y_square + self.total * self.y_mean**2
            self.z_mean, self.y_mean = xp.zeros_like(self.z_mean), xp.zeros_like(self.y_mean)
        own = diagonal(self.A)
        self.scale = check_scale(float(xp.sum(own)) / (self.total or 1.0))
        self.heaviest = statistics.heaviest()
        self._look_at(own, 16 * self.total * (EPS * statistics.z_mean) ** 2)
        n_left = selection.n_rows(statistics.n_used)
        self.left_weight = self.z_mean[:0] if sample.Z is None else sample.weight[:n_left]
        root = xp.sqrt(self.left_weight)[:, None]
        self.P, self.Y = self.A[:, :0], self.R[:0, :]
        if sample.Z is not None:
            self.P = ((xp.astype(sample.Z[:n_left], self.A.dtype) - self.z_mean) * root).T
            self.Y = sample.Y[:n_left] - shift - self.y_mean
        self.left_targets = self.Y + self.y_mean
        self.Y = self.Y * root
        self.constant = root[:, 0] / (self.total or 1.0) ** 0.5 if intercept else None

    def leading(self, size: int) -> FromSums:
        """Return the problem of the first `size` features."""
        part = copy(self)
        xp: Any = _array.namespace(self.A)
        part.A, part.R, part.P = xp.asarray(self.A[:size, :size], copy=True), self.R[:size], self.P[:size]
        part.z_mean, part.n_unknowns, part._eigen = self.z_mean[:size], size, None
        part.scale = check_scale(float(xp.sum(diagonal(part.A))) / (self.total or 1.0))
        return part

    def matrix(self) -> Array:
        """See :meth:`DirectProblem.matrix`."""
        return _array.namespace(self.A).asarray(self.A, copy=True)

    def probes(self) -> Array:
        """See :meth:`DirectProblem.probes`."""
        return self.P

    def residual(self, X: Array) -> Array:
        """See :meth:`DirectProblem.residual`."""
        return self.Y - _array.namespace(X).matmul(self.P.T, X)

    def complement(self, form: Array, constant: Array | float, alpha: float, identity: Array | float) -> Array:  # noqa: ARG002
        """See :meth:`DirectProblem.complement`."""
        return identity - form - constant

    def weights(self, X: Array, alpha: float) -> Weights:  # noqa: ARG002
        """See :meth:`Problem.weights`."""
        xp: Any = _array.namespace(X)
        misfit = self.y_square - xp.sum(self.R * X, axis=0)
        noise = xp.clip(misfit / (self.total or 1.0), 0.0, None)
        return Weights(X, self.y_mean - xp.matmul(self.z_mean, X), noise)

    def trouble(self, X: Array, alpha: float) -> str:
        """See :meth:`Problem.trouble`."""
        found = super().trouble(X, alpha)
        if found:
            return found
        return "columns" if self._neglects(X, alpha) else "rounding" if self._loses(alpha) else ""

    def _neglects(self, X: Array, alpha: float) -> bool:
        """Whether the residuals depend on a column that α suppresses, because it is far smaller than others.

        The products of the columns with the residuals are R − AX = αX.
        """
        xp: Any = _array.namespace(self.A)
        own = diagonal(self.A)
        steady = self.total * (1e-6 * self.z_mean) ** 2  # the variation of nearly constant columns is rounding errors
        small = (own > steady) & (100 * own < alpha) & (_MAX_UNEVEN * own < xp.max(own))
        share = (alpha * X) ** 2 / xp.where(small, own, xp.ones_like(own))[:, None]
        return bool(xp.any(small[:, None] & (share > _NEGLECTED * self.y_square)))

    def _loses(self, alpha: float) -> bool:
        """Whether rounding errors hide directions that targets depend on.

        With D = diag(A + α)^½, eigenvectors v of D⁻¹(A + α)D⁻¹ with eigenvalues below `least` are lost. If all rows are
        orthogonal to them, vᵀD⁻¹R is a rounding error as well; otherwise it shows how much they could explain.
        """
        xp: Any = _array.namespace(self.A)
        own = diagonal(self.A) + alpha
        least = 100 * EPS * self.n_unknowns
        if not alpha or alpha > least * float(xp.max(own)) or self.n_unknowns > _FEW:
            return False
        d = 1 / xp.sqrt(xp.where(own > 0, own, xp.ones_like(own)))
        C = symmetric(self.matrix())
        diagonal(C)[...] += alpha
        values, vectors = eigh(C * d[:, None] * d[None, :])
        hidden = xp.matmul(vectors[:, values < least].T, d[:, None] * self.R)
        # Only rounding makes eigenvalues of A negative, so they show the size of the rounding errors.
        rounding = 10 * max(-float(values[0]), 0.0)
        return bool(xp.any(xp.sum(hidden**2, axis=0) > max(_LOST * least, rounding**2) * self.y_square))

    def spread(self, posterior: Posterior, Z: Array) -> Array:
        """Return the variance of predictions for features, divided by the noise."""
        xp: Any = _array.namespace(Z)
        return posterior.of_features((xp.astype(Z, xp.float64) - to_library(self.z_mean, Z)).T)


class FromGram(DirectProblem):
    """The dual problem, with one unknown per row, from the kernel matrix K / `divisor`.

    K may have any precision. Without `again`, K is not changed: A is computed from it for each α, and two matrices are
    in memory. If `again` is given, it recomputes K. Then A overwrites K, and only one matrix is in memory.
    """

    def __init__(
        self,
        K: Array,
        Y: Array,
        weight: Array,
        keys: np.ndarray,
        selection: Selection,
        *,
        intercept: bool,
        divisor: float = 1.0,
        several: bool = True,
        solver: str = "auto",
        again: Callable[[], Array] | None = None,
        most_negative: float = np.inf,
    ):
        super().__init__(selection.way, solver, int(K.shape[0]), several=several)
        xp: Any = _array.namespace(K)
        self.K, self.divisor, self.weight, self._centred = K, divisor, weight, intercept
        self._again, self.most_negative = again, most_negative
        self.total, self.root = float(xp.sum(weight)), xp.sqrt(weight)
        share = weight / (self.total or 1.0)
        self.y_mean = xp.matmul(share, Y) if intercept else xp.zeros_like(Y[0])
        self.k_mean, self.k_square = xp.zeros_like(weight), 0.0
        if intercept:
            self.k_mean = xp.concat(
                [xp.matmul(xp.astype(K[rows], xp.float64), share) / divisor for rows in panels(self.n_unknowns)]
            )
            self.k_square = float(xp.matmul(share, self.k_mean))
        self.R = (Y - self.y_mean) * self.root[:, None]
        own = xp.astype(diagonal(K), xp.float64) / divisor - 2 * self.k_mean + self.k_square
        trace = float(xp.sum(weight * own))
        uncentred = float(xp.sum(weight * xp.astype(diagonal(K), xp.float64))) / divisor
        if np.isfinite(trace) and trace <= 4 * EPS * uncentred:
            trace = 0.0  # the kernel is constant up to rounding errors
        self.scale = check_scale(trace / (self.total or 1.0))
        self.rounding = EPS * uncentred
        self.heaviest = heaviest(weight * xp.astype(diagonal(K), xp.float64))
        self._look_at(weight * own)
        self.tau = trace / self.n_unknowns or 1.0
        self.least, self.least_shift = 1e-9 * self.tau, EPS * self.n_unknowns * self.tau
        order = np.argsort(keys, kind="stable")[: selection.n_rows(int(np.isfinite(keys).sum()))]
        self.chosen = to_library(order, K)
        self.left_weight, self.left_targets = weight[self.chosen], Y[self.chosen]
        self.constant = self.root[self.chosen] / (self.total or 1.0) ** 0.5 if intercept else None

    def matrix(self) -> Array:
        """See :meth:`DirectProblem.matrix`."""
        xp: Any = _array.namespace(self.root)
        K = self._again() if self.K is None and self._again is not None else self.K
        A = zeros(K.shape, "float64", K) if self._again is None else K
        self.K = K if self._again is None else None
        tau = self.tau / (self.total or 1.0) if self._centred else 0.0
        weighted = not bool(xp.all(self.weight == 1.0))
        for rows in panels(self.n_unknowns):
            if A is not K:
                A[rows] = K[rows]
            block = A[rows]  # a view
            if self.divisor != 1.0:
                block /= self.divisor
            if self._centred:
                block -= self.k_mean[rows, None]
                block -= (self.k_mean - self.k_square - tau)[None, :]
            if weighted:
                block *= self.root[rows, None]
                block *= self.root[None, :]
        return A

    def probes(self) -> Array:
        """See :meth:`DirectProblem.probes`."""
        P = zeros((self.n_unknowns, self.n_left), "float64", self.R)
        P[self.chosen, to_library(np.arange(self.n_left), P)] = 1.0
        return P

    def residual(self, X: Array) -> Array:
        """See :meth:`DirectProblem.residual`."""
        return X[self.chosen]

    def complement(self, form: Array, constant: Array | float, alpha: float, identity: Array | float) -> Array:  # noqa: ARG002
        """See :meth:`DirectProblem.complement`."""
        return form - constant / (self.tau + alpha)

    def _of_one_unit(self, rest: Array, alpha: float) -> Array:
        return one_unit(rest, self.left_weight, 1 / max(alpha, TINY))

    def trouble(self, X: Array, alpha: float) -> str:
        """See :meth:`Problem.trouble`. Kernel values that differ little compared with their size lose their digits."""
        far = self.rounding > 1e4 * EPS * self.tau * self.n_unknowns and alpha < 10 * self.rounding
        return super().trouble(X, alpha) or ("rounding" if far else "")

    def weights(self, X: Array, alpha: float) -> Weights:
        """See :meth:`Problem.weights`; here the weights belong to rows."""
        xp: Any = _array.namespace(X)
        with np.errstate(over="ignore"):  # huge targets
            noise = max(alpha, self.least) * xp.sum(self.R * X, axis=0) / (self.total or 1.0)
        dual = self.root[:, None] * X
        return Weights(dual, self.y_mean - xp.matmul(self.k_mean, dual), xp.clip(noise, 0.0, None))

    def centred(self, K: Array, square: Array) -> tuple[Array, Array]:
        """Centre kernel values of new rows for :meth:`Posterior.of_kernel`: with the rows of the fit, and k(x, x)."""
        xp: Any = _array.namespace(K)
        weight, k_mean = to_library(self.weight, K), to_library(self.k_mean, K)
        if self._centred:
            mean = xp.matmul(K, weight / self.total)
            K = K - mean[:, None] - k_mean + self.k_square
            square = square - 2 * mean + self.k_square
        return (K * xp.sqrt(weight)).T, square


class FromRows(FromGram):
    """The dual problem, with one unknown per row, from the features of few rows."""

    def __init__(
        self,
        rows: KeptRows,
        selection: Selection,
        *,
        intercept: bool,
        shift: float = 0.0,
        **options: Any,
    ):
        weight = rows.weight
        xp: Any = _array.namespace(rows.Z)
        Z, total = xp.astype(rows.Z, xp.float64), float(xp.sum(weight))
        self.z_mean = xp.matmul(weight / (total or 1.0), Z) if intercept else xp.zeros_like(Z[0])
        self.Z = Z - self.z_mean
        K = xp.matmul(self.Z, self.Z.T)
        super().__init__(K, rows.Y - shift, weight, rows.keys, selection, intercept=intercept, **options)

    def weights(self, X: Array, alpha: float) -> Weights:
        """See :meth:`Problem.weights`; here the weights belong to features."""
        xp: Any = _array.namespace(X)
        dual, _, noise = super().weights(X, alpha)
        coef = xp.matmul(self.Z.T, dual)
        return Weights(coef, self.y_mean - xp.matmul(self.z_mean, coef), noise)

    def gram_matrix(self) -> Array:
        """See :meth:`DirectProblem.gram_matrix`."""
        self.tau = 0.0
        return self.matrix()

    def spread(self, posterior: Posterior, Z: Array) -> Array:
        """Return the variance of predictions for features, divided by the noise."""
        xp: Any = _array.namespace(Z)
        z = xp.astype(Z, xp.float64) - to_library(self.z_mean, Z)
        return posterior.of_kernel(*self.centred(xp.matmul(z, to_library(self.Z, Z).T), xp.sum(z**2, axis=1)))


def from_statistics(statistics: Statistics, selection: Selection, **options: Any) -> FromSums | FromRows:
    """Return the smaller problem: the dual if the statistics still keep all rows, else the primal."""
    rows = statistics.finish().rows()
    return FromSums(statistics, selection, **options) if rows is None else FromRows(rows, selection, **options)


def heaviest(squares: Array) -> float:
    """Return the largest of some numbers ≥ 0 divided by the mean of the others."""
    xp: Any = _array.namespace(squares)
    n, largest = int(squares.shape[0]), float(xp.max(squares))
    rest = float(xp.sum(xp.where(squares < largest, squares, xp.zeros_like(squares))))
    return largest * (n - 1) / rest if rest > 0 else 1.0


def check_scale(scale: float) -> float:
    """Raise unless the mean of a diagonal is finite; otherwise squares of features or kernel values overflowed."""
    if not np.isfinite(scale):
        raise ValueError(
            "The features or kernel values of some rows of X are too large: their squares overflow. Scale the columns, "
            "for example by sklearn.preprocessing.StandardScaler."
        )
    return scale
