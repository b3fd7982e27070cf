"""NetworkFeatures and CNTKSketch: algebra, norms, extreme images, kinds of input, messages. No statistics."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from tests.conftest import as_numpy
from tests.reference.cntk_sketch import definition_3, series_kernel
from tests.statistical import check_distinct
from tests.tiers import gpu
from threadpoolctl import threadpool_limits

from ntkit import CNTKSketch, FeatureRidge, FeatureRidgeClassifier, NetworkFeatures
from ntkit import networks as nn
from ntkit.features.network import maps as module
from ntkit.features.network.stages import Fold
from ntkit.features.network.units import SeriesUnits
from ntkit.kernels import cntk, network_kernel
from ntkit.kernels.expansions import dual_polynomial
from ntkit.sketches import SRHT

S, GAP, FLAT, ID = nn.Sequential, nn.GlobalAvgPool(), nn.Flatten(), nn.Sequential()
TWO = S(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.ReLU(), GAP, nn.Dense())
METHODS = pytest.mark.parametrize("method", ["sketch", "random"])
NORMALIZE = pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "plain"])
MAPS = pytest.mark.parametrize("law", [NetworkFeatures, CNTKSketch])
DEEP = {
    "cntk": nn.cntk(3),
    "flatten": S(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.ReLU(), FLAT, nn.Dense()),
    "residual": S(nn.Conv(3), nn.Residual(ID, S(nn.ReLU(), nn.Conv(3))), nn.ReLU(), nn.Conv(2), FLAT),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


def images(seed=0, n=4, height=5, width=4, channels=2):
    """Images of different sizes; the second is similar to the first."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, height, width, channels))
    if n > 1:
        X[1] = 0.8 * X[0] + 0.5 * X[1]
    return X * np.geomspace(1, 2, n)[:, None, None, None]


def relative(Z, K):
    Z = as_numpy(Z).astype(np.float64)
    return float(np.linalg.norm(Z @ Z.T - K) / np.linalg.norm(K))


# Algebra: with room for all monomials, patches and entries, only rotations are random.

WHOLE = {"degree": 2, "derivative_degree": 1, "hidden_components": 30_000, "random_state": 0}
EXACT_NTK = {
    "one layer": S(nn.Conv(2), nn.ReLU(), GAP, nn.Dense()),
    "frozen first": S(nn.Conv(2, trainable=False), nn.ReLU(), nn.Conv(2), nn.Abs(), GAP, nn.Dense(trainable=False)),
    "weights": S(nn.Conv((1, 2), weight_std=1.5), nn.ReLU(normalize=False), GAP, nn.Dense(weight_std=0.6), nn.Dense()),
    "stride": S(nn.Conv(2, stride=2), nn.Conv(1), nn.LeakyReLU(0.3), GAP),
    "smooth": S(nn.Conv(2), nn.GELU(), GAP, nn.Dense()),
    "pooled first": S(nn.AvgPool((2, 1), stride=1), nn.Conv(2), nn.Sin(normalize=False), GAP),
    "normalized": S(nn.Normalize(), nn.Conv(2), nn.Normalize(), nn.Gaussian(), GAP, nn.Dense()),
    "residual": S(nn.Conv(1), nn.Residual(ID, nn.Conv((1, 2))), nn.ReLU(), GAP),
    "no activation": S(nn.Conv(2), nn.Conv(2, trainable=False), nn.AvgPool(2, stride=1), FLAT, nn.Dense()),
    "vectors at the end": S(nn.AvgPool(2, stride=1), GAP, nn.Dense(weight_std=2.0), nn.Dense()),
}
EXACT_NNGP = {
    "two layers": S(nn.Conv(2), nn.ReLU(), nn.Conv(2), nn.ReLU(), GAP),
    "flatten": S(nn.Conv(2, stride=(1, 2)), nn.Erf(), nn.Conv(2), FLAT, nn.Dense(weight_std=0.7)),
    "pooled": S(nn.Conv((1, 2)), nn.GELU(), nn.AvgPool(2, stride=1), nn.Conv(1), nn.Sin(normalize=False), GAP),
    "residual": S(nn.Conv(2, weight_std=1.3), nn.Residual(ID, S(nn.LeakyReLU(0.3), nn.Conv((2, 1)))), nn.Abs(), FLAT),
    "head": S(nn.Conv(2), nn.Normalize(), nn.Gaussian(), GAP, nn.Dense(), nn.ReLU(normalize=False), nn.Dense()),
    "valid": S(nn.Conv(2, padding="valid"), nn.ReLU(), nn.Conv((2, 1)), nn.ReLU(), FLAT, nn.Dense()),
}


