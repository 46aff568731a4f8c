"""Computed error bounds: run an op's reference on `operand`s, then `check` the output of a device against the result.

An op reference is plain functional numpy. On float64 arrays it is the meaning; on operands made here it yields the
meaning and the largest error that a kernel may show which computes as the `Rules` declare. No bound is written per op:

    rules = Rules(depth=64)
    expected = op.reference(operand(x, float16, rules), operand(weight, float16, rules), eps=1e-6)
    verdict = check(expected, device_output, float16)

Importing the rule modules fills the tables that `Bounded` looks up.
"""

from __future__ import annotations

from . import arithmetic as arithmetic
from . import monotone as monotone
from . import movement as movement
from . import reductions as reductions
from .bounded import Bounded, MissingRule, operand
from .rules import Rules
from .sampling import admits_sample
from .selection import admits_top_k
from .verdict import Check, admits, check, limits

__all__ = [
    "Bounded",
    "Check",
    "MissingRule",
    "Rules",
    "admits",
    "admits_sample",
    "admits_top_k",
    "check",
    "limits",
    "operand",
]
