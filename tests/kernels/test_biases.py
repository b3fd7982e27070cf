"""Biases: values of neural-tangents, compiled code and array-API code, features and finite networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse as sp
from tests.conftest import as_numpy
from tests.tiers import scaled, thorough

from ntkit import GradientFeatures, NetworkFeatures
from ntkit import networks as nn
from ntkit.kernels import KernelSpec, network_kernel
from ntkit.kernels.chain import CosineChain
from ntkit.kernels.tiles import gram

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "biases.npz")
NETWORKS = json.loads(str(GOLDEN["networks"]))


def network(name):
    return eval(NETWORKS[name], {"nn": nn})


def test_golden(to_library):
    for name in NETWORKS:
        net = network(name)
        A, B = (to_library(GOLDEN[f"{name[:2]}_{rows}"]) for rows in "AB")
        both = network_kernel(net, A, B, kind="both")
        for kind in ("ntk", "nngp"):
            K = as_numpy(network_kernel(net, A, B, kind=kind))
            np.testing.assert_allclose(K, GOLDEN[f"{name}_{kind}"], atol=1e-8 * K.max(), rtol=0, err_msg=name)
            np.testing.assert_array_equal(as_numpy(getattr(both, kind)), K, err_msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_code_is_the_walk(name):
    """Frozen layers too, which the golden values do not have; and K(x, x) on the diagonal."""
    net = eval(NETWORKS[name].replace("bias_std=0.7", "bias_std=0.7, trainable=False", 1), {"nn": nn})
    X = GOLDEN[f"{name[:2]}_A"]
    spec = KernelSpec.of(net)
    K = spec.matrix(X)
    (walked,) = gram(spec, spec.prepare(X), None)
    np.testing.assert_allclose(K, walked, rtol=1e-9)
    np.testing.assert_allclose(spec.diagonal(X), np.diag(K), rtol=1e-12)
    np.testing.assert_array_equal(K, K.T)


def test_near_rows_keep_their_digits():
    """Rows at an angle of 1e-9, with biases: 1 − Σ comes from differences, not from 1 minus a rounded cosine."""
    net = nn.Sequential(nn.Dense(bias_std=0.5), nn.ReLU(), nn.Dense(bias_std=0.5), nn.ReLU(), nn.Dense())
    x = np.array([[3.0, 4.0]])
    y = x + 1e-9 * np.array([[-4.0, 3.0]])
    near, same = network_kernel(net, x, y)[0, 0], network_kernel(net, x)[0, 0]
    # Θ falls by a multiple of the angle: κ₀ = 1 − θ/π. By mpmath with 50 digits.
    assert same - near == pytest.approx(_drop(1e-9), rel=1e-3)


def _drop(angle):
    """By how much Θ of two rows of norm 5 falls when they are turned by an angle (y is longer too, by 1e-18 only)."""
    from mpmath import acos, cos, mpf, pi, sin, workdps

    def ntk(t):
        b = mpf("0.25")
        sigma, theta, variance = 25 * t + b, 25 * t + b, 25 + b
        for bias in (b, mpf(0)):
            a = acos(min(sigma / variance, mpf(1)))
            forward = variance * (sin(a) + (pi - a) * (sigma / variance)) / pi
            theta = theta * (pi - a) / pi + forward + bias
            sigma, variance = forward + bias, variance + bias
        return theta

    with workdps(50):
        return float(ntk(mpf(1)) - ntk(cos(mpf(angle))))


def test_sparse_rows_and_single_precision(rng):
    net = nn.Sequential(nn.Dense(bias_std=0.5), nn.LeakyReLU(0.2), nn.Dense(bias_std=0.1, trainable=False))
    X = np.where(rng.random((9, 30)) < 0.3, rng.standard_normal((9, 30)), 0.0)
    K = network_kernel(net, X)
    np.testing.assert_allclose(network_kernel(net, sp.csr_array(X)), K, rtol=1e-12)
    np.testing.assert_allclose(network_kernel(net, X.astype(np.float32)), K, rtol=1e-5)
    assert isinstance(KernelSpec.of(net).specialize(X), CosineChain)


def test_zero_rows_have_the_kernel_of_the_biases():
    net = nn.Sequential(nn.Dense(bias_std=2.0), nn.ReLU(), nn.Dense())
    np.testing.assert_allclose(network_kernel(net, np.zeros((1, 3)), kind="both"), [[[4.0]], [[8.0]]])


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("fc_relu_L1", "random"),
        ("fc_residual", "sketch"),
        ("im_gap_L2", "sketch"),
        ("im_flatten_L2", "random"),
        pytest.param("fc_relu_L1", "sketch", marks=thorough),
        pytest.param("fc_residual", "random", marks=thorough),
        pytest.param("im_gap_L2", "random", marks=thorough),
        pytest.param("im_flatten_L2", "sketch", marks=thorough),
    ],
)
def test_features(name, method):
    """Their error falls with their number, for both kernels."""
    net, X, most = network(name), GOLDEN[f"{name[:2]}_A"], scaled(2048, 8192)
    for kind in ("ntk", "nngp"):
        K = network_kernel(net, X, kind=kind)
        errors = []
        for m in (128, most):
            squares = []
            for seed in range(3):
                features = NetworkFeatures(
                    net,
                    n_components=m,
                    method=method,
                    kind=kind,
                    directions="gaussian",
                    hidden_components=m,
                    random_state=seed,
                )
                Z = features.fit_transform(X)
                squares.append(np.linalg.norm(Z @ Z.T - K) ** 2 / np.linalg.norm(K) ** 2)
            errors.append(np.mean(squares) ** 0.5)
        assert errors[1] < 0.06 * (8192 / most) ** 0.5, (kind, errors)
        assert errors[1] < 0.5 * errors[0] or errors[0] < 0.02, (kind, errors)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("frozen", [None, 0, 1, 2])
def test_features_of_linear_networks_are_exact(frozen, normalize, rng):
    """Without activations there is no randomness: columns of biases have the right weight, also for frozen layers."""
    net = nn.Sequential(*(nn.Dense(weight_std=1.3, bias_std=0.5 + i, trainable=i != frozen) for i in range(3)))
    X = rng.standard_normal((5, 4))
    both = NetworkFeatures(net, n_components=64, kind="both", normalize=normalize, random_state=0).fit(X)
    Z, K = both.transform(X), network_kernel(net, X, kind="both")
    for columns, expected in ((both.nngp_columns_, K.nngp), (both.ntk_columns_, K.ntk)):
        np.testing.assert_allclose(Z[:, columns] @ Z[:, columns].T, expected, atol=1e-12 * expected.max())


@pytest.mark.parametrize("method", ["sketch", "random"])
@pytest.mark.parametrize("frozen", [None, 0, 1, 2])
def test_norms_of_features(frozen, method, rng):
    """They equal the kernels exactly: biases of a frozen layer add nothing of their own to Θ(x, x)."""
    first, second, last = (nn.Dense(bias_std=0.5 + i, trainable=i != frozen) for i in range(3))
    net = nn.Sequential(first, nn.ReLU(), second, nn.Erf(), last)
    X = rng.standard_normal((5, 4))
    for kind in ("ntk", "nngp"):
        Z = NetworkFeatures(net, n_components=64, method=method, kind=kind, random_state=0).fit_transform(X)
        np.testing.assert_allclose((Z**2).sum(axis=1), KernelSpec.of(net, kind=kind).diagonal(X), rtol=1e-10)


@pytest.mark.parametrize("name", ["fc_relu_L1", "fc_lrelu_L2", "fc_erf_L2", "fc_residual", "im_gap_L2", "im_linear"])
def test_finite_networks(name):
    """Means over draws approach the kernel; false alarms: 4 standard errors of correlated entries."""
    net, X = network(name), GOLDEN[f"{name[:2]}_A"]
    draws = []
    for seed in range(60):
        Z = GradientFeatures(net, width=64, random_state=seed).fit_transform(X)
        draws.append(Z @ Z.T)
    mean, error = np.mean(draws, axis=0), np.std(draws, axis=0) / 60**0.5
    assert (np.abs(mean - network_kernel(net, X)) <= 4 * error + 0.03 * np.abs(mean)).all()


def test_gradients_of_biases_are_right(rng):
    """The closed form of a chain equals torch, which evaluates the same network layer by layer."""
    chain = nn.Sequential(nn.Dense(bias_std=0.6), nn.ReLU(), nn.Dense(bias_std=0.3), nn.Abs(), nn.Dense(bias_std=0.2))
    X = rng.standard_normal((4, 3))
    features = GradientFeatures(chain, width=5, random_state=0).fit(X)
    Z = features.transform(X)
    assert Z.shape[1] == 5 * 4 + 5 * 6 + 6
    from ntkit.features.network import finite

    steps = finite.resolve(features._planned.layers, (3,), 5)
    np.testing.assert_allclose(finite.gradients(steps, features.weights_, X), Z, rtol=1e-10)
    h = [X]
    for layer, w in enumerate(w.astype(float) for w in features.weights_):
        bias, scale = (0.6, 0.3, 0.2)[layer], 1.0 if layer == 0 else 5**-0.5
        u = scale * h[-1] @ w[:, :-1].T + bias * w[:, -1]
        h.append((2**0.5 * np.maximum(u, 0), np.abs(u), u)[layer])
    np.testing.assert_allclose(Z[:, -1], 0.2)  # of the output with respect to its bias
    np.testing.assert_allclose(Z[:, -6:-1], 5**-0.5 * h[2], rtol=1e-12)


def test_files_of_networks_with_biases(tmp_path, rng):
    X = rng.standard_normal((5, 3))
    import ntkit

    net = nn.Sequential(nn.Dense(bias_std=0.5), nn.ReLU(), nn.Dense(bias_std=0.1))
    features = NetworkFeatures(net, n_components=32, random_state=0).fit(X)
    ntkit.save(features, tmp_path / "m")
    np.testing.assert_array_equal(ntkit.load(tmp_path / "m").transform(X), features.transform(X))


@pytest.mark.parametrize("value", [-1.0, np.nan, "a", None])
def test_bad_biases(value):
    with pytest.raises((TypeError, ValueError), match="'bias_std' parameter of Conv"):
        nn.Conv(3, bias_std=value)
