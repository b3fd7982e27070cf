"""Commands that cannot work, as users meet them.

A command fails with an exit code and one line that says what is wrong. It shows no traceback, leaves its inputs
unchanged to the byte, and leaves no files behind. `make test` runs a sample in this process, `make test-all` runs all
commands as separate processes, also killed, without space, without packages and two at a time.
"""

from __future__ import annotations

import gzip
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import ALL, sampled, thorough

import ntkit
from ntkit.cli import main

FIT = "--kernel linear --components 8 --time-budget 1"
SECONDS = 120  # a command that takes longer hangs

Setup = Callable[[Path], Any]


@dataclass
class Trial:
    """A command line, how the folder is prepared, and the expected error; exit code 2 for wrong options."""

    command: str
    setup: Setup | None = None
    says: str = ""
    codes: tuple[int, ...] = (1, 2)

    def __str__(self) -> str:
        return self.command


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, models and an output of before."""
    folder = tmp_path_factory.mktemp("template")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.standard_normal(60), "b": rng.standard_normal(60), "k": ["u", "v", "w"] * 20})
    frame["y"] = frame["a"] + 0.1 * rng.standard_normal(60)
    frame.to_csv(folder / "t.csv", index=False)
    frame.assign(y=["yes", "no"] * 30).to_csv(folder / "c.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    np.savez(folder / "t.npz", X=frame[["a", "b"]].to_numpy(), y=frame["y"].to_numpy())
    for data, model in (("t.csv", "m.ntkit"), ("c.csv", "c.ntkit")):
        arguments = f"fit {folder / data} -t y -o {folder / model} --quiet {FIT}"
        assert main(arguments.split()) == 0
    features = ntkit.NTKFeatures(n_components=8, random_state=0).fit(frame[["a", "b"]].to_numpy())
    ntkit.save(features, folder / "map.ntkit")
    (folder / "old.csv").write_text("an output of before")
    (folder / "sub").mkdir()
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A copy of the template."""
    return Path(shutil.copytree(template, tmp_path / "work"))


def contents(folder: Path) -> dict[str, Any]:
    """All that is in a folder: kinds, modes, targets of links, bytes; not the temporaries of killed processes."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        what: Any = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            os.chmod(path, 0o600)
            what = path.read_bytes()
            os.chmod(path, state.st_mode)
        found[str(path.relative_to(folder))] = (state.st_mode, what)
    return found


def judge(tally: Tally, trial: Trial, code: int | None, err: str, changed: set[str]) -> None:
    """Take in the verdict on a command that must fail."""
    errors = re.findall("^error: .*", err, re.M)
    if code is None:
        verdict = Verdict.UNBOUNDED
    elif changed or code == 0:
        verdict = Verdict.WRONG
    elif "Traceback" in err or "Exception ignored" in err:
        verdict = Verdict.FOREIGN
    elif code < 0 or code > 128:
        verdict = Verdict.CRASH
    elif len(errors) != 1 or code not in trial.codes or not re.search(trial.says, err):
        verdict = Verdict.VAGUE
    else:
        verdict = Verdict.REFUSED
    tally.add(verdict, str(trial), f"exit code {code}, changed {sorted(changed)}, {err[-400:]!r}")


def differences(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Names of files that are new, gone or changed."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def start(command: str | list[str], folder: Path, env: dict[str, str] | None = None, **options: Any) -> Any:
    """A process that runs a command in a folder."""
    arguments = command.split() if isinstance(command, str) else command
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([sys.executable, "-m", "ntkit", *arguments], cwd=folder, env=variables, **options)


def finish(process: Any) -> tuple[int | None, str]:
    """Exit code (None: it hangs) and output."""
    try:
        _, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[1].decode(errors="replace")
    return process.returncode, err.decode(errors="replace")


def attempt(trial: Trial, folder: Path, tally: Tally, **options: Any) -> None:
    """Run a command that must fail as a process."""
    if trial.setup is not None:
        trial.setup(folder)
    before = contents(folder)
    code, err = finish(start(trial.command, folder, **options))
    judge(tally, trial, code, err, differences(before, contents(folder)))


def content(name: str, data: bytes | str) -> Setup:
    """Write a file."""
    return lambda folder: (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


def link(name: str, target: str) -> Setup:
    """Make a symbolic link."""
    return lambda folder: (folder / name).symlink_to(target)


def hard(name: str, target: str) -> Setup:
    """Give a file another name."""
    return lambda folder: os.link(folder / target, folder / name)


def copy(name: str, source: str, change: Callable[[bytes], bytes] = bytes) -> Setup:
    """Copy a file, perhaps changed."""
    return lambda folder: (folder / name).write_bytes(change((folder / source).read_bytes()))


def flipped(data: bytes) -> bytes:
    """Data with one byte changed."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def table(text: str) -> Setup:
    """Write the table bad.csv."""
    return content("bad.csv", text)


