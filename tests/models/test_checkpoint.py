"""A fit that was killed goes on where it was, to the same bits."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ntkit import FeatureRidge, FeatureRidgeClassifier, NTKFeatures, RandomFourierFeatures, _files
from ntkit._files import FileError
from ntkit.models import _checkpoint, _statistics
from ntkit.persistence import load_part, save_part

N, STEP = 6000, 250


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Statistics are settled after few rows, so that few rows make many checkpoints."""
    monkeypatch.setattr(_statistics, "FLUSH", 500)
    monkeypatch.setattr(_statistics, "_SMALL", 100)
    monkeypatch.setattr(_statistics, "_CORRECTIONS", 6)


@pytest.fixture
def X(rng):
    return rng.standard_normal((N, 4)) + 3.0


@pytest.fixture
def y(X, rng):
    return np.abs(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(N)


@pytest.fixture
def path(tmp_path):
    """A checkpoint in its own folder."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints" / "fit.checkpoint"


class StoppedError(Exception):
    """The exception that ends a fit in these tests."""


class Fuse(TransformerMixin, BaseEstimator):
    """Features that fail after some blocks."""

    left = np.inf

    def fit(self, X, y=None):  # noqa: ARG002
        self.map_ = RandomFourierFeatures(n_components=24, lengthscale=2.0, random_state=1).fit(X)
        self.n_features_in_ = self.map_.n_features_in_
        return self

    def transform(self, X):
        if X.shape[0] > 8:  # some first rows are looked at before the blocks come
            if Fuse.left <= 0:
                raise StoppedError
            Fuse.left -= 1
        return self.map_.transform(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.requires_fit = False  # its result does not depend on the rows
        return tags


@pytest.fixture(autouse=True)
def fuse():
    Fuse.left = np.inf
    yield
    Fuse.left = np.inf


def ridge(features=None, alphas=None, **parameters):
    options = {"random_state": 0, "n_selection": 100, "batch_size": STEP} | parameters
    return FeatureRidge(Fuse() if features is None else features, alphas=alphas, **options)


def classifier(features=None, alphas=None, **parameters):
    options = {"random_state": 0, "n_selection": 100, "batch_size": STEP} | parameters
    return FeatureRidgeClassifier(Fuse() if features is None else features, alphas=alphas, **options)


class Stream:
    """Blocks of rows, as often as one likes."""

    def __init__(self, *arrays, step=STEP):
        self.arrays, self.step = arrays, step

    def __iter__(self):
        for start in range(0, len(self.arrays[0]), self.step):
            yield tuple(a[start : start + self.step] for a in self.arrays)


def stopped(model, path, *data, after=11):
    """Fit until some blocks are done; return the content of the checkpoint."""
    Fuse.left = after
    with pytest.raises(StoppedError):
        model.fit(*data, checkpoint=path, checkpoint_every=0)
    Fuse.left = np.inf
    assert not hasattr(model, "features_")
    return load_part(_checkpoint.Progress, path, kind=_checkpoint.KIND)


def assert_identical(model, expected):
    for name in ("coef_", "intercept_", "alpha_", "errors_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(expected, name), err_msg=name)
    if isinstance(model, FeatureRidgeClassifier):
        np.testing.assert_array_equal(model.classes_, expected.classes_)
        assert model.classes_.dtype == expected.classes_.dtype
        assert model.temperature_ == expected.temperature_
    else:
        np.testing.assert_array_equal(model.noise_variance_, expected.noise_variance_)


# The same result from every kind of rows.


def sources(X, y, folder):
    """Functions that return fresh arguments of `fit`."""
    import pandas as pd

    np.save(folder / "X.npy", X)
    pd.DataFrame(X, columns=list("abcd")).assign(target=y).to_csv(folder / "rows.csv", index=False)
    pd.DataFrame(X, columns=list("abcd")).assign(target=y).to_parquet(folder / "rows.parquet")
    frame = pd.DataFrame(X, columns=list("abcd"))
    return {
        "array": lambda: (X, y),
        "float32": lambda: (X.astype(np.float32), y),
        "weights": lambda: (X, y, np.arange(N) % 5 / 2.0),
        "targets": lambda: (X, np.stack([y, y**2], axis=1)),
        "frame": lambda: (frame, pd.Series(y)),
        "sparse": lambda: (sp.csr_array(X), y),
        "memory map": lambda: (np.load(folder / "X.npy", mmap_mode="r"), y),
        "stream": lambda: (Stream(X, y),),
        "small blocks": lambda: (Stream(X, y, step=90),),
        "large blocks": lambda: (Stream(X, y, step=1100),),
        "generator": lambda: (iter(Stream(X, y)),),
        "weighted generator": lambda: (iter(Stream(X, y, np.arange(N) % 5 / 2.0)),),
        "csv": lambda: (folder / "rows.csv", "target"),
        "parquet": lambda: (str(folder / "rows.parquet"), "target"),
    }


KINDS = [
    "array", "float32", "weights", "targets", "frame", "sparse", "memory map", "stream", "small blocks", "large blocks",
    "generator", "weighted generator", "csv", "parquet",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_goes_on(kind, X, y, path, tmp_path):
    data = sources(X, y, tmp_path)[kind]
    Fuse.left = 1000
    expected = ridge().fit(*data())
    n_blocks = 1000 - Fuse.left
    assert_identical(ridge().fit(*data(), checkpoint=path, checkpoint_every=0), expected)
    assert list(path.parent.iterdir()) == []
    blocks = []
    for after in (9, 3, 8):  # stopped three times, each time further on
        blocks.append(stopped(ridge(), path, *data(), after=after).n_blocks)
    assert 0 < blocks[0] < blocks[2]
    assert sorted(blocks) == blocks
    assert list(path.parent.iterdir()) == [path]
    Fuse.left = n_blocks - blocks[2]  # blocks of the checkpoint are not mapped again
    model = ridge().fit(*data(), checkpoint=path)
    assert Fuse.left == 0
    assert_identical(model, expected)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("after", range(1, 25, 3))
def test_any_moment(after, X, y, path):
    expected = ridge().fit(X, y)
    Fuse.left = after
    try:
        ridge().fit(X, y, checkpoint=path, checkpoint_every=0)
    except StoppedError:
        assert path.exists() == (after >= 2)
    Fuse.left = np.inf
    assert_identical(ridge().fit(X, y, checkpoint=path, checkpoint_every=0), expected)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float64, "U", object])
def test_labels(dtype, X, path):
    """Two classes come after the checkpoint, one of them with a longer name."""
    labels = np.digitize(X[:, 0], [2.0, 3.0])
    labels[:4000] = labels[:4000] > 1
    if dtype is bool:
        labels = labels > 0
    elif dtype in ("U", object):
        labels = np.array(["b", "a", "much longer"])[labels].astype(dtype)
    else:
        labels = labels.astype(dtype)
    stream = Stream(X, labels)
    expected = classifier().fit(stream)
    metadata = stopped(classifier(), path, stream)
    assert len(metadata.targets.labels) == 2
    model = classifier().fit(stream, checkpoint=path)
    assert_identical(model, expected)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))


def test_standard_scaler_and_default_features(X, y, path):
    scaled = make_pipeline(StandardScaler(), Fuse())
    for stream in (Stream(X, y), Stream(X.astype(np.float32), y)):
        expected = ridge(scaled).fit(stream)
        stopped(ridge(scaled), path, stream)
        assert_identical(ridge(scaled).fit(stream, checkpoint=path), expected)
    default = FeatureRidge(random_state=0, n_selection=50).fit(X[:100], y[:100])
    again = FeatureRidge(random_state=0, n_selection=50).fit(X[:100], y[:100], checkpoint=path, checkpoint_every=0)
    assert_identical(again, default)


def test_fits_that_keep_their_rows_do_not_write_checkpoints(X, y, path):
    """Until there are more rows than features there are no sums to write."""
    features = RandomFourierFeatures(n_components=1200, lengthscale=2.0, random_state=0)
    model = ridge(features, 1.0)
    rows = X[:1000], y[:1000]
    assert_identical(model.fit(*rows, checkpoint=path, checkpoint_every=0), ridge(features, 1.0).fit(*rows))
    assert list(path.parent.iterdir()) == []


def test_checkpoints_are_written_every_so_often(X, y, path, monkeypatch):
    written = []
    monkeypatch.setattr("ntkit.persistence.save_part", lambda part, *_, **_options: written.append(part.n_blocks))
    ridge().fit(X, y, checkpoint=path)
    assert written == []  # 60 s have not passed
    ridge().fit(X, y, checkpoint=path, checkpoint_every=0)
    assert written == list(range(2, 25, 2))  # as often as sums are settled
    clock = iter(range(1000))
    monkeypatch.setattr(_checkpoint.time, "monotonic", lambda: 10.0 * next(clock))
    written.clear()
    ridge().fit(X, y, checkpoint=path, checkpoint_every=45.0)
    assert 1 < len(written) < 10


def test_progress_goes_on(X, y, path, capsys):
    stopped(ridge(), path, X, y)
    ridge(progress=True).fit(X, y, checkpoint=path)
    assert "6.00k/6.00k" in capsys.readouterr().err


def test_tensors(X, y, path):
    import torch

    class Tensors(Fuse):
        pass

    rows = torch.from_numpy(X)
    expected = ridge(Tensors()).fit(rows, torch.from_numpy(y))
    stopped(ridge(Tensors()), path, rows, torch.from_numpy(y))
    assert_identical(ridge(Tensors()).fit(rows, torch.from_numpy(y), checkpoint=path), expected)


# Checkpoints that must not be resumed.


def changed(case, X, y):
    """Model and rows that differ in one thing."""
    other, targets = X.copy(), y.copy()
    if case == "rows":
        other[0, 0] += 1e-9
    if case == "targets":
        targets = np.log1p(np.abs(y))
    models = {
        "features": lambda: ridge(RandomFourierFeatures(n_components=24, lengthscale=2.0, random_state=2)),
        "lengthscale": lambda: ridge(RandomFourierFeatures(n_components=24, lengthscale=2.5, random_state=1)),
        "components": lambda: ridge(RandomFourierFeatures(n_components=25, lengthscale=2.0, random_state=1)),
        "batch_size": lambda: ridge(batch_size=100),
        "n_selection": lambda: ridge(n_selection=99),
        "random_state": lambda: ridge(random_state=1),
        "class": classifier,
    }
    model = models.get(case, ridge)()
    return model, other, np.sign(targets).astype(int) if case == "class" else targets


CASES = [
    "rows", "targets", "features", "lengthscale", "components", "batch_size", "n_selection", "random_state", "class",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["array", "stream"])
def test_checkpoints_of_another_fit(case, kind, X, y, path):
    stopped(ridge(), path, *((X, y) if kind == "array" else (Stream(X, y),)))
    content = path.read_bytes()
    model, other, targets = changed(case, X, y)
    data = (other, targets) if kind == "array" else (Stream(other, targets),)
    with pytest.raises(FileError, match=r"from a fit with other parameters, features, files or first rows.*Remove it"):
        model.fit(*data, checkpoint=path)
    assert path.read_bytes() == content
    assert not hasattr(model, "features_")


@pytest.mark.parametrize(
    ("kind", "what"),
    [(kind, what) for kind in ("array", "stream") for what in ("rows", "targets", "weights")]
    + [("csv", "rows"), ("csv", "targets")],  # files have no weights
)
def test_rows_that_changed_later(kind, what, X, y, path, tmp_path):
    """Far behind the first rows, in blocks that the checkpoint holds."""
    weight = np.ones(N)
    arrays = {"rows": X, "targets": y, "weights": weight}

    def data():
        if kind == "array":
            return X, y, weight
        if kind == "stream":
            return (Stream(X, y, weight),)
        import pandas as pd

        frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
        (tmp_path / "t.csv").unlink(missing_ok=True)
        frame.to_csv(tmp_path / "t.csv", index=False)
        return str(tmp_path / "t.csv"), "y"

    assert stopped(ridge(), path, *data()).statistics.count > 1500
    arrays[what][1000:] *= 2.0
    with pytest.raises(FileError, match=r"other (rows, targets or weights|parameters, features, files)"):
        ridge().fit(*data(), checkpoint=path)
    path.unlink()
    ridge().fit(*data(), checkpoint=path)


def test_classes_that_come_late(X, path):
    """They stay in the order in which they were met."""
    labels = np.where(X[:, 0] > 3, 7, 5)
    labels[N // 3 :][X[N // 3 :, 1] > 4] = 1
    expected = classifier().fit(X, labels)
    stopped(classifier(), path, X, labels, after=20)
    assert_identical(classifier().fit(X, labels, checkpoint=path), expected)


def test_parts_without_a_seed_get_one_from_the_model(X, y, path):
    features = make_pipeline(StandardScaler(), RandomFourierFeatures(n_components=8))
    expected = ridge(features).fit(X, y)
    assert_identical(ridge(features).fit(X, y, checkpoint=path, checkpoint_every=0), expected)


def test_parameters_that_may_change(X, y, path):
    """The penalty, the intercept, the solver and the error come after the sums."""
    for parameters in (
        {"alphas": [0.1, 1.0]}, {"fit_intercept": False}, {"selection": "holdout"}, {"solver": "cholesky"},
    ):  # fmt: skip
        stopped(ridge(), path, X, y)
        assert_identical(ridge(**parameters).fit(X, y, checkpoint=path), ridge(**parameters).fit(X, y))


@pytest.mark.parametrize(
    "other",
    [
        lambda X, y: Stream(X, y, step=2 * STEP),
        lambda X, y: Stream(X[:1500], y[:1500]),
        lambda X, y: [*Stream(X[:STEP], y[:STEP]), *Stream(X[STEP + 7 :], y[STEP + 7 :], step=STEP - 7)],
        lambda X, y: iter(Stream(X[:1500], y[:1500])),
    ],
    ids=["larger blocks", "fewer rows", "other blocks", "shorter generator"],
)
def test_streams_that_come_in_other_blocks(other, X, y, path):
    """The first rows are the same, but the blocks of the checkpoint differ from the blocks of the stream."""
    model = ridge(batch_size=1000)
    assert stopped(model, path, Stream(X, y)).statistics.count > 1500
    content = path.read_bytes()
    with pytest.raises(FileError, match=r"checkpoint .*(rows|blocks)"):
        model.fit(other(X, y), checkpoint=path)
    assert path.read_bytes() == content
    assert not hasattr(model, "features_")
    assert_identical(model.fit(Stream(X, y), checkpoint=path), ridge(batch_size=1000).fit(Stream(X, y)))


@pytest.mark.parametrize(
    ("features", "parameters", "name"),
    [
        (NTKFeatures(n_components=8, random_state=0), {"random_state": None}, "random_state"),
        (NTKFeatures(n_components=8, random_state=np.random.default_rng(0)), {}, "features__random_state"),
        (None, {"random_state": np.random.RandomState(0)}, "random_state"),
    ],
    ids=["model", "generator", "legacy"],
)
def test_draws_that_could_not_be_made_again(features, parameters, name, X, y, path):
    """The error is raised at once, not after the fit has been killed."""
    model = ridge(features, **parameters)
    with pytest.raises(ValueError, match=rf"'{name}' parameter of FeatureRidge.fit must be an int.*checkpoint"):
        model.fit(X, y, checkpoint=path, checkpoint_every=0)
    assert list(path.parent.iterdir()) == []


def test_frozen_features_need_no_seed(X, y, path):
    features = FrozenEstimator(NTKFeatures(n_components=8).fit(X))
    expected = ridge(features).fit(X, y)
    assert_identical(ridge(features).fit(X, y, checkpoint=path, checkpoint_every=0), expected)


def test_files_that_are_no_checkpoints(X, y, path):
    _files.write(path, {"x": np.ones(3)}, {"kind": "model"})
    with pytest.raises(FileError, match="holds 'model', not 'checkpoint'"):
        ridge().fit(X, y, checkpoint=path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="not a complete ntkit file"):
        ridge().fit(X, y, checkpoint=path)


def test_bad_arguments(X, y, path, tmp_path):
    """Said before anything is asked of the rows."""
    for place, error, reason in (
        (tmp_path / "nowhere" / "fit.checkpoint", FileNotFoundError, "No such file"),
        (path.parent, IsADirectoryError, "it is a folder"),
        ("/proc/self/fit.checkpoint", OSError, ""),
    ):
        text = rf"'checkpoint' parameter of FeatureRidge.fit must .*'{place}' cannot be written: .*{reason}.*Choose"
        with pytest.raises(error, match=text):
            ridge().fit(iter(lambda: 1 / 0, None), checkpoint=place)
    for every, error in ((-1, ValueError), (np.nan, ValueError), ("a", TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"'checkpoint_every' parameter of FeatureRidge.fit must be .* ≥ 0"):
            ridge().fit(X, y, checkpoint=path, checkpoint_every=every)
    assert list(path.parent.iterdir()) == []


def test_fits_that_fail_keep_their_checkpoint(X, y, path, monkeypatch):
    """Also where the rows are all read and the solution fails, or is killed."""
    y[5900] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        ridge().fit(X, y, checkpoint=path, checkpoint_every=0)
    assert path.exists()
    y[5900] = 0.0
    expected = ridge().fit(X, y)

    def fail(*_arguments, **_options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("ntkit.models._base.choose", fail)
        with pytest.raises(MemoryError):
            ridge().fit(X, y, checkpoint=path, checkpoint_every=0)
    assert path.exists()
    assert_identical(ridge().fit(X, y, checkpoint=path), expected)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_is_gone_for_a_while(X, y, path):
    """The fit goes on, warns once, and writes again as soon as it can."""

    def blocks(last):
        for i, block in enumerate(Stream(X, y)):
            if i == 5:
                shutil.rmtree(path.parent)
            elif i == 11:
                path.parent.mkdir()
            elif i == last:
                raise StoppedError
            yield block

    expected = ridge().fit(Stream(X, y))
    text = rf"fit continues without it and tries again every 0 s.*'{path}' cannot be written: No such"
    with pytest.warns(RuntimeWarning, match=text) as found, pytest.raises(StoppedError):
        ridge().fit(blocks(15), checkpoint=path, checkpoint_every=0)
    assert len(found) == 1
    assert load_part(_checkpoint.Progress, path, kind=_checkpoint.KIND).n_blocks > 11
    assert_identical(ridge().fit(Stream(X, y), checkpoint=path), expected)


def test_a_complete_fit_is_not_lost_with_its_checkpoint(X, y, path):
    def blocks():
        yield from Stream(X, y)
        path.mkdir()  # which no fit can remove

    with pytest.warns(
        RuntimeWarning, match=rf"complete, but its checkpoint '{path}' could not be removed: .*Remove it"
    ):
        model = ridge().fit(blocks(), checkpoint=path)
    assert_identical(model, ridge().fit(Stream(X, y)))


def test_leftovers_of_killed_fits_are_removed(X, y, path):
    left = path.with_name(f".{path.name}.0123abcd.tmp")
    left.write_bytes(b"cut o")
    ridge().fit(X, y, checkpoint=path)
    assert list(path.parent.iterdir()) == []


def test_checkpoints_that_contradict_themselves(X, y, path):
    """Statistics of other sizes with the right fingerprint and checksum: someone has put them in."""
    labels = (y > 5).astype(int)
    stopped(classifier(), path, X, labels)
    other = load_part(_checkpoint.Progress, path, kind=_checkpoint.KIND)
    path.unlink()
    mine = stopped(ridge(), path, X, y)
    for changes in ({"statistics": other.statistics}, {"targets": other.targets}):
        save_part(replace(mine, **changes), path, kind=_checkpoint.KIND)
        with pytest.raises(FileError, match=rf"'{path}' is inconsistent\. Remove it"):
            ridge().fit(X, y, checkpoint=path)
