"""k-means on torch tensors: k-means++ and Lloyd's iteration on their device. NumPy makes all random draws."""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any, NamedTuple

import numpy as np

from ntkit._array import Array
from ntkit._batching import row_batches
from ntkit._precision import exact_products
from ntkit._random import generator


class Clusters(NamedTuple):
    """Result of k-means."""

    labels: Array
    centers: Array
    inertia: float
    """Σ w ‖z − μ‖²."""
    n_iter: int


class WeightedRows(NamedTuple):
    """Rows of features, their squared norms, and their weights (float64)."""

    Z: Any
    squares: Any
    weight: Any

    def batches(self) -> Iterator[slice]:
        """Return slices of rows whose float64 differences from the centres fit into the working memory."""
        return row_batches(self.Z.shape[0], 32 * self.Z.shape[1], like=self.Z)


def as_rows(Z: Any, weight: Any = None) -> WeightedRows:
    """Compute the squared norms of the rows of a tensor. By default all weights are 1."""
    import torch

    weight = torch.ones(Z.shape[0], dtype=torch.float64, device=Z.device) if weight is None else weight
    parts = row_batches(Z.shape[0], 16 * Z.shape[1], like=Z)
    return WeightedRows(Z, torch.cat([(Z[part] * Z[part]).sum(dim=1) for part in parts]), weight)


def lloyd(
    Z: Any,
    n_clusters: int,
    *,
    max_iter: int,
    seed: np.random.SeedSequence,
    weight: Any = None,
    n_init: int = 1,
    tol: float = 0.0,
) -> Clusters:
    """Cluster the rows of Z (float32 or float64); return the best of `n_init` runs of Lloyd's iteration.

    Each run starts from k-means++. It ends when no row changes its cluster, or when the centres move by less than
    `tol`: ‖Δμ‖² ≤ tol times the mean variance of a column. Sums are in float64. An empty cluster gets the row farthest
    from its centre.
    """
    import torch

    mean = Z.mean(dim=0, dtype=torch.float64).to(Z.dtype)
    rows = as_rows(Z - mean, weight)  # centred, as in scikit-learn: less cancellation in squared distances
    tol *= float(rows.squares.mean(dtype=torch.float64)) / Z.shape[1]
    best = None
    with exact_products():
        for run in range(n_init):
            start = plus_plus(rows, n_clusters, generator(seed, "k-means", run))
            found = iterate(rows, start, max_iter, tol)
            best = found if best is None or found.inertia < best.inertia else best
    assert best is not None  # n_init ≥ 1
    return best._replace(centers=best.centers + mean)


def nearest(rows: WeightedRows, centers: Any) -> tuple[Any, Any]:
    """Return the index of the nearest centre and the squared distance to it, for every row."""
    import torch

    Z = rows.Z
    labels = torch.empty(Z.shape[0], dtype=torch.int64, device=Z.device)
    distances = torch.empty(Z.shape[0], dtype=Z.dtype, device=Z.device)
    for part in row_batches(Z.shape[0], 32 * centers.shape[0], like=Z):
        distances[part], labels[part] = _distances(Z[part], rows.squares[part], centers).min(dim=1)
    return labels, distances


def plus_plus(rows: WeightedRows, n_clusters: int, rng: np.random.Generator) -> Any:
    """Choose rows as initial centres by greedy k-means++.

    Each step draws 2 + ⌊log n_clusters⌋ rows with probability ∝ squared distance and keeps the one that lowers the cost
    most.
    """
    import torch

    Z, squares, weight = rows
    n_trials = 2 + int(log(n_clusters))
    uniforms = torch.from_numpy(rng.random((n_clusters, n_trials))).to(Z.device)
    picks = torch.empty(n_clusters, dtype=torch.int64, device=Z.device)
    picks[0] = _pick(weight, uniforms[0, :1])[0]
    closest = _distances(Z, squares, Z[picks[:1]])[:, 0]
    for number in range(1, n_clusters):
        trials = _pick(closest * weight, uniforms[number])
        trial = torch.minimum(closest[:, None], _distances(Z, squares, Z[trials]))
        best = (trial * weight[:, None]).sum(dim=0).argmin()
        picks[number], closest = trials[best], trial[:, best]
    return Z[picks]


def iterate(rows: WeightedRows, centers: Any, max_iter: int, tol: float) -> Clusters:
    """Run Lloyd's iteration from the given centres; `tol` bounds ‖Δμ‖² itself."""
    import torch

    labels, stable = None, False
    n_iter = 0
    while n_iter < max_iter and not stable:
        n_iter += 1
        old_labels, (labels, distances) = labels, nearest(rows, centers)
        old_centers, centers = centers, means(rows, labels, distances, centers)
        stable = old_labels is not None and torch.equal(labels, old_labels)
        if not stable and float(((centers - old_centers) ** 2).sum()) <= tol:
            break
    if not stable:  # the labels belong to the previous centres
        labels = nearest(rows, centers)[0]
    return Clusters(labels, centers, _inertia(rows, labels, centers), n_iter)


def means(rows: WeightedRows, labels: Any, distances: Any, centers: Any) -> Any:
    """Compute the weighted means of the clusters. Empty clusters first get the rows farthest from their centres."""
    import torch

    Z, _, weight = rows
    counts = torch.zeros(len(centers), dtype=torch.float64, device=Z.device).index_add_(0, labels, weight)
    empty = torch.nonzero(counts == 0)[:, 0]
    if len(empty):
        far = torch.topk(distances * (weight > 0), min(len(empty), len(Z)))
        far_rows = far.indices[far.values > 0]  # none if every row equals its centre
        labels[far_rows] = empty[: len(far_rows)]
        counts = torch.zeros_like(counts).index_add_(0, labels, weight)
    sums = torch.zeros(centers.shape, dtype=torch.float64, device=Z.device)
    for part in rows.batches():
        sums.index_add_(0, labels[part], Z[part] * weight[part, None])
    filled = (counts > 0)[:, None]
    return torch.where(filled, (sums / torch.where(filled, counts[:, None], 1.0)).to(Z.dtype), centers)


def _distances(Z: Any, squares: Any, centers: Any) -> Any:
    """Compute the squared distances of all rows from all centres."""
    products = squares[:, None] + (centers * centers).sum(dim=1)[None, :] - 2 * (Z @ centers.T)
    return products.clamp_(min=0)


def _pick(mass: Any, uniforms: Any) -> Any:
    """Pick indices with probability ∝ mass."""
    import torch

    marks = torch.cumsum(mass, dim=0, dtype=torch.float64)
    return torch.searchsorted(marks, uniforms * marks[-1], right=True).clamp_(max=len(mass) - 1)


def _inertia(rows: WeightedRows, labels: Any, centers: Any) -> float:
    """Compute Σ w ‖z − μ‖² from differences, in float64."""
    import torch

    total = torch.zeros((), dtype=torch.float64, device=centers.device)
    for part in rows.batches():
        difference = (rows.Z[part] - centers[labels[part]]).to(torch.float64)
        total += ((difference * difference).sum(dim=1) * rows.weight[part]).sum()
    return float(total)
