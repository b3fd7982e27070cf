"""Fixtures of the hostile trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.hostile.verdicts import Tally


@pytest.fixture
def tally(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Iterator[Tally]:
    """Counts of verdicts, under the name of the module of the test; a broken promise fails the test."""
    found = Tally(request.module.__name__.rpartition("test_")[2], record_property)
    yield found
    found.close()