ITSELF = [
    Trial(f"fit t.csv -t y -o {output} {FIT}{force}", setup, "is the input", (2,))
    for output, setup in (
        ("t.csv", None),
        ("./t.csv", None),
        ("sub/../t.csv", None),
        ("link.csv", link("link.csv", "t.csv")),
        ("link.csv", link("link.csv", "sub/../t.csv")),
        ("same.csv", hard("same.csv", "t.csv")),
        ("here/t.csv", link("here", ".")),
    )
    for force in ("", " --force")
] + [
    Trial(f"predict {model} {data} -o {output} --force", setup, "is the input", (2,))
    for model, data, output, setup in (
        ("m.ntkit", "t.csv", "t.csv", None),
        ("m.ntkit", "./t.csv", "sub/../t.csv", None),
        ("m.ntkit", "t.parquet", "t.parquet", None),
        ("m.ntkit", "link.csv", "t.csv", link("link.csv", "t.csv")),
        ("m.ntkit", "t.csv", "link.csv", link("link.csv", "t.csv")),
        ("m.ntkit", "t.csv", "same.csv", hard("same.csv", "t.csv")),
        ("m.csv", "t.csv", "m.csv", copy("m.csv", "m.ntkit")),
        ("m.ntkit", "t.csv", "m.csv", hard("m.csv", "m.ntkit")),
        ("m.ntkit", "t.csv", "m.csv", link("m.csv", "m.ntkit")),
        ("m.ntkit", "t.csv", "here/t.csv", link("here", ".")),
    )
]  # fmt: skip
ITSELF += [Trial("compare t.csv -t y -o sub --force", hard("sub/comparison.html", "t.csv"), "is the input", (2,))]


def a_pipe(name: str) -> Setup:
    """Make a named pipe, which a reader would wait at for ever."""
    return lambda folder: os.mkfifo(folder / name)


EXISTING = [
    Trial(f"fit t.csv -t y -o old.csv {FIT}", None, "exists. Use --force", (2,)),
    Trial(f"fit t.csv -t y -o m.ntkit {FIT}", None, "exists. Use --force", (2,)),
    Trial(f"fit t.csv -t y -o l {FIT}", link("l", "m.ntkit"), "exists. Use --force", (2,)),
    Trial("predict m.ntkit t.csv -o old.csv", None, "exists. Use --force", (2,)),
    Trial("predict m.ntkit t.csv -o c.csv", None, "exists. Use --force", (2,)),
    Trial("compare t.csv -t y -o sub --components 8", content("sub/comparison.png", "mine"), "exists. Use", (2,)),
    Trial("compare t.csv -t y -o sub --components 8", content("sub/comparison.html", "mine"), "exists. Use", (2,)),
    Trial("demo -o sub", content("sub/digits.png", "mine"), "exists. Use --force", (2,)),
    Trial(f"fit t.csv -t y -o sub {FIT} --force", None, "'sub' is a folder"),
    Trial("predict m.ntkit t.csv -o sub.csv", lambda folder: (folder / "sub.csv").mkdir(), "is a folder"),
    Trial("predict m.ntkit t.csv -o pipe.csv --force", a_pipe("pipe.csv"), "'pipe.csv' is a"),
    Trial(f"fit t.csv -t y -o none/m {FIT}", None, "folder 'none' for the output does not exist"),
    Trial("predict m.ntkit t.csv -o none/p.csv", None, "folder 'none' for the output does not exist"),
    Trial("predict m.ntkit t.csv -o l.csv", link("l.csv", "none/p.csv"), "does not exist"),
    Trial("compare t.csv -t y -o old.csv --components 8", None, "'old.csv' is a file"),
    Trial("compare t.csv -t y -o old.csv/sub --components 8", None, "'old.csv' is a file"),
    Trial("demo -o old.csv", None, "'old.csv' is a file"),
    Trial(f"fit t.csv -t y -o {'m' * 300} {FIT}", None, "File name too long|cannot be written"),
]

