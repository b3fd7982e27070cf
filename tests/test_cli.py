from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import ntkit as package
from ntkit.cli import comparison, data, demo, main, page
from ntkit.cli.commands import candidates

SMALL = ["--components", "128", "--time-budget", "5"]


@pytest.fixture
def ntkit(capsys):
    """Run a command in this process."""

    def run(*arguments, code=0):
        capsys.readouterr()
        found = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        return SimpleNamespace(out=out, err=err, report=json.loads(out) if "--json" in arguments and not code else None)

    return run


def run_process(*arguments):
    command = [sys.executable, "-m", "ntkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout  # no colours
    return done.stdout


def on_a_terminal(*arguments, interrupt="", environment=None):
    """Return the terminal output of a command and its exit code; send Ctrl-C as soon as it shows `interrupt`."""
    main_end, other_end = os.openpty()
    termios.tcsetwinsize(other_end, (40, 120))
    process = subprocess.Popen(
        [sys.executable, "-m", "ntkit", *arguments],
        stdin=other_end, stdout=other_end, stderr=other_end, start_new_session=True,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    os.close(other_end)
    screen = b""
    while True:
        try:
            part = os.read(main_end, 65536)
        except OSError:  # how Linux signals the end
            break
        if not part:
            break
        screen += part
        if interrupt and interrupt.encode() in screen:
            process.send_signal(signal.SIGINT)
            interrupt = ""
    os.close(main_end)
    return screen.decode(errors="replace"), process.wait(timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables for regression and classification, and models of them."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "width": rng.uniform(-2, 2, n),
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 1, n)),
            "code": rng.choice(["007", "12", "x"], n),
            "id": [f"row {i}" for i in range(n)],
        }
    )
    frame["price"] = frame["width"] ** 2 + (frame["code"] == "007") + 0.05 * rng.standard_normal(n)
    frame["sort"] = np.where(frame["width"] > 0, "large", "small").astype(object)
    frame.to_csv(folder / "train.csv", index=False)
    frame.drop(columns="id").to_parquet(folder / "train.parquet")
    X = frame[["width", "age"]].to_numpy()
    np.savez(folder / "train.npz", X=X, y=np.digitize(X[:, 0], [-1, 1]))
    for name, target, model, *options in (
        ("train.csv", "price", "price.ntkit", "--drop", "id", "--drop", "sort", "--statistics", "--seed", "1"),
        ("train.parquet", "sort", "sort.ntkit", "--drop", "price", "--kernel", "linear"),
    ):
        fit = ["fit", str(folder / name), "-t", target, "-o", str(folder / model), "--quiet"]
        assert main([*fit, *options, *SMALL]) == 0
    return folder


@pytest.mark.thorough
def test_fit_predict_and_evaluate_in_processes(folder, tmp_path):
    data, model, predictions = folder / "train.npz", tmp_path / "m.ntkit", tmp_path / "p.csv"
    out = run_process("fit", data, "--target", "y", "--output", model, "--kernel", "ntk", *SMALL)
    assert "Task: classification, because the target has 3 distinct whole numbers in 400 rows" in out
    assert "--task regression" in out
    assert re.search(r"^kernel +round +rows features +error +alpha seconds$", out, re.M)
    assert "Chosen: ntk depth=" in out
    accuracy, constant = map(float, re.search(r"^accuracy +([\d.]+) +([\d.]+)$", out, re.M).groups())
    assert accuracy > 0.85 > constant
    assert model.stat().st_size > 1000
    assert run_process("predict", model, data, "-o", predictions).startswith("Wrote 400 rows to ")
    right = np.mean(pd.read_csv(predictions)["prediction"] == np.load(data)["y"])
    report = json.loads(run_process("evaluate", model, data, "--target", "y", "--json"))
    assert report["scores"]["accuracy"] == right > 0.85


