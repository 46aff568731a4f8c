"""xinheng (芯衡): a hardware abstraction for AI accelerators, a conformance suite for it, and an LLM engine on top."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("xinheng")
    raise AttributeError(f"module 'xinheng' has no attribute {name!r}")
