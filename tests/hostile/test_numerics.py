"""Numerical extremes: ridge models against a solution in extended precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.preprocessing import FunctionTransformer
from tests.hostile.verdicts import Tally, Verdict
from tests.reference.ridge import extended_predictions
from tests.tiers import ALL, SEED

from ntkit.models import FeatureRidge, GramRidge, KernelRidge

IDENTITY = FunctionTransformer()


class Problem(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None = None
    alphas: Any = 1e-3


def _linear(n: int = 60, m: int = 5, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    rng = np.random.default_rng([SEED, n, m])
    X = rng.standard_normal((n, m))
    return X, X @ rng.standard_normal(m) + noise * rng.standard_normal(n), rng


def _columns(*scales: float) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, _ = _linear()
        return Problem(X * np.resize(scales, X.shape[1]), y)

    return make


def _targets(scale: float, offset: float = 0.0) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, _ = _linear()
        return Problem(X, scale * y + offset)

    return make


def _weights(low: float, high: float) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, rng = _linear()
        weight = np.exp(rng.uniform(np.log(low), np.log(high), len(y)))
        return Problem(X, y, weight, alphas=1e-3 * weight.sum())

    return make


def _alpha(alpha: Any, n: int = 60, m: int = 5) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, _ = _linear(n, m)
        return Problem(X, y, alphas=alpha)

    return make


def _with_column(
    column: Callable[[np.ndarray, np.random.Generator], np.ndarray], alpha: float
) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, rng = _linear()
        return Problem(np.column_stack([X, column(X, rng)]), y, alphas=alpha)

    return make


def _huge_row(factor: float, *, consistent: bool, n: int = 60) -> Callable[[], Problem]:
    def make() -> Problem:
        X, y, _ = _linear(n, noise=0.0)
        X[n // 2] *= factor
        y[n // 2] *= factor if consistent else 1.0
        return Problem(X, y)

    return make


def _mixed(low: float, high: float) -> Callable[[], Problem]:
    """Columns of unequal scales, and rotated: no scaling of columns helps."""

    def make() -> Problem:
        X, y, rng = _linear()
        rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
        return Problem(X * np.geomspace(low, high, 5) @ rotation, y, alphas=1e-9 * low**2)

    return make


def _powers(degree: int, alpha: float) -> Callable[[], Problem]:
    def make() -> Problem:
        t = np.linspace(0, 1, 50)
        return Problem(t[:, None] ** np.arange(1, degree + 1), np.sin(3 * t), alphas=alpha)

    return make


def _several(make: Callable[[], Problem], *factors: float) -> Callable[[], Problem]:
    """The same, with a penalty to choose: by another path to the solution."""

    def again() -> Problem:
        problem = make()
        return problem._replace(alphas=[factor * problem.alphas for factor in factors])

    return again


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "plain": _alpha(1e-3),
    "columns 1e9 : 0.1": _columns(1e9, 0.1),
    "columns 1e-9 : 1": _columns(1e-9, 1.0),
    "columns 1e100": _columns(1e100),
    "columns 1e-100": _columns(1e-100),
    "columns 1e7 : 1e-7 : 1": _columns(1e7, 1e-7, 1.0),
    "columns rotated 1e-3 : 1": _mixed(1e-3, 1.0),
    "columns rotated 1e-9 : 1": _mixed(1e-9, 1.0),
    "columns rotated 1 : 1e6": _mixed(1.0, 1e6),
    "targets 1e150": _targets(1e150),
    "targets 1e-150": _targets(1e-150),
    "targets far from 0": _targets(1.0, 1e9),
    "targets constant": _targets(0.0, 3.0),
    "targets zero": _targets(0.0),
    "weights of 1e-9": _weights(1e-9, 1.1e-9),
    "weights of 1e9": _weights(1e9, 1.1e9),
    "weights from 1e-12 to 1": _weights(1e-12, 1.0),
    "alpha 0": _alpha(0.0),
    "alpha 1e-15": _alpha(1e-15),
    "alpha 1e15": _alpha(1e15),
    "alpha 0, more columns than rows": _alpha(0.0, 8, 20),
    "alpha 1e-12, more columns than rows": _alpha(1e-12, 8, 20),
    "alpha 1e-3, more columns than rows": _alpha(1e-3, 8, 20),
    "two rows": _alpha(1e-3, 2, 3),
    "one row": _alpha(1e-3, 1, 3),
    "a column twice": _with_column(lambda X, _: X[:, 0], 1e-3),
    "a column twice, alpha 0": _with_column(lambda X, _: X[:, 0], 0.0),
    "a column nearly twice": _with_column(lambda X, rng: X[:, 0] + 1e-7 * rng.standard_normal(len(X)), 1e-3),
    "a column nearly twice, alpha 1e-14": _with_column(
        lambda X, rng: X[:, 0] + 1e-7 * rng.standard_normal(len(X)), 1e-14
    ),
    "a constant column": _with_column(lambda X, _: np.full(len(X), 7.3), 1e-3),
    "a constant column, alpha 0": _with_column(lambda X, _: np.full(len(X), 7.3), 0.0),
    "a huge constant column": _with_column(lambda X, _: np.full(len(X), 1e9 + 0.1), 1e-3),
    "a column far from 0": _with_column(lambda X, _: X[:, 0] ** 2 + 1e6, 1e-3),
    "a column of zeros": _with_column(lambda X, _: np.zeros(len(X)), 0.0),
    "a row of 1e5, consistent": _huge_row(1e5, consistent=True),
    "a row of 1e5": _huge_row(1e5, consistent=False),
    "a row of 1e9, consistent": _huge_row(1e9, consistent=True),
    "a row of 1e9": _huge_row(1e9, consistent=False),
    "a row of 1e5 in 600": _huge_row(1e5, consistent=True, n=600),
    "a row of 1e9 in 600": _huge_row(1e9, consistent=True, n=600),
    "powers to 6": _powers(6, 1e-8),
    "powers to 12": _powers(12, 1e-10),
    "powers to 20": _powers(20, 1e-6),
}
PROBLEMS |= {f"{name}; several alphas": _several(PROBLEMS[name], 1.0, 10.0) for name in PROBLEMS}


def _linear_kernel(X: Any, Y: Any = None) -> Any:
    return X @ (X if Y is None else Y).T


MODELS: dict[str, Callable[[Any], Any]] = {
    "FeatureRidge": lambda alphas: FeatureRidge(IDENTITY, alphas=alphas, random_state=0),
    "GramRidge": lambda alphas: GramRidge(
        IDENTITY, alphas=alphas, n_draws=1, normalize=False, fit_intercept=True, random_state=0
    ),
    "KernelRidge": lambda alphas: KernelRidge(
        _linear_kernel, alphas=alphas, fit_intercept=True, solver="direct", random_state=0
    ),
}
CASES = [(model, dtype) for model in MODELS for dtype in ("float64", "float32")]
if not ALL:
    CASES = [case for case in CASES if "Feature" in case[0] or case[1] == "float64"]


def verdict(problem: Problem, make: Callable[[Any], Any], dtype: str) -> tuple[Verdict, str]:
    """Fit, and compare predictions with extended precision for the chosen penalty."""
    X = problem.X.astype(dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = make(problem.alphas).fit(X, problem.y, sample_weight=problem.weight)
            found = model.predict(X.astype(np.float64))
        except ValueError as error:
            clear = any(word in str(error) for word in ("alpha", "X", "kernel"))
            return (Verdict.REFUSED if clear else Verdict.FOREIGN), repr(error)
        except Exception as error:
            return Verdict.FOREIGN, repr(error)
    expected = extended_predictions(X, problem.y, problem.weight, model.alpha_)
    scale = np.abs(problem.y - problem.y.mean()).max() or np.abs(problem.y).max() or 1.0
    error = float(np.abs(found - expected).max() / scale)
    tolerance = 1e-4 if dtype == "float64" else 1e-2  # sums of squares have half the digits of features
    if error <= tolerance:
        return Verdict.RIGHT, ""
    return (Verdict.WARNED if caught else Verdict.WRONG), f"error {error:.1e}"


@pytest.mark.parametrize(("model", "dtype"), CASES)
def test_against_extended_precision(model: str, dtype: str, tally: Tally) -> None:
    for name, make in PROBLEMS.items():
        problem = make()
        if np.abs(problem.X).max() < np.finfo(dtype).max:
            found, detail = verdict(problem, MODELS[model], dtype)
            tally.add(found, f"{model}, {dtype}, {name}", detail)
