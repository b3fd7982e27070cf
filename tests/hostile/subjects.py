"""The subjects of the trials: every public estimator and every public function of rows, in small sizes; verdicts on
errors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from tests.hostile.verdicts import Verdict

import ntkit.features
import ntkit.kernels
import ntkit.models
import ntkit.preprocessing
import ntkit.tables
from ntkit import networks as nn
from ntkit.features import NTKFeatures
from ntkit.models import FeatureRidge, FeatureRidgeClassifier

SHAPE = (3, 2, 2)
N_ROWS, N_COLUMNS = 24, 12  # columns: images of SHAPE laid flat

SMALL: dict[str, dict[str, Any]] = {
    "CNTKSketch": {"depth": 2, "image_shape": SHAPE, "degree": 2, "derivative_degree": 2},
    "NetworkFeatures": {"degree": 2, "derivative_degree": 2},
    "FeatureKMeans": {"n_clusters": 3},
    "FeatureRidgeSearch": {"candidates": {"ntk": NTKFeatures(n_components=16)}, "time_budget": None},
    "FeatureRidgeSearchClassifier": {"candidates": {"ntk": NTKFeatures(n_components=16)}, "time_budget": None},
    "FlipAveraged": {"image_shape": SHAPE},
    "TableClassifier": {"learner": FeatureRidgeClassifier(NTKFeatures(n_components=16), random_state=0)},
    "TableRegressor": {"learner": FeatureRidge(NTKFeatures(n_components=16), random_state=0)},
    "ImageStandardizer": {"image_shape": SHAPE},
    "ZCAWhitening": {"image_shape": SHAPE},
    "PatchWhitening": {"image_shape": SHAPE, "patch_size": 2},
}
"""Parameters that make an estimator small, or able to take flat rows; all others are defaults."""


def public(module: ModuleType) -> dict[str, Any]:
    """Public names of a module."""
    return {name: getattr(module, name) for name in module.__all__}


def estimator_classes() -> dict[str, type]:
    """Every public estimator, by name."""
    modules = (ntkit.features, ntkit.models, ntkit.preprocessing, ntkit.tables)
    found = {name: law for module in modules for name, law in public(module).items() if isinstance(law, type)}
    return {name: law for name, law in sorted(found.items()) if issubclass(law, BaseEstimator)}


def small(law: type) -> Any:
    """An estimator of a class, small enough to be fitted thousands of times."""
    names = law().get_params(deep=False)
    parameters: dict[str, Any] = {"random_state": 0} if "random_state" in names else {}
    if "features" in names and law.__name__ != "FlipAveraged":
        parameters["features"] = NTKFeatures(n_components=16)
    elif "n_components" in names and "learner" not in names and law.__name__ != "PatchWhitening":
        parameters["n_components"] = 16
    return law(**parameters | SMALL.get(law.__name__, {}))


def rows(n_rows: int = N_ROWS, seed: int = 0) -> np.ndarray:
    """Rows whose entries all floating-point types hold exactly: 1/8 to 2, none of them zero."""
    return np.random.default_rng(seed).integers(1, 17, (n_rows, N_COLUMNS)) / 8


def targets(subject: Any, X: np.ndarray) -> Any:
    """Targets that bfloat16 holds exactly; None for estimators that have none."""
    values = np.rint(4 * np.sin(3 * X[:, 0]) + 2 * X[:, 1]) / 4
    if is_classifier(subject):
        return np.digitize(values, [0.5])
    return values if is_regressor(subject) or needs_targets(subject) else None


def needs_targets(subject: Any) -> bool:
    """Return whether a transformer learns from targets."""
    return hasattr(subject, "__sklearn_tags__") and get_tags(subject).target_tags.required


@dataclass(frozen=True)
class Subject:
    """An estimator, or a function of rows, on trial."""

    name: str
    make: Callable[[], Any]
    function: bool = False

    def fit(self, X: Any, y: Any = None, weight: Any = None) -> Any:
        """A fitted estimator."""
        return self.refit(self.make(), X, y, weight)

    @staticmethod
    def refit(estimator: Any, X: Any, y: Any = None, weight: Any = None) -> Any:
        """Fit an estimator that may have been fitted before."""
        if is_classifier(estimator) or is_regressor(estimator) or needs_targets(estimator):
            return estimator.fit(X, y, sample_weight=weight) if weight is not None else estimator.fit(X, y)
        return estimator.fit(X, None, sample_weight=weight) if weight is not None else estimator.fit(X)

    @staticmethod
    def use(estimator: Any, X: Any) -> Any:
        """Numbers that it makes of rows."""
        if is_classifier(estimator) and hasattr(estimator, "decision_function"):
            return estimator.decision_function(X)
        if is_classifier(estimator) and hasattr(estimator, "predict_proba"):
            return estimator.predict_proba(X)
        return estimator.predict(X) if is_regressor(estimator) else estimator.transform(X)


def of_class(law: type, **parameters: Any) -> Subject:
    """A class on trial."""
    return Subject(law.__name__, lambda: clone(small(law)).set_params(**parameters))


def estimators() -> list[Subject]:
    """All estimators; ridge regression also with its default features."""
    found = [of_class(law) for law in estimator_classes().values()]
    default = Subject("FeatureRidge by default", lambda: ntkit.models.FeatureRidge(random_state=0))
    return [*found, default]


def _images(X: Any) -> Any:
    """Rows laid out as images, where they are an array or a tensor that can be."""
    plain_tensor = isinstance(X, torch.Tensor) and not X.is_nested and X.layout is torch.strided
    if (plain_tensor or (isinstance(X, np.ndarray) and not isinstance(X, np.matrix))) and X.shape[1:] == (N_COLUMNS,):
        return X.reshape(len(X), *SHAPE)
    return X


def functions() -> list[Subject]:
    """All public kernels of rows, and functions of images."""
    net = nn.fully_connected(2)
    calls: dict[str, Callable[[Any], Any]] = {
        name: getattr(ntkit.kernels, name) for name in ("gaussian", "laplace", "matern", "polynomial")
    }
    calls["exponential"] = lambda X: ntkit.kernels.exponential(X, lengthscale=64.0)
    calls["ntk"] = lambda X: ntkit.kernels.ntk(X, depth=2)
    calls["nngp"] = lambda X: ntkit.kernels.nngp(X, depth=2)
    calls["dot_product"] = lambda X: ntkit.kernels.dot_product(X, function=lambda t: 1 + t * t)
    calls["network_kernel"] = lambda X: ntkit.kernels.network_kernel(net, X)
    calls["gram"] = lambda X: ntkit.kernels.gram("ntk", X, depth=2)
    calls["diagonal"] = lambda X: ntkit.kernels.diagonal("ntk", X, depth=2)
    calls["row_blocks"] = lambda X: next(K for _, K in ntkit.kernels.row_blocks("ntk", X, depth=2))
    calls["cntk"] = lambda X: ntkit.kernels.cntk(_images(X), depth=2)
    calls["flip_images"] = lambda X: ntkit.preprocessing.flip_images(_images(X))
    return [Subject(name, lambda call=call: call, function=True) for name, call in calls.items()]


# Verdicts.

_ARGUMENT = re.compile(
    r"\bX\b|\bY\b|\by\b|sample_weight|'[a-z_]+' parameter|column|The table|target|images|data frame|[Ff]eature names"
)
_RULE = re.compile(
    r"\bmust\b|\bneeds?\b|requires?d?\b|minimum|not supported|[Ee]xpect|should|does not accept|is expecting|"
    r"do(?:es)? not|Correct it|Convert it|lacks|Only|looks like|inconsistent|exclude each other|cannot|too large"
)
_VALUE = re.compile(
    r"[Gg]ot |\d|shape|dtype|is None|NaN|infinit|holds |lacks the|zero|overflow|vectors|'[^']+'|complex", re.IGNORECASE
)  # fmt: skip
_FALSE = re.compile(r"contains (NaN|infinity)", re.IGNORECASE)
_TYPES = (TypeError, ValueError, NotFittedError, FileNotFoundError, MemoryError)
_MODULES = ("builtins", "sklearn.exceptions", "sklearn.utils._param_validation")
_FOREIGN = ("LinAlgError", "KeyError", "IndexError", "_UFuncNoLoopError", "UFuncTypeError", "UnicodeDecodeError")


def judge(error: BaseException, *, finite: bool = False, argument: re.Pattern[str] = _ARGUMENT) -> Verdict:
    """Return the verdict on an exception; `finite` is True if the input has no NaN and no infinity."""
    text, kind = str(error), type(error)
    ours = kind.__module__ in _MODULES or kind.__module__.startswith("ntkit")
    if not (ours and isinstance(error, _TYPES)) or kind.__name__ in _FOREIGN or (finite and _FALSE.search(text)):
        return Verdict.FOREIGN
    if isinstance(error, NotFittedError):
        return Verdict.REFUSED
    named = argument.search(text) and _RULE.search(text) and _VALUE.search(text)
    return Verdict.REFUSED if named else Verdict.VAGUE


def plain(values: Any) -> np.ndarray:
    """Results as a float64 NumPy array."""
    if hasattr(values, "compute"):
        values = values.compute()
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    if hasattr(values, "toarray"):
        values = values.toarray()
    values = np.asarray(values, dtype=np.float64)
    return values.reshape(len(values), -1)


def difference(values: Any, expected: Any) -> float:
    """Largest difference over the largest expected value; infinite if shapes differ or a number is not finite."""
    values, expected = plain(values), plain(expected)
    if values.shape != expected.shape or not np.isfinite(values).all():
        return np.inf
    return float(np.abs(values - expected).max() / (np.abs(expected).max() or 1.0))


def quietly(call: Callable[[], Any]) -> Any:
    """The result of a call, without its warnings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return call()
