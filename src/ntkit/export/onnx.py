"""Export fitted maps and models to ONNX files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ntkit import _array, _expression
from ntkit._expression import NotExpressibleError
from ntkit._files import replacing
from ntkit._validation import check_choice, check_data, check_real, message
from ntkit.export.nodes import OPSET, UNSUPPORTED_WIDE, emit
from ntkit.export.sample import sample_rows
from ntkit.graphs import Graph, estimator_graph, precision, run

MARGIN = 0.2  # share of the tolerance that the rounding errors of a lower precision may use
_MAX_BYTES = 2**31 - 2**24  # of an ONNX file: a protobuf is limited to 2 GiB


class ExportError(TypeError, ValueError):
    """Raised for a model that cannot be exported; the message names the step and the reason."""


def to_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *,
    X: Any = None,
    dtype: str = "float32",
    tolerance: float = 1e-5,
) -> None:
    """Write a fitted map or model, or a pipeline, to an ONNX file.

    Parameters
    ----------
    model : fitted estimator
        A feature map, a scaler, a ridge model on features or on an exact kernel, a search, or a ``Pipeline`` of such
        steps; :doc:`the export page </export>` lists all of them.
    path : str or path
        File to write. An existing file is replaced only when the new one is complete.
    X : array of shape (n, n_features), default=None
        Rows used to compare the exported graph with the model before the file is written. A few hundred are enough. By
        default, rows similar to the training rows are generated from what the model stores.
    dtype : {"float32", "float64"}, default="float32"
        Dtype of the input and the results.
    tolerance : float > 0, default=1e-5
        Largest error of a result on `X`, relative to the largest result. If float32 meets it, all operations are in
        float32. Otherwise, operations that ntkit computes in float64 are in float64.

    Raises
    ------
    ExportError
        If a step has no counterpart in ONNX, or if rounding errors change the results by more than the tolerance. No
        file is written.

    Notes
    -----
    The file uses ONNX operator set 18 and IR version 9. Its input is "X", of shape (n, n_features) or images, for any
    n. Its outputs are

    ============  ==================================================================================================
    transformer   "features", of shape (n, n_components)
    regressor     "prediction", of shape (n,) or (n, n_targets)
    classifier    "label", of shape (n,), with the type of the classes (also text), and "probabilities", (n, n_classes)
    ============  ==================================================================================================

    This function needs the package onnx (``pip install 'ntkit[onnx]'``). onnxruntime or another program runs the file.
    It does not check the rows for NaN and infinity.

    Examples
    --------
    >>> import tempfile, os
    >>> import numpy as np
    >>> from ntkit import FeatureRidge, NTKFeatures
    >>> from ntkit.export import to_onnx
    >>> X = np.random.default_rng(0).standard_normal((200, 4))
    >>> model = FeatureRidge(NTKFeatures(n_components=64, random_state=0), random_state=0).fit(X, X[:, 0])
    >>> path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    >>> to_onnx(model, path)
    >>> import onnxruntime
    >>> session = onnxruntime.InferenceSession(path)
    >>> (prediction,) = session.run(["prediction"], {"X": X.astype(np.float32)})
    >>> bool(np.allclose(prediction, model.predict(X), atol=1e-5))
    True
    """
    _import_onnx()
    check_choice(dtype, "dtype", "to_onnx", ("float32", "float64"))
    tolerance = check_real(tolerance, "tolerance", "to_onnx", minimum=0, strict=True)
    try:
        graph = estimator_graph(model, "to_onnx")
    except NotExpressibleError as error:
        raise ExportError(f"This {type(model).__name__} cannot be exported to ONNX: {error}") from error
    rows = sample_rows(model, graph) if X is None else _check_sample(model, X, graph)
    chosen = _chosen(graph, model, rows.astype(dtype), tolerance, dtype)
    classes = getattr(_expression.final(model), "classes_", None)
    content = emit(chosen, type(model).__name__, dtype, classes)
    if len(content) > _MAX_BYTES:
        raise ExportError(
            f"This {type(model).__name__} cannot be exported to ONNX: the file would have {len(content):.1e} bytes, "
            "more than 2 GiB. Use fewer components or landmarks."
        )
    with replacing(path) as file:
        file.write(content)


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError("to_onnx needs the package onnx: pip install 'ntkit[onnx]'.") from error
    return onnx


def _check_sample(model: Any, X: Any, graph: Graph) -> np.ndarray:
    rows = np.asarray(_array.to_numpy(check_data(X, "X", "to_onnx", ndims=(2, 4))))
    if rows.shape[1:] != graph.source.shape[1:]:
        rule = f"rows of the shape {graph.source.shape[1:]}, as in the fit of {type(model).__name__}"
        raise ValueError(message("to_onnx", "X", rule, X))
    return rows


def _chosen(graph: Graph, model: Any, rows: np.ndarray, tolerance: float, dtype: str) -> Graph:
    """Return the graph in the lowest precision that meets the tolerance."""
    # The results of a model differ slightly for float32 and float64 rows: the graph may match either.
    expected = [expected_outputs(model, rows.astype(kind), graph) for kind in dict.fromkeys((dtype, "float64"))]
    errors = []
    for limit, candidate in _candidates(graph, dtype):
        found = run(candidate, rows)
        error = min(deviation(found, values) for values in expected)
        errors.append(error)
        if error <= limit * tolerance:
            return candidate
    raise ExportError(
        f"The results of this {type(model).__name__} depend on rounding errors: another order of sums changes them by "
        f"{min(errors):.1e} of the largest result, more than the tolerance of {tolerance:.1e}. Fit it on rows in "
        "float64 or with a larger penalty, or allow a larger tolerance."
    )


def _candidates(graph: Graph, dtype: str) -> Iterator[tuple[float, Graph]]:
    """Yield graphs, fastest first, each with the share of the tolerance that it may use."""
    if dtype == "float32" and precision.cusps(graph):
        yield MARGIN, precision.single_operations(precision.single_after_cusps(graph), UNSUPPORTED_WIDE)
    elif dtype == "float32":
        yield MARGIN, precision.all_single(graph)
        yield MARGIN, precision.single_operations(precision.single_products(graph), UNSUPPORTED_WIDE)
    yield 1.0, precision.single_operations(graph, UNSUPPORTED_WIDE)


def expected_outputs(model: Any, rows: np.ndarray, graph: Graph) -> dict[str, np.ndarray]:
    """Compute the results of the model itself, by output name."""
    found = {}
    if "features" in graph.outputs:
        found["features"] = np.asarray(model.transform(rows))
    if "prediction" in graph.outputs:
        found["prediction"] = np.asarray(model.predict(rows))
    if "probabilities" in graph.outputs:
        found["probabilities"] = np.asarray(model.predict_proba(rows))
    return found


def deviation(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest error of a result, relative to the largest result; infinite for NaN."""
    worst = 0.0
    for name, values in expected.items():
        scale = float(np.abs(values).max(initial=0.0)) or 1.0
        error = float(np.abs(np.asarray(found[name], dtype=np.float64) - values).max(initial=0.0)) / scale
        worst = max(worst, error) if np.isfinite(error) else float("inf")
    return worst


__all__ = ["OPSET", "ExportError", "to_onnx"]
