from __future__ import annotations

import dataclasses
import pickle

import array_api_strict
import numpy as np
import pytest

from ntkit import networks as nn
from ntkit.kernels import network_kernel

RESNET = nn.Sequential(
    nn.Conv(3), nn.Residual(nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Conv(3))), nn.ReLU(), nn.Flatten()
)
ALL = [
    nn.fully_connected(3),
    nn.cntk(3, 2),
    nn.myrtle(5),
    nn.myrtle(7),
    nn.myrtle(10),
    RESNET,
    nn.Sequential(nn.Conv((3, 1), stride=(2, 1), padding="valid"), nn.LeakyReLU(0.2, normalize=False)),
    nn.Sequential(nn.Dense(weight_std=1.5, trainable=False), nn.Erf(), nn.Dense(), nn.GELU(), nn.Dense()),
    nn.Sequential(nn.Conv(1), nn.Sin(), nn.AvgPool(3, stride=2), nn.Abs(), nn.GlobalAvgPool()),
    nn.Sequential(
        nn.Normalize(), nn.Conv(3), nn.Normalize(), nn.Gaussian(), nn.Flatten(), nn.Gaussian(normalize=False)
    ),
]


def test_repr_evaluates_to_an_equal_network():
    for net in ALL:
        again = eval(repr(net), vars(nn))
        assert again == net
        assert hash(again) == hash(net), net
        assert pickle.loads(pickle.dumps(net)) == net


def test_different_networks_differ():
    assert nn.Conv(3) != nn.Conv(5)
    assert nn.Sequential(nn.Dense(), nn.ReLU()) != nn.Sequential(nn.Dense(), nn.Abs())
    assert nn.Sequential(nn.Dense()) != nn.Residual(nn.Dense(), nn.Dense())
    assert len({nn.myrtle(5), nn.myrtle(5), nn.myrtle(7)}) == 2


def test_equal_sizes_are_one_size():
    assert nn.Conv((3, 3)) == nn.Conv(3) == nn.Conv(np.int64(3))
    assert repr(nn.Conv((3, 3))) == "Conv(3)"
    assert nn.Conv((3, 1)) != nn.Conv((1, 3))


def test_networks_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        nn.Dense().trainable = False
    with pytest.raises(dataclasses.FrozenInstanceError):
        nn.Sequential(nn.Dense()).layers = ()


def test_presets():
    assert nn.fully_connected(2) == nn.Sequential(nn.Dense(), nn.ReLU(), nn.Dense(), nn.ReLU(), nn.Dense())
    convs = [layer for layer in nn.cntk(3, 5).layers if isinstance(layer, nn.Conv)]
    assert [c.trainable for c in convs] == [False, True, True]
    assert {c.kernel_size for c in convs} == {5}
    assert nn.cntk(3).layers[-1] == nn.Dense(trainable=False)
    conv, pool = (nn.Conv(3), nn.ReLU()), nn.AvgPool(2)
    for depth, first, others in ((5, 2, 1), (7, 2, 2), (10, 3, 3)):
        blocks = conv * first, conv * others, conv * others
        layers = (*blocks[0], pool, *blocks[1], pool, *blocks[2], nn.GlobalAvgPool(), nn.Dense())
        assert nn.myrtle(depth) == nn.Sequential(*layers), depth


def test_output_shape():
    for net, shape, expected in (
        (nn.fully_connected(2), (10,), (None,)),
        (nn.myrtle(5), (32, 32, 3), (None,)),
        (RESNET, (5, 4, 2), (None,)),
        (nn.Flatten(), (5, 4, 2), (40,)),
        (nn.GlobalAvgPool(), (5, 4, 2), (2,)),
        (nn.Sequential(), (7,), (7,)),
        (nn.Normalize(), (7,), (7,)),
        (
            nn.Sequential(nn.Normalize(), nn.Conv(3), nn.Normalize(), nn.Gaussian(), nn.GlobalAvgPool()),
            (4, 4, 2),
            (None,),
        ),
        (
            nn.Sequential(nn.Dense(), nn.Residual(nn.Sequential(), nn.Sequential(nn.Dense(), nn.Normalize()))),
            (3,),
            (None,),
        ),
    ):
        assert nn.output_shape(net, shape) == expected, net


def test_windows():
    """Which pixels every output sees, read off the kernels of images with one pixel set."""
    for layer, size, n_out, before in (
        (nn.Conv(3), 5, 5, 1),
        (nn.Conv(2), 5, 5, 0),
        (nn.Conv(4), 5, 5, 1),
        (nn.Conv(3, stride=2), 5, 3, 1),
        (nn.Conv(3, stride=2), 6, 3, 0),
        (nn.Conv(2, padding="valid"), 5, 4, 0),
        (nn.Conv(3, stride=2, padding="valid"), 6, 2, 0),
        (nn.AvgPool(2), 5, 2, 0),
        (nn.AvgPool(3, stride=1), 5, 3, 0),
    ):
        pool = isinstance(layer, nn.AvgPool)
        q = layer.size if pool else layer.kernel_size
        stride = layer.stride or q
        first = stride * np.arange(n_out)[:, None] - before
        seen = ((np.arange(size) >= first) & (np.arange(size) < first + q)) / q
        # A convolution has separate weights for every pixel of a window; pooling adds all pixels.
        along = seen.T @ seen if pool else np.diag(seen.sum(0))
        expected = np.kron(along, along) / n_out**2
        pixels = array_api_strict.asarray(np.eye(size**2).reshape(-1, size, size, 1))  # no code is compiled for these
        K = network_kernel(nn.Sequential(layer, nn.Flatten()), pixels, kind="nngp")
        np.testing.assert_allclose(np.asarray(K), expected, atol=1e-15, err_msg=f"{layer!r} on {size} pixels")


