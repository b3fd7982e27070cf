"""Documentation: every public name has a page, links and images exist, and programs print the output shown."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from tests.pages import blocks, check_printed
from tests.tiers import thorough

import ntkit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = ("_build", "_static", "_templates", "gallery", "generated")
PAGES = sorted(path for path in DOCS.rglob("*.md") if not set(path.relative_to(DOCS).parts).intersection(GENERATED))
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]


def listed_names() -> list[str]:
    """Return the names in the autosummary lists of the reference."""
    names = []
    for page in DOCS.glob("api/*.rst"):
        module, listing = "", False
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif line.startswith(".. autosummary::"):
                listing = True
            elif line and not line.startswith(" "):
                listing = False
            elif listing and re.fullmatch(r"   \w+", line):
                names.append(f"{module}.{line.strip()}")
    return names


def test_every_public_name_has_one_page():
    public = set()
    for module in ntkit._PUBLIC_MODULES:
        for name in set(import_module(module).__all__) - {"__version__", *ntkit._SUBMODULES}:
            public.add(f"ntkit.{name}" if name in ntkit.__all__ else f"{module}.{name}")
    listed = listed_names()
    assert len(set(listed)) == len(listed)
    assert set(listed) == public


def slugs(page: Path) -> set[str]:
    """Return the anchors that GitHub and MyST give the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.M))
    return {title.replace(" ", "-") for title in titles}


def target(page: Path, link: str) -> Path:
    """Return the file that a link needs. For a gallery page or its image, that is the program that makes it."""
    path = page.parent / link
    if "gallery" not in path.relative_to(ROOT).parts:
        return path
    match = re.search(r"plot_\w+?(?=_\d+\.png$|\.)", path.name)
    return ROOT / "examples" / (f"{match[0]}.py" if match else "GALLERY_HEADER.rst")


def test_links_and_images_exist():
    broken = []
    for page in TEXTS:
        text = re.sub(r"^```(?!\{).*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^```\{(?:figure|image|include)\} (\S+)", text, re.M)
        for link in links:
            path, _, anchor = link.partition("#")
            file = target(page, path) if path else page
            if not re.match(r"[a-z]+:", link) and (not file.exists() or (anchor and anchor not in slugs(file))):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_pages_have_content():
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in TEXTS}
    assert not [name for name, text in texts.items() if "{include}" not in text and len(text.split()) <= 20]
    assert not [name for name, text in texts.items() if re.search(r"^[A-Z]{4,}$", text, re.M)], "placeholders"


TUTORIALS = [*sorted(DOCS.glob("tutorial/*.md")), DOCS / "index.md"]
PROGRAMS = [page for page in TUTORIALS if blocks(page.read_text(encoding="utf-8"))]


def imported(code: str) -> list[tuple[str, str]]:
    """Return the modules and names that a program imports from ntkit."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [(n.module, a.name) for n in nodes if (n.module or "").partition(".")[0] == "ntkit" for a in n.names]


def test_programs_on_pages_import_existing_names():
    """Check pages that are not run as well, as far as their programs parse: some show parts of programs."""
    pages = [(page, block.code) for page in TEXTS for block in blocks(page.read_text(encoding="utf-8"))]
    missing, found = [], 0
    for page, code in pages:
        try:
            names = imported(code)
        except SyntaxError:
            assert page not in PROGRAMS, page
            continue
        found += len(names)
        missing += [(page.name, *name) for name in names if not hasattr(import_module(name[0]), name[1])]
    assert not missing
    assert found > 20


@thorough
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_programs_on_pages_print_the_output_shown(page, tmp_path):
    check_printed(page.read_text(encoding="utf-8"), tmp_path)


RIGHT = """
```python
print(1 + 1)  # 2
```

```python
print("two")
print("lines")
```

```text
two
lines
```
"""


def test_right_results_pass(tmp_path):
    check_printed(RIGHT, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# 2", "# 3"),
        ("  # 2", ""),
        ("two\nlines\n```", "two\nline\n```"),
        ("two\nlines\n```", "two\n```"),
        ("two\nlines\n```", "two\nlines\nmore\n```"),
        ("```text\ntwo\nlines\n```\n", ""),
        ('print("lines")', 'print("lines")  # lines'),
        ('print("lines")', 'print("lines"); raise ValueError'),
    ],
    ids=["comment", "no comment", "line", "line missing", "line too many", "no block", "comment and block", "error"],
)
def test_wrong_results_are_rejected(old, new, tmp_path):
    assert old in RIGHT
    with pytest.raises(AssertionError):
        check_printed(RIGHT.replace(old, new), tmp_path)


MAX_CODE_WIDTH = 88  # characters; wider lines are cut off on the site in a window of 1280 pixels


def test_code_on_pages_fits_its_column():
    wide = []
    for page in PAGES:
        fences = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", page.read_text(encoding="utf-8"), re.M)
        lines = [line for language, code in fences if not language.startswith("{") for line in code.splitlines()]
        wide += [f"{page.relative_to(ROOT)}: {line}" for line in lines if len(line) > MAX_CODE_WIDTH]
    assert not wide, "\n".join(wide)
