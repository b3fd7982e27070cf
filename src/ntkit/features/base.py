"""Base class of all feature maps: plan → draws → run.

`fit` checks the parameters, learns from the rows what the map needs, and makes a *plan*: a small frozen object with
the sizes and the kernel. The plan and a seed determine the *draws*, which `transform` applies to rows. This module
holds the code that all maps share: `fit` that either succeeds or changes nothing, `transform` for all kinds of rows,
pickles without draws, and error estimates.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, fields, is_dataclass
from threading import Lock
from typing import Any, ClassVar, Self, final

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import free_memory
from ntkit._deprecated import OldSpellings
from ntkit._estimator import AllOrNothing, RowInput
from ntkit._images import check_image_shape
from ntkit._random import RandomState, seed_sequence
from ntkit._state import (
    COLUMNS,
    Declared,
    Field,
    Flag,
    Floats,
    Integer,
    Many,
    MemoryLimitError,
    Optional,
    Seed,
    reserve,
)
from ntkit._validation import check_int, check_overflow
from ntkit.features.draws import Draws, RowDraws, is_half
from ntkit.kernels import KernelSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A map without its seed: sizes, the kernel, and the shape of a row, (features,) or (height, width, channels).

    It holds copies of the parameters, so changing the parameters after `fit` does not affect the fitted map.
    """

    shape: tuple[int, ...]
    kernel: KernelSpec | None
    """The kernel that the features approximate; None if only the user knows it."""

    @property
    def n_features(self) -> int:
        """Number of entries in a row."""
        return int(np.prod(self.shape))

    def matrix(self, X: Array) -> Array:
        """Compute the exact kernel matrix of the rows of X."""
        assert self.kernel is not None
        return self.kernel.matrix(X)


BYTES_PER_COMPONENT = 64  # memory needed to plan a map and compute a few features, at least


class OtherDrawsError(ValueError):
    """The features of a loaded map differ from the features that it had when it was saved."""


