from __future__ import annotations

import math

import array_api_strict
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.conftest import as_numpy, peak_memory
from tests.reference import kernels as reference
from tests.reference.finite import FiniteNetwork
from tests.tiers import gpu, sampled

from ntkit import networks as nn
from ntkit.kernels import cntk, diagonal, gaussian, network_kernel, nngp, ntk

IDENTITY = nn.Sequential()
CHAINS = {
    "gap": nn.Sequential(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense()),
    "flatten": nn.Sequential(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.Abs(), nn.Flatten(), nn.Dense()),
    "even": nn.Sequential(nn.Conv(2), nn.ReLU(), nn.Conv(4), nn.ReLU(), nn.GlobalAvgPool()),
    "valid": nn.Sequential(
        nn.Conv(2, padding="valid"), nn.ReLU(), nn.Conv((3, 2), padding="valid"), nn.ReLU(), nn.GlobalAvgPool()
    ),
    "frozen": nn.Sequential(
        nn.Conv((1, 3), trainable=False, weight_std=1.3),
        nn.LeakyReLU(0.3, normalize=False),
        nn.Conv((5, 1), trainable=False),
        nn.Conv(1, weight_std=0.7),
        nn.GlobalAvgPool(),
        nn.Dense(trainable=False),
    ),
    "pooled": nn.Sequential(
        nn.Conv(3),
        nn.ReLU(),
        nn.AvgPool(2),
        nn.Conv(3),
        nn.ReLU(),
        nn.Conv(2),
        nn.ReLU(),
        nn.GlobalAvgPool(),
        nn.Dense(),
    ),
    "pooled_flat": nn.Sequential(
        nn.Conv(3), nn.ReLU(), nn.AvgPool((2, 1)), nn.Conv(3), nn.LeakyReLU(0.2), nn.AvgPool((1, 2)), nn.Flatten()
    ),
    "conv_at_end": nn.Sequential(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.AvgPool(2), nn.Conv(3), nn.GlobalAvgPool()),
    "head": nn.Sequential(
        nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense(), nn.ReLU(), nn.Dense(weight_std=2.0), nn.Abs(), nn.Dense()
    ),
    "pool_first": nn.Sequential(nn.AvgPool(2), nn.Conv(3), nn.ReLU(), nn.Flatten()),
    "normalized_head": nn.Sequential(
        nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Normalize(), nn.Dense(weight_std=1.3), nn.Gaussian(), nn.Dense()
    ),
}
OTHERS = {
    "strided": nn.Sequential(
        nn.Conv(3, stride=2), nn.ReLU(), nn.Conv(2, stride=(1, 2), padding="valid"), nn.ReLU(), nn.GlobalAvgPool()
    ),
    "residual": nn.Sequential(
        nn.Conv(3),
        nn.Residual(IDENTITY, nn.Sequential(nn.ReLU(), nn.Conv(3)), nn.Sequential(nn.Abs(), nn.Conv(1))),
        nn.ReLU(),
        nn.GlobalAvgPool(),
        nn.Dense(),
    ),
    "residual_pooled": nn.Sequential(
        nn.Conv(3), nn.Residual(nn.AvgPool(2), nn.Sequential(nn.ReLU(), nn.Conv(2), nn.AvgPool(2))), nn.Flatten()
    ),
    "residual_end": nn.Sequential(
        nn.Conv(2), nn.Residual(IDENTITY, nn.Sequential(nn.LeakyReLU(0.3, normalize=False), nn.Conv(3))), nn.Flatten()
    ),
    "residual_flat": nn.Sequential(
        nn.Conv(3), nn.Residual(IDENTITY, nn.Sequential(nn.ReLU(), nn.Conv(3))), nn.ReLU(), nn.Flatten()
    ),
    "overlapping": nn.Sequential(
        nn.Conv(3), nn.ReLU(), nn.AvgPool(2, stride=1), nn.Conv(3), nn.ReLU(), nn.AvgPool(2, stride=3), nn.Flatten()
    ),
    "gaussian": nn.Sequential(
        nn.Conv(3),
        nn.Gaussian(),
        nn.AvgPool(2),
        nn.Conv(2),
        nn.Normalize(),
        nn.Gaussian(),
        nn.GlobalAvgPool(),
        nn.Dense(),
    ),
    "normalized": nn.Sequential(
        nn.Normalize(),
        nn.Conv(3),
        nn.ReLU(),
        nn.Normalize(),
        nn.Conv(2),
        nn.AvgPool(2),
        nn.Normalize(),
        nn.Abs(),
        nn.GlobalAvgPool(),
        nn.Dense(),
    ),
    "normalized_flat": nn.Sequential(nn.Conv(2), nn.Normalize(), nn.ReLU(), nn.Flatten(), nn.Normalize(), nn.Dense()),
    "normalized_branch": nn.Sequential(
        nn.Conv(3),
        nn.Residual(IDENTITY, nn.Sequential(nn.ReLU(), nn.Conv(3), nn.Normalize())),
        nn.Gaussian(),
        nn.Flatten(),
        nn.Dense(),
    ),
}
IMAGE_NETS = CHAINS | OTHERS


