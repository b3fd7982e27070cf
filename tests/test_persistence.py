"""Save and load: a table of estimators that must come back bit for bit, and files that nobody should trust."""

# ruff: noqa: ARG005
from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import NMF, PCA, KernelPCA, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)
from sklearn.random_projection import SparseRandomProjection
from sklearn.tree import DecisionTreeRegressor
from tests.features.test_contract import CASES as MAPS

import ntkit
from ntkit import (
    AdaptiveFeatures,
    ArcsinhScaler,
    DotProductSketch,
    FeatureKMeans,
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    FeatureRidgeSearchClassifier,
    FlipAveraged,
    GaussianFeatures,
    GegenbauerFeatures,
    GradientFeatures,
    GramRidge,
    GramRidgeClassifier,
    ImageStandardizer,
    KernelRidge,
    KernelRidgeClassifier,
    LearnedMetric,
    MaclaurinFeatures,
    NetworkFeatures,
    NTKFeatures,
    NTKRandomFeatures,
    NTKSketch,
    NystroemFeatures,
    OrthogonalFourierFeatures,
    PatchWhitening,
    PiecewiseLinearEncoder,
    PolynomialSketch,
    RandomFourierFeatures,
    TableClassifier,
    TableRegressor,
    ZCAWhitening,
    _files,
    _walk,
)
from ntkit import networks as nn
from ntkit._state import COLUMNS, Declared, Estimator, Floats, Labels, Optional, Part, Seed
from ntkit.persistence import FileError, inspect, load, save
from ntkit.tables import TableEncoder

SHAPE = (4, 3, 2)


class Sums(Declared):
    """A part of a model."""

    _state: ClassVar[dict[str, Any]] = {"gram": Floats("m", "m"), "count": Floats()}

    def __init__(self, gram: np.ndarray):
        self.gram, self.count = gram, np.array(3.0)


class Toy(Declared, TransformerMixin, BaseEstimator):
    """A small model: declared state, a part on request, a cache."""

    _state: ClassVar[dict[str, Any]] = {
        **COLUMNS,
        "features_": Estimator(("transform",)),
        "coef_": Floats("m", "k"),
        "classes_": Labels("k"),
        "_seed": Seed(),
        "_statistics": Optional(Part(Sums), on_request=True),
    }
    _transient: ClassVar[tuple[str, ...]] = ("_cache",)

    def __init__(self, features: Any = None, labels: Any = ("no", "yes"), random_state: Any = None):
        self.features, self.labels, self.random_state = features, labels, random_state

    def fit(self, X: Any, y: Any = None) -> Toy:
        self.n_features_in_ = X.shape[1]
        self._seed = np.random.SeedSequence(4)
        self.features_ = copy.deepcopy(self.features or NTKFeatures(n_components=8, random_state=0)).fit(X, y)
        Z = self.features_.transform(X)
        self.coef_, self.classes_ = np.asfortranarray(Z.T @ Z[:, :2]), np.array(self.labels)
        self._statistics, self._cache = Sums(Z.T @ Z), object()
        return self

    def transform(self, X: Any) -> Any:
        return self.features_.transform(X) @ self.coef_


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((40, 4))


def images() -> np.ndarray:
    return np.random.default_rng(0).random((20, *SHAPE))


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"width": rng.random(40), "colour": rng.choice(["red", "blue", "teal"], 40)})
    frame["shop"] = rng.choice(["A", "B", None], 40)
    frame.loc[3, "width"] = np.nan
    return frame


def raw_table() -> pd.DataFrame:
    """All kinds of columns."""
    frame = table()
    frame["day"] = pd.date_range("2024-01-01", periods=40, freq="31h")
    frame["when"] = frame["day"].dt.strftime("%d.%m.%Y %H:%M").where(frame.index != 5)
    frame["cost"] = [f"{i},25" for i in range(40)]
    return frame


def texts() -> list[str]:
    return ["the cat sat", "a dog ran far", "cat and dog", "the far side"] * 5


def encoded() -> ColumnTransformer:
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, ["width"]),
            ("text", OneHotEncoder(min_frequency=5, drop="if_binary"), ["colour", "shop"]),
        ]
    )


