"""Sums over rows do not depend on the blocks the rows come in, the order of merges, or on being stored in between."""

from __future__ import annotations

import contextlib
import copy
import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.preprocessing import FunctionTransformer
from tests.reference.ridge import centred_sums

from ntkit import FeatureRidge
from ntkit._random import keyed, row_uniforms, seed_sequence
from ntkit._state import get_values, put_values
from ntkit.models import _statistics
from ntkit.models._statistics import Statistics

LEVEL = 1e-6
NAMES = ("z_mean", "y_mean", "gram", "cross", "y_square")


def draw_rows(seed, n, m, k=1, *, dtype=np.float64, offset=0.0):
    """Features, targets, keys, and weights, some of which are 0."""
    rng = np.random.default_rng(seed)
    Z = (offset + rng.standard_normal((n, m))).astype(dtype)
    Y = offset + rng.standard_normal((n, k))
    weight = rng.integers(0, 4, n) / 2.0
    return Z, Y, weight, np.where(weight > 0, rng.random(n), np.inf)


def add(statistics, Z, Y, weight, keys, cuts=()):
    """Add copies of rows in blocks that end at `cuts`."""
    for parts in zip(*(np.split(a, cuts) for a in (Z, Y, weight, keys)), strict=True):
        statistics.add(*(part.copy() for part in parts))
    return statistics


def of_rows(Z, Y, weight, keys, cuts=(), sample_size=0):
    return add(Statistics(Z.shape[1], Y.shape[1], sample_size), Z, Y, weight, keys, cuts)


