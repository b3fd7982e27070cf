"""README and landing page: the programs print what the pages say, and the figures agree with the result files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pages import blocks, check_printed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
BENCHMARKS = ROOT / "benchmarks"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?!\w)")

Figures = tuple[list[str], list[str]]  # numbers in the ntkit column, numbers in the baseline column


def test_programs_print_what_the_readme_says(tmp_path):
    found = blocks(README)
    assert sum(len(block.results()) for block in found) >= 4
    assert max(block.code.count("\n") for block in found) < 20
    check_printed(README, tmp_path)


def runs(path: str, **case: Any) -> list[dict[str, Any]]:
    """Return what was found for all runs of a results file whose case has these values."""
    content = json.loads((BENCHMARKS / path).read_text(encoding="utf-8"))["runs"]
    found = [run["found"] for run in content if case.items() <= run["case"].items()]
    assert found, f"no run of {path} has {case}"
    return found


def tiny(value: float) -> str:
    """Return a small number as the README writes it: 6e-8."""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def against_neural_tangents(task: str) -> Figures:
    [found] = runs("results/exact_kernels.json", task=task, device="cpu")
    ours, theirs = (found["methods"][name] for name in ("ntkit", "neural-tangents"))
    ratio = theirs["seconds"] / ours["seconds"]
    return (
        [f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}", f"{ours['peak_mib']:.0f}", tiny(ours["error"])],
        [f"{theirs['peak_mib']:.0f}", tiny(theirs["error"])],
    )


def exact_ntk() -> Figures:
    return against_neural_tangents("ntk 4000 × 4000, d = 100, L = 3, symmetric")


def exact_cntk() -> Figures:
    return against_neural_tangents("cntk 32 × 32 × 3, L = 3, GAP, 8 × 8 images")


def polynomial() -> Figures:
    [found] = runs("results/sketches.json", question="polynomial", data="dense", degree=8, m=1024)
    ours, theirs = (found["methods"][name] for name in ("tree", "scikit-learn"))
    return (
        [f"{theirs['seconds'] / ours['seconds']:.0f}", f"{ours['peak_mib']:.0f}", f"{ours['error']:.2f}"],
        [f"{theirs['peak_mib']:.0f}", f"{theirs['error']:.2f}"],
    )


def cifar() -> Figures:
    ours = runs("papers/results/ntk_table1.json", method="CNTKSketch", images="standardized", m=16384, n=50_000)
    theirs = runs("results/cifar.json", question="cntk", images="standardized", m=16384)[0]
    accuracy = [run["accuracy"] for run in ours]
    seconds = np.mean([run["feature_seconds"] for run in ours])
    return (
        [f"{seconds:.1f}", f"{np.mean(accuracy):.2f}", f"{np.std(accuracy, ddof=1):.2f}"],
        [f"{theirs['papers_code_seconds']:.0f}", f"{theirs['papers_code_accuracy']:.2f}"],
    )


def gradients() -> Figures:
    case = {"question": "kernel", "network": "cnn small", "n_components": 1024}
    found = runs("results/empirical.json", **case)[0]
    assert round(found["n_weights"], -3) == 84_000
    means = {name: np.mean(method["error"]) for name, method in found["methods"].items()}
    return [f"{means['ntkit']:.3f}"], [f"{means['dense']:.3f}", f"{means['LoGra']:.2f}"]


def iterations() -> Figures:
    case = {"question": "iterations", "data": "protein", "kernel": "ntk 1", "meaning": "relative", "lambda": 1e-7}
    [found] = runs("results/kernel_ridge.json", n=10_000, **case)
    methods = found["methods"]
    return [f"{methods['nystroem + neighbours']['iterations']}"], [f"{methods['none']['iterations']}"]


@pytest.fixture(scope="module")
def tables() -> Iterator[Any]:
    """Return the module that measures tables; the path is as before afterwards."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield import_module("peers.tables")
    sys.path[:] = before


def standings(tables: Any) -> dict[str, dict[str, float]]:
    """Return the rows of the summary that the results page shows, by method."""
    lines = [line for line in tables.summary(import_module("experiment").load_runs(tables)).splitlines() if "|" in line]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert header[1:] == ["mean", "median", "worst", "wins", "data sets", "median total, s"]
    return {row[0].strip("• "): dict(zip(header[1:], map(float, row[1:]), strict=True)) for row in rows}


def summary_figures(row: dict[str, float]) -> list[str]:
    return [f"{row['mean']:.2f}", f"{row['median']:.2f}", f"{row['median total, s']:.1f}", f"{row['wins']:.0f}"]


