"""Killed processes, full disks, several processes and threads using one file: no data are lost.

Children are forked from this process, which saves them the imports.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hostile.children import CAN_FORK, Meter, exit_code, exit_code_within, fit_and_save, forked, kill
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import SEED, scaled, thorough
from threadpoolctl import threadpool_limits

from ntkit import (
    FeatureRidge,
    FeatureRidgeClassifier,
    RandomFourierFeatures,
    _files,
    load,
    save,
)
from ntkit.features import base
from ntkit.models import _statistics

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="needs processes that can be forked and killed")
KILLED = -signal.SIGKILL
N_BLOCKS, STEP = 20, 250


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums are settled after few rows, so that few rows make many checkpoints; BLAS has one thread."""
    monkeypatch.setattr(_statistics, "FLUSH", 500)
    monkeypatch.setattr(_statistics, "_SMALL", 100)
    with threadpool_limits(1):
        yield


def leftovers(path: Path) -> list[str]:
    """Names of all other files in the folder of a file."""
    return sorted(p.name for p in path.parent.iterdir() if p != path)


# Kills.


def save_versions(path: Path) -> None:
    """Write one version after the other, for ever; all entries of the array are the number of the version."""
    number = 0
    while True:
        number += 1
        _files.write(path, {"a": np.full(200_000, float(number))}, {"kind": "test", "number": number})


def test_kills_while_saving(tally: Tally, tmp_path: Path) -> None:
    """The file is either the old or the new one, complete; the next writer removes the leftovers of the killed one."""
    path, rng = tmp_path / "file", random.Random(SEED)
    _files.write(path, {"a": np.zeros(3)}, {"kind": "test", "number": 0})
    n_left = 0
    for index in range(scaled(8, 150)):
        child = forked(partial(save_versions, path))
        end = time.monotonic() + 60
        while not leftovers(path) and time.monotonic() < end:
            pass
        time.sleep(rng.choice([0.0, rng.uniform(0.0, 0.03)]))
        code = kill(child)
        arrays, metadata = _files.read(path, kind="test")
        whole = code == KILLED and set(arrays["a"].tolist()) == {metadata["number"]}
        n_left += len(leftovers(path))
        _files.write(path, {"a": np.zeros(3)}, {"kind": "test", "number": 0})
        clean = leftovers(path) == []
        tally.add(Verdict.RIGHT if whole and clean else Verdict.WRONG, f"kill {index}", (code, leftovers(path)))
    assert n_left > 0  # some kills came in the middle of a file


