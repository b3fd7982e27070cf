"""Influence scores against their formula, in blocks, over checkpoints; mislabelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ntkit import EmpiricalNTKFeatures
from ntkit.attribution import TrainingInfluence, residuals
from ntkit.features.empirical import stores


def naive(Z: np.ndarray, T: np.ndarray, r: np.ndarray, alpha: float) -> np.ndarray:
    """z(x)ᵀ (ZᵀZ + α)⁻¹ z(xᵢ) rᵢ, one by one."""
    inverse = np.linalg.inv(Z.T @ Z + alpha * np.eye(Z.shape[1]))
    return np.array([[t @ inverse @ z * w for z, w in zip(Z, r, strict=True)] for t in T])


def rows(n: int = 30, m: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, m))


@pytest.mark.parametrize("batch_size", [1, 7, 4096])
@pytest.mark.parametrize("kind", ["array", "tensor", "map", "shards"])
def test_scores_and_the_largest_of_them(kind: str, batch_size: int, tmp_path: Path) -> None:
    Z, T, r = rows(), rows(9, seed=1), np.random.default_rng(2).random(30)
    given: Any = {"array": Z, "tensor": torch.from_numpy(Z)}.get(kind)
    if kind == "map":
        np.save(tmp_path / "Z.npy", Z)
        given = np.load(tmp_path / "Z.npy", mmap_mode="r")
    elif kind == "shards":
        given = stores.write_shards(tmp_path, "me", lambda start: iter([Z[start:]]), n_rows_per_shard=11)
    influence = TrainingInfluence(shrinkage=0.1, batch_size=batch_size).fit(given, r)
    alpha = 0.1 * np.linalg.eigvalsh(Z.T @ Z).mean()
    expected = naive(Z, T, r, alpha)
    np.testing.assert_allclose(influence.scores(T), expected, atol=1e-12)
    np.testing.assert_allclose(influence.self_influence(), np.diag(naive(Z, Z, r**2, alpha)), atol=1e-12)
    for harmful in (False, True):
        order = np.argsort(expected if harmful else -expected, axis=1)[:, :4]
        indices, scores = influence.top_k(T, 4, harmful=harmful)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_allclose(scores, np.take_along_axis(expected, order, axis=1), atol=1e-12)


def test_checkpoints_are_averaged() -> None:
    Zs, Ts = [rows(seed=s, m=m) for s, m in ((0, 8), (1, 5))], [rows(4, m, seed=7) for m in (8, 5)]
    r = [np.random.default_rng(s).random(30) for s in (3, 4)]
    influence = TrainingInfluence().fit(Zs, r)
    parts = [naive(Z, T, np.ones(30), a) for Z, T, a in zip(Zs, Ts, influence.alphas_, strict=True)]
    np.testing.assert_allclose(influence.scores(Ts), sum(parts) / 2 * np.mean(r, axis=0), atol=1e-12)


def test_default_penalty_and_fewer_rows_than_features() -> None:
    Z = rows(5, 20)
    influence = TrainingInfluence().fit(Z)
    assert influence.alphas_ == pytest.approx([(Z**2).sum() / 5])
    np.testing.assert_allclose(influence.scores(Z), naive(Z, Z, np.ones(5), influence.alphas_[0]), atol=1e-10)


def test_scores_are_changes_of_ridge_regression() -> None:
    """Leaving out one row of a linear model changes a prediction by the score times the residual over 1 − leverage."""
    Z, T, y = rows(), rows(3, seed=1), rows(m=1, seed=2)[:, 0]
    influence = TrainingInfluence(shrinkage=0.01).fit(Z)
    (alpha,) = influence.alphas_

    def fit(keep: np.ndarray) -> np.ndarray:
        return np.linalg.solve(Z[keep].T @ Z[keep] + alpha * np.eye(8), Z[keep].T @ y[keep])

    whole = np.arange(30)
    weights = fit(whole)
    leverage = influence.self_influence()
    predicted = influence.scores(T) * (y - Z @ weights) / (1 - leverage)
    true = np.array([[t @ (weights - fit(np.delete(whole, i))) for i in whole] for t in T])
    np.testing.assert_allclose(predicted, true, atol=1e-10)


def test_residuals_are_one_minus_the_probability_of_the_class() -> None:
    torch.manual_seed(0)
    module, X, y = nn.Linear(4, 3), torch.randn(10, 4), torch.arange(10) % 3
    p = torch.softmax(module(X), 1)[torch.arange(10), y].detach().numpy()
    np.testing.assert_allclose(residuals(module, X, y, batch_size=4), 1 - p, atol=1e-6)
    with pytest.raises(ValueError, match="one class for each row"):
        residuals(module, X)


def test_flipped_labels_have_large_self_influence() -> None:
    """Two well separated clouds; 10 of 200 labels flipped. A random tenth would hold one of them."""
    torch.manual_seed(0)
    y = torch.arange(200) % 2
    X = torch.randn(200, 5) + 4.0 * y[:, None]
    flipped = np.arange(0, 200, 20)
    y[flipped] = 1 - y[flipped]
    module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(X), y).backward()
        optimizer.step()
    Z = EmpiricalNTKFeatures(module.eval(), n_components=64, random_state=0).fit_transform(X, y)
    found = TrainingInfluence().fit(Z, residuals(module, X, y)).self_influence()
    top = np.argsort(-found)[:20]
    assert np.isin(flipped, top).mean() >= 0.9


def test_bad_input(tmp_path: Path) -> None:
    Z = rows()
    influence = TrainingInfluence().fit(Z)
    for call, text in (
        (lambda: TrainingInfluence(shrinkage=-1.0).fit(Z), "'shrinkage'"),
        (lambda: TrainingInfluence(batch_size=0).fit(Z), "'batch_size'"),
        (lambda: TrainingInfluence(shrinkage=0.0).fit(np.ones((30, 3))), "singular"),
        (lambda: TrainingInfluence().fit(Z * np.nan), "finite"),
        (lambda: TrainingInfluence().fit(torch.from_numpy(Z * np.nan)), "NaN and infinity"),
        (lambda: TrainingInfluence().fit([Z, Z[:5]]), "the same number of rows"),
        (lambda: TrainingInfluence().fit(Z, np.ones(5)), "'residuals'"),
        (lambda: influence.scores(Z[:, :3]), "components for the checkpoints"),
        (lambda: influence.scores([Z, Z]), "components for the checkpoints"),
        (lambda: influence.top_k(Z, 31), "from 1 to 30"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    shards = stores.write_shards(tmp_path, "me", lambda start: iter([Z[start:]]), n_rows_per_shard=11)
    shards.paths[-1].unlink()
    with pytest.raises(ValueError, match="resumes where it stopped"):
        TrainingInfluence().fit(stores.FeatureShards(tmp_path))
