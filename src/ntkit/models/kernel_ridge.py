"""Kernel ridge regression and classification with exact kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._batching import row_batches
from ntkit._random import RandomState, generator, keyed, row_uniforms, seed_sequence
from ntkit._state import Field, Floats, Integer, Many, Optional, Real, Text, reserve
from ntkit._validation import check_choice, check_int, check_real, message
from ntkit.features.kernel import KernelEstimator
from ntkit.features.landmarks.choose import block_rows, take, wide
from ntkit.features.lengthscale import check_lengthscale, default_lengthscale
from ntkit.kernels.spec import KernelLike
from ntkit.models._base import RidgeClassifier, RidgeModel, RidgeRegressor
from ntkit.models._checks import check_weight, n_units, to_library
from ntkit.models._features import check_features, dense_features, seeded
from ntkit.models._iterative import Iterations, conjugate_gradients, gradient_descent
from ntkit.models._kernel_matrix import GivenMatrix, KernelMatrix, MatrixOfRows, cache_bytes
from ntkit.models._kernel_problem import FromKernel
from ntkit.models._path import Solution
from ntkit.models._preconditioner import Nystroem, Preconditioner, nystroem_features
from ntkit.models._problems import FromGram, Posterior, Selection
from ntkit.models._sketched import Sketched, sketched_ridge

_SOLVERS = ("auto", "direct", "pcg", "gradient", "sketch")
_SOLVER_PARAMS = {
    "features": "nystroem", "n_components": None, "n_neighbors": 32, "tolerance": 1e-6, "max_iter": 1000,
    "sketch_size": None, "epsilon": 0.1, "cache_size": None,
}  # fmt: skip
_FEATURES = ("nystroem", "sketch")
_SKETCHED = ("gaussian", "exponential", "ntk", "nngp", "polynomial")
_MAX_DIRECT = {"cpu": 10000, "cuda": 20000}  # a factorization is faster than iterations up to this many rows
_MAX_HELD_OUT = 256  # rows that iterative solvers hold out: each adds a right-hand side
_MAX_DEPTH = 4096  # limit on depth, degree and filter size of a kernel in a file, since loading computes a kernel value
_NEGATIVE = 1e-6  # eigenvalues below −this times the largest are not rounding errors, even of float32 kernel values
_N_CHECKED = 64  # rows on which the predictions of a sketched solution are compared with the exact kernel


def _moved(name: str) -> tuple[str, Callable[[Any], dict[str, Any]]]:
    """Map an old parameter to an entry of `solver_params`."""
    return "solver_params", lambda value: {name: value}


class KernelModel(KernelEstimator, RidgeModel):
    """Base class of the models with exact kernels; see :class:`KernelRidge`."""

    X_fit_: Any
    _options: Any
    _warnings: list[str]
    _posterior: Any

    _old_positions: ClassVar[int] = 2
    _old_names: ClassVar[dict[str, Any]] = {
        "alpha": "alphas",
        "tol": _moved("tolerance"),
        **{name: _moved(name) for name in _SOLVER_PARAMS if name != "tolerance"},
    }
    _state: ClassVar[dict[str, Field]] = {
        "X_fit_": Optional(Floats("n", ..., single=True, sparse=True)),
        "image_shape_": Optional(Many(Integer(minimum=1), 3)),
        "lengthscale_": Optional(Real(minimum=0.0, strict=True)),
        "solver_": Text(_SOLVERS[1:]),
        "n_iter_": Integer(minimum=0),
        "sketch_size_": Optional(Integer(minimum=1)),
        "dimension_": Optional(Real(minimum=0.0)),
        "_weight": Optional(Floats("n_fit", minimum=0.0)),
    }
    _remade: ClassVar[tuple[str, ...]] = ("_resolved", "history_")
    _transient: ClassVar[tuple[str, ...]] = ("_posterior", "_options")

    def __init__(
        self,
        kernel: KernelLike = "gaussian",
        *,
        alphas: Any = 1.0,
        solver: str = "auto",
        solver_params: dict[str, Any] | None = None,
        kernel_params: dict[str, Any] | None = None,
        lengthscale: float | str = "scale",
        depth: int | None = None,
        fit_intercept: bool = True,
        selection: str = "loo",
        n_selection: int = 1000,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.alphas = alphas
        self.solver = solver
        self.solver_params = solver_params
        self.kernel_params = kernel_params
        self.lengthscale = lengthscale
        self.depth = depth
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.n_selection = n_selection
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Solve for the dual coefficients.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for kernels of images
            All rows must fit in memory, even the rows of a Dask collection. With a Dask cluster, "pcg" and "gradient"
            compute the kernel matrix and its products on the workers. For ``kernel="precomputed"``, X is the square
            kernel matrix.
        y : array of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        name = type(self).__name__
        with self._all_or_nothing():
            lengthscale = self._check_parameters()
            self._seed = seed_sequence(self.random_state, owner=name)
            client = None
            if any(_array.is_dask(v) for v in (X, y, sample_weight)):
                from ntkit.distributed import cluster, compute

                client = cluster() if _array.is_dask(X) else None
                # Separately, since Dask warns if arrays and data frames are computed together.
                X, y, sample_weight = (compute(v)[0] if _array.is_dask(v) else v for v in (X, y, sample_weight))
            if y is None:
                raise ValueError(f"{name} requires y to be passed, but the target y is None.")
            X = self._check_rows(X, reset=True)
            X = X.detach() if _array.is_torch(X) else X
            n_rows = int(X.shape[0])
            self._targets = self._codec()
            Y = self._targets.encode(y, name)
            self._targets.ready(name)
            if len(Y) != n_rows:
                raise ValueError(
                    f"Found input variables with inconsistent numbers of samples: X of {name} has {n_rows} rows, y has "
                    f"{len(Y)}."
                )
            weight = check_weight(sample_weight, n_rows, name)
            if not weight.any():
                raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
            for attribute in ("lengthscale_", "history_", "sketch_size_", "dimension_"):
                self.__dict__.pop(attribute, None)
            counted = np.flatnonzero(weight)
            some = self._some(X, counted)
            if self._has_lengthscale:
                self.lengthscale_ = default_lengthscale(some, weight[counted]) if lengthscale is None else lengthscale
            self._resolve()
            self._warnings = []
            solution = self._solve_system(some, Y[counted] - self._targets.shift, weight[counted], client)
            dual = np.zeros(Y.shape)
            dual[counted] = to_numpy(solution.coef)
            solution.coef, solution.intercept = dual, to_numpy(solution.intercept)
            solution.noise = to_numpy(solution.noise)
            self._solution, self._posterior = solution, None
            self._centred = self.fit_intercept
            self._weight = None if sample_weight is None else weight
            self.X_fit_ = None if self._resolved is None else X
        for text in self.__dict__.pop("_warnings"):
            warnings.warn(f"{name}: {text}", ConvergenceWarning, stacklevel=2)
        return self

    def _some(self, X: Any, rows: np.ndarray) -> Any:
        if len(rows) == X.shape[0]:
            return X
        return take(take(X, rows).T, rows).T if self._has_name("precomputed") else take(X, rows)

    def _solve_system(self, X: Any, Y: np.ndarray, weight: np.ndarray, client: Any) -> Solution:
        """Return the solution for the best α, on rows of positive weight."""
        self.solver_, self.n_iter_ = self._choose_solver(X), 1
        mean_weight = weight.sum() / n_units(weight)
        matrix = self._matrix(X, np.sqrt(weight), client)
        on_device = _array.is_torch(X) and X.device.type != "cpu"
        Y, weight = (to_library(v, X) if on_device else v for v in (Y, weight))
        if self.solver_ == "sketch":
            return self._targets.settle(self._sketch(matrix, X, Y, weight))
        if self.solver_ == "direct":
            problem = self._direct(matrix, Y, weight, self._leaves_out)
            solution = self._choose(problem, mean_weight)
            if problem.is_singular(solution.alpha):
                text = "K + αI is singular up to rounding, so the solution of smallest norm was used."
                self._warnings.append(f"{text} Use a larger alpha.")
            return solution
        return self._iterate(matrix, X, Y, weight, mean_weight)

    def _matrix(self, X: Any, root: np.ndarray, client: Any) -> KernelMatrix:
        """Return the matrix S K S of the rows."""
        scale = None if (root == 1).all() or self.solver_ == "direct" else root
        if scale is not None and _array.is_torch(X) and X.device.type != "cpu":
            scale = to_library(scale, X)
        if self._resolved is None:
            return GivenMatrix(X, scale=scale)
        if client is not None and self.solver_ in ("pcg", "gradient"):
            from ntkit.distributed import ClusterMatrix

            return ClusterMatrix(client, self._resolved, X, scale=scale)
        cache = cache_bytes(self._options.cache_size, X, type(self).__name__)
        return MatrixOfRows(
            self._resolved, X, scale=scale, cache=cache, batch_size=self.batch_size, progress=self.progress
        )

    def _choose_solver(self, X: Any) -> str:
        if self.solver != "auto":
            return self.solver
        limit = _MAX_DIRECT["cuda" if _array.is_torch(X) and X.device.type == "cuda" else "cpu"]
        return "direct" if X.shape[0] <= limit else "pcg"

    def _keys(self, n_rows: int) -> np.ndarray:
        """Return random keys of the rows; the rows with the smallest keys are held out."""
        return row_uniforms(keyed(self._seed, "sample"), 0, n_rows)[:, 0]

    def _direct(self, matrix: KernelMatrix, Y: Array, weight: Array, selection: Selection) -> FromGram:
        """Return the problem that is solved by factorizations."""
        again = None if self._several else matrix.whole  # then only one matrix is in memory, not two
        return FromGram(
            matrix.whole(), Y, weight, self._keys(len(Y)), selection, intercept=self.fit_intercept,
            several=self._several, again=again, most_negative=_NEGATIVE,
        )  # fmt: skip

    def _iterate(self, matrix: KernelMatrix, X: Any, Y: Array, weight: Array, mean_weight: float) -> Solution:
        """Solve by preconditioned iterations for each α tried."""
        options, selection = self._options, self._leaves_out
        root = _array.namespace(weight).sqrt(weight)
        problem = FromKernel(
            matrix, Y, root, self._keys(len(Y)), selection._replace(size=min(selection.size, _MAX_HELD_OUT)),
            intercept=self.fit_intercept,
            iterate=conjugate_gradients if self.solver_ == "pcg" else gradient_descent,
            preconditioner=self._preconditioner(matrix, X),
            tolerance=options.tolerance, max_iter=options.max_iter, report=self._bar,
        )  # fmt: skip
        solution = self._choose(problem, mean_weight)
        runs = [(alpha, problem.runs[alpha]) for alpha in solution.alphas.tolist() if alpha in problem.runs]
        for alpha, run in runs:
            if not run.converged:
                self._not_converged(run, alpha, problem.n_targets)
        self.n_iter_ = sum(run.n_iter for _, run in runs)
        self.history_ = [run.history[:, : problem.n_targets] for _, run in runs]
        return solution

    def _not_converged(self, run: Iterations, alpha: float, n_targets: int) -> None:
        residual, others = run.history[-1, :n_targets].max(), run.history[-1, n_targets:]
        reached = f"{residual:.1e}, not {self._options.tolerance:g}"
        if residual <= self._options.tolerance:
            reached = f"{others.max():.1e} for the intercept or the held-out errors"
        text = f"after {run.n_iter} iterations the relative residual for alpha={alpha:g} is {reached}: {run.reason}."
        self._warnings.append(f"{text} Increase alpha, n_components, max_iter or tolerance.")

    def _bar(self, alpha: float) -> Any:
        return _Bar(f"alpha={alpha:g}" if self.progress else None, self._options.tolerance)

    def _preconditioner(self, matrix: KernelMatrix, X: Any) -> Preconditioner | None:
        if self._options.features is None:
            return None
        found = self._features_of(matrix, X)
        of_landmarks = isinstance(found, Nystroem)
        Z, n_neighbors = (found.Z, self._options.n_neighbors) if of_landmarks else (found, 0)
        if _array.is_torch(Z) and matrix.held is None:
            n_neighbors = 0  # computing many small kernel matrices one by one is too slow on a device
        smallest = 0.0 if self.alphas is None else float(np.min(self.alphas))
        preconditioner = Preconditioner.of_features(matrix, Z, n_neighbors, keyed(self._seed, "outside"), smallest)
        preconditioner.keep = self._several
        return preconditioner

    def _features_of(self, matrix: KernelMatrix, X: Any) -> Any:
        """Return the features S Z of the rows in float64; Nyström features come with their landmarks."""
        options, n_rows, seed = self._options, matrix.n_rows, keyed(self._seed, "features")
        features = options.features
        most = n_rows if self.solver_ == "sketch" else n_rows // 4
        size = options.n_components or max(1, min(round(20 * n_rows**0.5), most))
        if isinstance(features, str) and features == "nystroem":
            return nystroem_features(matrix, size, seed)
        if isinstance(features, str):
            features = self._sketching_map(size, seed)
            if self._has_name("gaussian") and not _array.is_sparse(X):
                X = X - X.mean(0)  # the kernel stays the same, and sketches of its Taylor series are best near 0
        features = seeded(features, seed)
        Z = wide(dense_features(features.fit(X), X, type(self).__name__))
        if Z.shape[0] != n_rows:
            raise ValueError(message(type(self).__name__, "features", f"a transformer that keeps {n_rows} rows", Z))
        return Z if matrix.scale is None else matrix.scale[:, None] * Z

    def _sketching_map(self, size: int, seed: np.random.SeedSequence) -> Any:
        """Return a map of the kernel that does not depend on the rows."""
        from ntkit.features.series import DotProductSketch, PolynomialSketch

        if not self._has_name(*_SKETCHED):
            rule = f"'nystroem' or a transformer for a kernel other than {', '.join(map(repr, _SKETCHED))}"
            raise ValueError(message(type(self).__name__, "features", rule, self._options.features))
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

    def _sketch(self, matrix: KernelMatrix, X: Any, Y: Array, weight: Array) -> Solution:
        """Solve ridge regression on sketched features. They are centred, so that the intercept is not penalized."""
        xp: Any = _array.namespace(Y)
        alpha, total = float(np.asarray(self.alphas).ravel()[0]), float(xp.sum(weight))
        root = xp.sqrt(weight)
        features = self._features_of(matrix, X)
        Z = features.Z if isinstance(features, Nystroem) else features
        z_mean, y_mean = xp.zeros_like(Z[0]), xp.zeros_like(Y[0])
        if self.fit_intercept:
            z_mean, y_mean = xp.matmul(root, Z) / total, xp.matmul(weight, Y) / total
        Z, B = Z - root[:, None] * z_mean, root[:, None] * (Y - y_mean)
        found = sketched_ridge(
            Z, B, alpha, size=self._options.sketch_size, epsilon=self._options.epsilon, seed=keyed(self._seed, "sketch")
        )  # fmt: skip
        self.sketch_size_, self.dimension_ = found.size, found.dimension
        intercept = y_mean - xp.matmul(z_mean, found.weights)
        if isinstance(features, Nystroem):
            # Coefficients at the landmarks give the same function, without the part of K that the features miss.
            dual = features.dual(found.weights)
        else:
            dual = found.solution
            if self.fit_intercept:  # enforce Σ c = 0; the subtracted part is orthogonal to the columns of Z
                dual = dual - root[:, None] * (xp.matmul(root, dual) / total)
            B = root[:, None] * (Y - intercept)
            self._check_sketched(matrix, Z + root[:, None] * z_mean, found._replace(solution=dual), B, alpha)
        return Solution(root[:, None] * dual, intercept, None, alpha, np.array([alpha]), np.array([np.nan]))

    def _check_sketched(self, matrix: KernelMatrix, Z: Array, found: Sketched, B: Array, alpha: float) -> None:
        """Warn if K x and Z Zᵀ x differ on some rows by more than ε allows; B holds targets minus the intercept."""
        epsilon = self._options.epsilon
        rows = np.sort(generator(self._seed, "check").permutation(matrix.n_rows)[:_N_CHECKED])
        xp: Any = _array.namespace(B)
        predictions = Z @ found.weights
        missed = matrix.columns(rows).T @ found.solution - take(predictions, rows)
        objective = float(xp.sum((predictions - B) ** 2)) + alpha * float(xp.sum(found.weights**2))
        if float(xp.sum(missed**2)) * matrix.n_rows > epsilon * objective * len(rows):
            text = f"the features miss more of the kernel than epsilon={epsilon:g} allows."
            self._warnings.append(f"{text} Use more n_components, a larger alpha or features='nystroem'.")

    def _check_parameters(self) -> float | None:
        """Check all parameters except kernel parameters; return the given length scale, None for "scale"."""
        name = type(self).__name__
        self._check_common()
        check_choice(self.solver, "solver", name, _SOLVERS)
        for parameter in ("kernel_params", "solver_params"):
            value = getattr(self, parameter)
            if value is not None and not isinstance(value, dict):
                raise TypeError(message(name, parameter, "a dict or None", value))
        self._options = self._check_options()
        self._check_features()
        if self.solver == "sketch":
            self._check_sketch()
        return check_lengthscale(self.lengthscale, name)

    def _check_options(self) -> SimpleNamespace:
        """Return the parameters of the solver, with defaults for those not given."""
        name, given = type(self).__name__, self.solver_params or {}
        unknown = [key for key in given if key not in _SOLVER_PARAMS]
        if unknown:
            rule = f"a dict whose keys are among {', '.join(_SOLVER_PARAMS)}"
            raise ValueError(message(name, "solver_params", rule, self.solver_params))
        options = SimpleNamespace(**(_SOLVER_PARAMS | given))
        cache_bytes(options.cache_size, None, name)
        for key, minimum in (("n_neighbors", 0), ("max_iter", 1), ("n_components", 1), ("sketch_size", 1)):
            if getattr(options, key) is not None or _SOLVER_PARAMS[key] is not None:
                check_int(getattr(options, key), f'solver_params["{key}"]', name, minimum=minimum)
        for key in ("tolerance", "epsilon"):
            check_real(getattr(options, key), f'solver_params["{key}"]', name, minimum=0, strict=True)
        return options

    def _check_features(self) -> None:
        name, features = type(self).__name__, self._options.features
        if isinstance(features, str):
            check_choice(features, 'solver_params["features"]', name, _FEATURES)
        elif features is not None:
            check_features(features, name)
        if self._has_name("precomputed"):
            if self.kernel_params:
                rule = "None for kernel='precomputed', which has no parameters"
                raise ValueError(message(name, "kernel_params", rule, self.kernel_params))
            if features is not None and features != "nystroem":
                rule = "'nystroem' or None for kernel='precomputed', where the rows are unknown"
                raise ValueError(message(name, 'solver_params["features"]', rule, features))

    def _check_sketch(self) -> None:
        name = type(self).__name__
        if self._several or not np.all(np.asarray(self.alphas, dtype=np.float64)):
            remedy = "To choose among several alphas in one pass, use FeatureRidge(features)."
            raise ValueError(message(name, "alphas", "one number > 0 for solver='sketch'", self.alphas, remedy))
        if self._options.features is None:
            rule = "'nystroem', 'sketch' or a transformer for solver='sketch'"
            raise ValueError(message(name, 'solver_params["features"]', rule, None))

    def _scores(self, X: Any) -> Array:
        """Compute K(X, X_fit) c + intercept in float64, of shape (n, n_targets), block by block."""
        X = self._check_rows(X, reset=False)
        X = X.detach() if _array.is_torch(X) else X
        on_device = _array.is_torch(X) and X.device.type != "cpu"
        used = np.flatnonzero(self._solution.coef.any(axis=1))  # with some solvers only the landmarks
        used = used if len(used) else np.arange(1)
        dual, intercept = (
            to_library(v, X) if on_device else v for v in (self._solution.coef[used], self._solution.intercept)
        )
        every = len(used) == len(self._solution.coef)
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

    def _score_expression(self, X: Array) -> Array:
        """Compute the same as :meth:`_scores` as one expression."""
        dual, intercept = self._solution.coef, self._solution.intercept
        used = np.flatnonzero(dual.any(axis=1))
        used = used if len(used) else np.arange(1)
        X = _array.widen(X)
        if self._resolved is None:
            K = _array.namespace(X).take(X, _array.namespace(X).asarray(used, device=_array.device(X)), axis=1)
        elif _array.is_traced(X):
            rows = self.X_fit_.toarray() if _array.is_sparse(self.X_fit_) else _array.to_numpy(self.X_fit_)
            K = self._resolved.matrix(X, np.asarray(rows, dtype=np.float64)[used])
        else:
            K = self._resolved.matrix(X, wide(take(self._like(X), used)))
        return K @ _array.constant(dual[used], K) + _array.constant(intercept, K)

    def _like(self, X: Any) -> Any:
        """Return the rows of `fit` in the library and on the device of X."""
        if _array.is_torch(X) == _array.is_torch(self.X_fit_):
            return self.X_fit_.to(X.device) if _array.is_torch(X) else self.X_fit_
        if not _array.is_torch(X):
            return wide(self.X_fit_).cpu().numpy()
        if _array.is_sparse(self.X_fit_):
            return to_library(self.X_fit_.toarray(), X)
        return to_library(np.require(self.X_fit_, requirements="W"), X)

    def _as_fitted(self, X: Any) -> Any:
        """Convert rows to sparse or dense, like the rows of `fit`."""
        if _array.is_torch(X) or _array.is_sparse(X) == _array.is_sparse(self.X_fit_):
            return X
        if _array.is_sparse(X):
            return X.toarray()
        from scipy.sparse import csr_array

        return csr_array(X)

    def _spread(self, X: Any) -> Array:
        """Return the variance of each prediction divided by the variance of the noise."""
        problem, posterior = self._factorize()
        assert self._resolved is not None
        X = self._check_rows(X, reset=False)
        X = X.detach() if _array.is_torch(X) else X
        rows = wide(take(self._like(X), self._counted))
        parts = []
        for batch in row_batches(X.shape[0], 1, batch_size=block_rows(rows.shape[0], self.batch_size, X)):
            some = wide(self._as_fitted(X[batch]))
            K, own = (_native(v) for v in (self._resolved.matrix(some, rows), self._resolved.diagonal(some)))
            parts.append(posterior.of_kernel(*problem.centred(K, own)))
        return _array.namespace(*parts).concat(parts)

    @property
    def _counted(self) -> np.ndarray:
        """Indices of the rows of `fit` of positive weight."""
        return np.arange(len(self._solution.coef)) if self._weight is None else np.flatnonzero(self._weight)

    def _factorize(self) -> tuple[FromGram, Posterior]:
        """Return the system of the fit and its factorization; they are computed once."""
        if self.solver_ != "direct" or self._resolved is None:
            raise ValueError(
                f"return_std needs a {type(self).__name__} with solver='direct', and a kernel other than "
                "'precomputed', which does not give k(x, x)."
            )
        if getattr(self, "_posterior", None) is None:
            counted = self._counted
            K = _native(self._resolved.matrix(wide(take(self.X_fit_, counted))))
            weight = to_library(np.ones(len(counted)) if self._weight is None else self._weight[counted], K)
            Y, keys = _array.namespace(K).zeros_like(weight)[:, None], np.zeros(len(counted))
            problem = FromGram(K, Y, weight, keys, Selection("loo", 0), intercept=self._centred)
            self._posterior = problem, problem.posterior(self._solution.alpha)
            problem.K = None  # predictions only need the means
        return self._posterior

    def _file_state(self) -> dict[str, Any]:
        return super()._file_state() | {"X_fit_": _plain(self.X_fit_)}

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        self._check_parameters()
        for name, value in {"depth": self.depth, **(self.kernel_params or {})}.items():
            if isinstance(value, int) and value > _MAX_DEPTH:  # check before the network is built
                raise ValueError(f"{name} must be at most {_MAX_DEPTH}, not {value}")
        self._resolve()
        n_rows = len(self._solution.coef)
        n_fit = self.n_features_in_ if self._resolved is None else getattr(self.X_fit_, "shape", (0,))[0]
        if n_fit != n_rows or (self._weight is not None and len(self._weight) != n_rows):
            raise ValueError(f"there must be {n_rows} rows and weights, one per coefficient")
        if self._resolved is not None:
            shape = tuple(getattr(self, "image_shape_", None) or (self.n_features_in_,))
            if tuple(self.X_fit_.shape[1:]) != shape or not n_rows:
                raise ValueError(f"the rows of the fit must have the shape {shape}")
            reserve(32 * int(np.prod(shape)), "A row")
            self._resolved.matrix(np.zeros((1, *shape)))  # raises unless the kernel takes such rows

    @property
    def dual_coef_(self) -> np.ndarray:
        """Dual coefficients."""
        coef = self._read("coef")
        return coef[:, 0] if getattr(self._targets, "single", False) else coef


class KernelRidge(KernelModel, RidgeRegressor):
    """Ridge regression with an exact kernel, solved directly or by preconditioned iterations.

    Solves (K + αI) c = y − b with Σ c = 0. Predictions are Σ_i c_i k(x, x_i) + b; the intercept b is not penalized. The
    predictions are the posterior mean of a Gaussian process with noise variance α and an unknown constant. For more
    rows, use `FeatureRidge`.

    Parameters
    ----------
    kernel : str, Layer or callable
        "ntk", "nngp", "cntk", "gaussian", "laplace", "matern", "polynomial", "exponential" or "dot_product"; a network
        of :mod:`ntkit.networks`; a function ``kernel(X, Y, **params)`` that returns the matrix, see
        :func:`ntkit.kernels.gram`. Or "precomputed": then `fit` takes the square kernel matrix of n training rows, and
        `predict` takes the n kernel values of each new row with them.
    alphas : float ≥ 0, array of float or None
        α, or candidates among which the error on held-out rows decides. None: 10⁻⁷, 10^-6.5, …, 10² times the mean of
        the diagonal of the centred kernel matrix, and smaller values while the error falls.
    solver : {"auto", "direct", "pcg", "gradient", "sketch"}
        "direct": Cholesky factorization, O(n³). "pcg": preconditioned conjugate gradients, O(n²) per iteration; the
        matrix is kept in memory if it fits, else recomputed block by block. "gradient": preconditioned gradient
        descent (Algorithm 2 of [1]_), for comparison. "sketch": features and a sketch of their rows (Theorem 6.9
        of [1]_), a smaller problem whose solution is within a factor 1 + ε of the optimum. "auto": "direct" up to
        10 000 rows (20 000 on a CUDA device), then "pcg".
    solver_params : dict or None
        Parameters of the solver:

        "features" : {"nystroem", "sketch"}, transformer or None
            Features Z of the kernel. "pcg" and "gradient" use them as preconditioner, "sketch" solves with them.
            "nystroem" (default): columns of the matrix at landmarks drawn by their leverage scores. "sketch":
            :class:`~ntkit.DotProductSketch` or :class:`~ntkit.PolynomialSketch`, which depend only on the norms of the
            rows. A transformer is cloned and fitted. None: no preconditioner.
        "n_components" : int
            Number of features; by default 20√n, and for iterations at most n/4.
        "n_neighbors" : int, default 32
            Neighbours per row that correct a preconditioner of Nyström features, if the features miss more than α of
            k(x, x) on average; 0 for none. (Not used if the matrix is too large for a CUDA device.)
        "tolerance" : float, default 1e-6
            Iterations stop at this relative residual ‖y − (K + αI)c‖/‖y‖.
        "max_iter" : int, default 1000
            Maximum number of iterations for each α.
        "sketch_size" : int
            Rows of the sketch; by default (1 + 1/ε) s_λ, where s_λ is the statistical dimension of the features.
        "epsilon" : float, default 0.1
            ε: the objective of "sketch" may exceed its minimum by this share.
        "cache_size" : float
            MiB of kernel values to keep in memory; by default 0.6 of the free memory on the device of X. Set it if
            several fits run at the same time.
    kernel_params : dict or None
        Further parameters of the kernel, such as ``{"degree": 3}``, ``{"nu": 2.5}`` or, for a network,
        ``{"kind": "nngp"}``.
    lengthscale : float > 0 or "scale"
        ℓ of "gaussian", "laplace", "matern" and "exponential"; see :class:`~ntkit.RandomFourierFeatures`.
    depth : int or None
        Number of layers of "ntk", "nngp" and "cntk" (at least 2 for "cntk"); None: 1, and 3 for "cntk".
    fit_intercept : bool
        Whether b is fitted, without penalty. If not, b = 0 as in scikit-learn's ``KernelRidge``.
    selection, n_selection
        How the error of each α is estimated, as for :class:`FeatureRidge`. Iterative solvers hold out at most 256 rows.
    batch_size : int or None
        Maximum number of rows of kernel values per batch; None chooses it by the available memory.
    progress : bool
        Whether `fit` shows progress bars.
    random_state : None, int, RandomState or Generator
        Draws landmarks, sketches and held-out rows.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        c, in float64.
    intercept_ : float or ndarray of shape (n_targets,)
        b.
    noise_variance_ : float or ndarray of shape (n_targets,)
        Variance of the noise that maximizes the evidence. (Not available for "sketch".)
    X_fit_ : array of shape (n_samples, n_features)
        The rows of `fit`; None for "precomputed".
    alpha_ : float
        The chosen α.
    alphas_ : ndarray
        All candidate α, in increasing order.
    errors_ : ndarray
        Mean squared error on held-out rows, summed over targets, for each of `alphas_`; NaN if it was not tried, and
        for a single α.
    solver_ : str
        The solver that was used.
    n_iter_ : int
        Total iterations of "pcg" or "gradient" over all α; 1 for other solvers.
    history_ : list of ndarray of shape (iterations + 1, n_targets)
        Relative residuals, for each of `alphas_` that was tried. (Not saved in files.)
    sketch_size_, dimension_ : int, float
        Rows of the sketch, and an estimate of s_λ, for "sketch".
    lengthscale_ : float
        ℓ of "gaussian", "laplace", "matern" and "exponential".
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    The preconditioner is Z Zᵀ + E ≈ K + αI with a sparse approximation of E⁻¹ from neighbours; see
    ``docs/design/kernel-ridge.md``. Z costs O(n m²), neighbours O(n²) and O(n k² (k + m)), each iteration O(n²) if the
    matrix is in memory. For each of several α, iterations start from the solution for the nearest α solved so far. The
    held-out errors are exact up to the tolerance of their own right-hand sides. Kernel values and solutions are in
    float64.

    "sketch" guarantees ‖Kc − y‖² + α cᵀKc within a factor 1 + ε of the optimum if the features are close to the kernel
    (Theorem 6.9 of [1]_). With Nyström features, c is 0 except at the landmarks; with other features, K − Z Zᵀ must be
    small compared with α.

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
    >>> model = KernelRidge("ntk", alphas=[1e-2, 1e-1, 1.0], depth=2, solver="pcg", random_state=0)
    >>> model = model.fit(X[:800], y[:800])
    >>> bool(model.score(X[800:], y[800:]) > 0.95)
    True
    >>> model.n_iter_ < 100
    True
    """


class KernelRidgeClassifier(KernelModel, RidgeClassifier):
    """Classification by kernel ridge regression on the indicators of the classes.

    `predict` returns the most probable class. Probabilities are calibrated on held-out rows; solver="sketch" holds out
    no rows and has no probabilities. Other parameters and attributes are those of :class:`KernelRidge`.

    Parameters
    ----------
    kernel, alphas, solver, solver_params, kernel_params, lengthscale, depth, fit_intercept, selection, n_selection, \
            batch_size, progress, random_state
        As for :class:`KernelRidge`. Rows are held out for a single α too, to calibrate the probabilities.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    dual_coef_ : ndarray of shape (n_samples, n_classes)
    intercept_ : ndarray of shape (n_classes,)
    temperature_ : float
        Temperature of the calibration, fitted on the held-out rows: scores are divided by it.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import KernelRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KernelRidgeClassifier("ntk", alphas=0.1, depth=3).fit(X[:1000] / 16, y[:1000])
    >>> bool(model.score(X[1000:] / 16, y[1000:]) > 0.96)
    True
    """


def _plain(X: Any) -> Any:
    """Convert rows to a floating-point array in host memory; None and CSR rows are returned unchanged."""
    if X is None or _array.is_sparse(X):
        return X
    if _array.is_torch(X):
        X = _array.to_numpy(X.float() if X.dtype.itemsize < 4 and X.is_floating_point() else X)
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)


def _native(K: Array) -> Array:
    """Convert tensors in host memory to NumPy arrays."""
    view = _array.host_view(K)
    return K if view is None else view


class _Bar:
    """A progress bar over iterations that shows the residual."""

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
