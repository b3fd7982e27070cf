"""Test experiments (each case is measured once and saved) and the page of the papers, on copies of benchmarks/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
from tests.tiers import ALL, thorough

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)

FAKE = """
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiment import Claim, UnavailableError, main, mean_deviation

TITLE = "Table 0: squares of | numbers"
LOG = Path(__file__).with_suffix(".log")


def cases(args):
    numbers = (100,) if args.quick else (3, 13, 4)
    return [{"number": number, "seed": seed} for number in numbers for seed in range(2)]


def measure(*, number, seed):
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    if len(lines) == int(os.environ.get("STOP_AFTER", -1)):
        os.kill(os.getpid(), signal.SIGKILL)
    LOG.write_text("\\n".join([*lines, f"{number} {seed}"]))
    if number == 13:
        raise UnavailableError("no luck")
    return {"square": number**2 + 2 * seed}


def report(runs):
    return f"Squares: {mean_deviation(runs, 'square')}."


def claims(runs):
    return [
        Claim("Squares are positive", all(run["square"] > 0 for run in runs), "see above"),
        Claim("Squares are below 10", all(run["square"] < 10 for run in runs), f"{max(r['square'] for r in runs)}"),
    ]


def plot(runs, folder):
    (Path(folder) / "fake.png").write_bytes(b"picture")
    return ["fake.png"]


if __name__ == "__main__":
    main(__name__)
"""


def copied(folder, *patterns):
    for pattern in patterns:
        for source in BENCHMARKS.glob(pattern):
            target = folder / source.relative_to(BENCHMARKS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return folder


def run(script, *options, timeout=120, **environment):
    process = [sys.executable, str(script), *options]
    return subprocess.run(process, capture_output=True, text=True, timeout=timeout, env=os.environ | environment)


@pytest.fixture
def importing(monkeypatch):
    """Import modules from a folder of benchmarks; remove them from sys.modules afterwards."""
    ours = ("experiment", "papers", "bench_")

    def forget():
        for name in [name for name in sys.modules if name.startswith(ours)]:
            del sys.modules[name]

    def use(folder):
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        return import_module

    forget()
    yield use
    forget()


def test_a_killed_run_resumes_where_it_stopped(tmp_path):
    folder = copied(tmp_path / "benchmarks", "*.py") / "papers"
    folder.mkdir()
    script = folder / "fake.py"
    script.write_text(FAKE)
    log, results = script.with_suffix(".log"), folder / "results" / "fake.json"

    assert run(script, STOP_AFTER="2").returncode == -9
    assert [found["case"] for found in json.loads(results.read_text())["runs"]] == [
        {"number": 3, "seed": 0},
        {"number": 3, "seed": 1},
    ]

    log.unlink()
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == ["13 0", "13 1", "4 0", "4 1"]
    assert "not measured: fake: 13, 0: no luck" in done.stdout
    assert "Squares: 13.50 ± 4.20." in done.stdout
    assert "DOES NOT HOLD: Squares are below 10 (18)" in done.stdout
    content = json.loads(results.read_text())
    assert [found["case"]["number"] for found in content["runs"]] == [3, 3, 4, 4]  # 13 is unavailable
    assert len(content["environments"]) == 1
    assert {"ntkit", "cpu", "python"} <= set(content["environments"][0])
    assert not list(folder.rglob("*.part"))


@pytest.fixture
def fake(tmp_path, importing, monkeypatch):
    """Import the framework and a fake experiment in this process."""
    folder = copied(tmp_path / "benchmarks", "*.py")
    (folder / "papers").mkdir()
    (folder / "papers" / "fake.py").write_text(FAKE)
    load = importing(folder)
    monkeypatch.setattr(load("experiment"), "versions", lambda _: {"ntkit": "0"})
    return load("experiment"), load("papers.fake")


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import experiment

def half(path, text):
    with open(path, "w") as stream:
        stream.write(text[: len(text) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

runs = experiment.Runs(Path(sys.argv[1]))
Path.write_text = half
runs.add({"number": 2}, {"square": 4}, {"cpu": "abacus"})
"""


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path, importing):
    file = tmp_path / "results" / "fake.json"
    experiment = importing(BENCHMARKS)("experiment")
    experiment.Runs(file).add({"number": 1}, {"square": 1}, {"cpu": "abacus"})
    before = file.read_bytes()
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(file)]
    assert subprocess.run(command, timeout=60, env=os.environ | {"PYTHONPATH": str(BENCHMARKS)}).returncode == -9
    assert file.read_bytes() == before
    experiment.Runs(file).add({"number": 2}, {"square": 4}, {"cpu": "abacus"})
    assert [run["square"] for run in experiment.Runs(file)] == [1, 4]
    assert [path.name for path in file.parent.iterdir()] == ["fake.json"]


