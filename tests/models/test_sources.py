"""Rows from streams, memory maps and files give the same model as rows in memory; messages explain errors."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from threadpoolctl import threadpool_limits

from ntkit import (
    FeatureKMeans,
    FeatureRidge,
    FeatureRidgeClassifier,
    FeatureRidgeSearch,
    GramRidge,
    KernelRidge,
    NTKFeatures,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine threads of BLAS wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield


def scaled_features():
    """A step that looks at all rows, and one that looks at none."""
    return make_pipeline(StandardScaler(), NTKFeatures(n_components=16, random_state=0))


def table(n=100, seed=0):
    """Rows with drifting means: a scaler fitted on the first block only would be far off."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)) * [1.0, 10.0, 0.1] + np.linspace(0, 5, n)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1]
    return X, y, rng.integers(1, 4, n) / 2.0


def blocks(*arrays, size=30):
    """The rows in tuples of blocks."""
    return [tuple(a[i : i + size] for a in arrays) for i in range(0, len(arrays[0]), size)]


class Stream:
    """Restart each time it is iterated over, and count the iterations."""

    def __init__(self, items):
        self.items, self.passes = items, 0

    def __iter__(self):
        self.passes += 1
        yield from self.items


def model(law=FeatureRidge, features=None, **parameters):
    features = scaled_features() if features is None else features
    return law(features, alphas=[0.1, 1.0, 10.0], n_selection=20, random_state=0, **parameters)


def assert_same_model(one, other, X, rtol=1e-7):
    assert one.n_samples_seen_ == other.n_samples_seen_
    np.testing.assert_allclose(one.errors_, other.errors_, rtol=rtol)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=rtol, atol=rtol * np.abs(other.coef_).max())
    np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=rtol, atol=1e-9)


# Streams.


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("batch_size", [None, 1, 7])
def test_streams_that_can_be_read_again(weighted, batch_size):
    """The scaler sees all blocks: the model equals the model of rows in memory."""
    X, y, weight = table(50)
    arrays = (X, y, weight) if weighted else (X, y)
    whole = model(batch_size=batch_size).fit(*arrays)
    for size in (1, 13, 100) if batch_size is None else (13,):
        items = blocks(*arrays, size=size)
        for stream in (items, tuple(items), Stream(items), Stream([list(item) for item in items])):
            assert_same_model(model(batch_size=batch_size).fit(stream), whole, X)


def test_passes_over_a_stream():
    """One for the scaler, one for the fit, and a look at the first block for the rest."""
    X, y, _ = table()
    stream = Stream(blocks(X, y))
    model().fit(stream)
    assert stream.passes <= 6


def test_generators_are_read_once():
    """Every block, including the first, counts once; without a step that needs a separate pass no block is lost."""
    X, y, weight = table()
    features = NTKFeatures(n_components=16, random_state=0)
    whole = model(features=features).fit(X, y, weight)
    for one_shot in (iter, lambda items: (item for item in items), lambda items: map(tuple, items)):
        assert_same_model(model(features=features).fit(one_shot(blocks(X, y, weight))), whole, X)
    assert_same_model(model(features=features).fit(zip([X[:50], X[50:]], [y[:50], y[50:]], strict=True)),
                      model(features=features).fit(X, y), X)  # fmt: skip


def test_generators_and_scalers():
    """A scaler fitted on the first block is worth a warning."""
    X, y, _ = table()
    with pytest.warns(UserWarning, match=r"StandardScaler was fitted on the first block.*FrozenEstimator"):
        fitted = model().fit(iter(blocks(X, y)))
    np.testing.assert_allclose(fitted.features_[0].mean_, X[:30].mean(axis=0))
    assert fitted.n_samples_seen_ == 100


def test_a_buffer_that_is_filled_again_and_again():
    """Like readers of large files that reuse a buffer: blocks that are kept must be copied."""
    X, y, weight = table()

    def stream(size):
        buffers = [np.empty((size, *a.shape[1:])) for a in (X, y, weight)]
        for i in range(0, 100, size):
            for buffer, values in zip(buffers, (X, y, weight), strict=True):
                buffer[:] = values[i : i + size]
            yield tuple(buffers)

    for features in (FunctionTransformer(), NTKFeatures(n_components=150, random_state=0)):
        whole = model(features=features).fit(X, y, weight)
        for size in (1, 10, 50):
            assert_same_model(model(features=features).fit(stream(size)), whole, X)


