from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ntkit.sketches import OSNAP, SRHT, CountSketch, PolySketch, PowerSketch, TensorSketch, TensorSRHT, direct_sum

LAWS = [SRHT, CountSketch, OSNAP, TensorSRHT, TensorSketch, PolySketch, PowerSketch]
VALID = {
    SRHT: {}, CountSketch: {}, OSNAP: {"n_nonzeros": 1}, TensorSRHT: {"degree": 2}, TensorSketch: {"degree": 2},
    PolySketch: {"degree": 2}, PowerSketch: {"degree": 2},
}  # fmt: skip


def make(law, **changes):
    return law(**{"n_features": 5, "n_components": 7, **VALID[law], **changes})


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["n_features", "n_components", "degree", "n_nonzeros"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-2, ValueError), (4.0, TypeError), ("4", TypeError), (None, TypeError), (True, TypeError)],
)
def test_sizes(law, name, value, error):
    if name not in law.__dataclass_fields__:
        return
    with pytest.raises(error, match=rf"'{name}' parameter of {law.__name__} must be an int.*Got {value!r} instead"):
        make(law, **{name: value})


@pytest.mark.parametrize("law", [SRHT, TensorSRHT, PolySketch, PowerSketch])
@pytest.mark.parametrize("name", ["replace", "sparse"])
@pytest.mark.parametrize("value", [1, None, "yes"])
def test_switches(law, name, value):
    if name not in law.__dataclass_fields__:
        return
    with pytest.raises(TypeError, match=rf"'{name}' parameter of {law.__name__} must be True or False.*{value!r}"):
        make(law, **{name: value})


@pytest.mark.parametrize("law", [TensorSRHT, TensorSketch])
def test_sizes_of_factors(law):
    with pytest.raises(
        ValueError, match=r"'n_features' parameter of .* or a tuple of 2 of them \(the degree\). Got \(5, 6, 7\)"
    ):
        make(law, n_features=(5, 6, 7))
    with pytest.raises(ValueError, match=r"'n_features' parameter of .*Got \(5,\)"):
        make(law, n_features=(5,))
    with pytest.raises(ValueError, match=r"'n_features' parameter of .*Got 0"):
        make(law, n_features=(5, 0))
    with pytest.raises(TypeError, match=r"'n_features' parameter of .*Got 6.0"):
        make(law, n_features=(5, 6.0))


@pytest.mark.parametrize("law", [TensorSRHT, TensorSketch])
def test_a_list_of_sizes_leaves_the_distribution_hashable(law):
    assert hash(law([5, 6], 7)) == hash(law((5, 6), 7))


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
def test_trees_take_one_size(law):
    with pytest.raises(TypeError, match=rf"'n_features' parameter of {law.__name__} must be an int.*\(5, 6\)"):
        make(law, n_features=(5, 6))


def test_nonzeros_at_most_components():
    with pytest.raises(ValueError, match=r"'n_nonzeros' parameter of OSNAP must be an int from 1 to 3. Got 4"):
        OSNAP(5, 3, n_nonzeros=4)
    assert PolySketch(5, 3, 2, sparse=True, n_nonzeros=4).sample(0).apply(np.ones(5)).shape == (3,)
    assert PowerSketch(5, 3, 2, sparse=True, n_nonzeros=4).sample(0).apply(np.ones(5)).shape == (3,)


@pytest.mark.parametrize("law", [CountSketch, OSNAP])
def test_too_many_components_are_refused_by_the_distribution(law):
    with pytest.raises(ValueError, match=rf"'n_components' parameter of {law.__name__} must be .*Got 1073741825"):
        make(law, n_components=2**30 + 1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("rng", "error"), [(-1, ValueError), (1.5, TypeError), ("seed", TypeError), (True, TypeError), ([1], TypeError)]
)
def test_seeds(law, rng, error):
    with pytest.raises(error) as caught:
        make(law).sample(rng)
    text = str(caught.value)
    assert f"'rng' parameter of {law.__name__}.sample must be None, an int ≥ 0" in text
    assert f"Got {rng!r}" in text