def test_each_run_records_its_environment(fake, monkeypatch):
    experiment, fake = fake
    args = experiment.arguments().parse_args([])
    old, new = ({"cpu": cpu, "cores": 1, "ntkit": version} for cpu, version in (("abacus", "1"), ("slide rule", "2")))
    monkeypatch.setattr(experiment, "versions", lambda _: old)
    experiment.perform(fake, args)
    monkeypatch.setattr(experiment, "versions", lambda _: new)
    cases = fake.cases
    fake.cases = lambda args: [case for case in cases(args) if case["number"] == 3]
    args.again = True
    experiment.perform(fake, args)
    content = json.loads(experiment.results_file(fake).read_text())
    found = {run["case"]["number"]: content["environments"][run["environment"]] for run in content["runs"]}
    assert found == {3: new, 4: old}
    assert {run["number"]: run["hardware"] for run in experiment.load_runs(fake)} == {
        3: "1 cores of slide rule",
        4: "1 cores of abacus",
    }


def test_runs_of_two_concurrent_processes_are_both_saved(tmp_path, importing):
    """Both processes read the file before the other one writes."""
    experiment = importing(BENCHMARKS)("experiment")
    both = [experiment.Runs(tmp_path / "fake.json") for _ in range(2)]
    for number, runs in enumerate(both):
        runs.add({"number": number}, {"square": number**2}, {"accelerator": f"GPU {number}"})
    runs = list(experiment.Runs(tmp_path / "fake.json"))
    assert [(run["number"], run["hardware"]) for run in runs] == [(0, "GPU 0"), (1, "GPU 1")]


def test_quick_runs_are_saved_separately(fake):
    experiment, fake = fake
    for options in ([], ["--quick"]):
        experiment.perform(fake, experiment.arguments().parse_args(options))
    assert [found["number"] for found in experiment.load_runs(fake)] == [3, 3, 4, 4]
    assert [found["number"] for found in experiment.load_runs(fake, quick=True)] == [100, 100]
    assert experiment.results_file(fake, quick=True).parent.name == "quick"


def test_again_replaces_saved_runs(fake):
    experiment, fake = fake
    args = experiment.arguments().parse_args([])
    experiment.perform(fake, args)
    fake.measure = lambda number, seed: {"square": -1}  # noqa: ARG005
    args.again = True
    assert experiment.perform(fake, args) == []
    runs = experiment.load_runs(fake)
    assert len(runs) == 6
    assert {found["square"] for found in runs} == {-1}


def test_all_cases_can_be_unavailable(fake):
    experiment, fake = fake

    def cases(_):
        raise experiment.UnavailableError("no device")

    fake.cases = cases
    assert experiment.perform(fake, experiment.arguments().parse_args([])) == ["fake: no device"]
    assert experiment.load_runs(fake) == []


def test_a_case_that_raises_does_not_stop_the_others(fake, capsys):
    experiment, fake = fake
    measure = fake.measure

    def sometimes(number, seed):
        if number == 3:
            raise (ZeroDivisionError("by zero") if seed else MemoryError)
        return measure(number=number, seed=seed)

    fake.measure = sometimes
    args = experiment.arguments().parse_args([])
    with pytest.raises(experiment.FailedCasesError, match=r"^fake: 3, 1: ZeroDivisionError: by zero$") as caught:
        experiment.perform(fake, args)
    assert caught.value.missing == ["fake: 3, 0: out of memory", "fake: 13, 0: no luck", "fake: 13, 1: no luck"]
    assert "in sometimes" in capsys.readouterr().err  # the traceback names the function
    assert [found["number"] for found in experiment.load_runs(fake)] == [4, 4]

    fake.measure = measure
    assert len(experiment.perform(fake, args)) == 2
    assert sorted(found["number"] for found in experiment.load_runs(fake)) == [3, 3, 4, 4]


