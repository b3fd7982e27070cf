"""Kernel ridge regression and classification: directly, by preconditioned iterations, or sketched."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.features._kernel import SCALED, OfKernel
from ntkit.features._landmarks import block_rows, take, wide
from ntkit.features._lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels._base import evaluate
from ntkit.kernels._named import KernelLike
from ntkit.models._checks import (
    check_alphas,
    check_labels,
    check_targets,
    check_weight,
    like_rows,
    result_dtype,
    to_library,
    to_numpy,
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
    nystroem_features,
)
from ntkit.models._sketched import Sketched, sketched_ridge

_SOLVERS = ("auto", "direct", "pcg", "gradient", "sketch")
_FEATURES = ("nystroem", "sketch")
_SKETCHED = ("gaussian", "exponential", "ntk", "nngp", "polynomial")
_MOST_DIRECT = {"cpu": 4000, "cuda": 20000}  # rows up to which a factorization is faster
_NEGATIVE = 1e-6  # of the largest eigenvalue: more than rounding errors of kernel values in float32
_N_CHECKED = 64  # rows on which a sketched solution is compared with its features
_PROBE_TOLERANCE = 1e-3  # of errors of rows left out


class KernelModel(OfKernel, AllOrNothing, BaseEstimator):
    """What regression and classification share; see :class:`KernelRidge`."""

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
        depth: int = 1,
        fit_intercept: bool = True,
        features: Any = "nystroem",
        n_components: int | None = None,
        n_neighbors: int = 32,
        tol: float = 1e-6,
        max_iter: int = 1000,
        n_selection: int = 64,
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
            self._client = _client(X)
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
            if self._has_name(*SCALED):
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
        values, vectors = xp.linalg.eigh(A)
        top, rotated = float(xp.max(xp.abs(values))), vectors.T @ B
        if float(values[0]) + self.alphas_[-1] < -_NEGATIVE * top:
            raise ValueError(INDEFINITE)
        solutions, errors = [], []
        for alpha in self.alphas_.tolist():
            there = values + alpha > len(B) * 2.2e-16 * top
            inverse = xp.where(there, 1 / xp.where(there, values + alpha, 1.0), 0.0)
            solutions.append(vectors @ (inverse[:, None] * rotated))
            own = (vectors**2 @ inverse)[:, None]
            # A row with no kernel values at all is predicted 0.
            left_out = xp.where(own > 0, solutions[-1] / xp.where(own > 0, own, 1.0), B)
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
            errors = [_left_out(run.solution, places, n_targets) for run in runs]
            weight = 1.0 if matrix.scale is None else float(xp.mean(take(matrix.scale, rows) ** 2))
            best = self._best(np.array(errors) / weight)
        return runs[best].solution[:, :n_targets]

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
        return Preconditioner.of_features(matrix, Z, n_neighbors, keyed(seed, "outside"))

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
        from ntkit.features.polynomial import PolynomialSketch
        from ntkit.features.taylor import DotProductSketch

        if not self._has_name(*_SKETCHED):
            rule = f"'nystroem' or a transformer for a kernel other than {', '.join(map(repr, _SKETCHED))}"
            raise ValueError(message(type(self).__name__, "features", rule, self.features))
        state = generator(seed)
        if self._has_name("polynomial"):
            return PolynomialSketch(**(self.kernel_params or {}), n_components=size, random_state=state)
        lengthscale = getattr(self, "lengthscale_", "scale")
        return DotProductSketch(str(self.kernel), size, lengthscale=lengthscale, depth=self.depth, random_state=state)

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

    def _targets(self, y: Any) -> np.ndarray:
        """Targets as a float64 matrix."""
        raise NotImplementedError

    def _check_parameters(self) -> float | None:
        """Check all parameters but those of the kernel; the length scale given, None for "scale"."""
        name = type(self).__name__
        check_alphas(self.alpha, name, "alpha")
        cache_bytes(self.cache_size, None, name)
        check_choice(self.solver, "solver", name, _SOLVERS)
        check_bool(self.fit_intercept, "fit_intercept", name)
        check_bool(self.progress, "progress", name)
        for parameter, least in (("depth", 1), ("n_neighbors", 0), ("max_iter", 1), ("n_selection", 2)):
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
                K = evaluate(self._resolved, wide(self._as_fitted(X[rows])), fitted)[0]
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


class KernelRidge(MultiOutputMixin, RegressorMixin, KernelModel):
    """Ridge regression with an exact kernel, for as many rows as their kernel matrix allows or a hundred thousand.

    Solves (K + αI) c = y − b; predictions are Σ_i c_i k(x, x_i) + b, with the mean b of the targets. It is the mean of
    a Gaussian process with noise variance α. (`FeatureRidge` is for more rows.)

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "polynomial", "exponential" or "dot_product"; a network of
        :mod:`ntkit.networks`; a function ``kernel(X, Y, **params)`` that returns the matrix, see
        :func:`ntkit.kernels.gram`. Or "precomputed": `fit` then takes the square kernel matrix of n rows, and `predict`
        rows of n kernel values with these.
    alpha : float ≥ 0 or array of float
        α. The best of several is taken, by the squared error on rows left out.
    solver : {"auto", "direct", "pcg", "gradient", "sketch"}
        "direct": Cholesky's factorization, O(n³). "pcg": preconditioned conjugate gradients, O(n²) for each
        iteration; the matrix is kept in memory if it fits, else computed again block by block. "gradient":
        preconditioned gradient descent (Algorithm 2 of [1]_), for comparison. "sketch": features and a sketch of their
        rows (Theorem 6.9 of [1]_), which solves a smaller problem to a factor 1 + ε. "auto": "direct" up to 4000 rows
        (20 000 on a CUDA device), then "pcg".
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"degree": 3}`` or, for a network, ``{"kind": "nngp"}``.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian" and "exponential"; see :class:`~ntkit.RandomFourierFeatures`.
    depth : int
        Number of layers of "ntk", "nngp" and "cntk" (two at least).
    fit_intercept : bool
        Whether b is the (weighted) mean of y, or 0 as in scikit-learn's ``KernelRidge``.
    features : {"nystroem", "sketch"}, transformer or None
        Features Z of the kernel: the preconditioner of "pcg" and "gradient", and what "sketch" solves with.
        "nystroem": columns of the matrix at landmarks drawn by their leverage scores. "sketch":
        :class:`~ntkit.DotProductSketch` or :class:`~ntkit.PolynomialSketch`, which do not look at the rows. A
        transformer is cloned and fitted. None: no preconditioner.
    n_components : int or None
        Number of features; None: 20√n, and for iterations at most n/4.
    n_neighbors : int
        Neighbours of each row among which a preconditioner of Nyström features is corrected; 0 for none. (Not for a
        matrix too large for a CUDA device.)
    tol : float > 0
        Relative residual ‖y − (K + αI)c‖/‖y‖ that ends the iterations.
    max_iter : int
        Most iterations for each α.
    n_selection : int
        Rows whose errors when left out choose among several α, for an iterative solver. ("direct" takes all rows.)
    sketch_size : int or None
        Rows of the sketch; None: (1 + 1/ε) s_λ, s_λ the statistical dimension of the features.
    epsilon : float > 0
        ε: how far the objective of "sketch" may exceed the least one, as a share of it.
    cache_size : float or None
        MiB of kernel values to keep in memory; None: 0.6 of what is free, on the device of X.
    batch_size : int or None
        Most rows of kernel values to compute at a time; None: as many as suit the machine.
    progress : bool
        Whether `fit` shows progress bars.
    random_state : None, int, RandomState or Generator
        Draws landmarks, sketches and rows to leave out.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        c, in float64.
    intercept_ : float or ndarray of shape (n_targets,)
        b.
    X_fit_ : array of shape (n_samples, n_features)
        The rows of `fit`; None for "precomputed".
    alpha_ : float
        The α taken.
    alphas_ : ndarray
        All of them, in increasing order.
    errors_ : ndarray
        For several: mean squared error on rows left out, summed over targets, for each of `alphas_`.
    solver_ : str
        The solver taken.
    n_iter_ : int
        Iterations of "pcg" or "gradient", for all α together; 1 for the others.
    history_ : list of ndarray of shape (iterations + 1, n_targets)
        Relative residuals, for each of `alphas_`.
    sketch_size_, dimension_ : int, float
        Rows of the sketch and s_λ, for "sketch".
    lengthscale_ : float
        ℓ of "gaussian" and "exponential".
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The preconditioner is Z Zᵀ + E ≈ K + αI with a sparse approximation of E⁻¹ from neighbours; see
    ``docs/design/kernel-ridge.md``. Z costs O(n m²), neighbours O(n²) and O(n k³), each iteration O(n²) if the matrix
    is in memory. For several α each starts from the solution before it, and the errors of rows left out, c_i/(K +
    αI)⁻¹_ii, are exact up to the tolerance of their own right-hand sides. Kernel values and solutions are in float64.
    "sketch" promises ‖Kc − y‖² + α cᵀKc within 1 + ε of the optimum for features close to the kernel (Theorem 6.9 of
    [1]_). With landmarks c is 0 elsewhere; with other features K − Z Zᵀ must be small against α.

    References
    ----------
    .. [1] Song, Woodruff, Yu, Zhang, "Fast Sketching of Polynomial Kernels of Polynomial Degree", ICML 2021,
       arXiv:2108.09420, Theorems 6.6 and 6.9, Algorithm 2.
    .. [2] Zhao, Xu, Huang, Chow, Xi, "An Adaptive Factorized Nyström Preconditioner for Regularized Kernel Matrices",
       SIAM J. Sci. Comput. 2024, arXiv:2304.05460.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (1000, 3))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(1000)
    >>> model = KernelRidge("ntk", [1e-2, 1e-1, 1.0], depth=2, solver="pcg", random_state=0).fit(X[:800], y[:800])
    >>> bool(model.score(X[800:], y[800:]) > 0.95)
    True
    >>> model.n_iter_ < 100
    True
    """

    _single: bool

    def _targets(self, y: Any) -> np.ndarray:
        values = check_targets(y, type(self).__name__)
        self._single = values.ndim == 1
        return values[:, None] if self._single else values

    def predict(self, X: Any) -> Array:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
            Of the library of X; float32 for float32.
        """
        if _array.is_dask(X):
            check_is_fitted(self)
            return self._map_rows(self.predict, X, None if self._single else int(self._dual.shape[1]))
        scores = self._scores(X)
        return like_rows(scores[:, 0] if self._single else scores, X)

    @property
    def dual_coef_(self) -> np.ndarray:
        """Dual coefficients."""
        return self._dual[:, 0] if self._single else self._dual

    @property
    def intercept_(self) -> Any:
        """Mean of the targets."""
        return float(self._intercept[0]) if self._single else self._intercept


