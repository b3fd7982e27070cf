"""Files of arrays and plain data: safetensors with JSON metadata and a digest, written in one piece or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_KEY = "ntkit"
_LARGEST_METADATA = 2**26


class FileError(ValueError):
    """A file that cannot be read: not of the kind expected, cut off, changed, or made by a later version."""


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
    """Write arrays and JSON data. The file appears complete, or the one before it stays.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "x", {"a": np.arange(3)}, {"kind": "example"})
    ...     arrays, metadata = read(Path(folder) / "x", kind="example")
    >>> arrays["a"], metadata
    (array([0, 1, 2]), {'kind': 'example'})
    """
    from safetensors.numpy import save

    arrays = {name: np.asarray(a, dtype=a.dtype.newbyteorder("="), order="C") for name, a in arrays.items()}
    text = json.dumps(metadata, allow_nan=False, sort_keys=True)
    if len(text) > _LARGEST_METADATA // 2:
        raise ValueError(f"The metadata of '{path}' would take {len(text)} characters; that is too many.")
    content = save(arrays, metadata={_KEY: text, "sha256": _digest(arrays, text)})
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def read(path: str | os.PathLike[str], *, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`write` has written, or raise a :class:`FileError` that says what is wrong with the file.

    `kind` is what its metadata must say under "kind".
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file '{path}'.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            text = header.get(_KEY)
            if text is None or len(text) > _LARGEST_METADATA:
                raise FileError(f"'{path}' is a safetensors file, but was not written by ntkit.")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileError:
        raise
    except (SafetensorError, OSError, TypeError, KeyError, OverflowError, AttributeError, ValueError) as error:
        raise FileError(f"'{path}' is not a complete ntkit file: {error}.") from error
    if header.get("sha256") != _digest(arrays, text):
        raise FileError(f"'{path}' is damaged: its content does not match its checksum. Write or copy it again.")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"The metadata of '{path}' is not JSON: {error}.") from error
    found = metadata.get("kind") if isinstance(metadata, dict) else None
    if found != kind:
        raise FileError(f"'{path}' holds {found!r}, not {kind!r}.")
    return arrays, metadata


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(memoryview(array.reshape(-1).view(np.uint8)))
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
