"""Wrong values × every parameter of every estimator: right, or refused by a message that names the parameter.

Huge sizes run in a separate process with a memory limit: they are refused at once, or are harmless.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hostile.subjects import Subject, estimator_classes, judge, of_class, plain, quietly, rows, small, targets
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import sampled, thorough

ALLOWANCE = 3 * 2**30  # bytes that a process may take in addition to its memory at the start
SECONDS = 5  # of processor time for one fit with a huge value
NEVER: dict[str, Any] = {
    "an object": object(),
    "NaN": float("nan"),
    "infinity": float("inf"),
    "a complex number": 1j,
    "bytes": b"ntk",
    "a set": {1},
    "text": "no such thing",
    "a type": int,
    "Ellipsis": ...,
    "NaN of NumPy": np.float32("nan"),
    "a date": np.datetime64("2020-01-01"),
}
"""Values that no parameter takes."""
PERHAPS: dict[str, Any] = {
    "-1": -1,
    "0": 0,
    "1": 1,
    "2.5": 2.5,
    "-0.5": -0.5,
    "1e-320": 1e-320,
    "empty text": "",
    "None": None,
    "True": True,
    "NumPy's True": np.True_,
    "NumPy's 3": np.int8(3),
    "an empty list": [],
    "an empty dict": {},
    "an array": np.array([1.0, 2.0]),
    "a 2-d array": np.ones((2, 2)),
    "a tuple": (1, 2),
    "a list": [1, -1],
    "a function": len,
}
"""Values that some parameters take."""
HUGE: dict[str, Any] = {"10**12": 10**12, "10**8": 10**8, "10**30": 10**30, "1e300": 1e300, "-10**30": -(10**30)}
LAWS = estimator_classes()
AS_LONG_AS_ASKED = {"n_init", "n_draws", "max_iter"}  # how often something is repeated, in bounded memory


def trial(law: type, parameter: str, name: str, value: Any) -> tuple[Verdict, str]:
    """Fit and use an estimator with one wrong value."""
    subject, X = of_class(law), rows()
    base = small(law)
    before = base.get_params(deep=False)[parameter]
    if type(value) is type(before) and value is before:
        return Verdict.RIGHT, ""
    try:
        found = quietly(lambda: use(subject, base.set_params(**{parameter: value}), X))
    except Exception as error:
        argument = re.compile(rf"\b{parameter}\b|\b{parameter.removesuffix('s')}\b")
        verdict = judge(error, finite=True, argument=argument)
        return verdict, f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    if name in NEVER:
        return Verdict.WRONG, "goes through"
    return (Verdict.RIGHT, "") if np.isfinite(plain(found)).all() else (Verdict.WRONG, "not finite")


def use(subject: Subject, estimator: Any, X: np.ndarray) -> Any:
    return subject.use(subject.refit(estimator, X, targets(estimator, X)), X)


def parameters(law: type) -> list[str]:
    return sorted(law().get_params(deep=False))


@pytest.mark.parametrize("name", LAWS)
def test_values(name: str, tally: Tally) -> None:
    """Wrong types and values of every parameter."""
    trials = [(p, key, value) for p in parameters(LAWS[name]) for key, value in (NEVER | PERHAPS).items()]
    for parameter, key, value in sampled(trials, 6):
        tally.add(*as_entry(name, parameter, key, trial(LAWS[name], parameter, key, value)))
    assert len(tally.vague) <= 2, tally.vague


def as_entry(name: str, parameter: str, key: str, result: tuple[Verdict, str]) -> tuple[Verdict, str, str]:
    return result[0], f"{name}({parameter}={key})", result[1]


@thorough
@pytest.mark.parametrize("name", LAWS)
def test_huge_values(name: str, tally: Tally) -> None:
    """Sizes far beyond any memory, in a process that may not take much of it."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.hostile.test_parameters", name]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for verdict, label, text in entries:
        tally.add(Verdict(verdict), label, text)
    if done.returncode:
        tally.add(Verdict.CRASH, f"{name} after {len(entries)} trials", done.stderr[-300:])


class _TooLongError(BaseException):
    """A fit has taken too long."""


def _stop(*_: object) -> None:
    raise _TooLongError


def _main(name: str) -> None:
    """Try the huge values of one class; a line for each."""
    quietly(lambda: use(of_class(LAWS[name]), small(LAWS[name]), rows()))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, -1))
    signal.signal(signal.SIGVTALRM, _stop)
    for parameter in sorted(set(parameters(LAWS[name])) - AS_LONG_AS_ASKED):
        for key, value in HUGE.items():
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
                result = trial(LAWS[name], parameter, key, value)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            except _TooLongError:
                result = Verdict.UNBOUNDED, f"more than {SECONDS} s"
            if result[0] is not Verdict.RIGHT and "Unable to allocate" in result[1]:
                result = Verdict.UNBOUNDED, result[1]
            print(json.dumps(as_entry(name, parameter, key, result)), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
