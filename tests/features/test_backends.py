"""Features of networks: programs and layers are the same map, presets are settings of it, and gradients are right."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest
import torch
from tests import tiers

from ntkit import NetworkFeatures, NTKSketch
from ntkit import networks as nn
from ntkit.networks import GELU, Abs, Conv, Dense, Erf, Flatten, GlobalAvgPool, LeakyReLU, ReLU, Sequential

METHODS = pytest.mark.parametrize("method", ["sketch", "random"])
NORMALIZE = pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "plain"])


def rows(n_features):
    """Rows of different norms, one of them zero."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, n_features)) * np.geomspace(0.1, 10, 6)[:, None]
    X[3] = 0
    return X


def dense(depth, activation):
    return Sequential(*(Dense(), activation) * depth, Dense())


# Programs and layers.

NETWORKS = {
    "relu": (("sketch", "random"), lambda depth: dense(depth, ReLU())),
    "leaky": (("sketch",), lambda depth: dense(depth, LeakyReLU(0.3))),
    "abs": (("sketch",), lambda depth: dense(depth, Abs())),
    "frozen": (
        ("sketch", "random"),
        lambda depth: Sequential(*(Dense(trainable=False), ReLU()) * depth, Dense(), ReLU()),
    ),
    "two trained layers in a row": (  # ψ has √2 φ
        ("sketch", "random"),
        lambda depth: Sequential(*(Dense(), Dense(), ReLU()) * depth, Dense(), Dense()),
    ),
}


@NORMALIZE
@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, (methods, _) in NETWORKS.items() for method in methods]
)
def test_both_back_ends_give_the_same_features(name, method, normalize):
    """One program for all layers equals layer-by-layer computation; features of another seed differ."""
    sizes = ((48, 7), (1, 7), (2, 7), (16, 100))
    pairs = list(product((1, 2, 3), ("ntk", "nngp", "both")))
    chosen = product(pairs, sizes) if tiers.ALL else zip(pairs, cycle(sizes), strict=False)
    for (depth, kind), (n_components, n_features) in chosen:
        X = rows(n_features)
        parameters = {"method": method, "kind": kind, "normalize": normalize, "n_components": n_components}
        if depth > 1:  # one component that cancels has the norm of a rounding error
            parameters["hidden_components"] = max(n_components // 2, 8)
        fused, layered, other = (
            NetworkFeatures(
                NETWORKS[name][1](depth), degree=3, derivative_degree=4, random_state=seed, **parameters, **own
            ).fit(X)
            for seed, own in ((0, {}), (0, {"precision": "float64"}), (1, {}))
        )
        assert fused._planned.fused
        assert not layered._planned.fused
        Z, expected = fused.transform(X), layered.transform(X)
        assert Z.shape == expected.shape
        norms = np.linalg.norm(X, axis=1, keepdims=True)  # few features of a row can all be 0
        assert (np.abs(Z - expected) <= 1e-10 * norms).all(), (depth, kind, n_components, n_features)
        if n_components > 2 and kind == "ntk" and expected.any():
            assert not (np.abs(other.transform(X) - expected) <= 1e-3 * norms).all()


# Presets.


@NORMALIZE
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_sketches_of_the_ntk_are_a_preset(kind, normalize):
    for depth, m in ((1, 32), (2, 64), (3, 1)):
        X = rows(6)
        shared = {"n_components": m, "degree": 3, "derivative_degree": 5, "kind": kind, "normalize": normalize}
        preset = NTKSketch(depth=depth, random_state=0, **shared).fit(X)
        sizes = {"hidden_components": m, "derivative_components": m}
        features = NetworkFeatures(nn.fully_connected(depth), random_state=0, **shared, **sizes).fit(X)
        np.testing.assert_array_equal(preset.transform(X), features.transform(X))
        assert preset.nngp_columns_ == features.nngp_columns_


# Gradients.

GRADIENTS = {
    "vectors": (lambda a: Sequential(Dense(), a, Dense(), a, Dense()), (4, 6)),
    "global average": (lambda a: Sequential(Conv(3), a, Conv(3), a, GlobalAvgPool(), Dense()), (2, 5, 4, 2)),
    "flatten": (lambda a: Sequential(Conv(2), a, Conv(3), a, Flatten(), Dense()), (2, 4, 4, 2)),
}


@METHODS
@pytest.mark.parametrize("activation", [ReLU(), GELU(), Erf()], ids=str)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_finite_differences(name, activation, method):
    """Of images with pixels that are zero too: differences are taken along all others, where features are smooth.

    ReLU features of a zero pixel have a corner there, so that only a finite gradient can be asked for.
    """
    make, shape = GRADIENTS[name]
    X = torch.from_numpy(np.random.default_rng(0).standard_normal(shape))
    if X.ndim == 4:
        X[0, 1:3, 1:4] = 0
        X[1, 0, 0] = 0
    features = NetworkFeatures(make(activation), n_components=24, hidden_components=16, method=method, random_state=0)
    features.fit(X)
    x = X.clone().requires_grad_()
    Z = features.transform(x)
    torch.testing.assert_close(Z.detach(), features.transform(X), rtol=1e-10, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(Z.shape, generator=generator, dtype=Z.dtype)
    (gradient,) = torch.autograd.grad((Z * weights).sum(), x)
    assert torch.isfinite(gradient).all()
    assert gradient.any()
    step = 1e-6
    for _ in range(4):
        direction = torch.randn(shape, generator=generator, dtype=X.dtype) * (X != 0)
        above, below = ((features.transform(X + sign * step * direction) * weights).sum() for sign in (1, -1))
        scale = (gradient.abs() * direction.abs()).sum()
        assert abs((gradient * direction).sum() - (above - below) / (2 * step)) < 1e-5 * scale
        assert abs(1.01 * (gradient * direction).sum() - (above - below) / (2 * step)) > 1e-5 * scale
