"""Calibration of least-squares scores. Seeds are fixed."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.optimize import check_grad
from tests.tiers import thorough

from ntkit.models import _calibrate
from ntkit.models._calibrate import (
    Calibration,
    fit_calibration,
    left_out_log_loss,
    log_probabilities,
    temperature,
)


def draw(log_p, seed=0):
    """Labels drawn with given probabilities."""
    u = np.random.default_rng(seed).random((len(log_p), 1))
    return np.minimum((u > np.cumsum(np.exp(log_p), axis=1)).sum(axis=1), log_p.shape[1] - 1)


def planted(n=6000, k=3, true_temperature=0.5, offsets=None, matrix=None, seed=0):
    """Scores, labels and the true log probabilities."""
    scores = np.random.default_rng(seed).standard_normal((n, k))
    logits = scores / true_temperature + (0 if offsets is None else offsets)
    if matrix is not None:
        logits = logits + (scores - scores.mean(axis=1, keepdims=True)) @ matrix
    log_p = log_probabilities(logits, 1.0)
    return scores, draw(log_p, seed + 1), log_p


def fit(scores, labels, weight=None):
    return fit_calibration(scores, labels, np.ones(len(labels)) if weight is None else weight, scores.shape[1])


def log_loss(log_p, labels):
    return -log_p[np.arange(len(labels)), labels].mean()


def divergence(true, log_p):
    """Mean Kullback-Leibler divergence."""
    return (np.exp(true) * (true - log_p)).sum(axis=1).mean()


# Known parameters


def check_temperature(true_temperature, n):
    scores, labels, _ = planted(n, true_temperature=true_temperature)
    assert fit(scores, labels).temperature == pytest.approx(true_temperature, rel=0.2)


KNOWN = [(0.05, 10_000), (0.5, 5000), (2.0, 10_000), (11.0, 100_000)]


@pytest.mark.parametrize(("true_temperature", "n"), KNOWN)
def test_known_temperature(true_temperature, n):
    """Root mean square scores of √(2/3), so the logarithm of the slope is between −2.6 and 2.8."""
    check_temperature(true_temperature, n)


@pytest.mark.parametrize(("true_temperature", "n"), [KNOWN[0], KNOWN[-1]])
def test_tight_bounds_are_noticed(true_temperature, n, monkeypatch):
    monkeypatch.setattr(_calibrate, "_LOG_SLOPE_BOUNDS", (-2.0, 2.0))
    with pytest.raises(AssertionError):
        check_temperature(true_temperature, n)


def check_recovery(apply):
    """Probabilities from planted offsets and a planted matrix come back.

    Six parameters matter, so the expected divergence is about 6 / 2n = 0.0005; over 5 seeds it was 0.0002 to 0.0006. At
    one temperature it is 0.26.
    """
    matrix = np.array([[0.0, 1.5, 0.0], [0.0, -1.0, 0.0], [0.5, 0.0, 1.0]])
    scores, labels, true = planted(offsets=np.array([1.0, -1.0, 0.0]), matrix=matrix)
    assert divergence(true, apply(scores, fit(scores, labels))) < 0.003
    assert divergence(true, log_probabilities(scores, temperature(scores, labels, np.ones(len(labels))))) > 0.1


def test_known_offsets_and_matrix():
    check_recovery(log_probabilities)


@pytest.mark.parametrize(
    "fault",
    [
        lambda c: replace(c, offsets=-c.offsets),
        lambda c: replace(c, offsets=0 * c.offsets),
        lambda c: replace(c, matrix=c.matrix.T),
        lambda c: replace(c, matrix=0 * c.matrix),
        lambda c: replace(c, temperature=1 / c.temperature),
        lambda c: replace(c, smoothing=0.1),
    ],
)
def test_faults_are_noticed(fault):
    with pytest.raises(AssertionError):
        check_recovery(lambda scores, calibration: log_probabilities(scores, fault(calibration)))


def test_masked_class():
    """The middle one of three ordered classes never has the largest least-squares score, but often is most probable."""
    rng = np.random.default_rng(0)
    position = rng.uniform(-1, 1, 4000)
    labels = np.digitize(position + 0.1 * rng.standard_normal(4000), [-1 / 3, 1 / 3])
    design = np.stack([np.ones(4000), position], axis=1)
    scores = design @ np.linalg.lstsq(design, np.eye(3)[labels], rcond=None)[0]
    assert (scores.argmax(axis=1) == 1).mean() < 0.01
    log_p = log_probabilities(scores, fit(scores, labels))
    assert (log_p.argmax(axis=1) == labels).mean() > 0.8
    one = log_probabilities(scores, temperature(scores, labels, np.ones(4000)))
    assert log_loss(log_p, labels) < 0.7 * log_loss(one, labels)


# The problem and its solution


def test_gradient():
    rng = np.random.default_rng(0)
    scores, targets = rng.standard_normal((20, 4)), rng.dirichlet(np.ones(4), 20)
    objective = _calibrate._Objective(scores, targets, rng.uniform(0.5, 2, 20))
    at = rng.standard_normal(21)
    assert check_grad(lambda x: objective(x)[0], lambda x: objective(x)[1], at) < 1e-6


def test_docstring_formula():
    """The objective of the docstring is the smallest at the fit; the trace of the matrix is 0."""
    scores, labels, _ = planted(200, 3)
    weight = np.random.default_rng(0).integers(1, 4, 200).astype(float)
    found = fit(scores, labels, weight)
    c = scores - scores.mean(axis=1, keepdims=True)
    mean_square = np.average((c**2).mean(axis=1), weights=weight)
    targets = (1 - found.smoothing) * np.eye(3)[labels] + found.smoothing / 3

    def value(x):
        log_p = log_probabilities(c / x.temperature + c @ x.matrix + x.offsets, 1.0)
        penalty = 3 * mean_square * (x.matrix**2).sum() + 3 * (x.offsets**2).sum()
        return -weight @ (targets * log_p).sum(axis=1) + penalty / 2

    assert found.smoothing == pytest.approx(0.2 / (weight.sum() + 1))
    assert abs(np.trace(found.matrix)) < 1e-6
    rng = np.random.default_rng(1)
    for size in (1e-3, 0.1):
        for _ in range(20):
            other = replace(
                found,
                temperature=found.temperature * np.exp(size * rng.standard_normal()),
                matrix=found.matrix + size * rng.standard_normal((3, 3)),
                offsets=found.offsets + size * rng.standard_normal(3),
            )
            assert value(other) > value(found)


@pytest.mark.parametrize(("n", "k"), [(30, 2), (300, 3), (1000, 10)])
def test_weights_are_counts(n, k):
    scores, labels, _ = planted(n, k)
    weight = np.random.default_rng(2).integers(0, 4, n)
    once, repeated = fit(scores, labels, weight.astype(float)), np.repeat(np.arange(n), weight)
    again = fit(scores[repeated], labels[repeated])
    np.testing.assert_allclose(
        np.exp(log_probabilities(scores, once)), np.exp(log_probabilities(scores, again)), atol=1e-8
    )
    plain = fit(scores, labels)
    assert np.abs(np.exp(log_probabilities(scores, once)) - np.exp(log_probabilities(scores, plain))).max() > 1e-4


def test_small_weights_are_rescaled():
    """Weights that sum to 1 are not a single row."""
    scores, labels, _ = planted(200)
    log_p = [log_probabilities(scores, fit(scores, labels, np.full(200, w))) for w in (1.0, 1 / 200)]
    np.testing.assert_allclose(*log_p, atol=1e-6)


def test_invariance():
    """A constant per row has no effect, a factor changes the temperature, and the order of classes is preserved."""
    scores, labels, _ = planted(500, 4, offsets=np.array([0.0, 1.0, 0.0, -1.0]))
    found = fit(scores, labels)
    log_p = log_probabilities(scores, found)
    moved = scores + np.random.default_rng(3).standard_normal((500, 1))
    np.testing.assert_allclose(log_probabilities(moved, found), log_p, atol=1e-10)
    np.testing.assert_allclose(log_probabilities(moved, fit(moved, labels)), log_p, atol=1e-6)
    scaled = fit(1000 * scores, labels)
    assert scaled.temperature == pytest.approx(1000 * found.temperature, rel=1e-6)
    np.testing.assert_allclose(log_probabilities(1000 * scores, scaled), log_p, atol=1e-6)
    order = np.array([2, 0, 3, 1])
    permuted = fit(scores[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(log_probabilities(scores[:, order], permuted), log_p[:, order], atol=1e-6)


def test_fields_can_be_saved():
    found = fit(*planted(100)[:2])
    kinds = {field.name: type(getattr(found, field.name)) for field in fields(Calibration)}
    assert kinds == {"temperature": float, "matrix": np.ndarray, "offsets": np.ndarray, "smoothing": float}
    assert found.matrix.dtype == found.offsets.dtype == np.float64
    assert found.matrix.shape == (3, 3)
    again = fit(*planted(100)[:2])
    np.testing.assert_array_equal(found.matrix, again.matrix)


# Hard cases


def check_proper(log_p, calibration):
    k = log_p.shape[1]
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1.0, rtol=1e-12)
    floor = calibration.smoothing / k
    assert np.exp(log_p).min() >= floor * (1 - 1e-9)
    assert np.exp(log_p).max() <= 1 - (k - 1) * floor + 1e-9
    assert calibration.temperature > 0


@pytest.mark.parametrize("k", [2, 3, 10, 100])
@pytest.mark.parametrize("n", [1, 2, 30, 1000])
def test_separable(n, k):
    """Probabilities are bounded by the number of rows, also far outside of them, and the classes stay right."""
    labels = np.arange(n) % k
    scores = np.eye(k)[labels] + 0.01 * np.random.default_rng(0).standard_normal((n, k))
    found = fit(scores, labels)
    for factor in (1, 1e6, -1e6):
        check_proper(log_probabilities(factor * scores, found), found)
    assert (log_probabilities(scores, found).argmax(axis=1) == labels).all()
    if n == 1000:
        assert np.exp(log_probabilities(scores, found)).max(axis=1).min() > 0.99


@pytest.mark.parametrize("k", [2, 5, pytest.param(100, marks=thorough)])
def test_few_rows(k):
    """With 30 rows, the mean log loss of 20 calibrations is at most 0.2 above that for the true probabilities."""
    scores, labels, true = planted(3000, k)
    losses = []
    for first in range(0, 600, 30):
        rows = slice(first, first + 30)
        found = fit(scores[rows], labels[rows])
        log_p = log_probabilities(scores[600:], found)
        check_proper(log_p, found)
        losses.append(log_loss(log_p, labels[600:]) - log_loss(true[600:], labels[600:]))
    assert np.mean(losses) < 0.2


def test_absent_classes():
    """Of 100 classes, those without a held-out row keep a share, which is larger where their scores are high."""
    scores, labels, _ = planted(1000, 100)
    present = labels < 60
    found = fit(scores[present], labels[present])
    new = 0.1 * np.random.default_rng(5).standard_normal((200, 100))
    new[:, 80] = np.linspace(0, 5, 200)
    log_p = log_probabilities(new, found)
    check_proper(log_p, found)
    assert log_p[-1, 80] > log_p[0, 80] + 1
    assert 0.01 < np.exp(log_p[0, 60:]).sum() < 0.3  # scores about equal: less than the 0.4 of uniform probabilities


def test_no_rows_to_calibrate_on():
    """No rows, no weight, or scores that don't differ: valid probabilities, class frequencies where there are rows."""
    scores, labels, _ = planted(40, 4)
    for rows, weight in ((scores[:0], np.ones(0)), (scores, np.zeros(40)), (np.full((40, 4), np.nan), np.ones(40))):
        found = fit(rows, labels[: len(rows)], weight)
        log_p = log_probabilities(scores, found)
        check_proper(log_p, found)
        np.testing.assert_array_equal(log_p.argmax(axis=1), scores.argmax(axis=1))
    constant = fit(np.ones((40, 4)), np.arange(40) % 2)
    p = np.exp(log_probabilities(np.ones((1, 4)), constant))[0]
    assert constant.temperature == 1.0
    assert p[:2] == pytest.approx(p[:2].mean())
    assert p[:2].min() > 0.35