OPTIONS = [
    Trial(f"fit {options}", None, says, (2,))
    for options, says in (
        ("", "Missing argument"),
        ("t.csv", "Missing option"),
        ("t.csv -t y", "Missing option"),
        ("t.csv c.csv -t y -o m", "unexpected extra argument"),
        ("t.csv -t y -o m --colour red", "--colour"),
        ("t.csv -t y -o m --components 0", "--components"),
        ("t.csv -t y -o m --components 1e3", "--components"),
        ("t.csv -t y -o m --task ranking", "--task"),
        ("t.csv -t y -o m --kernel cubic", "--kernel"),
        ("t.csv -t y -o m --test 1", "--test"),
        ("t.csv -t y -o m --test nan", "--test"),
        ("t.csv -t y -o m --time-budget -1", "--time-budget"),
        ("t.csv -t y -o m --time-budget nan", "--time-budget"),
        ("t.csv -t y -o m --seed -1", "--seed"),
        ("t.csv -t y -o m --depth 0", "--depth"),
        ("t.csv -t y -o m --lengthscale inf", "--lengthscale"),
        ("t.csv -t y -o m --kernel linear --depth 2", "--depth applies to"),
    )
] + [
    Trial("learn t.csv", None, "No such command", (2,)),
    Trial("predict m.ntkit t.csv -o p.txt", None, "must end in", (2,)),
    Trial("predict m.ntkit t.csv -o p", None, "must end in", (2,)),
    Trial("evaluate m.ntkit t.csv", None, "Missing option", (2,)),
    Trial("compare t.csv -t y --components 8,,9", None, "--components", (2,)),
    Trial("compare t.csv -t y --seeds 0", None, "--seeds", (2,)),
    Trial("compare t.csv -t y --test 0", None, "--test", (2,)),
    Trial("predict m.ntkit t.csv -o p.csv --proba", None, "--proba needs a classification", (1,)),
    Trial("predict c.ntkit t.csv -o p.csv --std", None, "--std needs a regression", (1,)),
    Trial("predict m.ntkit t.csv -o p.csv --std", None, "--statistics", (1,)),
]  # fmt: skip

