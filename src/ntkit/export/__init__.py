"""Export fitted maps and models to formats of other programs."""

from ntkit.export.onnx import ExportError, to_onnx

__all__ = ["ExportError", "to_onnx"]
