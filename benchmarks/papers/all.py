"""Every table and figure of the three papers again, and the page that shows them beside the papers' numbers.

    python benchmarks/papers/all.py                          what a CPU can do
    python benchmarks/papers/all.py --device cuda            the same on a GPU; both stay
    python benchmarks/papers/all.py --quick                  minutes: does everything work?
    python benchmarks/papers/all.py --only ntk_table2        one or some of them
    python benchmarks/papers/all.py --page                   only the page, from what is there

A run that is stopped goes on where it was. A case that fails does not stop the others; the exit status is then 1. The
page is docs/results/papers.md, with its pictures beside it; that of quick runs is
benchmarks/papers/results/quick/papers.md.
"""

from __future__ import annotations

import os
import sys
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from experiment import FailedCasesError, Runs, arguments, markdown_table, perform, results_file  # noqa: E402

PAPERS = {
    "ntk": "Zandieh et al., NeurIPS 2021",
    "power": "Song et al., ICML 2021",
    "gegenbauer": "Han et al., ICML 2022",
}
CITATIONS = {
    "ntk": """\
A. Zandieh, I. Han, H. Avron, N. Shoham, C. Kim, J. Shin, "Scaling Neural Tangent Kernels via Sketching and Random
Features", NeurIPS 2021, [arXiv:2106.07880](https://arxiv.org/abs/2106.07880).""",
    "power": """\
Z. Song, D. P. Woodruff, Z. Yu, L. Zhang, "Fast Sketching of Polynomial Kernels of Polynomial Degree", ICML 2021,
[arXiv:2108.09420](https://arxiv.org/abs/2108.09420).""",
    "gegenbauer": """\
I. Han, A. Zandieh, H. Avron, "Random Gegenbauer Features for Scalable Kernel Methods", ICML 2022,
[arXiv:2202.03474](https://arxiv.org/abs/2202.03474).""",
}
INTRODUCTION = """\
ntkit implements three papers. Here is every table and figure of theirs that can be measured, done with ntkit, the
paper's beside ours. `make papers` runs all of it again and writes this page; `make papers PAPERS_ARGS='--device cuda'`
does so on a GPU. What is already in the results files is not measured again. Scripts and results, and what they need,
are in {folder}."""
CLAIMS = """\
A claim is a statement of the paper about its table or figure, or, where that is said, what its numbers show. Whether it
holds here is computed from the results files."""
ELSEWHERE = """\
Statements of theorems that were tried on the way, not in a table or figure:

- Song et al., Theorem 6.9 (sketched ridge regression) needs features within 1 ± ε of the kernel. Oblivious features in
  smaller number than rows are not that: at small penalties the objective was up to hundreds of times the optimum.
  See [sketched solutions]({design}/kernel-ridge.md#sketched-solutions).
- Song et al., Theorem A.1 gives degree j of the Gaussian a number of components that grows like j². Shares in
  proportion to the trace have a seventh of the error or less. See [series]({design}/sketches.md#series)."""
NAMES = (
    "ntk_figure1", "ntk_figure2a", "ntk_table1", "ntk_table2", "power_table1", "gegenbauer_figure1",
    "gegenbauer_table2", "gegenbauer_table3", "gegenbauer_table4",
)  # fmt: skip
BOUNDS = "nothing to rerun; the growth of features is in {script}"  # Table 1 of Han et al.


@dataclass
class Section:
    """What the page shows of one table or figure."""

    name: str
    module: ModuleType
    content: dict  # of the results file
    report: str = ""
    claims: list = field(default_factory=list)
    pictures: list = field(default_factory=list)

    @property
    def paper(self):
        return self.name.split("_")[0]

    @property
    def item(self):
        return self.module.TITLE.partition(": ")[0]

    @property
    def what(self):
        return self.module.TITLE.partition(": ")[2]

    @property
    def status(self):
        if not self.content["runs"]:
            return "not run"
        held = sum(claim.holds for claim in self.claims)
        if held == len(self.claims):
            return "holds" if self.claims else "run in part"
        return f"holds in part ({held} of {len(self.claims)} claims)" if held else "differs"


def main():
    """Run the experiments, list what is missing, write the page; returns the exit status."""
    args = options()
    modules, failed = load(NAMES)
    missing = []
    chosen = [] if args.report else [name for name in args.only or NAMES if name in modules]
    for k, name in enumerate(chosen, 1):
        print(f"[{k}/{len(chosen)}] {name}: {modules[name].TITLE}", flush=True)
        try:
            missing += perform(modules[name], args)
        except FailedCasesError as error:  # its tracebacks are printed
            missing += error.missing
            failed.append(name)
            print("failed:", error)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    for reason in missing:
        print("not measured:", reason)
    sections = []
    folder = HERE / "results" / "quick" if args.quick else HERE.parents[1] / "docs" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in modules.items():
        try:
            sections.append(show(name, module, folder, quick=args.quick))
        except Exception:
            traceback.print_exc()
            failed.append(name)
    if failed:
        print("failed:", ", ".join(dict.fromkeys(failed)))
    if len(sections) == len(NAMES):
        (folder / "papers.md").write_text(page(sections, folder, quick=args.quick))
        print("written:", folder / "papers.md")
    else:
        print("not written:", folder / "papers.md", "(it would lack what failed)")
    return int(bool(failed))


