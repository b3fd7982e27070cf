"""Unusual networks, data and numbers."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass

import numba
import numpy as np
import pytest
import sklearn
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from tests.conftest import peak_memory
from tests.reference import kernels as reference

from ntkit import networks as nn
from ntkit.kernels import cntk, diagonal, dot_product, exponential, gaussian, gram, network_kernel, ntk, row_blocks
from ntkit.kernels.dot_product import Polynomial

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3))
CONVS = st.builds(
    nn.Conv,
    SIZES,
    padding=st.sampled_from(["same", "valid"]),
    trainable=st.booleans(),
    weight_std=st.sampled_from([1.0, 1.3]),
)
ACTIVATIONS = st.sampled_from([nn.ReLU(), nn.Abs(), nn.LeakyReLU(0.3), nn.ReLU(normalize=False)])
BLOCKS = st.one_of(
    st.tuples(CONVS, ACTIVATIONS),
    st.tuples(CONVS),
    st.tuples(st.builds(nn.AvgPool, SIZES)),
    st.tuples(CONVS, st.builds(nn.AvgPool, SIZES), ACTIVATIONS),
)
TAILS = st.sampled_from(
    [
        (),
        (nn.Dense(),),
        (nn.Dense(), nn.ReLU(), nn.Dense(trainable=False)),
        (nn.Dense(), nn.Residual(nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Dense())), nn.Abs()),
    ]
)


def fitting(layers, h, w):
    """The layers, with windows cut to the pixels that are left, so that every network is possible."""
    for layer in layers:
        if isinstance(layer, nn.AvgPool):
            q, r = np.minimum(np.broadcast_to(layer.size, 2), (h, w)).tolist()
            h, w = h // q, w // r
            yield nn.AvgPool((q, r))
        elif isinstance(layer, nn.Conv) and layer.padding == "valid":
            q, r = np.minimum(np.broadcast_to(layer.kernel_size, 2), (h, w)).tolist()
            h, w = h - q + 1, w - r + 1
            yield dataclasses.replace(layer, kernel_size=(q, r))
        else:
            yield layer


@given(
    st.lists(BLOCKS, min_size=1, max_size=4),
    st.sampled_from([nn.GlobalAvgPool(), nn.Flatten()]),
    TAILS,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 10**6),
)
def test_random_chains_match_the_loops(blocks, end, tail, h, w, seed):
    layers = fitting([layer for block in blocks for layer in block], h, w)
    net = nn.Sequential(*layers, end, *tail)
    X, Y = np.random.default_rng(seed).standard_normal((2, 1, h, w, 2))
    expected = reference.network(net, X[0], Y[0])
    scale = np.sqrt([diagonal(net, X, kind=k) * diagonal(net, Y, kind=k) for k in ("nngp", "ntk")]).ravel() + 1e-300
    result = network_kernel(net, X, Y, kind="both")
    assert abs(result.nngp[0, 0] - expected[0]) <= 1e-11 * scale[0]
    assert abs(result.ntk[0, 0] - expected[1]) <= 1e-7 * max(scale)


@pytest.mark.parametrize("end", [nn.GlobalAvgPool(), nn.Flatten()])
def test_pixels_beyond_the_last_whole_window_are_ignored(end):
    for size, pool in (((3, 3), 2), ((5, 5), 3), ((4, 3), (3, 2)), ((7, 5), (3, 5)), ((5, 4), 4)):
        net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.AvgPool(pool), nn.Conv(1), nn.ReLU(), end, nn.Dense())
        X, Y = np.random.default_rng(0).standard_normal((2, 1, *size, 2))
        values = [K[0, 0] for K in network_kernel(net, X, Y, kind="both")]
        np.testing.assert_allclose(
            values, reference.network(net, X[0], Y[0]), rtol=1e-11, err_msg=f"{size} pixels, windows of {pool}"
        )


def test_images_that_cancel_under_pooling_give_no_nan():
    rng = np.random.default_rng(1)
    for net in (
        nn.Sequential(nn.GlobalAvgPool(), nn.Dense(), nn.ReLU(), nn.Dense()),
        nn.Sequential(nn.Conv(1), nn.AvgPool(4), nn.ReLU(), nn.Flatten(), nn.Dense()),
        nn.Sequential(nn.Conv(1, stride=2), nn.Conv(1), nn.GlobalAvgPool(), nn.Dense(), nn.GELU(), nn.Dense()),
    ):
        for _ in range(20):
            X = rng.standard_normal((3, 4, 4, 2))
            X -= X.mean((1, 2), keepdims=True)
            for K in network_kernel(net, X, kind="both"):
                assert np.isfinite(K).all(), net


def test_gaussian_far_from_the_origin(rng):
    X = rng.standard_normal((6, 3))
    shifted = X + 2.0**30  # exact to 2⁻²³
    expected = gaussian(shifted - 2.0**30)
    for K in (gaussian(shifted), np.concatenate([b for _, b in row_blocks("gaussian", shifted, batch_size=2)])):
        np.testing.assert_allclose(K, expected, rtol=1e-12)
    np.testing.assert_allclose(gaussian(X, lengthscale=1e-100), np.eye(6))
    np.testing.assert_allclose(gaussian(X, lengthscale=1e200), np.ones((6, 6)))
    np.testing.assert_allclose(exponential(X, lengthscale=1e200), np.ones((6, 6)))


def test_numbers_of_any_type_are_stored_as_plain_numbers():
    layer = nn.Dense(weight_std=np.float16(1.5), trainable=np.bool_(False))
    assert repr(layer) == "Dense(trainable=False, weight_std=1.5)"
    assert type(layer.weight_std) is float
    assert repr(nn.LeakyReLU(np.float64(0.25), normalize=np.True_)) == "LeakyReLU(0.25)"


class TestArrays:
    X = np.random.default_rng(3).standard_normal((5, 4))
    expected = ntk(X, depth=2)

    def test_layouts(self):
        for name, X in {
            "Fortran order": np.asfortranarray(self.X),
            "big-endian": self.X.astype(">f8"),
            "negative strides": self.X[::-1].copy()[::-1],
            "masked array": np.ma.MaskedArray(self.X),
            "objects": self.X.astype(object),
            "list": self.X.tolist(),
        }.items():
            K = ntk(X, depth=2)
            assert type(K) is np.ndarray, name
            np.testing.assert_allclose(K, self.expected, rtol=1e-14, err_msg=name)

    def test_matrix_and_read_only(self):
        with pytest.warns(PendingDeprecationWarning):
            K = ntk(np.matrix(self.X), depth=2)
        assert type(K) is np.ndarray
        frozen = self.X.copy()
        frozen.flags.writeable = False
        np.testing.assert_allclose(ntk(frozen, depth=2), self.expected, rtol=1e-14)

    def test_half_precision(self):
        K = ntk(self.X.astype(np.float16), depth=2)
        assert K.dtype == np.float16
        np.testing.assert_allclose(K, self.expected, rtol=0.02, atol=0.02)
        halves = torch.from_numpy(self.X).half()
        for A, B in ((halves, halves.float()), (halves.float(), halves)):
            mixed = ntk(A, B, depth=2)
            assert mixed.dtype == torch.float32
            np.testing.assert_allclose(mixed, self.expected, rtol=0.02, atol=0.02)

    def test_whole_numbers(self, to_library):
        for dtype in ("uint8", "int64", "bool"):
            counts = (np.abs(self.X) * 3).astype(dtype)
            K = np.asarray(ntk(to_library(counts), depth=2))
            assert K.dtype == np.float64, dtype
            np.testing.assert_allclose(K, ntk(counts.astype(float), depth=2), rtol=1e-14, err_msg=dtype)

    def test_parameters_and_negative_views(self):
        tensor = torch.from_numpy(self.X)
        K = ntk(torch.nn.Parameter(tensor), tensor, depth=2)
        assert K.requires_grad
        np.testing.assert_allclose(K.detach(), self.expected, rtol=1e-14)
        negative = torch.complex(tensor, -tensor).conj().imag  # a view whose sign is still to be applied
        assert negative.is_neg()
        np.testing.assert_allclose(ntk(negative, depth=2), self.expected, rtol=1e-14)

    def test_csr_input_of_any_kind_is_not_modified(self):
        X = sparse.csr_array((np.array([1.0, 2.0, 1.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
        assert X.nnz == 3
        K = ntk(X, sparse.csr_matrix(X.toarray()), depth=1)
        assert X.nnz == 3
        np.testing.assert_allclose(K, ntk(X.toarray(), depth=1))
        tiny = sparse.csr_array(self.X * 1e-310)
        assert np.isfinite(ntk(tiny, depth=1)).all()

    def test_wide_sparse_duplicates_are_quick(self):
        X = sparse.random(60, 2**20, density=1e-5, random_state=0, format="csr")
        X = sparse.vstack([X[:1]] * 60, format="csr")  # all rows equal: every pair is near
        K = ntk(X, depth=2)
        np.testing.assert_allclose(K, np.full((60, 60), K[0, 0]), rtol=1e-12)

    def test_large_values_raise_no_warning(self):
        np.testing.assert_allclose(gaussian(np.full((3, 2), 3e38, dtype=np.float32)), np.ones((3, 3)))
        np.testing.assert_allclose(gaussian(np.full((1000, 3), 100, dtype=np.float16))[0], np.ones(1000))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ntk(np.ma.MaskedArray([[1.0, 2.0]], [[0, 1]]), depth=1), ValueError, "free of masked entries.*impute"),
        (lambda: ntk(torch.eye(2).to_sparse(), depth=1), TypeError, r"a dense tensor.*to_dense\(\)"),
        (lambda: gram(nn.ReLU, [[1.0]]), ValueError, "'kernel' parameter of gram"),
        (lambda: gram("ntk", [[1.0]], depth=0), ValueError, "'depth' parameter of ntk must be an int ≥ 1"),
        (
            lambda: gram(lambda A, B: float(A[0, 0] * B[0, 0]), [[1.0]]),
            ValueError,
            r"must return an array of shape \(1, 1\).*Got 1.0",
        ),
        (lambda: dot_product([[1.0], [2.0]], function=lambda t: t[:1]), ValueError, r"shape \(2, 2\) here"),
        (lambda: dot_product([[1.0]], function=lambda t: t * 1j), TypeError, "must return real numbers"),
        (lambda: dot_product([[1.0]], function="exp"), ValueError, "'function' parameter of dot_product"),
        (lambda: nn.Conv([3, 3]), TypeError, r"a pair \(tuple\)"),
        (lambda: row_blocks("ntk", [[np.nan]], depth=1), ValueError, "must be finite"),
        (lambda: cntk([[[[np.inf]]]], depth=2), ValueError, "'X' parameter of cntk must be finite"),
        (
            lambda: nn.output_shape(
                nn.Residual(
                    nn.Sequential(nn.Conv(3), nn.Flatten(), nn.Dense(), nn.ReLU(), nn.Dense()),
                    nn.Sequential(nn.Conv(3), nn.Flatten()),
                ),
                (4, 4, 1),
            ),
            ValueError,
            r"different shapes \(1,\), \(16,\)",
        ),
    ],
)
def test_messages(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_foreign_layers_are_refused_by_name():
    class Swish(nn.Activation):
        pass

    with pytest.raises(TypeError, match=r"Swish lacks the method 'moments'"):
        network_kernel(nn.Sequential(nn.Dense(), Swish(), nn.Dense()), [[1.0]])


def test_user_functions_get_the_library_they_gave(rng):
    X = torch.from_numpy(rng.standard_normal((4, 3)))
    np.testing.assert_allclose(dot_product(X, function=torch.exp), exponential(X))
    np.testing.assert_allclose(gram(torch.cdist, X, X), torch.cdist(X, X))
    lopsided = gram(lambda A, B: A[:, :1] + 0 * B[:, 0], X.numpy())
    np.testing.assert_allclose(lopsided, np.repeat(X.numpy()[:, :1], 4, axis=1))


def test_user_functions_are_called_once(rng):
    calls = []

    def kernel(A, B):
        calls.append(len(A))
        return A @ B.T

    gram(kernel, rng.standard_normal((50, 3)))
    assert calls == [50]


@pytest.mark.parametrize(("megabytes", "threads"), [(1, 1), (1000, 4)])
def test_threads_share_the_working_memory(megabytes, threads, monkeypatch):
    # A tile of 512 × 512 numbers takes 2 MiB: a budget of 1 MiB leaves one thread, and smaller tiles.
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    lock, running, most = threading.Lock(), [], []

    @dataclass(frozen=True)
    class Twice(Polynomial):
        def apply(self, inner):
            return function(inner)

    def function(t):
        with lock:
            running.append(None)
            most.append(len(running))
        time.sleep(0.05)
        deadline = time.monotonic() + 5  # a busy machine may start threads late
        while max(most) < threads and time.monotonic() < deadline:
            time.sleep(0.01)
        with lock:
            running.pop()
        return 2 * t

    X, Y = np.random.default_rng(0).standard_normal((2, 1500, 2))
    with sklearn.config_context(working_memory=megabytes):
        K = Twice(degree=1).matrix(X, Y)
    assert len(most) == (36 if megabytes == 1 else 9)
    assert max(most) == threads
    np.testing.assert_allclose(K, 2 * X @ Y.T)


def test_image_pairs_on_several_threads_fit_the_working_memory(monkeypatch):
    # A pair of 12 × 12 images takes 2 MB of scratch, so within 1 MiB only one pair is computed at a time.
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    net = nn.Sequential(nn.Conv(3), nn.Erf(), nn.GlobalAvgPool(), nn.Dense())
    X = np.random.default_rng(0).standard_normal((6, 12, 12, 1))
    with sklearn.config_context(working_memory=1):
        one = peak_memory(lambda: network_kernel(net, X[:1]))
        assert peak_memory(lambda: network_kernel(net, X)) < 1.5 * one
        K = network_kernel(net, X)
    np.testing.assert_allclose(K, network_kernel(net, X), rtol=1e-14)
