"""How many random numbers a map draws: bounds, found without drawing any, so that no file can ask for too many."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from ntkit._validation import check_int
from ntkit.features._compile import WIDEST, has_activation
from ntkit.networks import Activation, AvgPool, Conv, Flatten, GlobalAvgPool, Layer, Residual, output_shape
from ntkit.networks._layers import flatten

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
        return powers if model.sketch == "power" else max(powers, trees)
    if name == "NTKRandomFeatures":
        half = sizes["n_components"] // 2 + 1
        hidden, steps = sizes.get("hidden_components", half), sizes.get("step_components", half)
        return sizes.get("gibbs_sweeps", 1) * (max(hidden, 2 * half) + steps) * (d + (depth - 1) * hidden)
    largest = max([256, *(value for key, value in sizes.items() if key == "width" or key.endswith("components"))])
    degree = sum(value for key, value in sizes.items() if key.endswith("degree")) or 128
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
    from ntkit.features._finite import floats_per_row, linears, resolve
    from ntkit.features.gradient import GradientFeatures
    from ntkit.networks import fully_connected

    if not isinstance(model, GradientFeatures):
        model = GradientFeatures(fully_connected(depth), n_components=model.n_components)
    if isinstance(inputs, int):
        model.n_features_in_ = inputs
    else:
        model.image_shape_, model.n_features_in_ = inputs, prod(inputs)
    layers = model._check_layers()
    steps = resolve(layers, inputs, model._width(layers))
    n_weights = sum(prod(layer.shape) for layer in linears(steps))
    return n_weights if isinstance(inputs, int) else max(n_weights, _HELD * floats_per_row(steps))


def _count_signs(model: Any, shape: tuple[int, ...]) -> int:
    """Draws of all layers of a network."""
    net = model._net()
    n_layers = sum(1 for _ in flatten(net))
    if n_layers > _DEEPEST:
        raise ValueError(f"its network has {n_layers} layers, more than {_DEEPEST}")
    output_shape(net, shape)
    walk = _Walk(model._options())
    walk.through(flatten(net), shape[:-1], shape[-1], ending=True)
    return max(walk.draws, _HELD * walk.widest)


class _Walk:
    """Bounds for the draws of layers, and for the values of a row in the widest of them, added up layer by layer."""

    def __init__(self, options: Any):
        self.options, self.draws, self.widest = options, 0, 0

    def through(
        self, layers: Iterable[Layer], pixels: tuple[int, ...], columns: int, *, ending: bool
    ) -> tuple[tuple[int, ...], int]:
        """Pixels after some layers, and a bound for their columns; `ending`: no activation follows these layers."""
        layers = list(layers)
        active = [i for i, layer in enumerate(layers) if has_activation(layer)]
        last = len(layers) if not ending else max(active, default=-1)
        for i, layer in enumerate(layers):
            self.widest = max(self.widest, prod(pixels) * columns)
            if isinstance(layer, Residual):
                ends = [self.through(flatten(part), pixels, columns, ending=i >= last) for part in layer.branches]
                pixels, columns = ends[0][0], sum(n_columns for _, n_columns in ends)
            elif isinstance(layer, Activation):
                columns = self.activation(columns, last=i >= last)
            elif isinstance(layer, Conv):
                rows, cols = layer.windows(*pixels)
                columns = self.add_up(rows.size * cols.size, columns, self.options.hidden)
                pixels = rows.n_out, cols.n_out
            elif isinstance(layer, Flatten):
                columns = self.add_up(prod(pixels), columns, WIDEST * self.options.hidden)
                pixels = ()
            elif isinstance(layer, AvgPool):
                rows, cols = layer.windows(*pixels)
                pixels = rows.n_out, cols.n_out
            elif isinstance(layer, GlobalAvgPool):
                pixels = ()
        self.widest = max(self.widest, prod(pixels) * columns)
        self.draws += columns  # of a sketch of the result
        return pixels, columns

    def activation(self, columns: int, *, last: bool) -> int:
        """Features of an activation and of its derivative, and signs for products with the latter."""
        options = self.options
        width = max(options.derivative, options.n_components if last else options.hidden)
        degree = options.degree + options.derivative_degree
        self.draws += columns * width if options.random else _of_trees(degree, columns, width)
        self.draws += columns * options.derivative
        return 4 * width  # η and φ, each up to twice as many for a power of two

    def add_up(self, n_pixels: int, columns: int, most: int) -> int:
        """Pixels side by side, if these are few columns, or added up with signs."""
        self.draws += n_pixels * columns
        return max(columns, min(n_pixels * columns, most))
