"""Analyses of a program for back ends and passes: readers, lifetimes, levels, columns of the result, peak memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from typing import TypeVar

from ntkit.programs.program import Program
from ntkit.programs.steps import Step

T = TypeVar("T")


def readers(program: Program) -> list[list[int]]:
    """Return, for each value, the steps that read it; a step that reads it twice occurs twice."""
    found: list[list[int]] = [[] for _ in program.steps]
    for index, step in enumerate(program.steps):
        for value in step.operands:
            found[value].append(index)
    return found


def last_use(program: Program) -> list[int]:
    """Return, for each value, the last step that reads it, or the index of the value itself if no step does."""
    return [max(steps, default=value) for value, steps in enumerate(readers(program))]


def levels(program: Program, kinds: type[Step] | tuple[type[Step], ...]) -> list[int]:
    """Return, for each value, the maximum number of steps of these kinds on any path to it, including its own step."""
    found: list[int] = []
    for step in program.steps:
        found.append(max((found[value] for value in step.operands), default=0) + isinstance(step, kinds))
    return found


def ancestors(program: Program, values: Iterable[int], ends: Collection[int] = ()) -> list[int]:
    """Return `values` and all values that they depend on, in order; the search stops at `ends`, which are included."""
    found: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack += () if value in ends else program.steps[value].operands
    return sorted(found)


def output_slices(program: Program) -> list[slice]:
    """Return the columns of each output in the result."""
    sizes = [program.size(value) for value in program.outputs]
    return [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]


def lifetimes(program: Program) -> list[list[int]]:
    """Return, for every step, the values that can be dropped after it. Outputs are never dropped.

    The result is cached in the program.
    """
    if "lifetimes" not in program.cache:
        last, kept = last_use(program), set(program.outputs)
        program.cache["lifetimes"] = [
            [v for v in {index, *step.operands} if last[v] == index and v not in kept]
            for index, step in enumerate(program.steps)
        ]
    return program.cache["lifetimes"]


def interpret(program: Program, compute: Callable[[int, list[T]], T]) -> list[T]:
    """Call ``compute(index, operands)`` for every step in order; return the outputs.

    Values are dropped as soon as no later step reads them.
    """
    values: dict[int, T] = {}
    for index, dropped in enumerate(lifetimes(program)):
        values[index] = compute(index, [values[v] for v in program.steps[index].operands])
        for value in dropped:
            del values[value]
    return [values[value] for value in program.outputs]


def peak_live(program: Program, workspace: Callable[[int], int] = lambda _: 0) -> int:
    """Return how many numbers per row :func:`interpret` holds at its peak.

    Parameters
    ----------
    program : Program
    workspace : function
        Maps the index of a step to the numbers per row that it needs in addition to its operands and its result.

    Examples
    --------
    >>> program = Program((4,))
    >>> x = program.load()
    >>> program.output(program.scale(x, program.norm(x)))
    >>> peak_live(program)  # x, its norm and the result
    9
    """
    live = peak = 0
    for index, dropped in enumerate(lifetimes(program)):
        live += program.size(index)
        peak = max(peak, live + workspace(index))
        live -= sum(map(program.size, dropped))
    return peak
