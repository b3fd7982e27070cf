"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

collect_ignore_glob = ["golden/*.py"]  # they need neural-tangents, in an environment of its own

# Timings never decide a test: compiled code takes seconds on its first call.
settings.register_profile(
    "default", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("nightly", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


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
    """Fixed seed unless NTKIT_TEST_SEED says otherwise (the nightly sweep)."""
    return np.random.default_rng(int(os.environ.get("NTKIT_TEST_SEED", "0")))


def peak_memory(function: Callable[[], Any]) -> int:
    """Largest number of bytes held by Python and NumPy during a call, after one call that compiles what it needs."""
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
