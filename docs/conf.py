"""Sphinx configuration: ``make docs`` builds the site into docs/_build/html."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

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
highlight_language = "text"  # docstrings hold formulas; blocks of Python name their language
default_role = "py:obj"  # `NTKFeatures` in a docstring becomes a link if such a name exists, otherwise code
# Formulas become MathML when the site is built (see `mathml` below). MathJax would either be fetched from another host,
# which breaks the site offline, or come from a package with 24 MB of scripts and fonts that had its last release in
# 2022. MathML needs neither scripts nor fonts, and current browsers display it.
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "attrs_inline", "dollarmath"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

autosummary_generate = True
autosummary_imported_members = False
autodoc_typehints = "none"  # the numpydoc sections describe the types in words
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
    "write_computation_times": False,  # its page would load scripts from another host
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
    # Pages with wide tables need the full width.
    "secondary_sidebar_items": {"**": ["page-toc"]} | {name: [] for name in WIDE_PAGES},
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "back_to_top_button": False,
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {
    name: [] for name in ("index", "concepts", "install", "which-map", "promises", "changelog", "contributing")
}

# Class attributes of nn.Module. They have no module name that would show where they come from.
TORCH_ATTRIBUTES = ("T_destination", "call_super_init", "dump_patches", "training")
SITE_PAGES = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}


def public_names() -> dict[str, str]:
    """Map short and qualified public names to the one name that has a page."""
    pages: dict[str, str] = {}
    for module in ntkit._PUBLIC_MODULES:
        for name in import_module(module).__all__:
            page = f"ntkit.{name}" if name in ntkit.__all__ else f"{module}.{name}"
            pages[f"{module}.{name}".removeprefix("ntkit.")] = pages[f"{module}.{name}"] = page
            if name[0].isupper():  # lower-case names such as "gaussian" are also parameter values
                pages[name] = page
    return pages


def link_public_names(app: Sphinx, doctree: nodes.document) -> None:
    """Turn code such as `NTKFeatures` on a Markdown page into a link to the page of that name."""
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
    """Show references as [1] in lists of names, where numpydoc would leave its own long label."""
    for link in doctree.findall(pending_xref):
        if link.get("refdomain") == "citation":
            for text in list(link.findall(nodes.Text)):
                text.parent.replace(text, nodes.Text(re.sub(r"R[0-9a-f]{11,}-", "", text)))


def link_repository(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point relative links to files outside docs/ to the repository."""
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
    """Skip members inherited from scikit-learn or torch, which document them."""
    module = getattr(value, "__module__", None) or ""
    inherited = module.split(".")[0] in ("sklearn", "torch") and name != "fit_transform"
    return True if inherited or name in TORCH_ATTRIBUTES else None


def mark_up(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Turn indented formulas in docstrings into literal blocks, and names of pages into links."""
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
    """Return the number of blanks at the start of a line."""
    return len(line) - len(line.lstrip())


def mathml(node: nodes.math | nodes.math_block, display: str) -> str:
    """Convert the LaTeX of a node to MathML, and warn about commands that the converter does not know."""
    text = convert(node.astext(), display=display)
    if unknown := re.search(r"\\\w+|<mi>&</mi>", text):
        LOGGER.warning("LaTeX not converted to MathML: %s", unknown[0], location=node)
    # The converter takes these relations for variables, which get no space around them.
    text = text.replace("<mi>&#x02AAF;</mi>", "<mo>&#x02AAF;</mo>").replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    # Norm bars, slashes and names such as Var are operators to the converter. Browsers would space them widely.
    text = re.sub(r"<mo([^>]*)>(&#x02016;|&#x0002F;)", r'<mo lspace="0em" rspace="0em"\1>\2', text)
    text = re.sub(r"<mo>([A-Za-z]+)</mo>", r'<mi>\1</mi><mspace width="0.167em" />', text)
    # A function needs a space before its argument: "cos t". Exponents of functions must stay where they are.
    return re.sub(
        r"(?<!<msup>)(<mi>(?:arccos|arctan|cos|exp|log|sin)</mi>)(?=<mi)", r'\1<mspace width="0.167em" />', text
    )


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    translator.body.append(f'<span class="math notranslate">{mathml(node, "inline")}</span>')
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Write a displayed formula."""
    translator.body.append(f'<div class="math notranslate">{mathml(node, "block")}</div>\n')
    raise nodes.SkipNode


PAGES = public_names()
LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> None:
    """Register the functions above with Sphinx."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", link_repository)
    app.connect("doctree-read", link_public_names)
    app.connect("doctree-read", number_references)
    app.connect("autodoc-skip-member", skip_inherited)
    app.connect("autodoc-process-docstring", mark_up, priority=100)  # before numpydoc parses sections
