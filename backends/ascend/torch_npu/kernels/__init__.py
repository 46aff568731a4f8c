"""Kernels that call the operators of torch_npu and ATB, one module per op family.

Each takes exactly the nodes that the vendor's manual allows; the kernels in plain torch stand behind all of them.
"""

from __future__ import annotations

from .registry import register_kernels

__all__ = ["register_kernels"]
