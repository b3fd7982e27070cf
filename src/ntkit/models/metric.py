"""A metric learned from rows and targets."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, as_floating, check_rows
from ntkit._random import RandomState, generator, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Floats, Integer, Optional, Real, Seed, Text
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.kernels import KernelSpec
from ntkit.models._checks import check_weight
from ntkit.models._metric import (
    ADDITIVE_SCALE,
    FEWEST_ROWS,
    MATERN,
    MOST_COLUMNS,
    Finalist,
    Kernel,
    Learned,
    Learner,
    Sizes,
)
from ntkit.models._rows import as_arrays, take_rows
from ntkit.models._targets import ClassTargets, RealTargets
from ntkit.networks import UnsupportedError
from ntkit.preprocessing import PiecewiseLinearEncoder

_METRICS = ("auto", "diagonal", "full")
_FEW_CLASSES = 20  # distinct whole numbers up to which targets are taken for classes
_RESOLUTION = 0.005  # errors of indicators of classes, over their variance, that are as good as 0: all rows are right
_MOST_KNOTS, _MOST_RAMPS = 14, 512  # of a column; of all columns, fewer knots are taken where they would be more
_MOST_NUMBERS = 2**27  # of a dense sample of sparse rows, 512 MiB


class LearnedMetric(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Rows scaled and turned so that distances count what the targets depend on.

        transform(x) = M (x − c),

    with M chosen such that kernel ridge regression with k(Mx, My), ``k = kernel_`` of length scale 1, predicts held-out
    rows well. M is learned in rounds [1]_, [2]_: fit a function f; compute the average outer product of its gradients,
    A = (1/n) Σ ∇f(x_i) ∇f(x_i)ᵀ; take M² ∝ A, or its diagonal; fit again. Columns and directions in which f does not
    change no longer tell rows apart.

    Any map or model can follow. :class:`AdaptiveFeatures` follows with Nyström features of the kernel found.

    Parameters
    ----------
    kernel : str
        "auto": the best of the product Laplace kernel exp(−‖x − y‖₁), a Matérn kernel (ν = 3/2) and the Gaussian
        kernel. Or the name of a kernel that has gradients: "gaussian", "laplace", "matern", "exponential", "ntk",
        "nngp", "polynomial"; see :class:`ntkit.kernels.KernelSpec`.
    metric : {"auto", "diagonal", "full"}
        "diagonal": a weight for each column. "full": a symmetric matrix, which also finds directions. "auto": both are
        compared, the second for up to 256 columns.
    kernel_params : dict or None
        Parameters of a kernel with a name, but for its length scale, such as ``{"nu": 2.5}`` or ``{"norm": "l1"}``;
        "ntk" and "nngp" have the depth 1 unless they say otherwise.
    max_rounds : int
        Most rounds for each kernel; a kernel's rounds end after two in which the error on held-out rows falls by
        less than 0.5 %.
    max_samples : int
        Most rows that `fit` looks at, drawn at random.
    progress : bool
        Whether to show a progress bar.
    random_state : None, int, RandomState or Generator
        Draws rows to look at, rows to hold out, and landmarks.

    Attributes
    ----------
    metric_ : ndarray of shape (n_features,) or (n_features, n_features)
        M, of the diagonal its entries; the length scale of the kernel is in it.
    center_ : ndarray of shape (n_features,)
        c, means of the columns; zeros for sparse rows.
    kernel_, kernel_params_ : str, dict
        The kernel found.
    feature_importances_ : ndarray of shape (n_features,)
        Share of each column in the changes of f: E(∂f/∂x_i)² Var(x_i), scaled to the sum 1.
    sensitivities_ : ndarray of shape (n_features,)
        √E(∂f/∂x_i)²: how much the (standardized) target changes with a column, in units of the column.
    alpha_ : float
        Penalty of the best fit, for features of unit norm.
    error_ : float
        Mean squared error of the best fit on held-out rows, as a share of the variance of the targets.
    gain_ : float
        This error over the error with half as many landmarks, as a measure of what more landmarks would bring.
    additive_ : PiecewiseLinearEncoder or None
        Features of single columns that lower the error on held-out rows when they are added to the kernel's features;
        None if they do not.
    results_ : list of dict
        All fits: "kernel", "metric", "round", "lengthscale" (over the median distance), "additive", "alpha", "error",
        "seconds".
    n_samples_used_ : int
        Rows looked at; fewer than there were if there were more than `max_samples`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Fits are ridge regressions on Nyström features of at most 9000 rows with 1024 landmarks, so that the time does not
    grow with the rows: about 1 to 10 s on two cores. A fifth of these rows is held out, for few rows three times.
    Targets that are text, bools, or whole numbers with at most 20 different values are classes, and the functions are
    fitted to their indicators.

    References
    ----------
    .. [1] Radhakrishnan, Beaglehole, Pandit, Belkin, "Mechanism for feature learning in neural networks and
       backpropagation-free machine learning models", Science 383, 2024, arXiv:2212.13881.
    .. [2] Beaglehole, Holzmüller, Radhakrishnan, Belkin, "xRFM: Accurate, scalable, and interpretable feature learning
       models for tabular data", 2025, arXiv:2508.10053.

    Examples
    --------
    >>> import numpy as np
    >>> from ntkit import LearnedMetric
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((600, 6))
    >>> y = np.sin(2 * X[:, 1]) + 0.1 * rng.standard_normal(600)
    >>> metric = LearnedMetric(kernel="gaussian", metric="diagonal", random_state=0).fit(X, y)
    >>> int(metric.feature_importances_.argmax()), bool(metric.feature_importances_[1] > 0.9)
    (1, True)
    """

    learns_from_targets: ClassVar[bool] = True
    _transient: ClassVar[tuple[str, ...]] = ("_alternatives",)
    _state: ClassVar[dict[str, Field]] = {
        **COLUMNS,
        "_seed": Seed(),
        "metric_": Floats("n_features_in_", ...),
        "center_": Floats("n_features_in_"),
        "kernel_": Text(),
        "kernel_params_": Field(),
        "feature_importances_": Floats("n_features_in_", minimum=0.0),
        "sensitivities_": Floats("n_features_in_", minimum=0.0),
        "alpha_": Real(minimum=0.0),
        "error_": Real(minimum=0.0),
        "gain_": Real(minimum=0.0),
        "additive_": Optional(Estimator(("transform",))),
        "results_": Field(),
        "n_samples_used_": Integer(1),
        "_n_features_out": Integer(1),
    }

    def __init__(
        self,
        *,
        kernel: str = "auto",
        metric: str = "auto",
        kernel_params: dict[str, Any] | None = None,
        max_rounds: int = 5,
        max_samples: int = 20_000,
        progress: bool = False,
        random_state: RandomState = None,
    ):
        self.kernel = kernel
        self.metric = metric
        self.kernel_params = kernel_params
        self.max_rounds = max_rounds
        self.max_samples = max_samples
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the metric.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Real targets or classes.
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            kernel = self._check_parameters()
            name = type(self).__name__
            if y is None:
                raise ValueError(f"{name} requires y to be passed, but the target y is None.")
            self._seed = seed_sequence(self.random_state, owner=name)
            if _array.is_dask(X):
                from ntkit.distributed import DaskSource

                X, y, sample_weight, _ = DaskSource(X, y, sample_weight, name).sample(self.max_samples, self._seed)
            rows = as_floating(check_rows(self, X, reset=True, sparse=True))
            source = as_arrays(rows, y, sample_weight, name)
            self._learn(*self._sample(source.X, source.y, source.weight), kernel, sparse=_array.is_sparse(rows))
        return self

    def _sample(self, X: Any, y: Any, weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some rows as a dense array, their targets as a matrix, their weights."""
        name = type(self).__name__
        weight = check_weight(weight, int(X.shape[0]), name)
        if not weight.any():
            raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
        Y = encode_targets(y, name)
        most = self.max_samples
        if _array.is_sparse(X):
            most = min(most, max(_MOST_NUMBERS // X.shape[1], FEWEST_ROWS))
        chosen = np.flatnonzero(weight)
        if len(chosen) > most:
            chosen = np.sort(generator(self._seed, "rows").permutation(chosen)[:most])
        rows = take_rows(X, chosen) if len(chosen) < X.shape[0] else X
        if _array.is_sparse(rows):
            rows = rows.toarray()
        elif _array.is_torch(rows):
            rows = rows.detach().cpu().double().numpy()
        return np.asarray(rows, dtype=np.float64), Y[chosen], weight[chosen]

    def _learn(self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, kernel: Kernel | None, *, sparse: bool) -> None:
        n, d = X.shape
        mean = np.average(X, axis=0, weights=weight)
        with np.errstate(over="ignore"):
            deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
        if not np.isfinite(deviation).all():
            rule = "small enough for squares of its columns to be finite"
            raise ValueError(message(type(self).__name__, "X", rule, X, "Scale its columns."))
        scale = np.where(deviation > 1e-12 * np.abs(mean), deviation, 0.0)
        unit = 1 / np.where(scale > 0, scale, 1.0)
        targets, spread, indicators = _standardized(Y, weight)
        rows = ((X - mean) * unit).astype(np.float32)
        encoder = None if sparse or (kernel and not kernel.is_distance) else _encoder(X)
        if n >= FEWEST_ROWS and spread > 0 and scale.any():
            resolution = _RESOLUTION * spread if indicators else 0.0
            ramps = None if encoder is None else (ADDITIVE_SCALE * encoder.transform(X)).astype(np.float32)
            learned = self._compare(rows, targets, weight / weight.mean(), kernel, resolution, ramps)
            self.results_ = [_record(trial, spread) for trial in learned.trials]
            found = [self._found(each, spread, encoder) for each in learned.finalists]
        else:  # nothing to learn from: all columns alike, at a length scale of about the median distance
            kernel = kernel or MATERN
            M = np.full(d, (2.0 * max(int(np.count_nonzero(scale)), 1)) ** -0.5)
            nothing = {"alpha_": 1.0, "error_": 1.0, "gain_": 1.0, "additive_": None}
            self.results_ = []
            found = [nothing | _of_kernel(kernel, M, np.diag((scale > 0).astype(np.float64)))]
        self.center_ = np.zeros(d) if sparse else mean
        self.n_samples_used_, self._n_features_out = n, d
        self._alternatives = [self._in_units(each, unit, scale > 0) for each in found]
        self.__dict__.update(self._alternatives[0])

    @staticmethod
    def _found(finalist: Finalist, spread: float, encoder: PiecewiseLinearEncoder | None) -> dict[str, Any]:
        """Attributes of a fit, for standardized columns."""
        trial = finalist.trial
        return {
            "alpha_": trial.alpha,
            "error_": trial.error / spread,
            "gain_": trial.gain,
            "additive_": encoder if trial.additive else None,
            **_of_kernel(trial.kernel, trial.metric / trial.length, finalist.outer_products),
        }

    @staticmethod
    def _in_units(found: dict[str, Any], unit: np.ndarray, varies: np.ndarray) -> dict[str, Any]:
        """These attributes for columns in their own units."""
        M, slopes = found["metric_"], np.sqrt(np.maximum(np.diagonal(found.pop("outer_products")), 0.0)) * varies
        total = float((slopes**2).sum())
        return found | {
            "metric_": unit[:, None] * M if M.ndim == 2 else unit * M,
            "sensitivities_": slopes * unit,
            "feature_importances_": slopes**2 / total if total > 0 else np.full(len(unit), 1 / len(unit)),
        }

    def alternatives(self) -> dict[str, LearnedMetric]:
        """The best metric of each kernel and kind of metric that were compared at the end of `fit`.

        Returns
        -------
        dict from names such as "matern diagonal" to fitted LearnedMetrics
            The best one, which is this one, comes first. Alone, after a pickle or a file.
        """
        check_is_fitted(self)
        found = {}
        for values in self.__dict__.get("_alternatives") or [{}]:
            other = copy(self)
            other.__dict__.update(values)
            other.__dict__.pop("_alternatives", None)
            norm = {"l1": " l1"}.get(other.kernel_params_.get("norm", ""), "")
            found[f"{other.kernel_}{norm} {'full' if other.metric_.ndim == 2 else 'diagonal'}"] = other
        return found

    def _compare(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        kernel: Kernel | None,
        resolution: float,
        ramps: np.ndarray | None,
    ) -> Learned:
        from tqdm.auto import tqdm

        with tqdm(desc=type(self).__name__, unit=" fits", disable=not self.progress) as bar:

            def tick(label: str) -> None:
                bar.set_postfix_str(label, refresh=False)
                bar.update()

            learner = Learner(
                X, Y, weight, generator(self._seed, "fits"), kernel=kernel, metric=self.metric,
                most_rounds=self.max_rounds, sizes=Sizes(), resolution=resolution, tick=tick, ramps=ramps,
            )  # fmt: skip
            try:
                return learner.learn()
            except UnsupportedError as error:
                rule = "'auto', or the name of a kernel whose gradient is known, such as 'matern'"
                raise ValueError(message(type(self).__name__, "kernel", rule, self.kernel)) from error

    def transform(self, X: Any) -> Any:
        """Scale and turn rows.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_features)
            Of the library, device and precision of X. Sparse rows stay sparse with a diagonal metric. Tensors that
            require gradients keep them.
        """
        check_is_fitted(self)
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            return map_rows(self.transform, X, n_columns=self._n_features_out)
        rows = as_floating(check_rows(self, X, reset=False, sparse=True))
        if _array.is_sparse(rows):
            M = self.metric_.astype(rows.dtype)
            return rows @ M if M.ndim == 2 else rows.multiply(M[None, :]).tocsr()
        if _array.is_torch(rows) and not rows.is_floating_point():
            rows = _array.widen(rows)
        M, center = (_array.constant(values, rows) for values in (self.metric_, self.center_))
        return (rows - center) @ M if self.metric_.ndim == 2 else (rows - center) * M

    def expression(self, X: Array) -> Array:
        """Scaled and turned rows as one expression of array operations, without checks.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        M, center = (_array.constant(values, X) for values in (self.metric_, self.center_))
        return (X - center) @ M if self.metric_.ndim == 2 else (X - center) * M

    def _check_parameters(self) -> Kernel | None:
        """Check them; return the kernel that they name, None for "auto"."""
        name = type(self).__name__
        check_choice(self.metric, "metric", name, _METRICS)
        check_int(self.max_rounds, "max_rounds", name, minimum=0)
        check_int(self.max_samples, "max_samples", name, minimum=1)
        check_bool(self.progress, "progress", name)
        if self.kernel_params is not None and not isinstance(self.kernel_params, dict):
            raise TypeError(message(name, "kernel_params", "a dict or None", self.kernel_params))
        if self.kernel == "auto":
            if self.kernel_params:
                raise ValueError(message(name, "kernel_params", "None for kernel='auto'", self.kernel_params))
            return None
        if not isinstance(self.kernel, str):
            raise TypeError(message(name, "kernel", "'auto' or the name of a kernel", self.kernel))
        check_choice(self.kernel, "kernel", name, ("auto", *KernelSpec.names()))
        if self.kernel == "cntk":
            raise ValueError(message(name, "kernel", "a kernel of rows, not of images", self.kernel))
        params = dict(self.kernel_params or {})
        if "depth" in KernelSpec.parameters(self.kernel):
            params.setdefault("depth", 1)
        if "lengthscale" in params:
            rule = "without 'lengthscale', which is learned"
            raise ValueError(message(name, "kernel_params", rule, self.kernel_params))
        KernelSpec.of(self.kernel, **params)  # raises if they do not fit
        return Kernel(self.kernel, tuple(params.items()))

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        self._check_parameters()
        if self.metric_.shape not in ((self.n_features_in_,), (self.n_features_in_,) * 2):
            raise ValueError(f"the metric must be of {self.n_features_in_} columns")
        if not isinstance(self.kernel_params_, dict) or self.kernel_ not in KernelSpec.names():
            raise ValueError("the kernel of the metric must have a name and a dict of parameters")
        KernelSpec.of(self.kernel_, **self.kernel_params_)
        if self._n_features_out != self.n_features_in_:
            raise ValueError("there must be as many features as columns")
        if self.additive_ is not None and (
            not isinstance(self.additive_, PiecewiseLinearEncoder)
            or self.additive_.n_features_in_ != self.n_features_in_
        ):
            raise ValueError("additive features must be a PiecewiseLinearEncoder of the same columns")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.sparse = True
        return tags