@NORMALIZE
@pytest.mark.parametrize("name", EXACT_NTK)
def test_ntk_features_with_room_for_everything_are_exact(name, normalize):
    """The kernel with polynomials (series) of degrees 2 and 1 in place of the dual activations, to rounding."""
    X = images(n=3, height=3, width=2, channels=1)
    expected = series_kernel(EXACT_NTK[name], X, 2, 1)
    both = NetworkFeatures(EXACT_NTK[name], n_components=200_000, kind="both", normalize=normalize, **WHOLE)
    Z = both.fit_transform(X)
    for columns, K in ((both.nngp_columns_, expected[0]), (both.ntk_columns_, expected[1])):
        np.testing.assert_allclose(Z[:, columns] @ Z[:, columns].T, K, atol=1e-12 * np.abs(K).max())
    one = both.set_params(kind="ntk").fit_transform(X)
    np.testing.assert_allclose(one @ one.T, expected[1], atol=1e-12 * np.abs(expected[1]).max())


@NORMALIZE
@pytest.mark.parametrize("name", EXACT_NNGP)
def test_nngp_features_with_room_for_everything_are_exact(name, normalize):
    X = images(n=3, height=3, width=2, channels=1)
    K, _ = series_kernel(EXACT_NNGP[name], X, 2, 1)
    Z = NetworkFeatures(EXACT_NNGP[name], n_components=200_000, kind="nngp", normalize=normalize, **WHOLE)
    Z = Z.fit_transform(X)
    np.testing.assert_allclose(Z @ Z.T, K, atol=1e-12 * np.abs(K).max())
    assert np.abs(1.02 * Z @ Z.T - K).max() > 1e-3 * np.abs(K).max()


@NORMALIZE
@pytest.mark.parametrize("kernel_size", [1, 3])
def test_cntk_sketch_with_room_for_everything_is_definition_3(kernel_size, normalize):
    X = images(n=3, height=2, width=2, channels=1)
    c, b = dual_polynomial(nn.ReLU(), 2)[0], dual_polynomial(nn.ReLU(), 1, derivative=True)[0]
    naive = np.array([definition_3(x, 2, kernel_size, c, b) for x in X])
    sizes = WHOLE | {"hidden_components": 2048}
    Z = CNTKSketch(depth=2, kernel_size=kernel_size, n_components=600_000, normalize=normalize, **sizes).fit_transform(
        X
    )
    np.testing.assert_allclose(Z @ Z.T, naive @ naive.T, rtol=1e-12)
    assert relative(Z, cntk(X, depth=2, kernel_size=kernel_size)) < 0.15  # error of polynomials of this degree


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(), nn.Abs(), nn.Erf(), nn.Sin(), nn.GELU()], ids=str)
def test_zero_images_have_zero_features(activation):
    for method in ["sketch", "random"]:
        for normalize in [True, False]:
            X = images()
            X[1] = 0
            X[2, :3] = 0  # zero and nonzero rows together
            net = S(nn.Conv(3), activation, nn.AvgPool(2, stride=1), nn.Conv(2), activation, GAP, nn.Dense())
            parameters = {"n_components": 64, "method": method, "normalize": normalize, "random_state": 0}
            for dtype in (np.float64, np.float32):
                Z = NetworkFeatures(net, kind="both", **parameters).fit_transform(X.astype(dtype))
                assert not Z[1].any()
                assert np.isfinite(Z).all()
                assert np.abs(Z[[0, 2, 3]]).sum(axis=1).all()


@METHODS
def test_kernels_that_do_not_vanish_at_zero(method):
    net = S(nn.Conv(3), nn.Gaussian(), GAP, nn.Dense())
    X = 0.3 * images()
    X[1] = 0
    K = network_kernel(net, X)
    Z = NetworkFeatures(net, n_components=2048, method=method, degree=8, random_state=0).fit_transform(X)
    assert relative(Z, K) < 0.05
    assert (Z[1] ** 2).sum() == pytest.approx(K[1, 1], rel=0.05)


