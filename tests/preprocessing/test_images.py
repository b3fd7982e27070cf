"""Images: each transformer against loops over pixels, for all libraries, dtypes, layouts and batch sizes."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from tests.conftest import as_numpy
from tests.reference import images as reference

from ntkit.features import FlipAveraged
from ntkit.preprocessing import ImageStandardizer, PatchWhitening, ZCAWhitening
from ntkit.preprocessing.whitening import inverse_root, newton_schulz

DEFAULTS = [ImageStandardizer(), ZCAWhitening(), PatchWhitening(), FlipAveraged()]
TRANSFORMERS = [
    ImageStandardizer(),
    ZCAWhitening(),
    ZCAWhitening(regularization=0.5, per_image=False),
    PatchWhitening(patch_size=3, random_state=0),
    PatchWhitening(patch_size=2, n_components=4, padding="valid", contrast=10.0, n_patches=50, random_state=0),
    FlipAveraged(),
]
ALL = pytest.mark.parametrize("estimator", TRANSFORMERS, ids=repr)
IMAGES = pytest.mark.parametrize("estimator", TRANSFORMERS[:-1], ids=repr)
KINDS = ["uint8", "int16", "int64", "float16", "float32", "float64"]
FLOATS = {"uint8": "float32", "int16": "float32", "int64": "float64"}


@pytest.fixture
def X(rng):
    """Bytes with correlated neighbours and channels, and with different channels."""
    z = rng.standard_normal((30, 5, 4, 3)).cumsum(axis=1).cumsum(axis=2)
    z[..., 1] += z[..., 0]
    z[..., 2] = 0.5 * z[..., 2] + 3
    return (128 + 8 * z).clip(0, 255).astype(np.uint8)


def close(found, expected, tolerance=1e-9):
    found = as_numpy(found).astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())


# Against loops over pixels


@pytest.mark.parametrize("kind", ["uint8", "float32", "float64"])
def test_standardizer(X, kind):
    fitted = ImageStandardizer().fit(X.astype(kind))
    expected = reference.standardized(X, X[:7])
    close(fitted.transform(X[:7].astype(kind)), expected, 1e-9 if kind == "float64" else 1e-6)
    np.testing.assert_allclose(fitted.mean_, X.astype(float).mean(axis=(0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(fitted.scale_, X.astype(float).std(axis=(0, 1, 2)), rtol=1e-13)


def test_standardizer_equals_scikit_learn_on_rows(rng):
    X = rng.standard_normal((20, 6)) * [1, 1, 1e-8, 1e8, 1, 0] + [0, 1e6, 0, 0, -3, 0.1]
    expected = StandardScaler().fit(X)
    fitted = ImageStandardizer().fit(X)
    assert fitted.image_shape_ == (1, 1, 6)
    np.testing.assert_allclose(fitted.mean_, expected.mean_, rtol=1e-12)
    np.testing.assert_allclose(fitted.scale_, expected.scale_, rtol=1e-9)
    np.testing.assert_allclose(fitted.transform(X), expected.transform(X), rtol=1e-9, atol=1e-9)


def test_constant_channels_have_scale_one(rng):
    for dtype in ["float32", "float64"]:
        for value in [0, 0.1, 255, -1e8]:
            X = rng.standard_normal((50, 7, 6, 2)).astype(dtype)
            X[..., 1] = value
            fitted = ImageStandardizer().fit(X)
            assert fitted.scale_[1] == 1
            assert not fitted.transform(X)[..., 1].any()
            with sklearn.config_context(working_memory=0.01):
                assert fitted.fit(X).scale_[1] == 1


@pytest.mark.parametrize("per_image", [True, False])
def test_zca(X, rng, per_image):
    for regularization in [1e-4, 0.1, 3.0]:
        for n_images in [30, 200]:
            train = X if n_images == 30 else rng.standard_normal((n_images, 5, 4, 3)).cumsum(axis=1)
            fitted = ZCAWhitening(regularization=regularization, per_image=per_image).fit(train)
            expected, W = reference.zca(train, train[:5], regularization, per_image=per_image)
            close(fitted.whitening_, W, 1e-8)
            assert (fitted.whitening_ == fitted.whitening_.T).all()
            close(fitted.transform(train[:5].astype(float)), expected, 1e-8)
            close(fitted.transform(train[:5].astype(np.float32)), expected, 1e-6 / regularization**0.5)
            with pytest.raises(AssertionError):
                close(1.01 * fitted.whitening_, W, 1e-8)


def test_zca_whitens(rng):
    X = rng.standard_normal((300, 2, 3, 4)).cumsum(axis=1) + 5
    Z = ZCAWhitening(regularization=0.0, per_image=False).fit_transform(X).reshape(300, 24)
    np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(Z.T @ Z / 300, np.eye(24), atol=1e-10)


def test_regularization_of_zca_is_relative_to_the_mean_eigenvalue(X):
    rows = X.reshape(30, 60).astype(float)
    fitted = ZCAWhitening(regularization=0.3, per_image=False).fit(X)
    assert fitted.regularization_ == pytest.approx(0.3 * np.trace(np.cov(rows.T, bias=True)) / 60, rel=1e-12)
    close(clone(fitted).fit_transform(rows / 255), fitted.transform(rows), 1e-9)


def test_zca_of_each_image_ignores_its_brightness_and_contrast(X, rng):
    X = X.astype(float)
    changed = X * rng.uniform(0.1, 10, (30, 1, 1, 1)) + rng.uniform(-50, 50, (30, 1, 1, 1))
    fitted = ZCAWhitening().fit(X)
    close(fitted.transform(changed), fitted.transform(X))
    close(ZCAWhitening().fit(changed).whitening_, fitted.whitening_)


def test_constant_images_are_zero_before_they_are_whitened(X):
    for dtype in ["float32", "float64"]:
        for value in [0, 0.1, 3e7]:
            train = X.astype(dtype)
            train[3] = value
            fitted = ZCAWhitening().fit(train)
            expected, _ = reference.zca(train, train, 0.1, per_image=True)
            close(fitted.transform(train), expected, 1e-5 if dtype == "float32" else 1e-9)
            np.testing.assert_allclose(
                fitted.transform(train)[3].ravel(),
                -fitted.whitening_ @ fitted.mean_,
                atol=1e-5 if dtype == "float32" else 1e-12,
            )


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("contrast", [None, 10.0])
def test_patches(X, padding, contrast):
    """Fitted on all patches. The components may have other signs, which the reference does not fix."""
    for q in [1, 2, 3, 4]:
        parameters = {"regularization": 0.1, "padding": padding, "contrast": contrast}
        fitted = PatchWhitening(patch_size=q, **parameters).fit(X)
        expected, _ = reference.whitened_patches(X, X[:6], q=q, **parameters)
        Z = fitted.transform(X[:6].astype(float))
        assert Z.shape == expected.shape == (6, *fitted.output_shape_)
        signs = np.sign((Z * expected).sum(axis=(0, 1, 2)))
        close(Z * signs, expected, 1e-7)
        close(fitted.transform(X[:6]), Z, 1e-5)
        with pytest.raises(AssertionError):
            close(1.01 * Z * signs, expected, 1e-7)
        largest = np.abs(fitted.components_).argmax(axis=1)
        assert (np.take_along_axis(fitted.components_, largest[:, None], axis=1) > 0).all()


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_patches_are_whitened(X, padding):
    """Over all training patches the components have mean 0, and variance λ/(λ + ε)."""
    for contrast in (None, 1.0):
        fitted = PatchWhitening(patch_size=3, n_components=9, padding=padding, contrast=contrast).fit(X)
        Z = fitted.transform(X.astype(float)).reshape(-1, 9)
        _, values = reference.whitened_patches(X, X[:1], q=3, regularization=0.1, padding=padding, contrast=contrast)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-12)
        variances = values[:9] / (values[:9] + 0.1 * values.mean())
        np.testing.assert_allclose(Z.T @ Z / len(Z), np.diag(variances), atol=1e-10)
        assert fitted.regularization_ == pytest.approx(0.1 * values.mean(), rel=1e-10)


def test_fewer_components_are_the_first(X):
    Z = PatchWhitening(patch_size=3).fit_transform(X)
    few = PatchWhitening(patch_size=3, n_components=5).fit(X)
    np.testing.assert_allclose(few.transform(X), Z[..., :5], atol=1e-5)
    assert few.components_.shape == (5, 27)


def test_inner_products_of_all_components_equal_zca(X):
    """Patches that fill the image are whole images."""
    square = X[:, :4].astype(float) - X[:, :4].mean(axis=(0, 1, 2))
    Z = PatchWhitening(patch_size=4, padding="valid").fit_transform(square).reshape(30, 48)
    W = ZCAWhitening(per_image=False).fit_transform(square).reshape(30, 48)
    close(Z @ Z.T, W @ W.T)


def test_patches_larger_than_the_image_have_only_pixels_that_can_be_inside(rng):
    X = rng.standard_normal((40, 2, 1, 2))
    fitted = PatchWhitening(patch_size=5).fit(X)
    assert fitted.components_.shape == (3 * 1 * 2, 6)
    Z = fitted.transform(X)
    assert fitted.output_shape_ == (2, 1, 6)
    padded = np.zeros((40, 2, 3, 2))
    centred = X[:, :, 0] - fitted.channel_mean_
    padded[:, 0, 1:], padded[:, 1, :2] = centred, centred
    rows = padded.reshape(80, 6)
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    flat = (rows - rows.mean(axis=0)) @ vectors / np.sqrt(values + 0.1 * values.mean())
    close(Z.reshape(80, 6) @ Z.reshape(80, 6).T, flat @ flat.T)


def test_patches_drawn_at_random(rng):
    """A draw of a tenth of all patches gives nearly their covariance, and each seed another."""
    X = rng.standard_normal((200, 10, 10, 1)).cumsum(axis=2)
    whole = PatchWhitening(patch_size=3, n_patches=20_000).fit(X)
    draws = [PatchWhitening(patch_size=3, n_patches=2000, random_state=seed).fit(X) for seed in range(5)]
    G = whole.components_.T @ whole.components_
    for drawn in draws:
        error = np.linalg.norm(drawn.components_.T @ drawn.components_ - G) / np.linalg.norm(G)
        assert 1e-3 < error < 0.3  # about √(9²/2000) = 0.2 for independent patches
    again = PatchWhitening(patch_size=3, n_patches=2000, random_state=0).fit(X)
    np.testing.assert_array_equal(again.components_, draws[0].components_)
    assert len({drawn.components_.tobytes() for drawn in draws}) == 5
    states = [np.random.default_rng(3), np.random.RandomState(3), None]
    for state in states:
        first, second = (PatchWhitening(patch_size=3, n_patches=200, random_state=state).fit(X) for _ in range(2))
        assert not np.array_equal(first.components_, second.components_)


# Libraries, dtypes, layouts, batches


@ALL
def test_libraries_and_dtypes(estimator, X):
    import torch

    for library in ["numpy", "torch"]:
        for kind in KINDS:
            fitted = clone(estimator).fit(X.astype(np.float64))
            expected = fitted.transform(X.astype(np.float64))
            images = X.astype(kind) if library == "numpy" else torch.from_numpy(X.astype(kind))
            kept = as_numpy(images).copy()
            for model in (fitted, clone(estimator).fit(images)):
                Z = model.transform(images)
                assert isinstance(Z, torch.Tensor) == (library == "torch")
                if not isinstance(estimator, FlipAveraged):  # whose features choose
                    assert str(Z.dtype).removeprefix("torch.") == FLOATS.get(kind, kind)
                close(Z, expected, {"float16": 3e-3}.get(kind, 1e-4))
            np.testing.assert_array_equal(as_numpy(images), kept)


@IMAGES
def test_sixteen_bits_of_torch(estimator, X):
    import torch

    fitted = clone(estimator).fit(X)
    Z = fitted.transform(torch.from_numpy(X).bfloat16())
    assert Z.dtype == torch.bfloat16
    assert np.isfinite(as_numpy(Z.float())).all()
    close(Z.float(), fitted.transform(torch.from_numpy(X).bfloat16().double().numpy()), 0.01)


@ALL
def test_fitted_on_one_library_and_applied_to_another(estimator, X):
    import torch

    X = X.astype(np.float64)
    on_numpy, on_torch = clone(estimator).fit(X), clone(estimator).fit(torch.from_numpy(X))
    expected = on_numpy.transform(X)
    for fitted in (on_numpy, on_torch):
        close(fitted.transform(X), expected)
        tensor = fitted.transform(torch.from_numpy(X))
        assert tensor.dtype == torch.float64
        close(tensor, expected)
    close(on_torch.transform(torch.from_numpy(X).requires_grad_()).detach(), expected)


def test_whitening_matrix_has_the_library_of_the_images(X):
    import torch

    on_torch = ZCAWhitening().fit(torch.from_numpy(X))
    assert isinstance(on_torch.whitening_, torch.Tensor)
    assert isinstance(on_torch.mean_, torch.Tensor)
    assert torch.equal(on_torch.whitening_, on_torch.whitening_.T)
    assert isinstance(ZCAWhitening().fit(X).whitening_, np.ndarray)


@ALL
def test_flat_rows_are_the_images(estimator, X):
    import torch

    fitted = clone(estimator).fit(X)
    Z = fitted.transform(X)
    flat = clone(estimator).set_params(image_shape=(5, 4, 3)).fit(X.reshape(30, 60))
    assert flat.image_shape_ == fitted.image_shape_ == (5, 4, 3)
    assert flat.n_features_in_ == fitted.n_features_in_ == 60
    for model in (fitted, flat):
        np.testing.assert_array_equal(model.transform(X), Z)
        np.testing.assert_array_equal(model.transform(X.reshape(30, 60)), Z.reshape(30, -1))
        assert model.transform(torch.from_numpy(X.reshape(30, 60))).ndim == 2
    assert len(fitted.get_feature_names_out()) == Z[0].size
    close(flat.transform(X.reshape(30, 60).tolist()), flat.transform(X.reshape(30, 60)), 1e-4)


@IMAGES
def test_batches(estimator, X):
    import torch

    for library in ["numpy", "torch"]:
        images = X.astype(np.float64) if library == "numpy" else torch.from_numpy(X.astype(np.float64))
        fitted = clone(estimator).fit(images)
        Z = as_numpy(fitted.transform(images))
        for mebibytes in (1e-6, 0.01, 0.03):
            with sklearn.config_context(working_memory=mebibytes):
                close(fitted.transform(images), Z)
                close(clone(estimator).fit(images).transform(images), Z)


@IMAGES
def test_views_in_any_order(estimator, X):
    fitted = clone(estimator).fit(X.astype(np.float64))
    Z = fitted.transform(X.astype(np.float64))
    for view in (np.asfortranarray(X.astype(np.float64)), np.repeat(X.astype(np.float64), 2, axis=2)[:, :, ::2]):
        close(fitted.transform(view), Z)
        close(clone(estimator).fit(view).transform(view), Z)
    view = X.astype(np.float64)
    view.flags.writeable = False
    close(fitted.transform(view), Z)


def test_images_of_bytes_are_never_all_floats():
    """A fit and a transform of 3.7 MB of bytes with 1 MiB of working memory take little more than the result."""
    import tracemalloc

    X = np.random.default_rng(0).integers(256, size=(1200, 32, 32, 3), dtype=np.uint8)
    for estimator, limit in [
        (ImageStandardizer(), 2e6),
        (PatchWhitening(patch_size=3, n_components=2, n_patches=1000), 4e6),
    ]:
        with sklearn.config_context(working_memory=1):
            tracemalloc.start()
            fitted = estimator.fit(X)
            _, peak = tracemalloc.get_traced_memory()
            assert peak < limit
            tracemalloc.reset_peak()
            Z = fitted.transform(X)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < Z.nbytes + limit


# Small and odd images


@ALL
def test_small_images(estimator, rng):
    for content in ["zero", "constant", "random"]:
        for shape in [(1, 5, 4, 3), (1, 1, 1, 1), (4, 1, 1, 1), (4, 1, 1, 3), (4, 3, 3, 1), (3, 1, 4, 2)]:
            X = {"zero": np.zeros(shape), "constant": np.full(shape, 0.1), "random": rng.standard_normal(shape)}[
                content
            ]
            if isinstance(estimator, PatchWhitening):
                estimator = clone(estimator).set_params(padding="same", n_components=None)
            for images in (X, X.astype(np.float32)):
                Z = clone(estimator).fit(images).transform(images)
                assert Z.shape[0] == shape[0]
                assert Z.dtype == images.dtype
                assert np.isfinite(Z).all()
                if content != "random" and not isinstance(estimator, FlipAveraged):
                    assert not Z.any()


@pytest.mark.parametrize("estimator", [ZCAWhitening(), PatchWhitening(patch_size=3)], ids=repr)
def test_pixels_that_never_change(estimator, X):
    X = X.astype(np.float64)
    X[:, 0] = X[:, :, -1] = 7.0
    assert np.isfinite(clone(estimator).fit_transform(X)).all()


# Roots


def test_newton_schulz(rng):
    """As on a GPU; A^{-1/2} in the basis in which it is known."""
    import torch

    for condition in [1.0, 1e2, 1e4, 1e6]:
        for library in ["numpy", "torch"]:
            Q, _ = np.linalg.qr(rng.standard_normal((40, 40)))
            values = 17.0 * np.geomspace(1 / condition, 1, 40)
            A, expected = Q @ np.diag(values) @ Q.T, Q @ np.diag(values**-0.5) @ Q.T
            A = (A + A.T) / 2
            found = newton_schulz(A if library == "numpy" else torch.from_numpy(A))
            close(found, expected, 1e-9)
            close(inverse_root(A), expected, 1e-9)


def test_roots_of_singular_matrices(rng):
    for smallest in [0.0, 1e-17, -1e-3]:
        Q, _ = np.linalg.qr(rng.standard_normal((20, 20)))
        A = Q @ np.diag([smallest, *np.linspace(0.5, 1, 19)]) @ Q.T
        A = (A + A.T) / 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflow is not supported
            assert newton_schulz(A) is None
        assert inverse_root(A) is None


# scikit-learn's checks


@pytest.mark.parametrize("estimator", DEFAULTS, ids=repr)
def test_scikit_learn_checks(estimator):
    results = check_estimator(clone(estimator), on_skip=None, on_fail=None)
    assert not [f"{r['check_name']}: {r['exception']!r}" for r in results if r["status"] == "failed"]
    assert sum(r["status"] == "passed" for r in results) >= 45
    assert repr(estimator) == f"{type(estimator).__name__}()"


@ALL
def test_clones_and_pickles(estimator, X):
    fitted = clone(estimator).fit(X)
    Z = fitted.transform(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X), Z)
    np.testing.assert_array_equal(clone(fitted).fit(X).transform(X), Z)
    np.testing.assert_array_equal(clone(estimator).fit_transform(X), Z)
    with pytest.raises(NotFittedError):
        clone(fitted).transform(X)
    with pytest.raises(NotFittedError):
        clone(fitted).get_feature_names_out()


@IMAGES
def test_parameters_set_after_a_fit_wait_for_the_next(estimator, X):
    fitted = clone(estimator).fit(X)
    Z = fitted.transform(X)
    others = {"per_image": False, "contrast": 3.0, "padding": "same", "patch_size": 4, "n_components": 2}
    fitted.set_params(**{name: value for name, value in others.items() if name in fitted.get_params()})
    np.testing.assert_array_equal(fitted.transform(X), Z)


@ALL
def test_frames(estimator, X):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X.reshape(30, 60).astype(np.float64), columns=[f"c{i}" for i in range(60)])
    model = clone(estimator).set_params(image_shape=(5, 4, 3)).set_output(transform="pandas").fit(frame)
    out = model.transform(frame)
    assert list(out.columns) == list(model.get_feature_names_out())
    close(out.to_numpy(), clone(estimator).fit(X.astype(np.float64)).transform(X.astype(np.float64)).reshape(30, -1))
    if isinstance(estimator, ImageStandardizer | ZCAWhitening):
        assert list(out.columns) == list(frame.columns)
    else:
        assert out.columns[0] == f"{type(estimator).__name__.lower()}0"
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[frame.columns[::-1]])


# Errors


@pytest.mark.parametrize(
    ("estimator", "error", "text"),
    [
        (ZCAWhitening(regularization=-1), ValueError, "'regularization' parameter of ZCAWhitening must be a finite"),
        (ZCAWhitening(regularization="x"), TypeError, "'regularization' parameter of ZCAWhitening must be a finite"),
        (ZCAWhitening(per_image=1), TypeError, "'per_image' parameter of ZCAWhitening must be True or False"),
        (ZCAWhitening(regularization=0), ValueError, r"'regularization' .* must be greater than 0, .* 30 images of 60"),
        (PatchWhitening(patch_size=0), ValueError, "'patch_size' parameter of PatchWhitening must be an int ≥ 1"),
        (PatchWhitening(patch_size=2.0), TypeError, "'patch_size' parameter of PatchWhitening must be an int ≥ 1"),
        (PatchWhitening(patch_size=5, padding="valid"), ValueError, r"'patch_size' .* at most 4 .*padding='same'"),
        (PatchWhitening(padding="full"), ValueError, "'padding' parameter .* must be one of 'same', 'valid'"),
        (PatchWhitening(padding=None), TypeError, "'padding' parameter .* must be one of 'same', 'valid'"),
        (PatchWhitening(n_components=0), ValueError, "'n_components' parameter of PatchWhitening must be an int ≥ 1"),
        (PatchWhitening(n_components=1.5), TypeError, "'n_components' parameter of PatchWhitening must be an int"),
        (PatchWhitening(patch_size=3, n_components=28), ValueError, "'n_components' .* must be an int from 1 to 27"),
        (PatchWhitening(regularization=-0.1), ValueError, "'regularization' parameter of PatchWhitening must be"),
        (PatchWhitening(regularization=None), TypeError, "'regularization' parameter of PatchWhitening must be"),
        (PatchWhitening(regularization=0, n_patches=20), ValueError, r"must be greater than 0, .* 20 patches of 75"),
        (PatchWhitening(n_patches=0), ValueError, "'n_patches' parameter of PatchWhitening must be an int ≥ 1"),
        (PatchWhitening(n_patches=1e5), TypeError, "'n_patches' parameter of PatchWhitening must be an int ≥ 1"),
        (PatchWhitening(contrast=0), ValueError, "'contrast' parameter of PatchWhitening must be .* > 0"),
        (PatchWhitening(contrast="high"), TypeError, "'contrast' parameter of PatchWhitening must be .* > 0"),
        (PatchWhitening(random_state=-1), ValueError, "'random_state' parameter of PatchWhitening must be None"),
        (PatchWhitening(random_state="x"), TypeError, "'random_state' parameter of PatchWhitening must be None"),
        (FlipAveraged("flip"), TypeError, "'features' parameter of FlipAveraged must be None or a transformer"),
    ],
)  # fmt: skip
def test_bad_parameters(estimator, error, text, X):
    with pytest.raises(error, match=text):
        estimator.fit(X)
    with pytest.raises(NotFittedError):
        estimator.transform(X)


@ALL
def test_bad_shapes(estimator, X):
    name = type(estimator).__name__
    for shape, error in (((5, 4), ValueError), ((5, 4, 0), ValueError), ("abc", TypeError), ((5, 4, 1.0), TypeError)):
        with pytest.raises(error, match=f"'image_shape' parameter of {name} must be"):
            clone(estimator).set_params(image_shape=shape).fit(X)
    with pytest.raises(ValueError, match=r"'image_shape' .* must be \(5, 4, 3\), the shape of the images"):
        clone(estimator).set_params(image_shape=(4, 5, 3)).fit(X)
    with pytest.raises(
        ValueError, match=r"'X' .* must be rows of 80 features.*image_shape=\(height, width, channels\)"
    ):
        clone(estimator).set_params(image_shape=(5, 4, 4)).fit(X.reshape(30, 60))
    fitted = clone(estimator).fit(X)
    with pytest.raises(ValueError, match=r"images of shape \(4, 5, 3\), but .* expecting images of shape \(5, 4, 3\)"):
        fitted.transform(X.reshape(30, 4, 5, 3))
    with pytest.raises(ValueError, match=r"X has 59 features, but .* is expecting 60 features"):
        fitted.transform(X.reshape(30, 60)[:, :59])
    for attempt in (fitted.transform, clone(estimator).fit):
        with pytest.raises(ValueError, match=r"'X' .* must be 2-D .* or 4-D .*X\[..., None\]"):
            attempt(X[..., 0])
        with pytest.raises(ValueError, match="must be non-empty"):
            attempt(X[:0])
        bad = X.astype(float)
        bad[1, 2, 3, 0] = np.nan
        with pytest.raises(ValueError, match=rf"'X' .* {name} must be finite. Got nan at index \(1, 2, 3, 0\)"):
            attempt(bad)


@ALL
def test_a_failed_fit_leaves_the_estimator_unchanged(estimator, X):
    fitted = clone(estimator).fit(X)
    Z = fitted.transform(X)
    before = vars(fitted).copy()
    with pytest.raises(ValueError, match="finite"):
        fitted.fit(np.full((3, 2, 2, 1), np.inf))
    assert vars(fitted).keys() == before.keys()
    assert all(vars(fitted)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(fitted.transform(X), Z)


@pytest.mark.parametrize("estimator", [ZCAWhitening(), PatchWhitening(patch_size=3)], ids=repr)
def test_a_singular_second_fit_leaves_the_estimator_unchanged(estimator, rng):
    X = rng.standard_normal((5, 3, 3, 2))
    fitted = clone(estimator).fit(X)
    Z = fitted.transform(X)
    with pytest.raises(ValueError, match="singular"):
        fitted.set_params(regularization=0.0).fit(np.zeros((4, 4, 4, 1)))
    np.testing.assert_array_equal(fitted.transform(X), Z)
