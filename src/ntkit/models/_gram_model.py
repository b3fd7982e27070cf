"""What regression and classification from a Gram matrix share: draws are added up, α is chosen, weights are made."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._batching import with_progress
from ntkit._estimator import AllOrNothing
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._validation import check_bool, check_choice, check_int, check_real, message
from ntkit.models._blocks import as_arrays, as_rows, n_rows_of
from ntkit.models._checks import check_alphas, to_library
from ntkit.models._draws import Draw, Draws, check_draws
from ntkit.models._features import check_features, default_features
from ntkit.models._gram import Dual, Primal, Weights, add_product, least_alpha, panels, with_relu_layers, zeros
from ntkit.models._solve import GRID

GRAM_DTYPES = ("float32", "float64")
_SOLVERS = ("auto", "dual", "primal")
_AS_GOOD = 0.001
_WORSE, _PATIENCE = 0.02, 3  # the path ends after so many α in a row with errors so much above the least


class Cross:
    """Σ_d Z_d(X_new) Z_d(X)ᵀ."""

    def __init__(self, dtype: str):
        self.dtype = dtype
        self.total: Array = None
        self.squares: Array = None

    def add(self, draws: Draws, draw: Draw, new: Any, Z: Array) -> None:
        """Add a draw, of which Z are the features of the rows fitted on."""
        xp: Any = _array.namespace(Z)
        if self.total is None:
            self.total = zeros((n_rows_of(new), Z.shape[0]), self.dtype, Z)
            self.squares = zeros((n_rows_of(new),), "float64", Z)
        for part, block in draws.blocks(draw, new):
            block = to_library(block, Z)
            self.squares[part] += xp.sum(xp.astype(block, xp.float64) ** 2, axis=1)
            add_product(self.total[part], xp.astype(block, Z.dtype, copy=False), Z)

    def with_layers(self, problem: Dual, means: Array, n_layers: int, *, center: bool) -> Array:
        """The matrix with ReLU layers on top; `means` are those of the columns of the training rows."""
        xp: Any = _array.namespace(self.total)
        top = zeros(self.total.shape, "float64", self.total)
        columns = xp.linalg.diagonal(problem.gram) / problem.n_draws
        for rows in panels(len(top), top.shape[1]):
            K = xp.astype(self.total[rows], xp.float64) / problem.n_draws
            top[rows] = with_relu_layers(K, self.squares[rows] / problem.n_draws, columns, n_layers)
        if center:
            top -= xp.mean(top, axis=1)[:, None]
            top -= (means - xp.mean(means))[None, :]
        return top


class GramModel(AllOrNothing, BaseEstimator):
    """Base class; see :class:`~ntkit.models.GramRidge`."""

    features: Any
    n_draws: int
    alphas: Any
    normalize: bool
    center: bool
    validation_fraction: float | None
    hidden_layers: int
    solver: str
    gram_dtype: str
    product_dtype: str | None
    keep_coef: bool
    keep_gram: bool
    warm_start: bool
    batch_size: int | None
    progress: bool
    random_state: RandomState
    _draws: Draws
    _drawn: dict[int, Draw]  # only what predictions need
    _coef: list[Array] | None
    _constant: Array
    _problem: Dual | Primal | None = None
    _cross: Cross | None = None
    _new_rows: Any = None
    _always_validates: ClassVar[bool]
    """Whether rows are held back for a single α too."""

    def fit(self, X: Any, y: Any) -> Self:
        """Add up the Gram matrix over all draws, solve, and turn the solution into weights in a second pass.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
            Given to the features as it is; what follows happens in the library and on the device of the features.
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression

        Returns
        -------
        self
        """
        self._check_parameters()
        if self.hidden_layers:
            rule, remedy = "0 for fit: with layers on top there are no weights of features", "Call fit_predict."
            raise ValueError(message(type(self).__name__, "hidden_layers", rule, self.hidden_layers, remedy))
        with self._all_or_nothing():
            rows, problem, weights, _ = self._learn(X, y)
            self._coef = self._feature_weights(rows, problem, weights) if self.keep_coef else None
            self._drawn = {} if self._coef is None else self._drawn
        return self

    def _scores_in_one_pass(self, X: Any, y: Any, X_new: Any) -> Array:
        """Fit, and return the scores of new rows without a second pass over X."""
        with self._all_or_nothing():
            if _array.is_dask(X_new):
                name = f"{type(self).__name__}.fit_predict"
                raise TypeError(message(name, "X_new", "rows in memory", X_new))
            _, problem, weights, cross = self._learn(X, y, X_new)
            self._coef = None
            if isinstance(problem, Primal):
                self._coef = self._feature_weights(None, problem, weights)
                scores = self._scores(X_new)
            else:
                xp: Any = _array.namespace(cross)
                scores = xp.matmul(xp.astype(cross, xp.float64), weights.values) + weights.constant
            if self._coef is None or not self.keep_coef:
                self._coef, self._drawn = None, {}
        return scores

    def _learn(self, X: Any, y: Any, X_new: Any = None) -> tuple[Any, Dual | Primal, Weights, Array]:
        """The rows as they come to the map, the problem, its solution, and the matrix of new rows if it is dual."""
        name = type(self).__name__
        self._check_parameters()
        if y is None:
            raise ValueError(f"{name} requires y to be passed, but the target y is None.")
        if _array.is_dask(X):
            remedy = "FeatureRidge and FeatureRidgeClassifier take Dask collections."
            raise TypeError(message(name, "X", "rows in memory", X, remedy))
        source = as_arrays(X, y, None, name)
        if not source.n_rows:
            raise ValueError(message(name, "X", "non-empty", X, "Found array with 0 sample(s)."))
        Y = self._targets(source.y)
        problem, cross = self._problem, None if X_new is None else self._cross
        known = X_new is None or (cross is not None and X_new is self._new_rows)
        if self.warm_start and known and problem is not None and problem.complete:
            rows, problem = self._go_on(source.X, problem)
        else:
            rows, problem, cross = self._begin(source.X), None, None
        if X_new is not None:
            cross = cross or Cross(self.gram_dtype)
        problem = self._add_draws(problem, cross, rows, None if X_new is None else self._rows(X_new))
        self.n_draws_ = problem.n_draws
        top, total = problem, None if cross is None else cross.total
        if self.hidden_layers and isinstance(problem, Dual) and cross is not None:
            top, means = problem.with_layers(self.hidden_layers, center=self.center)
            total = cross.with_layers(problem, means, self.hidden_layers, center=self.center)
        weights = self._solve(top, Y)
        self._constant = weights.constant
        self._problem = problem if self.warm_start or self.keep_gram else None
        self._cross = cross if self.warm_start and isinstance(problem, Dual) else None
        self._new_rows = None if self._cross is None else X_new
        return rows, problem, weights, total

    def _begin(self, X: Any) -> Any:
        """Fit the steps before the map, and return the rows as they come to it."""
        name = type(self).__name__
        seed = seed_sequence(self.random_state, owner=name)
        self._seed = seed.entropy, seed.spawn_key, seed.pool_size
        features = default_features(keyed(seed, "features"), X, name) if self.features is None else self.features
        self._draws = Draws(
            features, seed, normalize=self.normalize, center=self.center,
            product_dtype=self.product_dtype, batch_size=self.batch_size, owner=name,
            zeros=not self.hidden_layers,
        )  # fmt: skip
        self._draws.check_number(self.n_draws)
        rows = self._draws.fit(X)
        self._drawn, self._shape = {}, tuple(X.shape)
        self.n_features_in_ = int(np.prod(X.shape[1:]))
        return rows

    def _go_on(self, X: Any, problem: Dual | Primal) -> tuple[Any, Dual | Primal]:
        """Check that there are draws of such rows, and no more of them than are wanted."""
        name, remedy = type(self).__name__, "Set warm_start=False to begin anew."
        if tuple(X.shape) != self._shape:
            raise ValueError(message(name, "X", f"of shape {self._shape}, as before, with warm_start", X, remedy))
        if self.n_draws < problem.n_draws:
            rule = f"an int ≥ {problem.n_draws}, the number of draws there are, with warm_start"
            raise ValueError(message(name, "n_draws", rule, self.n_draws, remedy))
        changed = (self.normalize, self.center, self.product_dtype) != self._draws.settings
        if changed or (isinstance(problem, Dual) and (self.solver == "primal" or self.gram_dtype != problem.dtype)):
            raise ValueError(
                f"With warm_start, normalize, center, product_dtype, gram_dtype and a dual solver of {name} must stay "
                f"as they are. {remedy}"
            )
        self._draws.check_number(self.n_draws)
        self._draws.batch_size, self._drawn = self.batch_size, dict(self._drawn)
        if isinstance(problem, Primal) and self._is_dual(problem.draws[0]):
            return self._draws.rows(X), problem.to_dual(self.gram_dtype)
        return self._draws.rows(X), problem

    def _is_dual(self, Z: Array) -> bool:
        """Whether to solve for weights of rows, Z being the features of a draw."""
        return (
            self.solver == "dual"
            or self.hidden_layers > 0
            or (self.solver == "auto" and self.n_draws * Z.shape[1] > Z.shape[0])
        )

    def _add_draws(self, problem: Any, cross: Cross | None, rows: Any, new: Any) -> Dual | Primal:
        """Add the draws that are missing, to the matrix of new rows too."""
        start = 0 if problem is None else problem.n_draws
        for number in with_progress(range(start, self.n_draws), type(self).__name__ if self.progress else None):
            draw, Z = self._draws.draw(number, rows)
            if problem is None:
                problem = Dual(self.gram_dtype) if self._is_dual(Z) else Primal()
                self._take_names(draw.map)
            if cross is not None and isinstance(problem, Dual):
                cross.add(self._draws, draw, new, Z)
            elif self.keep_coef or new is not None:
                self._drawn[number] = draw
            problem.add(Z)
            del Z  # before the next draw takes its room
        problem.finish()
        return problem

    def _take_names(self, first_map: Any) -> None:
        self.__dict__.pop("feature_names_in_", None)
        first = first_map if self._draws.before is None else self._draws.before
        if hasattr(first, "feature_names_in_"):
            self.feature_names_in_ = first.feature_names_in_

    def _solve(self, problem: Dual | Primal, Y: np.ndarray) -> Weights:
        """Choose α and solve on all rows."""
        scale = problem.mean_diagonal()
        if not np.isfinite(scale):
            raise ValueError(
                f"The features of {type(self).__name__} are too large to be multiplied in their precision. Set "
                "normalize=True, or product_dtype='float64'."
            )
        given = GRID * (scale or 1.0) if self.alphas is None else np.asarray(self.alphas, dtype=np.float64).ravel()
        self.alphas_ = np.sort(given)
        least = least_alpha(scale, len(Y))
        right = to_library(Y, problem.like)
        alpha = float(self.alphas_[self._choose(problem, Y, right, least)])
        part = problem.part(right, to_library(np.arange(len(Y)), right), intercept=self.center)
        self.alpha_, used = alpha, max(alpha, least)
        weights = part.solve(used)
        while weights is None:
            used *= 10
            weights = part.solve(used)
            self.alpha_ = used
        if self.alpha_ != alpha:
            warnings.warn(
                f"The Gram matrix of {type(self).__name__} with alpha={alpha:.3g} is indefinite by rounding errors; "
                f"alpha={used:.3g} was taken. Use larger alphas, or gram_dtype and product_dtype 'float64'.",
                stacklevel=4,
            )
        return weights

    def _choose(self, problem: Dual | Primal, Y: np.ndarray, right: Array, least: float) -> int:
        """Number of the largest α that is as good as the best on the rows held back."""
        n, last = len(Y), len(self.alphas_) - 1
        self.errors_ = np.full(last + 1, np.nan)
        self._calibrate(None, None)
        fraction = self.validation_fraction
        n_held = 0 if fraction is None else min(max(round(fraction * n), 1), n - 1)
        if not n_held or not (last or self._always_validates):
            return last
        order = generator(self._draws.seed, "validation").permutation(n)
        held, rows = np.sort(order[:n_held]), np.sort(order[n_held:])
        chosen = to_library(rows, right)
        part = problem.part(right[chosen], chosen, intercept=self.center)
        predictions: dict[int, np.ndarray] = {}
        worse = 0
        for number in reversed(range(last + 1)):
            weights = part.solve(max(float(self.alphas_[number]), least))
            if weights is None:  # nor could smaller ones be solved for
                break
            predictions[number] = to_numpy(problem.predict(weights, chosen, to_library(held, right)))
            self.errors_[number] = self._loss(Y[held], predictions[number])
            best = np.nanmin(self.errors_)
            worse = worse + 1 if self.errors_[number] > (1 + _WORSE) * best else 0
            if worse == _PATIENCE:
                break
        if not predictions:
            return last
        number = int(np.flatnonzero(self.errors_ <= (1 + _AS_GOOD) * np.nanmin(self.errors_))[-1])
        self._calibrate(Y[held], predictions[number])
        return number

    def _calibrate(self, targets: np.ndarray | None, predictions: np.ndarray | None) -> None:
        """Take note of the predictions for the rows held back, None if there are none."""

    def _feature_weights(self, rows: Any, problem: Dual | Primal, weights: Weights) -> list[Array]:
        """Weights of the features of every draw, (m, k) each."""
        xp: Any = _array.namespace(weights.values)
        if isinstance(problem, Primal):
            ends = np.cumsum([Z.shape[1] for Z in problem.draws])
            return [weights.values[end - Z.shape[1] : end] for end, Z in zip(ends, problem.draws, strict=True)]
        coef = []
        for number in with_progress(
            range(problem.n_draws), f"{type(self).__name__}: weights" if self.progress else None
        ):
            if number not in self._drawn:  # of a fit that did not keep them
                self._drawn[number], _ = self._draws.draw(number, rows)
            parts = [
                xp.matmul(xp.astype(Z, xp.float64).T, weights.values[part])
                for part, Z in self._draws.blocks(self._drawn[number], rows)
            ]
            coef.append(sum(parts[1:], start=parts[0]))
        return coef

    def _scores(self, X: Any) -> Array:
        """Predictions in float64, (n, k), block by block for every draw."""
        name = type(self).__name__
        check_is_fitted(self)
        if self._coef is None:
            raise ValueError(
                f"This {name} has no weights to predict with: it was fitted by fit_predict or with keep_coef=False. "
                "Call fit with keep_coef=True."
            )
        rows = self._rows(X)
        total: Array = None
        for number, coef in enumerate(self._coef):
            for part, Z in self._draws.blocks(self._drawn[number], rows):
                xp: Any = _array.namespace(Z)
                if total is None:
                    total = zeros((n_rows_of(rows), coef.shape[1]), "float64", Z) + to_library(self._constant, Z)
                total[part] += xp.matmul(xp.astype(Z, xp.float64), to_library(coef, Z))
        return total

    def _rows(self, X: Any) -> Any:
        """Rows that were not fitted on, as they come to the map."""
        name = type(self).__name__
        X = as_rows(X, "X", name)
        if len(X.shape) == len(self._shape) == 2 and X.shape[1] != self._shape[1]:
            raise ValueError(
                f"X has {X.shape[1]} features, but {name} is expecting {self._shape[1]} features as input."
            )
        return self._draws.rows(X)

    @abstractmethod
    def _targets(self, y: Any) -> np.ndarray:
        """Targets as a float64 matrix."""

    @abstractmethod
    def _loss(self, targets: np.ndarray, predictions: np.ndarray) -> float:
        """What α is chosen by."""

    @property
    def preprocessor_(self) -> Any:
        """The fitted steps before the map."""
        return self._of_fit("_draws").before

    @property
    def maps_(self) -> list[Any]:
        """The fitted maps."""
        return [draw.map for _, draw in sorted(self._of_fit("_drawn").items())]

    @property
    def gram_(self) -> Array:
        """The kernel matrix of the rows."""
        problem = self._of_fit("_problem")
        if not self.keep_gram or not problem.complete:
            raise AttributeError(f"This {type(self).__name__} has no 'gram_': fit it with keep_gram=True.")
        return problem.kernel()

    def _of_fit(self, name: str) -> Any:
        value = getattr(self, name, None)
        if value is None:
            hint = ": fit it with keep_gram=True" if name == "_problem" else " before fit"
            raise AttributeError(f"This {type(self).__name__} has no such attribute{hint}.")
        return value

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        features = self.features
        tags.input_tags.sparse = hasattr(features, "__sklearn_tags__") and get_tags(features).input_tags.sparse
        return tags

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.features is not None:
            check_features(self.features, name)
        check_draws(self.n_draws, self.normalize, self.center, self.product_dtype, self.batch_size, self.progress, name)
        check_alphas(self.alphas, name)
        if self.validation_fraction is not None:
            rule = "None or a number between 0 and 1"
            try:
                fraction = check_real(self.validation_fraction, "validation_fraction", name)
            except (TypeError, ValueError) as error:
                raise type(error)(message(name, "validation_fraction", rule, self.validation_fraction)) from None
            if not 0 < fraction < 1:
                raise ValueError(message(name, "validation_fraction", rule, self.validation_fraction))
        elif self.alphas is None or np.size(self.alphas) > 1:
            rule = "a single number if validation_fraction is None: there is nothing to choose by"
            raise ValueError(message(name, "alphas", rule, self.alphas))
        check_choice(self.solver, "solver", name, _SOLVERS)
        if check_int(self.hidden_layers, "hidden_layers", name, minimum=0):
            if not self.normalize:
                raise ValueError(message(name, "normalize", "True if there are hidden_layers", self.normalize))
            if self.solver == "primal":
                raise ValueError(message(name, "solver", "'auto' or 'dual' if there are hidden_layers", self.solver))
        check_choice(self.gram_dtype, "gram_dtype", name, GRAM_DTYPES)
        for parameter in ("keep_coef", "keep_gram", "warm_start"):
            check_bool(getattr(self, parameter), parameter, name)
