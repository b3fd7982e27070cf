"""Files are complete or not there, and say what is wrong with them."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ntkit import _files
from ntkit._files import FileError, read, write

ARRAYS = {
    "doubles": np.linspace(-1, 1, 12).reshape(3, 4),
    "singles": np.array([np.nan, np.inf, -0.0, 1e-45], dtype=np.float32),
    "halves": np.arange(3, dtype=np.float16),
    "whole": np.array([[-(2**63), 2**63 - 1]]),
    "bytes": np.arange(256, dtype=np.uint8).reshape(2, 2, 64),
    "flags": np.array([True, False]),
    "none": np.empty((0, 5)),
    "number": np.array(2.5),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(10)[::-3],
    "other byte order": np.arange(5, dtype=">f8"),
    "unicode κ": np.ones(1),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.ntkit"


def assert_same_arrays(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert found[name].dtype == array.dtype.newbyteorder("="), name
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        np.testing.assert_array_equal(np.signbit(found[name]), np.signbit(array)) if array.dtype.kind == "f" else None


@pytest.mark.parametrize("names", [[], ["doubles"], list(ARRAYS)], ids=["none", "one", "all"])
def test_round_trips(names, path):
    arrays = {name: ARRAYS[name] for name in names}
    metadata = {
        "kind": "test",
        "text": "κ\n\"'",
        "list": [1, 2.5, None, True],
        "exact": 0.1,
        "nested": {"a": {"b": []}},
    }
    write(path, arrays, metadata)
    found, data = read(path, kind="test")
    assert_same_arrays(found, arrays)
    assert data == metadata


def test_paths(path):
    for name in (path, str(path)):
        write(name, ARRAYS, {"kind": "test"})
        assert_same_arrays(read(name, kind="test")[0], ARRAYS)
    odd = path.parent / "a name with spaces, κ and ' quotes"
    write(odd, {}, {"kind": "test"})
    assert read(odd, kind="test") == ({}, {"kind": "test"})


def test_a_bare_name(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    write("here", {"a": np.ones(2)}, {"kind": "test"})
    assert read("here", kind="test")[0]["a"].tolist() == [1, 1]


def test_arrays_read_can_be_changed(path):
    """They are sums that are added to."""
    write(path, {"a": np.zeros((3, 3))}, {"kind": "test"})
    array = read(path, kind="test")[0]["a"]
    array += 1
    assert array.flags.c_contiguous
    assert read(path, kind="test")[0]["a"].sum() == 0


def test_equal_content_gives_equal_files(path):
    write(path, ARRAYS, {"kind": "test", "a": 1, "b": 2})
    first = path.read_bytes()
    write(path, dict(reversed(ARRAYS.items())), {"b": 2, "a": 1, "kind": "test"})
    second = path.read_bytes()
    assert read(path, kind="test")[1] == {"kind": "test", "a": 1, "b": 2}
    assert len(first) == len(second)


def test_other_programs_can_read_them(path):
    write(path, {"a": np.arange(3.0)}, {"kind": "test"})
    np.testing.assert_array_equal(load_file(path)["a"], np.arange(3.0))


# In one piece or not at all.


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
@pytest.mark.parametrize("before", [True, False])
def test_a_writing_that_fails_leaves_the_file_before(step, error, before, path, monkeypatch):
    if before:
        write(path, {"a": np.ones(3)}, {"kind": "test"})

    def fail(*_arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)):
            write(path, {"a": np.zeros(3)}, {"kind": "test"})
    assert [p.name for p in path.parent.iterdir()] == ([path.name] if before else [])
    if before:
        assert read(path, kind="test")[0]["a"].tolist() == [1, 1, 1]
    write(path, {"a": np.full(3, 2)}, {"kind": "test"})
    assert read(path, kind="test")[0]["a"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("arrays", "metadata"),
    [
        ({}, {"kind": "test", "x": np.nan}),
        ({}, {"kind": "test", "x": float("inf")}),
        ({}, {"kind": "test", "x": np.ones(2)}),
        ({}, {"kind": "test", "x": {1, 2}}),
        ({"a": np.array([None])}, {"kind": "test"}),
        ({"a": np.array(["text"])}, {"kind": "test"}),
    ],
    ids=["nan", "infinity", "array", "set", "objects", "text"],
)
def test_what_cannot_be_written(arrays, metadata, path):
    write(path, {"a": np.ones(3)}, {"kind": "test"})
    content = path.read_bytes()
    with pytest.raises((TypeError, ValueError, Exception), match=r"(?i)json|serializ|dtype|data-type"):
        write(path, arrays, metadata)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_readers_see_whole_files(path):
    """While another thread writes, every reading gives one of its files."""
    write(path, {"a": np.full(20000, 0.0)}, {"kind": "test", "number": 0})
    done = threading.Event()

    def work():
        for number in range(1, 40):
            write(path, {"a": np.full(20000, float(number))}, {"kind": "test", "number": number})
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    seen = set()
    while not done.is_set():
        arrays, metadata = read(path, kind="test")
        assert set(arrays["a"].tolist()) == {metadata["number"]}
        seen.add(metadata["number"])
    thread.join()
    assert len(seen) >= 1
    assert read(path, kind="test")[1]["number"] == 39
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="no modes")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes_follow_the_umask(mask, path):
    before = os.umask(mask)
    try:
        write(path, {}, {"kind": "test"})
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_folders_that_are_missing(path):
    with pytest.raises(FileNotFoundError):
        write(path.parent / "nowhere" / "file", {}, {"kind": "test"})
    assert list(path.parent.iterdir()) == []


# Files that cannot be read.


def test_no_file(path):
    with pytest.raises(FileNotFoundError, match=f"There is no file '{path}'"):
        read(path, kind="test")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read(path.parent, kind="test")


def test_every_bit_counts(path):
    write(path, {"a": np.arange(4.0), "b": np.ones(2, dtype=np.int8)}, {"kind": "test", "x": [1, 2]})
    content = path.read_bytes()
    accepted = 0
    for position in range(len(content)):
        for bit in (1, 32):
            changed = bytearray(content)
            changed[position] ^= bit
            path.write_bytes(changed)
            try:
                arrays, metadata = read(path, kind="test")
            except FileError:
                continue
            accepted += 1  # blanks that fill up the header
            assert metadata == {"kind": "test", "x": [1, 2]}
            np.testing.assert_array_equal(arrays["a"], np.arange(4.0))
            np.testing.assert_array_equal(arrays["b"], np.ones(2))
    assert accepted < 10


def test_files_that_are_cut_off_or_too_long(path):
    write(path, {"a": np.arange(40.0)}, {"kind": "test"})
    content = path.read_bytes()
    for end in (0, 1, 7, 8, 9, 50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(FileError, match="is not a complete ntkit file"):
            read(path, kind="test")
    path.write_bytes(content + b"\0")
    with pytest.raises(FileError, match="is not a complete ntkit file"):
        read(path, kind="test")


@pytest.mark.parametrize(
    "content", [b"\x80\x04K\x01.", b"a,b\n1,2\n", b"\xff" * 100, b"\0" * 100, b"PK\x03\x04" + b"\0" * 50]
)
def test_files_of_other_kinds(content, path):
    path.write_bytes(content)
    with pytest.raises(FileError, match="is not a complete ntkit file"):
        read(path, kind="test")


def test_safetensors_of_others(path):
    save_file({"a": np.ones(2)}, path)
    with pytest.raises(FileError, match="is a safetensors file, but was not written by ntkit"):
        read(path, kind="test")
    save_file({"a": np.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(FileError, match="was not written by ntkit"):
        read(path, kind="test")
    save_file({"a": np.ones(2)}, path, metadata={"ntkit": json.dumps({"kind": "test"})})
    with pytest.raises(FileError, match="is damaged"):
        read(path, kind="test")


@pytest.mark.parametrize("text", ["[" * 100_000, "not json", "[1, 2]", '"test"', "{}", '{"kind": "other"}', "null"])
def test_metadata_of_a_forger(text, path):
    """A checksum is no signature: what it protects may still be nonsense."""
    arrays = {"a": np.ones(2)}
    save_file(arrays, path, metadata={"ntkit": text, "sha256": _files._digest(arrays, text)})
    with pytest.raises(FileError, match=r"is not JSON|holds .*, not 'test'"):
        read(path, kind="test")


def test_kinds(path):
    write(path, {}, {"kind": "model"})
    assert read(path, kind="model") == ({}, {"kind": "model"})
    with pytest.raises(FileError, match="holds 'model', not 'checkpoint'"):
        read(path, kind="checkpoint")
    assert issubclass(FileError, ValueError)


def test_the_digest_covers_everything():
    """Names, shapes, types, values and metadata."""
    arrays = {"a": np.arange(6.0), "b": np.zeros(2)}
    variants = [
        (arrays, "x"), (arrays, "y"), ({"a": arrays["a"]}, "x"), ({"c": arrays["a"], "b": arrays["b"]}, "x"),
        ({"a": arrays["a"].reshape(2, 3), "b": arrays["b"]}, "x"), ({"a": arrays["a"], "b": -arrays["b"]}, "x"),
        ({"a": arrays["a"].view(np.int64), "b": arrays["b"]}, "x"),
        ({"a": arrays["b"], "b": arrays["a"]}, "x"),
    ]  # fmt: skip
    digests = [_files._digest(*variant) for variant in variants]
    assert len(set(digests)) == len(digests)
    assert _files._digest({"b": arrays["b"], "a": arrays["a"]}, "x") == digests[0]
