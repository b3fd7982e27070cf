"""Run the Python programs on Markdown pages and compare what they print with what the pages say.

A page states results in one of two ways: as a comment at the end of a line with ``print``, or in a ``text`` block that
directly follows a ``python`` block and holds everything that the block prints.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FENCES = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\s*^```(?:text|\{code-block\} text)\n(?P<output>.*?)^```$)?", re.S | re.M
)
RESULT_COMMENT = re.compile(r"^\s*print\(.*\)\s+# (.+)$", re.M)
# Printed between two blocks, so that the output of each block can be told apart.
SEPARATOR = "--- next block ---"


class Block(NamedTuple):
    """A block of Python, and the text block below it, if there is one."""

    code: str
    output: str | None

    def results(self) -> list[str]:
        """Return the lines that the page says this block prints."""
        comments = RESULT_COMMENT.findall(self.code)
        if self.output is None:
            return comments
        assert not comments, f"results stand in comments and in an output block: {comments}"
        return self.output.splitlines()


def blocks(text: str) -> list[Block]:
    """Return the blocks of Python on a page."""
    return [Block(match["code"], match["output"]) for match in FENCES.finditer(text)]


def check_printed(text: str, folder: Path) -> None:
    """Run all blocks of a page as one program in a folder, and check that each prints what the page says."""
    found = blocks(text)
    script = folder / "page.py"
    script.write_text(f"\nprint({SEPARATOR!r})\n".join(block.code for block in found), encoding="utf-8")
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=folder)
    assert out.returncode == 0, out.stderr
    printed: list[list[str]] = [[]]
    for line in out.stdout.splitlines():
        if line == SEPARATOR:
            printed.append([])
        else:
            printed[-1].append(line)
    expected = [block.results() for block in found]
    assert printed == expected, f"printed {printed}, the page says {expected}"
    assert any(expected), "the page states no results"