@METHODS
@NORMALIZE
def test_features_are_homogeneous_at_any_scale(method, normalize):
    """c times the images, c times the features: no overflow or underflow of squares, in single precision neither."""
    for factor in [1e-20, 1e-10, 1e10, 1e20]:
        X = images()
        features = NetworkFeatures(TWO, n_components=64, method=method, normalize=normalize, random_state=0).fit(X)
        for dtype, bound in ((np.float64, 1e-12), (np.float32, 1e-5)):
            Z = features.transform(X.astype(dtype)).astype(float)
            for convert in (np.asarray, torch.from_numpy):
                scaled = as_numpy(features.transform(convert((factor * X).astype(dtype)))).astype(float) / factor
                np.testing.assert_allclose(scaled, Z, rtol=0, atol=bound * np.abs(Z).max())


@METHODS
def test_pixels_of_very_different_scales(method):
    X = images(n=5, height=6, width=6)
    X[:, :2] *= 1e-20
    X[:, 3, 3] *= 1e15
    for dtype in (np.float64, np.float32):
        K = network_kernel(TWO, X)
        Z = NetworkFeatures(TWO, n_components=2048, method=method, random_state=0).fit_transform(X.astype(dtype))
        assert Z.dtype == dtype
        assert relative(Z, K) < 0.1


@pytest.mark.parametrize("depth", [2, 4])
def test_cntk_sketch_is_the_sketch_of_its_network(depth):
    X = images()
    parameters = {"n_components": 64, "random_state": 5, "method": "random", "kind": "both"}
    Z = CNTKSketch(depth=depth, kernel_size=(2, 3), **parameters).fit_transform(X)
    np.testing.assert_array_equal(Z, NetworkFeatures(nn.cntk(depth, (2, 3)), **parameters).fit_transform(X))


def test_cntk_of_depth_one_is_zero_and_refused():
    X = images()
    assert not cntk(X, depth=1).any()
    for kind in ("ntk", "both"):
        with pytest.raises(ValueError, match="'depth' parameter of CNTKSketch must be an int ≥ 2"):
            CNTKSketch(depth=1, n_components=32, kind=kind).fit(X)
    K = network_kernel(nn.cntk(1), X, kind="nngp")
    assert relative(CNTKSketch(depth=1, n_components=2048, kind="nngp", random_state=0).fit_transform(X), K) < 0.1


# Norms.


@METHODS
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Abs(normalize=False), nn.Erf(), nn.GELU(), nn.Sin()], ids=str)
def test_norms_of_fully_connected_features_are_exact(activation, method):
    for depth in [1, 2, 4]:
        X = np.random.default_rng(0).standard_normal((6, 10)) * np.linspace(0.2, 2, 6)[:, None]
        net = S(*(nn.Dense(weight_std=1.2), activation) * depth, nn.Dense())
        for kind in ("ntk", "nngp"):
            Z = NetworkFeatures(net, n_components=64, method=method, kind=kind, random_state=0).fit_transform(X)
            np.testing.assert_allclose((Z**2).sum(axis=1), np.diag(network_kernel(net, X, kind=kind)), rtol=1e-10)
        both = NetworkFeatures(net, n_components=64, method=method, kind="both", random_state=0).fit(X)
        norms = (both.transform(X)[:, both.ntk_columns_] ** 2).sum(axis=1)
        np.testing.assert_allclose(norms, np.diag(network_kernel(net, X)), rtol=1e-10)


BODIES = {
    "convolutions": S(nn.Conv(3), nn.ReLU(), nn.Conv(3), nn.GELU()),
    "residual": S(nn.Conv(2), nn.Residual(ID, S(nn.ReLU(), nn.Conv(2))), nn.Abs(), nn.Conv(1, weight_std=0.7)),
    "strides": S(
        nn.Normalize(), nn.Conv(3, weight_std=0.4), nn.Sin(), nn.Conv(3, stride=2, trainable=False), nn.ReLU()
    ),
    "pooled first": S(nn.AvgPool(2), nn.Conv((2, 3)), nn.LeakyReLU(0.2), nn.Conv(4, padding="valid", stride=(1, 2))),
}


