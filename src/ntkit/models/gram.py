"""Ridge regression from a Gram matrix that is added up over independent draws of a feature map."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._batching import with_progress
from ntkit._random import RandomState, seed_sequence
from ntkit._validation import check_bool, check_choice
from ntkit.models._blocks import as_rows
from ntkit.models._calibrate import left_out_log_loss, log_probabilities, temperature
from ntkit.models._checks import check_labels, check_targets, like_rows, winners
from ntkit.models._draws import Draws, check_draws
from ntkit.models._features import check_features
from ntkit.models._gram import Dual
from ntkit.models._gram_model import GRAM_DTYPES, Cross, GramModel


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
    """Kernel matrix of a feature map, as a mean over independent draws of it: Σ_d Z_d(X) Z_d(Y)ᵀ / n_draws.

    Its error is that of one map with `n_draws` times as many features, which need not be held: memory is the matrix
    and the features of one draw.

    Parameters
    ----------
    features : transformer
        A map, or a Pipeline whose last step is one; the steps before it are fitted and applied once.
    X : array, data frame, sparse matrix or torch tensor with rows or images
        What the features are fitted and centred on.
    Y : the same, optional
        Other rows; None: X.
    n_draws : int, default=1
    normalize, center, gram_dtype, product_dtype, batch_size, progress, random_state
        As for :class:`GramRidge`, with draws equal to its draws for equal seeds.

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
    check_choice(gram_dtype, "gram_dtype", name, GRAM_DTYPES)
    draws = Draws(
        features, seed_sequence(random_state, owner=name), normalize=normalize, center=center,
        product_dtype=product_dtype, batch_size=batch_size, owner=name,
    )  # fmt: skip
    draws.check_number(n_draws)
    rows = draws.fit(as_rows(X, "X", name))
    others = None if Y is None else draws.rows(as_rows(Y, "Y", name))
    problem, cross = Dual(gram_dtype), Cross(gram_dtype)
    for number in with_progress(range(n_draws), name if progress else None):
        draw, Z = draws.draw(number, rows)
        if others is None:
            problem.add(Z)
        else:
            cross.add(draws, draw, others, Z)
        del Z  # before the next draw takes its room
    if others is not None:
        return cross.total.T / n_draws
    problem.finish()
    return problem.kernel()