def test_blocks_of_any_library():
    import pandas as pd
    import torch

    X, y, weight = table()
    features = NTKFeatures(n_components=16, random_state=0)
    whole = model(features=features).fit(X, y, weight)
    makers = (torch.from_numpy, pd.DataFrame, sp.csr_array, sp.csc_matrix, np.asfortranarray)
    for make in makers:
        items = [(make(X), y, weight) for X, y, weight in blocks(X, y, weight)]
        fitted = model(features=features).fit(Stream(items))
        if make in (sp.csr_array, sp.csc_matrix):
            assert_same_model(fitted, model(features=features).fit(make(X), y, weight), make(X))
        else:
            assert_same_model(fitted, whole, X)
    lists = Stream([(X.tolist(), list(y), list(w)) for X, y, w in blocks(X, y, weight)])
    assert_same_model(model(features=features).fit(lists), whole, X)
    labels = np.where(y > 0, "up", "down")
    stream = Stream([(X, pd.Series(y, index=range(5, 5 + len(y)))) for X, y in blocks(X, labels)])
    fitted = model(FeatureRidgeClassifier, features).fit(stream)
    expected = model(FeatureRidgeClassifier, features).fit(X, labels)
    np.testing.assert_allclose(fitted.decision_function(X), expected.decision_function(X), rtol=1e-7, atol=1e-9)


def test_blocks_without_rows():
    X, y, _ = table()
    empty = (X[:0], y[:0])
    items = [empty, *blocks(X, y), empty]
    whole = model(features=NTKFeatures(n_components=16, random_state=0)).fit(X, y)
    for stream in (items, iter(items), Stream(items)):
        assert_same_model(model(features=NTKFeatures(n_components=16, random_state=0)).fit(stream), whole, X)


def test_partial_fit_of_streams():
    X, y, weight = table()
    features = NTKFeatures(n_components=16, random_state=0)
    whole = model(features=features).fit(X, y, weight)
    items = blocks(X, y, weight)
    fitted = model(features=features).partial_fit(items[:2], None).partial_fit(iter(items[2:]), None)
    assert_same_model(fitted, whole, X)
    wide = (X, np.stack([y, y], axis=1))
    for stream in ([(X, y), wide], [wide, (X, y)], iter([(X, y), wide])):
        with pytest.raises(ValueError, match="y of FeatureRidge must have the same number of columns in every block"):
            model(features=features).partial_fit(stream, None)