BAD_TABLES = {
    "empty": (table(""), "'bad.csv' is empty"),
    "blank lines": (table("\n\n  \n"), "bad.csv'"),
    "header only": (table("a,b,k,y\n"), "'bad.csv' has no rows"),
    "one column": (table("y\n1\n2\n3\n"), "'bad.csv' has no columns to learn from"),
    "noise": (content("bad.csv", np.random.default_rng(0).bytes(4000)), "bad.csv'"),
    "zeros": (content("bad.csv", bytes(4000)), "bad.csv'"),
    "Latin-1": (content("bad.csv", "a,b,k,y\n1,2,größe,3\n".encode("latin-1")), "not UTF-8"),
    "UTF-16": (content("bad.csv", "a,b,k,y\n1,2,u,3\n".encode("utf-16")), "bad.csv'"),
    "Parquet by the name of CSV": (copy("bad.csv", "t.parquet"), "bad.csv'"),
    "a huge header": (table(",".join(f"column {i}" for i in range(20_000)) + "\n"), "bad.csv'"),
    "a long name": (table("y" * 10**7 + ",z\n1,2\n"), "has no column 'y'"),
    "equal names": (table("a,a,k,y\n1,2,u,3\n"), "more than one column named 'a'"),
    "more fields than names": (table("a,y\n" + "1,2,3\n" * 9), "more fields"),
    "one row too long": (table("a,y\n" + "1,2\n" * 9 + "1,2,3\n"), "bad.csv'"),
    "an open quote": (table('a,y\n"1,2\n' + "1,2\n" * 9), "bad.csv'"),
    "no target": (table("a,b,k\n1,2,u\n"), "no column 'y'"),
    "a constant target": (table("a,y\n" + "1,no\n2,no\n" * 9), "two classes"),
    "a target of nothing": (table("a,y\n" + "1,\n2,\n" * 9), "missing in all 18 rows"),
    "a missing target": (table("a,y\n" + "1,1.5\n2,\n" * 9), r"missing in 9 of 18 rows, first in row 1"),
    "an infinite target": (table("a,y\n" + "1,1.5\n2,inf\n" * 9), r"infinite in 9 rows, first in row 1"),
    "an infinite number": (table("a,y\n" + "1,1.5\n2,2.5\ninf,3.5\n" * 9), r"'a' has an infinite.* in row 2"),
    "names of rows": (table("a,y\n" + "".join(f"row {i},{i}.5\n" for i in range(60))), "no column to learn from: 'a'"),
    "a row cut off": (table("a,b,y\n" + "1,2,1.5\n2,1,2.5\n" * 9 + "3,1"), "Line 20 of 'bad.csv' has 2 fields"),
    "a long field": (table("a,y\n" + '"' + "x" * 200_000 + '",\n' * 9), "bad.csv'"),
    "two rows": (table("a,y\n1,1.5\n2,2.5\n"), "too few"),
}
TABLES = [Trial(f"fit bad.csv -t y -o m {FIT}", setup, says, (1,)) for setup, says in BAD_TABLES.values()] + [
    Trial(f"fit {name} -t y -o m {FIT}", setup, says, (1,))
    for name, setup, says in (
        ("none.csv", None, "'none.csv' does not exist"),
        ("sub", None, "'sub' is a folder"),
        ("l.csv", link("l.csv", "none.csv"), "'l.csv' does not exist"),
        ("l.csv", link("l.csv", "l.csv"), "l.csv'"),
        ("pipe.csv", a_pipe("pipe.csv"), "pipe.csv'"),
        ("bad.xlsx", copy("bad.xlsx", "t.csv"), "Cannot tell what kind of table 'bad.xlsx' is"),
        ("bad", copy("bad", "t.csv"), "Cannot tell what kind of table 'bad' is"),
        ("bad.parquet", copy("bad.parquet", "t.csv"), "bad.parquet'"),
        ("bad.parquet", copy("bad.parquet", "t.parquet", lambda data: data[:-40]), "bad.parquet'"),
        ("bad.parquet", content("bad.parquet", b""), "bad.parquet'"),
        ("bad.csv.gz", copy("bad.csv.gz", "t.csv"), "bad.csv.gz'"),
        ("bad.csv.gz", copy("bad.csv.gz", "t.csv", lambda data: gzip.compress(data)[:-99]), "bad.csv.gz'"),
        ("bad.csv.gz", copy("bad.csv.gz", "t.csv", lambda data: flipped(gzip.compress(data))), "bad.csv.gz'"),
        ("bad.npz", copy("bad.npz", "t.csv"), "bad.npz'"),
        ("bad.npz", copy("bad.npz", "t.npz", lambda data: data[:-40]), "bad.npz'"),
        ("bad.npz", copy("bad.npz", "t.npz", lambda data: data[:200] + bytes(9) + data[209:]), "bad.npz'"),
        ("bad.npz", lambda f: np.savez(f / "bad.npz", X=np.ones((3, 2, 2)), y=np.ones(3)), "two axes"),
        ("bad.npz", lambda f: np.savez(f / "bad.npz", X=np.ones((3, 2)), y=np.ones(4)), "one value for each"),
        ("bad.npz", lambda f: np.savez(f / "bad.npz", X=np.array([{}, {}]), y=np.ones(2)), "objects"),
        ("bad.npz", lambda f: np.savez(f / "bad.npz", Z=np.ones((3, 2))), "no array 'y'"),
    )
]  # fmt: skip

MODELS = [
    Trial(f"{command} {model} {data}", setup, says, (1,))
    for command, rest in (("predict", "-o p.csv"), ("evaluate", "-t y"))
    for model, data, setup, says in (
        ("none", f"t.csv {rest}", None, "none'"),
        ("sub", f"t.csv {rest}", None, "sub'"),
        ("t.csv", f"t.csv {rest}", None, "t.csv' is a table, not a model"),
        ("map.ntkit", f"t.csv {rest}", None, "cannot predict"),
        ("bad", f"t.csv {rest}", copy("bad", "m.ntkit", lambda data: data[:-40]), "bad'"),
        ("bad", f"t.csv {rest}", copy("bad", "m.ntkit", flipped), "bad'"),
        ("bad", f"t.csv {rest}", content("bad", b""), "bad'"),
        ("m.ntkit", f"none.csv {rest}", None, "none.csv' does not exist"),
        ("m.ntkit", f"t.npz {rest}", None, "data frames"),
        ("m.ntkit", f"bad.csv {rest}", table("a,k,y\n1,u,2\n"), "bad.csv'.* lacks the column 'b'"),
        ("m.ntkit", f"bad.csv {rest}", table("a,b,k,y\n1,2,u,2\n1,x,u,2\n"), "bad.csv'.*'b' must hold numbers.*row 1"),
        ("m.ntkit", f"bad.csv {rest}", table("a,b,k,y\n1,2,u,2\n1,inf,u,2\n"), "bad.csv'.*'b' has an infinite.*row 1"),
        ("m.ntkit", f"bad.csv {rest}", table("a,b,k,y\n"), "bad.csv' has no rows"),
    )
] + [
    Trial("evaluate m.ntkit t.csv -t z", None, "no column 'z'", (1,)),
    Trial("evaluate m.ntkit t.csv -t k", None, "predicts numbers", (1,)),
]  # fmt: skip

