"""Exact kernels of images in compiled code: numba on the host, Triton on CUDA devices.

Supported networks are chains of segments, followed by any layers on vectors. A segment consists of stride-1
convolutions and piecewise linear activations (ReLU, LeakyReLU, Abs) and ends in average pooling with windows that do
not overlap, global pooling or Flatten. All other networks use array-API code, which is about 14 times slower: residual
branches and strides merge displacements or drop some, and other activations and Normalize have no fused kernel yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ntkit import _array
from ntkit._array import Array
from ntkit._batching import batch_rows, row_batches, run_on_threads, working_memory
from ntkit._state import reserve
from ntkit.kernels.covariances import (
    Covariances,
    Known,
    Own,
    State,
    needs_variances,
    same_pixels,
    window_sum,
)
from ntkit.kernels.norms import extreme_factors, scaled, unscaled, unscaled_own
from ntkit.kernels.spec import KernelSpec
from ntkit.kernels.tiles import Rows, assign, on_host
from ntkit.networks import (
    Algebra,
    AvgPool,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    PiecewiseLinear,
    Sequential,
    UnsupportedError,
    fold,
)
from ntkit.networks.fold import Path, flatten
from ntkit.networks.layers import Window, as_pair

LARGEST_FIELD = 2**13  # pixels per image on a GPU, where a field has to fit in the registers of one program


@dataclass(frozen=True)
class Segment:
    """Convolutions and activations on images of h × w pixels, followed by an average over windows.

    `reach` is the largest displacement, vertical and horizontal, that the end of the segment needs.
    """

    size: tuple[int, int]
    layers: tuple[Conv | PiecewiseLinear, ...]
    end: Layer
    size_end: tuple[int, int]
    reach: tuple[int, int] = (0, 0)

    @property
    def window(self) -> tuple[int, int]:
        """Size of the averaging window at the end."""
        return as_pair(self.end.size) if isinstance(self.end, AvgPool) else self.size_end

    @property
    def size_out(self) -> tuple[int, int]:
        """Height and width after the average."""
        (h, w), (p, q) = self.size_end, self.window
        return h // p, w // q

    @property
    def scale(self) -> float:
        """One over the number of terms in an average: Flatten averages over pixels, pooling over pairs of pixels."""
        terms = self.window[0] * self.window[1]
        return 1 / terms if isinstance(self.end, Flatten) else 1 / terms**2

    def stats(self, variances: Array) -> Array:
        """Compute standard deviations and their inverses at the activations, of shape (n, activations, 2, h, w)."""
        xp = _array.namespace(variances)
        n_activations = sum(isinstance(layer, PiecewiseLinear) for layer in self.layers)
        shape = (variances.shape[0], n_activations, 2, *self.size)
        stats = xp.zeros(shape, dtype=variances.dtype, device=_array.device(variances))
        k = 0
        for layer in self.layers:
            h, w = variances.shape[1:]
            if isinstance(layer, Conv):
                rows, cols = layer.windows(h, w)
                variances = window_sum(window_sum(variances, (1,), rows, h), (2,), cols, w)
                variances = variances * (layer.weight_std**2 / (rows.size * cols.size)) + layer.bias_std**2
            else:
                sd = xp.sqrt(variances)
                stats[:, k, 0, :h, :w] = sd
                stats[:, k, 1, :h, :w] = xp.where(sd > 0, 1 / xp.where(sd > 0, sd, xp.ones_like(sd)), sd)
                variances = variances * layer.gain
                k += 1
        return stats

    def program(self) -> tuple[np.ndarray, np.ndarray]:
        """Encode the layers as the arrays `ops` and `factors` of the compiled code."""
        from ntkit.kernels import _pairs_numba as compiled

        ops = np.zeros((len(self.layers), compiled.N_COLUMNS), np.int64)
        factors = np.zeros((len(self.layers), compiled.N_FACTORS))
        size = self.size
        for op, factor, layer in zip(ops, factors, self.layers, strict=True):
            op[[compiled.H_OUT, compiled.W_OUT]] = size
            if not isinstance(layer, Conv):
                op[compiled.KIND] = compiled.ACTIVATION
                factor[compiled.SCALE], factor[compiled.MIX] = layer.gain, layer.mix
                continue
            rows, cols = layer.windows(*size)
            n_steps = size[0] * size[1] * rows.size * cols.size
            reserve(0, f"A filter of {rows.size} × {cols.size} pixels", seconds=1.5e-8 * n_steps)
            columns = {
                compiled.KIND: compiled.CONV,
                compiled.Q_H: rows.size,
                compiled.Q_W: cols.size,
                compiled.BEFORE_H: rows.before,
                compiled.BEFORE_W: cols.before,
                compiled.AFTER_H: _zeros_after(rows, size[0]),
                compiled.AFTER_W: _zeros_after(cols, size[1]),
                compiled.TRAINED: layer.trainable,
                compiled.H_OUT: rows.n_out,
                compiled.W_OUT: cols.n_out,
            }
            op[list(columns)] = list(columns.values())
            factor[compiled.SCALE] = layer.weight_std**2 / (rows.size * cols.size)
            factor[compiled.BIAS] = layer.bias_std**2
            size = rows.n_out, cols.n_out
        return ops, factors

    def apply(self, pairs: Array, images: tuple[Array, Array], before: State, stats: tuple[Array, Array]) -> State:
        """Return the state of the pairs after the segment, with arrays of shape (p, h, w, h, w).

        It starts from the state `before`, or from the images if that state has no rows. If ``before.ntk`` is None,
        the tangent kernel is not computed.
        """
        if not _array.is_numpy(pairs):
            return self._apply_triton(pairs, images, before, stats)
        from ntkit.kernels import _pairs_numba

        none = np.empty((0, 1, 1, 1, 1))
        after = State(
            *(np.zeros((len(pairs), *self.size_out * 2)) if A is not None else none for A in (before.nngp, before.ntk))
        )
        _pairs_numba.segment(
            pairs, *images, before.nngp, none if before.ntk is None else before.ntk, *stats, *self.program(),
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
        """Sum an array of shape (p, h, w, h, w) over pairs of windows."""
        for axis in (1, 2, 3, 4):
            size, n_out = self.window[(axis - 1) % 2], self.size_out[(axis - 1) % 2]
            A = window_sum(A, (axis,), Window(size, size, 0, n_out), A.shape[axis])
        return A


@dataclass(frozen=True)
class ImageChain(KernelSpec):
    """Kernel of a chain of segments.

    The statistics of a row are the variances at the start of each segment but the first (keyed by its index), the
    variances in the tail (keyed by layer path) and factors for rows of extreme norms.
    """

    segments: tuple[Segment, ...]
    tail: Sequential
    kinds: tuple[str, ...]
    net: Layer
    owner: ClassVar[str] = "network_kernel"
    ndims: ClassVar[Sequence[int]] = (4,)

    @property
    def n_outputs(self) -> int:
        """Number of matrices, one for each kind."""
        return len(self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Compute the variances after every pooling that is followed by more layers, from the pairs (x, x)."""
        rows = Rows(X, extreme_factors(self.net, X))
        tail_needs = needs_variances(self.tail)
        if len(self.segments) == 1 and not tail_needs:
            return rows

        def work(part: Rows) -> dict[Any, Array]:
            planes = _planes(part)
            *entering, end = self._self_walk(planes, _empty_state(planes, ntk=False))[1]
            found: dict[Any, Array] = dict(enumerate(entering))
            del found[0]  # computed from the pixels when needed
            if tail_needs:
                own = Own()
                fold(self.tail, Covariances(own), State(end.reshape(-1, 1), None))
                found |= own.found
            return found

        return Rows(X, {**rows.stats, **self._over_rows(work, rows)})

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """Compute all pairs of a tile."""
        images = _planes(a), _planes(b)
        xp = _array.namespace(images[0])
        n, m, device = len(a), len(b), _array.device(images[0])
        row, column = xp.arange(n, device=device), xp.arange(m, device=device)
        grid = xp.broadcast_to(row[:, None], (n, m)), xp.broadcast_to(column[None, :], (n, m))
        pairs = xp.reshape(xp.stack(grid, axis=-1), (n * m, 2))
        state = _empty_state(images[0], ntk="ntk" in self.kinds)
        entering = tuple(map(_pixel_variances, images))
        for number, segment in enumerate(self.segments):
            if number:
                entering = a.stats[number], b.stats[number]
            state = segment.apply(pairs, images, state, (segment.stats(entering[0]), segment.stats(entering[1])))
            images = images[0][:0], images[1][:0]
        state = state.map(lambda A: xp.reshape(A, (n, m)))
        state = fold(self.tail, Covariances(Known(a.stats, b.stats)), state)
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, unscaled(getattr(state, kind), a, b))

    def own_values(self, a: Rows) -> tuple[Array, ...]:
        """Compute K(x, x) of every row."""

        def work(part: Rows) -> dict[Any, Array]:
            planes = _planes(part)
            state, _ = self._self_walk(planes, _empty_state(planes, ntk="ntk" in self.kinds))
            state = fold(self.tail, Covariances(Own()), state.map(lambda A: A.reshape(-1, 1)))
            return {kind: unscaled_own(getattr(state, kind)[:, 0], part, kind) for kind in self.kinds}

        return tuple(self._over_rows(work, a).values())

    def bytes_per_row(self, a: Rows) -> int:
        """Return the size of a few float64 copies of an image and of its statistics at every activation."""
        widest = max(1 + 2 * len(s.layers) for s in self.segments)
        return 8 * int(np.prod(a.data.shape[1:3])) * (3 * int(a.data.shape[3]) + widest)

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Return the shape of a tile; small on the host, where a pair takes milliseconds, to balance the threads."""
        if on_host(a.data):
            fits = max(1, 2**25 // self.bytes_per_pair(a))
            side = int(min(64, fits, max(1, len(a) * len(b) // 16)) ** 0.5)
            side = max(1, min(side, working_memory() // (2 * self.bytes_per_row(a))))
            return side, side
        height, width = super().tile_shape(a, b)
        width = min(width, 2**17)  # pairs × pixels must fit in 32 bits
        return max(1, min(height, 2**17 // width)), width

    def bytes_per_pair(self, a: Rows) -> int:
        """Return the size of Σ and Θ for all pairs of pixels after a pooling.

        On a GPU, add their size before the pooling, or the size of partial sums.
        """
        after = max(16 * (s.size_out[0] * s.size_out[1]) ** 2 for s in self.segments)
        if on_host(a.data):
            return after
        pixels = [s.size[0] * s.size[1] for s in self.segments]
        before = (
            48 * n * n if isinstance(s.end, AvgPool) else 16 * n for s, n in zip(self.segments, pixels, strict=True)
        )
        return after + max(before)

    def _self_walk(self, planes: Array, state: State) -> tuple[State, list[Array]]:
        """Return the final state of the pairs (x, x), and the variances before every segment and after the last."""
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

    def _over_rows(self, work: Callable[[Rows], dict[Any, Array]], rows: Rows) -> dict[Any, Array]:
        """Call `work` on small batches of rows and concatenate the arrays that it returns."""
        xp = _array.namespace(rows.data)
        per_row = self.bytes_per_row(rows) + self.bytes_per_pair(rows)
        most = 8 if on_host(rows.data) else 2**17
        step = min(most, batch_rows(len(rows), 2 * per_row, like=rows.data))
        batches = list(row_batches(len(rows), 0, batch_size=step))
        parts: dict[int, dict[Any, Array]] = {}

        def task(batch: slice) -> None:
            parts[batch.start] = work(rows[batch])

        if on_host(rows.data):
            run_on_threads(task, batches, most=max(1, working_memory() // (2 * step * per_row)))
        else:
            for batch in batches:
                task(batch)
        return {name: xp.concat([parts[batch.start][name] for batch in batches]) for name in parts[0]}


@dataclass(frozen=True)
class SegmentedLayers:
    """Finished segments, the layers of the current segment, and the image sizes at its start and now."""

    size_in: tuple[int, int]
    size: tuple[int, int]
    segments: tuple[Segment, ...] = ()
    layers: tuple[Conv | PiecewiseLinear, ...] = ()

    def end(self, layer: Layer) -> SegmentedLayers:
        """Finish the current segment with a layer."""
        segment = Segment(self.size_in, self.layers, layer, self.size)
        return SegmentedLayers(segment.size_out, segment.size_out, (*self.segments, segment))


class Segments(Algebra[SegmentedLayers]):
    """Splits layers on images into segments that the compiled code supports."""


@Segments.rule(Conv)
def _(algebra: Segments, layer: Conv, layout: SegmentedLayers, path: Path) -> SegmentedLayers:
    if layer.stride != 1:
        raise UnsupportedError("a stride")
    rows, cols = layer.windows(*layout.size)
    return replace(layout, size=(rows.n_out, cols.n_out), layers=(*layout.layers, layer))


@Segments.rule(PiecewiseLinear)
def _(algebra: Segments, layer: PiecewiseLinear, layout: SegmentedLayers, path: Path) -> SegmentedLayers:
    return replace(layout, layers=(*layout.layers, layer))


@Segments.rule(AvgPool)
def _(algebra: Segments, layer: AvgPool, layout: SegmentedLayers, path: Path) -> SegmentedLayers:
    if layer.stride not in (None, layer.size):
        raise UnsupportedError("windows that overlap")
    return layout.end(layer)


@Segments.rule(GlobalAvgPool, Flatten)
def _(algebra: Segments, layer: GlobalAvgPool | Flatten, layout: SegmentedLayers, path: Path) -> SegmentedLayers:
    return layout.end(layer)


def image_chain(net: Layer, X: Array, kinds: tuple[str, ...]) -> ImageChain | None:
    """Return the compiled kernel of `net` for images like those in `X`, or None if it is not supported."""
    size = (int(X.shape[1]), int(X.shape[2]))
    if _array.is_differentiated(X):
        return None
    if not _array.is_numpy(X) and not (_array.has_triton(X) and size[0] * size[1] <= LARGEST_FIELD):
        return None
    layout, rest = SegmentedLayers(size, size), list(flatten(net))
    try:
        while not (layout.segments and isinstance(layout.segments[-1].end, GlobalAvgPool | Flatten)):
            layout = fold(rest.pop(0), Segments(), layout)
    except UnsupportedError:
        return None
    return ImageChain(tuple(_with_reach(layout.segments)), Sequential(*rest), kinds, net)


def _with_reach(segments: Sequence[Segment]) -> list[Segment]:
    """Set the displacements that each segment has to track: all for global pooling, none for Flatten."""
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


def _zeros_after(window: Window, size_in: int) -> int:
    """Return how many zeros a stride-1 window reads beyond the end of an axis."""
    return max(0, window.n_out - 1 + window.size - window.before - size_in)


def _empty_state(planes: Array, *, ntk: bool) -> State:
    """Return a state without rows, which means that the computation starts from the images."""
    none = planes[:0, :1, :1, :1, None]
    return State(none, none if ntk else None)


def _pixel_variances(planes: Array) -> Array:
    return _array.namespace(planes).sum(planes * planes, axis=1)


def _planes(rows: Rows) -> Array:
    """Return the images in float64, channels first: (n, c, h, w)."""
    X = _array.widen(scaled(rows))
    planes = _array.namespace(X).permute_dims(X, (0, 3, 1, 2))
    return np.ascontiguousarray(planes) if _array.is_numpy(planes) else planes.contiguous()