@pytest.mark.parametrize("law", [FeatureRidge, FeatureRidgeClassifier])
def test_bad_streams(law):
    X, y, weight = table()
    y = (y > 0).astype(int)
    name = law.__name__
    good = (X[:30], y[:30])
    wrong_items = {
        "an array": X, "a number": 5, "one": (X,), "four": (X, y, weight, weight), "a string": "ab", "None": None,
        "a dict": {"X": X, "y": y},
    }  # fmt: skip
    for item in wrong_items.values():
        for number, stream in ((0, Stream([item])), (1, Stream([good, item])), (1, iter([good, item]))):
            rule = rf"(?s)A stream given to {name}.fit must yield tuples \(X, y\).*Got .* as item {number}"
            with pytest.raises(TypeError, match=rule):
                model(law, NTKFeatures(n_components=8)).fit(stream)
    for empty in (Stream([]), iter([]), Stream([(X[:0], y[:0])]), iter([(X[:0], y[:0])])):
        with pytest.raises(ValueError, match=r"There are no rows to fit on"):
            model(law).fit(empty)
    with pytest.raises(
        TypeError, match=rf"'sample_weight' parameter of {name}.fit must be None if X is a stream.*Yield"
    ):
        model(law).fit(Stream([good]), None, weight)
    with pytest.raises(ValueError, match=r"X has 2 features, but \w+ is expecting 3 features"):
        model(law, NTKFeatures(n_components=8)).fit([good, (X[:, :2], y)])
    bad = X.copy()
    bad[-1, -1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model(law, NTKFeatures(n_components=8)).fit([good, (bad, y)])
    with pytest.raises((TypeError, ValueError), match=r"y"):
        model(law).fit(Stream([(X, None)]))


@pytest.mark.parametrize("batch_size", [None, 10, 100])
def test_blocks_whose_parts_do_not_match(batch_size):
    """Too long as well as too short, also where blocks are cut at the very end of the rows."""
    X, y, weight = table()
    features = NTKFeatures(n_components=8, random_state=0)
    longer, shorter = np.append(y, y[:10]), y[:-10]
    for wrong in (longer, shorter, y[:0]):
        for item, name in (((X, wrong), "y"), ((X, wrong, weight), "y"), ((X, y, np.abs(wrong)), "sample_weight")):
            for stream in ([(X, y), item], iter([item])):
                with pytest.raises(ValueError, match=rf"X of FeatureRidge has 100 rows, {name} has {len(wrong)}"):
                    model(features=features, batch_size=batch_size).fit(stream)
    for item in ((X, y, 2.0), (X, y, -weight), (X, y, weight * np.nan), (X, y, weight[:, None])):
        with pytest.raises((ValueError, TypeError), match="'sample_weight' parameter of FeatureRidge must be"):
            model(features=features, batch_size=batch_size).fit([item])
    with pytest.raises(ValueError, match=r"Expected 2D array, got 1D array"):
        model(features=features, batch_size=batch_size).fit([(X, y), (y, y)])


def test_a_stream_that_raises_leaves_the_model_unchanged():
    X, y, _ = table()
    features = NTKFeatures(n_components=8, random_state=0)
    fitted = model(features=features).fit(X, y)
    before = fitted.predict(X)

    def broken():
        yield X[:, :2], y
        raise OSError("the disk is gone")

    for fit in (lambda: fitted.fit(broken()), lambda: fitted.partial_fit(((X, y) for X, y in broken()), None)):
        with pytest.raises((OSError, ValueError)):
            fit()
        np.testing.assert_array_equal(fitted.predict(X), before)
        assert fitted.n_samples_seen_ == 100
    with pytest.raises(OSError, match="the disk is gone"):
        model(features=features).fit(broken())


def test_steps_that_only_see_the_first_block():
    """Steps that ignore the data are accepted; others cause a warning."""
    X, y, _ = table()

    class Recorder(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):  # noqa: ARG002
            self.n_rows_ = len(X)
            return self

        def transform(self, X):
            return X

    with pytest.warns(UserWarning, match=r"Recorder was fitted on the first block.*FrozenEstimator"):
        fitted = model(features=make_pipeline(Recorder(), StandardScaler(), "passthrough")).fit(blocks(X, y))
    assert fitted.features_[0].n_rows_ == 30
    np.testing.assert_allclose(fitted.features_[1].mean_, X.mean(axis=0))
    assert model(features=make_pipeline(Recorder(), StandardScaler())).fit(X, y).features_[0].n_rows_ == 100


# Memory maps.


def memory_map(path, array):
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=array.dtype, shape=array.shape)
    mapped[:] = array
    mapped.flush()
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_memory_maps(tmp_path, dtype):
    """In blocks, the scaler too; views of maps are maps."""
    X, y, weight = table(400)
    X = X.astype(dtype)
    maps = [memory_map(tmp_path / f"{i}.npy", a) for i, a in enumerate((X, y, weight))]
    whole = model().fit(X, y, weight)
    rtol = 1e-6 if dtype == np.float64 else 1e-3
    for rows in (maps[0], np.asarray(maps[0]), maps[0][:, :]):
        fitted = model(batch_size=32).fit(rows, maps[1], maps[2])
        assert_same_model(fitted, whole, X, rtol)
        np.testing.assert_allclose(fitted.predict(rows), whole.predict(X), rtol=rtol, atol=rtol)
        np.testing.assert_allclose(fitted.features_[0].mean_, np.average(X, axis=0, weights=weight), rtol=1e-6)
    np.testing.assert_array_equal(maps[0], X)


