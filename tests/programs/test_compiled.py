"""The cache of compiled functions: a change in any file that a function takes code or constants from is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ntkit import _compiled, _progress

KERNEL = """from ntkit._compiled import compiled
from ntkit.small.constants import SCALE
from ntkit.small.lent import helper


@compiled
def kernel(x):
    return SCALE * helper(x)
"""
LENT = """from ntkit._compiled import compiled


@compiled
def helper(x):
    return x + 1.0
"""


@pytest.fixture
def package(tmp_path):
    """A package `ntkit` of a few files: a kernel, a function that is inlined into it, and a constant."""
    root = tmp_path / "ntkit"
    small = root / "small"
    small.mkdir(parents=True)
    shutil.copy(_compiled.__file__, root)
    shutil.copy(_progress.__file__, root)
    for path, text in {
        "__init__.py": "",
        "unrelated.py": "x = 1\n",
        "small/__init__.py": "",
        "small/kernel.py": KERNEL,
        "small/lent.py": LENT,
        "small/constants.py": "from ntkit.small import deep\n\nSCALE = 2.0 * deep.FACTOR\n",
        "small/deep.py": "FACTOR = 1.0\n",
    }.items():
        (root / path).write_text(text)
    return root


def call(package: Path, cache: Path) -> tuple[float, int]:
    """Value of the kernel at 3, and how many compiled functions came from the cache, in a fresh process."""
    code = (
        "from ntkit.small.kernel import kernel\n"
        "print(kernel(3.0), sum(kernel.stats.cache_hits.values()))\n"
        "import ntkit\n"
        f"assert ntkit.__file__.startswith({str(package)!r}), ntkit.__file__\n"
    )
    # No bytecode files: an edit within a second of the last one would not be noticed by Python itself.
    environment = os.environ | {
        "PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"
    }  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert out.returncode == 0, out.stderr[-2000:]
    value, hits = out.stdout.split()
    return float(value), int(hits)


def edit(path: Path, old: str, new: str) -> None:
    """Change a file and keep its time of change, which numba looks at in the file of a function itself."""
    text, stat = path.read_text(), path.stat()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_changes_in_files_that_are_imported_are_noticed(package, tmp_path):
    cache = tmp_path / "cache"
    assert call(package, cache) == (8.0, 0)
    assert call(package, cache) == (8.0, 1)
    edit(package / "small" / "lent.py", "x + 1.0", "x + 2.0")  # an inlined function
    assert call(package, cache) == (10.0, 0)
    edit(package / "small" / "deep.py", "1.0", "3.0")  # a constant, two imports away
    assert call(package, cache) == (30.0, 0)
    edit(package / "unrelated.py", "1", "2")
    assert call(package, cache) == (30.0, 1)


@pytest.fixture
def root(package, monkeypatch):
    """The package as the one that digests are taken of."""
    monkeypatch.setattr(_compiled, "_ROOT", package)
    _compiled._imports.cache_clear()
    yield package
    _compiled._imports.cache_clear()


@pytest.mark.parametrize("name", ["small/kernel.py", "small/lent.py", "small/constants.py", "small/deep.py"])
def test_digests_change_with_every_file_that_is_imported(root, name):
    kernel = root / "small" / "kernel.py"
    before = _compiled.source_digest(kernel)
    assert _compiled.source_digest(kernel) == before
    (root / name).write_text((root / name).read_text() + "\n# changed\n")
    assert _compiled.source_digest(kernel) != before


def test_digests_do_not_change_with_other_files(root):
    kernel = root / "small" / "kernel.py"
    before = _compiled.source_digest(kernel)
    (root / "unrelated.py").write_text("x = 2\n")
    assert _compiled.source_digest(kernel) == before
    assert _compiled.source_digest(root / "small" / "lent.py") != before


@pytest.mark.parametrize(
    "line",
    [
        "import ntkit.small.deep",
        "from ntkit.small import deep",
        "from ntkit.small.deep import FACTOR",
        "from ntkit.small import (\n    constants,\n    deep as other,\n)",
        "def later():\n    from ntkit.small.deep import FACTOR\n    return FACTOR",
        "import numpy as np, ntkit.small.deep",
    ],
)
def test_all_ways_to_import(root, line):
    file = root / "small" / "user.py"
    file.write_text(f"{line}\n")
    before = _compiled.source_digest(file)
    (root / "small" / "deep.py").write_text("FACTOR = 5.0\n")
    assert _compiled.source_digest(file) != before


def test_the_package_has_no_relative_imports():
    """They are the one way to import that digests do not follow."""
    for path in Path(_compiled.__file__).parent.rglob("*.py"):
        assert "from ." not in path.read_text(), path


def test_files_that_import_each_other(root):
    (root / "small" / "deep.py").write_text("from ntkit.small import constants\n\nFACTOR = 1.0\n")
    before = _compiled.source_digest(root / "small" / "constants.py")
    (root / "small" / "deep.py").write_text("from ntkit.small import constants\n\nFACTOR = 2.0\n")
    assert _compiled.source_digest(root / "small" / "constants.py") != before


def test_kernels_of_the_package_declare_their_dependencies(monkeypatch, tmp_path):
    """Instructions, lanes and the compiler's own module, in a copy of the real package."""
    copy = tmp_path / "ntkit"
    shutil.copytree(Path(_compiled.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_compiled, "_ROOT", copy)
    _compiled._imports.cache_clear()
    kernel = copy / "programs" / "host" / "kernel.py"
    for name in ("programs/host/lanes.py", "programs/host/instructions.py", "programs/steps.py", "_compiled.py"):
        before = _compiled.source_digest(kernel)
        (copy / name).write_text((copy / name).read_text() + "\n")
        assert _compiled.source_digest(kernel) != before, name
    before = _compiled.source_digest(kernel)
    (copy / "cli.py").write_text("")
    assert _compiled.source_digest(kernel) == before
    _compiled._imports.cache_clear()


def test_functions_are_unchanged_without_a_compiler():
    code = (
        "from ntkit._compiled import compiled\n"
        "def f(x): return x\n"
        "assert compiled(f) is f\n"
        "assert compiled(fastmath=())(f) is f\n"
    )
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=300)


def test_division_by_zero_follows_ieee():
    assert _compiled.compiled(_divide)(1.0, 0.0) == float("inf")


def _divide(a: float, b: float) -> float:
    return a / b