class TestFit:
    def test_json(self, ntkit, folder, tmp_path):
        options = ("--drop", "sort", "--json", "--kernel", "gaussian", "--lengthscale", "1.5", *SMALL)
        done = ntkit("fit", folder / "train.parquet", "-t", "price", "-o", tmp_path / "m", *options)
        report = done.report
        assert done.err == ""
        assert report["task"] == "regression"
        assert report["best"]["name"] == "gaussian lengthscale=1.5"
        assert report["test"]["scores"]["R2"] > 0.9 > report["test"]["baseline"]["R2"]
        assert (report["n_train"], report["n_test"]) == (320, 80)
        again = ntkit("fit", folder / "train.parquet", "-t", "price", "-o", tmp_path / "m", "--force", *options).report
        assert again["test"] == report["test"]  # one seed, one result

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            (["--kernel", "linear"], {"linear"}),
            (["--kernel", "ntk", "--depth", "2"], {"ntk depth=2", "ntk depth=2 bias=0"}),
        ],
    )
    def test_kernels(self, ntkit, folder, tmp_path, options, names):
        arguments = ("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", "--test", "0", "--json")
        report = ntkit(*arguments, *SMALL, *options).report
        assert {r["name"] for r in report["results"]} == names
        assert all(part.partition(" ")[2] in names for part in report["best"]["name"].split(" + ")) or (
            report["best"]["name"] in names
        )
        assert report["test"] is None

    def test_auto_with_a_depth_and_a_length_scale(self):
        assert candidates("auto", None, None, 4) is None
        found = candidates("auto", 7, 2.5, 4)
        fixed = {"linear", "ntk depth=7", "ntk depth=7 bias=0", "gaussian lengthscale=2.5"}
        assert set(found) == fixed | {"learned"}

    def test_every_kernel_has_candidates(self):
        """The Gaussian kernel once had none without a length scale."""
        for kernel, n_candidates in (("ntk", 2), ("gaussian", 4), ("linear", 1)):
            found = candidates(kernel, None, None, 9)
            assert len(found) == n_candidates
            assert all(name.startswith(kernel) for name in found)
        assert list(candidates("gaussian", None, 2.0, 9)) == ["gaussian lengthscale=2"]

    def test_quiet_suppresses_all_output(self, ntkit, folder, tmp_path):
        done = ntkit("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", "-q", "--kernel", "linear", *SMALL)
        assert (done.out, done.err) == ("", "")

    def test_only_text(self, ntkit, tmp_path):
        frame = pd.DataFrame({"a": ["x", "y", "z", None] * 20, "y": ["1", "2", "2", "1"] * 20})
        frame.to_parquet(tmp_path / "a.parquet")
        ntkit("fit", tmp_path / "a.parquet", "-t", "y", "-o", tmp_path / "m", *SMALL)
        done = ntkit("evaluate", tmp_path / "m", tmp_path / "a.parquet", "-t", "y", "--json")
        assert done.report["scores"]["accuracy"] == 1

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            (
                ["--drop", "idd"],
                r"has no column 'idd'\. Did you mean 'id'\? It has: width, age, code, id, price, sort\.",
            ),
            (["--drop", "price"], "is the target and cannot be dropped"),
            (["--drop", "id", "--output", "nowhere/m"], "folder 'nowhere' for the output does not exist"),
            (["--drop", "id", "--target", "sort", "--task", "regression"], "Regression needs numbers"),
            (["--drop", "id", "--task", "classification"], "400 classes in 400 rows, which is too many"),
        ],
    )
    def test_errors_in_data(self, ntkit, folder, tmp_path, options, what):
        done = ntkit("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", *options, code=1)
        assert re.match(f"error: .*{what}", done.err, re.S)
        assert done.out == ""

    @pytest.mark.parametrize(
        ("rows", "what"),
        [
            ("1,no\n2,no\n", "at least two classes"),
            ("1,2.5\n2,3.5\n", "too few to hold some out"),
            ("1,2.5\n2,\n", "missing in 1 of 2 rows, first in row 1 .* Use --drop-missing-target"),
        ],
    )
    def test_targets_that_cannot_be_learned(self, ntkit, tmp_path, rows, what):
        (tmp_path / "a.csv").write_text(f"a,y\n{rows}")
        done = ntkit("fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", code=1)
        assert re.match(f"error: .*a.csv'.*{what}", done.err)

    def test_rows_with_missing_targets_can_be_dropped(self, ntkit, tmp_path):
        (tmp_path / "a.csv").write_text("a,y\n" + "1,2.5\n2,3.5\n3,1.5\n4,\n" * 10)
        options = ("--drop-missing-target", "--kernel", "linear", "--json")
        done = ntkit("fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", *options)
        assert done.report["n_rows"] == 30

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            (["--test", "1"], "--test must be at least 0 and less than 1. Got 1."),
            (["--components", "0"], "'--components'"),
            (["--components", "many"], "'--components'"),
            (["--task", "ranking"], "'--task'"),
            (["--kernel", "linear", "--depth", "2"], "--depth applies to --kernel ntk, not to linear"),
            (["--kernel", "ntk", "--lengthscale", "2"], "--lengthscale applies to --kernel gaussian, not to ntk"),
            (["--lengthscale", "-1"], "--lengthscale must be positive"),
            (["--colour"], "--colour"),
            (["--plot", "p.pdf"], "--plot must end in .png. Got 'p.pdf'."),
            (["--output", "-"], "Only 'predict' writes to standard output."),
        ],
    )
    def test_errors_in_usage(self, ntkit, folder, tmp_path, options, what):
        done = ntkit("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", *options, code=2)
        assert re.search(f"^error: .*{re.escape(what)}", done.err, re.M)
        assert "ntkit fit --help" in done.err
        assert done.out == ""

    def test_identifiers_are_dropped_with_a_note(self, ntkit, folder, tmp_path):
        arguments = ("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", "--kernel", "linear", *SMALL)
        done = ntkit(*arguments)
        assert re.match(r"note: The column 'id' has 400 different values.* --drop 'id'\.$", done.err, re.M)
        quiet = ntkit(*arguments, "--force", "--quiet")
        assert (quiet.out, quiet.err) == ("", "")

    def test_a_model_without_importances_makes_no_plot(self, ntkit, folder, tmp_path):
        """The model and the report are not lost."""
        options = ("--kernel", "linear", "--plot", tmp_path / "p.png", *SMALL)
        done = ntkit("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", *options)
        assert done.err == "note: There is no plot: the chosen model, linear, has no column importances.\n"
        assert "Chosen: linear" in done.out
        assert os.listdir(tmp_path) == ["m"]

    @pytest.mark.parametrize(
        ("values", "line"),
        [
            (["1", "2"], r"has 2 distinct whole numbers in 80 rows \(otherwise use --task regression\)\."),
            (["a", "b"], r"Task: classification, because the target is text\."),
            (["0.5", "1.5"], r"Task: regression, because the target has fractions\."),
        ],
    )
    def test_another_task_is_suggested_only_if_it_makes_sense(self, ntkit, tmp_path, values, line):
        pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0] * 20, "y": values * 40}).to_csv(tmp_path / "a.csv", index=False)
        out = ntkit("fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", "--kernel", "linear", *SMALL).out
        assert re.search(f"{line}$", out, re.M)

    def test_report_compares_the_model_with_trees(self, ntkit, tmp_path):
        """On a step function trees are better, and the report says so; on a line they are not."""
        rng = np.random.default_rng(0)
        X = rng.uniform(-3, 3, (600, 2))
        steps, line = np.floor(2 * X[:, 0]) + 5.0 * (X[:, 1] > 0.5), X[:, 0] + 0.01 * X[:, 1]
        np.savez(tmp_path / "a.npz", X=X, steps=steps + 0.25, line=line)
        fit = ("fit", tmp_path / "a.npz", "--kernel", "ntk", "-f", "-o", tmp_path / "m", *SMALL, "-t")
        out = ntkit(*fit, "steps", "--task", "regression").out
        assert re.search(r"^on held-out rows +model +constant HistGradientBoosting$", out, re.M)
        assert "Gradient-boosted trees are better on these rows: consider scikit-learn's HistGradientBoosting." in out
        assert "trees are better" not in ntkit(*fit, "line").out
        compare = ("compare", tmp_path / "a.npz", "-t", "steps", "--components", "4", "--max-exact", "0")
        assert "Gradient-boosted trees are better on these rows than all kernels: " in ntkit(*compare).out

    def test_classes_that_look_like_numbers(self, ntkit, tmp_path):
        pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0] * 20, "y": ["007", "007", "01", "01"] * 20}).to_csv(
            tmp_path / "a.csv", index=False
        )
        ntkit("fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", "--kernel", "linear", *SMALL)
        out = ntkit("predict", tmp_path / "m", tmp_path / "a.csv").out
        assert out.split()[:4] == ["prediction", "007", "007", "01"]
        report = ntkit("evaluate", tmp_path / "m", tmp_path / "a.csv", "-t", "y", "--json").report
        assert report["scores"]["accuracy"] == 1

    def test_raw_tables(self, ntkit, tmp_path):
        """Dates, decimal commas, a comma in a name, missing values."""
        rng = np.random.default_rng(0)
        days = pd.date_range("2023-01-01", periods=300, freq="29h")
        size = rng.uniform(0, 2, 300)
        frame = pd.DataFrame({"size, m": size, "day": days.strftime("%d.%m.%Y"), "town": rng.choice(["a", None], 300)})
        frame["price"] = size + np.sin(2 * np.pi * days.day_of_year / 365)
        frame.to_csv(tmp_path / "a.csv", sep=";", decimal=",", index=False)
        options = ("--kernel", "ntk", "--depth", "1", "--json", *SMALL)
        report = ntkit("fit", tmp_path / "a.csv", "-t", "price", "-o", tmp_path / "m", *options).report
        assert (report["task"], report["n_columns"]) == ("regression", 3)
        assert report["test"]["scores"]["R2"] > 0.9
        model = package.load(tmp_path / "m")
        assert type(model).__name__ == "TableRegressor"
        assert "day=season sin" in model.encoder_.get_feature_names_out()

    def test_levels_that_only_held_out_rows_have(self, ntkit, tmp_path):
        """The last fit, on all rows, has the columns of the search."""
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"a": rng.standard_normal(400), "k": ["u"] * 400})
        frame["y"] = frame["a"] ** 2
        frame.loc[::50, "k"] = [f"rare {i}" for i in range(8)]
        frame.to_csv(tmp_path / "a.csv", index=False)
        report = ntkit(
            "fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", "--json", "--kernel", "linear"
        ).report
        assert report["n_features"] == 10