class GramRidge(MultiOutputMixin, RegressorMixin, GramModel):
    """Ridge regression on very many features, from a Gram matrix added up over independent draws of a feature map.

    With D draws Z_1, …, Z_D of m features each, the kernel is

        K(x, y) = (1/D) Σ_d ẑ_d(x)·ẑ_d(y),    ẑ_d(x) = Z_d(x)/‖Z_d(x)‖ − mean of that over the training rows,

    as from one map of D·m features, which are never held together: memory is n² numbers for n rows, and the features of
    one draw. The model f(x) = K(x, ·)a + b with (K + α)a = y − b, Σa = 0 has the weights w_d = Σ_i a_i ẑ_d(x_i)/D of
    features. For up to some 10⁵ rows, where more features are wanted than can be held; for more rows see
    :class:`~ntkit.FeatureRidge`.

    Parameters
    ----------
    features : transformer
        A map, or a Pipeline whose last step is one. The steps before it are fitted and applied to the training rows
        once; the last step is cloned for every draw, with a seed of its own in place of its `random_state` (and of
        those of maps within it). None: the features of :class:`~ntkit.FeatureRidge`, 2048 of them.
    n_draws : int
        Number D of draws. Draw d is the same for any number of draws.
    alphas : float, array of float or None
        Strengths of the penalty to choose from. None: 10⁻⁷, 10^-6.5, …, 10² times the mean of the diagonal of K.
    normalize : bool
        Whether every row of features of a draw is divided by its norm, so that the kernel, before it is centred, has
        the diagonal 1. Norms of kernels on images spread over decades. A row of zeros stays zero.
    center : bool
        Whether features are centred on the training rows and the constant b is fitted, without penalty; if not, b = 0.
    validation_fraction : float or None
        Part of the rows, drawn at random, that is held back while α is chosen; then the model is solved on all rows.
        The path goes from the largest α downwards, and ends where the error rises. None: nothing is held back, and
        there must be one α.
    hidden_layers : int
        Fully connected ReLU layers on top of the features, at infinite width: K ← κ₁(K) for the kernel before it is
        centred, entry by entry and exactly, so many times. For `fit_predict` only, as there are no weights of features
        then; needs `normalize`, and no row may have features that are all zero.
    solver : {"auto", "dual", "primal"}
        "dual": n unknowns, from K. "primal": D·m unknowns, with all features held. "auto" takes the fewer.
    gram_dtype : {"float64", "float32"}
        Precision in which the products of the draws are added up. They are factorized in float64 in either case.
    product_dtype : {"bfloat16", "float32", "float64"} or None
        What normalized and centred features are rounded to before they are multiplied; None: the precision they come
        in. Products of bfloat16 are added up in float32; float32 never becomes TF32. NumPy has no bfloat16.
    keep_coef : bool
        Whether `fit` turns the solution into weights of features, in a second pass over the draws. `predict` needs it.
    keep_gram : bool
        Whether `gram_` is kept.
    warm_start : bool
        Whether a second `fit` on the same rows, with `n_draws` as large or larger and any targets, adds the missing
        draws to the Gram matrix of the first; the result is that of a fit from the start. Only the shape of X is
        checked, and `features` and `random_state` are those of the first fit.
    batch_size : int or None
        Rows mapped at a time; None: 256 MiB of features, more on a GPU.
    progress : bool
        Whether `fit` shows progress bars over the draws.
    random_state : None, int, RandomState or Generator
        Draws the maps and the rows held back.

    Attributes
    ----------
    alpha_ : float
        The α chosen: the largest with an error within 0.1 % of the least.
    alphas_ : ndarray
        The α to choose from, in increasing order.
    errors_ : ndarray
        Mean squared error on the rows held back, summed over targets, for each of `alphas_`; NaN for those not tried.
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
        K of the training rows, in their order, if `keep_gram`; a tensor if the features are one.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    n²m operations per draw, n³/3 for every α tried; n² numbers in `gram_dtype` and n² in float64 for a factor of
    them. Should rounding make K + α indefinite, it is solved for the least of 10α, 100α, … for which it is not, with a
    warning. Samples have no weights here.

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
    >>> predictions = model.fit_predict(X[:500], y[:500], X[500:])  # one pass over the draws
    >>> predictions.shape
    (200,)
    """

    _always_validates = False

    def __init__(
        self,
        features: Any = None,
        n_draws: int = 1,
        *,
        alphas: Any = None,
        normalize: bool = True,
        center: bool = True,
        validation_fraction: float | None = 0.1,
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
        self.center = center
        self.validation_fraction = validation_fraction
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

    def _targets(self, y: Any) -> np.ndarray:
        values = check_targets(y, type(self).__name__)
        self._single = values.ndim == 1
        return values[:, None] if self._single else values

    def _loss(self, targets: np.ndarray, predictions: np.ndarray) -> float:
        return float(((targets - predictions) ** 2).sum(axis=1).mean())

    def predict(self, X: Any) -> Array:
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_targets)
        """
        return self._result(self._scores(X), X)

    def fit_predict(self, X: Any, y: Any, X_new: Any = None) -> Array:
        """Fit, and predict the targets of new rows, in one pass over the draws.

        Their products with the training rows are added up along with those of the training rows, so that no second pass
        is needed. Afterwards the model has no weights to predict other rows with (unless it was solved in the
        primal). With `warm_start` another call with more draws, and the same array `X_new`, adds only what is missing.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,) or (n_samples, n_targets)
        X_new : as X, optional
            None: X itself.

        Returns
        -------
        array of shape (n_new,) or (n_new, n_targets)
        """
        X_new = X if X_new is None else X_new
        return self._result(self._scores_in_one_pass(X, y, X_new), X_new)

    def _result(self, scores: Array, X: Any) -> Array:
        return like_rows(scores[:, 0] if self._single else scores, X)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features."""
        coef = np.concatenate([to_numpy(part) for part in self._of_fit("_coef")])
        return coef[:, 0] if self._single else coef.T

    @property
    def intercept_(self) -> Any:
        """Constant term."""
        constant = to_numpy(self._of_fit("_constant"))
        return float(constant[0]) if self._single else constant


