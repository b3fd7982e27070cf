"""Bad rows, targets and weights × every estimator and kernel × (fit, use): right, or refused with a clear message.

An input is handled correctly if the result equals the result for the same numbers as a float64 array. A refused fit
must leave the estimator unchanged.
"""

from __future__ import annotations

import array
import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import is_classifier, is_regressor
from tests.hostile.subjects import (
    N_COLUMNS,
    Subject,
    difference,
    estimators,
    functions,
    judge,
    of_class,
    plain,
    quietly,
    rows,
    targets,
)
from tests.hostile.verdicts import Tally, Verdict
from tests.tiers import sampled
from threadpoolctl import threadpool_limits

import ntkit.models

NAMES = [f"column {i}" for i in range(N_COLUMNS)]


@dataclass(frozen=True)
class Input:
    """Rows derived from clean rows, and the expected outcome."""

    name: str
    make: Callable[[np.ndarray], Any]
    expects: str = "refuse"
    """"same" as for the clean rows, "refuse", "either" of these, or "finite": that or refused."""
    clean: Callable[[np.ndarray], np.ndarray] = lambda X: X
    tolerance: float = 1e-6
    finite: bool = True
    """Return whether all its numbers are finite."""
    named: bool = False
    """Return whether the estimator was fitted on a data frame."""


def refused(name: str, make: Callable[[np.ndarray], Any], **options: Any) -> Input:
    return Input(name, make, **options)


def same(name: str, make: Callable[[np.ndarray], Any], **options: Any) -> Input:
    return Input(name, make, "same", **options)


def either(name: str, make: Callable[[np.ndarray], Any], **options: Any) -> Input:
    return Input(name, make, "either", **options)


def with_entry(value: Any, dtype: Any = np.float64) -> Callable[[np.ndarray], np.ndarray]:
    def make(X: np.ndarray) -> np.ndarray:
        X = X.astype(dtype)
        X[3, 2] = value
        return X

    return make


def frame(X: np.ndarray, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES[: X.shape[1]]).assign(**columns)


def frame_with(values: Callable[[int], Any]) -> Callable[[np.ndarray], pd.DataFrame]:
    """A data frame whose column 1 is replaced."""

    def make(X: np.ndarray) -> pd.DataFrame:
        table = frame(X).astype({NAMES[1]: object})
        table[NAMES[1]] = values(len(X))
        return table

    return make


def with_one(dtype: str, *, missing: bool) -> Callable[[np.ndarray], pd.DataFrame]:
    def make(X: np.ndarray) -> pd.DataFrame:
        table = frame(X).astype(dtype)
        if missing:
            table.iloc[3, 2] = pd.NA
        return table

    return make


def sparse_with(value: float) -> Callable[[np.ndarray], Any]:
    def make(X: np.ndarray) -> Any:
        X = sp.csr_array(X)
        X.data[5] = value
        return X

    return make


def duplicates(X: np.ndarray) -> Any:
    """Every entry twice, half of it each time."""
    X = sp.csr_array(X)
    return sp.csr_array((np.repeat(X.data, 2) / 2, np.repeat(X.indices, 2), 2 * X.indptr), X.shape)


def big_endian(X: np.ndarray) -> np.ndarray:
    return X.astype(">f8")


def masked(X: np.ndarray, mask: Any) -> Any:
    return np.ma.MaskedArray(X, mask=mask)


def some_masked(X: np.ndarray) -> Any:
    mask = np.zeros(X.shape, bool)
    mask[3, 2] = True
    return masked(np.where(mask, 999.0, X), mask)


def structured(X: np.ndarray) -> np.ndarray:
    return np.array([tuple(x) for x in X], dtype=[(f"f{i}", "f8") for i in range(X.shape[1])])


def quantized(X: np.ndarray) -> Any:
    return torch.quantize_per_tensor(torch.from_numpy(X).float(), 0.125, 0, torch.quint8)


def strict(X: np.ndarray) -> Any:
    import array_api_strict

    return array_api_strict.asarray(X.copy())


def tensor(X: np.ndarray) -> Any:
    return torch.from_numpy(X.copy())


