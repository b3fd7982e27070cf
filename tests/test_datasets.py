"""Loaders. Tests that need files are skipped if they are not in the folder NTKIT_DATA."""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier
from tests.tiers import thorough

from ntkit import datasets
from ntkit.datasets import Dataset, dataset_names, load_dataset

SHAPES = {
    "abalone": [(4177, 10)],
    "airtemp": [(12 * 73 * 144, 4)],
    "california_housing": [(20640, 8)],
    "cifar10": [(50000, 32, 32, 3), (10000, 32, 32, 3)],
    "connect4": [(67557, 126)],
    "digits": [(1797, 64)],
    "elevation": [(540 * 1080, 3)],
    "magic04": [(19020, 10)],
    "mnist": [(60000, 28, 28, 1), (10000, 28, 28, 1)],
    "mushroom": [(8124, 117)],
    "pendigits": [(7494, 16), (3498, 16)],
    "protein": [(45730, 9)],
    "shuttle": [(43500, 9), (14500, 9)],
    "year_subset": [(5000, 90), (2000, 90)],
}
TABLES = ("ct_slices", "protein", "workloads", "year")  # of these the tests make small files
FETCHED = ("abalone", "california_housing", "cifar10", "magic04", "mnist", "mushroom")
LARGE = ("cifar10", "mnist")
FILES = {"abalone": "uci_abalone", "california_housing": "california_housing", "connect4": "uci_connect4"}


def each(names):
    """Data sets as parameters; those that take seconds to read only in the large suite."""
    return [pytest.param(name, marks=thorough) if name in LARGE else name for name in names]


def load(name: str) -> Dataset:
    """From files, or skip."""
    folder = os.environ.get("NTKIT_DATA")
    files = datasets._SOURCES[name].files
    if files and not folder:
        pytest.skip("NTKIT_DATA names no folder with data sets")
    if files and not all((Path(folder) / file).is_file() for file in files):
        pytest.skip(f"{folder} lacks {', '.join(files)}")
    return load_dataset(name)


@pytest.fixture
def offline(monkeypatch):
    def fail(*_, **__):
        raise URLError("no connection")

    for name in ("fetch_openml", "fetch_california_housing"):
        monkeypatch.setattr(sklearn.datasets, name, fail)


def test_names():
    assert set(dataset_names()) == {*SHAPES, *TABLES}
    assert list(dataset_names()) == sorted(dataset_names())
    for name in dataset_names():
        assert re.search(rf"^    {name} +(regression|classification) .* {access(name)} ", load_dataset.__doc__, re.M)


def access(name):
    """How users get a data set."""
    source = datasets._SOURCES[name]
    return "bundled" if not source.files else "download" if source.fetch else "UCI file" if source.table else "own file"


PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "datasets.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not here")
@pytest.mark.parametrize("name", dataset_names())
def test_the_page_of_data_sets(name):
    row, *_ = re.findall(rf"^\| {name} \|.*$", PAGE.read_text(), re.M)
    assert f"| {access(name)}" in row
    source = datasets._SOURCES[name]
    origin = source.table or datasets._ORIGINS.get(name)
    assert origin is None or origin.page.split()[0] in row
    assert all(file in row for file in source.files)


OWN = [name for name in dataset_names() if access(name) == "own file"]


@pytest.mark.parametrize("name", OWN)
def test_unavailable_data_sets_say_where_to_get_them(name, tmp_path, monkeypatch):
    monkeypatch.delenv("NTKIT_DATA", raising=False)
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name, data_home=tmp_path)
    told, origin = str(caught.value), datasets._ORIGINS[name]
    for part in ("cannot download", "https://", origin.page, origin.files, origin.arrays, str(tmp_path)):
        assert part in told
    assert datasets._SOURCES[name].files[0] in told


@pytest.mark.parametrize("name", OWN)
def test_files_have_the_arrays_that_the_error_asks_for(name):
    load(name)  # or skip
    origin = datasets._ORIGINS[name]
    with np.load(Path(os.environ["NTKIT_DATA"]) / datasets._SOURCES[name].files[0]) as file:
        for key, shape in re.findall(r"(\w+) \(([\d, ]+)\)", origin.arrays):
            assert file[key].shape == tuple(int(size) for size in shape.split(",") if size.strip())


