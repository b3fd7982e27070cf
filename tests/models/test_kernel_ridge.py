"""Kernel ridge regression and classification against dense solves and scikit-learn, by all solvers."""

from __future__ import annotations

import pickle
import re
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics.pairwise import laplacian_kernel
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import get_tags
from tests.conftest import as_numpy
from tests.reference import kernel_ridge as reference
from tests.reference.ridge import gaussian_process_spread, mean_square
from threadpoolctl import threadpool_limits

from ntkit import KernelRidge, KernelRidgeClassifier, PolynomialSketch, RandomFourierFeatures, networks
from ntkit._array import is_torch
from ntkit.kernels import KernelSpec, cntk, exponential, gaussian, gram, network_kernel, ntk, polynomial
from ntkit.models import _kernel_problem, _problems, kernel_ridge
from ntkit.models._calibrate import left_out_log_loss
from ntkit.models._path import GRID

SOLVERS = ("direct", "pcg", "gradient", "sketch")
NET = networks.fully_connected(2)
CONV = networks.Sequential(networks.Conv(3), networks.ReLU(), networks.GlobalAvgPool(), networks.Dense())


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS and torch wait for each other."""
    import torch  # noqa: F401  # its threads are limited only once they are there

    with threadpool_limits(1):
        yield


@pytest.fixture
def X(rng):
    return rng.standard_normal((60, 4))


@pytest.fixture
def y(X, rng):
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(60) + 3


def exact(solver, **solver_params):
    """A solver that comes down to the exact solution: every feature, no sketch, a small tolerance."""
    options = {
        "pcg": {"tolerance": 1e-12},
        "gradient": {"tolerance": 1e-11, "n_neighbors": 60, "max_iter": 5000},
        "sketch": {"n_components": 10**6, "sketch_size": 10**6},
    }
    return {"solver": solver, "random_state": 0, "solver_params": options.get(solver, {}) | solver_params}


def pcg(**solver_params):
    return {"solver": "pcg", "random_state": 0, "solver_params": solver_params}


def rows_of(kind, X):
    import pandas as pd
    import torch

    make = {
        "csr": sp.csr_array,
        "torch": torch.from_numpy,
        "torch32": lambda X: torch.from_numpy(X).float(),
        "gradients": lambda X: torch.from_numpy(X).requires_grad_(),
        "frame": lambda X: pd.DataFrame(X).add_prefix("x"),
    }
    return make.get(kind, np.asarray)(X)


# Solutions.

KERNELS = {
    "gaussian": ("gaussian", {"lengthscale": 1.5}, lambda X, Y: gaussian(X, Y, lengthscale=1.5)),
    "polynomial": (
        "polynomial",
        {"kernel_params": {"degree": 3, "coef0": 1.0, "gamma": 0.5}},
        lambda X, Y: polynomial(X, Y, degree=3, coef0=1.0, gamma=0.5),
    ),
    "ntk": ("ntk", {}, lambda X, Y: ntk(X, Y, depth=1)),
    "ntk of depth 3": ("ntk", {"depth": 3}, lambda X, Y: ntk(X, Y, depth=3)),
    "nngp": ("nngp", {"depth": 2}, lambda X, Y: gram("nngp", X, Y, depth=2)),
    "exponential": ("exponential", {"lengthscale": 3.0}, lambda X, Y: exponential(X, Y, lengthscale=3.0)),
    "dot_product": (
        "dot_product",
        {"kernel_params": {"function": [1.0, 0.5, 0.0, 0.25]}},
        lambda X, Y: 1 + 0.5 * (X @ Y.T) + 0.25 * (X @ Y.T) ** 3,
    ),
    "network": (NET, {"kernel_params": {"kind": "nngp"}}, lambda X, Y: network_kernel(NET, X, Y, kind="nngp")),
    "function": (laplacian_kernel, {"kernel_params": {"gamma": 0.3}}, lambda X, Y: laplacian_kernel(X, Y, gamma=0.3)),
}
FITS = [(None, True, False), (2, True, True), (1, False, False), (None, False, True)]  # targets, intercept, weights


@pytest.mark.parametrize("kernel", KERNELS)
def test_solutions_of_all_solvers(kernel, X, y, rng):
    """Coefficients, constants, predictions and noise; every solver meets every kind of fit over the kernels."""
    shift = list(KERNELS).index(kernel)
    kernel, parameters, function = KERNELS[kernel]
    new, alpha = rng.standard_normal((9, 4)), 0.5
    K, cross = function(X, X), function(new, X)
    for i, solver in enumerate(SOLVERS):
        n_targets, intercept, weighted = FITS[(i + shift) % 4]
        Y = y if n_targets is None else np.column_stack([y, X[:, 3]])[:, :n_targets]
        weight = rng.uniform(0.1, 10, 60) * (rng.random(60) < 0.8) if weighted else None
        model = KernelRidge(kernel, alphas=alpha, fit_intercept=intercept, **exact(solver), **parameters)
        model.fit(X, Y, weight)
        dual, constant = reference.kernel_ridge(K, Y, alpha, weight, intercept=intercept)
        assert (model.solver_, model.alpha_, model.n_iter_ > 0) == (solver, alpha, True)
        np.testing.assert_array_equal(model.alphas_, [alpha])
        assert np.isnan(model.errors_).all()
        np.testing.assert_allclose(model.intercept_, constant, atol=1e-6)
        np.testing.assert_allclose(model.predict(new), cross @ dual + constant, atol=1e-6)
        if solver == "sketch":  # with all rows as landmarks, the coefficients solve K c = Z w
            assert not hasattr(model, "noise_variance_")
            continue
        np.testing.assert_allclose(model.dual_coef_, dual, atol=1e-6)
        weight = np.ones(60) if weight is None else weight
        noise = weight @ (Y - K @ dual - constant) ** 2 + alpha * (dual * (K @ dual)).sum(axis=0)
        np.testing.assert_allclose(model.noise_variance_, noise / weight.sum(), rtol=1e-6)


def test_the_constant_is_not_penalized(X, y):
    """Neither a constant added to the targets nor one added to the kernel changes the rest of the model."""
    K = ntk(X, depth=2)
    for solver in SOLVERS:
        model = KernelRidge("precomputed", alphas=2.0, **exact(solver)).fit(K, y)
        moved = clone(model).fit(K, y + 100)
        np.testing.assert_allclose(moved.predict(K), model.predict(K) + 100, rtol=1e-6)
        if solver != "sketch":
            np.testing.assert_allclose(moved.intercept_, model.intercept_ + 100, rtol=1e-6)
            assert abs(model.dual_coef_.sum()) < 1e-8
        lifted = clone(model).fit(K + 5, y)
        np.testing.assert_allclose(lifted.predict(K + 5), model.predict(K), atol=1e-6)
        assert abs(model.intercept_ - y.mean()) > 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
def test_precomputed(solver, X, y, rng):
    new = rng.standard_normal((9, 4))
    K, cross = ntk(X, depth=2), ntk(new, X, depth=2)
    weight = rng.uniform(0, 2, 60) * (rng.random(60) < 0.7)
    dual, constant = reference.kernel_ridge(K, y, 0.5, weight)
    kept = K.copy()
    for dtype, error in ((np.float64, 1e-7), (np.float32, 1e-3)):
        for batch_size in (None, 4):
            model = KernelRidge("precomputed", alphas=0.5, batch_size=batch_size, **exact(solver))
            out = model.fit(K.astype(dtype), y, weight).predict(cross.astype(dtype))
            assert out.dtype == dtype
            np.testing.assert_allclose(out, cross @ dual + constant, atol=error)
    assert model.X_fit_ is None
    assert model.n_features_in_ == 60
    clone(model).fit(K, y)
    np.testing.assert_array_equal(K, kept)


@pytest.mark.parametrize(
    ("solver", "library", "kind"),
    [
        ("direct", "numpy", "uint8"), ("direct", "torch", "float32"), ("pcg", "torch", "uint8"),
        ("pcg", "numpy", "float32"), ("gradient", "numpy", "float64"), ("sketch", "torch", "float64"),
    ],
)  # fmt: skip
def test_images(solver, library, kind, rng):
    import torch

    images = rng.integers(1, 9, (30, 3, 4, 2)).astype(kind)
    y = rng.standard_normal(30)
    rows = images if library == "numpy" else torch.from_numpy(images)
    for kernel, function in (("cntk", lambda X: cntk(X, depth=2)), (CONV, lambda X: network_kernel(CONV, X))):
        K = function(images.astype(np.float64))
        dual, constant = reference.kernel_ridge(K[:25, :25], y[:25], 1.0)
        model = KernelRidge(kernel, alphas=1.0, depth=2, **exact(solver)).fit(rows[:25], y[:25])
        out = model.predict(rows[25:])
        assert str(out.dtype).endswith("float32") == (kind == "float32")
        assert is_torch(out) == (library == "torch")
        np.testing.assert_allclose(as_numpy(out), K[25:, :25] @ dual + constant, atol=1e-3 if "32" in kind else 1e-6)
        np.testing.assert_allclose(as_numpy(model.predict(rows[25:].reshape(5, 24))), as_numpy(out), atol=1e-5)
        if solver == "direct":
            mean, std = model.predict(rows[25:], return_std=True)
            assert std.shape == mean.shape == (5,)
    with pytest.raises(ValueError, match=r"images of shape \(4, 3, 2\), but .* expecting images of shape \(3, 4, 2\)"):
        model.predict(rows.reshape(30, 4, 3, 2))


def test_images_need_a_kernel_of_images(rng):
    images, y = rng.standard_normal((5, 2, 3, 1)), np.arange(5.0)
    for parameters, rule in (
        ({"kernel": "gaussian"}, r"2-D \(n_samples, n_features\)"),
        ({"kernel": "gaussian", "lengthscale": 1.0}, r"2-D \(n_samples, n_features\)"),
        ({"kernel": "ntk"}, r"2-D \(n_samples, n_features\) for kernel='ntk'"),
        ({"kernel": "cntk", "depth": 1}, r"'depth' .* of KernelRidge must be an int ≥ 2 for kernel='cntk'.* Got 1"),
    ):
        with pytest.raises(ValueError, match=rule):
            KernelRidge(**parameters).fit(images, y)
    deep = KernelRidge("cntk", depth=3).fit(images, y)
    np.testing.assert_array_equal(KernelRidge("cntk").fit(images, y).predict(images), deep.predict(images))
    again = KernelRidge("cntk", depth=2).fit(images, y).set_params(kernel="ntk").fit(images.reshape(5, 6), y)
    assert not hasattr(again, "image_shape_")


@pytest.mark.parametrize("solver", SOLVERS)
def test_few_and_equal_rows(solver):
    rows = [np.ones((1, 1)), np.zeros((1, 3)), np.zeros((5, 2)), np.ones((6, 2)), np.repeat(np.eye(3), 4, axis=0)]
    images = [np.zeros((1, 3, 3, 2)), np.ones((4, 1, 1, 1)), np.ones((4, 3, 3, 1))]
    for kernel, X in [(kernel, X) for kernel in ("gaussian", "ntk") for X in rows] + [("cntk", X) for X in images]:
        y = np.arange(float(len(X))) ** 2
        model = KernelRidge(kernel, alphas=0.1, **exact(solver)).fit(X, y)
        K = model._resolved.matrix(X)
        dual, constant = reference.kernel_ridge(K, y, 0.1)
        np.testing.assert_allclose(model.predict(X), K @ dual + constant, atol=1e-5)
        constants = clone(model).fit(X, np.full(len(X), 2.0))
        np.testing.assert_allclose(constants.predict(X), 2.0)
        np.testing.assert_allclose(constants.dual_coef_, 0, atol=1e-13)
        if solver != "sketch":
            for way in ("loo", "holdout"):
                path = clone(model).set_params(alphas=[0.1, 1.0], selection=way).fit(X, y)
                assert np.isfinite(path.predict(X)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_constant_and_varying_targets_together(solver, X, y):
    Y = np.column_stack([np.ones(60), y, np.zeros(60)])
    model = KernelRidge("ntk", alphas=0.5, **exact(solver)).fit(X, Y)
    alone = clone(model).fit(X, y)
    np.testing.assert_allclose(model.dual_coef_[:, 1], alone.dual_coef_, atol=1e-7)
    np.testing.assert_allclose(model.dual_coef_[:, [0, 2]], 0, atol=1e-15)


@pytest.mark.parametrize(("solver", "factor"), [("pcg", 1e-170), ("pcg", 1e160), ("gradient", 1e160)])
def test_targets_whose_squares_leave_the_range(solver, factor, X, y):
    Y = np.column_stack([y, factor * y])
    model = KernelRidge("ntk", alphas=0.5, **exact(solver)).fit(X, Y)
    np.testing.assert_allclose(model.dual_coef_[:, 1] / factor, model.dual_coef_[:, 0], atol=1e-7)


def test_solver_auto(monkeypatch, X, y):
    assert KernelRidge().fit(X, y).solver_ == "direct"
    monkeypatch.setitem(kernel_ridge._MAX_DIRECT, "cpu", 59)
    model = KernelRidge(random_state=0).fit(X, y)
    assert model.solver_ == "pcg"
    assert model.n_iter_ > 1
    assert KernelRidge().fit(X[1:], y[1:]).solver_ == "direct"


@pytest.mark.parametrize("solver", SOLVERS)
def test_memory_limits_do_not_change_the_result(solver, X, y):
    options = exact(solver, n_components=20, sketch_size=40, n_neighbors=0 if solver == "pcg" else 60)
    plain = KernelRidge("ntk", alphas=0.5, **options).fit(X, y)
    for cache_size, batch_size in ((0, None), (0, 7), (0.015, 1), (0.015, 7), (None, 1)):  # 0.015 MiB: half of 60²
        params = options["solver_params"] | {"cache_size": cache_size}
        model = clone(plain).set_params(batch_size=batch_size, solver_params=params).fit(X, y)
        np.testing.assert_allclose(model.dual_coef_, plain.dual_coef_, atol=1e-6)
        np.testing.assert_allclose(model.predict(X), plain.predict(X), atol=1e-7)


def test_one_matrix_is_held_for_one_alpha(X, y, monkeypatch):
    """Several α need K again for each; a single one is factorized where K stood."""
    held = []
    matrix = _problems.FromGram.matrix

    def seeing(problem):
        A = matrix(problem)
        held.append(problem.K is not None)
        return A

    monkeypatch.setattr(_problems.FromGram, "matrix", seeing)
    KernelRidge("ntk", alphas=0.5).fit(X, y)
    KernelRidge("ntk", alphas=[0.5, 1.0]).fit(X, y)
    assert held == [False, True]


# Weights.


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_are_repeated_rows(solver, X, y, rng):
    weight = rng.integers(0, 4, 60)
    Y = np.column_stack([y, X[:, 3]])
    repeated = [np.repeat(values, weight, axis=0) for values in (X, Y)]
    for kernel, kind in (("gaussian", "numpy"), ("gaussian", "csr"), ("ntk", "numpy")):
        direct = KernelRidge(kernel, alphas=0.5).fit(*repeated)
        rows = rows_of(kind, X)
        model = KernelRidge(kernel, alphas=0.5, **exact(solver)).fit(rows, Y, sample_weight=weight)
        np.testing.assert_array_equal(model.dual_coef_[weight == 0], 0)
        np.testing.assert_allclose(model.predict(rows), direct.predict(X), atol=1e-6)
        np.testing.assert_allclose(model.intercept_, direct.intercept_, atol=1e-6)
        if kernel == "gaussian":
            assert model.lengthscale_ == pytest.approx(direct.lengthscale_)
    scaled = clone(model).set_params(alphas=5.0).fit(X, Y, 10 * weight)
    np.testing.assert_allclose(scaled.predict(X), model.predict(X), atol=1e-6)


@pytest.mark.parametrize("distance", [1e3, 1e17])
def test_rows_without_weight_do_not_matter(distance, X, y):
    """Not for the length scale either, however far away they are."""
    without = KernelRidge().fit(X[1:], y[1:])
    far = X.copy()
    far[0] = distance
    model = KernelRidge().fit(far, y, np.r_[0.0, np.ones(59)])
    assert model.lengthscale_ == pytest.approx(without.lengthscale_)
    np.testing.assert_allclose(model.dual_coef_[1:], without.dual_coef_, rtol=1e-9)
    for ours, theirs in zip(model.predict(X, return_std=True), without.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


# Kinds of rows: the model keeps the training rows and combines them with new rows in predictions.


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision_rows(solver, X, y):
    """An ill-conditioned smooth kernel: values in float32 would destroy the solution."""
    single = X.astype(np.float32)
    double = single.astype(np.float64)
    options = exact(solver, n_neighbors=60, tolerance=1e-9)
    expected = KernelRidge("gaussian", alphas=1e-6, lengthscale=4.0).fit(double, y)
    for kind in ("numpy", "csr", "torch"):
        rows = rows_of(kind, single)
        model = KernelRidge("gaussian", alphas=1e-6, lengthscale=4.0, **options).fit(rows, y)
        assert model.dual_coef_.dtype == np.float64
        out = model.predict(rows)
        assert str(out.dtype).endswith("float32")
        np.testing.assert_allclose(as_numpy(out), expected.predict(double), rtol=3e-7)
        np.testing.assert_allclose(model.predict(double), expected.predict(double), atol=1e-5)
    assert np.abs(expected.dual_coef_).max() > 1e3


@pytest.mark.parametrize("fitted", ["numpy", "csr", "torch", "gradients", "torch32", "frame"])
@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
def test_fit_on_one_kind_and_predict_another(fitted, X, y, rng):
    new = rng.standard_normal((8, 4)) * (rng.random((8, 4)) < 0.7)
    expected = KernelRidge("ntk", alphas=0.5).fit(X, y).predict(new, return_std=True)
    model = KernelRidge("ntk", alphas=0.5).fit(rows_of(fitted, X), y)
    for kind in ("numpy", "csr", "torch", "gradients", "torch32", "frame"):
        for found, value in zip(model.predict(rows_of(kind, new), return_std=True), expected, strict=True):
            assert is_torch(found) == (kind in ("torch", "gradients", "torch32"))
            assert str(found.dtype).endswith("float32" if "32" in kind else "float64")
            np.testing.assert_allclose(as_numpy(found), value, atol=1e-5 if "32" in kind + fitted else 1e-8)


def test_functions_get_tensors(X, y):
    import torch

    def kernel(A, B):
        assert isinstance(A, torch.Tensor)
        return torch.exp(-torch.cdist(A, B))

    rows = torch.from_numpy(X)
    K = as_numpy(kernel(rows, rows))
    dual, constant = reference.kernel_ridge(K, y, 0.5)
    for solver in SOLVERS:
        model = KernelRidge(kernel, alphas=0.5, **exact(solver)).fit(rows, y)
        np.testing.assert_allclose(as_numpy(model.predict(rows)), K @ dual + constant, atol=1e-6)


def test_read_only_rows(X, y):
    """As pandas has them: torch would warn of them, if only once."""
    import torch

    X.setflags(write=False)
    torch.set_warn_always(True)
    try:
        for solver in SOLVERS:
            model = KernelRidge("ntk", alphas=0.5, solver=solver, random_state=0).fit(X, y)
            out = model.predict(torch.from_numpy(X.copy()))
            np.testing.assert_allclose(as_numpy(out), model.predict(X), atol=1e-10)
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize("solver", ["direct", "pcg", "sketch"])
def test_dask(solver, X, y):
    da = pytest.importorskip("dask.array")
    import dask

    weight = np.linspace(0.5, 2, 60)
    chunks = da.from_array(X, chunks=(25, -1))
    with dask.config.set(scheduler="threads", num_workers=2):
        plain = KernelRidge("ntk", alphas=0.5, **exact(solver)).fit(X, y, weight)
        model = clone(plain).fit(chunks, da.from_array(y, chunks=25), da.from_array(weight, chunks=25))
        np.testing.assert_array_equal(model.dual_coef_, plain.dual_coef_)
        assert isinstance(model.X_fit_, np.ndarray)
        np.testing.assert_allclose(model.predict(chunks).compute(), plain.predict(X), atol=1e-10)
        if solver == "direct":
            mean, std = model.predict(chunks, return_std=True)
            assert mean.chunks == std.chunks == ((25, 25, 10),)
            np.testing.assert_allclose(std.compute(), plain.predict(X, return_std=True)[1])
        else:
            with pytest.raises(ValueError, match="return_std needs a KernelRidge with solver='direct'"):
                model.predict(chunks, return_std=True)


# Standard deviations.


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_standard_deviations(intercept, weighted, X, y, rng):
    """Against kriging and against scikit-learn's Gaussian process, where a large constant kernel is the intercept."""
    new, alpha = 2 * rng.standard_normal((9, 4)), 0.3
    Y = np.column_stack([y, X[:, 0]])
    weight = rng.uniform(0.2, 3, 60) if weighted else None
    model = KernelRidge("gaussian", alphas=alpha, lengthscale=1.5, fit_intercept=intercept).fit(X, Y, weight)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_array_equal(mean, model.predict(new))
    weight = np.ones(60) if weight is None else weight
    values, vectors = np.linalg.eigh(gaussian(np.vstack([X, new]), lengthscale=1.5))
    Z = vectors * np.sqrt(np.clip(values, 0, None))
    spread = gaussian_process_spread(Z[:60], weight, alpha, Z[60:], intercept=intercept)
    np.testing.assert_allclose(std, np.sqrt(model.noise_variance_ * (1 + spread[:, None])), rtol=1e-7)
    kernel = ConstantKernel(1 / alpha) * RBF(1.5) + (ConstantKernel(1e5) if intercept else ConstantKernel(1e-10))
    process = GaussianProcessRegressor(kernel, alpha=1 / weight, optimizer=None).fit(X, Y)
    theirs_mean, theirs = process.predict(new, return_std=True)
    np.testing.assert_allclose(mean, theirs_mean, atol=1e-3)
    np.testing.assert_allclose(std, np.sqrt(model.noise_variance_ * (1 + theirs**2)), rtol=1e-3)


