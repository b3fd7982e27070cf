"""Exact kernels of images through compiled code: numba on the host, Triton on CUDA devices.

A network it can take is a chain: stride-1 convolutions and homogeneous activations (ReLU, LeakyReLU, Abs), in
segments that end in average pooling with windows side by side, global pooling or Flatten; then anything on
vectors. Everything else takes the array-API walk, about 14 times slower: residual branches and strides make
displacements meet or thin out, other activations and Normalize have no fused kernel yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, row_batches, run_on_threads
from ntkit.kernels._base import Kernel, Rows, on_host
from ntkit.kernels._walk import State, needs_variances, pair_variances, same_pixels, self_variances, walk, window_sum
from ntkit.kernels.activations import HOMOGENEOUS, gain, mix
from ntkit.kernels.dot_product import assign, divide_rows, row_norms
from ntkit.networks import Activation, AvgPool, Conv, Flatten, GlobalAvgPool, Layer, Sequential
from ntkit.networks._layers import Window, flatten, pair

LARGEST_FIELD = 2**13  # pixels; on a GPU a field has to fit the registers of one program


@dataclass(frozen=True)
class Segment:
    """Convolutions and activations on images of h × w pixels, then an average over windows."""

    size: tuple[int, int]
    layers: tuple[Conv | Activation, ...]
    end: Layer
    size_end: tuple[int, int]
    reach: tuple[int, int] = (0, 0)

    @property
    def window(self) -> tuple[int, int]:
        """Window of the average at the end."""
        return pair(self.end.size) if isinstance(self.end, AvgPool) else self.size_end

    @property
    def size_out(self) -> tuple[int, int]:
        """Pixels that are left."""
        (h, w), (p, q) = self.size_end, self.window
        return h // p, w // q

    @property
    def scale(self) -> float:
        """One over the number of terms in an average: Flatten averages over pixels, pooling over pairs."""
        terms = self.window[0] * self.window[1]
        return 1 / terms if isinstance(self.end, Flatten) else 1 / terms**2

    def stats(self, variances: Array) -> Array:
        """Standard deviations and their inverses at the activations, (n, activations, 2, h, w)."""
        xp = _array.namespace(variances)
        n_activations = sum(isinstance(layer, Activation) for layer in self.layers)
        shape = (variances.shape[0], n_activations, 2, *self.size)
        stats = xp.zeros(shape, dtype=variances.dtype, device=_array.device(variances))
        k = 0
        for layer in self.layers:
            h, w = variances.shape[1:]
            if isinstance(layer, Conv):
                rows, cols = layer.windows(h, w)
                variances = window_sum(window_sum(variances, (1,), rows, h), (2,), cols, w)
                variances = variances * (layer.weight_std**2 / (rows.size * cols.size))
            else:
                sd = xp.sqrt(variances)
                stats[:, k, 0, :h, :w] = sd
                stats[:, k, 1, :h, :w] = xp.where(sd > 0, 1 / xp.where(sd > 0, sd, xp.ones_like(sd)), sd)
                variances = variances * gain(layer)
                k += 1
        return stats

    def program(self) -> tuple[np.ndarray, np.ndarray]:
        """The layers as `ops` and `factors` of the compiled code."""
        from ntkit.kernels import _pairs_numba as compiled

        ops = np.zeros((len(self.layers), 10), np.int64)
        factors = np.zeros((len(self.layers), 2))
        size = self.size
        for op, factor, layer in zip(ops, factors, self.layers, strict=True):
            if isinstance(layer, Conv):
                rows, cols = layer.windows(*size)
                after = [_zeros_after(v, s) for v, s in zip((rows, cols), size, strict=True)]
                size = rows.n_out, cols.n_out
                op[:] = (
                    compiled.CONV, rows.size, cols.size, rows.before, cols.before, *after, layer.trainable, *size
                )  # fmt: skip
                factor[0] = layer.weight_std**2 / (rows.size * cols.size)
            else:
                op[:] = (compiled.ACTIVATION, 1, 1, 0, 0, 0, 0, 0, *size)
                factor[:] = gain(layer), mix(layer)
        return ops, factors

    def apply(self, pairs: Array, images: tuple[Array, Array], before: State, stats: tuple[Array, Array]) -> State:
        """State (p, h, w, h, w) of pairs after the segment.

        From the state `before` it, or from the images if that has no rows; an `ntk` of None is not computed.
        """
        if not _array.is_numpy(pairs):
            return self._apply_triton(pairs, images, before, stats)
        from ntkit.kernels import _pairs_numba

        none = np.empty((0, 1, 1, 1, 1))
        after = State(*(np.zeros((len(pairs), *self.size_out * 2)) if A is not None else none for A in _parts(before)))
        _pairs_numba.segment(
            pairs, *images, *(none if A is None else A for A in _parts(before)), *stats, *self.program(),
            np.array(self.reach), np.array(self.window), after.nngp, after.ntk,
        )  # fmt: skip
        return replace(after, ntk=None if before.ntk is None else after.ntk).map(lambda A: A * self.scale)

    def _apply_triton(
        self, pairs: Array, images: tuple[Array, Array], before: State, stats: tuple[Array, Array]
    ) -> State:
        import torch

        from ntkit.kernels import _triton

        pooled = isinstance(self.end, AvgPool)
        program = (torch.from_numpy(part).to(pairs.device) for part in self.program())
        outs = _triton.segment(
            pairs, *images, before.nngp, before.ntk, *stats, *program,
            sums=not pooled, all_displacements=not isinstance(self.end, Flatten),
        )  # fmt: skip
        return State(*outs).map(
            lambda A: self.scale * (self._window_sums(A) if pooled else A[:, None, None, None, None])
        )

    def _window_sums(self, A: Array) -> Array:
        """Sums over pairs of windows of (p, h, w, h, w)."""
        for axis in (1, 2, 3, 4):
            size, n_out = self.window[(axis - 1) % 2], self.size_out[(axis - 1) % 2]
            A = window_sum(A, (axis,), Window(size, size, 0, n_out), A.shape[axis])
        return A


@dataclass(frozen=True)
class ImageChain(Kernel):
    """Kernel of a chain of segments. Statistics of a row: norm, variances entering later segments, then the tail's."""

    segments: tuple[Segment, ...]
    tail: Sequential
    kinds: tuple[str, ...]
    owner: ClassVar[str] = "network_kernel"
    ndims: ClassVar[Sequence[int]] = (4,)

    @property
    def n_outputs(self) -> int:
        """One matrix for each kind."""
        return len(self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Norms; variances behind every pooling that is followed by more layers, from the pairs (x, x)."""
        rows = Rows(X, (row_norms(X.reshape(X.shape[0], -1)),))
        tail_needs = any(needs_variances(layer) for layer in flatten(self.tail))
        if len(self.segments) == 1 and not tail_needs:
            return rows

        def work(part: Rows) -> list[Array]:
            planes = _unit_planes(part)
            *entering, end = self._self_walk(planes, _empty_state(planes, ntk=False))[1]
            if not tail_needs:
                return entering[1:]
            record: list[Array] = []
            nngp = end.reshape(-1, 1) * part.stats[0][:, None] ** 2
            walk(self.tail, State(nngp, None), self_variances(record))
            return [*entering[1:], *record]

        return replace(rows, stats=(*rows.stats, *self._over_rows(work, rows)))

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """All pairs of a tile."""
        images = _unit_planes(a), _unit_planes(b)
        xp = _array.namespace(images[0])
        n, m, device = len(a), len(b), _array.device(images[0])
        row, column = xp.arange(n, device=device), xp.arange(m, device=device)
        grid = xp.broadcast_to(row[:, None], (n, m)), xp.broadcast_to(column[None, :], (n, m))
        pairs = xp.reshape(xp.stack(grid, axis=-1), (n * m, 2))
        state = _empty_state(images[0], ntk="ntk" in self.kinds)
        for k, segment in enumerate(self.segments):
            # Variances entering the segment: of the pixels themselves, or recorded by `prepare`.
            entering = [
                _pixel_variances(Z) if k == 0 else rows.stats[k] for Z, rows in zip(images, (a, b), strict=True)
            ]
            stats = segment.stats(entering[0]), segment.stats(entering[1])
            state = segment.apply(pairs, images, state, stats)
            images = images[0][:0], images[1][:0]
        norms = a.stats[0][:, None] * b.stats[0][None, :]
        state = state.map(lambda A: norms * xp.reshape(A, (n, m)))
        skip = len(self.segments)  # the norm and the segments' own variances come first
        state = walk(self.tail, state, pair_variances(a.stats[skip:], b.stats[skip:]))
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, getattr(state, kind))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """The pairs (x, x)."""

        def work(part: Rows) -> list[Array]:
            planes = _unit_planes(part)
            state, _ = self._self_walk(planes, _empty_state(planes, ntk="ntk" in self.kinds))
            squares = part.stats[0][:, None] ** 2
            state = walk(self.tail, state.map(lambda A: squares * A.reshape(-1, 1)), self_variances())
            return [getattr(state, kind)[:, 0] for kind in self.kinds]

        return self._over_rows(work, a)

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Small tiles on the host: a pair takes milliseconds, so threads share them out evenly."""
        if on_host(a.data):
            fits = max(1, 2**25 // self.bytes_per_pair(a))
            side = int(min(64, fits, max(1, len(a) * len(b) // 16)) ** 0.5)
            return side, side
        height, width = super().tile_shape(a, b)
        width = min(width, 2**17)  # pairs × pixels must fit 32 bits
        return max(1, min(height, 2**17 // width)), width

    def bytes_per_pair(self, a: Rows) -> int:
        """Σ and Θ of all pairs of pixels after a pooling; on a GPU also before it, or partial sums."""
        after = max(16 * (s.size_out[0] * s.size_out[1]) ** 2 for s in self.segments)
        if on_host(a.data):
            return after
        pixels = [s.size[0] * s.size[1] for s in self.segments]
        before = (
            48 * n * n if isinstance(s.end, AvgPool) else 16 * n for s, n in zip(self.segments, pixels, strict=True)
        )
        return after + max(before)

    def _self_walk(self, planes: Array, state: State) -> tuple[State, list[Array]]:
        """State of the pairs (x, x) at the end, and the variances entering every segment and leaving the last."""
        xp = _array.namespace(planes)
        row = xp.arange(planes.shape[0], device=_array.device(planes))
        pairs = xp.stack((row, row), axis=-1)
        variances = [_pixel_variances(planes)]
        images = planes
        for segment in self.segments:
            stats = segment.stats(variances[-1])
            state = segment.apply(pairs, (images, images), state, (stats, stats))
            variances.append(xp.clip(same_pixels(state.nngp[:, None, ...])[:, 0, ...], 0, None))
            images = planes[:0]
        return state, variances

    def _over_rows(self, work: Callable[[Rows], list[Array]], rows: Rows) -> tuple[Array, ...]:
        """Arrays that `work` gives for small batches of rows, joined."""
        xp = _array.namespace(rows.data)
        step = 8 if on_host(rows.data) else min(2**17, batch_rows(len(rows), self.bytes_per_pair(rows), like=rows.data))
        batches = list(row_batches(len(rows), 0, batch_size=step))
        parts: dict[int, list[Array]] = {}

        def task(batch: slice) -> None:
            parts[batch.start] = work(rows[batch])

        if on_host(rows.data):
            run_on_threads(task, batches)
        else:
            for batch in batches:
                task(batch)
        ordered = [parts[batch.start] for batch in batches]
        return tuple(xp.concat(arrays) for arrays in zip(*ordered, strict=True))


def image_chain(net: Layer, X: Array, kinds: tuple[str, ...]) -> ImageChain | None:
    """Compiled kernel of `net` on images such as those of `X`, or None if there is none."""
    size = size_in = (int(X.shape[1]), int(X.shape[2]))
    if not _array.is_numpy(X) and not (_array.has_triton(X) and size[0] * size[1] <= LARGEST_FIELD):
        return None
    segments: list[Segment] = []
    layers: list[Conv | Activation] = []
    rest = list(flatten(net))
    while rest:
        layer = rest.pop(0)
        if isinstance(layer, Conv) and layer.stride == 1:
            rows, cols = layer.windows(*size)
            size = rows.n_out, cols.n_out
            layers.append(layer)
        elif isinstance(layer, HOMOGENEOUS):
            layers.append(layer)
        elif isinstance(layer, GlobalAvgPool | Flatten) or _side_by_side(layer):
            segments.append(Segment(size_in, tuple(layers), layer, size))
            layers, size = [], segments[-1].size_out
            size_in = size
            if not isinstance(layer, AvgPool):
                return ImageChain(tuple(_with_reach(segments)), Sequential(*rest), kinds)
        else:
            return None
    return None


def _with_reach(segments: Sequence[Segment]) -> list[Segment]:
    """Displacements each segment has to follow: all for global pooling, none for Flatten."""
    reach = (0, 0)
    result: list[Segment] = []
    for segment in reversed(segments):
        h, w = segment.size_end
        if isinstance(segment.end, GlobalAvgPool):
            reach = (h - 1, w - 1)
        elif isinstance(segment.end, AvgPool):
            p, q = segment.window
            reach = (min(h - 1, p * reach[0] + p - 1), min(w - 1, q * reach[1] + q - 1))
        result.insert(0, replace(segment, reach=reach))
    return result


def _side_by_side(layer: Layer) -> bool:
    return isinstance(layer, AvgPool) and (layer.stride is None or layer.stride == layer.size)


def _zeros_after(window: Window, size_in: int) -> int:
    """Zeros that a stride-1 window reads beyond the end of an axis."""
    return max(0, window.n_out - 1 + window.size - window.before - size_in)


def _parts(state: State) -> tuple[Array, Array | None]:
    return state.nngp, state.ntk


def _empty_state(planes: Array, *, ntk: bool) -> State:
    """State without rows: the walk starts from the images."""
    none = planes[:0, :1, :1, :1, None]
    return State(none, none if ntk else None)


def _pixel_variances(planes: Array) -> Array:
    return _array.namespace(planes).sum(planes * planes, axis=1)


def _unit_planes(rows: Rows) -> Array:
    """Images of norm one, channels first (n, c, h, w)."""
    X = _array.widen(rows.data)
    xp = _array.namespace(X)
    unit = xp.reshape(divide_rows(xp.reshape(X, (X.shape[0], -1)), rows.stats[0]), X.shape)
    planes = xp.permute_dims(unit, (0, 3, 1, 2))
    return np.ascontiguousarray(planes) if _array.is_numpy(planes) else planes.contiguous()
