"""Analyses and passes on programs whose answers are known, and which steps are one value."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import scipy.sparse as sp
from tests.programs.generators import (
    KINDS,
    LINEAR_KINDS,
    assert_close,
    case,
    legible,
    program_of,
    random_program,
    random_rows,
)
from tests.reference import series as reference

from ntkit.programs import Program, analysis, array_api, run
from ntkit.programs import steps as s
from ntkit.programs.passes import extract, rewrite, transpose
from ntkit.sketches import OSNAP, SRHT, CountSketch

D = 5
ROWS = np.array([0, 2, 2, 4], dtype=np.int32)


def diamond() -> Program:
    """x → its norm and a transform → their product and a slice; a step that nobody reads; an output twice."""
    p = Program((D,))
    x = p.load()  # 0
    n = p.norm(x)  # 1
    h = p.hadamard(x, np.ones(D))  # 2
    z = p.scale(h, n)  # 3
    p.activate(x, "relu")  # 4
    part = p.slice(h, 2, 3)  # 5
    p.product(z, ROWS, z, ROWS, 1.0)  # 6
    for value in (part, z, part, 6):
        p.output(value)
    return p


def test_readers_once_for_each_operand():
    assert analysis.readers(diamond()) == [[1, 2, 4], [3], [3, 5], [6, 6], [], [], []]


def test_last_use():
    assert analysis.last_use(diamond()) == [4, 3, 5, 6, 4, 5, 6]


def test_levels_are_longest_ways():
    p = Program((D,))
    x = p.load()
    A, B = np.ones((D, D), np.float32), np.full((D, D), 2, np.float32)
    a = p.dense(x, A)
    b = p.convolve([a, x])
    c = p.dense(x, B)
    p.output(p.concatenate([b, c, p.norm(c)]))
    assert analysis.levels(p, s.MatrixProduct) == [0, 1, 1, 1, 1, 1]
    assert analysis.levels(p, (s.MatrixProduct, s.Convolve)) == [0, 1, 2, 1, 1, 2]
    assert analysis.levels(p, s.Threshold) == [0] * 6
    assert analysis.levels(p, s.Step) == [1, 2, 3, 2, 3, 4]


def test_columns_of_outputs():
    p = diamond()
    assert analysis.output_slices(p) == [slice(0, 3), slice(3, 11), slice(11, 14), slice(14, 18)]
    assert p.n_outputs == 18
    assert analysis.output_slices(Program((D,))) == []


def test_ancestors_and_where_they_end():
    p = diamond()
    assert analysis.ancestors(p, [5]) == [0, 2, 5]
    assert analysis.ancestors(p, [6]) == [0, 1, 2, 3, 6]
    assert analysis.ancestors(p, [6], ends=[1, 2]) == [1, 2, 3, 6]
    assert analysis.ancestors(p, [6], ends=[6]) == [6]
    assert analysis.ancestors(p, []) == []


def test_values_are_dropped_after_their_last_use_but_outputs_are_kept():
    assert list(map(sorted, analysis.lifetimes(diamond()))) == [[], [], [], [1], [0, 4], [2], []]


def test_interpreters_see_every_step_once_with_its_operands():
    p, seen = diamond(), []

    def compute(index, read):
        seen.append((index, read))
        return index

    assert analysis.interpret(p, compute) == [5, 3, 5, 6]
    assert seen == [(0, []), (1, [0]), (2, [0]), (3, [2, 1]), (4, [0]), (5, [2]), (6, [3, 3])]


def test_peak_live():
    """Sizes are 5, 1, 8, 8, 5, 3, 4. The fullest moment is step 4: x, h, z and the activation, without the norm."""
    p = diamond()
    assert analysis.peak_live(p) == 5 + 8 + 8 + 5
    assert analysis.peak_live(p, lambda index: 100 if index == 1 else 0) == 5 + 1 + 100
    assert analysis.peak_live(p, lambda index: 100 if index == 6 else 0) == 8 + 3 + 4 + 100
    chain = Program((D,))
    value = chain.load()
    for k in range(20):
        value = chain.scale(value, chain.slice(value, k % D, 1))
    chain.output(value)
    assert analysis.peak_live(chain) == D + 1 + D  # of any length


def test_peak_live_equals_the_values_held_by_an_interpreter():
    for seed in range(20):
        with case(seed):
            rng = np.random.default_rng(seed)
            program, _ = random_program(rng, [random_rows(rng, 2, 6)])
            held, most = [0], [0]

            class Value:
                def __init__(self, size, held=held, most=most):
                    self.size, self.held = size, held
                    held[0] += size
                    most[0] = max(most[0], held[0])

                def __del__(self):
                    self.held[0] -= self.size

            analysis.interpret(program, lambda index, _, p=program, V=Value: V(p.size(index)))
            assert most[0] == analysis.peak_live(program)


# Passes


def test_extract_keeps_required_steps():
    p = diamond()
    part, given = extract(p, [5])
    assert given == []
    assert [type(step) for step in part.steps] == [s.Load, s.Hadamard, s.Slice]
    assert part.n_features == (D,)
    X = np.random.default_rng(0).standard_normal((4, D))
    np.testing.assert_array_equal(legible(part, [X]), legible(p, [X])[:, :3])


def test_extract_from_given_values():
    p = diamond()
    X = np.random.default_rng(1).standard_normal((4, D))
    norm, transform = np.linalg.norm(X, axis=1, keepdims=True), reference.run(extract(p, [2])[0], [X])
    part, given = extract(p, [6, 3, 6], given={1, 2, 4})
    assert given == [1, 2]  # the activation is not needed
    assert part.n_features == (D, 1, 8)
    assert not any(isinstance(step, s.EuclideanNorm | s.Hadamard | s.Threshold) for step in part.steps)
    expected = legible(p, [X])
    expected = np.hstack([expected[:, 14:], expected[:, 3:11], expected[:, 14:]])
    np.testing.assert_allclose(run(part, [X, norm, transform]), expected)
    without_inputs, given = extract(p, [6], given={1, 2}, n_inputs=0)
    assert without_inputs.n_features == (1, 8)
    np.testing.assert_allclose(run(without_inputs, [norm, transform]), expected[:, :4])


def test_extract_of_a_given_output():
    part, given = extract(diamond(), [3], given={3})
    assert given == [3]
    assert part.n_features == (D, 8)
    X, Y = np.ones((2, D)), np.arange(16.0).reshape(2, 8)
    np.testing.assert_array_equal(run(part, [X, Y]), Y)


def copy_step(program: Program):
    def translate(new, index, operands):
        return new.append(replace(program.steps[index], operands=operands))

    return translate


def test_rewrite_drops_dead_steps_only():
    for seed in range(20):
        with case(seed):
            rng = np.random.default_rng(seed)
            X = random_rows(rng, 3, 7)
            program, scale = random_program(rng, [X])
            new = rewrite(program, copy_step(program))
            assert len(new.steps) == len(analysis.ancestors(program, program.outputs))
            assert new.n_features == program.n_features
            assert_close(legible(new, [X]), legible(program, [X]), scale=scale, epsilons=1)
            assert program.steps  # the old program is unchanged


def test_rewrite_replaces_steps():
    """Norms and scales become one step; the norm, which nobody reads then, goes."""
    p = Program((D,))
    x = p.load()
    p.output(p.scale(x, p.norm(x), factor=2.0, inverse=True))

    def translate(new, index, operands):
        step = p.steps[index]
        if isinstance(step, s.ScaleBy):
            return new.normalize(operands[0], factor=step.factor)
        return copy_step(p)(new, index, operands)

    new = rewrite(p, translate)
    assert [type(step) for step in new.steps] == [s.Load, s.DivideByNorm]
    X = np.random.default_rng(2).standard_normal((3, D))
    np.testing.assert_allclose(run(new, [X]), run(p, [X]))


# Transposes


def assert_transposed(program: Program, *, transposed: Program | None = None, epsilons: int = 200) -> None:
    """Against the matrix of the linear part, column by column, dense and sparse rows."""
    transposed = transpose(program) if transposed is None else transposed
    (d,), m = program.n_features, program.n_outputs
    origin = legible(program, [np.zeros((1, d))])
    matrix = (legible(program, [np.eye(d)]) - origin).T
    assert transposed.n_features == (m,)
    assert transposed.n_outputs == d
    scale = max(1.0, np.abs(matrix).max())
    assert_close(run(transposed, [np.eye(m)]), matrix, scale=scale, epsilons=epsilons)
    assert_close(run(transposed, [sp.csr_array(np.eye(m))]), matrix, scale=scale, epsilons=epsilons)
    Y = np.random.default_rng(0).standard_normal((3, m))
    assert_close(legible(transposed, [Y]), Y @ matrix, scale=scale * m, epsilons=epsilons)


def load(p):
    p.output(p.load(scale=-2.0))


def load_with_a_constant(p):
    """The map is affine; the constant is no part of Sᵀ."""
    p.output(p.gather(p.load(scale=0.5, constant=3.0), np.array([5, 0, 3, 5], np.int32), np.arange(4.0)))


def two_loads(p):
    p.output(p.concatenate([p.load(), p.load(scale=2.0), p.load(constant=1.0)]))


def hadamard(p):
    p.output(p.hadamard(p.load(), np.array([1.0, -2.0, 3.0, -4.0, 5.0])))


def gather_with_duplicates(p):
    p.output(p.gather(p.load(), ROWS, np.array([1.0, 2.0, -3.0, 4.0])))


def gather_with_one_weight(p):
    p.output(p.gather(p.load(), ROWS, 0.5))


def scatter_with_collisions(p):
    codes = np.array([[0, 1, 2], [3, 3, 4], [5, 4, 0], [0, 0, 0], [1, 1, 1]], np.int32)
    p.output(p.scatter(p.load(), codes, -0.7, 3))


def concatenation(p):
    x = p.load()
    p.output(p.concatenate([x, p.gather(x, ROWS), x], [0.5, -2.0, 0.0]))


def slices_that_overlap(p):
    x = p.load()
    p.output(p.slice(x, 1, 3))
    p.output(p.slice(x, 2, 3))


def a_value_read_many_times(p):
    x = p.load()
    h = p.hadamard(x, np.ones(D))
    g = p.gather(h, ROWS)
    p.output(p.concatenate([g, g, p.slice(h, 0, 2), p.gather(h, ROWS, 3.0)]))
    p.output(p.hadamard(h, np.ones(8)))


def an_output_twice_and_read_again(p):
    h = p.hadamard(p.load(), np.ones(D))
    for value in (h, p.slice(h, 1, 2), h):
        p.output(value)


def steps_that_nobody_reads(p):
    x = p.load()
    p.activate(p.norm(x), "relu")  # not linear, but not needed
    p.output(p.gather(x, ROWS))


LINEAR = [
    load, load_with_a_constant, two_loads, hadamard, gather_with_duplicates, gather_with_one_weight,
    scatter_with_collisions, concatenation, slices_that_overlap, a_value_read_many_times,
    an_output_twice_and_read_again, steps_that_nobody_reads,
]  # fmt: skip


@pytest.mark.parametrize("build", LINEAR, ids=lambda build: build.__name__)
def test_transposes_equal_the_transposed_matrix(build):
    program = Program((D,))
    build(program)
    assert_transposed(program)


def test_transposes_of_random_linear_programs():
    seen = set()
    for seed in range(40):
        with case(seed):
            rng = np.random.default_rng(seed)
            program, _ = random_program(rng, [random_rows(rng, 2, int(rng.integers(1, 20)))], LINEAR_KINDS, 15)
            seen |= {type(step) for step in program.steps}
            assert_transposed(program, epsilons=2000)
    assert seen == set(LINEAR_KINDS)


def test_transposes_of_sketches_and_of_transposes():
    for law in (SRHT(13, 40), SRHT(40, 13), CountSketch(20, 7), OSNAP(20, 7, n_nonzeros=3)):
        with case(law):
            program = program_of(law.sample(0))
            assert_transposed(program)
            assert_transposed(transpose(program))


NONLINEAR = {
    "Product": lambda p, x: p.product(x, ROWS, x, ROWS, 1.0),
    "Convolve": lambda p, x: p.convolve([x, x]),
    "EuclideanNorm": lambda p, x: p.norm(x),
    "ScaleBy": lambda p, x: p.scale(x, p.slice(x, 0, 1)),
    "DivideByNorm": lambda p, x: p.normalize(x),
    "Threshold": lambda p, x: p.activate(x, "relu"),
    "Constant": lambda p, _: p.constant(np.ones(3)),
}


def test_programs_of_two_inputs_have_no_transpose():
    p = Program((3, 3))
    p.output(p.load(0))
    p.output(p.load(1))
    with pytest.raises(TypeError, match="one input"):
        transpose(p)


@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinear_steps_are_named(name):
    p = Program((D,))
    x = p.load()
    p.output(p.concatenate([x, NONLINEAR[name](p, p.hadamard(x, np.ones(D)))]))
    with pytest.raises(TypeError, match=rf"linear programs\. Got a step {name}\."):
        transpose(p)


@pytest.mark.parametrize("fault", [lambda w: 1.05 * w, lambda w: -w, lambda w: 0 * w, lambda w: w[::-1].copy()])
def test_the_check_of_transposes_rejects_faults(fault):
    """Weights of one gather of the transposed program are changed."""
    p = Program((D,))
    hadamard(p)
    scatter_with_collisions(p)
    a_value_read_many_times(p)
    wrong = transpose(p)
    gathers = [(i, step) for i, step in enumerate(wrong.steps) if isinstance(step, s.Gather)]
    index, step = next((i, step) for i, step in gathers if np.ptp(step.weights) > 1)  # the transform's diagonal
    wrong.steps[index] = replace(step, weights=fault(step.weights))
    with pytest.raises(AssertionError):
        assert_transposed(p, transposed=wrong)


# Which steps are one value


ARRAY = np.arange(20.0)
CODES = np.arange(10, dtype=np.int32).reshape(5, 2)
MATRIX = np.arange(60, dtype=np.float32).reshape(12, 5)


def ways(p: Program) -> dict[str, list]:
    """For every kind pairs of functions that append equal steps, and functions that append different ones."""
    x, y = p.load(), p.norm(p.load())
    rows = np.arange(20, dtype=np.int32) % 5

    def other(a, index):
        a = a.copy()
        a[index] += 1
        return a

    return {
        "Load": [lambda: p.load(), lambda: p.load(1), lambda: p.load(scale=2.0), lambda: p.load(constant=0.0),
                 lambda: p.load(constant=1.0), lambda: p.load(scale=-1.0)],
        "Constant": [lambda: p.constant(ARRAY.copy()), lambda: p.constant(ARRAY[:19]),
                     lambda: p.constant(other(ARRAY, 0)), lambda: p.constant(other(ARRAY, 19))],
        "Hadamard": [lambda: p.hadamard(x, np.ones(5)), lambda: p.hadamard(x, -np.ones(5)),
                     lambda: p.hadamard(y, np.ones(1)), lambda: p.hadamard(x, other(np.ones(5), 4))],
        "Gather": [lambda: p.gather(x, rows.copy()), lambda: p.gather(x, rows, ARRAY.copy()),
                   lambda: p.gather(x, rows, other(ARRAY, 19)), lambda: p.gather(x, rows[::-1].copy()),
                   lambda: p.gather(x, rows, 2.0), lambda: p.gather(x, rows[:19])],
        "Product": [lambda: p.product(x, rows.copy(), x, rows, 1.0), lambda: p.product(x, rows, x, rows, 2.0),
                    lambda: p.product(x, rows, x, rows[::-1].copy(), 1.0),
                    lambda: p.product(x, rows[::-1].copy(), x, rows, 1.0)],
        "Scatter": [lambda: p.scatter(x, CODES.copy(), 1.0, 5), lambda: p.scatter(x, CODES, 2.0, 5),
                    lambda: p.scatter(x, CODES, 1.0, 6), lambda: p.scatter(x, CODES ^ 1, 1.0, 5),
                    lambda: p.scatter(x, CODES[:, :1].copy(), 1.0, 5)],
        "Concatenate": [lambda: p.concatenate([x, y]), lambda: p.concatenate([y, x]),
                        lambda: p.concatenate([x, y], [1.0, 2.0]), lambda: p.concatenate([x, y, y])],
        "Slice": [lambda: p.slice(x, 1, 2), lambda: p.slice(x, 1, 3), lambda: p.slice(x, 2, 2)],
        "Convolve": [lambda: p.convolve([x, x]), lambda: p.convolve([x, x, x]), lambda: p.convolve([y, y])],
        "EuclideanNorm": [lambda: p.norm(x), lambda: p.norm(y)],
        "ScaleBy": [lambda: p.scale(x, y), lambda: p.scale(x, y, factor=2.0), lambda: p.scale(x, y, inverse=True),
                  lambda: p.scale(x, y, factor=2.0, inverse=True), lambda: p.scale(y, y)],
        "DivideByNorm": [lambda: p.normalize(x), lambda: p.normalize(x, y), lambda: p.normalize(x, factor=2.0),
                      lambda: p.normalize(x, floor=1e-5), lambda: p.normalize(x, y, floor=1e-5),
                      lambda: p.normalize(y)],
        "MatrixProduct": [lambda: p.dense(x, MATRIX.copy()), lambda: p.dense(x, other(MATRIX, (11, 4))),
                  lambda: p.dense(x, other(MATRIX, 0)), lambda: p.dense(x, MATRIX[:11]),
                  lambda: p.dense(x, MATRIX[:5].T.copy())],
        "Threshold": [lambda: p.activate(x, "relu"), lambda: p.activate(x, "step"), lambda: p.activate(x, "relu", 2.0),
                     lambda: p.activate(y, "relu")],
    }  # fmt: skip


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_steps_of_equal_content_are_one_value(kind):
    """Also if their arrays are different objects; steps that differ anywhere, even at the end of an array, are
    different values.
    """
    p = Program((5, 5))
    appends = ways(p)[kind]
    values = [append() for append in appends]
    for a, b in combinations(range(len(values)), 2):
        assert values[a] != values[b], (a, b)
    n_steps = len(p.steps)
    assert [append() for append in appends] == values
    assert len(p.steps) == n_steps
    assert all(type(p.steps[value]).__name__ == kind for value in values)


def test_defaults_are_values_too():
    p = Program((5,))
    x = p.load()
    assert p.concatenate([x]) == x
    assert p.concatenate([x], [2.0]) != x
    assert p.concatenate([x, x]) == p.concatenate([x, x], [1.0, 1.0]) == p.concatenate((x, x), (1.0, 1.0))
    assert p.gather(x, ROWS) == p.gather(x, ROWS.copy(), np.ones(4))
    assert p.normalize(x) == p.normalize(x, None, factor=1.0, floor=0.0)


def test_arrays_with_nan_are_not_mixed_up():
    """They are never equal; a program with both computes both."""
    p = Program((2,))
    for vector in (np.array([np.nan, 1.0]), np.array([np.nan, 2.0])):
        p.output(p.constant(vector))
    np.testing.assert_array_equal(run(p, [np.zeros((1, 2))]), [[np.nan, 1, np.nan, 2]])


def test_results_do_not_depend_on_merging_equal_values():
    """A program whose arrays are all copies has the steps and the result of the program itself."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = random_rows(rng, 3, 7)
        program, _ = random_program(rng, [X])
        again = Program(program.n_features)
        for step in [*program.steps, *program.steps]:
            arrays = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in vars(step).items()}
            again.append(type(step)(**arrays))
        again.outputs = program.outputs
        assert len(again.steps) == len(program.steps)
        for a, b in zip(array_api.evaluate(again, [X]), array_api.evaluate(program, [X]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_programs_can_be_extended_after_a_run():
    p = Program((3,))
    p.output(p.load())
    X = np.ones((2, 3))
    np.testing.assert_array_equal(run(p, [X]), X)
    p.output(p.load(scale=2.0))
    np.testing.assert_array_equal(run(p, [X]), np.hstack([X, 2 * X]))


def test_inputs_that_do_not_fit_are_refused():
    p = Program((3, 2))
    with pytest.raises(ValueError, match="no output"):
        run(p, [np.ones((2, 3)), np.ones((2, 2))])
    p.output(p.load())
    for inputs, text in (
        ([], "takes 2 inputs. Got 0"),
        ([np.ones((2, 3))], "takes 2 inputs. Got 1"),
        ([np.ones((2, 3)), np.ones((1, 2))], "must have the shapes"),
        ([np.ones((2, 4)), np.ones((2, 2))], "must have the shapes"),
    ):
        with pytest.raises(ValueError, match=text):
            run(p, inputs)
    with pytest.raises(ValueError, match="batch_size"):
        run(p, [np.ones((2, 3)), np.ones((2, 2))], batch_size=0)
