"""Files of maps of images: a shape, parameters and a seed, from which the same features come."""

# ruff: noqa: ARG005
from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from tests.conftest import as_numpy
from tests.test_persistence import ODD, change, leaves, put, state_of, through_file

from ntkit import (
    CNTKSketch,
    FeatureRidge,
    FeatureRidgeClassifier,
    FlipAveraged,
    GradientFeatures,
    GramRidge,
    ImageStandardizer,
    NetworkFeatures,
    PatchWhitening,
    _files,
)
from ntkit import networks as nn
from ntkit._encoding.draws import count_draws
from ntkit.persistence import FileError, load, save

SHAPE = (4, 3, 2)
CONV = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
DEEP = nn.Sequential(
    nn.Conv((2, 3), stride=(2, 1)), nn.LeakyReLU(0.1), nn.Residual(nn.Sequential(nn.Conv(1), nn.Erf()), nn.Conv(3)),
    nn.AvgPool(2), nn.Normalize(), nn.Conv(2, trainable=False, weight_std=1.5), nn.GELU(), nn.Flatten(), nn.Dense(),
)  # fmt: skip
MAPS = {
    "network": NetworkFeatures(CONV, n_components=24, random_state=np.random.default_rng(1)),
    "random": NetworkFeatures(CONV, n_components=24, method="random", kind="both", random_state=0),
    "deep": NetworkFeatures(DEEP, n_components=24, normalize=False, replace=True, image_shape=SHAPE, random_state=0),
    "deep random": NetworkFeatures(DEEP, n_components=24, method="random", directions="leverage", kind="nngp"),
    "cntk": CNTKSketch(depth=2, n_components=24, random_state=np.random.SeedSequence([1, 2], spawn_key=(3,))),
    "cntk options": CNTKSketch(
        depth=3,
        kernel_size=(2, 3),
        n_components=24,
        image_shape=SHAPE,
        method="random",
        hidden_components=9,
        derivative_components=7,
        batch_size=3,
        random_state=1,
    ),
    "untrained": CNTKSketch(depth=1, n_components=24, kind="nngp", random_state=0),
    "gradient": GradientFeatures(CONV, width=3, random_state=0),
    "gradient deep": GradientFeatures(DEEP, n_components=50, image_shape=SHAPE, random_state=0),
}
ALL = pytest.mark.parametrize("name", MAPS)


@pytest.fixture
def X(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(256, size=(20, *SHAPE), dtype=np.uint8)


def features(model: Any, X: np.ndarray) -> np.ndarray:
    return as_numpy(model.transform(X))


@ALL
def test_maps_of_images_come_back(name: str, X: np.ndarray, tmp_path: Path) -> None:
    for dtype in ["uint8", "float32", "float64"]:
        X = X.astype(dtype)
        model = copy.deepcopy(MAPS[name]).fit(X)
        again = through_file(model, tmp_path)
        assert type(again) is type(model)
        assert vars(again).keys() == vars(model).keys()
        assert again.image_shape_ == model.image_shape_ == SHAPE
        assert again.n_features_in_ == 24
        for attribute in ("ntk_columns_", "nngp_columns_"):
            assert getattr(again, attribute, None) == getattr(model, attribute, None)
        for parameter, value in model.get_params().items():
            if parameter != "random_state":
                assert getattr(again, parameter) == value
        Z = features(model, X)
        assert np.abs(Z).max() > 0
        np.testing.assert_array_equal(features(again, X), Z)
        np.testing.assert_array_equal(features(again, X.reshape(20, 24)), Z)
        np.testing.assert_array_equal(features(through_file(again, tmp_path), X), Z)
        assert (tmp_path / "file").stat().st_size < 12_000  # no draws


@ALL
def test_maps_of_tensors_come_back(name: str, X: np.ndarray, tmp_path: Path) -> None:
    import torch

    images = torch.from_numpy(X)
    model = copy.deepcopy(MAPS[name]).fit(images)
    again = through_file(model, tmp_path)
    assert torch.equal(again.transform(images), model.transform(images))


@ALL
def test_unfitted_maps_come_back(name: str, X: np.ndarray, tmp_path: Path) -> None:
    model = copy.deepcopy(MAPS[name])
    again = through_file(model, tmp_path)
    assert not hasattr(again, "image_shape_")
    if model.random_state is not None:
        np.testing.assert_array_equal(features(again.fit(X), X), features(model.fit(X), X))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 3), (1, 5, 1), (7, 2, 1)])
