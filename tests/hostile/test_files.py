"""Files and checkpoints that were damaged or forged: refused, or as good as new, in bounded time and memory."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from joblib import parallel_config
from tests.hostile.children import CAN_FORK, Meter, Outcome, outcomes
from tests.hostile.verdicts import Tally, Verdict
from tests.test_persistence import CASES, apply, fitted
from tests.tiers import ALL, SEED, sampled, scaled
from threadpoolctl import threadpool_limits

from ntkit import FeatureRidge, FeatureRidgeClassifier, RandomFourierFeatures, _files
from ntkit.models import _statistics
from ntkit.models._checkpoint import KIND as CHECKPOINT
from ntkit.persistence import FileError, load, save

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs processes that can be forked")
LIMIT = 2**28
SECONDS = 12.0  # of a processor: the two that the limit allows, compilation, and a slow machine
SLACK = 2**26  # bytes not counted by the limit: imported code, rows of features
NAMES = [name for name in CASES if "toy" not in name]
ODD: list[Any] = [
    None, True, -1, 0, 2, 10**12, 2.5, 1e300, "", "auto", [], [1], [[1, 2]], {}, {"type": "float", "value": "nan"},
    {"type": "tuple", "items": [1, 2]}, {"type": "dict", "items": []}, {"type": "function", "name": "exp"},
]  # fmt: skip
SIZES = [100, 1000, 4096, 10**4, 10**5, 10**6, 10**9]
SCALES = [1e-300, 1e-9, 1e-3, 1e3, 1e6, 1e12, 1e300]


class Trial(NamedTuple):
    """A file and its damage: `kind` is a function of this module, `index` chooses among its changes."""

    name: str
    kind: str
    index: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng([SEED, zlib.crc32(f"{self.name} {self.kind}".encode()), self.index])

    def __str__(self) -> str:
        return f"{self.name}, {self.kind} {self.index}"


class Content(NamedTuple):
    """Return the content of a file."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Change bytes, as a bad disk or an interrupted copy would."""
    data, kind = bytearray(content), rng.integers(6)
    i, j = sorted(rng.integers(len(data), size=2))
    if kind == 0:
        data[i] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[i:]
    elif kind == 2:
        data[i : i + 512] = bytes(len(data[i : i + 512]))
    elif kind == 3:
        data[i : i + 8], data[j : j + 8] = data[j : j + 8], data[i : i + 8]
    elif kind == 4:
        data += data[i:j] or b"\0"
    else:
        data[i : i + 4] = rng.bytes(4)
    return bytes(data)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """All (container, key) in JSON data."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from places(value)


def edit(content: Content, rng: np.random.Generator) -> None:
    """Change, remove or exchange values of the metadata."""
    found = list(places(content.metadata["model"]))
    node, key = found[rng.integers(len(found))]
    kind = rng.integers(4)
    if kind == 0:
        del node[key]
    elif kind == 1:
        other, place = found[rng.integers(len(found))]
        node[key] = copy.deepcopy(other[place])
    else:
        node[key] = copy.deepcopy(ODD[rng.integers(len(ODD))])


def change_array(content: Content, rng: np.random.Generator) -> None:
    """Change values, shape or dtype of an array, or exchange two."""
    arrays = content.arrays
    if not arrays:
        return edit(content, rng)
    names = list(arrays)
    name, other = (names[i] for i in rng.integers(len(names), size=2))
    a = arrays[name]
    flat = a.ravel().copy()
    if flat.size:
        flat[rng.integers(flat.size)] *= 2
    changes = [
        a[:-1] if a.ndim else a + 1, np.zeros((0, *a.shape[1:]), a.dtype), a.astype(np.float32), -a.astype(np.float64),
        a.astype(np.int64, casting="unsafe"), np.full_like(a, -1), a.ravel()[:, None], np.full(a.shape, np.nan),
        np.concatenate([a, a]) if a.ndim else a, a.astype(np.float64) * 1e9, flat.reshape(a.shape), a[..., ::-1],
    ]  # fmt: skip
    choice = rng.integers(len(changes) + 3)
    if choice < len(changes):
        arrays[name] = np.ascontiguousarray(changes[choice])
    else:
        arrays[name], arrays[other] = arrays[other], a
    return None


def enlarge(content: Content, index: int) -> bool:
    """Change the size of a number, or set a parameter that has no value; return False if there is no such trial."""
    skipped = {"entropy", "spawn_key", "pool_size", "random_state", "state", "output"}
    found = [(node, key) for node, key in places(content.metadata["model"]) if key not in skipped]
    found = [(node, key) for node, key in found if node[key] is None or type(node[key]) in (int, float)]
    place, size = divmod(index, len(SIZES))
    if place >= len(found):
        return False
    node, key = found[place]
    node[key] = SCALES[size] if type(node[key]) is float else SIZES[size]
    return True


class Files:
    """Files of fitted models, written once, and a folder for the damaged copies."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[str, Any] = {}

    def original(self, name: str) -> tuple[Path, Any, Any]:
        """A file, the rows that its model was fitted to, and the model's results for them."""
        if name not in self._known:
            model, X = fitted(name)
            path = self.folder / f"{len(self._known)}.ntkit"
            save(model, path, statistics=zlib.crc32(name.encode()) % 2 == 0)
            self._known[name] = path, X, apply(model, X)
        return self._known[name]

    def judge(self, trial: Trial) -> Outcome:
        """Return the verdict on a damaged file and on the object loaded from it."""
        source, X, expected = self.original(trial.name)
        path = self.folder / "changed"
        if trial.kind == "damage":
            path.write_bytes(damage(source.read_bytes(), trial.rng))
        else:
            content = Content(*_files.read(source, kind="model"))
            if trial.kind == "enlarge":
                if not enlarge(content, trial.index):
                    return Verdict.RIGHT, "no such trial"
            else:
                (edit if trial.kind == "edit" else change_array)(content, trial.rng)
            _files.write(path, *content)
        meter = Meter()
        try:
            model: Any = load(path, memory_limit=LIMIT)
        except FileError as error:
            model = error
        except Exception as error:
            return Verdict.FOREIGN, repr(error)
        if meter.seconds > SECONDS or meter.peak > LIMIT + SLACK:
            return Verdict.UNBOUNDED, f"{meter.seconds:.1f} s, {meter.peak / 2**20:.0f} MB: {model}"
        if isinstance(model, FileError):
            return (Verdict.REFUSED if str(path) in str(model) else Verdict.VAGUE), str(model)
        if trial.kind == "damage":
            return (Verdict.RIGHT if np.array_equal(apply(model, X), expected) else Verdict.WRONG), "other predictions"
        return self._use(model, X)

    def _use(self, model: Any, X: Any) -> Outcome:
        """The loaded object can be used and saved, or raises a clear error."""
        try:
            found = apply(model, X)
            if len(found) != len(X):
                return Verdict.WRONG, f"{len(found)} results for {len(X)} rows"
            if hasattr(model, "_posterior") and getattr(model, "_statistics", None) is not None:
                model.predict(X, return_std=True)
        except (TypeError, ValueError, AttributeError) as error:
            return Verdict.REFUSED, repr(error)
        except Exception as error:
            ours = type(model).__module__.startswith("ntkit")
            return (Verdict.FOREIGN if ours else Verdict.VAGUE), repr(error)
        if not type(model).__module__.startswith("ntkit"):
            return Verdict.RIGHT, "attributes of scikit-learn's are not all checked"
        save(model, self.folder / "again")
        again = apply(load(self.folder / "again"), X)
        return (Verdict.RIGHT if np.array_equal(again, found, equal_nan=True) else Verdict.WRONG), "another model"


