"""Keyed seeds: every part of a random map draws from its own stream.

``fit`` turns ``random_state`` into one :class:`numpy.random.SeedSequence`. The part with the key
``(layer, part, …)`` draws from ``Philox(SeedSequence(entropy, spawn_key=key))``. So adding a layer never
changes the draws of another layer. All draws happen in NumPy on the host, so NumPy and torch get the same map.
"""

from __future__ import annotations

import zlib
from numbers import Integral
from typing import TypeAlias

import numpy as np

from ntkit._validation import check_int, message

RandomState: TypeAlias = int | np.integer | np.random.RandomState | np.random.Generator | np.random.SeedSequence | None
_WORDS_PER_COUNTER = 4  # a Philox counter step yields four 64-bit words


def seed_sequence(
    random_state: RandomState = None, *, owner: str = "ntkit", name: str = "random_state"
) -> np.random.SeedSequence:
    """Turn `random_state` into a seed sequence.

    Parameters
    ----------
    random_state : None, int ≥ 0, RandomState, Generator or SeedSequence
        None draws fresh entropy. An int always gives the same sequence. A RandomState or Generator is
        advanced by one draw, so two fits with the same object differ, as in scikit-learn.
    owner, name : str
        Function or class that takes the argument, and the argument's name, for error messages.

    Returns
    -------
    numpy.random.SeedSequence

    Examples
    --------
    >>> seed_sequence(7).entropy
    7
    """
    if random_state is None:
        return np.random.SeedSequence()
    if isinstance(random_state, np.random.SeedSequence):
        return random_state
    if isinstance(random_state, np.random.Generator):
        return np.random.SeedSequence(int(random_state.integers(2**63)))
    if isinstance(random_state, np.random.RandomState):
        return np.random.SeedSequence(int(random_state.randint(2**63, dtype=np.int64)))
    rule = "None, an int ≥ 0, a numpy RandomState, Generator or SeedSequence"
    if isinstance(random_state, bool) or not isinstance(random_state, Integral):
        raise TypeError(message(owner, name, rule, random_state))
    if random_state < 0:
        raise ValueError(message(owner, name, rule, random_state))
    return np.random.SeedSequence(int(random_state))


def keyed(seed: np.random.SeedSequence, *key: int | str) -> np.random.SeedSequence:
    """Return the child of `seed` for `key`. Strings in a key are hashed.

    Examples
    --------
    >>> seed = seed_sequence(0)
    >>> keyed(seed, 1, "signs").spawn_key == keyed(seed, 1, "rows").spawn_key
    False
    """
    if not key:
        raise ValueError("keyed() needs a key with at least one part, such as (layer, 'signs').")
    for part in key:
        if not isinstance(part, str):
            check_int(part, "key", "keyed", minimum=0, maximum=2**32 - 1)  # larger ints would take two words
    words = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in key)
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *words), pool_size=seed.pool_size)


def generator(seed: np.random.SeedSequence, *key: int | str) -> np.random.Generator:
    """Return the generator for the part `key`, or for `seed` itself if there is no key.

    Examples
    --------
    >>> a = generator(seed_sequence(0), 2, "signs").integers(100, size=3)
    >>> b = generator(seed_sequence(0), 2, "signs").integers(100, size=3)
    >>> bool((a == b).all())
    True
    """
    return np.random.Generator(np.random.Philox(keyed(seed, *key) if key else seed))


def row_uniforms(seed: np.random.SeedSequence, start: int, stop: int, n_draws: int = 1) -> np.ndarray:
    """Draw uniform numbers in [0, 1) for the rows `start` to `stop` of a data set, independent of chunking.

    Row i uses the Philox counters i·b … i·b + b − 1 with b = ⌈n_draws / 4⌉, reached by ``advance``.

    Parameters
    ----------
    seed : numpy.random.SeedSequence
    start, stop : int
        Global row indices, 0 ≤ start ≤ stop.
    n_draws : int
        Draws per row.

    Returns
    -------
    ndarray of shape (stop - start, n_draws), float64

    Examples
    --------
    >>> seed = seed_sequence(0)
    >>> whole = row_uniforms(seed, 0, 6, 2)
    >>> bool((row_uniforms(seed, 4, 6, 2) == whole[4:]).all())
    True
    """
    if not 0 <= start <= stop:
        raise ValueError(f"row_uniforms needs 0 ≤ start ≤ stop. Got {start} and {stop} instead.")
    blocks = -(-n_draws // _WORDS_PER_COUNTER)
    stream = np.random.Philox(seed).advance(start * blocks)
    words = stream.random_raw((stop - start) * blocks * _WORDS_PER_COUNTER)
    words = words.reshape(stop - start, blocks * _WORDS_PER_COUNTER)[:, :n_draws]
    return (words >> np.uint64(11)) * 2.0**-53
