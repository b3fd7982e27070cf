from __future__ import annotations

import datetime
import gc
import subprocess
import sys
from contextlib import nullcontext
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ntkit.tables import TableEncoder, infer_task, read_frames, read_table


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
        with pytest.warns(UserWarning, match=r"has not seen in the column 'colour' \('green'\): "):
            Z = encoder.transform(new)
        np.testing.assert_array_equal(Z, [[2, 0, 0, 0, 0, 1, 2.5]])

    def test_missing_columns_are_named(self, frame):
        encoder = TableEncoder().fit(frame)
        with pytest.raises(ValueError, match="lacks the columns 'colour', 'count', which the training table has"):
            encoder.transform(frame[["width", "open"]])

    def test_text_among_numbers_is_named(self, frame):
        encoder = TableEncoder().fit(frame)
        bad = frame.assign(count=["1", "2", "three", "4"])
        with pytest.raises(ValueError, match=r"column 'count' must hold numbers.* Got 'three' in row 2"):
            encoder.transform(bad)
        with pytest.raises(ValueError, match=r"Got 'three' in row 2 \(counted from 0\)"):
            encoder.transform(bad[1:])  # the row of the whole table
        good = frame.assign(count=["1", "2", "3", "4"])
        np.testing.assert_array_equal(encoder.transform(good), encoder.transform(frame))

    @pytest.mark.parametrize(
        ("values", "dtypes", "encoded"),
        [
            (["x", None, "y", "x"], ["object", "str", "category", "string[pyarrow]"],
             [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]),
            ([1, None, 3], ["Int64", "int64[pyarrow]", "float32", "object"], [[1, 0], [2, 1], [3, 0]]),
            ([Decimal(1), None, np.float64(3)], ["object"], [[1, 0], [2, 1], [3, 0]]),
            ([True, False], ["bool", "boolean", "object"], [[1], [0]]),
        ],
    )  # fmt: skip
    def test_kinds_of_columns(self, values, dtypes, encoded):
        for dtype in dtypes:
            frame = pd.DataFrame({"a": pd.Series(values, dtype=dtype)})
            np.testing.assert_array_equal(TableEncoder().fit_transform(frame), encoded, err_msg=dtype)

    def test_numbers_as_categories_are_one_level_for_any_type(self):
        encoder = TableEncoder().fit(pd.DataFrame({"a": pd.Series([1, 2, 1], dtype="category")}))
        assert encoder.get_feature_names_out().tolist() == ["a=1", "a=2"]
        for values in ([1, 2], [1.0, 2.0], ["1", "2"]):
            np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"a": values})), np.eye(2))

    def test_rare_levels_share_a_column(self):
        values = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"] * 2
        encoder = TableEncoder(max_categories=2).fit(pd.DataFrame({"v": values}))
        assert encoder.get_feature_names_out().tolist() == ["v=a", "v=b", "v=(other)"]
        encoder.transform(pd.DataFrame({"v": ["a", "d"]}))  # rare, but seen: no warning
        with pytest.warns(UserWarning, match="'v' \\('new'\\)"):
            Z = encoder.transform(pd.DataFrame({"v": ["a", "d", "new"]}))
        np.testing.assert_array_equal(Z, [[1, 0, 0], [0, 0, 1], [0, 0, 1]])

    def test_number_of_levels_is_limited(self, rng):
        values = np.char.add("v", rng.integers(0, 200, 5000).astype(str))
        encoder = TableEncoder().fit(pd.DataFrame({"v": values}))
        kept, counts = np.unique(values, return_counts=True)
        assert len(encoder.get_feature_names_out()) == 51
        top = set(kept[np.argsort(-counts, kind="stable")][:50])
        assert {name[2:] for name in encoder.get_feature_names_out()[:-1]} == top

    @pytest.mark.parametrize(
        ("values", "what"),
        [
            ([[1], [2], [3]], r"objects of type list.*drop\(columns=\['a'\]\)"),
            ([datetime.time(12)] * 3, "objects of type time"),
            ([{}, {}, {}], "objects of type dict"),
            ([1j, 2j, 3j], "complex"),
        ],
    )
    def test_values_that_are_not_numbers_are_refused(self, values, what):
        with pytest.raises(TypeError, match=f"column 'a' holds .*{what}"):
            TableEncoder().fit(pd.DataFrame({"a": values}))
        encoder = TableEncoder().fit(pd.DataFrame({"a": [1.0, 2.0]}))
        with pytest.raises(TypeError, match=f"column 'a' holds .*{what}"):
            encoder.transform(pd.DataFrame({"a": values}))

    def test_identifiers_are_not_used(self):
        frame = pd.DataFrame({"id": [f"row {i}" for i in range(100)], "a": np.arange(100.0)})
        what = r"'id' has 100 different values in 100 rows, such as 'row 0'.*drop\(columns=\['id'\]\)"
        with pytest.warns(UserWarning, match=what):
            encoder = TableEncoder().fit(frame)
        assert encoder.get_feature_names_out().tolist() == ["a"]
        np.testing.assert_array_equal(encoder.transform(frame[["a"]])[:, 0], frame["a"])  # nor needed
        with (
            pytest.warns(UserWarning, match="'id' has"),
            pytest.raises(ValueError, match="no column to learn from: 'id'"),
        ):
            TableEncoder().fit(frame[["id"]])
        TableEncoder().fit(frame[:50])  # few enough to be categories

    def test_keys_are_used_with_a_warning(self, rng):
        keys = np.cumsum(rng.integers(1, 5, 60))
        with pytest.warns(UserWarning, match="'k' holds whole numbers that increase"):
            encoder = TableEncoder().fit(pd.DataFrame({"k": keys}))
        assert encoder.get_feature_names_out().tolist() == ["k"]
        TableEncoder().fit(pd.DataFrame({"k": rng.permutation(keys)}))  # in no order
        TableEncoder().fit(pd.DataFrame({"k": keys[:40]}))  # few

    @pytest.mark.parametrize(
        ("texts", "numbers"),
        [
            (["1,5", "2", "-1.234,75", None], [1.5, 2, -1234.75, np.nan]),
            (["1.5", "2e3", " 7 ", None], [1.5, 2000, 7, np.nan]),
            (["1,234.5", "12,345,678", None], [1234.5, 12345678, np.nan]),
            (["0,125", "3,141"], [0.125, 3.141]),
        ],
    )
    def test_numbers_as_text(self, texts, numbers):
        encoder = TableEncoder().fit(pd.DataFrame({"a": texts}))
        mean = np.nanmean(numbers)
        Z = encoder.transform(pd.DataFrame({"a": texts}))
        np.testing.assert_allclose(Z[:, 0], np.where(np.isnan(numbers), mean, numbers), rtol=1e-6)
        assert (encoder.text_columns_ == ["a"]) == any("," in (text or "") for text in texts)
        with pytest.raises(ValueError, match=r"column 'a' must hold numbers, .* Got 'one' in row 0"):
            encoder.transform(pd.DataFrame({"a": ["one"]}))
        again = encoder.transform(pd.DataFrame({"a": [4.5]}))  # numbers that are numbers by now
        assert again[0, 0] == 4.5

    def test_commas_that_can_mean_two_things(self):
        frame = pd.DataFrame({"a": ["1,234", "5,678"]})
        with pytest.warns(UserWarning, match="'a', such as '1,234', can be read in two ways"):
            Z = TableEncoder().fit_transform(frame)
        np.testing.assert_array_equal(Z[:, 0], [1234, 5678])

    def test_codes_stay_text(self):
        encoder = TableEncoder().fit(pd.DataFrame({"a": ["007", "12", "07"], "b": ["1", "2", "1"]}))
        assert encoder.get_feature_names_out().tolist() == ["a=007", "a=07", "a=12", "b=1", "b=2"]

    @pytest.mark.parametrize(
        "form", ["", "%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%SZ", "%d.%m.%Y", "%m/%d/%Y %H:%M", "date"]
    )
    def test_dates(self, form):
        """Against a naive reference: the parts of each date by the standard library."""
        days = pd.date_range("2023-03-30 06:00", periods=40, freq="53h").to_series(index=range(40))
        days[7] = pd.NaT
        column = days.dt.strftime(form) if "%" in form else days.dt.date if form == "date" else days
        encoder = TableEncoder().fit(pd.DataFrame({"d": column}))
        whole = form == "date" or ("%" in form and "%H" not in form)
        there = days.dropna()
        exact = there.dt.normalize() if whole else there
        mean = np.mean([t.timestamp() for t in exact]) / 86400
        expected = {}
        expected["d=years"] = [(t.timestamp() / 86400 - mean) / 365.2425 for t in exact]
        second = [t.hour * 3600 + t.minute * 60 for t in exact]
        angles = {
            "season": [(t.timetuple().tm_yday - 1 + s / 86400) / 365.2425 for t, s in zip(exact, second, strict=True)],
            "weekday": [t.weekday() / 7 for t in exact],
            "time": [s / 86400 for s in second],
        }
        for name, turns in angles.items():
            for end, law in (("sin", np.sin), ("cos", np.cos)):
                expected[f"d={name} {end}"] = law(2 * np.pi * np.array(turns))
        expected["d=weekend"] = [t.weekday() >= 5 for t in exact]
        names = encoder.get_feature_names_out().tolist()
        assert set(names) == {*(name for name in expected if not (whole and "time" in name)), "d=(missing)"}
        Z = encoder.transform(pd.DataFrame({"d": column}))
        for i, name in enumerate(names[:-1]):
            np.testing.assert_allclose(Z[there.index, i], expected[name], atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(Z[:, -1], days.isna())
        assert (Z[7, :-1] == 0).all()
        assert encoder.text_columns_ == (["d"] if "%" in form else [])

    def test_dates_are_read_in_one_way(self):
        frame = pd.DataFrame({"d": ["01/02/2024", "03/04/2024"]})
        with pytest.warns(
            UserWarning, match="'d', such as '01/02/2024', can be read in two ways.*31/12/2024 or 12/31/2024"
        ):
            TableEncoder().fit(frame)
        encoder = TableEncoder().fit(pd.DataFrame({"d": ["01/31/2024", "02/01/2024"]}))
        with pytest.raises(
            ValueError, match=r"'d' must hold dates written like 12/31/2024.* Got '31/01/2024' in row 1"
        ):
            encoder.transform(pd.DataFrame({"d": ["02/03/2024", "31/01/2024"]}))
        dates = TableEncoder().fit(pd.DataFrame({"d": pd.to_datetime(["2024-01-01", "2024-05-02"])}))
        np.testing.assert_array_equal(
            dates.transform(pd.DataFrame({"d": ["2024-05-02", None]})),
            dates.transform(pd.DataFrame({"d": pd.to_datetime(["2024-05-02", None])})),
        )
        with pytest.raises(ValueError, match=r"'d' must hold dates written like 2024-12-31.* Got 'May' in row 0"):
            dates.transform(pd.DataFrame({"d": ["May"]}))
        with pytest.raises(TypeError, match=r"'d' must hold dates, as in the training table\. Got dtype int64"):
            dates.transform(pd.DataFrame({"d": [3]}))
        number = TableEncoder().fit(pd.DataFrame({"d": [1.0, 2.0]}))
        with pytest.raises(TypeError, match="'d' holds dates, but held numbers"):
            number.transform(pd.DataFrame({"d": pd.to_datetime(["2024-01-01"])}))

    def test_durations_are_days(self):
        for column in (
            pd.to_timedelta([12, 36], unit="h"),
            [datetime.timedelta(hours=12), datetime.timedelta(hours=36)],
        ):
            Z = TableEncoder().fit_transform(pd.DataFrame({"t": column}))
            np.testing.assert_array_equal(Z[:, 0], [0.5, 1.5])

    def test_polars(self, frame):
        polars = pytest.importorskip("polars")
        days = [datetime.date(2024, 1, 1 + 9 * i) for i in range(4)]
        frame = frame.assign(day=pd.to_datetime(days))
        other = polars.DataFrame(
            {"width": [1.0, None, 3.0, 8.0], "colour": ["red", "blue", None, "red"]}
            | {name: frame[name].tolist() for name in ("open", "count")}
            | {"day": days}
        )
        encoder = TableEncoder().fit(other)
        np.testing.assert_allclose(encoder.transform(other), TableEncoder().fit_transform(frame), atol=1e-6)
        np.testing.assert_allclose(encoder.transform(frame), encoder.transform(other), atol=1e-6)

    def test_arrays_with_text(self):
        X = np.array([["red", 1.5], ["blue", 2.5], [None, 0.5]], dtype=object)
        encoder = TableEncoder().fit(X)
        assert encoder.get_feature_names_out().tolist() == ["x0=blue", "x0=red", "x0=(missing)", "x1"]
        np.testing.assert_array_equal(encoder.transform(X)[:, 3], [1.5, 2.5, 0.5])

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
        with pytest.raises(TypeError, match="columns of text or dates such as 'colour', and needs data frames"):
            TableEncoder().fit(frame).transform(np.ones((2, 4)))

    @pytest.mark.parametrize(
        ("options", "X", "kind", "what"),
        [
            ({}, pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "more than one column named 'a'"),
            ({}, pd.DataFrame([[1, 2]], columns=["a", 1]), TypeError, "column names are all text"),
            ({}, pd.DataFrame({"a": []}), ValueError, r"0 sample\(s\)"),
            ({"max_categories": 0}, np.ones((1, 1)), ValueError,
             "'max_categories' parameter of TableEncoder must be an int ≥ 1"),
        ],
    )  # fmt: skip
    def test_errors(self, options, X, kind, what):
        with pytest.raises(kind, match=what):
            TableEncoder(**options).fit(X)

    def test_wrong_names(self, frame):
        with pytest.raises(ValueError, match="input_features is not equal"):
            TableEncoder().fit(frame).get_feature_names_out(["a", "b", "c", "d"])

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


class TestReading:
    @pytest.mark.parametrize(
        ("name", "separator"),
        [
            ("a.csv", ","), ("A.CSV", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.csv.gz", ","), ("a.csv.gz", ";"),
            ("a.tsv", "\t"), ("a.tsv.gz", "\t"), ("a.txt", ";"), ("a.parquet", None), ("a.pq", None),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("row_numbers", [False, True])
    def test_a_file_is_one_table_whole_and_in_blocks(self, frame, tmp_path, name, separator, row_numbers):
        path = tmp_path / name
        if separator is None:
            frame.to_parquet(path, index=row_numbers)
        else:
            frame.to_csv(path, index=row_numbers, sep=separator)
        note = "'.*' has no name. It is taken for row numbers and left out"
        expect = partial(pytest.warns, UserWarning, match=note) if row_numbers and separator else nullcontext
        with expect():
            whole, y = read_table(path, "count")
        pd.testing.assert_frame_equal(whole, frame.drop(columns="count"))
        np.testing.assert_array_equal(y, [1, 2, 3, 4])
        with expect():
            blocks = list(read_frames(path, 3))
        assert [block.index.tolist() for block in blocks] == [[0, 1, 2], [3]]
        pd.testing.assert_frame_equal(pd.concat(blocks), frame)

    def test_columns_of_csv(self, frame, tmp_path):
        frame.to_csv(tmp_path / "a.csv", index=False)
        X, y = read_table(tmp_path / "a.csv")
        assert y is None
        assert list(X.columns) == list(frame.columns)
        X, _ = read_table(tmp_path / "a.csv", "count", drop=["width", "open"])
        assert list(X.columns) == ["colour"]
        X, _ = read_table(tmp_path / "a.csv", text={"count", "nothing"})
        assert X["count"].tolist() == ["1", "2", "3", "4"]

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("a\n1\n", ["a"]),
            ('"a, b","c;d"\n1,2\n', ["a, b", "c;d"]),
            ('"a, b";"c"\n1;2\n', ["a, b", "c"]),
            ('"a;b"\t"c, d"\n1\t2\n', ["a;b", "c, d"]),
            ("\n\na;b\n1;2\n", ["a", "b"]),
            ("width, cm;b\n1,5;2\n2,5;3\n", ["width, cm", "b"]),
            ("a,b;c\n1,2\n", ["a", "b;c"]),
            ('a,b\n"x;y",2\n', ["a", "b"]),
        ],
    )
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
    def test_names_and_separators(self, tmp_path, text, names, encoding):
        path = tmp_path / "a.csv"
        path.write_text(text, encoding=encoding)
        assert list(read_table(path)[0].columns) == list(next(read_frames(path, 5)).columns) == names

    def test_blocks_have_one_type_in_a_column(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("code,n,gone\nx,1,\n007,,\n12,3,text\n")
        blocks = list(read_frames(path, 2))
        assert [value for block in blocks for value in block["code"]] == ["x", "007", "12"]
        np.testing.assert_array_equal(pd.concat(blocks)["n"], [1, np.nan, 3])
        assert blocks[1]["gone"].tolist() == ["text"]
        path.write_text("n\n1\n2\n3\nthree\n")
        with pytest.raises(
            ValueError, match=r"'n' of '.*a.csv' begins with numbers.* 'three' in row 3 \(counted from 0"
        ):
            list(read_frames(path, 2))
        assert read_table(path)[0]["n"].tolist() == ["1", "2", "3", "three"]

    def test_decimal_commas(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("a;b;c;y\n1,5;x;1,234;0,5\n;y;7,000;1,5\n-1.234,75;1,5;1,111;2\n")
        X, y = read_table(path, "y")
        np.testing.assert_array_equal(X["a"], [1.5, np.nan, -1234.75])
        np.testing.assert_array_equal(X["c"], [1.234, 7, 1.111])  # commas have no other meaning here
        assert X["b"].tolist() == ["x", "y", "1,5"]
        np.testing.assert_array_equal(y, [0.5, 1.5, 2])
        assert infer_task(y) == "regression"
        blocks = list(read_frames(path, 2))
        np.testing.assert_array_equal(pd.concat(blocks)["a"], X["a"])
        assert read_table(path, text=["a"])[0]["a"].tolist()[0] == "1,5"
        path.write_text("a;b\n1,5;2\n2,5;3\none;4\n")
        with pytest.raises(
            ValueError, match=r"'a' of '.*a.csv' has numbers with decimal commas, but the text 'one' in row 2"
        ):
            list(read_frames(path, 2))

    @pytest.mark.parametrize(
        ("text", "line"),
        [("a,b,c\n1,2,3\n4,5\n", 3), ("a;b\n1;2\n3", 3), ('a,b\n"x\ny",\nz\n', 4), ("a,b,c\n1,2\n4,5,6\n", 2)],
    )
    def test_short_rows(self, tmp_path, text, line):
        path = tmp_path / "a.csv"
        path.write_text(text)
        for read in (read_table, lambda path: list(read_frames(path, 1))):
            with pytest.raises(ValueError, match=rf"Line {line} of '.*a.csv' has \d fields?, but the first line has"):
                read(path)
        path.write_text("a,b\n1,\n\n,2\n")  # only values are missing here
        assert len(read_table(path)[0]) == 2

    def test_codes_as_targets(self, tmp_path):
        path = tmp_path / "a.csv"
        for text, labels in (("007,1\n01,2\n", ["007", "01"]), ("7,1\n10,2\n", [7, 10]), ("0,1\n10,2\n", [0, 10])):
            path.write_text("y,a\n" + text)
            assert read_table(path, "y")[1].tolist() == labels

    def test_blocks_of_empty_and_broken_files(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("a,b\n")
        assert [frame.shape for frame in read_frames(path, 2)] == [(0, 2)]
        path.write_text("a,b\n1,2\n1,2\n1,2\n1,2,3\n")
        with pytest.raises(ValueError, match=r"Line 5 of '.*a.csv' has 3 fields, but 2 are expected"):
            list(read_frames(path, 2))
        with pytest.raises(FileNotFoundError, match=r"none\.csv"):
            list(read_frames(tmp_path / "none.csv", 2))
        with pytest.raises(ValueError, match=r"kind of table '.*a.npz' is. Its name should end in .csv"):
            read_frames(tmp_path / "a.npz", 2)

    def test_parquet_without_missing_targets(self, frame, tmp_path):
        frame.to_parquet(tmp_path / "a.parquet")
        X, y = read_table(tmp_path / "a.parquet", "colour", drop_missing_target=True)
        assert list(X.columns) == ["width", "open", "count"]
        assert y.tolist() == ["red", "blue", "red"]
        assert len(X) == 3

    @pytest.mark.parametrize(
        ("arrays", "target", "rows", "labels"),
        [
            (("X", "y", "z"), "y", "X", "y"),
            (("X", "y", "z"), "z", "X", "z"),
            (("X_train", "y_train", "X_test", "y_test"), "y", "X_train", "y_train"),
            (("X_train", "y_train", "X_test", "y_test"), "y_test", "X_test", "y_test"),
            (("X_train", "y_train", "X_test", "y_test"), None, "X_test", None),
            (("X_some", "more"), None, "X_some", None),
        ],
    )
    def test_npz(self, rng, tmp_path, arrays, target, rows, labels):
        values = {name: rng.standard_normal((5, 2) if name.startswith("X") else 5) for name in arrays}
        np.savez(tmp_path / "a.npz", **values)
        X, y = read_table(tmp_path / "a.npz", target)
        np.testing.assert_array_equal(X, values[rows])
        assert y is None if labels is None else (y == values[labels]).all()

    @pytest.mark.parametrize(
        ("name", "content", "target", "what"),
        [
            ("a.csv", b"", "y", "is empty"),
            ("a.csv", b"a,y\n", "y", "has no rows"),
            ("a.csv", b"y\n1\n", "y", "has no columns to learn from"),
            ("a.csv", b"a,b,a\n1,2,3\n", "b", "more than one column named 'a'"),
            ("a.csv", b"a,b\n1,2,3\n4,5,6\n", "b", "Rows of '.*a.csv' have more fields than its first line has names"),
            ("a.csv", b"a,b\n1,2\n1,2,3\n", "b", r"Line 3 of '.*a.csv' has 3 fields, but 2 are expected"),
            ("a.csv", b"a,b\xff\n1,2\n", "b", "not UTF-8"),
            ("a.csv.gz", b"no gzip", "b", r"Cannot read '.*a.csv.gz'.*gzip"),
            ("a.parquet", b"no parquet", "b", "as Parquet"),
            ("a.npz", b"no zip", "b", "Cannot read '.*' as NPZ|pickled|not loaded for safety"),
            ("a.xlsx", b"", "b", "Cannot tell what kind of table.*should end in .csv"),
            ("a.csv", b"a,Price\n1,2\n", "price", r"has no column 'price'\. Did you mean 'Price'\? It has: a, Price\."),
            ("a.csv", b"a,y\n1,\n2,\n", "y", "missing in all 2 rows"),
            ("a.csv", b"a,y\n1,\n2,3\n", "y", r"missing in 1 of 2 rows, first in row 0 .*drop_missing_target=True"),
            ("a.csv", b"a,y\n2,3\n1,inf\n", "y", "is infinite in 1 rows, first in row 1 "),
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

    @pytest.mark.parametrize(
        ("arrays", "target", "what"),
        [
            ({"X": np.ones((3, 2, 2)), "y": np.arange(3)}, "y", r"'X' .* must have two axes"),
            ({"X": np.ones((3, 2)), "y": np.arange(3)}, "Y", "has no array 'Y'. Did you mean 'y'"),
            (
                {"X": np.ones((1, 2)), "o": np.array([{}], dtype=object)},
                "o",
                "Python objects, which are not loaded for",
            ),
            ({"X": np.ones((3, 2)), "w": np.arange(2)}, "w", r"'w' .* one value for each of the 3 rows"),
            ({"a": np.ones((3, 2)), "b": np.ones((3, 2)), "y": np.ones(3)}, "y", "needs an array 'X'"),
            ({"a": np.ones((3, 2)), "b": np.ones((3, 2)), "y": np.ones(3)}, None, "needs an array 'X'"),
        ],
    )
    def test_errors_of_npz(self, tmp_path, arrays, target, what):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=what):
            read_table(tmp_path / "a.npz", target)
        with pytest.raises(ValueError, match="columns cannot be dropped"):
            read_table(tmp_path / "a.npz", target, drop=["a"])

    def test_damaged_npz(self, rng, tmp_path):
        """Errors are ours, and files are closed."""
        np.savez(tmp_path / "a.npz", X=rng.standard_normal((60, 2)), y=np.ones(60))
        data = (tmp_path / "a.npz").read_bytes()
        magic, method = data.index(b"\x93NUMPY"), data.index(b"PK\x01\x02") + 10
        for bad in (data[:-40], data[:magic] + b"x" + data[magic + 1 :], data[:method] + b"\x09" + data[method + 1 :]):
            (tmp_path / "b.npz").write_bytes(bad)
            with pytest.raises(ValueError, match=r"Cannot read '.*b.npz' as NPZ|b.npz'"):
                read_table(tmp_path / "b.npz", "y")
        gc.collect()  # warnings about open files are errors

    def test_long_names_in_messages(self, tmp_path):
        (tmp_path / "a.csv").write_text("a" * 10_000 + ",b\n1,2\n")
        with pytest.raises(ValueError, match=r"no column 'y'.* It has: a{59}…, b\.$"):
            read_table(tmp_path / "a.csv", "y")

    def test_text_in_blocks(self, tmp_path):
        """Columns that are said to be text keep zeros and spaces in all blocks."""
        (tmp_path / "a.csv").write_text("code,x\n" + "007,1\n" * 5)
        frames = list(read_frames(tmp_path / "a.csv", 2, text=["code"]))
        assert [value for frame in frames for value in frame["code"]] == ["007"] * 5

    def test_rows_with_missing_targets_can_be_dropped(self, tmp_path):
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