class GramRidgeClassifier(ClassifierMixin, GramModel):
    """Classification by ridge regression on very many features, from a Gram matrix added up over draws of a map.

    The targets are 1 for the class of a row and 0 for the others, minus 1/n_classes; the class with the largest
    prediction wins. See :class:`GramRidge` for everything else.

    Parameters
    ----------
    features, n_draws, alphas, normalize, center, validation_fraction, hidden_layers, solver, gram_dtype, \
product_dtype, keep_coef, keep_gram, warm_start, batch_size, progress, random_state
        As for :class:`GramRidge`. Rows are held back for a single α too: probabilities are calibrated on them.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    errors_ : ndarray
        Log loss of the probabilities on the rows held back, for each of `alphas_`; NaN for those not tried. It is
        smoother than the share of rows misclassified.
    temperature_ : float
        Probabilities are ``softmax(predictions / temperature_)``, which has the smallest log loss on the rows held
        back; None without such rows.
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

    _always_validates = True

    def __init__(
        self,
        features: Any = None,
        n_draws: int = 1,
        *,
        alphas: Any = None,
        normalize: bool = True,
        center: bool = True,
        validation_fraction: float | None = 0.1,
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
        self.center = center
        self.validation_fraction = validation_fraction
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

    def _targets(self, y: Any) -> np.ndarray:
        name = type(self).__name__
        self.classes_, numbers = np.unique(check_labels(y, name), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{name} needs rows of at least two classes. Got one class only: {self.classes_.tolist()[0]!r}."
            )
        return np.eye(len(self.classes_))[numbers] - 1.0 / len(self.classes_)

    def _loss(self, targets: np.ndarray, predictions: np.ndarray) -> float:
        return left_out_log_loss(targets, predictions, np.ones(len(targets)))

    def _calibrate(self, targets: np.ndarray | None, predictions: np.ndarray | None) -> None:
        self.temperature_ = None
        if targets is not None and predictions is not None:
            self.temperature_ = temperature(predictions, targets.argmax(axis=1), np.ones(len(targets)))

    def fit_predict(self, X: Any, y: Any, X_new: Any = None, *, return_scores: bool = False) -> Any:
        """Fit, and predict the classes of new rows, in one pass over the draws; see :meth:`GramRidge.fit_predict`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,)
        X_new : as X, optional
            None: X itself.
        return_scores : bool, default=False
            Whether to return the predictions for the classes too, as :meth:`decision_function` has them.

        Returns
        -------
        array of shape (n_new,), or that and an array of shape (n_new, n_classes), (n_new,) for two classes
        """
        check_bool(return_scores, "return_scores", f"{type(self).__name__}.fit_predict")
        X_new = X if X_new is None else X_new
        scores = self._scores_in_one_pass(X, y, X_new)
        classes = winners(scores, self.classes_, X_new)
        return (classes, self._decisions(scores, X_new)) if return_scores else classes

    def decision_function(self, X: Any) -> Array:
        """Predictions for the classes.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes), or (n_samples,) for two classes: the second's minus the first's
        """
        return self._decisions(self._scores(X), X)

    def predict(self, X: Any) -> Array:
        """Predict the classes of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images

        Returns
        -------
        array of shape (n_samples,)
            A torch tensor if X is one and the classes are numbers.
        """
        return winners(self._scores(X), self.classes_, X)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        scores = self._scores(X)
        if self.temperature_ is None:
            raise ValueError(
                f"This {type(self).__name__} has no probabilities: they are calibrated on rows held back. Fit it with "
                "validation_fraction=0.1."
            )
        return like_rows(log_probabilities(to_numpy(scores), self.temperature_), X)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, calibrated on the rows held back in the fit.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        log_p = self.predict_log_proba(X)
        return _array.namespace(log_p).exp(log_p)

    def _decisions(self, scores: Array, X: Any) -> Array:
        return like_rows(scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores, X)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features."""
        return np.concatenate([to_numpy(part) for part in self._of_fit("_coef")]).T

    @property
    def intercept_(self) -> np.ndarray:
        """Constant terms."""
        return to_numpy(self._of_fit("_constant"))
