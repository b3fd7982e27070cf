"""Features on disk: a memory map, or a folder of safetensors files, which a later call can complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ntkit import _files
from ntkit._validation import message

KIND = "features"
SHARD_BYTES = 2**28
"""Bytes of features per file: the most that an interruption loses, and that a reader holds."""
Blocks = Callable[[int], Iterator[np.ndarray]]
"""Function that takes a row index, and yields blocks of features starting at this row."""


class FeatureShards:
    """Features in a folder of safetensors files, written by ``transform(X, out=folder)``.

    Iterating yields one array per file. ``np.asarray`` reads all files.

    Parameters
    ----------
    folder : path

    Attributes
    ----------
    shape : tuple (n_rows, n_components)
    dtype : numpy.dtype
    complete : bool
        Whether all rows are present. An interrupted `transform` leaves an incomplete folder.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from ntkit.features.empirical import FeatureShards
    >>> from ntkit.features.empirical.stores import write_shards
    >>> folder = tempfile.mkdtemp()
    >>> Z = np.arange(12.0).reshape(6, 2)
    >>> shards = write_shards(folder, "me", lambda start: iter([Z[start:]]), n_rows_per_shard=4)
    >>> shards.shape, len(list(shards)), bool((np.asarray(shards) == Z).all())
    ((6, 2), 2, True)
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self.paths = _paths(self.folder)
        if not self.paths:
            raise FileNotFoundError(f"There are no features in the folder '{folder}'.")
        headers = [_files.read_header(path, kind=KIND) for path in self.paths]
        sizes = [header[1]["features"][1] for header in headers]
        dtype = headers[0][1]["features"][0]
        self.dtype = np.dtype(next(name for name, code in _files.DTYPES.items() if code == dtype))
        self.shape = (sum(size[0] for size in sizes), sizes[0][1])
        self.complete = bool(headers[-1][0]["last"])
        self.fingerprint = str(headers[0][0]["fingerprint"])

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        for path in self.paths:
            yield _files.read(path, kind=KIND)[0]["features"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(list(self)).astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"FeatureShards('{self.folder}', shape={self.shape}, dtype={self.dtype})"


def write_shards(
    folder: str | os.PathLike[str], fingerprint: str, blocks: Blocks, *, n_rows_per_shard: int
) -> FeatureShards:
    """Write blocks of features to files with equal numbers of rows. Existing complete files are kept.

    `fingerprint` identifies what the features depend on. A folder with another fingerprint is refused.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = _paths(folder)
    done = 0
    for index, path in enumerate(found):
        metadata, shapes = _files.read_header(path, kind=KIND)
        if metadata["fingerprint"] != fingerprint:
            raise ValueError(
                f"The folder '{folder}' holds features of another map, another module or other rows. Delete it, or "
                "write to another folder."
            )
        if path.name != _name(index):
            raise _files.FileError(f"The folder '{folder}' lacks the file '{_name(index)}'. Delete it and start again.")
        done += shapes["features"][1][0]
        if metadata["last"]:
            return FeatureShards(folder)
    index, waiting = len(found), np.empty((0, 0))
    for block in blocks(done):
        waiting = np.concatenate([waiting, block]) if len(waiting) else block
        while len(waiting) > n_rows_per_shard:  # keep the last file back: it is marked as the last
            _write(folder, index, waiting[:n_rows_per_shard], fingerprint, last=False)
            waiting, index = waiting[n_rows_per_shard:], index + 1
    _write(folder, index, waiting, fingerprint, last=True)
    return FeatureShards(folder)


def write_npy(path: Path, n_rows: int | None, blocks: Blocks) -> np.ndarray:
    """Write blocks of features to a .npy file, and return it as a memory map."""
    if n_rows is None:
        raise ValueError(
            f"The number of rows must be known in advance to write '{path}'. Pass a folder as out, or a loader whose "
            "data set has a length."
        )
    out, start = None, 0
    for block in blocks(0):
        if out is None:
            out = np.lib.format.open_memmap(path, mode="w+", dtype=block.dtype, shape=(n_rows, block.shape[1]))
        out[start : start + len(block)] = block
        start += len(block)
    assert out is not None
    out.flush()
    if start != n_rows:
        raise ValueError(f"The loader yielded {start} rows, but its data set has {n_rows}; '{path}' is incomplete.")
    return np.load(path, mmap_mode="r")


def check_out(out: Any, owner: str) -> Path:
    """Check the path for the features, and return it."""
    if not isinstance(out, str | os.PathLike):
        raise TypeError(message(owner, "out", "None, a path that ends in .npy, or a folder", out))
    path = Path(out)
    if path.suffix == ".npy":
        _files.check_writable(path)
    elif path.exists() and not path.is_dir():
        raise ValueError(message(owner, "out", "None, a path that ends in .npy, or a folder", str(out)))
    return path


def _name(index: int) -> str:
    return f"features-{index:06}.safetensors"


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("features-*.safetensors"))


def _write(folder: Path, index: int, block: np.ndarray, fingerprint: str, *, last: bool) -> None:
    metadata = {"kind": KIND, "fingerprint": fingerprint, "last": last}
    _files.write(folder / _name(index), {"features": np.ascontiguousarray(block)}, metadata)