def encode_targets(y: Any, owner: str) -> np.ndarray:
    """Targets as columns: real ones as they are, classes as indicators."""
    values = np.asarray(_array.to_numpy(y)) if not hasattr(y, "iloc") else y.to_numpy()
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        kind = values.dtype.kind
        if kind not in "f" and (kind not in "iu" or len(np.unique(values)) <= _FEW_CLASSES):
            try:
                return ClassTargets().encode(values.reshape(-1), owner)
            except TypeError:
                pass  # objects that are numbers
    return RealTargets().encode(y, owner)


def _of_kernel(kernel: Kernel, metric: np.ndarray, outer_products: np.ndarray) -> dict[str, Any]:
    return {
        "metric_": metric, "kernel_": kernel.name, "kernel_params_": kernel.params, "outer_products": outer_products
    }  # fmt: skip


def _encoder(X: np.ndarray) -> PiecewiseLinearEncoder | None:
    """Ramps of the columns, with as many knots as keep them few; None if there are too many columns or no values."""
    distinct = np.array([len(np.unique(column)) for column in X.T]) if X.shape[1] <= MOST_COLUMNS else np.array([])
    for n_knots in range(_MOST_KNOTS, 1, -1):
        if 0 < (np.minimum(distinct, n_knots) - 1).sum() <= _MOST_RAMPS:
            return PiecewiseLinearEncoder(n_knots=n_knots).fit(X)
    return None


