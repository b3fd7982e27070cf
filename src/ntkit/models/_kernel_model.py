"""What kernel ridge regression and classification share: parameters, solvers, predictions."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._batching import row_batches
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features.kernel import OfKernel
from ntkit.features.landmarks.choose import block_rows, take, wide
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.spec import KernelLike
from ntkit.models._checks import (
    check_alphas,
    check_weight,
    result_dtype,
    to_library,
)
from ntkit.models._features import check_features
from ntkit.models._iterative import Iterations, conjugate_gradients, gradient_descent
from ntkit.models._kernel_matrix import KernelMatrix, OfMatrix, OfRows, cache_bytes
from ntkit.models._preconditioner import (
    INDEFINITE,
    Nystroem,
    Preconditioner,
    Solve,
    cholesky,
    cholesky_solve,
    eigendecomposition,
    nystroem_features,
)
from ntkit.models._sketched import Sketched, sketched_ridge

_SOLVERS = ("auto", "direct", "pcg", "gradient", "sketch")
_FEATURES = ("nystroem", "sketch")
_SKETCHED = ("gaussian", "exponential", "ntk", "nngp", "polynomial")
_MOST_DIRECT = {"cpu": 10000, "cuda": 20000}  # rows up to which a factorization is faster
_NEGATIVE = 1e-6  # of the largest eigenvalue: more than rounding errors of kernel values in float32
_N_CHECKED = 64  # rows on which a sketched solution is compared with its features
_PROBE_TOLERANCE = 1e-3  # of errors of rows left out


class KernelModel(OfKernel, AllOrNothing, BaseEstimator):
    """What regression and classification share; see :class:`~ntkit.KernelRidge`."""

    alpha: Any
    solver: str
    lengthscale: float | str
    fit_intercept: bool
    features: Any
    n_components: int | None
    n_neighbors: int
    tol: float
    max_iter: int
    n_selection: int
    sketch_size: int | None
    epsilon: float
    cache_size: float | None
    batch_size: int | None
    progress: bool
    random_state: RandomState
    X_fit_: Any
    _dual: np.ndarray
    _client: Any
    _warnings: list[str]
    _intercept: np.ndarray

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        alpha: Any = 1.0,
        *,
        solver: str = "auto",
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int | None = None,
        fit_intercept: bool = True,
        features: Any = "nystroem",
        n_components: int | None = None,
        n_neighbors: int = 32,
        tol: float = 1e-6,
        max_iter: int = 1000,
        n_selection: int = 256,
        sketch_size: int | None = None,
        epsilon: float = 0.1,
        cache_size: float | None = None,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.alpha = alpha
        self.solver = solver
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.depth = depth
        self.fit_intercept = fit_intercept
        self.features = features
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.tol = tol
        self.max_iter = max_iter
        self.n_selection = n_selection
        self.sketch_size = sketch_size
        self.epsilon = epsilon
        self.cache_size = cache_size
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Solve for the dual coefficients.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for kernels of images
            All rows must fit in memory, those of a Dask collection here; with a cluster, "pcg" and "gradient" leave the
            kernel matrix and its products to the workers. For ``kernel="precomputed"`` the square kernel matrix.
        y : array of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            lengthscale = self._check_parameters()
            seed = seed_sequence(self.random_state, owner=name)
            self._client = None
            if _array.is_dask(X):
                from ntkit.distributed import cluster

                self._client = cluster()
            X, y, sample_weight = (v.compute() if _array.is_dask(v) else v for v in (X, y, sample_weight))
            if y is None:
                raise ValueError(f"{name} requires y to be passed, but the target y is None.")
            X = self._check_rows(X, reset=True)
            X = X.detach() if _array.is_torch(X) else X
            n_rows = int(X.shape[0])
            Y = self._targets(y)
            if len(Y) != n_rows:
                raise ValueError(
                    f"Found input variables with inconsistent numbers of samples: X of {name} has {n_rows} rows, y has "
                    f"{len(Y)}."
                )
            weight = check_weight(sample_weight, n_rows, name)
            if not weight.any():
                raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
            for attribute in ("lengthscale_", "history_", "errors_", "sketch_size_", "dimension_"):
                self.__dict__.pop(attribute, None)
            counted = np.flatnonzero(weight)
            some, weight = self._some(X, counted), weight[counted]
            if self._has_lengthscale:
                self.lengthscale_ = default_lengthscale(some, weight) if lengthscale is None else lengthscale
            self._resolve()
            self._intercept = weight @ Y[counted] / weight.sum() if self.fit_intercept else np.zeros(Y.shape[1])
            root = np.sqrt(weight)
            solution = self._solve(some, root, root[:, None] * (Y[counted] - self._intercept), seed)
            self._dual = np.zeros(Y.shape)
            self._dual[counted] = root[:, None] * to_numpy(solution)
            self.X_fit_ = None if self._resolved is None else X
            del self._client
        for text in self.__dict__.pop("_warnings"):
            warnings.warn(f"{name}: {text} would help.", ConvergenceWarning, stacklevel=2)
        return self

    def _some(self, X: Any, rows: np.ndarray) -> Any:
        if len(rows) == X.shape[0]:
            return X
        return take(take(X, rows).T, rows).T if self._has_name("precomputed") else take(X, rows)

    def _solve(self, X: Any, root: np.ndarray, B: np.ndarray, seed: np.random.SeedSequence) -> Array:
        """Solution of (S K S + αI) c = b, of the best α."""
        self.alphas_ = np.unique(np.asarray(self.alpha, dtype=np.float64))
        self.solver_ = self._choose_solver(X)
        self.n_iter_, self._warnings = 1, []
        matrix, B = self._matrix(X, root, B)
        if self.solver_ == "sketch":
            return self._sketch(matrix, X, B, seed)
        if self.solver_ == "direct":
            return self._direct(matrix, B)
        return self._iterate(matrix, X, B, seed)

    def _matrix(self, X: Any, root: np.ndarray, B: np.ndarray) -> tuple[KernelMatrix, Array]:
        """The matrix S K S, and the right-hand sides on its device."""
        on_device = _array.is_torch(X) and X.device.type != "cpu"
        scale = None if (root == 1).all() else root
        if on_device:
            B, scale = to_library(B, X), None if scale is None else to_library(scale, X)
        if self._resolved is None:
            return OfMatrix(X, scale=scale), B
        if self._client is not None and self.solver_ in ("pcg", "gradient"):
            from ntkit.distributed import OfCluster

            return OfCluster(self._client, self._resolved, X, scale=scale), B
        cache = cache_bytes(self.cache_size, X, type(self).__name__)
        rows = OfRows(
            self._resolved, X, scale=scale, cache=cache, batch_size=self.batch_size, progress=self.progress
        )  # fmt: skip
        return rows, B

    def _choose_solver(self, X: Any) -> str:
        if self.solver != "auto":
            return self.solver
        most = _MOST_DIRECT["cuda" if _array.is_torch(X) and X.device.type == "cuda" else "cpu"]
        if len(self.alphas_) > 1:
            most //= 3  # eigenvectors take longer
        return "direct" if X.shape[0] <= most else "pcg"

    def _direct(self, matrix: KernelMatrix, B: Array) -> Array:
        """Cholesky's factorization for one α; an eigendecomposition, and errors of all rows left out, for several."""
        A = matrix.whole()
        xp: Any = _array.namespace(A)
        if len(self.alphas_) == 1:
            self.alpha_ = float(self.alphas_[0])
            if _array.is_torch(A):
                A.diagonal().add_(self.alpha_)
            else:
                A[np.diag_indices(len(A))] += self.alpha_
            try:
                return cholesky_solve(cholesky(A), B)
            except np.linalg.LinAlgError:
                A = matrix.whole()
        values, vectors = eigendecomposition(A)
        del A
        top, rotated = float(xp.max(xp.abs(values))), vectors.T @ B
        if float(values[0]) + self.alphas_[-1] < -_NEGATIVE * top:
            raise ValueError(INDEFINITE)
        solutions, errors = [], []
        for alpha in self.alphas_.tolist():
            there = values + alpha > len(B) * 2.2e-16 * top
            inverse = xp.where(there, 1 / xp.where(there, values + alpha, 1.0), 0.0)
            solutions.append(vectors @ (inverse[:, None] * rotated))
            # A row left out has the error c_i/(A + αI)⁻¹_ii; directions that are dropped weigh 1/α → ∞ in both.
            outside = xp.astype(~there, values.dtype)
            own = _squares_times(vectors, outside)
            dropped = own > len(B) * 2.2e-16
            residual = vectors @ (outside[:, None] * rotated)
            own = xp.where(dropped, own, _squares_times(vectors, inverse))
            left_out = xp.where(dropped, residual, solutions[-1]) / own
            definite = float(values[0]) + alpha >= -_NEGATIVE * top
            errors.append(float(xp.sum(left_out**2)) if definite else np.nan)
        if len(self.alphas_) > 1:
            return solutions[self._best(np.array(errors) / self._total(matrix))]
        text = "K + αI is singular up to rounding: the solution of least norm is taken. A larger alpha"
        self._warnings.append(text)
        return solutions[0]

    def _total(self, matrix: KernelMatrix) -> float:
        """Sum of the weights."""
        return matrix.n_rows if matrix.scale is None else float(_array.namespace(matrix.scale).sum(matrix.scale**2))

    def _best(self, errors: np.ndarray) -> int:
        self.errors_ = errors
        best = int(np.nanargmin(errors))
        self.alpha_ = float(self.alphas_[best])
        return best

    def _iterate(self, matrix: KernelMatrix, X: Any, B: Array, seed: np.random.SeedSequence) -> Array:
        """From the largest α to the smallest, each from the solution before."""
        xp: Any = _array.namespace(B)
        size = xp.max(xp.abs(B), axis=0)
        size = xp.where(size > 0, size, xp.ones_like(size))  # squares of tiny or huge targets would be 0 or infinite
        B = B / size
        preconditioner = self._preconditioner(matrix, X, seed)
        n_targets, several = int(B.shape[1]), len(self.alphas_) > 1
        tol = np.full(n_targets, self.tol)
        if several:
            # The error of a row left out is c_i/(A + αI)⁻¹_ii: unit vectors are further right-hand sides.
            rows = np.sort(generator(seed, "selection").permutation(matrix.n_rows)[: self.n_selection])
            units = xp.zeros((matrix.n_rows, len(rows)), dtype=B.dtype, device=_array.device(B))
            units[to_library(rows, B), to_library(np.arange(len(rows)), B)] = 1.0
            B = xp.concat([B, units], axis=1)
            tol = np.concatenate([tol, np.full(len(rows), max(self.tol, _PROBE_TOLERANCE))])
        iterate = conjugate_gradients if self.solver_ == "pcg" else gradient_descent
        runs: list[Iterations] = []
        for alpha in self.alphas_[::-1].tolist():
            solve: Solve = (lambda V: V) if preconditioner is None else preconditioner.at(alpha)
            with self._bar(alpha) as report:
                run = iterate(
                    _Shifted(matrix, alpha), B, solve, tol=tol, max_iter=self.max_iter,
                    start=runs[-1].solution if runs else None, report=report,
                )  # fmt: skip
            if not run.converged:
                self._not_converged(run, alpha, n_targets)
            runs.append(run)
        runs.reverse()
        self.n_iter_ = sum(run.n_iter for run in runs)
        self.history_ = [run.history[:, :n_targets] for run in runs]
        best = 0
        self.alpha_ = float(self.alphas_[0])
        if several:
            places = to_library(rows, B)
            errors = [_left_out(run.solution, places, size) for run in runs]
            weight = 1.0 if matrix.scale is None else float(xp.mean(take(matrix.scale, rows) ** 2))
            best = self._best(np.array(errors) / weight)
        return size * runs[best].solution[:, :n_targets]

    def _not_converged(self, run: Iterations, alpha: float, n_targets: int) -> None:
        residual, others = run.history[-1, :n_targets].max(), run.history[-1, n_targets:]
        reached = f"{residual:.1e}, not {self.tol:g}"
        if residual <= self.tol:
            reached = f"{others.max():.1e} for the errors of rows left out"
        text = f"after {run.n_iter} iterations the relative residual for alpha={alpha:g} is {reached}, as {run.reason}."
        self._warnings.append(f"{text} A larger alpha, n_components, max_iter or tol")

    def _bar(self, alpha: float) -> Any:
        return _Bar(f"alpha={alpha:g}" if self.progress else None, self.tol)

    def _preconditioner(self, matrix: KernelMatrix, X: Any, seed: np.random.SeedSequence) -> Preconditioner | None:
        if self.features is None:
            return None
        found = self._features_of(matrix, X, seed)
        of_landmarks = isinstance(found, Nystroem)
        Z, n_neighbors = (found.Z, self.n_neighbors) if of_landmarks else (found, 0)
        if _array.is_torch(Z) and matrix.held is None:
            n_neighbors = 0  # one small kernel matrix after the other takes a device too long
        seed, least = keyed(seed, "outside"), float(self.alphas_[0])
        preconditioner = Preconditioner.of_features(matrix, Z, n_neighbors, seed, least)
        preconditioner.keep = len(self.alphas_) > 1
        return preconditioner

    def _features_of(self, matrix: KernelMatrix, X: Any, seed: np.random.SeedSequence) -> Any:
        """Features S Z of the rows in float64, with the landmarks of those that have some."""
        n_rows, features, seed = matrix.n_rows, self.features, keyed(seed, "features")
        most = n_rows if self.solver_ == "sketch" else n_rows // 4
        size = self.n_components or max(1, min(round(20 * n_rows**0.5), most))
        if isinstance(features, str) and features == "nystroem":
            return nystroem_features(matrix, size, seed)
        if isinstance(features, str):
            features = self._sketching_map(size, seed)
            if self._has_name("gaussian") and not _array.is_sparse(X):
                X = X - X.mean(0)  # the kernel does not change, and sketches of its Taylor series are those near 0
        Z = clone(features).fit(X).transform(X)
        Z = Z.toarray() if _array.is_sparse(Z) else Z.to_numpy() if hasattr(Z, "to_numpy") else Z
        view = _array.host_view(Z)
        Z = wide(Z if view is None else view)
        if Z.ndim != 2 or Z.shape[0] != matrix.n_rows:
            raise ValueError(message(type(self).__name__, "features", "a transformer with 2-D results", Z))
        return Z if matrix.scale is None else matrix.scale[:, None] * Z

    def _sketching_map(self, size: int, seed: np.random.SeedSequence) -> Any:
        """A map of the kernel that does not look at the rows."""
        from ntkit.features.series import DotProductSketch, PolynomialSketch

        if not self._has_name(*_SKETCHED):
            rule = f"'nystroem' or a transformer for a kernel other than {', '.join(map(repr, _SKETCHED))}"
            raise ValueError(message(type(self).__name__, "features", rule, self.features))
        state = generator(seed)
        if self._has_name("polynomial"):
            return PolynomialSketch(**(self.kernel_params or {}), n_components=size, random_state=state)
        lengthscale = getattr(self, "lengthscale_", "scale")
        return DotProductSketch(
            str(self.kernel),
            n_components=size,
            lengthscale=lengthscale,
            depth=self.depth or 1,
            random_state=state,
        )

    def _sketch(self, matrix: KernelMatrix, X: Any, B: Array, seed: np.random.SeedSequence) -> Array:
        self.alpha_ = float(self.alphas_[0])
        features = self._features_of(matrix, X, seed)
        Z = features.Z if isinstance(features, Nystroem) else features
        found = sketched_ridge(
            Z, B, self.alpha_, size=self.sketch_size, epsilon=self.epsilon, seed=keyed(seed, "sketch")
        )  # fmt: skip
        self.sketch_size_, self.dimension_ = found.size, found.dimension
        if isinstance(features, Nystroem):
            # Coefficients of landmarks give the same function and bring in nothing of K that the features miss.
            return features.dual(found.weights)
        self._check_sketched(matrix, Z, found, B, seed)
        return found.solution

    def _check_sketched(self, matrix: KernelMatrix, Z: Array, found: Sketched, B: Array, seed: Any) -> None:
        """Warn if K x and Z Zᵀ x differ by more than ε allows, on some rows."""
        rows = np.sort(generator(seed, "check").permutation(matrix.n_rows)[:_N_CHECKED])
        xp: Any = _array.namespace(B)
        predictions = Z @ found.weights
        missed = matrix.columns(rows).T @ found.solution - take(predictions, rows)
        objective = float(xp.sum((predictions - B) ** 2)) + self.alpha_ * float(xp.sum(found.weights**2))
        if float(xp.sum(missed**2)) * matrix.n_rows > self.epsilon * objective * len(rows):
            text = f"the features miss more of the kernel than epsilon={self.epsilon:g} allows."
            self._warnings.append(f"{text} More n_components, a larger alpha or features='nystroem'")

    @abstractmethod
    def _targets(self, y: Any) -> np.ndarray:
        """Targets as a float64 matrix."""

    def _check_parameters(self) -> float | None:
        """Check all parameters but those of the kernel; the length scale given, None for "scale"."""
        name = type(self).__name__
        check_alphas(self.alpha, name, "alpha")
        cache_bytes(self.cache_size, None, name)
        check_choice(self.solver, "solver", name, _SOLVERS)
        check_bool(self.fit_intercept, "fit_intercept", name)
        check_bool(self.progress, "progress", name)
        for parameter, least in (("n_neighbors", 0), ("max_iter", 1), ("n_selection", 2)):
            check_int(getattr(self, parameter), parameter, name, minimum=least)
        for parameter in ("n_components", "sketch_size", "batch_size"):
            if getattr(self, parameter) is not None:
                check_int(getattr(self, parameter), parameter, name, minimum=1)
        check_real(self.tol, "tol", name, minimum=0, strict=True)
        check_real(self.epsilon, "epsilon", name, minimum=0, strict=True)
        if self.kernel_params is not None and not isinstance(self.kernel_params, dict):
            raise TypeError(message(name, "kernel_params", "a dict or None", self.kernel_params))
        self._check_features()
        if self.solver == "sketch":
            self._check_sketch()
        return check_lengthscale(self.lengthscale, name)

    def _check_features(self) -> None:
        name = type(self).__name__
        if isinstance(self.features, str):
            check_choice(self.features, "features", name, _FEATURES)
        elif self.features is not None:
            check_features(self.features, name)
        if self._has_name("precomputed"):
            if self.kernel_params:
                rule = "None for kernel='precomputed', which has no parameters"
                raise ValueError(message(name, "kernel_params", rule, self.kernel_params))
            if self.features is not None and self.features != "nystroem":
                rule = "'nystroem' or None for kernel='precomputed', where there are no rows"
                raise ValueError(message(name, "features", rule, self.features))

    def _check_sketch(self) -> None:
        name = type(self).__name__
        values = np.atleast_1d(np.asarray(self.alpha, dtype=np.float64))
        if values.size > 1 or not values.all():
            remedy = "FeatureRidge(features, alphas) chooses among several in one pass."
            raise ValueError(message(name, "alpha", "one number > 0 for solver='sketch'", self.alpha, remedy))
        if self.features is None:
            raise ValueError(
                message(name, "features", "'nystroem', 'sketch' or a transformer for solver='sketch'", None)
            )

    def _scores(self, X: Any) -> Array:
        """K(X, X_fit) c + intercept in float64, of shape (n, n_targets), block by block."""
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        X = X.detach() if _array.is_torch(X) else X
        on_device = _array.is_torch(X) and X.device.type != "cpu"
        used = np.flatnonzero(self._dual.any(axis=1))  # of landmarks only, for some solvers
        used = used if len(used) else np.arange(1)
        dual, intercept = (to_library(v, X) if on_device else v for v in (self._dual[used], self._intercept))
        every = len(used) == len(self._dual)
        fitted = None if self._resolved is None else wide(self._like(X) if every else take(self._like(X), used))
        parts = []
        for rows in row_batches(X.shape[0], 1, batch_size=block_rows(len(used), self.batch_size, X)):
            if self._resolved is None:
                K = wide(X[rows] if every else take(X[rows].T, used).T)
            else:
                K = self._resolved.matrix(wide(self._as_fitted(X[rows])), fitted)
            view = _array.host_view(K)
            parts.append((K if view is None else view) @ dual + intercept)
        return parts[0] if len(parts) == 1 else _array.namespace(*parts).concat(parts)

    def _like(self, X: Any) -> Any:
        """The rows of `fit` in the library and on the device of X."""
        if _array.is_torch(X) == _array.is_torch(self.X_fit_):
            return self.X_fit_.to(X.device) if _array.is_torch(X) else self.X_fit_
        if not _array.is_torch(X):
            return wide(self.X_fit_).cpu().numpy()
        if _array.is_sparse(self.X_fit_):
            return to_library(self.X_fit_.toarray(), X)
        return to_library(np.require(self.X_fit_, requirements="W"), X)

    def _as_fitted(self, X: Any) -> Any:
        """Rows as sparse as those of `fit`."""
        if _array.is_torch(X) or _array.is_sparse(X) == _array.is_sparse(self.X_fit_):
            return X
        if _array.is_sparse(X):
            return X.toarray()
        from scipy.sparse import csr_array

        return csr_array(X)

    def _map_rows(self, function: Any, X: Any, n_columns: int | None, dtype: Any = None) -> Any:
        from ntkit.distributed import map_rows

        return map_rows(function, X, n_columns=n_columns, dtype=result_dtype(X) if dtype is None else dtype)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_dual")


