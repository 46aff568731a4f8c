"""The well-formedness of a graph, checked from scratch and independent of the builder that made it."""

from __future__ import annotations

from ..errors import GraphError
from .dim import collect_checks
from .graph import Graph, Node, Value
from .types import StateType


def verify(graph: Graph) -> Graph:
    """Return `graph` if it is well formed.

    Checks single assignment, unique names, definition before use, operand kinds, result types by the ops' own rules,
    linear use of states and consistent symbols.

    Raises:
        GraphError: what is wrong, with the name of the value or op.
    """
    defined: set[int] = set()
    names: set[str] = set()
    for value in (*graph.inputs, *graph.parameters, *(s for s, _ in graph.states), *graph.constants):
        _define(value, defined, names)
    written: set[int] = set()
    latest = {id(state): state for state, _ in graph.states}
    root_of = {id(state): id(state) for state, _ in graph.states}
    for node in graph.nodes:
        _check_node(node, defined)
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


def _check_node(node: Node, defined: set[int]) -> None:
    for value in node.operands:
        if value is not None and id(value) not in defined:
            raise GraphError(f"{node.op.name}: operand %{value.name} is used before it is defined")
    types = tuple(None if v is None else v.type for v in node.operands)
    node.op.check_operands(types)
    with collect_checks():
        inferred = node.op.result_types(types, node.op.normalise(node.attributes))
    actual = tuple(r.type for r in node.results)
    if inferred != actual:
        spelled = ", ".join(map(str, actual)), ", ".join(map(str, inferred))
        raise GraphError(f"{node.op.name}: result %{node.results[0].name} is {spelled[0]}, the op says {spelled[1]}")


def _check_states(node: Node, written: set[int], latest: dict[int, Value], root_of: dict[int, int]) -> None:
    consumed = [v for v in node.operands if v is not None and isinstance(v.type, StateType)]
    for value in consumed:
        if id(value) in written:
            raise GraphError(f"{node.op.name}: state %{value.name} was already written; a write must be its last use")
    for before, after in zip(consumed, [r for r in node.results if isinstance(r.type, StateType)], strict=False):
        written.add(id(before))
        root_of[id(after)] = root_of[id(before)]
        latest[root_of[id(before)]] = after
