"""The contract of all feature maps: one table of maps, then one test for each clause.

The tests of each map cover its formula, parameters and attributes; ``test_laws.py`` compares inner products of features
with the kernel.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from tests import tiers
from tests.conftest import as_numpy, peak_memory
from threadpoolctl import threadpool_limits

import ntkit.features
from ntkit import networks as nn
from ntkit.features import (
    CNTKSketch,
    DotProductSketch,
    FastfoodFeatures,
    GaussianFeatures,
    GegenbauerFeatures,
    GradientFeatures,
    MaclaurinFeatures,
    NetworkFeatures,
    NTKFeatures,
    NTKPolynomialSketch,
    NTKRandomFeatures,
    NTKSketch,
    NystroemFeatures,
    OrthogonalFourierFeatures,
    PolynomialSketch,
    RandomFourierFeatures,
    base,
)
from ntkit.kernels import gaussian
from ntkit.persistence import load, save

# The maps.

SHAPE = (4, 3, 2)
CONV = nn.Sequential(nn.Conv(3), nn.ReLU(), nn.GlobalAvgPool(), nn.Dense())
N_ROWS, N_COLUMNS = 20, 6


@dataclass(frozen=True)
class Case:
    """A map and the inputs it supports."""

    map: Any
    layout: str = "rows"
    """Input of `fit`: "rows", "flat" images, "images" with four axes, or a kernel "matrix"."""
    sparse: bool = True
    zero: bool = True
    """True if zero rows have zero features, because the kernel vanishes there."""
    oblivious: bool = True
    """True if `fit` depends only on the shape of the rows."""
    rows_only: bool = False
    """True if `fit` depends on all rows, not only on their norms and their spread."""
    by_kind: bool = False
    """True if sparse rows get a different map than dense rows."""

    @property
    def name(self) -> str:
        return type(self.map).__name__

    @property
    def n_features(self) -> int:
        return {"rows": N_COLUMNS, "matrix": N_ROWS}.get(self.layout, int(np.prod(SHAPE)))

    def rows(self, n_rows: int = N_ROWS, seed: int = 0) -> np.ndarray:
        """Rows of different norms, some entries 0."""
        rng = np.random.default_rng(seed)
        if self.layout == "matrix":
            points = np.random.default_rng(7).standard_normal((max(n_rows, N_ROWS), 3))
            return gaussian(points, points[:N_ROWS], lengthscale=2.0)[:n_rows]
        X = rng.standard_normal((n_rows, self.n_features)) * (rng.random((n_rows, self.n_features)) < 0.8)
        X[:, 0] += 0.1  # none of them zero
        X *= np.geomspace(0.5, 2, n_rows)[:, None]
        return X.reshape(n_rows, *SHAPE) if self.layout == "images" else X

    def fitted(self, X: Any = None, **parameters: Any) -> Any:
        return clone(self.map).set_params(**parameters).fit(self.rows() if X is None else X)


def learner(feature_map: Any, **support: Any) -> Case:
    """A case whose map learns something from the rows, such as a length scale."""
    return Case(feature_map, oblivious=False, **support)


CASES = {
    "NTKPolynomialSketch": Case(NTKPolynomialSketch(n_components=48, degree=6, random_state=0)),
    "NTKPolynomialSketch nngp": Case(
        NTKPolynomialSketch(depth=3, n_components=48, kind="nngp", normalize=False, random_state=0)
    ),
    "NTKSketch": Case(NTKSketch(depth=2, n_components=48, degree=3, derivative_degree=3, random_state=0)),
    "NTKSketch paper": Case(
        NTKSketch(n_components=48, degree=2, derivative_degree=3, variant="paper", projection=True, random_state=0)
    ),
    "NTKRandomFeatures": Case(NTKRandomFeatures(depth=2, n_components=48, random_state=0)),
    "NetworkFeatures": Case(
        NetworkFeatures(nn.fully_connected(2), n_components=48, degree=3, derivative_degree=3, random_state=0)
    ),
    "NetworkFeatures random": Case(
        NetworkFeatures(nn.fully_connected(2), n_components=48, method="random", kind="both", random_state=0)
    ),
    "NetworkFeatures images": Case(NetworkFeatures(CONV, n_components=48, random_state=0), "images", sparse=False),
    "NetworkFeatures random images": Case(
        NetworkFeatures(CONV, n_components=48, method="random", image_shape=SHAPE, random_state=0), "flat", sparse=False
    ),
    "CNTKSketch": Case(CNTKSketch(depth=2, n_components=48, image_shape=SHAPE, random_state=0), "flat", sparse=False),
    "GradientFeatures": Case(GradientFeatures(nn.fully_connected(2), width=5, random_state=0)),
    "GradientFeatures n_components": Case(GradientFeatures(n_components=5, random_state=0)),
    "GradientFeatures images": Case(
        GradientFeatures(CONV, width=3, image_shape=SHAPE, random_state=0), "flat", sparse=False
    ),
    "GegenbauerFeatures": learner(GegenbauerFeatures("ntk", n_components=48, random_state=0)),
    "GegenbauerFeatures gaussian": learner(
        GegenbauerFeatures("gaussian", n_components=48, harmonics=False, random_state=0), zero=False
    ),
    "GegenbauerFeatures groups": learner(
        GegenbauerFeatures("gaussian", n_components=48, groups=[(0, 1, 4), (2, 3, 5)], random_state=0), zero=False
    ),
    "RandomFourierFeatures": learner(RandomFourierFeatures(n_components=48, random_state=0), zero=False),
    "RandomFourierFeatures odd": learner(
        RandomFourierFeatures(n_components=49, kernel="laplace", kernel_params={"norm": "l1"}, random_state=0),
        zero=False,
    ),
    "OrthogonalFourierFeatures": learner(OrthogonalFourierFeatures(n_components=48, random_state=0), zero=False),
    "FastfoodFeatures": learner(FastfoodFeatures(n_components=49, kernel="matern", random_state=0), zero=False),
    "MaclaurinFeatures": learner(MaclaurinFeatures(n_components=48, random_state=0), zero=False),
    "PolynomialSketch": learner(
        PolynomialSketch(degree=4, gamma=0.5, coef0=1.0, n_components=48, random_state=0), zero=False
    ),
    "PolynomialSketch power": learner(PolynomialSketch(degree=4, n_components=48, method="power", random_state=0)),
    "PolynomialSketch count": learner(
        PolynomialSketch(degree=3, coef0=1.0, n_components=48, method="count", random_state=0), zero=False
    ),
    "DotProductSketch": learner(DotProductSketch(n_components=48, random_state=0), zero=False),
    "DotProductSketch sampled": learner(
        DotProductSketch("ntk", n_components=48, degree=4, n_sampled=5, method="power", random_state=0)
    ),
    "NystroemFeatures": learner(NystroemFeatures("ntk", n_components=8, random_state=0), rows_only=True),
    "NystroemFeatures gaussian": learner(
        NystroemFeatures("gaussian", n_components=8, landmarks="uniform", random_state=0), zero=False, rows_only=True
    ),
    "NystroemFeatures images": learner(
        NystroemFeatures("cntk", n_components=8, depth=2, landmarks="uniform", random_state=0),
        layout="images",
        sparse=False,
        rows_only=True,
    ),
    "NystroemFeatures precomputed": learner(
        NystroemFeatures("precomputed", n_components=8, random_state=0), layout="matrix", sparse=False, rows_only=True
    ),
    "NTKFeatures": Case(NTKFeatures(depth=2, n_components=48, random_state=0)),
    "NTKFeatures bias": Case(NTKFeatures(n_components=48, method="random", bias="auto", random_state=0), zero=False),
    "GaussianFeatures": learner(
        GaussianFeatures(n_components=48, random_state=0), zero=False, rows_only=True, by_kind=True
    ),
}
ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
CLASSES = sorted({type(case.map) for case in CASES.values()}, key=lambda law: law.__name__)


def some(condition: Callable[[Case], bool]) -> Any:
    """Parametrize over the cases with some property."""
    chosen = {name: case for name, case in CASES.items() if condition(case)}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen)


def one_of_each(condition: Callable[[Case], bool] | None = None) -> Any:
    """Parametrize tests of the base class over one case of each class, chosen by the seed; in test-all over all."""
    names = [name for name, case in CASES.items() if condition is None or condition(case)]
    random.Random(tiers.SEED).shuffle(names)
    drawn = {CASES[name].name: name for name in names}.values()
    return some(lambda case: any(case is CASES[name] for name in (names if tiers.ALL else drawn)))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine threads of BLAS wait for each other: small QR decompositions then take seconds."""
    with threadpool_limits(1, user_api="blas"):
        yield


