"""Sums over rows from which ridge regression is solved: they can be added up block by block, in any order.

With weights w, features z and targets y of the rows, W = Σ w and means z̄, ȳ, the sums are

    G = Σ w (z − z̄)(z − z̄)ᵀ,   C = Σ w (z − z̄)(y − ȳ)ᵀ,   s = Σ w (y − ȳ)²,

kept about their own means: large means then cost no digits, and a model without an intercept gets
Σ w z zᵀ = G + W z̄z̄ᵀ back. A block is centred at a point c near z̄ before it is multiplied out, in its own precision, and
added in float64; with its sums S = Σ w (z − c)(z − c)ᵀ, r = Σ w (z − c) and its weight V,

    G ← G + S − r rᵀ/V + (W V/(W + V)) δδᵀ,   δ = c + r/V − z̄        (Chan, Golub, LeVeque 1983).

A float32 product over b rows has relative errors of some √b · 6·10⁻⁸ at random, which average out over the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._precision import exact_products

FLUSH = 16384  # rows whose products are added up in float32 before float64 takes them over
_FAST_DOUBLE = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))  # compute capabilities that are fast at float64
_SUMS = ("gram", "cross", "z_mean", "y_mean", "y_square")
_CORRECTIONS = 64  # rank-one terms that wait for each other
_SMALL = 1024  # blocks with fewer rows wait for others: each product passes over all of G


@dataclass
class Sample:
    """The `size` rows with the smallest keys: a sample without replacement that does not depend on the blocks."""

    size: int
    keys: np.ndarray = field(default_factory=lambda: np.empty(0))
    Z: Array = None
    Y: Array = None
    weight: Array = None

    def add(self, keys: np.ndarray, Z: Array, Y: Array, weight: Array) -> None:
        """Take in those of some rows that belong to the sample."""
        if len(self.keys) == self.size:
            chosen = np.flatnonzero(keys < self.keys.max(initial=-np.inf))
        else:
            chosen = np.arange(len(keys))
        if len(chosen) > self.size:
            chosen = np.sort(chosen[np.argpartition(keys[chosen], self.size)[: self.size]])
        if len(chosen) == 0:
            return
        new = [keys[chosen], _take(Z, chosen), _take(Y, chosen), _take(weight, chosen)]
        if self.Z is not None:
            old = [self.keys, self.Z, self.Y, self.weight]
            new = [_concatenate(a, b) for a, b in zip(old, new, strict=True)]
        order = np.argsort(new[0], kind="stable")[: self.size]
        self.keys, self.Z, self.Y, self.weight = (_take(a, order) for a in new)


class Statistics:
    """Sums over rows, for `n_components` features and `n_targets` targets.

    As long as there are no more rows than features, the rows themselves are kept: they take less room, and the dual
    problem on them is the smaller one.

    Parameters
    ----------
    n_components, n_targets : int
    sample_size : int
        Rows kept apart, at random, to estimate errors by.
    """

    def __init__(self, n_components: int, n_targets: int, sample_size: int = 0):
        self.n_components = n_components
        self.n_targets = n_targets
        self.sample = Sample(sample_size)
        self.count = 0
        self.weight = 0.0
        self.z_mean: Array = None
        self.y_mean: Array = None
        self.gram: Array = None  # G, its lower triangle
        self.cross: Array = None
        self.y_square: Array = None
        self._pending: list[tuple[Array, Array, Array, np.ndarray]] = []
        self._n_pending = 0
        self._partial: Array = None  # products in single precision that G does not have yet
        self._n_partial = 0
        self._corrections: list[tuple[Array, float]] = []  # rank-one terms that it does not have yet

    def add(self, Z: Array, Y: Array, weight: Array, keys: np.ndarray) -> None:
        """Add rows: features (n, m), which may be overwritten, targets (n, k), weights (n,), float64 both, and keys."""
        if not Z.shape[0]:
            return
        self.count += int(Z.shape[0])
        self._pending.append((Z, Y, weight, keys))
        self._n_pending += int(Z.shape[0])
        if self._n_pending >= _SMALL and (self.gram is not None or self._n_pending > self.n_components):
            self._multiply()

    def merge(self, other: Statistics) -> None:
        """Add the sums of other rows."""
        other = copy(other.finish())
        other.sample = copy(other.sample)
        n_targets = max(self.n_targets, other.n_targets)
        self.place_targets(range(self.n_targets), n_targets)
        other.place_targets(range(other.n_targets), n_targets)
        rows = other._pending
        if other.gram is not None and self.gram is None:
            other.gram, other.cross, other.y_square = other.gram + 0.0, other.cross + 0.0, other.y_square + 0.0
            other._pending, other._corrections = [], []
            rows, self.__dict__ = self._pending, other.__dict__
        elif other.gram is not None:
            self._merge_sums(other)
        for Z, *others in rows:
            self.add(Z + 0.0, *others)

    def _merge_sums(self, other: Statistics) -> None:
        self.finish()
        total = self.weight + other.weight
        delta, y_delta = other.z_mean - self.z_mean, other.y_mean - self.y_mean
        factor = self.weight * other.weight / total if total else 0.0
        self.gram += other.gram
        add_outer(self.gram, delta[:, None], [factor])
        self.cross += other.cross + factor * _outer(delta, y_delta)
        self.y_square += other.y_square + factor * y_delta**2
        self._move_means(other.z_mean, other.y_mean, other.weight)
        self.count += other.count
        sample = other.sample
        if sample.Z is not None:
            self.sample.add(sample.keys, sample.Z, sample.Y, sample.weight)

    def total_weight(self) -> float:
        """Sum of the weights of all rows."""
        return self.weight + sum(float(block[2].sum()) for block in self._pending)

    def place_targets(self, columns: Sequence[int], n_targets: int) -> None:
        """Move the targets to certain columns of more; the others are zero for all rows so far."""
        if n_targets == self.n_targets and list(columns) == list(range(n_targets)):
            return
        self.n_targets = n_targets
        self._pending = [(Z, _place(Y, columns, n_targets), w, keys) for Z, Y, w, keys in self._pending]
        if self.sample.Z is not None:
            self.sample.Y = _place(self.sample.Y, columns, n_targets)
        if self.gram is not None:
            self.cross = _place(self.cross, columns, n_targets)
            self.y_mean = _place(self.y_mean[None], columns, n_targets)[0]
            self.y_square = _place(self.y_square[None], columns, n_targets)[0]

    def finish(self) -> Self:
        """Bring everything into the sums, unless the rows are kept."""
        if self._n_pending and (self.gram is not None or self._n_pending > self.n_components):
            self._multiply()
        self._flush()
        self._correct()
        return self

    def rows(self) -> tuple[Array, Array, Array, np.ndarray] | None:
        """All features, targets, weights and keys if the rows are kept, else None."""
        if self.gram is not None or not self._pending:
            return None
        if len(self._pending) > 1:
            Z, Y, weight, keys = (_concatenate(*parts) for parts in zip(*self._pending, strict=True))
            self._pending = [(Z, Y, weight, keys)]
        return self._pending[0]

    @property
    def settled(self) -> bool:
        """Whether all rows are in the sums, or in rank-one terms to them."""
        return self.gram is not None and not self._pending and self._n_partial == 0

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and numbers from which :meth:`restore` makes these statistics again.

        To be called on statistics that are settled or finished.
        """
        rows = self.rows()
        arrays: dict[str, Any] = {"sample_keys": self.sample.keys}
        if rows is not None:
            arrays |= dict(zip(("Z", "Y", "weight", "keys"), rows, strict=True))
        elif self.gram is not None:
            arrays |= {name: getattr(self, name) for name in _SUMS}
        if self._corrections:
            arrays["corrections"] = np.stack([_to_host(vector) for vector, _ in self._corrections])
        if self.sample.Z is not None:
            arrays |= {f"sample_{name}": getattr(self.sample, name) for name in ("Z", "Y", "weight")}
        numbers = {
            "n_components": self.n_components,
            "n_targets": self.n_targets,
            "sample_size": self.sample.size,
            "count": self.count,
            "weight": self.weight,
            "corrections": [factor for _, factor in self._corrections],
            "device": str(_array.device(arrays["Z"] if rows else self.gram)) if len(arrays) > 1 else "cpu",
        }
        return {name: _to_host(array) for name, array in arrays.items()}, numbers

    @classmethod
    def restore(cls, arrays: dict[str, np.ndarray], numbers: dict[str, Any]) -> Statistics:
        """Statistics with a certain state."""
        new = cls(numbers["n_components"], numbers["n_targets"], numbers["sample_size"])
        values: dict[str, Any] = {name: _to_device(array, numbers["device"]) for name, array in arrays.items()}
        new.count, new.weight = numbers["count"], numbers["weight"]
        new.sample.keys = arrays["sample_keys"]
        if "gram" in values:
            for name in _SUMS:
                setattr(new, name, values[name])
        new._corrections = list(zip(values.get("corrections", ()), numbers["corrections"], strict=True))
        if "sample_Z" in values:
            new.sample.Z, new.sample.Y, new.sample.weight = (values[f"sample_{name}"] for name in ("Z", "Y", "weight"))
        if "Z" in values:
            new._pending = [(values["Z"], values["Y"], values["weight"], arrays["keys"])]
            new._n_pending = len(arrays["Z"])
        return new

    def _multiply(self) -> None:
        """Bring the pending rows into the sums."""
        pending, self._pending, self._n_pending = self._pending, [], 0
        while pending:
            Z, Y, weight, keys = pending.pop(0)
            while pending and Z.shape[0] + pending[0][0].shape[0] <= FLUSH and Z.shape[0] < _SMALL:
                Z, Y, weight, keys = (
                    _concatenate(*parts) for parts in zip((Z, Y, weight, keys), pending.pop(0), strict=True)
                )
            if self.sample.size:
                self.sample.add(keys, Z, Y, weight)
            self._add_block(Z, Y, weight)

    def _add_block(self, Z: Array, Y: Array, weight: Array) -> None:
        xp: Any = _array.namespace(Z)
        if self.gram is None:
            self._begin(Z)
        block_weight = float(xp.sum(weight))
        if block_weight == 0.0:
            return
        # A point near the mean, exact in the precision of Z: the mean so far, or that of some first rows.
        some = slice(0, _SMALL if float(xp.sum(weight[:_SMALL])) else None)
        share = weight[some] / xp.sum(weight[some])
        z_c = self.z_mean if self.weight else xp.matmul(share, xp.astype(Z[some, :], xp.float64))
        y_c = self.y_mean if self.weight else xp.matmul(share, Y[some, :])
        c = xp.astype(z_c, Z.dtype)
        Z -= c
        Y = Y - y_c
        root = xp.sqrt(weight)
        if not bool(xp.all(weight == 1.0)):
            Z *= xp.astype(root, Z.dtype)[:, None]
        # One product gives Σ w (z − c)(y − y_c)ᵀ and Σ w (z − c).
        sides = xp.astype(xp.concat([Y * root[:, None], root[:, None]], axis=1), Z.dtype)
        product = xp.astype(xp.matmul(Z.T, sides), xp.float64)
        cross, r = product[:, :-1], product[:, -1]
        y_r = xp.matmul(weight, Y)
        y_square = xp.matmul(weight, Y**2)
        delta = xp.astype(c, xp.float64) + r / block_weight - self.z_mean
        y_delta = y_c + y_r / block_weight - self.y_mean
        factor = self.weight * block_weight / (self.weight + block_weight)
        self._corrections.append((r, -1 / block_weight))
        if factor:
            self._corrections.append((delta, factor))
        self.cross += cross - _outer(r, y_r / block_weight) + factor * _outer(delta, y_delta)
        self.y_square += y_square - y_r**2 / block_weight + factor * y_delta**2
        self._move_means(self.z_mean + delta, self.y_mean + y_delta, block_weight)
        self._add_product(Z)

    def _begin(self, Z: Array) -> None:
        xp: Any = _array.namespace(Z)
        where = {"dtype": xp.float64, "device": _array.device(Z)}
        m, k = self.n_components, self.n_targets
        self.gram = xp.zeros((m, m), **where)
        self.cross = xp.zeros((m, k), **where)
        self.z_mean = xp.zeros(m, **where)
        self.y_mean, self.y_square = xp.zeros(k, **where), xp.zeros(k, **where)

    def _move_means(self, z_mean: Array, y_mean: Array, weight: float) -> None:
        """Combine the means with those of other rows."""
        self.weight += weight
        share = weight / self.weight if self.weight else 0.0
        self.z_mean = self.z_mean + share * (z_mean - self.z_mean)
        self.y_mean = self.y_mean + share * (y_mean - self.y_mean)

    def _add_product(self, Z: Array) -> None:
        """Add ZᵀZ to the lower triangle of the Gram matrix, by way of single precision if that is Z's."""
        if not _array.is_numpy(Z):
            _add_on_device(self.gram, Z)
        elif Z.dtype == np.float64:
            _syrk(Z, self.gram)
        else:
            if self._partial is None:
                self._partial = np.zeros((self.n_components, self.n_components), dtype=np.float32)
            _syrk(Z, self._partial)
        self._n_partial += int(Z.shape[0])
        if self._n_partial >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        """Add what waits for it to the Gram matrix."""
        if self._partial is not None and self._n_partial:
            _add_triangle(self.gram, self._partial)
        self._n_partial = 0
        if len(self._corrections) >= _CORRECTIONS:
            self._correct()

    def _correct(self) -> None:
        """Add the rank-one terms to the Gram matrix."""
        if self._corrections:
            xp: Any = _array.namespace(self.gram)
            vectors = xp.stack([vector for vector, _ in self._corrections], axis=1)
            add_outer(self.gram, vectors, [factor for _, factor in self._corrections])
            self._corrections = []

    def __getstate__(self) -> dict[str, Any]:
        self.finish()
        return self.__dict__ | {"_partial": None}


