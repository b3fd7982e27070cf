"""Graphs of array operations, recorded from array-API code, for torch modules and ONNX files."""

from ntkit.graphs.estimators import estimator_graph
from ntkit.graphs.graph import ROWS, Graph, Node, symbolic
from ntkit.graphs.numpy_back_end import run
from ntkit.graphs.tracer import TraceError, trace

__all__ = ["ROWS", "Graph", "Node", "TraceError", "estimator_graph", "run", "symbolic", "trace"]