def whole(X: np.ndarray) -> np.ndarray:
    return np.rint(8 * X)


def at_least_one(X: np.ndarray) -> np.ndarray:
    return (X > 1).astype(np.float64)


def days(X: np.ndarray) -> np.ndarray:
    return whole(X).astype("datetime64[D]")


INPUTS = [
    # Containers and dtypes that hold the same numbers.
    same("list", lambda X: X.tolist()),
    same("tuple of tuples", lambda X: tuple(map(tuple, X.tolist()))),
    same("Fortran order", np.asfortranarray),
    same("negative strides", lambda X: X[:, ::-1].copy()[:, ::-1]),
    same("read-only", lambda X: np.broadcast_to(X, X.shape)),
    same("big-endian", big_endian),
    same("float32", lambda X: X.astype(np.float32), tolerance=1e-3),
    same("float16", lambda X: X.astype(np.float16), tolerance=2e-2),
    same("longdouble", lambda X: X.astype(np.longdouble)),
    same("int64", lambda X: whole(X).astype(np.int64), clean=whole, tolerance=1e-4),
    same("uint8", lambda X: whole(X).astype(np.uint8), clean=whole, tolerance=1e-4),
    same("int8 Fortran", lambda X: np.asfortranarray(whole(X).astype(np.int8)), clean=whole, tolerance=1e-4),
    same("bool", lambda X: X > 1, clean=at_least_one, tolerance=1e-4),
    same("object of floats", lambda X: X.astype(object)),
    same("object of Decimals", lambda X: np.vectorize(decimal.Decimal, otypes=[object])(X)),
    either("np.matrix", np.matrix),
    same("unmasked MaskedArray", lambda X: masked(X, False)),
    same("array API", strict),
    either("memoryview", lambda X: memoryview(np.ascontiguousarray(X))),
    either("list of arrays", list),
    same("data frame", frame),
    same("data frame of float32", lambda X: frame(X.astype(np.float32)), tolerance=1e-3),
    same("data frame, nullable", with_one("Float64", missing=False)),
    same("data frame, arrow", with_one("float64[pyarrow]", missing=False)),
    same("data frame, ints and floats", lambda X: frame(whole(X)).astype({NAMES[0]: int}), clean=whole, tolerance=1e-4),
    same("data frame of objects", lambda X: frame(X.astype(object))),
    either("data frame, sparse", lambda X: frame(X).astype(pd.SparseDtype(float))),
    either("data frame, categories", lambda X: frame(whole(X)).astype("category"), clean=whole),
    either("data frame, names of numbers", pd.DataFrame),
    either("Dask array", lambda X: da.from_array(X, chunks=(-1, -1))),
    # Masked, dates, text, complex numbers, objects.
    refused("masked entry", some_masked),
    refused("masked entry of float32", lambda X: some_masked(X).astype(np.float32)),
    refused("all masked", lambda X: masked(X, True)),
    refused("list of masked rows", lambda X: list(some_masked(X))),
    refused("datetime64", days),
    refused("datetime64[ns]", lambda X: days(X).astype("datetime64[ns]")),
    refused("timedelta64", lambda X: whole(X).astype("timedelta64[s]")),
    refused("list of dates", lambda X: days(X).tolist()),
    refused(
        "object of timedelta64", lambda X: np.array([[np.timedelta64(int(x), "s") for x in r] for r in 8 * X], object)
    ),
    refused("complex", lambda X: X + 1j),
    refused("complex without imaginary part", lambda X: X + 0j),
    refused("text", lambda X: np.full(X.shape, "red")),
    refused("text in objects", with_entry("red", object)),
    refused("bytes", lambda X: np.full(X.shape, b"red")),
    refused("dict in objects", with_entry({"a": 1}, object)),
    refused("None in objects", with_entry(None, object), finite=False),
    refused("huge int in objects", with_entry(10**400, object)),
    refused("structured", structured),
    refused("void", lambda X: X.view("V8")),
    refused("ragged list", lambda X: [*X.tolist()[:-1], [1.0]]),
    refused("None", lambda _: None),
    refused("number", lambda _: 3.5),
    refused("text itself", lambda _: "no such table"),
    refused("bytes itself", lambda _: b"red"),
    refused("dict", lambda X: {"a": X}),
    refused("set", lambda _: {1.0, 2.0}),
    refused("generator", lambda X: (x for x in X)),
    refused("class", lambda _: np.ndarray),
    refused("function", lambda _: len),
    refused("date", lambda _: datetime.date(2020, 1, 1)),
    # Shapes.
    refused("0-d", lambda _: np.array(1.0)),
    refused("1-d", lambda X: X[0]),
    refused("1-d list", lambda X: X[0].tolist()),
    refused("1-d buffer", lambda X: array.array("d", X[0])),
    refused("3-d", lambda X: X[:, :, None]),
    refused("5-d", lambda X: X[:, :, None, None, None]),
    refused("no rows", lambda X: X[:0]),
    refused("no columns", lambda X: X[:, :0]),
    refused("empty list", lambda _: []),
    refused("list of empty rows", lambda X: [[] for _ in X]),
    refused("series", lambda X: pd.Series(X[:, 0])),
    refused("data frame without rows", lambda X: frame(X[:0])),
    refused("data frame without columns", lambda X: frame(X)[[]]),
    # Missing, infinite, huge and tiny numbers.
    refused("NaN", with_entry(np.nan), finite=False),
    refused("NaN in float16", with_entry(np.nan, np.float16), finite=False),
    refused("infinity", with_entry(np.inf), finite=False),
    refused("minus infinity in float32", with_entry(-np.inf, np.float32), finite=False),
    refused("data frame with NaN", lambda X: frame(with_entry(np.nan)(X)), finite=False),
    refused("data frame with NA", with_one("Float64", missing=True), finite=False),
    refused("data frame with NA in ints", lambda X: with_one("Int64", missing=True)(whole(X)), finite=False),
    refused("data frame with a date", frame_with(lambda n: pd.date_range("2020", periods=n))),
    refused("data frame with a duration", frame_with(lambda n: pd.to_timedelta(np.arange(n), "D"))),
    refused("data frame with date objects", frame_with(lambda n: [datetime.date(2020, 1, 1)] * n)),
    refused("data frame with text", frame_with(lambda n: [["red", "blue"][i % 2] for i in range(n)])),
    refused("data frame with complex numbers", frame_with(lambda n: np.full(n, 1j))),
    refused("data frame with lists", frame_with(lambda n: [[1.0]] * n)),
    Input("times 1e300", lambda X: X * 1e300, "finite"),
    Input("times 1e160", lambda X: X * 1e160, "finite"),
    Input("times 1e60", lambda X: X * 1e60, "finite"),
    Input("times 1e30 in float32", lambda X: (X * 1e30).astype(np.float32), "finite"),
    Input("one huge entry", with_entry(1e200), "finite"),
    Input("times 1e-40", lambda X: X * 1e-40, "finite"),
    Input("times 1e-40 in float32", lambda X: (X * 1e-40).astype(np.float32), "finite"),
    Input("times 1e-170", lambda X: X * 1e-170, "finite"),
    Input("times 1e-310", lambda X: X * 1e-310, "finite"),
    Input("all zero", lambda X: 0 * X, "finite"),
    Input("largest float16", lambda X: np.full(X.shape, 65504, np.float16), "finite"),
    # Sparse rows.
    either("CSR", sp.csr_array),
    either("CSC matrix", sp.csc_matrix),
    either("COO", sp.coo_array),
    either("LIL", sp.lil_array),
    either("DOK", sp.dok_array),
    either("CSR of ints", lambda X: sp.csr_array(whole(X).astype(int)), clean=whole, tolerance=1e-4),
    either("CSR of bools", lambda X: sp.csr_array(X > 1), clean=at_least_one, tolerance=1e-4),
    either("CSR with duplicates", duplicates),
    refused("CSR with NaN", sparse_with(np.nan), finite=False),
    refused("CSR with infinity", sparse_with(np.inf), finite=False),
    refused("CSR of complex numbers", lambda X: sp.csr_array(X + 1j)),
    refused("CSR without rows", lambda X: sp.csr_array(X[:0])),
    Input("CSR times 1e300", lambda X: sp.csr_array(X * 1e300), "finite"),
    refused("COO with one axis", lambda X: sp.coo_array(X[0])),
    # Tensors.
    same("tensor", tensor),
    same("tensor of float32", lambda X: tensor(X).float(), tolerance=1e-3),
    same("tensor of bfloat16", lambda X: tensor(X).bfloat16(), tolerance=4e-2),
    same("tensor of float16", lambda X: tensor(X).half(), tolerance=2e-2),
    same("tensor that requires gradients", lambda X: tensor(X).requires_grad_()),
    same("bfloat16 that requires gradients", lambda X: tensor(X).bfloat16().requires_grad_(), tolerance=4e-2),
    same("tensor of ints", lambda X: tensor(whole(X)).int(), clean=whole, tolerance=1e-4),
    same("tensor of bools", lambda X: tensor(X) > 1, clean=at_least_one, tolerance=1e-4),
    same("tensor, transposed", lambda X: tensor(X.T).T),
    either("list of tensors", lambda X: list(tensor(X))),
    refused("complex tensor", lambda X: tensor(X).to(torch.complex128)),
    refused("meta tensor", lambda X: tensor(X).to("meta")),
    refused("quantized tensor", quantized),
    refused("sparse tensor COO", lambda X: tensor(X).to_sparse()),
    refused("sparse tensor CSR", lambda X: tensor(X).to_sparse_csr()),
    refused("nested tensor", lambda X: torch.nested.nested_tensor(list(tensor(X)))),
    refused("tensor with NaN", lambda X: tensor(with_entry(np.nan)(X)), finite=False),
    refused("bfloat16 with infinity", lambda X: tensor(with_entry(np.inf)(X)).bfloat16(), finite=False),
    refused("tensor with one axis", lambda X: tensor(X[0])),
    refused("tensor with no axes", lambda _: torch.tensor(1.0)),
    refused("tensor without rows", lambda X: tensor(X[:0])),
    refused("tensor without columns", lambda X: tensor(X[:, :0])),
    Input("tensor times 1e160", lambda X: tensor(X * 1e160), "finite"),
    Input("bfloat16 times 1e30", lambda X: tensor(X * 1e30).bfloat16(), "finite"),
    Input("tensor times 1e-40", lambda X: tensor(X * 1e-40), "finite"),
]
AT_USE = [
    refused("a column less", lambda X: X[:, 1:]),
    refused("a column more", lambda X: np.hstack([X, X[:, :1]])),
    refused("a tensor with a column less", lambda X: tensor(X[:, 1:])),
    refused("a CSR column less", lambda X: sp.csr_array(X[:, 1:])),
    refused("a data frame with a column less", lambda X: frame(X[:, 1:])),
    refused("other names", lambda X: frame(X).rename(columns={NAMES[0]: "other"}), named=True),
    refused("a named column less", lambda X: frame(X)[NAMES[1:]], named=True),
    either("another order of names", lambda X: frame(X)[NAMES[::-1]], named=True),
    same("an array after a data frame", lambda X: X, named=True),
]
OF_TABLES = ("TableEncoder", "TableRegressor", "TableClassifier")
TAKES_MISSING = ("ArcsinhScaler", *OF_TABLES)
OF_IMAGES = ("CNTKSketch", "FlipAveraged", "ImageStandardizer", "ZCAWhitening", "PatchWhitening")
OF_ARRAYS = ("cntk", "flip_images")  # functions of images, which tables and lists of rows are not
BY_KIND = ("GaussianFeatures", "FeatureRidgeSearch", "FeatureRidgeSearchClassifier", "FeatureRidge by default")
DATES = {"data frame with a date", "data frame with date objects", "data frame with a duration"}
WORDS = {"text", "data frame with text", "text in objects", "data frame, categories"}