class TestPredict:
    def test_standard_deviations(self, ntkit, folder, tmp_path):
        ntkit("predict", folder / "price.ntkit", folder / "train.csv", "-o", tmp_path / "p.csv", "--std")
        frame = pd.read_csv(tmp_path / "p.csv")
        assert list(frame.columns) == ["prediction", "std"]
        price = pd.read_csv(folder / "train.csv")["price"]
        assert np.corrcoef(frame["prediction"], price)[0, 1] > 0.98
        assert np.mean(np.abs(frame["prediction"] - price) < 3 * frame["std"]) > 0.95

    @pytest.mark.parametrize("name", ["p.parquet", "p.pq", "p.csv", "p.csv.gz", "p.tsv", "p.tsv.gz"])
    def test_probabilities(self, ntkit, folder, tmp_path, name):
        arguments = ("predict", folder / "sort.ntkit", folder / "train.csv", "--proba", "--json", "-o")
        report = ntkit(*arguments, tmp_path / name).report
        frame, _ = package.tables.read_table(tmp_path / name)
        assert report["columns"] == list(frame.columns) == ["prediction", "probability large", "probability small"]
        np.testing.assert_allclose(frame.iloc[:, 1:].sum(axis=1), 1, rtol=1e-5)
        assert ((frame["probability large"] > 0.5) == (frame["prediction"] == "large")).all()

    def test_text_stays_text(self, ntkit, folder, tmp_path):
        """Codes that look like numbers in the new table, where no other value is left."""
        frame = pd.read_csv(folder / "train.csv", dtype={"code": str})
        frame[frame["code"] != "x"].to_csv(tmp_path / "new.csv", index=False)
        ntkit("predict", folder / "price.ntkit", tmp_path / "new.csv", "-o", tmp_path / "new.tsv")
        ntkit("predict", folder / "price.ntkit", folder / "train.csv", "-o", tmp_path / "all.csv")
        new = pd.read_csv(tmp_path / "new.tsv", sep="\t")["prediction"]
        every = pd.read_csv(tmp_path / "all.csv")["prediction"][(frame["code"] != "x").to_numpy()]
        np.testing.assert_allclose(new, every, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(
        ("model", "data", "options", "what"),
        [
            ("price.ntkit", "train.csv", ["--proba"], "--proba needs a classification model"),
            ("sort.ntkit", "train.csv", ["--std"], "--std needs a regression model"),
            ("none", "train.csv", [], "no file"),
            (
                "train.csv",
                "train.csv",
                [],
                ".*train.csv' is a table, not a model. Give the model first, then the table",
            ),
            ("price.ntkit", "none.csv", [], "none.csv' does not exist"),
            ("price.ntkit", "train.npz", [], "needs data frames"),
            ("price.ntkit", b"width,age\n1,2\n", [], "new.csv'.* lacks the column 'code'"),
            ("price.ntkit", b"width,age,code\n1,2,x\nwide,2,x\n", [], "new.csv'.*'width' must hold numbers.* in row 1"),
            ("price.ntkit", b"width,age,code\n1,2,x\ninf,2,x\n", [], "new.csv'.*'width' has an infinite.* in row 1"),
        ],
    )
    def test_errors(self, ntkit, folder, tmp_path, model, data, options, what):
        path = tmp_path / "new.csv" if isinstance(data, bytes) else folder / data
        if isinstance(data, bytes):
            path.write_bytes(data)
        done = ntkit("predict", folder / model, path, "-o", tmp_path / "p.csv", *options, code=1)
        assert re.match(f"error: .*{what}", done.err)
        assert not (tmp_path / "p.csv").exists()

    def test_std_without_statistics(self, ntkit, folder, tmp_path):
        fit = ("fit", folder / "train.npz", "-t", "y", "--task", "regression", "--kernel", "linear", *SMALL)
        ntkit(*fit, "-o", tmp_path / "m")
        done = ntkit("predict", tmp_path / "m", folder / "train.npz", "--std", code=1)
        text = (
            "--std needs the statistics of the fit, but this model was saved without them. Fit it again with "
            "--statistics."
        )
        assert done.err == f"error: {text}\n"

    def test_standard_input_and_output(self, folder):
        """In a separate process: the columns are unchanged, followed by the predictions."""
        table = (folder / "train.csv").read_bytes()
        command = [sys.executable, "-m", "ntkit", "predict", str(folder / "price.ntkit"), "-", "--keep"]
        done = subprocess.run(command, input=table, capture_output=True, timeout=300)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.splitlines()[0] == table.splitlines()[0] + b",prediction"
        kept = pd.read_csv(io.BytesIO(done.stdout), dtype=str, keep_default_na=False)
        assert kept["code"].tolist() == pd.read_csv(io.BytesIO(table), dtype=str)["code"].tolist()  # 007 too
        assert len(kept) == 400

    @pytest.mark.parametrize(
        ("name", "change", "code", "err"),
        [
            ("train.parquet", (b"", b""), 0, "^$"),
            ("train.csv", (b",x,", b",z,"), 0, r"^note: Values that fit has not seen in the column 'code' \('z'\)"),
            ("train.csv", (b"width,age", b",age"), 1, r"note: The first column of standard input.*\nerror: .*lacks"),
            ("train.csv", (b",small\n", b"\n"), 1, r"^error: Line \d+ of standard input has 5 fields, but the first"),
        ],
    )
    def test_kinds_of_standard_input(self, ntkit, folder, monkeypatch, name, change, code, err):
        """Notes and errors do not name temporary files."""
        given = (folder / name).read_bytes()
        given = given.replace(*change) if change[0] else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        done = ntkit("predict", folder / "price.ntkit", "-", code=code)
        assert re.match(err, done.err, re.S)
        assert len(done.out.splitlines()) == (0 if code else 401)

    def test_arrays_from_standard_input_have_no_columns_to_keep(self, ntkit, folder, tmp_path, monkeypatch):
        ntkit("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", "--kernel", "linear", *SMALL)
        given = io.TextIOWrapper(io.BytesIO((folder / "train.npz").read_bytes()))
        monkeypatch.setattr(sys, "stdin", given)
        done = ntkit("predict", tmp_path / "m", "-", "--keep", code=1)
        assert done.err == "error: Standard input has arrays, not named columns, so --keep cannot be used.\n"

    def test_memory_follows_the_size_of_the_model(self, tmp_path, monkeypatch):
        """Models with many statistics are larger than what `load` takes by default."""
        limits = []
        monkeypatch.setattr(
            "ntkit.persistence.load", lambda _, memory_limit: limits.append(memory_limit) or SimpleNamespace(predict=1)
        )
        for n_bytes in (1000, 2**33):
            with open(tmp_path / "m", "wb") as file:
                file.truncate(n_bytes)  # a sparse file
            data.load_model(tmp_path / "m")
        assert limits == [2**32, 2**35]

    def test_quiet_prints_no_notes(self, ntkit, folder, tmp_path):
        (tmp_path / "a.csv").write_bytes((folder / "train.csv").read_bytes().replace(b",x,", b",z,"))
        done = ntkit("predict", folder / "price.ntkit", tmp_path / "a.csv", "-o", tmp_path / "p.csv", "--quiet")
        assert (done.out, done.err) == ("", "")

    def test_json_and_predictions_do_not_share_standard_output(self, ntkit, folder):
        done = ntkit("predict", folder / "price.ntkit", folder / "train.csv", "--json", code=2)
        assert "--json and the predictions cannot both go to standard output" in done.err

    def test_a_reader_that_leaves(self, folder):
        command = f"{sys.executable} -m ntkit predict price.ntkit train.csv | head -n 1"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=folder)
        assert (done.stdout, done.stderr) == ("prediction\n", "")

    def test_kept_columns_and_predictions_have_different_names(self, ntkit, folder, tmp_path):
        pd.read_csv(folder / "train.csv").assign(prediction=1).to_csv(tmp_path / "a.csv", index=False)
        done = ntkit("predict", folder / "price.ntkit", tmp_path / "a.csv", "--keep", code=1)
        assert "has a column 'prediction' already" in done.err
        assert done.out == ""

    def test_labels_like_formulas(self, ntkit, tmp_path):
        """They are written unchanged, with a note."""
        label = "=cmd|' /C calc'!A0"
        frame = pd.DataFrame({"a": [1.0, 2.0] * 20, "y": [label, "-1.5x"] * 20})
        frame.to_csv(tmp_path / "a.csv", index=False)
        ntkit("fit", tmp_path / "a.csv", "-t", "y", "-o", tmp_path / "m", "--kernel", "linear", *SMALL)
        done = ntkit("predict", tmp_path / "m", tmp_path / "a.csv", "-o", tmp_path / "p.csv")
        assert "begin like formulas, which spreadsheets run. Import the file as text." in done.err
        assert pd.read_csv(tmp_path / "p.csv")["prediction"].tolist() == frame["y"].tolist()
        assert ntkit("predict", tmp_path / "m", tmp_path / "a.csv", "-o", tmp_path / "p.parquet").err == ""

    def test_endings(self, ntkit, folder, tmp_path):
        done = ntkit("predict", folder / "price.ntkit", folder / "train.csv", "-o", tmp_path / "p.txt", code=2)
        assert "--output must end in .csv" in done.err