def images(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6), st.booleans())
def test_ntk_is_definition_1(n, m, d, depth, seed, special):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    if special:
        X[0], Y[0], Y[-1] = 0, -3 * X[-1], 1e-3 * X[-1]
    expected = [[reference.definition_1(x, y, depth) for y in Y] for x in X]
    # The reference takes arccos of a rounded cosine: good to √eps for collinear rows.
    np.testing.assert_allclose(ntk(X, Y, depth=depth), expected, atol=1e-7 * (np.abs(X).max() + 1) ** 2 * d, rtol=1e-7)


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 3, 5]),
    st.integers(0, 10**6),
)
def test_cntk_is_definition_2(h, w, c, depth, q, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((2, h, w, c)), rng.standard_normal((1, h, w, c))
    Y[0, 0, 0] = 0
    expected = [[reference.definition_2(x, y, depth, q) for y in Y] for x in X]
    np.testing.assert_allclose(cntk(X, Y, depth=depth, kernel_size=q), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", IMAGE_NETS)
def test_image_networks_match_the_loops(name):
    net = IMAGE_NETS[name]
    for shape in sampled([(5, 4, 2), (4, 7, 1)], 1):
        X, Y = images(1, 3, *shape), images(2, 2, *shape)
        Y[0] = 2 * X[0]
        Y[1, :2] = 0
        expected = np.array([[reference.network(net, x, y) for y in Y] for x in X])
        result = network_kernel(net, X, Y, kind="both")
        message = f"images {shape}"
        np.testing.assert_allclose(result.nngp, expected[..., 0], rtol=1e-10, atol=1e-12, err_msg=message)
        # √eps where Y = 2X
        np.testing.assert_allclose(result.ntk, expected[..., 1], rtol=1e-7, atol=1e-12, err_msg=message)
        for kind in ("nngp", "ntk"):
            check_symmetric(net, X, kind, getattr(result, kind), Y)


def check_symmetric(net, X, kind, K, Y):
    """A single kind equals the same kind of both; X with itself is symmetric, with the diagonal of X and a copy."""
    np.testing.assert_allclose(network_kernel(net, X, Y, kind=kind), K, rtol=1e-12, atol=1e-15, err_msg=kind)
    square = network_kernel(net, X, kind=kind)
    assert (square == square.T).all(), kind
    scale = np.sqrt(np.abs(np.diagonal(square))).max() ** 2
    copied = network_kernel(net, X, X.copy(), kind=kind)
    # κ₀ turns a rounding of a cosine near 1 into √eps.
    np.testing.assert_allclose(
        copied, square, rtol=1e-12, atol=(1e-7 if kind == "ntk" else 1e-13) * scale, err_msg=kind
    )
    np.testing.assert_allclose(diagonal(net, X, kind=kind), np.diagonal(square), rtol=1e-12, err_msg=kind)


def check_arrays(net, X, Y, to_library):
    """Array-API code gives the same result as the NumPy code."""
    expected = network_kernel(net, X, Y, kind="both")
    result = network_kernel(net, to_library(X), to_library(Y), kind="both")
    for K, other in zip(result, expected, strict=True):
        assert type(K) is type(to_library(X))
        np.testing.assert_allclose(as_numpy(K), other, rtol=1e-11, atol=1e-14, err_msg=repr(net))
    for kind, other in zip(("nngp", "ntk"), network_kernel(net, X, kind="both"), strict=True):
        values = as_numpy(diagonal(net, to_library(X), kind=kind))
        np.testing.assert_allclose(values, np.diagonal(other), rtol=1e-11, atol=1e-14, err_msg=repr(net))


@pytest.mark.parametrize("library", ["strict", "torch"])
def test_array_code_matches_on_every_library(library, monkeypatch):
    to_library = array_api_strict.asarray
    if library == "torch":
        # Tensors in host memory are computed by NumPy; without a view of them torch does it, as on a GPU.
        monkeypatch.setattr("ntkit._array.host_view", lambda x: x if isinstance(x, np.ndarray) else None)
        to_library = torch.from_numpy
    X, Y = images(3, 3, 4, 5, 2), images(4, 2, 4, 5, 2)
    for net in IMAGE_NETS.values():
        check_arrays(net, X, Y, to_library)
    for net in VECTOR_NETS.values():
        check_arrays(net, X[:, 0, :, 0], Y[:, 0, :, 0], to_library)


@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from(["same", "valid"]),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_compiled_pairs_match_the_walk_on_any_shape(h, w, c, q_h, q_w, padding, pool, flat, seed):
    if padding == "valid":
        q_h, q_w = min(q_h, h), min(q_w, w)
    left = (h - q_h + 1, w - q_w + 1) if padding == "valid" else (h, w)
    end = nn.Flatten() if flat else nn.GlobalAvgPool()
    net = nn.Sequential(
        nn.Conv((q_h, q_w), padding=padding),
        nn.ReLU(),
        nn.AvgPool(min(pool, *left)),
        nn.Conv((q_w, q_h)),
        nn.ReLU(),
        end,
        nn.Dense(),
    )
    X, Y = images(seed, 2, h, w, c), images(seed + 1, 1, h, w, c)
    fast = network_kernel(net, X, Y, kind="both")
    slow = network_kernel(net, array_api_strict.asarray(X), array_api_strict.asarray(Y), kind="both")
    scale = float(np.abs(X).max() * np.abs(Y).max()) * c
    np.testing.assert_allclose(fast.nngp, as_numpy(slow.nngp), rtol=1e-12, atol=1e-15 * scale)
    # Pixels of one channel are collinear: there κ₀ turns a rounding of t into √eps.
    np.testing.assert_allclose(fast.ntk, as_numpy(slow.ntk), rtol=1e-12, atol=2e-8 * scale)


def test_chains_hold_no_pairs_of_pixels():
    """Compiled code holds at most pairs of pooled pixels; array code holds 15 arrays of all pairs of pixels."""
    X = images(18, 1, 20, 20, 1)
    all_pairs = 8 * 20**4
    for name, net in CHAINS.items():
        assert peak_memory(lambda net=net: network_kernel(net, X)) < 2 * all_pairs, name


VECTOR_NETS = {
    "relu": nn.fully_connected(3),
    "frozen": nn.Sequential(nn.Dense(trainable=False), nn.ReLU(), nn.Dense(weight_std=1.7), nn.Dense(), nn.Abs()),
    "leaky": nn.Sequential(nn.Dense(), nn.LeakyReLU(0.4, normalize=False), nn.Dense(), nn.LeakyReLU(-0.2), nn.Dense()),
    "linear": nn.Sequential(nn.Dense(), nn.Dense()),
    "residual": nn.Sequential(
        nn.Dense(), nn.Residual(IDENTITY, nn.Sequential(nn.ReLU(), nn.Dense())), nn.ReLU(), nn.Dense()
    ),
    "residual_end": nn.Sequential(
        nn.Dense(weight_std=1.3, trainable=False),
        nn.Residual(
            nn.Dense(), nn.Sequential(nn.Abs(normalize=False), nn.Dense()), nn.Sequential(nn.ReLU(), nn.Dense())
        ),
    ),
    "gaussian": nn.Sequential(nn.Dense(weight_std=0.7), nn.Gaussian(), nn.Dense(), nn.Gaussian(), nn.Dense()),
    "normalized": nn.Sequential(
        nn.Normalize(), nn.Dense(), nn.ReLU(), nn.Normalize(), nn.Dense(), nn.Normalize(), nn.LeakyReLU(0.2), nn.Dense()
    ),
    "normalized_end": nn.Sequential(nn.Dense(), nn.Gaussian(), nn.Dense(trainable=False), nn.Normalize()),
}


@pytest.mark.parametrize("name", VECTOR_NETS)
def test_vector_networks_match_the_loops(name):
    net = VECTOR_NETS[name]
    X, Y = images(5, 4, 6), images(6, 3, 6)
    Y[0], Y[1] = -X[0], 0
    expected = np.array([[reference.network(net, x, y) for y in Y] for x in X])
    result = network_kernel(net, X, Y, kind="both")
    np.testing.assert_allclose(result.nngp, expected[..., 0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.ntk, expected[..., 1], rtol=1e-12, atol=1e-7)
    for kind in ("nngp", "ntk"):
        check_symmetric(net, X, kind, getattr(result, kind), Y)


FINITE = {
    **{name: CHAINS[name] for name in ("gap", "flatten", "frozen", "pooled", "head")},
    "even": nn.Sequential(*CHAINS["even"].layers, nn.Dense()),
    "strided": nn.Sequential(*OTHERS["strided"].layers, nn.Dense()),
    "residual": OTHERS["residual"],
    "erf": nn.Sequential(nn.Conv(3), nn.Erf(), nn.Flatten(), nn.Dense(weight_std=1.5), nn.GELU(), nn.Dense()),
    "sin": nn.Sequential(nn.Conv(2, weight_std=1.5), nn.Sin(normalize=False), nn.GlobalAvgPool(), nn.Dense()),
    "gaussian": nn.Sequential(
        nn.Conv(2), nn.Gaussian(), nn.AvgPool(2), nn.Conv(2), nn.Gaussian(), nn.Flatten(), nn.Dense()
    ),
    "normalized": nn.Sequential(
        nn.Normalize(), nn.Conv(3), nn.Normalize(), nn.ReLU(), nn.GlobalAvgPool(), nn.Normalize(), nn.Dense()
    ),
}


def is_limit_of(K: torch.Tensor, draws: list[torch.Tensor]) -> bool:
    """Assert that `K` is within 6 standard errors plus 2 % of its scale (bias of order 1/width) of the mean.

    Six standard errors of 120 draws: a false alarm has probability below 1e-6 per entry.
    """
    values = torch.stack(draws)
    error = values.std(0) / len(draws) ** 0.5
    diagonal = values.mean(0).diagonal()
    scale = torch.sqrt(torch.outer(diagonal, diagonal))
    assert (error < 0.03 * scale).all(), "too few draws to tell"
    return bool(((values.mean(0) - K).abs() < 6 * error + 0.02 * scale).all())


@pytest.mark.parametrize("name", sampled(list(FINITE)[::-1], 2))
def test_wide_finite_networks_approach_the_kernels(name):
    """Scaling, `trainable` and `weight_std` agree with networks of width 256."""
    net = FINITE[name]
    X = torch.from_numpy(images(7, 2, 5, 4, 2))
    X[1] += X[0]  # correlated, so that entries off the diagonal count
    exact = network_kernel(net, X, kind="both")
    networks = [FiniteNetwork(net, 256, seed) for seed in range(120)]
    outputs = [finite(X).detach() for finite in networks]
    for K, draws in (
        (exact.nngp, [out @ out.T / out.shape[1] for out in outputs]),
        (exact.ntk, [finite.ntk(X) for finite in networks]),
    ):
        assert is_limit_of(K, draws)
        for fault in (0 * K, 0.8 * K, 1.25 * K, torch.diag(K.diagonal())):
            assert not is_limit_of(fault, draws)
    assert not is_limit_of(exact.ntk + exact.nngp, draws)  # a frozen layer trained, or one trained twice


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_collinear_rows_are_exact_at_any_depth(dtype, to_library):
    rng = np.random.default_rng(8)
    X = rng.standard_normal((20, 50)).astype(dtype)
    factors = np.array([1, 2, 1 / 3, 1e-3, 7, -1, -2, -1 / 3, 1e3, -1e-5] * 2, dtype=dtype)
    Y = X * factors[:, None]
    norms = np.linalg.norm(X.astype(float), axis=1) * np.linalg.norm(Y.astype(float), axis=1)
    for depth in (1, 3, 32):
        K = np.diagonal(as_numpy(ntk(to_library(X), to_library(Y), depth=depth)))
        at_minus_one = reference.definition_1(np.array([1.0]), np.array([-1.0]), depth)
        expected = norms * np.where(factors > 0, depth + 1, at_minus_one)
        # Rounding of the data itself moves angles by about eps: hence 4 eps per layer, not √eps.
        assert (np.abs(K - expected) <= 4 * depth * np.finfo(dtype).eps * norms * (depth + 1)).all(), depth


def test_small_angles_keep_their_digits():
    X = np.array([[1.0, 0.0]])
    for angle in (1e-1, 1e-3, 1e-5, 1e-7, 1e-9):
        Y = np.array([[math.cos(angle), math.sin(angle)], [-math.cos(angle), math.sin(angle)]])
        # K^(1) = t κ₀ + κ₁ with θ = angle or π − angle.
        t = np.cos([angle, math.pi - angle])
        theta = np.array([angle, math.pi - angle])
        expected = t * (1 - theta / math.pi) + (np.sin(theta) + (math.pi - theta) * t) / math.pi
        # A cosine rounded by eps moves its angle by eps/angle; below √2e-8 cosines are recomputed from differences.
        error = 2 * np.spacing(2.0) + (np.finfo(float).eps / angle if angle > 2e-4 else 0)
        for to_library in (np.asarray, array_api_strict.asarray):
            K = as_numpy(ntk(to_library(X), to_library(Y), depth=1))
            np.testing.assert_allclose(K[0], expected, rtol=0, atol=error, err_msg=f"angle {angle}")


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 8), st.integers(0, 10**6), st.sampled_from(["f4", "f8"]))
def test_gram_matrix_is_symmetric_psd_with_known_diagonal(n, d, depth, seed, dtype):
    X = np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)
    X[n // 2] = 0
    K = ntk(X, depth=depth)
    assert K.dtype == X.dtype
    assert (K == K.T).all()
    squares = np.sum(X.astype(float) ** 2, axis=1)
    np.testing.assert_allclose(np.diagonal(K), (depth + 1) * squares, rtol=1e-6 if dtype == "f4" else 1e-14)
    assert (K[n // 2] == 0).all()
    assert np.linalg.eigvalsh(K.astype(float)).min() >= -1e-6 * max(K.max(), 1)
    np.testing.assert_allclose(np.diagonal(nngp(X, depth=depth)), squares, rtol=1e-6)


def test_tiles_of_a_large_matrix_fit_together(rng):
    X, Y = rng.standard_normal((1500, 3)), rng.standard_normal((700, 3))
    K = ntk(X, Y, depth=2)
    for i, j in rng.integers((0, 0), (1500, 700), size=(50, 2)):
        assert K[i, j] == pytest.approx(reference.definition_1(X[i], Y[j], 2), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(ntk(X, depth=2)[:, :700], ntk(X, X[:700], depth=2), rtol=1e-13, atol=1e-13)


def test_extreme_norms_neither_overflow_nor_vanish():
    X = np.random.default_rng(9).standard_normal((4, 5))
    for factor in (1e-160, 1e-30, 1e30, 1e150):
        K = ntk(X * factor, X, depth=2)
        np.testing.assert_allclose(K, ntk(X, depth=2) * factor, rtol=1e-12, err_msg=f"factor {factor}")


def test_image_kernels_are_symmetric_psd_homogeneous_and_zero_at_zero():
    X = images(10, 5, 4, 4, 2)
    X[2] = 0
    for name in ("gap", "flatten", "pooled", "residual", "head"):
        net = IMAGE_NETS[name]
        for K in network_kernel(net, X, kind="both"):
            assert (K == K.T).all(), name
            assert (K[2] == 0).all(), name
            assert np.linalg.eigvalsh(K).min() > -1e-12 * K.max(), name
        K = network_kernel(net, 3 * X, X)
        np.testing.assert_allclose(K, 3 * network_kernel(net, X), rtol=1e-7, err_msg=name)


def test_one_pixel_constant_and_integer_images():
    pixel = images(11, 3, 1, 1, 4)
    np.testing.assert_allclose(network_kernel(nn.cntk(3, 1), pixel), _frozen_fc(pixel.reshape(3, 4)), rtol=1e-9)
    ones = np.ones((1, 6, 6, 1))
    # A constant image behaves as one pixel away from the border: with 1 × 1 filters everywhere.
    assert cntk(ones, depth=4, kernel_size=1)[0, 0] == pytest.approx(3.0)
    counts = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3)).astype(np.uint8)
    np.testing.assert_allclose(cntk(counts, depth=2), cntk(counts.astype(float), depth=2))
    assert cntk(counts, depth=2).dtype == np.float64
    assert (cntk(counts, depth=1) == 0).all()


def _frozen_fc(X):
    dense = nn.Dense(trainable=False), nn.ReLU(), nn.Dense(), nn.ReLU(), nn.Dense(), nn.ReLU()
    return network_kernel(nn.Sequential(*dense, nn.Dense(trainable=False)), X)


def test_normalized_gaussian_layers_make_the_exponential_of_the_cosine(rng):
    X = rng.standard_normal((5, 3))
    X[1] = 2 * X[0]
    X[2] = 0
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)
    cosines = unit @ unit.T
    net = nn.Sequential(nn.Normalize(), nn.Dense(), nn.Gaussian())
    # Zero stays zero: its "variance" is 0, not 1, and e^{c − (a + b)/2} follows.
    halves = np.where(np.arange(5) == 2, 0, 0.5)
    np.testing.assert_allclose(
        network_kernel(net, X, kind="nngp"), np.exp(cosines - halves[:, None] - halves), rtol=1e-14
    )
    np.testing.assert_allclose(
        network_kernel(nn.Sequential(nn.Dense(weight_std=2.0), nn.Gaussian()), X, kind="nngp"),
        gaussian(X, lengthscale=0.5),
        rtol=1e-12,
    )


def test_normalize_forgets_the_scale():
    for net, X in (
        (nn.Sequential(nn.Normalize(), nn.fully_connected(2)), images(16, 3, 4)),
        (nn.Sequential(nn.Conv(3), nn.Normalize(), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense()), images(16, 3, 4, 5, 2)),
    ):
        expected = network_kernel(net, X, kind="both")
        for factor in (1e-150, 1e-30, 1e30, 1e150):
            result = network_kernel(net, X * factor, X, kind="both")
            for K, other in zip(result, expected, strict=True):
                # κ₀ near t = 1: √eps on the diagonal
                np.testing.assert_allclose(K, other, rtol=1e-9, err_msg=f"factor {factor}")


def test_sparse_rows_of_other_layers_are_refused():
    for name in ("gaussian", "normalized", "residual"):
        with pytest.raises(TypeError, match=r"dense array unless.*without Residual or Normalize"):
            network_kernel(VECTOR_NETS[name], sparse.csr_array(np.eye(3)))


def test_new_layers_on_one_pixel_constant_zero_and_integer_images():
    net = nn.Sequential(nn.Conv(1), nn.Normalize(), nn.Gaussian(), nn.GlobalAvgPool(), nn.Dense())
    pixel = images(17, 3, 1, 1, 1)
    signs = np.sign(pixel.ravel())
    K = network_kernel(net, pixel, kind="nngp")
    np.testing.assert_allclose(K, np.exp(np.outer(signs, signs) - 1), rtol=1e-14)
    ones, zeros = np.ones((1, 4, 4, 1)), np.zeros((1, 4, 4, 1))
    assert network_kernel(net, ones)[0, 0] == pytest.approx(2.0)  # both layers are trained, and Θ = Σ = 1 before
    assert network_kernel(net, zeros, ones, kind="nngp")[0, 0] == pytest.approx(math.exp(-0.5))
    counts = np.random.default_rng(0).integers(0, 256, (2, 3, 3, 3)).astype(np.uint8)
    np.testing.assert_allclose(network_kernel(net, counts), network_kernel(net, counts.astype(float)))
    single = network_kernel(net, torch.from_numpy(counts).float())
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single, network_kernel(net, counts), rtol=1e-6)


