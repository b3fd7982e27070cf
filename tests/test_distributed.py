"""Dask: the blocks that rows come in must not matter, nor may workers that die."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import uuid
import warnings
from collections import Counter
from copy import deepcopy
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import IncrementalPCA
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, RobustScaler, StandardScaler
from tests.tiers import ALL, sampled, thorough
from threadpoolctl import threadpool_limits

from ntkit import (
    CNTKSketch,
    FeatureRidge,
    FeatureRidgeClassifier,
    FlipAveraged,
    GradientFeatures,
    ImageStandardizer,
    KernelRidge,
    NetworkFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    PolynomialSketch,
    RandomFourierFeatures,
    distributed,
    networks,
)
from ntkit.kernels import KernelSpec, gaussian
from ntkit.models._statistics import Statistics
from ntkit.models._targets import ClassTargets

pytest.importorskip("distributed", reason="needs Dask")
pytest.importorskip("pandas", reason="needs pandas")

import dask
import dask.array as da
import dask.dataframe as dd
import pandas as pd
from tests.clusters import local_cluster

# A worker that is killed leaves sockets for the garbage collector: no business of ours.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

N = 300
CHUNKS = {
    "all rows": (N,),
    "one row": (1,) * N,
    "even": (100, 100, 100),
    "uneven": (7, 1, 192, 60, 40),
    "empty": (0, 120, 0, 0, 150, 30, 0),
    "many": (10,) * 30,
}


def of_chunks(few, many):
    """Parametrize by chunks of these names; `many` under `make test-all`."""
    names = many if ALL else few
    return pytest.mark.parametrize("chunks", [CHUNKS[name] for name in names], ids=names)


CHUNKINGS = of_chunks(["uneven", "empty"], list(CHUNKS))
SOME_CHUNKINGS = of_chunks(["empty"], ["uneven", "empty"])
NAMES = ["a", "b", "c", "d", "e"]
MAPS = [
    NTKFeatures(n_components=16, random_state=0),
    NTKPolynomialSketch(n_components=16, degree=4, random_state=0),
    NTKRandomFeatures(n_components=16, random_state=0),
    NTKSketch(n_components=16, degree=3, derivative_degree=3, random_state=0),
    PolynomialSketch(n_components=16, random_state=0),
    GradientFeatures(width=4, random_state=0),
    RandomFourierFeatures(n_components=16, lengthscale=2.0, random_state=0),
]
OF_MAPS = pytest.mark.parametrize("features", sampled(MAPS, 2), ids=lambda m: type(m).__name__)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def synchronous():
    """No cluster unless a test asks for it."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Tasks of few rows, so that few rows make a tree of tasks."""
    monkeypatch.setattr(distributed, "_FEWEST_ROWS", 20)


@pytest.fixture(scope="module")
def client():
    """Two workers, used only by the tests that request them: threads, or processes under `make test-all`."""
    by_value()
    with local_cluster(2, processes=ALL) as client:
        yield client


@pytest.fixture
def on_cluster(client, synchronous):  # noqa: ARG001
    with dask.config.set(scheduler=client):
        yield


def by_value():
    """Send the classes of this module whole: workers cannot import it."""
    import cloudpickle

    module = sys.modules[__name__]
    if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)


@pytest.fixture
def X(rng):
    """Columns with different scales and means."""
    return rng.standard_normal((N, 5)) * [1.0, 2.0, 0.5, 10.0, 1.0] + [0.0, 5.0, 0.0, -20.0, 1.0]


@pytest.fixture
def y(X, rng):
    return np.sin(X[:, 0]) + X[:, 1] * X[:, 2] / 5 + 0.1 * rng.standard_normal(N)


@pytest.fixture
def weight(rng):
    weight = rng.uniform(0.5, 2.0, N)
    weight[rng.permutation(N)[:30]] = 0.0
    return weight


def scaled_map(n_components=16):
    return make_pipeline(StandardScaler(), NTKFeatures(n_components=n_components, bias="auto", random_state=0))


def ridge(features=None, alphas=1.0, **parameters):
    """A model with an α far above rounding: λ_max/α < 1e4 here, so float64 sums in another order move it by 1e-11."""
    return FeatureRidge(scaled_map() if features is None else features, alphas=alphas, random_state=0, **parameters)


def classifier(features=None, alphas=1.0, **parameters):
    return FeatureRidgeClassifier(
        scaled_map() if features is None else features, alphas=alphas, random_state=0, **parameters
    )


def in_chunks(values, chunks):
    return da.from_array(values, chunks=(tuple(chunks), *((n,) for n in values.shape[1:])))


def without_sizes(values):
    """The same array, with chunk sizes unknown to Dask."""
    chunks = (tuple([np.nan] * len(values.chunks[0])), *values.chunks[1:])
    return da.Array(values.dask, values.name, chunks, meta=values._meta)


def frame(X, **columns):
    return pd.DataFrame(X, columns=NAMES).assign(**columns)


def assert_same(model, local, rtol=1e-8):
    """Equal weights, relative to the largest."""
    for name in ("coef_", "intercept_"):
        a, b = getattr(model, name), getattr(local, name)
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(local.coef_).max(), np.abs(b).max()))
    assert model.n_samples_seen_ == local.n_samples_seen_
    assert model.n_features_in_ == local.n_features_in_


# Fits equal fits without Dask.


@CHUNKINGS
@pytest.mark.parametrize("n_components", [16, 400], ids=["sums", "rows kept"])
def test_any_chunks_give_the_local_fit(chunks, n_components, X, y):
    features = scaled_map(n_components)
    local = ridge(features).fit(X, y)
    model = ridge(features).fit(in_chunks(X, chunks), in_chunks(y, chunks))
    assert_same(model, local)
    np.testing.assert_allclose(model.predict(X), local.predict(X), rtol=1e-8)
    assert isinstance(model.predict(X), np.ndarray)
    assert isinstance(model.coef_, np.ndarray)


def test_the_check_of_equal_models_rejects_small_faults(X, y):
    local = ridge().fit(X, y)
    for rows in (slice(1, None), slice(0, N - 1)):
        with pytest.raises(AssertionError):
            assert_same(ridge().fit(X[rows], y[rows]), local)
    other = y.copy()
    other[3] *= 1 + 1e-4
    with pytest.raises(AssertionError):
        assert_same(ridge().fit(X, other), local)


