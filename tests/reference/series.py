"""Programs row by row, and power-series features written out from their law with Kronecker products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from tests.reference.sketches import apply_tensor_srht, first_matrix, hadamard_matrix, left_leaves, padded, poly_sketch


def norm(v: np.ndarray) -> float:
    """‖v‖ without overflow."""
    return math.hypot(*map(float, v))


def unit(v: np.ndarray) -> np.ndarray:
    """v/‖v‖, zero for zero."""
    length = norm(v)
    return v / length if length > 0 else 0 * v


def step_value(step: Any, values: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> np.ndarray:
    """Value of one step of a program for one row of each input, in float64."""
    kind = type(step).__name__
    read = [values[v] for v in step.operands]
    if kind == "Load":
        extra = [] if step.constant is None else [step.constant]
        return np.concatenate([step.scale * rows[step.source], extra])
    if kind == "Constant":
        return np.asarray(step.vector, dtype=float)
    if kind == "Concatenate":
        return np.concatenate([w * v for v, w in zip(read, step.weights, strict=True)])
    if kind == "Product":
        a, b = read
        return np.array([step.scale * a[i] * b[j] for i, j in zip(step.a_rows, step.b_rows, strict=True)])
    if kind == "Convolve":
        total = read[0]
        for other in read[1:]:
            m = step.size
            total = np.array([sum(total[i] * other[(k - i) % m] for i in range(m)) for k in range(m)])
        return total
    v = read[0]
    if kind == "Hadamard":
        x = np.zeros(padded(len(v)))
        x[: len(v)] = v * step.diagonal[: len(v)]
        return hadamard_matrix(len(x)) @ x
    if kind == "Gather":
        return np.array([w * v[i] for i, w in zip(step.rows, step.weights, strict=True)])
    if kind == "Scatter":
        out = np.zeros(step.size)
        for j, k in product(*map(range, step.codes.shape)):
            code = step.codes[j, k]
            out[code // 2] += (-1) ** code * step.scale * v[j]
        return out
    if kind == "Slice":
        return v[step.start : step.start + step.size]
    if kind == "EuclideanNorm":
        return np.array([norm(v)])
    if kind == "ScaleBy":
        c = float(read[1][0])
        if not step.inverse:
            return v * (step.factor * c)
        return v / c * step.factor if c != 0 else 0 * v
    if kind == "DivideByNorm":
        length = norm(v)
        by = float(read[1][0]) if len(read) > 1 else 1.0
        return v / length * (step.factor * by) if length > step.floor else 0 * v
    if kind == "MatrixProduct":
        return np.array([sum(float(w) * x for w, x in zip(row, v, strict=True)) for row in step.matrix])
    assert kind == "Threshold"
    return step.scale * np.array([max(x, 0.0) if step.kind == "relu" else float(x > 0) for x in v])


def run(program: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Outputs of a program side by side, row by row, in float64."""
    inputs = [np.asarray(x, dtype=float) for x in inputs]
    out = np.zeros((len(inputs[0]), program.n_outputs))
    for i in range(len(out)):
        values: list[np.ndarray] = []
        for step in program.steps:
            values.append(step_value(step, values, [x[i] for x in inputs]))
        out[i] = np.concatenate([values[v] for v in program.outputs])
    return out


def series(gram: np.ndarray, coefficients: Any) -> np.ndarray:
    """Σ a_j t^j of every entry, a_j from a sequence or from a dictionary."""
    items = coefficients.items() if isinstance(coefficients, dict) else enumerate(coefficients)
    return sum((a * np.asarray(gram, dtype=float) ** j for j, a in items), np.zeros(np.shape(gram)))


def tensor_power(x: np.ndarray, degree: int) -> np.ndarray:
    """x ⊗ … ⊗ x."""
    out = np.ones(1)
    for _ in range(degree):
        out = np.kron(out, x)
    return out


