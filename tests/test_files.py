"""Files of arrays and plain data: whole or not at all, and every change is noticed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntkit._files import FileError, check_writable, read, read_header, write

ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "single": np.float32([1, np.inf, np.nan]),
    "half": np.float16([1, 2]),
    "none": np.zeros((0, 3)),
    "scalar": np.array(2.5),
    "flags": np.array([True, False]),
    "swapped": np.arange(3, dtype=">i4"),
    **{str(np.dtype(kind)): np.arange(5, dtype=kind) for kind in "bBhHiIqQ"},
}
METADATA = {"kind": "test", "text": "é\n", "list": [1, 2.5, None, True, 2**70], "dict": {"a": {}}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def test_round_trips(path):
    for names in (list(ARRAYS), [], ["none"], ["flags", "a"]):
        write(path, {name: ARRAYS[name] for name in names}, METADATA)
        arrays, metadata = read(path, kind="test")
        assert metadata == METADATA
        assert set(arrays) == set(names)
        for name in names:
            np.testing.assert_array_equal(arrays[name], ARRAYS[name])
            assert arrays[name].dtype == ARRAYS[name].dtype.newbyteorder("=")
            assert arrays[name].flags.writeable
        shapes = read_header(path, kind="test")[1]
        assert {name: tuple(shape) for name, (_, shape) in shapes.items()} == {n: ARRAYS[n].shape for n in names}


def test_other_programs_can_read_them(path):
    write(path, ARRAYS, METADATA)
    np.testing.assert_array_equal(load_file(path)["a"], ARRAYS["a"])
    before = path.read_bytes()
    write(path, ARRAYS, METADATA)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_a_write_that_fails_leaves_the_old_file(step, error, path, monkeypatch):
    write(path, {"a": np.ones(3)}, {"kind": "test"})

    def fail(*_arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error), match=f"'{path}' cannot be written: No space" if error.args else "^$"):
            write(path, {"a": np.zeros(3)}, {"kind": "test"})
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert read(path, kind="test")[0]["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "value"),
    [({}, np.nan), ({}, np.ones(2)), ({}, {1, 2}), ({"a": np.array([None])}, 0), ({"a": np.array(["text"])}, 0)],
    ids=["nan", "array", "set", "objects", "text"],
)
def test_files_that_cannot_be_written(arrays, value, path):
    with pytest.raises((TypeError, ValueError), match=r"(?i)json|serializ|dtype"):
        write(path, arrays, {"kind": "test", "x": value})
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no modes or links")
def test_modes_and_links(path):
    for mask in (0o022, 0o077):
        path.unlink(missing_ok=True)
        before = os.umask(mask)
        try:
            write(path, {}, {"kind": "test"})
        finally:
            assert os.umask(before) == mask
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    link = path.with_name("link")
    link.symlink_to(path.name)
    write(link, {"a": np.ones(2)}, {"kind": "test"})
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert read(path, kind="test")[0]["a"].tolist() == [1, 1]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_leftovers_of_killed_writers_are_removed(path):
    """But not files that other processes are writing, nor unrelated files."""
    import fcntl

    names = [".file.0123abcd.tmp", ".file.live0000.tmp", ".file.00000000.tmp", ".other.0123abcd.tmp", ".file.tmp"]
    for name in names:
        path.with_name(name).write_bytes(b"cut o")
    path.with_name(".file.11111111.tmp").symlink_to(path.with_name(".other.0123abcd.tmp"))
    with open(path.with_name(".file.00000000.tmp"), "rb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        write(path, {}, {"kind": "test"})
    left = {*names, ".file.11111111.tmp", "file"} - {".file.0123abcd.tmp"}
    assert {p.name for p in path.parent.iterdir()} == left
    check_writable(path)
    assert {p.name for p in path.parent.iterdir()} == left - {".file.00000000.tmp"}


def test_temporaries_that_were_removed_before_they_were_locked(path, monkeypatch):
    """Another writer may come between: then the next one is taken."""
    fcntl = pytest.importorskip("fcntl")
    lock, calls = fcntl.flock, []

    def slow(number, how):
        if not calls:
            (temporary,) = path.parent.iterdir()
            temporary.unlink()
        calls.append(how)
        lock(number, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    write(path, {"a": np.ones(3)}, {"kind": "test"})
    assert read(path, kind="test")[0]["a"].tolist() == [1, 1, 1]
    assert len(calls) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no such paths")
@pytest.mark.parametrize(
    ("place", "reason"),
    [("", "it is a folder"), ("nowhere/file", "No such file"), ("/dev/null", "device"), ("/proc/self/file", "No such")],
)
def test_paths_that_cannot_be_written(place, reason, tmp_path):
    target = tmp_path / place
    for attempt in (lambda: write(target, {}, {"kind": "test"}), lambda: check_writable(target)):
        with pytest.raises(OSError, match=rf"'{target}' cannot be written: .*{reason}"):
            attempt()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
def test_new_content_of_a_private_file_stays_private(path, monkeypatch):
    """Also before it takes the place of the old file."""
    write(path, {}, {"kind": "test"})
    path.chmod(0o600)
    seen, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append(os.fstat(number).st_mode & 0o777), sync(number)))
    write(path, {"a": np.ones(3)}, {"kind": "test"})
    assert seen == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_arrays_are_not_copied(path):
    """Writing 256 MB takes no second 256 MB, in either memory order."""
    code = (
        "import sys, resource, numpy as np; from ntkit import _files\n"
        "a = np.ones((4096, 8192)); b = {'a': a}; _files.write(sys.argv[1], {'x': np.ones(3)}, {'kind': 'test'})\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "_files.write(sys.argv[1], b, {'kind': 'test'})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    pytest.importorskip("resource")
    out = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    assert int(out) < 2**16  # kilobytes


def test_sizes_are_checked_before_reading(path, monkeypatch):
    write(path, {"a": np.ones(1000)}, {"kind": "test"})
    read(path, kind="test", memory_limit=10_000)
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(FileError, match="memory_limit=1000"):
        read(path, kind="test", memory_limit=1000)
    with pytest.raises(FileError, match=r"metadata of .* memory_limit=100"):
        read_header(path, kind="test", memory_limit=100)


def test_every_change_is_found(path):
    write(path, {"a": np.arange(4.0), "b": np.arange(3, dtype=np.int8)}, METADATA)
    content = path.read_bytes()
    for i in range(len(content)):
        changed = bytearray(content)
        changed[i] ^= 1 << (i % 8)
        path.write_bytes(changed)
        try:
            arrays, metadata = read(path, kind="test")
        except FileError:
            continue
        assert metadata == METADATA  # spaces of the header
        assert arrays["a"].tolist() == [0, 1, 2, 3]
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        with pytest.raises(FileError):
            read(path, kind="test")
    path.write_bytes(content + b"\0")
    with pytest.raises(FileError):
        read(path, kind="test")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", b"\xff" * 100, b"{}" * 50], ids=str)
def test_files_of_other_kinds(content, path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read(path, kind="test")
    path.write_bytes(content)
    with pytest.raises(FileError, match="not a complete ntkit file"):
        read(path, kind="test")
    save_file({"a": np.ones(2)}, path)
    with pytest.raises(FileError, match="not written by ntkit"):
        read(path, kind="test")
    write(path, {}, {"kind": "other"})
    with pytest.raises(FileError, match="'other', not 'test'"):
        read(path, kind="test")


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "1" * 10_000, "null", "[]", '{"kind": []}'], ids=len)
def test_metadata_of_a_forger(text, path):
    save_file({}, path, metadata={"ntkit": text, "sha256": ""})
    with pytest.raises(FileError):
        read(path, kind="test")
