"""What can be changed where a graph gets a node: operands, attributes, the op, its result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xinheng.core.ir import TensorType, Value
from xinheng.core.ir.dtype import float32
from xinheng.core.ir.op import Op
from xinheng.core.ops import OPSET

COMMUTATIVE = frozenset(
    {"add", "mul", "maximum", "minimum", "eq", "logical_and", "logical_or", "bitwise_and"}
    | {"add_rms_norm", "add_rms_norm_quant"}
)
"""Ops whose first two operands may be exchanged."""

REPLACED: Mapping[str, tuple[str, ...]] = {
    "add": ("sub", "maximum"),
    "sub": ("add",),
    "mul": ("div", "add"),
    "div": ("mul",),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "lt": ("le", "eq"),
    "le": ("lt",),
    "eq": ("le",),
    "logical_and": ("logical_or",),
    "logical_or": ("logical_and",),
    "exp": ("expm1", "tanh"),
    "log": ("log1p",),
    "log1p": ("log",),
    "expm1": ("exp",),
    "sin": ("cos",),
    "cos": ("sin",),
    "tanh": ("erf", "sigmoid"),
    "erf": ("tanh",),
    "sigmoid": ("tanh", "exp"),
    "silu": ("gelu", "sigmoid"),
    "sqrt": ("rsqrt",),
    "rsqrt": ("sqrt", "reciprocal"),
    "square": ("abs",),
    "abs": ("square", "neg"),
    "round": ("floor",),
    "floor": ("round",),
    "sum": ("amax", "mean", "prod"),
    "mean": ("sum",),
    "amax": ("sum",),
    "prod": ("sum",),
    "cumsum": ("cumprod",),
    "cumprod": ("cumsum",),
    "fmod": ("sub",),
    "trunc_div": ("fmod",),
    "gather": ("index_select",),
    "max_pool": ("average_pool",),
    "all_reduce": ("reduce_scatter",),
}
"""Ops that take the same operands and mean something else."""

WORDS: Mapping[str, tuple[str | None, ...]] = {
    "approximate": ("none", "tanh"),
    "score": ("softmax", "sigmoid"),
    "group_score": ("top2", "max"),
    "reduction": ("none", "add", "mul", "max", "min", "sum"),
    "activation": (None, "silu"),
}
"""What attributes that are words may say."""

MORE = 1.25
"""By how much numbers are changed."""


@dataclass(frozen=True)
class Edit:
    """Another node, or one of the operands, in the place of a node; or its result in bfloat16 (`narrow`)."""

    op: Op[..., Any]
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    instead: int | None = None
    narrow: bool = False


def edits(op: Op[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Edit]:
    """All edits of a node by name; some will not fit the types around them."""
    given, full = tuple(operands), op.normalise(attributes)
    made = {"in bfloat16": Edit(op, given, attributes, narrow=True)}
    for name, changed in _operands(op, given):
        made[name] = Edit(op, changed, attributes)
    for name, values in _attributes(op, full):
        made[name] = Edit(op, given, values)
    for other in REPLACED.get(op.name, ()):
        known = {a.name for a in OPSET[other].attributes}
        made[other] = Edit(OPSET[other], given, {k: v for k, v in attributes.items() if k in known})
    for i, value in enumerate(given):
        if isinstance(value, Value) and isinstance(value.type, TensorType):
            made[f"operand {i} instead"] = Edit(op, given, attributes, instead=i)
    return made


def _operands(op: Op[..., Any], given: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for i in range(len(given) - 1):
        free = op.name in COMMUTATIVE and i == 0
        if not free and given[i] is not given[i + 1] and None not in given[i : i + 2]:
            yield f"operands {i} and {i + 1} exchanged", (*given[:i], given[i + 1], given[i], *given[i + 2 :])
    for i, value in enumerate(given):
        declared = op.operands[min(i, len(op.operands) - 1)]
        if declared.optional and value is not None:
            yield f"without {declared.name}", (*given[:i], None, *given[i + 1 :])
        if isinstance(value, int | float) and not isinstance(value, bool):
            for text, other in _numbers(value):
                yield f"operand {i} {text}", (*given[:i], other, *given[i + 1 :])


def _numbers(value: float) -> Iterator[tuple[str, Any]]:
    """Other numbers, and what was done to get them."""
    if isinstance(value, int):
        yield "+ 1", value + 1
        yield "- 1", value - 1
    elif not math.isfinite(value) or not value:
        yield ("for 0", 0.0) if value else ("for 1", 1.0)
    else:
        yield f"* {MORE}", value * MORE


def _attributes(op: Op[..., Any], full: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if op.name == "slice":
        for by in (1, -1):
            moved = {"start": full["start"] + by, "stop": full["stop"] + by}
            yield f"{by:+d}", {**full, **moved}
    optional = {a.name for a in op.attributes if "None" in a.annotation}
    for name, value in full.items():
        for text, other in _values(name, value):
            yield f"{name} {text}", {**full, name: other}
        if name in optional and value is not None:
            yield f"without {name}", {**full, name: None}


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Other values of an attribute."""
    if isinstance(value, bool):
        yield "inverted", not value
    elif name in WORDS:
        yield from ((f"{word}", word) for word in WORDS[name] if word != value)
    elif isinstance(value, int | float):
        yield from _numbers(value)
    elif isinstance(value, tuple) and len(value) > 1:
        if value[::-1] != value:
            yield "reversed", value[::-1]
        if value[1::-1] + value[2:] != value:
            yield "first two exchanged", value[1::-1] + value[2:]
        half = len(value) // 2
        if name == "pads" and value[half:] + value[:half] != value:
            yield "ends exchanged", value[half:] + value[:half]


def narrows(kind: Any) -> bool:
    """Whether a result has bits to lose in bfloat16."""
    return isinstance(kind, TensorType) and kind.dtype == float32
