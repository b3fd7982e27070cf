"""Save and load models: parameters, seeds and weights, without code."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ntkit import __version__, _files
from ntkit._files import FileError
from ntkit._state import Declared, Estimator, Field, MemoryLimitError, Part, limited_memory, reserve
from ntkit._validation import check_bool, check_int, describe
from ntkit._walk import Reader, Writer

__all__ = ["FileError", "inspect", "load", "save"]

T = TypeVar("T", bound=Declared)
KIND = "model"
FORMAT = 2


def save(model: Any, path: str | PathLike[str], *, statistics: bool = False) -> None:
    """Save an estimator to a file: its parameters, seeds and weights.

    The file is in the safetensors format, with JSON metadata and a checksum. It is written atomically: it appears
    complete, or the previous file stays. Feature maps take a few hundred bytes: the file holds the seed from which
    :func:`load` draws the map again, and some feature values for comparison. Predictions after loading are identical to
    the last bit (with the same library versions, on the same kind of machine).

    Parameters
    ----------
    model : estimator
        An estimator of ntkit, or a pipeline of ntkit and scikit-learn steps, fitted or not. Steps of scikit-learn
        can be saved if they predict without compiled code of their own: scalers, encoders, imputers,
        ColumnTransformer, PCA, linear models and similar estimators.
    path : path
        File to write. An existing file is replaced.
    statistics : bool, default=False
        Also save the sums over the rows that ``partial_fit`` and ``predict(X, return_std=True)`` need. They take
        8 m² bytes for m features, or the size of the features while these have fewer rows than columns.

    Raises
    ------
    TypeError, ValueError
        If something in the model cannot be saved; the message names it.
    OSError
        If the file cannot be written: no space, no permission, no such folder. The message names the file, and an
        existing file stays unchanged.

    Notes
    -----
    If `random_state` is a Generator or RandomState, the seed drawn from it is saved. Functions cannot be saved, except
    NumPy's ufuncs and scikit-learn's feature scores. A model on a GPU is loaded to the host.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from ntkit import NTKFeatures
    >>> from ntkit.persistence import load, save
    >>> X = np.random.default_rng(0).standard_normal((300, 4))
    >>> features = make_pipeline(StandardScaler(), NTKFeatures(random_state=0)).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(features, Path(folder) / "model.ntkit")
    ...     again = load(Path(folder) / "model.ntkit")
    >>> bool((again.transform(X) == features.transform(X)).all())
    True
    """
    check_bool(statistics, "statistics", "save")
    if not hasattr(model, "get_params") or isinstance(model, type):
        raise TypeError(f"The 'model' parameter of save must be an estimator. Got {describe(model)} instead.")
    _files.check_writable(path)  # fail before the work
    writer = Writer(statistics=statistics)
    tree = writer.encode(model, "model")
    _files.write(path, writer.arrays, {"kind": KIND, "format": FORMAT, "model": tree, "versions": _versions()})


def load(path: str | PathLike[str], *, memory_limit: int = 2**32) -> Any:
    """Load an estimator from a file written by :func:`save`.

    The file contains no code, and none is run. Classes are looked up in a fixed list, and attributes must have the
    types and shapes that their class declares. So it is safe to open a file from a stranger. Its weights may still be
    bad: use predictions only from files that you trust.

    Parameters
    ----------
    path : path
    memory_limit : int, default=2**32
        Bytes allowed for the arrays of the file and for the random numbers that feature maps draw again. A file that
        needs more is refused before it is read or anything is drawn. Computing time counts too, one second of one core
        as 128 MiB. So a file of a few kilobytes loads in at most half a minute with the default limit.

    Returns
    -------
    estimator
        The saved estimator. Without its statistics, a model has no ``partial_fit`` and no standard deviations.

    Raises
    ------
    FileError
        If the file is incomplete, modified, of another kind or version, needs too much memory, or describes an invalid
        model. FileError is a ValueError.
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
    check_int(memory_limit, "memory_limit", "load", minimum=1)
    return _read(Path(path), KIND, memory_limit, Estimator())


def save_part(part: Declared, path: str | PathLike[str], *, kind: str) -> None:
    """Save a Declared object that is not an estimator, for :func:`load_part`. `kind` identifies the type of file."""
    writer = Writer(statistics=True)
    tree = writer.encode(part, kind)
    _files.write(path, writer.arrays, {"kind": kind, "format": FORMAT, "model": tree, "versions": _versions()})


