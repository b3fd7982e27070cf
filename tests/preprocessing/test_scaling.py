"""Widths of ArcsinhScaler; tests/models/test_contract.py and tests/hostile have its other tests."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import ntkit
from ntkit import ArcsinhScaler


@pytest.fixture
def X(rng):
    return rng.standard_normal((50, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, -1.0]


@pytest.mark.parametrize("width", [0.5, 1.0, 2])
def test_width(width, X, tmp_path):
    """All kinds of rows, both directions, and files."""
    scaler = ArcsinhScaler(width=width).fit(X)
    expected = width * np.arcsinh((X - X.mean(axis=0)) / X.std(axis=0) / width)
    np.testing.assert_allclose(scaler.transform(X), expected, rtol=1e-12)
    np.testing.assert_allclose(scaler.inverse_transform(expected), X, rtol=1e-10)
    tensor = torch.as_tensor(X)
    np.testing.assert_allclose(scaler.transform(tensor).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(scaler.expression(tensor).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(scaler.inverse_transform(scaler.transform(tensor)).numpy(), X, rtol=1e-10)
    rows = sp.csr_matrix(X * (X > 0))
    sparse = ArcsinhScaler(width=width, with_mean=False).fit(rows)
    np.testing.assert_allclose(
        sparse.transform(rows).toarray(), width * np.arcsinh(rows.toarray() / sparse.scale_ / width), rtol=1e-12
    )
    ntkit.save(scaler, tmp_path / "scaler.ntkit")
    np.testing.assert_array_equal(ntkit.load(tmp_path / "scaler.ntkit").transform(X), scaler.transform(X))


def test_wide_scalers_standardize(X):
    np.testing.assert_allclose(
        ArcsinhScaler(width=1e6).fit_transform(X), (X - X.mean(axis=0)) / X.std(axis=0), rtol=1e-6
    )


@pytest.mark.parametrize("width", [0, -1.0, np.nan, "2", None])
def test_bad_width(width, X):
    with pytest.raises((ValueError, TypeError), match="width"):
        ArcsinhScaler(width=width).fit(X)
