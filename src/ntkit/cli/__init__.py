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

_INTERRUPTED, _TERMINATED = 128 + 2, 128 + 15  # the codes that shells report for SIGINT and SIGTERM
# Python remedies in messages of the library, as patterns, and the command-line remedies that replace them.
_REMEDIES = (
    (r"Pass drop_missing_target=True", "Use --drop-missing-target"),
    (r"Save it with ntkit\.save\(.*statistics=True\)", "Fit it again with --statistics"),
    (r"return_std needs", "--std needs"),
    (r"frame\.drop\(columns=\[('.*?')\]\)", r"--drop \1"),
    (r"X\.reshape\(len\(X\), -1\) turns images into rows", "flatten images into rows"),
)
# Sentences with any other Python code are left out.
_PYTHON = re.compile(r"\b(ntkit\.\w+\(|sklearn\.\w+\.|memory_limit\b|\w+=(True|False)\b)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``ntkit``; by default the arguments of the process. With ``--debug`` errors are raised.

    Returns
    -------
    int
        0 for success, 1 for an error in the data or the files, 2 for an error in the command line, 130 after an
        interrupt (SIGINT), 143 after termination (SIGTERM). A command that fails removes its unfinished files.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # terminals without ℓ and ± show a question mark
    try:
        from ntkit.cli.app import app

        with warnings.catch_warnings(), _termination():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _note
            code = int(app(args=arguments, prog_name="ntkit", standalone_mode=False, obj=arguments) or 0)
            return (
                code if code != _INTERRUPTED else _fail("interrupted", code)
            )  # typer turns KeyboardInterrupt into this code
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except _TerminatedError:
        return _fail("terminated", _TERMINATED)
    except Exception as error:
        if hasattr(error, "format_message"):  # an error of click, or of the copy of click inside typer
            return _usage(error)
        if "--debug" in arguments or not isinstance(
            error, ValueError | TypeError | OSError | ImportError | MemoryError
        ):
            raise
        return _fail(_text(error), 1)


class _TerminatedError(BaseException):
    """SIGTERM was received."""


@contextmanager
def _termination() -> Iterator[None]:
    """Raise an exception on SIGTERM, so that temporary files are removed.

    Only the main thread can set signal handlers; in other threads this does nothing.
    """

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
    code = _fail(error.format_message().removeprefix("Invalid value: "), int(error.exit_code))
    if context is not None:
        print(f"Try '{context.command_path} --help'.", file=sys.stderr)
    return code


def _text(error: Exception) -> str:
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("typer", "pandas", "pyarrow"):
        return "The command line needs more packages: pip install 'ntkit[cli]'"
    if isinstance(error, MemoryError):
        return f"There is not enough memory. {error} Fit with fewer --components.".replace("  ", " ")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return _without_python(str(error) or type(error).__name__)


def _without_python(text: str) -> str:
    """Replace the Python remedies in a message of the library by options of the command line."""
    for python, option in _REMEDIES:
        text = re.sub(python, option, text)
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", text)
    return " ".join(sentence for sentence in sentences if not _PYTHON.search(sentence)) or text


def _fail(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code


def _note(message: Any, *_: Any, **__: Any) -> None:
    text = f"note: {_without_python(str(message))}"
    if "tqdm" in sys.modules:  # tqdm draws its bar again below the note
        sys.modules["tqdm"].tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)
