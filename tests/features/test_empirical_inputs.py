"""EmpiricalNTKFeatures: kinds of rows, features on disk, models on top, and bad input."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from tests.features.empirical_modules import CASES, perturbed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ntkit import EmpiricalNTKFeatures, FeatureRidge, FeatureRidgeClassifier
from ntkit.features.empirical import FeatureShards, stores


def net(n_out: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, n_out)).eval()


def data(n: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3


def features(**params: Any) -> EmpiricalNTKFeatures:
    return EmpiricalNTKFeatures(**{"module": net(), "n_components": 40, "random_state": 0} | params)


class Listed:
    """Batches of a list, again and again."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def test_all_kinds_of_rows_give_the_same_features() -> None:
    X, y = data()
    fitted = features().fit(X, y)
    Z = fitted.transform(X, y)
    loader = DataLoader(TensorDataset(X, y), batch_size=6)
    parts = [(X[i : i + 7], y[i : i + 7]) for i in range(0, 20, 7)]
    kinds = [
        (X.numpy(), y.numpy()),
        (X.double().numpy(), y.numpy().astype(np.int32)),
        (X.tolist(), y.tolist()),
        ({"input": X}, y),
        ({"input": X, "labels": y}, None),
        ((X,), y),
        (loader, None),
        (Listed(parts), None),
        (Listed([{"input": a, "labels": b} for a, b in parts]), None),
    ]
    for rows, targets in kinds:
        found = fitted.transform(rows, targets)
        assert isinstance(found, np.ndarray) == (isinstance(rows, np.ndarray | list))
        torch.testing.assert_close(torch.as_tensor(found), Z)
        again = features().fit(rows, targets)
        assert [each["name"] for each in again.layers_] == [each["name"] for each in fitted.layers_]
    torch.testing.assert_close(features().fit_transform(X, y), Z)


def test_padded_batches_of_different_lengths() -> None:
    torch.manual_seed(0)
    case = CASES["cross"]
    module = perturbed(case.make())
    batches = [({"query": torch.randn(4, 3, 8), "memory": torch.randn(4, k, 5)}, torch.arange(4)) for k in (4, 2, 4)]
    loader = Listed([{**x, "labels": y} for x, y in batches])
    with pytest.warns(UserWarning, match="bias_k"):
        fitted = EmpiricalNTKFeatures(module, n_components=50, random_state=0).fit(loader)
    Z = fitted.transform(loader)
    assert Z.shape == (12, 50)
    torch.testing.assert_close(Z[4:8], fitted.transform(*batches[1]))


# On disk.


def test_features_are_written_to_a_memory_map(tmp_path: Path) -> None:
    X, y = data()
    fitted = features(batch_size=3).fit(X, y)
    Z = fitted.transform(X, y).numpy()
    for rows, targets in ((X, y), (DataLoader(TensorDataset(X, y), batch_size=6), None)):
        found = fitted.transform(rows, targets, out=tmp_path / "Z.npy")
        assert isinstance(found, np.memmap)
        np.testing.assert_array_equal(np.load(tmp_path / "Z.npy"), found)
        np.testing.assert_allclose(found, Z, atol=1e-6)


def test_a_folder_of_features_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data()
    monkeypatch.setattr(stores, "SHARD_BYTES", 8 * 40 * 6)
    fitted = features(batch_size=4).fit(X, y)
    Z = fitted.transform(X, y).numpy()
    whole = fitted.transform(X, y, out=tmp_path / "whole")
    assert isinstance(whole, FeatureShards)
    assert whole.shape == (20, 40)
    assert whole.complete
    assert [len(part) for part in whole] == [6, 6, 6, 2]
    np.testing.assert_allclose(np.asarray(whole), Z, atol=1e-6)
    times = {path: path.stat().st_mtime_ns for path in whole.paths}
    whole.paths[-1].unlink()
    whole.paths[-2].unlink()
    assert not FeatureShards(tmp_path / "whole").complete
    again = fitted.transform(X, y, out=tmp_path / "whole")
    np.testing.assert_array_equal(np.asarray(again), np.asarray(whole.__class__(tmp_path / "whole")))
    np.testing.assert_allclose(np.asarray(again), Z, atol=1e-6)
    assert all(path.stat().st_mtime_ns == times[path] for path in again.paths[:2])
    for other, rows in ((features(random_state=1).fit(X, y), X), (fitted, X + 1)):
        with pytest.raises(ValueError, match="holds features of another map"):
            other.transform(rows, y, out=tmp_path / "whole")
    with torch.no_grad():
        fitted.module[0].weight.mul_(2)
    with pytest.raises(ValueError, match="holds features of another map"):
        fitted.transform(X, y, out=tmp_path / "whole")


