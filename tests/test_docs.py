"""Documents: every public name has a page, links and pictures are there, programs on pages print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_pictures_are_there(page):
    text = re.sub(r"^```(?!\{).*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^```\{(?:figure|image|include)\} (\S+)", text, re.M)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        file = target(page, path) if path else page
        assert file.exists(), link
        assert not anchor or anchor in slugs(file), link


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_have_content(page):
    text = page.read_text(encoding="utf-8")
    assert "{include}" in text or len(text.split()) > 20
    assert not re.search(r"^[A-Z]{4,}$", text, re.M), "a placeholder"


TUTORIALS = [*sorted(DOCS.glob("tutorial/*.md")), DOCS / "index.md"]
PROGRAMS = [page for page in TUTORIALS if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.stem)
def test_programs_on_pages_print_what_they_say(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    printed = re.findall(r"^\s*print\(.*\)\s+# (.+)$", "\n".join(blocks), re.M)
    assert out.stdout.splitlines() == printed
    assert printed
