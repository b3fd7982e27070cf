"""Exact kernels of images through the compiled code of :mod:`ntkit.kernels._pairs_numba`.

A network it can take is a chain: stride-1 convolutions and homogeneous activations (ReLU, LeakyReLU, Abs), in
segments that end in average pooling with windows side by side, global pooling or Flatten; then anything on
vectors. Everything else takes the array-API walk, about 20 times slower: residual branches and strides make
displacements meet or thin out, other activations have no fused kernel yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ntkit._array import Array, widen
from ntkit._batching import batch_rows, run_on_threads
from ntkit.kernels._base import Kernel, Rows
from ntkit.kernels._walk import State, pair_variances, self_variances, walk, window_sum
from ntkit.kernels.activations import HOMOGENEOUS, gain, mix
from ntkit.kernels.dot_product import assign, divide_rows, row_norms
from ntkit.networks import Activation, AvgPool, Conv, Flatten, GlobalAvgPool, Layer, Sequential, Window, flatten, pair


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

    def variances(self, variances: np.ndarray) -> np.ndarray:
        """Standard deviations and inverses (n, activations, 2, h, w) at the activations, from (n, h, w)."""
        n_activations = sum(isinstance(layer, Activation) for layer in self.layers)
        stats = np.zeros((len(variances), n_activations, 2, *self.size))
        k = 0
        for layer in self.layers:
            h, w = variances.shape[1:]
            if isinstance(layer, Conv):
                rows, cols = layer.windows(h, w)
                variances = window_sum(window_sum(variances, (1,), rows, h), (2,), cols, w)
                variances = variances * (layer.weight_std**2 / (rows.size * cols.size))
            else:
                sd = np.sqrt(variances)
                stats[:, k, 0, :h, :w] = sd
                np.divide(1.0, sd, out=stats[:, k, 1, :h, :w], where=sd > 0)
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
                    compiled.CONV, rows.size, cols.size, rows.before, cols.before, *after,
                    layer.trainable, *size,
                )  # fmt: skip
                factor[0] = layer.weight_std**2 / (rows.size * cols.size)
            else:
                op[:] = (compiled.ACTIVATION, 1, 1, 0, 0, 0, 0, 0, *size)
                factor[:] = gain(layer), mix(layer)
        return ops, factors


@dataclass(frozen=True)
class ImageChain(Kernel):
    """Kernel of a chain of segments; statistics of a row: norm, variances entering later segments and the tail."""

    segments: tuple[Segment, ...]
    tail: Sequential
    kinds: tuple[str, ...]
    owner: ClassVar[str] = "network_kernel"
    ndims: ClassVar[Sequence[int]] = (4,)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One matrix for each kind."""
        return len(self.kinds)

    def prepare(self, X: Array) -> Rows:
        """Norms; variances behind every pooling that is followed by an activation, from the pairs (x, x)."""
        rows = Rows(X, (row_norms(X.reshape(len(X), -1)),))
        for k in range(1, len(self.segments)):
            out = self._self_pairs(rows, self.segments[:k])
            n, h, w = out.shape[:3]
            rows = replace(rows, stats=(*rows.stats, np.einsum("nijij->nij", out).reshape(n, h, w)))
        if any(isinstance(layer, Activation) for layer in flatten(self.tail)):
            record: list[np.ndarray] = []
            norms = rows.stats[0]
            ends = self._self_pairs(rows, self.segments).reshape(-1) * norms**2
            walk(self.tail, State(ends[:, None], None), self_variances(record))
            rows = replace(rows, stats=(*rows.stats, *record))
        return rows

    def fill(self, a: Rows, b: Rows, outs: Sequence[Array]) -> None:
        """All pairs of a tile."""
        pairs = np.stack(np.meshgrid(range(len(a)), range(len(b)), indexing="ij"), -1).reshape(-1, 2)
        nngp, ntk = self._run(a, b, pairs, self.segments, ntk="ntk" in self.kinds)
        scale = np.outer(a.stats[0], b.stats[0])
        state = State(
            nngp.reshape(len(a), len(b)) * scale, ntk.reshape(len(a), len(b)) * scale if "ntk" in self.kinds else None
        )
        skip = len(self.segments)  # the norm and the segments' own variances come first
        state = walk(self.tail, state, pair_variances(a.stats[skip:], b.stats[skip:]))
        for kind, out in zip(self.kinds, outs, strict=True):
            assign(out, getattr(state, kind))

    def diagonal(self, a: Rows) -> tuple[Array, ...]:
        """The pairs (x, x)."""
        values = np.empty((2, len(a)))

        def work(rows: slice) -> None:
            part = a[rows]
            pairs = np.repeat(np.arange(len(part))[:, None], 2, axis=1)
            nngp, ntk = self._run(part, part, pairs, self.segments, ntk="ntk" in self.kinds)
            values[0, rows] = nngp.reshape(-1)
            values[1, rows] = ntk.reshape(-1) if "ntk" in self.kinds else 0

        self._on_row_tiles(work, len(a))
        values *= a.stats[0] ** 2
        state = State(values[0][:, None], values[1][:, None])
        state = walk(self.tail, state, self_variances())
        return tuple(getattr(state, kind)[:, 0] for kind in self.kinds)

    def tile_shape(self, a: Rows, b: Rows) -> tuple[int, int]:
        """Small tiles: a pair takes milliseconds, so threads share them out evenly."""
        fits = max(1, 2**25 // self._bytes_per_pair())
        side = int(min(64, fits, max(1, len(a) * len(b) // 16)) ** 0.5)
        return side, side

    def _bytes_per_pair(self) -> int:
        return max(16 * (s.size_out[0] * s.size_out[1]) ** 2 for s in self.segments)

    def _on_row_tiles(self, work: Callable[[slice], None], n_rows: int) -> None:
        step = min(8, batch_rows(n_rows, 32 * self._bytes_per_pair()))
        run_on_threads(work, [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)])

    def _self_pairs(self, rows: Rows, segments: Sequence[Segment]) -> np.ndarray:
        """Σ of the pairs (x, x) of unit-norm images after some segments, (n, h, w, h, w)."""
        h, w = segments[-1].size_out
        out = np.empty((len(rows), h, w, h, w))

        def work(part: slice) -> None:
            x = rows[part]
            pairs = np.repeat(np.arange(len(x))[:, None], 2, axis=1)
            out[part] = self._run(x, x, pairs, segments, ntk=False)[0]

        self._on_row_tiles(work, len(rows))
        return out

    def _run(
        self, a: Rows, b: Rows, pairs: np.ndarray, segments: Sequence[Segment], *, ntk: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Σ and Θ of pairs of unit-norm images after `segments`."""
        from ntkit.kernels import _pairs_numba as compiled

        X, Y = _unit_planes(a), _unit_planes(b)
        none = np.empty((0, 1, 1, 1, 1))
        sigma, theta = none, none
        for k, segment in enumerate(segments):
            # Variances entering the segment: of the pixels themselves, or recorded by `prepare`.
            x_in = np.sum(X * X, axis=1) if k == 0 else a.stats[k]
            y_in = np.sum(Y * Y, axis=1) if k == 0 else b.stats[k]
            size = (len(pairs), *segment.size_out, *segment.size_out)
            sigma_out = np.zeros(size)
            theta_out = np.zeros(size) if ntk else none
            compiled.segment(
                pairs,
                X if k == 0 else X[:0],
                Y if k == 0 else Y[:0],
                sigma,
                theta,
                segment.variances(x_in),
                segment.variances(y_in),
                *segment.program(),
                np.array(segment.reach),
                np.array(segment.window),
                sigma_out,
                theta_out,
            )
            sigma, theta = sigma_out * segment.scale, theta_out * segment.scale
        return sigma, theta


def image_chain(net: Layer, shape: Sequence[int], kinds: tuple[str, ...]) -> ImageChain | None:
    """Compiled kernel of `net` on images of `shape`, or None if it is not such a chain."""
    segments: list[Segment] = []
    layers: list[Conv | Activation] = []
    size = size_in = (int(shape[0]), int(shape[1]))
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


def _unit_planes(rows: Rows) -> np.ndarray:
    """Images of norm one, channels first (n, c, h, w)."""
    X = widen(rows.data)
    unit = divide_rows(X.reshape(len(X), -1), rows.stats[0]).reshape(X.shape)
    return np.ascontiguousarray(np.moveaxis(unit, 3, 1))
