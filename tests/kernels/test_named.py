from __future__ import annotations

import array_api_strict
import numpy as np
import pytest
import sklearn
import torch
from sklearn.metrics.pairwise import laplacian_kernel
from tests.conftest import as_numpy, peak_memory

from ntkit import networks as nn
from ntkit.kernels import (
    cntk,
    diagonal,
    dot_product,
    exponential,
    gaussian,
    gram,
    network_kernel,
    nngp,
    ntk,
    polynomial,
    row_blocks,
)

NET = nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense())
IMAGES = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.AvgPool(2), nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())


@pytest.mark.parametrize(
    ("kernel", "params", "direct"),
    [
        ("ntk", {"depth": 2}, lambda X, Y: ntk(X, Y, depth=2)),
        ("gaussian", {"lengthscale": 2.0}, lambda X, Y: gaussian(X, Y, lengthscale=2.0)),
        (NET, {}, lambda X, Y: network_kernel(NET, X, Y)),
        (NET, {"kind": "nngp"}, lambda X, Y: network_kernel(NET, X, Y, kind="nngp")),
    ],
)
def test_blocks_and_diagonal_are_parts_of_the_matrix(kernel, params, direct, rng, to_library):
    X, Y = to_library(rng.standard_normal((10, 4))), to_library(rng.standard_normal((7, 4)))
    K, of_one = as_numpy(direct(X, Y)), as_numpy(direct(X, None))
    np.testing.assert_allclose(as_numpy(gram(kernel, X, Y, **params)), K)
    np.testing.assert_allclose(as_numpy(diagonal(kernel, X, **params)), np.diagonal(of_one), rtol=1e-13)
    # The diagonal is computed in another way than the entries of a matrix against other rows.
    np.testing.assert_allclose(np.diagonal(as_numpy(direct(X, X))), np.diagonal(of_one), rtol=1e-13)
    for batch_size in (None, 1, 4, 100):
        message = f"batch size {batch_size}"
        blocks = list(row_blocks(kernel, X, Y, batch_size=batch_size, **params))
        assert type(blocks[0][1]) is type(X)
        assert [s.start for s, _ in blocks] == list(range(0, 10, batch_size or 10))
        np.testing.assert_allclose(np.concatenate([as_numpy(b) for _, b in blocks]), K, rtol=1e-13, err_msg=message)
        square = np.concatenate([as_numpy(b) for _, b in row_blocks(kernel, X, batch_size=batch_size, **params)])
        np.testing.assert_allclose(square, of_one, rtol=1e-13, atol=1e-13, err_msg=message)


@pytest.mark.parametrize("kernel", [nn.cntk(2), IMAGES, nn.Sequential(nn.Conv(2), nn.Sin(), nn.Flatten())])
def test_image_blocks_and_diagonal(kernel, rng):
    images = rng.standard_normal((2, 5, 4, 6, 2))
    for to_library in (np.asarray, array_api_strict.asarray):
        X, Y = map(to_library, images)
        K = as_numpy(network_kernel(kernel, X, Y))
        blocks = [as_numpy(b) for _, b in row_blocks(kernel, X, Y, batch_size=2)]
        np.testing.assert_allclose(np.concatenate(blocks), K, rtol=1e-12)
        square = as_numpy(gram(kernel, X))
        np.testing.assert_allclose(as_numpy(diagonal(kernel, X)), np.diagonal(square), rtol=1e-12)
        np.testing.assert_allclose(np.diagonal(as_numpy(gram(kernel, X, X))), np.diagonal(square), rtol=1e-12)