def test_flipping_both_images_does_not_change_the_kernel():
    X, Y = images(12, 2, 5, 6, 2), images(13, 2, 5, 6, 2)
    K = cntk(X, Y, depth=3)
    np.testing.assert_allclose(cntk(X[:, :, ::-1], Y[:, :, ::-1], depth=3), K, rtol=1e-12)
    np.testing.assert_allclose(cntk(X.transpose(0, 2, 1, 3), Y.transpose(0, 2, 1, 3), depth=3), K, rtol=1e-12)


def test_torch_comes_back_as_torch():
    X = torch.randn(5, 4, dtype=torch.float32, requires_grad=True)
    K = ntk(X, depth=2)
    assert isinstance(K, torch.Tensor)
    assert K.dtype == torch.float32
    assert K.requires_grad
    np.testing.assert_allclose(K.detach(), ntk(X.detach().numpy(), depth=2))
    half = ntk(X.detach().to(torch.bfloat16), depth=2)
    assert half.dtype == torch.bfloat16
    np.testing.assert_allclose(half.float(), K.detach(), rtol=0.05, atol=0.1)


@gpu
def test_cuda_gives_the_same():
    for net, X in (
        *((net, images(14, 6, 7)) for net in VECTOR_NETS.values()),
        *((net, images(14, 6, 5, 4, 2)) for net in IMAGE_NETS.values()),
    ):
        on_device = network_kernel(net, torch.from_numpy(X).cuda(), kind="both")
        for K, expected in zip(on_device, network_kernel(net, X, kind="both"), strict=True):
            assert K.is_cuda
            np.testing.assert_allclose(K.cpu(), expected, rtol=1e-11, atol=1e-11, err_msg=repr(net))


