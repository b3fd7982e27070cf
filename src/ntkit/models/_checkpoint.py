"""Statistics on disk, so that a fit that was killed goes on where it was."""

from __future__ import annotations

import hashlib
import time
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkit import _files
from ntkit._array import to_numpy
from ntkit._validation import check_real, message
from ntkit.models._blocks import Source, take_rows
from ntkit.models._statistics import Statistics

if TYPE_CHECKING:
    from ntkit.models.ridge import FeatureModel

KIND = "checkpoint"


class Checkpoint:
    """The file of one fit.

    It is written after whole multiples of the rows whose products are added up in single precision: then a
    fit that goes on from it rounds as one that was not interrupted.
    """

    def __init__(self, path: str | PathLike[str], every: float, model: FeatureModel, source: Source):
        owner = f"{type(model).__name__}.fit"
        self.path = Path(path)
        self.every = check_real(every, "checkpoint_every", owner, minimum=0)
        self.model = model
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"The 'checkpoint' parameter of {owner} names a file in '{self.path.parent}', which is not a folder."
            )
        if self.path.is_dir():
            raise IsADirectoryError(f"The 'checkpoint' parameter of {owner} names a folder, '{self.path}'.")
        _check_seeds(model, owner)
        self.fingerprint = _fingerprint(model, source)
        self.written = time.monotonic()

    def resume(self) -> int:
        """Take over the statistics of the file, if there is one; return the number of blocks they contain."""
        if not self.path.exists():
            return 0
        arrays, metadata = _files.read(self.path, kind=KIND)
        if metadata["fingerprint"] != self.fingerprint:
            raise _files.FileError(
                f"The checkpoint '{self.path}' belongs to a fit with other parameters, features or first rows. "
                "Remove it to begin anew, or fit as before."
            )
        self.model._statistics = Statistics.restore(arrays, metadata["statistics"])
        self.model._labels = list(metadata["labels"])
        if metadata["label_dtype"] is not None:
            self.model._label_dtype = np.dtype(metadata["label_dtype"])
        self.model._single = metadata["single"]
        return int(metadata["blocks"])

    def write(self, n_blocks: int) -> None:
        """Write the statistics after `n_blocks` blocks, if it is time."""
        statistics = self.model._statistics
        if time.monotonic() - self.written < self.every or not statistics.settled:
            return
        arrays, state = statistics.state()
        dtype = getattr(self.model, "_label_dtype", None)
        metadata = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "blocks": n_blocks,
            "statistics": state,
            "labels": self.model._labels,
            "label_dtype": None if dtype is None else np.dtype(dtype).str,
            "single": self.model._single,
        }
        _files.write(self.path, arrays, metadata)
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a fit that is complete."""
        self.path.unlink(missing_ok=True)


def _check_seeds(model: FeatureModel, owner: str) -> None:
    """Raise if a fit that goes on would draw other features or another sample."""
    parameters = model.get_params(deep=True)
    for name in sorted(name for name in parameters if name.rpartition("__")[2] == "random_state"):
        if not isinstance(parameters[name], Integral | np.random.SeedSequence):
            rule = "an int, for a fit with a checkpoint to go on with the same draws"
            raise ValueError(message(owner, name, rule, parameters[name]))


def _fingerprint(model: FeatureModel, source: Source) -> str:
    """Digest of what must be the same when the fit goes on: features, sizes, the first rows."""
    first = source.first()
    some: Any = model._transform(take_rows(first.X, slice(0, 8)))
    values = np.asarray(some.cpu() if hasattr(some, "cpu") else some)
    rows = model._block_rows(source)
    text = (
        f"{type(model).__name__} {values.shape} {values.dtype} {source.n_rows} {rows} {model.n_selection} {model._seed}"
    )
    digest = hashlib.sha256(text.encode())
    digest.update(np.ascontiguousarray(values).tobytes())
    for others in (first.y, first.weight):
        some = take_rows(others, slice(0, 8))
        digest.update(repr(None if some is None else np.asarray(to_numpy(some)).tolist()).encode())
    return digest.hexdigest()
