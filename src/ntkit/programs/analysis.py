"""What back ends and passes ask about a program: readers, lifetimes, levels, columns of the result, peak memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from typing import TypeVar

from ntkit.programs.program import Program
from ntkit.programs.steps import Step

T = TypeVar("T")


def readers(program: Program) -> list[list[int]]:
    """For each value the steps that read it, once for each operand."""
    found: list[list[int]] = [[] for _ in program.steps]
    for index, step in enumerate(program.steps):
        for value in step.operands:
            found[value].append(index)
    return found


def last_use(program: Program) -> list[int]:
    """For each value the last step that reads it, its own index if none does."""
    return [max(steps, default=value) for value, steps in enumerate(readers(program))]


def levels(program: Program, kinds: type[Step] | tuple[type[Step], ...]) -> list[int]:
    """For each value how many steps of these kinds lie on the longest way to it, its own included."""
    found: list[int] = []
    for step in program.steps:
        found.append(max((found[value] for value in step.operands), default=0) + isinstance(step, kinds))
    return found


def ancestors(program: Program, values: Iterable[int], ends: Collection[int] = ()) -> list[int]:
    """Values that `values` are computed from, themselves included, in order; what `ends` are made from is left out."""
    found: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack += () if value in ends else program.steps[value].operands
    return sorted(found)


def output_slices(program: Program) -> list[slice]:
    """Columns of each output in the result."""
    sizes = [program.size(value) for value in program.outputs]
    return [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]


def lifetimes(program: Program) -> list[list[int]]:
    """For every step the values that may be dropped after it; outputs are kept. The program keeps the answer."""
    if "lifetimes" not in program.cache:
        last, kept = last_use(program), set(program.outputs)
        program.cache["lifetimes"] = [
            [v for v in {index, *step.operands} if last[v] == index and v not in kept]
            for index, step in enumerate(program.steps)
        ]
    return program.cache["lifetimes"]


def interpret(program: Program, compute: Callable[[int, list[T]], T]) -> list[T]:
    """Call `compute` on the index of every step and its operands; return the outputs.

    Values that no later step reads are dropped.
    """
    values: dict[int, T] = {}
    for index, dropped in enumerate(lifetimes(program)):
        values[index] = compute(index, [values[v] for v in program.steps[index].operands])
        for value in dropped:
            del values[value]
    return [values[value] for value in program.outputs]


def peak_live(program: Program, workspace: Callable[[int], int] = lambda _: 0) -> int:
    """Most numbers per row that :func:`interpret` holds at a time.

    Parameters
    ----------
    program : Program
    workspace : function
        Numbers per row that a step, given by its index, needs beside its operands and its result.

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
