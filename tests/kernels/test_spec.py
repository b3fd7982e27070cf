"""The interface that all kernels share: methods, memory, threads, extreme rows."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import sklearn
import torch
from scipy import sparse as sp
from tests.conftest import as_numpy, peak_memory
from tests.tiers import sampled, scaled

from ntkit import DotProductSketch, GegenbauerFeatures, KernelRidge, MaclaurinFeatures, NystroemFeatures
from ntkit import networks as nn
from ntkit.kernels import KernelSpec, diagonal, dot_product, gram, network_kernel, row_blocks
from ntkit.kernels.zonal import gegenbauer, gegenbauer_coefficients, gegenbauer_series

BIASED = nn.Sequential(nn.Dense(bias_std=0.5), nn.LeakyReLU(0.2), nn.Dense(weight_std=1.5, bias_std=0.3))
IN_A_ROW = nn.Sequential(
    nn.Dense(bias_std=0.5), nn.Dense(weight_std=0.8, bias_std=0.4), nn.LeakyReLU(0.3, normalize=False),
    nn.Dense(bias_std=0.6, trainable=False), nn.Dense(weight_std=1.5, trainable=False), nn.Dense(bias_std=0.3),
)  # fmt: skip
SMOOTH = nn.Sequential(nn.Dense(), nn.GELU(), nn.Dense(), nn.Erf(), nn.Dense())
ON_ROWS = {
    "ntk": ("ntk", {"depth": 2}),
    "nngp": ("nngp", {"depth": 3}),
    "gaussian": ("gaussian", {"lengthscale": 1.5}),
    "laplace": ("laplace", {"lengthscale": 2.0}),
    "laplace l1": ("laplace", {"norm": "l1"}),
    "matern 1/2": ("matern", {"nu": 0.5}),
    "matern 3/2": ("matern", {"lengthscale": 0.8}),
    "matern 5/2": ("matern", {"nu": 2.5}),
    "exponential": ("exponential", {"lengthscale": 1.2}),
    "polynomial": ("polynomial", {"degree": 3, "coef0": 0.5, "gamma": 0.7}),
    "dot_product": ("dot_product", {"function": [1.0, 0.0, 2.0, 0.5]}),
    "arc_cosine 0": ("arc_cosine", {"order": 0}),
    "arc_cosine 1": ("arc_cosine", {"order": 1}),
    "arc_cosine 2": ("arc_cosine", {"order": 2}),
    "hidden_ntk": ("hidden_ntk", {}),
    "biased": (BIASED, {}),
    "biases in a row": (IN_A_ROW, {}),
    "biases in a row, nngp": (IN_A_ROW, {"kind": "nngp"}),
    "smooth": (SMOOTH, {"kind": "nngp"}),
}
ZONAL = [name for name in ON_ROWS if name != "laplace l1"]


def spec_of(name):
    kernel, params = ON_ROWS[name]
    return KernelSpec.of(kernel, **params)


def test_every_name_is_tried():
    names = set(KernelSpec.names()) - {"network", "cntk", "zonal"}
    assert names == {kernel for kernel, _ in ON_ROWS.values() if isinstance(kernel, str)}


@pytest.mark.parametrize("name", ON_ROWS)
def test_matrices_diagonals_blocks_and_pickles_agree(name, rng, to_library):
    X, Y = rng.standard_normal((7, 4)), rng.standard_normal((5, 4))
    X[3] = 0
    spec = spec_of(name)
    K = spec.matrix(X, Y)
    x, y = to_library(X), to_library(Y)
    np.testing.assert_allclose(as_numpy(spec.matrix(x, y)), K, rtol=1e-12, atol=1e-14)
    parts = [as_numpy(block) for _, block in spec.blocks(x, y, batch_size=3)]
    np.testing.assert_allclose(np.concatenate(parts), K, rtol=1e-12, atol=1e-14)
    square = as_numpy(spec.matrix(x))
    np.testing.assert_allclose(as_numpy(spec.diagonal(x)), np.diag(square), rtol=1e-12)
    np.testing.assert_array_equal(square, square.T)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(spec)).matrix(X, Y), K)
    if name != "smooth":
        sparse = sp.csr_array(X), sp.csr_array(Y)
        np.testing.assert_allclose(spec.matrix(*sparse), K, rtol=1e-11, atol=1e-13)
    assert np.linalg.eigvalsh(square).min() > -1e-10 * np.abs(square).max()


@pytest.mark.parametrize("name", ZONAL)
def test_functions_on_the_sphere(name, rng):
    """Values, the value at one, Taylor and Gegenbauer coefficients are all of the matrix of unit rows."""
    spec = spec_of(name)
    X = rng.standard_normal((6, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    K, t = spec.matrix(X), np.clip(X @ X.T, -1, 1)
    np.fill_diagonal(t, 1.0)
    np.testing.assert_allclose(spec.on_sphere(t), K, rtol=1e-7, atol=1e-12)
    assert spec.at_one == pytest.approx(K[0, 0], rel=1e-12)
    inside = np.linspace(-0.7, 0.7, 8)
    if name not in ("arc_cosine 2", "smooth"):
        a = spec.taylor(200)
        assert a.shape == (201,)
        assert (a >= 0).all()
        values = np.polynomial.polynomial.polyval(inside, a)
        np.testing.assert_allclose(values, spec.on_sphere(inside), rtol=1e-11, atol=1e-14)
        np.testing.assert_array_equal(spec.taylor(7), a[:8])
    c = spec.gegenbauer(80, 5)
    assert (c > -1e-10 * spec.at_one).all()
    np.testing.assert_allclose(gegenbauer_series(c, inside, 5), spec.on_sphere(inside), rtol=1e-4)


@pytest.mark.parametrize("name", ON_ROWS)
def test_gradients_are_differences(name, rng):
    spec = spec_of(name)
    X, Y, C = rng.standard_normal((5, 3)), rng.standard_normal((6, 3)), rng.standard_normal((6, 2))
    G = spec.gradient(X, Y, C)
    assert G.shape == (5, 2, 3)
    h = 1e-5
    expected = np.stack([(spec.matrix(X + h * e, Y) - spec.matrix(X - h * e, Y)) @ C / (2 * h) for e in np.eye(3)], -1)
    np.testing.assert_allclose(G, expected, atol=3e-8 * np.abs(expected).max())
    np.testing.assert_allclose(spec.gradient(X, Y, C[:, 1]), G[:, 1], rtol=1e-10, atol=1e-14)
    found = spec.gradient(*map(torch.from_numpy, (X, Y, C)))
    assert torch.is_tensor(found)
    np.testing.assert_allclose(found.numpy(), G, rtol=1e-10, atol=1e-14)
    at_rows = spec.gradient(Y, Y, C)  # of kernels with a cusp at x = y the rest
    assert np.isfinite(at_rows).all()
    with sklearn.config_context(working_memory=0.001):
        np.testing.assert_allclose(spec.gradient(X, Y, C), G, rtol=1e-10, atol=1e-14)


def test_gradients_of_the_ntk_at_a_row_equal_the_gradient_of_its_norm():
    """At x = y the tangent jumps; the rest is the derivative of (L + 1)‖x‖² / 2 along x."""
    x = np.array([[3.0, 4.0]])
    np.testing.assert_allclose(KernelSpec.of("ntk", depth=2).gradient(x, x, [1.0]), 3 * x, rtol=1e-12)
    # Of rows that are almost the same the tangent is there: ‖y‖ κ′(t) sin θ along the normal, κ′ sin θ → 1/π.
    y = x + 1e-7 * np.array([[-4.0, 3.0]])
    gradient = KernelSpec.of("ntk", depth=1).gradient(x, y, [1.0])[0]
    assert gradient @ [-0.8, 0.6] == pytest.approx(5 / np.pi, rel=1e-6)


def test_unsupported_operations_raise_clear_errors(rng):
    X = rng.standard_normal((3, 2))
    images = KernelSpec.of("cntk", depth=2)
    for ask in (lambda: images.taylor(3), lambda: images.at_one, lambda: images.gradient(X, X, np.ones(3))):
        with pytest.raises(ValueError, match="cannot take vectors: it takes images"):
            ask()
    with pytest.raises(nn.UnsupportedError, match="PowerSeries has no rule for GELU"):
        KernelSpec.of(SMOOTH).taylor(3)
    for spec in (KernelSpec.of(SMOOTH), KernelSpec.of(BIASED), KernelSpec.of("laplace")):
        with pytest.raises(nn.UnsupportedError, match="cannot be written as Σ_j w_j"):
            _ = spec.zonal
    wrong = KernelSpec.of(nn.Sequential(nn.ReLU(), nn.Dense()))
    for ask in (lambda: wrong.matrix(X), lambda: wrong.taylor(2), lambda: wrong.gradient(X, X, np.ones(3))):
        with pytest.raises(ValueError, match="its input is not Gaussian"):
            ask()
    with pytest.raises(nn.UnsupportedError, match="Taylor coefficients of ArcCosine"):
        KernelSpec.of("arc_cosine", order=2).taylor(3)
    with pytest.raises(nn.UnsupportedError, match="gradient of FunctionKernel"):
        KernelSpec.of(lambda A, B: A @ B.T).gradient(X, X, np.ones(3))
    with pytest.raises(nn.UnsupportedError, match="derivative of DotProduct"):
        KernelSpec.of("dot_product", function=np.cosh).gradient(X, X, np.ones(3))
    with pytest.raises(ValueError, match=r"'coefficients' parameter of gaussian must be an array of 3 rows"):
        KernelSpec.of("gaussian").gradient(X, X, np.ones(2))


def test_equal_kernels_are_equal():
    assert KernelSpec.of("ntk", depth=1) == KernelSpec.of(nn.fully_connected(1))
    one, same = (KernelSpec.of("dot_product", function=function) for function in ([1, 2], np.array([1.0, 2.0])))
    assert one == same == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(same)
    assert KernelSpec.of("laplace") != KernelSpec.of("laplace", norm="l1")


def test_gradients_of_halves_and_strict_arrays(rng):
    import array_api_strict

    X, c = rng.standard_normal((3, 2)), np.ones(3)
    for name in ("gaussian", "ntk", "smooth", "polynomial"):
        expected = spec_of(name).gradient(X, X[:1], c[:1])
        found = spec_of(name).gradient(torch.from_numpy(X).float(), torch.from_numpy(X[:1]).bfloat16(), c[:1])
        assert torch.is_tensor(found)
        assert np.abs(found.numpy() - expected).max() < 0.5
        strict = spec_of(name).gradient(array_api_strict.asarray(X), array_api_strict.asarray(X[:1]), c[:1])
        np.testing.assert_allclose(as_numpy(strict), expected, rtol=1e-12, atol=1e-15)


def test_kernels_that_are_zero():
    frozen = nn.Dense(trainable=False)
    for features in (DotProductSketch, MaclaurinFeatures):
        with pytest.raises(ValueError, match="must be a kernel that is not zero everywhere"):
            features(nn.Sequential(frozen, nn.ReLU(), frozen)).fit(np.eye(3))


def test_messages():
    for owner, ask in {
        "KernelSpec.of": lambda: KernelSpec.of("rbf"),
        "gram": lambda: gram("rbf", np.eye(2)),
        "diagonal": lambda: diagonal("rbf", np.eye(2)),
        "row_blocks": lambda: row_blocks("rbf", np.eye(2)),
        "NystroemFeatures": lambda: NystroemFeatures("rbf").fit(np.eye(3)),
        "KernelRidge": lambda: KernelRidge("rbf").fit(np.eye(3), np.ones(3)),
        "DotProductSketch": lambda: DotProductSketch("rbf").fit(np.eye(3)),
        "MaclaurinFeatures": lambda: MaclaurinFeatures("rbf").fit(np.eye(3)),
        "GegenbauerFeatures": lambda: GegenbauerFeatures("rbf").fit(np.eye(3)),
    }.items():
        with pytest.raises(ValueError, match=f"The 'kernel' parameter of {owner} must be one of .*'ntk'.* Got 'rbf'"):
            ask()
    with pytest.raises(TypeError, match="kernel 'matern' takes the parameters lengthscale, nu"):
        KernelSpec.of("matern", order=2)
    with pytest.raises(TypeError, match="kernel 'network' takes the parameters kind: got an unexpected"):
        gram(BIASED, np.eye(2), foo=1)
    with pytest.raises(ValueError, match=r"'kind' parameter of KernelRidge must be one of 'ntk', 'nngp'. Got 'both'"):
        KernelRidge(BIASED, kernel_params={"kind": "both"}).fit(np.eye(3), np.ones(3))
    for features in (DotProductSketch, NystroemFeatures):
        with pytest.raises(TypeError, match=r"'kernel_params' parameter of .* must be a dict or None. Got"):
            features("polynomial", kernel_params=[1]).fit(np.eye(3))
    for bad in ([True], ["1"], np.exp):
        with pytest.raises(TypeError, match=r"one of 'ntk', .* a network, or up to 1025 Taylor coefficients"):
            DotProductSketch(bad).fit(np.eye(3))
    with pytest.raises(TypeError, match="kernel 'ntk' takes the parameters depth"):
        KernelSpec.of("ntk")
    with pytest.raises(ValueError, match=r"'nu' parameter of matern must be 0.5, 1.5 or 2.5. Got 2"):
        KernelSpec.of("matern", nu=2)
    with pytest.raises(
        ValueError, match="'kernel_params' parameter of KernelRidge must be a dict without 'lengthscale'"
    ):
        KernelRidge("laplace", kernel_params={"lengthscale": 1.0}).fit(np.eye(3), np.ones(3))
    for features in (DotProductSketch("laplace"), GegenbauerFeatures("matern"), MaclaurinFeatures(SMOOTH)):
        with pytest.raises(ValueError, match=f"'kernel' parameter of {type(features).__name__} must be a kernel"):
            features.fit(np.eye(3))


@pytest.mark.parametrize("features", [DotProductSketch, GegenbauerFeatures, MaclaurinFeatures])
def test_maps_take_networks_and_all_names_with_series(features, rng):
    """A network description equals its name: NTK of two ReLU layers; and kernels that maps did not support before."""
    X = rng.standard_normal((30, 3))
    named = features("ntk", n_components=256, depth=2, random_state=0).fit_transform(X)
    described = features(nn.fully_connected(2), n_components=256, random_state=0).fit_transform(X)
    np.testing.assert_allclose(described, named, rtol=1e-9, atol=1e-12)
    K = gram("polynomial", X, degree=2, coef0=1.0)
    params = {"kernel_params": {"degree": 2, "coef0": 1.0}} if features is not GegenbauerFeatures else {}
    kernel = "polynomial" if params else (1.0, 2.0, 1.0)
    fitted = features(kernel, n_components=512, random_state=0, **params).fit(X)
    np.testing.assert_allclose(fitted.exact_kernel(X), K, rtol=1e-12, atol=1e-14)
    Z = fitted.transform(X)
    assert np.linalg.norm(Z @ Z.T - K) < 0.3 * np.linalg.norm(K)


def test_gegenbauer_of_integers_are_floats():
    for t in (np.array([-1, 0, 1]), torch.tensor([-1, 0, 1])):
        for degree in (0, 1):  # no step of the recursion, which would make floats
            assert as_numpy(gegenbauer(t, degree, 3)).dtype == np.float64
        values = gegenbauer(t, 4, 3)
        np.testing.assert_allclose(as_numpy(values), as_numpy(gegenbauer(as_numpy(t).astype(float), 4, 3)))
        assert as_numpy(values)[2, 1] == -0.5  # Legendre: (3t² − 1)/2
        assert as_numpy(gegenbauer_series([0.0, 0.0, 1.0], t, 3))[1] == -0.5


def test_laplace_and_ntk_coefficients_fall_alike():
    """On the sphere both have the same reproducing space: for even and for odd ℓ the ratios go to constants > 0."""
    ratios = gegenbauer_coefficients("ntk", 81, 4, depth=2) / gegenbauer_coefficients("laplace", 81, 4)
    for parity in (0, 1):
        some = ratios[20 + parity :: 20]
        assert (np.diff(some) < 0).all()
        assert 0.7 < some[-1] < some[0] < 1.05 * some[-1]


# Memory, threads.


@pytest.mark.parametrize("name", sampled([*ON_ROWS, "zonal"], 6))
def test_wide_rows_stay_within_the_working_memory(name, rng):
    """2 MiB more than the allowed 16 MiB, for memory that does not depend on sizes. Rows take 19.5 MiB."""
    X = rng.standard_normal((1024, 5000)).astype(np.float32) / 70
    spec = KernelSpec.of("zonal", function=np.exp) if name == "zonal" else spec_of(name)
    with sklearn.config_context(working_memory=16):
        used = peak_memory(lambda: spec.matrix(X)) / 2**20 - 4  # the matrix
    assert used < 18, used


def test_images_of_many_channels_stay_within_the_working_memory(rng):
    X = rng.standard_normal((8, 16, 16, 512)).astype(np.float32)  # 4 MiB
    net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.AvgPool(2), nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool())
    with sklearn.config_context(working_memory=16):
        assert peak_memory(lambda: network_kernel(net, X)) < 18 * 2**20
        assert peak_memory(lambda: diagonal(net, X)) < 18 * 2**20


@pytest.mark.parametrize("name", sampled(["matern 3/2", "smooth", "ntk", "polynomial", "laplace l1"], 2))
def test_gradients_stay_within_the_working_memory(name, rng):
    d = scaled(100, 2000) if name == "laplace l1" else 2000  # whose columns go one by one
    X = rng.standard_normal((300, d)).astype(np.float32) / 50
    Y = rng.standard_normal((2000, d)).astype(np.float32) / 50
    with sklearn.config_context(working_memory=16):
        used = peak_memory(lambda: spec_of(name).gradient(X, Y, np.ones(2000)))
    assert used < 300 * d * 8 + 20 * 2**20, used / 2**20


def test_functions_are_called_on_the_calling_thread(rng, monkeypatch):
    import numba

    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 4)
    X, threads = rng.standard_normal((2000, 3)), set()

    def function(t):
        threads.add(threading.get_ident())
        return np.exp(t / 10)

    K = dot_product(X, function=function)
    np.testing.assert_allclose(K, gram("exponential", X, lengthscale=10**0.5), rtol=1e-12)
    gram("zonal", X, function=function)
    gram(lambda A, B: function(A @ B.T), X)
    assert threads == {threading.get_ident()}


# Rows of extreme norms, where squares leave float64.

EXTREME = {
    "residual": nn.Sequential(
        nn.Dense(), nn.ReLU(), nn.Residual(nn.Sequential(), nn.Sequential(nn.Dense(), nn.ReLU(), nn.Dense()))
    ),
    "gelu": nn.Sequential(nn.Dense(), nn.GELU(), nn.Dense()),
    "biased": BIASED,
    "biased gelu": nn.Sequential(nn.Dense(bias_std=0.5), nn.GELU(), nn.Dense()),
    "erf": nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense()),
    "sin": nn.Sequential(nn.Dense(), nn.Sin(), nn.Dense()),
    "gaussian": nn.Sequential(nn.Dense(), nn.Gaussian(), nn.Dense()),
    "normalize": nn.Sequential(nn.Normalize(), nn.Dense(), nn.Erf(), nn.Dense()),
}
POWERS = {"residual": 1, "gelu": 1, "biased": 1, "biased gelu": 1}


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("name", EXTREME)
def test_long_rows(name, kind, rng):
    """Compare k(sx, y) for s = 1e200 with s = 1e40, where nothing overflows: by the power of s, or the same limit."""
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    power = POWERS.get(name, 0)
    near, far = (network_kernel(EXTREME[name], s * x, y, kind=kind) * s**-power for s in (1e40, 1e200))
    np.testing.assert_allclose(far, near, rtol=1e-9, atol=1e-30)
    both = network_kernel(EXTREME[name], 1e200 * x, 1e-200 * y, kind=kind)
    assert np.isfinite(both).all()
    if name == "residual":
        np.testing.assert_allclose(both, network_kernel(EXTREME[name], x, y, kind=kind), rtol=1e-9)


@pytest.mark.parametrize("name", EXTREME)
def test_short_rows(name, rng):
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    power = 0 if name in ("biased", "biased gelu", "gaussian", "normalize") else 1
    near, far = (network_kernel(EXTREME[name], s * x, y) * s**-power for s in (1e-40, 1e-200))
    np.testing.assert_allclose(far, near, rtol=1e-9)
    zero = network_kernel(EXTREME[name], np.concatenate([x, 0 * x[:1]]) * 1e-200, y)[-1]
    np.testing.assert_allclose(zero, network_kernel(EXTREME[name], 0 * x[:1], y)[0])


@pytest.mark.parametrize(
    ("name", "kind", "long", "short"),
    [
        ("erf", "ntk", 1, 2), ("erf", "nngp", 0, 2), ("residual", "ntk", 2, 2), ("residual", "nngp", 2, 2),
        ("gaussian", "ntk", 2, 0), ("gaussian", "nngp", 0, 0),
    ],
)  # fmt: skip
def test_the_diagonal_of_long_and_short_rows(name, kind, long, short, rng):
    """Θ(x, x) of Erf grows like ‖x‖, as E[σ′(u)²] falls like 1/‖x‖."""
    x = rng.standard_normal((3, 4))
    for power, scales in ((long, (1e40, 1e100, 1e150)), (short, (1e-40, 1e-100, 1e-150))):
        near, *far = (diagonal(EXTREME[name], s * x, kind=kind) * s**-power for s in scales)
        np.testing.assert_allclose(far, [near, near], rtol=1e-9)


def test_long_rows_that_differ_are_not_the_same(rng):
    """exp(−‖x − y‖²/2) is 0 for y = 2x: rows so long are scaled down, but not to the same norm."""
    x = rng.standard_normal((3, 4))
    assert not network_kernel(EXTREME["gaussian"], 1e200 * x, 2e200 * x, kind="nngp").any()


def test_images_of_extreme_norms(rng):
    X = rng.standard_normal((3, 4, 4, 2))
    for net in (
        nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense()),
        nn.Sequential(nn.Conv(3, stride=2), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense()),
    ):
        K = network_kernel(net, X)
        np.testing.assert_allclose(network_kernel(net, 1e200 * X, 1e-200 * X), K, rtol=1e-9)
        for scale in (1e-100, 1e100):
            for kind in ("ntk", "nngp"):
                expected = diagonal(net, X, kind=kind)
                np.testing.assert_allclose(diagonal(net, scale * X, kind=kind) * scale**-2, expected, rtol=1e-9)
    erf = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense(), nn.Erf(), nn.Dense())
    near, far = (network_kernel(erf, s * X[:1], X[1:], kind="nngp") for s in (1e40, 1e200))
    np.testing.assert_allclose(far, near, rtol=1e-9)


def test_gelu_of_large_variances_keeps_its_digits():
    """E[σ′(u)²] → 1/2 for u = v: the formula that is in books cancels, and gave −1360 at a variance of 1e40."""
    for a in (1e10, 1e20, 1e40, 1e100):
        variance = np.array(a)
        derivative = nn.GELU(normalize=False).dual(variance, variance, variance)[1]
        assert float(derivative) == pytest.approx(0.5, abs=2 * a**-0.5)
