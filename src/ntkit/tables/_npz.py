"""Reading rows and targets from NPZ files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

_MOST_NAMES, _LONGEST_NAME = 40, 60  # listed in an error message, and characters of each


def no_such(path: Path, kind: str, name: str, names: Sequence[str]) -> str:
    """Message for a name that is not there: the names there are and the closest one."""
    close = get_close_matches(name, names, 1, 0.6) or [n for n in names if n.lower() == name.lower()]
    short = [n if len(n) <= _LONGEST_NAME else n[: _LONGEST_NAME - 1] + "…" for n in names[:_MOST_NAMES]]
    shown = ", ".join(short) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    meant = f" Did you mean '{close[0]}'?" if close else ""
    return f"'{path}' has no {kind} '{name}'.{meant} It has: {shown}."


def read_npz(path: Path, target: str | None) -> tuple[np.ndarray, np.ndarray | None]:
    """The arrays with the rows and the targets."""
    try:
        # opened here, as NumPy leaves files open that are no archives
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = list(file.files)
            rows, labels = _array_names(path, names, target, lambda name: np.ndim(file[name]))
            X = file[rows]
            y = None if labels is None else file[labels]
            for name, array in ((rows, X), (labels, y)):
                if isinstance(array, bytes):  # what NumPy makes of a part that does not begin as arrays do
                    raise EOFError(f"'{name}' is no array")
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, zlib.error) as error:
        raise ValueError(f"Cannot read '{path}' as NPZ: {error}.") from error
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ValueError(
            f"'{path}' has arrays of Python objects, which are not read for safety. Save numbers or text (dtype str)."
        ) from error
    if X.ndim != 2:
        raise ValueError(
            f"The array '{rows}' of '{path}' must have two axes, rows and columns. Got the shape {X.shape}; "
            f"X.reshape(len(X), -1) makes rows of images."
        )
    if y is not None and (y.ndim != 1 or len(y) != len(X)):
        raise ValueError(
            f"The array '{labels}' of '{path}' must have one value for each of the {len(X)} rows of '{rows}'. Got the "
            f"shape {y.shape}."
        )
    return X, y


def _array_names(path: Path, names: list[str], target: str | None, ndim: Any) -> tuple[str, str | None]:
    """Names of the arrays with the rows and the targets."""
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
