"""Declared state: which attributes of an estimator go into pickles and files, and how files are checked.

An estimator, or a plain object inside one, declares the attributes that `fit` sets::

    class Ridge(Declared, BaseEstimator):
        _state = {
            **COLUMNS,                                 # n_features_in_ and feature_names_in_
            "coef_": Floats("n_features_in_", "k"),    # equal names are equal sizes
            "intercept_": Floats("k"),
            "_statistics": Optional(Part(Statistics), on_request=True),
        }
        _transient = ("_cache",)

Subclasses inherit the declarations of their bases. Pickles hold all attributes except the transient ones. Files hold
the declared attributes, which are checked on writing and on reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral
from types import EllipsisType
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np

from ntkit import _array
from ntkit._validation import describe

Size: TypeAlias = int | str | EllipsisType | None
"""Size of an axis: an int; a name, which has the same value everywhere in an object (the value of the int attribute of
this name, if there is one); None for any size; `...` in the last place for any further axes."""
Symbols: TypeAlias = dict[str, int]
MOST_LABELS = 2**20  # labels that a file may hold; more are refused
LARGEST_SEED = 2**1024  # bound on the integers of a seed in a file


def _refuse(where: str, rule: str, value: object) -> NoReturn:
    raise ValueError(f"{where} must be {rule}, not {describe(value)}")


def _check_size(size: Size, found: int, where: str, symbols: Symbols) -> None:
    expected = symbols.setdefault(size, found) if isinstance(size, str) else size
    if expected is not None and found != expected:
        name = f" ({size})" if isinstance(size, str) else ""
        raise ValueError(f"{where} has the size {found} instead of {expected}{name}")


@dataclass(frozen=True)
class Field:
    """Declaration of an attribute. The base class allows anything that a file can hold."""

    on_request: bool = field(default=False, kw_only=True)
    """Whether it is written only by ``save(…, statistics=True)``. It must then be Optional."""

    def check(self, value: Any, where: str, symbols: Symbols) -> Any:
        """Return the value, or raise a ValueError that names `where`. `symbols` holds the sizes known so far."""
        return self._check(value, where, symbols)

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        return value


@dataclass(frozen=True)
class Optional(Field):
    """An attribute that may be missing, or None."""

    of: Field

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        return None if value is None else self.of.check(value, where, symbols)


@dataclass(frozen=True)
class Real(Field):
    """A finite number ≥ `minimum` (> with `strict`)."""

    minimum: float | None = None
    strict: bool = False

    def _check(self, value: Any, where: str, symbols: Symbols) -> float:
        number = isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)
        low = number and self.minimum is not None and (value < self.minimum or (self.strict and value == self.minimum))
        if not number or not isfinite(value) or low:
            rule = "" if self.minimum is None else f" {'>' if self.strict else '≥'} {self.minimum}"
            _refuse(where, f"a finite number{rule}", value)
        return value


@dataclass(frozen=True)
class Integer(Field):
    """An int in a range."""

    minimum: int | None = None
    maximum: int | None = None

    def _check(self, value: Any, where: str, symbols: Symbols) -> int:
        low, high = self.minimum, self.maximum
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or (low is not None and value < low) or (high is not None and value > high):
            rule = "".join(
                f" {sign} {end}" for sign, end in (("≥", self.minimum), ("≤", self.maximum)) if end is not None
            )
            _refuse(where, f"an int{rule}", value)
        return int(value)


@dataclass(frozen=True)
class Flag(Field):
    """True or False."""

    def _check(self, value: Any, where: str, symbols: Symbols) -> bool:
        return bool(value) if isinstance(value, bool | np.bool_) else _refuse(where, "True or False", value)


@dataclass(frozen=True)
class Text(Field):
    """A string; one of `choices` if there are any."""

    choices: tuple[str, ...] = ()

    def _check(self, value: Any, where: str, symbols: Symbols) -> str:
        if not isinstance(value, str) or (self.choices and value not in self.choices):
            _refuse(where, f"one of {', '.join(map(repr, self.choices))}" if self.choices else "a text", value)
        return value


class _Shaped(Field):
    """An array with a declared shape."""

    shape: tuple[Size, ...]
    kinds: ClassVar[str]

    def check_shape(self, value: Any, where: str, symbols: Symbols) -> Any:
        """Return the value as an array in host memory, or raise a ValueError if its shape is wrong."""
        value, sizes = _array.to_numpy(value), self.shape
        if not (isinstance(value, np.ndarray) or _array.is_sparse(value)) or value.dtype.kind not in self.kinds:
            _refuse(where, f"an array of dtype kind {' or '.join(self.kinds)}", value)
        if sizes and sizes[-1] is ...:
            sizes = (*sizes[:-1], *[None] * max(value.ndim - len(sizes) + 1, 0))
        if value.ndim != len(sizes):
            raise ValueError(f"{where} must have {len(sizes)} axes, but has the shape {value.shape}")
        for size, found in zip(sizes, value.shape, strict=True):
            _check_size(size, found, where, symbols)
        return value


@dataclass(frozen=True, init=False)
class Floats(_Shaped):
    """An array of float64 (`single`: or float32; `sparse`: or CSR), with finite entries unless `finite` is False."""

    shape: tuple[Size, ...]
    finite: bool
    minimum: float | None
    single: bool
    sparse: bool
    kinds = "f"

    def __init__(
        self,
        *shape: Size,
        finite: bool = True,
        minimum: float | None = None,
        single: bool = False,
        sparse: bool = False,
        on_request: bool = False,
    ):
        given = locals()
        for name in ("shape", "finite", "minimum", "single", "sparse", "on_request"):
            object.__setattr__(self, name, given[name])

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        value = self.check_shape(value, where, symbols)
        if value.dtype.itemsize != 8 and not (self.single and value.dtype.itemsize == 4):
            _refuse(where, "an array of float64" + " or float32" * self.single, value)
        if _array.is_sparse(value) and not self.sparse:
            _refuse(where, "a dense array", value)
        numbers = value.data if _array.is_sparse(value) else value
        low, high = numbers.min(initial=0.0), numbers.max(initial=0.0)  # NaN if any entry is
        if self.finite and not (isfinite(low) and isfinite(high)):
            raise ValueError(f"{where} has NaN or infinite entries")
        if self.minimum is not None and not numbers.min(initial=np.inf) >= self.minimum:
            raise ValueError(f"{where} has entries below {self.minimum}")
        return value


@dataclass(frozen=True, init=False)
class Integers(_Shaped):
    """An array of integers in a range."""

    shape: tuple[Size, ...]
    minimum: int | None
    maximum: int | None
    kinds = "iu"

    def __init__(self, *shape: Size, minimum: int | None = None, maximum: int | None = None, on_request: bool = False):
        given = locals()
        for name in ("shape", "minimum", "maximum", "on_request"):
            object.__setattr__(self, name, given[name])

    def _check(self, value: Any, where: str, symbols: Symbols) -> np.ndarray:
        value = self.check_shape(value, where, symbols)
        range_ = Integer(self.minimum, self.maximum)
        for end in (value.min(), value.max()) if value.size else ():
            range_.check(end, f"An entry of {where}", symbols)
        return value


@dataclass(frozen=True)
class Labels(Field):
    """Class labels: an array of ints, floats, bools or strings."""

    size: Size = None

    def _check(self, value: Any, where: str, symbols: Symbols) -> np.ndarray:
        plain = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biufUO"
        if not plain or not all(isinstance(v, str | int | float | bool | np.generic) for v in value):
            _refuse(where, "an array of ints, floats, bools or text", value)
        if len(value) > MOST_LABELS:
            raise ValueError(f"{where} has {len(value)} labels, more than {MOST_LABELS}")
        _check_size(self.size, len(value), where, symbols)
        return value


@dataclass(frozen=True)
class Names(Field):
    """Column names: an array of strings."""

    size: Size = None

    def _check(self, value: Any, where: str, symbols: Symbols) -> np.ndarray:
        if not isinstance(value, np.ndarray) or value.ndim != 1 or not all(isinstance(name, str) for name in value):
            _refuse(where, "an array of text", value)
        _check_size(self.size, len(value), where, symbols)
        return value


@dataclass(frozen=True)
class Seed(Field):
    """A SeedSequence. Pickles hold its numbers instead, because skops loses the state of a SeedSequence."""

    def _check(self, value: Any, where: str, symbols: Symbols) -> np.random.SeedSequence:
        return value if isinstance(value, np.random.SeedSequence) else _refuse(where, "a seed", value)


@dataclass(frozen=True)
class Many(Field):
    """A list or tuple whose items share one declaration."""

    of: Field
    size: Size = None

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        if type(value) not in (list, tuple):
            _refuse(where, "a list or tuple", value)
        _check_size(self.size, len(value), where, symbols)
        return type(value)(self.of.check(item, f"{where}[{i}]", symbols) for i, item in enumerate(value))


@dataclass(frozen=True)
class Mapping(Field):
    """A dict with string keys, whose values share one declaration."""

    of: Field

    def _check(self, value: Any, where: str, symbols: Symbols) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            _refuse(where, "a dict with text as keys", value)
        return {key: self.of.check(item, f"{where}[{key!r}]", symbols) for key, item in value.items()}


@dataclass(frozen=True)
class Estimator(Field):
    """A nested estimator that has the given methods."""

    methods: tuple[str, ...] = ()

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        if not hasattr(value, "get_params") or isinstance(value, type):
            _refuse(where, "an estimator", value)
        for method in self.methods:
            if not hasattr(value, method):
                _refuse(where, f"an estimator with the method '{method}'", value)
        return value


@dataclass(frozen=True)
class Record:
    """Content of a :class:`Part` in a file, before its class is known."""

    name: str
    values: dict[str, Any]


@dataclass(frozen=True, init=False)
class Part(Field):
    """A nested object of one of the given Declared classes; not an estimator."""

    classes: tuple[type[Declared], ...]

    def __init__(self, *classes: type[Declared], on_request: bool = False):
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "on_request", on_request)

    def _check(self, value: Any, where: str, symbols: Symbols) -> Any:
        names = {cls.__name__: cls for cls in self.classes}
        if isinstance(value, Record) and value.name in names:
            cls = names[value.name]
            part = cls.__new__(cls)
            put_values(part, value.values, where)
            part._check_state(memory_left())
            return part
        return value if type(value) in self.classes else _refuse(where, f"a {' or '.join(names)}", value)


COLUMNS = {"n_features_in_": Integer(1, 2**31 - 1), "feature_names_in_": Optional(Names("n_features_in_"))}
"""State that describes the columns of the rows."""


class Declared:
    """Base class of estimators, and of parts of their state, that declare what `fit` sets."""

    _state: ClassVar[dict[str, Any]] = {}
    """Maps attribute names to their declarations."""
    _remade: ClassVar[tuple[str, ...]] = ()
    """Attributes that `_check_state` rebuilds from the others: stored in pickles, but not in files."""
    _transient: ClassVar[tuple[str, ...]] = ()
    """Caches, stored in neither pickles nor files."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        bases = [vars(base) for base in reversed(cls.__mro__)]
        cls._state = {name: f for base in bases for name, f in base.get("_state", {}).items()}
        for kind in ("_remade", "_transient"):
            setattr(cls, kind, tuple(dict.fromkeys(name for base in bases for name in base.get(kind, ()))))

    def _file_state(self) -> dict[str, Any]:
        """Return the values to write to a file, by attribute name."""
        return {name: vars(self)[name] for name in self._state if name in vars(self)}

    def _check_state(self, limit: int) -> None:
        """Raise a ValueError if the values loaded from a file are inconsistent. May allocate `limit` bytes."""

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in (super().__getstate__() or {}).items() if k not in self._transient}  # type: ignore[attr-defined]
        for name in _seeds(self, state):
            state[name] = seed_numbers(state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        for name in _seeds(self, state):
            entropy, spawn_key, pool_size = state[name]
            state[name] = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size)
        setstate = getattr(super(), "__setstate__", None)  # of BaseEstimator
        setstate(state) if setstate is not None else self.__dict__.update(state)