TRIALS = [*ITSELF, *OPTIONS, *TABLES, *MODELS, *EXISTING]


@pytest.mark.parametrize("trial", sampled(TRIALS, 10), ids=str)
def test_commands_that_cannot_work(
    trial: Trial, folder: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if ALL:
        attempt(trial, folder, tally)
        return
    if trial.setup is not None:
        trial.setup(folder)
    before = contents(folder)
    monkeypatch.chdir(folder)
    code = main(trial.command.split())
    judge(tally, trial, code, capsys.readouterr().err, differences(before, contents(folder)))


@pytest.mark.parametrize("trial", [ITSELF[0], ITSELF[-2]], ids=str)
def test_a_process_keeps_its_input(trial: Trial, folder: Path, tally: Tally) -> None:
    attempt(trial, folder, tally)


@thorough
@pytest.mark.parametrize(
    ("command", "unreadable"), [(f"fit t.csv -t y -o m {FIT}", "t.csv"), ("predict m.ntkit t.csv -o p.csv", "m.ntkit")]
)
def test_files_that_cannot_be_read(command: str, unreadable: str, folder: Path, tally: Tally) -> None:
    os.chmod(folder / unreadable, 0)
    if os.access(folder / unreadable, os.R_OK):
        pytest.skip("this user may read all files")
    attempt(Trial(command, None, f"{unreadable}'", (1,)), folder, tally)


# Processes that end before their time. A module on their path sends the signal at the worst moment: when the new file
# is written but has not taken its place yet. Or it blocks imports.


def module_for(folder: Path, code: str) -> dict[str, str]:
    """Variables of a process that runs some code first."""
    place = folder.parent / "path"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(code)
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


WRITERS = {
    "fit": f"fit t.csv -t y -o old.csv --force {FIT}",
    "predict": "predict m.ntkit t.csv -o old.csv --force",
    "predict Parquet": "predict m.ntkit t.csv -o t.parquet --force",
    "predict with compression": "predict m.ntkit t.csv -o new.csv.gz",
    "compare": "compare t.csv -t y -o sub/new --components 8 --force",
    "demo": "demo -o sub/new/folder",
}


@thorough
@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("writer", WRITERS)
def test_signals_while_writing(writer: str, name: str, folder: Path, tally: Tally) -> None:
    code = f"import os, signal\nos.fsync = lambda number: os.kill(os.getpid(), signal.{name})"
    before = contents(folder)
    rc, err = finish(start(WRITERS[writer], folder, env=module_for(folder, code)))
    after = contents(folder)
    if name == "SIGKILL":  # nobody can remove the temporary then, nor the folder that it is in
        after = {path: what for path, what in after.items() if not path.endswith(".tmp") and "sub/" not in path}
        right = rc == -signal.SIGKILL
    else:
        says = {"SIGINT": "interrupted", "SIGTERM": "terminated"}[name]
        right = rc == 128 + getattr(signal, name) and err.strip() == f"error: {says}"
    changed = differences(before, after)
    verdict = Verdict.WRONG if changed else Verdict.RIGHT if right else Verdict.VAGUE
    verdict = Verdict.FOREIGN if "Traceback" in err else verdict
    tally.add(verdict, f"{name}: {WRITERS[writer]}", f"exit code {rc}, changed {sorted(changed)}, {err[-300:]!r}")


@thorough
@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize("seconds", [2.5, 4.0])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_signals_while_working(name: str, seconds: float, folder: Path, tally: Tally) -> None:
    """A search that would take a minute."""
    command = "fit big.csv -t y -o old.csv --force --components 2048 --kernel ntk"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((20_000, 11)), columns=[*"abcdefghij", "y"])
    frame.to_csv(folder / "big.csv", index=False)
    before = contents(folder)
    process = start(command, folder)
    time.sleep(seconds)
    process.send_signal(getattr(signal, name))
    rc, err = finish(process)
    changed = differences(before, contents(folder))
    # Python itself ends by SIGINT where it came within an exec, as in imports
    right = rc == -signal.SIGKILL if name == "SIGKILL" else rc in (130, 143, -signal.SIGINT) and err.count("\n") == 1
    verdict = Verdict.WRONG if changed or rc == 0 else Verdict.RIGHT if right else Verdict.VAGUE
    verdict = Verdict.FOREIGN if "Traceback" in err else verdict
    tally.add(verdict, f"{name} after {seconds} s", f"exit code {rc}, changed {sorted(changed)}, {err[-300:]!r}")


