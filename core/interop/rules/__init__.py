"""Import rules for ONNX ops, one module per family; loading them fills the table of rules."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "activation",
    "control",
    "conversion",
    "convolution",
    "elementwise",
    "indexing",
    "linear",
    "movement",
    "normalisation",
    "pooling",
    "quantization",
    "recurrent",
    "reduction",
    "resize",
    "sequence",
    "shape",
)


def load() -> None:
    """Register the rules of every family."""
    for family in FAMILIES:
        import_module(f".{family}", __name__)
