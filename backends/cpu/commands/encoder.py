"""How nodes become commands of a native program: a table of encoders, and what they ask of a planner."""

from __future__ import annotations

from collections.abc import Callable

from xinheng.core.ir.dim import Dim
from xinheng.core.ir.dtype import int32
from xinheng.core.ir.graph import Node, Value

from ..program import Encoder, NotPlannable, Planner

ENCODERS: dict[str, Encoder] = {}
"""By the name of a kernel, what it is in a program."""


def encodes(kernel: str) -> Callable[[Encoder], Encoder]:
    """Register an encoder for a kernel."""

    def register(encoder: Encoder) -> Encoder:
        ENCODERS[kernel] = encoder
        return encoder

    return register


def matrix_of(plan: Planner, value: Value) -> tuple[Dim, Dim]:
    """The number of rows of a tensor along its last axis, and their distance in values."""
    return product_of(value.shape[:-1]), plan.place(value).row


def require_int32(plan: Planner, *values: Value) -> None:
    """NotPlannable if indices or lengths are not contiguous int32, as all commands read them."""
    for value in values:
        if value.dtype != int32 or not plan.place(value).contiguous:
            raise NotPlannable(f"{value.type} in place of contiguous int32")


def product_of(dims: tuple[Dim, ...]) -> Dim:
    """The number of elements of a shape."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def operands_of(node: Node, *names: str) -> list[Value]:
    """The operands of these names; NotPlannable if one is absent."""
    found = [node.operand(name) for name in names]
    if any(value is None for value in found):
        raise NotPlannable(f"{node.op.name} without {names[found.index(None)]}")
    return [value for value in found if value is not None]
