"""Estimators as JSON data: which classes there are, their parameters, and what all kinds have in common.

The module of a kind (``maps``, ``models``, …) has ``MARK``, an attribute that fitted estimators have, ``write``, which
turns what is fitted into data, and ``read``, which puts it into an estimator with its parameters, and checks it.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from ntkit import __version__
from ntkit._encoding.values import decode, encode, require
from ntkit._random import seed_sequence
from ntkit._validation import check_int, describe

REMEDY = (
    "skops.io.dump saves any estimator (loading asks what to trust), joblib.dump too (but loading runs what is in the "
    "file)."
)


class OtherDrawsError(ValueError):
    """A map whose features are not those it had when it was saved."""


class Saved(NamedTuple):
    """A class that can be saved."""

    module: str
    kind: str
    """Name of the module of this package that does it."""
    parameters: tuple[str, ...] | None = None
    """None: all. Others must have their defaults."""
    arrays: tuple[str, ...] = ()
    """Fitted attributes of scalers and of what makes images from images."""


_SCALING = "sklearn.preprocessing"
CLASSES = {
    "CNTKSketch": Saved("ntkit.features", "maps"),
    "DotProductSketch": Saved("ntkit.features", "maps"),
    "FastfoodFeatures": Saved("ntkit.features", "maps"),
    "FeatureKMeans": Saved("ntkit.models.kmeans", "clusters"),
    "FeatureRidge": Saved("ntkit.models.ridge", "models"),
    "FeatureRidgeClassifier": Saved("ntkit.models.ridge", "models"),
    "FeatureRidgeSearch": Saved("ntkit.models.search", "searches"),
    "FeatureRidgeSearchClassifier": Saved("ntkit.models.search", "searches"),
    "FlipAveraged": Saved("ntkit.features", "flips"),
    "GaussianFeatures": Saved("ntkit.features", "fronts"),
    "GegenbauerFeatures": Saved("ntkit.features", "maps"),
    "GradientFeatures": Saved("ntkit.features", "maps"),
    "GramRidge": Saved("ntkit.models.gram", "grams"),
    "GramRidgeClassifier": Saved("ntkit.models.gram", "grams"),
    "ImageStandardizer": Saved("ntkit.preprocessing", "images", arrays=("mean_", "scale_")),
    "KernelRidge": Saved("ntkit.models.kernel_ridge", "duals"),
    "KernelRidgeClassifier": Saved("ntkit.models.kernel_ridge", "duals"),
    "MaclaurinFeatures": Saved("ntkit.features", "maps"),
    "NTKFeatures": Saved("ntkit.features", "maps"),
    "NTKPolynomialSketch": Saved("ntkit.features", "maps"),
    "NTKRandomFeatures": Saved("ntkit.features", "maps"),
    "NTKSketch": Saved("ntkit.features", "maps"),
    "NetworkFeatures": Saved("ntkit.features", "maps"),
    "NystroemFeatures": Saved("ntkit.features", "maps"),
    "OrthogonalFourierFeatures": Saved("ntkit.features", "maps"),
    "PatchWhitening": Saved("ntkit.preprocessing", "images", arrays=("channel_mean_", "mean_", "components_")),
    "PolynomialSketch": Saved("ntkit.features", "maps"),
    "RandomFourierFeatures": Saved("ntkit.features", "maps"),
    "TableEncoder": Saved("ntkit.tables", "tables"),
    "ZCAWhitening": Saved("ntkit.preprocessing", "images", arrays=("mean_", "whitening_")),
    "FrozenEstimator": Saved("sklearn.frozen", "containers", ("estimator",)),
    "Pipeline": Saved("sklearn.pipeline", "containers", ("steps", "verbose")),
    "MaxAbsScaler": Saved(_SCALING, "scalers", ("copy",), ("scale_", "max_abs_")),
    "MinMaxScaler": Saved(
        _SCALING,
        "scalers",
        ("feature_range", "copy", "clip"),
        ("scale_", "min_", "data_min_", "data_max_", "data_range_"),
    ),
    "ArcsinhScaler": Saved(
        "ntkit.preprocessing", "scalers", ("copy", "with_mean", "with_std"), ("scale_", "mean_", "var_")
    ),
    "Normalizer": Saved(_SCALING, "scalers", ("norm", "copy")),
    "RobustScaler": Saved(
        _SCALING,
        "scalers",
        ("with_centering", "with_scaling", "quantile_range", "copy", "unit_variance"),
        ("scale_", "center_"),
    ),
    "StandardScaler": Saved(_SCALING, "scalers", ("copy", "with_mean", "with_std"), ("scale_", "mean_", "var_")),
}
"""No other class is ever looked up."""


def _class_of(name: str) -> Any:
    return getattr(import_module(CLASSES[name].module), name)


def _kind_of(name: str) -> Any:
    return import_module(f"ntkit._encoding.{CLASSES[name].kind}")


class Writer:
    """Turns estimators into JSON data and arrays."""

    def __init__(self, *, statistics: bool):
        self.statistics = statistics
        self.arrays: dict[str, np.ndarray] = {}
        self._frozen: list[Any] = []

    def estimator(self, model: Any, where: str, *, fitted: bool = True) -> dict[str, Any]:
        """Data of an estimator; without `fitted` of its parameters only."""
        name = type(model).__name__
        if name not in CLASSES or type(model) is not _class_of(name):
            raise TypeError(
                f"{where} is a {type(model).__module__}.{name}, {describe(model)}, which cannot be saved. These can: "
                f"{', '.join(CLASSES)}. {REMEDY}"
            )
        for number, other in enumerate(self._frozen):
            if other is model:
                return {"type": "same", "number": number}
        frozen = name == "FrozenEstimator"
        node = {
            "type": "estimator",
            "class": name,
            "parameters": self._parameters(model, where, fitted=fitted or frozen),
            "output": vars(model).get("_sklearn_output_config", {}).get("transform"),
            "state": None,
        }
        kind = _kind_of(name)
        if fitted and kind.MARK in vars(model):
            node["state"] = kind.write(self, model, node, where)
        if frozen:
            self._frozen.append(model)
        return node

    def value(self, value: Any, where: str) -> Any:
        """Data of a value; of estimators the parameters only."""
        return encode(value, where, self.arrays, self._other)

    def _parameters(self, model: Any, where: str, *, fitted: bool) -> dict[str, Any]:
        values = model.get_params(deep=False)
        known = CLASSES[type(model).__name__].parameters or tuple(values)
        for name in sorted(set(values) - set(known)):
            default = signature(type(model)).parameters[name].default
            if values[name] is not default:
                raise TypeError(
                    f"{where} has {name}={describe(values[name])}, which cannot be saved. Set it to {default}. {REMEDY}"
                )
        data: dict[str, Any] = {}
        for name in known:
            value, place = values[name], f"{where}.{name}"
            if name == "steps":
                data[name] = [[key, self._step(step, f"{where}[{key!r}]", fitted=fitted)] for key, step in value]
            elif name == "estimator":
                data[name] = self.estimator(value, place)
            else:
                data[name] = self.value(_plain(model, value) if name == "random_state" else value, place)
        return data

    def _step(self, step: Any, where: str, *, fitted: bool) -> Any:
        return step if step is None or isinstance(step, str) else self.estimator(step, where, fitted=fitted)

    def _other(self, value: Any, where: str) -> Any:
        if hasattr(value, "get_params") and not isinstance(value, type):
            return self.estimator(value, where, fitted=False)
        raise TypeError(f"{where} is {describe(value)}, a {type(value).__name__}, which cannot be saved. {REMEDY}")


class Reader:
    """Makes estimators from what a :class:`Writer` has made of them.

    Takes the arrays that it uses out of `arrays`. `version` is that of the package that has written the data, and
    `tolerance` the relative difference that features may have.
    """

    def __init__(self, arrays: dict[str, np.ndarray], *, version: Any, tolerance: float = 1e-3):
        self.arrays, self.version, self.tolerance = arrays, version, tolerance
        self._frozen: list[Any] = []

    def estimator(self, data: Any, where: str) -> Any:
        """The estimator of some data, or an error of any class."""
        if isinstance(data, dict) and data.get("type") == "same":
            number = check_int(require(data, where, "type", "number")["number"], "number", where, minimum=0)
            return self._frozen[number]
        require(data, where, "type", "class", "parameters", "output", "state")
        name = data["class"]
        if data["type"] != "estimator" or not isinstance(name, str) or name not in CLASSES:
            raise ValueError(f"{where} is {describe(name)}, which is none of {', '.join(CLASSES)}")
        model = _class_of(name)(**self._parameters(name, data["parameters"], where))
        if data["output"] is not None:
            if data["output"] not in ("default", "pandas", "polars") or not hasattr(model, "set_output"):
                raise ValueError(f"{where} has {describe(data['output'])} as output")
            model.set_output(transform=data["output"])
        kind = _kind_of(name)
        if data["state"] is not None or not kind.MARK:
            kind.read(self, model, data["state"], where)
        if name == "FrozenEstimator":
            self._frozen.append(model)
        return model

    def value(self, data: Any, where: str) -> Any:
        """The value of some data."""
        return decode(data, where, self.arrays, self.estimator)

    def _parameters(self, name: str, data: Any, where: str) -> dict[str, Any]:
        known = CLASSES[name].parameters or tuple(signature(_class_of(name)).parameters)
        if isinstance(data, dict) and self.version != __version__:
            new_spelling = getattr(_class_of(name), "_new_spelling", None)
            data = data if new_spelling is None else new_spelling(data, warn=False)
            known = tuple(key for key in known if key in data)  # parameters that came later have their defaults
        require(data, f"the parameters of {where}", *known)
        values = {key: self.value(data[key], f"{where}.{key}") for key in known}
        seed_sequence(values.get("random_state"), owner=where)  # raises unless it is a seed
        return values


def _plain(model: Any, random_state: Any) -> Any:
    """A seed in place of a generator: the one that was drawn from it, or would be."""
    new = seed_sequence(deepcopy(random_state), owner=type(model).__name__)
    if not isinstance(random_state, np.random.Generator | np.random.RandomState):
        return random_state
    seed = getattr(model, "_seed", None)
    return new if seed is None else as_seed(seed)


def as_seed(seed: Any) -> np.random.SeedSequence:
    """The seed that an estimator has remembered."""
    if isinstance(seed, np.random.SeedSequence):
        return seed
    entropy, spawn_key, pool_size = seed
    return np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size)


def read_seed(reader: Reader, data: Any, where: str) -> np.random.SeedSequence:
    """The seed of some data."""
    seed = reader.value(data, where)
    if not isinstance(seed, np.random.SeedSequence):
        raise TypeError(f"{where} must have a seed, not {describe(seed)}")
    return seed


def column_names(model: Any) -> list[str] | None:
    """Names of the columns that an estimator was fitted on."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def read_columns(model: Any, state: dict[str, Any], where: str) -> int:
    """Set the number and the names of the columns that an estimator was fitted on."""
    n_features = check_int(state["n_features_in_"], "n_features_in_", where, minimum=1, maximum=2**31 - 1)
    names = state["feature_names_in_"]
    model.n_features_in_ = n_features
    if names is not None:
        if not isinstance(names, list) or len(names) != n_features or not all(isinstance(n, str) for n in names):
            raise ValueError(f"{where} must have {n_features} names of columns")
        model.feature_names_in_ = np.array(names, dtype=object)
    return n_features


def sizes(model: Any, where: str, *, fitted: bool = True) -> tuple[int | None, int | None]:
    """Columns in and out of a transformer, None where not known; an error if steps do not fit, or are not `fitted`."""
    name = type(model).__name__
    if name == "FrozenEstimator":
        return sizes(model.estimator, where, fitted=fitted)
    if name == "Pipeline":
        first = last = None
        for key, step in model.steps:
            if step is None or isinstance(step, str):
                continue
            n_in, n_out = sizes(step, f"{where}[{key!r}]", fitted=fitted)
            if None not in (last, n_in) and last != n_in:
                raise ValueError(f"{where}[{key!r}] takes {n_in} columns, but gets {last}")
            first, last = (n_in if first is None else first), n_out
        return first, last
    kind = _kind_of(name)
    if kind.MARK not in vars(model):
        if fitted:
            raise ValueError(f"{where} is not fitted")
        return None, None
    return int(model.n_features_in_), kind.n_columns(model)
