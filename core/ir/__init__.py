"""The intermediate representation: types, ops, graphs, their text form and their float64 meaning."""

from __future__ import annotations

from .dim import Dim, Expr, Symbol, sym
from .dtype import DTYPES, DType, dtype
from .evaluate import evaluate
from .graph import Builder, Graph, Node, Value
from .op import Op, Tolerance, op, require
from .text import parse_graph, print_graph
from .types import StateType, TensorType, WeightType, paged_kv, paged_latent, sequence_state
from .verify import verify

__all__ = [
    "DTYPES",
    "Builder",
    "DType",
    "Dim",
    "Expr",
    "Graph",
    "Node",
    "Op",
    "StateType",
    "Symbol",
    "TensorType",
    "Tolerance",
    "Value",
    "WeightType",
    "dtype",
    "evaluate",
    "op",
    "paged_kv",
    "paged_latent",
    "parse_graph",
    "print_graph",
    "require",
    "sequence_state",
    "sym",
    "verify",
]
