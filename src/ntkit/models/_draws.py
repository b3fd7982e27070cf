"""Independent draws of a feature map on the same rows, with normalized, centred and rounded features."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from ntkit import _array
from ntkit._array import Array
from ntkit._random import keyed
from ntkit._state import Declared, Estimator, Field, Flag, Floats, Optional, Text
from ntkit._validation import check_bool, check_choice, check_int, message
from ntkit.models._checks import to_library
from ntkit.models._features import check_features, dense_features, fit_whole, seed_names, seeded
from ntkit.models._rows import block_rows, n_rows_of, take_rows

PRODUCT_DTYPES = ("bfloat16", "float32", "float64")


@dataclass
class Draw(Declared):
    """A fitted map, and the mean of its features over the rows of the fit (None if features are not centred)."""

    map: Any
    mean: Array | None

    _state: ClassVar[dict[str, Field]] = {
        "map": Estimator(("transform",)),
        "mean": Optional(Floats("m", single=True)),
    }


class MapDraws(Declared):
    """Several draws of the last step of `features`, each with its own seed. Earlier steps are fitted once.

    Parameters
    ----------
    features : transformer
    seed : numpy.random.SeedSequence
        Draw d uses the seed derived with the key ("draw", d), whatever the number of draws.
    normalize, center : bool
        `normalize` divides each row of features by its norm; `center` then subtracts the mean over the rows of the fit.
    product_dtype : str or None
        The features are rounded to this dtype at the end. None keeps the dtype of the map.
    batch_size : int or None
    owner : str
        Name of the estimator that has the parameter `features`, for error messages.
    zeros : bool
        Whether the features of a row may all be zero.
    """

    def __init__(
        self,
        features: Any,
        seed: np.random.SeedSequence,
        *,
        normalize: bool,
        center: bool,
        product_dtype: str | None,
        batch_size: int | None,
        owner: str,
        zeros: bool = True,
    ):
        self.before, self.step = _split(features)
        check_features(self.step, owner)
        self.seed, self.normalize, self.center = seed, normalize, center
        self.product_dtype, self.owner, self.zeros = product_dtype, owner, zeros
        self.batch_size, self.weight = batch_size, None

    _state: ClassVar[dict[str, Field]] = {
        "before": Optional(Estimator()),
        "normalize": Flag(),
        "center": Flag(),
        "product_dtype": Optional(Text(PRODUCT_DTYPES)),
        "owner": Text(),
        "zeros": Flag(),
    }
    _transient: ClassVar[tuple[str, ...]] = ("step", "seed", "weight", "batch_size")  # an unpickled object cannot draw
    batch_size: int | None = None
    weight: np.ndarray | None

    @property
    def settings(self) -> tuple[Any, ...]:
        """The settings that must be the same for all draws."""
        return self.normalize, self.center, self.product_dtype

    def check_number(self, n_draws: int) -> None:
        """Raise if several draws are asked for, but the map is not random."""
        if n_draws > 1 and not seed_names(self.step):
            rule = "1 if the last step of 'features' has no 'random_state'"
            raise ValueError(message(self.owner, "n_draws", rule, n_draws))

    def fit(self, X: Any, weight: np.ndarray | None = None) -> Any:
        """Fit the steps before the map and return the transformed rows. The map will be fitted with `weight` too."""
        self.weight = weight
        if self.before is None:
            return X
        self.before = seeded(self.before, keyed(self.seed, "before"))
        if weight is None:
            return self.before.fit_transform(X)
        return fit_whole(self.before, X, weight, self.owner).transform(X)

    def rows(self, X: Any) -> Any:
        """Apply the steps before the map."""
        return X if self.before is None else self.before.transform(X)

    def draw(self, number: int, rows: Any) -> tuple[Draw, Array]:
        """Fit draw `number` on the rows; return it and their features."""
        feature_map = seeded(self.step, keyed(self.seed, "draw", number), all_parts=True)
        fit_whole(feature_map, rows, self.weight, self.owner)
        mean = wide = dtype = None
        for part, Z, original in self._wide_blocks(feature_map, rows):
            xp: Any = _array.namespace(Z)
            if wide is None:
                wide = xp.empty((n_rows_of(rows), Z.shape[1]), dtype=Z.dtype, device=_array.device(Z))
            wide[part], dtype = Z, original
        assert wide is not None  # there is at least one row
        if self.center:
            xp = _array.namespace(wide)
            mean = xp.astype(xp.mean(wide, axis=0, dtype=xp.float64), wide.dtype)
            wide -= mean
        return Draw(_apart(feature_map, rows), mean), self._rounded(wide, dtype)

    def blocks(self, draw: Draw, rows: Any) -> Iterator[tuple[slice, Array]]:
        """Yield blocks of rows: their slice and their features in a draw."""
        for part, Z, dtype in self._wide_blocks(_apart(draw.map, rows), rows):
            if draw.mean is not None:
                Z = Z - to_library(draw.mean, Z)
            yield part, self._rounded(Z, dtype)

    def _wide_blocks(self, feature_map: Any, rows: Any) -> Iterator[tuple[slice, Array, Any]]:
        """Yield blocks of rows: their slice, their features in float32 or float64, and the dtype that the map gave."""
        first = self._transform(feature_map, take_rows(rows, slice(0, 1)))
        step = self.batch_size or block_rows(int(first.shape[1]), first.dtype.itemsize, first)
        for start in range(0, n_rows_of(rows), step):
            part = slice(start, min(start + step, n_rows_of(rows)))
            Z = self._transform(feature_map, take_rows(rows, part))
            yield part, self._normalized(Z), Z.dtype

    def _transform(self, feature_map: Any, X: Any) -> Array:
        return dense_features(feature_map, X, self.owner, keep_half=True)

    def _normalized(self, Z: Array) -> Array:
        """Divide rows by their norms if `normalize` is set, in float32 or wider; rows of zeros stay zero."""
        xp: Any = _array.namespace(Z)
        Z = xp.astype(Z, xp.float32) if Z.dtype.itemsize < 4 else Z
        peak = xp.max(xp.abs(Z), axis=1)
        if not bool(xp.all(xp.isfinite(peak))):
            raise ValueError(message(self.owner, "X", "free of NaN and infinity, and its features as well", Z))
        if not self.zeros and bool(xp.any(peak == 0)):
            rule = "free of rows whose features are all zero if hidden_layers > 0"
            raise ValueError(message(self.owner, "X", rule, Z))
        if not self.normalize:
            return Z
        Z = Z / _or_one(peak)  # so that squares neither overflow nor underflow
        return Z / _or_one(xp.sqrt(xp.sum(Z * Z, axis=1)))

    def _rounded(self, Z: Array, dtype: Any) -> Array:
        xp: Any = _array.namespace(Z)
        if self.product_dtype == "bfloat16" and _array.is_numpy(Z):
            rule = "'float32' or 'float64' for features in NumPy arrays, which have no bfloat16"
            remedy = "Pass X as a torch tensor."
            raise ValueError(message(self.owner, "product_dtype", rule, self.product_dtype, remedy))
        return xp.astype(Z, getattr(xp, self.product_dtype) if self.product_dtype else dtype, copy=False)


def check_draws(
    n_draws: Any, normalize: Any, center: Any, product_dtype: Any, batch_size: Any, progress: Any, owner: str
) -> None:
    """Check the parameters that every estimator with draws has."""
    check_int(n_draws, "n_draws", owner, minimum=1)
    check_bool(normalize, "normalize", owner)
    check_bool(center, "center", owner)
    if product_dtype is not None:
        check_choice(product_dtype, "product_dtype", owner, PRODUCT_DTYPES)
    if batch_size is not None:
        check_int(batch_size, "batch_size", owner, minimum=1)
    check_bool(progress, "progress", owner)


def _split(features: Any) -> tuple[Pipeline | None, Any]:
    """Return the steps before the last one, unfitted, and the last one."""
    before: list[tuple[str, Any]] = []
    while isinstance(features, Pipeline):
        before += [(f"{len(before)}-{name}", step) for name, step in features.steps[:-1]]
        features = features.steps[-1][1]
    return (clone(Pipeline(before)) if before else None), features


def _apart(feature_map: Any, rows: Any) -> Any:
    """On a GPU, return a copy of the map: arrays that maps cache on the device would add up over the draws."""
    return deepcopy(feature_map) if _array.is_torch(rows) and rows.device.type == "cuda" else feature_map


def _or_one(norms: Array) -> Array:
    """Return the norms as a column, with ones in place of zeros."""
    xp: Any = _array.namespace(norms)
    return xp.where(norms > 0, norms, xp.ones_like(norms))[:, None]