class TestOutputs:
    """A command never replaces its inputs, and other files only with an option."""

    DISGUISES = ("itself", "dots", "symbolic link", "hard link", "linked folder")

    def disguised(self, path, disguise):
        if disguise == "symbolic link":
            path.with_name("link.csv").symlink_to(path.name)
            return path.with_name("link.csv")
        if disguise == "hard link":
            path.with_name("hard.csv").hardlink_to(path)
            return path.with_name("hard.csv")
        if disguise == "linked folder":
            path.with_name("here").symlink_to(".")
        return {"dots": path.parent / ".." / path.parent.name, "linked folder": path.with_name("here")}.get(
            disguise, path.parent
        ) / path.name

    @pytest.mark.parametrize("force", [[], ["--force"]])
    @pytest.mark.parametrize("disguise", DISGUISES)
    def test_inputs_stay(self, ntkit, folder, tmp_path, disguise, force):
        data, model = (tmp_path / name for name in ("data.csv", "model.csv"))
        content = {data: (folder / "train.csv").read_bytes(), model: (folder / "price.ntkit").read_bytes()}
        for path, what in content.items():
            path.write_bytes(what)
        output = self.disguised(data, disguise)
        names = set(os.listdir(tmp_path))
        done = ntkit("fit", data, "-t", "price", "--drop", "id", "-o", output, *force, *SMALL, code=2)
        assert "is the input" in done.err
        assert "is the input" in ntkit("predict", model, data, "-o", output, *force, code=2).err
        assert "is the input" in ntkit("predict", model, data, "-o", model, *force, code=2).err
        assert {path: path.read_bytes() for path in content} == content
        assert set(os.listdir(tmp_path)) == names

    def test_other_files_are_replaced_with_force(self, ntkit, folder, tmp_path):
        output, link = tmp_path / "p.csv", tmp_path / "link.csv"
        output.write_text("old")
        output.chmod(0o640)
        link.symlink_to("p.csv")
        fit = ("fit", folder / "train.npz", "-t", "y", "--kernel", "linear", *SMALL)
        predict = ("predict", folder / "price.ntkit", folder / "train.csv")
        for command in (fit, predict):
            done = ntkit(*command, "-o", output, code=2)
            assert re.search(r"^error: .*p.csv' exists. Use --force to replace it", done.err, re.M)
            assert output.read_text() == "old"
        ntkit(*predict, "-o", link, "--force")
        assert len(pd.read_csv(output)) == 400
        assert link.is_symlink()
        assert output.stat().st_mode & 0o777 == 0o640
        ntkit(*fit, "-o", output, "-f")
        assert package.load(output).predict(np.ones((1, 2))).shape == (1,)
        assert set(os.listdir(tmp_path)) == {"p.csv", "link.csv"}

    def test_devices_are_not_replaced(self, ntkit, folder, tmp_path):
        os.mkfifo(tmp_path / "p.csv")
        done = ntkit("predict", folder / "price.ntkit", folder / "train.csv", "-o", tmp_path / "p.csv", "-f", code=1)
        assert "Name a file" in done.err
        assert (tmp_path / "p.csv").is_fifo()

    def test_a_writer_that_fails_leaves_the_old_output(self, ntkit, folder, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        (tmp_path / "p.csv").write_text("old")
        monkeypatch.setattr(os, "fsync", fail)
        predict = ("predict", folder / "price.ntkit", folder / "train.csv", "-f", "-o")
        assert "No space left" in ntkit(*predict, tmp_path / "p.csv", code=1).err
        assert (tmp_path / "p.csv").read_text() == "old"
        compare = ("compare", folder / "train.npz", "-t", "y", "--components", "8", "--max-exact", "0", "-o")
        assert "No space left" in ntkit(*compare, tmp_path / "new" / "folder", code=1).err
        assert os.listdir(tmp_path) == ["p.csv"]

    def test_temporary_files_have_unique_names(self, ntkit, folder, tmp_path, monkeypatch):
        """Two concurrent commands may write the same output."""
        during = []
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda number: (during.extend(os.listdir(tmp_path)), fsync(number)))
        for _ in range(2):
            ntkit("predict", folder / "price.ntkit", folder / "train.csv", "-f", "-o", tmp_path / "p.csv")
        assert len({name for name in during if name != "p.csv"}) == 2
        assert os.listdir(tmp_path) == ["p.csv"]

    def test_plots_of_before_are_replaced_and_others_are_not(self, ntkit, folder, tmp_path):
        compare = ("compare", folder / "train.npz", "-t", "y", "--components", "8", "--max-exact", "0", "-q")
        for _ in range(2):
            ntkit(*compare, "-o", tmp_path)
        for name in ("comparison.png", "comparison.html"):
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_text("my own")
            assert f"{name}' exists. Use --force" in ntkit(*compare, "-o", tmp_path, code=2).err
            assert (tmp_path / name).read_text() == "my own"
            (tmp_path / name).write_bytes(content)
        (tmp_path / "digits.png").write_text("my own")
        assert "digits.png' exists. Use --force" in ntkit("demo", "-o", tmp_path, code=2).err
        figure = demo.plot([{"method": "m", "chosen": "c", "accuracy": 0.5, "fit_seconds": 1.0}] * 4)
        page.write_files(tmp_path, {"digits.png": page.as_png(figure)})
        assert page.is_ours(tmp_path / "digits.png")

    def test_folders_that_cannot_be(self, ntkit, folder, tmp_path, monkeypatch):
        """Found out before the work, not after it."""
        monkeypatch.setattr("ntkit.cli.comparison.compare", None)
        (tmp_path / "file").write_text("old")
        for output in (tmp_path / "file", tmp_path / "file" / "folder"):
            done = ntkit("compare", folder / "train.npz", "-t", "y", "-o", output, code=1)
            assert "file' is a file" in done.err
        assert os.listdir(tmp_path) == ["file"]

    def test_tables_are_printed_without_matplotlib(self, ntkit, folder, tmp_path, monkeypatch):
        """The note comes before the work; steps that need no plot are done."""
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        notes = []
        compared = comparison.compare
        monkeypatch.setattr(comparison, "compare", lambda *a, **k: (notes.append("work"), compared(*a, **k))[1])
        monkeypatch.setattr(page.warnings, "warn", lambda text, **_: notes.append(text))
        done = ntkit(
            "compare", folder / "train.npz", "-t", "y", "--components", "8", "--max-exact", "0", "-o", tmp_path
        )
        assert "There will be no plot, as matplotlib is missing: pip install 'ntkit[plot]'" in notes[0]
        assert notes[1:] == ["work"]
        assert "Smallest error:" in done.out
        assert os.listdir(tmp_path) == ["comparison.html"]
        assert "<img" not in (tmp_path / "comparison.html").read_text(encoding="utf-8")
        monkeypatch.setattr("ntkit.cli.demo_rows.ROWS", (100,))
        monkeypatch.setattr(demo, "candidates", lambda *_: {"linear": {"": lambda *_: lambda X: np.zeros(len(X))}})
        done = ntkit("demo", "-o", tmp_path / "new")
        assert "linear" in done.out
        assert "Plot" not in done.out
        assert not (tmp_path / "new").exists()
        done = ntkit("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", "--plot", tmp_path / "p.png", code=1)
        assert "pip install 'ntkit[plot]'" in done.err