def test_standard_deviations_in_blocks_and_after_changes(X, y):
    model = KernelRidge("ntk", alphas=[0.1, 1.0]).fit(X, y)
    _, std = model.predict(X, return_std=True)
    model.set_params(batch_size=7, kernel="precomputed", alphas=3.0, fit_intercept=False)
    for copy in (model, pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(copy.predict(X, return_std=True)[1], std)
    other = clone(model).set_params(kernel="ntk", alphas=0.1, fit_intercept=True)
    model.set_params(**other.get_params()).fit(X[:30], y[:30])
    np.testing.assert_allclose(
        model.predict(X, return_std=True)[1], other.fit(X[:30], y[:30]).predict(X, return_std=True)[1]
    )


def test_models_without_standard_deviations(X, y):
    K = ntk(X, depth=1)
    for parameters, rows in (({"kernel": "precomputed"}, K), ({"solver": "pcg"}, X), ({"solver": "sketch"}, X)):
        model = KernelRidge(random_state=0, **parameters).fit(rows, y)
        with pytest.raises(ValueError, match="return_std needs a KernelRidge with solver='direct', and a kernel other"):
            model.predict(rows, return_std=True)


# Iterations.


@pytest.mark.parametrize("solver", ["pcg", "gradient"])
def test_history(solver, X, y):
    Y = np.column_stack([y, X[:, 3]])
    options = {"solver": solver, "solver_params": {"tolerance": 1e-5}, "random_state": 0}
    for intercept in (False, True):
        model = KernelRidge("ntk", alphas=0.5, fit_intercept=intercept, **options).fit(X, Y)
        (history,) = model.history_
        assert history.shape == (model.n_iter_ + 1, 2)
        np.testing.assert_array_equal(history[0], 1)
        assert (history[-1] <= 1e-5).all()
        residual = Y - model.intercept_ - ntk(X, depth=1) @ model.dual_coef_ - 0.5 * model.dual_coef_
        relative = np.linalg.norm(residual, axis=0) / np.linalg.norm(Y - intercept * Y.mean(axis=0), axis=0)
        assert (relative <= 3e-5).all()  # the constant has a separate residual
        if not intercept:
            np.testing.assert_allclose(history[-1], relative, rtol=1e-6)
    assert not hasattr(model.set_params(solver="direct").fit(X, Y), "history_")
    assert model.n_iter_ == 1


@pytest.mark.parametrize("solver", ["pcg", "gradient"])
def test_too_few_iterations(solver, X, y):
    options = {"solver": solver, "solver_params": {"features": None, "max_iter": 2}, "random_state": 0}
    model = KernelRidge("ntk", alphas=1e-3, **options)
    with pytest.warns(ConvergenceWarning) as seen:
        model.fit(X, y)
    residual = model.history_[0][-1, 0]
    text = (
        f"KernelRidge: after 2 iterations the relative residual for alpha=0.001 is {residual:.1e}, not 1e-06: more "
        "than max_iter=2 iterations would be needed. Increase alpha, n_components, max_iter or tolerance."
    )
    assert [str(warning.message) for warning in seen] == [text]
    assert seen[0].filename == __file__
    assert model.n_iter_ == 2
    with pytest.warns(ConvergenceWarning) as seen:
        model.set_params(alphas=[1e-3, 1e-2, 1e-1]).fit(X, y)
    slow = [warning for warning in seen if warning.category is ConvergenceWarning]
    assert len(slow) == np.isfinite(model.errors_).sum() == len(model.history_)  # one for each α tried
    with pytest.warns(ConvergenceWarning, match="for the intercept or the held-out errors"):
        model.set_params(alphas=1e-3).fit(X, np.ones(60))


def test_tolerance_below_rounding(X, y):
    with pytest.warns(ConvergenceWarning, match="not 1e-17: rounding errors allow no better"):
        model = KernelRidge("ntk", alphas=1e-3, **pcg(tolerance=1e-17)).fit(X, y)
    assert model.history_[0][-1] < 1e-10


def test_features_of_all_kinds_precondition(X, y):
    expected = KernelRidge("gaussian", alphas=0.1, lengthscale=2.0).fit(X, y).dual_coef_
    for features in (
        "nystroem", "sketch", None, RandomFourierFeatures(n_components=30, lengthscale=2.0, random_state=0),
        make_pipeline(StandardScaler(with_mean=False), PolynomialSketch(degree=2, n_components=32, random_state=0)),
    ):  # fmt: skip
        for rows in (X, sp.csr_array(X)):
            options = pcg(features=features, tolerance=1e-10)
            model = KernelRidge("gaussian", alphas=0.1, lengthscale=2.0, **options).fit(rows, y)
            np.testing.assert_allclose(model.dual_coef_, expected, atol=1e-7)
            assert not hasattr(features, "n_features_in_")  # cloned
    for kernel in ("gaussian", "exponential", "ntk", "nngp", "polynomial"):
        model = KernelRidge(kernel, **pcg(features="sketch", n_components=40)).fit(X, y)
        np.testing.assert_allclose(model.predict(X), KernelRidge(kernel).fit(X, y).predict(X), atol=1e-3)


def test_transformers_with_other_results(X, y):
    import pandas as pd

    expected = KernelRidge("ntk", alphas=0.1).fit(X, y).dual_coef_
    for make in (sp.csr_array, pd.DataFrame, lambda X: X.astype(np.float32)):
        options = pcg(features=FunctionTransformer(make), tolerance=1e-10)
        model = KernelRidge("ntk", alphas=0.1, **options).fit(X, y)
        np.testing.assert_allclose(model.dual_coef_, expected, atol=1e-7)
    for make in (lambda X: X[:3], lambda X: X[:, :, None]):
        with pytest.raises(ValueError, match=r"'features' parameter of KernelRidge must be a transformer"):
            KernelRidge("ntk", **pcg(features=FunctionTransformer(make))).fit(X, y)


def test_seeds(X, y):
    def fit(seed):
        options = pcg(n_components=10, tolerance=1e-3) | {"random_state": seed}
        return KernelRidge("ntk", alphas=0.1, **options).fit(X, y).dual_coef_

    np.testing.assert_array_equal(fit(0), fit(0))
    assert not np.array_equal(fit(0), fit(1))


def test_progress(X, y, capfd):
    KernelRidge("ntk", alphas=[0.1, 1.0], progress=True, **pcg()).fit(X, y)
    shown = capfd.readouterr().err
    assert "alpha=0.1" in shown
    assert "alpha=1" in shown
    assert re.search(r"residual \d\.\de-\d\d of 1e-06", shown)
    KernelRidge("ntk", alphas=[0.1, 1.0], **pcg()).fit(X, y)
    assert capfd.readouterr().err == ""


# Several alphas.

ALPHAS = [3.0, 0.01, 0.3, 0.03, 30.0]


@pytest.fixture
def exact_probes(monkeypatch):
    """Right-hand sides for leave-one-out errors are solved as accurately as the others."""
    monkeypatch.setattr(_kernel_problem, "_PROBE_TOLERANCE", 0.0)


@pytest.mark.usefixtures("exact_probes")
@pytest.mark.parametrize(
    ("solver", "way", "weighted", "intercept", "n_selection"),
    [
        ("direct", "loo", False, True, 1000), ("direct", "loo", True, False, 20), ("direct", "holdout", True, True, 10),
        ("cholesky", "loo", True, True, 20), ("cholesky", "holdout", False, False, 1000),
        ("pcg", "loo", True, True, 1000), ("pcg", "loo", False, False, 20), ("pcg", "holdout", True, True, 10),
        ("gradient", "loo", False, True, 20), ("gradient", "holdout", True, False, 1000),
    ],
)  # fmt: skip
def test_best_alpha_by_leave_one_out_error(solver, way, weighted, intercept, n_selection, X, y, rng, monkeypatch):
    """Each row without one unit of its weight, or a fifth of the rows; against fits without them."""
    if solver == "cholesky":
        monkeypatch.setattr(_problems, "_FEW", 0)
    Y = np.column_stack([y, 2 * X[:, 0] + rng.standard_normal(60)])
    weight = rng.uniform(0, 3, 60) * (rng.random(60) < 0.8) if weighted else np.ones(60)
    counted = np.flatnonzero(weight)
    options = exact("direct" if solver == "cholesky" else solver)
    model = KernelRidge(
        "ntk", alphas=ALPHAS, selection=way, n_selection=n_selection, fit_intercept=intercept, **options
    ).fit(X, Y, weight if weighted else None)
    most = len(counted) if way == "loo" else len(counted) // 5
    rows = counted[np.argsort(model._keys(len(counted)), kind="stable")[: min(n_selection, most)]]
    K = ntk(X, depth=1)
    errors = []
    for alpha in np.sort(ALPHAS):
        predictions = reference.left_out(K, Y, alpha, rows, weight, way=way, intercept=intercept)
        errors.append(mean_square(Y[rows], predictions, weight[rows]))
    tried = np.isfinite(model.errors_)
    np.testing.assert_array_equal(model.alphas_, np.sort(ALPHAS))
    np.testing.assert_allclose(model.errors_[tried], np.array(errors)[tried], rtol=1e-6)
    best = int(np.argmin(errors))
    assert model.alpha_ == model.alphas_[best]
    assert tried.all() if solver == "direct" else tried[max(best - 1, 0) : best + 2].all()
    dual, _ = reference.kernel_ridge(K, Y, model.alpha_, weight, intercept=intercept)
    np.testing.assert_allclose(model.dual_coef_, dual, atol=1e-6)
    if solver in ("pcg", "gradient"):
        assert len(model.history_) == tried.sum()
        assert all(history.shape[1] == 2 for history in model.history_)
        assert model.n_iter_ == sum(len(history) - 1 for history in model.history_)


@pytest.mark.parametrize("solver", ["direct", "pcg"])
def test_path_goes_downhill_from_the_middle(solver, X, y, monkeypatch):
    """Without an eigendecomposition: the middle, by threes and then by ones, as long as errors fall."""
    whole = KernelRidge("ntk", alphas=None).fit(X, y)
    K = ntk(X, depth=1)
    np.testing.assert_allclose(whole.alphas_, GRID * np.trace(reference.centred(K)) / 60)
    assert np.isfinite(whole.errors_).all()
    monkeypatch.setattr(_problems, "_FEW", 0)
    model = KernelRidge("ntk", alphas=None, **exact(solver)).fit(X, y)
    np.testing.assert_allclose(model.alphas_, whole.alphas_)
    tried = np.isfinite(model.errors_)
    assert tried[len(GRID) // 2]
    assert tried.sum() < 12
    best = int(np.argmin(whole.errors_))
    assert tried[best - 1 : best + 2].all()
    assert model.alpha_ == pytest.approx(whole.alpha_)
    np.testing.assert_allclose(model.errors_[tried], whole.errors_[tried], rtol=1e-2)


def test_default_alphas_of_weighted_rows(X, y):
    K = ntk(X, depth=1)
    for weight in (np.linspace(0.1, 0.5, 60), np.linspace(1, 3, 60)):
        expected = GRID * min(1, weight.mean()) * np.trace(reference.centred(K, weight)) / weight.sum()
        for options in (exact("direct"), pcg()):
            model = KernelRidge("ntk", alphas=None, **options).fit(X, y, weight)
            np.testing.assert_allclose(model.alphas_, expected)


def test_largest_alpha_of_nearly_the_least_error_is_taken(X, y):
    best = KernelRidge("ntk", alphas=np.geomspace(0.01, 10, 100)).fit(X, y).alpha_
    alphas = best * np.array([0.01, 1 / 1.0001, 1, 1.0001, 100])
    model = KernelRidge("ntk", alphas=alphas).fit(X, y)
    assert model.errors_[3] == pytest.approx(model.errors_.min(), rel=1e-3)
    assert model.alpha_ == alphas[3]


def test_iterations_leave_out_few_rows(X, y, monkeypatch):
    """Each is a right-hand side."""
    monkeypatch.setattr(kernel_ridge, "_MAX_HELD_OUT", 7)
    seen = []
    settle = kernel_ridge.KernelRidge._codec.settle
    monkeypatch.setattr(
        kernel_ridge.KernelRidge._codec, "settle", lambda self, s: seen.append(s.left_out) or settle(self, s)
    )
    for solver, n_rows in (("pcg", 7), ("direct", 60)):
        KernelRidge("ntk", alphas=[0.1, 1.0], solver=solver, random_state=0).fit(X, y)
        assert seen.pop()[0].shape == (n_rows, 1)
        KernelRidge("ntk", alphas=0.1, solver=solver, random_state=0).fit(X, y)
        assert seen.pop() is None


def test_alphas_start_from_each_other():
    """Fewer iterations in all than separate fits; for seeds 0 to 9 it was 0.80 to 0.91 of theirs."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 3))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(150)
    options = pcg(n_components=10, n_neighbors=0)
    together = KernelRidge("ntk", alphas=np.geomspace(0.1, 1, 8), n_selection=2, **options).fit(X, y)
    tried = together.alphas_[np.isfinite(together.errors_)]
    apart = {alpha: KernelRidge("ntk", alphas=alpha, **options).fit(X, y) for alpha in tried}
    assert len(together.history_) == len(tried) > 2
    assert together.n_iter_ < sum(model.n_iter_ for model in apart.values())
    starts = dict(zip(tried, (history[0].max() for history in together.history_), strict=True))
    assert starts.pop(together.alphas_[4]) == 1  # the middle is the first
    assert max(starts.values()) < 0.5


def test_one_alpha_in_a_list(X, y):
    for solver, alphas in (("direct", [0.5, 0.5]), ("pcg", [0.5, 0.5]), ("sketch", [0.5])):
        one, listed = (KernelRidge("ntk", alphas=a, solver=solver, random_state=0).fit(X, y) for a in (0.5, alphas))
        np.testing.assert_allclose(one.predict(X), listed.predict(X), rtol=1e-6)
        assert listed.alpha_ == 0.5
        np.testing.assert_array_equal(listed.alphas_, [0.5])


# Singular and indefinite matrices.


@pytest.mark.parametrize("kind", ["equal rows", "low rank", "zero rows", "regular"])
def test_singular_matrices_without_penalty(kind, y, rng):
    """Predictions equal the limit of a vanishing penalty."""
    X = {
        "equal rows": np.repeat(rng.standard_normal((30, 3)), 2, axis=0),
        "low rank": rng.standard_normal((60, 2)),
        "zero rows": np.zeros((60, 3)),
        "regular": rng.standard_normal((60, 3)),
    }[kind]
    kernel, K = ("polynomial", X @ X.T) if kind == "low rank" else ("ntk", ntk(X, depth=1))
    model = KernelRidge(kernel, alphas=0.0, kernel_params={"degree": 1} if kind == "low rank" else None)
    with nullcontext() if kind == "regular" else pytest.warns(ConvergenceWarning, match="singular up to rounding"):
        model.fit(X, y)
    Kc = reference.centred(K)
    expected = Kc @ np.linalg.pinv(Kc, rcond=1e-12, hermitian=True) @ (y - y.mean()) + y.mean()
    np.testing.assert_allclose(model.predict(X), expected, atol=1e-5)
    model.set_params(alphas=[0.0, 1.0]).fit(X, y)
    error = mean_square(y, reference.left_out(K, y, 1.0, range(60)), np.ones(60))
    np.testing.assert_allclose(model.errors_[1], error)
    assert np.isfinite(model.errors_).all()


@pytest.mark.parametrize("solver", ["pcg", "gradient"])
def test_iterations_without_penalty(solver, X, y):
    model = KernelRidge("ntk", alphas=0.0, **exact(solver))
    np.testing.assert_allclose(model.fit(X, y).predict(X), y, atol=1e-6)
    with pytest.warns(ConvergenceWarning, match=r"relative residual .*: \w"):
        np.testing.assert_allclose(model.fit(0 * X, y).predict(X), y.mean())


@pytest.mark.parametrize("solver", SOLVERS)
def test_equal_landmarks_and_low_rank(solver, y, rng):
    for X, kernel, parameters in (
        (np.repeat(rng.standard_normal((20, 3)), 3, axis=0), "ntk", {}),
        (rng.standard_normal((60, 2)), "polynomial", {"kernel_params": {"degree": 1}}),
    ):
        expected = KernelRidge(kernel, alphas=1e-3, **parameters).fit(X, y).predict(X)
        # All rows for a sketch, as leverage scores may skip some; otherwise enough for a singular matrix.
        options = {} if solver == "sketch" else {"n_components": 50, "tolerance": 1e-9}
        model = KernelRidge(kernel, alphas=1e-3, **exact(solver, **options), **parameters).fit(X, y)
        np.testing.assert_allclose(model.predict(X), expected, atol=1e-4)


INDEFINITE = [
    ("direct", 0.01), ("direct", [0.01, 0.1]), ("pcg", 0.01), ("pcg", [0.01, 0.1]),
    ("gradient", 0.01), ("sketch", 0.01),
]  # fmt: skip


@pytest.mark.parametrize(("solver", "alphas"), INDEFINITE)
def test_indefinite_kernels(solver, alphas, X, y):
    def kernel(A, B):
        return np.tanh(A @ B.T - 1)

    assert np.linalg.eigvalsh(kernel(X, X))[0] < -1
    with pytest.raises(ValueError, match="positive semi-definite"):
        KernelRidge(kernel, alphas=alphas, solver=solver, random_state=0).fit(X, y)


@pytest.mark.parametrize("alphas", [0.3, [0.3, 0.5, 2.0]])
def test_negative_eigenvalues_that_alpha_makes_up_for(alphas, X, y):
    K = ntk(X, depth=1) - 0.2 * np.eye(60)
    assert -0.2 < np.linalg.eigvalsh(K)[0] < 0
    model = KernelRidge("precomputed", alphas=alphas).fit(K, y)
    np.testing.assert_allclose(model.dual_coef_, reference.kernel_ridge(K, y, model.alpha_)[0], rtol=1e-7)


@pytest.mark.parametrize(("solver", "cache_size"), [("direct", None), ("pcg", 0), ("gradient", None), ("sketch", 0)])
def test_kernels_that_overflow(solver, cache_size):
    model = KernelRidge("exponential", lengthscale=1.0, solver=solver, solver_params={"cache_size": cache_size})
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(ValueError, match=r"kernel of the rows of X must be finite.*StandardScaler"),
    ):
        model.fit(1e5 * np.eye(8), np.arange(8.0))


# Sketches.


def sketching(**solver_params):
    return {"solver": "sketch", "random_state": 0, "solver_params": solver_params}


@pytest.mark.parametrize(("sketch_size", "weighted"), [(None, True), (10, False), (40, True)])
def test_sketch_with_landmarks(sketch_size, weighted, X, y, rng):
    Y = np.column_stack([y, X[:, 3]])
    weight = rng.uniform(0.5, 2, 60) if weighted else np.ones(60)
    options = sketching(n_components=15, sketch_size=sketch_size)
    model = KernelRidge("ntk", alphas=0.5, **options).fit(X, Y, weight)
    landmarks = np.flatnonzero(model.dual_coef_.any(axis=1))
    assert len(landmarks) == 15
    K = ntk(X, depth=1)
    Z = K[:, landmarks] @ np.linalg.inv(np.linalg.cholesky(K[np.ix_(landmarks, landmarks)])).T
    dimension = reference.statistical_dimension(reference.centred(Z @ Z.T, weight), 0.5)
    assert model.dimension_ == pytest.approx(dimension, rel=1e-6)
    assert model.sketch_size_ == (sketch_size or min(60, int(np.ceil(model.dimension_ * 11))))
    assert model.n_iter_ == 1
    whole = clone(model).set_params(**sketching(n_components=15, sketch_size=60)).fit(X, Y, weight)
    dual, constant = reference.kernel_ridge(Z @ Z.T, Y, 0.5, weight)
    np.testing.assert_allclose(whole.predict(X), Z @ (Z.T @ dual) + constant, atol=1e-6)
    assert not hasattr(whole.set_params(solver="direct").fit(X, Y), "sketch_size_")
    assert not hasattr(whole, "dimension_")


@pytest.mark.parametrize(
    ("solver", "n_rows", "size"), [("pcg", 100, 25), ("pcg", 10_000, 2000), ("sketch", 100, 100), ("sketch", 900, 600)]
)
def test_default_number_of_landmarks(solver, n_rows, size, monkeypatch):
    """20√n, and for iterations n/4 at most."""

    class Enough(Exception):  # noqa: N818
        pass

    def features(_matrix, n_components, _seed):
        raise Enough(n_components)

    monkeypatch.setattr(kernel_ridge, "nystroem_features", features)
    X = np.linspace(0, 1, n_rows)[:, None]
    model = KernelRidge(lengthscale=1.0, alphas=1.0, solver=solver, solver_params={"cache_size": 0})
    with pytest.raises(Enough, match=f"^{size}$"):
        model.fit(X, X[:, 0])


@pytest.mark.parametrize("kind", ["numpy", "csr", "torch", "precomputed"])
def test_predictions_of_landmarks_need_their_kernel_values_only(kind, X, y, monkeypatch):
    columns = []
    matrix = KernelSpec.matrix

    def counting(kernel, A, B=None, **options):
        columns.append((A if B is None else B).shape[0])
        return matrix(kernel, A, B, **options)

    kernel, rows = ("precomputed", ntk(X, depth=1)) if kind == "precomputed" else ("ntk", rows_of(kind, X))
    model = KernelRidge(kernel, alphas=0.5, **sketching(n_components=15)).fit(rows, y)
    expected = ntk(X, depth=1) @ model.dual_coef_ + model.intercept_
    monkeypatch.setattr(KernelSpec, "matrix", counting)
    np.testing.assert_allclose(as_numpy(model.predict(rows)), expected, atol=1e-9)
    assert columns == ([] if kind == "precomputed" else [15])


@pytest.mark.parametrize("kernel", ["gaussian", "exponential", "ntk", "nngp", "polynomial"])
def test_sketched_features(kernel, X, y):
    """Coefficients of features close to the kernel are close to the exact ones."""
    plain = KernelRidge(kernel, alphas=5.0).fit(X, y)
    options = sketching(features="sketch", n_components=2**14, sketch_size=60)
    model = KernelRidge(kernel, alphas=5.0, **options).fit(X, y)
    error = np.linalg.norm(model.dual_coef_ - plain.dual_coef_) / np.linalg.norm(plain.dual_coef_)
    assert error < 0.1
    assert np.count_nonzero(model.dual_coef_) == 60


@pytest.mark.parametrize("intercept", [True, False])
def test_transformer_as_features_of_a_sketch(intercept, X, y):
    features = RandomFourierFeatures(n_components=40, lengthscale=2.0, random_state=3)
    Z = clone(features).fit_transform(X)
    weight = np.linspace(0.5, 2, 60)
    options = sketching(features=features, sketch_size=60) | {"lengthscale": 2.0, "fit_intercept": intercept}
    model = KernelRidge("gaussian", alphas=0.5, **options)
    with pytest.warns(ConvergenceWarning, match=r"the features miss more of the kernel than epsilon=0\.1 allows"):
        model.fit(X, y, weight)
    dual, constant = reference.kernel_ridge(Z @ Z.T, y, 0.5, weight, intercept=intercept)
    np.testing.assert_allclose(model.dual_coef_, dual, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, constant, atol=1e-8)
    K = reference.centred(Z @ Z.T, weight) if intercept else np.sqrt(np.outer(weight, weight)) * (Z @ Z.T)
    assert model.dimension_ == pytest.approx(reference.statistical_dimension(K, 0.5))


@pytest.mark.parametrize(("factor", "warns"), [(1.0, False), (1.1, True)])
def test_features_that_miss_some_of_the_kernel(factor, warns, X, y, recwarn):
    """Far from 0 ten per cent matter: they are compared with residuals, not with predictions without the constant."""
    options = sketching(features=FunctionTransformer(lambda X: factor * X), sketch_size=60)
    KernelRidge("polynomial", alphas=0.1, kernel_params={"degree": 1}, **options).fit(X + 100, y)
    assert [str(warning.message)[:30] for warning in recwarn] == warns * ["KernelRidge: the features miss"]


@pytest.mark.parametrize(("epsilon", "intercept"), [(0.25, True), (1.0, True), (0.25, False)])
def test_objective_of_sketches(epsilon, intercept, rng):
    """‖Kc + b − y‖² + α cᵀKc within 1 + ε of the least value for most of 40 seeds, and on average. For five other
    problems without b the mean was 0.46 ε to 0.86 ε, and 65 to 100 % of the seeds were within it."""
    X = rng.uniform(-1, 1, (300, 2))
    K, alpha = gaussian(X, lengthscale=1.0), 0.5
    y = np.sin(3 * X[:, 0]) + rng.standard_normal(300) + 5 * intercept
    dual, constant = reference.kernel_ridge(K, y, alpha, intercept=intercept)
    least = reference.objective(K, dual, y - constant, alpha)
    dimension = reference.statistical_dimension(reference.centred(K) if intercept else K, alpha)
    shares = []
    for seed in range(40):
        options = sketching(epsilon=epsilon) | {"random_state": seed, "lengthscale": 1.0, "fit_intercept": intercept}
        model = KernelRidge("gaussian", alphas=alpha, **options).fit(X, y)
        assert model.sketch_size_ == int(np.ceil(model.dimension_ * (1 + 1 / epsilon))) < 300
        assert model.dimension_ == pytest.approx(dimension, rel=0.08)
        shares.append(reference.objective(K, model.dual_coef_, y - model.intercept_, alpha) / least - 1)
    assert min(shares) > -1e-9
    assert np.mean(np.array(shares) <= epsilon) > 0.5
    assert 0.2 * epsilon < np.mean(shares) < 1.3 * epsilon


# Classification.


@pytest.mark.parametrize("solver", SOLVERS)
def test_classes(solver, X, rng):
    """Regression on indicators, minus 1/3 so that no class is preferred."""
    labels = np.array(["a", "b", "c"])[np.argmax(X[:, :3] + 0.3 * rng.standard_normal((60, 3)), axis=1)]
    weight = rng.uniform(0.5, 2, 60)
    model = KernelRidgeClassifier("ntk", alphas=0.5, **exact(solver)).fit(X, labels, weight)
    K, indicators = ntk(X, depth=1), (labels[:, None] == np.array(["a", "b", "c"])) - 1 / 3
    dual, constant = reference.kernel_ridge(K, indicators, 0.5, weight)
    np.testing.assert_array_equal(model.classes_, ["a", "b", "c"])
    np.testing.assert_allclose(model.intercept_, constant, atol=1e-6)
    assert model.dual_coef_.shape == (60, 3)
    np.testing.assert_allclose(model._scores(X), K @ dual + constant, atol=1e-6)
    decisions = model.decision_function(X)
    np.testing.assert_array_equal(model.predict(X), model.classes_[decisions.argmax(axis=1)])
    assert model.score(X, labels) > 0.8
    if solver == "sketch":
        np.testing.assert_array_equal(decisions, model._scores(X))
        with pytest.raises(ValueError, match="KernelRidgeClassifier has no probabilities: they are calibrated on held"):
            model.predict_proba(X)
        return
    log_p = model.predict_log_proba(X)
    np.testing.assert_allclose(np.exp(log_p).sum(axis=1), 1)
    np.testing.assert_allclose(model.predict_proba(X), np.exp(log_p))
    np.testing.assert_array_equal(log_p.argmax(axis=1), decisions.argmax(axis=1))


@pytest.mark.parametrize("solver", ["direct", "pcg"])
def test_probabilities_are_calibrated_on_leave_one_out_rows(solver, X, rng):
    """A model that reproduces random labels is not sure of them."""
    labels = rng.integers(0, 3, 60)
    model = KernelRidgeClassifier("ntk", alphas=1e-3, depth=3, solver=solver, random_state=0).fit(X, labels)
    np.testing.assert_array_equal(model._scores(X).argmax(axis=1), labels)
    p = model.predict_proba(rng.standard_normal((500, 4)))
    assert p.max(axis=1).mean() < 0.6


@pytest.mark.usefixtures("exact_probes")
@pytest.mark.parametrize("solver", ["direct", "pcg"])
def test_best_alpha_of_a_classifier(solver, X, rng):
    """The smallest leave-one-out log loss."""
    labels = np.argmax(X[:, :3] + rng.standard_normal((60, 3)), axis=1)
    targets, weight = np.eye(3)[labels] - 1 / 3, rng.uniform(0.5, 2, 60)
    model = KernelRidgeClassifier("ntk", alphas=[0.1, 1.0, 10.0], **exact(solver)).fit(X, labels, weight)
    K, order = ntk(X, depth=1), np.argsort(model._keys(60), kind="stable")
    errors = []
    for alpha in model.alphas_:
        predictions = reference.left_out(K, targets, alpha, order, weight)
        errors.append(left_out_log_loss(targets[order], predictions, weight[order]))
    tried = np.isfinite(model.errors_)
    np.testing.assert_allclose(model.errors_[tried], np.array(errors)[tried], rtol=1e-4)
    assert model.alpha_ == model.alphas_[np.argmin(errors)]


# In scikit-learn.


def test_no_kernel_matrix_is_kept(X, y):
    for solver in ("direct", "pcg"):
        model = KernelRidge("ntk", alphas=0.5, solver=solver, random_state=0).fit(X, y)
        if solver == "direct":
            model.predict(X, return_std=True)
        assert len(pickle.dumps(model)) < 8 * 60 * 25


def test_kernel_matrices_are_split_in_rows_and_columns(X, y):
    for model in (KernelRidge, KernelRidgeClassifier):
        for kernel in ("precomputed", "gaussian"):
            tags = get_tags(model(kernel)).input_tags
            assert tags.pairwise == (not tags.sparse) == (kernel == "precomputed")
    expected = cross_val_score(KernelRidge("ntk", alphas=0.5), X, y, cv=4)
    for solver in ("direct", "pcg"):
        model = KernelRidge("precomputed", alphas=0.5, **exact(solver))
        np.testing.assert_allclose(cross_val_score(model, ntk(X, depth=1), y, cv=4), expected, atol=1e-6)


# Errors, and old names.


@pytest.mark.parametrize(
    ("parameters", "rule"),
    [
        ({"kernel": "polynomial", "kernel_params": {"power": 2}}, "kernel 'polynomial' takes the parameters degree"),
        (
            {"kernel": "ntk", "kernel_params": {"depth": 2}},
            "must be a dict without 'depth', which is a separate parameter",
        ),
        (
            {"kernel_params": {"lengthscale": 1.0}},
            "'kernel_params' parameter of KernelRidge must be a dict without 'length",
        ),
        ({"kernel": networks.ReLU}, "'kernel' parameter of KernelRidge must be .*ReLU.* instead"),
        ({"kernel": "precomputed", "kernel_params": {"a": 1}}, "must be None for kernel='precomputed'"),
        ({"kernel": "precomputed", "solver_params": {"features": "sketch"}}, "'nystroem' or None for kernel='precomp"),
        (
            {"kernel": "precomputed", "solver_params": {"features": RandomFourierFeatures()}},
            "'nystroem' or None for kernel='precomp",
        ),
        ({"alphas": [0.1, 1.0], "solver": "sketch"}, "'alphas' .* one number > 0 for solver='sketch'.*FeatureRidge"),
        ({"alphas": None, "solver": "sketch"}, "'alphas' .* one number > 0 for solver='sketch'.*FeatureRidge"),
        ({"alphas": 0, "solver": "sketch"}, "'alphas' .* one number > 0 for solver='sketch'.*FeatureRidge"),
        ({"solver": "sketch", "solver_params": {"features": None}}, "'nystroem', 'sketch' or a transformer for solver"),
        (
            {"kernel": laplacian_kernel, "solver": "pcg", "solver_params": {"features": "sketch"}},
            "'features' .* 'nystroem' or a transformer for a kernel other",
        ),
        (
            {"kernel": NET, "solver": "sketch", "solver_params": {"features": "sketch"}},
            "'features' .* 'nystroem' or a transformer for a kernel other",
        ),
    ],
)
def test_bad_combinations(parameters, rule, X, y):
    with pytest.raises((TypeError, ValueError), match=rule):
        KernelRidge(**parameters).fit(ntk(X, depth=1), y)


def test_bad_kernel_matrices(X, y):
    K = ntk(X, depth=1)
    with pytest.raises(ValueError, match=r"'X' parameter of KernelRidge must be a square kernel matrix"):
        KernelRidge("precomputed").fit(K[:40], y[:40])
    with pytest.raises(TypeError, match=r"'X' parameter of KernelRidge must be dense"):
        KernelRidge("precomputed").fit(sp.csr_array(K), y)
    with pytest.raises(ValueError, match="X has 5 features, but KernelRidge is expecting 60 features"):
        KernelRidge("precomputed").fit(K, y).predict(K[:, :5])


def test_old_names():
    with pytest.warns(FutureWarning, match=r"alpha=0.3 of KernelRidge is now alphas=0.3"):
        assert KernelRidge("ntk", alpha=0.3).alphas == 0.3
    with pytest.warns(FutureWarning, match="Pass the parameters of KernelRidgeClassifier by name: alphas=0.3"):
        assert KernelRidgeClassifier("ntk", 0.3).alphas == 0.3
    for name, value in (kernel_ridge._SOLVER_PARAMS | {"tol": 1e-3}).items():
        if name != "tolerance":
            with pytest.warns(FutureWarning, match=rf"{name}.* of KernelRidge is now solver_params="):
                model = KernelRidge(**{name: value})
            assert model.solver_params == {"tolerance" if name == "tol" else name: value}
    with pytest.warns(FutureWarning):
        model = KernelRidge(tol=1e-3, n_components=7)
    assert model.solver_params == {"tolerance": 1e-3, "n_components": 7}


# Devices.


def cuda(x):
    import torch

    return torch.from_numpy(x).cuda()


def test_cuda(rng):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X, new = rng.standard_normal((300, 4)), rng.standard_normal((50, 4))
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])
    weight = rng.uniform(0, 2, 300) * (rng.random(300) < 0.8)
    transformer = RandomFourierFeatures(n_components=64, random_state=0)
    for kernel in ("gaussian", "ntk"):
        for solver, alphas, options in (
            ("direct", 0.5, {}),
            ("direct", [0.1, 0.5], {}),
            ("pcg", 0.5, {"tolerance": 1e-10}),
            ("pcg", 0.5, {"tolerance": 1e-10, "cache_size": 0}),
            ("pcg", [0.1, 0.5], {"tolerance": 1e-10}),
            ("pcg", 0.5, {"tolerance": 1e-10, "features": "sketch"}),
            ("gradient", 0.5, {"n_neighbors": 299, "tolerance": 1e-9}),
            ("sketch", 0.5, {"n_components": 60, "sketch_size": 128}),
            ("sketch", 0.5, {"epsilon": 1e9, "sketch_size": 128, "features": transformer}),
        ):
            model = KernelRidge(
                kernel, alphas=alphas, solver=solver, solver_params=options, batch_size=77, random_state=0
            )  # fmt: skip
            host = clone(model).fit(X, y, weight)
            device = clone(model).fit(cuda(X), cuda(y), cuda(weight))
            assert device.X_fit_.device.type == "cuda"
            assert device.alpha_ == host.alpha_
            for dtype, error in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
                rows = torch.from_numpy(new).to("cuda", dtype)
                for fitted in (device, host, pickle.loads(pickle.dumps(device))):
                    out = fitted.predict(rows)
                    assert out.device == rows.device
                    assert out.dtype == dtype
                    np.testing.assert_allclose(as_numpy(out.double()), host.predict(new), atol=error)
                    np.testing.assert_allclose(fitted.predict(new), host.predict(new), atol=1e-5)
                    if solver == "direct":
                        std = fitted.predict(rows, return_std=True)[1]
                        assert std.device == rows.device
                        expected = host.predict(new, return_std=True)[1]
                        np.testing.assert_allclose(as_numpy(std.double()), expected, atol=error)
                        np.testing.assert_allclose(fitted.predict(new, return_std=True)[1], expected, atol=1e-5)


def test_cuda_classes_and_matrices(rng):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    X = rng.standard_normal((200, 4))
    labels = np.argmax(X[:, :3], axis=1)
    K = ntk(X, depth=1)
    for solver in ("direct", "pcg", "sketch"):
        model = KernelRidgeClassifier("ntk", alphas=0.5, solver=solver, random_state=0)
        host, device = clone(model).fit(X, labels), clone(model).fit(cuda(X), cuda(labels))
        classes = device.predict(cuda(X))
        assert classes.device.type == "cuda"
        assert (
            np.mean(as_numpy(classes) == host.predict(X)) > 0.98
        )  # calibrated up to the tolerance of the leave-one-out systems
        scores = device._scores(cuda(X))
        np.testing.assert_allclose(as_numpy(scores), host._scores(X), atol=1e-4)
        assert device.decision_function(cuda(X)).device.type == "cuda"
        if solver != "sketch":
            assert device.predict_proba(cuda(X)).device.type == "cuda"
        matrix = clone(model).set_params(kernel="precomputed").fit(cuda(K), labels)
        np.testing.assert_allclose(as_numpy(matrix._scores(cuda(K))), as_numpy(scores), atol=1e-4)


def test_deviations_where_rounding_makes_the_matrix_indefinite(rng):
    """The variance of a prediction at a row of the fit is below the variance of the noise."""
    from ntkit.kernels import gaussian

    X = rng.uniform(-1, 1, (200, 2))
    model = KernelRidge(lambda A, B: np.float64(np.float32(gaussian(A, B, lengthscale=1.0))), alphas=1e-9)
    with pytest.warns(ConvergenceWarning, match="singular up to rounding"):
        model.fit(X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(200))
    assert model._spread(X).max() < 1.5


def test_files_that_ask_for_wide_rows_or_many_layers(tmp_path, rng):
    import copy

    import ntkit
    from ntkit import _files

    X = rng.standard_normal((20, 3))
    ntkit.save(KernelRidge("ntk").fit(X, X[:, 0]), tmp_path / "model")
    original = _files.read(tmp_path / "model", kind="model")

    def change(name):
        arrays, metadata = copy.deepcopy(original)
        if name == "depth":
            metadata["model"]["parameters"]["depth"] = 10**8
        else:
            metadata["model"]["state"]["n_features_in_"] = 2**23
            key = next(k for k, v in arrays.items() if v.shape == (20, 3))
            arrays[key] = np.zeros((0 if name == "no rows" else 20, 2**23 if name == "no rows" else 3))
        _files.write(tmp_path / "model", arrays, metadata)

    for name in ("depth", "no rows", "columns"):
        change(name)
        with pytest.raises(_files.FileError):
            ntkit.load(tmp_path / "model", memory_limit=2**20)