def _standardized(Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Columns of mean 0 and variance 1, indicators as they are; the sum of their variances; if they are indicators."""
    Y = Y - np.average(Y, axis=0, weights=weight)
    variances = np.average(Y**2, axis=0, weights=weight)
    largest = np.abs(Y).max(axis=0)
    varies = (variances > 0) & np.isfinite(variances) & (largest > 0)
    indicators = Y.shape[1] > 1 and bool(np.all(np.ptp(Y, axis=0) <= 1 + 1e-9)) and _are_shares(Y)
    if not indicators:
        Y = np.where(varies, Y / np.sqrt(np.where(varies, variances, 1.0)), 0.0)
        variances = varies.astype(np.float64)
    return Y, float(variances.sum()), indicators


def _are_shares(Y: np.ndarray) -> bool:
    """Whether the columns of each row add up to the same, as indicators of classes do."""
    sums = Y.sum(axis=1)
    return bool(np.ptp(sums) <= 1e-9)


def _record(trial: Any, spread: float) -> dict[str, Any]:
    return {
        "kernel": trial.kernel.label,
        "metric": "full" if trial.full else "diagonal",
        "round": trial.round,
        "lengthscale": trial.factor,
        "additive": trial.additive,
        "alpha": trial.alpha,
        "error": trial.error / spread,
        "seconds": trial.seconds,
    }