KILLED = """
import os, sys, torch
from ntkit import EmpiricalNTKFeatures
from ntkit.features.empirical import stores
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)).eval()
X, y = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
stores.SHARD_BYTES = 8 * 40 * 6
features = EmpiricalNTKFeatures(net, n_components=40, batch_size=4, random_state=0).fit(X, y)
written, write = 0, stores._write
def count(*args, **kwargs):
    global written
    if written == int(sys.argv[2]):
        os._exit(9)
    written += 1
    write(*args, **kwargs)
stores._write = count
print(features.transform(X, y, out=sys.argv[1]).shape)
"""


def test_a_killed_process_is_continued(tmp_path: Path) -> None:
    def run(n: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "Z"), str(n)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert run(2).returncode == 9
    assert len(list((tmp_path / "Z").glob("features-*"))) == 2
    assert run(2).returncode == 0  # two more files
    X, y = data()
    expected = features(batch_size=4).fit(X, y).transform(X, y)
    np.testing.assert_allclose(np.asarray(FeatureShards(tmp_path / "Z")), expected, atol=1e-6)


# Models on top.


def test_ridge_on_features_and_its_standard_deviations() -> None:
    X, _ = data(60)
    target = np.sin(2 * X[:, 0].numpy())
    model = FeatureRidge(features(module=net(1), output="logits", n_components=64), random_state=0)
    model.fit(X.numpy(), target)
    assert model.score(X.numpy(), target) > 0.5  # 0.69; the mean of the targets has 0
    std = model.predict(X.numpy(), return_std=True)[1]
    far = model.predict(10 * X.numpy(), return_std=True)[1]
    assert (std > 0).all()
    assert far.mean() > std.mean()
    labels = (target > 0).astype(int)
    model = FeatureRidgeClassifier(features(output="random_logits", n_components=64), random_state=0).fit(X, labels)
    assert model.score(X, labels) > 0.9


def test_few_shots_of_a_network_of_images() -> None:
    images, labels = load_digits(return_X_y=True)
    X = torch.from_numpy((images / 16).astype(np.float32)).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).eval()
    fitted = EmpiricalNTKFeatures(module, n_components=2048, output="random_logits", random_state=0).fit(X[:100])
    model = FeatureRidgeClassifier(FrozenEstimator(fitted), random_state=0).fit(X[:300], labels[:300])
    assert model.score(X[300:600], labels[300:600]) > 0.7  # 0.84; chance has 0.1


# Bad input.


