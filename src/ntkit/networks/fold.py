"""Walk over the layers of a network.

An *algebra* describes how layers act on some state: shapes, covariances, power series, counts. It has one rule for each
kind of layer. ``fold(net, algebra, state)`` carries the state through all layers. A new layer needs a description and a
rule in each algebra that should support it. All of them can be in one file::

    @dataclass(frozen=True, repr=False)
    class Twice(Layer):
        "x ↦ 2x."

    @Shapes.rule(Twice)
    def _(algebra, layer, flow, path):
        return flow

    @Covariances.rule(Twice)
    def _(algebra, layer, state, path):
        return state.map(lambda A: 4 * A)

A rule for a class also applies to its subclasses. Without a rule, `fold` raises :class:`UnsupportedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from ntkit.networks.layers import Conv, Dense, Layer, Residual, Sequential

State = TypeVar("State")
Path: TypeAlias = tuple[int, ...]
"""Position of a layer: (2, 0, 1) is layer 1 of branch 0 of layer 2."""
Rule: TypeAlias = Callable[[Any, Any, Any, Path], Any]
"""Called with the algebra, the layer, the state before the layer and the layer's position. Returns the new state."""


class UnsupportedError(TypeError):
    """Raised if an algebra has no rule for a layer or its parameters, or if a property of a kernel is unknown.

    Examples
    --------
    >>> from ntkit.kernels import KernelSpec
    >>> try:
    ...     KernelSpec.of("arc_cosine", order=2).taylor(3)
    ... except UnsupportedError as problem:
    ...     print(problem)
    The Taylor coefficients of ArcCosine(order=2) are not known.
    """


class Algebra(Generic[State]):
    """Rules for layers. A subclass inherits the rules of its base class.

    Examples
    --------
    >>> from ntkit import networks as nn
    >>> class Widths(nn.Algebra[int]):
    ...     "Counts layers with weights."
    >>> @Widths.rule(nn.Layer)
    ... def _(algebra, layer, count, path):
    ...     return count
    >>> @Widths.rule(nn.Dense, nn.Conv)
    ... def _(algebra, layer, count, path):
    ...     return count + 1
    >>> nn.fold(nn.fully_connected(2), Widths(), 0)
    3
    """

    rules: ClassVar[dict[type[Layer], Rule]]

    def __init_subclass__(cls) -> None:
        cls.rules = {}

    @classmethod
    def rule(cls, *kinds: type[Layer]) -> Callable[[Rule], Rule]:
        """Decorate a function to register it as the rule for the given kinds of layers."""

        def register(function: Rule) -> Rule:
            cls.rules.update(dict.fromkeys(kinds, function))
            return function

        return register

    @classmethod
    def find(cls, kind: type[Layer]) -> Rule | None:
        """Return the rule for a kind of layer, or None."""
        tables = [vars(base)["rules"] for base in cls.__mro__ if "rules" in vars(base)]
        found = (table[base] for base in kind.__mro__ for table in tables if base in table)
        return next(found, None)

    def fork(self, state: State) -> State:
        """Return the state that enters the branches of a Residual."""
        return state

    def join(self, layer: Residual, before: State, ends: list[State], path: Path) -> State:
        """Return the state after a Residual, from the state before it and the states after its branches."""
        raise UnsupportedError(f"{type(self).__name__} has no rule for {type(layer).__name__}.")


def fold(net: Layer, algebra: Algebra[State], state: State, path: Path = ()) -> State:
    """Carry a state through all layers of a network and return the final state.

    Parameters
    ----------
    net : Layer
    algebra : Algebra
    state
        State before the network.
    path : tuple of int, default=()
        Position of `net` in a larger network.

    Examples
    --------
    >>> from ntkit import networks as nn
    >>> fold(nn.fully_connected(2), TrainedLayers(), 0)
    3
    """
    if isinstance(net, Sequential):
        for i, layer in enumerate(net.layers):
            state = fold(layer, algebra, state, (*path, i))
        return state
    if isinstance(net, Residual):
        entering = algebra.fork(state)
        ends = [fold(branch, algebra, entering, (*path, i)) for i, branch in enumerate(net.branches)]
        return algebra.join(net, state, ends, path)
    rule = algebra.find(type(net))
    if rule is None:
        raise UnsupportedError(f"{type(algebra).__name__} has no rule for {type(net).__name__}.")
    return rule(algebra, net, state, path)


def flatten(net: Layer) -> Iterator[Layer]:
    """Yield the layers of `net` in order. Nested Sequentials are flattened; Residuals are not."""
    if isinstance(net, Sequential):
        for layer in net.layers:
            yield from flatten(layer)
    else:
        yield net


def leaves(net: Layer) -> Iterator[Layer]:
    """Yield all layers of `net` that contain no other layers."""
    for layer in flatten(net):
        if isinstance(layer, Residual):
            for branch in layer.branches:
                yield from leaves(branch)
        else:
            yield layer


class TrainedLayers(Algebra[int]):
    """Counts layers with trained weights; of several branches, the largest count."""

    def join(self, layer: Residual, before: int, ends: list[int], path: Path) -> int:
        """Return the largest count."""
        return max(ends)


@TrainedLayers.rule(Layer)
def _(algebra: TrainedLayers, layer: Layer, count: int, path: Path) -> int:
    return count


@TrainedLayers.rule(Dense, Conv)
def _(algebra: TrainedLayers, layer: Dense | Conv, count: int, path: Path) -> int:
    return count + layer.trainable
