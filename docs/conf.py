"""Sphinx configuration: ``make docs`` builds the site into docs/_build/html."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import ntkit

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/ntkit/ntkit"
WIDE_PAGES = ("index", "which-map", "theory/index", "results/index", "results/papers", "results/peers")

project = "ntkit"
author = "The ntkit developers"
project_copyright = author
version = release = ntkit.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates", "gallery/backreferences", "gallery/**/*.ipynb", "gallery/**/*.py"]
templates_path = ["_templates"]
highlight_language = "text"  # formulas; Python blocks say what they are
default_role = "py:obj"  # `NTKFeatures` in a docstring is a link where there is such a name, else code

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"  # numpydoc sections say the types, in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # methods are on the page of their class
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "doc_module": ("ntkit",),
    "backreferences_dir": "gallery/backreferences",
    "download_all_examples": False,
    "show_memory": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "matplotlib_animations": False,
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,  # its page would load scripts from elsewhere
}

html_theme = "pydata_sphinx_theme"
html_title = "ntkit"
html_static_path = ["_static"]
html_css_files = ["ntkit.css"]
html_show_sourcelink = False
html_copy_source = False
html_favicon = "_static/ntkit.svg"
html_context = {"default_mode": "auto"}
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "logo": {"text": "ntkit", "image_light": "_static/ntkit.svg", "image_dark": "_static/ntkit.svg", "alt_text": ""},
    "icon_links": [{"name": "GitHub", "url": REPOSITORY, "icon": "fa-brands fa-github"}],
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    # pages of wide tables need the width
    "secondary_sidebar_items": {"**": ["page-toc"]} | {name: [] for name in WIDE_PAGES},
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "back_to_top_button": False,
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {name: [] for name in ("index", "install", "which-map", "promises", "changelog", "contributing")}

# class attributes of nn.Module, which no module name tells apart from ntkit's
TORCH_ATTRIBUTES = ("T_destination", "call_super_init", "dump_patches", "training")
SITE_PAGES = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}


def public_names() -> dict[str, str]:
    """Short and qualified public names → the one name that has a page."""
    pages: dict[str, str] = {}
    for module in ntkit._PUBLIC_MODULES:
        for name in import_module(module).__all__:
            page = f"ntkit.{name}" if name in ntkit.__all__ else f"{module}.{name}"
            pages[f"{module}.{name}".removeprefix("ntkit.")] = pages[f"{module}.{name}"] = page
            if name[0].isupper():  # small words such as "gaussian" are values of parameters too
                pages[name] = page
    return pages


def link_public_names(app: Sphinx, doctree: nodes.document) -> None:
    """Code such as `NTKFeatures` on a page of text becomes a link to the page of that name."""
    if Path(app.env.doc2path(app.env.docname)).suffix != ".md":
        return
    for code in list(doctree.findall(nodes.literal)):
        name = PAGES.get(re.sub(r"\(.*\)$", "", code.astext()))
        if name is None or isinstance(code.parent, nodes.reference | pending_xref | nodes.title):
            continue
        link = pending_xref("", refdomain="py", reftype="obj", reftarget=name, refdoc=app.env.docname)
        code.replace_self(link)
        link += code


def number_references(_app: Sphinx, doctree: nodes.document) -> None:
    """[1] in the first line of a docstring stays [1] in lists of names, where numpydoc leaves its own long label."""
    for link in doctree.findall(pending_xref):
        if link.get("refdomain") == "citation":
            for text in list(link.findall(nodes.Text)):
                text.parent.replace(text, nodes.Text(re.sub(r"R[0-9a-f]{11,}-", "", text)))


def link_repository(app: Sphinx, docname: str, source: list[str]) -> None:
    """Relative links to files outside docs/ work in the repository; on the site they point there."""
    folder = Path(app.env.doc2path(docname)).parent

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match[1].partition("#")
        target = Path(os.path.normpath(folder / path))
        if target.is_relative_to(app.srcdir) or not target.is_relative_to(ROOT):
            return match[0]
        name = target.relative_to(ROOT).as_posix()
        if name in SITE_PAGES:
            return f"](/{SITE_PAGES[name]}.md)"
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{name}{'#' + anchor if anchor else ''})"

    source[0] = re.sub(r"\]\((\.\./[^)\s]+)\)", link, source[0])


def skip_inherited(_app: Sphinx, _what: str, name: str, value: Any, *_: Any) -> bool | None:
    """Skip what estimators inherit from scikit-learn and modules from torch: it is documented there."""
    module = getattr(value, "__module__", None) or ""
    inherited = module.split(".")[0] in ("sklearn", "torch") and name != "fit_transform"
    return True if inherited or name in TORCH_ATTRIBUTES else None


def mark_up(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Formulas, which docstrings indent, become blocks, where no sign is markup; names of these pages become links."""
    result: list[str] = []
    before = ""
    for i, line in enumerate(lines):
        if line.strip():
            deeper = i > 0 and not lines[i - 1].strip() and indent(line) > indent(before)
            if deeper and not before.lstrip().startswith("..") and not before.endswith("::"):
                result += [" " * (indent(line) - 4) + ".. code-block:: text", ""]
            before = line
        result.append(re.sub(r"``docs/([\w/-]+)\.md``", r":doc:`/\1`", line))
    lines[:] = result


def indent(line: str) -> int:
    """Blanks before a line."""
    return len(line) - len(line.lstrip())


PAGES = public_names()


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_repository)
    app.connect("doctree-read", link_public_names)
    app.connect("doctree-read", number_references)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", mark_up, priority=100)  # before numpydoc takes sections apart