def by_design(subject: Subject, case: Input, phase: str, text: str) -> bool:
    """Return whether an estimator is meant to treat an input differently than all others."""
    if text.startswith("goes through"):
        missing = not case.finite and "infinity" not in case.name
        return (subject.name in TAKES_MISSING and missing) or (subject.name in OF_TABLES and case.name in WORDS | DATES)
    if text.startswith("differs"):
        rounding = subject.name == "FeatureKMeans" and case.tolerance > 1e-3  # to another local optimum
        sparse = subject.name in BY_KIND and phase == "fit"  # sparse rows are not centred, or get another map
        if subject.name in OF_TABLES and case.name in WORDS | DATES:  # one column for each level
            return True
        return rounding or (sparse and case.name.startswith(("CS", "COO", "LIL", "DOK")))
    return "does not differentiate" in text or (subject.name in OF_ARRAYS and "images" in text)


def compare(case: Input, found: Any, expected: Any, *, kernel: bool) -> tuple[Verdict, str]:
    """The verdict on a result; values of a `kernel` may be beyond all numbers, and infinite then."""
    if case.expects == "refuse":
        return Verdict.WRONG, "goes through"
    if case.expects == "finite":
        good = not np.isnan(plain(found)).any() if kernel else bool(np.isfinite(plain(found)).all())
        return (Verdict.RIGHT, "") if good else (Verdict.WRONG, "not finite")
    error = difference(found, expected)
    return (Verdict.RIGHT, "") if error <= case.tolerance else (Verdict.WRONG, f"differs by {error:.1e}")


