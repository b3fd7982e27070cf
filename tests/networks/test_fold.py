"""The single traversal of layers: which algebra supports which layer, and how to add a custom layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pytest

from ntkit import GradientFeatures, NetworkFeatures
from ntkit import networks as nn
from ntkit.features.network.finite import FiniteSteps
from ntkit.features.network.plan import Endings, FeatureStages
from ntkit.kernels import KernelSpec, network_kernel
from ntkit.kernels._pairs import Segments
from ntkit.kernels.chain import Chain
from ntkit.kernels.covariances import Covariances, State
from ntkit.kernels.series import PowerSeries
from ntkit.networks.fold import TrainedLayers, flatten, fold, leaves
from ntkit.networks.shapes import Growth, Powers

LAYERS = [getattr(nn, name) for name in nn.__all__ if isinstance(getattr(nn, name), type)]
LAYERS = [
    kind for kind in LAYERS
    if issubclass(kind, nn.Layer) and kind not in (nn.Layer, nn.Activation, nn.PiecewiseLinear, nn.Sequential)
]  # fmt: skip
SMOOTH = {"Erf", "GELU", "Gaussian", "Sin"}
IMAGES = {"AvgPool", "Conv", "Flatten", "GlobalAvgPool"}
LACKS = {
    nn.Shapes: set(),
    Covariances: set(),
    TrainedLayers: set(),
    Growth: set(),
    Endings: set(),
    FeatureStages: set(),
    FiniteSteps: set(),
    PowerSeries: SMOOTH | IMAGES | {"Normalize"},
    Chain: SMOOTH | IMAGES | {"Normalize", "Residual"},
    Segments: SMOOTH | {"Dense", "Normalize", "Residual"},
}
"""Layers that an algebra does not support. If you add a layer, this test shows where its rules are missing."""


@pytest.mark.parametrize("algebra", LACKS, ids=lambda algebra: algebra.__name__)
def test_which_algebra_lacks_which_layer(algebra):
    joins = algebra.join is not nn.Algebra.join
    lacks = {kind.__name__ for kind in LAYERS if kind is not nn.Residual and algebra.find(kind) is None}
    assert lacks | (set() if joins else {"Residual"}) == LACKS[algebra]


def test_all_algebras_are_listed():
    def subclasses(kind):
        return {kind, *(low for base in kind.__subclasses__() for low in subclasses(base))}

    ours = {kind for kind in subclasses(nn.Algebra) if kind.__module__.startswith("ntkit.")}
    assert ours - {nn.Algebra} == set(LACKS)


@pytest.mark.parametrize("name", ["sigma", "sigma_prime", "moments", "hermite_factors", "hermite_weights"])
def test_activations_have_all_methods(name):
    for kind in LAYERS:
        if issubclass(kind, nn.Activation):
            assert getattr(kind, name) is not getattr(nn.Activation, name), kind


def test_places_and_order():
    class Trace(nn.Algebra[Any]):
        def join(self, layer, before, ends, path):
            return [*chain.from_iterable(ends)]

    @Trace.rule(nn.Layer)
    def _(algebra, layer, seen, path):
        return [*seen, (path, layer)]

    net = nn.Sequential(nn.Dense(), nn.Residual(nn.Sequential(), nn.Sequential(nn.ReLU(), nn.Dense())), nn.Erf())
    found = fold(net, Trace(), [])
    first = ((0,), nn.Dense())
    assert found == [first, first, ((1, 1, 0), nn.ReLU()), ((1, 1, 1), nn.Dense()), ((2,), nn.Erf())]
    assert [type(layer).__name__ for layer in leaves(net)] == ["Dense", "ReLU", "Dense", "Erf"]
    assert [type(layer).__name__ for layer in flatten(net)] == ["Dense", "Residual", "Erf"]
    assert fold(net, TrainedLayers(), 0) == 2
    last = nn.Sequential(nn.Dense(), nn.Residual(*reversed(net.layers[1].branches)))
    assert fold(last, TrainedLayers(), 0) == 2


def test_rules_are_inherited_by_layers_and_algebras():
    class Base(nn.Algebra[int]):
        pass

    class Derived(Base):
        pass

    @Base.rule(nn.Activation)
    def _(algebra, layer, state, path):
        return state + 1

    @Derived.rule(nn.ReLU)
    def _(algebra, layer, state, path):
        return state + 10

    net = nn.Sequential(nn.ReLU(), nn.Erf())
    assert fold(net, Base(), 0) == 2
    assert fold(net, Derived(), 0) == 11
    with pytest.raises(nn.UnsupportedError, match="Base has no rule for Dense"):
        fold(nn.Dense(), Base(), 0)
    with pytest.raises(nn.UnsupportedError, match="Base has no rule for Residual"):
        fold(nn.Residual(nn.ReLU(), nn.ReLU()), Base(), 0)


def test_growth():
    def powers(*layers):
        return fold(nn.Sequential(*layers), Growth(), Powers())

    assert powers(nn.Dense(), nn.ReLU(), nn.Dense()) == (1, 1, 2)
    assert powers(nn.Dense(bias_std=1.0), nn.ReLU()) == (0, 1, 2)
    assert powers(nn.Dense(), nn.Erf(), nn.Dense()) == (1, 0, 1)
    assert powers(nn.Dense(), nn.Gaussian(), nn.Dense()) == (0, 0, 2)
    assert powers(nn.Normalize(), nn.Dense()) == (0, 0, 0)
    assert powers(nn.Dense(), nn.Residual(nn.Sequential(), nn.Sequential(nn.Erf(), nn.Dense()))) == (1, 1, 2)


# A layer of your own, as the tutorial adds it.


@dataclass(frozen=True, repr=False)
class Cube(nn.Activation):
    """σ(z) = z³: E[σ(u)σ(v)] = 9abc + 6c³."""

    def sigma(self, u):
        return u**3

    def sigma_prime(self, u):
        return 3 * u**2

    def moments(self, c, a, b):
        return 9 * a * b * c + 6 * c**3, 9 * a * b + 18 * c**2

    def hermite_factors(self, a, *, derivative):
        root = a**0.5
        return (a if derivative else a * root), None

    def hermite_weights(self, n):
        weights = np.zeros(n)
        weights[1:2], weights[3:4] = 3, 6**0.5  # z³ = 3 He₁ + He₃
        return weights, np.zeros(n)


@dataclass(frozen=True, repr=False)
class Scale(nn.Layer):
    """x ↦ ``factor`` · x."""

    factor: float = field(default=1.0)


@nn.Shapes.rule(Scale)
def _(algebra, layer, flow, path):
    return flow


@Covariances.rule(Scale)
def _(algebra, layer, state: State, path):
    return state.map(lambda A: layer.factor**2 * A)


def test_an_activation_of_your_own(rng):
    X = rng.standard_normal((6, 4)) / 2
    net = nn.Sequential(nn.Dense(), Cube(normalize=False), nn.Dense())
    c, a = X @ X.T, (X**2).sum(axis=1)
    sigma = 9 * np.outer(a, a) * c + 6 * c**3
    theta = c * (9 * np.outer(a, a) + 18 * c**2) + sigma
    np.testing.assert_allclose(network_kernel(net, X), theta, rtol=1e-12)
    np.testing.assert_allclose(network_kernel(net, X, kind="nngp"), sigma, rtol=1e-12)
    for method in ("sketch", "random"):
        features = NetworkFeatures(
            net, n_components=8192, method=method, directions="gaussian", normalize=False, random_state=0
        )
        Z = features.fit_transform(X)
        assert np.linalg.norm(Z @ Z.T - theta) < 0.25 * np.linalg.norm(theta)


def test_a_layer_of_your_own(rng):
    X = rng.standard_normal((5, 4))
    net = nn.Sequential(nn.Dense(), nn.ReLU(), Scale(3.0), nn.Dense())
    same = nn.Sequential(nn.Dense(), nn.ReLU(), nn.Dense(weight_std=3.0))
    np.testing.assert_allclose(network_kernel(net, X, kind="nngp"), network_kernel(same, X, kind="nngp"), rtol=1e-12)
    with pytest.raises(nn.UnsupportedError, match="PowerSeries has no rule for Scale"):
        KernelSpec.of(net).taylor(3)


def test_features_name_the_layers_that_they_do_not_take(rng):
    net = nn.Sequential(nn.Dense(), nn.ReLU(), Scale(3.0), nn.Dense())
    with pytest.raises(nn.UnsupportedError, match="NetworkFeatures: FeatureStages has no rule for Scale"):
        NetworkFeatures(net, n_components=16).fit(rng.standard_normal((5, 4)))
    with pytest.raises(nn.UnsupportedError, match="GradientFeatures: FiniteSteps has no rule for Scale"):
        GradientFeatures(net, width=4).fit(rng.standard_normal((5, 4)))


def test_an_activation_without_growth_is_traversed_unchanged():
    """σ = u³ grows like ‖x‖³: no growth is assumed, and its range is the range of float64."""
    net = nn.Sequential(nn.Dense(), Cube(normalize=False), nn.Dense())
    x = np.array([[1.0, 2.0]])
    near, far = (network_kernel(net, s * x, x, kind="nngp") * s**-3 for s in (1.0, 1e40))
    np.testing.assert_allclose(far, near, rtol=1e-12)


def test_a_layer_without_rules(rng):
    @dataclass(frozen=True, repr=False)
    class Strange(nn.Layer):
        pass

    with pytest.raises(TypeError, match="Shapes has no rule for Strange"):
        network_kernel(nn.Sequential(nn.Dense(), Strange()), rng.standard_normal((2, 2)))
