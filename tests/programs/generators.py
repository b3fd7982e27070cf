"""Rows, random programs and comparisons that the tests of several back ends use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tests.conftest import as_numpy

from ntkit.programs import Program, array_api, power_of_two
from ntkit.programs import steps as s

KINDS = (
    s.Load, s.Constant, s.Hadamard, s.Gather, s.Product, s.Scatter, s.Concatenate, s.Slice, s.Convolve,
    s.EuclideanNorm, s.ScaleBy, s.DivideByNorm, s.MatrixProduct, s.Threshold,
)  # fmt: skip
LINEAR_KINDS = s.Load, s.Hadamard, s.Gather, s.Scatter, s.Concatenate, s.Slice
LARGEST = 1e3  # entry of any value of a random program
CLEAR = 0.05  # smallest number that a random program divides by

LAYOUTS = {
    "fortran": np.asfortranarray,
    "columns": lambda X: np.hstack([X, X, X])[:, X.shape[1] : 2 * X.shape[1]],
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "reversed rows": lambda X: X[::-1].copy()[::-1],
    "reversed columns": lambda X: X[:, ::-1].copy()[:, ::-1],
    "every second row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "one row for all": lambda X: np.broadcast_to(X[:1], X.shape),
    "read-only": lambda X: np.frombuffer(X.tobytes(), X.dtype).reshape(X.shape),
}


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case of a loop in the report of a failure."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {name}")
        raise


def random_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Rows with half of their entries zero, some with all of them; exact in float32."""
    X = rng.uniform(0.5, 1.5, (n, d)) * rng.choice([-1, 1], (n, d)) * (rng.random((n, d)) < 0.5)
    X[rng.random(n) < 0.1] = 0
    return X.astype(np.float32).astype(float)


def random_matrix(rng: np.random.Generator, size: int, n: int) -> np.ndarray:
    """Gaussian matrix that preserves norms on average."""
    return (rng.standard_normal((size, n)) / np.sqrt(n)).astype(np.float32)


def random_program(
    rng: np.random.Generator, inputs: Sequence[np.ndarray], kinds: Sequence[type[s.Step]] = KINDS, n_steps: int = 20
) -> tuple[Program, float]:
    """Return a program of random steps with four random outputs, and its largest number.

    All kinds of steps are equally likely, library steps four times as likely. Each step is computed before it is
    appended. Steps that would amplify rounding errors (a unit vector of almost zero, the sign of almost zero, an
    overflow) are skipped.
    """
    program = Program(tuple(x.shape[1] for x in inputs))
    values: list[np.ndarray] = []
    weights = np.array([4.0 if kind in (s.MatrixProduct, s.Convolve) else 1.0 for kind in kinds])

    def add(step: s.Step) -> int:
        value = array_api.apply_step(step, [values[v] for v in step.operands], inputs)
        exact = all(isinstance(program.steps[v], s.Load) for v in step.operands)
        if not _is_well_conditioned(step, value, [values[v] for v in step.operands], exact=exact):
            return step.operands[0] if step.operands else 0
        index = program.append(step)
        if index == len(values):  # not one that was there already
            values.append(value)
        return index

    add(s.Load((), program.n_features[0], 0, 1.0, None))
    while len(values) < n_steps:
        _random_step(rng, program, kinds[rng.choice(len(kinds), p=weights / weights.sum())], add)
    for value in rng.integers(len(values), size=4):
        program.output(int(value))
    return program, max(float(np.abs(v).max(initial=0)) for v in values)


def _is_well_conditioned(step: s.Step, value: np.ndarray, read: list[np.ndarray], *, exact: bool) -> bool:
    """Return whether rounding errors of operands that are not `exact` stay small in the value."""
    if np.abs(value).max(initial=0) > LARGEST:
        return False
    if isinstance(step, s.ScaleBy) and step.inverse:
        return bool(((read[1] == 0) | (read[1] > CLEAR)).all())  # inverses of negative numbers are 0
    if isinstance(step, s.DivideByNorm):
        norms = np.linalg.norm(read[0], axis=1)
        return _is_zero_or_clear(norms) and bool((np.abs(norms - step.floor) > CLEAR / 2).all() or step.floor == 0)
    if isinstance(step, s.Threshold) and step.kind == "step":
        return exact or bool((np.abs(read[0]) > 1e-3).all())
    return True