@METHODS
@pytest.mark.parametrize("name", BODIES)
def test_norms_are_exact_where_no_features_are_pooled(name, method):
    """Through patches, branches and Flatten Σ(x, x) and Θ(x, x) are means: features at the end have these norms."""
    X = images(height=8, width=9)
    net = S(BODIES[name], FLAT, nn.Dense(), nn.ReLU(), nn.Dense())
    for kind in ("ntk", "nngp"):
        Z = NetworkFeatures(net, n_components=64, method=method, kind=kind, random_state=0).fit_transform(X)
        np.testing.assert_allclose((Z**2).sum(axis=1), np.diag(network_kernel(net, X, kind=kind)), rtol=1e-9)


# One map: array libraries, precisions, batches, seeds.


@METHODS
@pytest.mark.parametrize("name", ["cntk", "flatten", "residual"])
def test_numpy_and_torch_and_batches(name, method):
    for kind in ["ntk", "nngp", "both"]:
        X = images(n=7)
        features = NetworkFeatures(DEEP[name], n_components=48, method=method, kind=kind, random_state=0).fit(X)
        Z = features.transform(X)
        scale = np.abs(Z).max()
        np.testing.assert_allclose(as_numpy(features.transform(torch.from_numpy(X))), Z, rtol=0, atol=1e-12 * scale)
        single = features.transform(X.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, Z, rtol=0, atol=1e-4 * scale)
        tensor = features.transform(torch.from_numpy(X).float())
        assert tensor.dtype == torch.float32
        np.testing.assert_allclose(as_numpy(tensor), single, rtol=0, atol=1e-4 * scale)
        for size in (1, 2, 3, 7, 100):
            features.set_params(batch_size=size)
            np.testing.assert_allclose(features.transform(X), Z, rtol=0, atol=1e-12 * scale)
        np.testing.assert_allclose(features.transform(X[3:4]), Z[3:4], rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize(("shape", "m"), [((5, 4), 6), ((5, 4), 20), ((5, 4), 3), ((12, 8), 16)])
def test_folded_matrices_are_signed_sums(shape, m, rng):
    """Entry f of the matrix, written row by row, is added to place f mod m with its sign; all are kept if they fit."""
    fold = Fold(shape, m).sample(np.random.SeedSequence(0))
    C = rng.standard_normal((3, *shape))
    flat = C.reshape(3, -1) if fold.size <= m else (C * fold.signs).reshape(3, -1)
    expected = np.zeros((3, min(m, fold.size)))
    for f in range(fold.size):
        expected[:, f % m] += 0.5 * flat[:, f]
    for library in (np.asarray, torch.from_numpy):
        np.testing.assert_allclose(as_numpy(fold.apply(library(C), 0.5)), expected, rtol=1e-12, atol=1e-14)
    if shape == (12, 8):  # rows 0, 2, 4, … are added, and rows 1, 3, …
        for rows in (fold.signs[::2], fold.signs[1::2]):
            np.testing.assert_array_equal(rows.astype(int) @ rows.T, 8 * np.eye(6))


def test_rotations_of_forward_and_derivative_features_are_distinct():
    laws = {"forward": SRHT(64, 64), "derivative": SRHT(64, 64)}
    rotations = {f"{name}_rotation": law for name, law in laws.items()}
    units = SeriesUnits(nn.ReLU(), **laws, normalize=True, **rotations).draw(np.random.SeedSequence(0))
    parts = [units.forward, units.derivative, units.forward_rotation, units.derivative_rotation]
    check_distinct([part.signs for part in parts])
    check_distinct([part.rows for part in parts])


def test_layers_hold_distinct_draws():
    """Three equal layers: signs and directions of each are its own."""
    net = S(*(nn.Conv(3), nn.ReLU()) * 4, GAP)
    stages = NetworkFeatures(net, n_components=128, hidden_components=64, method="random", random_state=0)
    stages = [stage for _, stage in stages.fit(images())._draws.stages]
    signs = [stage.signs for stage in stages if hasattr(stage, "signs")]
    assert len(signs) == 3
    check_distinct(signs)
    check_distinct([1000 * stage.units.matrix[:, :18] for stage in stages if hasattr(stage, "units")][1:])
    check_distinct([stage.product.signs[0] for stage in stages if getattr(stage, "product", None) is not None][1:])


# Kinds and columns.


@METHODS
@pytest.mark.parametrize("net", [TWO, DEEP["flatten"], DEEP["residual"]], ids=["gap", "flatten", "residual"])
def test_number_of_features(net, method):
    for n_components in [1, 2, 3, 10, 100, 513]:
        X = images(n=2)
        for kind, most in (("ntk", 1), ("nngp", 1), ("both", 2)):
            features = NetworkFeatures(net, n_components=n_components, method=method, kind=kind, random_state=0).fit(X)
            Z = features.transform(X)
            assert np.isfinite(Z).all()
            assert 0 < Z.shape[1] <= most * n_components
            assert len(features.get_feature_names_out()) == Z.shape[1]


@METHODS
def test_columns_of_the_nngp_kernel_among_features_of_the_ntk(method):
    """There are some if the last layer is trained, and only it: with other weights they would be of another scale."""
    X = np.random.default_rng(0).standard_normal((6, 10))
    for end, some in (
        (S(nn.Dense()), True),
        (S(nn.Dense(trainable=False)), False),
        (S(nn.Dense(), nn.Dense()), False),
        (S(nn.Dense(weight_std=2.0)), True),
        (nn.Residual(nn.Dense(), nn.Dense(trainable=False)), False),
    ):
        net = S(nn.Dense(), nn.ReLU(), end)
        features = NetworkFeatures(net, n_components=64, method=method, random_state=0).fit(X)
        Z = features.transform(X)[:, features.nngp_columns_]
        assert (Z.shape[1] > 0) == some
        if some:
            np.testing.assert_allclose((Z**2).sum(axis=1), np.diag(network_kernel(net, X, kind="nngp")), rtol=1e-10)


# Copies, learners, other containers.


def test_learners_take_images():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 6, 6, 1))
    X[:40, 1:4, 1:4] += 1.5
    y = np.repeat([0, 1], 40)
    features = NetworkFeatures(TWO, n_components=128, random_state=0)
    flat = clone(features).set_params(image_shape=(6, 6, 1))
    order = rng.permutation(80)
    train, test = order[:60], order[60:]
    rows = X.reshape(80, -1)
    scores = [
        FeatureRidgeClassifier(features).fit(X[train], y[train]).score(X[test], y[test]),
        FeatureRidgeClassifier(flat).fit(rows[train], y[train]).score(rows[test], y[test]),
        make_pipeline(features, FeatureRidgeClassifier()).fit(X[train], y[train]).score(X[test], y[test]),
        make_pipeline(flat, FeatureRidgeClassifier()).fit(rows[train], y[train]).score(rows[test], y[test]),
        FeatureRidgeClassifier(CNTKSketch(depth=2, n_components=128, random_state=0))
        .fit(X[train].astype(np.float32), y[train])
        .score(X[test].astype(np.float32), y[test]),
    ]
    assert min(scores) >= 0.9
    assert FeatureRidge(features).fit(X[train], 1.0 * y[train]).score(X[test], y[test]) > 0.4


