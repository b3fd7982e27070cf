"""Reading of rows and targets from NPZ files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

_MAX_NAMES, _MAX_NAME_LENGTH = 40, 60  # names listed in an error message, characters shown of each


def no_such(path: Path, kind: str, name: str, names: Sequence[str]) -> str:
    """Return the message for a name that does not exist, with the existing names and the closest one."""
    close = get_close_matches(name, names, 1, 0.6) or [n for n in names if n.lower() == name.lower()]
    short = [n if len(n) <= _MAX_NAME_LENGTH else n[: _MAX_NAME_LENGTH - 1] + "…" for n in names[:_MAX_NAMES]]
    shown = ", ".join(short) + (f" and {len(names) - _MAX_NAMES} more" * (len(names) > _MAX_NAMES))
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"'{path}' has no {kind} '{name}'.{meant} It has: {shown}."


def read_npz(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Read the arrays of rows and targets."""
    try:
        # Opened here, because NumPy does not close files that are not archives.
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = list(file.files)
            rows, labels = _array_names(path, names, target, lambda name: np.ndim(file[name]))
            X = file[rows]
            y = None if labels is None else file[labels]
            for name, array in ((rows, X), (labels, y)):
                if isinstance(array, bytes):  # NumPy returns the bytes of a member that is not an array
                    raise EOFError(f"'{name}' is not an array")
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, zlib.error) as error:
        raise ValueError(f"Cannot read '{path}' as NPZ: {error}.") from error
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"'{path}' has arrays of Python objects, which are not loaded for safety. Save numbers or text (dtype str)."
        ) from error
    if X.ndim != 2:
        raise ValueError(
            f"The array '{rows}' of '{path}' must have two axes, rows and columns. Got the shape {X.shape}; "
            f"X.reshape(len(X), -1) turns images into rows."
        )
    if y is not None and (y.ndim != 1 or len(y) != len(X)):
        raise ValueError(
            f"The array '{labels}' of '{path}' must have one value for each of the {len(X)} rows of '{rows}'. Got the "
            f"shape {y.shape}."
        )
    return X, y


def _array_names(path: Path, names: list[str], target: str | None, ndim: Any) -> tuple[str, str | None]:
    """Find the names of the arrays of rows and targets."""
    if target is None:
        found = [name for name in names if name in ("X", "X_test")] or [n for n in names if ndim(n) == 2]
        if not found or (len(found) > 1 and found[0] not in ("X", "X_test")):
            raise ValueError(f"'{path}' needs an array 'X' with the rows. It has: {', '.join(names) or 'nothing'}.")
        return min(found), None
    if target not in names and target == "y" and "y_train" in names:
        target = "y_train"
    if target not in names:
        raise ValueError(no_such(path, "array", target, names))
    own = "X" + target[1:] if target.startswith("y") else "X"
    rows = next((name for name in (own, "X", "X_train") if name in names), None)
    if rows is None:
        raise ValueError(f"'{path}' needs an array 'X' with the rows. It has: {', '.join(names)}.")
    return rows, target
