from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from ntkit.demo import ridge_predictions
from ntkit.display import plot_relu_ntk
from ntkit.kernels import relu_ntk

NAMES = ("linear", "RBF", "NTK", "features")


def test_demo_trains_reports_and_plots(tmp_path):
    command = [sys.executable, "-m", "ntkit.demo", "--output", str(tmp_path / "new" / "folder")]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    accuracy = {name: float(re.search(rf"^{name}\s.*?([\d.]+)%", out, re.M)[1]) for name in NAMES}
    assert accuracy["NTK"] > 98
    assert accuracy["features"] > 97
    assert accuracy["NTK"] > accuracy["linear"] + 3
    plot = tmp_path / "new" / "folder" / "relu_ntk.png"
    assert str(plot) in out
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_ridge_predictions_solve_the_system(rng):
    Z = rng.standard_normal((12, 12))
    K, K_new, y = Z @ Z.T, rng.standard_normal((3, 12)), rng.standard_normal((12, 2))
    for alpha, prediction in zip((0.1, 3.0), ridge_predictions(K, K_new, y, np.array([0.1, 3.0])), strict=True):
        np.testing.assert_allclose(prediction, K_new @ np.linalg.solve(K + alpha * np.eye(12), y), rtol=1e-9)


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