def close(Z: Any, expected: Any, tolerance: float = 1e-11) -> None:
    """Equal up to a tolerance relative to the largest feature of the row."""
    Z, expected = (as_numpy(x.double() if hasattr(x, "double") else x).astype(np.float64) for x in (Z, expected))
    assert Z.shape == expected.shape
    scale = np.abs(expected).max(axis=1, keepdims=True)
    error = np.abs(Z - expected) / np.where(scale > 0, scale, 1.0)
    assert error.max() <= tolerance, f"relative errors up to {error.max():.2g}"


def differ(Z: Any, other: Any) -> None:
    assert Z.shape == other.shape
    assert np.abs(as_numpy(Z) - as_numpy(other)).max() > 1e-3 * np.abs(as_numpy(Z)).max()


def state(feature_map: Any) -> dict[str, Any]:
    """Attributes of an estimator, as objects: equal only if none was set again."""
    return {name: id(value) for name, value in vars(feature_map).items()}


def test_the_table_has_all_maps() -> None:
    public = {getattr(ntkit.features, name) for name in ntkit.features.__all__}
    assert {law for law in public if hasattr(law, "estimate_error")} == set(CLASSES)


class OfFlatRows(CNTKSketch):
    """Flat rows are images of one pixel: scikit-learn's checks use only flat rows."""

    def _check_rows(self, X: Any, *, reset: bool) -> Any:
        given, shape = self.image_shape, X.shape if hasattr(X, "shape") else np.asarray(X).shape
        if reset and len(shape) == 2:
            self.image_shape = 1, 1, max(shape[1], 1)
        try:
            return super()._check_rows(X, reset=reset)
        finally:
            self.image_shape = given


@pytest.mark.parametrize("law", CLASSES)
def test_scikit_learn_checks(law: type) -> None:
    """Run all of scikit-learn's checks of a transformer on the defaults, except for the size."""
    small = {"n_components": 16} | ({"depth": 2} if law is CNTKSketch else {})
    degrees = {name: 3 for name in ("degree", "derivative_degree") if law in (NetworkFeatures, CNTKSketch)}
    law = OfFlatRows if law is CNTKSketch else law
    results = check_estimator(law(**small, **degrees), on_skip=None, on_fail=None)
    failures = [f"{r['check_name']}: {r['exception']!r}" for r in results if r["status"] == "failed"]
    assert not failures
    assert not [r["check_name"] for r in results if r["status"] == "xfail"]
    assert sum(r["status"] == "passed" for r in results) >= 45


def for_rows(law: type, n_features: int) -> dict[str, Any]:
    """Parameters that a map needs for flat rows."""
    return {"image_shape": (1, 1, n_features)} if law is CNTKSketch else {}


@pytest.mark.parametrize("law", CLASSES)
def test_defaults(law: type) -> None:
    X = np.random.default_rng(0).standard_normal((12, 5))
    Z = law(**for_rows(law, 5)).fit_transform(X)
    assert Z.shape[0] == 12
    assert np.isfinite(Z).all()
    assert law(**law().get_params()).get_params() == law().get_params()
    assert repr(law()) == f"{law.__name__}()"


# Kinds of rows.


def pandas_frame(X: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])


def dask_array(X: np.ndarray) -> Any:
    import dask.array as da

    return da.from_array(X, chunks=(7, *X.shape[1:]))


def dask_frame(X: np.ndarray) -> Any:
    import dask.dataframe as dd

    return dd.from_pandas(pandas_frame(X), npartitions=3)


def view(X: np.ndarray) -> np.ndarray:
    """Every second row of a read-only array in Fortran order."""
    X = np.asfortranarray(np.repeat(X, 2, axis=0))
    X.flags.writeable = False
    return X[::2]


def strict_array(X: np.ndarray) -> Any:
    import array_api_strict

    return array_api_strict.asarray(X.copy())


KINDS: dict[str, dict[str, Callable[[np.ndarray], Any]]] = {
    "arrays": {"view": view, "torch": lambda X: torch.from_numpy(X.copy()), "array API": strict_array},
    "tables": {"list": lambda X: X.tolist(), "pandas": pandas_frame},
    "Dask": {"Dask array": dask_array, "Dask frame": dask_frame},
    "sparse": {"CSR": sp.csr_array, "CSC matrix": sp.csc_matrix, "COO": sp.coo_array},
}


@pytest.mark.parametrize("kinds", ["arrays", "sparse"])
@ALL
def test_all_kinds_of_rows_give_the_same_features(case: Case, kinds: str) -> None:
    """A map fitted on one kind of rows accepts the others; equal seeds give equal maps for all kinds of rows."""
    check_kinds(case, kinds)


@pytest.mark.parametrize("kinds", ["tables", "Dask"])
@one_of_each()
def test_tables_and_dask_collections_give_the_same_features(case: Case, kinds: str) -> None:
    check_kinds(case, kinds)


def check_kinds(case: Case, kinds: str) -> None:
    if kinds == "sparse" and not case.sparse:
        X = sp.csr_array(case.rows().reshape(N_ROWS, -1))
        for attempt in (case.fitted().transform, clone(case.map).fit):
            with pytest.raises((TypeError, ValueError), match=r"(?i)dense|sparse|takes images"):
                attempt(X)
        return
    X = case.rows()
    Z = case.fitted(X).transform(X)
    for kind, convert in KINDS[kinds].items():
        if case.layout == "images" and kind in ("list", "pandas", "Dask frame"):
            continue
        rows = convert(X)
        lazy, named = hasattr(rows, "dask"), hasattr(rows, "columns")
        fit_on = rows
        if (lazy and not case.oblivious) or (sp.issparse(rows) and case.by_kind):  # another map, of the first block
            fit_on = pandas_frame(X) if named else X
        same_map = case.fitted(fit_on)
        out = same_map.transform(rows)
        assert isinstance(out, torch.Tensor) == isinstance(rows, torch.Tensor)
        assert hasattr(out, "dask") == lazy
        if lazy:
            assert len(out.chunks[0]) > 1
            out = out.compute()
        close(out, Z)
        if not named:
            close(same_map.transform(X), Z)
            out = case.fitted(X).transform(rows)
            close(out.compute() if lazy else out, Z)
    np.testing.assert_array_equal(X, case.rows())  # inputs are unchanged