@CHUNKINGS
@pytest.mark.parametrize("selection", ["loo", "holdout"])
def test_the_same_alpha_is_chosen_for_any_chunks(chunks, selection, X, y):
    """Leave-one-out rows are drawn by their index, which follows from known sizes; so the errors are equal up to
    rounding.
    """
    parameters = {"alphas": None, "selection": selection, "n_selection": 50}
    local = ridge(**parameters).fit(X, y)
    model = ridge(**parameters).fit(in_chunks(X, chunks), y)
    assert model.alpha_ == pytest.approx(local.alpha_)
    np.testing.assert_allclose(model.errors_, local.errors_, rtol=1e-6)
    assert_same(model, local, 1e-6)
    assert model.noise_variance_ == pytest.approx(local.noise_variance_)


def test_chunks_of_unknown_size(X, y, weight):
    Xd, yd, wd = (without_sizes(in_chunks(a, CHUNKS["empty"])) for a in (X, y, weight))
    assert np.isnan(Xd.shape[0])
    assert_same(ridge().fit(Xd, yd), ridge().fit(X, y))
    assert_same(ridge().fit(Xd, yd, wd), ridge().fit(X, y, weight))
    known = ridge().fit(in_chunks(X, CHUNKS["empty"]), yd, wd)
    assert_same(known, ridge().fit(X, y, weight))
    assert_same(ridge().fit(Xd, in_chunks(y, CHUNKS["empty"])), ridge().fit(X, y))
    chosen = ridge(alphas=None, n_selection=100).fit(Xd, yd)  # the sample depends on the blocks, but is one
    assert np.isfinite(chosen.errors_).any()
    assert chosen._statistics.sample.Z.shape[0] == 100
    assert len(np.unique(chosen._statistics.sample.keys)) == 100


def test_rows_selected_by_a_mask(X, y):
    Xd, yd = in_chunks(X, CHUNKS["even"]), in_chunks(y, CHUNKS["even"])
    kept = Xd[:, 0] > 0
    assert_same(ridge().fit(Xd[kept], yd[kept]), ridge().fit(X[X[:, 0] > 0], y[X[:, 0] > 0]))


@pytest.mark.parametrize("kind", ["dask", "other chunks", "numpy", "list", "series", "dask series"])
def test_kinds_of_targets_and_weights(kind, X, y, weight):
    def convert(values):
        if kind == "dask":
            return in_chunks(values, CHUNKS["uneven"])
        if kind == "other chunks":
            return in_chunks(values, (299, 1))
        if kind == "list":
            return values.tolist()
        if kind == "series":
            return pd.Series(values, index=np.arange(N)[::-1])  # rows go by their place
        if kind == "dask series":
            return dd.from_dask_array(in_chunks(values, CHUNKS["uneven"]))
        return values

    Xd = in_chunks(X, CHUNKS["uneven"])
    assert_same(ridge().fit(Xd, convert(y)), ridge().fit(X, y))
    assert_same(ridge().fit(Xd, convert(y), convert(weight)), ridge().fit(X, y, weight))
    assert_same(ridge().fit(Xd, convert(y), sample_weight=weight), ridge().fit(X, y, weight))
    assert_same(classifier().fit(Xd, convert(np.sign(y)), convert(weight)), classifier().fit(X, np.sign(y), weight))


def test_weights_count_like_repeated_rows(X, y, rng):
    times = rng.integers(0, 4, N)
    model = ridge(NTKFeatures(n_components=16, random_state=0)).fit(in_chunks(X, CHUNKS["uneven"]), y, times)
    again = clone(model).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(model.coef_, again.coef_, atol=1e-8 * np.abs(again.coef_).max())


@pytest.mark.parametrize(
    ("known", "n_targets", "chunks"), sampled(list(product([True, False], [1, 2], [(100, 200), (0, 100, 200)])), 2)
)
def test_several_targets(chunks, n_targets, known, X, y):
    Y = np.stack([y, X[:, 1]], axis=1)[:, :n_targets]
    Xd, Yd = in_chunks(X, chunks), in_chunks(Y, chunks)
    if not known:
        Xd, Yd = without_sizes(Xd), without_sizes(Yd)
    local = ridge().fit(X, Y)
    model = ridge().fit(Xd, Yd)
    assert model.coef_.shape == (n_targets, 16)
    assert_same(model, local)
    assert model.predict(X).shape == (N, n_targets)
    assert model.predict(in_chunks(X, chunks)).compute().shape == (N, n_targets)


@OF_MAPS
def test_single_precision(features, X, y):
    """Features are the same; sums over a block carry errors of 6e-8 √rows, times λ_max/α in the weights."""
    X = StandardScaler().fit_transform(X).astype(np.float32)
    Z = clone(features).fit_transform(X).astype(np.float64)
    top = np.linalg.eigvalsh(np.cov(Z.T) * N)[-1]
    local = ridge(features, 0.01 * top).fit(X, y)
    model = ridge(features, 0.01 * top).fit(in_chunks(X, CHUNKS["uneven"]), y)
    assert_same(model, local, rtol=100 * 6e-8 * N**0.5)
    assert model.predict(in_chunks(X, CHUNKS["uneven"])).compute().dtype == np.float32
    assert model._statistics.gram.dtype == np.float64


def test_default_features(X, y):
    local = FeatureRidge(alphas=1.0, random_state=3).fit(X, y)
    model = FeatureRidge(alphas=1.0, random_state=3).fit(in_chunks(X, CHUNKS["even"]), y)
    assert isinstance(model.features_, Pipeline)
    assert_same(model, local)


def test_fits_without_intercept(X, y):
    local = ridge(fit_intercept=False).fit(X, y)
    model = ridge(fit_intercept=False).fit(in_chunks(X, CHUNKS["uneven"]), y)
    assert model.intercept_ == local.intercept_ == 0
    assert_same(model, local)


def test_batches_within_blocks(X, y, weight):
    local = ridge().fit(X, y, weight)
    for batch_size in (1, 7, 1000):
        assert_same(ridge(batch_size=batch_size).fit(in_chunks(X, CHUNKS["uneven"]), y, weight), local)


def test_many_rows_per_task(monkeypatch, rng):
    """Sums rather than rows in every task, and samples that overlap."""
    monkeypatch.setattr(distributed, "_FEWEST_ROWS", 3000)
    X = rng.standard_normal((40000, 3))
    y = np.abs(X[:, 0]) + X[:, 1]
    features = NTKFeatures(n_components=16, random_state=0)
    local = ridge(features, None).fit(X, y)
    model = ridge(features, None).fit(da.from_array(X, chunks=(1700, 3)), y)
    assert model.alpha_ == pytest.approx(local.alpha_)
    np.testing.assert_array_equal(model._statistics.sample.keys, local._statistics.sample.keys)
    np.testing.assert_array_equal(model._statistics.sample.Z, local._statistics.sample.Z)
    assert_same(model, local, 1e-7)