class Checkpoints(Files):
    """Checkpoints of fits that were stopped."""

    def rows(self, name: str, last: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for index in range(8):
            if index == last:
                raise StoppedError
            X = np.random.default_rng(index).standard_normal((250, 3))
            y = np.abs(X[:, 0]) + X[:, 1]
            yield X, np.where(y > 1, "large", "small") if name == "classes" else y

    def fit(self, name: str, last: int | None = None, **options: Any) -> Any:
        features = RandomFourierFeatures(n_components=12, lengthscale=2.0, random_state=0)
        model = {"classes": FeatureRidgeClassifier, "real": FeatureRidge}[name](
            features, random_state=0, n_selection=50
        )
        return model.fit(self.rows(name, last), **options)

    def original(self, name: str) -> tuple[Path, Any, Any]:
        """The file of a fit that was stopped after six of eight blocks; rows; probabilities or predictions."""
        if name not in self._known:
            path, (X, _) = self.folder / f"{name}.checkpoint", next(self.rows(name))
            with pytest.raises(StoppedError):
                self.fit(name, 6, checkpoint=path, checkpoint_every=0)
            self._known[name] = path, X, apply(self.fit(name), X)
        return self._known[name]

    def judge(self, trial: Trial) -> Outcome:
        """The verdict on a fit that goes on from a file that was changed."""
        source, X, expected = self.original(trial.name)
        path = self.folder / "changed"
        if trial.kind == "damage":
            path.write_bytes(damage(source.read_bytes(), trial.rng))
        else:
            content = Content(*_files.read(source, kind=CHECKPOINT))
            (edit if trial.kind == "edit" else change_array)(content, trial.rng)
            _files.write(path, *content)
        meter = Meter()
        try:
            found = apply(self.fit(trial.name, checkpoint=path), X)
        except FileError as error:
            return (Verdict.REFUSED if str(path) in str(error) else Verdict.VAGUE), str(error)
        except Exception as error:
            return Verdict.FOREIGN, repr(error)
        if meter.seconds > SECONDS or meter.peak > SLACK:
            return Verdict.UNBOUNDED, f"{meter.seconds:.1f} s, {meter.peak / 2**20:.0f} MB"
        if trial.kind == "damage":
            return (Verdict.RIGHT if np.array_equal(found, expected) else Verdict.WRONG), "other weights"
        right = found.shape == expected.shape and np.isfinite(found).all()
        return (Verdict.RIGHT if right else Verdict.WRONG), "weights that cannot be"


class StoppedError(Exception):
    """The exception that ends a fit in these trials."""


def run(tally: Tally, files: Files, trials: list[Trial]) -> None:
    """Judge trials, grouped by file."""
    with warnings.catch_warnings(), threadpool_limits(1), parallel_config(backend="threading"):  # for n_jobs
        warnings.simplefilter("ignore")
        for name in dict.fromkeys(trial.name for trial in trials):
            files.original(name)
            mine = [trial for trial in trials if trial.name == name]
            for trial, verdict, detail in outcomes(files.judge, mine, seconds=120):
                if detail != "no such trial":
                    tally.add(verdict, str(trial), detail)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("files"))


