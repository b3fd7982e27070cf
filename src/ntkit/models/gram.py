"""Ridge regression from a Gram matrix that is summed over independent draws of a feature map."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import with_progress
from ntkit._random import RandomState, keyed, row_uniforms, seed_sequence
from ntkit._state import Field, Integer, Many, Part
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.models._base import OfFeatures, RidgeClassifier, RidgeRegressor
from ntkit.models._checks import check_weight, n_units, to_library
from ntkit.models._draws import Draw, MapDraws, check_draws
from ntkit.models._features import check_columns, check_features, default_features, take_columns
from ntkit.models._gram import Cross, Gram, Held
from ntkit.models._linalg import zeros
from ntkit.models._problems import DirectProblem, FromGram, from_statistics
from ntkit.models._rows import Digest, as_arrays, as_rows, n_rows_of

_GRAM_DTYPES = ("float32", "float64")
_SOLVERS = ("auto", "dual", "primal")


def gram_matrix(
    features: Any,
    X: Any,
    Y: Any = None,
    *,
    n_draws: int = 1,
    normalize: bool = True,
    center: bool = False,
    gram_dtype: str = "float64",
    product_dtype: str | None = None,
    batch_size: int | None = None,
    progress: bool = False,
    random_state: RandomState = None,
) -> Array:
    """Approximate a kernel matrix by the mean over independent draws of a feature map: Σ_d Z_d(X) Z_d(Y)ᵀ / n_draws.

    The error equals the error of one map with `n_draws` times as many features. These features need not fit in memory:
    only the matrix and the features of one draw do.

    Parameters
    ----------
    features : transformer
        A map, or a Pipeline whose last step is a map; the steps before it are fitted and applied once.
    X : array, data frame, sparse matrix or torch tensor with rows or images
        Rows on which the features are fitted and centred.
    Y : as X, optional
        Other rows; None: X.
    n_draws : int, default=1
    normalize, center, gram_dtype, product_dtype, batch_size, progress, random_state
        As for :class:`GramRidge` (there `center` is ``fit_intercept``); equal seeds give equal draws.

    Returns
    -------
    array of shape (n_rows_X, n_rows_Y)
        In the library and on the device of the features, in `gram_dtype`.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import RandomFourierFeatures
    >>> from ntkit.kernels import gaussian
    >>> from ntkit.models import gram_matrix
    >>> X = np.random.default_rng(0).standard_normal((50, 5))
    >>> K = gram_matrix(RandomFourierFeatures(n_components=256, lengthscale=2.0), X, n_draws=16, random_state=0)
    >>> bool(np.abs(K - gaussian(X, lengthscale=2.0)).max() < 0.1)
    True
    """
    name = "gram_matrix"
    check_features(features, name)
    check_draws(n_draws, normalize, center, product_dtype, batch_size, progress, name)
    check_choice(gram_dtype, "gram_dtype", name, _GRAM_DTYPES)
    draws = MapDraws(
        features, seed_sequence(random_state, owner=name), normalize=normalize, center=center,
        product_dtype=product_dtype, batch_size=batch_size, owner=name,
    )  # fmt: skip
    draws.check_number(n_draws)
    rows = draws.fit(as_rows(X, "X", name))
    others = None if Y is None else draws.rows(as_rows(Y, "Y", name))
    gram, cross = Gram(gram_dtype), Cross(gram_dtype)
    for number in with_progress(range(n_draws), name if progress else None):
        draw, Z = draws.draw(number, rows)
        if others is None:
            gram.add(Z)
        else:
            cross.add(draws, draw, others, Z)
        del Z  # free its memory before the next draw
    if others is not None:
        return cross.total.T / n_draws
    gram.finish()
    return gram.kernel()


class GramModel(OfFeatures):
    """Base class of the models on sums over draws; see :class:`GramRidge`."""

    n_draws_: int
    _draws: MapDraws
    _drawn: list[Draw]  # the draws that predictions need; empty without weights
    _sums: Gram | Held | None = None
    _cross: Cross | None = None
    _digests: tuple[str, str] | None = None

    _old_positions: ClassVar[int] = 2
    _old_names: ClassVar[dict[str, Any]] = {
        "center": "fit_intercept",
        "validation_fraction": ("selection", lambda fraction: "loo" if fraction is None else "holdout"),
    }
    _state: ClassVar[dict[str, Field]] = {
        "n_draws_": Integer(minimum=1),
        "_draws": Part(MapDraws),
        "_drawn": Many(Part(Draw)),
    }
    _transient: ClassVar[tuple[str, ...]] = ("_sums", "_cross", "_digests")

    def __init__(
        self,
        features: Any = None,
        *,
        n_draws: int = 1,
        alphas: Any = None,
        normalize: bool = True,
        fit_intercept: bool = True,
        selection: str = "loo",
        n_selection: int = 1000,
        hidden_layers: int = 0,
        solver: str = "auto",
        gram_dtype: str = "float64",
        product_dtype: str | None = None,
        keep_coef: bool = True,
        keep_gram: bool = False,
        warm_start: bool = False,
        batch_size: int | None = None,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.features = features
        self.n_draws = n_draws
        self.alphas = alphas
        self.normalize = normalize
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.n_selection = n_selection
        self.hidden_layers = hidden_layers
        self.solver = solver
        self.gram_dtype = gram_dtype
        self.product_dtype = product_dtype
        self.keep_coef = keep_coef
        self.keep_gram = keep_gram
        self.warm_start = warm_start
        self.batch_size = batch_size
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Sum the Gram matrix over all draws, solve, and compute the weights of the features in a second pass.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
            Passed to the features unchanged. Everything else is computed in the library and on the device of the
            features.
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        self._check_parameters()
        if self.hidden_layers:
            rule, remedy = "0 for fit, since with hidden layers there are no weights of features", "Call transduce."
            raise ValueError(message(type(self).__name__, "hidden_layers", rule, self.hidden_layers, remedy))
        with self._all_or_nothing():
            rows, sums, _ = self._learn(X, y, sample_weight)
            self._make_weights(rows, sums)
        return self

    def transduce(self, X: Any, y: Any, X_new: Any, sample_weight: Any = None) -> Array:
        """Fit and predict new rows in one pass over the draws.

        Products of the new rows with the training rows are summed together with the products of the training rows, so
        that no second pass is needed. Afterwards the model has no weights to predict other rows (unless it was solved
        in the primal). With `warm_start`, another call with the same `X` and `X_new` computes only the missing draws.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,), or (n_samples, n_targets) for regression
        X_new : as X
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        array of shape (n_new,) or (n_new, n_targets)
            As from :meth:`predict`.
        """
        scores = self._scores_of_new(X, y, X_new, sample_weight)
        return self._targets.decode(scores, X_new)

    def fit_predict(self, X: Any, y: Any, X_new: Any = None, **options: Any) -> Any:
        """Old name of :meth:`transduce`; it will be removed in version 0.3.

        Parameters
        ----------
        X, y, X_new
            As for :meth:`transduce`; without `X_new`, predict X.
        **options
            Further arguments of :meth:`transduce`.

        Returns
        -------
        As :meth:`transduce`.
        """
        text = "fit_predict is now transduce(X, y, X_new); the old name will be removed in version 0.3."
        warnings.warn(text, FutureWarning, stacklevel=2)
        return self.transduce(X, y, X if X_new is None else X_new, **options)

    def _scores_of_new(self, X: Any, y: Any, X_new: Any, sample_weight: Any) -> Array:
        with self._all_or_nothing():
            if _array.is_dask(X_new):
                raise TypeError(message(f"{type(self).__name__}.transduce", "X_new", "rows in memory", X_new))
            rows, sums, cross = self._learn(X, y, sample_weight, X_new)
            if isinstance(sums, Held):
                self._make_weights(rows, sums, keep=True)
                scores = self._scores(X_new)
                if not self.keep_coef:
                    self._forget_weights()
            else:
                assert cross is not None
                scores = cross.scores(self._solution, sums, self.hidden_layers)
                self._forget_weights()
        return scores

    def _learn(self, X: Any, y: Any, sample_weight: Any, X_new: Any = None) -> tuple[Any, Gram | Held, Cross | None]:
        """Solve; return the rows after the steps before the map, the sums of all draws, and products with new rows."""
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
        weight = check_weight(sample_weight, source.n_rows, name)
        if not weight.any():
            raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
        self._targets = self._codec()
        Y = self._targets.encode(source.y, name)
        self._targets.ready(name)
        digests = (_digest(source.X, weight), _digest(X_new)) if self.warm_start else None
        sums, cross = self._sums, None if X_new is None else self._cross
        goes_on = self.warm_start and sums is not None and sums.complete and self._digests is not None
        if goes_on and X_new is not None:
            goes_on = cross is not None and self._digests[1] == digests[1]  # type: ignore[index]
        if goes_on and self.hidden_layers:
            goes_on = not self._draws.zeros  # else earlier draws were not checked for features that are all zero
        if goes_on:
            rows, sums = self._go_on(source.X, sums, digests)
        else:
            rows, sums, cross = self._begin(source.X, None if sample_weight is None else weight), None, None
        if X_new is not None:
            cross = cross or Cross(self.gram_dtype)
        sums = self._add_draws(sums, cross, rows, None if X_new is None else self._rows(X_new))
        self.n_draws_, self._centred = sums.n_draws, self.fit_intercept
        self._solve_sums(sums, Y - self._targets.shift, weight)
        self._sums = sums if self.warm_start or self.keep_gram else None
        self._cross = cross if self.warm_start and isinstance(sums, Gram) else None
        self._digests = digests
        return rows, sums, cross

    def _begin(self, X: Any, weight: np.ndarray | None) -> Any:
        """Fit the steps before the map and return the transformed rows."""
        name = type(self).__name__
        self._seed = seed_sequence(self.random_state, owner=name)
        self._draws = MapDraws(
            default_features(X, name) if self.features is None else self.features, self._seed,
            normalize=self.normalize, center=self.fit_intercept, product_dtype=self.product_dtype,
            batch_size=self.batch_size, owner=name, zeros=not self.hidden_layers,
        )  # fmt: skip
        self._draws.check_number(self.n_draws)
        rows = self._draws.fit(X, weight)
        self._drawn = []
        take_columns(self, X)
        return rows

    def _go_on(self, X: Any, sums: Any, digests: Any) -> tuple[Any, Gram | Held]:
        """Check that earlier draws can be continued; return the transformed rows and the sums so far."""
        name, remedy = type(self).__name__, "Set warm_start=False to start again."
        if self._digests is None or digests[0] != self._digests[0]:
            rule = "the rows of the previous fit, with the same weights, if warm_start=True"
            raise ValueError(message(name, "X", rule, X, remedy))
        if self.n_draws < sums.n_draws:
            rule = f"an int ≥ {sums.n_draws}, the number of draws so far, if warm_start=True"
            raise ValueError(message(name, "n_draws", rule, self.n_draws, remedy))
        changed = (self.normalize, self.fit_intercept, self.product_dtype) != self._draws.settings
        if changed or (isinstance(sums, Gram) and (self.solver == "primal" or self.gram_dtype != sums.dtype)):
            raise ValueError(
                f"With warm_start=True, normalize, fit_intercept, product_dtype, gram_dtype and a dual solver of "
                f"{name} must not be changed. {remedy}"
            )
        self._draws.check_number(self.n_draws)
        self._draws.batch_size, self._drawn = self.batch_size, list(self._drawn)
        self._draws.zeros = not self.hidden_layers
        if isinstance(sums, Held) and self._is_dual(sums.draws[0]):
            return self._draws.rows(X), sums.as_gram(self.gram_dtype)
        return self._draws.rows(X), sums

    def _is_dual(self, Z: Array) -> bool:
        """Whether to solve for weights of rows; Z holds the features of a draw."""
        more_features = self.n_draws * Z.shape[1] > Z.shape[0]
        return self.solver == "dual" or self.hidden_layers > 0 or (self.solver == "auto" and more_features)

    def _add_draws(self, sums: Any, cross: Cross | None, rows: Any, new: Any) -> Gram | Held:
        """Add the missing draws to the sums, and to the products with new rows."""
        start = 0 if sums is None else sums.n_draws
        keeps = len(self._drawn) == start
        if sums is not None:
            sums.complete = False  # after an interrupt, no later call may continue from these sums
        for index in with_progress(range(start, self.n_draws), type(self).__name__ if self.progress else None):
            draw, Z = self._draws.draw(index, rows)
            if sums is None:
                sums = Gram(self.gram_dtype) if self._is_dual(Z) else Held()
            if cross is not None and isinstance(sums, Gram):
                cross.add(self._draws, draw, new, Z)
            elif keeps and (self.keep_coef or new is not None):
                self._drawn.append(draw)
            sums.add(Z)
            del Z  # free its memory before the next draw
        sums.finish()
        return sums

    def _solve_sums(self, sums: Gram | Held, Y: np.ndarray, weight: np.ndarray) -> None:
        """Choose α and solve: for weights of rows from a Gram matrix, else for weights of features."""
        keys = row_uniforms(keyed(self._seed, "sample"), 0, len(Y))[:, 0]
        keys[weight == 0] = np.inf
        selection = self._leaves_out
        problem: DirectProblem
        if isinstance(sums, Held):
            statistics = sums.statistics(Y, weight, keys, selection.size)
            problem = from_statistics(
                statistics, selection, intercept=self.fit_intercept, several=self._several
            )  # fmt: skip
        else:
            top = sums.with_layers(self.hidden_layers) if self.hidden_layers else sums
            right, rows_weight = (to_library(values, top.total) for values in (Y, weight))
            problem = FromGram(
                top.total, right, rows_weight, keys, selection, intercept=self.fit_intercept, divisor=top.n_draws,
                several=self._several,
            )  # fmt: skip
        self._solution = self._choose(problem, weight.sum() / n_units(weight))

    def _make_weights(self, rows: Any, sums: Gram | Held, *, keep: bool = False) -> None:
        """Convert the solution to weights of the features of all draws."""
        if not (self.keep_coef or keep):
            self._forget_weights()
            return
        solution = self._solution
        xp: Any = _array.namespace(solution.coef)
        for index in range(len(self._drawn), sums.n_draws):  # repeat draws that an earlier fit did not keep
            self._drawn.append(self._draws.draw(index, rows)[0])
        if isinstance(sums, Held):
            solution.coef = solution.coef / sums.n_draws**0.5
            return
        coef = []
        name = f"{type(self).__name__}: weights" if self.progress else None
        for index in with_progress(range(sums.n_draws), name):
            parts = [
                xp.matmul(xp.astype(Z, xp.float64).T, to_library(solution.coef, Z)[part])
                for part, Z in self._draws.blocks(self._drawn[index], rows)
            ]
            coef.append(sum(parts[1:], start=parts[0]) / sums.n_draws)
        solution.coef = xp.concat(coef)

    def _forget_weights(self) -> None:
        self._drawn, self._solution.coef = [], self._solution.coef[:0]

    def _check_weights(self) -> None:
        if not self._drawn:
            raise ValueError(
                f"This {type(self).__name__} has no weights to predict with: it was fitted by transduce or with "
                "keep_coef=False. Call fit with keep_coef=True."
            )

    def _scores(self, X: Any) -> Array:
        """Return predictions in float64, of shape (n, k), block by block for every draw."""
        check_is_fitted(self)
        self._check_weights()
        rows, solution, start = self._rows(X), self._solution, 0
        self._draws.batch_size = self.batch_size
        total: Array = None
        for draw in self._drawn:
            for part, Z in self._draws.blocks(draw, rows):
                xp: Any = _array.namespace(Z)
                if total is None:
                    shape = n_rows_of(rows), solution.coef.shape[1]
                    total = zeros(shape, "float64", Z) + to_library(solution.intercept, Z)
                coef = to_library(solution.coef, Z)[start : start + Z.shape[1]]
                total[part] += xp.matmul(xp.astype(Z, xp.float64), coef)
            start += Z.shape[1]
        return total

    def _spread(self, X: Any) -> Array:  # noqa: ARG002
        return self._factorize()  # raises: the draws of the fit are not kept

    def _rows(self, X: Any) -> Any:
        """Apply the steps before the map to new rows."""
        X = as_rows(X, "X", type(self).__name__)
        check_columns(self, X)
        return self._draws.rows(X)

    def _read(self, name: str) -> Any:
        value = super()._read(name)
        if name == "coef" and not self._drawn:
            raise AttributeError(f"This {type(self).__name__} has no weights of features. Fit it with keep_coef=True.")
        return value

    @property
    def preprocessor_(self) -> Any:
        """The fitted steps before the map."""
        return self._of_fit("_draws").before

    @property
    def maps_(self) -> list[Any]:
        """The fitted maps."""
        return [draw.map for draw in self._of_fit("_drawn")]

    @property
    def gram_(self) -> Array:
        """The kernel matrix of the rows."""
        sums = self._of_fit("_sums")
        if not self.keep_gram or not sums.complete:
            raise AttributeError(f"This {type(self).__name__} has no 'gram_'. Fit it with keep_gram=True.")
        return sums.kernel()

    def _of_fit(self, name: str) -> Any:
        value = vars(self).get(name)
        if value is None:
            hint = ". Fit it with keep_gram=True" if name == "_sums" else " before fit"
            raise AttributeError(f"This {type(self).__name__} has no such attribute{hint}.")
        return value

    def _file_state(self) -> dict[str, Any]:
        self._check_weights()  # without weights there is nothing to save
        return super()._file_state()

    def _check_state(self, limit: int) -> None:
        super()._check_state(limit)
        self._check_weights()

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.features is not None:
            check_features(self.features, name)
        self._check_common()
        check_draws(
            self.n_draws, self.normalize, self.fit_intercept, self.product_dtype, self.batch_size, self.progress, name
        )
        check_choice(self.solver, "solver", name, _SOLVERS)
        if check_int(self.hidden_layers, "hidden_layers", name, minimum=0):
            if not self.normalize:
                raise ValueError(message(name, "normalize", "True if hidden_layers > 0", self.normalize))
            if self.solver == "primal":
                raise ValueError(message(name, "solver", "'auto' or 'dual' if hidden_layers > 0", self.solver))
        check_choice(self.gram_dtype, "gram_dtype", name, _GRAM_DTYPES)
        for parameter in ("keep_coef", "keep_gram", "warm_start"):
            check_bool(getattr(self, parameter), parameter, name)


class GramRidge(GramModel, RidgeRegressor):
    """Ridge regression on very many features, from a Gram matrix summed over independent draws of a feature map.

    With D draws Z_1, …, Z_D of m features each, the kernel is

        K(x, y) = (1/D) Σ_d ẑ_d(x)·ẑ_d(y),    ẑ_d(x) = Z_d(x)/‖Z_d(x)‖ − its mean over the training rows.

    This is the kernel of one map with D·m features, but they are never in memory together: for n rows, the model needs
    n² numbers and the features of one draw. The model f(x) = K(x, ·)a + b with (K + α)a = y − b, Σa = 0 has the weights
    w_d = Σ_i a_i ẑ_d(x_i)/D of the features. Use it for up to about 10⁵ rows, when the features do not fit in memory.
    For more rows see :class:`~ntkit.FeatureRidge`.

    Parameters
    ----------
    features : transformer
        A map, or a Pipeline whose last step is a map. The steps before it are fitted and applied to the training rows
        once. The last step is cloned for every draw; the clone and all maps within it get new seeds in place of their
        `random_state`. None: ``ArcsinhScaler()``, then ``NTKFeatures(depth=1, bias="auto")`` with 2048 components.
    n_draws : int
        Number D of draws. Draw d does not depend on the number of draws.
    alphas : float, array of float or None
        Candidate strengths of the penalty. None: 10⁻⁷, 10^-6.5, …, 10² times the mean of the diagonal of K, and
        smaller values while the error falls.
    normalize : bool
        Whether every row of features of a draw is divided by its norm, so that the kernel, before it is centred, has
        the diagonal 1. Norms of kernels on images vary by orders of magnitude. A row of zeros stays zero.
    fit_intercept : bool
        Whether features are centred on the training rows and the intercept b is fitted, without penalty; if not, b = 0.
    selection, n_selection
        How the error of each α is estimated, as for :class:`FeatureRidge`.
    hidden_layers : int
        Number of fully connected ReLU layers on top of the features, at infinite width. Each layer replaces K, before
        it is centred, by κ₁(K), entry by entry and exactly. Only `transduce` supports it, because such a model has no
        weights of features. It needs `normalize`, and no row may have features that are all zero.
    solver : {"auto", "dual", "primal"}
        "dual": n unknowns, from K. "primal": D·m unknowns, with all features in memory. "auto" chooses the smaller
        problem.
    gram_dtype : {"float64", "float32"}
        Precision in which the products of the draws are summed. Factorizations are always in float64.
    product_dtype : {"bfloat16", "float32", "float64"} or None
        Normalized and centred features are rounded to this dtype before they are multiplied; None keeps the dtype of
        the map. Products of bfloat16 are summed in float32; float32 never becomes TF32. NumPy has no bfloat16.
    keep_coef : bool
        Whether `fit` computes the weights of the features in a second pass over the draws. `predict` needs them.
    keep_gram : bool
        Whether `gram_` is kept.
    warm_start : bool
        Whether a second `fit` on the same rows, with any targets and at least as many draws, only adds the missing
        draws to the Gram matrix of the first fit. The result equals a fit from scratch. Other rows or weights raise an
        error; changes of `features` and `random_state` have no effect.
    batch_size : int or None
        Rows per batch; None: 256 MiB of features, more on a GPU.
    progress : bool
        Whether `fit` shows progress bars over the draws.
    random_state : None, int, RandomState or Generator
        Draws the maps and the held-out rows.

    Attributes
    ----------
    alpha_ : float
        The chosen α: the largest with an error within 0.1 % of the smallest error.
    alphas_ : ndarray
        The candidate values of α, in increasing order.
    errors_ : ndarray
        Mean squared error on held-out rows, summed over targets, for each of `alphas_`; NaN if it was not tried.
    coef_ : ndarray of shape (D·m,) or (n_targets, D·m)
        Weights w_d of the normalized and centred features, draw after draw.
    intercept_ : float or ndarray of shape (n_targets,)
        b.
    n_draws_ : int
        Number of draws in the model.
    maps_ : list of transformers
        The fitted map of every draw; empty without weights.
    preprocessor_ : Pipeline
        The fitted steps before the map, if any.
    gram_ : array of shape (n_samples, n_samples)
        K of the training rows, in their order, if `keep_gram`; a tensor if the features are tensors. Pickles do not
        contain it.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Time: n²m operations per draw, and n³/3 for every α tried. Memory: n² numbers in `gram_dtype`, and n² in float64 for
    a factorization. If rounding makes K + α indefinite, an eigendecomposition separates rounding errors from the rest.
    With more than 4096 rows, the model is solved instead, with a warning, for the smallest of 10α, 100α, … for which
    the matrix is not indefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import RandomFourierFeatures
    >>> from ntkit.models import GramRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (700, 3))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(700)
    >>> model = GramRidge(RandomFourierFeatures(n_components=256), n_draws=8, random_state=0).fit(X[:500], y[:500])
    >>> bool(model.score(X[500:], y[500:]) > 0.97)
    True
    >>> predictions = model.transduce(X[:500], y[:500], X[500:])  # one pass over the draws
    >>> predictions.shape
    (200,)
    """


class GramRidgeClassifier(GramModel, RidgeClassifier):
    """Classification by ridge regression on very many features, from a Gram matrix summed over draws of a map.

    The targets are 1 for the class of a row and 0 for the others, minus 1/n_classes. Probabilities are calibrated on
    held-out rows, and `predict` returns the most probable class. See :class:`GramRidge` for everything else.

    Parameters
    ----------
    features, n_draws, alphas, normalize, fit_intercept, selection, n_selection, hidden_layers, solver, gram_dtype, \
