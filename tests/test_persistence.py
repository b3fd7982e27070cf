"""Files of models: what comes back is the same to the last bit, and nothing else is let in."""

# ruff: noqa: ARG005
from __future__ import annotations

import contextlib
import copy
import json
import pickle
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    RobustScaler,
    StandardScaler,
)

from ntkit import (
    ArcsinhScaler,
    CNTKSketch,
    DotProductSketch,
    FastfoodFeatures,
    FeatureKMeans,
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    FeatureRidgeSearchClassifier,
    GaussianFeatures,
    GegenbauerFeatures,
    GradientFeatures,
    KernelRidge,
    KernelRidgeClassifier,
    MaclaurinFeatures,
    NetworkFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    NystroemFeatures,
    OrthogonalFourierFeatures,
    PolynomialSketch,
    RandomFourierFeatures,
    _files,
)
from ntkit import networks as nn
from ntkit._encoding.estimators import CLASSES
from ntkit.features import FlipAveraged
from ntkit.models import GramRidge, GramRidgeClassifier
from ntkit.persistence import FileError, load, save
from ntkit.preprocessing import ImageStandardizer, PatchWhitening, ZCAWhitening

MAPS = {
    "ntk": NTKFeatures(depth=2, n_components=64, random_state=0),
    "ntk bias": NTKFeatures(n_components=64, bias="auto"),
    "ntk random": NTKFeatures(n_components=64, method="random", bias=2.0, random_state=np.random.default_rng(1)),
    "ntk sketch": NTKFeatures(n_components=64, method="sketch", random_state=np.random.RandomState(1)),
    "ntk gradient": NTKFeatures(n_components=64, method="gradient", random_state=3),
    "polynomial ntk": NTKPolynomialSketch(depth=3, n_components=70, degree=5, normalize=False, random_state=0),
    "nngp": NTKPolynomialSketch(kind="nngp", n_components=70, tolerance=0.1, random_state=0),
    "sketch": NTKSketch(depth=2, n_components=64, series="taylor", random_state=7),
    "paper": NTKSketch(depth=2, n_components=32, variant="paper", projection=True, replace=True, random_state=0),
    "random": NTKRandomFeatures(
        depth=2, n_components=64, random_state=np.random.SeedSequence([1, 2, 3], spawn_key=(4,))
    ),
    "gibbs": NTKRandomFeatures(n_components=32, directions="leverage", sampler="gibbs", gibbs_sweeps=2, random_state=0),
    "gradient": GradientFeatures(width=8, random_state=0),
    "gradient net": GradientFeatures(
        nn.Sequential(nn.Dense(weight_std=2.0), nn.LeakyReLU(0.2), nn.Dense(trainable=False), nn.Abs(), nn.Dense()),
        n_components=60,
        random_state=0,
    ),
    "gradient few": GradientFeatures(nn.fully_connected(2), n_components=5, random_state=0),
    "tree": PolynomialSketch(degree=5, coef0=1.0, gamma=0.1, n_components=64, random_state=0),
    "power": PolynomialSketch(degree=6, method="power", n_components=64, random_state=0),
    "count": PolynomialSketch(degree=3, method="count", n_components=64, random_state=0),
    "fourier": RandomFourierFeatures(n_components=63, random_state=0),
    "fourier scale": RandomFourierFeatures(n_components=64, lengthscale=1e4, batch_size=7),
    "fourier l1": RandomFourierFeatures(
        n_components=63, kernel="laplace", kernel_params={"norm": "l1"}, random_state=0
    ),
    "fastfood matern": FastfoodFeatures(n_components=63, kernel="matern", kernel_params={"nu": 2.5}),
    "network": NetworkFeatures(n_components=32, random_state=0),
    "network both": NetworkFeatures(
        nn.Sequential(nn.Dense(), nn.Erf(), nn.Dense()), n_components=32, method="random", kind="both",
        random_state=np.random.default_rng(2),
    ),
    "orthogonal": OrthogonalFourierFeatures(n_components=63, random_state=0),
    "fastfood": FastfoodFeatures(n_components=63, lengthscale=2.0, random_state=np.random.default_rng(3)),
    "maclaurin": MaclaurinFeatures("ntk", n_components=64, depth=2, random_state=0),
    "maclaurin paper": MaclaurinFeatures(n_components=64, method="geometric"),
    "taylor": DotProductSketch(n_components=64, random_state=0),
    "taylor coefficients": DotProductSketch([1.0, 0.5, 0.0, 0.1], n_components=64, random_state=0),
    "gegenbauer": GegenbauerFeatures("gaussian", n_components=64, random_state=0),
    "definition 8": GegenbauerFeatures("ntk", n_components=64, depth=2, harmonics=False, directions="gaussian"),
    "gegenbauer coefficients": GegenbauerFeatures((1.0, 0.5, 0.1), n_components=64, projection=3, random_state=0),
    "nystroem": NystroemFeatures("ntk", n_components=16, depth=2, random_state=0),
    "nystroem laplace": NystroemFeatures("laplace", n_components=16, kernel_params={"norm": "l1"}, random_state=0),
    "nystroem uniform": NystroemFeatures(
        "polynomial", n_components=16, landmarks="uniform", kernel_params={"degree": 3}
    ),
    "gaussian": GaussianFeatures(n_components=64, random_state=0),
    "gaussian fourier": GaussianFeatures(n_components=64, method="fourier", random_state=np.random.default_rng(5)),
    "one pixel": CNTKSketch(
        depth=2, kernel_size=(1, 3), n_components=32, image_shape=(1, 1, 7), normalize=False, replace=True,
        random_state=0,
    ),
}  # fmt: skip
SPARSE = [
    name for name, model in MAPS.items() if not isinstance(model, NetworkFeatures | CNTKSketch | NystroemFeatures)
]
SCALERS = {
    "arcsinh": ArcsinhScaler(),
    "standard": StandardScaler(),
    "not centred": StandardScaler(with_mean=False),
    "only centred": StandardScaler(with_std=False),
    "neither": StandardScaler(with_mean=False, with_std=False),
    "min max": MinMaxScaler(feature_range=(-1, 1), clip=True),
    "max abs": MaxAbsScaler(),
    "robust": RobustScaler(quantile_range=(10.0, 90.0), unit_variance=True),
    "robust off": RobustScaler(with_centering=False, with_scaling=False),
    "normalizer": Normalizer(norm="l1"),
}

IMAGES = {
    "image standardizer": ImageStandardizer(),
    "zca": ZCAWhitening(regularization=0.2, image_shape=(3, 4, 2)),
    "zca not per image": ZCAWhitening(per_image=False),
    "patches": PatchWhitening(patch_size=3, random_state=np.random.default_rng(1)),
    "few patches": PatchWhitening(
        patch_size=2, n_components=3, padding="valid", contrast=0.1, n_patches=30, random_state=4
    ),
    "flips": FlipAveraged(),
    "flips of a pipeline": FlipAveraged(
        make_pipeline(
            PatchWhitening(patch_size=3, n_components=4, image_shape=(3, 4, 2), random_state=0),
            ImageStandardizer(image_shape=(3, 4, 4)),
            RandomFourierFeatures(n_components=16, random_state=0),
        )
    ),
}


