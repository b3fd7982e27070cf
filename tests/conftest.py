"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tests import tiers
from tests.hostile import verdicts

collect_ignore_glob = ["golden/*.py"]  # they need neural-tangents, which has a separate environment

# Timings never decide a test: compiled code takes seconds on its first call.
settings.register_profile(
    "default", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("nightly", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that only `make test-all` runs, and tests that need a GPU if there is none."""
    marks = [] if tiers.ALL else ["thorough"]
    if any(item.get_closest_marker("gpu") for item in items) and not tiers.has_gpu():
        marks.append("gpu")
    left_out = [item for item in items if any(map(item.get_closest_marker, marks))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not any(map(item.get_closest_marker, marks))]


def pytest_collection_finish() -> None:
    """Spare the garbage collector all that stays until the end: modules and thousands of tests."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of hostile trials, and the seed that failures need."""
    if tiers.SEED and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"To run these again set NTKIT_TEST_SEED={tiers.SEED}.", red=True)
    reports = [report for found in terminalreporter.stats.values() for report in found]
    text = verdicts.table([pair for report in reports for pair in getattr(report, "user_properties", [])])
    if text:
        terminalreporter.section("hostile trials")
        terminalreporter.write_line(text)


@pytest.fixture(params=["numpy", "torch", "strict"])
def to_library(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Function that turns a NumPy array into one of each array library."""
    if request.param == "numpy":
        return np.asarray
    if request.param == "torch":
        import torch

        return lambda x: torch.from_numpy(np.ascontiguousarray(x))
    import array_api_strict

    return lambda x: array_api_strict.asarray(np.ascontiguousarray(x))


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a fixed seed unless NTKIT_TEST_SEED is set (the nightly sweep)."""
    return np.random.default_rng(tiers.SEED)


def peak_memory(function: Callable[[], Any]) -> int:
    """Return the peak number of bytes held by Python and NumPy during a call, after a first call that compiles."""
    function()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def as_numpy(x: Any) -> np.ndarray:
    """NumPy copy of an array of any library."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    return np.asarray(x)
