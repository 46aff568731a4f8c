"""A mutant: a kernel with one thing wrong in it, simulated in float32, which the cases of its op must reject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from xinheng.core.errors import GraphError
from xinheng.core.ir import DType
from xinheng.core.ir.dtype import bfloat16, float16, float32
from xinheng.core.ops import OPSET

from ..call import Call
from ..selftests.simulated import Order, simulate, stored

FLOATS = (float32, float16, bfloat16)
HALVES = (float16, bfloat16)
Results = tuple[Any, ...]


@dataclass(frozen=True)
class Mutant:
    """A kernel of one op with something wrong in it.

    Attributes:
        op: what it claims to compute.
        name: short, and its own among the mutants of the op.
        text: what its author did.
        changes: what differs from a correct kernel: its `operands`, its `program`, its `sums`, or its `results`.
        run: its stored results of a call; None for a call that it has no wrong way to compute.
        where: the float dtypes in each of which it must be rejected, as far as cases of the op run in them; in any one
            dtype if there are none.
    """

    op: str
    name: str
    text: str
    changes: str
    run: Callable[[Call], Results | None]
    where: tuple[DType, ...] = FLOATS

    @property
    def id(self) -> str:
        return f"{self.op}/{self.name}"


MUTANTS: dict[str, Mutant] = {}
"""All of them by id; the modules of this package fill it."""


def enter(mutant: Mutant) -> None:
    """Put a mutant in the table.

    Raises:
        GraphError: there is no such op, or it has a mutant of that name.
    """
    if mutant.op not in OPSET or mutant.id in MUTANTS:
        raise GraphError(f"mutant {mutant.id!r}: there is no such op, or it has a mutant of that name already")
    MUTANTS[mutant.id] = mutant


def given(
    ops: str, name: str, text: str, change: Callable[[Call], Call | None], where: Sequence[DType] = FLOATS
) -> None:
    """A correct kernel that is given other operands or attributes than it was called with."""

    def run(call: Call) -> Results | None:
        other = change(call)
        return None if other is None else stored(call, simulate(other))

    for op in ops.split():
        enter(Mutant(op, name, text, "operands", run, tuple(where)))


def wrong(ops: str, name: str, text: str, program: Callable[..., Any], where: Sequence[DType] = FLOATS) -> None:
    """A kernel of another program, a function with the signature of the op's reference."""
    for op in ops.split():
        enter(Mutant(op, name, text, "program", lambda c: stored(c, simulate(c, program=program)), tuple(where)))


def faulty(
    ops: str,
    program: Callable[..., Any],
    faults: Mapping[str, str],
    where: Sequence[DType] = FLOATS,
    only: Mapping[str, Sequence[DType]] | None = None,
) -> None:
    """Kernels of one program with the signature of the op's reference, which `fault` tells what to do wrong.

    Args:
        faults: names of mutants, which the program knows, and their texts.
        only: the dtypes of those that cannot be seen in all of `where`.
    """
    for name, text in faults.items():
        wrong(ops, name, text, partial(program, fault=name), (only or {}).get(name, where))


def summed(ops: str, name: str, text: str, order: Order, where: Sequence[DType] = FLOATS) -> None:
    """A kernel of the right program that adds up in a way that nobody declared."""
    for op in ops.split():
        enter(Mutant(op, name, text, "sums", lambda call: stored(call, simulate(call, order)), tuple(where)))


def spoiled(
    ops: str, name: str, text: str, change: Callable[[Call, Results], Results | None], where: Sequence[DType] = FLOATS
) -> None:
    """A kernel whose float32 results are right until `change` gets at them, before they are stored."""

    def run(call: Call) -> Results | None:
        made = change(call, simulate(call))
        return None if made is None else stored(call, made)

    for op in ops.split():
        enter(Mutant(op, name, text, "results", run, tuple(where)))


def operand(call: Call, name: str) -> Any:
    """The value of the operand called `name`; None where it is absent."""
    names = [o.name for o in OPSET[call.op].operands]
    index = names.index(name)
    return call.values[index] if index < len(call.values) else None


def having(call: Call, **operands: Any) -> Call:
    """A call with other values for some operands."""
    names = [o.name for o in OPSET[call.op].operands]
    values = [*call.values, *[None] * (len(names) - len(call.values))]
    for name, value in operands.items():
        values[names.index(name)] = value
    return replace(call, values=tuple(values), types=(*call.types, *[None] * (len(values) - len(call.types))))


def saying(call: Call, **attributes: Any) -> Call:
    """A call with other attributes."""
    return replace(call, attributes={**call.attributes, **attributes})
