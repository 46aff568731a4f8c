"""The well-formedness of a graph, checked from scratch and independent of the builder that made it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..errors import GraphError
from .dim import Check
from .graph import Graph, Node, Value, sizes_of
from .op import Inferred
from .types import StateType, TensorType


def verify(graph: Graph) -> Graph:
    """Return `graph` if it is well formed.

    Checks single assignment, unique names, definition before use, operand kinds, attributes, result types and run-time
    checks by the ops' own rules, constants, linear use of states and consistent symbols.

    Raises:
        GraphError: what is wrong, with the name of the value or op.
    """
    defined: set[int] = set()
    names: set[str] = set()
    for value in (*graph.inputs, *graph.parameters, *(s for s, _ in graph.states), *graph.constants):
        _define(value, defined, names)
    for value in graph.constants:
        shape = np.shape(np.asarray(value.data))
        if not isinstance(value.type, TensorType) or shape != value.type.shape or value.data is None:
            raise GraphError(f"constant %{value.name} is {value.type}, its data has shape {list(shape)}")
    written: set[int] = set()
    latest = {id(state): state for state, _ in graph.states}
    root_of = {id(state): id(state) for state, _ in graph.states}
    sizes = set(sizes_of([v.type for v in (*graph.inputs, *graph.parameters)]))
    promised = set(graph.checks)
    inferences: dict[Any, Inferred] = {}
    for node in graph.nodes:
        _check_node(node, defined, promised, sizes, inferences)
        _check_states(node, written, latest, root_of)
        for result in node.results:
            _define(result, defined, names)
    for name, value in graph.outputs.items():
        if id(value) not in defined:
            raise GraphError(f"output {name!r} is %{value.name}, which the graph does not define")
    for state, final in graph.states:
        if latest[id(state)] is not final:
            raise GraphError(f"state %{state.name} ends as %{latest[id(state)].name}, not as %{final.name}")
    graph.symbols()
    return graph


def _define(value: Value, defined: set[int], names: set[str]) -> None:
    if id(value) in defined or value.name in names:
        raise GraphError(f"value %{value.name} is defined twice")
    defined.add(id(value))
    names.add(value.name)


def _check_node(
    node: Node, defined: set[int], promised: set[Check], sizes: set[str], inferences: dict[Any, Inferred]
) -> None:
    for value in node.operands:
        if value is not None and id(value) not in defined:
            raise GraphError(f"{node.op.name}: operand %{value.name} is used before it is defined")
    types = tuple(None if v is None else v.type for v in node.operands)
    node.op.check_operands(types)
    attributes = node.op.normalise(node.attributes)
    if attributes != dict(node.attributes):
        raise GraphError(f"{node.op.name}: attributes are {dict(node.attributes)}, complete they are {attributes}")
    new = [name for name in sizes_of([r.type for r in node.results]) if name not in sizes]
    sizes.update(new)

    def called(wanted: str) -> str:
        """What the node calls a size that its op makes anew; a name that it shares with another one is not accepted."""
        return next((n for n in new if re.fullmatch(rf"{wanted}(_\d+)?", n)), f"{wanted}_of_its_own")

    inferred, checks = node.op.inferred(types, attributes, called, inferences)
    for check in checks:
        if check not in promised:
            raise GraphError(f"{node.op.name}: the graph does not check {check.left} == {check.right} when it runs")
    actual = tuple(r.type for r in node.results)
    if inferred != actual:
        spelled = ", ".join(map(str, actual)), ", ".join(map(str, inferred))
        raise GraphError(f"{node.op.name}: result %{node.results[0].name} is {spelled[0]}, the op says {spelled[1]}")


def _check_states(node: Node, written: set[int], latest: dict[int, Value], root_of: dict[int, int]) -> None:
    consumed = [v for v in node.operands if v is not None and isinstance(v.type, StateType)]
    for value in consumed:
        if id(value) in written:
            raise GraphError(f"{node.op.name}: state %{value.name} was already written; a write must be its last use")
    produced = [r for r in node.results if isinstance(r.type, StateType)]
    if produced and [v.type for v in produced] != [v.type for v in consumed]:
        raise GraphError(
            f"{node.op.name}: returns {len(produced)} states for {len(consumed)}; it must return all it takes"
        )
    for before, after in zip(consumed, produced, strict=False):
        written.add(id(before))
        root_of[id(after)] = root_of[id(before)]
        latest[root_of[id(before)]] = after
