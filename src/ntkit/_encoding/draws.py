"""How many random numbers a map draws: bounds, found without drawing any, so that no file can ask for too many."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ntkit._validation import check_int
from ntkit.features.network.plan import WIDEST
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
    Residual,
    fold,
    output_shape,
)
from ntkit.networks.fold import Path, flatten

_DEEPEST = 10**4
_HIGHEST = 1024  # degree of a power
_HELD = 32  # a number that is held for a row counts as so many draws: there is more time than memory


def count_draws(model: Any, shape: tuple[int, ...]) -> int:
    """Bound for the random numbers that a map draws, after a check of its sizes.

    `shape` is that of a row, (features,), or of an image, (height, width, channels). Of images the numbers that layers
    hold for one of them count too.
    """
    name, d = type(model).__name__, prod(shape)
    sizes = {
        key: check_int(value, key, name, minimum=int(not key.endswith("degree")))
        for key, value in model.get_params(deep=False).items()
        if (key in ("depth", "width", "gibbs_sweeps") or key.endswith(("degree", "components")))
        and value is not None
        and value != "auto"
    }
    depth = check_int(sizes.get("depth", 1), "depth", name, maximum=_DEEPEST)
    if name in ("CNTKSketch", "NetworkFeatures"):
        return _count_signs(model, shape)
    if name == "NTKFeatures":
        d += 1
        name = {"random": "NTKRandomFeatures", "gradient": "GradientFeatures"}.get(model.method, "")
    if name == "GradientFeatures":
        return _count_weights(model, shape if len(shape) > 1 else d, depth)
    if name in _OF_COLUMNS:
        return _OF_COLUMNS[name](d, sizes["n_components"], sizes.get("degree", 128))
    if name == "DotProductSketch":
        width = max(512, sizes["n_components"])
        powers = 4 * _HIGHEST * width + 16 * d  # two rows and two signs for each component of a node of each degree
        trees = _of_trees(min(sizes.get("degree", 128), 128), d, width)
        return powers if model.method == "power" else max(powers, trees)
    if name == "NTKRandomFeatures":
        half = sizes["n_components"] // 2 + 1
        hidden, steps = sizes.get("hidden_components", half), sizes.get("derivative_components", half)
        return sizes.get("gibbs_sweeps", 1) * (max(hidden, 2 * half) + steps) * (d + (depth - 1) * hidden)
    largest = max([256, *(value for key, value in sizes.items() if key == "width" or key.endswith("components"))])
    degree = sum(sizes.get(key, 128) for key in model.get_params(deep=False) if key.endswith("degree")) or 128
    dense = largest**2 if getattr(model, "projection", False) else 0
    return _of_trees(degree, d, largest * depth) + dense


_OF_COLUMNS = {
    "RandomFourierFeatures": lambda d, m, _: d * (m + 1),
    "OrthogonalFourierFeatures": lambda d, m, _: d * (m + d + 1),
    "FastfoodFeatures": lambda d, m, _: 4 * (m + 2 * max(d, 64)),
    "MaclaurinFeatures": lambda d, m, degree: d * m * degree,
    "GegenbauerFeatures": lambda d, m, degree: 5 * d * m + 1000 * degree**2,  # coefficients take time too
    "NystroemFeatures": lambda d, m, _: 0,  # noqa: ARG005
}
"""Bounds for n_features, n_components and the degree."""


def _of_trees(degree: int, n_features: int, n_components: int) -> int:
    """Less than ten nodes for each degree, with two rows and two signs for each component."""
    return 10 * degree * (2 * n_features + 8 * n_components)


def _count_weights(model: Any, inputs: int | tuple[int, ...], depth: int) -> int:
    """Weights of the network whose gradients are the features."""
    from ntkit.features import GradientFeatures
    from ntkit.features.network.finite import floats_per_row, linears, resolve
    from ntkit.networks import fully_connected

    if not isinstance(model, GradientFeatures):
        model = GradientFeatures(fully_connected(depth), n_components=model.n_components)
    shape = (inputs,) if isinstance(inputs, int) else inputs
    layers = model._check_layers(model._net())
    steps = resolve(layers, shape, model._width(layers, shape))
    n_weights = sum(prod(layer.shape) for layer in linears(steps))
    return n_weights if isinstance(inputs, int) else max(n_weights, _HELD * floats_per_row(steps))


def _count_signs(model: Any, shape: tuple[int, ...]) -> int:
    """DrawCounts of all layers of a network."""
    net = model._net()
    n_layers = sum(1 for _ in flatten(net))
    if n_layers > _DEEPEST:
        raise ValueError(f"its network has {n_layers} layers, more than {_DEEPEST}")
    output_shape(net, shape)
    draws = DrawCounts(model._options(shape[-1]), fold(net, LastActivations(), frozenset()))
    draws.finish(fold(net, draws, Size(shape[:-1], shape[-1])))
    return max(draws.total, _HELD * draws.widest)


class LastActivations(Algebra[frozenset[Path]]):
    """Places of the activations after which there may be none."""

    def join(
        self, layer: Residual, before: frozenset[Path], ends: list[frozenset[Path]], path: Path
    ) -> frozenset[Path]:
        """Those of any branch."""
        return frozenset().union(*ends)


@LastActivations.rule(Layer)
def _(algebra: LastActivations, layer: Layer, last: frozenset[Path], path: Path) -> frozenset[Path]:
    return last


@LastActivations.rule(Activation)
def _(algebra: LastActivations, layer: Activation, last: frozenset[Path], path: Path) -> frozenset[Path]:
    return frozenset([path])


class Size(NamedTuple):
    """Pixels of images, () for vectors, and a bound for their columns."""

    pixels: tuple[int, ...]
    columns: int


class DrawCounts(Algebra[Size]):
    """Bounds for the draws of layers, and for the values of a row in the widest of them, added up layer by layer."""

    def __init__(self, options: Any, last: frozenset[Path]):
        self.options, self.last, self.total, self.widest = options, last, 0, 0

    def join(self, layer: Residual, before: Size, ends: list[Size], path: Path) -> Size:
        """Columns of branches stand side by side."""
        for end in ends:
            self.finish(end)
        return self.see(Size(ends[0].pixels, sum(end.columns for end in ends)))

    def see(self, size: Size) -> Size:
        """Take note of what is held for a row."""
        self.widest = max(self.widest, prod(size.pixels) * size.columns)
        return size

    def finish(self, size: Size) -> None:
        """Add the draws of a sketch of the result."""
        self.total += self.see(size).columns

    def add_up(self, n_pixels: int, columns: int, most: int) -> int:
        """Pixels side by side, if these are few columns, or added up with signs."""
        self.total += n_pixels * columns
        return max(columns, min(n_pixels * columns, most))


@DrawCounts.rule(Normalize)
def _(algebra: DrawCounts, layer: Normalize, size: Size, path: Path) -> Size:
    return algebra.see(size)


@DrawCounts.rule(Dense)
def _(algebra: DrawCounts, layer: Dense, size: Size, path: Path) -> Size:
    return algebra.see(Size(size.pixels, size.columns + (layer.bias_std > 0)))


@DrawCounts.rule(Conv)
def _(algebra: DrawCounts, layer: Conv, size: Size, path: Path) -> Size:
    rows, cols = layer.windows(*algebra.see(size).pixels)
    columns = algebra.add_up(
        rows.size * cols.size, size.columns, max(algebra.options.phi_hidden, algebra.options.eta_hidden)
    ) + (layer.bias_std > 0)
    return algebra.see(Size((rows.n_out, cols.n_out), columns))


@DrawCounts.rule(Activation)
def _(algebra: DrawCounts, layer: Activation, size: Size, path: Path) -> Size:
    """Features of an activation and of its derivative, and signs for products with the latter."""
    options, columns = algebra.options, algebra.see(size).columns
    width = max(
        options.derivative,
        options.n_components if path in algebra.last else max(options.phi_hidden, options.eta_hidden),
    )
    degree = options.degree + options.derivative_degree
    algebra.total += columns * width if options.random else _of_trees(degree, columns, width)
    algebra.total += columns * options.derivative
    return algebra.see(Size(size.pixels, 4 * width))  # η and φ, each up to twice as many for a power of two


@DrawCounts.rule(AvgPool)
def _(algebra: DrawCounts, layer: AvgPool, size: Size, path: Path) -> Size:
    rows, cols = layer.windows(*algebra.see(size).pixels)
    return Size((rows.n_out, cols.n_out), size.columns)


@DrawCounts.rule(GlobalAvgPool)
def _(algebra: DrawCounts, layer: GlobalAvgPool, size: Size, path: Path) -> Size:
    return Size((), algebra.see(size).columns)


@DrawCounts.rule(Flatten)
def _(algebra: DrawCounts, layer: Flatten, size: Size, path: Path) -> Size:
    n_pixels = prod(algebra.see(size).pixels)
    return algebra.see(
        Size(
            (),
            algebra.add_up(
                n_pixels, size.columns, WIDEST * max(algebra.options.phi_hidden, algebra.options.eta_hidden)
            ),
        )
    )
