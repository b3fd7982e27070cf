"""Graphs: recorded from array-API code, equal to NumPy; programs in them; passes over precisions."""

from __future__ import annotations

import numpy as np
import pytest
from tests.programs.generators import assert_close, case, legible, random_program, random_rows
from tests.tiers import scaled

from ntkit.graphs import ROWS, Graph, TraceError, namespace, precision, run, trace
from ntkit.programs import run as run_program

X = np.random.default_rng(0).standard_normal((5, 6))
IMAGES = np.random.default_rng(1).standard_normal((3, 4, 5, 2))


def same(function, rows=X, tolerance=1e-5):
    """Assert that a function of arrays gives the same result for NumPy and in a graph."""
    true = function(rows, np)
    graph = trace(lambda x: {"y": function(x, namespace)}, rows.shape[1:])
    found = run(graph, rows)["y"]
    assert found.shape == true.shape
    np.testing.assert_allclose(found, true, rtol=tolerance, atol=tolerance)
    return graph


FUNCTIONS = {  # of rows and the namespace
    "arithmetic": lambda x, xp: (2 * x - 1) / (1 + x * x) + (-x) * 3 - (1 - x) / 2,  # noqa: ARG005
    "powers": lambda x, xp: x**2 + x**3 + xp.abs(x) ** 0.5 + (1 + x**2) ** -0.5 + (2 + x * x) ** -1 + xp.abs(x) ** 1.5,
    "comparisons": lambda x, xp: xp.where((x > 0) & (x < 1) | ~(x >= -1), x, -x),
    "unary": lambda x, xp: xp.exp(xp.sin(x)) + xp.log1p(xp.abs(x)) + xp.expm1(xp.cos(x)) + xp.tanh(x) + xp.sign(x),
    "reductions": lambda x, xp: xp.sum(x, axis=1) + xp.max(x, axis=1) + xp.mean(x, axis=-1) - xp.min(x, axis=1),
    "kept axes": lambda x, xp: x - xp.max(x, axis=1, keepdims=True),
    "constants": lambda x, xp: xp.where(x > 0, xp.zeros_like(x), xp.full_like(x, 2.0)) + xp.ones_like(x),
    "columns": lambda x, xp: xp.concat([x[:, 1:5:2], x[:, [3, 0]], x[:, -1:], xp.ones((x.shape[0], 2))], axis=1),
    "axes": lambda x, xp: x[:, None, :] * x[..., None],  # noqa: ARG005
    "stacked": lambda x, xp: xp.stack([x, 2 * x], axis=1)[:, 1, 2:],
    "transposed": lambda x, xp: xp.matrix_transpose(xp.matrix_transpose(x) * 2),
    "product": lambda x, xp: x @ np.arange(12.0).reshape(6, 2) + np.ones(2),  # noqa: ARG005
    "vector product": lambda x, xp: x @ np.arange(6.0),  # noqa: ARG005
    "angles": lambda x, xp: xp.atan2(xp.abs(x), 1 + xp.abs(x)) + xp.clip(x, -0.5, None),
    "index": lambda x, xp: xp.argmax(x, axis=1),
    "flipped": lambda x, xp: xp.flip(x, axis=1) + xp.broadcast_to(x[:, :1], x.shape),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_rows(name):
    same(FUNCTIONS[name])


def replaced(x, xp):
    out = xp.zeros((x.shape[0], 8))
    out[:, 1:7] = x
    out[:, :2] = out[:, :2] + 1
    return out


def padded(x, xp):
    out = xp.zeros((x.shape[0], 6, 7, 2))
    out[:, 1:5, 1:6, :] = x
    out[:, :2, 3:, :] = out[:, :2, 3:, :] + 1
    return xp.reshape(out, (x.shape[0], -1))


def test_blocks_that_are_replaced():
    same(replaced)
    same(padded, IMAGES)


def test_any_number_of_rows():
    graph = same(lambda x, xp: xp.reshape(x[:, :, None] * np.ones(4), (-1, 8)))
    for n in (1, 9):
        assert run(graph, np.ones((n, 6)))["y"].shape == (3 * n, 8)


def test_constants_are_folded_and_unused_nodes_removed():
    graph = trace(lambda x: {"y": 1.0 * x + (namespace.asarray(np.ones(6, np.float32)) * 2 - 2)}, (6,))
    assert [node.op for node in graph.nodes()] in (["input"], ["input", "constant", "add"])


def test_numbers_are_not_known():
    for function in (lambda x: x if x[0, 0] > 0 else -x, lambda x: float(x), lambda x: x[:3], lambda x: np.sin(x)):
        with pytest.raises((TraceError, TypeError)):
            trace(lambda x, f=function: {"y": f(x)}, (6,))
    with pytest.raises(ValueError, match="fewer than"):
        trace(lambda x: {"y": x}, (ROWS,))


def test_programs_in_graphs():
    """Random programs of all steps, of two inputs, against the legible back end."""
    rng = np.random.default_rng(0)
    for trial in range(scaled(10, 100)):
        inputs = [random_rows(rng, 6, d) for d in (5, 9)]
        program, scale = random_program(rng, inputs)
        graph = trace(lambda x, p=program: {"y": run_program(p, (x[:, :5], x[:, 5:]))}, (14,))
        with case(trial):
            found = run(graph, np.concatenate(inputs, axis=1))["y"]
            assert_close(found, legible(program, inputs), "float32", scale)


def wide(graph: Graph) -> int:
    return sum(node.dtype == np.float64 and node.op != "constant" for node in graph.nodes())


def test_passes_over_precisions():
    def function(x):
        rows = namespace.astype(x, np.float64)
        squares = namespace.matmul(rows, np.ones((6, 3)))
        return {"y": namespace.astype(namespace.exp(-namespace.root(squares)), np.float32)}

    graph = trace(function, (6,))
    true = run(graph, X)["y"]
    assert len(precision.cusps(graph)) == 1
    counts = [wide(graph)]
    for made in (precision.single_after_cusps(graph), precision.single_products(graph), precision.all_single(graph)):
        np.testing.assert_allclose(run(made, X)["y"], true, rtol=1e-5)
        counts.append(wide(made))
    assert counts[-1] == 0
    assert counts[1] < counts[0]
