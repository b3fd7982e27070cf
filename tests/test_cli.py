from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ntkit.cli import main

SMALL = ["--components", "128", "--time-budget", "5"]


@pytest.fixture
def ntkit(capsys):
    """Run a command in this process."""

    def run(*arguments, code=0):
        capsys.readouterr()
        found = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert found == code, err
        return SimpleNamespace(out=out, err=err)

    return run


def run_process(*arguments, code=0):
    command = [sys.executable, "-m", "ntkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no colours
    return done


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
    frame["sort"] = np.where(frame["width"] > 0, "large", "small")
    frame["sort"] = frame["sort"].astype(object)
    frame.to_csv(folder / "train.csv", index=False)
    frame.drop(columns="id").to_parquet(folder / "train.parquet")
    X = frame[["width", "age"]].to_numpy()
    np.savez(folder / "train.npz", X=X, y=np.digitize(X[:, 0], [-1, 1]))
    assert main(["fit", str(folder / "train.csv"), "-t", "price", "-o", str(folder / "price.ntkit"), "--drop", "id",
                 "--drop", "sort", "--statistics", "--quiet", "--seed", "1", *SMALL]) == 0  # fmt: skip
    assert main(["fit", str(folder / "train.parquet"), "-t", "sort", "-o", str(folder / "sort.ntkit"), "--drop",
                 "price", "--kernel", "linear", "--quiet", *SMALL]) == 0  # fmt: skip
    return folder


class TestFit:
    def test_in_a_process(self, folder, tmp_path):
        done = run_process(
            "fit", folder / "train.npz", "--target", "y", "--output", tmp_path / "m.ntkit", "--kernel", "ntk", *SMALL
        )
        assert done.stderr == ""
        assert "Task: classification, as the target has 3 different whole numbers in 400 rows" in done.stdout
        assert "--task regression" in done.stdout
        assert re.search(r"^kernel +rows features +error +alpha seconds$", done.stdout, re.M)
        assert "Chosen: ntk depth=" in done.stdout
        accuracy, constant = map(float, re.search(r"^accuracy +([\d.]+) +([\d.]+)$", done.stdout, re.M).groups())
        assert accuracy > 0.85 > constant
        assert (tmp_path / "m.ntkit").stat().st_size > 1000

    def test_json(self, ntkit, folder, tmp_path):
        arguments = ("fit", folder / "train.parquet", "-t", "price", "-o", tmp_path / "m", "--drop", "sort", "--json")
        done = ntkit(*arguments, *SMALL, "--kernel", "gaussian", "--lengthscale", "1.5")
        report = json.loads(done.out)
        assert done.err == ""
        assert report["task"] == "regression"
        assert report["best"]["name"] == "gaussian lengthscale=1.5"
        assert report["test"]["scores"]["R2"] > 0.9 > report["test"]["baseline"]["R2"]
        assert (report["n_train"], report["n_test"]) == (320, 80)
        again = json.loads(ntkit(*arguments, *SMALL, "--kernel", "gaussian", "--lengthscale", "1.5").out)
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
        report = json.loads(ntkit(*arguments, *SMALL, *options).out)
        assert {r["name"] for r in report["results"]} | {report["best"]["name"]} == names
        assert report["test"] is None

    def test_auto_with_a_depth_and_a_length_scale(self):
        from ntkit._commandline.commands import candidates

        assert candidates("auto", None, None, 4) is None
        found = candidates("auto", 7, 2.5, 4)
        assert set(found) == {"linear", "ntk depth=7", "ntk depth=7 bias=0", "gaussian lengthscale=2.5"}

    def test_quiet_prints_nothing(self, ntkit, folder, tmp_path):
        done = ntkit("fit", folder / "train.npz", "-t", "y", "-o", tmp_path / "m", "-q", "--kernel", "linear", *SMALL)
        assert (done.out, done.err) == ("", "")

    def test_only_text(self, ntkit, tmp_path):
        frame = pd.DataFrame({"a": ["x", "y", "z", None] * 20, "y": ["1", "2", "2", "1"] * 20})
        frame.to_parquet(tmp_path / "a.parquet")
        ntkit("fit", tmp_path / "a.parquet", "-t", "y", "-o", tmp_path / "m", *SMALL)
        out = ntkit("evaluate", tmp_path / "m", tmp_path / "a.parquet", "-t", "y", "--json").out
        assert json.loads(out)["scores"]["accuracy"] == 1

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ([], r"column 'id' has 400 different values.*--drop 'id'"),
            (
                ["--drop", "idd"],
                r"has no column 'idd'\. Did you mean 'id'\? It has: width, age, code, id, price, sort\.",
            ),
            (["--drop", "price"], "is the target and cannot be dropped"),
            (["--drop", "id", "--output", "nowhere/m"], "folder 'nowhere' for the output does not exist"),
            (["--drop", "id", "--target", "sort", "--task", "regression"], "Regression needs numbers"),
            (["--drop", "id", "--task", "classification"], "400 classes in 400 rows: too many"),
        ],
    )
    def test_errors_in_data(self, ntkit, folder, tmp_path, options, what):
        done = ntkit("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", *options, code=1)
        assert re.match(f"error: .*{what}", done.err, re.S)
        assert done.out == ""

    def test_missing_targets(self, ntkit, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("a,y\n" + "1,2.5\n2,3.5\n3,1.5\n4,\n" * 10)
        done = ntkit("fit", path, "-t", "y", "-o", tmp_path / "m", code=1)
        assert "missing in 10 of 40 rows. Say --drop-missing-target" in done.err
        options = ("--drop-missing-target", "--kernel", "linear", "--json")
        assert json.loads(ntkit("fit", path, "-t", "y", "-o", tmp_path / "m", *options).out)["n_rows"] == 30

    def test_targets_that_cannot_be_learned(self, ntkit, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("a,y\n1,no\n2,no\n")
        assert "two classes or more" in ntkit("fit", path, "-t", "y", "-o", tmp_path / "m", code=1).err
        path.write_text("a,y\n1,2.5\n2,3.5\n")
        assert "too few to hold some out" in ntkit("fit", path, "-t", "y", "-o", tmp_path / "m", code=1).err

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            (["--test", "1"], "--test must be 0 or more and less than 1. Got 1."),
            (["--components", "0"], "'--components'"),
            (["--components", "many"], "'--components'"),
            (["--task", "ranking"], "'--task'"),
            (["--kernel", "linear", "--depth", "2"], "--depth is for --kernel ntk, not linear"),
            (["--kernel", "ntk", "--lengthscale", "2"], "--lengthscale is for --kernel gaussian, not ntk"),
            (["--lengthscale", "-1"], "--lengthscale must be positive"),
            (["--colour"], "--colour"),
        ],
    )
    def test_errors_in_usage(self, ntkit, folder, tmp_path, options, what):
        done = ntkit("fit", folder / "train.csv", "-t", "price", "-o", tmp_path / "m", *options, code=2)
        assert re.search(f"^error: .*{re.escape(what)}", done.err, re.M)
        assert "ntkit fit --help" in done.err
        assert done.out == ""


