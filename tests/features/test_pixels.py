"""Patches, sums with signs and means over pixels, against loops."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import as_numpy
from tests.reference import pixels as reference
from tests.tiers import ALL, gpu

from ntkit.features.network.pixels import average, joined, mix_patches, patches, squares, sum_pixels, with_norms
from ntkit.networks import AvgPool, Conv

CONVOLUTIONS = [
    Conv(1), Conv(2), Conv(3), Conv(4), Conv((1, 3)), Conv((5, 2)), Conv(7), Conv(1, stride=2), Conv(3, stride=2),
    Conv(2, stride=3), Conv(3, stride=(1, 2)), Conv(2, stride=(3, 1)), Conv(1, padding="valid"),
    Conv(3, padding="valid"), Conv((2, 3), padding="valid"), Conv(2, stride=2, padding="valid"),
    Conv((3, 1), stride=(2, 3), padding="valid"),
]  # fmt: skip
POOLS = [AvgPool(1), AvgPool(2), AvgPool((1, 2)), AvgPool(3), AvgPool(2, stride=1), AvgPool((2, 1), stride=(3, 2))]
LAYERS = pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
SHAPES = [(1, 5, 6, 3), (3, 4, 4, 1), (2, 3, 7, 2)]
BOUNDS = {"float64": 1e-14, "float32": 1e-6, "bfloat16": 0.02}


def images(rng, shape):
    return rng.standard_normal(shape)


def signs_of(rng, layer, n_channels):
    size = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size, layer.kernel_size)
    return 2 * rng.integers(0, 2, (*size, n_channels), dtype=np.int8) - 1


def in_all_kinds(X):
    """The same images as NumPy arrays and tensors, and how far results may be off."""
    for name in ("float64", "float32"):
        yield X.astype(name), BOUNDS[name]
    for name, bound in BOUNDS.items():
        yield torch.from_numpy(X).to(getattr(torch, name)), bound


def check_all_kinds(function, X, expected, bound=1.0):
    for x, own in in_all_kinds(X):
        got = function(x)
        assert type(got) is type(x)
        assert got.dtype == x.dtype
        assert tuple(got.shape) == expected.shape
        got = as_numpy(got.double() if isinstance(got, torch.Tensor) else got)
        assert np.abs(got - expected).max() <= bound * own * max(np.abs(expected).max(), 1.0)


@LAYERS
def test_patches_are_direct_sums(layer, rng):
    for shape in SHAPES:
        X = images(rng, shape)
        check_all_kinds(lambda x: patches(x, layer), X, np.array([reference.patches(x, layer) for x in X]))


@LAYERS
def test_mixed_patches_are_signed_sums(layer, rng):
    for shape in SHAPES:
        X = images(rng, shape)
        signs = signs_of(rng, layer, shape[-1])
        expected = np.array([reference.mix_patches(x, signs, layer) for x in X])
        check_all_kinds(lambda x, signs=signs: mix_patches(x, signs, layer), X, expected, bound=3)


@pytest.mark.parametrize("layer", CONVOLUTIONS + POOLS, ids=str)
def test_averages_are_means_over_windows(layer, rng):
    X = images(rng, (2, 6, 5, 3))
    expected = np.array([reference.average(x, layer) for x in X])
    check_all_kinds(lambda x: average(x, layer), X, expected)
    check_all_kinds(lambda x: average(x, layer), X[..., 0], expected[..., 0])


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 4),
    st.integers(0, 10**6),
)
def test_any_window(size, kernel_size, stride, n_channels, seed):
    """Windows larger than the image, strides that leave pixels out."""
    rng = np.random.default_rng(seed)
    layer = Conv(kernel_size, stride=stride)
    X, signs = images(rng, (2, *size, n_channels)), signs_of(rng, layer, n_channels)
    for got, naive in (
        (mix_patches(X, signs, layer), [reference.mix_patches(x, signs, layer) for x in X]),
        (patches(X, layer), [reference.patches(x, layer) for x in X]),
        (average(X, layer), [reference.average(x, layer) for x in X]),
    ):
        np.testing.assert_allclose(got, naive, atol=1e-13)


def test_views_and_other_array_libraries(rng):
    """Slices of channels, images in another order in memory, arrays of the standard."""
    import array_api_strict

    layer = Conv(3)
    X = images(rng, (4, 5, 6, 8))
    signs = signs_of(rng, layer, 3)
    part = X[::2, :, :, 2:5]
    expected = mix_patches(part.copy(), signs, layer)
    for x in (part, np.asfortranarray(part), torch.from_numpy(X)[::2, :, :, 2:5]):
        np.testing.assert_array_equal(as_numpy(mix_patches(x, signs, layer)), expected)
    strict = array_api_strict.asarray(part.copy())
    np.testing.assert_allclose(np.asarray(mix_patches(strict, signs, layer)), expected, atol=1e-14)
    np.testing.assert_array_equal(np.asarray(patches(strict, layer)), patches(part, layer))
    kept = part.copy()
    part.flags.writeable = False
    mix_patches(part, signs, layer)
    np.testing.assert_array_equal(part, kept)


def test_sums_over_all_pixels(rng):
    X = images(rng, (3, 4, 5, 6))
    signs = 2 * rng.integers(0, 2, (4, 5, 6), dtype=np.int8) - 1
    expected = [sum(signs[i, j] * x[i, j] for i in range(4) for j in range(5)) / np.sqrt(20) for x in X]
    check_all_kinds(lambda x: sum_pixels(x, signs), X, np.array(expected), bound=5)


def test_inner_products_of_mixed_patches_are_means_over_patches(rng):
    """⟨Σ_o D_o x_o, Σ_o D_o y_o⟩ is the sum of ⟨x_o, y_o⟩ plus products of different pixels, which the signs cancel:

    exactly in the mean over all 2⁴ signs of a 2 × 2 filter and one channel.
    """
    layer = Conv(2, padding="valid")
    X = images(rng, (2, 2, 2, 1))
    grams = []
    for bits in np.ndindex(2, 2, 2, 2):
        z = mix_patches(X, 2 * np.array(bits, np.int8).reshape(2, 2, 1) - 1, layer).reshape(2, 1)
        grams.append(z @ z.T)
    np.testing.assert_allclose(np.mean(grams, axis=0), X.reshape(2, 4) @ X.reshape(2, 4).T / 4, atol=1e-14)


def test_squared_norms(rng):
    X = images(rng, (2, 3, 4, 5))
    expected = np.array([[[sum(v * v for v in pixel) for pixel in row] for row in x] for x in X])
    for x, bound in in_all_kinds(X):
        got = as_numpy(squares(x)).astype(float)
        assert np.abs(got - expected).max() <= bound * np.abs(expected).max()
    assert squares(torch.ones(300, dtype=torch.bfloat16)).item() == pytest.approx(300)  # in 8 bits 256 + 1 = 256


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_squared_norms_of_single_precision_neither_overflow_nor_vanish(convert, rng):
    for scale in [1e-22, 1e22]:
        X = images(rng, (2, 3, 4, 5)).astype(np.float32)
        got = as_numpy(squares(convert(np.float32(scale) * X))).astype(float)
        np.testing.assert_allclose(got / scale**2, (X.astype(float) ** 2).sum(axis=-1), rtol=1e-5)


# Triton, in its interpreter and on a GPU.

SCRIPT = """
import numpy as np
import torch
import ntkit._array as arrays
from ntkit.features.network.pixels import average, mix_patches
from ntkit.networks import AvgPool, Conv

