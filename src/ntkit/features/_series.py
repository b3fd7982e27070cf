"""Kernels that are power series in the cosine, and what their feature maps share.

All are Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j with weights w_j(r) ≥ 0 of the norms::

    "gaussian"       exp(−‖x − y‖²/(2ℓ²))     w_j(r) = (r/ℓ)^j e^{−r²/(2ℓ²)} / √(j!)
    "exponential"    exp(⟨x, y⟩/ℓ²)           w_j(r) = (r/ℓ)^j / √(j!)
    "ntk", "nngp"    ‖x‖‖y‖ Σ_j a_j cos^j     w_j(r) = √a_j r
    "hidden_ntk"     ‖x‖‖y‖ cos κ₀(cos)/2     w_j(r) = √a_j r
    "arc_cosine0"    κ₀(cos)                  w_j(r) = √a_j
    "arc_cosine1"    ‖x‖‖y‖ κ₁(cos)           w_j(r) = √a_j r
    coefficients     Σ_j a_j ⟨x, y⟩^j         w_j(r) = √a_j r^j
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_int, check_real, message
from ntkit.features._base import FeatureMap, WithProgram
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.arccos import SAME, arc_cosine, arc_cosine_taylor, relu_ntk_taylor
from ntkit.kernels.dot_product import divide_rows, inner_products
from ntkit.kernels.dot_product import row_norms as exact_norms
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.programs import Program, array_api, run
from ntkit.sketches.series import Budget

KernelLike: TypeAlias = str | Sequence[float] | np.ndarray
_SCALED = ("gaussian", "exponential")
_POWERS = {"ntk": 1, "nngp": 1, "arc_cosine0": 0, "arc_cosine1": 1, "hidden_ntk": 1}  # p of ‖x‖^p ‖y‖^p κ(cos)
HIGHEST_DEGREE = 1024  # of which coefficients are known
_LARGEST_AUTO = 64
_ELEMENTS = 2**20  # weights that are held at a time
_LARGEST_LOG = 345.0  # e^345 squared is still a float64


@dataclass(frozen=True)
class Series:
    """One of the kernels above; `kernel` is a name or the coefficients a_j, or their logarithms."""

    kernel: str | tuple[float, ...]
    lengthscale: float = 1.0
    depth: int = 1
    logarithmic: bool = False

    def log_coefficients(self, degree: int) -> np.ndarray:
        """Logarithms of a_j for j ≤ `degree`, with a_j = 1/j! for the first two kernels; −∞ where a_j = 0."""
        from scipy.special import gammaln

        if self.kernel in _SCALED:
            return -gammaln(np.arange(degree + 1) + 1.0)
        size = LARGEST_DEGREE if degree <= LARGEST_DEGREE else HIGHEST_DEGREE
        known = _taylor(self.kernel, self.depth, size) if isinstance(self.kernel, str) else self.kernel
        if self.logarithmic:
            return np.array(known[: degree + 1])
        with np.errstate(divide="ignore"):
            return np.log(np.array(known[: degree + 1]))

    @property
    def last_degree(self) -> int:
        """The last degree of which a coefficient is known."""
        return HIGHEST_DEGREE if isinstance(self.kernel, str) else len(self.kernel) - 1

    def degrees(self, degree: int) -> np.ndarray:
        """The j ≤ `degree` with a_j > 0."""
        return np.flatnonzero(np.isfinite(self.log_coefficients(degree)))

    def log_weights(self, norms: Array, degrees: np.ndarray) -> Array:
        """Logarithms of w_j(r) of norms r > 0, in the order (norms, degrees)."""
        xp: Any = _array.namespace(norms)
        a = self.log_coefficients(int(degrees.max()))[degrees]
        halves, powers = (_array.constant(v, norms) for v in (0.5 * a, degrees))
        logs = xp.log(norms)[:, None]
        if self.kernel in _POWERS:
            return halves + _POWERS[self.kernel] * logs
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
        if self.kernel in _POWERS:
            at_zero = np.zeros(len(degrees))
        return xp.where(positive[:, None], values, _array.constant(at_zero, norms))

    def log_masses(self, norms: np.ndarray, degree: int) -> np.ndarray:
        """Logarithm of Σ w_j(r)² over norms r > 0, for every j ≤ `degree`."""
        if self.kernel in _POWERS:  # the norms are a factor of all
            return self.log_coefficients(degree) + _log_sums(2 * _POWERS[self.kernel] * np.log(norms)[:, None])
        step = max(1, _ELEMENTS // (degree + 1))
        degrees = np.arange(degree + 1)
        parts = (norms[start : start + step] for start in range(0, len(norms), step))
        return np.logaddexp.reduce([_log_sums(2 * self.log_weights(part, degrees)) for part in parts])

    def find_degree(self, norms: np.ndarray, tolerance: float) -> int:
        """Smallest degree that leaves out at most a share `tolerance` of Σ k(x, x) over norms r > 0.

        No more than 64 for kernels with a name, whose series are infinite.
        """
        logs = self.log_masses(norms, _LARGEST_AUTO if isinstance(self.kernel, str) else self.last_degree)
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
        name = str(self.kernel)
        at_one = {"ntk": self.depth + 1.0, "hidden_ntk": 0.5}.get(name, 1.0)
        return float(np.logaddexp.reduce(2 * _POWERS[name] * logs)) + log(at_one)

    def matrix(self, X: Array) -> Array:
        """The exact kernel matrix of some rows."""
        from ntkit import kernels

        if not isinstance(self.kernel, str):
            return kernels.dot_product(X, function=self.kernel)
        if self.kernel in _SCALED:
            return getattr(kernels, self.kernel)(X, lengthscale=self.lengthscale)
        if self.kernel in ("ntk", "nngp"):
            return getattr(kernels, self.kernel)(X, depth=self.depth)
        return _of_cosines(X, _FUNCTIONS[self.kernel], _POWERS[self.kernel])


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
    _highest: ClassVar[int] = LARGEST_DEGREE
    """Highest degree that may be asked for."""

    @abstractmethod
    def _learn(self, series: Series, norms: np.ndarray) -> None:
        """Set what the draws need to know of the norms > 0 of the rows of `fit`."""

    @abstractmethod
    def _draw(self, seed: np.random.SeedSequence) -> None:
        """Make the draws for rows of ``n_features_in_`` from the parameters and what was learned."""

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows of the size and norms of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
            The number of features, the norms of the rows and, with ``lengthscale="scale"``, the variance of the entries
            matter (of the first rows of a Dask collection).
        y : ignored

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            if self.batch_size is not None:
                check_int(self.batch_size, "batch_size", name, minimum=1)
            kernel = _check_kernel(self.kernel, name, self._highest)
            lengthscale = check_lengthscale(self.lengthscale, name)
            seed = self._new_seed()
            X = self._check_rows(X, reset=True)
            if kernel not in _SCALED:
                lengthscale = 1.0
            self.lengthscale_ = default_lengthscale(X) if lengthscale is None else lengthscale
            norms = on_host(row_norms(X))
            # Of zero rows nothing can be learned; where all are, rows like the length scale are as good a guess as any.
            norms = norms[norms > 0] if norms.any() else np.array([self.lengthscale_])
            self._learn(self._check_series(), norms)
            self._sparse = _array.is_sparse(X)
            self._draw(seed)
        return self

    def _check_series(self) -> Series:
        """The kernel that the parameters and ``lengthscale_`` describe."""
        name = type(self).__name__
        depth = check_int(self.depth, "depth", name, minimum=1)
        return Series(_check_kernel(self.kernel, name, self._highest), self.lengthscale_, depth)

    def _check_degree(self, series: Series, norms: np.ndarray) -> int:
        """The highest degree: as given, or the one that reaches the tolerance."""
        tolerance = check_real(self.tolerance, "tolerance", type(self).__name__, minimum=0, maximum=1)
        given = self._given_degree(series)
        return series.find_degree(norms, tolerance) if given is None else given

    def _given_degree(self, series: Series) -> int | None:
        """The degree asked for, that of the last coefficient at most; None for "auto"."""
        name = type(self).__name__
        if isinstance(self.degree, str) and self.degree == "auto":
            return None
        lowest = max(1, int(series.degrees(self._highest)[0]))
        rule = f"an int from {lowest} to {self._highest} or 'auto'"
        if isinstance(self.degree, str):
            raise ValueError(message(name, "degree", rule, self.degree))
        try:
            degree = check_int(self.degree, "degree", name, minimum=lowest, maximum=self._highest)
        except (TypeError, ValueError) as error:
            raise type(error)(message(name, "degree", rule, self.degree)) from None
        return min(degree, series.last_degree)

    def _kernel(self, X: Array) -> Array:
        return self._series.matrix(X)


@lru_cache(maxsize=64)
def _norm_program(n_features: int) -> Program:
    """Norms of rows by compiled code, in one pass."""
    program = Program((n_features,))
    program.output(program.norm(program.load()))
    return program


class SketchedSeriesMap(WithProgram):
    """Base class of maps that sketch a series by degrees: Z(x) = ⊕_j w_j(‖x‖) Z_j(x/‖x‖)."""

    budget_: Budget
    sketch_: Any

    @abstractmethod
    def _factors(self, norms: Array) -> Array:
        """What the sketches of the degrees of ``budget_`` are multiplied by, (n_rows, n_degrees)."""

    def _emit_series(self) -> Program:
        """The sketches of all degrees of x/‖x‖, each times a factor of its own, which is a second input."""
        program = Program((self.n_features_in_, len(self.budget_.coefficients)))
        x, factors = program.load(0), program.load(1)
        parts = self.sketch_.emit_parts(program, x, norm=program.norm(x), roots=False)
        for i, part in enumerate(parts):
            program.output(program.scale(part, program.slice(factors, i, 1)))
        return program

    def _transform_series(self, X: Array) -> Array:
        if _array.is_torch(X):
            return self._of_tensor(X)
        norms = run(_norm_program(self.n_features_in_), (X,), batch_size=self.batch_size)[:, 0].astype(np.float64)
        with np.errstate(over="ignore"):  # as the kernel does
            factors: Any = self._factors_in(norms, _array.result_dtype(X))
        if _array.is_sparse(X):
            from scipy.sparse import csr_array

            factors = csr_array(factors)
        return run(self._program, (X, factors), batch_size=self.batch_size)

    def _of_tensor(self, X: Any) -> Any:
        """16-bit numbers in float32, rounded at the end."""
        import torch

        dtype = _array.result_dtype(X)
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        X = X.to(wide)
        if _array.wants_gradient([X]):
            factors = self._factors(row_norms(X, differentiable=True)).to(wide)
        else:
            factors = self._factors_in(row_norms(X), wide)
        return run(self._program, (X, factors), batch_size=self.batch_size).to(dtype)

    def _factors_in(self, norms: Array, dtype: Any) -> Array:
        """Factors in the precision of the rows; those in float64 are held for some rows at a time."""
        xp: Any = _array.namespace(norms)
        n_degrees = len(self.budget_.coefficients)
        factors = xp.empty((norms.shape[0], n_degrees), dtype=dtype, device=_array.device(norms))
        for rows in row_batches(norms.shape[0], 1, batch_size=max(1, _ELEMENTS // n_degrees)):
            factors[rows, :] = xp.astype(self._factors(norms[rows]), dtype, copy=False)
        return factors


def row_norms(X: Array, *, differentiable: bool = False) -> Array:
    """Norms of rows of any library in float64, for torch to differentiate if asked to."""
    if differentiable:
        return array_api.norm(X.to(_array.wide_dtype(X)))[:, 0]
    return exact_norms(_array.without_duplicates(X) if _array.is_sparse(X) else X)


def on_host(norms: Array) -> np.ndarray:
    """Norms as a NumPy array of float64."""
    return norms.cpu().double().numpy() if _array.is_torch(norms) else norms


def _log_sums(logs: np.ndarray) -> np.ndarray:
    """Logarithms of the sums of e^{logs} over the rows."""
    top = logs.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logs - top).sum(axis=0)) + top


def _of_cosines(X: Array, function: Callable[[Array], Array], power: int) -> Array:
    """‖x‖^p ‖y‖^p κ(cos(x, y)) of all pairs of rows; 0 for a zero row, also for p = 0."""
    norms = row_norms(X)
    xp: Any = _array.namespace(norms)
    units = divide_rows(X.astype(np.float64) if _array.is_sparse(X) else _array.widen(X), norms)
    t = xp.clip(inner_products(units, units), -1, 1)
    t = xp.where(1 - xp.abs(t) < SAME, xp.sign(t), t)
    scales = xp.where(norms > 0, norms**power, xp.zeros_like(norms))
    return xp.astype(scales[:, None] * function(t) * scales[None, :], _array.result_dtype(X))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "arc_cosine0": lambda t: arc_cosine(t, 0),
    "arc_cosine1": lambda t: arc_cosine(t, 1),
    "hidden_ntk": lambda t: 0.5 * t * arc_cosine(t, 0),
}
_NAMES = (*_SCALED, "ntk", "nngp", *_FUNCTIONS)


@lru_cache(maxsize=64)
def _taylor(kernel: str, depth: int, degree: int) -> tuple[float, ...]:
    """Taylor coefficients of κ in ‖x‖^p ‖y‖^p κ(cos)."""
    if kernel in ("ntk", "nngp"):
        a = relu_ntk_taylor(depth, degree, kind=kernel)
    elif kernel == "hidden_ntk":
        a = 0.5 * np.concatenate([[0.0], arc_cosine_taylor(0, degree - 1)])
    else:
        a = arc_cosine_taylor(int(kernel[-1]), degree)
    return tuple(a.tolist())


def _check_kernel(kernel: Any, owner: str, highest: int) -> str | tuple[float, ...]:
    """A name, or coefficients up to the highest degree as floats."""
    names = ", ".join(map(repr, _NAMES))
    rule = f"one of {names}, or a sequence of up to {highest + 1} finite numbers ≥ 0, not all 0"
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
    if not any(coefficients) or len(coefficients) > highest + 1:
        raise ValueError(message(owner, "kernel", rule, kernel))
    return coefficients
