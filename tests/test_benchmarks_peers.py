import os
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path

import pytest
from tests.tiers import thorough

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def peers():
    """Import the modules of the comparisons; restore sys.path afterwards."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    names = ("tables", "kernels", "all")
    yield Namespace(experiment=import_module("experiment"), **{n: import_module(f"peers.{n}") for n in names})
    sys.path[:] = before


def case(data="digits", method="linear", seed=0, rows=200, limit=60):
    return {"data": data, "method": method, "seed": seed, "rows": rows, "limit": limit}


def run(data, method, error, *, seed=0, classes=0, seconds=1.0):
    found = {"error": error, "fit_seconds": seconds, "total_seconds": 2 * seconds, "predict_seconds": seconds / 10}
    found |= {"peak_mib": 12.0, "train_rows": 300, "columns": 10, "test_rows": 100, "classes": classes, "chosen": "α 1"}
    return case(data, method, seed) | found


@pytest.fixture
def runs():
    """Runs that cover the special cases of a report: several seeds, an unfinished case, an error of 0."""
    return [
        run("abalone", "linear", 5.0, seconds=0.01),
        run("abalone", "linear", 5.2, seed=1, seconds=0.01),
        run("abalone", "search", 4.0, seconds=20.0),
        run("abalone", "boosting", 4.5, seconds=0.5),
        run("protein", "search", 18.0, seconds=40.0),
        run("protein", "boosting", 13.0, seconds=0.5),
        case("protein", "xrfm") | {"unfinished": True},
        run("mushroom", "linear", 0.0, classes=2, seconds=0.01),
        run("mushroom", "search", 0.0, classes=2, seconds=30.0),
        run("mushroom", "boosting", 1.0, classes=2, seconds=0.5),
    ]


@thorough
def test_cases_run_in_separate_processes(peers, tmp_path, monkeypatch):
    cases = [case(method="linear"), case(method="default"), case(data="nowhere")]
    monkeypatch.setattr(peers.tables, "cases", lambda _: cases)
    monkeypatch.setattr(peers.experiment, "results_file", lambda *_, **__: tmp_path / "tables.json")
    args = Namespace(quick=True, again=False, device="cpu")

    missing = peers.experiment.perform(peers.tables, args)
    assert len(missing) == 1
    assert "nowhere" in missing[0]
    found = peers.experiment.load_runs(peers.tables)
    assert [r["method"] for r in found] == ["linear", "default"]
    for r in found:
        assert 0 < r["error"] < 50
        assert 0 < r["fit_seconds"] <= r["total_seconds"]
        assert (r["train_rows"], r["test_rows"], r["columns"], r["classes"]) == (200, 200, 64, 10)

    table = peers.tables.data_table(found, "digits")
    assert "• ntkit FeatureRidge()" in table
    assert table.count("**") == 2


def test_a_case_beyond_its_limit_is_stopped(peers):
    assert peers.tables.measure(**case(limit=0.2)) == {"unfinished": True}


@thorough
def test_a_failed_process_is_reported_and_not_saved(peers):
    with pytest.raises(peers.experiment.UnavailableError, match="KeyError: 'nobody'"):
        peers.tables.measure(**case(method="nobody"))


def test_rows_are_scaled_by_the_training_part_only(peers):
    X, y, X_test, y_test, variance = peers.tables.prepared("digits", 0)
    assert (len(X), len(X_test)) == (1347, 450)
    assert variance is None
    assert set(y) == set(y_test) == set(range(10))
    many = [len(set(column)) > 2 for column in X.T]
    assert abs(X[:, many].mean(axis=0)).max() < 1e-5
    assert abs(X_test[:, many].mean(axis=0)).max() > 1e-3
    binary, _ = peers.tables.scaled(X[:, :2] > 0, X[:2, :2] > 0)
    assert set(binary.ravel()) <= {0.0, 1.0}


def test_first_seed_of_all_data_sets_and_methods_comes_before_the_second_seed(peers):
    cases = peers.tables.cases(Namespace(quick=False))
    seeds = [c["seed"] for c in cases]
    assert seeds == sorted(seeds)
    first = [(c["data"], c["method"]) for c in cases if c["seed"] == 0]
    tables = peers.tables
    few = len(tables.REDUCED_TABLES) * len(tables.REDUCED_METHODS)
    assert len(first) == len(set(first)) == (len(tables.SEEDS) - len(tables.REDUCED_TABLES)) * len(tables.METHODS) + few
    assert set(tables.REDUCED_METHODS) <= set(tables.METHODS)


def test_report_of_partial_runs(peers, runs):
    report = peers.tables.report(runs)
    assert "| xRFM | did not finish in 60 s |" in report
    assert "| LightGBM | not measured |" in report
    assert "| RidgeCV, linear | 5.00 |" in report  # not all methods have the second seed
    assert "**4.00**" in report
    second = [run("abalone", "search", 4.2, seed=1), run("abalone", "boosting", 4.5, seed=1)]
    assert "| RidgeCV, linear | 5.10 ± 0.14 |" in peers.tables.report([*runs, *second])
    ratios = peers.tables.ratios(runs)
    assert ratios["protein"] == {"search": pytest.approx(18 / 13), "boosting": 1}
    assert ratios["mushroom"] == {"linear": 1, "search": 1, "boosting": pytest.approx(3)}
    unfinished = [case("protein", "xrfm") | {"unfinished": True}]
    assert "No method finished" in peers.tables.report(unfinished)


def test_statements_follow_from_the_runs(peers, runs):
    text = peers.all.lessons(runs)
    assert "**Trees have a lower error** than ntkit's best model on protein (HistGradientBoosting 13.0" in text
    assert "**A linear model is enough** on mushroom (RidgeCV, linear 0.00 %" in text
    assert "Little time to train" in text
    assert "Exact kernels" not in text
    assert "lowest error of all methods on 2 of 3 data sets: abalone, mushroom" in text

    better = [run("abalone", "search", 4.0, seconds=0.1), run("abalone", "boosting", 4.5)]
    text = peers.all.lessons(better)
    assert "Trees" not in text
    assert "Little time" not in text


@thorough
def test_page(peers, runs, tmp_path):
    pytest.importorskip("matplotlib")
    of_tables = peers.experiment.Runs(tmp_path / "tables.json")
    nothing = peers.experiment.Runs(tmp_path / "kernels.json")
    assert "Not run." in peers.all.page(of_tables, nothing, nothing, tmp_path)

    keys = case()
    for r in runs:
        found = {key: value for key, value in r.items() if key not in keys}
        of_tables.add({key: r[key] for key in keys}, found, {"python": "3", "cores": 2})
    page = peers.all.page(of_tables, nothing, nothing, tmp_path)
    assert page == peers.all.page(of_tables, nothing, nothing, tmp_path)
    assert page.startswith("# Comparison with other libraries\n")
    for picture in ("peers_ratios.png", "peers_times.png"):
        assert f"]({picture})" in page
        assert os.path.getsize(tmp_path / picture) > 5000


def test_kernel_ridge_is_compared_with_neural_tangents(peers, monkeypatch):
    rows = {"error": 20.0, "alpha": 0.1, "fit_seconds": 1.0, "predict_seconds": 0.5, "peak_mib": 100.0}
    report = peers.kernels.report([{"library": "ntkit", "rows": 300, "seed": 0} | rows])
    assert '• ntkit KernelRidge("ntk") | 20.000 | 1.00 | 0.50 | 100 | 0.1 |' in report
    assert "then scikit-learn's KernelRidge | – |" in report

    def fails():
        raise OSError("no network")

    monkeypatch.setattr(peers.kernels, "prepared", lambda *_: {})
    monkeypatch.setattr(peers.kernels.bench_exact_kernels, "neural_tangents_python", fails)
    with pytest.raises(peers.experiment.UnavailableError, match="no network"):
        peers.kernels.measure("neural-tangents", 300, 0)