@pytest.mark.parametrize("law", [CNTKSketch, NetworkFeatures, GradientFeatures])
def test_small_images(law: Any, shape: tuple[int, int, int], rng: np.random.Generator, tmp_path: Path) -> None:
    X = rng.standard_normal((2, *shape))
    model = law(n_components=6, random_state=0) if law is CNTKSketch else law(CONV, n_components=6, random_state=0)
    np.testing.assert_array_equal(features(through_file(model.fit(X), tmp_path), X), features(model, X))


def test_names_of_flat_images(X: np.ndarray, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X.reshape(20, 24), columns=[f"pixel {i}" for i in range(24)])
    for name in ("deep", "cntk options", "gradient deep"):
        model = copy.deepcopy(MAPS[name]).fit(frame)
        again = through_file(model, tmp_path)
        assert again.feature_names_in_.tolist() == list(frame.columns)
        np.testing.assert_array_equal(features(again, frame), features(model, frame))


@pytest.mark.parametrize("flat", [False, True])
def test_models_of_images_come_back(flat: bool, X: np.ndarray, tmp_path: Path) -> None:
    shape = SHAPE if flat else None
    rows = X.reshape(20, 24) if flat else X
    y = X[:, 0, 0, 0] / 255.0
    sketch = CNTKSketch(depth=2, n_components=16, image_shape=shape, random_state=0)
    whitened = CNTKSketch(depth=2, n_components=16, image_shape=(*SHAPE[:2], 3) if flat else None, random_state=0)
    for maps in (
        CNTKSketch(depth=2, n_components=16, image_shape=shape, random_state=0),
        make_pipeline(
            ImageStandardizer(image_shape=shape),
            CNTKSketch(depth=2, n_components=16, image_shape=shape, random_state=0),
        ),
        make_pipeline(PatchWhitening(patch_size=2, n_components=3, image_shape=shape, random_state=0), whitened),
        FlipAveraged(sketch) if not flat else FlipAveraged(MAPS["deep"], image_shape=shape),
    ):
        for model in (FeatureRidge(maps, alphas=[0.1, 1.0]), GramRidge(maps, 1, random_state=0)):
            model.fit(rows, y)
            again = through_file(model, tmp_path)
            assert again.n_features_in_ == 24
            np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
        classifier = FeatureRidgeClassifier(maps).fit(rows, y > 0.5)
        again = through_file(classifier, tmp_path, statistics=True)
        np.testing.assert_array_equal(again.predict_proba(rows), classifier.predict_proba(rows))
        np.testing.assert_array_equal(
            again.partial_fit(rows, y > 0.5).coef_, classifier.partial_fit(rows, y > 0.5).coef_
        )


@pytest.mark.parametrize(
    ("name", "edit", "text"),
    [
        ("cntk", lambda s, p: s.update(image_shape_=[4, 4, 2]), "dense images of 24 numbers"),
        ("cntk", lambda s, p: s.update(image_shape_=[3, 4, 2]), "image_shape|saved"),
        ("cntk", lambda s, p: s.update(image_shape_=[4, 6]), "image_shape"),
        ("cntk", lambda s, p: s.update(image_shape_=[4, 3, -2]), "image_shape"),
        ("cntk", lambda s, p: s.update(image_shape_="432"), "image_shape"),
        ("cntk", lambda s, p: s.update(image_shape_=None), "cannot take|takes images|needs images"),
        ("cntk", lambda s, p: s.pop("image_shape_"), "lacks 'image_shape_'"),
        ("cntk", lambda s, p: s.update(sparse=True), "dense images"),
        ("cntk", lambda s, p: s.update(n_features_in_=2**40), "n_features_in_"),
        ("cntk", lambda s, p: s.update(n_features_in_=2**26, image_shape_=[2**13, 2**13, 1]), "random numbers"),
        ("cntk", lambda s, p: s["learned"].update(lengthscale_=1.0), "unknown 'lengthscale_'"),
        ("cntk", lambda s, p: s.update(n_components_=23), "24 components, not 23"),
        ("cntk", lambda s, p: s["seed"].update(entropy=[1, 3]), "saved"),
        ("cntk", lambda s, p: p.update(depth=3), "saved"),
        ("cntk", lambda s, p: p.update(depth=10**9), "depth"),
        ("cntk", lambda s, p: p.update(kernel_size=10**9), "random numbers"),
        ("cntk", lambda s, p: p.update(kernel_size=0), "size"),
        ("cntk", lambda s, p: p.update(degree=10**9), "degree"),
        ("cntk", lambda s, p: p.update(n_components=2**40), "random numbers"),
        ("cntk", lambda s, p: p.update(hidden_components=2**40), "random numbers"),
        ("cntk", lambda s, p: p.update(precision="half"), "precision"),
        ("cntk", lambda s, p: p.update(normalize=1), "normalize"),
        ("cntk", lambda s, p: p.update(image_shape=[3, 4, 2]), "image_shape"),
        ("deep", lambda s, p: s.update(image_shape_=None), "must have the shape of its images"),
        ("random", lambda s, p: p.update(directions="x"), "directions"),
        ("random", lambda s, p: p.update(kind="ntk"), "components"),
        ("random", lambda s, p: p.update(derivative_components=2**36), "random numbers"),
        ("network", lambda s, p: p.update(net=None), "cannot take|vectors|Flatten"),
        ("network", lambda s, p: p.update(net=3), "net"),
        ("gradient", lambda s, p: s.update(image_shape_=[2, 3, 4]), "saved|components"),
        ("gradient", lambda s, p: s.update(image_shape_=None), "cannot take|takes images|needs images"),
        ("gradient", lambda s, p: p.update(width=2**27), "random numbers"),
        ("gradient deep", lambda s, p: s.update(image_shape_=None), "must have the shape of its images"),
    ],
)  # fmt: skip
def test_made_up_maps(name: str, edit: Any, text: str, X: np.ndarray, tmp_path: Path) -> None:
    save(copy.deepcopy(MAPS[name]).fit(X), tmp_path / "file")
    change(tmp_path / "file", lambda metadata, _: edit(state_of(metadata), metadata["model"]["parameters"]))
    with pytest.raises(FileError, match=text):
        load(tmp_path / "file")