rng = np.random.default_rng(0)
layers = [Conv(3), Conv(2), Conv((1, 4)), Conv(3, stride=2), Conv(2, stride=(3, 1)), Conv((2, 3), padding="valid")]
shapes = [(2, 5, 6, 3), (1, 3, 4, 20), (3, 1, 1, 1), (1, 3, 40, 130)]
cases = []
for number, layer in enumerate(layers):
    for shape in shapes if EVERY else [shapes[number % 3], *shapes[3:] * (number in (0, 3))]:
        if layer.padding == "valid" and shape[1] == 1:
            continue
        q = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
        signs = 2 * rng.integers(0, 2, (*q, shape[3]), dtype=np.int8) - 1
        X = torch.from_numpy(rng.standard_normal(shape)).bfloat16().double()
        cases.append((X, signs, layer, mix_patches(X.numpy(), signs, layer)))
images = torch.from_numpy(rng.standard_normal((2, 5, 6, 20)))
pooled = [(layer, average(images.numpy(), layer)) for layer in (AvgPool(2), AvgPool((1, 3), stride=2), Conv(3))]
arrays.has_triton = arrays.is_torch  # CPU tensors take the way of CUDA tensors
for layer, expected in pooled:
    assert np.abs(average(images, layer).numpy() - expected).max() < 1e-14, layer
