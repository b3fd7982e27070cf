"""Random signs and rows for all sketches, drawn by NumPy from keyed seeds."""

from __future__ import annotations

import numpy as np

from ntkit._random import generator


def draw_signs(seed: np.random.SeedSequence, *key: int | str, size: int | tuple[int, ...]) -> np.ndarray:
    """Draw independent signs ±1, as int8."""
    bits = generator(seed, *key, "signs").integers(2, size=size, dtype=np.int8)
    return 1 - 2 * bits


def draw_rows(seed: np.random.SeedSequence, *key: int | str, n: int, size: int, replace: bool) -> np.ndarray:
    """Draw `size` rows 0 ≤ r < n, as int32.

    With replacement the rows are independent. Without replacement they are the first `size` entries of a sequence of
    independent permutations, so that every row occurs ⌊size/n⌋ or ⌈size/n⌉ times.
    """
    rng = generator(seed, *key, "rows")
    if replace:
        return rng.integers(n, size=size, dtype=np.int32)
    rounds = np.tile(np.arange(n, dtype=np.int32), (-(-size // n), 1))
    return rng.permuted(rounds, axis=1).ravel()[:size]