def test_networks_of_too_many_layers(X: np.ndarray, tmp_path: Path) -> None:
    save(copy.deepcopy(MAPS["network"]).fit(X), tmp_path / "file")
    dense = {"type": "layer", "name": "Dense", "fields": {"trainable": True, "weight_std": 1.0}}

    def edit(metadata: dict[str, Any], _: Any) -> None:
        metadata["model"]["parameters"]["net"]["fields"]["layers"]["items"] += [dense] * 20_000

    change(tmp_path / "file", edit)
    with pytest.raises(FileError, match="layers, more than"):
        load(tmp_path / "file")


def test_any_value_may_be_wrong(X: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of the metadata in turn is replaced: an error that names the file, or a map that works."""
    file = tmp_path / "file"
    save(NetworkFeatures(CONV, n_components=6, random_state=0).fit(X), file)
    arrays, metadata = _files.read(file, kind="model")
    accepted = set()
    for place in [place for place in leaves(metadata)[1:] if "fingerprint" not in place[:-1] and place != ("kind",)]:
        for value in ODD:
            changed = copy.deepcopy(metadata)
            put(changed, place, value)
            if changed == metadata:
                continue
            content = json.loads(json.dumps(changed))
            monkeypatch.setattr(_files, "read", lambda *_, content=content, **__: (dict(arrays), content))
            try:
                model = load(file)
            except FileError as error:
                assert str(file) in str(error)  # noqa: PT017
                continue
            accepted.add(place[-1])
            if model.__dict__.get("_n_features_out"):
                assert model.transform(X).shape == (20, 6)
    # What matters for other methods, on other devices, or not at all.
    free = {"numpy", "scipy", "sklearn", "ntkit", "batch_size", "progress", "precision", "random_state", "state"}
    free |= {"hidden_components", "derivative_components", "split", "image_shape", "output", "entropy", "degree"}
    assert accepted <= free | {"derivative_degree", "weight_std", "bias_std", "stride", "normalize", "replace"}


@pytest.mark.parametrize("method", ["sketch", "random"])
@pytest.mark.parametrize("net", [CONV, DEEP, nn.myrtle(5), nn.cntk(3, 2)], ids=["conv", "deep", "myrtle", "cntk"])
def test_draws_are_bounded(net: Any, method: str) -> None:
    """The bound holds for what a fit keeps, and is not so large that maps of any use are refused."""
    shape = (8, 8, 3)
    model = NetworkFeatures(net, n_components=64, method=method, random_state=0).fit(np.zeros((1, *shape)))
    assert kept_numbers(model._draws.stages) <= count_draws(model, shape)
    large = NetworkFeatures(nn.myrtle(10), n_components=65536, hidden_components=4096, method=method)
    assert count_draws(large, (32, 32, 3)) < 2**34
    assert count_draws(CNTKSketch(depth=20, n_components=16384, method=method), (32, 32, 3)) < 2**34


def kept_numbers(value: Any, seen: set[int] | None = None) -> int:
    """Numbers in all arrays of more than one axis or of whole numbers that an object holds: the draws."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, list | tuple):
        return sum(kept_numbers(item, seen) for item in value)
    return sum(kept_numbers(item, seen) for item in vars(value).values()) if hasattr(value, "__dict__") else 0
