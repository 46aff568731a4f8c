"""Mutants that nobody thought of: every place in every decomposition, changed in every way that leaves a graph.

A place is where the source of a decomposition makes a node. It is known by the source text, so a mutant is the same in
all cases of its op, whatever their attributes and dtypes let the decomposition do. The call of the op itself is a place
too. What comes out is evaluated by `core.ir.evaluate`, each node rounded once to its dtype: a device that runs the
wrong decomposition, and sums better than any device does.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import numpy as np

from xinheng.core.errors import GraphError
from xinheng.core.ir import Builder, Graph, Node, StateType, TensorType, Value, WeightType, evaluate
from xinheng.core.ir.dim import Expr
from xinheng.core.ir.dtype import bfloat16, float32, round_to
from xinheng.core.ir.op import Op
from xinheng.core.ir.types import Type
from xinheng.core.ops import OPSET
from xinheng.core.passes import simplify

from ..call import Call
from ..mirror import mirrored
from ..selftests.simulated import stored
from .edits import Edit, edits, narrows

Position = tuple[str, int, int, int, int]
"""File, first and last line, first and last column of a call."""
Place = tuple[Position, ...]
"""Where a node is made: the call, and the calls around it, from the decomposition inwards."""

CALL: Place = ()
"""The call of the op itself."""


@dataclass(frozen=True)
class Change:
    """One place changed in one way.

    Attributes:
        op: the op whose meaning is changed.
        place: where in its decomposition, or `CALL`.
        text: the source of the place.
        node: the op that is called there.
        edit: the name of the change.
    """

    op: str
    place: Place
    text: str = field(compare=False)
    node: str
    edit: str

    @property
    def id(self) -> str:
        return f"{self.op}: {self.text}: {self.edit}"


class _Changing(Builder):
    """Notes the places at which a graph is made and what can be changed there, or makes one change."""

    def __init__(self, name: str, change: Change | None) -> None:
        super().__init__(name)
        self.change, self.applied = change, False
        self.found: dict[Change, None] = {}

    def call_named(
        self, op: Op[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any], names: Sequence[str] | None
    ) -> tuple[Value, ...]:
        place = _place(sys._getframe(1))
        if place is not None and self.change is None:
            for name in edits(op, operands, attributes):
                self.found[Change(self.name, place, _text(place, op.name), op.name, name)] = None
        elif place is not None and (place, op.name) == (self.change.place, self.change.node):  # type: ignore[union-attr]
            edit = edits(op, operands, attributes).get(self.change.edit)  # type: ignore[union-attr]
            if edit is not None:
                self.applied = True
                return self._edited(edit, op, operands, attributes)
        return super().call_named(op, operands, attributes, names)

    def _edited(
        self, edit: Edit, op: Op[..., Any], operands: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[Value, ...]:
        """The results after an edit, which are of the types of those before; what takes a cast's place need not be."""
        absent = [None] * (0 if op.operands and op.operands[-1].variadic else len(op.operands) - len(operands))
        values = self._values(op, [*operands, *absent])
        types = tuple(None if v is None else v.type for v in values)
        right = op.result_types(types, op.normalise(attributes))
        if edit.instead is not None:
            made: tuple[Value, ...] = (values[edit.instead],)  # type: ignore[assignment]
        else:
            made = super().call_named(edit.op, edit.operands, edit.attributes, None)
        if edit.narrow:
            if not narrows(made[0].type):
                raise GraphError("there is nothing to round")
            narrow = super().call_named(OPSET["cast"], made[:1], {"dtype": bfloat16}, None)
            made = (*super().call_named(OPSET["cast"], narrow, {"dtype": float32}, None), *made[1:])
        if op.name != "cast" and not _alike(right, tuple(v.type for v in made)):
            raise GraphError("the change does not fit")
        return made


def _alike(a: Sequence[Type], b: Sequence[Type]) -> bool:
    """Equal types, as far as sizes are known."""
    known = [t for t in (*a, *b) if not (isinstance(t, TensorType) and any(isinstance(d, Expr) for d in t.shape))]
    return len(a) == len(b) and (len(known) < len(a) + len(b) or list(a) == list(b))


