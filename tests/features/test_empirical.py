"""EmpiricalNTKFeatures: naive gradients times explicit sketches; laws, plans, outputs; modules stay unchanged."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from tests import statistical
from tests.features.empirical_modules import CASES, CLASSES, perturbed
from tests.reference import empirical as reference
from tests.tiers import pairwise, scaled
from torch import nn

import ntkit
from ntkit import EmpiricalNTKFeatures, networks
from ntkit.features.empirical.plan import Parameter, make_plan, measure, shares

N_ROWS = 7
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's, about its speed


def prepared(name: str, dtype: torch.dtype = torch.float64, n_rows: int = N_ROWS) -> tuple[nn.Module, Any, Any]:
    """A module of a case, rows and targets, of a dtype."""
    torch.manual_seed(0)
    case = CASES[name]
    module = perturbed(case.make()).to(dtype)

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    X = case.rows(n_rows)
    X = {key: cast(x) for key, x in X.items()} if isinstance(X, dict) else cast(X)
    return module, X, case.targets(n_rows)


def fitted(name: str, *data: Any, **params: Any) -> EmpiricalNTKFeatures:
    """A fitted map; the warning about parameters that take the slow way is expected where there are some."""
    features = EmpiricalNTKFeatures(**{"n_components": 100, "random_state": 0} | params)
    expected = CASES[name].fallback
    with pytest.warns(UserWarning, match=expected[0]) if expected else nullcontext():
        return features.fit(*data)


def scalar(module: nn.Module, x: Any, y: Any) -> torch.Tensor:
    """The margin by the reference, of modules that return a tensor or a dict."""

    def logits(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = module(*args, **kwargs)
        return out["logits"] if isinstance(out, dict) else out

    return reference.margin(logits, x, y)


@pytest.mark.parametrize("name", CASES)
def test_features_are_naive_gradients_times_explicit_sketches(name: str) -> None:
    module, X, y = prepared(name)
    features = fitted(name, X, y, module=module)
    grads = reference.gradients(module, scalar, X, y)
    expected = reference.features(grads, features)
    Z = features.transform(X, y).numpy()
    np.testing.assert_allclose(Z, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    K = reference.kernel(grads)
    np.testing.assert_allclose(features.exact_kernel(X, y).numpy(), K, rtol=0, atol=1e-11 * np.abs(K).max())
    case = CASES[name]
    assert {n for n, note in features.notes_.items() if note == "fallback"} == set(case.fallback)
    assert {n for n, note in features.notes_.items() if note == "unused"} == set(case.unused)


@pytest.mark.parametrize("name", CASES)
def test_with_one_component_per_weight_features_are_an_isometry(name: str) -> None:
    module, X, y = prepared(name)
    features = fitted(name, X, y, module=module, n_components=10**6)
    Z = features.transform(X, y).numpy()
    K = reference.kernel(reference.gradients(module, scalar, X, y))
    np.testing.assert_allclose(Z @ Z.T, K, rtol=0, atol=1e-11 * np.abs(K).max())
    unused = sum(module.get_parameter(n).numel() for n in CASES[name].unused)
    assert Z.shape[1] == sum(p.numel() for p in module.parameters()) - unused


FACTORED = [name for name, case in CASES.items() if not case.fallback]


@pytest.mark.parametrize(
    ("name", "dtype", "batch_size"),
    pairwise(FACTORED, [torch.float32, torch.bfloat16], [1, 3, None]),
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_dtypes_and_batches_give_the_same_sketch(name: str, dtype: torch.dtype, batch_size: int | None) -> None:
    """bfloat16 has 8 bits: errors of layers one after another of some percent, of the largest feature."""
    module, X, y = prepared(name)
    features = fitted(name, X, y, module=module)
    exact = features.transform(X, y).numpy()
    other = copy.deepcopy(module).to(dtype)
    cast = X.to(dtype) if X.is_floating_point() else X
    low = features.set_params(module=other, batch_size=batch_size).transform(cast, y)
    assert low.dtype == torch.float32
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    error = np.abs(low.numpy() - exact).max() / np.abs(exact).max()
    assert error <= tolerance


def test_fits_in_another_dtype_make_the_same_plan() -> None:
    module, X, y = prepared("conv2d")
    plans = [
        fitted("conv2d", X.to(d), y, module=copy.deepcopy(module).to(d)).layers_ for d in (torch.float64, torch.float32)
    ]
    for a, b in zip(*plans, strict=True):
        assert {k: v for k, v in a.items() if k != "share"} == {k: v for k, v in b.items() if k != "share"}


def wide(seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """One linear map of six positions, whose gradient has rank 6 at most; all margins are a sum of outputs."""
    torch.manual_seed(seed)
    module = nn.Linear(24, 12, bias=False).double()
    X = torch.randn(5, 6, 24, dtype=torch.float64)
    X[1] = 0.5 * X[0] + 0.1 * X[1]
    return module, X


def weighted_sum(module: nn.Module, X: torch.Tensor, _: Any) -> torch.Tensor:
    """Different weights for all outputs, so that the gradient has full rank."""
    out = module(X)
    weights = torch.sin(torch.arange(out[0].numel(), dtype=out.dtype)).reshape(out.shape[1:])
    return (out * weights).flatten(1).sum(1)


@lru_cache
def kept_sketch(law: str, m: int) -> Any:
    """As :func:`sketch_of`; several checks look at the same maps."""
    sample, module, X = sketch_of(law, m)
    return statistical.kept(sample), module, X


def sketch_of(law: str, m: int) -> Any:
    """Maps of the rows of `wide` by seeds, all with one law."""
    module, X = wide()
    base = EmpiricalNTKFeatures(module, n_components=m, output=weighted_sum, random_state=0).fit(X)

    def of_seed(seed: int) -> Any:
        features = copy.copy(base)
        features._plan = tuple(replace(each, law=law) for each in base._plan)
        features._seed = np.random.SeedSequence(seed)
        features.__dict__.pop("_cached_sketch", None)
        return lambda _: features.transform(X).numpy()

    return of_seed, module, X


@pytest.mark.parametrize("law", ["count", "tensor"])
def test_kernels_are_unbiased_with_the_variance_of_the_formula(law: str) -> None:
    """False alarms: see `statistical`; 1e-6 for the mean. The formula of a TensorSRHT is an upper bound, with Gaussian
    factors instead of signs and independent rows; here the variance is at least a quarter of it.
    """
    m, n_seeds = 64, scaled(400, 1500)
    sample, module, X = kept_sketch(law, m)
    grads = reference.gradients(module, weighted_sum, X, None)["weight"]
    K = grads @ grads.T
    statistical.check_unbiased(sample, X.numpy(), K, n_seeds=n_seeds)
    formed = grads.reshape(len(X), 12, 24)
    if law == "count":
        variance = np.array([[reference.count_variance(a, b, m) for b in formed] for a in formed])
        statistical.check_variance(sample, X.numpy(), variance, n_seeds=n_seeds)
    else:
        variance = np.array([[reference.tensor_variance(a, b) / m for b in formed] for a in formed])
        statistical.check_variance(sample, X.numpy(), variance, n_seeds=n_seeds, low=0.25, high=1.3)


@pytest.mark.parametrize("fault", ["zero", "scale", "rectified", "shared signs"])
def test_faults_are_found(fault: str) -> None:
    """The checks above reject a zero map, a 5 % wrong scale, nonlinear features, and one factor used for both."""
    sample, module, X = kept_sketch("tensor", 64)
    grads = reference.gradients(module, weighted_sum, X, None)["weight"]
    G = grads.reshape(len(X), 12, 24)
    rng = np.random.default_rng(0)

    def faulty(seed: int) -> Any:
        def run(x: Any) -> np.ndarray:
            if fault == "zero":
                return np.zeros((len(X), 64))
            if fault == "scale":
                return 1.05 * sample(seed)(x)
            if fault == "rectified":
                features = sample(seed)(x)
                return features - 0.3 * np.abs(features)
            signs = rng.choice([-1.0, 1.0], (64, 24))
            return np.einsum("nij,mi,mj->nm", G, signs[:, :12], signs) / 8

        return run

    with pytest.raises(AssertionError):
        statistical.check_unbiased(faulty, X.numpy(), grads @ grads.T, n_seeds=400)


def test_layers_have_distinct_draws() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())])
    X = torch.randn(6, 64)
    features = EmpiricalNTKFeatures(module, n_components=600, output="random_logits", random_state=0).fit(X)
    layers = [features._sketch.layers[f"{i}.weight"] for i in (0, 2, 4)]
    statistical.check_distinct([layer.counts[1] for layer in layers])
    statistical.check_distinct([layer.counts[0] for layer in layers])
    statistical.check_distinct([s for layer in layers for s in layer.tensor.signs])


@pytest.mark.parametrize("law", ["count", "tensor"])
def test_all_forms_of_a_tensor_sketch_agree(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors times a dense matrix, transformed factors, chunks of one row."""
    from ntkit.features.empirical import draws

    sample, _, X = sketch_of(law, 40)
    found = [sample(3)(X)]
    monkeypatch.setattr(draws, "dense_cost", lambda *_: 0.0)
    found.append(sample(3)(X))
    monkeypatch.setattr(draws, "dense_cost", lambda *_: 1e30)
    found.append(sample(3)(X))
    monkeypatch.setattr(draws, "CHUNK", 1)
    found.append(sample(3)(X))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-12 * np.abs(found[0]).max())