class FeatureMap(
    Declared, OldSpellings, AllOrNothing, RowInput, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base class: takes rows (NumPy, pandas, SciPy sparse, torch, Dask), returns features of the same library.

    Subclasses define `_plan`, `_draw` and, if they learn from the rows, `_learn`.
    """

    n_components: int | None
    random_state: RandomState
    batch_size: int | None
    _on_resizing: ClassVar[dict[str, Any]] = {}
    """Other parameters that :meth:`resized` sets along with `n_components`."""
    learns_from_rows: ClassVar[bool] = False
    """Whether the features are more accurate on the rows of `fit` than on other rows."""
    _learned: ClassVar[dict[str, Field]] = {}
    """The values that `_learn` returns. Together with the parameters and the seed they determine the map."""
    _state: ClassVar[dict[str, Any]] = {
        **COLUMNS,
        "image_shape_": Optional(Many(Integer(1), 3)),
        "_sparse": Flag(),
        "_seed": Seed(),
        "_n_features_out": Integer(1),
        "_fingerprint": Optional(Floats(None, None, finite=False)),
    }
    _remade: ClassVar[tuple[str, ...]] = ("_planned",)
    _transient: ClassVar[tuple[str, ...]] = ("_drawn",)
    _planned: Plan
    _seed: np.random.SeedSequence

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls._state = vars(cls).get("_state", {}) | cls._learned
        super().__init_subclass__(**kwargs)

    def _learn(self, X: Array, seed: np.random.SeedSequence) -> dict[str, Any]:  # noqa: ARG002
        """Return what the map needs to know about the rows of `fit`; the values become fitted attributes."""
        return {}

    @abstractmethod
    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> Any:
        """Check the parameters and return the plan for rows of the given shape."""

    @abstractmethod
    def _draw(self, plan: Any, seed: np.random.SeedSequence) -> Draws:
        """Make the draws of a plan. It must not read any parameter: they may have changed since `fit`."""

    def _draw_bytes(self, plan: Any) -> int:
        """Return an upper bound on the bytes that `_draw` takes; by default the sum over all laws in the plan."""
        return draw_bytes(plan)

    def _describe(self, plan: Any, draws: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return fitted attributes that tell users what was planned; their names must be listed in `_remade`."""
        return {}

    @final
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows of the shape of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for maps that take them
            Maps that learn from the rows (see the fitted attributes) use the first block of a Dask collection. All
            other maps only use the shape of a row.
        y : ignored

        Returns
        -------
        self
        """
        with self._all_or_nothing():
            self._check_memory()
            seed = seed_sequence(self.random_state, owner=type(self).__name__)
            X = self._check_rows(X, reset=True)
            self._sparse = _array.is_sparse(X)
            self._settle(tuple(int(size) for size in X.shape[1:]), self._learn(X, seed), seed)
        return self

    def _settle(self, shape: tuple[int, ...], learned: dict[str, Any], seed: np.random.SeedSequence) -> None:
        """Plan and draw the map from learned values, which come from `fit` or from a file."""
        plan = self._plan(shape, learned)
        needed = self._draw_bytes(plan)
        reserve(needed, f"Drawing {type(self).__name__}")
        if needed > 4 * max(free_memory(), ASSUMED_FREE):  # an upper bound, which maps often stay well below
            raise MemoryError(
                f"There is not enough memory to draw {type(self).__name__}: it takes up to {float(needed):.1e} bytes. "
                "Reduce its n_components, width or degrees."
            )
        for name in self._learned:  # some values are learned for some kernels only
            self.__dict__.pop(name, None)
        self.__dict__.update({name: learned[name] for name in self._learned if name in learned})
        self._use(plan, seed, self._draw(plan, seed))

    def _use(self, plan: Plan, seed: np.random.SeedSequence, draws: Draws) -> None:
        """Become the fitted map given by a plan, a seed and their draws."""
        self._planned, self._seed, self._drawn = plan, seed, draws
        self._n_features_out = draws.n_components
        self.__dict__.update(self._describe(plan, draws))

    @final
    def transform(self, X: Any) -> Array:
        """Return the features of the rows of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for maps that take them

        Returns
        -------
        array of shape (n_samples, n_components)
            A torch tensor on the device of X if X is a tensor, a Dask array with the row chunks of X if X is a Dask
            array or data frame, otherwise a NumPy array. float32 rows give float32 features. If X requires gradients,
            so do the features.
        """
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            check_is_fitted(self)
            return map_rows(self.transform, X, n_columns=self._n_features_out)
        X = self._check_rows(X, reset=False)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow raises an error below
            Z = self._run(X)
        if Z.shape[0] * Z.shape[1] <= ALWAYS_CHECKED or not self._is_ordinary(X):
            check_overflow(Z, X, type(self).__name__)
        return Z

    def expression(self, X: Array) -> Array:
        """Compute the features as one expression of array operations, so that torch can differentiate or trace it.

        X is not validated.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features), or images
        """
        check_is_fitted(self)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        return self._draws.run(_array.namespace(X).reshape(X, (-1, *shape)))

    def _is_ordinary(self, X: Array) -> bool:
        """Return whether the entries of X are so small that features cannot overflow; cheaper than checking features.

        If three random rows with entries of about 10⁶ have finite features, then so do rows with entries up to 10³:
        sums of d products differ by a factor of at most √d, except for directions nearly orthogonal to all three rows.
        """
        if self.learns_from_rows or is_half(X.dtype) or _array.largest(X) > ORDINARY_ENTRY:
            return False
        known, key = vars(self._draws).setdefault("ordinary", {}), str(X.dtype)
        if key not in known:
            norm = 1e3 * ORDINARY_ENTRY * self.n_features_in_**0.5
            rows = _some_rows(self.n_features_in_, sparse=_array.is_sparse(X), norm=norm)
            rows = rows.astype(np.float32 if "float32" in key else np.float64)
            with np.errstate(all="ignore"):
                known[key] = _array.all_finite(self._draws.run(rows.reshape(3, *X.shape[1:])))
        return known[key]

    def _check_batch_size(self) -> int | None:
        """Validate `batch_size` here too, because it can be set between fit and transform."""
        if self.batch_size is None:
            return None
        return check_int(self.batch_size, "batch_size", type(self).__name__, minimum=1)

    def _run(self, X: Array) -> Array:
        """Compute the features of validated rows."""
        batch_size = self._check_batch_size()
        progress = type(self).__name__ if getattr(self, "progress", False) else None
        return self._draws.run(X, batch_size=batch_size, progress=progress)

    @property
    def _draws(self) -> Any:
        """The draws. An unpickled map draws them again; a process that unpickles it many times draws only once."""
        if "_drawn" not in self.__dict__:
            if "_planned" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__} is not fitted yet.")
            self._drawn = _redraw(self)
        return self._drawn

    def _file_state(self) -> dict[str, Any]:
        """Return the values for a file, after checking that they and the parameters reproduce the map."""
        again = type(self)(**self.get_params(deep=False))
        again.__dict__.update(super()._file_state(), _fingerprint=self._some_features())
        state = super(FeatureMap, again)._file_state()
        try:
            again._check_state(2**62, tolerance=1e-9)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a {type(self).__name__} has other parameters than when it was fitted, so it could not be loaded "
                f"again ({str(error).rstrip('.')}). Fit it again or restore the parameters."
            ) from error
        return state

    def _check_state(self, limit: int, *, tolerance: float = 1e-3) -> None:
        """Reproduce the map of a file, and check that its features are the features that were saved."""
        saved, size = self.__dict__.pop("_fingerprint", None), self._n_features_out
        reserve((32 if self._sparse else 100) * self.n_features_in_, f"Rows of {self.n_features_in_} columns")
        self._check_sizes(limit)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        given = check_image_shape(getattr(self, "image_shape", None), type(self).__name__)
        fits = int(np.prod(shape)) == self.n_features_in_ and given in (None, shape)
        if not fits or (self._sparse and len(shape) > 1):
            raise ValueError(
                f"The images of {type(self).__name__} have the shape {shape}, which does not match its other values"
            )
        if "image_shape_" in self.__dict__:
            self.image_shape_ = shape
        self._remake(shape)
        if self._n_features_out != size or saved is None:
            raise OtherDrawsError(
                f"{type(self).__name__} has {self._n_features_out} components; when it was saved, it had {size}."
            )
        found = self._some_features()
        scale = np.abs(found).max(axis=1, keepdims=True, initial=0.0, where=np.isfinite(found))
        if found.shape != saved.shape or not np.isclose(found, saved, 0, tolerance * scale, equal_nan=True).all():
            raise OtherDrawsError(
                f"The features of {type(self).__name__} are not the features that it had when it was saved."
            )

    def _remake(self, shape: tuple[int, ...]) -> None:
        """Plan and draw the map from the values of a file."""
        self._settle(shape, {name: vars(self)[name] for name in self._learned if name in vars(self)}, self._seed)

    def _check_memory(self) -> None:
        """Raise before anything is allocated if the parameters need more memory than is free."""
        free = max(free_memory(), ASSUMED_FREE)
        try:
            self._check_sizes(free, DRAW_BYTES_PER_COMPONENT)
        except MemoryLimitError as error:
            raise MemoryError(
                f"There is not enough memory for {error}: it must be at most {free // DRAW_BYTES_PER_COMPONENT}, as "
                f"{free:.1e} bytes are free."
            ) from None

    def _check_sizes(self, limit: int, per_component: int = BYTES_PER_COMPONENT) -> None:
        """Raise if the parameters are so large that even planning would take too much memory or time."""
        self._check_batch_size()
        for name, value in self.get_params(deep=False).items():
            for key, number in value.items() if isinstance(value, dict) else [(name, value)]:
                if not isinstance(number, int) or key in ("random_state", "batch_size"):
                    continue
                if not str(key).endswith(("components", "width", "projection")):
                    check_int(int(number), str(key), type(self).__name__, maximum=MAX_COUNT)
                elif number > limit // per_component:
                    raise MemoryLimitError(f"{key}={number} of {type(self).__name__}")

    def _some_features(self) -> np.ndarray:
        """Compute a fingerprint of the map: up to 16 features of three fixed rows."""
        # Fitted values and not parameters, which may have changed since `fit`.
        size = getattr(self, "lengthscale_", 1.0) / (getattr(self._planned, "gamma", 1.0) ** 0.5 or 1.0)
        X = _some_rows(self.n_features_in_, sparse=self._sparse, norm=size)
        X = X.reshape(3, *self.image_shape_) if hasattr(self, "image_shape_") else X
        chosen = np.unique(np.linspace(0, self._n_features_out - 1, 16).astype(np.int64))
        draws = self._draws
        if isinstance(draws, RowDraws):
            reserve(16 * draws.numbers_per_row(X), f"A row of {type(self).__name__}")
        with np.errstate(all="ignore"):
            return np.asarray(self._run(X), dtype=np.float64)[:, chosen]

    def estimate_error(self, X: Any, *, n_samples: int = 1000, random_state: RandomState = None) -> float:
        """Estimate the relative error of this fitted map on your rows: ‖Z Zᵀ − K‖_F / ‖K‖_F on a sample of rows.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        n_samples : int, default=1000
            Number of rows drawn from X without replacement; all rows if X has fewer. The exact kernel matrix of the
            sample is computed.
        random_state : None, int, RandomState or Generator
            Draws the sample.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((200, 10))
        >>> features = NTKFeatures(n_components=1024, random_state=0).fit(X)
        >>> bool(features.estimate_error(X) < 0.05)
        True
        """
        from ntkit.diagnostics import kernel_error

        return kernel_error(self, X, n_samples=n_samples, random_state=random_state)

    def suggest_n_components(
        self,
        X: Any,
        target_error: float,
        *,
        n_samples: int = 500,
        maximum: int = 65536,
        random_state: RandomState = 0,
    ) -> int:
        """Find the number of components that brings the relative error on your rows below a target.

        Copies of this map with 32, 64, 128, … components, five of each size, are tried on a sample of X until the error
        (see :meth:`estimate_error`) is below the target. The result is interpolated between the last two sizes,
        assuming that the error falls as a power of n_components. Maps that choose landmarks among rows are fitted on
        other rows than the rows used to measure the error. This map is not changed and need not be fitted.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        target_error : float > 0
        n_samples : int, default=500
            Number of rows drawn from X to measure the error.
        maximum : int, default=65536
            Largest number of components to try.
        random_state : None, int, RandomState or Generator, default=0
            Draws the sample and the maps tried.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            If `maximum` components do not reach the target; the message gives the error that they reach.

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((200, 10))
        >>> bool(100 < NTKFeatures(depth=1).suggest_n_components(X, 0.02) < 4096)
        True
        """
        from ntkit.diagnostics import suggest_n_components

        return suggest_n_components(
            self, X, target_error, n_samples=n_samples, maximum=maximum, random_state=random_state
        )

    def resized(self, n_components: int, *, random_state: RandomState = None) -> Self:
        """Return an unfitted copy of this map with another number of components.

        Parameters
        ----------
        n_components : int
        random_state : None, int, RandomState or Generator
            Seed of the copy.

        Examples
        --------
        >>> from ntkit import NTKFeatures
        >>> NTKFeatures(depth=2).resized(64, random_state=1)
        NTKFeatures(depth=2, n_components=64, random_state=1)
        """
        return clone(self).set_params(n_components=n_components, random_state=random_state, **self._on_resizing)

    def exact_kernel(self, X: Any) -> Array:
        """Compute the exact kernel matrix of the rows of X, which the features of this fitted map approximate.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)

        Returns
        -------
        array of shape (n_rows, n_rows)

        Examples
        --------
        >>> import numpy as np
        >>> from ntkit import NTKFeatures
        >>> X = np.random.default_rng(0).standard_normal((3, 10))
        >>> NTKFeatures(random_state=0).fit(X).exact_kernel(X).shape
        (3, 3)
        """
        X = self._check_rows(X, reset=False)
        return self._planned.matrix(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_KEPT = 4  # number of unpickled maps whose draws a process keeps
_kept: OrderedDict[bytes, Draws] = OrderedDict()
_lock = Lock()


def _forget_lock() -> None:
    """Make a new lock in a forked process: a thread of the parent may hold the old lock and never release it here."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _redraw(feature_map: FeatureMap) -> Draws:
    """Return the draws of an unpickled map. The last few are cached, because Dask unpickles maps for every task."""
    plan, seed = feature_map._planned, feature_map._seed
    try:
        key = hashlib.sha256(pickle.dumps((type(feature_map), plan, seed))).digest()
    except Exception:  # the kernel cannot be pickled: the map was copied instead, and each copy draws for itself
        return feature_map._draw(plan, seed)
    with _lock:
        draws = _kept.pop(key, None)
        _kept[key] = feature_map._draw(plan, seed) if draws is None else draws
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
        return _kept[key]