def test_runs_of_another_machine_cause_a_warning(fake, monkeypatch, capsys):
    experiment, fake = fake
    args = experiment.arguments().parse_args([])
    for cpu, warned in (("abacus", False), ("abacus", False), ("slide rule", True)):
        about = {"cpu": cpu, "cores": 1, "accelerator": None}
        monkeypatch.setattr(experiment, "versions", lambda _, about=about: about)
        experiment.perform(fake, args)  # case 13 stays missing, so there is always something to measure
        told = "fake has cpu runs of 1 cores of abacus; this is 1 cores of slide rule" in capsys.readouterr().out
        assert told == warned


def test_a_broken_results_file_is_named(fake):
    experiment, fake = fake
    file = experiment.results_file(fake)
    file.parent.mkdir()
    file.write_text("{")
    with pytest.raises(ValueError, match=r"fake\.json is not valid JSON"):
        experiment.load_runs(fake)


def test_the_device_with_most_runs_decides(importing):
    experiment = importing(BENCHMARKS)("experiment")
    cpu, cuda = ([{"device": device, "seed": seed} for seed in range(3)] for device in ("cpu", "cuda"))
    assert experiment.fullest([*cuda, *cpu]) == cpu  # the first device wins a tie
    assert experiment.fullest([*cuda, *cpu[:2]]) == cuda
    assert experiment.fullest([]) == []


def test_tables(importing):
    experiment = importing(BENCHMARKS)("experiment")
    runs = [{"error": 1.0, "method": "a"}, {"error": 3.0, "method": "a"}, {"error": None, "method": "b"}]
    assert experiment.mean_deviation(runs, "error") == "2.00 ± 1.41"
    assert experiment.mean_deviation(runs[:1], "error", digits=1) == "1.0"
    assert experiment.mean_deviation(runs[2:], "error") == "–"
    assert experiment.mean_deviation([], "error") == "–"
    assert experiment.median([*runs, {"error": 9.0}], "error") == 3.0
    assert experiment.median(runs[2:], "error") is None
    assert experiment.select(runs, method="a") == runs[:2]
    table = experiment.markdown_table(("method", "error"), [("a", 1), ("b", "–")])
    assert table == "| method | error |\n|---|---:|\n| a | 1 |\n| b | – |"


def test_tables_of_methods_and_questions(importing):
    experiment = importing(BENCHMARKS)("experiment")
    methods = {"slow": {"seconds": 2.0, "error": [0.1, 0.3]}, "fast": {"seconds": 0.5}}
    question = experiment.Question(
        "Who is fast?", lambda _: experiment.grid(n=(1, 2), m=3), lambda n, m: {"methods": methods, "sum": n + m},
        "n sum method seconds:.1f seconds/:.2f error:.1f",
    )  # fmt: skip
    elsewhere = experiment.Question("GPU?", lambda _: [{}], lambda: {"speed": 1.0}, "speed:.1f", ("cuda",))
    cases, measure, report = experiment.ask({"who": question, "gpu": elsewhere})
    found = cases(Namespace(device="cpu"))
    assert found == [{"question": "who", "n": n, "m": 3} for n in (1, 2)]
    assert report([{**case, **measure(**case)} for case in found[:1]]).splitlines() == [
        "### Who is fast?",
        "",
        "| n | sum | method | seconds | seconds / slow | error |",
        "|---|---:|---:|---:|---:|---:|",
        "| 1 | 4 | slow | 2.0 | 1.00 | 0.2 ± 0.1 |",
        "| 1 | 4 | fast | 0.5 | 0.25 | – |",
    ]
    (case,) = cases(Namespace(device="cuda"))
    assert case == {"question": "gpu"}
    assert report([{**case, **measure(**case)}]).endswith("| speed |\n|---|\n| 1.0 |")


# The command for all papers, with fake experiments.


@pytest.fixture
def papers(tmp_path, importing, monkeypatch):
    """Return the command (a function from options to exit status) and its module."""
    folder = copied(tmp_path / "benchmarks", "*.py", "papers/all.py")
    (folder / "papers" / "ntk_fake.py").write_text(FAKE)
    (folder / "papers" / "power_other.py").write_text(FAKE.replace("(3, 13, 4)", "(2,)").replace("Table 0", "Figure 7"))
    load = importing(folder)
    module = load("papers.all")
    module.NAMES = ("ntk_fake", "power_other")
    monkeypatch.setattr(load("experiment"), "versions", lambda _: {"cpu": "abacus", "accelerator": None})

    def command(*options):
        monkeypatch.setattr(sys, "argv", ["all.py", *options])
        return module.main()

    return command, module