def load_part(cls: type[T], path: str | PathLike[str], *, kind: str) -> T:
    """Load an object saved by :func:`save_part`. Such files are the user's own, so memory is not limited."""
    return _read(Path(path), kind, 2**62, Part(cls))


def _read(path: Path, kind: str, memory_limit: int, field: Field) -> Any:
    """Read the content of a file and check it against `field`."""
    _check_format(path, _files.read_header(path, kind=kind, memory_limit=memory_limit)[0])
    arrays, metadata = _files.read(path, kind=kind, memory_limit=memory_limit)
    try:
        with limited_memory(memory_limit):
            reserve(sum(array.nbytes for array in arrays.values()), "Its arrays")
            found = field.check(Reader(arrays).decode(metadata.get("model"), kind), kind, {})
        if arrays:
            raise ValueError(f"the array {describe(next(iter(arrays)))} is unused")
    except MemoryLimitError as error:
        remedy = f"Raise memory_limit={memory_limit} if you trust the file."
        raise FileError(f"'{path}' needs too much memory or time: {error}. {remedy}") from error
    except Exception as error:  # a hostile file may lead to any error
        text = str(error).rstrip(".") or type(error).__name__
        versions = metadata.get("versions")
        if isinstance(versions, dict) and versions != _versions():
            pairs = [f"{name} {describe(versions.get(name))} (here {ours})" for name, ours in _versions().items()]
            text += f". It was written with {', '.join(pairs)}"
        raise FileError(f"'{path}' does not hold a {kind} that can be loaded: {text}.") from error
    return found


def inspect(path: str | PathLike[str]) -> dict[str, Any]:
    """Describe the content of a file written by :func:`save`, without loading it.

    Parameters
    ----------
    path : path

    Returns
    -------
    dict
        ``format``; ``versions`` of the libraries that wrote the file; ``bytes``, the size of its arrays; and ``model``:
        the class, parameters and attributes of each estimator, with arrays given by dtype and shape.

    Raises
    ------
    FileError
        If the file was not written by :func:`save`. Only :func:`load` checks the content.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ntkit import NTKFeatures, inspect, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(NTKFeatures(depth=3, n_components=256), Path(folder) / "map.ntkit")
    ...     inspect(Path(folder) / "map.ntkit")["model"]["parameters"]["depth"]
    3
    """
    path = Path(path)
    metadata, shapes = _files.read_header(path, kind=KIND)
    _check_format(path, metadata)

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(item) for item in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") == "array":
            dtype, shape = shapes.get(str(node.get("name")), ("missing", []))
            return f"array {dtype} {tuple(shape)}"
        if node.get("type") == "dict" and isinstance(node.get("items"), list):
            return {str(pair[0]): plain(pair[-1]) for pair in node["items"] if isinstance(pair, list) and pair}
        if node.get("type") in ("tuple", "objects") and "items" in node:
            return plain(node["items"])
        return {key: plain(item) for key, item in node.items() if key != "type"}

    try:
        model = plain(metadata.get("model"))
    except RecursionError as error:
        raise FileError(f"The metadata of '{path}' is nested too deeply.") from error
    n_bytes = sum(int(dtype.lstrip("BFIUOL") or 8) // 8 * math.prod(shape) for dtype, shape in shapes.values())
    return {"format": FORMAT, "versions": metadata.get("versions"), "bytes": n_bytes, "model": model}


def _versions() -> dict[str, str]:
    import scipy
    import sklearn

    return {
        "ntkit": __version__, "numpy": np.__version__, "scipy": scipy.__version__, "sklearn": sklearn.__version__,
    }  # fmt: skip


def _check_format(path: Path, metadata: dict[str, Any]) -> None:
    found, versions = metadata.get("format"), metadata.get("versions")
    if found == FORMAT and type(found) is int:
        return
    maker = metadata.get("ntkit") if versions is None else versions.get("ntkit") if isinstance(versions, dict) else None
    if type(found) is not int or found < 1:
        raise FileError(f"'{path}' has the invalid format version {describe(found)}.")
    start = f"'{path}' was written by ntkit {describe(maker)} in format {found}, and ntkit {__version__} reads "
    if found > FORMAT:
        raise FileError(f"{start}formats up to {FORMAT}. Install a later version.")
    raise FileError(f"{start}format {FORMAT}. Load it with that version and fit again, or export the predictions.")
