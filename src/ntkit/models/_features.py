"""Fitting feature maps on blocks of rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags

from ntkit import _array
from ntkit._validation import message
from ntkit.features.base import FeatureMap
from ntkit.features.flips import FlipAveraged
from ntkit.models._blocks import ArraySource, Source, take_rows

_ROWS = 16384  # per block


def default_features(random_state: Any, X: Any, owner: str) -> Any:
    """Columns with their tails drawn in, then features of the NTK of depth 1 with a bias; an error if X has images."""
    from ntkit.features import NTKFeatures
    from ntkit.preprocessing import ArcsinhScaler

    if len(getattr(X, "shape", ())) == 4:
        raise ValueError(message(owner, "features", "a map of images, such as CNTKSketch(), if X has images", None))
    return Pipeline(
        [
            ("scale", ArcsinhScaler()),
            ("features", NTKFeatures(depth=1, n_components=2048, bias="auto", random_state=random_state)),
        ]
    )


def check_features(features: Any, owner: str) -> None:
    """Raise unless `features` is a transformer."""
    if not (hasattr(features, "fit") and hasattr(features, "transform")) or isinstance(features, type):
        rule = "a transformer with fit and transform, such as NTKFeatures() or a Pipeline of StandardScaler() and a map"
        raise TypeError(message(owner, "features", rule, features))


def fit_features(features: Any, source: Source) -> Any:
    """Return a fitted clone of a transformer.

    Rows in memory are given to it whole. Otherwise steps with a ``partial_fit`` (``StandardScaler``) read all
    blocks, one pass each, if the blocks can be read more than once; all others are fitted on the first
    block, which is enough for maps that do not look at the data.
    """
    features = clone(features)
    if isinstance(source, ArraySource) and not _is_on_disk(source.X):
        return _fit_whole(features, source.X)
    done: list[Any] = []
    for step in _steps(features):
        _fit_step(step, source, _transformer(done))
        done.append(step)
    return features


def _fit_whole(features: Any, X: Any) -> Any:
    """Fit a transformer on all rows.

    Images may be many times as large after the steps of a pipeline (patches): a map of images at its end, which does
    not look at them, gets one, so that they are not all held.
    """
    steps = features.steps if isinstance(features, Pipeline) and features.memory is None else []
    if len(X.shape) != 4 or len(steps) < 2 or not hasattr(_map_of(steps[-1][1]), "image_shape"):
        return features.fit(X, None)
    before = features[:-1].fit(X, None)
    steps[-1][1].fit(before.transform(take_rows(X, slice(0, 1))))
    return features


def _steps(features: Any) -> Iterator[Any]:
    """Yield the steps of a pipeline, those of pipelines within it too."""
    if isinstance(features, Pipeline):
        for _, step in features.steps:
            yield from _steps(step)
    elif features not in (None, "passthrough"):
        yield features


def _fit_step(step: Any, source: Source, before: Callable[[Any], Any]) -> None:
    if isinstance(step, FrozenEstimator):
        return
    if hasattr(step, "partial_fit"):
        if source.fit_step(step, before):
            return
        if source.repeatable:
            for block in source.blocks(_ROWS):
                step.partial_fit(before(block.X))
            return
    step.fit(before(source.first().X), None)
    if _map_of(step) is not None or not get_tags(step).requires_fit:
        return
    remedy = "Fit it on all rows beforehand and pass it in sklearn.frozen.FrozenEstimator"
    if hasattr(step, "partial_fit"):
        remedy += ", or pass an iterable that starts anew each time it is iterated over"
    warnings.warn(f"{type(step).__name__} was fitted on the first block of rows only. {remedy}.", stacklevel=2)


def _map_of(step: Any) -> Any:
    """The map of ntkit that a step is, or takes the mean of over mirror images; None for other steps."""
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