def attempt(
    case: Input, call: Callable[[], Any], expected: Callable[[], Any], *, kernel: bool = False
) -> tuple[Verdict, str]:
    """Run one trial."""
    try:
        found = quietly(call)
    except Exception as error:
        verdict, text = judge(error, finite=case.finite), f"{type(error).__name__}: {error}"
        if case.expects == "same" and verdict in (Verdict.REFUSED, Verdict.VAGUE):
            verdict, text = Verdict.WRONG, f"refused: {text}"
        return verdict, text.replace("\n", " ")[:200]
    return compare(case, found, quietly(expected), kernel=kernel)


def try_fit(subject: Subject, case: Input, before: Any) -> tuple[Verdict, str]:
    """Fit on a bad input an estimator that has been fitted before."""
    X = rows()
    bad, clean = quietly(lambda: case.make(X)), case.clean(X)
    estimator = subject.make()
    estimator.__dict__.update(before.__dict__)
    state = {name: id(value) for name, value in vars(estimator).items()}
    y = targets(estimator, X)
    use_on = bad if case.expects == "finite" else clean

    def call() -> Any:
        if subject.name in OF_TABLES and hasattr(bad, "iloc"):
            return subject.use(subject.refit(estimator, bad, y), bad)
        return subject.use(subject.refit(estimator, bad, y), use_on)

    verdict, text = attempt(case, call, lambda: subject.use(subject.fit(clean, y), clean))
    if verdict in (Verdict.REFUSED, Verdict.VAGUE) and case.expects != "finite":
        after = {name: id(value) for name, value in vars(estimator).items()}
        if after != state:
            return Verdict.WRONG, f"a refused fit changed {sorted(after.items() ^ state.items())[:2]}: {text}"
    return verdict, text