def test_pooled_pixels_are_counted():
    """Flatten gives one unit for every pixel and channel that pooling leaves."""
    for layer, size, n_out in (
        (nn.AvgPool(2), (5, 4), (2, 2)),
        (nn.AvgPool((2, 3), stride=(1, 2)), (5, 9), (4, 4)),
        (nn.AvgPool(3, stride=5), (8, 7), (2, 1)),
    ):
        assert nn.output_shape(nn.Sequential(layer, nn.Flatten()), (*size, 3)) == (n_out[0] * n_out[1] * 3,), layer


@pytest.mark.parametrize(
    ("net", "shape", "text"),
    [
        (nn.fully_connected(1), (4, 4, 1), r"Layer 0, Dense\(\), cannot take images of 4 × 4 pixels: it takes"),
        (nn.cntk(2), (10,), r"Layer 0, Conv\(3, trainable=False\), cannot take vectors: it takes images"),
        (nn.Sequential(nn.Conv(3), nn.Sequential(nn.ReLU(), nn.Dense())), (4, 4, 1), r"Layer 1\.1, Dense"),
        (nn.Sequential(nn.Conv(3), nn.AvgPool(5), nn.Flatten()), (4, 4, 1), r"Layer 1, AvgPool\(5\).*5 × 5 window"),
        (nn.Sequential(nn.ReLU(), nn.Dense()), (4,), r"Layer 0, ReLU\(\).*not Gaussian.*Put Dense"),
        (nn.Sequential(nn.Dense(), nn.ReLU(), nn.ReLU()), (4,), r"Layer 2, ReLU"),
        (nn.Sequential(nn.Normalize(), nn.Gaussian()), (4,), r"Layer 1, Gaussian\(\).*not Gaussian"),
        (nn.Sequential(nn.Conv(3), nn.Normalize()), (4, 4, 1), r"ends in images of 4 × 4 pixels"),
        (nn.Sequential(nn.Conv(3), nn.ReLU()), (4, 4, 1), r"ends in images of 4 × 4 pixels"),
        (nn.Sequential(nn.Conv(3), nn.Flatten(), nn.ReLU()), (4, 4, 1), r"Layer 2, ReLU.*not Gaussian"),
        (
            nn.Sequential(nn.Conv(3), nn.Residual(nn.Sequential(), nn.Conv(3, stride=2)), nn.Flatten()),
            (4, 4, 1),
            r"Layer 1, Residual.*different shapes \(4, 4\), \(2, 2\)",
        ),
        (
            nn.Sequential(nn.Dense(), nn.Residual(nn.Sequential(), nn.ReLU())),
            (4,),
            r"Layer 1, Residual.*correlated.*End all branches but one",
        ),
        (
            nn.Sequential(nn.Dense(), nn.ReLU(), nn.Residual(nn.Sequential(), nn.Dense()), nn.ReLU()),
            (4,),
            r"Layer 3, ReLU\(\).*not Gaussian",
        ),
    ],
)
def test_impossible_architectures_name_the_layer(net, shape, text):
    with pytest.raises(ValueError, match=text):
        nn.output_shape(net, shape)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: nn.Conv(0), ValueError, "'kernel_size' parameter of Conv must be an int ≥ 1. Got 0"),
        (lambda: nn.Conv(3.0), TypeError, "'kernel_size' parameter of Conv"),
        (lambda: nn.Conv((3, 3, 3)), ValueError, "pair"),
        (lambda: nn.Conv(3, padding="full"), ValueError, "one of 'same', 'valid'. Got 'full'"),
        (lambda: nn.Dense(weight_std=0), ValueError, "'weight_std' parameter of Dense.*> 0"),
        (lambda: nn.Dense(weight_std=float("nan")), ValueError, "finite"),
        (lambda: nn.Dense(trainable=1), TypeError, "True or False"),
        (lambda: nn.LeakyReLU("a"), TypeError, "'slope' parameter of LeakyReLU"),
        (lambda: nn.Sequential(nn.Dense(), nn.ReLU), TypeError, r"Write ReLU\(\), not ReLU"),
        (lambda: nn.Residual(nn.Dense()), ValueError, "two or more"),
        (lambda: nn.Activation(), TypeError, "abstract"),
        (lambda: nn.Gaussian(normalize=1), TypeError, "'normalize' parameter of Gaussian must be True or False"),
        (lambda: nn.myrtle(6), ValueError, "5, 7 or 10"),
        (lambda: nn.fully_connected(0), ValueError, "'depth' parameter of fully_connected must be an int ≥ 1"),
        (lambda: nn.cntk(True), TypeError, "'depth' parameter of cntk"),
        (lambda: nn.output_shape("net", (3,)), TypeError, "a network"),
        (lambda: nn.output_shape(nn.Dense(), (3, 3)), ValueError, "input_shape"),
    ],
)
def test_bad_arguments(make, error, text):
    with pytest.raises(error, match=text):
        make()