def _seeds(obj: Declared, state: dict[str, Any]) -> list[str]:
    kinds = {name: f.of if isinstance(f, Optional) else f for name, f in obj._state.items()}
    return [name for name, kind in kinds.items() if isinstance(kind, Seed) and state.get(name) is not None]


def seed_numbers(seed: np.random.SeedSequence) -> tuple[Any, tuple[int, ...], int]:
    """Return the numbers that define a SeedSequence."""
    return seed.entropy, tuple(seed.spawn_key), seed.pool_size


def get_values(obj: Declared, where: str, *, on_request: bool) -> dict[str, Any]:
    """Check and return the values to write to a file. Values marked `on_request` are included only on request."""
    try:
        values = obj._file_state()
    except ValueError as error:
        raise ValueError(f"{where} cannot be saved: {error}") from error
    values = {name: v for name, v in values.items() if on_request or not obj._state[name].on_request}
    return _checked(obj, values, where)


def put_values(obj: Declared, values: dict[str, Any], where: str) -> None:
    """Check the values of a file against the declarations, and set them as attributes."""
    unknown = sorted(set(values) - set(obj._state))
    if unknown:
        raise ValueError(f"{where} has the unknown attribute {describe(unknown[0])}")
    vars(obj).update(_checked(obj, values, where))