class TestEvaluate:
    def test_regression(self, ntkit, folder):
        report = ntkit("evaluate", folder / "price.ntkit", folder / "train.csv", "-t", "price", "--json").report
        assert report["scores"].keys() == {"MSE", "RMSE", "MAE", "R2"}
        assert report["scores"]["R2"] > 0.9
        assert report["baseline"]["R2"] == pytest.approx(0)
        assert report["scores"]["RMSE"] ** 2 == pytest.approx(report["scores"]["MSE"])

    def test_classification(self, ntkit, folder, tmp_path):
        out = ntkit("evaluate", folder / "sort.ntkit", folder / "train.csv", "-t", "sort").out
        for name in ("accuracy", "log loss", "macro F1"):
            assert re.search(rf"^{name} +[\d.]+ +[\d.]+$", out, re.M)
        frame = pd.read_csv(folder / "train.csv")
        frame.loc[:9, "sort"] = "huge"
        frame.to_csv(tmp_path / "a.csv", index=False)
        done = ntkit("evaluate", folder / "sort.ntkit", tmp_path / "a.csv", "-t", "sort")
        assert "10 rows have classes that the model has not seen; they count as errors" in done.out

    @pytest.mark.parametrize(
        ("options", "what", "code"),
        [
            (["-t", "Price"], "has no column 'Price'. Did you mean 'price'?", 1),
            (["-t", "sort"], "The model predicts numbers", 1),
            ([], "Missing option", 2),
        ],
    )
    def test_errors(self, ntkit, folder, options, what, code):
        assert what in ntkit("evaluate", folder / "price.ntkit", folder / "train.csv", *options, code=code).err


