"""Messages name the argument, the rule and the value received."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, direct_sum

VALID = {
    SRHT: {}, CountSketch: {}, OSNAP: {"n_nonzeros": 1}, TensorSRHT: {"degree": 2}, TensorSketch: {"degree": 2},
    PolySketch: {"degree": 2}, PowerSketch: {"degree": 2},
}  # fmt: skip
TENSORS = [TensorSRHT, TensorSketch, PolySketch, PowerSketch]
DEGREES = [(PolySketch, 0), (PowerSketch, 1)]  # with the lowest degree


def make(law, **changes):
    return law(**{"n_features": 5, "n_components": 7, **VALID[law], **changes})


def fields(*names: str) -> list:
    return [pytest.param(law, name, id=f"{law.__name__}-{name}") for law in VALID for name in names
            if name in law.__dataclass_fields__]  # fmt: skip


# Laws


@pytest.mark.parametrize(("law", "name"), fields("n_features", "n_components", "degree", "n_nonzeros"))
def test_sizes(law, name):
    for value, error in [
        (0, ValueError), (-2, ValueError), (4.0, TypeError), ("4", TypeError), (None, TypeError), (True, TypeError),
    ]:  # fmt: skip
        rule = rf"'{name}' parameter of {law.__name__} must be an int.*Got {value!r} instead"
        with pytest.raises(error, match=rule):
            make(law, **{name: value})


@pytest.mark.parametrize(("law", "name"), fields("replace", "sparse"))
def test_switches(law, name):
    for value in (1, None, "yes"):
        rule = rf"'{name}' parameter of {law.__name__} must be True or False.*{value!r}"
        with pytest.raises(TypeError, match=rule):
            make(law, **{name: value})


def test_all_parameters_are_checked():
    """The two tests above have every parameter of every law."""
    checked = {
        (*parameter.values,)
        for parameter in fields("n_features", "n_components", "degree", "n_nonzeros", "replace", "sparse")
    }
    assert checked == {(law, name) for law in VALID for name in law.__dataclass_fields__}


@pytest.mark.parametrize("law", [TensorSRHT, TensorSketch])
def test_sizes_of_factors(law):
    for value, error, text in [
        ((5, 6, 7), ValueError, r"or a tuple of 2 ints ≥ 1, one for each factor \(the degree\). Got \(5, 6, 7\)"),
        ((5,), ValueError, r"Got \(5,\)"),
        ((5, 0), ValueError, "Got 0"),
        ((5, 6.0), TypeError, "Got 6.0"),
    ]:
        with pytest.raises(error, match=rf"'n_features' parameter of {law.__name__} must be .*{text}"):
            make(law, n_features=value)


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
def test_trees_take_one_size(law):
    with pytest.raises(TypeError, match=rf"'n_features' parameter of {law.__name__} must be an int.*\(5, 6\)"):
        make(law, n_features=(5, 6))


def test_sizes_have_limits():
    with pytest.raises(ValueError, match=r"'n_nonzeros' parameter of OSNAP must be an int from 1 to 3. Got 4"):
        OSNAP(5, 3, n_nonzeros=4)
    for law in (CountSketch, OSNAP):
        with pytest.raises(ValueError, match=rf"'n_components' parameter of {law.__name__} must be .*Got 1073741825"):
            make(law, n_components=2**30 + 1)


def test_laws_are_frozen():
    for law in VALID:
        with pytest.raises(AttributeError):
            make(law).n_features = 6


@pytest.mark.parametrize("law", VALID)
def test_seeds(law):
    for rng, error in [(-1, ValueError), (1.5, TypeError), ("seed", TypeError), (True, TypeError), ([1], TypeError)]:
        text = f"'rng' parameter of {law.__name__}.sample must be None, an int ≥ 0"
        with pytest.raises(error, match=re.escape(text) + r".*Got " + re.escape(repr(rng))):
            make(law).sample(rng)


# Rows


def composition():
    return direct_sum(SRHT(4, 4).sample(0), OSNAP(3, 4).sample(1)) @ TensorSRHT(5, 7).sample(2)


OPERATORS = {law.__name__: lambda law=law: make(law).sample(0) for law in VALID} | {
    "composition": composition,
    "direct sum": lambda: direct_sum(SRHT(2, 4).sample(0), OSNAP(3, 4).sample(1)),
}


@pytest.fixture(params=OPERATORS)
def operator(request):
    return OPERATORS[request.param]()


def test_number_of_features(operator):
    shapes = [(4,), (2, 6), (2, 5, 8), (0, 8), (5, 0), ()]
    cases = [np.ones(shape) for shape in shapes] + [sp.csr_array(np.ones(shape)) for shape in shapes[:2] + shapes[3:5]]
    for X in cases:
        rule = r"'X' parameter of \w+.apply must be an array with 5 features on its last axis\. "
        with pytest.raises(ValueError, match=rule + rf"Got .*shape {re.escape(str(X.shape))}"):
            operator.apply(X)
    with pytest.raises(ValueError, match=r"'X' parameter of .* 5 features on its last axis.*shape \(\)"):
        operator.apply(1.0)


def test_number_of_arrays(operator):
    for n in (0, 3, 4):
        with pytest.raises(TypeError, match=rf"apply takes one array.*Got {n}\."):
            operator.apply(*[np.ones(5)] * n)


def test_only_real_numbers(operator):
    import array_api_strict
    import torch

    values = [
        np.ones(5) * 1j, np.array(list("abcde")), "abcde", None, np.array([object()] * 5), np.zeros(5, "datetime64[s]"),
        {"x": 1}, sp.csr_array(np.eye(5) * 1j), torch.ones(2, 5) * 1j, array_api_strict.asarray(np.ones((2, 5)) * 1j),
    ]  # fmt: skip
    for X in values:
        rule = r"'X' parameter of \w+.apply must be an array of real numbers. Got .* instead"
        with pytest.raises(TypeError, match=rule):
            operator.apply(X)


def test_rows_that_are_not_plain_arrays(operator):
    import torch

    with pytest.raises(ValueError, match=r"'X' parameter of \w+.apply must be an array with rows of equal length"):
        operator.apply([[1, 2, 3, 4, 5], [1]])
    with pytest.raises(ValueError, match=r"'X' parameter of \w+.apply must be free of masked entries"):
        operator.apply(np.ma.masked_array(np.ones((3, 5)), mask=np.eye(3, 5)))
    with pytest.raises(TypeError, match=r"'X' parameter of \w+.apply must be a dense tensor"):
        operator.apply(torch.eye(5).to_sparse())


def test_transposes_take_components(operator):
    import torch

    m = operator.n_components
    for V in (np.ones(m + 1), np.ones((2, m - 1)), np.ones((2, 0)), sp.csr_array(np.ones((2, m + 1))), np.ones(())):
        with pytest.raises(ValueError, match=rf"'V' parameter of \w+.apply_transpose must be .*\b{m} components"):
            operator.apply_transpose(V)
    for V in (np.ones(m) * 1j, "abcde", None, torch.ones(2, m) * 1j):
        with pytest.raises(TypeError, match=r"'V' parameter of \w+.apply_transpose must be an array of real numbers"):
            operator.apply_transpose(V)


def test_factors_of_different_sizes_need_an_array_each():
    for law in (TensorSRHT, TensorSketch):
        with pytest.raises(TypeError, match=r"needs 2 arrays: its factors have different sizes \(5, 6\)"):
            law((5, 6), 3).sample(0).apply(np.ones(5))


@pytest.mark.parametrize("law", TENSORS)
def test_factors_come_from_one_library_and_have_equal_leading_axes(law):
    import array_api_strict
    import torch

    operator = make(law).sample(0)
    kinds = [np.ones((2, 5)), torch.ones(2, 5), sp.csr_array(np.ones((2, 5))), array_api_strict.ones((2, 5))]
    for a in kinds:
        for b in kinds:
            if a is not b:
                with pytest.raises(TypeError, match=r"must come from the same array library. Got .* and "):
                    operator.apply(a, b)
    for shape in [(3, 5), (5,), (1, 5), (2, 1, 5)]:
        text = rf"must have equal leading axes. Got shapes \(2, 5\) and {re.escape(str(shape))}"
        with pytest.raises(ValueError, match=text):
            operator.apply(np.ones((2, 5)), np.ones(shape))


# Degrees


@pytest.mark.parametrize(("law", "lowest"), DEGREES)
def test_degrees(law, lowest):
    operator = make(law, degree=3).sample(0)
    rule = rf"'degrees' parameter of \w+.apply_degrees must be .*from {lowest} to 3"
    for degrees in ([], (), [4], [1, -1], [1, 2, 9], [lowest - 1], np.array([7])):
        with pytest.raises(ValueError, match=rule):
            operator.apply_degrees(np.ones(5), degrees)
    for degrees in ([1.5], [1.0], [True], ["a"], [None], [np.float64(2)], 3):
        with pytest.raises(TypeError, match=rule):
            operator.apply_degrees(np.ones(5), degrees)
    with pytest.raises(ValueError, match=r"'X' parameter of \w+.apply_degrees must be an array with 5 features"):
        operator.apply_degrees(np.ones(6))
    with pytest.raises(TypeError, match=r"'X' parameter of \w+.apply_degrees must be an array of real numbers"):
        operator.apply_degrees("x")


# Matrices


def test_matrices_have_a_limit():
    rule = r"PolySketchOperator.matrix\(\) is for small sizes: 7 × 9765625 entries.*Use apply"
    with pytest.raises(ValueError, match=rule):
        PolySketch(5, 7, 10).sample(0).matrix()
    with pytest.raises(ValueError, match=r"SRHTOperator.matrix\(\)"):  # made from an identity of 2^22 × 2^22
        SRHT(2**22, 1).sample(0).matrix()
    assert SRHT(2048, 64).sample(0).matrix().shape == (64, 2048)
