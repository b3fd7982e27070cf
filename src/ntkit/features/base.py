"""What all feature maps share: plan → draws → run.

`fit` checks the parameters, learns what the map has to know of the rows and settles it in a *plan* (sizes, the kernel;
small and frozen). The plan and a seed give the *draws*, which `transform` runs on rows. All that is not the plan or the
draws of one map is written here, once: fit that works or changes nothing, transform for all kinds of rows, pickles
without draws, error estimates.
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
from ntkit._estimator import AllOrNothing, OfRows
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
    """All that a map is made of but its seed: the shape of a row, (features,) or (height, width, channels), and sizes.

    It holds copies of parameters, so that changing these after `fit` changes nothing.
    """

    shape: tuple[int, ...]
    kernel: KernelSpec | None
    """The kernel that the features approximate; None if only the user knows it."""

    @property
    def n_features(self) -> int:
        """Numbers in a row."""
        return int(np.prod(self.shape))

    def matrix(self, X: Array) -> Array:
        """Exact kernel matrix of some rows."""
        assert self.kernel is not None
        return self.kernel.matrix(X)


BYTES_PER_COMPONENT = 64  # at least, while a map is planned and some features are computed


class OtherDrawsError(ValueError):
    """A map whose features are not those that it had when it was saved."""


class FeatureMap(
    Declared, OldSpellings, AllOrNothing, OfRows, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base class: rows in (NumPy, pandas, SciPy sparse, torch, Dask), features of the same library out.

    A map has `_plan`, `_draw` and, if it looks at rows, `_learn`.
    """

    n_components: int | None
    random_state: RandomState
    batch_size: int | None
    _on_resizing: ClassVar[dict[str, Any]] = {}
    """Parameters to set where another `n_components` is tried."""
    learns_from_rows: ClassVar[bool] = False
    """Whether features are better on the rows of `fit` than on others."""
    _learned: ClassVar[dict[str, Field]] = {}
    """What `_learn` returns; with the parameters and the seed it makes the map again."""
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
        """What the map has to know of the rows of `fit`; these become fitted attributes."""
        return {}

    @abstractmethod
    def _plan(self, shape: tuple[int, ...], learned: dict[str, Any]) -> Any:
        """Check the parameters; return the plan for rows of a shape."""

    @abstractmethod
    def _draw(self, plan: Any, seed: np.random.SeedSequence) -> Draws:
        """Make the draws of a plan; no parameter may be read here."""

    def _draw_bytes(self, plan: Any) -> int:
        """Bound for the memory that `_draw` takes: by default that of all laws in the plan."""
        return draw_bytes(plan)

    def _describe(self, plan: Any, draws: Any) -> dict[str, Any]:  # noqa: ARG002
        """Fitted attributes that tell users what was planned; to be listed in `_remade`."""
        return {}

    @final
    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Draw the map for rows like those of X.

        Parameters
        ----------
        X : array, data frame, sparse matrix, torch tensor or Dask collection of shape (n_samples, n_features), or \
                images of shape (n_samples, height, width, channels) for maps that take them
            Maps that learn from the rows (see the fitted attributes) see the first block of a Dask collection. To all
            others only the shape of a row matters.
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
        """Plan and draw, from what `fit` or a file knows."""
        plan = self._plan(shape, learned)
        needed = self._draw_bytes(plan)
        reserve(needed, f"Drawing {type(self).__name__}")
        if needed > 4 * max(free_memory(), SOME_MEMORY):  # it is a bound, which maps need not reach
            raise MemoryError(
                f"There is no memory to draw {type(self).__name__}, which takes up to {float(needed):.1e} bytes. Its "
                "n_components, width or degrees must be smaller."
            )
        for name in self._learned:  # some are learned of some kernels only
            self.__dict__.pop(name, None)
        self.__dict__.update({name: learned[name] for name in self._learned if name in learned})
        self._use(plan, seed, self._draw(plan, seed))

    def _use(self, plan: Plan, seed: np.random.SeedSequence, draws: Draws) -> None:
        """Become the fitted map of a plan, a seed and the draws that they give."""
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
            A torch tensor on the device of X if X is one, a Dask array with the row chunks of X if X is a Dask array
            or data frame, else a NumPy array; float32 for float32. Tensors that require gradients keep them.
        """
        if _array.is_dask(X):
            from ntkit.distributed import map_rows

            check_is_fitted(self)
            return map_rows(self.transform, X, n_columns=self._n_features_out)
        X = self._check_rows(X, reset=False)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            Z = self._run(X)
        if Z.shape[0] * Z.shape[1] <= FEW_NUMBERS or not self._is_ordinary(X):
            check_overflow(Z, X, type(self).__name__)
        return Z

    def expression(self, X: Array) -> Array:
        """The features as one expression of array operations, without checks, for torch to differentiate or to trace.

        Parameters
        ----------
        X : torch tensor or traced array of shape (n_samples, n_features), or images
        """
        check_is_fitted(self)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        return self._draws.run(_array.namespace(X).reshape(X, (-1, *shape)))

    def _is_ordinary(self, X: Array) -> bool:
        """Whether rows are far from sizes at which features overflow, which is cheaper to tell than by the features.

        Where rows of entries of about 10⁶ have finite features, rows of entries up to 10³ have: sums of d products
        differ by a factor of √d at most, but for directions nearly orthogonal to all of three random rows.
        """
        if self.learns_from_rows or is_half(X.dtype) or _array.largest(X) > ORDINARY:
            return False
        known, key = vars(self._draws).setdefault("ordinary", {}), str(X.dtype)
        if key not in known:
            norm = 1e3 * ORDINARY * self.n_features_in_**0.5
            rows = _some_rows(self.n_features_in_, sparse=_array.is_sparse(X), norm=norm)
            rows = rows.astype(np.float32 if "float32" in key else np.float64)
            with np.errstate(all="ignore"):
                known[key] = _array.all_finite(self._draws.run(rows.reshape(3, *X.shape[1:])))
        return known[key]

    def _check_batch_size(self) -> int | None:
        """Raise unless it is one; it can be set between fit and transform."""
        if self.batch_size is None:
            return None
        return check_int(self.batch_size, "batch_size", type(self).__name__, minimum=1)

    def _run(self, X: Array) -> Array:
        """The features of rows that have been checked."""
        batch_size = self._check_batch_size()
        progress = type(self).__name__ if getattr(self, "progress", False) else None
        return self._draws.run(X, batch_size=batch_size, progress=progress)

    @property
    def _draws(self) -> Any:
        """The draws, made again after a pickle; processes that unpickle a map many times draw once."""
        if "_drawn" not in self.__dict__:
            if "_planned" not in self.__dict__:
                raise AttributeError(f"{type(self).__name__} is not fitted yet.")
            self._drawn = _again(self)
        return self._drawn

    def _file_state(self) -> dict[str, Any]:
        """Values for a file, after a check that these and the parameters make the same map again."""
        again = type(self)(**self.get_params(deep=False))
        again.__dict__.update(super()._file_state(), _fingerprint=self._some_features())
        state = super(FeatureMap, again)._file_state()
        try:
            again._check_state(2**62, tolerance=1e-9)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"a {type(self).__name__} has other parameters than when it was fitted, and could not be loaded again "
                f"({str(error).rstrip('.')}). Fit it again, or set them back."
            ) from error
        return state

    def _check_state(self, limit: int, *, tolerance: float = 1e-3) -> None:
        """Make the map of a file again, and check that its features are those that it had."""
        saved, size = self.__dict__.pop("_fingerprint", None), self._n_features_out
        reserve((32 if self._sparse else 100) * self.n_features_in_, f"Rows of {self.n_features_in_} columns")
        self._check_sizes(limit)
        shape = tuple(self.__dict__.get("image_shape_") or (self.n_features_in_,))
        given = check_image_shape(getattr(self, "image_shape", None), type(self).__name__)
        fits = int(np.prod(shape)) == self.n_features_in_ and given in (None, shape)
        if not fits or (self._sparse and len(shape) > 1):
            raise ValueError(f"{type(self).__name__} has images of the shape {shape}, which does not fit")
        if "image_shape_" in self.__dict__:
            self.image_shape_ = shape
        self._remake(shape)
        if self._n_features_out != size or saved is None:
            raise OtherDrawsError(f"{type(self).__name__} has {self._n_features_out} components, not {size}.")
        found = self._some_features()
        scale = np.abs(found).max(axis=1, keepdims=True, initial=0.0, where=np.isfinite(found))
        if found.shape != saved.shape or not np.isclose(found, saved, 0, tolerance * scale, equal_nan=True).all():
            raise OtherDrawsError(f"The features of {type(self).__name__} are not those that it had when it was saved.")

    def _remake(self, shape: tuple[int, ...]) -> None:
        """Plan and draw from what a file has."""
        self._settle(shape, {name: vars(self)[name] for name in self._learned if name in vars(self)}, self._seed)

    def _check_memory(self) -> None:
        """Raise for parameters for which there is no memory, before any of it is used."""
        free = max(free_memory(), SOME_MEMORY)
        try:
            self._check_sizes(free, BYTES_TO_DRAW)
        except MemoryLimitError as error:
            raise MemoryError(
                f"There is no memory for {error}: it must be at most {free // BYTES_TO_DRAW}. Got {free:.1e} bytes "
                "that are free."
            ) from None

    def _check_sizes(self, limit: int, per_component: int = BYTES_PER_COMPONENT) -> None:
        """Raise for parameters with which even planning would take too much memory or time."""
        self._check_batch_size()
        for name, value in self.get_params(deep=False).items():
            for key, number in value.items() if isinstance(value, dict) else [(name, value)]:
                if not isinstance(number, int) or key in ("random_state", "batch_size"):
                    continue
                if not str(key).endswith(("components", "width", "projection")):
                    check_int(int(number), str(key), type(self).__name__, maximum=LARGEST_COUNT)
                elif number > limit // per_component:
                    raise MemoryLimitError(f"{key}={number} of {type(self).__name__}")

    def _some_features(self) -> np.ndarray:
        """A fingerprint: some features of some rows, (3, 16) or fewer."""
        # Not the parameters, which may have changed.
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
        """Estimate the relative error of this fitted map on your own rows: ‖Z Zᵀ − K‖_F / ‖K‖_F on a sample of them.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        n_samples : int, default=1000
            Rows drawn from X, without replacement; all if X has no more. The exact kernel of these is computed.
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
        """Find how many components bring the relative error on your own rows below a target.

        Copies of this map with 32, 64, 128, … components, five each, are tried on a sample of X until the error (see
        :meth:`estimate_error`) is below the target. The result is interpolated between the last two sizes, as if the
        error fell as a power of n_components. Maps that choose landmarks among rows are fitted on other rows than
        those that the error is measured on. This map is left as it is, and need not be fitted.

        Parameters
        ----------
        X : array, data frame, sparse matrix or torch tensor of shape (n_rows, n_features)
        target_error : float > 0
        n_samples : int, default=500
            Rows drawn from X to measure the error on.
        maximum : int, default=65536
            Most components to try.
        random_state : None, int, RandomState or Generator, default=0
            Draws the sample and the maps tried.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            If `maximum` components are too few; the message says which error they reach.

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
        """Exact kernel matrix of some rows, which the features of this fitted map approximate.

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