def _place(frame: FrameType | None) -> Place | None:
    """Where the node is made that a builder is asked for; None for views in front of the op under test."""
    inner = (Builder.call.__code__, Op.__call__.__code__)
    place: list[Position] = []
    while frame is not None and frame.f_code is not Op.expand.__code__:
        if frame.f_code is Call.graph.__code__:
            return CALL
        if frame.f_code not in inner:
            place.append(_position(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return None if frame is None else tuple(reversed(place))


@cache
def _position(code: CodeType, instruction: int) -> Position:
    first, last, left, right = next(islice(code.co_positions(), instruction // 2, None))
    return code.co_filename, first or 0, last or 0, left or 0, right or 0


@cache
def _text(place: Place, node: str) -> str:
    """The source of a place: the call that makes the node, and the one of the decomposition that leads to it."""
    if place == CALL:
        return "the call"
    shown = [_source(position) for position in (place[-1:] if len(place) == 1 else (place[-1], place[0]))]
    return f"{node} in `{'` of `'.join(shown)}`"


def _source(position: Position) -> str:
    file, first, last, left, right = position
    lines = [linecache.getline(file, n).rstrip("\n") for n in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:right].decode()
    lines[0] = lines[0].encode()[left:].decode()
    return " ".join(" ".join(lines).split())


def _built(call: Call, change: Change | None, expanded: bool) -> tuple[Graph, _Changing]:
    builder = _Changing(call.op, change)
    return call.graph(expanded, builder), builder


def offered(call: Call) -> list[Change]:
    """All changes that a call has a place for, in its decomposition and in itself."""
    found: dict[Change, None] = {}
    for expanded in (False, True) if OPSET[call.op].composite else (False,):
        found.update(_built(call, None, expanded)[1].found)
    return list(found)


def numbered(found: Iterable[Change]) -> list[Change]:
    """Changes of one op in the order of its source; places whose texts are the same are told apart by numbers."""
    found = sorted(found, key=lambda c: (c.place, c.text, c.edit))
    places = dict.fromkeys((c.text, c.place) for c in found)
    count: Counter[str] = Counter()
    names = {}
    for text, place in places:
        count[text] += 1
        names[text, place] = text if count[text] == 1 else f"{text} ({count[text]})"
    return [replace(c, text=names[c.text, c.place]) for c in found]


def changed(call: Call, change: Change) -> Graph | None:
    """The graph of a call with a change; None if the call does not have the place, or is no graph with the change."""
    try:
        graph, builder = _built(call, change, change.place != CALL)
    except (GraphError, ZeroDivisionError):
        return None
    promised = [kind for kind in call.result_types if isinstance(kind, TensorType)]
    made = [v.type for v in graph.outputs.values()]
    return graph if builder.applied and _alike(promised, made) else None


def idle(call: Call, change: Change, graph: Graph) -> bool:
    """Whether a changed graph is the unchanged one, once both are simplified."""
    return str(simplify(graph)) == str(simplify(_built(call, None, change.place != CALL)[0]))


def run(call: Call, graph: Graph) -> tuple[Any, ...]:
    """The stored results of a graph of a call, every node rounded to its dtype."""
    return stored(call, _evaluated(call, graph, _rounded))


def exact(call: Call, graph: Graph) -> tuple[Any, ...]:
    """The results of a graph of a call in float64."""
    return _evaluated(call, graph, None)


def _evaluated(call: Call, graph: Graph, visit: Any) -> tuple[Any, ...]:
    inputs, parameters, states = (call.feeds(kind) for kind in (TensorType, WeightType, StateType))
    with mirrored(call.attributes), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing, where a change asks for them
        outputs, after = evaluate(graph, inputs, parameters, states, visit)
    writes = any(isinstance(kind, StateType) for kind in call.result_types)
    return (*outputs.values(), *(after.values() if writes else ()))


def _rounded(node: Node, made: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_held(x, value.type) for x, value in zip(made, node.results, strict=True))


def _held(x: Any, kind: Type) -> Any:
    if not isinstance(kind, TensorType) or not kind.dtype.is_float:
        return x
    if kind.dtype == float32:
        with np.errstate(over="ignore"):
            return np.asarray(x, np.float32).astype(np.float64)
    return round_to(np.asarray(x, np.float64), kind.dtype)