def ntk(seed: Any = 0) -> NTKFeatures:
    return NTKFeatures(n_components=16, random_state=seed)


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    **{name: (lambda case=case: copy.deepcopy(case.map), case.rows) for name, case in MAPS.items()},
    "images whole": (lambda: NetworkFeatures(nn.cntk(2), n_components=12, random_state=0), images),
    "standardized": (ImageStandardizer, images),
    "zca": (lambda: ZCAWhitening(per_image=False), images),
    "patches": (lambda: PatchWhitening(patch_size=3, n_components=5, contrast=1.0, random_state=0), images),
    "flips": (lambda: FlipAveraged(NetworkFeatures(nn.cntk(2), n_components=12, random_state=0)), images),
    "arcsinh": (ArcsinhScaler, rows),
    "piecewise": (PiecewiseLinearEncoder, rows),
    "table": (lambda: TableEncoder(max_categories=2), table),
    "seed sequence": (lambda: ntk(np.random.SeedSequence([1, 2], spawn_key=(3,))), rows),
    "generator": (lambda: ntk(np.random.default_rng(1)), rows),
    "toy": (Toy, rows),
    "toy pipeline": (lambda: make_pipeline(StandardScaler(), Toy(make_pipeline(MinMaxScaler(), ntk()))), rows),
    "columns": (encoded, table),
    "columns ntk": (lambda: make_pipeline(encoded(), ntk()), table),
    "ordinal": (lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), table),
    "union": (lambda: FeatureUnion([("a", PCA(2)), ("b", ntk())]), rows),
    "text": (lambda: make_pipeline(TfidfVectorizer(), TruncatedSVD(3, random_state=0), ntk()), texts),
    "counts": (lambda: CountVectorizer(ngram_range=(1, 2)), texts),
    "frozen": (lambda: make_pipeline(FrozenEstimator(StandardScaler().fit(rows(1))), ntk()), rows),
    "pandas": (lambda: StandardScaler().set_output(transform="pandas"), rows),
    **{
        type(step).__name__: (lambda step=step: copy.deepcopy(step), rows)
        for step in (
            RobustScaler(), Normalizer(), QuantileTransformer(n_quantiles=20), PowerTransformer(),
            PolynomialFeatures(2),
            KBinsDiscretizer(quantile_method="averaged_inverted_cdf"), SplineTransformer(), KernelPCA(2, kernel="rbf"),
            SelectKBest(k=2), VarianceThreshold(), SparseRandomProjection(3, random_state=0), KNNImputer(),
            RBFSampler(n_components=7, random_state=np.random.RandomState(0)), FunctionTransformer(np.tanh),
        )
    },
    "metric": (lambda: LearnedMetric(kernel="gaussian", max_rounds=1, random_state=0), rows),
    "adaptive": (lambda: AdaptiveFeatures(n_components=10, random_state=0), rows),
    "ridge": (lambda: FeatureRidge(ntk(), random_state=0), rows),
    "ridge of few rows": (lambda: FeatureRidge(NTKFeatures(n_components=200), random_state=0), rows),
    "ridge classes": (lambda: FeatureRidgeClassifier(make_pipeline(StandardScaler(), ntk()), random_state=0), rows),
    "ridge columns": (lambda: FeatureRidge(make_pipeline(encoded(), ntk()), random_state=0), table),
    "gram": (lambda: GramRidge(ntk(None), n_draws=2, random_state=0), rows),
    "gram classes": (
        lambda: GramRidgeClassifier(make_pipeline(StandardScaler(), ntk(None)), n_draws=2, random_state=0), rows
    ),
    "kernel": (lambda: KernelRidge(nn.fully_connected(2), random_state=0), rows),
    "kernel classes": (lambda: KernelRidgeClassifier("gaussian", solver="pcg", random_state=0), rows),
    "kernel images": (lambda: KernelRidge("cntk", kernel_params={"kernel_size": 3}), images),
    "search": (lambda: FeatureRidgeSearch(n_components=16, random_state=0), rows),
    "search classes": (lambda: FeatureRidgeSearchClassifier(n_components=16, random_state=0), rows),
    "clusters": (lambda: FeatureKMeans(ntk(), 2, random_state=0), rows),
    "table regression": (lambda: TableRegressor(FeatureRidge(ntk(), random_state=0)), raw_table),
    "table classes": (lambda: TableClassifier("ridge", n_components=16, random_state=0), raw_table),
}  # fmt: skip
"""(estimator, rows) by name."""
ALL = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is one of the estimators of ntkit for these tests."""
    monkeypatch.setitem(_walk.CLASSES, "Toy", __name__)
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules[Toy.__module__])
    _walk._class_of.cache_clear()


def fitted(name: str) -> tuple[Any, Any]:
    make, data = CASES[name]
    X = data()
    y = np.arange(len(X)) % 2
    return make().fit(X, y), X


def apply(model: Any, X: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = next(m for m in ("predict_proba", "predict", "transform") if hasattr(model, m))
        Z = getattr(model, method)(X)
    return np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z)


def through_file(model: Any, folder: Path, **options: Any) -> Any:
    save(model, folder / "file", **options)
    return load(folder / "file")


def undeclared(model: Any) -> set[str]:
    known = {*model.get_params(deep=False), *model._state, *model._remade, *model._transient}
    return set(vars(model)) - known - {"_sklearn_output_config"}


@ALL
def test_estimators_come_back(name: str, tmp_path: Path) -> None:
    """From files and pickles, twice, and unfitted."""
    model, X = fitted(name)
    Z = apply(model, X)
    again = through_file(model, tmp_path)
    for other in (again, through_file(again, tmp_path), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(other) is type(model)
        np.testing.assert_array_equal(apply(other, X), Z)
    if "toy" not in name and not hasattr(model, "predict"):  # whose statistics were not asked for
        assert vars(again).keys() == vars(model).keys() - {"_cache", "_alternatives"}
    assert str(inspect(tmp_path / "file")["model"]["class"]).endswith(type(model).__name__)
    fresh = CASES[name][0]()
    again = through_file(fresh, tmp_path)
    assert repr(again) == repr(fresh) or "random_state=" in repr(fresh)
    if name != "frozen":
        assert not hasattr(again, "n_features_in_") or isinstance(again, Pipeline)


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name][0](), Declared)])
def test_all_that_fit_sets_is_declared(name: str) -> None:
    """Otherwise a file would lack it."""
    model, _ = fitted(name)
    assert undeclared(model) == set()
    assert not set(model._transient) & set(model.__getstate__())


def test_every_declared_class_is_tested() -> None:
    names = [*ntkit.features.__all__, *ntkit.preprocessing.__all__, *ntkit.models.__all__, "TableEncoder"]
    classes = {
        _walk._class_of(f"ntkit.{name}") for name in names if isinstance(getattr(ntkit, name, TableEncoder), type)
    }
    assert classes <= {type(make()) for make, _ in CASES.values()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [name for name, case in MAPS.items() if case.sparse])
def test_maps_of_sparse_rows_come_back(name: str, dtype: Any, tmp_path: Path) -> None:
    X = csr_array(MAPS[name].rows().astype(dtype))
    model = copy.deepcopy(MAPS[name].map).fit(X)
    np.testing.assert_array_equal(apply(through_file(model, tmp_path), X), apply(model, X))


def test_statistics_are_written_on_request(tmp_path: Path) -> None:
    model, _ = fitted("toy")
    assert not hasattr(through_file(model, tmp_path), "_statistics")
    again = through_file(model, tmp_path, statistics=True)
    np.testing.assert_array_equal(again._statistics.gram, model._statistics.gram)
    assert not hasattr(again, "_cache")
    assert again.coef_.flags.f_contiguous
    assert again._seed.entropy == 4


@pytest.mark.parametrize("labels", [(0, 1), (0.5, np.inf), (False, True), ("a", "bcd"), np.array(["a", "b"], object)])
def test_labels_come_back(labels: Any, tmp_path: Path) -> None:
    model = Toy(labels=labels).fit(rows())
    again = through_file(model, tmp_path)
    np.testing.assert_array_equal(again.classes_, model.classes_)
    assert again.classes_.dtype == model.classes_.dtype


def test_a_frozen_estimator_stays_one_object(tmp_path: Path) -> None:
    frozen = FrozenEstimator(ntk().fit(rows()))
    model = Toy(frozen)
    model.fit(rows(), None)
    model.features_ = frozen
    again = through_file(model, tmp_path)
    assert again.features is again.features_


def test_names_of_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(rows(), columns=list("abcd"))
    again = through_file(ntk().fit(frame), tmp_path)
    assert again.feature_names_in_.tolist() == list("abcd")


def test_models_of_scikit_learn_come_back(tmp_path: Path) -> None:
    X, y = rows(), np.arange(40) % 3
    for last in (Ridge(), LogisticRegression()):
        model = make_pipeline(StandardScaler(), ntk(), last).fit(X, y)
        np.testing.assert_array_equal(through_file(model, tmp_path).predict(X), model.predict(X))


def test_inspect_describes_the_content_of_a_file(tmp_path: Path) -> None:
    model, _ = fitted("toy pipeline")
    save(model, tmp_path / "file")
    found = inspect(tmp_path / "file")
    assert found["versions"]["ntkit"] == ntkit.__version__
    scaler, toy = (step[1] for step in found["model"]["parameters"]["steps"])
    assert scaler["class"] == "sklearn.preprocessing.StandardScaler"
    assert scaler["state"]["mean_"] == "array F64 (4,)"
    assert toy["state"]["coef_"] == f"array F64 {model[1].coef_.shape[::-1]}"
    assert found["bytes"] >= model[1].coef_.nbytes


@pytest.mark.parametrize(
    ("model", "place"),
    [
        (make_pipeline(StandardScaler(), DecisionTreeRegressor()), r"model\['decision.*'\] is a sklearn.tree"),
        (NMF(2), "model is a sklearn.decomposition._nmf.NMF"),
        (make_pipeline(FunctionTransformer(lambda X: X)), r"model\['functiontransformer'\].func is <function"),
        (NystroemFeatures(lambda X, Y: X @ Y.T), "model.kernel is <function"),
        (Pipeline([("a", ntk())], memory="cache"), "memory="),
        (SelectKBest(k=-1), "'k' parameter"),
        (StandardScaler, "must be an estimator"),
        (Toy(labels=np.array(["2020"], dtype="M8[Y]")), "datetime64"),
    ],
)
def test_objects_that_cannot_be_saved_are_named(model: Any, place: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=place):
        save(model, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (ntk(), {"depth": 2}),
        (RandomFourierFeatures(n_components=8), {"kernel": "laplace"}),
        (PolynomialSketch(random_state=0), {"degree": 3}),
        (GegenbauerFeatures(n_components=16), {"depth": 3}),
        (GaussianFeatures(n_components=16), {"n_components": 17}),
    ],
)
def test_parameters_changed_since_fit_are_refused(model: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    model = copy.deepcopy(model).fit(rows()).set_params(**changes)
    with pytest.raises(ValueError, match=r"model cannot be saved: a .* has other parameters than when it was fitted"):
        save(model, tmp_path / "file")
    whitening = ZCAWhitening().fit(images()).set_params(per_image=False)
    with pytest.raises(ValueError, match="other parameters"):
        save(whitening, tmp_path / "file")


def edit(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], Any], **options: Any) -> Any:
    """Load a file with other content and a checksum that is right."""
    arrays, metadata = _files.read(path, kind="model")
    change(metadata, arrays)
    _files.write(path, arrays, metadata)
    return load(path, **options)


def at(metadata: dict[str, Any], *keys: Any) -> Any:
    node = metadata["model"]
    for key in keys:
        node = node[key]
    return node


def test_other_draws_are_noticed(tmp_path: Path) -> None:
    """As for draws of another version of NumPy."""
    save(ntk().fit(rows()), tmp_path / "file")
    with pytest.raises(FileError, match=r"features of NTKFeatures are not the features.*was written with ntkit 'old'"):
        edit(tmp_path / "file", lambda m, a: (a["model._fingerprint"].__imul__(2), m["versions"].update(ntkit="old")))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": 1, "ntkit": "0.1.0", "versions": None}, "written by ntkit '0.1.0' in format 1.*fit again"),
        ({"format": 3, "versions": {"ntkit": "9.0"}}, "written by ntkit '9.0' in format 3.*later version"),
        ({"format": "2"}, "invalid format version"),
        ({"kind": "checkpoint"}, "holds 'checkpoint'"),
    ],
)
def test_other_formats(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    save(ntk(), tmp_path / "file")
    arrays, metadata = _files.read(tmp_path / "file", kind="model")
    _files.write(tmp_path / "file", arrays, metadata | changes)
    for read in (load, inspect):
        with pytest.raises(FileError, match=text):
            read(tmp_path / "file")


def test_a_file_of_version_0_1() -> None:
    with pytest.raises(FileError, match=r"written by ntkit '0\.1.* in format 1.*fit again"):
        load(Path(__file__).parent / "golden" / "version_0_1" / "fourier.ntkit")


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [2**61], "data_offsets": [0, 8]},
        {"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F64", "shape": [1], "data_offsets": [0, 2**60]},
    ],
    ids=str,
)
def test_odd_tensors(tensor: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps({"kind": "model", "format": 2})
    header = json.dumps({"__metadata__": {"ntkit": text, "sha256": ""}, "a": tensor}).encode()
    (tmp_path / "file").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(FileError):
        load(tmp_path / "file")


HUGE: list[tuple[Any, dict[str, Any]]] = [
    (NTKFeatures(n_components=16), {"depth": 10**8}),
    (NTKFeatures(n_components=16), {"n_components": 10**12}),
    (NTKFeatures(n_components=16, method="random"), {"n_components": 2**20}),
    (NTKSketch(n_components=16), {"n_components": 10**10}),
    (NTKSketch(n_components=16), {"degree": 10**9}),
    (NTKRandomFeatures(n_components=16), {"n_components": 2**18}),
    (NTKRandomFeatures(n_components=16), {"gibbs_sweeps": 10**12}),
    (RandomFourierFeatures(n_components=16), {"n_components": 2**32}),  # 128 GiB of frequencies
    (OrthogonalFourierFeatures(n_components=16), {"n_components": 2**27}),
    (DotProductSketch(n_components=16), {"n_components": 10**11}),
    (MaclaurinFeatures(n_components=16), {"n_components": 2**30}),
    (PolynomialSketch(n_components=16), {"degree": 10**12}),
    (GegenbauerFeatures(n_components=16), {"degree": 10**7}),
    (GradientFeatures(width=3), {"width": 10**6}),
    (
        NystroemFeatures("polynomial", kernel_params={"degree": 2}),
        {"kernel_params": {"type": "dict", "items": [["degree", 10**9]]}},
    ),
]


@pytest.mark.parametrize(("model", "changes"), HUGE, ids=lambda value: str(value)[:60])
def test_huge_maps_are_refused(model: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    save(copy.deepcopy(model).set_params(random_state=0).fit(rows()), tmp_path / "file")
    tracemalloc.start()
    with pytest.raises(FileError):
        edit(tmp_path / "file", lambda m, a: at(m, "parameters").update(changes))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28


def test_huge_networks_are_refused(tmp_path: Path) -> None:
    """Branches that double the columns, filters of 10¹² pixels, many layers, images of many pixels."""
    same = nn.Residual(nn.Sequential(), nn.Sequential())
    nets = [
        nn.Sequential(nn.Dense(), *[same] * 60),
        nn.Sequential(*[nn.Dense()] * 10_001),
        nn.Sequential(nn.Conv(10**6), nn.ReLU(), nn.GlobalAvgPool()),
    ]
    for net in nets:
        save(NetworkFeatures(net), tmp_path / "net")
        value = at(_files.read(tmp_path / "net", kind="model")[1], "parameters", "net")
        save(NetworkFeatures(nn.cntk(2), n_components=8, random_state=0).fit(images()), tmp_path / "file")
        with pytest.raises(FileError):
            edit(tmp_path / "file", lambda m, a, value=value: at(m, "parameters").update(net=value))
    save(NetworkFeatures(nn.cntk(2), n_components=8, random_state=0).fit(images()), tmp_path / "file")
    with pytest.raises(FileError, match="too much memory"):
        edit(
            tmp_path / "file",
            lambda m, a: at(m, "state").update(n_features_in_=2 * 10**8, image_shape_=[10**4, 10**4, 2]),
        )


@pytest.mark.parametrize(
    "name", [name for name, case in MAPS.items() if "Nystroem" not in name and "groups" not in name]
)
@pytest.mark.parametrize(("size", "n_columns"), [(256, 100), (2048, 6)])
def test_draws_stay_within_the_planned_memory(name: str, size: int, n_columns: int) -> None:
    case = MAPS[name]
    X = np.random.default_rng(0).standard_normal((30, n_columns)) if case.layout == "rows" else case.rows()
    model = case.map.resized(size, random_state=0).fit(X)
    tracemalloc.start()
    model._draw(model._planned, model._seed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < model._draw_bytes(model._planned) + 2**16


def test_draws_may_take_more_if_asked_for(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((5, 100))
    save(RandomFourierFeatures(n_components=4096, random_state=0).fit(X), tmp_path / "file")
    with pytest.raises(FileError, match="Raise memory_limit"):
        load(tmp_path / "file", memory_limit=2**20)
    load(tmp_path / "file", memory_limit=2**24)


@pytest.mark.parametrize("n_columns", [10**7, 10**9])
@pytest.mark.parametrize("name", ["GegenbauerFeatures", "GegenbauerFeatures groups"])
def test_rows_of_too_many_columns(name: str, n_columns: int, tmp_path: Path) -> None:
    """Refused before anything is planned for them."""
    save(fitted(name)[0], tmp_path / "file")
    with pytest.raises(FileError, match=r"too much memory or time: Rows of 10+ columns"):
        edit(tmp_path / "file", lambda m, a: at(m, "state").update(n_features_in_=n_columns), memory_limit=2**28)


def test_landmarks_and_layers_that_would_take_long(tmp_path: Path) -> None:
    """The memory limit would allow them."""
    save(NystroemFeatures("gaussian", n_components=8, random_state=0).fit(rows()), tmp_path / "file")
    many = {"model.landmarks_": np.zeros((8192, 4)), "model.landmark_indices_": np.arange(8192)}
    with pytest.raises(FileError, match=r"too much memory or time: .*landmarks and its eigenvectors .* worth of time"):
        edit(tmp_path / "file", lambda m, a: a.update(many))
    save(NTKSketch(n_components=16, random_state=0).fit(rows()), tmp_path / "file")
    with pytest.raises(FileError, match=r"too much memory or time: .* network would take"):
        edit(tmp_path / "file", lambda m, a: at(m, "parameters").update(depth=4000), memory_limit=2**28)


@pytest.mark.parametrize(
    "changes", [{"depth": 10**9}, {"kernel_params": {"type": "dict", "items": [["depth", 10**9]]}}]
)
def test_kernels_of_many_layers(changes: dict[str, Any], tmp_path: Path) -> None:
    """Refused before the network is made."""
    save(KernelRidge("ntk", alphas=1.0).fit(rows(), np.arange(40.0)), tmp_path / "file")
    with pytest.raises(FileError, match="depth must be at most 4096, not 1000000000"):
        edit(tmp_path / "file", lambda m, a: at(m, "parameters").update(changes))


def test_filters_that_would_take_long(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.Flatten(), nn.Dense())
    save(KernelRidge(net, alphas=1.0).fit(images(), np.arange(20.0)), tmp_path / "file")
    value = {"type": "layer", "class": "Conv", "fields": {"kernel_size": 10**5}}
    with pytest.raises(FileError, match="too much memory or time: A filter of 100000 × 100000 pixels"):
        edit(
            tmp_path / "file",
            lambda m, a: at(m, "parameters", "kernel", "fields", "layers", "items").__setitem__(0, value),
        )


def test_no_file_starts_thousands_of_processes(tmp_path: Path) -> None:
    save(encoded(), tmp_path / "file")
    again = edit(tmp_path / "file", lambda m, a: at(m, "parameters").update(n_jobs=10**6))
    assert again.n_jobs == -1
    assert edit(tmp_path / "file", lambda m, a: at(m, "parameters").update(n_jobs=1)).n_jobs == 1


def test_labels_that_would_take_much_memory(tmp_path: Path) -> None:
    save(Toy().fit(rows()), tmp_path / "file")
    labels = {"type": "objects", "dtype": "<U4096", "shape": [100_000], "items": ["a"] * 100_000}
    with pytest.raises(FileError, match="too much memory"):
        edit(tmp_path / "file", lambda m, a: at(m, "state").update(classes_=labels), memory_limit=2**30)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        {"type": "estimator", "class": "os.system", "parameters": {}, "output": None, "state": {}},
        {
            "type": "estimator",
            "class": "sklearn.tree.DecisionTreeRegressor",
            "parameters": {},
            "output": None,
            "state": {},
        },
        {"type": "estimator", "class": "sklearn.decomposition.NMF", "parameters": {}, "output": None, "state": {}},
        {"type": "estimator", "class": "sklearn.preprocessing.scale", "parameters": {}, "output": None, "state": {}},
        {"type": "estimator", "class": "ntkit.load", "parameters": {}, "output": None, "state": None},
        {"type": "estimator", "class": ["ntkit"], "parameters": {}, "output": None, "state": None},
        {"type": "function", "name": "system"},
        {"type": "function", "name": "eval"},
        {"type": "layer", "class": "fold", "fields": {}},
        {"type": "part", "class": "Sums", "state": {}},
        {"type": "dtype", "name": "type", "scalar": True},
        {"type": "dtype", "name": "V1000000", "scalar": False},
        {"type": "same", "index": 0},
        {"type": "encode"},
        {"type": ["tuple"]},
        nested(150),
    ],
    ids=str,
)
def test_values_that_no_file_may_have(value: Any, tmp_path: Path) -> None:
    save(Toy().fit(rows()), tmp_path / "file")
    for key in ("parameters", "state"):
        with pytest.raises(FileError):
            edit(tmp_path / "file", lambda m, a, key=key: at(m, key).update(features=value, features_=value))


def test_attributes_that_would_hide_methods(tmp_path: Path) -> None:
    for name in ("transform", "__class__", "copy", "a b"):
        save(StandardScaler().fit(rows()), tmp_path / "file")
        with pytest.raises(FileError, match="unknown attribute"):
            edit(tmp_path / "file", lambda m, a, name=name: at(m, "state").update({name: 1}))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(_n_features_outs=[1, 1]),
        lambda s: s["_n_features_outs"].__setitem__(0, 10),
        lambda s: s.update(
            _drop_idx_after_grouping={"type": "objects", "dtype": "|O", "shape": [2], "items": [-1, -1]}
        ),
        lambda s: s.pop("_n_features_outs"),
    ],
)
def test_columns_of_an_encoder_are_checked(change: Any, tmp_path: Path) -> None:
    """They are indices of a sparse matrix, which SciPy's compiled code follows."""
    save(OneHotEncoder().fit(table()[["colour", "shop"]]), tmp_path / "file")
    with pytest.raises(FileError):
        edit(tmp_path / "file", lambda m, a: change(at(m, "state")))
    save(CountVectorizer().fit(texts()), tmp_path / "file")
    with pytest.raises(FileError, match="vocabulary_"):
        edit(tmp_path / "file", lambda m, a: at(m, "state", "vocabulary_", "items")[0].__setitem__(1, 10**9))


def test_indices_of_sparse_arrays_are_checked(tmp_path: Path) -> None:
    save(SparseRandomProjection(3, random_state=0).fit(rows()), tmp_path / "file")
    with pytest.raises(FileError, match=r"column index|indices"):
        edit(tmp_path / "file", lambda m, a: a[next(k for k in a if k.endswith("indices"))].__iadd__(1000))