def test_the_page_shows_all_runs(papers, tmp_path, capsys):
    command, _ = papers
    assert command("--only", "ntk_fake") == 0
    assert "not measured: ntk_fake: 13, 0: no luck" in capsys.readouterr().out
    page = tmp_path / "docs" / "results" / "papers.md"
    text = page.read_text()
    assert text.startswith("# The papers' tables and figures, reproduced\n\nntkit implements three papers.")
    for part in (
        "| Zandieh et al., NeurIPS 2021 | Table 0 | squares of \\| numbers | holds in part (1 of 2 claims) |",
        "| Song et al., ICML 2021 | Figure 7 | squares of \\| numbers | not run |",
        "| Han et al., ICML 2022 | Table 1 | bounds | nothing to measure; [bench_zonal.py]",
        "Squares: 13.50 ± 4.20.",
        "(fake.png)",
        "- ✓ Squares are positive. Here: see above.",
        "- ✗ Squares are below 10. Here: 18.",
        "did not hold here\n\n- Table 0, Zandieh et al., NeurIPS 2021: Squares are below 10. Here: 18.",
        "Not run. The script is [power_other.py](../../benchmarks/papers/power_other.py).",
        "| ntk_fake | 1 | 4 | 0, 1 |",
        "| cpu | abacus |",
        "| accelerator | – |",
    ):
        assert part in text
    assert (page.parent / "fake.png").is_file()

    assert command("--page") == 0
    assert page.read_text() == text
    assert command() == 0
    assert "| Figure 7 | squares of \\| numbers | holds |" in page.read_text()


def test_quick_runs_have_a_separate_page(papers, tmp_path):
    command, _ = papers
    assert command("--quick") == 0
    quick = tmp_path / "benchmarks" / "papers" / "results" / "quick"
    assert "Squares: 10001.00 ± 1.41." in (quick / "papers.md").read_text()
    assert "the numbers below are not meaningful" in (quick / "papers.md").read_text()
    assert "[power_other.py](../../power_other.py)" in (quick / "papers.md").read_text()
    assert (quick / "fake.png").is_file()
    assert not (tmp_path / "docs" / "results").exists()


def test_a_failed_experiment_does_not_stop_the_others(papers, tmp_path, capsys):
    command, module = papers
    page = tmp_path / "docs" / "results" / "papers.md"
    fake = import_module("papers.ntk_fake")
    measure = fake.measure
    fake.measure = lambda number, seed: 1 / 0 if number != 13 else measure(number=number, seed=seed)
    assert command() == 1
    output = capsys.readouterr()
    assert "not measured: ntk_fake: 13, 0: no luck" in output.out
    assert "ZeroDivisionError" in output.err
    assert "failed: ntk_fake" in output.out
    assert "| Table 0 | squares of \\| numbers | not run |" in page.read_text()
    assert "| Figure 7 | squares of \\| numbers | holds |" in page.read_text()

    fake.measure, fake.report = measure, lambda _: 1 / 0
    before = page.read_bytes()
    assert command() == 1
    assert "not written" in capsys.readouterr().out
    assert page.read_bytes() == before  # an old page is better than an incomplete one

    module.NAMES = (*module.NAMES, "ntk_nowhere")
    assert command("--page") == 1
    assert "ModuleNotFoundError" in capsys.readouterr().err


def test_a_page_without_runs(papers, tmp_path):
    command, _ = papers
    assert command("--page") == 0
    text = (tmp_path / "docs" / "results" / "papers.md").read_text()
    assert text.count("Nothing has been run.") == 2


# The papers' experiments.

NAMES = sorted(file.stem for file in (BENCHMARKS / "papers").glob("[a-z]*_*.py"))