def test_rows_that_are_not_finite_are_dropped():
    scores, labels, _ = planted(100)
    broken = np.concatenate([scores, [[np.inf, 0, 0], [np.nan, 0, 0]]])
    found, expected = fit(broken, np.append(labels, [1, 2])), fit(scores, labels)
    np.testing.assert_array_equal(found.matrix, expected.matrix)


def test_wrong_way_round():
    """Scores that contradict their class, such as leave-one-out scores of pure noise, get little weight.

    They are not inverted, because the final model is not systematically wrong on new rows.
    """
    scores, labels, _ = planted(4000)
    found = fit(-scores, labels)
    log_p = log_probabilities(-scores, found)
    check_proper(log_p, found)
    np.testing.assert_array_equal(found.matrix, 0.0)
    shares = np.bincount(labels) / len(labels)
    assert np.exp(log_p).max() < shares.max() + 0.2


def test_loss_to_choose_alpha_by():
    """Small for good predictions, smooth in them, infinite for broken ones."""
    scores, labels, _ = planted(500)
    targets, weight = np.eye(3)[labels] - 1 / 3, np.ones(500)
    noise = np.random.default_rng(4).standard_normal((500, 3))
    path = np.array([left_out_log_loss(targets, scores + t * noise, weight) for t in np.linspace(0, 2, 41)])
    assert path[-1] > path[0] + 0.1
    assert np.abs(np.diff(path, 2)).max() < 0.01
    assert left_out_log_loss(targets, np.full((500, 3), np.nan), weight) == np.inf
    assert left_out_log_loss(targets, scores, np.zeros(500)) == np.inf


@pytest.mark.parametrize("true", [0.01, 0.5, 20.0])
def test_temperatures_of_any_size(true):
    """From labels that are nearly certain to labels that scores hardly predict."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((100_000, 3))
    p = np.exp(log_probabilities(scores, true))
    labels = np.minimum((rng.random((100_000, 1)) > np.cumsum(p, axis=1)).sum(axis=1), 2)
    assert temperature(scores, labels, np.ones(100_000)) == pytest.approx(true, rel=0.3)