for X, signs, layer, expected in cases:
    for dtype, bound in {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.01}.items():
        got = mix_patches(X.to(dtype), signs, layer)
        assert got.dtype == dtype and tuple(got.shape) == expected.shape, (layer, got.shape)
        error = np.abs(got.double().numpy() - expected).max()
        assert error <= bound * max(np.abs(expected).max(), 1), (layer, X.shape, dtype, error)
X, signs, layer, expected = cases[0]
wide = torch.zeros(2, 5, 6, 8, dtype=torch.float64)
wide[..., 4:7] = X
assert np.abs(mix_patches(wide[..., 4:7], signs, layer).numpy() - expected).max() < 1e-14  # channels of more
turned = X.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
assert np.abs(mix_patches(turned, signs, layer).numpy() - expected).max() < 1e-14
assert mix_patches(X[:0], signs, layer).shape == (0, 5, 6, 3)
from ntkit import networks as nn
from ntkit import NetworkFeatures
X = rng.standard_normal((2, 4, 4, 3)).astype(np.float32)
wide = nn.Sequential(nn.Conv(3), nn.Erf(), nn.AvgPool(2, stride=1), nn.Conv(3), nn.ReLU(), nn.Flatten(), nn.Dense())
for net, methods in ((nn.cntk(3), ["random", "sketch"]), (wide, ["sketch", "random"])):
    for method in methods if EVERY else methods[:1]:  # scaling to norms, and 16-bit programs as products
        features = NetworkFeatures(net, n_components=32, hidden_components=32, method=method, kind="both")
        features.set_params(random_state=0).fit(X)
        expected = features.transform(X)
        for dtype, bound in {torch.float32: 1e-5, torch.bfloat16: 0.1}.items():
            features._draws.compute_dtype = lambda *_: dtype
            error = np.linalg.norm(features.transform(torch.from_numpy(X)).numpy() - expected)
            assert error < bound * np.linalg.norm(expected), (net, method, dtype, error)
print("all equal")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux only")
def test_the_triton_kernel_equals_the_compiled_one():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    out = subprocess.run(
        [sys.executable, "-c", f"EVERY = {ALL}\n{SCRIPT}"], capture_output=True, text=True, env=environment
    )
    assert "all equal" in out.stdout, out.stderr[-3000:]


@gpu
@LAYERS
def test_cuda_tensors_equal_numpy_arrays(layer, rng):
    for shape in ((3, 8, 9, 5), (2, 33, 40, 300)):
        signs = signs_of(rng, layer, shape[-1])
        X = torch.from_numpy(images(rng, shape)).bfloat16().double()
        expected = {
            mix_patches: mix_patches(X.numpy(), signs, layer),
            patches: patches(X.numpy(), layer),
            average: average(X.numpy(), layer),
        }
        for function, values in expected.items():
            for name, bound in BOUNDS.items():
                x = X.to("cuda", getattr(torch, name))
                got = function(x, signs, layer) if function is mix_patches else function(x, layer)
                assert got.device.type == "cuda"
                assert got.dtype == x.dtype
                error = np.abs(got.double().cpu().numpy() - values).max()
                assert error <= 3 * bound * max(np.abs(values).max(), 1)


# Norms.


def test_vectors_are_normalized_and_cancelled_vectors_become_zero():
    """Below FLOOR times the expected norm of a vector, only rounding errors remain."""
    X = np.array([[3.0, 4.0], [0.6, -0.8], [2e-6, 0.0], [2e-5, 0.0], [0.0, 0.0], [1.0, 2.0]])
    power = np.array([4.0, 9.0, 1.0, 1.0, 1.0, 0.0])
    expected = np.array([[1.2, 1.6], [1.8, -2.4], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    for convert in (np.asarray, torch.from_numpy, lambda x: x.astype(np.float32)):
        np.testing.assert_allclose(as_numpy(with_norms(convert(X), convert(power))), expected, rtol=1e-6)
        both = joined([convert(X), convert(2 * X)], [convert(power), None])
        np.testing.assert_allclose(as_numpy(both), np.hstack([expected, 2 * X]), rtol=1e-6)
