"""Import rules of control flow: conditions and trip counts have to be known, then a body is imported once per turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.dtype import bool_, int64
from ...ir.graph import Value
from ..call import Call, rule
from ..item import Item, Maybe, Series, Thing, of_array, of_value
from .movement import flipped
from .sequence import series

TURNS = 2048
"""More turns than this are not unrolled."""


@rule("If")
def _if(c: Call) -> Any:
    taken = bool(c.numbers(0, "condition").reshape(-1)[0])
    return tuple(c.bodies.run(c.attr("then_branch" if taken else "else_branch"), (), c))


@rule("Loop")
def _loop(c: Call) -> Any:
    body = c.attr("body")
    most = int(c.numbers(0, "trip count").reshape(-1)[0]) if c.has(0) else None
    going = bool(c.numbers(1, "condition").reshape(-1)[0]) if c.has(1) else True
    carried: list[Thing] = list(c.inputs[2:])
    collected: list[list[Thing]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while going and (most is None or turn < most):
        if turn == TURNS:
            raise c.refuse(f"it takes more than {TURNS} turns; loops are unrolled, so that this would be too large")
        counter, condition = of_array(np.array(turn), int64), of_array(np.array(True), bool_)
        made = c.bodies.run(body, [counter, condition, *carried], c)
        known = made[0].known if isinstance(made[0], Item) else None
        if known is None or known.dtype == object:
            raise c.refuse("whether it goes on depends on data; only loops with a known number of turns are supported")
        going = bool(known.reshape(-1)[0])
        carried = made[1 : 1 + len(carried)]
        for rows, row in zip(collected, made[1 + len(carried) :], strict=True):
            rows.append(row)
        turn += 1
    scans = [_stacked(c, rows, 0, body.output[1 + len(carried) + i]) for i, rows in enumerate(collected)]
    return (*carried, *scans)


def _stacked(c: Call, rows: list[Thing], axis: int, declared: Any) -> Value:
    """The rows that the turns of a loop made, as one tensor."""
    values = []
    for row in rows:
        if not isinstance(row, Item):
            raise c.refuse("only tensors can be collected from its turns")
        values.append(c.target.value(row))
    if not values:
        raise c.refuse(f"output {declared.name!r} collects nothing in a loop without turns")
    parts = [ops.reshape(v, shape=(*v.shape[:axis], 1, *v.shape[axis:])) for v in values]
    made: Value = ops.concat(*parts, axis=axis)
    return made


@rule("Scan")
def _scan(c: Call) -> Any:
    """From opset 9 on: without a batch axis."""
    if c.version < 9:
        return _scan_batch(c)
    body, count = c.attr("body"), int(c.attr("num_scan_inputs"))
    states: list[Thing] = list(c.inputs[: len(c.inputs) - count])
    xs = [c.x(len(states) + i) for i in range(count)]
    return tuple(_scanned(c, body, states, xs))


def _scanned(c: Call, body: Any, states: list[Thing], xs: list[Value]) -> list[Any]:
    axes = [a % x.tensor.rank for a, x in zip(c.attr("scan_input_axes") or [0] * len(xs), xs, strict=True)]
    backwards = c.attr("scan_input_directions") or [0] * len(xs)
    xs = [flipped(c, x, a) if b else x for x, a, b in zip(xs, axes, backwards, strict=True)]
    turns = xs[0].shape[axes[0]]
    if not isinstance(turns, int) or not 0 < turns <= TURNS:
        raise c.refuse(f"it takes {turns} turns; a known number from 1 to {TURNS} is supported")
    collected: list[list[Thing]] = [[] for _ in range(len(body.output) - len(states))]
    for turn in range(turns):
        rows = [_row(x, a, turn) for x, a in zip(xs, axes, strict=True)]
        made = c.bodies.run(body, [*states, *map(of_value, rows)], c)
        states = made[: len(states)]
        for kept, row in zip(collected, made[len(states) :], strict=True):
            kept.append(row)
    outs: list[Any] = list(states)
    out_axes = c.attr("scan_output_axes") or [0] * len(collected)
    out_backwards = c.attr("scan_output_directions") or [0] * len(collected)
    for i, rows_of_output in enumerate(collected):
        rows_in_order = rows_of_output[::-1] if out_backwards[i] else rows_of_output
        first = rows_in_order[0]
        rank = first.rank + 1 if isinstance(first, Item) else 1
        outs.append(_stacked(c, rows_in_order, out_axes[i] % rank, body.output[len(states) + i]))
    return outs


def _row(x: Value, axis: int, index: int) -> Value:
    piece = ops.slice(x, axis=axis, start=index, stop=index + 1)
    made: Value = ops.reshape(piece, shape=(*x.shape[:axis], *x.shape[axis + 1 :]))
    return made


def _scan_batch(c: Call) -> Any:
    """Opset 8: the first input holds lengths, and everything has a batch axis in front."""
    if c.has(0):
        raise c.refuse("sequence lengths are not supported")
    body, count = c.attr("body"), int(c.attr("num_scan_inputs"))
    states = [c.x(1 + i) for i in range(len(c.inputs) - 1 - count)]
    xs = [c.x(1 + len(states) + i) for i in range(count)]
    batch = xs[0].shape[0]
    if not isinstance(batch, int):
        raise c.refuse(f"the batch is {batch} large; it must be known")
    rows = [
        _scanned(c, body, [of_value(_row(s, 0, b)) for s in states], [_row(x, 0, b) for x in xs]) for b in range(batch)
    ]
    made = []
    for column in zip(*rows, strict=True):
        values = [c.target.value(v) if isinstance(v, Item) else v for v in column]
        made.append(ops.concat(*(ops.reshape(v, shape=(1, *v.shape)) for v in values), axis=0))
    return tuple(made)


@rule("SequenceMap")
def _sequence_map(c: Call) -> Any:
    body, first = c.attr("body"), series(c, 0)
    turns = []
    for i, item in enumerate(first.items):
        others = [x.items[i] if isinstance(x, Series) else x for x in map(_content, c.inputs[1:])]
        turns.append(c.bodies.run(body, [item, *others], c))
    made = []
    for column in zip(*turns, strict=True):
        if not all(isinstance(x, Item) for x in column):
            raise c.refuse("only tensors can be results of its body")
        made.append(Series(tuple(x for x in column if isinstance(x, Item))))
    return tuple(made) if made else tuple(Series(()) for _ in body.output)


def _content(thing: Thing) -> Thing:
    return thing.content if isinstance(thing, Maybe) else thing