def test_memory_maps_are_never_whole_in_memory(tmp_path):
    """A map of 150 MB and features of as much: the fit and the predictions stay below 40 MB."""
    n, d = 300_000, 64
    X = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=np.float64, shape=(n, d))
    y = np.lib.format.open_memmap(tmp_path / "y.npy", mode="w+", dtype=np.float64, shape=(n,))
    rng = np.random.default_rng(0)
    for start in range(0, n, 60_000):  # the rest of the file is zeros, and takes no room on disk
        X[start : start + 100] = rng.standard_normal((100, d))
        y[start : start + 100] = X[start : start + 100, 0]
    X.flush()
    features = make_pipeline(StandardScaler(), FunctionTransformer(np.tanh))
    learner = FeatureRidge(features, alphas=1.0, batch_size=8192)
    rows = np.load(tmp_path / "X.npy", mmap_mode="r")
    tracemalloc.start()
    try:
        learner.fit(rows, y)
        _, fit_peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        predictions = learner.predict(rows)
        _, predict_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert learner.n_samples_seen_ == n
    assert learner.features_[0].n_samples_seen_ == n
    assert predictions.shape == (n,)
    assert fit_peak < 40e6
    assert predict_peak < 40e6


# Files.


@pytest.fixture
def frame():
    import pandas as pd

    X, y, _ = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return frame.assign(price=y, other=2 * y, label=np.where(y > 0.5, "high", "low"))


def write(frame, path):
    name = path.name.lower()
    if name.endswith(("parquet", "pq")):
        frame.to_parquet(path, row_group_size=17)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    else:
        frame.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    return path


@pytest.mark.parametrize("name", ["t.csv", "T.CSV", "t.csv.gz", "t.tsv", "t.parquet", "t.pq"])
@pytest.mark.parametrize("batch_size", [None, 13])
def test_files(tmp_path, frame, name, batch_size):
    """The model knows the names of the columns, without warnings."""
    rows = frame[["a", "b", "c"]]
    numbers = write(frame.drop(columns=["other", "label"]), tmp_path / name)
    whole = model().fit(rows, frame["price"])
    for path in (numbers, str(numbers), [numbers], [str(numbers)], (numbers,), os.fspath(numbers)):
        fitted = model(batch_size=batch_size).fit(path, "price")
        assert_same_model(fitted, whole, rows)
        np.testing.assert_array_equal(fitted.feature_names_in_, ["a", "b", "c"])
    labelled = write(frame.drop(columns=["other", "price"]), tmp_path / f"labels_{name}")
    fitted = model(FeatureRidgeClassifier, batch_size=batch_size).fit(labelled, "label")
    expected = model(FeatureRidgeClassifier).fit(rows, frame["label"])
    assert list(fitted.classes_) == ["high", "low"]
    np.testing.assert_allclose(fitted.decision_function(rows), expected.decision_function(rows), rtol=1e-6, atol=1e-8)
    assert list(fitted.predict(rows)) == list(expected.predict(rows))
    targets = write(frame.drop(columns="label"), tmp_path / f"two_{name}")
    for names in (["price", "other"], ("price", "other")):
        fitted = model(batch_size=batch_size).fit(targets, names)
        assert_same_model(fitted, model().fit(rows, frame[["price", "other"]]), rows)
    assert model().fit(targets, ["price"]).predict(frame[["a", "b", "c", "other"]]).shape == (100, 1)


def test_the_target_may_be_any_column(tmp_path, frame):
    path = write(frame[["price", "a", "b", "c"]], tmp_path / "t.csv")
    rows = frame[["a", "b", "c"]]
    assert_same_model(model().fit(path, "price"), model().fit(rows, frame["price"]), rows)


@pytest.mark.parametrize("ending", ["csv", "parquet", "csv.gz", "tsv"])
def test_several_files_and_folders(tmp_path, frame, ending):
    """Files of a folder come in the order of their names; others in it are not read."""
    rows, numbers = frame[["a", "b", "c"]], frame.drop(columns=["other", "label"])
    paths = [write(numbers[i : i + 40], tmp_path / f"part{i:03}.{ending}") for i in range(0, 100, 40)]
    (tmp_path / "README.txt").write_text("not a table")
    (tmp_path / "folder.csv.d").mkdir()
    whole = model().fit(rows, frame["price"])
    for source in (paths, [str(path) for path in paths], tmp_path, str(tmp_path)):
        assert_same_model(model().fit(source, "price"), whole, rows)
    assert model().fit(paths[::-1], "price").n_samples_seen_ == 100


def test_partial_fit_of_files(tmp_path, frame):
    numbers, rows = frame.drop(columns=["other", "label"]), frame[["a", "b", "c"]]
    paths = [write(numbers[i : i + 50], tmp_path / f"part{i}.csv") for i in (0, 50)]
    features = NTKFeatures(n_components=16, random_state=0)
    fitted = model(features=features).partial_fit(paths[0], "price").partial_fit(paths[1], "price")
    assert_same_model(fitted, model(features=features).fit(rows, frame["price"]), rows)


