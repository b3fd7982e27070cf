from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from tests.tiers import thorough

from ntkit.cli import demo, demo_rows, texts
from ntkit.cli.texts import to_json
from ntkit.display import plot_relu_ntk
from ntkit.kernels import relu_ntk

NAMES = ("linear", "RBF features", "NTK features", "exact NTK")


@thorough
def test_demo_trains_reports_and_plots(tmp_path):
    command = [sys.executable, "-m", "ntkit", "demo", "--output", str(tmp_path / "new" / "folder")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    accuracy = {name: float(re.search(rf"^{name}\s.*?([\d.]+)%", out, re.M)[1]) for name in NAMES}
    assert accuracy["exact NTK"] > 98
    assert accuracy["NTK features"] > 97
    assert accuracy["RBF features"] > 97
    assert accuracy["exact NTK"] > accuracy["linear"] + 3
    last = re.search(r"^ *500 000 .*$", out, re.M)[0]
    assert "1.8 TiB" in last
    assert "does not fit" in last
    assert "1. More rows than a kernel matrix can hold" in out
    for name in ("rows.png", "digits.png"):
        plot = tmp_path / "new" / "folder" / name
        assert str(plot) in out
        assert plot.read_bytes()[:4] == b"\x89PNG"


def test_report_is_plain_data(tmp_path):
    report = json.loads(to_json(demo.run(tmp_path, components=256, rows=(200, 400))))
    assert [r["method"] for r in report["results"]] == list(NAMES)
    accuracy = {r["method"]: r["accuracy"] for r in report["results"]}
    assert accuracy["exact NTK"] > 0.98
    assert min(accuracy["NTK features"], accuracy["RBF features"]) > accuracy["linear"]
    for name in ("rows.png", "digits.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    assert [r["n_rows"] for r in report["rows"]] == [200, 400]
    for r in report["rows"]:
        assert r["exact_fits"]
        assert r["matrix_bytes"] == 8 * r["n_rows"] ** 2
        assert all(0 < r[name]["error"] < 1.5 and r[name]["fit_seconds"] > 0 for name in ("exact", "features"))
    assert "400" in texts.demo(report)


def test_exact_kernels_that_do_not_fit_are_skipped(monkeypatch):
    """Features are still fitted; the table says that the matrix does not fit, or how long its fit would take."""
    free = 2 * 2 * demo_rows.matrix_bytes(600)
    monkeypatch.setattr("ntkit._batching.free_memory", lambda: free)
    monkeypatch.setattr(demo_rows, "EXACT_ROWS", 300)
    results = list(demo_rows.measure((300, 600, 1200), 64))
    assert [r["exact"] is not None for r in results] == [True, False, False]
    assert [r["exact_fits"] for r in results] == [True, True, False]
    assert results[1]["exact_expected_seconds"] == pytest.approx(8 * results[0]["exact"]["fit_seconds"])
    assert all(r["features"]["error"] < 1 for r in results)
    report = {"rows": results, "rows_columns": 10, "rows_components": 64, "memory_bytes": free}
    report |= {"results": [], "files": [], "n_train": 1, "n_test": 1, "n_features": 1, "n_components": 64}
    text = texts.demo(report)
    assert re.search(r"^ *600 .*about \d+ min", text, re.M)
    assert re.search(r"^ *1 200 .*does not fit", text, re.M)
    figure = demo_rows.plot(results, 64, free)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Memory", "Time to fit", "Test error"]


def test_plot_shows_the_function():
    ax = plot_relu_ntk([1, 3, 4])
    assert len(ax.lines) == 3
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["L = 1", "L = 4"]
    t, values = ax.lines[1].get_data()
    np.testing.assert_allclose(values, relu_ntk(t, 3) / 4)
    assert plot_relu_ntk([3]).get_legend() is None
    with pytest.raises(ValueError, match="'depths' parameter of plot_relu_ntk must be an int ≥ 1"):
        plot_relu_ntk([0])
    with pytest.raises(ValueError, match="non-empty"):
        plot_relu_ntk([])
