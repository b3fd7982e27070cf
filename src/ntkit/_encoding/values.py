"""Parameters and results as JSON data and arrays, and back. What comes back is checked: it may be anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from ntkit import networks
from ntkit._validation import check_int, describe
from ntkit.networks import Layer

Encode: TypeAlias = Callable[[Any, str], Any]
"""What is called for all other values, with their place: encodes them or raises."""
Decode: TypeAlias = Callable[[dict[str, Any], str], Any]

_LAYERS = (
    "Abs", "AvgPool", "Conv", "Dense", "Erf", "Flatten", "GELU", "Gaussian", "GlobalAvgPool", "LeakyReLU", "Normalize",
    "ReLU", "Residual", "Sequential", "Sin",
)  # fmt: skip


_NEW = {"bias_std": 0.0}  # fields of layers since version 0.1


def encode(value: Any, where: str, arrays: dict[str, np.ndarray], other: Encode) -> Any:
    """JSON data for a value; arrays go to `arrays`, under the name of the place.

    Examples
    --------
    >>> arrays = {}
    >>> encode((1, None, np.ones(2)), "x", arrays, None)
    {'type': 'tuple', 'items': [1, None, {'type': 'array', 'name': 'x[2]', 'order': 'C'}]}
    >>> arrays
    {'x[2]': array([1., 1.])}
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return number if math.isfinite(number) else {"type": "float", "value": str(number)}
    if isinstance(value, list | tuple):
        items = [encode(item, f"{where}[{i}]", arrays, other) for i, item in enumerate(value)]
        return items if type(value) is list else {"type": "tuple", "items": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        items = [[key, encode(item, f"{where}[{key!r}]", arrays, other)] for key, item in value.items()]
        return {"type": "dict", "items": items}
    if isinstance(value, np.random.SeedSequence):
        return {"type": "seed", **_seed_data(value, where)}
    if isinstance(value, Layer) and type(value).__name__ in _LAYERS:
        data = {f.name: encode(getattr(value, f.name), f"{where}.{f.name}", arrays, other) for f in fields(value)}  # type: ignore[arg-type]
        return {"type": "layer", "name": type(value).__name__, "fields": data}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 and value.ndim:
        while where in arrays:
            where += "'"
        arrays[where] = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        # Products with a matrix are rounded in another way if it lies in memory in another order.
        columns_first = value.ndim == 2 and min(value.shape) > 1 and value.strides[0] < value.strides[1]
        return {"type": "array", "name": where, "order": "F" if columns_first else "C"}
    return other(value, where)


def decode(data: Any, where: str, arrays: dict[str, np.ndarray], other: Decode) -> Any:
    """The value of JSON data. Arrays are taken out of `arrays`, so that what is left has not been used."""
    if data is None or isinstance(data, str | bool | int):
        return data
    if isinstance(data, float):
        if not math.isfinite(data):
            raise ValueError(f"{where} is not a number of JSON")
        return data
    if isinstance(data, list):
        return [decode(item, f"{where}[{i}]", arrays, other) for i, item in enumerate(data)]
    if not isinstance(data, dict):
        raise TypeError(f"{where} is {describe(data)}")
    kind = data.get("type")
    if kind == "float":
        if require(data, where, "type", "value")["value"] not in ("inf", "-inf", "nan"):
            raise ValueError(f"{where} is {describe(data['value'])}")
        return float(data["value"])
    if kind == "tuple":
        return tuple(decode(require(data, where, "type", "items")["items"], where, arrays, other))
    if kind == "dict":
        pairs = decode(require(data, where, "type", "items")["items"], where, arrays, other)
        if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise ValueError(f"{where} must have names and values")
        return dict(pairs)
    if kind == "seed":
        return _seed(require(data, where, "type", "entropy", "spawn_key", "pool_size"), where)
    if kind == "layer":
        return _layer(require(data, where, "type", "name", "fields"), where, arrays, other)
    if kind == "array":
        name, order = (require(data, where, "type", "name", "order")[key] for key in ("name", "order"))
        if not isinstance(name, str) or name not in arrays:
            raise ValueError(f"{where} is the array {describe(name)}, which is not there or was used before")
        if order not in ("C", "F"):
            raise ValueError(f"{where} has the order {describe(order)}")
        return np.asarray(arrays.pop(name), order=order)
    return other(data, where)


def require(data: Any, where: str, *keys: str) -> dict[str, Any]:
    """Return JSON data if it is an object with exactly these keys."""
    if not isinstance(data, dict):
        raise TypeError(f"{where} must have {', '.join(keys)}, but is {describe(data)}")
    missing, unknown = sorted(set(keys) - set(data)), sorted(set(data) - set(keys))
    if missing or unknown:
        parts = [f"lacks {', '.join(map(repr, missing))}"] * bool(missing)
        parts += [f"has unknown {', '.join(map(repr, unknown))}"] * bool(unknown)
        raise ValueError(f"{where} {' and '.join(parts)}")
    return data


def real_array(
    value: Any,
    where: str,
    shape: tuple[int | None, ...],
    *,
    single: bool = False,
    infinite: bool = False,
    positive: bool = False,
) -> np.ndarray:
    """Return `value` if it is a float64 array of a shape (None: any size) and finite.

    `single`: float32 is allowed too; `infinite`: infinity too, but not NaN; `positive`: all must be ≥ 0.
    """
    types = (np.float64, np.float32) if single else (np.float64,)
    if not isinstance(value, np.ndarray) or value.dtype not in types:
        raise TypeError(f"{where} must be an array of {' or '.join(t.__name__ for t in types)}, not {describe(value)}")
    if value.ndim != len(shape) or any(n not in (None, size) for n, size in zip(shape, value.shape, strict=True)):
        raise ValueError(f"{where} must have the shape {shape}, but has {value.shape}")
    ends = np.array([value.min(initial=0.0), value.max(initial=0.0)])
    if np.isnan(ends).any() or not (infinite or np.isfinite(ends).all()):
        raise ValueError(f"{where} has NaN or infinite entries")
    if positive and ends[0] < 0:
        raise ValueError(f"{where} has entries below 0")
    return value


def _seed(data: dict[str, Any], where: str) -> np.random.SeedSequence:
    """The seed of its three numbers."""
    entropy, spawn_key = data["entropy"], data["spawn_key"]
    words = entropy if isinstance(entropy, list) else [entropy]
    if not isinstance(spawn_key, list) or not words:
        raise TypeError(f"{where} must have numbers as entropy and a list as spawn_key")
    for number in (*words, *spawn_key):
        check_int(number, "entropy", where, minimum=0, maximum=2**1024)
    pool_size = check_int(data["pool_size"], "pool_size", where, minimum=4, maximum=1024)
    return np.random.SeedSequence(entropy, spawn_key=tuple(spawn_key), pool_size=pool_size)


def _seed_data(seed: np.random.SeedSequence, where: str) -> dict[str, Any]:
    entropy: Any = seed.entropy
    try:
        numbers = int(entropy) if isinstance(entropy, Integral) else [int(word) for word in entropy]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} has {describe(entropy)} as entropy. Use an int or a list of ints.") from error
    return {"entropy": numbers, "spawn_key": [int(word) for word in seed.spawn_key], "pool_size": int(seed.pool_size)}


def _layer(data: dict[str, Any], where: str, arrays: dict[str, np.ndarray], other: Decode) -> Layer:
    name = data["name"]
    if name not in _LAYERS:
        raise ValueError(f"{where} is a layer {describe(name)}, which ntkit.networks does not have")
    kind = getattr(networks, name)
    names, given = [f.name for f in fields(kind)], data["fields"]
    if isinstance(given, dict):  # files of version 0.1 have no biases
        given = {key: value for key, value in _NEW.items() if key in names} | given
    content = require(given, where, *names)
    values = {key: decode(value, f"{where}.{key}", arrays, other) for key, value in content.items()}
    if name in ("Sequential", "Residual"):
        return kind(*next(iter(values.values())))
    return kind(**values)
