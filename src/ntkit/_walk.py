"""Convert estimators and their values to JSON data and arrays, and back.

A file may be hostile, so everything read from it is checked. Names are looked up in fixed tables; nothing from a file
is imported, called, or used as an index by compiled code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from ntkit import _NAMES, _array, _files, networks
from ntkit._random import seed_sequence
from ntkit._state import LARGEST_SEED, Declared, Record, get_values, memory_left, put_values, reserve, seed_numbers
from ntkit._validation import check_int, describe

CLASSES = {
    **_NAMES,
    "TableEncoder": "ntkit.tables",
    "AverageClassifier": "ntkit.models.average",
    "AverageRegressor": "ntkit.models.average",
    "TreeLeaves": "ntkit.models.leaves",
    "TreesClassifier": "ntkit.models.trees",
    "TreesRegressor": "ntkit.models.trees",
}
"""Maps each estimator of ntkit to its module."""
PACKAGES = (
    "compose", "decomposition", "feature_extraction", "feature_extraction.text", "feature_selection", "frozen",
    "impute", "kernel_approximation", "linear_model", "pipeline", "preprocessing", "random_projection",
)  # fmt: skip
"""scikit-learn packages whose estimators predict with NumPy and SciPy, which check sizes and indices."""
COMPILED = {
    "DictionaryLearning", "FeatureHasher", "HashingVectorizer", "LatentDirichletAllocation",
    "MiniBatchDictionaryLearning", "MiniBatchNMF", "NMF", "SparseCoder",
}  # fmt: skip
"""Estimators in these packages that are refused: their compiled code trusts the sizes it is given."""
LAYERS = {
    name: kind for name in networks.__all__ if is_dataclass(kind := getattr(networks, name)) and isinstance(kind, type)
}
SCORES = ("chi2", "f_classif", "f_oneway", "f_regression", "mutual_info_classif", "mutual_info_regression")
TYPES: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, object)} | {
    name: np.dtype(name).type for name in _files.DTYPES if name != "bool"
}
"""Types allowed as values of `dtype` parameters."""
MOST_LAYERS = 10_000  # layers of all networks in a file
DEEPEST = 100  # levels of nested values
LONGEST = 2**10  # characters of the name of a dtype
REMEDY = "joblib.dump saves any estimator, but loading such a file runs the code in it."


@cache
def _class_of(key: str) -> type:
    """Return the class for a key such as "ntkit.FeatureRidge" or "sklearn.preprocessing.OneHotEncoder"."""
    from sklearn.base import BaseEstimator

    module, _, name = key.rpartition(".")
    if module == "ntkit" and name in CLASSES:
        kind = getattr(import_module(CLASSES[name]), name)
        known = isinstance(kind, type) and issubclass(kind, Declared)
    elif module.removeprefix("sklearn.") in PACKAGES and module.startswith("sklearn.") and name not in COMPILED:
        kind = vars(import_module(module)).get(name)
        known = isinstance(kind, type) and issubclass(kind, BaseEstimator) and kind.__module__.startswith(module)
    else:
        known = False
    if not known:
        raise ValueError(f"{describe(key)} is not a class that ntkit loads")
    return kind


def _key_of(kind: type) -> str | None:
    """Return the key of a class, or None if ntkit does not load this class."""
    if issubclass(kind, Declared):
        key = f"ntkit.{kind.__name__}"
    else:
        parts = kind.__module__.split(".")
        key = ".".join([*(part for part in parts if not part.startswith("_")), kind.__name__])
        if key.count(".") > 2 and ".text." not in key:
            key = ".".join([*parts[:2], kind.__name__])
    try:
        return key if _class_of(key) is kind else None
    except ValueError:
        return None


@cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return the functions allowed as parameters: NumPy's ufuncs and scikit-learn's feature scores."""
    from sklearn import feature_selection

    ufuncs = {name: value for name, value in vars(np).items() if isinstance(value, np.ufunc)}
    return ufuncs | {name: getattr(feature_selection, name) for name in SCORES}


