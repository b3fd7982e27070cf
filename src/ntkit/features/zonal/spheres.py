"""Find groups of columns that lie on a sphere, for ``groups="auto"`` of Gegenbauer features.

For points on a sphere around the origin, a weighted sum of the squared columns is constant, so the weights are in the
null space of the centred squares. If several spheres have no column in common, the reduced basis of the null space has
one vector for each sphere. Standardized points of a sphere lie on an ellipsoid around another point. Then a combination
of the squares and the columns themselves is constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ntkit import _array
from ntkit.features.landmarks.choose import take

_SAMPLE = 4096  # number of rows examined
_MOST_COLUMNS = 64  # with more columns, even degree 2 has too many harmonics
_ROWS_PER_COLUMN = 4  # smallest number of rows per column; with fewer rows, combinations may be constant by chance
_CONSTANT = 3e-3  # a combination is constant if its standard deviation, relative to its terms, is at most this
_SMALLEST_WEIGHT = 1e-6  # smaller weights, relative to the largest weight of a combination, are rounding errors
_PARTIAL = 0.25  # rows cover only part of a sphere if their mean is further than this from its centre, in radii
_ELONGATION = 2.0  # an ellipsoid counts as a sphere if its longest axis is at most this times its shortest axis


def find_groups(X: Any, rng: np.random.Generator) -> list[tuple[list[list[int]], np.ndarray]]:
    """Return ways to split the columns: groups, and a point to subtract from rows. Empty if there is no sphere.

    Each sphere is a group. Its point is its centre or, if the rows cover a small part of the sphere, their mean. The
    other columns are one more group. Their point consists of their means or of the middle of their ranges, which suits
    months and other grids. Constant columns are another group, which takes no features.
    """
    n_rows, n_columns = X.shape
    if n_columns > _MOST_COLUMNS or n_rows < _ROWS_PER_COLUMN * (n_columns + 2):
        return []
    rows = _sample(X, rng)
    top = float(np.abs(rows).max())
    if top == 0:
        return []
    rows = rows / top
    mean, middle = rows.mean(axis=0), 0.5 * (rows.min(axis=0) + rows.max(axis=0))
    center = mean.copy()
    values = [len(np.unique(column)) for column in rows.T]
    free = [j for j in range(n_columns) if values[j] > 2]  # columns with two values, such as one-hot, are no sphere
    groups = []
    for search in (_around_origin, _around_any_point):
        for columns, point in search(rows, free):
            groups.append(columns)
            center[columns] = point
            free = [j for j in free if j not in columns]
    taken = sorted(j for columns in groups for j in columns)
    constant = [j for j in range(n_columns) if values[j] == 1]
    others = [j for j in range(n_columns) if values[j] > 1 and j not in taken]
    if not groups or (len(groups[0]) == n_columns and not center.any()):
        return []
    groups = [*sorted(groups), *filter(None, (others, constant))]
    spread = np.linalg.norm((rows - center)[:, taken], axis=1).mean()
    partial = np.linalg.norm((mean - center)[taken]) > _PARTIAL * spread
    centers = [center, mean] if partial else [center]
    if others:
        centers += [np.where(np.isin(np.arange(n_columns), others), middle, point) for point in centers]
    return [(groups, point * top) for point in centers]


def _sample(X: Any, rng: np.random.Generator) -> np.ndarray:
    """Return a sample of the rows, or all rows, in float64 on the host."""
    if X.shape[0] > _SAMPLE:
        chosen = np.sort(rng.choice(X.shape[0], _SAMPLE, replace=False))
        X = take(X, chosen)
    if _array.is_sparse(X):
        X = X.toarray()
    return np.asarray(X.detach().cpu().double() if _array.is_torch(X) else X, dtype=np.float64)


def _around_origin(rows: np.ndarray, free: list[int]) -> list[tuple[list[int], np.ndarray]]:
    """Find spheres around the origin; return the columns and the centre of each."""
    found = _constant_combinations(rows[:, free] ** 2, len(free))
    pairs = ((np.flatnonzero(weights), weights) for weights in found)
    return [([free[j] for j in chosen], np.zeros(len(chosen))) for chosen, w in pairs if _is_round(w[chosen])]


def _around_any_point(rows: np.ndarray, free: list[int]) -> list[tuple[list[int], np.ndarray]]:
    """Find spheres around any point; return the columns and the centre of each."""
    mean, deviation = rows[:, free].mean(axis=0), rows[:, free].std(axis=0)
    if len(free) < 2 or not deviation.all():
        return []
    scaled = (rows[:, free] - mean) / deviation
    if np.linalg.svd(scaled, compute_uv=False)[-1] <= _CONSTANT * len(rows) ** 0.5:
        return []  # linearly dependent columns have no unique centre
    out = []
    for weights in _constant_combinations(np.concatenate([scaled**2, scaled], axis=1), len(free)):
        squared, linear = np.split(weights, 2)
        chosen = np.flatnonzero(squared)
        middle = mean[chosen] - 0.5 * deviation[chosen] * linear[chosen] / squared[chosen]
        if _is_round(squared[chosen] / deviation[chosen] ** 2):
            out.append(([free[j] for j in chosen], middle))
    return out


def _is_round(weights: np.ndarray) -> bool:
    """Return whether the ellipsoid Σ w_j x_j² = 1 is nearly a sphere."""
    return bool(weights.max() <= _ELONGATION**2 * weights.min())


def _constant_combinations(terms: np.ndarray, n_squares: int) -> list[np.ndarray]:
    """Find linear combinations of columns that are constant; return their weights.

    The first `n_squares` columns are squares. Their weights are ≥ 0, at least two are > 0, and no two combinations
    share a square. The other columns, if any, are the columns before squaring; they have a weight only if their square
    has one.
    """
    from scipy.linalg import qr, solve

    deviation = terms.std(axis=0)
    if len(deviation) < 2 or not deviation.all():
        return []
    terms = (terms - terms.mean(axis=0)) / deviation
    _, sizes, right = np.linalg.svd(terms / len(terms) ** 0.5, full_matrices=False)
    rank = int(np.count_nonzero(sizes > _CONSTANT))
    basis = right[rank:]
    if not 0 < len(basis) <= n_squares:
        return []
    pivots = qr(basis[:, :n_squares], pivoting=True, mode="r")[1][: len(basis)]
    if np.linalg.cond(basis[:, pivots]) > 1 / _CONSTANT:
        return []
    smallest = max(_SMALLEST_WEIGHT, 10 * float(sizes[rank]))
    out: list[np.ndarray] = []
    for weights in solve(basis[:, pivots], basis):
        squares = weights[:n_squares]
        counts = np.abs(squares) > smallest * np.abs(weights).max()
        kept = np.where(np.tile(counts, len(weights) // n_squares), weights, 0.0)
        apart = not any((other[:n_squares] * kept[:n_squares]).any() for other in out)
        constant = np.std(terms @ kept) <= 2 * _CONSTANT * np.linalg.norm(kept)
        if apart and constant and counts.sum() > 1 and (squares[counts] > 0).all():
            out.append(kept / deviation)
    return out
