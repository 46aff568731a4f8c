"""Kernels in plain MindSpore operators. All modules are imported here so that each enters its kernels."""

from __future__ import annotations

from . import attention as attention
from . import contraction as contraction
from . import elementwise as elementwise
from . import indexing as indexing
from . import movement as movement
from . import nn as nn
from . import reduction as reduction
from . import sampling as sampling
from .registry import MINDSPORE_KERNELS

__all__ = ["MINDSPORE_KERNELS"]
