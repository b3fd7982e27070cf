"""What regression and classification share: rows become statistics, statistics become weights."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array, to_numpy
from ntkit._batching import progress_bar
from ntkit._estimator import AllOrNothing
from ntkit._files import FileError
from ntkit._random import RandomState, keyed, row_uniforms, seed_sequence
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.models._blocks import Block, Source, as_rows, as_source, block_rows, n_features_of, n_rows_of, take_rows
from ntkit.models._checkpoint import Checkpoint
from ntkit.models._checks import check_alphas, check_weight, result_dtype, to_library
from ntkit.models._features import check_features, default_features, fit_features
from ntkit.models._solve import solve
from ntkit.models._statistics import Statistics

_SELECTIONS = ("loo", "holdout")
_SOLVERS = ("auto", "eigen", "cholesky")


class FeatureModel(AllOrNothing, BaseEstimator):
    """Base class; see :class:`~ntkit.FeatureRidge`."""

    features: Any
    alphas: Any
    fit_intercept: bool
    selection: str
    n_selection: int
    solver: str
    batch_size: int | None
    progress: bool
    random_state: RandomState
    _statistics: Any  # Statistics, or None in a model that was loaded without them
    _solution: Any  # Solution, or None if rows have come since

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
    ) -> Self:
        """Fit the features and the model, reading the rows block by block.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor, memory map, Dask collection, iterable or path
            Rows of shape (n_samples, n_features), or images of shape (n_samples, height, width, channels) for features
            that take them. An iterable must yield (X, y) or (X, y, sample_weight) blocks; one that can be iterated over
            again (not a generator) also serves steps that need a pass of their own, such as ``StandardScaler``. A path,
            or a list of paths, or a folder, names CSV or Parquet files.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets. For an iterable None; for a path the name of the target column, or a list of names.
        sample_weight : array of shape (n_samples,), optional
        checkpoint : path, optional
            File to which the statistics are written as the fit goes on. If it is there already, the fit goes on
            from it, to the same result; it is removed when the fit is complete. The rows must come in the same
            order as before.
        checkpoint_every : float, default=60
            Seconds between two writings.

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_parameters()
            if _array.is_dask(X):
                self._fit_dask(X, y, sample_weight, checkpoint)
                self._solve()
            else:
                source = as_source(X, y, sample_weight, type(self).__name__)
                saved = self._fit_source(source, checkpoint, checkpoint_every)
                self._solve()
                if saved:
                    saved.remove()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add rows to those seen so far. The features are fitted on the first call, on its rows.

        The model is solved for when it is next asked for something, so that many small calls are cheap.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor with rows or images
        y : array of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array of shape (n_samples,), optional

        Returns
        -------
        self
        """
        self._check_parameters()
        if _array.is_dask(X):
            name = f"{type(self).__name__}.partial_fit"
            raise TypeError(message(name, "X", "rows in memory", X, "Only fit takes Dask collections."))
        source = as_source(X, y, sample_weight, type(self).__name__)
        with self._all_or_nothing():
            if not hasattr(self, "features_"):
                self._begin(source)
            elif self._statistics is None:
                raise ValueError(
                    f"This {type(self).__name__} was loaded without its statistics, so that no rows can be added. Save "
                    "it with ntkit.save(model, path, statistics=True)."
                )
            blocks = source.blocks(self._block_rows(source))
            old = self._statistics
            if not old.count or (source.n_rows is not None and source.n_rows <= self._block_rows(source)):
                for block in blocks:
                    self._add(old, block)
            else:  # a bad row must not leave half a call behind
                new = Statistics(old.n_components, old.n_targets, old.sample.size)
                for block in blocks:
                    self._add(new, block, start=old.count)
                old.merge(new)
            self._solution = None
        return self

    def _begin(self, source: Source) -> None:
        """Fit the features; make empty statistics."""
        seed = seed_sequence(self.random_state, owner=type(self).__name__)
        self._seed = seed.entropy, seed.spawn_key, seed.pool_size
        self._labels: list[Any] = []
        self.__dict__.pop("_label_dtype", None)
        features = self.features
        if features is None:
            features = default_features(keyed(seed, "features"), getattr(source, "X", None), type(self).__name__)
        self.__dict__.pop("n_features_in_", None)
        self.features_ = fit_features(features, source)
        first = source.first()
        probe = self._transform(take_rows(first.X, slice(0, 1)))
        if not probe.shape[1]:
            rule = "a transformer with at least one feature"
            raise ValueError(message(type(self).__name__, "features", rule, probe))
        self.n_features_in_ = n_features_of(first.X)
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(self.features_, "feature_names_in_"):
            self.feature_names_in_ = self.features_.feature_names_in_
        self._itemsize = probe.dtype.itemsize
        self._single = True
        self._solution = None
        self._statistics = Statistics(int(probe.shape[1]), 0, self.n_selection)

    def _fit_source(self, source: Source, checkpoint: Any, every: float) -> Checkpoint | None:
        self._begin(source)
        saved = Checkpoint(checkpoint, every, self, source) if checkpoint is not None else None
        done = saved.resume() if saved else 0
        skipped, rows = 0, self._statistics.count
        name = type(self).__name__ if self.progress else None
        with progress_bar(name, source.n_rows) as bar:
            for number, block in enumerate(source.blocks(self._block_rows(source))):
                if number < done:
                    skipped += n_rows_of(block.X)
                else:
                    if saved and skipped != rows:
                        break
                    self._add(self._statistics, block)
                    if saved:
                        saved.write(number + 1)
                bar.update(n_rows_of(block.X))
        if saved and skipped != rows:
            raise FileError(
                f"The checkpoint '{checkpoint}' holds {rows} rows of {done} blocks, but these now have {skipped}. "
                "Remove it to begin anew, or fit as before."
            )
        return saved

    def _block_rows(self, source: Source) -> int:
        if self.batch_size is not None:
            return self.batch_size
        like = getattr(source, "X", None)
        return block_rows(self._statistics.n_components, self._itemsize, like)

    def _add(self, statistics: Any, block: Block, start: int = 0) -> None:
        """Add a block of rows to the statistics."""
        owner = type(self).__name__
        Y = self._targets(block.y)
        weight = check_weight(block.weight, Y.shape[0], owner)
        Z = self._transform(block.X)
        if Z.shape[0] != Y.shape[0]:
            raise ValueError(
                f"X and y of {owner} must have equal numbers of rows. Got blocks of {Z.shape[0]} and {Y.shape[0]}."
            )
        if _shares_memory(Z, block.X):
            Z = _array.namespace(Z).asarray(Z, copy=True)
        start += statistics.count
        entropy, spawn_key, pool_size = self._seed
        seed = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size)
        keys = row_uniforms(keyed(seed, "sample"), start, start + Z.shape[0])[:, 0]
        keys[weight == 0] = np.inf
        statistics.place_targets(range(statistics.n_targets), Y.shape[1])
        statistics.add(Z, to_library(Y, Z), to_library(weight, Z), keys)

    def _fitted(self, read: Any) -> Any:
        """Part of the solution, as a NumPy array."""
        try:
            self._solve()
        except NotFittedError as error:
            raise AttributeError(str(error)) from error
        return to_numpy(read(self._solution))

    @property
    def alpha_(self) -> float:
        """The α chosen."""
        return self._fitted(lambda s: s.alpha)

    @property
    def alphas_(self) -> np.ndarray:
        """The α to choose from."""
        return self._fitted(lambda s: s.alphas)

    @property
    def errors_(self) -> np.ndarray:
        """Mean loss on rows left out, for each of `alphas_`."""
        return self._fitted(lambda s: s.errors)

    @property
    def n_samples_seen_(self) -> int:
        """Number of rows fitted on."""
        check_is_fitted(self)
        return self._n_samples if self._statistics is None else self._statistics.count

    @abstractmethod
    def _targets(self, y: Any) -> np.ndarray:
        """Targets of some rows as a float64 matrix."""

    def _transform(self, X: Any) -> Array:
        """Features as a dense array; torch tensors in host memory as NumPy arrays."""
        n_features = n_features_of(X)
        expected = getattr(self, "n_features_in_", n_features)
        if n_features != expected:
            name = type(self).__name__
            raise ValueError(f"X has {n_features} features, but {name} is expecting {expected} features as input.")
        Z = self.features_.transform(X)
        if _array.is_sparse(Z):
            Z = Z.toarray()
        elif hasattr(Z, "to_numpy") and not _array.is_array(Z):
            Z = Z.to_numpy()
        view = _array.host_view(Z)
        Z = Z.detach() if view is None and _array.is_torch(Z) else Z if view is None else view
        if Z.ndim != 2:
            rule = "a transformer with 2-D results"
            raise ValueError(message(type(self).__name__, "features", rule, Z))
        xp: Any = _array.namespace(Z)
        if Z.dtype not in (xp.float32, xp.float64):
            half = xp.isdtype(Z.dtype, "real floating") and Z.dtype.itemsize < 4
            Z = xp.astype(Z, xp.float32 if half else xp.float64)
        if not _all_finite(Z):
            rule = "free of NaN and infinity, and its features as well"
            raise ValueError(message(type(self).__name__, "X", rule, X))
        return Z

    def _fit_dask(self, X: Any, y: Any, sample_weight: Any, checkpoint: Any) -> None:
        from ntkit.distributed import reduce_statistics

        if checkpoint is not None:
            raise ValueError(
                message(
                    f"{type(self).__name__}.fit", "checkpoint", "None for Dask collections", checkpoint,
                    "Dask computes lost blocks again by itself.",
                )
            )  # fmt: skip
        reduce_statistics(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        features = self.features
        tags.input_tags.sparse = hasattr(features, "__sklearn_tags__") and get_tags(features).input_tags.sparse
        return tags

    def _check_parameters(self) -> None:
        name = type(self).__name__
        if self.features is not None:
            check_features(self.features, name)
        check_alphas(self.alphas, name)
        check_bool(self.fit_intercept, "fit_intercept", name)
        check_choice(self.selection, "selection", name, _SELECTIONS)
        check_int(self.n_selection, "n_selection", name, minimum=1)
        check_choice(self.solver, "solver", name, _SOLVERS)
        if self.batch_size is not None:
            check_int(self.batch_size, "batch_size", name, minimum=1)
        check_bool(self.progress, "progress", name)

    def _solve(self) -> None:
        """Solve for the weights, if rows have come since that was last done."""
        check_is_fitted(self)
        if self._solution is None:
            if self._statistics.total_weight() == 0:
                raise ValueError(f"sample_weight of {type(self).__name__} must not be zero for all rows.")
            self._solution = solve(
                self._statistics,
                self.alphas,
                intercept=self.fit_intercept,
                selection=self.selection,
                solver=self.solver,
                loss=self._loss,
                shift=self._shift(),
            )
            self._solved()

    _loss: ClassVar[Any] = None
    """What α is chosen by, if not the squared error."""

    def _shift(self) -> float:
        """What is subtracted from all targets."""
        return 0.0

    def _solved(self) -> None:
        """Compute what follows from a new solution."""

    def _scores(self, X: Any) -> Array:
        """Linear model on the features, in float64, (n, k); in blocks of rows."""
        self._solve()
        X = as_rows(X, "X", type(self).__name__)
        n_rows = n_rows_of(X)
        step = self.batch_size or block_rows(self._solution.coef.shape[0], self._itemsize, X)
        parts = [self._block_scores(take_rows(X, slice(i, i + step))) for i in range(0, max(n_rows, 1), step)]
        return parts[0] if len(parts) == 1 else _array.namespace(*parts).concat(parts, axis=0)

    def _for_workers(self) -> Self:
        """A copy that predicts, without the statistics: these are much larger than the weights."""
        self._solve()
        light = copy(self)
        light._statistics = None
        return light

    def _map_rows(self, function: Any, X: Any, n_columns: int | None, dtype: Any = None) -> Any:
        """Results for a Dask collection, of the dtype that they have for rows in memory."""
        from ntkit.distributed import map_rows

        return map_rows(function, X, n_columns=n_columns, dtype=result_dtype(X) if dtype is None else dtype)

    def _block_scores(self, X: Any) -> Array:
        Z = self._transform(X)
        xp: Any = _array.namespace(Z)
        coef, intercept = (to_library(a, Z) for a in (self._solution.coef, self._solution.intercept))
        return xp.matmul(xp.astype(Z, xp.float64), coef) + intercept


def _all_finite(Z: Array) -> bool:
    """Whether all numbers are finite; one product tells, but for sums that overflow."""
    xp: Any = _array.namespace(Z)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = xp.matmul(xp.ones(Z.shape[0], dtype=Z.dtype, device=_array.device(Z)), Z)
    return bool(xp.all(xp.isfinite(sums))) or bool(xp.all(xp.isfinite(Z)))


def _shares_memory(Z: Any, X: Any) -> bool:
    """Whether features are the rows themselves: they are going to be overwritten."""
    if _array.is_numpy(Z) and not Z.flags.writeable:
        return True
    if _array.is_torch(Z):
        return _array.is_torch(X) and Z.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    view = _array.host_view(X) if _array.is_array(X) else X
    if hasattr(X, "iloc"):
        return not Z.flags.owndata or not Z.flags.writeable
    return view is not None and _array.is_numpy(view) and np.may_share_memory(Z, view)
