"""Statistics of NetworkFeatures and CNTKSketch: bias, rates, errors on networks of all kinds.

The level of a check is the probability of a false alarm: 1e-6 unless stated otherwise.
"""

from __future__ import annotations

import os
from itertools import product

import numpy as np
import pytest
from tests.reference.cntk_sketch import series_kernel
from tests.statistical import judge_mean
from tests.tiers import sampled, scaled
from threadpoolctl import threadpool_limits

from ntkit import CNTKSketch, NetworkFeatures, NTKRandomFeatures, NTKSketch
from ntkit import networks as nn
from ntkit.kernels import cntk, network_kernel

SEED = 100_000 * int(os.environ.get("NTKIT_TEST_SEED", "0"))  # the nightly sweep
S, GAP, FLAT, ID = nn.Sequential, nn.GlobalAvgPool(), nn.Flatten(), nn.Sequential()
TWO = S(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.ReLU(), GAP, nn.Dense())
METHODS = ["sketch", "random"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


def images(n=4, height=5, width=4, channels=2):
    """Images of different sizes; the second is similar to the first."""
    X = np.random.default_rng(0).standard_normal((n, height, width, channels))
    X[1] = 0.8 * X[0] + 0.5 * X[1]
    return X * np.geomspace(1, 2, n)[:, None, None, None]


def relative(Z, K):
    return float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


def mean_error(make, X, K, n_seeds):
    return float(np.mean([relative(make(SEED + seed).fit_transform(X), K) for seed in range(n_seeds)]))


# Bias: one hidden layer, no normalization.

BIAS = {
    "fully connected": nn.fully_connected(1),
    "gap": S(nn.Conv(3), nn.ReLU(), GAP, nn.Dense()),
    "flatten": S(nn.Conv(3), nn.ReLU(), FLAT, nn.Dense()),
    "even filters": S(nn.Conv(2), nn.ReLU(), nn.Conv(4), FLAT),
    "strides": S(nn.Conv(3, stride=2), nn.ReLU(), nn.Conv(2, stride=(1, 2)), GAP),
    "pooled": S(nn.AvgPool((2, 1)), nn.Conv(2), nn.ReLU(), nn.AvgPool((1, 2)), FLAT, nn.Dense()),
    "frozen ends": S(nn.Conv(3, trainable=False), nn.Conv(1, weight_std=1.4), nn.ReLU(normalize=False), GAP,
                     nn.Dense(trainable=False, weight_std=0.7)),
    "weights": S(nn.Conv(3, weight_std=0.6), nn.Conv(2), nn.ReLU(), nn.Conv(2, weight_std=2.0), GAP, nn.Dense()),
    "residual": S(nn.Conv(3), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3))), GAP, nn.Dense()),
    "branches": S(nn.Conv(3), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3)), S(nn.Abs(), nn.Conv(1, trainable=False))), GAP),
    "leaky": S(nn.Conv(3), nn.LeakyReLU(0.3, normalize=False), FLAT, nn.Dense()),
    "abs": S(nn.Conv(3), nn.Abs(), GAP, nn.Dense()),
    "erf": S(nn.Conv(3), nn.Erf(), FLAT, nn.Dense()),
    "gelu": S(nn.Conv(3), nn.GELU(normalize=False), GAP, nn.Dense()),
    "sin": S(nn.Conv(3), nn.Sin(), GAP, nn.Dense()),
    "gaussian": S(nn.Conv(3), nn.Normalize(), nn.Gaussian(), FLAT, nn.Dense()),
}  # fmt: skip
SKETCHED = ["fully connected", "gap", "flatten", "pooled", "weights", "branches", "erf"]


def grams_of_both(net, X, n_seeds, **parameters):
    """Estimates of the NNGP kernel and the NTK, (2, n_seeds, n, n)."""
    estimates = []
    for seed in range(SEED, SEED + n_seeds):
        features = NetworkFeatures(net, kind="both", normalize=False, random_state=seed, **parameters)
        Z = features.fit_transform(X)
        parts = Z[:, features.nngp_columns_], Z[:, features.ntk_columns_]
        estimates.append([part @ part.T for part in parts])
    return np.swapaxes(estimates, 0, 1)


def judge(estimates, exact):
    """Unbiased at level 1e-6 for each kernel; features 5 % too long or short are rejected."""
    for grams, K in zip(estimates, exact, strict=True):
        judge_mean(grams, K)
        for wrong in (1.05, 0.95):
            with pytest.raises(AssertionError):
                judge_mean(wrong**2 * grams, K)


def bias_images(name):
    X = images(n=3, height=4, width=4)
    return X.reshape(3, -1) if name == "fully connected" else X


@pytest.mark.parametrize("name", sampled(list(BIAS), 6))
def test_random_features_of_one_layer_are_unbiased(name):
    net, X = BIAS[name], bias_images(name)
    exact = network_kernel(net, X, kind="both")
    n_seeds = scaled(120, 400)
    judge(
        grams_of_both(net, X, n_seeds, n_components=256, method="random", directions="gaussian"),
        (exact.nngp, exact.ntk),
    )


