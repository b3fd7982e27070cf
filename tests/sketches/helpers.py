"""Inputs and comparisons shared by the tests of sketches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.conftest import as_numpy

ROOT = Path(__file__).parents[2]


def make_rows(
    factors: Sequence[int], n_rows: int, dtype: Any = "float64", density: float = 1.0, seed: int = 0
) -> list[np.ndarray]:
    """Random rows for every factor, entries of absolute value ½ to 1½, some of them zero if density < 1."""
    rng = np.random.default_rng([seed, n_rows])
    shapes = [(n_rows, d) for d in factors]
    return [
        (rng.choice([-1, 1], shape) * rng.uniform(0.5, 1.5, shape) * (rng.random(shape) < density)).astype(dtype)
        for shape in shapes
    ]


def row_kron(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Kronecker products of rows, in float64."""
    out = np.ones((len(arrays[0]), 1))
    for X in arrays:
        out = (out[:, :, None] * X.astype(float)[:, None, :]).reshape(len(X), -1)
    return out


def assert_close(
    actual: Any, expected: Any, dtype: Any = "float64", *, scale: float = 0.0, factor: float = 100, case: object = ""
) -> None:
    """Equal up to rounding: `factor` epsilons of the largest entry, or of `scale` where entries may cancel."""
    actual, expected = as_numpy(actual), as_numpy(expected).astype(float)
    assert actual.shape == expected.shape, f"{case}: shape {actual.shape}, not {expected.shape}"
    scale = max(np.max(np.abs(expected), initial=1e-3), scale)
    atol = factor * np.finfo(dtype).eps * scale
    np.testing.assert_allclose(actual.astype(float), expected, rtol=0, atol=atol, err_msg=str(case))


def run_in_new_process(module: str, function: str, **environment: str) -> str:
    """Return the output of `function` of a test module in a separate process; a crash there fails only one test."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {function}; {function}()"],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"exit status {done.returncode} after\n{done.stdout}{done.stderr[-2000:]}"
    return done.stdout
