"""Ridge regression as problems that are solved for any penalty α, and say what they predict for rows left out.

All models minimize Σ w (y − f(x) − b)² + α‖f‖², with a constant b that is not penalized (or 0). Rows are centred and
multiplied by √w. The unknowns X solve (A + α)X = R:

- primal, with the sums over rows: A = Σ w z̃z̃ᵀ (m × m), R = Σ w z̃ỹᵀ, and X are the weights of the features;
- dual, with a kernel matrix: A = S K̃ S (n × n), S = diag(√w), R = S Ỹ, and S X are the weights of the rows.

The residuals of a set S of training rows, had the model been fitted without them, follow from the same factorization.
With the hat matrix H (of rows times √w) they are

    e₋ₛ = (I − H_SS)⁻¹ e_S,   I − H_SS = I − √w√wᵀ/W − Z̃_S (A + α)⁻¹ Z̃_Sᵀ = α([(A + α)⁻¹]_SS − √w√wᵀ/(W(τ + α))),

the first form primal, the second dual. As A√w = 0 for centred rows, τ√w√wᵀ/W can be added to A without changing a
solution; that replaces the difference of two large terms by one that keeps its digits for small α. In the dual
e_S = αX_S, so that α cancels.

S is the whole sample ("holdout"), or one row at a time ("loo"; the diagonal suffices). Of a row with a weight w > 1 one
unit is left out, e/(1 − H_ii/w), as from a data set that holds the row w times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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

TINY = 1e-300  # stands for α = 0 where it is divided by
_FEW = 1024  # unknowns up to which an eigendecomposition takes well below a second
_MOST_EIGEN = 4096  # unknowns up to which it replaces a factorization that fails
_MOST_UNEVEN = 1e6  # ratio of entries of the diagonal above which eigenvectors lose digits that Cholesky's method keeps
_LOST = 1e-6  # share of the variance of the targets that rounding errors may hide
_NEGLECTED = 0.1  # share of the variance of a target that a column explains of which α leaves nothing
_HEAVY = 1e8  # k(x, x) of a row over the mean of the others': sums in float64 then begin to lose the others


class Fit(NamedTuple):
    """Unknowns (unknowns, k) for one α, and predictions (s, k) for the rows left out."""

    X: Array
    predictions: Array | None


class Weights(NamedTuple):
    """Weights of features or rows, constants (k,), and the variance of the targets about the model (k,)."""

    coef: Array
    intercept: Array
    noise: Array | None


class Selection(NamedTuple):
    """How rows are left out: the way, and at most how many of them."""

    way: str
    size: int

    def n_rows(self, n_used: int) -> int:
        """Rows to leave out of `n_used`; in a sample that is held out others must remain to predict from."""
        return min(self.size, n_used if self.way == "loo" else max(n_used // 5, min(n_used, 1)))


class Problem(ABC):
    """Ridge regression for any α.

    Attributes
    ----------
    scale : float
        Mean of the diagonal of the kernel matrix; default penalties are multiples of it.
    left_targets, left_weight : arrays of shape (s, k) and (s,)
        Targets and weights of the rows left out; s may be 0.
    evaluates_all : bool
        Whether all penalties are as cheap as one.
    heaviest : float
        Largest k(x, x) of a row over the mean of the others'.
    """

    scale: float
    left_targets: Array
    left_weight: Array
    evaluates_all = False
    heaviest = 1.0

    @abstractmethod
    def fit(self, alpha: float) -> Fit | None:
        """Solve for one α; None if rounding errors make that impossible."""

    @abstractmethod
    def weights(self, X: Array, alpha: float) -> Weights:
        """The model that some unknowns are."""

    def rescue(self) -> bool:
        """Change to a slower way that solves for any α, if there is one."""
        return False

    def trouble(self, X: Array, alpha: float) -> str:  # noqa: ARG002
        """What makes the solution X for α useless: "row" (one decides alone), "columns", "rounding", or ""."""
        return "row" if self.heaviest > _HEAVY else ""


class DirectProblem(Problem):
    """A problem with a matrix that is factorized: once by eigenvectors, or by Cholesky's method for each α."""

    R: Array
    """Right-hand sides."""
    total: float
    """Σ w."""
    constant: Array | None
    """√w/√W of the rows left out, None without an intercept."""
    least = 0.0
    """Smallest α for errors of rows left out: below nothing changes but rounding errors."""
    least_shift = 0.0
    """Smallest shift of the diagonal that is told from rounding errors."""
    most_negative = np.inf
    """Negative eigenvalues up to this share of the largest are rounding errors; others are of an indefinite kernel."""
    rounding = 0.0
    """Errors of the eigenvalues of A from before it was centred."""

    def __init__(self, way: str, solver: str, n_unknowns: int, *, several: bool):
        self.way = way
        self.evaluates_all = solver == "eigen" or (solver == "auto" and several and n_unknowns <= _FEW)
        self.by_eigen = self.evaluates_all
        self.solver, self.n_unknowns = solver, n_unknowns
        self._eigen: _Eigen | None = None

    @abstractmethod
    def matrix(self) -> Array:
        """A, valid in its lower triangle, in memory that may be overwritten."""

    def is_singular(self, alpha: float) -> bool:
        """Whether directions were left out of the solution for α, as rounding errors."""
        eigen = self._eigen
        return eigen is not None and alpha <= eigen.floor and bool((eigen.values <= eigen.floor).any())

    def gram_matrix(self) -> Array:
        """A without what is added to it for the sake of rounding."""
        return self.matrix()

    @abstractmethod
    def probes(self) -> Array:
        """P: columns of the rows left out, Z̃_Sᵀ in the primal and unit vectors in the dual."""

    @abstractmethod
    def residual(self, X: Array) -> Array:
        """√w (y − ŷ) of the rows left out, in the dual over α."""

    @abstractmethod
    def complement(self, form: Array, constant: Array | float, alpha: float, identity: Array | float) -> Array:
        """I − H, in the dual over α, or its diagonal; from Pᵀ(A + α)⁻¹P and √w√wᵀ/W or their diagonals."""

    @property
    def n_left(self) -> int:
        """Number of rows left out."""
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
        """X, and B with BᵀB = Pᵀ(A + α)⁻¹P."""
        singular = alpha < self.least_shift and self.n_unknowns <= _MOST_EIGEN
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
        """Whether a pivot of a factorization is no larger than rounding errors, and another way is left."""
        xp: Any = _array.namespace(pivots)
        return not self.by_eigen and self.n_unknowns <= _MOST_EIGEN and bool(xp.any(pivots < EPS * own))

    def rescue(self) -> bool:
        """See :meth:`Problem.rescue`."""
        if self._eigen is not None and self._eigen.indefinite:
            raise ValueError(INDEFINITE)
        possible = not self.by_eigen and self.n_unknowns <= _MOST_EIGEN
        self.by_eigen |= possible
        self.evaluates_all |= possible
        return possible

    def _look_at(self, own: Array, noise: Array | float = 0.0) -> None:
        """Choose the method by the diagonal of A; entries up to `noise` are rounding errors.

        Errors of Cholesky's method in A_ij are some eps·√(A_ii A_jj), so that columns may have any units; errors of
        eigenvectors are some eps·‖A‖ everywhere.
        """
        xp: Any = _array.namespace(own)
        largest = float(xp.max(own))
        smallest = float(xp.min(xp.where(own > noise, own, largest)))
        if self.solver == "auto" and largest > _MOST_UNEVEN * smallest:
            self.by_eigen = False

    def _left_out(self, X: Array, half: Array, alpha: float) -> Array:
        """Predictions for the rows left out."""
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
        """1 − H_ii/w for rows with a weight w > 1, from `rest`; in the dual over α."""
        return one_unit(rest, self.left_weight, 1.0)

    def posterior(self, alpha: float) -> Posterior:
        """The factorization that standard deviations follow from."""
        alpha = max(alpha, self.least)
        shift = alpha or EPS * (float(_array.namespace(self.R).sum(diagonal(self.matrix()))) or 1.0)
        for _ in range(11):  # up to 10⁻⁶ of the trace, as rounding errors of float32 products may have that size
            factor = cholesky(self.matrix(), shift)
            if factor is not None:
                return Posterior(factor, shift, 1 / self.total if self._centred else 0.0)
            shift *= 10  # rounding has made the matrix indefinite
        raise ValueError(INDEFINITE)

    _centred: bool


