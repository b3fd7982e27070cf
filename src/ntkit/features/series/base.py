"""Base classes of maps for kernels that are power series in the cosine: Σ_j w_j(‖x‖) w_j(‖y‖) cos(x, y)^j.

:class:`ntkit.kernels.zonal.Zonal` defines the weights w_j(r) ≥ 0.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._validation import check_int, check_real, message
from ntkit.features.base import FeatureMap, Plan
from ntkit.features.draws import Draws, is_half
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels import KernelSpec
from ntkit.kernels.fit import LARGEST_DEGREE
from ntkit.kernels.tiles import row_norms as exact_norms
from ntkit.kernels.zonal import Homogeneous, Zonal, zonal_kernel
from ntkit.networks import Layer, UnsupportedError
from ntkit.programs import Program, array_api, run
from ntkit.sketches.series import SeriesOperator

KernelLike: TypeAlias = str | Layer | Sequence[float] | np.ndarray
HIGHEST_DEGREE = 1024  # highest degree whose coefficient is known
_LARGEST_AUTO = 64  # highest degree that degree="auto" chooses for an infinite series
_ELEMENTS = 2**20  # number of weights held at a time
_OLD = {"arc_cosine0": 0, "arc_cosine1": 1}


def degrees_of(series: Zonal, degree: int) -> np.ndarray:
    """Return all j ≤ `degree` with a_j > 0."""
    return np.flatnonzero(np.isfinite(series.log_coefficients(degree)))


def last_degree(series: Zonal) -> int:
    """Return the highest degree whose coefficient is known."""
    return HIGHEST_DEGREE if series.n_taylor is None else series.n_taylor - 1


def log_masses(series: Zonal, norms: np.ndarray, degree: int) -> np.ndarray:
    """Compute log Σ w_j(r)², summed over norms r > 0, for every j ≤ `degree`."""
    if isinstance(series, Homogeneous):  # all degrees have the same factor of the norms
        return series.log_coefficients(degree) + _log_sums(2 * series.power * np.log(norms)[:, None])
    step = max(1, _ELEMENTS // (degree + 1))
    degrees = np.arange(degree + 1)
    parts = (norms[start : start + step] for start in range(0, len(norms), step))
    return np.logaddexp.reduce([_log_sums(2 * series.log_weights(part, degrees)) for part in parts])


def find_degree(series: Zonal, norms: np.ndarray, tolerance: float) -> int:
    """Find the smallest degree whose truncation omits at most a share `tolerance` of Σ k(x, x) over norms r > 0.

    For infinite series the result is at most 64.
    """
    logs = log_masses(series, norms, _LARGEST_AUTO if series.n_taylor is None else last_degree(series))
    reached = np.logaddexp.accumulate(logs)
    total = series.log_trace(norms) if series.n_taylor is None else reached[-1]
    enough = np.flatnonzero((-np.expm1(reached - total) <= tolerance) & np.isfinite(reached))
    return int(enough[0]) if len(enough) else len(logs) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesPlan(Plan):
    """A kernel that is a power series in the cosine."""

    kernel: KernelSpec

    @property
    def series(self) -> Zonal:
        """The series."""
        return self.kernel.zonal


class SeriesMap(FeatureMap):
    """Base class of maps for power series: validates parameters and learns from the norms of rows."""

    kernel: KernelLike
    kernel_params: dict[str, Any] | None
    lengthscale: float | str
    depth: int
    degree: int | str
    tolerance: float
    _highest: ClassVar[int] = LARGEST_DEGREE
    """Highest value allowed for the parameter `degree`."""

    @abstractmethod
    def _learn_from_norms(self, series: Zonal, norms: np.ndarray) -> dict[str, Any]:
        """Return the learned values, given the norms of the nonzero rows of `fit`."""

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:  # noqa: ARG002
        self._warn_of_old_names()
        spec = self._check_spec(1.0)
        lengthscale = check_lengthscale(self.lengthscale, type(self).__name__)
        if not isinstance(self.kernel, str) or not hasattr(spec, "lengthscale"):
            lengthscale = getattr(spec, "lengthscale", 1.0)
        lengthscale = default_lengthscale(X) if lengthscale is None else lengthscale
        norms = positive_norms(X, lengthscale)
        return {"lengthscale_": lengthscale} | self._learn_from_norms(self._check_spec(lengthscale).zonal, norms)

    def _check_spec(self, lengthscale: float) -> KernelSpec:
        """Return the kernel given by the parameters and a length scale."""
        name, kernel, params = type(self).__name__, self.kernel, self.kernel_params
        if isinstance(kernel, str) and kernel in _OLD:
            kernel, params = "arc_cosine", {"order": _OLD[kernel]} | (params or {})
        own = {"depth": check_int(self.depth, "depth", name, minimum=1), "lengthscale": lengthscale}
        spec = zonal_kernel(kernel, name, highest=self._highest, params=params, functions=False, **own)
        try:
            spec.zonal.log_coefficients(0)
        except UnsupportedError as error:
            rule = f"a kernel with a Taylor series in the cosine. ({error})"
            raise ValueError(message(name, "kernel", rule, self.kernel)) from error
        if isinstance(spec.zonal, Homogeneous) and spec.at_one == 0:
            raise ValueError(message(name, "kernel", "a kernel that is not zero everywhere", self.kernel))
        return spec

    def _warn_of_old_names(self) -> None:
        if isinstance(self.kernel, str) and self.kernel in _OLD:
            text = f"kernel='arc_cosine' with kernel_params={{'order': {_OLD[self.kernel]}}}"
            text = f"kernel={self.kernel!r} is now {text}; the old name will be removed in version 0.3."
            warnings.warn(text, FutureWarning, stacklevel=4)

    def _check_degree(self, series: Zonal, norms: np.ndarray) -> int:
        """Return the highest degree: the degree given, or the smallest that reaches the tolerance."""
        tolerance = check_real(self.tolerance, "tolerance", type(self).__name__, minimum=0, maximum=1)
        given = self._given_degree(series)
        return find_degree(series, norms, tolerance) if given is None else given

    def _given_degree(self, series: Zonal) -> int | None:
        """Return the parameter `degree`, at most the degree of the last coefficient; None for "auto"."""
        name = type(self).__name__
        if isinstance(self.degree, str) and self.degree == "auto":
            return None
        lowest = max(1, int(degrees_of(series, self._highest)[0]))
        rule = f"an int from {lowest} to {self._highest} or 'auto'"
        if isinstance(self.degree, str):
            raise ValueError(message(name, "degree", rule, self.degree))
        try:
            degree = check_int(self.degree, "degree", name, minimum=lowest, maximum=self._highest)
        except (TypeError, ValueError) as error:
            raise type(error)(message(name, "degree", rule, self.degree)) from None
        return min(degree, last_degree(series))


@lru_cache(maxsize=64)
def _norm_program(n_features: int) -> Program:
    """Make a program that computes the norms of rows in one pass of compiled code."""
    program = Program((n_features,))
    program.output(program.norm(program.load()))
    return program


class SeriesDraws(Draws):
    """A series sketched degree by degree: Z(x) = ⊕_j w_j(‖x‖) Z_j(x/‖x‖).

    `weights` maps float64 norms to the weights of all degrees, (n_rows, n_degrees).
    """

    def __init__(self, operator: SeriesOperator, weights: Callable[[Array], Array]):
        self.operator, self.weights = operator, weights
        self.budget = operator.law.budget
        self.program = self._emit()
        self.n_components = self.program.n_outputs

    def _emit(self) -> Program:
        """Make the program that sketches all degrees of x/‖x‖, each multiplied by a factor from a second input."""
        program = Program((self.operator.factors[0], len(self.budget.coefficients)))
        x, factors = program.load(0), program.load(1)
        parts = self.operator.emit_parts(program, x, norm=program.norm(x), roots=False)
        for i, part in enumerate(parts):
            program.output(program.scale(part, program.slice(factors, i, 1)))
        return program

    def run(self, X: Array, *, batch_size: int | None = None, progress: str | None = None) -> Array:  # noqa: ARG002
        """See :meth:`Draws.run`."""
        if _array.is_torch(X):
            return self._run_tensor(X, batch_size)
        if _array.is_traced(X):
            weights = self.weights(row_norms(X, differentiable=True))
            return run(self.program, (X, _array.namespace(X).astype(weights, X.dtype)))
        norms = run(_norm_program(X.shape[1]), (X,), batch_size=batch_size)[:, 0].astype(np.float64)
        with np.errstate(over="ignore"):  # weights overflow only if k(x, x) does; `transform` raises an error then
            factors: Any = self._weights_in(norms, _array.result_dtype(X))
        if _array.is_sparse(X):
            from scipy.sparse import csr_array

            factors = csr_array(factors)
        return run(self.program, (X, factors), batch_size=batch_size)

    def _run_tensor(self, X: Any, batch_size: int | None) -> Any:
        """Compute features of a tensor; 16-bit rows are computed in float32 and rounded at the end."""
        dtype = _array.result_dtype(X)
        wide = _array.namespace(X).float32 if is_half(dtype) else dtype
        X = X.to(wide)
        if _array.wants_gradient([X]):
            factors = self.weights(row_norms(X, differentiable=True)).to(wide)
        else:
            factors = self._weights_in(row_norms(X), wide)
        return run(self.program, (X, factors), batch_size=batch_size).to(dtype)

    def _weights_in(self, norms: Array, dtype: Any) -> Array:
        """Compute weights in the dtype of the rows; float64 weights are only held for some rows at a time."""
        xp: Any = _array.namespace(norms)
        n_degrees = len(self.budget.coefficients)
        factors = xp.empty((norms.shape[0], n_degrees), dtype=dtype, device=_array.device(norms))
        for rows in row_batches(norms.shape[0], 1, batch_size=max(1, _ELEMENTS // n_degrees)):
            factors[rows, :] = xp.astype(self.weights(norms[rows]), dtype, copy=False)
        return factors


def row_norms(X: Array, *, differentiable: bool = False) -> Array:
    """Compute norms of rows of any array library in float64; torch can differentiate them if `differentiable`."""
    if differentiable:
        return array_api.norm(_array.widen(X))[:, 0]
    return exact_norms(_array.without_duplicates(X) if _array.is_sparse(X) else X)


def positive_norms(X: Array, default: float) -> np.ndarray:
    """Return the norms of the nonzero rows, or `default` if all rows are 0."""
    norms = on_host(row_norms(X))
    return norms[norms > 0] if norms.any() else np.array([default])


def on_host(norms: Array) -> np.ndarray:
    """Convert norms to a NumPy array of float64."""
    return norms.cpu().double().numpy() if _array.is_torch(norms) else norms


def _log_sums(logs: np.ndarray) -> np.ndarray:
    """Compute the logarithms of the sums of e^{logs} over the rows."""
    top = logs.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(logs - top).sum(axis=0)) + top