@pytest.fixture
def X(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((40, 7))


def through_file(model: Any, path: Path, **options: Any) -> Any:
    save(model, path / "file", **options)
    return load(path / "file")


def small_model() -> FeatureRidge:
    return FeatureRidge(NTKFeatures(n_components=16, random_state=0), alphas=[0.1, 1.0], random_state=0)


def change(path: Path, edit: Callable[[dict[str, Any], dict[str, np.ndarray]], Any]) -> None:
    """Write a file again, with a right checksum, after a change of its metadata and arrays."""
    arrays, metadata = _files.read(path, kind="model")
    edit(metadata, arrays)
    _files.write(path, arrays, metadata)


# Round trips


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", MAPS)
def test_maps_come_back(name: str, dtype: Any, X: np.ndarray, tmp_path: Path) -> None:
    X = X.astype(dtype)
    model = copy.deepcopy(MAPS[name]).fit(X)
    again = through_file(model, tmp_path)
    assert type(again) is type(model)
    assert again.n_features_in_ == 7
    assert vars(again).keys() == vars(model).keys()
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.get_feature_names_out(), model.get_feature_names_out())
    for parameter, value in model.get_params().items():
        if parameter != "random_state":
            assert getattr(again, parameter) == value
    np.testing.assert_array_equal(through_file(again, tmp_path).transform(X), model.transform(X))


@pytest.mark.parametrize("name", SPARSE)
def test_maps_of_sparse_rows_come_back(name: str, rng: np.random.Generator, tmp_path: Path) -> None:
    X = sparse.random_array((20, 300), density=0.05, rng=rng, format="csr")
    model = copy.deepcopy(MAPS[name]).fit(X)
    again = through_file(model, tmp_path)
    assert again._sparse
    np.testing.assert_array_equal(again.transform(X), model.transform(X))


@pytest.mark.parametrize("name", MAPS)
def test_unfitted_maps_come_back(name: str, X: np.ndarray, tmp_path: Path) -> None:
    model = copy.deepcopy(MAPS[name])
    again = through_file(model, tmp_path)
    assert not hasattr(again, "n_features_in_")
    if model.random_state is not None:  # a generator becomes the seed that it would have given
        np.testing.assert_array_equal(again.fit_transform(X), model.fit_transform(X))


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("name", SCALERS)
def test_scalers_come_back(name: str, fitted: bool, X: np.ndarray, tmp_path: Path) -> None:
    model = copy.deepcopy(SCALERS[name])
    model = model.fit(X) if fitted else model
    again = through_file(model, tmp_path)
    assert repr(again) == repr(model)
    assert vars(again).keys() == vars(model).keys()
    if fitted:
        np.testing.assert_array_equal(again.transform(X), model.transform(X))


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", IMAGES)
def test_images_come_back(name: str, fitted: bool, library: str, rng: np.random.Generator, tmp_path: Path) -> None:
    import torch

    images: Any = rng.random((20, 3, 4, 2), dtype=np.float32)
    model = copy.deepcopy(IMAGES[name])
    if name == "flips of a pipeline":  # whose last map takes rows
        images, model.image_shape = images.reshape(20, 24), (3, 4, 2)
    images = torch.from_numpy(images) if library == "torch" else images
    model = model.fit(images) if fitted else model
    again = through_file(model, tmp_path)
    assert vars(again).keys() == vars(model).keys()
    if not isinstance(getattr(model, "random_state", None), np.random.Generator):
        assert repr(again) == repr(model)
    if not fitted:
        return
    assert again.image_shape_ == model.image_shape_ == (3, 4, 2)
    assert again.n_features_in_ == 24
    Z = model.transform(images)
    assert type(again.transform(images)) is type(Z)
    np.testing.assert_array_equal(np.asarray(again.transform(images)), np.asarray(Z))
    np.testing.assert_array_equal(again.get_feature_names_out(), model.get_feature_names_out())
    np.testing.assert_array_equal(np.asarray(through_file(again, tmp_path).transform(images)), np.asarray(Z))


def test_models_of_images_come_back(X: np.ndarray, tmp_path: Path) -> None:
    X = X[:, :6]
    whitened = make_pipeline(ZCAWhitening(image_shape=(1, 3, 2)), FlipAveraged(MAPS["ntk"], image_shape=(1, 3, 2)))
    model = FeatureRidge(whitened, alphas=1.0).fit(X, X[:, 0])
    np.testing.assert_array_equal(through_file(model, tmp_path).predict(X), model.predict(X))


def test_scaler_of_columns_with_missing_values_goes_on(X: np.ndarray, tmp_path: Path) -> None:
    X[0, 0] = np.nan
    model = StandardScaler().fit(X)
    again = through_file(model, tmp_path)
    np.testing.assert_array_equal(again.n_samples_seen_, model.n_samples_seen_)
    np.testing.assert_array_equal(again.partial_fit(X).transform(X), model.partial_fit(X).transform(X))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_targets", [None, 1, 3])
def test_regression_comes_back(n_targets: int | None, dtype: Any, X: np.ndarray, tmp_path: Path) -> None:
    X = X.astype(dtype)
    y = X[:, 0] if n_targets is None else X[:, :n_targets]
    model = small_model().fit(X, y)
    again = through_file(model, tmp_path)
    for name in ("coef_", "intercept_", "alphas_", "errors_", "noise_variance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    assert again.alpha_ == model.alpha_
    assert again.n_samples_seen_ == 40
    assert again.predict(X).dtype == dtype
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="statistics=True"):
        again.partial_fit(X, y)
    with pytest.raises(ValueError, match="statistics=True"):
        again.predict(X, return_std=True)
    with pytest.raises(ValueError, match="without its statistics"):
        save(again, tmp_path / "other", statistics=True)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -1, 2]),
        np.array([3, 1], dtype=np.uint8),
        np.array([0.0, 2.0, 1.0], dtype=np.float32),
        np.array([True, False]),
        np.array(["no", "yes, ö", "\ud800"]),
        np.array(["b", "a"], dtype="<U9"),
        np.array(["b", "a", "cc"], dtype=object),
        np.array([3, 1, 2], dtype=">i4"),
    ],
    ids=str,
)
def test_classification_comes_back(labels: np.ndarray, X: np.ndarray, tmp_path: Path) -> None:
    y = labels[np.arange(len(X)) % len(labels)]
    model = FeatureRidgeClassifier(NTKFeatures(n_components=16, random_state=0), random_state=0).fit(X, y)
    again = through_file(model, tmp_path)
    for method in ("predict", "predict_proba", "decision_function"):
        found, expected = getattr(again, method)(X), getattr(model, method)(X)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    assert again.classes_.dtype == model.classes_.dtype
    assert again.temperature_ == model.temperature_


