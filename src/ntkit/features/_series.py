"""Kernels that are power series in the cosine, and what their feature maps share.

All are Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j with weights w_j(r) ≥ 0 of the norms::

    "gaussian"       exp(−‖x − y‖²/(2ℓ²))     w_j(r) = (r/ℓ)^j e^{−r²/(2ℓ²)} / √(j!)
    "exponential"    exp(⟨x, y⟩/ℓ²)           w_j(r) = (r/ℓ)^j / √(j!)
    "ntk", "nngp"    ‖x‖‖y‖ Σ_j a_j cos^j     w_j(r) = √a_j r
    coefficients     Σ_j a_j ⟨x, y⟩^j         w_j(r) = √a_j r^j
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, Self, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._validation import check_int, check_real, message
from ntkit.features._base import FeatureMap
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.dot_product import row_norms as exact_norms
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.sketches._agnostic import constant, norm
from ntkit.sketches._base import _without_duplicates

KernelLike: TypeAlias = str | Sequence[float] | np.ndarray
_NAMES = ("gaussian", "exponential", "ntk", "nngp")
_SCALED = ("gaussian", "exponential")
_HOMOGENEOUS = ("ntk", "nngp")
_LARGEST_AUTO = 64
_LARGEST_LOG = 345.0  # e^345 squared is still a float64


@dataclass(frozen=True)
class Series:
    """One of the kernels above; `kernel` is a name or the coefficients a_j."""

    kernel: str | tuple[float, ...]
    lengthscale: float
    depth: int

    def log_coefficients(self, degree: int) -> np.ndarray:
        """Logarithms of a_j for j ≤ `degree`, with a_j = 1/j! for the first two kernels; −∞ where a_j = 0."""
        from scipy.special import gammaln

        if self.kernel in _SCALED:
            return -gammaln(np.arange(degree + 1) + 1.0)
        known = _taylor(self.depth, self.kernel) if isinstance(self.kernel, str) else self.kernel
        with np.errstate(divide="ignore"):
            return np.log(np.array(known[: degree + 1]))

    @property
    def largest_degree(self) -> int:
        """The largest degree that may be asked for."""
        return LARGEST_DEGREE if isinstance(self.kernel, str) else len(self.kernel) - 1

    def degrees(self, degree: int) -> np.ndarray:
        """The j ≤ `degree` with a_j > 0."""
        return np.flatnonzero(np.isfinite(self.log_coefficients(degree)))

    def log_weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """Logarithms of w_j(r) of norms r > 0, in the order (norms, degrees)."""
        xp: Any = _array.namespace(norms)
        a = self.log_coefficients(int(degrees.max()))[degrees]
        halves, powers = (constant(v, norms) for v in (0.5 * a, degrees))
        logs = xp.log(norms)[:, None]
        if self.kernel in _HOMOGENEOUS:
            return halves + logs
        logs = logs - log(self.lengthscale)
        if self.kernel != "gaussian":
            return halves + powers * logs
        return halves + powers * logs - 0.5 * xp.exp(2 * xp.clip(logs, None, _LARGEST_LOG))

    def weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """w_j(r), in the order (norms, degrees); a norm of zero has a weight in degree 0 only."""
        xp: Any = _array.namespace(norms)
        positive = norms > 0
        safe = xp.where(positive, norms, xp.ones_like(norms))
        with np.errstate(over="ignore"):  # of kernels that overflow themselves
            values = xp.exp(self.log_weights(safe, degrees))
        at_zero = np.exp(0.5 * self.log_coefficients(0)[0]) * (degrees == 0)
        if self.kernel in _HOMOGENEOUS:
            at_zero = np.zeros(len(degrees))
        return xp.where(positive[:, None], values, constant(at_zero, norms))

    def log_masses(self, norms: np.ndarray, degree: int) -> np.ndarray:
        """Logarithm of Σ w_j(r)² over norms r > 0, for every j ≤ `degree`."""
        each = (2 * self.log_weights(norms, np.array([j]))[:, 0] for j in range(degree + 1))
        return np.array([np.logaddexp.reduce(logs) for logs in each])

    def find_degree(self, norms: np.ndarray, tolerance: float) -> int:
        """Smallest degree that leaves out at most a share `tolerance` of Σ k(x, x) over norms r > 0.

        No more than 64 for kernels with a name, whose series are infinite.
        """
        logs = self.log_masses(norms, _LARGEST_AUTO if isinstance(self.kernel, str) else self.largest_degree)
        reached = np.logaddexp.accumulate(logs)
        total = self._log_trace(norms) if isinstance(self.kernel, str) else reached[-1]
        enough = np.flatnonzero((-np.expm1(reached - total) <= tolerance) & np.isfinite(reached))
        return int(enough[0]) if len(enough) else len(logs) - 1

    def _log_trace(self, norms: np.ndarray) -> float:
        """Logarithm of Σ k(x, x) over norms r > 0, for a kernel with a name."""
        if self.kernel == "gaussian":
            return log(len(norms))
        logs = np.log(norms) - log(self.lengthscale)
        if self.kernel == "exponential":
            return float(np.logaddexp.reduce(np.exp(2 * np.minimum(logs, _LARGEST_LOG))))
        return float(np.logaddexp.reduce(2 * logs)) + (log(self.depth + 1) if self.kernel == "ntk" else 0.0)

    def matrix(self, X: Array) -> Array:
        """The exact kernel matrix of some rows."""
        from ntkit import kernels

        if not isinstance(self.kernel, str):
            return kernels.dot_product(X, function=self.kernel)
        if self.kernel in _SCALED:
            return getattr(kernels, self.kernel)(X, lengthscale=self.lengthscale)
        return getattr(kernels, self.kernel)(X, depth=self.depth)


class SeriesMap(FeatureMap):
    """Base class of the maps of such a kernel: checks of parameters, and what `fit` learns from the norms of rows."""

    kernel: KernelLike
    lengthscale: float | str
    depth: int
    degree: int | str
    tolerance: float
    batch_size: int | None
    lengthscale_: float
    _series: Series

    @abstractmethod
    def _learn(self, series: Series, norms: np.ndarray) -> None:
        """Set what the draws need to know of the norms > 0 of the rows of `fit`."""

    @abstractmethod
    def _draw(self, seed: np.random.SeedSequence, *, sparse: bool) -> None:
        """Make the draws for rows of ``n_features_in_`` from the parameters and what was learned."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows of the size, kind and norms of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
            The number of features, whether X is sparse, the norms of the rows and, with ``lengthscale="scale"``, the
            variance of the entries matter (of the first rows of a Dask collection).
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            if self.batch_size is not None:
                check_int(self.batch_size, "batch_size", name, minimum=1)
            kernel, lengthscale = _check_kernel(self.kernel, name), check_lengthscale(self.lengthscale, name)
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            if kernel not in _SCALED:
                lengthscale = 1.0
            self.lengthscale_ = default_lengthscale(X) if lengthscale is None else lengthscale
            norms = _on_host(row_norms(X))
            # Of zero rows nothing can be learned; where all are, rows like the length scale are as good a guess as any.
            norms = norms[norms > 0] if norms.any() else np.array([self.lengthscale_])
            self._learn(self._check_series(), norms)
            self._sparse = _array.is_sparse(X)
            self._draw(seed, sparse=self._sparse)
        return self

    def _check_series(self) -> Series:
        """The kernel that the parameters and ``lengthscale_`` describe."""
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        return Series(_check_kernel(self.kernel, name), self.lengthscale_, depth)

    def _check_degree(self, series: Series, norms: np.ndarray) -> int:
        """The highest degree: as given, or the one that reaches the tolerance."""
        name = type(self).__name__
        tolerance = check_real(self.tolerance, "tolerance", name, minimum=0, maximum=1)
        if isinstance(self.degree, str) and self.degree == "auto":
            return series.find_degree(norms, tolerance)
        lowest = max(1, int(series.degrees(LARGEST_DEGREE)[0]))
        rule = f"an int from {lowest} to {LARGEST_DEGREE} or 'auto'"
        if isinstance(self.degree, str):
            raise ValueError(message(name, "degree", rule, self.degree))
        try:
            degree = check_int(self.degree, "degree", name, minimum=lowest, maximum=LARGEST_DEGREE)
        except (TypeError, ValueError) as error:
            raise type(error)(message(name, "degree", rule, self.degree)) from None
        return min(degree, series.largest_degree)

    def _kernel(self, X: Array) -> Array:
        return self._series.matrix(X)


