"""Passes that transform one program into another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from ntkit.programs import steps as s
from ntkit.programs.analysis import ancestors, output_slices
from ntkit.programs.program import Program
from ntkit.programs.steps import Step


def rewrite(program: Program, translate: Callable[[Program, int, tuple[int, ...]], int]) -> Program:
    """Translate a program step by step, then drop the steps that its outputs do not need.

    `translate(new, index, operands)` appends to `new` the translation of step `index` of the old program and returns
    the index of the new value. `operands` are the values in `new` that correspond to the operands of the step.
    """
    new = Program(program.n_features)
    translated: list[int] = []
    for index, step in enumerate(program.steps):
        translated.append(translate(new, index, tuple(translated[value] for value in step.operands)))
    for value in program.outputs:
        new.output(translated[value])
    return extract(new, new.outputs)[0]


def extract(
    program: Program, outputs: Sequence[int], *, given: Collection[int] = (), n_inputs: int | None = None
) -> tuple[Program, list[int]]:
    """Extract the steps of a program that `outputs` depend on.

    The values in `given` become additional inputs of the new program, after the first `n_inputs` inputs of `program`
    (by default all of them).

    Returns
    -------
    part : Program
    given : list of int
        The values of `program` that are additional inputs of `part`.
    """
    needed = ancestors(program, outputs, given)
    inputs = [value for value in needed if value in given]
    n_features = program.n_features[:n_inputs]
    part = Program((*n_features, *(program.size(value) for value in inputs)))
    index = {value: part.load(len(n_features) + i) for i, value in enumerate(inputs)}
    for value in needed:
        if value not in index:
            step = program.steps[value]
            index[value] = part.append(replace(step, operands=tuple(index[v] for v in step.operands)))
    for value in outputs:
        part.output(index[value])
    return part, inputs


def transpose(program: Program) -> Program:
    """Return the program of Sᵀ, given the program of a linear map S with one input.

    Raises
    ------
    TypeError
        If a step is not linear.
    """
    if len(program.n_features) != 1:
        raise TypeError(f"transpose() takes programs with one input. Got one with {len(program.n_features)} inputs.")
    new = Program((program.n_outputs,))
    terms: dict[int, list[int]] = {value: [] for value in range(len(program.steps))}
    whole = new.load()
    for value, columns in zip(program.outputs, output_slices(program), strict=True):
        terms[value].append(new.slice(whole, columns.start, columns.stop - columns.start))
    total: list[int] = []
    for value in reversed(ancestors(program, program.outputs)):
        step = program.steps[value]
        cotangent = _add(new, terms[value], step.size)
        if isinstance(step, s.Load):
            rows = np.arange(program.n_features[step.source], dtype=np.int32)
            total.append(new.gather(cotangent, rows, step.scale))
        for operand, term in zip(step.operands, _transposed(new, program, step, cotangent), strict=True):
            terms[operand].append(term)
    new.output(_add(new, total, program.n_features[0]))
    return new


def _transposed(new: Program, program: Program, step: Step, value: int) -> list[int]:
    """Append the transpose of a step applied to its cotangent `value`; return one term for each operand."""
    if isinstance(step, s.Load):
        return []
    size = program.size(step.operands[0]) if step.operands else 0
    if isinstance(step, s.MatrixProduct):
        return [new.dense(value, np.ascontiguousarray(step.matrix.T))]
    if isinstance(step, s.Hadamard):
        rows = np.arange(size, dtype=np.int32)
        return [new.gather(new.hadamard(value, np.ones(step.size)), rows, step.diagonal[:size])]
    if isinstance(step, s.Gather):
        weighted = new.gather(value, np.arange(step.size, dtype=np.int32), step.weights)
        return [new.scatter(weighted, 2 * step.rows[:, None], 1.0, size)]
    if isinstance(step, s.Scatter):
        n_nonzeros = step.codes.shape[1]
        signs = step.scale * (1.0 - 2.0 * (step.codes & 1)).astype(np.float64)
        spread = new.gather(value, (step.codes >> 1).ravel(), signs.ravel())
        return [_sum_groups(new, spread, np.repeat(np.arange(size), n_nonzeros), size)]
    if isinstance(step, s.Concatenate):
        starts = np.cumsum([0, *(program.size(v) for v in step.operands)])
        parts = zip(starts[:-1], starts[1:], step.weights, strict=True)
        return [new.gather(value, np.arange(a, b, dtype=np.int32), weight) for a, b, weight in parts]
    if isinstance(step, s.Slice):
        return [_sum_groups(new, value, step.start + np.arange(step.size), size)]
    raise TypeError(f"transpose() takes linear programs. Got a step {type(step).__name__}.")


def _add(program: Program, values: Sequence[int], size: int) -> int:
    if len(values) == 1:
        return values[0]
    return _sum_groups(program, program.concatenate(values), np.tile(np.arange(size), len(values)), size)


def _sum_groups(program: Program, value: int, groups: np.ndarray, size: int) -> int:
    """Append the vector whose coordinate i is the sum of all coordinates j of `value` with groups[j] = i."""
    return program.scatter(value, (2 * groups[:, None]).astype(np.int32), 1.0, size)