@some(lambda case: case.layout == "flat")
def test_flat_rows_are_images(case: Case) -> None:
    X = case.rows()
    images = X.reshape(-1, *SHAPE)
    Z = case.fitted(X).transform(X)
    for fit_on in (X, images, torch.from_numpy(images)):
        fitted = case.fitted(fit_on)
        assert fitted.image_shape_ == SHAPE
        assert fitted.n_features_in_ == 24
        close(fitted.transform(images), Z)
        close(fitted.transform(X), Z)
    close(case.fitted(images, image_shape=None).transform(X), Z)


@one_of_each(lambda case: case.sparse)
def test_entries_of_sparse_rows_that_are_given_twice_are_added(case: Case) -> None:
    values, columns = np.array([1.0, 2.0, 5.0, 1.0]), np.array([0, 0, 3, 1])
    twice = sp.csr_array((values, columns, np.array([0, 3, 4])), shape=(2, N_COLUMNS))
    fitted = case.fitted()
    close(fitted.transform(twice), fitted.transform(twice.toarray()))
    np.testing.assert_array_equal(twice.data, values)


@some(lambda case: case.rows_only is False and not case.oblivious)
def test_a_dask_collection_is_fitted_on_its_first_block(case: Case) -> None:
    X = case.rows()
    close(case.fitted(dask_array(X)).transform(X), case.fitted(X[:7]).transform(X))


def test_polars_frames() -> None:
    polars = pytest.importorskip("polars")
    for case in CASES.values():
        if case.layout == "images":
            continue
        X = case.rows()
        frame = polars.DataFrame(X, schema=[f"column {i}" for i in range(X.shape[1])])
        fitted = case.fitted(frame)
        close(fitted.transform(frame), case.fitted(X).transform(X))
        out = fitted.set_output(transform="polars").transform(frame)
        assert isinstance(out, polars.DataFrame)
        assert list(out.columns) == list(fitted.get_feature_names_out())


@tiers.gpu
@ALL
def test_cuda_tensors(case: Case) -> None:
    X = case.rows()
    Z = case.fitted(X).transform(X)
    on_device = torch.from_numpy(X).cuda()
    for fitted in (case.fitted(X), case.fitted(on_device)):
        out = fitted.transform(on_device)
        assert out.device == on_device.device
        close(out, Z, 1e-8)
        # Units whose preactivation is 0 up to rounding may fall on either side of a step.
        single = fitted.transform(on_device.float())
        assert single.dtype == torch.float32
        assert torch.linalg.norm(single.double() - out) < 1e-3 * torch.linalg.norm(out)


# Precisions.


@ALL
def test_features_have_the_precision_of_the_rows(case: Case) -> None:
    X = case.rows().astype(np.float32)
    fitted = case.fitted(X.astype(np.float64))
    Z = fitted.transform(X.astype(np.float64))
    assert Z.dtype == np.float64
    assert fitted.transform(X).dtype == np.float32
    close(fitted.transform(X), Z, 1e-4)
    assert case.fitted(X).transform(X).dtype == np.float32
    assert fitted.transform(torch.from_numpy(X)).dtype == torch.float32
    close(fitted.transform(torch.from_numpy(X)), Z, 1e-4)
    if case.sparse:
        assert fitted.transform(sp.csr_array(X)).dtype == np.float32
        close(fitted.transform(sp.csr_array(X)), Z, 1e-4)


@ALL
def test_rows_of_16_bits(case: Case) -> None:
    """Computed in single precision or better, rounded at the end."""
    fitted = case.fitted()
    for dtype, epsilon in ((torch.float16, 2**-10), (torch.bfloat16, 2**-7)):
        X = torch.from_numpy(case.rows()).to(dtype)
        out = fitted.transform(X)
        assert out.dtype == dtype
        close(out, fitted.transform(X.double()), epsilon)
    X = case.rows().astype(np.float16)
    out = fitted.transform(X)
    assert out.dtype.kind == "f"
    close(out, fitted.transform(X.astype(np.float64)), 2**-10)


@one_of_each()
def test_whole_numbers(case: Case) -> None:
    X = np.rint(10 * np.abs(case.rows()))
    if case.layout == "matrix":
        X = np.rint(100 * (X @ X.T))
    fitted = case.fitted(X)
    Z = fitted.transform(X)
    for dtype in (np.int64, np.int32, np.uint8, np.bool_):
        whole = X.astype(dtype)
        out = fitted.transform(whole)
        assert out.dtype == np.float64 or (whole.dtype.itemsize <= 2 and out.dtype == np.float32)
        close(out, fitted.transform(whole.astype(out.dtype)), 1e-12 if out.dtype == np.float64 else 1e-5)
    for whole in (torch.from_numpy(X).long(), torch.from_numpy(X).to(torch.uint8)):
        out = fitted.transform(whole)
        assert out.dtype == torch.float64 or (whole.itemsize <= 2 and out.dtype == torch.float32)
        close(out, fitted.transform(whole.to(out.dtype)), 1e-12 if out.dtype == torch.float64 else 1e-5)
    close(case.fitted(X.astype(np.int64)).transform(X), Z)


# Batches, threads, memory.


@ALL
def test_batches_and_single_rows(case: Case) -> None:
    X = case.rows()
    Z = case.fitted(X).transform(X)
    close(case.fitted(X).transform(X[3:4]), Z[3:4])
    for size in (1, 3, len(X), 1000):
        fitted = case.fitted(X, batch_size=size)
        close(fitted.transform(X), Z)
        close(fitted.transform(torch.from_numpy(X)), Z)
        if case.sparse:
            close(fitted.transform(sp.csr_array(X)), Z)
    with config_context(working_memory=0.001):
        close(case.fitted(X).transform(X), Z)
    if case.layout != "matrix":
        alone = case.fitted(X[:1]).transform(X)
        assert len(alone) == len(X)
        assert np.isfinite(alone).all()


