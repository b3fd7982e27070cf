"""Reports from long work to whoever listens: the command line shows them in its own bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, str], None]
_listener: Listener | None = None  # one for the process: threads report too


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener(event, detail)`` for reports: ("fit", name of a candidate) after each fit, ("compile", "")."""
    global _listener
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def report(event: str, detail: str = "") -> None:
    """Tell the listener, if there is one."""
    if _listener is not None:
        _listener(event, detail)


def fits_bar(name: str | None) -> Any:
    """A bar that counts fits, to be updated by hand; with a listener, reports to it. None: nothing is shown."""
    from tqdm.auto import tqdm

    if _listener is not None:
        return _Reports()
    return tqdm(desc=name, unit=" fits", disable=name is None)


class _Reports:
    """Takes the place of a bar."""

    detail = ""

    def __enter__(self) -> _Reports:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:  # noqa: ARG002
        self.detail = text

    def update(self) -> None:
        report("fit", self.detail)