def row_norms(X: Array, *, differentiable: bool = False) -> Array:
    """Norms of rows of any library in float64, for torch to differentiate if asked to."""
    if differentiable:
        return norm(X.to(_array.wide_dtype(X)))[:, 0]
    return exact_norms(_without_duplicates(X) if _array.is_sparse(X) else X)


def _on_host(norms: Array) -> np.ndarray:
    return norms.cpu().double().numpy() if _array.is_torch(norms) else norms


@lru_cache(maxsize=64)
def _taylor(depth: int, kind: str) -> tuple[float, ...]:
    """Taylor coefficients of K_relu^(L) or Σ_relu^(L)."""
    from ntkit.kernels import relu_ntk_taylor

    return tuple(relu_ntk_taylor(depth, LARGEST_DEGREE, kind=kind).tolist())


def _check_kernel(kernel: Any, owner: str) -> str | tuple[float, ...]:
    """A name, or coefficients as floats."""
    names = ", ".join(map(repr, _NAMES))
    rule = f"one of {names}, or a sequence of up to {LARGEST_DEGREE + 1} finite numbers ≥ 0, not all 0"
    if isinstance(kernel, str):
        if kernel not in _NAMES:
            raise ValueError(message(owner, "kernel", rule, kernel))
        return kernel
    if not isinstance(kernel, Sequence | np.ndarray):
        raise TypeError(message(owner, "kernel", rule, kernel))
    try:
        coefficients = tuple(check_real(a, "kernel", owner, minimum=0) for a in kernel)
    except (TypeError, ValueError) as error:
        raise type(error)(message(owner, "kernel", rule, kernel)) from None
    if not any(coefficients) or len(coefficients) > LARGEST_DEGREE + 1:
        raise ValueError(message(owner, "kernel", rule, kernel))
    return coefficients