@pytest.mark.parametrize("law", [FeatureRidge, FeatureRidgeClassifier])
def test_bad_paths(tmp_path, frame, law):
    name = law.__name__
    path = write(frame.drop(columns=["other", "label"]), tmp_path / "t.csv")
    missing, folder = tmp_path / "missing.csv", tmp_path / "folder"
    folder.mkdir()
    other = tmp_path / "t.xlsx"
    other.write_text("a")
    for wrong in (missing, str(missing), [path, missing]):
        with pytest.raises(FileNotFoundError, match=rf"{name}.fit got the path '.*missing.csv'.* not a file"):
            model(law).fit(wrong, "price")
    with pytest.raises((FileNotFoundError, ValueError), match=rf"{name}.fit got .*folder.*CSV"):
        model(law).fit(folder, "price")
    with pytest.raises(ValueError, match=rf"{name}.fit reads .csv.*Got '.*t.xlsx'; read other formats yourself"):
        model(law).fit(other, "price")
    with pytest.raises(
        ValueError, match=rf"'.*t.csv' has no column 'cost', the target given to {name}.fit. Its columns are 'a', "
    ):
        model(law).fit(path, "cost")
    for y in (None, frame["price"], np.ones(100), 3, []):
        rule = rf"'y' parameter of {name}.fit must be the name of the target column if X is a path. Got "
        with pytest.raises(TypeError, match=rule):
            model(law).fit(path, y)
    rule = rf"'sample_weight' parameter of {name}.fit must be None if X is a path. Got "
    with pytest.raises(TypeError, match=rule):
        model(law).fit(path, "price", np.ones(100))
    with pytest.raises(NotFittedError):
        model(law).predict(frame)


def test_bad_tables(tmp_path, frame):
    rows = frame.drop(columns=["other", "label"])
    empty = write(rows[:0], tmp_path / "empty.csv")
    with pytest.raises(ValueError, match="There are no rows to fit on"):
        model().fit(empty, "price")
    holes = rows.copy()
    holes.loc[99, "b"] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model(batch_size=10).fit(write(holes, tmp_path / "holes.csv"), "price")
    holes = rows.copy()
    holes.loc[99, "price"] = np.nan
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model(batch_size=10).fit(write(holes, tmp_path / "y.csv"), "price")
    with pytest.raises(ValueError, match=r"convert|numeric"):
        model().fit(write(frame.drop(columns="other"), tmp_path / "words.csv"), "price")
    first, second = write(rows, tmp_path / "1.csv"), write(rows.rename(columns={"b": "B"}), tmp_path / "2.csv")
    with pytest.raises(ValueError, match="feature names"):
        model().fit([first, second], "price")
    assert model().fit([first, empty], "price").n_samples_seen_ == 100
    assert model().fit([empty, first], "price").n_samples_seen_ == 100


def names_are_lost():
    """Features that keep no names of columns, and see them as they come."""
    return FunctionTransformer(np.asarray)


def test_columns_of_later_files_are_found_by_name(tmp_path, frame):
    """Also if the transformer ignores names: it would take the columns in the given order."""
    rows = frame[["a", "b", "c", "price"]]
    whole = model(features=names_are_lost()).fit(rows.drop(columns="price"), rows["price"])
    first, second = rows[:50], rows.iloc[50:, [2, 3, 0, 1]]
    for ending in ("csv", "parquet"):
        paths = [write(part, tmp_path / f"{i}.{ending}") for i, part in enumerate((first, second))]
        fitted = model(features=names_are_lost()).fit(paths, "price")
        assert_same_model(fitted, whole, frame[["a", "b", "c"]])
        np.testing.assert_array_equal(fitted.feature_names_in_, ["a", "b", "c"])
        added = model(features=names_are_lost()).partial_fit(paths[0], "price").partial_fit(paths[1], "price")
        assert_same_model(added, whole, frame[["a", "b", "c"]])