def test_default_features_come_back(X: np.ndarray, tmp_path: Path) -> None:
    model = FeatureRidge(random_state=np.random.default_rng(3)).fit(X, X[:, 0])
    again = through_file(model, tmp_path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    fresh = np.random.SeedSequence(int(np.random.default_rng(3).integers(2**63)))
    assert again.random_state.state == fresh.state


def test_pipelines_come_back(X: np.ndarray, tmp_path: Path) -> None:
    for model in (
        make_pipeline(StandardScaler(), NTKFeatures(n_components=16, random_state=0), FeatureRidge(MaxAbsScaler())),
        Pipeline([("a.b", StandardScaler()), ("c", "passthrough"), ("d", None), ("e", small_model())]),
        FeatureRidge(Pipeline([("scale", RobustScaler()), ("map", "passthrough")])),
        Pipeline([("inner", make_pipeline(StandardScaler(), MAPS["tree"])), ("model", FeatureRidge(Normalizer()))]),
    ):
        np.testing.assert_array_equal(
            through_file(model.fit(X, X[:, 0]), tmp_path).predict(X), model.predict(X), err_msg=str(model)
        )


def test_unfitted_models_come_back(tmp_path: Path) -> None:
    model = FeatureRidgeClassifier(
        make_pipeline(StandardScaler(), NTKFeatures(depth=3)), alphas=np.array([1.0, 2.0]), batch_size=3, solver="eigen"
    )
    again = through_file(model, tmp_path)
    assert repr(again) == repr(model)
    assert not hasattr(again, "features_")


def test_frozen_features_are_saved_once(X: np.ndarray, tmp_path: Path) -> None:
    features = Pipeline([("map", FrozenEstimator(NTKFeatures(n_components=16, random_state=0).fit(X)))])
    model = FeatureRidge(features).fit(X, X[:, 0])
    again = through_file(model, tmp_path)
    assert again.features["map"] is again.features_["map"]
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_fitted_parameters_are_saved_unfitted(X: np.ndarray, tmp_path: Path) -> None:
    features = NTKFeatures(n_components=8, random_state=0).fit(X).set_params(n_components=16)
    model = FeatureRidge(features).fit(X, X[:, 0])
    again = through_file(model, tmp_path)
    assert not hasattr(again.features, "map_")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_names_of_columns_and_output_of_frames(X: np.ndarray, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abcdefg"))
    features = make_pipeline(StandardScaler(), NTKFeatures(n_components=16, random_state=0)).set_output(
        transform="pandas"
    )
    model = FeatureRidge(features).fit(frame, X[:, 0])
    again = through_file(model, tmp_path)
    assert again.feature_names_in_.tolist() == list("abcdefg")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))  # warns if names or output are lost
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[list("bacdefg")])


def test_searches_come_back(X: np.ndarray, tmp_path: Path) -> None:
    candidates = {"linear": "passthrough", "ntk": NTKFeatures(), "gauss": RandomFourierFeatures(lengthscale=2.0)}
    for search in (FeatureRidgeSearch, FeatureRidgeSearchClassifier):
        model = search(16, None, candidates=candidates, random_state=0)
        assert repr(through_file(model, tmp_path)) == repr(model)
        model.fit(X, X[:, 0] > 0)
        again = through_file(model, tmp_path)
        assert again.results_ == model.results_
        assert again.best_name_ == model.best_name_
        assert again.candidates.keys() == candidates.keys()
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.classes_, model.classes_)


@pytest.mark.parametrize("solver", ["dual", "primal"])
@pytest.mark.parametrize("center", [True, False])
def test_gram_models_come_back(solver: str, center: bool, X: np.ndarray, tmp_path: Path) -> None:
    features = make_pipeline(StandardScaler(), RandomFourierFeatures(n_components=8))
    parameters = {"center": center, "solver": solver, "random_state": np.random.default_rng(0)}
    for n_targets in (None, 2):
        model = GramRidge(features, 3, **parameters).fit(X, X[:, 0] if n_targets is None else X[:, :n_targets])
        again = through_file(model, tmp_path)
        for name in ("alpha_", "alphas_", "errors_", "coef_", "intercept_", "n_draws_", "n_features_in_"):
            np.testing.assert_array_equal(getattr(again, name), getattr(model, name), err_msg=name)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        np.testing.assert_array_equal(again.fit(X, X[:, 1]).maps_[2].transform(X), model.maps_[2].transform(X))
    labels = np.array(["no", "yes", "maybe"])[np.arange(len(X)) % 3]
    for values in (labels, labels == "yes"):
        classifier = GramRidgeClassifier(NTKFeatures(n_components=8, method="random"), 2, **parameters).fit(
            X.astype(np.float32), values
        )
        again = through_file(classifier, tmp_path)
        for method in ("predict", "predict_proba", "decision_function"):
            np.testing.assert_array_equal(getattr(again, method)(X), getattr(classifier, method)(X))
        assert again.classes_.dtype == classifier.classes_.dtype
    unfitted = GramRidge(features, 3, alphas=[0.1, 1.0], product_dtype="float32", warm_start=True)
    assert repr(through_file(unfitted, tmp_path)) == repr(unfitted)
    with pytest.raises(ValueError, match="model has no weights to predict with"):
        save(GramRidge(features, 3, keep_coef=False).fit(X, X[:, 0]), tmp_path / "file")
    with pytest.raises(TypeError, match=r"model\.features is a .*FunctionTransformer"):
        save(GramRidge(FunctionTransformer()).fit(X, X[:, 0]), tmp_path / "file")


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda state: state["draws"].pop(), "belongs to nothing"),
        (lambda state: state.update(draws=[]), "must have a list of draws"),
        (lambda state: state["draws"][0].update(coef=state["draws"][0]["mean"]), "must have the shape"),
        (lambda state: state["draws"][0].update(mean=None), "must be an array of float64 or float32"),
        (lambda state: state["draws"][0].pop("map"), "lacks 'map'"),
        (lambda state: state["settings"].update(normalize=1), "'normalize'"),
        (lambda state: state["settings"].update(product_dtype="float16"), "'product_dtype'"),
        (lambda state: state.update(shape=[40, 6]), "rows of 7 numbers"),
        (lambda state: state.update(shape=7), "must have a shape of rows"),
        (lambda state: state.update(alpha_=-1.0), "'alpha_'"),
        (lambda state: state.update(single=None), "'single'"),
        (lambda state: state.update(temperature=1.0), "has classes"),
        (lambda state: state["preprocessor_"]["parameters"].update(steps=[]), "steps with different names"),
        (lambda state: state.update(preprocessor_=state["draws"][0]["map"]), "takes 7 columns, but gets 8"),
        (lambda state: state.update(errors_=[]), "errors_ must be 2 numbers"),
    ],
)
def test_made_up_gram_models(edit: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    features = make_pipeline(StandardScaler(), RandomFourierFeatures(n_components=8))
    save(GramRidge(features, 2, alphas=[0.1, 1.0], random_state=0).fit(X, X[:, 0]), tmp_path / "file")
    change(tmp_path / "file", lambda metadata, _: edit(state_of(metadata)))
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


def test_tables_come_back(X: np.ndarray, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    from ntkit.tables import TableEncoder

    frame = pd.DataFrame(
        {"a": X[:, 0], "b": np.where(X[:, 1] > 0, "yes", None), "c": np.where(X[:, 2] > 0, X[:, 3], np.nan)}
    )
    for model in (
        make_pipeline(TableEncoder(), StandardScaler(), MAPS["ntk"], FeatureRidge(Normalizer())),
        make_pipeline(TableEncoder(max_categories=1), small_model()),
    ):
        again = through_file(model.fit(frame, X[:, 0]), tmp_path)
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again[0].max_categories == 1


def test_landmarks_of_tensors_come_back(tmp_path: Path) -> None:
    import torch

    X = torch.tensor(np.random.default_rng(0).standard_normal((800, 4)))  # with eigenvalues at the cut-off
    model = NystroemFeatures(n_components=200, lengthscale=4.0, random_state=0).fit(X)
    np.testing.assert_allclose(through_file(model, tmp_path).transform(X), model.transform(X), atol=1e-9)


def test_degree_0_comes_back(X: np.ndarray, tmp_path: Path) -> None:
    model = GegenbauerFeatures("gaussian", n_components=8, degree=0, random_state=0).fit(X)
    np.testing.assert_array_equal(through_file(model, tmp_path).transform(X), model.transform(X))


def test_front_doors_with_other_parameters(X: np.ndarray, tmp_path: Path) -> None:
    model = GaussianFeatures(n_components=8, random_state=0).fit(X).set_params(lengthscale=5.0)
    with pytest.raises(ValueError, match="other parameters than when it was fitted"):
        save(model, tmp_path / "file")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clusterings_come_back(dtype: Any, X: np.ndarray, tmp_path: Path) -> None:
    X = X.astype(dtype)
    features = make_pipeline(StandardScaler(), GegenbauerFeatures("gaussian", n_components=32, random_state=0))
    model = FeatureKMeans(features, 3, random_state=0).fit(X)
    again = through_file(model, tmp_path)
    assert vars(again).keys() == vars(model).keys()
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.labels_, model.labels_)
    assert (again.inertia_, again.n_iter_) == (model.inertia_, model.n_iter_)
    assert again.kernel_objective(X) == model.kernel_objective(X)


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda state: state.update(inertia_=-1.0), "'inertia_'"),
        (lambda state: state.update(n_features_in_=5), "takes 7 columns, not 5"),
        (lambda state: state["features_"]["state"]["learned"].update(lengthscale_=0.0), "'lengthscale_'"),
    ],
)
def test_made_up_clusterings(edit: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    save(
        FeatureKMeans(RandomFourierFeatures(n_components=8, random_state=0), 3, random_state=0).fit(X),
        tmp_path / "file",
    )
    change(tmp_path / "file", lambda metadata, _: edit(state_of(metadata)))
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("labels_", np.full(40, 3)),
        ("cluster_centers_", np.zeros((3, 9))),
        ("cluster_centers_", np.full((3, 8), np.nan)),
        ("labels_", np.zeros(40)),
    ],
)
def test_made_up_clusters(name: str, array: np.ndarray, X: np.ndarray, tmp_path: Path) -> None:
    save(
        FeatureKMeans(RandomFourierFeatures(n_components=8, random_state=0), 3, random_state=0).fit(X),
        tmp_path / "file",
    )
    change(tmp_path / "file", lambda _, arrays: arrays.update({key: array for key in arrays if name in key}))
    with pytest.raises(FileError, match=name):
        load(tmp_path / "file")