class TestCompare:
    def test_table_plot_and_page(self, ntkit, folder, tmp_path):
        folder_out = tmp_path / "new" / "folder"
        options = ("--drop", "sort", "--components", "64,32", "-o", folder_out)
        out = ntkit("compare", folder / "train.parquet", "-t", "price", *options).out
        assert "training rows: 320" in out
        for kernel in ("linear", "NTK depth 1", "NTK depth 3", "Gaussian ℓ"):
            assert re.search(rf"^{kernel}", out, re.M)
        for name in ("polynomial", "random", "sketch", "Fourier", "RBFSampler"):
            assert len(re.findall(rf" {name} +(?:32|64) ", out)) == 4, name
        assert len(re.findall(r" exact +320 ", out)) == 4
        picture = (folder_out / "comparison.png").read_bytes()
        assert picture[:4] == b"\x89PNG"
        assert len(picture) > 20_000
        page = (folder_out / "comparison.html").read_text(encoding="utf-8")
        assert not re.search(r"https?:|<script|<link|@import|url\(", page)
        assert re.findall(r'src="([^"]{22})', page) == ["data:image/png;base64,"]
        assert "width=device-width" in page
        n_trees = 1 + (find_spec("lightgbm") is not None)
        assert len(re.findall(" HistGradientBoosting +100 | LightGBM +100 ", out)) == n_trees
        assert page.count("<tr") == 1 + 1 + 11 * 2 + 4 + n_trees
        assert re.search("<code>ntkit compare .*train.parquet -t price --drop sort --components 64,32 -o ", page)

    def test_classification_with_seeds_and_without_exact_kernels(self, ntkit, folder):
        arguments = ("compare", folder / "train.npz", "-t", "y", "--components", "32", "--seeds", "2", "--json")
        report = ntkit(*arguments, "--max-exact", "100").report
        assert all(r["map"] != "exact" for r in report["results"])
        assert {r["n_seeds"] for r in report["results"]} == {1, 2}
        assert report["best"]["error"] < 0.15 < report["facts"]["error of a constant"]
        assert report["files"] == []

    @pytest.mark.parametrize("task", ["regression", "classification"])
    def test_exact_kernels_do_not_depend_on_the_order_of_rows(self, rng, task):
        """The penalty was once chosen on the last rows, which are special in a sorted file."""
        X = np.sort(rng.uniform(-3, 3, (300, 1)), axis=0)
        y = np.sin(3 * X[:, 0]) + rng.standard_normal(300)
        y = y if task == "regression" else (y > 0.5).astype(int)

        def exact(order):
            rows = comparison.TrainTest(X[order], y[order], X[::6], y[::6])
            found = [r for r in comparison.compare(rows, task, [8]) if r["map"] == "exact"]
            return [(r["alpha"], r["error"]) for r in found]

        np.testing.assert_allclose(exact(np.arange(300)), exact(rng.permutation(300)), rtol=1e-6)

    def test_penalties_follow_the_size_of_the_kernel(self, rng):
        X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
        model = comparison.exact_ridge(X, y, "regression", "ntk", depth=2)
        larger = comparison.exact_ridge(10 * X, y, "regression", "ntk", depth=2)
        np.testing.assert_allclose(larger.alphas_, 100 * model.alphas_)
        assert larger.alpha_ == pytest.approx(100 * model.alpha_)
        assert model.errors_[model.alphas_ == model.alpha_] <= 1.001 * np.nanmin(model.errors_)

    @pytest.mark.parametrize(
        ("options", "what", "code"),
        [
            *[
                (["--components", value], "--components must be positive whole", 2)
                for value in ("a", "0,1", "", "1,-2")
            ],
            (["--test", "0"], "--test must be greater than 0", 2),
            (["--output", "-"], "Only 'predict' writes to standard output. Name a folder.", 2),
            (["-t", "z"], "has no array 'z'", 1),
        ],
    )
    def test_errors(self, ntkit, folder, options, what, code):
        assert what in ntkit("compare", folder / "train.npz", "-t", "y", *options, code=code).err