def test_progress_bars(capsys):
    X = images(n=6)
    NetworkFeatures(TWO, n_components=16, batch_size=2, progress=True).fit_transform(X)
    assert "NetworkFeatures" in capsys.readouterr().err
    NetworkFeatures(TWO, n_components=16).fit_transform(X)
    assert capsys.readouterr().err == ""


# Bad input; messages of parameters are in test_estimators.


def test_bad_networks_and_images():
    for net, X, error, text in [
        (TWO, np.ones((2, 32)), ValueError, r"Layer 0, Conv\(3\), cannot take vectors: it takes images.*image_shape"),
        (nn.fully_connected(1), np.ones((2, 4, 4, 1)), ValueError, r"Layer 0, Dense\(\), cannot take images of 4 × 4"),
        (S(nn.Conv(3), nn.ReLU()), np.ones((2, 4, 4, 1)), ValueError, "ends in images of 4 × 4 pixels"),
        (S(nn.Conv(5, padding="valid"), FLAT), np.ones((2, 4, 4, 1)), ValueError, "5 × 5 window does not fit"),
        (S(nn.ReLU(), nn.Dense()), np.ones((2, 4)), ValueError, "not Gaussian"),
        (nn.ReLU, np.ones((2, 4)), TypeError, "'net' parameter of NetworkFeatures must be a network of ntkit.networks"),
        (TWO, np.ones((2, 4, 4)), ValueError, "4-D"),
        (TWO, np.ones((2, 0, 4, 1)), ValueError, "non-empty"),
        (TWO, sp.csr_array(np.ones((2, 32))), TypeError, "'X' parameter of NetworkFeatures must be dense for networks"),
        (TWO, np.full((2, 4, 4, 1), np.nan), ValueError, "'X' parameter of NetworkFeatures must be finite"),
        (TWO, torch.full((2, 4, 4, 1), torch.inf), ValueError, "'X' parameter of NetworkFeatures must be finite"),
        (TWO, np.full((2, 4, 4, 1), "a"), TypeError, "'X' parameter of NetworkFeatures must be an array of real"),
        (TWO, np.ones((2, 4, 4, 1)) * 1j, ValueError, "'X' parameter of NetworkFeatures must be an array of real"),
    ]:
        features = NetworkFeatures(net)
        with pytest.raises(error, match=text):
            features.fit(X)
        assert vars(features).keys() == features.get_params(deep=False).keys()  # a failed fit leaves no attributes
        with pytest.raises(NotFittedError):
            features.transform(X)


