"""Sums over rows from which ridge regression is solved. They are accumulated block by block, in any order.

With weights w, features z and targets y of the rows, W = Σ w and means z̄, ȳ, the sums are

    G = Σ w (z − z̄)(z − z̄)ᵀ,   C = Σ w (z − z̄)(y − ȳ)ᵀ,   s = Σ w (y − ȳ)²,

about the means, so that large means cost no digits; a model without an intercept uses Σ w z zᵀ = G + W z̄z̄ᵀ. A block is
centred at a point c near z̄, multiplied in its own precision, and added in float64. With its sums
S = Σ w (z − c)(z − c)ᵀ, r = Σ w (z − c) and its weight V,

    G ← G + S − r rᵀ/V + (W V/(W + V)) δδᵀ,   δ = c + r/V − z̄        (Chan, Golub, LeVeque 1983).

A float32 product over b rows has random relative errors of about √b · 6·10⁻⁸, which average out over the blocks. If
one row is so large that these errors would hide the others, the product is in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._lapack import add_gram
from ntkit._precision import exact_products
from ntkit._state import Declared, Field, Floats, Integer, Optional, Part, Real
from ntkit.models._checks import n_units, to_library
from ntkit.models._linalg import EPS, diagonal

FLUSH = 16384  # products of this many rows are summed in float32 before they are added in float64
_FAST_DOUBLE = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))  # CUDA compute capabilities with fast float64
_SUMS = ("gram", "cross", "z_mean", "y_mean", "y_square")
_MIN_SQUARES, _MAX_SQUARES = 1e-20, 1e36  # float32 can hold sums of squares of a block in this range, with a margin
_MAX_UNEVEN = 1e6  # with a larger ratio of the largest ‖z‖² to the median, products are in float64
_CORRECTIONS = 64  # rank-one terms that are collected before they are added to G
_SMALL = 1024  # smaller blocks are collected first, since each product passes over all of G


@dataclass
class KeptRows(Declared):
    """Features (n, m), targets (n, k) and weights (n,) of rows, and the random keys that select samples."""

    Z: Array
    Y: Array
    weight: Array
    keys: np.ndarray

    _state: ClassVar[dict[str, Field]] = {
        "Z": Floats("n", "m", single=True),
        "Y": Floats("n", "k"),
        "weight": Floats("n", minimum=0.0),
        "keys": Floats("n", finite=False),
    }

    def joined(self, *others: KeptRows) -> KeptRows:
        """Return these rows followed by others."""
        return KeptRows(*(_concatenate(*parts) for parts in zip(self, *others, strict=True)))

    def __len__(self) -> int:
        return int(self.Z.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return iter((self.Z, self.Y, self.weight, self.keys))


class Sample(Declared):
    """The `size` rows with the smallest keys: a sample without replacement that does not depend on the blocks."""

    def __init__(self, size: int):
        self.size = size
        self.keys = np.empty(0)
        self.Z: Array = None
        self.Y: Array = None
        self.weight: Array = None

    _state: ClassVar[dict[str, Field]] = {
        "size": Integer(minimum=0),
        "keys": Floats("s", finite=False),
        "Z": Optional(Floats("s", "m", single=True)),
        "Y": Optional(Floats("s", "k")),
        "weight": Optional(Floats("s", minimum=0.0)),
    }

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        if len({self.Z is None, self.Y is None, self.weight is None}) > 1 or np.isnan(self.keys).any():
            raise ValueError("a sample must have keys, features, targets and weights")

    def add(self, keys: np.ndarray, Z: Array, Y: Array, weight: Array) -> None:
        """Add rows; only the rows with the smallest keys stay in the sample."""
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


class Statistics(Declared):
    """Sums over rows, for `n_components` features and `n_targets` targets.

    As long as there are no more rows than features, the rows themselves are kept: they take less memory, and the dual
    problem is smaller.

    Parameters
    ----------
    n_components, n_targets : int
    sample_size : int
        Number of random rows that are kept to estimate errors.
    """

    def __init__(self, n_components: int, n_targets: int, sample_size: int = 0):
        self.n_components = n_components
        self.n_targets = n_targets
        self.sample = Sample(sample_size)
        self.count = 0
        self.n_used = 0  # number of rows of positive weight
        self.n_units = 0.0  # Σ max(w, 1) over these rows
        self.weight = 0.0
        self.largest = 0.0  # largest w‖z‖² of a row
        self.z_mean: Array = None
        self.y_mean: Array = None
        self.gram: Array = None  # G, its lower triangle
        self.cross: Array = None
        self.y_square: Array = None
        self._pending: list[KeptRows] = []
        self._shared = False  # whether other statistics use the same arrays of sums
        self._n_shared = 0  # number of first blocks of `_pending` that other statistics use too
        self._partial: Array = None  # products in single precision that are not yet part of G
        self._n_partial = 0
        self._corrections: list[tuple[Array, float]] = []  # rank-one terms that are not yet part of G

    _state: ClassVar[dict[str, Field]] = {
        "n_components": Integer(minimum=1),
        "n_targets": Integer(minimum=1),
        "count": Integer(minimum=1),
        "n_used": Integer(minimum=0),
        "n_units": Real(minimum=0.0),
        "weight": Real(minimum=0.0),
        "largest": Real(minimum=0.0),
        "sample": Part(Sample),
        "gram": Optional(Floats("n_components", "n_components")),
        "cross": Optional(Floats("n_components", "n_targets")),
        "z_mean": Optional(Floats("n_components")),
        "y_mean": Optional(Floats("n_targets")),
        "y_square": Optional(Floats("n_targets")),
        "kept": Optional(Part(KeptRows)),
        "corrections": Optional(Floats("c", "n_components")),
        "factors": Optional(Floats("c")),
    }
    _remade: ClassVar[tuple[str, ...]] = (
        "_pending", "_shared", "_n_shared", "_partial", "_n_partial", "_corrections",
    )  # fmt: skip

    @property
    def _n_pending(self) -> int:
        return sum(map(len, self._pending))

    def fork(self) -> Statistics:
        """Return a copy that can be changed without changing this object. Arrays are copied when they change."""
        other = Statistics.__new__(Statistics)
        other.__dict__.update(self.__dict__)  # copy() would finish the sums
        other.sample = copy(self.sample)
        for one in (self, other):
            one._shared, one._n_shared = True, len(self._pending)
        other._pending, other._corrections = list(self._pending), list(self._corrections)
        return other

    def _own(self, like: Array) -> None:
        """Copy shared sums, and move the sums to the library and the device of `like`."""
        here = self.gram if _array.is_torch(like) == _array.is_torch(self.gram) else None
        if self._shared or here is None or _array.device(here) != _array.device(like):
            for name in (*_SUMS, "_partial"):
                value = getattr(self, name)
                if value is not None:
                    setattr(self, name, _array.namespace(like).asarray(to_library(value, like), copy=True))
            self._corrections = [(to_library(vector, like), factor) for vector, factor in self._corrections]
            sample = self.sample = copy(self.sample)
            if sample.Z is not None:
                sample.Z, sample.Y, sample.weight = (to_library(v, like) for v in (sample.Z, sample.Y, sample.weight))
            self._shared = False

    def add(self, Z: Array, Y: Array, weight: Array, keys: np.ndarray) -> None:
        """Add rows: features (n, m), which may be overwritten, float64 targets (n, k) and weights (n,), and keys."""
        if not Z.shape[0]:
            return
        self.count += int(Z.shape[0])
        self.n_used += int(np.isfinite(keys).sum())
        self.n_units += n_units(_array.to_numpy(weight))
        self._pending.append(KeptRows(Z, Y, weight, keys))
        if self._n_pending >= _SMALL and (self.gram is not None or self._n_pending > self.n_components):
            self._multiply()

    def merge(self, other: Statistics) -> None:
        """Add the statistics of other rows."""
        other = other.finish().fork()
        n_targets = max(self.n_targets, other.n_targets)
        self.place_targets(range(self.n_targets), n_targets)
        other.place_targets(range(other.n_targets), n_targets)
        rows = other._pending
        if other.gram is not None and self.gram is None:
            other._pending, other._corrections, other._shared, other._n_shared = [], [], True, 0
            rows, self.__dict__ = self._pending, other.__dict__
        elif other.gram is not None:
            self._merge_sums(other)
        for block in rows:
            self.add(block.Z + 0.0, block.Y, block.weight, block.keys)

    def _merge_sums(self, other: Statistics) -> None:
        self.finish()
        self._own(other.gram)
        total = self.weight + other.weight
        delta, y_delta = other.z_mean - self.z_mean, other.y_mean - self.y_mean
        factor = self.weight * other.weight / total if total else 0.0
        self.gram += other.gram
        add_outer(self.gram, delta[:, None], [factor])
        self.cross += other.cross + factor * _outer(delta, y_delta)
        self.y_square += other.y_square + factor * y_delta**2
        self._move_means(other.z_mean, other.y_mean, other.weight)
        self.count, self.n_used = self.count + other.count, self.n_used + other.n_used
        self.n_units += other.n_units
        self.largest = max(self.largest, other.largest)
        sample = other.sample
        if sample.Z is not None:
            self.sample.add(sample.keys, sample.Z, sample.Y, sample.weight)

    def total_weight(self) -> float:
        """Return the sum of the weights of all rows."""
        return self.weight + sum(float(block.weight.sum()) for block in self._pending)

    def heaviest(self) -> float:
        """Return the largest w‖z‖² of a row divided by the mean over the other rows."""
        xp: Any = _array.namespace(self.gram)
        trace = float(xp.sum(diagonal(self.gram)) + self.weight * xp.sum(self.z_mean**2))
        rest = max(trace - self.largest, EPS * self.largest)
        return self.largest * (self.n_used - 1) / rest if rest > 0 else 1.0

    def place_targets(self, columns: Sequence[int], n_targets: int) -> None:
        """Move the targets to the given ones of `n_targets` columns; all other columns are zero for the rows so far."""
        if n_targets == self.n_targets and list(columns) == list(range(n_targets)):
            return
        self.n_targets = n_targets
        self._pending = [replace(rows, Y=_place(rows.Y, columns, n_targets)) for rows in self._pending]
        if self.sample.Z is not None:
            self.sample.Y = _place(self.sample.Y, columns, n_targets)
        if self.gram is not None:
            self.cross = _place(self.cross, columns, n_targets)
            self.y_mean = _place(self.y_mean[None], columns, n_targets)[0]
            self.y_square = _place(self.y_square[None], columns, n_targets)[0]

    def finish(self) -> Self:
        """Add everything that is pending to the sums, unless the rows are kept."""
        if self._pending and (self.gram is not None or self._n_pending > self.n_components):
            self._multiply()
        self._flush()
        self._correct()
        return self

    def finished(self) -> Statistics:
        """Return finished statistics: a fork if finishing changes anything, so that an interrupt does no harm here."""
        waiting = self._corrections or self._n_partial or (self._pending and self.gram is not None)
        return self.fork().finish() if waiting or self._n_pending > self.n_components else self

    def rows(self) -> KeptRows | None:
        """Return all rows if they are kept, else None."""
        if self.gram is not None or not self._pending:
            return None
        if len(self._pending) > 1:
            self._pending = [self._pending[0].joined(*self._pending[1:])]
            self._n_shared = 0
        return self._pending[0]

    @property
    def settled(self) -> bool:
        """Whether all rows are part of the sums, except for rank-one terms."""
        return self.gram is not None and not self._pending and self._n_partial == 0

    def __getstate__(self) -> dict[str, Any]:
        done = self.finished()  # does not change this object
        return super(Statistics, done).__getstate__() | {"_partial": None, "_shared": False, "_n_shared": 0}

    def _file_state(self) -> dict[str, Any]:
        done = self if self.settled else self.finished()
        state = super(Statistics, done)._file_state() | {"kept": done.rows()}
        if done._corrections:
            state["corrections"] = np.stack([_array.to_numpy(vector) for vector, _ in done._corrections])
            state["factors"] = np.array([factor for _, factor in done._corrections])
        return state

    def _check_state(self, limit: int) -> None:  # noqa: ARG002
        found = dict(self.__dict__)
        kept, vectors, factors = (found.pop(name, None) for name in ("kept", "corrections", "factors"))
        self.__dict__.clear()
        self.__init__(found["n_components"], found["n_targets"])  # type: ignore[misc]
        self.__dict__.update(found)
        if vectors is not None and factors is not None:
            self._corrections = list(zip(vectors, factors.tolist(), strict=True))
        sums = [getattr(self, name) is None for name in _SUMS]
        if any(sums) != all(sums) or (kept is None) == all(sums):
            raise ValueError("statistics must have either all sums or rows")
        widths = {(part.Z.shape[1], part.Y.shape[1]) for part in (kept, self.sample) if part and part.Z is not None}
        if not widths <= {(self.n_components, self.n_targets)}:
            raise ValueError(f"rows of statistics must have {self.n_components} features and {self.n_targets} targets")
        if kept is not None:
            if len(kept.keys) != self.count:
                raise ValueError(f"statistics must have {self.count} rows, not {len(kept.keys)}")
            self._pending = [kept]

    def _multiply(self) -> None:
        """Add the pending rows to the sums."""
        pending, self._pending = self._pending, []
        for i in range(self._n_shared):  # products overwrite features
            pending[i] = replace(pending[i], Z=pending[i].Z + 0.0)
        self._n_shared = 0
        while pending:
            rows = pending.pop(0)
            while pending and len(rows) + len(pending[0]) <= FLUSH and len(rows) < _SMALL:
                rows = rows.joined(pending.pop(0))
            if self.gram is None:
                self._begin(rows.Z)
            self._own(rows.Z)
            if self.sample.size:
                self.sample.add(rows.keys, rows.Z, rows.Y, rows.weight)
            self._add_block(rows.Z, rows.Y, rows.weight)

    def _add_block(self, Z: Array, Y: Array, weight: Array) -> None:
        xp: Any = _array.namespace(Z)
        block_weight = float(xp.sum(weight))
        if block_weight == 0.0:
            return
        Z, squares = _with_squares(Z)
        self.largest = max(self.largest, float(xp.max(weight * squares)))
        # A point near the mean, exact in the precision of Z: the mean so far, or the mean of the first rows.
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
        # One product gives Σ w (z − c)(y − y_c)ᵀ and Σ w (z − c). Scaled, since float32 cannot hold targets of 1e-50.
        sides = xp.concat([Y * root[:, None], root[:, None]], axis=1)
        size = xp.max(xp.abs(sides), axis=0)
        size = xp.where((size > 0) & ((size < 1e-18) | (size > 1e18)), size, xp.ones_like(size))
        product = xp.astype(xp.matmul(Z.T, xp.astype(sides / size, Z.dtype)), xp.float64) * size
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
        """Combine the means with the means of other rows."""
        self.weight += weight
        share = weight / self.weight if self.weight else 0.0
        self.z_mean = self.z_mean + share * (z_mean - self.z_mean)
        self.y_mean = self.y_mean + share * (y_mean - self.y_mean)

    def _add_product(self, Z: Array) -> None:
        """Add ZᵀZ to the lower triangle of the Gram matrix; float32 products are first summed in float32."""
        if not _array.is_numpy(Z):
            _add_on_device(self.gram, Z)
        elif Z.dtype == np.float64:
            add_gram(Z, self.gram)
        else:
            if self._partial is None:
                self._partial = np.zeros((self.n_components, self.n_components), dtype=np.float32)
            add_gram(Z, self._partial)
        self._n_partial += int(Z.shape[0])
        if self._n_partial >= FLUSH:
            self._flush()

    def _flush(self) -> None:
        """Add the float32 sums to the Gram matrix, and the rank-one terms if there are many."""
        if self._partial is not None and self._n_partial:
            self._own(self.gram)
            _add_triangle(self.gram, self._partial)
        self._n_partial = 0
        if len(self._corrections) >= _CORRECTIONS:
            self._correct()

    def _correct(self) -> None:
        """Add the rank-one terms to the Gram matrix."""
        if self._corrections:
            self._own(self.gram)
            xp: Any = _array.namespace(self.gram)
            vectors = xp.stack([vector for vector, _ in self._corrections], axis=1)
            add_outer(self.gram, vectors, [factor for _, factor in self._corrections])
            self._corrections = []


def _add_triangle(total: np.ndarray, part: np.ndarray) -> None:
    """Add the lower triangle of `part` to `total` and set it to 0."""
    from ntkit._batching import run_on_threads

    def work(start: int) -> None:
        rows, columns = slice(start, start + step), slice(0, start + step)
        total[rows, columns] += part[rows, columns]
        part[rows, columns] = 0

    step = 256
    run_on_threads(work, range(0, len(total), step))


def add_outer(total: Array, vectors: Array, factors: list[float]) -> None:
    """Add Σ_j factor_j v_j v_jᵀ to the lower triangle of `total`, where v_j are the columns of `vectors`."""
    xp: Any = _array.namespace(total)
    scaled = vectors * xp.asarray(factors, dtype=total.dtype, device=_array.device(total))
    step = 256 if _array.is_numpy(total) else int(total.shape[0])
    for start in range(0, int(total.shape[0]), step):
        rows, columns = slice(start, start + step), slice(0, start + step)
        total[rows, columns] += xp.matmul(scaled[rows], vectors[columns].T)


def _add_on_device(total: Any, Z: Any) -> None:
    """Add ZᵀZ to the lower triangle of a torch matrix: in float64 if the device is fast at it, never in TF32."""
    import torch

    if Z.device.type != "cuda" or torch.cuda.get_device_capability(Z.device) in _FAST_DOUBLE:
        Z = Z.to(total.dtype)
        step = max(len(total) // 8, 1024)  # with panels, little more than half of the products are computed
        for start in range(0, len(total), step):
            total[start:, start : start + step].addmm_(Z[:, start:].T, Z[:, start : start + step])
        return
    with exact_products():
        total += Z.T @ Z


def _with_squares(Z: Array) -> tuple[Array, Array]:
    """Return features and ‖z‖² of each row, in float64 if float32 would lose squares or comparatively small rows."""
    xp: Any = _array.namespace(Z)
    with np.errstate(over="ignore"):
        squares = xp.astype(xp.vecdot(Z, Z), xp.float64)
    if Z.dtype == xp.float64:
        return Z, squares
    total, largest = float(xp.sum(squares)), float(xp.max(squares))
    middle = float(xp.sort(squares)[squares.shape[0] // 2])
    safe = _MIN_SQUARES < total < _MAX_SQUARES or (total == 0 and not bool(xp.any(Z != 0)))
    if safe and largest <= _MAX_UNEVEN * (middle or total):
        return Z, squares
    Z = xp.astype(Z, xp.float64)
    return Z, xp.vecdot(Z, Z)


def _outer(a: Array, b: Array) -> Array:
    return a[:, None] * b[None, :]


def _take(values: Array, chosen: np.ndarray) -> Array:
    """Return copies of some rows."""
    if _array.is_torch(values):
        import torch

        return values[torch.from_numpy(chosen).to(values.device)]
    return values[chosen]


def _concatenate(*parts: Array) -> Array:
    return _array.namespace(*parts).concat(parts, axis=0)


def _place(Y: Array, columns: Sequence[int], n_columns: int) -> Array:
    """Return `n_columns` columns: the columns of Y at the indices `columns`, zeros elsewhere."""
    out = _array.namespace(Y).zeros((Y.shape[0], n_columns), dtype=Y.dtype, device=_array.device(Y))
    out[:, list(columns)] = Y
    return out
