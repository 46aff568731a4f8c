"""Sample calls of every op of the op set, with odd sizes, empty tensors, ties and special values."""

from __future__ import annotations

from . import attention as attention
from . import contraction as contraction
from . import elementwise as elementwise
from . import movement as movement
from . import reduction as reduction
from . import sampling as sampling
from .case import CASES, FLOAT, Call, Case, results

__all__ = ["CASES", "FLOAT", "Call", "Case", "results"]