def try_use(subject: Subject, case: Input, before: Any) -> tuple[Verdict, str]:
    """Give a bad input to a fitted estimator, or to a function."""
    X = rows()
    bad, clean = quietly(lambda: case.make(X)), case.clean(X)
    if subject.function:
        call = subject.make()
        return attempt(case, lambda: call(bad), lambda: call(clean), kernel=True)
    return attempt(case, lambda: subject.use(before, bad), lambda: subject.use(before, clean))


def fitted(subject: Subject, *, named: bool = False) -> Any:
    X = rows()
    return quietly(lambda: subject.fit(frame(X) if named else X, targets(subject.make(), X)))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.mark.parametrize("subject", [*estimators(), *functions()], ids=lambda subject: subject.name)
def test_rows(subject: Subject, tally: Tally) -> None:
    """Every input, to fit and to use."""
    clean = {False: None, True: None} if subject.function else {n: fitted(subject, named=n) for n in (False, True)}
    trials = [(case, "use") for case in INPUTS]
    if not subject.function:
        trials += [(case, "fit") for case in INPUTS] + [(case, "use") for case in AT_USE]
    for case, phase in sampled(trials, 8):
        verdict, text = (try_fit if phase == "fit" else try_use)(subject, case, clean[case.named])
        if verdict is Verdict.WRONG and by_design(subject, case, phase, text):
            verdict = Verdict.RIGHT
        tally.add(verdict, f"{subject.name}, {phase}, {case.name}", text)
    assert len(tally.vague) <= 2, tally.vague  # some 100 in all trials