class KernelRidgeClassifier(ClassifierMixin, KernelModel):
    """Classification by kernel ridge regression on the indicators of the classes.

    The class with the largest prediction wins. See :class:`KernelRidge`, which has the same parameters and attributes.

    Parameters
    ----------
    kernel, alpha, solver, kernel_params, lengthscale, depth, fit_intercept, features, n_components, n_neighbors, tol, \
            max_iter, n_selection, sketch_size, epsilon, cache_size, batch_size, progress, random_state
        As in :class:`KernelRidge`; `fit_intercept` subtracts the shares of the classes.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    dual_coef_ : ndarray of shape (n_samples, n_classes)
    intercept_ : ndarray of shape (n_classes,)

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import KernelRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KernelRidgeClassifier("ntk", 0.1, depth=3).fit(X[:1000] / 16, y[:1000])
    >>> bool(model.score(X[1000:] / 16, y[1000:]) > 0.96)
    True
    """

    def _targets(self, y: Any) -> np.ndarray:
        labels = check_labels(y, type(self).__name__)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of at least two classes. Got one class only: "
                f"{self.classes_.tolist()[0]!r}."
            )
        return np.eye(len(self.classes_))[numbers]

    def decision_function(self, X: Any) -> Array:
        """Predictions for the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes: the second's minus the first's
        """
        check_is_fitted(self)
        binary = len(self.classes_) == 2
        if _array.is_dask(X):
            return self._map_rows(self.decision_function, X, None if binary else len(self.classes_))
        scores = self._scores(X)
        return like_rows(scores[:, 1] - scores[:, 0] if binary else scores, X)

    def predict(self, X: Any) -> Array:
        """Predict the classes of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection with rows or images

        Returns
        -------
        array of shape (n_samples,)
            A torch tensor if X is one and the classes are numbers.
        """
        if _array.is_dask(X):
            check_is_fitted(self)
            return self._map_rows(self.predict, X, None, self.classes_.dtype)
        scores = self._scores(X)
        best = _array.namespace(scores).argmax(scores, axis=1)
        if _array.is_torch(X) and self.classes_.dtype.kind in "biuf":
            return to_library(self.classes_, X)[to_library(best, X)]
        return self.classes_[to_numpy(best)]

    @property
    def dual_coef_(self) -> np.ndarray:
        """Dual coefficients of the classes."""
        return self._dual

    @property
    def intercept_(self) -> np.ndarray:
        """Shares of the classes."""
        return self._intercept


def _client(X: Any) -> Any:
    """Client of the cluster of a Dask collection, if there is one."""
    if not _array.is_dask(X):
        return None
    from ntkit.distributed import cluster_of

    return cluster_of(X)


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


def _left_out(solution: Array, rows: Array, n_targets: int) -> float:
    """Mean squared error on the rows left out, summed over targets; unit vectors of these follow the targets."""
    xp: Any = _array.namespace(solution)
    own = solution[rows, :]
    errors = own[:, :n_targets] / xp.linalg.diagonal(own[:, n_targets:])[:, None]
    return float(xp.sum(errors**2)) / int(own.shape[0])
