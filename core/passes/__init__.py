"""Passes: functions from graph to graph. They know no device, only predicates on nodes."""

from __future__ import annotations

from .decompose import decompose
from .fuse import fuse
from .partition import Partition, partition, state_groups
from .pattern import Match, Pattern, Rule, Var, pattern, rewrite
from .rewrite import rebuild
from .simplify import simplify
from .single import alone, expansion
from .specialise import specialise

__all__ = [
    "Match",
    "Partition",
    "Pattern",
    "Rule",
    "Var",
    "alone",
    "decompose",
    "expansion",
    "fuse",
    "partition",
    "pattern",
    "rebuild",
    "rewrite",
    "simplify",
    "specialise",
    "state_groups",
]