def _squares_times(vectors: Array, values: Array) -> Array:
    """Σ_j v_ij² a_j, as a column; a square of the matrix is never held."""
    parts = row_batches(int(vectors.shape[0]), 16 * int(vectors.shape[1]), like=vectors)
    sums = [vectors[rows, :] ** 2 @ values for rows in parts]
    return _array.namespace(*sums).concat(sums)[:, None]


class _Shifted:
    """V ↦ A V + αV."""

    def __init__(self, matrix: KernelMatrix, alpha: float):
        self.matrix, self.alpha = matrix, alpha

    def __call__(self, V: Array) -> Array:
        return self.matrix.times(V) + self.alpha * V


class _Bar:
    """A progress bar over iterations, which shows how far the residual has come."""

    def __init__(self, name: str | None, tol: float):
        self.name, self.tol = name, tol

    def __enter__(self) -> Any:
        from tqdm.auto import tqdm

        self.bar = tqdm(desc=self.name, unit=" iterations", disable=self.name is None)
        return self._report

    def _report(self, residual: float) -> None:
        self.bar.set_postfix_str(f"residual {residual:.1e} of {self.tol:g}", refresh=False)
        self.bar.update()

    def __exit__(self, *error: object) -> None:
        self.bar.close()


def _left_out(solution: Array, rows: Array, size: Array) -> float:
    """Mean squared error on the rows left out, summed over targets times `size`; unit vectors follow the targets."""
    xp: Any = _array.namespace(solution)
    own, n_targets = solution[rows, :], int(size.shape[0])
    errors = size * own[:, :n_targets] / xp.linalg.diagonal(own[:, n_targets:])[:, None]
    return float(xp.sum(errors**2)) / int(own.shape[0])
