"""Torch modules of fitted estimators: equal to transform and predict, differentiable, movable, exportable."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.tiers import thorough
from tests.torch_modules.subjects import CLASSIFIERS, IMAGE_MAPS, MAPS, REGRESSORS, fitted, new_data, rows

import ntkit
from ntkit._expression import NotExpressibleError
from ntkit.torch import Features, Model

TRANSFORMERS = [*MAPS, *IMAGE_MAPS]
MODELS = [*REGRESSORS, *CLASSIFIERS]


def module_of(name, dtype=torch.float64):
    kind = Features if name in TRANSFORMERS else Model
    return kind(fitted(name), dtype=dtype)


def expected(name, X):
    estimator = fitted(name)
    if name in TRANSFORMERS:
        return np.asarray(estimator.transform(X))
    return estimator.predict_proba(X) if name in CLASSIFIERS else estimator.predict(X)


def error(found, true):
    return np.abs(np.asarray(found) - true).max() / np.abs(true).max()


@pytest.mark.parametrize("name", [*TRANSFORMERS, *MODELS])
def test_a_module_is_its_estimator(name):
    """Near cosine 1, kernels of angles and distances lose half of the digits; no cosines here are near 1."""
    X = new_data(name)
    found = module_of(name)(torch.tensor(X))
    true = expected(name, X)
    assert found.dtype == torch.float64
    assert found.shape == true.shape
    assert error(found, true) < 1e-9


@pytest.mark.parametrize("name", [*TRANSFORMERS, *MODELS])
def test_in_float32(name):
    X = new_data(name)
    found = module_of(name, torch.float32)(torch.tensor(X, dtype=torch.float32))
    assert found.dtype == torch.float32
    assert error(found, expected(name, X)) < 1e-4


@pytest.mark.parametrize("name", [*TRANSFORMERS, *MODELS])
def test_gradients_of_modules_equal_finite_differences(name):
    module = module_of(name)
    torch.manual_seed(0)
    x = torch.tensor(new_data(name, 2), requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: module(t), (x,), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


def call(name):
    estimator = fitted(name)
    if name in TRANSFORMERS:
        return estimator.transform
    return estimator.predict_proba if name in CLASSIFIERS else estimator.predict


OF_SKLEARN = {"pipeline", "linear"}  # steps of scikit-learn take no tensors that require gradients


@pytest.mark.parametrize("name", [name for name in (*TRANSFORMERS, *MODELS) if name not in OF_SKLEARN])
def test_gradients_of_estimators_equal_finite_differences(name):
    """None detaches silently."""
    function = call(name)
    x = torch.tensor(new_data(name, 2), requires_grad=True)
    result = function(x)
    assert result.requires_grad
    assert error(result.detach(), expected(name, x.detach().numpy())) < 1e-9
    assert torch.autograd.gradcheck(function, (x,), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


KERNELS = {
    "ntk": {"depth": 2}, "nngp": {"depth": 2}, "gaussian": {}, "laplace": {}, "matern": {"nu": 2.5},
    "exponential": {"lengthscale": 2.0}, "polynomial": {"degree": 3, "coef0": 1.0}, "arc_cosine": {"order": 1},
    "dot_product": {"function": [1.0, 0.5, 0.25]},
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("columns", [3, 40])
def test_kernels_keep_gradients(name, columns):
    X, Y = (torch.tensor(rows(n, columns, seed), requires_grad=True) for n, seed in ((3, 1), (4, 2)))

    def kernel(X, Y):
        return ntkit.kernels.gram(name, X / columns**0.5, Y / columns**0.5, **KERNELS[name])

    exact = ntkit.kernels.gram(
        name, X.detach().numpy() / columns**0.5, Y.detach().numpy() / columns**0.5, **KERNELS[name]
    )
    assert error(kernel(X, Y).detach(), exact) < 1e-12
    assert torch.autograd.gradcheck(kernel, (X, Y), eps=1e-6, atol=1e-6, rtol=1e-4)
    own = ntkit.kernels.gram(name, X, **KERNELS[name])
    assert own.requires_grad


def test_gradients_are_finite_where_rows_coincide():
    """There, kernels of angles and distances have cusps; the part of the gradient that jumps is omitted."""
    for name, params in KERNELS.items():
        X = torch.tensor(rows(4, 30), requires_grad=True)
        Y = torch.tensor(rows(4, 30))
        (gradient,) = torch.autograd.grad(ntkit.kernels.gram(name, X, Y, **params).sum(), X)
        assert torch.isfinite(gradient).all(), name
    zero = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
    for name in ("ntk", "nystroem ntk", "nystroem laplace", "kernel ridge"):
        (gradient,) = torch.autograd.grad(call(name)(zero).sum(), zero)
        assert torch.isfinite(gradient).all(), name


def test_image_kernels_keep_gradients():
    X = torch.tensor(new_data("cntk", 2), requires_grad=True)
    Y = torch.tensor(new_data("cntk", 3))
    assert torch.autograd.gradcheck(
        lambda X: ntkit.kernels.cntk(X, Y, depth=2), (X,), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True
    )


def test_operations_without_gradients_raise_clear_errors():
    X = rows()
    model = ntkit.GramRidge(ntkit.NTKFeatures(n_components=8), random_state=0).fit(X, X[:, 0])
    with pytest.raises(TypeError, match=r"GramRidge cannot be written as one expression.*FeatureRidge"):
        model.predict(torch.tensor(X, requires_grad=True))


def test_buffers_are_state():
    """A module of another seed loads the state of this one; there are no trainable parameters."""
    X = rows()
    first, second = (
        Features(ntkit.RandomFourierFeatures(n_components=16, random_state=seed).fit(X), dtype=torch.float64)
        for seed in (0, 1)
    )
    x = torch.tensor(X)
    assert not torch.allclose(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert not list(first.parameters())
    assert torch.equal(copy.deepcopy(first)(x), first(x))
    assert torch.equal(pickle.loads(pickle.dumps(first))(x), first(x))


def test_kernels_stay_in_float64_in_modules_of_float32():
    module = module_of("nystroem")
    x = torch.tensor(new_data("nystroem"))
    before = module(x)
    again = module.to(torch.float32).to(torch.float64)
    # Only constants of the feature map itself were rounded.
    assert error(again(x), before.numpy()) < 1e-6
    assert any(buffer.dtype == torch.float64 for buffer in module.to(torch.float32).buffers())
    assert module.to(torch.float32)(x.float()).dtype == torch.float32
    assert module.to("meta").body.precision.device.type == "meta"


@pytest.mark.parametrize("name", ["fourier", "kernel ridge", "pipeline"])
def test_torch_export_for_any_number_of_rows(name):
    module = module_of(name)
    X = torch.tensor(new_data(name, 6))
    n = torch.export.Dim("n")
    program = torch.export.export(module, (X,), dynamic_shapes={"x": {0: n}})
    for part in (X, X[:3]):
        assert torch.allclose(program.module()(part), module(part), rtol=1e-12, atol=1e-12)


@thorough
@pytest.mark.parametrize("name", [*TRANSFORMERS, *MODELS])
def test_torch_export_of_all(name):
    module = module_of(name)
    X = torch.tensor(new_data(name, 6))
    program = torch.export.export(module, (X,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    assert torch.allclose(program.module()(X[:4]), module(X[:4]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["fourier", "nystroem"])
def test_torch_compile_without_graph_breaks(name):
    module = module_of(name)
    torch._dynamo.reset()  # all modules share the code of `forward`
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.tensor(new_data(name), requires_grad=True)
    found, true = compiled(x), module(x)
    assert torch.allclose(found, true, rtol=1e-10, atol=1e-10)
    (a,), (b,) = (torch.autograd.grad(values.sum(), x) for values in (found, true))
    assert torch.allclose(a, b, rtol=1e-8, atol=1e-8)


@thorough
@pytest.mark.parametrize("name", [*TRANSFORMERS, *MODELS])
def test_torch_compile_of_all(name):
    module = module_of(name)
    torch._dynamo.reset()  # all modules share the code of `forward`
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.tensor(new_data(name))
    assert torch.allclose(compiled(x), module(x), rtol=1e-10, atol=1e-10)


def test_a_network_around_features_learns():
    """Gradients reach the layer before the features."""
    torch.manual_seed(0)
    X = rows(256)
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(np.sin(2 * X[:, 0]), dtype=torch.float32)[:, None]
    features = Features(ntkit.NTKFeatures(n_components=64, random_state=0).fit(X))
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), features, torch.nn.Linear(64, 1))
    before = net[0].weight.detach().clone()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert not torch.equal(net[0].weight, before)


def test_bad_arguments():
    X = rows()
    unfitted = ntkit.NTKFeatures(n_components=8)
    with pytest.raises(Exception, match="not fitted"):
        Features(unfitted)
    features = Features(fitted("ntk"))
    with pytest.raises(ValueError, match=r"'x' parameter of Features must be of shape \(n, 6\)"):
        features(torch.zeros(3, 5))
    with pytest.raises(TypeError, match="'x' parameter of Features must be a torch tensor"):
        features(X)
    with pytest.raises(TypeError, match=r"must be a transformer, not a model(?s:.*)ntkit.torch.Model"):
        Features(fitted("feature ridge"))
    with pytest.raises(TypeError, match=r"must be a model, not a transformer(?s:.*)ntkit.torch.Features"):
        Model(fitted("ntk"))
    with pytest.raises(TypeError, match="'dtype' parameter"):
        Features(fitted("ntk"), dtype=torch.int64)
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import QuantileTransformer

    pipeline = make_pipeline(QuantileTransformer(n_quantiles=10), ntkit.NTKFeatures(n_components=8)).fit(X)
    with pytest.raises(NotExpressibleError, match="The step QuantileTransformer"):
        Features(pipeline)
    with pytest.raises(NotExpressibleError, match="user-defined function"):
        Features(ntkit.NystroemFeatures(lambda X, Y: X @ Y.T, n_components=4, random_state=0).fit(X))