def monomials(x: np.ndarray, degree: int) -> np.ndarray:
    """Entries of x^{⊗j} that are equal by symmetry as one, times the root of their number; indices in order."""
    power = tensor_power(x, degree)
    groups: dict[tuple[int, ...], list[float]] = {}
    for entry, index in zip(power, product(range(len(x)), repeat=degree), strict=True):
        groups.setdefault(tuple(sorted(index)), []).append(entry)
    return np.array([np.sqrt(len(groups[index])) * groups[index][0] for index in sorted(groups)])


def series_sketch(operator: Any, x: np.ndarray, monomials: Any = monomials) -> list[np.ndarray]:
    """Features √a_j Z_j of a unit vector, one array for each degree of a SeriesSketch."""
    law = operator.law
    normalized = unit if law.normalize else lambda v: v
    sketch = squared if law.shared else tree

    def part(degree: int) -> np.ndarray:
        if degree in law.budget.exact:
            return monomials(x, degree)
        if degree == 0:
            m = law.budget.sketched[0]
            return np.full(m, m**-0.5)
        if degree == 1:
            return normalized(first_matrix(operator.linear) @ x)
        return sketch(operator.tree, x, degree, normalized)

    return [np.sqrt(a) * part(j) for j, a in law.budget.coefficients.items()]


def tree(draws: Any, x: np.ndarray, degree: int, normalized: Any) -> np.ndarray:
    """x^{⊗degree} by a tree with independent draws for every leaf and node."""

    def value(start: int, stop: int) -> np.ndarray:
        if stop - start == 1:
            return normalized(first_matrix(draws.leaves[start]) @ x) if draws.leaves else x
        middle = start + left_leaves(stop - start)
        left, right = value(start, middle), value(middle, stop)
        node = dict(draws.roots)[degree] if (start, stop) == (0, degree) else dict(draws.nodes)[start, stop]
        return normalized(apply_tensor_srht(node, left, right))

    return value(0, degree)


def squared(draws: Any, x: np.ndarray, degree: int, normalized: Any) -> np.ndarray:
    """x^{⊗degree} where draws are shared: squares of T x first, then the digits of the degree from the lowest on."""

    def join(size: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        node = dict(draws.roots)[size] if size == degree else dict(draws.nodes)[0, size]
        return normalized(apply_tensor_srht(node, a, b))

    w = {1: normalized(first_matrix(draws.leaves[0]) @ x) if draws.leaves else x}
    while 2 * max(w) <= degree:
        w[2 * max(w)] = join(2 * max(w), w[max(w)], w[max(w)])
    digits = [2**k for k in range(degree.bit_length()) if degree // 2**k % 2 == 1]
    z, done = w[digits[0]], digits[0]
    for digit in digits[1:]:
        done += digit
        z = join(done, w[digit], z)
    return z


def cosine_function(kernel: str, t: Any) -> Any:
    """κ of ‖x‖^p ‖y‖^p κ(cos), of real or complex numbers."""
    kappa0 = (np.pi - np.arccos(t)) / np.pi
    if kernel == "arc_cosine0":
        return kappa0
    if kernel == "arc_cosine1":
        return (np.sqrt(1 - t) * np.sqrt(1 + t) + t * (np.pi - np.arccos(t))) / np.pi
    assert kernel == "hidden_ntk"
    return t * (0.5 - np.arccos(t) / (2 * np.pi))


def cosine_coefficients(kernel: str, degree: int, n_points: int = 256) -> np.ndarray:
    """Taylor coefficients of :func:`cosine_function` by Cauchy's integral over |t| = 0.7."""
    t = 0.7 * np.exp(2j * np.pi * np.arange(n_points) / n_points)
    values = cosine_function(kernel, t)
    return np.array([float(np.mean(values * t ** (-j)).real) for j in range(degree + 1)])


def padded_series(operator: Any, x: np.ndarray) -> np.ndarray:
    """T ⊕_j √a_j Q(x^{⊗j} ⊗ e₁^{⊗(p−j)}) of a PaddedSeries."""
    p = operator.poly.degree
    e1 = np.zeros(len(x))
    e1[0] = 1
    parts = [
        root * poly_sketch(operator.poly, [*[x] * j, *[e1] * (p - j)])
        for j, root in zip(operator.degrees, operator.roots, strict=True)
    ]
    return first_matrix(operator.srht) @ np.concatenate(parts)
