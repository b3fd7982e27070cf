from __future__ import annotations

import datetime
import json
import subprocess
import sys
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from ntkit.tables import TableEncoder, infer_task, read_table


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "width": [1.0, np.nan, 3.0, 8.0],
            "colour": ["red", "blue", None, "red"],
            "open": [True, False, True, True],
            "count": [1, 2, 3, 4],
        }
    )


@parametrize_with_checks([TableEncoder()])
def test_estimator_checks(estimator, check):
    check(estimator)


class TestEncoder:
    def test_columns(self, frame):
        encoder = TableEncoder().fit(frame)
        names = ["width", "width=(missing)", "colour=blue", "colour=red", "colour=(missing)", "open", "count"]
        assert encoder.get_feature_names_out().tolist() == names
        assert encoder.n_features_in_ == 4
        assert encoder.feature_names_in_.tolist() == list(frame.columns)
        assert encoder.text_columns_ == ["colour"]
        Z = encoder.transform(frame)
        assert Z.dtype == np.float32
        np.testing.assert_array_equal(
            Z, [[1, 0, 0, 1, 0, 1, 1], [4, 1, 1, 0, 0, 0, 2], [3, 0, 0, 0, 1, 1, 3], [8, 0, 0, 1, 0, 1, 4]]
        )

    def test_order_extra_columns_new_levels_and_new_gaps(self, frame):
        encoder = TableEncoder().fit(frame)
        new = pd.DataFrame(
            {"extra": ["?"], "count": [None], "colour": ["green"], "open": [True], "width": [2.0]}, dtype=object
        )
        np.testing.assert_array_equal(encoder.transform(new), [[2, 0, 0, 0, 0, 1, 2.5]])

    def test_missing_columns_are_named(self, frame):
        encoder = TableEncoder().fit(frame)
        with pytest.raises(ValueError, match="lacks the columns 'colour', 'count', which this TableEncoder"):
            encoder.transform(frame[["width", "open"]])

    def test_text_among_numbers_is_named(self, frame):
        encoder = TableEncoder().fit(frame)
        bad = frame.assign(count=["1", "2", "three", "4"])
        with pytest.raises(ValueError, match=r"column 'count' must hold numbers.* Got 'three' in row 2"):
            encoder.transform(bad)
        good = frame.assign(count=["1", "2", "3", "4"])
        np.testing.assert_array_equal(encoder.transform(good), encoder.transform(frame))

    @pytest.mark.parametrize("dtype", ["object", "str", "category", "string[pyarrow]"])
    def test_kinds_of_text(self, dtype):
        frame = pd.DataFrame({"a": pd.Series(["x", None, "y", "x"], dtype=dtype)})
        np.testing.assert_array_equal(TableEncoder().fit_transform(frame), [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]])

    @pytest.mark.parametrize(
        "values",
        [
            pd.Series([1, None, 3], dtype="Int64"),
            pd.Series([1, None, 3], dtype="int64[pyarrow]"),
            pd.Series([1.0, None, 3.0], dtype="float32"),
            pd.Series([Decimal(1), None, Decimal(3)], dtype=object),
            pd.Series([1, None, np.float64(3)], dtype=object),
        ],
    )
    def test_kinds_of_numbers(self, values):
        Z = TableEncoder().fit_transform(pd.DataFrame({"a": values}))
        np.testing.assert_array_equal(Z, [[1, 0], [2, 1], [3, 0]])

    @pytest.mark.parametrize("dtype", ["bool", "boolean", "object"])
    def test_kinds_of_booleans(self, dtype):
        Z = TableEncoder().fit_transform(pd.DataFrame({"a": pd.Series([True, False], dtype=dtype)}))
        np.testing.assert_array_equal(Z, [[1], [0]])

    def test_numbers_as_categories_are_one_level_whatever_their_type(self):
        encoder = TableEncoder().fit(pd.DataFrame({"a": pd.Series([1, 2, 1], dtype="category")}))
        assert encoder.get_feature_names_out().tolist() == ["a=1", "a=2"]
        for values in ([1, 2], [1.0, 2.0], ["1", "2"]):
            np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"a": values})), np.eye(2))

    def test_rare_levels_share_a_column(self):
        values = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"] * 2
        encoder = TableEncoder(max_categories=2).fit(pd.DataFrame({"v": values}))
        assert encoder.get_feature_names_out().tolist() == ["v=a", "v=b", "v=(other)"]
        Z = encoder.transform(pd.DataFrame({"v": ["a", "d", "new"]}))
        np.testing.assert_array_equal(Z, [[1, 0, 0], [0, 0, 1], [0, 0, 1]])

    def test_at_most_as_many_levels_as_asked_for(self, rng):
        values = rng.integers(0, 200, 5000).astype(str)
        encoder = TableEncoder().fit(pd.DataFrame({"v": values}))
        kept, counts = np.unique(values, return_counts=True)
        assert len(encoder.get_feature_names_out()) == 51
        top = set(kept[np.argsort(-counts, kind="stable")][:50])
        assert {name[2:] for name in encoder.get_feature_names_out()[:-1]} == top

    @pytest.mark.parametrize(
        ("values", "what"),
        [
            (pd.date_range("2024-01-01", periods=3), "dates or times.*--drop 'a'"),
            ([datetime.date(2024, 1, 1)] * 3, "dates or times"),
            (pd.to_timedelta([1, 2, 3], unit="s"), "dates or times"),
            ([[1], [2], [3]], "objects of type list"),
            ([{}, {}, {}], "objects of type dict"),
            ([1j, 2j, 3j], "complex"),
        ],
    )
    def test_what_is_no_number_is_refused(self, values, what):
        with pytest.raises(TypeError, match=f"column 'a' holds .*{what}"):
            TableEncoder().fit(pd.DataFrame({"a": values}))
        encoder = TableEncoder().fit(pd.DataFrame({"a": [1.0, 2.0]}))
        with pytest.raises(TypeError, match=f"column 'a' holds .*{what}"):
            encoder.transform(pd.DataFrame({"a": values}))

    def test_identifiers_are_refused(self):
        frame = pd.DataFrame({"id": [f"row {i}" for i in range(100)]})
        with pytest.raises(
            ValueError, match=r"'id' has 100 different values in 100 rows, such as 'row 0'.*--drop 'id'"
        ):
            TableEncoder().fit(frame)
        TableEncoder().fit(frame[:50])  # few enough to be categories

    def test_numbers_with_a_word_among_them_are_refused_with_it(self):
        frame = pd.DataFrame({"a": [*map(str, range(100)), "n.a.?"]})
        with pytest.raises(ValueError, match=r"'a' is mostly numbers, but has text such as 'n\.a\.\?'"):
            TableEncoder().fit(frame)

    @pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
    def test_infinite_numbers_are_refused(self, value):
        frame = pd.DataFrame({"a": [1.0, value]})
        with pytest.raises(ValueError, match=r"column 'a' has an infinite or too large number, .* in row 1"):
            TableEncoder().fit(frame)
        with pytest.raises(ValueError, match="column 'a' has an infinite"):
            TableEncoder().fit(frame[:1]).transform(frame)

    def test_a_column_without_any_number(self):
        encoder = TableEncoder().fit(pd.DataFrame({"a": [np.nan, np.nan], "b": [1, 2]}))
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"a": [np.nan, 3.0], "b": [1, 2]}))[:, 1], [1, 0])

    def test_large_offsets_keep_their_digits(self):
        seconds = 1.7e9 + np.arange(100.0)
        Z = TableEncoder().fit_transform(pd.DataFrame({"t": seconds}))
        np.testing.assert_allclose(Z[:, 0], seconds - seconds.mean())

    def test_arrays(self, rng):
        X = rng.standard_normal((20, 3))
        X[3, 1] = np.nan
        encoder = TableEncoder().fit(X)
        assert encoder.get_feature_names_out().tolist() == ["x0", "x1", "x1=(missing)", "x2"]
        assert encoder.get_feature_names_out(["a", "b", "c"]).tolist() == ["a", "b", "b=(missing)", "c"]
        Z = encoder.transform(X)
        np.testing.assert_array_equal(Z[:, 0], X[:, 0].astype(np.float32))
        np.testing.assert_allclose(Z[3], [X[3, 0], np.nanmean(X[:, 1]), 1, X[3, 2]], rtol=1e-6)
        np.testing.assert_array_equal(TableEncoder().fit(pd.DataFrame(X)).transform(X), Z)  # names are numbers: none

    def test_arrays_after_frames(self, frame):
        numbers = frame[["width", "count"]]
        encoder = TableEncoder().fit(numbers)
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            Z = encoder.transform(numbers.to_numpy())
        np.testing.assert_array_equal(Z, encoder.transform(numbers))
        with pytest.raises(TypeError, match="columns of text such as 'colour', and needs data frames"):
            TableEncoder().fit(frame).transform(np.ones((2, 4)))

    def test_names(self, frame):
        with pytest.raises(ValueError, match="more than one column named 'a'"):
            TableEncoder().fit(pd.DataFrame([[1, 2]], columns=["a", "a"]))
        with pytest.raises(TypeError, match="column names are all text"):
            TableEncoder().fit(pd.DataFrame([[1, 2]], columns=["a", 1]))
        with pytest.raises(ValueError, match="input_features is not equal"):
            TableEncoder().fit(frame).get_feature_names_out(["a", "b", "c", "d"])
        with pytest.raises(ValueError, match="'max_categories' parameter of TableEncoder must be an int ≥ 1"):
            TableEncoder(max_categories=0).fit(frame)
        with pytest.raises(ValueError, match=r"0 sample\(s\)"):
            TableEncoder().fit(frame[:0])

    def test_set_output(self, frame):
        Z = TableEncoder().set_output(transform="pandas").fit_transform(frame)
        assert list(Z.columns)[:2] == ["width", "width=(missing)"]

    def test_pandas_is_not_needed_for_arrays(self):
        code = (
            "import sys; sys.modules['pandas'] = None; import numpy as np; from ntkit.tables import TableEncoder; "
            "print(TableEncoder().fit_transform(np.ones((2, 2))).shape)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.strip() == "(2, 2)"


class TestState:
    def test_round_trip_through_json(self, frame):
        frame = pd.concat([frame] * 3, ignore_index=True)
        for rows in (frame, frame[["count"]].to_numpy(dtype=float)):
            encoder = TableEncoder(max_categories=1).fit(rows)
            arrays, data = encoder._state()
            again = TableEncoder._from_state(arrays, json.loads(json.dumps(data, allow_nan=False)))
            np.testing.assert_array_equal(again.transform(rows), encoder.transform(rows))
            assert again.get_feature_names_out().tolist() == encoder.get_feature_names_out().tolist()
            assert again.get_params() == encoder.get_params()
            assert hasattr(again, "feature_names_in_") == hasattr(encoder, "feature_names_in_")
            assert clone(again).get_params() == encoder.get_params()

    @pytest.mark.parametrize(
        "change",
        [
            lambda s: s.arrays.pop("means"),
            lambda s: s.arrays.update(means=np.array([np.nan, 0.0, 0.0])),
            lambda s: s.arrays.update(means=np.zeros(2), offsets=np.zeros(2)),
            lambda s: s.arrays.update(means=np.zeros(4), offsets=np.zeros(4)),
            lambda s: s.arrays.update(means=np.array(["a", "b", "c"])),
            lambda s: s.arrays.update(means=np.zeros((3, 1)), offsets=np.zeros((3, 1))),
            lambda s: s.data.update(columns=[]),
            lambda s: s.data.update(columns=None),
            lambda s: s.data.update(named="yes"),
            lambda s: s.data.update(max_categories=0),
            lambda s: s.data.pop("max_categories"),
            lambda s: s.data["columns"][0].update(kind="code"),
            lambda s: s.data["columns"][0].update(name=3),
            lambda s: s.data["columns"][0].update(name="count"),
            lambda s: s.data["columns"][1].update(levels=["a", "a"]),
            lambda s: s.data["columns"][1].update(levels=[1]),
            lambda s: s.data["columns"][1].update(levels="ab"),
            lambda s: s.data["columns"][1].pop("other"),
        ],
    )
    def test_nonsense_is_refused(self, frame, change):
        arrays, data = TableEncoder().fit(frame)._state()
        change(SimpleNamespace(arrays=arrays, data=data))
        with pytest.raises(ValueError, match="not the state of a TableEncoder"):
            TableEncoder._from_state(arrays, data)


class TestReading:
    def test_csv(self, frame, tmp_path):
        for name, sep in (("a.csv", ","), ("a.csv.gz", ","), ("a.tsv", "\t"), ("b.csv", ";")):
            frame.to_csv(tmp_path / name, index=False, sep=sep)
            X, y = read_table(tmp_path / name, "count")
            pd.testing.assert_frame_equal(X, frame.drop(columns="count"))
            np.testing.assert_array_equal(y, [1, 2, 3, 4])
        X, y = read_table(tmp_path / "a.csv")
        assert y is None
        assert list(X.columns) == list(frame.columns)
        X, _ = read_table(tmp_path / "a.csv", "count", drop=["width", "open"])
        assert list(X.columns) == ["colour"]
        X, _ = read_table(tmp_path / "a.csv", text={"count", "nothing"})
        assert X["count"].tolist() == ["1", "2", "3", "4"]

    def test_one_column(self, tmp_path):
        (tmp_path / "a.csv").write_text("a\n1\n2\n")
        assert read_table(tmp_path / "a.csv")[0]["a"].tolist() == [1, 2]

    def test_byte_order_mark_and_quoted_names(self, tmp_path):
        (tmp_path / "a.csv").write_text('"a, b";"c"\n1;2\n'.replace(";", ","), encoding="utf-8-sig")
        assert list(read_table(tmp_path / "a.csv")[0].columns) == ["a, b", "c"]

    def test_row_numbers_are_left_out(self, frame, tmp_path):
        frame.to_csv(tmp_path / "a.csv")
        with pytest.warns(UserWarning, match="no name and is taken for row numbers"):
            X, _ = read_table(tmp_path / "a.csv", "count")
        assert list(X.columns) == ["width", "colour", "open"]

    def test_parquet(self, frame, tmp_path):
        frame.to_parquet(tmp_path / "a.parquet")
        X, y = read_table(tmp_path / "a.parquet", "colour", drop_missing_target=True)
        assert list(X.columns) == ["width", "open", "count"]
        assert y.tolist() == ["red", "blue", "red"]
        assert len(X) == 3

    def test_npz(self, rng, tmp_path):
        X, y = rng.standard_normal((5, 2)), np.arange(5)
        np.savez(tmp_path / "a.npz", X=X, y=y, z=y + 1)
        for target, want in (("y", y), ("z", y + 1)):
            got = read_table(tmp_path / "a.npz", target)
            np.testing.assert_array_equal(got[0], X)
            np.testing.assert_array_equal(got[1], want)
        np.savez(tmp_path / "b.npz", X_train=X, y_train=y, X_test=X[:3], y_test=y[:3])
        assert len(read_table(tmp_path / "b.npz", "y")[0]) == 5
        assert len(read_table(tmp_path / "b.npz", "y_test")[0]) == 3
        assert len(read_table(tmp_path / "b.npz")[0]) == 3
        np.savez(tmp_path / "c.npz", rows=X, more=y)
        assert read_table(tmp_path / "c.npz")[0].shape == (5, 2)

    @pytest.mark.parametrize(
        ("name", "content", "target", "what"),
        [
            ("a.csv", b"", "y", "is empty"),
            ("a.csv", b"a,y\n", "y", "has no rows"),
            ("a.csv", b"y\n1\n", "y", "has no columns to learn from"),
            ("a.csv", b"a,b,a\n1,2,3\n", "b", "more than one column named 'a'"),
            ("a.csv", b"a,b\n1,2,3\n4,5,6\n", "b", "more fields than its first line has names"),
            ("a.csv", b"a,b\n1,2\n1,2,3\n", "b", "Cannot read"),
            ("a.csv", b"a,b\xff\n1,2\n", "b", "not UTF-8"),
            ("a.csv.gz", b"no gzip", "b", "Cannot read|gzip"),
            ("a.parquet", b"no parquet", "b", "as Parquet"),
            ("a.npz", b"no zip", "b", "Cannot read '.*' as NPZ|pickled|not read for safety"),
            ("a.xlsx", b"", "b", "Cannot tell what kind of table.*should end in .csv"),
            ("a.csv", b"a,Price\n1,2\n", "price", r"has no column 'price'\. Did you mean 'Price'\? It has: a, Price\."),
            ("a.csv", b"a,y\n1,\n2,\n", "y", "missing in all 2 rows"),
            ("a.csv", b"a,y\n1,\n2,3\n", "y", "missing in 1 of 2 rows. Say --drop-missing-target"),
            ("a.csv", b"a,y\n1,inf\n2,3\n", "y", "is infinite in 1 rows"),
        ],
    )
    def test_errors(self, tmp_path, name, content, target, what):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises((ValueError, OSError), match=what):
            read_table(path, target)

    def test_errors_of_names(self, frame, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"'.*none.csv' does not exist"):
            read_table(tmp_path / "none.csv")
        with pytest.raises(FileNotFoundError, match="is a folder"):
            read_table(tmp_path)
        frame.to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(ValueError, match="has no column 'heigth'"):
            read_table(tmp_path / "a.csv", drop=["heigth"])
        with pytest.raises(ValueError, match="'width' is the target and cannot be dropped"):
            read_table(tmp_path / "a.csv", "width", drop=["width"])
        many = pd.DataFrame(np.ones((1, 60)), columns=[f"c{i}" for i in range(60)])
        many.to_csv(tmp_path / "many.csv", index=False)
        with pytest.raises(ValueError, match="c39 and 20 more"):
            read_table(tmp_path / "many.csv", "target")

    def test_errors_of_npz(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, X=np.ones((3, 2, 2)), y=np.arange(3), w=np.arange(2), o=np.array([{}], dtype=object))
        with pytest.raises(ValueError, match=r"'X' .* must have two axes"):
            read_table(path, "y")
        with pytest.raises(ValueError, match=r"has no array 'Y'. Did you mean 'y'"):
            read_table(path, "Y")
        with pytest.raises(ValueError, match="Python objects, which are not read for safety"):
            read_table(path, "o")
        with pytest.raises(ValueError, match="columns cannot be dropped"):
            read_table(path, "y", drop=["a"])
        np.savez(path, X=np.ones((3, 2)), w=np.arange(2))
        with pytest.raises(ValueError, match=r"'w' .* one value for each of the 3 rows"):
            read_table(path, "w")
        np.savez(path, a=np.ones((3, 2)), b=np.ones((3, 2)), y=np.ones(3))
        for target in (None, "y"):
            with pytest.raises(ValueError, match="needs an array 'X'"):
                read_table(path, target)

    def test_missing_targets_can_be_left_out(self, tmp_path):
        (tmp_path / "a.csv").write_text("a,y\n1,\n2,3\n3,4\n")
        X, y = read_table(tmp_path / "a.csv", "y", drop_missing_target=True)
        assert X["a"].tolist() == [2, 3]
        assert y.dtype.kind == "f"
        np.savez(tmp_path / "a.npz", X=np.arange(6.0).reshape(3, 2), y=np.array([np.nan, 1, 2]))
        X, y = read_table(tmp_path / "a.npz", "y", drop_missing_target=True)
        assert X[0, 0] == 2
        assert y.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (np.array(["a", "b"]), "classification"),
        (np.array(["a", "b"], dtype=object), "classification"),
        (np.array([True, False]), "classification"),
        (np.array([0.0, 1.0] * 5), "classification"),
        (np.array([0.5, 1.0]), "regression"),
        (np.arange(1000) % 20, "classification"),
        (np.arange(1000) % 21, "regression"),
        (np.arange(50) % 3, "regression"),
        (np.arange(60) % 3, "classification"),
        (np.array([1, 2, 3.5], dtype=object), "regression"),
    ],
)
def test_infer_task(y, task):
    assert infer_task(y) == task


def test_infer_task_refuses_dates_and_objects():
    with pytest.raises(TypeError, match="dates or times"):
        infer_task(np.array(["2024-01-01"], dtype="datetime64[D]"))
    with pytest.raises(TypeError, match="dates or times"):
        infer_task(np.array([datetime.date(2024, 1, 1)], dtype=object))
    with pytest.raises(TypeError, match="numbers or text"):
        infer_task(np.array([[1], [2, 3]], dtype=object))