def test_sparse_blocks(X, y):
    X = X * (np.abs(X) > 1)
    blocks = in_chunks(X, CHUNKS["uneven"]).map_blocks(sp.csr_array)
    features = NTKFeatures(n_components=16, random_state=0).fit(sp.csr_array(X))
    np.testing.assert_allclose(features.transform(blocks).compute(), features.transform(sp.csr_array(X)), atol=1e-12)
    assert_same(ridge(features).fit(blocks, y), ridge(features).fit(sp.csr_array(X), y))


def test_threads(X, y):
    """Dask's default scheduler."""
    with dask.config.set(scheduler="threads", num_workers=4):
        for rows in (X, X.astype(np.float32)):
            features = make_pipeline(
                StandardScaler(), RandomFourierFeatures(n_components=64, lengthscale=2.0, random_state=0)
            )
            local = ridge(features, 30.0).fit(rows, y)
            model = ridge(features, 30.0).fit(in_chunks(rows, CHUNKS["many"]), y)
            assert_same(model, local, 1e-8 if rows.dtype == np.float64 else 1e-4)
            Z = model.features_.named_steps["randomfourierfeatures"].transform(in_chunks(rows, CHUNKS["many"]))
            np.testing.assert_allclose(Z.compute(), model.features_[1].transform(rows), atol=1e-5)


# Classes.


@SOME_CHUNKINGS
def test_classes(chunks, X):
    labels = np.digitize(X[:, 0], [-1, 0, 1])
    local = classifier(alphas=None).fit(X, labels)
    model = classifier(alphas=None).fit(in_chunks(X, chunks), in_chunks(labels, chunks))
    np.testing.assert_array_equal(model.classes_, [0, 1, 2, 3])
    assert model.classes_.dtype == labels.dtype
    assert model.alpha_ == pytest.approx(local.alpha_)
    assert model.temperature_ == pytest.approx(local.temperature_, rel=1e-4)
    assert_same(model, local)
    np.testing.assert_allclose(model.predict_proba(X), local.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("known", [True, False])
def test_labels_that_are_in_some_chunks_only(known, X):
    """Every chunk has its own labels, of another length and in another order; one chunk is empty."""
    order = np.argsort(X[:, 0])[::-1]
    X = X[order]
    labels = np.repeat(["zebra", "ox", "a", "hippopotamus"], [80, 90, 100, 30])
    chunks = (80, 0, 45, 45, 100, 30)
    Xd, yd = in_chunks(X, chunks), in_chunks(labels, chunks).map_blocks(shortest_dtype, dtype=labels.dtype)
    if not known:
        Xd, yd = without_sizes(Xd), without_sizes(yd)
    local = classifier().fit(X, labels)
    model = classifier().fit(Xd, yd)
    np.testing.assert_array_equal(model.classes_, ["a", "hippopotamus", "ox", "zebra"])
    assert model.classes_.dtype == local.classes_.dtype
    assert_same(model, local)
    np.testing.assert_array_equal(model.predict(X), local.predict(X))
    np.testing.assert_array_equal(model.predict(in_chunks(X, chunks)).compute(), local.predict(X))


def shortest_dtype(block):
    return np.array(block.tolist(), dtype=str) if len(block) else block


@pytest.mark.parametrize("kind", ["bool", "string", "category"])
def test_labels_of_data_frames(kind, X):
    labels = pd.Series(np.where(X[:, 0] > 0, "yes", "no"))
    labels = labels == "yes" if kind == "bool" else labels.astype({"string": str, "category": "category"}[kind])
    table = frame(X, target=labels)
    local = classifier().fit(table[NAMES], table["target"])
    blocks = dd.from_pandas(table, npartitions=4)
    model = classifier().fit(blocks[NAMES], blocks["target"])
    np.testing.assert_array_equal(model.classes_, local.classes_)
    assert_same(model, local)
    np.testing.assert_array_equal(model.predict(blocks[NAMES]).compute(), local.predict(table[NAMES]))


def test_one_class_only(X):
    with pytest.raises(ValueError, match="FeatureRidgeClassifier needs rows of at least two classes"):
        classifier().fit(in_chunks(X, (150, 150)), np.ones(N, dtype=int))


# Data frames.


@pytest.mark.parametrize("n_partitions", [1, 3, 30])
def test_data_frames(n_partitions, X, y, weight):
    table = frame(X, target=y, second=2 * y, weight=weight)
    blocks = dd.from_pandas(table, npartitions=n_partitions)
    local = ridge().fit(table[NAMES], y, weight)
    model = ridge().fit(blocks[NAMES], blocks["target"], blocks["weight"])
    assert_same(model, local)
    np.testing.assert_array_equal(model.feature_names_in_, NAMES)
    several = ridge().fit(blocks[NAMES], blocks[["target", "second"]])
    assert_same(several, ridge().fit(table[NAMES], table[["target", "second"]]))
    predicted = model.predict(blocks[NAMES])
    assert isinstance(predicted, da.Array)
    assert predicted.npartitions == blocks.npartitions
    np.testing.assert_allclose(predicted.compute(), local.predict(table[NAMES]), rtol=1e-8)
    np.testing.assert_allclose(several.predict(blocks[NAMES]).compute()[:, 1], several.predict(table[NAMES])[:, 1])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(blocks[NAMES[::-1]]).compute()


def test_empty_partitions(X, y):
    table = frame(X, target=y, part=np.repeat(range(6), 50))
    kept = table[table["part"] % 2 == 1]
    blocks = dd.from_pandas(table, npartitions=6)
    blocks = blocks[blocks["part"] % 2 == 1]
    assert 0 in blocks.map_partitions(len).compute().tolist()
    model = ridge().fit(blocks[NAMES], blocks["target"])
    assert_same(model, ridge().fit(kept[NAMES], kept["target"]))
    np.testing.assert_allclose(model.predict(blocks[NAMES]).compute(), model.predict(kept[NAMES]))
    features = clone(MAPS[0]).fit(table[NAMES])
    np.testing.assert_array_equal(features.transform(blocks[NAMES]).compute(), features.transform(kept[NAMES]))


def test_numbers_of_several_types(X, y):
    """Features of float32 columns are float32, of mixed and whole ones float64, as in memory."""
    table = frame(X).astype({"a": np.float32, "b": np.int64})
    single = frame(X).astype(np.float32)
    for rows in (table, single, single.astype(np.int32)):
        features = clone(MAPS[0]).fit(rows)
        blocks = dd.from_pandas(rows, npartitions=3)
        Z = features.transform(blocks)
        np.testing.assert_array_equal(Z.compute(), features.transform(rows))
        assert Z.dtype == Z.compute().dtype == features.transform(rows).dtype
        model = ridge().fit(rows, y)
        assert model.predict(blocks).dtype == model.predict(blocks).compute().dtype


# Steps that look at the data.


@pytest.mark.parametrize("options", [{}, {"with_mean": False}, {"with_std": False}], ids=str)
@pytest.mark.parametrize("dtype", sampled([np.float64, np.float32], 1))
@SOME_CHUNKINGS
def test_scalers_are_fitted_on_all_rows(options, dtype, chunks, X, y):
    X = X.astype(dtype)
    X[:, 2] = 3.0
    features = make_pipeline(StandardScaler(**options), NTKFeatures(n_components=16, random_state=0))
    scaler = ridge(features).fit(in_chunks(X, chunks), y).features_[0]
    expected = StandardScaler(**options).fit(X)
    assert scaler.n_samples_seen_ == expected.n_samples_seen_ == N
    for name in ("mean_", "var_", "scale_"):
        a, b = getattr(scaler, name), getattr(expected, name)
        if b is None:
            assert a is None
        else:
            np.testing.assert_allclose(a, b, rtol=1e-12 if dtype == np.float64 else 1e-6)


def test_scalers_of_odd_columns(y, rng):
    """Constant columns of any size are unchanged, and tiny columns are not treated as constant."""
    X = rng.standard_normal((N, 5))
    X[:, 0] = 1e9 + 0.1
    X[:, 1] *= 1e-20
    X[:, 2] = 1e6 + 1e-3 * X[:, 2]
    X[:, 3] = 0.0
    expected = StandardScaler().fit(X)
    for chunks in CHUNKS.values() if ALL else [CHUNKS["empty"]]:
        scaler = ridge().fit(in_chunks(X, chunks), y).features_[0]
        np.testing.assert_allclose(scaler.scale_, expected.scale_, rtol=1e-5)
        np.testing.assert_allclose(scaler.transform(X), expected.transform(X), atol=1e-5)
        assert scaler.scale_[0] == scaler.scale_[3] == 1


def test_scalers_keep_names_and_chains(X, y):
    table = frame(X)
    features = make_pipeline(StandardScaler(with_std=False), "passthrough", StandardScaler(), clone(MAPS[0]))
    local = ridge(features).fit(table, y)
    blocks = dd.from_pandas(table.assign(y=y), npartitions=7)
    model = ridge(features).fit(blocks[NAMES], blocks["y"])
    assert_same(model, local)
    np.testing.assert_array_equal(model.features_[0].feature_names_in_, NAMES)
    np.testing.assert_allclose(model.features_[2].mean_, 0, atol=1e-12)
    np.testing.assert_allclose(model.features_[2].scale_, X.std(axis=0))


def test_pipelines_within_pipelines(X, y):
    features = make_pipeline(make_pipeline(StandardScaler(), "passthrough"), clone(MAPS[0]))
    model = ridge(features).fit(in_chunks(X, CHUNKS["uneven"]), y)
    assert model.features_[0][0].n_samples_seen_ == N
    assert_same(model, ridge(features).fit(X, y))


@pytest.mark.parametrize("step", [MinMaxScaler(), IncrementalPCA(n_components=3)])
def test_steps_that_would_need_all_rows(step, X, y):
    name = type(step).__name__
    with pytest.raises(TypeError, match=rf"{name} cannot be fitted on a Dask collection.*FrozenEstimator"):
        ridge(make_pipeline(step, clone(MAPS[0]))).fit(in_chunks(X, (100, 200)), y)


def test_steps_fitted_on_the_first_block(X, y):
    with pytest.warns(UserWarning, match=r"RobustScaler was fitted on the first block.*FrozenEstimator"):
        model = ridge(make_pipeline(RobustScaler(), clone(MAPS[0]))).fit(in_chunks(X, (100, 200)), y)
    np.testing.assert_allclose(model.features_[0].center_, np.median(X[:100], axis=0))
    stateless = make_pipeline(FunctionTransformer(np.arctan), clone(MAPS[0]))
    assert_same(ridge(stateless).fit(in_chunks(X, (100, 200)), y), ridge(stateless).fit(X, y))


@pytest.mark.parametrize("step", [StandardScaler(), MinMaxScaler(), RobustScaler()], ids=lambda s: type(s).__name__)
def test_frozen_steps_stay_unchanged(step, X, y):
    step.fit(X * 3 + 1)
    before = deepcopy(step.__dict__)
    features = make_pipeline(FrozenEstimator(step), clone(MAPS[0]))
    local = ridge(features).fit(X, y)
    assert_same(ridge(features).fit(in_chunks(X, CHUNKS["uneven"]), y), local)
    assert_same(ridge(features).fit([(X[:100], y[:100]), (X[100:], y[100:])]), local)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(step, name), value)