def _checked(obj: Declared, values: dict[str, Any], where: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    symbols: Symbols = {}
    for name, declared in obj._state.items():
        if name in values:
            out[name] = declared.check(values[name], f"{where}.{name}", symbols)
            if type(out[name]) is int:
                symbols[name] = out[name]
        elif not isinstance(declared, Optional):
            raise ValueError(f"{where} lacks the attribute '{name}'")
    return out


class MemoryLimitError(ValueError):
    """Raised when loading a file would take more memory or time than the limit allows."""


BYTES_PER_SECOND = 2**27  # time counts towards the memory limit: one second of one core as 128 MiB
_left: ContextVar[list[int] | None] = ContextVar("memory left", default=None)


@contextmanager
def limited_memory(n_bytes: int) -> Iterator[None]:
    """Limit the total that :func:`reserve` may reserve inside this context."""
    token = _left.set([n_bytes])
    try:
        yield
    finally:
        _left.reset(token)


def memory_left() -> int:
    """Return the bytes that may still be reserved, or 2⁶² without a limit."""
    left = _left.get()
    return 2**62 if left is None else left[0]


def reserve(n_bytes: int, what: str, *, seconds: float = 0.0) -> None:
    """Reserve memory and seconds of one core before using them. Raises if this exceeds the limit for loading a file."""
    left = _left.get()
    if left is None:
        return
    for cost, unit in ((int(n_bytes), "bytes"), (int(seconds * BYTES_PER_SECOND), "bytes' worth of time")):
        if cost > left[0]:
            raise MemoryLimitError(f"{what} would take about {float(cost):.1e} {unit}, but only {left[0]:.1e} are left")
        left[0] -= cost
