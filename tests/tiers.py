"""Two sizes of the test suite: `make test` runs a part in minutes, `make test-all` runs all tests.

Mark tests of the large suite with ``@thorough``; shorten parametrizations with ``sampled(cases, n)``, products of
parametrizations with ``pairwise(axis, axis, …)`` and numbers of trials with ``scaled(few, many)``. All depend on the
environment variable ``NTKIT_TEST_ALL``, which `make test-all` sets.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
ALL = os.environ.get("NTKIT_TEST_ALL", "0") not in ("", "0")
SEED = int(os.environ.get("NTKIT_TEST_SEED", "0"))
thorough = pytest.mark.thorough
"""Marks tests that run under `make test-all` only."""
gpu = pytest.mark.gpu
"""Marks tests that run where there is a CUDA device only."""


def has_gpu() -> bool:
    """Return whether torch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def sampled(cases: Sequence[T], n: int) -> list[T]:
    """All cases under `make test-all`, otherwise `n` of them: the first, the last, and others drawn by the seed."""
    cases = list(cases)
    if ALL or len(cases) <= n:
        return cases
    middle = sorted(random.Random(SEED).sample(range(1, len(cases) - 1), max(n - 2, 0)))
    return [cases[i] for i in [0, *middle, len(cases) - 1][:n]]


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The product of all axes under `make test-all`, otherwise a part in which every two values of two axes meet."""
    cases = list(product(*(range(len(axis)) for axis in axes)))
    if not ALL:
        met = {case: {(i, case[i], j, case[j]) for i, j in combinations(range(len(axes)), 2)} for case in cases}
        missing, chosen = set().union(*met.values()), []
        while missing:
            chosen.append(max(cases, key=lambda case: len(met[case] & missing)))
            missing -= met[chosen[-1]]
        cases = sorted(chosen)
    return [tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in cases]


def scaled(few: int, many: int) -> int:
    """A number of trials: `many` under `make test-all`."""
    return many if ALL else few
