"""Fitting feature maps on blocks of rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import has_fit_parameter, validate_data

from ntkit import _array
from ntkit._array import Array
from ntkit._random import keyed
from ntkit._validation import check_int, message
from ntkit.features.base import FeatureMap
from ntkit.features.flips import FlipAveraged
from ntkit.models._checks import check_weight
from ntkit.models._rows import ArraySource, Block, Source, n_features_of, n_rows_of, take_rows

Encode: TypeAlias = Callable[[Any, str], np.ndarray]
"""Function that encodes targets as columns of numbers; its second argument is the name of the model."""
_ROWS = 16384  # rows per block


MAX_LEARNED_COLUMNS = 1024  # the default features learn a metric for at most this many columns
TABLE_WIDTH = 2.0  # width of ArcsinhScaler before learned metrics; see docs/design/learned-metrics.md
SAMPLE = 20_000  # rows sampled from a stream, files or a Dask collection for steps that learn from targets


def default_features(X: Any, owner: str, *, learned: bool = False) -> Any:
    """Return the default features: ArcsinhScaler, then features of a kernel. There is no default for images.

    With `learned`, the kernel learns its metric, for dense rows of at most 1024 columns. Otherwise the kernel is the
    NTK of depth 1 with a bias, which depends on the norms of rows, so that their tails are compressed more.
    """
    from ntkit.features import NTKFeatures
    from ntkit.preprocessing import ArcsinhScaler

    if len(getattr(X, "shape", ())) == 4:
        raise ValueError(message(owner, "features", "a map of images, such as CNTKSketch(), if X holds images", None))
    features: Any = NTKFeatures(depth=1, n_components=2048, bias="auto")
    width = 1.0
    if learned and not _array.is_sparse(X) and n_features_of(X) <= MAX_LEARNED_COLUMNS:
        from ntkit.models.adaptive import AdaptiveFeatures

        features, width = AdaptiveFeatures(), TABLE_WIDTH
    # Sparse rows are not centred, so that they stay sparse.
    scaler = ArcsinhScaler(with_mean=not _array.is_sparse(X), width=width)
    return Pipeline([("scale", scaler), ("features", features)])


def seed_names(features: Any) -> list[str]:
    """Return the names of all parameters that are seeds, including parameters of nested parts."""
    names = features.get_params(deep=True) if hasattr(features, "get_params") else {}
    return sorted(name for name in names if name == "random_state" or name.endswith("__random_state"))


def seeded(features: Any, seed: np.random.SeedSequence, *, all_parts: bool = False) -> Any:
    """Return a clone whose parts without a seed (with `all_parts`: all parts) get their own, derived from `seed`."""
    features = clone(features)
    names = [name for name in seed_names(features) if all_parts or features.get_params()[name] is None]
    if names:  # ints, since maps of other libraries do not take a SeedSequence
        features.set_params(**{name: int(keyed(seed, name).generate_state(1)[0]) for name in names})
    return features


def check_size(n_components: Any, features: Any, owner: str) -> None:
    """Raise unless `n_components` is None or can be set on the features. `features` None means the default features."""
    if n_components is None:
        return
    check_int(n_components, "n_components", owner, minimum=1)
    if features is not None and not hasattr(([*_steps(features)] or [None])[-1], "n_components"):
        rule = f"None, because {type(features).__name__} has no n_components"
        raise ValueError(message(owner, "n_components", rule, n_components, "Omit it."))


def check_features(features: Any, owner: str) -> None:
    """Raise unless `features` is a transformer."""
    if not (hasattr(features, "fit") and hasattr(features, "transform")) or isinstance(features, type):
        rule = "a transformer with fit and transform, such as NTKFeatures() or a Pipeline of StandardScaler() and a map"
        raise TypeError(message(owner, "features", rule, features))


def fit_features(
    features: Any,
    source: Source,
    seed: np.random.SeedSequence,
    owner: str,
    encode: Encode | None = None,
    n_components: int | None = None,
) -> Any:
    """Return a fitted clone of a transformer. Parts without a seed get one from `seed`. None: the default features.

    Rows in memory are passed to it in one piece. Otherwise, steps with a ``partial_fit`` (``StandardScaler``) read all
    blocks in one pass each, if the blocks can be read more than once. Steps that learn from targets get a sample of
    all rows. All other steps are fitted on the first block, which is enough for maps that do not depend on the data.
    `n_components` is set on the last step unless it is None. `encode` encodes the targets; None if there are none.
    """
    if features is None:
        features = default_features(source.first().X, owner, learned=encode is not None)
    features = seeded(features, keyed(seed, "features"))
    if n_components is not None:
        list(_steps(features))[-1].set_params(n_components=n_components)
    if isinstance(source, ArraySource) and not _is_on_disk(source.X):
        return fit_whole(features, source.X, source.weight, owner, None if encode is None else source.y, encode)
    done: list[Any] = []
    for step in _steps(features):
        if encode is not None and looks_at_targets(step):
            block = source.sample(SAMPLE, keyed(seed, "sample"))
            X, y, weight = counted_rows(block, owner)
            fit_weighted(step, _transformer(done)(X), weight, y=encode(y, owner))
        else:
            _fit_step(step, source, _transformer(done), owner)
        done.append(step)
    return features


def importances(model: Any) -> np.ndarray | None:
    """Return the importances of the columns, if the features of a fitted model learned a metric of these columns."""
    if hasattr(model, "estimators_"):
        parts = [importances(each) for each in model.estimators_]
        known = [(part, weight) for part, weight in zip(parts, model.weights_, strict=True) if part is not None]
        return sum(p * w for p, w in known) / sum(w for _, w in known) if known else None
    steps = list(_steps(getattr(model, "features_", None)))
    found = getattr(steps[-1], "feature_importances_", None) if steps else None
    return found if found is not None and len(found) == model.n_features_in_ else None


def expected_alpha(model: Any) -> float | None:
    """Return the α that the features of a fitted model found for themselves, as a multiple of the mean k(x, x)."""
    steps = list(_steps(getattr(model, "features_", None)))
    return getattr(steps[-1], "expected_alpha_", None) if steps else None


def looks_at_targets(step: Any) -> bool:
    """Whether a step of ntkit learns from targets. It gets them as columns of numbers."""
    return getattr(step, "learns_from_targets", False)


def counted_rows(block: Block, owner: str) -> tuple[Any, Any, np.ndarray | None]:
    """Return the rows, targets and weights of a block, without the rows of weight 0."""
    X, weight = counted(block.X, block.weight, owner)
    y = block.y
    if weight is not None and len(weight) < n_rows_of(block.X):
        y = take_rows(y, np.flatnonzero(check_weight(block.weight, n_rows_of(block.X), owner)))
    return X, y, weight


def fit_whole(features: Any, X: Any, weight: Any, owner: str, y: Any = None, encode: Encode | None = None) -> Any:
    """Fit a transformer on all rows of positive weight; steps that take weights get them.

    Images may become many times larger in the steps of a pipeline (patches). A map of images at its end does not
    depend on the data, so it is fitted on one image, and the transformed images are never all in memory.
    """
    X, y, weight = counted_rows(Block(X, y, weight), owner)
    steps = list(_steps(features))
    if isinstance(features, Pipeline) and features.memory is not None:
        return features.fit(X, y)
    for number, step in enumerate(steps):
        fit_weighted(step, X, weight, y=encode(y, owner) if encode is not None and looks_at_targets(step) else y)
        if number + 1 < len(steps):
            of_one = number + 2 == len(steps) and len(X.shape) == 4 and hasattr(_map_of(steps[-1]), "image_shape")
            X = step.transform(take_rows(X, slice(0, 1)) if of_one else X)
    return features


def counted(X: Any, weight: Any, owner: str) -> tuple[Any, np.ndarray | None]:
    """Return the rows of non-zero weight, and these weights (None if there are none).

    All rows are returned if all weights are 0.
    """
    if weight is None:
        return X, None
    weight = check_weight(weight, n_rows_of(X), owner)
    if weight.all() or not weight.any():
        return X, weight
    return take_rows(X, np.flatnonzero(weight)), weight[weight > 0]


def fit_weighted(step: Any, X: Any, weight: np.ndarray | None, method: str = "fit", y: Any = None) -> None:
    """Fit a step, with weights if its method takes them."""
    weighted = weight is not None and has_fit_parameter(step, "sample_weight")
    getattr(step, method)(X, y, **({"sample_weight": weight} if weighted else {}))


def _steps(features: Any) -> Iterator[Any]:
    """Yield the steps of a pipeline, including the steps of nested pipelines."""
    if isinstance(features, Pipeline):
        for _, step in features.steps:
            yield from _steps(step)
    elif features not in (None, "passthrough"):
        yield features


def _fit_step(step: Any, source: Source, before: Callable[[Any], Any], owner: str) -> None:
    if isinstance(step, FrozenEstimator):
        return
    if hasattr(step, "partial_fit"):
        if source.fit_step(step, before):
            return
        if source.repeatable:
            for block in source.blocks(_ROWS):
                _fit_block(step, block, before, owner, "partial_fit")
            return
    _fit_block(step, source.first(), before, owner)
    if _map_of(step) is not None or not get_tags(step).requires_fit:
        return
    remedy = "To use all rows, fit it beforehand and pass it in sklearn.frozen.FrozenEstimator"
    if hasattr(step, "partial_fit"):
        remedy += ", or pass an iterable that starts again each time it is iterated over"
    warnings.warn(f"{type(step).__name__} was fitted on the first block of rows only. {remedy}.", stacklevel=2)


def _fit_block(step: Any, block: Block, before: Callable[[Any], Any], owner: str, method: str = "fit") -> None:
    """Fit a step on a block of rows; `partial_fit` skips blocks whose weights are all 0."""
    with block.located("weight"):
        X, weight = counted(block.X, block.weight, owner)
    if method == "fit" or weight is None or weight.any():
        with block.located("X"):
            fit_weighted(step, before(X), weight, method)


def _map_of(step: Any) -> Any:
    """Return the feature map of ntkit that a step is or that FlipAveraged wraps; None for other steps."""
    if isinstance(step, FlipAveraged):
        return _map_of(step.features)
    return step if isinstance(step, FeatureMap) else None


def _transformer(steps: list[Any]) -> Callable[[Any], Any]:
    def transform(X: Any) -> Any:
        for step in steps:
            X = step.transform(X)
        return X

    return transform


def _is_on_disk(X: Any) -> bool:
    while _array.is_numpy(X):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return False


def weighted_features(transformer: Any, X: Any, weights: Array, tolerance: float, owner: str) -> Array | None:
    """Return features times weights in float64, if the last step has a method `times` that avoids the features."""
    steps = list(_steps(transformer))
    if not steps or not isinstance(steps[-1], FeatureMap | TransformerMixin) or not hasattr(steps[-1], "times"):
        return None
    if isinstance(transformer, Pipeline) and transformer.memory is not None:
        return None
    values = steps[-1].times(_transformer(steps[:-1])(X), weights, tolerance)
    if not _array.all_finite(values):
        raise ValueError(message(owner, "X", "free of NaN and infinity, and its features as well", X))
    return values


def dense_features(transformer: Any, X: Any, owner: str, *, keep_half: bool = False) -> Array:
    """Return features as a dense finite matrix of float32 or float64; tensors in host memory become NumPy arrays.

    With `keep_half`, 16-bit tensors keep their dtype, and the caller must check that all numbers are finite.
    """
    Z = transformer.transform(X)
    if _array.is_sparse(Z):
        Z = Z.toarray()
    elif not _array.is_array(Z):
        Z = Z.to_numpy() if hasattr(Z, "to_numpy") else np.asarray(Z)
    Z = Z.detach() if _array.is_torch(Z) else Z
    if Z.ndim != 2 or not Z.shape[1]:
        rule = "a transformer with 2-D results" if Z.ndim != 2 else "a transformer with at least one feature"
        raise ValueError(message(owner, "features", rule, Z))
    view = None if keep_half else _array.host_view(Z)
    Z = Z if view is None else view
    xp: Any = _array.namespace(Z)
    floating = xp.isdtype(Z.dtype, "real floating")
    if not floating or Z.dtype.itemsize > 8:
        Z = xp.astype(Z, xp.float64)
    elif Z.dtype.itemsize < 4 and (not keep_half or _array.is_numpy(Z)):
        Z = xp.astype(Z, xp.float32)
    if not keep_half and not _array.all_finite(Z):
        raise ValueError(message(owner, "X", "free of NaN and infinity, and its features as well", X))
    return Z


def take_columns(model: Any, X: Any) -> None:
    """Store the number of columns of the rows of `fit` in a model, and their names if all have one."""
    model.n_features_in_ = n_features_of(X)
    validate_data(model, X, reset=True, skip_check_array=True, ensure_2d=False)


def check_columns(model: Any, X: Any) -> None:
    """Raise unless rows have the columns of the fit: the same number, with the same names in the same order.

    Transformers that ignore names would confuse the columns. Tensors have no names and need none.
    """
    if n_features_of(X) != model.n_features_in_:
        owner, expected = type(model).__name__, model.n_features_in_
        raise ValueError(f"X has {n_features_of(X)} features, but {owner} is expecting {expected} features as input.")
    if not _array.is_torch(X):
        validate_data(model, X, reset=False, skip_check_array=True, ensure_2d=False)
