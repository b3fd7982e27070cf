"""Fields: accepted and refused values."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.preprocessing import StandardScaler

from ntkit._state import (
    Declared,
    Estimator,
    Flag,
    Floats,
    Integer,
    Integers,
    Labels,
    Many,
    Mapping,
    MemoryLimitError,
    Names,
    Optional,
    Part,
    Real,
    Record,
    Seed,
    Text,
    get_values,
    limited_memory,
    memory_left,
    put_values,
    reserve,
)


class Pair(Declared):
    _state: ClassVar[dict[str, Any]] = {
        "k": Integer(1),
        "a": Floats("k"),
        "b": Floats("k", "k"),
        "seed": Optional(Seed()),
    }
    _transient: ClassVar[tuple[str, ...]] = ("cache",)


class Longer(Pair):
    _state: ClassVar[dict[str, Any]] = {"c": Optional(Floats("k"), on_request=True)}
    _transient: ClassVar[tuple[str, ...]] = ("other",)


GOOD = np.ones((2, 3))
FIELDS: list[tuple[Any, list[Any], list[Any]]] = [
    (Real(0), [0, 1.5, np.float32(2)], [-1, np.inf, np.nan, True, "1", None]),
    (Real(0, strict=True), [1e-300], [0]),
    (Integer(1, 5), [1, np.int8(5)], [0, 6, 1.0, True, None, 2**70]),
    (Flag(), [True, np.False_], [1, None, "True"]),
    (Text(), ["", "a"], [1, None, b"a"]),
    (Text(("a", "b")), ["a"], ["c"]),
    (Floats(2, None), [GOOD],
     [GOOD.T, GOOD[0], GOOD.astype(np.float32), GOOD > 0, GOOD * np.nan, csr_array(GOOD), [1.0]]),
    (Floats("m", "m"), [np.eye(3)], [GOOD]),
    (Floats("m", ...), [GOOD, GOOD[0], GOOD[None]], [np.array(1.0)]),
    (Floats(..., finite=False, single=True, sparse=True),
     [GOOD * np.inf, np.float32(GOOD), csr_array(GOOD)], [np.int8(GOOD)]),
    (Floats(None, minimum=0), [np.zeros(0), np.zeros(2)], [np.array([-1.0])]),
    (Integers(None, minimum=0, maximum=3),
     [np.arange(4), np.zeros(0, int)], [np.arange(5), np.array([-1]), np.ones(2)]),
    (Labels(), [np.array(["a"]), np.array([1.5]), np.array(["a", 1], object)], [np.array([None]), ["a"], GOOD]),
    (Names(), [np.array(["a"], object)], [np.array([1], object), "a"]),
    (Seed(), [np.random.SeedSequence(1)], [1, None]),
    (Many(Integer(), 2), [[1, 2], (1, 2)], [[1], [1, "a"], {1, 2}, "ab"]),
    (Mapping(Real()), [{}, {"a": 1.0}], [{1: 1.0}, {"a": "b"}, []]),
    (Optional(Flag()), [None, True], [1]),
    (Estimator(("transform",)), [StandardScaler()], [StandardScaler, 1, None]),
    (Part(Pair), [Pair()], [Longer(), 1, Record("Longer", {}), Record("Pair", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "good", "bad"), FIELDS, ids=lambda value: type(value).__name__)
def test_fields(field, good, bad):
    for value in good:
        assert field.check(value, "x", {}) is not NotImplemented
    for value in bad:
        with pytest.raises(ValueError, match="x"):
            field.check(value, "x", {})


def test_sizes_agree_within_an_object():
    values = {"k": 2, "a": np.ones(2), "b": np.eye(2)}
    obj = Longer()
    put_values(obj, values, "x")
    assert vars(obj).keys() == values.keys()
    for wrong in ({"a": np.ones(3)}, {"k": 3}, {"b": np.ones((2, 3))}, {"k": 0}, {"z": 1}, {"cache": 1}):
        with pytest.raises(ValueError, match=r"x"):
            put_values(Longer(), values | wrong, "x")
    with pytest.raises(ValueError, match="lacks the attribute 'b'"):
        put_values(Longer(), {"k": 2, "a": np.ones(2)}, "x")


def test_subclasses_inherit_declarations():
    assert list(Longer._state) == ["k", "a", "b", "seed", "c"]
    assert Longer._transient == ("cache", "other")
    obj = Longer()
    vars(obj).update(k=1, a=np.ones(1), b=np.eye(1), c=np.ones(1), seed=np.random.SeedSequence(3), cache=1, other=2)
    assert "c" in get_values(obj, "x", on_request=True)
    assert "c" not in get_values(obj, "x", on_request=False)
    assert type(obj.__getstate__()["seed"]) is tuple
    for again in (pickle.loads(pickle.dumps(obj)), copy.deepcopy(obj)):
        assert vars(again).keys() == vars(obj).keys() - {"cache", "other"}
        assert again.seed.entropy == 3


def test_memory_is_bounded_only_while_a_file_is_loaded():
    reserve(10**30, "x")
    with limited_memory(100):
        reserve(60, "x")
        assert memory_left() == 40
        with pytest.raises(MemoryLimitError, match="x would take"):
            reserve(41, "x")
    reserve(10**30, "x")