@MAPS
def test_bad_shapes_of_images(law):
    X = images()
    features = law(n_components=16, image_shape=(5, 4, 2), random_state=0)
    features = features.set_params(net=TWO) if law is NetworkFeatures else features
    name = law.__name__
    with pytest.raises(ValueError, match=rf"'image_shape' parameter of {name} must be \(5, 4, 2\).*Got \(5, 2, 4\)"):
        clone(features).set_params(image_shape=(5, 2, 4)).fit(X)
    with pytest.raises(ValueError, match=rf"'X' parameter of {name} must be rows of 40 features.*image_shape"):
        features.fit(np.ones((3, 39)))
    Z = features.fit_transform(X)
    for wrong, text in (
        (X[:, :4], r"images of shape \(4, 4, 2\), but .* is expecting images of shape \(5, 4, 2\)"),
        (X[..., :1], r"images of shape \(5, 4, 1\), but .* is expecting images of shape \(5, 4, 2\)"),
        (np.ones((2, 39)), "X has 39 features, but .* is expecting 40 features"),
        (torch.ones(2, 39), "X has 39 features, but .* is expecting 40 features"),
        (np.full((1, 5, 4, 2), np.nan), "finite"),
    ):
        with pytest.raises(ValueError, match=text):
            features.transform(wrong)
    with pytest.raises(TypeError, match=f"'X' parameter of {name} must be dense for images"):
        features.transform(sp.csr_array(np.ones((2, 40))))
    with pytest.raises(ValueError, match="n_components"):
        features.set_params(n_components=0, image_shape=None).fit(X[:, :3])
    np.testing.assert_array_equal(features.transform(X), Z)  # a failed fit leaves the one before


@MAPS
def test_images_with_their_channels_first_are_refused(law):
    X = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    features = law(n_components=8, hidden_components=8, random_state=0)
    features = features.set_params(net=TWO) if law is NetworkFeatures else features
    for batch in (X, torch.from_numpy(X)):
        with pytest.raises(ValueError, match=rf"{law.__name__} must be images .*\(3, 32, 32\), which look like"):
            features.fit(batch)
        assert clone(features).set_params(image_shape=(3, 32, 32)).fit(batch).image_shape_ == (3, 32, 32)
    for shape in ((2, 32, 32, 3), (2, 3, 32, 31), (2, 5, 32, 32)):
        assert clone(features).fit(np.ones(shape, np.float32)).image_shape_ == shape[1:]


# Memory and CUDA.


