"""Plan the stages of a network's features, with all sizes, by one fold over its layers.

No random numbers are drawn here: stages hold laws, and :func:`~ntkit.features.network.stages.draw_stages` draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ntkit import _array
from ntkit._state import reserve
from ntkit.features.directions import Directions
from ntkit.features.network.stages import (
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
    Signs,
    Stage,
    Stages,
    Start,
    SumPixels,
    Train,
    Unit,
)
from ntkit.features.network.units import RandomUnits, SeriesUnits, Units, size_of
from ntkit.kernels.expansions import dual_polynomial, truncated_coefficients
from ntkit.kernels.series import arc_cosine_taylor
from ntkit.networks import (
    Activation,
    Algebra,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    Layer,
    Normalize,
    PiecewiseLinear,
    Residual,
    Sequential,
    fold,
)
from ntkit.networks.fold import Path, TrainedLayers, flatten
from ntkit.programs import power_of_two
from ntkit.sketches import SRHT, TensorSRHT
from ntkit.sketches.series import PaddedSeries, SeriesSketch
from ntkit.sketches.tree import is_long, leaf_law

MAX_COLUMNS_RATIO = 4  # concatenated branches or pixels with more columns, in units of phi_hidden, are sketched


@dataclass(frozen=True)
class Options:
    """Validated parameters of a feature map of a network. The last six reproduce the papers' algorithms."""

    n_components: int
    kinds: tuple[str, ...]
    random: bool
    directions: str
    phi_hidden: int
    """Components of φ before the last activation."""
    eta_hidden: int
    """Components of η, Q²(…), before the last activation."""
    derivative: int
    degree: int
    derivative_degree: int
    split: float | None
    normalize: bool
    replace: bool
    independent: bool = False
    """Whether forward and derivative features have separate directions."""
    sampler: str = "exact"
    sweeps: int = 1
    taylor: bool = False
    """Whether series are Taylor polynomials instead of fitted polynomials."""
    padded: tuple[int, int] | None = None
    """Algorithm 1: components of the PolySketches of κ₁ and κ₀; SRHTs then mix their degrees and the parts of ψ."""
    projected: bool = False
    """Algorithm 1, line 10: whether a Gaussian matrix is applied last."""

    def coefficients(self, layer: Activation) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the coefficients of the series of an activation and of its derivative."""
        return (
            series_coefficients(layer, self.degree, derivative=False, taylor=self.taylor),
            series_coefficients(layer, self.derivative_degree, derivative=True, taylor=self.taylor),
        )


def plan_stages(net: Layer, input_shape: tuple[int, ...], options: Options) -> Stages:
    """Plan all stages of the features of a network on rows (d,) or images (h, w, c)."""
    net = _canonical(net)
    algebra = FeatureStages(options, fold(net, TrainedLayers(), 0), fold(net, Endings(), {}))
    columns = Columns(0, np.zeros(input_shape[-1]))
    layout = Layout(input_shape[:-1], columns).then((), Start(track=options.normalize or not options.random))
    if options.padded is not None:
        sparse = is_long(columns.n_columns, options.n_components)
        first = leaf_law(columns.n_columns, options.phi_hidden, sparse=sparse, replace=options.replace)
        layout = algebra.project(layout, (), phi=first)
    return algebra.finish(fold(net, algebra, layout))


def _canonical(net: Layer) -> Sequential:
    """Return the same network with a Sequential as its outermost layer and as each branch, and nowhere else."""
    layers = (
        Residual(*map(_canonical, layer.branches)) if isinstance(layer, Residual) else layer for layer in flatten(net)
    )
    return Sequential(*layers)


class Ending(NamedTuple):
    """An activation or a sum of branches that no activation follows."""

    trained_after: int
    """Number of trained layers between it and the end."""
    n_parts: int = 1
    """Number of parallel branches with activations that share the components with it, including its own branch."""
    is_activation: bool = True


class Endings(Algebra[dict[Path, Ending]]):
    """Find the last activations and sums of branches; the state holds those that no activation has followed so far."""

    def join(
        self, layer: Residual, before: dict[Path, Ending], ends: list[dict[Path, Ending]], path: Path
    ) -> dict[Path, Ending]:
        """Return the endings of all branches, and the earlier endings if no branch has an activation."""
        added = [{key: value for key, value in end.items() if key not in before} for end in ends]
        n_parts = sum(any(ending.is_activation for ending in part.values()) for part in added)
        found = {path: Ending(0, 1, is_activation=False)}
        for part in added:
            found |= {key: value._replace(n_parts=value.n_parts * max(n_parts, 1)) for key, value in part.items()}
        if n_parts:
            return found
        longest = {key: max((end[key] for end in ends if key in end), key=lambda e: e.trained_after) for key in before}
        return longest | found


@Endings.rule(Layer)
def _(algebra: Endings, layer: Layer, found: dict[Path, Ending], path: Path) -> dict[Path, Ending]:
    return found


@Endings.rule(Dense, Conv)
def _(algebra: Endings, layer: Dense | Conv, found: dict[Path, Ending], path: Path) -> dict[Path, Ending]:
    return {key: value._replace(trained_after=value.trained_after + layer.trainable) for key, value in found.items()}


@Endings.rule(Activation)
def _(algebra: Endings, layer: Activation, found: dict[Path, Ending], path: Path) -> dict[Path, Ending]:
    return {path: Ending(0)}


@dataclass(frozen=True, eq=False)
class Layout:
    """The input of a layer: images of (h, w) pixels or rows (), their columns, and the stages that made them."""

    pixels: tuple[int, ...]
    columns: Columns
    stages: Stages = ()
    activated: tuple[Activation, Layout, Path] | None = field(default=None, repr=False)
    """The activation directly before this layer, its input, and its path."""

    def then(
        self, path: Path, *stages: Stage, pixels: tuple[int, ...] | None = None, columns: Columns | None = None
    ) -> Layout:
        """Return the layout after more stages."""
        columns = self.columns if columns is None else columns
        reserve(columns.weights.nbytes, "The layers of a network", seconds=0.004)
        return Layout(
            self.pixels if pixels is None else pixels,
            columns,
            (*self.stages, *((path, stage) for stage in stages)),
        )


class FeatureStages(Algebra[Layout]):
    """The fold that makes the stages of each layer."""

    def __init__(self, options: Options, trained: int, endings: dict[Path, Ending]):
        self.options, self.trained, self.endings = options, trained, endings

    def fork(self, layout: Layout) -> Layout:
        """Start a branch without stages."""
        return replace(layout, stages=(), activated=None)

    def join(self, layer: Residual, before: Layout, ends: list[Layout], path: Path) -> Layout:
        """Concatenate branches, and sketch them if they have many columns."""
        branches = Branches(tuple(end.stages for end in ends), tuple(end.columns for end in ends))
        n_eta = sum(end.columns.n_eta for end in ends)
        reserve(sum(end.columns.weights.nbytes for end in ends), "Columns of branches")
        columns = Columns(n_eta, np.concatenate([end.columns.weights for end in ends]))
        layout = before.then(path, branches, pixels=ends[0].pixels, columns=columns)
        if path in self.endings or columns.n_columns <= MAX_COLUMNS_RATIO * self.options.phi_hidden:
            return layout
        size, repeat = self.options.phi_hidden, self.options.replace
        psi = SRHT(columns.n_psi, size, replace=repeat) if columns.n_psi else None
        return self.project(layout, path, psi=psi, phi=SRHT(len(columns.weights), size, replace=repeat))

    def project(self, layout: Layout, path: Path, *, psi: Any = None, phi: Any = None) -> Layout:
        """Sketch ψ, φ or both."""
        stage = Project(layout.columns, psi, phi, self.options.normalize)
        return layout.then(path, stage, columns=stage.columns_after)

    def add_weights(self, layer: Dense | Conv, layout: Layout, path: Path) -> Layout:
        """Add the scale and the biases of a layer, after its patches."""
        stages: list[Stage] = [Scale(layer.weight_std)] if layer.weight_std != 1 else []
        columns = layout.columns
        if layer.bias_std:
            trained = layer.trainable and "ntk" in self.options.kinds
            stages.append(Bias(layer.bias_std, trained))
            columns = Columns(columns.n_eta, np.append(columns.weights, float(trained)))
        return layout.then(path, *stages, columns=columns)

    def train(self, layer: Dense | Conv, layout: Layout, path: Path) -> Layout:
        """Add Θ → Θ + Σ if the layer is trained; then sketch ψ for long rows, and in Algorithm 1 for all rows."""
        options, columns = self.options, layout.columns
        if not layer.trainable or "ntk" not in options.kinds:
            return layout
        first = columns.n_psi == 0
        columns = Columns(columns.n_eta, np.sqrt(columns.weights**2 + 1))
        layout = layout.then(path, Train(), columns=columns)
        if layout.pixels or len(path) > 1:
            return layout
        size = options.eta_hidden
        if options.padded is not None:
            last = not first and any(key < path for key in self.endings)
            if last and not options.projected:
                size = options.n_components
            return self.project(layout, path, psi=SRHT(columns.n_psi, size, replace=options.replace))
        if first and is_long(columns.n_columns, options.n_components):
            size = options.n_components if options.random else size
            return self.project(layout, path, psi=leaf_law(columns.n_psi, size, sparse=True))
        return layout

    def activate(self, layer: Activation, layout: Layout, path: Path, *, pooled: bool) -> Layout:
        """Add an activation and, with `pooled`, the mean over all pixels after it."""
        options, columns = self.options, layout.columns
        n_eta, n_phi = options.eta_hidden, options.phi_hidden
        ending = self.endings.get(path)
        if ending is not None:
            n_eta, n_phi = self.last_sizes(columns, ending)
        n_eta = n_eta if "ntk" in options.kinds and columns.n_psi else 0
        if not n_eta and not n_phi:  # Θ = 0, and no other features are requested
            n_phi = 1
        sizes = n_phi, options.derivative if n_eta else 0
        first = not layout.pixels and not any(isinstance(stage, Activate | Branches) for _, stage in layout.stages)
        units = self.units(layer, len(columns.weights), sizes, first=first, pixels=bool(layout.pixels), pooled=pooled)
        if n_eta and ending is not None and ending.trained_after and options.kinds == ("ntk",) and not options.padded:
            # A series can have fewer components than requested, or more if it is rotated.
            left = max(options.n_components // ending.n_parts, 1) - units.n_forward
            n_eta = left if 2 * left >= n_eta else n_eta
        product: Fold | TensorSRHT | None = None
        if n_eta and pooled:
            product = Fold((columns.n_psi, units.n_derivative), n_eta)
        elif n_eta:
            product = TensorSRHT((columns.n_psi, units.n_derivative), n_eta, replace=options.replace)
        kind = ActivateAndPool if pooled else Activate
        stage = kind(layer, columns, units, product, options.normalize)
        result = layout.then(path, stage, pixels=() if pooled else None, columns=stage.columns_after)
        return result if pooled else replace(result, activated=(layer, layout, path))

    def last_sizes(self, columns: Columns, ending: Ending) -> tuple[int, int]:
        """Return the numbers of components of η and φ in the result."""
        options = self.options
        m, kinds = max(options.n_components // ending.n_parts, 1), options.kinds
        if options.padded is not None:  # both parts are sketched together later
            if options.projected or kinds == ("ntk",):
                return (options.eta_hidden if options.projected else m), options.phi_hidden
            return 0, m
        if kinds == ("ntk",):
            if not ending.trained_after:
                return m, 0
            if not columns.n_psi:
                return 0, m
            split = 0.6 * ending.trained_after / self.trained if options.split is None else options.split
            n_phi = split_components(m, split)
            return max(m - n_phi, 1), n_phi
        return (0 if kinds == ("nngp",) else m), m

    def units(
        self, layer: Activation, n_features: int, sizes: tuple[int, int], *, first: bool, pixels: bool, pooled: bool
    ) -> Units:
        """Return the laws of the forward and derivative features of an activation.

        For `pixels`, forward features are rotated, so that they are spread over all columns: pixels may be added with
        signs next. If they are `pooled`, derivative features are rotated instead.
        """
        options, (n_forward, n_derivative) = self.options, sizes
        if options.random:
            norms = not isinstance(layer, PiecewiseLinear)

            def directions(size: int) -> Directions:
                return Directions(n_features, size, options.directions, norms, options.sampler, options.sweeps)

            if options.independent and n_derivative:
                return RandomUnits(layer, directions(n_forward), n_forward, n_derivative, directions(n_derivative))
            return RandomUnits(layer, directions(max(sizes)), n_forward, n_derivative)
        inner = (None, None) if options.padded is None else options.padded
        sparse = first and options.padded is None and is_long(n_features, options.n_components)
        forward = self.series(layer, n_features, n_forward, inner[0], derivative=False, sparse=sparse)
        derivative = self.series(layer, n_features, n_derivative, inner[1], derivative=True, sparse=sparse)
        rotations = (
            _rotation(forward) if pixels and not pooled else None,
            _rotation(derivative) if pixels and pooled else None,
        )
        return SeriesUnits(layer, forward, derivative, options.normalize, *rotations)

    def series(
        self, layer: Activation, n_features: int, size: int, inner: int | None, *, derivative: bool, sparse: bool
    ) -> SeriesSketch | PaddedSeries | None:
        """Return the law of a sketched series: a share for each degree or, with `inner`, padded and mixed degrees."""
        if not size:
            return None
        options = self.options
        coefficients = options.coefficients(layer)[derivative]
        if inner is not None:
            return PaddedSeries(n_features, coefficients, size, inner, sparse=sparse, replace=options.replace)
        return SeriesSketch(
            n_features, coefficients, size, sparse=sparse, normalize=options.normalize, replace=options.replace
        )

    def finish(self, layout: Layout) -> Stages:
        """Add the last stage, which makes the requested features from the columns; return all stages."""
        options, columns = self.options, layout.columns
        laws: list[Any] = []
        for kind in options.kinds:
            size = columns.n_psi if kind == "ntk" else len(columns.weights)
            if options.projected:
                laws.append(GaussianMap(size, options.n_components))
            else:
                many = size > options.n_components
                laws.append(SRHT(size, options.n_components, replace=options.replace) if many else None)
        normalize = options.normalize and not options.projected
        return layout.then((), Finish(columns, options.kinds, tuple(laws), options.n_components, normalize)).stages


@FeatureStages.rule(Dense)
def _(algebra: FeatureStages, layer: Dense, layout: Layout, path: Path) -> Layout:
    return algebra.add_weights(layer, algebra.train(layer, layout, path), path)


@FeatureStages.rule(Conv)
def _(algebra: FeatureStages, layer: Conv, layout: Layout, path: Path) -> Layout:
    """Concatenate the pixels of patches if these have few columns; otherwise add the pixels with signs."""
    layout = algebra.train(layer, layout, path)
    columns = layout.columns
    rows, cols = layer.windows(*layout.pixels)
    pixels, size = (rows.n_out, cols.n_out), rows.size * cols.size
    if size * columns.n_columns <= algebra.options.phi_hidden or size == 1:
        stages = [Patches(layer, columns)] if size > 1 or pixels != layout.pixels else []
        columns = Columns(size * columns.n_eta, np.tile(columns.weights, size))
    else:
        stages = [Mix(layer, Signs((rows.size, cols.size, columns.n_columns)))]  # type: ignore[list-item]
    return algebra.add_weights(layer, layout.then(path, *stages, pixels=pixels, columns=columns), path)


@FeatureStages.rule(Activation)
def _(algebra: FeatureStages, layer: Activation, layout: Layout, path: Path) -> Layout:
    return algebra.activate(layer, layout, path, pooled=False)


@FeatureStages.rule(AvgPool)
def _(algebra: FeatureStages, layer: AvgPool, layout: Layout, path: Path) -> Layout:
    rows, cols = layer.windows(*layout.pixels)
    return layout.then(path, Pool(layer, layout.columns), pixels=(rows.n_out, cols.n_out))


@FeatureStages.rule(GlobalAvgPool)
def _(algebra: FeatureStages, layer: GlobalAvgPool, layout: Layout, path: Path) -> Layout:
    if layout.activated is not None:  # the mean of ψ ⊗ φ̇ is cheaper than the mean of its sketches
        activation, input_layout, activation_path = layout.activated
        return algebra.activate(activation, input_layout, activation_path, pooled=True)
    return layout.then(path, Pool(None, layout.columns), pixels=())


@FeatureStages.rule(Normalize)
def _(algebra: FeatureStages, layer: Normalize, layout: Layout, path: Path) -> Layout:
    return layout.then(path, Unit(layout.columns))


@FeatureStages.rule(Flatten)
def _(algebra: FeatureStages, layer: Flatten, layout: Layout, path: Path) -> Layout:
    columns, n_pixels = layout.columns, prod(layout.pixels)
    if n_pixels * columns.n_columns <= MAX_COLUMNS_RATIO * algebra.options.phi_hidden:
        concatenated = Columns(n_pixels * columns.n_eta, np.tile(columns.weights, n_pixels))
        return layout.then(path, SideBySide(columns), pixels=(), columns=concatenated)
    return layout.then(path, SumPixels(Signs((*layout.pixels, columns.n_columns))), pixels=())


def split_components(n_components: int, split: float) -> int:
    """Return the number of components of φ in ψ = η ⊕ φ; η and φ both get at least one if there are two."""
    return min(max(round(split * n_components), 1), max(n_components - 1, 1))


@dataclass(frozen=True)
class GaussianMap:
    """Law of a matrix of independent N(0, 1/m) entries."""

    n_features: int
    n_components: int

    def draw_bytes(self) -> int:
        """Return an upper bound on the bytes that `sample` takes."""
        return 32 * self.n_features * self.n_components

    def sample(self, seed: np.random.SeedSequence) -> GaussianOperator:
        """Draw the matrix."""
        w = Directions(self.n_features, self.n_components, "gaussian").sample(seed)
        return GaussianOperator(w * np.float32(self.n_components**-0.5))


class GaussianOperator:
    """x ↦ W x."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.n_components = matrix, len(matrix)

    def emit(self, program: Any, value: int) -> int:
        """Append the product to a program."""
        return program.dense(value, self.matrix)

    def apply(self, X: Any) -> Any:
        """Map rows."""
        return _array.namespace(X).matmul(X, _array.constant(self.matrix.T, X))


