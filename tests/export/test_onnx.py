"""ONNX files equal the estimators in onnxruntime for any number of rows; refusals; files are complete or absent."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from sklearn.pipeline import make_pipeline
from tests.torch_modules.subjects import (
    CLASSIFIERS,
    IMAGE_MAPS,
    MAPS,
    REGRESSORS,
    fitted,
    labels,
    new_data,
    rows,
    targets,
)

import ntkit
from ntkit.export import ExportError, to_onnx
from ntkit.graphs import estimator_graph, precision, run


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_file(path, X):
    session = session_of(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"X": X}), strict=True))


def error(found, true):
    return np.abs(found - true).max() / np.abs(true).max()


@pytest.mark.parametrize("name", [*MAPS, *IMAGE_MAPS])
def test_maps(name, tmp_path):
    path, estimator = tmp_path / "map.onnx", fitted(name)
    to_onnx(estimator, path)
    onnx.checker.check_model(str(path), full_check=True)
    for n in (5, 2):
        X = new_data(name, n).astype(np.float32)
        found = run_file(path, X)["features"]
        assert found.dtype == np.float32
        assert error(found, np.asarray(estimator.transform(X.astype(np.float64)))) < 1e-5


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name, tmp_path):
    path, estimator = tmp_path / "model.onnx", fitted(name)
    to_onnx(estimator, path)
    X = new_data(name, 50).astype(np.float32)
    assert error(run_file(path, X)["prediction"], estimator.predict(X.astype(np.float64))) < 1e-5


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_give_labels_and_probabilities(name, tmp_path):
    path, estimator = tmp_path / "model.onnx", fitted(name)
    to_onnx(estimator, path)
    X = new_data(name, 50).astype(np.float32)
    found = run_file(path, X)
    assert found["label"].tolist() == estimator.predict(X).tolist()
    assert error(found["probabilities"], estimator.predict_proba(X)) < 1e-5


def test_labels_of_numbers_and_several_targets(tmp_path):
    X, path = rows(), tmp_path / "model.onnx"
    for y in ((X[:, 0] > 0).astype(int) * 7, X[:, 0] > 0, np.where(X[:, 0] > 0, 2.0, 3.0)):
        model = ntkit.FeatureRidgeClassifier(ntkit.NTKFeatures(n_components=16, random_state=0), random_state=0)
        to_onnx(model.fit(X, y), path)
        found = run_file(path, X.astype(np.float32))["label"]
        assert found.tolist() == model.predict(X).tolist()
    model = ntkit.FeatureRidge(ntkit.NTKFeatures(n_components=16, random_state=0), random_state=0).fit(X, X[:, :2])
    to_onnx(model, path)
    assert run_file(path, X.astype(np.float32))["prediction"].shape == (60, 2)


def test_float64(tmp_path):
    for name in ("ntk", "nystroem laplace", "kernel ridge gaussian"):
        path, X = tmp_path / "model.onnx", new_data(name)
        to_onnx(fitted(name), path, dtype="float64")
        (found,) = run_file(path, X).values()
        estimator = fitted(name)
        true = estimator.transform(X) if hasattr(estimator, "transform") else estimator.predict(X)
        assert found.dtype == np.float64
        assert error(found, true) < 1e-10


def test_rows_that_coincide_with_landmarks(tmp_path):
    """A float32 product loses their distances, and kernels with cusps would show it: these are computed in float64."""
    X, path = rows(200, 30).astype(np.float32), tmp_path / "map.onnx"
    for kernel in ("laplace", "ntk"):
        estimator = ntkit.NystroemFeatures(kernel, n_components=50, random_state=0).fit(X)
        to_onnx(estimator, path)
        true = estimator.transform(X)
        assert error(run_file(path, X)["features"], true) < 1e-5
        planted = run(precision.all_single(estimator_graph(estimator, "test")), X)["features"]
        assert error(planted, true) > 1e-5


def test_search_and_average(tmp_path):
    X, path = rows(300), tmp_path / "model.onnx"
    model = ntkit.FeatureRidgeSearch(time_budget=3.0, n_components=64, random_state=0).fit(X, targets(X))
    to_onnx(model, path)
    assert error(run_file(path, X.astype(np.float32))["prediction"], model.predict(X)) < 1e-5


def test_refusals_write_nothing(tmp_path):
    X, path = rows(), tmp_path / "model.onnx"
    path.write_bytes(b"old")
    gram = ntkit.GramRidge(ntkit.NTKFeatures(n_components=8), random_state=0).fit(X, X[:, 0])
    with pytest.raises(ExportError, match="This GramRidge cannot be exported to ONNX"):
        to_onnx(gram, path)
    from sklearn.preprocessing import QuantileTransformer

    pipeline = make_pipeline(QuantileTransformer(n_quantiles=10), ntkit.FeatureRidge()).fit(X, X[:, 0])
    with pytest.raises(ExportError, match="The step QuantileTransformer"):
        to_onnx(pipeline, path)
    with pytest.raises(Exception, match="not fitted"):
        to_onnx(ntkit.NTKFeatures(), path)
    with pytest.raises(ValueError, match="'dtype' parameter of to_onnx"):
        to_onnx(fitted("ntk"), path, dtype="int8")
    with pytest.raises(ValueError, match=r"'X' parameter of to_onnx must be rows of the shape \(6,\)"):
        to_onnx(fitted("ntk"), path, X=np.ones((3, 5)))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_models_that_depend_on_rounding_are_refused(tmp_path):
    """No order of sums is equal to the last digit."""
    with pytest.raises(ExportError, match=r"depend on rounding errors.*float64"):
        to_onnx(fitted("kernel ridge"), tmp_path / "model.onnx", X=rows(50, 6, 3), tolerance=1e-18)
    assert not list(tmp_path.iterdir())


def test_needs_no_torch(tmp_path):
    code = f"""
import sys
import numpy as np
import ntkit
from ntkit.export import to_onnx
X = np.random.default_rng(0).standard_normal((50, 3))
to_onnx(ntkit.NTKFeatures(n_components=16, random_state=0).fit(X), {str(tmp_path / "x.onnx")!r})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "x.onnx").stat().st_size > 100


def test_text_labels_in_other_alphabets(tmp_path):
    X, path = rows(), tmp_path / "model.onnx"
    y = np.array(["größer", "меньше", "=1+1"])[(labels(X) == "low") + 2 * (labels(X) == "high")]
    model = ntkit.KernelRidgeClassifier("gaussian", alphas=0.1).fit(X, y)
    to_onnx(model, path)
    assert run_file(path, X.astype(np.float32))["label"].tolist() == model.predict(X).tolist()
