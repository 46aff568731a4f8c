"""Passes: functions from graph to graph. They know no device, only predicates on nodes."""

from __future__ import annotations

from .decompose import decompose
from .rewrite import rebuild
from .simplify import simplify

__all__ = ["decompose", "rebuild", "simplify"]