def test_grouped_convolutions_in_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    from ntkit.features.empirical import draws

    module, X, y = prepared("conv2d")
    features = fitted("conv2d", X, y, module=module, n_components=60)
    features._plan = tuple(replace(each, law="tensor") if each.parameter.is_matrix else each for each in features._plan)
    expected = reference.features(reference.gradients(module, scalar, X, y), features)
    for cost in (0.0, 1e30):
        monkeypatch.setattr(draws, "dense_cost", lambda *_, cost=cost: cost)
        np.testing.assert_allclose(features.transform(X, y).numpy(), expected, atol=1e-12 * np.abs(expected).max())


# The plan.


def test_shares_sum_up_and_stay_below_sizes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(1, 12))
        weights = rng.exponential(size=k) ** 3 * (rng.random(k) > 0.1)
        sizes = rng.integers(1, 200, k).tolist()
        m = int(rng.integers(1, 800))
        found = shares(weights, sizes, m)
        alive = [s for s, w in zip(sizes, weights, strict=True) if w > 0]
        assert sum(found) == min(m, sum(alive))
        assert all(0 <= c <= s for c, s in zip(found, sizes, strict=True))
        assert all(c == 0 for c, w in zip(found, weights, strict=True) if w == 0)


def test_measured_variances() -> None:
    """Of rows without structure a TensorSRHT is as good as a CountSketch; of parallel factors four times worse."""
    rng = np.random.default_rng(0)
    one = np.array([1.0, 0.5])
    z = rng.standard_normal(20_000) * rng.standard_normal(20_000)  # one component of a ⊗ b
    found = measure(np.outer(one, z) / 20_000**0.5, exact=False, tensor=True)
    assert found.tensor / found.count == pytest.approx(4.0, rel=0.25)
    found = measure(np.outer(one, rng.standard_normal(20_000)) / 20_000**0.5, exact=False, tensor=True)
    assert found.tensor / found.count == pytest.approx(1.0, rel=0.1)