def assert_sums(statistics, Z, Y, weight, tolerance):
    """The sums agree with extended precision; entries relative to √(G_ii G_jj) of the rows with nonzero weight."""
    exact = centred_sums(Z, Y, weight)
    statistics.finish()
    assert statistics.count == len(Z)
    assert statistics.weight == pytest.approx(exact["weight"], rel=1e-12)
    z = np.sqrt(np.maximum(np.diag(exact["gram"]), np.finfo(float).tiny)).max()
    y = np.sqrt(np.maximum(exact["y_square"], np.finfo(float).tiny)).max()
    root = np.sqrt(exact["weight"])
    eps = np.finfo(np.float64).eps
    scales = {
        "z_mean": z / root + eps / tolerance * np.abs(exact["z_mean"]).max(),
        "y_mean": y / root + eps / tolerance * np.abs(exact["y_mean"]).max(),
        "gram": z * z,
        "cross": z * y,
        "y_square": y * y,
    }
    for name, scale in scales.items():
        value = getattr(statistics, name)
        assert value.dtype == np.float64
        if name == "gram":
            value, exact[name] = np.tril(value), np.tril(exact[name])
        np.testing.assert_allclose(value, exact[name], rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.fixture
def small_blocks():
    """Constants that make a handful of rows go through everything that many rows go through."""
    with mock.patch.multiple(_statistics, FLUSH=24, _SMALL=6, _CORRECTIONS=3):
        yield


# Blocks and merges.


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(data=st.data())
def test_any_blocks_give_the_same_sums(dtype, data):
    n, m, k = data.draw(st.integers(4, 80)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    rows = draw_rows(data.draw(st.integers(0, 2**31)), n + m, m, k, dtype=dtype)
    rows[2][0] = 1.0
    cuts = sorted(data.draw(st.lists(st.integers(0, n + m), max_size=12)))
    small = data.draw(st.integers(1, 30))
    with mock.patch.multiple(_statistics, FLUSH=data.draw(st.integers(1, 40)), _SMALL=small, _CORRECTIONS=2):
        assert_sums(of_rows(*rows, cuts), *rows[:3], 1e-13 if dtype == np.float64 else 2e-6)


@given(data=st.data())
def test_any_order_of_merges_gives_the_same_sums(data):
    """Parts may have no rows, the number of rows that are kept, or more; they are merged in pairs in any order."""
    n, m = data.draw(st.integers(8, 60)), data.draw(st.integers(1, 6))
    rows = draw_rows(data.draw(st.integers(0, 2**31)), n, m, 2)
    rows[2][0] = 1.0
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    blocks = list(zip(*(np.split(a, cuts) for a in rows), strict=True))
    with mock.patch.multiple(_statistics, FLUSH=24, _SMALL=6, _CORRECTIONS=3):
        parts = [of_rows(*block, sample_size=5) for block in blocks]
        while len(parts) > 1:
            i = data.draw(st.integers(0, len(parts) - 1))
            other = parts.pop(i)
            parts[data.draw(st.integers(0, len(parts) - 1))].merge(other)
    total = parts[0]
    if n > m:
        assert_sums(total, *rows[:3], 1e-13)
        chosen = np.argsort(rows[3])[:5]
        finite = np.isfinite(rows[3][chosen])
        np.testing.assert_array_equal(total.sample.keys[finite], rows[3][chosen][finite])
        np.testing.assert_array_equal(total.sample.Z[finite], rows[0][chosen][finite])
        np.testing.assert_array_equal(total.sample.Y[finite], rows[1][chosen][finite])
        np.testing.assert_array_equal(total.sample.weight[finite], rows[2][chosen][finite])
    else:
        kept = total.finish().rows()
        order, expected = np.argsort(kept.Z[:, 0]), np.argsort(rows[0][:, 0])
        for ours, theirs in zip(kept, rows, strict=True):
            np.testing.assert_array_equal(ours[order], theirs[expected])
    assert total.count == n
    assert total.n_used == np.isfinite(rows[3]).sum()
    assert total.n_units == pytest.approx(np.maximum(rows[2], 1)[rows[2] > 0].sum())
    assert total.total_weight() == pytest.approx(rows[2].sum())


@pytest.mark.parametrize("m", [1, 256, 257, 600])
def test_triangles_are_whole_at_the_edges_of_blocks(m, rng):
    """Tiles have 256 rows; only the lower triangle counts, and adding a triangle clears its source."""
    total, vectors, factors = np.zeros((m, m)), rng.standard_normal((m, 3)), [1.0, -2.0, 0.5]
    _statistics.add_outer(total, vectors, factors)
    np.testing.assert_allclose(np.tril(total), np.tril(vectors * factors @ vectors.T), atol=1e-13)
    total, part = np.zeros((m, m)), rng.standard_normal((m, m)).astype(np.float32)
    expected = np.tril(part)
    _statistics._add_triangle(total, part)
    np.testing.assert_array_equal(np.tril(total), expected)
    assert not np.tril(part).any()


def snapshot(statistics):
    """Deep copies of all that statistics hold."""
    return copy.deepcopy(vars(copy.copy(statistics)))


def assert_same_state(one, other):
    assert set(one) == set(other)
    for name, value in one.items():
        if name == "sample":
            assert_same_state(vars(value), vars(other[name]))
        elif isinstance(value, list):
            assert len(value) == len(other[name]), name
            for left, right in zip(value, other[name], strict=True):
                for a, b in zip(left, right, strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("first", [0, 2, 30])
@pytest.mark.parametrize("second", [3, 30])
def test_merging_does_not_change_the_other_statistics(first, second):
    """Also when the merged statistics receive more rows and more statistics."""
    Z, Y, weight, keys = draw_rows(0, 120, 4, 2)
    weight[:] = 1.0
    pieces = np.split(np.arange(120), [first, first + second, 90])
    total, other, third = (of_rows(*(a[i] for a in (Z, Y, weight, keys)), sample_size=7) for i in pieces[:3])
    if not first:
        total = Statistics(4, 2, 7)
    other.finish()
    before = snapshot(other)
    total.merge(other)
    assert_same_state(snapshot(other), before)
    total.merge(third)
    assert_same_state(snapshot(other), before)
    add(total, *(a[pieces[3]] for a in (Z, Y, weight, keys)), cuts=[5, 11, 20])
    total.finish()
    total.place_targets([2, 0], 3)
    assert_same_state(snapshot(other), before)
    total.place_targets([0, 1, 2], 3)
    np.testing.assert_allclose(total.y_mean[[2, 0]], Y.mean(axis=0), atol=1e-13)
    other.place_targets([1, 0], 2)
    again = Statistics(4, 2, 7)
    again.merge(other)
    np.testing.assert_array_equal(again.finish().rows().Y if second == 3 else again.y_mean, (
        before["_pending"][0].Y if second == 3 else before["y_mean"]
    )[..., ::-1])  # fmt: skip


@pytest.mark.usefixtures("small_blocks")
def test_rows_added_to_a_sum_do_not_reach_statistics_it_was_copied_from():
    Z, Y, weight, keys = draw_rows(1, 60, 3)
    one = of_rows(Z[:40], Y[:40], weight[:40], keys[:40])
    other = pickle.loads(pickle.dumps(one))
    add(other, Z[40:], Y[40:], weight[40:], keys[40:])
    assert_sums(one, Z[:40], Y[:40], weight[:40], 1e-13)
    assert_sums(other, Z, Y, weight, 1e-13)


# Precision.


@pytest.mark.parametrize("offset", [1e6, 1234567.0, -33333.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 5e-6), (np.float64, 2e-11)])
def test_large_means_cost_no_digits(dtype, tolerance, weighted, offset):
    """Sums of squares about zero would lose all digits of float32, and 12 of float64.

    The remaining error in float64: means are rounded to 1e6 · 1e-16, which moves the terms by 1e-10 of a deviation.
    """
    Z, Y, weight, keys = draw_rows(0, 20000, 4, 2, dtype=dtype, offset=offset)
    if not weighted:
        weight[:] = 1.0
    for cuts in ((), [100], range(1000, 20000, 1000), [19990]):
        assert_sums(of_rows(Z, Y, weight, keys, cuts), Z, Y, weight, tolerance)
    halves = [of_rows(*(a[i::2] for a in (Z, Y, weight, keys))) for i in range(2)]
    halves[0].merge(halves[1])
    assert_sums(halves[0], Z, Y, weight, tolerance)


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_one_row():
    rows = draw_rows(0, 300, 3, 2, dtype=np.float32, offset=1e4)
    assert_sums(of_rows(*rows, cuts=range(1, 300)), *rows[:3], 2e-6)


def test_errors_do_not_grow_with_the_number_of_rows():
    """A million rows and ten: rounding errors of float32 products average out over the blocks.

    Sixteen different blocks come again and again, so that exact sums are cheap. The errors measured are 2e-8 to 4e-8.
    """
    rng = np.random.default_rng(0)
    shape = (16, 16384, 8)
    Z = (0.5 + rng.standard_normal(shape)).astype(np.float32)
    Y = np.stack([Z[..., 0] + rng.standard_normal(shape[:2]), 1e3 + rng.standard_normal(shape[:2])], axis=2)
    ones, keys = np.ones(shape[1]), np.zeros(shape[1])
    exact = centred_sums(Z.reshape(-1, 8), Y.reshape(-1, 2), np.ones(shape[0] * shape[1]))
    total, done = Statistics(8, 2), 0
    for repeats in (4, 40):
        for _ in range(repeats - done):
            for z, y in zip(Z, Y, strict=True):
                total.add(z.copy(), y, ones, keys)
        done = repeats
        total.finish()
        assert total.count == repeats * 16 * 16384
        scale = np.sqrt(np.diag(exact["gram"]))
        gram = np.tril(total.gram / repeats - exact["gram"]) / np.outer(scale, scale)
        assert np.abs(gram).max() < 2e-7
        cross = (total.cross / repeats - exact["cross"]) / np.outer(scale, np.sqrt(exact["y_square"]))
        assert np.abs(cross).max() < 2e-7
        np.testing.assert_allclose(total.y_square / repeats, exact["y_square"], rtol=1e-12)
        np.testing.assert_allclose(total.z_mean, exact["z_mean"], atol=1e-7)
        np.testing.assert_allclose(total.y_mean, exact["y_mean"], rtol=1e-13)


# Weights.


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [3, 40])
def test_rows_of_weight_zero_have_no_effect(n, dtype):
    """However far away they are."""
    Z, Y, weight, keys = draw_rows(0, n, 3, dtype=dtype)
    weight[: n // 2] = 0.0
    used = weight > 0
    Z[~used] += 1e4
    keys[~used] = np.inf
    total = of_rows(Z, Y, weight, keys, cuts=[n // 4], sample_size=4).finish()
    assert total.count == n
    assert total.total_weight() == weight.sum()
    if n > 3:
        assert_sums(total, Z, Y, weight, 1e-13 if dtype == np.float64 else 2e-6)
        chosen = np.flatnonzero(used)[np.argsort(keys[used])][:4]
        np.testing.assert_array_equal(total.sample.Z, Z[chosen])
    else:
        np.testing.assert_array_equal(total.rows().weight, weight)


def test_only_rows_of_weight_zero():
    Z, Y, weight, keys = draw_rows(0, 20, 3)
    total = of_rows(Z, Y, 0 * weight, keys).finish()
    assert total.total_weight() == 0.0
    assert not total.gram.any()
    other = of_rows(Z, Y, np.ones(20), keys)
    total.merge(other)
    assert total.count == 40
    np.testing.assert_allclose(np.tril(total.gram), np.tril(other.gram), atol=1e-13)
    np.testing.assert_allclose(total.z_mean, other.z_mean, atol=1e-15)
    other.merge(of_rows(Z, Y, 0 * weight, keys))
    np.testing.assert_allclose(np.tril(total.gram), np.tril(other.gram), atol=1e-13)


@pytest.mark.usefixtures("small_blocks")
def test_integer_weights_are_repetitions():
    Z, Y, weight, keys = draw_rows(0, 40, 3)
    counts = (2 * weight).astype(int)
    weighted = of_rows(Z, Y, counts.astype(float), keys).finish()
    repeated = of_rows(*(np.repeat(a, counts, axis=0) for a in (Z, Y, np.ones(40), keys))).finish()
    for name in NAMES:
        ours, theirs = (np.tril(getattr(s, name)) if name == "gram" else getattr(s, name) for s in (weighted, repeated))
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


# Rows kept or not.


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [1, 4, 5, 6, 7, 40])
def test_rows_are_kept_until_they_outnumber_the_features(n):
    rows = draw_rows(0, n, 5)
    rows[2][0] = 1.0
    total = Statistics(5, 1, 3)
    for i in range(n):
        add(total, *(a[i : i + 1] for a in rows))
        if i % 3 == 0:
            total.finish()  # asked for in between, as partial_fit and predict do
    total.finish()
    assert total.settled == (n > 5)
    assert total.total_weight() == pytest.approx(rows[2].sum())
    if n <= 5:
        assert total.gram is None
        for kept, given_ in zip(total.rows(), rows, strict=True):
            np.testing.assert_array_equal(kept, given_)
    else:
        assert total.rows() is None
        assert_sums(total, *rows[:3], 1e-13)


def test_no_rows_at_all():
    total = Statistics(3, 1, 2)
    add(total, *(a[:0] for a in draw_rows(0, 1, 3)))
    assert total.finish().rows() is None
    assert total.count == 0
    assert total.total_weight() == 0.0
    other = Statistics(3, 1, 2)
    total.merge(other)
    assert total.count == 0
    assert pickle.loads(pickle.dumps(total)).count == 0


# Targets that come later.


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [4, 30])
def test_targets_may_be_moved_and_added(n):
    Z, Y, weight, keys = draw_rows(0, 2 * n, 5, 2)
    weight[:] = 1.0
    one = of_rows(Z[:n], Y[:n], weight[:n], keys[:n], cuts=[1, 3], sample_size=3)
    one.place_targets([3, 1], 4)
    wide = np.zeros((2 * n, 4))
    wide[:n, [3, 1]] = Y[:n]
    wide[n:] = np.random.default_rng(1).standard_normal((n, 4))
    add(one, Z[n:], wide[n:], weight[n:], keys[n:])
    assert one.n_targets == 4
    assert_sums(one, Z, wide, weight, 1e-13)
    chosen = np.argsort(keys)[:3]
    np.testing.assert_array_equal(one.sample.Y, wide[chosen])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sizes", [(4, 30), (30, 4), (30, 30), (3, 3)])
def test_merging_different_numbers_of_targets(sizes):
    """Statistics with different numbers of targets can be merged; missing targets count as zero."""
    n, total = sizes[0], sum(sizes)
    Z, Y, weight, keys = draw_rows(0, total, 5, 3)
    weight[:] = 1.0
    for first, second in ((1, 3), (3, 1)):
        wide = Y.copy()
        wide[:n, first:] = 0
        wide[n:, second:] = 0
        one = of_rows(Z[:n], Y[:n, :first], weight[:n], keys[:n], sample_size=4)
        other = of_rows(Z[n:], Y[n:, :second], weight[n:], keys[n:], sample_size=4)
        one.merge(other)
        assert one.n_targets == 3
        assert_sums(one, Z, wide, weight, 1e-13)
        assert other.n_targets == second
        np.testing.assert_array_equal(one.sample.Y, wide[np.argsort(keys)[:4]])


# The sample.


@given(data=st.data())
def test_the_sample_does_not_depend_on_blocks(data):
    n, size = data.draw(st.integers(2, 60)), data.draw(st.integers(1, 70))
    Z, Y, weight, keys = draw_rows(data.draw(st.integers(0, 2**31)), n, 1)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=8)))
    with mock.patch.multiple(_statistics, FLUSH=16, _SMALL=data.draw(st.integers(1, 20))):
        sample = of_rows(Z, Y, weight, keys, cuts, sample_size=size).finish().sample
    chosen = np.argsort(keys, kind="stable")[:size]
    positive = np.isfinite(keys[chosen])
    assert len(sample.keys) == min(n, size)
    for ours, theirs in ((sample.keys, keys), (sample.Z, Z), (sample.Y, Y), (sample.weight, weight)):
        np.testing.assert_array_equal(ours[positive], theirs[chosen][positive])
    assert not sample.weight[~positive].any()


