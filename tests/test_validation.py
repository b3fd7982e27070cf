"""Texts of errors: whatever the value is, it can be shown."""

from __future__ import annotations

import numpy as np
import pytest

from ntkit import RandomFourierFeatures
from ntkit._validation import check_int, describe


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
def test_types_where_values_belong(law):
    with pytest.raises(TypeError, match=r"'n' parameter of f must be an int ≥ 1. Got <class '[\w.]+'> instead"):
        check_int(law, "n", "f", minimum=1)
    with pytest.raises(TypeError, match="'n_components' parameter of RandomFourierFeatures"):
        RandomFourierFeatures(n_components=law).fit(np.zeros((2, 2)))


def test_types_of_tensors_are_described():
    torch = pytest.importorskip("torch")
    assert describe(torch.Tensor) == "<class 'torch.Tensor'>"
    assert describe(torch.zeros(2)) == "Tensor of shape (2,) and dtype torch.float32"
