"""From the description of a network to the stages of its features: sizes and draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ntkit._random import generator, keyed
from ntkit.features._network import (
    Activate,
    ActivateAndPool,
    Bias,
    Branches,
    Columns,
    Finish,
    Fold,
    Mix,
    Patches,
    Pool,
    Project,
    Scale,
    SideBySide,
    Stage,
    Start,
    SumPixels,
    Train,
    Unit,
)
from ntkit.features._units import RandomUnits, SeriesUnits, Units
from ntkit.features._walk import draw_directions
from ntkit.kernels.expansions import dual_polynomial, truncated_coefficients
from ntkit.networks import (
    Activation,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    PiecewiseLinear,
    Residual,
    UnsupportedError,
    fold,
)
from ntkit.networks.fold import TrainedLayers, flatten, leaves
from ntkit.programs import power_of_two
from ntkit.sketches import SRHT, TensorSRHT
from ntkit.sketches.series import SeriesOperator, SeriesSketch
from ntkit.sketches.srht import SRHTOperator
from ntkit.sketches.tensor import TensorSRHTOperator

WIDEST = 4  # times the hidden components: more columns, of residual branches, are sketched down


@dataclass(frozen=True)
class Options:
    """Parameters of a feature map of a network, checked."""

    n_components: int
    kinds: tuple[str, ...]
    random: bool
    directions: str
    hidden: int
    derivative: int
    degree: int
    derivative_degree: int
    split: float | None
    normalize: bool
    replace: bool


@dataclass(frozen=True)
class Layout:
    """What reaches a layer: images of (h, w) pixels or rows (), and their columns."""

    pixels: tuple[int, ...]
    columns: Columns


def stages_of(net: Layer, input_shape: tuple[int, ...], options: Options, seed: np.random.SeedSequence) -> list[Stage]:
    """All stages of the features of a network on rows (d,) or images (h, w, c), with their draws."""
    layout = Layout(input_shape[:-1], Columns(0, np.zeros(input_shape[-1])))
    compiler = _Compiler(options, seed, trained=fold(net, TrainedLayers(), 0))
    compiler.stages.append(Start(track=options.normalize or not options.random))
    layout = compiler.sequence(list(flatten(net)), layout, (), ending=0)
    compiler.finish(layout)
    return compiler.stages


class _Compiler:
    """Walks over the layers and appends stages."""

    def __init__(self, options: Options, seed: np.random.SeedSequence, *, trained: int):
        self.options, self.seed, self.trained = options, seed, trained
        self.stages: list[Stage] = []

    def sequence(self, layers: list[Layer], layout: Layout, path: tuple[int, ...], *, ending: int | None) -> Layout:
        """Append layers; `ending`, unless None, says that no activation follows, and how many trained layers do."""
        skip = False
        for i, layer in enumerate(layers):
            if skip:
                skip = False
                continue
            rest = layers[i + 1 :]
            if isinstance(layer, Activation):
                skip = bool(rest) and isinstance(rest[0], GlobalAvgPool)
                layout = self.activation(layer, layout, (*path, i), pooled=skip, trained_after=_ending(rest, ending))
            elif isinstance(layer, Residual):
                layout = self.residual(layer, layout, (*path, i), ending=_ending(rest, ending))
            else:
                layout = self.layer(layer, layout, (*path, i))
        return layout

    def layer(self, layer: Layer, layout: Layout, path: tuple[int, ...]) -> Layout:
        """Append a layer that is no activation."""
        columns = layout.columns
        if isinstance(layer, Dense | Conv):
            if layer.trainable and "ntk" in self.options.kinds:
                columns = Columns(columns.n_eta, np.sqrt(columns.weights**2 + 1))
                self.stages.append(Train())
            layout = Layout(layout.pixels, columns)
            if isinstance(layer, Conv):
                layout = self.convolution(layer, layout, path)
            if layer.weight_std != 1:
                self.stages.append(Scale(layer.weight_std))
            if layer.bias_std:
                trained = layer.trainable and "ntk" in self.options.kinds
                self.stages.append(Bias(layer.bias_std, trained))
                columns = layout.columns
                layout = Layout(layout.pixels, Columns(columns.n_eta, np.append(columns.weights, float(trained))))
            return layout
        if isinstance(layer, AvgPool):
            self.stages.append(Pool(layer, columns))
            rows, cols = layer.windows(*layout.pixels)
            return Layout((rows.n_out, cols.n_out), columns)
        if isinstance(layer, GlobalAvgPool):
            self.stages.append(Pool(None, columns))
            return Layout((), columns)
        if isinstance(layer, Normalize):
            self.stages.append(Unit(columns))
            return layout
        if not isinstance(layer, Flatten):
            raise UnsupportedError(f"NetworkFeatures takes no {type(layer).__name__}: of your own layers, activations.")
        n_pixels = prod(layout.pixels)
        if n_pixels * columns.n_columns <= WIDEST * self.options.hidden:
            self.stages.append(SideBySide(columns))
            return Layout((), Columns(n_pixels * columns.n_eta, np.tile(columns.weights, n_pixels)))
        self.stages.append(SumPixels(self.signs((*layout.pixels, columns.n_columns), path)))
        return Layout((), columns)

    def convolution(self, layer: Conv, layout: Layout, path: tuple[int, ...]) -> Layout:
        """Append the patches of a convolution: side by side if these are few numbers, else mixed."""
        columns = layout.columns
        rows, cols = layer.windows(*layout.pixels)
        pixels, size = (rows.n_out, cols.n_out), rows.size * cols.size
        if size * columns.n_columns <= self.options.hidden or size == 1:
            if size > 1 or pixels != layout.pixels:
                self.stages.append(Patches(layer, columns))
            return Layout(pixels, Columns(size * columns.n_eta, np.tile(columns.weights, size)))
        self.stages.append(Mix(layer, self.signs((rows.size, cols.size, columns.n_columns), path)))
        return Layout(pixels, columns)

    def residual(self, layer: Residual, layout: Layout, path: tuple[int, ...], *, ending: int | None) -> Layout:
        """Append branches, and a sketch if their columns are many."""
        outer, branches, ends, options = self.stages, [], [], self.options
        if ending is not None:  # features of the branches will stand side by side
            n_parts = max(sum(map(has_activation, layer.branches)), 1)
            self.options = replace(options, n_components=max(options.n_components // n_parts, 1))
        for i, branch in enumerate(layer.branches):
            self.stages = []
            ends.append(self.sequence(list(flatten(branch)), layout, (*path, i), ending=ending))
            branches.append(tuple(self.stages))
        self.stages, self.options = outer, options
        self.stages.append(Branches(tuple(branches), tuple(end.columns for end in ends)))
        n_eta = sum(end.columns.n_eta for end in ends)
        columns = Columns(n_eta, np.concatenate([end.columns.weights for end in ends]))
        if ending is None and columns.n_columns > WIDEST * self.options.hidden:
            columns = self.project(columns, path)
        return Layout(ends[0].pixels, columns)

    def project(self, columns: Columns, path: tuple[int, ...]) -> Columns:
        """Append a sketch of ψ and φ to as many columns as hidden layers have."""
        size, repeat = self.options.hidden, self.options.replace
        psi = None
        if columns.n_psi:
            psi = SRHT(columns.n_psi, size, replace=repeat).sample(keyed(self.seed, *path, "psi"))
        phi = SRHT(len(columns.weights), size, replace=repeat).sample(keyed(self.seed, *path, "phi"))
        self.stages.append(Project(columns, psi, phi))
        return Columns(0 if psi is None else size, np.zeros(size))

    def activation(
        self, layer: Activation, layout: Layout, path: tuple[int, ...], *, pooled: bool, trained_after: int | None
    ) -> Layout:
        """Append an activation; `trained_after`, unless None, counts the layers trained between it and the end."""
        options, columns = self.options, layout.columns
        n_eta, n_phi = options.hidden, options.hidden
        if trained_after is not None:
            n_eta, n_phi = self.last_sizes(columns, trained_after)
        ntk = "ntk" in options.kinds and columns.n_psi > 0
        n_eta = n_eta if ntk else 0
        if not n_eta and not n_phi:  # Θ = 0, and nothing else is asked for
            n_phi = 1
        sizes = n_phi, options.derivative if n_eta else 0
        units = self.units(layer, len(columns.weights), sizes, path, pixels=bool(layout.pixels), pooled=pooled)
        if n_eta and trained_after and options.kinds == ("ntk",):  # a series can have fewer components than asked for
            left = options.n_components - units.n_forward  # or more, where it is rotated
            n_eta = left if 2 * left >= n_eta else n_eta
        product: Fold | TensorSRHTOperator | None = None
        if n_eta and pooled:
            product = self.fold(columns.n_psi, units.n_derivative, n_eta, path)
        elif n_eta:
            law = TensorSRHT((columns.n_psi, units.n_derivative), n_eta, replace=options.replace)
            product = law.sample(keyed(self.seed, *path, "product"))
        kind = ActivateAndPool if pooled else Activate
        stage = kind(layer, columns, units, product, options.normalize)
        self.stages.append(stage)
        return Layout(() if pooled else layout.pixels, stage.columns_after)

    def fold(self, rows: int, cols: int, size: int, path: tuple[int, ...]) -> Fold:
        """Draw the signs for a matrix: orthogonal for the rows that are added, as those of :meth:`signs`."""
        rng, order = generator(self.seed, *path, "fold"), power_of_two(cols)
        chosen = rng.permutation(order)[np.arange(rows) // max(size // cols, 1) % order]
        return Fold(_orthogonal_signs(rng, chosen, cols), size)

    def last_sizes(self, columns: Columns, trained_after: int) -> tuple[int, int]:
        """Components of η and φ in the result."""
        m, kinds = self.options.n_components, self.options.kinds
        if kinds == ("ntk",):
            if not trained_after:
                return m, 0
            if not columns.n_psi:
                return 0, m
            split = self.options.split
            split = 0.6 * trained_after / self.trained if split is None else split
            n_phi = min(max(round(split * m), 1), max(m - 1, 1))
            return max(m - n_phi, 1), n_phi
        return (0 if kinds == ("nngp",) else m), m

    def units(
        self,
        layer: Activation,
        n_features: int,
        sizes: tuple[int, int],
        path: tuple[int, ...],
        *,
        pixels: bool,
        pooled: bool,
    ) -> Units:
        """Draw the features of an activation, forward and derivative ones.

        Of `pixels` the former are to be spread over all columns, as pixels may be added with signs next, unless they
        are `pooled`, where the latter are.
        """
        options, seed = self.options, keyed(self.seed, *path, "units")
        n_forward, n_derivative = sizes
        if options.random:
            size = max(n_forward, n_derivative)
            matrix = draw_directions(seed, n_features=n_features, size=size, law=options.directions)
            if not isinstance(layer, PiecewiseLinear) and options.directions != "gaussian":
                matrix = _with_gaussian_norms(matrix, generator(seed, "norms"))
            return RandomUnits(layer, matrix, n_forward, n_derivative)

        def series(size: int, degree: int, *, derivative: bool) -> SeriesOperator | None:
            if not size:
                return None
            coefficients = _coefficients(layer, degree, derivative=derivative)
            law = SeriesSketch(n_features, coefficients, size, normalize=options.normalize, replace=options.replace)
            return law.sample(keyed(seed, "derivative" if derivative else "forward"))

        def rotation(series: SeriesOperator | None, key: str, *, spread: bool) -> SRHTOperator | None:
            if series is None or not pixels or not spread:
                return None
            size = series.n_components
            return SRHT(size, power_of_two(size)).sample(keyed(seed, "rotation", key))

        forward = series(n_forward, options.degree, derivative=False)
        derivative = series(n_derivative, options.derivative_degree, derivative=True)
        rotations = rotation(forward, "forward", spread=not pooled), rotation(derivative, "derivative", spread=pooled)
        return SeriesUnits(layer, forward, derivative, options.normalize, *rotations)

    def signs(self, shape: tuple[int, ...], path: tuple[int, ...]) -> np.ndarray:
        """Random signs for pixels that are added, (…, columns): orthogonal for different pixels, if they can be.

        Rows of a Hadamard matrix, its columns in random order, times signs of the columns and of the rows: what pixels
        have in common with entries of equal size (the mean of ReLUs, the constant of a series) then cancels exactly,
        not in the mean only.
        """
        n_pixels, n_columns = prod(shape[:-1]), shape[-1]
        rng, order = generator(self.seed, *path, "signs"), power_of_two(n_columns)
        if n_pixels > order:
            return 2 * rng.integers(0, 2, shape, dtype=np.int8) - 1
        return _orthogonal_signs(rng, rng.permutation(order)[:n_pixels], n_columns).reshape(shape)

    def finish(self, layout: Layout) -> None:
        """Append what makes the features asked for out of the columns."""
        columns, m = layout.columns, self.options.n_components
        maps = []
        for kind in self.options.kinds:
            size = columns.n_psi if kind == "ntk" else len(columns.weights)
            law = SRHT(size, m, replace=self.options.replace) if size > m else None
            maps.append(None if law is None else law.sample(keyed(self.seed, "finish", kind)))
        self.stages.append(Finish(columns, self.options.kinds, tuple(maps), m, self.options.normalize))


def _coefficients(activation: Activation, degree: int, *, derivative: bool) -> tuple[float, ...]:
    """Coefficients of t^j: a fitted polynomial, or for a scale-dependent activation its series at variance 1."""
    if isinstance(activation, PiecewiseLinear):
        return tuple(activation.gain * a for a in dual_polynomial(activation, degree, derivative=derivative)[0])
    table = truncated_coefficients(activation, np.ones(()), range(degree + 1), derivative=derivative)
    return tuple((np.asarray(table) ** 2).tolist())


def _with_gaussian_norms(matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows with the norms of Gaussian vectors, which count where an activation is not homogeneous."""
    norms = np.linalg.norm(matrix, axis=1)
    lengths = np.sqrt(rng.chisquare(matrix.shape[1], len(matrix)))
    return (matrix * (lengths / np.where(norms > 0, norms, 1.0))[:, None]).astype(np.float32)


def _orthogonal_signs(rng: np.random.Generator, chosen: np.ndarray, n_columns: int) -> np.ndarray:
    """Rows of a Hadamard matrix, times random signs of rows and columns; fewer columns are taken at random."""
    columns = rng.permutation(power_of_two(n_columns))[:n_columns]
    hadamard = 1 - 2 * (np.bitwise_count(chosen[:, None] & columns) % 2).astype(np.int8)
    left, right = (2 * rng.integers(0, 2, n, dtype=np.int8) - 1 for n in hadamard.shape)
    return hadamard * left[:, None] * right


def _ending(rest: list[Layer], ending: int | None) -> int | None:
    """Trained layers between here and the end of the network; None if there is an activation."""
    if ending is None or any(map(has_activation, rest)):
        return None
    return sum((fold(layer, TrainedLayers(), 0) for layer in rest), ending)


def has_activation(net: Layer) -> bool:
    """Whether a network has an activation."""
    return any(isinstance(layer, Activation) for layer in leaves(net))