def blocks(kind: str, last: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for i in range(N_BLOCKS):
        if i == last:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng(i)
        X = rng.standard_normal((STEP, 3)).astype(np.float32)
        y = np.abs(X[:, 0]) + X[:, 1]
        yield X, (y if kind == "ridge" else np.where(y > i / N_BLOCKS, "large", "small"))


def fit(kind: str, last: int | None = None, **options: Any) -> Any:
    law = FeatureRidge if kind == "ridge" else FeatureRidgeClassifier
    features = RandomFourierFeatures(n_components=100, lengthscale=2.0, random_state=0)
    return law(features, random_state=0, batch_size=STEP).fit(blocks(kind, last), **options)


def weights(model: Any) -> list[np.ndarray]:
    return [np.asarray(getattr(model, name)) for name in ("coef_", "intercept_", "alpha_", "errors_")]


def same(model: Any, expected: Any) -> bool:
    return all(map(np.array_equal, weights(model), weights(expected)))


def die_in(name: str, number: int, *, after: bool = False) -> None:
    """Have this process killed in, or right after, the call of a function of `os` of that number."""
    real, calls = getattr(os, name), []

    def replacement(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, name, replacement)


def child_fit(kind: str, path: Path, moment: str, number: int, expected: Any) -> None:
    """Fit with a checkpoint, and be killed at a moment or come to the right end."""
    if moment in ("fsync", "replace"):
        die_in(moment, number)
    elif moment == "replaced":
        die_in("replace", number, after=True)
    model = fit(kind, number if moment == "block" else None, checkpoint=path, checkpoint_every=0)
    assert same(model, expected)


@pytest.mark.parametrize("kind", ["ridge", "classifier"])
def test_kills_at_every_step_of_a_checkpoint(kind: str, tally: Tally, tmp_path: Path) -> None:
    """Kill at the second block, before the first checkpoint; in the middle; before, during and after writing."""
    expected, path = fit(kind), tmp_path / "fit.checkpoint"
    for moment, number in [("block", 1), ("fsync", 3), ("replace", 4), ("replaced", 4), ("block", 15)]:
        code = exit_code(forked(partial(child_fit, kind, path, moment, number, expected)))
        tally.add(Verdict.RIGHT if code == KILLED else Verdict.WRONG, f"{moment} {number}", code)
    assert path.exists()
    for _ in range(2):  # from where it was, then from the beginning
        code = exit_code(forked(partial(child_fit, kind, path, "end", 0, expected)))
        tally.add(Verdict.RIGHT if code == 0 and not list(tmp_path.iterdir()) else Verdict.WRONG, "resume", code)


def test_kills_of_fits_at_random(tally: Tally, tmp_path: Path) -> None:
    """After any number of kills, the fit that comes to its end has the bits of one that was never stopped."""
    path, rng = tmp_path / "fit.checkpoint", random.Random(SEED)
    expected = fit("ridge")
    begin = time.monotonic()
    fit("ridge", checkpoint=path, checkpoint_every=0)
    seconds = time.monotonic() - begin
    for index in range(scaled(2, 25)):
        for _ in range(3):
            child = forked(partial(child_fit, "ridge", path, "end", 0, expected))
            time.sleep(rng.uniform(0.0, seconds))
            code = kill(child)
            tally.add(Verdict.RIGHT if code in (0, KILLED) else Verdict.WRONG, f"kill {index}", code)
        code = exit_code(forked(partial(child_fit, "ridge", path, "end", 0, expected)))
        tally.add(Verdict.RIGHT if code == 0 and not list(tmp_path.iterdir()) else Verdict.WRONG, "end", code)


# Disks.


def saves_are_refused(model: Any, path: Path, content: bytes, reason: str) -> Verdict:
    """Check that `save` fails correctly: the error names file and reason, the old file stays, and no other file
    appears.
    """
    try:
        save(model, path, statistics=True)
    except OSError as error:
        named = str(path) in str(error) and reason in str(error)
        stays = path.read_bytes() == content and not leftovers(path)
        return Verdict.REFUSED if named and stays else Verdict.WRONG
    return Verdict.WRONG


def fits_go_on(path: Path, expected: Any, reason: str) -> Verdict:
    """Check that a fit whose checkpoints cannot be written is right, and warns once, naming file and reason."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = fit("ridge", checkpoint=path, checkpoint_every=0)
    texts = [str(warning.message) for warning in found]
    named = len(texts) == 1 and str(path) in texts[0] and reason in texts[0]
    return Verdict.WARNED if named and same(model, expected) and not leftovers(path) else Verdict.WRONG


def test_a_limit_of_the_size_of_files(tally: Tally, tmp_path: Path) -> None:
    """A disk that is full in the middle of a file."""
    import resource

    expected, path, checkpoint = fit("ridge"), tmp_path / "a" / "model", tmp_path / "b" / "fit.checkpoint"
    for file in (path, checkpoint):
        file.parent.mkdir()
    save(expected, path)
    content = path.read_bytes()

    def limited(work: Callable[[], Verdict], good: Verdict) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        assert work() is good

    reason = "File too large"
    for name, good, work in (
        ("save", Verdict.REFUSED, partial(saves_are_refused, expected, path, content, reason)),
        ("checkpoint", Verdict.WARNED, partial(fits_go_on, checkpoint, expected, reason)),
    ):
        code = exit_code(forked(partial(limited, work, good)))
        tally.add(good if code == 0 else Verdict.WRONG, name, code)


DISKS = textwrap.dedent(
    """
    import json, subprocess, sys
    from pathlib import Path
    from tests.hostile import test_processes as t

    t._statistics.FLUSH, t._statistics._SMALL = 500, 100
    disk = Path(sys.argv[1])
    expected = t.fit("ridge")
    path, checkpoint = disk / "a" / "model", disk / "b" / "fit.checkpoint"
    for file in (path, checkpoint):
        file.parent.mkdir()
    t.save(expected, path)
    content = path.read_bytes()
    try:
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
    except OSError:
        pass
    found = {"save": t.saves_are_refused(expected, path, content, "No space left on device")}
    found["checkpoint"] = t.fits_go_on(checkpoint, expected, "No space left on device")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    found["read-only save"] = t.saves_are_refused(expected, path, content, "Read-only file system")
    try:
        t.FeatureRidge(random_state=0).fit(iter(lambda: 1 / 0, None), checkpoint=checkpoint)  # asks for no block
    except OSError as error:
        named = "'checkpoint' parameter of FeatureRidge.fit" in str(error) and str(checkpoint) in str(error)
        found["read-only checkpoint"] = "refused" if named and "Choose" in str(error) else repr(error)
    print(json.dumps(found))
    """
)


@thorough
def test_full_and_read_only_disks(tally: Tally, tmp_path: Path) -> None:
    """On a disk of 1 MB in memory, which ends with the process that mounts it."""
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m none '{tmp_path}'"
    if shutil.which("unshare") is None or subprocess.run([*enter, mount], capture_output=True, check=False).returncode:
        pytest.skip("needs a kernel where users can mount a disk of their own")
    command = [*enter, f'{mount} && exec "$0" -c "$1" "$2"', sys.executable, DISKS, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        tally.add(Verdict(found) if found in list(Verdict) else Verdict.WRONG, name, found)
    assert tally.counts.total() == 4


# Several processes and threads.


def write_many(path: Path, writer: int, n: int) -> None:
    for index in range(n):
        number = float(1000 * writer + index)
        _files.write(path, {"a": np.full(50_000, number)}, {"kind": "test", "number": number})


def test_writers_and_readers_of_one_file(tally: Tally, tmp_path: Path) -> None:
    """Two processes and two threads write, others read: every reading gives one whole file, and none is lost."""
    path, n = tmp_path / "file", scaled(20, 300)
    write_many(path, 0, 1)
    children = [forked(partial(write_many, path, writer, n)) for writer in (1, 2)]
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            write_many(path, writer, n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in (3, 4)]
    for thread in threads:
        thread.start()
    n_read = 0
    while any(thread.is_alive() for thread in threads):
        arrays, metadata = _files.read(path, kind="test")
        n_read += 1
        whole = set(arrays["a"].tolist()) == {metadata["number"]}
        tally.add(Verdict.RIGHT if whole else Verdict.WRONG, f"reading {n_read}")
    for thread in threads:
        thread.join()
    codes = [exit_code(child) for child in children]
    right = codes == [0, 0] and not errors and leftovers(path) == []
    tally.add(Verdict.RIGHT if right else Verdict.WRONG, "writers", (codes, errors, leftovers(path)))


def test_modes_of_files_of_other_threads(tally: Tally, tmp_path: Path) -> None:
    """Threads that save do not change the umask for new files of their own or of others."""
    done, before = threading.Event(), os.umask(0o027)

    def work(number: int) -> None:
        while not done.is_set():
            (tmp_path / f"model{number}").unlink(missing_ok=True)
            _files.write(tmp_path / f"model{number}", {"a": np.ones(10)}, {"kind": "test"})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    try:
        for thread in threads:
            thread.start()
        modes = []
        for index in range(scaled(300, 5000)):
            path = tmp_path / f"other{index}"
            path.touch()
            modes.append(stat.S_IMODE(path.stat().st_mode))
            path.unlink()
    finally:
        done.set()
        for thread in threads:
            thread.join()
        mask = os.umask(before)
    modes += [stat.S_IMODE((tmp_path / f"model{number}").stat().st_mode) for number in range(2)]
    right = set(modes) == {0o640} and mask == 0o027
    tally.add(Verdict.RIGHT if right else Verdict.WRONG, "modes", (set(map(oct, modes)), oct(mask)))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=thorough)])
def test_pools_of_processes(method: str, tally: Tally, tmp_path: Path) -> None:
    """A process started by one that has used ntkit gives the same results, and does not hang."""
    expected = fit_and_save(tmp_path / "model")
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        paths = [tmp_path / f"model{i}" for i in range(scaled(2, 8))]
        for path, found in zip(paths, pool.map(fit_and_save, paths, timeout=300), strict=True):
            tally.add(Verdict.RIGHT if np.allclose(found, expected, rtol=1e-9) else Verdict.WRONG, path.name, found)


def test_forks_while_other_threads_work(tally: Tally, tmp_path: Path) -> None:
    """A child of a process in the middle of a fit and of a save has its own locks, and writes its own files."""
    expected, done = fit_and_save(tmp_path / "model"), threading.Event()

    def work() -> None:
        while not done.is_set():
            fit_and_save(tmp_path / "thread")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for index in range(scaled(2, 20)):
            child = forked(lambda: np.testing.assert_allclose(fit_and_save(tmp_path / "child"), expected, rtol=1e-9))
            code = exit_code_within(child, 120)
            tally.add(Verdict.RIGHT if code == 0 else Verdict.UNBOUNDED, f"child {index}", code)
    finally:
        done.set()
        thread.join()


def test_a_fork_while_a_map_is_unpickled(tally: Tally) -> None:
    """Maps of pickles draw one at a time: a child does not wait for a thread that it does not have."""
    content = pickle.dumps(RandomFourierFeatures(n_components=8, random_state=0).fit(np.ones((3, 2))))
    with base._lock:
        child = forked(lambda: pickle.loads(content).transform(np.ones((3, 2))))
    code = exit_code_within(child, 60)
    tally.add(Verdict.RIGHT if code == 0 else Verdict.UNBOUNDED, "child", code)


# Leaks.


def round_of_files(folder: Path, index: int) -> None:
    fit_and_save(folder / "model", index)


def round_of_checkpoints(folder: Path, index: int) -> None:  # noqa: ARG001
    fit("classifier", checkpoint=folder / "fit.checkpoint", checkpoint_every=0)


def round_of_refusals(folder: Path, index: int) -> None:
    path = folder / "bad"
    path.write_bytes(bytes(index))
    for _ in range(20):
        with pytest.raises(ValueError, match="not a complete"):
            load(path)


@pytest.mark.parametrize("work", [round_of_files, round_of_checkpoints, round_of_refusals])
def test_nothing_leaks(work: Callable[[Path, int], None], tally: Tally, tmp_path: Path) -> None:
    """Memory, open files and threads do not grow when an operation is repeated."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("needs /proc")

    def held() -> tuple[int, int, int]:
        gc.collect()
        return Meter().resident, len(list(folder.iterdir())), threading.active_count()

    for index in range(5):
        work(tmp_path, index)
    before, n = held(), scaled(3, 150)
    for index in range(n):
        work(tmp_path, index)
    after = held()
    right = after[0] - before[0] < 2**24 + 2**16 * n and after[1:] == before[1:]
    tally.add(Verdict.RIGHT if right else Verdict.UNBOUNDED, work.__name__, (before, after))