DUALS = {
    "gaussian": KernelRidge(alpha=[0.1, 1.0]),
    "ntk": KernelRidge("ntk", 0.1, depth=2, solver="pcg", random_state=0),
    "sketch": KernelRidge("polynomial", 0.1, kernel_params={"degree": 2}, solver="sketch", random_state=0),
    "map": KernelRidge(features=RandomFourierFeatures(n_components=8, random_state=0), solver="pcg", random_state=0),
    "network": KernelRidgeClassifier(nn.Sequential(nn.Dense(), nn.ReLU(), nn.Dense())),
}


@pytest.mark.parametrize("name", DUALS)
def test_kernel_ridge(name: str, X: np.ndarray, tmp_path: Path) -> None:
    y = np.array(["low", "high"])[(X[:, 0] > 0).astype(int)] if name == "network" else X[:, :2]
    model = copy.deepcopy(DUALS[name]).fit(X.astype(np.float32) if name == "ntk" else X, y)
    save(model, tmp_path / "file")
    again = load(tmp_path / "file")
    assert (again.predict(X) == model.predict(X)).all()
    assert repr(again) == repr(model)
    for attribute in ("alpha_", "alphas_", "solver_", "n_iter_", "intercept_", "dual_coef_", "X_fit_"):
        assert np.array_equal(getattr(again, attribute), getattr(model, attribute))
    assert (again.fit(X, y).predict(X) == copy.deepcopy(model).fit(X, y).predict(X)).all()


