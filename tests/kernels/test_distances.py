"""Kernels of the distance. Errors are relative to long double; entries below 1e-300 may be zero."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.gaussian_process.kernels import Matern as SklearnMatern
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel
from tests.conftest import as_numpy, peak_memory
from tests.reference import distances as reference

from ntkit import KernelRidge, NystroemFeatures, load, save
from ntkit.kernels import KernelSpec, diagonal, distances, gaussian, gram, laplace, matern, row_blocks
from ntkit.kernels import _distances_numba as compiled
from ntkit.kernels._distance_gradients import gradient_l1, gradient_l2
from ntkit.kernels.distances import FEW_COLUMNS, Gaussian, Laplace, Matern

KERNELS = {
    "gaussian": ("gaussian", {"lengthscale": 1.7}),
    "laplace": ("laplace", {"lengthscale": 3.0}),
    "l1": ("laplace", {"lengthscale": 3.0, "norm": "l1"}),
    "matern 1/2": ("matern", {"lengthscale": 1.3, "nu": 0.5}),
    "matern 3/2": ("matern", {"lengthscale": 2.0}),
    "matern 5/2": ("matern", {"lengthscale": 2.0, "nu": 2.5}),
}
EACH = pytest.mark.parametrize("name", KERNELS)
MANY = FEW_COLUMNS + 6  # columns for which inner products are used


def relative_error(K, expected):
    present = expected > 1e-300
    assert np.isfinite(K).all()
    assert (K[~present] < 1e-299).all()
    return float((np.abs(K - expected)[present] / expected[present]).max(initial=0))


def clusters(rng, d):
    """Clusters at 0, 1e8 and −3e5, with equal rows, and rows that are close to each other in each of them."""
    X = rng.standard_normal((12, d)) / d**0.5
    X[4:8] += 1e8
    X[8:] -= 3e5
    Y = np.concatenate([X[::2], X[1::2] + 1e-3 * rng.standard_normal((6, d))])
    Y[1] = X[4]
    return X, Y


def test_clusters_far_apart():
    X = np.array([[0.0], [1e8], [1e8 + 1]])
    expected = [[1, 0, 0], [0, 1, np.exp(-0.5)], [0, np.exp(-0.5), 1]]
    np.testing.assert_allclose(gaussian(X), expected, rtol=1e-15)
    np.testing.assert_allclose(gaussian(np.repeat(X, 50, axis=1), lengthscale=50**0.5), expected, rtol=1e-14)


@EACH
@pytest.mark.parametrize("d", [1, MANY])
def test_accurate_in_any_library(name, d, rng):
    import array_api_strict
    import torch

    kernel, params = KERNELS[name]
    X, Y = clusters(rng, d)
    expected = reference.matrix(kernel, X, Y, **params)
    same = (X[:, None] == Y[None]).all(axis=2)
    assert same.sum() == 6
    for to_library in (np.asarray, torch.from_numpy, array_api_strict.asarray, sparse.csr_array, sparse.csr_matrix):
        K = as_numpy(gram(kernel, to_library(X), to_library(Y), **params))
        assert relative_error(K, expected) < 1e-12
        assert (K[same] == 1).all()
        square = as_numpy(gram(kernel, to_library(X), **params))
        assert (square == square.T).all()
        assert (np.diagonal(square) == 1).all()
        assert (as_numpy(diagonal(kernel, to_library(X), **params)) == 1).all()


@EACH
def test_accurate_at_any_size(name, rng):
    """Rows of norms up to 1e4, distances from 1e-9 to 1e4; with many columns one row is an outlier."""
    kernel, params = KERNELS[name]
    for d in (3, MANY):
        X = rng.standard_normal((30, d)) * 10.0 ** rng.uniform(-9, 4, (30, 1)) / d**0.5
        Y = np.concatenate([X[:10] * (1 + 1e-9), X[10:20] + 10.0 ** rng.uniform(-9, 2, (10, 1)) / d])
        expected = reference.matrix(kernel, X, Y, **params)
        for rows in (np.asarray, sparse.csr_array):
            assert relative_error(gram(kernel, rows(X), rows(Y), **params), expected) < 1e-12


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_computed_in_float64_and_rounded(dtype, rng):
    import torch

    for d in (2, MANY):
        X = torch.from_numpy(rng.standard_normal((9, d)) + 64).to(getattr(torch, dtype))
        rows = X if dtype == "bfloat16" else X.numpy()
        for kernel, params in KERNELS.values():
            K = gram(kernel, rows, **params)
            assert str(K.dtype).removeprefix("torch.") == dtype
            wide = torch.from_numpy(gram(kernel, X.double().numpy(), **params)).to(X.dtype)
            np.testing.assert_array_equal(as_numpy(torch.as_tensor(K).float()), as_numpy(wide.float()))
    whole = np.array([[0, 3], [4, 0]], dtype=np.uint8)
    np.testing.assert_allclose(laplace(whole, lengthscale=5.0)[0, 1], np.exp(-1))


@EACH
def test_tiles_of_many_columns(name, rng):
    """Compiled code processes a row in chunks; the last chunk here is short."""
    kernel, params = KERNELS[name]
    spec = KernelSpec.of(kernel, **params)
    X, Y = rng.standard_normal((3, 5)), rng.standard_normal((2 * compiled.CHUNK + 76, 5))
    a = spec.distances(X, Y, differences=True)
    norm = {"ord": 1} if spec.absolute else {}
    np.testing.assert_allclose(a, spec.scale * np.linalg.norm(X[:, None] - Y, axis=2, **norm), rtol=1e-12)
    K = np.empty_like(a)
    compiled.apply_profile(a if spec.absolute else a**2, spec.function.code, K)
    np.testing.assert_allclose(K, spec.profile(a), rtol=1e-12)


@EACH
def test_values_in_float32_are_normal_or_zero(name):
    kernel, params = KERNELS[name]
    spec = KernelSpec.of(kernel, **params)
    a = np.linspace(0, 150, 5000)[None]
    K = np.empty(a.shape, np.float32)
    compiled.apply_profile(a if spec.absolute else a**2, spec.function.code, K)
    expected = spec.profile(a)
    large = expected >= 1.001 * compiled.TINY
    np.testing.assert_allclose(K[large], expected[large], rtol=1e-6)
    assert not K[expected < 0.999 * compiled.TINY].any()
    assert not large.all()


def test_without_corrections_digits_are_lost(rng, monkeypatch):
    """The checks above would notice: the errors are 1e-2 or more."""
    X, Y = clusters(rng, MANY)
    monkeypatch.setattr(distances, "rounding", lambda _: 0.0)
    for name in ("gaussian", "laplace", "matern 5/2"):
        kernel, params = KERNELS[name]
        assert relative_error(gram(kernel, X, Y, **params), reference.matrix(kernel, X, Y, **params)) > 1e-2


@pytest.mark.parametrize("d", [30, 300, 3000])
def test_estimate_of_rounding_errors(d, rng):
    """‖x‖² + ‖y‖² − 2⟨x, y⟩ of 4000 pairs: no error larger than estimated, and some of a fiftieth."""
    X, Y = rng.standard_normal((40, d)) + rng.standard_normal(d), rng.standard_normal((100, d))
    totals = np.sum(X * X, axis=1)[:, None] + np.sum(Y * Y, axis=1)[None, :]
    exact = np.array([[np.sum((x - y) ** 2) for y in Y.astype(np.longdouble)] for x in X.astype(np.longdouble)])
    errors = np.abs(totals - 2 * X @ Y.T - exact) / totals / np.finfo(float).eps / distances.rounding(d)
    assert 0.02 < errors.max() < 1


@pytest.mark.parametrize("name", ["gaussian", "laplace", "matern 3/2"])
def test_few_pairs_take_the_slow_way(name, rng, monkeypatch):
    """Of rows of one scale none but equal ones; also far from the origin, with an outlier there."""
    kernel, params = KERNELS[name]
    marked = []

    def counting(*arguments):
        marked.append(squares(*arguments))
        return marked[-1]

    squares = compiled.squares
    monkeypatch.setattr(compiled, "squares", counting)
    X = rng.standard_normal((300, 100))
    Y = np.concatenate([X[:5], rng.standard_normal((300, 100))])
    gram(kernel, X, Y, **params)
    assert sum(marked) == 5
    marked.clear()
    X += 1e8
    Y += 1e8
    Y[100] = 0
    gram(kernel, X, Y, **params)
    assert sum(marked) == 5


def test_rows_that_overflow():
    X = np.zeros((4, MANY))
    X[1:3] = 1e200
    X[3] = -1e200
    expected = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    for kernel, params in KERNELS.values():
        for d in (2, MANY):
            np.testing.assert_array_equal(gram(kernel, X[:, :d], X[:, :d].copy(), **params), expected)
            np.testing.assert_array_equal(gram(kernel, X[:, :d] / 1e200, **params | {"lengthscale": 1e-300}), expected)
        np.testing.assert_array_equal(gram(kernel, sparse.csr_array(X), sparse.csr_array(X), **params), expected)


def test_scikit_learn_has_the_same(rng):
    X, Y = rng.standard_normal((20, 5)), rng.standard_normal((30, 5))
    np.testing.assert_allclose(gaussian(X, Y, lengthscale=0.7), rbf_kernel(X, Y, gamma=0.5 / 0.49), rtol=1e-12)
    l1 = laplace(X, Y, lengthscale=0.7, norm="l1")
    np.testing.assert_allclose(l1, laplacian_kernel(X, Y, gamma=1 / 0.7), rtol=1e-12)
    for nu in (0.5, 1.5, 2.5):
        np.testing.assert_allclose(matern(X, Y, lengthscale=0.7, nu=nu), SklearnMatern(0.7, nu=nu)(X, Y), rtol=1e-12)
    np.testing.assert_array_equal(matern(X, Y, nu=0.5), laplace(X, Y))


def test_l1_is_a_product_over_columns(rng):
    X, Y = rng.standard_normal((6, 7)), rng.standard_normal((5, 7))
    factors = [laplace(X[:, i : i + 1], Y[:, i : i + 1], norm=norm) for i in range(7) for norm in ("l1", "l2")]
    np.testing.assert_allclose(laplace(X, Y, norm="l1") ** 2, np.prod(factors, axis=0), rtol=1e-13)


@EACH
def test_positive_definite(name, rng):
    kernel, params = KERNELS[name]
    K = gram(kernel, rng.uniform(-3, 3, (60, 3)), **params)
    assert np.linalg.eigvalsh(K).min() > -1e-13
    assert (K > 0).all()
    assert (K <= 1).all()


@EACH
def test_unit_rows(name, rng):
    kernel, params = KERNELS[name]
    X = rng.standard_normal((10, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    spec = {"gaussian": Gaussian, "laplace": Laplace, "matern": Matern}[kernel](**params)
    if name == "l1":
        with pytest.raises(ValueError, match="'norm' parameter of laplace must be 'l2' on the sphere"):
            spec.on_sphere(0.5)
        return
    np.testing.assert_allclose(spec.on_sphere(np.clip(X @ X.T, -1, 1)), gram(kernel, X, **params), rtol=1e-7)
    assert spec.on_sphere(1.0) == 1


def test_blocks(rng, to_library):
    X = to_library(rng.standard_normal((11, MANY)))
    for kernel, params in KERNELS.values():
        K = as_numpy(gram(kernel, X, **params))
        with sklearn.config_context(working_memory=200 / 2**20):  # two rows of 11 values
            np.testing.assert_allclose(as_numpy(gram(kernel, X, **params)), K, rtol=1e-13)
            blocks = [as_numpy(block) for _, block in row_blocks(kernel, X, **params)]
        assert len(blocks) == 6
        np.testing.assert_allclose(np.concatenate(blocks), K, rtol=1e-13)


# Gradients.


@EACH
def test_gradient_by_differences(name, rng):
    """The rows of X and Y are different."""
    kernel, params = KERNELS[name]
    spec = {"gaussian": Gaussian, "laplace": Laplace, "matern": Matern}[kernel](**params)
    for d in (3, MANY):
        X, Y = clusters(rng, d)
        X += rng.uniform(0.1, 0.5, X.shape)
        c = rng.standard_normal((len(Y), 2))
        found = spec.gradient(X, Y, c)
        assert found.shape == (12, 2, d)
        for i in (0, 5, 11):
            for k in range(2):
                expected = reference.gradient(kernel, X[i], Y, c[:, k], **params)
                np.testing.assert_allclose(found[i, k], expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
        np.testing.assert_allclose(spec.gradient(X, Y, c[:, 0]), found[:, 0], rtol=1e-12, atol=1e-15)
        with sklearn.config_context(working_memory=0.001):
            np.testing.assert_allclose(spec.gradient(X, Y, c), found, rtol=1e-10, atol=1e-14)


def by_autograd(spec, X, Y, c):
    """Rows of X and Y differ everywhere."""
    import torch

    X = X.clone().requires_grad_()
    z = X[:, None] - Y[None]
    if isinstance(spec, Laplace):
        k = torch.exp(-(z.abs().sum(2) if spec.norm == "l1" else z.norm(dim=2)) / spec.lengthscale)
    elif isinstance(spec, Gaussian):
        k = torch.exp(-(z * z).sum(2) / (2 * spec.lengthscale**2))
    else:
        a = (2 * spec.nu) ** 0.5 * z.norm(dim=2) / spec.lengthscale
        k = torch.exp(-a) * {0.5: 1, 1.5: 1 + a, 2.5: 1 + a + a * a / 3}[spec.nu]
    (k @ c).sum().backward()
    return X.grad


@EACH
def test_gradient_by_autograd(name):
    import torch

    kernel, params = KERNELS[name]
    spec = {"gaussian": Gaussian, "laplace": Laplace, "matern": Matern}[kernel](**params)
    torch.manual_seed(0)
    for d in (4, MANY):
        X, Y, c = (torch.randn(*shape, dtype=torch.float64) for shape in ((8, d), (9, d), (9,)))
        found = spec.gradient(X, Y, c)
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, by_autograd(spec, X, Y, c), rtol=1e-11, atol=1e-12)
        single = spec.gradient(X.float(), Y.float(), c.float())
        assert single.dtype == torch.float64
        # The code for tensors on a device, here without compilation.
        elsewhere = (gradient_l1 if spec.absolute else gradient_l2)(spec, X, Y, c[:, None])[:, 0]
        torch.testing.assert_close(elsewhere, found, rtol=1e-11, atol=1e-12)


def test_gradient_at_a_cusp_is_zero():
    X = np.full((1, 2), 1e8)
    for kernel in (Gaussian(), Laplace(), Laplace(norm="l1"), Matern(nu=0.5), Matern(), Matern(nu=2.5)):
        np.testing.assert_array_equal(kernel.gradient(X, X, np.ones(1)), np.zeros((1, 2)))
    both = Laplace().gradient(X, np.concatenate([X, X + 3]), np.array([5.0, 1.0]))
    np.testing.assert_allclose(both, np.full((1, 2), np.exp(-(18**0.5)) / 2**0.5), rtol=1e-14)


def test_gradient_of_close_and_distant_rows(rng):
    """One term, c s² (−φ′(a)/a) (y − x), also where a is 1e-7 among rows of norm 1e-3, and where squares overflow."""
    for d in (2, MANY):
        X = 1e-3 * rng.standard_normal((5, d))
        Y = X + 1e-7 * rng.standard_normal((5, d))
        for i in range(5):
            found = Laplace().gradient(X, Y, np.eye(5)[i])[i]
            r = np.linalg.norm(X[i] - Y[i])
            np.testing.assert_allclose(found, (Y[i] - X[i]) / r * np.exp(-r), rtol=1e-12)
        for kernel in (Gaussian(), Laplace(), Matern(), Matern(nu=2.5)):
            np.testing.assert_array_equal(kernel.gradient(X + 1e200, Y, np.ones(5)), np.zeros((5, d)))


def test_gradient_in_bounded_memory():
    X, Y = np.ones((3000, 30)), np.zeros((3000, 30))
    with sklearn.config_context(working_memory=8):  # the matrix has 69 MiB
        assert peak_memory(lambda: Matern(5.0).gradient(X, Y, np.ones(3000))) < 16 * 2**20
    with sklearn.config_context(working_memory=8):
        assert peak_memory(lambda: laplace(X[:, :2], Y[:500, :2])) < 12 * 2**20 + 16 * 2**20


# Estimators and errors.


@pytest.mark.parametrize(
    ("kernel", "params"), [("laplace", {"norm": "l1"}), ("matern", {"nu": 2.5}), ("laplace", None)]
)
def test_estimators_of_these_kernels(kernel, params, rng, tmp_path):
    X = rng.standard_normal((60, 4))
    y = np.sin(X[:, 0])
    model = KernelRidge(kernel, alphas=1e-3, kernel_params=params).fit(X, y)
    assert model.lengthscale_ == pytest.approx((4 * X.var() / 2) ** 0.5)
    K = gram(kernel, X, lengthscale=model.lengthscale_, **(params or {}))
    bordered = np.block([[K + 1e-3 * np.eye(60), np.ones((60, 1))], [np.ones((1, 60)), np.zeros((1, 1))]])
    solution = np.linalg.solve(bordered, np.append(y, 0.0))
    expected = K @ solution[:-1] + solution[-1]
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-7, atol=1e-9)
    features = NystroemFeatures(kernel, n_components=60, kernel_params=params, random_state=0).fit(X)
    Z = features.transform(X)
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-7)
    for fitted, method in ((model, "predict"), (features, "transform")):
        save(fitted, tmp_path / "file")
        np.testing.assert_array_equal(getattr(load(tmp_path / "file"), method)(X), getattr(fitted, method)(X))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: laplace([[1.0]], lengthscale=-1), ValueError, "'lengthscale' parameter of laplace must be.*> 0"),
        (lambda: laplace([[1.0]], norm="l3"), ValueError, "'norm' parameter of laplace must be one of 'l2', 'l1'"),
        (lambda: laplace([[1.0]], norm=1), TypeError, "'norm' parameter of laplace"),
        (lambda: matern([[1.0]], nu=2), ValueError, "'nu' parameter of matern must be 0.5, 1.5 or 2.5.*gaussian"),
        (lambda: matern([[1.0]], nu="1.5"), TypeError, "'nu' parameter of matern"),
        (lambda: gram("matern", [[1.0]], norm="l1"), TypeError, "'matern' takes the parameters lengthscale, nu"),
        (lambda: KernelRidge("matern", kernel_params={"lengthscale": 1.0}).fit([[1.0]], [1.0]), ValueError,
         "a separate parameter of KernelRidge"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()