def one_unit(rest: Array, weight: Array, inverse_alpha: float) -> Array:
    """(1 − u/w)/α + (u/w)·rest with u = min(w, 1): what is left of a row of weight w without one unit of it."""
    xp: Any = _array.namespace(rest)
    share = 1 / xp.where(weight > 1, weight, xp.ones_like(weight))
    return xp.where(share < 1, (1 - share) * inverse_alpha + share * rest, rest)


class _Eigen:
    """One eigendecomposition for all α. Eigenvalues that are rounding errors are left out where α is no larger."""

    def __init__(self, A: Array, R: Array, P: Array, most_negative: float, rounding: float):
        xp: Any = _array.namespace(A)
        self.values, self.vectors = eigh(symmetric(A))
        self.indefinite = float(xp.min(self.values)) < -most_negative * float(xp.max(xp.abs(self.values))) - rounding
        self.R, self.P = xp.matmul(self.vectors.T, R), xp.matmul(self.vectors.T, P)
        # A has no negative eigenvalues but by rounding, so that the lowest tells how large rounding errors are.
        rounding = max(EPS * A.shape[0] * float(xp.max(self.values)), rounding)
        self.floor = max(-2 * float(xp.min(self.values)), rounding)

    def at(self, alpha: float) -> tuple[Array, Array] | None:
        """X, and B with BᵀB = Pᵀ(A + α)⁻¹P; None if A + α is indefinite by more than rounding."""
        xp: Any = _array.namespace(self.values)
        shifted = (self.values if self.indefinite else xp.clip(self.values, 0.0, None)) + alpha
        if self.indefinite and float(xp.min(shifted)) <= 0:
            return None
        kept = ((self.values > self.floor) | (alpha > self.floor)) & (shifted > 0)
        kept = kept | (shifted > 0) if self.indefinite else kept
        inverse = xp.where(kept, 1 / xp.where(kept, shifted, xp.ones_like(shifted)), 0.0)
        return xp.matmul(self.vectors, inverse[:, None] * self.R), xp.sqrt(inverse)[:, None] * self.P