@pytest.fixture(params=LAWS)
def operator(request):
    return make(request.param).sample(0)


@pytest.mark.parametrize("shape", [(4,), (2, 6), (2, 5, 8), (0, 8), (5, 0)])
@pytest.mark.parametrize("sparse", [False, True])
def test_number_of_features(operator, shape, sparse):
    X = np.ones(shape)
    if sparse and X.ndim != 2:
        return
    X = sp.csr_array(X) if sparse else X
    with pytest.raises(ValueError, match=r"'X' parameter of \w+.apply must be .* 5 features") as caught:
        operator.apply(X)
    assert str(shape) in str(caught.value)


def test_numbers_are_not_rows(operator):
    with pytest.raises(ValueError, match=r"'X' parameter of .* 5 features on its last axis.*shape \(\)"):
        operator.apply(1.0)


def test_number_of_arrays(operator):
    x = np.ones(5)
    for n in (0, 3, 4):
        with pytest.raises(TypeError, match=rf"apply takes one array.*Got {n}\."):
            operator.apply(*[x] * n)


def test_one_array_cannot_stand_for_factors_of_different_sizes():
    for law in (TensorSRHT, TensorSketch):
        with pytest.raises(TypeError, match=r"needs 2 arrays: its factors have different sizes \(5, 6\)"):
            law((5, 6), 3).sample(0).apply(np.ones(5))


@pytest.mark.parametrize(
    "X",
    [np.ones(5) * 1j, np.array(list("abcde")), "abcde", None, np.array([object()] * 5), np.zeros(5, "datetime64[s]"),
     sp.csr_array(np.eye(5) * 1j), {"x": 1}],
    ids=lambda X: type(X).__name__,
)  # fmt: skip
def test_only_real_numbers(operator, X):
    with pytest.raises(TypeError, match=r"'X' parameter of \w+.apply must be an array of real numbers. Got .* instead"):
        operator.apply(X)


def test_complex_tensors(operator, to_library):
    with pytest.raises(TypeError, match=r"'X' parameter of \w+.apply must be an array of real numbers.*complex"):
        operator.apply(to_library(np.ones((2, 5)) * 1j))


def test_ragged_lists(operator):
    with pytest.raises(ValueError, match="'X' parameter of"):
        operator.apply([[1, 2, 3, 4, 5], [1]])


def test_masked_entries_are_not_taken_for_data(operator):
    X = np.ma.masked_array(np.ones((3, 5)), mask=np.eye(3, 5))
    with pytest.raises(ValueError, match=r"'X' parameter of .*masked"):
        operator.apply(X)


def test_sparse_tensors(operator):
    import torch

    with pytest.raises(TypeError, match=r"'X' parameter of .*dense"):
        operator.apply(torch.eye(5).to_sparse())


@pytest.mark.parametrize("layout", [sp.coo_array, sp.csr_array])
def test_a_sparse_vector_is_mapped_or_refused_by_name(operator, layout):
    x = layout(np.arange(5.0))
    assert x.ndim == 1
    try:
        out = operator.apply(x)
    except (TypeError, ValueError) as error:
        assert "'X' parameter of" in str(error)  # noqa: PT017
    else:
        np.testing.assert_allclose(out, operator.apply(np.arange(5.0)))


def test_libraries_do_not_mix():
    import array_api_strict
    import torch

    for law in (TensorSRHT, TensorSketch, PolySketch, PowerSketch):
        operator = make(law).sample(0)
        kinds = [np.ones((2, 5)), torch.ones(2, 5), sp.csr_array(np.ones((2, 5))), array_api_strict.ones((2, 5))]
        for a in kinds:
            for b in kinds:
                if a is not b:
                    with pytest.raises(TypeError, match=r"must come from the same array library. Got .* and "):
                        operator.apply(a, b)