@one_of_each()
def test_threads(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    X = case.rows(N_ROWS if case.layout == "matrix" else 700)
    Z = None
    for n_threads in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", n_threads)
        fitted = case.fitted(X, batch_size=64)
        out = fitted.transform(X)
        Z = out if Z is None else Z
        close(out, Z)
        np.testing.assert_array_equal(fitted.transform(X), out)


@some(lambda case: case.layout != "matrix" and "cntk" not in case.map.get_params().values())
def test_memory_stays_within_the_budget(case: Case) -> None:
    """In addition to the features, at most `working_memory` is held."""
    n_rows, budget = (8000, 4) if case.layout == "rows" else (400, 4)
    X = case.rows(n_rows).astype(np.float32)
    given = case.map.get_params(deep=False)["n_components"]
    size = {} if given is None else {"n_components": 256}
    fitted = case.fitted(X[:300], **size)
    with config_context(working_memory=budget):
        peak = peak_memory(lambda: fitted.transform(X))
    assert peak - fitted.transform(X).nbytes < 1.1 * budget * 2**20


# Seeds.


@one_of_each()
def test_seeds(case: Case) -> None:
    X = case.rows()

    def features(seed: Any) -> np.ndarray:
        return case.fitted(X, random_state=seed).transform(X)

    Z = features(0)
    for seed in (np.int64(0), np.random.SeedSequence(0)):
        np.testing.assert_array_equal(features(seed), Z)
    for law in (np.random.default_rng, np.random.RandomState):
        first = features(law(5))
        np.testing.assert_array_equal(features(law(5)), first)
        used = law(5)
        np.testing.assert_array_equal(features(used), first)
        others = [features(used) for _ in range(2)]  # advanced by each fit
        assert any(other.shape != first.shape or np.abs(other - first).max() > 1e-3 for other in others)
    with_none = [features(None) for _ in range(3)]
    assert any(
        other.shape != with_none[0].shape or np.abs(other - with_none[0]).max() > 1e-3 for other in with_none[1:]
    )
    others = [features(seed) for seed in (1, 2, 3)]
    differ(Z, next(other for other in others if other.shape == Z.shape and not np.array_equal(other, Z)))


@some(lambda case: case.oblivious)
def test_the_shape_of_rows_is_all_that_matters(case: Case) -> None:
    X = case.rows()
    np.testing.assert_array_equal(case.fitted(3 * X[:1] + 7).transform(X), case.fitted(X).transform(X))


# Copies.


def through_pickle(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def through_joblib(model: Any) -> Any:
    stream = io.BytesIO()
    joblib.dump(model, stream)
    stream.seek(0)
    return joblib.load(stream)


@one_of_each()
def test_clones(case: Case) -> None:
    X = case.rows()
    fitted = case.fitted(X)
    Z = fitted.transform(X)
    other = clone(fitted)
    assert vars(other).keys() == other.get_params(deep=False).keys()
    with pytest.raises(NotFittedError):
        other.transform(X)
    np.testing.assert_array_equal(other.fit(X).transform(X), Z)
    np.testing.assert_array_equal(clone(fitted).fit_transform(X), Z)
    np.testing.assert_array_equal(fitted.fit(X).transform(X), Z)


def through_file(model: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        save(model, f"{folder}/file")
        return load(f"{folder}/file")


@pytest.mark.parametrize("copied", [through_pickle, through_file])
@one_of_each()
def test_copies_give_the_same_features(case: Case, copied: Callable[[Any], Any]) -> None:
    """To the last bit, before and after the original was used, in all precisions."""
    X = case.rows()
    kinds = [X, X.astype(np.float32), torch.from_numpy(X), *([sp.csr_array(X)] if case.sparse else [])]
    fitted = case.fitted(X)
    before = copied(fitted)
    expected = [as_numpy(fitted.transform(rows)) for rows in kinds]
    after = copied(fitted)
    for again in (before, after, copied(after)):
        assert type(again) is type(fitted)
        for rows, Z in zip(kinds, expected, strict=True):
            np.testing.assert_array_equal(as_numpy(again.transform(rows)), Z)
        np.testing.assert_array_equal(again.get_feature_names_out(), fitted.get_feature_names_out())
        if case.layout != "matrix":
            assert again.estimate_error(X, random_state=0) == fitted.estimate_error(X, random_state=0)
    np.testing.assert_array_equal(after.fit(X).transform(X), expected[0])
    unfitted = copied(clone(fitted))
    with pytest.raises(NotFittedError):
        unfitted.transform(X)
    np.testing.assert_array_equal(unfitted.fit(X).transform(X), expected[0])


@pytest.mark.parametrize("copied", [through_joblib, copy.deepcopy])
@one_of_each()
def test_other_copies_are_made_as_pickles_are(case: Case, copied: Callable[[Any], Any]) -> None:
    X = case.rows()
    fitted = case.fitted(X)
    Z = fitted.transform(X)
    again = copied(copied(fitted))
    assert type(again) is type(fitted)
    np.testing.assert_array_equal(again.transform(X), Z)
    np.testing.assert_array_equal(again.fit(X).transform(X), Z)
    with pytest.raises(NotFittedError):
        copied(clone(fitted)).transform(X)


def test_pickles_give_the_same_features_in_another_process(tmp_path: Any) -> None:
    maps = [case.fitted() for case in CASES.values()]
    rows = [case.rows() for case in CASES.values()]
    (tmp_path / "maps").write_bytes(pickle.dumps((maps, rows)))
    code = (
        "import pickle, sys, pathlib\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "maps, rows = pickle.loads((folder / 'maps').read_bytes())\n"
        "features = [m.transform(X) for m, X in zip(maps, rows, strict=True)]\n"
        "(folder / 'features').write_bytes(pickle.dumps(features))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, timeout=600)
    found = pickle.loads((tmp_path / "features").read_bytes())
    for feature_map, X, Z in zip(maps, rows, found, strict=True):
        np.testing.assert_array_equal(feature_map.transform(X), Z)


@one_of_each()
def test_pickles_hold_no_draws(case: Case) -> None:
    """A file holds parameters, a seed and what was learned from the rows: landmarks, but no draws."""
    size = {"n_components": 2048 if isinstance(case.map, NTKSketch | NTKRandomFeatures) else 8192}
    if isinstance(case.map, GradientFeatures):
        size = {"n_components": 65536, "width": None}
    if case.layout == "rows" and case.map.get_params().get("groups") is None:
        X = np.random.default_rng(0).standard_normal((300, 80))
    else:
        X = case.rows()
    fitted = case.fitted(X, **size)
    kept = ("landmarks_", "landmark_indices_", "normalization_")  # the last takes O(m³) to compute
    learned = [getattr(fitted, name, np.zeros(0)) for name in kept]
    assert len(pickle.dumps(fitted)) <= 2**16 + sum(part.nbytes for part in learned)


@one_of_each()
def test_a_map_unpickled_many_times_draws_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Dask unpickles a map for every task; other maps do not get these draws, and few are kept."""
    X = case.rows()
    maps = [case.fitted(X, random_state=seed) for seed in (0, 1)]
    features = [fitted.transform(X) for fitted in maps]
    law = type(case.map)
    drawn, draw = [], law._draw
    monkeypatch.setattr(law, "_draw", lambda self, plan, seed: drawn.append(self) or draw(self, plan, seed))
    base._kept.clear()
    for fitted, Z in zip(maps, features, strict=True):
        content = pickle.dumps(fitted)
        for again in [pickle.loads(content) for _ in range(5)]:
            np.testing.assert_array_equal(again.transform(X), Z)
            np.testing.assert_array_equal(through_pickle(again).transform(X), Z)
    assert len(drawn) == 2
    assert 2 <= len(base._kept) <= base._KEPT
    for seed in range(base._KEPT):
        through_pickle(case.fitted(X, random_state=10 + seed)).transform(X)
    assert len(base._kept) == base._KEPT


# Fits that fail.


def bad_fits(case: Case) -> list[tuple[Any, dict[str, Any]]]:
    """Rows and parameters, each of which makes `fit` fail."""
    X = case.rows()
    with_nan = X.copy()
    with_nan.ravel()[5] = np.nan
    other = X[:, : X.shape[1] // 2]
    return [
        (other, {"n_components": 0}),
        (X, {"random_state": -1}),
        (with_nan, {}),
        (X[:0], {}),
        (X, {"batch_size": 0}),
    ]


@one_of_each()
def test_a_failed_fit_leaves_a_fitted_map_unchanged(case: Case, tmp_path: Any) -> None:
    X = case.rows()
    fitted = case.fitted(X)
    Z, parameters = fitted.transform(X), fitted.get_params(deep=False)
    for rows, bad in bad_fits(case):
        before = state(fitted)
        fitted.set_params(**bad)
        with pytest.raises(ValueError, match=r"must|contains|minimum|exclude each other"):
            fitted.fit(rows)
        fitted.set_params(**{name: parameters[name] for name in bad})
        assert state(fitted) == before
        np.testing.assert_array_equal(fitted.transform(X), Z)
    np.testing.assert_array_equal(through_pickle(fitted).transform(X), Z)
    save(fitted, tmp_path / "file")
    np.testing.assert_array_equal(load(tmp_path / "file").transform(X), Z)


@one_of_each()
def test_a_failed_fit_leaves_a_map_that_can_be_saved(case: Case, tmp_path: Any) -> None:
    """After bad rows, the map works at once; after bad parameters, once they are reset, as the message says."""
    X = case.rows()
    fitted = case.fitted(X)
    Z, parameters = fitted.transform(X), fitted.get_params(deep=False)
    for rows, bad in bad_fits(case):
        fitted.set_params(**bad)
        with pytest.raises(ValueError, match=r"must|contains|minimum|exclude each other"):
            fitted.fit(rows)
        if bad:
            try:
                save(fitted, tmp_path / "file")
            except ValueError as error:
                rule = rf"{next(iter(bad))}.* must be|other parameters than when it was fitted"
                assert re.search(rule, str(error))  # noqa: PT017
            else:
                assert isinstance(fitted, GaussianFeatures)  # whose file has the map that was chosen
                np.testing.assert_array_equal(load(tmp_path / "file").transform(X), Z)
            fitted.set_params(**{name: parameters[name] for name in bad})
        save(fitted, tmp_path / "file")
        np.testing.assert_array_equal(load(tmp_path / "file").transform(X), Z)


@one_of_each()
def test_a_failed_fit_leaves_an_unfitted_map_unfitted(case: Case) -> None:
    X = case.rows()
    for rows, bad in bad_fits(case):
        broken = clone(case.map).set_params(**bad)
        with pytest.raises(ValueError, match=r"must|contains|minimum|exclude each other"):
            broken.fit(rows)
        assert vars(broken).keys() == broken.get_params(deep=False).keys()
        with pytest.raises(NotFittedError):
            broken.transform(X)


@one_of_each()
def test_an_interrupted_fit_leaves_the_map_unchanged(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """An error, or Ctrl-C, at the first, second, fourth, … draw of random numbers."""
    X = case.rows()
    fitted, unfitted = case.fitted(X), clone(case.map)
    Z, before, empty = fitted.transform(X), state(fitted), state(unfitted)
    philox, calls = np.random.Philox, 0
    for last in (2**k for k in range(20)):
        error = KeyboardInterrupt if last in (1, 4) else MemoryError
        calls = 0

        def failing(*args: Any, last: int = last, error: type = error, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == last:
                raise error("in the middle")
            return philox(*args, **options)

        monkeypatch.setattr(np.random, "Philox", failing)
        for model, kept in ((fitted, before), (unfitted, empty)):
            calls = 0
            try:
                model.fit(X[:, ::-1] if case.layout != "matrix" else X)
            except (KeyboardInterrupt, MemoryError):
                assert state(model) == kept
        monkeypatch.setattr(np.random, "Philox", philox)
        if calls < last:
            break
        np.testing.assert_array_equal(fitted.transform(X), Z)
        with pytest.raises(NotFittedError):
            unfitted.transform(X)
        if last == 1:
            np.testing.assert_array_equal(through_pickle(fitted).transform(X), Z)
            save(fitted, tmp_path / "file")
            np.testing.assert_array_equal(load(tmp_path / "file").transform(X), Z)
    assert last > 1, "no draw of random numbers: nothing was interrupted"


# Parameters.

OTHER_VALUES: dict[str, Any] = {
    "net": nn.fully_connected(3),
    "kernel": "nngp",
    "kernel_params": {"nu": 2.5},
    "lengthscale": 17.0,
    "depth": 4,
    "kernel_size": 2,
    "power": 2,
    "n_components": 5,
    "width": 3,
    "degree": 5,
    "derivative_degree": 4,
    "order": 1,
    "tolerance": 0.3,
    "series": "taylor",
    "variant": "split",
    "kind": "nngp",
    "split": 0.7,
    "gamma": 3.0,
    "coef0": 2.5,
    "bias": 3.0,
    "method": "random",
    "sampler": "gibbs",
    "gibbs_sweeps": 3,
    "n_sampled": 2,
    "landmarks": "kmeans",
    "normalization": "cholesky",
    "alpha": 0.3,
    "groups": [(5, 4, 3, 2, 1, 0)],
    "projection": None,
    "harmonics": True,
    "directions": "gaussian",
    "nngp_components": 7,
    "ntk_components": 7,
    "hidden_components": 7,
    "derivative_components": 7,
    "poly_components": 7,
    "derivative_poly_components": 7,
    "normalize": False,
    "replace": True,
    "image_shape": (2, 3, 4),
    "precision": "bfloat16",
    "batch_size": 3,
    "progress": False,
    "random_state": 9,
}


@one_of_each()
def test_parameters_set_after_the_fit_wait_for_the_next_one(case: Case) -> None:
    """They change neither features, nor error estimates, nor the result of a pickle."""
    X = case.rows()
    fitted = case.fitted(X)
    Z, names = fitted.transform(X), fitted.get_feature_names_out()
    estimates = case.layout != "matrix"
    error = fitted.estimate_error(X, random_state=0) if estimates else None
    K = fitted.exact_kernel(X) if estimates else None
    live = []
    for name, value in fitted.get_params(deep=False).items():
        setattr(fitted, name, OTHER_VALUES[name])
        try:
            for model in (fitted, through_pickle(fitted)):
                close(model.transform(X), Z) if name == "batch_size" else np.testing.assert_array_equal(
                    model.transform(X), Z
                )
                np.testing.assert_array_equal(model.get_feature_names_out(), names)
                if estimates:
                    assert model.estimate_error(X, random_state=0) == pytest.approx(error, rel=1e-12)
                    np.testing.assert_array_equal(model.exact_kernel(X), K)
        except Exception as failure:
            live.append(f"{name}: {type(failure).__name__}")
        setattr(fitted, name, value)
    assert not live, f"set after the fit, these change what a fitted map does: {', '.join(live)}"


def parameter_names(law: type) -> tuple[list[str], int]:
    """In the order of the signature, and how many of them may be given by position."""
    parameters = inspect.signature(law).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return list(parameters), kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)


BY_POSITION = {"RandomFourierFeatures", "OrthogonalFourierFeatures", "FastfoodFeatures", "GaussianFeatures"}
BY_POSITION |= {"DotProductSketch", "MaclaurinFeatures", "GegenbauerFeatures", "NystroemFeatures"}
BY_POSITION |= {"NTKFeatures", "CNTKSketch"}


@pytest.mark.parametrize("law", CLASSES)
def test_positions_of_parameters_warn(law: Any) -> None:
    """The map does not support these rows; the message shows the code to write."""
    names, right = parameter_names(law)
    values = [OTHER_VALUES[name] for name in names]
    named = dict(zip(names, values, strict=True))
    last = max(right, law._old_positions)
    assert (law.__name__ in BY_POSITION) == (last > right)
    for count in range(1, last + 1):
        expected = law(**dict(list(named.items())[:count])).get_params()
        if count <= right:
            assert law(*values[:count]).get_params() == expected
            continue
        with pytest.warns(FutureWarning, match=rf"Pass the parameters of {law.__name__} by name: ") as caught:
            found = law(*values[:count])
        assert found.get_params() == expected
        assert [warning.filename for warning in caught] == [__file__]
        given = ", ".join(f"{name}={named[name]!r}" for name in names[right:count])
        assert f": {given}. Positional parameters will be removed in version" in str(caught[0].message)
        with pytest.warns(FutureWarning), pytest.raises(TypeError, match=f"several values for {names[count - 1]}"):
            law(*values[:count], **{names[count - 1]: values[count - 1]})
    with pytest.raises(TypeError, match="positional argument"):
        law(*values[: last + 1])


@some(lambda case: case.name in BY_POSITION)
def test_positions_of_parameters_give_the_same_map(case: Case) -> None:
    law = type(case.map)
    names, _ = parameter_names(law)
    parameters = case.map.get_params(deep=False)
    by_position = [parameters.pop(name) for name in names[: law._old_positions]]
    X = case.rows()
    with pytest.warns(FutureWarning, match="by name"):
        old = law(*by_position, **parameters)
    np.testing.assert_array_equal(old.fit(X).transform(X), case.fitted(X).transform(X))


OLD_NAMES = [
    ("NTKPolynomialSketch", {"tol": 0.2}, {"tolerance": 0.2}, {"degree": "auto"}),
    ("NTKRandomFeatures", {"features": "gaussian"}, {"directions": "gaussian"}, {}),
    ("NTKRandomFeatures", {"step_components": 9}, {"derivative_components": 9}, {}),
    ("DotProductSketch", {"sketch": "power"}, {"method": "power"}, {}),
    ("MaclaurinFeatures", {"law": "geometric"}, {"method": "geometric"}, {}),
    ("GegenbauerFeatures", {"orthogonal": False}, {"directions": "gaussian"}, {"harmonics": False}),
    ("GegenbauerFeatures", {"orthogonal": True}, {"directions": "orthogonal"}, {"harmonics": False}),
]


def test_the_table_of_old_names_is_complete() -> None:
    known = {(law.__name__, old) for law in CLASSES for old in law._old_names}
    assert known == {(name, next(iter(old))) for name, old, *_ in OLD_NAMES}


@pytest.mark.parametrize(("name", "old", "new", "others"), OLD_NAMES, ids=lambda value: str(value))
def test_old_names_of_parameters_warn(
    name: str, old: dict[str, Any], new: dict[str, Any], others: dict[str, Any]
) -> None:
    """With the new spelling, and give the same map; with `set_params` too, also of a pipeline."""
    case = CASES[name]
    law, X = type(case.map), case.rows()
    parameters = {key: value for key, value in case.map.get_params().items() if key not in new} | others
    expected = law(**parameters, **new)
    (before, value), (after, becomes) = *old.items(), *new.items()
    text = re.escape(f"{before}={value!r} of {name} is now {after}={becomes!r}")
    with pytest.warns(FutureWarning, match=text) as caught:
        found = law(**parameters, **old)
    with pytest.warns(FutureWarning, match=text) as caught_later:
        set_later = law(**parameters).set_params(**old)
    assert [warning.filename for warning in (*caught, *caught_later)] == [__file__] * 2
    pipeline = make_pipeline(law(**parameters))
    with pytest.warns(FutureWarning, match=text):
        pipeline.set_params(**{f"{name.lower()}__{before}": value})
    Z = expected.fit(X).transform(X)
    for model in (found, set_later, pipeline[0]):
        assert model.get_params() == expected.get_params()
        assert not hasattr(model, before)
        np.testing.assert_array_equal(model.fit(X).transform(X), Z)
    if becomes != law().get_params()[after]:  # the parameter matters
        other = law(**parameters).fit(X).transform(X)
        assert Z.shape != other.shape or np.abs(Z - other).max() > 1e-3
    for attempt in (law, law(**parameters).set_params):
        with pytest.raises(TypeError, match=f"{name} got both '{after}' and '{before}', its old name"):
            attempt(**old, **new)
    with pytest.raises(ValueError, match="Invalid parameter 'nothing'"):
        law(**parameters).set_params(nothing=1)


NAN, INF = float("nan"), float("inf")
SIZES = [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError), (NAN, TypeError)]
FLAGS = [(1, TypeError), ("yes", TypeError), (None, TypeError), (NAN, TypeError)]
WORDS = [("nothing", ValueError), (1, TypeError), (NAN, TypeError), ([], TypeError)]
SHARES = [(-0.1, ValueError), (1.1, ValueError), (NAN, ValueError), ("half", TypeError), (True, TypeError)]
REALS = [(-1.0, ValueError), (NAN, ValueError), (INF, ValueError), ("a", TypeError), (True, TypeError)]
NOTHING = [(None, TypeError)]
BAD_VALUES: dict[str, list[tuple[Any, type[Exception]]]] = {
    "net": [("relu", TypeError), (1, TypeError), (nn.ReLU, TypeError)],
    "kernel": [("nothing", ValueError), (1, TypeError), (None, TypeError)],
    "kernel_params": [("nu", TypeError), (1, TypeError), ([1], TypeError)],
    "lengthscale": [(0.0, ValueError), ("wide", ValueError), *(x for x in REALS if x[0] != "a"), *NOTHING],
    "depth": SIZES + NOTHING,
    "kernel_size": [*SIZES, *NOTHING, ((3,), ValueError), ([3, 3], TypeError)],
    "power": [(-1, ValueError), (1.5, TypeError), ("a", TypeError), *NOTHING],
    "n_components": SIZES,
    "width": SIZES,
    "degree": [(-1, ValueError), (1.5, TypeError), (True, TypeError), *NOTHING],
    "derivative_degree": [(0, ValueError), (1.5, TypeError), (True, TypeError), (1000, ValueError), *NOTHING],
    "order": [(0, ValueError), (1.5, TypeError), ("most", ValueError), *NOTHING],
    "tolerance": SHARES + NOTHING,
    "series": WORDS + NOTHING,
    "variant": WORDS + NOTHING,
    "kind": WORDS + NOTHING,
    "split": SHARES,
    "gamma": REALS + NOTHING,
    "coef0": REALS + NOTHING,
    "bias": REALS + NOTHING,
    "method": WORDS + NOTHING,
    "sampler": WORDS + NOTHING,
    "gibbs_sweeps": SIZES + NOTHING,
    "n_sampled": [(-1, ValueError), (1.5, TypeError), ("a", TypeError), (5000, ValueError), *NOTHING],
    "landmarks": [("nothing", ValueError), (1, TypeError), (None, TypeError)],
    "normalization": WORDS + NOTHING,
    "alpha": [(0.0, ValueError), *REALS],
    "groups": [([(0, 1)], ValueError), (3, TypeError), ([("a",)], TypeError), ([], ValueError)],
    "projection": [("a", TypeError), (1.5, TypeError)],
    "harmonics": FLAGS,
    "directions": WORDS + NOTHING,
    "nngp_components": SIZES,
    "ntk_components": SIZES,
    "hidden_components": SIZES,
    "derivative_components": SIZES,
    "poly_components": SIZES,
    "derivative_poly_components": SIZES,
    "normalize": FLAGS,
    "replace": FLAGS,
    "image_shape": [
        ((4, 4), ValueError),
        ((1, 1, 3, 1), ValueError),
        ("a", TypeError),
        (3, TypeError),
        (NAN, TypeError),
    ],
    "precision": WORDS,
    "batch_size": SIZES,
    "progress": FLAGS,
    "random_state": [(-1, ValueError), (0.5, TypeError), ("a", TypeError), (True, TypeError)],
}
NEEDED: dict[str, dict[str, Any]] = {"power": {"kernel": "arc_cosine"}, "groups": {"kernel": "gaussian"}}
"""Without which a parameter has no meaning."""


@pytest.mark.parametrize("law", CLASSES)
def test_bad_parameters(law: type) -> None:
    """The message names the parameter, whose it is, the rule and the value."""
    X = np.random.default_rng(0).standard_normal((4, 3))
    for name, default in law().get_params(deep=False).items():
        bad = [(value, error) for value, error in BAD_VALUES[name] if value is not None or default is not None]
        assert bad, name
        if (law, name) == (NystroemFeatures, "kernel"):  # as `gram` and all others that take any kernel
            bad = [(value, ValueError) for value, _ in bad]
        for value, error in bad:
            rule = rf"'{name}' parameter of {law.__name__} must be .+\. Got {re.escape(repr(value))} instead"
            model = law(**for_rows(law, 3) | NEEDED.get(name, {}) | {name: value})
            with pytest.raises(error, match=rule):
                model.fit(X)
            assert vars(model).keys() == model.get_params(deep=False).keys(), name


# Bad rows.


def with_value(X: Any, value: Any) -> Any:
    X = X.clone() if isinstance(X, torch.Tensor) else X.copy()
    X.reshape(-1)[4] = value
    return X


def fit_and_transform(case: Case) -> list[Callable[[Any], Any]]:
    return [case.fitted().transform, clone(case.map).fit]


@one_of_each()
def test_bad_arrays(case: Case) -> None:
    X = case.rows()
    images = case.layout == "images"
    for attempt in fit_and_transform(case):
        for value in (np.nan, np.inf, -np.inf):
            with pytest.raises(ValueError, match=r"must be finite|contains (NaN|infinity)"):
                attempt(with_value(X, value))
        with pytest.raises(ValueError, match=r"0 sample|must be non-empty"):
            attempt(X[:0])
        with pytest.raises(ValueError, match=r"0 feature|must be non-empty"):
            attempt(X[:, :0])
        with pytest.raises(ValueError, match=r"Expected 2D array, got 1D array|must be 2-D"):
            attempt(X.ravel())
        with pytest.raises(ValueError, match=r"dim 3|must be 2-D"):
            attempt(X[:, :, 0] if images else X[None])
        with pytest.raises((ValueError, TypeError), match=r"could not convert|bytes/strings|must be an array of real"):
            attempt(np.full(X.shape, "a"))
        with pytest.raises((ValueError, TypeError), match=r"Complex data not supported|must be an array of real"):
            attempt(X * 1j)
        with pytest.raises((ValueError, TypeError), match=r"None|NaN|scalar|must be|2D|numeric"):
            attempt(None)
    wrong = X[:, :2]
    expected = rf"but {case.name} is expecting (images of shape|{case.n_features} features)"
    with pytest.raises(ValueError, match=expected):
        case.fitted().transform(wrong)
    if not images:
        with pytest.raises(ValueError, match=expected):
            case.fitted().transform(np.hstack([X, X]))


@one_of_each()
def test_bad_tensors(case: Case) -> None:
    X, name = torch.from_numpy(case.rows()), case.name
    for attempt in fit_and_transform(case):
        for value in (torch.nan, torch.inf):
            with pytest.raises(ValueError, match=f"'X' parameter of {name} must be finite"):
                attempt(with_value(X, value))
        with pytest.raises(ValueError, match=f"'X' parameter of {name} must be non-empty"):
            attempt(X[:0])
        with pytest.raises(ValueError, match=f"'X' parameter of {name} must be 2-D"):
            attempt(X.ravel())
        with pytest.raises(TypeError, match=f"'X' parameter of {name} must be a dense tensor"):
            attempt(X.to_sparse())
        with pytest.raises(TypeError, match=f"'X' parameter of {name} must be an array of real numbers"):
            attempt(X * 1j)
    with pytest.raises(ValueError, match=f"but {name} is expecting"):
        case.fitted().transform(X[:, :2])


@one_of_each(lambda case: case.sparse)
def test_bad_sparse_rows(case: Case) -> None:
    X = case.rows()
    for attempt in fit_and_transform(case):
        for value in (np.nan, np.inf):
            with pytest.raises(ValueError, match=r"must be finite|contains (NaN|infinity)"):
                attempt(sp.csr_array(with_value(X, value)))
        with pytest.raises(ValueError, match=r"0 sample|must be non-empty"):
            attempt(sp.csr_array((0, N_COLUMNS)))
    with pytest.raises(ValueError, match=f"X has 2 features, but {case.name} is expecting 6 features"):
        case.fitted().transform(sp.csr_array(X[:, :2]))


@one_of_each()
def test_bad_dask_collections(case: Case) -> None:
    X = case.rows()
    rows = dask_array(X)
    with pytest.raises((ValueError, TypeError)):
        case.fitted().transform(rows[:, :2]).compute()
    if case.layout != "images":
        with pytest.raises((ValueError, TypeError)):
            case.fitted().transform(dask_array(with_value(X, np.nan))).compute()


@one_of_each()
def test_unfitted_maps(case: Case) -> None:
    X = case.rows()
    kinds = [X, torch.from_numpy(X), dask_array(X), *([sp.csr_array(X)] if case.sparse else [])]
    for rows in kinds:
        with pytest.raises(NotFittedError, match=case.name):
            clone(case.map).transform(rows)
    with pytest.raises(NotFittedError):
        clone(case.map).get_feature_names_out()
    with pytest.raises(NotFittedError):
        clone(case.map).estimate_error(X)


@one_of_each(lambda case: case.layout != "matrix")  # a kernel matrix has a place in none of the other cases
def test_the_next_fit_forgets_the_one_before(case: Case) -> None:
    """A fit on rows with names, then on wider rows without names, gives the map of a fit on the latter only."""
    wide = {"rows": (N_ROWS, 9), "flat": (N_ROWS, 30), "images": (N_ROWS, 5, 3, 2)}[case.layout]
    X = np.random.default_rng(0).standard_normal(wide)
    other = {"image_shape": (5, 3, 2)} if case.layout == "flat" else {}
    if isinstance(case.map.get_params().get("groups"), list):
        other["groups"] = [(0, 1, 4, 8), (2, 3, 5, 6, 7)]
    first = case.fitted() if case.layout == "images" else case.fitted(pandas_frame(case.rows()))
    first.set_params(**other).fit(X)
    alone = case.fitted(X, **other)
    assert vars(first).keys() == vars(alone).keys()
    assert first.n_features_in_ == int(np.prod(wide[1:]))
    np.testing.assert_array_equal(first.transform(X), alone.transform(X))


# Gradients.


@some(lambda case: case.map is not None)
def test_gradients_are_right(case: Case) -> None:
    """Against central differences of a random linear function of the features."""
    X = torch.from_numpy(case.rows()[:5])
    if isinstance(case.map, NystroemFeatures):  # away from the landmarks, where kernels have cusps
        X = X + 0.1 * torch.from_numpy(np.random.default_rng(3).standard_normal(X.shape))
    fitted = case.fitted()
    plain = fitted.transform(X)
    assert not plain.requires_grad
    x = X.clone().requires_grad_()
    Z = fitted.transform(x)
    assert Z.requires_grad, "the gradient was cut"
    close(Z.detach(), plain)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(Z.shape, generator=generator, dtype=Z.dtype)
    (gradient,) = torch.autograd.grad((Z * weights).sum(), x)
    step = 1e-6
    for _ in range(4):
        direction = torch.randn(X.shape, generator=generator, dtype=X.dtype)
        ends = [(fitted.transform(X + sign * step * direction) * weights).sum() for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * step)
        scale = (gradient.abs() * direction.abs()).sum()
        assert abs((gradient * direction).sum() - difference) < 1e-5 * scale
    with torch.no_grad():
        assert not fitted.transform(x).requires_grad
    zero = torch.zeros_like(X).requires_grad_()
    (gradient,) = torch.autograd.grad(fitted.transform(zero).sum(), zero)
    assert torch.isfinite(gradient).all()


# Names and output.


@one_of_each()
def test_names_of_features(case: Case) -> None:
    import pandas as pd

    X = case.rows()
    fitted = case.fitted(X)
    Z = fitted.transform(X)
    names = [f"{case.name.lower()}{i}" for i in range(Z.shape[1])]
    np.testing.assert_array_equal(fitted.get_feature_names_out(), names)
    assert not hasattr(fitted, "feature_names_in_")
    assert fitted.n_features_in_ == case.n_features
    out = fitted.set_output(transform="pandas").transform(X)
    assert list(out.columns) == names
    np.testing.assert_array_equal(out.to_numpy(), Z)
    if case.layout == "images":
        return
    frame = pandas_frame(X).set_index(pd.Index(range(100, 100 + len(X))))
    named = case.fitted(frame)
    np.testing.assert_array_equal(named.feature_names_in_, list(frame.columns))
    assert isinstance(named.transform(frame), np.ndarray)
    out = named.set_output(transform="pandas").transform(frame)
    assert list(out.columns) == names
    assert list(out.index) == list(frame.index)
    close(out.to_numpy(), Z)
    with pytest.raises(ValueError, match="feature names"):
        named.transform(frame[frame.columns[::-1]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        named.transform(X)
    assert not hasattr(named.set_output(transform="default").fit(X), "feature_names_in_")


@one_of_each(lambda case: case.layout in ("rows", "flat") and case.map.get_params()["n_components"] is not None)
def test_pipelines_and_grid_search(case: Case) -> None:
    X = case.rows(60)
    y = np.sin(X[:, 0]) + X[:, 1]
    name = case.name.lower()
    grid = {f"{name}__n_components": [16, 24]}
    search = GridSearchCV(make_pipeline(clone(case.map), Ridge()), grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 2
    assert np.isfinite(search.predict(X)).all()
    assert 0 < len(search.best_estimator_[:-1].get_feature_names_out()) <= 48


# Values.


@some(lambda case: case.zero and case.layout != "matrix")
def test_zero_rows_have_zero_features(case: Case) -> None:
    X = case.rows()
    X[[2, 9]] = 0
    fitted = case.fitted(case.rows())
    kinds = [X, X.astype(np.float32), torch.from_numpy(X), torch.from_numpy(X).half()]
    kinds += [sp.csr_array(X)] if case.sparse else []
    for rows in kinds:
        Z = as_numpy(fitted.transform(rows))
        assert not Z[[2, 9]].any()
        assert np.isfinite(Z).all()
        assert np.abs(Z[[1, 3, 8, 10]]).sum() > 0
    only = case.fitted(0 * X)  # no rows to learn from
    assert not only.transform(0 * X).any()


@some(lambda case: not case.zero)
def test_zero_rows_of_kernels_that_do_not_vanish(case: Case) -> None:
    X = case.rows()
    X[[2, 9]] = 0
    fitted = case.fitted(case.rows())
    for rows in (X, X.astype(np.float32), torch.from_numpy(X), *([sp.csr_array(X)] if case.sparse else [])):
        Z = as_numpy(fitted.transform(rows))
        assert Z[2].any()
        np.testing.assert_array_equal(Z[2], Z[9])
        assert np.isfinite(Z).all()
    assert np.isfinite(case.fitted(0 * X).transform(0 * X)).all()


# Estimates of the error.


@one_of_each(lambda case: case.layout != "matrix")
def test_estimates_of_the_error(case: Case) -> None:
    X = case.rows(40)
    fitted = case.fitted(X)
    before = state(fitted)
    error = fitted.estimate_error(X, random_state=0)
    assert isinstance(error, float)
    assert 0 < error < 3
    assert fitted.estimate_error(X, n_samples=1000, random_state=5) == pytest.approx(error)  # all rows
    assert fitted.estimate_error(torch.from_numpy(X), random_state=0) == pytest.approx(error)
    if case.sparse:
        assert fitted.estimate_error(sp.csr_array(X), random_state=0) == pytest.approx(error)
    part = fitted.estimate_error(X, n_samples=10, random_state=0)
    assert part == fitted.estimate_error(X, n_samples=10, random_state=0)
    assert part != error
    assert state(fitted) == before
    with pytest.raises((ValueError, TypeError), match="n_samples"):
        fitted.estimate_error(X, n_samples=0)


@one_of_each(lambda case: case.layout != "matrix")
def test_suggestions_of_a_size(case: Case) -> None:
    X = case.rows(40)
    unfitted, fitted = clone(case.map), case.fitted(X)
    before, Z = state(fitted), fitted.transform(X)
    size = unfitted.suggest_n_components(X, 2.0, maximum=64)
    assert isinstance(size, int)
    assert 1 <= size <= 64
    assert vars(unfitted).keys() == unfitted.get_params(deep=False).keys()
    assert fitted.suggest_n_components(X, 2.0, maximum=64) == size
    assert state(fitted) == before
    np.testing.assert_array_equal(fitted.transform(X), Z)
    with pytest.raises(
        ValueError, match=rf"{case.name} (reaches a relative error .* with 4 components|must be at least)"
    ):
        unfitted.suggest_n_components(X, 1e-12, maximum=4)
    with pytest.raises((ValueError, TypeError), match="target_error"):
        unfitted.suggest_n_components(X, -1.0)


def test_no_estimate_where_the_kernel_is_not_known() -> None:
    case = CASES["NystroemFeatures precomputed"]
    with pytest.raises(ValueError, match="exact kernel of rows is not known"):
        case.fitted().estimate_error(case.rows())
