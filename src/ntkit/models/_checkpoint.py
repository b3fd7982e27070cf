"""Statistics on disk, so that a fit that was killed goes on where it was."""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ntkit import _array, _files
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

    def __init__(self, path: str | PathLike[str], every: float, model: FeatureModel):
        owner = f"{type(model).__name__}.fit"
        self.path = Path(path)
        self.every = check_real(every, "checkpoint_every", owner, minimum=0)
        self.model = model
        _check_path(self.path, owner)
        _check_seeds(model, owner)
        self.fingerprint = ""
        self.written = time.monotonic()
        self._digest, self._n_seen = Digest(), 0
        self._resumed: Progress | None = None
        self._warned = False

    def resume(self, source: Source) -> int:
        """Take over the statistics of the file, if there is one; return the number of blocks they contain.

        The features must be fitted, and the statistics be those of no rows.
        """
        from ntkit.persistence import load_part

        self.fingerprint = _fingerprint(self.model, source)
        if not self.path.exists():
            return 0
        found = load_part(Progress, self.path, kind=KIND)
        if found.fingerprint != self.fingerprint:
            raise self._other("a fit with other parameters, features, files or first rows")
        if not self._fits(found):
            raise FileError(f"The checkpoint '{self.path}' contradicts itself. Remove it to begin again.")
        self.model._statistics, self.model._targets = found.statistics, found.targets
        self._resumed = found
        return found.n_blocks

    def _fits(self, found: Progress) -> bool:
        """Whether statistics and targets are of this model; the fingerprint says so, unless someone else wrote it."""
        statistics, empty = found.statistics, self.model._statistics
        return (
            type(found.targets) is type(self.model._targets)
            and statistics.settled
            and statistics.n_targets == found.targets.n_targets
            and statistics.n_components == empty.n_components
            and statistics.sample.size == empty.sample.size
        )

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
        try:
            save_part(progress, self.path, kind=KIND)
        except OSError as error:
            self._warn(f"The fit goes on without a checkpoint, and tries again every {self.every:g} s: {error}.")
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a fit that is complete, and what killed fits have left beside it."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._warn(f"The fit is complete, but its checkpoint '{self.path}' stays: {error.strerror}. Remove it.")
        _files.remove_abandoned(self.path)

    def _warn(self, text: str) -> None:
        """Warn, once."""
        if not self._warned:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._warned = True


def _check_path(path: Path, owner: str) -> None:
    """Raise unless a file can be made there: better now than when it is time for the first checkpoint."""
    try:
        _files.check_writable(path)
    except OSError as error:
        text = f"The 'checkpoint' parameter of {owner} must name a file that can be made: {error.strerror}."
        raise OSError(error.errno, f"{text} Choose another folder.") from error


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