@pytest.mark.parametrize("name", each(SHAPES))
def test_shapes_and_types(name):
    data = load(name)
    assert data.name == name
    shapes = [data.X.shape] if data.X_test is None else [data.X.shape, data.X_test.shape]
    assert shapes == SHAPES[name]
    image = data.X.ndim == 4
    assert data.X.dtype == (np.uint8 if image else np.float64 if name in ("airtemp", "elevation") else np.float32)
    for X, y in [(data.X, data.y)] + ([(data.X_test, data.y_test)] if data.X_test is not None else []):
        assert y.shape == X.shape[:1]
        assert X.dtype == data.X.dtype
        assert np.isfinite(X.sum(dtype=np.float64))
        assert np.isfinite(y).all()
        assert y.dtype == {"regression": np.float64, "classification": np.int64}[data.task]
    assert f" {data.task} " in re.search(rf"^    {name} +.*$", load_dataset.__doc__, re.M)[0]
    if image:
        assert data.feature_names is None
    else:
        assert len(set(data.feature_names)) == data.X.shape[1]
        assert all(type(column) is str for column in data.feature_names)
    assert isinstance(data.target_name, str)
    assert len(repr(data)) < 200


COUNTS = {
    "cifar10": [5000] * 10,
    "connect4": [6449, 16635, 44473],
    "magic04": [12332, 6688],
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "mushroom": [4208, 3916],
    "shuttle": [0, 34108, 37, 132, 6748, 2458, 6, 11],
}


@pytest.mark.parametrize("name", each(COUNTS))
def test_number_of_classes_is_as_published(name):
    np.testing.assert_array_equal(np.bincount(load(name).y), COUNTS[name])


@pytest.mark.parametrize(
    ("name", "low", "high"), [("protein", 4.9, 5.4), ("california_housing", 0.65, 0.8), ("abalone", 2.0, 2.4)]
)
def test_targets_match_their_rows(name, low, high):
    """RMSE of a linear model on every fifth row, as published."""
    data = load(name)
    test = np.arange(len(data.X)) % 5 == 0
    model = LinearRegression().fit(data.X[~test].astype(np.float64), data.y[~test])
    error = np.sqrt(np.mean((model.predict(data.X[test].astype(np.float64)) - data.y[test]) ** 2))
    assert low < error < high


@pytest.mark.parametrize(
    ("name", "accuracy"), [("pendigits", 0.977), pytest.param("mnist", 0.936, marks=thorough), ("shuttle", 0.999)]
)
def test_test_sets_match_their_training_sets(name, accuracy):
    """Of the nearest neighbour: deterministic, 0.936 on the first 20000 and 2000 digits of MNIST, chance is 0.1."""
    data = load(name)
    n, m = (20000, 2000) if name == "mnist" else (len(data.X), len(data.X_test))
    X, X_test = (part.reshape(len(part), -1).astype(np.float32) for part in (data.X[:n], data.X_test[:m]))
    model = KNeighborsClassifier(1).fit(X, data.y[:n])
    assert model.score(X_test, data.y_test[:m]) == pytest.approx(accuracy, abs=1e-3)


