"""Kernels in plain MindSpore operators. All modules are imported here so that each enters its kernels."""

from __future__ import annotations

from . import attention as attention
from . import contraction as contraction
from . import division as division
from . import elementwise as elementwise
from . import indexing as indexing
from . import latent as latent
from . import moe as moe
from . import movement as movement
from . import nn as nn
from . import product as product
from . import quantization as quantization
from . import recurrent as recurrent
from . import reduction as reduction
from . import sampling as sampling
from . import transcendental as transcendental
from .registry import MINDSPORE_KERNELS

__all__ = ["MINDSPORE_KERNELS"]