@METHODS
@pytest.mark.parametrize("hidden_components", [128, 1024])
@pytest.mark.parametrize("name", ["cntk", "residual"])
def test_memory_stays_within_the_budget(name, hidden_components, method):
    """Features of all pixels before a mean over them, and products of them, count too."""
    import tracemalloc

    from sklearn import config_context

    for kind in ["ntk", "nngp"]:
        X = np.random.default_rng(0).standard_normal((32, 12, 12, 3)).astype(np.float32)
        sizes = {"n_components": 4096, "hidden_components": hidden_components, "derivative_components": 512}
        features = NetworkFeatures(DEEP[name], kind=kind, method=method, random_state=0, **sizes).fit(X)
        expected = features.transform(X[:2])
        with config_context(working_memory=64):
            tracemalloc.start()
            Z = features.transform(X)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak - Z.nbytes < 64 * 2**20
        np.testing.assert_allclose(Z[:2], expected, rtol=0, atol=1e-4 * np.abs(Z).max())


def test_batches_that_do_not_fit_are_halved(monkeypatch):
    X = torch.from_numpy(images(n=20))
    features = NetworkFeatures(TWO, n_components=32, batch_size=16, random_state=0).fit(X)
    Z, sizes, run = features.transform(X), [], module.apply_stages

    def short_of_memory(stages, flow):
        sizes.append(len(flow.values))
        if sizes[-1] > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(stages, flow)

    monkeypatch.setattr(module, "apply_stages", short_of_memory)
    torch.testing.assert_close(features.transform(X), Z)
    assert sizes[:3] == [16, 8, 4]
    assert max(sizes[3:]) <= 4
    assert sum(sizes[2:]) == 20
    for error, text in ((torch.OutOfMemoryError, "too little"), (RuntimeError, "something else")):

        def failing(*_, error=error, text=text):
            raise error(text)

        monkeypatch.setattr(module, "apply_stages", failing)
        with pytest.raises(error, match=text):
            features.transform(X)


ON_CUDA = DEEP | {
    "pooled": nn.myrtle(5),
    "gelu": S(nn.Conv(3), nn.GELU(), nn.AvgPool(2), nn.Conv(3), nn.GELU(), GAP, nn.Dense()),
    "vectors": nn.fully_connected(2),
}


def cuda_images(name):
    X = images(n=9, height=8, width=8, channels=3)
    X[3] = 0
    return torch.from_numpy(X.reshape(9, -1) if name == "vectors" else X)


@gpu
@METHODS
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_features_equal_host_features(name, method):
    for kind in ["ntk", "both"]:
        X = cuda_images(name)
        features = NetworkFeatures(ON_CUDA[name], n_components=600, method=method, kind=kind, random_state=0).fit(X)
        Z = features.transform(X)
        scale = torch.linalg.vector_norm(Z)
        # Units whose preactivation is 0 up to rounding may fall on either side of a step.
        for dtype, bound in {torch.float64: 1e-10, torch.float32: 1e-5 if method == "sketch" else 3e-3}.items():
            got = features.transform(X.to("cuda", dtype))
            assert got.dtype == dtype
            assert got.device.type == "cuda"
            assert torch.linalg.vector_norm(got.double().cpu() - Z) < bound * scale
            assert not got[3].any()
        small = features.set_params(batch_size=2).transform(X.cuda())
        assert torch.linalg.vector_norm(small.cpu() - Z) < 1e-10 * scale


@gpu
@METHODS
@pytest.mark.parametrize("name", ON_CUDA)
def test_cuda_features_in_bfloat16(name, method):
    """Gram matrices are within 2 % of the Gram matrix of the host."""
    X = cuda_images(name).float()
    features = NetworkFeatures(ON_CUDA[name], n_components=600, method=method, precision="bfloat16", random_state=0)
    Z = features.fit(X).transform(X).double()
    got = features.transform(X.cuda())
    assert got.dtype == torch.float32
    got = got.double().cpu()
    assert torch.linalg.norm(got @ got.T - Z @ Z.T) < 0.02 * torch.linalg.norm(Z @ Z.T)


@gpu
def test_cuda_batches_that_do_not_fit_are_halved():
    """Three quarters of the free memory are taken, so the rest is too small for the requested batch."""
    X = torch.randn(512, 16, 16, 3, device="cuda")
    features = NetworkFeatures(TWO, n_components=4096, kind="nngp", batch_size=512, random_state=0).fit(X)
    Z = features.set_params(batch_size=16).transform(X)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - 2**30, dtype=torch.uint8, device="cuda")
    got = features.set_params(batch_size=512).transform(X)
    del taken
    assert torch.linalg.norm(got - Z) < 1e-5 * torch.linalg.norm(Z)