def test_later_files_with_other_columns(tmp_path, frame):
    rows = frame[["a", "b", "c", "price"]]
    first = write(rows[:50], tmp_path / "1.csv")
    for other, what in (
        (rows.rename(columns={"b": "B"}), "lacks 'b' and adds 'B'"),
        (rows.drop(columns="c"), "lacks 'c'"),
        (rows.assign(d=1.0), "adds 'd'"),
    ):
        second = write(other[50:], tmp_path / "2.csv")
        for features in (names_are_lost(), scaled_features()):
            with pytest.raises(ValueError, match=rf"feature names of the first rows.* '.*2\.csv' {what}\."):
                model(features=features).fit([first, second], "price")
            fitted = model(features=features).partial_fit(first, "price")
            with pytest.raises(ValueError, match=rf"'.*2\.csv' {what}\."):
                fitted.partial_fit(second, "price")
            assert fitted.n_samples_seen_ == 50


def test_text_in_the_first_file_is_text_in_all(tmp_path):
    """Codes that look like numbers in a later file keep their zeros."""
    import pandas as pd

    from ntkit.tables import TableEncoder

    first = pd.DataFrame({"code": ["007", "x"] * 10, "price": [1.0, 2.0] * 10})
    second = pd.DataFrame({"code": ["007"] * 20, "price": [3.0] * 20})
    paths = [write(part, tmp_path / f"{i}.csv") for i, part in enumerate((first, second))]
    encoder = FrozenEstimator(TableEncoder().fit(first[["code"]]))
    fitted = FeatureRidge(encoder, alphas=1e-9).fit(paths, "price")
    np.testing.assert_allclose(fitted.predict(first[["code"]])[:2], [(10 * 1 + 20 * 3) / 30, 2], atol=1e-6)
    first = pd.DataFrame({"a": [0.0, 1.0] * 10, "label": ["no", "1"] * 10})
    second = pd.DataFrame({"a": [1.0] * 9, "label": [1] * 9})
    paths = [write(part, tmp_path / f"{i}.csv") for i, part in enumerate((first, second))]
    assert list(FeatureRidgeClassifier(names_are_lost()).fit(paths, "label").classes_) == ["1", "no"]


@pytest.mark.parametrize(
    "new",
    [
        lambda: FeatureRidge(names_are_lost(), alphas=1.0),
        lambda: FeatureRidgeSearch(candidates={"linear": "passthrough"}),
        lambda: GramRidge(NTKFeatures(n_components=8), n_draws=2, random_state=0),
        lambda: KernelRidge(alphas=1.0),
        lambda: FeatureKMeans(names_are_lost(), 2, random_state=0),
    ],
)
def test_models_check_names_of_columns(frame, new):
    rows = frame[["a", "b", "c"]]
    fitted = new().fit(rows, frame["price"])
    np.testing.assert_array_equal(fitted.feature_names_in_, ["a", "b", "c"])
    expected = fitted.predict(rows)
    for other in (rows[["c", "b", "a"]], rows.rename(columns={"b": "B"})):
        with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
            fitted.predict(other)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(fitted.predict(rows.to_numpy()), expected)
    numbers = rows.rename(columns=dict(zip("abc", range(3), strict=True)))
    assert not hasattr(new().fit(numbers, frame["price"]), "feature_names_in_")


def test_names_of_streams_and_of_later_rows(frame):
    rows, y = frame[["a", "b", "c"]], frame["price"]
    items = [(rows[:50], y[:50]), (rows[50:][["c", "b", "a"]], y[50:])]
    for stream in (items, iter(items)):
        with pytest.raises(ValueError, match=r"(?s)^Item 1 of the stream, rows 0 to 49 .*feature names should match"):
            model(features=names_are_lost()).fit(stream)
    fitted = model(features=names_are_lost()).partial_fit(*items[0])
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.partial_fit(*items[1])
    assert fitted.n_samples_seen_ == 50


@pytest.mark.parametrize("features", [names_are_lost, scaled_features])
def test_errors_name_file_row_and_column(tmp_path, frame, features):
    rows = frame[["a", "b", "c", "price"]]
    paths = [write(rows[i : i + 40], tmp_path / f"{i}.csv") for i in (0, 40)]
    for column, value, what in (
        ("b", np.nan, "column 'b', value nan: .*NaN"),
        ("c", np.inf, "column 'c', value inf: .*infin"),
        ("price", np.nan, "column 'price', value nan: .*y.* NaN"),
        ("price", "dear", "column 'price', value 'dear': The 'y' .* without entries such as 'dear'"),
        ("a", "wide", "column 'a', value 'wide': could not convert"),
    ):
        bad = rows[80:].astype({column: object})
        bad.loc[93, column] = value
        third = write(bad, tmp_path / "third.csv")
        kind = TypeError if value == "dear" else ValueError
        with pytest.raises(kind, match=rf"(?s)^'.*third\.csv', row 13 \(counted from 0\), {what}"):
            model(features=features()).fit([*paths, third], "price")