def inclusion_p_value(counts, n_draws, size):
    """Of equal chances for all rows, from how often each was in a sample without replacement.

    Counts have covariance T p(1 − p)(n I − 11ᵀ)/(n − 1) with p = size/n, so that this sum is χ² with n − 1 degrees
    of freedom as T grows.
    """
    n = len(counts)
    p = size / n
    statistic = (n - 1) / n * ((counts - n_draws * p) ** 2).sum() / (n_draws * p * (1 - p))
    return stats.chi2.sf(statistic, n - 1)


def test_the_sample_is_uniform(rng):
    """False alarms: 1e-6. Keys that favour early rows by a fifth are rejected."""
    n, size, n_draws = 30, 8, 2500
    counts, biased = np.zeros(n), np.zeros(n)
    first = int(rng.integers(2**20))
    Z, Y, weight = np.arange(n, dtype=float)[:, None], np.zeros((n, 1)), np.ones(n)
    for seed in range(first, first + n_draws):
        keys = row_uniforms(keyed(seed_sequence(seed), "sample"), 0, n)[:, 0]
        for total, these in ((counts, keys), (biased, keys * np.linspace(0.9, 1.1, n))):
            sample = of_rows(Z, Y, weight, these, cuts=[10, 11], sample_size=size).finish().sample
            total[sample.Z[:, 0].astype(int)] += 1
    assert counts.sum() == n_draws * size
    assert inclusion_p_value(counts, n_draws, size) > LEVEL
    assert inclusion_p_value(biased, n_draws, size) < LEVEL


