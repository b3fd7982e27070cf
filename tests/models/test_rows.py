"""Digests of rows, and statistics learned from blocks of rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from ntkit import FeatureRidge
from ntkit.models._rows import Digest
from ntkit.models.ridge import _shares_memory


def digest(*values):
    found = Digest()
    found.add(*values)
    return found.text()


def test_digests_tell_rows_apart():
    """By shape and type too, where the bytes are the same."""
    X = np.arange(6.0)
    others = [
        X.reshape(2, 3), X.reshape(3, 2), X.view(np.int64), X.astype(np.float32), X[::-1],
        X.astype(str), sp.csr_array(X.reshape(2, 3)), pd.DataFrame(X.reshape(2, 3)), None,
    ]  # fmt: skip
    assert len({digest(value) for value in [X, *others]}) == 1 + len(others)
    assert digest(X, X) != digest(X, X + 1) != digest(X, None)
    table = X.reshape(2, 3)
    assert digest(torch.from_numpy(table)) == digest(np.asfortranarray(table)) == digest(table)


def test_scalers_learn_from_the_weights_of_a_stream():
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((90, 3)) + 5, rng.standard_normal(90), rng.integers(0, 4, 90) / 2
    stream = [(X[i : i + 30], y[i : i + 30], weight[i : i + 30]) for i in (0, 30, 60)]
    model, whole = FeatureRidge(StandardScaler(), alphas=1.0).fit(stream), FeatureRidge(StandardScaler(), alphas=1.0)
    np.testing.assert_allclose(model.features_.mean_, np.average(X, axis=0, weights=weight), rtol=1e-12)
    np.testing.assert_allclose(model.predict(X), whole.fit(X, y, weight).predict(X), rtol=1e-9)


def test_no_block_is_larger_than_batch_size():
    sizes = []

    def note(X):
        sizes.append(len(X))
        return X

    X = np.random.default_rng(0).standard_normal((50, 3))
    model = FeatureRidge(FunctionTransformer(note), batch_size=7)
    for call in (lambda: model.fit(X, X[:, 0]), lambda: model.predict(X), lambda: model.predict(X, return_std=True)):
        sizes.clear()
        call()
        assert max(sizes) == 7
        assert sum(sizes) >= 50


def test_features_that_are_the_rows_are_known():
    """Of any library: products overwrite features."""
    X = np.ones((4, 3))
    tensor, frame = torch.from_numpy(X), pd.DataFrame(X)
    for features, rows in ((X[:, :2], X), (tensor[:, :2], tensor), (X[:2], tensor), (frame.to_numpy(), frame)):
        assert _shares_memory(features, rows)
    for features, rows in ((X + 1, X), (tensor + 1, tensor), (X + 1, tensor), (tensor + 1, X)):
        assert not _shares_memory(features, rows)
    X.flags.writeable = False
    assert _shares_memory(X, X + 1)
