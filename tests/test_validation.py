"""Texts of errors: any value can be shown."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from ntkit import (
    ArcsinhScaler,
    FeatureKMeans,
    FeatureRidge,
    FeatureRidgeClassifier,
    KernelRidge,
    NTKFeatures,
    RandomFourierFeatures,
)
from ntkit._validation import check_int, describe
from ntkit.features import FastfoodFeatures, NetworkFeatures, PolynomialSketch
from ntkit.kernels import ntk
from ntkit.preprocessing import PatchWhitening
from ntkit.tables import TableEncoder


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32, "<class 'numpy.float32'>"),
        (np.ndarray, "<class 'numpy.ndarray'>"),
        (np.zeros((2, 3)), "ndarray of shape (2, 3) and dtype float64"),
        (np.float32(1.5), "float32 of shape () and dtype float32"),
        (np.dtype("f4"), "dtype('float32')"),
        ("x" * 100, "'" + "x" * 76 + "..."),
        (None, "None"),
    ],
)
def test_values_are_described(value, text):
    assert describe(value) == text


@pytest.mark.parametrize("law", [np.float32, np.float64, np.ndarray, int])
def test_types_given_instead_of_values(law):
    with pytest.raises(TypeError, match=r"'n' parameter of f must be an int ≥ 1. Got <class '[\w.]+'> instead"):
        check_int(law, "n", "f", minimum=1)
    with pytest.raises(TypeError, match="'n_components' parameter of RandomFourierFeatures"):
        RandomFourierFeatures(n_components=law).fit(np.zeros((2, 2)))


def test_types_of_tensors_are_described():
    torch = pytest.importorskip("torch")
    assert describe(torch.Tensor) == "<class 'torch.Tensor'>"
    assert describe(torch.zeros(2)) == "Tensor of shape (2,) and dtype torch.float32"


# Rows, targets and weights that must not be confused; tests/hostile/test_inputs.py has many more.

MAPS = [NTKFeatures(n_components=8), FeatureRidge(), KernelRidge(), ArcsinhScaler(), TableEncoder(), PatchWhitening()]
SMALL = NTKFeatures(n_components=8, random_state=0)


def rows():
    return np.random.default_rng(0).integers(1, 17, (20, 4)) / 8


@pytest.mark.parametrize("estimator", MAPS, ids=lambda e: type(e).__name__)
def test_masked_arrays_and_dates_are_refused(estimator):
    X = rows()
    y = X[:, 0]
    hidden = np.ma.MaskedArray(X, mask=X > 1.9)
    estimator.fit(np.ma.MaskedArray(X), y)  # no entry is masked
    for use in (lambda Z: estimator.fit(Z, y), getattr(estimator, "transform", None) or estimator.predict):
        with pytest.raises(ValueError, match=r"'X' parameter of \w+ must be free of masked entries.*filled"):
            use(hidden)
        with pytest.raises(TypeError, match=r"'X' parameter of \w+ must be an array of real numbers.*Convert dates"):
            use((8 * X).astype("datetime64[D]"))


def test_masked_targets_and_weights_are_refused():
    X = rows()
    hidden = np.ma.MaskedArray(X[:, 0], mask=X[:, 0] > 1)
    for model in (FeatureRidge(SMALL), KernelRidge()):
        with pytest.raises(ValueError, match=r"'y' parameter of \w+ must be free of masked entries"):
            model.fit(X, hidden)
        with pytest.raises(ValueError, match=r"'sample_weight' parameter of \w+ must be free of masked entries"):
            model.fit(X, X[:, 0], sample_weight=hidden)
        with pytest.raises(TypeError, match=r"'y' parameter of \w+ must be .*Convert dates"):
            model.fit(X, (8 * X[:, 0]).astype("timedelta64[s]"))


def test_dates_in_a_data_frame_are_refused_by_name():
    frame = pd.DataFrame(rows(), columns=list("abcd")).assign(b=pd.date_range("2020", periods=20))
    with pytest.raises(TypeError, match=r"The column 'b' of 'X' must hold real numbers for NTKFeatures.*datetime64"):
        NTKFeatures(n_components=8).fit(frame)


def test_overflow_is_not_called_nan():
    X = rows()
    for estimator in (ArcsinhScaler(), FeatureRidge(random_state=0)):
        with pytest.raises(
            ValueError, match=r"small enough that the variances are finite in float64. Got entries up to 2e\+300"
        ):
            estimator.fit(X * 1e300, X[:, 0])


def test_default_features_take_sparse_rows():
    X = rows() * (rows() > 0.6)
    model = FeatureRidge(random_state=0).fit(sp.csr_array(X), X[:, 0] + X[:, 1])
    assert model.score(sp.csr_array(X), X[:, 0] + X[:, 1]) > 0.99
    with pytest.raises(TypeError, match=r"'X' parameter of ArcsinhScaler must be dense.* Set with_mean=False"):
        ArcsinhScaler().fit(sp.csr_array(X))


OVERFLOW = (
    r"'X' parameter of \w+ must have entries small enough that the [\w ]+ are finite in \S+\. "
    r"Got \w+ up to [\d.]+e\+\d+"
)


@pytest.mark.parametrize(
    "estimator",
    [
        FeatureKMeans(SMALL, 2, random_state=0),
        NetworkFeatures(n_components=8, degree=2, derivative_degree=2, random_state=0),
        PolynomialSketch(degree=3, n_components=8, random_state=0),
        PatchWhitening(patch_size=2, image_shape=(2, 2, 1)),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("like", [np.asarray, torch.from_numpy], ids=["NumPy", "torch"])
def test_features_that_overflow_are_refused(estimator, like):
    X = rows()
    huge = like(X * 1e160)
    for train in (X, huge):
        try:
            Z = estimator.fit(train).transform(huge)
        except ValueError as error:
            assert re.search(OVERFLOW, str(error))  # noqa: PT017
        else:
            assert np.isfinite(np.asarray(Z)).all()


@pytest.mark.parametrize("law", [RandomFourierFeatures, FastfoodFeatures])
def test_tiny_rows_have_finite_features_or_none(law):
    X = (rows() * 1e-40).astype(np.float32)
    try:
        Z = law(n_components=8, random_state=0).fit_transform(X)
    except ValueError as error:
        assert "finite in float32" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(Z).all()


def test_many_features_are_checked_where_rows_are_large():
    """Rows of ordinary size are identified by their size, all others by their features."""
    X = np.tile(rows(), (20, 1)).astype(np.float32)
    feature_map = PolynomialSketch(degree=3, n_components=512, random_state=0).fit(rows())
    assert np.isfinite(feature_map.transform(X)).all()
    X[-1] = 1e20
    with pytest.raises(
        ValueError, match=r"small enough that the features are finite in float32. Got entries up to 1e\+20"
    ):
        feature_map.transform(X)
    extreme = PolynomialSketch(degree=3, gamma=1e30, n_components=512, random_state=0).fit(rows())
    with pytest.raises(ValueError, match="small enough that the features are finite in float32"):
        extreme.transform(np.full((400, 4), 1e3, dtype=np.float32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_targets_and_rows_of_16_bits(dtype):
    X, tensor = rows(), torch.from_numpy(rows()).to(dtype)
    for model in (FeatureRidge(random_state=0), FeatureRidge(SMALL), KernelRidge()):
        expected = model.fit(X, X[:, 0]).predict(X)
        np.testing.assert_allclose(model.fit(X, tensor[:, 0]).predict(X), expected)
        np.testing.assert_allclose(model.predict(tensor).double().numpy(), expected, atol=0.05)
    assert FeatureRidgeClassifier(SMALL).fit(X, tensor[:, 0] > 1).predict(X).dtype == bool
    scaled = ArcsinhScaler().fit(tensor).transform(tensor)
    assert scaled.dtype == dtype
    np.testing.assert_allclose(scaled.double().numpy(), ArcsinhScaler().fit_transform(X), atol=0.02)
    np.testing.assert_allclose(TableEncoder().fit_transform(tensor), TableEncoder().fit_transform(X))


def test_the_scaler_differentiates():
    X = torch.from_numpy(rows()).requires_grad_()
    scaler = ArcsinhScaler().fit(X)
    (slopes,) = torch.autograd.grad(scaler.transform(X).sum(), X)
    Z = (X.detach() - torch.from_numpy(scaler.mean_)) / torch.from_numpy(scaler.scale_)
    torch.testing.assert_close(slopes, 1 / ((1 + Z**2).sqrt() * torch.from_numpy(scaler.scale_)))
    torch.testing.assert_close(scaler.inverse_transform(scaler.transform(X)), X)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda X: X.to("meta"), "meta tensor.*another device"),
        (lambda X: X.to_sparse(), r"sparse tensor.*\.to_dense\(\)"),
        (lambda X: X.to_sparse_csr(), r"sparse tensor.*\.to_dense\(\)"),
    ],
    ids=["meta", "COO", "CSR"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_without_plain_numbers(make, text):
    X = rows()
    bad = make(torch.from_numpy(X))
    for estimator in MAPS:
        with pytest.raises(TypeError, match=rf"'X' parameter of \w+ must be a dense tensor with numbers.*{text}"):
            estimator.fit(bad, X[:, 0])
    with pytest.raises(TypeError, match=text):
        ntk(bad, depth=1)


def test_a_refused_fit_leaves_scaler_and_encoder_unchanged():
    X = rows()
    for estimator in (ArcsinhScaler(), TableEncoder()):
        expected = estimator.fit_transform(X)
        with pytest.raises(ValueError, match="infinity"):
            estimator.fit(np.full((3, 2), np.inf))
        np.testing.assert_array_equal(estimator.transform(X), expected)
