"""Progress reports from long computations. The command line listens and shows them in its own bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, str], None]
_listener: Listener | None = None  # one per process, because threads report too


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener(event, detail)`` on every report.

    The reports are ("fit", name of the candidate) after each fit, and ("compile", "") before a compilation.
    """
    global _listener
    previous, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = previous


def report(event: str, detail: str = "") -> None:
    """Send a report to the listener, if there is one."""
    if _listener is not None:
        _listener(event, detail)


def fits_bar(name: str | None) -> Any:
    """Return a bar that counts fits and is updated by hand. It is hidden if `name` is None.

    With a listener, every update is reported to it instead.
    """
    from tqdm.auto import tqdm

    if _listener is not None:
        return _Reports()
    return tqdm(desc=name, unit=" fits", disable=name is None)


class _Reports:
    """Stands in for a bar and reports its updates."""

    detail = ""

    def __enter__(self) -> _Reports:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:  # noqa: ARG002
        self.detail = text

    def update(self) -> None:
        report("fit", self.detail)
