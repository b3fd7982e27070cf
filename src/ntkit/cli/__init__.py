"""The ``ntkit`` command: fit, predict, evaluate, compare, demo."""

from __future__ import annotations

import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["main"]

_INTERRUPTED, _TERMINATED = 128 + 2, 128 + 15  # as shells report signals
# What messages of the library recommend in Python, and how the command line says it.
_OPTIONS = (
    (r"Pass drop_missing_target=True", "Say --drop-missing-target"),
    (r"Save it with ntkit\.save\(.*statistics=True\)", "Fit it again with --statistics"),
    (r"return_std needs", "--std needs"),
    (r"frame\.drop\(columns=\[('.*?')\]\)", r"--drop \1"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for an error in data or files, 2 for one in the command line.

    Interrupted (SIGINT) it is 130 and terminated (SIGTERM) 143; what was being written is removed then.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows ``ntkit``; by default the arguments of the process. ``--debug`` shows where an error came from.

    Returns
    -------
    int
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # ℓ and ± on a terminal that has none
    try:
        from ntkit.cli.app import app

        with warnings.catch_warnings(), _termination():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _note
            code = int(app(args=arguments, prog_name="ntkit", standalone_mode=False, obj=arguments) or 0)
            return code if code != _INTERRUPTED else _fail("interrupted", code)  # typer catches it first
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except _TerminatedError:
        return _fail("terminated", _TERMINATED)
    except Exception as error:
        if hasattr(error, "format_message"):  # an error of click, or of the copy that typer contains
            return _usage(error)
        if "--debug" in arguments or not isinstance(
            error, ValueError | TypeError | OSError | ImportError | MemoryError
        ):
            raise
        return _fail(_text(error), 1)


class _TerminatedError(BaseException):
    """A signal asks for an end."""


@contextmanager
def _termination() -> Iterator[None]:
    """Let SIGTERM raise an exception, so that temporary files are removed; only a main thread can."""

    def terminate(*_: Any) -> None:
        raise _TerminatedError

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return int(error.exit_code)
    context = getattr(error, "ctx", None)
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
    code = _fail(error.format_message(), int(error.exit_code))
    if context is not None:
        print(f"Try '{context.command_path} --help'.", file=sys.stderr)
    return code


def _text(error: Exception) -> str:
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("typer", "pandas", "pyarrow"):
        return "the command line needs more packages: pip install 'ntkit[cli]'"
    if isinstance(error, MemoryError):
        return f"there is not enough memory. {error} Fewer --components need less.".replace("  ", " ")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return _spoken(str(error) or type(error).__name__)


def _spoken(text: str) -> str:
    """A message of the library in the words of the command line."""
    for python, option in _OPTIONS:
        text = re.sub(python, option, text)
    return text


def _fail(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code


def _note(message: Any, *_: Any, **__: Any) -> None:
    text = f"note: {_spoken(str(message))}"
    if "tqdm" in sys.modules:  # a bar on the screen is drawn again below the note
        sys.modules["tqdm"].tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)