def _syrk(Z: np.ndarray, out: np.ndarray) -> None:
    """Add ZᵀZ to the lower triangle of `out`."""
    from scipy.linalg import blas

    syrk = blas.ssyrk if Z.dtype == np.float32 else blas.dsyrk
    # Fortran sees both transposed: its upper triangle is the lower one here, and nothing is copied.
    result = syrk(1.0, Z.T, beta=1.0, c=out.T, overwrite_c=True, lower=False)
    assert np.shares_memory(result, out)


def _add_triangle(total: np.ndarray, part: np.ndarray) -> None:
    """Move the lower triangle of `part` into that of `total`."""
    from ntkit._batching import run_on_threads

    def work(start: int) -> None:
        rows, columns = slice(start, start + step), slice(0, start + step)
        total[rows, columns] += part[rows, columns]
        part[rows, columns] = 0

    step = 256
    run_on_threads(work, range(0, len(total), step))


def add_outer(total: Array, vectors: Array, factors: list[float]) -> None:
    """Add Σ_j factor_j v_j v_jᵀ, v_j the columns of `vectors`, to the lower triangle of `total`."""
    xp: Any = _array.namespace(total)
    scaled = vectors * xp.asarray(factors, dtype=total.dtype, device=_array.device(total))
    step = 256 if _array.is_numpy(total) else int(total.shape[0])
    for start in range(0, int(total.shape[0]), step):
        rows, columns = slice(start, start + step), slice(0, start + step)
        total[rows, columns] += xp.matmul(scaled[rows], vectors[columns].T)


