"""Deprecated parameter names and positions: they work for one release and warn with the new spelling."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Self

_UNTIL = "0.3"  # the version that removes the old spellings


class OldSpellings:
    """Mixin for estimators that still accept parameters by position or by their old names."""

    _old_names: ClassVar[dict[str, str | tuple[str, Callable[[Any], Any]]]] = {}
    """Maps an old name to the new name, or to the new name and a function that converts the old value."""
    _old_positions: ClassVar[int] = 0
    """Number of leading parameters of the signature that could be given by position."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls) and (cls._old_positions or cls._old_names):
            cls.__init__ = _tolerant(cls.__init__)  # type: ignore[method-assign]

    def set_params(self, **params: Any) -> Self:
        """Set parameters; see scikit-learn's ``BaseEstimator``."""
        entries = {self._new_name(name) for name in params if name in self._old_names} - set(params)
        present = {name: value for name in entries if isinstance(value := getattr(self, name, None), dict)}
        return super().set_params(**self._new_spelling(present | params))  # type: ignore[misc]

    @classmethod
    def _new_name(cls, name: str) -> str:
        new = cls._old_names[name]
        return new if isinstance(new, str) else new[0]

    @classmethod
    def _new_spelling(cls, params: dict[str, Any], *, warn: bool = True) -> dict[str, Any]:
        """Return the parameters under their new names. Several old ones may become entries of one new dict."""
        out = {name: value for name, value in params.items() if name not in cls._old_names}
        for name, value in params.items():
            if name not in cls._old_names:
                continue
            new, new_name = cls._old_names[name], cls._new_name(name)
            now = value if isinstance(new, str) else new[1](value)
            if isinstance(now, dict) and isinstance(out.get(new_name), dict | None):
                now = (out.get(new_name) or {}) | now
            elif new_name in params:
                text = f"{cls.__name__} got both {new_name!r} and {name!r}, its old name."
                raise TypeError(f"{text} Pass only {new_name!r}.")
            out[new_name] = now
            if warn:
                given = f"{name}={value!r}" if isinstance(value, str | int | float | bool) else name
                text = f"{given} of {cls.__name__} is now {new_name}={now!r}"
                warnings.warn(f"{text}; the old name will be removed in version {_UNTIL}.", FutureWarning, stacklevel=3)
        return out


def _tolerant(init: Callable[..., None]) -> Callable[..., None]:
    names = [name for name in inspect.signature(init).parameters if name != "self"]
    by_position = [
        name
        for name, parameter in inspect.signature(init).parameters.items()
        if name != "self" and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]

    @wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        right = len(by_position)
        if right < len(args) <= self._old_positions:
            extra = dict(zip(names[right:], args[right:], strict=False))
            given = ", ".join(f"{name}={value!r}" for name, value in extra.items())
            text = (
                f"Pass the parameters of {type(self).__name__} by name: {given}. Positional parameters will be removed "
                f"in version {_UNTIL}."
            )
            warnings.warn(text, FutureWarning, stacklevel=2)
            twice = set(extra) & set(kwargs)
            if twice:
                raise TypeError(f"{type(self).__name__} got several values for {', '.join(sorted(twice))}.")
            args, kwargs = args[:right], extra | kwargs
        init(self, *args, **self._new_spelling(kwargs))

    return wrapper
