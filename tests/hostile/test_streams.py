"""Faults at every position of streams and files.

An error names the file, or the item of the stream, and the row, and the column if there is one. It leaves the model
unchanged. `make test` runs a sample.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import sampled

from ntkit import FeatureRidge, FeatureRidgeClassifier, NTKFeatures

N_PARTS, N_ROWS = 3, 40
NAMES = ["a", "b", "c"]
FEATURES: dict[str, Callable[[], Any]] = {
    "identity": FunctionTransformer,  # stores no names and checks no values
    "map": lambda: NTKFeatures(n_components=8, random_state=0),
    "scaled": lambda: make_pipeline(StandardScaler(with_mean=False), NTKFeatures(n_components=8, random_state=0)),
}
PLACES = [(0, 17), (1, 0), (2, N_ROWS - 1)]  # part and row

Part = dict[str, Any]  # X (data frame), y, weight
Fault = Callable[[Part, int], None]


def parts() -> list[Part]:
    """Rows without a fault."""
    rng = np.random.default_rng(0)
    frames = [pd.DataFrame(rng.standard_normal((N_ROWS, 3)), columns=NAMES) for _ in range(N_PARTS)]
    return [{"X": X, "y": X["a"].to_numpy() + X["b"].to_numpy(), "weight": np.ones(N_ROWS)} for X in frames]


def in_rows(value: Any) -> Fault:
    """A value in column b."""

    def change(part: Part, row: int) -> None:
        part["X"] = part["X"].astype(object) if isinstance(value, str) else part["X"]
        part["X"].iloc[row, 1] = value

    return change


def in_vector(name: str, value: Any) -> Fault:
    """A target or a weight."""

    def change(part: Part, row: int) -> None:
        part[name] = part[name].astype(object) if isinstance(value, str) else part[name]
        part[name][row] = value

    return change


def whole(name: str, function: Callable[[Any], Any]) -> Fault:
    """A change of all rows, targets or weights of a part."""
    return lambda part, row: part.update({name: function(part[name])})  # noqa: ARG005


VALUES: dict[str, Fault] = {
    "NaN in X": in_rows(np.nan),
    "infinity in X": in_rows(-np.inf),
    "text in X": in_rows("wide"),
    "NaN in y": in_vector("y", np.nan),
    "infinity in y": in_vector("y", np.inf),
    "text in y": in_vector("y", "dear"),
    "a negative weight": in_vector("weight", -1.0),
    "NaN in weights": in_vector("weight", np.nan),
}
SHAPES: dict[str, Fault] = {
    "a column less": whole("X", lambda X: X[["a", "b"]]),
    "a column more": whole("X", lambda X: X.assign(d=1.0)),
    "another name": whole("X", lambda X: X.rename(columns={"b": "B"})),
    "another order": whole("X", lambda X: X[["c", "b", "a"]]),
    "fewer targets": whole("y", lambda y: y[:-1]),
    "more targets": whole("y", lambda y: np.stack([y, y], axis=1)),
    "fewer weights": whole("weight", lambda weight: weight[:-1]),
    "one axis": whole("X", lambda X: X["a"].to_numpy()),
}


def as_files(write: Callable[[pd.DataFrame, Path], Any], ending: str) -> Callable[[list[Part], Path], Any]:
    """A source of files."""

    def source(given: list[Part], folder: Path) -> tuple[Any, Any]:
        paths = [folder / f"part{index}.{ending}" for index in range(len(given))]
        for part, path in zip(given, paths, strict=True):
            write(part["X"].assign(y=part["y"]), path)
        return paths, "y"

    return source


def as_stream(convert: Callable[[Any], Any], wrap: Callable[[list[Any]], Any] = list) -> Callable[..., Any]:
    """A source of items."""
    return lambda given, folder: (  # noqa: ARG005
        wrap([(convert(part["X"]), part["y"], part["weight"]) for part in given]),
        None,
    )


def write_compressed(frame: pd.DataFrame, path: Path) -> None:
    path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))


SOURCES: dict[str, Callable[[list[Part], Path], Any]] = {
    "CSV": as_files(lambda frame, path: frame.to_csv(path, index=False), "csv"),
    "compressed": as_files(write_compressed, "csv.gz"),
    "Parquet": as_files(lambda frame, path: frame.to_parquet(path, row_group_size=7), "parquet"),
    "data frames": as_stream(lambda X: X),
    "arrays": as_stream(np.asarray),
    "generator": as_stream(np.asarray, iter),
    "tensors": as_stream(lambda X: torch.from_numpy(np.array(X))),
    "sparse": as_stream(lambda X: sp.csr_array(X) if X.ndim == 2 else X),
}  # fmt: skip
OF_FILES = ("CSV", "compressed", "Parquet")


def applies(fault: str, source: str, features: str) -> bool:
    """Return whether a source can have a fault; files have no weights, and most tables no text among numbers."""
    if source in OF_FILES:
        return "weight" not in fault and fault not in ("fewer targets", "more targets", "one axis") and (
            source != "Parquet" or "text" not in fault
        )  # fmt: skip
    if fault in ("another name", "another order"):
        return source == "data frames"
    if fault == "text in X" and source in ("tensors", "sparse"):
        return False
    return not (source == "generator" and features == "scaled")  # which warns


def expected(fault: str, source: str, part: int, row: int, folder: Path) -> list[str]:
    """Return the words that a message must contain."""
    if source in OF_FILES:
        ending = {"CSV": "csv", "compressed": "csv.gz", "Parquet": "parquet"}[source]
        place = [re.escape(f"'{folder / f'part{part}.{ending}'}'")]
    else:
        place = [rf"\b[Ii]tem {part}\b"]
    if fault in VALUES:
        place.append(rf"\brow {row}\b")
        if "in X" in fault and source not in ("tensors", "sparse", "arrays", "generator"):
            place.append("'b'")
        elif "in X" in fault:
            place.append("column 1|'b'")
        elif "in y" in fault and source in OF_FILES:
            place.append("'y'")
    return place


def judge(fit: Callable[[], Any], model: Any, wanted: list[str]) -> tuple[Verdict, object]:
    """Fit on rows with a fault."""
    before = dict(vars(model))
    try:
        fit()
    except (TypeError, ValueError) as error:
        if vars(model) != before:
            return Verdict.WRONG, "the model has changed"
        lacking = [pattern for pattern in wanted if not re.search(pattern, str(error))]
        return (Verdict.VAGUE if lacking else Verdict.REFUSED), (lacking, str(error)[:300])
    except Exception as error:
        return Verdict.FOREIGN, repr(error)
    return Verdict.WRONG, "no error"


CASES = [(source, features) for source in SOURCES for features in FEATURES]


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize(("source", "features"), sampled(CASES, 5))
def test_faults(source: str, features: str, batch_size: int | None, tmp_path: Path, tally: Tally) -> None:
    for fault, change in (VALUES | SHAPES).items():
        if not applies(fault, source, features):
            continue
        for part, row in sampled(PLACES, 2):
            if part == 0 and fault in SHAPES and fault not in ("fewer targets", "fewer weights", "one axis"):
                continue  # the first rows determine what the others must be
            given = parts()
            change(given[part], row)
            X, y = SOURCES[source](given, tmp_path)
            model = FeatureRidge(FEATURES[features](), alphas=1.0, batch_size=batch_size, random_state=0)
            if fault == "another order" and source in OF_FILES:
                right = model.fit(*SOURCES[source](parts(), tmp_path)).coef_
                SOURCES[source](given, tmp_path)
                same = np.allclose(model.fit(X, y).coef_, right, rtol=1e-9)
                verdict, detail = (Verdict.RIGHT if same else Verdict.WRONG), "other coefficients"
            else:
                wanted = expected(fault, source, part, row, tmp_path)
                verdict, detail = judge(lambda model=model, X=X, y=y: model.fit(X, y), model, wanted)  # type: ignore[misc]
            assert verdict is not Verdict.VAGUE, (fault, detail)
            tally.add(verdict, f"{fault}, {source}, {features}, part {part}, row {row}", detail)


@pytest.mark.parametrize(("source", "features"), sampled(CASES, 3))
def test_faults_of_later_rows(source: str, features: str, tmp_path: Path, tally: Tally) -> None:
    """The rows of before stay in a model to which bad ones were to be added."""
    X, y = SOURCES[source](parts(), tmp_path)
    model = FeatureRidge(FEATURES[features](), alphas=1.0, random_state=0)
    if source == "generator" and features == "scaled":
        return
    model.partial_fit(X, y)
    for fault, change in (VALUES | SHAPES).items():
        if not applies(fault, source, features) or (fault == "another order" and source in OF_FILES):
            continue
        given = parts()
        change(given[1], 17)
        X, y = SOURCES[source](given, tmp_path)
        wanted = expected(fault, source, 1, 17, tmp_path)
        verdict, detail = judge(lambda X=X, y=y: model.partial_fit(X, y), model, wanted)  # type: ignore[misc]
        assert verdict is not Verdict.VAGUE, (fault, detail)
        tally.add(verdict, f"{fault}, {source}, {features}, later", detail)
    assert model.n_samples_seen_ == N_PARTS * N_ROWS


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "sparse"])
def test_faults_of_classes(source: str, tmp_path: Path, tally: Tally) -> None:
    for fault, value in (("NaN in X", np.nan), ("infinity in X", np.inf)):
        given = parts()
        for part in given:
            part["y"] = np.where(part["y"] > 0, "up", "down").astype(object)
        in_rows(value)(given[2], 17)
        X, y = SOURCES[source](given, tmp_path)
        model = FeatureRidgeClassifier(FunctionTransformer(), alphas=1.0, random_state=0)
        wanted = expected(fault, source, 2, 17, tmp_path)
        verdict, detail = judge(lambda model=model, X=X, y=y: model.fit(X, y), model, wanted)  # type: ignore[misc]
        assert verdict is not Verdict.VAGUE, (fault, detail)
        tally.add(verdict, f"{fault}, {source}, classes", detail)


class OwnError(ValueError):
    """An error of the program that makes the rows."""

    def __init__(self, code: int, text: str):
        super().__init__(code, text)


@pytest.mark.parametrize("error", [OSError("the disk is gone"), OwnError(3, "x"), ValueError("rows"), KeyError("k")])
@pytest.mark.parametrize("features", FEATURES)
def test_errors_of_the_program_that_makes_the_rows(error: Exception, features: str, tally: Tally) -> None:
    """They are raised unchanged, at any position."""
    for part in range(N_PARTS):

        class Rows:
            def __iter__(self, part: int = part) -> Iterator[Any]:
                for index, item in enumerate(parts()):
                    if index == part:
                        raise error
                    yield item["X"].to_numpy(), item["y"]

        streams = [Rows()] if features == "scaled" else [Rows(), iter(Rows())]
        for stream in streams:
            with pytest.raises(type(error)) as caught:
                FeatureRidge(FEATURES[features](), alphas=1.0).fit(stream)
            verdict = Verdict.RIGHT if caught.value is error else Verdict.FOREIGN
            tally.add(verdict, f"{error!r} in item {part}", caught.value)