def _add_on_device(total: Any, Z: Any) -> None:
    """Add ZᵀZ to the lower triangle of a torch matrix, in float64 where the device is fast at it, never in TF32."""
    import torch

    if Z.device.type != "cuda" or torch.cuda.get_device_capability(Z.device) in _FAST_DOUBLE:
        Z = Z.to(total.dtype)
        step = max(len(total) // 8, 1024)  # panels: a little more than half of the products
        for start in range(0, len(total), step):
            total[start:, start : start + step].addmm_(Z[:, start:].T, Z[:, start : start + step])
        return
    with exact_products():
        total += Z.T @ Z


def _outer(a: Array, b: Array) -> Array:
    return a[:, None] * b[None, :]


def _take(values: Array, chosen: np.ndarray) -> Array:
    """Copies of some rows."""
    if _array.is_torch(values):
        import torch

        return values[torch.from_numpy(chosen).to(values.device)]
    return values[chosen]


def _concatenate(*parts: Array) -> Array:
    return _array.namespace(*parts).concat(parts, axis=0)


def _place(Y: Array, columns: Sequence[int], n_columns: int) -> Array:
    """Columns of Y at certain places among columns of zeros."""
    out = _array.namespace(Y).zeros((Y.shape[0], n_columns), dtype=Y.dtype, device=_array.device(Y))
    out[:, list(columns)] = Y
    return out


def _to_host(values: Array) -> np.ndarray:
    return values.cpu().numpy() if _array.is_torch(values) else values


def _to_device(values: np.ndarray, device: str) -> Array:
    if device == "cpu":
        return values
    import torch

    return torch.as_tensor(values, device=device)
