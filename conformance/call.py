"""A call of one op with concrete operands, and how it becomes an expectation with error bounds, or a graph to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from xinheng.core.hal import WeightSource
from xinheng.core.ir import Builder, DType, Graph, TensorType, WeightType, numeric
from xinheng.core.ir.dtype import float32, float64, round_to
from xinheng.core.ir.types import StateType, Type
from xinheng.core.ops import OPSET, STATES
from xinheng.core.schemes import scheme

from .bounds import Bounded, Rules, operand
from .layout import Layout, held, held_type, view
from .mirror import mirrored


@dataclass(frozen=True)
class Call:
    """An op with operands of representable values, their types, and attributes.

    `kind` is the dtype of its floats, and `layout` how its tensors lie in memory.
    """

    id: str
    op: str
    kind: DType
    types: tuple[Type | None, ...]
    values: tuple[Any, ...]
    attributes: dict[str, Any]
    sources: tuple[WeightSource, ...] = ()
    layout: Layout = Layout.WHOLE

    def reference(self) -> tuple[Any, ...]:
        """The results in float64."""
        with np.errstate(all="ignore"), mirrored(self.attributes):
            return results(OPSET[self.op].reference(*self.values, **self.attributes))

    def bounded(self, rules: Rules | None = None, function: Callable[..., Any] | None = None) -> tuple[Any, ...]:
        """The results with error bounds: of the reference, or of another function with its parameters."""
        with mirrored(self.attributes):
            return results((function or OPSET[self.op].reference)(*self.operands(rules), **self.attributes))

    def operands(self, rules: Rules | None = None) -> tuple[Any, ...]:
        """What references take to compute results with error bounds; operands are exact."""
        rules = rules or Rules(compute=self.kind if self.kind is float64 else float32)
        return tuple(_bounded(value, kind, rules) for value, kind in zip(self.values, self.types, strict=True))

    def graph(self, expanded: bool = False, builder: Builder | None = None) -> Graph:
        """A graph of this op alone, or of its decomposition; operands are called x0, x1, …"""
        b = builder or Builder(self.op)
        operands: list[Any] = []
        for i, (kind, value) in enumerate(zip(self.types, self.values, strict=True)):
            if kind is None:
                operands.append(value)
            elif isinstance(kind, TensorType):
                operands.append(view(b.input(f"x{i}", held_type(kind, self.layout)), kind, self.layout))
            else:
                operands.append(b.parameter(f"x{i}", kind) if isinstance(kind, WeightType) else b.state(f"x{i}", kind))
        op = OPSET[self.op]
        if expanded:
            absent = [None] * (0 if op.operands[-1].variadic else len(op.operands) - len(operands))
            made = op.expand(*operands, *absent, **op.normalise(self.attributes))
        else:
            made = b.call(op, operands, self.attributes)
        return b.build(*(v for v in results(made) if not isinstance(v.type, StateType)))

    @cached_property
    def result_types(self) -> tuple[Type, ...]:
        """What the op promises to return."""
        return tuple(r.type for r in self.graph().nodes[-1].results)

    def feeds(self, of: type) -> dict[str, Any]:
        """The values of operands of one kind of type by name, as the graph takes them."""
        pairs = enumerate(zip(self.types, self.values, strict=True))
        chosen = {f"x{i}": value for i, (kind, value) in pairs if isinstance(kind, of)}
        tensors = self.types_of(TensorType)
        return {name: held(x, self.layout) if name in tensors else x for name, x in chosen.items()}

    def types_of(self, of: type) -> dict[str, Any]:
        """The types of operands of one kind by name, as the graph takes them."""
        chosen = {f"x{i}": kind for i, kind in enumerate(self.types) if isinstance(kind, of)}
        return {n: held_type(kind, self.layout) if isinstance(kind, TensorType) else kind for n, kind in chosen.items()}


def results(made: Any) -> tuple[Any, ...]:
    """What a reference, a kernel or an op call returned, as a tuple."""
    return made if isinstance(made, tuple) and not hasattr(made, "_fields") else (made,)


def _bounded(value: Any, kind: Type | None, rules: Rules) -> Any:
    if isinstance(kind, TensorType):
        return operand(value, kind.dtype, rules)
    if isinstance(kind, WeightType):
        # packed values are held as float32 by most devices, also where they have more bits
        packed = any(scheme(name).dense is None for name, _ in kind.parts)
        kept = round_to(value, float32 if packed else rules.compute)
        with np.errstate(invalid="ignore"):
            held = Bounded(value, np.where(np.isfinite(value), np.abs(value - kept), 0.0), rules)
        return numeric.point(held, "weights") if packed else held
    if isinstance(value, STATES) and isinstance(kind, StateType):
        return type(value)(*(operand(pages, rules.compute, rules) for pages in value))
    return value
