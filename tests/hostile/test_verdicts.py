"""The trials themselves are tried: a broken promise must fail its test, and the table must count."""

import pytest
from tests.hostile.verdicts import Tally, Verdict, table


def test_a_broken_promise_fails() -> None:
    recorded: list[tuple[str, int]] = []
    tally = Tally("files", lambda name, count: recorded.append((name, count)))
    tally.add(Verdict.RIGHT, "one")
    tally.add(Verdict.VAGUE, "two")
    tally.close()
    tally.add(Verdict.WRONG, "three", "R² 0.37")
    with pytest.raises(AssertionError, match=r"R² 0\.37"):
        tally.close()
    lines = table(recorded).splitlines()
    assert lines[0].split() == ["trials", "of", "number", "right", "vague", "wrong"]
    assert lines[1].split() == ["files", "5", "2", "2", "1"]