ASSUMED_FREE = 2**33  # bytes assumed to be free even if the system reports less: not all systems report free memory
DRAW_BYTES_PER_COMPONENT = 1024  # memory needed to draw a map and apply it to a few rows, at least
ALWAYS_CHECKED = 2**16  # up to this many features, checking all of them for overflow is cheaper than anything else
ORDINARY_ENTRY = 1e3  # largest entry of rows whose features are assumed not to overflow
MAX_COUNT = 4096  # largest depth, degree or similar count; it bounds the work that a parameter in a file can cause


def draw_bytes(part: Any) -> int:
    """Return an upper bound on the bytes that the laws in a plan take when they are drawn."""
    if hasattr(part, "draw_bytes"):
        return part.draw_bytes()
    if isinstance(part, list | tuple):
        return sum(map(draw_bytes, part))
    return sum(draw_bytes(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0


def _some_rows(n_features: int, *, sparse: bool, norm: float) -> Any:
    """Return three fixed rows of the given norm; sparse rows have at most 1024 nonzero entries."""
    columns = np.arange(n_features)
    if sparse:
        columns = np.unique(np.linspace(0, n_features - 1, min(n_features, 1024)).astype(np.int64))
    values = np.array([[389], [577], [811]]) * (columns + 1) % 1021 - 510.5
    values *= norm / np.linalg.norm(values, axis=1, keepdims=True)
    if not sparse:
        return values
    from scipy.sparse import csr_matrix

    starts = np.arange(4) * len(columns)
    return csr_matrix((values.ravel(), np.tile(columns, 3), starts), shape=(3, n_features))
