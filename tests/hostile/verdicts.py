"""Verdicts on trials, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How a trial ended. All but the first four break a promise."""

    RIGHT = "right"  # the result is correct
    REFUSED = "refused"  # an error of ours that names argument, rule and value
    WARNED = "warned"  # the result is as good as possible, and a warning describes the problem
    VAGUE = "vague"  # an error of the right type whose message lacks argument, rule or value; counted, few allowed
    FOREIGN = "foreign"  # an exception from the depths: LinAlgError, KeyError, "Input contains NaN" where there is none
    WRONG = "wrong"  # a wrong result without a word
    UNBOUNDED = "unbounded"  # more time or memory than promised
    CRASH = "crash"  # the process died


GOOD = frozenset({Verdict.RIGHT, Verdict.REFUSED, Verdict.WARNED, Verdict.VAGUE})


class Tally:
    """Counts of verdicts of one test; `record` is pytest's ``record_property``, which the final table is made of."""

    def __init__(self, group: str, record: Callable[[str, Any], None]):
        self.group, self._record = group, record
        self.counts: Counter[Verdict] = Counter()
        self.bad: list[str] = []
        self.vague: list[str] = []

    def add(self, verdict: Verdict, trial: str, detail: object = "") -> None:
        """Take in the verdict on one trial."""
        self.counts[verdict] += 1
        if verdict not in GOOD:
            self.bad.append(f"{verdict}: {trial}: {detail}")
        elif verdict is Verdict.VAGUE:
            self.vague.append(f"{trial}: {detail}")

    def close(self) -> None:
        """Record the counts; fail if a promise was broken."""
        for verdict, count in self.counts.items():
            self._record(f"hostile:{self.group}:{verdict}", count)
        assert not self.bad, "\n".join([f"{len(self.bad)} of {self.counts.total()} trials:", *self.bad[:40]])


def table(properties: list[tuple[str, Any]]) -> str:
    """Return the counts of all groups as text; `properties` are those recorded by tests."""
    counts: Counter[tuple[str, str]] = Counter()
    for name, count in properties:
        kind, _, rest = name.partition(":")
        if kind == "hostile":
            group, _, verdict = rest.rpartition(":")
            counts[group, verdict] += count
    if not counts:
        return ""
    verdicts = [v for v in Verdict if any(verdict == v for _, verdict in counts)]
    rows = [["trials of", "number", *verdicts]]
    for group in sorted({group for group, _ in counts}):
        numbers = [counts[group, v] for v in verdicts]
        rows.append([group, str(sum(numbers)), *map(str, numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
