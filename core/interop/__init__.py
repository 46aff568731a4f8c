"""Exchange of graphs with ONNX, which is loaded only when a model is imported or exported."""

from __future__ import annotations

from .onnx_export import export_onnx
from .onnx_import import ImportedModel, import_onnx, missing_ops, supported_ops

__all__ = ["ImportedModel", "export_onnx", "import_onnx", "missing_ops", "supported_ops"]
