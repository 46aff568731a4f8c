"""Cut a graph into runs of nodes that have one place each, with names for the values that cross between them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Generic, TypeVar

from ..errors import GraphError
from ..ir.dim import Dim, Expr, Symbol, symbols
from ..ir.graph import Graph, Node, Value
from ..ir.types import StateType, TensorType
from .single import mentioned

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Partition(Generic[P]):
    """A run of nodes as a graph of its own; `nodes` are those of the whole graph, in the same order.

    Roots of the whole graph keep their names. A tensor that crosses is an output of one part and an input of others,
    under its own name. A state has the same name in every part, and its memory is the same.
    """

    place: P
    graph: Graph
    nodes: tuple[Node, ...]


def partition(graph: Graph, place: Callable[[Node], P]) -> list[Partition[P]]:
    """Cut `graph` into parts, to be run in this order; `place` says where a node belongs, or whether it is supported.

    A part takes every node of its place that needs nothing from later parts, so there are few of them. The parts read
    their sizes off their own inputs.

    Raises:
        GraphError: the ops of one state belong to different places.
    """
    _check_states(graph, place)
    runs = list(_runs(graph, place))
    tellers = _tellers(graph)
    reads = [_reads(nodes, tellers) for nodes in runs]
    wanted = {id(v) for v in (*graph.outputs.values(), *(value for read in reads for value in read))}
    root_of = _state_roots(graph)
    parts = []
    for i, (nodes, read) in enumerate(zip(runs, reads, strict=True)):
        through = [v for v in graph.outputs.values() if v.kind != "result" and i == 0]
        cut = _cut(graph, nodes, _unique([*read, *through]), root_of)
        results = [r for node in nodes for r in node.results if id(r) in wanted]
        outputs = {v.name: v for v in (*results, *through) if isinstance(v.type, TensorType)}
        parts.append(Partition(place(nodes[0]), replace(cut, outputs=MappingProxyType(outputs)), tuple(nodes)))
    return parts


def state_groups(graph: Graph) -> list[tuple[tuple[str, ...], list[Node]]]:
    """The nodes of each state, with the names of their states; states that share a node are one group."""
    root_of = _state_roots(graph)
    merged: dict[int, list[Value]] = {id(state): [state] for state, _ in graph.states}
    for node in graph.nodes:
        touched = [merged[id(root_of[id(v)])] for v in node.operands if v is not None and id(v) in root_of]
        for other in touched[1:]:
            if other is not touched[0]:
                touched[0].extend(other)
                merged.update((id(state), touched[0]) for state in other)
    groups: dict[int, tuple[list[Value], list[Node]]] = {id(states): (states, []) for states in merged.values()}
    for node in graph.nodes:
        for value in node.operands:
            if value is not None and id(value) in root_of:
                groups[id(merged[id(root_of[id(value)])])][1].append(node)
                break
    return [(tuple(state.name for state in states), nodes) for states, nodes in groups.values()]


def _state_roots(graph: Graph) -> dict[int, Value]:
    """The state that each version of one is a version of."""
    roots = {id(state): state for state, _ in graph.states}
    for node in graph.nodes:
        consumed = [v for v in node.operands if v is not None and isinstance(v.type, StateType)]
        written = [r for r in node.results if isinstance(r.type, StateType)]
        for before, after in zip(consumed, written, strict=False):
            roots[id(after)] = roots[id(before)]
    return roots


def _check_states(graph: Graph, place: Callable[[Node], P]) -> None:
    for names, nodes in state_groups(graph):
        places: dict[P, Node] = {}
        for node in nodes:
            places.setdefault(place(node), node)
        if len(places) > 1:
            ops = " and ".join(node.op.name for node in places.values())
            raise GraphError(
                f"graph {graph.name!r}: state {', '.join(names)} would be in {len(places)} places, because {ops} are; "
                "all ops of a state belong to one"
            )


def _runs(graph: Graph, place: Callable[[Node], P]) -> Iterator[list[Node]]:
    """The nodes in an order that keeps what depends on each other, grouped by place."""
    before = _dependencies(graph)
    waiting, done = list(graph.nodes), set[int]()
    while waiting:
        here, run, rest = place(waiting[0]), list[Node](), list[Node]()
        for node in waiting:
            if place(node) == here and before[id(node)] <= done:
                run.append(node)
                done.add(id(node))
            else:
                rest.append(node)
        yield run
        waiting = rest


def _dependencies(graph: Graph) -> dict[int, set[int]]:
    """The nodes that must run before each node: those it reads from, and the readers of a state that it overwrites."""
    maker = {id(r): id(node) for node in graph.nodes for r in node.results}
    readers: dict[int, set[int]] = {}
    before: dict[int, set[int]] = {}
    for node in graph.nodes:
        needed = {maker[id(v)] for v in node.operands if v is not None and id(v) in maker}
        states = [v for v in node.operands if v is not None and isinstance(v.type, StateType)]
        if any(isinstance(r.type, StateType) for r in node.results):
            needed.update(*(readers.get(id(state), ()) for state in states))
        for state in states:
            readers.setdefault(id(state), set()).add(id(node))
        before[id(node)] = needed
    return before


def _reads(nodes: Sequence[Node], tellers: Mapping[str, Value]) -> list[Value]:
    """What a run reads from outside, and what it needs beside that to know its sizes."""
    made = {id(r) for node in nodes for r in node.results}
    read = _unique(v for node in nodes for v in node.operands if v is not None and id(v) not in made)
    known = {symbol.name for v in read if v.kind in ("input", "result") for symbol in _atoms(v)}
    needed = dict.fromkeys(symbol.name for node in nodes for symbol in mentioned(node))
    told = (tellers[name] for name in needed if name in tellers and name not in known)
    return _unique([*read, *(value for value in told if id(value) not in made)])


def _tellers(graph: Graph) -> dict[str, Value]:
    """For each size the first value to read it off: an input, or a result where only a run tells the size."""
    found: dict[str, Value] = {}
    for value in graph.inputs:
        for symbol in _atoms(value):
            found.setdefault(symbol.name, value)
    for value in graph.inputs:
        for dim in value.shape:
            for symbol in symbols(dim):
                found.setdefault(symbol.name, value)
    for node in graph.nodes:
        for value in node.results:
            for symbol in _atoms(value):
                found.setdefault(symbol.name, value)
    return found


def _atoms(value: Value) -> list[Symbol]:
    """The symbols that are a dimension of a tensor."""
    dims = value.type.shape if isinstance(value.type, TensorType) else ()
    found = [dim.terms[0][0][0] for dim in dims if isinstance(dim, Expr) and dim.is_atom]
    return [symbol for symbol in found if isinstance(symbol, Symbol)]


def _cut(graph: Graph, nodes: Sequence[Node], read: Sequence[Value], root_of: Mapping[int, Value]) -> Graph:
    """The graph of one run, without outputs."""
    image = {id(v): v for v in read}
    for value in read:
        if value.kind == "result":
            root = root_of.get(id(value))
            image[id(value)] = (
                replace(value, kind="input") if root is None else replace(value, name=root.name, kind="state")
            )
    final = {id(root_of[id(v)]): image[id(v)] for v in read if isinstance(v.type, StateType)}
    first = dict(final)
    kept = []
    for node in nodes:
        operands = tuple(None if v is None else image.get(id(v), v) for v in node.operands)
        kept.append(replace(node, operands=operands))
        final.update((id(root_of[id(r)]), r) for r in node.results if isinstance(r.type, StateType))
    crossing = [image[id(v)] for v in read if v.kind == "result" and isinstance(v.type, TensorType)]
    own = {id(v) for v in read}
    seen = {symbol.name for node in nodes for symbol in mentioned(node)}
    return replace(
        graph,
        inputs=(*(v for v in graph.inputs if id(v) in own), *crossing),
        parameters=tuple(v for v in graph.parameters if id(v) in own),
        states=tuple((first[key], final[key]) for key in first),
        constants=tuple(v for v in graph.constants if id(v) in own),
        nodes=tuple(kept),
        outputs={},
        checks=tuple(c for c in graph.checks if _names(c.left) | _names(c.right) <= seen),
    )


def _names(dim: Dim) -> set[str]:
    return {symbol.name for symbol in symbols(dim)}


def _unique(values: Iterable[Value]) -> list[Value]:
    return list({id(v): v for v in values}.values())