# Maps and predictions are lazy.


@OF_MAPS
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_transform_is_lazy_and_keeps_the_chunks(features, dtype, X):
    X = X.astype(dtype)
    calls = []
    rows = in_chunks(X, CHUNKS["empty"]).map_blocks(lambda block: calls.append(len(block)) or block, meta=X[:0])
    fitted = clone(features).fit(X)
    Z = fitted.transform(rows)
    assert isinstance(Z, da.Array)
    assert not calls
    expected = fitted.transform(X)
    assert Z.chunks == (CHUNKS["empty"], (expected.shape[1],))
    assert Z.dtype == Z._meta.dtype == expected.dtype == (np.float32 if dtype == np.float32 else np.float64)
    assert type(Z._meta) is np.ndarray
    computed = Z.compute()
    assert computed.dtype == Z.dtype
    np.testing.assert_allclose(computed, expected, rtol=0, atol=1e-12 if dtype != np.float32 else 1e-5)
    assert Z[150:160].compute().shape == (10, expected.shape[1])
    np.testing.assert_allclose(Z.sum(axis=0).compute(), expected.sum(axis=0), rtol=1e-3)


@OF_MAPS
def test_maps_are_fitted_on_dask_collections(features, X):
    expected = clone(features).fit_transform(X)
    fitted = clone(features).fit(in_chunks(X, CHUNKS["empty"]))
    np.testing.assert_array_equal(fitted.transform(X), expected)
    np.testing.assert_allclose(clone(features).fit_transform(in_chunks(X, (100, 200))).compute(), expected, atol=1e-12)
    named = clone(features).fit(dd.from_pandas(frame(X), npartitions=3))
    np.testing.assert_array_equal(named.feature_names_in_, NAMES)
    Z = named.transform(dd.from_pandas(frame(X), npartitions=3))
    assert Z.ndim == 2
    assert Z.shape[1] == expected.shape[1]
    np.testing.assert_allclose(Z.compute(), expected, atol=1e-12)