@pytest.mark.parametrize("n", [20, 200])
def test_the_sample_of_a_model_depends_only_on_the_seed(n, rng):
    """For any blocks and calls; rows of weight 0 are never in it."""
    X, y = rng.standard_normal((n, 30)), rng.standard_normal(n)
    weight = np.where(np.arange(n) % 3 == 0, 0.0, 1.0)

    def sample(model):
        rows = model._statistics.finish().rows()
        if rows is None:
            return model._statistics.sample.Z[:, 0]
        return rows.Z[np.argsort(rows.keys)[:5], 0]

    def new(seed=0, **parameters):
        return FeatureRidge(FunctionTransformer(), n_selection=5, random_state=seed, **parameters)

    expected = sample(new().fit(X, y, weight))
    assert set(expected) <= set(X[weight > 0, 0])
    assert set(expected) != set(sample(new(1).fit(X, y, weight)))
    for batch_size in (1, 7, 64):
        np.testing.assert_array_equal(sample(new(batch_size=batch_size).fit(X, y, weight)), expected)
    stream = [(X[i : i + 9], y[i : i + 9], weight[i : i + 9]) for i in range(0, n, 9)]
    np.testing.assert_array_equal(sample(new().fit(stream)), expected)
    model = new(batch_size=4)
    for block in stream:
        model.partial_fit(*block)
    np.testing.assert_array_equal(sample(model), expected)


