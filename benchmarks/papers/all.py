"""Reproduce every table and figure of the three papers, and write the page that compares them with the papers.

    python benchmarks/papers/all.py                          everything that runs on a CPU
    python benchmarks/papers/all.py --device cuda            on a GPU; results of both devices are kept
    python benchmarks/papers/all.py --quick                  smoke test of some minutes
    python benchmarks/papers/all.py --only ntk_table2        one or several scripts
    python benchmarks/papers/all.py --page                   only write the page, from existing results

An interrupted run resumes where it stopped. A failed case does not stop the others; the exit status is then 1. The page
is docs/results/papers.md, with its pictures in the same folder. Quick runs write to
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
ntkit implements three papers. This page reproduces all their tables and figures that can be measured, and compares them
with the published numbers. `make papers` runs the experiments and writes this page;
`make papers PAPERS_ARGS='--device cuda'` uses a GPU. Existing results are not measured again. Scripts, results and
requirements are in {folder}."""
CLAIMS = """\
A claim is a statement of the paper about its table or figure, or, where noted, a pattern in its numbers. Whether a
claim
holds here is computed from the results files."""
ELSEWHERE = """\
We also tested statements of theorems that are not in a table or figure:

- Song et al., Theorem 6.9 (sketched ridge regression) needs features within 1 ± ε of the kernel. Fewer oblivious
  features than rows do not satisfy this: at small penalties the objective was up to hundreds of times the optimum.
  See [sketched solutions]({design}/kernel-ridge.md#sketched-solutions).
- Song et al., Theorem A.1 gives degree j of the Gaussian a number of components that grows like j². Shares
  proportional to the trace reduce the error to a seventh or less. See [series]({design}/sketches.md#series)."""
NAMES = (
    "ntk_figure1", "ntk_figure2a", "ntk_table1", "ntk_table2", "power_table1", "gegenbauer_figure1",
    "gegenbauer_table2", "gegenbauer_table3", "gegenbauer_table4",
)  # fmt: skip
BOUNDS = "nothing to measure; {script} shows how the number of features grows"  # Table 1 of Han et al.


@dataclass
class Section:
    """The section of the page for one table or figure."""

    name: str
    module: ModuleType
    content: dict  # content of the results file
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
    """Run the experiments, list missing cases, write the page; return the exit status."""
    args = options()
    modules, failed = load(NAMES)
    missing = []
    chosen = [] if args.report else [name for name in args.only or NAMES if name in modules]
    for k, name in enumerate(chosen, 1):
        print(f"[{k}/{len(chosen)}] {name}: {modules[name].TITLE}", flush=True)
        try:
            missing += perform(modules[name], args)
        except FailedCasesError as error:  # perform has printed the tracebacks
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
        print("not written:", folder / "papers.md", "(failed sections would be missing)")
    return int(bool(failed))


def options():
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--page", dest="report", action="store_true", help="only write the page, from existing results")
    return arguments(parser).parse_args()


def load(names):
    """Import modules; return them by name, and the names that cannot be imported."""
    modules, failed = {}, []
    for name in names:
        try:
            modules[name] = import_module(f"papers.{name}")
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return modules, failed


def show(name, module, folder, *, quick=False):
    """Return the section of a module and write its pictures to the folder."""
    runs = Runs(results_file(module, quick=quick))
    section = Section(name, module, runs.content)
    if found := list(runs):
        section.report = module.report(found).strip()
        section.claims = module.claims(found)
        section.pictures = module.plot(found, folder) if hasattr(module, "plot") else []
    return section


def page(sections, folder, *, quick=False):
    """Return the page as MyST Markdown."""
    parts = [
        "# The papers' tables and figures, reproduced",
        *(["Quick runs with few rows and seeds: the numbers below are not meaningful."] if quick else []),
        INTRODUCTION.format(folder=link("benchmarks/papers", HERE, folder)),
        CLAIMS,
        summary(sections, folder),
        *(block for paper in PAPERS for block in paper_blocks(paper, sections, folder)),
        "## Claims that did not hold here",
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
    return text_table(("paper", "item", "subject", "claims"), rows)


def paper_blocks(paper, sections, folder):
    """Yield the blocks of one paper."""
    yield f"## {PAPERS[paper]}"
    yield CITATIONS[paper]
    for section in sections:
        if section.paper == paper:
            yield from section_blocks(section, folder)


def section_blocks(section, folder):
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
    """Yield the tables of runs, machines and versions."""
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
