"""Statistics on disk, so that a fit that was killed goes on where it was."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._files import FileError
from ntkit._state import Declared, Field, Integer, Part, Text
from ntkit._validation import check_real, message
from ntkit.models._rows import Block, Digest, Source, take_rows
from ntkit.models._statistics import Statistics
from ntkit.models._targets import ClassTargets, RealTargets

if TYPE_CHECKING:
    from ntkit.models.ridge import FeatureModel

KIND = "checkpoint"


@dataclass
class Progress(Declared):
    """How far a fit has come."""

    fingerprint: str
    """Of what must be the same when the fit goes on: features, sizes, the first rows, the files."""
    n_blocks: int
    digest: str
    """Of the rows, targets and weights of all blocks so far."""
    statistics: Statistics
    targets: ClassTargets | RealTargets

    _state: ClassVar[dict[str, Field]] = {
        "fingerprint": Text(),
        "n_blocks": Integer(minimum=1),
        "digest": Text(),
        "statistics": Part(Statistics),
        "targets": Part(ClassTargets, RealTargets),
    }


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
        self._digest, self._n_seen = Digest(), 0
        self._resumed: Progress | None = None

    def resume(self) -> int:
        """Take over the statistics of the file, if there is one; return the number of blocks they contain."""
        from ntkit.persistence import load_part

        if not self.path.exists():
            return 0
        found = load_part(Progress, self.path, kind=KIND)
        if found.fingerprint != self.fingerprint:
            raise self._other("a fit with other parameters, features, files or first rows")
        self.model._statistics, self.model._targets = found.statistics, found.targets
        self._resumed = found
        return found.n_blocks

    def see(self, block: Block) -> None:
        """Take note of a block; raise if the blocks that the file holds had other rows."""
        self._digest.add(block.X, block.y, block.weight)
        self._n_seen += 1
        found = self._resumed
        if found is not None and self._n_seen == found.n_blocks and self._digest.text() != found.digest:
            raise self._other(f"other rows, targets or weights in the first {found.n_blocks} blocks")

    def end(self) -> None:
        """Raise if there were fewer blocks than the file holds."""
        if self._resumed is not None and self._n_seen < self._resumed.n_blocks:
            raise self._other(f"{self._resumed.n_blocks} blocks, where there are {self._n_seen} now")

    def _other(self, what: str) -> FileError:
        return FileError(f"The checkpoint '{self.path}' is of {what}. Remove it to begin again, or fit as before.")

    def write(self, n_blocks: int) -> None:
        """Write the statistics after `n_blocks` blocks, if it is time."""
        from ntkit.persistence import save_part

        statistics = self.model._statistics
        if time.monotonic() - self.written < self.every or not statistics.settled:
            return
        progress = Progress(self.fingerprint, n_blocks, self._digest.text(), statistics, self.model._targets)
        save_part(progress, self.path, kind=KIND)
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a fit that is complete."""
        self.path.unlink(missing_ok=True)


def _check_seeds(model: FeatureModel, owner: str) -> None:
    """Raise if a fit that goes on would draw other features or another sample; parts without a seed get the model's."""
    parameters = model.get_params(deep=True)
    for name in sorted(name for name in parameters if name.rpartition("__")[2] == "random_state"):
        value = parameters[name]
        if not isinstance(value, Integral | np.random.SeedSequence) and not (value is None and "__" in name):
            rule = "an int, for a fit with a checkpoint to go on with the same draws"
            raise ValueError(message(owner, name, rule, value))


def _fingerprint(model: FeatureModel, source: Source) -> str:
    """Digest of what must be the same when the fit goes on."""
    first = source.first()
    some: Any = _array.to_numpy(model._transform(take_rows(first.X, slice(0, 8))))
    digest = Digest()
    digest.add(some, *(take_rows(others, slice(0, 8)) for others in (first.y, first.weight)))
    text = (
        f"{type(model).__name__} {source.n_rows} {model._block_rows(source)} {model.n_selection} "
        f"{model._seed.entropy} {model._seed.spawn_key} {source.identity()} {digest.text()}"
    )
    return hashlib.sha256(text.encode()).hexdigest()