# State.


def build(n, dtype, *, finish):
    """Statistics in the state in which they can be stored, and the rows they are of."""
    rows = draw_rows(3, n, 5, 2, dtype=dtype)
    total = of_rows(*rows, cuts=range(6, n, 6), sample_size=4)
    if finish or not total.settled:
        total.finish()
    return total, rows


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 5, 48, 50])
@pytest.mark.parametrize("finish", [True, False])
def test_a_restored_state_continues_identically(n, finish, dtype):
    """Bit by bit, rank-one terms that wait included."""
    with mock.patch.object(_statistics, "_CORRECTIONS", 99):
        total, rows = build(n, dtype, finish=finish)
    if n == 48 and not finish:
        assert total._corrections, "nothing waits: the test does not test what it is meant to"
    values = get_values(total, "statistics", on_request=True)
    again = Statistics.__new__(Statistics)
    put_values(again, copy.deepcopy(values), "statistics")
    again._check_state(2**30)
    assert again.count == total.count == n
    assert again.n_targets == 2
    assert again.sample.size == 4
    more = draw_rows(4, 60, 5, 2, dtype=dtype)
    for statistics in (total, again):
        add(statistics, *more, cuts=range(7, 60, 7))
        statistics.finish()
    for name in (*NAMES, "weight", "count"):
        np.testing.assert_array_equal(getattr(again, name), getattr(total, name), err_msg=name)
    for name in ("keys", "Z", "Y", "weight"):
        np.testing.assert_array_equal(getattr(again.sample, name), getattr(total.sample, name), err_msg=name)
    together = [np.concatenate([a, b]) for a, b in zip(rows, more, strict=True)]
    assert_sums(again, *together[:3], 1e-13 if dtype == np.float64 else 2e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [3, 50])