_KEPT = 4  # maps whose draws a process keeps after unpickling
_kept: OrderedDict[bytes, Draws] = OrderedDict()
_lock = Lock()


def _forget_lock() -> None:
    """Start anew in a forked process: a thread of its parent may hold the lock, and is not there to give it back."""
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)


def _again(feature_map: FeatureMap) -> Draws:
    """Draws of a map from a pickle; those of the last few maps are kept, as Dask unpickles maps for every task."""
    plan, seed = feature_map._planned, feature_map._seed
    try:
        key = hashlib.sha256(pickle.dumps((type(feature_map), plan, seed))).digest()
    except Exception:  # a kernel that no pickle takes: then it was copied, and is drawn for this copy
        return feature_map._draw(plan, seed)
    with _lock:
        draws = _kept.pop(key, None)
        _kept[key] = feature_map._draw(plan, seed) if draws is None else draws
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
        return _kept[key]


SOME_MEMORY = 2**33  # bytes that are not denied to anyone: not all systems tell what is free
BYTES_TO_DRAW = 1024  # at least, for a component while a map is drawn and applied to a few rows
FEW_NUMBERS = 2**16  # features that are looked at one by one, as that takes less time than to ask anything else
ORDINARY = 1e3  # size of entries of rows for which features seldom overflow
LARGEST_COUNT = 4096  # depth, degree and other parameters of a map in a file whose work grows with them


def draw_bytes(part: Any) -> int:
    """Bound for the memory that the laws in a plan take when they are drawn."""
    if hasattr(part, "draw_bytes"):
        return part.draw_bytes()
    if isinstance(part, list | tuple):
        return sum(map(draw_bytes, part))
    return sum(draw_bytes(getattr(part, f.name)) for f in fields(part)) if is_dataclass(part) else 0


def _some_rows(n_features: int, *, sparse: bool, norm: float) -> Any:
    """Three rows of a norm, the same everywhere; at most 1024 entries of sparse ones are not 0."""
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
