"""Pipelines and frozen estimators: their parameters are all there is."""

from __future__ import annotations

from typing import Any

from ntkit._encoding.estimators import CLASSES, Reader, Writer, sizes
from ntkit._validation import check_bool, describe

MARK = ""


def write(writer: Writer, model: Any, node: dict[str, Any], where: str) -> None:
    """Nothing."""


def read(reader: Reader, model: Any, state: Any, where: str) -> None:  # noqa: ARG001
    """Check what is inside."""
    if state is not None:
        raise ValueError(f"{where} has unknown content")
    if type(model).__name__ == "FrozenEstimator":  # which shows the attributes of what it holds
        if type(model.estimator).__name__ not in CLASSES:
            raise TypeError(f"{where} must have an estimator, not {describe(model.estimator)}")
        return
    check_bool(model.verbose, "verbose", where)
    steps = model.steps
    if not isinstance(steps, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in steps):
        raise TypeError(f"{where} must have a list of steps")
    names = [name for name, _ in steps]
    if not steps or not all(isinstance(n, str) and "__" not in n for n in names) or len(set(names)) < len(names):
        raise ValueError(f"{where} must have steps with different names")
    for name, step in steps:
        right = type(step).__name__ in CLASSES and (name == names[-1] or hasattr(step, "transform"))
        if not (right or step is None or (isinstance(step, str) and step == "passthrough")):
            raise TypeError(f"{where}[{name!r}] must be a transformer, not {describe(step)}")
    model.steps = [(name, step) for name, step in steps]
    sizes(model, where, fitted=False)