product_dtype, keep_coef, keep_gram, warm_start, batch_size, progress, random_state
        As for :class:`GramRidge`. Rows are held out for a single α too, to calibrate the probabilities.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    errors_ : ndarray
        Log loss of the probabilities on held-out rows, for each of `alphas_`; NaN if it was not tried. It is smoother
        than the misclassification rate.
    temperature_ : float
        Temperature of the calibration, fitted on the held-out rows: scores are divided by it.
    coef_ : ndarray of shape (n_classes, D·m)
    intercept_ : ndarray of shape (n_classes,)
    alpha_, alphas_, n_draws_, maps_, preprocessor_, gram_, n_features_in_, feature_names_in_
        As for :class:`GramRidge`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from ntkit import NTKFeatures
    >>> from ntkit.models import GramRidgeClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = GramRidgeClassifier(NTKFeatures(depth=2, n_components=512), n_draws=4, random_state=0)
    >>> bool(model.fit(X[:1000], y[:1000]).score(X[1500:], y[1500:]) > 0.9)
    True
    >>> model.predict_proba(X[1500:]).shape
    (297, 10)
    """

    def transduce(self, X: Any, y: Any, X_new: Any, sample_weight: Any = None, *, return_scores: bool = False) -> Any:
        """Fit and predict the classes of new rows in one pass over the draws; see :meth:`GramRidge.transduce`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,)
        X_new : as X
        sample_weight : array of shape (n_samples,), optional
        return_scores : bool, default=False
            Whether to return the log-odds of the classes too, as from :meth:`decision_function`.

        Returns
        -------
        array of shape (n_new,); with `return_scores` also one of shape (n_new, n_classes), or (n_new,) for two classes
        """
        check_bool(return_scores, "return_scores", f"{type(self).__name__}.transduce")
        scores = self._scores_of_new(X, y, X_new, sample_weight)
        classes = self._targets.decode(scores, X_new)
        return (classes, self._decisions(scores, X_new)) if return_scores else classes


def _digest(*values: Any) -> str:
    digest = Digest()
    digest.add(*values)
    return digest.text()