def test_names_are_their_functions(rng):
    X, Y = rng.standard_normal((2, 3, 4, 5, 2))
    np.testing.assert_array_equal(gram("cntk", X, Y, depth=2), cntk(X, Y, depth=2))
    np.testing.assert_array_equal(
        gram("cntk", X, Y, depth=2, kernel_size=(1, 2)), cntk(X, Y, depth=2, kernel_size=(1, 2))
    )
    X, Y = (Z.reshape(3, -1) / 5 for Z in (X, Y))
    for function, params in (
        (ntk, {"depth": 2}),
        (nngp, {"depth": 3}),
        (gaussian, {"lengthscale": 2.0}),
        (polynomial, {"degree": 3, "coef0": 0.5, "gamma": 2.0}),
        (exponential, {"lengthscale": 2.0}),
        (dot_product, {"function": [1.0, 0.0, 2.0]}),
    ):
        name = function.__name__
        np.testing.assert_array_equal(gram(name, X, Y, **params), function(X, Y, **params), err_msg=name)
        values, expected = diagonal(name, X, **params), np.diagonal(function(X, **params))
        np.testing.assert_allclose(values, expected, rtol=1e-14, err_msg=name)


def test_any_function_is_a_kernel(rng):
    X, Y = rng.standard_normal((6, 3)), rng.standard_normal((4, 3))
    K = laplacian_kernel(X, Y, gamma=0.3)
    np.testing.assert_allclose(gram(laplacian_kernel, X, Y, gamma=0.3), K)
    blocks = [b for _, b in row_blocks(laplacian_kernel, X, Y, batch_size=4, gamma=0.3)]
    np.testing.assert_allclose(np.concatenate(blocks), K)
    np.testing.assert_allclose(diagonal(laplacian_kernel, X, gamma=0.3), np.ones(6))
    with pytest.raises(ValueError, match=r"must return an array of shape \(6, 4\)"):
        gram(lambda A, B: A - B[:1], X, Y)


def test_block_size_follows_the_working_memory():
    X = np.ones((400, 2), dtype=np.float32)
    with sklearn.config_context(working_memory=0.1):  # 104 857 bytes, rows of 3200 in float64
        sizes = [s.stop - s.start for s, _ in row_blocks("ntk", X, depth=1)]
    assert max(sizes) == 32
    assert sum(sizes) == 400


def test_memory_is_bounded_by_the_budget():
    # 16 MiB of data: a float64 copy would be 32 MiB, the whole matrix 64 GiB.
    X = np.ones((2**17, 32), dtype=np.float32)
    Y = X[:16]
    output = X.shape[0] * len(Y) * 4
    assert peak_memory(lambda: ntk(X, Y, depth=3)) < output + 24 * 2**20
    assert peak_memory(lambda: next(row_blocks("ntk", Y, X, depth=3, batch_size=1))) < 24 * 2**20
    assert peak_memory(lambda: diagonal("ntk", X, depth=3)) < 24 * 2**20


def test_images_need_memory_for_pairs_in_flight_only():
    # One pair of 24 × 24 images has 24⁴ pairs of pixels, 2.5 MiB; 12 images have 144 pairs, 360 MiB.
    X = np.random.default_rng(0).standard_normal((12, 24, 24, 1))
    assert peak_memory(lambda: cntk(X, depth=2)) < 16 * 2**20


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: gram("nothing", [[1.0]]),
            ValueError,
            "'kernel' parameter of gram must be one of 'arc_cosine', .*'ntk'",
        ),
        (lambda: gram("ntk", [[1.0]]), TypeError, "kernel 'ntk' takes the parameters depth: missing"),
        (lambda: gram("gaussian", [[1.0]], depth=3), TypeError, "'gaussian' takes the parameters lengthscale"),
        (lambda: gram(NET, [[1.0]], kind="both"), ValueError, "'kind' parameter of gram must be one of 'ntk', 'nngp'"),
        (lambda: diagonal(3, [[1.0]]), ValueError, "'kernel' parameter of diagonal"),
        (lambda: row_blocks("ntk", [[1.0]], depth=1, batch_size=0), ValueError, "'batch_size' parameter of row_blocks"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_torch_blocks_share_the_device():
    X = torch.randn(6, 3)
    for _, block in row_blocks("ntk", X, depth=1, batch_size=4):
        assert block.device == X.device
        assert block.dtype == torch.float32
