"""Real data sets by name: from files if there are any, else as scikit-learn can get them.

Each data set is one or a few ``.npz`` files, looked for in `data_home` and in the folder that the environment variable
``NTKIT_DATA`` names. Some can also be downloaded, by scikit-learn.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

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
    """A data set, as :func:`load_dataset` returns it.

    Attributes
    ----------
    name : str
    X : ndarray of shape (n_samples, n_features) or (n_samples, height, width, channels)
        Raw values, not scaled: float32 for tables, float64 for points of the sphere, uint8 for images.
    y : ndarray of shape (n_samples,)
        float64 for regression, int64 for classification.
    task : {"regression", "classification"}
    target_name : str
    X_test, y_test : ndarray or None
        The test part, where there is a customary one; X and y then are the training part.
    feature_names : tuple of str or None
        Names of the columns; None for images.

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
    """Names that :func:`load_dataset` knows.

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

    ==================  ==============  ===============  ==========================================================
    name                task            rows × columns   what
    ==================  ==============  ===============  ==========================================================
    abalone             regression      4177 × 10        rings of abalones; sex one-hot
    airtemp             regression      126144 × 4       monthly air temperature (°C): point of the sphere, month
    california_housing  regression      20640 × 8        house values in 100 000 USD, 1990 census
    cifar10             classification  50000 + 10000    images 32 × 32 × 3
    connect4            classification  67557 × 126      positions of Connect-4, one-hot; 0 draw, 1 loss, 2 win
    digits              classification  1797 × 64        scikit-learn's small digits, 8 × 8, flat
    elevation           regression      583200 × 3       height or depth (m) at points of the sphere
    magic04             classification  19020 × 10       gamma telescope; 0 gamma, 1 hadron
    mnist               classification  60000 + 10000    images 28 × 28 × 1
    mushroom            classification  8124 × 117       mushrooms, one-hot; 0 edible, 1 poisonous
    pendigits           classification  7494 + 3498      digits by 8 pen points
    protein             regression      45730 × 9        CASP: error (RMSD, Ångström) of predicted structures
    shuttle             classification  43500 + 14500    Statlog shuttle, classes 1 to 7
    year_subset         regression      5000 + 2000      a random part of YearPredictionMSD: year from 90 timbres
    ==================  ==============  ===============  ==========================================================

    Points of the sphere are unit vectors (cos φ cos λ, cos φ sin λ, sin φ) of the cells of a grid of latitudes φ and
    longitudes λ, which crowd at the poles: for a uniform sample draw rows with probability ∝ cos φ = √(x² + y²).

    Parameters
    ----------
    name : str
        One of :func:`dataset_names`.
    data_home : path, optional
        Folder with the files. The next places are the folder that the environment variable ``NTKIT_DATA`` names and,
        for abalone, california_housing, cifar10, magic04, mnist and mushroom, a download by scikit-learn, which keeps
        what it gets in `data_home` (None: its own default). digits comes with scikit-learn.

    Returns
    -------
    Dataset

    Raises
    ------
    FileNotFoundError
        If the data set is in none of these places; the message says what to do.

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
                raise ValueError(f"{', '.join(map(str, paths))}: no array {error} there. Get it anew.") from error
    if source.fetch is None:
        raise FileNotFoundError(_missing(name, source, folders))
    try:
        arrays = source.fetch(None if data_home is None else os.fspath(data_home))
    except (ImportError, OSError, ValueError) as error:  # scikit-learn's own errors of downloads are among these
        raise FileNotFoundError(_missing(name, source, folders, error)) from error
    return _build(name, source, arrays)


def _missing(name: str, source: _Source, folders: Sequence[Path], error: Exception | None = None) -> str:
    files = ", ".join(source.files)
    places = " and in ".join(str(folder) for folder in folders) or "no folder, as none was given"
    failed = f" Downloading it failed, too ({type(error).__name__}: {error})." if error else ""
    return (
        f"The data set {name!r} was not found: looked for {files} in {places}.{failed} Put the files into a "
        "folder, and name it by data_home=… or the environment variable NTKIT_DATA"
        + (", or try again with a connection to the internet." if error else "; it cannot be downloaded.")
    )


def _read(paths: Sequence[Path]) -> Arrays:
    """All arrays of the files; parts of one name are put one after the other."""
    parts: dict[str, list[np.ndarray]] = {}
    for path in paths:
        try:
            # The stream is closed here: NumPy leaves that of a broken archive open.
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                for key in file.files:
                    parts.setdefault(key, []).append(file[key])
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is no .npz file of plain arrays ({error}). Get it anew.") from error
    return {key: arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for key, arrays in parts.items()}


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


# What files hold, made rows.


def _one_hot_squares(arrays: Arrays) -> Arrays:
    codes = arrays["X"][:, :, None]
    return arrays | {"X": (codes == np.arange(3)).reshape(len(codes), -1)}


def _add_channel(arrays: Arrays) -> Arrays:
    return arrays | {key: arrays[key][..., None] for key in ("X_train", "X_test")}


def _sphere_points(arrays: Arrays) -> Arrays:
    """Rows of a grid value[…, latitude, longitude]: the point, and the month where there are several."""
    angles = (np.deg2rad(arrays[key].astype(np.float64)) for key in ("lat", "lon"))
    lat, lon = np.meshgrid(*angles, indexing="ij")
    points = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=2).reshape(-1, 3)
    if "month" in arrays:
        months = np.repeat(arrays["month"].astype(np.float64), len(points))
        points = np.column_stack([np.tile(points, (len(arrays["month"]), 1)), months])
    return {"X": points, "y": arrays["value"].ravel()}


# What scikit-learn gets, in the form of the files.


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
        raise ValueError("the images came in another order than the training and test batches have")
    return {"X_train": images[:50000], "y_train": labels[:50000], "X_test": images[50000:], "y_test": labels[50000:]}


def _fetch_abalone(data_home: str | None) -> Arrays:
    X, y = _open_ml("abalone", data_home)
    sex = X.iloc[:, 0].astype(str).to_numpy()
    X = np.column_stack([sex == "M", sex == "F", sex == "I", X.iloc[:, 1:].to_numpy(np.float32)])
    _check_shape(X, (4177, 10))
    return {"X": X, "y": y.astype(int).to_numpy()}


def _fetch_magic(data_home: str | None) -> Arrays:
    X, y = _open_ml("MagicTelescope", data_home)
    X = X[[column for column in X.columns if column.startswith("f")]].to_numpy(np.float32)  # without numbers of rows
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
    """Data frame and target of the first version of a data set of OpenML."""
    from sklearn.datasets import fetch_openml

    return fetch_openml(name, version=1, data_home=data_home, return_X_y=True, as_frame=True, parser="auto")


def _check_shape(X: np.ndarray, shape: tuple[int, ...]) -> None:
    if X.shape != shape:
        raise ValueError(f"rows of shape {X.shape} came where {shape} were expected")


@dataclass(frozen=True)
class _Source:
    """Files of a data set, what they mean, and where else it can be had."""

    files: tuple[str, ...]
    task: str
    target_name: str
    feature_names: tuple[str, ...] | None = None
    prepare: Callable[[Arrays], Arrays] | None = None
    fetch: Callable[[str | None], Arrays] | None = None


def _numbered(*prefixes: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(1, count + 1) for prefix in prefixes)


_SQUARES = tuple(f"{column}{row}={code}" for column in "abcdefg" for row in range(1, 7) for code in ("blank", "o", "x"))
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
    "digits": _Source((), "classification", "digit", fetch=_fetch_digits),
    "elevation": _Source(("sphere_elevation_etopo20.npz",), "regression", "elevation", ("x", "y", "z"), _sphere_points),
    "magic04": _Source(("uci_magic04.npz",), "classification", "hadron", _MAGIC, fetch=_fetch_magic),
    "mnist": _Source(("mnist.npz",), "classification", "digit", None, _add_channel, _fetch_mnist),
    "mushroom": _Source(("uci_mushroom.npz",), "classification", "poisonous", fetch=_fetch_mushroom),
    "pendigits": _Source(("uci_pendigits.npz",), "classification", "digit", _numbered("x", "y", count=8)),
    "protein": _Source(("uci_protein.npz",), "regression", "RMSD", _numbered("F", count=9)),
    "shuttle": _Source(("uci_shuttle.npz",), "classification", "class", _numbered("A", count=9)),
    "year_subset": _Source(
        ("uci_yearpredictionmsd_subset.npz",),
        "regression",
        "year",
        _numbered("timbre_mean_", count=12) + _numbered("timbre_covariance_", count=78),
    ),
}