class Writer:
    """Turns values into JSON data and arrays."""

    def __init__(self, *, statistics: bool):
        self.statistics = statistics
        self.arrays: dict[str, np.ndarray] = {}
        self.estimators: list[Any] = []
        self.depth = 0

    def encode(self, value: Any, where: str) -> Any:
        """Convert a value to JSON data."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise TypeError(f"{where} cannot be saved: it is nested too deeply.")
        try:
            return self._encode(_array.to_numpy(value), where)
        finally:
            self.depth -= 1

    def _encode(self, value: Any, where: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int) or isinstance(value, str):
            return value if not isinstance(value, str) else str(value)
        if kind is float:
            return value if math.isfinite(value) else {"type": "float", "value": str(value)}
        if kind is list:
            return self._items(value, where)
        if kind is tuple:
            named = _is_named(value)
            items = [self.encode(item, where if named else f"{where}[{i}]") for i, item in enumerate(value)]
            return {"type": "tuple", "items": items}
        if isinstance(value, dict):
            items = [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"type": "dict", "items": items}
        if kind is slice:
            return {"type": "slice", "items": self._items([value.start, value.stop, value.step], where)}
        if isinstance(value, np.ndarray):
            return self._array(value, where)
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return {"type": "scalar", "dtype": value.dtype.str, "value": self.encode(value.item(), where)}
        if _array.is_sparse(value):
            csr, place = value.tocsr(), f"{where}.csr"
            parts = {key: self.encode(getattr(csr, key), f"{place}.{key}") for key in ("data", "indices", "indptr")}
            return {"type": "csr", "shape": list(map(int, csr.shape)), "matrix": "matrix" in kind.__name__, **parts}
        if isinstance(value, np.random.SeedSequence):
            entropy, spawn_key, pool_size = seed_numbers(value)
            words = int(entropy) if np.isscalar(entropy) else [int(word) for word in entropy]  # type: ignore[arg-type]
            return {"type": "seed", "entropy": words, "spawn_key": list(map(int, spawn_key)), "pool_size": pool_size}
        if isinstance(value, np.dtype) and value.kind in "biufUO":
            return {"type": "dtype", "name": value.str, "scalar": False}
        if isinstance(value, type) and value in TYPES.values():
            return {"type": "dtype", "name": value.__name__, "scalar": True}
        if kind in LAYERS.values():
            values = {f.name: self.encode(getattr(value, f.name), f"{where}.{f.name}") for f in fields(value)}
            return {"type": "layer", "class": kind.__name__, "fields": values}
        if kind.__name__ == "BSpline" and kind.__module__.startswith("scipy."):
            return {"type": "spline", "items": self._items([value.t, value.c, int(value.k), value.extrapolate], where)}
        if hasattr(value, "get_params"):
            return self._estimator(value, where)
        if isinstance(value, Declared):
            return {"type": "part", "class": kind.__name__, "state": self._state(value, where)}
        name = getattr(value, "__name__", "")
        if callable(value) and _functions().get(name) is value:
            return {"type": "function", "name": name}
        raise TypeError(f"{where} is {describe(value)}, a {kind.__name__}, which cannot be saved. {REMEDY}")

    def _items(self, values: Any, where: str) -> list[Any]:
        pairs = enumerate(values)
        return [self.encode(item, f"{where}[{item[0] if _is_named(item) else i!r}]") for i, item in pairs]

    def _array(self, value: np.ndarray, where: str) -> dict[str, Any]:
        if value.dtype.kind in "UO":
            items = self._items(value.ravel().tolist(), where)
            return {"type": "objects", "dtype": value.dtype.str, "shape": list(value.shape), "items": items}
        if value.dtype.name not in _files.DTYPES:
            raise TypeError(f"{where} is an array of {value.dtype}, which cannot be saved. {REMEDY}")
        while where in self.arrays:
            where += "'"
        # Keep the memory order: products with the matrix round differently in another order.
        columns_first = value.ndim == 2 and min(value.shape) > 1 and abs(value.strides[0]) < abs(value.strides[1])
        order = "F" if columns_first else "C"
        self.arrays[where] = value.T if order == "F" else value
        return {"type": "array", "name": where, "order": order}

    def _state(self, value: Declared, where: str) -> dict[str, Any]:
        state = get_values(value, where, on_request=self.statistics)
        return {name: self.encode(item, f"{where}.{name}") for name, item in state.items()}

    def _estimator(self, model: Any, where: str) -> dict[str, Any]:
        for index, other in enumerate(self.estimators):
            if other is model:
                return {"type": "same", "index": index}
        key, kind = _key_of(type(model)), type(model)
        if key is None:
            raise TypeError(f"{where} is a {kind.__module__}.{kind.__name__}, which cannot be saved. {REMEDY}")
        values = model.get_params(deep=False)
        parameters = {
            name: self.encode(_plain_seed(model, value) if name == "random_state" else value, _place(where, name))
            for name, value in values.items()
        }
        state: dict[str, Any] | None = None
        if isinstance(model, Declared):
            if any(name in vars(model) for name in model._state):
                state = self._state(model, where)
        else:
            _check_foreign(model, where)
            extra = {name: v for name, v in vars(model).items() if name not in values and name not in _NOT_STATE}
            state = {name: self.encode(v, _place(where, name)) for name, v in extra.items()}
        self.estimators.append(model)
        output = vars(model).get("_sklearn_output_config", {}).get("transform")
        return {"type": "estimator", "class": key, "parameters": parameters, "output": output, "state": state}


_NOT_STATE = ("_sklearn_output_config", "_sklearn_version", "_metadata_request")


def _is_named(value: Any) -> bool:
    """Whether a value is a tuple (name, estimator, …), such as a step of a pipeline."""
    return type(value) is tuple and len(value) > 1 and isinstance(value[0], str) and hasattr(value[1], "get_params")


def _place(where: str, name: str) -> str:
    return where if name in ("steps", "transformers", "transformer_list") else f"{where}.{name}"


def _plain_seed(model: Any, random_state: Any) -> Any:
    """Replace a generator by the seed that `fit` drew, or would draw, from it."""
    new = seed_sequence(deepcopy(random_state), owner=type(model).__name__)  # raises unless it is a seed
    if not isinstance(random_state, np.random.Generator | np.random.RandomState):
        return random_state
    return vars(model).get("_seed", new) if isinstance(model, Declared) else int(new.generate_state(1)[0])


class Reader:
    """Restores values from the output of a :class:`Writer`. Removes each array that it uses from `arrays`."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays
        self.estimators: list[Any] = []
        self.depth = self.n_layers = 0

    def decode(self, data: Any, where: str) -> Any:
        """Restore a value from JSON data."""
        if data is None or isinstance(data, str | bool | int):
            return data
        if isinstance(data, float):
            return data if math.isfinite(data) else _wrong(where, data)
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"{where} is nested too deeply")
        try:
            if isinstance(data, list):
                return [self.decode(item, f"{where}[{i}]") for i, item in enumerate(data)]
            name = data.get("type") if isinstance(data, dict) else None
            read = getattr(self, f"_read_{name}") if name in _READ else _wrong(where, name)
            return read({key: value for key, value in data.items() if key != "type"}, where)
        finally:
            self.depth -= 1

    def _items(self, data: dict[str, Any], where: str, size: int | None = None) -> list[Any]:
        (items,) = _take(data, where, "items")
        if not isinstance(items, list) or size not in (None, len(items)):
            _wrong(where, items)
        return self.decode(items, where)

    def _read_float(self, data: dict[str, Any], where: str) -> float:
        (text,) = _take(data, where, "value")
        return float(text) if text in ("inf", "-inf", "nan") else _wrong(where, text)

    def _read_tuple(self, data: dict[str, Any], where: str) -> tuple[Any, ...]:
        return tuple(self._items(data, where))

    def _read_dict(self, data: dict[str, Any], where: str) -> dict[Any, Any]:
        pairs = self._items(data, where)
        if not all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str | int | float | None) for p in pairs):
            _wrong(where, "a dict with keys other than text and numbers")
        return dict(pairs)

    def _read_slice(self, data: dict[str, Any], where: str) -> slice:
        items = self._items(data, where, 3)
        return slice(*items) if all(item is None or type(item) is int for item in items) else _wrong(where, items)

    def _read_array(self, data: dict[str, Any], where: str) -> np.ndarray:
        name, order = _take(data, where, "name", "order")
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError(f"{where} is the array {describe(name)}, which does not exist or is used twice")
        if order not in ("C", "F"):
            _wrong(where, order)
        array = self.arrays.pop(name)
        return array.T if order == "F" else array

    def _read_objects(self, data: dict[str, Any], where: str) -> np.ndarray:
        shape, name, _ = _take(data, where, "shape", "dtype", "items")
        dtype = _dtype(name, "UO", where)
        items = self._items({"items": data["items"]}, where)
        sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if not sizes or math.prod(shape) != len(items):
            _wrong(where, shape)
        reserve(max(dtype.itemsize, 8) * len(items), where)
        if dtype.kind == "U" and not all(isinstance(item, str) and 4 * len(item) <= dtype.itemsize for item in items):
            _wrong(where, "text that is too long")
        array = np.empty(len(items), dtype)
        for i, item in enumerate(items):
            array[i] = item
        return array.reshape(shape)

    def _read_scalar(self, data: dict[str, Any], where: str) -> Any:
        value, name = _take(data, where, "value", "dtype")
        number = self.decode(value, where)
        dtype = _dtype(name, "biuf", where)
        return dtype.type(number) if isinstance(number, bool | int | float) else _wrong(where, number)

    def _read_csr(self, data: dict[str, Any], where: str) -> Any:
        from scipy.sparse import csr_array, csr_matrix

        shape, matrix, *parts = _take(data, where, "shape", "matrix", "data", "indices", "indptr")
        if not isinstance(shape, list) or len(shape) != 2 or not all(type(s) is int and 0 <= s < 2**31 for s in shape):
            _wrong(where, shape)
        arrays = [self.decode(part, where) for part in parts]
        if not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in arrays):
            _wrong(where, arrays)
        csr = (csr_matrix if matrix is True else csr_array)(tuple(arrays), shape=tuple(shape))
        csr.check_format(full_check=True)
        return csr

    def _read_seed(self, data: dict[str, Any], where: str) -> np.random.SeedSequence:
        entropy, spawn_key, pool_size = _take(data, where, "entropy", "spawn_key", "pool_size")
        words = entropy if isinstance(entropy, list) and entropy else [entropy]
        for number in (*words, *(spawn_key if isinstance(spawn_key, list) else _wrong(where, spawn_key))):
            check_int(number, "entropy", where, minimum=0, maximum=LARGEST_SEED)
        pool = check_int(pool_size, "pool_size", where, minimum=4, maximum=1024)
        return np.random.SeedSequence(entropy, spawn_key=tuple(spawn_key), pool_size=pool)

    def _read_dtype(self, data: dict[str, Any], where: str) -> Any:
        name, scalar = _take(data, where, "name", "scalar")
        if scalar is not True:
            return _dtype(name, "biufUO", where)
        return TYPES[name] if isinstance(name, str) and name in TYPES else _wrong(where, name)

    def _read_layer(self, data: dict[str, Any], where: str) -> Any:
        name, values = _take(data, where, "class", "fields")
        self.n_layers += 1
        if not isinstance(name, str) or name not in LAYERS or not isinstance(values, dict):
            _wrong(where, name)
        if self.n_layers > MOST_LAYERS:
            raise ValueError(f"its networks have more than {MOST_LAYERS} layers")
        known = {f.name for f in fields(LAYERS[name])}
        if not known.issuperset(values):
            _wrong(where, sorted(set(values) - known))
        decoded = {key: self.decode(value, f"{where}.{key}") for key, value in values.items()}
        if name in ("Sequential", "Residual"):
            (parts,) = decoded.values()
            return LAYERS[name](*parts)
        return LAYERS[name](**decoded)

    def _read_spline(self, data: dict[str, Any], where: str) -> Any:
        from scipy.interpolate import BSpline

        knots, coefficients, degree, extrapolate = self._items(data, where, 4)
        check_int(degree, "degree", where, minimum=0, maximum=100)
        if extrapolate not in (True, False, "periodic") or not all(
            isinstance(array, np.ndarray) and array.dtype == np.float64 for array in (knots, coefficients)
        ):
            _wrong(where, extrapolate)
        return BSpline(knots, coefficients, degree, extrapolate=extrapolate)

    def _read_function(self, data: dict[str, Any], where: str) -> Callable[..., Any]:
        (name,) = _take(data, where, "name")
        return _functions()[name] if isinstance(name, str) and name in _functions() else _wrong(where, name)

    def _read_part(self, data: dict[str, Any], where: str) -> Record:
        name, state = _take(data, where, "class", "state")
        return Record(name, self._values(state, where)) if isinstance(name, str) else _wrong(where, name)

    def _values(self, data: Any, where: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            _wrong(where, data)
        return {name: self.decode(value, f"{where}.{name}") for name, value in data.items()}

    def _read_same(self, data: dict[str, Any], where: str) -> Any:
        (index,) = _take(data, where, "index")
        return self.estimators[check_int(index, "index", where, minimum=0, maximum=len(self.estimators) - 1)]

    def _read_estimator(self, data: dict[str, Any], where: str) -> Any:
        key, given, output, state = _take(data, where, "class", "parameters", "output", "state")
        kind: Any = _class_of(key) if isinstance(key, str) else _wrong(where, key)
        parameters = self._values(given, where)
        unknown = set(parameters) - set(signature(kind).parameters)
        if unknown:
            raise ValueError(f"{where} has the unknown parameter {describe(min(unknown))}")
        model = kind(**parameters)
        if output is not None:
            if output not in ("default", "pandas", "polars") or not hasattr(model, "set_output"):
                _wrong(where, output)
            model.set_output(transform=output)
        if issubclass(kind, Declared):
            seed_sequence(parameters.get("random_state"), owner=where)  # raises unless it is a seed
            if state is not None:
                put_values(model, self._values(state, where), where)
                model._check_state(memory_left())
        else:
            values = self._values(state, where)
            for name in values:
                if not name.isidentifier() or name.startswith("__") or name in parameters or hasattr(kind, name):
                    raise ValueError(f"{where} has the unknown attribute {describe(name)}")
            vars(model).update(values)
            _check_foreign(model, where)
            n_jobs = parameters.get("n_jobs")
            if isinstance(n_jobs, int) and n_jobs > (os.cpu_count() or 1):
                model.set_params(n_jobs=-1)  # all cores: a file must not start thousands of processes
        self.estimators.append(model)
        return model


_READ = {name.removeprefix("_read_") for name in vars(Reader) if name.startswith("_read_")}


def _wrong(where: str, value: Any) -> Any:
    raise ValueError(f"{where} is {describe(value)}, which is not valid there")


def _take(data: dict[str, Any], where: str, *keys: str) -> list[Any]:
    """Return the values of an object, which must have exactly these keys."""
    if set(data) != set(keys):
        raise ValueError(f"{where} must have {', '.join(keys)}, but has {describe(sorted(data))}")
    return [data[key] for key in keys]


def _dtype(name: Any, kinds: str, where: str) -> np.dtype:
    if not isinstance(name, str) or len(name) > LONGEST or not name.isascii() or "," in name:
        _wrong(where, name)
    dtype = np.dtype(name)
    return dtype if dtype.kind in kinds and dtype.fields is None and not dtype.shape else _wrong(where, name)


def _check_foreign(model: Any, where: str) -> None:
    """Raise unless a scikit-learn estimator has valid parameters and indices that are safe for compiled code."""
    if hasattr(type(model), "_parameter_constraints"):
        model._validate_params()
    if getattr(model, "memory", None) is not None:
        raise TypeError(f"{where} has memory={describe(model.memory)}, which cannot be saved. Set it to None.")
    vocabulary = vars(model).get("vocabulary_")
    if vocabulary is not None and sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError(f"{where}.vocabulary_ must map its words to the indices 0, 1, 2, …")
    if type(model).__name__ == "OneHotEncoder" and "categories_" in vars(model):
        _check_one_hot(model, where)


def _check_one_hot(model: Any, where: str) -> None:
    """Raise unless the columns of a OneHotEncoder match its categories; they are indices into a sparse matrix."""
    n, attributes = len(model.categories_), vars(model)
    groups = attributes.get("_default_to_infrequent_mappings") or [None] * n
    dropped = attributes.get("_drop_idx_after_grouping")
    dropped = [None] * n if dropped is None else list(dropped)
    for categories, group, drop, found in zip(
        model.categories_, groups, dropped, attributes["_n_features_outs"], strict=True
    ):
        size = len(categories)
        if group is not None:
            if len(group) != size or min(group) < 0 or max(group) >= size:
                raise ValueError(f"{where} has infrequent categories that do not match its categories")
            size = int(max(group)) + 1
        if (drop is not None and not 0 <= drop < size) or found != size - (drop is not None):
            raise ValueError(f"{where} has columns that do not match its categories")