@thorough
def test_cifar_is_in_its_order():
    data = load("cifar10")
    np.testing.assert_array_equal(data.y_test[:10], [3, 8, 8, 0, 6, 6, 1, 6, 3, 1])
    np.testing.assert_array_equal(data.y[:10], [6, 9, 9, 4, 1, 1, 2, 7, 8, 3])
    np.testing.assert_allclose(data.X[::5].mean(axis=(0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=5e-3)


def test_parts_of_a_data_set_are_put_one_after_the_other(tmp_path):
    images = np.arange(5 * 2 * 2 * 3, dtype=np.uint8).reshape(5, 2, 2, 3)
    for part, rows in (("train_1", slice(0, 2)), ("train_2", slice(2, 4)), ("test", slice(4, 5))):
        key = part.split("_")[0]
        arrays = {f"X_{key}": images[rows], f"y_{key}": np.arange(5, dtype=np.uint8)[rows]}
        np.savez(tmp_path / f"cifar10_{part}.npz", **arrays)
    data = load_dataset("cifar10", data_home=tmp_path)
    np.testing.assert_array_equal(data.X, images[:4])
    np.testing.assert_array_equal(data.X_test, images[4:])
    np.testing.assert_array_equal(np.append(data.y, data.y_test), np.arange(5))


def test_connect4_is_one_hot():
    data = load("connect4")
    squares = data.X.reshape(-1, 42, 3)
    np.testing.assert_array_equal(squares.sum(axis=2), 1)
    np.testing.assert_array_equal(squares.sum(axis=1), np.tile([34, 4, 4], (len(squares), 1)))
    assert data.feature_names[:4] == ("a1=blank", "a1=o", "a1=x", "a2=blank")


def test_mushroom_is_one_hot():
    data = load("mushroom")
    np.testing.assert_array_equal(data.X.sum(axis=1), 22)
    assert data.X[:, data.feature_names.index("stalk-root=?")].sum() == 2480


@pytest.mark.parametrize("name", ["elevation", "airtemp"])
def test_points_lie_on_the_sphere(name):
    data = load(name)
    np.testing.assert_allclose((data.X[:, :3] ** 2).sum(axis=1), 1, rtol=1e-14)

    def nearest(latitude, longitude, month=None):
        lat, lon = np.deg2rad([latitude, longitude])
        closeness = data.X[:, :3] @ [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)]
        if month is not None:
            closeness -= 10 * (data.X[:, 3] != month)
        return data.y[np.argmax(closeness)]

    if name == "elevation":
        assert nearest(33, 88) > 4500  # Tibet
        assert nearest(11.35, 142.2) < -7000  # Mariana trench
        assert nearest(0, -140) < -3000  # Pacific
        land = np.average(data.y > 0, weights=np.hypot(data.X[:, 0], data.X[:, 1]))
        assert 0.27 < land < 0.31
    else:
        assert set(data.X[:, 3]) == set(range(1, 13))
        assert nearest(65, 130, 1) < -25  # Yakutia in January
        assert nearest(65, 130, 7) > 10
        assert nearest(23, 15, 7) > 28  # Sahara in July
        assert nearest(-25, 135, 1) > nearest(-25, 135, 7) + 8  # Australia


# Places.


def write(folder, name, **arrays):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{FILES[name]}.npz", **arrays)


@pytest.mark.usefixtures("offline")
def test_data_home_comes_first_then_the_environment(tmp_path, monkeypatch):
    X = np.zeros((3, 8), np.float32)
    for i, place in enumerate(("a", "b")):
        write(tmp_path / place, "california_housing", X=X + i, y=np.full(3, i))
    monkeypatch.setenv("NTKIT_DATA", str(tmp_path / "b"))
    assert load_dataset("california_housing", data_home=tmp_path / "a").X.max() == 0
    assert load_dataset("california_housing", data_home=str(tmp_path / "nowhere")).X.max() == 1
    assert load_dataset("california_housing").X.max() == 1
    monkeypatch.delenv("NTKIT_DATA")
    with pytest.raises(FileNotFoundError):
        load_dataset("california_housing")


def test_one_hot_of_small_boards(tmp_path):
    codes = np.arange(84, dtype=np.uint8).reshape(2, 42) % 3
    write(tmp_path, "connect4", X=codes, y=np.array([0, 2], np.uint8))
    data = load_dataset("connect4", data_home=tmp_path)
    expected = np.stack([codes == c for c in range(3)], 2).reshape(-1, 126)
    np.testing.assert_array_equal(data.X, expected)


# Files of the UCI archive.


def table_rows(name, n=7):
    """Numbers as they stand in the file."""
    width = {"ct_slices": 386, "protein": 10, "workloads": 8, "year": 91}[name]
    rows = np.round(np.random.default_rng(0).standard_normal((n, width)), 4)
    rows[:, 0] = {"ct_slices": 5, "protein": 1, "workloads": np.arange(n), "year": 1990 + np.arange(n)}[name]
    return rows


def table_text(name, rows, missing=""):
    header = {
        "ct_slices": ["patientId", *(f"value{i}" for i in range(384)), "reference"],
        "protein": ["RMSD", *(f"F{i}" for i in range(1, 10))],
        "workloads": ["", "x", "y", "x_range", "y_range", "count", "sum_", "avg"],
    }
    lines = [[missing if np.isnan(value) else str(value) for value in row] for row in rows]
    return "\n".join(",".join(line) for line in ([header[name]] if name in header else []) + lines) + "\n"


@pytest.fixture
def _any_length(monkeypatch):
    """Accept tables of a few rows as complete."""
    for name in TABLES:
        source = datasets._SOURCES[name]
        monkeypatch.setitem(datasets._SOURCES, name, replace(source, table=replace(source.table, n_rows=None)))


@pytest.mark.usefixtures("_any_length")
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("form", ["plain", "old archive", "new archive"])
def test_tables_of_the_archive(name, form, tmp_path):
    table, rows = datasets._SOURCES[name].table, table_rows(name)
    text = table_text(name, rows)
    if form == "plain":
        (tmp_path / table.file).write_text(text)
    else:
        with zipfile.ZipFile(tmp_path / table.archives[0 if form == "old archive" else -1], "w") as archive:
            archive.writestr("readme.txt", "nothing")
            archive.writestr(f"Datasets/{table.file}", text)
    data = load_dataset(name, data_home=tmp_path)
    first = name in ("protein", "year")
    target, X = (rows[:, 0], rows[:, 1:]) if first else (rows[:, -1], rows[:, 1:-1])
    np.testing.assert_allclose(data.y, target, rtol=1e-15)
    np.testing.assert_array_equal(data.X, X.astype(np.float32))
    assert (data.X.dtype, data.y.dtype, data.task) == (np.float32, np.float64, "regression")
    assert len(set(data.feature_names)) == data.X.shape[1]
    names = {"ct_slices": "reference", "protein": "RMSD", "workloads": "avg", "year": "year"}
    assert data.target_name == names[name]
    assert data.X_test is None if name != "year" else data.X_test.shape == (0, 90)


@pytest.mark.parametrize("name", ["ct_slices", "protein", "year"])
def test_tables_cut_short_are_refused(name, tmp_path):
    table = datasets._SOURCES[name].table
    (tmp_path / table.file).write_text(table_text(name, table_rows(name)))
    rows = {"ct_slices": 53500, "protein": 45730, "year": 515345}[name]
    with pytest.raises(ValueError, match=rf"is not the file from .* \(7 rows instead of {rows}\)"):
        load_dataset(name, data_home=tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_tables_without_rows_are_refused(name, tmp_path):
    table = datasets._SOURCES[name].table
    rows = table_rows(name)
    for text in ("", table_text(name, rows[:0]), table_text(name, np.full_like(rows, np.nan), "nan")):
        (tmp_path / table.file).write_text(text)
        with pytest.raises(ValueError, match=r"is not the file from .* \(no complete row\)"):
            load_dataset(name, data_home=tmp_path)


@pytest.mark.parametrize("missing", ["", "NaN", "nan", "NA"])
def test_workloads_have_each_row_once_and_no_missing_averages(missing, tmp_path):
    rows = table_rows("workloads", 6)
    rows[[2, 5], 1:] = rows[0, 1:]
    rows[3, -1] = np.nan
    (tmp_path / "Range-Queries-Aggregates.csv").write_text(table_text("workloads", rows, missing))
    data = load_dataset("workloads", data_home=tmp_path)
    np.testing.assert_allclose(data.y, rows[[0, 1, 4], -1], rtol=1e-15)
    np.testing.assert_array_equal(data.X, rows[[0, 1, 4], 1:-1].astype(np.float32))


def test_the_last_songs_are_for_tests():
    rows = np.zeros((463715 + 3, 2))
    rows[:, 0] = np.arange(len(rows))
    arrays = datasets._years(rows)
    np.testing.assert_array_equal(arrays["y_test"], len(rows) - 3 + np.arange(3))
    assert arrays["X_test"].shape == (3, 1)
    np.testing.assert_array_equal(arrays["y_train"], np.arange(463715))


@pytest.mark.parametrize("name", TABLES)
def test_converted_tables_come_first(name, tmp_path):
    table = datasets._SOURCES[name].table
    (tmp_path / table.file).write_text("broken")
    columns = datasets._SOURCES[name].feature_names
    data = {"X": np.ones((3, len(columns)), np.float32), "y": np.arange(3.0)}
    np.savez(tmp_path / datasets._SOURCES[name].files[0], **data)
    np.testing.assert_array_equal(load_dataset(name, data_home=tmp_path).y, np.arange(3))


@pytest.mark.parametrize("name", TABLES)
def test_broken_tables(name, tmp_path):
    table = datasets._SOURCES[name].table
    path = tmp_path / table.file
    page = re.escape(table.page)
    whole = table_text(name, table_rows(name))
    for text in (whole[: -3 * len(whole) // 20], "a,b\nc,d\n", "1,2\n3,4\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))} is not the file from {page} \("):
            load_dataset(name, data_home=tmp_path)
    path.unlink()
    path = tmp_path / table.archives[0]
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=rf"is not the file from {page} \(File is not a zip file"):
        load_dataset(name, data_home=tmp_path)


@pytest.mark.usefixtures("_any_length")
@pytest.mark.parametrize("damage", ["bytes", "checksum", "encrypted", "unknown compression", "cut short"])
def test_damaged_archives(damage, tmp_path):
    table = datasets._SOURCES["year"].table
    path = tmp_path / table.archives[0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(table.file, table_text("year", table_rows("year")))
    assert len(load_dataset("year", data_home=tmp_path).X) == 7
    content = bytearray(path.read_bytes())
    contents = content.rindex(b"PK\x01\x02")  # the list of its contents
    if damage == "bytes":
        start = 30 + len(table.file)
        content[start : start + 20] = b"\xff" * 20
    elif damage == "checksum":
        content[contents + 16] ^= 1
    elif damage == "encrypted":
        content[6] = content[contents + 8] = 1
    elif damage == "unknown compression":
        content[8] = content[contents + 10] = 99
    else:
        del content[-30:]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"txt\.zip is not the file from .*Download it again"):
        load_dataset("year", data_home=tmp_path)


def test_archives_of_other_things_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.delenv("NTKIT_DATA", raising=False)
    table, rows = datasets._SOURCES["workloads"].table, table_rows("workloads")
    with zipfile.ZipFile(tmp_path / "datasets.zip", "w") as archive:
        archive.writestr("other.csv", "1,2\n")
    with pytest.raises(FileNotFoundError, match=r"and archives that contain it \(datasets\.zip, "):
        load_dataset("workloads", data_home=tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / table.file).write_text(table_text("workloads", rows))
    monkeypatch.setenv("NTKIT_DATA", str(tmp_path / "b"))
    assert len(load_dataset("workloads", data_home=tmp_path).X) == len(rows)
    with zipfile.ZipFile(tmp_path / table.archives[1], "w") as archive:
        archive.writestr(table.file, table_text("workloads", rows[:3]))
    assert len(load_dataset("workloads", data_home=tmp_path).X) == 3


@pytest.mark.parametrize("name", TABLES)
def test_messages_name_the_source_of_tables(name, tmp_path, monkeypatch):
    monkeypatch.delenv("NTKIT_DATA", raising=False)
    table = datasets._SOURCES[name].table
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset(name, data_home=tmp_path)
    for part in (repr(name), table.file, *table.archives, table.page, str(tmp_path), "data_home", "NTKIT_DATA"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("offline")
def test_messages_name_the_missing_file_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("NTKIT_DATA", str(tmp_path / "b"))
    with pytest.raises(FileNotFoundError) as caught:
        load_dataset("protein", data_home=tmp_path / "a")
    for part in ("'protein'", "uci_protein.npz", str(tmp_path / "a"), str(tmp_path / "b"), "data_home", "NTKIT_DATA"):
        assert part in str(caught.value)
    for part in ("cannot download", "CASP.csv", "https://archive.ics.uci.edu/dataset/265"):
        assert part in str(caught.value)
    monkeypatch.delenv("NTKIT_DATA")
    with pytest.raises(FileNotFoundError, match=r"looked for uci_connect4.npz in no folder, because none was given"):
        load_dataset("connect4")
    for name in FETCHED:
        with pytest.raises(FileNotFoundError, match=r"Downloading it failed.*no connection.*internet.*NTKIT_DATA"):
            load_dataset(name)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"'name' parameter of load_dataset must be one of 'abalone', .* Got 'iris'"):
        load_dataset("iris")
    with pytest.raises(TypeError, match="'name' parameter of load_dataset"):
        load_dataset(3)


def test_broken_files(tmp_path):
    path = tmp_path / "uci_abalone.npz"
    for content in (b"", b"nothing", b"PK\x03\x04broken"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"uci_abalone\.npz is not an \.npz file"):
            load_dataset("abalone", data_home=tmp_path)
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))  # one array, not several
    with pytest.raises(ValueError, match=r"uci_abalone\.npz is not an \.npz file"):
        load_dataset("abalone", data_home=tmp_path)
    np.savez(path, X=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(ValueError, match=r"uci_abalone\.npz is not an \.npz file of plain arrays"):
        load_dataset("abalone", data_home=tmp_path)
    np.savez(path, X=np.zeros((1, 10)))
    with pytest.raises(ValueError, match=r"uci_abalone\.npz: there is no array 'y'"):
        load_dataset("abalone", data_home=tmp_path)


# scikit-learn's loaders give the content of the files: these replace OpenML and StatLib.


def played(name, monkeypatch):
    """Let scikit-learn's fetchers return the rows of a file, laid out as OpenML and scikit-learn have them."""
    import pandas as pd

    arrays = datasets._read([Path(os.environ["NTKIT_DATA"]) / file for file in datasets._SOURCES[name].files])
    if name == "abalone":
        frame = pd.DataFrame({"Sex": pd.Categorical(np.array(["M", "F", "I"])[arrays["sex"]])})
        frame[[f"size{i}" for i in range(7)]] = arrays["X"][:, 3:].astype(np.float64)
        target = pd.Series(arrays["y"].astype(str), dtype="category")
    elif name == "magic04":
        frame = pd.DataFrame(arrays["X"].astype(np.float64), columns=[f"{c}:" for c in datasets._MAGIC])
        frame.insert(0, "ID", np.arange(len(frame)))
        target = pd.Series(np.array(["g", "h"])[arrays["y"]], dtype="category")
    elif name == "mushroom":
        letters = {}
        for column in arrays["columns"]:
            letters.setdefault(column.split("=")[0], []).append(column.split("=")[1])
        columns = zip(letters.items(), arrays["codes"].T, strict=True)
        frame = pd.DataFrame({key: pd.Categorical(np.array(value)[code]) for (key, value), code in columns})
        frame["stalk-root"] = frame["stalk-root"].cat.remove_categories("?")  # OpenML: a missing value
        target = pd.Series(np.array(["e", "p"])[arrays["y"]], dtype="category")
    elif name == "cifar10":
        images = np.concatenate([arrays["X_train"], arrays["X_test"]])
        frame = pd.DataFrame(images.transpose(0, 3, 1, 2).reshape(-1, 3072))  # one channel after the other
        target = pd.Series(np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(str), dtype="category")
    elif name == "mnist":
        pixels = np.concatenate([arrays["X_train"], arrays["X_test"]]).reshape(-1, 784)
        frame = pd.DataFrame(pixels)
        target = pd.Series(np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(str), dtype="category")
    else:
        frame, target = arrays["X"].astype(np.float64), arrays["y"].astype(np.float64)
    homes = []

    def fetch(*names, data_home, return_X_y, **parameters):
        assert return_X_y
        homes.append(data_home)
        if names:
            assert parameters["version"] == 1
        return frame, target

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    monkeypatch.setattr(sklearn.datasets, "fetch_california_housing", fetch)
    return homes


@pytest.mark.parametrize("name", each(FETCHED))
def test_fetched_data_equal_the_files(name, monkeypatch, tmp_path):
    expected = load(name)
    homes = played(name, monkeypatch)
    monkeypatch.delenv("NTKIT_DATA")
    data = load_dataset(name, data_home=tmp_path)
    assert homes == [str(tmp_path)]
    assert data.feature_names == expected.feature_names
    for key in ("X", "y", "X_test", "y_test"):
        a, b = getattr(data, key), getattr(expected, key)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_another_data_set_of_the_same_name_is_not_taken(monkeypatch):
    import pandas as pd

    frame = pd.DataFrame({"Sex": ["M", "F"], "Length": [1.0, 2.0]})
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *_, **__: (frame, pd.Series([1, 2])))
    monkeypatch.delenv("NTKIT_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"rows have shape \(2, 4\) instead of \(4177, 10\)"):
        load_dataset("abalone")


@thorough
@pytest.mark.parametrize("fault", ["channels last", "shuffled"])
def test_images_in_another_order_are_not_taken(fault, monkeypatch):
    import pandas as pd

    images = np.zeros((60000, 3, 1024), np.uint8)
    images[0, :, 0] = 59, 62, 63
    labels = np.resize([3, 8, 8, 0, 6, 6, 1, 6, 3, 1], 60000)
    if fault == "channels last":
        images = images.transpose(0, 2, 1)
    else:
        labels = np.roll(labels, 1)
    frame, target = pd.DataFrame(images.reshape(60000, 3072)), pd.Series(labels.astype(str))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *_, **__: (frame, target))
    monkeypatch.delenv("NTKIT_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="the order of the images differs"):
        load_dataset("cifar10")
