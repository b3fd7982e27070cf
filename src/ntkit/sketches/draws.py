"""The draws of all sketches, signs and rows, by NumPy from keyed seeds."""

from __future__ import annotations

import numpy as np

from ntkit._random import generator


def draw_signs(seed: np.random.SeedSequence, *key: int | str, size: int | tuple[int, ...]) -> np.ndarray:
    """Independent signs ±1, as int8."""
    bits = generator(seed, *key, "signs").integers(2, size=size, dtype=np.int8)
    return 1 - 2 * bits


def draw_rows(seed: np.random.SeedSequence, *key: int | str, n: int, size: int, replace: bool) -> np.ndarray:
    """Rows 0 ≤ r < n, as int32: independent, or every row ⌊size/n⌋ or ⌈size/n⌉ times, in random order.

    Without replacement these are the first `size` entries of independent permutations one after the other.
    """
    rng = generator(seed, *key, "rows")
    if replace:
        return rng.integers(n, size=size, dtype=np.int32)
    rounds = np.tile(np.arange(n, dtype=np.int32), (-(-size // n), 1))
    return rng.permuted(rounds, axis=1).ravel()[:size]