def test_all_experiments_are_registered(importing):
    assert sorted(importing(BENCHMARKS)("papers.all").NAMES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_reports_of_complete_and_partial_runs(name, importing, tmp_path):
    load = importing(BENCHMARKS)
    module = load(f"papers.{name}")
    kind, _, what = module.TITLE.partition(": ")
    assert kind.split()[0] in ("Table", "Tables", "Figure", "Figures")
    assert what
    runs = load("experiment").load_runs(module)
    first = {key: runs[0][key] for key in ("data", "lengthscale") if key in runs[0]}
    lacking = [run for run in runs if run not in load("experiment").select(runs, **first)] if first else []
    for part in (runs, [], runs[:1], runs[::2], runs[-1:], lacking):
        assert isinstance(module.report(part), str)
        for claim in module.claims(part):
            assert claim.text
            assert claim.evidence
            assert claim.holds in (True, False)
            assert not claim.text.endswith(".")  # the page adds the full stop
            assert not claim.evidence.endswith(".")
    pytest.importorskip("matplotlib")
    for part in (runs[:1], runs[-1:], lacking) if ALL else ():
        for picture in module.plot(part, tmp_path) if part else []:
            assert (tmp_path / picture).is_file()


@thorough
@pytest.mark.parametrize("name", ["ntk_figure1", "gegenbauer_figure1"])
def test_quick_runs_of_papers_work(name, tmp_path):
    script = copied(tmp_path / "benchmarks", "*.py", "papers/*.py") / "papers" / f"{name}.py"
    done = run(script, "--quick", OPENBLAS_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout
    assert json.loads((script.parent / "results" / "quick" / f"{name}.json").read_text())["runs"]
    assert not list((script.parent / "results").glob("*.json"))


# The other experiments.

BENCHES = sorted(file.stem for file in BENCHMARKS.glob("bench_*.py"))


@pytest.mark.parametrize("name", BENCHES)
def test_experiments_have_cases_measure_and_report(name, importing, tmp_path):
    load = importing(BENCHMARKS)
    experiment, module = load("experiment"), load(name)
    assert module.TITLE
    assert callable(module.measure)
    of_device = {device: module.cases(Namespace(quick=False, device=device)) for device in experiment.DEVICES}
    for cases in (*of_device.values(), module.cases(Namespace(quick=True, device="cpu"))):
        assert json.loads(json.dumps(cases)) == cases  # otherwise they would be measured again each time
        assert len({json.dumps(case) for case in cases}) == len(cases)
    kept = json.loads(experiment.results_file(module).read_text())
    for run in kept["runs"]:
        assert any(run["case"] in cases for cases in of_device.values())
        assert kept["environments"][run["environment"]]["cpu"]
    runs = experiment.load_runs(module)
    assert module.report(runs).count("\n") > len(runs)
    assert isinstance(module.report([]), str)
    if ALL and hasattr(module, "plot"):
        pytest.importorskip("matplotlib")
        assert all((tmp_path / picture).stat().st_size > 5000 for picture in module.plot(runs, tmp_path))


@pytest.mark.parametrize(
    ("name", "question"), [pytest.param("bench_sketches", "nonzeros", marks=thorough), ("bench_zonal", "spectral")]
)
def test_one_question_of_an_experiment(name, question, tmp_path, importing, monkeypatch, capsys):
    folder = copied(tmp_path / "benchmarks", "*.py", "papers/_*.py")
    load = importing(folder)
    module = load(name)
    for options in ([question, "--quick"], [question, "--quick", "--report"]):
        monkeypatch.setattr(sys, "argv", [name, *options])
        load("experiment").main(name)
        shown = capsys.readouterr().out
        assert f"### {module.QUESTIONS[question].title}" in shown
        assert "\nMeasured on " in shown
    runs = load("experiment").load_runs(module, quick=True)
    assert {run["question"] for run in runs} == {question}
    assert not list((folder / "results").glob("*.json"))
    monkeypatch.setattr(sys, "argv", [name, "nobody"])
    with pytest.raises(SystemExit):
        load("experiment").main(name)
    assert f"no such question: nobody. Choose from {', '.join(module.QUESTIONS)}." in capsys.readouterr().err


@thorough
@pytest.mark.parametrize("name", BENCHES)
def test_quick_runs_of_experiments_work(name, tmp_path):
    script = copied(tmp_path / "benchmarks", "*.py", "papers/*.py") / f"{name}.py"
    done = run(script, "--quick", OPENBLAS_NUM_THREADS="1", timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads((script.parent / "results" / "quick" / f"{name.removeprefix('bench_')}.json").read_text())["runs"]
    assert not list((script.parent / "results").glob("*.json"))
    assert "not measured" not in done.stdout or not os.environ.get("NTKIT_DATA")