class Posterior:
    """Variance of predictions over the noise: 1/W + z̃ᵀ(G + α)⁻¹z̃, or 1/W + (k(x, x) − kᵀ(A + α)⁻¹k)/α."""

    def __init__(self, factor: Array, alpha: float, offset: float):
        self.factor, self.alpha, self.offset = factor, alpha, offset

    def of_features(self, z: Array) -> Array:
        """Of centred features, (m, n)."""
        half = solve_lower(to_library(self.factor, z), z)
        return self.offset + _array.namespace(z).sum(half**2, axis=0)

    def of_kernel(self, k: Array, square: Array) -> Array:
        """Of centred kernel values with the rows of the fit times √w, (n_fit, n), and with the rows themselves."""
        xp: Any = _array.namespace(k)
        half = solve_lower(to_library(self.factor, k), k)
        return self.offset + xp.clip(square - xp.sum(half**2, axis=0), 0.0, None) / self.alpha


class FromSums(DirectProblem):
    """The problem in as many unknowns as features, from sums over the rows."""

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
        """Whether what is left of targets depends on a column far smaller than others, so that α leaves nothing of it.

        The products of the columns with the residuals are R − AX = αX.
        """
        xp: Any = _array.namespace(self.A)
        own = diagonal(self.A)
        steady = self.total * (1e-6 * self.z_mean) ** 2  # columns that hardly vary: what does is rounding errors
        small = (own > steady) & (100 * own < alpha) & (_MOST_UNEVEN * own < xp.max(own))
        share = (alpha * X) ** 2 / xp.where(small, own, xp.ones_like(own))[:, None]
        return bool(xp.any(small[:, None] & (share > _NEGLECTED * self.y_square)))

    def _loses(self, alpha: float) -> bool:
        """Whether rounding errors hide directions that targets depend on.

        With D = diag(A + α)^½, directions v of D⁻¹(A + α)D⁻¹ whose eigenvalues are below `least` are lost. If no row
        has a part in them, vᵀD⁻¹R is a rounding error as well; if some do, it tells what they could explain.
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
        # A is positive semi-definite but for rounding errors, so negative eigenvalues tell the size of these.
        rounding = 10 * max(-float(values[0]), 0.0)
        return bool(xp.any(xp.sum(hidden**2, axis=0) > max(_LOST * least, rounding**2) * self.y_square))

    def spread(self, posterior: Posterior, Z: Array) -> Array:
        """Variance of predictions for features over the noise."""
        xp: Any = _array.namespace(Z)
        return posterior.of_features((xp.astype(Z, xp.float64) - to_library(self.z_mean, Z)).T)


class FromGram(DirectProblem):
    """The problem in as many unknowns as rows, from their kernel matrix times 1/`divisor`.

    K may be of any precision, and is not changed: A is made from it for each α, so that two matrices are held. Where
    `again` computes K again, A takes its place, and one matrix is held.
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
            trace = 0.0  # rounding errors of a kernel that is constant
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
        """See :meth:`Problem.trouble`; kernel values far from 0 that differ little lose their digits."""
        far = self.rounding > 1e4 * EPS * self.tau * self.n_unknowns and alpha < 10 * self.rounding
        return super().trouble(X, alpha) or ("rounding" if far else "")

    def weights(self, X: Array, alpha: float) -> Weights:
        """See :meth:`Problem.weights`; weights of rows."""
        xp: Any = _array.namespace(X)
        with np.errstate(over="ignore"):  # of huge targets
            noise = max(alpha, self.least) * xp.sum(self.R * X, axis=0) / (self.total or 1.0)
        dual = self.root[:, None] * X
        return Weights(dual, self.y_mean - xp.matmul(self.k_mean, dual), xp.clip(noise, 0.0, None))

    def centred(self, K: Array, square: Array) -> tuple[Array, Array]:
        """Kernel values of other rows with the rows of the fit, (n, n_fit), and with themselves, for a posterior."""
        xp: Any = _array.namespace(K)
        weight, k_mean = to_library(self.weight, K), to_library(self.k_mean, K)
        if self._centred:
            mean = xp.matmul(K, weight / self.total)
            K = K - mean[:, None] - k_mean + self.k_square
            square = square - 2 * mean + self.k_square
        return (K * xp.sqrt(weight)).T, square