class Mixed(nn.Module):
    """Something wrong, by name."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault, self.layer = fault, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        out = self.layer(x)
        if self.fault == "shape":
            return out.mean()
        if self.fault == "fewer rows":
            return out[:-1]
        if self.fault == "no tensor":
            return {"hidden": out}
        if self.fault == "detached":
            return out.detach()
        if self.fault == "zero":
            return 0.0 * out
        if self.fault == "in place":
            x += out.sum()
        return out


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("shape", "must return a floating-point tensor"),
        ("fewer rows", "one output for each row"),
        ("no tensor", "an object with 'logits'"),
        ("detached", "depends on its parameters"),
        ("zero", "not all zero"),
        ("in place", "does not overwrite"),
    ],
)
def test_modules_that_cannot_be_used(fault: str, text: str) -> None:
    X, y = data()
    with pytest.raises((ValueError, RuntimeError), match=text):
        features(module=Mixed(fault)).fit(X, y)


def test_modes() -> None:
    X, y = data()
    for layer in (nn.BatchNorm1d(6), nn.Dropout(0.5), nn.BatchNorm1d(6, track_running_stats=False)):
        module = nn.Sequential(layer, nn.Linear(6, 3))
        with pytest.raises(ValueError, match=r"module\.eval\(\)|track_running_stats"):
            features(module=module).fit(X, y)
    fitted = features(module=nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).eval()).fit(X, y)
    fitted.module.train()
    with pytest.raises(ValueError, match=r"module\.eval\(\)"):
        fitted.transform(X, y)
    features(module=nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3)).train()).fit(X, y)


def test_parameters_of_modules() -> None:
    X, y = data()
    for module, text in (
        (nn.Flatten(), "a module with parameters"),
        (net().requires_grad_(False), "parameters that require gradients"),
        (nn.Linear(6, 3, device="meta"), "must hold values"),
        (nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3, device="meta")), "on one device"),
    ):
        with pytest.raises(ValueError, match=text):
            features(module=module).fit(X, y)
    for module in (None, nn.Linear, 3):
        with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
            features(module=module).fit(X, y)
    fitted = features().fit(X, y).set_params(module=nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"0\.weight.*Fit the map again"):
        fitted.transform(X, y)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        ({"n_components": 0}, ValueError, "n_components"),
        ({"n_components": 1.5}, TypeError, "n_components"),
        ({"output": "logit"}, ValueError, "'output'.*one of"),
        ({"output": 3}, TypeError, "'output'"),
        ({"output": lambda m, x, _: m(x)}, ValueError, r"shape \(n_rows,\)"),
        ({"layers": "3"}, ValueError, r"'layers'.*The module has '0\.weight'"),
        ({"layers": [1]}, TypeError, "'layers'"),
        ({"n_probe": 0}, ValueError, "n_probe"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"progress": 1}, TypeError, "progress"),
        ({"random_state": -1}, ValueError, "random_state"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_parameters(params: dict[str, Any], error: type[Exception], text: str) -> None:
    X, y = data()
    before = features(**params)
    with pytest.raises(error, match=text):
        before.fit(X, y)
    assert not hasattr(before, "_plan")


def test_rows_and_targets() -> None:
    X, y = data()
    fitted = features().fit(X, y)
    shuffled = DataLoader(TensorDataset(X, y), batch_size=5, shuffle=True)
    for rows, targets, error, text in (
        (X[:0], y[:0], ValueError, "at least one row"),
        (X, y[:5], ValueError, "the same number of rows"),
        (X, y + 3, ValueError, "from 0 to 2"),
        (X, y.double(), TypeError, "classes, given as integers"),
        (X, y[:, None], ValueError, "must have the shape"),
        ({}, None, ValueError, "at least one"),
        (None, None, TypeError, "real numbers"),
        ("rows", None, TypeError, "real numbers"),
        (X * torch.nan, y, ValueError, "needs finite gradients.*row 0"),
        (iter([X]), None, TypeError, "read more than once"),
        (shuffled, None, ValueError, "shuffle=False"),
        (DataLoader(TensorDataset(X, y)), y, ValueError, "'y'.*None"),
        (Listed([]), None, ValueError, "empty loader"),
    ):
        with pytest.raises(error, match=text):
            fitted.transform(rows, targets)
    with pytest.raises(ValueError, match="empty loader"):
        features().fit(Listed([]))
    with pytest.raises(ValueError, match="needs targets"):
        features(output="loss").fit(X)
    with pytest.raises(ValueError, match="shape of the outputs"):
        features(output="loss").fit(X, torch.randn(20, 2))
    features().fit(shuffled)


def test_places_for_features(tmp_path: Path) -> None:
    X, y = data()
    fitted = features().fit(X, y)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="'out'"):
        fitted.transform(X, y, out=tmp_path / "file")
    with pytest.raises(TypeError, match="'out'"):
        fitted.transform(X, y, out=3)
    with pytest.raises(OSError, match="cannot be written"):
        fitted.transform(X, y, out=tmp_path / "no" / "Z.npy")
    with pytest.raises(ValueError, match="number of rows"):
        fitted.transform(Listed([(X, y)]), out=tmp_path / "Z.npy")
    with pytest.raises(FileNotFoundError, match="no features"):
        FeatureShards(tmp_path)
