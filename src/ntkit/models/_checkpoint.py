"""Checkpoints: statistics saved to disk, from which an interrupted fit continues."""

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
    """State of a fit after some blocks of rows."""

    fingerprint: str
    """Digest of everything that must be the same when the fit continues: features, sizes, first rows, files."""
    n_blocks: int
    digest: str
    """Digest of the rows, targets and weights of all blocks so far."""
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
    """The checkpoint file of one fit.

    It is written only when no product in single precision is pending. A fit that continues from it therefore has the
    same rounding errors as a fit that was not interrupted.
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
        """Load the statistics from the file, if it exists, and return the number of blocks that they contain.

        The features must be fitted, and the model's statistics must be empty.
        """
        from ntkit.persistence import load_part

        self.fingerprint = _fingerprint(self.model, source)
        if not self.path.exists():
            return 0
        found = load_part(Progress, self.path, kind=KIND)
        if found.fingerprint != self.fingerprint:
            raise self._mismatch("comes from a fit with other parameters, features, files or first rows")
        if not self._fits(found):
            raise FileError(f"The checkpoint '{self.path}' is inconsistent. Remove it to start again.")
        self.model._statistics, self.model._targets = found.statistics, found.targets
        self._resumed = found
        return found.n_blocks

    def _fits(self, found: Progress) -> bool:
        """Whether statistics and targets fit this model. The fingerprint implies it, unless the file was forged."""
        statistics, empty = found.statistics, self.model._statistics
        return (
            type(found.targets) is type(self.model._targets)
            and statistics.settled
            and statistics.n_targets == found.targets.n_targets
            and statistics.n_components == empty.n_components
            and statistics.sample.size == empty.sample.size
        )

    def see(self, block: Block) -> None:
        """Add a block to the digest; raise if the blocks in the file had other rows."""
        self._digest.add(block.X, block.y, block.weight)
        self._n_seen += 1
        found = self._resumed
        if found is not None and self._n_seen == found.n_blocks and self._digest.text() != found.digest:
            raise self._mismatch(f"has other rows, targets or weights in the first {found.n_blocks} blocks")

    def end(self) -> None:
        """Raise if there were fewer blocks than in the file."""
        if self._resumed is not None and self._n_seen < self._resumed.n_blocks:
            raise self._mismatch(f"has {self._resumed.n_blocks} blocks, but there are only {self._n_seen} now")

    def _mismatch(self, what: str) -> FileError:
        remedy = "Remove it to start again, or fit with the original data and parameters."
        return FileError(f"The checkpoint '{self.path}' {what}. {remedy}")

    def write(self, n_blocks: int) -> None:
        """Write the statistics after `n_blocks` blocks, if the last write was `every` seconds ago or more."""
        from ntkit.persistence import save_part

        statistics = self.model._statistics
        if time.monotonic() - self.written < self.every or not statistics.settled:
            return
        progress = Progress(self.fingerprint, n_blocks, self._digest.text(), statistics, self.model._targets)
        try:
            save_part(progress, self.path, kind=KIND)
        except OSError as error:
            self._warn(
                "The checkpoint could not be written. The fit continues without it and tries again every "
                f"{self.every:g} s: {error}."
            )
        self.written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a complete fit, and the temporary files of fits that were killed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._warn(
                f"The fit is complete, but its checkpoint '{self.path}' could not be removed: {error.strerror}. "
                "Remove it yourself."
            )
        _files.remove_abandoned(self.path)

    def _warn(self, text: str) -> None:
        """Issue a warning, at most once per fit."""
        if not self._warned:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._warned = True


def _check_path(path: Path, owner: str) -> None:
    """Raise unless a file can be created there; otherwise the error would only appear at the first write."""
    try:
        _files.check_writable(path)
    except OSError as error:
        text = f"The 'checkpoint' parameter of {owner} must name a file that can be created: {error.strerror}."
        raise OSError(error.errno, f"{text} Choose another folder.") from error


def _check_seeds(model: FeatureModel, owner: str) -> None:
    """Raise if a continued fit would draw other features or another sample.

    Parts without a seed of their own are fine: they get theirs from the model.
    """
    parameters = model.get_params(deep=True)
    for name in sorted(name for name in parameters if name.rpartition("__")[2] == "random_state"):
        value = parameters[name]
        if not isinstance(value, Integral | np.random.SeedSequence) and not (value is None and "__" in name):
            rule = "an int if there is a checkpoint, so that a continued fit repeats the same draws"
            raise ValueError(message(owner, name, rule, value))


def _fingerprint(model: FeatureModel, source: Source) -> str:
    """Compute a digest of everything that must be the same when the fit continues."""
    first = source.first()
    some: Any = _array.to_numpy(model._transform(take_rows(first.X, slice(0, 8))))
    digest = Digest()
    digest.add(some, *(take_rows(others, slice(0, 8)) for others in (first.y, first.weight)))
    text = (
        f"{type(model).__name__} {source.n_rows} {model._block_rows(source)} {model.n_selection} "
        f"{model._seed.entropy} {model._seed.spawn_key} {source.identity()} {digest.text()}"
    )
    return hashlib.sha256(text.encode()).hexdigest()
