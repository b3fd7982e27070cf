"""Mirror images: arrays of both, and features averaged over both."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.conftest import as_numpy
from tests.statistical import check_unbiased

from ntkit.features import CNTKSketch, FlipAveraged, NTKFeatures, RandomFourierFeatures
from ntkit.kernels import gaussian
from ntkit.preprocessing import ImageStandardizer, PatchWhitening, flip_images, with_flips


@pytest.fixture
def X(rng):
    """Bytes with correlated neighbours and channels, and with different channels."""
    z = rng.standard_normal((30, 5, 4, 3)).cumsum(axis=1).cumsum(axis=2)
    z[..., 1] += z[..., 0]
    z[..., 2] = 0.5 * z[..., 2] + 3
    return (128 + 8 * z).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_flip_images(X, library):
    import torch

    images = X if library == "numpy" else torch.from_numpy(X)
    flipped = flip_images(images)
    assert type(flipped) is type(images)
    assert flipped.dtype == images.dtype
    for j in range(4):
        np.testing.assert_array_equal(as_numpy(flipped)[:, :, j], X[:, :, 3 - j])
    np.testing.assert_array_equal(as_numpy(flip_images(flipped)), X)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_with_flips(X, library):
    import torch

    to = np.asarray if library == "numpy" else torch.from_numpy
    both = with_flips(to(X))
    assert both.dtype == to(X).dtype
    np.testing.assert_array_equal(as_numpy(both), np.concatenate([X, X[:, :, ::-1]]))
    for y in (np.arange(30), np.arange(60.0).reshape(30, 2)):
        again, labels = with_flips(to(X), to(y))
        np.testing.assert_array_equal(as_numpy(again), as_numpy(both))
        assert type(labels) is type(to(y))
        assert labels.dtype == to(y).dtype
        np.testing.assert_array_equal(as_numpy(labels), np.concatenate([y, y]))
    _, labels = with_flips(to(X), list("ab" * 15))
    assert labels.tolist() == list("ab" * 30)


def test_with_flips_requires_one_target_per_image(X):
    for y in (np.arange(29), 3, np.zeros((1, 30))):
        with pytest.raises(ValueError, match="'y' parameter of with_flips must be None or an array of 30 rows"):
            with_flips(X, y)


@pytest.mark.parametrize("function", [flip_images, with_flips])
def test_flips_take_images_only(function, X):
    with pytest.raises(ValueError, match=rf"'X' parameter of {function.__name__} must be 4-D"):
        function(X.reshape(30, 60))
    with pytest.raises(ValueError, match=r"Use X\[..., None\] for images of one channel"):
        function(X[..., 0])
    with pytest.raises(TypeError, match="real numbers"):
        function(None)


def test_average_of_flips(X):
    rows, flipped = X.reshape(30, 60), X[:, :, ::-1].reshape(30, 60)
    inner = RandomFourierFeatures(n_components=50, lengthscale=100.0, random_state=1)
    fitted = FlipAveraged(inner, image_shape=(5, 4, 3)).fit(rows)
    Z0 = clone(inner).fit(rows)
    np.testing.assert_allclose(fitted.transform(rows), (Z0.transform(rows) + Z0.transform(flipped)) / 2, rtol=1e-12)
    np.testing.assert_array_equal(fitted.transform(flipped), fitted.transform(rows))
    assert not hasattr(inner, "frequencies_")
    assert len(fitted.get_feature_names_out()) == 50


def averaged(kernel, X, shape):
    flipped = X.reshape(-1, *shape)[:, :, ::-1].reshape(X.shape)
    return sum(kernel(a, b) for a in (X, flipped) for b in (X, flipped)) / 4


def test_kernel_of_averaged_features(rng):
    """Unbiased for the kernel averaged over flips of both arguments; level 1e-6, 400 seeds."""
    X = rng.standard_normal((6, 8))
    K = averaged(lambda a, b: gaussian(a, b, lengthscale=2.0), X, (2, 4, 1))

    def sample(seed):
        features = FlipAveraged(
            RandomFourierFeatures(n_components=32, lengthscale=2.0, random_state=seed), image_shape=(2, 4, 1)
        )
        return features.fit_transform

    check_unbiased(sample, X, K)
    with pytest.raises(AssertionError):
        check_unbiased(lambda seed: lambda X: 1.05 * sample(seed)(X), X, K)
    with pytest.raises(AssertionError):
        check_unbiased(sample, X, gaussian(X, lengthscale=2.0))


def test_ridge_with_the_averaged_kernel_is_that_with_flips(rng):
    """With half the penalty, for a kernel that is invariant to flipping both arguments."""
    X, new, y = rng.standard_normal((12, 6)), rng.standard_normal((5, 6)), rng.standard_normal(12)
    images, targets = with_flips(X.reshape(12, 1, 3, 2), y)
    rows = images.reshape(24, 6)
    alpha = np.linalg.solve(gaussian(rows, lengthscale=2.0) + 0.3 * np.eye(24), targets)
    expected = gaussian(new, rows, lengthscale=2.0) @ alpha
    together = np.concatenate([X, new])
    K = averaged(lambda a, b: gaussian(a, b, lengthscale=2.0), together, (1, 3, 2))
    found = K[12:, :12] @ np.linalg.solve(K[:12, :12] + 0.15 * np.eye(12), y)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_features_get_the_images_unchanged(X):
    seen = []

    def look(images):
        seen.append(images.shape)
        return images.reshape(len(images), -1)

    features = FlipAveraged(FunctionTransformer(look), image_shape=(5, 4, 3)).fit(X)
    features.transform(X)
    flat = features.transform(X.reshape(30, 60))
    assert set(seen) == {(30, 5, 4, 3), (1, 5, 4, 3), (30, 60)}
    np.testing.assert_allclose(flat, (X + X[:, :, ::-1].astype(float)).reshape(30, 60) / 2)
    np.testing.assert_array_equal(FlipAveraged().fit(X).transform(X), FlipAveraged().fit(X).transform(X))


def test_features_of_images(X):
    """Whitened patches, then features of flat rows."""
    shape = PatchWhitening(patch_size=3, n_components=5).fit(X).output_shape_
    inner = make_pipeline(
        PatchWhitening(patch_size=3, n_components=5, image_shape=(5, 4, 3), random_state=0),
        ImageStandardizer(image_shape=shape),
        NTKFeatures(n_components=32, random_state=0),
    )
    Z = FlipAveraged(inner, image_shape=(5, 4, 3)).fit_transform(X.reshape(30, 60))
    assert Z.shape == (30, 32)
    assert Z.dtype == np.float32


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_maps_of_images(X, library):
    """They get images in their shape, mirrored ones too."""
    import torch

    images = X if library == "numpy" else torch.from_numpy(X)
    inner = CNTKSketch(depth=2, n_components=32, random_state=0)
    Z = FlipAveraged(inner).fit_transform(images)
    one, other = (as_numpy(clone(inner).fit(X).transform(rows)) for rows in (X, np.ascontiguousarray(X[:, :, ::-1])))
    np.testing.assert_allclose(as_numpy(Z), (one + other) / 2, rtol=1e-4, atol=1e-4 * np.abs(one).max())
    assert np.abs(one - other).max() > 0.01 * np.abs(one).max()
