"""Fitted models on disk: configuration, seeds and weights, without code."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from ntkit import __version__, _files
from ntkit._encoding.estimators import OtherDrawsError, Reader, Writer
from ntkit._encoding.values import require
from ntkit._files import FileError
from ntkit._validation import check_bool, describe

__all__ = ["FileError", "load", "save"]

KIND = "model"
FORMAT = 1


def save(model: Any, path: str | PathLike[str], *, statistics: bool = False) -> None:
    """Write an estimator to a file: its parameters, seeds and weights.

    The file is in the safetensors format, with JSON metadata and a checksum; it appears complete, or the one
    before it stays. Feature maps take a few hundred bytes: not their draws are written but the seed from which
    :func:`load` makes them again, and some feature values to compare with. Predictions after loading are the same to
    the last bit (with the same versions of the libraries, on the same kind of machine).

    Parameters
    ----------
    model : estimator
        An estimator of ntkit, or a Pipeline of these and scikit-learn's StandardScaler, MinMaxScaler, MaxAbsScaler,
        RobustScaler or Normalizer; fitted or not. FrozenEstimator may be around any of them.
    path : path
        The file. If it is there already, it is replaced.
    statistics : bool, default=False
        Whether the sums over the rows are written too, which ``partial_fit`` and ``predict(X, return_std=True)`` need:
        8 m² bytes for m features, or the features themselves while they have fewer rows than columns.

    Raises
    ------
    TypeError
        If the estimator, one of its steps, a parameter or the class labels cannot be written; it says which.
    ValueError
        If parameters of a map were changed after it was fitted.

    Notes
    -----
    A Generator or RandomState as `random_state` is written as the seed that was drawn from it. Classes must be ints,
    floats, bools or text. Models on a GPU are written from and loaded to the host (statistics go back to a GPU if there
    is one).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from ntkit import FeatureRidge
    >>> from ntkit.persistence import load, save
    >>> X = np.random.default_rng(0).standard_normal((300, 4))
    >>> model = FeatureRidge(random_state=0).fit(X, np.abs(X[:, 0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, Path(folder) / "model.ntkit")
    ...     again = load(Path(folder) / "model.ntkit")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    check_bool(statistics, "statistics", "save")
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder '{path.parent}'"
        raise (IsADirectoryError if path.is_dir() else FileNotFoundError)(f"'{path}' cannot be written: {what}.")
    writer = Writer(statistics=statistics)
    tree = writer.estimator(model, "model")
    metadata = {"kind": KIND, "format": FORMAT, "model": tree, **_versions()}
    _files.write(path, writer.arrays, metadata)


def load(path: str | PathLike[str]) -> Any:
    """Read an estimator that :func:`save` has written.

    No code in the file is run: it has none. Classes are looked up in a fixed list, parameters are checked as `fit`
    checks them, and arrays must have the shapes that belong to them. So a file from anyone can be opened, but nothing
    says that its weights are good: predict only with files that you trust to be what you think.

    Parameters
    ----------
    path : path

    Returns
    -------
    estimator
        As it was saved. Without statistics a model cannot add rows by ``partial_fit`` or give standard deviations.

    Raises
    ------
    FileError
        If the file is cut off, was changed, is of another kind or a later version, or describes a model that cannot
        be, or one whose maps need more than 2³⁴ random numbers. It is a ValueError.
    FileNotFoundError

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ntkit import NTKFeatures
    >>> from ntkit.persistence import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(NTKFeatures(depth=3, n_components=256), Path(folder) / "map.ntkit")
    ...     load(Path(folder) / "map.ntkit")
    NTKFeatures(depth=3, n_components=256)
    """
    path = Path(path)
    try:
        arrays, metadata = _files.read(path, kind=KIND)
        _check_format(path, metadata)
        require(metadata, "its metadata", "kind", "format", "model", *_versions())
        if not all(isinstance(metadata[name], str) and len(metadata[name]) < 100 for name in _versions()):
            raise TypeError("it has no versions")
        reader = Reader(arrays, version=metadata["ntkit"])
        model = reader.estimator(metadata["model"], "model")
        if arrays:
            raise ValueError(f"the array {describe(next(iter(arrays)))} belongs to nothing")
    except (FileError, FileNotFoundError):
        raise
    except OtherDrawsError as error:
        pairs = [f"{name} {metadata[name]} (here {version})" for name, version in _versions().items()]
        raise FileError(
            f"'{path}' cannot be loaded: {error} The file was written with {', '.join(pairs)}; load it with these."
        ) from error
    except Exception as error:  # whatever a made-up file leads to
        text = str(error).rstrip(".") or type(error).__name__
        raise FileError(f"'{path}' does not hold a model that ntkit can make: {text}.") from error
    return model


def _versions() -> dict[str, str]:
    import numpy
    import scipy
    import sklearn

    return {
        "ntkit": __version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "sklearn": sklearn.__version__,
    }


def _check_format(path: Path, metadata: dict[str, Any]) -> None:
    found = metadata.get("format")
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise FileError(f"'{path}' has {describe(found)} as the number of its format.")
    if found > FORMAT:
        maker = describe(metadata.get("ntkit"))
        raise FileError(
            f"'{path}' was written by ntkit {maker} in format {found}. This is ntkit {__version__}, which reads "
            f"formats up to {FORMAT}: install a later version."
        )