def test_kernel_ridge_of_images_and_matrices(rng: np.random.Generator, tmp_path: Path) -> None:
    images = rng.standard_normal((9, 4, 3, 2))
    model = KernelRidge("cntk", 0.1, depth=2).fit(images, images[:, 0, 0, 0])
    save(model, tmp_path / "file")
    assert (load(tmp_path / "file").predict(images) == model.predict(images)).all()
    K = images.reshape(9, -1) @ images.reshape(9, -1).T
    model = KernelRidge("precomputed").fit(K, K[0])
    save(model, tmp_path / "file")
    assert (load(tmp_path / "file").predict(K) == model.predict(K)).all()
    with pytest.raises(TypeError, match=r"model.kernel is <function .*cannot be saved"):
        save(KernelRidge(lambda A, B: A @ B.T).fit(K, K[0]), tmp_path / "file")
    with pytest.raises(TypeError, match="sparse rows, which cannot be saved"):
        save(KernelRidge().fit(sparse.csr_matrix(K), K[0]), tmp_path / "file")


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda state: state.update(alpha_=0.5), "one of its alphas"),
        (lambda state: state.update(n_features_in_=5), "rows must have the shape"),
        (lambda state: state.update(lengthscale_=None), "'lengthscale_'"),
        (lambda state: state.update(labels=[0, 1]), "has classes"),
        (lambda state: state.update(single=True), "2 targets in place of one"),
        (lambda state: state.update(solver_="svd"), "'solver_'"),
        (lambda state: state.update(image_shape_=[2, 2, 2]), "images of 7 numbers"),
        (lambda state: state.update(rows=None), "must have rows"),
    ],
)
def test_made_up_kernel_ridge(edit: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    save(KernelRidge(alpha=[0.1, 1.0]).fit(X, X[:, :2]), tmp_path / "file")
    change(tmp_path / "file", lambda metadata, _: edit(state_of(metadata)))
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "learned", "text"),
    [
        ("gegenbauer", {"radii_": np.full((1, 65), np.nan)}, "radii_ has NaN"),
        ("gegenbauer", {"radii_": np.ones(65)}, "radii_ must have the shape"),
        ("gegenbauer", {"radii_": np.ones((2, 65))}, "file"),
        ("maclaurin", {"radius_": -1.0}, "'radius_'"),
        ("taylor", {"weights_": np.ones(10**6)}, "too many numbers"),
        ("nystroem", {"landmarks_": np.ones((16, 8))}, "landmarks_ must have the shape"),
        ("gegenbauer", {"radii_": np.ones((1, 66))}, "radii_ must have the shape"),
        ("nystroem", {"landmarks_": np.ones((17, 7))}, "17 landmarks, more than 16"),
        ("nystroem", {"landmark_indices_": np.array([-1])}, "landmark_indices_"),
        ("nystroem", {"landmarks_": np.full((16, 7), np.inf)}, "landmarks_ has NaN or infinite"),
    ],
)
def test_made_up_learning(name: str, learned: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    save(copy.deepcopy(MAPS[name]).fit(X), tmp_path / "file")

    def edit(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for key, value in learned.items():
            if isinstance(value, float):
                state_of(metadata)["learned"][key] = value
            else:
                arrays.update({place: value for place in arrays if key in place})

    change(tmp_path / "file", edit)
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


def on_a_sphere(rng: np.random.Generator) -> np.ndarray:
    X = rng.standard_normal((60, 4))
    X[:, [0, 2, 3]] /= np.linalg.norm(X[:, [0, 2, 3]], axis=1, keepdims=True)
    return X


def test_groups_that_were_found_come_back(rng: np.random.Generator, tmp_path: Path) -> None:
    X = on_a_sphere(rng)
    for model in (
        GegenbauerFeatures("gaussian", n_components=64),
        GaussianFeatures(n_components=64, method="gegenbauer", random_state=0),
    ):
        again = through_file(model.fit(X), tmp_path)
        fitted, found = getattr(model, "map_", model), getattr(again, "map_", again)
        assert found.groups_ == fitted.groups_ == [[0, 2, 3], [1]]
        np.testing.assert_array_equal(found.center_, fitted.center_)
        np.testing.assert_array_equal(again.transform(X), model.transform(X))
        np.testing.assert_array_equal(through_file(again, tmp_path).transform(X), model.transform(X))


@pytest.mark.parametrize(
    ("learned", "text"),
    [
        ({"groups_": [[0, 2, 3], [4]]}, "each of the 4 columns in one group"),
        ({"groups_": [[0, 2, 3], [-1]]}, "each of the 4 columns"),
        ({"groups_": [[0, 2, 3], [3]]}, "each of the 4 columns"),
        ({"groups_": [[0, 2, 3], [1], []]}, "each of the 4 columns"),
        ({"groups_": [[0, 2, 3], [True]]}, "each of the 4 columns"),
        ({"groups_": [[0, 2, 3], [1.0]]}, "each of the 4 columns"),
        ({"groups_": [0, 1, 2, 3]}, "each of the 4 columns"),
        ({"groups_": "0123"}, "each of the 4 columns"),
        ({"groups_": [[0], [1], [2], [3]]}, "file"),  # other norms
        ({"groups_": None}, "file"),
        ({"center_": 1.0}, "center_ must be an array"),
    ],
)
def test_made_up_groups(learned: Any, text: str, rng: np.random.Generator, tmp_path: Path) -> None:
    save(GegenbauerFeatures("gaussian", n_components=64, random_state=0).fit(on_a_sphere(rng)), tmp_path / "file")

    def edit(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if "center_" in learned:
            del arrays[next(place for place in arrays if "center_" in place)]
        state_of(metadata)["learned"].update(learned)

    change(tmp_path / "file", edit)
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


def test_files_without_groups(rng: np.random.Generator, tmp_path: Path) -> None:
    """Version 0.1 did not look for groups."""
    X = on_a_sphere(rng)
    for groups in (None, [[0, 2, 3], [1]]):
        model = GegenbauerFeatures("gaussian", n_components=64, groups=groups, random_state=0).fit(X)
        save(model, tmp_path / "file")

        def edit(metadata: dict[str, Any], _: dict[str, np.ndarray]) -> None:
            metadata.update(ntkit="0.1.0")
            for key in ("groups_", "center_"):
                del state_of(metadata)["learned"][key]

        change(tmp_path / "file", edit)
        again = load(tmp_path / "file")
        assert again.groups_ == groups
        np.testing.assert_array_equal(again.transform(X), model.transform(X))


def test_every_class_has_been_through_a_file() -> None:
    tried = {type(model).__name__ for model in (*MAPS.values(), *SCALERS.values(), *IMAGES.values())}
    models = {"FeatureRidge", "FeatureRidgeClassifier", "FeatureRidgeSearch", "FeatureRidgeSearchClassifier"}
    models |= {"GramRidge", "GramRidgeClassifier", "FeatureKMeans", "KernelRidge", "KernelRidgeClassifier"}
    assert tried | models | {"TableEncoder", "Pipeline", "FrozenEstimator"} == set(CLASSES)


@pytest.mark.parametrize("n_rows", [10, 40])  # the rows are kept, or sums
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_go_on(n_rows: int, dtype: Any, X: np.ndarray, tmp_path: Path) -> None:
    X = X.astype(dtype)
    y = X[:, 0]
    model = small_model().fit(X[:n_rows], y[:n_rows])
    again = through_file(model, tmp_path, statistics=True)
    for found, expected in zip(again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)
    model.partial_fit(X[n_rows // 2 :], y[n_rows // 2 :])
    again.partial_fit(X[n_rows // 2 :], y[n_rows // 2 :])
    assert again.n_samples_seen_ == model.n_samples_seen_
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(again.errors_, model.errors_)
    assert through_file(again, tmp_path).n_samples_seen_ == model.n_samples_seen_


def test_statistics_of_classes_go_on(X: np.ndarray, tmp_path: Path) -> None:
    y = np.array(["a", "b", "c"])[np.arange(40) % 3]
    model = FeatureRidgeClassifier(NTKFeatures(n_components=16, random_state=0), random_state=0)
    model.partial_fit(X[:20], np.where(y[:20] == "c", "a", y[:20]))
    again = through_file(model, tmp_path, statistics=True)
    for each in (model, again):
        each.partial_fit(X[20:], y[20:])
    np.testing.assert_array_equal(again.classes_, ["a", "b", "c"])
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_torch_models_come_back(X: np.ndarray, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.from_numpy(X)
    model = small_model().fit(rows, rows[:, 0])
    again = through_file(model, tmp_path, statistics=True)
    assert torch.equal(again.predict(rows), model.predict(rows))


def test_predictions_in_a_new_process_are_the_same(X: np.ndarray, tmp_path: Path) -> None:
    models = {name: FeatureRidge(copy.deepcopy(features)) for name, features in MAPS.items()}
    models["default"] = FeatureRidge()
    models["classes"] = FeatureRidgeClassifier(make_pipeline(StandardScaler(), MAPS["ntk"]))
    np.save(tmp_path / "X.npy", X)
    for name, model in models.items():
        save(model.fit(X, X[:, 0] > 0), tmp_path / f"{name}.ntkit")
        np.save(tmp_path / f"{name}.npy", model.predict(X))
    program = """
        import sys
        from pathlib import Path
        import numpy as np
        from ntkit.persistence import load
        assert "pickle" not in str(load.__globals__)
        folder = Path(sys.argv[1])
        X = np.load(folder / "X.npy")
        for path in sorted(folder.glob("*.ntkit")):
            np.testing.assert_array_equal(load(path).predict(X), np.load(path.with_suffix(".npy")), err_msg=path.name)
        assert "torch" not in sys.modules
        print(len(list(folder.glob("*.ntkit"))))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(models)


def test_pickle_and_skops(X: np.ndarray) -> None:
    skops = pytest.importorskip("skops.io")
    y = np.where(X[:, 0] > 0, "a", "b")
    pipeline = make_pipeline(StandardScaler(), NTKFeatures(n_components=16, random_state=0))
    models: list[Any] = [copy.deepcopy(model).fit(X) for model in MAPS.values()]
    models += [small_model().fit(X, X[:, 0]), FeatureRidgeClassifier(pipeline).fit(X, y)]
    models[-2].predict(X, return_std=True)
    for model in models:
        data = skops.dumps(model)
        for again in (
            skops.loads(data, trusted=skops.get_untrusted_types(data=data)),
            pickle.loads(pickle.dumps(model)),
        ):
            method = "predict" if hasattr(model, "predict") else "transform"
            np.testing.assert_array_equal(getattr(again, method)(X), getattr(model, method)(X))


# What cannot be saved


def test_unsupported_estimators_are_named(tmp_path: Path) -> None:
    class NTKFeatures2(NTKFeatures):
        pass

    NTKFeatures2.__name__ = "NTKFeatures"
    for model, text in [
        (Ridge(), "model is a sklearn.linear_model"),
        (make_pipeline(StandardScaler(), Ridge()), r"model\['ridge'\] is a sklearn.linear_model"),
        (FeatureRidge(make_pipeline(FunctionTransformer(lambda x: x))), r"model.features\['functiontransformer'\]"),
        (FeatureRidge(lambda x: x), "model.features is <function"),
        (FeatureRidge(NTKFeatures), "model.features is <class"),
        (FeatureRidge(alphas={1.0}), "model.alphas is {1.0}, a set"),
        (NTKFeatures2(), "cannot be saved"),
        (Pipeline([("a", StandardScaler())], memory=str(tmp_path)), "Set it to None"),
        (NTKFeatures, "cannot be saved"),
        (None, "NoneType"),
    ]:
        with pytest.raises(TypeError, match=text) as caught:
            save(model, tmp_path / "file")
        assert "skops" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_classes_that_are_objects_are_refused(X: np.ndarray, tmp_path: Path) -> None:
    model = FeatureRidgeClassifier(NTKFeatures(n_components=8)).fit(X, np.arange(40) % 2)
    model._labels, model._label_dtype = [b"a", b"b"], np.dtype("S1")
    with pytest.raises(TypeError, match="Only ints, floats, bools and text"):
        save(model, tmp_path / "file")
    y = np.array(["a", "b" * 5000])[np.arange(40) % 2]
    model = FeatureRidgeClassifier(NTKFeatures(n_components=8)).fit(X, y)
    with pytest.raises(TypeError, match="U5000"):
        save(model, tmp_path / "file")


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (NTKFeatures(n_components=32), {"n_components": 16}),
        (NTKFeatures(n_components=32), {"bias": 1e-6}),
        (NTKPolynomialSketch(n_components=32), {"normalize": False}),
        (GradientFeatures(width=8), {"net": nn.fully_connected(2)}),
        (PolynomialSketch(), {"coef0": 1e-6}),
        (NTKFeatures(n_components=32), {"n_components": 0}),
        (NetworkFeatures(n_components=32), {"net": nn.fully_connected(2)}),
        (NetworkFeatures(n_components=32), {"split": 0.9}),
        (CNTKSketch(depth=2, n_components=32, image_shape=(1, 1, 7)), {"depth": 3}),
        (CNTKSketch(depth=2, n_components=32, image_shape=(1, 1, 7)), {"image_shape": (7, 1, 1)}),
    ],
)
def test_parameters_changed_since_fit_are_refused(
    model: Any, parameters: dict[str, Any], X: np.ndarray, tmp_path: Path
) -> None:
    model = copy.deepcopy(model).fit(X).set_params(**parameters)
    with pytest.raises(ValueError, match="loaded again"):
        save(model, tmp_path / "file")


@pytest.mark.parametrize("parameters", [{"random_state": 5}, {"batch_size": 1}])
def test_parameters_that_do_not_matter_may_change(parameters: dict[str, Any], X: np.ndarray, tmp_path: Path) -> None:
    model = NTKFeatures(n_components=32, random_state=0).fit(X).set_params(**parameters)
    again = through_file(model, tmp_path)
    assert again.get_params() == model.get_params()
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    fourier = RandomFourierFeatures(n_components=32, random_state=0).fit(X).set_params(lengthscale=5.0)
    np.testing.assert_array_equal(through_file(fourier, tmp_path).transform(X), fourier.transform(X))


def test_paths(X: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        save(NTKFeatures(), tmp_path / "none" / "file")
    with pytest.raises(IsADirectoryError):
        save(NTKFeatures(), tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")
    with pytest.raises(TypeError):
        load(3)  # type: ignore[arg-type]
    save(small_model().fit(X, X[:, 0]), str(tmp_path / "file"))
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(TypeError):
        save(Ridge(), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


# What cannot be loaded


@pytest.fixture
def file(X: np.ndarray, tmp_path: Path) -> Path:
    y = np.array(["a", "b", "c"])[np.arange(40) % 3]
    features = Pipeline([("scale", StandardScaler()), ("map", NTKFeatures(n_components=16, random_state=0))])
    save(FeatureRidgeClassifier(features, alphas=[0.1, 1.0]).fit(X, y), tmp_path / "model", statistics=True)
    return tmp_path / "model"


def test_every_truncation_is_found(file: Path) -> None:
    content = file.read_bytes()
    offsets = {*range(40), *range(0, len(content), 97), *range(len(content) - 40, len(content))}
    for size in sorted(offsets):
        file.write_bytes(content[:size])
        with pytest.raises(FileError):
            load(file)
    file.write_bytes(content + b"\0")
    with pytest.raises(FileError):
        load(file)


def test_every_flipped_bit_is_found(file: Path, rng: np.random.Generator) -> None:
    content = bytearray(file.read_bytes())
    (size,) = struct.unpack("<Q", content[:8])
    header = np.arange(8 + size)
    positions = [*header[:600], *rng.choice(header, 1500), *rng.choice(len(content), 500)]
    for position in positions:
        bit = 1 << int(rng.integers(8))
        content[position] ^= bit
        file.write_bytes(content)
        with pytest.raises(FileError):
            load(file)
        content[position] ^= bit
    file.write_bytes(content)
    load(file)


def leaves(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of all values in JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in items for place in leaves(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    if value is REMOVED:
        del data[path[-1]]
    else:
        data[path[-1]] = value


REMOVED = object()
ODD = [
    REMOVED,
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    "",
    "x",
    [],
    {},
    [[]],
    {"type": "array", "name": "x", "order": "C"},
    {"type": "tuple"},
]
# Several values of these are right. (Parameters are checked when `fit` is called next.)
FREE = (
    "numpy", "scipy", "sklearn", "ntkit", "batch_size", "random_state", "verbose", "n_samples_seen_", "entropy",
    "values", "temperature", "weight", "sample_size", "sparse",
)  # fmt: skip


STEPS = ("model", "state", "features_", "parameters", "steps")


def test_any_value_may_be_wrong(file: Path, X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of the metadata in turn is replaced: an error that names the file, or a model that works."""
    arrays, metadata = _files.read(file, kind="model")
    accepted = set()
    places = [place for place in leaves(metadata)[1:] if place[-3:-1] not in [("fingerprint", i) for i in (1, 2)]]
    for place in set(places) - {("kind",)}:  # which `read` itself checks
        for value in ODD:
            changed = copy.deepcopy(metadata)
            put(changed, place, value)
            if changed == metadata:
                continue
            content = json.loads(json.dumps(changed))  # as a file would have it, without the time that disks take
            monkeypatch.setattr(_files, "read", lambda *_, content=content, **__: (dict(arrays), content))
            try:
                model = load(file)
            except FileError as error:
                assert str(file) in str(error)  # noqa: PT017
                continue
            accepted.add(place)
            assert model.predict(X).shape == (40,)
    steps = {(*STEPS, i, 0) for i in range(2)}  # their names
    strange = {place for place in accepted - steps if place[:2] != ("model", "parameters")}
    assert {place for place in strange if not {*place[-2:]} & {*FREE}} == set()


def small_file(tmp_path: Path, X: np.ndarray, model: Any = None, **options: Any) -> Path:
    save((model or small_model()).fit(X, X[:, 0]), tmp_path / "small", **options)
    return tmp_path / "small"


def state_of(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata["model"]["state"]


def map_of(metadata: dict[str, Any]) -> dict[str, Any]:
    return state_of(metadata)["features_"]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda m, a: m.update(format=2, ntkit="9.0"), r"by ntkit '9.0' in format 2. This is ntkit .* a later version"),
        (lambda m, a: m.update(format=0), "format"),
        (lambda m, a: m.update(format="1"), "format"),
        (lambda m, a: m.update(extra=1), "unknown 'extra'"),
        (lambda m, a: m.update(kind="checkpoint"), "checkpoint"),
        (lambda m, a: m["model"].update({"class": "os.system"}), "none of"),
        (lambda m, a: m["model"].update({"class": "Ridge"}), "none of"),
        (lambda m, a: m["model"].update({"class": "NTKFeatures"}), "unknown"),
        (lambda m, a: m["model"]["parameters"].update(memory="x"), "unknown 'memory'"),
        (lambda m, a: m["model"]["parameters"].pop("alphas"), "lacks 'alphas'"),
        (lambda m, a: m["model"]["parameters"].update(alphas=-1.0), "alphas"),
        (lambda m, a: m["model"]["parameters"].update(solver="x"), "solver"),
        (lambda m, a: map_of(m)["parameters"].update(n_components=2**62), "random numbers"),
        (lambda m, a: map_of(m)["parameters"].update(n_components=10**400), "does not hold"),
        (lambda m, a: map_of(m)["parameters"].update(n_components=17), "not 16"),
        (lambda m, a: map_of(m)["parameters"].update(depth=10**9), "depth"),
        (lambda m, a: map_of(m)["parameters"].update(depth=2), "written with ntkit .*numpy"),
        (lambda m, a: map_of(m)["state"].update(n_features_in_=2**40), "n_features_in_"),
        (lambda m, a: map_of(m)["state"].update(n_features_in_=8), "when it was saved"),
        (lambda m, a: map_of(m)["state"]["seed"].update(entropy=1), "when it was saved"),
        (lambda m, a: map_of(m)["state"]["seed"].update(entropy=-1), "entropy"),
        (lambda m, a: map_of(m)["state"]["seed"].update(pool_size=2**40), "pool_size"),
        (lambda m, a: map_of(m).update(state=None), "not fitted"),
        (lambda m, a: state_of(m)["features_"].update({"class": "FeatureRidge", "state": None}), "parameters"),
        (lambda m, a: state_of(m).update(n_features_in_=8), "has 7 columns, but the model 8"),
        (lambda m, a: state_of(m).update(feature_names_in_=["a"]), "names"),
        (lambda m, a: a.update({"model.coef": a["model.coef"][:8]}), "16 components, but the model 8"),
        (lambda m, a: a.update({"model.coef": a["model.coef"].astype(np.float32)}), "float64"),
        (lambda m, a: a.update({"model.coef": a["model.coef"].view(np.int64)}), "float64"),
        (lambda m, a: a["model.coef"].fill(np.nan), "model.coef has NaN"),
        (lambda m, a: a["model.intercept"].fill(np.inf), "model.intercept has NaN or inf"),
        (lambda m, a: a["model.noise"].fill(-1.0), "below 0"),
        (lambda m, a: a.pop("model.coef"), "not there"),
        (lambda m, a: a.update(more=np.ones(3)), "'more' belongs to nothing"),
        (lambda m, a: state_of(m)["solution"]["noise"].update(name="model.coef"), "used before"),
    ],
)  # fmt: skip
def test_made_up_files(edit: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    path = small_file(tmp_path, X)
    change(path, edit)
    with pytest.raises(FileError, match=text) as caught:
        load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "edit",
    [
        lambda m, a: a.update({"model.statistics.gram": np.ones((2, 2))}),
        lambda m, a: a["model.statistics.gram"].fill(np.nan),
        lambda m, a: a["model.statistics.sample_weight"].fill(-1.0),
        lambda m, a: a.update({"model.statistics.sample_keys": np.zeros(3)}),
        lambda m, a: state_of(m)["statistics"]["arrays"].pop("cross"),
        lambda m, a: state_of(m)["statistics"]["arrays"].update(Z=None),
        lambda m, a: state_of(m)["statistics"]["numbers"].update(n_components=2**40),
        lambda m, a: state_of(m)["statistics"]["numbers"].update(sample_size=1),
        lambda m, a: state_of(m)["statistics"]["numbers"].update(device="meta"),
        lambda m, a: state_of(m)["statistics"]["numbers"].update(weight=-1.0),
    ],
)
def test_made_up_statistics(edit: Any, X: np.ndarray, tmp_path: Path) -> None:
    path = small_file(tmp_path, X, statistics=True)
    change(path, edit)
    with pytest.raises(FileError, match="statistics"):
        load(path)


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("zca", lambda m, a: state_of(m).update(image_shape_=[4, 4, 2]), "images of 24 numbers"),
        ("zca", lambda m, a: state_of(m).update(image_shape_=[3, 4]), "image_shape"),
        ("zca", lambda m, a: state_of(m).update(image_shape_=None), "images of 24 numbers"),
        ("zca", lambda m, a: state_of(m).update(n_features_in_=25), "images of 25 numbers"),
        ("zca", lambda m, a: state_of(m).update(regularization_=-1.0), "regularization_"),
        ("zca", lambda m, a: state_of(m).update(regularization_=None), "regularization_"),
        ("zca", lambda m, a: state_of(m).update(seed={"type": "seed"}), "no seed"),
        ("zca", lambda m, a: state_of(m)["arrays"].pop("whitening_"), "lacks 'whitening_'"),
        ("zca", lambda m, a: m["model"]["parameters"].update(per_image=3), "per_image"),
        ("zca", lambda m, a: m["model"]["parameters"].update(image_shape="x"), "image_shape"),
        ("zca", lambda m, a: a.update({"model.whitening_": np.ones((24, 23))}), r"shape \(24, 24\)"),
        ("zca", lambda m, a: a["model.whitening_"].fill(np.nan), "NaN"),
        ("image standardizer", lambda m, a: a["model.scale_"].fill(0.0), "zeros"),
        ("image standardizer", lambda m, a: a["model.scale_"].fill(-1.0), "below 0"),
        ("image standardizer", lambda m, a: a.update({"model.mean_": np.ones(3)}), r"shape \(2,\)"),
        ("image standardizer", lambda m, a: state_of(m).update(regularization_=1.0), "no regularization"),
        ("patches", lambda m, a: state_of(m).update(seed=None), "seed"),
        ("patches", lambda m, a: m["model"]["parameters"].update(patch_size=2), "shape"),
        ("patches", lambda m, a: m["model"]["parameters"].update(n_components=19), "n_components"),
        ("patches", lambda m, a: m["model"]["parameters"].update(padding="valid", patch_size=4), "patch_size"),
        ("few patches", lambda m, a: m["model"]["parameters"].update(n_components=4), "shape"),
        ("few patches", lambda m, a: m["model"]["parameters"].update(contrast=-1.0), "contrast"),
        ("flips", lambda m, a: state_of(m).update(n_components_=7), "1024 components, not 7"),
        ("flips", lambda m, a: state_of(m).update(n_features_in_=48, image_shape_=[6, 4, 2]), "24 columns, not 48"),
        ("flips", lambda m, a: state_of(m).update(flat=1), "flat"),
        ("flips", lambda m, a: state_of(m)["features_"].update(state=None), "not fitted"),
        ("flips", lambda m, a: state_of(m).update(features_=state_of(m)["features_"]["parameters"]), "features_"),
    ],
)  # fmt: skip
def test_made_up_images(name: str, edit: Any, text: str, rng: np.random.Generator, tmp_path: Path) -> None:
    save(copy.deepcopy(IMAGES[name]).fit(rng.random((20, 3, 4, 2))), tmp_path / "file")
    change(tmp_path / "file", edit)
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "changed"), [("zca", {"per_image": False}), ("patches", {"patch_size": 2}), ("patches", {"contrast": 1.0})]
)
def test_parameters_of_images_changed_after_a_fit(
    name: str, changed: dict[str, Any], rng: np.random.Generator, tmp_path: Path
) -> None:
    model = copy.deepcopy(IMAGES[name]).fit(rng.random((20, 3, 4, 2))).set_params(**changed)
    with pytest.raises(ValueError, match="other parameters than when it was fitted"):
        save(model, tmp_path / "file")


def test_statistics_of_a_gpu_come_to_the_host(X: np.ndarray, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = small_file(tmp_path, X, statistics=True)
    change(path, lambda m, a: state_of(m)["statistics"]["numbers"].update(device="cuda:3"))
    load(path).partial_fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (PolynomialSketch(), {"degree": 2**50}),
        (PolynomialSketch(), {"n_components": 2**50}),
        (RandomFourierFeatures(), {"n_components": 2**33}),
        (NTKRandomFeatures(n_components=8), {"hidden_components": 2**40}),
        (NTKRandomFeatures(n_components=8), {"gibbs_sweeps": 2**40}),
        (NTKRandomFeatures(depth=2, n_components=8), {"derivative_components": 2**40}),
        (NTKSketch(), {"poly_components": 2**40}),
        (NTKSketch(variant="paper", projection=True, n_components=8), {"ntk_components": 2**17, "n_components": 2**18}),
        (NTKPolynomialSketch(), {"width": 2**40}),
        (NTKPolynomialSketch(), {"depth": 2**40}),
        (GradientFeatures(), {"width": 2**40}),
        (GradientFeatures(nn.Sequential(nn.Dense(trainable=False), nn.ReLU(), nn.Dense())), {"n_components": 2**33}),
        (NTKFeatures(method="gradient"), {"n_components": 2**40}),
        (NTKFeatures(method="random"), {"n_components": 2**40}),
        (NetworkFeatures(), {"n_components": 2**40}),
        (NetworkFeatures(), {"hidden_components": 2**40}),
        (NetworkFeatures(method="random"), {"derivative_components": 2**40}),
        (CNTKSketch(depth=2, image_shape=(1, 1, 7)), {"depth": 2**40}),
        (CNTKSketch(depth=2, image_shape=(1, 1, 7)), {"kernel_size": 2**20}),
    ],
)
def test_huge_maps_are_refused(model: Any, parameters: dict[str, Any], X: np.ndarray, tmp_path: Path) -> None:
    save(copy.deepcopy(model).fit(X), tmp_path / "file")
    change(tmp_path / "file", lambda m, a: m["model"]["parameters"].update(parameters))
    with pytest.raises(FileError, match=r"random numbers|depth"):
        load(tmp_path / "file")


def test_missing_parameters_of_other_versions_have_their_defaults(X: np.ndarray, tmp_path: Path) -> None:
    path = small_file(tmp_path, X)
    change(path, lambda m, a: (m.update(ntkit="0.0.1"), m["model"]["parameters"].pop("progress")))
    assert load(path).progress is False
    change(path, lambda m, a: m["model"]["parameters"].update(later=1))
    with pytest.raises(FileError, match="unknown 'later'"):
        load(path)


def test_deep_nesting(X: np.ndarray, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "file"
    save(GradientFeatures(nn.Sequential(nn.Dense())).fit(X), path)
    _, metadata = _files.read(path, kind="model")
    metadata["model"]["parameters"]["net"] = "HERE"
    start = '{"type": "layer", "name": "Sequential", "fields": {"layers": {"type": "tuple", "items": ['
    for n_levels in (10, 50, 100, 150, 200, 300, 1000, 100_000):
        layer = '{"type": "layer", "name": "Dense", "fields": {"trainable": true, "weight_std": 1.0}}'
        net = start * n_levels + layer + "]}}}" * n_levels
        text = json.dumps(metadata).replace('"HERE"', net)
        save_file({}, path, metadata={"ntkit": text, "sha256": _files._digest({}, text)})
        if n_levels < 100:
            np.testing.assert_equal(load(path).n_features_in_, 7)
        if n_levels > 300:
            with pytest.raises(FileError):
                load(path)
        with contextlib.suppress(FileError):  # what is too deep depends on the version of Python
            load(path)


@pytest.mark.parametrize(
    "layer",
    [
        {"type": "layer", "name": "Layer", "fields": {}},
        {"type": "layer", "name": "fully_connected", "fields": {"depth": 1}},
        {"type": "layer", "name": "Dense", "fields": {"trainable": 1, "weight_std": 1.0}},
        {"type": "layer", "name": "Dense", "fields": {"trainable": True, "weight_std": -1.0}},
        {"type": "layer", "name": "Dense", "fields": {"trainable": True}},
        {"type": "layer", "name": "Sequential", "fields": {"layers": 3}},
        {"type": "layer", "name": "Sequential", "fields": {"layers": [3]}},
        {"type": "layer", "name": ["Dense"], "fields": {}},
    ],
)
def test_made_up_networks(layer: Any, X: np.ndarray, tmp_path: Path) -> None:
    save(GradientFeatures(nn.Sequential(nn.Dense()), width=2).fit(X), tmp_path / "file")
    change(tmp_path / "file", lambda m, a: m["model"]["parameters"].update(net=layer))
    with pytest.raises(FileError):
        load(tmp_path / "file")


def test_other_files(X: np.ndarray, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "file"
    save_file({"a": X}, path)
    with pytest.raises(FileError, match="not written by ntkit"):
        load(path)
    path.write_bytes(pickle.dumps(small_model()))
    with pytest.raises(FileError, match="not a complete ntkit file"):
        load(path)
    _files.write(path, {"a": X}, {"kind": "checkpoint"})
    with pytest.raises(FileError, match="'checkpoint', not 'model'"):
        load(path)
    _files.write(path, {"a": X}, {"kind": "model"})
    with pytest.raises(FileError, match="format"):
        load(path)
    for content in (b"", b"\0" * 100, b"\xff" * 100, struct.pack("<Q", 2**40) + b"{}", b"text" * 1000):
        path.write_bytes(content)
        with pytest.raises(FileError):
            load(path)


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [1] * 100, "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2**60], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 2**60]},
    ],
)
def test_odd_tensors(tensor: dict[str, Any], tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"ntkit": '{"kind": "model"}', "sha256": ""}, "a": tensor}).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    with pytest.raises(FileError):
        load(tmp_path / "file")


@pytest.mark.filterwarnings("ignore:kernel='arc_cosine1'")
@pytest.mark.parametrize("name", ["fourier", "series", "maclaurin", "network"])
def test_files_of_version_0_1(name):
    """Parameters and fields that came later have their defaults."""
    folder = Path(__file__).parent / "golden" / "version_0_1"
    X = np.random.default_rng(0).standard_normal((30, 4))[:3]
    expected = np.load(folder / "features.npz")[name]
    np.testing.assert_allclose(load(folder / f"{name}.ntkit").transform(X), expected, rtol=1e-12)