@pytest.mark.parametrize("features", [names_are_lost, scaled_features])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_errors_name_item_and_row(features, batch_size):
    X, y, weight = table(40)

    def fit(*item):
        model(features=features(), batch_size=batch_size).fit([(X, y, weight), (X, y), item])

    def changed(values, value, place):
        values = values.copy()
        values[place] = value
        return values

    row = r"(?s)^Item 2 of the stream, row 33 \(counted from 0\)"
    with pytest.raises(ValueError, match=f"{row}, column 1, value nan: .*NaN"):
        fit(changed(X, np.nan, (33, 1)), y)
    with pytest.raises(ValueError, match=f"{row}, value inf: .*y"):
        fit(X, changed(y, np.inf, 33))
    with pytest.raises(TypeError, match=f"{row}, value 'dear': The 'y' .* without entries such as 'dear'"):
        fit(X, changed(y.astype(object), "dear", 33))
    with pytest.raises(ValueError, match=f"{row}, value -1.0: The 'sample_weight' parameter of FeatureRidge must be"):
        fit(X, y, changed(weight, -1, 33))
    with pytest.raises(ValueError, match=r"^Item 2 of the stream, rows 0 to \d+ .*: X has 2 features, but"):
        fit(X[:, :2], y)
    with pytest.raises(ValueError, match=r"^Item 2 of the stream \(counted from 0\): .* X of FeatureRidge has 40 rows"):
        fit(X, y[:-1])


def test_errors_of_other_kinds_keep_it():
    """They get a note with the place."""

    class OwnError(ValueError):
        def __init__(self, code, text):
            super().__init__(code, text)

    class Picky(TransformerMixin, BaseEstimator):
        def fit(self, X, y=None):  # noqa: ARG002
            return self

        def transform(self, X):
            if np.max(X) > 1e6:
                raise OwnError(3, "too large")
            return X

    X, y, _ = table()
    with pytest.warns(UserWarning, match="first block"), pytest.raises(OwnError) as caught:
        model(features=Picky()).fit([(X, y), (1e9 * X, y)])
    assert caught.value.args == (3, "too large")
    assert caught.value.__notes__ == ["Item 1 of the stream, rows 0 to 99 (counted from 0)"]


def test_items_without_rows_count():
    X, y, _ = table()
    empty = (X[:0], y[:0])
    with pytest.raises(TypeError, match="Got 5 as item 2"):
        model(features=names_are_lost()).fit(iter([empty, empty, 5]))


def test_files_are_closed(tmp_path, frame):
    """Also files that are not read to the end; warnings about open files are errors."""
    import gc

    rows = frame.drop(columns=["other", "label"])
    for ending in ("csv", "parquet", "csv.gz"):
        path = write(rows, tmp_path / f"t.{ending}")
        model(batch_size=10).fit(path, "price")
        with pytest.raises(ValueError, match="has no column"):
            model(batch_size=10).fit(path, "cost")
        gc.collect()
        folder = Path("/proc/self/fd")  # where there is one
        links = [link for link in folder.iterdir() if link.is_symlink()] if folder.exists() else []
        open_files = {os.readlink(link) for link in links}
        assert str(path) not in open_files


def test_lists_that_are_rows_and_lists_that_are_streams():
    """A list of numbers is rows, a list of tuples of arrays is a stream, with or without y."""
    X, y, _ = table()
    features = NTKFeatures(n_components=8, random_state=0)
    whole = model(features=features).fit(X, y)
    assert_same_model(model(features=features).fit(X.tolist(), list(y)), whole, X)
    assert_same_model(model(features=features).fit([tuple(row) for row in X], y), whole, X)
    assert_same_model(model(features=features).fit([(X, y)]), whole, X)
    with pytest.raises(ValueError, match="FeatureRidge requires y to be passed, but the target y is None"):
        model(features=features).fit(X.tolist())
    with pytest.raises(ValueError, match="FeatureRidge requires y to be passed, but the target y is None"):
        model(features=features).fit([(1.0, 2.0, 3.0)])