@thorough
@pytest.mark.skipif(os.name == "nt", reason="limits of Unix")
@pytest.mark.parametrize("writer", WRITERS)
def test_disks_that_are_full(writer: str, folder: Path, tally: Tally) -> None:
    """Files of this process cannot grow beyond some bytes."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    trial = Trial(WRITERS[writer], None, "too large|cannot be written", (1,))
    # compiled code is cached elsewhere: no cache, no files of it
    attempt(trial, folder, tally, preexec_fn=limit, env={"NUMBA_DISABLE_CACHING": "1", "PYTHONDONTWRITEBYTECODE": "1"})


BLOCKER = """import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@thorough
@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("typer", f"fit t.csv -t y -o m {FIT}"),
        ("pandas", f"fit t.csv -t y -o m {FIT}"),
        ("pandas", "predict m.ntkit t.csv -o p.csv"),
        ("pandas", "evaluate m.ntkit t.csv -t y"),
        ("pyarrow", f"fit t.parquet -t y -o m {FIT}"),
        ("pyarrow", "predict m.ntkit t.csv -o p.parquet"),
        ("matplotlib", f"fit t.csv -t y -o m --plot p.png {FIT}"),
    ],
)
def test_missing_packages(missing: str, command: str, folder: Path, tally: Tally) -> None:
    env = module_for(folder, BLOCKER.format(names={missing}))
    attempt(Trial(command, None, r"pip install 'ntkit\[(cli|plot)\]'", (1,)), folder, tally, env=env)


@thorough
@pytest.mark.skipif(os.name == "nt", reason="pipes of Unix")
@pytest.mark.parametrize(
    "command", ["--help", "fit --help", "evaluate m.ntkit t.csv -t y --json", f"fit t.csv -t y -o m {FIT}"]
)
@pytest.mark.parametrize("where", ["closed pipe", "/dev/full"])
def test_reports_that_nobody_can_read(command: str, where: str, folder: Path, tally: Tally) -> None:
    """Written files are complete; no traceback."""
    if where == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(where, os.O_WRONLY)
    process = start(command, folder, stdout=writer)
    os.close(writer)
    rc, err = finish(process)
    quiet = "Traceback" not in err and "Exception ignored" not in err
    if (folder / "m").exists():
        ntkit.load(folder / "m")
    says = not err if where == "closed pipe" else err.startswith("error: ") and err.count("\n") == 1
    verdict = Verdict.FOREIGN if not quiet else Verdict.RIGHT if rc and says else Verdict.VAGUE
    tally.add(verdict, f"{command} > {where}", f"exit code {rc}, {err[-300:]!r}")


@thorough
@pytest.mark.parametrize(("command", "name"), [("predict m.ntkit t.csv", "new.csv"), (f"fit t.csv -t y {FIT}", "new")])
def test_several_concurrent_commands(command: str, name: str, folder: Path, tally: Tally) -> None:
    """Each writes all of the file, or finds it written by another."""
    before, output = contents(folder), folder / name
    ends = [finish(process) for process in [start(f"{command} -o {name}", folder) for _ in range(3)]]
    changed = differences(before, contents(folder)) - {output.name}
    fine = all(rc == 0 or "exists" in err for rc, err in ends) and any(rc == 0 for rc, _ in ends)
    whole = len(pd.read_csv(output)) == 60 if output.suffix else bool(ntkit.load(output))
    tally.add(Verdict.RIGHT if fine and whole and not changed else Verdict.WRONG, command, (ends, sorted(changed)))