class TestMain:
    @pytest.mark.parametrize("name", ["fit", "predict", "evaluate", "compare", "demo"])
    def test_help_has_examples(self, ntkit, name):
        assert f"  {name} " in ntkit("--help").out
        out = ntkit(name, "--help").out
        assert f"\n    ntkit {name}" in out
        assert "--json" in out

    def test_version_and_no_command(self, ntkit):
        assert ntkit("--version").out == f"ntkit {package.__version__}\n"
        assert "Commands:" in ntkit(code=2).err
        assert "No such command 'learn'" in ntkit("learn", code=2).err

    def test_debug_shows_where(self, folder):
        with pytest.raises(FileNotFoundError):
            main(["evaluate", str(folder / "none"), str(folder / "train.csv"), "-t", "price", "--debug"])

    def test_notes_go_to_stderr(self, ntkit, folder, tmp_path):
        pd.read_csv(folder / "train.csv").to_csv(tmp_path / "a.csv")
        done = ntkit("evaluate", folder / "price.ntkit", tmp_path / "a.csv", "-t", "price", "--json")
        assert done.err.startswith("note: The first column")
        assert done.report["n_rows"] == 400

    @pytest.mark.parametrize(
        ("library", "command_line"),
        [
            ("It looks like a key. Leave it out: frame.drop(columns=['id']).",
             "It looks like a key. Leave it out: --drop 'id'."),
            ("'m' needs too much memory. Raise memory_limit=9 if you trust the file.", "'m' needs too much memory."),
            ("Alpha is small. Scale the columns by sklearn.preprocessing.StandardScaler.", "Alpha is small."),
            ("The file 'ntkit.csv' of the folder 'sklearn' is empty.",) * 2,
            ("Pass memory_limit=9.",) * 2,  # nothing else would be left
        ],
    )  # fmt: skip
    def test_messages_recommend_no_python(self, ntkit, monkeypatch, library, command_line):
        def fail(**_):
            warnings.warn(library, stacklevel=1)
            raise ValueError(library)

        monkeypatch.setattr("ntkit.cli.commands.evaluate", fail)
        done = ntkit("evaluate", "a", "b", "-t", "c", code=1)
        assert done.err == f"note: {command_line}\nerror: {command_line}\n"

    def test_interrupt(self, ntkit, monkeypatch):
        def stop(**_):
            raise KeyboardInterrupt

        monkeypatch.setattr("ntkit.cli.commands.evaluate", stop)
        assert ntkit("evaluate", "a", "b", "-t", "c", code=130).err == "error: interrupted\n"

    @pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
    def test_a_terminal_sees_phases_and_an_interrupt_one_line(self, folder, tmp_path):
        """Ctrl-C in the middle of a search: one line, no file, no thread that goes on drawing."""
        arguments = ("fit", str(folder / "train.csv"), "-t", "price", "-o", str(tmp_path / "m"), "--drop", "id")
        screen, code = on_a_terminal(*arguments, "--kernel", "linear", *SMALL)
        assert code == 0
        places = [screen.find(text) for text in ("search ", "test ", "final fit ", "Table: 400 rows")]
        assert places == sorted(places)
        assert places[0] >= 0
        assert re.search(r"search +\d+%\|.*\| about \d:\d\d left", screen)
        (tmp_path / "m").unlink()
        screen, code = on_a_terminal(*arguments, "--time-budget", "60", interrupt="left")
        assert code == 130
        assert screen.count("error: interrupted") == 1
        assert "Traceback" not in screen
        assert screen.rstrip().endswith("error: interrupted")
        assert os.listdir(tmp_path) == []

    @pytest.mark.thorough
    def test_compiling_is_announced(self, folder, tmp_path):
        """On a terminal, on the first run: here in a process with an empty cache."""
        command = ("evaluate", str(folder / "price.ntkit"), str(folder / "train.csv"), "-t", "price")
        text = "note: compiling for this machine, on the first run only"
        empty = {"NUMBA_CACHE_DIR": str(tmp_path)}
        screen, code = on_a_terminal(*command, environment=empty)
        assert (code, screen.count(text)) == (0, 1)
        assert text not in on_a_terminal(*command, environment=empty)[0]

    def test_termination(self, ntkit, monkeypatch):
        """Temporary files are removed on exit."""
        monkeypatch.setattr("ntkit.cli.commands.evaluate", lambda **_: signal.raise_signal(signal.SIGTERM))
        before = signal.getsignal(signal.SIGTERM)
        assert ntkit("evaluate", "a", "b", "-t", "c", code=143).err == "error: terminated\n"
        assert signal.getsignal(signal.SIGTERM) is before

    def test_reports_that_cannot_be_printed(self, folder):
        command = [sys.executable, "-m", "ntkit", "evaluate", "price.ntkit", "train.csv", "-t", "price"]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder)
        assert (done.returncode, done.stderr) == (1, "error: The report cannot be printed: No space left on device\n")

    @pytest.mark.parametrize("missing", ["typer", "pandas"])
    def test_missing_packages(self, folder, missing):
        code = (
            f"import sys; sys.modules['{missing}'] = None; from ntkit.cli import main; "
            f"sys.exit(main({['evaluate', str(folder / 'price.ntkit'), str(folder / 'train.csv'), '-t', 'price']}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert "pip install 'ntkit[cli]'" in done.stderr

    def test_help_is_quick(self):
        code = (
            "import sys; from ntkit.cli import main; main(['--help']); "
            "assert not {'sklearn', 'pandas', 'numba', 'matplotlib'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