def some(kind: str, many: int) -> list[Trial]:
    """Trials of some files, or of all."""
    return [Trial(name, kind, index) for name in sampled(NAMES, 7) for index in range(scaled(2, many))]


def test_damaged_files(tally: Tally, files: Files) -> None:
    """Without a new checksum, every change is found or makes no difference."""
    run(tally, files, some("damage", 30))
    if ALL:
        assert tally.counts[Verdict.REFUSED] > tally.counts[Verdict.RIGHT]


@pytest.mark.parametrize("kind", ["edit", "change_array"])
def test_forged_files(kind: str, tally: Tally, files: Files) -> None:
    """With the right checksum, a file is refused, or holds a model that can be used; its weights may be anything."""
    run(tally, files, some(kind, 40 if kind == "edit" else 15))


def test_files_that_ask_for_much(tally: Tally, files: Files) -> None:
    """Every number of a file is raised or lowered: the time and memory of a load stay below its limit."""
    n = len(SIZES)
    indices = {name: range(30 * n) if ALL else range(0, 8 * n, n + 3) for name in sampled(NAMES, 7)}
    run(tally, files, [Trial(name, "enlarge", index) for name in indices for index in indices[name]])


@pytest.mark.parametrize("kind", ["damage", "edit", "change_array"])
def test_checkpoints(kind: str, tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, or the fit ends as it would have; one with a new checksum may have other weights, but finite ones."""
    monkeypatch.setattr(_statistics, "FLUSH", 500)
    monkeypatch.setattr(_statistics, "_SMALL", 100)
    trials = [Trial(name, kind, index) for name in ("real", "classes") for index in range(scaled(6, 300))]
    run(tally, Checkpoints(tmp_path), trials)