def measurement_rows() -> dict[str, tuple[str, str]]:
    """Return the cells of the README's table of measurements by their first cell."""
    text = README.split("## Measurements")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return {task.strip(): (ours, theirs) for task, ours, theirs in lines}


FIGURES = {
    "exact NTK of depth 3": exact_ntk,
    "exact convolutional NTK": exact_cntk,
    "polynomial kernel of degree 8": polynomial,
    "CIFAR-10: 16384 features": cifar,
    "gradient kernel of a small CNN": gradients,
    "kernel ridge regression with the NTK": iterations,
}


def test_every_measurement_is_compared():
    names = [*FIGURES, "19 tables"]
    tasks = [next((name for name in names if task.startswith(name)), task) for task in measurement_rows()]
    assert sorted(tasks) == sorted(names)


@pytest.mark.parametrize("task", FIGURES)
def test_measurements_agree_with_the_results(task):
    [cells] = [cells for name, cells in measurement_rows().items() if name.startswith(task)]
    assert tuple(NUMBER.findall(cell) for cell in cells) == FIGURES[task]()


def test_measurements_of_tables_agree_with_the_results(tables):
    found = standings(tables)
    [(task, cells)] = [(task, cells) for task, cells in measurement_rows().items() if "tables of" in task]
    ours = [found[name] for name in ("ntkit FeatureRidgeSearch", "ntkit FeatureRidge()")]
    theirs = [found[name] for name in ("CatBoost", "xRFM", "LightGBM")]
    figures = [[figure for row in rows for figure in summary_figures(row)] for rows in (ours, theirs)]
    assert [NUMBER.findall(cell) for cell in cells] == figures
    sizes = {}
    for run in import_module("experiment").load_runs(tables):
        sizes[run["data"]] = max(run.get("train_rows", 0), sizes.get(run["data"], 0))
    count, least, most = re.match(r"(\d+) tables of (\d+) to ([\d ]+) training rows", task).groups()
    assert {int(count)} == {len(sizes), *(int(row["data sets"]) for row in (*ours, *theirs))}
    assert round(min(sizes.values()), -2) == int(least)
    assert round(max(sizes.values()), -4) == int(most.replace(" ", ""))


@pytest.mark.parametrize("text", [README, INDEX], ids=["README", "index"])
def test_claims_of_the_first_screen_agree_with_the_results(text):
    text = " ".join(text.split())
    assert re.search(r"(\d+) times faster than", text)[1] == exact_cntk()[0][0]
    seconds = re.search(r"CIFAR-10 take (\d+) s on one GPU instead of (\d+) s", text).groups()
    assert seconds == (f"{float(cifar()[0][0]):.0f}", cifar()[1][0])
    [million] = runs("peers/results/scale.json", way="features", rows=1_000_000)
    assert re.search(r"million rows in (\d+) s with (\d+) MiB", text).groups() == (
        f"{million['fit_seconds']:.0f}",
        f"{million['peak_mib']:.0f}",
    )


def test_errors_on_the_page_of_maps_agree_with_the_results(tables):
    """FeatureRidge(), LightGBM and Nystroem on two tables."""
    runs = import_module("experiment").load_runs(tables)
    text = (ROOT / "docs" / "which-map.md").read_text(encoding="utf-8")
    line = re.search(r"California housing: mean squared error (.+); protein (.+) \(", text)
    for data, shown in zip(("california_housing", "protein"), line.groups(), strict=True):
        errors = tables.errors_of([run for run in runs if run["data"] == data])
        expected = [errors[name] for name in ("default", "lightgbm", "nystroem")]
        assert NUMBER.findall(shown) == [f"{error:.{tables.digits(min(expected))}f}" for error in expected]


def test_pictures_of_the_first_pages_are_there_and_small():
    pages = ("docs/index.md", "docs/concepts.md")
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages}
    found = [ROOT / name for name in re.findall(r'<img src="([^"]+)"', README)]
    found += [ROOT / "docs" / name for text in texts.values() for name in re.findall(r"{figure} (\S+)", text)]
    assert len(found) == 7
    assert max(path.stat().st_size for path in found) < 150_000


def test_a_wrong_figure_is_found(monkeypatch):
    monkeypatch.setitem(globals(), "README", README.replace("27 iterations", "26 iterations"))
    with pytest.raises(AssertionError):
        test_measurements_agree_with_the_results("kernel ridge regression with the NTK")
