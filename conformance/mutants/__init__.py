"""Kernels with something wrong in them, by which the suite is measured: how many of them do its cases reject?

`MUTANTS` are written by hand after bugs that kernels have had; `automatic` makes others from the graphs of all ops.
"""

from __future__ import annotations

from . import activations as activations
from . import attention as attention
from . import caches as caches
from . import collectives as collectives
from . import contraction as contraction
from . import convolution as convolution
from . import elementwise as elementwise
from . import experts as experts
from . import movement as movement
from . import norms as norms
from . import quantization as quantization
from . import recurrent as recurrent
from . import reductions as reductions
from . import rotary as rotary
from . import sampling as sampling
from . import storage as storage
from . import weights as weights
from .mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant"]