class TestPredict:
    def test_in_a_process(self, folder, tmp_path):
        done = run_process("predict", folder / "price.ntkit", folder / "train.csv", "-o", tmp_path / "p.csv", "--std")
        assert done.stdout.startswith("400 predictions:")
        frame = pd.read_csv(tmp_path / "p.csv")
        assert list(frame.columns) == ["prediction", "std"]
        price = pd.read_csv(folder / "train.csv")["price"]
        assert np.corrcoef(frame["prediction"], price)[0, 1] > 0.98
        assert np.mean(np.abs(frame["prediction"] - price) < 3 * frame["std"]) > 0.95

    def test_probabilities(self, ntkit, folder, tmp_path):
        arguments = ("predict", folder / "sort.ntkit", folder / "train.csv", "--proba", "--json", "-o")
        for name, read in (("p.parquet", pd.read_parquet), ("p.csv.gz", pd.read_csv)):
            report = json.loads(ntkit(*arguments, tmp_path / name).out)
            frame = read(tmp_path / name)
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

    def test_errors(self, ntkit, folder, tmp_path):
        model, data, out = folder / "price.ntkit", folder / "train.csv", tmp_path / "p.csv"
        assert "--output must end in .csv" in ntkit("predict", model, data, "-o", tmp_path / "p.txt", code=2).err
        assert "--proba is for classification" in ntkit("predict", model, data, "-o", out, "--proba", code=1).err
        sort = folder / "sort.ntkit"
        assert "--std is for regression" in ntkit("predict", sort, data, "-o", out, "--std", code=1).err
        assert "no file" in ntkit("predict", folder / "none", data, "-o", out, code=1).err
        assert "not a complete ntkit file" in ntkit("predict", data, data, "-o", out, code=1).err
        assert "does not exist" in ntkit("predict", model, folder / "none.csv", "-o", out, code=1).err
        short = tmp_path / "short.csv"
        short.write_text("width,age\n1,2\n")
        assert "lacks the column 'code'" in ntkit("predict", model, short, "-o", out, code=1).err
        short.write_text("width,age,code\nwide,2,x\n")
        assert "'width' must hold numbers" in ntkit("predict", model, short, "-o", out, code=1).err
        assert "needs data frames" in ntkit("predict", model, folder / "train.npz", "-o", out, code=1).err
        assert not out.exists()


