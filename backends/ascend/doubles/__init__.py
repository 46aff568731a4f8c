"""Doubles: what the vendor's operators compute and refuse, in plain torch, for machines without the vendor's package.

The schemas in `schemas.txt` are those of torch_npu 2.13, of the operators that this backend calls and no others.
"""

from __future__ import annotations

from .library import HOSTED, install, schemas
from .rules import DOUBLES, Double, emulate, stand_for
from .tasks import add_tasks

__all__ = ["DOUBLES", "HOSTED", "Double", "add_tasks", "emulate", "install", "schemas", "stand_for"]