def test_pickles_of_statistics(n):
    rows = draw_rows(0, n, 5, dtype=np.float32)
    total = of_rows(*rows, cuts=range(1, n), sample_size=4)
    again = pickle.loads(pickle.dumps(total))
    assert again._partial is None
    more = draw_rows(1, 30, 5, dtype=np.float32)
    together = [np.concatenate([a, b]) for a, b in zip(rows, more, strict=True)]
    for statistics in (total, again):
        assert_sums(add(statistics, *more), *together[:3], 2e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_give_the_sums_of_arrays(dtype):
    """As they do on other devices."""
    import torch

    rows = draw_rows(0, 60, 4, 2, dtype=dtype, offset=100.0)
    total = Statistics(4, 2, 5)
    for parts in zip(*(np.split(a, [10, 30]) for a in rows), strict=True):
        total.add(*(torch.from_numpy(part.copy()) for part in parts[:3]), parts[3])
    arrays = of_rows(*rows, sample_size=5).finish()
    total.finish()
    for name in NAMES:
        ours = getattr(total, name).numpy()
        theirs = getattr(arrays, name)
        if name == "gram":
            ours, theirs = np.tril(ours), np.tril(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == "float32" else 1e-11, atol=1e-4)
    np.testing.assert_array_equal(total.sample.Z.numpy(), arrays.sample.Z)
    other = Statistics(4, 2, 5)
    other.merge(total)
    other.merge(total)
    np.testing.assert_allclose(np.tril(other.gram), 2 * np.tril(total.gram), rtol=1e-12)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("n", [3, 30])
@pytest.mark.parametrize("m", [4, 40])
def test_a_fork_does_not_change_its_origin(n, m):
    rows = draw_rows(0, n, m, 2, dtype=np.float32)
    total = of_rows(*rows, cuts=[1], sample_size=7)
    before = snapshot(total.fork().finish())
    fork = total.fork()
    more = draw_rows(1, 60, m, 2, dtype=np.float32)
    add(fork, *more, cuts=[5, 20])
    fork.place_targets([2, 0], 3)
    fork.finish()
    assert fork.count == n + 60
    assert total.count == n
    assert_same_state(snapshot(total.finish()), before)


@pytest.mark.parametrize("size", [1e-30, 1e20, 1e25])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_squares_that_single_precision_cannot_hold(size, library):
    """They overflow, or vanish, in float32; sums of them do not in float64."""
    Z, Y, weight, keys = draw_rows(0, 40, 3, 1)
    total, expected = Statistics(3, 1), of_rows(size * Z.astype(np.float32).astype(np.float64), Y, weight, keys)
    small = size * Z.astype(np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch")
        total.add(*(torch.from_numpy(a.copy()) for a in (small.astype(np.float32), Y, weight)), keys)
    else:
        total.add(small.astype(np.float32), Y, weight, keys)
    gram = np.asarray(total.finish().gram)
    atol = 1e-6 * np.abs(gram).max()
    np.testing.assert_allclose(np.tril(gram), np.tril(expected.finish().gram), rtol=1e-4, atol=atol)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("write", [pickle.dumps, lambda s: get_values(s, "statistics", on_request=True)])
@pytest.mark.parametrize("place", ["_add_triangle", "add_outer"])
def test_writing_does_not_change_the_statistics(write, place, monkeypatch):
    """Neither sums nor their forks, even where it runs out of memory."""
    rows = draw_rows(0, 40, 5, 2, dtype=np.float32)
    total = of_rows(*rows, cuts=[30], sample_size=4)
    fork, expected = total.fork(), total.fork().finish()
    original = getattr(_statistics, place)

    def fail(*arguments, **options):
        original(*arguments, **options)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_statistics, place, fail)
        with contextlib.suppress(MemoryError):
            write(total)
    write(total)
    for statistics in (total, fork, total):
        statistics.finish()
        np.testing.assert_array_equal(np.tril(statistics.gram), np.tril(expected.gram))
        np.testing.assert_array_equal(statistics.cross, expected.cross)
