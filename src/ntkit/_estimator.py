"""What all estimators share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AllOrNothing:
    """Estimators whose `fit` works or leaves them as they were."""

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
