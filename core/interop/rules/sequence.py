"""Import rules of sequences and optionals, whose lengths and contents are known while a model is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.dtype import bool_, int64
from ...ir.graph import Value
from ..call import Call, rule
from ..item import Item, Maybe, Series, of_array, of_value


def series(c: Call, index: int) -> Series:
    """An input that must be a sequence."""
    thing = c.inputs[index] if index < len(c.inputs) else None
    if isinstance(thing, Maybe):
        thing = thing.content
    if not isinstance(thing, Series):
        raise c.refuse(f"input {index} is no sequence")
    return thing


@rule("SequenceConstruct")
def _construct(c: Call) -> Any:
    return Series(tuple(c.item(i) for i in range(len(c.inputs))))


@rule("SequenceEmpty")
def _empty(c: Call) -> Any:
    return Series(())


@rule("SequenceLength")
def _length(c: Call) -> Any:
    return of_array(np.array(len(series(c, 0).items)), int64)


def _position(c: Call, index: int, default: int) -> int:
    return int(c.numbers(index, "position").reshape(-1)[0]) if c.has(index) else default


@rule("SequenceAt")
def _at(c: Call) -> Any:
    items = series(c, 0).items
    position = _position(c, 1, 0)
    if not -len(items) <= position < len(items):
        raise c.refuse(f"position {position} is outside a sequence of {len(items)}")
    return items[position]


@rule("SequenceInsert")
def _insert(c: Call) -> Any:
    items = list(series(c, 0).items)
    items.insert(_position(c, 2, len(items)), c.item(1))
    return Series(tuple(items))


@rule("SequenceErase")
def _erase(c: Call) -> Any:
    items = list(series(c, 0).items)
    items.pop(_position(c, 1, -1))
    return Series(tuple(items))


@rule("SplitToSequence")
def _split(c: Call) -> Any:
    x = c.x(0)
    axis = c.axis(0, x.tensor.rank)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise c.refuse(f"axis {axis} is {size} long; it must be known")
    given = c.numbers(1, "split") if c.has(1) else np.array(1)
    if given.ndim == 0:
        each = int(given)
        parts = [min(each, size - i) for i in range(0, size, each)]
    else:
        parts = [int(d) for d in given]
    made: Any = ops.split(x, sizes=tuple(parts), axis=axis)
    pieces: list[Value] = list(made) if isinstance(made, tuple) else [made]
    if not c.has(1) and not c.attr("keepdims", 1):
        pieces = [ops.reshape(p, shape=(*p.shape[:axis], *p.shape[axis + 1 :])) for p in pieces]
    return Series(tuple(of_value(p) for p in pieces))


@rule("ConcatFromSequence")
def _concat(c: Call) -> Any:
    values = [c.target.value(x) for x in series(c, 0).items]
    rank = values[0].tensor.rank
    if c.attr("new_axis", 0):
        axis = c.axis(0, rank + 1)
        values = [ops.reshape(v, shape=(*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    else:
        axis = c.axis(0, rank)
    return ops.concat(*values, axis=axis)


@rule("Optional")
def _optional(c: Call) -> Any:
    thing = c.inputs[0] if c.inputs else None
    assert thing is None or isinstance(thing, Item | Series)
    return Maybe(thing)


@rule("OptionalGetElement")
def _element(c: Call) -> Any:
    thing = c.inputs[0]
    content = thing.content if isinstance(thing, Maybe) else thing
    if content is None:
        raise c.refuse("the optional is empty")
    return content


@rule("OptionalHasElement")
def _has_element(c: Call) -> Any:
    thing = c.inputs[0] if c.inputs else None
    content = thing.content if isinstance(thing, Maybe) else thing
    return of_array(np.array(content is not None), bool_)