class TestEvaluate:
    def test_in_a_process(self, folder):
        done = run_process("evaluate", folder / "price.ntkit", folder / "train.csv", "--target", "price", "--json")
        report = json.loads(done.stdout)
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
        assert "10 rows are of classes that the model has not seen" in done.out

    def test_errors(self, ntkit, folder):
        data = folder / "train.csv"
        done = ntkit("evaluate", folder / "price.ntkit", data, "-t", "Price", code=1)
        assert "has no column 'Price'. Did you mean 'price'?" in done.err
        assert "has learned numbers" in ntkit("evaluate", folder / "price.ntkit", data, "-t", "sort", code=1).err
        assert "Missing option" in ntkit("evaluate", folder / "price.ntkit", data, code=2).err


class TestCompare:
    def test_in_a_process(self, folder, tmp_path):
        out = tmp_path / "new" / "folder"
        done = run_process(
            "compare", folder / "train.parquet", "-t", "price", "--drop", "sort", "--components", "64,32", "-o", out
        )
        assert "training rows: 320" in done.stdout
        for kernel in ("linear", "NTK depth 1", "NTK depth 3", "Gaussian ℓ"):
            assert re.search(rf"^{kernel}", done.stdout, re.M)
        for name in ("polynomial", "random", "sketch", "Fourier", "RBFSampler"):
            assert len(re.findall(rf" {name} +(?:32|64) ", done.stdout)) == 4, name
        assert len(re.findall(r" exact +320 ", done.stdout)) == 4
        picture = (out / "comparison.png").read_bytes()
        assert picture[:4] == b"\x89PNG"
        assert len(picture) > 20_000
        page = (out / "comparison.html").read_text(encoding="utf-8")
        assert not re.search(r"https?:|<script|<link|@import|url\(", page)
        assert re.findall(r'src="([^"]{22})', page) == ["data:image/png;base64,"]
        assert "width=device-width" in page
        assert "train.parquet" in page
        assert page.count("<tr") == 1 + 1 + 10 * 2 + 4
        assert re.search("<code>ntkit compare .*train.parquet -t price --drop sort --components 64,32 -o ", page)

    def test_classification_with_seeds_and_without_exact_kernels(self, ntkit, folder):
        arguments = ("compare", folder / "train.npz", "-t", "y", "--components", "32", "--seeds", "2", "--json")
        report = json.loads(ntkit(*arguments, "--max-exact", "100").out)
        assert all(r["map"] != "exact" for r in report["results"])
        assert {r["n_seeds"] for r in report["results"]} == {1, 2}
        assert report["best"]["error"] < 0.15 < report["facts"]["error of a constant"]
        assert report["files"] == []

    def test_errors(self, ntkit, folder):
        data = folder / "train.npz"
        for value in ("a", "0,1", ""):
            done = ntkit("compare", data, "-t", "y", "--components", value, code=2)
            assert "--components must be positive whole numbers" in done.err
        assert "--test must be more than 0" in ntkit("compare", data, "-t", "y", "--test", "0", code=2).err
        assert "has no array 'z'" in ntkit("compare", data, "-t", "z", code=1).err

    def test_exact_ridge_solves_the_system(self, rng):
        from ntkit._commandline.comparison import exact_ridge

        Z = rng.standard_normal((40, 60))
        K, y = Z @ Z.T, rng.standard_normal(40)
        weights, alpha, decode = exact_ridge(K, y, "regression")
        np.testing.assert_allclose(weights[:, 0], np.linalg.solve(K + alpha * np.eye(40), y - y.mean()), rtol=1e-6)
        np.testing.assert_allclose(decode(K @ weights), K @ weights[:, 0] + y.mean())


class TestMain:
    def test_help_has_examples(self, ntkit):
        assert "Examples:" in ntkit("--help").out
        for name in ("fit", "predict", "evaluate", "compare", "demo"):
            out = ntkit(name, "--help").out
            assert f"\n    ntkit {name}" in out
            assert "--json" in out

    def test_version_and_no_command(self, ntkit):
        import ntkit as package

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
        assert json.loads(done.out)["n_rows"] == 400

    def test_interrupt(self, ntkit, monkeypatch):
        def stop(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("ntkit._commandline.commands.evaluate", stop)
        assert ntkit("evaluate", "a", "b", "-t", "c", code=130).err.strip() in ("", "error: interrupted")

    @pytest.mark.parametrize("package", ["typer", "pandas"])
    def test_missing_packages(self, folder, package):
        code = (
            f"import sys; sys.modules['{package}'] = None; from ntkit.cli import main; "
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