def _is_zero_or_clear(numbers: np.ndarray) -> bool:
    return bool(((numbers == 0) | (np.abs(numbers) > CLEAR)).all())


def _random_step(rng: np.random.Generator, program: Program, kind: type[s.Step], add: Any) -> None:
    n_values = len(program.steps)
    a, b = (int(v) for v in rng.integers(n_values, size=2))
    n, k, size = program.size(a), program.size(b), int(rng.integers(1, 30))

    def rows(most: int, size: int) -> np.ndarray:
        return rng.integers(most, size=size, dtype=np.int32)

    def scalar() -> int:
        """A norm, or a coordinate, which may be negative."""
        if rng.random() < 0.5:
            return add(s.EuclideanNorm((b,), 1))
        return add(s.Slice((b,), 1, int(rng.integers(k))))

    if kind is s.Load:
        source = int(rng.integers(len(program.n_features)))
        constant = (None, 0.0, 2.0)[rng.integers(3)]
        n_features = program.n_features[source] + (constant is not None)
        add(s.Load((), n_features, source, float(rng.choice([1.0, -0.5])), constant))
    elif kind is s.Constant:
        add(s.Constant((), size, rng.uniform(-1, 1, size)))
    elif kind is s.Hadamard:
        padded = power_of_two(n)
        add(s.Hadamard((a,), padded, rng.uniform(-1, 1, n) / padded**0.5))
    elif kind is s.Gather:
        add(s.Gather((a,), size, rows(n, size), rng.uniform(-1, 1, size)))
    elif kind is s.Product:
        add(s.Product((a, b), size, rows(n, size), rows(k, size), 0.7))
    elif kind is s.Scatter:
        add(s.Scatter((a,), size, rng.integers(2 * size, size=(n, rng.integers(1, 4)), dtype=np.int32), 0.5))
    elif kind is s.Concatenate:
        add(s.Concatenate((a, b, a), 2 * n + k, tuple(rng.uniform(-1, 1, 3).tolist())))
    elif kind is s.Slice:
        start = int(rng.integers(n))
        add(s.Slice((a,), int(rng.integers(1, n - start + 1)), start))
    elif kind is s.Convolve:
        other = add(s.Gather((b,), n, rows(k, n), rng.uniform(-1, 1, n)))
        if program.size(other) == n:
            add(s.Convolve((a, other, a) if rng.random() < 0.3 else (a, other), n))
    elif kind is s.EuclideanNorm:
        add(s.EuclideanNorm((a,), 1))
    elif kind is s.ScaleBy:
        by = scalar()
        if program.size(by) == 1:
            add(s.ScaleBy((a, by), n, 0.7, bool(rng.random() < 0.5)))
    elif kind is s.DivideByNorm:
        by = scalar() if rng.random() < 0.5 else None
        operands = (a,) if by is None or program.size(by) != 1 else (a, by)
        add(s.DivideByNorm(operands, n, -1.3, float(rng.choice([0.0, 1.0]))))
    elif kind is s.MatrixProduct:
        add(s.MatrixProduct((a,), size, random_matrix(rng, size, n)))
    else:
        assert kind is s.Threshold
        add(s.Threshold((a,), n, "relu" if rng.random() < 0.5 else "step", 1.2))


def program_of(operator: Any, **load: Any) -> Program:
    """Return the program of a sketch of rows, scaled or with a constant feature appended as in :meth:`Program.load`."""
    appended = load.get("constant") is not None
    program = Program((operator.factors[0] - appended,))
    value = program.load(**load)
    program.output(operator.emit(program, *[value] * len(operator.factors)))
    return program


def legible(program: Program, inputs: Sequence[Any]) -> np.ndarray:
    """Outputs of the legible back end, side by side."""
    return np.concatenate(array_api.evaluate(program, inputs), axis=-1)


def assert_close(
    actual: Any, expected: np.ndarray, dtype: Any = "float64", scale: Any = 1.0, epsilons: int = 5000
) -> None:
    """Check shape, dtype, and that errors are below `epsilons` times the largest intermediate number (at least 1).

    5000 is for twenty steps with sums of up to 90 terms.
    """
    actual = as_numpy(actual)
    assert actual.shape == expected.shape
    assert actual.dtype == dtype
    bad = ~(np.abs(actual - expected) <= epsilons * np.finfo(dtype).eps * np.maximum(scale, 1.0))
    assert not bad.any(), f"{actual[bad][:5]} instead of {expected[bad][:5]}"
