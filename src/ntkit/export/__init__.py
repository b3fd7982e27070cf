"""Fitted maps and models in formats that other programs run."""

from ntkit.export.onnx import ExportError, to_onnx

__all__ = ["ExportError", "to_onnx"]