class FromRows(FromGram):
    """The problem in as many unknowns as rows, from features of few rows."""

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
        """See :meth:`Problem.weights`; weights of features."""
        xp: Any = _array.namespace(X)
        dual, _, noise = super().weights(X, alpha)
        coef = xp.matmul(self.Z.T, dual)
        return Weights(coef, self.y_mean - xp.matmul(self.z_mean, coef), noise)

    def gram_matrix(self) -> Array:
        """See :meth:`DirectProblem.gram_matrix`."""
        self.tau = 0.0
        return self.matrix()

    def spread(self, posterior: Posterior, Z: Array) -> Array:
        """Variance of predictions for features over the noise."""
        xp: Any = _array.namespace(Z)
        z = xp.astype(Z, xp.float64) - to_library(self.z_mean, Z)
        return posterior.of_kernel(*self.centred(xp.matmul(z, to_library(self.Z, Z).T), xp.sum(z**2, axis=1)))


def from_statistics(statistics: Statistics, selection: Selection, **options: Any) -> FromSums | FromRows:
    """The smaller of the two problems that sums over rows, or rows that are kept, make possible."""
    rows = statistics.finish().rows()
    return FromSums(statistics, selection, **options) if rows is None else FromRows(rows, selection, **options)


def heaviest(squares: Array) -> float:
    """The largest of some numbers ≥ 0 over the mean of the others."""
    xp: Any = _array.namespace(squares)
    n, largest = int(squares.shape[0]), float(xp.max(squares))
    rest = float(xp.sum(xp.where(squares < largest, squares, xp.zeros_like(squares))))
    return largest * (n - 1) / rest if rest > 0 else 1.0


def check_scale(scale: float) -> float:
    """Raise unless the mean of a diagonal is finite: squares of features or kernel values have overflowed otherwise."""
    if not np.isfinite(scale):
        raise ValueError(
            "The features, or kernel values, of some rows of X are too large: their squares overflow. Scale the rows, "
            "for example by sklearn.preprocessing.StandardScaler."
        )
    return scale
