"""NTKFeatures with a constant appended to every row: the NTK of rows (x, b)."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from tests.conftest import as_numpy

from ntkit import NTKFeatures
from ntkit.kernels import ntk

METHODS = pytest.mark.parametrize("method", ["auto", "polynomial", "random", "sketch", "gradient"])


def appended(X, value):
    return np.hstack([X, np.full((len(X), 1), float(value))])


@METHODS
def test_features_equal_features_of_rows_with_the_constant_column(method, rng):
    for bias in [0.5, 2, "auto"]:
        X = rng.standard_normal((20, 6))
        value = np.sqrt(6) if bias == "auto" else bias
        features = NTKFeatures(depth=2, n_components=64, method=method, bias=bias, random_state=3).fit(X)
        assert features.bias_ == pytest.approx(value)
        plain = NTKFeatures(depth=2, n_components=64, method=method, random_state=3)
        np.testing.assert_array_equal(features.transform(X), plain.fit_transform(appended(X, value)))
        assert features.n_features_in_ == 6
        assert len(features.get_feature_names_out()) == features.transform(X).shape[1]


def test_features_approximate_the_kernel_of_rows_with_the_constant(rng):
    """The relative error is below 5 %; with a constant, the kernel of the rows without it has a larger error."""
    for bias in [0.0, 0.7, "auto"]:
        for depth in [1, 3]:
            X = rng.standard_normal((30, 8))
            value = np.sqrt(8) if bias == "auto" else bias
            features = NTKFeatures(depth=depth, n_components=4096, bias=bias, random_state=0).fit(X)
            Z = features.transform(X)
            exact, without = ntk(appended(X, value), depth=depth), ntk(X, depth=depth)
            assert np.linalg.norm(Z @ Z.T - exact) < 0.05 * np.linalg.norm(exact)
            if bias:
                assert np.linalg.norm(Z @ Z.T - without) > 0.05 * np.linalg.norm(without)
            np.testing.assert_allclose((Z**2).sum(axis=1), (depth + 1) * ((X**2).sum(axis=1) + value**2), rtol=1e-6)
            error = np.linalg.norm(Z @ Z.T - exact) / np.linalg.norm(exact)
            assert features.estimate_error(X) == pytest.approx(error, rel=1e-6)


def test_functions_need_not_be_homogeneous(rng):
    """Without a constant, features of 2x are twice the features of x; with one they are not, and a zero row has
    features.
    """
    X = rng.standard_normal((5, 4))
    plain, biased = (NTKFeatures(n_components=32, bias=b, random_state=0).fit(X) for b in (0.0, 1.0))
    np.testing.assert_allclose(plain.transform(2 * X), 2 * plain.transform(X), rtol=1e-9, atol=1e-12)
    assert np.abs(biased.transform(2 * X) - 2 * biased.transform(X)).max() > 0.01
    zero = np.zeros((1, 4))
    assert not plain.transform(zero).any()
    assert (biased.transform(zero) ** 2).sum() == pytest.approx(2.0, rel=0.1)  # harmonics of 5 columns, truncated
    sketched = NTKFeatures(n_components=32, bias=1.0, method="polynomial", random_state=0).fit(X)
    assert (sketched.transform(zero) ** 2).sum() == pytest.approx(2.0)


@METHODS
def test_no_bias_is_the_default(method, rng):
    X = rng.standard_normal((5, 4))
    Z = NTKFeatures(n_components=16, method=method, random_state=0).fit_transform(X)
    np.testing.assert_array_equal(
        NTKFeatures(n_components=16, method=method, bias=0, random_state=0).fit_transform(X), Z
    )
    assert NTKFeatures().bias == 0.0
    assert NTKFeatures(n_components=16, method=method).fit(X).bias_ == 0.0


@METHODS
def test_rows_of_all_kinds(method, rng):
    """One map: sparse rows, tensors and single precision get the features of dense rows in double precision."""
    import pandas as pd
    import torch

    X = rng.standard_normal((9, 12)) * (rng.random((9, 12)) < 0.5)
    X[4] = 0.0
    dense = NTKFeatures(depth=2, n_components=32, method=method, bias="auto", random_state=0).fit(X)
    sparse = clone(dense).fit(sp.csr_array(X))
    for features in (dense, sparse):
        Z = features.transform(X)
        scale = np.abs(Z).max()
        kinds = {
            "csr": sp.csr_array(X), "csc": sp.csc_matrix(X), "torch": torch.from_numpy(X), "list": X.tolist(),
            "float32": X.astype(np.float32), "torch32": torch.from_numpy(X).float(), "frame": pd.DataFrame(X),
            "csr32": sp.csr_array(X.astype(np.float32)), "fortran": np.asfortranarray(X),
        }  # fmt: skip
        for kind, rows in kinds.items():
            out = features.transform(rows)
            assert isinstance(out, torch.Tensor) == kind.startswith("torch")
            assert ("float32" in str(out.dtype)) == ("32" in kind), kind
            np.testing.assert_allclose(as_numpy(out), Z, rtol=0, atol=scale * (2e-5 if "32" in kind else 1e-12))
    whole = rng.integers(-3, 4, (5, 12))
    np.testing.assert_array_equal(dense.transform(whole), dense.transform(whole.astype(float)))
    empty = sp.csr_array((3, 12))
    np.testing.assert_allclose(sparse.transform(empty), sparse.transform(np.zeros((3, 12))), atol=1e-12)
