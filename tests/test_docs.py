"""Documents: every public name has a page, links and pictures are there, programs on pages print what they say."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.tiers import thorough

import ntkit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = ("_build", "_static", "_templates", "gallery", "generated")
PAGES = sorted(path for path in DOCS.rglob("*.md") if not set(path.relative_to(DOCS).parts).intersection(MADE))
TEXTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]


def listed_names() -> list[str]:
    """Names in the autosummary lists of the reference."""
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
    """Anchors of the headings of a page, as GitHub and MyST make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.+)$", text, re.M))
    return {title.replace(" ", "-") for title in titles}


def target(page: Path, link: str) -> Path:
    """File that a link needs: for a page of the gallery, or its picture, the program it is made of."""
    path = page.parent / link
    if "gallery" not in path.relative_to(ROOT).parts:
        return path
    match = re.search(r"plot_\w+?(?=_\d+\.png$|\.)", path.name)
    return ROOT / "examples" / (f"{match[0]}.py" if match else "GALLERY_HEADER.rst")


def test_links_and_pictures_are_there():
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


def blocks(page: Path) -> list[str]:
    """Python on a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


PROGRAMS = [page for page in TUTORIALS if blocks(page)]


def imported(code: str) -> list[tuple[str, str]]:
    """Modules and names of ntkit that a program imports."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [(n.module, a.name) for n in nodes if (n.module or "").partition(".")[0] == "ntkit" for a in n.names]


def test_programs_on_pages_import_what_there_is():
    """Those on pages that are not run as well, as far as they parse: some show parts of programs."""
    pages = [(page, code) for page in TEXTS for code in blocks(page)]
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
def test_programs_on_pages_print_what_they_say(page, tmp_path):
    code, script = "\n".join(blocks(page)), tmp_path / "page.py"
    script.write_text(code, encoding="utf-8")
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    printed = re.findall(r"^\s*print\(.*\)\s+# (.+)$", code, re.M)
    assert out.stdout.splitlines() == printed
    assert printed