@pytest.mark.parametrize("subject", estimators(), ids=lambda subject: subject.name)
def test_unfitted(subject: Subject, tally: Tally) -> None:
    """An unfitted estimator raises NotFittedError for any input."""
    case = refused("unfitted", lambda X: X)
    for bad in (rows(), None, tensor(rows()), sp.csr_array(rows()), frame(rows())):
        verdict, text = attempt(case, lambda bad=bad: subject.use(subject.make(), bad), lambda: None)
        tally.add(verdict, f"{subject.name}, unfitted, {type(bad).__name__}", text)


# Targets and weights.

LEARNERS = [s for s in estimators() if is_classifier(s.make()) or is_regressor(s.make())]
WEIGHTED = [*LEARNERS, of_class(ntkit.models.FeatureKMeans)]


def nearly(y: np.ndarray, dtype: Any) -> Any:
    return tensor(y).to(dtype)


TARGETS = [
    same("list", lambda y: y.tolist()),
    same("series", pd.Series),
    same("nullable series", lambda y: pd.Series(y).convert_dtypes()),
    same("float32", lambda y: y.astype(np.float32)),
    same("float16", lambda y: y.astype(np.float16)),
    same("longdouble", lambda y: y.astype(np.longdouble)),
    same("object", lambda y: y.astype(object)),
    same("big-endian", lambda y: y.astype(y.dtype.newbyteorder(">"))),
    same("unmasked MaskedArray", lambda y: masked(y, False)),
    same("read-only", lambda y: np.broadcast_to(y, y.shape)),
    same("tensor", tensor),
    same("tensor of float32", lambda y: nearly(y, torch.float32)),
    same("tensor of bfloat16", lambda y: nearly(y, torch.bfloat16)),
    same("tensor of float16", lambda y: nearly(y, torch.float16)),
    same("tensor that requires gradients", lambda y: nearly(y, torch.float64).requires_grad_()),
    refused("masked entry", lambda y: masked(y, np.arange(len(y)) == 3)),
    refused("datetime64", lambda y: np.rint(4 * y).astype("datetime64[D]")),
    refused("timedelta64", lambda y: np.rint(4 * y).astype("timedelta64[s]")),
    refused("series of dates", lambda y: pd.Series(pd.date_range("2020", periods=len(y)))),
    refused("complex", lambda y: y + 1j),
    refused("NaN", lambda y: np.where(np.arange(len(y)) == 3, np.nan, y), finite=False),
    refused("infinity", lambda y: np.where(np.arange(len(y)) == 3, np.inf, y), finite=False),
    refused("None in objects", lambda y: np.where(np.arange(len(y)) == 3, None, y), finite=False),
    refused("dict in objects", lambda y: np.where(np.arange(len(y)) == 3, {"a": 1}, y)),
    refused("huge int in objects", lambda y: np.where(np.arange(len(y)) == 3, 10**400, y.astype(object))),
    refused("NA", lambda y: pd.Series(y, dtype="Float64").where(np.arange(len(y)) != 3), finite=False),
    refused("structured", lambda y: np.array([(v, v) for v in y], dtype=[("a", "f8"), ("b", "f8")])),
    refused("void", lambda y: y.astype(np.float64).view("V8")),
    refused("None", lambda _: None),
    refused("number", lambda _: 3.5),
    refused("text itself", lambda _: "red"),
    refused("0-d", lambda _: np.array(1.0)),
    refused("3-d", lambda y: y[:, None, None]),
    refused("no rows", lambda y: y[:0]),
    refused("no columns", lambda y: np.empty((len(y), 0))),
    refused("a row less", lambda y: y[1:]),
    refused("a row more", lambda y: np.append(y, y[:1])),
    refused("ragged list", lambda y: [*y.tolist()[:-1], [1.0, 2.0]]),
    refused("sparse", lambda y: sp.csr_array(y[:, None])),
    refused("generator", lambda y: (v for v in y)),
    refused("dict", lambda y: {"a": y}),
    refused("complex tensor", lambda y: nearly(y, torch.complex64)),
    refused("meta tensor", lambda y: tensor(y).to("meta")),
    refused("sparse tensor", lambda y: tensor(y).to_sparse()),
    refused(
        "tensor with NaN", lambda y: torch.where(torch.arange(len(y)) == 3, torch.nan, tensor(y).double()), finite=False
    ),
    Input("times 1e300", lambda y: y * 1e300, "finite"),
    Input("times 1e-300", lambda y: y * 1e-300, "finite"),
]
WEIGHTS = [
    same("list", lambda w: w.tolist()),
    same("tensor", tensor),
    same("tensor of bfloat16", lambda w: nearly(w, torch.bfloat16)),
    same("tensor that requires gradients", lambda w: tensor(w).requires_grad_()),
    same("ints", lambda w: w.astype(np.int8)),
    same("series", pd.Series),
    same("nullable series", lambda w: pd.Series(w).convert_dtypes()),
    same("unmasked MaskedArray", lambda w: masked(w, False)),
    refused("masked entry", lambda w: masked(w, np.arange(len(w)) == 3)),
    refused("datetime64", lambda w: w.astype(int).astype("datetime64[D]")),
    refused("timedelta64", lambda w: w.astype(int).astype("timedelta64[s]")),
    refused("complex", lambda w: w + 1j),
    refused("text", lambda w: np.full(w.shape, "red")),
    refused("text itself", lambda _: "red"),
    refused("NaN", lambda w: np.where(np.arange(len(w)) == 3, np.nan, w), finite=False),
    refused("infinity", lambda w: np.where(np.arange(len(w)) == 3, np.inf, w), finite=False),
    refused("negative", lambda w: -w),
    refused("all zero", lambda w: 0 * w),
    refused("a row less", lambda w: w[1:]),
    refused("2-d", lambda w: np.stack([w, w], axis=1)),
    refused("no rows", lambda w: w[:0]),
    refused("meta tensor", lambda w: tensor(w).to("meta")),
    refused("sparse tensor", lambda w: tensor(w).to_sparse()),
    refused("sparse", lambda w: sp.csr_array(w[:, None])),
    refused("NA", lambda w: pd.Series(w, dtype="Float64").where(np.arange(len(w)) != 3), finite=False),
    refused("dict", lambda w: {"a": w}),
    Input("times 1e300", lambda w: w * 1e300, "finite"),
    Input("times 1e-300", lambda w: w * 1e-300, "finite"),
]


def weights() -> np.ndarray:
    return np.random.default_rng(5).integers(1, 4, len(rows())).astype(np.float64)


@pytest.mark.parametrize("subject", WEIGHTED, ids=lambda subject: subject.name)
def test_targets_and_weights(subject: Subject, tally: Tally) -> None:
    """Every target and every weight, to fit."""
    X, y = rows(), targets(subject.make(), rows())
    trials = [] if y is None else [("y", case) for case in TARGETS]
    trials += [("sample_weight", case) for case in WEIGHTS]
    for name, case in sampled(trials, 5):
        if name == "y" and is_classifier(subject.make()) and case.expects == "finite":
            continue
        bad = quietly(lambda case=case, name=name: case.make(y if name == "y" else weights()))
        given = (bad, None) if name == "y" else (y, bad)
        clean = (y, None) if name == "y" else (y, weights())
        verdict, text = attempt(
            case,
            lambda given=given: subject.use(subject.fit(X, *given), X),
            lambda clean=clean: subject.use(subject.fit(X, *clean), X),
        )
        tally.add(verdict, f"{subject.name}, {name}, {case.name}", text)
    assert len(tally.vague) <= 2, tally.vague  # some 100 in all trials