def test_sparse_rows(rng):
    X = sparse.random(30, 200, density=0.05, random_state=rng).toarray()
    X[3], X[4], X[5] = 0, 2 * X[6], -X[6]
    expected = ntk(X, X[::-1], depth=3)
    for make in (sparse.csr_array, sparse.csr_matrix, sparse.coo_array):
        K = ntk(make(X), make(X[::-1]), depth=3)
        np.testing.assert_allclose(K, expected, rtol=1e-13, atol=1e-13, err_msg=make.__name__)
        values = diagonal("ntk", make(X), depth=3)
        np.testing.assert_allclose(values, np.diagonal(ntk(X, depth=3)), err_msg=make.__name__)
        with pytest.raises(TypeError, match="dense array unless all activations are ReLU"):
            network_kernel(nn.Sequential(nn.Dense(), nn.Erf()), make(X))


NAN = np.array([[1.0, 2.0], [3.0, np.nan]])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ntk(NAN, depth=1),
            ValueError,
            r"'X' parameter of ntk must be finite. Got nan at index \(1, 1\)",
        ),
        (
            lambda: ntk([[1.0]], [[np.inf]], depth=1),
            ValueError,
            "'Y' parameter of ntk must be finite. Got inf",
        ),
        (lambda: ntk(np.ones(3), depth=1), ValueError, r"2-D .*reshape\(-1, 1\)"),
        (lambda: ntk(np.ones((0, 3)), depth=1), ValueError, "non-empty"),
        (lambda: ntk(np.ones((3, 0)), depth=1), ValueError, "non-empty"),
        (lambda: ntk(np.ones((2, 3)), np.ones((2, 4)), depth=1), ValueError, r"same shape. Got \(3,\) and \(4,\)"),
        (lambda: ntk(np.ones((2, 3)), torch.ones(2, 3), depth=1), TypeError, "same array library"),
        (lambda: ntk([["a"]], depth=1), TypeError, "real numbers"),
        (lambda: ntk([[1j]], depth=1), TypeError, "real numbers"),
        (lambda: ntk([[1.0], [1.0, 2.0]], depth=1), ValueError, "rows of equal length"),
        (lambda: ntk([[1.0]], depth=0), ValueError, "'depth' parameter of ntk must be an int ≥ 1. Got 0"),
        (lambda: nngp([[1.0]], depth=1.5), TypeError, "'depth' parameter of nngp"),
        (lambda: cntk(np.ones((3, 4, 4)), depth=2), ValueError, r"4-D.*X\[..., None\]"),
        (lambda: cntk(np.ones((2, 3)), depth=2), ValueError, "Layer 0, Conv.*cannot take vectors"),
        (lambda: network_kernel("relu", [[1.0]]), TypeError, "'net' parameter of network_kernel"),
        (lambda: network_kernel(nn.Dense(), [[1.0]], kind="x"), ValueError, "one of 'ntk', 'nngp', 'both'"),
        (lambda: network_kernel(nn.ReLU(), [[1.0]]), ValueError, r"ReLU\(\) cannot take vectors: its input is not"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_progress_is_shown_on_request(capsys):
    X = images(15, 6, 4, 4, 1)
    cntk(X, depth=2)
    assert capsys.readouterr().err == ""
    cntk(X, depth=2, progress=True)
    assert "network_kernel: 100%" in capsys.readouterr().err


def test_bad_input_does_not_modify_the_data():
    X = np.arange(6.0).reshape(2, 3)
    before = X.copy()
    ntk(X, depth=3)
    assert (before == X).all()


def test_lists_and_frames():
    X = [[1, 2], [3, 4]]
    np.testing.assert_allclose(ntk(pd.DataFrame(X), depth=1), ntk(X, depth=1))
    assert network_kernel(nn.fully_connected(1), X).dtype == np.float64
