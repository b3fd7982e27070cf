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
from ntkit.features._base import FeatureMap
from ntkit.models._blocks import ArraySource, Source

_ROWS = 16384  # per block


def default_features(random_state: Any) -> Any:
    """Columns with their tails drawn in, then features of the NTK of depth 1 with a bias."""
    from ntkit.features import ArcsinhScaler, NTKFeatures

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
        return features.fit(source.X, None)
    done: list[Any] = []
    for step in _steps(features):
        _fit_step(step, source, _transformer(done))
        done.append(step)
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
    if isinstance(step, FeatureMap) or not get_tags(step).requires_fit:
        return
    remedy = "Fit it on all rows beforehand and pass it in sklearn.frozen.FrozenEstimator"
    if hasattr(step, "partial_fit"):
        remedy += ", or pass an iterable that starts anew each time it is iterated over"
    warnings.warn(f"{type(step).__name__} was fitted on the first block of rows only. {remedy}.", stacklevel=2)


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
