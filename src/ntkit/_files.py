"""Files of arrays and plain data: safetensors with JSON metadata and a checksum, written atomically.

A file holds the length of the header (8 bytes), the header (JSON with names, dtypes, shapes and offsets of the arrays)
and the arrays. The format is written here, so that arrays need not be copied in memory first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_KEY = "ntkit"
_LARGEST_METADATA = 2**26  # most characters of JSON metadata that are read
_OBJECT_BYTES = 32  # upper bound on bytes of Python objects per character of JSON; the worst case, "[],", has three
_ABANDONED_AFTER = 3600  # seconds; older temporary files count as abandoned where files cannot be locked
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip


class FileError(ValueError):
    """Raised for a file that cannot be read: of the wrong kind or version, truncated, or modified."""


def write(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
    """Write arrays and JSON data. The file appears complete, or the previous file stays.

    A replaced file keeps its mode. A symbolic link is kept, and its target is replaced. A process that is killed leaves
    a hidden file that ends in ``.tmp``; the next write to the same path removes it.

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
    arrays = {name: np.asarray(a, dtype=a.dtype.newbyteorder("="), order="C") for name, a in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"The array '{name}' has the dtype {array.dtype}, which cannot be written to a file.")
    # Not sorted: an object that occurs twice is written once, and its second occurrence must be read later.
    text = json.dumps(metadata, allow_nan=False)
    if len(text) > _LARGEST_METADATA // 2:
        raise ValueError(
            f"The metadata of '{path}' must have at most {_LARGEST_METADATA // 2} characters. Got {len(text)} instead."
        )
    header: dict[str, Any] = {"__metadata__": {_KEY: text, "sha256": _digest(arrays, text)}}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # keeps all arrays aligned
    end = 0
    for name in names:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": DTYPES[arrays[name].dtype.name], "shape": arrays[name].shape, "data_offsets": [start, end],
        }  # fmt: skip
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with replacing(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            file.write(_bytes(arrays[name]))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise an OSError that names the path unless a file can be written there. An existing file is not changed."""
    with suppress(_NothingWrittenError), replacing(path):
        raise _NothingWrittenError


class _NothingWrittenError(Exception):
    """Ends `replacing` before it replaces the file."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` once it is complete. Errors name `path` and leave the old file in place.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "x"
    >>> with replacing(path) as file:
    ...     _ = file.write(b"content")
    >>> path.read_bytes()
    b'content'
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise OSError(errno.EISDIR, "it is a folder")
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "it is a device or the like")
        remove_abandoned(target)
        temporary, file = _open_temporary(target)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if target.exists():
                    os.chmod(temporary, target.stat().st_mode & 0o7777)
                if fcntl is None:  # Windows cannot rename open files; elsewhere the file must stay locked until then
                    file.close()
                os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, f"'{path}' cannot be written: {error.strerror or error}") from error


def _open_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file for the content of `target`; it stays locked while it is open."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    mode = 0o600 if target.exists() else 0o666  # nobody may read the new file who may not read the old one
    while True:
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
        number = os.open(temporary, flags, mode)
        if fcntl is not None:
            with suppress(OSError):  # without locks nobody else gets one either, so nobody removes the file
                fcntl.flock(number, fcntl.LOCK_EX)
        if os.fstat(number).st_nlink:  # else another process locked and removed it first
            return temporary, open(number, "wb")
        os.close(number)


def remove_abandoned(path: str | os.PathLike[str]) -> None:
    """Remove temporary files of `path` that killed processes left behind, but none that is still being written."""
    target = Path(os.path.realpath(path))
    name = re.compile(re.escape(f".{target.name[:100]}.") + r"[0-9a-f]{8}\.tmp")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # another user's, or locked
                    _remove_unlocked(entry.path)


def _remove_unlocked(temporary: str) -> None:
    """Remove a file unless it is locked. A lock is released when its process ends."""
    if fcntl is None:
        if time.time() - os.stat(temporary).st_mtime > _ABANDONED_AFTER:
            os.unlink(temporary)
        return
    number = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temporary)
    finally:
        os.close(number)


def read_header(
    path: str | os.PathLike[str], *, kind: str, memory_limit: int | None = None
) -> tuple[dict[str, Any], dict[str, tuple[str, list[int]]]]:
    """Return the metadata of a file and the dtype and shape of each array, without reading the arrays.

    The metadata must have `kind` under "kind". The checksum is not verified; :func:`read` does that.
    """
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()}
        return _metadata(path, file.metadata(), kind, memory_limit), shapes


def read(
    path: str | os.PathLike[str], *, kind: str, memory_limit: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and metadata of a file, or raise a :class:`FileError` that says what is wrong with it.

    The metadata must have `kind` under "kind". A file of more than `memory_limit` bytes is not read.
    """
    with _opened(path) as file:
        size = os.stat(path).st_size
        if memory_limit is not None and size > memory_limit:
            raise FileError(
                f"'{path}' has {size} bytes, more than memory_limit={memory_limit}. Raise the limit to load it."
            )
        header = file.metadata()
        metadata = _metadata(path, header, kind, memory_limit)
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header.get("sha256") != _digest(arrays, header[_KEY]):
        raise FileError(f"'{path}' is damaged: its content does not match its checksum. Write or copy it again.")
    return arrays, metadata


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file without reading its arrays. All errors become a FileError."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file '{path}'.")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileError:
        raise
    except (SafetensorError, OSError, TypeError, KeyError, OverflowError, AttributeError, ValueError) as error:
        with open(path, "rb") as content:
            other = content.read(9)[8:] not in (b"{", b"")
        what = "it has another format" if other else str(error)
        raise FileError(f"'{path}' is not a complete ntkit file: {what}.") from error


def _metadata(path: str | os.PathLike[str], header: Any, kind: str, memory_limit: int | None) -> dict[str, Any]:
    text = (header or {}).get(_KEY)
    if text is None or len(text) > _LARGEST_METADATA:
        raise FileError(f"'{path}' is a safetensors file, but was not written by ntkit.")
    if memory_limit is not None and _OBJECT_BYTES * len(text) > memory_limit:
        raise FileError(f"The metadata of '{path}' may take more than memory_limit={memory_limit} bytes.")
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"The metadata of '{path}' is not JSON: {error}.") from error
    found = metadata.get("kind") if isinstance(metadata, dict) else None
    if found != kind:
        raise FileError(f"'{path}' holds {found!r}, not {kind!r}.")
    return metadata


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(_bytes(arrays[name]))
    return digest.hexdigest()


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))
