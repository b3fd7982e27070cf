"""Learners on images (n, height, width, channels) and on images laid flat, of all libraries, in blocks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.conftest import as_numpy
from tests.reference.gram import side_by_side

from ntkit import (
    CNTKSketch,
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    FeatureRidgeSearchClassifier,
    FlipAveraged,
    GradientFeatures,
    GramRidge,
    GramRidgeClassifier,
    ImageStandardizer,
    NetworkFeatures,
    NTKFeatures,
    PatchWhitening,
    RandomFourierFeatures,
)
from ntkit import networks as nn
from ntkit.models import gram_matrix

SHAPE = (4, 5, 3)
NET = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
FEATURES = {
    "network": NetworkFeatures(NET, n_components=32, random_state=0),
    "cntk": CNTKSketch(depth=2, n_components=32, random_state=0),
    "gradient": GradientFeatures(NET, width=2, random_state=0),
    "pipeline": make_pipeline(ImageStandardizer(), CNTKSketch(depth=2, n_components=32, random_state=0)),
    "patches": make_pipeline(
        PatchWhitening(patch_size=3, n_components=6, random_state=0),
        make_pipeline(ImageStandardizer(), NetworkFeatures(NET, n_components=32, random_state=0)),
    ),
    "flips": FlipAveraged(CNTKSketch(depth=2, n_components=32, random_state=0)),
}
ALL = pytest.mark.parametrize("name", FEATURES)
LIBRARIES = pytest.mark.parametrize("library", ["numpy", "torch"])
KINDS = ["uint8", "float32", "float64"]
LAWS = [FeatureRidge, FeatureRidgeClassifier, GramRidge, GramRidgeClassifier]
EITHER = pytest.mark.parametrize(
    ("name", "library"), [(name, ("numpy", "torch")[i % 2]) for i, name in enumerate(FEATURES)] + [("cntk", "numpy")]
)


@pytest.fixture
def X(rng):
    """Two kinds of images: dark ones with smooth rows, and bright ones of noise."""
    images = rng.integers(256, size=(60, *SHAPE), dtype=np.uint8)
    images[::2] = images[::2].mean(axis=2, keepdims=True) // 2
    return images


@pytest.fixture
def y(rng):
    return np.arange(60) % 2 + 0.1 * rng.standard_normal(60)


def as_library(X, library):
    import torch

    return X if library == "numpy" else torch.from_numpy(X)


def solved(Z, y, alpha, new, weight=None):
    """Ridge regression with a constant, from its definition, in float64."""
    weight = np.ones(len(y)) if weight is None else weight
    Z1, new1 = (np.column_stack([np.asarray(A, dtype=np.float64), np.ones(len(A))]) for A in (Z, new))
    penalty = alpha * np.diag(np.append(np.ones(Z.shape[1]), 0.0))
    return new1 @ np.linalg.solve(Z1.T @ (weight[:, None] * Z1) + penalty, Z1.T @ (weight * y))


@pytest.mark.parametrize(
    ("name", "kind", "library"),
    [(name, kind, "numpy" if i % 2 else "torch") for i, (name, kind) in enumerate(product(FEATURES, KINDS), start=1)],
)
def test_regression(name, kind, library, X, y):
    images = as_library(X.astype(kind), library)
    model = FeatureRidge(FEATURES[name], alphas=2.0, random_state=0).fit(images[:50], y[:50])
    features = clone(FEATURES[name]).fit(images[:50])
    Z, new = (as_numpy(features.transform(part)) for part in (images[:50], images[50:]))
    found = model.predict(images[50:])
    assert type(found) is type(images)
    assert str(found.dtype).endswith("float32" if kind == "float32" else "float64")
    expected = solved(Z, y[:50], 2.0, new)
    np.testing.assert_allclose(as_numpy(found), expected, atol=1e-3 if kind != "float64" else 1e-6)
    assert model.n_features_in_ == 60
    mean, std = model.predict(images[50:], return_std=True)
    np.testing.assert_allclose(as_numpy(mean), as_numpy(found), rtol=1e-6)
    assert bool((std > 0).all())


@EITHER
def test_classification(name, library, X):
    images, labels = as_library(X, library), np.array(["rough", "smooth"])[1 - np.arange(60) % 2]
    model = FeatureRidgeClassifier(FEATURES[name], random_state=0).fit(images[:40], labels[:40])
    assert model.score(images[40:], labels[40:]) >= 0.9
    assert model.predict_proba(images[40:]).shape == (20, 2)
    assert model.decision_function(images[:3]).shape == (3,)
    parts = FeatureRidgeClassifier(FEATURES[name], random_state=0)
    if name not in ("pipeline", "patches"):  # whose standardizer sees the first part only
        for rows in (slice(0, 13), slice(13, 14), slice(14, 40)):
            parts.partial_fit(images[rows], labels[rows])
        np.testing.assert_allclose(
            as_numpy(parts.predict_proba(images)), as_numpy(model.predict_proba(images)), atol=1e-4
        )


@ALL
@pytest.mark.parametrize("law", [FeatureRidge, GramRidge])
def test_blocks_do_not_matter(name, law, X, y):
    X = X.astype(np.float64)
    whole = law(FEATURES[name], alphas=1.0, random_state=0).fit(X, y)
    model = law(FEATURES[name], alphas=1.0, batch_size=7, random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), whole.predict(X), atol=1e-7)


@pytest.mark.parametrize(
    ("law", "kind"), [(FeatureRidge, "uint8"), (FeatureRidge, "float64"), (GramRidge, "uint8"), (GramRidge, "float32")]
)
def test_flat_rows_are_the_images(law, kind, X, y):
    X = X.astype(kind)
    for make in (
        lambda shape: CNTKSketch(depth=2, n_components=32, image_shape=shape, random_state=0),
        lambda shape: NetworkFeatures(NET, n_components=32, image_shape=shape, random_state=0),
        lambda shape: make_pipeline(
            ImageStandardizer(image_shape=shape),
            CNTKSketch(depth=2, n_components=32, image_shape=shape, random_state=0),
        ),
    ):
        images = law(make(None), random_state=0).fit(X, y)
        flat = law(make(SHAPE), random_state=0).fit(X.reshape(60, -1), y)
        assert flat.n_features_in_ == images.n_features_in_ == 60
        np.testing.assert_allclose(flat.predict(X.reshape(60, -1)), images.predict(X), atol=1e-5)
        if law is FeatureRidge:
            np.testing.assert_allclose(flat.predict(X), images.predict(X), atol=1e-5)


def test_weights(X, y, rng):
    X, weight = X.astype(np.float64), rng.choice([0.0, 0.3, 1.0, 2.0], 60)
    model = FeatureRidge(FEATURES["cntk"], alphas=3.0).fit(X, y, weight)
    Z = clone(FEATURES["cntk"]).fit(X).transform(X)
    np.testing.assert_allclose(model.predict(X), solved(Z, y, 3.0, Z, weight), atol=1e-7)
    for features in (FEATURES["pipeline"], FEATURES["patches"]):  # steps before the map see no rows of weight 0
        gram = GramRidge(features, n_draws=2, alphas=0.1, random_state=0).fit(X, y, weight)
        Z = side_by_side([draw.transform(gram.preprocessor_.transform(X)) for draw in gram.maps_])
        np.testing.assert_allclose(gram.predict(X), solved(Z, y, 0.1, Z, weight), atol=1e-6)
        used = GramRidge(features, n_draws=2, alphas=0.1, random_state=0)
        used.fit(X[weight > 0], y[weight > 0], weight[weight > 0])
        np.testing.assert_allclose(gram.predict(X), used.predict(X), atol=1e-6)


def test_streams_and_memory_maps(X, y, tmp_path):
    X = X.astype(np.float64)
    expected = FeatureRidge(FEATURES["cntk"], alphas=1.0).fit(X, y).predict(X)
    blocks = [(X[i : i + 17], y[i : i + 17]) for i in range(0, 60, 17)]
    np.testing.assert_allclose(FeatureRidge(FEATURES["cntk"], alphas=1.0).fit(blocks).predict(X), expected, atol=1e-7)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = FeatureRidge(FEATURES["cntk"], alphas=1.0, batch_size=11).fit(mapped, y)
    np.testing.assert_allclose(model.predict(mapped), expected, atol=1e-7)
    with pytest.warns(UserWarning, match="ImageStandardizer was fitted on the first block of rows only"):
        FeatureRidge(FEATURES["pipeline"]).fit(blocks)
    frozen = make_pipeline(FrozenEstimator(ImageStandardizer().fit(X)), FEATURES["cntk"])
    np.testing.assert_allclose(
        FeatureRidge(frozen, alphas=1.0).fit(blocks).predict(X),
        FeatureRidge(FEATURES["pipeline"], alphas=1.0).fit(X, y).predict(X),
        atol=1e-7,
    )


class Larger(TransformerMixin, BaseEstimator):
    """Images many times as large, as patches are; remembers how many there were at a time."""

    seen = []  # noqa: RUF012

    def fit(self, X, y=None):  # noqa: ARG002
        self.fitted_ = len(X)
        return self

    def transform(self, X):
        self.seen.append(len(X))
        return np.repeat(X.astype(np.float32), 3, axis=3)


def test_images_made_larger_are_never_all_held(X, y):
    Larger.seen.clear()
    model = FeatureRidge(make_pipeline(Larger(), FEATURES["cntk"]), batch_size=8).fit(X, y)
    model.predict(X)
    assert max(Larger.seen) == 8
    assert model.features_[0].fitted_ == 60  # but it was fitted on all
    Larger.seen.clear()
    one = FeatureRidge(Pipeline([("only", FEATURES["cntk"])])).fit(X, y)  # without steps before
    np.testing.assert_array_equal(one.predict(X), FeatureRidge(FEATURES["cntk"]).fit(X, y).predict(X))
    FeatureRidge(make_pipeline(Larger(), FEATURES["flips"]), batch_size=8).fit(X, y)
    assert max(Larger.seen) == 8
    other = make_pipeline(Larger(), FlipAveraged())  # whose length scale depends on all images
    FeatureRidge(other, batch_size=8).fit(X, y)
    assert max(Larger.seen) == 60
    rows = FunctionTransformer(lambda images: images.reshape(len(images), -1).astype(np.float64))
    fourier = FeatureRidge(make_pipeline(rows, RandomFourierFeatures(n_components=8, random_state=0))).fit(X, y)
    expected = (
        RandomFourierFeatures(n_components=8, random_state=0).fit(X.reshape(60, -1).astype(np.float64)).lengthscale_
    )
    assert fourier.features_[1].lengthscale_ == expected


@pytest.mark.parametrize("law", [FeatureRidge, GramRidge])
@pytest.mark.parametrize(
    "images",
    [
        np.ones((5, 1, 1, 1)), np.zeros((5, 3, 3, 1)), np.full((5, 3, 3, 2), 255, np.uint8),
        np.arange(5.0).reshape(5, 1, 1, 1), np.random.default_rng(0).standard_normal((5, 1, 4, 1)),
    ],
    ids=["one pixel", "zeros", "constant", "numbers", "one row"],
)  # fmt: skip
def test_small_images(law, images):
    model = law(CNTKSketch(depth=2, n_components=8, random_state=0), alphas=1.0).fit(images, np.arange(5.0))
    found = model.predict(images)
    assert np.isfinite(found).all()
    if len(np.unique(images, axis=0)) == 1:
        np.testing.assert_allclose(found, 2.0, atol=1e-5)  # the mean
    assert model.predict(images[:1]).shape == (1,)


@pytest.mark.parametrize(("name", "law"), [(name, law) for i, name in enumerate(FEATURES) for law in LAWS[i % 2 :: 2]])
def test_images_of_another_shape(name, law, X, y):
    model = law(FEATURES[name], random_state=0).fit(X, y > 0.5)
    with pytest.raises(ValueError, match=r"\(5, 4, 3\)"):
        model.predict(X.transpose(0, 2, 1, 3))
    with pytest.raises(ValueError, match=r"X has 48 features|\(4, 4, 3\)"):
        model.predict(X[:, :, :4])
    with pytest.raises(ValueError, match=r"features|4-D"):
        model.predict(X[..., 0])
    if hasattr(model, "partial_fit"):
        before = model.coef_
        with pytest.raises(ValueError, match="X has 48 features"):
            model.partial_fit(X[:, :, :4], y > 0.5)
        np.testing.assert_array_equal(model.coef_, before)


@pytest.mark.parametrize("law", LAWS)
def test_default_features_are_for_rows(law, X, y):
    with pytest.raises(ValueError, match=rf"'features' parameter of {law.__name__} must be a map of images, such as"):
        law().fit(X, y > 0.5)
    with pytest.raises(ValueError, match="must be 2-D"):
        law(NTKFeatures(n_components=8)).fit(X, y > 0.5)


@EITHER
def test_gram_models(name, library, X, y):
    """From its definition: (K + α)⁻¹ on the centred kernel of normalized features, and a constant."""
    images = as_library(X.astype(np.float64), library)
    features = FEATURES[name]
    model = GramRidge(features, n_draws=2, alphas=0.1, random_state=0).fit(images[:50], y[:50])
    K, cross = (
        as_numpy(gram_matrix(features, images[:50], Y, n_draws=2, center=True, random_state=0)).astype(np.float64)
        for Y in (None, images[50:])
    )
    expected = y[:50].mean() + cross.T @ np.linalg.solve(K + 0.1 * np.eye(50), y[:50] - y[:50].mean())
    np.testing.assert_allclose(as_numpy(model.predict(images[50:])), expected, atol=1e-6)
    classifier = GramRidgeClassifier(features, n_draws=2, random_state=0).fit(images[:50], np.arange(50) % 2)
    assert classifier.score(images[50:], np.arange(50, 60) % 2) >= 0.9
    again = GramRidgeClassifier(features, n_draws=2, random_state=0)
    classes = again.transduce(images[:50], np.arange(50) % 2, images[50:])
    np.testing.assert_array_equal(as_numpy(classes), as_numpy(classifier.predict(images[50:])))


@LIBRARIES
def test_searches(library, X, y):
    images = as_library(X, library)
    candidates = {"cntk": CNTKSketch(depth=2), "network": NetworkFeatures(NET)}
    for law, target in ((FeatureRidgeSearch, y), (FeatureRidgeSearchClassifier, y > 0.5)):
        search = law(n_components=32, time_budget=None, candidates=candidates, random_state=0).fit(images, target)
        assert {result["name"] for result in search.results_} == set(candidates)
        assert isinstance(search.best_estimator_.features_[0], ImageStandardizer)
        assert search.n_features_in_ == 60
        assert search.score(images, target) > 0.8
        with pytest.raises(ValueError, match=rf"'candidates' parameter of {law.__name__} must be a dict of maps of im"):
            law(n_components=32).fit(images, target)
