from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from tests.tiers import thorough

from ntkit.cli import demo
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
    plot = tmp_path / "new" / "folder" / "digits.png"
    assert str(plot) in out
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_report_is_plain_data(tmp_path):
    report = json.loads(to_json(demo.run(tmp_path, components=256)))
    assert [r["method"] for r in report["results"]] == list(NAMES)
    accuracy = {r["method"]: r["accuracy"] for r in report["results"]}
    assert accuracy["exact NTK"] > 0.98
    assert min(accuracy["NTK features"], accuracy["RBF features"]) > accuracy["linear"]
    assert (tmp_path / "digits.png").read_bytes()[:4] == b"\x89PNG"


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
