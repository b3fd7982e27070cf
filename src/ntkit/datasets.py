"""Real data sets by name, from local files or downloaded by scikit-learn.

Each data set consists of ``.npz`` files in `data_home` or in the folder that the environment variable ``NTKIT_DATA``
names. scikit-learn can download some data sets. For others, the original file from the UCI archive also works. For the
rest, the error message says where to find the original data and which arrays to save.
"""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from ntkit._validation import check_choice

__all__ = ["Dataset", "dataset_names", "load_dataset"]

Arrays: TypeAlias = dict[str, np.ndarray]

_CALIFORNIA = ("MedInc", "HouseAge", "AveRooms", "AveBedrms", "Population", "AveOccup", "Latitude", "Longitude")
_ABALONE = (
    "sex=M", "sex=F", "sex=I", "length", "diameter", "height", "whole_weight", "shucked_weight", "viscera_weight",
    "shell_weight",
)  # fmt: skip
_MAGIC = ("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist")
_MUSHROOM = (
    "cap-shape", "cap-surface", "cap-color", "bruises", "odor", "gill-attachment", "gill-spacing", "gill-size",
    "gill-color", "stalk-shape", "stalk-root", "stalk-surface-above-ring", "stalk-surface-below-ring",
    "stalk-color-above-ring", "stalk-color-below-ring", "veil-type", "veil-color", "ring-number", "ring-type",
    "spore-print-color", "population", "habitat",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set returned by :func:`load_dataset`.

    Attributes
    ----------
    name : str
    X : ndarray of shape (n_samples, n_features) or (n_samples, height, width, channels)
        Raw, unscaled values: float32 for tables, float64 for points on the sphere, uint8 for images.
    y : ndarray of shape (n_samples,)
        float64 for regression, int64 for classification.
    task : {"regression", "classification"}
    target_name : str
    X_test, y_test : ndarray or None
        Test set, if the data set has a standard split; X and y are then the training set.
    feature_names : tuple of str or None
        Column names; None for images.

    Examples
    --------
    >>> from ntkit.datasets import load_dataset
    >>> load_dataset("digits")
    Dataset('digits', task='classification', X=float32 (1797, 64), y=int64 (1797,))
    """

    name: str
    X: np.ndarray
    y: np.ndarray
    task: str
    target_name: str
    X_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    feature_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        arrays = {name: getattr(self, name) for name in ("X", "y", "X_test", "y_test")}
        shown = [f"{name}={a.dtype} {a.shape}" for name, a in arrays.items() if a is not None]
        return f"Dataset({self.name!r}, task={self.task!r}, {', '.join(shown)})"


def dataset_names() -> tuple[str, ...]:
    """Return the names that :func:`load_dataset` accepts.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from ntkit.datasets import dataset_names
    >>> "protein" in dataset_names()
    True
    """
    return tuple(_SOURCES)


def load_dataset(name: str, *, data_home: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a real data set.

    ==================  ==============  ==============  ========  =====================================================
    name                task            rows × columns  from      content
    ==================  ==============  ==============  ========  =====================================================
    abalone             regression      4177 × 10       download  rings of abalones; sex one-hot
    airtemp             regression      126144 × 4      own file  monthly air temperature (°C): point on sphere, month
    california_housing  regression      20640 × 8       download  house values in 100 000 USD, 1990 census
    cifar10             classification  50000 + 10000   download  images 32 × 32 × 3
    connect4            classification  67557 × 126     own file  positions of Connect-4, one-hot; draw, loss, win
    ct_slices           regression      53500 × 384     UCI file  position of CT slices in the body, from histograms
    digits              classification  1797 × 64       bundled   scikit-learn's 8 × 8 digits, flattened
    elevation           regression      583200 × 3      own file  height or depth (m) at points on the sphere
    magic04             classification  19020 × 10      download  gamma telescope; 0 gamma, 1 hadron
    mnist               classification  60000 + 10000   download  images 28 × 28 × 1
    mushroom            classification  8124 × 117      download  mushrooms, one-hot; 0 edible, 1 poisonous
    pendigits           classification  7494 + 3498     own file  handwritten digits: 8 points of the pen
    protein             regression      45730 × 9       UCI file  CASP: RMSD (Å) of predicted protein structures
    shuttle             classification  43500 + 14500   own file  Statlog shuttle, classes 1 to 7
    workloads           regression      ≤ 200000 × 6    UCI file  crime range queries: average from place, count, sum
    year                regression      463715 + 51630  UCI file  YearPredictionMSD: song year from 90 timbre values
    year_subset         regression      5000 + 2000     own file  a random subset of YearPredictionMSD
    ==================  ==============  ==============  ========  =====================================================

    "bundled": included in scikit-learn. "download": scikit-learn downloads it. "UCI file": provide the original file
    from the UCI archive. "own file": provide an ``.npz`` file made from the original data; if it is missing, the error
    message says where to find the original and which arrays the file must have. The classes of connect4 are 0 draw,
    1 loss and 2 win, for the first player.

    Points on the sphere are unit vectors (cos φ cos λ, cos φ sin λ, sin φ), one for each cell of a grid of latitudes φ
    and longitudes λ. The grid is denser near the poles: for a uniform sample, draw rows with probability
    ∝ cos φ = √(x² + y²).

    Four data sets are read from the original UCI files, plain or zipped:

    - ct_slices from slice_localization_data.csv, without the patient number;
    - protein from CASP.csv;
    - workloads from Range-Queries-Aggregates.csv. The target is avg; rows without a target and duplicate rows are
      dropped;
    - year from YearPredictionMSD.txt, whose last 51630 rows are the test set.

    An ``.npz`` file with the arrays of a :class:`Dataset` takes precedence. It has the same name (uci_protein.npz for
    protein).

    Parameters
    ----------
    name : str
        One of :func:`dataset_names`.
    data_home : path, optional
        Folder with the files. Next, the folder named by the environment variable ``NTKIT_DATA`` is searched. Then
        scikit-learn downloads abalone, california_housing, cifar10, magic04, mnist and mushroom into `data_home`
        (None: its own default folder). digits is included in scikit-learn.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        If the data set is not found; the message says what to do.
    ValueError
        If a file is damaged.

    Examples
    --------
    >>> from ntkit.datasets import load_dataset
    >>> digits = load_dataset("digits")
    >>> digits.X.shape, digits.task
    ((1797, 64), 'classification')
    """
    source = _SOURCES[check_choice(name, "name", "load_dataset", _SOURCES)]
    folders = [Path(place) for place in (data_home, os.environ.get("NTKIT_DATA")) if place]
    for folder in folders:
        paths = [folder / file for file in source.files]
        if paths and all(path.is_file() for path in paths):
            try:
                return _build(name, source, _read(paths))
            except KeyError as error:
                files = ", ".join(map(str, paths))
                raise ValueError(f"{files}: there is no array {error}. Download the file again.") from error
        if source.table is not None and (path := _table_path(folder, source.table)) is not None:
            return _build(name, source, source.table.arrange(_read_table(path, source.table)))
    if source.fetch is None:
        raise FileNotFoundError(_missing(name, source, folders))
    try:
        arrays = source.fetch(None if data_home is None else os.fspath(data_home))
    except (ImportError, OSError, ValueError) as error:  # includes scikit-learn's download errors
        raise FileNotFoundError(_missing(name, source, folders, error)) from error
    return _build(name, source, arrays)


def _missing(name: str, source: _Source, folders: Sequence[Path], error: Exception | None = None) -> str:
    looked_for, table, origin = ", ".join(source.files), source.table, _ORIGINS.get(name)
    files = "the files"
    if table is not None:
        looked_for += f", {table.file}, and archives that contain it ({', '.join(table.archives)})"
        remedy = f"ntkit cannot download it. Download it from {table.page}"
        files = "the original file"
    elif origin is not None:
        remedy = (
            f"ntkit cannot download it. Download {origin.files} from {origin.page}, and save {source.files[0]} with "
            f"numpy.savez, with {origin.arrays}"
        )
        files = "that file"
    else:
        remedy = f"Downloading it failed, too ({type(error).__name__}: {error}). Try again with internet access"
    places = " and in ".join(str(folder) for folder in folders) or "no folder, because none was given"
    return (
        f"The data set {name!r} was not found: looked for {looked_for} in {places}. {remedy}. Put {files} into a "
        "folder, and pass the folder as data_home=… or in the environment variable NTKIT_DATA."
    )


def _read(paths: Sequence[Path]) -> Arrays:
    """Read all arrays of the files; arrays of the same name are concatenated."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in paths:
        try:
            # Close the stream here: NumPy leaves the stream of a broken archive open.
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                for key in file.files:
                    parts.setdefault(key, []).append(file[key])
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not an .npz file of plain arrays ({error}). Download it again.") from error
    return {key: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for key, arrays in parts.items()}


def _table_path(folder: Path, table: _Table) -> Path | None:
    """Return the file of the table, or an archive that contains it, or None.

    Archives are opened to check, because names such as datasets.zip are common.
    """
    if (folder / table.file).is_file():
        return folder / table.file
    archives = (folder / file for file in table.archives)
    return next((path for path in archives if path.is_file() and _may_hold(path, table)), None)


def _may_hold(path: Path, table: _Table) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(_members(archive, table))
    except zipfile.BadZipFile:
        return True  # reading it will raise an error that says what is wrong


def _members(archive: zipfile.ZipFile, table: _Table) -> list[str]:
    return [member for member in archive.namelist() if Path(member).name == table.file]


def _read_table(path: Path, table: _Table) -> np.ndarray:
    """Read the rows of a table from the UCI archive; missing targets become NaN."""
    try:
        if path.suffix != ".zip":
            with path.open("rb") as stream:
                rows = _read_numbers(stream, table)
        else:
            with zipfile.ZipFile(path) as archive, archive.open(_members(archive, table)[0]) as stream:
                rows = _read_numbers(stream, table)
        _check_rows(rows, table)
    # All kinds of damage. RuntimeError: encrypted, or an unknown compression.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not the file from {table.page} ({error}). Download it again.") from error
    return rows


def _read_numbers(stream: IO[bytes], table: _Table) -> np.ndarray:
    converters: dict[int | str, Callable[[str], float]] | None = None
    if table.gaps:
        converters = {-1: lambda text: float("nan" if text in ("", "NA") else text)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*input contained no data")  # _check_rows raises an error
        return np.loadtxt(stream, delimiter=",", skiprows=int(table.header), converters=converters, ndmin=2)


def _check_rows(rows: np.ndarray, table: _Table) -> None:
    if np.isnan(rows).any(axis=1).all():
        raise ValueError("no complete row")
    if rows.shape[1] != table.n_columns:
        raise ValueError(f"{rows.shape[1]} columns instead of {table.n_columns}")
    if table.n_rows is not None and len(rows) != table.n_rows:
        raise ValueError(f"{len(rows)} rows instead of {table.n_rows}")


def _build(name: str, source: _Source, arrays: Arrays) -> Dataset:
    if source.prepare is not None:
        arrays = source.prepare(arrays)
    whole = "X" in arrays
    y_type = np.float64 if source.task == "regression" else np.int64

    def rows(key: str) -> np.ndarray:
        X = arrays[key]
        return X if X.ndim == 4 or X.dtype == np.float64 else X.astype(np.float32)

    names = tuple(map(str, arrays["columns"])) if "columns" in arrays else source.feature_names
    return Dataset(
        name=name,
        X=rows("X" if whole else "X_train"),
        y=arrays["y" if whole else "y_train"].astype(y_type),
        task=source.task,
        target_name=source.target_name,
        X_test=None if whole else rows("X_test"),
        y_test=None if whole else arrays["y_test"].astype(y_type),
        feature_names=names,
    )


# Functions that turn the arrays of files into rows.


def _one_hot_squares(arrays: Arrays) -> Arrays:
    codes = arrays["X"][:, :, None]
    return arrays | {"X": (codes == np.arange(3)).reshape(len(codes), -1)}


def _add_channel(arrays: Arrays) -> Arrays:
    return arrays | {key: arrays[key][..., None] for key in ("X_train", "X_test")}


def _sphere_points(arrays: Arrays) -> Arrays:
    """Make rows from a grid value[…, latitude, longitude]: the point on the sphere and, if present, the month."""
    angles = (np.deg2rad(arrays[key].astype(np.float64)) for key in ("lat", "lon"))
    lat, lon = np.meshgrid(*angles, indexing="ij")
    points = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=2).reshape(-1, 3)
    if "month" in arrays:
        months = np.repeat(arrays["month"].astype(np.float64), len(points))
        points = np.column_stack([np.tile(points, (len(arrays["month"]), 1)), months])
    return {"X": points, "y": arrays["value"].ravel()}


def _slices(rows: np.ndarray) -> Arrays:
    return {"X": rows[:, 1:-1].astype(np.float32), "y": rows[:, -1]}


def _workloads(rows: np.ndarray) -> Arrays:
    rows = rows[~np.isnan(rows).any(axis=1), 1:]  # the first column is a row index
    rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    return {"X": rows[:, :-1].astype(np.float32), "y": rows[:, -1]}


def _proteins(rows: np.ndarray) -> Arrays:
    return {"X": rows[:, 1:].astype(np.float32), "y": rows[:, 0]}


def _years(rows: np.ndarray) -> Arrays:
    X, y = rows[:, 1:].astype(np.float32), rows[:, 0]
    n = 463715  # no artist is in both parts
    return {"X_train": X[:n], "y_train": y[:n], "X_test": X[n:], "y_test": y[n:]}


# Functions that download a data set with scikit-learn and return the same arrays as the files.


def _fetch_digits(data_home: str | None) -> Arrays:  # noqa: ARG001
    from sklearn.datasets import load_digits

    digits = load_digits()
    return {"X": digits.data.astype(np.float32), "y": digits.target, "columns": np.array(digits.feature_names)}


def _fetch_california(data_home: str | None) -> Arrays:
    from sklearn.datasets import fetch_california_housing

    X, y = fetch_california_housing(data_home=data_home, return_X_y=True)
    _check_shape(X, (20640, 8))
    return {"X": X.astype(np.float32), "y": y}


def _fetch_mnist(data_home: str | None) -> Arrays:
    X, y = _open_ml("mnist_784", data_home)
    images = X.to_numpy().astype(np.uint8).reshape(-1, 28, 28)
    _check_shape(images, (70000, 28, 28))
    labels = y.astype(int).to_numpy()
    return {"X_train": images[:60000], "y_train": labels[:60000], "X_test": images[60000:], "y_test": labels[60000:]}


def _fetch_cifar(data_home: str | None) -> Arrays:
    X, y = _open_ml("CIFAR_10", data_home)
    rows = X.to_numpy().astype(np.uint8)
    _check_shape(rows, (60000, 3072))
    images = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    labels = y.astype(int).to_numpy()
    if images[0, 0, 0].tolist() != [59, 62, 63] or labels[50000:50010].tolist() != [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]:
        raise ValueError("the order of the images differs from the original training and test batches")
    return {"X_train": images[:50000], "y_train": labels[:50000], "X_test": images[50000:], "y_test": labels[50000:]}


def _fetch_abalone(data_home: str | None) -> Arrays:
    X, y = _open_ml("abalone", data_home)
    sex = X.iloc[:, 0].astype(str).to_numpy()
    X = np.column_stack([sex == "M", sex == "F", sex == "I", X.iloc[:, 1:].to_numpy(np.float32)])
    _check_shape(X, (4177, 10))
    return {"X": X, "y": y.astype(int).to_numpy()}


def _fetch_magic(data_home: str | None) -> Arrays:
    X, y = _open_ml("MagicTelescope", data_home)
    X = X[[column for column in X.columns if column.startswith("f")]].to_numpy(np.float32)  # drop the row index
    _check_shape(X, (19020, 10))
    return {"X": X, "y": (y == "h").to_numpy()}


def _fetch_mushroom(data_home: str | None) -> Arrays:
    X, y = _open_ml("mushroom", data_home)
    values = X.astype(object).fillna("?").to_numpy().astype(str)
    codes = [(j, code) for j in range(values.shape[1]) for code in np.unique(values[:, j])]
    one_hot = np.column_stack([values[:, j] == code for j, code in codes])
    _check_shape(one_hot, (8124, 117))
    return {
        "X": one_hot,
        "y": (y == "p").to_numpy(),
        "columns": np.array([f"{_MUSHROOM[j]}={code}" for j, code in codes]),
    }


def _open_ml(name: str, data_home: str | None) -> tuple[Any, Any]:
    """Fetch the data frame and target of a data set from OpenML, version 1."""
    from sklearn.datasets import fetch_openml

    return fetch_openml(name, version=1, data_home=data_home, return_X_y=True, as_frame=True, parser="auto")


def _check_shape(X: np.ndarray, shape: tuple[int, ...]) -> None:
    if X.shape != shape:
        raise ValueError(f"the downloaded rows have shape {X.shape} instead of {shape}")


@dataclass(frozen=True)
class _Table:
    """A text file of the UCI archive, the zip archives that contain it, and a function that arranges its rows."""

    file: str
    archives: tuple[str, ...]
    page: str
    n_columns: int
    header: bool
    arrange: Callable[[np.ndarray], Arrays]
    n_rows: int | None = None  # detects truncated downloads
    gaps: bool = False  # whether the last column may have missing values


@dataclass(frozen=True)
class _Origin:
    """Origin of a data set that ntkit cannot download, and the arrays that its ``.npz`` file must have."""

    page: str
    files: str
    arrays: str


@dataclass(frozen=True)
class _Source:
    """Files of a data set, how to interpret them, and other ways to get the data."""

    files: tuple[str, ...]
    task: str
    target_name: str
    feature_names: tuple[str, ...] | None = None
    prepare: Callable[[Arrays], Arrays] | None = None
    fetch: Callable[[str | None], Arrays] | None = None
    table: _Table | None = None


def _numbered(*prefixes: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(1, count + 1) for prefix in prefixes)


_SQUARES = tuple(f"{column}{row}={code}" for column in "abcdefg" for row in range(1, 7) for code in ("blank", "o", "x"))
_TIMBRES = _numbered("timbre_mean_", count=12) + _numbered("timbre_covariance_", count=78)
_CT_SLICES = _Table(
    "slice_localization_data.csv",
    ("slice_localization_data.zip", "relative+location+of+ct+slices+on+axial+axis.zip"),
    "https://archive.ics.uci.edu/dataset/206",
    n_columns=386,
    header=True,
    arrange=_slices,
    n_rows=53500,
)
_PROTEIN = _Table(
    "CASP.csv",
    ("physicochemical+properties+of+protein+tertiary+structure.zip",),
    "https://archive.ics.uci.edu/dataset/265",
    n_columns=10,
    header=True,
    arrange=_proteins,
    n_rows=45730,
)
_WORKLOADS = _Table(
    "Range-Queries-Aggregates.csv",
    ("datasets.zip", "query+analytics+workloads+dataset.zip"),
    "https://archive.ics.uci.edu/dataset/493",
    n_columns=8,
    header=True,
    arrange=_workloads,
    gaps=True,
)
_YEAR = _Table(
    "YearPredictionMSD.txt",
    ("YearPredictionMSD.txt.zip", "yearpredictionmsd.zip"),
    "https://archive.ics.uci.edu/dataset/203",
    n_columns=91,
    header=False,
    arrange=_years,
    n_rows=463715 + 51630,
)
_ORIGINS = {
    "airtemp": _Origin(
        "https://psl.noaa.gov/data/gridded/data.ncep.reanalysis.html",
        "the monthly long-term means 1981-2010 of near-surface (sigma 0.995) air temperature",
        "lat (73,), ascending, and lon (144,) in degrees, month (12,), 1 to 12, and value (12, 73, 144) in °C",
    ),
    "connect4": _Origin(
        "https://archive.ics.uci.edu/dataset/26",
        "connect-4.data",
        "X (67557, 42): 0 for b, 1 for o, 2 for x, and y (67557,): 0 draw, 1 loss, 2 win",
    ),
    "elevation": _Origin(
        "https://github.com/matplotlib/basemap (doc/examples)",
        "etopo20data.gz, etopo20lats.gz and etopo20lons.gz",
        "lat (540,) and lon (1080,) in degrees, and value (540, 1080) in m, without the last column, which repeats the "
        "first",
    ),
    "pendigits": _Origin(
        "https://archive.ics.uci.edu/dataset/81",
        "pendigits.tra and pendigits.tes",
        "X_train (7494, 16), y_train, X_test (3498, 16) and y_test; the digit is the last column",
    ),
    "shuttle": _Origin(
        "https://archive.ics.uci.edu/dataset/148",
        "shuttle.trn and shuttle.tst",
        "X_train (43500, 9), y_train, X_test (14500, 9) and y_test; the class, 1 to 7, is the last column",
    ),
    "year_subset": _Origin(
        "https://archive.ics.uci.edu/dataset/203",
        "YearPredictionMSD.txt",
        "X_train (5000, 90), y_train, X_test (2000, 90) and y_test, drawn at random from its first 463715 rows; the "
        "year is the first column (the rows used for our results are not recorded; the data set 'year' has all rows)",
    ),
}
_SOURCES = {
    "abalone": _Source(("uci_abalone.npz",), "regression", "rings", _ABALONE, fetch=_fetch_abalone),
    "airtemp": _Source(
        ("sphere_ncep_airtemp_monthly.npz",), "regression", "temperature", ("x", "y", "z", "month"), _sphere_points
    ),
    "california_housing": _Source(
        ("california_housing.npz",), "regression", "MedHouseVal", _CALIFORNIA, fetch=_fetch_california
    ),
    "cifar10": _Source(
        ("cifar10_train_1.npz", "cifar10_train_2.npz", "cifar10_test.npz"),
        "classification",
        "class",
        fetch=_fetch_cifar,
    ),
    "connect4": _Source(("uci_connect4.npz",), "classification", "outcome", _SQUARES, _one_hot_squares),
    "ct_slices": _Source(
        ("slice_localization_data.npz",),
        "regression",
        "reference",
        tuple(f"value{i}" for i in range(384)),
        table=_CT_SLICES,
    ),
    "digits": _Source((), "classification", "digit", fetch=_fetch_digits),
    "elevation": _Source(("sphere_elevation_etopo20.npz",), "regression", "elevation", ("x", "y", "z"), _sphere_points),
    "magic04": _Source(("uci_magic04.npz",), "classification", "hadron", _MAGIC, fetch=_fetch_magic),
    "mnist": _Source(("mnist.npz",), "classification", "digit", None, _add_channel, _fetch_mnist),
    "mushroom": _Source(("uci_mushroom.npz",), "classification", "poisonous", fetch=_fetch_mushroom),
    "pendigits": _Source(("uci_pendigits.npz",), "classification", "digit", _numbered("x", "y", count=8)),
    "protein": _Source(("uci_protein.npz",), "regression", "RMSD", _numbered("F", count=9), table=_PROTEIN),
    "shuttle": _Source(("uci_shuttle.npz",), "classification", "class", _numbered("A", count=9)),
    "workloads": _Source(
        ("Range-Queries-Aggregates.npz",),
        "regression",
        "avg",
        ("x", "y", "x_range", "y_range", "count", "sum_"),
        table=_WORKLOADS,
    ),
    "year": _Source(("YearPredictionMSD.npz",), "regression", "year", _TIMBRES, table=_YEAR),
    "year_subset": _Source(("uci_yearpredictionmsd_subset.npz",), "regression", "year", _TIMBRES),
}