@pytest.mark.parametrize("name", sampled(SKETCHED, 3))
def test_sketches_of_one_layer_are_unbiased(name):
    """For the kernel with polynomials of degrees 3 in place of the dual activations."""
    net, X = BIAS[name], bias_images(name)
    estimates = grams_of_both(net, X, scaled(120, 250), n_components=256, degree=3, derivative_degree=3)
    judge(estimates, series_kernel(net, X, 3, 3))


@pytest.mark.parametrize(
    ("n_features", "activation"), sampled(list(product([1, 2, 4], [nn.ReLU(), nn.Erf(), nn.GELU(), nn.Gaussian()])), 4)
)
def test_directions_of_few_features(n_features, activation):
    """Few dimensions, where directions of equal length, or of a few kinds only, would be far from Gaussian.

    The mean over 16 seeds of 8192 units errs by less than 3.5 % of √(K_ii K_jj). A unit's σ(u)² has a deviation
    below 2.3 times its mean, so the error's is below 0.65 % (less for orthogonal rows): 5.4 of these, 1e-7 per entry.
    """
    for directions in ["orthogonal", "hadamard", "leverage"]:
        X = np.random.default_rng(n_features).standard_normal((5, n_features))
        X *= np.linspace(0.5, 2, 5)[:, None] / np.linalg.norm(X, axis=1, keepdims=True)
        net = S(nn.Dense(), activation, nn.Dense())
        exact = network_kernel(net, X, kind="nngp")
        parameters = {"n_components": 8192, "method": "random", "kind": "nngp", "normalize": False}
        mean = 0.0
        for seed in range(SEED, SEED + 16):
            Z = NetworkFeatures(net, directions=directions, random_state=seed, **parameters).fit_transform(X)
            mean = mean + Z @ Z.T / 16
        scale = np.sqrt(np.diag(exact))
        assert np.abs((mean - exact) / np.outer(scale, scale)).max() < 0.035


# Error.

DEEP = {
    "cntk": nn.cntk(3),
    "flatten": S(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.ReLU(), FLAT, nn.Dense()),
    "residual": S(nn.Conv(3), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3))), nn.ReLU(), nn.Conv(2), FLAT),
}


@pytest.mark.parametrize(("name", "method"), sampled(list(product(DEEP, METHODS)), 2))
def test_errors_fall_with_the_root_of_the_size(name, method):
    """16 times the components, hidden ones too, take the mean error over 8 seeds to a quarter: to 0.15 … 0.4 of it."""
    X = np.random.default_rng(0).standard_normal((6, 6, 5, 3))
    K = network_kernel(DEEP[name], X)
    errors = []
    for m in (256, 4096):
        sizes = {"n_components": m, "hidden_components": m // 4, "degree": 12, "derivative_degree": 13}
        errors.append(
            mean_error(lambda s, p=sizes: NetworkFeatures(DEEP[name], method=method, random_state=s, **p), X, K, 8)
        )
    assert 0.15 < errors[1] / errors[0] < 0.4
    assert errors[1] < 0.1


@pytest.mark.parametrize(("depth", "kernel_size", "method"), sampled(list(product([2, 5], [2, 3], METHODS)), 3))
def test_cntk_sketch_is_close_to_the_kernel(depth, kernel_size, method):
    """Mean error of 3 seeds; measured: 3 to 9 % for the NTK, with a deviation of 7 % of each, 1 to 3 % for the NNGP."""
    X = images(n=5, height=6, width=5, channels=3)
    sizes = {"n_components": 2048, "hidden_components": 1024, "method": method}
    net = nn.cntk(depth, kernel_size)
    for kind, K, bound in (
        ("ntk", cntk(X, depth=depth, kernel_size=kernel_size), 0.2),
        ("nngp", network_kernel(net, X, kind="nngp"), 0.06),
    ):
        make = lambda s: CNTKSketch(depth=depth, kernel_size=kernel_size, kind=kind, random_state=s, **sizes)  # noqa: B023, E731
        assert mean_error(make, X, K, 3) < bound


SMALL_ERROR = {
    "myrtle": nn.myrtle(5),
    "even": S(nn.Conv(4), nn.ReLU(), nn.Conv(2), nn.ReLU(), GAP),
    "head": S(nn.Conv(3), nn.ReLU(), GAP, nn.Dense(), nn.ReLU(), nn.Dense()),
    "gelu": S(nn.Conv(3), nn.GELU(), nn.AvgPool(2), nn.Conv(3), nn.GELU(), GAP, nn.Dense()),
    "gaussian": S(nn.Conv(3), nn.Normalize(), nn.Gaussian(), nn.Conv(3), nn.Normalize(), nn.Gaussian(), GAP),
    "wide": S(nn.Conv(3), nn.Residual(ID, *[S(nn.ReLU(), nn.Conv(q)) for q in (1, 2, 3, 4, 5)]), nn.ReLU(), GAP),
    "in a row": S(nn.Conv(3), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3))), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3))),
                  nn.ReLU(), FLAT, nn.Dense()),
}  # fmt: skip