def series_coefficients(
    activation: Activation, degree: int, *, derivative: bool, taylor: bool = False
) -> tuple[float, ...]:
    """Return the coefficients of t^j of a fitted or Taylor polynomial.

    For activations that are not homogeneous they are the coefficients of the series at variance 1. The remainder of a
    Taylor polynomial at t = 1 is added to its highest coefficient, because norms would shrink from layer to layer
    otherwise.
    """
    if isinstance(activation, PiecewiseLinear):
        if taylor:
            found = _taylor(activation, degree, derivative=derivative)
        else:
            found = dual_polynomial(activation, degree, derivative=derivative)[0]
        return tuple(activation.gain * a for a in found)
    table = truncated_coefficients(activation, np.ones(()), range(degree + 1), derivative=derivative)
    return tuple((np.asarray(table) ** 2).tolist())


def _taylor(activation: PiecewiseLinear, degree: int, *, derivative: bool) -> tuple[float, ...]:
    """Return Taylor coefficients of w t + (1 − w) κ₁(t), or of w + (1 − w) κ₀(t), that add up to 1."""
    w = activation.mix
    a = (1 - w) * arc_cosine_taylor(0 if derivative else 1, degree)
    a[0 if derivative else 1] += w
    a[-1] += 1 - a.sum()
    return tuple(a.tolist())


def _rotation(series: SeriesSketch | PaddedSeries | None) -> SRHT | None:
    """Return the law of an SRHT of full size, which spreads features evenly over all columns."""
    if series is None:
        return None
    size = size_of(series)
    return SRHT(size, power_of_two(size))
