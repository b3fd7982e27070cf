from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ntkit._random import generator, keyed, row_uniforms, seed_sequence


def draws(seed, *key):
    return generator(seed, *key).integers(2**62, size=4)


def test_same_key_same_draws_and_other_key_other_draws():
    seed = seed_sequence(3)
    keys = [(0,), (1,), (0, 0), (0, "signs"), (0, "rows"), ("signs", 0), (0, "signs", 1)]
    values = {key: tuple(draws(seed, *key)) for key in keys}
    assert len(set(values.values())) == len(keys)
    assert all(tuple(draws(seed_sequence(3), *key)) == value for key, value in values.items())
    assert tuple(draws(seed_sequence(4), 0)) != values[(0,)]


def test_key_of_a_key_is_the_longer_key():
    seed = seed_sequence(3)
    assert np.array_equal(draws(keyed(seed, 1), 2), draws(seed, 1, 2))
    with pytest.raises(ValueError, match="at least one part"):
        keyed(seed)


def test_golden_draws_are_integers_that_stay():
    # Philox and SeedSequence are fixed algorithms: raw words must never change.
    words = np.random.Philox(keyed(seed_sequence(0), 1, "signs")).random_raw(2)
    assert words.tolist() == [17345573330101771177, 11080420002469797729]


@pytest.mark.parametrize("state", [5, np.int64(5), np.random.SeedSequence(5)])
def test_integer_states_agree(state):
    assert seed_sequence(state).entropy == 5


def test_generators_are_advanced():
    for make in (np.random.default_rng, np.random.RandomState):
        state = make(0)
        first, second = seed_sequence(state).entropy, seed_sequence(state).entropy
        assert first != second
        assert seed_sequence(make(0)).entropy == first
    assert seed_sequence(None).entropy != seed_sequence(None).entropy


@pytest.mark.parametrize(("state", "error"), [(-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError)])
def test_bad_states(state, error):
    with pytest.raises(error, match="'random_state' parameter of Map must be None, an int ≥ 0"):
        seed_sequence(state, owner="Map")


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_row_uniforms_ignore_chunking(a, b, n_draws):
    start, stop = min(a, b), max(a, b)
    whole = row_uniforms(seed_sequence(1), 0, 50, n_draws)
    assert np.array_equal(row_uniforms(seed_sequence(1), start, stop, n_draws), whole[start:stop])


def test_row_uniforms_are_uniform_and_distinct():
    values = row_uniforms(seed_sequence(2), 0, 2000, 3)
    assert len(np.unique(values)) == values.size
    # False alarm probability 1e-6 at this fixed seed.
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-6
    assert values.min() >= 0
    assert values.max() < 1
    with pytest.raises(ValueError, match="0 ≤ start ≤ stop"):
        row_uniforms(seed_sequence(2), 3, 2)


@pytest.mark.parametrize(("part", "error"), [(2**32, ValueError), (-1, ValueError), (1.9, TypeError)])
def test_keys_are_words_of_32_bits(part, error):
    with pytest.raises(error, match="'key' parameter of keyed must be an int from 0 to 4294967295"):
        keyed(seed_sequence(0), part)