def test_laws_follow_cost_and_variance() -> None:
    def law(shape: tuple[int, int], positions: int, excess: float, m: int = 100) -> str:
        p = Parameter(name="w", shape=shape, source="factors", n_positions=positions)
        found = measure(np.eye(2), exact=True, tensor=False)
        found = type(found)(count=found.count, tensor=excess * found.count)
        return make_plan([p], [found], m, largest=2**24)[0].law

    assert law((10, 10), 1, 1.0) == "identity"
    assert law((768, 768), 128, 1.1) == "tensor"  # much cheaper, and nearly as good
    assert law((768, 768), 128, 3.0) == "count"
    assert law((128, 1152), 1024, 1.0, m=8192) == "count"  # cheaper
    assert law((50_000, 768), 128, 3.0) == "tensor"  # too large to form


def test_fewer_components_than_parameters() -> None:
    module, X, y = prepared("conv2d")
    Z = fitted("conv2d", X, y, module=module, n_components=3).transform(X, y)
    assert Z.shape == (N_ROWS, 3)


# The kernel of the features.


class Wide(nn.Module):
    """Two hidden layers in the NTK's parametrization: weights from N(0, 1), layers divided by √(width / 2)."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        sizes = ((10, width), (width, width), (width, 1))
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)
        for layer in self.layers:
            nn.init.normal_(layer.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = layer((2 / self.width) ** 0.5 * torch.relu(x) if i else x)
        return x


def test_kernels_of_wide_networks_tend_to_the_exact_ntk() -> None:
    """Mean errors of 10 networks: 0.26, 0.15 and 0.07 for widths of 64, 256 and 1024; 16 times the width gives a
    quarter.

    The error of one network varies by a third, the mean of 10 by a tenth, and the ratio by 0.15 of 0.28.
    """
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 10)))
    exact = ntkit.network_kernel(networks.fully_connected(2), X.numpy(), kind="ntk")
    errors = {}
    for width in (32, 512):
        found = []
        for seed in range(10):
            torch.manual_seed(seed)
            features = EmpiricalNTKFeatures(Wide(width).double(), n_components=64, output="logits", random_state=0).fit(
                X
            )
            found.append(np.linalg.norm(features.exact_kernel(X).numpy() - exact) / np.linalg.norm(exact))
        errors[width] = np.mean(found)
    assert errors[512] < 0.2
    assert errors[512] < 0.5 * errors[32]


def test_logits_are_blocks_of_one_sketch() -> None:
    module, X, _ = prepared("mlp")
    whole = EmpiricalNTKFeatures(module, n_components=80, output="logits", random_state=0).fit(X)
    Z = whole.transform(X).numpy().reshape(N_ROWS, CLASSES, -1)
    for c in range(CLASSES):
        grads = reference.gradients(module, lambda m, x, _, c=c: m(x)[:, c], X, None)
        np.testing.assert_allclose(Z[:, c], reference.features(grads, whole), atol=1e-12)
    one = EmpiricalNTKFeatures(module, n_components=80, output="random_logits", random_state=0).fit(X)
    signs = torch.from_numpy(one._signs)
    grads = reference.gradients(module, lambda m, x, _: (m(x) * signs).sum(1), X, None)
    np.testing.assert_allclose(one.transform(X).numpy(), reference.features(grads, one), atol=1e-12)


def test_losses() -> None:
    module, X, y = prepared("mlp")
    for output, targets, expected in (
        ("loss", y, lambda m, x, t: nn.functional.cross_entropy(m(x), t)),
        ("loss", torch.randn(N_ROWS, CLASSES).double(), lambda m, x, t: 0.5 * ((m(x) - t) ** 2).sum()),
        (lambda m, x, t: (m(x) * t[:, None]).sum(1), y, lambda m, x, t: (m(x) * t[:, None]).sum()),
    ):
        features = EmpiricalNTKFeatures(module, n_components=50, output=output, random_state=0).fit(X, targets)
        grads = reference.gradients(module, expected, X, targets)
        np.testing.assert_allclose(
            features.transform(X, targets).numpy(), reference.features(grads, features), atol=1e-12
        )


def test_positions_that_do_not_count_and_both_orders_of_axes() -> None:
    module, X, y = prepared("tokens")
    y[:, 2] = -100
    keep = [i for i in range(6) if i != 2]

    def loss(m: nn.Module, x: Any, t: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(m(x)[0, keep], t[0, keep], reduction="sum")

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).transpose(1, 2)

    features = EmpiricalNTKFeatures(module, n_components=50, output="loss", random_state=0).fit(X, y)
    grads = reference.gradients(module, loss, X, y)
    Z = features.transform(X, y).numpy()
    np.testing.assert_allclose(Z, reference.features(grads, features), atol=1e-11 * np.abs(Z).max())
    turned = EmpiricalNTKFeatures(Turned().eval(), output="loss", random_state=0, n_components=10**6).fit(X, y)
    K = reference.kernel(grads)
    np.testing.assert_allclose(turned.exact_kernel(X, y).numpy(), K, atol=1e-11 * np.abs(K).max())


def test_margins_of_one_logit_and_without_targets() -> None:
    torch.manual_seed(0)
    module, X = nn.Linear(3, 1), torch.randn(8, 3)
    y = torch.arange(8) % 2
    Z = EmpiricalNTKFeatures(module, random_state=0).fit(X, y).transform(X, y)
    signs = (2.0 * y - 1)[:, None]
    torch.testing.assert_close(Z[:, :3], signs * X)
    module, X, _ = prepared("mlp")
    features = EmpiricalNTKFeatures(module, random_state=0, n_components=60).fit(X)
    torch.testing.assert_close(features.transform(X), features.transform(X, module(X).argmax(1)))


# The module stays unchanged.


def state_of(module: nn.Module) -> dict[str, Any]:
    """All that could be changed: hooks, gradients, modes, buffers, attributes and their order."""
    return {
        name: (
            layer.training,
            len(layer._forward_hooks),
            len(layer._forward_pre_hooks),
            len(layer._backward_hooks),
            sorted(layer.__dict__),
            [(k, id(p), None if p is None else (p.requires_grad, p._version)) for k, p in layer._parameters.items()],
            [(k, None if b is None else b.clone().tolist()) for k, b in layer._buffers.items()],
        )
        for name, layer in module.named_modules()
    }


@pytest.mark.parametrize("name", CASES)
def test_the_module_stays_unchanged(name: str) -> None:
    module, X, y = prepared(name)
    first = next(module.parameters())
    first.grad = torch.ones_like(first)
    before, rng = state_of(module), torch.get_rng_state()
    features = fitted(name, X, y, module=module)
    features.transform(X, y)
    assert state_of(module) == before
    assert bool((first.grad == 1).all())
    assert all(p.grad is None for p in list(module.parameters())[1:])
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.parametrize("name", ["mlp", "tokens", "gated"])
def test_the_module_stays_unchanged_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ntkit.features.empirical import draws

    module, X, y = prepared(name)
    before = state_of(module)
    features = fitted(name, X, y, module=module)
    monkeypatch.setattr(draws.LayerSketch, "of_gradients", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        features.transform(X, y)
    assert state_of(module) == before
    with pytest.raises(ZeroDivisionError):
        EmpiricalNTKFeatures(module, random_state=0).fit(X, y)
    assert state_of(module) == before


def test_callers_without_gradients() -> None:
    """Attention has a fast path there, which no hook sees."""
    module, X, y = prepared("tokens")
    features = fitted("tokens", X, y, module=module)
    expected = features.transform(X, y)
    with torch.no_grad():
        torch.testing.assert_close(features.transform(X, y), expected)
    with torch.inference_mode():
        torch.testing.assert_close(features.transform(X.clone(), y), expected)


def test_hooks_of_the_user_still_work() -> None:
    module, X, y = prepared("mlp")
    seen: list[Any] = []
    module[0].register_forward_hook(lambda *parts: seen.append(parts[2].shape) or 2 * parts[2])
    features = fitted("mlp", X, y, module=module)
    assert seen
    grads = reference.gradients(module, scalar, X, y)
    np.testing.assert_allclose(features.transform(X, y).numpy(), reference.features(grads, features), atol=1e-11)


# Estimator.


def test_pickles_copies_and_clones() -> None:
    module, X, y = prepared("mlp")
    features = fitted("mlp", X, y, module=module)
    Z = features.transform(X, y)
    for other in (pickle.loads(pickle.dumps(features)), copy.deepcopy(features)):
        assert torch.equal(other.transform(X, y), Z)
    fresh = clone(features)
    assert fresh.module is module
    assert not hasattr(fresh, "_plan")
    assert torch.equal(fresh.fit(X, y).transform(X, y), Z)
    assert not torch.equal(clone(features).set_params(random_state=1).fit(X, y).transform(X, y), Z)
    assert list(features.get_feature_names_out()[:1]) == ["empiricalntkfeatures0"]
    declared = {*features._state, *features._remade, *features._transient, *features.get_params()}
    assert set(vars(features)) <= declared
    with pytest.raises(TypeError, match="cannot be saved"):
        ntkit.save(features, "unused")


def test_chosen_layers() -> None:
    module, X, y = prepared("mlp")
    whole = fitted("mlp", X, y, module=module, n_components=10**6)
    assert [each["name"] for each in whole.layers_] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for layers, names in (
        ("2", ["2.weight", "2.bias"]),
        (["*.bias"], ["0.bias", "2.bias"]),
        (["0.weight"], ["0.weight"]),
    ):
        some = fitted("mlp", X, y, module=module, layers=layers)
        assert [each["name"] for each in some.layers_] == names
    frozen = copy.deepcopy(module)
    frozen[0].requires_grad_(False)
    some = EmpiricalNTKFeatures(frozen, random_state=0).fit(X, y)
    assert some.notes_ == {"0.weight": "frozen", "0.bias": "frozen"}
    last = fitted("mlp", X, y, module=module, layers="2", n_components=10**6)
    torch.testing.assert_close(some.transform(X, y), last.transform(X, y))


def test_tied_and_twice_used_weights_are_counted_once() -> None:
    names = [each["name"] for each in fitted("tokens", *prepared("tokens")[1:], module=prepared("tokens")[0]).layers_]
    assert "tokens.weight" in names
    assert "head.weight" not in names
