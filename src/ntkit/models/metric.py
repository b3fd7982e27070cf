"""Metric learning: a linear map of the rows, learned from rows and targets."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._estimator import AllOrNothing, as_floating, check_rows
from ntkit._random import RandomState, generator, keyed, seed_sequence
from ntkit._state import COLUMNS, Declared, Estimator, Field, Floats, Integer, Optional, Real, Seed, Text
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.kernels import KernelSpec
from ntkit.models._checks import check_weight
from ntkit.models._metric import (
    ADDITIVE_SCALE,
    MATERN,
    MAX_COLUMNS,
    MIN_ROWS,
    Finalist,
    Kernel,
    Learned,
    Learner,
    Sizes,
)
from ntkit.models._metric_comparison import FitLeaves
from ntkit.models._rows import as_arrays, take_rows
from ntkit.models._targets import ClassTargets, RealTargets
from ntkit.models.leaves import TreeLeaves
from ntkit.networks import UnsupportedError
from ntkit.preprocessing import PiecewiseLinearEncoder

_METRICS = ("auto", "diagonal", "full")
_FEW_CLASSES = 20  # whole-number targets with at most this many distinct values are classes
_RESOLUTION = 0.0005  # errors of class indicators below this share of their variance count as 0: all rows are correct
_MAX_KNOTS, _MAX_RAMPS = 14, 512  # knots per column; ramps of all columns, which may reduce the number of knots
_MAX_LEAF_TARGETS = 60  # leaves need at least one tree for each target
_MAX_NUMBERS = 2**27  # size of a dense sample of sparse rows: 512 MiB in float32


class LearnedMetric(Declared, AllOrNothing, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Scale and rotate rows so that distances reflect the directions on which the targets depend.

        transform(x) = M (x − c).

    M is chosen such that kernel ridge regression with k(Mx, My), where k is `kernel_` with length scale 1, predicts
    held-out rows well. It is learned by gradient descent on the leave-one-out error of this regression, in M and the
    penalty together (see [1]_, Section 5.4.2, for the gradients). Columns and directions on which the targets do not
    depend no longer contribute to distances. Kernels that are not functions of a distance, such as the NTK, learn by
    other rounds [2]_, [3]_: fit a function f; compute the average outer product of its gradients,
    A = (1/n) Σ ∇f(x_i) ∇f(x_i)ᵀ; take M² ∝ A, or its diagonal; fit again.

    Any map or model can follow. :class:`AdaptiveFeatures` continues with Nyström features of the chosen kernel.

    Parameters
    ----------
    kernel : str
        "auto": the best of the product Laplace kernel exp(−‖x − y‖₁), a Matérn kernel (ν = 3/2) and the Gaussian
        kernel. Or the name of a kernel that has gradients: "gaussian", "laplace", "matern", "exponential", "ntk",
        "nngp", "polynomial"; see :class:`ntkit.kernels.KernelSpec`.
    metric : {"auto", "diagonal", "full"}
        "diagonal": a weight for each column. "full": a symmetric matrix, which also finds directions. "auto" compares
        both; full metrics only for up to 256 columns, and at least 20 rows per column.
    kernel_params : dict or None
        Parameters of a named kernel, except its length scale, such as ``{"nu": 2.5}`` or ``{"norm": "l1"}``. The
        default depth of "ntk" and "nngp" is 1.
    max_rounds : int
        Rounds of six descent steps per kernel; the metric of the best round on held-out rows is used. After two rounds
        only the two best kernels continue, and full metrics get four more. Outer products end after two rounds without
        progress, and while the error falls by more than 5 % per round, up to three times as many are made. 0: all
        columns alike.
    max_samples : int
        Maximum number of rows that `fit` uses, drawn at random.
    progress : bool
        Whether to show a progress bar.
    random_state : None, int, RandomState or Generator
        Draws the rows to use, the held-out rows and the landmarks.

    Attributes
    ----------
    metric_ : ndarray of shape (n_features,) or (n_features, n_features)
        M, or its diagonal. It includes the length scale of the kernel.
    center_ : ndarray of shape (n_features,)
        c, the means of the columns; zeros for sparse rows.
    kernel_, kernel_params_ : str, dict
        The chosen kernel.
    feature_importances_ : ndarray of shape (n_features,)
        Share of each column in the gradients of f: E(∂f/∂x_i)² Var(x_i), normalized to sum 1.
    sensitivities_ : ndarray of shape (n_features,)
        √E(∂f/∂x_i)²: how much the (standardized) target changes with a column, in units of the column.
    alpha_ : float
        Penalty of the best fit, for features of unit norm.
    error_ : float
        Mean squared error of the best fit on held-out rows, as a share of the variance of the targets.
    gain_ : float
        This error divided by the error with half as many landmarks. It indicates how much more landmarks would help.
    additive_ : PiecewiseLinearEncoder or None
        Features of single columns, if adding them to the features of the kernel lowers the error on held-out rows;
        otherwise None.
    leaves_ : TreeLeaves or None
        Features of the leaves of boosted trees, if adding them lowers the error on held-out rows; otherwise None. They
        are tried with 1000 rows or more, and up to 256 columns and 60 targets or classes. Their trees are fitted on
        half of the rows.
    results_ : list of dict
        All fits: "kernel", "metric", "round", "lengthscale" (relative to the median distance), "additive", "leaves",
        "alpha", "error", "seconds".
    n_samples_used_ : int
        Number of rows used, at most `max_samples`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If `fit` sees a data frame.

    Notes
    -----
    Fits are ridge regressions on Nyström features of at most 16 000 rows with 2048 landmarks, so the time does not
    grow with the number of rows: about 2 to 7 s on two cores. A fifth of these rows is held out; below 2000 rows,
    errors are averaged over several splits. Targets that are text, bools, or whole numbers with at most 20 different
    values are classes, and the functions are fitted to their indicators.

    References
    ----------
    .. [1] Rasmussen, Williams, "Gaussian Processes for Machine Learning", MIT Press 2006.
    .. [2] Radhakrishnan, Beaglehole, Pandit, Belkin, "Mechanism for feature learning in neural networks and
       backpropagation-free machine learning models", Science 383, 2024, arXiv:2212.13881.
    .. [3] Beaglehole, Holzmüller, Radhakrishnan, Belkin, "xRFM: Accurate, scalable, and interpretable feature learning
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
        "leaves_": Optional(Estimator(("transform",))),
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
        """Return a sample of the rows as a dense array, their targets as a matrix, and their weights."""
        name = type(self).__name__
        weight = check_weight(weight, int(X.shape[0]), name)
        if not weight.any():
            raise ValueError(f"sample_weight of {name} must not be zero for all rows.")
        Y = encode_targets(y, name)
        limit = self.max_samples
        if _array.is_sparse(X):
            limit = min(limit, max(_MAX_NUMBERS // X.shape[1], MIN_ROWS))
        chosen = np.flatnonzero(weight)
        if len(chosen) > limit:
            chosen = np.sort(generator(self._seed, "rows").permutation(chosen)[:limit])
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
            rule = "small enough that the squares of its columns are finite"
            raise ValueError(message(type(self).__name__, "X", rule, X, "Scale its columns."))
        scale = np.where(deviation > 1e-12 * np.abs(mean), deviation, 0.0)
        unit = 1 / np.where(scale > 0, scale, 1.0)
        targets, spread, indicators = _standardized(Y, weight)
        rows = ((X - mean) * unit).astype(np.float32)
        encoder = None if sparse or (kernel and not kernel.is_distance) else _encoder(X)
        if n >= MIN_ROWS and spread > 0 and scale.any():
            resolution = _RESOLUTION * spread if indicators else 0.0
            ramps = None if encoder is None else (ADDITIVE_SCALE * encoder.transform(X)).astype(np.float32)
            few = targets.shape[1] <= _MAX_LEAF_TARGETS
            fit_leaves = self._leaf_fitter(targets, indicators=indicators) if encoder is not None and few else None
            learned = self._compare(rows, targets, weight / weight.mean(), kernel, resolution, ramps, fit_leaves)
            self.results_ = [_record(trial, spread) for trial in learned.trials]
            leaves = None
            if fit_leaves is not None and learned.finalists[0].trial.leaves:
                half = np.sort(generator(self._seed, "leaves").permutation(n)[: n // 2])
                leaves = fit_leaves(X[half], targets[half], weight[half])
            found = [self._found(each, spread, encoder, leaves) for each in learned.finalists]
        else:  # nothing to learn from: equal weights, and a length scale of about the median distance
            kernel = kernel or MATERN
            M = np.full(d, (2.0 * max(int(np.count_nonzero(scale)), 1)) ** -0.5)
            nothing = {"alpha_": 1.0, "error_": 1.0, "gain_": 1.0, "additive_": None, "leaves_": None}
            self.results_ = []
            found = [nothing | _of_kernel(kernel, M, np.diag((scale > 0).astype(np.float64)))]
        self.center_ = np.zeros(d) if sparse else mean
        self.n_samples_used_, self._n_features_out = n, d
        self._alternatives = [self._in_units(each, unit, scale > 0) for each in found]
        self.__dict__.update(self._alternatives[0])

    @staticmethod
    def _found(
        finalist: Finalist, spread: float, encoder: PiecewiseLinearEncoder | None, leaves: TreeLeaves | None
    ) -> dict[str, Any]:
        """Return the attributes of a fit, for standardized columns."""
        trial = finalist.trial
        return {
            "alpha_": trial.alpha,
            "error_": trial.error / spread,
            "gain_": trial.gain,
            "additive_": encoder if trial.additive else None,
            "leaves_": leaves if trial.leaves else None,
            **_of_kernel(
                trial.kernel, trial.metric / (trial.length if trial.kernel.has_length else 1.0), finalist.outer_products
            ),
        }

    @staticmethod
    def _in_units(found: dict[str, Any], unit: np.ndarray, varies: np.ndarray) -> dict[str, Any]:
        """Convert these attributes to columns in their own units."""
        M, slopes = found["metric_"], np.sqrt(np.maximum(np.diagonal(found.pop("outer_products")), 0.0)) * varies
        total = float((slopes**2).sum())
        return found | {
            "metric_": unit[:, None] * M if M.ndim == 2 else unit * M,
            "sensitivities_": slopes * unit,
            "feature_importances_": slopes**2 / total if total > 0 else np.full(len(unit), 1 / len(unit)),
        }

    def alternatives(self) -> dict[str, LearnedMetric]:
        """Return the best metric of each kernel and kind of metric that `fit` compared at the end.

        Returns
        -------
        dict from names such as "matern diagonal" to fitted LearnedMetrics
            The best metric, which is this one, comes first. If it has features of leaves, the same metric without them
            comes second. After loading from a pickle or a file it is the only one.
        """
        check_is_fitted(self)
        found = {}
        for values in self.__dict__.get("_alternatives") or [{}]:
            other = copy(self)
            other.__dict__.update(values)
            other.__dict__.pop("_alternatives", None)
            norm = {"l1": " l1"}.get(other.kernel_params_.get("norm", ""), "")
            leaves = ", leaves" if other.leaves_ is not None else ""
            found[f"{other.kernel_}{norm} {'full' if other.metric_.ndim == 2 else 'diagonal'}{leaves}"] = other
        return found

    def _leaf_fitter(self, targets: np.ndarray, *, indicators: bool) -> FitLeaves:
        """Return a function that fits features of leaves; the indicator of the last class follows from the others."""
        n_targets = targets.shape[1] - indicators
        seed = int(keyed(self._seed, "trees").generate_state(1)[0])

        def fit_leaves(X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> TreeLeaves:
            # With weights, scikit-learn finds the bins of columns in seconds, otherwise in milliseconds.
            return TreeLeaves(random_state=seed).fit(X, Y[:, :n_targets], weight if np.ptp(weight) else None)

        return fit_leaves

    def _compare(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        weight: np.ndarray,
        kernel: Kernel | None,
        resolution: float,
        ramps: np.ndarray | None,
        fit_leaves: FitLeaves | None,
    ) -> Learned:
        from tqdm.auto import tqdm

        with tqdm(desc=type(self).__name__, unit=" fits", disable=not self.progress) as bar:

            def tick(label: str) -> None:
                bar.set_postfix_str(label, refresh=False)
                bar.update()

            learner = Learner(
                X, Y, weight, generator(self._seed, "fits"), kernel=kernel, metric=self.metric,
                most_rounds=self.max_rounds, sizes=Sizes(), resolution=resolution, tick=tick, ramps=ramps,
                fit_leaves=fit_leaves,
            )  # fmt: skip
            try:
                return learner.learn()
            except UnsupportedError as error:
                rule = "'auto' or the name of a kernel with known gradients, such as 'matern'"
                raise ValueError(message(type(self).__name__, "kernel", rule, self.kernel)) from error

    def transform(self, X: Any) -> Any:
        """Return M (x − c) for each row x.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples, n_features)
            An array of the same library, device and precision as X. With a diagonal metric, sparse rows stay sparse.
            Gradients flow through tensors that require them.
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
        """Return M (x − c) as one expression of array operations, without checks.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        M, center = (_array.constant(values, X) for values in (self.metric_, self.center_))
        return (X - center) @ M if self.metric_.ndim == 2 else (X - center) * M

    def _check_parameters(self) -> Kernel | None:
        """Check the parameters; return the kernel that they name, None for "auto"."""
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
        KernelSpec.of(self.kernel, **params)  # raises if the parameters are invalid
        return Kernel(self.kernel, tuple(params.items()))

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        self._check_parameters()
        if self.metric_.shape not in ((self.n_features_in_,), (self.n_features_in_,) * 2):
            raise ValueError(f"the metric must have {self.n_features_in_} columns")
        if not isinstance(self.kernel_params_, dict) or self.kernel_ not in KernelSpec.names():
            raise ValueError("the kernel of the metric must have a name and a dict of parameters")
        KernelSpec.of(self.kernel_, **self.kernel_params_)
        if self._n_features_out != self.n_features_in_:
            raise ValueError("the number of features must equal the number of columns")
        if self.leaves_ is not None and (
            not isinstance(self.leaves_, TreeLeaves) or self.leaves_.n_features_in_ != self.n_features_in_
        ):
            raise ValueError("features of leaves must be TreeLeaves of the same columns")
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
    """Return targets as columns of numbers: real targets unchanged, classes as indicators."""
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
    """Fit an encoder with the most knots per column that keep the number of ramps below its limit, or return None.

    None means that there are too many columns, or that no column varies.
    """
    distinct = np.array([len(np.unique(column)) for column in X.T]) if X.shape[1] <= MAX_COLUMNS else np.array([])
    for n_knots in range(_MAX_KNOTS, 1, -1):
        if 0 < (np.minimum(distinct, n_knots) - 1).sum() <= _MAX_RAMPS:
            return PiecewiseLinearEncoder(n_knots=n_knots).fit(X)
    return None


def _standardized(Y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Standardize the columns; class indicators are only centred.

    Returns the columns, the sum of their variances, and whether they are indicators.
    """
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
    """Whether the columns of every row have the same sum, as class indicators do."""
    sums = Y.sum(axis=1)
    return bool(np.ptp(sums) <= 1e-9)


def _record(trial: Any, spread: float) -> dict[str, Any]:
    return {
        "kernel": trial.kernel.label,
        "metric": "full" if trial.full else "diagonal",
        "round": trial.round,
        "lengthscale": trial.length,
        "additive": trial.additive,
        "leaves": trial.leaves,
        "alpha": trial.alpha,
        "error": trial.error / spread,
        "seconds": trial.seconds,
    }
