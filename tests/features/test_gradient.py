"""GradientFeatures against automatic differentiation of an explicit network, and against the NTK it tends to."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.conftest import as_numpy
from tests.reference.features import gradients
from tests.statistical import check_rms_scaling, check_unbiased, spread_rows
from tests.tiers import ALL, sampled

from ntkit import GradientFeatures
from ntkit.kernels import network_kernel, ntk
from ntkit.networks import Abs, Conv, Dense, LeakyReLU, ReLU, Residual, Sequential, fully_connected

SEED = 100_000 * int(os.environ.get("NTKIT_TEST_SEED", "0"))  # the nightly sweep
FROZEN = Dense(trainable=False)
NETS = [
    pytest.param(fully_connected(1), id="depth 1"),
    pytest.param(fully_connected(2), id="depth 2"),
    pytest.param(fully_connected(3), id="depth 3"),
    pytest.param(Sequential(Dense()), id="linear"),
    pytest.param(Sequential(FROZEN, ReLU(), Dense()), id="first frozen"),
    pytest.param(Sequential(Dense(), ReLU(), FROZEN), id="last frozen"),
    pytest.param(Sequential(Dense(), ReLU(), FROZEN, ReLU(), Dense()), id="middle frozen"),
    pytest.param(Sequential(FROZEN, ReLU(), Dense(), ReLU(), FROZEN), id="one trained"),
    pytest.param(Sequential(Dense(weight_std=0.7), ReLU(), Dense(weight_std=1.3), ReLU(), Dense(weight_std=2.0)),
                 id="weight_std"),
    pytest.param(Sequential(Dense(), LeakyReLU(0.2), Dense(), LeakyReLU(-0.5), Dense()), id="LeakyReLU"),
    pytest.param(Sequential(Dense(), Abs(), Dense(), Abs(), Dense()), id="Abs"),
    pytest.param(Sequential(Dense(), ReLU(normalize=False), Dense(), Abs(normalize=False), Dense()), id="plain"),
    pytest.param(Sequential(Sequential(Dense(), ReLU()), Sequential(Dense(), Abs(), Dense())), id="nested"),
]  # fmt: skip


def finite_differences(fitted, net, x, step=1e-6):
    """∂f/∂W one weight at a time; f is homogeneous of degree 1 in the last layer, so f = ⟨∂f/∂W_last, W_last⟩."""
    rows = []
    for number, w in enumerate(fitted.weights_):
        for index in np.ndindex(*w.shape):
            values = []
            for sign in (1, -1):
                weights = [v.astype(np.float64) for v in fitted.weights_]
                weights[number][index] += sign * step
                gradient = gradients(net, weights, x[None])[0]
                values.append(gradient[-weights[-1].size :] @ weights[-1].ravel())
            rows.append((values[0] - values[1]) / (2 * step))
    return np.array(rows)


@pytest.mark.parametrize("net", NETS)
def test_gradients_of_an_explicit_network(net, rng):
    X = rng.standard_normal((7, 5))
    X[3] *= 1e-3
    fitted = GradientFeatures(net, width=6, random_state=2).fit(X)
    Z = fitted.transform(X)
    expected = gradients(net, fitted.weights_, X)
    tolerance = 1e-13 * np.abs(expected).max(axis=1, keepdims=True)
    assert Z.shape == expected.shape
    assert (np.abs(Z - expected) <= tolerance).all()
    assert not (np.abs(1.05 * Z - expected) <= tolerance).all()
    for convert in (torch.from_numpy, sp.csr_array):
        np.testing.assert_allclose(as_numpy(fitted.transform(convert(X))), Z, rtol=1e-12, atol=1e-13)
    Z32 = fitted.transform(X.astype(np.float32))
    assert Z32.dtype == np.float32
    np.testing.assert_allclose(Z32, Z, atol=1e-5 * np.abs(Z).max())


def test_gradients_by_finite_differences(rng):
    net = fully_connected(2)
    x = rng.standard_normal(3)
    fitted = GradientFeatures(net, width=4, random_state=0).fit(x[None])
    np.testing.assert_allclose(fitted.transform(x[None])[0], finite_differences(fitted, net, x), atol=1e-7)


def test_formula_of_one_hidden_layer(rng):
    """√(2/w) a_k Step(w_k·x) x for every unit k, then √(2/w) ReLU(w_k·x)."""
    x = rng.standard_normal(4)
    fitted = GradientFeatures(width=3, random_state=0).fit(x[None])
    W, a = (w.astype(np.float64) for w in fitted.weights_)
    first = [np.sqrt(2 / 3) * a[0, k] * (W[k] @ x > 0) * x for k in range(3)]
    last = [np.sqrt(2 / 3) * max(W[k] @ x, 0) for k in range(3)]
    np.testing.assert_allclose(fitted.transform(x[None])[0], np.concatenate([*first, last]), rtol=1e-13)


def test_number_of_features():
    for depth in [1, 2, 3]:
        d, w = 7, 5
        fitted = GradientFeatures(fully_connected(depth), width=w).fit(np.ones((1, d)))
        count = d * w + (depth - 1) * w * w + w
        assert fitted.width_ == w
        assert fitted.transform(np.ones((2, d))).shape == (2, count)
        assert len(fitted.get_feature_names_out()) == count
        assert [v.shape for v in fitted.weights_] == [(w, d), *[(w, w)] * (depth - 1), (1, w)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("n_components", [30, 100, 1000])
def test_the_largest_width_that_n_components_allow(depth, n_components):
    d = 7
    fitted = GradientFeatures(fully_connected(depth), n_components=n_components).fit(np.ones((1, d)))

    def count(w):
        return d * w + (depth - 1) * w * w + w

    assert count(fitted.width_) <= n_components < count(fitted.width_ + 1)
    assert fitted.transform(np.ones((1, d))).shape[1] == count(fitted.width_)


def test_n_components_of_a_network_whose_width_does_not_matter():
    assert GradientFeatures(Sequential(Dense()), n_components=50).fit_transform(np.ones((1, 7))).shape == (1, 7)


def test_default_network():
    X = np.random.default_rng(0).standard_normal((2, 3))
    default = GradientFeatures(width=8, random_state=0).fit_transform(X)
    np.testing.assert_array_equal(
        default, GradientFeatures(fully_connected(1), width=8, random_state=0).fit_transform(X)
    )
    assert GradientFeatures().fit(X).width_ == GradientFeatures().fit_transform(X).shape[1] // 4


def test_homogeneity_zero_rows_and_extreme_norms(rng):
    X = rng.standard_normal((4, 6))
    X[1] = 0
    fitted = GradientFeatures(fully_connected(3), width=8, random_state=0).fit(X)
    Z = fitted.transform(X)
    assert not Z[1].any()
    for c in (1e-150, 3.0, 1e150):
        np.testing.assert_allclose(fitted.transform(c * X) / c, Z, rtol=1e-12, atol=1e-14)
    for c in (1e-18, 1e18):
        scaled = (c * X).astype(np.float32)
        expected = fitted.transform(scaled.astype(np.float64))
        np.testing.assert_allclose(fitted.transform(scaled), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def maps(net, width):
    return lambda seed: lambda X: GradientFeatures(net, width=width, random_state=seed).fit_transform(X)


ONE_HIDDEN = {
    "relu": fully_connected(1),
    "leaky": Sequential(Dense(weight_std=0.8), LeakyReLU(0.3), Dense(weight_std=1.2)),
    "abs": Sequential(Dense(), Abs(), FROZEN),
}


@pytest.mark.parametrize(
    ("name", "width"), sampled([("abs", 1), ("abs", 32), ("relu", 1), ("relu", 32), ("leaky", 1), ("leaky", 32)], 2)
)
def test_unbiased_at_any_width_for_one_hidden_layer(name, width):
    """E Z(x)·Z(y) is the NTK even for width 1: the units are independent, E a_k² = 1. False alarms: 1e-6."""
    net, X = ONE_HIDDEN[name], spread_rows(6)
    K = network_kernel(net, X, kind="ntk")
    n_seeds = 1000 if width == 32 else 2500
    known = [maps(net, width)(SEED + seed)(X) for seed in range(n_seeds)]

    def check(factor):
        check_unbiased(lambda seed: lambda _: factor * known[seed - SEED], X, K, n_seeds=n_seeds, seed=SEED)

    check(1.0)
    for factor in (0.0, 2**-0.5) if width == 1 else (0.0, 2**-0.5, 1.07):
        with pytest.raises(AssertionError):
            check(factor)


@pytest.mark.parametrize("depth", [2, *[1] * ALL])  # test_laws has depth 1
def test_convergence_with_the_width(depth):
    """Four times the width halve the error. Ratios of ten other seeds had a standard deviation of at most 0.03."""
    net = fully_connected(depth)
    X = spread_rows(6)
    check_rms_scaling(
        lambda width, seed: maps(net, width)(seed), X, ntk(X, depth=depth), n_components=32, n_seeds=300, seed=SEED,
        low=0.35, high=0.65,
    )  # fmt: skip


def test_estimate_error(rng):
    X = rng.standard_normal((30, 6))
    net = Sequential(Dense(), Abs(), Dense(weight_std=1.5))
    fitted = GradientFeatures(net, width=64, random_state=0).fit(X)
    Z, K = fitted.transform(X), network_kernel(net, X, kind="ntk")
    assert fitted.estimate_error(X) == pytest.approx(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


@pytest.mark.parametrize("net", [FROZEN, Sequential(), Sequential(FROZEN, ReLU(), FROZEN), Residual(FROZEN, FROZEN)])
def test_networks_without_anything_to_train(net):
    with pytest.raises(ValueError, match=r"'net' parameter of GradientFeatures must be a network with at least one tr"):
        GradientFeatures(net).fit(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("net", "error"),
    [
        (Sequential(Conv(3), ReLU(), Dense()), r"Layer 0, Conv\(3\), cannot take vectors: it takes images. Give X as"),
        (Sequential(ReLU(), Dense()), r"Layer 0, ReLU\(\), cannot take vectors: its input is not Gaussian"),
        (Sequential(Dense(), ReLU(), ReLU(), Dense()), r"Layer 2, ReLU\(\), cannot take vectors: its input is not"),
        (Residual(Sequential(), Sequential()), "more than one branch ends without weights of its own"),
    ],
)
def test_networks_without_a_kernel(net, error):
    with pytest.raises(ValueError, match=error):
        GradientFeatures(net).fit(np.ones((2, 3)))


def test_width_and_n_components_exclude_each_other():
    with pytest.raises(ValueError, match=r"'width' and 'n_components' .* are mutually exclusive. Got 8 and 64"):
        GradientFeatures(width=8, n_components=64).fit(np.ones((2, 3)))


def test_fewer_components_than_the_smallest_network_has_are_a_scaled_choice_of_them(rng):
    X = rng.standard_normal((5, 3))
    whole = GradientFeatures(n_components=4, random_state=0).fit(X)
    assert whole.width_ == 1
    gradients = whole.transform(X)
    some = GradientFeatures(n_components=3, random_state=0).fit_transform(X) / np.sqrt(4 / 3)
    matches = (np.abs(some[:, :, None] - gradients[:, None, :]).max(axis=0) < 1e-12).sum(axis=1)
    np.testing.assert_array_equal(matches, [1, 1, 1])


def test_changing_a_network_after_the_fit_does_not_affect_the_map(rng):
    X = rng.standard_normal((4, 3))
    fitted = GradientFeatures(fully_connected(2), width=4, random_state=0).fit(X)
    Z = fitted.transform(X)
    fitted.set_params(net=Sequential(Dense(), Abs(), Dense(), Abs(), Dense()))
    np.testing.assert_array_equal(fitted.transform(X), Z)


def test_suggested_sizes_reach_the_target(rng):
    """The smallest network has more weights than the 32 components with which the search begins."""
    X = rng.standard_normal((60, 40))
    m = GradientFeatures().suggest_n_components(X, 0.3)
    errors = [GradientFeatures(n_components=m, random_state=s).fit(X).estimate_error(X) for s in range(8)]
    assert np.sqrt(np.mean(np.square(errors))) < 1.2 * 0.3


def test_sizes_are_suggested_for_a_map_of_given_width(rng):
    X = rng.standard_normal((60, 10))
    fitted = GradientFeatures(width=4, random_state=0).fit(X)
    m = fitted.suggest_n_components(X, 0.3)
    assert m == GradientFeatures().suggest_n_components(X, 0.3)
    assert fitted.width == fitted.width_ == 4