@pytest.mark.parametrize(("dtype", "n_targets"), sampled(list(product([np.float64, np.float32], [None, 1, 2])), 3))
def test_predictions_are_lazy(dtype, n_targets, X, y):
    X = X.astype(dtype)
    Y = y if n_targets is None else np.stack([y, X[:, 1]], axis=1)[:, :n_targets]
    model = ridge().fit(X, Y)
    calls = []
    rows = in_chunks(X, CHUNKS["empty"]).map_blocks(lambda block: calls.append(len(block)) or block, meta=X[:0])
    results = model.predict(rows), *model.predict(rows, return_std=True)
    assert not calls
    mean, std = model.predict(X, return_std=True)
    for result, expected in zip(results, (mean, mean, std), strict=True):
        assert isinstance(result, da.Array)
        assert result.chunks == (CHUNKS["empty"], *((k,) for k in expected.shape[1:]))
        assert result.dtype == result.compute().dtype == expected.dtype == dtype
        np.testing.assert_allclose(result.compute(), expected, rtol=1e-9 if dtype == np.float64 else 1e-4)
    assert model.score(rows, Y) == pytest.approx(model.score(X, Y), rel=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_of_classes_are_lazy(n_classes, X):
    labels = np.array(["low", "medium", "high"])[np.digitize(X[:, 0], [0, 1][: n_classes - 1])]
    model = classifier().fit(X, labels)
    calls = []
    rows = in_chunks(X, CHUNKS["empty"]).map_blocks(lambda block: calls.append(len(block)) or block, meta=X[:0])
    names = ("predict", "decision_function", "predict_proba", "predict_log_proba")
    results = {name: getattr(model, name)(rows) for name in names}
    assert not calls
    for name, result in results.items():
        expected = getattr(model, name)(X)
        assert isinstance(result, da.Array)
        assert result.chunks == (CHUNKS["empty"], *((k,) for k in expected.shape[1:]))
        assert result.dtype == expected.dtype
        if name == "predict":
            np.testing.assert_array_equal(result.compute(), expected)
        else:
            np.testing.assert_allclose(result.compute(), expected, rtol=1e-9)
    assert results["decision_function"].ndim == (1 if n_classes == 2 else 2)


def test_predictions_carry_no_statistics(X, y):
    """They are the size of m² numbers, and the graph goes over the network."""
    features = RandomFourierFeatures(n_components=256, lengthscale=3.0, random_state=0)
    rows = in_chunks(X, (100, 200))
    model, labels = ridge(features).fit(X, y), classifier(features).fit(X, y > 0)
    for fitted in (model, labels):
        for name in ("predict", "decision_function", "predict_proba", "predict_log_proba"):
            if hasattr(fitted, name):
                size = len(pickle.dumps(dict(getattr(fitted, name)(rows).dask)))
                assert size < fitted._statistics.gram.nbytes / 2
    model.partial_fit(X, y)  # they are still where they were
    assert model.n_samples_seen_ == 2 * N


# Images.


IMAGE_MAPS = {
    "cntk": CNTKSketch(depth=2, n_components=16, random_state=0),
    "network": NetworkFeatures(
        networks.Sequential(networks.Conv(3), networks.ReLU(), networks.GlobalAvgPool()), n_components=16,
        method="random", random_state=0,
    ),
    "flips": FlipAveraged(CNTKSketch(depth=2, n_components=16, random_state=0)),
}  # fmt: skip


@pytest.fixture
def images(rng):
    return rng.integers(256, size=(N, 4, 3, 2), dtype=np.uint8)


def image_blocks(images, chunks):
    return da.from_array(images, chunks=(chunks, -1, -1, -1))


@SOME_CHUNKINGS
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("name", sampled(["cntk", "network"], 1))
def test_features_of_images_are_lazy(name, dtype, chunks, images):
    images = images.astype(dtype)
    blocks = image_blocks(images, chunks)
    features = clone(IMAGE_MAPS[name]).fit(blocks)
    assert features.image_shape_ == (4, 3, 2)
    Z = features.transform(blocks)
    assert Z.chunks == (chunks, (16,))
    expected = clone(IMAGE_MAPS[name]).fit(images).transform(images)
    found = Z.compute()
    assert found.dtype == Z.dtype == expected.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    flat = clone(IMAGE_MAPS[name]).set_params(image_shape=(4, 3, 2)).fit(images)
    rows = flat.transform(blocks.reshape(N, 24))
    assert rows.compute().dtype == rows.dtype
    np.testing.assert_allclose(rows.compute(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@SOME_CHUNKINGS
@pytest.mark.parametrize("name", sampled(list(IMAGE_MAPS), 2))
def test_models_of_images(name, chunks, images, y):
    images = images.astype(np.float64)
    blocks = image_blocks(images, chunks)
    local = ridge(IMAGE_MAPS[name]).fit(images, y)
    model = ridge(IMAGE_MAPS[name]).fit(blocks, y)
    assert_same(model, local)
    for result, expected in zip(
        model.predict(blocks, return_std=True), local.predict(images, return_std=True), strict=True
    ):
        assert result.chunks == (chunks,)
        np.testing.assert_allclose(result.compute(), expected, rtol=1e-6)
    several = ridge(IMAGE_MAPS[name]).fit(blocks, np.stack([y, -y], axis=1))
    assert several.predict(blocks).chunks == (chunks, (2,))
    np.testing.assert_allclose(several.predict(blocks).compute()[:, 0], local.predict(images), rtol=1e-6)


def test_classes_of_images(images, y):
    blocks = image_blocks(images, CHUNKS["uneven"])
    standardizer = FrozenEstimator(ImageStandardizer().fit(images))
    for n_classes in (2, 3):
        labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
        features = make_pipeline(standardizer, IMAGE_MAPS["cntk"])
        local = classifier(features).fit(images, labels)
        model = classifier(features).fit(blocks, labels)
        assert model.n_features_in_ == 24
        for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            result, expected = getattr(model, method)(blocks), getattr(local, method)(images)
            assert result.dtype == result.compute().dtype == expected.dtype
            np.testing.assert_allclose(result.compute(), expected, atol=1e-3)
    with pytest.warns(UserWarning, match="ImageStandardizer was fitted on the first block of rows only"):
        classifier(make_pipeline(ImageStandardizer(), IMAGE_MAPS["cntk"])).fit(blocks, labels)


def test_images_must_be_whole(images, y):
    cut = image_blocks(images, CHUNKS["even"]).rechunk({1: 2, 3: 1})
    text = r"X is chunked along axis 1 \(2 chunks\) and axis 3 \(2 chunks\); use X\.rechunk\(\{1: -1, 3: -1\}\)"
    fitted = clone(IMAGE_MAPS["cntk"]).fit(images)
    for attempt in (
        lambda: ridge(IMAGE_MAPS["cntk"]).fit(cut, y),
        lambda: clone(IMAGE_MAPS["cntk"]).fit(cut),
        lambda: fitted.transform(cut),
    ):
        with pytest.raises(ValueError, match=text):
            attempt()
    whole = cut.rechunk({1: -1, 3: -1})
    np.testing.assert_allclose(fitted.transform(whole).compute(), fitted.transform(images), rtol=1e-4, atol=1e-3)


# Errors.


def test_columns_must_be_together(X, y):
    cut = in_chunks(X, (100, 200)).rechunk({1: 2})
    text = r"X is chunked along axis 1 \(3 chunks\); use X\.rechunk\(\{1: -1\}\)"
    for attempt in (
        lambda: ridge().fit(cut, y),
        lambda: clone(MAPS[0]).fit(cut),
        lambda: clone(MAPS[0]).fit(X).transform(cut),
        lambda: ridge().fit(X, y).predict(cut),
    ):
        with pytest.raises(ValueError, match=text):
            attempt()
    assert_same(ridge().fit(cut.rechunk({1: -1}), y), ridge().fit(X, y))
    Y = da.from_array(np.stack([y, y], axis=1), chunks=(100, 1))
    with pytest.raises(ValueError, match=r"y is chunked along axis 1 .*y\.rechunk\(\{1: -1\}\)"):
        ridge().fit(in_chunks(X, (100, 200)), Y)


def test_rows_must_match(X, y):
    Xd, yd = in_chunks(X, (100, 200)), in_chunks(y, (100, 200))
    unknown = without_sizes(Xd)
    for other in (yd[:-1], in_chunks(np.r_[y, y], (300, 300))):
        with pytest.raises(ValueError, match=r"X and y of FeatureRidge must have equal numbers of rows. Got 300 and"):
            ridge().fit(Xd, other)
    with pytest.raises(ValueError, match="X and sample_weight of FeatureRidge must have equal numbers of rows"):
        ridge().fit(Xd, yd, yd[:-1])
    for other in (y[:-1], y.tolist()[1:], pd.Series(y[1:])):
        with pytest.raises(
            ValueError, match=r"y of FeatureRidge must be a Dask collection with .* an array of 300 val"
        ):
            ridge().fit(Xd, other)
    with pytest.raises(ValueError, match="y of FeatureRidge must be a Dask collection"):
        ridge().fit(unknown, y)
    with pytest.raises(ValueError, match="sample_weight of FeatureRidge must be a Dask collection"):
        ridge().fit(Xd, yd, 2.0)
    with pytest.raises(ValueError, match=r"X and y of FeatureRidge must have the same blocks\. Got 2 and 1 blocks"):
        ridge().fit(unknown, without_sizes(in_chunks(y, (300,))))


@pytest.mark.parametrize(
    ("batch_size", "sizes"), sampled(list(product([None, 50], [(100, 190), (120, 200), (100, 250)])), 3)
)
def test_blocks_that_do_not_match_are_found_on_the_workers(batch_size, sizes, X, y):
    """Also where a target too many would come after the last whole batch of rows."""
    y = np.resize(y, sum(sizes))
    with pytest.raises(ValueError, match=r"(?i)numbers of (rows|samples)"):
        ridge(batch_size=batch_size).fit(without_sizes(in_chunks(X, (100, 200))), without_sizes(in_chunks(y, sizes)))
    with pytest.raises(ValueError, match=r"(?i)numbers of (rows|samples)|sample_weight"):
        ridge(batch_size=batch_size).fit(
            without_sizes(in_chunks(X, (100, 200))), without_sizes(in_chunks(np.resize(y, N), (100, 200))),
            without_sizes(in_chunks(y, sizes)),
        )  # fmt: skip


def test_bad_arguments(X, y, tmp_path):
    Xd = in_chunks(X, (100, 200))
    for model in (ridge(), classifier()):
        name = type(model).__name__
        with pytest.raises(ValueError, match=f"{name} requires y to be passed, but the target y is None"):
            model.fit(Xd)
        with pytest.raises(ValueError, match=rf"'checkpoint' parameter of {name}.fit must be None for Dask"):
            model.fit(Xd, y > 0, checkpoint=tmp_path / "checkpoint")
        with pytest.raises(TypeError, match="Dask"):
            model.partial_fit(Xd, y > 0)
    assert list(tmp_path.iterdir()) == []
    for empty in (Xd[:0], without_sizes(Xd[:0])):
        with pytest.raises(ValueError, match="without rows"):
            ridge().fit(empty, in_chunks(y, (300,))[:0])
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        ridge().fit(Xd[:, 0], y)
    with pytest.raises(ValueError, match="X has 3 features, but NTKFeatures is expecting 5"):
        clone(MAPS[0]).fit(X).transform(Xd[:, :3]).compute()
    with pytest.raises(ValueError, match=r"sample_weight of FeatureRidge must not be (0|zero) for all rows"):
        ridge().fit(Xd, y, np.zeros(N))


@pytest.mark.parametrize("where", ["X", "y", "weight"])
def test_a_failed_fit_leaves_the_model_unchanged(where, X, y, weight):
    values = {"X": X.copy(), "y": y.copy(), "weight": weight.copy()}
    values[where][250] = np.nan
    Xd, yd, wd = (in_chunks(a, (100, 100, 100)) for a in values.values())
    model = ridge(clone(MAPS[0]))
    with pytest.raises(ValueError, match=r"(?i)nan|sample_weight"):
        model.fit(Xd, yd, wd)
    assert not hasattr(model, "features_")
    model.fit(X, y)
    coef = model.coef_
    with pytest.raises(ValueError, match=r"(?i)nan|sample_weight"):
        model.fit(Xd, yd, wd)
    np.testing.assert_array_equal(model.coef_, coef)
    assert model.n_samples_seen_ == N


# Tasks are pure.


def test_graphs_can_be_computed_twice(X, y):
    """Blocks that stay in memory are not changed, even where features are the rows themselves."""
    table = frame(X)
    kept, kept_y = X.copy(), y.copy()
    for features in ("passthrough", *sampled(MAPS, 2)):
        steps = Pipeline([("features", features)])
        with dask.config.set(scheduler="threads"):
            rows, targets = in_chunks(X, CHUNKS["uneven"]).persist(), in_chunks(y, CHUNKS["uneven"]).persist()
            frames = dd.from_pandas(table, npartitions=3).persist()
        first = ridge(steps).fit(rows, targets)
        np.testing.assert_array_equal(ridge(steps).fit(rows, targets).coef_, first.coef_)
        np.testing.assert_array_equal(rows.compute(), kept)
        ridge(steps).fit(frames, dd.from_dask_array(in_chunks(y, (100, 100, 100))))
        np.testing.assert_array_equal(frames.compute().to_numpy(), kept)
        predictions = first.predict(rows)
        np.testing.assert_array_equal(predictions.compute(), predictions.compute())
    np.testing.assert_array_equal(X, kept)
    np.testing.assert_array_equal(y, kept_y)


def snapshot(part):
    return deepcopy(dict(part.statistics.__dict__))


def assert_unchanged(part, before):
    for name, value in part.statistics.__dict__.items():
        if name in ("_shared", "_n_shared"):  # arrays that a sum uses too are copied before they change
            continue
        if name == "sample":
            for field in ("keys", "Z", "Y", "weight"):
                np.testing.assert_array_equal(getattr(value, field), getattr(before[name], field))
        elif isinstance(value, list):
            assert len(value) == len(before[name])
            for row, old in zip(value, before[name], strict=True):
                for a, b in zip(row, old, strict=True):
                    np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("dtype", sampled([np.float64, np.float32], 1))
@pytest.mark.parametrize("sizes", [(3000, 3000, 3000), (3000, 5, 10), (5, 10, 3000), (5, 5, 5), (5, 3000, 20, 2000)])
def test_parts_can_be_added_up_twice(sizes, dtype, rng):
    """Dask may use a part again, after the sum it went into was lost with a worker."""
    parts = []
    for n, labels in zip(sizes, (["a", "b"], ["b", "c"], ["a"], ["d"]), strict=False):
        statistics = Statistics(16, len(labels), 40)
        Y = rng.standard_normal((n, len(labels)))
        statistics.add(rng.standard_normal((n, 16)).astype(dtype), Y, np.ones(n), rng.random(n))
        targets = ClassTargets()
        targets.meet(np.array(labels), "y")
        parts.append(distributed._Partial(statistics.finish(), targets))
    before = [snapshot(part) for part in parts]
    first = distributed._add_up(parts)
    expected = snapshot(first)
    for part, old in zip(parts, before, strict=True):
        assert_unchanged(part, old)
    second = distributed._add_up(parts)
    assert_unchanged(second, expected)
    assert first.statistics.count == sum(sizes)
    # Later additions to the sum must not change the parts.
    Z, Y = rng.standard_normal((2000, 16)).astype(dtype), np.ones((2000, first.targets.n_targets))
    first.statistics.add(Z, Y, np.ones(2000), rng.random(2000))
    first.statistics.finish()
    for part, old in zip(parts, before, strict=True):
        assert_unchanged(part, old)


def test_a_task_does_not_change_its_model_and_rows(X, y):
    model = ridge(FunctionTransformer())
    model._begin(distributed.DaskSource(in_chunks(X, (N,)), y, None, "FeatureRidge"))
    worker = distributed._Worker(model)
    blocks = [X[:100].copy(), X[100:].copy()], [y[:100].copy(), y[100:].copy()], [None, None]
    kept = deepcopy(blocks)
    first, second = worker(*blocks, 0, 0), worker(*blocks, 0, 0)
    assert_unchanged(second, snapshot(first))
    assert model._statistics.count == 0
    for old, new in zip(kept[0] + kept[1], blocks[0] + blocks[1], strict=True):
        np.testing.assert_array_equal(old, new)
    again = pickle.loads(pickle.dumps(worker))(*blocks, 0, 0)
    assert_unchanged(again, snapshot(first))


# A cluster of processes.


@pytest.mark.usefixtures("on_cluster")
def test_fits_on_a_cluster(X, y, weight):
    features = make_pipeline(StandardScaler(), RandomFourierFeatures(n_components=16, lengthscale=3.0, random_state=0))
    local = ridge(features, None).fit(X, y, weight)
    model = ridge(features, None).fit(in_chunks(X, CHUNKS["empty"]), y, in_chunks(weight, (N,)))
    assert model.alpha_ == pytest.approx(local.alpha_)
    assert_same(model, local)
    for result, expected in zip(
        model.predict(in_chunks(X, CHUNKS["empty"]), return_std=True), local.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(result.compute(), expected, rtol=1e-7)


@pytest.mark.usefixtures("on_cluster")
def test_classes_and_data_frames_on_a_cluster(X):
    labels = np.array(["low", "medium", "high"])[np.digitize(X[:, 0], [0, 1])]
    table = frame(X, target=labels)
    local = classifier().fit(table[NAMES], labels)
    blocks = dd.from_pandas(table.sort_values("target"), npartitions=5, sort=False)
    model = classifier().fit(blocks[NAMES], blocks["target"])
    np.testing.assert_array_equal(model.classes_, ["high", "low", "medium"])
    np.testing.assert_array_equal(model.feature_names_in_, NAMES)
    assert_same(model, local)
    probabilities = model.predict_proba(blocks[NAMES]).compute()
    np.testing.assert_allclose(probabilities, model.predict_proba(table.sort_values("target")[NAMES]), rtol=1e-9)


@pytest.mark.usefixtures("on_cluster")
@thorough
def test_images_on_a_cluster(images, y):
    blocks = image_blocks(images.astype(np.float64), CHUNKS["empty"])
    local = ridge(IMAGE_MAPS["cntk"]).fit(images.astype(np.float64), y)
    model = ridge(IMAGE_MAPS["cntk"]).fit(blocks, da.from_array(y, chunks=100))
    assert_same(model, local)
    np.testing.assert_allclose(model.predict(blocks).compute(), local.predict(images.astype(np.float64)), rtol=1e-6)
    Z = model.features_.transform(image_blocks(images, CHUNKS["even"]))
    np.testing.assert_allclose(Z.compute(), model.features_.transform(images), rtol=1e-4, atol=1e-2)


@pytest.mark.usefixtures("on_cluster")
def test_errors_come_from_the_workers(X, y):
    fitted = clone(MAPS[-1]).fit(X)
    X[250] = np.nan
    text = r"Block 1 of the Dask collection \(X\.partitions\[1\]\): .*contains NaN"
    with pytest.raises(ValueError, match=text):
        ridge(clone(MAPS[-1])).fit(in_chunks(X, (100, 200)), y)
    for rows in (in_chunks(X, (100, 200)), dd.from_pandas(frame(X), npartitions=2)):
        with pytest.raises(ValueError, match=text), warnings.catch_warnings(action="ignore"):  # names of columns
            fitted.transform(rows).compute()


class SlowSquares(TransformerMixin, BaseEstimator):
    """Columns and their squares; leaves a file at the beginning of every block, named after its first column."""

    def __init__(self, folder=None, seconds=0.0):
        self.folder, self.seconds = folder, seconds

    def fit(self, X, y=None):  # noqa: ARG002
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        if self.folder is not None and len(X) > 1:
            (Path(self.folder) / f"{X[0, 0]:.0f} {os.getpid()} {uuid.uuid4().hex}").touch()
            time.sleep(self.seconds)
        return np.hstack([X[:, 1:], X[:, 1:] ** 2])

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False  # its result does not depend on the rows
        return tags


def begun(folder):
    """(block, process) of every block begun."""
    return [tuple(map(int, path.name.split()[:2])) for path in folder.iterdir()]


@thorough
def test_a_worker_is_killed(tmp_path, rng):
    """A fit goes on when a process dies: its blocks are computed again, and counted once."""
    n_blocks, n_rows = 16, 40
    X = rng.standard_normal((n_blocks * n_rows, 4))
    y = X @ [1.0, 2.0, 3.0, 4.0] + (X**2) @ [4.0, 3.0, 2.0, 1.0]
    X = np.column_stack([np.repeat(np.arange(float(n_blocks)), n_rows), X])
    local = ridge(SlowSquares()).fit(X, y)
    by_value()
    errors = []

    def fit():
        try:
            model.fit(da.from_array(X, chunks=(n_rows, 5)), y)
        except BaseException as error:
            errors.append(error)

    model = ridge(SlowSquares(str(tmp_path), 0.2))
    with local_cluster(2) as client:
        processes = set(client.run(os.getpid).values())
        with dask.config.set(scheduler=client):
            thread = threading.Thread(target=fit)
            thread.start()
            until = time.monotonic() + 60
            while time.monotonic() < until and not errors:
                done = Counter(process for _, process in begun(tmp_path))
                if len(done) == 2 and min(done.values()) >= 3:
                    break
                time.sleep(0.01)
            victim = min(processes)
            killed_after = len(begun(tmp_path))
            os.kill(victim, signal.SIGKILL)
            thread.join(120)
            assert not thread.is_alive()
    assert not errors, errors
    assert 6 <= killed_after < n_blocks  # in the middle
    times = Counter(block for block, _ in begun(tmp_path))
    assert set(times) == set(range(n_blocks))
    again = [block for block, process in begun(tmp_path) if process == victim and times[block] > 1]
    assert again  # at least the block that the process was working on
    assert_same(model, local, 1e-9)


def test_blocks_can_be_fetched_one_at_a_time(rng):
    from ntkit.distributed import DaskSource

    X, y, weight = rng.standard_normal((10, 2)), rng.standard_normal(10), rng.uniform(1, 2, 10)
    source = DaskSource(da.from_array(X, chunks=(4, -1)), da.from_array(y, chunks=3), weight, "FeatureRidge")
    with dask.config.set(scheduler="synchronous"):
        blocks = list(source.blocks(3))
    assert [len(block.X) for block in blocks] == [3, 1, 3, 1, 2]
    for name, values in (("X", X), ("y", y), ("weight", weight)):
        np.testing.assert_array_equal(np.concatenate([getattr(block, name) for block in blocks]), values)


# Kernel matrices on a cluster.


@pytest.mark.usefixtures("on_cluster")
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_workers_multiply_the_kernel_matrix(share, rng, monkeypatch):
    """Persisted or computed again each time: the coefficients equal those of one process."""
    X = rng.standard_normal((120, 3))
    y = np.column_stack([np.sin(X[:, 0]), X[:, 1]])
    weight = rng.uniform(0.5, 2, 120)
    monkeypatch.setattr(distributed, "_SHARE", share)
    rows, targets = da.from_array(X, chunks=(50, -1)), da.from_array(y, chunks=(50, -1))
    model = KernelRidge("ntk", alphas=0.1, solver="pcg", solver_params={"tolerance": 1e-10}, random_state=0)
    expected = clone(model).fit(X, y, weight)
    for _ in range(2):  # the same data sent twice
        found = clone(model).fit(rows, targets, da.from_array(weight, chunks=50))
    np.testing.assert_allclose(found.dual_coef_, expected.dual_coef_, atol=1e-7)
    np.testing.assert_allclose(found.predict(rows).compute(), expected.predict(X), atol=1e-7)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_kernel_matrices_of_a_cluster(share, client, rng, monkeypatch):
    monkeypatch.setattr(distributed, "_SHARE", share)
    monkeypatch.setattr(distributed, "_BLOCK_BYTES", 3 * 8 * 41)  # three rows at a time
    X, V = rng.standard_normal((41, 3)), rng.standard_normal((41, 2))
    kernel = KernelSpec.resolve("gaussian", {"lengthscale": 1.5}, "test")
    K = gaussian(X, lengthscale=1.5)
    matrix = distributed.ClusterMatrix(client, kernel, X)
    np.testing.assert_allclose(matrix.times(V), K @ V, atol=1e-12)
    assert (matrix._remote_blocks is not None) == (share > 0)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="kernel of the rows of X must be finite"):
        distributed.ClusterMatrix(client, KernelSpec.resolve("exponential", {"lengthscale": 1.0}, "test"), 100 * X)


@pytest.mark.filterwarnings("error")
def test_arrays_of_any_size_are_sent_as_tasks(client, rng):
    """Dask warns of large graphs, and cannot recompute scattered data."""
    kernel = KernelSpec.resolve("gaussian", {"lengthscale": 100.0}, "test")
    matrix = distributed.ClusterMatrix(client, kernel, rng.standard_normal((100, 30000)))
    assert matrix.times(np.ones((100, 1))).shape == (100, 1)
    assert not client.run_on_scheduler(
        lambda dask_scheduler: [k for k, t in dask_scheduler.tasks.items() if not t.run_spec]
    )


def test_fits_within_tasks(client, X, y):
    """A task that fits on the cluster it runs on leaves its thread to the blocks."""
    rows = in_chunks(X, CHUNKS["even"])
    fits = [client.submit(lambda i: ridge(alphas=1.0 + i).fit(rows, y).coef_, i) for i in range(3)]
    with dask.config.set(scheduler=None):
        for i, found in enumerate(distributed._gather(client, lambda: fits)):
            np.testing.assert_allclose(found, ridge(alphas=1.0 + i).fit(X, y).coef_, rtol=1e-6, atol=1e-9)