@pytest.mark.parametrize(("name", "method"), sampled(list(product(SMALL_ERROR, METHODS)), 6))
def test_errors_of_networks(name, method):
    """Mean error of 2 seeds; measured: 1 to 9 % for the NTK, 0.5 to 5 % for the NNGP kernel."""
    X = images(n=5, height=8, width=6, channels=3)
    for kind, bound in (("ntk", 0.13), ("nngp", 0.08)):
        K = network_kernel(SMALL_ERROR[name], X, kind=kind)
        parameters = {"n_components": 2048, "method": method, "kind": kind}
        assert mean_error(lambda s: NetworkFeatures(SMALL_ERROR[name], random_state=s, **parameters), X, K, 2) < bound  # noqa: B023


@pytest.mark.parametrize(
    ("shape", "method"), sampled(list(product([(1, 1, 1), (1, 1, 5), (1, 7, 1), (6, 1, 2)], METHODS)), 4)
)
def test_errors_of_small_images(shape, method):
    X = images(5, *shape)
    for net in (TWO, nn.cntk(2, 2), S(nn.Conv(2), nn.ReLU(), FLAT, nn.Dense())):
        K = network_kernel(net, X)
        make = lambda s: NetworkFeatures(net, n_components=2048, method=method, random_state=s)  # noqa: B023, E731
        assert mean_error(make, X, K, 3) < 0.1
        one = NetworkFeatures(net, n_components=2048, method=method, random_state=0).fit_transform(X[:1])
        assert one.shape[0] == 1
        assert relative(one, K[:1, :1]) < 0.1


@pytest.mark.parametrize("method", METHODS)
def test_constant_images(method):
    X = np.ones((4, 6, 6, 1)) * np.array([1.0, 3.0, -0.5, 0.2])[:, None, None, None]
    K = network_kernel(TWO, X)
    assert mean_error(lambda s: NetworkFeatures(TWO, n_components=2048, method=method, random_state=s), X, K, 3) < 0.1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_fully_connected_networks_are_as_good_as_the_maps_for_them(depth):
    """Mean errors of 8 seeds at equal sizes within a factor 1.25 of NTKSketch's and NTKRandomFeatures'."""
    X = np.random.default_rng(0).standard_normal((30, 40))
    net = nn.fully_connected(depth)
    K = network_kernel(net, X)
    for method, law in (("sketch", NTKSketch), ("random", NTKRandomFeatures)):
        ours = mean_error(lambda s: NetworkFeatures(net, n_components=512, method=method, random_state=s), X, K, 8)  # noqa: B023
        named = mean_error(lambda s: law(depth=depth, n_components=512, random_state=s), X, K, 8)  # noqa: B023
        assert 0.8 < ours / named < 1.25


@pytest.mark.parametrize(("name", "method"), sampled(list(product(["cntk", "flatten", "residual"], METHODS)), 3))
def test_columns_of_both_kernels(name, method):
    """Joint features are about as good as separate ones: mean errors of 4 seeds agree within a factor of 2.5."""
    X = images(n=5, height=6, width=6)
    parameters = {"n_components": 512, "hidden_components": 256, "method": method}
    for kind, columns in (("ntk", "ntk_columns_"), ("nngp", "nngp_columns_")):
        K = network_kernel(DEEP[name], X, kind=kind)
        alone = mean_error(lambda s: NetworkFeatures(DEEP[name], kind=kind, random_state=s, **parameters), X, K, 4)  # noqa: B023
        errors = []
        for seed in range(SEED, SEED + 4):
            both = NetworkFeatures(DEEP[name], kind="both", random_state=seed, **parameters).fit(X)
            Z = both.transform(X)
            assert Z.shape[1] <= 2 * 512
            errors.append(relative(Z[:, getattr(both, columns)], K))
        assert np.mean(errors) < 2.5 * alone + 0.005
    single = NetworkFeatures(DEEP[name], kind="nngp", **parameters).fit(X)
    assert single.transform(X)[:, single.ntk_columns_].shape[1] == 0
    single = NetworkFeatures(DEEP[name], kind="ntk", random_state=SEED, **parameters).fit(X)
    Z = single.transform(X)
    assert Z[:, single.ntk_columns_].shape[1] == 512
    if name == "cntk":  # its last layer is not trained
        assert Z[:, single.nngp_columns_].shape[1] == 0
    else:  # at least a fifth of the columns; K and `alone` are for the NNGP kernel
        assert Z[:, single.nngp_columns_].shape[1] > 100
        assert relative(Z[:, single.nngp_columns_], K) < 4 * alone + 0.005 < 0.6


@pytest.mark.parametrize("split", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("method", METHODS)
def test_any_split_gives_both_parts_their_share(split, method):
    """However the columns are shared, neither part of the NTK gets so few that the error exceeds 25 %."""
    X = images(n=5, height=4, width=4)
    net = S(nn.Conv(3), nn.ReLU(), FLAT, nn.Dense())
    K = network_kernel(net, X)
    make = lambda s: NetworkFeatures(net, n_components=600, split=split, method=method, random_state=s)  # noqa: E731
    assert make(0).fit_transform(X).shape[1] == 600
    assert mean_error(make, X, K, 6) < 0.25