def options():
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--page", dest="report", action="store_true", help="measure nothing, only write the page")
    return arguments(parser).parse_args()


def load(names):
    """Modules by name, and the names of those that cannot be imported."""
    modules, failed = {}, []
    for name in names:
        try:
            modules[name] = import_module(f"papers.{name}")
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return modules, failed


def show(name, module, folder, *, quick=False):
    """The section of a module; its pictures are written to the folder."""
    runs = Runs(results_file(module, quick=quick))
    section = Section(name, module, runs.content)
    if found := list(runs):
        section.report = module.report(found).strip()
        section.claims = module.claims(found)
        section.pictures = module.plot(found, folder) if hasattr(module, "plot") else []
    return section


def page(sections, folder, *, quick=False):
    """The page, in the Markdown of MyST."""
    parts = [
        "# The papers' tables and figures, rerun",
        *(["Quick runs, of few rows and seeds: the numbers below decide nothing."] if quick else []),
        INTRODUCTION.format(folder=link("benchmarks/papers", HERE, folder)),
        CLAIMS,
        summary(sections, folder),
        *(block for paper in PAPERS for block in of_paper(paper, sections, folder)),
        "## Claims that did not hold for us",
        failures(sections),
        ELSEWHERE.format(design=os.path.relpath(HERE.parents[1] / "docs" / "design", folder)),
        "## Machines, versions and seeds",
        *environments(sections),
    ]
    return "\n\n".join(parts) + "\n"


def summary(sections, folder):
    rows = [(PAPERS[section.paper], section.item, cell(section.what), section.status) for section in sections]
    script = link("bench_zonal.py", HERE.parent / "bench_zonal.py", folder)
    rows.append((PAPERS["gegenbauer"], "Table 1", "bounds", BOUNDS.format(script=script)))
    return text_table(("paper", "", "what", "claims"), rows)


def of_paper(paper, sections, folder):
    """The part of one paper, in pieces."""
    yield f"## {PAPERS[paper]}"
    yield CITATIONS[paper]
    for section in sections:
        if section.paper == paper:
            yield from of_section(section, folder)


def of_section(section, folder):
    yield f"### {section.module.TITLE}"
    script = link(f"{section.name}.py", HERE / f"{section.name}.py", folder)
    if not section.content["runs"]:
        yield f"Not run. The script is {script}."
        return
    yield section.report
    for picture in section.pictures:
        yield f"![{section.module.TITLE}]({Path(picture).name})"
    if section.claims:
        yield "Claims of the paper:"
        yield "\n".join(f"- {'✓' if c.holds else '✗'} {c.text}. Here: {c.evidence}." for c in section.claims)
    yield f"Script: {script}."


def failures(sections):
    claims = [(section, claim) for section in sections for claim in section.claims]
    lines = [f"- {s.item}, {PAPERS[s.paper]}: {c.text}. Here: {c.evidence}." for s, c in claims if not c.holds]
    if lines:
        return "\n".join(lines)
    return f"None of {len(claims)}." if claims else "Nothing has been run."


def environments(sections):
    """Which runs were made where, and with which versions."""
    known, rows = [], []
    for section in sections:
        used = {}
        for run in section.content["runs"]:
            environment = section.content["environments"][run["environment"]]
            if environment not in known:
                known.append(environment)
            used.setdefault(known.index(environment), []).append(run["case"])
        for number, cases in sorted(used.items()):
            seeds = sorted({case["seed"] for case in cases if case.get("seed") is not None})
            rows.append((section.name, number + 1, len(cases), ", ".join(map(str, seeds)) or "–"))
    if not rows:
        yield "Nothing has been run."
        return
    yield text_table(("experiment", "environment", "runs", "seeds"), rows)
    keys = list(dict.fromkeys(key for environment in known for key in environment))
    header = ("environment", *range(1, len(known) + 1))
    yield text_table(header, [(key, *(cell(each.get(key) or "–") for each in known)) for key in keys])


def text_table(header, rows):
    return markdown_table(header, rows).replace("---:", "---")


def link(text, target, folder):
    return f"[{text}]({Path(os.path.relpath(target, folder)).as_posix()})"


def cell(text):
    return str(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