def test_leading_axes_must_agree():
    for law in (TensorSRHT, TensorSketch, PolySketch, PowerSketch):
        operator = make(law).sample(0)
        for shape in [(3, 5), (5,), (1, 5), (2, 1, 5)]:
            with pytest.raises(ValueError, match=r"must have equal leading axes. Got shapes") as caught:
                operator.apply(np.ones((2, 5)), np.ones(shape))
            assert "(2, 5)" in str(caught.value)
            assert str(shape) in str(caught.value)


@pytest.mark.parametrize(("law", "lowest"), [(PolySketch, 0), (PowerSketch, 1)])
@pytest.mark.parametrize("degrees", [[], (), [4], [1, -1], [1, 2, 9], [1.5], ["a"], [None], np.array([7])])
def test_degrees_out_of_range(law, lowest, degrees):
    wrong_type = len(degrees) == 1 and not isinstance(degrees[0], int | np.integer)
    rule = rf"'degrees' parameter of \w+.apply_degrees must be .*from {lowest} to 3"
    with pytest.raises(TypeError if wrong_type else ValueError, match=rule):
        make(law, degree=3).sample(0).apply_degrees(np.ones(5), degrees)


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
def test_degrees_are_a_sequence(law):
    with pytest.raises(TypeError, match=r"'degrees' parameter of \w+.apply_degrees must be .*Got 3 instead"):
        make(law, degree=3).sample(0).apply_degrees(np.ones(5), 3)


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
@pytest.mark.parametrize("degrees", [[1.0], [True], [np.float64(2)]])
def test_degrees_are_ints(law, degrees):
    with pytest.raises((TypeError, ValueError), match="'degrees' parameter of"):
        make(law, degree=3).sample(0).apply_degrees(np.ones(5), degrees)


def test_a_power_sketch_has_no_degree_0():
    with pytest.raises(ValueError, match=r"an int from 1 to 3. Got 0"):
        PowerSketch(5, 7, 3).sample(0).apply_degrees(np.ones(5), [0])


@pytest.mark.parametrize("law", [PolySketch, PowerSketch])
def test_rows_of_degrees(law):
    operator = make(law).sample(0)
    with pytest.raises(ValueError, match=r"'X' parameter of \w+.apply_degrees must be an array with 5 features"):
        operator.apply_degrees(np.ones(6))
    with pytest.raises(TypeError, match=r"'X' parameter of \w+.apply_degrees must be an array of real numbers"):
        operator.apply_degrees("x")


def test_matrices_have_a_limit():
    with pytest.raises(
        ValueError, match=r"PolySketchOperator.matrix\(\) is for small sizes: 7 × 9765625 entries.*Use apply"
    ):
        PolySketch(5, 7, 10).sample(0).matrix()
    assert SRHT(2048, 64).sample(0).matrix().shape == (64, 2048)


def test_the_limit_of_matrices_counts_what_they_are_made_from():
    with pytest.raises(ValueError, match=r"SRHTOperator.matrix\(\)"):  # an identity of 2^24 × 2^24
        SRHT(2**24, 1).sample(0).matrix()


@pytest.mark.parametrize("bad", [TensorSRHT(5, 7), TensorSketch(5, 7), PolySketch(5, 7, 2)], ids=repr)
def test_direct_sums_of_tensor_operators(bad):
    with pytest.raises(TypeError, match=r"'operators' parameter of direct_sum must be .*degree 1.*Got \w+\(5\^2 → 7\)"):
        direct_sum(SRHT(5, 7).sample(0), bad.sample(0))


def test_direct_sums_of_other_things():
    with pytest.raises(TypeError, match=r"'operators' parameter of direct_sum must be .*Got SRHT\("):
        direct_sum(SRHT(5, 7))
    with pytest.raises(TypeError, match=r"'operators' parameter of direct_sum must be .*Got ndarray of shape"):
        direct_sum(np.eye(3))
    with pytest.raises(ValueError, match="'operators' parameter of direct_sum must be at least one operator"):
        direct_sum()


def test_constructors_are_frozen():
    with pytest.raises(AttributeError):
        SRHT(5, 7).n_features = 6
